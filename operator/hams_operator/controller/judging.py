"""When one shape of a graph may take the next step towards another one that keeps its states (ADR 0018).

Pure: what etcd holds of both goes in, the next step comes out. The controller takes it by compare-and-swap,
so whoever judges by what is old changes nothing. Nothing is asked of the predecessor before all of the
successor is there and waits for it alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hams_graph.wholeness import copies_wanted, instances_wanted, too_few_copies, unserved
from hams_protocol.graph import FRONTEND, Graph
from hams_protocol.ids import InstanceId
from hams_protocol.topology import Topology
from hams_wire.shell import MANAGER
from hams_wire.succession import Cut, Phase, Quiet, Succession, TakenOver, all_hold, cut_of


@dataclass(frozen=True, slots=True)
class IncarnationInEtcd:
    """One incarnation as etcd has it. `registered`, `waiting`: whose each instance is. `serves`: whether an
    instance serves its role."""

    uid: str
    graph: Graph
    topology: Topology
    registered: Mapping[InstanceId, str]
    quiet: Mapping[InstanceId, Quiet] = field(default_factory=dict)
    waiting: Mapping[InstanceId, str] = field(default_factory=dict)
    taken: Mapping[InstanceId, TakenOver] = field(default_factory=dict)
    serves: Callable[[InstanceId], bool] = bool


@dataclass(frozen=True, slots=True)
class Step:
    """`phase`: the one to be entered, None: not yet, `why`. Of a step back, `hopeless`: another attempt would
    end as this one."""

    phase: Phase | None
    why: str = ""
    hopeless: bool = False


def next_step(
    old: IncarnationInEtcd, new: IncarnationInEtcd, kept: tuple[str, ...], record: Succession | None
) -> Step:
    """`record`: the predecessor's. One of an earlier attempt that was taken back counts as none."""
    if record is None or (record.phase is Phase.BACK and record.to != new.uid):
        why = why_not_there(new, kept) or why_not_able(old, kept)
        return Step(None if why else Phase.HOLD, why)
    if record.to != new.uid:
        return Step(None, f"{record.to} has not given up yet")
    if record.phase is Phase.HOLD:
        frontends = [name for name, of in old.registered.items() if of == FRONTEND]
        return (
            Step(Phase.CLOSE)
            if all_hold(frontends, old.quiet, new.uid)
            else Step(None, "open requests are finished")
        )
    if record.phase is not Phase.CLOSE:
        return Step(None)
    refused = [item.refused for item in new.taken.values() if item.refused]
    if refused:
        return Step(Phase.BACK, refused[0], hopeless=True)
    cut = cut_of(old.graph.shard_names, old.topology, old.quiet, new.uid)
    if cut is None:
        return Step(None, "open requests are finished")
    if any(item.cut not in ((), cut) for item in new.taken.values()):
        return Step(Phase.BACK, "parts of the states were taken over at different times")
    why = why_not_complete(new, kept, cut)
    return Step(None if why else Phase.DONE, why)


def why_not_there(new: IncarnationInEtcd, kept: tuple[str, ...]) -> str:
    """What of the successor is missing before its predecessor is asked to stop; "": nothing."""
    if MANAGER not in new.registered.values():
        return "no manager is there"
    waiting = list(new.waiting.values())
    operators = new.graph.data.operators
    wanted = {op.name: instances_wanted(op) for op in operators if op.name in kept}
    for name, instances in wanted.items():
        if waiting.count(name) < instances:
            return f"{waiting.count(name)} of {instances} instances of {name} are there"
    fresh = new.graph.operators.keys() - wanted.keys()
    for lack in unserved(new.graph, new.topology, lambda instance, _: new.serves(instance)):
        if lack.of in fresh:
            return lack.message
    there, frontends = waiting.count(FRONTEND), new.graph.data.frontend.replicas
    return "" if there >= frontends else f"{there} of {frontends} frontends are there"


def why_not_able(old: IncarnationInEtcd, kept: tuple[str, ...]) -> str:
    """What of the predecessor is missing to hand anything over; "": nothing."""
    for lack in unserved(old.graph, old.topology, lambda instance, _: instance in old.registered):
        if lack.of in (*kept, *old.graph.shard_names):
            return f"in the shape before, {lack.message}"
    return ""


def why_not_complete(new: IncarnationInEtcd, kept: tuple[str, ...], cut: Cut) -> str:
    """What of the successor is missing before it may take over: it holds everything, as often as it was asked
    for."""
    sets = copies_wanted(new.graph)

    def serves(instance: InstanceId, of: str) -> bool:
        return instance in new.registered if of in sets else new.serves(instance)

    for lack in unserved(new.graph, new.topology, serves):
        return lack.message
    loaded = [instance for instance, item in new.taken.items() if item.loaded]
    for name in sets:
        replica_set = new.topology.find(name)
        if replica_set.restarted_in:
            return f"the state of {name} was lost and has begun again"
        if few := too_few_copies(new.graph, new.topology, name):
            return few
        gone = [member for member in replica_set.members if member not in new.registered]
        if gone:
            return f"{gone[0]} is not registered"
        if name in kept and replica_set.primary not in loaded:
            return f"the model of {name} loads its state"
        if name in kept and not any(item.of == name and item.cut == cut for item in new.taken.values()):
            return f"the state of {name} has not been taken over"
    frontends = [name for name, of in new.registered.items() if of == FRONTEND]
    late = [name for name in frontends if name not in new.taken or new.taken[name].cut != cut]
    if late or not frontends:
        return f"{late[0]} takes replies over" if late else "no frontend is there"
    return ""
