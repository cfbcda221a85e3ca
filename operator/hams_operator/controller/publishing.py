"""Status and Events of a ServiceGraph: what a person sees of it."""

import datetime
import hashlib
import logging

from hams_operator.controller.kube import EVENTS, GRAPHS, Kube, KubeError
from hams_operator.controller.store import Store
from hams_operator.plan.names import FIELD_MANAGER, Json
from hams_operator.plan.news import ClusterEvent, news
from hams_protocol.graph import Graph

log = logging.getLogger("hams.controller")


async def publish(kube: Kube, store: Store, item: Json, status: Json, graph: Graph | None) -> None:
    """Write the status if it is another one, and first what a person wants to see of the change: an Event
    too many is better than one lost. `graph`: the one that the status is about; None: a refusal."""
    before = item.get("status") or {}
    if status == before:
        return
    events = news(graph, before, status) if graph is not None else _refused(before, status)
    for entry in events:
        await _publish_event(kube, item, entry, status)
    same = {"apiVersion": item["apiVersion"], "kind": item["kind"]}
    # The uid: of no other one that has that name by now.
    metadata = {name: item["metadata"][name] for name in ("name", "namespace", "uid")}
    body = {**same, "metadata": metadata, "status": status}
    with store.writing(GRAPHS.kind, metadata["namespace"], metadata["name"]):
        held = await kube.apply(GRAPHS, metadata["namespace"], metadata["name"], body, "status")
        store.put_graph(held, ours=True)


async def _publish_event(kube: Kube, item: Json, entry: ClusterEvent, status: Json) -> None:
    """Its name is made of what it says, so that it is not said twice."""
    metadata = item["metadata"]
    said = f"{metadata['uid']} {entry.reason} {entry.message} {status.get('generation')}"
    now = rfc3339_now()
    event: Json = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name']}.{hashlib.sha256(said.encode()).hexdigest()[:16]}",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": item["apiVersion"],
            "kind": item["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata.get("resourceVersion", ""),
        },
        "reason": entry.reason,
        "message": entry.message[:1000],
        "type": "Warning" if entry.warning else "Normal",
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    try:
        await kube.create(EVENTS, metadata["namespace"], event)
    except KubeError as error:
        if error.status != 409:
            log.warning("an event is not published: %s", error)


def _refused(before: Json, status: Json) -> tuple[ClusterEvent, ...]:
    ready = status["conditions"][0]
    known = any(
        item.get("reason") == ready["reason"] and item.get("message") == ready["message"]
        for item in before.get("conditions", [])
    )
    return (
        ()
        if known
        else (ClusterEvent(ready["reason"], ready["message"], warning=ready["reason"] != "Ending"),)
    )


def rfc3339_now() -> str:
    """The present time as Kubernetes tells times, RFC 3339."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
