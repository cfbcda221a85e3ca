"""How long requests and batches take by what is learnt, in numbers that metrics and `hams profile` share.

It only looks. Everything is bounded by the profile: features are cut while that makes no more classes than
`limits.classes_max`, later applications have one each, and sizes of batches are those that were measured.
"""

from typing import Final

from hams_protocol.frozen import frozen
from hams_schedule.classes import REST
from hams_schedule.profile import Profiles
from hams_schedule.summary import SHARES, ClassSummary

GROWTH: Final = 2
"""Sizes of `batch_summaries` grow by this factor, so that there are few."""


@frozen
class BatchSummary:
    """Batches of `rows` requests of one row each, drawn from all classes as they come. Seconds; `quantiles`:
    those of `hams_schedule.summary.SHARES`."""

    rows: int
    mean: float
    quantiles: tuple[float, ...]


def class_number(profiles: Profiles, item: ClassSummary) -> int | None:
    """The number by which metrics name a class, None of all together: applications are named by clients.

    It is stable while the place of the application is not given away, and its features are not cut anew.
    """
    return None if item.app is None else profiles.classes.class_of(item.app, item.low)


def batch_summary(profiles: Profiles, rows: int) -> BatchSummary | None:
    """Time of a batch of `rows` requests; None before anything is known."""
    grid, everything = profiles.grid, profiles.cdfs().get(REST)
    if grid is None or everything is None:
        return None
    base, slope = profiles.times.law(rows)
    # The longest of `rows` draws is below x with the chance that all of them are.
    alone = [grid.quantile(everything, share ** (1.0 / rows)) for share in SHARES]
    mean = profiles.expected(((REST, rows),), rows)
    return BatchSummary(rows, mean, tuple([base + slope * time for time in alone]))


def batch_summaries(profiles: Profiles, max_rows: int) -> list[BatchSummary]:
    """Batches of 1, 2, 4 .. rows, as far as batches of such sizes were measured."""
    result: list[BatchSummary] = []
    rows = 1
    while rows <= max_rows and profiles.times.known(rows):
        summary = batch_summary(profiles, rows)
        if summary is not None:
            result.append(summary)
        rows *= GROWTH
    return result
