"""Profiles as bytes: what is written is read, what is hostile is refused."""

import json
import math
import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hams_schedule.limits import profile_bytes_max
from hams_schedule.policies.distribution import Distribution
from hams_schedule.profile import Profiles
from hams_schedule.stored import ProfileRefused, dump, load, merge, parts_of
from hams_schedule.stored import packed as packed_parts

from .kit import LONG_S, MAX_ROWS, Took, Work, profiles

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


MUTATED = 10_000
VALUES: tuple[object, ...] = (
    None, True, "", "x" * 70, -1, 0, 1, 2, 0.5, 1e-320, 1e-7, 1e9, 1e300, -1e300, 10**400, math.nan, math.inf,
    [], {}, [0], [1e300] * 5, {"0": [[0, 1e9]]},
)  # fmt: skip


def mutated(value: object, draw: random.Random) -> object:
    """The document with one of its values, however deep, changed, lost, repeated or renamed."""
    if not isinstance(value, (dict, list)) or not value or draw.random() < 0.15:
        changed = value * draw.choice((0.0, -1.0, 1e-9, 1e6, 1e200)) if type(value) is float else None
        return draw.choice((*VALUES, changed))
    if isinstance(value, list):
        at = draw.randrange(len(value))
        kind = draw.random()
        if kind < 0.1:
            return value[:at] + value[at + 1 :]
        if kind < 0.2:
            return value + value[at:]
        return [*value[:at], mutated(value[at], draw), *value[at + 1 :]]
    name = draw.choice(list(value))
    rest = {other: item for other, item in value.items() if other != name}
    kind = draw.random()
    if kind < 0.05:
        return rest
    if kind < 0.1:
        return rest | {draw.choice(("", "0", "128", "-1", "9" * 20, "short")): value[name]}
    return rest | {name: mutated(value[name], draw)}


def serves(learnt: Profiles) -> None:
    """A policy that knows this serves a few requests."""
    policy: Distribution[Work] = Distribution(MAX_ROWS, False, learnt)
    for number in range(4):
        policy.add(Work(due=0.5, cls=learnt.classify("long" if number % 2 else "x", math.nan)), 0.0)
    left = 4
    while left:
        batch = policy.take(0.01)
        assert batch
        policy.started(left, batch, 0.01)
        while policy.plan(0.01, 0.01):
            pass
        policy.finished(left, Took(0.02), 0.03)
        left -= len(batch)


def test_ten_thousand_mutated_profiles_are_refused_or_serve() -> None:
    draw, plain, whole = random.Random(11), good(), dump(profiles(), HERE)
    read = refused = 0
    for number in range(MUTATED):
        if number % 4:
            data = packed(mutated(plain, draw))
        else:
            torn = bytearray(whole)
            for _ in range(draw.randrange(1, 4)):
                torn[draw.randrange(len(torn))] = draw.randrange(256)
            data = bytes(torn[: draw.randrange(len(torn) + 1)] if number % 8 else torn)
        try:
            theirs = load(data, HERE)
        except ProfileRefused:
            refused += 1
            continue
        read += 1
        learnt = Profiles()
        merge(learnt, theirs)
        assert all(math.isfinite(value) for rows in (1, 2, 5, 64) for value in learnt.times.law(rows))
        for cls in learnt.laws:
            assert 0.0 <= learnt.expected(((cls, 2),), 2) < math.inf or learnt.times.law(2)[0] < 0.0
        if read % 8 == 0:
            serves(learnt)
    assert read > 500
    assert refused > 5_000


def test_sizes_of_another_model_weigh_as_little_as_its_classes() -> None:
    read = load(dump(profiles(), "models:Other"), HERE)
    assert 0.0 < max(sums.w for sums in read.times.recent.values()) <= 20.0


def test_what_is_written_is_of_one_moment_whatever_is_learnt_meanwhile() -> None:
    learnt = profiles()
    parts = parts_of(learnt, HERE)
    before = mean_of(load(packed_parts(parts), HERE), "long")
    learnt.forget()
    assert mean_of(load(packed_parts(parts), HERE), "long") == before
    assert (learnt.samples, learnt.laws, learnt.cdfs()) == (0, {}, {})


def test_what_is_forgotten_is_known_no_more_and_can_be_learnt_anew() -> None:
    learnt = profiles()
    policy: Distribution[Work] = Distribution(MAX_ROWS, False, learnt)
    policy.add(Work(due=9.0), 0.0)
    policy.started(1, policy.take(0.0), 0.0)
    assert policy.tables is not None
    revision = learnt.revision
    learnt.forget()
    policy.plan(0.0, 1.0)
    assert policy.tables is None
    assert learnt.revision > revision
    merge(learnt, profiles(seed=3))
    assert mean_of(learnt, "long") == pytest.approx(LONG_S, rel=0.1)
    policy.finished(1, Took(0.02), 0.02)
    while policy.plan(0.02, 1.0):
        pass
    assert policy.tables is not None
