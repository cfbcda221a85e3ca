"""Where an instance can be reached: `tcp:host:port`, or `unix:/path` for instances on one machine.

An IPv6 host stands in brackets. Port 0 in an address to listen at means any free port.
"""

import ipaddress
from typing import NamedTuple


class Tcp(NamedTuple):
    """A TCP endpoint."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp:{host}:{self.port}"


class Unix(NamedTuple):
    """A Unix socket."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


Address = Tcp | Unix


def parse(text: str) -> Address:
    """An address. Raises ValueError."""
    scheme, _, rest = text.partition(":")
    if scheme == "unix" and rest:
        return Unix(rest)
    if scheme == "tcp":
        host, _, port = rest.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        if host and port.isascii() and port.isdigit() and int(port) < 65536:
            return Tcp(host, int(port))
    raise ValueError(f"expected an address like tcp:host:port or unix:/path, found {text!r}")


def is_at(text: str, source: str | None) -> bool:
    """Whether an address lies on the host `source`, an IP address; None: this host. A name is not looked up,
    so it lies nowhere."""
    try:
        address = parse(text)
        here = source is None or ipaddress.ip_address(source).is_loopback
        if isinstance(address, Unix):
            return here
        address_there = ipaddress.ip_address(address.host)
    except ValueError:
        return False
    return address_there.is_loopback if here else address_there == ipaddress.ip_address(source or "")
