"""Candidate batches of a queue: class ceilings x sizes x confidences, each with its value and its expected
time.

A candidate takes the first units, earliest due first, of the classes up to a ceiling that can still be in
time with some confidence: so a short unit may fill a long batch, and a long one joins a short batch never.
`View` is what a decision looks at; it does not change while the decision is made.
"""

import math
from bisect import bisect_left
from typing import Generic

from hams_schedule.limits import plan_units_max
from hams_schedule.pending import ClassLine, Line, Span
from hams_schedule.scheduler import U
from hams_schedule.steps import Steps
from hams_schedule.tables import CONFIDENCES, Law, TimeTables


class QueueView(Generic[U]):
    """The units of one batch key that can still be in time at `at`, earliest due first, `plan_units_max` at
    most.

    The lists run in parallel. A due here is what is left for this operator: the rest of the path is taken
    off. `place` is a unit's index among those of its rank.
    """

    def __init__(self, line: Line[U], tables: TimeTables, at: float, rest: dict[int, float]) -> None:
        self.line = line
        self.at = at
        keyed: list[tuple[float, int, int, int, int]] = []
        self.sources: list[ClassLine[U]] = []
        for cls, of_class in line.classes.items():
            rank = tables.rank_of(cls)
            after = rest.get(cls, 0.0)
            low = bisect_left(of_class.dues, at + after + tables.drop[rank])
            source = len(self.sources)
            self.sources.append(of_class)
            dues, orders = of_class.dues, of_class.orders
            for index in range(low, min(len(dues), low + plan_units_max)):
                keyed.append((dues[index] - after, orders[index], rank, source, index))
        keyed.sort()
        del keyed[plan_units_max:]
        self.due: list[float] = []
        self.rank: list[int] = []
        self.rows: list[int] = []
        self.source: list[int] = []
        self.index: list[int] = []
        self.place: list[int] = []
        self.by_rank: list[list[float]] = [[] for _ in tables.cdfs]
        for due, _, rank, source, index in keyed:
            self.due.append(due)
            self.rank.append(rank)
            self.rows.append(self.sources[source].rows[index])
            self.source.append(source)
            self.index.append(index)
            self.place.append(len(self.by_rank[rank]))
            self.by_rank[rank].append(due)

    def spans(self, items: list[int]) -> list[Span[U]]:
        """The spans of class lines that a window of units is."""
        spans: dict[int, Span[U]] = {}
        for item in items:
            source, index = self.source[item], self.index[item]
            span = spans.get(source)
            if span is None:
                spans[source] = Span(self.sources[source], index, index + 1)
            else:
                span.high = index + 1
        return list(spans.values())


class Candidate:
    """A batch that could run: its units (indices of a view), and what is expected of it. `first_chance` is
    that of its earliest-due unit to be in time."""

    __slots__ = ("counts", "first_chance", "holds_earliest", "items", "ratio", "rows", "time", "value")

    def __init__(
        self,
        items: list[int],
        counts: list[int],
        rows: int,
        value: float,
        time: float,
        first_chance: float,
    ) -> None:
        self.items = items
        self.first_chance = first_chance
        self.counts = counts
        self.rows = rows
        self.value = value
        self.time = time
        self.ratio = value / time if time > 0.0 else 0.0
        self.holds_earliest = items[0] == 0


def candidates(
    view: QueueView[U],
    tables: TimeTables,
    weights: list[float],
    steps: Steps,
    most_steps: float = math.inf,
) -> list[Candidate]:
    """All candidates of a view. `weights`: what missing a unit of each rank costs, 1 is usual. Once laws of
    mixed batches have cost `most_steps`, one that is not known yet is taken for that of a batch of its
    slowest class alone: it costs little, and promises too little rather than too much."""
    found: list[Candidate] = []
    most_spent = tables.spent + most_steps
    ranks = len(tables.cdfs)
    for ceiling in range(ranks):
        if not view.by_rank[ceiling]:
            continue
        members = [item for item in range(len(view.due)) if view.rank[item] <= ceiling]
        dues = [view.due[item] for item in members]
        seen: set[tuple[int, int]] = set()
        for size in tables.sizes:
            exhausted = True
            levels = tables.quantiles[ceiling]
            for needs in _needs([levels[level][size] for level in range(len(CONFIDENCES))], steps):
                low = bisect_left(dues, view.at + needs)
                if low >= len(dues):
                    break  # the others ask for more
                items, rows = window(view, members, low, size)
                exhausted = exhausted and low + len(items) == len(members) and rows < size
                if (low, len(items)) in seen:
                    continue
                seen.add((low, len(items)))
                counts = [0] * ranks
                for item in items:
                    counts[view.rank[item]] += 1
                if counts[ceiling] and tables.known[min(rows, tables.max_rows)]:
                    of = counts
                    if tables.spent >= most_spent and not tables.knows(counts):
                        of = [len(items) if rank == ceiling else 0 for rank in range(ranks)]
                    law = tables.law(of)
                    found.append(valued(view, tables, law, items, counts, rows, weights, steps))
            if exhausted:
                break
    return found


def _needs(levels: list[float], steps: Steps) -> list[float]:
    """How long before its last step a unit has to begin, for each confidence and each step, ascending."""
    if len(steps) == 1:
        return levels
    return sorted([before + level for before, _ in steps for level in levels])


def window(view: QueueView[U], members: list[int], low: int, size: int) -> tuple[list[int], int]:
    """The units from `low` on that fill `size` rows, one at least, and their rows."""
    items = members[low : low + size]
    rows = 0
    for taken, item in enumerate(items):
        more = rows + view.rows[item]
        if taken and more > size:
            return items[:taken], rows
        rows = more
    return items, rows


def valued(
    view: QueueView[U],
    tables: TimeTables,
    law: Law,
    items: list[int],
    counts: list[int],
    rows: int,
    weights: list[float],
    steps: Steps,
) -> Candidate:
    """The candidate of these units, whose longest member has this law. Its earliest-due unit is in time if
    it is so for all steps."""
    at_most = min(rows, tables.max_rows)
    base, slope = tables.base[at_most], tables.slope[at_most]
    start = view.at + base
    value, first_chance = 0.0, -1.0
    for item in items:
        left = (view.due[item] - start) / slope
        if len(steps) == 1:
            chance = _chance(tables, law, left)
            if first_chance < 0.0:
                first_chance = chance
        else:
            chance = 0.0
            for before, share in steps:
                makes_it = _chance(tables, law, left - before / slope)
                chance += share * makes_it
                if first_chance < 0.0:
                    first_chance = makes_it
        value += weights[view.rank[item]] * chance
    return Candidate(items, counts, rows, value, base + slope * law.mean, first_chance)


def _chance(tables: TimeTables, law: Law, left: float) -> float:
    """P(the longest member takes `left` seconds at most)."""
    if left >= law.sure:
        return 1.0
    if left <= law.never:
        return 0.0
    return tables.grid.chance(law.cdf, left)
