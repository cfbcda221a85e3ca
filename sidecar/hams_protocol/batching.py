"""Which ready units form the next batch. First in, first out; the rows of a unit stay together.

The seam for scheduling policies: a policy sees ready units and gives back a batch; it never decides about
safety.
"""

from collections import deque

from hams_protocol.graph import BatchPolicy
from hams_protocol.joins import Stage, Unit


class BatchQueue:
    """Ready units of one operator."""

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self._queue: deque[Unit] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, unit: Unit, now: float) -> None:
        """Queue a ready unit."""
        unit.queued_at = now
        self._queue.append(unit)

    def add_first(self, unit: Unit, now: float) -> None:
        """Queue a unit again before all others: it was in a batch that was undone."""
        unit.queued_at = now - self._policy.max_delay_s
        self._queue.appendleft(unit)

    def take(self, now: float) -> list[Unit]:
        """The units of the next batch, oldest first; none if there is nothing to run yet. Units that are not
        READY any more are dropped."""
        queue = self._queue
        while queue and queue[0].stage is not Stage.READY:
            queue.popleft()
        if not queue:
            return []
        head = queue[0]
        if len(queue) == 1 or head.attempts:
            if (
                not head.attempts
                and head.rows < self._policy.max_rows
                and now < head.queued_at + self._policy.max_delay_s
            ):
                return []
            queue.popleft()
            return [head]
        chosen, passed, rows = self._gather(head)
        if rows < self._policy.max_rows and not passed and now < head.queued_at + self._policy.max_delay_s:
            return []
        members = set(map(id, chosen))
        self._queue = deque(unit for unit in queue if id(unit) not in members and unit.stage is Stage.READY)
        return chosen

    def deadline(self) -> float:
        """When the oldest unit has waited long enough for company."""
        while self._queue and self._queue[0].stage is not Stage.READY:
            self._queue.popleft()
        return self._queue[0].queued_at + self._policy.max_delay_s if self._queue else float("inf")

    def clear(self) -> None:
        """Forget everything."""
        self._queue.clear()

    def _gather(self, head: Unit) -> tuple[list[Unit], bool, int]:
        """Units that share the head's batch, whether one had to be left for lack of room, and the rows
        taken."""
        chosen: list[Unit] = []
        rows, key = 0, head.batch_key
        seen: set[int] = set()
        for unit in self._queue:
            if unit.stage is not Stage.READY or id(unit) in seen:
                continue
            if unit.attempts or unit.batch_key != key:
                continue
            if chosen and rows + unit.rows > self._policy.max_rows:
                return chosen, True, rows
            seen.add(id(unit))
            chosen.append(unit)
            rows += unit.rows
        return chosen, False, rows
