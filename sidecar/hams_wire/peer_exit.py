"""Whether the process at the other end of a Unix socket is ending: what the kernel says, before it has closed
everything.

A process that was killed first gives its memory back (tens of milliseconds for a large state), then closes
its files one after another, so its listening socket may outlive a broken connection by a while. But it has
been marked as exiting from the first moment, and nothing takes that mark away: it never runs again.

Never: true of a process that may run again. Unknown counts as living: the next attempt to connect tells.
"""

import asyncio
import os
import socket
import struct

PF_EXITING = 0x4
"""Flag of a task that has begun to exit (include/linux/sched.h); the ninth field of /proc/PID/stat
(proc_pid_stat(5))."""

_CREDENTIALS = struct.Struct("3i")


def peer_pid(transport: asyncio.BaseTransport) -> int:
    """Process at the other end of a connected Unix socket; 0 if it is not one, or a process outside of this
    pid namespace."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family != socket.AF_UNIX:
        return 0
    pid, _, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return int(pid)


def is_ending(pid: int) -> bool:
    """Whether this process has begun to exit, is a zombie, or is gone. False where that cannot be seen."""
    if pid <= 0:
        return False
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return _is_gone(pid)
    except OSError:
        return False
    return fields[0] in (b"Z", b"X") or bool(int(fields[6]) & PF_EXITING)


def _is_gone(pid: int) -> bool:
    """/proc may hide processes of others (hidepid), a signal does not lie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
