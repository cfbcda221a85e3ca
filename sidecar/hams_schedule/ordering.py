"""Units of one value (a session, say) in order of arrival: only the oldest that waits is a candidate.

The others stand behind it and are not in a policy's queue at all, so no policy can take them first. Their
turn comes when it has left the queue: to run, to be shed, or because it is READY no more. Nothing is kept of
values of which no unit waits.
"""

from collections import deque
from typing import Generic

from hams_schedule.limits import order_values_slack
from hams_schedule.scheduler import READY, U


class ArrivalOrder(Generic[U]):
    """The units that wait, by value. The first of a line is in the policy's queue; the others are here
    only."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[U]] = {}
        self._crowded: set[str] = set()

    def __len__(self) -> int:
        """Units that stand behind another one."""
        return sum([len(self._lines[value]) - 1 for value in self._crowded])

    def arrived(self, value: str, unit: U, queued: int) -> bool:
        """A unit is READY; whether it may be queued now. `queued`: how many are."""
        line = self._lines.get(value)
        if line is None:
            if len(self._lines) > 2 * queued + order_values_slack:
                self._drop_unready()
            self._lines[value] = deque((unit,))
            return True
        if unit is line[0]:
            return True  # it was not READY in between: a policy may have dropped it
        if not any(unit is other for other in line):
            line.append(unit)
            self._crowded.add(value)
        return False

    def left(self, value: str, unit: U) -> U | None:
        """A unit has left the queue; the one whose turn it is, to be queued now."""
        line = self._lines.get(value)
        return self._next(value, line) if line is not None and line[0] is unit else None

    def turns(self) -> list[U]:
        """The units whose turn it is because those before them are READY no more."""
        due: list[U] = []
        for value in list(self._crowded):
            line = self._lines[value]
            unit = self._next(value, line) if line[0].stage != READY else None
            if unit is not None:
                due.append(unit)
        return due

    def clear(self) -> None:
        """Forget all units."""
        self._lines.clear()
        self._crowded.clear()

    def _next(self, value: str, line: deque[U]) -> U | None:
        line.popleft()
        while line and line[0].stage != READY:
            line.popleft()
        if len(line) < 2:
            self._crowded.discard(value)
        if line:
            return line[0]
        del self._lines[value]
        return None

    def _drop_unready(self) -> None:
        """Forget values whose only unit is READY no more, and has not left through the queue."""
        for value in [value for value, line in self._lines.items() if len(line) == 1]:
            if self._lines[value][0].stage != READY:
                del self._lines[value]
