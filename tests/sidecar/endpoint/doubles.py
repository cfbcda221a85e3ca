"""A graph and a port to test the endpoint against: outcomes are chosen by the test, requests are kept for it
to look at."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hams_protocol.graph import (
    FRONTEND,
    BatchPolicy,
    Edge,
    FrontendSpec,
    GraphData,
    Join,
    Mode,
    ModelSpec,
    Operator,
    RecoverySpec,
    ReplyTensor,
    TensorSpec,
)
from hams_sidecar.datatypes import DATATYPES
from hams_sidecar.inference import Done, InferenceOutcome, InferenceRequest, Reply

Answer = Callable[[InferenceRequest], Awaitable[InferenceOutcome]]


def graph(*inputs: TensorSpec, frontend: FrontendSpec | None = None) -> GraphData:
    """A graph of one operator that gives back each of its inputs under its own name."""
    operator = Operator(
        name="echo",
        join=Join.COMBINE,
        in_edges=(Edge(FRONTEND, "echo", ()),),
        successors=(FRONTEND,),
        lanes=((),),
        outputs=tuple(TensorSpec(spec.name, spec.datatype, spec.shape) for spec in inputs),
        batch=BatchPolicy(64, 0.0),
        model=ModelSpec("none:none"),
        stateful=False,
    )
    return GraphData(
        name="digits",
        uid="uid",
        mode=Mode.NON_STOP,
        frontend=frontend or FrontendSpec(),
        managers=1,
        recovery=RecoverySpec(),
        inputs=inputs,
        outputs=tuple(ReplyTensor(spec.name, (("echo", spec.name),)) for spec in inputs),
        operators=(operator,),
    )


PIXELS = TensorSpec("pixels", "FP32", (4,))
TARGET = TensorSpec("target", "INT64", (), optional=True)
DIGITS = graph(PIXELS, TARGET)

EVERY_DATATYPE = graph(
    *(TensorSpec(datatype.lower(), datatype, (-1,), optional=True) for datatype in sorted(DATATYPES))
)
"""One optional input of each datatype, a row being a vector of any length."""


async def echo(request: InferenceRequest) -> InferenceOutcome:
    """Give the tensors back."""
    return Reply(request.tensors)


def always(outcome: InferenceOutcome) -> Answer:
    """Give the same outcome to everyone."""

    async def answer(request: InferenceRequest) -> InferenceOutcome:
        return outcome

    return answer


class FakePort:
    """A port whose answers a test decides. `requests` are those that came, `cancelled` counts those whose
    client went away."""

    def __init__(self, answer: Answer = echo) -> None:
        self.answer = answer
        self.requests: list[InferenceRequest] = []
        self.cancelled = asyncio.Semaphore(0)
        self.arrived = asyncio.Semaphore(0)
        self.is_ready = True
        self.is_live = True

    def submit(self, request: InferenceRequest, done: Done) -> Callable[[], object]:
        def finished(task: "asyncio.Task[InferenceOutcome]") -> None:
            if not task.cancelled():
                error = task.exception()
                done(error if isinstance(error, Exception) else task.result())

        task = asyncio.get_running_loop().create_task(self._infer(request))
        task.add_done_callback(finished)
        return task.cancel

    async def _infer(self, request: InferenceRequest) -> InferenceOutcome:
        self.requests.append(request)
        self.arrived.release()
        try:
            return await self.answer(request)
        except asyncio.CancelledError:
            self.cancelled.release()
            raise

    def room(self, nbytes: int, first: int) -> memoryview | None:
        return None

    def ready(self) -> bool:
        return self.is_ready

    def live(self) -> bool:
        return self.is_live


@dataclass
class Raw:
    """A bare connection to the HTTP port."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The next answer: status, headers, body."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return int(head[0].split()[1]), headers, body

    async def closed(self) -> bool:
        """Wait until the server closes; whether nothing came before."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True

    async def close(self) -> None:
        self.writer.close()
