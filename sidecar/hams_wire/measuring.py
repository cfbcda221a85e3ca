"""What the measuring of an operator's times is told, and what it says: files between `hams profile --run` and
`hams_sidecar.measuring`, which knows how a model process is spoken to.
"""

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from hams_protocol.graph import Graph, Operator
from hams_protocol.messages import Scalar
from hams_wire.errors import UNDECODABLE
from hams_wire.profiles import ProfileReport
from hams_wire.records import MalformedRecord

measured_inputs_max = 256
"""Requests that are run, again and again where more samples are wanted: they lie in memory."""

samples_max = 100_000
"""Rows that are run alone to measure one operator."""

operator_s_max = 120.0
"""The measuring of one operator ends after this long, with what it has by then; half of it is for requests
that run alone."""


class MeasuringTensor(msgspec.Struct, frozen=True):
    """One tensor of a request: little-endian bytes, BYTES elements behind their 4-byte lengths."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


class MeasuringRequest(msgspec.Struct, frozen=True):
    """One request, with the parameters that tell its application and its size."""

    tensors: tuple[MeasuringTensor, ...]
    parameters: dict[str, Scalar]


class MeasuringTask(msgspec.Struct, frozen=True):
    """Measure the times of these operators; `samples`: how many requests run alone."""

    operators: tuple[str, ...]
    samples: int
    requests: tuple[MeasuringRequest, ...]


class MeasuredTimes(msgspec.Struct, frozen=True):
    """What an operator's requests take: `profile` in stored bytes, `report` for people. `failed`: requests
    that its model answered by an error."""

    operator: str
    profile: bytes
    report: ProfileReport
    failed: int


def needed(graph: Graph, operators: Iterable[str]) -> list[Operator]:
    """These operators and all before them, in topological order."""
    wanted = set(operators)
    for operator in reversed(graph.data.operators):
        if operator.name in wanted:
            wanted.update(edge.source for edge in operator.in_edges)
    return [operator for operator in graph.data.operators if operator.name in wanted]


def encode_task(task: MeasuringTask) -> bytes:
    """Bytes of a task."""
    return msgspec.msgpack.encode(task)


def decode_task(data: bytes) -> MeasuringTask:
    """The task in `data`. Raises MalformedRecord."""
    return _decoded(data, MeasuringTask)


def encode_measured(measured: tuple[MeasuredTimes, ...]) -> bytes:
    """Bytes of what was measured."""
    return msgspec.msgpack.encode(measured)


def decode_measured(data: bytes) -> tuple[MeasuredTimes, ...]:
    """What was measured. Raises MalformedRecord."""
    return _decoded(data, tuple[MeasuredTimes, ...])


T = TypeVar("T")


def _decoded(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except UNDECODABLE as error:
        raise MalformedRecord(f"not of a measuring: {error}") from None
