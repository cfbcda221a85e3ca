"""How long it takes from an operator's release of a unit to the release of the reply, per class.

No deadlines per stage: a unit keeps its end-to-end due, and an operator judges by what is left after it.
The median of the newest measurements moves with the queues downstream; the 5 % quantile is for dropping, so
that a guess never sheds what could be in time.
"""

from bisect import bisect_left, insort
from collections import deque
from typing import Final

from hams_schedule.classes import REST
from hams_schedule.limits import rest_samples_max, time_max_s

LEAST: Final = 0.05
"""The quantile that dropping goes by."""


class Rest:
    """The rest of the path of each class; 0 where nothing was measured."""

    def __init__(self) -> None:
        self._newest: dict[int, deque[float]] = {}
        self._sorted: dict[int, list[float]] = {}

    def add(self, cls: int, seconds: float) -> None:
        """A reply was released `seconds` after this operator released its unit. Nonsense is ignored."""
        if not (0.0 <= seconds < time_max_s and 0 <= cls <= REST):
            return
        newest = self._newest.setdefault(cls, deque())
        ordered = self._sorted.setdefault(cls, [])
        if len(newest) == rest_samples_max:
            del ordered[bisect_left(ordered, newest.popleft())]
        newest.append(seconds)
        insort(ordered, seconds)

    def median(self, cls: int) -> float:
        """What a unit of the class is expected to need after this operator."""
        ordered = self._sorted.get(cls)
        return ordered[len(ordered) // 2] if ordered else 0.0

    def least(self, cls: int) -> float:
        """What it needs at least."""
        ordered = self._sorted.get(cls)
        return ordered[int(LEAST * len(ordered))] if ordered else 0.0
