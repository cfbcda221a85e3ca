"""One operator in virtual time: the policies that serve, an emulated model, a recorded trace, and no clock.

Events are arrivals, the end of the batch, and what a policy's `deadline()` asks to be woken for.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.workloads import ROWS_MAX, Case, Trace, Worker, draw, p99_s, size_times, worker_of
from hams_schedule.policies.clipper import Clipper
from hams_schedule.policies.clockwork import Clockwork
from hams_schedule.policies.deadline import Deadline
from hams_schedule.policies.distribution import Distribution
from hams_schedule.policies.fifo import FifoPolicy
from hams_schedule.policies.measured import SizeTimes
from hams_schedule.policies.nexus import Nexus
from hams_schedule.policies.orloj import MEAN, Orloj
from hams_schedule.policies.symphony import Symphony
from hams_schedule.profile import Profiles
from hams_schedule.scheduler import SchedulerPort
from hams_schedule.score import RATE
from hams_schedule.serving import guarded

INFORMATION = ("none", "app", "feature", "both")
ORLOJ = {"orloj-mean": MEAN, "orloj-p25": 0.25, "orloj-p50": 0.5, "orloj-p75": 0.75}
BASELINES = ("clipper", "nexus", "clockwork", "symphony")
OURS = "distribution"
GUARDED = "guarded"
"""`distribution` as it serves: another policy takes over where it does better (`hams_schedule.guard`)."""
POLICIES = (OURS, *BASELINES, *ORLOJ, GUARDED, "fifo", "deadline")
PLAN_SLICE_S = 0.002
"""What a shell gives to one call of `plan`."""
PROFILE_SAMPLES = 2_000
"""Stand-alone times that `distribution` starts with; the others are given the times of all batch sizes."""
SIZE_SAMPLES = 400
BATCH_SAMPLES = 20


class Request:
    """A unit of a trace."""

    __slots__ = ("alone", "attempts", "batch_key", "cls", "due", "number", "rows", "stage")

    def __init__(self, number: int, alone: float, cls: int, due: float) -> None:
        self.number = number
        self.alone = alone
        self.cls = cls
        self.due = due
        self.rows = 1
        self.batch_key = ""
        self.attempts = 0
        self.stage = 1


@dataclass(frozen=True)
class Measured:
    """The time of a batch."""

    compute_s: float
    total_s: float
    ok: bool = True
    weight: float = 1.0


@dataclass
class Outcome:
    """What became of a trace: for each request whether it was in time. `refused`: how many were not let in;
    `shed_after_s`: how long after their arrival the others were told that are not run."""

    on_time: list[bool]
    batches: int = 0
    busy_s: float = 0.0
    refused: int = 0
    shed_after_s: list[float] = field(default_factory=list)

    def rate(self) -> float:
        """The finish rate."""
        return sum(self.on_time) / len(self.on_time)


def known(information: str, app: int, feature: float) -> tuple[str, float]:
    """What a policy may know of a request."""
    return (
        str(app) if information in ("app", "both") else "",
        feature if information in ("feature", "both") else math.nan,
    )


def profiles_of(case: Case, information: str, seed: int, samples: int = PROFILE_SAMPLES) -> Profiles:
    """A profile learnt beforehand: stand-alone times, and batches of the sizes that are considered."""
    profiles = Profiles()
    if samples:
        teach(profiles, case, information, seed, samples)
    return profiles


def teach(
    profiles: Profiles, case: Case, information: str, seed: int, samples: int = PROFILE_SAMPLES
) -> None:
    """Have a profile learn a case."""
    random = np.random.default_rng([seed, 77])
    worker = worker_of(case)
    times, apps = draw(case, random, samples)
    features = times * np.exp(random.normal(0.0, 0.05, samples))
    for time, app, feature in zip(times, apps, features, strict=True):
        name, value = known(information, int(app), float(feature))
        profiles.classify(name, value)
        profiles.observe_alone(name, value, worker.run([float(time)], float(np.exp(random.normal(0, 0.01)))))
    while profiles.refresh(force=True):
        pass
    for rows in (2, 3, 4, 6, 8, 12, 16, 24, 32):
        for _ in range(BATCH_SAMPLES):
            alone, apps = draw(case, random, rows)
            members = [
                profiles.classes.class_of(*known(information, int(app), float(time)))
                for app, time in zip(apps, alone, strict=True)
            ]
            took = worker.run([float(time) for time in alone], float(np.exp(random.normal(0, 0.01))))
            profiles.observe_batch(members, rows, took, 0.0)
    profiles.settle()


def policy_of(
    name: str, case: Case, slo_s: float, profiles: Profiles, seed: int, orloj_rate: float = RATE
) -> SchedulerPort[Request]:
    """A policy with what it has measured beforehand. `orloj_rate`: Orloj's b, per second."""
    if name == GUARDED:
        return guarded(ROWS_MAX, True, profiles, max_delay_s=slo_s)
    if name == OURS:
        return Distribution(ROWS_MAX, True, profiles, max_delay_s=slo_s)
    if name == "fifo":
        return FifoPolicy(ROWS_MAX)
    times = size_times(case, np.random.default_rng([seed, 78]), SIZE_SAMPLES)
    if name == "deadline":
        deadline: Deadline[Request] = Deadline(ROWS_MAX, True)
        for rows, of_size in enumerate(times, 1):
            for time in of_size[:8]:
                deadline.times.observe(rows, time)
        return deadline
    if name == "clipper":
        return Clipper(ROWS_MAX, times, seed)
    if name == "nexus":
        return Nexus(ROWS_MAX, SizeTimes(times), slo_s)
    if name == "clockwork":
        return Clockwork(ROWS_MAX, SizeTimes(times), slo_s)
    if name == "symphony":
        return Symphony(ROWS_MAX, SizeTimes(times))
    return Orloj(ROWS_MAX, SizeTimes(times), ORLOJ[name], orloj_rate)


def served_policy(name: str, max_rows: int, profiles: Profiles) -> SchedulerPort[Request]:
    """A policy as an operator without state is served by it: it has measured nothing beforehand."""
    if name == "fifo":
        return FifoPolicy(max_rows)
    return guarded(max_rows, True, profiles) if name == OURS else Deadline(max_rows, True)


class Door:
    """Where requests come in. This one lets all of them in."""

    def admits(self, unit: Request, now: float) -> bool:
        """Whether a request that comes now is served."""
        return True

    def ended(self, unit: Request, now: float, *, shed: bool) -> None:
        """It was answered, or told that it is not run."""


OPEN = Door()


@dataclass(frozen=True)
class ModelOutage:
    """The model is lost at `at`, with the batch that it runs; another one takes over after `length_s`."""

    at: float
    length_s: float


OUTAGE_P99S, BETWEEN_P99S = 2.0, 60.0
"""The length of an outage, and the time from one to the next, in P99s of the stand-alone time."""


def outages_of(case: Case, trace: Trace) -> list[ModelOutage]:
    """Outages at regular distances, until the trace ends."""
    p99 = p99_s(case)
    count = int(trace.arrivals[-1] / (BETWEEN_P99S * p99))
    return [ModelOutage(BETWEEN_P99S * p99 * number, OUTAGE_P99S * p99) for number in range(1, count + 1)]


def _lose(
    policy: SchedulerPort[Request], batch: int, running: list[Request], starts: float, now: float
) -> None:
    """The batch that runs is lost, if there is one, and its units wait again."""
    if running:
        policy.finished(batch, Measured(0.0, now - starts, ok=False), now)
    for unit in running:
        policy.add(unit, now)


def _shed(policy: SchedulerPort[Request], outcome: Outcome, trace: Trace, door: Door, now: float) -> None:
    """Tell those who are not run."""
    for unit in policy.late(now):
        outcome.shed_after_s.append(now - trace.arrivals[unit.number])
        door.ended(unit, now, shed=True)


def run(
    policy: SchedulerPort[Request],
    trace: Trace,
    worker: Worker,
    slo_s: float,
    classify: Callable[[int, float], int],
    door: Door = OPEN,
    outages: Sequence[ModelOutage] = (),
) -> Outcome:
    """Serve a trace to its end."""
    arrivals, count = trace.arrivals, len(trace.arrivals)
    outcome = Outcome([False] * count)
    next_arrival, starts, ends, batch = 0, 0.0, math.inf, 0
    running: list[Request] = []
    wake, next_outage, back = math.inf, 0, -math.inf
    while True:
        arrives = arrivals[next_arrival] if next_arrival < count else math.inf
        fails = outages[next_outage].at if next_outage < len(outages) else math.inf
        now = min(arrives, ends, wake, fails)
        if now == math.inf:
            return outcome
        if fails <= now and ends > now:
            back, next_outage = now + outages[next_outage].length_s, next_outage + 1
            _lose(policy, batch, running, starts, now)
            ends, running = math.inf, []
        if ends <= now:
            took = now - starts
            for unit in running:
                outcome.on_time[unit.number] = now <= unit.due
                door.ended(unit, now, shed=False)
            ends, running = math.inf, []
            policy.finished(batch, Measured(took, took), now)
        while next_arrival < count and arrivals[next_arrival] <= now:
            cls = classify(trace.apps[next_arrival], trace.features[next_arrival])
            unit = Request(next_arrival, trace.alone[next_arrival], cls, now + slo_s)
            next_arrival += 1
            if door.admits(unit, now):
                policy.add(unit, now)
            else:
                outcome.refused += 1
        wake = math.inf
        if now < back:
            wake = back
        elif not running:
            _shed(policy, outcome, trace, door, now)
            running = policy.take(now)
            if running:
                batch += 1
                took = worker.run([unit.alone for unit in running], trace.jitter[batch % count])
                starts, ends = now, now + took
                outcome.batches += 1
                outcome.busy_s += took
                policy.started(batch, running, now)
            else:
                wake = policy.deadline()
                if wake <= now:
                    raise AssertionError(f"{type(policy).__name__} has work and takes none at {now}")
        if running:
            while policy.plan(now, PLAN_SLICE_S):
                pass
