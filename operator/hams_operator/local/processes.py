"""Processes of the local runtime: how one is started that ends with this one, whether one lives, which one it
is."""

import asyncio
import os
import select
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from hams_operator.local.parent_death_signal import ending_with_parent, environment_with


async def start(
    command: Sequence[str], folder: Path, output: Path, environment: Mapping[str, str]
) -> asyncio.subprocess.Process:
    """A process in `folder` that ends with this one and writes to the end of `output`; `environment` is for
    it alone. Raises OSError."""
    with output.open("ab") as stream:
        return await asyncio.create_subprocess_exec(
            *ending_with_parent(*command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=environment_with(environment),
            cwd=folder,
            start_new_session=True,
        )


def birth_of(pid: int) -> int:
    """When a living process was started, in ticks since the machine was; with its pid this names it for ever.
    0: there is none, or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in ("Z", "X") else int(fields[19])


def alive(pid: int, birth: int = 0) -> bool:
    """Whether a process with this pid exists and is no zombie; with `birth`, whether it is that very one."""
    born = birth_of(pid)
    return born != 0 and birth in (0, born)


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal; False if there is no such process (any more). A pid of 0 is none."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def wait_end(pid: int, timeout_s: float) -> bool:
    """Wait until a process, any, has ended; False if it has not within `timeout_s`."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], timeout_s)[0])
    finally:
        os.close(handle)
