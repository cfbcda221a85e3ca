"""What a look has to do: which graph shall run where, and which shapes are settled first. Pure."""

from dataclasses import dataclass, replace

from hams_graph import InvalidGraph
from hams_operator.controller.observation import Observation
from hams_operator.controller.running import incarnation_of
from hams_operator.controller.successions import given_up
from hams_operator.plan.change import Decision, current, decide
from hams_operator.plan.status import Missing
from hams_protocol.graph import Graph
from hams_protocol.succession.decision import refused
from hams_protocol.succession.records import Phase


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """`decision`: what shall run; None: nothing is changed, and `problem` says why. `unread`: that is because
    what runs is not known. `gives_up`: uids of a predecessor and of the incarnation that waits to take its
    states over and shall not: that is settled in etcd before anything of it is taken away. `given_up`:
    incarnations of which it is settled."""

    decision: Decision | None
    problem: Missing | None = None
    unread: bool = False
    gives_up: tuple[tuple[str, str], ...] = ()
    given_up: frozenset[int] = frozenset()


def plan_of(seen: Observation, read: Graph | InvalidGraph) -> GraphPlan:
    """`read`: the graph that the resource asks for, or what is wrong with it."""
    if seen.running.unread:
        return _unread(seen.running.unread)
    over = {
        number
        for number, known in seen.in_etcd.items()
        if known.succession is not None and known.succession.phase is Phase.DONE
    }
    gone = frozenset(
        number
        for number in seen.in_etcd
        if given_up(number, seen.in_etcd, lambda uid: incarnation_of(uid, seen.place))
    )
    begun = {number: graph for number, graph in seen.running.graphs.items() if number not in over | gone}
    if seen.running.graphs and not begun:
        return _unread(
            "another shape has taken over, and neither its ConfigMap nor etcd holds its graph: nothing is "
            "changed"
        )
    # Where nothing of its predecessor is left, it has served, whatever an etcd restored from a backup
    # says: its states are all there is.
    unborn = {
        number: (follows.uid, graph.data.uid)
        for number, graph in begun.items()
        if number in seen.in_etcd
        and (follows := seen.in_etcd[number].follows)
        and not follows.done
        and incarnation_of(follows.uid, seen.place) in begun
    }
    if isinstance(read, Graph):
        decision = _decided(seen, read, begun, frozenset(unborn))
    else:  # the webhook is off, or was
        problem = "Invalid", "\n".join(map(str, read.problems))
        if not begun:
            return GraphPlan(None, problem, given_up=gone)
        decision = _as_before(
            seen, begun, current(begun, seen.running.whole), f"{problem[1]}\nUntil then it runs as before"
        )
    gives_up = tuple(uids for number, uids in unborn.items() if number != decision.place.incarnation)
    return GraphPlan(decision, gives_up=gives_up, given_up=gone)


def _unread(why: str) -> GraphPlan:
    return GraphPlan(None, ("SpecUnreadable", why), unread=True)


def _as_before(seen: Observation, begun: dict[int, Graph], incarnation: int, why: str) -> Decision:
    return Decision(begun[incarnation], replace(seen.place, incarnation=incarnation), why)


def _decided(seen: Observation, read: Graph, begun: dict[int, Graph], unborn: frozenset[int]) -> Decision:
    whole = seen.running.whole
    decision = decide(read.data, seen.place, begun, seen.annotations, whole, seen.newest_used, unborn)
    if not begun or decision.place.incarnation in begun:
        return decision
    incarnation, why = current(begun, whole), ""
    if seen.etcd_away:
        why = f"another shape begins when etcd is there: {seen.etcd_away}"
    elif decision.inherited:
        incarnation = decision.follows
        record = seen.known(replace(seen.place, incarnation=incarnation)).succession
        why = refused(record, seen.generation)
    return _as_before(seen, begun, incarnation, f"{why}. Until then it runs as before") if why else decision
