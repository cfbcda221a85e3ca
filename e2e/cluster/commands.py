"""Running other programs, and waiting for what they bring about."""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
Argument = str | Path | int


class CommandFailed(RuntimeError):
    """A program ended with an error; the message holds its command line and the end of what it said."""


class NotInTime(RuntimeError):
    """What was waited for did not come."""


def run(
    *words: Argument, stdin: bytes | None = None, cwd: Path | None = None, env: dict[str, str] | None = None
) -> str:
    """What the program printed. Raises CommandFailed."""
    command = [str(argument) for argument in words]
    done = subprocess.run(command, input=stdin, capture_output=True, check=False, cwd=cwd, env=env)
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace")[-2000:]
        raise CommandFailed(f"{' '.join(command)}: exit code {done.returncode}\n{said}")
    return done.stdout.decode()


def succeeds(*words: Argument, env: dict[str, str] | None = None) -> bool:
    """Whether the program ends with 0. What it says is dropped."""
    command = [str(argument) for argument in words]
    return (
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            env=env,
        ).returncode
        == 0
    )


def until(outcome: Callable[[], T], limit_s: float, what: str, pause_s: float = 0.05) -> T:
    """The first true thing that `outcome` returns. Raises NotInTime. For what offers nothing to wait on:
    sockets of other programs, kernel objects."""
    end = time.monotonic() + limit_s
    while True:
        value = outcome()
        if value:
            return value
        if time.monotonic() > end:
            raise NotInTime(f"{what}: not within {limit_s:g} s")
        time.sleep(pause_s)


def entered(pid: int, namespaces: Sequence[str], *words: Argument) -> list[str]:
    """The command line that runs a program in namespaces of another process: `-n` network, `-m` mounts."""
    return ["nsenter", "-t", str(pid), *namespaces, "--", *map(str, words)]


def before_others(pid: int, nice: int) -> None:
    """Let the session of a process run before others on this machine, as if it had one of its own. `nice`: of
    its autogroup, where the kernel has those. A started process has to lead a session."""
    group = Path(f"/proc/{pid}/autogroup")
    if group.exists():
        group.write_text(f"{nice}\n")
    else:
        os.setpriority(os.PRIO_PROCESS, pid, nice)
