"""What replication costs a model that does real work: `NonStop` against `None`, two stateful operators in a row.

20 ms of emulated device time per batch (waiting, not CPU) and 1, 10, 50 MB of state shipped with every batch. Throughput with enough
clients to keep the models busy, latency with one. `hams bench overhead [--short] [--out FILE.json]`.
"""

import argparse
import asyncio
import json
import sys
from pathlib import Path

import uvloop

from benchmarks.chain import machine, redundant
from benchmarks.graphs import graph_file, stateful
from benchmarks.http_load import closed_loop, infer_request, percentile
from benchmarks.plots import bars
from hams_operator.graph import load
from hams_operator.local.supervisor import Supervisor

WAIT_S = 0.02
MB = 1_000_000
MODES = ("None", "NonStop")


def main(arguments: list[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser("hams bench overhead", description=__doc__)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args(arguments)
    sizes = (1,) if options.short else (1, 10, 50)
    result = uvloop.run(measure(sizes, 2.0 if options.short else options.seconds))
    rows = result["rows"]
    assert isinstance(rows, list)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
        labels = [f"{size} MB" for size in sizes]
        bars(
            labels,
            {mode: [row["per_s"] for row in rows if row["mode"] == mode] for mode in MODES},
            "requests/s, two stateful operators, 20 ms each",
            options.out.with_suffix(".svg"),
        )
    print_table(result)
    return 0


async def measure(sizes: tuple[int, ...], seconds: float) -> dict[str, object]:
    """Both modes for each size, one after the other in the same run."""
    rows: list[dict[str, object]] = []
    for size in sizes:
        base: dict[str, float] = {}
        for mode in MODES:
            row = await _cell(mode, size, seconds)
            if mode == "None":
                base = {key: float(str(row[key])) for key in ("per_s", "p50_ms")}
            row["throughput_loss_percent"] = round(100 * (1 - float(str(row["per_s"])) / base["per_s"]), 2)
            row["latency_added_ms"] = round(float(str(row["p50_ms"])) - base["p50_ms"], 2)
            rows.append(row)
    return {"bench": "overhead", "machine": machine(), "wait_s": WAIT_S, "rows": rows}


async def _cell(mode: str, size: int, seconds: float) -> dict[str, object]:
    config = f"{{stateBytes: {size * MB}, touchedBytes: 4096, waitS: {WAIT_S}}}"
    operators = [stateful("a", "request", config, max_rows=1), stateful("b", "a", config, max_rows=1)]
    with graph_file("overhead", operators, {"x": "b.x", "count": "b.count"}, mode) as path:
        supervisor = Supervisor(load(path), path, None, None, None)
        try:
            await supervisor.start()
            await (redundant(supervisor) if mode == "NonStop" else ready(supervisor))
            port = int(supervisor.url.rsplit(":", 1)[1])
            request = infer_request("overhead", 4096)
            busy = await closed_loop(port, request, 6, seconds, warm_up_s=1.0)
            alone = await closed_loop(port, request, 1, seconds, warm_up_s=1.0)
        finally:
            await supervisor.stop()
    return {
        "mode": mode,
        "state_mb": size,
        "per_s": round(len(busy) / seconds, 2),
        "p50_ms": round(1000 * percentile(alone, 0.5), 2),
        "p99_ms": round(1000 * percentile(alone, 0.99), 2),
    }


async def ready(supervisor: Supervisor) -> None:
    """Until the graph answers; mode None has nothing to keep in sync."""
    async with asyncio.timeout(60):
        while {item.type: item.status for item in (await supervisor.view()).conditions}["Ready"] != "True":
            pass


def print_table(result: dict[str, object]) -> None:
    """For people."""
    rows = result["rows"]
    assert isinstance(rows, list)
    print(f"{'mode':8} {'state MB':>8} {'req/s':>8} {'loss %':>7} {'p50 ms':>8} {'added ms':>8} {'p99 ms':>8}")
    for row in rows:
        print(
            f"{row['mode']:8} {row['state_mb']:8} {row['per_s']:8.2f} {row['throughput_loss_percent']:7.2f} {row['p50_ms']:8.2f} "
            f"{row['latency_added_ms']:8.2f} {row['p99_ms']:8.2f}"
        )


if __name__ == "__main__":
    sys.exit(main())
