"""Scheduling policies in real processes (`hams bench schedule --live [--kill 20s]`): a graph whose model only
waits, an open-loop client on the same machine, and the same requests in virtual time beside.

Each cell is a graph of its own. Both sides begin without any profile; requests of the first `WARM_UP_S` are
served and not counted. A request is in time if its 200 came within the SLO after it was due to be sent. With
`--kill` the operator has a state and a backup. Its primary, model and proxy, is killed again and again, and
the requests of the `AFTER_S` after each kill are counted apart. A busy machine makes model, client and
proxies late: the load average, and how late requests were sent, stand in each row.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import uvloop

from benchmarks import emulated
from benchmarks.chain import machine, redundant
from benchmarks.judged import complete, judged
from benchmarks.live_report import (
    AFTER_S,
    GOAL_AFTER_KILL,
    GOAL_DIFFERENCE,
    P99_S,
    WARM_UP_S,
    Cell,
    Seen,
    forecast_of,
    plot,
    policies_of,
    policy_seconds_of,
    print_table,
    reliability_of,
    row_of,
)
from benchmarks.report import Result, deliver, rows_of
from benchmarks.virtual_time import run, served_policy
from benchmarks.workloads import (
    ROWS_MAX,
    Trace,
    Worker,
    capacity_per_s,
    cases_named,
    p99_s,
    trace_of,
)
from hams_graph import load
from hams_load.http import NoResponse, Pool
from hams_operator.local.supervisor import Supervisor
from hams_schedule.profile import Profiles

CASES = "std-1,three-modal,gpt-convAI"
"""Where none is chosen; with `--short` or `--kill` the second alone."""
ONE_CASE = "three-modal"
SLOS = (2.0, 3.0)
POLICIES = ("distribution", "deadline", "fifo")
"""What an operator can be served by."""
REQUEST_S = 30.0
"""The graph's requestTimeout: as long as an answer is waited for."""
NAME = "live"

GRAPH = """apiVersion: hams.dev/v1alpha1
kind: ServiceGraph
metadata: {{name: {name}}}
spec:
  frontend: {{replicas: 1, requestTimeout: {timeout:g}s}}
  inputs:
  - {{name: alone, datatype: FP64, shape: []}}
  outputs:
  - {{name: seconds, from: model.seconds}}
  operators:
  - name: model
    model:
      entrypoint: emulated:{model}
      config: {{fixedS: {fixed_s}, growth: {growth}}}
      warmUp: {{row: {{alone: 0.001}}}}
    inputs: [request.alone]
    outputs:
    - {{name: seconds, datatype: FP64, shape: []}}
    batch: {{maxRows: {max_rows}, maxDelay: 0, {batch}}}
"""
BATCH = {
    "fifo": "policy: Fifo",
    "deadline": "policy: Deadline, whenLate: Shed",
    "distribution": 'policy: Distribution, whenLate: Shed, appBy: "parameter:app"',
}


def main_of(options: argparse.Namespace) -> int:
    """Measure. The exit status is 1 if a request got neither a reply nor a 504, or a history is broken: rates
    depend on the machine, and are told."""
    result = uvloop.run(measure(cells_of(options)))
    deliver(result, options, print_table, plot)
    return 1 if any(row["failed"] or not row["ok"] for row in rows_of(result)) else 0


def cells_of(options: argparse.Namespace) -> list[Cell]:
    """The cells that were asked for."""
    few = options.short or options.kill > 0.0
    seconds = 15.0 if options.short else options.seconds
    if options.kill:
        seconds = max(seconds, options.kill + 2.0 * AFTER_S)
    cases = cases_named(options.cases or (ONE_CASE if few else CASES))
    slos = options.slo or (SLOS[-1:] if few else SLOS)
    policies = options.policies or (POLICIES[:1] if few else POLICIES)
    return [
        Cell(
            case,
            factor,
            policy,
            options.rho,
            options.arrivals_from,
            seconds,
            options.seed,
            options.kill,
        )
        for case in cases
        for factor in slos
        for policy in policies
    ]


async def measure(cells: list[Cell]) -> Result:
    """All cells, one after the other."""
    rows = []
    for cell in cells:
        rows.append(await measure_cell(cell))
    first = cells[0]
    return {
        "bench": "schedule-live",
        "machine": machine(),
        "rho": first.rho,
        "arrivals": first.arrivals.name,
        "seconds": first.seconds,
        "p99_s": P99_S,
        "kill_s": first.kill_s,
        "goals": {"difference": GOAL_DIFFERENCE, "after_kill": GOAL_AFTER_KILL},
        "rows": rows,
    }


def scaled_trace(cell: Cell) -> tuple[Trace, Worker]:
    """The requests of a cell, and its worker, in the time of the live run. No jitter: the model has none."""
    scale = P99_S / p99_s(cell.case)
    whole_s = WARM_UP_S + cell.seconds
    count = int(4.0 * cell.rho * capacity_per_s(cell.case) / scale * whole_s) + 100
    drawn = trace_of(cell.case, cell.rho, cell.arrivals, count, cell.seed)
    arrivals = [at * scale for at in drawn.arrivals if at * scale < whole_s]
    alone = [time * scale for time in drawn.alone[: len(arrivals)]]
    count = len(arrivals)
    trace = Trace(arrivals, drawn.apps[:count], drawn.features[:count], alone, [1.0] * count)
    return trace, Worker(cell.case.fixed_ms / 1000.0 * scale, cell.case.growth)


def virtual(cell: Cell, trace: Trace, worker: Worker) -> list[bool]:
    """What becomes of the requests in virtual time, under the same policy with as little knowledge."""
    profiles = Profiles()
    policy = served_policy(cell.policy, ROWS_MAX, profiles)

    def classify(app: int, _: float) -> int:
        return profiles.classify(str(app), float("nan"))

    return run(policy, trace, worker, cell.slo_s, classify).on_time


async def measure_cell(cell: Cell) -> dict[str, Any]:
    """One graph, from its start to its verdict."""
    trace, worker = scaled_trace(cell)
    expected = virtual(cell, trace, worker)
    history = Path(tempfile.mkdtemp(prefix="hams-history-", dir="/dev/shm"))
    folder = Path(tempfile.mkdtemp(prefix="hams-bench-"))
    try:
        file = write_graph(folder, cell, worker)
        supervisor = Supervisor(load(file), file, None, history, None)
        load_before = os.getloadavg()[0]
        try:
            await supervisor.start()
            await redundant(supervisor)
            seen = await serve(cell, trace, supervisor)
            await complete(history)
            url = (await supervisor.status()).metrics
            page = (await asyncio.to_thread(httpx.get, url, timeout=REQUEST_S)).text
        finally:
            await supervisor.stop()
        row = row_of(cell, trace, expected, seen)
        row["reliability"] = reliability_of(page)
        row["forecast"] = forecast_of(page)
        row["serve"] = policies_of(page)
        row["policy_s"] = policy_seconds_of(page)
        if not cell.kill_s:  # a page of the last successor says nothing of those before
            row["plans"] = round(row["policy_s"]["plan"] / (WARM_UP_S + cell.seconds), 5)
        row["load_average"] = [round(load_before, 1), round(os.getloadavg()[0], 1)]
        return row | await asyncio.to_thread(judged, history, {})
    finally:
        shutil.rmtree(history, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def write_graph(folder: Path, cell: Cell, worker: Worker) -> Path:
    """The graph of a cell, beside its model."""
    shutil.copy(emulated.__file__, folder / "emulated.py")
    text = GRAPH.format(
        name=NAME,
        timeout=REQUEST_S,
        model="Counting" if cell.kill_s else "Emulated",
        fixed_s=worker.fixed_s,
        growth=worker.growth,
        max_rows=ROWS_MAX,
        batch=BATCH[cell.policy],
    )
    if cell.kill_s:
        text += "    stateful: {backups: 1}\n"
    file = folder / "graph.yaml"
    file.write_text(text)
    return file


async def serve(cell: Cell, trace: Trace, supervisor: Supervisor) -> Seen:
    """Send every request when it is due, whatever becomes of those before; kill on the way."""
    pool = Pool(supervisor.url, REQUEST_S + 5.0)
    seen = Seen([False] * len(trace.arrivals))
    begin = time.monotonic() + 0.5
    asked: list[asyncio.Task[None]] = []
    killing = asyncio.create_task(_kill_again(cell, begin, supervisor, seen)) if cell.kill_s else None
    try:
        for number, at in enumerate(trace.arrivals):
            await asyncio.sleep(max(begin + at - time.monotonic(), 0.0))
            asked.append(asyncio.create_task(_ask(pool, cell, trace, number, begin + at, seen)))
        await asyncio.gather(*asked)
        if killing is not None:
            await killing
    finally:
        for task in (*asked, *([killing] if killing is not None else [])):
            task.cancel()
        pool.close()
    return seen


async def _ask(pool: Pool, cell: Cell, trace: Trace, number: int, due_from: float, seen: Seen) -> None:
    """One request, with the time that it has left."""
    tensor = {"name": "alone", "datatype": "FP64", "shape": [1], "data": [trace.alone[number]]}
    body = json.dumps({"inputs": [tensor], "parameters": {"app": str(trace.apps[number])}}).encode()
    lag_s = time.monotonic() - due_from
    seen.lags_s.append(lag_s)
    headers = {
        "content-type": "application/json",
        "hams-deadline-ms": f"{max(1000.0 * (cell.slo_s - lag_s), 1.0):.3f}",
        "idempotency-key": f"live-{number}",
    }
    try:
        response = await pool.post(f"/v2/models/{NAME}/infer", headers, body)
    except NoResponse as error:
        seen.failed.append(f"request {number}: {error}")
        return
    seen.waited_s[number] = time.monotonic() - due_from
    if response.status == 200:
        seen.on_time[number] = seen.waited_s[number] <= cell.slo_s
    elif response.status != 504:
        seen.failed.append(f"request {number}: {response.status} {response.body[:200]!r}")


async def _kill_again(cell: Cell, begin: float, supervisor: Supervisor, seen: Seen) -> None:
    """Kill the primary every `kill_s` after the warm-up, while a whole window is left; never one without a
    backup."""
    at = WARM_UP_S + cell.kill_s
    while at + AFTER_S <= WARM_UP_S + cell.seconds:
        await asyncio.sleep(max(begin + at - time.monotonic(), 0.0))
        await redundant(supervisor)
        now_s = time.monotonic() - begin
        if now_s + AFTER_S > WARM_UP_S + cell.seconds:
            return
        primary = next(item for item in (await supervisor.view()).instances if item.role == "primary")
        for pid in (primary.model_pid, primary.proxy_pid):
            if pid:
                with suppress(ProcessLookupError):  # a proxy ends by itself once its model has gone
                    os.kill(pid, signal.SIGKILL)
        seen.kills.append(time.monotonic() - begin)
        at = max(at + cell.kill_s, now_s + cell.kill_s)
