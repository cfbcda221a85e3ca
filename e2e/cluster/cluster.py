"""A whole cluster: up, down, and what tests do to it.

`Cluster` is the one that this package makes; `choice` has those that stand in for it.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from e2e.cluster import baked, binaries, certificates, door, machine, network, node, settings
from e2e.cluster.commands import Argument, CommandFailed, NotInTime, entered, run, succeeds, until
from e2e.cluster.layout import CGROUP, NODES_MAX, SERVICE_NETWORK, Folders, node_name
from e2e.cluster.machine import NotPossible

PAUSE = "pause.tar"
"""The image that every pod begins with; images/build.py writes it like all others."""
CONTROL = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
"""Programs of the control plane that ask the API server, it first."""
HEARD_S = 90.0
"""For nodes to be heard of again, when the API server is back."""


class Cluster:
    """One cluster, found again by its folders: another process may have made it. `recorded`: histories of all
    nodes lie on this machine's disk."""

    recorded = True

    def __init__(self, folders: Folders | None = None, say: Callable[[str], None] = print) -> None:
        self.folders = folders or Folders.default()
        self._say = say

    # -- life ------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Debian packages and binaries, if they are not there. Raises NotPossible, CommandFailed."""
        machine.prepare()
        binaries.build(self.folders.bin)

    def up(self, nodes: int, archives: Sequence[Path]) -> None:
        """Start with these images in every node; returns when all nodes are Ready. Raises NotPossible,
        NotInTime, CommandFailed."""
        if not 1 <= nodes <= NODES_MAX:
            raise NotPossible(f"a cluster has 1 to {NODES_MAX} nodes; asked for {nodes}")
        if self.running():
            raise NotPossible(f"a cluster is up in {self.folders.state}; take it down first")
        with self._alone():
            self._up(nodes, archives)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One cluster begins at a time: addresses and cache are the machine's."""
        self.folders.cache.mkdir(parents=True, exist_ok=True)
        with (self.folders.cache / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise NotPossible(f"another run is starting a cluster in {self.folders.state}") from None
            yield

    def _up(self, nodes: int, archives: Sequence[Path]) -> None:
        began = time.monotonic()

        def mark(what: str) -> None:
            self._say(f"{time.monotonic() - began:6.2f} s  {what}")

        self.down()
        folders = self.folders
        folders.history.mkdir(parents=True)
        folders.history.chmod(0o1777)  # for pods of any user
        authority = certificates.make_control_plane(folders.pki, folders.state)
        settings.write_control_plane(folders)
        folders.started_with.write_text(json.dumps(baked.contents(archives)))
        for number in range(nodes):
            settings.write_node(folders, authority, number)
        mark("certificates and settings")
        linked = baked.fits(folders.cache, folders.state)
        if linked:
            root = baked.bake(folders.cache / "baked", archives)
            for number in range(nodes):
                baked.use(root, folders.node(number) / "lib/containerd")
            mark("images")
        for number in range(nodes):
            self._boot(number)
        mark("nodes booted")
        if not linked:
            self.load(archives)
            mark("images")
        self.wait_for_api()
        mark("API server ready")
        self.kubectl("apply", "-f", "-", stdin=settings.DNS_OBJECTS)
        (folders.state / "dns-objects").touch()
        names = [node_name(number) for number in range(nodes)]
        until(lambda: self.kubectl_succeeds("get", "node", *names), 60, "nodes registered", 0.1)
        self.kubectl("wait", "--for=condition=Ready", "--timeout=60s", "node", *names)
        mark(f"{nodes} nodes Ready")
        until(
            lambda: self.kubectl_succeeds("get", "serviceaccount", "default"),
            30,
            "default service account",
            0.1,
        )
        mark("default service account")

    def down(self) -> None:
        """Nothing is left but the cache. Harmless when nothing is up, or half of it."""
        if not self.folders.state.exists():
            return
        door.stop(self.folders)
        for number in self.folders.nodes():
            node.kill(self.folders, number)
            network.remove_cgroups(f"{CGROUP}/{node_name(number)}")
        network.remove_cgroups(CGROUP)
        shutil.rmtree(self.folders.state)

    def running(self) -> list[int]:
        """The nodes that run."""
        return [number for number in self.folders.nodes() if node.node_pid(self.folders, number) is not None]

    def outdated(self, archives: Sequence[Path]) -> list[str]:
        """Names of archives that are not what the cluster that runs was started with: its pods would be of
        other code."""
        file = self.folders.started_with
        known = json.loads(file.read_text()) if file.exists() else {}
        return [name for name, content in baked.contents(archives).items() if known.get(name) != content]

    def _boot(self, number: int) -> None:
        ready = self.folders.node(number) / "net-ready"
        ready.unlink(missing_ok=True)
        network.make_cgroups(number)
        pid = node.start(self.folders, number)
        until(ready.exists, 10, f"network of node {number}")
        if number:
            network.attach(self.folders, number)
            return
        # Services need some route in node 0 as well
        run(*entered(pid, ["-n"], "ip", "route", "add", SERVICE_NETWORK, "dev", "nodes"))
        for other in self.running():
            if other:
                network.attach(self.folders, other)
        door.start(self.folders)

    # -- use -------------------------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """For programs that talk to the cluster: KUBECONFIG, and kubectl on PATH."""
        return {
            **os.environ,
            "KUBECONFIG": str(self.folders.kubeconfig),
            "PATH": f"{self.folders.bin}:{os.environ.get('PATH', '')}",
        }

    def kubectl(self, *words: Argument, stdin: str = "") -> str:
        """What kubectl printed. Raises CommandFailed."""
        return run(self.folders.bin / "kubectl", *words, stdin=stdin.encode(), env=self.environment())

    def kubectl_succeeds(self, *words: Argument) -> bool:
        """Whether kubectl ends with 0."""
        return succeeds(self.folders.bin / "kubectl", *words, env=self.environment())

    def load(self, archives: Sequence[Path]) -> None:
        """Import images into every running node."""
        with ThreadPoolExecutor(NODES_MAX) as pool:
            list(pool.map(lambda number: self._load(number, archives), self.running()))

    def _load(self, number: int, archives: Sequence[Path]) -> None:
        pid = node.node_pid(self.folders, number)
        assert pid is not None, f"node {number} runs"
        until(lambda: succeeds(*entered(pid, ["-m"], "ctr", "version")), 20, f"containerd of node {number}")
        for archive in archives:
            run(*entered(pid, ["-m"], "ctr", "-n", "k8s.io", "images", "import", archive))

    def command_in(self, number: int, *words: Argument) -> list[str]:
        """The command line that runs a program in a node's network: from there pods and Services are
        reached."""
        pid = node.node_pid(self.folders, number)
        if pid is None:
            raise NotPossible(f"node {number} does not run")
        return entered(pid, ["-n"], *words)

    # -- faults ----------------------------------------------------------------------------------------------

    def stop(self, number: int, component: str = "") -> None:
        """SIGKILL a node, or one of its programs, which then stays down."""
        if not component:
            if number == 0:
                door.stop(self.folders)
            node.kill(self.folders, number)
            network.remove_cgroups(f"{CGROUP}/{node_name(number)}")
            return
        (self.folders.node(number) / "stop" / component).touch()
        pid = node.component_pid(self.folders, number, component)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)

    def start(self, number: int, component: str = "") -> None:
        """Start what `stop` stopped: for a node this is a reboot, /var/lib stays."""
        if component:
            (self.folders.node(number) / "stop" / component).unlink(missing_ok=True)
        else:
            self._boot(number)

    def kill_pods(self, *uids: str) -> None:
        """SIGKILL every process of these pods at once, behind the kubelet's back: no signal to leave, no word
        to the API server."""
        for pid in [pid for uid in uids for pid in network.container_processes(uid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @contextlib.contextmanager
    def deaf(self, uid: str, address: str) -> Iterator[None]:
        """A pod gets no packet of another pod. Both run on, and everybody else reaches both. Raises
        NotPossible if no process of it runs."""
        pid = next(iter(network.container_processes(uid)), None)
        if pid is None:
            raise NotPossible(f"no process of pod {uid} runs")
        network.deafen(pid, address, True)
        try:
            yield
        finally:
            network.deafen(pid, address, False)

    @contextlib.contextmanager
    def without_api(self) -> Iterator[None]:
        """The control plane is away, and back afterwards. Raises NotInTime when it is not.

        Its controllers go with the API server, as leaders end that cannot renew their Lease. They come back
        when the nodes have been heard of again. A kubelet tries every 7 s, and here a node is given up after
        10: controllers that run on would judge nodes by what they have not heard, and evict their pods.
        """
        nodes = {node_name(number) for number in self.running()}
        try:
            for component in reversed(CONTROL):
                self.stop(0, component)
            yield
            self.start(0, CONTROL[0])
            self.wait_for_api()
            self._wait_for_signs_of(nodes)
        finally:
            for component in CONTROL:
                self.start(0, component)
            with contextlib.suppress(NotInTime):  # of two failures the first one is told
                self.wait_for_api()

    def _wait_for_signs_of(self, nodes: set[str]) -> None:
        """Until each of these nodes has renewed its Lease. Raises NotInTime."""

        def known() -> dict[str, str]:
            return {name: at for name, at in self._renewed().items() if name in nodes}

        before = until(known, HEARD_S, "Leases of nodes", 0.2)
        until(
            lambda: known().keys() == nodes and not before.items() & known().items(),
            HEARD_S,
            "a sign of life from each node",
            0.2,
        )

    def _renewed(self) -> dict[str, str]:
        """When each node renewed its Lease last; {} when nobody says so just now."""
        columns = "custom-columns=NODE:.metadata.name,AT:.spec.renewTime"
        try:
            rows = self.kubectl("get", "leases", "-n", "kube-node-lease", "--no-headers", "-o", columns)
        except CommandFailed:
            return {}
        return dict(row.split() for row in rows.splitlines())

    def wait_for_api(self) -> None:
        """Until the API server answers. Raises NotInTime."""
        until(lambda: self.kubectl_succeeds("get", "--raw=/readyz"), 90, "API server", 0.1)

    def cut(self, number: int) -> None:
        """Cut a node off; everything in it runs on. Node 0 has no link of its own."""
        self._link(number, False)

    def heal(self, number: int) -> None:
        """Mend what `cut` cut."""
        self._link(number, True)

    def _link(self, number: int, up: bool) -> None:
        if number == 0:
            raise NotPossible(
                "node 0 holds the bridge and the control plane: it cannot be cut off; take another"
            )
        network.set_link(self.folders, number, up)


__all__ = ["Cluster", "CommandFailed", "NotPossible"]
