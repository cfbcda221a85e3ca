"""A profile that is taken over on another machine: one factor, found in the first batches, and never where
there is none."""

import math
import random
from collections.abc import Callable

import pytest

from hams_schedule.limits import speed_batches, speed_held_max
from hams_schedule.policies.distribution import Distribution
from hams_schedule.profile import Profiles
from hams_schedule.speed import FirstBatch, Speed
from hams_schedule.stored import dump, load, merge

from .kit import LONG_S, MAX_ROWS, SHORT_S, Took, Work, profiles, time_of

HERE = "models:Sleep 3f2a x86"
SEEDS = 200
WRONG_MAX = 0.02
"""Share of takeovers on the same machine that may scale anything."""
LAWS: dict[str, Callable[[random.Random], float]] = {
    "normal": lambda drawn: drawn.gauss(0.06, 0.01),
    "lognormal .3": lambda drawn: drawn.lognormvariate(-3.0, 0.3),
    "lognormal .5": lambda drawn: drawn.lognormvariate(-3.0, 0.5),
    "exponential": lambda drawn: drawn.expovariate(20.0) + 1e-4,
    "two modes": lambda drawn: drawn.gauss(0.02, 0.002) if drawn.random() < 0.5 else drawn.gauss(0.1, 0.01),
    "rare and long": lambda drawn: drawn.gauss(0.02, 0.002) if drawn.random() < 0.9 else 0.3,
}


def taken_over(learnt: Profiles) -> Profiles:
    fresh = Profiles()
    merge(fresh, load(dump(learnt, HERE), HERE))
    fresh.take_over()
    return fresh


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


@pytest.mark.parametrize("factor", [0.2, 0.5, 1.6, 4.0])
def test_everything_is_expected_to_take_as_long_as_it_takes_here(factor: float) -> None:
    learnt, here = taken_over(profiles()), profiles()
    before = learnt.revision
    serve(learnt, factor, speed_batches)
    for app in ("short", "long"):
        for rows in (1, 4, 6):
            assert expected(learnt, app, rows) == pytest.approx(factor * expected(here, app, rows), rel=0.15)
    assert learnt.revision > before, "tables are made anew"
    assert learnt.resets == 1, "it is stored again, and told"
    assert learnt.longest_s <= 1.3 * factor * time_of(LONG_S, 6)


@pytest.mark.parametrize("law", LAWS)
def test_the_same_machine_is_the_same_whatever_the_law(law: str) -> None:
    """Batches of one, and nothing that tells requests apart."""
    wrong = 0
    for seed in range(SEEDS):
        drawn, learnt = random.Random(seed), Profiles()
        for _ in range(200):
            learnt.classify("", math.nan)
            learnt.observe_alone("", math.nan, LAWS[law](drawn))
        learnt.settle()
        there = taken_over(learnt)
        cls = there.classes.class_of("", math.nan)
        for number in range(speed_batches):
            there.observe_batch([cls], 1, LAWS[law](drawn), float(number))
        assert not there.compares
        wrong += there.resets > 0
    assert wrong <= WRONG_MAX * SEEDS


def test_the_batches_of_the_same_machine_are_learnt() -> None:
    learnt = taken_over(profiles())
    samples = learnt.samples
    serve(learnt, 1.0, speed_batches - 1)
    assert (learnt.samples, learnt.held) == (samples, speed_batches - 1)
    serve(learnt, 1.0, 1)
    assert (learnt.samples, learnt.held) == (samples + speed_batches, 0), "none of them is lost"


def test_times_that_something_else_made_longer_say_nothing() -> None:
    learnt = taken_over(profiles())
    serve(learnt, 3.0, speed_held_max - 1, weight=0.5)
    assert learnt.compares
    serve(learnt, 3.0, 1, weight=0.5)
    assert not learnt.compares, "it is not asked for ever"
    assert learnt.resets == 0


def test_the_first_batches_of_a_process_are_no_slower_machine() -> None:
    learnt = taken_over(profiles())
    serve(learnt, 6.0, 5)
    serve(learnt, 1.0, speed_batches - 5)
    assert not learnt.compares
    assert learnt.resets == 0


def test_sizes_that_nobody_has_seen_are_compared_with_nothing() -> None:
    """Learnt from batches of one; what batches of eight take is a guess, with a surcharge."""
    alone = Profiles()
    drawn = random.Random(1)
    for _ in range(200):
        alone.classify("", math.nan)
        alone.observe_alone("", math.nan, drawn.gauss(0.06, 0.005))
    alone.settle()
    learnt = taken_over(alone)
    cls = learnt.classes.class_of("", math.nan)
    for number in range(speed_held_max):
        learnt.observe_batch([cls] * 8, 8, 0.06 * 1.35, float(number))
    assert not learnt.compares
    assert learnt.expected(((cls, 1),), 1) == pytest.approx(0.06, rel=0.1)


def test_an_application_that_nobody_has_seen_is_compared_with_nothing() -> None:
    learnt = taken_over(profiles())
    cls = learnt.classify("new", math.nan)
    for number in range(speed_held_max):
        learnt.observe_batch([cls], 1, 10 * LONG_S, float(number))
    assert expected(learnt, "short", 1) == pytest.approx(SHORT_S, rel=0.1)


def test_a_profile_of_a_slow_machine_does_not_shed_everything_for_ever() -> None:
    """By that profile nothing would be in time; what runs nevertheless says otherwise."""
    learnt = taken_over(profiles())
    policy: Distribution[Work] = Distribution(MAX_ROWS, True, learnt)
    cls, ran = learnt.classes.class_of("long", math.nan), 0
    for number in range(200):
        now = float(number)
        policy.add(Work(due=now + 0.5 * LONG_S, cls=cls), now)
        policy.late(now)
        units = policy.take(now)
        if units:
            ran += 1
            policy.started(number, units, now)
            policy.finished(number, Took(0.2 * LONG_S, 0.2 * LONG_S), now + 0.2 * LONG_S)
        while policy.plan(now, 0.01):
            pass
    assert ran > 150
    assert expected(learnt, "long", 1) == pytest.approx(0.2 * LONG_S, rel=0.2)


def test_a_profile_of_something_else_altogether_is_not_scaled() -> None:
    speed = Speed()
    for _ in range(speed_batches):
        batch = FirstBatch([0], 1, 1000.0, 0.0, 1.0)
        batch.expected_s = 1.0
        speed.held.append(batch)
    assert speed.factor(100) == 1.0


def test_classes_that_others_have_now_are_left_out() -> None:
    speed = Speed()
    speed.held = [FirstBatch(members, len(members), 1.0, 0.0, 1.0) for members in ([0], [1, 2], [2])]
    speed.leave({2})
    assert [batch.members for batch in speed.held] == [[0]]


def test_a_profile_that_was_learnt_here_compares_nothing() -> None:
    learnt = profiles()
    samples = learnt.samples
    serve(learnt, 1.0, 3)
    assert learnt.samples == samples + 3
