"""What all policies share: the order of suspects and undone units, and that only READY units are handed out.

A policy says which spans of the waiting units run next and which units are late; this class takes them out.
"""

import math
from bisect import bisect_left
from typing import Generic

from hams_schedule.pending import ClassLine, Pending, Span
from hams_schedule.scheduler import READY, BatchTiming, U


class RunningBatch(Generic[U]):
    """The batch that the model runs. `expected_s`: how long it will take; NaN until somebody has asked."""

    __slots__ = ("batch", "expected_s", "since", "units")

    def __init__(self, batch: int, units: list[U], since: float) -> None:
        self.batch = batch
        self.units = units
        self.since = since
        self.expected_s = math.nan


class Policy(Generic[U]):
    """A `Scheduler` of one operator with one model."""

    def __init__(self, max_rows: int, by_class: bool, timed: bool = False) -> None:
        if max_rows < 1:
            raise ValueError(f"expected max_rows of at least 1, found {max_rows}")
        self.max_rows = max_rows
        self.pending: Pending[U] = Pending(by_class, timed)
        self.running: RunningBatch[U] | None = None
        self.now = 0.0

    def __len__(self) -> int:
        return len(self.pending)

    def add(self, unit: U, now: float) -> None:
        """Queue a ready unit."""
        self.now = now
        self.pending.add(unit, now)

    def add_first(self, unit: U, now: float) -> None:
        """Queue a unit before all others: a suspect, or one whose batch was undone."""
        self.now = now
        self.pending.add_first(unit)

    def take(self, now: float) -> list[U]:
        """The units of the next batch; none if nothing is to run yet."""
        self.now = now
        first = self.pending.first(self.max_rows)
        if first:
            return first
        spans = self._choose(now)
        while spans and not self.pending.all_ready(spans):
            self.pending.retain_ready()  # each round drops a unit, so this ends
            spans = self._choose(now)
        return self.pending.cut(spans) if spans else []

    def late(self, now: float) -> list[U]:
        """Units to answer by an error instead of running them."""
        self.now = now
        spans = self._hopeless(now)
        return [unit for unit in self.pending.cut(spans) if unit.stage == READY] if spans else []

    def deadline(self) -> float:
        """The last instant seen, if anything waits: no policy here idles unless it says so."""
        return self.now if self.pending.has_ready() else math.inf

    def started(self, batch: int, units: list[U], now: float) -> None:
        """The model runs `units`."""
        self.now = now
        self.running = RunningBatch(batch, units, now)

    def finished(self, batch: int, timing: BatchTiming, now: float) -> None:
        """The run has ended; failed runs, and those whose time is not known, teach nothing."""
        self.now = now
        self.pending.settle()  # or the lines would hold on to what has run
        running = self.running
        if running is not None and running.batch == batch:
            self.running = None
            if timing.ok and timing.weight > 0.0:
                self._learn(running, timing)

    def plan(self, now: float, budget_s: float) -> bool:
        """Nothing to work ahead on."""
        return False

    def units(self) -> list[U]:
        """All units that wait here, undone ones first; some may be READY no more."""
        return [
            *self.pending.waiting_first(),
            *[unit for line in self.pending.all_lines() for unit in line.units],
        ]

    def clear(self) -> None:
        """Forget all units, and the batch that runs."""
        self.pending.clear()
        self.running = None

    def _choose(self, now: float) -> list[Span[U]]:
        """What runs next, out of `pending`; none: idle."""
        raise NotImplementedError

    def _hopeless(self, now: float) -> list[Span[U]]:
        """What is answered by an error."""
        return []

    def _learn(self, running: RunningBatch[U], timing: BatchTiming) -> None:
        """A batch has run."""


def measured_s(timing: BatchTiming) -> float:
    """The time of a batch: the model's own where it is known."""
    return timing.compute_s if timing.compute_s > 0.0 else timing.total_s


def fit(rows: list[int], low: int, count: int, max_rows: int) -> int:
    """How many units from `low` on, `count` at most, share a batch of `max_rows`; at least 1."""
    total, taken = 0, 0
    for index in range(low, min(low + count, len(rows))):
        total += rows[index]
        if taken and total > max_rows:
            break
        taken += 1
    return taken


def overdue(lines: list[ClassLine[U]], instant: float) -> list[Span[U]]:
    """The units that are due before `instant`."""
    spans: list[Span[U]] = []
    for line in lines:
        if line.dues and line.dues[0] < instant:  # mostly not: then nothing is searched
            spans.append(Span(line, 0, bisect_left(line.dues, instant)))
    return spans
