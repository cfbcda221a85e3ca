"""`POST .../infer`: the hot path of HTTP, without ASGI.

No routing, no request object, no model validation: the body as collected by the connection, decoded straight
into tensors that are views into it, one call of the port, and the buffers of the reply.

A small request that has arrived whole is served without a task: it is decoded and handed to the port in the
turn of the loop in which it came, and its answer is written when the outcome comes. A large one, or one whose
body is still on its way, gets a task, which pauses now and then.

Invariant: exactly one answer per request, unless the client went away.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from time import perf_counter

import numpy as np

from hams_protocol.keys import scoped
from hams_sidecar.endpoint import limits
from hams_sidecar.endpoint.answers import INTERNAL_ERROR, LEFT, Refusal, answer, refused
from hams_sidecar.endpoint.errors import RequestRefused
from hams_sidecar.endpoint.json_data import run, run_through
from hams_sidecar.endpoint.json_scan import Steps
from hams_sidecar.endpoint.request import check_key, digest_of, trace_context
from hams_sidecar.endpoint.rest_codec import (
    ReplyForm,
    RestRequest,
    choose,
    decode_request,
    encode_error,
    encode_reply,
)
from hams_sidecar.endpoint.serving import Serving
from hams_sidecar.endpoint.upload import Upload
from hams_sidecar.inference import Buffer, InferenceOutcome, InferenceRequest, TimedOut, payload_digest

log = logging.getLogger(__name__)

JSON = b"content-type: application/json\r\n"
BINARY = b"content-type: application/octet-stream\r\n"

Written = tuple[int, bytes, list[Buffer]]
"""Status, headers and body of an answer."""

_deadline_min_s = 0.001
_digits_max = 12
_FAILED = "an inference request over HTTP failed"


class InferRoute:
    """The infer route of one graph (`connection.Door`)."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving

    def serve(self, upload: Upload) -> Coroutine[None, None, None] | None:
        """Serve a request; None if it is under way, else the work of a task."""
        if upload.complete and upload.size <= limits.json_slice_bytes:
            _Small(self, upload).begin()
            return None
        return self._large(upload)

    def room(self, nbytes: int, headers: list[tuple[bytes, bytes]]) -> memoryview:
        """Where a large body goes: binary tensors to where the graph wants them, everything else anywhere."""
        for name, value in headers:
            if name == b"inference-header-content-length" and value.isdigit() and len(value) < _digits_max:
                memory = self.serving.port.room(nbytes, int(value))
                if memory is not None:
                    return memory
        return np.empty(nbytes, np.uint8).data

    # ---- with a task

    async def _large(self, upload: Upload) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if upload.begin(task):
                await self._serve(upload)
        except asyncio.CancelledError:
            # The client went away, or this frontend does and has waited for the request as long as it may.
            self.serving.count("http", "cancelled", perf_counter(), upload.size, 0)
            if not upload.lost:
                upload.close_after()
                await upload.answer(*_error(LEFT))
        finally:
            upload.release()

    async def _serve(self, upload: Upload) -> None:
        serving = self.serving
        began = perf_counter()
        size = 0
        serving.open_requests += 1
        try:
            body = await upload.arrived(serving.timeout_s)
            size = len(body)
            given = dict(upload.headers)
            asked = await run(
                decode_request(body, json_length(given), serving.signature, serving.known_heads)
            )
            key = self.key_of(given, asked)
            digest: str | None = None
            if serving.always_digest or key is not None:
                digest = await digest_of(asked.tensors, asked.parameters.payload, asked.form.outputs)
            deadline_s = max(serving.timeout_s - (perf_counter() - began), _deadline_min_s)
            outcome = await serving.infer(self.request(given, asked, deadline_s, key, digest))
            if isinstance(outcome, Refusal):
                written = _error(outcome)
            else:
                written = _reply(
                    *await run(
                        encode_reply(
                            serving.graph.name, asked.form, choose(outcome.tensors, asked.form.outputs)
                        )
                    )
                )
        except RequestRefused as error:
            written = _error(refused(error))
        # the boundary: whatever breaks inside is one 500 for one request, its trace in the log and not in the
        # answer
        except Exception:
            log.exception(_FAILED)
            written = _error(INTERNAL_ERROR)
        finally:
            serving.open_requests -= 1
        if serving.draining or written[0] == 408:
            upload.close_after()
        await upload.answer(*written)
        serving.count("http", str(written[0]), began, size, sum(map(len, written[2])))

    def key_of(self, given: dict[bytes, bytes], asked: RestRequest) -> str | None:
        """The idempotency key, in the scope of its client's credential. Raises RequestRefused."""
        key = key_of(given, asked)
        tokens = self.serving.tokens
        return key if key is None or tokens is None else scoped(tokens.scope(given.items()), key)

    @staticmethod
    def request(
        given: dict[bytes, bytes], asked: RestRequest, deadline_s: float, key: str | None, digest: str | None
    ) -> InferenceRequest:
        """What the port is asked."""
        parent = given.get(b"traceparent")
        trace = (
            None
            if parent is None
            else trace_context(parent.decode("latin-1"), given.get(b"tracestate", b"").decode("latin-1"))
        )
        return InferenceRequest(
            asked.tensors, asked.parameters.payload, asked.form.outputs, deadline_s, key, trace, digest
        )


class _Small:
    """A small request that has arrived whole (`upload.Server`, `serving.Waiting`)."""

    __slots__ = ("_began", "_cancel", "_form", "_over", "_route", "_serving", "_upload")

    def __init__(self, route: InferRoute, upload: Upload) -> None:
        self._route = route
        self._serving = route.serving
        self._upload = upload
        self._began = perf_counter()
        self._form: ReplyForm | None = None
        self._cancel: Callable[[], object] | None = None
        self._over = False

    def begin(self) -> None:
        """Decode it and hand it to the port."""
        serving, upload = self._serving, self._upload
        serving.opened(self)
        if not upload.begin(self):
            self.cancel()
            return
        try:
            given = dict(upload.headers)
            asked = run_through(
                decode_request(upload.whole(), json_length(given), serving.signature, serving.known_heads)
            )
            self._form = asked.form
            key = self._route.key_of(given, asked)
            digest: str | None = None
            if serving.always_digest or key is not None:
                digest = payload_digest(asked.tensors, asked.parameters.payload, asked.form.outputs)
            cancel = serving.port.submit(
                InferRoute.request(given, asked, serving.timeout_s, key, digest), self._done
            )
        except RequestRefused as error:
            written = _error(refused(error))
        except Exception:  # the boundary, as above
            log.exception(_FAILED)
            written = _error(INTERNAL_ERROR)
        else:
            if not self._over:
                self._cancel = cancel
            return
        if not self._over:
            self._finish(written)

    def _done(self, outcome: InferenceOutcome | Exception) -> None:
        """The outcome, while others wait: nothing raised here may reach the port."""
        if self._over:
            return
        form = self._form
        assert form is not None
        try:
            if isinstance(outcome, Exception):
                raise outcome
            reply = answer(outcome)
            if isinstance(reply, Refusal):
                written = _error(reply)
            else:
                steps = encode_reply(self._serving.graph.name, form, choose(reply.tensors, form.outputs))
                if (
                    not form.binary
                    and sum([len(tensor.data) for tensor in reply.tensors]) > limits.json_slice_bytes
                ):
                    self._serving.spawn(self._later(steps))
                    return
                written = _reply(*run_through(steps))
        except RequestRefused as error:
            written = _error(refused(error))
        except Exception:  # the boundary, as above
            log.exception(_FAILED)
            written = _error(INTERNAL_ERROR)
        self._finish(written)

    async def _later(self, steps: Steps[tuple[int | None, list[Buffer]]]) -> None:
        """A large reply to a small request, as JSON."""
        try:
            written = _reply(*await run(steps))
        except RequestRefused as error:
            written = _error(refused(error))
        except Exception:  # the boundary, as above
            log.exception(_FAILED)
            written = _error(INTERNAL_ERROR)
        if not self._over:
            self._finish(written)

    def _finish(self, written: Written) -> None:
        self._over = True
        serving, upload = self._serving, self._upload
        serving.closed(self)
        if serving.draining:
            upload.close_after()
        if upload.blocked:
            serving.spawn(self._when_unblocked(written))
        else:
            size = upload.size
            upload.release()
            upload.write(*written)
            serving.count("http", str(written[0]), self._began, size, sum(map(len, written[2])))

    async def _when_unblocked(self, written: Written) -> None:
        """The client has not yet taken the answer before this one."""
        try:
            await self._upload.answer(*written)
            self._serving.count(
                "http", str(written[0]), self._began, self._upload.size, sum(map(len, written[2]))
            )
        finally:
            self._upload.release()

    def cancel(self) -> None:
        """The client went away, or this frontend does and has waited for the request as long as it may."""
        if self._over:
            return
        self._over = True
        upload = self._upload
        self._serving.closed(self)
        if self._cancel is not None:
            self._cancel()
        self._serving.count("http", "cancelled", perf_counter(), upload.size, 0)
        upload.release()
        if not upload.lost:
            upload.close_after()
            upload.write(*_error(LEFT))

    def expire(self) -> None:
        """The deadline has passed, whatever the port does."""
        if not self._over:
            if self._cancel is not None:
                self._cancel()
            self._done(TimedOut())


def json_length(given: dict[bytes, bytes]) -> str | None:
    """Where the JSON part of a body ends, as its header says. Raises RequestRefused for an encoded body."""
    encoding = given.get(b"content-encoding")
    if encoding is not None and encoding.lower() != b"identity":
        raise RequestRefused(
            f"expected no content encoding, got {encoding[:40].decode('latin-1')!r}", status=415
        )
    return _text(given.get(b"inference-header-content-length"))


def key_of(given: dict[bytes, bytes], asked: RestRequest) -> str | None:
    """The idempotency key, from the header or the parameter. Raises RequestRefused."""
    key = asked.parameters.idempotency_key
    header_key = given.get(b"idempotency-key")
    if header_key is None:
        return key
    if key is not None and key.encode() != header_key:
        raise RequestRefused(
            "header Idempotency-Key and parameter 'idempotency_key' differ: expected one of them"
        )
    return check_key(header_key.decode("latin-1"))


def _reply(length: int | None, content: list[Buffer]) -> Written:
    if length is None:
        return 200, JSON, content
    return 200, BINARY + b"inference-header-content-length: %d\r\n" % length, content


def _error(refusal: Refusal) -> Written:
    headers = JSON
    if refusal.retry_after_s is not None:
        headers += b"retry-after: %d\r\n" % max(1, math.ceil(refusal.retry_after_s))
    return refusal.status, headers, [encode_error(refusal.message)]


def _text(header: bytes | None) -> str | None:
    return None if header is None else header.decode("latin-1")
