"""JSON data of tensors: round trips for every datatype, and no cast."""

import json
import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hams_sidecar.datatypes import NUMPY
from hams_sidecar.endpoint import json_data, json_scan
from hams_sidecar.endpoint.errors import RequestRefused
from hams_sidecar.endpoint.json_data import Steps

T = TypeVar("T")

INTEGERS = [name for name in NUMPY if "INT" in name]


def finish(steps: Steps[T]) -> T:
    """Do the work at once."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result


def read(datatype: str, shape: Sequence[int], data: object) -> bytes:
    text = data if isinstance(data, bytes) else json.dumps(data).encode()
    return finish(json_data.read("x", datatype, shape, memoryview(text)))


def write(datatype: str, shape: Sequence[int], data: bytes) -> object:
    return json.loads(b"".join(finish(json_data.write(datatype, shape, data))))


def refusal(datatype: str, shape: Sequence[int], data: object) -> str:
    with pytest.raises(RequestRefused) as result:
        read(datatype, shape, data)
    return result.value.message


@given(st.sampled_from(sorted(NUMPY)), st.lists(st.integers(0, 3), min_size=1, max_size=3), st.data())
def test_the_bytes_of_a_tensor_survive_json(datatype: str, shape: list[int], data: st.DataObject) -> None:
    size = math.prod(shape) * NUMPY[datatype].itemsize
    raw = data.draw(st.binary(min_size=size, max_size=size))
    if datatype == "BOOL":
        raw = bytes(byte & 1 for byte in raw)
    values = write(datatype, shape, raw)
    again = read(datatype, shape, values)
    if datatype in ("FP16", "FP32", "FP64"):
        np.testing.assert_array_equal(
            np.frombuffer(again, NUMPY[datatype]), np.frombuffer(raw, NUMPY[datatype])
        )
    elif datatype == "BF16":
        widen = [(np.frombuffer(item, "<u2").astype("<u4") << 16).view("<f4") for item in (again, raw)]
        np.testing.assert_array_equal(*widen)
    else:
        assert again == raw


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.data())
def test_nested_and_flat_data_are_the_same(shape: list[int], data: st.DataObject) -> None:
    values = np.array(
        data.draw(st.lists(st.integers(-100, 100), min_size=math.prod(shape), max_size=math.prod(shape)))
    ).reshape(shape)
    assert (
        read("INT8", shape, values.tolist())
        == read("INT8", shape, values.ravel().tolist())
        == values.astype("i1").tobytes()
    )
    texts = values.astype(str)
    assert read("BYTES", shape, texts.tolist()) == read("BYTES", shape, texts.ravel().tolist())


@given(st.lists(st.text(), min_size=1, max_size=4))
def test_strings_survive(texts: list[str]) -> None:
    assert write("BYTES", [len(texts)], read("BYTES", [len(texts)], texts)) == texts


@given(
    st.lists(
        st.one_of(
            st.integers(),
            st.floats(),
            st.text(max_size=3),
            st.none(),
            st.booleans(),
            st.lists(st.integers(), max_size=2),
        ),
        max_size=4,
    ),
    st.sampled_from(INTEGERS),
)
def test_integers_take_nothing_but_integers_in_their_range(values: list[object], datatype: str) -> None:
    limits = np.iinfo(NUMPY[datatype])
    good = all(type(value) is int and limits.min <= value <= limits.max for value in values)
    text = json.dumps(values).encode()
    if good:
        assert np.frombuffer(read(datatype, [len(values)], text), NUMPY[datatype]).tolist() == values
    else:
        assert "tensor 'x'" in refusal(datatype, [len(values)], text)


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "says"),
    [
        ("FP32", [2], [1, 2, 3], "expected 2 values for shape [2], got 3"),
        ("FP32", [2, 2], [[1, 2, 3], [4]], "flat or nested as shape [2, 2]"),
        ("FP32", [1], [[1]], "flat or nested as shape [1]"),
        ("FP32", [1], b"5", "expected data as an array, got '5'"),
        ("FP32", [1], b'{"a": 1}', "expected data as an array"),
        ("FP32", [1], [None], "expected `float`, got `null`"),
        ("FP32", [1], [1e39], "out of its range"),
        ("FP16", [1], [70000], "out of its range"),
        ("BF16", [1], [3.4e38], "out of its range"),
        ("FP32", [1], ["x"], "expected a number, got the string 'x'"),
        ("INT8", [1], [128], "out of its range"),
        ("UINT64", [1], [-1], "out of its range"),
        ("INT64", [1], [1.0], "expected `int`, got `float`"),
        ("BOOL", [1], [1], "expected `bool`, got `int`"),
        ("BYTES", [1], [1], "expected `str`, got `int`"),
        ("BYTES", [1], b'["\xff"]', "utf-8"),
        ("BYTES", [2, 2], [["a"], ["b", "c", "d"]], "flat or nested as shape [2, 2]"),
        ("BYTES", [1], b"[" * 5000 + b"1" + b"]" * 5000, "expected `str`, got `int`"),
        ("FP32", [10**12, 0], [[]], "flat or nested"),
    ],
)
def test_a_refusal_names_tensor_expected_and_got(
    datatype: str, shape: list[int], data: object, says: str
) -> None:
    message = refusal(datatype, shape, data)
    assert message.startswith("tensor 'x'")
    assert says in message


def test_what_is_not_finite_has_names() -> None:
    raw = np.array([math.nan, math.inf, -math.inf, 1], "<f4").tobytes()
    assert write("FP32", [4], raw) == ["NaN", "Infinity", "-Infinity", 1.0]
    assert np.frombuffer(read("FP32", [3], ["Infinity", "-Infinity", 2]), "<f4").tolist() == [
        math.inf,
        -math.inf,
        2,
    ]


def test_bf16_rounds_to_the_nearest_and_ties_to_even() -> None:
    ties = [1 + 2**-8, 1 + 3 * 2**-8]  # halfway between neighbours: the even one is below and above
    assert np.frombuffer(read("BF16", [2], ties), "<u2").tolist() == [0x3F80, 0x3F82]


def test_large_data_is_worked_on_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_scan, "json_slice_bytes", 64)
    values = list(range(1000))
    steps = json_data.read(
        "x", "INT64", [10, 100], memoryview(json.dumps(np.reshape(values, (10, 100)).tolist()).encode())
    )
    pauses = 0
    while True:
        try:
            next(steps)
            pauses += 1
        except StopIteration as stop:
            raw = stop.value
            break
    assert np.frombuffer(raw, "<i8").tolist() == values
    assert pauses > 50
    assert write("INT64", [10, 100], raw) == values
