"""The pods of a graph: what `hams up` starts as processes, as containers with the same command lines.

An operator's pod has the containers `model` and `proxy`. The proxy is a native sidecar (an init container
that goes on): up before the model, and stopped by the kubelet only after it. But the model serves on until
its proxy lets go, so the proxy is told to leave by its preStop hook, which the kubelet runs at once, for all
containers; it hands its role over and closes the link, the model ends, and then the proxy.

Processes share the pod's process namespace: so none of them is process 1, which could neither be killed nor
stopped from inside.
"""

import hashlib
import json
import math
from dataclasses import replace

import msgspec

from hams_graph.fields import bytes_of, quantity
from hams_graph.memory import REPLY_POOLS
from hams_operator.plan.merge import merged
from hams_operator.plan.names import (
    ARENA,
    DRAIN_S,
    FRONTEND_DRAIN_S,
    FRONTEND_MEMORY_BYTES,
    FRONTEND_OWN_BYTES,
    FRONTEND_REPLY_BYTES,
    FRONTEND_ROLE,
    GRACE_S,
    GRAPH,
    GRPC_PORT,
    HISTORY_DIR,
    HTTP_PORT,
    INCARNATION,
    LINK_BYTES,
    LINK_DIR,
    MANAGER_MEMORY_BYTES,
    MANAGER_ROLE,
    MODEL,
    OPERATOR,
    OWN_PREFIX,
    PEER_PORT,
    PID_FILE,
    PROBE_PORT,
    PROPAGATION_S,
    PROXY,
    PROXY_MEMORY_BYTES,
    ROLE,
    RUNS,
    SOCKET,
    SPEC_DIR,
    SPEC_FILE,
    TLS_DIR,
    TOKENS_DIR,
    UNREACHABLE,
    USER_ID,
    GraphRef,
    Json,
    Settings,
)
from hams_protocol.graph import BatchPolicy, FrontendSpec, Graph, GraphData, ModelSpec, Operator

live_period_s = 10
"""Between two questions of the kubelet."""

live_timeout_s = 10
"""An answer may take this long."""

live_failures = 18
"""After so many questions without an answer in a row, three minutes, a container is ended. A pod that gets no
CPU answers late, and when all of a node are late, ending them would lose every copy of a state at once.
Failover does not wait for this: managers have replaced it long before."""


PRE_STOP = ["python3", "-I", "-m", "hams_sidecar.pre_stop", PID_FILE]
"""What the proxy's preStop hook runs, in the proxy's own image."""

SECRET_MODE = 0o440
"""Processes in the pod's group may read certificates and keys, no others."""

_SECURE = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def operator_pod(
    graph: Graph, op: Operator, place: GraphRef, settings: Settings, probe_token: str = ""
) -> Json:
    """The pod template of an operator's instances."""
    proxy_command = [
        "python3",
        "-m",
        "hams_sidecar.proxy",
        *_common(graph, settings),
        "--operator",
        op.name,
        "--socket",
        SOCKET,
        "--arena",
        ARENA,
    ]
    proxy = _container(
        PROXY,
        settings,
        [*proxy_command, "--pid-file", PID_FILE, "--drain-s", str(DRAIN_S)],
        probe_token,
        "100m",
        "128Mi",
    )
    proxy["restartPolicy"] = "Always"
    proxy["lifecycle"] = {"preStop": {"exec": {"command": PRE_STOP}}}
    proxy["volumeMounts"].append(_mount("link", LINK_DIR))
    model: Json = {
        "name": MODEL,
        "image": op.model.image,
        "imagePullPolicy": settings.pull_policy,
        "command": ["hams-model", "serve"],
        "args": [op.model.entrypoint, "--socket", SOCKET, "--path", "/app"],
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "OMP_NUM_THREADS", "value": "1"}],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": _SECURE,
        "volumeMounts": [_mount("link", LINK_DIR), _mount("tmp", "/tmp")],
    }
    known = dict(op.model.env)
    model["env"] = [item for item in model["env"] if item["name"] not in known] + [
        {"name": name, "value": value} for name, value in op.model.env
    ]
    pod = _pod([model], [proxy], {OPERATOR: op.name}, relevant_to_operator(graph, op), place, settings)
    pod["spec"]["volumes"] += [
        {"name": "link", "emptyDir": {"medium": "Memory", "sizeLimit": quantity(LINK_BYTES)}},
        {"name": "tmp", "emptyDir": {}},
    ]
    pod_spec = _with_template(pod, json.loads(op.pod_template), graph)
    _limit_proxy(pod_spec)
    return pod_spec


def _limit_proxy(pod: Json) -> None:
    """What a proxy writes into the memory that it shares with its model is charged to the proxy: its limit
    follows that volume's."""
    link: Json = next((item for item in pod["spec"]["volumes"] if item.get("name") == "link"), {})
    shared = bytes_of(str((link.get("emptyDir") or {}).get("sizeLimit", "")))
    if shared is None:
        return
    for container in pod["spec"].get("initContainers") or []:
        if container.get("name") == PROXY:
            resources = container.get("resources") or {}
            if not isinstance(resources, dict):
                continue
            requested = bytes_of(str(_mapping(resources.get("requests")).get("memory"))) or 0
            bound = {"memory": quantity(max(PROXY_MEMORY_BYTES + shared, requested))}
            limits = resources.get("limits") or {}
            if isinstance(limits, dict):
                container["resources"] = resources | {"limits": bound | limits}


def frontend_pod(graph: Graph, place: GraphRef, settings: Settings, probe_token: str = "") -> Json:
    """The pod template of frontends."""
    ports = [
        "--host",
        "0.0.0.0",
        "--http-port",
        str(HTTP_PORT),
        "--grpc-port",
        str(GRPC_PORT),
        "--propagation-s",
        str(PROPAGATION_S),
    ]
    ports += ["--drain-s", str(FRONTEND_DRAIN_S)]
    secret = graph.data.frontend.token_secret
    tokens = ["--tokens", TOKENS_DIR] if secret else []
    command = ["python3", "-m", "hams_sidecar.frontend", *_common(graph, settings), *ports, *tokens]
    container = _container(
        FRONTEND_ROLE, settings, command, probe_token, "200m", "256Mi", _frontend_memory_bytes(graph)
    )
    container["ports"] += [
        {"name": "http", "containerPort": HTTP_PORT},
        {"name": "grpc", "containerPort": GRPC_PORT},
    ]
    pod = _pod([container], [], {ROLE: FRONTEND_ROLE}, relevant_to_frontend(graph), place, settings)
    if secret:
        container["volumeMounts"].append(_mount("tokens", TOKENS_DIR, read_only=True))
        pod["spec"]["volumes"].append(
            {"name": "tokens", "secret": {"secretName": secret, "defaultMode": SECRET_MODE}}
        )
    return _with_template(pod, json.loads(graph.data.kubernetes.frontend_template), graph)


def _frontend_memory_bytes(graph: Graph) -> int:
    """Kept replies (with a key and without one) and open requests of all shards, whose logs a frontend may
    hold; what its clients send, where it is used and on the way there; and its own."""
    spec = graph.data.frontend
    replies = REPLY_POOLS * spec.shards * spec.replies_kept_bytes
    requests = max(spec.shards * spec.max_in_flight_bytes, FRONTEND_REPLY_BYTES)
    return max(FRONTEND_MEMORY_BYTES, replies + requests + 2 * spec.max_in_flight_bytes + FRONTEND_OWN_BYTES)


def manager_pod(graph: Graph, place: GraphRef, settings: Settings, probe_token: str = "") -> Json:
    """The pod template of managers. They bring the compiled graph into an etcd that does not hold it yet."""
    command = [
        "python3",
        "-m",
        "hams_operator.manager.process",
        *_common(graph, settings),
        "--spec",
        f"{SPEC_DIR}/{SPEC_FILE}",
    ]
    container = _container(MANAGER_ROLE, settings, command, probe_token, "50m", "128Mi", MANAGER_MEMORY_BYTES)
    container["volumeMounts"].append(_mount("graph", SPEC_DIR, read_only=True))
    pod = _pod([container], [], {ROLE: MANAGER_ROLE}, relevant_to_manager(graph), place, settings)
    pod["spec"]["volumes"] += [{"name": "graph", "configMap": {"name": place.config_map}}]
    return _with_template(pod, json.loads(graph.data.kubernetes.manager_template), graph)


def _common(graph: Graph, settings: Settings) -> list[str]:
    listen = [
        "--listen",
        f"tcp:0.0.0.0:{PEER_PORT}",
        "--advertise",
        "$(POD_IP)",
        "--probe-port",
        str(PROBE_PORT),
    ]
    tls = ["--tls", TLS_DIR] if settings.tls else []
    return ["--graph", graph.data.uid, "--pod", "$(POD_NAME)", "--etcd", "$(HAMS_ETCD)", *listen, *tls]


def _container(
    name: str,
    settings: Settings,
    command: list[str],
    probe_token: str,
    cpu: str,
    memory: str,
    limit_bytes: int = 0,
) -> Json:
    bearing = (
        {"httpHeaders": [{"name": "Authorization", "value": f"Bearer {probe_token}"}]} if probe_token else {}
    )
    ready, live = ({"httpGet": {"path": path, "port": "probes", **bearing}} for path in ("/readyz", "/livez"))
    return {
        "name": name,
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "command": command,
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "HAMS_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "HAMS_ETCD", "value": settings.etcd},
            {"name": "HAMS_LOG_FORMAT", "value": settings.log_format},
        ],
        "ports": [
            {"name": "peers", "containerPort": PEER_PORT},
            {"name": "probes", "containerPort": PROBE_PORT},
        ],
        "resources": {"requests": {"cpu": cpu, "memory": memory}}
        | ({"limits": {"memory": quantity(limit_bytes)}} if limit_bytes else {}),
        "readinessProbe": {**ready, "periodSeconds": 1, "timeoutSeconds": 2, "failureThreshold": 3},
        "livenessProbe": {
            **live,
            "periodSeconds": live_period_s,
            "timeoutSeconds": live_timeout_s,
            "failureThreshold": live_failures,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {**_SECURE, "readOnlyRootFilesystem": True},
        "volumeMounts": [_mount("tls", TLS_DIR, read_only=True)] if settings.tls else [],
    }


def _mount(name: str, path: str, *, read_only: bool = False) -> Json:
    return {"name": name, "mountPath": path, **({"readOnly": True} if read_only else {})}


def _pod(
    containers: list[Json],
    init: list[Json],
    role: dict[str, str],
    runs: str,
    place: GraphRef,
    settings: Settings,
) -> Json:
    pod: Json = {
        "metadata": {"labels": place.labels() | role, "annotations": {RUNS: runs}},
        "spec": {
            **({"initContainers": init} if init else {}),
            "containers": containers,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "shareProcessNamespace": True,
            "terminationGracePeriodSeconds": GRACE_S,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER_ID,
                "runAsGroup": USER_ID,
                "fsGroup": USER_ID,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            **_spread({GRAPH: place.name, **role}),
            "volumes": [],
        },
    }
    if settings.tls:
        pod["spec"]["volumes"].append(
            {"name": "tls", "secret": {"secretName": place.secret, "defaultMode": SECRET_MODE}}
        )
    if settings.history:
        pod["spec"]["volumes"].append(
            {"name": "history", "hostPath": {"path": settings.history, "type": "DirectoryOrCreate"}}
        )
        for container in (*containers, *init):
            container["env"].append({"name": "HAMS_HISTORY", "value": HISTORY_DIR})
            container["volumeMounts"] = [*container.get("volumeMounts", []), _mount("history", HISTORY_DIR)]
    return pod


def _spread(labels: dict[str, str]) -> Json:
    """Fields of a pod's spec that put pods with these labels on different nodes and in different zones, if
    possible."""
    return {
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 100,
                        "podAffinityTerm": {
                            "labelSelector": {"matchLabels": labels},
                            "topologyKey": "kubernetes.io/hostname",
                        },
                    }
                ]
            }
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": labels},
            }
        ],
    }


def _with_template(pod: Json, template: Json, graph: Graph) -> Json:
    """The user's podTemplate over the default; what it says of `proxy` among the containers is meant for the
    sidecar."""
    spec = dict(template.get("spec") or {})
    containers = spec.get("containers") or []
    for_proxy = [item for item in containers if isinstance(item, dict) and item.get("name") == PROXY]
    if for_proxy:
        spec["containers"] = [item for item in containers if item not in for_proxy]
        spec["initContainers"] = [*(spec.get("initContainers") or []), *for_proxy]
    _fit_defaults(pod, spec)
    result = merged(pod, {**template, "spec": spec})
    # By these a pod is found and known: one that lacks the controller's labels is not seen by it at all.
    for field, own in pod["metadata"].items():
        given = result["metadata"].get(field) or {}
        result["metadata"][field] = {
            name: value for name, value in given.items() if not name.startswith(OWN_PREFIX)
        } | own
    result["spec"]["tolerations"] = _tolerations(
        result["spec"].get("tolerations") or [], graph.data.kubernetes.evict_after_s
    )
    return result


def _fit_defaults(pod: Json, spec: Json) -> None:
    """The API server refuses a pod that requests more than its limit allows. So a default request is lowered
    to a limit that the template sets, and a default limit raised to a request. Where the template sets both,
    they are the author's."""
    for kind in ("initContainers", "containers"):
        patches = [item for item in spec.get(kind) or [] if isinstance(item, dict)]
        given = {str(item.get("name")): _mapping(item.get("resources")) for item in patches}
        for container in pod["spec"].get(kind, []):
            own, patch = container["resources"], given.get(container["name"], {})
            for resource, limit in _mapping(patch.get("limits")).items():
                if _amount(resource, limit) < _amount(resource, own["requests"].get(resource)):
                    own["requests"][resource] = limit
            for resource, request in _mapping(patch.get("requests")).items():
                if _amount(resource, request) > _amount(resource, own.get("limits", {}).get(resource)):
                    own["limits"][resource] = request


def _mapping(given: object) -> Json:
    """What a template gives as a mapping; empty for anything else, which the API server refuses."""
    return given if isinstance(given, dict) else {}


def _amount(resource: str, given: object) -> float:
    """Bytes of memory, or cores. NaN, of which nothing is more or less, for what is no quantity: the API
    server says that."""
    text = str(given)
    if resource == "memory":
        amount = bytes_of(text)
        return math.nan if amount is None else amount
    cores = text.removesuffix("m")
    try:
        return float(cores) / (1 if cores == text else 1000)
    except ValueError:
        return math.nan


def _tolerations(given: list[Json], evict_after_s: float) -> list[Json]:
    """What is asked for, and how long a pod stays on a node that is away; without this Kubernetes adds its
    own five minutes, during which a state has one copy less. A list of tolerations replaces another one, so
    these are added behind it."""
    known = {item.get("key") for item in given if item.get("effect") in (None, "", "NoExecute")}
    return [
        *given,
        *(
            {
                "key": taint,
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": math.ceil(evict_after_s),
            }
            for taint in UNREACHABLE
            if taint not in known and None not in known
        ),
    ]


# -- what each kind of process depends on --------------------------------------------------------------------


def relevant_to_operator(graph: Graph, op: Operator) -> str:
    """Digest of the part of the graph on which an operator's processes depend."""
    data = graph.data
    frontend = replace(FrontendSpec(), shards=data.frontend.shards, max_in_flight=data.frontend.max_in_flight)
    operators = tuple(item if item.name == op.name else _without_model(item) for item in data.operators)
    operators = tuple(
        replace(item, hot_standbys=0, backups=0, slots=1, pod_template="{}") for item in operators
    )
    return _digest(replace_data(data, frontend=frontend, managers=0, operators=operators))


def relevant_to_frontend(graph: Graph) -> str:
    """Digest of the part of the graph on which frontends depend."""
    data = graph.data
    operators = tuple(replace(_without_model(item), backups=0, slots=1) for item in data.operators)
    return _digest(
        replace_data(data, frontend=replace(data.frontend, replicas=1), managers=0, operators=operators)
    )


def relevant_to_manager(graph: Graph) -> str:
    """Digest of the part of the graph on which managers depend."""
    data = graph.data
    frontend = replace(FrontendSpec(), shards=data.frontend.shards, replicas=data.frontend.replicas)
    return _digest(
        replace_data(
            data,
            frontend=frontend,
            managers=0,
            operators=tuple(_without_model(item) for item in data.operators),
        )
    )


def replace_data(
    data: GraphData, *, frontend: FrontendSpec, managers: int, operators: tuple[Operator, ...]
) -> GraphData:
    """A copy of the graph with other frontends, managers and operators."""
    return GraphData(
        data.name,
        data.uid,
        data.mode,
        frontend,
        managers,
        data.recovery,
        data.inputs,
        data.outputs,
        operators,
    )


def _without_model(op: Operator) -> Operator:
    """What others know of an operator: not how its model runs."""
    return replace(
        op, model=ModelSpec(""), pod_template="{}", hot_standbys=0, batch=BatchPolicy(1, 0.0), checkpoint=None
    )


def _digest(data: GraphData) -> str:
    return hashlib.sha256(msgspec.json.encode(data)).hexdigest()[:16]


def selector(place: GraphRef, role: dict[str, str]) -> dict[str, str]:
    """Labels by which a workload finds its pods."""
    return {GRAPH: place.name, INCARNATION: str(place.incarnation), **role}
