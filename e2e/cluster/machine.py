"""What the machine has to give: Debian packages, which are installed if that is possible, Go, and the
kernel's leave to make nodes.

Nothing is removed, and nothing that is there already is replaced: a container runtime that somebody else
brought serves as well.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from e2e.cluster.commands import run, succeeds
from e2e.cluster.layout import CGROUP, cache_folder

PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "debootstrap": "debootstrap",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "sysctl": "procps",
    "modprobe": "kmod",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "openssl": "openssl",
    "gcc": "gcc libc6-dev",
    "tar": "tar",
}
"""Each program, or file, and the Debian packages that bring it."""
GO_MIN = (1, 24)
IMPOSSIBLE = 3
"""The exit code of programs that were asked for what this machine cannot do."""
NODE = (
    "mount -t proc proc /proc && mount -t tmpfs tmpfs /mnt && ip link set lo up && ip link add probe type "
    "bridge && iptables -t nat -L -n"
)
"""What a node does first, in namespaces of its own."""


class NotPossible(RuntimeError):
    """What was asked cannot be done on this machine, or in this state of the cluster; says what is
    missing."""


def _path() -> str:
    """Administrators' folders are not on everybody's PATH."""
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def missing() -> list[str]:
    """The Debian packages whose programs are not here."""
    absent = (
        name
        for name in PACKAGES
        if not (Path(name).exists() if name.startswith("/") else shutil.which(name, path=_path()))
    )
    return list(dict.fromkeys(" ".join(PACKAGES[name] for name in absent).split()))


def install() -> None:
    """Bring the packages that are missing, where that is possible. Raises NotPossible with the command
    otherwise."""
    wanted = missing()
    if not wanted:
        return
    command = f"apt-get install --no-install-recommends {' '.join(wanted)}"
    if shutil.which("apt-get") is None:
        raise NotPossible(f"not installed here: what Debian calls {', '.join(wanted)}")
    if os.geteuid() != 0:
        raise NotPossible(f"not installed here; as root: {command}")
    print(f"cluster: installing from Debian: {' '.join(wanted)}", file=sys.stderr, flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # --no-remove: another container runtime is never taken away for this one.
    words = ["apt-get", "install", "--yes", "--quiet", "--no-remove", "--no-install-recommends", *wanted]
    # lists of packages may be old, or not be there
    for attempt in (words, ["apt-get", "update", "--quiet"], words):
        done = subprocess.run(
            attempt, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode == 0 and attempt is words:
            break
    else:
        raise NotPossible(f"{command}: exit code {done.returncode}\n{(done.stderr or done.stdout)[-1000:]}")
    if still := missing():
        raise NotPossible(f"installed, and still not here: {', '.join(still)}")


def check_go() -> None:
    """Raises NotPossible without a Go that builds Kubernetes."""
    needed = ".".join(str(part) for part in GO_MIN)
    if shutil.which("go") is None:
        raise NotPossible(
            f"Kubernetes is built from its sources here: install Go {needed} or newer, https://go.dev/dl"
        )
    said = run("go", "env", "GOVERSION").strip()
    match = re.match(r"go(\d+)\.(\d+)", said)
    if match is None or (int(match[1]), int(match[2])) < GO_MIN:
        raise NotPossible(
            f"Kubernetes is built from its sources here: Go {needed} or newer is needed, found "
            f"{said or 'no version'}"
        )


def check_kernel() -> None:
    """Raises NotPossible where nodes cannot be made: not root, no namespaces, no control groups, no overlays.
    Needs the packages."""
    if os.geteuid() != 0:
        raise NotPossible(
            "nodes are made of namespaces and control groups: run as root, or set CLUSTER=kind or "
            "CLUSTER=existing"
        )
    words = ["unshare", "-m", "-n", "-p", "-u", "-i", "-f", "sh", "-ec", NODE]
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": _path()},
    )
    if done.returncode:
        raise NotPossible(f"a node cannot be made here: {done.stderr.strip()[-300:]}")
    lines = Path("/proc/mounts").read_text().splitlines()
    groups = [Path(line.split()[1]) for line in lines if line.split()[2] in ("cgroup", "cgroup2")]
    if not groups:
        raise NotPossible("no control groups are mounted here")
    for top in groups:
        probe = top / f"{CGROUP}-probe"
        try:
            probe.mkdir()
            probe.rmdir()
        except OSError as error:
            raise NotPossible(f"no control groups can be made here: {error}") from None
    _check_overlay(cache_folder() / "probe")


def _check_overlay(folder: Path) -> None:
    for name in ("lower", "upper", "work", "root"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
    try:
        if not succeeds("unshare", "-m", "mount", "-t", "overlay", "overlay", "-o", options, folder / "root"):
            raise NotPossible(
                f"no overlays can be mounted in {folder.parent}: name a folder on another file system in "
                "HAMS_E2E_CACHE"
            )
    finally:
        shutil.rmtree(folder)


def prepare() -> None:
    """Packages and the kernel's leave. Raises NotPossible."""
    install()
    check_kernel()
