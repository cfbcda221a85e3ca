"""What is said on a visit: questions and answers, as heads in MessagePack, with tensors' bytes behind them in
their order.

Never: a default for what the other side has not said but should; who finds a head it does not know ends the
visit.
"""

from collections.abc import Sequence

import msgspec

from hams_sidecar.inference import (
    Buffer,
    Conflict,
    Full,
    InferenceOutcome,
    InferenceRequest,
    JoinRefused,
    KeyExpired,
    ModelFailure,
    NotReady,
    Parameter,
    Reply,
    Shed,
    Tensor,
    TimedOut,
    TraceContext,
    Unpromised,
)
from hams_wire.errors import UNDECODABLE
from hams_wire.peers.visits import VisitFailed


class Described(msgspec.Struct, frozen=True, array_like=True):
    """A tensor whose bytes stand behind the head."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    nbytes: int


class AskState(msgspec.Struct, frozen=True, tag="state"):
    """To a primary: its newest durable state."""

    op: str


class AskReplies(msgspec.Struct, frozen=True, tag="replies"):
    """To a frontend: the kept replies of a shard that it owns; "": those that it has taken over itself."""

    shard: str


class AskOutcome(msgspec.Struct, frozen=True, tag="outcome"):
    """To a frontend of the successor: a client's request, checked against the predecessor's signature."""

    tensors: tuple[Described, ...]
    parameters: dict[str, Parameter]
    outputs: tuple[str, ...] | None
    deadline_s: float
    key: str | None
    digest: str | None
    trace: tuple[str, str] | None


class PassedState(msgspec.Struct, frozen=True, tag="state is"):
    """A state; its bytes follow."""

    epoch: int
    version: int
    layout: str


class Unready(msgspec.Struct, frozen=True, tag="unready"):
    """Not now, or not here."""

    why: str


class PassedOutcome(msgspec.Struct, frozen=True, tag="outcome is"):
    """What became of a request. `kind`: one of _KINDS; `op`, `message`, `retry_after_s` where it has them."""

    kind: str
    op: str = ""
    message: str = ""
    retry_after_s: float = 0.0
    tensors: tuple[Described, ...] = ()


class PassedReply(msgspec.Struct, frozen=True, array_like=True):
    """What was answered to a key."""

    key: str
    digest: str
    outcome: PassedOutcome


class PassedReplies(msgspec.Struct, frozen=True, tag="replies are"):
    """Some kept replies, the bytes of their tensors behind the head; `more` follow in another message.
    `expired`: hashes of keys whose replies are not kept any more. `whole`: who tells has all that was to be
    taken over."""

    replies: tuple[PassedReply, ...] = msgspec.field(name="kept")
    expired: tuple[int, ...]
    more: bool
    whole: bool = True


Question = AskState | AskReplies | AskOutcome
Answer = PassedState | Unready | PassedOutcome | PassedReplies

_questions: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode(said: Question | Answer) -> bytes:
    """A head."""
    return msgspec.msgpack.encode(said)


def question(head: bytes) -> Question:
    """What a visitor asks. Raises VisitFailed."""
    try:
        return _questions.decode(head)
    except UNDECODABLE as error:
        raise VisitFailed(f"not a question: {error}") from None


def answer(head: bytes) -> Answer:
    """What the host answers. Raises VisitFailed."""
    try:
        return _answers.decode(head)
    except UNDECODABLE as error:
        raise VisitFailed(f"not an answer: {error}") from None


def describe(tensors: Sequence[Tensor]) -> tuple[tuple[Described, ...], list[Buffer]]:
    """Tensors for a head, and their bytes."""
    return tuple([Described(item.name, item.datatype, item.shape, len(item.data)) for item in tensors]), [
        item.data for item in tensors
    ]


def tensors_in(described: Sequence[Described], data: memoryview, at: int = 0) -> tuple[Tensor, ...]:
    """Tensors whose bytes begin at `at`. Raises VisitFailed."""
    tensors = []
    for item in described:
        if item.nbytes < 0 or at + item.nbytes > len(data):
            raise VisitFailed(f"tensor {item.name!r} ends beyond the {len(data)} bytes that came with it")
        tensors.append(Tensor(item.name, item.datatype, item.shape, data[at : at + item.nbytes]))
        at += item.nbytes
    return tuple(tensors)


def asked(request: InferenceRequest) -> tuple[AskOutcome, list[Buffer]]:
    """A request to be passed on."""
    described, parts = describe(request.tensors)
    trace = None if request.trace is None else (request.trace.traceparent, request.trace.tracestate)
    head = AskOutcome(
        described,
        dict(request.parameters),
        request.outputs,
        request.deadline_s,
        request.idempotency_key,
        request.digest,
        trace,
    )
    return head, parts


def request_in(head: AskOutcome, data: memoryview) -> InferenceRequest:
    """A request that was passed on. Raises VisitFailed."""
    trace = None if head.trace is None else TraceContext(*head.trace)
    return InferenceRequest(
        tensors_in(head.tensors, data),
        head.parameters,
        head.outputs,
        head.deadline_s,
        head.key,
        trace,
        head.digest,
    )


MALFORMED = "malformed"
"""Kind of an outcome: the request does not fit the successor's signature."""


def passed_outcome(outcome: InferenceOutcome) -> tuple[PassedOutcome, list[Buffer]]:
    """An outcome for a head, and its bytes."""
    match outcome:
        case Reply(tensors):
            described, parts = describe(tensors)
            return PassedOutcome("reply", tensors=described), parts
        case ModelFailure(op, message):
            return PassedOutcome("failure", op, message), []
        case JoinRefused(op, message):
            return PassedOutcome("refused", op, message), []
        case Shed(op, message):
            return PassedOutcome("shed", op, message), []
        case Unpromised(message, retry_after_s):
            return PassedOutcome("unpromised", message=message, retry_after_s=retry_after_s), []
        case Conflict():
            return PassedOutcome("conflict"), []
        case KeyExpired():
            return PassedOutcome("expired"), []
        case Full(retry_after_s):
            return PassedOutcome("full", retry_after_s=retry_after_s), []
        case NotReady(reason):
            return PassedOutcome("unready", message=reason), []
        case TimedOut():
            return PassedOutcome("late"), []


def outcome_in(said: PassedOutcome, data: memoryview, at: int = 0) -> InferenceOutcome:
    """The outcome that a head tells of. Raises VisitFailed."""
    match said.kind:
        case "reply":
            return Reply(tensors_in(said.tensors, data, at))
        case "failure":
            return ModelFailure(said.op, said.message)
        case "refused":
            return JoinRefused(said.op, said.message)
        case "shed":
            return Shed(said.op, said.message)
        case "unpromised":
            return Unpromised(said.message, said.retry_after_s)
        case "conflict":
            return Conflict()
        case "expired":
            return KeyExpired()
        case "full":
            return Full(said.retry_after_s)
        case "unready":
            return NotReady(said.message)
        case "late":
            return TimedOut()
    raise VisitFailed(f"an outcome of an unknown kind {said.kind!r}")
