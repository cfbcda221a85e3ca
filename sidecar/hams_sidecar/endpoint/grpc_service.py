"""The gRPC side of the endpoint: GRPCInferenceService, the standard health service, and reflection.

Messages are parsed here and not by generated stubs, so that bytes that are no message get INVALID_ARGUMENT. Codes come from `answers`, the table
that HTTP uses too.

Invariant: no exception reaches grpc, which would show its text to the client.
"""

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection, reflection_pb2

from hams_sidecar.endpoint import limits
from hams_sidecar.endpoint import open_inference_pb2 as pb
from hams_sidecar.endpoint.answers import GRPC_CODES, INTERNAL_ERROR, Refusal, refused
from hams_sidecar.endpoint.errors import RequestRefused
from hams_sidecar.endpoint.grpc_codec import decode_request, encode_reply
from hams_sidecar.endpoint.json_data import run
from hams_sidecar.endpoint.request import MODEL_VERSION, build, check_model, trace_context
from hams_sidecar.endpoint.rest_codec import choose
from hams_sidecar.endpoint.serving import Serving
from hams_sidecar.endpoint.tokens import EXPECTED, Tokens

log = logging.getLogger(__name__)

SERVICE = "inference.GRPCInferenceService"

Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
Parsed = TypeVar("Parsed", pb.ModelReadyRequest, pb.ModelMetadataRequest)


class InferenceService:
    """The methods of GRPCInferenceService. Each takes and returns serialised messages."""

    def __init__(self, serving: Serving, platform: str, version: str, extensions: tuple[str, ...]) -> None:
        self._serving = serving
        self._platform = platform
        self._version = version
        self._extensions = extensions

    def handler(self) -> "grpc.GenericRpcHandler[bytes, bytes]":
        """What to register with a server."""
        methods: dict[str, Callable[[bytes, Context], Awaitable[bytes]]] = {
            "ServerLive": self.server_live,
            "ServerReady": self.server_ready,
            "ModelReady": self.model_ready,
            "ServerMetadata": self.server_metadata,
            "ModelMetadata": self.model_metadata,
            "ModelInfer": self.model_infer,
        }
        return grpc.method_handlers_generic_handler(SERVICE, {name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()})

    async def server_live(self, request: bytes, context: Context) -> bytes:
        """Whether the process is in order."""
        return pb.ServerLiveResponse(live=self._serving.port.live()).SerializeToString()

    async def server_ready(self, request: bytes, context: Context) -> bytes:
        """Whether the server takes requests."""
        return pb.ServerReadyResponse(ready=self._serving.ready()).SerializeToString()

    async def model_ready(self, request: bytes, context: Context) -> bytes:
        """Whether the graph takes requests."""
        message = await _parse(pb.ModelReadyRequest(), request, context)
        await self._check_model(message.name, message.version, context)
        return pb.ModelReadyResponse(ready=self._serving.ready()).SerializeToString()

    async def server_metadata(self, request: bytes, context: Context) -> bytes:
        """The server."""
        return pb.ServerMetadataResponse(name="hams", version=self._version, extensions=self._extensions).SerializeToString()

    async def model_metadata(self, request: bytes, context: Context) -> bytes:
        """The graph, seen as a model."""
        message = await _parse(pb.ModelMetadataRequest(), request, context)
        await self._check_model(message.name, message.version, context)
        found = pb.ModelMetadataResponse(name=self._serving.graph.name, versions=[MODEL_VERSION], platform=self._platform)
        for tensor in self._serving.signature.inputs.values():
            found.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        for tensor in self._serving.signature.outputs.values():
            found.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        return found.SerializeToString()

    async def model_infer(self, request: bytes, context: Context) -> bytes:
        """One inference."""
        serving = self._serving
        began = perf_counter()
        serving.open_requests += 1
        serving.held_bytes += len(request)
        code = "CANCELLED"
        sent = 0
        try:
            try:
                answer = await self._infer(request, context)
            except RequestRefused as error:
                answer = refused(error)
            except Exception:  # the boundary: whatever breaks inside is one INTERNAL for one request, its trace in the log and not in the answer
                log.exception("an inference request over gRPC failed")
                answer = INTERNAL_ERROR
            code, sent = (answer.code.name, 0) if isinstance(answer, Refusal) else ("OK", len(answer))
        finally:
            serving.open_requests -= 1
            serving.held_bytes -= len(request)
            serving.count("grpc", code, began, len(request), sent)
        if isinstance(answer, bytes):
            return answer
        await _abort(context, answer)
        raise AssertionError("abort returned")

    async def _infer(self, request: bytes, context: Context) -> bytes | Refusal:
        serving = self._serving
        if serving.held_bytes > serving.held_bytes_max:
            raise RequestRefused("no room for another request at present; nothing was begun", status=429, retry_after_s=limits.retry_after_s)
        try:
            message = pb.ModelInferRequest.FromString(request)
        except DecodeError:
            raise RequestRefused("expected an inference.ModelInferRequest, got bytes that are none") from None
        check_model(serving.graph.name, message.model_name, message.model_version)
        decoded = await run(decode_request(message, serving.signature))
        deadline_s = min(_left_s(context), serving.timeout_s)
        trace = {str(key): value for key, value in context.invocation_metadata() or () if key in ("traceparent", "tracestate")}
        outcome = await serving.infer(
            await build(
                decoded.tensors,
                decoded.parameters,
                decoded.outputs,
                max(deadline_s, 0.001),
                decoded.parameters.idempotency_key,
                trace_context(_text(trace.get("traceparent")), _text(trace.get("tracestate"))),
                always_digest=serving.always_digest,
            )
        )
        if isinstance(outcome, Refusal):
            return outcome
        tensors = choose(outcome.tensors, decoded.outputs)
        return await run(encode_reply(serving.graph.name, decoded, tensors))

    async def _check_model(self, name: str, version: str, context: Context) -> None:
        try:
            check_model(self._serving.graph.name, name, version)
        except RequestRefused as error:
            await _abort(context, refused(error))


class Health:
    """The standard health service: checks look at the port, watchers are told by `tell`."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._watched = HealthServicer()
        self.Watch = self._watched.Watch
        self._told: bool | None = None

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        """The state now."""
        if request.service not in ("", SERVICE):
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service[:80]!r} here")
        return health_pb2.HealthCheckResponse(status=_status(self._serving.ready()))

    async def tell(self) -> None:
        """Let watchers know if readiness has changed."""
        ready = self._serving.ready()
        if ready != self._told:
            self._told = ready
            for service in ("", SERVICE):
                await self._watched.set(service, _status(ready))


if TYPE_CHECKING:
    Interceptor = grpc.aio.ServerInterceptor[bytes, bytes]
else:
    Interceptor = grpc.aio.ServerInterceptor


class Admission(Interceptor):
    """Calls without a token of the graph end before their message is looked at."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]], handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        """The method's own handler, or one that refuses."""
        if self._tokens.admit_call(handler_call_details.method, handler_call_details.invocation_metadata or ()):
            return await continuation(handler_call_details)
        return grpc.stream_stream_rpc_method_handler(_refuse)


async def _refuse(requests: AsyncIterator[bytes], context: Context) -> None:
    """A handler of streams, as these serve calls of every kind."""
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, EXPECTED)


def make_server(serving: Serving, service: InferenceService, health_service: Health) -> grpc.aio.Server:
    """A gRPC server with all services, not yet bound to a port."""
    server = grpc.aio.server(
        interceptors=() if serving.tokens is None else (Admission(serving.tokens),),
        maximum_concurrent_rpcs=limits.grpc_calls_max,
        options=(
            ("grpc.so_reuseport", 1),
            ("grpc.max_receive_message_length", serving.request_bytes_max + limits.grpc_overhead_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.keepalive_time_ms", int(limits.grpc_keepalive_s * 1000)),
            ("grpc.keepalive_timeout_ms", int(limits.grpc_keepalive_s * 1000)),
            ("grpc.http2.min_ping_interval_without_data_ms", 5000),
        ),
    )
    server.add_generic_rpc_handlers((service.handler(),))
    health_pb2_grpc.add_HealthServicer_to_server(health_service, server)
    names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server, pool=_pool())
    return server


def _pool() -> DescriptorPool:
    """The descriptors of all services in one pool: ours live apart from the process-wide one (see `generate_open_inference.sh`)."""
    pool = DescriptorPool()
    for file in (pb.DESCRIPTOR, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        pool.AddSerializedFile(file.serialized_pb)  # type: ignore[no-untyped-call]  # missing in types-protobuf
    return pool


def _status(ready: bool) -> "health_pb2.HealthCheckResponse.ServingStatus":
    return health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING


async def _parse(message: Parsed, data: bytes, context: Context) -> Parsed:
    try:
        message.ParseFromString(data)
    except DecodeError:
        await context.abort(GRPC_CODES[400], f"expected an {message.DESCRIPTOR.full_name}, got bytes that are none")
    return message


async def _abort(context: Context, error: Refusal) -> None:
    trailing: tuple[tuple[str, str], ...] = ()
    if error.retry_after_s is not None:
        trailing = (("retry-after", f"{error.retry_after_s:g}"), ("grpc-retry-pushback-ms", str(int(error.retry_after_s * 1000))))
    await context.abort(error.code, error.message, trailing)


def _left_s(context: Context) -> float:
    """Seconds until the client's deadline; infinite if it gave none."""
    left_s: float | None = context.time_remaining()  # None without a deadline, whatever the stubs say
    return math.inf if left_s is None else left_s


def _text(value: str | bytes | None) -> str | None:
    return value if isinstance(value, str) else None
