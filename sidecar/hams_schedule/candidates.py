"""Candidate batches of a queue: class ceilings x sizes x confidences, each with its value and its expected
time.

A candidate takes the first units, earliest due first, of the classes up to a ceiling that can still be in
time with some confidence: so a short unit may fill a long batch, and a long one joins a short batch never.
`View` is what a decision looks at; it does not change while the decision is made.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from heapq import heapify, heappop, heappush
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
        self.wide = False
        """Whether any unit has more than one row."""
        for due, _, rank, source, index in keyed:
            self.due.append(due)
            self.rank.append(rank)
            rows = self.sources[source].rows[index]
            self.wide = self.wide or rows > 1
            self.rows.append(rows)
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
    that of its earliest-due unit to be in time. Not `exact`: the promise of its slowest members alone."""

    __slots__ = (
        "counts",
        "exact",
        "first_chance",
        "holds_earliest",
        "items",
        "ratio",
        "rows",
        "time",
        "value",
    )

    def __init__(self, items: list[int], counts: list[int], rows: int) -> None:
        self.items = items
        self.counts = counts
        self.rows = rows
        self.holds_earliest = items[0] == 0
        self.exact = False
        self.value = self.time = self.ratio = self.first_chance = 0.0

    def expect(self, value: float, time: float, first_chance: float) -> None:
        """Take over what a law says."""
        self.value = value
        self.time = time
        self.ratio = value / time if time > 0.0 else 0.0
        self.first_chance = first_chance


class Candidates(Generic[U]):
    """All candidates of a view, `batches`. `weights`: what missing a unit of each rank costs, 1 is usual.

    The law of a mixed batch costs more than all else about it. So at first a candidate promises what its
    slowest members alone would take: never less value, never more time than by its own law. Only those are
    made `exact` that could be chosen. Once laws have cost `most_steps`, one that is not known yet is taken
    for that of a batch of its slowest class alone: it promises too little then rather than too much.
    """

    def __init__(
        self,
        view: QueueView[U],
        tables: TimeTables,
        weights: list[float],
        steps: Steps,
        most_steps: float = math.inf,
    ) -> None:
        self._view = view
        self._tables = tables
        self._weights = weights
        self._alike = weights == [1.0] * len(weights)
        self._steps = steps
        self._most_spent = tables.spent + most_steps
        self.batches: list[Candidate] = []
        for ceiling, dues in enumerate(view.by_rank):
            if dues:
                self._add(ceiling)

    def best(self, count: int, key: Callable[[Candidate], float], of: list[Candidate]) -> list[Candidate]:
        """The `count` candidates of the largest keys, all exact: value, value per second or first chance,
        which an exact law only makes less."""
        heap = [(-key(batch), number) for number, batch in enumerate(of)]
        heapify(heap)
        chosen: list[Candidate] = []
        while heap and len(chosen) < count:
            _, number = heappop(heap)
            batch = of[number]
            if batch.exact:
                chosen.append(batch)
            else:
                self.make_exact(batch)
                heappush(heap, (-key(batch), number))
        return chosen

    def make_exact(self, batch: Candidate) -> None:
        """Expect what the law of all its members says."""
        tables, counts = self._tables, batch.counts
        if not batch.exact and tables.spent >= self._most_spent and not tables.knows(counts):
            ceiling = max([rank for rank, count in enumerate(counts) if count])
            self._expect(batch, tables.law_of_one(ceiling, len(batch.items)))
        elif not batch.exact:
            self._expect(batch, tables.law(counts))
        batch.exact = True

    def _add(self, ceiling: int) -> None:
        """The candidates of one class ceiling."""
        view, tables = self._view, self._tables
        members = [item for item, rank in enumerate(view.rank) if rank <= ceiling]
        dues = [view.due[item] for item in members]
        count, levels = len(members), tables.quantiles[ceiling]
        seen: set[tuple[int, int]] = set()
        for size in tables.sizes:
            exhausted, before = True, -1
            for needs in _needs([levels[level][size] for level in range(len(CONFIDENCES))], self._steps):
                low = bisect_left(dues, view.at + needs)
                if low >= count:
                    break  # the others ask for more
                if low == before:
                    continue
                before = low
                items, rows = window(view, members, low, size)
                exhausted = exhausted and low + len(items) == count and rows < size
                if (low, len(items)) not in seen:
                    seen.add((low, len(items)))
                    self._consider(items, rows, ceiling)
            if exhausted:
                break

    def _consider(self, items: list[int], rows: int, ceiling: int) -> None:
        """A candidate, if it holds a unit of its ceiling and batches of its rows were measured."""
        tables, rank = self._tables, self._view.rank
        counts = [0] * len(tables.cdfs)
        for item in items:
            counts[rank[item]] += 1
        slowest = counts[ceiling]
        if slowest and tables.known[min(rows, tables.max_rows)]:
            batch = Candidate(items, counts, rows)
            batch.exact = slowest == len(items)
            self._expect(batch, tables.law_of_one(ceiling, slowest))
            self.batches.append(batch)

    def _expect(self, batch: Candidate, law: Law) -> None:
        """What is expected of a batch whose longest member has this law. Its earliest-due unit is in time if
        it is so for all steps."""
        view, tables, steps = self._view, self._tables, self._steps
        at_most = min(batch.rows, tables.max_rows)
        base, slope = tables.base[at_most], tables.slope[at_most]
        start, items = view.at + base, batch.items
        sure = law.sure + steps[0][0] / slope
        value, first_chance = 0.0, -1.0
        for place, item in enumerate(items):
            left = (view.due[item] - start) / slope
            if left >= sure:  # so it is for all that are due later
                value += self._worth(items, place)
                first_chance = 1.0 if first_chance < 0.0 else first_chance
                break
            chance = 0.0
            for before, share in steps:
                makes_it = _chance(tables, law, left - before / slope)
                chance += share * makes_it
                if first_chance < 0.0:
                    first_chance = makes_it
            value += self._weights[view.rank[item]] * chance
        batch.expect(value, base + slope * law.mean, first_chance)

    def _worth(self, items: list[int], place: int) -> float:
        """What the units from `place` on are worth in time."""
        if self._alike:
            return float(len(items) - place)
        return sum([self._weights[self._view.rank[item]] for item in items[place:]])


def _needs(levels: list[float], steps: Steps) -> list[float]:
    """How long before its last step a unit has to begin, for each confidence and each step, ascending."""
    if len(steps) == 1:
        return levels
    return sorted([before + level for before, _ in steps for level in levels])


def window(view: QueueView[U], members: list[int], low: int, size: int) -> tuple[list[int], int]:
    """The units from `low` on that fill `size` rows, one at least, and their rows."""
    items = members[low : low + size]
    if not view.wide:
        return items, len(items)
    rows = 0
    for taken, item in enumerate(items):
        more = rows + view.rows[item]
        if taken and more > size:
            return items[:taken], rows
        rows = more
    return items, rows


def _chance(tables: TimeTables, law: Law, left: float) -> float:
    """P(the longest member takes `left` seconds at most)."""
    if left >= law.sure:
        return 1.0
    if left <= law.never:
        return 0.0
    return tables.grid.chance(law.cdf, left)
