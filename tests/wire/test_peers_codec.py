"""Every message survives the wire; nothing but a message comes out of it."""

import typing
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hams_protocol import messages
from hams_protocol.deps import Dep
from hams_protocol.frozen import frozen
from hams_protocol.ids import RequestId
from hams_protocol.messages import (
    Admit,
    Attempt,
    Deliver,
    Heartbeat,
    Kind,
    LogAppend,
    Message,
    Meta,
    Payload,
    StateRecord,
    Token,
)
from hams_wire import limits
from hams_wire.peers.codec import CODES, Codec, Lane
from hams_wire.peers.errors import BadFrame, NotSendable
from hams_wire.peers.payload import HeapFactory, HeapPayload, Room, TensorInfo, defect_of, tensor_rank_max
from hams_wire.peers.schema import Schema

codec = Codec(HeapFactory())


def heap(data: bytes, name: str = "x") -> HeapPayload:
    return HeapPayload((TensorInfo(name, "UINT8", (1, len(data)), 0, len(data)),), memoryview(data))


payloads = st.builds(heap, st.binary(max_size=64), st.text(max_size=8))
st.register_type_strategy(Payload, payloads)
st.register_type_strategy(int, st.integers(-(2**63), 2**64 - 1))
st.register_type_strategy(float, st.floats(allow_nan=False))
st.register_type_strategy(str, st.text(max_size=12))


@frozen
class Inner:
    n: int


@frozen
class Outer:
    name: str
    inner: Inner = Inner(5)


def through(message: Message) -> Message:
    """Out and in again."""
    encoded = codec.encode(message)
    if not encoded.views:
        return codec.decode(encoded.code, encoded.metadata)
    incoming = codec.begin(encoded.code, encoded.metadata)
    rooms: list[Room] = []
    for size, view in zip(incoming.sizes, encoded.views, strict=True):
        room = codec.factory.allocate(size)
        room.view[:] = view
        rooms.append(room)
    return codec.finish(incoming, rooms)


def token(payload: Payload | None = None) -> Token:
    meta = Meta((("k", 3), ("t", 0.5), ("s", "x"), ("b", True)), "00-ab", 1.5, 2)
    return Token(
        RequestId(1, 7), ("a",), "op", Kind.VALUE, "v", (Dep("p", 1, 2),), ("q",), meta, payload=payload
    )


def test_every_message_has_a_code_of_its_own() -> None:
    assert set(CODES) == set(typing.get_args(messages.Message))
    codes = [code for code, _ in CODES.values()]
    assert len(set(codes)) == len(codes)
    assert all(16 <= code < 256 for code in codes)


def test_only_lanes_behind_urgent_carry_payloads() -> None:
    for cls, (_, lane) in CODES.items():
        if lane is Lane.URGENT:
            assert "Payload" not in repr(typing.get_type_hints(cls)), cls


@pytest.mark.parametrize("cls", list(CODES), ids=lambda cls: cls.__name__)
def test_every_message_comes_out_as_it_went_in(cls: type) -> None:
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.from_type(cls))
    def check(message: Message) -> None:
        assert through(message) == message

    check()


def test_types_survive_and_not_only_values() -> None:
    arrived = through(Deliver("rank", 3, token(heap(b"abc"))))
    assert isinstance(arrived, Deliver)
    assert type(arrived.token.kind) is Kind
    assert type(arrived.token.request) is RequestId
    assert type(arrived.token.deps[0]) is Dep
    assert type(arrived.token.deps) is tuple
    assert [type(value) for _, value in arrived.token.meta.parameters] == [int, float, str, bool]


def test_a_payload_that_is_named_twice_travels_once() -> None:
    shared = heap(b"x" * 100)
    request = RequestId(0, 1)
    message = LogAppend(
        0,
        1,
        1,
        (
            Admit(request, None, "d", Meta(), payload=shared),
            messages.ReplyEntry(request, (token(shared), token(heap(b"y")))),
        ),
    )
    encoded = codec.encode(message)
    assert encoded.data == 101
    arrived = through(message)
    assert isinstance(arrived, LogAppend)
    first, second = arrived.entries
    assert isinstance(first, Admit)
    assert isinstance(second, messages.ReplyEntry)
    assert first.payload is second.tokens[0].payload


def test_an_empty_payload_is_not_the_same_as_none() -> None:
    empty = StateRecord("p", 1, 2, 1, (), (), "c", heap(b""))
    assert through(empty) == empty
    none = StateRecord("p", 1, 2, 1, (), (), "c", None)
    assert through(none) == none
    assert empty != none


# ---- neighbouring versions ----


def test_a_field_that_an_older_peer_does_not_send_takes_its_default() -> None:
    code, _ = CODES[Attempt]
    older = msgspec.msgpack.encode(["p", "q", [0, 1], [], 2])
    assert codec.decode(code, older) == Attempt("p", "q", RequestId(0, 1), (), 2)


def test_a_field_that_a_newer_peer_adds_is_ignored() -> None:
    code, _ = CODES[Heartbeat]
    assert codec.decode(code, msgspec.msgpack.encode([7, {"new": [1, 2]}])) == Heartbeat(7)


def test_a_default_with_a_wire_form_of_its_own_is_taken_too() -> None:
    shape = Schema().shape(Outer)
    assert shape.decode is not None
    decoder: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder(
        typing.cast("type[object]", shape.wire)
    )
    assert shape.decode(decoder.decode(msgspec.msgpack.encode(["a"])), []) == Outer("a", Inner(5))
    assert shape.decode(decoder.decode(msgspec.msgpack.encode(["a", [6]])), []) == Outer("a", Inner(6))


@pytest.mark.parametrize("annotation", [dict[str, int], list[int], bytes, object, int | list[int]])
def test_types_without_a_wire_form_are_refused_at_import(annotation: object) -> None:
    with pytest.raises(TypeError, match="no wire form"):
        Schema().shape(annotation)


# ---- F36: what is not a message ----


def refused(code: int, metadata: bytes) -> None:
    with pytest.raises(BadFrame):
        codec.decode(code, metadata)
    with pytest.raises(BadFrame):
        codec.begin(code, metadata)


DELIVER = CODES[Deliver][0]


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\xc0",
        b"\x93",
        msgspec.msgpack.encode(["rank", 3]),
        msgspec.msgpack.encode(["rank", "3", None]),
        msgspec.msgpack.encode({"target": "rank"}),
        b"\xdd\xff\xff\xff\xff",  # an array of 4 billion items
        b"\xdb\xff\xff\xff\xff",  # a text of 4 GB
        b"\x91" * 100_000,
        b"\x93\xa1x\x01" + b"\x91" * 1_000_000 + b"\xc0",
        b"\x93\xa2\xff\xfe\x01\xc0",  # a text that is none
    ],
    ids=lambda data: data[:8].hex() or "empty",
)
def test_F36_metadata_that_is_no_message_is_refused(metadata: bytes) -> None:
    refused(DELIVER, metadata)


def test_F36_a_deeply_nested_field_of_a_newer_peer_is_refused_and_does_not_crash() -> None:
    refused(CODES[Heartbeat][0], b"\x93\x01\x90" + b"\x91" * 1_000_000 + b"\xc0")


def test_F36_bytes_after_a_message_are_refused() -> None:
    code = CODES[Heartbeat][0]
    with pytest.raises(BadFrame):
        codec.decode(code, msgspec.msgpack.encode([7]) + b"\x00")


@pytest.mark.parametrize("code", [0, 1, 15, 47, 254, 255])
def test_F36_unknown_types_are_refused(code: int) -> None:
    refused(code, msgspec.msgpack.encode([1]))


def test_F36_a_payload_that_is_not_in_the_table_is_refused() -> None:
    encoded = codec.encode(Deliver("rank", 3, token(heap(b"abc"))))
    _, body = msgspec.msgpack.decode(encoded.metadata)
    with pytest.raises(BadFrame, match="payload"):
        codec.decode(encoded.code, msgspec.msgpack.encode(body))
    body[2][10] = 1
    incoming = codec.begin(encoded.code, msgspec.msgpack.encode([[[0, []]], body]))
    with pytest.raises(BadFrame, match="payload"):
        codec.finish(incoming, [codec.factory.allocate(0)])


@pytest.mark.parametrize("number", [-1, 1 << 16, "0", 0.5])
def test_F36_a_payload_number_that_is_none_is_refused(number: object) -> None:
    encoded = codec.encode(Deliver("rank", 3, token(heap(b"abc"))))
    table, body = msgspec.msgpack.decode(encoded.metadata)
    body[2][10] = number
    with pytest.raises(BadFrame):
        codec.begin(encoded.code, msgspec.msgpack.encode([table, body]))


@pytest.mark.parametrize(
    "table",
    [
        [],
        [[-1, []]],
        [[limits.payload_bytes_max + 1, []]],
        [[limits.payload_bytes_max, []], [1, []]],
        [[3]],
    ],
    ids=repr,
)
def test_F36_a_payload_table_without_sizes_is_refused(table: object) -> None:
    encoded = codec.encode(Deliver("rank", 3, token(heap(b"abc"))))
    _, body = msgspec.msgpack.decode(encoded.metadata)
    with pytest.raises(BadFrame):
        codec.begin(encoded.code, msgspec.msgpack.encode([table, body]))


DEFECTS: list[object] = [
    [["x", "UINT8", [3], 1, 3]],
    [["x", "UINT8", [-3], 0, 3]],
    [["x", "UINT8", [1, -1, -1], 0, 3]],
    [["x", "UINT8", [1 << 64 - 1, 0], 0, 3]],
    [["x", "UINT8", [1] * (tensor_rank_max + 1), 0, 3]],
    [["x", "UINT8", [3], 0]],
    [["x", "UINT8", [3], -1, 3]],
    [["x", "UINT8", ["3"], 0, 3]],
    ["x"],
    "no table",
    None,
]


@pytest.mark.parametrize("tensors", DEFECTS, ids=repr)
def test_F36_a_payload_that_cannot_be_read_is_one_tokens_business_and_no_bad_frame(tensors: object) -> None:
    """Descriptors of one payload are wrong: the token arrives, says why it cannot be read, and is passed on
    as it came."""
    encoded = codec.encode(Deliver("rank", 3, token(heap(b"abc"))))
    _, body = msgspec.msgpack.decode(encoded.metadata)
    incoming = codec.begin(encoded.code, msgspec.msgpack.encode([[[3, tensors]], body]))
    room = codec.factory.allocate(3)
    room.view[:] = b"abc"
    decoded = codec.finish(incoming, [room])
    assert isinstance(decoded, Deliver)
    assert decoded.token.request == RequestId(1, 7)
    assert decoded.token.payload is not None
    assert decoded.token.payload.defect
    assert decoded.token.payload.nbytes == 3
    again = codec.encode(decoded)
    assert msgspec.msgpack.decode(again.metadata) == [[[3, tensors]], body]
    assert b"".join(again.views) == b"abc"


def test_a_defect_of_one_payload_is_not_its_neighbours() -> None:
    request = RequestId(0, 1)
    entries = tuple(Admit(request, None, "d", Meta(), payload=heap(data)) for data in (b"a", b"b"))
    encoded = codec.encode(LogAppend(0, 1, 1, entries))
    table, body = msgspec.msgpack.decode(encoded.metadata)
    table[0][1][0][2] = [1, -1]
    incoming = codec.begin(encoded.code, msgspec.msgpack.encode([table, body]))
    decoded = codec.finish(incoming, [codec.factory.allocate(1), codec.factory.allocate(1)])
    assert isinstance(decoded, LogAppend)
    defects = [
        entry.payload.defect for entry in decoded.entries if isinstance(entry, Admit) and entry.payload
    ]
    assert defects[0].startswith("tensor 'x' has a dimension of -1")
    assert defects[1] == ""


BOUNDARIES = (
    -(10**400),
    -(1 << 63) - 1,
    -1,
    0,
    1,
    1 << 31,
    1 << 53,
    1 << 63,
    (1 << 64) - 1,
    1 << 64,
    10**400,
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(BOUNDARIES), max_size=4),
    st.sampled_from(BOUNDARIES),
    st.sampled_from(BOUNDARIES),
)
def test_whatever_a_payload_says_of_itself_can_be_delivered(
    shape: list[int], offset: int, nbytes: int
) -> None:
    """A log may hold no entry that cannot be delivered: it leaves, and its receiver knows as well as its
    sender whether it can be read."""
    tensors = (TensorInfo("x", "UINT8", tuple(shape), offset, nbytes),)
    payload = HeapPayload(tensors, memoryview(b"abc"))
    data = through(LogAppend(0, 1, 1, (Admit(RequestId(0, 1), None, "d", Meta(), payload=payload),)))
    assert isinstance(data, LogAppend)
    (entry,) = data.entries
    assert isinstance(entry, Admit)
    assert entry.payload is not None
    assert bool(entry.payload.defect) is bool(defect_of(tensors, 3))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 255), st.binary(max_size=200))
@example(16, b"\x93\xa0\x00\x9c")
def test_F36_garbage_is_a_message_or_a_bad_frame_and_never_anything_else(code: int, garbage: bytes) -> None:
    for attempt in (codec.decode, codec.begin):
        try:
            attempt(code, garbage)
        except BadFrame:
            pass


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_F36_a_message_with_flipped_bytes_is_a_message_or_a_bad_frame(data: st.DataObject) -> None:
    encoded = codec.encode(Deliver("rank", 3, token(heap(b"abc"))))
    spoilt = bytearray(encoded.metadata)
    for _ in range(data.draw(st.integers(1, 4))):
        spoilt[data.draw(st.integers(0, len(spoilt) - 1))] = data.draw(st.integers(0, 255))
    try:
        incoming = codec.begin(encoded.code, bytes(spoilt))
        if incoming.total < 1 << 20:
            codec.finish(incoming, [codec.factory.allocate(size) for size in incoming.sizes])
    except BadFrame:
        pass


def test_F36_memory_follows_the_bytes_that_came_and_not_those_that_were_claimed() -> None:
    """A frame of a few dozen bytes claims 768 MB."""
    encoded = codec.encode(Deliver("rank", 3, token(heap(b"abc"))))
    _, body = msgspec.msgpack.decode(encoded.metadata)
    before = resident_bytes()
    incoming = codec.begin(encoded.code, msgspec.msgpack.encode([[[768 << 20, []]], body]))
    rooms = [codec.factory.allocate(size) for size in incoming.sizes]
    assert len(rooms[0].view) == 768 << 20
    assert resident_bytes() - before < 16 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


# ---- what may not leave ----


def test_metadata_over_its_bound_does_not_leave() -> None:
    with pytest.raises(NotSendable, match="metadata"):
        codec.encode(messages.Suspect("x" * (limits.metadata_bytes_max + 1), ""))


def test_a_class_without_a_code_does_not_leave() -> None:
    with pytest.raises(NotSendable, match="Meta"):
        codec.encode(typing.cast(Message, Meta()))


def test_a_descriptor_that_a_factory_refuses_is_its_payloads_defect() -> None:
    class Strict(HeapFactory):
        def build(self, tensors: tuple[TensorInfo, ...], room: Room) -> HeapPayload:
            raise ValueError("no such datatype")

    strict = Codec(Strict())
    encoded = strict.encode(Deliver("rank", 3, token(heap(b"abc"))))
    incoming = strict.begin(encoded.code, encoded.metadata)
    data = strict.finish(incoming, [strict.factory.allocate(3)])
    assert isinstance(data, Deliver)
    assert data.token.payload is not None
    assert data.token.payload.defect == "no such datatype"


@pytest.mark.parametrize(
    "parameters",
    [(("n", 1 << 64),), (("n", -(1 << 63) - 1),), (("s", "\ud800"),), (("\udfff", 1),)],
    ids=ascii,
)
def test_what_has_no_wire_form_does_not_leave(parameters: tuple[tuple[str, int | str], ...]) -> None:
    with pytest.raises(NotSendable, match="LogAppend"):
        codec.encode(LogAppend(0, 1, 1, (Admit(RequestId(0, 1), None, "d", Meta(parameters)),)))


def test_the_contract_lists_every_message_with_its_code_and_lane() -> None:
    contract = (Path(__file__).parents[2] / "sidecar" / "proto" / "peers.md").read_text()
    for cls, (code, lane) in CODES.items():
        assert f"| {code} | {cls.__name__} | {lane.name.lower()} |" in contract
