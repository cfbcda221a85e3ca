"""Wanted against held."""

import copy

from hams_operator.plan.difference import covers, difference
from hams_operator.plan.names import INCARNATION, GraphRef

from .kit import UID, Json, objects


def held() -> list[Json]:
    """What the API server would hand out: with defaults, status and a uid."""
    seen = []
    for item in copy.deepcopy(list(objects().values())):
        item["metadata"]["uid"] = "u"
        if item["kind"] == "Deployment":
            item["spec"]["progressDeadlineSeconds"] = 600
            item["spec"]["template"]["spec"]["dnsPolicy"] = "ClusterFirst"
            item["spec"]["template"]["spec"]["containers"][0]["terminationMessagePath"] = (
                "/dev/termination-log"
            )
            item["status"] = {"replicas": 1}
        seen.append(item)
    return seen


def names(items: tuple[Json, ...]) -> set[str]:
    return {f"{item['kind']} {item['metadata']['name']}" for item in items}


def test_nothing_is_done_where_all_is_as_wanted() -> None:
    items = difference(objects().values(), held(), UID, replaceable=True)
    assert (items.apply, items.delete, items.not_owned) == ((), (), ())


def test_what_is_missing_is_applied() -> None:
    items = difference(objects().values(), held()[1:], UID, replaceable=True)
    assert len(items.apply) == 1


def test_what_somebody_changed_is_applied_again() -> None:
    there = held()
    service = next(item for item in there if item["kind"] == "Service")
    service["spec"]["selector"] |= {"app": "other"}
    assert names(difference(objects().values(), there, UID, replaceable=True).apply) == {"Service pair"}


def test_what_others_add_is_left_alone() -> None:
    there = held()
    for item in there:
        item["metadata"].setdefault("annotations", {})["other/tool"] = "x"
        item["metadata"]["labels"]["team"] = "a"
    assert difference(objects().values(), there, UID, replaceable=True).apply == ()


def test_what_is_no_longer_wanted_is_deleted_once() -> None:
    extra = copy.deepcopy(held()[0])
    extra["metadata"]["name"] = "pair-gone"
    items = difference(objects().values(), [*held(), extra], UID, replaceable=True)
    assert names(items.delete) == {f"{extra['kind']} pair-gone"}
    extra["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert difference(objects().values(), [*held(), extra], UID, replaceable=True).delete == ()


def test_what_belongs_to_others_is_never_touched() -> None:
    there = held()
    for item in there:
        item["metadata"]["ownerReferences"][0]["uid"] = "somebody-else"
    items = difference(objects().values(), there, UID, replaceable=True)
    assert (items.apply, items.delete) == ((), ())
    assert len(items.not_owned) == len(there)


def test_an_earlier_incarnation_stays_until_the_next_one_serves() -> None:
    later = objects(place=GraphRef("pair", "shop", UID, incarnation=1)).values()
    before = difference(later, held(), UID, replaceable=False)
    assert before.delete == ()
    after = difference(later, held(), UID, replaceable=True)
    assert {item["metadata"]["labels"][INCARNATION] for item in after.delete} == {"0"}
    assert "Deployment pair-count" in names(after.delete)
    assert "Service pair" not in names(after.delete)


def test_a_list_with_more_items_is_not_the_same() -> None:
    assert covers({"a": [{"b": 1, "c": 2}]}, {"a": [{"b": 1}]})
    assert not covers({"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": 1}]})
    assert covers({}, {"a": [], "b": {}})
