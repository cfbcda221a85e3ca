"""What it costs to find out that a graph is wrong grows with its size alone: whoever may write one must not
be able to hold the controller up.

Work is counted in calls, not in seconds. Each shape is one that took its square once, or could.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import hams_graph
from hams_graph import InvalidGraph, fields, load_object, load_text
from hams_graph.problems import nearest

Json = dict[str, Any]


def operator(name: str, *inputs: Any, **more: Any) -> Json:
    output = {"name": "y", "datatype": "FP32", "shape": [4]}
    model = {"entrypoint": "m:C", "image": "i"}
    return {
        "name": name,
        "model": model,
        "inputs": list(inputs or ["request.x"]),
        "outputs": [output],
        **more,
    }


def graph(**spec: Any) -> Json:
    inputs = [{"name": "x", "datatype": "FP32", "shape": [4]}]
    whole = {"inputs": inputs, "outputs": [{"name": "y", "from": "a.y"}], "operators": [operator("a")]}
    metadata = {"name": "g", "namespace": "shop"}
    return {
        "apiVersion": "hams.dev/v1alpha1",
        "kind": "ServiceGraph",
        "metadata": metadata,
        "spec": {**whole, **spec},
    }


def model(**more: Any) -> Json:
    return operator("a", model={"entrypoint": "m:C", "image": "i", **more})


def outputs(count: int, name: Callable[[int], str]) -> list[Json]:
    return [{"name": name(number), "datatype": "FP32", "shape": [4]} for number in range(count)]


SHAPES: dict[str, Callable[[int], Json]] = {
    "unknown fields": lambda size: graph(**{f"k{number}": 1 for number in range(size // 12)}),
    "one long unknown field": lambda size: graph(**{"k" * size: 1}),
    "long unknown fields that are nearly one that there is": lambda size: graph(
        **{f"{'operators' * 20}{number}": 1 for number in range(size // 210)}
    ),
    "inputs that are numbers": lambda size: graph(inputs=[1] * (size // 2)),
    "inputs without anything": lambda size: graph(inputs=[{}] * (size // 4)),
    "operators without anything": lambda size: graph(operators=[{}] * (size // 4)),
    "a chain of operators": lambda size: graph(
        operators=[operator("a")]
        + [operator(f"o{n}", f"o{n - 1}.y" if n else "a.y") for n in range(size // 150)]
    ),
    "operators that all read each other": lambda size: graph(
        operators=[operator(f"o{n}", *(f"o{m}.y" for m in range(64))) for n in range(size // 700)]
    ),
    "misspelt operators": lambda size: graph(
        operators=[operator(f"operator{n}", f"operatro{n}.y") for n in range(size // 150)]
    ),
    "outputs from nowhere": lambda size: graph(
        outputs=[{"name": f"n{n}", "from": f"nowhere{n}.q"} for n in range(size // 40)]
    ),
    "one output from everywhere": lambda size: graph(
        outputs=[{"name": "y", "from": [f"a.y{n}" for n in range(size // 10)]}]
    ),
    "one output from one place many times": lambda size: graph(
        outputs=[{"name": "y", "from": ["a.y"] * (size // 6)}]
    ),
    "wrong names of variables": lambda size: graph(
        operators=[model(env={f"{number}x": "" for number in range(size // 12)})]
    ),
    "numbers that JSON does not know": lambda size: graph(
        operators=[model(config={"a": [float("inf")] * (size // 9)})]
    ),
    "a large config": lambda size: graph(operators=[model(config={"a": [1] * (size // 3)})]),
    "unknown fields of a podTemplate": lambda size: graph(
        operators=[operator("a", podTemplate={f"k{number}": 1 for number in range(size // 12)})]
    ),
    "feedback to nowhere": lambda size: graph(
        operators=[operator("a", feedback={"inputs": {f"k{number}": "z" for number in range(size // 12)}})]
    ),
    "lanes that multiply": lambda size: graph(
        operators=[operator("a"), operator("b"), operator("o0", "a.y", "b.y", join="Interleave")]
        + [operator(f"o{n}", f"o{n - 1}.y", "a.y", join="Interleave") for n in range(1, size // 150)]
    ),
    "one input many times": lambda size: graph(
        operators=[operator("a", *["request.x"] * (size // 12))]
    ),
    "whole upstreams many times": lambda size: graph(
        operators=[{**operator("a"), "outputs": outputs(256, "y{}".format)}]
        + [operator(f"o{n}", *["a"] * 256) for n in range(size // 1400)]
    ),
    "one output many times": lambda size: graph(
        operators=[{**operator("a"), "outputs": outputs(size // 40, lambda _: "y")}]
    ),
    "a name as long as all": lambda size: graph(operators=[operator("a" * size)]),
    "tensors of nearly one name": lambda size: graph(
        operators=[{**operator("a"), "outputs": outputs(250, lambda n: f"{'y' * 60}{n}")}],
        outputs=[{"name": f"n{n}", "from": f"a.{'y' * 59}{n}z"} for n in range(size // 130)],
    ),
}  # fmt: skip


def calls_of(work: Callable[[], object]) -> int:
    """Calls of functions, C's among them, that `work` makes."""
    count = 0

    def note(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def problems(item: Json) -> tuple[str, ...]:
    try:
        load_object(item)
    except InvalidGraph as error:
        return tuple(map(str, error.problems))
    return ()


CALLS_PER_CHARACTER = 6
CALLS_AT_LEAST = 2_500_000
"""Of a graph of any size: a hundred problems, each with a search for the word that was meant, and a hundred
cycles."""


@pytest.mark.parametrize("size", [50_000, 200_000])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_cost_of_a_wrong_graph_grows_with_its_size_alone(shape: str, size: int) -> None:
    item = SHAPES[shape](size)
    assert calls_of(lambda: problems(item)) < CALLS_AT_LEAST + CALLS_PER_CHARACTER * size


@pytest.mark.parametrize("shape", SHAPES)
def test_no_more_problems_are_reported_than_a_person_can_read_and_none_of_them_is_long(shape: str) -> None:
    values = problems(SHAPES[shape](200_000))
    assert len(values) <= fields.graph_problems_max + 1
    assert max(map(len, values), default=0) < 8192


@pytest.mark.parametrize("shape", SHAPES)
def test_a_graph_of_megabytes_is_refused_for_its_size_before_it_is_read(shape: str) -> None:
    item = SHAPES[shape](4 << 20)
    assert problems(item) == (
        "spec: is larger than 256 KiB of JSON; large data does not belong into a graph",
    )
    assert (
        calls_of(lambda: problems(item))
        < CALLS_AT_LEAST + CALLS_PER_CHARACTER * hams_graph.graph_spec_bytes_max
    )


def test_a_spec_as_large_as_is_allowed_is_read() -> None:
    config = {"table": "x" * (hams_graph.graph_spec_bytes_max - 2000)}
    assert problems(graph(operators=[model(config=config)])) == ()
    too_much = {"table": "x" * hams_graph.graph_spec_bytes_max}
    assert len(problems(graph(operators=[model(config=too_much)]))) == 1


def test_annotations_do_not_count_against_the_size_of_a_graph() -> None:
    """`kubectl apply` keeps the whole object in one."""
    item = graph()
    item["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "x" * (250 << 10)}
    item["status"] = {"message": "x" * (250 << 10)}
    assert problems(item) == ()


def test_a_file_of_many_problems_says_that_there_are_more() -> None:
    text = "apiVersion: hams.dev/v1alpha1\nkind: ServiceGraph\nmetadata: {name: g}\nspec:\n"
    with pytest.raises(InvalidGraph) as caught:
        load_text(text + "".join(f"  field{number}: 1\n" for number in range(500)))
    assert len(caught.value.problems) == 101
    assert str(caught.value.problems[-1]) == "document: has more problems than the 100 above"


def test_the_nearest_word_is_the_one_that_difflib_finds() -> None:
    known = ["replicas", "requestTimeout", "maxInFlight", "maxInFlightBytes", "shards", "tokenSecret"]
    for word, meant in {
        "replica": "replicas",
        "maxinflight": "maxInFlight",
        "maxInFlightByte": "maxInFlightBytes",
        "nothing": None,
        "r" * 4000: None,
    }.items():
        assert nearest(word, known) == meant
