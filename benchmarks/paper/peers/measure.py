"""T6: SP and OLM in Ray Serve and in HAMS, in the same run, asked by the same client.

Under one batch the latency, saturated the throughput, and a kill of the process that holds the last state:
the longest wait for a reply, the slowest single request, the requests that failed, and what the state counts
afterwards.
"""

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.asking import Log
from benchmarks.chain import redundant
from benchmarks.paper.overhead import Plan
from benchmarks.paper.paired import rate
from benchmarks.paper.running import ANSWER_S, READY_S, Asked, Failed, Running, running
from benchmarks.paper.services import FOLDER, Service, Settings, graph_file, graph_of, kind_of
from benchmarks.report import ms

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / ".venv-peers" / "bin" / "python"
INSTALLED = ROOT / ".venv-peers" / ".installed"
"""Made by `make bench-peers` once everything is there: an installation that failed leaves a Python, too."""
SERVED = ("SP", "OLM")
OPTIMIZED = "RAY_SERVE_THROUGHPUT_OPTIMIZED"
"""Its documented setting for throughput."""
STARTED_S = 180.0
GAP_S = 15.0
"""Load goes on for so long after a kill."""

Kill = Callable[[], Awaitable[None]]


def missing() -> str | None:
    """What to say where Ray is not installed."""
    if INSTALLED.is_file() and PYTHON.is_file():
        return None
    return "part peers needs Ray Serve, which is not installed: `make bench-peers` installs and runs it"


def ray_version() -> str:
    """The one that is installed beside us."""
    found = sorted(PYTHON.parents[1].glob("lib/python*/site-packages/ray-*.dist-info"))
    return found[-1].name.removeprefix("ray-").removesuffix(".dist-info") if found else "unknown version"


async def peers(services: Sequence[Service], settings: Settings, plan: Plan) -> list[dict[str, object]]:
    """Rows of both systems, service by service."""
    rows: list[dict[str, object]] = []
    for service in services:
        if service.name not in SERVED:
            continue
        async with ray_serve(service, settings) as (asked, kill):
            said = _said(service, settings, plan, "Ray Serve", f"{ray_version()}, {OPTIMIZED}=1")
            rows.append({**said, **await _row(service, asked, kill, plan)})
        async with running(service, "NonStop", settings, standby=True) as graph:
            said = _said(service, settings, plan, "HAMS", "NonStop, one backup for each state")
            rows.append({**said, **await _row(service, graph, partial(_kill, graph), plan)})
    return rows


def _said(service: Service, settings: Settings, plan: Plan, system: str, how: str) -> dict[str, object]:
    """What tells a row from others."""
    return {
        "service": service.name,
        "system": system,
        "how": how,
        **settings.said(service.name),
        "pairs": plan.pairs,
        "window_s": plan.window_s,
    }


async def _row(service: Service, asked: Asked, kill: Kill, plan: Plan) -> dict[str, object]:
    await asked.window(service.under_way("Sat"), plan.window_s, 0.0)
    seconds = plan.pairs * plan.window_s
    alone = await asked.window(1, seconds, plan.drop_s)
    busy = await asked.window(service.under_way("Sat"), seconds, plan.drop_s)
    killed = await _killed(service, asked, kill)
    return {
        "latency_ms": round(1000 * float(np.median([item.ended - item.began for item in alone])), 2),
        "per_s": round(rate([item.ended for item in busy]), 3),
        **killed,
        "samples_ms": [round(1000 * (item.ended - item.began), 3) for item in alone],
    }


async def _killed(service: Service, asked: Asked, kill: Kill) -> dict[str, object]:
    """Longest wait for a good reply after a kill under two batches, the slowest of all requests, those that
    failed, and the count."""
    counts, failed, log = [0], [0], Log()
    name, news = list(service.counts.values())[-1], asyncio.Event()
    end = time.perf_counter() + GAP_S

    async def ask() -> None:
        while time.perf_counter() < end:
            request, began = asked.next_request(), time.perf_counter()
            answer = await asked.ask(request)
            if answer.status != 200:
                failed[0] += 1
                await asyncio.sleep(0.01)
                continue
            log.answered.append((began, time.perf_counter()))
            news.set()
            if kind_of(request) != "infer":
                counts.append(max(int(item.array().max()) for item in answer.tensors if item.name == name))

    async with asyncio.TaskGroup() as group:
        for _ in range(service.under_way("L2")):
            group.create_task(ask())
        while len(counts) < 4:
            news.clear()
            await news.wait()
        before = max(counts)
        await kill()
        struck = time.perf_counter()
    return {
        "gap_ms": ms(log.longest_gap_s(struck, end), 1),
        "slowest_ms": ms(log.slowest_s(struck, end), 1),
        "failed": failed[0],
        "counted": f"{before} before, {counts[-1]} at the end",
    }


async def _kill(graph: Running) -> None:
    """The primary of the last state, its model and its proxy."""
    await redundant(graph.supervisor, READY_S)
    operator = graph.service.stateful[-1]
    for item in (await graph.supervisor.view()).instances:
        if item.operator == operator and item.role == "primary":
            for pid in (item.model_pid, item.proxy_pid):
                if pid:
                    os.kill(pid, signal.SIGKILL)


@asynccontextmanager
async def ray_serve(service: Service, settings: Settings) -> AsyncIterator[tuple[Asked, Kill]]:
    """A service in Ray Serve, and how the process of its last state is killed. Raises Failed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with graph_file(graph_of(service, "None", settings)) as path:
        process = await asyncio.create_subprocess_exec(
            str(PYTHON),
            str(Path(__file__).with_name("ray_serve.py")),
            str(path),
            str(port),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONPATH": f"{FOLDER}:{ROOT / 'model-sdk'}",
                OPTIMIZED: "1",
            },
        )
        assert process.stdout is not None, "a pipe"
        assert process.stdin is not None, "a pipe"
        try:
            async with asyncio.timeout(STARTED_S):
                while (line := await process.stdout.readline()).strip() != b"ready":
                    if not line:
                        raise Failed("Ray Serve did not start; its own words are above")
            url = f"http://127.0.0.1:{port}"

            async def kill() -> None:
                pids = await asyncio.to_thread(_pids, port)
                os.kill(pids[service.stateful[-1]], signal.SIGKILL)

            async with Asked(service, "Ray Serve", settings, url, "app", ANSWER_S) as asked:
                yield asked, kill
        finally:
            process.stdin.close()
            await process.wait()


def _pids(port: int) -> dict[str, int]:
    import httpx  # noqa: PLC0415 - for one question

    answer: dict[str, int] = httpx.get(f"http://127.0.0.1:{port}/pids", timeout=ANSWER_S).json()
    return answer
