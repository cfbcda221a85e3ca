"""Cells of `hams bench schedule`: what becomes of one case under all policies, and who has lost where.

After a cold start the first `COLD_REQUESTS` of each trace are served and not judged: they are what times are
learnt from. The rest is compared with the same requests under `distribution` with a profile, too.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from benchmarks.arrivals import Arrivals
from benchmarks.virtual_time import (
    BASELINES,
    GUARDED,
    ORLOJ,
    OURS,
    PROFILE_SAMPLES,
    known,
    outages_of,
    policy_of,
    profiles_of,
    run,
)
from benchmarks.workloads import Case, p99_s, published, trace_of, worker_of
from hams_schedule.guard import Guarded
from hams_schedule.score import RATE

T = TypeVar("T")
ALLOWED = 0.003
"""What `distribution` may lose to another policy beyond 2 standard errors."""
COLD_REQUESTS = 300
"""After so many requests a cold start is over."""
COLD_ALLOWED = 0.02
"""What `distribution` may lose from then on to itself with a profile."""
PROFILED = "profiled"
"""`distribution` with a profile, beside one that began without."""
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
    orloj_rate: float = RATE
    """Orloj's b, per second."""
    outages: bool = False
    """Whether the model is lost now and then (`virtual_time.outages_of`)."""

    @property
    def cold(self) -> bool:
        """Whether `distribution` begins without a profile."""
        return not self.samples


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
        guards: list[Guarded[Any]] = []
        fates = {policy: _fates(job, policy, factor * p99, traces, guards) for policy in job.policies}
        if job.cold and OURS in fates:
            fates[PROFILED] = _fates(job, OURS, factor * p99, traces, [], PROFILE_SAMPLES)
        rows.append(
            {
                "case": job.case.name,
                "slo": factor,
                "rho": job.rho,
                "orloj": job.orloj,
                "trace": [trace.digest() for trace in traces.values()],
                "rates": {policy: round(float(fate.mean()), 4) for policy, fate in fates.items()},
                "lead": _leads(fates, OURS),
                "guarded_lead": _leads(fates, GUARDED),
                "published": published(job.case.name, factor),
                "guard": [{"switches": guard.switches, "serves": guard.name} for guard in guards],
            }
        )
    return rows


def _fates(
    job: Job,
    policy: str,
    slo_s: float,
    traces: dict[int, Any],
    guards: list[Guarded[Any]],
    samples: int | None = None,
) -> "np.ndarray[Any, Any]":
    """For each request of all traces that is judged, 1.0 if it was in time. `guards`: gets the guard of each
    trace, if there is one. `samples`: of the profile at the start, where they are not those of the job."""
    fates: list[bool] = []
    first = COLD_REQUESTS if job.cold else 0
    for seed, trace in traces.items():
        profiles = profiles_of(job.case, job.information, seed, job.samples if samples is None else samples)

        def classify(app: int, feature: float, profiles: Any = profiles) -> int:
            return int(profiles.classify(*known(job.information, app, feature)))

        chosen = policy_of(policy, job.case, slo_s, profiles, seed, job.orloj_rate)
        outages = outages_of(job.case, trace) if job.outages else []
        fates += run(chosen, trace, worker_of(job.case), slo_s, classify, outages=outages).on_time[first:]
        if isinstance(chosen, Guarded):
            guards.append(chosen)
    return np.array(fates, dtype=float)


def _leads(fates: "dict[str, np.ndarray[Any, Any]]", ours: str) -> dict[str, tuple[float, float]]:
    """The lead of `ours` over each of the others; none if it is not among them."""
    if ours not in fates:
        return {}
    return {policy: _lead(fates[ours], fate) for policy, fate in fates.items() if policy != ours}


def _lead(ours: "np.ndarray[Any, Any]", other: "np.ndarray[Any, Any]") -> tuple[float, float]:
    """By how much our finish rate is larger, and the standard error of that, paired by request."""
    difference = ours - other
    return round(float(difference.mean()), 5), round(float(difference.std() / np.sqrt(len(difference))), 5)


def judged(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each row with the policies that `distribution` lost to, and those that it lost to under its guard.
    Orloj stands for itself by the statistic that is best over the table."""
    listed = list(rows)
    statistics = [name for name in ORLOJ if listed and name in listed[0]["rates"]]
    best = max(statistics, key=lambda name: sum(row["rates"][name] for row in listed), default=None)
    for row in listed:
        row["orloj"] = row.get("orloj") or best
        others = (*BASELINES, row["orloj"])
        row["lost_to"] = _lost_to(row["lead"], others)
        if row["lead"].get(PROFILED, (0.0, 0.0))[0] < -COLD_ALLOWED:
            row["lost_to"].append(PROFILED)
        row["guarded_lost_to"] = _lost_to(row.get("guarded_lead", {}), others)
    return listed


def _lost_to(leads: dict[str, tuple[float, float]], others: Iterable[str]) -> list[str]:
    return [name for name in others if name in leads and leads[name][0] < -(2 * leads[name][1] + ALLOWED)]
