"""One graph of a measurement: started, asked in windows by clients without pause, its CPU counted."""

import asyncio
import itertools
import os
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from benchmarks.chain import redundant
from benchmarks.paper.services import Service, Settings, graph_file, graph_of, kind_of, requests_of
from hams_graph import load
from hams_load.inference import InferAnswer, InferClient, InferTensor
from hams_operator.local.supervisor import Supervisor

REQUESTS = 16
"""Different requests that are asked in turn."""

ANSWER_S = 60.0
CAPTURED = {"captured": "captured", "compared": "compared", "copied and sent": "changed"}
"""Bytes of states, and the proxies' metrics of them. What is copied is sent to each backup."""

CORE = "core"
COUNTED = {f"hams_proxy_{metric}_bytes_total": name for name, metric in CAPTURED.items()} | {
    "hams_proxy_core_seconds_total": CORE
}
"""The proxies' metrics that are looked up, and what each is called here."""

READY_S = 240.0
"""Large states take long to reach their backups."""


def has_gpu() -> bool:
    """Whether there is one that torch can use."""
    import torch  # noqa: PLC0415 - takes seconds, and emulated networks do without

    return bool(torch.cuda.is_available())


class Failed(Exception):
    """A request was not answered with 200: what was measured is worth nothing."""


@dataclass(frozen=True)
class Sample:
    """One batch: what kind it was, when it was asked and when all of it was answered, in s."""

    kind: str
    began: float
    ended: float


class Asked:
    """An endpoint, and the requests of a service that it is asked in turn. `async with` keeps its
    connections."""

    def __init__(
        self, service: Service, mode: str, settings: Settings, url: str, name: str, timeout_s: float
    ) -> None:
        self.service = service
        self.mode = mode
        self.settings = settings
        self.name = name
        self.client = InferClient(url, name, timeout_s)
        self._keys = itertools.count()
        rows = 1 if settings.single_rows else settings.batch
        self._at_once = settings.batch if settings.single_rows else 1
        self._requests = itertools.cycle(requests_of(service, rows, REQUESTS, seed=0))

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.__aexit__(kind, error, trace)

    async def window(self, under_way: int, seconds: float, drop_s: float) -> list[Sample]:
        """What was asked after the first `drop_s` and answered before the end, `under_way` batches at a time.

        All that was asked is answered when it returns. Raises Failed.
        """
        begin = time.perf_counter()
        end = begin + seconds
        samples: list[Sample] = []

        async def ask() -> None:
            while (began := time.perf_counter()) < end:
                batch = [next(self._requests)]
                while len(batch) < self._at_once:
                    batch.append(next(self._alike(batch[0])))
                await asyncio.gather(*(self._answered(item) for item in batch))
                samples.append(Sample(kind_of(batch[0]), began, time.perf_counter()))

        async with asyncio.TaskGroup() as group:
            for _ in range(under_way):
                group.create_task(ask())
        return [item for item in samples if item.began >= begin + drop_s and item.ended <= end]

    def next_request(self) -> tuple[InferTensor, ...]:
        """The next of the requests that are asked in turn."""
        return next(self._requests)

    def _alike(self, request: tuple[InferTensor, ...]) -> Iterator[tuple[InferTensor, ...]]:
        return (item for item in self._requests if kind_of(item) == kind_of(request))

    async def _answered(self, request: tuple[InferTensor, ...]) -> None:
        answer = await self.ask(request)
        if answer.status != 200:
            raise Failed(f"{self.name}: a request failed: {answer.status}: {answer.error}")

    async def ask(self, request: tuple[InferTensor, ...]) -> InferAnswer:
        """One attempt, under a key of its own."""
        return await self.client.infer(request, f"{self.name}-{next(self._keys)}")


class Running(Asked):
    """A graph that answers."""

    def __init__(self, service: Service, mode: str, settings: Settings, supervisor: Supervisor) -> None:
        super().__init__(service, mode, settings, supervisor.url, supervisor.graph.data.name, ANSWER_S)
        self.supervisor = supervisor
        self._pids: dict[int, str] = {}
        self._epochs: dict[str, int] = {}

    async def looked_up(self) -> None:
        """Learn which processes are the graph's."""
        for item in (await self.supervisor.view()).instances:
            kind = f"{item.role}s" if item.operator is None else "proxies"
            for name, pid in ((kind, item.proxy_pid), ("models", item.model_pid)):
                if pid:
                    self._pids[pid] = name
        self._epochs = await self._epochs_now()

    async def failed_over(self) -> bool:
        """Whether any role changed hands since this was asked last."""
        before, self._epochs = self._epochs, await self._epochs_now()
        return before != self._epochs

    async def _epochs_now(self) -> dict[str, int]:
        topology = await self.supervisor.topology()
        epochs = {item.name: item.epoch for item in topology.sets}
        for table in topology.tables:
            epochs |= {f"{table.op}/{number}": slot.epoch for number, slot in enumerate(table.slots)}
        return epochs

    async def counted(self) -> dict[str, float]:
        """Bytes of all captures of its models so far, by what was done with them, and the seconds that its
        proxies have spent in the core."""
        url = (await self.supervisor.status()).metrics
        return sums((await asyncio.to_thread(httpx.get, url, timeout=ANSWER_S)).text)

    def cpu_s(self) -> float:
        """CPU seconds of all its processes so far."""
        return sum(cpu_of(pid) for pid in self._pids)

    def cpu_by_kind(self) -> dict[str, float]:
        """The same, for proxies, models, frontends and managers."""
        kinds = dict.fromkeys(sorted(set(self._pids.values())), 0.0)
        for pid, kind in self._pids.items():
            kinds[kind] += cpu_of(pid)
        return kinds


def sums(page: str) -> dict[str, float]:
    """Sums of `COUNTED` over all processes of a page of metrics, 0 where none has it."""
    totals = dict.fromkeys(COUNTED.values(), 0.0)
    for line in page.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in COUNTED:
            totals[COUNTED[name]] += float(line.rpartition(" ")[2])
    return totals


def cpu_of(pid: int) -> float:
    """CPU seconds of a process; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_of_family(pid: int) -> float:
    """CPU seconds of a process and all its descendants so far, those that have ended and were waited for
    included."""
    ticks, parents = dict[int, int](), dict[int, int]()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # it has ended meanwhile
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                ticks[int(entry.name)] = sum(int(field) for field in fields[11:15])
    children: dict[int, list[int]] = defaultdict(list)
    for child, parent in parents.items():
        children[parent].append(child)
    family = [pid]
    for member in family:
        family += children[member]
    return sum(ticks.get(member, 0) for member in family) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def running(
    service: Service,
    mode: str,
    settings: Settings,
    *,
    standby: bool = False,
    history: Path | None = None,
) -> AsyncIterator[Running]:
    """A service in a mode, all its replicas in sync. Raises TimeoutError, CannotStart."""
    async with AsyncExitStack() as stack:
        path = stack.enter_context(graph_file(graph_of(service, mode, settings, standby=standby)))
        supervisor = Supervisor(load(path), path, None, history, None)
        stack.push_async_callback(supervisor.stop)
        await supervisor.start()
        await redundant(supervisor, READY_S)
        made = Running(service, mode, settings, supervisor)
        await stack.enter_async_context(made)
        await made.looked_up()
        yield made
