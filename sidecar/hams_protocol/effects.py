"""What the core asks of a shell.

The ordering law: effects are performed in the order of the list. A `Note` (a line of the history) stands
before the effect it reports, so a shell that writes lines and sends in order keeps rule 2 of history.md. A
shell never drops, reorders or repeats an effect, and never decides anything by looking into one.
"""

import enum

from hams_protocol.frozen import frozen
from hams_protocol.ids import InstanceId, RequestId, UnitId, ValueId
from hams_protocol.messages import Message, Meta, ModelError, Payload, StateCopy, Token
from hams_protocol.topology import Topology


@frozen
class Send:
    """Send a message to an instance; if there is no connection it is lost, and the core sends again when it
    must."""

    target: InstanceId
    message: Message


@frozen
class Propose:
    """Commit `topology` if etcd's is still at `revision`; answered by CasSettled or CasUnknown."""

    revision: int
    topology: Topology


@frozen
class BatchUnit:
    """One unit of a batch: its id, the request's metadata, and per in-edge (source) the payload, None where
    it was skipped.

    `renamed`: see `Token`; it holds for the payload of FRONTEND, whose request tensors are read by these
    names, and no others are present.
    """

    unit: UnitId
    meta: Meta
    inputs: tuple[tuple[str, Payload | None], ...]
    renamed: tuple[tuple[str, str], ...] = ()


@frozen
class StartBatch:
    """Run the model on these units. A stateful model stops before its update stage and asks (UpdateWanted),
    unless it may `enter` at once, or has heard since that it may (EnterUpdate)."""

    batch: int
    units: tuple[BatchUnit, ...]
    enter: bool = False


@frozen
class EnterUpdate:
    """The model may write its state, whether it asks already or has not come so far."""

    batch: int


@frozen
class AbandonBatch:
    """The model must not enter the update stage of this batch; answered by BatchFailed with `updated`
    False."""

    batch: int


@frozen
class Capture:
    """Copy the state of `version` out of the model, beside its next compute stage; answered by Captured."""

    version: int


@frozen
class LoadState:
    """Make the model's state this one; answered by Loaded with the same token."""

    token: int
    state: Payload


@frozen
class PreloadState:
    """Have the model of a joiner take this state over: what is loaded once is loaded fast, and a model that
    refuses it says so now, not in the middle of a failover. Answered by Loaded with token 0.
    """

    state: Payload


@frozen
class WriteCheckpoint:
    """Write this durable version to disk, whole or not at all; nothing waits for it. If one is being written
    still, it is left out."""

    copy: StateCopy


@frozen
class ReadCheckpoint:
    """Read the operator's newest valid checkpoint; answered by CheckpointRead."""

    op: str


@frozen
class RestartModel:
    """The model process is dead or unusable: start a fresh one; answered by ModelReady."""

    reason: str


@frozen
class Answer:
    """The reply to a client. Exactly one of the outcomes of `Outcome`."""

    handle: int
    outcome: "Outcome"


@frozen
class Replied:
    """The graph's reply: sink tokens with payloads, of which the shell makes the declared reply tensors."""

    request: RequestId
    tokens: tuple[Token, ...]
    error: ModelError | None


@frozen
class NotServed:
    """No reply: nothing is kept under the key. `status` is the HTTP status of api.md, section 3;
    `retry_after_s` with 429, and with a 504 of which nothing has `begun`."""

    status: int
    message: str
    retry_after_s: float = 0.0
    begun: bool = True


Outcome = Replied | NotServed


@frozen
class Stop:
    """This instance's part is over: it is deposed, tainted, revoked, or drained. The shell ends it; a fresh
    one may start.

    `keep` names the set whose state a successor under a fresh id should bring along. `lingers`: it leads a
    set, and the registration is left to expire. Until then its address tells whoever dials it that nobody is
    there; one that is gone from etcd nobody dials, and it would be waited for as if it hung.
    """

    reason: str
    keep: str | None = None
    lingers: bool = False


@frozen
class NoteExec:
    """history.md: one executed unit, before its outputs leave. `seq` is None for a stateless operator (then
    `slot` is set)."""

    op: str
    generation: int
    epoch: int
    unit: UnitId
    inputs: tuple[ValueId, ...]
    out: ValueId | None
    route: tuple[str, ...]
    seq: int | None = None
    version: int | None = None
    chain: str = ""
    slot: int | None = None


@frozen
class NoteApply:
    """history.md: a backup applied a version, before it says so."""

    op: str
    generation: int
    epoch: int
    version: int
    chain: str
    snapshot: bool = False


@frozen
class NoteDurable:
    """history.md: a version became durable, before anyone is told."""

    op: str
    generation: int
    epoch: int
    version: int


@frozen
class NoteStable:
    """history.md: a version was received by the whole ack set, before anyone is told (ADR 0013)."""

    op: str
    generation: int
    epoch: int
    version: int


@frozen
class NoteLog:
    """history.md: an entry was committed in a shard's log, before injection."""

    generation: int
    shard: int
    epoch: int
    request: RequestId
    key: str | None
    digest: str
    source: ValueId | None = None


@frozen
class NoteReply:
    """history.md: a reply is replicated, before its release."""

    generation: int
    shard: int
    epoch: int
    request: RequestId
    values: tuple[ValueId, ...]
    tokens: tuple[Token, ...] = ()


@frozen
class NoteComplete:
    """history.md: every sink token of a request has arrived with durable deps."""

    request: RequestId


@frozen
class NoteFailover:
    """history.md: a replica set's primary changed or rolled back. For a shard `op` is its set's name and a
    `takeover` line results."""

    op: str
    generation: int
    epoch: int
    end: int
    primary: InstanceId


class Loss(enum.StrEnum):
    """What is said of a loss: nobody is known who holds a state; it begins again from a version; or it stems
    from more than that of one upstream."""

    GONE = "gone"
    RESTARTED = "restarted"
    STEMS = "stems"


@frozen
class NoteLost:
    """history.md: a state was lost beyond what the protocol tolerates, and it is said."""

    kind: Loss
    op: str
    epoch: int
    version: int
    why: str


Note = (
    NoteExec
    | NoteApply
    | NoteDurable
    | NoteStable
    | NoteLog
    | NoteReply
    | NoteComplete
    | NoteFailover
    | NoteLost
)
Effect = (
    Send
    | Propose
    | StartBatch
    | EnterUpdate
    | AbandonBatch
    | Capture
    | LoadState
    | PreloadState
    | WriteCheckpoint
    | ReadCheckpoint
    | RestartModel
    | Answer
    | Stop
    | Note
)
