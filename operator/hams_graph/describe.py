"""What a graph means in processes and memory, and what its author may not have meant: the answer of
`hams validate` to a file that is fine."""

from collections.abc import Iterable
from dataclasses import dataclass

from hams_graph.memory import held_bytes
from hams_graph.wiring import called
from hams_protocol.graph import FRONTEND, Graph, Join, Mode, Operator
from hams_protocol.modes import ModePolicy

# Estimates that `hams validate` shows: resident memory on x86-64, Python 3.11; the first three after 100,000
# requests (docs/performance.md).
frontend_memory_bytes = 105 << 20
manager_memory_bytes = 67 << 20
proxy_memory_bytes = 71 << 20
etcd_memory_bytes = 40 << 20
supervisor_memory_bytes = 50 << 20
warmed_memory_bytes = 105 << 20
"""Two processes from which others are forked: 80 that of the data plane, 25 that of models, which takes more
if it imports torch."""

own_processes = 4
"""Of a local run, besides what the graph asks for: supervisor, etcd, two warmed processes."""


@dataclass(frozen=True, slots=True)
class OperatorDescription:
    """One operator: what runs for it. `roles` are (role, how many instances); an instance is two processes,
    model and proxy."""

    name: str
    kind: str
    join: str
    upstream: tuple[str, ...]
    successors: tuple[str, ...]
    lanes: int
    roles: tuple[tuple[str, int], ...]
    instances: int


@dataclass(frozen=True, slots=True)
class Description:
    """A graph as its author should see it.

    `processes` counts a local run: two per instance, frontends, managers, etcd, the supervisor, two warmed
    ones. `memory_bytes` is what the house itself takes with small requests (models are not in it: nobody
    knows them here); `memory_bytes_max` adds what open requests and kept replies may hold. `notes` are things
    that are allowed and may surprise.
    """

    name: str
    mode: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operators: tuple[OperatorDescription, ...]
    frontends: int
    shards: int
    managers: int
    processes: int
    memory_bytes: int
    memory_bytes_max: int
    notes: tuple[str, ...]


def describe(graph: Graph, more_notes: Iterable[str] = ()) -> Description:
    """Meaning of `graph`; `more_notes` come last."""
    data = graph.data
    operators = tuple(_describe(op) for op in data.operators)
    instances = sum(op.instances for op in operators)
    memory = (
        frontend_memory_bytes * data.frontend.replicas
        + manager_memory_bytes * data.managers
        + etcd_memory_bytes
        + supervisor_memory_bytes
        + warmed_memory_bytes
        + proxy_memory_bytes * instances
    )
    return Description(
        name=data.name,
        mode=data.mode.value,
        inputs=tuple(
            f"{item.name} {item.datatype} {list(item.shape)}{' optional' if item.optional else ''}"
            for item in data.inputs
        ),
        outputs=tuple(
            f"{item.name} from {', else '.join('.'.join(source) for source in item.sources)}"
            for item in data.outputs
        ),
        operators=operators,
        frontends=data.frontend.replicas,
        shards=data.frontend.shards,
        managers=data.managers,
        processes=2 * instances + data.frontend.replicas + data.managers + own_processes,
        memory_bytes=memory,
        memory_bytes_max=memory + held_bytes(data.frontend) * data.frontend.replicas,
        notes=(*_notes(graph), *more_notes),
    )


def _describe(op: Operator) -> OperatorDescription:
    wanted = [("primary", 1), ("backup", op.backups)] if op.stateful else [("active", op.slots)]
    roles = tuple((role, count) for role, count in (*wanted, ("standby", op.hot_standbys)) if count)
    return OperatorDescription(
        name=op.name,
        kind="stateful" if op.stateful else "stateless",
        join=op.join.value,
        upstream=tuple(called(edge.source) for edge in op.in_edges),
        successors=tuple("reply" if name == FRONTEND else name for name in op.successors),
        lanes=len(op.lanes),
        roles=roles,
        instances=sum(count for _, count in roles),
    )


def mode_warning(mode: Mode) -> str | None:
    """The warning of a mode that protects less than NonStop, or is a baseline; None for NonStop."""
    policy = ModePolicy.of(mode)
    if not policy.replicates:
        return f"mode {mode.value} protects nothing: what a failed instance held is lost"
    baseline = f"mode {mode.value} is a baseline for measurements"
    if policy.replays:
        return f"{baseline}: it promises one answer and no loss for deterministic models only"
    if policy.holds_outputs or policy.stops_to_copy:
        return f"{baseline}: no user wants it"
    return None


def _notes(graph: Graph) -> list[str]:
    data = graph.data
    notes = []
    optional = {item.name for item in data.inputs if item.optional}
    used: set[str] = set()
    policy = ModePolicy.of(data.mode)
    if (warning := mode_warning(data.mode)) is not None:
        notes.append(warning)
    if data.frontend.replicas == 1:
        notes.append(
            "one frontend: accepted requests and kept replies are lost with it; Redundant stays False"
        )
    if data.managers == 1:
        notes.append("one manager: no failover while it is away")
    for op in data.operators:
        if op.stateful and op.backups == 0 and policy.replicates and not policy.replays:
            notes.append(
                f'"{op.name}" has no backup: its state is lost with its primary; Redundant stays False'
            )
        if not op.stateful and op.slots == 1 and not op.hot_standbys:
            notes.append(
                f'"{op.name}" has one instance and no standby: after a failure its requests wait until a '
                "new one is loaded"
            )
        for edge in op.in_edges:
            if edge.source != FRONTEND:
                continue
            used |= {item.source for item in edge.inputs}
            strict = [item.source for item in edge.inputs if item.source in optional and not item.optional]
            if strict and op.join is Join.COMBINE:
                notes.append(
                    f'"{op.name}" is skipped for requests without {" or ".join(strict)}; "optional: true" '
                    "on its input would run it"
                )
        if op.feedback:
            used |= {target for target, _ in op.feedback.inputs}
    notes += [
        f'tensor "{item.name}" of the request is used by no operator'
        for item in data.inputs
        if item.name not in used
    ]
    return notes
