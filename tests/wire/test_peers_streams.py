"""Outbox and inbox, back to back and without a socket: what overtakes what, what is whole, what is
bounded."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hams_protocol.deps import Dep
from hams_protocol.ids import RequestId
from hams_protocol.messages import (
    Completion,
    Consumed,
    Deliver,
    Durable,
    Heartbeat,
    Kind,
    LogAck,
    Message,
    Meta,
    Payload,
    RecordAck,
    StateCopy,
    StateRecord,
    Token,
)
from hams_wire import limits
from hams_wire.peers import frames
from hams_wire.peers import outbox as outbox_module
from hams_wire.peers.codec import CODES, Codec, dedupe_bytes_min
from hams_wire.peers.errors import BadFrame, NoRoom
from hams_wire.peers.frames import chunk_bytes_max
from hams_wire.peers.inbox import Inbox, streams_open_max
from hams_wire.peers.outbox import SendQueue, join_bytes_max, lane_bytes_max
from hams_wire.peers.payload import HeapFactory, HeapPayload, HeapRoom, TensorInfo, Unreadable

MIB = 1 << 20


def heap(nbytes: int, seed: int = 0) -> HeapPayload:
    data = random.Random(seed).randbytes(nbytes)
    return HeapPayload((TensorInfo("x", "UINT8", (1, nbytes), 0, nbytes),), memoryview(data))


def token(n: int, payload: Payload | None = None) -> Deliver:
    return Deliver(
        "rank",
        3,
        Token(RequestId(0, n), (), "op", Kind.VALUE, f"v{n}", (), ("rank",), Meta(), payload=payload),
    )


def record(version: int, payload: Payload | None) -> StateRecord:
    return StateRecord("p", 1, version, version - 1, (), (), "c", payload)


def notice(seq: int) -> Durable:
    return Durable((Dep("p", 1, seq),))


class Line:
    """An inbox of a peer that has greeted, fed by hand."""

    def __init__(self, factory: HeapFactory | None = None) -> None:
        self.codec = Codec(factory or HeapFactory())
        self.messages: list[Message] = []
        self.dropped = 0
        self.inbox = Inbox(self.codec, self.messages.append, self.greet, self.drop)
        self.inbox.strange = False
        self.inbox.metadata_max = limits.metadata_bytes_max

    def greet(self, kind: int, metadata: bytes) -> None:
        raise BadFrame("no greeting expected")

    def drop(self) -> None:
        self.dropped += 1

    def feed(self, data: bytes | memoryview, step: int | None = None) -> None:
        """`step`: bytes per read at most."""
        view = memoryview(data)
        while view:
            buffer = self.inbox.buffer()
            assert len(buffer) > 0
            count = min(len(view), len(buffer), step or len(view))
            buffer[:count] = view[:count]
            self.inbox.received(count)
            view = view[count:]


def drained(outbox: SendQueue) -> bytes:
    seen = []
    while outbox:
        seen += outbox.take()
    return b"".join(seen)


def wire(*messages: Message) -> bytes:
    """The bytes of messages, in the order in which an outbox lets them leave."""
    codec, outbox = Codec(HeapFactory()), SendQueue()
    for message in messages:
        assert outbox.push(codec.encode(message))
    return drained(outbox)


# ---- whole ----


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(
        st.one_of(
            st.none(), st.integers(0, 200), st.integers(limits.chunk_bytes - 100, limits.chunk_bytes + 100)
        ),
        max_size=8,
    ),
    cuts=st.randoms(use_true_random=False),
)
def test_messages_arrive_whole_wherever_the_stream_is_cut(
    sizes: list[int | None], cuts: random.Random
) -> None:
    sent: list[Message] = []
    for n, size in enumerate(sizes):
        sent += [
            token(n, None if size is None else heap(size, n)),
            record(n, None if size is None else heap(size, n)),
            notice(n),
        ]
    data = memoryview(wire(*sent))
    line = Line()
    while data:
        count = cuts.choice((1, 7, 16, 100, 70_000, 1_000_000))
        line.feed(data[:count])
        data = data[count:]
    for cls in (Deliver, StateRecord, Durable):
        assert [item for item in line.messages if isinstance(item, cls)] == [
            item for item in sent if isinstance(item, cls)
        ]


def test_a_message_with_several_payloads_gets_each_its_own_bytes() -> None:
    tokens = tuple(
        token(n, heap(size, n)).token
        for n, size in enumerate((0, 10, 0, limits.chunk_bytes, 3, 2 * limits.chunk_bytes + 1, 0))
    )
    message = StateCopy("p", 1, 2, (), Completion(()), "c", heap(5, 9))
    for item in tokens:
        message = StateCopy("p", 1, 2, (*message.units, consumed(item)), Completion(()), "c", message.state)
    line = Line()
    line.feed(wire(message), step=50_000)
    assert line.messages == [message]


def consumed(item: Token) -> Consumed:
    return Consumed(item.unit, 1, item.value_id, (("rank", item),), ())


def test_large_metadata_arrives_and_its_memory_is_given_back() -> None:
    message = Completion(((0, 5, tuple(range(10, 300_000))),))
    line = Line()
    line.feed(wire(message, notice(1)), step=10_000)
    assert line.messages == [message, notice(1)]
    line.feed(wire(notice(2))[:5])
    assert len(line.inbox.buffer()) <= limits.staging_bytes


def test_payload_bytes_go_straight_into_their_room() -> None:
    rooms: list[HeapRoom] = []

    class Watching(HeapFactory):
        def allocate(self, nbytes: int) -> HeapRoom:
            rooms.append(super().allocate(nbytes))
            return rooms[-1]

    payload = heap(2 * MIB)
    line = Line(Watching())
    data = memoryview(wire(record(1, payload)))
    line.feed(data[:1000])
    assert line.inbox.buffer().obj is rooms[0].view.obj
    line.feed(data[1000:])
    assert line.messages == [record(1, payload)]


# ---- order ----


def test_a_notice_overtakes_a_record_of_100_MB() -> None:
    codec, outbox, line = Codec(HeapFactory()), SendQueue(), Line()
    large = HeapPayload((), memoryview(bytearray(100 * MIB)))
    outbox.push(codec.encode(record(1, large)))
    line.feed(b"".join(outbox.take()))
    outbox.push(codec.encode(notice(1)))
    line.feed(b"".join(outbox.take()))
    assert line.messages == [notice(1)]
    line.feed(drained(outbox))
    assert line.messages == [notice(1), record(1, large)]


def test_neither_records_nor_tokens_wait_for_each_other() -> None:
    codec, outbox, line = Codec(HeapFactory()), SendQueue(), Line()
    for n in range(20):
        outbox.push(codec.encode(token(n, heap(MIB))))
    outbox.push(codec.encode(record(1, heap(4 * MIB))))
    outbox.push(codec.encode(token(99)))
    while outbox:
        line.feed(b"".join(outbox.take()))
    at = line.messages.index(record(1, heap(4 * MIB)))
    assert 2 <= at <= 5, "a record of 4 MiB takes turns with the tokens of 1 MiB before it"
    assert line.messages[-1] == token(99), "tokens keep their order"


def test_copies_of_one_state_stay_where_they_are_and_all_else_passes_them() -> None:
    codec, outbox, line = Codec(HeapFactory()), SendQueue(), Line()
    copy = StateCopy("p", 1, 2, (), Completion(()), "c", heap(4 * MIB))
    others: list[Message] = [notice(1), token(1, heap(MIB)), record(1, heap(MIB))]
    outbox.push(codec.encode(copy))
    line.feed(b"".join(outbox.take()))  # it has begun
    for message in others:
        outbox.push(codec.encode(message))
    while outbox.may_leave("p"):
        line.feed(b"".join(outbox.take("p")))
    assert sorted(map(repr, line.messages)) == sorted(map(repr, others))
    assert outbox.take("p") == []
    assert outbox.may_leave("q"), "it is not of that one's state"
    while outbox.may_leave("q"):
        line.feed(b"".join(outbox.take("q")))
    assert line.messages[-1] == copy
    assert not outbox


def test_what_is_not_a_copy_of_that_state_leaves_from_the_lane_of_copies() -> None:
    codec, outbox, line = Codec(HeapFactory()), SendQueue(), Line()
    other, own = (StateCopy(op, 1, 2, (), Completion(()), "c", heap(4 * MIB)) for op in ("q", "p"))
    outbox.push(codec.encode(other))
    outbox.push(codec.encode(own))
    while outbox.may_leave("p"):
        line.feed(b"".join(outbox.take("p")))
    assert line.messages == [other]
    assert outbox


def test_each_lane_keeps_its_order() -> None:
    rng = random.Random(3)
    sent: list[Message] = []
    for n in range(200):
        sent.append(
            rng.choice(
                (
                    token(n, heap(rng.choice((0, 100, 600_000)), n)),
                    record(n, heap(10, n)),
                    notice(n),
                    Heartbeat(n),
                )
            )
        )
    line = Line()
    line.feed(wire(*sent))
    for kinds in ((Deliver,), (StateRecord,), (Durable, Heartbeat)):
        assert [item for item in line.messages if isinstance(item, kinds)] == [
            item for item in sent if isinstance(item, kinds)
        ]


def test_endless_acknowledgements_do_not_starve_records() -> None:
    codec, outbox, line = Codec(HeapFactory()), SendQueue(), Line()
    outbox.push(codec.encode(record(1, heap(100))))
    urgent = codec.encode(Completion(((0, 5, tuple(range(10, 300_000))),)))
    for _ in range(3):
        for _ in range(3):
            outbox.push(urgent)
        line.feed(b"".join(outbox.take()))
    assert record(1, heap(100)) in line.messages


def test_small_messages_of_one_step_are_one_piece() -> None:
    codec, outbox = Codec(HeapFactory()), SendQueue()
    for n in range(20):
        outbox.push(codec.encode(token(n, heap(100))))
        outbox.push(codec.encode(RecordAck("p", 1, n, n)))
    assert len(outbox.take()) == 1
    assert not outbox


def test_large_payloads_are_not_copied_on_the_way_out() -> None:
    codec, outbox = Codec(HeapFactory()), SendQueue()
    payload = heap(MIB)
    outbox.push(codec.encode(record(1, payload)))
    large = [piece for piece in outbox.take() if len(piece) > join_bytes_max]
    assert [piece.obj for piece in large if isinstance(piece, memoryview)] == [payload.data.obj]


# ---- bounds of the outbox ----


def test_I6_a_lane_over_its_bound_takes_no_more_and_the_others_do() -> None:
    codec, outbox = Codec(HeapFactory()), SendQueue()
    size = lane_bytes_max // 4
    memory = memoryview(bytearray(size))
    taken = [outbox.push(codec.encode(token(n, HeapPayload((), memory)))) for n in range(6)]
    assert taken == [True] * 3 + [False] * 3
    assert outbox.dropped == 3
    assert outbox.push(codec.encode(record(1, HeapPayload((), memory))))
    assert outbox.push(codec.encode(notice(1)))
    assert outbox.fullest_bytes <= lane_bytes_max


def test_I6_one_message_fits_however_large() -> None:
    codec, outbox = Codec(HeapFactory()), SendQueue()
    huge = HeapPayload((), memoryview(bytearray(lane_bytes_max + 1)))
    assert outbox.push(codec.encode(record(1, huge)))
    assert not outbox.push(codec.encode(record(2, HeapPayload((), memoryview(b"x")))))


def test_I6_the_number_of_messages_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "lane_messages_max", 10)
    codec, outbox = Codec(HeapFactory()), SendQueue()
    taken = [outbox.push(codec.encode(LogAck(0, 1, n))) for n in range(12)]
    assert taken == [True] * 10 + [False] * 2


def test_a_large_message_that_still_waits_is_not_queued_again() -> None:
    codec, outbox = Codec(HeapFactory()), SendQueue()
    large, other = heap(dedupe_bytes_min), heap(dedupe_bytes_min)
    assert outbox.push(codec.encode(record(1, large)))
    assert not outbox.push(codec.encode(record(1, large)))
    assert outbox.repeated == 1
    assert outbox.push(codec.encode(record(1, other))), "another payload is another message"
    assert outbox.push(codec.encode(record(2, large))), "another version too"
    drained(outbox)
    assert outbox.push(codec.encode(record(1, large))), "it has left: the core decides"


def test_bytes_are_counted_exactly() -> None:
    codec, outbox = Codec(HeapFactory()), SendQueue()
    rng = random.Random(5)
    for n in range(300):
        outbox.push(
            codec.encode(
                rng.choice(
                    (token(n, heap(rng.choice((0, 1, 100_000, 700_000)), n)), notice(n), record(n, None))
                )
            )
        )
        if rng.random() < 0.3:
            outbox.take()
        assert outbox.nbytes >= 0
    drained(outbox)
    assert outbox.nbytes == 0
    assert outbox.fullest_bytes == 0


# ---- F36: what the inbox refuses ----


def frame(
    kind: int,
    flags: int,
    stream: int,
    metadata: bytes,
    data: bytes,
    *,
    claim: int | None = None,
    part: int | None = None,
) -> bytes:
    """A frame that may lie: `claim` for the size of its metadata, `part` for that of its payload bytes."""
    head = frames.pack(
        kind, flags, stream, len(metadata) if claim is None else claim, len(data) if part is None else part
    )
    return head + metadata + data


def announced(payload: HeapPayload) -> bytes:
    return Codec(HeapFactory()).encode(record(1, payload)).metadata


RECORD = CODES[StateRecord][0]
NOTICE = CODES[Durable][0]


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01" + bytes(64),  # TLS where there is none
        bytes(16),
        b"HN" + frame(NOTICE, 0, 0, b"\x91\x90", b"")[2:],
        frame(5, 0, 0, b"", b""),
        frame(0, 0, 0, b"", b""),
        frame(15, 0, 0, b"", b""),
        frame(200, 0, 0, b"\x90", b""),
        frame(NOTICE, 2, 0, b"\x91\x90", b""),
        frame(NOTICE, 0, 1, b"\x91\x90", b""),
        frame(NOTICE, 0, 0, b"\x91\x90", b"x"),
        frame(NOTICE, 0, 0, b"", b"", claim=limits.metadata_bytes_max + 1),
        frame(RECORD, 1, 2, b"", b"", part=chunk_bytes_max + 1),
        frame(frames.DATA, 0, 2, b"", b"x"),
        frame(frames.DATA, 0, 2, b"", b""),
        frame(frames.DATA, 0, 2, b"m", b"x"),
        frame(frames.HELLO, 0, 0, b"\x90", b""),
        frame(RECORD, 1, 2, announced(heap(3)), b"xxxx"),
        frame(RECORD, 1, 2, announced(heap(3)), b"x") + frame(frames.DATA, 0, 2, b"", b"xxx"),
        frame(RECORD, 1, 2, announced(heap(3)), b"x") + frame(frames.DATA, 0, 3, b"", b"xx"),
        frame(RECORD, 1, 2, announced(heap(3)), b"x") + frame(RECORD, 1, 2, announced(heap(3)), b"x"),
        frame(RECORD, 1, 2, announced(heap(3)), b"xxx") + frame(frames.DATA, 0, 2, b"", b"x"),
        b"".join(
            frame(RECORD, 1, stream, announced(heap(3)), b"x") for stream in range(streams_open_max + 1)
        ),
    ],
    ids=lambda data: data[:24].hex(),
)
def test_F36_bytes_that_the_contract_does_not_allow_deliver_nothing(data: bytes) -> None:
    for step in (None, 1):
        line = Line()
        with pytest.raises(BadFrame):
            line.feed(data, step)
        assert [item for item in line.messages if not isinstance(item, StateRecord)] == []


def test_F36_a_claimed_length_takes_no_memory_before_its_bytes_come() -> None:
    line = Line()
    line.feed(frame(NOTICE, 0, 0, b"\x91", b"", claim=limits.metadata_bytes_max))
    assert len(line.inbox.buffer()) <= limits.staging_bytes


def test_F36_a_stranger_may_send_a_greeting_and_nothing_else() -> None:
    line = Line()
    line.inbox.strange = True
    line.inbox.metadata_max = limits.hello_bytes_max
    with pytest.raises(BadFrame, match="greeting"):
        line.feed(wire(notice(1)))
    line = Line()
    line.inbox.metadata_max = limits.hello_bytes_max
    with pytest.raises(BadFrame, match="metadata"):
        line.feed(frame(frames.HELLO, 0, 0, bytes(limits.hello_bytes_max + 1), b""))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_F36_garbage_is_refused_or_waits_for_more(garbage: bytes) -> None:
    line = Line()
    try:
        line.feed(garbage)
    except BadFrame:
        pass
    assert line.messages == []


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_F36_a_stream_with_flipped_bytes_never_delivers_half_a_message(data: st.DataObject) -> None:
    original: list[Message] = [token(1, heap(300, 1)), notice(2), record(3, heap(20, 3))]
    spoilt = bytearray(wire(*original))
    spoilt[data.draw(st.integers(0, len(spoilt) - 1))] ^= data.draw(st.integers(1, 255))
    line = Line(HeapFactory(capacity=1 << 20))
    try:
        line.feed(bytes(spoilt))
    except BadFrame:
        pass
    for message in line.messages:
        for payload in (
            getattr(message, "state", None),
            getattr(getattr(message, "token", None), "payload", None),
        ):
            assert payload is None or isinstance(payload, HeapPayload | Unreadable)


# ---- no room ----


def test_I6_a_message_without_room_is_dropped_and_holds_up_nobody() -> None:
    class Small(HeapFactory):
        def allocate(self, nbytes: int) -> HeapRoom:
            if nbytes > 1000:
                raise NoRoom(f"no room for {nbytes} bytes")
            return super().allocate(nbytes)

    line = Line(Small())
    line.feed(
        wire(token(1, heap(3 * MIB)), notice(1), token(2, heap(100)), record(3, heap(2000))), step=100_000
    )
    assert line.dropped == 2
    assert line.messages == [notice(1), token(2, heap(100))]
