"""Where local runs keep their things: `$HAMS_HOME` (default ~/.local/state/hams), one folder per graph name.

    <home>/<graph>/run.json   who supervises it, where it answers: written when it starts, removed when it
    ends in order <home>/<graph>/lock       locked as long as its supervisor lives <home>/<graph>/checked
    digest of the models that `hams up --check` found to fit <home>/<graph>/killed.json  what run.json said of
    a run whose supervisor was killed; until the next one starts <home>/<graph>/logs/      of the last run:
    one file per instance and process, one of etcd; old ones go <home>/<graph>/earlier/   logs of the runs
    before it, one folder each, by when they were set aside <home>/<graph>/etcd/      the data of the etcd it
    started

Sockets and shared memory lie in a folder of their own below /dev/shm, as paths of Unix sockets must be short.

Invariant: at most one run of a name, and only who holds the lock changes anything here.
"""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from hams_operator.local.processes import alive, birth_of

log_files_max = 200
"""Log files kept of one run of a graph."""

runs_logged_max = 5
"""Earlier runs of a graph whose logs are kept."""

lock_wait_s = 1.0
lock_pause_s = 0.02
"""How long a start waits for somebody who only clears away what a dead run left, and between two looks."""


class RunsAlready(Exception):
    """A run of this name is alive; the text says where."""


class RunFile(msgspec.Struct, frozen=True):
    """What `run.json` says. `birth` tells the supervisor's process from a later one of the same pid; `memory`
    is the folder of sockets and shared memory."""

    graph: str
    uid: str
    pid: int
    birth: int
    url: str
    grpc: str
    memory: str
    file: str
    etcd: str = ""
    history: str | None = None

    @property
    def control(self) -> Path:
        """The control socket of the supervisor."""
        return Path(self.memory) / "control.sock"

    @property
    def alive(self) -> bool:
        """Whether its supervisor is."""
        return alive(self.pid, self.birth)


def home() -> Path:
    """The folder of all local runs."""
    return Path(os.environ.get("HAMS_HOME") or Path.home() / ".local" / "state" / "hams").absolute()


def refused(error: OSError) -> str:
    """What the machine refused, in one line for the user: which path, and for folders of runs what to do."""
    said = error.strerror or str(error) or type(error).__name__
    if error.filename is None:
        return said
    path = Path(os.fsdecode(error.filename))
    if not path.is_relative_to(home()):
        return f"{path}: {said}"
    expected = f"expected {home()} to be a folder, or a name for one, that this user can write"
    return f"{path}: {said}; {expected}; HAMS_HOME names another"


class GraphHome:
    """The folder of one graph."""

    def __init__(self, graph: str) -> None:
        self.graph = graph
        self.folder = home() / graph
        self.logs = self.folder / "logs"
        self.earlier = self.folder / "earlier"
        self.profiles = self.folder / "profiles"
        self._lock: int | None = None

    def last(self) -> RunFile | None:
        """The run that the folder tells of, alive or dead."""
        try:
            return msgspec.json.decode((self.folder / "run.json").read_bytes(), type=RunFile)
        except (OSError, msgspec.MsgspecError):
            return None

    def read(self) -> RunFile | None:
        """The run that is alive, if there is one; what a dead one left is cleared."""
        last = self.last()
        if last is None or last.alive:
            return last
        if self._try_lock():
            try:
                self.clear()
                (self.folder / "killed.json").write_bytes(msgspec.json.encode(last))
            finally:
                self.release()
        return None

    def killed(self) -> RunFile | None:
        """The last run, if its supervisor was killed and nobody has run this name since."""
        self.read()
        try:
            return msgspec.json.decode((self.folder / "killed.json").read_bytes(), type=RunFile)
        except (OSError, msgspec.MsgspecError):
            return None

    def forget_killed(self) -> None:
        """Forget a killed run once the user knows of it."""
        (self.folder / "killed.json").unlink(missing_ok=True)

    def acquire(self) -> None:
        """Become the one run of this name and clear what a dead one left. Raises RunsAlready, OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)  # logs, histories and etcd's data hold what clients sent
        deadline = time.monotonic() + lock_wait_s
        while not self._try_lock():  # somebody who only clears holds it for a moment
            last = self.last()
            if last is not None and last.alive:
                raise RunsAlready(
                    f'graph "{self.graph}" runs already: {last.url}, process {last.pid}. End it with: '
                    f"hams down --graph {self.graph}"
                )
            if time.monotonic() > deadline:
                raise RunsAlready(f'graph "{self.graph}" is being started by another process')
            time.sleep(lock_pause_s)
        self.clear()
        self.forget_killed()
        self._set_logs_aside()

    def release(self) -> None:
        """Let others run this name."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def write(self, run: RunFile) -> None:
        """Say that it runs."""
        temporary = self.folder / "run.json.new"
        temporary.write_bytes(msgspec.json.encode(run))
        temporary.rename(self.folder / "run.json")

    def clear(self) -> None:
        """Remove what a run left behind; logs stay, the newest `log_files_max` of them."""
        last = self.last()
        if last is not None:
            shutil.rmtree(last.memory, ignore_errors=True)
        for name in ("run.json", "run.json.new"):
            (self.folder / name).unlink(missing_ok=True)
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)
        self.logs.mkdir(exist_ok=True)
        for old in sorted(self.logs.glob("*.log*"), key=_modified_s, reverse=True)[log_files_max:]:
            old.unlink(missing_ok=True)

    def _set_logs_aside(self) -> None:
        """Logs of the run before must not read like this one's. The supervisor has its own open: that one is
        copied."""
        logs = [path for path in self.logs.iterdir() if path.stat().st_size]
        if not logs:
            return
        made = self.earlier / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(max(map(_modified_s, logs))))
        made.mkdir(parents=True, exist_ok=True)
        for path in logs:
            if path.name == "supervisor.log":
                shutil.copy2(path, made)
                os.truncate(path, 0)
            else:
                path.rename(made / path.name)
        for old in sorted(self.earlier.iterdir())[:-runs_logged_max]:
            shutil.rmtree(old)

    def _try_lock(self) -> bool:
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        return True


def running() -> list[RunFile]:
    """All local runs that are alive, by graph name; what dead ones left is cleared."""
    return [run for run in (folder.read() for folder in folders()) if run is not None]


def folders() -> Iterator[GraphHome]:
    """Every graph that ever ran here, by name."""
    with contextlib.suppress(FileNotFoundError):
        for folder in sorted(home().iterdir()):
            if folder.is_dir():
                yield GraphHome(folder.name)


def own_birth() -> int:
    """This process's own, for its RunFile."""
    return birth_of(os.getpid())


def _modified_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
