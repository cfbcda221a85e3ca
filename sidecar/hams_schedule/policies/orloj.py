"""Policy of Orloj (Yu et al., 2022), to be compared with: the requests with the highest scores, in a batch
of the size whose earliest request is due first.

For measurements and tests only; nothing that serves imports it (docs/adr/0035). There is no convex hull:
the scores are scanned, or found at the ends of the runs in which a score is monotone in the deadline.
"""

import heapq
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import Final

from hams_schedule.pending import ClassLine, Span
from hams_schedule.policies.base import Policy, overdue
from hams_schedule.policies.measured import SizeTimes
from hams_schedule.scheduler import U
from hams_schedule.score import RATE, Score

BINS: Final = 32
"""Bins of the histogram of a size's latency, of equal mass."""
MEAN: Final = -1.0
"""The statistic of feasibility: the mean; else a quantile, as a share."""


class Orloj(Policy[U]):
    """`statistic`: what a request's slack has to exceed to be feasible for a size. `scan`: how scores are
    searched."""

    def __init__(
        self,
        max_rows: int,
        times: SizeTimes,
        statistic: float = MEAN,
        rate: float = RATE,
        scan: bool = False,
    ) -> None:
        super().__init__(max_rows, by_class=False)
        self._sizes = [size for size in (1, 2, 4, 8, 16, 32, 64) if size <= max_rows]
        self._scan = scan
        self._needs: dict[int, float] = {}
        self._scores: dict[int, Score] = {}
        for size in self._sizes:
            self._needs[size] = (
                times.means[size - 1] if statistic == MEAN else times.quantile(size, statistic)
            )
            self._scores[size] = Score(*histogram(times.times[size - 1]), rate)

    def _hopeless(self, now: float) -> list[Span[U]]:
        return overdue(self.pending.all_lines(), now + min(self._needs.values()))

    def _choose(self, now: float) -> list[Span[U]]:
        line = self.pending.earliest()
        if line is None:
            return []
        size, low = self.size_of(line, now)
        score = self._scores[size]
        search = highest_by_scan if self._scan else highest_by_runs
        chosen: list[int] = []
        rows = 0
        for index in search(line.dues, low, score, now, size):
            rows += line.rows[index]
            if chosen and rows > self.max_rows:
                break
            chosen.append(index)
        return [Span(line, index, index + 1) for index in sorted(chosen, reverse=True)]

    def size_of(self, line: ClassLine[U], now: float) -> tuple[int, int]:
        """The size whose earliest feasible request is due first, of those that are full; and that request."""
        best, best_low, fallback, fallback_low = 0, 0, 1, 0
        count = len(line.dues)
        for size in self._sizes:
            low = bisect_left(line.dues, now + self._needs[size])
            if low < count:
                fallback, fallback_low = size, low
            if low + size <= count and (not best or line.dues[low] <= line.dues[best_low]):
                best, best_low = size, low
        return (best, best_low) if best else (fallback, fallback_low)


def histogram(times: list[float]) -> tuple[list[float], list[float]]:
    """Edges and masses of bins of nearly equal mass, of ascending times."""
    cuts = sorted({times[min(len(times) * cut // BINS, len(times) - 1)] for cut in range(BINS + 1)})
    if len(cuts) == 1:
        cuts = [cuts[0] * 0.999, cuts[0] * 1.001]
    masses = [
        (bisect_right(times, high) - (bisect_right(times, low) if bin_number else 0)) / len(times)
        for bin_number, (low, high) in enumerate(pairwise(cuts))
    ]
    return cuts, masses


def highest_by_scan(dues: list[float], low: int, score: Score, now: float, count: int) -> list[int]:
    """The indices from `low` on of the `count` highest scores: each score is computed."""
    scored = [(-score.at(dues[index] - now), index) for index in range(low, len(dues))]
    return [index for _, index in heapq.nsmallest(count, scored)]


def highest_by_runs(dues: list[float], low: int, score: Score, now: float, count: int) -> list[int]:
    """The same, from the ends of runs: inside one bin of the latency the score is monotone in the
    deadline."""
    heap: list[tuple[float, int, int, int]] = []
    begin = low  # of the run
    ends = [bisect_left(dues, now + edge, low) for edge in score.edges]
    for end in (*ends, len(dues)):
        if end > begin:
            _push_end(heap, dues, score, now, begin, end)
        begin = end
    chosen: list[int] = []
    while heap and len(chosen) < count:
        _, index, first, last = heapq.heappop(heap)
        chosen.append(index)
        if index == first:
            first += 1
        else:
            last -= 1
        if last > first:
            _push_end(heap, dues, score, now, first, last)
    return chosen


def _push_end(
    heap: list[tuple[float, int, int, int]],
    dues: list[float],
    score: Score,
    now: float,
    first: int,
    last: int,
) -> None:
    """Put the better end of the run [first, last) on the heap; of equal ones the earlier."""
    at_first, at_last = score.at(dues[first] - now), score.at(dues[last - 1] - now)
    if at_last > at_first:
        heapq.heappush(heap, (-at_last, last - 1, first, last))
    else:
        heapq.heappush(heap, (-at_first, first, first, last))
