"""What a decision of `distribution` costs in CPU time (`hams bench schedule --micro`).

Measured is what serves: the queue of a proxy, with its guard and its laws, and units as the core makes them.
`decide` is all that lies between a free model and its next batch: `late`, `take` and `started`. `full` is one
decision with roll-outs, which runs beside the model or between long batches; `add` is an arrival. The kinds
of queue are what makes decisions costly: deadlines so short that some are late, many shapes of requests, an
order to keep, and units that are late and run all the same.

Last comes what the queue of an operator with `policy: Fifo` costs: the whole way of a unit through it, as the
core goes it for a batch of one.
"""

import argparse
import gc
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.chain import machine
from benchmarks.plots import lines
from benchmarks.report import Result, deliver, rows_of
from benchmarks.virtual_time import PLAN_SLICE_S, teach
from benchmarks.workloads import CASES, ROWS_MAX
from hams_load.traffic import percentile
from hams_protocol.batching import Fifo, Timing
from hams_protocol.graph import FRONTEND, BatchPolicy, SchedulePolicy, WhenLate
from hams_protocol.ids import RequestId, UnitId
from hams_protocol.joins import Stage, Unit
from hams_protocol.messages import Kind, Meta, Token
from hams_schedule import decision
from hams_schedule.decision import decide
from hams_wire.peers.payload import TensorInfo, WholePayload
from hams_wire.scheduling import OrderedQueue, PolicyQueue

CASE = "eight-modal"
PENDING = (10, 30, 100, 200, 1_000, 10_000)
DECISIONS = 1_000
BATCH_S = 0.05
"""How long a batch takes."""
SESSIONS = 3_000
SHAPES = 100
FIFO_UNITS = 100_000
FIFO_ROUNDS = 5
GOALS_US = {"add_p50_us": 5.0, "decide_p99_us": 100.0}
"""What an arrival and a decision may cost with the most pending in the usual queue, compiled."""


@dataclass(frozen=True)
class QueueKind:
    """A kind of queue. `budgets`: of units, in times that the whole queue takes. `shapes`: of requests, of
    which no two share a batch."""

    name: str
    budgets: tuple[float, float] = (1.8, 2.0)
    shapes: int = 1
    ordered: bool = False
    when_late: WhenLate = WhenLate.SHED


USUAL = QueueKind("usual")
KINDS = (
    USUAL,
    QueueKind("short deadlines", budgets=(0.2, 1.2)),
    QueueKind("100 shapes", shapes=SHAPES),
    QueueKind("in order", ordered=True),
    QueueKind("late ones run", budgets=(0.2, 1.2), when_late=WhenLate.RUN),
)


class ShapedPayload(WholePayload):
    """A payload of one row: what the core asks of it."""

    nbytes, defect, content, rows = 0, "", "", 1

    def __init__(self, shape: int) -> None:
        self.tensors = (TensorInfo("x", "FP32", (1, shape), 0, 4),)

    @property
    def batch_key(self) -> str:
        """Made anew each time, as that of a real one is looked up."""
        return " ".join(f"{tensor.name}{tensor.shape[1:]}" for tensor in self.tensors)


def main_of(options: argparse.Namespace) -> int:
    """Measure and print. The exit status is 0: times depend on the machine."""
    decisions = 50 if options.short else DECISIONS
    rows = [measure(USUAL, pending, decisions, options.seed) for pending in PENDING]
    goals = verdicts(rows[-1])
    rows += [measure(kind, PENDING[-1], decisions, options.seed) for kind in KINDS if kind is not USUAL]
    result: Result = {
        "bench": "schedule-micro",
        "machine": machine(),
        "case": CASE,
        "compiled": not decision.__file__.endswith(".py"),
        "goals": goals,
        "fifo_us": round(1e6 * fifo_s(FIFO_UNITS // 10 if options.short else FIFO_UNITS), 2),
        "rows": rows,
    }
    deliver(result, options, print_table, plot)
    return 0


def verdicts(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Each goal, and whether the row with the most pending meets it."""
    return [
        {"what": name, "pending": row["pending"], "goal_us": goal, "us": row[name], "met": row[name] <= goal}
        for name, goal in GOALS_US.items()
    ]


def unit_of(number: int, app: int, shape: int) -> Unit:
    """A ready unit, as the core makes it of a request."""
    request = RequestId(0, number)
    made = Unit(UnitId(request, ()))
    meta = Meta((("app", str(app)), ("session", str(number % SESSIONS))))
    made.used = (
        Token(request, (), FRONTEND, Kind.VALUE, f"0/{number}", (), (), meta, payload=ShapedPayload(shape)),
    )
    made.stage = Stage.READY
    return made


def fifo_s(units: int) -> float:
    """CPU seconds that the core's own queue costs one unit, all its calls together: the least of some rounds,
    for what others add is more than it costs."""
    queue, unit = Fifo(BatchPolicy(ROWS_MAX, 0.0)), unit_of(0, 0, 0)
    timing = Timing(BATCH_S, BATCH_S, True)
    least = math.inf
    for _ in range(FIFO_ROUNDS):
        began = time.thread_time()
        for batch in range(units):
            now = float(batch)
            queue.add(unit, now)
            queue.deadline()
            queue.late(now)
            queue.started(batch, queue.take(now), now)
            queue.finished(batch, timing, now)
        least = min(least, time.thread_time() - began)
    return least / units


class OfferedLoad:
    """A queue, and requests for it: as many wait at any time as is asked for."""

    def __init__(self, kind: QueueKind, pending: int, seed: int) -> None:
        case = next(case for case in CASES if case.name == CASE)
        policy = BatchPolicy(
            ROWS_MAX,
            0.0,
            SchedulePolicy.DISTRIBUTION,
            kind.when_late,
            "parameter:app",
            keep_order="parameter:session" if kind.ordered else "",
        )
        self.queue = (OrderedQueue if kind.ordered else PolicyQueue)(policy)
        teach(self.queue.profiles, case, "app", seed)
        self.now = 0.0
        self.took_s: list[float] = []
        """Of each arrival."""
        self._kind = kind
        self._pending = pending
        self._apps = len(case.modes)
        self._random = np.random.default_rng(seed)
        self._number = 0
        self._drained_s = BATCH_S * (2.0 + pending / ROWS_MAX)
        for _ in range(pending):
            self._arrive()
            self.now += BATCH_S / ROWS_MAX / 4

    def fill(self) -> None:
        """As many arrive as have left."""
        while len(self.queue) < self._pending:
            self._arrive()

    def _arrive(self) -> None:
        app = int(self._random.integers(0, self._apps))
        unit = unit_of(self._number, app, self._number % self._kind.shapes)
        unit.due = self.now + self._drained_s * float(self._random.uniform(*self._kind.budgets))
        self._number += 1
        began = time.thread_time()
        self.queue.add(unit, self.now)
        self.took_s.append(time.thread_time() - began)


def measure(kind: QueueKind, pending: int, decisions: int, seed: int) -> dict[str, Any]:
    """Costs in microseconds with `pending` requests queued: after each batch as many arrive as it took."""
    offered = OfferedLoad(kind, pending, seed)
    queue = offered.queue
    costs: dict[str, list[float]] = {"add": offered.took_s, "decide": [], "full": []}
    gc.collect()
    gc.freeze()  # as a proxy does once it has started
    for batch in range(decisions):
        now = offered.now
        began = time.thread_time()
        gone = queue.late(now)
        units = queue.take(now)
        took = time.thread_time() - began
        for unit in units:  # as the core does, whatever the policy is
            unit.stage = Stage.RUNNING
        began = time.thread_time()
        queue.started(batch, units, now)
        costs["decide"].append(took + time.thread_time() - began)
        for unit in (*gone, *units):
            unit.stage = Stage.DONE
        costs["full"] += full_decision_s(queue, now)
        while queue.plan(now, PLAN_SLICE_S):
            pass
        offered.now += BATCH_S
        queue.finished(batch, Timing(BATCH_S, BATCH_S, True), offered.now)
        offered.fill()
        del gone, units, unit  # or the next decision would pay for what ends with them
    gc.unfreeze()
    row: dict[str, Any] = {"kind": kind.name, "pending": pending, "policy": queue.serves}
    for name, seconds in costs.items():
        row[f"{name}_p50_us"] = round(1e6 * percentile(seconds, 0.5), 1)
        row[f"{name}_p99_us"] = round(1e6 * percentile(seconds, 0.99), 1)
    return row


def full_decision_s(queue: PolicyQueue, now: float) -> list[float]:
    """The seconds of one decision with roll-outs; nothing where another policy serves."""
    served = queue.distribution
    if served is None or served.tables is None or queue.serves != SchedulePolicy.DISTRIBUTION:
        return []
    began = time.thread_time()
    decide(list(served.pending.lines.values()), served.tables, served.arrivals, served.terms, now)
    return [time.thread_time() - began]


def print_table(result: Result) -> None:
    """For people."""
    columns = [f"{name}_{share}_us" for name in ("add", "decide", "full") for share in ("p50", "p99")]
    print(f"{result['case']}, {'compiled' if result['compiled'] else 'not compiled'}; microseconds")
    print(f"{'queue':16} {'pending':>8} " + " ".join(f"{name.removesuffix('_us'):>11}" for name in columns))
    for row in rows_of(result):
        print(f"{row['kind']:16} {row['pending']:8} " + " ".join(f"{row[name]:11.1f}" for name in columns))
    print(f"Fifo: {result['fifo_us']:.2f} us a unit, in batches of one, all calls together")
    goals, here = result["goals"], "" if result["compiled"] else ", but not compiled"
    assert isinstance(goals, list)
    for goal in goals:
        print(
            f"goal: {goal['what'].removesuffix('_us')} <= {goal['goal_us']:g} us at {goal['pending']:,} "
            f"pending, compiled: {goal['us']:g} us{here}: {'met' if goal['met'] else 'missed'}"
        )


def plot(result: Result, path: Path) -> None:
    """Median costs over the number pending, of the usual queue."""
    rows = [row for row in rows_of(result) if row["kind"] == USUAL.name]
    names = ("add", "decide", "full")
    series = {name: [row[f"{name}_p50_us"] for row in rows] for name in names}
    lines([row["pending"] for row in rows], series, "requests pending", "us, median", path)
