"""`hams profile --run`: times are measured before there is traffic, with models of their own."""

import asyncio
import math
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from hams_graph import InvalidGraph
from hams_graph import load as load_graph
from hams_load.errors import BadData
from hams_load.inference import Array
from hams_load.samples import as_request, from_module, from_npz, generated
from hams_operator.cli.output import complain
from hams_operator.learning import NothingLearnt, learning
from hams_operator.local.measuring import NotMeasured, measure
from hams_protocol.graph import Graph
from hams_protocol.messages import Scalar
from hams_wire.measuring import (
    MeasuredTimes,
    MeasuringRequest,
    MeasuringTask,
    MeasuringTensor,
    measured_inputs_max,
    samples_max,
)

PARAMETER = "parameter:"
"""What the name of an array begins with that has a request parameter for each row."""


def measured(
    file: Path, operator: str, data: Path | None, samples: int
) -> tuple[Graph, tuple[MeasuredTimes, ...]]:
    """The graph in a file, and the times of an operator of it, of all that learn if it is "". Raises
    CommandError."""
    if not 1 <= samples <= samples_max:
        complain(f"--samples: expected 1 to {samples_max}, found {samples}", 2)
    try:
        graph = load_graph(file)
    except InvalidGraph as error:
        complain(f"{file}: {error.problems[0]}; hams validate {file} tells all")
    policies = {op.name: op.batch.policy.value for op in graph.data.operators}
    try:
        operators = learning(policies, operator)
        requests = tuple(islice(requests_of(graph, file, data), min(samples, measured_inputs_max)))
    except (NothingLearnt, BadData) as error:
        complain(str(error))
    sys.stderr.write(f"measuring {', '.join(operators)} ...\n")
    task = MeasuringTask(operators, samples, requests)
    try:
        return graph, asyncio.run(measure(graph, file.resolve().parent, task))
    except NotMeasured as error:
        complain(f"nothing is measured: {error}")


def requests_of(graph: Graph, file: Path, data: Path | None) -> Iterator[MeasuringRequest]:
    """Requests as a client would send them. Raises BadData."""
    arrays = from_npz(data) if data is not None else from_module(graph, file)
    for number, sample in enumerate(generated(graph) if arrays is None else arrays):
        try:
            yield _request(graph, sample)
        except ValueError as error:
            raise BadData(f"data does not fit the graph: request {number}: {error}") from None


def _request(graph: Graph, sample: Mapping[str, Array]) -> MeasuringRequest:
    """Raises ValueError."""
    tensors = {name: array for name, array in sample.items() if not name.startswith(PARAMETER)}
    parameters = {
        name.removeprefix(PARAMETER): _scalar(name, array)
        for name, array in sample.items()
        if name.startswith(PARAMETER)
    }
    return MeasuringRequest(
        tuple(
            MeasuringTensor(item.name, item.datatype, item.shape, item.data)
            for item in as_request(graph, tensors)
        ),
        parameters,
    )


def _scalar(name: str, array: Array) -> Scalar:
    """The one value of an array. Raises ValueError."""
    value = array.item() if array.size == 1 else None
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, bool | int | float | str) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        raise ValueError(f"{name}: expected one number, text or truth value for each row")
    return value
