"""What replication costs a model that does real work: `NonStop` (or other modes) against `None`, two stateful
operators in a row.

20 ms of emulated device time per batch (waiting, not CPU) and 1, 10, 50 MB of state, of which 4 KiB change
with every batch. The largest one, too, with `stateful.delta: Off` (shipped whole), and dense: a byte of every
4 KiB changes, so all of it is captured and shipped, with either setting.
Throughput with enough clients to keep the models busy, latency with one. The rate at which a state streams
between two processes is measured before, in the same run: the bound of `NonStop`'s latency is that of `None`,
and one state's way at that rate, and 2 ms.

`hams bench overhead [--modes NonStop,Remus] [--short] [--out FILE.json] [--output json]`.
"""

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.chain import machine, redundant
from benchmarks.graphs import graph_file, stateful
from benchmarks.http_load import closed_loop, infer_request
from benchmarks.plots import bars
from benchmarks.report import Result, add_options, deliver, rows_of, seconds, several
from benchmarks.stream import record_rate
from hams_graph import load
from hams_load.traffic import percentile
from hams_operator.local.supervisor import Supervisor
from hams_protocol.graph import Mode
from hams_protocol.modes import ModePolicy

WAIT_S = 0.02
MB = 1_000_000
SPARSE, DENSE = "4 KiB", "all"
BARE = Mode.NONE.value
MODES = tuple(mode.value for mode in Mode if mode is not Mode.NONE and not ModePolicy.of(mode).replays)
"""But `None`, and the mode that stores its states in a folder, which `hams bench paper` measures."""
ALLOWED_MS = 2.0
"""What else replication may add to a request's latency, beside a state's way."""


def main(arguments: list[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser("hams bench overhead", description=__doc__)
    add_options(parser)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--seconds", type=seconds, default=10.0)
    parser.add_argument(
        "--modes",
        type=several("mode", MODES),
        default=(Mode.NON_STOP.value,),
        help="separated by commas; None is always there",
    )
    options = parser.parse_args(arguments)
    sizes = (1,) if options.short else (1, 10, 50)
    window_s = 2.0 if options.short else options.seconds
    deliver(uvloop.run(measure(sizes, window_s, options.modes)), options, print_table, plot)
    return 0


async def measure(sizes: tuple[int, ...], window_s: float, modes: tuple[str, ...]) -> Result:
    """The stream first, then `None` and each of `modes` for each size, one after the other in the same
    run."""
    rows: list[dict[str, object]] = []
    rate = await record_rate(unix=True)  # as proxies on one machine are linked
    for size, changed in (*((size, SPARSE) for size in sizes), (sizes[-1], DENSE)):
        base: dict[str, float] = {}
        both = size == sizes[-1]
        for mode, delta in _runs(modes, both=both):
            row = await _cell(mode, size, window_s, changed, delta)
            if mode == BARE:
                base = {key: float(str(row[key])) for key in ("per_s", "p50_ms")}
            row["throughput_loss_percent"] = round(100 * (1 - float(str(row["per_s"])) / base["per_s"]), 2)
            row["latency_added_ms"] = round(float(str(row["p50_ms"])) - base["p50_ms"], 2)
            row["latency_bound_ms"] = (
                round(bound_ms(base["p50_ms"], size, rate), 2) if mode == Mode.NON_STOP.value else None
            )
            rows.append(row)
    return {
        "bench": "overhead",
        "machine": machine(),
        "wait_s": WAIT_S,
        "stream_GB_s": round(rate, 3),
        "rows": rows,
    }


def bound_ms(none_ms: float, state_mb: float, rate_gb_s: float) -> float:
    """The latency that `NonStop` may have: `None`'s, a state's way between two processes, and `ALLOWED_MS`.
    MB over GB/s are ms."""
    return none_ms + state_mb / rate_gb_s + ALLOWED_MS


def _runs(modes: tuple[str, ...], *, both: bool) -> list[tuple[str, str]]:
    """Mode and `stateful.delta` of each measurement of one size."""
    deltas = ("Off", "Auto") if both else ("Auto",)
    return [(BARE, "Auto"), *((mode, delta) for mode in modes for delta in deltas)]


async def _cell(mode: str, size: int, window_s: float, changed: str, delta: str) -> dict[str, object]:
    touched, stride = (4096, 1) if changed == SPARSE else (size * MB, 4096)
    config = f"{{stateBytes: {size * MB}, touchedBytes: {touched}, touchedStride: {stride}, waitS: {WAIT_S}}}"
    operators = [
        stateful("a", "request", config, max_rows=1, delta=delta),
        stateful("b", "a", config, max_rows=1, delta=delta),
    ]
    with graph_file("overhead", operators, {"x": "b.x", "count": "b.count"}, mode) as path:
        supervisor = Supervisor(load(path), path, None, None, None)
        try:
            await supervisor.start()
            await redundant(supervisor)
            port = int(supervisor.url.rsplit(":", 1)[1])
            request = infer_request("overhead", 4096)
            busy = await closed_loop(port, request, 6, window_s, warm_up_s=1.0)
            alone = await closed_loop(port, request, 1, window_s, warm_up_s=1.0)
        finally:
            await supervisor.stop()
    return {
        "mode": mode,
        "state_mb": size,
        "changed": changed,
        "delta": delta,
        "seconds": window_s,
        "per_s": round(len(busy) / window_s, 2),
        "p50_ms": round(1000 * percentile(alone, 0.5), 2),
        "p99_ms": round(1000 * percentile(alone, 0.99), 2),
    }


def plot(result: Result, path: Path) -> None:
    """Latency of each mode, and of each way of a state, for each size of state and of what changes."""
    ms = {(_series(row), _label(row)): row["p50_ms"] for row in rows_of(result)}
    labels = list(dict.fromkeys(label for _, label in ms))
    groups = {
        series: [ms.get((series, label), math.nan) for label in labels]
        for series in dict.fromkeys(series for series, _ in ms)
    }
    bars(labels, groups, "p50 ms, two stateful operators, 20 ms each", path)


def _series(row: dict[str, Any]) -> str:
    return f"{row['mode']}{', states whole' if row['delta'] == 'Off' else ''}"


def _label(row: dict[str, Any]) -> str:
    return f"{row['state_mb']} MB, {row['changed']} changed"


def print_table(result: Result) -> None:
    """For people."""
    rows = rows_of(result)
    print(
        f"{'mode':15} {'state MB':>8} {'changed':>8} {'delta':>5} {'req/s':>8} {'loss %':>7} {'p50 ms':>8} "
        f"{'added ms':>8} "
        f"{'bound ms':>8} {'p99 ms':>8}"
    )
    for row in rows:
        print(
            f"{row['mode']:15} {row['state_mb']:8} {row['changed']:>8} {row['delta']:>5} "
            f"{row['per_s']:8.2f} {row['throughput_loss_percent']:7.2f} "
            f"{row['p50_ms']:8.2f} "
            f"{row['latency_added_ms']:8.2f} {_bound(row):>8} {row['p99_ms']:8.2f}"
        )
    print(
        f"bound: p50 of None + state / {result['stream_GB_s']} GB/s, the stream of this run, + {ALLOWED_MS} "
        "ms; > where p50 is beyond it"
    )


def _bound(row: dict[str, Any]) -> str:
    bound = row["latency_bound_ms"]
    return "-" if bound is None else f"{'> ' if row['p50_ms'] > bound else ''}{bound:.2f}"


if __name__ == "__main__":
    sys.exit(main())
