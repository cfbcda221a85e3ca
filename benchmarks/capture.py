"""What the capture of a state costs, and a load of what differs: on the host, and on a GPU if there is one.

A state of which all, some or nothing changes between two captures. The memory that images go to is mapped and
was written before, as a proxy's is. `hams bench capture [--mib 512] [--out FILE.json]`.
"""

import argparse
import mmap
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.chain import machine
from benchmarks.plots import bars
from benchmarks.report import Result, add_options, counted, deliver, ms, rows_of, whole
from hams_sdk import chunks, cuda
from hams_sdk.state import State

CHUNK_NBYTES = 64 << 10
LEAVES = 32
WARM_UP = 3
MIB_MIN = 8
"""Smaller states have hardly a chunk in each tensor."""

mib_max = 1 << 16
"""A state is in memory three times: itself, and two images."""


@dataclass(frozen=True)
class Change:
    """How a state changes between two captures. `part` of it, from each `every`-th chunk."""

    name: str
    part: float
    every: int = 1


CHANGES = (
    Change("nothing", 0.0),
    Change("1 % in one piece", 0.01),
    Change("1 % here and there", 0.01, 100),
    Change("all", 1.0),
)


class Memory:
    """What a proxy allots: a capture goes to one region, and is laid over the newest image, in another."""

    def __init__(self, nbytes: int) -> None:
        room = nbytes + (1 << 20)
        self._taken, self._newest = (memoryview(mmap.mmap(-1, room)) for _ in range(2))
        for region in (self._taken, self._newest):
            region[:] = bytes(room)
        self.table: chunks.Table | None = None
        self.changed: list[int] = []

    def capture(self, state: State) -> float:
        """Seconds of one capture."""
        mark, began = cuda.mark(), time.perf_counter()
        if self.table is None:
            report = state.capture(self._space, mark)
            state.is_base()
        else:
            report = state.capture_changed(self.table, self._space, mark)
        took = time.perf_counter() - began
        number = chunks.count(report.nbytes, CHUNK_NBYTES)
        runs = [(0, number)] if report.changed is None else report.changed
        first = chunks.address_of(self._newest)
        addresses = [first + index * CHUNK_NBYTES for index in range(number)]
        self.table = chunks.Table(0, report.nbytes, CHUNK_NBYTES, addresses)
        self.changed = [index for first, length in runs for index in range(first, first + length)]
        at = 0
        for index in self.changed:
            size = self.table.size(index)
            begin = index * CHUNK_NBYTES
            self._newest[begin : begin + size] = self._taken[at : at + size]
            at += size
        return took

    def _space(self, nbytes: int) -> memoryview:
        return self._taken[:nbytes]


def main(arguments: list[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser("hams bench capture", description=__doc__)
    add_options(parser)
    parser.add_argument("--mib", type=_mib, default=512, help="of the state")
    parser.add_argument(
        "--captures", type=counted, default=15, help="of each kind, of which the median is said"
    )
    options = parser.parse_args(arguments)
    rows = list(measured(options.mib << 20, options.captures))
    result: Result = {"bench": "capture", "machine": machine(), "mib": options.mib, "rows": rows}
    deliver(result, options, _table, _plot)
    return 0


def _mib(text: str) -> int:
    return whole("MiB", text, MIB_MIN, mib_max)


def measured(nbytes: int, captures: int) -> Iterator[dict[str, object]]:
    """A row for each kind of memory and of change."""
    import torch  # noqa: PLC0415 - takes seconds, and the list of measurements is shown without

    torch.set_num_threads(1)
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        for change in CHANGES:
            yield {
                "device": torch.cuda.get_device_name() if device == "cuda" else "host",
                "changes": change.name,
                **_cell(torch, device, change, nbytes, captures),
            }


def _cell(torch: Any, device: str, change: Change, nbytes: int, captures: int) -> dict[str, object]:
    leaves = [torch.zeros(nbytes // 4 // LEAVES, device=device) for _ in range(LEAVES)]
    state = State({f"leaf{index}": leaf for index, leaf in enumerate(leaves)})
    step = _step(leaves, change)
    memory = Memory(nbytes)
    for _ in range(WARM_UP):
        memory.capture(state)
        step()
    took, loaded = [], []
    for _ in range(captures):
        took.append(memory.capture(state))
        step()
    memory.capture(state)
    assert memory.table is not None
    for _ in range(captures):
        began = time.perf_counter()
        assert state.load_changed(memory.table, memory.changed)
        loaded.append(time.perf_counter() - began)
    return {
        "changed_mib": round(len(memory.changed) * CHUNK_NBYTES / (1 << 20), 1),
        "capture_ms": ms(statistics.median(took)),
        "capture_ms_max": ms(max(took)),
        "load_ms": ms(statistics.median(loaded)),
    }


def _step(leaves: list[Any], change: Change) -> Callable[[], None]:
    """Change a part of the leaves."""
    words = CHUNK_NBYTES // 4
    number = int(change.part * len(leaves) * len(leaves[0]) / words)

    def step() -> None:
        if change.part == 1.0:
            for leaf in leaves:
                leaf += 1
        elif change.every == 1:
            leaves[0][: number * words] += 1
        else:
            each = len(leaves[0]) // words
            for index in range(number):
                leaf, chunk = divmod(index * change.every, each)
                leaves[leaf][chunk * words : chunk * words + 8] += 1

    return step


def _table(result: Result) -> None:
    print(f"A state of {result['mib']} MiB in {LEAVES} tensors.\n")
    print("| memory | changes | MiB in changed chunks | capture, ms | longest | load of what differs, ms |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows_of(result):
        print(
            f"| {row['device']} | {row['changes']} | {row['changed_mib']} | {row['capture_ms']} | "
            f"{row['capture_ms_max']} | {row['load_ms']} |"
        )


def _plot(result: Result, path: Path) -> None:
    rows = rows_of(result)
    bars(
        [change.name for change in CHANGES],
        {
            device: [float(row["capture_ms"]) for row in rows if row["device"] == device]
            for device in dict.fromkeys(row["device"] for row in rows)
        },
        "capture, ms",
        path,
    )
