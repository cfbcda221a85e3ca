"""Cells of `hams bench schedule`: what becomes of one case under all policies, and who has lost where."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from benchmarks.arrivals import Arrivals
from benchmarks.virtual_time import BASELINES, ORLOJ, OURS, known, policy_of, profiles_of, run
from benchmarks.workloads import Case, p99_s, published, trace_of, worker_of

T = TypeVar("T")
ALLOWED = 0.003
"""What `distribution` may lose to another policy beyond 2 standard errors."""
PROCESSES = 2
NICE = 5


@dataclass(frozen=True)
class Job:
    """All policies and SLOs on the traces of one case."""

    case: Case
    factors: tuple[float, ...]
    policies: tuple[str, ...]
    rho: float
    arrivals: Arrivals
    information: str
    requests: int
    seeds: tuple[int, ...]
    samples: int
    orloj: str = ""
    """The statistic that Orloj stands for; "": the one that is best over the table."""


def of_all(measure: Callable[[Job], T], jobs: Sequence[Job]) -> list[T]:
    """The outcome of each job, by two processes that yield to others."""
    with ProcessPoolExecutor(PROCESSES, initializer=_yield_to_others) as pool:
        return list(pool.map(measure, jobs))


def _yield_to_others() -> None:
    os.nice(NICE)


def cells(job: Job) -> list[dict[str, Any]]:
    """The cells of one case: for each policy its finish rate and, to compare by, each request's fate."""
    traces = {seed: trace_of(job.case, job.rho, job.arrivals, job.requests, seed) for seed in job.seeds}
    p99 = p99_s(job.case)
    rows: list[dict[str, Any]] = []
    for factor in job.factors:
        fates = {policy: _fates(job, policy, factor * p99, traces) for policy in job.policies}
        rows.append(
            {
                "case": job.case.name,
                "slo": factor,
                "rho": job.rho,
                "orloj": job.orloj,
                "trace": [trace.digest() for trace in traces.values()],
                "rates": {policy: round(float(fate.mean()), 4) for policy, fate in fates.items()},
                "lead": {
                    policy: _lead(fates[OURS], fate)
                    for policy, fate in fates.items()
                    if OURS in fates and policy != OURS
                },
                "published": published(job.case.name, factor),
            }
        )
    return rows


def _fates(job: Job, policy: str, slo_s: float, traces: dict[int, Any]) -> "np.ndarray[Any, Any]":
    """For each request of all traces, 1.0 if it was in time."""
    fates: list[bool] = []
    for seed, trace in traces.items():
        profiles = profiles_of(job.case, job.information, seed, job.samples)

        def classify(app: int, feature: float, profiles: Any = profiles) -> int:
            return int(profiles.classify(*known(job.information, app, feature)))

        chosen = policy_of(policy, job.case, slo_s, profiles, seed)
        fates += run(chosen, trace, worker_of(job.case), slo_s, classify).on_time
    return np.array(fates, dtype=float)


def _lead(ours: "np.ndarray[Any, Any]", other: "np.ndarray[Any, Any]") -> tuple[float, float]:
    """By how much our finish rate is larger, and the standard error of that, paired by request."""
    difference = ours - other
    return round(float(difference.mean()), 5), round(float(difference.std() / np.sqrt(len(difference))), 5)


def judged(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each row with the policies that `distribution` lost to. Orloj stands for itself by the statistic that
    is best over the table."""
    listed = list(rows)
    statistics = [name for name in ORLOJ if listed and name in listed[0]["rates"]]
    best = max(statistics, key=lambda name: sum(row["rates"][name] for row in listed), default=None)
    for row in listed:
        row["orloj"] = row.get("orloj") or best
        compared = [name for name in (*BASELINES, row["orloj"]) if name in row["lead"]]
        row["lost_to"] = [
            name for name in compared if row["lead"][name][0] < -(2 * row["lead"][name][1] + ALLOWED)
        ]
    return listed
