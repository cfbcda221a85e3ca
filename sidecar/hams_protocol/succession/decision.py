"""When one shape of a graph may take the next step towards another one that keeps its states: the
controller's part.

What etcd holds of both goes in, the next step comes out. The controller writes it by compare-and-swap, so a
controller that judges by what is old changes nothing. It remembers nothing: where it dies, another one goes
on from the record. Nothing is asked of the predecessor before all of the successor is there and waits for it
alone.

Never: `done` while anything of the successor is missing, or was taken over at another cut than the present
one.
"""

import enum
from collections.abc import Callable, Mapping

from hams_protocol.frozen import frozen
from hams_protocol.graph import FRONTEND, Graph
from hams_protocol.ids import InstanceId
from hams_protocol.recovery.machine import MANAGER
from hams_protocol.succession.records import Cut, Phase, Quiet, Succession, TakenOver, all_hold, cut_of
from hams_protocol.topology import Topology
from hams_protocol.wholeness import copies_wanted, instances_wanted, too_few_copies, unserved

successions_tried_max = 3
"""A change of a graph's shape that was begun and taken back is tried so often; then the resource has to be
changed."""


@frozen
class Incarnation:
    """One incarnation as etcd has it. `registered`, `waiting`: of which operator (FRONTEND, MANAGER) each
    instance is. `serves`: whether an instance serves its role."""

    uid: str
    graph: Graph
    topology: Topology
    registered: Mapping[InstanceId, str]
    quiet: Mapping[InstanceId, Quiet]
    waiting: Mapping[InstanceId, str]
    taken: Mapping[InstanceId, TakenOver]
    serves: Callable[[InstanceId], bool]


@frozen
class Step:
    """`phase`: the one to be entered, None: not yet, `why`. Of a step back, `hopeless`: another attempt would
    end as this one."""

    phase: Phase | None
    why: str = ""
    hopeless: bool = False


class Guard(enum.Enum):
    """What must be as it was judged when a step is written, else nothing is."""

    RECORD = "the predecessor's record"
    NOT_ENDED = "the predecessor has not ended"
    OLD_TOPOLOGY = "the predecessor's topology"
    NEW_TOPOLOGY = "the successor's topology"
    FOLLOWS = "the successor's record"


def guards_of(phase: Phase) -> tuple[Guard, ...]:
    """`done` counts only if both topologies and the records are those that were judged. It writes `ended`
    besides, without which no topology of the predecessor is changed: so its owners stay those that have
    closed. Every other step is undone by `back`."""
    if phase is Phase.DONE:
        return Guard.RECORD, Guard.NOT_ENDED, Guard.OLD_TOPOLOGY, Guard.NEW_TOPOLOGY, Guard.FOLLOWS
    return (Guard.RECORD,)


def next_step(
    old: Incarnation, new: Incarnation, inherited: tuple[str, ...], record: Succession | None
) -> Step:
    """`inherited`: operators whose states are handed over; `record`: the predecessor's. One of an earlier
    attempt that was taken back counts as none."""
    if record is None or (record.phase is Phase.BACK and record.to != new.uid):
        why = why_not_there(new, inherited) or why_not_able(old, inherited)
        return Step(None if why else Phase.HOLD, why)
    if record.to != new.uid:
        return Step(None, f"{record.to} has not given up yet")
    if record.phase is Phase.HOLD:
        frontends = [name for name, of in old.registered.items() if of == FRONTEND]
        if all_hold(frontends, old.quiet, new.uid):
            return Step(Phase.CLOSE)
        return Step(None, "open requests are finished")
    if record.phase is not Phase.CLOSE:
        return Step(None)
    refused = [item.refused for item in new.taken.values() if item.refused]
    if refused:
        return Step(Phase.BACK, refused[0], hopeless=True)
    cut = cut_of(old.graph.shard_names, old.topology, old.quiet, new.uid)
    if cut is None:
        return Step(None, "open requests are finished")
    if taken_at_another(new, cut):
        return Step(Phase.BACK, "parts of the states were taken over at different times")
    why = why_not_complete(new, inherited, cut)
    return Step(None if why else Phase.DONE, why)


def record_of(step: Step, before: Succession | None, to: str, asked: int) -> Succession:
    """The record that enters a step's phase. `asked`: the generation of the resource that asks for it."""
    assert step.phase is not None, "a step"
    again = before is not None and before.asked == asked
    tries = 1 if before is None or not again else before.tries + (step.phase is Phase.HOLD)
    return Succession(to, step.phase, tries, asked, step.why, step.hopeless)


def record_of_giving_up(before: Succession | None, to: str, why: str) -> Succession | None:
    """The record by which this successor shall never serve, whoever asks; None: it says so already."""
    if before is not None and before.to == to and before.phase is Phase.BACK:
        return None
    if before is None or before.to != to:
        return Succession(to, Phase.BACK, 0, 0, why)
    return Succession(to, Phase.BACK, before.tries, before.asked, why)


def refused(record: Succession | None, asked: int) -> str:
    """Why what this generation of the resource asks for is not tried once more; "": it may be."""
    if record is None or record.phase is not Phase.BACK or record.asked != asked:
        return ""
    if record.hopeless:
        return f"the states cannot be handed over: {record.why}"
    if record.tries >= successions_tried_max:
        return f"the states were not handed over, {record.tries} times: {record.why}"
    return ""


def taken_at_another(new: Incarnation, cut: Cut) -> bool:
    """Whether anything of the successor was taken over before something else was admitted."""
    return any(item.cut not in ((), cut) for item in new.taken.values())


def why_not_there(new: Incarnation, inherited: tuple[str, ...]) -> str:
    """What of the successor is missing before its predecessor is asked to stop; "": nothing."""
    if MANAGER not in new.registered.values():
        return "no manager is there"
    waiting = list(new.waiting.values())
    operators = new.graph.data.operators
    wanted = {op.name: instances_wanted(op) for op in operators if op.name in inherited}
    for name, instances in wanted.items():
        if waiting.count(name) < instances:
            return f"{waiting.count(name)} of {instances} instances of {name} are there"
    fresh = [name for name in new.graph.operators if name not in wanted]
    for lack in unserved(new.graph, new.topology, lambda instance, _: new.serves(instance)):
        if lack.of in fresh:
            return lack.message
    there, frontends = waiting.count(FRONTEND), new.graph.data.frontend.replicas
    return "" if there >= frontends else f"{there} of {frontends} frontends are there"


def why_not_able(old: Incarnation, inherited: tuple[str, ...]) -> str:
    """What of the predecessor is missing to hand anything over; "": nothing."""
    for lack in unserved(old.graph, old.topology, lambda instance, _: instance in old.registered):
        if lack.of in inherited or lack.of in old.graph.shard_names:
            return f"in the shape before, {lack.message}"
    return ""


def why_not_complete(new: Incarnation, inherited: tuple[str, ...], cut: Cut) -> str:
    """What of the successor is missing before it may take over: it holds everything, as often as it was asked
    for."""
    sets = copies_wanted(new.graph)

    def serves(instance: InstanceId, of: str) -> bool:
        return instance in new.registered if of in sets else new.serves(instance)

    for lack in unserved(new.graph, new.topology, serves):
        return lack.message
    for name in sets:
        if why := _why_not_taken(new, name, inherited, cut):
            return why
    frontends = [name for name, of in new.registered.items() if of == FRONTEND]
    late = [name for name in frontends if name not in new.taken or new.taken[name].cut != cut]
    if late or not frontends:
        return f"{late[0]} takes replies over" if late else "no frontend is there"
    return ""


def _why_not_taken(new: Incarnation, name: str, inherited: tuple[str, ...], cut: Cut) -> str:
    """What one state or shard of the successor lacks; "": nothing."""
    replica_set = new.topology.find(name)
    if replica_set.restarted_in:
        return f"the state of {name} was lost and has begun again"
    if few := too_few_copies(new.graph, new.topology, name):
        return few
    gone = [member for member in replica_set.members if member not in new.registered]
    if gone:
        return f"{gone[0]} is not registered"
    if name not in inherited:
        return ""
    loaded = [instance for instance, item in new.taken.items() if item.loaded]
    if replica_set.primary not in loaded:
        return f"the model of {name} loads its state"
    if not any(item.of == name and item.cut == cut for item in new.taken.values()):
        return f"the state of {name} has not been taken over"
    return ""
