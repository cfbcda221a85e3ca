"""Datatypes of the Open Inference Protocol: sizes, numpy types, and the encoding of BYTES.

BYTES elements are encoded one after another, row-major, each as a 4-byte little-endian length and its bytes
(the protocol's raw tensor form). BF16 has no numpy type: its 16-bit patterns appear as uint16.
"""

import math
import struct
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

NUMPY: dict[str, np.dtype[np.generic]] = {
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

DATATYPES: frozenset[str] = frozenset(NUMPY) | {"BYTES"}
"""All datatypes a tensor may have."""

_LENGTH = struct.Struct("<I")


def itemsize(datatype: str) -> int | None:
    """Bytes of one element, None for BYTES. Raises KeyError for an unknown datatype."""
    return None if datatype == "BYTES" else NUMPY[datatype].itemsize


def fixed_nbytes(datatype: str, shape: Sequence[int]) -> int | None:
    """Bytes of a tensor of this shape, None if that depends on its contents."""
    size = itemsize(datatype)
    return None if size is None else size * math.prod(shape)


def encode_bytes(elements: Iterable[bytes]) -> bytes:
    """BYTES elements in row-major order, as they lie in a buffer."""
    parts: list[bytes] = []
    for element in elements:
        parts.append(_LENGTH.pack(len(element)))
        parts.append(element)
    return b"".join(parts)


def encode_strings(elements: list[str]) -> bytes:
    """Texts as BYTES elements in UTF-8, in row-major order, as they lie in a buffer."""
    encoded = [element.encode() for element in elements]
    lengths = np.fromiter(map(len, encoded), dtype="<u4", count=len(encoded)).tobytes()
    parts: list[bytes] = [b""] * (2 * len(encoded))
    parts[::2] = [lengths[at : at + 4] for at in range(0, len(lengths), 4)]
    parts[1::2] = encoded
    return b"".join(parts)


def take_bytes(data: memoryview, at: int, count: int, nbytes: int) -> tuple[list[memoryview], int]:
    """`count` BYTES elements from byte `at` on, fewer once they have `nbytes`, and where they end. Raises
    ValueError."""
    elements: list[memoryview] = []
    end, enough = len(data), at + nbytes
    unpack = _LENGTH.unpack_from
    for _ in range(count):
        if at + 4 > end:
            raise ValueError(f"no length at byte {at} of {end}")
        begin = at + 4
        at = begin + unpack(data, at)[0]
        if at > end:
            raise ValueError(
                f"a length of {at - begin} at byte {begin - 4}, and {end - begin} bytes are left"
            )
        if elements and at > enough:
            return elements, begin - 4
        elements.append(data[begin:at])
    return elements, at


def decode_bytes(data: memoryview, count: int) -> npt.NDArray[np.object_]:
    """`count` BYTES elements. Raises ValueError if `data` is not exactly that."""
    texts = np.empty(count, dtype=np.object_)
    at = 0
    end = len(data)
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
