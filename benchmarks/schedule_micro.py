"""What a decision of `distribution` costs in CPU time (`hams bench schedule --micro`).

For each number of pending requests: `decide` is `late` and `take` with a free model, on the critical path;
`full` is one decision with roll-outs, which runs beside the model or between long batches; `add` is an
arrival. Measured is what serves: the policy under its guard and its laws.
"""

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.chain import machine
from benchmarks.plots import lines
from benchmarks.report import Result, deliver, rows_of
from benchmarks.virtual_time import PLAN_SLICE_S, Measured, Request, known, profiles_of
from benchmarks.workloads import CAPACITY_ROWS, CASES, ROWS_MAX, p99_s
from hams_load.traffic import percentile
from hams_schedule import decision
from hams_schedule.decision import decide
from hams_schedule.guard import Guarded
from hams_schedule.lawful import Lawful
from hams_schedule.policies.distribution import Distribution
from hams_schedule.serving import guarded

CASE = "eight-modal"
PENDING = (10, 100, 1_000, 10_000)
DECISIONS = 300
GOALS_US = {"add_p50_us": 5.0, "decide_p99_us": 100.0}
"""What an arrival and a decision may cost with the most pending, compiled."""


def main_of(options: argparse.Namespace) -> int:
    """Measure and print. The exit status is 0: times depend on the machine."""
    decisions = 50 if options.short else DECISIONS
    rows = [measure(pending, decisions, options.seed) for pending in PENDING]
    result: Result = {
        "bench": "schedule-micro",
        "machine": machine(),
        "case": CASE,
        "compiled": not decision.__file__.endswith(".py"),
        "goals": verdicts(rows[-1]),
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


def measure(pending: int, decisions: int, seed: int) -> dict[str, Any]:
    """Costs in microseconds with `pending` requests queued: after each batch as many arrive as it took."""
    case = next(case for case in CASES if case.name == CASE)
    profiles = profiles_of(case, "app", seed)
    guard: Guarded[Request] = guarded(ROWS_MAX, True, profiles)
    policy: Lawful[Request] = Lawful(guard, ROWS_MAX, replace=False)
    random = np.random.default_rng(seed)
    p99 = p99_s(case)
    costs: dict[str, list[float]] = {"add": [], "decide": [], "full": []}
    now, number = 0.0, 0

    def arrive() -> None:
        """One more request, with the budget that such a queue needs."""
        nonlocal number
        app = int(random.integers(0, len(case.modes)))
        cls = profiles.classify(*known("app", app, math.nan))
        budget = p99 * (2.0 + pending) * float(random.uniform(0.9, 1.0))
        unit = Request(number, 0.0, cls, now + budget)
        number += 1
        began = time.thread_time()
        policy.add(unit, now)
        costs["add"].append(time.thread_time() - began)

    for _ in range(pending):
        arrive()
        now += p99 / CAPACITY_ROWS
    for batch in range(decisions):
        began = time.thread_time()
        policy.late(now)
        units = policy.take(now)
        costs["decide"].append(time.thread_time() - began)
        policy.started(batch, units, now)
        served = guard.serves
        if isinstance(served, Distribution) and served.tables is not None:
            began = time.thread_time()
            decide(list(served.pending.lines.values()), served.tables, served.arrivals, served.terms, now)
            costs["full"].append(time.thread_time() - began)
        while policy.plan(now, PLAN_SLICE_S):
            pass
        now += 0.05
        policy.finished(batch, Measured(0.05, 0.05), now)
        while len(policy) < pending:
            arrive()
    row: dict[str, Any] = {"pending": pending, "policy": guard.name}
    for name, seconds in costs.items():
        row[f"{name}_p50_us"] = round(1e6 * percentile(seconds, 0.5), 1)
        row[f"{name}_p99_us"] = round(1e6 * percentile(seconds, 0.99), 1)
    return row


def print_table(result: Result) -> None:
    """For people."""
    columns = [f"{name}_{share}_us" for name in ("add", "decide", "full") for share in ("p50", "p99")]
    print(f"{result['case']}, {'compiled' if result['compiled'] else 'not compiled'}; microseconds")
    print(f"{'pending':>8} " + " ".join(f"{column.removesuffix('_us'):>12}" for column in columns))
    for row in rows_of(result):
        print(f"{row['pending']:8} " + " ".join(f"{row[column]:12.1f}" for column in columns))
    goals, here = result["goals"], "" if result["compiled"] else ", but not compiled"
    assert isinstance(goals, list)
    for goal in goals:
        print(
            f"goal: {goal['what'].removesuffix('_us')} <= {goal['goal_us']:g} us at {goal['pending']:,} "
            f"pending, compiled: {goal['us']:g} us{here}: {'met' if goal['met'] else 'missed'}"
        )


def plot(result: Result, path: Path) -> None:
    """Median costs over the number pending."""
    rows = rows_of(result)
    names = ("add", "decide", "full")
    series = {name: [row[f"{name}_p50_us"] for row in rows] for name in names}
    lines([row["pending"] for row in rows], series, "requests pending", "us, median", path)
