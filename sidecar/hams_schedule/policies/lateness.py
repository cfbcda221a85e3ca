"""What a policy does with units that have no chance: shed them, or run them when nothing else is to run.

Units put aside get at least `late_share` of the model's time, oldest first: nothing waits for ever.
"""

from collections import deque

from hams_schedule.limits import late_share
from hams_schedule.policies.base import Policy
from hams_schedule.scheduler import READY, BatchTiming, U


class LatenessPolicy(Policy[U]):
    """A policy that judges lateness. `shed`: late units become errors; else they are put aside."""

    def __init__(self, max_rows: int, by_class: bool, shed: bool) -> None:
        super().__init__(max_rows, by_class)
        self.shed = shed
        self._aside: deque[U] = deque()
        self._took_aside = False
        self._runs_aside = False
        self._busy_s = 0.0
        self._aside_s = 0.0

    def __len__(self) -> int:
        return len(self.pending) + len(self._aside)

    def late(self, now: float) -> list[U]:
        """Units to answer by an error: those without a chance, if they are shed."""
        self.now = now
        return self._split(now) if self.shed else []

    def take(self, now: float) -> list[U]:
        """The next batch: suspects and undone units, those put aside if it is their turn, the policy's
        choice."""
        self.now = now
        self._took_aside = False
        first = self.pending.first(self.max_rows)
        if first:
            return first
        if not self.shed:
            self._aside.extend(self._split(now))
        starved = self._aside_s < late_share * self._busy_s
        if not (self._aside and starved):
            batch = super().take(now)
            if batch or not self._aside:
                return batch
        batch = self._from_aside()
        self._took_aside = bool(batch)
        return batch or super().take(now)

    def deadline(self) -> float:
        """The last instant seen, if anything waits."""
        while self._aside and self._aside[0].stage != READY:
            self._aside.popleft()  # whoever judges by this instant forgets them, too
        return self.now if self._aside else super().deadline()

    def started(self, batch: int, units: list[U], now: float) -> None:
        """The model runs `units`."""
        super().started(batch, units, now)
        self._runs_aside, self._took_aside = self._took_aside, False

    def finished(self, batch: int, timing: BatchTiming, now: float) -> None:
        """The run has ended."""
        running = self.running
        if running is not None and running.batch == batch and self._aside:
            self._busy_s += now - running.since
            if self._runs_aside:
                self._aside_s += now - running.since
        if not self._aside:
            self._busy_s = self._aside_s = 0.0
        super().finished(batch, timing, now)

    def units(self) -> list[U]:
        """All units that wait here."""
        return super().units() + list(self._aside)

    def clear(self) -> None:
        """Forget all units."""
        super().clear()
        self._aside.clear()
        self._busy_s = self._aside_s = 0.0

    def _split(self, now: float) -> list[U]:
        """Take out the units that have no chance."""
        spans = self._hopeless(now)
        return [unit for unit in self.pending.cut(spans) if unit.stage == READY] if spans else []

    def _from_aside(self) -> list[U]:
        """The oldest units put aside that share a batch. What comes after a full one is not looked at."""
        batch: list[U] = []
        passed: list[U] = []
        rows = 0
        while self._aside and rows < self.max_rows:
            unit = self._aside.popleft()
            if unit.stage != READY:
                continue
            if not batch or (unit.batch_key == batch[0].batch_key and rows + unit.rows <= self.max_rows):
                batch.append(unit)
                rows += unit.rows
            else:
                passed.append(unit)
        self._aside.extendleft(reversed(passed))
        return batch
