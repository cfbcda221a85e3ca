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
from hams_schedule.times import SURCHARGE

EVERY: Final = 4
"""One batch of so many may be a trial: a guess that is wrong costs no more."""
SLACK: Final = 2.0
"""Each unit has this many times the expected time of the batch left."""
NEXT_SLACK: Final = 1.0 / SURCHARGE
"""The same for one row more than is known: the guess itself has to do, for where deadlines are short this is
the only trial, and a size is known after five of them."""
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
        slack = NEXT_SLACK if rows == known + 1 else SLACK
        for line in lines:
            expected = tables.expected[tables.rank_of(line.cls)][rows]
            low = bisect_left(line.dues, now + rest.get(line.cls, 0.0) + slack * expected)
            high = low + fit(line.rows, low, rows, rows)
            if known < sum(line.rows[low:high]) <= rows:
                return Span(line, low, high)
    return None
