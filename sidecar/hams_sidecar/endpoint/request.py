"""What both transports check of a request besides its tensors: parameters, id, idempotency key, trace
context, model and version.

Invariant: `split` is the only place where transport parameters leave the payload, so that the same request
has the same digest over JSON, binary and gRPC.
"""

import asyncio
import math
import re
from collections.abc import Mapping

from hams_protocol.frozen import frozen
from hams_sidecar.endpoint.errors import RequestRefused, shown
from hams_sidecar.inference import Parameter, Tensor, TraceContext, payload_digest

parameters_max = 64
"""Parameters of one request: they travel with every token."""

parameter_bytes = 32
"""What a parameter counts beside its name and value: many small ones take longer to read than one."""

id_bytes_max = 1024
"""The client's request id: echoed, never stored."""

idempotency_key_bytes_max = 256
"""An idempotency key: stored in the shard's log as long as its reply."""

trace_bytes_max = 512
"""A traceparent or tracestate header; a longer one is left out, as the W3C recommends for tracestate."""

deadline_min_ms = 1
"""The shortest deadline that a client may name."""

MODEL_VERSION = "1"
"""The only version a graph has."""

DEADLINE_PARAMETER = "hams_deadline_ms"
"""The request parameter that says how long the client waits, in milliseconds."""

DEADLINE_HEADER = "HAMS-Deadline-Ms"
"""The HTTP header that says the same."""

_MILLISECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")

digest_in_loop_bytes_max = 256 << 10
"""Payloads up to this size are hashed on the event loop; larger ones on a thread."""


@frozen
class Parameters:
    """Parameters of a request, sorted out: `payload` goes to the models."""

    payload: dict[str, Parameter]
    idempotency_key: str | None = None
    binary_data_output: bool = False
    deadline_ms: float | None = None


NO_PARAMETERS = Parameters({})


def split(given: Mapping[str, object], nbytes_max: int) -> Parameters:
    """Check the parameters of a request, and take out those of the transport. `nbytes_max`: names and values
    of the rest. Raises RequestRefused."""
    if len(given) > parameters_max:
        raise RequestRefused(f"expected at most {parameters_max} parameters, got {len(given)}")
    payload: dict[str, Parameter] = {}
    key: str | None = None
    deadline_ms: float | None = None
    binary = False
    size = 0
    for name, value in given.items():
        if name == "binary_data_output":
            if not isinstance(value, bool):
                raise RequestRefused(
                    f"parameter 'binary_data_output': expected true or false, got {_kind(value)}"
                )
            binary = value
        elif name == "idempotency_key":
            if not isinstance(value, str):
                raise RequestRefused(f"parameter 'idempotency_key': expected a string, got {_kind(value)}")
            key = check_key(value)
        elif name == DEADLINE_PARAMETER:
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise RequestRefused(
                    f"parameter {name!r}: expected a number of milliseconds, got {_kind(value)}"
                )
            deadline_ms = float(value) if isinstance(value, float) or value.bit_length() < 64 else math.inf
        elif isinstance(value, (bool, int, float, str)):
            if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
                raise RequestRefused(
                    f"parameter {name[:80]!r}: expected an integer of 64 bits, got {shown(value)}"
                )
            if isinstance(value, float) and not math.isfinite(value):
                raise RequestRefused(f"parameter {name[:80]!r}: expected a finite number, got {value}")
            payload[name] = value
            size += parameter_bytes + len(name.encode())
            size += len(value.encode()) if isinstance(value, str) else 8
        else:
            raise RequestRefused(
                f"parameter {name[:80]!r}: expected a boolean, number or string, got {_kind(value)}"
            )
    if size > nbytes_max:
        raise RequestRefused(
            f"expected parameters of at most {nbytes_max} bytes together (each counts {parameter_bytes} more "
            f"than its name and value), got {size}"
        )
    return Parameters(payload, key, binary, deadline_ms)


def check_key(key: str) -> str:
    """An idempotency key: 1 to 256 printable ASCII characters. Raises RequestRefused."""
    if not key or len(key) > idempotency_key_bytes_max or not key.isascii() or not key.isprintable():
        raise RequestRefused(
            f"idempotency key: expected 1 to {idempotency_key_bytes_max} printable ASCII characters, got "
            f"{key[:40]!r} ({len(key)})"
        )
    return key


def deadline_of(header: str | None, parameters: Parameters, default_s: float, most_s: float) -> float:
    """Seconds that the client waits, from the arrival of its request: as its header says, or its parameter;
    `default_s` if it says nothing. Raises RequestRefused."""
    given_ms, name = parameters.deadline_ms, f"parameter {DEADLINE_PARAMETER!r}"
    if header is not None:
        if given_ms is not None:
            raise RequestRefused(
                f"expected the header {DEADLINE_HEADER} or the parameter {DEADLINE_PARAMETER!r}, got both"
            )
        name = f"header {DEADLINE_HEADER}"
        text = header.strip()
        given_ms = float(text) if _MILLISECONDS.fullmatch(text) else math.nan
    if given_ms is None:
        return default_s
    if not deadline_min_ms <= given_ms <= most_s * 1000:
        got = given_ms if header is None else header
        raise RequestRefused(
            f"{name}: expected {deadline_min_ms} to {most_s * 1000:g} milliseconds (the graph's "
            f"requestTimeout), got {shown(got)}"
        )
    return given_ms / 1000


def check_id(request_id: str) -> str:
    """The client's request id. Raises RequestRefused."""
    if len(request_id.encode()) > id_bytes_max:
        raise RequestRefused(f"id: expected at most {id_bytes_max} bytes, got {len(request_id.encode())}")
    return request_id


def check_model(graph: str, name: str, version: str) -> None:
    """The model is the graph, its version "1" (or not said). Raises RequestRefused with status 404."""
    if name != graph:
        raise RequestRefused(f"no model {name[:80]!r} here: this endpoint serves {graph!r}", status=404)
    if version not in ("", MODEL_VERSION):
        raise RequestRefused(
            f"model {graph!r} has no version {version[:80]!r}: its only version is {MODEL_VERSION!r}",
            status=404,
        )


def trace_context(traceparent: str | None, tracestate: str | None) -> TraceContext | None:
    """The W3C trace context of a request, or None. It is not worth refusing a request for: what does not fit
    is left out."""
    if (
        not traceparent
        or len(traceparent) > trace_bytes_max
        or not traceparent.isascii()
        or not traceparent.isprintable()
    ):
        return None
    if (
        not tracestate
        or len(tracestate) > trace_bytes_max
        or not tracestate.isascii()
        or not tracestate.isprintable()
    ):
        return TraceContext(traceparent)
    return TraceContext(traceparent, tracestate)


async def digest_of(
    tensors: tuple[Tensor, ...],
    parameters: Mapping[str, Parameter],
    outputs: tuple[str, ...] | None,
    wanted: bool,
) -> str | None:
    """`payload_digest`, on a thread if there is much to hash; None if it is not wanted, as hashing is not
    free."""
    if not wanted:
        return None
    if sum(len(tensor.data) for tensor in tensors) <= digest_in_loop_bytes_max:
        return payload_digest(tensors, parameters, outputs)
    return await asyncio.to_thread(payload_digest, tensors, parameters, outputs)


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, (list, tuple)):
        return "an array"
    return f"{value!r:.40}"
