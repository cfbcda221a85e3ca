"""The REST side end to end: real sockets, a fake graph."""

import asyncio
import gc
import json
from collections.abc import Mapping
from dataclasses import replace

import httpx
import numpy as np
import pytest
import tritonclient.http.aio as triton
from hypothesis import given
from hypothesis import strategies as st
from tests.sidecar.endpoint.doubles import DIGITS, EVERY_DATATYPE, PIXELS, FakePort, always, graph

from hams_protocol.frontend.promises import PromiseAccount
from hams_protocol.graph import AdmissionPolicy, AppSpec, FrontendSpec
from hams_sidecar.datatypes import NUMPY
from hams_sidecar.endpoint import json_data, rest
from hams_sidecar.endpoint.errors import RequestRefused
from hams_sidecar.endpoint.rest_codec import KnownHeads, decode_request, heads_known_max
from hams_sidecar.endpoint.signature import Signature
from hams_sidecar.endpoint.tally import ForeseenPromises
from hams_sidecar.inference import (
    Conflict,
    Full,
    InferenceOutcome,
    InferenceRequest,
    JoinRefused,
    KeyExpired,
    ModelFailure,
    NotReady,
    Reply,
    Shed,
    Tensor,
    TimedOut,
    TraceContext,
    Unpromised,
)
from hams_sidecar.metrics import Metrics

INFER = "/v2/models/digits/infer"
ONE_ROW = {"inputs": [{"name": "pixels", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}


def pixels(**changes: object) -> dict[str, object]:
    """A request whose tensor `pixels` is changed."""
    return {"inputs": [{**ONE_ROW["inputs"][0], **changes}]}


async def refusal(
    client: httpx.AsyncClient, body: object, status: int = 400, headers: Mapping[str, str] | None = None
) -> str:
    """The error text of a request that is refused."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = await client.post(INFER, content=content, headers=headers)
    assert reply.status_code == status, reply.text
    assert set(reply.json()) == {"error"}
    return str(reply.json()["error"])


# ---- what is served


async def test_json_in_json_out(client, digits) -> None:
    reply = await client.post(INFER, json={"id": "42", **ONE_ROW})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    assert "inference-header-content-length" not in reply.headers
    assert reply.json() == {
        "model_name": "digits",
        "model_version": "1",
        "id": "42",
        "outputs": [{"name": "pixels", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}],
    }
    assert "id" not in (await client.post(INFER, json=ONE_ROW)).json()
    assert (await client.post("/v2/models/digits/versions/1/infer", json=ONE_ROW)).status_code == 200


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
async def test_tritonclient_sends_and_gets_every_datatype(serve, binary_in: bool, binary_out: bool) -> None:
    running = await serve(EVERY_DATATYPE)
    arrays = {
        name: np.arange(6).reshape(2, 3).astype(dtype)
        for name, dtype in NUMPY.items()
        if name not in ("BF16",)
    }
    arrays["BYTES"] = np.array([[b"a", b"", "ä".encode()], [b"bc", b"d", b"e"]], dtype=object)
    inputs, outputs = [], []
    for name, array in arrays.items():
        if name == "FP16" and not (binary_in and binary_out):
            continue  # the client refuses FP16 in JSON
        tensor = triton.InferInput(name.lower(), list(array.shape), name)
        tensor.set_data_from_numpy(array, binary_data=binary_in)
        inputs.append(tensor)
        outputs.append(triton.InferRequestedOutput(name.lower(), binary_data=binary_out))
    async with triton.InferenceServerClient(running.http) as client:
        reply = await client.infer("digits", inputs, outputs=outputs, request_id="7")
        for tensor in inputs:
            result = reply.as_numpy(tensor.name())
            if tensor.datatype() == "BYTES" and not binary_out:
                result = np.vectorize(str.encode, otypes=[object])(result)
            np.testing.assert_array_equal(result, arrays[tensor.datatype()])
        assert reply.get_response()["id"] == "7"
        everything = await client.infer("digits", inputs)
        assert all(
            "binary_data_size" in output["parameters"] for output in everything.get_response()["outputs"]
        )


async def test_what_is_answered_or_refused_is_forgotten_without_a_collection(client, digits) -> None:
    """A cycle would keep each with its tensors until the next one."""
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            assert (await client.post(INFER, json=ONE_ROW)).status_code == 200
            assert (await client.post(INFER, json={})).status_code == 400
        alive = [item for item in gc.get_objects() if isinstance(item, rest._Exchange)]
    finally:
        gc.enable()
    assert alive == []


async def test_binary_tensors_are_views_into_the_body(client, digits) -> None:
    array = np.arange(8, dtype="<f4")
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "pixels",
                    "datatype": "FP32",
                    "shape": [2, 4],
                    "parameters": {"binary_data_size": 32},
                }
            ]
        }
    ).encode()
    reply = await client.post(
        INFER, content=head + array.tobytes(), headers={"Inference-Header-Content-Length": str(len(head))}
    )
    assert reply.json()["outputs"][0]["data"] == array.tolist()
    data = digits.port.requests[0].tensors[0].data
    assert isinstance(data, memoryview)
    assert data == array.tobytes()


async def test_a_head_that_has_passed_before_is_read_with_the_tensors_of_its_own_body(client, digits) -> None:
    tensor = {"datatype": "FP32", "shape": [2, 4], "parameters": {"binary_data_size": 32}}
    target = {"name": "target", "datatype": "INT64", "shape": [2], "parameters": {"binary_data_size": 16}}
    head = json.dumps(
        {"inputs": [target, {"name": "pixels", **tensor}], "parameters": {"user": "x"}}
    ).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    for first in range(3):
        array, labels = np.arange(first, first + 8, dtype="<f4"), np.array([first, -first], "<i8")
        reply = await client.post(INFER, content=head + labels.tobytes() + array.tobytes(), headers=headers)
        assert [output["data"] for output in reply.json()["outputs"]] == [array.tolist(), labels.tolist()]
        assert digits.port.requests[-1].parameters == {"user": "x"}
    assert "1 bytes belong to no tensor" in await refusal(client, head + bytes(49), headers=headers)
    assert "31 bytes of the body are left" in await refusal(client, head + bytes(47), headers=headers)
    assert await refusal(client, b" " + (head + bytes(48))[:-1], headers=headers)


async def test_known_heads_are_bounded_and_keep_nothing_of_one_request() -> None:
    known, signature = KnownHeads(), Signature(EVERY_DATATYPE)

    def decode(number: int, **more: object) -> bytes:
        tensor = {
            "name": "uint8",
            "datatype": "UINT8",
            "shape": [1, number],
            "parameters": {"binary_data_size": number},
        }
        head = json.dumps({"inputs": [tensor], **more}).encode()
        json_data.run_through(decode_request(head + bytes(number), str(len(head)), signature, known))
        return head

    for number in range(heads_known_max + 1):
        head = decode(number)
    assert known.find(head, head + bytes(number)) is not None
    assert len(known) == 1
    for more in ({"id": "7"}, {"parameters": {"idempotency_key": "k"}}):
        decode(3, **more)
    assert len(known) == 1


async def test_a_large_binary_body_is_received_where_the_port_wants_it(serve) -> None:
    class Roomy(FakePort):
        def room(self, nbytes: int, first: int) -> memoryview | None:
            asked.append((nbytes, first))
            return given

    asked: list[tuple[int, int]] = []
    array = np.arange(1 << 18, dtype="<f4").reshape(-1, 4)
    tensor = {
        "name": "pixels",
        "datatype": "FP32",
        "shape": list(array.shape),
        "parameters": {"binary_data_size": array.nbytes},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    given = memoryview(bytearray(len(head) + array.nbytes))
    running = await serve(port=Roomy())
    async with httpx.AsyncClient(base_url=f"http://{running.http}") as client:
        headers = {"Inference-Header-Content-Length": str(len(head))}
        reply = await client.post(INFER, content=head + array.tobytes(), headers=headers)
        assert reply.content[-array.nbytes :] == array.tobytes()
        assert (
            await client.post(
                INFER, json={"inputs": [{**tensor, "parameters": {}, "data": array.ravel().tolist()}]}
            )
        ).status_code == 200
    assert asked == [(len(given), len(head))], "JSON is read into memory of its own"
    assert given[len(head) :] == array.tobytes()
    data = running.port.requests[0].tensors[0].data
    assert isinstance(data, memoryview)
    assert data.obj is given.obj


async def test_outputs_select_order_and_form(client, digits) -> None:
    both = {
        "inputs": [*ONE_ROW["inputs"], {"name": "target", "datatype": "INT64", "shape": [1], "data": [5]}]
    }
    reply = await client.post(
        INFER,
        json={
            **both,
            "outputs": [{"name": "target"}, {"name": "pixels", "parameters": {"binary_data": True}}],
        },
    )
    length = int(reply.headers["inference-header-content-length"])
    outputs = json.loads(reply.content[:length])["outputs"]
    assert [output["name"] for output in outputs] == ["target", "pixels"]
    assert outputs[0]["data"] == [5]
    assert outputs[1]["parameters"] == {"binary_data_size": 16}
    assert reply.content[length:] == np.array([1, 2, 3, 4], "<f4").tobytes()
    assert digits.port.requests[0].outputs == ("target", "pixels")
    one = await client.post(INFER, json={**both, "outputs": [{"name": "target"}]})
    assert [output["name"] for output in one.json()["outputs"]] == ["target"]
    skipped = await client.post(INFER, json={**ONE_ROW, "outputs": [{"name": "target"}]})
    assert skipped.status_code == 200
    assert skipped.json()["outputs"] == []
    mixed = {
        **both,
        "parameters": {"binary_data_output": True},
        "outputs": [{"name": "pixels", "parameters": {"binary_data": False}}],
    }
    assert (await client.post(INFER, json=mixed)).json()["outputs"][0]["data"] == [1, 2, 3, 4]


async def test_the_port_sees_parameters_trace_and_deadline_but_no_transport(client, digits) -> None:
    parameters = {
        "sequence_id": 7,
        "sequence_start": True,
        "temperature": 0.5,
        "user": "x",
        "binary_data_output": False,
    }
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b"}
    await client.post(INFER, json={**ONE_ROW, "id": "1", "parameters": parameters}, headers=headers)
    (request,) = digits.port.requests
    assert request.parameters == {"sequence_id": 7, "sequence_start": True, "temperature": 0.5, "user": "x"}
    assert request.trace == TraceContext(headers["traceparent"], "a=b")
    assert 0 < request.deadline_s <= 30
    assert request.idempotency_key is None
    assert request.digest is None
    assert request.rows == 1


async def test_a_key_brings_the_digest_of_the_payload_whatever_the_encoding(client, digits) -> None:
    key = {"Idempotency-Key": "k1"}
    raw = np.array([1, 2, 3, 4], "<f4").tobytes()
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "pixels",
                    "datatype": "FP32",
                    "shape": [1, 4],
                    "parameters": {"binary_data_size": 16},
                }
            ],
            "id": "x",
        }
    ).encode()
    await client.post(INFER, json=ONE_ROW, headers=key)
    await client.post(
        INFER, content=head + raw, headers={**key, "Inference-Header-Content-Length": str(len(head))}
    )
    await client.post(
        INFER, json={**ONE_ROW, "parameters": {"idempotency_key": "k1", "binary_data_output": True}}
    )
    await client.post(INFER, json={**ONE_ROW, "parameters": {"a": 1}}, headers=key)
    digests = [request.digest for request in digits.port.requests]
    assert [request.idempotency_key for request in digits.port.requests] == ["k1"] * 4
    assert digests[0] == digests[1] == digests[2] != digests[3]


async def test_histories_need_a_digest_of_every_request(serve) -> None:
    running = await serve(always_digest=True)
    async with httpx.AsyncClient(base_url=f"http://{running.http}") as client:
        await client.post(INFER, json=ONE_ROW)
    assert len(running.port.requests[0].digest) == 16


async def test_tensors_come_in_the_order_of_the_graph(client, digits) -> None:
    target = {"name": "target", "datatype": "INT64", "shape": [1], "data": [5]}
    await client.post(INFER, json={"inputs": [target, *ONE_ROW["inputs"]]})
    assert [tensor.name for tensor in digits.port.requests[0].tensors] == ["pixels", "target"]


# ---- outcomes


@pytest.mark.parametrize(
    ("outcome", "status", "says"),
    [
        (ModelFailure("learner", "boom"), 500, "operator 'learner' failed on this request: boom"),
        (JoinRefused("choice"), 422, "operator 'choice': refused every input"),
        (Shed("learner", "not run: 3 ms were left"), 504, "operator 'learner': not run: 3 ms"),
        (Conflict(), 409, "another payload"),
        (KeyExpired(), 410, "no longer kept"),
        (Full(1.2), 429, "no room"),
        (NotReady("operator 'learner' has no primary"), 503, "operator 'learner' has no primary"),
        (TimedOut(), 504, "may still take effect"),
    ],
)
async def test_every_outcome_has_its_status(
    client, digits, outcome: InferenceOutcome, status: int, says: str
) -> None:
    digits.port.answer = always(outcome)
    reply = await client.post(INFER, json=ONE_ROW)
    assert reply.status_code == status
    assert says in reply.json()["error"]
    assert reply.headers.get("retry-after") == ("2" if status == 429 else None)


async def test_a_request_that_is_not_admitted_says_that_nothing_has_begun_and_when_to_come_back(
    client, digits
) -> None:
    digits.port.answer = always(Unpromised("cannot be answered within 180 ms: ...", 2.4))
    reply = await client.post(INFER, json=ONE_ROW)
    assert (reply.status_code, reply.headers["hams-begun"], reply.headers["retry-after"]) == (
        504,
        "false",
        "3",
    )
    assert reply.json() == {
        "error": "cannot be answered within 180 ms: ...",
        "reason": "deadline",
        "begun": False,
    }
    digits.port.answer = always(TimedOut())
    assert "hams-begun" not in (await client.post(INFER, json=ONE_ROW)).headers, "nobody knows"


async def test_promises_that_are_kept_broken_and_refused_are_counted(serve) -> None:
    promised = replace(DIGITS, frontend=replace(DIGITS.frontend, admission=AdmissionPolicy.PROMISE))
    running = await serve(promised)
    async with httpx.AsyncClient(base_url=f"http://{running.http}") as client:
        await client.post(INFER, json=ONE_ROW)
        for outcome in (Shed("learner", "not run"), TimedOut(), Unpromised("no", 1.0), Full(1.0)):
            running.port.answer = always(outcome)
            await client.post(INFER, json=ONE_ROW)
    text = running.metrics.render()[0].decode()
    for outcome, count in (("kept", 1), ("broken", 2), ("refused", 1)):
        assert f'hams_frontend_promises_total{{outcome="{outcome}"}} {count}.0' in text


def test_promises_whose_chance_was_known_are_told_with_it() -> None:
    metrics, account = Metrics("frontend"), PromiseAccount()
    ForeseenPromises(metrics, account)
    assert b"foreseen" not in metrics.render()[0], "no promise was settled"
    account.settle(0.75, True, 0.5, 1.0)
    account.settle(0.75, False, 0.5, 1.0)
    account.lost_at = 1.0
    account.settle(0.5, False, 1.5, 2.0)
    text = metrics.render()[0].decode()
    for line in (
        'promises_total{cause="",outcome="kept"} 1.0',
        'promises_total{cause="late",outcome="broken"} 1.0',
        'promises_total{cause="loss",outcome="broken"} 1.0',
        "chances_total 2.0",
        "squares_total 0.875",
    ):
        assert f"hams_frontend_foreseen_{line}" in text


async def test_an_application_may_have_a_deadline_of_its_own(serve) -> None:
    spec = replace(DIGITS.frontend, app_parameter="app", apps=(AppSpec("chat", 0.2), AppSpec("mail", 0.0)))
    running = await serve(replace(DIGITS, frontend=spec))
    async with httpx.AsyncClient(base_url=f"http://{running.http}") as client:
        for app in ("chat", "mail", "other", 7):
            await client.post(INFER, json={**ONE_ROW, "parameters": {"app": app}})
        hasty = {**ONE_ROW, "parameters": {"app": "chat"}}
        await client.post(INFER, json=hasty, headers={"HAMS-Deadline-Ms": "9000"})
    chat, *usual, own = [request.deadline_s for request in running.port.requests]
    assert chat <= 0.2
    assert min(usual) > 0.2
    assert 0.2 < own <= 9.0, "what a client says itself counts"


async def test_where_everything_is_admitted_nothing_is_promised(client, digits) -> None:
    await client.post(INFER, json=ONE_ROW)
    assert b"promises" not in digits.metrics.render()[0]


async def test_the_body_of_a_shed_request_says_which_operator_and_why_for_programs(client, digits) -> None:
    digits.port.answer = always(Shed("learner", "not run"))
    assert (await client.post(INFER, json=ONE_ROW)).json() == {
        "error": "operator 'learner': not run",
        "operator": "learner",
        "reason": "deadline",
        "begun": True,
    }
    digits.port.answer = always(TimedOut())
    assert list((await client.post(INFER, json=ONE_ROW)).json()) == ["error"], "that may still take effect"


async def test_the_deadline_is_the_graphs(serve) -> None:
    async def forever(request: InferenceRequest) -> InferenceOutcome:
        await asyncio.Event().wait()
        raise AssertionError

    running = await serve(graph(PIXELS, frontend=FrontendSpec(request_timeout_s=0.05)), FakePort(forever))
    async with httpx.AsyncClient(base_url=f"http://{running.http}") as client:
        assert (await client.post(INFER, json=ONE_ROW)).status_code == 504
    await running.port.cancelled.acquire()


@pytest.mark.parametrize("header", ["180", "180.5"])
async def test_a_client_says_in_a_header_or_a_parameter_how_long_it_waits(
    client, digits, header: str
) -> None:
    await client.post(INFER, json=ONE_ROW, headers={"HAMS-Deadline-Ms": header})
    await client.post(INFER, json={**ONE_ROW, "parameters": {"hams_deadline_ms": 180, "user": "x"}})
    by_header, by_parameter = digits.port.requests
    assert 0 < by_header.deadline_s <= 0.1805
    assert 0 < by_parameter.deadline_s <= 0.18
    assert by_parameter.parameters == {"user": "x"}, "no model is told"


async def test_who_names_no_deadline_has_the_graphs(serve) -> None:
    spec = FrontendSpec(request_timeout_s=30.0, deadline_s=0.25)
    running = await serve(graph(PIXELS, frontend=spec))
    async with httpx.AsyncClient(base_url=f"http://{running.http}") as client:
        await client.post(INFER, json=ONE_ROW)
        await client.post(INFER, json=ONE_ROW, headers={"HAMS-Deadline-Ms": "5000"})
    graphs, longer = running.port.requests
    assert 0 < graphs.deadline_s <= 0.25
    assert 0.25 < longer.deadline_s <= 5, "a client may wait longer, up to requestTimeout"


@pytest.mark.parametrize(
    "given", ["abc", "-1", "0", "0.5", "1e99", "", "nan", "inf", "30001", "9" * 5000, "1 2", "0x10", "٣"]
)
async def test_a_deadline_that_is_none_is_refused_with_the_name_of_its_header(client, digits, given) -> None:
    said = await refusal(client, ONE_ROW, headers={b"HAMS-Deadline-Ms": given.encode()})
    assert said.startswith("header HAMS-Deadline-Ms: expected 1 to 30000 milliseconds (the graph's ")
    assert len(said) < 300
    assert not digits.port.requests


@pytest.mark.parametrize("given", [True, "180", None, [1], 0, -1, 30001, 10**400, 1e300])
async def test_a_deadline_parameter_that_is_none_is_refused_with_its_name(client, digits, given) -> None:
    said = await refusal(client, {**ONE_ROW, "parameters": {"hams_deadline_ms": given}})
    assert said.startswith("parameter 'hams_deadline_ms': expected ")
    assert not digits.port.requests


async def test_two_deadlines_are_one_too_many(client, digits) -> None:
    both = {**ONE_ROW, "parameters": {"hams_deadline_ms": 100}}
    assert "got both" in await refusal(client, both, headers={"HAMS-Deadline-Ms": "100"})
    twice = [("HAMS-Deadline-Ms", "100"), ("HAMS-Deadline-Ms", "100")]
    assert "once, got it twice" in await refusal(client, ONE_ROW, headers=twice)


async def test_a_bug_is_one_500_without_its_trace(client, digits, caplog) -> None:
    async def broken(request: InferenceRequest) -> InferenceOutcome:
        raise KeyError("secret")

    digits.port.answer = broken
    reply = await client.post(INFER, json=ONE_ROW)
    assert reply.status_code == 500
    assert reply.json() == {"error": "internal error of the endpoint; its log says more"}
    assert "secret" in caplog.text
    assert (await client.get("/v2/health/live")).status_code == 200


async def test_a_bug_in_writing_a_large_reply_to_a_small_request_is_one_500_too(
    digits, caplog, monkeypatch
) -> None:
    async def broken(steps: object) -> None:
        raise KeyError("secret")

    rows = rest.limits.json_slice_bytes // 16 + 1
    digits.port.answer = always(Reply((Tensor("pixels", "FP32", (rows, 4), memoryview(bytes(16 * rows))),)))
    monkeypatch.setattr(rest, "run", broken)
    body = json.dumps(ONE_ROW).encode()
    raw = await digits.connect()
    await raw.send(
        b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (INFER.encode(), len(body)) + body
    )
    async with asyncio.timeout(20):
        status, _, said = await raw.answer()
    assert status == 500
    assert json.loads(said) == {"error": "internal error of the endpoint; its log says more"}
    assert "secret" in caplog.text
    assert digits.endpoint.open_requests == 0


async def test_a_timeout_inside_the_port_is_not_the_clients_deadline(client, digits) -> None:
    async def broken(request: InferenceRequest) -> InferenceOutcome:
        raise TimeoutError

    digits.port.answer = broken
    assert (await client.post(INFER, json=ONE_ROW)).status_code == 500


async def test_an_output_that_json_cannot_carry_is_to_be_asked_for_binary(serve) -> None:
    running = await serve(EVERY_DATATYPE)
    running.port.answer = always(Reply((Tensor("bytes", "BYTES", (1, 1), b"\x01\x00\x00\x00\xff"),)))
    body = {"inputs": [{"name": "int8", "datatype": "INT8", "shape": [1, 1], "data": [1]}]}
    async with httpx.AsyncClient(base_url=f"http://{running.http}") as client:
        reply = await client.post(INFER, json=body)
        assert reply.status_code == 400
        assert "output 'bytes' holds bytes that are not UTF-8" in reply.json()["error"]
        assert (
            await client.post(INFER, json={**body, "parameters": {"binary_data_output": True}})
        ).content.endswith(b"\x01\x00\x00\x00\xff")


# ---- what is refused (F37)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (pixels(name="pixel"), "unknown tensor 'pixel': expected 'pixels', 'target'"),
        (pixels(datatype="FP64"), "tensor 'pixels': expected datatype FP32, got 'FP64'"),
        (pixels(shape=[1, 3]), "tensor 'pixels': expected shape [-1, 4] (-1: any), got [1, 3]"),
        (pixels(shape=[1, 4, 1]), "expected shape [-1, 4] (-1: any), got [1, 4, 1]"),
        (pixels(shape=[4]), "expected shape [-1, 4] (-1: any), got [4]"),
        (pixels(shape=[]), "got []"),
        (pixels(shape=[0, 4], data=[]), "tensor 'pixels': expected at least 1 row, got shape [0, 4]"),
        (pixels(shape=[-1, 4]), "expected at least 1 row"),
        (pixels(shape=[2, 4]), "tensor 'pixels': expected 8 values for shape [2, 4], got 4"),
        (pixels(shape=[2**62, 4]), "tensor 'pixels': expected"),
        (pixels(shape=["1", 4]), "request: expected `int`, got `str` - at `$.inputs[0].shape[0]`"),
        (pixels(data=None), "tensor 'pixels': expected data as an array, got 'null'"),
        (
            pixels(parameters={"binary_data_size": 16}),
            "expected either data or the parameter binary_data_size, got both",
        ),
        (pixels(parameters={"shared_memory_region": "r"}), "shared memory is not offered"),
        (
            {"inputs": [{"name": "pixels", "datatype": "FP32", "shape": [1, 4]}]},
            "expected data, or the parameter binary_data_size, got neither",
        ),
        ({"inputs": [*ONE_ROW["inputs"], *ONE_ROW["inputs"]]}, "tensor 'pixels': expected once, got twice"),
        ({"inputs": []}, "missing tensor 'pixels': expected 'pixels', got no tensor"),
        (
            {"inputs": [{"name": "target", "datatype": "INT64", "shape": [1], "data": [1]}]},
            "missing tensor 'pixels': expected 'pixels', got 'target'",
        ),
        (
            {
                "inputs": [
                    *ONE_ROW["inputs"],
                    {"name": "target", "datatype": "INT64", "shape": [2], "data": [1, 2]},
                ]
            },
            "tensor 'target': expected 1 rows as in 'pixels', got 2",
        ),
        ({}, "request: object missing required field `inputs`"),
        ([], "request: expected `object`, got `array`"),
        (b"", "expected a JSON object, got an empty body"),
        (b'{"inputs": [', "malformed JSON: input data was truncated"),
        (b'{"inputs": []}x', "malformed JSON"),
        (b"\xff\xfe", "malformed JSON"),
        (
            b'{"inputs": [{"name": "pixels", "datatype": "FP32", "shape": [1, 4], "data": [NaN, 1, 2, 3]}]}',
            "malformed JSON",
        ),
        (b"[" * 100_000, "request: expected `object`, got `array`"),
        (b'{"a":' * 10_000, "malformed JSON: nested too deeply"),
        (b'{"inputs": [{"data": ' + b"[" * 50_000, "malformed JSON: nested too deeply"),
        (b'{"inputs": [], "parameters": {"a": ' + b"[" * 50_000, "malformed JSON: nested too deeply"),
        ({**ONE_ROW, "outputs": [{"name": "lable"}]}, "unknown output 'lable': expected 'pixels', 'target'"),
        (
            {**ONE_ROW, "outputs": [{"name": "pixels"}, {"name": "pixels"}]},
            "output 'pixels': expected once, got twice",
        ),
        (
            {**ONE_ROW, "outputs": [{"name": "pixels", "parameters": {"classification": 3}}]},
            "classification are not offered",
        ),
        (
            {**ONE_ROW, "parameters": {"a": None}},
            "parameter 'a': expected a boolean, number or string, got null",
        ),
        (
            {**ONE_ROW, "parameters": {"a": [1]}},
            "parameter 'a': expected a boolean, number or string, got an array",
        ),
        ({**ONE_ROW, "parameters": {"a": 2**64}}, "parameter 'a': expected an integer of 64 bits"),
        ({**ONE_ROW, "parameters": {"a": "x" * 20_000}}, "expected parameters of at most"),
        ({**ONE_ROW, "parameters": {str(n): n for n in range(65)}}, "expected at most 64 parameters, got 65"),
        (
            {**ONE_ROW, "parameters": {"binary_data_output": 1}},
            "parameter 'binary_data_output': expected true or false",
        ),
        ({**ONE_ROW, "id": "x" * 2000}, "id: expected at most 1024 bytes, got 2000"),
        ({**ONE_ROW, "id": 5}, "request: expected `str | null`, got `int` - at `$.id`"),
    ],
)
async def test_F37_bad_requests_are_told_what_was_expected_and_what_was_found(
    client, digits, body: object, says: str
) -> None:
    assert says.lower() in (await refusal(client, body)).lower()
    assert digits.port.requests == []
    assert (await client.post(INFER, json=ONE_ROW)).status_code == 200


@pytest.mark.parametrize(
    ("size", "header", "extra", "says"),
    [
        (16, "0", b"", "header Inference-Header-Content-Length: expected 1 to"),
        (16, "-5", b"", "header Inference-Header-Content-Length: expected 1 to"),
        (16, "9" * 30, b"", "header Inference-Header-Content-Length: expected 1 to"),
        (16, "x", b"", "got 'x'"),
        (16, None, b"", "malformed JSON"),
        (15, "", b"", "tensor 'pixels': expected 16 bytes for shape [1, 4], got 15"),
        (17, "", b"", "tensor 'pixels': binary_data_size is 17, but 16 bytes of the body are left"),
        (-1, "", b"", "binary_data_size is -1"),
        (16, "", b"!", "1 bytes belong to no tensor"),
    ],
)
async def test_F36_lengths_that_lie_are_refused(
    client, digits, size: int, header: str | None, extra: bytes, says: str
) -> None:
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "pixels",
                    "datatype": "FP32",
                    "shape": [1, 4],
                    "parameters": {"binary_data_size": size},
                }
            ]
        }
    ).encode()
    headers = {} if header is None else {"Inference-Header-Content-Length": header or str(len(head))}
    assert says in await refusal(client, head + bytes(16) + extra, headers=headers)
    assert digits.port.requests == []


@pytest.mark.parametrize(
    "data", [b"", b"\x01\x00\x00", b"\x02\x00\x00\x00x", b"\x01\x00\x00\x00x\x00", b"\xff\xff\xff\xffx"]
)
async def test_F36_bytes_elements_that_lie_are_refused(serve, data: bytes) -> None:
    running = await serve(EVERY_DATATYPE)
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "bytes",
                    "datatype": "BYTES",
                    "shape": [1, 1],
                    "parameters": {"binary_data_size": len(data)},
                }
            ]
        }
    ).encode()
    async with httpx.AsyncClient(base_url=f"http://{running.http}") as client:
        said = await refusal(client, head + data, headers={"Inference-Header-Content-Length": str(len(head))})
    assert said.startswith("tensor 'bytes'")


@pytest.mark.parametrize("key", ["", "x" * 257, "a\tb"])
async def test_keys_are_printable_and_short(client, digits, key: str) -> None:
    assert "idempotency key: expected 1 to 256 printable ASCII" in await refusal(
        client, ONE_ROW, headers={"Idempotency-Key": key}
    )


async def test_two_keys_are_one_too_many(client, digits) -> None:
    assert "differ" in await refusal(
        client, {**ONE_ROW, "parameters": {"idempotency_key": "a"}}, headers={"Idempotency-Key": "b"}
    )


async def test_compressed_bodies_are_not_offered(client, digits) -> None:
    assert "expected no content encoding" in await refusal(client, ONE_ROW, 415, {"Content-Encoding": "gzip"})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["inputs", "name", "shape", "data", "datatype", "outputs", "parameters"]),
            inner,
            max_size=4,
        )
    ),
)


@given(
    st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()),
    st.none() | st.integers(-5, 300).map(str),
)
def test_F36_whatever_the_bytes_the_decoder_refuses_with_400(body: bytes, header: str | None) -> None:
    def decode() -> None:
        for _ in decode_request(body, header, Signature(DIGITS), KnownHeads()):
            pass

    with pytest.raises(RequestRefused) as result:
        decode()
    assert result.value.status == 400


# ---- the other routes


async def test_health_follows_the_port(client, digits) -> None:
    for path in ("/v2/health/ready", "/v2/models/digits/ready", "/v2/models/digits/versions/1/ready"):
        assert (await client.get(path)).status_code == 200
    assert (await client.get("/v2/health/live")).json() == {"live": True}
    digits.port.is_ready = digits.port.is_live = False
    for path in (
        "/v2/health/ready",
        "/v2/models/digits/ready",
        "/v2/models/digits/versions/1/ready",
        "/v2/health/live",
    ):
        reply = await client.get(path)
        assert reply.status_code == 503
        assert "error" in reply.json()


async def test_metadata_shapes_begin_with_the_rows(client, digits) -> None:
    read = (await client.get("/v2/models/digits")).json()
    assert read == {
        "name": "digits",
        "versions": ["1"],
        "platform": "hams",
        "inputs": [
            {"name": "pixels", "datatype": "FP32", "shape": [-1, 4]},
            {"name": "target", "datatype": "INT64", "shape": [-1]},
        ],
        "outputs": [
            {"name": "pixels", "datatype": "FP32", "shape": [-1, 4]},
            {"name": "target", "datatype": "INT64", "shape": [-1]},
        ],
    }
    assert (await client.get("/v2/models/digits/versions/1")).json() == read
    assert (await client.get("/v2")).json()["extensions"] == ["binary_tensor_data"]


@pytest.mark.parametrize(
    "path", ["/v2/models/digit", "/v2/models/digits/versions/2", "/v2/models/digit/ready", "/v2/nothing", "/"]
)
async def test_what_is_not_there_is_404(client, digits, path: str) -> None:
    reply = await client.get(path)
    assert reply.status_code == 404
    assert "error" in reply.json()


@pytest.mark.parametrize("path", ["/v2/models/digit/infer", "/v2/models/digits/versions/2/infer"])
async def test_infer_knows_one_model_and_one_version(client, digits, path: str) -> None:
    reply = await client.post(path, json=ONE_ROW)
    assert reply.status_code == 404
    assert "'digits'" in reply.json()["error"]


async def test_a_wrong_method_is_405(client, digits) -> None:
    reply = await client.get(INFER)
    assert reply.status_code == 405
    assert "error" in reply.json()


async def test_metrics_count_what_was_answered(client, digits) -> None:
    await client.post(INFER, json=ONE_ROW)
    await client.post(INFER, content=b"x")
    text = (await client.get("/metrics")).text
    assert 'hams_frontend_requests_total{code="200",protocol="http"} 1.0' in text
    assert 'hams_frontend_requests_total{code="400",protocol="http"} 1.0' in text
    assert 'hams_frontend_request_duration_seconds_count{protocol="http"} 2.0' in text
    assert "hams_frontend_requests_open 0.0" in text
    assert "hams_frontend_held_bytes 0.0" in text
    openmetrics = await client.get("/metrics", headers={"Accept": "application/openmetrics-text"})
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")


async def test_docs_load_nothing_from_elsewhere_and_show_the_infer_route(client, digits) -> None:
    page = await client.get("/docs")
    assert page.status_code == 200
    links = [part.split('"')[0] for part in page.text.replace("href=", "src=").split('src="')[1:]]
    assert links
    for link in links:
        assert "//" not in link
        assert (await client.get(link)).status_code == 200
    document = (await client.get("/openapi.json")).json()
    infer = document["paths"]["/v2/models/digits/infer"]["post"]
    example = infer["requestBody"]["content"]["application/json"]["example"]
    assert (await client.post(INFER, json=example)).status_code == 200
    assert {"400", "409", "410", "413", "422", "429", "500", "503", "504"} <= set(infer["responses"])
