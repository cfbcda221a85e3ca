"""What CPU and memory this machine has for a graph: its own, the limits of the control groups that we run in,
and how late a process is that wants to run now.

A graph with far too little of it is slow, and the person who starts it should know why.
`recovery.suspectAfter` is raised by what is measured here: on a machine where everybody is late by a quarter
of a second, silence of 150 ms says nothing.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from hams_protocol.graph import Graph
from hams_protocol.wholeness import instances_wanted

processes_per_core_max = 20
"""A graph with more processes than this for each core is told to be too large for its machine."""

run_processes_more = 4
"""Processes of a local run beside those of its graph: the supervisor, etcd, and two from which the others are
forked."""

delay_samples = 40
"""Short sleeps by which the delay of the machine is measured before a graph is started."""

delay_sleep_s = 0.005
"""Length of one."""

delay_work = 100_000
"""Numbers that are added up before each: a few milliseconds of work."""

suspect_after_per_delay = 4.0
"""`suspectAfter` is at least this many times the worst delay measured."""

suspect_after_raised_max_s = 3.0
"""`suspectAfter` is raised to this at most: a machine that is busy now need not be so for ever."""


GROUPS = Path("/sys/fs/cgroup")


def cores(proc: Path = Path("/proc/self/cgroup"), groups: Path = GROUPS) -> float:
    """Cores that a process started here may use: those it may run on, or less by the CPU quota of a control
    group above it."""
    available = float(len(os.sched_getaffinity(0)))
    folders = _folders("cpu", proc, groups)
    return min([available, *(quota for folder in folders for quota in _quota(folder))])


def memory_available(
    proc: Path = Path("/proc/self/cgroup"), groups: Path = GROUPS, machine: Path = Path("/proc/meminfo")
) -> int:
    """Bytes that a process started here may still take: what the machine has left, or less by the limit of a
    control group above it."""
    lines = machine.read_text().splitlines()
    left = 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    folders = _folders("memory", proc, groups)
    return min([left, *(bytes_left for folder in folders for bytes_left in _memory_left(folder))])


def _folders(controller: str, proc: Path, groups: Path) -> Iterator[Path]:
    """Of the control group of this process and of all above it, cgroup v1 and v2."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = groups / controller if controllers else groups
        here = root / path.lstrip("/")
        yield from (folder for folder in (here, *here.parents) if folder.is_relative_to(root))


def _quota(folder: Path) -> Iterator[float]:
    try:
        if (folder / "cpu.max").is_file():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
    except (OSError, ValueError):
        return
    if quota != "max" and int(quota) > 0:
        yield int(quota) / int(period)


def _memory_left(folder: Path) -> Iterator[int]:
    """Bytes below the limit of a group. Files that were read count as used, and go when memory is wanted."""
    names, before = ("memory.max", "memory.current"), ""
    if not (folder / names[0]).is_file():
        names, before = ("memory.limit_in_bytes", "memory.usage_in_bytes"), "total_"
    try:
        limit, used = ((folder / name).read_text().strip() for name in names)
    except OSError:
        return
    if limit != "max":
        files = _numbers(folder / "memory.stat", (f"{before}inactive_file", f"{before}active_file"))
        yield max(int(limit) - max(int(used) - sum(files), 0), 0)


def _numbers(file: Path, names: tuple[str, ...]) -> list[int]:
    """Those with these names in a file of names and numbers, as far as it can be read."""
    try:
        pairs = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return []
    return [int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] in names]


def processes_of(graph: Graph) -> int:
    """Processes of a local run: a proxy and a model per instance, frontends, managers, etcd, the supervisor
    and what it forks from."""
    instances = sum(instances_wanted(op) for op in graph.data.operators)
    return 2 * instances + graph.data.frontend.replicas + graph.data.managers + run_processes_more


def too_few_cores(graph: Graph, available: float) -> str | None:
    """The warning for a person who starts a graph on far too few cores."""
    processes = processes_of(graph)
    if processes <= available * processes_per_core_max:
        return None
    return (
        f"{graph.data.name} is {processes} processes, and there {'is' if available == 1 else 'are'} "
        f"{available:.3g} "
        f"core{'' if available == 1 else 's'} for them, which is far too little: it will be slow, and may "
        "stand still for seconds"
    )


def worst_delay_s() -> float:
    """How late a process of this machine is now that wants to run, at worst: seen in a fraction of a second,
    before anything is started.

    It works a little, too: a quota shows only to who spends it.
    """
    worst = 0.0
    for _ in range(delay_samples):
        began = time.monotonic()
        sum(range(delay_work))
        time.sleep(delay_sleep_s)
        worst = max(worst, time.monotonic() - began - delay_sleep_s)
    return worst


def raised(suspect_after_s: float, delay_s: float) -> float:
    """`suspectAfter` for a machine where processes are late by so much: never less than the graph asks for,
    and not raised without end."""
    wanted = min(suspect_after_per_delay * delay_s, suspect_after_raised_max_s)
    return max(suspect_after_s, wanted)
