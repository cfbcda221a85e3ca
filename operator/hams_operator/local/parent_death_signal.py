"""Processes that end with the one that started them: a flag of Linux, which a process sets for itself and
which survives an exec.

`ending_with_parent` puts a program behind this file, which sets the flag and becomes the program. A function
between fork and exec (`preexec_fn`) would do without, but makes Python fork: in a process with threads that
is no place for code, and gRPC's handlers for forks have aborted a child there.
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
_INERT = "HAMS_DEFERRED_"
"""What the names of variables begin with that are for the program alone."""


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """The signal `number` for this process as soon as its parent ends; at once if it has ended already.
    Survives an exec.

    To the kernel the parent is the thread that started this process: let it be one that lasts as long as its
    process does.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def ending_with_parent(program: str, *arguments: str) -> list[str]:
    """The words that start `program`, found as the shell does, as a process that ends with this one. The pid
    stays what it was."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), "--", program, *arguments]


def environment_with(added: Mapping[str, str]) -> dict[str, str]:
    """The environment for what `ending_with_parent` gives: this process's, and `added` for the program alone.

    Under other names until then: the interpreter in front, whose libraries may be others, does not know them.
    They are not among its words, which every user of the machine can read.
    """
    ours = {name: value for name, value in os.environ.items() if not name.startswith(_INERT)}
    return ours | {_INERT + name: value for name, value in added.items()}


def _rename() -> None:
    for name in [name for name in os.environ if name.startswith(_INERT)]:
        os.environ[name.removeprefix(_INERT)] = os.environ.pop(name)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    command = sys.argv[3:]
    _rename()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.exit(_NOT_FOUND)
