"""Secrets that the controller keeps: read, made or mended where they are not as they should be, and read
again if somebody else was faster.

It asks for single Secrets by name and never for a list of them. A Secret of that name that belongs to
somebody else is not touched.
"""

import base64
from collections.abc import Callable, Mapping

from hams_operator.controller import limits
from hams_operator.controller.kube import SECRETS, Kube, KubeError
from hams_operator.plan.names import MANAGED_BY, Json

Data = Mapping[str, bytes]

_LABEL = "app.kubernetes.io/managed-by"


class NotOwned(Exception):
    """There is a Secret of that name, and it is not ours."""


async def keep(
    kube: Kube,
    namespace: str,
    name: str,
    mended: Callable[[Data], Data],
    metadata: Json | None = None,
    *,
    fresh: bool = False,
) -> Data:
    """What the Secret holds once it holds what `mended` makes of what it held (nothing at first). `metadata`:
    of a new one, its owner above all. `fresh`: most likely there is none yet, so the first try does without
    reading.

    Raises KubeError, and NotOwned. A conflict is an error after `secret_tries`: somebody else is not faster
    each time, so it is another one.
    """
    metadata = (
        {"labels": {"app.kubernetes.io/name": "hams", _LABEL: MANAGED_BY}} if metadata is None else metadata
    )
    for left in reversed(range(limits.secret_tries)):
        there = None if fresh else await kube.get(SECRETS, namespace, name)
        fresh = False
        if there is not None and not _is_ours(there, metadata):
            raise NotOwned(f"Secret {name}: there already, and not of this graph")
        held = data_of(there)
        wanted = mended(held)
        if there is not None and wanted == held:
            return held
        item: Json = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": {**metadata, "name": name} if there is None else there["metadata"],
            "data": {field: base64.b64encode(value).decode() for field, value in wanted.items()},
        }
        try:
            if there is None:
                await kube.create(SECRETS, namespace, item)
            else:
                await kube.replace(SECRETS, namespace, name, item)
        except KubeError as error:
            if error.status != 409 or not left:  # another replica was faster: what it wrote is looked at
                raise
        else:
            return wanted
    raise AssertionError("the last try raises or returns")


def data_of(secret: Json | None) -> Data:
    """What a Secret holds; what is not base64 counts as not there."""
    data: dict[str, bytes] = {}
    for field, value in ((secret or {}).get("data") or {}).items():
        try:
            data[field] = base64.b64decode(value, validate=True)
        except ValueError:
            continue
    return data


def _is_ours(there: Json, metadata: Json) -> bool:
    owners = {owner.get("uid") for owner in metadata.get("ownerReferences") or []}
    if owners:
        return bool(owners & {owner.get("uid") for owner in there["metadata"].get("ownerReferences") or []})
    return (there["metadata"].get("labels") or {}).get(_LABEL) == MANAGED_BY
