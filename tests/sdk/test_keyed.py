"""`Keyed`: a mapping in the state that knows itself what was written, and evicts the same keys wherever it
goes on."""

from collections import OrderedDict
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sdk.capturing import CHUNK, Proxy, whole

from hams_sdk import Keyed, KeyedFull
from hams_sdk.errors import ModelFault, StateFault
from hams_sdk.state import State

PAIR = np.dtype((np.float32, (2,)))


def opened(keyed: Keyed) -> State:
    """A state of it, in its update stage for ever."""
    state = State({"keyed": keyed, "other": np.zeros(3)})
    state.open(True)
    return state


def loaded(state: State, **options: Any) -> Keyed:
    """A fresh mapping that has taken the state over."""
    keyed = Keyed(**options)
    other = opened(keyed)
    other.load(memoryview(bytearray(whole(state))))
    assert whole(other) == whole(state)
    other.open(True)
    return keyed


@pytest.mark.parametrize("evict", ["lru", "refuse"])
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30))
def test_it_is_a_dict_in_a_state_and_what_it_calls_written_is_what_changed(evict: str, seed: int) -> None:
    random = Random(seed)
    options: dict[str, Any] = {"row": PAIR, "keys": str, "max_keys": random.randrange(1, 60), "evict": evict}
    keyed = Keyed(**options, key_bytes=random.choice((8, 900)))
    options["key_bytes"] = keyed._key_bytes
    state = opened(keyed)
    proxy, model = Proxy(state), OrderedDict[str, list[float]]()
    for _ in range(12):
        for _ in range(random.randrange(8)):
            name = f"ü{random.randrange(80)}"
            what = random.randrange(4)
            if what == 0 and name in model:
                del keyed[name], model[name]
            elif what == 1 and name in model:
                keyed.touch(name)
                model.move_to_end(name)
            elif name in model or len(model) < keyed.max_keys or evict == "lru":
                if name not in model and len(model) == keyed.max_keys:
                    model.popitem(last=False)
                row = [random.randrange(100), 0.5]
                keyed[name] = row
                model[name] = row
                model.move_to_end(name)
            else:
                with pytest.raises(KeyedFull, match="max_keys"):
                    keyed[name] = [0.0, 0.0]
        assert {key: row.tolist() for key, row in keyed.items()} == dict(model)
        assert list(keyed) == list(model)
        assert proxy.capture() == whole(state)
        if random.random() < 0.2:
            keyed = loaded(state, **options)
            state = opened(keyed)
            proxy = Proxy(state)
            assert list(keyed) == list(model)


def test_a_batch_that_writes_k_keys_copies_about_k_chunks_and_compares_none_of_the_rows() -> None:
    keyed = Keyed(row=np.dtype((np.float32, (64,))), keys=int, max_keys=100_000)
    state = opened(keyed)
    keyed.write(np.arange(50_000), np.zeros((50_000, 64), np.float32))
    proxy = Proxy(state)
    proxy.capture()
    keyed.write([5, 30_000], np.ones((2, 64), np.float32))
    keyed[49_999] = np.ones(64, np.float32)
    assert proxy.capture() == whole(state)
    assert proxy.copied <= 3 * 2 * CHUNK + CHUNK
    assert proxy.compared < 4 * CHUNK


def test_many_keys_are_read_and_written_at_once() -> None:
    keyed = Keyed(row=PAIR, keys=int, max_keys=10)
    opened(keyed)
    keyed.write(np.array([7, 3, 7]), np.array([[1, 1], [2, 2], [3, 3]], np.float32))
    rows, known = keyed.read([3, 4, 7])
    assert rows.tolist() == [[2, 2], [0, 0], [3, 3]]
    assert known.tolist() == [True, False, True]
    with pytest.raises(KeyedFull):
        keyed.write(range(20), np.zeros((20, 2), np.float32))
    assert len(keyed) == 2, "none was set"


def test_rows_are_views_that_cannot_be_written() -> None:
    pairs = Keyed(row=PAIR, keys=int, max_keys=10)
    records = Keyed(row=np.dtype([("a", "<i4"), ("b", "<f8")]), keys=int, max_keys=10)
    pairs[1], records[1] = [1.0, 2.0], np.array((3, 4.0), records._row)
    with pytest.raises(ValueError, match="read-only"):
        pairs[1][0] = 5
    with pytest.raises(ValueError, match="read-only"):
        records[1]["a"] = 5
    assert pairs[1].tolist() == [1, 2]
    assert records[1]["a"] == 3


def test_a_promoted_backup_evicts_the_same_keys() -> None:
    options: dict[str, Any] = {"row": bytes, "row_bytes": 8, "keys": bytes, "max_keys": 3, "evict": "lru"}
    ours = Keyed(**options)
    state = opened(ours)
    for name in (b"a", b"b", b"c"):
        ours[name] = name * 3
    ours.touch(b"a")
    theirs = loaded(state, **options)
    for keyed in (ours, theirs):
        keyed[b"d"] = b""
        assert dict(keyed) == {b"c": b"ccc", b"a": b"aaa", b"d": b""}
        assert list(keyed) == [b"c", b"a", b"d"]


@pytest.mark.parametrize("keys", [str, int, bytes])
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30))
def test_a_load_over_any_other_version_is_that_of_a_fresh_mapping(keys: Any, seed: int) -> None:
    random = Random(seed)
    options: dict[str, Any] = {
        "row": np.dtype((np.float32, (random.choice((2, 20_000)),))),
        "keys": keys,
        "max_keys": random.randrange(1, 60),
        "evict": "lru",
    }
    primary, follower = Keyed(**options), Keyed(**options)
    images: list[tuple[memoryview, list[Any]]] = []

    def step(keyed: Keyed, number: int) -> None:
        name: Any = number if keys is int else f"ü{number}" if keys is str else f"ü{number}".encode()
        if number % 5 == 0 and name in keyed:
            del keyed[name]
        elif number % 7 == 0 and name in keyed:
            keyed.touch(name)
        else:
            keyed[name] = np.full(options["row"].shape, number, dtype=np.float32)

    state = opened(primary)
    for _ in range(6):
        for _ in range(random.randrange(20)):
            step(primary, random.randrange(100))
        images.append((memoryview(bytearray(whole(state))), list(primary)))
    other = opened(follower)
    for _ in range(8):
        image, names = images[random.randrange(len(images))]
        other.load(image)
        other.open(True)
        assert whole(other) == bytes(image)
        assert list(follower) == names
        fresh = Keyed(**options)
        third = opened(fresh)
        third.load(image)
        third.open(True)
        for number in [random.randrange(100) for _ in range(random.randrange(12))]:
            step(follower, number)
            step(fresh, number)
        assert list(follower) == list(fresh)
        assert whole(other) == whole(third), "free places and evicted keys are the same"


def test_writes_outside_the_update_stage_raise() -> None:
    keyed = Keyed(row=PAIR, keys=str, max_keys=3)
    keyed["a"] = [1, 2]
    State({"keyed": keyed})
    for write in (
        lambda: keyed.__setitem__("a", [0, 0]),
        lambda: keyed.__delitem__("a"),
        lambda: keyed.touch("a"),
        lambda: keyed.write(["a"], np.zeros((1, 2), np.float32)),
        keyed.clear,
        lambda: keyed.pop("a"),
    ):
        with pytest.raises(ModelFault, match="outside `with update:`"):
            write()
    assert keyed["a"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda keyed: keyed.__setitem__("x" * 65, b""), "a key of at most 64 bytes, found one of 65"),
        (lambda keyed: keyed.__setitem__(5, b""), "a key of type str, found 5"),
        (lambda keyed: keyed.__setitem__("a", b"x" * 9), "a value of at most 8 bytes, found one of 9"),
        (lambda keyed: keyed.__setitem__("a", "text"), "a value of bytes, found a str"),
        (lambda keyed: keyed.read(["a"]), "one key at a time"),
    ],
)
def test_what_does_not_fit_is_refused_at_the_write(write: Any, message: str) -> None:
    keyed = Keyed(row=bytes, row_bytes=8, keys=str, max_keys=3)
    with pytest.raises(ModelFault, match=message):
        write(keyed)
    assert len(keyed) == 0


def test_bytes_are_counted_as_bytes_whatever_the_elements_of_their_view_are() -> None:
    keyed = Keyed(row=bytes, row_bytes=8, keys=str, max_keys=3)
    keyed["a"] = memoryview(np.array([1, 2], "<i4"))
    assert keyed["a"] == b"\1\0\0\0\2\0\0\0"
    with pytest.raises(ModelFault, match="a value of at most 8 bytes, found one of 12"):
        keyed["a"] = memoryview(np.array([1, 2, 3], "<i4"))


def test_an_array_of_another_shape_or_type_is_refused() -> None:
    keyed = Keyed(row=PAIR, keys=int, max_keys=3)
    for value in ([1, 2, 3], 1.0, np.zeros(2, np.complex64)):
        with pytest.raises(ModelFault, match="expected a row of float32"):
            keyed[1] = value
    with pytest.raises(ModelFault, match="64 bits"):
        keyed[1 << 63] = [1, 2]
    with pytest.raises(ModelFault, match="expected rows of float32"):
        keyed.write([1], np.zeros((1, 3), np.float32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": float}, "expected keys=str, int or bytes"),
        ({"evict": "fifo"}, 'expected evict="lru" or "refuse"'),
        ({"max_keys": 0}, "expected max_keys from 1 to"),
        ({"key_bytes": 1025}, "expected key_bytes from 1 to 1024, found 1025"),
        ({"row": bytes}, "need row_bytes"),
        ({"row": object}, "no objects"),
        ({"row": np.dtype((np.uint8, (1 << 21,)))}, "expected rows of 1 to 1048576 bytes"),
    ],
)
def test_a_mapping_that_cannot_be_says_why(options: dict[str, Any], message: str) -> None:
    with pytest.raises(StateFault, match=message):
        Keyed(**{"row": PAIR, "keys": str, "max_keys": 3, **options})


def test_a_state_of_other_rows_is_refused_by_name() -> None:
    state = opened(Keyed(row=PAIR, keys=str, max_keys=3))
    other = opened(Keyed(row=np.dtype(np.int64), keys=str, max_keys=3))
    with pytest.raises(StateFault, match="state layout mismatch: keyed: image has keyed"):
        other.load(memoryview(bytearray(whole(state))))


def test_more_keys_than_are_allowed_now_are_refused_and_nothing_changes() -> None:
    ours = Keyed(row=PAIR, keys=int, max_keys=5)
    state = opened(ours)
    for key in range(5):
        ours[key] = [key, key]
    theirs = Keyed(row=PAIR, keys=int, max_keys=4)
    theirs[9] = [9, 9]
    other = opened(theirs)
    with pytest.raises(StateFault, match="at most 4 keys"):
        other.load(memoryview(bytearray(whole(state))))
    assert list(theirs) == [9]


# -- rows that are taken out, or handed on -------------------------------------------------------------------


ROW = np.dtype((np.float32, (3,)))


def full() -> Keyed:
    keyed = Keyed(row=ROW, keys=str, max_keys=2, evict="lru")
    keyed["a"] = np.array([1, 2, 3], np.float32)
    keyed["b"] = np.array([4, 5, 6], np.float32)
    return keyed


def test_what_is_popped_is_what_was_there() -> None:
    keyed = full()
    assert keyed.pop("b").tolist() == [4, 5, 6]
    assert keyed.pop("b", None) is keyed.pop("b", default=None) is None
    with pytest.raises(KeyError):
        keyed.pop("b")
    key, row = keyed.popitem()
    assert (key, row.tolist()) == ("a", [1, 2, 3])
    with pytest.raises(KeyError, match="no key is here"):
        keyed.popitem()


@pytest.mark.parametrize("row", [np.dtype([("a", "<i4"), ("b", "<f4", (2,))]), np.dtype("<i8")], ids=str)
def test_a_record_or_a_number_that_is_popped_is_what_was_there(row: Any) -> None:
    keyed = Keyed(row=row, keys=str, max_keys=2)
    keyed["a"] = keyed["b"] = value = np.array((7, (1, 2)), row) if row.names else np.array(7, row)
    assert keyed.pop("b") == value
    assert keyed.popitem() == ("a", value)


def test_the_row_of_the_oldest_key_may_be_set_under_another_one() -> None:
    keyed = full()
    keyed["c"] = keyed["a"]
    assert keyed["c"].tolist() == [1, 2, 3]


def test_rows_that_are_read_in_place_may_be_written_under_other_keys() -> None:
    keyed = full()
    rows = np.lib.stride_tricks.as_strided(keyed["a"], (2, 3), (0, 4))
    keyed.write(["c", "d"], rows)
    assert [keyed[key].tolist() for key in ("c", "d")] == [[1, 2, 3]] * 2


def test_rows_that_are_read_in_place_are_written_as_they_were_though_others_change_them() -> None:
    keyed = full()
    rows = np.lib.stride_tricks.as_strided(keyed["a"], (2, 3), (0, 4))
    keyed["b"] = np.zeros(3, np.float32)
    keyed.write(["b", "a"], rows + np.float32(1))
    rows = np.lib.stride_tricks.as_strided(keyed["a"], (2, 3), (0, 4))
    keyed.write(["c", "a"], rows)
    assert [keyed[key].tolist() for key in ("c", "a")] == [[2, 3, 4]] * 2
