"""A graph on a cluster as its status and its pods show it, in the terms of a local run's status.

It asks nobody: what it knows is what the API server has answered to others.
"""

from dataclasses import dataclass

from hams_graph.describe import mode_warning
from hams_operator.graph_status import (
    Condition,
    FailureInfo,
    GraphStatus,
    InstanceStatus,
    OnTime,
    PolicyReplaced,
)
from hams_operator.plan.names import FRONTEND_ROLE, MANAGER_ROLE, GraphRef, Json
from hams_operator.plan.pods_seen import Pod, pod_of
from hams_protocol.graph import Mode
from hams_protocol.wholeness import READY
from hams_wire.limits import timeliness_window_s


@dataclass(frozen=True, slots=True)
class ClusterGraph:
    """A graph on a cluster, and its pods."""

    item: Json
    pods: tuple[Pod, ...]


def status_of(seen: ClusterGraph) -> GraphStatus:
    """As `hams status` shows a local run: the graph's status, one line per instance. Process ids of a pod
    mean nothing outside; there are none."""
    metadata, status = seen.item["metadata"], seen.item.get("status") or {}
    place = GraphRef(metadata["name"], metadata["namespace"])
    failure = status.get("lastFailureInfo")
    replaced = [item for item in status.get("operators", []) if "policyReplaced" in item]
    log = tuple(str(failure.get("log", "")).splitlines()) if failure else ()
    return GraphStatus(
        metadata["name"],
        status.get("url", place.url),
        place.grpc,
        status.get("generation", 0),
        tuple(
            Condition(item["type"], item["status"], item["reason"], item["message"])
            for item in status.get("conditions", [])
        )
        or (Condition(READY, "Unknown", "NoStatus", "the controller has not looked at it yet"),),
        tuple(instances_of(seen)),
        (FailureInfo(failure["operator"], failure["instance"], failure.get("exitCode", 0), log),)
        if failure
        else (),
        warnings=_of_mode(seen.item),
        replaced=tuple(
            PolicyReplaced(
                item["name"], "", item["policyReplaced"]["policy"], item["policyReplaced"]["reason"]
            )
            for item in replaced
        ),
    )


def _of_mode(item: Json) -> tuple[str, ...]:
    """The warning of the graph's mode; none of a mode that is not known here."""
    mode = next((mode for mode in Mode if mode == item.get("spec", {}).get("mode")), Mode.NON_STOP)
    return tuple(filter(None, [mode_warning(mode)]))


def instances_of(seen: ClusterGraph) -> list[InstanceStatus]:
    """Instances with a role by the status, and pods that have none there: frontends, managers, and those that
    are still starting."""
    listed: list[InstanceStatus] = []
    living = {pod.name: pod for pod in seen.pods if not pod.deleting}
    for op in (seen.item.get("status") or {}).get("operators", []):
        epoch, name = op.get("epoch", 0), op["name"]
        roles = [
            ("primary", [op["primary"]] if "primary" in op else []),
            ("backup", op.get("inSync", [])),
            ("joining", op.get("joining", [])),
        ]
        roles += [
            ("active", list(dict.fromkeys(filter(None, op.get("active", []))))),
            ("standby", op.get("standbys", [])),
        ]
        for role, instances in roles:
            shown = 0 if role in ("standby", "joining") else epoch
            on_time = _on_time(op) if role in ("primary", "active") else None
            listed += [
                InstanceStatus(item, name, role, False, shown, op.get("version"), None, None, on_time)
                for item in instances
            ]
    known = {pod_of(item.id, living) for item in listed}
    leader = min((pod.name for pod in living.values() if pod.of == MANAGER_ROLE and pod.ready), default=None)
    for pod in sorted(living.values(), key=lambda pod: pod.name):
        if pod.of in (FRONTEND_ROLE, MANAGER_ROLE):
            on_time = _on_time(seen.item.get("status") or {}) if pod.of == FRONTEND_ROLE else None
            listed.append(
                InstanceStatus(pod.name, None, pod.of, pod.name == leader, 0, None, None, None, on_time)
            )
        elif pod.name not in known:
            listed.append(InstanceStatus(pod.name, pod.of, "starting", False, 0, None, None, None))
    return listed


def _on_time(status: Json) -> OnTime | None:
    """What a status says of deadlines: of all instances of an operator together, or of all frontends."""
    percent = status.get("onTimePercent")
    return None if percent is None else OnTime(percent / 100, timeliness_window_s)
