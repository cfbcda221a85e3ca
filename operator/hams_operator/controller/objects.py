"""The objects of a graph in Kubernetes: made and changed, and never taken from somebody else.

What is missing is made by POST, which fails where there is an object of that name already: however late it
came, it does not become ours. What is there is changed by server-side apply. What a POST has made is ours as
by an update, and an apply leaves in place what an update has set and the apply no longer names; so before an
apply that ownership is turned into one of an apply, as kubectl does with what it has applied on the client's
side.
"""

import logging
from collections.abc import Iterable, Sequence

from hams_operator.controller.kube import OWNED, Kube, KubeError
from hams_operator.controller.store import Store
from hams_operator.plan.difference import is_ours, key_of
from hams_operator.plan.names import FIELD_MANAGER, GraphRef, Json

log = logging.getLogger("hams.controller")


class Objects:
    """Made and changed through `kube`; what was answered is told to `store`."""

    def __init__(self, kube: Kube, store: Store) -> None:
        self._kube = kube
        self._store = store

    async def not_owned(self, place: GraphRef, items: Iterable[Json]) -> list[str]:
        """Kind and name of those that are there and are somebody else's. Objects that nobody has labelled are
        not followed, so each is asked for."""
        names = []
        for kind, name in map(key_of, items):
            there = await self._kube.get(OWNED[kind], place.namespace, name)
            if there is not None and not is_ours(there, place.owner_uid):
                names.append(f"{kind} {name}")
        return names

    async def make(self, place: GraphRef, items: Sequence[Json]) -> tuple[list[str], list[Json]]:
        """Make those that are missing: Deployments last, as nothing shall run of what cannot be whole. Raises
        KubeError.

        Returns those that somebody else owns (kind and name), and of `items` those that are ours and there:
        they have lost their labels, or were not seen yet. Where one is not owned, what was made here is taken
        back.
        """
        made: list[Json] = []
        there_already = []
        for item in sorted(items, key=lambda item: item["kind"] == "Deployment"):
            kind, name = key_of(item)
            try:
                with self._store.writing(kind, place.namespace, name):
                    held = await self._kube.create(OWNED[kind], place.namespace, item)
                    self._store.put(held, ours=True)
            except KubeError as error:
                there = (
                    await self._kube.get(OWNED[kind], place.namespace, name) if error.status == 409 else None
                )
                if there is None:  # another refusal, or it has gone in between
                    raise
                if not is_ours(there, place.owner_uid):
                    await self._take_back(place, made)
                    # gone by now: nobody tells, so it is looked for again
                    return await self.not_owned(place, items) or [f"{kind} {name}"], []
                there_already.append(item)
                continue
            made.append(held)
        if made:
            log.info(
                "%s/%s: made %s",
                place.namespace,
                place.name,
                ", ".join(" ".join(key_of(item)) for item in made),
            )
        return [], there_already

    async def _take_back(self, place: GraphRef, made: list[Json]) -> None:
        for item in reversed(made):
            log.info("%s/%s: take back %s %s", place.namespace, place.name, *key_of(item))
            await self._kube.delete(
                OWNED[item["kind"]], place.namespace, item["metadata"]["name"], item["metadata"]["uid"]
            )

    async def apply(self, place: GraphRef, items: Iterable[Json]) -> None:
        """Change those that are there and ours, and no other of that name: an apply would make it, or take
        it. Raises KubeError."""
        for item in items:
            kind, name = key_of(item)
            log.info("%s/%s: apply %s %s", place.namespace, place.name, kind, name)
            there = await self._kube.get(OWNED[kind], place.namespace, name)
            if there is None or not is_ours(there, place.owner_uid):
                raise KubeError(409, f"{kind} {name} has gone, or is another one by now")
            fields = as_applied(there["metadata"].get("managedFields") or [])
            if fields is not None:
                patch = {
                    "metadata": {
                        "resourceVersion": there["metadata"]["resourceVersion"],
                        "managedFields": fields,
                    }
                }
                await self._kube.merge(OWNED[kind], place.namespace, name, patch)
            same = {**item, "metadata": {**item["metadata"], "uid": there["metadata"]["uid"]}}
            with self._store.writing(kind, place.namespace, name):
                self._store.put(await self._kube.apply(OWNED[kind], place.namespace, name, same), ours=True)


def as_applied(entries: Sequence[Json]) -> list[Json] | None:
    """`metadata.managedFields` with what we own by an update owned by an apply; None where there is no such
    thing."""
    updated = [entry for entry in entries if _is_ours(entry, "Update")]
    if not updated:
        return None
    left = [entry for entry in entries if entry not in updated]
    for entry in updated:
        applied = next(
            (
                other
                for other in left
                if _is_ours(other, "Apply") and other.get("apiVersion") == entry.get("apiVersion")
            ),
            None,
        )
        if applied is None:
            left.append({**entry, "operation": "Apply"})
        else:
            both = {**applied, "fieldsV1": _union(applied.get("fieldsV1") or {}, entry.get("fieldsV1") or {})}
            left[left.index(applied)] = both
    return left


def _is_ours(entry: Json, operation: str) -> bool:
    return (
        entry.get("manager") == FIELD_MANAGER
        and entry.get("operation") == operation
        and not entry.get("subresource")
    )


def _union(one: Json, other: Json) -> Json:
    """Of two sets of fields: each is a tree of their names."""
    return {name: _union(one.get(name) or {}, other.get(name) or {}) for name in one | other}
