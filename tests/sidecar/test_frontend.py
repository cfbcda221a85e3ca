"""The graph as the endpoint sees it, at the ends of an instance."""

import asyncio
import errno
from collections.abc import Sequence

import pytest

from hams_protocol import limits as core
from hams_protocol.effects import Effect, NotServed, Replied, Stop
from hams_protocol.events import Event, Tick
from hams_protocol.frontend import FrontendMachine
from hams_protocol.graph import (
    FRONTEND,
    BatchPolicy,
    Edge,
    FrontendSpec,
    Graph,
    GraphData,
    Input,
    Join,
    Mode,
    ModelSpec,
    Operator,
    RecoverySpec,
    ReplyTensor,
    TensorSpec,
)
from hams_protocol.ids import RequestId
from hams_protocol.messages import LATE, ModelError
from hams_sidecar import limits
from hams_sidecar.arena import Arena
from hams_sidecar.endpoint.errors import RequestRefused
from hams_sidecar.frontend import Frontend, GraphPort, _tell_failed_drain
from hams_sidecar.inference import (
    InferenceRequest,
    ModelFailure,
    NotReady,
    Shed,
    Tensor,
    TimedOut,
    Unpromised,
    outcome_of,
)
from hams_sidecar.payloads import ArenaFactory
from hams_wire.coordination.memory import MemoryStore
from hams_wire.node import Node, NodeSettings, Owner

X = TensorSpec("x", "FP32", ())
ECHO = Operator(
    "echo",
    Join.COMBINE,
    (Edge(FRONTEND, "echo", (Input("x", "x", False),)),),
    (FRONTEND,),
    ((),),
    (X,),
    BatchPolicy(1, 0.0),
    ModelSpec("m:M"),
    False,
)
REPLIES = (ReplyTensor("x", (("echo", "x"),)),)
GRAPH = Graph(GraphData("g", "uid", Mode.NON_STOP, FrontendSpec(), 1, RecoverySpec(), (X,), REPLIES, (ECHO,)))


class Ready(FrontendMachine):
    """Always ready, answers nobody, stops when it is ticked."""

    @property
    def ready(self) -> bool:
        return True

    def steps(self, events: Sequence[Event], now: float) -> list[Effect]:
        return [Stop("over")] if any(isinstance(event, Tick) for event in events) else []


@pytest.fixture
async def port() -> GraphPort:
    arena = Arena(1 << 20)
    made = GraphPort(GRAPH, arena)
    machine, coordination = Ready(GRAPH, "f-1", None), MemoryStore().client()
    made.node = Node(
        machine, "f-1", FRONTEND, coordination, ArenaFactory(arena), Owner(), NodeSettings("uid")
    )
    return made


def request() -> InferenceRequest:
    return InferenceRequest(
        tensors=(Tensor("x", "FP32", (1,), bytes(4)),),
        parameters={},
        outputs=(),
        idempotency_key=None,
        deadline_s=30.0,
    )


async def test_an_instance_that_has_stopped_is_not_ready_and_turns_requests_away_at_once(
    port: GraphPort,
) -> None:
    assert port.ready()
    port.node.feed(Tick())
    await asyncio.sleep(0)
    assert not port.ready()
    assert not port.live()
    assert isinstance(await outcome_of(port, request()), NotReady)


async def test_between_two_lives_who_waits_learns_that_the_outcome_is_not_known_here(port: GraphPort) -> None:
    waiting = asyncio.create_task(outcome_of(port, request()))
    await asyncio.sleep(0)
    port.pause()
    assert isinstance(await waiting, TimedOut)
    assert isinstance(await outcome_of(port, request()), NotReady)
    assert port.live()
    assert not port.ready()


@pytest.mark.parametrize(
    ("hidden", "says"),
    [(False, "no file /srv/models/a"), (True, "the model failed on this request; its log says why")],
)
def test_what_a_model_s_exception_says_reaches_clients_unless_the_graph_hides_it(
    hidden: bool, says: str
) -> None:
    spec = FrontendSpec(hide_model_errors=hidden)
    data = GraphData("g", "uid", Mode.NON_STOP, spec, 1, RecoverySpec(), (X,), REPLIES, (ECHO,))
    error = ModelError("echo", "no file /srv/models/a")
    outcome = GraphPort(Graph(data), Arena(1 << 20)).outcome(Replied(RequestId(0, 1), (), error))
    assert outcome == ModelFailure("echo", says)


def test_what_an_operator_shed_is_an_outcome_of_its_own_that_nobody_hides() -> None:
    spec = FrontendSpec(hide_model_errors=True)
    data = GraphData("g", "uid", Mode.NON_STOP, spec, 1, RecoverySpec(), (X,), REPLIES, (ECHO,))
    error = ModelError("echo", "not run", LATE)
    outcome = GraphPort(Graph(data), Arena(1 << 20)).outcome(Replied(RequestId(0, 1), (), error))
    assert outcome == Shed("echo", "not run")


def test_what_is_not_admitted_is_told_from_a_deadline_that_has_passed() -> None:
    data = GraphData("g", "uid", Mode.NON_STOP, FrontendSpec(), 1, RecoverySpec(), (X,), REPLIES, (ECHO,))
    port = GraphPort(Graph(data), Arena(1 << 20))
    assert port.outcome(NotServed(504, "no", 0.3, begun=False)) == Unpromised("no", 0.3)
    assert port.outcome(NotServed(504, "too late")) == TimedOut()


def pair(body: memoryview, first: int, nbytes: int) -> tuple[Tensor, Tensor]:
    """Two tensors one behind the other in a body."""
    data = body.toreadonly()
    shape = (nbytes // 4,)
    return Tensor("x", "FP32", shape, data[first : first + nbytes]), Tensor(
        "y", "FP32", shape, data[first + nbytes : first + 2 * nbytes]
    )


@pytest.mark.parametrize(
    ("first", "nbytes", "stays"),
    [(117, 1 << 20, True), (64, 1 << 20, True), (117, (1 << 20) + 4, False), (117, 64, False)],
)
def test_a_large_body_that_came_into_the_arena_stays_where_it_is_if_its_tensors_are_aligned(
    first: int, nbytes: int, stays: bool
) -> None:
    arena = Arena(16 << 20)
    port = GraphPort(GRAPH, arena)
    body = port.room(first + 2 * nbytes, first)
    assert body is not None
    body[:] = bytes(range(256)) * (len(body) // 256) + bytes(len(body) % 256)
    x, y = pair(body, first, nbytes)
    payload = port._payload(InferenceRequest((x, y), {}, None, 1.0))
    for tensor in (x, y):
        placed = payload.find(tensor.name)
        assert placed is not None
        assert placed.offset % 64 == 0
        assert payload.view(placed) == tensor.data
    assert (payload.view(payload.tensors[0]).obj is body.obj) == stays
    used = arena.stats().slots
    del body, x, y, tensor, placed
    assert arena.stats().slots == (used if stays else used - 1), (
        "the memory lives with the payload, and no longer than it"
    )
    del payload
    assert arena.stats().slots == 0


def test_a_body_without_room_in_the_arena_goes_elsewhere() -> None:
    port = GraphPort(GRAPH, Arena(1 << 20))
    assert port.room(1 << 20, 100) is None
    body = memoryview(bytearray(1 << 19))
    x, y = pair(body, 0, 1 << 18)
    assert (
        port._payload(InferenceRequest((x, y), {}, None, 1.0)).view(
            port._payload(InferenceRequest((x,), {}, None, 1.0)).tensors[0]
        )
        == x.data
    )


def test_clients_leave_room_for_what_peers_send() -> None:
    arena = Arena(16 << 20, reserve_nbytes=4 << 20)
    port, peers = GraphPort(GRAPH, arena), ArenaFactory(arena, urgent=True)
    rooms = []
    while (room := port.room(1 << 20, 64)) is not None:
        rooms.append(room)
    assert peers.allocate(3 << 20).nbytes == 3 << 20


async def test_F38_a_drain_that_fails_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def drain() -> None:
        raise OSError(errno.ENETDOWN, "network is down")

    failed = asyncio.create_task(drain())
    failed.add_done_callback(_tell_failed_drain)
    await asyncio.wait({failed})
    assert "the endpoint did not drain" in caplog.text
    assert "network is down" in caplog.text


class Part:
    """An endpoint or a predecessor that notes its end."""

    def __init__(self, ended: list[str], name: str) -> None:
        self._ended, self._name = ended, name

    async def stop(self) -> None:
        self._ended.append(self._name)

    close = stop


async def test_a_frontend_that_ends_during_its_drain_closes_everything_after_it() -> None:
    ended: list[str] = []
    frontend = Frontend.__new__(Frontend)

    async def lasts(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    frontend._telling = asyncio.create_task(lasts("telling"))
    frontend._closing = asyncio.create_task(lasts("drain"))
    frontend._endpoint, frontend._predecessor = Part(ended, "endpoint"), Part(ended, "predecessor")
    await asyncio.sleep(0)
    await frontend.close()
    assert ended == ["telling", "drain", "endpoint", "predecessor"]


def test_a_frontend_that_is_to_end_waits_longer_than_its_successor_keeps_it() -> None:
    assert limits.drain_s_max > 2 * core.leave_wait_s, "a log takes no longer to copy than that"


@pytest.mark.parametrize("shape", [(2**64, 0), (1, -1), (-1,), (0,) * 100])
async def test_what_peers_could_not_be_sent_is_refused_before_it_reaches_the_core(
    port: GraphPort, shape: tuple[int, ...]
) -> None:
    """Whatever the endpoint lets pass: an entry of a log that cannot be delivered would outlive every
    restart."""
    fed: list[Event] = []
    port.node.feed = fed.append
    unsendable = InferenceRequest((Tensor("x", "FP32", shape, b""),), {}, None, 1.0)
    for _ in range(2):  # what was refused once is not remembered as tried
        with pytest.raises(RequestRefused, match="cannot be handed on"):
            await outcome_of(port, unsendable)
    assert fed == []


@pytest.mark.parametrize("parameter", [2**64, -(2**63) - 1, "\ud800"])
async def test_parameters_that_peers_could_not_be_sent_are_refused_before_they_reach_the_core(
    port: GraphPort, parameter: int | str
) -> None:
    fed: list[Event] = []
    port.node.feed = fed.append
    data = Tensor("x", "FP32", (1,), bytes(4))
    with pytest.raises(RequestRefused, match="cannot be handed on"):
        await outcome_of(port, InferenceRequest((data,), {"p": parameter}, None, 1.0))
    assert fed == []


async def test_a_request_larger_than_the_arena_is_refused_and_not_asked_to_come_again(
    port: GraphPort,
) -> None:
    huge = InferenceRequest((Tensor("x", "FP32", (1 << 19,), bytes(1 << 21)),), {}, None, 1.0)
    with pytest.raises(RequestRefused, match="too large for this frontend") as result:
        await outcome_of(port, huge)
    assert result.value.status == 413
