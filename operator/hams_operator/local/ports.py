"""Ports for a local run that nobody else is given meanwhile.

The kernel hands out ports of its ephemeral range to every outgoing connection and to every listener that asks for none in particular; a port
of that range that is free now may be taken a moment later. So ports are drawn from below it.
"""

import random
import socket
from contextlib import ExitStack
from pathlib import Path

from hams_operator import limits

HOST = "127.0.0.1"
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> tuple[int, ...]:
    """Different ports that are free on the loopback interface now. Raises OSError if none can be found."""
    top = _ephemeral_from()
    with ExitStack() as held:
        found: list[int] = []
        for _ in range(limits.port_tries_max):
            if len(found) == count:
                return tuple(found)
            port = random.randrange(limits.port_lowest, top)
            listener = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            try:
                listener.bind((HOST, port))
            except OSError:
                continue
            found.append(port)
    raise OSError(f"no {count} free ports between {limits.port_lowest} and {top} on {HOST}: {limits.port_tries_max} were tried")


def _ephemeral_from() -> int:
    """The first port of the kernel's ephemeral range, if there is room below it; else the end of all ports."""
    try:
        first = int(_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return limits.port_highest
    return first if first > 2 * limits.port_lowest else limits.port_highest
