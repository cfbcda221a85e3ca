"""What an operator declares, as its model process is told, and how units of a batch become its inputs.

The core knows payloads per in-edge; the model knows tensors by input name. This is where the names of
upstream tensors become the names of inputs (for the request's own tensors through the renaming of a feedback
edge), and targets of the graph the successors a model may route to.
"""

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hams_protocol.effects import BatchUnit
from hams_protocol.graph import FEEDBACK, FRONTEND, Graph, Join, Operator, TensorSpec
from hams_sidecar.datatypes import fixed_nbytes
from hams_sidecar.payload import Tensor, TensorPayload

REPLY = "reply"
REQUEST = "request"


class UnitInputs(NamedTuple):
    """One unit as the model gets it: per declared input the tensor and the payload it lies in, None if
    absent."""

    id: str
    rows: int
    tensors: list[tuple[Tensor, TensorPayload] | None]
    parameters: dict[str, bool | int | float | str]


class Declared:
    """The declaration of one operator of a graph."""

    def __init__(self, graph: Graph, operator: Operator) -> None:
        self.operator = operator
        self.inputs = _inputs(graph, operator)
        self.outputs = operator.outputs
        self._index = {spec.name: index for index, spec in enumerate(self.inputs)}
        self._edges = {edge.source: edge for edge in operator.in_edges}
        self._targets = {
            {FRONTEND: REPLY, FEEDBACK: REQUEST}.get(target, target): target for target in operator.targets
        }

    def setup(self) -> dict[str, object]:
        """The `operator` member of a setup frame."""
        return {
            "name": self.operator.name,
            "inputs": [_spec(spec) for spec in self.inputs],
            "outputs": [_spec(spec) for spec in self.outputs],
            "successors": list(self._targets),
            "stateful": self.operator.stateful,
            "config": json.loads(self.operator.model.config),
            "warm_up": json.loads(self.operator.model.warm_up) if self.operator.model.warm_up else None,
        }

    def unit(self, unit: BatchUnit) -> UnitInputs:
        """The inputs of one unit of a batch. Raises TypeError for payloads of another make."""
        tensors: list[tuple[Tensor, TensorPayload] | None] = [None] * len(self.inputs)
        rows = 0
        for source, payload in unit.inputs:
            if payload is None:
                continue
            if not isinstance(payload, TensorPayload):
                raise TypeError(
                    f"payload of {source}: expected hams_sidecar.payload.TensorPayload, got "
                    f"{type(payload).__name__}"
                )
            rows = max(rows, payload.rows)
            renamed = dict(unit.renamed) if source == FRONTEND and unit.renamed else None
            for item in self._edges[source].inputs:
                name = item.source if renamed is None else renamed.get(item.source)
                tensor = None if name is None else payload.find(name)
                if tensor is not None:
                    tensors[self._index[item.name]] = (tensor, payload)
        request, lane = unit.unit
        label = f"{request}:{'.'.join(lane)}" if lane else str(request)
        return UnitInputs(label, max(rows, 1), tensors, dict(unit.meta.parameters))

    def fixed_output_nbytes(self, rows: int) -> list[int | None]:
        """Bytes of each output of a unit of so many rows; None where that depends on the run."""
        return [
            None if -1 in spec.shape else fixed_nbytes(spec.datatype, (rows, *spec.shape))
            for spec in self.outputs
        ]

    def route(self, names: Iterable[str] | None) -> tuple[str, ...] | None:
        """Targets for a model's route. Raises KeyError for a name that is no successor."""
        if names is None:
            return None
        chosen = {self._targets[name] for name in names}
        return tuple(target for target in self.operator.targets if target in chosen)


def _inputs(graph: Graph, operator: Operator) -> tuple[TensorSpec, ...]:
    edges = operator.in_edges if operator.join is Join.COMBINE else operator.in_edges[:1]
    inputs: list[TensorSpec] = []
    for edge in edges:
        upstream: Sequence[TensorSpec] = (
            graph.data.inputs if edge.source == FRONTEND else graph.operators[edge.source].outputs
        )
        specs = {spec.name: spec for spec in upstream}
        for item in edge.inputs:
            spec = specs[item.source]
            inputs.append(TensorSpec(item.name, spec.datatype, spec.shape, item.optional or spec.optional))
    return tuple(inputs)


def _spec(spec: TensorSpec) -> dict[str, object]:
    return {
        "name": spec.name,
        "datatype": spec.datatype,
        "shape": spec.shape,
        "optional": spec.optional,
        "finite": spec.finite,
    }
