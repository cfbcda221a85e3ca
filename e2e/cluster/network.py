"""What lies between nodes: links to the bridge of node 0, routes, and the control groups that the machine's
kernel wants first."""

import os
import time
from pathlib import Path

from e2e.cluster.commands import entered, run, succeeds, until
from e2e.cluster.layout import (
    CGROUP,
    CPU_SHARES,
    SERVICE_NETWORK,
    Folders,
    node_address,
    node_name,
    pod_network,
)
from e2e.cluster.node import node_pid

CGROUP_TRIES_MAX = 50
CGROUP_PAUSE_S = 0.05


def attach(folders: Folders, number: int) -> None:
    """A link from node 0's bridge to the node, and routes to and from the pods of all others. The node and
    node 0 run."""
    first, own = node_pid(folders, 0), node_pid(folders, number)
    assert first is not None, "node 0 runs"
    assert own is not None, f"node {number} runs"
    # A dead node's network goes later than its processes, as long as something of its pods is left; our end
    # of the old link need not wait for that. Its name is free a moment after it is gone.
    succeeds(*entered(own, ["-n"], "ip", "link", "del", "eth0"))
    succeeds(*entered(first, ["-n"], "ip", "link", "del", f"n{number}"))
    until(
        lambda: not succeeds(*entered(first, ["-n"], "ip", "link", "show", f"n{number}")),
        10,
        f"end of the old link n{number}",
    )
    run(
        *entered(
            first,
            ["-n"],
            "ip",
            "link",
            "add",
            f"n{number}",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            own,
        )
    )
    run(*entered(first, ["-n"], "ip", "link", "set", f"n{number}", "master", "nodes", "up"))
    run(*entered(own, ["-n"], "ip", "addr", "add", f"{node_address(number)}/24", "dev", "eth0"))
    run(*entered(own, ["-n"], "ip", "link", "set", "eth0", "up"))
    # What the node itself sends to a Service needs some route before its address is translated.
    run(*entered(own, ["-n"], "ip", "route", "replace", SERVICE_NETWORK, "via", node_address(0)))
    for other in folders.nodes():
        pid = node_pid(folders, other)
        if other != number and pid is not None:
            run(
                *entered(
                    own, ["-n"], "ip", "route", "replace", pod_network(other), "via", node_address(other)
                )
            )
            run(
                *entered(
                    pid, ["-n"], "ip", "route", "replace", pod_network(number), "via", node_address(number)
                )
            )


def set_link(folders: Folders, number: int, up: bool) -> None:
    """Cut or mend the link of a node, as a broken cable would: nothing is reset, packets are lost."""
    first = node_pid(folders, 0)
    assert first is not None, "node 0 runs"
    run(*entered(first, ["-n"], "ip", "link", "set", f"n{number}", "up" if up else "down"))


def deafen(pid: int, address: str, deaf: bool) -> None:
    """Have the network of a process drop what comes from an address, or take it again. Raises
    CommandFailed."""
    run(
        *entered(
            pid,
            ["-n"],
            "iptables",
            "--wait",
            "--insert" if deaf else "--delete",
            "INPUT",
            "--source",
            address,
            "--jump",
            "DROP",
        )
    )


def hierarchies() -> list[Path]:
    """Where control groups are mounted: version 1 has several."""
    lines = Path("/proc/mounts").read_text().splitlines()
    return [Path(line.split()[1]) for line in lines if line.split()[2] in ("cgroup", "cgroup2")]


def make_cgroups(number: int) -> None:
    """The kubelet's root in every hierarchy: it makes none itself. A new cpuset of version 1 is empty and
    admits nobody."""
    for top in hierarchies():
        for part in (CGROUP, f"{CGROUP}/{node_name(number)}"):
            group = top / part
            group.mkdir(exist_ok=True)
            if part == CGROUP and (group / "cpu.shares").exists():
                (group / "cpu.shares").write_text(str(CPU_SHARES))
            if top.name == "cpuset":
                for name in ("cpuset.cpus", "cpuset.mems"):
                    if not (group / name).read_text().strip():
                        (group / name).write_text((group.parent / name).read_text())


def remove_cgroups(name: str) -> None:
    """A group and all below it, in every hierarchy. Their processes have ended; the kernel notices a moment
    later."""
    for top in hierarchies():
        for folder, _, _ in os.walk(top / name, topdown=False):
            for _ in range(CGROUP_TRIES_MAX):
                try:
                    os.rmdir(folder)
                    break
                except OSError:
                    time.sleep(CGROUP_PAUSE_S)


def container_processes(uid: str) -> list[int]:
    """The processes of a pod, by its uid, as seen from here: what a crash of a container kills."""
    top = next((path for path in hierarchies() if path.name in ("memory", "unified")), None)
    pids: list[int] = []
    for file in top.glob(f"{CGROUP}/node*/kubepods/**/pod{uid}/*/cgroup.procs") if top else ():
        try:
            pids += [int(pid) for pid in file.read_text().split()]
        except OSError:  # ended since
            continue
    return pids
