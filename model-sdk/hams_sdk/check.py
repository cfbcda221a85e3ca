"""`hams-model check`: proves that a model fits its operator before it is deployed.

Runs the model on batches of several sizes (the author's data, or made up from the declaration), then:
outputs are as declared; no state is written before the boundary; the state, captured and loaded into a fresh
process, goes on with the same next outputs. If it does not, the attributes that differ are named: state that
`initialize` did not return. A model that is not deterministic is told apart by running it twice from the same
state; its captured bytes are compared instead.

Last, batches raise in one line of the model after another and are undone as a proxy undoes them: the next
outputs must be those of a process that never saw such a batch. The global generators of random numbers are
seeded before; a model that differs even then cannot be tried so, and the report says it.
"""

import argparse
import contextlib
import dis
import hashlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

from hams_sdk.chunks import Table, address_of, equal
from hams_sdk.datatypes import NUMPY, Array
from hams_sdk.engine import Engine, UnitInput, load_model
from hams_sdk.errors import BadModel, ModelFault, UsageError, at_place, describe, place_of
from hams_sdk.fingerprint import GENERATOR, GRADIENT, fingerprint, seed_generators
from hams_sdk.graphfile import read_operator
from hams_sdk.replay import image_of, operator_json, outputs_of, run_all, save_batches
from hams_sdk.sample import made_up, row_of
from hams_sdk.specs import OperatorSpec, TensorSpec
from hams_sdk.state import leaf_digests, read_header

FIRST = ((1,), (3,), (2, 1), (1, 1, 1), (8,))
"""Rows of the units of the batches before the capture, and of those after it."""
NEXT = ((1,), (2, 1), (4,))
NAMES_MAX = 8
CHUNK_NBYTES = 1 << 16
"""What proxies cut states into."""
PROPOSED_NBYTES_MIN = 1 << 20
"""State that did not change is spoken of from so many bytes on: less costs nothing to compare."""
SEED = 1
"""Of the global generators, where runs are to be alike."""
RAISES_MAX = 16
"""Lines of a run in which an exception is tried."""
RAISES_S = 20.0
"""Time after which no further line is tried."""
UNKNOWN = 3
"""Exit status: the model raised on made-up data, which proves neither that it fits nor that it does not."""


class _Stopped(Exception):
    """The model cannot be captured or loaded, so nothing more can be tried."""


class CheckReport:
    """Lines of the report; `failed` if one says so, `unknown` if the data may be to blame for that."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.failed = False
        self.unknown = False

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

    @property
    def verdict(self) -> str:
        """What it comes to, as a line."""
        if self.unknown:
            return "whether the model fits is not known: it raised on data that was made up"
        return "the model does not fit" if self.failed else "the model fits"


def main(arguments: Sequence[str]) -> int:
    """The command. 0: the model fits, 1: it does not, 2: usage, 3: unknown, as it raised on made-up data."""
    parser = argparse.ArgumentParser(
        prog="hams-model check", description="Prove that a model fits its operator."
    )
    parser.add_argument("entrypoint", metavar="module:Class")
    parser.add_argument("--graph", required=True, type=Path, help="ServiceGraph file")
    parser.add_argument("--operator", help="which operator, if several run this model")
    parser.add_argument(
        "--data",
        type=Path,
        help=".npz with an array (rows, ...) per input; else the row of model.warmUp, else data is made up",
    )
    parser.add_argument(
        "--path",
        metavar="DIR",
        action="append",
        help="folder to put first on the module path (default: that of the graph file, then .)",
    )
    options = parser.parse_args(arguments)
    path = options.path or [str(options.graph.resolve().parent), os.getcwd()]
    sys.path[:0] = path
    try:
        spec = read_operator(options.graph, options.entrypoint, options.operator)
        report = CheckReport()
        try:
            # What the model prints is no part of the report.
            with contextlib.redirect_stdout(sys.stderr):
                check(options.entrypoint, spec, options.data, path, report)
        except SystemExit as exit:
            report.fail(
                f"the model ended its process (exit status {exit.code}): it must raise instead"
                f"{at_place(place_of(exit))}"
            )
    except UsageError as error:
        sys.stderr.write(f"hams-model check: {error}\n")
        return 2
    lines = [f'{options.entrypoint} as operator "{spec.name}" of {options.graph}', *report.lines]
    sys.stdout.write("\n".join([*lines, report.verdict]) + "\n")
    return (UNKNOWN if report.unknown else 1) if report.failed else 0


def check(
    entrypoint: str, spec: OperatorSpec, data: Path | None, path: list[str], report: CheckReport
) -> None:
    """Check one model. Raises UsageError for data or entrypoints that cannot be used."""
    made = _Data(spec, data)
    try:
        model = load_model(entrypoint)
        engine = Engine(model, spec, logs_traces=False)
    except BadModel as error:
        report.fail(str(error))
        return
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - the model's code
        report.fail(
            f"the class cannot be made without arguments: {describe(error)}{at_place(place_of(error))}; "
            "`initialize` gets model.config"
        )
        return
    try:
        _check_behaviour(engine, entrypoint, made, path, report)
    except _Stopped as stopped:
        report.fail(str(stopped))
    if engine.fork_returned:
        report.fail(
            "a process that the model forked came back out of its code: end it with os._exit, or use "
            "multiprocessing"
        )


def _check_behaviour(
    engine: Engine, entrypoint: str, made: "_Data", path: list[str], report: CheckReport
) -> None:
    model, spec = engine.model, engine.spec
    first = [made.batch(rows, optional=index % 2 == 0) for index, rows in enumerate(FIRST)]
    after = [made.batch(rows, optional=True) for rows in NEXT]
    started = time.perf_counter()
    try:
        engine.initialize()
    except Exception as error:  # noqa: BLE001 - the model's code
        report.fail(f"initialize: {describe(error)}{_lacking(error, spec)}{at_place(place_of(error))}")
        return
    report.ok(f"initialize took {_ms(time.perf_counter() - started)}")
    before = fingerprint(model)
    at_first = _first_image(engine)
    if not _run(report, engine, first, made.made_up):
        return
    if not spec.stateful:
        _stateless(report, engine, entrypoint, after, path)
        return
    started = time.perf_counter()
    image = _image(engine)
    seconds = time.perf_counter() - started
    report.ok(f"capture took {_ms(seconds)} for {len(image):,} bytes")
    _constant(report, engine, at_first, image)
    now = fingerprint(model)
    with tempfile.TemporaryDirectory(prefix="hams-model-check-") as folder:
        replays = [
            _replay(Path(folder), name, entrypoint, spec, image, after, path) for name in ("one", "two")
        ]
    ours = outputs_of(spec, run_all(engine, after))
    if _compare(report, image, ours, replays, before, now):
        _raise_and_undo(report, engine, image, after)


@contextlib.contextmanager
def _step(name: str) -> Iterator[None]:
    """Around `get`, `set` and `state_dict`, the model's code. Raises _Stopped for all that they raise."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the model's code
        raise _Stopped(f"{name}: {describe(error)}{at_place(place_of(error))}") from None


def _image(engine: Engine) -> bytearray:
    """The state as it is. Raises _Stopped."""
    with _step("capture"):
        return image_of(engine)


def _load(engine: Engine, image: bytearray) -> None:
    """Go back to a state that was captured. Raises _Stopped."""
    with _step("load"):
        engine.load(memoryview(image))


def _leaves(image: bytearray) -> dict[str, tuple[int, bytes]]:
    """Size and digest of each leaf of an image, by its path."""
    header, start = read_header(memoryview(image))
    return {
        path: (nbytes, hashlib.sha256(memoryview(image)[start + at : start + at + nbytes]).digest())
        for path, _, _, at, nbytes in header["leaves"]
    }


def _written_unknown(engine: Engine, before: bytearray) -> set[str]:
    """Leaves that are not as they would be if captures copied what they know to have changed since `before`:
    nothing of constants, and of Keyed mappings what was written through them."""
    if not engine.spec.stateful:
        return set()
    first = address_of(memoryview(before))
    size = CHUNK_NBYTES
    base = Table(0, len(before), size, list(range(first, first + len(before), size)))
    memory = bytearray()

    def space(nbytes: int) -> memoryview:
        memory.extend(bytes(nbytes))
        return memoryview(memory)

    with _step("capture"):
        report = engine.state.capture_changed(base, space)
    made = bytearray(before[: report.nbytes].ljust(report.nbytes, b"\0"))
    at = 0
    for index, number in report.changed or ():
        begin, end = index * size, min((index + number) * size, report.nbytes)
        made[begin:end] = memory[at : at + end - begin]
        at += end - begin
    made_of, now = _leaves(made), _leaves(_image(engine))
    return {path for path in now if made_of.get(path) != now[path]}


def _first_image(engine: Engine) -> bytearray:
    """The state as `initialize` left it; empty where there is none."""
    return _image(engine) if engine.spec.stateful else bytearray()


def _constant(report: CheckReport, engine: Engine, before: bytearray, now: bytearray) -> None:
    """What did not change over the batches, and what comparing it costs."""
    if not before:
        return
    first, last = _leaves(before), _leaves(now)
    constants = engine.state.constant_leaves
    same = {path for path in last if path not in constants and first.get(path) == last[path]}
    nbytes = sum(last[path][0] for path in same)
    if nbytes < PROPOSED_NBYTES_MIN:
        return
    copy = memoryview(bytearray(now))
    started = time.perf_counter()
    equal(address_of(memoryview(now)), address_of(copy), len(now))
    seconds = (time.perf_counter() - started) * nbytes / len(now)
    report.note(
        f"{nbytes:,} bytes of state did not change over the batches: {_list(same)}; to compare them takes "
        f"about {_ms(seconds)} of each capture. What never changes need not be returned, or is declared with "
        "hams_sdk.constant"
    )


def _run(report: CheckReport, engine: Engine, batches: list[list[UnitInput]], made_up: bool) -> bool:
    """Whether all batches ran with outputs as declared, writing nothing before the boundary."""
    times: list[float] = []
    early: set[str] = set()
    for batch in batches:
        before_image = _image(engine)
        engine.state.is_base()
        before = leaf_digests(memoryview(before_image))

        def gate(before: dict[str, str] = before) -> None:
            early.update(_differing(before, leaf_digests(memoryview(_image(engine)))))

        started = time.perf_counter()
        result = engine.run(batch, gate)
        times.append(time.perf_counter() - started)
        if result.units is None:
            report.unknown = made_up and not result.broke_contract
            hint = (
                "; with made-up data this may be no fault of the model: give --data, or model.warmUp.row in "
                "the graph"
                if report.unknown
                else ""
            )
            report.fail(f"run on {_rows(batch)}: {result.message}{at_place(result.place)}{hint}")
            return False
        unknown = _written_unknown(engine, before_image)
        if unknown & engine.state.constant_leaves:
            report.fail(f"declared constant (hams_sdk.constant), and changed: {_list(unknown)}")
            return False
        if unknown:
            report.fail(
                f"a Keyed mapping was written without its knowing: {_list(unknown)}; write through it"
            )
            return False
        if not result.updated:
            early.update(_differing(before, leaf_digests(memoryview(_image(engine)))))
    report.ok(
        f"outputs are as declared over {len(batches)} batches; a run took {_ms(statistics.median(times))} "
        "(median)"
    )
    if early:
        report.fail(f"state is written outside `with update:`: {_list(early)}")
    elif engine.spec.stateful:
        report.ok("nothing is written before the boundary")
    return True


def _stateless(
    report: CheckReport, engine: Engine, entrypoint: str, after: list[list[UnitInput]], path: list[str]
) -> None:
    with tempfile.TemporaryDirectory(prefix="hams-model-check-") as folder:
        theirs = _replay(Path(folder), "one", entrypoint, engine.spec, bytearray(), after, path)
    if theirs.error is not None:
        report.fail(f"a fresh process: {theirs.error}")
    elif _same(outputs_of(engine.spec, run_all(engine, after)), theirs.outputs[0]):
        report.ok("a fresh process gives the same outputs")
    else:
        report.note(
            "a fresh process gives other outputs: the model is not deterministic, or keeps state and should "
            "be `stateful`"
        )


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
    parent: Path,
    name: str,
    entrypoint: str,
    spec: OperatorSpec,
    image: bytearray,
    batches: list[list[UnitInput]],
    path: list[str],
) -> _Replay:
    """Have a fresh process load `image` and go on."""
    folder = parent / name
    folder.mkdir()
    (folder / "image").write_bytes(image)
    index = save_batches(folder / "inputs.npz", spec, batches)
    (folder / "plan.json").write_text(
        json.dumps(
            {"entrypoint": entrypoint, "operator": operator_json(spec), "batches": index, "path": path}
        )
    )
    command = [sys.executable, "-P", "-m", "hams_sdk.replay", str(folder)]
    root = str(Path(__file__).resolve().parents[1])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
    }
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        (folder / "answer.json").write_text(json.dumps({"error": last}))
    return _Replay(folder)


def _compare(
    report: CheckReport,
    image: bytearray,
    ours: dict[str, Array],
    replays: list[_Replay],
    before: dict[str, str],
    now: dict[str, str],
) -> bool:
    """Whether the model may be tried further: a fresh process went on as this one, or none goes on as
    another does."""
    one, two = replays
    for replay in replays:
        if replay.error is not None:
            report.fail(f"restore in a fresh process: {replay.error}")
            return False
    wrong = _differing(leaf_digests(memoryview(image)), leaf_digests(memoryview(one.image)))
    if wrong:
        report.fail(f"restored into a fresh process and captured again, the state differs: {_list(wrong)}")
        return False
    report.ok(f"restore took {_ms(one.load_s)}; captured again, every byte is the same")
    if _same(ours, one.outputs[0]) and _same(ours, two.outputs[0]):
        report.ok("a fresh process with the restored state gives the same next outputs")
        return True
    changed = {path for path, digest in now.items() if before.get(path) != digest}
    differing = {path for path, digest in now.items() if one.fingerprint.get(path) != digest}
    chance = {path for path in changed if path.startswith(GENERATOR)}
    forgotten = {path for path in differing if not path.startswith(GENERATOR)}
    repeatable = _same(one.outputs[0], two.outputs[0]) or _same(one.outputs[0], one.outputs[1])
    if repeatable and not (chance and not forgotten):
        suspects = (forgotten & changed or forgotten) | (chance & differing)
        # Gradients differ wherever a state was loaded; most models zero them before they count.
        suspects = {path for path in suspects if not path.endswith(GRADIENT)} or suspects
        named = (
            f": {_list(suspects)}"
            if suspects
            else ", and no attribute of the model tells which: look for globals, attributes of the class, "
            "files and the time"
        )
        report.fail(
            "a fresh process with the restored state gives other outputs; state that initialize did not "
            f"return{named}"
        )
        return False
    lost = f"; not restored: {_list(forgotten & changed)}" if forgotten & changed else ""
    why = f" ({_list(chance)} is used)" if chance else ""
    report.note(
        f"the model is not deterministic{why}: outputs could not be compared, the captured bytes were{lost}"
    )
    return True


class _Injected(Exception):
    """Raised in a line of the model by the check."""


class _Raising:
    """Raises in the `at`-th line of the model that is reached while it is active; counts them, and remembers
    where that was.

    A line counts when it is reached first, unless it does nothing (`try:`, `pass`): the interpreter's table
    of handlers leaves such a line out, so an exception there would skip `__exit__`, which no exception of the
    model's own can do. Nor could one at the end of a `with`, which is reported as its first line once more.
    """

    def __init__(self, module: str, at: int) -> None:
        self._module = module
        self._at = at
        self._process = os.getpid()
        self.where = ""
        self._reached: set[tuple[CodeType, int]] = set()

    @property
    def lines(self) -> int:
        """How many lines of the model were reached."""
        return len(self._reached)

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_globals.get("__name__") != self._module:
            return None
        line = (frame.f_code, frame.f_lineno)
        if event == "line" and line not in self._reached and not _does_nothing(frame):
            self._reached.add(line)
            # A process that the model forks is to end as the model has it end.
            if self.lines == self._at and os.getpid() == self._process:
                self.where = f"line {frame.f_lineno} of {Path(frame.f_code.co_filename).name}"
                raise _Injected("an exception that hams-model check put there")
        return self._trace


def _does_nothing(frame: FrameType) -> bool:
    return frame.f_code.co_code[frame.f_lasti] == dis.opmap["NOP"]


def _raise_and_undo(
    report: CheckReport,
    engine: Engine,
    image: bytearray,
    after: list[list[UnitInput]],
) -> None:
    """Batches that raise leave nothing behind: what is no part of an image (gradients, attributes)
    included."""
    _load(engine, image)
    clean = _seeded_outputs(engine, after)
    _load(engine, image)
    if not _same(clean, _seeded_outputs(engine, after)):
        report.note(
            "whether a batch that raises leaves something behind is not known: even with the global "
            "generators seeded, the same batches have other outputs"
        )
        return
    module = type(engine.model).__module__
    counting = _Raising(module, at=0)
    _load(engine, image)
    with counting:
        engine.run(after[0], _open)
    step = max(1, -(-counting.lines // RAISES_MAX))
    tried = 0
    started = time.perf_counter()
    # The last line comes first: most of what a run leaves behind is there by then.
    for at in range(counting.lines, 0, -step):
        if time.perf_counter() - started > RAISES_S:
            break
        _load(engine, image)
        before = fingerprint(engine.model)
        raising = _Raising(module, at)
        with raising, contextlib.redirect_stderr(io.StringIO()):
            result = engine.run(after[0], _open)
        if result.units is not None:
            continue  # the model caught it, and went on
        if result.updated:
            _load(engine, image)
        left = {
            path for path in _differing(before, fingerprint(engine.model)) if not path.startswith(GENERATOR)
        }
        tried += 1
        if not _same(clean, _seeded_outputs(engine, after)):
            named = f"; it left behind: {_list(left)}" if left else ""
            report.fail(
                f"after a batch that raised in {raising.where}, the next outputs are others than without "
                f"it{named}"
            )
            return
    lines = f"{counting.lines} line{'' if counting.lines == 1 else 's'}"
    report.ok(f"a batch that raises leaves nothing behind ({tried} of {lines} tried)")


def _seeded_outputs(engine: Engine, batches: list[list[UnitInput]]) -> dict[str, Array]:
    """Outputs of a model that draws what it drew last time, if it draws from the global generators."""
    seed_generators(SEED)
    return outputs_of(engine.spec, run_all(engine, batches))


def _open() -> None:
    """A gate that admits every batch."""


class _Data:
    """Batches out of the author's arrays, row after row, or made up."""

    def __init__(self, spec: OperatorSpec, path: Path | None) -> None:
        self.spec = spec
        self.made_up = path is None and not spec.warm_up
        self._arrays: dict[str, Array] = {}
        self._at = 0
        self._units = 0
        self._random = np.random.default_rng(0)
        if path is None:
            if spec.warm_up:
                self._given(spec.warm_up)
            return
        try:
            with np.load(path, allow_pickle=False) as arrays:
                self._arrays = dict(arrays)
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: {error}") from error
        for item in spec.inputs:
            self._examine(path, item)

    def _given(self, row: Mapping[str, Any]) -> None:
        """The row of the graph file, over and over. Raises UsageError."""
        try:
            arrays = row_of(self.spec, row)
        except ModelFault as error:
            raise UsageError(str(error)) from error
        for item, array in zip(self.spec.inputs, arrays, strict=True):
            if array is not None:
                self._arrays[item.name] = array

    def batch(self, rows: Sequence[int], *, optional: bool) -> list[UnitInput]:
        """Units of so many rows each. `optional`: with the optional inputs (where there are data for
        them)."""
        units: list[UnitInput] = []
        for count in rows:
            self._units += 1
            arrays = [
                None if item.optional and (not optional or not self._has(item)) else self._rows(item, count)
                for item in self.spec.inputs
            ]
            units.append(UnitInput(f"0/{self._units}", count, arrays, {}))
            self._at += count
        return units

    def _has(self, item: TensorSpec) -> bool:
        return self.made_up or item.name in self._arrays

    def _examine(self, path: Path, item: TensorSpec) -> None:
        array = self._arrays.get(item.name)
        if array is None:
            if not item.optional:
                raise UsageError(
                    f'{path}: no array "{item.name}"; there are {", ".join(self._arrays) or "none"}'
                )
            return
        if item.datatype == "BYTES":
            text = [
                element.encode() if isinstance(element, str) else bytes(element)
                for element in array.ravel().tolist()
            ]
            array = np.array([*text, None], dtype=object)[:-1].reshape(array.shape)
        elif array.dtype != NUMPY[item.datatype]:
            raise UsageError(f'{path}: array "{item.name}" is {array.dtype}, expected {item.datatype}')
        if array.ndim == 0 or not len(array) or not item.fits(array.shape[1:]):
            raise UsageError(
                f'{path}: array "{item.name}" has shape {list(array.shape)}, expected {["rows", *item.shape]}'
            )
        self._arrays[item.name] = array

    def _rows(self, item: TensorSpec, count: int) -> Array:
        if not self.made_up:
            array = self._arrays[item.name]
            return np.ascontiguousarray(array[np.arange(self._at, self._at + count) % len(array)])
        return made_up(item, count, self._random)


def _differing(left: dict[str, str], right: dict[str, str]) -> set[str]:
    return {path for path in {*left, *right} if left.get(path) != right.get(path)}


def _same(left: dict[str, Array], right: dict[str, Array]) -> bool:
    return left.keys() == right.keys() and all(
        np.array_equal(array, right[name]) for name, array in left.items()
    )


def _rows(batch: Sequence[UnitInput]) -> str:
    """Rows of each request of a batch: `1 row`, `2 + 1 rows`."""
    rows = [unit.rows for unit in batch]
    return f"{' + '.join(map(str, rows))} row{'' if rows == [1] else 's'}"


def _lacking(error: Exception, spec: OperatorSpec) -> str:
    """What `model.config` has, if the model asked for what it has not."""
    if not isinstance(error, KeyError) or not error.args or error.args[0] in spec.config:
        return ""
    return f"; model.config of the graph has {', '.join(map(str, spec.config)) or 'nothing'}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms"


def _list(names: set[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - NAMES_MAX} more" if len(ordered) > NAMES_MAX else ""
    return ", ".join(ordered[:NAMES_MAX]) + more
