"""Requests and replies of the gRPC service: messages to checked tensors and back.

A request carries its tensors raw or typed, never both, and gets its reply in the same form (FP16 and BF16
exist only raw). Typed contents are as strict as raw ones: only the field of the tensor's datatype may be
filled.

The raw tensors of a reply are appended to the serialised message: fields of one message may stand in any
order, and a tensor is copied once that way.
"""

import array
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hams_protocol.frozen import frozen
from hams_sidecar.datatypes import NUMPY, encode_bytes, take_bytes
from hams_sidecar.endpoint import open_inference_pb2 as pb
from hams_sidecar.endpoint.errors import RequestRefused, shown
from hams_sidecar.endpoint.json_scan import Steps
from hams_sidecar.endpoint.limits import bytes_slice_elements, json_slice_bytes
from hams_sidecar.endpoint.request import MODEL_VERSION, Parameters, check_id, split
from hams_sidecar.endpoint.signature import Signature, check_size
from hams_sidecar.inference import Buffer, Tensor

_FIELDS: dict[str, tuple[str, str]] = {
    "BOOL": ("bool_contents", "B"),
    "INT8": ("int_contents", "b"),
    "INT16": ("int_contents", "h"),
    "INT32": ("int_contents", "i"),
    "INT64": ("int64_contents", "q"),
    "UINT8": ("uint_contents", "B"),
    "UINT16": ("uint_contents", "H"),
    "UINT32": ("uint_contents", "I"),
    "UINT64": ("uint64_contents", "Q"),
    "FP32": ("fp32_contents", "f"),
    "FP64": ("fp64_contents", "d"),
    "BYTES": ("bytes_contents", ""),
}
"""Datatype to its field of typed contents, and the array code of its elements."""

_OUTPUT = pb.ModelInferResponse.InferOutputTensor
_OUTPUTS_TAG = bytes([pb.ModelInferResponse.OUTPUTS_FIELD_NUMBER << 3 | 2])
_CONTENTS_TAG = bytes([_OUTPUT.CONTENTS_FIELD_NUMBER << 3 | 2])
_RAW_OUTPUT_TAG = bytes([pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER << 3 | 2])
_slice_elements = 32 << 10
"""Typed contents are converted in slices, and the event loop runs in between."""


@frozen
class GrpcRequest:
    """A decoded and checked ModelInfer request."""

    tensors: tuple[Tensor, ...]
    parameters: Parameters
    outputs: tuple[str, ...] | None
    id: str
    raw: bool


def decode_request(
    message: pb.ModelInferRequest, raw: Sequence[Buffer], signature: Signature
) -> Steps[GrpcRequest]:
    """Read and check a request, whose raw tensors stand beside its message (`grpc_scan`). Raises
    RequestRefused."""
    if raw and len(raw) != len(message.inputs):
        raise RequestRefused(
            f"raw_input_contents: expected one for each of {len(message.inputs)} inputs, got {len(raw)}"
        )
    tensors: list[Tensor] = []
    for index, given in enumerate(message.inputs):
        shape = tuple(given.shape)
        expected = signature.expect(given.name, given.datatype, shape)
        if "shared_memory_region" in given.parameters:
            raise RequestRefused(
                f"tensor {given.name!r}: shared memory is not offered; send raw or typed contents"
            )
        data: Buffer
        if raw:
            if given.HasField("contents"):
                raise RequestRefused(
                    f"tensor {given.name!r}: expected raw_input_contents or contents, got both"
                )
            data = raw[index]
            yield from check_size(given.name, shape, expected, data)
        else:
            if expected is not None and expected > signature.nbytes_max:
                raise RequestRefused(
                    f"tensor {given.name!r}: expected at most {signature.nbytes_max} bytes, got shape "
                    f"{shown(shape)} of {given.datatype}",
                    status=413,
                )
            data = yield from _typed(given.name, given.datatype, shape, given.contents)
        tensors.append(Tensor(given.name, given.datatype, shape, data))
    outputs: tuple[str, ...] | None = None
    if message.outputs:
        outputs = signature.select(output.name for output in message.outputs)
    parameters = split(_parameters(message.parameters), signature.parameters_bytes_max)
    return GrpcRequest(signature.arrange(tensors), parameters, outputs, check_id(message.id), bool(raw))


def encode_reply(model: str, request: GrpcRequest, tensors: Sequence[Tensor]) -> Steps[bytes]:
    """A serialised ModelInferResponse."""
    message = pb.ModelInferResponse(model_name=model, model_version=MODEL_VERSION, id=request.id)
    raw = request.raw or any(tensor.datatype not in _FIELDS for tensor in tensors)
    parts: list[Buffer] = [message.SerializeToString()]
    for tensor in tensors:
        output = _OUTPUT(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape).SerializeToString()
        slices = [] if raw else (yield from _contents(tensor))
        nbytes = len(output) + sum(map(len, slices))
        parts += (_OUTPUTS_TAG, _varint(nbytes), output, *slices)
        if raw:
            parts += (_RAW_OUTPUT_TAG, _varint(len(tensor.data)), tensor.data)
    return b"".join(parts)


def _typed(name: str, datatype: str, shape: Sequence[int], contents: pb.InferTensorContents) -> Steps[bytes]:
    field, code = _FIELDS.get(datatype, ("", ""))
    if not field:
        raise RequestRefused(
            f"tensor {name!r}: {datatype} has no typed contents: expected raw_input_contents"
        )
    filled = [listed.name for listed, _ in contents.ListFields()]
    if filled not in ([], [field]):
        raise RequestRefused(f"tensor {name!r}: expected {datatype} as {field}, got {', '.join(filled)}")
    values = getattr(contents, field)
    count = math.prod(shape)
    if len(values) != count:
        raise RequestRefused(
            f"tensor {name!r}: expected {count} values for shape {list(shape)}, got {len(values)}"
        )
    parts: list[bytes] = []
    if datatype == "BYTES":
        for start in range(0, count, bytes_slice_elements):
            if parts:
                yield
            parts.append(encode_bytes(values[start : start + bytes_slice_elements]))
        return b"".join(parts)
    for start in range(0, count, _slice_elements):
        if parts:
            yield
        try:
            parts.append(array.array(code, values[start : start + _slice_elements]).tobytes())
        except OverflowError:
            raise RequestRefused(
                f"tensor {name!r}: a number of {field} is out of the range of {datatype}"
            ) from None
    return b"".join(parts)


def _contents(tensor: Tensor) -> Steps[list[bytes]]:
    """The typed contents of a tensor as fields of its message, one for each slice: such fields add up."""
    field = _FIELDS[tensor.datatype][0]
    fields: list[bytes] = []

    def put(values: list[object]) -> None:
        content = pb.InferTensorContents(**{field: values}).SerializeToString()  # type: ignore[arg-type]
        fields.extend((_CONTENTS_TAG, _varint(len(content)), content))

    if tensor.datatype == "BYTES":
        data, left, at = memoryview(tensor.data), math.prod(tensor.shape), 0
        while left:
            elements, at = take_bytes(data, at, min(bytes_slice_elements, left), json_slice_bytes)
            left -= len(elements)
            put([bytes(element) for element in elements])
            yield
        return fields
    values = np.frombuffer(tensor.data, dtype=NUMPY[tensor.datatype]) if tensor.data else np.empty(0)
    for start in range(0, values.size, _slice_elements):
        if start:
            yield
        put(values[start : start + _slice_elements].tolist())
    return fields


def _parameters(given: Mapping[str, pb.InferParameter]) -> dict[str, object]:
    parameters: dict[str, object] = {}
    for name, parameter in given.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is None:
            raise RequestRefused(f"parameter {name[:80]!r}: expected a value, got none")
        parameters[name] = getattr(parameter, kind)
    return parameters


def _varint(number: int) -> bytes:
    return bytes(_varint_bytes(number))


def _varint_bytes(number: int) -> Iterator[int]:
    while number > 0x7F:
        yield number & 0x7F | 0x80
        number >>= 7
    yield number
