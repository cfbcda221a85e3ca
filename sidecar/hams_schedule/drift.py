"""Whether times still follow their law: a two-sided CUSUM of log(measured / expected) (Page, 1954)."""

import math
from typing import Final

ALLOWED: Final = 0.5
"""Standard deviations from the mean that are not yet a drift."""
ALARM: Final = 8.0
"""Accumulated standard deviations that are one."""
WARM: Final = 30
"""Samples before the standard deviation is trusted."""
MEMORY: Final = 1.0 / 64.0
"""Weight of the newest sample in the running variance."""


class Cusum:
    """The sums of one class."""

    __slots__ = ("high", "low", "mean", "seen", "variance")

    def __init__(self) -> None:
        self.seen = 0
        self.mean = self.variance = 0.0
        self.high = self.low = 0.0

    def alarm(self, measured: float, expected: float, least_sd: float) -> bool:
        """Add one time; whether the law has changed, and then all starts afresh. `least_sd`: what the grid
        cannot tell apart."""
        if not (measured > 0.0 and expected > 0.0):
            return False
        ratio = math.log(measured / expected)
        self.seen += 1
        weight = max(MEMORY, 1.0 / self.seen)
        gap = ratio - self.mean
        self.mean += weight * gap
        self.variance = (1.0 - weight) * (self.variance + weight * gap * gap)
        if self.seen <= WARM:
            return False
        score = ratio / max(math.sqrt(self.variance), least_sd)
        self.high = max(0.0, self.high + score - ALLOWED)
        self.low = max(0.0, self.low - score - ALLOWED)
        if max(self.high, self.low) <= ALARM:
            return False
        self.seen = 0
        self.mean = self.variance = self.high = self.low = 0.0
        return True
