"""Graph files for tests: one that is right, and changes to it."""

import copy
from collections.abc import Callable
from typing import Any

Graph = dict[str, Any]


def operator(name: str, inputs: list[Any], outputs: list[Any] | None = None, **more: Any) -> Graph:
    """An operator that takes `inputs` and makes `x`, FP32 [4], if nothing else is said."""
    made = [{"name": "x", "datatype": "FP32", "shape": [4]}] if outputs is None else outputs
    return {
        "name": name,
        "model": {"entrypoint": f"models:{name.title().replace('-', '')}"},
        "inputs": inputs,
        "outputs": made,
        **more,
    }


def graph(*operators: Graph, reply: Any = None, **spec: Any) -> Graph:
    """A graph over request tensors `x` (FP32 [4]) and optional `y` (INT64 []); it replies with `x` of the
    last operator."""
    return {
        "apiVersion": "hams.dev/v1alpha1",
        "kind": "ServiceGraph",
        "metadata": {"name": "test"},
        "spec": {
            "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [4]},
                {"name": "y", "datatype": "INT64", "shape": [], "optional": True},
            ],
            "outputs": [{"name": "out", "from": f"{operators[-1]['name']}.x" if reply is None else reply}],
            "operators": list(operators),
            **spec,
        },
    }


def chain() -> Graph:
    """first (stateless) -> second (stateful) -> reply."""
    return copy.deepcopy(
        graph(operator("first", ["request.x"]), operator("second", ["first.x"], stateful={}))
    )


def changed(change: Callable[[Graph], object]) -> Graph:
    """`chain()` after `change(spec)`."""
    made = chain()
    change(made["spec"])
    return made


def put(path: str, value: Any) -> Callable[[Graph], None]:
    """A change that sets `operators.1.stateful.window` and the like; missing mappings on the way are made."""

    def change(spec: Graph) -> None:
        *way, last = path.split(".")
        place: Any = spec
        for step in way:
            place = place[int(step)] if isinstance(place, list) else place.setdefault(step, {})
        if isinstance(place, list):
            place[int(last) :] = [value, *place[int(last) + 1 :]]
        else:
            place[last] = value

    return change


def drop(path: str) -> Callable[[Graph], None]:
    """A change that removes a field."""

    def change(spec: Graph) -> None:
        *way, last = path.split(".")
        place: Any = spec
        for step in way:
            place = place[int(step)] if isinstance(place, list) else place[step]
        del place[last]

    return change


def both(*changes: Callable[[Graph], None]) -> Callable[[Graph], None]:
    """Several changes, one after the other."""

    def change(spec: Graph) -> None:
        for item in changes:
            item(spec)

    return change
