"""What instances say to each other. Frozen values; payloads are opaque to the core.

Peers: tokens and their acknowledgements, state records, notices, shard logs, completion. Control: managers'
questions and the answers. Every message that depends on a role names the epoch (or generation) it was sent
in; receivers refuse by it alone.
"""

import enum
from typing import NamedTuple, Protocol

from hams_protocol.deps import Dep, Deps
from hams_protocol.frozen import frozen
from hams_protocol.ids import InstanceId, Lane, RequestId, UnitId, ValueId
from hams_protocol.topology import Topology


class Payload(Protocol):
    """Tensors of a token, or a captured state: bytes the core never looks into. Its memory lives as long as
    the object."""

    @property
    def nbytes(self) -> int:
        """Size of the payload in bytes."""
        ...

    @property
    def rows(self) -> int:
        """Leading dimension of its tensors: how much of a batch it fills. 0 for a state."""
        ...

    @property
    def batch_key(self) -> str:
        """Names of its tensors with their variable dimensions: units whose keys differ never share a
        batch."""
        ...

    @property
    def defect(self) -> str:
        """Why this instance cannot read it, "" if it can. It is held and passed on as it came, but no model
        runs on it (section 3)."""
        ...

    @property
    def content(self) -> str:
        """Names its bytes: two values with one content are one. Asked for only where states are replayed."""
        ...

    @property
    def fresh_nbytes(self) -> int:
        """Of a state: bytes that it does not share with the version before; `nbytes` if it shares none."""
        ...

    def born_after(self, version: int, newest: int) -> "Payload | None":
        """Of a state: its chunks younger than `version`, to be laid over that; None if that would not be less
        than all of it. `newest`: no chunk is younger, whether births are known or not."""
        ...

    def laid_over(self, base: "Payload", since: int, version: int) -> "Payload | None":
        """Of such chunks: the state of `version` that they make of `base`, which is the state of `since`;
        None if they do not fit it."""
        ...


class Kind(enum.IntEnum):
    """What a token carries. An error is a value that no model runs on: it travels on and becomes the
    reply."""

    VALUE = 0
    SKIP = 1
    ERROR = 2


Scalar = bool | int | float | str


@frozen
class Meta:
    """What is handed on with every token of a request. `budget_s` is what was left of its deadline when this
    was written, so when the message was sent that carries it; 0: it has none (`deadlines`)."""

    parameters: tuple[tuple[str, Scalar], ...] = ()
    trace: str = ""
    budget_s: float = 0.0
    hops: int = 0


LATE = 504
"""`ModelError.status` of a unit that an operator has shed (section 3)."""


@frozen
class ModelError:
    """A typed error of a model on a request: the operator and what happened. `status` is HTTP's: 500, 422 if
    all First inputs were refused, or LATE if it was not run because its time was up."""

    op: str
    message: str
    status: int = 500


@frozen
class Ran:
    """One unit of a batch that was run: `error` is what it passed on if it ran no model."""

    unit: UnitId
    kind: Kind
    error: ModelError | None


@frozen
class Determinant:
    """In which order, and in which batch, a stateful operator has run units: what a deterministic model needs
    to come from the version before to `version` again (protocol.md, section 9)."""

    op: str
    epoch: int
    version: int
    units: tuple[Ran, ...]

    @property
    def first(self) -> int:
        """The seq of its first unit."""
        return self.version - len(self.units) + 1


@frozen
class Token:
    """What travels on an edge (protocol.md, sections 1 and 3). The same token may go to several targets.

    `renamed` is set on the input of an internal request: pairs (request tensor, name of that tensor in
    `payload`); else empty. `determinants`: where states are replayed, how those came about from which it
    stems, as far as they are not durable.
    """

    request: RequestId
    lane: Lane
    source: str
    kind: Kind
    value_id: ValueId
    deps: Deps
    route: tuple[str, ...]
    meta: Meta
    fan: tuple[tuple[str, ValueId], ...] = ()
    error: ModelError | None = None
    payload: Payload | None = None
    renamed: tuple[tuple[str, str], ...] = ()
    determinants: tuple[Determinant, ...] = ()

    @property
    def unit(self) -> UnitId:
        """The (request, lane) this token belongs to."""
        return UnitId(self.request, self.lane)

    def failure(self, reader: str) -> ModelError | None:
        """Why `reader`, an operator, cannot run its model on this token: the error that it carries, or that
        its payload cannot be read."""
        if self.kind is Kind.ERROR:
            return self.error
        if self.payload is None or not self.payload.defect:
            return None
        return ModelError(reader, f'cannot read what "{self.source}" sent: {self.payload.defect}')

    def with_meta(self, meta: Meta) -> "Token":
        """The same token with other metadata, which is no part of its identity."""
        return Token(
            self.request,
            self.lane,
            self.source,
            self.kind,
            self.value_id,
            self.deps,
            self.route,
            meta,
            self.fan,
            self.error,
            self.payload,
            self.renamed,
            self.determinants,
        )


@frozen
class Deliver:
    """A token for `target`, by the present owner of `token.source` in `epoch` (set or slot epoch; shard epoch
    for FRONTEND).

    `marks`: where backups answer for what they have received, the watermarks that the sender knows.
    """

    target: str
    epoch: int
    token: Token
    attempts: int = 0
    """0: fresh. n + 1: an owner died that had it, and n owners died running it alone (poison, section 3)."""
    marks: Deps = ()


@frozen
class TokenAck:
    """The owner of `target` in `epoch` holds value `value_id` for (source, unit)."""

    source: str
    target: str
    unit: UnitId
    value_id: ValueId
    epoch: int


@frozen
class TokenAcks:
    """Acknowledgements for one sender, coalesced."""

    acks: tuple[TokenAck, ...]


@frozen
class Consumed:
    """One unit in the execution history of a stateful operator: what it produced, what it got on fan-out
    edges, and of which executions of fan-outs it stems (`Token.fan`).
    """

    unit: UnitId
    seq: int
    out: ValueId | None
    outputs: tuple[tuple[str, Token], ...]
    fan_inputs: tuple[Token, ...]
    fan: tuple[tuple[str, ValueId], ...] = ()

    @property
    def meta(self) -> Meta:
        """What its outputs hand on."""
        return self.outputs[0][1].meta if self.outputs else Meta()


@frozen
class Attempt:
    """To the owner upstream: the owner of `target` is about to run this alone, its model died of it, or it
    came through. Its successor must know (section 3).

    `alone_in` is the epoch of the set or slot in which the sender is about to run it alone; `attempts` counts
    that run as a death then. None: it does not run. `serial` counts what the sender has said: a repetition
    says nothing new.
    """

    source: str
    target: str
    request: RequestId
    lane: Lane
    attempts: int
    serial: int = 0
    alone_in: int | None = None


@frozen
class AttemptAck:
    """The owner upstream has noted what was said under `serial`, or need not: the request is complete."""

    source: str
    request: RequestId
    lane: Lane
    serial: int


@frozen
class StateRecord:
    """One version of a stateful operator (protocol.md, 2.5). `state` is None if the version left the state as
    it was.

    `since`: the state is what changed after that version, for who holds that; -1: it is whole. `left_s`: what
    is left of each unit's deadline when this is sent, 0 if it has none; of a peer of the version before ().
    """

    op: str
    epoch: int
    version: int
    previous: int
    deps: Deps
    units: tuple[Consumed, ...]
    chain: str
    state: Payload | None = None
    since: int = -1
    left_s: tuple[float, ...] = ()


@frozen
class RecordAck:
    """How far a backup (or joiner) has received and applied the versions of `epoch`; cumulative.

    `differences`: it takes records whose state is what changed (peers of the version before do not).
    """

    op: str
    epoch: int
    received: int
    applied: int
    differences: bool = False


@frozen
class AskApplied:
    """The acknowledgement of an apply may be lost: how far is the follower in `epoch`?"""

    op: str
    epoch: int


@frozen
class Leave:
    """A backup of a state or a log that is to end asks its primary to let it go: it may be promoted until the
    topology names it no more."""

    op: str
    epoch: int


@frozen
class Durable:
    """Durable watermarks, coalesced: each `Dep` says that this version, and all before it in that epoch, are
    durable; where backups answer for what they have received, that they are stable (ADR 0013)."""

    versions: tuple[Dep, ...]


@frozen
class AskDurable:
    """Notices may be lost: an instance that waits asks the primary again."""

    op: str


@frozen
class AskCopy:
    """A joiner asks the primary of `op` in `epoch` for a copy. `known` is the version it holds already in
    this epoch, -1 if none.

    `generation`: the newest it knows; what it said before it was dropped and named again is of no use.
    `parts`: so many has it of the owner's `copy`-th copy of a log; -1: it is of a version that does not say.
    """

    op: str
    epoch: int
    known: int = -1
    generation: int = 0
    copy: int = 0
    parts: int = -1


@frozen
class StateCopy:
    """The newest durable version, whole: tensors, consumed units with saved outputs and fan-out inputs,
    completions.

    `layout`: signature of the state's tensors; "" if unknown. `since`: as in a record. `generation`: the
    newest that its sender knew; 0 if that plays no part.
    """

    op: str
    epoch: int
    version: int
    units: tuple[Consumed, ...]
    complete: "Completion"
    chain: str
    state: Payload | None = None
    layout: str = ""
    since: int = -1
    generation: int = 0


@frozen
class ReplyAge:
    """The reply of a request was released `seconds` before the message left that says so. For an internal
    request, that of the client's request that it belongs to."""

    request: RequestId
    seconds: float


@frozen
class AskDeterminants:
    """A new primary in `epoch`, to everybody downstream: how did the versions above `above` of `op` come
    about? Who knows an older generation than `generation` answers once it knows that."""

    op: str
    epoch: int
    above: int
    generation: int


@frozen
class Determinants:
    """What the sender knows of that. `led`: as in `SlotAnswer`."""

    op: str
    epoch: int
    generation: int
    items: tuple[Determinant, ...]
    led: tuple[str, int] | None = None


@frozen
class Completion:
    """Complete requests per shard: all below `watermark`, and those in `sparse`; cumulative.

    `replies` is advisory and lossy: scheduling learns from it how long the rest of the path takes. It rides
    on notices that are sent anyway, and only in graphs with an operator that schedules.
    """

    shards: tuple[tuple[int, int, tuple[int, ...]], ...]
    replies: tuple[ReplyAge, ...] = ()


@frozen
class SlotQuery:
    """The new owner of a slot of a fan-out operator asks what its predecessors delivered, and fences them
    (protocol.md, section 4)."""

    op: str
    slot: int
    epoch: int


@frozen
class SlotAnswer:
    """Every token from that slot that the sender holds.

    `led`: the replica set that the sender led when it answered, and in which epoch: the answer is this set's.
    None: the sender is stateless, and answers for itself. An instance that leads several sets sends an answer
    for each.
    """

    op: str
    slot: int
    epoch: int
    tokens: tuple[Token, ...]
    led: tuple[str, int] | None = None


@frozen
class TopologyNews:
    """A topology the receiver may not know yet: proxies pass it on to each other."""

    topology: Topology
    revision: int


@frozen
class AskTopology:
    """The sender met something it does not know; `generation` is the newest it has."""

    generation: int


class Ticket(NamedTuple):
    """Names a request without an idempotency key: the `counter`-th that frontend `instance` accepted.

    `settled`: no client of that frontend waits for a ticket below this one any more; cumulative.
    """

    instance: InstanceId
    counter: int
    settled: int


@frozen
class Admit:
    """Log entry: a request was accepted, under the client's key or a ticket.

    `present` names the tensors that the request has. On internal requests `origin` is the feedback edge's
    token, with the payload, and `root` the client's request at the beginning of the chain.
    """

    request: RequestId
    key: str | None
    digest: str
    meta: Meta
    origin: Token | None = None
    outputs: tuple[str, ...] | None = None
    payload: Payload | None = None
    present: tuple[str, ...] = ()
    ticket: Ticket | None = None
    root: RequestId | None = None


@frozen
class ReplyEntry:
    """Log entry: the reply of a request, or that there is none (an internal one). `tokens` are the sink
    tokens it was made of. It counts once `deps` are durable: all that was pending of the tokens that decided
    it, skips included (ADR 0040)."""

    request: RequestId
    tokens: tuple[Token, ...]
    error: ModelError | None = None
    deps: Deps = ()


@frozen
class DoneEntry:
    """Log entry: the request is complete: every sink token has arrived with durable deps."""

    request: RequestId


LogEntry = Admit | ReplyEntry | DoneEntry


@frozen
class LogAppend:
    """Entries `first` .. `first + len(entries) - 1` of a shard's log, by its owner in `epoch`; all up to
    `committed` are committed."""

    shard: int
    epoch: int
    first: int
    entries: tuple[LogEntry, ...]
    committed: int = 0


@frozen
class LogAck:
    """The peer holds every entry of `epoch`'s log up to and including `last`. `generation`: the newest it
    knows, 0 if it does not say."""

    shard: int
    epoch: int
    last: int
    generation: int = 0


@frozen
class LogCopy:
    """One part of the `copy`-th copy that its owner makes of a shard's log in this epoch, up to and including
    `index`, compacted: entries whose replay makes the same key table and open requests.

    The last part has `last` set and carries what entries alone do not tell: the next request number, hashes
    of expired keys, tickets settled per frontend, feedback tokens logged for open requests, and completions.
    `copy` 0: its owner is of a version that sends all parts at once.
    """

    shard: int
    epoch: int
    index: int
    part: int
    last: bool
    entries: tuple[LogEntry, ...]
    next_n: int = 0
    expired: tuple[int, ...] = ()
    settled: tuple[tuple[InstanceId, int], ...] = ()
    fed: tuple[Token, ...] = ()
    complete: Completion | None = None
    copy: int = 0


@frozen
class ClientForward:
    """A request that the sender accepted for a shard of the receiver, as its `counter`-th. `payload` None:
    only asks how it stands. `epoch`: in which the receiver owns the shard; 0: of a version that does not
    say."""

    shard: int
    counter: int
    settled: int
    key: str | None
    digest: str
    meta: Meta
    payload: Payload | None
    outputs: tuple[str, ...] | None = None
    present: tuple[str, ...] = ()
    epoch: int = 0


@frozen
class ClientForwardHeld:
    """Whether the owner has the forwarded request in its committed log (False: send it again, whole)."""

    shard: int
    counter: int
    held: bool


@frozen
class ClientForwardAnswer:
    """The outcome of a forwarded request: a reply (`status` 200, `request` set) or that none was made
    (`status` as in NotServed)."""

    counter: int
    status: int
    request: RequestId | None = None
    tokens: tuple[Token, ...] = ()
    error: ModelError | None = None
    message: str = ""
    retry_after_s: float = 0.0
    begun: bool = True


@frozen
class Heartbeat:
    """Sent to every connected peer when nothing else was, so that it hears of a newer generation."""

    generation: int


class Health(enum.IntEnum):
    """What a probed instance says of itself."""

    HEALTHY = 0
    MODEL_DEAD = 1
    NEEDS_ROLLBACK = 2
    """The model died with versions that were executed but not captured: the set must go back to a retained
    record."""
    STOPPING = 3


@frozen
class Suspect:
    """To managers: `suspect` seems dead. `reason` is for people."""

    suspect: InstanceId
    reason: str


@frozen
class Probe:
    """Manager: are you alive, and your model too?"""

    nonce: int


LEADS = "primary"
"""The role of who leads a set and has its state: one that is named primary, and waits for a keeper's copy,
has not got it yet."""

HOLDS = "kept"
"""The role of a state that came along from a former id: none in the topology, but managers may count on
it."""

SAVED = "saved"
"""The role of a checkpoint that an instance has read for a state that is lost; version -1: there is none."""


@frozen
class RoleReport:
    """What an instance does for one replica set or operator.

    `role` as in api.md (primary, backup, joining, active, standby, frontend), HOLDS or SAVED.
    """

    name: str
    role: str
    epoch: int
    version: int
    ready: bool


@frozen
class ProbeAnswer:
    """`generation` is the newest topology the instance acts on; `roles` are for status and metrics; only
    rollbacks, HOLDS and SAVED decide."""

    nonce: int
    health: Health
    generation: int
    roles: tuple[RoleReport, ...] = ()


@frozen
class Freeze:
    """Manager, 7.2: take no record (log entry) of `epoch` or below for this set any more; report what you
    have applied."""

    attempt: int
    generation: int
    name: str
    epoch: int


@frozen
class RetainedVersion:
    """A record that its holder could go back to."""

    version: int
    deps: Deps


@frozen
class FreezeAnswer:
    """`applied`: the newest applied version (a shard: last log index); None: this instance holds nothing of
    the set.

    A former primary reports its newest retained record with only durable dependencies. `retained`: where
    backups answer for what they have received, all versions held, newest first; `applied` is the newest.
    """

    attempt: int
    generation: int
    name: str
    epoch: int
    applied: int | None
    chain: str = ""
    retained: tuple[RetainedVersion, ...] = ()


@frozen
class Fence:
    """Manager, 7.3: let in no dep above these ends. Each `Dep` is (operator, ended epoch, end)."""

    attempt: int
    generation: int
    name: str
    ends: tuple[Dep, ...]


@frozen
class FenceAnswer:
    """`tainted`: the state holds a dep above the ends. `retained` are the versions it could go back to,
    newest first."""

    attempt: int
    generation: int
    name: str
    epoch: int
    tainted: bool
    retained: tuple[RetainedVersion, ...]


@frozen
class Refused:
    """The instance knows a newer generation than the question's, or is in no position to answer."""

    attempt: int
    generation: int
    name: str
    why: str


PeerMessage = (
    Deliver
    | TokenAcks
    | Attempt
    | AttemptAck
    | StateRecord
    | RecordAck
    | Durable
    | AskDurable
    | AskApplied
    | Leave
    | AskCopy
    | StateCopy
    | Completion
    | SlotQuery
    | SlotAnswer
    | AskDeterminants
    | Determinants
    | TopologyNews
    | AskTopology
    | LogAppend
    | LogAck
    | LogCopy
    | ClientForward
    | ClientForwardHeld
    | ClientForwardAnswer
    | Heartbeat
)
ControlMessage = Suspect | Probe | ProbeAnswer | Freeze | FreezeAnswer | Fence | FenceAnswer | Refused
Message = PeerMessage | ControlMessage
