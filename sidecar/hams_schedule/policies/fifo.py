"""Policy `Fifo`: in order of arrival, as many as fit, after waiting at most `max_delay_s` for company.

What an operator does by default, here to be compared with and to stand in for a policy that failed.
"""

import math
from collections import deque

from hams_schedule.policies.base import Policy
from hams_schedule.scheduler import READY, U


class FifoPolicy(Policy[U]):
    """First come, first served. Times and deadlines play no part."""

    def __init__(self, max_rows: int, max_delay_s: float = 0.0) -> None:
        super().__init__(max_rows, by_class=False)
        self._max_delay_s = max_delay_s
        self._queue: deque[tuple[U, float]] = deque()

    def __len__(self) -> int:
        return len(self._queue) + super().__len__()

    def add(self, unit: U, now: float) -> None:
        """Queue a ready unit."""
        self.now = now
        if unit.attempts > 0:
            self.pending.add(unit, now)
        else:
            self._queue.append((unit, now))

    def take(self, now: float) -> list[U]:
        """The oldest units that share a batch; none while they may wait for company."""
        self.now = now
        first = self.pending.first(self.max_rows)
        if first:
            return first
        self._skip()
        if not self._queue:
            return []
        head, since = self._queue[0]
        if now < since + self._max_delay_s and not self._is_full(head):
            return []
        batch: list[U] = []
        rest: deque[tuple[U, float]] = deque()
        rows, full = 0, False
        while self._queue and not full:
            unit, added = self._queue.popleft()
            if unit.stage != READY:
                continue
            if unit.batch_key != head.batch_key:
                rest.append((unit, added))
            elif batch and rows + unit.rows > self.max_rows:
                rest.append((unit, added))
                full = True
            else:
                batch.append(unit)
                rows += unit.rows
                full = rows >= self.max_rows
        rest.extend(self._queue)
        self._queue = rest
        return batch

    def deadline(self) -> float:
        """When the oldest unit has waited long enough."""
        if self.pending.has_ready():
            return self.now
        self._skip()
        return self._queue[0][1] + self._max_delay_s if self._queue else math.inf

    def units(self) -> list[U]:
        """All units that wait here."""
        return super().units() + [unit for unit, _ in self._queue]

    def clear(self) -> None:
        """Forget all units."""
        super().clear()
        self._queue.clear()

    def _is_full(self, head: U) -> bool:
        """Whether the head's batch has no room for one more of those that wait."""
        rows = 0
        for unit, _ in self._queue:
            if unit.stage == READY and unit.batch_key == head.batch_key:
                rows += unit.rows
                if rows >= self.max_rows:
                    return True
        return False

    def _skip(self) -> None:
        while self._queue and self._queue[0][0].stage != READY:
            self._queue.popleft()
