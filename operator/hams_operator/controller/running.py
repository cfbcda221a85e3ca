"""What of a graph has been begun: its compiled graphs by incarnation, each out of its ConfigMap, or out of
etcd where somebody took that away.

A state lives as long as its incarnation is known, so what is in doubt is never taken for a graph that was not
begun: where processes run whose graph cannot be read, that is said, and nothing may be changed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from hams_operator.plan.difference import is_ours
from hams_operator.plan.names import FRONTEND_ROLE, MANAGER_ROLE, SPEC_FILE, GraphRef, Json, incarnation_in
from hams_protocol.graph import Graph
from hams_wire.spec import MalformedSpec, decode_spec

Specs = Mapping[str, tuple[bytes, bool]]
"""What etcd holds below each uid of a graph: the compiled graph (b"": none), and whether managers have
written a topology there."""


@dataclass(frozen=True, slots=True)
class Running:
    """`graphs`: by incarnation. `whole`: those of which every Deployment is there, and is not going.
    `unread`: why the newest one that has run is not among them, or ""."""

    graphs: dict[int, Graph] = field(default_factory=dict)
    unread: str = ""
    whole: frozenset[int] = frozenset()


def running(place: GraphRef, objects: Iterable[Json], specs: Callable[[], Specs]) -> Running:
    """`place`: of any incarnation. `objects`: all that carry the graph's label. `specs`: asked only where a
    ConfigMap is missing.

    A compiled graph is in etcd before anything runs by it. So one that is nowhere else counts only if its
    Deployments are there, or if nothing of the graph is left in Kubernetes and it has run.
    """
    mine = [item for item in objects if is_ours(item, place.owner_uid)]
    graphs: dict[int, Graph] = {}
    why: dict[int, str] = {}
    for item in mine:
        incarnation = _incarnation(item)
        if (
            item["kind"] == "ConfigMap"
            and item["metadata"]["name"] == replace(place, incarnation=incarnation).config_map
        ):
            _read(graphs, why, place, incarnation, (item.get("data") or {}).get(SPEC_FILE, "").encode())
    deployed = {_incarnation(item) for item in mine if item["kind"] == "Deployment"}
    missing = deployed - set(graphs)
    if missing or not (graphs or deployed):
        in_etcd = {incarnation_of(uid, place): value for uid, value in specs().items()}
        if not (graphs or deployed):
            missing = {incarnation for incarnation, (_, has_run) in in_etcd.items() if has_run}
        for incarnation in missing:
            _read(graphs, why, place, incarnation, in_etcd.get(incarnation, (b"", False))[0])
    newest = max(missing - set(graphs), default=-1)
    if newest <= max(graphs, default=-1):
        return Running(graphs, whole=_whole(place, graphs, mine))
    name = replace(place, incarnation=newest).config_map
    return Running(
        graphs,
        f"what runs is not known, so nothing is changed: neither ConfigMap {name} nor etcd holds its graph "
        f"as this version reads it ({why[newest]})",
    )


def _whole(place: GraphRef, graphs: Mapping[int, Graph], mine: Iterable[Json]) -> frozenset[int]:
    there = {
        item["metadata"]["name"]
        for item in mine
        if item["kind"] == "Deployment" and not item["metadata"].get("deletionTimestamp")
    }
    parts = {number: (MANAGER_ROLE, FRONTEND_ROLE, *graph.operators) for number, graph in graphs.items()}
    return frozenset(
        number
        for number in graphs
        if {replace(place, incarnation=number).workload(part) for part in parts[number]} <= there
    )


def _read(
    graphs: dict[int, Graph], why: dict[int, str], place: GraphRef, incarnation: int, spec: bytes
) -> None:
    """Put the graph into `found`, or into `why` what is wrong with it."""
    uid = replace(place, incarnation=incarnation).graph_uid()
    try:
        graph = decode_spec(spec)
    except MalformedSpec as error:
        why[incarnation] = str(error) if spec else why.get(incarnation, "it is not there")
        return
    if graph.data.uid == uid:
        graphs[incarnation] = graph
    else:
        why[incarnation] = f"a graph with the uid {graph.data.uid}; expected {uid}"


def _incarnation(item: Json) -> int:
    return incarnation_in(item["metadata"].get("labels") or {})


def incarnation_of(uid: str, place: GraphRef) -> int:
    """Which incarnation of a resource has this uid in etcd."""
    number = uid.removeprefix(f"{place.owner_uid}-r")
    return int(number) if number.isdecimal() else 0
