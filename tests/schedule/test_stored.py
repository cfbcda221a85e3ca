"""Profiles as bytes: what is written is read, what is hostile is refused."""

import json
import math
import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hams_schedule.limits import profile_bytes_max
from hams_schedule.profile import Profiles
from hams_schedule.stored import ProfileRefused, dump, load, merge

from .kit import LONG_S, profiles

HERE = "models:Sleep 3f2a x86"


def packed(document: object) -> bytes:
    return zlib.compress(json.dumps(document).encode())


def good() -> dict[str, object]:
    document = json.loads(zlib.decompress(dump(profiles(), HERE)))
    assert isinstance(document, dict)
    return document


def mean_of(learnt: Profiles, app: str) -> float:
    grid = learnt.grid
    assert grid is not None
    return grid.mean(learnt.cdfs()[learnt.classes.class_of(app, math.nan)])


def test_what_is_dumped_is_loaded() -> None:
    learnt = profiles()
    data = dump(learnt, HERE)
    assert len(data) <= profile_bytes_max
    read = load(data, HERE)
    assert mean_of(read, "long") == pytest.approx(mean_of(learnt, "long"), rel=1e-3)
    assert read.times.law(6) == pytest.approx(learnt.times.law(6), rel=1e-3)
    assert read.samples > 200


def test_a_profile_of_another_model_is_a_prior() -> None:
    learnt = profiles()
    read = load(dump(learnt, "models:Other"), HERE)
    assert mean_of(read, "long") == pytest.approx(LONG_S, rel=0.2)
    assert 0 < read.samples <= 60


def test_a_full_profile_fits() -> None:
    learnt = Profiles()
    draw = random.Random(3)
    for _ in range(20_000):
        app, feature = f"application-{draw.randrange(16)}-{'x' * 40}", draw.uniform(1, 10)
        learnt.classify(app, feature)
        learnt.observe_alone(app, feature, draw.lognormvariate(-3, 1.5))
    learnt.settle()
    data = dump(learnt, HERE)
    assert len(data) <= profile_bytes_max
    load(data, HERE)


def test_merging_adds_what_others_know_up_to_a_weight() -> None:
    mine, theirs = profiles(seed=1, samples=40), profiles(seed=2, samples=3_000)
    before = sum(mine.laws[mine.classes.class_of("long", math.nan)].recent)
    merge(mine, theirs)
    added = sum(mine.laws[mine.classes.class_of("long", math.nan)].recent) - before
    assert added == pytest.approx(512.0, rel=0.01)
    empty = Profiles()
    merge(empty, theirs)
    assert mean_of(empty, "long") == pytest.approx(LONG_S, rel=0.1)
    merge(empty, Profiles())


HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "text": b"profile",
    "torn": dump(profiles(), HERE)[:-20],
    "a list": packed([1, 2]),
    "no format": packed({}),
    "another format": packed({**good(), "format": 2}),
    "a bomb": zlib.compress(b" " * 10_000_000),
    "too long": b"x" * (profile_bytes_max + 1),
    "deep": zlib.compress(b"[" * 100_000),
    "no grid": packed({**good(), "grid": None}),
    "a grid of text": packed({**good(), "grid": ["0", "1"]}),
    "a grid backwards": packed({**good(), "grid": [1.0, 0.1]}),
    "a grid of NaN": packed({**good(), "grid": [float("nan"), 1.0]}),
    "a grid of huge numbers": packed({**good(), "grid": [1, 10**400]}),
    "many apps": packed({**good(), "apps": {str(number): [number] for number in range(17)}}),
    "a slot twice": packed({**good(), "apps": {"a": [1], "b": [1]}}),
    "a slot of nobody": packed({**good(), "apps": {"a": [16]}}),
    "half a slot": packed({**good(), "apps": {"a": [0.5]}}),
    "a long name": packed({**good(), "apps": {"a" * 65: [0]}}),
    "edges that fall": packed({**good(), "apps": {"a": [0, 2.0, 1.0]}}),
    "many edges": packed({**good(), "apps": {"a": list(range(10))}}),
    "a class of nobody": packed({**good(), "laws": {"129": []}}),
    "a class of text": packed({**good(), "laws": {"-1": []}}),
    "a cell outside": packed({**good(), "laws": {"0": [[128, 1.0]]}}),
    "a count below zero": packed({**good(), "laws": {"0": [[1, -1.0]]}}),
    "a count of infinity": zlib.compress(json.dumps({**good(), "laws": {"0": [[1, math.inf]]}}).encode()),
    "a boolean": packed({**good(), "laws": {"0": [[1, True]]}}),
    "sizes of four": packed({**good(), "sizes": {"2": [1, 2, 3, 4]}}),
    "a size of 65": packed({**good(), "sizes": {"65": [1, 1, 1, 1, 1]}}),
    "sums below zero": packed({**good(), "sizes": {"2": [1, 1, -1, 1, 1]}}),
}


@pytest.mark.parametrize("what", list(HOSTILE))
def test_hostile_bytes_are_refused(what: str) -> None:
    with pytest.raises(ProfileRefused, match="expected"):
        load(HOSTILE[what], HERE)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(member=st.sampled_from(["format", "grid", "apps", "laws", "sizes"]), value=json_values)
def test_whatever_a_member_is_a_profile_is_read_or_refused(member: str, value: object) -> None:
    try:
        read = load(packed({**good(), member: value}), HERE)
    except ProfileRefused:
        return
    assert len(read.laws) <= 32


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_whatever_bytes_come_a_profile_is_read_or_refused(data: bytes) -> None:
    with pytest.raises(ProfileRefused):
        load(data, HERE)
