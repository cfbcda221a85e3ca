"""How the time of a batch follows from the longest of its members: `L = a_k + s_k * max(l)`, for k rows.

`l` are stand-alone times, so `a_1 = 0` and `s_1 = 1`. Fitted by weighted least squares for each size on its
own, made monotone in k by pooling neighbours, interpolated between sizes. Sizes beyond those seen are
extrapolated, with a surcharge.
"""

from bisect import bisect_left
from typing import Final

from hams_schedule.limits import sizes_max

SAMPLES_MIN: Final = 5.0
"""Weight from which a size has a fit of its own."""
SURCHARGE: Final = 1.15
"""What is unknown is taken to be longer than the extrapolation says."""
GROWTH_PRIOR: Final = 0.25
"""How much a further row adds, as a share of the first, before anything was measured."""


class Sums:
    """Weighted sums of one size: enough for least squares, and to forget."""

    __slots__ = ("w", "wx", "wxx", "wxy", "wy")

    def __init__(self) -> None:
        self.w = self.wx = self.wy = self.wxx = self.wxy = 0.0

    def add(self, x: float, y: float, weight: float) -> None:
        """A batch whose longest member was expected to take `x` took `y`."""
        self.w += weight
        self.wx += weight * x
        self.wy += weight * y
        self.wxx += weight * x * x
        self.wxy += weight * x * y

    def absorb(self, other: "Sums", share: float) -> None:
        """Add another's sums, weighted."""
        self.w += share * other.w
        self.wx += share * other.wx
        self.wy += share * other.wy
        self.wxx += share * other.wxx
        self.wxy += share * other.wxy

    def slope(self) -> float:
        """The slope of the least squares that prefer a line through the origin, by the weight of one
        sample."""
        scale = self.w + 1.0
        xx = self.wxx - self.wx * self.wx / scale
        xy = self.wxy - self.wx * self.wy / scale
        return xy / xx if xx > 0.0 else 1.0


class BatchTimes:
    """`a_k` and `s_k`, k = 1 .. `sizes_max`, in two generations: the older weighs half."""

    def __init__(self) -> None:
        self.recent: dict[int, Sums] = {}
        self.older: dict[int, Sums] = {}
        self._sizes: list[int] = [1]
        self._slopes: list[float] = [1.0]
        self._bases: list[float] = [0.0]

    def observe(self, rows: int, x: float, y: float, weight: float) -> None:
        """A batch of `rows` whose longest member was expected to take `x` seconds took `y`."""
        if 1 < rows <= sizes_max:
            self.recent.setdefault(rows, Sums()).add(x, y, weight)

    def rotate(self) -> None:
        """Begin a generation; the oldest is forgotten."""
        self.older, self.recent = self.recent, {}

    def scale(self, factor: float) -> None:
        """Everything takes `factor` times as long as was seen."""
        for sums in (*self.recent.values(), *self.older.values()):
            sums.wx *= factor
            sums.wy *= factor
            sums.wxx *= factor * factor
            sums.wxy *= factor * factor
        self.refit()

    def refit(self) -> None:
        """Fit all sizes from the sums."""
        sizes, slopes, weights, sums = [1], [1.0], [1e9], [Sums()]
        for rows in sorted(self.recent.keys() | self.older.keys()):
            both = Sums()
            if rows in self.older:
                both.absorb(self.older[rows], 0.5)
            if rows in self.recent:
                both.absorb(self.recent[rows], 1.0)
            if both.w >= SAMPLES_MIN:
                sizes.append(rows)
                slopes.append(max(both.slope(), 0.0))
                weights.append(both.w)
                sums.append(both)
        self._sizes = sizes
        self._slopes = isotonic(slopes, weights)
        self._bases = [0.0]
        for slope, both in zip(self._slopes[1:], sums[1:], strict=True):
            self._bases.append((both.wy - slope * both.wx) / both.w)

    def is_news(self, rows: int) -> bool:
        """True if a fit would make this size known, and it is not yet."""
        if rows <= self._sizes[-1]:
            return False
        recent, older = self.recent.get(rows), self.older.get(rows)
        weight = 0.0 if recent is None else recent.w
        return weight + (0.0 if older is None else 0.5 * older.w) >= SAMPLES_MIN

    def known(self, rows: int) -> bool:
        """Whether the size lies within what was measured."""
        return rows <= self._sizes[-1]

    def law(self, rows: int) -> tuple[float, float]:
        """`a_k` (seconds) and `s_k` for k = `rows`."""
        at = bisect_left(self._sizes, rows)
        if at < len(self._sizes):
            if self._sizes[at] == rows or at == 0:  # a batch without rows takes what one of one row does
                return self._bases[at], self._slopes[at]
            share = (rows - self._sizes[at - 1]) / (self._sizes[at] - self._sizes[at - 1])
            base = self._bases[at - 1] + share * (self._bases[at] - self._bases[at - 1])
            return base, self._slopes[at - 1] + share * (self._slopes[at] - self._slopes[at - 1])
        last = self._sizes[-1]
        if len(self._sizes) == 1:
            growth, drift = GROWTH_PRIOR, 0.0
        else:
            width = last - self._sizes[-2]
            growth = (self._slopes[-1] - self._slopes[-2]) / width
            drift = (self._bases[-1] - self._bases[-2]) / width
        more = rows - last
        return (
            self._bases[-1] + drift * more,
            (self._slopes[-1] + growth * more) * SURCHARGE,
        )


def isotonic(values: list[float], weights: list[float]) -> list[float]:
    """The ascending sequence nearest to `values` by weighted squares: neighbours that fall are pooled."""
    means: list[float] = []
    heavy: list[float] = []
    lengths: list[int] = []
    for value, weight in zip(values, weights, strict=True):
        means.append(value)
        heavy.append(weight)
        lengths.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            total = heavy[-2] + heavy[-1]
            means[-2] = (means[-2] * heavy[-2] + means[-1] * heavy[-1]) / total
            heavy[-2] = total
            lengths[-2] += lengths[-1]
            del means[-1], heavy[-1], lengths[-1]
    return [mean for mean, length in zip(means, lengths, strict=True) for _ in range(length)]
