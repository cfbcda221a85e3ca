"""Roll-outs: what becomes of the rest of a queue under a simple base policy, in virtual time with mean times.

The rollout algorithm (Bertsekas, Tsitsiklis and Wu, 1997): one step of improvement over the base policies.
Expected arrivals are those of the last window, shifted by one window: measured, no model of traffic.
"""

from bisect import bisect_left
from collections import deque
from typing import Final

from hams_schedule.limits import plan_arrivals_max
from hams_schedule.steps import AT_ONCE, Steps
from hams_schedule.tables import TimeTables

RATE: Final = 0
"""Base: the class with the most units per second."""
EDF: Final = 1
"""Base: the class whose earliest unit has the least slack."""
CHANCE: Final = 0.8
"""What one unit of a rolled-out batch counts: some will be late."""
RATE_ARRIVALS: Final = 32
"""Arrivals from which a rate is taken."""
UNREACHED: Final = 1e300


class Outcome:
    """Expected completions, units lost on the way, and what the roll-out cost in steps of one class."""

    __slots__ = ("completed", "lost", "steps")

    def __init__(self, completed: float, lost: int, steps: int) -> None:
        self.completed = completed
        self.lost = lost
        self.steps = steps


class Arrivals:
    """The newest arrivals: (instant, class, budget in seconds)."""

    def __init__(self) -> None:
        self._newest: deque[tuple[float, int, float]] = deque(maxlen=plan_arrivals_max)

    def add(self, at: float, cls: int, budget: float) -> None:
        """A unit has arrived; one without a deadline tells nothing about windows."""
        if 0.0 < budget < UNREACHED:
            self._newest.append((at, cls, budget))

    def window(self, now: float) -> float:
        """How far ahead a roll-out sees: the longest budget of the newest arrivals, or less if so many came
        that they do not reach back that far."""
        if not self._newest:
            return 0.0
        window = max([budget for _, _, budget in self._newest])
        if len(self._newest) == plan_arrivals_max:
            window = min(window, max(now - self._newest[0][0], 0.0))
        return window

    def rate(self, now: float) -> float:
        """Arrivals per second, from the newest `RATE_ARRIVALS`; 0 if there are too few."""
        count = min(len(self._newest), RATE_ARRIVALS)
        since = now - self._newest[-count][0] if count > 1 else 0.0
        return (count - 1) / since if since > 0.0 else 0.0

    def expected(self, now: float, window: float) -> list[tuple[float, int, float]]:
        """Arrivals of the coming window: those of the last one, shifted; (instant, class, due)."""
        return [
            (at + window, cls, at + window + budget) for at, cls, budget in self._newest if at > now - window
        ]


class Future:
    """By rank, the dues of the units that wait and then of those expected, and the instants they are there.

    An expected unit is taken to be due no earlier than those of its rank that wait: so a unit's place among
    those that wait is its place here, and each list ascends.
    """

    def __init__(
        self,
        by_rank: list[list[float]],
        tables: TimeTables,
        arrivals: list[tuple[float, int, float]],
        rest: dict[int, float],
    ) -> None:
        self.dues: list[list[float]] = []
        self.since: list[list[float]] = []
        coming: list[list[tuple[float, float]]] = [[] for _ in by_rank]
        for at, cls, due in arrivals:
            coming[tables.rank_of(cls)].append((due - rest.get(cls, 0.0), at))
        for waiting, later in zip(by_rank, coming, strict=True):
            later.sort()
            last = waiting[-1] if waiting else -UNREACHED
            self.dues.append(waiting + [max(due, last) for due, _ in later])
            self.since.append([-UNREACHED] * len(waiting) + [at for _, at in later])

    def without(self, lows: list[int], counts: list[int]) -> tuple[list[list[float]], list[list[float]]]:
        """`dues` and `since` after `counts[rank]` units from `lows[rank]` on have been taken."""
        dues, since = self.dues[:], self.since[:]
        for rank, count in enumerate(counts):
            if count:
                low, high = lows[rank], lows[rank] + count
                dues[rank] = dues[rank][:low] + dues[rank][high:]
                since[rank] = since[rank][:low] + since[rank][high:]
        return dues, since


def best_sizes(tables: TimeTables, window: float) -> list[int]:
    """By rank, the rows with the most units per second whose batch takes half a window at most."""
    best: list[int] = []
    for expected in tables.expected:
        chosen, rate = 1, 0.0
        for size in tables.sizes:
            if size > 1 and (expected[size] > window / 2.0 or not tables.known[size]):
                break
            if size / expected[size] > rate:
                chosen, rate = size, size / expected[size]
        best.append(chosen)
    return best


def missed(dues: list[float], low: int, high: int, limit: float, steps: Steps) -> tuple[float, int]:
    """Of the units [low, high) of a batch, those that cannot make steps of cost due before `limit`: what they
    lose of their worth, and how many miss a step."""
    parts, most = 0.0, 0
    for before, share in steps:
        late = bisect_left(dues, limit + before, low, high) - low
        parts += share * late
        most = max(most, late)
    return parts, most


def rollout(
    dues: list[list[float]],
    since: list[list[float]],
    tables: TimeTables,
    targets: list[int],
    base: int,
    now: float,
    until: float,
    steps_of_cost: Steps = AT_ONCE,
) -> Outcome:
    """Run a base policy from `now` on, at most to `until`. What misses a step of cost completes in part."""
    heads, tails = [0] * len(dues), [0] * len(dues)
    completed, lost, steps = 0.0, 0, 0
    lanes = [rank for rank, due in enumerate(dues) if due]
    middles, by_rate = tables.middles, base == RATE
    while now < until and lanes:
        best, best_worth, best_rows, next_at = -1, -UNREACHED, 0, UNREACHED
        steps += len(lanes)
        for rank in lanes:
            due, there = dues[rank], since[rank]
            count = len(due)
            head, tail = heads[rank], tails[rank]
            while tail < count and there[tail] <= now:
                tail += 1
            tails[rank] = tail
            if tail < count and there[tail] < next_at:
                next_at = there[tail]
            quantile = middles[rank]
            limit = now + quantile[1]
            while head < tail and due[head] < limit:
                head += 1
                lost += 1
            heads[rank] = head
            rows = min(targets[rank], tail - head)
            if rows <= 0:
                continue
            if rows > 1 and due[head] < now + quantile[rows]:
                rows = min(rows, max(tail - bisect_left(due, now + quantile[rows], head, tail), 1))
            expected = tables.expected[rank]
            worth = rows / expected[rows] if by_rate else expected[1] - due[head]
            if worth > best_worth:
                best, best_worth, best_rows = rank, worth, rows
        if best < 0:
            now = next_at
            continue
        due, tail = dues[best], tails[best]
        limit = now + middles[best][best_rows]
        begin = min(bisect_left(due, limit, heads[best], tail), tail - best_rows)
        lost += begin - heads[best]
        heads[best] = begin + best_rows
        completed += CHANCE * best_rows
        if len(steps_of_cost) > 1:
            parts, late = missed(due, begin, begin + best_rows, limit, steps_of_cost)
            completed -= CHANCE * parts
            lost += late
        if heads[best] == len(due):
            lanes.remove(best)
        now += tables.expected[best][best_rows]
    return Outcome(completed, lost, steps)
