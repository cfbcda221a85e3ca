"""An API server in memory: server-side apply as far as one manager needs it, finalizers, owner references,
and failures on demand.

Of managed fields it knows as much as can go wrong: what a POST has set stays, whatever an apply says, until
its owner is turned into one by apply.
"""

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator
from typing import Any

from hams_operator.controller.kube import KubeError, Resource
from hams_operator.plan.names import FIELD_MANAGER

Json = dict[str, Any]


class FakeKube:
    """Implements `Kube`. `calls` are the writes; `fail` makes the nth call from now on raise once, `refused`
    every write of these words."""

    def __init__(self) -> None:
        self.items: dict[tuple[str, str, str], Json] = {}
        self.calls: list[str] = []
        self.refused: dict[str, KubeError] = {}
        self.graces: dict[str, int | None] = {}
        self.asked = 0
        self.requests = 0
        self._fail_at: dict[int, KubeError] = {}
        self._counter = itertools.count(1)
        self.changed = asyncio.Event()

    def fail(self, number: int, error: KubeError) -> None:
        self._fail_at[self.asked + number] = error

    def of(self, kind: str) -> list[Json]:
        return [item for (result, _, _), item in self.items.items() if result == kind]

    def put(self, item: Json) -> Json:
        item = copy.deepcopy(item)
        metadata = item["metadata"]
        metadata.setdefault("uid", f"uid-{next(self._counter)}")
        metadata["resourceVersion"] = str(next(self._counter))
        if item["kind"] == "PodDisruptionBudget":  # its controller says so at once
            item.setdefault("status", {"observedGeneration": 1, "currentHealthy": 1, "desiredHealthy": 1})
        self.items[item["kind"], metadata.get("namespace", ""), metadata["name"]] = item
        self.changed.set()
        return copy.deepcopy(item)

    def _ask(self, what: str = "") -> None:
        self.asked += 1
        error = self._fail_at.pop(self.asked, None)
        if error is not None:
            raise error
        if what in self.refused:
            raise self.refused[what]
        if what:
            self.calls.append(what)

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        self._ask()
        return copy.deepcopy(self.items.get((resource.kind, namespace, name)))

    async def create(self, resource: Resource, namespace: str, item: Json) -> Json:
        item = {**item, "metadata": {**item["metadata"], "namespace": namespace}}
        self._ask(f"create {resource.kind} {item['metadata']['name']}")
        if (resource.kind, namespace, item["metadata"]["name"]) in self.items:
            raise KubeError(409, "already exists")
        owner = {
            "manager": FIELD_MANAGER,
            "operation": "Update",
            "apiVersion": item.get("apiVersion", "v1"),
            "fieldsV1": {"f:metadata": {}},
        }
        return self.put({**item, "metadata": {**item["metadata"], "managedFields": [owner]}})

    async def replace(self, resource: Resource, namespace: str, name: str, item: Json) -> Json:
        self._ask(f"replace {resource.kind} {name}")
        there = self.items.get((resource.kind, namespace, name))
        if there is None or there["metadata"]["resourceVersion"] != item["metadata"].get("resourceVersion"):
            raise KubeError(409, "the object has been modified")
        return self.put(item)

    async def apply(self, resource: Resource, namespace: str, name: str, item: Json, sub: str = "") -> Json:
        self._ask(f"apply {resource.kind} {name}{'/' + sub if sub else ''}")
        there = self.items.get((resource.kind, namespace, name))
        if sub:
            if there is None:
                raise KubeError(404, "not found")
            return self.put({**there, sub: item[sub]})
        same = (
            {}
            if there is None
            else {key: value for key, value in there["metadata"].items() if key in ("uid", "managedFields")}
        )
        if any(entry["operation"] == "Update" for entry in same.get("managedFields", ())):
            item = _merged(there, item)
        return self.put({**item, "metadata": {**item["metadata"], **same, "namespace": namespace}})

    async def merge(self, resource: Resource, namespace: str, name: str, patch: Json) -> Json:
        self._ask(f"merge {resource.kind} {name}")
        there = self.items.get((resource.kind, namespace, name))
        if there is None:
            raise KubeError(404, "not found")
        result = self.put(_merged(there, patch))
        if result["metadata"].get("deletionTimestamp") and not result["metadata"].get("finalizers"):
            del self.items[resource.kind, namespace, name]
        return result

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        uid: str = "",
        grace_s: int | None = None,
        *,
        dependents_first: bool = False,
    ) -> None:
        self._ask(f"delete {resource.kind} {name}")
        self.graces[name] = grace_s
        there = self.items.get((resource.kind, namespace, name))
        if there is not None and uid in ("", there["metadata"]["uid"]):
            del self.items[resource.kind, namespace, name]

    async def page(
        self, resource: Resource, namespace: str, selector: str, after: str = "", fields: str = ""
    ) -> Json:
        self._ask()
        wanted = dict(word.split("=") for word in fields.split(",") if word)
        items = [
            copy.deepcopy(item)
            for item in self.of(resource.kind)
            if wanted.get("involvedObject.uid") in (None, item.get("involvedObject", {}).get("uid"))
            and wanted.get("type") in (None, item.get("type"))
        ]
        return {"metadata": {"resourceVersion": "1"}, "items": items}

    async def watch(
        self, resource: Resource, namespace: str, selector: str, version: str, heard: Any = None
    ) -> AsyncIterator[Json]:
        self._ask()
        raise KubeError(410, "too old")
        yield {}


def _merged(base: Any, patch: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(patch, dict):
        return patch
    read = {key: value for key, value in base.items() if patch.get(key, "") is not None}
    return read | {key: _merged(base.get(key), value) for key, value in patch.items() if value is not None}
