"""What Kubernetes holds, as last heard: ServiceGraphs, their objects, their pods. Kept as compressed bytes without what nobody asks
for: of a thousand graphs that is ten megabytes, of parsed objects some hundreds.

Its rule: a change that matters is told to `changed`; one that does not (a status that others keep) is not.
"""

import zlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from hams_operator.plan.difference import Key
from hams_operator.plan.names import GRAPH, Json
from hams_operator.plan.pods_seen import Pod, pod_seen

GraphKey = tuple[str, str]
"""Namespace and name of a graph."""


@dataclass(slots=True)
class _Known:
    graph: bytes = b""
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

    @property
    def graphs(self) -> int:
        """How many ServiceGraphs there are."""
        return sum(1 for known in self._known.values() if known.graph)

    def graph(self, key: GraphKey) -> Json | None:
        """The ServiceGraph, or None."""
        found = self._known[key].graph if key in self._known else b""
        return _unpacked(found) if found else None

    def objects(self, key: GraphKey) -> list[Json]:
        """All labelled objects but pods."""
        return [_unpacked(item) for item in self._known[key].objects.values()] if key in self._known else []

    def pods(self, key: GraphKey) -> tuple[Pod, ...]:
        """All labelled pods."""
        return tuple(self._known[key].pods.values()) if key in self._known else ()

    def put_graph(self, item: Json, *, ours: bool = False) -> None:
        """A ServiceGraph as it is now. Its status is ours: it is kept, and is no news; nor is anything that we have just written (`ours`)."""
        key = item["metadata"]["namespace"], item["metadata"]["name"]
        known = self._known[key]
        before: Json = _unpacked(known.graph) if known.graph else {}
        item = _lean(item)
        known.graph = _packed(item)
        if not ours and ({**before, "status": None} != {**item, "status": None} or not before):
            self._changed(key)

    def drop_graph(self, key: GraphKey) -> None:
        """A ServiceGraph is gone."""
        if key in self._known:
            self._known[key].graph = b""
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
        lean = _lean(item)
        lean.pop("status", None)
        found = _packed(lean)
        place = item["kind"], item["metadata"]["name"]
        if known.objects.get(place) != found:
            known.objects[place] = found
            if not ours:
                self._changed(key)

    def drop(self, kind: str, namespace: str, name: str) -> None:
        """An object or pod is gone."""
        for key, known in list(self._known.items()):
            if key[0] != namespace:
                continue
            there: bool = known.pods.pop(name, None) is not None if kind == "Pod" else known.objects.pop((kind, name), None) is not None
            if there:
                self._changed(key)
                return

    def forget(self, key: GraphKey) -> None:
        """Let go of a graph of which nothing is left."""
        if key in self._known and self._known[key].empty:
            del self._known[key]


def _packed(item: Json) -> bytes:
    return zlib.compress(msgspec.json.encode(item), _LEVEL)


def _unpacked(data: bytes) -> Json:
    found: Json = msgspec.json.decode(zlib.decompress(data))
    return found


_LEVEL = 1
"""Objects of Kubernetes shrink to a quarter by the quickest."""


def _lean(item: Json) -> Json:
    metadata = {name: value for name, value in item["metadata"].items() if name not in ("managedFields", "resourceVersion", "selfLink")}
    return {**item, "metadata": metadata}
