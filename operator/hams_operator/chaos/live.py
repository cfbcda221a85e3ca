"""A graph on somebody's own cluster, under load: what scenarios do to it goes through the API server, with
the user's rights, as kubectl would.

Roles are read from the graph's status, readiness from its pods. The load and every question run on an event
loop of a thread of their own, so that a scenario may block. It changes nothing but what the scenario's
catalogue entry says.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from hams_operator.chaos.port import ACTIVE, BACKUP, FRONTEND, MANAGER, PRIMARY
from hams_operator.controller.kube import GRAPHS, NODES, OWNED, PODS, KubeClient, KubeError
from hams_operator.graph_seen import ClusterGraph, instances_of, status_of
from hams_operator.graph_status import InstanceStatus, awaited
from hams_operator.plan.names import GRAPH, OPERATOR, RESTART_LOST, Json
from hams_operator.plan.pods_seen import Pod, pod_of, pod_seen
from hams_protocol.wholeness import READY, STATE_LOST

chaos_poll_s = 0.2
"""Between two looks at a graph on a cluster."""

chaos_role_s = 30.0
"""The role that a scenario is about is filled within this time, and a deleted pod is going."""

chaos_redundant_s = 180.0
"""A graph is whole again within this time of a fault, images and nodes being there."""

chaos_drain_s = 300.0
"""A node is free of the graph's pods within this time."""


T = TypeVar("T")
CONTROLLERS = "app.kubernetes.io/name=hams,app.kubernetes.io/component=controller"
"""Ours: others call theirs a controller as well."""
MEMBERS = "app.kubernetes.io/name=hams,app.kubernetes.io/component=etcd"
NO_MEMBER = (
    "no member of the chart's etcd in namespace {}: say where it is with --system, or it is an etcd of your "
    "own, which is let be"
)
NO_CONTROLLER = "no controller in namespace {}: say where it is with --system"
DEPLOYMENTS = OWNED["Deployment"]


class NotInTime(Exception):
    """What was waited for did not happen; the text says what."""


class ReachableCluster(Protocol):
    """One namespace of one cluster, with the connection by which scenarios reach it."""

    kube: KubeClient
    namespace: str

    async def find(self, graph: str, /) -> ClusterGraph:
        """The graph of that name, as it is now. Raises if there is none: the scenario has failed then."""


class Background:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="chaos", daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it there; what it returns or raises."""
        return self.start(work).result()

    def start(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Let it run there."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self) -> None:
        """End the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class LiveRun:
    """`Run` of one graph. `answered_now`: how many requests the load has had answered; `faults`: when
    (monotonic) and what."""

    def __init__(
        self,
        there: Background,
        cluster: ReachableCluster,
        graph: str,
        system: str,
        answered_now: Callable[[], int],
    ) -> None:
        """`system`: the namespace of the controllers."""
        self._there = there
        self._cluster = cluster
        self._graph = graph
        self._system = system
        self._answered_now = answered_now
        self._controllers: dict[str, int] = {}
        self._etcd_members = 0
        self._cordoned: set[str] = set()
        """Nodes that this run has cordoned: not those on which somebody else wants no pods."""
        self.faults: list[tuple[float, str]] = []
        self._last = ""

    # -- looking ---------------------------------------------------------------------------------------------

    def _observe(self) -> ClusterGraph:
        return self._there.do(self._cluster.find(self._graph))

    def _kube(self, work: Coroutine[Any, Any, T]) -> T:
        return self._there.do(work)

    @property
    def operators(self) -> Mapping[str, bool]:
        """See `Run`."""
        return {op["name"]: "stateful" in op for op in self._observe().item["spec"]["operators"]}

    def condition(self, kind: str) -> Mapping[str, str]:
        """See `Run`."""
        return condition(self._observe().item, kind)

    def pod_of(self, operator: str, role: str) -> str:
        """See `Run`. Raises NotInTime if nobody has the role."""

        def running_pod() -> str:
            seen = self._observe()
            living = [pod.name for pod in seen.pods if not pod.deleting]
            if operator in (FRONTEND, MANAGER):
                return min(
                    (pod.name for pod in seen.pods if pod.of == operator and pod.ready and not pod.deleting),
                    default="",
                )
            names = [item.id for item in holders(seen, role) if item.operator == operator]
            return next((pod for name in names if (pod := pod_of(name, living))), "")

        return self._until(running_pod, chaos_role_s, f"a {role} of {operator}")

    def pods_of(self, operator: str) -> list[str]:
        """See `Run`."""
        return [pod.name for pod in self._observe().pods if pod.of == operator and not pod.deleting]

    def spare_pods(self) -> list[str]:
        """See `Run`."""
        return spare(self._observe())

    def epoch_of(self, operator: str) -> int:
        """See `Run`."""
        operators: list[Json] = (self._observe().item.get("status") or {}).get("operators", [])
        return next((int(op.get("epoch", 0)) for op in operators if op["name"] == operator), 0)

    def node_of(self, pod: str) -> str:
        """See `Run`."""
        return next((candidate.node for candidate in self._observe().pods if candidate.name == pod), "")

    # -- waiting ---------------------------------------------------------------------------------------------

    def _until(self, outcome: Callable[[], T], within_s: float, what: str) -> T:
        deadline = time.monotonic() + within_s
        while not (value := outcome()):
            if time.monotonic() > deadline:
                raise NotInTime(f"{what}: not within {within_s:g} s")
            time.sleep(chaos_poll_s)
        return value

    def redundant(self, within_s: float = chaos_redundant_s) -> None:
        """See `Run`. A lost state that waits for a person is not waited for."""
        deadline = time.monotonic() + within_s
        while why := why_not_redundant(seen := self._observe()):
            if condition(seen.item, READY).get("reason") == STATE_LOST and RESTART_LOST in why:
                raise NotInTime(f"a state is lost, and a person decides: {why}")
            if time.monotonic() > deadline:
                raise NotInTime(f"not redundant within {within_s:g} s: {why}")
            time.sleep(chaos_poll_s)

    def changed(self, within_s: float = chaos_role_s) -> None:
        """See `Run`."""
        gone = self._last
        self._until(
            lambda: gone not in [pod.name for pod in self._observe().pods if not pod.deleting],
            within_s,
            f"end of pod {gone}",
        )

    def moved(self, operator: str, epoch: int, within_s: float = chaos_redundant_s) -> None:
        """See `Run`."""
        self._until(lambda: self.epoch_of(operator) > epoch, within_s, f"a failover of {operator}")

    def answered(self, count: int, within_s: float = chaos_redundant_s) -> None:
        """See `Run`."""
        target = self._answered_now() + count
        self._until(lambda: self._answered_now() >= target, within_s, f"{count} more replies")

    def stalled(self, span_s: float) -> None:
        """See `Run`."""
        time.sleep(span_s)

    def replaced(self, operator: str, within_s: float = chaos_redundant_s) -> None:
        """See `Run`."""

        def is_replaced() -> bool:
            item = self._observe().item
            seen = (item.get("status") or {}).get("observedGeneration", 0) >= item["metadata"].get(
                "generation", 0
            )
            image = next(
                (op["model"].get("image") for op in item["spec"]["operators"] if op["name"] == operator), None
            )
            return seen and all(rolled_out(deployment, image) for deployment in self._deployments(operator))

        self._until(is_replaced, within_s, f"new pods of {operator}")

    def _deployments(self, operator: str) -> list[Json]:
        selector = f"{GRAPH}={self._graph},{OPERATOR}={operator}"
        return list(
            self._kube(self._cluster.kube.page(DEPLOYMENTS, self._cluster.namespace, selector))["items"]
        )

    # -- hurting ---------------------------------------------------------------------------------------------

    def note(self, what: str) -> None:
        """See `Run`."""
        self.faults.append((time.monotonic(), what))

    def delete(self, pod: str, *, force: bool = False) -> None:
        """See `Run`."""
        self.note(f"{'force ' if force else ''}delete {pod}")
        self._last = pod
        self._kube(
            self._cluster.kube.delete(PODS, self._cluster.namespace, pod, grace_s=0 if force else None)
        )

    def drain(self, node: str) -> None:
        """See `Run`."""
        self.note(f"drain {node}")
        there = self._kube(self._cluster.kube.get(NODES, "", node))
        if there is None or not there["spec"].get("unschedulable"):
            self._cordoned.add(node)
            self._kube(self._cluster.kube.merge(NODES, "", node, {"spec": {"unschedulable": True}}))
        deadline = time.monotonic() + chaos_drain_s
        while pods := [pod for pod in self._observe().pods if pod.node == node]:
            for pod in pods:
                if not pod.deleting:
                    self._evict(pod)
            if time.monotonic() > deadline:
                raise NotInTime(f"drain of {node}: {pods[0].name} is still there after {chaos_drain_s:g} s")
            time.sleep(chaos_poll_s)

    def _evict(self, pod: Pod) -> None:
        try:
            self._kube(self._cluster.kube.evict(self._cluster.namespace, pod.name))
        except KubeError as error:
            if error.status not in (404, 429):  # gone, or its budget does not permit it yet
                raise

    def undrain(self, node: str) -> None:
        """See `Run`."""
        if node in self._cordoned:
            self._kube(self._cluster.kube.merge(NODES, "", node, {"spec": {"unschedulable": None}}))

    def delete_controllers(self, *, force: bool = False) -> None:
        """See `Run`. Raises NotInTime if there is none."""
        page = self._kube(self._cluster.kube.page(PODS, self._system, CONTROLLERS))
        if not page["items"]:
            raise NotInTime(NO_CONTROLLER.format(self._system))
        self.note(f"{'force ' if force else ''}delete the controllers")
        for item in page["items"]:
            self._kube(
                self._cluster.kube.delete(
                    PODS, self._system, item["metadata"]["name"], grace_s=0 if force else None
                )
            )

    def stop_controllers(self) -> None:
        """See `Run`."""
        page = self._kube(self._cluster.kube.page(DEPLOYMENTS, self._system, CONTROLLERS))
        self._controllers = {
            item["metadata"]["name"]: int(item["spec"]["replicas"]) for item in page["items"]
        }
        if not self._controllers:
            raise NotInTime(NO_CONTROLLER.format(self._system))
        self.note("stop the controllers")
        self._scale(dict.fromkeys(self._controllers, 0))
        self._until(
            lambda: not self._kube(self._cluster.kube.page(PODS, self._system, CONTROLLERS))["items"],
            chaos_redundant_s,
            "their end",
        )

    def start_controllers(self) -> None:
        """See `Run`."""
        if not self._controllers:
            return  # they were not found, so they were not stopped
        self._scale(self._controllers)

        def ready() -> bool:
            page = self._kube(self._cluster.kube.page(DEPLOYMENTS, self._system, CONTROLLERS))
            return all(
                (item.get("status") or {}).get("readyReplicas", 0)
                == self._controllers.get(item["metadata"]["name"])
                for item in page["items"]
            )

        self._until(ready, chaos_redundant_s, "controllers that are Ready")

    def _scale(self, wanted: Mapping[str, int]) -> None:
        for name, replicas in wanted.items():
            self._kube(
                self._cluster.kube.merge(DEPLOYMENTS, self._system, name, {"spec": {"replicas": replicas}})
            )

    def _members(self) -> list[Json]:
        """Pods of the chart's etcd that are not about to go."""
        items: list[Json] = self._kube(self._cluster.kube.page(PODS, self._system, MEMBERS))["items"]
        return [item for item in items if not item["metadata"].get("deletionTimestamp")]

    def lose_etcd_member(self) -> None:
        """See `Run`. Raises ValueError where the loss of one would be more than that; nothing is done
        then."""
        members = self._members()
        if not members:
            raise ValueError(NO_MEMBER.format(self._system))
        if why := why_no_member_is_spare(members):
            raise ValueError(f"no member of etcd is deleted: {why}")
        self._etcd_members = len(members)
        name = min(item["metadata"]["name"] for item in members)
        self.note(f"force delete {name}")
        self._kube(self._cluster.kube.delete(PODS, self._system, name, grace_s=0))

    def etcd_whole(self, within_s: float = chaos_redundant_s) -> None:
        """See `Run`."""

        def is_whole() -> bool:
            return sum(pod_seen(item).ready for item in self._members()) >= self._etcd_members

        self._until(is_whole, within_s, f"{self._etcd_members} members of etcd that are Ready")

    def change_model(self, operator: str, image: str = "") -> None:
        """See `Run`."""
        self.note(f"{operator}: {f'image {image}' if image else 'restart its pods'}")
        if not image:
            again = {"kubectl.kubernetes.io/restartedAt": datetime.now(UTC).isoformat()}
            for item in self._deployments(operator):
                patch: Json = {"spec": {"template": {"metadata": {"annotations": again}}}}
                self._kube(
                    self._cluster.kube.merge(
                        DEPLOYMENTS, self._cluster.namespace, item["metadata"]["name"], patch
                    )
                )
            return
        item = self._observe().item
        # a merge patch knows whole lists only; the version keeps somebody else's change from being undone
        operators = [
            {**op, "model": {**op["model"], "image": image}} if op["name"] == operator else op
            for op in item["spec"]["operators"]
        ]
        body: Json = {
            "metadata": {"resourceVersion": item["metadata"]["resourceVersion"]},
            "spec": {"operators": operators},
        }
        self._kube(self._cluster.kube.merge(GRAPHS, self._cluster.namespace, self._graph, body))


# -- what a look says ----------------------------------------------------------------------------------------


def condition(item: Json, kind: str) -> Mapping[str, str]:
    """A condition of a ServiceGraph's status; {} if there is none."""
    conditions: list[dict[str, str]] = (item.get("status") or {}).get("conditions", [])
    return next((one for one in conditions if one["type"] == kind), {})


def holders(seen: ClusterGraph, *roles: str) -> list[InstanceStatus]:
    """Instances that have one of these roles by the status."""
    return [item for item in instances_of(seen) if item.role in roles]


def why_not_redundant(seen: ClusterGraph) -> str:
    """What is missing until every state has its backups in sync and every pod is Ready; "": nothing."""
    status = seen.item.get("status") or {}
    if status.get("observedGeneration", 0) < seen.item["metadata"].get("generation", 0):
        return "the controller has not seen the newest change"
    waits = awaited(status_of(seen).conditions)
    if waits is not None:
        return waits.message
    waiting = next((pod.name for pod in seen.pods if pod.deleting or not pod.ready), None)
    if waiting is not None:
        return f"pod {waiting} is not Ready"
    living = [pod.name for pod in seen.pods]
    named = [item.id for item in holders(seen, PRIMARY, BACKUP, ACTIVE)]
    homeless = next((name for name in named if pod_of(name, living) is None), None)
    return "" if homeless is None else f"{homeless} has no pod any more"


def spare(seen: ClusterGraph) -> list[str]:
    """Pods whose end loses no state. The status says who holds each operator's; frontends say by their
    readiness that they hold their copies."""
    well = [pod for pod in seen.pods if pod.ready and not pod.deleting]
    names = [pod.name for pod in well]
    needed: set[str] = set()
    copies = holders(seen, PRIMARY, BACKUP)
    for operator in {item.operator for item in copies}:
        homes = {pod_of(item.id, names) for item in copies if item.operator == operator}
        living = {pod for pod in homes if pod is not None}
        if len(living) < 2:
            needed |= living
    frontends = [pod.name for pod in well if pod.of == FRONTEND]
    if len(frontends) < 2:
        needed.update(frontends)
    return [name for name in names if name not in needed]


def why_no_member_is_spare(members: list[Json]) -> str:
    """Why etcd would not serve on without one of its members, or that one would not come back; "": it
    would."""
    if len(members) < 3:
        return f"of {len(members)} there would be no majority without it; three are needed"
    away = next((item["metadata"]["name"] for item in members if not pod_seen(item).ready), None)
    if away is not None:
        return f"{away} is not Ready, and without another one there would be no majority"
    persistent = all(
        any(volume.get("persistentVolumeClaim") for volume in item["spec"].get("volumes") or [])
        for item in members
    )
    return "" if persistent else "its data would go with it (etcd.persistence.enabled=false)"


def rolled_out(item: Json, image: str | None) -> bool:
    """Whether every pod of a Deployment is of its newest kind and Ready; and that kind has the image."""
    status, wanted = item.get("status") or {}, item["spec"].get("replicas", 1)
    images = [container.get("image") for container in item["spec"]["template"]["spec"]["containers"]]
    newest = status.get("observedGeneration", 0) >= item["metadata"].get("generation", 0)
    counts = {status.get(name, 0) for name in ("replicas", "updatedReplicas", "readyReplicas")}
    return newest and counts == {wanted} and (image is None or image in images)


@contextlib.contextmanager
def background() -> Iterator[Background]:
    """A `Background` that ends with the block."""
    started = Background()
    try:
        yield started
    finally:
        started.close()
