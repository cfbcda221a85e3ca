"""Whether a graph that runs is whole, and what it lacks.

This is the one answer behind `hams status`, the conditions of a ServiceGraph, the wait of `hams up` and the
change to another shape. It is pure: the graph, the topology that etcd holds and what is seen of the instances
go in. The places that show it differ in how they see instances, and in what they add of their own.

Invariant: a graph lacks nothing of `READY` exactly if every state has a primary that serves it, and every
slot an owner that serves it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from hams_protocol.graph import Graph, Operator
from hams_protocol.ids import InstanceId
from hams_protocol.modes import ModePolicy, is_run_again
from hams_protocol.topology import Topology

READY = "Ready"
"""The condition that a graph answers."""
REDUNDANT = "Redundant"
"""The condition that the next failure loses nothing."""

STATE_LOST = "StateLost"
"""Reason of Ready=False: no replica of a state is left."""
DEGRADED = "Degraded"
"""Reason of Redundant=False: a copy, a standby or an active instance is missing."""
NOT_ASKED_FOR = "NotAskedFor"
"""Reason of Redundant=False when the graph asks for no copies: it will not become True."""


@dataclass(frozen=True, slots=True)
class Lack:
    """One thing that is missing. `condition`: which one it makes False; `of`: the operator or shard that it
    concerns, "" if it is the graph as a whole; `reason`: one word."""

    condition: str
    of: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class InstancesSeen:
    """What is seen of a graph's instances.

    `serves(instance, of)`: whether it serves an operator or shard, as its primary or the owner of a slot;
    `takes_part(instance)`: whether a member of a replica set does its part there, as primary or as backup;
    `warm(of)`: how many standbys of an operator could take a role at once; `etcd_away`: why etcd cannot be
    read now, or "".
    """

    serves: Callable[[InstanceId, str], bool]
    takes_part: Callable[[InstanceId], bool]
    warm: Callable[[str], int]
    etcd_away: str = ""


def wholeness(graph: Graph, topology: Topology, serving: InstancesSeen) -> list[Lack]:
    """All that a graph lacks: first what keeps it from answering, then what the next failure may cost."""
    return [*unserved(graph, topology, serving.serves), *_unprotected(graph, topology, serving)]


def why_not(condition: str, lacks: Iterable[Lack]) -> tuple[str, str] | None:
    """Reason and message of the first lack that makes a condition False; None: the condition is True."""
    return next(((lack.reason, lack.message) for lack in lacks if lack.condition == condition), None)


def unserved(graph: Graph, topology: Topology, serves: Callable[[InstanceId, str], bool]) -> Iterator[Lack]:
    """What keeps a graph from answering: states and shards first, then slots."""
    for name in copies_wanted(graph):
        replica_set = topology.find(name)
        if replica_set.lost and topology.untouched:
            begins = "it begins again by itself, as no request has come yet"
            yield Lack(READY, name, "NoPrimary", f"none of the instances of {name} is left; {begins}")
        elif replica_set.lost and is_run_again(graph, name):
            again = "what came after its newest checkpoint is run again"
            yield Lack(READY, name, "NoPrimary", f"no instance of {name} has its state; {again}")
        elif replica_set.lost:
            decide = (
                "it begins again" if replica_set.may_restart else f"to begin it again: hams restart {name}"
            )
            yield Lack(READY, name, STATE_LOST, f"no replica of the state of {name} is left; {decide}")
        elif replica_set.primary is None:
            yield Lack(READY, name, "NoPrimary", f"{name} has no primary yet")
        elif not serves(replica_set.primary, name):
            message = f"{replica_set.primary}, primary of {name}, does not serve it"
            yield Lack(READY, name, "NotServing", message)
    for op in graph.data.operators:
        if op.stateful:
            continue
        slots = topology.table(op.name).slots
        if not slots:
            yield Lack(READY, op.name, "NoActive", f"{op.name} has no active instance yet")
        for number, slot in enumerate(slots):
            if slot.instance is None or not serves(slot.instance, op.name):
                yield Lack(READY, op.name, "NotServing", f"slot {number} of {op.name} is not served")


def _unprotected(graph: Graph, topology: Topology, serving: InstancesSeen) -> Iterator[Lack]:
    """What the next failure may cost, and what the graph asks for no copies of."""
    if serving.etcd_away:
        yield Lack(REDUNDANT, "", "EtcdAway", f"nothing can be moved: {serving.etcd_away}")
    if ModePolicy.of(graph.data.mode).replicates:  # else no copies are wanted, and none can be missing
        for op in graph.data.operators:
            if few := too_few_copies(graph, topology, op.name) or _too_few_owners(op, topology, serving):
                yield Lack(REDUNDANT, op.name, DEGRADED, few)
            # Counting the warm ones costs a look at every instance, and most operators ask for none.
            if op.hot_standbys and (warm := serving.warm(op.name)) < op.hot_standbys:
                message = f"{op.name} has {warm} of {op.hot_standbys} standbys warm"
                yield Lack(REDUNDANT, op.name, DEGRADED, message)
        for shard in graph.shard_names:
            if few := too_few_copies(graph, topology, shard):
                yield Lack(REDUNDANT, shard, DEGRADED, few)
        # Last, as the sets above name what is missing better: a backup counts as in sync until it is
        # replaced.
        for replica_set in topology.sets:
            for member in replica_set.members:
                if not serving.takes_part(member):
                    yield Lack(REDUNDANT, replica_set.name, DEGRADED, f"{member} does not serve its role")
    if wish := not_asked_for(graph):
        yield Lack(REDUNDANT, "", NOT_ASKED_FOR, wish)


def _too_few_owners(op: Operator, topology: Topology, serving: InstancesSeen) -> str:
    """Why the next failure would stop more of a stateless operator than it should; "" if it would not."""
    if op.stateful:
        return ""
    owners = [slot.instance for slot in topology.table(op.name).slots]
    there = {owner for owner in owners if owner is not None and serving.serves(owner, op.name)}
    if not there:
        return f"{op.name} has no active instance that serves"
    # After a failure one instance may have several slots, until another one is there: its loss would stop
    # them all.
    if len(set(owners)) < min(op.slots, len(owners)):
        return f"an instance of {op.name} has more than one slot"
    return f"a slot of {op.name} is not served" if len(there) < len(set(owners)) else ""


def copies_wanted(graph: Graph) -> dict[str, int]:
    """How many copies each state and each shard is to have beside its primary's."""
    wanted = {op.name: op.backups for op in graph.data.operators if op.stateful}
    return wanted | dict.fromkeys(graph.shard_names, graph.data.frontend.replicas - 1)


def instances_wanted(op: Operator) -> int:
    """How many instances an operator is to have: primary and backups, or active ones; and standbys."""
    return (1 + op.backups if op.stateful else op.slots) + op.hot_standbys


def too_few_copies(graph: Graph, topology: Topology, name: str) -> str:
    """Why a state or shard has fewer copies in sync than it should, and who keeps it meanwhile; "" if it has
    enough."""
    replica_set, wanted = topology.find(name), copies_wanted(graph).get(name, 0)
    if len(replica_set.in_sync) >= wanted:
        return ""
    whose, noun = (name, "backups") if name in graph.operators else (f"shard {name}", "copies")
    keeper = f"; {replica_set.keepers[0]} keeps a copy of the state meanwhile" if replica_set.keepers else ""
    return copies_in_sync(whose, len(replica_set.in_sync), wanted, noun) + keeper


def copies_in_sync(whose: str, count: int, wanted: int, noun: str = "backups") -> str:
    """The sentence for a state or shard, whether that is enough or not."""
    return f"{whose} has {count} of {wanted} {noun} in sync"


def not_asked_for(graph: Graph) -> str:
    """What of a graph has no copy by its own wish; "" if everything has one."""
    data = graph.data
    policy = ModePolicy.of(data.mode)
    if not policy.replicates:
        return f"mode {data.mode.value} keeps no replicas"
    for op in data.operators:
        if op.stateful and op.backups == 0 and not policy.replays:
            return f"{op.name} asks for no backups"
    alone = data.frontend.replicas == 1
    return "frontend.replicas is 1: accepted requests and kept replies have no copy" if alone else ""
