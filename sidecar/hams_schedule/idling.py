"""Whether the model should idle for company: a batch that holds all units that wait may be worth more with
one more.

Only where all requests are of one class, and where the enlarged batch is the largest that the SLO permits:
elsewhere waiting was measured to cost more than it brings. Compared are the batch now, and the batch with
the next arrival, or without it at the last instant at which it could still have taken it; each with what
the expected arrivals then come to. Arrivals are taken for Poisson, at the rate of the last window.
"""

import math
from typing import Final

from hams_schedule.candidates import Candidate, QueueView
from hams_schedule.rollout import CHANCE, EDF, RATE, Arrivals, Future, best_sizes, rollout
from hams_schedule.scheduler import U
from hams_schedule.tables import MIDDLE, TimeTables

CONFIDENCE: Final = 0.85
"""Chance of the enlarged batch to be in time at the last instant."""
DISCOUNT: Final = 0.97
"""What a completion of a roll-out counts beside one of a batch."""
MARGIN: Final = 0.03
"""By how much waiting has to be better, in completions."""


def wait_until(
    view: QueueView[U],
    batch: Candidate,
    tables: TimeTables,
    arrivals: Arrivals,
    rest: dict[int, float],
    longest: float,
) -> float:
    """The instant until which to wait for company, `longest` at most; that of the view if there is no use
    in it."""
    now = view.at
    window = arrivals.window(now)
    rank = view.rank[batch.items[0]]
    expected = arrivals.expected(now, window)
    if any(tables.rank_of(cls) != rank for _, cls, _ in expected):
        return now  # who comes next is likely to be of another class, and poor company
    rows = batch.rows + 1
    if rows > tables.max_rows or not tables.known[rows] or not expected or len(batch.items) < len(view.due):
        return now
    if rows < tables.max_rows and tables.expected[rank][rows + 1] <= window:
        return now  # with a longer SLO the next batches are larger by themselves
    counts = batch.counts[:]
    counts[rank] += 1
    law = tables.law(counts)
    base, slope = tables.base[rows], tables.slope[rows]
    latest = min(view.due[batch.items[0]] - base - slope * tables.grid.quantile(law.cdf, CONFIDENCE), longest)
    rate = arrivals.rate(now)
    if latest <= now or not rate > 0.0:
        return now
    none = math.exp(-rate * (latest - now))  # the chance that nobody comes
    meets = now + 1.0 / rate - (latest - now) * none / (1.0 - none)
    future = Future([[] for _ in batch.counts], tables, expected, rest)
    targets = best_sizes(tables, window)
    until = now + window

    def rolled(begin: float, first: int) -> float:
        """What comes of the arrivals from the `first` of the batch's rank on."""
        lows, taken = [0] * len(counts), [0] * len(counts)
        taken[rank] = min(first, len(future.dues[rank]))
        dues, since = future.without(lows, taken)
        return max(
            [rollout(dues, since, tables, targets, rule, begin, until).completed for rule in (RATE, EDF)]
        )

    ends = now + batch.time
    alone = tables.expected[rank][1]
    in_time = meets + window >= ends + tables.quantiles[rank][MIDDLE][1]  # whoever comes, after the batch
    apart = batch.value + CHANCE * in_time + DISCOUNT * rolled(ends + alone * in_time, 1)
    slacks = [view.due[item] - meets - base for item in batch.items]
    joined = _chances(tables, slacks, slope, law.cdf) + CHANCE
    joined += DISCOUNT * rolled(meets + base + slope * law.mean, 1)
    now_in_vain = batch.value + DISCOUNT * rolled(ends, 0)
    single, growth = tables.base[batch.rows], tables.slope[batch.rows]
    slacks = [view.due[item] - latest - single for item in batch.items]
    in_vain = _chances(tables, slacks, growth, tables.law(batch.counts).cdf)
    in_vain += DISCOUNT * rolled(latest + batch.time, 0)
    gain = (1.0 - none) * (joined - apart) + none * (in_vain - now_in_vain)
    return latest if gain > MARGIN else now


def _chances(tables: TimeTables, slacks: list[float], per: float, cdf: list[float]) -> float:
    """How many of a batch's own units are expected in time: `slacks` in seconds, once the batch has begun."""
    return sum([tables.grid.chance(cdf, slack / per) for slack in slacks])
