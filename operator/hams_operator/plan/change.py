"""Whether a running graph can become another one as it runs.

How models run, how many instances there are, and bounds may change: pods are replaced one by one and states
are handed on. Another shape (operators, edges, tensors) is another graph: its processes cannot talk to those
of the one before, so it starts beside it and takes over when it serves. Operators that keep state in both,
under one name, begin with the states they had (ADR 0018). The state of an operator that is removed, renamed
or made stateless is lost, so that is refused unless an annotation allows it.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from hams_operator.plan.names import ALLOW_STATE_LOSS, RESTART_LOST, GraphRef
from hams_protocol.graph import Graph, GraphData, Operator
from hams_protocol.modes import ModePolicy
from hams_protocol.topology import ReplicaSet, Topology


@dataclass(frozen=True, slots=True)
class Decision:
    """Which graph shall run where. `refused`: why that is not the one asked for ("": it is). `inherited`: of
    a new one, the operators that go on with the states of the incarnation `follows`."""

    graph: Graph
    place: GraphRef
    refused: str = ""
    follows: int = 0
    inherited: tuple[str, ...] = ()


def decide(
    asked: GraphData,
    place: GraphRef,
    running: Mapping[int, Graph],
    annotations: Mapping[str, str],
    whole: Collection[int] = (),
    used: Callable[[], int] = int,
    unborn: Collection[int] = (),
) -> Decision:
    """`asked` as compiled (its uid does not matter); `running`: the graphs that run now, by incarnation.
    `whole`: those of which every Deployment is there; `used`: the newest incarnation that has ever run, if
    that is to be known; `unborn`: those that wait to take states over, and have served nobody.

    While another shape comes up, the one before is whole, and asking for that one again is the way back to it
    and to its states. It gives up those of the newer one, if that was whole too and may have served, so it
    takes the same annotation.
    """
    if not running:
        return Decision(_at(asked, place), place)
    newest = max(running)
    allowed = annotations.get(ALLOW_STATE_LOSS) == "true"
    for incarnation in (newest, *sorted(set(running) & set(whole) - {newest}, reverse=True)):
        if not differing(running[incarnation].data, asked) and (
            incarnation == newest
            or newest not in whole
            or newest in unborn
            or allowed
            or not _states(running[newest])
        ):
            there = replace(place, incarnation=incarnation)
            return Decision(_at(asked, there), there)
    old_place = replace(
        place,
        incarnation=current(
            {number: graph for number, graph in running.items() if number not in unborn} or running, whole
        ),
    )
    old = running[old_place.incarnation]
    lost = lost_states(old.data, asked)
    if lost and not allowed:
        return Decision(
            old,
            old_place,
            f"{'; '.join(differing(old.data, asked))}: this would lose the state of {', '.join(lost)}. "
            "Delete the graph and create it again, "
            f'or annotate it with {ALLOW_STATE_LOSS}: "true". Until then it runs as before',
        )
    fresh = replace(place, incarnation=max(newest, used()) + 1)
    return Decision(
        _at(asked, fresh), fresh, follows=old_place.incarnation, inherited=inherited_states(old.data, asked)
    )


def current(running: Mapping[int, Graph], whole: Collection[int]) -> int:
    """The incarnation that goes on where nothing else is decided: the newest; not one that is half made, or
    half gone, beside a whole one."""
    newest = max(running)
    return newest if newest in whole else max(set(running) & set(whole), default=newest)


def _states(graph: Graph) -> list[str]:
    return [op.name for op in graph.data.operators if op.stateful]


def inherited_states(old: GraphData, new: GraphData) -> tuple[str, ...]:
    """Operators whose states another shape goes on with: those that keep one in both, under the same name. In
    bare-metal mode nobody has a copy."""
    if not (ModePolicy.of(old.mode).replicates and ModePolicy.of(new.mode).replicates):
        return ()
    after = {op.name for op in new.operators if op.stateful}
    return tuple(op.name for op in old.operators if op.stateful and op.name in after)


def lost_states(old: GraphData, new: GraphData) -> tuple[str, ...]:
    """Operators whose states another shape does not go on with."""
    inherited = inherited_states(old, new)
    return tuple(op.name for op in old.operators if op.stateful and op.name not in inherited)


def restarts(annotations: Mapping[str, str], topology: Topology, place: GraphRef) -> tuple[str, ...]:
    """Lost states of which a person has said that they shall begin again."""
    asked = {item.strip() for item in annotations.get(RESTART_LOST, "").split(",")}
    return tuple(
        item.name
        for item in topology.sets
        if item.lost and not item.may_restart and loss_of(item, place) in asked
    )


def loss_of(item: ReplicaSet, place: GraphRef) -> str:
    """How a person names this loss: `learner@3`, of a later shape `learner@3-r1`. Each shape counts its
    epochs anew, and what was said of one loss may stand in the annotation for ever."""
    return f"{item.name}@{item.epoch}" + (f"-r{place.incarnation}" if place.incarnation else "")


def _at(data: GraphData, place: GraphRef) -> Graph:
    return Graph(replace(data, uid=place.graph_uid()))


def differing(old: GraphData, new: GraphData) -> list[str]:
    """What makes `new` another shape than `old`, in words; nothing if it is the same."""
    names = []
    if old.mode != new.mode:
        names.append(f"mode {old.mode.value} becomes {new.mode.value}")
    if old.frontend.shards != new.frontend.shards:
        names.append(f"frontend.shards {old.frontend.shards} becomes {new.frontend.shards}")
    if old.inputs != new.inputs:
        names.append("the tensors of a request change")
    if old.outputs != new.outputs:
        names.append("the tensors of the reply change")
    before, after = ({op.name: op for op in data.operators} for data in (old, new))
    names += [f"operator {name} is removed" for name in before if name not in after]
    names += [f"operator {name} is added" for name in after if name not in before]
    for name, op in before.items():
        if name in after and _shape(op) != _shape(after[name]):
            names.append(f"operator {name} changes its {', '.join(_fields(op, after[name]))}")
    return names


_SHAPE = {
    "join": "join",
    "in_edges": "inputs",
    "successors": "successors",
    "lanes": "lanes",
    "outputs": "outputs",
    "stateful": "kind",
    "feedback": "feedback",
}


def _shape(op: Operator) -> tuple[object, ...]:
    return tuple(getattr(op, name) for name in _SHAPE)


def _fields(old: Operator, new: Operator) -> list[str]:
    return [said for name, said in _SHAPE.items() if getattr(old, name) != getattr(new, name)]
