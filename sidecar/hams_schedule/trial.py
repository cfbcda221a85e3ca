"""Batches larger than any that was measured: tried now and then, where everybody in them has time enough.

Times of unknown sizes are guesses, so no other choice makes such batches. But what was learnt under light
load are batches of one, and without trials they would stay what is run under any load.
"""

from bisect import bisect_left
from typing import Final

from hams_schedule.pending import ClassLine, Span
from hams_schedule.policies.base import fit
from hams_schedule.scheduler import U
from hams_schedule.tables import TimeTables

EVERY: Final = 4
"""One batch of so many may be a trial at first."""
PATIENCE: Final = 5
"""After so many trials that have made no size known, there are half as many. A size is known after five
batches, but those that fail say nothing, and those beside a capture little."""
HALVINGS_MAX: Final = 8
"""So often at most: a size that fails now may do later."""
SLACK: Final = 2.0
"""Each unit has this many times the expected time of the batch left. For one row more than is known the guess
itself has to do, without its surcharge: where deadlines are short that is the only trial."""
GROWTH: Final = 2
"""A trial has at most this many times the rows that are known: beyond, the guess is worth nothing."""


def trial(
    lines: list[ClassLine[U]], tables: TimeTables, rest: dict[int, float], now: float
) -> Span[U] | None:
    """The largest trial of one class; None if no more units wait than a known size takes, or they lack the
    time."""
    known = tables.known_rows
    lines = [line for line in lines if line.wide or len(line.units) > known]
    for rows in range(min(GROWTH * known, tables.max_rows), known, -1):
        for line in lines:
            needs = tables.expected[tables.rank_of(line.cls)][rows]
            needs = tables.guess(needs, rows) if rows == known + 1 else SLACK * needs
            low = bisect_left(line.dues, now + rest.get(line.cls, 0.0) + needs)
            high = low + fit(line.rows, low, rows, rows)
            if known < sum(line.rows[low:high]) <= rows:
                return Span(line, low, high)
    return None


def pause(tried: int) -> int:
    """Of how many batches one may be a trial, after `tried` that have made no size known."""
    return EVERY << min(tried // PATIENCE, HALVINGS_MAX)
