"""Policy of Symphony (Chen et al., arXiv 2308.07470), to be compared with: batches deferred until they must
run."""

import math

from hams_schedule.pending import ClassLine, Span
from hams_schedule.policies.base import Policy, fit, overdue
from hams_schedule.policies.measured import SizeTimes
from hams_schedule.scheduler import READY, U


class Symphony(Policy[U]):
    """Takes the largest prefix that its head can wait for, when one more member could not make it any
    more."""

    def __init__(self, max_rows: int, times: SizeTimes) -> None:
        super().__init__(max_rows, by_class=False)
        self._times = times

    def deadline(self) -> float:
        """When the batch of the earliest head must run, or could lose its head."""
        if any(unit.stage == READY for unit in self.pending.waiting_first()):
            return self.now
        if not self.pending.has_ready():
            return math.inf
        return min([self._latest_start(line) for line in self.pending.all_lines()], default=math.inf)

    def _hopeless(self, now: float) -> list[Span[U]]:
        return overdue(self.pending.all_lines(), now + self._times.cautious(1))

    def _choose(self, now: float) -> list[Span[U]]:
        due = self._due(now)
        if not due:
            self.pending.retain_ready()  # a head that is READY no more must not make the others wait
            due = self._due(now)
        if not due:
            return []
        line = min(due, key=_head)
        return [Span(line, 0, self._prefix(line, now))]

    def _due(self, now: float) -> list[ClassLine[U]]:
        return [line for line in self.pending.all_lines() if self._latest_start(line) <= now]

    def _prefix(self, line: ClassLine[U], now: float) -> int:
        """The largest prefix that is in time for its head, one at least."""
        rows = min(self._times.largest_within(line.dues[0] - now), self.max_rows)
        return fit(line.rows, 0, rows, self.max_rows)

    def _latest_start(self, line: ClassLine[U]) -> float:
        """The instant at which one more member could not make it any more."""
        rows = min(len(line.dues), self.max_rows)
        if rows == self.max_rows or line.dues[0] == math.inf:
            return -math.inf
        return line.dues[0] - self._times.cautious(rows + 1)


def _head(line: ClassLine[U]) -> float:
    return line.dues[0]
