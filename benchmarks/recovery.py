"""How long clients wait when something is killed: a loop of kill -9 under load, cell by cell.

A cell kills the same thing again and again, waiting for full redundancy in between. Per kill: the longest
time without any reply, and when it was detected (the topology lists the instance as revoked), decided (the
next topology is committed), promoted (the new owner executes again) and answered (the first reply after the
kill). All is looked for until everything is in sync again: a joiner's last step may be the longest wait.
*slowest* is the longest that a single request waited in any of the kills. *open* is the same of those
requests alone that were open at a kill or came within 0.1 s: what the failover itself cost. What is asked
later may be slow for other reasons, such as processes that start.
*load*, of large states: how long the new owner wrote the state into its model. *quiet* is the median of the
longest waits without any kill in the same run; what a kill adds is the gap beyond it. After each cell the
replies' counts and the history are judged: if anything was lost or doubled, the exit code is 1.

`hams bench recovery [--short] [--cells NAME,...] [--out FILE.json] [--output json]`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from benchmarks.asking import Log, asking
from benchmarks.chain import machine, redundant
from benchmarks.etcd_leader import CutOff, three_members
from benchmarks.graphs import graph_file, stateful, stateless
from benchmarks.judged import complete, judged
from benchmarks.kills import Target, aim
from benchmarks.paper.traces import notes, recovered
from benchmarks.plots import cumulative
from benchmarks.report import Result, add_options, counted, deliver, ms, rows_of
from hams_graph import load
from hams_load.traffic import percentile
from hams_operator.local.etcd import LocalEtcd
from hams_operator.local.supervisor import Supervisor
from hams_protocol.topology import Topology
from hams_wire import records
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.coordination.port import Put
from hams_wire.trace import ENVIRONMENT

MIB = 1 << 20

AFTER_JOIN = 5
"""Replies after everything is in sync again: the joiner's last step is among what is looked at."""

FAILOVER_S = 0.1
"""Whoever asks so soon after a kill, or has asked before, may have to wait for the new owner."""

ANSWERS_S = 60.0
"""Instances are seen, and answers come, within this time."""


@dataclass(frozen=True)
class Cell:
    """One kind of kill. `targets`: (operator, role, process) of everything hit at once. `touched_bytes` of
    the state change with every batch. `initialize_s`: how long a model takes to start, so no replacement of
    what was killed is there before. `etcd_leader`: the leader of an etcd of three members hangs from the kill
    on, until the others have another one."""

    name: str
    targets: tuple[Target, ...]
    state_bytes: int = MIB
    touched_bytes: int = 4096
    read_only: bool = False
    rollback: bool = False
    initialize_s: float = 0.0
    etcd_leader: bool = False

    @property
    def config(self) -> str:
        """Of the model whose state is large."""
        return (
            f"{{stateBytes: {self.state_bytes}, touchedBytes: {0 if self.read_only else self.touched_bytes}, "
            f"readOnly: {str(self.read_only).lower()}, initializeS: {self.initialize_s}, stamp: true}}"
        )


CELLS = (
    Cell("model", (("b", "primary", "model"),)),
    Cell("proxy", (("b", "primary", "proxy"),)),
    Cell("both", (("b", "primary", "both"),)),
    Cell("backup", (("b", "backup", "both"),)),
    Cell("active", (("a", "active", "both"),)),
    Cell("frontend", (("frontend", "frontend", "proxy"),)),
    Cell("manager-leader", (("manager", "manager", "proxy"),)),
    Cell("two-neighbours", (("b", "primary", "both"), ("c", "primary", "both"))),
    Cell("leader-and-primary", (("manager", "manager", "proxy"), ("b", "primary", "both"))),
    Cell("etcd-leader", (), etcd_leader=True),
    Cell("etcd-leader-and-primary", (("b", "primary", "both"),), etcd_leader=True),
    Cell("rollback", (("b", "primary", "both"),), rollback=True),
    Cell("both-late", (("b", "primary", "both"),), initialize_s=3.0),
    Cell("both-100MB", (("b", "primary", "both"),), state_bytes=100 * MIB),
    Cell("both-100MB-read-only", (("b", "primary", "both"),), state_bytes=100 * MIB, read_only=True),
    Cell("joiner-100MB-read-only", (("b", "backup", "both"),), state_bytes=100 * MIB, read_only=True),
    Cell("both-500MB", (("b", "primary", "both"),), state_bytes=500 * MIB),
    Cell(
        "both-500MB-one-percent",
        (("b", "primary", "both"),),
        state_bytes=500 * MIB,
        touched_bytes=5 * MIB,
    ),
    Cell("both-500MB-read-only", (("b", "primary", "both"),), state_bytes=500 * MIB, read_only=True),
)


def main(arguments: list[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser("hams bench recovery", description=__doc__)
    add_options(parser)
    parser.add_argument("--kills", type=counted, default=20, help="per cell")
    parser.add_argument("--clients", type=counted, default=2)
    parser.add_argument("--cells", default="", help="names, separated by commas; all if left out")
    parser.add_argument("--short", action="store_true", help="two kills per cell, small states only")
    options = parser.parse_args(arguments)
    wanted = options.cells.split(",") if options.cells else [cell.name for cell in CELLS]
    chosen = [cell for cell in CELLS if cell.name in wanted]
    if unknown := set(wanted) - {cell.name for cell in CELLS}:
        names = ", ".join(cell.name for cell in CELLS)
        parser.error(f"no cell {', '.join(sorted(unknown))}. Known are {names}")
    if options.short:
        chosen = [cell for cell in chosen if cell.state_bytes <= MIB]
        if not chosen:
            parser.error("--short measures states of 1 MiB, and all cells of --cells have larger ones")
    result = uvloop.run(measure(chosen, 2 if options.short else options.kills, options.clients))
    deliver(result, options, print_table, plot)
    return 1 if any(row["failed"] or not row["ok"] for row in rows_of(result)) else 0


async def measure(cells: list[Cell], kills: int, clients: int) -> Result:
    """All cells, each with a graph of its own."""
    rows = [await measure_cell(cell, kills, clients) for cell in cells]
    return {
        "bench": "recovery",
        "machine": machine(),
        "kills_per_cell": kills,
        "clients": clients,
        "rows": rows,
    }


async def measure_cell(cell: Cell, kills: int, clients: int) -> dict[str, object]:
    """a (stateless, one standby) -> b -> c, both stateful; for a rollback c has no backup and goes back in
    place."""
    operators = [
        stateless("a", "request"),
        stateful("b", "a", cell.config),
        stateful("c", "b", backups=0 if cell.rollback else 1),
    ]
    history = Path(tempfile.mkdtemp(prefix="hams-history-", dir="/dev/shm"))
    try:
        async with contextlib.AsyncExitStack() as stack:
            traces = stack.enter_context(traced(cell))
            path = stack.enter_context(graph_file("recovery", operators, {"x": "c.x", "count": "c.count"}))
            etcd = await stack.enter_async_context(three_members()) if cell.etcd_leader else None
            supervisor = Supervisor(load(path), path, None, history, etcd.endpoints if etcd else None)
            try:
                await supervisor.start()
                await redundant(supervisor)
                row, log, struck = await _loop(cell, supervisor, etcd, kills, clients, history)
                await complete(history)
                row |= {} if traces is None else await asyncio.to_thread(loads, traces, cell, struck)
            finally:
                await supervisor.stop()
        counts = (
            {"c": log.numbers["count"]}
            if cell.read_only
            else {"b": log.numbers["x"], "c": log.numbers["count"]}
        )
        return row | await asyncio.to_thread(judged, history, counts)
    finally:
        shutil.rmtree(history, ignore_errors=True)


async def _loop(
    cell: Cell, supervisor: Supervisor, etcd: LocalEtcd | None, kills: int, clients: int, history: Path
) -> tuple[dict[str, object], Log, list[tuple[int, frozenset[str]]]]:
    port = int(supervisor.url.rsplit(":", 1)[1])
    after: list[Effects] = []
    splits: list[dict[str, float]] = []
    quiet: list[float] = []
    struck: list[tuple[int, frozenset[str]]] = []
    watcher = TopologyLog(supervisor.uid, EtcdCoordination(supervisor.etcd_endpoints))
    await watcher.start()
    loop = asyncio.get_running_loop()
    try:
        async with asking(port, "recovery", 4096, clients) as log:
            for _ in range(kills):
                await redundant(supervisor)
                await log.more(20, ANSWERS_S)
                begin = loop.time()
                await log.more(50, ANSWERS_S)
                quiet.append(log.longest_gap_s(begin, loop.time()))
                await redundant(supervisor)
                cut_off = await CutOff.aim(etcd, ANSWERS_S)
                hit = await aim(cell.targets, supervisor, ANSWERS_S)
                cut_off.strike()
                moment, struck_ns = hit.kill()
                struck.append((struck_ns, hit.instances))
                after.append(await effects(log, supervisor, cut_off, moment))
                splits.append(watcher.split(moment, log, history))
    finally:
        await watcher.close()
    base = percentile(quiet, 0.5)
    gaps, slowest = [item.gap_s for item in after], [item.slowest_s for item in after]
    slowest_open = [item.slowest_open_s for item in after]
    answer: dict[str, object] = {
        "cell": cell.name,
        "kills": len(gaps),
        "failed": log.failed,
        "requests": len(log.answered),
        "gap_median_ms": ms(percentile(gaps, 0.5)),
        "gap_p99_ms": ms(percentile(gaps, 0.99)),
        "gap_without_kills_ms": ms(base),
        "gap_beyond_quiet_median_ms": ms(percentile([gap - base for gap in gaps], 0.5)),
        "slowest_median_ms": ms(percentile(slowest, 0.5)),
        "slowest_max_ms": ms(max(slowest, default=0.0)),
        "slowest_open_median_ms": ms(percentile(slowest_open, 0.5)),
        "slowest_open_max_ms": ms(max(slowest_open, default=0.0)),
        "gaps_ms": [ms(gap) for gap in gaps],
        "slowests_ms": [ms(slow) for slow in slowest],
        "slowests_open_ms": [ms(slow) for slow in slowest_open],
        "in_sync_median_ms": ms(percentile([item.in_sync_s for item in after], 0.5)),
        "kills_at": [at for at, _ in struck],
    }
    for step in ("detect", "decide", "promote", "resend"):
        answer[f"{step}_ms"] = ms(percentile([split[step] for split in splits if step in split], 0.5))
    return answer, log, struck


@dataclass(frozen=True)
class Effects:
    """What clients saw from a kill until everything was in sync again, and when that was, in s after it.
    `slowest_open_s`: of the requests that were open at the kill or came within `FAILOVER_S`."""

    gap_s: float
    slowest_s: float
    slowest_open_s: float
    in_sync_s: float


async def effects(log: Log, supervisor: Supervisor, cut_off: CutOff, moment: float) -> Effects:
    """The longest wait may come long after the new owner answers: where a joiner takes its last step. So
    it is looked for until there is nothing left to join. Raises TimeoutError."""
    loop = asyncio.get_running_loop()
    await cut_off.heal(ANSWERS_S)
    await log.more(50, ANSWERS_S)
    await redundant(supervisor)
    in_sync = loop.time()
    await log.more(AFTER_JOIN, ANSWERS_S)
    await log.all_before(in_sync, ANSWERS_S)
    end = loop.time()
    return Effects(
        log.longest_gap_s(moment, end),
        log.slowest_s(moment, end),
        log.slowest_s(moment, moment + FAILOVER_S),
        in_sync - moment,
    )


@contextmanager
def traced(cell: Cell) -> Iterator[Path | None]:
    """A folder of traces, where the state is so large that its load counts, or where one is kept anyway."""
    if ENVIRONMENT in os.environ:
        yield Path(os.environ[ENVIRONMENT])
    elif cell.state_bytes <= MIB:
        yield None
    else:
        with tempfile.TemporaryDirectory(prefix="hams-trace-", dir="/dev/shm") as folder:
            os.environ[ENVIRONMENT] = folder
            try:
                yield Path(folder)
            finally:
                del os.environ[ENVIRONMENT]


def loads(traces: Path, cell: Cell, struck: Sequence[tuple[int, frozenset[str]]]) -> dict[str, object]:
    """How long each new owner loaded the state before its first batch; `struck`: when, and who was hit."""
    lines = notes(traces, f"{cell.targets[0][0]}-")
    each = [parts["load"] for at, dead in struck if "load" in (parts := recovered(lines, at, dead))]
    return {"loads_ms": [ms(load) for load in each], "load_ms": ms(percentile(each, 0.5)) if each else None}


class TopologyLog:
    """Every topology and when it was seen."""

    def __init__(self, uid: str, coordination: EtcdCoordination) -> None:
        self._uid = uid
        self._coordination = coordination
        self._seen: list[tuple[float, Topology]] = []
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to watch."""
        key = records.topology_key(self._uid)
        snapshot = await self._coordination.get_prefix(key)
        for entry in snapshot.entries:
            self._seen.append((0.0, records.decode_topology(entry.value)))

        async def follow() -> None:
            async with self._coordination.watch(key, snapshot) as watch:
                async for event in watch:
                    if isinstance(event, Put):
                        self._seen.append(
                            (asyncio.get_running_loop().time(), records.decode_topology(event.entry.value))
                        )

        self._task = asyncio.create_task(follow())

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._coordination.close()

    def split(self, moment: float, log: Log, history: Path) -> dict[str, float]:
        """Detect, decide, promote, resend, in seconds; steps that did not happen are left out."""
        parts, decided = self.decided(moment)
        if decided is not None:
            executed = _first_exec(history, decided)
            reply = log.first_after(decided)
            if executed is not None:
                parts["promote"] = max(executed - decided, 0.0)
                parts["resend"] = max(reply - executed, 0.0)
        return parts

    def decided(self, moment: float) -> tuple[dict[str, float], float | None]:
        """Detect and decide, in seconds, as far as they happened, and when it was decided."""
        before = [topology for at, topology in self._seen if at < moment][-1]
        after = [(at, topology) for at, topology in self._seen if at >= moment]
        revoked = next((at for at, topology in after if set(topology.revoked) - set(before.revoked)), None)
        decided = next((at for at, topology in after if _moved(before, topology)), None)
        parts: dict[str, float] = {}
        if revoked is not None:
            parts["detect"] = revoked - moment
        if decided is not None:
            parts["decide"] = decided - (revoked if revoked is not None else moment)
        return parts, decided


def _moved(before: Topology, after: Topology) -> bool:
    """Whether a set or slot has another epoch."""
    sets = any(after.find(item.name).epoch > item.epoch for item in before.sets)
    return sets or any(
        new.epoch > old.epoch
        for table in before.tables
        for old, new in zip(table.slots, after.table(table.op).slots, strict=False)
    )


def _first_exec(history: Path, moment: float) -> float | None:
    """When anybody executed for the first time after a moment."""
    times: list[float] = []
    for file in history.glob("*.jsonl"):
        for line in reversed(file.read_text().splitlines()):
            if not line.endswith("}"):
                continue
            entry = json.loads(line)
            if entry.get("at", 0.0) < moment:
                break
            if entry["t"] == "exec":
                times.append(entry["at"])
    return min(times, default=None)


def plot(result: Result, path: Path) -> None:
    """How the gaps of each kind of kill are distributed."""
    cumulative({row["cell"]: row["gaps_ms"] for row in rows_of(result)}, "client-visible gap, ms", path)


def print_table(result: Result) -> None:
    """For people."""
    rows = rows_of(result)
    steps = ("detect", "decide", "promote", "resend")
    print(
        f"{'killed':22} {'kills':>5} {'median':>8} {'p99':>8} {'quiet':>7} {'beyond':>7} {'open':>7} "
        + f"{'slowest':>8} "
        + " ".join(f"{step:>7}" for step in (*steps, "load", "in sync"))
        + f" {'failed':>6} lost or doubled"
    )
    for row in rows:
        gaps = (
            f"{row['gap_median_ms']:8.1f} {row['gap_p99_ms']:8.1f} {row['gap_without_kills_ms']:7.1f} "
            f"{row['gap_beyond_quiet_median_ms']:7.1f}"
        )
        gaps += f" {row['slowest_open_max_ms']:7.1f} {row['slowest_max_ms']:8.1f}"
        split = " ".join(f"{row[f'{step}_ms']:7.1f}" for step in steps)
        load = row.get("load_ms")
        split += f" {'-' if load is None else f'{load:.1f}':>7} {row['in_sync_median_ms']:7.0f}"
        print(
            f"{row['cell']:22} {row['kills']:5} {gaps} {split} {row['failed']:6} "
            f"{'nothing' if row['ok'] else 'SOMETHING'}"
        )
        for line in (
            *row["violations"],
            *(f"counts of {name}: {said}" for name, said in row["wrong_counts"].items()),
        ):
            print(f"    {line}")


if __name__ == "__main__":
    sys.exit(main())
