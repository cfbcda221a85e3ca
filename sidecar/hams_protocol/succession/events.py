"""What happens to the machines of a succession. Each machine's module says which of these it takes."""

import enum

from hams_protocol.frontend.status import ShardStatus
from hams_protocol.frozen import frozen
from hams_protocol.ids import InstanceId
from hams_protocol.succession.records import Quiet, Succession
from hams_protocol.topology import Topology


@frozen
class RequestCame:
    """A client's request, which its client waits for so many seconds. `handle` is never used again."""

    handle: int
    budget_s: float


@frozen
class RequestOver:
    """Its client has its answer, or waits no more."""

    handle: int


@frozen
class HasNoRoom:
    """The core had no room for a request that was held back: nothing has begun."""

    handle: int
    retry_after_s: float


@frozen
class RecordChanged:
    """The predecessor's record, as etcd has it; None: there is none."""

    record: Succession | None
    revision: int


@frozen
class CoreStands:
    """How this frontend's core stands after a turn: clients that wait for it, and its shards."""

    instance: InstanceId
    waiting_clients: int
    shards: tuple[ShardStatus, ...]


@frozen
class Said:
    """etcd has what was to be said."""


@frozen
class NotSaid:
    """etcd may not have it: it is said again."""


class Swap(enum.Enum):
    """What became of a compare-and-swap."""

    DONE = "done"
    LOST = "lost"
    UNKNOWN = "unknown"


@frozen
class StepAnswered:
    """What became of a step back."""

    outcome: Swap


@frozen
class GraphsSeen:
    """What etcd holds of both shapes, as a waiting process sees it. Of the predecessor: its record, its
    topology, and what its frontends have said. Of its own graph: whether this process's set or shard has
    `begun`, and whether the succession is `done`."""

    record: Succession | None
    topology: Topology
    quiet: tuple[tuple[InstanceId, Quiet], ...]
    begun: bool
    done: bool


@frozen
class Fetched:
    """All that was to be fetched is here. `layout`: of the state; "" for replies."""

    layout: str


@frozen
class NotFetched:
    """Somebody went away, or could not answer yet."""


@frozen
class RoleStands:
    """How an operator's instance stands after a turn of its core: whether it is a primary whose model holds
    its state."""

    instance: InstanceId
    holds_state: bool


@frozen
class FrontendsSeen:
    """The registered frontends of this process's own graph."""

    instances: tuple[InstanceId, ...]


@frozen
class TableReceived:
    """Another frontend has given what it took over. `whole`: as far as it knows, that is all there was."""

    instance: InstanceId
    whole: bool


@frozen
class TableMissed:
    """It went away, or does not serve yet."""

    instance: InstanceId


@frozen
class Wake:
    """A time that a machine asked for has come."""
