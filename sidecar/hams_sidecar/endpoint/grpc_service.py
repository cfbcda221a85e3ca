"""The gRPC side of the endpoint: GRPCInferenceService, the standard health service, and reflection.

Messages are parsed here and not by generated stubs, so that bytes that are no message get INVALID_ARGUMENT.
Codes come from `answers`, the table that HTTP uses too. How many calls there are, and how long they take, is
bounded in `grpc_calls`.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

from hams_protocol.keys import scoped
from hams_sidecar.endpoint import limits
from hams_sidecar.endpoint import open_inference_pb2 as pb
from hams_sidecar.endpoint.answers import Refusal, refused
from hams_sidecar.endpoint.errors import RequestRefused
from hams_sidecar.endpoint.grpc_calls import FULL, Calls, Context, GrpcCall, Handler, abort, left_s
from hams_sidecar.endpoint.grpc_codec import GrpcRequest, decode_request, encode_reply
from hams_sidecar.endpoint.grpc_scan import Scanned, without_raw
from hams_sidecar.endpoint.json_data import run, run_through
from hams_sidecar.endpoint.json_scan import Steps
from hams_sidecar.endpoint.request import MODEL_VERSION, check_model, deadline_of, digest_of, trace_context
from hams_sidecar.endpoint.rest_codec import choose
from hams_sidecar.endpoint.serving import Serving
from hams_sidecar.endpoint.tokens import EXPECTED, Tokens, TokensUnread
from hams_sidecar.inference import InferenceRequest

grpc_pending_calls_max = 4096
"""Calls that grpc has read and that no handler has begun, reset ones among them; from here to twice as many
it cancels more and more of the new ones, whoever sent them. Its default of 1,000 is a moment of one
client."""

grpc_streams_max = 1024
"""Concurrent calls of one gRPC connection; a client's further ones wait at the client."""

grpc_watchers_max = 256
"""Calls that watch health; further ones get RESOURCE_EXHAUSTED."""

grpc_reflections_max = 1000
"""Questions in one call of reflection, which lasts a request's time at most."""

grpc_handshake_s = 20.0
"""A connection has this long to begin to speak HTTP/2."""

grpc_idle_s = 300.0
"""A gRPC connection without a call is asked to go after this long; clients come back by themselves."""

grpc_small_message_bytes_max = 4096
"""A message to any method but ModelInfer."""

grpc_at_once_bytes_max = 16 << 10
"""A message that is read without a pause, and does not wait for the turn of others."""

grpc_overhead_bytes = 64 << 10
"""What a gRPC message may hold beyond `maxRequestBytes` of tensors: names, shapes, parameters."""

grpc_keepalive_s = 30.0
"""A gRPC connection that answers no ping for this long is closed."""

SERVICE = "inference.GRPCInferenceService"
SERVICES = ("", SERVICE)
"""What the health service knows."""

Parsed = TypeVar("Parsed", bound=Message)
T = TypeVar("T")

IDENTITY_ONLY = 1
"""The set of compressions that are taken, as grpc numbers them: none. A message that is small on the wire
would hold the event loop for as long as it takes to inflate."""


class InferenceService:
    """The methods of GRPCInferenceService. Each takes and returns serialised messages."""

    def __init__(self, serving: Serving, platform: str, version: str, extensions: tuple[str, ...]) -> None:
        self._serving = serving
        self._platform = platform
        self._version = version
        self._extensions = extensions

    def handler(self, calls: Calls) -> "grpc.GenericRpcHandler[bytes, bytes]":
        """What to register with a server."""
        methods: dict[str, Callable[[bytes, Context], Awaitable[bytes | Refusal]]] = {
            "ServerLive": _small(self.server_live),
            "ServerReady": _small(self.server_ready),
            "ModelReady": _small(self.model_ready),
            "ServerMetadata": _small(self.server_metadata),
            "ModelMetadata": _small(self.model_metadata),
            "ModelInfer": self.model_infer,
        }
        return grpc.method_handlers_generic_handler(
            SERVICE, {name: calls.unary(method) for name, method in methods.items()}
        )

    def server_live(self, request: bytes) -> Message:
        """Whether the process is in order."""
        return pb.ServerLiveResponse(live=self._serving.port.live())

    def server_ready(self, request: bytes) -> Message:
        """Whether the server takes requests."""
        return pb.ServerReadyResponse(ready=self._serving.ready())

    def model_ready(self, request: bytes) -> Message:
        """Whether the graph takes requests."""
        message = _parse(pb.ModelReadyRequest(), request)
        check_model(self._serving.graph.name, message.name, message.version)
        return pb.ModelReadyResponse(ready=self._serving.ready())

    def server_metadata(self, request: bytes) -> Message:
        """The server."""
        return pb.ServerMetadataResponse(name="hams", version=self._version, extensions=self._extensions)

    def model_metadata(self, request: bytes) -> Message:
        """The graph, seen as a model."""
        message = _parse(pb.ModelMetadataRequest(), request)
        check_model(self._serving.graph.name, message.name, message.version)
        metadata = pb.ModelMetadataResponse(
            name=self._serving.graph.name, versions=[MODEL_VERSION], platform=self._platform
        )
        for tensor in self._serving.signature.inputs.values():
            metadata.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        for tensor in self._serving.signature.outputs.values():
            metadata.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        return metadata

    async def model_infer(self, request: bytes, context: Context) -> bytes | Refusal:
        """One inference."""
        serving = self._serving
        began = perf_counter()
        serving.open_requests += 1
        serving.held_bytes += len(request)
        code = "CANCELLED"
        sent = 0
        answer: bytes | Refusal
        try:
            try:
                answer = await self._infer(request, context)
            except RequestRefused as error:
                answer = refused(error)
            code, sent = (answer.code.name, 0) if isinstance(answer, Refusal) else ("OK", len(answer))
        except asyncio.CancelledError:
            if left_s(context) <= 0:  # its client's deadline, and not a client that went away
                code = "DEADLINE_EXCEEDED"
            raise
        except Exception:
            code = "INTERNAL"
            raise
        finally:
            serving.open_requests -= 1
            serving.held_bytes -= len(request)
            serving.count("grpc", code, began, len(request), sent)
        return answer

    async def _infer(self, request: bytes, context: Context) -> bytes | Refusal:
        serving = self._serving
        if not serving.make_room(0, None):
            return FULL
        decoded = await self.decoded(request)
        if decoded is None:
            return FULL
        own_s = left_s(context)
        default_s = serving.timeout_s
        if own_s == math.inf:
            default_s = serving.default_deadline_s(decoded.parameters.payload)
        deadline_s = min(own_s, deadline_of(None, decoded.parameters, default_s, serving.timeout_s))
        trace = {
            str(key): value
            for key, value in context.invocation_metadata() or ()
            if key in ("traceparent", "tracestate")
        }
        key = decoded.parameters.idempotency_key
        if key is not None and serving.tokens is not None:
            key = scoped(serving.tokens.scope_of_call(context.invocation_metadata() or ()), key)
        payload, outputs = decoded.parameters.payload, decoded.outputs
        wanted = serving.always_digest or key is not None
        outcome = await serving.infer(
            InferenceRequest(
                decoded.tensors,
                payload,
                outputs,
                max(deadline_s, 0.001),
                key,
                trace_context(_text(trace.get("traceparent")), _text(trace.get("tracestate"))),
                await digest_of(decoded.tensors, payload, outputs, wanted),
            )
        )
        if isinstance(outcome, Refusal):
            return outcome
        tensors = choose(outcome.tensors, outputs)
        return await run(encode_reply(serving.graph.name, decoded, tensors))

    async def decoded(self, request: bytes) -> GrpcRequest | None:
        """The request, checked; None: there is no room for what it grows to meanwhile. Raises
        RequestRefused."""
        serving = self._serving
        signature = serving.signature
        through = _at_once if len(request) <= grpc_at_once_bytes_max else run
        scanned = await through(without_raw(request, len(signature.inputs), len(signature.outputs)))
        most = serving.held_bytes_max - len(request)  # one alone is never too large
        parsed_bytes = max(min(scanned.parsed_bytes, most), 0)
        if not serving.make_room(parsed_bytes, None):
            return None
        serving.held_bytes += parsed_bytes
        try:
            return await through(self._read(scanned))
        finally:
            serving.held_bytes -= parsed_bytes

    def _read(self, scanned: Scanned) -> Steps[GrpcRequest]:
        message = _parse(pb.ModelInferRequest(), scanned.rest)
        yield
        check_model(self._serving.graph.name, message.model_name, message.model_version)
        raw = scanned.raw or message.raw_input_contents
        return (yield from decode_request(message, raw, self._serving.signature))


async def _at_once(steps: Steps[T]) -> T:
    return run_through(steps)


class HealthService:
    """The standard health service: checks look at the port, watchers are told by `tell`."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._watchers: set[asyncio.Event] = set()
        self._last_ready: bool | None = None
        self._over = False

    def handler(self, calls: Calls) -> "grpc.GenericRpcHandler[bytes, bytes]":
        """What to register with a server."""
        methods = {"Check": calls.unary(_small(self.check)), "Watch": calls.stream(self.watch)}
        if hasattr(health_pb2, "HealthListResponse"):  # in grpcio-health-checking since 1.83
            methods["List"] = calls.unary(_small(self.list))
        return grpc.method_handlers_generic_handler(health.SERVICE_NAME, methods)

    def check(self, request: bytes) -> Message:
        """The state now."""
        message = _parse(health_pb2.HealthCheckRequest(), request)
        if message.service not in SERVICES:
            raise RequestRefused(f"no service {message.service[:80]!r} here", status=404)
        reply: Message = self._state(message.service)
        return reply

    def list(self, request: bytes) -> Message:
        """The state of each service."""
        states = {service: self._state(service) for service in SERVICES}
        reply: Message = health_pb2.HealthListResponse(statuses=states)
        return reply

    async def watch(self, call: GrpcCall) -> Refusal | None:
        """The state now and whenever it changes, until the client goes, or this endpoint."""
        if len(self._watchers) >= grpc_watchers_max:
            return FULL
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            request = await call.message(self._serving.timeout_s)
            if request is None or isinstance(request, Refusal):
                return request or Refusal(400, "expected a message, got none")
            try:
                service = _parse(health_pb2.HealthCheckRequest(), _bounded(request)).service
            except RequestRefused as error:
                return refused(error)
            last: bytes | None = None
            while True:
                changed.clear()
                over = self._over  # Read before the state, which may change while it is being sent.
                state = self._state(service).SerializeToString()
                if state != last and (unread := await call.send(state)) is not None:
                    return unread
                if over:
                    return None
                last = state
                await changed.wait()
        finally:
            self._watchers.discard(changed)

    def tell(self) -> None:
        """Let watchers know if readiness has changed."""
        ready = self._serving.ready()
        if ready != self._last_ready:
            self._last_ready = ready
            for watcher in self._watchers:
                watcher.set()

    def leave(self) -> None:
        """Let watchers go, once they know the last state: a server that stops waits for all calls."""
        self._over = True
        for watcher in self._watchers:
            watcher.set()

    def _state(self, service: str) -> health_pb2.HealthCheckResponse:
        kinds = health_pb2.HealthCheckResponse
        if service not in SERVICES:
            return kinds(status=kinds.SERVICE_UNKNOWN)
        return kinds(status=kinds.SERVING if self._serving.ready() else kinds.NOT_SERVING)


class Reflection:
    """What services there are, and their messages."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        self._servicer = ReflectionServicer(service_names=names, pool=_pool())

    def handler(self, calls: Calls) -> "grpc.GenericRpcHandler[bytes, bytes]":
        """What to register with a server."""
        return grpc.method_handlers_generic_handler(
            reflection.SERVICE_NAME, {"ServerReflectionInfo": calls.stream(self.answer)}
        )

    async def answer(self, call: GrpcCall) -> Refusal | None:
        """Answer questions, until there are none, or too many, or the call has taken too long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._serving.timeout_s
        for _ in range(grpc_reflections_max):
            request = await call.message(until - loop.time())
            if request is None or isinstance(request, Refusal):
                return request
            try:
                question = _parse(reflection_pb2.ServerReflectionRequest(), _bounded(request))
            except RequestRefused as error:
                return refused(error)
            async for reply in self._servicer.ServerReflectionInfo(_one(question), None):
                if (unread := await call.send(reply.SerializeToString())) is not None:
                    return unread
        return Refusal(429, f"expected at most {grpc_reflections_max} questions in one call")


async def _one(question: Message) -> AsyncIterator[Message]:
    yield question


if TYPE_CHECKING:
    Interceptor = grpc.aio.ServerInterceptor[bytes, bytes]
else:
    Interceptor = grpc.aio.ServerInterceptor


class Admission(Interceptor):
    """Calls without a token of the graph end before their message is looked at."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """The method's own handler, or one that refuses."""
        try:
            admitted = self._tokens.admit_call(
                handler_call_details.method, handler_call_details.invocation_metadata or ()
            )
        except TokensUnread as error:
            return _refusing(Refusal(503, str(error), limits.retry_after_s))
        return await continuation(handler_call_details) if admitted else _refusing(Refusal(401, EXPECTED))


def _refusing(refusal: Refusal) -> Handler:
    """A handler of streams, as these serve calls of every kind."""

    async def refuse(requests: AsyncIterator[bytes], context: Context) -> None:
        await abort(context, refusal)

    return grpc.stream_stream_rpc_method_handler(refuse)


def make_server(
    serving: Serving, service: InferenceService, health_service: HealthService
) -> grpc.aio.Server:
    """A gRPC server with all services, not yet bound to a port."""
    server = grpc.aio.server(
        interceptors=() if serving.tokens is None else (Admission(serving.tokens),),
        options=(
            ("grpc.so_reuseport", 1),
            ("grpc.compression_enabled_algorithms_bitset", IDENTITY_ONLY),
            ("grpc.max_receive_message_length", serving.request_bytes_max + grpc_overhead_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_concurrent_streams", grpc_streams_max),
            ("grpc.server.max_pending_requests", grpc_pending_calls_max),
            ("grpc.server.max_pending_requests_hard_limit", 2 * grpc_pending_calls_max),
            ("grpc.max_allowed_incoming_connections", serving.connections.grpc),
            ("grpc.server_handshake_timeout_ms", int(grpc_handshake_s * 1000)),
            ("grpc.max_connection_idle_ms", int(grpc_idle_s * 1000)),
            ("grpc.keepalive_time_ms", int(grpc_keepalive_s * 1000)),
            ("grpc.keepalive_timeout_ms", int(grpc_keepalive_s * 1000)),
            ("grpc.http2.min_ping_interval_without_data_ms", 5000),
        ),
    )
    # All that is left to grpc are clients that have gone, with a stack trace for each; what breaks here is
    # logged by `grpc_calls`.
    logging.getLogger("grpc._cython.cygrpc").setLevel(logging.CRITICAL)
    calls = Calls(serving)
    handlers = (service.handler(calls), health_service.handler(calls), Reflection(serving).handler(calls))
    server.add_generic_rpc_handlers(handlers)
    return server


def _pool() -> DescriptorPool:
    """The descriptors of all services in one pool: ours live apart from the process-wide one (see
    `generate_open_inference.sh`)."""
    pool = DescriptorPool()
    for file in (pb.DESCRIPTOR, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        # types-protobuf lacks it.
        pool.AddSerializedFile(file.serialized_pb)  # type: ignore[no-untyped-call]
    return pool


def _small(method: Callable[[bytes], Message]) -> Callable[[bytes, Context], Awaitable[bytes | Refusal]]:
    """A method of small messages that is answered at once."""

    async def serve(request: bytes, context: Context) -> bytes | Refusal:
        try:
            return method(_bounded(request)).SerializeToString()
        except RequestRefused as error:
            return refused(error)

    return serve


def _bounded(request: bytes) -> bytes:
    if len(request) > grpc_small_message_bytes_max:
        raise RequestRefused(
            f"expected a message of at most {grpc_small_message_bytes_max} bytes, got {len(request)}"
        )
    return request


def _parse(message: Parsed, data: bytes) -> Parsed:
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise RequestRefused(
            f"expected a message {message.DESCRIPTOR.full_name}, got bytes that are none"
        ) from None
    return message


def _text(value: str | bytes | None) -> str | None:
    return value if isinstance(value, str) else None
