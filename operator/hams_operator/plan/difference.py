"""Wanted objects against held ones: what to apply, what to delete.

An object is applied when it is missing, when it was last applied with another content, or when somebody has
changed what we ask for. What others add (defaults, status, their own annotations) is left alone.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from hams_operator.plan.names import CONTENT, INCARNATION, Json

WHOLE = frozenset(("selector", "matchLabels"))
"""Mappings to which nobody may add: they would mean something else."""

Key = tuple[str, str]
"""Kind and name, within one namespace."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What to do, in this order. `not_owned`: wanted objects whose names somebody else has taken; those are
    not touched."""

    apply: tuple[Json, ...]
    delete: tuple[Json, ...]
    not_owned: tuple[str, ...]


def key_of(item: Json) -> Key:
    """Kind and name of an object."""
    return item["kind"], item["metadata"]["name"]


def difference(
    wanted: Iterable[Json],
    held: Iterable[Json],
    owner_uid: str,
    *,
    replaceable: bool,
    given_up: Collection[int] = (),
) -> Difference:
    """`held`: the objects in the namespace that carry the graph's label; one without it may have a wanted
    name all the same. `replaceable`: the wanted incarnation serves, so objects of earlier ones may go; until
    then they stay and serve. Those of incarnations that were `given_up` go at once."""
    over = {str(number) for number in given_up}
    by_key = {key_of(item): item for item in held}
    wanted_keys = {key_of(item): item for item in wanted}
    apply, not_owned = [], []
    for key, item in wanted_keys.items():
        held_object = by_key.get(key)
        if held_object is not None and not is_ours(held_object, owner_uid):
            not_owned.append(f"{key[0]} {key[1]}")
        elif held_object is None or not _same(held_object, item):
            apply.append(item)
    delete = []
    for key, item in by_key.items():
        if key in wanted_keys or not is_ours(item, owner_uid) or item["metadata"].get("deletionTimestamp"):
            continue
        if replaceable or _incarnation(item) in over | {
            _incarnation(other) for other in wanted_keys.values()
        }:
            delete.append(item)
    return Difference(tuple(apply), tuple(delete), tuple(not_owned))


def _incarnation(item: Json) -> str:
    return str(item["metadata"].get("labels", {}).get(INCARNATION, ""))


def is_ours(item: Json, owner_uid: str) -> bool:
    """Whether an object belongs to the graph with this uid."""
    owners = item["metadata"].get("ownerReferences") or []
    return any(owner.get("uid") == owner_uid for owner in owners)


def _same(held_object: Json, wanted: Json) -> bool:
    content = (held_object["metadata"].get("annotations") or {}).get(CONTENT)
    return content == wanted["metadata"]["annotations"][CONTENT] and covers(held_object, wanted)


def covers(held_value: object, wanted: object) -> bool:
    """Whether everything in `wanted` is in `found`. Lists of mappings may have more fields in each item, not
    more items."""
    if isinstance(wanted, dict):
        # The API server leaves out what is empty.
        asked = {key: value for key, value in wanted.items() if value not in ({}, [], "", None)}
        return isinstance(held_value, dict) and all(
            held_value.get(key) == value if key in WHOLE else covers(held_value.get(key), value)
            for key, value in asked.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(held_value, list)
            and len(held_value) == len(wanted)
            and all(map(covers, held_value, wanted))
        )
    return held_value == wanted
