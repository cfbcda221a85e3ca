"""The model process: `hams-model serve module:Class --socket PATH`.

Three connections to the proxy, each with a thread of its own: `run` (the main thread: initialize, run, load),
`capture`, and `health`, which answers while the others are busy. `main` may be called in a fresh process or
after a fork from one that has imported numpy and torch already.

The process never outlives its proxy: when the proxy closes (or dies), it exits, in the middle of a run too,
and nothing leaves it. SIGTERM and SIGINT alone do not end it, since its proxy may still need it for a handoff
and lets it go by closing.
"""

import argparse
import faulthandler
import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn

import numpy as np

import hams_sdk
from hams_sdk.datatypes import Array, read_tensor
from hams_sdk.engine import Engine, UnitInput, UnitOutput, load_model, sizes
from hams_sdk.errors import Abandoned, ContractBroken, HamsModelError, StateFault, UsageError, describe
from hams_sdk.memory import Place, Regions
from hams_sdk.specs import OperatorSpec
from hams_sdk.wire import Channel, FrameKind, hello

CONNECT_WAIT_S = 120.0
"""How long the process waits for its proxy's socket to appear."""

CONNECT_RETRY_S = 0.02
"""Between two looks for that socket."""

ALIGN = 64

_ANSWERS = (FrameKind.ENTER, FrameKind.ABANDON)


def main(arguments: Sequence[str]) -> int:
    """Serve until the proxy lets go; returns the exit status. 0: let go, 1: the model failed, 2: usage, 3:
    the contract was broken."""
    options = parser().parse_args(arguments)
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    # Inputs are mapped read-only; torch warns of that once per process, and `Batch.torch` is the way to get a
    # copy.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    for folder in reversed(options.path or [os.getcwd()]):
        sys.path.insert(0, folder)
    try:
        return _Server(options).serve()
    except UsageError as error:
        return _complain(error, 2)
    except ContractBroken as error:
        return _complain(error, 3)
    except ConnectionError:
        return 0  # the proxy has gone in the middle of a frame
    except (LookupError, TypeError, ValueError) as error:
        traceback.print_exc()
        return _complain(ContractBroken(f"a frame lacks what it should hold: {error!r}"), 3)


def parser() -> argparse.ArgumentParser:
    """The options of `hams-model serve`."""
    arguments = argparse.ArgumentParser(prog="hams-model serve", description="Serve a model to its proxy.")
    arguments.add_argument("entrypoint", metavar="module:Class")
    arguments.add_argument("--socket", required=True, help="Unix socket on which the proxy listens")
    arguments.add_argument(
        "--arena",
        metavar="DIR",
        help="folder of the shared memory files, where it is not the one that the proxy names",
    )
    arguments.add_argument(
        "--config", metavar="JSON", help="configuration for initialize, instead of the proxy's"
    )
    arguments.add_argument(
        "--path",
        metavar="DIR",
        action="append",
        help="folder to put first on the module path (repeatable; default: the current one)",
    )
    arguments.add_argument(
        "--on-sigterm",
        choices=["serve", "exit"],
        default="serve",
        help="serve on until the proxy lets go (default), or exit at once",
    )
    arguments.add_argument(
        "--connect-wait-s",
        type=float,
        default=CONNECT_WAIT_S,
        help="how long to wait for the socket to appear",
    )
    return arguments


class _Server:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._session = ""
        self._busy_since: float | None = None
        self._connected = False
        self._status = 0
        signal.set_wakeup_fd(-1)  # a forked child must not wake its parent
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def serve(self) -> int:
        config = self._config()
        run = self._connect()
        hello(run, "run", "", hams_sdk.__version__)
        frame = run.expect(FrameKind.SETUP, FrameKind.REFUSED)
        if frame is None:
            return 0
        if frame[0] is FrameKind.REFUSED:
            raise UsageError(f"the proxy refused this model: {frame[1].get('message')}")
        setup = frame[1]
        self._session = str(setup.get("session"))
        spec = OperatorSpec.parse({**setup["operator"], **({} if config is None else {"config": config})})
        regions = Regions(setup["regions"], self._options.arena)
        mutex = setup.get("mutex")
        self._connected = True
        self._start(self._health, self._open("health", mutex is not None and regions.lock(mutex)))
        try:
            self._busy_since = time.monotonic()
            engine = Engine(load_model(self._options.entrypoint), spec)
            engine.initialize()
            unknown = engine.warm_up()
            if unknown is not None:
                sys.stderr.write(f"hams-model: {unknown}\n")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the model's code may raise anything
            traceback.print_exc()
            self._status = 1
            run.send(FrameKind.INIT_FAILED, message=describe(error))
            return 1
        chunk_nbytes = int(setup.get("chunk_bytes", 0))
        self._start(self._captures, self._open("capture"), engine, regions, chunk_nbytes)
        layout = [[entry.path, entry.datatype, list(entry.shape)] for entry in engine.state.layout]
        run.send(
            FrameKind.READY,
            signature=engine.state.signature,
            layout=layout,
            estimate_nbytes=engine.state.estimate_nbytes,
            loads_changed=True,
            enters_early=True,
        )
        self._busy_since = None
        gc.collect()
        gc.freeze()  # what the model has made by now stays: no collection has to look through it again
        return _Runs(run, engine, regions, self, chunk_nbytes).loop()

    def busy(self, busy: bool) -> None:
        """Note when the present run began, for the health answer."""
        self._busy_since = time.monotonic() if busy else None

    def _config(self) -> dict[str, Any] | None:
        if self._options.config is None:
            return None
        try:
            config = json.loads(self._options.config)
        except ValueError as error:
            raise UsageError(f"--config: expected a JSON object: {error}") from error
        if not isinstance(config, dict):
            raise UsageError("--config: expected a JSON object")
        return config

    def _connect(self) -> Channel:
        deadline = time.monotonic() + self._options.connect_wait_s
        while True:
            try:
                return Channel(self._options.socket)
            except (FileNotFoundError, ConnectionRefusedError) as error:
                if time.monotonic() > deadline:
                    raise UsageError(
                        f"no proxy on {self._options.socket} after {self._options.connect_wait_s:.0f} s: "
                        f"{error.strerror}"
                    ) from error
            except OSError as error:
                raise UsageError(f"--socket {self._options.socket}: {error.strerror or error}") from error
            time.sleep(CONNECT_RETRY_S)  # nothing tells when a path appears

    def _open(self, name: str, holds_mutex: bool = False) -> Channel:
        channel = Channel(self._options.socket)
        hello(channel, name, self._session, hams_sdk.__version__, holds_mutex)
        return channel

    def _start(self, target: Any, *arguments: Any) -> None:
        threading.Thread(
            target=self._guarded,
            args=(target, *arguments),
            name=f"hams-{target.__name__.strip('_')}",
            daemon=True,
        ).start()

    def _guarded(self, target: Any, *arguments: Any) -> NoReturn:
        """Run a channel's loop; its end is the end of the process, whatever the main thread is doing."""
        status = 0
        try:
            target(*arguments)
        except ContractBroken as error:
            status = _complain(error, 3)
        except ConnectionError:
            pass
        except BaseException:  # noqa: BLE001 - whatever it is, a process without this channel must not go on
            traceback.print_exc()
            os._exit(1)
        os._exit(status or self._status)

    def _health(self, channel: Channel) -> None:
        while (frame := channel.expect(FrameKind.PING)) is not None:
            since = self._busy_since
            channel.send(
                FrameKind.PONG, n=frame[1]["n"], busy_s=0.0 if since is None else time.monotonic() - since
            )

    def _captures(self, channel: Channel, engine: Engine, regions: Regions, chunk_nbytes: int) -> None:
        while (frame := channel.expect(FrameKind.CAPTURE)) is not None:
            version = frame[1]["version"]
            granted = frame[1]["space"]

            def space(nbytes: int, version: int = version, granted: Place = granted) -> memoryview:
                if granted[2] < nbytes:
                    channel.send(FrameKind.WANT_SPACE, id=version, sizes=[nbytes])
                    granted = _granted(channel.expect(FrameKind.GRANT))[0]
                return regions.writable(granted)

            try:
                took = engine.capture_since(frame[1]["base"], frame[1]["number"], chunk_nbytes, space)
            except Exception as error:
                if isinstance(error, ContractBroken | ConnectionError):
                    raise
                traceback.print_exc()
                channel.send(FrameKind.CAPTURE_FAILED, version=version, message=describe(error))
                continue
            channel.send(
                FrameKind.CAPTURED,
                version=version,
                nbytes=took.nbytes,
                tensors=took.tensors,
                seconds=took.seconds,
                changed=took.changed,
                compared=took.compared,
            )

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._options.on_sigterm == "exit" or not self._connected:
            os._exit(128 + number)


class _Runs:
    """The `run` channel: one batch or load at a time."""

    def __init__(
        self, channel: Channel, engine: Engine, regions: Regions, server: _Server, chunk_nbytes: int
    ) -> None:
        self._channel = channel
        self._chunk_nbytes = chunk_nbytes
        self._engine = engine
        self._regions = regions
        self._server = server
        self._outputs = [item.datatype for item in engine.spec.outputs]
        self._inputs = [item.datatype for item in engine.spec.inputs]

    def loop(self) -> int:
        while (frame := self._next(FrameKind.RUN, FrameKind.LOAD)) is not None:
            self._server.busy(True)
            if frame[0] is FrameKind.RUN:
                self._run(frame[1])
            else:
                self._load(frame[1])
            self._server.busy(False)
        return 0

    def _run(self, frame: dict[str, Any]) -> None:
        number: int = frame["batch"]
        units = [
            UnitInput(unit["id"], unit["rows"], self._arrays(unit["tensors"]), unit.get("parameters", {}))
            for unit in frame["units"]
        ]
        result = self._engine.run(units, _pass if frame.get("enter") else lambda: self._gate(number))
        del units
        took = {"seconds": result.seconds, "update_s": result.update_s}
        if result.units is None:
            self._channel.send(
                FrameKind.FAILED,
                batch=number,
                message=result.message,
                updated=result.updated,
                abandoned=result.abandoned,
                **took,
            )
            return
        try:
            placed = self._write(number, result.units, [unit["space"] for unit in frame["units"]])
        except StateFault as error:
            self._channel.send(
                FrameKind.FAILED,
                batch=number,
                message=str(error),
                updated=result.updated,
                abandoned=False,
                **took,
            )
            return
        self._channel.send(FrameKind.DONE, batch=number, updated=result.updated, units=placed, **took)

    def _gate(self, number: int) -> None:
        if not self._engine.spec.stateful:
            return
        asked = False
        while True:
            if not (asked or self._channel.has_more):
                self._channel.send(FrameKind.WANT_UPDATE, batch=number)
                asked = True
            frame = self._channel.expect(*_ANSWERS)
            if frame is None:
                os._exit(0)
            if frame[1]["batch"] != number:
                continue  # it came when that batch had ended
            if frame[0] is FrameKind.ABANDON:
                raise Abandoned
            return

    def _next(self, *kinds: FrameKind) -> tuple[FrameKind, dict[str, Any]] | None:
        """As `Channel.expect`. An answer for a batch that did not wait for it is dropped."""
        while True:
            frame = self._channel.expect(*kinds, *_ANSWERS)
            if frame is None or frame[0] in kinds:
                return frame

    def _arrays(self, tensors: list[Any]) -> list[Array | None]:
        arrays: list[Array | None] = []
        for tensor, datatype in zip(tensors, self._inputs, strict=True):
            if tensor is None:
                arrays.append(None)
                continue
            region, offset, nbytes, shape = tensor
            array = read_tensor(self._regions.readable((region, offset, nbytes)), datatype, tuple(shape))
            arrays.append(array if array.flags.aligned else array.copy())
        return arrays

    def _write(self, number: int, units: list[UnitOutput], spaces: list[Place]) -> list[dict[str, Any]]:
        """Put every unit's outputs into its space, asking for more where that is too small; returns what DONE
        says of each."""
        plans = [_plan(unit) for unit in units]
        short = [index for index, (_, total) in enumerate(plans) if total > spaces[index][2]]
        if short:
            self._channel.send(
                FrameKind.WANT_SPACE, id=number, sizes=[plans[index][1] for index in short], units=short
            )
            for index, place in zip(short, _granted(self._next(FrameKind.GRANT)), strict=True):
                spaces[index] = place
        described: list[dict[str, Any]] = []
        for unit, (places, _), space in zip(units, plans, spaces, strict=True):
            if unit.error is not None or unit.refused:
                described.append({"error": unit.error} if unit.error is not None else {"refused": True})
                continue
            memory = self._regions.writable(space)
            for (shape, content), (at, nbytes) in zip(unit.tensors, places, strict=True):
                target = memory[at : at + nbytes]
                if isinstance(content, bytes):
                    target[:] = content
                else:
                    np.copyto(np.frombuffer(target, dtype=content.dtype).reshape(shape), content)
            tensors = [
                [at, nbytes, shape] for (shape, _), (at, nbytes) in zip(unit.tensors, places, strict=True)
            ]
            described.append(
                {"tensors": tensors} if unit.route is None else {"tensors": tensors, "route": unit.route}
            )
        return described

    def _load(self, frame: dict[str, Any]) -> None:
        started = time.perf_counter()
        try:
            base, changed = None, []
            if "changed" in frame:
                changed = [at for first, length in frame["changed"] for at in range(first, first + length)]
                base = self._engine.table(frame["base"])
                table = self._regions.laid_over(
                    base, frame["number"], frame["nbytes"], changed, frame["places"]
                )
            else:
                table = self._regions.table(frame["number"], frame["places"], self._chunk_nbytes)
            self._engine.load_table(table, base, changed)
        except Exception as error:
            if isinstance(error, ContractBroken):
                raise
            if not isinstance(error, HamsModelError):
                traceback.print_exc()
            self._channel.send(FrameKind.LOAD_FAILED, token=frame["token"], message=describe(error))
            return
        self._channel.send(FrameKind.LOADED, token=frame["token"], seconds=time.perf_counter() - started)


def _pass() -> None:
    """The gate of a run that may enter its update stage without asking."""


def _plan(unit: UnitOutput) -> tuple[list[tuple[int, int]], int]:
    """(offset, bytes) of each output of a unit within its space, and the bytes they take in all."""
    at = 0
    places: list[tuple[int, int]] = []
    for nbytes in sizes(unit.tensors):
        at = (at + ALIGN - 1) & ~(ALIGN - 1)
        places.append((at, nbytes))
        at += nbytes
    return places, at


def _granted(frame: tuple[FrameKind, dict[str, Any]] | None) -> list[Place]:
    """The answer to WANT_SPACE. Raises StateFault if there can never be that much room."""
    if frame is None:
        os._exit(0)
    if "refused" in frame[1]:
        raise StateFault(str(frame[1]["refused"]))
    return [(place[0], place[1], place[2]) for place in frame[1]["spaces"]]


def _complain(error: Exception, status: int) -> int:
    sys.stderr.write(f"hams-model: {error}\n")
    return status
