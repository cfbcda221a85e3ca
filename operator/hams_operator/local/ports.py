"""Ports for a local run: drawn where nobody else draws, and claimed for as long as the run lives.

The kernel hands out ports of its ephemeral range to every outgoing connection and to every listener that asks
for none in particular; a port of that range that is free now may be taken a moment later. So ports are drawn
from below it.

Frontends share their ports (SO_REUSEPORT), and start long after the ports were chosen; the kernel would let
another graph's frontends share them too. So the supervisor claims the ports first, and holds them until the
run has ended.
"""

import contextlib
import random
import socket
from contextlib import ExitStack
from pathlib import Path

port_lowest = 10_240
"""Ports of a local run are drawn from here up to the kernel's ephemeral range."""

port_highest = 65_536
"""One more than the last port there is."""

port_tries_max = 200
"""Ports tried before a run says that there is none."""


HOST = "127.0.0.1"
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> tuple[int, ...]:
    """Different ports that are free on the loopback interface now. Raises OSError if none can be found."""
    top = _ephemeral_from()
    with ExitStack() as held:
        ports: list[int] = []
        for _ in range(port_tries_max):
            if len(ports) == count:
                return tuple(ports)
            port = random.randrange(port_lowest, top)
            listener = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            try:
                listener.bind((HOST, port))
            except OSError:
                continue
            ports.append(port)
    raise OSError(
        f"no {count} free ports between {port_lowest} and {top} on {HOST}: {port_tries_max} were tried"
    )


def claim(port: int) -> socket.socket:
    """Claim a port on the loopback interface: until the socket is closed, nobody else gets it but sockets of
    this user that share it knowingly (SO_REUSEPORT). The socket takes no connection. Raises OSError if
    somebody has it.

    Nothing short of listening is exclusive, where connections of an earlier listener still fade out
    (TIME_WAIT). So it listens for a moment: of two who try at the same time one fails there. Then it listens
    no more, and stays bound.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((HOST, port))
        held.listen(0)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        held.shutdown(socket.SHUT_RDWR)
    except OSError:
        held.close()
        raise
    return held


def claim_free(count: int) -> list[socket.socket]:
    """Claim different ports that are free. Raises OSError if none can be found."""
    with ExitStack() as stack:
        sockets: list[socket.socket] = []
        for _ in range(port_tries_max):
            if len(sockets) == count:
                stack.pop_all()
                return sockets
            with contextlib.suppress(OSError):
                sockets.append(stack.enter_context(claim(random.randrange(port_lowest, _ephemeral_from()))))
    raise OSError(f"no {count} free ports on {HOST}: {port_tries_max} were tried")


def _ephemeral_from() -> int:
    """The first port of the kernel's ephemeral range, if there is room below it; else the end of all
    ports."""
    try:
        first = int(_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return port_highest
    return first if first > 2 * port_lowest else port_highest
