"""What an operator has learnt of its times: the law of each class alone, and how a batch follows from it.

Stand-alone runs and batches of one count as they are; of larger batches only the longest member is seen,
and `sweeps` infers the rest. Two generations, of which the older weighs half, forget by `memory_s`; a drift
resets a class at once. Times that no clock can have measured are ignored and counted.
"""

import math
from collections import deque
from typing import Final

from hams_schedule.classes import REST, Classes
from hams_schedule.drift import Cusum
from hams_schedule.limits import (
    bucket_samples_min,
    buckets_max,
    early_samples_max,
    grid_cells,
    records_max,
    refresh_samples,
    refresh_samples_max,
    refresh_share,
    rows_max,
    sweep_batches,
    sweeps_at_reset,
    time_max_s,
    time_min_s,
)
from hams_schedule.shapes import Cdf, Grid, maximum, normal
from hams_schedule.speed import FirstBatch, Speed
from hams_schedule.split import Rest
from hams_schedule.sweeps import Record, Sweep
from hams_schedule.times import BatchTimes

LATEST: Final = 32
"""Samples of a class from which it starts again after a drift."""
OUTSIDE_MAX: Final = 0.005
"""Share of samples outside the grid from which on it is rebuilt."""
OUTSIDE_MIN: Final = 2
"""Samples outside the grid that are no reason yet: one broken time must not make all cells wide."""
SWEEP_SLICE: Final = 128
"""Records of one slice of a sweep."""


class ClassProfile:
    """The law of one class: stand-alone counts in two generations, and what batches say."""

    __slots__ = ("cusum", "inferred", "latest", "older", "recent")

    def __init__(self) -> None:
        self.recent = [0.0] * grid_cells
        self.older = [0.0] * grid_cells
        self.inferred = [0.0] * grid_cells
        self.latest: deque[float] = deque(maxlen=LATEST)
        self.cusum = Cusum()

    def alone(self) -> list[float]:
        """Counts of stand-alone samples."""
        return [new + 0.5 * old for new, old in zip(self.recent, self.older, strict=True)]

    def counts(self) -> list[float]:
        """All counts."""
        return [
            new + 0.5 * old + more
            for new, old, more in zip(self.recent, self.older, self.inferred, strict=True)
        ]

    def move(self, to: Grid, grid: Grid) -> None:
        """Change the grid."""
        self.recent = to.move(self.recent, grid)
        self.older = to.move(self.older, grid)
        self.inferred = to.move(self.inferred, grid)


class Profiles:
    """Everything learnt of one operator. `revision` changes whenever its laws do. Policies hold `rest`, and
    `weights`: what missing a unit of a class costs, 1 where it does not say."""

    def __init__(self, memory_s: float = 0.0, prior_p99_s: float = 0.0) -> None:
        self.memory_s = memory_s
        self.prior_p99_s = prior_p99_s
        self.rest = Rest()
        self.weights: dict[int, float] = {}
        self.revision = 0
        self.ignored = 0
        self.resets = 0
        self._begin()

    def forget(self) -> None:
        """Know nothing any more. What was ignored and reset stays counted."""
        self.revision += 1
        self._begin()

    def _begin(self) -> None:
        self.classes = Classes()
        self.times = BatchTimes()
        self.laws: dict[int, ClassProfile] = {}
        self.records: deque[Record] = deque(maxlen=records_max)
        self.grid: Grid | None = None
        self.samples = 0
        self.longest_s = 0.0
        self._early: list[tuple[int, float, float]] = []
        """Class, time and weight of samples before there is a grid."""
        self._fresh = 0
        self._outside: list[tuple[int, float, float]] = []
        self._counts = 0
        self._batches = 0
        self._sweeps_due = 0
        self._sweep: Sweep | None = None
        self._sweep_rest: list[Record] = []
        self._rotated_at = -math.inf
        self._cdfs: dict[int, Cdf] = {}
        self._speed: Speed | None = None

    def take_over(self) -> None:
        """What is known may be of another machine: the first batches say how fast this one is beside it, and
        nothing is learnt of them until then. A factor counts as a reset."""
        self._speed = Speed()

    def classify(self, app: str, feature: float) -> int:
        """The class of a request; counts it."""
        return self.classes.classify(app, feature)

    def observe_alone(self, app: str, feature: float, time: float) -> None:
        """A request that ran alone took `time` seconds."""
        if not 0.0 < time < time_max_s:
            self.ignored += 1
            return
        self.observe_feature(app, feature, time)
        self._sample(self.classes.class_of(app, feature), time)

    def observe_feature(self, app: str, feature: float, time: float, rows: int = 1) -> None:
        """A request of this feature and of `rows` rows took `time` seconds in a batch of its own: features
        are cut by such pairs. Its time is counted elsewhere; of a size that is not known it says nothing."""
        base, slope = self.times.law(rows)
        if not (slope > 0.0 and self.times.known(rows)) or self._speed is not None:
            return
        alone = (time - base) / slope
        if 0.0 < alone < time_max_s:
            self.classes.sample(app, feature, alone)

    def observe_batch(
        self, members: list[int], rows: int, time: float, now: float, weight: float = 1.0
    ) -> None:
        """A batch of units of the classes `members`, of `rows` rows together, took `time` seconds.

        `weight` is less than 1 where something else ran meanwhile: a capture, a load, a restart. Such a time
        is no sign of a drift, and no longest time.
        """
        if not (0.0 < time < time_max_s and members and 0 < rows <= rows_max and 0.0 < weight <= 1.0):
            self.ignored += 1
            return
        if self._speed is not None:
            self._compare(self._speed, FirstBatch(members, rows, time, now, weight))
            return
        self._forget(now)
        if len(members) == 1 and rows == 1:
            if weight == 1.0:
                self._watch(members[0], time, self.expected(((members[0], 1),), 1))
            self._sample(members[0], time, weight)
            return
        if weight == 1.0:
            self.longest_s = max(self.longest_s, time)
        counts = counts_of(members)
        for cls, _ in counts:
            if cls not in self.laws:
                self.laws[cls] = ClassProfile()
        longest = self.expected(counts, 1)  # of the longest member alone
        if longest > 0.0:
            base, slope = self.times.law(rows)
            if weight == 1.0 and self.times.known(rows):  # an extrapolation that is off is no drift
                self._watch(max([cls for cls, _ in counts], key=self._mean_of), time, base + slope * longest)
            self.times.observe(rows, longest, time, weight)
            if self.times.is_news(rows):  # or the size would be tried on and on
                self._fresh = refresh_samples_max
        self.records.append(Record(counts, rows, time, weight, now))
        self._batches += 1
        if self._batches % sweep_batches == 0:
            self._sweeps_due = max(self._sweeps_due, 1)
        self._counted()

    @property
    def compares(self) -> bool:
        """Whether what is known may be of a faster or slower machine, and batches tell it just now."""
        return self._speed is not None

    @property
    def held(self) -> int:
        """Batches that have run here and are not learnt yet."""
        return 0 if self._speed is None else len(self._speed.held)

    def _compare(self, speed: Speed, batch: FirstBatch) -> None:
        """Hold a batch back until the speed of this machine is known; then scale what was learnt
        elsewhere."""
        counts = counts_of(batch.members)
        if self.times.known(batch.rows) and all(cls in self._cdfs for cls, _ in counts):
            batch.expected_s, batch.variance = self._moments(counts, batch.rows)
        speed.held.append(batch)
        factor = speed.factor(self.samples)
        if not factor > 0.0:
            return
        self._speed = None
        if factor != 1.0 and self.grid is not None and factor * self.grid.low >= time_min_s:
            self.grid = Grid(factor * self.grid.low, factor * self.grid.high)
            self.times.scale(factor)
            self.longest_s *= factor
            self.resets += 1
            self.revision += 1
        for first in speed.held:
            self.observe_batch(first.members, first.rows, first.time, first.now, first.weight)

    def _moments(self, counts: tuple[tuple[int, int], ...], rows: int) -> tuple[float, float]:
        """Mean (seconds) and variance of a batch of `counts` units of each class; zeros: nothing is
        known."""
        law = self.law(counts)
        if self.grid is None or law is None:
            return 0.0, 0.0
        base, slope = self.times.law(rows)
        return base + slope * self.grid.mean(law), slope * slope * self.grid.variance(law)

    def expected(self, counts: tuple[tuple[int, int], ...], rows: int) -> float:
        """E[L] in seconds of a batch of `counts` units of each class; 0: nothing is known."""
        law = self.law(counts)
        if self.grid is None or law is None:
            return 0.0
        base, slope = self.times.law(rows)
        return base + slope * self.grid.mean(law)

    def law(self, counts: tuple[tuple[int, int], ...]) -> Cdf | None:
        """The law of the longest of `counts` units of each class, alone; None: nothing is known."""
        if self.grid is None or not self._cdfs:
            return None
        everything = self._cdfs[REST]
        return maximum([self._cdfs.get(cls, everything) for cls, _ in counts], [count for _, count in counts])

    def cdfs(self) -> dict[int, Cdf]:
        """The law of each class on the present grid, as of the last `refresh`; of `REST` always, if there is
        any."""
        return self._cdfs

    def refresh(self, force: bool = False) -> bool:
        """Do what learning is due, a slice of it; whether there is more."""
        if self._sweep is not None or self._sweeps_due:
            self._sweep_on()
            return True
        enough = min(max(refresh_share * self.samples, refresh_samples), refresh_samples_max)
        if not force and self._fresh < enough:
            return False
        self._fresh = 0
        self._open_grid()
        cut = self.classes.review()
        self._drop(self.classes.vacated | {app.slot for app in cut})
        self.classes.vacated.clear()
        for app in cut:
            for feature, log_time in app.samples.pairs():
                cls = self.classes.class_of(_name_of(self.classes, app.slot), feature)
                self._count(cls, math.exp(log_time))
        self._cdfs = self._laws()
        self.times.refit()
        self.revision += 1
        return False

    def settle(self) -> None:
        """Do all learning that is due: at a start, off the path of requests."""
        self._sweeps_due = max(self._sweeps_due, sweeps_at_reset if self.records else 0)
        while self.refresh(force=True):
            pass

    def _drop(self, slots: set[int]) -> None:
        """Forget what is known of the classes of applications: others have these classes now, or they are cut
        elsewhere. Batches go with the laws, or the next sweep would credit whoever has the class now."""
        if not slots:
            return
        classes = {cls for slot in slots for cls in self.classes.parent(slot * buckets_max)}
        for cls in classes:
            self.laws.pop(cls, None)
        rest = [record for record in self.records if not [cls for cls, _ in record.counts if cls in classes]]
        self.records.clear()
        self.records.extend(rest)
        self._outside = [sample for sample in self._outside if sample[0] not in classes]
        if self._speed is not None:
            self._speed.leave(classes)
        self._begin_sweep_again()

    def _begin_sweep_again(self) -> None:
        """What a sweep under way reads has changed."""
        if self._sweep is not None:
            self._sweep, self._sweep_rest = None, []
            self._sweeps_due += 1

    def _sample(self, cls: int, time: float, weight: float = 1.0) -> None:
        if weight == 1.0:
            self.longest_s = max(self.longest_s, time)
        if self.grid is None:
            self._early.append((cls, time, weight))
            if len(self._early) >= early_samples_max:
                self._open_grid()
        else:
            self._count(cls, time, weight)
        self._counted()

    def _counted(self) -> None:
        self.samples += 1
        self._fresh += 1

    def _count(self, cls: int, time: float, weight: float = 1.0) -> None:
        law = self.laws.get(cls)
        if law is None:
            law = self.laws[cls] = ClassProfile()
        grid = self.grid
        assert grid is not None
        if weight == 1.0:
            law.latest.append(time)
        self._counts += 1
        if grid.low <= time <= grid.high or len(self._outside) == early_samples_max:
            law.recent[grid.cell(time)] += weight
        else:
            self._outside.append((cls, time, weight))  # until the grid is wider

    def _open_grid(self) -> None:
        """Make the first grid from the early samples, or another when too many fall outside: laws are those
        of the present grid at any time."""
        grid = self.grid
        if grid is None:
            times = sorted([time for _, time, _ in self._early] or [record.time for record in self.records])
            if not times and self.prior_p99_s > 0.0:
                times = [self.prior_p99_s]
            if not times:
                return
            self.grid = Grid(times[len(times) // 1000] / 4.0, 4.0 * times[-1 - len(times) // 1000])
            early, self._early = self._early, []
            for cls, time, weight in early:
                self._count(cls, time, weight)
        elif len(self._outside) > max(OUTSIDE_MIN, OUTSIDE_MAX * self._counts):
            times = [time for _, time, _ in self._outside]
            wider = Grid(min(grid.low, min(times) / 4.0), max(grid.high, 4.0 * max(times)))
            for law in self.laws.values():
                law.move(wider, grid)
            self.grid = wider
            self._begin_sweep_again()
            outside, self._outside, self._counts = self._outside, [], 0
            for cls, time, weight in outside:
                self._count(cls, time, weight)
            self._cdfs = self._laws()  # those of the old cells are wrong by the ratio of the grids
            self.revision += 1

    def _laws(self) -> dict[int, Cdf]:
        """The law of each class, borrowing from its application and from everything where samples are few."""
        if self.grid is None:
            return {}
        counts = {cls: law.counts() for cls, law in self.laws.items()}
        total = [0.0] * grid_cells
        for of_class in counts.values():
            total = [one + other for one, other in zip(total, of_class, strict=True)]
        if not sum(total) > 0.0:
            return {}
        laws = {REST: normal(total)}
        for cls, own in counts.items():
            if cls != REST and sum(own) > 0.0:
                family = [counts[other] for other in self.classes.parent(cls) if other in counts]
                app = borrowed([sum(cell) for cell in zip(*family, strict=True)], laws[REST])
                laws[cls] = normal(borrowed(own, normal(app)))
        return laws

    def _mean_of(self, cls: int) -> float:
        cdf = self._cdfs.get(cls)
        return 0.0 if cdf is None or self.grid is None else self.grid.mean(cdf)

    def _watch(self, cls: int, measured: float, expected: float) -> None:
        """Reset the class if its times have drifted."""
        law = self.laws.get(cls)
        grid = self.grid
        if law is None or grid is None or not law.cusum.alarm(measured, expected, 2.0 * grid.step):
            return
        self.resets += 1
        latest = list(law.latest)[-LATEST // 4 :]
        law.recent, law.older = [0.0] * grid_cells, [0.0] * grid_cells
        law.inferred = [0.0] * grid_cells
        law.latest.clear()
        for time in latest:
            self._count(cls, time)
        newest = list(self.records)
        old, new = newest[:-LATEST], newest[-LATEST:]
        self.records.clear()
        self.records.extend([record for record in old if all(one != cls for one, _ in record.counts)] + new)
        self._sweep, self._sweep_rest = None, []
        self._sweeps_due = sweeps_at_reset
        self._fresh = refresh_samples_max  # what was known is wrong: tables are rebuilt at once

    def _forget(self, now: float) -> None:
        """Begin a generation every `memory_s`."""
        if self.memory_s <= 0.0 or now < self._rotated_at + self.memory_s:
            return
        if self._rotated_at > -math.inf:
            self._open_grid()
            for law in self.laws.values():
                law.older, law.recent = law.recent, [0.0] * grid_cells
            self.times.rotate()
            while self.records and self.records[0].at < now - 2.0 * self.memory_s:
                self.records.popleft()
        self._rotated_at = now

    def _sweep_on(self) -> None:
        """A slice of the present sweep; the last one takes the counts over."""
        self._open_grid()
        grid = self.grid
        if grid is None:
            self._sweeps_due = 0
            return
        if self._sweep is None:
            self._sweeps_due -= 1
            self._sweep_rest = list(self.records)
            classes = {cls for record in self._sweep_rest for cls, _ in record.counts}
            self._sweep = Sweep(grid, {cls: self.laws[cls].counts() for cls in classes if cls in self.laws})
            self.times.refit()
        part, self._sweep_rest = self._sweep_rest[:SWEEP_SLICE], self._sweep_rest[SWEEP_SLICE:]
        for record in part:
            base, slope = self.times.law(record.rows)
            longest = (record.time - base) / slope if slope > 0.0 else 0.0
            # Not `self.laws`: a class may have been dropped and made anew since the sweep began.
            if longest > 0.0 and self._sweep.covers(record):
                self._sweep.add(record, longest)
        if not self._sweep_rest:
            for cls, counts in self._sweep.counts().items():
                law = self.laws.get(cls)
                if law is not None:
                    law.inferred = counts
            self._sweep = None


def counts_of(members: list[int]) -> tuple[tuple[int, int], ...]:
    """Classes of the units of a batch, ascending, and how many units each has."""
    tally: dict[int, int] = {}
    for cls in members:
        tally[cls] = tally.get(cls, 0) + 1
    return tuple(sorted(tally.items()))


def borrowed(counts: list[float], parent: Cdf) -> list[float]:
    """Counts with `bucket_samples_min` samples of the parent's law added, where they are fewer than that."""
    if sum(counts) >= bucket_samples_min:
        return counts
    below = 0.0
    result: list[float] = []
    for count, chance in zip(counts, parent, strict=True):
        result.append(count + bucket_samples_min * (chance - below))
        below = chance
    return result


def _name_of(classes: Classes, slot: int) -> str:
    return next(name for name, app in classes.apps.items() if app.slot == slot)
