"""Three trivial operators in a row: what the house costs per request.

Stateless, and stateful with a backup each, both with two frontends; 4 KiB and 1 MiB; 1 and 8 clients.
Stateless with one frontend for 1 MiB and 8 clients. Beside them, in the same run, the floor: the three
functions in one FastAPI process. `hams bench chain [--short] [--seconds S] [--out FILE.json] [--output
json]`.
"""

import argparse
import asyncio
import math
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
import uvloop
from fastapi import FastAPI, Request, Response

from benchmarks.graphs import one_frontend
from benchmarks.http_load import closed_loop, infer_request, post
from benchmarks.plots import bars
from benchmarks.report import Result, add_options, deliver, rows_of, seconds
from hams_graph import load
from hams_load.traffic import percentile
from hams_operator.graph_status import awaited
from hams_operator.local.supervisor import Supervisor
from hams_protocol import modes

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "chain"
SIZES_BYTES = (4096, 1 << 20)
CLIENTS = (1, 8)
CELLS = tuple((nbytes, clients) for nbytes in SIZES_BYTES for clients in CLIENTS)
WITH_ONE_FRONTEND = ((1 << 20, 8),)
READY_S = 60.0
Cells = tuple[tuple[int, int], ...]
"""(bytes of a request, clients)."""


def main(arguments: list[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser("hams bench chain", description=__doc__)
    add_options(parser)
    parser.add_argument(
        "--short",
        action="store_true",
        help="a few seconds in all: does it run, and is it in the right range?",
    )
    parser.add_argument("--seconds", type=seconds, default=5.0, help="per cell")
    options = parser.parse_args(arguments)
    each_s = 1.0 if options.short else options.seconds
    deliver(uvloop.run(measure(each_s)), options, print_table, plot)
    return 0


async def measure(seconds: float) -> Result:
    """All cells, one graph after the other, the floor first."""
    rows: list[dict[str, object]] = []
    port = await _floor_started()
    rows += await _cells("floor", port, "", seconds, CELLS, None)
    for name, file in (("stateless", "stateless.yaml"), ("stateful", "graph.yaml")):
        rows += await _graph(name, EXAMPLES / file, seconds, CELLS)
    with one_frontend(EXAMPLES / "stateless.yaml") as path:
        rows += await _graph("stateless", path, seconds, WITH_ONE_FRONTEND)
    return {"bench": "chain", "machine": machine(), "seconds_per_cell": seconds, "rows": rows}


async def _graph(name: str, file: Path, seconds: float, cells: Cells) -> list[dict[str, object]]:
    graph = load(file)
    supervisor = Supervisor(graph, file, None, None, None)
    try:
        await supervisor.start()
        await redundant(supervisor)
        port = int(supervisor.url.rsplit(":", 1)[1])
        return await _cells(name, port, graph.data.name, seconds, cells, graph.data.frontend.replicas)
    finally:
        await supervisor.stop()


async def redundant(supervisor: Supervisor, within_s: float = READY_S) -> None:
    """Until the graph answers and every replica that it asks for is in sync. Raises TimeoutError.

    A graph that asks for one frontend, for no backups somewhere, or for mode None never becomes Redundant,
    and says when that is all.
    """
    async with asyncio.timeout(within_s):
        while awaited((await supervisor.view()).conditions) is not None:
            pass  # each look takes as long as the instances take to answer


async def _cells(
    name: str, port: int, graph: str, seconds: float, cells: Cells, frontends: int | None
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for nbytes, clients in cells:
        request = infer_request(graph, nbytes) if graph else post("/infer", bytes(nbytes), {})
        busy = cpu_s()
        took = await closed_loop(port, request, clients, seconds, warm_up_s=min(seconds, 1.0))
        rows.append(
            {
                "chain": name,
                "frontends": frontends,
                "bytes": nbytes,
                "clients": clients,
                "requests": len(took),
                "p50_ms": round(1000 * percentile(took, 0.5), 3),
                "p99_ms": round(1000 * percentile(took, 0.99), 3),
                "per_s": round(len(took) / seconds, 1),
                "machine_busy": round(
                    (cpu_s() - busy) / (min(seconds, 1.0) + seconds) / (os.cpu_count() or 1), 2
                ),
            }
        )
    return rows


async def _floor_started() -> int:
    """The three functions in one FastAPI process of its own; its port."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _floor(writing)
        os._exit(0)
    os.close(writing)
    port = int.from_bytes(await asyncio.to_thread(os.read, reading, 4), "little")
    os.close(reading)
    FLOORS.append(pid)
    return port


FLOORS: list[int] = []


def _floor(ready: int) -> None:
    import ctypes  # noqa: PLC0415 - in the child only
    import socket  # noqa: PLC0415

    ctypes.CDLL(None).prctl(1, 9)
    app = FastAPI()

    @app.post("/infer")
    async def infer(request: Request) -> Response:
        x = np.frombuffer(await request.body(), np.float32)
        for _ in range(3):
            x = step(x)
        return Response(x.tobytes(), media_type="application/octet-stream")

    listener = socket.create_server(("127.0.0.1", 0))
    os.write(ready, listener.getsockname()[1].to_bytes(4, "little"))
    asyncio.set_event_loop_policy(None)
    server = uvicorn.Server(
        uvicorn.Config(app, loop="uvloop", http="httptools", log_level="warning", access_log=False)
    )
    server.run(sockets=[listener])


def step(x: np.ndarray) -> np.ndarray:
    """What one operator of the chain does."""
    return x


def cpu_s() -> float:
    """Busy CPU seconds of the whole machine so far."""
    user, nice, system, *_ = (
        int(item) for item in Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def machine() -> dict[str, object]:
    """Facts that a number means nothing without."""
    packages = ("numpy", "uvloop", "uvicorn", "fastapi", "msgspec", "grpcio")
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "gpu": _gpu(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "at": time.strftime("%Y-%m-%d %H:%M:%S"),
        "versions": {name: version(name) for name in packages} | _installed("torch"),
        "commit": commit(),
        "compiled": not modes.__file__.endswith(".py"),
    }


def commit() -> str:
    """The commit of the sources, with a plus where something was changed since; "" outside a repository."""
    git = ("git", "-C", str(Path(__file__).parent))
    try:
        name = subprocess.run([*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, check=False)
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, check=False)
    except OSError:
        return ""
    return "" if name.returncode else name.stdout.decode().strip() + ("+" if changed.stdout else "")


def _installed(name: str) -> dict[str, str]:
    try:
        return {name: version(name)}
    except PackageNotFoundError:
        return {}


def _processor() -> str:
    """What the kernel calls it; its architecture where it says nothing."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _gpu() -> str:
    """What the driver calls the first one; "" where there is none."""
    described = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    lines = described[0].read_text().splitlines() if described else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("Model:")), "")


def title(row: dict[str, Any]) -> str:
    """What a row's graph is called in a plot."""
    return f"{row['chain']}, one frontend" if row["frontends"] == 1 else str(row["chain"])


def plot(result: Result, path: Path) -> None:
    """Requests per second of each chain, one group for each size and number of clients."""
    rows = rows_of(result)
    cells = list(dict.fromkeys((row["bytes"], row["clients"]) for row in rows))
    rates = {(title(row), row["bytes"], row["clients"]): row["per_s"] for row in rows}
    groups = {
        name: [rates.get((name, *cell), math.nan) for cell in cells]
        for name in dict.fromkeys(title(row) for row in rows)
    }
    labels = [
        f"{'4 KiB' if nbytes == 4096 else '1 MiB'}, {clients} client{'s' if clients > 1 else ''}"
        for nbytes, clients in cells
    ]
    bars(labels, groups, "requests/s", path, logarithmic=True)


def print_table(result: Result) -> None:
    """For people."""
    rows = rows_of(result)
    print(
        f"{'chain':10} {'frontends':>9} {'bytes':>8} {'clients':>7} {'p50 ms':>8} {'p99 ms':>8} "
        f"{'req/s':>9} {'busy':>5}"
    )
    for row in rows:
        cell = f"{row['chain']:10} {row['frontends'] or '-':>9} {row['bytes']:8} {row['clients']:7}"
        print(
            f"{cell} {row['p50_ms']:8.2f} {row['p99_ms']:8.2f} {row['per_s']:9.0f} {row['machine_busy']:5.2f}"
        )


if __name__ == "__main__":
    sys.exit(main())
