"""Whatever an author writes, the answer is a graph or a list of problems, never a stack trace."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hams_graph import Graph, InvalidGraph, Problem, load_object, load_text
from hams_wire.spec import decode_spec, encode_spec

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*/*.yaml"))
GRAPHS = [yaml.safe_load(path.read_text()) for path in EXAMPLES]

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.sampled_from(
        [
            "request",
            "request.",
            ".",
            "x.",
            ".x",
            "learner",
            "cache.hit",
            "1s",
            "64Mi",
            "Interleave",
            "First",
            "",
            "0",
        ]
    ),
)
JSON = st.recursive(
    SCALARS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=6), below, max_size=3),
    max_leaves=6,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value below."""
    seen: list[tuple[Any, Any]] = []
    for key, below in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        seen.append((value, key))
        seen += places(below)
    return seen


def outcome(load: Callable[[], Graph]) -> tuple[Graph | None, tuple[Problem, ...]]:
    """The graph, or what is wrong with it; anything else that is raised is a failure."""
    try:
        return load(), ()
    except InvalidGraph as error:
        return None, error.problems


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_changed_graph_is_a_graph_or_a_list_of_problems(data: st.DataObject) -> None:
    result = copy.deepcopy(data.draw(st.sampled_from(GRAPHS)))
    for _ in range(data.draw(st.integers(1, 4))):
        container, key = data.draw(st.sampled_from(places(result)))
        if data.draw(st.booleans()):
            container[key] = data.draw(JSON)
        elif isinstance(container, dict):
            del container[key]
        else:
            container.append(copy.deepcopy(container[key]))
        if not places(result):
            return
    graph, problems = outcome(lambda: load_object(result, on_kubernetes=False))
    if graph is not None:
        assert decode_spec(encode_spec(graph)).data == graph.data
    else:
        assert problems
        assert all(problem.path and problem.message for problem in problems)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="abkisp:{}[]&*!|>-#'\"\n\t <,.0123é\x00", max_size=60))
def test_any_text_is_answered(text: str) -> None:
    graph, problems = outcome(lambda: load_text(text))
    assert graph is None
    assert problems


def test_there_are_examples_to_change() -> None:
    assert len(GRAPHS) >= 6
