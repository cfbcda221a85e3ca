"""Three stages in a row in virtual time: how a deadline is best split (`hams bench schedule --dag`).

`equal` gives each stage a third of the SLO, `proportional` a share by its mean time; with `rest` each stage
judges by the end-to-end deadline and the median of what comes after it, as the product does.
"""

import argparse
import heapq
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.chain import machine
from benchmarks.plots import lines
from benchmarks.report import Result, deliver, rows_of
from benchmarks.virtual_time import PLAN_SLICE_S, Measured, Request
from benchmarks.workloads import CAPACITY_ROWS, JITTER, ROWS_MAX, Worker
from hams_schedule.policies.distribution import Distribution
from hams_schedule.profile import Profiles

SPLITS = ("equal", "proportional", "rest")
STAGES = (1.0, 0.6, 0.8)
"""Times of the stages, as shares of those of the first."""
MEANS_S = (0.020, 0.100)
SD_S = 0.005
GROWTH = 0.25
FIXED_S = 0.001
PROFILE_SAMPLES = 1_000
LOADS = ((0.7, 2.0), (0.7, 3.0), (0.6, 1.5))
"""Load of the first stage, and SLO in P99s of the sum of stand-alone times."""


@dataclass
class Traced:
    """Requests of two classes: arrivals and, by stage, stand-alone times, in seconds."""

    arrivals: list[float]
    apps: list[int]
    alone: list[list[float]]
    p99_s: float


def main_of(options: argparse.Namespace) -> int:
    """Measure; the exit status is 1 where `rest` finishes fewer in time than another split, by more than
    0.003."""
    requests = min(options.requests, 1_000) if options.short else options.requests
    rows = [cell(load, factor, requests, seed) for load, factor in LOADS for seed in _seeds(options)]
    deliver({"bench": "schedule-dag", "machine": machine(), "rows": rows}, options, print_table, plot)
    return 1 if any(row["rest"] + 0.003 < max(row["equal"], row["proportional"]) for row in rows) else 0


def _seeds(options: argparse.Namespace) -> range:
    return range(options.seed, options.seed + options.seeds)


def cell(load: float, factor: float, requests: int, seed: int) -> dict[str, Any]:
    """The finish rate of each split on one trace."""
    traced = trace(load, requests, seed)
    return {
        "load": load,
        "slo": factor,
        "seed": seed,
        **{split: round(Chain(traced, factor * traced.p99_s, split, seed).run(), 4) for split in SPLITS},
    }


def trace(load: float, requests: int, seed: int) -> Traced:
    """Bursty arrivals; each request is of one class at all stages, its times are independent."""
    random = np.random.default_rng([seed, 31])
    apps = random.integers(0, 2, requests)
    alone = [_times(random, apps) * scale for scale in STAGES]
    p99 = float(np.quantile(sum(alone), 0.99)) + len(STAGES) * FIXED_S
    longest = alone[0][: len(apps) // CAPACITY_ROWS * CAPACITY_ROWS].reshape(-1, CAPACITY_ROWS).max(axis=1)
    batch_s = FIXED_S + float(longest.mean()) * (1 - GROWTH + GROWTH * CAPACITY_ROWS)
    arrivals: list[float] = []
    start, level = 0.0, random.normal(0.0, 0.35)
    while len(arrivals) < requests:
        rate = load * CAPACITY_ROWS / batch_s * math.exp(level - 0.35**2 / 2)
        arrivals += sorted(start + random.random(random.poisson(rate * 20 * p99)) * 20 * p99)
        start += 20 * p99
        level = 0.8 * level + random.normal(0.0, 0.35 * 0.6)
    return Traced(
        [float(at) for at in arrivals[:requests]],
        [int(app) for app in apps],
        [[float(time) for time in times] for times in alone],
        p99,
    )


def _times(random: np.random.Generator, apps: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    means = np.array(MEANS_S)[apps]
    times: np.ndarray[Any, Any] = np.maximum(random.normal(means, SD_S), 0.1 * means)
    return times


def profile(stage: int, seed: int) -> Profiles:
    """What the stage has learnt beforehand."""
    random = np.random.default_rng([seed, 32, stage])
    worker = Worker(FIXED_S, GROWTH)
    profiles = Profiles()
    apps = random.integers(0, 2, PROFILE_SAMPLES)
    for app, time in zip(apps, _times(random, apps) * STAGES[stage], strict=True):
        profiles.classify(str(app), math.nan)
        profiles.observe_alone(str(app), math.nan, worker.run([float(time)], 1.0))
    while profiles.refresh(force=True):
        pass
    for rows in (2, 4, 8, 16, 32):
        for _ in range(20):
            apps = random.integers(0, 2, rows)
            took = worker.run([float(time) for time in _times(random, apps) * STAGES[stage]], 1.0)
            members = [profiles.classes.class_of(str(app), math.nan) for app in apps]
            profiles.observe_batch(members, rows, took, 0.0)
    profiles.settle()
    return profiles


class Chain:
    """The stages, each with a model and a policy of its own."""

    def __init__(self, traced: Traced, slo_s: float, split: str, seed: int) -> None:
        self._traced = traced
        self._slo_s = slo_s
        self._rest = split == "rest"
        self._profiles = [profile(stage, seed) for stage in range(len(STAGES))]
        self._policies: list[Distribution[Request]] = [
            Distribution(ROWS_MAX, True, profiles) for profiles in self._profiles
        ]
        self._running: list[list[Request]] = [[] for _ in STAGES]
        self._random = np.random.default_rng([seed, 33])
        self._events: list[tuple[float, int, int, int]] = []
        self._batch = 0
        self._released: list[dict[int, float]] = [{} for _ in STAGES]
        whole = sum(STAGES)
        running = 0.0
        self._until: list[float] = []
        for stage, scale in enumerate(STAGES):
            running += scale
            equal = (stage + 1) / len(STAGES)
            self._until.append({"equal": equal, "proportional": running / whole, "rest": 1.0}[split])

    def run(self) -> float:
        """The share of requests that leave the last stage in time."""
        arrivals = self._traced.arrivals
        for number, at in enumerate(arrivals):
            heapq.heappush(self._events, (at, 0, 0, number))
        in_time = 0
        while self._events:
            now, ends, stage, number = heapq.heappop(self._events)
            if not ends:
                self._arrive(number, stage, now)
                continue
            units, self._running[stage] = self._running[stage], []
            took = now - self._policies[stage].running.since  # type: ignore[union-attr]
            self._policies[stage].finished(number, Measured(took, took), now)
            for unit in units:
                self._released[stage][unit.number] = now
                if stage + 1 < len(STAGES):
                    self._arrive(unit.number, stage + 1, now)
                else:
                    in_time += now <= arrivals[unit.number] + self._slo_s
                    self._reply(unit.number, now)
            self._serve(stage, now)
        return in_time / len(arrivals)

    def _arrive(self, number: int, stage: int, now: float) -> None:
        app = self._traced.apps[number]
        due = self._traced.arrivals[number] + self._until[stage] * self._slo_s
        cls = self._profiles[stage].classify(str(app), math.nan)
        unit = Request(number, self._traced.alone[stage][number], cls, due)
        self._policies[stage].add(unit, now)
        self._serve(stage, now)

    def _reply(self, number: int, now: float) -> None:
        """Tell each stage how long its rest of the path took."""
        for stage in range(len(STAGES)):
            since = self._released[stage].pop(number)
            if self._rest:
                cls = self._profiles[stage].classes.class_of(str(self._traced.apps[number]), math.nan)
                self._profiles[stage].rest.add(cls, now - since, now)

    def _serve(self, stage: int, now: float) -> None:
        policy = self._policies[stage]
        if not self._running[stage]:
            policy.late(now)
            units = policy.take(now)
            if units:
                self._batch += 1
                self._running[stage] = units
                jitter = math.exp(self._random.normal(0.0, JITTER))
                took = Worker(FIXED_S, GROWTH).run([unit.alone for unit in units], jitter)
                policy.started(self._batch, units, now)
                heapq.heappush(self._events, (now + took, 1, stage, self._batch))
        while policy.plan(now, PLAN_SLICE_S):
            pass


def print_table(result: Result) -> None:
    """For people."""
    print(f"{'load':>5} {'SLO':>4} {'seed':>4} " + " ".join(f"{split:>12}" for split in SPLITS))
    for row in rows_of(result):
        rates = " ".join(f"{row[split]:12.3f}" for split in SPLITS)
        print(f"{row['load']:5g} {row['slo']:4g} {row['seed']:4} {rates}")


def plot(result: Result, path: Path) -> None:
    """Finish rate of each split over the cells."""
    rows = rows_of(result)
    series = {split: [row[split] for row in rows] for split in SPLITS}
    lines(range(len(rows)), series, "cell of the table", "finish rate", path)
