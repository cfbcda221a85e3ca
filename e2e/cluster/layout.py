"""Addresses, names and folders of the cluster: constants and paths that all its other modules use. It creates
and changes nothing.

Addresses are from the benchmarking range 198.18.0.0/15, so that even a packet that leaked would go nowhere.
"""

import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(__file__).resolve().parent / "tools"

API_PORT = 6443
SERVICE_NETWORK = "198.19.0.0/16"
API_SERVICE = "198.19.0.1"
DNS_SERVICE = "198.19.0.10"
CGROUP = "hams-e2e"
"""/sys/fs/cgroup/CONTROLLER/hams-e2e/NODE. One cluster at a time on a machine: this name and the API port are
taken."""
NODES_MAX = 3
CPU_SHARES = 16384
"""Weight of all pods together where control groups are of version 1: by default they would weigh as much as
one process of the machine."""
HISTORY = "/var/lib/hams-history"
"""Where pods record histories: on every node the same folder of the machine, `Folders.history`. Readable for
any user, as no home folder is."""
PAUSE_IMAGE = "hams.local/pause:1"


def node_name(number: int) -> str:
    """The node's name, in Kubernetes and in folders."""
    return f"node{number}"


def node_address(number: int) -> str:
    """The node's own address on the bridge of node 0."""
    return f"198.18.0.{number + 1}"


def pod_network(number: int) -> str:
    """The network of the node's pods."""
    return f"198.18.{number + 1}.0/24"


def cache_folder() -> Path:
    """What is kept between clusters: binaries, images. HAMS_E2E_CACHE names another."""
    named = os.environ.get("HAMS_E2E_CACHE")
    return (
        Path(named)
        if named
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hams-e2e"
    )


def kubernetes_timers() -> bool:
    """Whether a lost node is noticed as late as on any other cluster: after 40 s, and its pods leave it 300 s
    later. HAMS_E2E_TIMERS=kubernetes asks for that, when the cluster is started."""
    return os.environ.get("HAMS_E2E_TIMERS") == "kubernetes"


@dataclass(frozen=True)
class Folders:
    """The folders of one cluster. `cache` is kept, `state` is gone after `down`; on one file system images
    are hard-linked, not imported."""

    cache: Path
    state: Path

    @classmethod
    def default(cls) -> "Folders":
        """In the cache folder."""
        cache = cache_folder().resolve()
        return cls(cache, cache / "state")

    @property
    def bin(self) -> Path:
        """Binaries, under their usual names."""
        return self.cache / "bin"

    @property
    def images(self) -> Path:
        """Image archives."""
        return self.cache / "images"

    @property
    def pki(self) -> Path:
        """Certificates and keys of this cluster."""
        return self.state / "pki"

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the administrator; the same address serves inside the nodes and outside."""
        return self.state / "admin.kubeconfig"

    @property
    def started_with(self) -> Path:
        """What was in the image archives when the cluster was started."""
        return self.state / "started-with.json"

    @property
    def history(self) -> Path:
        """What pods of all nodes record at HISTORY."""
        return self.state / "history"

    def node(self, number: int) -> Path:
        """A node's folder."""
        return self.state / node_name(number)

    def nodes(self) -> list[int]:
        """The nodes that this cluster has, running or stopped."""
        return [number for number in range(NODES_MAX) if self.node(number).is_dir()]
