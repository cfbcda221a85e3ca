"""What profiles learn, forget, notice and refuse."""

import gc
import math
import random
import sys
from types import FunctionType, ModuleType

import pytest

from hams_schedule.classes import REST, Classes, best_edges
from hams_schedule.limits import (
    apps_max,
    classes_max,
    features_max,
    records_max,
    refresh_samples,
    sweep_batches,
)
from hams_schedule.profile import Profiles
from hams_schedule.shapes import Cdf
from hams_schedule.times import BatchTimes, isotonic

from .kit import time_of


def distance(learnt: Profiles, cls: int, mean: float, sd: float) -> float:
    """Kolmogorov-Smirnov distance of a learnt law from a normal one, in the middle of cells."""
    grid = learnt.grid
    assert grid is not None
    cdf: Cdf = learnt.cdfs()[cls]
    worst = 0.0
    for step in range(400):
        time = mean + sd * (step - 200) / 50
        if time > 0:
            true = 0.5 * (1 + math.erf((time - mean) / sd / math.sqrt(2)))
            worst = max(worst, abs(grid.chance(cdf, time) - true))
    return worst


def from_batches(rows_max: int, alone_share: float, requests: int = 3_000, sweeps: int = 3) -> Profiles:
    """Two applications that are only ever seen in mixed batches, but for a share of stand-alone runs. Sizes
    are known."""
    draw = random.Random(4)
    learnt = Profiles()
    for app in ("a", "b"):
        learnt.classify(app, math.nan)
    law = {"a": (0.020, 0.004), "b": (0.060, 0.010)}
    for rows in range(2, 9):
        for _ in range(60):
            x = draw.uniform(0.02, 0.08)
            learnt.times.observe(rows, x, time_of(x, rows), 1.0)
    learnt.times.refit()
    seen = 0
    while seen < requests:
        rows = draw.randint(1, rows_max)
        apps = [draw.choice("ab") for _ in range(rows)]
        times = [max(draw.gauss(*law[app]), 0.001) for app in apps]
        members = [learnt.classes.class_of(app, math.nan) for app in apps]
        learnt.observe_batch(members, rows, time_of(max(times), rows), seen / 100)
        for app, time in zip(apps, times, strict=True):
            if draw.random() < alone_share:
                learnt.observe_alone(app, math.nan, time)
        while learnt.refresh():
            pass
        seen += rows
    for _ in range(sweeps):
        learnt.settle()
    return learnt


@pytest.mark.parametrize(("rows_max", "alone", "most"), [(4, 0.0, 0.06), (8, 0.0, 0.13), (8, 0.02, 0.10)])
def test_laws_are_learnt_from_mixed_batches(rows_max: int, alone: float, most: float) -> None:
    learnt = from_batches(rows_max, alone)
    for app, (mean, sd) in {"a": (0.020, 0.004), "b": (0.060, 0.010)}.items():
        assert distance(learnt, learnt.classes.class_of(app, math.nan), mean, sd) < most


def test_a_batch_beside_something_else_weighs_less_and_is_no_drift_and_no_longest_time() -> None:
    learnt, beside = Profiles(), Profiles()
    for profiles in (learnt, beside):
        cls = profiles.classify("a", math.nan)
        for _ in range(300):
            profiles.observe_batch([cls], 1, 0.02, 0.0)
        profiles.settle()
    for _ in range(20):
        learnt.observe_batch([cls], 1, 0.2, 1.0, 0.25)
        learnt.observe_batch([cls, cls], 2, 0.9, 1.0, 0.25)
    assert learnt.resets == 0
    assert learnt.longest_s == pytest.approx(0.02)
    for _ in range(300):
        beside.observe_batch([cls], 1, 0.02, 1.0)
        learnt.observe_batch([cls], 1, 0.02, 1.0)
    for profiles in (learnt, beside):
        profiles.settle()
    law = learnt.laws[cls]
    assert sum(law.recent) == pytest.approx(600 + 20 * 0.25)
    assert beside.resets == learnt.resets == 0


def test_a_drift_resets_the_class_within_200_requests() -> None:
    learnt = Profiles()
    draw = random.Random(6)
    cls = learnt.classify("a", math.nan)
    for _ in range(600):
        learnt.observe_alone("a", math.nan, draw.gauss(0.02, 0.002))
    learnt.settle()
    for _ in range(300):
        learnt.observe_batch([cls], 1, draw.gauss(0.02, 0.002), 1.0)
    assert learnt.resets == 0
    noticed = 0
    while learnt.resets == 0:
        noticed += 1
        assert noticed <= 200
        learnt.observe_batch([cls], 1, draw.gauss(0.03, 0.003), 2.0)
    for _ in range(100):
        learnt.observe_batch([cls], 1, draw.gauss(0.03, 0.003), 3.0)
    learnt.settle()
    grid = learnt.grid
    assert grid is not None
    assert grid.mean(learnt.cdfs()[cls]) == pytest.approx(0.03, rel=0.05)


def test_what_is_two_memories_old_is_forgotten() -> None:
    learnt = Profiles(memory_s=10.0)
    cls = learnt.classify("a", math.nan)
    for at, mean in ((0.0, 0.02), (11.0, 0.021), (22.0, 0.022)):
        for _ in range(100):
            learnt.observe_batch([cls], 1, mean, at)
    learnt.settle()
    # 100 of the newest, 100 of the generation before at half weight, none of the first
    assert sum(learnt.laws[cls].counts()) == pytest.approx(150.0)


@pytest.mark.parametrize("time", [0.0, -1.0, math.nan, math.inf, 1e9])
def test_a_time_of_no_clock_is_ignored_and_counted(time: float) -> None:
    learnt = Profiles()
    cls = learnt.classify("a", math.nan)
    learnt.observe_alone("a", math.nan, time)
    learnt.observe_batch([cls], 1, time, 0.0)
    learnt.observe_batch([cls], 4, time, 0.0)
    assert learnt.ignored == 3
    assert learnt.samples == 0
    learnt.settle()
    assert learnt.cdfs() == {}


@pytest.mark.parametrize(
    ("members", "rows", "weight"), [([], 1, 1.0), ([0], 0, 1.0), ([0], 10**9, 1.0), ([0], 1, 0.0)]
)
def test_a_batch_that_cannot_be_is_ignored(members: list[int], rows: int, weight: float) -> None:
    learnt = Profiles()
    learnt.observe_batch(members, rows, 0.1, 0.0, weight)
    assert (learnt.ignored, learnt.samples) == (1, 0)


def test_a_class_with_few_samples_borrows_from_everything() -> None:
    learnt = Profiles()
    for app, count, time in (("many", 300, 0.02), ("few", 3, 0.5)):
        for _ in range(count):
            learnt.classify(app, math.nan)
            learnt.observe_alone(app, math.nan, time)
    learnt.settle()
    grid = learnt.grid
    assert grid is not None
    few = learnt.cdfs()[learnt.classes.class_of("few", math.nan)]
    assert 0.02 < grid.mean(few) < 0.12


def test_times_outside_the_grid_rebuild_it() -> None:
    learnt = Profiles()
    cls = learnt.classify("a", math.nan)
    for _ in range(300):
        learnt.observe_alone("a", math.nan, 0.02)
    learnt.settle()
    for _ in range(100):
        learnt.observe_alone("a", math.nan, 2.0)
    learnt.settle()
    grid = learnt.grid
    assert grid is not None
    assert grid.high > 2.0
    assert grid.quantile(learnt.cdfs()[cls], 0.9) == pytest.approx(2.0, rel=0.1)


def test_a_hundred_thousand_application_ids_are_bounded() -> None:
    learnt = Profiles()
    for number in range(100_000):
        learnt.classify(f"client-{number}", float(number))
        if number % 100 == 0:
            learnt.observe_alone(f"client-{number}", 1.0, 0.02)
    learnt.classify("x" * 1_000_000, 0.0)
    learnt.settle()
    assert len(learnt.classes.apps) <= apps_max
    assert len(learnt.laws) <= classes_max
    assert all(len(name) < 100 for name in learnt.classes.apps)


def test_a_frequent_application_takes_the_place_of_a_rare_one() -> None:
    classes = Classes()
    for number in range(apps_max):
        classes.classify(f"early-{number}", math.nan)
    assert classes.classify("late", math.nan) == REST
    for _ in range(200):
        classes.classify("late", math.nan)
    assert classes.class_of("late", math.nan) != REST
    assert len(classes.apps) == apps_max
    assert classes.vacated


def handed_over(before_s: float) -> tuple[Profiles, int, int]:
    """A profile in which an application has lost its place to "late", after batches that took `before_s`;
    the class of that place, and one of another application."""
    learnt = Profiles()
    for _ in range(60):
        learnt.observe_alone("other", math.nan, 0.02)
    for number in range(apps_max):
        for _ in range(1 if number == 0 else 20):
            learnt.classify(f"early-{number}", math.nan)
    place, other = (learnt.classes.class_of(f"early-{number}", math.nan) for number in (0, 1))
    for _ in range(300):
        learnt.observe_batch([place, place], 2, before_s, 0.0)
    learnt.settle()
    while learnt.classes.class_of("late", math.nan) == REST:
        learnt.classify("late", math.nan)
    assert learnt.classes.class_of("late", math.nan) == place
    while learnt.refresh(force=True):
        pass
    return learnt, place, other


def test_a_class_that_is_made_anew_during_a_sweep_breaks_nothing() -> None:
    learnt, place, other = handed_over(0.02)
    for _ in range(300):
        learnt.observe_batch([other, other], 2, 0.02, 1.0)
    assert learnt.refresh(), "the first slice of a sweep"
    learnt.observe_batch([place, other], 2, 0.02, 2.0)
    learnt.settle()
    assert place in learnt.cdfs()


def test_an_application_is_not_credited_with_the_batches_of_the_one_before_in_its_place() -> None:
    learnt, place, _ = handed_over(1.0)
    for _ in range(60):
        learnt.observe_batch([place], 1, 0.02, 1.0)
    learnt.settle()
    assert learnt.expected(((place, 1),), 1) == pytest.approx(0.02, rel=0.2)


def test_a_bucket_is_not_credited_with_batches_from_before_it_was_cut() -> None:
    learnt = Profiles()
    whole = learnt.classify("", 9.0)
    for _ in range(200):
        learnt.observe_batch([whole, whole], 2, 0.2, 0.0)
    for number in range(2 * features_max):
        feature = 1.0 + 8.0 * (number % 2)
        learnt.observe_alone("", feature, feature / 100)
    while learnt.refresh(force=True):
        pass
    short, long = learnt.classes.class_of("", 1.0), learnt.classes.class_of("", 9.0)
    assert whole == short != long
    learnt.settle()
    assert learnt.expected(((short, 1),), 1) == pytest.approx(0.01, rel=0.2)


def test_what_is_expected_stays_true_where_the_grid_is_widened_before_laws_are_made_anew() -> None:
    learnt = Profiles()
    cls = learnt.classify("a", math.nan)
    for _ in range(300):
        learnt.observe_alone("a", math.nan, 0.02)
    learnt.settle()
    grid, revision = learnt.grid, learnt.revision
    for _ in range(10):
        learnt.observe_alone("a", math.nan, 4.0)
    for _ in range(sweep_batches):
        learnt.observe_batch([cls, cls], 2, 0.03, 1.0)
    assert learnt.refresh(), "a sweep is due"
    assert learnt.grid is not grid
    assert learnt.revision > revision
    assert learnt.expected(((cls, 1),), 1) < 0.2, "310 samples, ten of them of 4 s: 0.15 in the mean"


def test_a_grid_that_is_widened_during_a_sweep_begins_it_again_and_it_ends() -> None:
    learnt = Profiles()
    cls = learnt.classify("a", math.nan)
    for _ in range(60):
        learnt.observe_alone("a", math.nan, 0.02)
    for _ in range(300):
        learnt.observe_batch([cls, cls], 2, 0.03, 1.0)
    learnt.settle()
    for _ in range(sweep_batches):
        learnt.observe_batch([cls, cls], 2, 0.03, 1.0)
    assert learnt.refresh(), "the first slice of a sweep"
    for _ in range(10):
        learnt.observe_alone("a", math.nan, 4.0)
    slices = 0
    while learnt.refresh():
        slices += 1
        assert slices < 20


def test_a_feature_that_tells_the_time_is_cut_and_one_that_does_not_is_not() -> None:
    draw = random.Random(9)
    telling = [(feature, math.log(feature)) for feature in (draw.uniform(1, 10) for _ in range(800))]
    silent = [(draw.uniform(1, 10), math.log(draw.uniform(1, 10))) for _ in range(800)]
    assert len(best_edges(telling, [], 31)) == 7
    assert best_edges(silent, [], 31) == []
    assert best_edges(telling[:20], [], 31) == []
    assert len(best_edges(telling, [], 1)) == 1
    assert len(best_edges(telling[:100], [], 31)) == 1, "each bucket has 30 samples"


def test_buckets_are_learnt_and_their_laws_follow() -> None:
    learnt = Profiles()
    draw = random.Random(10)
    for _ in range(features_max):
        feature = draw.uniform(1.0, 10.0)
        learnt.classify("", feature)
        learnt.observe_alone("", feature, feature / 100)
    learnt.settle()
    grid = learnt.grid
    assert grid is not None
    short, long = learnt.classes.class_of("", 1.2), learnt.classes.class_of("", 9.8)
    assert short != long
    assert grid.mean(learnt.cdfs()[short]) < 0.025 < 0.08 < grid.mean(learnt.cdfs()[long])


def test_a_feature_is_cut_as_soon_as_two_buckets_have_samples() -> None:
    learnt = Profiles()
    draw = random.Random(11)
    for _ in range(2 * refresh_samples):
        feature = draw.uniform(1.0, 10.0)
        learnt.classify("", feature)
        learnt.observe_alone("", feature, feature / 100)
        learnt.refresh()
    assert learnt.classes.class_of("", 1.2) != learnt.classes.class_of("", 9.8)


def size_of(value: object) -> int:
    """Bytes of a value and all it holds, whatever it is made of: slots, attributes, machine code."""
    seen: dict[int, object] = {}
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if id(item) not in seen and not isinstance(item, type | ModuleType | FunctionType):
            seen[id(item)] = item
            waiting += gc.get_referents(item)
    return sum(map(sys.getsizeof, seen.values()))


def test_the_fit_of_sizes_finds_the_law_of_a_model() -> None:
    times = BatchTimes()
    draw = random.Random(12)
    for rows in (2, 4, 8, 16):
        for _ in range(100):
            x = draw.uniform(0.02, 0.1)
            times.observe(rows, x, (0.75 + 0.25 * rows) * x + 0.002 + draw.gauss(0, 0.001), 1.0)
    times.refit()
    for rows in (2, 4, 6, 8, 12, 16):
        base, slope = times.law(rows)
        assert base + slope * 0.06 == pytest.approx((0.75 + 0.25 * rows) * 0.06 + 0.002, rel=0.03)
        assert times.known(rows)
    assert times.law(1) == times.law(0) == BatchTimes().law(0) == (0.0, 1.0)
    assert not times.known(32)
    base, slope = times.law(32)
    assert base + slope * 0.06 > (0.75 + 0.25 * 32) * 0.06, "what is unknown is taken to be longer"


def test_a_model_without_variance_is_fitted_too() -> None:
    times = BatchTimes()
    for rows in (2, 4):
        for _ in range(20):
            times.observe(rows, 0.01, 0.01 * rows, 1.0)
    times.refit()
    base, slope = times.law(4)
    assert base + slope * 0.01 == pytest.approx(0.04, rel=0.02)


def test_pooling_makes_a_sequence_ascend() -> None:
    assert isotonic([1.0, 3.0, 2.0, 4.0], [1.0, 1.0, 1.0, 1.0]) == [1.0, 2.5, 2.5, 4.0]
    assert isotonic([3.0, 2.0, 1.0], [1.0, 1.0, 2.0]) == pytest.approx([1.75] * 3)


def test_a_profile_of_two_applications_is_small() -> None:
    """With as many batches as it holds, none of them of one class alone."""
    learnt, draw = from_batches(8, 0.1, 1_000, 1), random.Random(5)
    a, b = (learnt.classes.class_of(app, math.nan) for app in "ab")
    for number in range(records_max):
        half = 1 + number % 4
        longest = max([draw.gauss(0.060, 0.010) for _ in range(half)])
        learnt.observe_batch([a, b] * half, 2 * half, time_of(longest, 2 * half), 40.0 + number)
    learnt.settle()
    assert len(learnt.records) == records_max
    assert 100 * 1024 < size_of(learnt) < 256 * 1024


def test_a_profile_of_as_many_applications_and_features_as_there_may_be_is_bounded() -> None:
    learnt = Profiles()
    draw = random.Random(3)
    for _ in range(features_max):
        for number in range(apps_max):
            feature = draw.uniform(1, 10)
            learnt.classify(f"application-{number}", feature)
            learnt.observe_alone(f"application-{number}", feature, feature * draw.lognormvariate(-5, 0.1))
    learnt.settle()
    for _ in range(records_max):
        names = [f"application-{draw.randrange(apps_max)}" for _ in range(8)]
        members = [learnt.classes.class_of(name, draw.uniform(1, 10)) for name in names]
        learnt.observe_batch(members, 8, draw.uniform(0.05, 0.5), 0.0)
    learnt.settle()
    assert len(learnt.records) == records_max
    assert len(learnt.laws) == classes_max - 1
    assert 512 * 1024 < size_of(learnt) < 1024 * 1024
