"""Policy of Clipper (Crankshaw et al., NSDI 2017), to be compared with: sizes explored, then a regression."""

import math
import random
from collections import deque

from hams_schedule.pending import Span
from hams_schedule.policies.base import Policy, RunningBatch, fit, measured_s, overdue
from hams_schedule.scheduler import BatchTiming, U

PATIENCE = 0.92
"""Share of the head's slack that a batch may take."""
NEWEST = 30
"""Times of one size that the regression sees."""
EXPLORED_MIN = 5
"""Samples of a size before exploration goes on."""
ADDITIVE_MAX = 10
"""Size below which exploration adds one row."""


class Clipper(Policy[U]):
    """The batch that the head's slack allows, by a linear fit of time over size with three standard
    deviations."""

    def __init__(self, max_rows: int, times: list[list[float]], seed: int) -> None:
        """`times[k - 1]`: times of batches of k rows that were measured beforehand, or none."""
        super().__init__(max_rows, by_class=False)
        self._random = random.Random(seed)
        self._newest: dict[int, deque[float]] = {}
        self._means: dict[int, float] = {}
        self._squares: dict[int, float] = {}
        """By size, the sum of squares around the mean."""
        self._explore = 1
        self._longest_s = 0.0
        self._line = (0.0, 0.0, 0.0)
        for rows, of_size in enumerate(times, 1):
            if of_size:
                self._observe(rows, of_size[-NEWEST:])
        self._refit()

    def _hopeless(self, now: float) -> list[Span[U]]:
        return overdue(self.pending.all_lines(), now)

    def _choose(self, now: float) -> list[Span[U]]:
        line = self.pending.earliest()
        if line is None:
            return []
        size = self._size(PATIENCE * (line.dues[0] - now))
        return [Span(line, 0, fit(line.rows, 0, size, self.max_rows))]

    def _size(self, budget_s: float) -> int:
        if budget_s > self._longest_s and self._explore < self.max_rows:
            if len(self._newest.get(self._explore, ())) >= EXPLORED_MIN:
                if self._explore < ADDITIVE_MAX:
                    self._explore += 1
                else:
                    grown = self._explore * (1.0 + self._random.gauss(0.1, 0.05))
                    self._explore = min(max(int(grown), self._explore), self.max_rows)
            return self._explore
        base, slope, sd = self._line
        if slope <= 0.0:
            return 1
        return max(int(min((budget_s - base - 3.0 * sd) / slope, self.max_rows)), 1)

    def _learn(self, running: RunningBatch[U], timing: BatchTiming) -> None:
        self._observe(sum(unit.rows for unit in running.units), [measured_s(timing)])
        self._refit()

    def _observe(self, rows: int, times: list[float]) -> None:
        newest = self._newest.setdefault(rows, deque(maxlen=NEWEST))
        newest.extend(times)
        mean = sum(newest) / len(newest)
        self._means[rows] = mean
        self._squares[rows] = sum([(one - mean) ** 2 for one in newest])
        self._longest_s = max(self._longest_s, *times)

    def _refit(self) -> None:
        """Least squares over the means of sizes; the pooled deviation inside them."""
        if not self._newest:
            return
        count = len(self._means)
        middle, level = sum(self._means) / count, sum(self._means.values()) / count
        spread, joint = 0.0, 0.0
        for rows, mean in self._means.items():
            spread += (rows - middle) ** 2
            joint += (rows - middle) * (mean - level)
        slope = joint / spread if spread > 0.0 else level / middle
        samples = sum([len(newest) for newest in self._newest.values()])
        sd = math.sqrt(sum(self._squares.values()) / samples)
        self._line = (level - slope * middle, slope, sd)
