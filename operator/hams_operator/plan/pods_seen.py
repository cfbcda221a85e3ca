"""What the pods of a graph are, as far as the graph cares; and which of them are over."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from hams_operator.plan.names import FRONTEND_ROLE, MANAGER_ROLE, MODEL, OPERATOR, ROLE, Json, incarnation_in
from hams_protocol.ids import InstanceId
from hams_protocol.topology import Topology

CRASH_LOOP_RESTARTS = 2
"""A container that has ended this often, and is not ready, is in a crash loop."""

RESIGNED = 75
"""A process ends so that was revoked or has lost its role."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How a container of a pod ended last, and how often it has: exit code (negative: the signal) and the
    last lines of its log."""

    exit_code: int
    log: str
    at: str
    restarts: int
    container: str = MODEL

    @property
    def last_line(self) -> str:
        """Of its log."""
        return next(iter(self.log.splitlines()[-1:]), "it said nothing")


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod. `of`: its operator, "frontend" or "manager". `role`: as it is labelled.

    `unschedulable`, `waiting`: why it does not start, or "". `bound_at`: since when it has a node whose
    kubelet has said nothing of it yet, or "". `creating_since`: since when a kubelet makes its containers, or
    "": what keeps it from that is in the pod's Events only. `gone_by`: when its kubelet should have ended it,
    or "": it was not asked to.
    """

    name: str
    of: str
    incarnation: int = 0
    ready: bool = False
    deleting: bool = False
    role: str = ""
    unschedulable: str = ""
    waiting: str = ""
    failure: Failure | None = None
    uid: str = ""
    node: str = ""
    creating_since: str = ""
    gone_by: str = ""
    bound_at: str = ""


def pod_seen(item: Json) -> Pod:
    """A pod as Kubernetes holds it."""
    metadata, status = item["metadata"], item.get("status") or {}
    labels = metadata.get("labels") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
    scheduled = conditions.get("PodScheduled", {})
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    waiting = [
        condition["state"]["waiting"]
        for condition in containers
        if "waiting" in (condition.get("state") or {})
    ]
    stuck = [
        condition
        for condition in waiting
        if condition.get("reason") not in (None, "ContainerCreating", "PodInitializing")
    ]
    creating = any(condition.get("reason") == "ContainerCreating" for condition in waiting)
    return Pod(
        name=metadata["name"],
        of=labels.get(OPERATOR) or labels.get(ROLE, ""),
        incarnation=incarnation_in(labels),
        ready=conditions.get("Ready", {}).get("status") == "True",
        deleting="deletionTimestamp" in metadata,
        role=labels.get(ROLE, ""),
        unschedulable=scheduled.get("message", "no node fits")
        if scheduled.get("reason") == "Unschedulable"
        else "",
        waiting=f"{stuck[0]['reason']}: {stuck[0].get('message', '')}".rstrip(": ") if stuck else "",
        failure=_failure(containers),
        uid=metadata.get("uid", ""),
        node=(item.get("spec") or {}).get("nodeName", ""),
        gone_by=metadata.get("deletionTimestamp") or "",
        creating_since=(status.get("startTime") or "") if creating else "",
        bound_at=""
        if "startTime" in status or scheduled.get("status") != "True"
        else scheduled.get("lastTransitionTime") or "",
    )


def _failure(containers: list[Json]) -> Failure | None:
    """Of the model, or else of the container that has ended most often. One that was revoked ended rightly,
    and says so."""
    in_order = sorted(containers, key=lambda item: (item["name"] != MODEL, -int(item.get("restartCount", 0))))
    for terminated in in_order:
        ended = (terminated.get("state") or {}).get("terminated") or (terminated.get("lastState") or {}).get(
            "terminated"
        )
        if ended and ended.get("exitCode", 0) not in (0, RESIGNED):
            code = int(ended["exitCode"])
            lines = (ended.get("message") or "").rstrip()
            return Failure(
                128 - code if code > 128 else code,
                lines,
                ended.get("finishedAt", ""),
                int(terminated.get("restartCount", 0)),
                terminated["name"],
            )
    return None


def keeps_ending(pod: Pod) -> bool:
    """Whether a container of a pod that is not ready has ended in vain so often that the kubelet backs
    off."""
    return not pod.ready and pod.failure is not None and pod.failure.restarts >= CRASH_LOOP_RESTARTS


def pod_of(instance: InstanceId, pods: Collection[str]) -> str | None:
    """The pod in which an instance runs, or ran: its id is the pod's name and what makes it fresh
    (`hams_wire.process.instance_in`)."""
    fitting = [pod for pod in pods if instance.startswith(f"{pod}-")]
    return max(fitting, key=len, default=None)


def homes(instances: Iterable[InstanceId], pods: Iterable[Pod]) -> dict[InstanceId, Pod]:
    """The pod of each instance that has one here."""
    by_name = {pod.name: pod for pod in pods}
    pods_of = {instance: pod_of(instance, by_name) for instance in instances}
    return {instance: by_name[pod] for instance, pod in pods_of.items() if pod is not None}


def named_in(topology: Topology) -> set[InstanceId]:
    """Every instance to which the topology gives a role, or will; and keepers, who may have the only copy of
    a state beside a primary."""
    names = {
        name
        for table in topology.tables
        for slot in table.slots
        for name in (slot.instance, slot.successor)
        if name is not None
    }
    for item in topology.sets:
        names.update((*item.holders, *item.joining))
    return names


def pods_over(topology: Topology, registered: Collection[InstanceId], pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """Pods to delete: all that ever lived in them was revoked. Not while the topology names one of their
    instances: its kept state may be the last copy (protocol.md, sections 6 and 7). Nor while an instance
    lives there under a fresh id. Nor where a container keeps ending: a fresh pod would end as well, at once
    and without the kubelet's back-off, which is what keeps a graph that cannot start from taking the nodes of
    others."""
    living = [pod for pod in pods if not pod.deleting and not keeps_ending(pod)]
    named = named_in(topology)
    revoked = set(topology.revoked)
    known: dict[str, set[InstanceId]] = {}
    for instance, pod in homes(named | revoked | set(registered), living).items():
        known.setdefault(pod.name, set()).add(instance)
    names = []
    for pod in living:
        here = known.get(pod.name, set())
        if here & revoked and not here & named and not (here & set(registered)) - revoked:
            names.append(pod)
    return tuple(names)


def pods_silent(
    topology: Topology, registered: Collection[InstanceId], pods: Iterable[Pod]
) -> tuple[Pod, ...]:
    """Pods that say Ready though no instance is registered there, nor named by the topology: a dead backup,
    standby or manager has no role that anybody would revoke, and the kubelet that would say that it is dead
    is so, too."""
    living = [pod for pod in pods if pod.ready and not pod.deleting]
    homed = {pod.name for pod in homes(named_in(topology) | set(registered), living).values()}
    return tuple(pod for pod in living if pod.name not in homed)


def roles_of(topology: Topology, registered: Mapping[InstanceId, str], pods: Iterable[Pod]) -> dict[str, str]:
    """The role that each pod's label should name: primary, backup, joining, active, standby, frontend,
    manager. `registered`: whose each is."""
    places = homes(named_in(topology) | set(registered), pods)
    roles: dict[str, str] = {}
    for instance, of in registered.items():
        pod = places.get(instance)
        if (
            pod is not None
            and pod.of not in (FRONTEND_ROLE, MANAGER_ROLE)
            and instance not in topology.revoked
        ):
            roles[pod.name] = role_of(topology, of, instance)
    return roles


def role_of(topology: Topology, op: str, instance: InstanceId) -> str:
    """What an instance of an operator is now."""
    item = topology.find(op)
    if item.primary == instance:
        return "primary"
    if instance in item.in_sync:
        return "backup"
    if instance in item.joining:
        return "joining"
    return "active" if any(slot.instance == instance for slot in topology.table(op).slots) else "standby"
