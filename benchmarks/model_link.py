"""Round trips between a proxy and its model process: `python benchmarks/model_link.py [--rounds N] [--out
FILE.json]`.

A real model process on a real socket and shared memory; uvloop in the proxy. Per size of input and output: a
stateless batch, a stateful one with its boundary, and a capture. JSON with machine facts and percentiles in
microseconds.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

ROOT = Path(__file__).resolve().parents[1]
for folder in ("sidecar", "model-sdk"):
    sys.path.insert(0, str(ROOT / folder))

import hams_sdk  # noqa: E402
from hams_protocol.effects import BatchUnit, Capture, EnterUpdate, StartBatch  # noqa: E402
from hams_protocol.events import BatchDone, Captured, ModelReady, UpdateWanted  # noqa: E402
from hams_protocol.graph import (  # noqa: E402
    FRONTEND,
    BatchPolicy,
    Edge,
    FrontendSpec,
    Graph,
    GraphData,
    Input,
    Join,
    Mode,
    ModelSpec,
    Operator,
    RecoverySpec,
    ReplyTensor,
    TensorSpec,
)
from hams_protocol.ids import RequestId, UnitId  # noqa: E402
from hams_protocol.messages import Meta  # noqa: E402
from hams_sidecar.arena import Arena  # noqa: E402
from hams_sidecar.model import ModelLink  # noqa: E402
from hams_sidecar.payload import pack  # noqa: E402

SIZES = {"4 KiB": 1 << 10, "1 MiB": 1 << 18}
"""Floats in the input, and in the output."""


class Copy(hams_sdk.Model):
    """The model: outputs its input; if stateful, its state is as large as that."""

    def initialize(self, config: dict[str, Any]) -> Any:
        """State only where the operator is stateful."""
        self.last = np.zeros(config["floats"], dtype=np.float32)
        return {"last": self.last} if config["stateful"] else None

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        """y = x."""
        with update:
            self.last[:] = batch["x"][0]
        return {"y": batch["x"]}


def graph(floats: int, stateful: bool) -> Graph:
    """request -> op -> reply."""
    spec = TensorSpec("x", "FP32", (floats,))
    config = json.dumps({"floats": floats, "stateful": stateful})
    operator = Operator(
        "op",
        Join.COMBINE,
        (Edge(FRONTEND, "op", (Input("x", "x", False),)),),
        (FRONTEND,),
        ((),),
        (TensorSpec("y", "FP32", (floats,)),),
        BatchPolicy(64, 0.0),
        ModelSpec("model_link:Copy", config),
        stateful,
    )
    return Graph(
        GraphData(
            "g",
            "u",
            Mode.NON_STOP,
            FrontendSpec(),
            1,
            RecoverySpec(),
            (spec,),
            (ReplyTensor("y", (("op", "y"),)),),
            (operator,),
        )
    )


async def measure(rounds: int, once: Callable[[int], Awaitable[None]]) -> dict[str, float]:
    """Percentiles of `rounds` calls, in microseconds."""
    for number in range(rounds // 10):
        await once(number)
    times = []
    for number in range(rounds):
        started = time.perf_counter()
        await once(number)
        times.append(time.perf_counter() - started)
    p5, p50, p99 = np.percentile(times, [5, 50, 99]) * 1e6
    return {"p5_us": round(float(p5), 1), "p50_us": round(float(p50), 1), "p99_us": round(float(p99), 1)}


async def bench(
    directory: Path, label: str, floats: int, stateful: bool, rounds: int
) -> dict[str, dict[str, float]]:
    """One model process; what it was asked, and how long that took."""
    arena = Arena(1 << 28, path=directory / "arena")
    events: asyncio.Queue[Any] = asyncio.Queue()
    link = ModelLink(graph(floats, stateful), "op", arena, arena, events.put_nowait)
    await link.listen(directory / "socket")
    command = [
        sys.executable,
        "-m",
        "hams_sdk",
        "serve",
        "model_link:Copy",
        "--socket",
        str(directory / "socket"),
        "--path",
        str(Path(__file__).parent),
    ]
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, "PYTHONPATH": str(ROOT / "model-sdk")}
    )
    assert isinstance(await events.get(), ModelReady)
    row = np.random.default_rng(0).random((1, floats), dtype=np.float32)

    async def run(number: int) -> None:
        payload = pack(arena, [("x", "FP32", row)])  # the receive from the network stands here
        link.perform(
            StartBatch(number, (BatchUnit(UnitId(RequestId(0, number), ()), Meta(), ((FRONTEND, payload),)),))
        )
        if stateful:
            assert isinstance(await events.get(), UpdateWanted)
            link.perform(EnterUpdate(number))
        assert isinstance(await events.get(), BatchDone)

    async def capture(number: int) -> None:
        link.perform(Capture(number))
        assert isinstance(await events.get(), Captured)

    name = "stateful batch" if stateful else "stateless batch"
    measured = {f"{name}, {label}": await measure(rounds, run)}
    if stateful:
        measured[f"capture, {label}"] = await measure(rounds, capture)
    await link.close()
    await process.wait()
    arena.close()
    return measured


async def everything(rounds: int) -> dict[str, dict[str, float]]:
    """All sizes."""
    measured: dict[str, dict[str, float]] = {}
    for label, floats in SIZES.items():
        for stateful in (False, True):
            with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
                measured |= await bench(Path(directory), label, floats, stateful, rounds)
    return measured


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = uvloop.run(everything(options.rounds))
    machine = {
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    report = json.dumps({"machine": machine, "rounds": options.rounds, "results": results}, indent=2)
    print(report)
    if options.out is not None:
        options.out.write_text(report + "\n")


if __name__ == "__main__":
    main()
