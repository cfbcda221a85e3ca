"""Requests that cost more than their bytes are refused before they are parsed, or worked on in slices."""

import asyncio
import itertools
import json
import math
from typing import TypeVar

import pytest
from tests.sidecar.endpoint.doubles import DIGITS, FakePort, graph

from hams_protocol.graph import FrontendSpec, TensorSpec
from hams_sidecar.datatypes import decode_bytes, encode_bytes
from hams_sidecar.endpoint import grpc_scan, limits
from hams_sidecar.endpoint import open_inference_pb2 as pb
from hams_sidecar.endpoint.errors import RequestRefused
from hams_sidecar.endpoint.grpc_codec import GrpcRequest, decode_request, encode_reply
from hams_sidecar.endpoint.grpc_scan import grpc_parsed_bytes_max, grpc_varied_bytes_max
from hams_sidecar.endpoint.grpc_service import InferenceService
from hams_sidecar.endpoint.json_data import json_string_bytes_max, json_values_max, run_through, write
from hams_sidecar.endpoint.json_scan import Steps
from hams_sidecar.endpoint.request import NO_PARAMETERS
from hams_sidecar.endpoint.rest_codec import KnownHeads
from hams_sidecar.endpoint.rest_codec import decode_request as decode_rest
from hams_sidecar.endpoint.serving import Serving
from hams_sidecar.endpoint.signature import Signature, bytes_elements_max, parameters_bytes_min
from hams_sidecar.inference import Tensor
from hams_sidecar.metrics import Metrics

T = TypeVar("T")
ELEMENTS = 20 * limits.bytes_slice_elements
TEXTS = Signature(graph(TensorSpec("x", "BYTES", (-1,))))
INPUT, PARAMETER, OUTPUT, RAW, UNKNOWN = b"\x2a", b"\x22", b"\x32", b"\x3a", b"\xfa\x07"
"""Tags of fields that are as long as they say."""


def turns(steps: Steps[T]) -> tuple[T, int]:
    """What comes of the work, and how often it paused."""
    for paused in itertools.count():
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value, paused
    raise AssertionError


@pytest.fixture(autouse=True)
def every_message_is_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small."""
    monkeypatch.setattr(grpc_scan, "grpc_unscanned_bytes_max", -1)


def cut(message: bytes) -> grpc_scan.Scanned:
    return run_through(grpc_scan.without_raw(message, 2, 1))


# -- many fields


@pytest.mark.parametrize("tag", [INPUT, PARAMETER, OUTPUT, RAW, UNKNOWN])
def test_F36_many_empty_fields_are_refused_unparsed(tag: bytes) -> None:
    with pytest.raises(RequestRefused, match=r"fewer fields|tensors at most"):
        cut((tag + b"\x00") * 100_000)


def test_F36_many_kinds_of_unknown_fields_are_refused() -> None:
    tags = [8 * number for number in range(100, 200)]
    with pytest.raises(RequestRefused, match="fewer fields"):
        cut(20 * b"".join(bytes([tag & 0x7F | 0x80, tag >> 7, 0]) for tag in tags))


@pytest.mark.parametrize("tag", [b"\x0a", b"\x18", b"\x22", b"\x2a"])
def test_F36_many_fields_within_a_tensor_are_refused(tag: bytes) -> None:
    within = (tag + b"\x00") * 2_000
    with pytest.raises(RequestRefused, match="fewer fields"):
        cut(INPUT + bytes([len(within) & 0x7F | 0x80, len(within) >> 7]) + within)


def test_F36_a_long_shape_is_refused() -> None:
    message = pb.ModelInferRequest()
    message.inputs.add(name="x", datatype="FP32", shape=[1] * 1_000)
    with pytest.raises(RequestRefused, match="a shape of at most"):
        cut(message.SerializeToString())


def test_F36_typed_contents_are_bounded_and_raw_ones_are_not() -> None:
    message = pb.ModelInferRequest(raw_input_contents=[bytes(2 * grpc_parsed_bytes_max)])
    message.inputs.add(name="x", datatype="UINT8", shape=[1, 2])
    rest, raw, _ = cut(message.SerializeToString())
    assert len(rest) < 100
    assert [len(data) for data in raw] == [2 * grpc_parsed_bytes_max]
    message.ClearField("raw_input_contents")
    message.inputs[0].contents.bytes_contents.append(bytes(grpc_parsed_bytes_max))
    with pytest.raises(RequestRefused, match="send large tensors raw") as refused:
        cut(message.SerializeToString())
    assert refused.value.status == 413


def test_what_is_left_of_a_message_is_the_message() -> None:
    message = pb.ModelInferRequest(model_name="g", id="7", raw_input_contents=[b"ab", b"", b"cde"])
    message.parameters["p"].int64_param = 3
    for name in ("x", "y"):
        message.inputs.add(name=name, datatype="UINT8", shape=[1, 2])
    message.outputs.add(name="z")
    rest, raw, _ = cut(message.SerializeToString() + RAW + b"\x01f")
    left = pb.ModelInferRequest.FromString(rest)
    assert [bytes(data) for data in raw] == [b"ab", b"", b"cde", b"f"]
    message.ClearField("raw_input_contents")
    assert left == message


@pytest.mark.parametrize(
    "data", [b"\x2a", b"\x2a\x05ab", b"\x80" * 11, b"\x0b\x0c", b"\x09abc", b"\x2a\x02\x0a\x05"]
)
def test_F36_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(RequestRefused, match="got bytes that are none"):
        cut(data)


async def test_what_a_message_grows_to_is_held_while_it_is_read() -> None:
    """One alone may grow to all that may be held; another one finds no room meanwhile."""
    frontend = FrontendSpec(max_request_bytes=1 << 22, max_in_flight_bytes=1 << 22)
    serving = Serving(
        FakePort(), graph(TensorSpec("x", "INT64", (-1,)), frontend=frontend), Metrics("f", process=False)
    )
    service = InferenceService(serving, "p", "1", ())
    message = pb.ModelInferRequest(model_name=serving.graph.name)
    message.inputs.add(name="x", datatype="INT64", shape=[1, 1 << 17])
    message.inputs[0].contents.int64_contents.extend([1] * (1 << 17))
    request = message.SerializeToString()
    serving.held_bytes += 2 * len(request)  # as their callers have noted
    decoded = await asyncio.gather(*[service.decoded(request) for _ in range(2)])
    assert [request is not None for request in decoded] == [True, False]
    assert serving.held_bytes == 2 * len(request)


def test_F36_many_fields_are_looked_at_in_slices() -> None:
    wide = b"".join(INPUT + b"\x28" + b"\x0a\x00" * 20 for _ in range(15))
    scanned, paused = turns(grpc_scan.without_raw(wide, 2, 1))
    assert scanned.rest == wide
    assert paused >= 2


def test_F36_numbers_that_vary_in_size_are_bounded_more_than_those_that_do_not() -> None:
    def typed(field: str, count: int) -> bytes:
        message = pb.ModelInferRequest()
        message.inputs.add(name="x", datatype="INT64", shape=[1, 2])
        getattr(message.inputs[0].contents, field).extend([1] * count)
        return message.SerializeToString()

    fixed = cut(typed("fp32_contents", 1 << 19))
    assert fixed.parsed_bytes < 3 << 21
    varied = cut(typed("int64_contents", 1 << 19))
    assert varied.parsed_bytes >= 8 << 20
    with pytest.raises(RequestRefused, match="send large tensors raw"):
        cut(typed("int64_contents", grpc_varied_bytes_max + 1))


@pytest.mark.parametrize("number", [5, 7])
def test_fields_of_another_kind_are_unknown_ones(number: int) -> None:
    message = bytes([number << 3, 1]) + pb.ModelInferRequest(model_name="g").SerializeToString()
    scanned = cut(message)
    assert (scanned.rest, list(scanned.raw)) == (message, [])


# -- many elements


def binary(data: bytes, shape: list[int], signature: Signature) -> Steps[object]:
    described = {
        "name": "x",
        "datatype": "BYTES",
        "shape": shape,
        "parameters": {"binary_data_size": len(data)},
    }
    head = json.dumps({"inputs": [described]}).encode()
    return decode_rest(head + data, str(len(head)), signature, KnownHeads())


def test_F37_many_elements_of_bytes_are_walked_in_slices() -> None:
    empty = bytes(4 * ELEMENTS)
    _, paused = turns(binary(empty, [1, ELEMENTS], TEXTS))
    assert paused >= 19
    message = pb.ModelInferRequest()
    message.inputs.add(name="x", datatype="BYTES", shape=[1, ELEMENTS])
    _, paused = turns(decode_request(message, [empty], TEXTS))
    assert paused >= 19
    message.inputs[0].contents.bytes_contents.extend([b""] * ELEMENTS)
    decoded, paused = turns(decode_request(message, [], TEXTS))
    assert paused >= 19
    assert decoded.tensors[0].data == empty


def test_F37_elements_of_bytes_are_bounded() -> None:
    count = bytes_elements_max + 1
    with pytest.raises(RequestRefused, match="BYTES elements"):
        run_through(binary(bytes(4 * count), [1, count], TEXTS))


def test_replies_of_many_elements_are_written_in_slices() -> None:
    texts = [f"{number}".encode() for number in range(ELEMENTS)]
    data = encode_bytes(texts)
    pieces, paused = turns(write("BYTES", [ELEMENTS], data))
    assert paused >= 19
    assert json.loads(b"".join(pieces)) == [text.decode() for text in texts]
    request = GrpcRequest((), NO_PARAMETERS, None, "", False)
    encoded, paused = turns(encode_reply("g", request, [Tensor("x", "BYTES", (ELEMENTS,), data)]))
    assert paused >= 19
    reply = pb.ModelInferResponse.FromString(encoded)
    assert list(reply.outputs[0].contents.bytes_contents) == texts


def test_a_long_text_of_a_reply_is_written_in_slices() -> None:
    text = "ä\x01" * (5 * limits.json_slice_bytes)
    data = encode_bytes([b"a", text.encode(), b""])
    pieces, paused = turns(write("BYTES", [3], data))
    assert paused >= 10
    assert json.loads(b"".join(pieces)) == ["a", text, ""]
    with pytest.raises(UnicodeDecodeError):
        run_through(write("BYTES", [1], encode_bytes([b"x" * limits.json_slice_bytes + b"\xc3"])))


def test_F37_a_long_text_and_very_many_values_in_json_are_refused() -> None:
    one = b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[1,1],"data":["%b"]}]}'
    with pytest.raises(RequestRefused, match="send it binary") as refused:
        run_through(decode_rest(one % (b"a" * (2 * json_string_bytes_max)), None, TEXTS, KnownHeads()))
    assert refused.value.status == 413
    narrow = Signature(graph(TensorSpec("x", "INT8", (-1,))))
    count = json_values_max + 1
    many = b'{"inputs":[{"name":"x","datatype":"INT8","shape":[1,%d],"data":[%b]}]}' % (
        count,
        (b"1," * count)[:-1],
    )
    with pytest.raises(RequestRefused, match="values in JSON"):
        run_through(decode_rest(many, None, narrow, KnownHeads()))


@pytest.mark.parametrize("shape", [[0], [1], [3, 2]])
def test_replies_of_few_elements_are_what_they_are(shape: list[int]) -> None:
    texts = [b"a", b"", "ä".encode(), b'"', b"\n", b"x" * 1000][: math.prod(shape)]
    pieces = run_through(write("BYTES", shape, encode_bytes(texts)))
    assert json.loads(b"".join(pieces)) == [text.decode() for text in texts]
    assert list(decode_bytes(memoryview(encode_bytes(texts)), len(texts))) == texts


# -- values that grow


def test_F37_json_that_is_larger_as_a_tensor_than_a_request_may_be_is_refused() -> None:
    wide = Signature(graph(TensorSpec("x", "FP64", (-1,)), frontend=FrontendSpec(max_request_bytes=1 << 16)))
    body = {"inputs": [{"name": "x", "datatype": "FP64", "shape": [1, 10_000], "data": [0] * 10_000}]}
    with pytest.raises(RequestRefused, match="at most 65536 bytes, got 80000 of FP64") as refused:
        run_through(decode_rest(json.dumps(body).encode(), None, wide, KnownHeads()))
    assert refused.value.status == 413
    message = pb.ModelInferRequest()
    message.inputs.add(name="x", datatype="FP64", shape=[1, 10_000])
    with pytest.raises(RequestRefused, match="at most 65536 bytes"):
        run_through(decode_request(message, [], wide))


def test_F37_many_tensors_in_json_are_refused_before_they_are_looked_at() -> None:
    one = {"name": "pixels", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    body = json.dumps({"inputs": [one] * 1_000}).encode()
    with pytest.raises(RequestRefused, match="2 tensors at most, got 1000"):
        run_through(decode_rest(body, None, Signature(DIGITS), KnownHeads()))


# -- parameters that every token carries


def test_parameters_are_as_large_as_leaves_room_for_all_requests() -> None:
    def room(**spec: int) -> int:
        return Signature(
            graph(TensorSpec("x", "FP32", ()), frontend=FrontendSpec(**spec))
        ).parameters_bytes_max

    assert room(max_in_flight=256) == limits.parameters_bytes_max
    assert room() == (32 << 20) // 2_048 - 2_048
    assert room(max_in_flight=32_768) == parameters_bytes_min
    few = Signature(graph(TensorSpec("x", "FP32", ()), frontend=FrontendSpec(max_in_flight=4_096)))
    body = {
        "parameters": {"p": "x" * 3_000},
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}],
    }
    with pytest.raises(RequestRefused, match=r"parameters of at most 2048 bytes together.*got 3033"):
        run_through(decode_rest(json.dumps(body).encode(), None, few, KnownHeads()))
