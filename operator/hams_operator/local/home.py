"""Where local runs keep their things: `$HAMS_HOME` (default ~/.local/state/hams), one folder per graph name.

    <home>/<graph>/run.json      who supervises it, where it answers: written when it runs, removed when it ends in order
    <home>/<graph>/control.sock  the supervisor's ear
    <home>/<graph>/logs/         one file per instance and process; old ones go
    <home>/<graph>/etcd/         the data of the etcd it started

Sockets and shared memory lie below /dev/shm, as paths of Unix sockets must be short.
"""

import os
import shutil
from pathlib import Path

import msgspec

from hams_operator.limits import logs_kept_max
from hams_operator.local.nursery import alive


class RunFile(msgspec.Struct, frozen=True):
    """What `run.json` says. `memory` is the folder of sockets and shared memory."""

    graph: str
    uid: str
    pid: int
    url: str
    grpc: str
    etcd: str
    memory: str
    file: str
    history: str | None = None


def home() -> Path:
    """The folder of all local runs."""
    return Path(os.environ.get("HAMS_HOME") or Path.home() / ".local" / "state" / "hams")


class GraphHome:
    """The folder of one graph."""

    def __init__(self, graph: str) -> None:
        self.folder = home() / graph
        self.logs = self.folder / "logs"
        self.control = self.folder / "control.sock"

    def read(self) -> RunFile | None:
        """The run that is alive, if there is one."""
        try:
            found = msgspec.json.decode((self.folder / "run.json").read_bytes(), type=RunFile)
        except (OSError, msgspec.MsgspecError):
            return None
        return found if alive(found.pid) else None

    def write(self, run: RunFile) -> None:
        """Say that it runs."""
        temporary = self.folder / "run.json.new"
        temporary.write_bytes(msgspec.json.encode(run))
        temporary.rename(self.folder / "run.json")

    def clear(self) -> None:
        """Remove what a dead run left behind; logs stay, the newest `logs_kept_max` of them."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            found = msgspec.json.decode((self.folder / "run.json").read_bytes(), type=RunFile)
            shutil.rmtree(found.memory, ignore_errors=True)
        except (OSError, msgspec.MsgspecError):
            pass
        for name in ("run.json", "run.json.new", "control.sock"):
            (self.folder / name).unlink(missing_ok=True)
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)
        self.logs.mkdir(exist_ok=True)
        for old in sorted(self.logs.glob("*.log*"), key=lambda path: path.stat().st_mtime, reverse=True)[logs_kept_max:]:
            old.unlink(missing_ok=True)


def running() -> list[RunFile]:
    """All local runs that are alive, by graph name."""
    if not home().is_dir():
        return []
    found = (GraphHome(folder.name).read() for folder in sorted(home().iterdir()) if folder.is_dir())
    return [run for run in found if run is not None]
