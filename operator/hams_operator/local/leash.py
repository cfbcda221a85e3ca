"""Processes that end with the one that started them: a flag of Linux, which a process sets for itself and which survives an exec.

`leashed` puts a program behind this file, which sets the flag and becomes the program. A function between fork and exec (`preexec_fn`) would
do without, but makes Python fork: in a process with threads that is no place for code, and gRPC's handlers for forks have aborted a child there.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Mapping

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_NOT_FOUND = 127
"""How a shell ends that cannot start what it was asked to."""


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process as soon as its parent ends; at once if it has ended already. Survives an exec."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def leashed(program: str, *arguments: str, environment: Mapping[str, str] | None = None) -> list[str]:
    """The words that start `program`, found as the shell does, as a process that ends with this one. The pid stays what it was.

    `environment` adds to the program's: given here it does not reach the interpreter in front, whose libraries may be others.
    """
    added = [f"{name}={value}" for name, value in (environment or {}).items()]
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *added, "--", program, *arguments]


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    split = sys.argv.index("--")
    words = sys.argv[split + 1 :]
    for word in sys.argv[2:split]:
        name, _, value = word.partition("=")
        os.environ[name] = value
    try:
        os.execvp(words[0], words)
    except OSError as error:
        sys.stderr.write(f"{words[0]}: {error.strerror}\n")
        sys.exit(_NOT_FOUND)
