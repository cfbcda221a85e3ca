"""Datatypes of the Open Inference Protocol as numpy and torch see them, and the encoding of BYTES tensors.

BF16 has no numpy type: its bit patterns appear as uint16 (`Batch.torch` gives real bfloat16). BYTES elements
lie one after another, row-major, each as a 4-byte little-endian length and its bytes.
"""

import math
import struct
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from hams_sdk.errors import ModelFault

Array = npt.NDArray[Any]

NUMPY: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BF16": np.dtype("<u2"),
}
"""numpy type of every datatype of fixed size."""

NAMES: dict[np.dtype[Any], str] = {dtype: name for name, dtype in NUMPY.items() if name != "BF16"}
TORCH: dict[str, str] = {
    "torch.bool": "BOOL",
    "torch.uint8": "UINT8",
    "torch.uint16": "UINT16",
    "torch.uint32": "UINT32",
    "torch.uint64": "UINT64",
    "torch.int8": "INT8",
    "torch.int16": "INT16",
    "torch.int32": "INT32",
    "torch.int64": "INT64",
    "torch.float16": "FP16",
    "torch.float32": "FP32",
    "torch.float64": "FP64",
    "torch.bfloat16": "BF16",
}
"""KServe name of every torch dtype that has one."""

_LENGTH = struct.Struct("<I")


def torch_module() -> Any:
    """torch, if the model imported it; else None. The SDK itself never imports it."""
    return sys.modules.get("torch")


def is_tensor(value: object) -> bool:
    """Whether `value` is a torch tensor."""
    torch = torch_module()
    return torch is not None and isinstance(value, torch.Tensor)


def leaf_nbytes(leaf: Any) -> int:
    """Bytes of a leaf of a state in its image: of a tensor, an array or bytes."""
    return len(leaf) if isinstance(leaf, bytes) else int(leaf.nbytes)


def read_tensor(data: memoryview, datatype: str, shape: tuple[int, ...]) -> Array:
    """The tensor that lies in `data`: a view, or for BYTES a new object array. Raises ValueError if the sizes
    do not agree."""
    if datatype == "BYTES":
        return _decode_bytes(data, math.prod(shape)).reshape(shape)
    return np.frombuffer(data, dtype=NUMPY[datatype]).reshape(shape)


def as_array(name: str, value: object, datatype: str) -> Array:
    """A model's output as a numpy array of `datatype` on the CPU. Raises ModelFault that names the output,
    what was expected and got."""
    if is_tensor(value):
        tensor: Any = value
        datatype_there = TORCH.get(str(tensor.dtype), str(tensor.dtype))
        if datatype_there != datatype:
            raise ModelFault(f'output "{name}": expected {datatype}, got {datatype_there}')
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
        array: Array = (
            tensor.view(torch_module().int16).numpy().view(np.uint16)
            if datatype == "BF16"
            else tensor.numpy()
        )
        return array
    if not isinstance(value, np.ndarray | np.generic):
        raise ModelFault(
            f'output "{name}": expected an array or tensor of {datatype}, got {type(value).__name__}'
        )
    array = np.asarray(value)
    if array.dtype == NUMPY.get(datatype):
        return array
    if datatype == "BYTES":
        if array.dtype.kind == "S":
            return array.astype(object)
        if array.dtype.kind != "O":
            raise ModelFault(
                f'output "{name}": expected BYTES (an object array of bytes), got '
                f"{NAMES.get(array.dtype, array.dtype)}"
            )
        for index, element in enumerate(array.ravel()):
            if not isinstance(element, bytes):
                raise ModelFault(
                    f'output "{name}": element {index} is {type(element).__name__}, expected bytes'
                )
        return array
    raise ModelFault(f'output "{name}": expected {datatype}, got {NAMES.get(array.dtype, array.dtype)}')


def all_finite(array: Array, datatype: str) -> Array:
    """Per row, whether every element is finite. Integers, BOOL and BYTES always are."""
    rows = array.shape[0]
    if datatype == "BF16":
        good = (array & np.uint16(0x7F80)) != 0x7F80
    elif array.dtype.kind == "f":
        good = np.isfinite(array)
    else:
        return np.ones(rows, dtype=bool)
    finite: Array = good.reshape(rows, -1).all(axis=1)
    return finite


def encode_bytes(elements: Any) -> bytes:
    """BYTES elements in row-major order, as they lie in a slot."""
    parts: list[bytes] = []
    for element in elements:
        parts.append(_LENGTH.pack(len(element)))
        parts.append(element)
    return b"".join(parts)


def _decode_bytes(data: memoryview, count: int) -> Array:
    texts = np.empty(count, dtype=object)
    at, end = 0, len(data)
    for index in range(count):
        if at + 4 > end:
            raise ValueError(f"BYTES tensor ends within element {index} of {count}")
        (length,) = _LENGTH.unpack_from(data, at)
        at += 4
        if at + length > end:
            raise ValueError(f"BYTES element {index} claims {length} bytes, {end - at} are left")
        texts[index] = bytes(data[at : at + length])
        at += length
    if at != end:
        raise ValueError(f"{end - at} bytes follow the last of {count} BYTES elements")
    return texts
