"""Control frames between a model process and its proxy (proto/model.md), as the model process sees them:
blocking Unix sockets.

A frame is an 8-byte header (u32 body length, u8 kind, u8 protocol version, u16 zero, little-endian) and a
JSON object. Tensors and states never travel here: frames name places in shared memory.
"""

import enum
import json
import os
import select
import socket
import struct
from typing import Any

from hams_sdk.errors import ContractBroken

FRAME_BYTES_MAX = 16 << 20
"""A control frame; tensors never travel in frames."""

PROTOCOL = 2
"""Version of the contract that this SDK speaks."""
FRAMES = 1
"""Version of the frames themselves, in their headers."""
_HEADER = struct.Struct("<IBBH")
_READ_BYTES = 1 << 16
# Bodies are made here, and none holds itself: to check that takes a sixth of the time of encoding one.
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_decode = json.JSONDecoder().decode


class FrameKind(enum.IntEnum):
    """Kinds of frames: below 64 from the model, above from the proxy."""

    HELLO = 1
    READY = 2
    INIT_FAILED = 3
    WANT_UPDATE = 4
    WANT_SPACE = 5
    DONE = 6
    FAILED = 7
    CAPTURED = 8
    CAPTURE_FAILED = 9
    LOADED = 10
    LOAD_FAILED = 11
    PONG = 12
    SETUP = 65
    REFUSED = 66
    RUN = 67
    ENTER = 68
    ABANDON = 69
    GRANT = 70
    CAPTURE = 71
    LOAD = 72
    PING = 73


class Channel:
    """One connection to the proxy, used by one thread."""

    def __init__(self, path: str) -> None:
        """Connect. Raises OSError."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        self._pending = b""
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def send(self, kind: FrameKind, **body: Any) -> None:
        """Send one frame. Raises OSError when the proxy has gone."""
        data = _encode(body).encode()
        self._socket.sendall(_HEADER.pack(len(data), kind, FRAMES, 0) + data)

    @property
    def has_more(self) -> bool:
        """Whether `receive` need not wait: a frame has come, or its beginning, or the proxy has closed."""
        return bool(self._pending or self._poll.poll(0))

    def receive(self) -> tuple[FrameKind, dict[str, Any]] | None:
        """The next frame; None when the proxy has closed. Raises ContractBroken, OSError."""
        pending = self._pending
        need, kind = _HEADER.size, 0
        while True:
            if len(pending) >= need:
                length, kind, version, zero = _HEADER.unpack_from(pending)
                if version != FRAMES or zero or length > FRAME_BYTES_MAX:
                    raise ContractBroken(f"bad frame header: length {length}, kind {kind}, version {version}")
                need = _HEADER.size + length
                if len(pending) >= need:
                    break
            data = self._socket.recv(max(_READ_BYTES, need - len(pending)))
            if not data:
                return None
            pending = pending + data if pending else data
        self._pending = pending[need:]
        try:
            body = _decode(pending[_HEADER.size : need].decode())
            received = FrameKind(kind)
        except (ValueError, RecursionError) as error:
            raise ContractBroken(f"bad frame of kind {kind}: {error}") from error
        if not isinstance(body, dict):
            raise ContractBroken(f"bad frame of kind {kind}: not an object")
        return received, body

    def expect(self, *kinds: FrameKind) -> tuple[FrameKind, dict[str, Any]] | None:
        """As `receive`; any other kind is a ContractBroken."""
        frame = self.receive()
        if frame is not None and frame[0] not in kinds:
            raise ContractBroken(f"expected {' or '.join(kind.name for kind in kinds)}, got {frame[0].name}")
        return frame


def hello(channel: Channel, name: str, session: str, sdk: str, holds_mutex: bool = False) -> None:
    """Say what this connection is for."""
    channel.send(
        FrameKind.HELLO,
        protocol=PROTOCOL,
        channel=name,
        session=session,
        sdk=sdk,
        pid=os.getpid(),
        holds_mutex=holds_mutex,
    )
