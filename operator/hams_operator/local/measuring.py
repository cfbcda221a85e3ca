"""The processes by which `hams profile --run` measures: a model of its own for each operator, and the process
that speaks to them (`hams_sidecar.measuring`). Nothing of a graph that runs is touched; all of them end with
this one.
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from hams_operator.local.instances import failure_bytes_max, failure_line_chars_max
from hams_operator.local.logfiles import last_lines, shortened
from hams_operator.local.processes import start
from hams_protocol.graph import Graph, Operator
from hams_wire.measuring import (
    MeasuredTimes,
    MeasuringTask,
    decode_measured,
    encode_task,
    needed,
    operator_s_max,
)
from hams_wire.spec import encode_spec

start_s = 120.0
"""Models have this long to be ready, beside what the measuring of each operator may take."""

end_s = 5.0
"""A process that was asked to end is killed after this long."""

Process = asyncio.subprocess.Process


class NotMeasured(Exception):
    """Nothing was measured; the text says which process failed and how."""


async def measure(graph: Graph, beside: Path, task: MeasuringTask) -> tuple[MeasuredTimes, ...]:
    """The times of a task's operators; the code of their models lies in `beside`. Raises NotMeasured."""
    with tempfile.TemporaryDirectory(prefix="hams-", dir="/dev/shm") as name:
        folder = Path(name)
        (folder / "graph").write_bytes(encode_spec(graph))
        (folder / "task").write_bytes(encode_task(task))
        started: dict[str, Process] = {}
        try:
            for operator in needed(graph, task.operators):
                started[operator.name] = await _start_model(operator, beside, folder)
            started[""] = await _start_measuring(folder)
            await _until_done(started, folder, len(task.operators))
            return decode_measured((folder / "out").read_bytes())
        except OSError as error:
            raise NotMeasured(f"{error.filename or 'a process'}: {error.strerror or error}") from None
        finally:
            await asyncio.gather(*map(_end, started.values()))


async def _start_model(operator: Operator, beside: Path, folder: Path) -> Process:
    """As a local run starts it, `beside` the graph file, and with a log of its own. Raises OSError."""
    model = operator.model
    program = [model.python] if model.python else [sys.executable, "-P"]
    arguments = [model.entrypoint, "--socket", str(folder / f"{operator.name}.sock"), "--path", str(beside)]
    environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), **dict(model.env)}
    log = folder / f"{operator.name}.log"
    return await start([*program, "-m", "hams_sdk", "serve", *arguments], beside, log, environment)


async def _start_measuring(folder: Path) -> Process:
    """Raises OSError."""
    files = ("--graph", "graph", "--task", "task", "--folder", str(folder), "--out", "out")
    command = [sys.executable, "-m", "hams_sidecar.measuring", *files]
    return await start(command, folder, folder / ".log", {})


async def _until_done(started: dict[str, Process], folder: Path, operators: int) -> None:
    """Wait for the measuring process. A model that fails ends everything, but what the measuring process says
    of that comes first. Raises NotMeasured."""
    measuring = asyncio.ensure_future(started[""].wait())
    ends = {asyncio.ensure_future(process.wait()): name for name, process in started.items() if name}
    waits_s = start_s + operators * 2 * operator_s_max
    try:
        while not measuring.done():
            done, _ = await asyncio.wait(
                {measuring, *ends}, timeout=waits_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                failed = [name for name, process in started.items() if process.returncode]
                raise NotMeasured(
                    _ended(failed[0], started, folder) if failed else f"not done within {waits_s:g} s"
                )
            if any(end.result() for end in done if end is not measuring):
                waits_s = end_s
            for end in done:
                ends.pop(end, None)
    finally:
        for end in (measuring, *ends):
            end.cancel()
    if measuring.result() != 0:
        raise NotMeasured(_last_line(folder / ".log"))


def _ended(name: str, started: dict[str, Process], folder: Path) -> str:
    status, line = started[name].returncode, _last_line(folder / f"{name}.log")
    return f"the model of {name} ended with status {status}: {line}"


def _last_line(log: Path) -> str:
    lines = last_lines(log, 1, failure_bytes_max)
    return shortened(lines[-1], failure_line_chars_max) if lines else "it said nothing"


async def _end(process: Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), end_s)
    except TimeoutError:
        process.kill()
        await process.wait()
