"""What a person wants to see as Kubernetes Events: told from two statuses, so that nothing is said twice and
nothing needs to be remembered."""

from dataclasses import dataclass

from hams_operator.plan.names import Json
from hams_operator.plan.status import REPLACING, is_true
from hams_protocol.graph import Graph
from hams_protocol.wholeness import copies_in_sync


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """One Event. `warning`: something is worse than it was."""

    reason: str
    message: str
    warning: bool = False


def news(graph: Graph, before: Json, now: Json) -> tuple[ClusterEvent, ...]:
    """What has happened between two statuses of one graph."""
    items: list[ClusterEvent] = []
    earlier = {item["name"]: item for item in before.get("operators", [])}
    for item in now.get("operators", []):
        old = earlier.get(item["name"])
        if old is not None:
            items += _of_operator(graph, old, item)
    items += _of_conditions(before, now)
    failure, known = now.get("lastFailureInfo"), before.get("lastFailureInfo")
    if failure and (not known or known.get("instance") != failure["instance"]):
        last = failure["log"].splitlines()[-1:] or ["it said nothing"]
        text = (
            f"the model of {failure['operator']} keeps ending ({failure['instance']}, exit code "
            f"{failure['exitCode']}): {last[0]}"
        )
        items.append(ClusterEvent("ModelCrashLoop", text, warning=True))
    return tuple(items)


def _of_operator(graph: Graph, old: Json, new: Json) -> list[ClusterEvent]:
    name = new["name"]
    op = graph.operators.get(name)
    if op is None:
        return []
    items = []
    if not op.stateful:
        for number, (was, is_now) in enumerate(
            zip(old.get("active", []), new.get("active", []), strict=False)
        ):
            if was and is_now and was != is_now:
                items.append(
                    ClusterEvent("Promoted", f"{is_now} serves slot {number} of {name} instead of {was}")
                )
        return items
    if new["epoch"] > old.get("epoch", 0) >= 1:
        reason = new.get("lastFailover", {}).get("reason", "")
        if new.get("primary") and new.get("primary") != old.get("primary"):
            items.append(
                ClusterEvent(
                    "Promoted", f"{new['primary']} is primary of {name} in epoch {new['epoch']}: {reason}"
                )
            )
        else:
            items.append(ClusterEvent("RolledBack", f"{name} begins epoch {new['epoch']}: {reason}"))
    loss = new.get("lastLoss")
    if loss is not None and loss != old.get("lastLoss"):
        text = (
            f"the state of {name} was lost and began again in epoch {loss['epoch']} from version "
            f"{loss['version']}"
        )
        items.append(ClusterEvent("StateRestarted", text, warning=True))
    held, holds = len(old.get("inSync", [])), len(new.get("inSync", []))
    if held < op.backups <= holds:
        items.append(ClusterEvent("ReProtected", copies_in_sync(name, holds, op.backups)))
    elif holds < min(held, op.backups):
        items.append(ClusterEvent("Unprotected", copies_in_sync(name, holds, op.backups), warning=True))
    return items


def _of_conditions(before: Json, now: Json) -> list[ClusterEvent]:
    changed = []
    conditions = {item["type"]: item for item in now.get("conditions", [])}
    earlier = {item["type"]: item for item in before.get("conditions", [])}
    for kind, good, bad in (("Ready", "Ready", "NotReady"), ("Redundant", "Redundant", "Degraded")):
        if is_true(now, kind) and not is_true(before, kind):
            changed.append(
                ClusterEvent(
                    good, "the graph answers" if kind == "Ready" else "every state has its backups in sync"
                )
            )
        elif is_true(before, kind) and not is_true(now, kind):
            changed.append(
                ClusterEvent(
                    bad, f"{conditions[kind]['message']} ({conditions[kind]['reason']})", warning=True
                )
            )
    was, is_now = (items.get("Progressing", {}) for items in (earlier, conditions))
    if is_now.get("reason") == REPLACING != was.get("reason"):
        changed.append(ClusterEvent("Replacing", is_now["message"]))
    elif was.get("reason") == REPLACING and is_now.get("reason") in ("Stable", "Recovering"):
        changed.append(ClusterEvent("Replaced", "the shape that was asked for serves"))
    for reason in ("PodsRefused", "CrashLoop", "ChangeRefused", "Invalid", "NameTaken", "Rejected"):
        mine = [item for item in conditions.values() if item["reason"] == reason]
        known = {(item["reason"], item["message"]) for item in earlier.values()}
        if mine and (mine[0]["reason"], mine[0]["message"]) not in known:
            changed.append(ClusterEvent(reason, mine[0]["message"], warning=True))
    return changed
