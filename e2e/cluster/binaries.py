"""Kubernetes, etcd and CoreDNS from their Go modules, built once and kept.

One static binary holds etcd and all components of Kubernetes, linked under their names: linking them together
takes a fifth of the space and of the time of seven programs. From an empty Go cache the build takes about six
minutes on two cores, later ones seconds.
"""

import fcntl
import hashlib
import os
import shutil
import sys
import time
from pathlib import Path

from e2e.cluster import machine
from e2e.cluster.commands import CommandFailed, run
from e2e.cluster.layout import TOOLS

LINKS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubectl",
)
PROGRAMS = {"kube": "kubebox", "coredns": "coredns", "etcd": "image/etcd", "etcdctl": "image/etcdctl"}
"""Go package in tools/, and its program. Those under `image` go into the image `hams-etcd`."""
HELM_FLAGS = "-s -w -X helm.sh/helm/v3/internal/version.version=v3.19.0"
HELM_FLAGS += (
    " -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=34"
)
"""Without a version of Kubernetes, `helm template` takes 1.20 for it."""


def stamp() -> str:
    """What the binaries are built from, as one hash."""
    files = ["go.mod", "go.sum", *(f"{package}/main.go" for package in PROGRAMS)]
    return hashlib.sha256(b"\0".join((TOOLS / name).read_bytes() for name in files)).hexdigest()


def version() -> str:
    """The version of Kubernetes that tools/go.mod names."""
    return next(
        line.split()[1]
        for line in (TOOLS / "go.mod").read_text().splitlines()
        if "k8s.io/kubernetes v" in line
    )


def linker_flags() -> str:
    """Without a version the components call themselves v0.0.0-master, and version checks fail."""
    number = version()
    facts = {
        "gitVersion": number,
        "gitMajor": "1",
        "gitMinor": number.split(".")[1],
        "gitCommit": "e2e",
        "gitTreeState": "clean",
        "buildDate": "2026-01-01T00:00:00Z",
    }
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return "-s -w " + " ".join(
        f"-X {package}.{key}={value}" for package in packages for key, value in facts.items()
    )


def build(folder: Path) -> None:
    """Bring `folder` up to date with tools/, one at a time. Needs `go` only when something changed. Raises
    NotPossible, CommandFailed.

    A build that is ended half-way is taken up where it was: Go keeps every package that it has compiled.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted, note = stamp(), folder / "stamp"
        if not (note.exists() and note.read_text() == wanted):
            _build(folder)
            note.write_text(wanted)


def _build(folder: Path) -> None:
    machine.check_go()
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false"}
    try:
        run("go", "list", "-deps", *(f"./{package}" for package in PROGRAMS), cwd=TOOLS, env=environment)
    except CommandFailed as error:
        raise machine.NotPossible(
            f"the modules of Kubernetes cannot be fetched here: {str(error)[-500:]}"
        ) from None
    for package, program in PROGRAMS.items():
        started = time.monotonic()
        run(
            "go",
            "build",
            "-trimpath",
            "-ldflags",
            linker_flags(),
            "-o",
            folder / program,
            f"./{package}",
            cwd=TOOLS,
            env=environment,
        )
        print(f"go build {program}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    for name in LINKS:
        (folder / name).unlink(missing_ok=True)
        os.link(folder / "kubebox", folder / name)


def build_helm(folder: Path) -> Path:
    """helm, from its own module (its requirements would pull Kubernetes' apart), or the one on PATH. Raises
    CommandFailed."""
    built = folder / "helm"
    module = TOOLS / "helm"
    wanted = hashlib.sha256(
        HELM_FLAGS.encode() + (module / "go.mod").read_bytes() + (module / "go.sum").read_bytes()
    ).hexdigest()
    note = folder / "helm.stamp"
    if built.exists() and note.exists() and note.read_text() == wanted:
        return built
    helm = shutil.which("helm")
    if helm is not None:
        return Path(helm)
    machine.check_go()
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false"}
    run(
        "go",
        "build",
        "-trimpath",
        "-ldflags",
        HELM_FLAGS,
        "-o",
        built,
        "helm.sh/helm/v3/cmd/helm",
        cwd=module,
        env=environment,
    )
    print(f"go build helm: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    note.write_text(wanted)
    return built
