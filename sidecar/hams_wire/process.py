"""What every process of a graph begins and ends with: arguments, log, event loop, etcd, signals.

A process ends with 0 when it was asked to, with `EXIT_STOPPED` when its core said Stop (a fresh instance may
take its place), with 1 and one line on its log when it could not begin. No stack trace reaches a user.
"""

import argparse
import asyncio
import gc
import logging
import os
import resource
import secrets
import signal
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum, auto
from pathlib import Path

import uvloop

from hams_protocol.frozen import frozen
from hams_protocol.graph import Graph
from hams_protocol.ids import InstanceId
from hams_wire import limits, logs, records, spec
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.coordination.etcd_members import Tls
from hams_wire.coordination.port import KeyValue
from hams_wire.errors import CoordinationError, WireError
from hams_wire.exposition import Sample
from hams_wire.probes import answer_probes
from hams_wire.tls import (
    ETCD_AUTHORITY,
    ETCD_CERTIFICATE,
    ETCD_KEY,
    METRICS_TOKEN,
    PROBE_TOKEN,
    Certificates,
    read_digest,
    read_text,
)

spec_pause_s = 0.2
"""Between two looks for the graph of a process that starts."""

EXIT_STOPPED = 75
"""The instance's part is over; its supervisor starts a fresh one (EX_TEMPFAIL)."""

LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
"""What a process may be told to log from."""

log = logging.getLogger("hams.process")


def common_arguments(program: str, about: str) -> argparse.ArgumentParser:
    """The arguments that all processes of a graph take."""
    parser = argparse.ArgumentParser(program, description=about)
    parser.add_argument("--graph", required=True, help="uid of the graph: its prefix in etcd")
    named = parser.add_mutually_exclusive_group(required=True)
    named.add_argument("--instance", help="id of this instance, fresh at every start")
    named.add_argument(
        "--pod",
        dest="instance",
        type=instance_in,
        help="name of this pod; the id is made of it, fresh at every start",
    )
    parser.add_argument("--etcd", required=True, help="etcd endpoints, http://HOST:PORT, separated by commas")
    parser.add_argument(
        "--listen", default="tcp:127.0.0.1:0", help="where peers connect: tcp:HOST:PORT or unix:PATH"
    )
    parser.add_argument(
        "--advertise", default=None, help="host that peers dial, if it is not the one listened at"
    )
    probes = parser.add_mutually_exclusive_group()
    probes.add_argument(
        "--probe-port",
        type=int,
        default=0,
        help="where /livez, /readyz and /metrics are answered; 0: nowhere",
    )
    probes.add_argument(
        "--probe-socket",
        type=Path,
        dest="probe_port",
        metavar="PATH",
        help="the same at a Unix socket, for local runs",
    )
    parser.add_argument(
        "--tls",
        type=Path,
        default=None,
        metavar="DIR",
        help="certificates for peers, etcd and probes; without it all is clear text",
    )
    parser.add_argument("--log-level", type=str.lower, choices=LOG_LEVELS, default="info")
    return parser


def instance_in(pod: str) -> str:
    """A fresh instance id in a pod: a container that is started again in its pod is another instance."""
    return f"{pod}-{secrets.token_hex(4)}"


@frozen
class Access:
    """The way of a process to etcd and its peers, and the secrets of those that may ask how it is.

    `etcd`: endpoints. `tls`: a folder with the files of `hams_wire.tls` for peers, `etcd-ca.crt`, `etcd.crt`
    and `etcd.key` for an etcd that is https, `probe-token`, which every question at the port of probes has to
    bear, and in `metrics-token` the digest of what opens metrics besides; None: everything is in the clear.
    """

    etcd: str
    tls: Path | None = None

    def coordination(self) -> EtcdCoordination:
        """A client of etcd. Raises WireError."""
        if self.tls is None:
            return EtcdCoordination(self.etcd)
        return EtcdCoordination(
            self.etcd, Tls(self.tls / ETCD_AUTHORITY, self.tls / ETCD_CERTIFICATE, self.tls / ETCD_KEY)
        )

    def certificates(self) -> Certificates | None:
        """What peers are shown, and what is asked of them. Raises WireError."""
        return None if self.tls is None else Certificates(self.tls)

    def probe_token(self) -> str:
        """What probes bear; empty: anybody may ask. Raises WireError."""
        return "" if self.tls is None else read_text(self.tls / PROBE_TOKEN)

    def metrics_digest(self) -> bytes:
        """Of what Prometheus bears; empty: nothing. Raises WireError."""
        return b"" if self.tls is None else read_digest(self.tls / METRICS_TOKEN)


@frozen
class Options:
    """The common arguments of one process, as values."""

    graph_uid: str
    instance: InstanceId
    access: Access
    listen: str
    advertise: str | None
    probe_port: int | Path

    @classmethod
    def of(cls, given: argparse.Namespace) -> "Options":
        """The values of a parsed command line."""
        access = Access(given.etcd, given.tls)
        return cls(given.graph, given.instance, access, given.listen, given.advertise, given.probe_port)

    async def answer_probes(
        self,
        missing: Callable[[], str | None],
        metrics: Callable[[], Iterable[Sample]] = tuple,
        rendered: Callable[[], bytes] | None = None,
        profile: Callable[[], bytes | None] = lambda: None,
    ) -> asyncio.Server | None:
        """The server of `hams_wire.probes`; None: nobody is answered. Raises OSError and WireError."""
        if not self.probe_port:
            return None
        token, digest = self.access.probe_token(), self.access.metrics_digest()
        return await answer_probes(self.probe_port, missing, metrics, token, digest, rendered, profile)


class ProcessStage(Enum):
    """How far a process of a graph has come. Not every process passes all of them."""

    STARTING = auto()
    """The process opens its ports and connections."""
    WARMING = auto()
    """The process waits for its model, or for what it takes over, and is not registered."""
    SERVING = auto()
    """Its instance is registered, and has the roles that managers give it."""
    LEAVING = auto()
    """The process was asked to end, and hands over."""
    ENDED = auto()
    """Its last instance is closed."""


async def open_graph(access: Access, uid: str) -> tuple[EtcdCoordination, Graph]:
    """A client of etcd, and the compiled graph; waits for both, as a process may start before its etcd and
    its graph. Raises WireError."""
    coordination = access.coordination()
    try:
        entry = await _wait_for_spec(coordination, uid)
        return coordination, spec.decode_spec(entry.value)
    except BaseException:
        await coordination.close()
        raise


async def _wait_for_spec(coordination: EtcdCoordination, uid: str) -> KeyValue:
    """Reads the key again and again: its writer may not have started yet. Nothing else is done meanwhile, so
    nothing is lost by looking."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limits.spec_wait_s
    while True:
        try:
            entry = await coordination.get(records.spec_key(uid))
        except CoordinationError as error:
            if not error.retryable or loop.time() > deadline:
                raise
            entry = None
        if entry is not None:
            return entry
        if loop.time() > deadline:
            raise records.MalformedRecord(
                f"etcd holds no graph {uid!r}: nothing under {records.spec_key(uid)}"
            )
        await asyncio.sleep(spec_pause_s)


class Asked(asyncio.Event):
    """Set when the process is asked to end. `at_once` as well, if nothing is to be handed over, because the
    whole graph ends."""

    def __init__(self) -> None:
        super().__init__()
        self.at_once = asyncio.Event()

    def now(self) -> None:
        """Asked to end at once."""
        self.at_once.set()
        self.set()


def run(work: Callable[[Asked], Awaitable[int]], log_level: str) -> int:
    """Run `work(asked_to_end)` on a fresh uvloop; SIGTERM asks to end in order, SIGINT at once. `log_level`:
    one of LOG_LEVELS.

    Whatever may fail for what the process was told (files that are not there) belongs into `work`: here it
    becomes one line.
    """
    logs.configure(log_level, os.environ.get(logs.VARIABLE) or "text")
    _raise_files_limit()
    gc.freeze()

    async def main() -> int:
        asked = Asked()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, asked.set)
        loop.add_signal_handler(signal.SIGINT, asked.now)
        return await work(asked)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())
    except (WireError, OSError, ValueError) as error:
        log.error("%s", error)
        return 1


def _raise_files_limit() -> None:
    """Let this process open as many files as it may. The lower limit that it begins with is for programs that
    use select(2)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # the kernel's own bound (fs.nr_open) is lower
        log.warning("the limit of open files stays at %d: %s", soft, error)
