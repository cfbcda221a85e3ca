"""One run from start to end: start the graph, listen on the control socket, watch until it is ready, end it
when asked.

The same for `hams up` in a terminal and for the detached process. Whatever happens, nothing but logs and the
history is left when `run` returns.
"""

import asyncio
import logging
import logging.handlers
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from hams_operator.graph_status import GraphStatus, awaited, said
from hams_operator.limits import log_bytes_max, status_interval_s
from hams_operator.local.control import ControlServer
from hams_operator.local.etcd import EtcdNotStarted
from hams_operator.local.home import GraphHome, RunsAlready, refused
from hams_operator.local.supervisor import CannotStart, Supervisor
from hams_protocol.graph import Graph
from hams_wire import logs
from hams_wire.errors import CoordinationError

table_interval_s = 0.5
"""Between two looks at a graph whose table is shown."""


log = logging.getLogger("hams.local")


class RunOptions(msgspec.Struct, frozen=True):
    """What `hams up` was told. `timeout_s` None: it may take as long as it takes. Paths are absolute.

    `suspect_after_s`: instead of the graph's own; 0: that one. `parent`: the process that starts a detached
    run and with which that run is to end; 0: it outlives who started it.
    """

    file: str
    port: int | None = None
    history: str | None = None
    etcd: str | None = None
    timeout_s: float | None = None
    restore: bool = False
    parent: int = 0
    suspect_after_s: float = 0.0
    metrics_port: int = 0


class RunFailed(Exception):
    """The run did not begin or did not go on; the text says why."""


async def run(
    graph: Graph, options: RunOptions, report: Callable[[GraphStatus], None], *, keep_looking: bool
) -> None:
    """Run a graph until SIGINT, SIGTERM, SIGHUP or `hams down`. `report` gets each look; with `keep_looking`
    also after it is ready.

    Raises RunFailed, with nothing left running.
    """
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, asked.set)
    try:
        supervisor = Supervisor(
            _patient(graph, options.suspect_after_s),
            Path(options.file),
            options.port,
            None if options.history is None else Path(options.history),
            options.etcd,
        )
        supervisor.restore = options.restore
        supervisor.metrics_port = options.metrics_port
        control_server = ControlServer(supervisor, asked.set)
        ended = loop.create_task(asked.wait())
        work = loop.create_task(_work(supervisor, control_server, options, report, keep_looking))
        try:
            await asyncio.wait((work, ended, supervisor.failed), return_when=asyncio.FIRST_COMPLETED)
            if supervisor.failed.done():
                raise RunFailed(supervisor.failed.result())
            if work.done():
                work.result()  # it only ends by an error
        finally:
            for task in (work, ended):
                task.cancel()
            await asyncio.gather(work, ended, return_exceptions=True)
            await control_server.close()
            await supervisor.stop()
    except (CannotStart, RunsAlready, EtcdNotStarted, CoordinationError, TimeoutError) as error:
        raise RunFailed(str(error) or "a process did not start in time") from None
    except OSError as error:
        raise RunFailed(refused(error)) from None
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)


def _patient(graph: Graph, suspect_after_s: float) -> Graph:
    """The graph with another `suspectAfter`, if one is given."""
    if not suspect_after_s:
        return graph
    log.warning("suspectAfter is %.3g s: this machine is busy", suspect_after_s)
    recovery = replace(graph.data.recovery, suspect_after_s=suspect_after_s)
    return Graph(replace(graph.data, recovery=recovery))


async def _work(
    supervisor: Supervisor,
    control_server: ControlServer,
    options: RunOptions,
    report: Callable[[GraphStatus], None],
    keep_looking: bool,
) -> None:
    last: list[GraphStatus] = []

    def on_status(status: GraphStatus) -> None:
        last[:] = [status]
        report(status)

    try:
        async with asyncio.timeout(options.timeout_s):
            await supervisor.start()
            await control_server.open(supervisor.control)
            await _until_ready(supervisor, on_status)
    except TimeoutError:
        if options.timeout_s is None:
            raise
        why = "processes are still starting"
        if last:
            why = what_is_missing(last[0]) or "it was ready a moment ago"
        raise CannotStart(f"not ready after {options.timeout_s:g} s: {why}") from None
    while keep_looking:
        await asyncio.sleep(table_interval_s)
        try:
            report(await supervisor.status())
        except CoordinationError as error:  # the graph serves on without etcd; the table waits
            log.warning("no look at the graph: %s", error)
    await asyncio.Event().wait()


async def _until_ready(supervisor: Supervisor, report: Callable[[GraphStatus], None]) -> None:
    while True:
        status = await supervisor.status()
        report(status)
        if awaited(status.conditions) is None:
            return
        given_up = supervisor.given_up()
        if given_up is not None:
            raise CannotStart(
                f"{given_up.process_named} cannot be started ({said(given_up.exit_code)}): "
                f"{given_up.last_line}"
            )
        await asyncio.sleep(status_interval_s)


def what_is_missing(status: GraphStatus) -> str:
    """What a start waits for; "": nothing."""
    waits = awaited(status.conditions)
    return f"{waits.message} ({waits.reason})" if waits is not None else ""


def log_to(graph: str) -> None:
    """The supervisor's own log, which rotates."""
    folder = GraphHome(graph).logs
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.handlers.RotatingFileHandler(
        folder / "supervisor.log", maxBytes=log_bytes_max, backupCount=1, encoding="utf-8"
    )
    handler.setFormatter(logs.formatter(os.environ.get(logs.VARIABLE) or "text"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("hams.wire.peers").setLevel(logging.WARNING)
