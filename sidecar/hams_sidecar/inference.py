"""The port between the inference endpoint and the graph behind it: one request in, one outcome out.

The endpoint (`hams_sidecar.endpoint`) speaks HTTP and gRPC and knows no protocol; the frontend speaks the
protocol and knows neither HTTP nor gRPC. They meet in these types. Every outcome the contract names (api.md,
section 3) is a type of its own, so none can be forgotten or guessed from a status code.

Invariant: what stands in an `InferenceRequest` has been checked against the graph's inputs: names, datatypes,
shapes, sizes, one number of rows.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

from hams_history.lines import tensor_digest
from hams_protocol.frozen import frozen

Parameter: TypeAlias = bool | int | float | str
"""Value of a request parameter. Integers fit into 64 bits, signed or unsigned."""

Buffer: TypeAlias = bytes | memoryview
"""Contiguous bytes. A memoryview is one-dimensional, of format "B", and keeps its memory alive and unchanged
as long as anything refers to it."""


@frozen
class Tensor:
    """One named tensor. `datatype` is the KServe name, `shape` begins with the rows; `data` is little-endian,
    row-major, without padding.

    BYTES elements stand behind their 4-byte little-endian lengths, as in the binary tensor extension.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Buffer


@frozen
class TraceContext:
    """W3C trace context, handed on unread (https://www.w3.org/TR/trace-context/). Printable ASCII."""

    traceparent: str
    tracestate: str = ""


@frozen
class InferenceRequest:
    """One client request, checked. The payload, which an idempotency key stands for, is `tensors`,
    `parameters` and `outputs`.

    `tensors` come in the order of the graph's inputs, absent optional ones left out. `outputs`: names the
    client asked for, None for all; they exist. `deadline_s`: seconds left, above 0. `digest`: see
    `payload_digest`; None if nobody asked for it.
    """

    tensors: tuple[Tensor, ...]
    parameters: Mapping[str, Parameter]
    outputs: tuple[str, ...] | None
    deadline_s: float
    idempotency_key: str | None = None
    trace: TraceContext | None = None
    digest: str | None = None

    @property
    def rows(self) -> int:
        """Leading dimension of every tensor, at least 1."""
        return self.tensors[0].shape[0]


@frozen
class Reply:
    """The graph's reply. Tensors the client did not ask for may be among them; skipped ones are left out."""

    tensors: tuple[Tensor, ...]


@frozen
class ModelFailure:
    """A model failed on this request. A reply like any other: kept under the key (500)."""

    operator: str
    message: str


@frozen
class JoinRefused:
    """Every input of a First join was refused by its operator. A reply like any other (422)."""

    operator: str
    message: str = "refused every input"


@frozen
class Shed:
    """An operator did not run this request, for its time was up. A reply like any other: kept under the key
    (504)."""

    operator: str
    message: str


@frozen
class Unpromised:
    """The request was refused at once, for it could not have been answered in time; nothing was begun
    (504)."""

    message: str
    retry_after_s: float


@frozen
class Conflict:
    """The idempotency key stands for another payload (409)."""


@frozen
class KeyExpired:
    """The reply of this idempotency key is no longer kept (410)."""


@frozen
class Full:
    """No room for another request; nothing was begun (429)."""

    retry_after_s: float


@frozen
class NotReady:
    """The graph does not serve at present; nothing was begun (503). `reason` is for the user: what is
    missing."""

    reason: str


@frozen
class TimedOut:
    """The deadline passed; the request may still take effect, and its key then returns the reply (504)."""


InferenceOutcome: TypeAlias = (
    Reply
    | ModelFailure
    | JoinRefused
    | Shed
    | Unpromised
    | Conflict
    | KeyExpired
    | Full
    | NotReady
    | TimedOut
)


Done: TypeAlias = Callable[[InferenceOutcome | Exception], None]
"""Is given the outcome of a request, once; or the exception that broke it inside: ours, one 500. It raises
nothing."""


class InferencePort(Protocol):
    """The graph, as the endpoint sees it. All calls come from the event loop the endpoint was started on."""

    def submit(self, request: InferenceRequest, done: Done) -> Callable[[], object]:
        """Run one request; `done` may be called before this returns.

        Returns what to call when nobody waits for the outcome any more: then `done` is not called, and what
        has been accepted takes effect all the same.
        """
        ...

    def room(self, nbytes: int, first: int) -> memoryview | None:
        """Writable memory of `nbytes` for a large body, if its tensors can stay there; the first one will
        begin at byte `first`."""
        ...

    def ready(self) -> bool:
        """Whether the graph answers requests now."""
        ...

    def live(self) -> bool:
        """Whether this process is in order; False asks for its restart."""
        ...


async def outcome_of(port: InferencePort, request: InferenceRequest) -> InferenceOutcome:
    """Run one request and wait for its outcome; cancelled when nobody waits for it any more."""
    future: asyncio.Future[InferenceOutcome] = asyncio.get_running_loop().create_future()

    def done(outcome: InferenceOutcome | Exception) -> None:
        if future.done():
            return
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    cancel = port.submit(request, done)
    try:
        return await future
    except asyncio.CancelledError:
        cancel()
        raise


def tensors_digest(tensors: Iterable[Tensor]) -> str:
    """SHA-256, first 16 hex digits, of tensors (history.md, rule 6): for replies, and for payloads that are
    tensors alone."""
    return tensor_digest((tensor.name, tensor.datatype, tensor.shape, tensor.data) for tensor in tensors)


def payload_digest(
    tensors: Iterable[Tensor], parameters: Mapping[str, Parameter], outputs: Sequence[str] | None
) -> str:
    """Digest of a request's payload: that of its tensors, and if there are any, parameters by name (with
    their type) and requested outputs as a set.

    The order of tensors, parameters and outputs, the id and the encoding make no difference.
    """
    digest = tensors_digest(tensors)
    if not parameters and outputs is None:
        return digest
    parts = [digest]
    for name in sorted(parameters):
        parts += ("parameter", name, type(parameters[name]).__name__, repr(parameters[name]))
    for name in sorted(set(outputs or ())):
        parts += ("output", name)
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode()
        whole.update(len(data).to_bytes(8, "little") + data)
    return whole.hexdigest()[:16]
