"""What a shell tells the core. Everything outside the core arrives as one of these; the core never looks for
itself."""

from hams_protocol.frozen import frozen
from hams_protocol.ids import InstanceId, UnitId
from hams_protocol.messages import Message, Meta, Payload, StateCopy
from hams_protocol.topology import Topology


@frozen
class Received:
    """A message from another instance."""

    sender: InstanceId
    message: Message


@frozen
class Tick:
    """`now` has reached the machine's `deadline`."""


@frozen
class Late:
    """The instance's own loop ran `by_s` seconds later than it should have: its process was stopped, or got
    no CPU.

    It comes before everything that has piled up meanwhile: a peer that seemed silent in that time may have
    spoken.
    """

    by_s: float


@frozen
class TopologyLearnt:
    """A topology read from etcd or from a peer, and its etcd revision (-1 if from a peer)."""

    topology: Topology
    revision: int


@frozen
class Member:
    """A registered instance. `of` is an operator, FRONTEND or "manager".

    `former` is the former id of an instance that came back under this one with the state of that id. `keeps`:
    it may be a keeper, and go on with what a keeper holds; instances of older versions cannot. `host`: where
    it runs; "" if that is not known.
    """

    instance: InstanceId
    of: str
    address: str
    former: InstanceId | None = None
    keeps: bool = False
    host: str = ""


@frozen
class MembersChanged:
    """All instances registered now, under living leases."""

    members: tuple[Member, ...]


@frozen
class PeerDown:
    """The connection to a peer broke: what was sent may be lost. `refused`: nobody listens at its address any
    more."""

    peer: InstanceId
    refused: bool = False


@frozen
class PeerUp:
    """The connection to a peer stands (again)."""

    peer: InstanceId


@frozen
class CasSettled:
    """What became of a proposal: it is `committed` at `revision`, or it lost to the topology that is
    there."""

    topology: Topology
    revision: int
    committed: bool


@frozen
class CasUnknown:
    """Nobody knows whether a proposal was committed: the shell reads again and reports a `TopologyLearnt`."""


@frozen
class ModelReady:
    """The model process has initialised; `state` is version 0 as captured (None if stateless), `layout` its
    signature."""

    layout: str
    state: Payload | None


@frozen
class ModelDied:
    """The model process is gone, or does not answer."""

    reason: str


@frozen
class UpdateWanted:
    """The model stands before its update stage of this batch."""

    batch: int


@frozen
class UnitResult:
    """What a model made of one unit: a payload or an error. `route` None: all successors but `request`.

    `refused`: a First may try its next value.
    """

    unit: UnitId
    payload: Payload | None = None
    error: str | None = None
    route: tuple[str, ...] | None = None
    refused: bool = False


@frozen
class BatchDone:
    """The model finished a batch. `updated` tells whether it entered the update stage; `compute_s` is the
    model's own time for it, 0 if it does not say."""

    batch: int
    results: tuple[UnitResult, ...]
    updated: bool
    compute_s: float = 0.0


@frozen
class BatchFailed:
    """The model raised on the whole batch or was told to abandon it; its state may be written (`updated`).
    `compute_s`: see `BatchDone`."""

    batch: int
    message: str
    updated: bool
    compute_s: float = 0.0


@frozen
class Captured:
    """The capture of `version` is complete; `state` holds it."""

    version: int
    state: Payload


@frozen
class Loaded:
    """The model has taken over the state that was to be loaded; or why it could not: another layout, for
    example."""

    token: int
    defect: str = ""


@frozen
class CheckpointWritten:
    """Whether a checkpoint of this version is on disk, whole."""

    epoch: int
    version: int
    whole: bool


@frozen
class CheckpointRead:
    """The newest valid checkpoint of the operator; None if there is none."""

    copy: StateCopy | None


@frozen
class Drain:
    """Planned handoff: stop taking work, flush, let the role move (SIGTERM)."""


@frozen
class ClientRequest:
    """A client's request at this frontend. `handle` names it in the answer; `key` is the idempotency key, if
    any.

    `outputs` are the reply tensors asked for (None: all), `present` the names of the tensors that `payload`
    has.
    """

    handle: int
    key: str | None
    digest: str
    meta: Meta
    payload: Payload
    outputs: tuple[str, ...] | None = None
    present: tuple[str, ...] = ()


@frozen
class ClientGone:
    """The client of `handle` will not read an answer. The request goes on."""

    handle: int


Event = (
    Received
    | Tick
    | Late
    | TopologyLearnt
    | MembersChanged
    | PeerDown
    | PeerUp
    | CasSettled
    | CasUnknown
    | ModelReady
    | ModelDied
    | UpdateWanted
    | BatchDone
    | BatchFailed
    | Captured
    | Loaded
    | CheckpointRead
    | CheckpointWritten
    | Drain
    | ClientRequest
    | ClientGone
)
