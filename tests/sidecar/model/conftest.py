"""A link with a real model process on the other side of a real socket."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from hams_protocol.effects import AbandonBatch, BatchUnit, Capture, EnterUpdate, LoadState, StartBatch
from hams_protocol.events import (
    BatchDone,
    BatchFailed,
    Captured,
    Loaded,
    ModelReady,
    UnitResult,
    UpdateWanted,
)
from hams_protocol.graph import (
    FRONTEND,
    BatchPolicy,
    Edge,
    Feedback,
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
from hams_protocol.ids import RequestId, UnitId
from hams_protocol.messages import Meta
from hams_sidecar.arena import Arena
from hams_sidecar.chunks import ChunkTable
from hams_sidecar.model.link import ModelEvent, ModelLink
from hams_sidecar.payload import TensorPayload, pack

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
E = TypeVar("E")

X = TensorSpec("x", "FP32", (2,))
Y = TensorSpec("y", "FP32", (2,), finite=True)


def one_operator(
    *,
    stateful: bool,
    config: str = "{}",
    inputs: tuple[TensorSpec, ...] = (X,),
    outputs: tuple[TensorSpec, ...] = (Y,),
    feedback: bool = False,
    warm_up: str = "",
    delta: bool = True,
) -> Graph:
    """request -> op -> reply."""
    edge = Edge(FRONTEND, "op", tuple(Input(spec.name, spec.name, spec.optional) for spec in inputs))
    operator = Operator(
        "op",
        Join.COMBINE,
        (edge,),
        (FRONTEND,),
        ((),),
        outputs,
        BatchPolicy(64, 0.0),
        ModelSpec("models:Any", config, warm_up=warm_up),
        stateful,
        feedback=Feedback((("x", "y"),), 3) if feedback else None,
        delta=delta,
    )
    replies = tuple(ReplyTensor(spec.name, (("op", spec.name),)) for spec in outputs)
    return Graph(
        GraphData("g", "uid", Mode.NON_STOP, FrontendSpec(), 1, RecoverySpec(), inputs, replies, (operator,))
    )


class Host:
    """One link, its arenas, and the model processes started for it."""

    def __init__(
        self, directory: Path, graph: Graph, arena_nbytes: int, states_nbytes: int, options: Mapping[str, Any]
    ) -> None:
        self.directory = directory
        self.tensors = Arena(arena_nbytes, path=directory / "tensors")
        # As a proxy does it, one for all: 0 bytes for states.
        self.states = Arena(states_nbytes, path=directory / "states") if states_nbytes else self.tensors
        self.outside = Arena(1 << 20)
        self.events: asyncio.Queue[ModelEvent] = asyncio.Queue()
        self.link = ModelLink(graph, "op", self.tensors, self.states, self.events.put_nowait, **options)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.batches = 0
        self.requests = 0
        self.log = directory / "model.log"

    def start(
        self, name: str, *arguments: str, before: tuple[str, ...] = ("-m", "hams_sdk", "serve")
    ) -> subprocess.Popen[bytes]:
        """Start a model process."""
        socket = str(self.directory / "model.sock")
        command = [
            sys.executable,
            *before,
            f"models:{name}",
            "--socket",
            socket,
            "--path",
            str(HERE),
            *arguments,
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "model-sdk"), "OMP_NUM_THREADS": "1"}
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        self.processes.append(process)
        return process

    async def next(self, kind: type[E]) -> E:
        """The next event, which must be of this kind."""
        event = await self.events.get()
        assert isinstance(event, kind), (
            f"expected {kind.__name__}, got {event}\n{self.log.read_text()[-2000:]}"
        )
        return event

    async def ready(self, name: str, *arguments: str) -> ModelReady:
        """Start a model and wait for it."""
        self.start(name, *arguments)
        return await self.next(ModelReady)

    def unit(
        self, arrays: Mapping[str, np.ndarray | None], arena: Arena | None = None, **parameters: Any
    ) -> BatchUnit:
        """A unit whose request has these tensors."""
        self.requests += 1
        names = {np.dtype(np.float32): "FP32", np.dtype(np.int64): "INT64", np.dtype(object): "BYTES"}
        payload = pack(
            arena or self.tensors,
            [(name, names[array.dtype], array) for name, array in arrays.items() if array is not None],
        )
        return BatchUnit(
            UnitId(RequestId(0, self.requests), ()), Meta(tuple(parameters.items())), ((FRONTEND, payload),)
        )

    def x(self, *rows: tuple[float, float], arena: Arena | None = None) -> BatchUnit:
        """A unit of these rows of x."""
        return self.unit({"x": np.array(rows, dtype=np.float32)}, arena)

    def begin(self, *units: BatchUnit) -> int:
        """Start a batch."""
        self.batches += 1
        self.link.perform(StartBatch(self.batches, units))
        return self.batches

    async def enter(self) -> None:
        """Let the batch into its update stage."""
        self.link.perform(EnterUpdate((await self.next(UpdateWanted)).batch))

    async def abandon(self) -> BatchFailed:
        """Turn the batch away at the boundary."""
        self.link.perform(AbandonBatch((await self.next(UpdateWanted)).batch))
        return await self.next(BatchFailed)

    async def run(self, *units: BatchUnit) -> tuple[UnitResult, ...]:
        """A stateful batch from start to end."""
        self.begin(*units)
        await self.enter()
        done = await self.next(BatchDone)
        assert done.updated
        return done.results

    async def capture(self, version: int = 1) -> ChunkTable:
        """The state now."""
        self.link.perform(Capture(version))
        event = await self.next(Captured)
        assert event.version == version
        assert isinstance(event.state, ChunkTable)
        return event.state

    async def load(self, state: TensorPayload, token: int = 1) -> None:
        """Make the model's state this one."""
        self.link.perform(LoadState(token, state))
        assert (await self.next(Loaded)).token == token

    @staticmethod
    async def ended(process: subprocess.Popen[bytes]) -> int:
        """Wait for the end of a process; its exit status."""
        return await asyncio.to_thread(process.wait)

    async def close(self) -> None:
        """Let everything go."""
        await self.link.close()
        for process in self.processes:
            try:
                await asyncio.wait_for(self.ended(process), 20)
            except TimeoutError:
                process.kill()
                raise


def output(result: UnitResult, name: str = "y") -> list[Any]:
    """One output of a unit that went well."""
    assert result.error is None
    assert isinstance(result.payload, TensorPayload)
    data: list[Any] = result.payload.array(name).tolist()
    return data


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Make hosts: `await hosts(stateful=True, ...)`."""
    made: list[Host] = []

    async def make(
        *,
        arena_nbytes: int = 1 << 22,
        states_nbytes: int = 1 << 24,
        options: Mapping[str, Any] | None = None,
        **graph: Any,
    ) -> Host:
        directory = tmp_path / str(len(made))
        directory.mkdir()
        host = Host(directory, one_operator(**graph), arena_nbytes, states_nbytes, options or {})
        made.append(host)
        await host.link.listen(directory / "model.sock")
        return host

    yield make
    for host in made:
        await host.close()


@pytest.fixture
def host_class() -> type[Host]:
    """`Host`, for tests that bring their own event loop."""
    return Host


@pytest.fixture
def graph_of() -> Callable[..., Graph]:
    """`one_operator`, for such tests."""
    return one_operator


@pytest.fixture
def read() -> Callable[..., list[Any]]:
    """`output`, for tests."""
    return output


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Wait for what no event tells: what the kernel says of a process."""

    async def wait(true: Callable[[], bool]) -> None:
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    return wait
