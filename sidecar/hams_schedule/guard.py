"""Never worse than the simple policies: the newest traffic is replayed under the learnt law, and a policy
that wins takes over.

What nobody foresaw is covered by this, and only this. A round replays the same units through each policy in
virtual time, in slices of `plan`. Another policy takes over if it wins three of the last four rounds by
more than 1.5 standard errors, paired by request; at most once per `guard_switch_s`, so that nothing flaps.
"""

import math
import random
from collections import deque
from collections.abc import Callable
from typing import Final, Generic

from hams_schedule.classes import REST
from hams_schedule.limits import (
    guard_arrivals_min,
    guard_plan_s,
    guard_round_s,
    guard_slice_events,
    guard_switch_s,
    guard_units_max,
    guard_window_s,
)
from hams_schedule.policies.base import Policy, measured_s
from hams_schedule.profile import Profiles
from hams_schedule.scheduler import READY, BatchTiming, U
from hams_schedule.steps import AT_ONCE, Steps, worth

ROUNDS: Final = 4
"""Rounds that are remembered."""
WINS: Final = 3
"""Rounds of those that a policy has to win."""
ERRORS: Final = 1.5
"""Standard errors by which a round is won."""


class Pace:
    """How fast the guard judges: seconds between two rounds, and between two switches (but for the first).

    `arrivals_min`: what a round needs; `errors`: the standard errors by which it is won; `wins`: how many of
    the last `ROUNDS` a policy has to win.
    """

    __slots__ = ("arrivals_min", "errors", "round_s", "switch_s", "wins")

    def __init__(
        self,
        round_s: float = guard_round_s,
        switch_s: float = guard_switch_s,
        arrivals_min: int = guard_arrivals_min,
        errors: float = ERRORS,
        wins: int = WINS,
    ) -> None:
        self.round_s = round_s
        self.switch_s = switch_s
        self.arrivals_min = arrivals_min
        self.errors = errors
        self.wins = wins


class Shadow:
    """A unit of a replay: a real one's arrival, budget and class, and a time drawn from the law."""

    __slots__ = ("alone", "at", "attempts", "batch_key", "cls", "due", "rows", "stage")

    def __init__(self, at: float, cls: int, rows: int, due: float, alone: float) -> None:
        self.at = at
        self.cls = cls
        self.rows = rows
        self.due = due
        self.alone = alone
        self.batch_key = 0
        self.attempts = 0
        self.stage = READY


class ShadowTiming:
    """The time of a replayed batch."""

    __slots__ = ("compute_s", "ok", "total_s", "weight")

    def __init__(self, seconds: float) -> None:
        self.compute_s = seconds
        self.total_s = seconds
        self.ok = True
        self.weight = 1.0


Factory = Callable[[], Policy[Shadow]]
"""Makes a policy for one replay. It must not teach the profiles that serve."""


class Replay:
    """One policy serving the shadows, a few events at a time."""

    def __init__(
        self, policy: Policy[Shadow], shadows: list[Shadow], profiles: Profiles, steps: Steps = AT_ONCE
    ) -> None:
        self._policy = policy
        self._steps = steps
        self._shadows = shadows
        self._profiles = profiles
        self._next = 0
        self._ends = math.inf
        self._wake = math.inf
        self._now = -math.inf
        self._batch = 0
        self._running: list[Shadow] = []
        self._took = 0.0
        self.on_time: dict[int, float] = {}
        """What the answer of each shadow that was in time is worth, 1 at most, by its place among them."""
        self._place = {id(shadow): place for place, shadow in enumerate(shadows)}

    def step(self) -> bool:
        """Handle the next event; whether there was one."""
        arrives = self._shadows[self._next].at if self._next < len(self._shadows) else math.inf
        now = max(self._now, min(arrives, self._ends, self._wake))
        if now == math.inf:
            return False
        self._now = now
        if self._ends <= now:
            rest = self._profiles.rest.medians
            for shadow in self._running:
                left = shadow.due - rest.get(shadow.cls, 0.0) - now
                if left >= 0.0:
                    self.on_time[self._place[id(shadow)]] = worth(self._steps, left)
            self._ends, self._running = math.inf, []
            self._policy.finished(self._batch, ShadowTiming(self._took), now)
        while self._next < len(self._shadows) and self._shadows[self._next].at <= now:
            self._policy.add(self._shadows[self._next], now)
            self._next += 1
        self._wake = math.inf
        if not self._running:
            self._policy.late(now)
            self._running = self._policy.take(now)
            if self._running:
                self._start(now)
            else:
                self._wake = self._policy.deadline()
                return self._wake > now or self._wake == math.inf
        return True

    def _start(self, now: float) -> None:
        rows = sum([shadow.rows for shadow in self._running])
        base, slope = self._profiles.times.law(rows)
        self._took = max(base + slope * max([shadow.alone for shadow in self._running]), 1e-9)
        self._ends = now + self._took
        self._batch += 1
        self._policy.started(self._batch, self._running, now)
        self._policy.plan(now, guard_plan_s)


class Round:
    """The same shadows through all policies, one policy after the other."""

    def __init__(
        self,
        factories: dict[str, Factory],
        arrivals: list["Arrival"],
        profiles: Profiles,
        seed: int,
        steps: Steps = AT_ONCE,
    ) -> None:
        self._steps = steps
        self._factories = factories
        self._arrivals = arrivals
        self._profiles = profiles
        self._alone = alone_times(arrivals, profiles, seed)
        # Those of this moment: all policies are judged by the same ones.
        self._weights = [profiles.weights.get(arrival.cls, 1.0) for arrival in arrivals]
        self._replays: dict[str, Replay] = {}
        self._left = list(factories)
        self._open: Replay | None = None

    def step(self, events: int) -> bool:
        """Make a policy ready, or handle `events` events; whether there are more."""
        if self._open is None:
            if not self._left:
                return False
            name = self._left.pop()
            shadows = shadows_of(self._arrivals, self._alone)
            policy = self._factories[name]()
            self._open = self._replays[name] = Replay(policy, shadows, self._profiles, self._steps)
            return True
        for _ in range(events):
            if not self._open.step():
                self._open = None
                return bool(self._left)
        return True

    def winner(self, serving: str, errors: float) -> str:
        """The policy whose answers in time are worth more than those of the serving one, by so many standard
        errors; that one if there is none. An answer weighs what missing one of its class costs."""
        best, most = serving, 0.0
        ours, count = self._replays[serving].on_time, len(self._weights)
        for name, replay in self._replays.items():
            theirs = replay.on_time
            gains = [
                weight * (theirs.get(place, 0.0) - ours.get(place, 0.0))
                for place, weight in enumerate(self._weights)
            ]
            mean = sum(gains) / count
            sd = math.sqrt(sum([(gain - mean) ** 2 for gain in gains]) / count)
            if mean > most and mean > errors * sd / math.sqrt(count):
                best, most = name, mean
        return best


class Arrival:
    """What is remembered of a unit."""

    __slots__ = ("at", "budget", "cls", "rows")

    def __init__(self, at: float, budget: float, cls: int, rows: int) -> None:
        self.at = at
        self.budget = budget
        self.cls = cls
        self.rows = rows


def alone_times(arrivals: list[Arrival], profiles: Profiles, seed: int) -> list[float]:
    """A stand-alone time for each arrival, drawn from the law of its class: the same draws for the same
    seed."""
    drawn = random.Random(seed)
    cdfs, grid = profiles.cdfs(), profiles.grid
    assert grid is not None
    return [grid.quantile(cdfs.get(arrival.cls, cdfs[REST]), drawn.random()) for arrival in arrivals]


def shadows_of(arrivals: list[Arrival], alone: list[float]) -> list[Shadow]:
    """Shadows for one policy: they carry their stage."""
    return [
        Shadow(arrival.at, arrival.cls, arrival.rows, arrival.at + arrival.budget, time)
        for arrival, time in zip(arrivals, alone, strict=True)
    ]


class Guarded(Generic[U]):
    """A `Scheduler` that serves by one of several policies.

    `serving` makes them for real units, `shadows` for replays, under the same names; the first of `serving`
    begins, and is the one that teaches the profiles.
    """

    def __init__(
        self,
        serving: dict[str, Callable[[], Policy[U]]],
        shadows: dict[str, Factory],
        profiles: Profiles,
        seed: int,
        pace: Pace,
        steps: Steps = AT_ONCE,
    ) -> None:
        self._steps = steps
        self.name = next(iter(serving))
        self.switches = 0
        self._pace = pace
        self._serving = serving
        self._shadows = shadows
        self._profiles = profiles
        self._seed = seed
        self._policy = serving[self.name]()
        self._teaches = self.name
        self._running: list[U] = []
        self._arrivals: deque[Arrival] = deque(maxlen=guard_units_max)
        self._round: Round | None = None
        self._next_round = -math.inf
        self._winners: deque[str] = deque(maxlen=ROUNDS)
        self._switched_at = -math.inf

    def __len__(self) -> int:
        return len(self._policy)

    @property
    def serves(self) -> Policy[U]:
        """The policy that serves now."""
        return self._policy

    def add(self, unit: U, now: float) -> None:
        """Queue a ready unit, and remember its arrival."""
        if unit.due < math.inf:
            self._arrivals.append(Arrival(now, unit.due - now, unit.cls, unit.rows))
        self._policy.add(unit, now)

    def add_first(self, unit: U, now: float) -> None:
        """Queue a unit before all others."""
        self._policy.add_first(unit, now)

    def take(self, now: float) -> list[U]:
        """The serving policy's batch."""
        return self._policy.take(now)

    def late(self, now: float) -> list[U]:
        """The serving policy's late units."""
        return self._policy.late(now)

    def deadline(self) -> float:
        """The serving policy's."""
        return self._policy.deadline()

    def started(self, batch: int, units: list[U], now: float) -> None:
        """The model runs `units`."""
        self._running = units
        self._policy.started(batch, units, now)

    def finished(self, batch: int, timing: BatchTiming, now: float) -> None:
        """The run has ended. Laws are learnt from it whichever policy serves."""
        self._policy.finished(batch, timing, now)
        units, self._running = self._running, []
        if self.name != self._teaches and timing.ok and timing.weight > 0.0 and units:
            rows = sum([unit.rows for unit in units])
            classes, seconds = [unit.cls for unit in units], measured_s(timing)
            self._profiles.observe_batch(classes, rows, seconds, now, timing.weight)

    def plan(self, now: float, budget_s: float) -> bool:
        """The serving policy's plan first, then a slice of a round."""
        if self._policy.plan(now, budget_s) or self._profiles.refresh():
            return True
        if self._round is None:
            return self._begin(now)
        if self._round.step(guard_slice_events):
            return True
        self._winners.append(self._round.winner(self.name, self._pace.errors))
        self._round = None
        self._judge(now)
        return False

    def clear(self) -> None:
        """Forget all units."""
        self._policy.clear()

    def budget_s(self) -> float:
        """What most of the newest requests had left as they came: their median; 0 of none."""
        budgets = sorted([arrival.budget for arrival in self._arrivals])
        return budgets[len(budgets) // 2] if budgets else 0.0

    def _begin(self, now: float) -> bool:
        """Begin a round, if it is time for one."""
        if now < self._next_round or not self._profiles.cdfs():
            return False
        self._next_round = now + self._pace.round_s
        arrivals = [arrival for arrival in self._arrivals if arrival.at > now - guard_window_s]
        if len(arrivals) < self._pace.arrivals_min:
            return False
        self._seed += 1
        self._round = Round(self._shadows, arrivals, self._profiles, self._seed, self._steps)
        return True

    def _judge(self, now: float) -> None:
        """Switch if another policy has won often enough. What runs is not touched; what waits goes along."""
        best = max(self._serving, key=self._wins)
        if (
            best == self.name
            or self._wins(best) < self._pace.wins
            or now < self._switched_at + self._pace.switch_s
        ):
            return
        self.name = best
        self.switches += 1
        self._switched_at = now
        self._winners.clear()
        waiting = self._policy.units()
        self._policy.clear()  # the first one comes back, perhaps, and must not remember them
        self._policy = self._serving[best]()
        for unit in waiting:
            if unit.stage == READY:
                self._policy.add(unit, now)

    def _wins(self, name: str) -> int:
        return sum([winner == name for winner in self._winners])
