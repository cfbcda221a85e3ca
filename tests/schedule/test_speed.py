"""A profile that is taken over on another machine: one factor, found in the first batches."""

import math
import random

import pytest

from hams_schedule.limits import speed_batches_max, speed_batches_min
from hams_schedule.profile import Profiles
from hams_schedule.speed import FirstBatch, Speed, middle
from hams_schedule.stored import dump, load

from .kit import LONG_S, SHORT_S, profiles, time_of

HERE = "models:Sleep 3f2a x86"


def taken_over() -> Profiles:
    learnt = load(dump(profiles(), HERE), HERE)
    learnt.take_over()
    return learnt


def serve(learnt: Profiles, factor: float, batches: int, seed: int = 5, weight: float = 1.0) -> None:
    """Batches of one to six requests, on a machine that takes `factor` times as long."""
    drawn = random.Random(seed)
    for number in range(batches):
        apps = [drawn.choice(("short", "long")) for _ in range(drawn.randint(1, 6))]
        longest = max(drawn.gauss(1.0, 0.1) * (SHORT_S if app == "short" else LONG_S) for app in apps)
        members = [learnt.classes.class_of(app, math.nan) for app in apps]
        took = factor * time_of(longest, len(apps))
        learnt.observe_batch(members, len(apps), took, float(number), weight)


def expected(learnt: Profiles, app: str, rows: int) -> float:
    return learnt.expected(((learnt.classes.class_of(app, math.nan), rows),), rows)


@pytest.mark.parametrize("factor", [0.2, 0.5, 1.5, 4.0])
def test_after_a_few_batches_everything_is_expected_to_take_as_long_as_it_takes_here(factor: float) -> None:
    learnt, here = taken_over(), profiles()
    before = learnt.revision
    serve(learnt, factor, speed_batches_max)
    for app in ("short", "long"):
        for rows in (1, 4, 6):
            assert expected(learnt, app, rows) == pytest.approx(factor * expected(here, app, rows), rel=0.15)
    assert learnt.revision > before, "tables are made anew"
    assert learnt.longest_s <= 1.3 * factor * time_of(LONG_S, 6)


def test_the_same_machine_changes_nothing_and_its_batches_are_learnt() -> None:
    learnt = taken_over()
    low, samples = learnt.grid.low if learnt.grid else 0.0, learnt.samples
    serve(learnt, 1.0, speed_batches_max)
    assert learnt.grid is not None
    assert learnt.grid.low == low
    assert learnt.samples == samples + speed_batches_max, "none of them is lost"


def test_nothing_is_learnt_while_the_speed_is_not_known() -> None:
    learnt = taken_over()
    samples = learnt.samples
    serve(learnt, 3.0, speed_batches_min - 1)
    assert learnt.samples == samples
    assert expected(learnt, "long", 1) == pytest.approx(LONG_S, rel=0.1)


def test_times_that_something_else_made_longer_say_nothing() -> None:
    learnt = taken_over()
    serve(learnt, 3.0, speed_batches_max, weight=0.5)
    assert expected(learnt, "long", 1) == pytest.approx(LONG_S, rel=0.2)


def test_one_class_that_is_slower_is_no_other_machine() -> None:
    """Half of the batches as expected, the other half at three times: the profile stays, and learns."""
    drawn, speed = random.Random(2), Speed()
    while not speed.add(FirstBatch([0], 1, drawn.choice((1.0, 3.0)), 0.0, 1.0), 1.0):
        assert len(speed.held) < speed_batches_max
    assert speed.factor == 1.0


def test_a_profile_of_something_else_altogether_is_not_scaled() -> None:
    speed = Speed()
    while not speed.add(FirstBatch([0], 1, 1000.0, 0.0, 1.0), 1.0):
        pass
    assert speed.factor == 1.0


def test_classes_that_others_have_now_are_left_out() -> None:
    speed = Speed()
    for members in ([0], [1, 2], [2]):
        speed.add(FirstBatch(members, len(members), 1.0, 0.0, 1.0), 0.0)
    speed.leave({2})
    assert [batch.members for batch in speed.held] == [[0]]


def test_the_median() -> None:
    assert middle([3.0, 1.0, 2.0]) == 2.0
    assert middle([4.0, 1.0, 2.0, 3.0]) == 2.5


def test_a_profile_that_was_learnt_here_compares_nothing() -> None:
    learnt = profiles()
    samples = learnt.samples
    serve(learnt, 1.0, 3)
    assert learnt.samples == samples + 3
