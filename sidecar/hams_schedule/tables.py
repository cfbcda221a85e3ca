"""What decisions read of a profile, precomputed: times of one-class batches by size, laws of mixed ones on
demand.

Classes are *ranked* by their mean time; a rank is an index into all tables here. Rebuilt when the profile
has learnt, never changed in between but for the memory of mixed laws.
"""

from bisect import bisect_left
from typing import Final

from hams_schedule.classes import REST
from hams_schedule.limits import grid_cells, law_steps, laws_cached_max, table_rows_max
from hams_schedule.profile import Profiles
from hams_schedule.shapes import Cdf, Grid, power
from hams_schedule.times import SURCHARGE

SIZES: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 64)
"""Rows of the batches that are considered."""
QUICK_SIZES: Final = (1, 2, 4, 8, 16, 32, 64)
"""Rows that the quick rule considers."""
CONFIDENCES: Final = (0.60, 0.75, 0.90, 0.97)
"""Chances with which the earliest member of a candidate is to be in time. With lower ones less is in time: a
batch that is likely to be late keeps the model from those that still have time."""
MIDDLE: Final = 0
"""The index of .60 among `CONFIDENCES`: who has less chance is lost to a roll-out. By a higher one all units
of a class would be whose law has a long tail."""
DROP: Final = 0.02
"""A unit whose chance alone is less is late."""
SURE: Final = 0.9995
"""A chance above is taken for 1."""


NEGLIGIBLE: Final = 1e-4
"""A chance below is taken for 0 in the law of a batch, and one that lacks so little to 1 for 1."""


class Law:
    """The longest member of a batch: its CDF, its mean, and between which times its chance is neither 0 nor
    1."""

    __slots__ = ("cdf", "mean", "never", "sure")

    def __init__(self, grid: Grid, cdf: Cdf, mean: float) -> None:
        self.cdf = cdf
        self.mean = mean
        first = bisect_left(cdf, 1e-12)
        self.never = grid.edge(float(first)) if first else 0.0
        self.sure = grid.quantile(cdf, SURE)


class TimeTables:
    """All of it for one revision of a profile, for batches of up to `max_rows`: what the operator allows, or
    `table_rows_max` if that is less. No larger batch is `known`. Not `whole`: as far as `build` went."""

    def __init__(self, profiles: Profiles, max_rows: int, whole: bool = True) -> None:
        grid = profiles.grid
        assert grid is not None
        cdfs = profiles.cdfs()
        self.grid = grid
        max_rows = min(max_rows, table_rows_max)
        self.max_rows = max_rows
        self.revision = profiles.revision
        self.sizes = [size for size in SIZES if size < max_rows] + [max_rows]
        self.base: list[float] = [0.0]
        self.slope: list[float] = [1.0]
        self.known: list[bool] = [True]
        for rows in range(1, max_rows + 1):
            base, slope = profiles.times.law(rows)
            self.base.append(base)
            self.slope.append(slope)
            self.known.append(profiles.times.known(rows))
        self.known_rows = max(rows for rows, known in enumerate(self.known) if known)
        ordered = sorted([(grid.mean(cdf), cls) for cls, cdf in cdfs.items()])
        self.rank: dict[int, int] = {cls: rank for rank, (_, cls) in enumerate(ordered)}
        self.cdfs: list[Cdf] = [cdfs[cls] for _, cls in ordered]
        self.expected: list[list[float]] = []
        self.quantiles: list[list[list[float]]] = []
        """By rank, confidence, rows."""
        self.middles: list[list[float]] = []
        """By rank and rows, the quantile of confidence `MIDDLE`."""
        self.drop: list[float] = []
        self._laws: dict[tuple[int, ...], Law] = {}
        self._first = [bisect_left(cdf, NEGLIGIBLE) for cdf in self.cdfs]
        self._last = [bisect_left(cdf, 1.0 - NEGLIGIBLE) for cdf in self.cdfs]
        self.spent = 0
        """Steps that laws of mixed batches have cost."""
        self.one_class: list[list[Law]] = []
        """By rank, the laws of batches of `QUICK_SIZES` units."""
        self.peaks: list[list[float]] = []
        """By rank, of each of `QUICK_SIZES` that was measured: the most units per second up to it."""
        while whole and self.build():
            pass

    def build(self) -> bool:
        """Work out what is kept of the next rank; whether there are more."""
        rank = len(self.expected)
        if rank < len(self.cdfs):
            self._add(self.cdfs[rank], self.max_rows)
            sizes = [size for size in QUICK_SIZES if size <= self.max_rows]
            self.one_class.append([self.law_of_one(rank, size) for size in sizes])
            self.peaks.append(self._peaks(self.expected[rank]))
        return rank + 1 < len(self.cdfs)

    def rank_of(self, cls: int) -> int:
        """The rank of a class; that of everything else if it has no law."""
        rank = self.rank.get(cls)
        return self.rank[REST] if rank is None else rank

    def guess(self, expected: float, rows: int) -> float:
        """What a batch of so many rows takes that is `expected` to take so long, without the surcharge of a
        size that was not measured."""
        return self.base[rows] + (expected - self.base[rows]) / (1.0 if self.known[rows] else SURCHARGE)

    def law(self, counts: list[int]) -> Law:
        """The law of a batch of `counts[rank]` units each."""
        key = tuple(counts)
        law = self._laws.get(key)
        if law is None:
            law = self._made(key, [rank for rank, count in enumerate(counts) if count], counts)
        return law

    def law_of_one(self, rank: int, count: int) -> Law:
        """The law of a batch of `count` units of one class."""
        key = (-1 - rank, count)  # no tuple of counts: those are not negative
        law = self._laws.get(key)
        if law is None:
            counts = [0] * (rank + 1)
            counts[rank] = count
            law = self._made(key, [rank], counts)
        return law

    def knows(self, counts: list[int]) -> bool:
        """Whether the law of such a batch costs nothing."""
        return tuple(counts) in self._laws

    def _made(self, key: tuple[int, ...], ranks: list[int], counts: list[int]) -> Law:
        """The law of the longest of `counts[rank]` units each, remembered: as `shapes.maximum` says, worked
        out only in the cells where it is neither 0 nor 1."""
        low = max([self._first[rank] for rank in ranks])
        high = max([low + 1, *[self._last[rank] for rank in ranks]])
        part: Cdf = []
        for rank in ranks:
            if not part or self._last[rank] > low:
                powered = power(self.cdfs[rank][low:high], counts[rank])
                part = [one * other for one, other in zip(part, powered, strict=True)] if part else powered
        cdf = [0.0] * low + part + [1.0] * (grid_cells - high)
        if len(self._laws) >= laws_cached_max:
            self._laws.clear()
        law = self._laws[key] = Law(self.grid, cdf, self.grid.mean_between(low, part))
        self.spent += law_steps * len(ranks)
        return law

    def _peaks(self, expected: list[float]) -> list[float]:
        most, peaks = 0.0, list[float]()
        for size in QUICK_SIZES:
            if size > self.known_rows:
                break
            most = max([most, *[rows / expected[rows] for rows in range(size // 2 + 1, size + 1)]])
            peaks.append(most)
        return peaks

    def _add(self, cdf: Cdf, max_rows: int) -> None:
        """Tables of the next rank: at `sizes`, interpolated in between."""
        means = [0.0]
        shares: list[list[float]] = [[0.0] for _ in CONFIDENCES]
        last = 0
        for size in self.sizes:
            mean = self.grid.mean([chance**size for chance in cdf])
            quantiles = [self.grid.quantile(cdf, confidence ** (1.0 / size)) for confidence in CONFIDENCES]
            for rows in range(last + 1, size + 1):
                part = (rows - last) / (size - last)
                means.append(means[last] + part * (mean - means[last]))
                for column, quantile in zip(shares, quantiles, strict=True):
                    column.append(column[last] + part * (quantile - column[last]))
            last = size
        base, slope = self.base, self.slope
        self.expected.append([base[rows] + slope[rows] * means[rows] for rows in range(max_rows + 1)])
        self.quantiles.append(
            [[base[rows] + slope[rows] * column[rows] for rows in range(max_rows + 1)] for column in shares]
        )
        self.middles.append(self.quantiles[-1][MIDDLE])
        self.drop.append(self.grid.quantile(cdf, DROP))
