"""Clients that misbehave on the HTTP port, on bare sockets (F36, F38)."""

import asyncio
import json

import pytest
from tests.sidecar.endpoint.doubles import PIXELS, FakePort, always, echo, graph

from hams_protocol.graph import FrontendSpec, TensorSpec
from hams_sidecar.endpoint import connection, limits
from hams_sidecar.endpoint.connection import BoundedHttpProtocol, head_bytes_max, headers_max
from hams_sidecar.endpoint.descriptors import ConnectionBounds
from hams_sidecar.inference import InferenceOutcome, InferenceRequest, Reply, Tensor

BODY = json.dumps(
    {"inputs": [{"name": "pixels", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
).encode()
HEAD = b"POST /v2/models/digits/infer HTTP/1.1\r\nhost: x\r\n"
GOOD = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
LIVE = b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n"

SMALL = graph(
    PIXELS,
    frontend=FrontendSpec(max_request_bytes=1 << 20, max_in_flight_bytes=2 << 20, request_timeout_s=30.0),
)


async def is_still_served(running) -> bool:
    """A fresh connection works, and nothing is held."""
    raw = await running.connect()
    await raw.send(GOOD)
    status, _, _ = await raw.answer()
    await raw.close()
    serving = running.endpoint._serving
    return status == 200 and serving.held_bytes == serving.announced_bytes == serving.open_requests == 0


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\xff\x16\x03\x01 not http at all\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /v2/models/digits/infer HTTP/9.9\r\n\r\n",
        HEAD + b"content-length: -1\r\n\r\n",
        HEAD + b"content-length: 1x\r\n\r\n",
        HEAD + b"content-length: 99999999999999999999999999\r\n\r\n",
        HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\nnothex\r\n",
        HEAD + b"bad header\r\n\r\n",
    ],
)
async def test_F36_garbage_gets_a_typed_error_and_a_closed_connection(serve, garbage: bytes) -> None:
    running = await serve()
    raw = await running.connect()
    await raw.send(garbage)
    status, headers, body = await raw.answer()
    assert status == 400
    assert headers["connection"] == "close"
    assert json.loads(body)["error"].startswith("malformed HTTP")
    raw.writer.write_eof()
    assert await raw.closed()
    assert running.port.requests == []
    assert await is_still_served(running)


async def test_F36_a_large_body_is_refused_before_it_is_sent(serve) -> None:
    running = await serve()
    raw = await running.connect()
    await raw.send(HEAD + b"content-length: %d\r\n\r\n" % (1 << 30))
    status, _, body = await raw.answer()
    assert status == 413
    assert (
        json.loads(body)["error"]
        == f"expected a body of at most {64 << 20} bytes, got Content-Length {1 << 30}"
    )
    assert await is_still_served(running)


async def test_F36_who_sends_a_large_body_all_the_same_still_sees_the_refusal(serve) -> None:
    running = await serve(SMALL)
    raw = await running.connect()
    await raw.send(HEAD + b"content-length: %d\r\n\r\n" % (8 << 20), *[bytes(1 << 20)] * 8)
    assert (await raw.answer())[0] == 413
    raw.writer.write_eof()
    assert await raw.closed()


async def test_F36_an_endless_chunked_body_is_refused_on_the_way(serve) -> None:
    running = await serve(SMALL)
    raw = await running.connect()
    chunk = b"40000\r\n" + bytes(0x40000) + b"\r\n"
    await raw.send(HEAD + b"transfer-encoding: chunked\r\n\r\n", *[chunk] * 6)
    status, _, body = await raw.answer()
    assert status == 413
    assert "got more" in json.loads(body)["error"]
    raw.writer.write_eof()
    assert await raw.closed()
    assert running.port.requests == []
    assert await is_still_served(running)


async def test_a_chunked_body_within_the_bound_is_served(serve) -> None:
    running = await serve(SMALL)
    raw = await running.connect()
    chunks = b"".join(b"%x\r\n%c\r\n" % (1, byte) for byte in BODY)
    await raw.send(HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
    assert (await raw.answer())[0] == 200


async def test_F36_a_length_that_promises_more_than_comes_ends_with_the_connection(serve) -> None:
    running = await serve()
    raw = await running.connect()
    await raw.send(HEAD + b"content-length: %d\r\n\r\n" % (len(BODY) + 5) + BODY)
    raw.writer.write_eof()
    await raw.closed()
    assert running.port.requests == []
    assert await is_still_served(running)


async def test_F36_a_length_that_promises_less_than_comes_spoils_only_its_own_connection(serve) -> None:
    running = await serve()
    raw = await running.connect()
    await raw.send(HEAD + b"content-length: %d\r\n\r\n" % (len(BODY) - 5) + BODY)
    statuses = [(await raw.answer())[0], (await raw.answer())[0]]
    assert statuses == [400, 400]
    assert await is_still_served(running)


async def test_F36_a_refusal_waits_for_the_answer_before_it(serve) -> None:
    running = await serve()
    go = asyncio.Event()

    async def slow(request: InferenceRequest) -> InferenceOutcome:
        await go.wait()
        return Reply(request.tensors)

    running.port.answer = slow
    raw = await running.connect()
    await raw.send(GOOD + b"\x00garbage\r\n\r\n")
    await running.port.arrived.acquire()
    go.set()
    assert [(await raw.answer())[0], (await raw.answer())[0]] == [200, 400]
    raw.writer.write_eof()
    assert await raw.closed()


async def test_pipelined_requests_are_answered_in_order(serve) -> None:
    running = await serve()
    raw = await running.connect()
    await raw.send(GOOD + LIVE + GOOD + GOOD)
    answers = [await raw.answer() for _ in range(4)]
    assert [status for status, _, _ in answers] == [200] * 4
    assert json.loads(answers[1][2]) == {"live": True}
    assert await is_still_served(running)


def held_up() -> tuple[FakePort, asyncio.Event]:
    """A port that answers nothing until the gate is open."""
    gate = asyncio.Event()

    async def answer(request: InferenceRequest) -> InferenceOutcome:
        await gate.wait()
        return Reply(())

    return FakePort(answer), gate


async def test_who_sends_too_far_ahead_is_answered_in_turn_and_then_refused(serve, monkeypatch) -> None:
    monkeypatch.setattr(connection, "pipelined_max", 4)
    port, gate = held_up()
    running = await serve(SMALL, port)
    raw = await running.connect()
    await raw.send(GOOD + LIVE * 20)
    await port.arrived.acquire()
    gate.set()
    answers = [await raw.answer() for _ in range(6)]
    assert [status for status, _, _ in answers] == [200] * 5 + [429]
    assert json.loads(answers[1][2]) == {"live": True}
    assert b"ahead of their turn" in answers[5][2]
    assert await raw.closed()


async def test_a_malformed_request_is_refused_after_all_before_it_are_answered(serve) -> None:
    running = await serve()
    raw = await running.connect()
    await raw.send(GOOD + LIVE + GOOD + b"GET\r\n\r\n")
    answers = [await raw.answer() for _ in range(4)]
    assert [status for status, _, _ in answers] == [200] * 3 + [400]
    assert await raw.closed()


@pytest.fixture
def made(monkeypatch) -> list[BoundedHttpProtocol]:
    """The server's ends of the connections that clients have made."""
    result: list[BoundedHttpProtocol] = []
    original = BoundedHttpProtocol.connection_made
    monkeypatch.setattr(
        BoundedHttpProtocol,
        "connection_made",
        lambda self, transport: (result.append(self), original(self, transport))[1],
    )
    return result


async def test_nothing_is_read_while_requests_wait_for_their_turn(serve, made) -> None:
    """What a client that reads nothing has sent ahead stays in its own sockets."""
    port, gate = held_up()
    running = await serve(SMALL, port)
    raw = await running.connect()
    await raw.send(LIVE + GOOD + LIVE * 2)
    await port.arrived.acquire()
    await raw.send(LIVE * 10)
    other = await running.connect()
    for _ in range(3):
        await other.send(LIVE)
        assert (await other.answer())[0] == 200
    assert len(made[0].pipeline) == 2
    gate.set()
    assert [(await raw.answer())[0] for _ in range(14)] == [200] * 14
    assert await is_still_served(running)


@pytest.mark.parametrize("at", [1, 40, len(HEAD), len(HEAD) + 20])
async def test_a_head_that_begins_behind_a_body_is_not_charged_for_it(serve, made, at: int) -> None:
    """Which bytes come in one read is decided here, not by the kernel."""
    running = await serve()
    raw = await running.connect()
    await raw.send(LIVE)
    assert (await raw.answer())[0] == 200
    spaces = b" " * 2 * head_bytes_max
    first = HEAD + b"content-length: %d\r\n\r\n" % (len(BODY) + len(spaces)) + BODY + spaces
    made[0].data_received(first + GOOD[:at])
    made[0].data_received(GOOD[at:])
    assert [(await raw.answer())[0] for _ in range(2)] == [200, 200]
    assert await is_still_served(running)


async def test_a_body_is_not_charged_for_the_requests_before_it(serve, made) -> None:
    running = await serve()
    raw = await running.connect()
    await raw.send(LIVE)
    assert (await raw.answer())[0] == 200
    before = LIVE[:-2] + b"a: " + b"x" * (head_bytes_max // 2) + b"\r\n\r\n"
    made[0].data_received(before * 3 + HEAD + b"transfer-encoding: chunked\r\n\r\n")
    made[0].data_received(b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY))
    assert [(await raw.answer())[0] for _ in range(4)] == [200] * 4
    assert await is_still_served(running)


async def test_F36_an_endless_head_behind_a_body_is_refused(serve, made) -> None:
    running = await serve()
    raw = await running.connect()
    await raw.send(LIVE)
    assert (await raw.answer())[0] == 200
    made[0].data_received(GOOD + HEAD + b"a: ")
    piece = b"x" * (head_bytes_max // 2)
    for _ in range(2):
        made[0].data_received(piece)
    assert [(await raw.answer())[0] for _ in range(2)] == [200, 431]
    assert await raw.closed()


async def test_who_asks_first_is_told_to_go_on(serve) -> None:
    running = await serve()
    raw = await running.connect()
    await raw.send(HEAD + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(BODY))
    assert await raw.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await raw.send(BODY)
    assert (await raw.answer())[0] == 200


async def test_an_upgrade_is_ignored(serve) -> None:
    running = await serve()
    raw = await running.connect()
    await raw.send(
        HEAD
        + b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAA\r\ncontent-length: "
        b"%d\r\n\r\n" % len(BODY) + BODY
    )
    status, headers, _ = await raw.answer()
    assert status == 200
    assert headers["connection"] == "close"
    assert await raw.closed()
    raw = await running.connect()
    await raw.send(LIVE[:-2] + b"connection: Upgrade\r\nupgrade: h2c\r\n\r\n")
    assert (await raw.answer())[0] == 200
    assert await raw.closed()


UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAA\r\n"
CHUNKED_UPGRADE = HEAD + UPGRADE + b"transfer-encoding: chunked\r\n\r\n"
HALF = len(BODY) // 2
CHUNKS = b"%x\r\n%b\r\n%x;a=b\r\n%b\r\n0\r\n" % (HALF, BODY[:HALF], len(BODY) - HALF, BODY[HALF:])


@pytest.mark.parametrize("at", [0, 1, 40, len(CHUNKS) - 3, len(CHUNKS) + 2])
@pytest.mark.parametrize("end", [b"\r\n", b"idempotency-key: late\r\n\r\n"])
async def test_an_upgrade_is_ignored_before_chunks_too(serve, made, at: int, end: bytes) -> None:
    running = await serve()
    raw = await running.connect()
    await raw.send(LIVE)
    assert (await raw.answer())[0] == 200
    made[0].data_received(CHUNKED_UPGRADE + (CHUNKS + end)[:at])
    made[0].data_received((CHUNKS + end)[at:])
    status, headers, _ = await raw.answer()
    assert status == 200
    assert headers["connection"] == "close"
    assert await raw.closed()
    assert [request.idempotency_key for request in running.port.requests] == [None]
    assert await is_still_served(running)


@pytest.mark.parametrize("behind", [GOOD, CHUNKED_UPGRADE + CHUNKS + b"\r\n", LIVE, b"\x00garbage\r\n\r\n"])
@pytest.mark.parametrize(
    "body", [b"transfer-encoding: chunked\r\n\r\n" + CHUNKS + b"\r\n", GOOD[len(HEAD) :]]
)
async def test_F36_what_stands_behind_a_request_that_asks_for_an_upgrade_is_no_request(
    serve, body: bytes, behind: bytes
) -> None:
    running = await serve()
    raw = await running.connect()
    await raw.send(GOOD + HEAD + UPGRADE + body + behind)
    assert [(await raw.answer())[0] for _ in range(2)] == [200, 200]
    assert await raw.closed()
    assert len(running.port.requests) == 2
    assert await is_still_served(running)


@pytest.mark.parametrize(
    ("status", "chunks"),
    [
        (400, b"nothex\r\n"),
        (400, CHUNKS[:20] + b"\x00" * 40 + GOOD),
        (413, b"%x\r\n" % (2 << 20) + bytes(2 << 20)),
        (431, b"1;" + b"x" * 300_000),
        (431, b"0\r\n" + b"a: b\r\n" * 300 + b"\r\n"),
    ],
)
async def test_F36_chunks_behind_an_upgrade_are_bounded_as_others_are(serve, status, chunks: bytes) -> None:
    running = await serve(SMALL)
    raw = await running.connect()
    await raw.send(CHUNKED_UPGRADE)
    sending = asyncio.create_task(raw.send(chunks))
    assert (await raw.answer())[0] == status
    await sending
    raw.writer.write_eof()
    assert await raw.closed()
    assert running.port.requests == []
    assert await is_still_served(running)


async def test_F36_a_head_that_is_refused_is_refused_whether_it_asks_for_an_upgrade_or_not(serve) -> None:
    running = await serve()
    raw = await running.connect()
    await raw.send(GOOD + CHUNKED_UPGRADE.replace(b"host: x", b"host: a b") + CHUNKS + b"\r\n")
    assert [(await raw.answer())[0] for _ in range(2)] == [200, 400]
    assert await raw.closed()
    assert len(running.port.requests) == 1


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"x" * 300_000,
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 5000,
        b"GET / HTTP/1.1\r\na: " + b"x" * 300_000,
    ],
)
async def test_F36_endless_heads_are_refused(serve, head: bytes) -> None:
    running = await serve()
    raw = await running.connect()
    await raw.send(*(head[at : at + 50_000] for at in range(0, len(head), 50_000)))
    status, _, _ = await raw.answer()
    assert status in (400, 431)
    assert await is_still_served(running)


async def test_F36_endless_trailers_are_refused(serve) -> None:
    running = await serve()
    raw = await running.connect()
    await raw.send(HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", b"a: b\r\n" * 300)
    assert (await raw.answer())[0] in (400, 431)
    assert await is_still_served(running)


# ---- large bodies, which bypass the parser

LARGE = graph(TensorSpec("x", "UINT8", (-1,)))


def large(size: int, fill: int) -> bytes:
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "x",
                    "datatype": "UINT8",
                    "shape": [1, size],
                    "parameters": {"binary_data_size": size},
                }
            ],
            "outputs": [],
        }
    ).encode()
    extra = b"inference-header-content-length: %d\r\ncontent-length: %d\r\n\r\n" % (
        len(head),
        len(head) + size,
    )
    return HEAD + extra + head + bytes([fill]) * size


async def test_large_bodies_arrive_whole_one_after_another_on_one_connection(serve) -> None:
    running = await serve(LARGE, FakePort(always(Reply(()))))
    raw = await running.connect()
    sizes = [3 << 20, 5, 200_000, 1 << 20]
    for fill, size in enumerate(sizes):
        await raw.send(large(size, fill))
        assert (await raw.answer())[0] == 200
    await raw.send(LIVE)
    assert (await raw.answer())[0] == 200
    assert [bytes(request.tensors[0].data) for request in running.port.requests] == [
        bytes([fill]) * size for fill, size in enumerate(sizes)
    ]


async def test_large_bodies_may_be_pipelined(serve) -> None:
    running = await serve(LARGE, FakePort(always(Reply(()))))
    raw = await running.connect()
    sending = asyncio.create_task(
        raw.send(large(3 << 20, 1) + LIVE + large(2 << 20, 2) + large(300_000, 3) + LIVE)
    )
    answers = [await raw.answer() for _ in range(5)]
    await sending
    assert [status for status, _, _ in answers] == [200] * 5
    assert [request.tensors[0].data[-1] for request in running.port.requests] == [1, 2, 3]
    assert [len(request.tensors[0].data) for request in running.port.requests] == [3 << 20, 2 << 20, 300_000]


class Rooms(FakePort):
    """A port with memory of its own for large bodies."""

    def __init__(self) -> None:
        super().__init__(always(Reply(())))
        self.taken: list[int] = []

    def room(self, nbytes: int, first: int) -> memoryview | None:
        self.taken.append(nbytes)
        return memoryview(bytearray(nbytes))


NARROW = graph(
    TensorSpec("x", "UINT8", (-1,)),
    frontend=FrontendSpec(max_request_bytes=2 << 20, max_in_flight_bytes=3 << 20, request_timeout_s=30.0),
)


async def test_F36_no_room_is_taken_for_bodies_that_are_only_announced(serve, arrived, lost) -> None:
    running = await serve(NARROW, Rooms())
    body = large(1 << 20, 7)
    first = body.index(b"\r\n\r\n") + 5
    raws = [await running.connect() for _ in range(5)]
    for raw in raws:
        await raw.send(body[:first])
        await arrived.acquire()
    assert running.port.taken == []
    for raw in raws:
        await raw.close()
        await lost.acquire()
    assert await is_still_served_large(running)


async def test_F36_rooms_that_bodies_take_are_bounded_together_before_they_are_filled(
    serve, arrived, lost
) -> None:
    running = await serve(NARROW, Rooms())
    serving = running.endpoint._serving
    size, part = 1 << 20, 1 << 17
    body = large(size, 7)
    raws = [await running.connect() for _ in range(4)]
    for number, raw in enumerate(raws, 1):
        await raw.send(body[:part])
        while serving.held_bytes < number * (part - len(HEAD) - 200):
            await arrived.acquire()
    assert len(running.port.taken) == 2, "a third one would be above the bound with what is announced"
    assert serving.held_bytes + serving.announced_bytes <= serving.held_bytes_max
    for raw in reversed(raws[1:]):  # those without a room are served as well
        await raw.send(body[part:])
        assert (await raw.answer())[0] == 200
        await raw.close()
        await lost.acquire()
    assert all(request.tensors[0].data == bytes([7]) * size for request in running.port.requests)
    await raws[0].close()
    await lost.acquire()
    assert await is_still_served_large(running)


async def test_F36_heads_that_are_not_finished_are_bounded_together(serve, heads, lost, monkeypatch) -> None:
    monkeypatch.setattr(connection, "heads_bytes_max", 40_000)
    running = await serve()
    serving = running.endpoint._serving
    raws = [await running.connect() for _ in range(3)]
    for number, raw in enumerate(raws[:2], 1):
        await raw.send(HEAD + b"x-long: " + b"a" * 19_000)
        while serving.head_bytes < number * 19_000:
            await heads.acquire()
    await raws[2].send(HEAD + b"x-long: " + b"a" * 19_000)
    status, _, body = await raws[2].answer()
    assert status == 503
    assert "unfinished" in json.loads(body)["error"]
    assert await is_still_served(running), "a head in one piece is served meanwhile"
    for raw in raws:
        await raw.close()
    while serving.head_bytes:
        await lost.acquire()


@pytest.mark.parametrize("upgrade", [b"", UPGRADE])
async def test_as_many_fields_as_are_allowed_come_in_with_an_upgrade_too(serve, upgrade: bytes) -> None:
    running = await serve()
    raw = await running.connect()
    head = HEAD + upgrade + b"transfer-encoding: chunked\r\n"
    more = headers_max - head.count(b"\r\n") + 1
    await raw.send(head + b"".join(b"a%d: b\r\n" % number for number in range(more)) + b"\r\n")
    await raw.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY))
    assert (await raw.answer())[0] == 200


async def is_still_served_large(running) -> bool:
    """A body that takes room is served, and nothing is held or announced then."""
    raw = await running.connect()
    await raw.send(large(1 << 20, 1))
    status, _, _ = await raw.answer()
    await raw.close()
    serving = running.endpoint._serving
    return status == 200 and serving.held_bytes == serving.announced_bytes == serving.open_requests == 0


async def test_a_large_body_that_stops_halfway_leaves_nothing_behind(serve, lost) -> None:
    running = await serve()
    raw = await running.connect()
    await raw.send(HEAD + b"content-length: %d\r\n\r\n" % (4 << 20) + bytes(1 << 20))
    await raw.close()
    await lost.acquire()
    assert await is_still_served(running)


async def test_a_large_body_that_does_not_come_is_a_408(serve) -> None:
    running = await serve(graph(PIXELS, frontend=FrontendSpec(request_timeout_s=0.1)))
    raw = await running.connect()
    await raw.send(HEAD + b"content-length: %d\r\n\r\n" % (4 << 20) + bytes(1 << 20))
    assert (await raw.answer())[0] == 408
    assert await raw.closed()


# ---- slow clients (F38)


async def test_F38_a_head_that_does_not_come_is_cut_off(serve, monkeypatch) -> None:
    monkeypatch.setattr(connection, "head_s_max", 0.05)
    running = await serve()
    silent, slow = await running.connect(), await running.connect()
    await slow.send(b"POST /v2/models")
    for raw in (silent, slow):
        assert (await raw.answer())[0] == 408
        raw.writer.write_eof()
        assert await raw.closed()
    assert await is_still_served(running)


async def test_F38_a_second_head_that_does_not_come_is_cut_off(serve, monkeypatch) -> None:
    running = await serve()
    raw = await running.connect()
    await raw.send(GOOD)
    assert (await raw.answer())[0] == 200
    monkeypatch.setattr(connection, "head_s_max", 0.05)
    await raw.send(b"POST /v2/mod")
    assert (await raw.answer())[0] == 408


async def test_F38_a_body_that_does_not_come_is_a_408(serve) -> None:
    running = await serve(graph(PIXELS, frontend=FrontendSpec(request_timeout_s=0.05)))
    raw = await running.connect()
    await raw.send(HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY[:10])
    status, headers, body = await raw.answer()
    assert status == 408
    assert headers["connection"] == "close"
    assert json.loads(body)["error"] == "expected the whole body within 0.05 s, got 10 bytes"
    assert await raw.closed()


NO_SUCH = HEAD.replace(b"digits", b"other")


@pytest.mark.parametrize(
    "framing", [b"transfer-encoding: chunked\r\n\r\n", b"content-length: 900000\r\n\r\n"]
)
async def test_F38_a_body_that_goes_on_after_its_answer_is_cut_off(serve, made, monkeypatch, framing) -> None:
    monkeypatch.setattr(connection, "answered_body_s_max", 0.05)
    running = await serve()
    raw = await running.connect()
    await raw.send(NO_SUCH + framing + b"1\r\nx\r\n")
    status, headers, _ = await raw.answer()
    assert status == 404
    assert "connection" not in headers
    assert made[0]._answered_body_timer is not None
    assert await raw.closed()
    assert await is_still_served(running)


async def test_a_body_that_ends_after_its_answer_leaves_the_connection_open(serve, made) -> None:
    running = await serve()
    raw = await running.connect()
    await raw.send(NO_SUCH + b"transfer-encoding: chunked\r\n\r\n")
    assert (await raw.answer())[0] == 404
    timer = made[0]._answered_body_timer
    await raw.send(CHUNKS + b"\r\n" + GOOD)
    assert (await raw.answer())[0] == 200
    assert timer.cancelled()
    assert made[0]._answered_body_timer is None


async def test_F38_a_client_that_never_reads_is_cut_off(serve, monkeypatch, lost) -> None:
    monkeypatch.setattr(limits, "write_stall_s_max", 0.05)
    large = Reply((Tensor("pixels", "FP32", (1 << 20, 4), bytes(16 << 20)),))
    running = await serve(port=FakePort(always(large)))
    raw = await running.connect()
    body = BODY[:-1] + b', "parameters": {"binary_data_output": true}}'
    await raw.send(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
    await running.port.arrived.acquire()
    raw.reader._transport.pause_reading()
    await lost.acquire()
    running.port.answer = echo
    assert await is_still_served(running)


async def test_F38_a_client_that_goes_away_is_not_waited_for(serve) -> None:
    async def forever(request: InferenceRequest) -> InferenceOutcome:
        await asyncio.Event().wait()
        raise AssertionError

    running = await serve(port=FakePort(forever))
    raw = await running.connect()
    await raw.send(GOOD)
    await running.port.arrived.acquire()
    await raw.close()
    await running.port.cancelled.acquire()
    running.port.answer = always(Reply(()))
    assert await is_still_served(running)


@pytest.mark.parametrize("late_body", [BODY, bytes(1 << 20)])
async def test_F38_bodies_that_pile_up_are_bounded_together(serve, lost, arrived, late_body: bytes) -> None:
    running = await serve(SMALL)
    holders = [await running.connect() for _ in range(2)]
    for raw in holders:
        await raw.send(HEAD + b"content-length: %d\r\n\r\n" % (1 << 20) + bytes((1 << 20) - 1))
    serving = running.endpoint._serving
    while serving.held_bytes < 2 * ((1 << 20) - 1):
        await arrived.acquire()
    late = await running.connect()
    await late.send(HEAD + b"content-length: %d\r\n\r\n" % len(late_body) + late_body)
    status, headers, _ = await late.answer()
    assert status == 429
    assert int(headers["retry-after"]) >= 1
    for raw in holders:
        await raw.close()
    await late.close()
    for _ in (*holders, late):
        await lost.acquire()
    assert await is_still_served(running)


async def test_F38_connections_are_bounded(serve, lost) -> None:
    running = await serve()
    running.endpoint._serving.connections = ConnectionBounds(http=2, grpc=2, refused=1)
    first, second = await running.connect(), await running.connect()
    for raw in (first, second):
        await raw.send(LIVE)
        assert (await raw.answer())[0] == 200
    third = await running.connect()
    assert (await third.answer())[0] == 503
    fourth = await running.connect()
    assert await fourth.closed(), "one more that is told would be one open file more"
    await first.close()
    await third.close()
    for _ in (first, third, fourth):
        await lost.acquire()
    assert await is_still_served(running)


async def test_F38_reconnecting_clients_leave_nothing_behind(serve, lost) -> None:
    running = await serve()

    async def client() -> None:
        for number in range(100):
            raw = await running.connect()
            await raw.send((GOOD, GOOD[:-5], b"x", b"")[number % 4])
            await raw.close()

    await asyncio.gather(*(client() for _ in range(20)))
    for _ in range(2000):
        await lost.acquire()
    assert await is_still_served(running)
