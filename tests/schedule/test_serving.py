"""What serves as `Distribution`: the simple policies know what the profile knows, whatever `maxRows` is."""

import random

import pytest

from hams_schedule.guard import Guarded
from hams_schedule.lawful import Lawful
from hams_schedule.limits import rows_max, sizes_max, table_rows_max
from hams_schedule.policies.deadline import PointTimes, told_apart
from hams_schedule.profile import Profiles
from hams_schedule.serving import guarded, size_times, times_of
from hams_schedule.tables import SIZES, TimeTables
from hams_schedule.trial import GROWTH

from .kit import Work, profiles, serve


def test_tables_are_as_long_as_a_trial_is_large_whatever_a_graph_allows() -> None:
    learnt = profiles()
    tables = TimeTables(learnt, rows_max)
    assert tables.max_rows == table_rows_max == GROWTH * sizes_max
    assert {len(of_rank) for of_rank in tables.expected} == {table_rows_max + 1}
    assert tables.known_rows == 8
    assert len(size_times(learnt, rows_max)) == len(size_times(Profiles(), rows_max)) == table_rows_max
    assert len(size_times(learnt, 7)) == 7


def test_times_between_sizes_lie_between_theirs() -> None:
    learnt = profiles()
    times = size_times(learnt, 16)
    for size in (1, 2, 8, 16):
        assert times[size - 1] == pytest.approx(times_of(learnt, size))
    middle = [(low + high) / 2 for low, high in zip(times[7], times[9], strict=True)]
    assert times[8] == pytest.approx(middle)


def test_large_batches_say_nothing_about_those_of_64_rows() -> None:
    times = PointTimes()
    for _ in range(64):
        times.observe(64, 0.1)
        times.observe(1_000, 2.0)
    assert times.estimate(64) == pytest.approx(0.1)
    assert times.estimate(1_024) == pytest.approx(2.0)
    assert 0.1 < times.estimate(256) < 2.0
    assert [told_apart(rows) for rows in (1, 7, 64, 65, 128, 129)] == [1, 8, 64, 128, 128, 256]
    assert all(told_apart(size) == size for size in SIZES)


def test_deadline_begins_with_what_the_profile_knows_of_each_size() -> None:
    learnt = profiles()
    for max_rows in (7, 8, 100, rows_max):
        policy: Guarded[Work] = guarded(max_rows, True, learnt)
        deadline = policy._serving["deadline"]()
        for size in [size for size in SIZES if size <= max_rows]:
            assert deadline.times.estimate(size) == times_of(learnt, size)[14], "the P90 of 16"


@pytest.mark.parametrize("name", ["distribution", "deadline", "fifo", "nexus", "clipper"])
def test_each_policy_serves_where_a_graph_allows_more_rows_than_tables_have(name: str) -> None:
    learnt = profiles()
    draw = random.Random(3)
    arrivals = [
        (number / 50, Work(due=number / 50 + 1.0, cls=number % 2 * 8, rows=draw.choice((1, 1, 5, 40, 300))))
        for number in range(200)
    ]
    made = guarded(1_024, True, learnt)._serving[name]()
    served = serve(Lawful(made, 1_024, replace=False), arrivals, lambda batch: [])
    assert sum(map(len, served.batches)) + len(served.late) == len(arrivals)
