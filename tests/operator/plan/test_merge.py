"""Strategic merge, as `kubectl patch` does it."""

from hams_operator.plan.merge import merged


def test_mappings_merge_and_null_removes() -> None:
    assert merged({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": None, "e": 4}}) == {
        "a": {"c": 2, "e": 4},
        "d": 3,
    }


def test_lists_of_named_things_merge_by_name_and_keep_their_places() -> None:
    base = {"containers": [{"name": "a", "image": "1"}, {"name": "b", "env": [{"name": "X", "value": "1"}]}]}
    patch = {
        "containers": [
            {"name": "c"},
            {"name": "b", "env": [{"name": "Y", "value": "2"}, {"name": "X", "value": "3"}]},
        ]
    }
    assert merged(base, patch) == {
        "containers": [
            {"name": "a", "image": "1"},
            {"name": "b", "env": [{"name": "X", "value": "3"}, {"name": "Y", "value": "2"}]},
            {"name": "c"},
        ]
    }


def test_other_lists_are_replaced() -> None:
    own = {"args": ["a", "b"], "tolerations": [{"key": "x"}]}
    other = {"args": ["c"], "tolerations": [{"key": "y"}]}
    assert merged(own, other) == other


def test_directives_delete_and_replace() -> None:
    base = {"volumes": [{"name": "a"}, {"name": "b"}], "securityContext": {"x": 1}}
    patch = {"volumes": [{"name": "a", "$patch": "delete"}], "securityContext": {"$patch": "replace", "y": 2}}
    assert merged(base, patch) == {"volumes": [{"name": "b"}], "securityContext": {"y": 2}}
    assert merged(base, {"volumes": [{"$patch": "replace"}, {"name": "c"}]})["volumes"] == [{"name": "c"}]


def test_neither_side_is_changed() -> None:
    base, patch = {"a": {"b": 1}}, {"a": {"c": 2}}
    merged(base, patch)
    assert (base, patch) == ({"a": {"b": 1}}, {"a": {"c": 2}})
