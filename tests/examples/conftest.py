"""Runs the graph of an example in this process: real models, real engine, no proxies.

One request at a time through the operators in topological order, with skips, routes and feedback as
protocol.md, section 3 has them.
"""

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hams_graph import load
from hams_protocol.graph import FRONTEND, Edge, Graph, Join, Operator
from hams_sdk.engine import Engine, UnitInput
from hams_sdk.specs import OperatorSpec, TensorSpec

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Tensors = Mapping[str, Any]


class Failed(Exception):
    """An operator's error became the reply."""


class Running:
    """The models of one graph file, and how a request goes through them."""

    def __init__(self, path: Path) -> None:
        self.graph: Graph = load(path)
        self.engines = {op.name: engine(self.graph, op) for op in self.graph.data.operators}
        self.runs = dict.fromkeys(self.engines, 0)

    def request(self, tensors: Tensors, hops: int = 0) -> dict[str, Any]:
        """The reply. Raises Failed."""
        values: dict[str, dict[str, Any] | None] = {FRONTEND: dict(tensors)}
        routes: dict[str, list[str] | None] = {FRONTEND: None}
        again: list[dict[str, Any]] = []
        for op in self.graph.data.operators:
            values[op.name], routes[op.name] = self._run(op, values, routes)
            made, route = values[op.name], routes[op.name]
            if op.feedback and made is not None and route is not None and "request" in route:
                if hops >= op.feedback.max_hops:
                    raise Failed(f"{op.name}: more than {op.feedback.max_hops} hops")
                again.append({target: made[output] for target, output in op.feedback.inputs})
        reply = {}
        for output in self.graph.data.outputs:
            for source, tensor in output.sources:
                made, route = values[source], routes[source]
                if made is not None and (route is None or "reply" in route):
                    reply[output.name] = made[tensor]
                    break
        for inner in again:
            self.request(inner, hops + 1)
        return reply

    def _run(
        self, op: Operator, values: dict[str, Any], routes: dict[str, Any]
    ) -> tuple[dict[str, Any] | None, list[str] | None]:
        arrays: list[Any] = []
        came = False
        for edge in _read(op, values):
            made, route = values[edge.source], routes[edge.source]
            passed = made if made is not None and (route is None or op.name in route) else {}
            came |= bool(passed)
            for item in edge.inputs:
                read = passed.get(item.source)
                if read is None and not item.optional:
                    return None, []
                arrays.append(read)
        if not came:
            return None, []
        rows = len(next(array for array in arrays if array is not None))
        self.runs[op.name] += 1
        result = self.engines[op.name].run([UnitInput("0/1", rows, arrays, {})], lambda: None)
        assert result.units is not None, result.message
        (unit,) = result.units
        if unit.error is not None:
            raise Failed(f"{op.name}: {unit.error}")
        outputs = {
            spec.name: decoded(spec.datatype, shape, data)
            for spec, (shape, data) in zip(op.outputs, unit.tensors, strict=True)
        }
        return outputs, unit.route


def _read(op: Operator, values: Mapping[str, Any]) -> tuple[Edge, ...]:
    """The edges of a run: under Interleave one, which is all that a request of the examples brings."""
    if op.join is not Join.INTERLEAVE:
        return op.in_edges
    (edge,) = (edge for edge in op.in_edges if values[edge.source] is not None)
    return (edge,)


def decoded(datatype: str, shape: tuple[int, ...], data: Any) -> Any:
    """An output of the engine as a next model gets it: BYTES come encoded."""
    if datatype != "BYTES":
        return np.asarray(data).reshape(shape)
    values, raw, at = [], bytes(data), 0
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 4], "little")
        values.append(raw[at + 4 : at + 4 + size])
        at += 4 + size
    column = np.empty(len(values), object)
    column[:] = values
    return column.reshape(shape)


def engine(graph: Graph, op: Operator) -> Engine:
    """The model of an operator, initialized, under the declaration that the graph gives it."""
    module, _, name = op.model.entrypoint.partition(":")
    inputs = tuple(
        declared(graph, edge, item.source, item.name, item.optional)
        for edge in (op.in_edges[:1] if op.join is Join.INTERLEAVE else op.in_edges)
        for item in edge.inputs
    )
    outputs = tuple(
        TensorSpec(spec.name, spec.datatype, spec.shape, finite=spec.finite) for spec in op.outputs
    )
    successors = {"reply" if name == FRONTEND else name for name in op.successors} | (
        {"request"} if op.feedback else set()
    )
    spec = OperatorSpec(
        op.name, inputs, outputs, frozenset(successors), op.stateful, json.loads(op.model.config)
    )
    made = Engine(getattr(importlib.import_module(module), name)(), spec)
    made.initialize()
    return made


def declared(graph: Graph, edge: Edge, source: str, name: str, optional: bool) -> TensorSpec:
    offered = graph.data.inputs if edge.source == FRONTEND else graph.operators[edge.source].outputs
    spec = next(spec for spec in offered if spec.name == source)
    return TensorSpec(name, spec.datatype, spec.shape, optional=optional)


def image(made: Engine) -> bytes:
    """The captured state."""
    place: list[bytearray] = []

    def space(size: int) -> memoryview:
        place.append(bytearray(size))
        return memoryview(place[-1])

    taken = made.capture(space)
    return bytes(place[-1][: taken.nbytes])


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`example("digits")`: a running graph; `example("chain", "mixed.yaml")` for another file."""

    def start(name: str, file: str = "graph.yaml") -> Running:
        folder = str(EXAMPLES / name)
        if folder not in sys.path:
            monkeypatch.syspath_prepend(folder)
        return Running(EXAMPLES / name / file)

    return start


@pytest.fixture
def captured() -> Any:
    """`captured(engine)`: its state as bytes."""
    return image
