"""One decision of policy `Distribution`: candidates, the best of them rolled forward, the winner; or a
quick rule that fits on the critical path.

Pure functions of what waits, the tables and the instant. They take nothing out of a queue.
"""

import math
from bisect import bisect_left
from enum import IntEnum
from typing import Final, Generic

from hams_schedule.candidates import Candidate, Candidates, QueueView
from hams_schedule.idling import wait_until
from hams_schedule.limits import unit_steps
from hams_schedule.pending import ClassLine, Line, Span
from hams_schedule.rollout import EDF, RATE, Arrivals, Future, best_sizes, rollout
from hams_schedule.scheduler import U
from hams_schedule.steps import Steps, checked
from hams_schedule.tables import QUICK_SIZES, Law, TimeTables

BEST: Final = 8
"""Candidates of the largest value per second that are rolled forward."""
DISCOUNT: Final = 0.97
"""What a completion of a roll-out counts beside one of the candidate."""
PER_SECOND: Final = 1e-6
"""Weight of value per second in a score: it decides between equals."""
EARLIEST: Final = 0.1
"""What holding the earliest-due unit adds to a score."""
LAWS: Final = 0.5
"""Share of the steps of a decision that laws of mixed batches may cost."""
CONFIDENT: Final = 0.6
"""Chance that the earliest-due unit of a batch has at least, if the batch is to lose nothing."""


class ChoiceKind(IntEnum):
    """How a batch was chosen."""

    PLANNED = 0
    FULL = 1
    QUICK = 2
    LIKELIEST = 3
    POINT = 4
    IDLE = 5
    TRIAL = 6


class BatchChoice(Generic[U]):
    """A batch: where its units lie, what is expected of it, how it was chosen, and its cost in
    steps."""

    __slots__ = ("kind", "spans", "steps", "time", "value")

    def __init__(self, spans: list[Span[U]], value: float, time: float, kind: ChoiceKind, steps: int) -> None:
        self.spans = spans
        self.value = value
        self.time = time
        self.kind = kind
        self.steps = steps


class Terms:
    """What does not change from decision to decision: weights by class, steps of cost, the rest of the
    path."""

    __slots__ = ("rest", "steps", "weights")

    def __init__(self, steps: Steps, weights: dict[int, float]) -> None:
        """Raises ValueError for steps that are none."""
        self.steps = checked(steps)
        self.weights = weights
        self.rest: dict[int, float] = {}

    def by_rank(self, tables: TimeTables) -> list[float]:
        """The weight of each rank."""
        weights = [1.0] * len(tables.cdfs)
        for cls, weight in self.weights.items():
            if cls in tables.rank:
                weights[tables.rank[cls]] = weight
        return weights


def decide(
    lines: list[Line[U]],
    tables: TimeTables,
    arrivals: Arrivals,
    terms: Terms,
    now: float,
    idle_until: float = 0.0,
    most_steps: float = math.inf,
) -> BatchChoice[U] | None:
    """The best batch at `now`, or to wait for company until `idle_until` at most; None if no unit has a
    chance.

    About `most_steps` are spent at most: roll-outs end there, the candidates of most value per second having
    been first. The steps of the choice are those that all roll-outs would have taken.
    """
    best: tuple[QueueView[U], Candidates[U]] | None = None
    best_ratio = -1.0
    likeliest: BatchChoice[U] | None = None
    weights, spent, units = terms.by_rank(tables), tables.spent, 0
    for line in lines:
        view = QueueView(line, tables, now, terms.rest)
        if not view.due:
            continue
        units += len(view.due)
        candidates = Candidates(view, tables, weights, terms.steps, LAWS * most_steps)
        if not candidates.batches and likeliest is None:
            likeliest = alone(view, tables)
        for batch in candidates.best(1, _ratio, candidates.batches):
            if batch.ratio > best_ratio:  # batch keys compare by value per second
                best, best_ratio = (view, candidates), batch.ratio
    if best is None:
        return likeliest
    view, candidates = best
    before = tables.spent - spent + unit_steps * units
    batch, rolled = _rolled(view, candidates, tables, arrivals, terms, now, most_steps - before)
    steps = tables.spent - spent + unit_steps * units + rolled
    if len(lines) == 1 and idle_until > now and len(terms.steps) == 1:  # else waiting has its price at once
        until = wait_until(view, batch, tables, arrivals, terms.rest, idle_until)
        if until > now:
            return BatchChoice([], 0.0, until - now, ChoiceKind.IDLE, steps)
    return BatchChoice(view.spans(batch.items), batch.value, batch.time, ChoiceKind.FULL, steps)


def warm(lines: list[Line[U]], tables: TimeTables, terms: Terms, at: float, most_steps: float) -> bool:
    """Make the laws that a decision at `at` would read, for about so many steps; whether there are more."""
    spent, weights = tables.spent, terms.by_rank(tables)
    for line in lines:
        view = QueueView(line, tables, at, terms.rest)
        if view.due:
            candidates = Candidates(view, tables, weights, terms.steps, most_steps + spent - tables.spent)
            shortlist(candidates)
            largest_confident(candidates)
    return tables.spent > spent


def alone(view: QueueView[U], tables: TimeTables) -> BatchChoice[U]:
    """No batch is likely to be in time: the likeliest unit alone."""
    slack = [due - tables.expected[rank][1] for due, rank in zip(view.due, view.rank, strict=True)]
    item = max(range(len(slack)), key=slack.__getitem__)
    time = tables.expected[view.rank[item]][1]
    chance = tables.grid.chance(tables.cdfs[view.rank[item]], view.due[item] - view.at)
    return BatchChoice(view.spans([item]), chance, time, ChoiceKind.LIKELIEST, 0)


def _rolled(
    view: QueueView[U],
    candidates: Candidates[U],
    tables: TimeTables,
    arrivals: Arrivals,
    terms: Terms,
    now: float,
    most_steps: float,
) -> tuple[Candidate, int]:
    """The best of several candidates by its own value and what the rest of the queue then comes to; the steps
    that rolling all of them out takes."""
    spent = tables.spent
    short, edf = shortlist(candidates), largest_confident(candidates)
    steps = sum([len(batch.items) for batch in candidates.batches])
    if len(candidates.batches) == 1:
        return short[0], steps
    window = arrivals.window(now)
    future = Future(view.by_rank, tables, arrivals.expected(now, window), terms.rest)
    targets = best_sizes(tables, window)
    most_steps -= tables.spent - spent
    of_one = 0  # the steps of one candidate, as far as is known
    if edf is not None:
        dues, since = future.without(lows_of(view, edf), edf.counts)
        outcome = rollout(dues, since, tables, targets, EDF, now + edf.time, now + window, terms.steps)
        steps += outcome.steps
        of_one = 2 * outcome.steps
        if outcome.lost == 0:
            short = [batch for batch in short if batch.holds_earliest]
            if edf not in short:
                short.append(edf)
    best, best_key = short[0], (-1.0, 0.0, 0.0, 0)
    if len(short) > 1:
        for place, batch in enumerate(short):
            if steps + of_one > most_steps:
                return best, steps + of_one * (len(short) - place)
            before = steps
            dues, since = future.without(lows_of(view, batch), batch.counts)
            rest = 0.0
            for base in (RATE, EDF):
                begins = now + batch.time
                outcome = rollout(dues, since, tables, targets, base, begins, now + window, terms.steps)
                steps += outcome.steps
                rest = max(rest, outcome.completed)
            of_one = steps - before
            score = batch.value + DISCOUNT * rest + PER_SECOND * batch.ratio
            if batch.holds_earliest:
                score += EARLIEST
            key = (score, batch.ratio, -view.due[batch.items[0]], batch.rows)
            if key > best_key:
                best, best_key = batch, key
    return best, steps


def shortlist(candidates: Candidates[U]) -> list[Candidate]:
    """The `BEST` of largest value per second, the largest value, and the largest value with the earliest-due
    unit; all exact."""
    batches = candidates.batches
    short = candidates.best(BEST, _ratio, batches)
    earliest = [batch for batch in batches if batch.holds_earliest]
    for more in candidates.best(1, _value, batches) + candidates.best(1, _value, earliest):
        if more not in short:
            short.append(more)
    return short


def largest_confident(candidates: Candidates[U]) -> Candidate | None:
    """The largest batch that holds the earliest-due unit, and is likely to be in time for it; exact."""
    likely = [
        batch for batch in candidates.batches if batch.holds_earliest and batch.first_chance >= CONFIDENT
    ]
    for batch in sorted(likely, key=_rows, reverse=True):
        candidates.make_exact(batch)
        if batch.first_chance >= CONFIDENT:
            return batch
    return None


def lows_of(view: QueueView[U], batch: Candidate) -> list[int]:
    """By rank, the place of the first unit of a batch."""
    lows = [-1] * len(batch.counts)
    for item in batch.items:
        rank = view.rank[item]
        if lows[rank] < 0:
            lows[rank] = view.place[item]
    return lows


def quick(lines: list[Line[U]], tables: TimeTables, terms: Terms, now: float) -> BatchChoice[U] | None:
    """The largest value per second among one-class batches of few sizes, values from three members each.

    Its cost grows with the classes, not with the units that wait. Sizes descend: one that could not beat the
    best batch so far, were all its members in time, ends its class.
    """
    best: ClassLine[U] | None = None
    best_low, best_high, best_value, best_time, best_ratio = 0, 0, 0.0, 0.0, -1.0
    for line in lines:
        for cls, of_class in line.classes.items():
            rank = tables.rank_of(cls)
            after = now + terms.rest.get(cls, 0.0)
            weight = terms.weights.get(cls, 1.0)
            dues, laws, peaks = of_class.dues, tables.one_class[rank], tables.peaks[rank]
            quantile, expected = tables.middles[rank], tables.expected[rank]
            count = len(dues)
            hopeless = after + tables.drop[rank]
            floor = bisect_left(dues, hopeless) if dues[0] < hopeless else 0
            for index in range(_largest(tables, of_class, floor), -1, -1):
                if weight * peaks[index] <= best_ratio:
                    break
                size, low = QUICK_SIZES[index], floor
                if low < count and dues[low] < after + quantile[size]:
                    low = bisect_left(dues, after + quantile[size], low)
                if low >= count:
                    continue
                high = low + of_class.fitting(low, size)
                value = 0.0
                for before, share in terms.steps:
                    value += share * _three(tables, laws[index], dues, low, high, after + before, size)
                value *= weight
                time = expected[min(of_class.filled(low, high), size)]
                if value / time > best_ratio:
                    best, best_low, best_high = of_class, low, high
                    best_value, best_time, best_ratio = value, time, value / time
            if best is None and floor < count:
                best, best_low, best_high, best_time = of_class, count - 1, count, expected[1]
    if best is None:
        return None
    return BatchChoice([Span(best, best_low, best_high)], best_value, best_time, ChoiceKind.QUICK, 0)


def _largest(tables: TimeTables, of_class: ClassLine[U], floor: int) -> int:
    """The index of the largest of `QUICK_SIZES` that was measured and that the units from `floor` on fill."""
    index = len(tables.peaks[0]) - 1
    units = len(of_class.dues) - floor
    while index and not of_class.wide and QUICK_SIZES[index - 1] >= units:
        index -= 1
    return index


def _three(
    tables: TimeTables, law: Law, dues: list[float], low: int, high: int, after: float, size: int
) -> float:
    """The value of [low, high) from its first, middle and last unit, as if they filled `size` rows."""
    count = float(high - low)
    begins, slope = after + tables.base[size], tables.slope[size]
    sure = begins + law.sure * slope
    if dues[low] >= sure:
        return count  # all others are due later
    never = begins + law.never * slope
    total = 0.0
    for index in (low, (low + high - 1) // 2, high - 1):
        due = dues[index]
        if due >= sure:
            total += 1.0
        elif due > never:
            total += tables.grid.chance(law.cdf, (due - begins) / slope)
    return total / 3.0 * count


def _ratio(batch: Candidate) -> float:
    return batch.ratio


def _value(batch: Candidate) -> float:
    return batch.value


def _rows(batch: Candidate) -> int:
    return batch.rows
