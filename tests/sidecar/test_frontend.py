"""The graph as the endpoint sees it, at the ends of an instance."""

import asyncio

import pytest

from hams_protocol.effects import Effect, Stop
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
from hams_sidecar.arena import Arena
from hams_sidecar.frontend import GraphPort
from hams_sidecar.inference import InferenceRequest, NotReady, Tensor, TimedOut, outcome_of
from hams_sidecar.payloads import ArenaFactory
from hams_wire.coordination.memory import MemoryStore
from hams_wire.node import Node

X = TensorSpec("x", "FP32", ())
ECHO = Operator(
    "echo", Join.COMBINE, (Edge(FRONTEND, "echo", (Input("x", "x", False),)),), (FRONTEND,), ((),), (X,), BatchPolicy(1, 0.0), ModelSpec("m:M"), False
)
REPLIES = (ReplyTensor("x", (("echo", "x"),)),)
GRAPH = Graph(GraphData("g", "uid", Mode.NON_STOP, FrontendSpec(), 1, RecoverySpec(), (X,), REPLIES, (ECHO,)))


class Ready(FrontendMachine):
    """Always ready, answers nobody, stops when it is ticked."""

    @property
    def ready(self) -> bool:
        return True

    def step(self, event: Event, now: float) -> list[Effect]:
        return [Stop("over")] if isinstance(event, Tick) else []


@pytest.fixture
async def port() -> GraphPort:
    arena = Arena(1 << 20)
    made = GraphPort(GRAPH, arena)
    made.node = Node(Ready(GRAPH, "f-1", None), "f-1", FRONTEND, "uid", MemoryStore().client(), ArenaFactory(arena), made.perform)
    return made


def request() -> InferenceRequest:
    return InferenceRequest(tensors=(Tensor("x", "FP32", (1,), bytes(4)),), parameters={}, outputs=(), idempotency_key=None, deadline_s=30.0)


async def test_an_instance_that_has_stopped_is_not_ready_and_turns_requests_away_at_once(port: GraphPort) -> None:
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
