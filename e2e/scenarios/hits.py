"""What `hams_operator.chaos.scenarios` does to a graph, by kubectl: the half of `Run` that hurts Deployments,
nodes and controllers."""

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from e2e.cluster.commands import CommandFailed, entered, run, until
from e2e.cluster.machine import NotPossible
from e2e.cluster.node import node_pid
from e2e.scenarios.install import ETCD_MEMBERS, NAMESPACE, RELEASE, ready
from hams_operator.chaos.live import rolled_out

if TYPE_CHECKING:
    from e2e.cluster.cluster import Cluster

GRAPHS_IN = "default"
CONTROLLER = f"deployment/{RELEASE}-controller"
CONTROLLERS = "app.kubernetes.io/component=controller"
MEMBERS = "app.kubernetes.io/component=etcd"
SIDECAR = "HAMS_SIDECAR_IMAGE"
REPLACED_S = 240.0


class Hits:
    """Part of `GraphRun`; what it asks of that one stands at the top."""

    if TYPE_CHECKING:
        name: str

        @property
        def cluster(self) -> "Cluster": ...
        def pods(self) -> dict[str, dict[str, Any]]: ...
        def resource(self) -> dict[str, Any]: ...
        def note(self, what: str) -> None: ...
        def known(self) -> dict[str, Any]: ...
        def until(self, holds: Any, within_s: float = ...) -> None: ...

    @property
    def operators(self) -> Mapping[str, bool]:
        """See `Run`."""
        return {op["name"]: "stateful" in op for op in self.resource()["spec"]["operators"]}

    def pods_of(self, operator: str) -> list[str]:
        """See `Run`."""
        label = "hams.dev/role" if operator in ("frontend", "manager") else "hams.dev/operator"
        living = {
            name: item["metadata"]
            for name, item in self.pods().items()
            if "deletionTimestamp" not in item["metadata"]
        }
        return [name for name, metadata in living.items() if metadata["labels"].get(label) == operator]

    def epoch_of(self, operator: str) -> int:
        """See `Run`."""
        return int(self.known()["sets"][operator]["epoch"])

    def moved(self, operator: str, epoch: int, within_s: float = 60.0) -> None:
        """See `Run`."""
        self.until(lambda topology: topology["sets"][operator]["epoch"] > epoch, within_s)

    def crash(self, *pods: str) -> None:
        """SIGKILL all processes of these pods at once. Their containers start again, as other instances."""
        there = self.pods()
        uids = [there[pod]["metadata"]["uid"] for pod in pods]
        for pod in pods:
            self.note(f"kill the processes of {pod}")
        self.cluster.kill_pods(*uids)

    # -- nodes -----------------------------------------------------------------------------------------------

    def node_of(self, pod: str) -> str:
        """See `Run`."""
        return str(self.pods()[pod]["spec"]["nodeName"])

    def drain(self, node: str) -> None:
        """See `Run`."""
        self.note(f"drain {node}")
        words = (
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            "--timeout=300s",
            f"--pod-selector=hams.dev/graph={self.name}",
        )
        self.cluster.kubectl("drain", node, *words)

    def undrain(self, node: str) -> None:
        """See `Run`."""
        self.cluster.kubectl("uncordon", node)

    # -- controllers -----------------------------------------------------------------------------------------

    def delete_controllers(self, *, force: bool = False) -> None:
        """See `Run`."""
        self.note(f"{'force ' if force else ''}delete the controllers")
        how = ["--force", "--grace-period=0"] if force else ["--wait=false"]
        self.cluster.kubectl("delete", "pods", "-n", NAMESPACE, "-l", CONTROLLERS, *how)

    def stop_controllers(self) -> None:
        """See `Run`."""
        self.note("stop the controllers")
        self.cluster.kubectl("scale", "-n", NAMESPACE, CONTROLLER, "--replicas=0")
        until(
            lambda: not self.cluster.kubectl("get", "pods", "-n", NAMESPACE, "-l", CONTROLLERS, "-o", "name"),
            90,
            "end of the controllers",
            0.2,
        )

    def start_controllers(self) -> None:
        """See `Run`."""
        self.cluster.kubectl("scale", "-n", NAMESPACE, CONTROLLER, "--replicas=2")
        ready(self.cluster, CONTROLLERS, 2, NAMESPACE)

    # -- etcd ------------------------------------------------------------------------------------------------

    def lose_etcd_member(self) -> None:
        """See `Run`."""
        if not self.cluster.recorded:
            raise NotPossible(
                "only CLUSTER=own gives etcd volumes: a member that is deleted would be lost for good"
            )
        self.note(f"force delete {RELEASE}-etcd-0")
        self.cluster.kubectl(
            "delete", "pod", "-n", NAMESPACE, f"{RELEASE}-etcd-0", "--force", "--grace-period=0"
        )

    def etcd_whole(self, within_s: float = 120.0) -> None:
        """See `Run`."""
        ready(self.cluster, MEMBERS, ETCD_MEMBERS, NAMESPACE, within_s)

    # -- upgrades --------------------------------------------------------------------------------------------

    def change_model(self, operator: str, image: str = "") -> None:
        """See `Run`."""
        self.note(f"{operator}: {f'image {image}' if image else 'restart its pods'}")
        if not image:
            self.cluster.kubectl("rollout", "restart", "-n", GRAPHS_IN, f"deployment/{self.name}-{operator}")
            return
        number = list(self.operators).index(operator)
        patch = [{"op": "replace", "path": f"/spec/operators/{number}/model/image", "value": image}]
        self.cluster.kubectl(
            "patch", "servicegraph", self.name, "-n", GRAPHS_IN, "--type=json", "-p", json.dumps(patch)
        )

    def change_sidecars(self, image: str) -> None:
        """Have the controller give every graph other proxies, frontends and managers, as an upgrade of the
        chart does."""
        self.note(f"sidecar image {image}")
        self.cluster.kubectl("set", "env", "-n", NAMESPACE, CONTROLLER, f"{SIDECAR}={image}")

    def sidecar_image(self) -> str:
        """The one that the controller is told to use now."""
        path = f"{{.spec.template.spec.containers[0].env[?(@.name=='{SIDECAR}')].value}}"
        return self.cluster.kubectl("get", "-n", NAMESPACE, CONTROLLER, "-o", f"jsonpath={path}").strip()

    def deployments(self) -> list[dict[str, Any]]:
        """Those of this graph."""
        listed = self.cluster.kubectl(
            "get", "deployments", "-n", GRAPHS_IN, "-l", f"hams.dev/graph={self.name}", "-o", "json"
        )
        return list(json.loads(listed)["items"])

    def replaced(self, operator: str, within_s: float = REPLACED_S) -> None:
        """See `Run`."""

        def is_replaced() -> bool:
            item = self.resource()
            seen = item.get("status", {}).get("observedGeneration", 0) >= item["metadata"]["generation"]
            image = next(op["model"]["image"] for op in item["spec"]["operators"] if op["name"] == operator)
            mine = [
                deployment
                for deployment in self.deployments()
                if deployment["metadata"]["labels"].get("hams.dev/operator") == operator
            ]
            return seen and all(rolled_out(deployment, image) for deployment in mine)

        until(is_replaced, within_s, f"new pods of {operator}", 0.2)

    def images_of(self, operator: str) -> list[str]:
        """Those that an operator's Deployment asks for."""
        return [
            image
            for item in self.deployments()
            if item["metadata"]["labels"].get("hams.dev/operator") == operator
            for image in images_in(item)
        ]

    def all_replaced(self, image: str, within_s: float = REPLACED_S) -> None:
        """Until every pod of the graph has proxies, frontends and managers of this image, and is Ready."""

        def is_replaced() -> bool:
            return all(image in images_in(item) and rolled_out(item, None) for item in self.deployments())

        until(is_replaced, within_s, f"sidecars of {image} everywhere", 0.3)


def images_in(deployment: dict[str, Any]) -> list[str]:
    """Of every container of its pods."""
    spec = deployment["spec"]["template"]["spec"]
    return [container["image"] for container in (*spec.get("initContainers", ()), *spec["containers"])]


def objects_of(cluster: "Cluster", name: str) -> set[str]:
    """Everything that belongs to a graph but pods and what Kubernetes makes of Services."""
    kinds = "deployments,services,configmaps,poddisruptionbudgets,networkpolicies"
    return set(
        cluster.kubectl("get", kinds, "-n", GRAPHS_IN, "-l", f"hams.dev/graph={name}", "-o", "name").split()
    )


def also_called(cluster: "Cluster", image: str, other: str) -> None:
    """Give an image another name on every node: the next version of something, for all that Kubernetes knows.
    Raises NotPossible, CommandFailed."""
    if not cluster.recorded:
        raise NotPossible("only CLUSTER=own has its nodes call an image by another name")
    for number in cluster.running():
        pid = node_pid(cluster.folders, number)
        assert pid is not None, f"node {number} runs"
        run(*entered(pid, ["-m"], "ctr", "-n", "k8s.io", "images", "tag", "--force", image, other))


def status_code(cluster: "Cluster", name: str) -> int:
    """What a client gets that asks once. A connection that is refused counts as 503: there is nobody to say
    it."""
    address = cluster.kubectl("get", "service", name, "-n", GRAPHS_IN, "-o", "jsonpath={.spec.clusterIP}")
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]})
    words = (
        "curl",
        "-s",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        "--max-time",
        "40",
        "-d",
        body,
        f"http://{address}:8080/v2/models/{name}/infer",
    )
    try:
        return int(run(*cluster.command_in(0, *words)).strip() or 0)
    except CommandFailed:
        return 503


def reason(run_: Any, kind: str, wanted: str, within_s: float = 60.0) -> str:
    """Until a condition has this reason; its message."""
    deadline = time.monotonic() + within_s
    while (condition := run_.condition(kind)).get("reason") != wanted:
        assert time.monotonic() < deadline, f"{kind} is {condition}, and not {wanted}"
        time.sleep(0.1)
    return str(condition["message"])
