"""More requests than a model can do, in virtual time (`hams bench schedule --overload LOAD`): how soon a
request that is not run is told, and how many of those that were let in come late.

Each case runs once with all requests let in and once with `admission: Promise`, as the owner of a shard
decides it. *Told* is the share of its time that a request had waited when it was told that it is not run, in
the median: who is refused is told at once. *Let in* is the same of those that were let in first. *Broken* is
the share of those let in that are not answered in time.
"""

import argparse
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.arrivals import Arrivals
from benchmarks.chain import machine
from benchmarks.plots import bars
from benchmarks.report import Result, deliver, rows_of
from benchmarks.virtual_time import GUARDED, OPEN, OURS, Door, Request, known, policy_of, profiles_of, run
from benchmarks.workloads import Case, cases_named, p99_s, trace_of, worker_of
from hams_load.traffic import percentile
from hams_protocol import limits
from hams_protocol.frontend.promises import Promises
from hams_protocol.messages import Meta

CASES = "std-1,three-modal,one-modal,gpt-convAI,fsmt-wmt"
"""Where none is chosen."""
POLICIES = (OURS, "deadline")
ALL_POLICIES = (*POLICIES, GUARDED)
SLOS = (2.0, 3.0)
APP = "app"
GOAL_TOLD = 0.5
GOAL_BROKEN = 0.05
SHORT_REQUESTS = 2_000


class Promising(Door):
    """`admission: Promise` of one shard whose only operator is the model. Requests without an app are one
    kind."""

    def __init__(self, slo_s: float, apps: list[int], *, named: bool) -> None:
        self._promises = Promises(APP if named else "")
        self._meta = Meta(budget_s=slo_s)
        self._apps = apps
        self._open: dict[int, tuple[Meta, float, int]] = {}

    def admits(self, unit: Request, now: float) -> bool:
        meta = replace(self._meta, parameters=((APP, str(self._apps[unit.number])),))
        oldest = islice(self._open.values(), limits.promise_waiting_max)
        waiting = [(of, now - since) for of, since, _ in oldest]
        ahead = len(self._open)
        if self._promises.judge(meta, ahead, now, waiting).refusal is not None:
            return False
        self._open[unit.number] = meta, now, ahead
        return True

    def ended(self, unit: Request, now: float, *, shed: bool) -> None:
        meta, since, ahead = self._open.pop(unit.number)
        (self._promises.shed if shed else self._promises.answered)(meta, now - since, ahead, now)


def main_of(options: argparse.Namespace) -> int:
    """Measure. The exit status is 1 where `distribution` under promises misses a goal."""
    count = min(options.requests, SHORT_REQUESTS) if options.short else options.requests
    rows = [
        row_of(case, factor, policy, promise, options, count)
        for case in cases_named(options.cases or CASES)
        for factor in options.slo or SLOS
        for policy in options.policies or POLICIES
        for promise in (False, True)
    ]
    result: Result = {
        "bench": "schedule-overload",
        "machine": machine(),
        "load": options.overload,
        "arrivals": options.arrivals_from.name,
        "information": options.information,
        "requests": count,
        "goals": {"told": GOAL_TOLD, "broken": GOAL_BROKEN},
        "rows": rows,
    }
    deliver(result, options, print_table, plot)
    judged = [row for row in rows if row["promise"] and row["policy"] in (OURS, GUARDED)]
    return 0 if all(row["kept"] for row in judged) else 1


def row_of(
    case: Case, factor: float, policy: str, promise: bool, options: argparse.Namespace, count: int
) -> dict[str, Any]:
    """One run. `told` is None where all were run, `told_let_in` where nobody was shed."""
    arrivals: Arrivals = options.arrivals_from
    information = options.information
    slo_s, profiles = factor * p99_s(case), profiles_of(case, information, options.seed)
    trace = trace_of(case, options.overload, arrivals, count, options.seed)

    def classify(app: int, feature: float) -> int:
        return profiles.classify(*known(information, app, feature))

    named = information in ("app", "both")
    door = Promising(slo_s, trace.apps, named=named) if promise else OPEN
    chosen = policy_of(policy, case, slo_s, profiles, options.seed)
    outcome = run(chosen, trace, worker_of(case), slo_s, classify, door)
    admitted = count - outcome.refused
    told = median([0.0] * outcome.refused + [waited / slo_s for waited in outcome.shed_after_s])
    broken = 1.0 - sum(outcome.on_time) / admitted if admitted else 0.0
    return {
        "case": case.name,
        "slo": factor,
        "policy": policy,
        "promise": promise,
        "in_time": round(outcome.rate(), 4),
        "refused": round(outcome.refused / count, 4),
        "shed": round(len(outcome.shed_after_s) / count, 4),
        "told": told,
        "told_let_in": median([waited / slo_s for waited in outcome.shed_after_s]),
        "broken": round(broken, 4),
        "kept": (told or 0.0) <= GOAL_TOLD and broken <= GOAL_BROKEN,
    }


def median(shares: list[float]) -> float | None:
    """The median; None of none."""
    return round(percentile(shares, 0.5), 4) if shares else None


def print_table(result: Result) -> None:
    """For people."""
    print(
        f"load {result['load']}, {result['arrivals']}, known of requests: {result['information']}, "
        f"{result['requests']} requests; shares of all requests, told in shares of the deadline"
    )
    print(
        f"{'case':20} {'SLO':>4} {'policy':12} {'admission':9} {'in time':>8} {'refused':>8} {'shed':>8} "
        f"{'told':>8} {'let in':>8} {'broken':>8}"
    )
    for row in rows_of(result):
        told, let_in = ("-" if row[of] is None else f"{row[of]:.3f}" for of in ("told", "told_let_in"))
        print(
            f"{row['case']:20} {row['slo']:4g} {row['policy']:12} {'Promise' if row['promise'] else 'All':9} "
            f"{row['in_time']:8.3f} {row['refused']:8.3f} {row['shed']:8.3f} {told:>8} {let_in:>8} "
            f"{row['broken']:8.3f}"
        )
    print(f"goals under Promise: told <= {GOAL_TOLD:g} in the median, broken <= {GOAL_BROKEN:g}")


def plot(result: Result, path: Path) -> None:
    """Broken promises by case, with and without."""
    rows = [row for row in rows_of(result) if row["policy"] == rows_of(result)[0]["policy"]]
    names = list(dict.fromkeys(f"{row['case']} {row['slo']:g}x" for row in rows))
    series = {
        name: [row["broken"] for row in rows if row["promise"] is promise]
        for name, promise in (("all let in", False), ("promised", True))
    }
    bars(names, series, f"not in time, of those let in; load {result['load']:g}", path)
