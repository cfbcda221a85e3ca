"""Messages of the core as metadata and payload bytes, and back.

Invariant: `decode(encode(m)) == m` for every message, and nothing but a message comes out of `decode`:
unknown types, wrong types, missing or trailing bytes, numbers of payloads that do not exist are a `BadFrame`.
Decoding allocates in proportion to the bytes that arrived, never to a number they claim.

A message is one thing, the payloads it carries are another: descriptors that cannot be taken make that
payload `Unreadable`, not the frame bad. So what one client sent can end neither a connection nor the log that
holds it; what becomes of it is the core's decision. For the same reason a payload of ours whose descriptors
cannot be written down leaves with the reason in their place.
"""

import enum
import types
from collections.abc import Sequence
from typing import Annotated, NamedTuple, TypeVar, cast

import msgspec

from hams_protocol import messages
from hams_protocol.messages import Message, Payload
from hams_wire import limits
from hams_wire.errors import UNDECODABLE
from hams_wire.peers import frames
from hams_wire.peers.errors import BadFrame, NotSendable
from hams_wire.peers.payload import PayloadFactory, Room, TensorInfo, Unreadable, defect_of
from hams_wire.peers.schema import Decode, Encode, Refs, Schema

payloads_per_message_max = 65_536
"""Payloads in one message."""

dedupe_bytes_min = 64 * 1024
"""A message with this much payload that still waits is not queued a second time."""


class Lane(enum.IntEnum):
    """What overtakes what on one connection: urgent goes first, the others take turns, each in its own
    order."""

    URGENT = 0
    LOG = 1
    RECORDS = 2
    TOKENS = 3
    COPIES = 4


CODES: dict[type, tuple[int, Lane]] = {
    messages.Deliver: (16, Lane.TOKENS),
    messages.TokenAcks: (17, Lane.URGENT),
    messages.StateRecord: (18, Lane.RECORDS),
    messages.RecordAck: (19, Lane.URGENT),
    messages.Durable: (20, Lane.URGENT),
    messages.AskDurable: (21, Lane.URGENT),
    messages.AskCopy: (22, Lane.URGENT),
    messages.StateCopy: (23, Lane.COPIES),
    messages.Completion: (24, Lane.URGENT),
    messages.SlotQuery: (25, Lane.URGENT),
    messages.SlotAnswer: (26, Lane.COPIES),
    messages.TopologyNews: (27, Lane.URGENT),
    messages.AskTopology: (28, Lane.URGENT),
    messages.LogAppend: (29, Lane.LOG),
    messages.LogAck: (30, Lane.URGENT),
    messages.Heartbeat: (31, Lane.URGENT),
    messages.Attempt: (32, Lane.URGENT),
    messages.LogCopy: (33, Lane.LOG),
    messages.ClientForward: (34, Lane.TOKENS),
    messages.ClientForwardHeld: (35, Lane.URGENT),
    messages.ClientForwardAnswer: (36, Lane.TOKENS),
    messages.AttemptAck: (37, Lane.URGENT),
    messages.AskApplied: (38, Lane.URGENT),
    messages.Leave: (39, Lane.URGENT),
    messages.AskDeterminants: (40, Lane.URGENT),
    messages.Determinants: (41, Lane.COPIES),
    messages.Suspect: (48, Lane.URGENT),
    messages.Probe: (49, Lane.URGENT),
    messages.ProbeAnswer: (50, Lane.URGENT),
    messages.Freeze: (51, Lane.URGENT),
    messages.FreezeAnswer: (52, Lane.URGENT),
    messages.Fence: (53, Lane.URGENT),
    messages.FenceAnswer: (54, Lane.URGENT),
    messages.Refused: (55, Lane.URGENT),
}
"""Type code on the wire and lane of every message. A code is never used for another message again."""

T = TypeVar("T")

_Size = Annotated[int, msgspec.Meta(ge=0, le=limits.payload_bytes_max)]


_Row = tuple[_Size, tuple[TensorInfo, ...]]
_Table = Annotated[tuple[_Row, ...], msgspec.Meta(min_length=1, max_length=payloads_per_message_max)]
_LooseRow = tuple[_Size, msgspec.Raw]
_LooseTable = Annotated[
    tuple[_LooseRow, ...], msgspec.Meta(min_length=1, max_length=payloads_per_message_max)
]
_TENSORS = msgspec.msgpack.Decoder(tuple[TensorInfo, ...])


class Defective(NamedTuple):
    """In the place of a payload's tensors: its descriptors as they came, and why they cannot be taken."""

    descriptors: "msgspec.Raw | tuple[TensorInfo, ...]"
    why: str


Table = tuple[tuple[int, tuple[TensorInfo, ...] | Defective], ...]


WRITABLE_MIN, WRITABLE_MAX = -(1 << 63), (1 << 64) - 1
"""Integers that MessagePack can hold."""


class Encoded:
    """A message ready for any number of connections: metadata, and views of its payloads' bytes in the order
    of the table; `sizes` are the bytes of each payload, which may lie in several views. `state_of`: the
    operator of whose state it is a copy; "" of all else."""

    __slots__ = (
        "code",
        "data",
        "flags",
        "key",
        "lane",
        "metadata",
        "nbytes",
        "payloads",
        "sizes",
        "state_of",
        "views",
    )

    def __init__(
        self,
        code: int,
        lane: Lane,
        metadata: bytes,
        payloads: tuple[Payload, ...],
        parts: Sequence[Sequence[memoryview]],
        flags: int,
        state_of: str,
    ) -> None:
        self.code = code
        self.state_of = state_of
        self.lane = lane
        self.metadata = metadata
        self.payloads = payloads  # kept: the key below holds their ids
        self.views = tuple([view for views in parts for view in views])
        self.sizes = tuple([sum(map(len, views)) for views in parts])
        self.flags = flags
        self.data = sum(self.sizes)
        self.nbytes = len(metadata) + self.data
        self.key = (code, metadata, *map(id, payloads)) if self.data >= dedupe_bytes_min else None


class PartialMessage:
    """A message whose metadata has arrived and passed, and the payloads it waits for: size and tensors of
    each, and the bytes of all."""

    __slots__ = ("_body", "_decode", "table", "total")

    def __init__(self, body: object, decode: Decode, table: Table, total: int) -> None:
        self._body = body
        self._decode = decode
        self.table = table
        self.total = total

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each payload."""
        return tuple([size for size, _ in self.table])

    def message(self, payloads: list[Payload]) -> Message:
        """The message with its payloads. Raises BadFrame if it names one that is not in its table."""
        return _built(self._decode, self._body, payloads)


class _Form(NamedTuple):
    code: int
    lane: Lane
    encode: Encode


class _Reader(NamedTuple):
    decode: Decode
    plain: "msgspec.msgpack.Decoder[object]"
    loaded: "msgspec.msgpack.Decoder[tuple[tuple[tuple[int, tuple[TensorInfo, ...]], ...], object]]"
    loose: "msgspec.msgpack.Decoder[tuple[tuple[tuple[int, msgspec.Raw], ...], object]]"


class Codec:
    """Encodes and decodes messages; payload memory is the factory's."""

    def __init__(self, factory: PayloadFactory) -> None:
        self.factory = factory
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, message: Message) -> Encoded:
        """Take a message apart. Raises NotSendable. The views keep the payloads' memory in use until they are
        gone."""
        form = _FORMS.get(type(message))
        if form is None:
            raise NotSendable(f"no code for a {type(message).__name__}")
        refs: Refs = {}
        body = form.encode(message, refs)
        if len(refs) > payloads_per_message_max:
            raise NotSendable(
                f"a {type(message).__name__} with {len(refs)} payloads, at most "
                f"{payloads_per_message_max} may travel"
            )
        payloads = tuple([payload for _, payload in refs.values()])
        described = [self._described(payload) for payload in payloads]
        try:
            metadata = self._encoder.encode(
                ([(sum(map(len, views)), tensors) for tensors, views in described], body)
                if described
                else body
            )
        except (OverflowError, TypeError, ValueError) as error:
            raise NotSendable(f"a {type(message).__name__} that has no wire form: {error}") from error
        if len(metadata) > limits.metadata_bytes_max:
            raise NotSendable(
                f"a {type(message).__name__} with {len(metadata)} bytes of metadata, at most "
                f"{limits.metadata_bytes_max} may travel"
            )
        encoded = Encoded(
            form.code,
            form.lane,
            metadata,
            payloads,
            [views for _, views in described],
            frames.PAYLOAD if described else 0,
            message.op if type(message) is messages.StateCopy else "",
        )
        if encoded.data > limits.payload_bytes_max:
            raise NotSendable(
                f"a {type(message).__name__} with {encoded.data} payload bytes, at most "
                f"{limits.payload_bytes_max} may travel"
            )
        return encoded

    def prove(self, message: Message) -> None:
        """Raises NotSendable for a message that peers could not be sent, or whose payloads no peer of this
        version could read."""
        encoded = self.encode(message)
        if encoded.views:
            for _, tensors in self.begin(encoded.code, encoded.metadata).table:
                if isinstance(tensors, Defective):
                    raise NotSendable(f"a {type(message).__name__} that no peer could read: {tensors.why}")

    def _described(
        self, payload: Payload
    ) -> "tuple[Sequence[TensorInfo] | msgspec.Raw | str, Sequence[memoryview]]":
        """Descriptors and bytes of a payload. Descriptors that cannot be written down give way to the reason,
        which no receiver takes for any."""
        if isinstance(payload, Unreadable):
            return payload.descriptors, (payload.room.view,)
        tensors, views = self.factory.describe(payload)
        for tensor in tensors:
            for number in (*tensor.shape, tensor.offset, tensor.nbytes):
                if not WRITABLE_MIN <= number <= WRITABLE_MAX:
                    return defect_of(tensors, sum(map(len, views))), views
        return tensors, views

    def decode(self, code: int, metadata: memoryview | bytes) -> Message:
        """A message without payloads. Raises BadFrame."""
        reader = _reader(code)
        return _built(reader.decode, _decoded(reader.plain, metadata, code), [])

    def begin(self, code: int, metadata: memoryview | bytes) -> PartialMessage:
        """A message with payloads, which are still to come. Raises BadFrame."""
        reader = _reader(code)
        table: Table
        try:
            strict, body = reader.loaded.decode(metadata)
            table = tuple([_checked(size, tensors) for size, tensors in strict])
        except UNDECODABLE:
            loose, body = _decoded(reader.loose, metadata, code)
            table = tuple([_read(size, raw) for size, raw in loose])
        total = sum([size for size, _ in table])
        if total > limits.payload_bytes_max:
            raise BadFrame(f"{total} payload bytes announced, at most {limits.payload_bytes_max} are taken")
        return PartialMessage(body, reader.decode, table, total)

    def finish(self, incoming: PartialMessage, rooms: list[Room]) -> Message:
        """The message, all payload bytes being in their rooms. Raises BadFrame."""
        return incoming.message(
            [self._build(tensors, room) for (_, tensors), room in zip(incoming.table, rooms, strict=True)]
        )

    def _build(self, tensors: tuple[TensorInfo, ...] | Defective, room: Room) -> Payload:
        if isinstance(tensors, Defective):
            return Unreadable(tensors.descriptors, room, tensors.why)
        try:
            return self.factory.build(tensors, room)
        except ValueError as error:
            return Unreadable(tensors, room, str(error))


def _checked(size: int, tensors: tuple[TensorInfo, ...]) -> tuple[int, tuple[TensorInfo, ...] | Defective]:
    why = defect_of(tensors, size)
    return (size, Defective(tensors, why)) if why else (size, tensors)


def _read(size: int, raw: msgspec.Raw) -> tuple[int, tuple[TensorInfo, ...] | Defective]:
    """Descriptors of one payload, decoded by themselves, so that another's defect is not theirs."""
    try:
        return _checked(size, _TENSORS.decode(raw))
    except UNDECODABLE as error:
        return size, Defective(msgspec.Raw(bytes(raw)), f"its descriptors: {error}")


def _reader(code: int) -> _Reader:
    reader = _READERS.get(code)
    if reader is None:
        raise BadFrame(f"unknown message type {code}")
    return reader


def _decoded(decoder: "msgspec.msgpack.Decoder[T]", metadata: memoryview | bytes, code: int) -> T:
    try:
        return decoder.decode(metadata)
    except UNDECODABLE as error:
        raise BadFrame(f"metadata of a message of type {code}: {error}") from error


def _built(decode: Decode, body: object, payloads: list[Payload]) -> Message:
    try:
        return cast(Message, decode(body, payloads))
    except IndexError:
        raise BadFrame(f"a message refers to a payload beyond its {len(payloads)}") from None
    except (TypeError, ValueError, OverflowError) as error:  # compiled classes look at what they are given
        raise BadFrame(f"a message that cannot be: {error}") from error


def _compile() -> tuple[dict[type, _Form], dict[int, _Reader]]:
    schema = Schema()
    forms: dict[type, _Form] = {}
    readers: dict[int, _Reader] = {}
    for cls, (code, lane) in CODES.items():
        shape = schema.shape(cls)
        assert shape.encode is not None, cls
        assert shape.decode is not None, cls
        forms[cls] = _Form(code, lane, shape.encode)
        loaded = types.GenericAlias(tuple, (_Table, shape.wire))
        loose = types.GenericAlias(tuple, (_LooseTable, shape.wire))
        readers[code] = _Reader(
            shape.decode,
            msgspec.msgpack.Decoder(cast("type[object]", shape.wire)),
            msgspec.msgpack.Decoder(loaded),
            msgspec.msgpack.Decoder(loose),
        )
    return forms, readers


_FORMS, _READERS = _compile()
