"""How long a service stands still when something of it is killed, and whether anything was forgotten.

For each service and mode one graph, two batches under way: its model, its proxy and both, of each stateful
primary in turn; one kill of each operator without state. The paper's clock: from the kill until the new
owner starts its first batch, of several operators that are hit at once the last one. The gap beside it: the
longest wait for any reply until all is in sync again, 10 s after that batch at most, beyond the usual one;
and the slowest single request, as a gap ends with anybody's reply. At the end the counts in all replies and
the recorded history are judged.

Where a lost state is run again, a primary is killed 50 batches after a state was stored, and has recovered
with the first batch that nobody had run before.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.chain import redundant
from benchmarks.judged import complete, judged
from benchmarks.kills import Target, aim
from benchmarks.paper.clients import Answers, asking
from benchmarks.paper.running import READY_S, Running, running
from benchmarks.paper.services import Service, Settings, replays
from benchmarks.paper.traces import (
    UNSTORED_KINDS,
    Note,
    Tail,
    Unstored,
    all_recovered,
    notes,
    of_operator,
    unstored,
)
from benchmarks.recovery import TopologyLog
from benchmarks.report import ms
from hams_load.traffic import percentile
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.trace import ENVIRONMENT

AROUND_S = 10.0
"""A kill's gap is looked for until so long after the recovery: states that are run again take longer."""

FIRST_ANSWERS = 2
"""Answers before anything is looked at."""

QUIET_ANSWERS = 10
"""Answers before a kill, in which the usual gap is looked for."""

AFTER_ANSWERS = 10
ANSWERS_S = 240.0
LOOK_S = 0.02
"""How often a trace is read while something is waited for in it."""

UNSTORED_BATCHES = 50
"""Where states are stored every so many batches, a kill comes so many after one, as in the paper."""

STORED_TOO_SOON = 3
"""After so many states that were stored before that the kill comes anyhow: an operator that often waits for
work stores its state meanwhile, and never gets that far."""

UNSTORED_S = 300.0
UNSTORED_LOOK_S = 0.1
"""How long it is waited for, and how often the trace is read."""

BUSY_S = 10.0
"""So long a kill waits for its target to run a batch."""

RUNS = frozenset({"StartBatch", "BatchDone", "BatchFailed"})
"""What tells whether one is under way."""

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
                    rows.append(await _case(case, graph, log, often, traces, settings.checkpoint_batches))
            await complete(history)
        verdict = await asyncio.to_thread(judged, history, dict(log.numbers))
    shared = {
        "service": service.name,
        "mode": mode,
        **settings.said(service.name),
        "requests": len(log.answered),
        "failed": log.failed,
        "errors": log.errors,
    }
    return [{**shared, **row, **verdict} for row in rows]


async def _case(
    case: Case, graph: Running, log: Answers, kills: int, traces: Path, every: int
) -> dict[str, object]:
    """`every`: batches after which a state is stored, where a mode does that."""
    watcher = TopologyLog(graph.supervisor.uid, EtcdCoordination(graph.supervisor.etcd_endpoints))
    await watcher.start()
    try:
        seen = [await _kill(case, graph, log, traces, watcher, every) for _ in range(kills)]
    finally:
        await watcher.close()
    return {"case": case.name, "kills": kills, **summary(seen)}


@dataclass(frozen=True)
class Kill:
    """What was seen of one kill, in s. `quiet`: the longest gap before it. `slowest`: of single requests.
    `running`: whether the target, if it was one, ran a batch."""

    gap: float
    quiet: float
    slowest: float
    steps: dict[str, float]
    unstored: Unstored | None = None
    running: bool = False


async def _kill(
    case: Case, graph: Running, log: Answers, traces: Path, watcher: TopologyLog, every: int
) -> Kill:
    loop = asyncio.get_running_loop()
    again = replays(graph.mode)
    await redundant(graph.supervisor, READY_S)
    await log.more(FIRST_ANSWERS, ANSWERS_S)
    began = loop.time()
    await log.more(QUIET_ANSWERS, ANSWERS_S)
    quiet = log.longest_gap_s(began, loop.time())
    await redundant(graph.supervisor, READY_S)
    states = [operator for operator, role, _ in case.targets if again and role == "primary"]
    struck, struck_ns, dead = await _strike(case, graph, traces, states)
    await log.more(AFTER_ANSWERS, ANSWERS_S)
    await redundant(graph.supervisor, READY_S)
    await log.more(AFTER_ANSWERS, ANSWERS_S)  # a joiner's last step, too, lies within the gap
    ended = loop.time()
    steps, _ = watcher.decided(struck)
    operators = [operator for operator, _, _ in case.targets]
    lines = [note for name in operators for note in notes(traces, f"{name}-")]
    if first := all_recovered(lines, operators, struck_ns, dead, replays=again):
        steps = no_later(steps, first.pop("learnt", None)) | first
        steps["resend"] = log.first_after(struck + first["recovered"]) - struck - first["recovered"]
    until = min(ended, struck + first.get("recovered", 0.0) + AROUND_S)
    before = [note for note in lines if note.at < struck_ns]
    least = min(
        (_unstored(before, name, every) for name in states), key=lambda item: item.batches, default=None
    )
    running = len(operators) == 1 and runs(before, dead)
    return Kill(log.longest_gap_s(struck, until), quiet, log.slowest_s(struck, until), steps, least, running)


def no_later(decided: Mapping[str, float], learnt: float | None) -> dict[str, float]:
    """Detect and decide, in s, as this process saw the commits, which a busy machine tells it late: they came
    before the new owner had learnt of them, by its trace."""
    steps = dict(decided)
    for step in ("detect", "decide"):
        if step in steps and learnt is not None:
            steps[step] = min(steps[step], learnt)
            learnt -= steps[step]
    return steps


def summary(seen: Sequence[Kill]) -> dict[str, object]:
    """Medians over the kills of one case, its slowest request, and every sample."""
    usual = statistics.median([item.quiet for item in seen])
    steps = [item.steps for item in seen]
    runs = [item.unstored for item in seen if item.unstored is not None]
    unstored_runs: dict[str, object] = {
        "unstored_batches": int(percentile([item.batches for item in runs], 0.5)),
        "unstored_ms": ms(percentile([item.seconds for item in runs], 0.5)),
        "stored": sum(item.stored for item in runs),
        "stored_early": sum(item.early for item in runs),
    }
    return {
        "gap_ms": ms(statistics.median([item.gap - usual for item in seen])),
        "quiet_ms": ms(usual),
        "slowest_ms": ms(max(item.slowest for item in seen)),
        "while_running": sum(item.running for item in seen),
        **{f"{step}_ms": _median_ms(steps, step) for step in STEPS},
        **(unstored_runs if runs else {}),
        "samples_ms": {
            "gaps": [ms(item.gap) for item in seen],
            "quiet": [ms(item.quiet) for item in seen],
            "slowest": [ms(item.slowest) for item in seen],
            "steps": [{name: ms(value) for name, value in parts.items()} for parts in steps],
            "unstored": [[item.batches, ms(item.seconds)] for item in runs],
        },
    }


def _unstored(lines: Sequence[Note], operator: str, every: int) -> Unstored:
    return unstored([note for note in lines if of_operator(note, operator)], every)


async def _run_unstored(operators: Sequence[str], traces: Path) -> None:
    """Until each of these states was stored, and its operator has run `UNSTORED_BATCHES` since."""
    tails = [Tail(traces, f"{name}-", UNSTORED_KINDS) for name in operators]
    with contextlib.suppress(TimeoutError):  # the row says how far it came
        async with asyncio.timeout(UNSTORED_S):
            while not all(far_enough(unstored(tail.notes())) for tail in tails):  # noqa: ASYNC110 # as above
                await asyncio.sleep(UNSTORED_LOOK_S)


def far_enough(ran: Unstored) -> bool:
    """Whether a kill comes now, after what has been run since this was waited for."""
    return (ran.stored > 0 and ran.batches >= UNSTORED_BATCHES) or ran.stored > STORED_TOO_SOON


async def _strike(
    case: Case, graph: Running, traces: Path, states: Sequence[str] = ()
) -> tuple[float, int, frozenset[str]]:
    """Kill; when, by the loop's clock and in ns, and which instances were hit. `states`: those that have to
    be some batches beyond what is stored. That is waited for last: to see who has a role takes many batches.
    """
    hit = await aim(case.targets, graph.supervisor, ANSWERS_S)
    halted: tuple[int, ...] = ()
    if case.stopped is not None:
        halted = (await aim([(*case.stopped, "proxy")], graph.supervisor, ANSWERS_S)).pids
    if states:
        await _run_unstored(states, traces)
    elif len(case.targets) == 1:
        await _busy(case.targets[0][0], hit.instances, traces)
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


async def _busy(operator: str, instances: Collection[str], traces: Path) -> None:
    """Until one of these has a batch in its model. Of one that waits for work the clock would tell when work
    came: SA's o2 is idle for 1.3 of 1.5 s."""
    tail = Tail(traces, f"{operator}-", RUNS)
    with contextlib.suppress(TimeoutError):  # it is hit as it is, and the row says so
        async with asyncio.timeout(BUSY_S):
            while not runs(tail.notes(), instances):  # noqa: ASYNC110 # a file has no event for it
                await asyncio.sleep(LOOK_S)


def runs(lines: Sequence[Note], instances: Collection[str]) -> bool:
    """Whether one of these has begun a batch, and has not ended it."""
    own = [note.kind for note in lines if note.who in instances and note.kind in RUNS]
    return own[-1:] == ["StartBatch"]


async def _run_ahead(operator: str, traces: Path) -> None:
    """Until an operator has executed twice more: the first time may still be on what everybody has. Its trace
    tells: `hams status` waits for who stands still, and a lease runs out meanwhile."""
    began = time.monotonic_ns()

    def executed() -> int:
        return sum(note.at >= began and note.kind == "BatchDone" for note in notes(traces, f"{operator}-"))

    async with asyncio.timeout(ANSWERS_S):
        while executed() < 2:  # noqa: ASYNC110 # a file has no event for it
            await asyncio.sleep(LOOK_S)


def _median_ms(steps: Sequence[dict[str, float]], name: str) -> float | None:
    values = [parts[name] for parts in steps if name in parts]
    return ms(statistics.median(values)) if values else None


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
