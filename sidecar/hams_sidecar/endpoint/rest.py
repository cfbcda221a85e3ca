"""`POST .../infer`: the hot path of HTTP, a bare ASGI application.

No routing, no request object, no model validation: the body as collected by the connection, decoded straight into tensors that are views into it, one
call of the port, and the buffers of the reply.

Invariant: exactly one answer per request, unless the client went away.
"""

import asyncio
import logging
import math
from time import perf_counter

from starlette.types import Receive, Scope, Send

from hams_sidecar.endpoint.answers import INTERNAL_ERROR, LEFT, Refusal, refused
from hams_sidecar.endpoint.connection import UPLOAD, Upload
from hams_sidecar.endpoint.errors import RequestRefused
from hams_sidecar.endpoint.json_data import run
from hams_sidecar.endpoint.request import build, check_key, trace_context
from hams_sidecar.endpoint.rest_codec import choose, decode_request, encode_error, encode_reply
from hams_sidecar.endpoint.serving import Serving
from hams_sidecar.inference import Buffer

log = logging.getLogger(__name__)

JSON = b"content-type: application/json\r\n"
BINARY = b"content-type: application/octet-stream\r\n"


class InferRoute:
    """The infer route of one graph."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        upload: Upload = scope[UPLOAD]
        try:
            if upload.begin():
                await self._serve(scope, upload)
        except asyncio.CancelledError:
            # The client went away, or this frontend does and has waited for the request as long as it may.
            self._serving.count("http", "cancelled", perf_counter(), upload.size, 0)
            if not upload.lost:
                upload.close_after()
                await upload.answer(*_error(LEFT))
        finally:
            upload.release()

    async def _serve(self, scope: Scope, upload: Upload) -> None:
        serving = self._serving
        began = perf_counter()
        size = 0
        serving.open_requests += 1
        try:
            given: dict[bytes, bytes] = dict(scope["headers"])
            body = await upload.body(serving.timeout_s)
            size = len(body)
            status, headers, content = await self._infer(given, body, serving.timeout_s - (perf_counter() - began))
        except RequestRefused as error:
            status, headers, content = _error(refused(error))
        except Exception:  # the boundary: whatever breaks inside is one 500 for one request, its trace in the log and not in the answer
            log.exception("an inference request over HTTP failed")
            status, headers, content = _error(INTERNAL_ERROR)
        finally:
            serving.open_requests -= 1
        if serving.draining or status == 408:
            upload.close_after()
        await upload.answer(status, headers, content)
        serving.count("http", str(status), began, size, sum(map(len, content)))

    async def _infer(self, given: dict[bytes, bytes], body: Buffer, deadline_s: float) -> tuple[int, bytes, list[Buffer]]:
        """One request from its headers and body to status, headers and body of its answer. Raises RequestRefused."""
        serving = self._serving
        encoding = given.get(b"content-encoding", b"identity")
        if encoding.lower() != b"identity":
            raise RequestRefused(f"expected no content encoding, got {encoding[:40].decode('latin-1')!r}", status=415)
        length = given.get(b"inference-header-content-length")
        request = await run(decode_request(body, None if length is None else length.decode("latin-1"), serving.signature))
        key = request.parameters.idempotency_key
        header_key = given.get(b"idempotency-key")
        if header_key is not None:
            if key is not None and key.encode() != header_key:
                raise RequestRefused("header Idempotency-Key and parameter 'idempotency_key' differ: expected one of them")
            key = check_key(header_key.decode("latin-1"))
        outcome = await serving.infer(
            await build(
                request.tensors,
                request.parameters,
                request.form.outputs,
                max(deadline_s, 0.001),
                key,
                trace_context(_text(given.get(b"traceparent")), _text(given.get(b"tracestate"))),
                always_digest=serving.always_digest,
            )
        )
        if isinstance(outcome, Refusal):
            return _error(outcome)
        json_length, content = await run(encode_reply(serving.graph.name, request.form, choose(outcome.tensors, request.form.outputs)))
        if json_length is None:
            return 200, JSON, content
        return 200, BINARY + b"inference-header-content-length: %d\r\n" % json_length, content


def _error(found: Refusal) -> tuple[int, bytes, list[Buffer]]:
    headers = JSON
    if found.retry_after_s is not None:
        headers += b"retry-after: %d\r\n" % max(1, math.ceil(found.retry_after_s))
    return found.status, headers, [encode_error(found.message)]


def _text(header: bytes | None) -> str | None:
    return None if header is None else header.decode("latin-1")
