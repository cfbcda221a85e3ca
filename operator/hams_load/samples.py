"""Where requests come from: a .npz file, the `data.py` beside a graph's models, or random tensors of the
declared shapes."""

import importlib
import importlib.util
import itertools
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import cast

import numpy as np
from numpy.lib.npyio import NpzFile

from hams_load.errors import BadData
from hams_load.inference import DTYPES, Array, InferTensor, tensor
from hams_protocol.graph import Graph, TensorSpec

_VARIABLE_DIM = 4


def samples(graph: Graph, file: Path, data: Path | None) -> Iterator[tuple[InferTensor, ...]]:
    """Requests without end, one after another. Raises BadData, at once if the first one cannot be had."""
    arrays = from_npz(data) if data is not None else from_module(graph, file)
    requests = _requests(graph, generated(graph) if arrays is None else arrays)
    return itertools.chain((next(requests),), requests)


def _requests(graph: Graph, arrays: Iterator[dict[str, Array]]) -> Iterator[tuple[InferTensor, ...]]:
    number = 0
    while True:
        try:
            sample = next(arrays)
        except StopIteration:
            raise BadData(f"data ended after {number} requests: expected some without end") from None
        except Exception as error:  # noqa: BLE001 - data.py is the user's own code and may raise anything
            raise BadData(f"data cannot be had: {type(error).__name__}: {error}") from None
        number += 1
        try:
            yield as_request(graph, _arrays(sample))
        except ValueError as error:
            raise BadData(f"data does not fit the graph: {error}") from None


def _arrays(value: object) -> Mapping[str, Array]:
    """What data.py yielded, which is its own code's word. Raises ValueError."""
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a dictionary of NumPy arrays, found {type(value).__name__}")
    for name, item in value.items():
        if not isinstance(item, np.ndarray):
            raise ValueError(f"tensor {name}: expected a NumPy array, found {type(item).__name__}")
    return value


def as_request(graph: Graph, sample: Mapping[str, Array]) -> tuple[InferTensor, ...]:
    """Arrays as the tensors of a request; names the graph does not know are an error, and so are missing
    ones, and shapes that are not the declared ones behind their rows. Raises ValueError."""
    specs = {item.name: item for item in graph.data.inputs}
    strange = sorted(set(sample) - set(specs))
    if strange:
        raise ValueError(f"expected {', '.join(specs)}, found {', '.join(strange)}")
    missing = [name for name, item in specs.items() if not item.optional and name not in sample]
    if missing:
        raise ValueError(f"tensor {missing[0]} is missing; found {', '.join(sample) or 'none'}")
    for name, array in sample.items():
        shape = specs[name].shape
        if array.ndim != len(shape) + 1 or any(
            dim not in (-1, got) for dim, got in zip(shape, array.shape[1:], strict=True)
        ):
            raise ValueError(
                f"tensor {name}: expected the shape {['rows', *shape]}, found {list(array.shape)}"
            )
    return tuple(tensor(name, item.datatype, sample[name]) for name, item in specs.items() if name in sample)


def from_npz(path: Path) -> Iterator[dict[str, Array]]:
    """Row after row of equally long arrays, again and again."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, NpzFile):
            raise BadData(
                f"--data {path}: expected a .npz file of plain arrays, found a single array (.npy)"
            ) from None
        with loaded as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        # RuntimeError: zip's, of what it cannot unpack
        why = (
            error.strerror if isinstance(error, OSError) and error.strerror else str(error).partition("\n")[0]
        )
        raise BadData(f"--data {path}: expected a .npz file of plain arrays: {why}") from None
    rows = {len(array) if array.ndim else 0 for array in arrays.values()}
    if len(rows) != 1 or rows == {0}:
        raise BadData(
            f"--data {path}: expected arrays with one common number of rows above 0, found "
            f"{sorted(rows) or 'no array'}"
        ) from None
    return (
        {name: array[row : row + 1] for name, array in arrays.items()}
        for row in itertools.cycle(range(rows.pop()))
    )


def from_module(graph: Graph, file: Path) -> Iterator[dict[str, Array]] | None:
    """What `stream()` of the package's `data` module yields; None if there is no such module."""
    folder = str(file.resolve().parent)
    module, _, _ = graph.data.operators[0].model.entrypoint.partition(":")
    package = module.rpartition(".")[0]
    name = f"{package}.data" if package else "data"
    if not (Path(folder) / (name.replace(".", "/") + ".py")).is_file():
        return None
    sys.path.insert(0, folder)
    try:
        stream = cast(
            Callable[[], Iterator[dict[str, Array]]] | None,
            getattr(importlib.import_module(name), "stream", None),
        )
        return None if stream is None else iter(stream())
    except Exception as error:  # noqa: BLE001 - data.py is the user's own code and may raise anything
        raise BadData(
            f"{name} in {folder} cannot be used: {type(error).__name__}: {error}; give requests with --data "
            "FILE.npz"
        ) from None


def generated(graph: Graph, seed: int = 0) -> Iterator[dict[str, Array]]:
    """Random tensors of one row each; variable dimensions are 4."""
    random = np.random.default_rng(seed)
    while True:
        yield {item.name: _random(item, random) for item in graph.data.inputs}


def _random(item: TensorSpec, random: np.random.Generator) -> Array:
    shape = (1, *(_VARIABLE_DIM if dim < 0 else dim for dim in item.shape))
    kind = np.dtype(DTYPES[item.datatype])
    if item.datatype == "BYTES":
        array = np.empty(shape, object)
        array[...] = (
            [random.bytes(4).hex().encode() for _ in range(array.size)] if array.ndim == 1 else b"text"
        )
        return array
    if kind.kind == "f":
        return random.standard_normal(shape).astype(kind)
    return random.integers(0, 2 if item.datatype == "BOOL" else 10, shape).astype(kind)
