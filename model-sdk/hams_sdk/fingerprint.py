"""What an object holds, as digests by path: to name state that a model forgot to declare.

Numbers, strings, arrays, tensors and generators count; functions, modules and handles do not. Bounded in
depth and number.
"""

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np

from hams_sdk import cuda
from hams_sdk.datatypes import is_tensor, torch_module

DEPTH_MAX = 10
LEAVES_MAX = 20_000
GRADIENT = " (gradient)"
"""Ends the path of a gradient that is not zero."""
GENERATOR = "the global generator"
"""Begins the path of a global random number generator."""


def fingerprint(value: Any) -> dict[str, str]:
    """Path -> digest of everything below `value.__dict__`, and of the global random number generators."""
    digests: dict[str, str] = {}
    for path, data in _walk("self", value, 0, set()):
        digests[path] = _digest(data)
        if len(digests) == LEAVES_MAX:
            break
    digests[f"{GENERATOR} of random"] = _digest(repr(random.getstate()).encode())
    digests[f"{GENERATOR} of numpy.random"] = _digest(repr(np.random.get_state()).encode())
    torch = torch_module()
    if torch is not None:
        digests[f"{GENERATOR} of torch"] = _digest(torch.get_rng_state().numpy().tobytes())
        for device, state in enumerate(cuda.generator_states()):
            digests[f"{GENERATOR} of torch on GPU {device}"] = _digest(state.numpy().tobytes())
    return digests


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def seed_generators(seed: int) -> None:
    """Seed the global generators of `random`, NumPy and, if it is loaded, torch on every device."""
    random.seed(seed)
    np.random.seed(seed)
    torch = torch_module()
    if torch is not None:
        torch.manual_seed(seed)


def _walk(path: str, value: Any, depth: int, seen: set[int]) -> Iterator[tuple[str, bytes]]:
    data = _leaf(value)
    if data is not None:
        yield path, data
        # None and zeros are the same to an optimizer.
        if is_tensor(value) and value.is_leaf and value.grad is not None and bool(value.grad.any()):
            yield path + GRADIENT, _leaf(value.grad) or b""
        return
    if depth == DEPTH_MAX or id(value) in seen:
        return
    seen.add(id(value))
    for name, item in _children(value):
        yield from _walk(f"{path}{name}", item, depth + 1, seen)


def _leaf(value: Any) -> bytes | None:
    if value is None or isinstance(value, bool | int | float | complex | str | np.generic):
        return f"{type(value).__name__} {value!r}".encode()
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, np.ndarray):
        array: np.ndarray[Any, np.dtype[Any]] = value
        return str(array.dtype).encode() + (
            repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
        )
    if is_tensor(value):
        tensor: Any = value.detach().cpu().contiguous()
        contents: bytes = (
            tensor.reshape(-1).view(torch_module().uint8).numpy().tobytes() if tensor.numel() else b""
        )
        return str(tensor.dtype).encode() + contents
    if isinstance(value, random.Random):
        return repr(value.getstate()).encode()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state).encode()
    torch = torch_module()
    if torch is not None and isinstance(value, torch.Generator):
        return bytes(value.get_state().numpy())
    return None


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for index, (key, item) in enumerate(value.items()):
            yield f"[{key!r}]" if isinstance(key, str | int | float | bytes) else f"[#{index}]", item
    elif isinstance(value, Sequence):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
        yield "(length)", len(value)
    elif isinstance(value, Set):
        yield "(members)", repr(sorted(map(repr, value)))
    elif not callable(value) or is_module(value):
        for name, item in vars(value).items() if hasattr(value, "__dict__") else ():
            yield f".{name}", item


def is_module(value: Any) -> bool:
    """Whether `value` is a torch module: callable, but an object with contents."""
    torch = torch_module()
    return torch is not None and isinstance(value, torch.nn.Module)
