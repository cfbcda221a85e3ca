"""Large JSON in slices: the same answers as a decoder's that sees all of it, whatever the slices cut
apart."""

import asyncio
import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.sidecar.endpoint.doubles import graph

from hams_protocol.graph import TensorSpec
from hams_sidecar.datatypes import encode_bytes
from hams_sidecar.endpoint import json_scan, rest_codec
from hams_sidecar.endpoint.errors import RequestRefused
from hams_sidecar.endpoint.json_data import read, run, run_through
from hams_sidecar.endpoint.json_scan import json_head_bytes_max, outline
from hams_sidecar.endpoint.limits import json_slice_bytes
from hams_sidecar.endpoint.rest_codec import KnownHeads, decode_request
from hams_sidecar.endpoint.signature import Signature

SIGNATURE = Signature(
    graph(TensorSpec("words", "BYTES", (-1,), optional=True), TensorSpec("x", "FP64", (-1,), optional=True))
)
TRICKY = st.text(alphabet='[]{}",\\ a\n\u00e4\u1234', max_size=12)


@pytest.fixture(params=[1, 2, 3, 7, 64])
def sliced(request, monkeypatch) -> None:
    """Slices of a few bytes, and data cut out from a few bytes on."""
    for module in (json_scan, rest_codec):
        monkeypatch.setattr(module, "json_slice_bytes", request.param)
    monkeypatch.setattr(json_scan, "json_cut_bytes_min", 4)


def decoded(body: object) -> object:
    return (
        run_through(decode_request(json.dumps(body).encode(), None, SIGNATURE, KnownHeads())).tensors[0].data
    )


def tensor(name: str, datatype: str, shape: list[int], data: object) -> dict[str, object]:
    return {"inputs": [{"name": name, "datatype": datatype, "shape": shape, "data": data}]}


@pytest.mark.parametrize("nested", [False, True])
def test_strings_that_look_like_json_arrive_as_they_are(sliced, nested: bool) -> None:
    words = ["", "],[", '"', "\\", '\\"', "a,b", "\u00e4\u1234", " ", '\\\\"]', "[" * 50, "\\" * 33]
    data = [words] if nested else words
    expected = encode_bytes(word.encode() for word in words)
    assert decoded(tensor("words", "BYTES", [1, len(words)], data)) == expected


def test_numbers_arrive_as_they_are_between_whatever_spaces(sliced) -> None:
    text = (
        b'{"inputs" :[ {"data" : [ [ 1 , -2.5e-3 ,\t3],\n[4,5,"NaN"] ] '
        b',"shape":[2,3],"name":"x","datatype":"FP64"}]}'
    )
    result = run_through(decode_request(text, None, SIGNATURE, KnownHeads())).tensors[0].data
    assert result[:8] == b"\0\0\0\0\0\0\xf0?"
    assert len(result) == 48


@given(words=st.lists(TRICKY, max_size=8), slice_bytes=st.integers(1, 9))
@example(words=["\\"], slice_bytes=1)
def test_what_slices_cut_apart_is_put_together_again(words: list[str], slice_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_scan, "json_slice_bytes", slice_bytes)
        text = json.dumps(words, ensure_ascii=False).encode()
        result = run_through(read("words", "BYTES", [1, len(words)], memoryview(text)))
    assert result == encode_bytes(word.encode() for word in words)


@given(
    text=st.text(alphabet='[],1 "a', max_size=16).map(lambda text: f"[{text}]"), slice_bytes=st.integers(1, 9)
)
@example(text="[1 2]", slice_bytes=2)
@example(text="[[1,2]3,[4,5]]", slice_bytes=64)
@example(text="[[1][2]]", slice_bytes=3)
def test_what_is_no_json_is_refused_as_a_decoder_refuses_it(text: str, slice_bytes: int) -> None:
    """Data that was cut out has been seen by nobody else."""
    try:
        values = msgspec.json.decode(text)
    except msgspec.DecodeError:
        values = None
    for datatype in ("INT64", "BYTES"):
        for shape in ([1], [2], [1, 2], [2, 2], [2, 1]):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(json_scan, "json_slice_bytes", slice_bytes)
                try:
                    run_through(read("x", datatype, shape, memoryview(text.encode())))
                except RequestRefused:
                    continue
            assert isinstance(values, list), text


def test_what_is_not_data_is_small() -> None:
    large = b"[" + b"[]," * json_head_bytes_max + b"1]"
    for body in (
        b'{"inputs":[],"parameters":{"a":%b}}',
        b'{"inputs":[{"name":"x","datatype":"FP64","shape":%b,"data":[1]}]}',
        b'{"inputs":[{"name":"x","datatype":"FP64","shape":[1],"parameters":%b}]}',
        b'{"inputs":[],"outputs":%b}',
        b'{"inputs":[{"x":%b}]}',
        b"%b",
    ):
        with pytest.raises(RequestRefused, match="besides the data of tensors"):
            run_through(decode_request(body % large, None, SIGNATURE, KnownHeads()))


def test_nobody_can_name_what_was_cut_out() -> None:
    body = memoryview(b'{"inputs":[{"data":"MARK0"},{"data":[%b1]}]}' % (b"1," * 2000))
    arrived = run_through(outline(body, b"secret"))
    assert arrived.head == b'{"inputs":[{"data":"MARK0"},{"data":"secret0"}]}'
    assert arrived.array(memoryview(b'"MARK0"')) is None
    assert arrived.array(memoryview(b'"secret0"')) == b"[" + b"1," * 2000 + b"1]"


@pytest.mark.parametrize(
    ("datatype", "name", "unit", "shape"),
    [("BYTES", "words", b'"",', [1]), ("BYTES", "words", b'["a"],', []), ("FP64", "x", b"[1],", [])],
)
async def test_however_many_large_bodies_one_slice_is_worked_on_between_two_turns_of_the_loop(
    datatype: str, name: str, unit: bytes, shape: list[int]
) -> None:
    count = 4 * json_slice_bytes // len(unit)
    full = [*shape, count] if shape else [count, 1]
    data = b"[" + (unit * count)[:-1] + b"]"
    worked: list[int] = []

    def steps(number: int):
        inner = read(name, datatype, full, memoryview(data))
        while True:
            worked.append(number)
            try:
                next(inner)
            except StopIteration as stop:
                return stop.value
            yield

    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    first, second = await asyncio.gather(run(steps(1)), run(steps(2)))
    counting.cancel()
    assert first == second
    assert worked[:6] == [1, 2, 1, 2, 1, 2]
    assert turns >= len(worked) - 2


@pytest.mark.parametrize("text", ["[1,]", "[,1]", "[1,,2]", "[[1],]", "[[,1]]", "[,]"])
@pytest.mark.parametrize("datatype", ["INT64", "FP64", "BYTES"])
def test_a_comma_stands_between_two_values(text: str, datatype: str) -> None:
    for shape in ([1], [2], [3], [1, 2], [2, 1]):
        with pytest.raises(RequestRefused):
            run_through(read("x", datatype, shape, memoryview(text.encode())))
