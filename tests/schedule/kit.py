"""Units, timings, profiles and event lists for tests of policies."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hams_schedule.policies.base import Policy
from hams_schedule.policies.clipper import Clipper
from hams_schedule.policies.clockwork import Clockwork
from hams_schedule.policies.deadline import Deadline
from hams_schedule.policies.distribution import Distribution
from hams_schedule.policies.fifo import FifoPolicy
from hams_schedule.policies.measured import SizeTimes
from hams_schedule.policies.nexus import Nexus
from hams_schedule.policies.orloj import Orloj
from hams_schedule.policies.symphony import Symphony
from hams_schedule.profile import Profiles
from hams_schedule.scheduler import SchedulerPort

MAX_ROWS = 8
SHORT_S, LONG_S = 0.020, 0.100


@dataclass(eq=False)
class Work:
    """A unit."""

    due: float = math.inf
    rows: int = 1
    batch_key: str = ""
    attempts: int = 0
    cls: int = 0
    stage: int = 1
    alone: float = SHORT_S


@dataclass
class Took:
    compute_s: float
    total_s: float = 0.0
    ok: bool = True
    weight: float = 1.0


def time_of(alone: float, rows: int) -> float:
    """A model that pads: L = max * (0.75 + 0.25 k)."""
    return alone * (0.75 + 0.25 * rows)


def profiles(seed: int = 1, samples: int = 150, scale: float = 1.0) -> Profiles:
    """Two applications, short and long, with batches of all sizes; all times are `scale` times as long."""
    drawn = random.Random(seed)
    learnt = Profiles()
    for _ in range(samples):
        for app, mean in (("short", SHORT_S), ("long", LONG_S)):
            learnt.classify(app, math.nan)
            learnt.observe_alone(app, math.nan, scale * drawn.gauss(mean, mean / 10))
    learnt.settle()
    classes = {app: learnt.classes.class_of(app, math.nan) for app in ("short", "long")}
    for rows in (2, 3, 4, 6, 8):
        for _ in range(12):
            app = drawn.choice(("short", "long"))
            mean = SHORT_S if app == "short" else LONG_S
            longest = scale * max(drawn.gauss(mean, mean / 10) for _ in range(rows))
            learnt.observe_batch([classes[app]] * rows, rows, time_of(longest, rows), 0.0)
    learnt.settle()
    return learnt


def size_times(seed: int = 2) -> list[list[float]]:
    drawn = random.Random(seed)
    return [
        [
            time_of(max(drawn.gauss(drawn.choice((SHORT_S, LONG_S)), 0.003) for _ in range(rows)), rows)
            for _ in range(40)
        ]
        for rows in range(1, MAX_ROWS + 1)
    ]


POLICIES: dict[str, Callable[[], Policy[Work]]] = {
    "fifo": lambda: FifoPolicy(MAX_ROWS, 0.002),
    "deadline": lambda: Deadline(MAX_ROWS, True, 0.4),
    "deadline-run": lambda: Deadline(MAX_ROWS, False, 0.4),
    "distribution": lambda: Distribution(MAX_ROWS, True, profiles()),
    "distribution-idle": lambda: Distribution(MAX_ROWS, True, profiles(), max_delay_s=0.05),
    "distribution-steps": lambda: Distribution(
        MAX_ROWS, True, profiles(), steps=((0.2, 0.5), (0.1, 0.3), (0.0, 0.2))
    ),
    "distribution-run": lambda: Distribution(MAX_ROWS, False, profiles()),
    "distribution-cold": lambda: Distribution(MAX_ROWS, True, Profiles(prior_p99_s=0.2)),
    "distribution-planned": lambda: Distribution(MAX_ROWS, True, profiles(), on_spot_share=0.0),
    "orloj": lambda: Orloj(MAX_ROWS, SizeTimes(size_times())),
    "orloj-scan": lambda: Orloj(MAX_ROWS, SizeTimes(size_times()), 0.25, scan=True),
    "clipper": lambda: Clipper(MAX_ROWS, size_times(), 3),
    "nexus": lambda: Nexus(MAX_ROWS, SizeTimes(size_times()), 0.3),
    "clockwork": lambda: Clockwork(MAX_ROWS, SizeTimes(size_times()), 0.3),
    "symphony": lambda: Symphony(MAX_ROWS, SizeTimes(size_times())),
}


@dataclass
class Served:
    """What a policy did with a list of events."""

    batches: list[list[Work]] = field(default_factory=list)
    late: list[Work] = field(default_factory=list)
    left_s: list[float] = field(default_factory=list)
    """Of each unit that has run: how long before it was due its batch ended."""


def serve(
    policy: SchedulerPort[Work], arrivals: list[tuple[float, Work]], spoil: Callable[[int], list[Work]]
) -> Served:
    """Run arrivals through a policy in virtual time. `spoil(batch)` are units that stop being READY then.

    The policy is asked as a shell asks it; where `deadline()` says that there is something to do, there
    must be.
    """
    served = Served()
    todo = sorted(arrivals, key=lambda item: item[0])
    starts, ends, running, batch, next_at = 0.0, math.inf, False, 0, 0
    wake, now = math.inf, 0.0
    while True:
        arrives = todo[next_at][0] if next_at < len(todo) else math.inf
        now = max(now, min(arrives, ends, wake))
        if now == math.inf:
            return served
        if ends <= now:
            took, ends, running = now - starts, math.inf, False
            served.left_s += [unit.due - now for unit in served.batches[-1]]
            policy.finished(batch, Took(took, took), now)
        while next_at < len(todo) and todo[next_at][0] <= now:
            policy.add(todo[next_at][1], now)
            next_at += 1
        wake = math.inf
        if not running:
            for unit in policy.late(now):
                unit.stage = 3
                served.late.append(unit)
            units = policy.take(now)
            if units:
                batch += 1
                for unit in units:
                    unit.stage = 2
                served.batches.append(units)
                running, starts = True, now
                ends = now + time_of(max(unit.alone for unit in units), sum(unit.rows for unit in units))
                policy.started(batch, units, now)
                for unit in spoil(batch):
                    if unit.stage == 1:
                        unit.stage = 0
            else:
                wake = policy.deadline()
                assert wake > now, "deadline() has passed, and take() is empty"
        for _ in range(1_000):
            if not policy.plan(now, 0.002):
                break
