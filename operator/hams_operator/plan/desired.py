"""All objects of a graph: what `hams render` prints and what the controller applies.

A ConfigMap with the compiled graph, a Service in front of the frontends, a Deployment per operator and one
each for frontends and managers, a PodDisruptionBudget beside each, and two NetworkPolicies. Deployments
replace pods one by one, a new one before an old one: a pod is ready when its role is served, so the next one
waits until states are in sync.
"""

import hashlib
import json

import msgspec

from hams_operator.plan.merge import merged
from hams_operator.plan.names import (
    CONTENT,
    FRONTEND_ROLE,
    FRONTEND_SETTLE_S,
    GRAPH,
    GRAPH_UID,
    GRPC_PORT,
    HTTP_PORT,
    MANAGER_ROLE,
    OPERATOR,
    PEER_PORT,
    PROBE_PORT,
    ROLE,
    SPEC_FILE,
    GraphRef,
    Json,
    Settings,
)
from hams_operator.plan.pods import frontend_pod, manager_pod, operator_pod, selector
from hams_protocol.graph import Graph
from hams_protocol.wholeness import instances_wanted


def desired(
    graph: Graph, compiled: str, place: GraphRef, settings: Settings, probe_token: str = ""
) -> tuple[Json, ...]:
    """The objects of `graph`, in the order in which they are best applied. `compiled`: the graph as etcd
    holds it; it has the uid of `place`. `probe_token`: what the kubelet's probes bear."""
    assert graph.data.uid == place.graph_uid(), "compiled for this place"
    objects = [_config_map(graph, compiled, place), *_network_policies(place), _service(place, graph)]
    managers, frontends = {ROLE: MANAGER_ROLE}, {ROLE: FRONTEND_ROLE}
    objects.append(
        _deployment(
            place,
            MANAGER_ROLE,
            managers,
            graph.data.managers,
            manager_pod(graph, place, settings, probe_token),
        )
    )
    for op in graph.data.operators:
        objects.append(
            _deployment(
                place,
                op.name,
                {OPERATOR: op.name},
                instances_wanted(op),
                operator_pod(graph, op, place, settings, probe_token),
            )
        )
    objects.append(
        _deployment(
            place,
            FRONTEND_ROLE,
            frontends,
            graph.data.frontend.replicas,
            frontend_pod(graph, place, settings, probe_token),
        )
    )
    objects.append(_budget(place, MANAGER_ROLE, managers, 1))
    objects += [
        _budget(place, op.name, {OPERATOR: op.name}, 0 if op.stateful and op.backups == 0 else 1)
        for op in graph.data.operators
    ]
    objects.append(_budget(place, FRONTEND_ROLE, frontends, 1))
    return tuple(with_digest(item) for item in objects)


def with_digest(item: Json) -> Json:
    """The object with the annotation by which it is known again."""
    digest = hashlib.sha256(msgspec.json.encode(item, order="deterministic")).hexdigest()[:16]
    return item | {
        "metadata": item["metadata"]
        | {"annotations": item["metadata"].get("annotations", {}) | {CONTENT: digest}}
    }


def _config_map(graph: Graph, compiled: str, place: GraphRef) -> Json:
    metadata = place.metadata(place.config_map) | {"annotations": {GRAPH_UID: graph.data.uid}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {SPEC_FILE: compiled}}


def _service(place: GraphRef, graph: Graph) -> Json:
    """What a template may not change is what makes it this graph's: its name, its labels, what it selects."""
    item: Json = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": place.metadata(place.name),
        "spec": {
            "selector": {GRAPH: place.name, ROLE: FRONTEND_ROLE},
            "ports": [
                {
                    "name": "http",
                    "port": HTTP_PORT,
                    "targetPort": HTTP_PORT,
                    "protocol": "TCP",
                    "appProtocol": "http",
                },
                {
                    "name": "grpc",
                    "port": GRPC_PORT,
                    "targetPort": GRPC_PORT,
                    "protocol": "TCP",
                    "appProtocol": "grpc",
                },
            ],
        },
    }
    template = json.loads(graph.data.kubernetes.service)
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    with_labels = {name: value for name, value in metadata.items() if name in ("labels", "annotations")}
    service = merged(item, {"metadata": with_labels, "spec": spec})
    service["metadata"]["labels"] = {
        **(service["metadata"].get("labels") or {}),
        **item["metadata"]["labels"],
    }
    service["spec"]["selector"] = item["spec"]["selector"]
    return service


def _deployment(place: GraphRef, part: str, role: dict[str, str], replicas: int, template: Json) -> Json:
    settle = {"minReadySeconds": FRONTEND_SETTLE_S} if part == FRONTEND_ROLE else {}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": place.metadata(place.workload(part), role),
        "spec": {
            "replicas": replicas,
            **settle,
            "revisionHistoryLimit": 2,
            "selector": {"matchLabels": selector(place, role)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": template,
        },
    }


def _budget(place: GraphRef, part: str, role: dict[str, str], unavailable: int) -> Json:
    """At most one away at a time, counting who is not ready: a backup that still copies holds the eviction of
    its primary up. The only replica of a state is never evicted."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": place.metadata(place.workload(part), role),
        "spec": {"maxUnavailable": unavailable, "selector": {"matchLabels": selector(place, role)}},
    }


def _network_policies(place: GraphRef) -> list[Json]:
    """Peers talk to peers of their own graph only; everybody may send requests to frontends, and scrape. The
    kubelet's probes are always let in."""
    peers = {
        "podSelector": {"matchLabels": {GRAPH: place.name}},
        "policyTypes": ["Ingress"],
        "ingress": [
            {
                "from": [{"podSelector": {"matchLabels": {GRAPH: place.name}}}],
                "ports": [{"port": PEER_PORT, "protocol": "TCP"}],
            },
            {"ports": [{"port": PROBE_PORT, "protocol": "TCP"}]},
        ],
    }
    clients = {
        "podSelector": {"matchLabels": {GRAPH: place.name, ROLE: FRONTEND_ROLE}},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"ports": [{"port": HTTP_PORT, "protocol": "TCP"}, {"port": GRPC_PORT, "protocol": "TCP"}]}
        ],
    }
    return [
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": place.metadata(name),
            "spec": spec,
        }
        for name, spec in ((f"{place.name}-peers", peers), (f"{place.name}-clients", clients))
    ]
