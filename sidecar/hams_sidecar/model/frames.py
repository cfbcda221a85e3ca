"""Control frames of the model contract (proto/model.md) as the proxy sees them.

A frame is an 8-byte header (u32 body length, u8 kind, u8 protocol version, u16 zero, little-endian) and a
JSON object. What a model process sends is checked against these schemas before anything is believed:
`BadModelFrame` otherwise.
"""

import struct
from typing import TypeVar

import msgspec

from hams_sidecar.model.limits import FRAME_BYTES_MAX

FRAMES = 1
"""Version of the frames, in their headers."""
PROTOCOL = 2
"""Version of the contract that this proxy speaks."""
PROTOCOL_OLDEST = 1
"""The oldest that it still speaks: models of it know nothing of chunks."""
HEADER = struct.Struct("<IBBH")

Place = tuple[int, int, int]
"""Region number, offset and size in bytes."""


class BadModelFrame(Exception):
    """The model process's: bytes that are no frame of the contract."""


class FromModel(msgspec.Struct, frozen=True):
    """Base of what a model process sends."""


class Hello(FromModel, frozen=True):
    """First frame of every connection: what it is for. `session` is empty on `run`, else the one of the
    setup. `holds_mutex`, on `health`: the process has locked the mutex of its setup."""

    protocol: int
    channel: str
    session: str
    sdk: str = ""
    pid: int = 0
    holds_mutex: bool = False


class Ready(FromModel, frozen=True):
    """The model has initialised. `layout`: path, datatype and shape of its state's tensors; `signature` a
    digest of it. `loads_changed`: it takes loads of what differs from its newest table. `enters_early`: it
    takes an ENTER before it asks, and drops answers that come late."""

    signature: str
    layout: list[tuple[str, str, list[int]]]
    estimate_nbytes: int
    loads_changed: bool = False
    enters_early: bool = False


class InitFailed(FromModel, frozen=True):
    """Importing or initialising the model failed; the process ends."""

    message: str


class WantUpdate(FromModel, frozen=True):
    """The run stands before its update stage."""

    batch: int


class WantSpace(FromModel, frozen=True):
    """Outputs of `units` (places in the batch) or a state need as many bytes as `sizes` says. `id`: the batch
    or version."""

    id: int
    sizes: list[int]
    units: list[int] = []


class UnitDone(FromModel, frozen=True):
    """One unit's outputs: offset in its space, bytes and shape, in the order declared; or its error; or that
    it was refused."""

    tensors: list[tuple[int, int, list[int]]] | None = None
    route: list[str] | None = None
    error: str | None = None
    refused: bool = False


class Done(FromModel, frozen=True):
    """The outputs of a batch, unit by unit. `seconds`: what the run took outside its update stage;
    `update_s`: inside it; 0: the model does not say."""

    batch: int
    updated: bool
    units: list[UnitDone]
    seconds: float = 0.0
    update_s: float = 0.0


class Failed(FromModel, frozen=True):
    """The batch failed as a whole, or was abandoned at the boundary. `seconds`, `update_s`: see `Done`."""

    batch: int
    message: str
    updated: bool
    abandoned: bool = False
    seconds: float = 0.0
    update_s: float = 0.0


class CaptureDone(FromModel, frozen=True):
    """The state, an image of `nbytes`, is captured. `changed`: only these chunks lie in the space granted,
    one after another, as (first, how many); None: the image whole. `compared`: bytes."""

    version: int
    nbytes: int
    tensors: int = 0
    seconds: float = 0.0
    changed: list[tuple[int, int]] | None = None
    compared: int = 0


class CaptureFailed(FromModel, frozen=True):
    """The state cannot be captured."""

    version: int
    message: str


class LoadDone(FromModel, frozen=True):
    """The state is that of the image."""

    token: int
    seconds: float = 0.0


class LoadRefused(FromModel, frozen=True):
    """The image does not fit, or the model raised."""

    token: int
    message: str


class Pong(FromModel, frozen=True):
    """Health: answer to ping `n`; how long the present run (or initialize) has been going."""

    n: int
    busy_s: float


KINDS: dict[int, type[FromModel]] = {
    1: Hello,
    2: Ready,
    3: InitFailed,
    4: WantUpdate,
    5: WantSpace,
    6: Done,
    7: Failed,
    8: CaptureDone,
    9: CaptureFailed,
    10: LoadDone,
    11: LoadRefused,
    12: Pong,
}

SETUP, REFUSED, RUN, ENTER, ABANDON, GRANT, CAPTURE, LOAD, PING = range(65, 74)

_DECODERS = {kind: msgspec.json.Decoder(cls) for kind, cls in KINDS.items()}
_encoder = msgspec.json.Encoder()

Body = TypeVar("Body")


def encode(kind: int, body: dict[str, Body]) -> bytes:
    """A frame to the model process."""
    data = _encoder.encode(body)
    return HEADER.pack(len(data), kind, FRAMES, 0) + data


class FrameReader:
    """Cuts a byte stream into frames. Holds at most one frame that is not complete."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> list[FromModel]:
        """The frames that are complete with `data`. Raises BadModelFrame; the stream is then unusable."""
        pending = self._pending + data if self._pending else data
        frames: list[FromModel] = []
        at = 0
        while len(pending) - at >= HEADER.size:
            length, kind, version, zero = HEADER.unpack_from(pending, at)
            if version != FRAMES or zero or length > FRAME_BYTES_MAX or kind not in _DECODERS:
                raise BadModelFrame(f"bad frame header: length {length}, kind {kind}, version {version}")
            end = at + HEADER.size + length
            if len(pending) < end:
                break
            try:
                frames.append(_DECODERS[kind].decode(pending[at + HEADER.size : end]))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise BadModelFrame(f"{KINDS[kind].__name__} frame: {error}") from error
            at = end
        self._pending = pending[at:]
        return frames
