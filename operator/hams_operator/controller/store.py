"""What Kubernetes holds, as last heard: ServiceGraphs, their objects, their pods. Kept as compressed bytes
without what nobody asks for: of a thousand graphs that is ten megabytes, of parsed objects some hundreds.

Its rule: a change that matters is told to `changed`; one that does not (a status that others keep) is not.
What we have just written comes back once more by the watch, and is not looked at again.
"""

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from hams_operator.plan.difference import Key
from hams_operator.plan.names import GRAPH, Json
from hams_operator.plan.pods_seen import Pod, pod_seen

GraphKey = tuple[str, str]
"""Namespace and name of a graph."""


_Name = tuple[str, str, str]
"""Kind, namespace and name of an object."""

GRAPH_KIND = "ServiceGraph"

CONDITIONS = ("Ready", "Redundant", "Progressing", "Reconciling", "Stalled")
"""Types of the conditions that a status of ours has."""

REFUSAL = "refusal"
"""Where a Deployment's status, of which little is held, says why its pods are refused."""
ROLLING = "rolling"
"""Where it says that pods are replaced."""

_Update = tuple[str, Callable[[], Json] | None]
"""What the watch says of an object: its version, and how to have it; None: it is gone."""


@dataclass(slots=True)
class _Known:
    graph: bytes = b""
    conditions: tuple[tuple[str, bool], ...] = ()
    objects: dict[Key, bytes] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return not (self.graph or self.objects or self.pods)


class Store:
    """`changed(key)` is called after each change that matters."""

    def __init__(self, changed: Callable[[GraphKey], None]) -> None:
        self._changed = changed
        self._known: defaultdict[GraphKey, _Known] = defaultdict(_Known)
        self._written: dict[_Name, str] = {}
        self._waiting: dict[_Name, _Update | None] = {}

    @contextmanager
    def writing(self, kind: str, namespace: str, name: str) -> Iterator[None]:
        """Around a write of ours, and the `put` of its answer: what the watch says of the object meanwhile
        waits, as most often it is that answer."""
        key = kind, namespace, name
        # two graphs may want an object of one name: then neither waits for the other
        self._waiting.setdefault(key, None)
        try:
            yield
        finally:
            update = self._waiting.pop(key, None)
            if update is not None:
                self._take_up(key, *update)

    def _take_up(self, key: _Name, version: str, item: Callable[[], Json] | None) -> None:
        kind, namespace, name = key
        if (
            item is None
            # before our write, and then the watch has still to tell what that made; or after it, and then
            # that was its last word
        ):
            (self.drop_graph((namespace, name)) if kind == GRAPH_KIND else self.drop(*key))
        elif self._written.get(key) == version:
            del self._written[key]
        else:
            (self.put_graph if kind == GRAPH_KIND else self.put)(item())

    def on_event(self, kind: str, namespace: str, name: str, version: str, item: Callable[[], Json]) -> bool:
        """Whether this is to wait, or is what we have just written, coming back. Anything else that comes in
        between makes that news again."""
        key = kind, namespace, name
        if key in self._waiting:
            self._waiting[key] = version, item
            return True
        return bool(version) and self._written.pop(key, "") == version

    def _has_heard(self, item: Json, ours: bool) -> bool:
        metadata = item["metadata"]
        key, version = (
            (item["kind"], metadata["namespace"], metadata["name"]),
            metadata.get("resourceVersion", ""),
        )
        if ours:
            self._written[key] = version
            return False
        return self.on_event(*key, version, lambda: item)

    def _forget(self, name: _Name) -> None:
        self._written.pop(name, None)
        if name in self._waiting:
            self._waiting[name] = "", None

    @property
    def graphs(self) -> int:
        """How many ServiceGraphs there are."""
        return sum(1 for known in self._known.values() if known.graph)

    def conditions(self) -> Iterator[tuple[GraphKey, str, bool]]:
        """Of every ServiceGraph that has a status: the type of each condition, and whether it is True. What
        is Unknown is not."""
        for key, known in self._known.items():
            for kind, holds in known.conditions:
                yield key, kind, holds

    def graph(self, key: GraphKey) -> Json | None:
        """The ServiceGraph, or None."""
        packed = self._known[key].graph if key in self._known else b""
        return _unpacked(packed) if packed else None

    def objects(self, key: GraphKey) -> list[Json]:
        """All labelled objects but pods."""
        return [_unpacked(item) for item in self._known[key].objects.values()] if key in self._known else []

    def pods(self, key: GraphKey) -> tuple[Pod, ...]:
        """All labelled pods."""
        return tuple(self._known[key].pods.values()) if key in self._known else ()

    def put_graph(self, item: Json, *, ours: bool = False) -> None:
        """A ServiceGraph as it is now. Its status is ours: it is kept, and is no news; nor are finalizers
        where we have just written (`ours`). What others have asked for meanwhile comes with the answer to our
        write, and is news: the watch, which tells of it later, finds it here already."""
        if self._has_heard(item, ours):
            return
        key = item["metadata"]["namespace"], item["metadata"]["name"]
        known = self._known[key]
        before: Json = _unpacked(known.graph) if known.graph else {}
        item = _lean(item)
        known.graph, known.conditions = _packed(item), _conditions(item)
        if not before or _asked(before, ours) != _asked(item, ours):
            self._changed(key)

    def drop_graph(self, key: GraphKey, uid: str = "") -> None:
        """A ServiceGraph is gone: the one with this uid, if that is known. There may be another of that name
        already."""
        held = self.graph(key) if uid else None
        if held is not None and held["metadata"].get("uid") != uid:
            return
        self._forget((GRAPH_KIND, *key))
        if key in self._known:
            self._known[key].graph, self._known[key].conditions = b"", ()
            self._changed(key)

    def put(self, item: Json, *, ours: bool = False) -> None:
        """An object or pod as it is now; `ours`: we have just written it."""
        name = (item["metadata"].get("labels") or {}).get(GRAPH)
        if name is None:
            return
        key = item["metadata"]["namespace"], name
        known = self._known[key]
        if item["kind"] == "Pod":
            pod = pod_seen(item)
            if known.pods.get(pod.name) != pod:
                known.pods[pod.name] = pod
                self._changed(key)
            return
        if self._has_heard(item, ours):
            return
        lean = _lean(item)
        status = lean.pop("status", None) or {}
        if item["kind"] == "Deployment" and (what_matters := _of_deployment(status, lean)):
            lean["status"] = what_matters
        packed = _packed(lean)
        place = item["kind"], item["metadata"]["name"]
        if known.objects.get(place) != packed:
            known.objects[place] = packed
            if not ours:
                self._changed(key)

    def drop(self, kind: str, namespace: str, name: str) -> None:
        """An object or pod is gone."""
        self._forget((kind, namespace, name))
        for key, known in list(self._known.items()):
            if key[0] != namespace:
                continue
            there: bool = (
                known.pods.pop(name, None) is not None
                if kind == "Pod"
                else known.objects.pop((kind, name), None) is not None
            )
            if there:
                self._changed(key)
                return

    def forget(self, key: GraphKey) -> None:
        """Let go of a graph of which nothing is left."""
        if key in self._known and self._known[key].empty:
            del self._known[key]


def _of_deployment(status: Json, item: Json) -> Json:
    """Why the ReplicaSet of a Deployment makes no pods: quotas, policies and webhooks refuse pods, not
    Deployments. And whether pods are replaced."""
    lean = {}
    for condition in status.get("conditions") or []:
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            lean[REFUSAL] = str(condition.get("message", ""))
    wanted = (item.get("spec") or {}).get("replicas", 1)
    if "observedGeneration" in status and (
        status["observedGeneration"] < item["metadata"].get("generation", 0)
        or status.get("updatedReplicas", 0) < wanted
        or status.get("replicas", 0) > status.get("updatedReplicas", 0)
    ):
        lean[ROLLING] = "True"
    return lean


def _conditions(item: Json) -> tuple[tuple[str, bool], ...]:
    states = {
        condition.get("type"): condition.get("status")
        for condition in (item.get("status") or {}).get("conditions") or []
    }
    return tuple((kind, states[kind] == "True") for kind in CONDITIONS if kind in states)


def _packed(item: Json) -> bytes:
    return zlib.compress(msgspec.json.encode(item), _LEVEL)


def _unpacked(data: bytes) -> Json:
    value: Json = msgspec.json.decode(zlib.decompress(data))
    return value


_LEVEL = 1
"""Objects of Kubernetes shrink to a quarter by the quickest."""


def _asked(item: Json, ours: bool) -> Json:
    """What others say of a ServiceGraph."""
    metadata = {
        name: value for name, value in item["metadata"].items() if not (ours and name == "finalizers")
    }
    return {**item, "metadata": metadata, "status": None}


def _lean(item: Json) -> Json:
    metadata = {
        name: value
        for name, value in item["metadata"].items()
        if name not in ("managedFields", "resourceVersion", "selfLink")
    }
    return {**item, "metadata": metadata}
