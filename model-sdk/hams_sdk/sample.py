"""Made-up inputs of a model, and what running on them must not change: the global random generators."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from hams_sdk import cuda
from hams_sdk.datatypes import NUMPY, Array, torch_module
from hams_sdk.errors import ModelFault
from hams_sdk.specs import OperatorSpec, TensorSpec

VARIABLE = 3
"""Size given to a variable dimension of made-up data."""


def made_up(spec: TensorSpec, rows: int, generator: np.random.Generator) -> Array:
    """An array (rows, *shape) of the declared datatype: words for BYTES, 0 or 1 for integers, [0, 1) for
    floats."""
    shape = (rows, *(VARIABLE if size == -1 else size for size in spec.shape))
    if spec.datatype == "BYTES":
        texts = [b"word%d" % number for number in generator.integers(0, 100, int(np.prod(shape)))]
        return np.array([*texts, None], dtype=object)[:-1].reshape(shape)
    dtype = NUMPY[spec.datatype]
    if spec.datatype == "BF16":
        return generator.integers(0x3F00, 0x3F80, shape, dtype=np.uint16)
    if dtype.kind == "f":
        return generator.random(shape).astype(dtype)
    return generator.integers(0, 2, shape).astype(dtype)


def row_of(operator: OperatorSpec, given: Mapping[str, Any]) -> list[Array | None]:
    """Arrays (1, *shape) of one row, one for each input: from `given` by name, made up if that is empty.

    An optional input that is not given is absent. Raises ModelFault for a given row that does not fit the
    declaration.
    """
    names = [spec.name for spec in operator.inputs]
    for name in given:
        if name not in names:
            raise ModelFault(f'model.warmUp.row: no input "{name}"; inputs are {", ".join(names)}')
    generator = np.random.default_rng(0)
    arrays: list[Array | None] = []
    for spec in operator.inputs:
        if spec.name in given:
            arrays.append(_given(spec, given[spec.name]))
        elif spec.optional:
            arrays.append(None)
        elif given:
            raise ModelFault(f'model.warmUp.row: input "{spec.name}" is missing')
        else:
            arrays.append(made_up(spec, 1, generator))
    return arrays


def _given(spec: TensorSpec, value: Any) -> Array:
    """One row out of JSON. Raises ModelFault."""
    wanted = f'model.warmUp.row: input "{spec.name}": expected {spec.datatype} of shape {list(spec.shape)}'
    try:
        if spec.datatype == "BYTES":
            plain = np.array(value, dtype=object)
            if not all(isinstance(element, str) for element in plain.ravel()):
                raise ModelFault(f"{wanted}, as text")
            encoded = [element.encode() for element in plain.ravel()]
            array = np.array([*encoded, None], dtype=object)[:-1].reshape(plain.shape)
        elif spec.datatype == "BF16":
            array = (np.array(value, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
        else:
            plain, array = np.array(value), np.array(value, dtype=NUMPY[spec.datatype])
            if array.dtype.kind != "f" and not (plain.dtype.kind in "biu" and np.array_equal(plain, array)):
                raise ModelFault(f"{wanted}, found {plain.dtype}")  # numpy would cut 1.5 to 1
    except (TypeError, ValueError, OverflowError) as error:
        raise ModelFault(f"{wanted}: {error}") from error
    if not spec.fits(array.shape):
        raise ModelFault(f"{wanted}, found shape {list(array.shape)}")
    return array[np.newaxis]


class Generators:
    """The states of the global generators of `random`, `numpy.random` and torch (its CPU's, and its GPUs' if
    they are in use), to be put back."""

    def __init__(self) -> None:
        self._random = random.getstate()
        self._numpy = np.random.get_state()
        torch = torch_module()
        self._torch = None if torch is None else torch.get_rng_state()
        self._cuda = [] if self._torch is None else cuda.generator_states()

    def restore(self) -> None:
        """Put them back."""
        random.setstate(self._random)
        np.random.set_state(self._numpy)
        if self._torch is not None:
            torch_module().set_rng_state(self._torch)
        for device, state in enumerate(self._cuda):
            torch_module().cuda.set_rng_state(state, device)
