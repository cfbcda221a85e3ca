"""The compiled graph: what the core, the shells and the manager need to know of a `ServiceGraph`.

`hams_operator.graph` makes it from a validated resource; it travels as etcd's `spec`. Nothing here does I/O
or validates: a `Graph` is right by construction (acyclic, names resolved, lanes computed).
"""

import enum
from functools import cached_property

from hams_protocol import limits
from hams_protocol.frozen import frozen
from hams_protocol.ids import Lane

FRONTEND = "F"
"""The frontend as source of requests and as sink of replies, in edges, routes and histories."""
FEEDBACK = "F!"
"""The frontend as target of a feedback edge."""
CLOSE = "F*"
"""The frontend as target of the implicit sink edge on which a First join reports that all its in-edges have
delivered."""

SINKS = frozenset((FRONTEND, FEEDBACK, CLOSE))


class Join(enum.StrEnum):
    """How an operator combines its in-edges (protocol.md, section 3)."""

    COMBINE = "Combine"
    INTERLEAVE = "Interleave"
    FIRST = "First"


class Mode(enum.StrEnum):
    """Replication mode of a graph (protocol.md, section 9)."""

    NON_STOP = "NonStop"
    BUFFERED_OUTPUTS = "BufferedOutputs"
    STOP_AND_COPY = "StopAndCopy"
    REMUS = "Remus"
    LINEAGE_STASH = "LineageStash"
    NONE = "None"


class WhenUnprotected(enum.StrEnum):
    """What a primary without an in-sync backup may call durable (protocol.md, section 2)."""

    CONTINUE = "Continue"
    BLOCK = "Block"


class WhenLost(enum.StrEnum):
    """What happens when no replica of a state is left (protocol.md, 7.2)."""

    STOP = "Stop"
    RESTART = "Restart"


class Suspects(enum.StrEnum):
    """Whether a request of which an instance may have died runs where nobody else holds the state
    (protocol.md, section 3)."""

    WAIT = "Wait"
    RUN = "Run"


@frozen
class TensorSpec:
    """One named tensor of a unit: KServe datatype name and the shape of one row, -1 for a variable
    dimension."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False
    finite: bool = False


@frozen
class Input:
    """One tensor taken from an edge: called `source` by the upstream, `name` in `batch[name]`."""

    source: str
    name: str
    optional: bool


@frozen
class Edge:
    """All tensors that `target` takes from `source` (an operator or FRONTEND)."""

    source: str
    target: str
    inputs: tuple[Input, ...]

    @property
    def required(self) -> bool:
        """Whether a skip on this edge skips a Combine."""
        return any(not item.optional for item in self.inputs)


class SchedulePolicy(enum.StrEnum):
    """Which ready units form the next batch of an operator."""

    FIFO = "Fifo"
    DEADLINE = "Deadline"
    DISTRIBUTION = "Distribution"


class WhenLate(enum.StrEnum):
    """What becomes of a unit that cannot be answered in time: it is run when nothing else is, or answered by
    a typed error (ADR 0034)."""

    RUN = "Run"
    SHED = "Shed"


class AdmissionPolicy(enum.StrEnum):
    """Which requests a frontend admits: all for which there is room, or only those that can probably be
    answered in time."""

    OPEN = "Open"
    PROMISE = "Promise"


@frozen
class BatchPolicy:
    """Rows of a batch at most, seconds a unit waits for company (0: take what is queued), and who chooses.

    `app_by` and `feature` say where a request's application and size are: `parameter:NAME`; the size may
    be `rows` or `none`. Profiles forget what is older than `memory_s` (0: nothing), and begin with `p99_s`
    as the time of one unit (0: unknown).
    Units of one value of `keep_order`, a `parameter:NAME`, run in order of arrival. `costs`: what missing a
    request of an application costs, 1 where it does not say. `steps`: (seconds before its deadline, share)
    from when on an answer is worth so much less; empty: all of it at the deadline.
    """

    max_rows: int
    max_delay_s: float
    policy: SchedulePolicy = SchedulePolicy.FIFO
    when_late: WhenLate = WhenLate.RUN
    app_by: str = ""
    feature: str = "none"
    memory_s: float = 600.0
    p99_s: float = 0.0
    keep_order: str = ""
    costs: tuple[tuple[str, float], ...] = ()
    steps: tuple[tuple[float, float], ...] = ()


@frozen
class ModelSpec:
    """How the model process is started. `config` is a JSON object in text.

    `warm_up`: the row that it runs before it is ready, a JSON object in text: `{}` is a made-up one, "" is
    none.
    """

    entrypoint: str
    config: str = "{}"
    image: str = ""
    python: str = ""
    env: tuple[tuple[str, str], ...] = ()
    warm_up: str = ""


@frozen
class Checkpoint:
    """Whole-state checkpoints of durable versions, written by a backup. `batches`: where states are replayed,
    one is written after so many."""

    every_s: float
    keep: int
    dir: str
    batches: int = limits.checkpoint_batches


@frozen
class Feedback:
    """A feedback edge: request tensor name <- output tensor name; at most `max_hops` deep."""

    inputs: tuple[tuple[str, str], ...]
    max_hops: int


@frozen
class Operator:
    """One vertex of the graph.

    `successors` are the targets of its out-edges, in order: operator names, and FRONTEND if a reply tensor
    comes from it. FEEDBACK and CLOSE edges are implied by `feedback` and `join`. `lanes` are all lanes it
    executes for one request.
    """

    name: str
    join: Join
    in_edges: tuple[Edge, ...]
    successors: tuple[str, ...]
    lanes: tuple[Lane, ...]
    outputs: tuple[TensorSpec, ...]
    batch: BatchPolicy
    model: ModelSpec
    stateful: bool
    backups: int = 0
    window: int = 1
    slots: int = 1
    hot_standbys: int = 0
    checkpoint: Checkpoint | None = None
    feedback: Feedback | None = None
    pod_template: str = "{}"
    delta: bool = True

    @property
    def targets(self) -> tuple[str, ...]:
        """Every edge on which each (request, lane) gets exactly one token, CLOSE aside."""
        return self.successors if self.feedback is None else (*self.successors, FEEDBACK)


@frozen
class ReplyTensor:
    """A tensor of the reply: the first of `sources` (operator, tensor) that has a value; with lanes their
    rows are concatenated."""

    name: str
    sources: tuple[tuple[str, str], ...]
    concat_lanes: bool = False


@frozen
class AppSpec:
    """An application, and how long its clients wait that name no deadline; 0: as all others."""

    name: str
    deadline_s: float


@frozen
class FrontendSpec:
    """Size and bounds of the frontend (api.md, section 1)."""

    replicas: int = 2
    shards: int = 2
    request_timeout_s: float = 30.0
    max_in_flight: int = 1024
    max_in_flight_bytes: int = 256 << 20
    max_request_bytes: int = 64 << 20
    replies_kept: int = 10_000
    replies_kept_bytes: int = 64 << 20
    token_secret: str = ""
    hide_model_errors: bool = False
    deadline_s: float = 0.0
    """How long a client waits that names no deadline; 0: `request_timeout_s`."""
    admission: AdmissionPolicy = AdmissionPolicy.OPEN
    app_parameter: str = ""
    """The request parameter that names its application; "": all are alike."""
    apps: tuple[AppSpec, ...] = ()


@frozen
class RecoverySpec:
    """Failure handling (api.md, section 1)."""

    suspect_after_s: float = 0.15
    max_attempts: int = 2
    when_unprotected: WhenUnprotected = WhenUnprotected.CONTINUE
    when_lost: WhenLost = WhenLost.STOP
    suspects: Suspects = Suspects.WAIT


@frozen
class KubernetesSpec:
    """What only the objects of a graph on Kubernetes depend on, and no process: templates are JSON objects in
    text."""

    frontend_template: str = "{}"
    manager_template: str = "{}"
    service: str = "{}"
    evict_after_s: float = 30.0


@frozen
class GraphData:
    """The fields of a compiled graph; operators stand in topological order."""

    name: str
    uid: str
    mode: Mode
    frontend: FrontendSpec
    managers: int
    recovery: RecoverySpec
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[ReplyTensor, ...]
    operators: tuple[Operator, ...]
    kubernetes: KubernetesSpec = KubernetesSpec()


class Graph:
    """A compiled graph with the look-ups that follow from it."""

    def __init__(self, data: GraphData) -> None:
        self.data = data
        self.operators: dict[str, Operator] = {op.name: op for op in data.operators}

    @cached_property
    def entry_edges(self) -> tuple[Edge, ...]:
        """Edges that leave the frontend: one token each per request."""
        return tuple(edge for op in self.data.operators for edge in op.in_edges if edge.source == FRONTEND)

    @cached_property
    def sink_edges(self) -> tuple[tuple[str, str, Lane], ...]:
        """(operator, target, lane) of every token that the frontend waits for before a request is
        complete."""
        edges: list[tuple[str, str, Lane]] = []
        for op in self.data.operators:
            targets = [FRONTEND] if FRONTEND in op.successors else []
            targets += [FEEDBACK] if op.feedback else []
            targets += [CLOSE] if op.join is Join.FIRST else []
            edges += [(op.name, target, lane) for target in targets for lane in op.lanes]
        return tuple(edges)

    @cached_property
    def shard_names(self) -> tuple[str, ...]:
        """Replica-set names of the frontend shards, in order."""
        return tuple(shard_name(number) for number in range(self.data.frontend.shards))

    @cached_property
    def stateful_downstream(self) -> dict[str, tuple[str, ...]]:
        """For every operator and FRONTEND: the stateful operators reachable from it, in topological order,
        itself excluded."""
        reach: dict[str, frozenset[str]] = {}
        order = [op.name for op in self.data.operators]
        for op in reversed(self.data.operators):
            below = [name for name in op.successors if name not in SINKS]
            reach[op.name] = frozenset(below).union(*(reach[name] for name in below))
        reach[FRONTEND] = frozenset(order)
        return {
            name: tuple(op for op in order if op in reached and self.operators[op].stateful)
            for name, reached in reach.items()
        }

    @cached_property
    def stateful_upstream(self) -> dict[str, tuple[str, ...]]:
        """For every operator: the stateful operators from which it can be reached, in topological order,
        itself excluded."""
        order = [op.name for op in self.data.operators if op.stateful]
        return {op: tuple(p for p in order if op in self._reach(p)) for op in self.operators}

    def _reach(self, source: str) -> frozenset[str]:
        below = frozenset(name for name in self.operators[source].successors if name not in SINKS)
        return below.union(*(self._reach(name) for name in below))


def shard_name(number: int) -> str:
    """Replica-set name of a frontend shard; no operator can have it (operator names are DNS labels)."""
    return f"F/{number}"
