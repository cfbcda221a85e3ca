"""The gRPC side end to end: tritonclient, bare channels, health and reflection."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from hypothesis import given
from hypothesis import strategies as st
from tests.sidecar.endpoint.doubles import DIGITS, EVERY_DATATYPE, PIXELS, FakePort, always, graph

from hams_protocol.graph import FrontendSpec
from hams_sidecar.datatypes import NUMPY, encode_bytes
from hams_sidecar.endpoint import json_data
from hams_sidecar.endpoint import open_inference_pb2 as pb
from hams_sidecar.endpoint.errors import RequestRefused
from hams_sidecar.endpoint.grpc_codec import decode_request, encode_reply
from hams_sidecar.endpoint.signature import Signature
from hams_sidecar.inference import (
    Conflict,
    Full,
    InferenceOutcome,
    InferenceRequest,
    JoinRefused,
    KeyExpired,
    ModelFailure,
    NotReady,
    Shed,
    Tensor,
    TimedOut,
    TraceContext,
    Unpromised,
)

ROW = np.array([[1, 2, 3, 4]], "<f4")


def message(**changes: object) -> pb.ModelInferRequest:
    """A request for `digits` with one raw row; `changes` are fields of the message."""
    values = pb.ModelInferRequest(model_name="digits", **{"raw_input_contents": [ROW.tobytes()], **changes})
    if not values.inputs:
        values.inputs.add(name="pixels", datatype="FP32", shape=[1, 4])
    return values


@pytest.fixture
async def channel(digits) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to `digits`."""
    async with grpc.aio.insecure_channel(digits.grpc) as result:
        yield result


async def infer(
    channel: grpc.aio.Channel, request: pb.ModelInferRequest | bytes, **options: object
) -> pb.ModelInferResponse:
    call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    data = request if isinstance(request, bytes) else request.SerializeToString()
    return pb.ModelInferResponse.FromString(await call(data, **options))


async def refusal(
    channel: grpc.aio.Channel,
    request: pb.ModelInferRequest | bytes,
    code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT,
) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as result:
        await infer(channel, request)
    assert result.value.code() is code, result.value
    return result.value.details()


# ---- what is served


async def test_tritonclient_sends_and_gets_every_datatype(serve) -> None:
    running = await serve(EVERY_DATATYPE)
    arrays = {
        name: np.arange(6).reshape(2, 3).astype(dtype) for name, dtype in NUMPY.items() if name != "BF16"
    }
    arrays["BYTES"] = np.array([[b"a", b"", b"\xff"], [b"bc", b"d", b"e"]], dtype=object)
    inputs = []
    for name, array in arrays.items():
        tensor = triton.InferInput(name.lower(), list(array.shape), name)
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    async with triton.InferenceServerClient(running.grpc) as client:
        reply = await client.infer("digits", inputs, request_id="7", model_version="1")
        for name, array in arrays.items():
            np.testing.assert_array_equal(reply.as_numpy(name.lower()), array)
        assert reply.get_response().id == "7"
        assert reply.get_response().model_version == "1"
        one = await client.infer("digits", inputs, outputs=[triton.InferRequestedOutput("int8")])
        assert [output.name for output in one.get_response().outputs] == ["int8"]
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("digits")
        assert (await client.get_server_metadata()).extensions == ["binary_tensor_data"]
        metadata = await client.get_model_metadata("digits", "1")
        assert {tensor.name: list(tensor.shape) for tensor in metadata.inputs}["fp32"] == [-1, -1]


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        ("BOOL", "bool_contents", [True, False]),
        ("INT8", "int_contents", [-128, 127]),
        ("INT16", "int_contents", [-5, 5]),
        ("INT32", "int_contents", [-(2**31), 2**31 - 1]),
        ("INT64", "int64_contents", [-(2**63), 2**63 - 1]),
        ("UINT8", "uint_contents", [0, 255]),
        ("UINT16", "uint_contents", [0, 65535]),
        ("UINT32", "uint_contents", [0, 2**32 - 1]),
        ("UINT64", "uint64_contents", [0, 2**64 - 1]),
        ("FP32", "fp32_contents", [0.5, float("inf")]),
        ("FP64", "fp64_contents", [0.1, -1e300]),
        ("BYTES", "bytes_contents", [b"a", b"\xff"]),
    ],
)
async def test_typed_contents_go_in_and_come_back(
    serve, datatype: str, field: str, values: list[object]
) -> None:
    running = await serve(EVERY_DATATYPE)
    request = pb.ModelInferRequest(model_name="digits")
    tensor = request.inputs.add(name=datatype.lower(), datatype=datatype, shape=[1, 2])
    getattr(tensor.contents, field).extend(values)
    async with grpc.aio.insecure_channel(running.grpc) as channel:
        reply = await infer(channel, request)
    assert list(getattr(reply.outputs[0].contents, field)) == values
    assert not reply.raw_output_contents
    seen = running.port.requests[0].tensors[0].data
    assert seen == (
        encode_bytes(values) if datatype == "BYTES" else np.array(values, dtype=NUMPY[datatype]).tobytes()
    )


async def test_the_port_sees_the_payload_as_over_http(channel, digits) -> None:
    request = message(id="9")
    for name, field, value in [
        ("sequence_id", "int64_param", 7),
        ("big", "uint64_param", 2**64 - 1),
        ("sequence_start", "bool_param", True),
        ("temperature", "double_param", 0.5),
        ("user", "string_param", "x"),
        ("idempotency_key", "string_param", "k1"),
    ]:
        setattr(request.parameters[name], field, value)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    reply = await infer(channel, request, metadata=(("traceparent", trace), ("tracestate", "a=b")), timeout=5)
    assert reply.id == "9"
    assert reply.raw_output_contents[0] == ROW.tobytes()
    (seen,) = digits.port.requests
    assert seen.parameters == {
        "sequence_id": 7,
        "big": 2**64 - 1,
        "sequence_start": True,
        "temperature": 0.5,
        "user": "x",
    }
    assert seen.idempotency_key == "k1"
    assert seen.trace == TraceContext(trace, "a=b")
    assert 0 < seen.deadline_s < 6  # gRPC adds what it took to get here
    assert len(seen.digest) == 16


@given(st.lists(st.binary(max_size=300), max_size=4))
def test_raw_replies_are_well_formed_messages(contents: list[bytes]) -> None:
    tensors = [Tensor(f"t{index}", "UINT8", (len(data),), data) for index, data in enumerate(contents)]
    request = decode_request(message(id="x"), [ROW.tobytes()], Signature(DIGITS))
    with pytest.raises(StopIteration) as decoded:
        next(request)
    with pytest.raises(StopIteration) as encoded:
        next(encode_reply("digits", decoded.value.value, tensors))
    reply = pb.ModelInferResponse.FromString(encoded.value.value)
    assert list(reply.raw_output_contents) == contents
    assert [output.name for output in reply.outputs] == [tensor.name for tensor in tensors]


async def test_large_typed_contents_are_worked_on_in_slices() -> None:
    count = 100_000
    request = pb.ModelInferRequest(model_name="digits")
    tensor = request.inputs.add(name="int64", datatype="INT64", shape=[1, count])
    tensor.contents.int64_contents.extend(range(count))
    decoded = await json_data.run(decode_request(request, [], Signature(EVERY_DATATYPE)))
    assert np.frombuffer(decoded.tensors[0].data, "<i8").tolist() == list(range(count))
    reply = pb.ModelInferResponse.FromString(
        await json_data.run(encode_reply("digits", decoded, decoded.tensors))
    )
    assert list(reply.outputs[0].contents.int64_contents) == list(range(count))


# ---- outcomes


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (ModelFailure("learner", "boom"), grpc.StatusCode.INTERNAL),
        (JoinRefused("choice"), grpc.StatusCode.INVALID_ARGUMENT),
        (Shed("learner", "not run"), grpc.StatusCode.DEADLINE_EXCEEDED),
        (Conflict(), grpc.StatusCode.ABORTED),
        (KeyExpired(), grpc.StatusCode.FAILED_PRECONDITION),
        (Full(0.5), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (NotReady("no primary"), grpc.StatusCode.UNAVAILABLE),
        (TimedOut(), grpc.StatusCode.DEADLINE_EXCEEDED),
    ],
)
async def test_every_outcome_has_its_code(
    channel, digits, outcome: InferenceOutcome, code: grpc.StatusCode
) -> None:
    digits.port.answer = always(outcome)
    assert await refusal(channel, message(), code)


async def test_what_is_not_admitted_says_that_nothing_has_begun(channel, digits) -> None:
    digits.port.answer = always(Unpromised("cannot be answered in time", 0.5))
    with pytest.raises(grpc.aio.AioRpcError) as result:
        await infer(channel, message())
    assert result.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert dict(result.value.trailing_metadata()) == {
        "retry-after": "0.5",
        "grpc-retry-pushback-ms": "500",
        "hams-begun": "false",
    }


async def test_full_says_when_to_come_back(channel, digits) -> None:
    digits.port.answer = always(Full(0.5))
    with pytest.raises(grpc.aio.AioRpcError) as result:
        await infer(channel, message())
    assert dict(result.value.trailing_metadata()) == {"retry-after": "0.5", "grpc-retry-pushback-ms": "500"}


async def test_the_deadline_is_the_graphs_or_the_clients_whichever_is_earlier(serve) -> None:
    async def forever(request: InferenceRequest) -> InferenceOutcome:
        await asyncio.Event().wait()
        raise AssertionError

    running = await serve(graph(PIXELS, frontend=FrontendSpec(request_timeout_s=0.05)), FakePort(forever))
    async with grpc.aio.insecure_channel(running.grpc) as channel:
        assert "may still take effect" in await refusal(channel, message(), grpc.StatusCode.DEADLINE_EXCEEDED)
    await running.port.cancelled.acquire()


async def test_a_deadline_parameter_wins_if_it_is_shorter_than_the_clients_own(serve) -> None:
    running = await serve(graph(PIXELS, frontend=FrontendSpec(request_timeout_s=30.0, deadline_s=0.25)))
    async with grpc.aio.insecure_channel(running.grpc) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        asked = message()
        await call(asked.SerializeToString())
        await call(asked.SerializeToString(), timeout=10)
        asked.parameters["hams_deadline_ms"].int64_param = 5000
        await call(asked.SerializeToString(), timeout=10)
        await call(asked.SerializeToString(), timeout=2)
        await call(message().SerializeToString(), timeout=300)
        asked.parameters["hams_deadline_ms"].int64_param = 30001
        said = await refusal(channel, asked, grpc.StatusCode.INVALID_ARGUMENT)
    assert "'hams_deadline_ms': expected 1 to 30000 milliseconds" in said
    seen = [request.deadline_s for request in running.port.requests]
    for waits_s, most_s in zip(seen, (0.25, 11, 5, 3, 30), strict=True):
        assert waits_s <= most_s
    assert seen[1] > 0.25, "a client's own deadline may be longer than the graph's"


async def test_a_client_that_goes_away_is_not_waited_for(channel, digits) -> None:
    async def forever(request: InferenceRequest) -> InferenceOutcome:
        await asyncio.Event().wait()
        raise AssertionError

    digits.port.answer = forever
    call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(message().SerializeToString())
    await digits.port.arrived.acquire()
    call.cancel()
    await digits.port.cancelled.acquire()


async def test_a_bug_is_one_internal_error_without_its_text(channel, digits, caplog) -> None:
    async def broken(request: InferenceRequest) -> InferenceOutcome:
        raise KeyError("secret")

    digits.port.answer = broken
    assert (
        await refusal(channel, message(), grpc.StatusCode.INTERNAL)
        == "internal error of the endpoint; its log says more"
    )
    assert "secret" in caplog.text


# ---- what is refused (F36, F37)


def tensor(**changes: object) -> dict[str, object]:
    return {
        "inputs": [
            pb.ModelInferRequest.InferInputTensor(
                **{"name": "pixels", "datatype": "FP32", "shape": [1, 4], **changes}
            )
        ]
    }


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (tensor(name="pixel"), "unknown tensor 'pixel': expected 'pixels', 'target'"),
        (tensor(datatype="FP64"), "tensor 'pixels': expected datatype FP32, got 'FP64'"),
        (tensor(shape=[1, 3]), "tensor 'pixels': expected shape [-1, 4] (-1: any), got [1, 3]"),
        (tensor(shape=[]), "got []"),
        (tensor(shape=[0, 4]), "expected at least 1 row"),
        ({"raw_input_contents": [b"x"]}, "tensor 'pixels': expected 16 bytes for shape [1, 4], got 1"),
        (
            {"raw_input_contents": [b"x", b"y"]},
            "raw_input_contents: expected one for each of 1 inputs, got 2",
        ),
        (
            tensor(contents=pb.InferTensorContents(fp32_contents=[1])),
            "expected raw_input_contents or contents, got both",
        ),
        ({"raw_input_contents": []}, "tensor 'pixels': expected 4 values for shape [1, 4], got 0"),
        (
            {"raw_input_contents": [], **tensor(contents=pb.InferTensorContents(fp64_contents=[1, 2, 3, 4]))},
            "tensor 'pixels': expected FP32 as fp32_contents, got fp64_contents",
        ),
        (
            {"raw_input_contents": [ROW.tobytes()] * 2, "inputs": tensor()["inputs"] * 2},
            "tensor 'pixels': expected once, got twice",
        ),
        (
            {"outputs": [pb.ModelInferRequest.InferRequestedOutputTensor(name="lable")]},
            "unknown output 'lable'",
        ),
        ({"parameters": {"a": pb.InferParameter()}}, "parameter 'a': expected a value, got none"),
        (
            {"parameters": {"idempotency_key": pb.InferParameter(int64_param=1)}},
            "parameter 'idempotency_key': expected a string",
        ),
    ],
)
async def test_F37_bad_requests_are_told_what_was_expected_and_what_was_found(
    channel, digits, changes: dict[str, object], says: str
) -> None:
    assert says in await refusal(channel, message(**changes))
    assert digits.port.requests == []


async def test_F37_typed_integers_keep_to_the_range_of_their_datatype(serve) -> None:
    running = await serve(EVERY_DATATYPE)
    request = pb.ModelInferRequest(model_name="digits")
    request.inputs.add(name="int8", datatype="INT8", shape=[1, 1]).contents.int_contents.append(128)
    async with grpc.aio.insecure_channel(running.grpc) as channel:
        assert "out of the range of INT8" in await refusal(channel, request)


async def test_F36_bytes_that_are_no_message_are_an_invalid_argument(channel, digits) -> None:
    assert "got bytes that are none" in await refusal(channel, b"\xff\xff\xff")
    assert list((await infer(channel, message())).raw_output_contents) == [ROW.tobytes()]


@given(st.binary(max_size=200))
def test_F36_whatever_the_bytes_a_message_is_refused_or_right(data: bytes) -> None:
    try:
        request = pb.ModelInferRequest.FromString(data)
    except DecodeError:
        return
    with pytest.raises((RequestRefused, StopIteration)):
        next(decode_request(request, request.raw_input_contents, Signature(DIGITS)))


async def test_F36_compressed_messages_are_refused(digits) -> None:
    """What is small on the wire would be inflated at once, and held uncounted."""
    async with grpc.aio.insecure_channel(digits.grpc, compression=grpc.Compression.Gzip) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await infer(channel, message(id="x" * 10_000))
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert digits.port.requests == []


async def test_F36_a_message_that_is_too_large_is_resource_exhausted(serve) -> None:
    running = await serve(graph(PIXELS, frontend=FrontendSpec(max_request_bytes=1 << 20)))
    async with grpc.aio.insecure_channel(running.grpc) as channel:
        assert "larger than max" in await refusal(
            channel, message(raw_input_contents=[bytes(2 << 20)]), grpc.StatusCode.RESOURCE_EXHAUSTED
        )
        assert (await infer(channel, message())).model_name == "digits"


@pytest.mark.parametrize("method", ["ModelReady", "ModelMetadata", "ModelInfer"])
async def test_an_unknown_model_or_version_is_not_found(channel, digits, method: str) -> None:
    call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
    kind = pb.ModelInferRequest if method == "ModelInfer" else pb.ModelReadyRequest
    field = "model_name" if method == "ModelInfer" else "name"
    version = "model_version" if method == "ModelInfer" else "version"
    for wrong in ({field: "digit"}, {field: "digits", version: "2"}):
        with pytest.raises(grpc.aio.AioRpcError) as result:
            await call(kind(**wrong).SerializeToString())
        assert result.value.code() is grpc.StatusCode.NOT_FOUND


# ---- the standard services


async def test_health_follows_the_port_and_tells_watchers(channel, digits) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    for service in ("", "inference.GRPCInferenceService"):
        assert (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status == serving
    watched = stub.Watch(health_pb2.HealthCheckRequest())
    assert (await watched.read()).status == serving
    digits.port.is_ready = False
    assert (await watched.read()).status == not_serving
    assert (await stub.Check(health_pb2.HealthCheckRequest())).status == not_serving
    watched.cancel()
    with pytest.raises(grpc.aio.AioRpcError) as result:
        await stub.Check(health_pb2.HealthCheckRequest(service="other"))
    assert result.value.code() is grpc.StatusCode.NOT_FOUND


async def test_readiness_methods_follow_the_port(channel, digits) -> None:
    digits.port.is_ready = digits.port.is_live = False
    service = "/inference.GRPCInferenceService"
    assert not pb.ServerReadyResponse.FromString(
        await channel.unary_unary(f"{service}/ServerReady")(b"")
    ).ready
    assert not pb.ServerLiveResponse.FromString(await channel.unary_unary(f"{service}/ServerLive")(b"")).live
    request = pb.ModelReadyRequest(name="digits").SerializeToString()
    assert not pb.ModelReadyResponse.FromString(
        await channel.unary_unary(f"{service}/ModelReady")(request)
    ).ready


async def test_reflection_describes_every_service(channel, digits) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)

    async def ask(**question: object) -> reflection_pb2.ServerReflectionResponse:
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(**question)]))
        return await call.read()

    listed = await ask(list_services="")
    names = [service.name for service in listed.list_services_response.service]
    assert names == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "inference.GRPCInferenceService",
    ]
    for name in names:
        assert (await ask(file_containing_symbol=name)).file_descriptor_response.file_descriptor_proto


def test_every_method_of_the_health_service_that_the_package_knows_is_served() -> None:
    """Newer packages know `List`; nothing of theirs is asked to register our methods, so a still newer one
    breaks this test and no frontend."""
    known = health_pb2.DESCRIPTOR.services_by_name["Health"].methods_by_name
    assert set(known) <= {"Check", "List", "Watch"}


async def test_the_list_of_healths_names_every_service(channel, digits) -> None:
    if not hasattr(health_pb2, "HealthListRequest"):
        pytest.skip(
            "the installed grpcio-health-checking has no List; `make check-wheels` runs with one that does"
        )
    stub = health_pb2_grpc.HealthStub(channel)
    listed = await stub.List(health_pb2.HealthListRequest())
    assert dict(listed.statuses).keys() == {"", "inference.GRPCInferenceService"}
