"""An endpoint that asks for tokens: who is let in, over HTTP and gRPC, and what the others are told."""

import asyncio
import errno
import json
import os
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from hams_protocol.keys import own_part
from hams_sidecar.endpoint import open_inference_pb2 as pb
from hams_sidecar.endpoint import tokens
from hams_sidecar.endpoint.errors import RequestRefused
from hams_sidecar.endpoint.request import check_key
from hams_sidecar.endpoint.tokens import Tokens
from hams_wire.tls import digest_of

from .conftest import Running, Serve

BODY = {"inputs": [{"name": "pixels", "datatype": "FP32", "shape": [1, 4], "data": [0.5] * 4}]}
INFER = "/v2/models/digits/infer"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As Kubernetes mounts a Secret with two clients' tokens."""
    (tmp_path / "..data").mkdir()
    (tmp_path / "alice").write_text("alices-token\n")
    (tmp_path / "bob").write_text("bobs-token")
    return tmp_path


@pytest.fixture
async def asking(serve: Serve, folder: Path) -> Running:
    return await serve(tokens=Tokens(folder, digest_of(b"metrics-token")))


def bearing(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def ask(running: Running, path: str = INFER, headers: dict[str, str] | None = None) -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://{running.http}") as client:
        if path.endswith("/infer"):
            return await client.post(path, json=BODY, headers=headers or {})
        return await client.get(path, headers=headers or {})


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        bearing("wrong"),
        bearing("alices-toke"),
        bearing("alices-token-and-more"),
        bearing("metrics-token"),
        {"Authorization": "alices-token"},
        {"Authorization": "Basic alices-token"},
        {"X-Authorization": "Bearer alices-token"},
    ],
)
async def test_without_a_token_of_the_graph_nothing_is_answered_but_401(
    asking: Running, headers: dict[str, str]
) -> None:
    for path in (
        INFER,
        "/v2",
        "/v2/models/digits",
        "/v2/models/digits/ready",
        "/docs",
        "/openapi.json",
        "/nothing",
        "/swagger/swagger-ui.css",
    ):
        answer = await ask(asking, path, headers)
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "Bearer TOKEN" in answer.json()["error"]
    assert asking.port.requests == []


@pytest.mark.parametrize("token", ["alices-token", "bobs-token"])
async def test_each_client_has_a_token_of_its_own(asking: Running, token: str) -> None:
    for scheme in ("Bearer", "bearer"):
        answer = await ask(asking, headers={"Authorization": f"{scheme} {token}"})
        assert answer.status_code == 200, answer.text
    assert (await ask(asking, "/v2", bearing(token))).status_code == 200


async def test_a_large_body_is_refused_before_it_is_read(asking: Running) -> None:
    raw = await asking.connect()
    raw.writer.write(
        b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: "
        b"9000000\r\n\r\n"
    )
    answer = await raw.reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 401")
    raw.writer.close()


async def test_a_second_header_does_not_help(asking: Running) -> None:
    raw = await asking.connect()
    raw.writer.write(
        b"GET /v2 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\nAuthorization: Bearer "
        b"alices-token\r\n\r\n"
    )
    assert (await raw.reader.readline()).startswith(b"HTTP/1.1 401")
    raw.writer.close()


async def test_every_request_of_a_connection_is_asked(asking: Running) -> None:
    raw = await asking.connect()
    raw.writer.write(
        b"GET /v2 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer alices-token\r\n\r\nGET /v2 "
        b"HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    answers = await raw.reader.read()
    assert answers.count(b"HTTP/1.1 200") == 1
    assert answers.count(b"HTTP/1.1 401") == 1


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready"])
async def test_load_balancers_ask_without(asking: Running, path: str) -> None:
    assert (await ask(asking, path)).status_code == 200


async def test_metrics_are_for_clients_and_for_who_bears_the_token_of_metrics(asking: Running) -> None:
    status = {
        name: (await ask(asking, "/metrics", bearing(name))).status_code
        for name in ("alices-token", "metrics-token", "wrong")
    }
    assert status == {"alices-token": 200, "metrics-token": 200, "wrong": 401}


async def test_a_token_that_is_taken_away_or_added_counts_at_once_or_a_moment_later(
    asking: Running, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "tokens_check_s", 0.0)
    (folder / "alice").unlink()
    (folder / "carol").write_text("carols-token")
    status = {
        name: (await ask(asking, headers=bearing(name))).status_code
        for name in ("alices-token", "bobs-token", "carols-token")
    }
    assert status == {"alices-token": 401, "bobs-token": 200, "carols-token": 200}


@pytest.mark.parametrize("state", ["empty", "missing", "blank"])
async def test_without_any_token_there_nobody_is_let_in(serve: Serve, tmp_path: Path, state: str) -> None:
    folder = tmp_path / "tokens"
    if state != "missing":
        folder.mkdir()
    if state == "blank":
        (folder / "alice").write_text(" \n")
    running = await serve(tokens=Tokens(folder))
    for path in ("/v2", "/metrics"):
        for header in (b"", b"Authorization: Bearer\r\n", b"Authorization: Bearer \r\n"):
            raw = await running.connect()
            raw.writer.write(b"GET " + path.encode() + b" HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n")
            assert (await raw.reader.readline()).startswith(b"HTTP/1.1 401")
            raw.writer.close()


def no_file_left(self: Tokens) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


async def test_F38_without_a_file_descriptor_the_tokens_read_last_count(
    asking: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "tokens_check_s", 0.0)
    assert (await ask(asking, headers=bearing("alices-token"))).status_code == 200
    monkeypatch.setattr(Tokens, "_read", no_file_left)
    status = {
        name: (await ask(asking, headers=bearing(name))).status_code for name in ("alices-token", "wrong")
    }
    assert status == {"alices-token": 200, "wrong": 401}


async def test_F38_who_may_come_in_is_not_known_before_the_tokens_could_be_read(
    asking: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokens, "_read", no_file_left)
    refused = await ask(asking, headers=bearing("alices-token"))
    assert refused.status_code == 503
    assert "retry-after" in refused.headers
    assert (await ask(asking, "/v2/health/live")).status_code == 200
    async with grpc.aio.insecure_channel(asking.grpc) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await infer(channel)(REQUEST, metadata=(("authorization", "Bearer alices-token"),))
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE


# ---- gRPC ----


def infer(channel: grpc.aio.Channel) -> Any:
    return channel.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        lambda message: message.SerializeToString(),
        pb.ModelInferResponse.FromString,
    )


REQUEST = pb.ModelInferRequest(
    model_name="digits",
    inputs=[
        pb.ModelInferRequest.InferInputTensor(
            name="pixels",
            datatype="FP32",
            shape=[1, 4],
            contents=pb.InferTensorContents(fp32_contents=[0.5] * 4),
        )
    ],
)


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "Bearer wrong"),),
        (("authorization", "Bearer metrics-token"),),
        (("token", "alices-token"),),
    ],
)
async def test_over_grpc_it_is_unauthenticated(
    asking: Running, metadata: tuple[tuple[str, str], ...]
) -> None:
    async with grpc.aio.insecure_channel(asking.grpc) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await infer(channel)(REQUEST, metadata=metadata)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "Bearer TOKEN" in (refused.value.details() or "")
        listing = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")]), metadata=metadata
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await anext(aiter(listing))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert asking.port.requests == []


async def test_over_grpc_a_token_lets_in_and_health_needs_none(asking: Running) -> None:
    async with grpc.aio.insecure_channel(asking.grpc) as channel:
        answer = await infer(channel)(REQUEST, metadata=(("authorization", "Bearer bobs-token"),))
        assert answer.model_name == "digits"
        health = health_pb2_grpc.HealthStub(channel)
        assert (
            await health.Check(health_pb2.HealthCheckRequest())
        ).status == health_pb2.HealthCheckResponse.SERVING
        async with asyncio.timeout(10):
            assert (
                await anext(aiter(health.Watch(health_pb2.HealthCheckRequest())))
            ).status == health_pb2.HealthCheckResponse.SERVING
        live = channel.unary_unary(
            "/inference.GRPCInferenceService/ServerLive", lambda data: data, pb.ServerLiveResponse.FromString
        )
        assert (await live(b"")).live


# ---- idempotency keys ----


async def test_a_key_belongs_to_the_token_it_came_with_over_http_and_grpc_alike(asking: Running) -> None:
    """A client can neither take another's key, nor read what it was answered, nor find out that there is
    one."""
    request = pb.ModelInferRequest.FromString(REQUEST.SerializeToString())
    request.parameters["idempotency_key"].string_param = "order-17"
    async with grpc.aio.insecure_channel(asking.grpc) as channel:
        for token in ("alices-token", "bobs-token"):
            headers = {**bearing(token), "Idempotency-Key": "order-17"}
            assert (await ask(asking, headers=headers)).status_code == 200
            await infer(channel)(request, metadata=(("authorization", f"Bearer {token}"),))
    alice, alice_grpc, bob, bob_grpc = [item.idempotency_key or "" for item in asking.port.requests]
    assert (alice, bob) == (alice_grpc, bob_grpc)
    assert alice != bob
    assert {own_part(alice), own_part(bob)} == {"order-17"}
    assert "alices-token" not in alice


async def test_no_client_can_send_a_key_of_anothers_scope(asking: Running) -> None:
    headers = {**bearing("bobs-token"), "Idempotency-Key": "x"}
    await ask(asking, headers=headers)
    stolen = asking.port.requests[0].idempotency_key or ""
    assert not stolen.isprintable()
    with pytest.raises(RequestRefused):
        check_key(stolen)


async def test_without_tokens_clients_are_not_told_apart(serve: Serve) -> None:
    running = await serve()
    for token in ("one", "two"):
        await ask(running, headers={**bearing(token), "Idempotency-Key": "order-17"})
    assert [item.idempotency_key for item in running.port.requests] == ["order-17"] * 2


async def test_without_asking_for_tokens_anybody_is_served(serve: Serve) -> None:
    running = await serve()
    assert (await ask(running)).status_code == 200
    assert json.loads((await ask(running, headers=bearing("any"))).text)["model_name"] == "digits"
