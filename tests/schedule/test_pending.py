"""The units that wait: what a class line counts is what lies in it."""

import gc
import random
import weakref

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hams_schedule.lawful import Lawful
from hams_schedule.pending import ClassLine, Pending, Span

from .kit import MAX_ROWS, POLICIES, Took, Work


def naive_fitting(rows: list[int], low: int, size: int) -> int:
    total, taken = 0, 0
    for count in rows[low:]:
        total += count
        if taken and total > size:
            break
        taken += 1
        if taken == size:
            break
    return taken


@pytest.mark.parametrize("widest", [1, 3, 40])
@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(seed=st.integers(0, 10_000))
def test_rows_are_counted_as_they_lie_whatever_comes_and_goes(widest: int, seed: int) -> None:
    draw = random.Random(seed)
    line: ClassLine[Work] = ClassLine("", 0)
    for step in range(60):
        if draw.random() < 0.7 or not line.units:
            rows = draw.choice([0, 1, 1, 1, widest])
            line.insert(Work(due=draw.uniform(0.0, 1.0), rows=rows), step, 0.0)
        elif draw.random() < 0.8:
            low = draw.randrange(len(line.units))
            line.cut(low, low + draw.randint(1, 4))
        else:
            for unit in draw.sample(line.units, len(line.units) // 3):
                unit.stage = 0
            line.retain_ready()
        assert line.wide == sum(rows > 1 for rows in line.rows)
        assert line.rows == [max(unit.rows, 1) for unit in line.units]
        for low in range(len(line.units)):
            size = draw.choice([1, 2, 4, 8, 32])
            assert line.fitting(low, size) == naive_fitting(line.rows, low, size)
            high = draw.randint(low + 1, len(line.units))
            assert line.filled(low, high) == sum(line.rows[low:high])


def test_what_was_handed_out_is_not_there_for_anybody_who_looks() -> None:
    pending: Pending[Work] = Pending(by_class=True)
    units = [Work(due=float(number), cls=number % 2) for number in range(6)]
    for unit in units:
        pending.add(unit, 0.0)
    line = pending.lines[""]
    spans = [Span(line.classes[0], 0, 2), Span(line.classes[1], 1, 3)]
    assert pending.cut(spans) == [units[0], units[2], units[3], units[5]]
    assert len(pending) == 2
    assert pending.spans_of([units[0]]) is None
    assert [unit for of_class in pending.all_lines() for unit in of_class.units] == [units[4], units[1]]
    assert pending.cut([Span(line.classes[0], 0, 1)]) == [units[4]]
    pending.add(units[4], 1.0)
    assert pending.spans_of([units[4]]) is not None
    pending.cut([Span(pending.lines[""].classes[0], 0, 1)])
    pending.cut([Span(pending.lines[""].classes[1], 0, 1)])
    assert pending.lines == {}
    assert not pending.has_ready()


def test_a_queue_does_not_hold_on_to_what_has_run() -> None:
    policy: Lawful[Work] = Lawful(POLICIES["distribution"](), MAX_ROWS, replace=False)
    unit = Work(due=9.0)
    gone = weakref.ref(unit)
    policy.add(unit, 0.0)
    batch = policy.take(0.0)
    policy.started(1, batch, 0.0)
    policy.finished(1, Took(0.02), 0.02)
    del unit, batch
    gc.collect()
    assert gone() is None
