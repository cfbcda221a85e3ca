"""Images imported once, and hard-linked into every node that starts.

Files of images and layers are never written to in place; containerd's two databases are, so each node gets
copies of them. Needs cache and state on one file system; where they are not, every node imports.
"""

import json
import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster.commands import run, succeeds, until

DATABASES = ("io.containerd.metadata.v1.bolt/meta.db", "io.containerd.snapshotter.v1.overlayfs/metadata.db")


def contents(archives: Sequence[Path]) -> dict[str, str]:
    """What is in each archive, by its name: its index, which names images and their digests; size and time
    where it has none."""
    return {path.name: _index(path) for path in archives}


def _index(path: Path) -> str:
    with tarfile.open(path) as archive:
        for entry in archive:
            if entry.name == "index.json" and (file := archive.extractfile(entry)) is not None:
                return file.read().decode()
    return f"{path.stat().st_size} {path.stat().st_mtime_ns}"


def bake(folder: Path, archives: Sequence[Path]) -> Path:
    """A root folder of containerd that holds the archives, made anew when one of them changed."""
    key = json.dumps([[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in archives])
    note, root = folder / "key", folder / "containerd"
    if note.exists() and note.read_text() == key:
        return root
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    runtime = Path(f"/run/hams-e2e-bake-{os.getpid()}")
    settings = folder / "containerd.toml"
    settings.write_text(
        f'version = 2\nroot = "{root}"\nstate = "{runtime}"\ndisabled_plugins = '
        f'["io.containerd.grpc.v1.cri"]\n[grpc]\n  address = "{runtime}/s"\n'
    )
    with (folder / "log").open("wb") as log:
        words = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "unshare",
            "-m",
            "-n",
            "containerd",
            "--config",
            str(settings),
        ]
        daemon = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        client = ["ctr", "--address", f"{runtime}/s", "-n", "k8s.io"]
        until(lambda: succeeds(*client, "version"), 20, "containerd that imports images")
        for archive in archives:
            run(*client, "images", "import", archive)
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait()
        shutil.rmtree(runtime, ignore_errors=True)
    note.write_text(key)
    return root


def use(root: Path, target: Path) -> None:
    """Hard-link a baked root into a node."""
    shutil.rmtree(target)
    run("cp", "-al", root, target)
    for name in DATABASES:
        (target / name).unlink()
        shutil.copy2(root / name, target / name)


def fits(folder: Path, target: Path) -> bool:
    """Whether hard links reach from one to the other."""
    return folder.stat().st_dev == target.stat().st_dev
