"""What a graph takes and gives, and the check of a request against it.

Compiled once per graph, so that a request in order costs a dictionary look-up and a few comparisons for each
tensor. Both transports use it, so the same mistake gets the same words over HTTP and gRPC.

Invariant: tensors that pass have declared names, equal datatypes, fitting shapes, exactly the bytes of their
shapes, and one number of rows, which is bounded by the bytes that came (`rows_without_data_max`). No
dimension is negative or above `dimension_max`, whatever the graph declares.
"""

import math
from collections.abc import Iterable, Sequence

from hams_protocol.frozen import frozen
from hams_protocol.graph import Graph, GraphData, TensorSpec
from hams_sidecar.datatypes import itemsize
from hams_sidecar.endpoint.errors import RequestRefused, shown
from hams_sidecar.endpoint.json_scan import Steps
from hams_sidecar.endpoint.limits import bytes_slice_elements, parameters_bytes_max
from hams_sidecar.inference import Buffer, Tensor
from hams_wire.room import parameters_room

dimension_max = (1 << 31) - 1
"""Any dimension of a tensor: what every numpy, every model and the peers' codec can express, and more than a
request can fill."""

rows_without_data_max = 65_536
"""Rows of a request that brings fewer bytes than rows (a variable dimension of 0): as many as the largest
batch that a graph may ask for. Other requests are bounded by their bytes. What a model makes of each row
costs memory, so rows may not come for nothing."""

bytes_elements_max = 1 << 20
"""Elements of one BYTES tensor: each becomes an object, here, in the model, and in the client."""

parameters_bytes_min = 256
"""Bytes of parameters that are always allowed, however little room a message has for them."""


@frozen
class DeclaredTensor:
    """One declared tensor: `row_shape` is that of one row, -1 variable; `element_bytes` None for BYTES."""

    name: str
    datatype: str
    row_shape: tuple[int, ...]
    element_bytes: int | None
    variable: bool

    @property
    def shape(self) -> list[int]:
        """The shape as metadata show it: rows first, -1 for what varies."""
        return [-1, *self.row_shape]


class Signature:
    """Inputs and outputs of one graph."""

    def __init__(self, graph: GraphData) -> None:
        outputs = {
            (operator.name, spec.name): spec for operator in graph.operators for spec in operator.outputs
        }
        self.inputs: dict[str, DeclaredTensor] = {
            spec.name: _declared(spec.name, spec) for spec in graph.inputs
        }
        self.outputs: dict[str, DeclaredTensor] = {
            tensor.name: _declared(tensor.name, outputs[tensor.sources[0]]) for tensor in graph.outputs
        }
        self.nbytes_max = graph.frontend.max_request_bytes
        """Bytes of one tensor, however few they were on the way."""
        room = parameters_room(Graph(graph))
        self.parameters_bytes_max = max(min(room, parameters_bytes_max), parameters_bytes_min)
        self._required = tuple(spec.name for spec in graph.inputs if not spec.optional)

    def expect(self, name: str, datatype: str, shape: Sequence[int]) -> int | None:
        """Check what a request says of one tensor. Returns the bytes its data must have, None for BYTES.
        Raises RequestRefused."""
        declared = self.inputs.get(name)
        if declared is None:
            raise RequestRefused(f"unknown tensor {shown(name)}: expected {_names(self.inputs)}")
        if datatype != declared.datatype:
            raise RequestRefused(
                f"tensor {name!r}: expected datatype {declared.datatype}, got {shown(datatype)}"
            )
        if not shape:
            raise RequestRefused(
                f"tensor {name!r}: expected shape {declared.shape} (-1: any), got []: the first dimension "
                "is the rows"
            )
        # What is declared without variable dimensions cannot hold a negative one: equal is enough.
        if tuple(shape[1:]) != declared.row_shape if not declared.variable else not _fits(shape, declared):
            raise _unfit(name, shape, declared)
        if shape[0] > dimension_max:
            raise _unfit(name, shape, declared)
        if shape[0] < 1:
            raise RequestRefused(f"tensor {name!r}: expected at least 1 row, got shape {shown(shape)}")
        elements = math.prod(shape)
        if declared.element_bytes is not None:
            return elements * declared.element_bytes
        if elements > bytes_elements_max:
            raise RequestRefused(
                f"tensor {name!r}: expected at most {bytes_elements_max} BYTES elements, got shape "
                f"{shown(shape)}"
            )
        return None

    def arrange(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Check the tensors of one request together, and put them in the order of the graph's inputs. Raises
        RequestRefused."""
        by_name: dict[str, Tensor] = {}
        for tensor in tensors:
            if tensor.name in by_name:
                raise RequestRefused(f"tensor {tensor.name!r}: expected once, got twice")
            by_name[tensor.name] = tensor
        for name in self._required:
            if name not in by_name:
                raise RequestRefused(
                    f"missing tensor {name!r}: expected {_names(self._required)}, got "
                    f"{_names(by_name) if by_name else 'no tensor'}"
                )
        if not by_name:
            raise RequestRefused(
                f"expected at least one of {_names(self.inputs)}, got no tensor: a request needs rows"
            )
        first = tensors[0]
        for tensor in tensors:
            if tensor.shape[0] != first.shape[0]:
                raise RequestRefused(
                    f"tensor {tensor.name!r}: expected {first.shape[0]} rows as in {first.name!r}, got "
                    f"{tensor.shape[0]}: a request has one row count"
                )
        rows = first.shape[0]
        if rows > rows_without_data_max and rows > sum([len(tensor.data) for tensor in tensors]):
            raise RequestRefused(
                f"expected at most {rows_without_data_max} rows where there are fewer bytes than rows, got "
                f"{rows}"
            )
        return tuple(by_name[name] for name in self.inputs if name in by_name)

    def select(self, names: Iterable[str]) -> tuple[str, ...]:
        """Check the requested outputs. Raises RequestRefused."""
        selected: list[str] = []
        for name in names:
            if name not in self.outputs:
                raise RequestRefused(f"unknown output {shown(name)}: expected {_names(self.outputs)}")
            if name in selected:
                raise RequestRefused(f"output {name!r}: expected once, got twice")
            selected.append(name)
        return tuple(selected)


def check_size(name: str, shape: Sequence[int], expected: int | None, data: Buffer) -> Steps[None]:
    """Check raw tensor data against what `Signature.expect` returned. Raises RequestRefused."""
    if expected is None:
        yield from _check_bytes(name, math.prod(shape), data)
    elif len(data) != expected:
        raise RequestRefused(
            f"tensor {name!r}: expected {expected} bytes for shape {list(shape)}, got {len(data)}"
        )


def _check_bytes(name: str, count: int, data: Buffer) -> Steps[None]:
    """Walk over the lengths of a BYTES tensor: `count` elements and nothing behind them."""
    at = 0
    end = len(data)
    for index in range(count):
        if index % bytes_slice_elements == bytes_slice_elements - 1:
            yield
        if at + 4 > end:
            raise RequestRefused(
                f"tensor {name!r}: expected {count} BYTES elements, got {index}: no length at byte {at} of "
                f"{end}"
            )
        length = int.from_bytes(data[at : at + 4], "little")
        at += 4 + length
        if at > end:
            raise RequestRefused(
                f"tensor {name!r}: BYTES element {index} says it has {length} bytes, got "
                f"{length - (at - end)}"
            )
    if at != end:
        raise RequestRefused(
            f"tensor {name!r}: expected {count} BYTES elements in {at} bytes, got {end} bytes"
        )


def _fits(shape: Sequence[int], declared: DeclaredTensor) -> bool:
    """Whether a shape is one of a declared one with variable dimensions. A client's -1 is a mistake, not a
    declaration."""
    return len(shape) == len(declared.row_shape) + 1 and all(
        0 <= got <= dimension_max and want in (got, -1)
        for want, got in zip(declared.row_shape, shape[1:], strict=True)
    )


def _unfit(name: str, shape: Sequence[int], declared: DeclaredTensor) -> RequestRefused:
    if len(shape) == len(declared.row_shape) + 1 and not all(0 <= got <= dimension_max for got in shape):
        return RequestRefused(
            f"tensor {name!r}: expected dimensions from 0 to {dimension_max}, got shape {shown(shape)}"
        )
    return RequestRefused(f"tensor {name!r}: expected shape {declared.shape} (-1: any), got {shown(shape)}")


def _declared(name: str, spec: TensorSpec) -> DeclaredTensor:
    return DeclaredTensor(name, spec.datatype, spec.shape, itemsize(spec.datatype), -1 in spec.shape)


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
