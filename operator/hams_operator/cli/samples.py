"""Where requests come from: a .npz file, the `data.py` beside a graph's models, or random tensors of the declared shapes."""

import importlib
import importlib.util
import itertools
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import cast

import numpy as np

from hams_operator.cli.inference import DTYPES, Array, Tensor, tensor
from hams_operator.cli.output import complain
from hams_protocol.graph import Graph, TensorSpec

_VARIABLE_DIM = 4


def samples(graph: Graph, file: Path, data: Path | None) -> Iterator[tuple[Tensor, ...]]:
    """Requests without end, one after another. Raises Complaint."""
    arrays = from_npz(data) if data is not None else from_module(graph, file)
    if arrays is None:
        arrays = generated(graph)
    for found in arrays:
        try:
            yield as_request(graph, found)
        except ValueError as error:
            complain(f"data does not fit the graph: {error}")


def as_request(graph: Graph, found: Mapping[str, Array]) -> tuple[Tensor, ...]:
    """Arrays as the tensors of a request; names the graph does not know are an error, and so are missing ones. Raises ValueError."""
    specs = {item.name: item for item in graph.data.inputs}
    strange = sorted(set(found) - set(specs))
    if strange:
        raise ValueError(f"expected {', '.join(specs)}, found {', '.join(strange)}")
    missing = [name for name, item in specs.items() if not item.optional and name not in found]
    if missing:
        raise ValueError(f"tensor {missing[0]} is missing; found {', '.join(found) or 'none'}")
    return tuple(tensor(name, item.datatype, found[name]) for name, item in specs.items() if name in found)


def from_npz(path: Path) -> Iterator[dict[str, Array]]:
    """Row after row of equally long arrays, again and again."""
    try:
        with np.load(path, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        complain(f"--data {path}: expected a .npz file of plain arrays: {error}")
    rows = {len(array) if array.ndim else 0 for array in arrays.values()}
    if len(rows) != 1 or rows == {0}:
        complain(f"--data {path}: expected arrays with one common number of rows above 0, found {sorted(rows) or 'no array'}")
    return ({name: array[row : row + 1] for name, array in arrays.items()} for row in itertools.cycle(range(rows.pop())))


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
        stream = cast(Callable[[], Iterator[dict[str, Array]]] | None, getattr(importlib.import_module(name), "stream", None))
    except ImportError as error:
        complain(f"{name} in {folder} cannot be imported: {error}; give requests with --data FILE.npz")
    return None if stream is None else stream()


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
        array[...] = [random.bytes(4).hex().encode() for _ in range(array.size)] if array.ndim == 1 else b"text"
        return array
    if kind.kind == "f":
        return random.standard_normal(shape).astype(kind)
    return random.integers(0, 2 if item.datatype == "BOOL" else 10, shape).astype(kind)
