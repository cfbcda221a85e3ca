"""How long a service stands still when something of it is killed, and whether anything was forgotten.

For each service and mode one graph, two batches under way: its model, its proxy and both, of each stateful
primary in turn; one kill of each operator without state. The paper's clock: from the kill until the new
owner starts its first batch. The gap beside it: the longest wait for any reply within 10 s, beyond the usual
one. At the end the counts in all replies and the recorded history are judged.
"""

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.chain import redundant
from benchmarks.judged import complete, judged
from benchmarks.kills import Target, aim
from benchmarks.paper.clients import Answers, asking
from benchmarks.paper.running import READY_S, Running, running
from benchmarks.paper.services import Service, Settings
from benchmarks.paper.traces import notes, recovered
from benchmarks.recovery import TopologyLog
from benchmarks.report import ms
from hams_load.traffic import percentile
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.trace import ENVIRONMENT

AROUND_S = 10.0
"""A kill's gap is looked for within this time."""

QUIET_ANSWERS = 10
"""Answers before a kill, in which the usual gap is looked for."""

AFTER_ANSWERS = 10
ANSWERS_S = 240.0
LOOK_S = 0.02
"""How often a trace is read while something is waited for in it."""

PROCESSES = ("model", "proxy", "both")
STEPS = ("recovered", "detect", "decide", "load", "resend")


@dataclass(frozen=True)
class Case:
    """One kind of kill. `targets`: (operator, role, process) of all that is hit at once. `stopped`:
    (operator, role) whose proxy stands still from before the kill until after it."""

    name: str
    targets: tuple[Target, ...]
    stopped: tuple[str, str] | None = None


def cases_of(service: Service, stateless: Sequence[str], processes: Sequence[str] = PROCESSES) -> list[Case]:
    """Every stateful primary in each of three ways, then every operator without state."""
    hit = [
        Case(f"{op} {process}", ((op, "primary", process),))
        for op in service.stateful
        for process in processes
    ]
    if len(processes) < len(PROCESSES):
        return hit
    return hit + [Case(f"{op} stateless", ((op, "active", "both"),)) for op in stateless]


CORRELATED = {
    "SP": (Case("o3+o4", (("o3", "active", "both"), ("o4", "primary", "both"))),),
    "AP": (
        Case("o2+o3", (("o2", "primary", "both"), ("o3", "primary", "both"))),
        Case("rollback", (("o2", "primary", "both"), ("o3", "backup", "both")), stopped=("o2", "backup")),
    ),
}


@asynccontextmanager
async def recorded() -> AsyncIterator[tuple[Path, Path]]:
    """Folders of a history and of traces, for the graphs that are started within. Both go with the block."""
    history = Path(tempfile.mkdtemp(prefix="hams-history-", dir="/dev/shm"))
    traces = Path(tempfile.mkdtemp(prefix="hams-trace-", dir="/dev/shm"))
    os.environ[ENVIRONMENT] = str(traces)
    try:
        yield history, traces
    finally:
        del os.environ[ENVIRONMENT]
        shutil.rmtree(history, ignore_errors=True)
        shutil.rmtree(traces, ignore_errors=True)


async def measured(
    service: Service,
    mode: str,
    settings: Settings,
    cases: Sequence[Case] | None,
    kills: int,
    processes: Sequence[str] = PROCESSES,
) -> list[dict[str, object]]:
    """A row for each case (None: all single ones), with the verdict over the whole run in each."""
    rows: list[dict[str, object]] = []
    async with recorded() as (history, traces):
        async with running(service, mode, settings, standby=True, history=history) as graph:
            stateless = [op.name for op in graph.supervisor.graph.data.operators if not op.stateful]
            chosen = cases_of(service, stateless, processes) if cases is None else list(cases)
            async with asking(graph, service.under_way("L2")) as log:
                for case in chosen:
                    often = 1 if case.targets[0][1] == "active" and len(case.targets) == 1 else kills
                    rows.append(await _case(case, graph, log, often, traces))
            await complete(history)
        verdict = await asyncio.to_thread(judged, history, dict(log.numbers))
    shared = {
        "service": service.name,
        "mode": mode,
        **settings.said(),
        "requests": len(log.answered),
        "failed": log.failed,
    }
    return [{**shared, **row, **verdict} for row in rows]


async def _case(case: Case, graph: Running, log: Answers, kills: int, traces: Path) -> dict[str, object]:
    loop = asyncio.get_running_loop()
    watcher = TopologyLog(graph.supervisor.uid, EtcdCoordination(graph.supervisor.etcd_endpoints))
    await watcher.start()
    quiet: list[float] = []
    gaps: list[float] = []
    steps: list[dict[str, float]] = []
    try:
        for _ in range(kills):
            await redundant(graph.supervisor, READY_S)
            await log.more(2, ANSWERS_S)
            began = loop.time()
            await log.more(QUIET_ANSWERS, ANSWERS_S)
            quiet.append(log.longest_gap_s(began, loop.time()))
            await redundant(graph.supervisor, READY_S)
            struck, struck_ns, dead = await _strike(case, graph, traces)
            await log.more(AFTER_ANSWERS, ANSWERS_S)
            await redundant(graph.supervisor, READY_S)
            gaps.append(log.longest_gap_s(struck, min(loop.time(), struck + AROUND_S)))
            parts, _ = watcher.decided(struck)
            first = recovered(notes(traces, f"{case.targets[0][0]}-"), struck_ns, dead)
            if first:
                parts |= first
                parts["resend"] = log.first_after(struck + first["recovered"]) - struck - first["recovered"]
            steps.append(parts)
    finally:
        await watcher.close()
    usual = percentile(quiet, 0.5)
    return {
        "case": case.name,
        "kills": kills,
        "gap_ms": ms(percentile([gap - usual for gap in gaps], 0.5)),
        "quiet_ms": ms(usual),
        **{f"{step}_ms": _median_ms(steps, step) for step in STEPS},
        "samples_ms": {
            "gaps": [ms(gap) for gap in gaps],
            "quiet": [ms(gap) for gap in quiet],
            "steps": [{name: ms(value) for name, value in parts.items()} for parts in steps],
        },
    }


async def _strike(case: Case, graph: Running, traces: Path) -> tuple[float, int, frozenset[str]]:
    """Kill; when, by the loop's clock and in ns, and which instances were hit."""
    hit = await aim(case.targets, graph.supervisor, ANSWERS_S)
    halted: tuple[int, ...] = ()
    if case.stopped is not None:
        halted = (await aim([(*case.stopped, "proxy")], graph.supervisor, ANSWERS_S)).pids
    try:
        for pid in halted:
            os.kill(pid, signal.SIGSTOP)
        if halted:
            await _run_ahead(case.targets[-1][0], traces)
        struck, struck_ns = hit.kill()
    finally:
        for pid in halted:
            os.kill(pid, signal.SIGCONT)
    return struck, struck_ns, hit.instances


async def _run_ahead(operator: str, traces: Path) -> None:
    """Until an operator has executed twice more: the first time may still be on what everybody has. Its trace
    tells: `hams status` waits for who stands still, and a lease runs out meanwhile."""
    began = time.monotonic_ns()

    def executed() -> int:
        return sum(note.at >= began and note.what == "BatchDone" for note in notes(traces, f"{operator}-"))

    async with asyncio.timeout(ANSWERS_S):
        while executed() < 2:  # noqa: ASYNC110 # a file has no event for it
            await asyncio.sleep(LOOK_S)


def _median_ms(steps: Sequence[dict[str, float]], name: str) -> float | None:
    values = [parts[name] for parts in steps if name in parts]
    return ms(percentile(values, 0.5)) if values else None


async def recovery(
    services: Sequence[Service],
    modes: Sequence[str],
    settings: Settings,
    kills: int,
    processes: Sequence[str] = PROCESSES,
) -> list[dict[str, object]]:
    """Single kills of some processes; of all of them, and of operators without state, if not told."""
    return [
        row
        for service in services
        for mode in modes
        for row in await measured(service, mode, settings, None, kills, processes)
    ]


async def correlated(
    services: Sequence[Service], modes: Sequence[str], settings: Settings, kills: int
) -> list[dict[str, object]]:
    """Kills of neighbours at once, and a rollback, in the services that the paper did this to."""
    return [
        row
        for service in services
        for mode in modes
        for case in CORRELATED.get(service.name, ())
        for row in await measured(
            service, mode, replace(settings, patient=case.stopped is not None), (case,), kills
        )
    ]
