"""Distributions of times on a fixed logarithmic grid: quantile, mean, chance, and the maximum of
independent ones.

A distribution is its CDF at the upper edges of the grid's cells, a list that ends with 1. Inside a cell the
mass is spread evenly in the logarithm. Nothing here changes a CDF in place.
"""

import math
from bisect import bisect_left

from hams_schedule.limits import grid_cells

Cdf = list[float]
"""Chances at the upper edges of a grid's cells, ascending to 1."""


class Grid:
    """Cells between `low` and `high` (seconds). What is below the first edge counts to the first cell, what
    is above the last to the last."""

    __slots__ = ("gaps", "high", "log_low", "low", "mids", "step")

    def __init__(self, low: float, high: float) -> None:
        if not (0.0 < low < high < math.inf):
            raise ValueError(f"expected 0 < low < high, found {low} and {high}")
        self.low = low
        self.high = high
        self.log_low = math.log(low)
        self.step = (math.log(high) - self.log_low) / grid_cells
        ratio = math.exp(self.step)
        inside = (ratio - 1.0) / self.step
        self.mids: list[float] = [low * math.exp(self.step * cell) * inside for cell in range(grid_cells)]
        self.gaps: list[float] = [after - mid for mid, after in zip(self.mids, self.mids[1:], strict=False)]
        self.gaps.append(0.0)

    def cell(self, time: float) -> int:
        """The cell that holds `time` (seconds)."""
        if time <= self.low:
            return 0
        position = (math.log(time) - self.log_low) / self.step
        return int(position) if position < grid_cells else grid_cells - 1

    def edge(self, position: float) -> float:
        """The time at a position, in cells from the lower end."""
        return math.exp(self.log_low + self.step * position)

    def chance(self, cdf: Cdf, time: float) -> float:
        """P(X <= time), also where that is infinite."""
        if time <= self.low:
            return 0.0
        position = (math.log(time) - self.log_low) / self.step
        if position >= grid_cells:
            return 1.0
        cell = int(position)
        below = cdf[cell - 1] if cell else 0.0
        return below + (position - cell) * (cdf[cell] - below)

    def quantile(self, cdf: Cdf, share: float) -> float:
        """The least time whose chance is `share`."""
        cell = bisect_left(cdf, share)
        if cell >= grid_cells:
            return self.high
        below = cdf[cell - 1] if cell else 0.0
        mass = cdf[cell] - below
        inside = (share - below) / mass if mass > 0.0 else 1.0
        return self.edge(cell + max(inside, 0.0))

    def mean(self, cdf: Cdf) -> float:
        """E[X]."""
        return self.mids[-1] - sum([chance * gap for chance, gap in zip(cdf, self.gaps, strict=True)])

    def variance(self, cdf: Cdf) -> float:
        """E[(X - E[X])^2], what lies inside cells left out."""
        mean, below, total = self.mean(cdf), 0.0, 0.0
        for mid, chance in zip(self.mids, cdf, strict=True):
            total += (chance - below) * (mid - mean) ** 2
            below = chance
        return total

    def mean_between(self, low: int, part: Cdf) -> float:
        """E[X] where `part` are the chances of the cells from `low` on, those below are 0 and those above
        1."""
        high = low + len(part)
        gaps = self.gaps[low:high]
        top = self.mids[min(high, grid_cells - 1)]
        return top - sum([chance * gap for chance, gap in zip(part, gaps, strict=True)])

    def move(self, counts: list[float], other: "Grid") -> list[float]:
        """The counts of cells of `other`, spread over the cells of this grid."""
        moved = [0.0] * grid_cells
        for cell, count in enumerate(counts):
            if count > 0.0:
                first = (other.log_low + other.step * cell - self.log_low) / self.step
                last = first + other.step / self.step
                _spread(moved, first, last, count)
        return moved


def _spread(counts: list[float], first: float, last: float, mass: float) -> None:
    """Add `mass` evenly between two positions; what lies outside goes to the outermost cells."""
    top = grid_cells - 1
    begin, end = max(min(int(first), top), 0), max(min(int(last), top), 0)
    if begin == end or last <= first:
        counts[begin] += mass
        return
    for cell in range(begin, end + 1):
        left = first if cell == begin else float(cell)
        right = last if cell == end else float(cell + 1)
        counts[cell] += mass * (right - left) / (last - first)


def normal(counts: list[float]) -> Cdf:
    """The CDF of counts. Raises ValueError if there are none."""
    total = sum(counts)
    if not total > 0.0:
        raise ValueError("expected counts, found none")
    cdf: Cdf = []
    running = 0.0
    for count in counts:
        running += count
        cdf.append(running / total)
    cdf[-1] = 1.0
    return cdf


def point(grid: Grid, time: float) -> Cdf:
    """The CDF of a constant."""
    cell = grid.cell(time)
    return [0.0 if index < cell else 1.0 for index in range(grid_cells)]


def mixture(cdfs: list[Cdf], weights: list[float]) -> Cdf:
    """The CDF of a draw from one of `cdfs`, each with its weight. Raises ValueError if no weight is
    positive."""
    total = sum(weights)
    if not total > 0.0:
        raise ValueError("expected a positive weight, found none")
    mixed = [0.0] * grid_cells
    for cdf, weight in zip(cdfs, weights, strict=True):
        share = weight / total
        for cell in range(grid_cells):
            mixed[cell] += share * cdf[cell]
    mixed[-1] = 1.0
    return mixed


def power(cdf: Cdf, count: int) -> Cdf:
    """The CDF of the maximum of `count` independent draws (Orloj, equation 6)."""
    return cdf if count == 1 else [chance**count for chance in cdf]


def maximum(cdfs: list[Cdf], counts: list[int]) -> Cdf:
    """The CDF of the maximum of independent draws, `counts[c]` of them from `cdfs[c]`.

    The product of CDFs is Orloj's equation 8 integrated, without its 2^n alternating terms.
    """
    result: Cdf = []
    for cdf, count in zip(cdfs, counts, strict=True):
        if count:
            powered = power(cdf, count)
            result = [one * other for one, other in zip(result, powered, strict=True)] if result else powered
    if not result:
        raise ValueError("expected at least one draw")
    return result
