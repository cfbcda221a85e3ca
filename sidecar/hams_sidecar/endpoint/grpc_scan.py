"""A ModelInfer message before it is parsed: its raw tensors are taken out of it, and what is left is bounded.

A parser makes objects of whatever it is given, many times as large as the bytes, and the event loop stands
still meanwhile. So fields are counted first, on the bytes, and no further than their bound.
"""

from collections.abc import Sequence
from typing import NamedTuple

from hams_sidecar.endpoint import open_inference_pb2 as pb
from hams_sidecar.endpoint.errors import RequestRefused
from hams_sidecar.endpoint.json_scan import Steps
from hams_sidecar.endpoint.limits import tensors_spare

grpc_parsed_bytes_max = 4 << 20
"""A ModelInfer message besides its raw tensors, typed contents included: what is parsed at once, and grows to
several times its size. gRPC's own default for a whole message."""

grpc_varied_bytes_max = 1 << 20
"""A ModelInfer message besides its raw tensors and packed FP32 and FP64: this part takes the parser longest,
some 15 ms."""

grpc_parsed_growth = 2
"""Bytes that a byte of packed FP32 and FP64 holds while it is parsed, at most."""

grpc_varied_growth = 16
"""Bytes that a byte of the rest holds: a number of one byte is one of eight, in an array that doubles."""

grpc_unscanned_bytes_max = 4 << 10
"""A message that is parsed as it is: whatever it holds, it is little."""

grpc_fields_spare = 256
"""Fields of a message, those of messages within counted, that belong to no tensor: names, parameters, what is
not known here."""

grpc_fields_per_tensor = 48
"""Fields for each tensor of the graph, and each of `tensors_spare`."""

grpc_fields_slice = 256
"""Fields are looked at in slices of so many, and the event loop runs in between."""

grpc_shape_bytes_max = 256
"""Bytes of a packed shape."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX, _TAG_BYTES_MAX = 10, 5

_REQUEST = pb.ModelInferRequest
_TENSOR = pb.ModelInferRequest.InferInputTensor
_FIXED = (
    pb.InferTensorContents.FP32_CONTENTS_FIELD_NUMBER,
    pb.InferTensorContents.FP64_CONTENTS_FIELD_NUMBER,
)
"""Contents that are copied as they come, if they are packed."""


class Scanned(NamedTuple):
    """A message without its raw tensors, those as views of it, and the bytes that parsing takes at most."""

    rest: bytes
    raw: Sequence[memoryview]
    parsed_bytes: int


class _Fields:
    """The fields of one message, in order: number, kind, where what each holds begins and ends."""

    __slots__ = ("_at", "_data", "_end")

    def __init__(self, data: memoryview, begin: int, end: int) -> None:
        self._data = data
        self._at = begin
        self._end = end

    def next(self) -> tuple[int, int, int, int] | None:
        """The next field; None: there is none. Raises RequestRefused."""
        if self._at >= self._end:
            return None
        tag = self._varint(_TAG_BYTES_MAX)
        kind = tag & 7
        begin = self._at
        if kind == _BYTES:
            length = self._varint(_VARINT_BYTES_MAX)
            begin = self._at
            self._at += length
        elif kind == _VARINT:
            self._varint(_VARINT_BYTES_MAX)
        elif kind in (_FIXED64, _FIXED32):
            self._at += 8 if kind == _FIXED64 else 4
        else:
            raise _no_message()
        if self._at > self._end:
            raise _no_message()
        return tag >> 3, kind, begin, self._at

    def _varint(self, most: int) -> int:
        value = 0
        for place in range(most):
            if self._at >= self._end:
                raise _no_message()
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return value
        raise _no_message()


class _Scan:
    """One scan: how many fields it may look at, and how many bytes of contents vary in what they become."""

    def __init__(self, view: memoryview, tensors: int) -> None:
        self.view = view
        self.left = grpc_fields_spare + grpc_fields_per_tensor * tensors
        self.fixed_bytes = 0

    def step(self, fields: _Fields) -> tuple[int, int, int, int] | None:
        """The next field of a message within. Raises RequestRefused."""
        field = fields.next()
        self.left -= field is not None
        if self.left < 0:
            raise RequestRefused(
                "expected a message with fewer fields: repeated ones are packed, tensors raw"
            )
        return field

    def tensor(self, begin: int, end: int) -> Steps[None]:
        """One of `inputs`: nothing in it may be many, but for the elements of its contents."""
        fields = _Fields(self.view, begin, end)
        while (field := self.step(fields)) is not None:
            number, kind, first, last = field
            if number == _TENSOR.SHAPE_FIELD_NUMBER and last - first > grpc_shape_bytes_max:
                raise RequestRefused(f"expected a shape of at most {grpc_shape_bytes_max} bytes")
            if number == _TENSOR.CONTENTS_FIELD_NUMBER and kind == _BYTES:
                self.fixed_bytes += _fixed_bytes(_Fields(self.view, first, last))
            if self.left % grpc_fields_slice == 0:
                yield

    def others(self, begin: int, end: int) -> Steps[None]:
        """Any other message within."""
        fields = _Fields(self.view, begin, end)
        while self.step(fields) is not None:
            if self.left % grpc_fields_slice == 0:
                yield


def without_raw(message: bytes, inputs: int, outputs: int) -> Steps[Scanned]:
    """Take the raw tensors out. What is left is small enough to be parsed at once; a message that is small as
    it is stays whole.

    `inputs`, `outputs`: how many tensors the graph has. Raises RequestRefused.
    """
    if len(message) <= grpc_unscanned_bytes_max:
        return Scanned(message, (), grpc_varied_growth * len(message))
    view = memoryview(message)
    scan = _Scan(view, inputs + outputs + tensors_spare)
    raw: list[memoryview] = []
    rest: list[memoryview] = []
    fields, behind, tensors = _Fields(view, 0, len(view)), 0, 0
    while (field := scan.step(fields)) is not None:
        number, kind, begin, end = field
        if number == _REQUEST.RAW_INPUT_CONTENTS_FIELD_NUMBER and kind == _BYTES:
            raw.append(view[begin:end])
        else:
            rest.append(view[behind:end])
            if kind == _BYTES and number == _REQUEST.INPUTS_FIELD_NUMBER:
                tensors += 1
                yield from scan.tensor(begin, end)
            elif kind == _BYTES and number == _REQUEST.OUTPUTS_FIELD_NUMBER:
                yield from scan.others(begin, end)
        behind = end
        if max(tensors, len(raw)) > inputs + tensors_spare:
            raise RequestRefused(f"expected {inputs} tensors at most, got more than {inputs + tensors_spare}")
        if scan.left % grpc_fields_slice == 0:
            yield
    nbytes = sum(map(len, rest))
    varied = nbytes - scan.fixed_bytes
    if nbytes > grpc_parsed_bytes_max or varied > grpc_varied_bytes_max:
        raise RequestRefused(
            f"expected at most {grpc_parsed_bytes_max} bytes besides raw_input_contents, got {nbytes}, and "
            f"{grpc_varied_bytes_max} besides packed fp32_contents and fp64_contents, got {varied}: send "
            "large tensors raw",
            status=413,
        )
    yield
    parsed_bytes = grpc_parsed_growth * scan.fixed_bytes + grpc_varied_growth * varied
    return Scanned(b"".join(rest), raw, parsed_bytes)


def _fixed_bytes(fields: _Fields) -> int:
    """Bytes of contents that are packed numbers of a fixed size; 0 if there is anything else."""
    nbytes = 0
    for _ in _FIXED:
        field = fields.next()
        if field is None:
            return nbytes
        number, kind, begin, end = field
        if number not in _FIXED or kind != _BYTES:
            return 0
        nbytes += end - begin
    return nbytes if fields.next() is None else 0


def _no_message() -> RequestRefused:
    return RequestRefused(f"expected a message {_REQUEST.DESCRIPTOR.full_name}, got bytes that are none")
