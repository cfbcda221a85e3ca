"""What the pods of a graph are, as far as the graph cares; and which of them are over."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from hams_operator.plan.names import FRONTEND_ROLE, INCARNATION, MANAGER_ROLE, MODEL, OPERATOR, ROLE, Json
from hams_protocol.ids import InstanceId
from hams_protocol.topology import Topology


@dataclass(frozen=True, slots=True)
class Failure:
    """How the model of a pod ended last, and how often it has: exit code (negative: the signal) and the last lines of its log."""

    exit_code: int
    log: str
    at: str
    restarts: int


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod. `of`: its operator, "frontend" or "manager". `role`: as it is labelled.

    `unschedulable`, `waiting`: why it does not start, or "".
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


def pod_seen(item: Json) -> Pod:
    """A pod as Kubernetes holds it."""
    metadata, status = item["metadata"], item.get("status") or {}
    labels = metadata.get("labels") or {}
    conditions = {found["type"]: found for found in status.get("conditions") or []}
    scheduled = conditions.get("PodScheduled", {})
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    waiting = [found["state"]["waiting"] for found in containers if "waiting" in (found.get("state") or {})]
    stuck = [found for found in waiting if found.get("reason") not in (None, "ContainerCreating", "PodInitializing")]
    return Pod(
        name=metadata["name"],
        of=labels.get(OPERATOR) or labels.get(ROLE, ""),
        incarnation=int(labels.get(INCARNATION, "0")),
        ready=conditions.get("Ready", {}).get("status") == "True",
        deleting="deletionTimestamp" in metadata,
        role=labels.get(ROLE, ""),
        unschedulable=scheduled.get("message", "no node fits") if scheduled.get("reason") == "Unschedulable" else "",
        waiting=f"{stuck[0]['reason']}: {stuck[0].get('message', '')}".rstrip(": ") if stuck else "",
        failure=_failure(containers),
        uid=metadata.get("uid", ""),
        node=(item.get("spec") or {}).get("nodeName", ""),
    )


def _failure(containers: list[Json]) -> Failure | None:
    for found in containers:
        if found["name"] != MODEL:
            continue
        ended = (found.get("state") or {}).get("terminated") or (found.get("lastState") or {}).get("terminated")
        if ended and ended.get("exitCode", 0) != 0:
            code = int(ended["exitCode"])
            lines = (ended.get("message") or "").rstrip()
            return Failure(128 - code if code > 128 else code, lines, ended.get("finishedAt", ""), int(found.get("restartCount", 0)))
    return None


def pod_of(instance: InstanceId, pods: Collection[str]) -> str | None:
    """The pod in which an instance runs, or ran: its id is the pod's name and what makes it fresh (`hams_wire.process.instance_in`)."""
    found = [pod for pod in pods if instance.startswith(f"{pod}-")]
    return max(found, key=len, default=None)


def homes(instances: Iterable[InstanceId], pods: Iterable[Pod]) -> dict[InstanceId, Pod]:
    """The pod of each instance that has one here."""
    by_name = {pod.name: pod for pod in pods}
    found = {instance: pod_of(instance, by_name) for instance in instances}
    return {instance: by_name[pod] for instance, pod in found.items() if pod is not None}


def named_in(topology: Topology) -> set[InstanceId]:
    """Every instance to which the topology gives a role, or will."""
    found = {name for table in topology.tables for slot in table.slots for name in (slot.instance, slot.heir) if name is not None}
    for item in topology.sets:
        found.update((*item.members, *item.joining))
    return found


def pods_over(topology: Topology, registered: Collection[InstanceId], pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """Pods to delete: all that ever lived in them was revoked. Not while the topology names one of their instances: its kept state may be the
    last copy (protocol.md, sections 6 and 7). Nor while an instance lives there under a fresh id."""
    living = [pod for pod in pods if not pod.deleting]
    named = named_in(topology)
    revoked = set(topology.revoked)
    known: dict[str, set[InstanceId]] = {}
    for instance, pod in homes(named | revoked | set(registered), living).items():
        known.setdefault(pod.name, set()).add(instance)
    found = []
    for pod in living:
        here = known.get(pod.name, set())
        if here & revoked and not here & named and not (here & set(registered)) - revoked:
            found.append(pod)
    return tuple(found)


def roles_of(topology: Topology, registered: Mapping[InstanceId, str], pods: Iterable[Pod]) -> dict[str, str]:
    """The role that each pod's label should name: primary, backup, joining, active, standby, frontend, manager. `registered`: whose each is."""
    places = homes(named_in(topology) | set(registered), pods)
    found: dict[str, str] = {}
    for instance, of in registered.items():
        pod = places.get(instance)
        if pod is not None and pod.of not in (FRONTEND_ROLE, MANAGER_ROLE) and instance not in topology.revoked:
            found[pod.name] = role_of(topology, of, instance)
    return found


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
