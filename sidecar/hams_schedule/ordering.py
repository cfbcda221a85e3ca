"""Units of one value (a session, say) in order of arrival: only the oldest that waits is a candidate.

The others stand behind it and are not in a policy's queue at all, so no policy can take them first. Their
turn comes when it has left the queue: to run, to be shed, or because it is READY no more. Nothing is kept of
values of which no unit waits.
"""

from collections import OrderedDict, deque
from typing import Generic

from hams_schedule.limits import order_values_slack
from hams_schedule.scheduler import READY, U


class ArrivalOrder(Generic[U]):
    """The units that wait, by value. The first of a line is in the policy's queue; the others are here
    only."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[U]] = {}
        # Values of which units stand behind another one: that looked at longest ago is first.
        self._crowded: OrderedDict[str, None] = OrderedDict()
        self._behind = 0

    def __len__(self) -> int:
        """Units that stand behind another one."""
        return self._behind

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
            self._behind += 1
            self._crowded[value] = None
        return False

    def left(self, value: str, unit: U) -> U | None:
        """A unit has left the queue; the one whose turn it is, to be queued now."""
        line = self._lines.get(value)
        return self._next(value, line) if line is not None and line[0] is unit else None

    def turns(self, at_most: int) -> list[tuple[U, U | None]]:
        """Units that are READY no more, which happens in failovers only, each with the one whose turn it is
        now. Looks at so many values, and at others next time."""
        due: list[tuple[U, U | None]] = []
        for _ in range(min(at_most, len(self._crowded))):
            value = next(iter(self._crowded))
            self._crowded.move_to_end(value)
            line = self._lines[value]
            head = line[0]
            if head.stage != READY:
                due.append((head, self._next(value, line)))
        return due

    def clear(self) -> None:
        """Forget all units."""
        self._lines.clear()
        self._crowded.clear()
        self._behind = 0

    def _next(self, value: str, line: deque[U]) -> U | None:
        before = len(line)
        line.popleft()
        while line and line[0].stage != READY:
            line.popleft()
        self._behind -= before - max(len(line), 1)
        if len(line) < 2:
            self._crowded.pop(value, None)
        if line:
            return line[0]
        del self._lines[value]
        return None

    def _drop_unready(self) -> None:
        """Forget values whose only unit is READY no more, and has not left through the queue."""
        for value in [value for value, line in self._lines.items() if len(line) == 1]:
            if self._lines[value][0].stage != READY:
                del self._lines[value]
