"""The six services as graph files: those of `examples/paper`, with what a measurement changes about them.

A measurement sets the mode, the size of the batch and of the states, and the device times; operators and
edges stay as they are in the example.
"""

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.report import in_short
from hams_graph.resource import Delta, in_flight_max
from hams_load.inference import InferTensor, tensor
from hams_operator.local.capacity import memory_available
from hams_protocol.graph import Mode
from hams_protocol.modes import ModePolicy

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "paper"
MIB = 1 << 20
FULL_BATCH = 64
STORE = "store"
"""The folder of states, where a mode stores them, beside the graph's file."""

CHECKPOINT_BATCHES = 150
"""As in the paper."""

BARE = Mode.NONE.value
MODES = tuple(mode.value for mode in Mode if mode is not Mode.NONE)
Times = Mapping[str, Mapping[str, tuple[float, float]]]
"""Service, operator: (compute, update), ms at a full batch."""

LIGHT: Times = {"OLV": {"o4": (13.0, 0.0)}}
"""`--times light`: nothing downstream of VGG19 hides the delivery of its state."""


PAPER_TIMES = "paper"
"""What the times of the examples are called."""


@dataclass(frozen=True)
class Service:
    """One service. `stateful`: its operators with state, in order. `counts`: reply tensors in which those
    count, by operator. `deepest`: operators on its longest path. `trains`: only every other request changes
    a state."""

    name: str
    title: str
    stateful: tuple[str, ...]
    deepest: int
    state_mib: float
    trains: bool = False

    @property
    def file(self) -> Path:
        """Its graph."""
        return FOLDER / f"{self.name.lower()}.yaml"

    @property
    def counts(self) -> dict[str, str]:
        """The reply's tensor in which each state counts."""
        return {op: f"{op}-count" for op in self.stateful}

    def under_way(self, load: str) -> int:
        """Batches under way: of L1, L2 or Sat."""
        return {"L1": 1, "L2": 2, "Sat": self.deepest + 1}[load]


SERVICES = {
    service.name: service
    for service in (
        Service("SA", "sentiment and subject of speech", ("o2", "o3"), 2, 2 * 121.7),
        Service("SP", "stock prediction", ("o2", "o4"), 6, 34.8 + 15.3),
        Service("AP", "auto-pilot", ("o2", "o3"), 5, 375.9 + 13.2),
        Service("FD", "two image branches", ("o2", "o4"), 3, 199.7 + 209.3),
        Service("OLV", "VGG19 learns online", ("o3",), 3, 548.05, trains=True),
        Service("OLM", "MobileNet learns online", ("o3",), 3, 13.37, trains=True),
    )
}


@dataclass(frozen=True)
class Settings:
    """What all graphs of one measurement have in common.

    `state`: everything or cells. `whole`: states are captured and travel whole, not as the chunks that
    changed. `bytes`: a part of every state. `batch`: rows of a batch. `single_rows`: a
    batch is as many requests of one row. `pace`: whether operators wait for the paper's times. `more`: config
    of every stateful operator. `patient`: an instance that stands still for a while is not replaced.
    `checkpoint_batches`: a state is stored after so many, where a mode stores states.
    """

    models: str = "emulated"
    pace: str = "paper"
    state: str = "everything"
    whole: bool = False
    bytes: float = 1.0
    batch: int = FULL_BATCH
    single_rows: bool = False
    times: Times = field(default_factory=dict)
    more: Mapping[str, float] = field(default_factory=dict)
    patient: bool = False
    checkpoint_batches: int = CHECKPOINT_BATCHES

    def said(self, service: str) -> dict[str, object]:
        """For the rows of a service."""
        return {
            "models": self.models,
            "pace": self.pace,
            "state": self.state,
            "states": "whole" if self.whole else "chunks",
            "bytes": self.bytes,
            "batch": self.batch,
            "rows_per_request": 1 if self.single_rows else self.batch,
            "times": times_name({name: given for name, given in self.times.items() if name == service}),
            "checkpoint_batches": self.checkpoint_batches,
        }


def replays(mode: str) -> bool:
    """Whether a lost state is run again in this mode, from the newest one that was stored."""
    return ModePolicy.of(Mode(mode)).replays


def graph_of(service: Service, mode: str, settings: Settings, *, standby: bool = False) -> dict[str, Any]:
    """The graph of a service, as its file would hold it. `standby`: with a warm replacement for every
    operator without state, and quick to suspect: for kills."""
    graph: dict[str, Any] = yaml.safe_load(service.file.read_text(encoding="utf-8"))
    graph["metadata"]["name"] = f"{service.name}-{mode}-{os.getpid()}".lower()
    spec = graph["spec"]
    spec["mode"] = mode
    spec["frontend"] = {"requestTimeout": "60s"}
    if replays(mode):  # open until they are stored: nearly 150 full batches of 64 requests, with two lanes
        spec["frontend"]["maxInFlight"] = in_flight_max // 2
    if settings.patient or not standby:  # a busy machine, or a stopped process, must not look like a dead one
        spec["recovery"] = {"suspectAfter": "10s" if settings.patient else "2s"}
    times = settings.times.get(service.name, {})
    for operator in spec["operators"]:
        config = operator["model"]["config"]
        if operator["name"] in times:
            config["computeMs"], config["updateMs"] = times[operator["name"]]
        if settings.pace == "none":
            config["computeMs"] = config["updateMs"] = 0
        config["rows"] = settings.batch
        if "stateful" in operator:
            config.update(state=settings.state, bytes=settings.bytes, **settings.more)
            if settings.whole:
                operator["stateful"]["delta"] = Delta.OFF.value
            if mode == BARE:
                operator["stateful"]["backups"] = 0
            if replays(mode):
                state = operator["stateful"]
                del state["backups"], state["window"]  # they say nothing there
                state["checkpoint"] = {"every": "1s", "dir": STORE, "batches": settings.checkpoint_batches}
        if not standby:
            operator.pop("standby", None)
        if settings.models == "real":
            module, _, name = operator["model"]["entrypoint"].partition(":")
            operator["model"]["entrypoint"] = f"{module.replace('models', 'real')}:{name}"
        operator["batch"]["maxRows"] = settings.batch
    return graph


@contextmanager
def graph_file(graph: Mapping[str, Any]) -> Iterator[Path]:
    """A file with a graph, in a folder of its own, beside the models that it names and the store."""
    with tempfile.TemporaryDirectory(prefix="hams-bench-") as folder:
        (Path(folder) / "paper").symlink_to(FOLDER / "paper")
        for operator in graph["spec"]["operators"]:
            checkpoint = operator.get("stateful", {}).get("checkpoint")
            if checkpoint is not None:
                checkpoint["dir"] = str(Path(folder) / STORE)
        path = Path(folder) / "graph.yaml"
        path.write_text(yaml.safe_dump(dict(graph), sort_keys=False))
        yield path


DATATYPES = {"float32": "FP32", "int64": "INT64", "object": "BYTES"}


def requests_of(service: Service, rows: int, count: int, seed: int) -> list[tuple[InferTensor, ...]]:
    """So many different requests of a service."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    from paper.data import SOURCES  # noqa: PLC0415 - the example's own data, on the path since just now

    source = SOURCES[service.name.lower()](rows, seed)
    return [
        tuple(tensor(name, DATATYPES[array.dtype.name], array) for name, array in next(source).items())
        for _ in range(count)
    ]


def kind_of(request: tuple[InferTensor, ...]) -> str:
    """Whether a request trains, infers, or is like all others of its service."""
    names = {item.name for item in request}
    return "train" if "train" in names else "infer" if "image" in names else "all"


time_ms_max = 600_000
"""Of one stage of an operator."""


def times_name(times: Times) -> str:
    """What tells device times apart: those of the examples, `light`, or a digest of others."""
    if not times or times == LIGHT:
        return "light" if times else PAPER_TIMES
    plain = {service: {op: list(pair) for op, pair in given.items()} for service, given in times.items()}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:8]


def read_times(text: str) -> Times:
    """Device times of a file: `SP: {o2: [46, 2]}`, ms at a full batch; or the built-in ones called `light`.

    Raises ValueError with what is wrong where.
    """
    if text == "light":
        return LIGHT
    try:
        loaded = yaml.safe_load(Path(text).read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        wanted = "`light` or a file of device times"
        raise ValueError(f"--times: expected {wanted}, found {in_short(text)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--times {text}: cannot be read: {error}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: the 99th day of a month
        raise ValueError(f"--times {text}: expected YAML: {' '.join(str(error).split())}") from None
    if not isinstance(loaded, dict) or not loaded:
        raise ValueError(
            f"--times {text}: expected services and their operators' times, found {in_short(loaded)}"
        )
    return {service: _operators(text, service, given) for service, given in loaded.items()}


def _operators(file: str, service: Any, given: Any) -> dict[str, tuple[float, float]]:
    if service not in SERVICES:
        raise ValueError(
            f"--times {file}: expected a service of {', '.join(SERVICES)}, found {in_short(service)}"
        )
    graph = yaml.safe_load(SERVICES[service].file.read_text(encoding="utf-8"))
    known = [operator["name"] for operator in graph["spec"]["operators"]]
    if not isinstance(given, dict) or not given:
        raise ValueError(
            f"--times {file}: {service}: expected operators and their times, found {in_short(given)}"
        )
    times = {}
    for operator, value in given.items():
        where = f"--times {file}: {service}.{operator}"
        if operator not in known:
            raise ValueError(f"{where}: expected an operator of {', '.join(known)}")
        pair = value if isinstance(value, list) else [value, 0]
        sound = len(pair) == 2 and all(
            isinstance(item, int | float) and not isinstance(item, bool) and 0 <= item <= time_ms_max
            for item in pair
        )
        if not sound:
            raise ValueError(
                f"{where}: expected [compute, update] in ms, from 0 to {time_ms_max}, found {in_short(value)}"
            )
        times[operator] = (float(pair[0]), float(pair[1]))
    return times


def rows_of_cells(settings: Settings) -> float:
    """Bytes of all cells of one operator, at most: those of a DeconvLSTM."""
    return settings.batch * (512 << 10) * settings.bytes


def state_bytes(service: Service, settings: Settings) -> float:
    """Bytes that the states of a service take once."""
    whole = settings.state == "everything" or service.trains
    return (service.state_mib * MIB * settings.bytes if whole else 0.0) + (
        len(service.stateful) * rows_of_cells(settings) if service.name in ("AP", "FD") else 0.0
    )


COPIES = 14
"""Copies of a state that a replicated one takes at most: a model on each side, and in each proxy the window,
the version under way, the newest durable and what a joiner is sent. An estimate, counted from these."""

PROCESSES_BYTES = 2 << 30
"""What two graphs take beside states."""


SMALLER = (2, 4, 8, 16, 32, 64, 1 << 10)
"""Parts of states that are offered where there is too little memory."""


def memory_needed(service: Service, mode: str, settings: Settings) -> int:
    """Bytes that a graph in this mode takes beside a bare one."""
    state = state_bytes(service, settings)
    return int(PROCESSES_BYTES + state * (1 if mode == BARE else COPIES) + state)


def too_little_memory(needs: Sequence[tuple[Service, str, Settings]], *, sized: bool) -> str | None:
    """What to tell whoever measures services, in a mode and with settings each, with states larger than the
    machine. `sized`: the part decides itself how large states are."""
    free = memory_available()
    service, mode, settings = max(needs, key=lambda need: memory_needed(*need))
    needed = memory_needed(service, mode, settings)
    if needed <= free:
        return None
    fits = next((part for part in SMALLER if memory_needed(service, mode, _of(settings, part)) <= free), None)
    if settings.models == "real":
        hint = "real networks have states of one size; --services leaves it out"
    elif sized:
        hint = "the part varies the size of states up to all of it; --services or --part leaves it out"
    elif fits is None:
        hint = (
            f"too little for states of any size, as the processes alone take {PROCESSES_BYTES / 1e9:.1f} GB"
        )
    else:
        hint = f"--bytes 1/{fits} makes the states smaller"
    return (
        f"{service.name} in mode {mode} needs about {needed / 1e9:.1f} GB of memory with these states, and "
        f"{free / 1e9:.1f} GB are free: {hint}"
    )


def _of(settings: Settings, part: int) -> Settings:
    return replace(settings, bytes=1 / part)


def first_value(request: InferTensor) -> int:
    """The first number of a tensor, as a whole one."""
    return int(np.ravel(request.array())[0])
