"""What a profile says, for people: each class with the law that decisions use."""

import math
from typing import Final

from hams_schedule.classes import REST
from hams_schedule.limits import buckets_max
from hams_schedule.profile import Profiles

SHARES: Final = (0.5, 0.95, 0.99)
"""The quantiles that are shown: median, P95 and P99."""


class ClassSummary:
    """One class. `app`: None of everything together; `low`, `high`: where its features lie; `samples`: those
    of its own, forgotten ones less; times in seconds, what it borrows from others included."""

    __slots__ = ("app", "high", "low", "mean", "quantiles", "samples")

    def __init__(
        self,
        app: str | None,
        low: float,
        high: float,
        samples: float,
        mean: float,
        quantiles: tuple[float, ...],
    ) -> None:
        self.app = app
        self.low = low
        self.high = high
        self.samples = samples
        self.mean = mean
        self.quantiles = quantiles


def summaries(profiles: Profiles) -> list[ClassSummary]:
    """All classes, the fastest first, and everything together at the end; none before anything is known."""
    grid, cdfs = profiles.grid, profiles.cdfs()
    if grid is None or not cdfs:
        return []
    names = {app.slot: (name, app.edges) for name, app in profiles.classes.apps.items()}
    total = sum([sum(law.counts()) for law in profiles.laws.values()])
    result: list[ClassSummary] = []
    for cls, cdf in cdfs.items():
        slot, bucket = divmod(cls, buckets_max)
        app: str | None = None
        low, high, samples = -math.inf, math.inf, total
        if cls != REST:
            if slot not in names or cls not in profiles.laws:
                continue  # its place has changed hands since the tables were made
            app, edges = names[slot]
            low = edges[bucket - 1] if 0 < bucket <= len(edges) else -math.inf
            high = edges[bucket] if bucket < len(edges) else math.inf
            samples = sum(profiles.laws[cls].counts())
        quantiles = tuple([grid.quantile(cdf, share) for share in SHARES])
        result.append(ClassSummary(app, low, high, samples, grid.mean(cdf), quantiles))
    return sorted(result, key=_order)


def _order(item: ClassSummary) -> tuple[bool, float]:
    return item.app is None, item.mean
