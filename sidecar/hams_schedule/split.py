"""How long it takes from the end of a unit's batch in an operator to the release of its reply, per
application.

No deadlines per stage: a unit keeps its end-to-end due, and an operator judges by what is left after it.
The median of the newest measurements moves with the queues downstream; the 5 % quantile is for dropping, so
that a guess never sheds what could be in time. What was measured in an outage would shed everything, and
then nothing newer would be measured: hence nothing is assumed once the newest reply is `rest_memory_s` old.
"""

from bisect import bisect_left, insort
from collections import deque
from typing import Final

from hams_schedule.classes import REST
from hams_schedule.limits import buckets_max, rest_memory_s, rest_samples_max, time_max_s

LEAST: Final = 0.05
"""The quantile that dropping goes by."""


class RestWindow:
    """The newest measurements, in order of arrival and of length. `newest_at`: when the last one came."""

    __slots__ = ("_newest", "_sorted", "newest_at")

    def __init__(self) -> None:
        self._newest: deque[float] = deque()
        self._sorted: list[float] = []
        self.newest_at = 0.0

    def add(self, seconds: float, now: float) -> None:
        """Take one in; the oldest leaves a full window."""
        if len(self._newest) == rest_samples_max:
            del self._sorted[bisect_left(self._sorted, self._newest.popleft())]
        self._newest.append(seconds)
        insort(self._sorted, seconds)
        self.newest_at = now

    def quantile(self, share: float) -> float:
        """The measurement that so many are below; 0 without any."""
        return self._sorted[int(share * len(self._sorted))] if self._sorted else 0.0


class Rest:
    """The rest of the path of each application, and of all together; 0 where nothing was measured.

    `medians` are what decisions read, by class: a class has what its application has.
    """

    def __init__(self) -> None:
        self.medians: dict[int, float] = {}
        self._apps: dict[int, RestWindow] = {}
        self._all = RestWindow()

    def add(self, cls: int, seconds: float, now: float) -> None:
        """A reply was released `seconds` after the batch of a unit of this class had ended. Nonsense is
        ignored."""
        if not (0.0 <= seconds < time_max_s and 0 <= cls <= REST):
            return
        app = cls - cls % buckets_max
        window = self._apps.get(app)
        if window is None:
            window = self._apps[app] = RestWindow()
        window.add(seconds, now)
        self._all.add(seconds, now)
        median = window.quantile(0.5)
        for of_app in range(app, min(app + buckets_max, REST + 1)):
            self.medians[of_app] = median

    def forget_stale(self, now: float) -> None:
        """Assume nothing of applications of which no reply was heard of for `rest_memory_s`."""
        stale = [app for app, window in self._apps.items() if now > window.newest_at + rest_memory_s]
        for app in stale:
            del self._apps[app]
            for of_app in range(app, min(app + buckets_max, REST + 1)):
                del self.medians[of_app]
        if stale and not self._apps:
            self._all = RestWindow()

    def least(self, cls: int) -> float:
        """What a unit of the class needs at least after this operator."""
        window = self._apps.get(cls - cls % buckets_max)
        return 0.0 if window is None else window.quantile(LEAST)

    def median_of_all(self) -> float:
        """What a unit is expected to need of which no class is known."""
        return self._all.quantile(0.5)

    def least_of_all(self) -> float:
        """What such a unit needs at least."""
        return self._all.quantile(LEAST)
