"""`hams-model check`: proves that a model fits its operator before it is deployed.

Runs the model on batches of several sizes (the author's data, or made up from the declaration), then:
outputs are as declared; no state is written before the boundary; the state, captured and loaded into a fresh process, goes on with the
same next outputs. If it does not, the attributes that differ are named: state that `initialize` did not return. A model that is not
deterministic is told apart by running it twice from the same state; its captured bytes are compared instead.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hams_sdk.datatypes import NUMPY, Array
from hams_sdk.engine import Engine, UnitInput, load_model
from hams_sdk.errors import UsageError, describe
from hams_sdk.fingerprint import fingerprint
from hams_sdk.graphfile import read_operator
from hams_sdk.replay import image_of, operator_json, outputs_of, run_all, save_batches
from hams_sdk.specs import OperatorSpec, TensorSpec
from hams_sdk.state import leaf_digests

FIRST = ((1,), (3,), (2, 1), (1, 1, 1), (8,))
"""Rows of the units of the batches before the capture, and of those after it."""
NEXT = ((1,), (2, 1), (4,))
VARIABLE = 3
"""Size given to a variable dimension of made-up data."""
NAMES_MAX = 8


class Report:
    """Lines of the report; `failed` if one says so."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.failed = False

    def ok(self, text: str) -> None:
        """Something that was proved."""
        self.lines.append(f"ok    {text}")

    def note(self, text: str) -> None:
        """Something to know."""
        self.lines.append(f"note  {text}")

    def fail(self, text: str) -> None:
        """Something to mend."""
        self.lines.append(f"FAIL  {text}")
        self.failed = True


def main(arguments: Sequence[str]) -> int:
    """The command. 0: the model fits, 1: it does not, 2: usage."""
    parser = argparse.ArgumentParser(prog="hams-model check", description="Prove that a model fits its operator.")
    parser.add_argument("entrypoint", metavar="module:Class")
    parser.add_argument("--graph", required=True, type=Path, help="ServiceGraph file")
    parser.add_argument("--operator", help="which operator, if several run this model")
    parser.add_argument("--data", type=Path, help=".npz with an array (rows, ...) per input; else data is made up")
    parser.add_argument(
        "--path", metavar="DIR", action="append", help="folder to put first on the module path (default: that of the graph file, then .)"
    )
    options = parser.parse_args(arguments)
    path = options.path or [str(options.graph.resolve().parent), os.getcwd()]
    sys.path[:0] = path
    try:
        spec = read_operator(options.graph, options.entrypoint, options.operator)
        report = check(options.entrypoint, spec, options.data, path)
    except UsageError as error:
        sys.stderr.write(f"hams-model check: {error}\n")
        return 2
    lines = [f'{options.entrypoint} as operator "{spec.name}" of {options.graph}', *report.lines]
    sys.stdout.write("\n".join([*lines, "the model does not fit" if report.failed else "the model fits"]) + "\n")
    return 1 if report.failed else 0


def check(entrypoint: str, spec: OperatorSpec, data: Path | None, path: list[str]) -> Report:
    """Check one model. Raises UsageError for data or entrypoints that cannot be used."""
    report = Report()
    made = _Data(spec, data)
    first = [made.batch(rows, optional=index % 2 == 0) for index, rows in enumerate(FIRST)]
    after = [made.batch(rows, optional=True) for rows in NEXT]
    model = load_model(entrypoint)
    engine = Engine(model, spec)
    started = time.perf_counter()
    try:
        engine.initialize()
    except Exception as error:  # noqa: BLE001 - the model's code
        report.fail(f"initialize: {describe(error)}")
        return report
    report.ok(f"initialize took {_ms(time.perf_counter() - started)}")
    before = fingerprint(model)
    if not _run(report, engine, first, made.made_up):
        return report
    if not spec.stateful:
        _stateless(report, engine, entrypoint, after, path)
        return report
    try:
        started = time.perf_counter()
        image = image_of(engine)
        seconds = time.perf_counter() - started
    except Exception as error:  # noqa: BLE001 - `get` and `state_dict` are the model's code
        report.fail(f"capture: {describe(error)}")
        return report
    report.ok(f"capture took {_ms(seconds)} for {len(image):,} bytes")
    now = fingerprint(model)
    with tempfile.TemporaryDirectory(prefix="hams-model-check-") as folder:
        replays = [_replay(Path(folder), name, entrypoint, spec, image, after, path) for name in ("one", "two")]
    ours = outputs_of(spec, run_all(engine, after))
    _compare(report, image, ours, replays, before, now)
    return report


def _run(report: Report, engine: Engine, batches: list[list[UnitInput]], made_up: bool) -> bool:
    """Whether all batches ran with outputs as declared, writing nothing before the boundary."""
    times: list[float] = []
    early: set[str] = set()
    for batch in batches:
        before = leaf_digests(memoryview(image_of(engine)))

        def gate(before: dict[str, str] = before) -> None:
            early.update(_differing(before, leaf_digests(memoryview(image_of(engine)))))

        started = time.perf_counter()
        result = engine.run(batch, gate)
        times.append(time.perf_counter() - started)
        if result.units is None:
            hint = "; with made-up data this may be no fault of the model: give --data" if made_up else ""
            report.fail(f"run on {' + '.join(str(unit.rows) for unit in batch)} rows: {result.message}{hint}")
            return False
        if not result.updated:
            early.update(_differing(before, leaf_digests(memoryview(image_of(engine)))))
    report.ok(f"outputs are as declared over {len(batches)} batches; a run took {_ms(statistics.median(times))} (median)")
    if early:
        report.fail(f"state is written outside `with update:`: {_list(early)}")
    elif engine.spec.stateful:
        report.ok("nothing is written before the boundary")
    return True


def _stateless(report: Report, engine: Engine, entrypoint: str, after: list[list[UnitInput]], path: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="hams-model-check-") as folder:
        theirs = _replay(Path(folder), "one", entrypoint, engine.spec, bytearray(), after, path)
    if theirs.error is not None:
        report.fail(f"a fresh process: {theirs.error}")
    elif _same(outputs_of(engine.spec, run_all(engine, after)), theirs.outputs[0]):
        report.ok("a fresh process gives the same outputs")
    else:
        report.note("a fresh process gives other outputs: the model is not deterministic, or keeps state and should be `stateful`")


class _Replay:
    def __init__(self, folder: Path) -> None:
        answer = json.loads((folder / "answer.json").read_text())
        self.error: str | None = answer["error"]
        self.load_s: float = answer.get("load_s", 0.0)
        self.fingerprint: dict[str, str] = answer.get("fingerprint", {})
        self.outputs: list[dict[str, Array]] = []
        for attempt in (0, 1) if self.error is None else ():
            with np.load(folder / f"outputs-{attempt}.npz", allow_pickle=False) as arrays:
                self.outputs.append(dict(arrays))
        after = folder / "image-after"
        self.image = after.read_bytes() if after.exists() else b""


def _replay(
    parent: Path, name: str, entrypoint: str, spec: OperatorSpec, image: bytearray, batches: list[list[UnitInput]], path: list[str]
) -> _Replay:
    """Have a fresh process load `image` and go on."""
    folder = parent / name
    folder.mkdir()
    (folder / "image").write_bytes(image)
    index = save_batches(folder / "inputs.npz", spec, batches)
    (folder / "plan.json").write_text(json.dumps({"entrypoint": entrypoint, "operator": operator_json(spec), "batches": index, "path": path}))
    command = [sys.executable, "-P", "-m", "hams_sdk.replay", str(folder)]
    root = str(Path(__file__).resolve().parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        (folder / "answer.json").write_text(json.dumps({"error": last}))
    return _Replay(folder)


def _compare(report: Report, image: bytearray, ours: dict[str, Array], replays: list[_Replay], before: dict[str, str], now: dict[str, str]) -> None:
    one, two = replays
    for replay in replays:
        if replay.error is not None:
            report.fail(f"restore in a fresh process: {replay.error}")
            return
    wrong = _differing(leaf_digests(memoryview(image)), leaf_digests(memoryview(one.image)))
    if wrong:
        report.fail(f"restored into a fresh process and captured again, the state differs: {_list(wrong)}")
        return
    report.ok(f"restore took {_ms(one.load_s)}; captured again, every byte is the same")
    if _same(ours, one.outputs[0]) and _same(ours, two.outputs[0]):
        report.ok("a fresh process with the restored state gives the same next outputs")
        return
    changed = {path for path, digest in now.items() if before.get(path) != digest}
    differing = {path for path, digest in now.items() if one.fingerprint.get(path) != digest}
    chance = {path for path in changed if path.startswith("the global generator")}
    forgotten = {path for path in differing if not path.startswith("the global generator")}
    repeatable = _same(one.outputs[0], two.outputs[0]) or _same(one.outputs[0], one.outputs[1])
    if repeatable and not (chance and not forgotten):
        named = f": {_list(forgotten & changed or forgotten)}" if forgotten else ", and no attribute of the model tells which"
        report.fail(f"a fresh process with the restored state gives other outputs; state that initialize did not return{named}")
        return
    suspects = f"; not restored: {_list(forgotten & changed)}" if forgotten & changed else ""
    why = f" ({_list(chance)} is used)" if chance else ""
    report.note(f"the model is not deterministic{why}: outputs could not be compared, the captured bytes were{suspects}")


class _Data:
    """Batches out of the author's arrays, row after row, or made up."""

    def __init__(self, spec: OperatorSpec, path: Path | None) -> None:
        self.spec = spec
        self.made_up = path is None
        self._arrays: dict[str, Array] = {}
        self._at = 0
        self._units = 0
        self._random = np.random.default_rng(0)
        if path is None:
            return
        try:
            with np.load(path, allow_pickle=False) as arrays:
                self._arrays = dict(arrays)
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: {error}") from error
        for item in spec.inputs:
            self._examine(path, item)

    def batch(self, rows: Sequence[int], *, optional: bool) -> list[UnitInput]:
        """Units of so many rows each. `optional`: with the optional inputs (where there are data for them)."""
        units: list[UnitInput] = []
        for count in rows:
            self._units += 1
            arrays = [None if item.optional and (not optional or not self._has(item)) else self._rows(item, count) for item in self.spec.inputs]
            units.append(UnitInput(f"0/{self._units}", count, arrays, {}))
            self._at += count
        return units

    def _has(self, item: TensorSpec) -> bool:
        return self.made_up or item.name in self._arrays

    def _examine(self, path: Path, item: TensorSpec) -> None:
        array = self._arrays.get(item.name)
        if array is None:
            if not item.optional:
                raise UsageError(f'{path}: no array "{item.name}"; there are {", ".join(self._arrays) or "none"}')
            return
        if item.datatype == "BYTES":
            text = [element.encode() if isinstance(element, str) else bytes(element) for element in array.ravel().tolist()]
            array = np.array([*text, None], dtype=object)[:-1].reshape(array.shape)
        elif array.dtype != NUMPY[item.datatype]:
            raise UsageError(f'{path}: array "{item.name}" is {array.dtype}, expected {item.datatype}')
        if array.ndim == 0 or not len(array) or not item.fits(array.shape[1:]):
            raise UsageError(f'{path}: array "{item.name}" has shape {list(array.shape)}, expected {["rows", *item.shape]}')
        self._arrays[item.name] = array

    def _rows(self, item: TensorSpec, count: int) -> Array:
        if not self.made_up:
            array = self._arrays[item.name]
            return np.ascontiguousarray(array[np.arange(self._at, self._at + count) % len(array)])
        shape = (count, *(VARIABLE if size == -1 else size for size in item.shape))
        if item.datatype == "BYTES":
            words = [b"word%d" % number for number in self._random.integers(0, 100, int(np.prod(shape)))]
            return np.array([*words, None], dtype=object)[:-1].reshape(shape)
        dtype = NUMPY[item.datatype]
        if item.datatype == "BF16":
            return self._random.integers(0x3F00, 0x3F80, shape, dtype=np.uint16)
        if dtype.kind == "f":
            return self._random.random(shape).astype(dtype)
        return self._random.integers(0, 2, shape).astype(dtype)


def _differing(left: dict[str, str], right: dict[str, str]) -> set[str]:
    return {path for path in {*left, *right} if left.get(path) != right.get(path)}


def _same(left: dict[str, Array], right: dict[str, Array]) -> bool:
    return left.keys() == right.keys() and all(np.array_equal(array, right[name]) for name, array in left.items())


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms"


def _list(names: set[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - NAMES_MAX} more" if len(ordered) > NAMES_MAX else ""
    return ", ".join(ordered[:NAMES_MAX]) + more
