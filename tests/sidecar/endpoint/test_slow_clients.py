"""Who gives way when clients together want more memory than there is."""

from tests.sidecar.endpoint.doubles import PIXELS, FakePort, graph

from hams_protocol.graph import FrontendSpec
from hams_sidecar.endpoint import slow_clients
from hams_sidecar.endpoint.slow_clients import Bodies, UntakenReplies
from hams_sidecar.inference import InferenceOutcome, InferenceRequest, Reply, Tensor


class Body:
    def __init__(self, began_s: float, size: int) -> None:
        self.began_s = began_s
        self.size = size
        self.gone = False

    @property
    def arrived_bytes(self) -> int:
        return self.size

    def give_way(self) -> None:
        self.gone = True


class Connection:
    def __init__(self) -> None:
        self.is_cut_off = False

    def cut_off(self) -> None:
        self.is_cut_off = True


def test_the_slowest_body_gives_way_but_not_the_one_that_asks_nor_one_that_has_just_begun() -> None:
    bodies = Bodies()
    slow, fast, young, empty = Body(0.0, 100), Body(0.0, 1000), Body(9.5, 1), Body(0.0, 0)
    for body in (fast, slow, young, empty):
        bodies.begin(body)
    assert bodies.make_room(slow, 10.0)
    assert fast.gone
    assert not slow.gone
    assert bodies.make_room(None, 10.0)
    assert slow.gone
    assert not bodies.make_room(None, 10.0)
    assert len(bodies) == 2
    assert bodies.make_room(None, 9.5 + slow_clients.body_unhurried_s)
    assert young.gone


def test_who_has_taken_nothing_for_longest_is_cut_off_and_one_reply_always_fits() -> None:
    replies = UntakenReplies(100)
    first, second, third = Connection(), Connection(), Connection()
    replies.wait(first, 500)
    assert not first.is_cut_off
    replies.wait(second, 60)
    assert first.is_cut_off
    assert replies.nbytes == 60
    replies.wait(first, 20)
    replies.moved(second, 50)
    replies.wait(third, 40)
    assert [second.is_cut_off, third.is_cut_off] == [False, False]
    assert replies.nbytes == 90
    replies.taken(second)
    replies.taken(second)
    assert replies.nbytes == 40


SMALL = graph(
    PIXELS,
    frontend=FrontendSpec(max_request_bytes=1 << 20, max_in_flight_bytes=2 << 20, request_timeout_s=30.0),
)
HEAD = b"POST /v2/models/digits/infer HTTP/1.1\r\nhost: x\r\n"


async def test_F38_bodies_that_stall_give_way_to_one_that_comes(serve, monkeypatch, arrived) -> None:
    monkeypatch.setattr(slow_clients, "body_unhurried_s", 0.0)
    running = await serve(SMALL)
    holders = []
    serving = running.endpoint._serving
    for size in (1 << 20, 1 << 20):  # one received in place, one in chunks
        raw = await running.connect()
        await raw.send(HEAD + b"content-length: %d\r\n\r\n" % size + bytes(size - 1))
        holders.append(raw)
        while serving.held_bytes < len(holders) * ((1 << 20) - 1):
            await arrived.acquire()
    for size in (1 << 20, 1 << 18):
        late = await running.connect()
        await late.send(HEAD + b"content-length: %d\r\n\r\n" % size + bytes(size))
        assert (await late.answer())[0] == 400, "it was taken, and is no JSON"
    assert (await holders[0].answer())[0] == 429
    await holders[0].closed()


async def test_F38_replies_that_nobody_reads_are_bounded_together(serve) -> None:
    """Whoever has stalled for longest goes; a client that reads is served beside them."""
    large = Reply((Tensor("pixels", "FP32", (1 << 18, 4), bytes(4 << 20)),))

    async def answer(request: InferenceRequest) -> InferenceOutcome:
        return large

    running = await serve(SMALL, FakePort(answer))
    body = (
        b'{"inputs": [{"name": "pixels", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}], '
        b'"parameters": {"binary_data_output": true}}'
    )
    silent = []
    for _ in range(8):
        raw = await running.connect()
        raw.reader._transport.pause_reading()
        await raw.send(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        await running.port.arrived.acquire()
        silent.append(raw)
    replies = running.endpoint._serving.replies
    raw = await running.connect()
    await raw.send(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
    status, _, content = await raw.answer()
    assert status == 200
    assert len(content) > 4 << 20
    assert replies.nbytes <= replies._bytes_max + len(content)
    for raw in silent:
        await raw.close()


def test_a_body_that_began_at_this_very_tick_of_the_clock_has_a_rate_too(monkeypatch) -> None:
    monkeypatch.setattr(slow_clients, "body_unhurried_s", 0.0)
    bodies = Bodies()
    slow, fast = Body(0.0, 1), Body(10.0, 1)
    for body in (fast, slow):
        bodies.begin(body)
    assert bodies.make_room(None, 10.0)
    assert slow.gone
