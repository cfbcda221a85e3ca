"""Policy `Deadline`: the most units in time per second, by one point estimate per batch size.

For operators whose times do not vary. The estimate is the P90 of the newest times of a size.
"""

from bisect import bisect_left
from collections import deque
from typing import Final

from hams_schedule.pending import ClassLine, Span
from hams_schedule.policies.base import RunningBatch, fit, measured_s, overdue
from hams_schedule.policies.lateness import LatenessPolicy
from hams_schedule.scheduler import BatchTiming, U
from hams_schedule.split import Rest
from hams_schedule.tables import SIZES

NEWEST: Final = 64
"""Times of one size that an estimate is made from."""
SHARE: Final = 0.9
"""The quantile that is the estimate."""
SAMPLES_MIN: Final = 5
"""Times from which a size has an estimate of its own."""
PRIOR_FACTOR: Final = 1.25
"""How much longer than the longest time seen something unknown may take."""
GROWTH: Final = 0.25
"""How much a further row adds to a batch, before it was measured."""


def told_apart(rows: int) -> int:
    """The size to which a batch of `rows` counts: the next of `SIZES`, above them the next power of two."""
    at = bisect_left(SIZES, rows)
    return SIZES[at] if at < len(SIZES) else 1 << (rows - 1).bit_length()


class PointTimes:
    """Estimates by size."""

    def __init__(self, prior_s: float = 0.0) -> None:
        self.prior_s = prior_s
        self._newest: dict[int, deque[float]] = {}
        self._sorted: dict[int, list[float]] = {}
        self._longest_s = 0.0

    def observe(self, rows: int, time: float) -> None:
        """A batch of `rows` took `time` seconds."""
        size = told_apart(rows)
        self._newest.setdefault(size, deque(maxlen=NEWEST)).append(time)
        self._sorted[size] = sorted(self._newest[size])
        self._longest_s = max(self._longest_s, time)

    def estimate(self, rows: int) -> float:
        """How long a batch of `rows` takes, with some margin; 0: nothing is known."""
        below, above = 0, 0
        for size in sorted(self._sorted):
            if len(self._sorted[size]) >= SAMPLES_MIN:
                if size <= rows:
                    below = size
                elif not above:
                    above = size
        if below and (above or below == rows):
            low = self._at(below)
            if below == rows:
                return low
            return low + (max(self._at(above), low) - low) * (rows - below) / (above - below)
        if below:
            return self._at(below) * (1.0 + GROWTH * rows) / (1.0 + GROWTH * below) * PRIOR_FACTOR
        return max(self.prior_s, PRIOR_FACTOR * self._longest_s) * (1.0 + GROWTH * (rows - 1))

    def least(self) -> float:
        """The shortest time of one row that was seen; 0: nothing is known."""
        alone = self._sorted.get(1)
        return alone[0] if alone else 0.0

    def _at(self, size: int) -> float:
        times = self._sorted[size]
        return times[min(int(SHARE * len(times)), len(times) - 1)]


def point_choice(lines: list[ClassLine[U]], times: PointTimes, max_rows: int, after: float) -> Span[U] | None:
    """The span with the most units in time per second; if none is likely, the unit with the most slack.

    `after` is now and the rest of the path: what is due then has to be done now.
    """
    best: Span[U] | None = None
    best_key = (0.0, 0.0, 0)
    for line in lines:
        dues = line.dues
        for size in (*[size for size in SIZES if size < max_rows], max_rows):
            estimate = times.estimate(size)
            low = bisect_left(dues, after + estimate)
            count = fit(line.rows, low, size, size) if low < len(dues) else 0
            if not count:
                break
            rows = min(sum(line.rows[low : low + count]), size)
            key = (count / max(times.estimate(rows), 1e-9), -dues[low], count)
            if key > best_key or best is None:
                best, best_key = Span(line, low, low + count), key
    if best is None and lines:
        line = max(lines, key=_latest)
        return Span(line, len(line.dues) - 1, len(line.dues))
    return best


def _latest(line: ClassLine[U]) -> float:
    return line.dues[-1]


class Deadline(LatenessPolicy[U]):
    """See the module."""

    def __init__(self, max_rows: int, shed: bool, prior_s: float = 0.0, rest: Rest | None = None) -> None:
        super().__init__(max_rows, by_class=False, shed=shed)
        self.times = PointTimes(prior_s)
        self._rest = rest or Rest()

    def _choose(self, now: float) -> list[Span[U]]:
        after = now + self._rest.median_of_all()
        span = point_choice(self.pending.all_lines(), self.times, self.max_rows, after)
        return [] if span is None else [span]

    def _hopeless(self, now: float) -> list[Span[U]]:
        return overdue(self.pending.all_lines(), now + self._rest.least_of_all() + self.times.least())

    def _learn(self, running: RunningBatch[U], timing: BatchTiming) -> None:
        self.times.observe(sum(unit.rows for unit in running.units), measured_s(timing))
