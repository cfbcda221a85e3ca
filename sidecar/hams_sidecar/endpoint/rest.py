"""`POST .../infer`: the hot path of HTTP, without ASGI.

No routing, no request object, no model validation: the body as collected by the connection, decoded straight
into tensors that are views into it, one call of the port, and the buffers of the reply.

What is done for a request is one coroutine. A small request that has arrived whole needs no task: it is
decoded and handed to the port in the turn of the loop in which it came, and its answer is written in the turn
in which the outcome comes. The coroutine goes on in a task once it has to wait for anything else: for the
rest of a body, for slices of much JSON, or for a client that does not read.

Invariant: exactly one answer per request, unless the client went away.
"""

import asyncio
import logging
import math
import types
from collections.abc import Generator
from contextlib import suppress
from time import perf_counter
from typing import TypeVar

import numpy as np

from hams_protocol.keys import scoped
from hams_sidecar.endpoint import limits
from hams_sidecar.endpoint.answers import INTERNAL_ERROR, LEFT, Refusal, refused
from hams_sidecar.endpoint.errors import RequestRefused
from hams_sidecar.endpoint.json_data import run, run_through
from hams_sidecar.endpoint.json_scan import Steps
from hams_sidecar.endpoint.request import check_key, deadline_of, digest_of, trace_context
from hams_sidecar.endpoint.rest_codec import (
    RestRequest,
    choose,
    decode_request,
    encode_error,
    encode_reply,
)
from hams_sidecar.endpoint.serving import Serving
from hams_sidecar.endpoint.tokens import Tokens
from hams_sidecar.endpoint.upload import Upload
from hams_sidecar.inference import Buffer, InferenceOutcome, InferenceRequest, Reply, TimedOut

log = logging.getLogger(__name__)

T = TypeVar("T")

JSON = b"content-type: application/json\r\n"
BINARY = b"content-type: application/octet-stream\r\n"

Written = tuple[int, bytes, list[Buffer]]
"""Status, headers and body of an answer."""

_deadline_min_s = 0.001
_digits_max = 12


class InferRoute:
    """The infer route of one graph (`connection.InferHandler`)."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving

    def serve(self, upload: Upload) -> None:
        """Begin to serve a request."""
        _Exchange(self.serving, upload).advance()

    def room(self, nbytes: int, headers: list[tuple[bytes, bytes]]) -> memoryview:
        """Where a large body goes: binary tensors to where the graph wants them, everything else anywhere."""
        for name, value in headers:
            if name == b"inference-header-content-length" and value.isdigit() and len(value) < _digits_max:
                memory = self.serving.port.room(nbytes, int(value))
                if memory is not None:
                    return memory
        return np.empty(nbytes, np.uint8).data


@types.coroutine
def _suspended() -> Generator[None, None, None]:
    """Leave the coroutine, until `_Exchange` or its task resumes it."""
    yield


class _Exchange:
    """One request and its answer (`upload.Server`, `serving.RequestDeadline`).

    `_work` is the coroutine. Until it has a task, nothing but `_suspended` may suspend it.
    """

    __slots__ = ("_began", "_outcome", "_serving", "_task", "_upload", "_waits", "_work")

    def __init__(self, serving: Serving, upload: Upload) -> None:
        self._serving = serving
        self._upload = upload
        self._began = perf_counter()
        self._work = self._serve()
        self._task: asyncio.Task[None] | None = None
        self._waits = False
        """Without a task, for its outcome."""
        self._outcome: InferenceOutcome | Exception | None = None

    # ---- how it runs

    def advance(self) -> None:
        """Serve until it has to wait."""
        with suppress(StopIteration):
            self._work.send(None)

    def _interrupt(self, error: BaseException) -> None:
        """Raise `error` in a request that waits for its outcome without a task; others are left alone."""
        if self._waits:
            self._waits = False
            with suppress(StopIteration):
                self._work.throw(error)

    def cancel(self) -> None:
        """The client went away, or this frontend does and has waited for the request as long as it may."""
        if self._task is None:
            self._interrupt(asyncio.CancelledError())
        else:
            self._task.cancel()

    def expire(self) -> None:
        """The deadline has passed, whatever the port does."""
        self._interrupt(TimeoutError())

    def _done(self, outcome: InferenceOutcome | Exception) -> None:
        """The outcome, while others wait: nothing raised here may reach the port."""
        self._outcome = outcome
        if self._waits:
            self._waits = False
            self.advance()

    async def _own_task(self) -> None:
        """From here on it may wait for anything."""
        if self._task is None:
            self._task = self._serving.spawn(self._work)
            await _suspended()

    # ---- what it does

    async def _serve(self) -> None:
        serving, upload = self._serving, self._upload
        serving.open_requests += 1
        try:
            try:
                if not upload.begin(self):
                    raise asyncio.CancelledError
                written = await self._answer()
            finally:
                serving.open_requests -= 1
            if serving.draining or written[0] == 408:
                upload.close_after()
            if upload.blocked:
                await self._own_task()
                await upload.unblocked(written[2])
        except asyncio.CancelledError:
            serving.count("http", "cancelled", perf_counter(), upload.size, 0)
            upload.release()
            if not upload.lost:
                upload.close_after()
                upload.write(*_error(LEFT))
            return
        received = upload.size if upload.complete else 0
        upload.release()
        upload.write(*written)
        serving.count("http", str(written[0]), self._began, received, sum(map(len, written[2])))

    async def _answer(self) -> Written:
        serving, upload = self._serving, self._upload
        try:
            if not upload.complete or upload.size > limits.json_slice_bytes:
                await self._own_task()
            body = await upload.arrived(serving.timeout_s)
            given = dict(upload.headers)
            asked = await self._through(
                decode_request(body, json_length(given), serving.signature, serving.known_heads)
            )
            key = key_of(given, asked, serving.tokens)
            tensors, parameters, outputs = asked.tensors, asked.parameters.payload, asked.form.outputs
            wanted = serving.always_digest or key is not None
            # Without a task there is too little to hash for a thread.
            digest = await digest_of(tensors, parameters, outputs, wanted)
            trace = trace_context(_text(given.get(b"traceparent")), _text(given.get(b"tracestate")))
            deadline_s = deadline_of(
                _text(given.get(b"hams-deadline-ms")),
                asked.parameters,
                serving.default_deadline_s(parameters),
                serving.timeout_s,
            )
            left_s = max(deadline_s - (perf_counter() - self._began), _deadline_min_s)
            outcome = await self._infer(
                InferenceRequest(tensors, parameters, outputs, left_s, key, trace, digest)
            )
            if isinstance(outcome, Refusal):
                return _error(outcome)
            if (
                sum([len(item.data) for item in outcome.tensors if not asked.form.is_binary(item.name)])
                > limits.json_slice_bytes
            ):
                await self._own_task()
            chosen = choose(outcome.tensors, outputs)
            return _reply(*await self._through(encode_reply(serving.graph.name, asked.form, chosen)))
        except RequestRefused as error:
            return _error(refused(error))
        # the boundary: whatever breaks inside is one 500 for one request, its trace in the log and not in the
        # answer
        except Exception:
            log.exception("an inference request over HTTP failed")
            return _error(INTERNAL_ERROR)

    async def _through(self, steps: Steps[T]) -> T:
        """The work done: in one go if there is little of it, which is so without a task."""
        return run_through(steps) if self._task is None else await run(steps)

    async def _infer(self, request: InferenceRequest) -> Reply | Refusal:
        """As `Serving.infer`, and without a task too."""
        serving = self._serving
        if self._task is not None:
            return await serving.infer(request)
        cancel = serving.port.submit(request, self._done)
        if self._outcome is None:
            serving.watch(self)
            self._waits = True
            try:
                await _suspended()
            except TimeoutError:
                cancel()
                self._outcome = TimedOut()
            except asyncio.CancelledError:
                cancel()
                raise
            finally:
                serving.unwatch(self)
        assert self._outcome is not None
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return serving.settle(self._outcome)


def json_length(given: dict[bytes, bytes]) -> str | None:
    """Where the JSON part of a body ends, as its header says. Raises RequestRefused for an encoded body."""
    encoding = given.get(b"content-encoding")
    if encoding is not None and encoding.lower() != b"identity":
        raise RequestRefused(
            f"expected no content encoding, got {encoding[:40].decode('latin-1')!r}", status=415
        )
    return _text(given.get(b"inference-header-content-length"))


def key_of(given: dict[bytes, bytes], asked: RestRequest, tokens: Tokens | None) -> str | None:
    """The idempotency key, from the header or the parameter, in the scope of its client's credential. Raises
    RequestRefused."""
    key = asked.parameters.idempotency_key
    header_key = given.get(b"idempotency-key")
    if header_key is not None:
        if key is not None and key.encode() != header_key:
            raise RequestRefused(
                "header Idempotency-Key and parameter 'idempotency_key' differ: expected one of them"
            )
        key = check_key(header_key.decode("latin-1"))
    return key if key is None or tokens is None else scoped(tokens.scope(given.items()), key)


def _reply(length: int | None, content: list[Buffer]) -> Written:
    if length is None:
        return 200, JSON, content
    return 200, BINARY + b"inference-header-content-length: %d\r\n" % length, content


def _error(refusal: Refusal) -> Written:
    headers = JSON
    if refusal.retry_after_s is not None:
        headers += b"retry-after: %d\r\n" % max(1, math.ceil(refusal.retry_after_s))
    if refusal.unpromised:
        headers += b"hams-begun: false\r\n"
    return refusal.status, headers, [encode_error(refusal.message, refusal.details)]


def _text(header: bytes | None) -> str | None:
    return None if header is None else header.decode("latin-1")
