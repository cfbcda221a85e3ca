"""What the machines of a succession ask of their shells, in the order in which it must be performed."""

from hams_protocol.frozen import frozen
from hams_protocol.ids import InstanceId
from hams_protocol.succession.records import Cut, Quiet, Succession, TakenOver


@frozen
class Admit:
    """Give a request to the core of this frontend. Answered by RequestOver or HasNoRoom."""

    handle: int
    budget_s: float


@frozen
class PassOn:
    """Give a request to a frontend of the graph `to`. Answered by RequestOver."""

    handle: int
    to: str
    budget_s: float


@frozen
class Refuse:
    """Tell a client that there is no room for its request."""

    handle: int
    retry_after_s: float


@frozen
class SayQuiet:
    """Write `quiet/INSTANCE`, which nobody else writes. Answered by Said or NotSaid."""

    instance: InstanceId
    quiet: Quiet


@frozen
class TakeBack:
    """Write the record if etcd's is still at `revision`. Answered by StepAnswered."""

    revision: int
    record: Succession


@frozen
class StateSource:
    """Ask this instance of the predecessor: for the state of an operator, for the kept replies of a shard
    (`what` names either), or (`what` is "") for the replies that it has taken over itself."""

    host: InstanceId
    what: str


@frozen
class Fetch:
    """Fetch from each of these, in their order, and drop what was fetched before. Answered by Fetched or
    NotFetched."""

    sources: tuple[StateSource, ...]


@frozen
class SayTaken:
    """Write `taken/INSTANCE`, which nobody else writes. Answered by Said or NotSaid."""

    instance: InstanceId
    taken: TakenOver


@frozen
class Begin:
    """Become an instance with what was fetched at this cut; None: with nothing, somebody else has it."""

    cut: Cut | None


@frozen
class AskTable:
    """Ask a frontend of one's own graph for what it has taken over. Answered by TableReceived or
    TableMissed."""

    instance: InstanceId


@frozen
class UseTable:
    """Serve with what this frontend has told; "": nobody is left who has it, so with an empty table that is
    not whole."""

    instance: InstanceId
