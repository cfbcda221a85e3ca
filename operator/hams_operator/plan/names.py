"""Names, labels, ports and paths on which the objects of a graph agree; and where and with what a graph is to
run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
"""A Kubernetes object, or a part of one."""

OWN_PREFIX = "hams.dev/"
"""Labels and annotations that begin so are ours alone."""
GRAPH = "hams.dev/graph"
OPERATOR = "hams.dev/operator"
ROLE = "hams.dev/role"
INCARNATION = "hams.dev/incarnation"
CONTENT = "hams.dev/content"
"""Annotation: digest of the object as it was applied."""
RUNS = "hams.dev/runs"
"""Annotation of pods: digest of the part of the graph on which these processes depend; pods are replaced when
it changes."""
GRAPH_UID = "hams.dev/graph-uid"
"""Annotation of the graph's ConfigMap: the prefix in etcd."""
ALLOW_STATE_LOSS = "hams.dev/allow-state-loss"
"""Annotation of a ServiceGraph: a change may lose the states of its operators."""
RESTART_LOST = "hams.dev/restart-lost"
"""Annotation of a ServiceGraph: states, lost in the epoch named, that shall begin again: `learner@3`, of a
later shape `learner@3-r1`, several separated by commas. Said once, it holds for that loss only."""
MANAGED_BY = "hams"
FINALIZER = "hams.dev/etcd-keys"
FIELD_MANAGER = "hams-controller"

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""Annotation of pods: of several, a ReplicaSet gives up the cheapest first."""
COSTS = {"primary": 100, "active": 50, "backup": 10}
"""An upgrade that takes the backup first moves a primary once, not twice."""

FRONTEND_ROLE = "frontend"
MANAGER_ROLE = "manager"
PROXY = "proxy"
MODEL = "model"

HTTP_PORT = 8080
GRPC_PORT = 8081
PROBE_PORT = 8082
PEER_PORT = 7070

LINK_DIR = "/run/hams"
SOCKET = f"{LINK_DIR}/model.sock"
ARENA = f"{LINK_DIR}/arena"
PID_FILE = f"{LINK_DIR}/proxy.pid"
HISTORY_DIR = "/history"
SPEC_DIR = "/etc/hams"
SPEC_FILE = "spec.json"
TLS_DIR = "/etc/hams-tls"
TOKENS_DIR = "/etc/hams-tokens"

USER_ID = 65532

GRACE_S = 60
"""A pod that is deleted is given this long: its role is handed over first."""
DRAIN_S = 45
"""Of it, how long a handover may take."""
PROPAGATION_S = 3
"""How long a frontend serves on until every node has learnt that it leaves."""
FRONTEND_DRAIN_S = 20
"""How long it may then take to hand over and to be let go, after the requests that were open had the rest."""

FRONTEND_SETTLE_S = 10
"""A frontend has been ready for this long before the next one is replaced: by then the one before has handed
over."""

LINK_BYTES = 4 << 30
"""Memory that a proxy and its model share. A primary keeps `window` + 1 versions of its state there, and so
does a backup: five of 500 MB, and tensors on their way. What does not fit waits."""
PROXY_MEMORY_BYTES = 256 << 20
"""Beyond what it shares with its model: 71 MiB resident after 100,000 requests (docs/performance.md)."""
FRONTEND_MEMORY_BYTES = 1536 << 20
"""Of one whose bounds are the default ones, and at least: `FRONTEND_OWN_BYTES`, 1 GiB of requests and replies
in shared memory, and 256 MiB on their way from clients (`maxInFlightBytes`)."""
FRONTEND_REPLY_BYTES = 256 << 20
"""The largest reply, for which there is always room."""
FRONTEND_OWN_BYTES = 256 << 20
"""100 MiB resident after 100,000 requests, and what is on its way to clients."""
MANAGER_MEMORY_BYTES = 256 << 20
"""67 MiB resident."""

UNREACHABLE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints of a node that Kubernetes takes for dead."""

DEFAULT_IMAGE = "hams.local/hams-sidecar:0.1.0"
DEFAULT_ETCD = ",".join(
    f"https://hams-etcd-{number}.hams-etcd-peers.hams-system.svc:2379" for number in range(3)
)
"""What the chart tells the controller if it is installed as its page says: each member by its own name."""


POD_FIELDS = (
    "metadata.labels",
    "metadata.annotations",
    "spec.affinity",
    "spec.nodeSelector",
    "spec.priorityClassName",
    "spec.runtimeClassName",
    "spec.schedulerName",
    "spec.tolerations",
    "spec.topologySpreadConstraints",
    "spec.imagePullSecrets",
    "spec.resourceClaims",
    "spec.containers[].name",
    "spec.containers[].resources",
    "spec.containers[].volumeMounts",
    "spec.containers[].env[].name",
    "spec.containers[].env[].value",
    "spec.volumes[].name",
    "spec.volumes[].configMap",
    "spec.volumes[].emptyDir",
    "spec.volumes[].ephemeral",
    "spec.volumes[].persistentVolumeClaim",
)
"""What a podTemplate may set unless the chart says otherwise: placement, sizes and volumes, and nothing by
which a pod gets rights, Secrets or its node's files."""
SERVICE_FIELDS = (
    "metadata.labels",
    "metadata.annotations",
    "spec.type",
    "spec.ports",
    "spec.loadBalancerClass",
    "spec.loadBalancerSourceRanges",
    "spec.allocateLoadBalancerNodePorts",
    "spec.externalTrafficPolicy",
    "spec.internalTrafficPolicy",
    "spec.trafficDistribution",
    "spec.sessionAffinity",
    "spec.ipFamilies",
    "spec.ipFamilyPolicy",
)
"""What `frontend.service` may set."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What all graphs of one controller have in common.

    `etcd`: endpoints, separated by commas. `image`: of proxies, frontends and managers. `history`: a folder
    of the node that every container mounts and records its history into (tests only; "": none is recorded).
    `tls`: pods mount the Secret with which they prove who they are, and which the controller makes.
    `log_format`: of every container of ours (`hams_wire.logs`). `pod_fields`, `service_fields`: what
    templates may set (`plan.permitted`).
    """

    etcd: str = DEFAULT_ETCD
    image: str = DEFAULT_IMAGE
    pull_policy: str = "IfNotPresent"
    history: str = ""
    tls: bool = True
    log_format: str = "text"
    pod_fields: tuple[str, ...] = POD_FIELDS
    service_fields: tuple[str, ...] = SERVICE_FIELDS


def incarnation_in(labels: Mapping[str, str]) -> int:
    """Of the object with these labels; 0 where the label is not there or no number. Whoever may write a pod
    may label it, and the controller of all graphs must not end of that."""
    text = labels.get(INCARNATION, "")
    return int(text) if text.isdecimal() else 0


@dataclass(frozen=True, slots=True)
class GraphRef:
    """Which graph: its name and namespace, and the uid of its ServiceGraph ("": rendered without one, so
    nothing owns the objects).

    `incarnation` counts the shapes a graph has had: 0 for the first. Each has processes, states and etcd keys
    of its own.
    """

    name: str
    namespace: str
    owner_uid: str = ""
    incarnation: int = 0

    def graph_uid(self) -> str:
        """The prefix in etcd."""
        uid = self.owner_uid or f"{self.namespace}.{self.name}"
        return f"{uid}-r{self.incarnation}" if self.incarnation else uid

    def workload(self, part: str) -> str:
        """The name of a Deployment: `digits-learner`; with `-r2` for the second incarnation."""
        return f"{self.name}-{part}" + (f"-r{self.incarnation}" if self.incarnation else "")

    @property
    def config_map(self) -> str:
        """The name of the ConfigMap that holds the compiled graph."""
        return self.workload("graph")

    @property
    def secret(self) -> str:
        """The name of the Secret with the certificates of the graph's parts. All incarnations have the
        same."""
        return f"{self.name}-hams-tls"

    @property
    def url(self) -> str:
        """Where clients in the cluster send their requests."""
        return f"http://{self.name}.{self.namespace}.svc:{HTTP_PORT}"

    @property
    def grpc(self) -> str:
        """Address for requests over gRPC in the cluster, host:port."""
        return f"{self.name}.{self.namespace}.svc:{GRPC_PORT}"

    def metadata(self, name: str, labels: dict[str, str] | None = None) -> Json:
        """Metadata of an object of this graph."""
        metadata: Json = {"name": name, "namespace": self.namespace, "labels": self.labels() | (labels or {})}
        if self.owner_uid:
            metadata["ownerReferences"] = [
                {
                    "apiVersion": "hams.dev/v1alpha1",
                    "kind": "ServiceGraph",
                    "name": self.name,
                    "uid": self.owner_uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ]
        return metadata

    def labels(self) -> dict[str, str]:
        """On every object of the graph."""
        return {
            "app.kubernetes.io/name": "hams",
            "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/managed-by": MANAGED_BY,
            GRAPH: self.name,
            INCARNATION: str(self.incarnation),
        }
