"""Orloj's score of a request: what it costs to delay it, per second of the batch it would run in (Yu et
al., 2022).

C(x) = c if x > D, a delay tau ~ Exp(b), L the latency of a batch: p(t) = (E[C(t + tau + L)] - E[C(t + L)])
/ E[L]. With slack u = D - t it is a function of u alone, exponential in each bin of L's histogram.
"""

import math
from bisect import bisect_right
from itertools import pairwise
from typing import Final

RATE: Final = 0.1
"""b, per second: 1e-4 per ms, one for all."""
REBASE: Final = 300.0
"""b * (t - reference) from which coefficients are computed anew: e^709 is more than a double holds."""


class Score:
    """The score for one batch size, from the histogram of its latency.

    `edges`: n + 1 ascending times (seconds) of n bins, `masses`: their n shares, `rate`: b > 0 per second.
    """

    __slots__ = ("_sums", "edges", "mean", "rate", "shares")

    def __init__(self, edges: list[float], masses: list[float], rate: float = RATE) -> None:
        self.edges = edges
        self.rate = rate
        self.mean = sum(
            [mass * (low + high) / 2.0 for mass, (low, high) in zip(masses, pairwise(edges), strict=True)]
        )
        self.shares = [mass / (high - low) for mass, (low, high) in zip(masses, pairwise(edges), strict=True)]
        # relative to each bin's lower edge, so that nothing overflows whatever the unit of time
        self._sums: list[float] = [0.0]
        for share, (low, high) in zip(self.shares, pairwise(edges), strict=True):
            fallen = math.exp(-rate * (high - low))
            self._sums.append(self._sums[-1] * fallen - share * math.expm1(-rate * (high - low)))

    def at(self, slack: float, cost: float = 1.0) -> float:
        """p, per second of the batch, at `slack` seconds before the deadline."""
        index = bisect_right(self.edges, slack) - 1
        if index < 0:
            return 0.0
        scale = cost / (self.rate * self.mean)
        past = -self.rate * (slack - self.edges[index])
        if index >= len(self.shares):
            return scale * self._sums[-1] * math.exp(past)
        return scale * (self._sums[index] * math.exp(past) - self.shares[index] * math.expm1(past))

    def coefficients(
        self, due: float, now: float, reference: float, cost: float = 1.0
    ) -> tuple[float, float]:
        """alpha and beta with p(t) = alpha e^{b (t - reference)} + beta, until the next milestone.

        Raises OverflowError if `reference` is further away than `REBASE` allows.
        """
        if self.rate * abs(now - reference) > REBASE:
            raise OverflowError("the reference is too old: rebase")
        slack = due - now
        index = bisect_right(self.edges, slack) - 1
        if index < 0:
            return 0.0, 0.0
        scale = cost / (self.rate * self.mean)
        fallen = math.exp(-self.rate * (due - reference - self.edges[index]))
        if index >= len(self.shares):
            return scale * self._sums[-1] * fallen, 0.0
        share = self.shares[index]
        return scale * (self._sums[index] - share) * fallen, scale * share

    def milestone(self, due: float, now: float) -> float:
        """The next instant at which the coefficients change; infinity if they never do again."""
        index = bisect_right(self.edges, due - now) - 1
        return due - self.edges[index] if index >= 0 else math.inf

    def steps(self, dues: list[tuple[float, float]], now: float) -> float:
        """The score of several deadlines, each with its incremental cost: (due, cost)."""
        return sum([self.at(due - now, cost) for due, cost in dues])
