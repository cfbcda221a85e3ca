"""Graph files and objects: whatever stands in them, the answer is a graph or a list of problems, each of them
short."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from hams_graph import InvalidGraph, describe, load_object, load_text
from tests.fuzz.boundaries import cases, mutated, nested

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "examples").glob("*/graph.yaml"))
OBJECTS: list[Any] = [yaml.safe_load(path.read_text()) for path in FILES]


def test_there_are_graphs_to_begin_with() -> None:
    assert len(OBJECTS) >= 3


def judge(load: Any, what: Any) -> None:
    try:
        graph = load(what)
    except InvalidGraph as error:
        problems = error.problems
    else:
        describe(graph)
        return
    assert problems
    assert all(len(str(problem)) < 4000 for problem in problems)


@pytest.mark.timeout(3600)
def test_a_changed_object_is_a_graph_or_has_problems() -> None:
    for seed in cases(400):
        rng = Random(seed)
        result = mutated(rng.choice(OBJECTS), rng, deep=(1, 5, 70, 200))
        if isinstance(result, dict):
            judge(load_object, result)


@pytest.mark.timeout(3600)
def test_a_changed_file_is_a_graph_or_has_problems() -> None:
    for seed in cases(60):
        rng = Random(seed)
        judge(load_text, text(mutated(rng.choice(OBJECTS), rng)))


def text(result: object) -> str:
    """JSON is YAML, and takes what Python's writer of YAML would not."""
    return json.dumps(result, allow_nan=True, default=str)


@pytest.mark.parametrize(
    "value",
    ["9" * 400, "-" + "9" * 400, "9" * 5000, "0x" + "f" * 5000, "1" * 400 + ".0", "[" * 900 + "]" * 900],
    ids=lambda value: value[:12],
)
def test_numbers_of_hundreds_of_digits_and_deep_nesting_are_problems(value: str) -> None:
    """In the place of every value of a file, one after another."""
    lines = FILES[0].read_text().splitlines()
    for number, line in enumerate(lines):
        key, colon, _ = line.partition(": ")
        if colon and not key.lstrip().startswith("#"):
            judge(load_text, "\n".join([*lines[:number], f"{key}: {value}", *lines[number + 1 :]]))


def test_an_object_that_is_nested_without_end_has_problems() -> None:
    """As Kubernetes hands it out: its decoder takes more levels than a function may call itself."""
    values = {**OBJECTS[0], "spec": {**OBJECTS[0]["spec"], "frontend": nested(30_000, Random(1))}}
    with pytest.raises(InvalidGraph, match="nested deeper"):
        load_object(values)
