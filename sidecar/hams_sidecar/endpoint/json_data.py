"""Tensor data in JSON: `[1, 2, 3]`, flat or nested as the shape, to and from the bytes of a tensor.

No cast: an integer datatype takes integers in its range, BOOL takes true and false, BYTES takes strings
(UTF-8). FP16, BF16, FP32 and FP64 take numbers, rounded to the datatype as JSON's decimals must be, but never
to infinity. JSON has no NaN: "NaN", "Infinity" and "-Infinity" stand for themselves, as in the JSON mapping
of Protocol Buffers.

Both directions are generators that stop after each slice, so that large tensors do not hold the event loop
(`run`). Nothing recurses with the input.
"""

import array
import asyncio
import codecs
import math
import sys
import weakref
from collections.abc import Generator, Sequence
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from hams_sidecar.datatypes import NUMPY, encode_strings, fixed_nbytes, take_bytes
from hams_sidecar.endpoint.errors import RequestRefused
from hams_sidecar.endpoint.json_scan import Elements, Steps
from hams_sidecar.endpoint.limits import bytes_slice_elements, json_slice_bytes
from hams_sidecar.inference import Buffer

json_values_max = 8 << 20
"""Values of one tensor in JSON: their nesting is compared at once."""

json_string_bytes_max = 1 << 20
"""One string in the data of a request, as JSON: it is decoded at once."""

assert sys.byteorder == "little", "tensors are little-endian; this host is not"

T = TypeVar("T")

_INTEGER_CODES = {
    "INT8": "b",
    "UINT8": "B",
    "INT16": "h",
    "UINT16": "H",
    "INT32": "i",
    "UINT32": "I",
    "INT64": "q",
    "UINT64": "Q",
}
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

_integers = msgspec.json.Decoder(list[int])
_floats = msgspec.json.Decoder(list[float])
_mixed = msgspec.json.Decoder(list[float | str])
_booleans = msgspec.json.Decoder(list[bool])
_strings = msgspec.json.Decoder(list[str])
_encode = msgspec.json.Encoder().encode
_utf8 = codecs.getincrementaldecoder("utf-8")


async def run(steps: Steps[T]) -> T:
    """Do the work, and let the event loop run at each pause. However many do, one slice is worked on between
    two turns of the loop."""
    turn = _turn_of(asyncio.get_running_loop())
    while True:
        async with turn:
            try:
                next(steps)
            except StopIteration as stop:
                result: T = stop.value
                return result
            await asyncio.sleep(0)


_turns: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]" = weakref.WeakKeyDictionary()


def _turn_of(loop: asyncio.AbstractEventLoop) -> asyncio.Lock:
    turn = _turns.get(loop)
    if turn is None:
        turn = _turns[loop] = asyncio.Lock()
    return turn


def run_through(steps: Steps[T]) -> T:
    """Do the work without a pause: only for what is small."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result


def read(
    name: str, datatype: str, shape: Sequence[int], text: memoryview, nbytes_max: int = sys.maxsize
) -> Steps[bytes]:
    """Bytes of a tensor from a JSON array, `nbytes_max` at most. Raises RequestRefused, which names the
    tensor."""
    try:
        if bytes(text[:1]) != b"[":
            raise RequestRefused(f"tensor {name!r}: expected data as an array, got {_shorten(text)}")
        if datatype == "BYTES":
            return (yield from _read_strings(name, shape, text))
        values = yield from _values(name, shape, text)
        nbytes = fixed_nbytes(datatype, shape) or 0  # a number of two characters may be one of eight bytes
        if nbytes > nbytes_max:
            raise RequestRefused(
                f"tensor {name!r}: expected at most {nbytes_max} bytes, got {nbytes} of {datatype}",
                status=413,
            )
        parts: list[bytes] = []
        for part in _arrays(values):
            if parts:
                yield
            parts.append(_numbers(datatype, part))
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError, RecursionError, ValueError) as error:
        raise RequestRefused(f"tensor {name!r}: data of {datatype}: {_reason(error)}") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def write(datatype: str, shape: Sequence[int], data: Buffer) -> Steps[list[bytes]]:
    """JSON array, flat and row-major, of a tensor's values, in pieces to send. Raises UnicodeDecodeError for
    BYTES that are not UTF-8."""
    if datatype == "BYTES":
        return (yield from _write_strings(memoryview(data), math.prod(shape)))
    if not data:
        return [b"[]"]
    values = np.frombuffer(data, dtype=NUMPY[datatype])
    if datatype == "BF16":
        values = (values.astype("<u4") << 16).view("<f4")
    count = max(json_slice_bytes // 8, 1)
    if values.size <= count:
        return [_text(values)]
    pieces: list[bytes] = []
    for start in range(0, values.size, count):
        pieces += (b"," if pieces else b"[", _text(values[start : start + count])[1:-1])
        yield
    return [*pieces, b"]"]


def _write_strings(data: memoryview, count: int) -> Steps[list[bytes]]:
    pieces: list[bytes] = []
    at = 0
    while count:
        elements, at = take_bytes(data, at, min(bytes_slice_elements, count), json_slice_bytes)
        count -= len(elements)
        pieces.append(b"," if pieces else b"[")
        if len(elements) == 1 and len(elements[0]) > json_slice_bytes:
            pieces += yield from _write_long(elements[0])
        else:
            pieces.append(_encode([str(element, "utf-8") for element in elements])[1:-1])
        yield
    return [*pieces, b"]"] if pieces else [b"[]"]


def _write_long(text: memoryview) -> Steps[list[bytes]]:
    """One string, in slices."""
    decode = _utf8().decode
    pieces = [b'"']
    for start in range(0, len(text), json_slice_bytes):
        part = text[start : start + json_slice_bytes]
        pieces.append(_encode(decode(bytes(part), start + len(part) == len(text)))[1:-1])
        yield
    return [*pieces, b'"']


def _text(values: npt.NDArray[np.generic]) -> bytes:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        named = [value if math.isfinite(value) else _name(value) for value in values.tolist()]
        return _encode(named)
    return _encode(values.tolist())


def _name(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _values(name: str, shape: Sequence[int], text: memoryview) -> Steps[list[bytes]]:
    """The values of a flat or nested array with commas between, in slices. Raises ValueError,
    RequestRefused."""
    elements = Elements(text)
    values: list[bytes] = []
    while (element := elements.next()) is not None:
        values.append(element[0])
        yield
    _check_nesting(name, shape, elements)
    return values if elements.has_values else []


def _check_nesting(name: str, shape: Sequence[int], elements: Elements) -> None:
    """Check number and nesting of the values without following it. Raises RequestRefused."""
    count = math.prod(shape)
    got = elements.commas + 1 if elements.has_values else 0
    if got > json_values_max:
        raise RequestRefused(
            f"tensor {name!r}: expected at most {json_values_max} values in JSON, got {got}: send it binary",
            status=413,
        )
    if got != count:
        raise RequestRefused(f"tensor {name!r}: expected {count} values for shape {list(shape)}, got {got}")
    nesting = b"".join(elements.nesting)
    if nesting != _flat(count) and (_nested_bytes(shape) != len(nesting) or nesting != _nested(shape)):
        raise _nested_otherwise(name, shape)


def _flat(count: int) -> bytes:
    return b"[" + b"," * (count - 1) + b"]"


def _nested(shape: Sequence[int]) -> bytes:
    text = _flat(shape[-1])
    for dim in reversed(shape[:-1]):
        text = b"[" + ((text + b",") * dim)[:-1] + b"]"
    return text


def _nested_bytes(shape: Sequence[int]) -> int:
    """Length of `_nested(shape)`: compared first, so that a shape that lies costs nothing."""
    nbytes = 0
    for depth, dim in enumerate(reversed(shape)):
        nbytes = 2 + max(dim - 1, 0) + (nbytes * dim if depth else 0)
    return nbytes


def _nested_otherwise(name: str, shape: Sequence[int]) -> RequestRefused:
    return RequestRefused(
        f"tensor {name!r}: expected data flat or nested as shape {list(shape)}, got it nested otherwise"
    )


def _arrays(values: list[bytes]) -> Generator[bytes, None, None]:
    """Slices of `1,2,3`, cut anywhere, as arrays of about a slice each, cut at commas. Raises OverflowError
    for a value as long as a slice."""
    rest = b""
    for part in values:
        part = rest + part
        cut = part.rfind(b",")
        rest = part[cut + 1 :]
        if cut >= 0:
            yield b"[" + part[:cut] + b"]"
        elif len(rest) > json_slice_bytes:
            raise OverflowError
    yield b"[" + rest + b"]"


def _numbers(datatype: str, text: bytes) -> bytes:
    """Bytes of one JSON array of numbers (or of true and false)."""
    if datatype == "BOOL":
        return bytes(_booleans.decode(text))
    if datatype in _INTEGER_CODES:
        return array.array(_INTEGER_CODES[datatype], _integers.decode(text)).tobytes()
    values = _floats.decode(text) if b'"' not in text else [_number(value) for value in _mixed.decode(text)]
    if datatype == "FP64":
        return array.array("d", values).tobytes()
    wide = np.array(values, dtype=np.float64)
    with np.errstate(over="ignore"):
        if datatype == "FP16":
            half = wide.astype(np.float16)
            _check_range(half, wide)
            return half.tobytes()
        single = wide.astype(np.float32)
    if datatype == "BF16":
        single = _round_to_bf16(single)
    _check_range(single, wide)
    return (
        single.tobytes() if datatype == "FP32" else (single.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    )


def _check_range(narrow: npt.NDArray[np.floating], wide: npt.NDArray[np.float64]) -> None:
    """Raises OverflowError if a finite number became infinite."""
    if (np.isinf(narrow) & ~np.isinf(wide)).any():
        raise OverflowError


def _round_to_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """To the nearest BF16, ties to even, still as FP32 (the low half is zero). NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(values), np.float32(np.nan), rounded.view(np.float32))


def _number(value: float | str) -> float:
    if isinstance(value, str):
        if value not in _NOT_FINITE:
            raise msgspec.ValidationError(f"Expected a number, got the string {value[:40]!r}")
        return _NOT_FINITE[value]
    return value


def _read_strings(name: str, shape: Sequence[int], text: memoryview) -> Steps[bytes]:
    elements = Elements(text)
    parts: list[bytes] = []
    rest: list[bytes] = []
    while (element := elements.next()) is not None:
        values, cut = element
        if cut:
            parts.append(encode_strings(_strings.decode(b"".join((b"[", *rest, values[: cut - 1], b"]")))))
            rest = [values[cut:]]
        else:
            rest.append(values)
            if sum(map(len, rest)) > json_string_bytes_max:
                raise RequestRefused(
                    f"tensor {name!r}: expected strings of at most {json_string_bytes_max} bytes in JSON, "
                    "got a longer one: send it binary",
                    status=413,
                )
        yield
    last = b"".join(rest)
    if last:
        parts.append(encode_strings(_strings.decode(b"[" + last + b"]")))
    _check_nesting(name, shape, elements)
    return b"".join(parts)


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, OverflowError):
        return "a number is out of its range"
    text = str(error)
    return text[:1].lower() + text[1:]


def _shorten(text: memoryview) -> str:
    return repr(bytes(text[:40]).decode("utf-8", "replace"))
