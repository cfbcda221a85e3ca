"""A ModelInfer message before it is parsed: its raw tensors are taken out of it, and what is left is bounded.

A parser makes objects of whatever it is given, many times as large as the bytes, and the event loop stands
still meanwhile. So how many fields there are is counted first, on the bytes, and no further than the bound.
"""

from hams_sidecar.endpoint import open_inference_pb2 as pb
from hams_sidecar.endpoint.errors import RequestRefused
from hams_sidecar.endpoint.limits import (
    grpc_fields_spare,
    grpc_parsed_bytes_max,
    grpc_shape_bytes_max,
    grpc_unscanned_bytes_max,
    parameters_max,
    tensors_spare,
)

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX = 10

_REQUEST = pb.ModelInferRequest
_TENSOR = pb.ModelInferRequest.InferInputTensor


class _Fields:
    """The fields of one message, in order: (number, begin, end) of what each holds."""

    __slots__ = ("_at", "_data", "_end")

    def __init__(self, data: memoryview, begin: int, end: int) -> None:
        self._data = data
        self._at = begin
        self._end = end

    def next(self) -> tuple[int, int, int] | None:
        """The next field; None: there is none. Raises RequestRefused."""
        if self._at >= self._end:
            return None
        tag = self._varint()
        kind = tag & 7
        begin = self._at
        if kind == _BYTES:
            length = self._varint()
            begin = self._at
            self._at += length
        elif kind == _VARINT:
            self._varint()
        elif kind in (_FIXED64, _FIXED32):
            self._at += 8 if kind == _FIXED64 else 4
        else:
            raise _no_message()
        if self._at > self._end:
            raise _no_message()
        return tag >> 3, begin, self._at

    def _varint(self) -> int:
        value = 0
        for place in range(_VARINT_BYTES_MAX):
            if self._at >= self._end:
                raise _no_message()
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return value
        raise _no_message()


def without_raw(message: bytes, inputs: int, outputs: int) -> tuple[bytes, list[memoryview]]:
    """The message without its raw tensors, small enough to be parsed at once; and those, as views of it. One
    that is small as it is stays whole.

    `inputs`, `outputs`: how many tensors the graph has. Raises RequestRefused.
    """
    if len(message) <= grpc_unscanned_bytes_max:
        return message, []
    view = memoryview(message)
    counts: dict[int, int] = {}
    bounds = {
        _REQUEST.INPUTS_FIELD_NUMBER: (inputs + tensors_spare, "inputs"),
        _REQUEST.OUTPUTS_FIELD_NUMBER: (outputs + tensors_spare, "outputs"),
        _REQUEST.RAW_INPUT_CONTENTS_FIELD_NUMBER: (inputs + tensors_spare, "raw_input_contents"),
        _REQUEST.PARAMETERS_FIELD_NUMBER: (parameters_max, "parameters"),
    }
    raw: list[memoryview] = []
    rest: list[memoryview] = []
    fields, behind = _Fields(view, 0, len(view)), 0
    while (field := fields.next()) is not None:
        number, begin, end = field
        _count(counts, number, *bounds.get(number, (grpc_fields_spare, f"field {number}")))
        if number == _REQUEST.RAW_INPUT_CONTENTS_FIELD_NUMBER:
            raw.append(view[begin:end])
        else:
            rest.append(view[behind:end])
            if number == _REQUEST.INPUTS_FIELD_NUMBER:
                _check_tensor(view, begin, end)
            elif number == _REQUEST.OUTPUTS_FIELD_NUMBER:
                _check_output(view, begin, end)
        behind = end
    parsed = sum(map(len, rest))
    if parsed > grpc_parsed_bytes_max:
        raise RequestRefused(
            f"expected at most {grpc_parsed_bytes_max} bytes besides raw_input_contents, got {parsed}: send "
            "large tensors raw",
            status=413,
        )
    return b"".join(rest), raw


def _check_tensor(view: memoryview, begin: int, end: int) -> None:
    """One of `inputs`: nothing in it may be many, but for the elements of its contents."""
    counts: dict[int, int] = {}
    fields = _Fields(view, begin, end)
    while (field := fields.next()) is not None:
        number, first, last = field
        if number == _TENSOR.SHAPE_FIELD_NUMBER:
            _count(counts, number, grpc_shape_bytes_max, "dimensions of a tensor")
            if last - first > grpc_shape_bytes_max:
                raise RequestRefused(f"expected a shape of at most {grpc_shape_bytes_max} bytes")
        elif number == _TENSOR.PARAMETERS_FIELD_NUMBER:
            _count(counts, number, parameters_max, "parameters of a tensor")
        else:
            _count(counts, number, grpc_fields_spare, f"field {number} of a tensor")


def _check_output(view: memoryview, begin: int, end: int) -> None:
    counts: dict[int, int] = {}
    fields = _Fields(view, begin, end)
    while (field := fields.next()) is not None:
        _count(counts, field[0], parameters_max, f"field {field[0]} of an output")


def _count(counts: dict[int, int], number: int, most: int, what: str) -> None:
    """One more of a kind. Raises RequestRefused above `most`."""
    counts[number] = counts.get(number, 0) + 1
    if counts[number] > most or len(counts) > grpc_fields_spare:
        raise RequestRefused(f"expected at most {most} {what}, got more")


def _no_message() -> RequestRefused:
    return RequestRefused(f"expected a message {_REQUEST.DESCRIPTOR.full_name}, got bytes that are none")
