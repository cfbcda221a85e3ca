"""Policy of Clockwork (Gujarati et al., OSDI 2020), to be compared with: planned ahead, rejected if it
cannot start in time.

The plan for the next batch is made `AHEAD_S` before the running one is expected to end, with what waits by
then; it is worked out afterwards, when the batch has ended, from the instants at which units came.
"""

from bisect import bisect_left
from collections import deque

from hams_schedule.pending import ClassLine, Span
from hams_schedule.policies.base import Policy, RunningBatch, fit, measured_s, overdue
from hams_schedule.policies.measured import SizeTimes
from hams_schedule.scheduler import READY, BatchTiming, U

AHEAD_S = 0.010
"""How long before its start a batch is planned."""
WINDOW_S = 0.010
"""How much later than planned a batch may start; later, the worker rejects it and its requests are lost."""
NEWEST = 10
"""Times of one size whose largest is the estimate."""
BUFFER_MAX_S = 0.005
"""What is kept back of a deadline, a tenth of the SLO at most."""


class Clockwork(Policy[U]):
    """Full batches of 1, 2, 4 ... rows, the one that must start first."""

    def __init__(self, max_rows: int, times: SizeTimes, slo_s: float) -> None:
        super().__init__(max_rows, by_class=False, timed=True)
        self._sizes = [size for size in (1, 2, 4, 8, 16, 32, 64) if size <= max_rows]
        self._newest: dict[int, deque[float]] = {
            size: deque([times.quantile(size, (n + 0.5) / NEWEST) for n in range(NEWEST)], maxlen=NEWEST)
            for size in self._sizes
        }
        self._buffer_s = min(BUFFER_MAX_S, slo_s / 10.0)
        self._expected_end = 0.0
        self._planned: list[U] = []

    def started(self, batch: int, units: list[U], now: float) -> None:
        """The model runs `units`."""
        super().started(batch, units, now)
        self._planned = []
        self._expected_end = now + self._expected_s(units)

    def finished(self, batch: int, timing: BatchTiming, now: float) -> None:
        """The run has ended: what had been planned to follow it is due, or lost."""
        ends = self.running is not None and self.running.batch == batch
        super().finished(batch, timing, now)
        if ends:
            span = self._planned_span()
            self._planned = [] if span is None else span.line.units[span.low : span.high]

    def late(self, now: float) -> list[U]:
        """Units that cannot be in time, and those of a planned batch that the worker rejects."""
        self.now = now
        lost: list[U] = []
        if self._planned and now > self._expected_end + WINDOW_S:
            spans = self.pending.spans_of(self._planned)
            lost = self.pending.cut(spans) if spans else []
            self._planned = []
        return [unit for unit in lost if unit.stage == READY] + super().late(now)

    def clear(self) -> None:
        """Forget all units."""
        super().clear()
        self._planned = []

    def _planned_span(self) -> Span[U] | None:
        """What was chosen `AHEAD_S` before the expected end, of the units that were there."""
        line = self.pending.earliest()
        if line is None:
            return None
        there = [index for index, at in enumerate(line.added) if at <= self._expected_end - AHEAD_S]
        if not there or there[-1] != len(there) - 1:
            there = there[: next((n for n, index in enumerate(there) if n != index), len(there))]
        return self._best(line, len(there), self._expected_end)

    def _choose(self, now: float) -> list[Span[U]]:
        if self._planned:
            spans = self.pending.spans_of(self._planned)
            self._planned = []
            if spans:
                return spans
        line = self.pending.earliest()
        span = None if line is None else self._best(line, len(line.dues), now)
        return [] if span is None else [span]

    def _hopeless(self, now: float) -> list[Span[U]]:
        return overdue(self.pending.all_lines(), now + self._estimate(1) + self._buffer_s)

    def _best(self, line: ClassLine[U], count: int, start: float) -> Span[U] | None:
        """The full batch that must start first and still can; of the first `count` units."""
        best: Span[U] | None = None
        least = 0.0
        for size in self._sizes:
            estimate = self._estimate(size)
            low = bisect_left(line.dues, start + estimate, 0, count)
            if low + size > count:
                continue
            must_start = line.dues[low] - estimate
            if best is None or must_start <= least:
                fitting = fit(line.rows, low, size, self.max_rows)
                best, least = Span(line, low, low + fitting), must_start
        return best

    def _estimate(self, size: int) -> float:
        return max(self._newest[size])

    def _expected_s(self, units: list[U]) -> float:
        size = next((size for size in self._sizes if size >= len(units)), self._sizes[-1])
        return self._estimate(size)

    def _learn(self, running: RunningBatch[U], timing: BatchTiming) -> None:
        size = next((size for size in self._sizes if size >= len(running.units)), self._sizes[-1])
        self._newest[size].append(measured_s(timing))
