"""Outcomes as HTTP statuses and gRPC codes: the one table (api.md, section 3)."""

import grpc

from hams_protocol.frozen import frozen
from hams_sidecar.endpoint.errors import RequestRefused
from hams_sidecar.inference import (
    Conflict,
    Full,
    InferenceOutcome,
    JoinRefused,
    KeyExpired,
    ModelFailure,
    NotReady,
    Reply,
    Shed,
    TimedOut,
    Unpromised,
)

GRPC_CODES: dict[int, grpc.StatusCode] = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.ABORTED,
    410: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


@frozen
class Refusal:
    """An answer that is an error: `{"error": message}` with an HTTP status, or its gRPC code. `shed_by`: the
    operator that did not run the request, which the body says beside the message. `unpromised`: its deadline
    is why nothing was begun."""

    status: int
    message: str
    retry_after_s: float | None = None
    shed_by: str | None = None
    unpromised: bool = False

    @property
    def details(self) -> dict[str, object]:
        """What a program reads of it beside the status."""
        if self.unpromised:
            return {"reason": "deadline", "begun": False}
        if self.shed_by is None:
            return {}
        return {"operator": self.shed_by, "reason": "deadline", "begun": True}

    @property
    def code(self) -> grpc.StatusCode:
        """The gRPC code of the same error."""
        return GRPC_CODES[self.status]


INTERNAL_ERROR = Refusal(500, "internal error of the endpoint; its log says more")

LEFT = Refusal(
    504,
    "this frontend shuts down and has waited long enough; the request may still take effect, and its "
    "idempotency key then returns the reply",
)


def answer(outcome: InferenceOutcome) -> Reply | Refusal:
    """The reply, or the error that the outcome is for the client."""
    match outcome:
        case Reply():
            return outcome
        case ModelFailure(operator, message):
            return Refusal(500, f"operator {operator!r} failed on this request: {message}")
        case JoinRefused(operator, message):
            return Refusal(422, f"operator {operator!r}: {message}")
        case Shed(operator, message):
            return Refusal(504, f"operator {operator!r}: {message}", shed_by=operator)
        case Unpromised(message, retry_after_s):
            return Refusal(504, message, retry_after_s, unpromised=True)
        case Conflict():
            return Refusal(409, "this idempotency key has been used for a request with another payload")
        case KeyExpired():
            return Refusal(410, "the reply of this idempotency key is no longer kept")
        case Full(retry_after_s):
            return Refusal(429, "no room for another request at present; nothing was begun", retry_after_s)
        case NotReady(reason):
            return Refusal(503, f"not ready: {reason}")
        case TimedOut():
            return Refusal(
                504,
                "no reply within the time given; the request may still take effect, and its idempotency key "
                "then returns the reply",
            )


def refused(error: RequestRefused) -> Refusal:
    """The answer to a request that never reached the graph."""
    return Refusal(error.status, error.message, error.retry_after_s)
