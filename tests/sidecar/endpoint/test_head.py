"""Heads that a proxy in front and this server could read differently (RFC 9110, RFC 9112): each gets a typed
error and a closed connection."""

import asyncio
import json

import pytest

from hams_sidecar.endpoint.connection import head_bytes_max
from hams_sidecar.endpoint.head import read_head
from hams_sidecar.inference import InferenceRequest

BODY = json.dumps(
    {"inputs": [{"name": "pixels", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
).encode()
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKS = b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY)


def infer(*fields: bytes, version: bytes = b"1.1", rest: bytes = BODY) -> bytes:
    head = b"POST /v2/models/digits/infer HTTP/" + version + b"\r\n"
    return head + b"".join(field + b"\r\n" for field in fields) + b"\r\n" + rest


H, L, CHUNKED = b"Host: x", LENGTH[:-2], b"Transfer-Encoding: chunked"


@pytest.mark.parametrize(
    ("status", "request_bytes"),
    [
        (400, infer(L)),
        (400, infer(H, H, L)),
        (400, infer(b"Host: one", b"Host: two", L)),
        (400, infer(b"Host: a b", L)),
        (400, infer(b"Host: a/b", L)),
        (400, infer(b"Host: user@a", L)),
        (400, infer(H, L, b"Idempotency-Key: a", b"Idempotency-Key: b")),
        (400, infer(H, L, b"Idempotency-Key: a", b"idempotency-key: a")),
        (400, infer(H, L, b"Content-Encoding: gzip", b"Content-Encoding: identity")),
        (400, infer(H, L, b"Inference-Header-Content-Length: 1", b"Inference-Header-Content-Length: 9")),
        (400, infer(H, L, L)),
        (400, infer(H, L, CHUNKED)),
        (501, infer(H, b"Transfer-Encoding: gzip, chunked", rest=CHUNKS + b"\r\n")),
        (400, infer(H, b"Transfer-Encoding: gzip", CHUNKED, rest=CHUNKS + b"\r\n")),
        (501, infer(H, b"Transfer-Encoding: xchunked", rest=CHUNKS + b"\r\n")),
        (400, infer(H, CHUNKED, version=b"1.0", rest=CHUNKS + b"\r\n")),
        (505, infer(H, L, version=b"2.0")),
        (505, b"GET /v2\r\n\r\n"),
    ],
)
async def test_F36_a_head_that_can_be_read_in_two_ways_is_refused(serve, status, request_bytes) -> None:
    running = await serve()
    raw = await running.connect()
    await raw.send(request_bytes)
    assert (await raw.answer())[0] == status
    assert await raw.closed()
    assert running.port.requests == []


@pytest.mark.parametrize(
    "request_bytes",
    [
        infer(b"Host:", L),
        infer(b"Host: [::1]:8080", L),
        infer(L, version=b"1.0"),
        infer(H, b"TRANSFER-ENCODING:  Chunked ", rest=CHUNKS + b"\r\n"),
    ],
)
async def test_a_head_in_order_is_served(serve, request_bytes) -> None:
    running = await serve()
    raw = await running.connect()
    await raw.send(request_bytes)
    assert (await raw.answer())[0] == 200


async def test_trailers_are_no_headers(serve) -> None:
    running = await serve()
    raw = await running.connect()
    trailers = b"Idempotency-Key: late\r\ntraceparent: 00-1-2-03\r\nContent-Encoding: gzip\r\n\r\n"
    await raw.send(infer(H, CHUNKED, rest=CHUNKS + trailers))
    assert (await raw.answer())[0] == 200
    request: InferenceRequest = running.port.requests[0]
    assert (request.idempotency_key, request.trace) == (None, None)


@pytest.mark.parametrize("before", [b"0\r\nX: ", b"1;x="])
async def test_F36_what_is_no_body_is_bounded_between_and_behind_its_pieces(serve, before: bytes) -> None:
    """One endless trailer, or extension of a chunk."""
    running = await serve()
    raw = await running.connect()
    await raw.send(infer(H, CHUNKED, rest=CHUNKS[:-3] + before))
    answer = asyncio.create_task(raw.answer())
    sent = 0
    while not answer.done():
        assert sent <= 100 * head_bytes_max
        await raw.send(b"a" * 4096)
        sent += 4096
        await asyncio.sleep(0)
    assert answer.result()[0] in (400, 431)


@pytest.mark.parametrize(
    "path", [b"/v2/", b"/docs/", b"/swagger", b"//evil.example/v2", b"/v2/models/digits/"]
)
async def test_no_answer_leads_to_a_host_that_the_client_has_named(serve, path: bytes) -> None:
    running = await serve()
    raw = await running.connect()
    await raw.send(b"GET " + path + b" HTTP/1.1\r\nHost: evil.example\r\n\r\n")
    status, headers, _ = await raw.answer()
    assert status == 404
    assert "location" not in headers


def test_the_length_is_what_the_head_says() -> None:
    assert read_head("1.1", [(b"host", b"a"), (b"content-length", b"17")]).length == 17
    assert read_head("1.1", [(b"host", b"a")]).length == 0
