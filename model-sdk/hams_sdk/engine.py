"""One model in this process: initialise, run batches, capture and load its state. No sockets: `serve` and
`check` drive it.

Invariants: `initialize`, `run` and `load` are called by one thread, `capture` by another; the state lock is
held by an update stage, a capture and a load, so an image is never torn, whatever the caller does. What `run`
returns is checked against the declared outputs before anything of it leaves the process.
"""

import importlib
import inspect
import mmap
import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from hams_sdk import chunks, cuda, sample
from hams_sdk.batch import Batch, Scalar, Unit
from hams_sdk.datatypes import Array, all_finite, as_array, encode_bytes
from hams_sdk.errors import (
    Abandoned,
    BadModel,
    ModelFault,
    NotFinite,
    StateFault,
    UsageError,
    at_place,
    describe,
    place_of,
    place_of_definition,
)
from hams_sdk.model import Model, Outputs
from hams_sdk.specs import OperatorSpec
from hams_sdk.state import CaptureReport, Space, State

WARM_UP_STATE_NBYTES_MAX = 256 << 20
"""A state that is copied, so that a warm-up can be undone; a model with a larger one is not warmed up."""

Gate = Callable[[], None]
"""Returns when the update stage may be entered; raises `Abandoned` if it must not be."""


@dataclass(slots=True)
class UnitInput:
    """One unit as it arrived: per declared input an array (rows, *shape), None if absent."""

    id: str
    rows: int
    arrays: Sequence[Array | None]
    parameters: Mapping[str, Scalar]


@dataclass(slots=True)
class UnitOutput:
    """One unit's outputs, in the order declared (encoded bytes for BYTES), or its error. No outputs if it
    failed or was refused."""

    tensors: list[tuple[tuple[int, ...], Array | bytes]] = field(default_factory=list)
    route: list[str] | None = None
    error: str | None = None
    refused: bool = False


@dataclass(slots=True)
class RunResult:
    """What became of a batch. `units` is None if it failed or was abandoned; then `message` says why, and
    `place` where in the author's code.

    `updated`: the update stage was entered. `broke_contract`: it failed whatever its inputs were. `seconds`:
    what the run took outside its update stage, `update_s`: inside it; the wait to be let in is in neither.
    """

    units: list[UnitOutput] | None
    updated: bool
    message: str = ""
    abandoned: bool = False
    broke_contract: bool = False
    place: str = ""
    seconds: float = 0.0
    update_s: float = 0.0


def _broke_contract(error: Exception) -> bool:
    """Whether the model is wrong whatever the inputs were."""
    return (isinstance(error, ModelFault) and not isinstance(error, NotFinite)) or _writes_input(error)


def _writes_input(error: Exception) -> bool:
    """Whether the model wrote into an array that is not its own, as NumPy says it."""
    return isinstance(error, ValueError) and "read-only" in str(error)


def _cannot_be_the_data(error: Exception) -> bool:
    """Whether no input would have made the lines right that raised `error`: a misspelt name, say."""
    if isinstance(error, AttributeError):
        return isinstance(error.obj, Model | Batch | _Boundary)
    if isinstance(error, TypeError):
        return "'Batch'" in str(error) or "'_Boundary'" in str(error)
    return isinstance(error, ImportError) or type(error) is NameError


def _said(error: Exception) -> str:
    """For the author, and in replies."""
    text = describe(error)
    if _writes_input(error):
        return f"{text}; the arrays of a batch are read-only: write into a copy, as of `batch[name].copy()`"
    if isinstance(error, TypeError | AttributeError):
        if "'Batch'" in text:
            return f"{text}; an input is `batch[name]`, with the name as text"
        if "'_Boundary'" in text:
            return f"{text}; the update stage is `with update:`, and nothing else"
    return text


def _pass() -> None:
    """The gate of a run that nobody has to admit."""


class _Boundary:
    """The `update` of one run."""

    def __init__(self, gate: Gate, lock: threading.Lock, open_state: Callable[[bool], None]) -> None:
        self._gate = gate
        self._open_state = open_state
        self._lock = lock
        self._wanted = False
        self._held = False
        self._entered_at = 0.0
        self.entered = False
        self.abandoned = False
        self.waited_s = self.update_s = 0.0

    def __enter__(self) -> None:
        if self._wanted:
            raise ModelFault("the update stage was entered twice in one run")
        self._wanted = True
        began = time.perf_counter()
        try:
            self._gate()
            self._lock.acquire()
        except Abandoned:
            self.abandoned = True
            raise
        finally:
            self._entered_at = time.perf_counter()
            self.waited_s = self._entered_at - began
        self.entered = self._held = True
        self._open_state(True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def leave(self) -> None:
        """Let go of the state, if a model has entered the update stage and not left it."""
        if self._held:
            self._held = False
            self._open_state(False)
            self._lock.release()
            self.update_s = time.perf_counter() - self._entered_at


class Engine:
    """A model and its operator's declaration."""

    def __init__(self, model: Model, spec: OperatorSpec, logs_traces: bool = True) -> None:
        """`logs_traces`: whether what a run raises goes to the log as a stack trace. Raises UsageError if
        `run` cannot be called with a batch."""
        self.model = model
        self._logs_traces = logs_traces
        self.spec = spec
        self._lock = threading.Lock()
        self._mark: Any = None
        self._bf16 = frozenset(item.name for item in spec.inputs if item.datatype == "BF16")
        self._with_update = _takes_update(model)
        _check_call(model, "initialize", (None,), "initialize(self, config)")
        self._run_place = place_of_definition(model.run)
        self._process = os.getpid()
        # Shared with the processes that the model forks, since those have nobody else to tell.
        self._returned_forks = mmap.mmap(-1, 1)
        self.state = State(None)
        self._table: chunks.Table | None = None
        self._has_run = True

    @property
    def fork_returned(self) -> bool:
        """Whether a process that the model forked has come back out of `run` or `initialize`."""
        return self._returned_forks[0] != 0

    def initialize(self) -> None:
        """Call the model's `initialize`. Raises what it raises, and StateFault."""
        try:
            holders = self.model.initialize(dict(self.spec.config))
        finally:
            self._end_if_forked()
        if holders is None and self.spec.stateful:
            # Without this the operator would be ready and redundant, and forget everything at the first
            # failover.
            raise StateFault(
                f'operator "{self.spec.name}" is stateful, but initialize returned None: return a dict of '
                "everything "
                'that run changes, such as {"weights": self.weights}; return {} if only the outputs are to '
                "be kept "
                "at a backup; or remove `stateful` from the graph"
            )
        self.state = State(holders)
        if self.state.layout and not self.spec.stateful:
            raise StateFault(
                f'operator "{self.spec.name}" is stateless, but initialize returned state; declare it '
                "`stateful`, or return None"
            )
        self._mark = cuda.mark()

    def run(self, units: Sequence[UnitInput], gate: Gate) -> RunResult:
        """Run the model on a batch. Never raises for what the model does, other than to end the process."""
        began = time.perf_counter()
        boundary = _Boundary(gate, self._lock, self.state.open)
        result = self._result(units, boundary)
        result.update_s = boundary.update_s
        result.seconds = time.perf_counter() - began - boundary.waited_s - boundary.update_s
        return result

    def _result(self, units: Sequence[UnitInput], boundary: _Boundary) -> RunResult:
        self._has_run = True  # even outside of its update stage it may have written
        lacks_memory = False
        try:
            outputs = self._execute(self._batch(units), boundary)
        except Abandoned:
            self.state.discard_gradients()
            return RunResult(None, False, "abandoned", abandoned=True)
        except Exception as error:  # noqa: BLE001 - model code may raise anything
            if self._logs_traces:
                traceback.print_exc()
            # Gradients may stem from the compute stage: then no image is loaded that would undo them.
            self.state.discard_gradients()
            lacks_memory = cuda.is_out_of_memory(error)
            return RunResult(
                None,
                boundary.entered,
                _said(error),
                broke_contract=_broke_contract(error) or _cannot_be_the_data(error),
                place=place_of(error) or self._run_place,
            )
        finally:
            boundary.leave()
            if boundary.entered:
                self._mark = cuda.mark()
            if lacks_memory:
                with self._lock:  # no capture is under way
                    self.state.release_devices()
        return RunResult(outputs, boundary.entered)

    def _execute(self, batch: Batch, boundary: _Boundary) -> list[UnitOutput]:
        """Run the model on `batch`. Raises what it raises, Abandoned, and ModelFault for outputs not as
        declared."""
        run: Any = self.model.run
        try:
            if self._with_update:
                returned = run(batch, boundary)
            elif self.spec.stateful:
                with boundary:
                    returned = run(batch)
            else:
                returned = run(batch)
        finally:
            self._end_if_forked()
        if boundary.abandoned:  # the model swallowed the exception
            raise Abandoned
        return self._outputs(batch, returned)

    def _end_if_forked(self) -> None:
        """End this process if the model forked it: two that go on from here would serve one socket."""
        if os.getpid() == self._process:
            return
        self._returned_forks[0] = 1
        if self._logs_traces:
            os.write(2, b"a process that the model forked came back to HAMS and was ended; use os._exit\n")
        os._exit(1)

    def warm_up(self) -> str | None:
        """Run the model on one row and undo that, unless the graph switched it off; returns why it proved
        nothing, or None.

        The row is the graph's own, or made up. Raises ModelFault if the outputs are not as declared, which
        every request would meet, and for whatever is wrong with a row of the graph's own. What the model
        itself raises on a made-up row proves nothing: real rows may keep rules that no declaration tells.
        """
        row = self.spec.warm_up
        if row is None:
            return None
        if self.state.estimate_nbytes > WARM_UP_STATE_NBYTES_MAX:
            return (
                "no warm-up: undoing it takes a copy of the state, which is larger than "
                f"{WARM_UP_STATE_NBYTES_MAX:,} bytes"
            )
        unit = UnitInput("warm-up", 1, sample.row_of(self.spec, row), {})
        image = bytearray()

        def space(nbytes: int) -> memoryview:
            image.extend(bytes(nbytes))
            return memoryview(image)

        generators = sample.Generators()
        self.capture(space)
        boundary = _Boundary(_pass, self._lock, self.state.open)
        try:
            outputs = self._execute(self._batch([unit]), boundary)
        except Exception as error:
            if _broke_contract(error):
                place = at_place(place_of(error) or self._run_place)
                raise ModelFault(f"warm-up, before any request: {_said(error)}{place}") from error
            if row:
                raise ModelFault(
                    f"warm-up with the row of model.warmUp: {_said(error)}{at_place(place_of(error))}"
                ) from error
            said = f"{_said(error)}{at_place(place_of(error))}"
            return f"warm-up with a made-up row raised {said}; model.warmUp.row gives it a real one"
        finally:
            boundary.leave()
            self.load(memoryview(image))
            generators.restore()
        if outputs[0].error is not None and row:
            raise ModelFault(f"warm-up with the row of model.warmUp failed: {outputs[0].error}")
        return None

    def capture(self, space: Space) -> CaptureReport:
        """Copy the state into memory from `space`. On the capture thread. Raises StateFault and what holders
        raise."""
        with self._lock:
            self._table = None
            return self.state.capture(space, self._mark)

    def capture_since(self, base: int, number: int, chunk_nbytes: int, space: Space) -> CaptureReport:
        """Copy what differs from the table `base`, if that is the newest here, else the image; the table
        `number` is the newest then. On the capture thread. Raises as `capture`."""
        granted: list[memoryview] = []

        def grant(nbytes: int) -> memoryview:
            granted.append(space(nbytes))
            return granted[0]

        with self._lock:
            newest, self._table = self._table, None
            if newest is not None and newest.number == base and newest.chunk_nbytes == chunk_nbytes:
                report = self.state.capture_changed(newest, grant, self._mark)
                addresses = newest.addresses[: chunks.count(report.nbytes, chunk_nbytes)]
                runs = report.changed or []
            else:
                report = self.state.capture(grant, self._mark)
                self.state.is_base()
                addresses = []
                runs = [(0, chunks.count(report.nbytes, chunk_nbytes))]
            at = chunks.address_of(granted[0]) if granted else 0
            for first, length in runs:
                addresses[first : first + length] = [at + index * chunk_nbytes for index in range(length)]
                at += length * chunk_nbytes
            self._table = chunks.Table(number, report.nbytes, chunk_nbytes, addresses)
        return report

    def load(self, data: memoryview) -> None:
        """Make the state that of an image. Raises StateFault and what holders raise."""
        with self._lock:
            self._table = None
            self.state.load(data)
            self._mark = cuda.mark()

    def table(self, number: int) -> chunks.Table:
        """The newest table, which a load says to be `number`. Raises StateFault if it is not."""
        newest = self._table
        if newest is None or newest.number != number:
            raise StateFault(f"expected a load over the newest table, found one over table {number}")
        return newest

    def load_table(
        self, table: chunks.Table, base: chunks.Table | None = None, changed: Sequence[int] = ()
    ) -> bool:
        """Make the state that of a table, which is the newest then; whether anything was written. `changed`:
        the chunks in which the table differs from `base`, the newest. Nothing else is written, if that was
        loaded and nothing has run since. Raises StateFault and what holders raise."""
        with self._lock:
            newest, self._table = self._table, None
            clean = base is not None and newest is base and not self._has_run
            holds = clean and not changed
            if not holds:
                differs = changed if clean else range(len(table.addresses))
                if not self.state.load_changed(table, differs):
                    self.state.load(table.whole())
                self._mark = cuda.mark()
            self.state.loaded()
            self._table, self._has_run = table, False
        return not holds

    def _batch(self, units: Sequence[UnitInput]) -> Batch:
        placed: list[Unit] = []
        at = 0
        for index, unit in enumerate(units):
            placed.append(Unit(unit.id, index, slice(at, at + unit.rows), unit.parameters))
            at += unit.rows
        arrays: dict[str, Array | None] = {}
        for index, spec in enumerate(self.spec.inputs):
            parts = [unit.arrays[index] for unit in units]
            first = parts[0]
            if first is None or len(parts) == 1:
                arrays[spec.name] = first
            else:
                arrays[spec.name] = np.concatenate([part for part in parts if part is not None])
        for array in arrays.values():
            if array is not None and array.flags.writeable:
                array.flags.writeable = False
        return Batch(arrays, placed, at, self._bf16)

    def _outputs(self, batch: Batch, returned: Any) -> list[UnitOutput]:
        routes = None
        if isinstance(returned, Outputs):
            routes, returned = returned.routes, returned.tensors
        dead = set(batch.errors) | batch.refused
        unit_outputs = [
            UnitOutput(
                error=batch.errors.get(index), refused=index in batch.refused and index not in batch.errors
            )
            for index in range(len(batch.units))
        ]
        if returned is None and (len(dead) == len(unit_outputs) or not self.spec.outputs):
            returned = {}
        elif not isinstance(returned, Mapping):
            raise ModelFault(
                f"run returned {'None' if returned is None else f'a {type(returned).__name__}'}, expected a "
                "dict of outputs or hams_sdk.Outputs"
            )
        if len(dead) < len(unit_outputs):
            self._place(batch, returned, dead, unit_outputs)
        self._route(batch, routes, unit_outputs)
        return unit_outputs

    def _place(
        self, batch: Batch, returned: Mapping[str, Any], dead: set[int], unit_outputs: list[UnitOutput]
    ) -> None:
        """Cut the outputs into units. Raises ModelFault where they are not what was declared."""
        declared = {spec.name for spec in self.spec.outputs}
        if set(returned) != declared:
            raise ModelFault(f"expected outputs {_names(declared)}, got {_names(returned)}")
        for spec in self.spec.outputs:
            array = as_array(spec.name, returned[spec.name], spec.datatype)
            if array.ndim == 0 or array.shape[0] != batch.rows or not spec.fits(array.shape[1:]):
                raise ModelFault(
                    f'output "{spec.name}": expected {spec.describe(batch.rows)}, got {list(array.shape)}'
                )
            finite = all_finite(array, spec.datatype) if spec.finite else None
            for unit, output in zip(batch.units, unit_outputs, strict=True):
                if unit.index in dead:
                    continue
                if finite is not None and not finite[unit.rows].all():
                    row = int(np.argmin(finite[unit.rows]))
                    raise NotFinite(
                        f'output "{spec.name}" of request {unit.id}: row {row} is not finite (NaN or '
                        "infinity)"
                    )
                part = array[unit.rows]
                output.tensors.append(
                    (part.shape, encode_bytes(part.ravel()) if spec.datatype == "BYTES" else part)
                )

    def _route(self, batch: Batch, routes: Any, unit_outputs: list[UnitOutput]) -> None:
        if routes is None:
            return
        if isinstance(routes, str) or not isinstance(routes, Sequence) or len(routes) != len(unit_outputs):
            raise ModelFault(
                f"routes: expected one entry for each of {len(unit_outputs)} units, got {_count(routes)}"
            )
        for unit, route, output in zip(batch.units, routes, unit_outputs, strict=True):
            if route is None:
                continue
            if isinstance(route, str) or not isinstance(route, Sequence):
                raise ModelFault(
                    f"route of request {unit.id}: expected None or a list of successors, got {route!r}"
                )
            unknown = [name for name in route if name not in self.spec.successors]
            if unknown:
                raise ModelFault(
                    f"route of request {unit.id}: no successor {unknown[0]!r}; successors are "
                    f"{_names(self.spec.successors)}"
                )
            output.route = list(route)


def load_model(entrypoint: str) -> Model:
    """Import `module:Class` and make one. Raises UsageError for what is no such thing, and what the import
    itself raises."""
    module_name, colon, class_name = entrypoint.partition(":")
    if not (module_name and colon and class_name):
        raise UsageError(f"entrypoint {entrypoint!r}: expected module:Class")
    if module_name.endswith(".py") or "/" in module_name:
        meant = module_name.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise UsageError(
            f"entrypoint {entrypoint!r}: expected a module, found a file; did you mean {meant}:{class_name}?"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise UsageError(f"entrypoint {entrypoint!r}: no module {error.name!r} on the path") from error
        raise
    model_class = getattr(module, class_name, None)
    if not (inspect.isclass(model_class) and issubclass(model_class, Model)):
        if model_class is not None:
            raise UsageError(
                f"entrypoint {entrypoint!r}: it is no subclass of hams_sdk.Model in {module_name}"
                f"{at_place(place_of_definition(model_class))}"
            )
        models = [
            name
            for name, item in vars(module).items()
            if inspect.isclass(item) and issubclass(item, Model) and item is not Model
        ]
        raise UsageError(
            f"entrypoint {entrypoint!r}: there is no such class in "
            f"{Path(module.__file__ or module_name).name}; its models are {_names(models)}"
        )
    model: Model = model_class()
    return model


def _takes_update(model: Model) -> bool:
    """Whether `run` takes `update`, too. Raises BadModel if it cannot be called with a batch."""
    wanted = "run(self, batch) or run(self, batch, update)"
    run: Any = model.run
    if getattr(run, "__func__", None) is getattr(Model, "run", None):
        place = at_place(place_of_definition(type(model)))
        raise BadModel(f"{type(model).__name__}: expected {wanted}, found no run{place}")
    if not callable(run):
        place = at_place(place_of_definition(type(model)))
        raise BadModel(f"{type(model).__name__}: expected {wanted}, found run = {run!r:.40}{place}")
    takes = [
        parameter
        for parameter in inspect.signature(run).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    with_update = len(takes) >= 2
    _check_call(model, "run", (None,) * (2 if with_update else 1), wanted)
    return with_update


def _check_call(model: Model, name: str, arguments: tuple[None, ...], wanted: str) -> None:
    """Raises BadModel if the method `name` takes other arguments, or does not return its result."""
    method = getattr(model, name)
    signature = inspect.signature(method)
    own = ", ".join(["self", *map(str, signature.parameters.values())])
    own_form, why = f"{name}({own})", ""
    if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
        own_form, why = f"async def {own_form}", ": leave out `async`"
    elif inspect.isgeneratorfunction(method):
        why = " with `yield` in it: return one result"
    else:
        try:
            signature.bind(*arguments)
        except TypeError as error:
            why = f": {error}"
    if why:
        place = at_place(place_of_definition(method))
        raise BadModel(f"{type(model).__name__}: expected {wanted}, found {own_form}{why}{place}")


def sizes(tensors: Sequence[tuple[tuple[int, ...], Array | bytes]]) -> list[int]:
    """Bytes of each output of a unit."""
    return [len(content) if isinstance(content, bytes) else content.nbytes for _, content in tensors]


def _names(names: Any) -> str:
    return ", ".join(f'"{name}"' for name in sorted(map(str, names))) or "none"


def _count(value: Any) -> str:
    return (
        str(len(value))
        if isinstance(value, Sequence) and not isinstance(value, str)
        else type(value).__name__
    )
