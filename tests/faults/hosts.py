"""Hosts of their own for a graph's operators: one network namespace each, on one bridge, so that a host can
be cut off without a word.

What stays in the test's own namespace: frontends and managers (at `HERE`), and etcd (at `ETCD`, an address of
its own). A cut loses packets and tells nobody: no reset, no refusal, as when a cable is pulled. One direction
is cut by a neighbour entry that leads nowhere.

Needs CAP_NET_ADMIN and CAP_SYS_ADMIN; tests that need hosts are skipped without, and the table of faults says
so.
"""

import ctypes
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

BRIDGE = "02:00:00:00:00:01"
NOWHERE = "02:00:00:00:00:fe"
CLONE_NEWNET = 0x40000000


def available() -> bool:
    """Whether this process may make hosts."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"hams{os.getpid()}probe"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return made


def _ip(*arguments: str, inside: str = "") -> None:
    where = ["-n", inside] if inside else []
    subprocess.run(["ip", *where, *arguments], check=True, capture_output=True)


class Hosts:
    """A bridge, and a namespace per instance. Addresses are 10.77.x.y, x by process."""

    def __init__(self) -> None:
        self._net = f"10.{77 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
        self._bridge = f"hams{os.getpid() % 100000}"
        self._numbers = itertools.count(3)
        self._hosts: dict[str, tuple[str, str, str]] = {}
        self.here = f"{self._net}.1"
        self.etcd = f"{self._net}.2"

    def start(self) -> None:
        """Make the bridge. Its address is given, for else it would be the lowest of its ports': it would
        change as hosts come, and nobody be told."""
        _ip("link", "add", self._bridge, "address", BRIDGE, "type", "bridge")
        _ip("addr", "add", f"{self.here}/24", "dev", self._bridge)
        _ip("addr", "add", f"{self.etcd}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")

    def stop(self) -> None:
        """Remove everything."""
        for namespace, link, _ in self._hosts.values():
            _ip("link", "del", link)
            _ip("netns", "del", namespace)
        _ip("link", "del", self._bridge)

    def add(self, name: str) -> tuple[str, str]:
        """A host for one instance: the path of its namespace, and its address."""
        number = next(self._numbers)
        namespace, link = f"{self._bridge}n{number}", f"{self._bridge}v{number}"
        address = f"{self._net}.{number}"
        _ip("netns", "add", namespace)
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _ip("link", "set", link, "master", self._bridge, "up")
        _ip("addr", "add", f"{address}/24", "dev", "eth0", inside=namespace)
        _ip("link", "set", "eth0", "up", inside=namespace)
        _ip("link", "set", "lo", "up", inside=namespace)
        self._hosts[name] = (namespace, link, address)
        return f"/var/run/netns/{namespace}", address

    # -- cuts ------------------------------------------------------------------------------------------------

    def isolate(self, name: str) -> None:
        """Pull the cable of one host."""
        _ip("link", "set", self._hosts[name][1], "down")

    def rejoin(self, name: str) -> None:
        """Put it back."""
        _ip("link", "set", self._hosts[name][1], "up")

    def cut(self, source: str, target: str) -> None:
        """Lose what `source` sends to `target`: names of hosts, "here" or "etcd" (only as a target)."""
        self._neighbour("replace", source, target)

    def heal(self, source: str, target: str) -> None:
        """Let it pass again."""
        self._neighbour("del", source, target)

    def _neighbour(self, verb: str, source: str, target: str) -> None:
        inside, device = ("", self._bridge) if source == "here" else (self._hosts[source][0], "eth0")
        address = {"here": self.here, "etcd": self.etcd}.get(target) or self._hosts[target][2]
        if verb == "del":
            _ip("neigh", "del", address, "dev", device, inside=inside)
        else:
            _ip(
                "neigh",
                "replace",
                address,
                "lladdr",
                NOWHERE,
                "dev",
                device,
                "nud",
                "permanent",
                inside=inside,
            )

    @contextmanager
    def cuts(self, *pairs: tuple[str, str]) -> Iterator[None]:
        """These directions, cut for a while."""
        for pair in pairs:
            self.cut(*pair)
        try:
            yield
        finally:
            for pair in pairs:
                self.heal(*pair)


def enter(path: str) -> None:
    """Move this process to a host. For `tests.faults.inside`."""
    descriptor = os.open(path, os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"cannot enter {path}")
    os.close(descriptor)
