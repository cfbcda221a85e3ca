"""How fast a machine is beside the one that a profile was learnt on: another GPU, another processor.

Whoever takes a stored profile over compares its first batches with what they were expected to take. Where all
of them are off by one factor, the whole profile is scaled at once, and need not be learnt anew batch by
batch."""

import math
from typing import Final

from hams_schedule.limits import speed_batches_max, speed_batches_min

SAME: Final = math.log(1.1)
"""A machine that differs by less is the same: learning as usual follows it."""
SURE: Final = 3.0
"""Standard errors by which the median has to be off."""
DEVIATION: Final = 1.4826
"""Of a normal law, by the median of the absolute deviations."""
OF_MEDIAN: Final = 1.2533
"""Its standard error, in deviations over the root of how many there are."""
DEVIATION_MIN: Final = 0.02
FACTOR_MAX: Final = 100.0
"""A profile that is further off is of something else."""


class FirstBatch:
    """A batch that is learnt once the speed is known."""

    __slots__ = ("members", "now", "rows", "time", "weight")

    def __init__(self, members: list[int], rows: int, time: float, now: float, weight: float) -> None:
        self.members = members
        self.rows = rows
        self.time = time
        self.now = now
        self.weight = weight


class Speed:
    """The first batches after a profile was taken over. `factor`: by how much they took longer, once it is
    known; 1 if that is nothing."""

    def __init__(self) -> None:
        self.held: list[FirstBatch] = []
        self.factor = 0.0
        self._logs: list[float] = []

    def add(self, batch: FirstBatch, expected_s: float) -> bool:
        """A batch that was expected to take `expected_s`, 0: nothing is known of it. Whether the speed is
        known now."""
        self.held.append(batch)
        if expected_s > 0.0 and batch.weight == 1.0:
            self._logs.append(math.log(batch.time / expected_s))
        self.factor = self._judged()
        return self.factor > 0.0

    def leave(self, classes: set[int]) -> None:
        """Others have these classes now."""
        self.held = [batch for batch in self.held if not classes.intersection(batch.members)]

    def _judged(self) -> float:
        count, last = len(self._logs), len(self.held) >= speed_batches_max
        if count < speed_batches_min:
            return 1.0 if last else 0.0
        median = middle(self._logs)
        deviation = max(DEVIATION * middle([abs(log - median) for log in self._logs]), DEVIATION_MIN)
        error = SURE * OF_MEDIAN * deviation / math.sqrt(count)
        if abs(median) > max(SAME, error):
            return math.exp(median) if abs(median) < math.log(FACTOR_MAX) else 1.0
        return 1.0 if last or abs(median) + error < SAME else 0.0


def middle(values: list[float]) -> float:
    """The median."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2.0
