"""The units that wait: what a class line counts is what lies in it."""

import random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hams_schedule.pending import ClassLine

from .kit import Work


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
