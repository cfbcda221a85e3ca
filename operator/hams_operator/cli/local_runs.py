"""Graphs that run on this machine: which one a command is about, and what its supervisor says and does."""

import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from hams_operator.cli.local_logs import earlier_one, folder_of, show
from hams_operator.cli.output import complain
from hams_operator.cli.runs import OnLine, Reached, chosen
from hams_operator.graph_status import GraphStatus, InstanceStatus
from hams_operator.local import control, learnt
from hams_operator.local.control import ControlReply, NoAnswer
from hams_operator.local.home import GraphHome, RunFile, folders, refused, running
from hams_operator.local.processes import send
from hams_wire.profiles import ProfileReport


def choose(graph: str | None) -> RunFile:
    """The run of that name; without a name the one that runs. Raises CommandError: exit 2 and the names if
    there are several."""
    homes = folders() if graph is None else [home_of(graph)]
    runs = {run.graph: run for run in running()}
    if not runs or (graph is not None and graph not in runs):
        for killed in filter(None, (home.killed() for home in homes)):
            complain(_was_killed(killed))
    return runs[chosen(graph, list(runs), LocalRuns.where, "start one with: hams up FILE")]


def _was_killed(run: RunFile) -> str:
    """What a user should know of a run that nobody ended."""
    return (
        f"{run.graph} does not run any more: its supervisor (process {run.pid}) was killed, and its "
        "processes ended with it. "
        f"What it said: hams logs supervisor --graph {run.graph}. Start it again with: hams up {run.file}"
    )


def home_of(graph: str) -> GraphHome:
    """The folder of a graph of that name, which is no path. Raises CommandError."""
    if "/" in graph or not graph.strip("."):
        complain(f"expected the name of a graph, found {graph!r}", 2)
    return GraphHome(graph)


def _resting(graph: str | None) -> GraphHome | None:
    """The folder of a graph of that name, if it does not run."""
    if graph is None or graph in {run.graph for run in running()}:
        return None
    return home_of(graph)


def status_of(run: RunFile) -> GraphStatus:
    """What its supervisor says now. Raises CommandError."""
    status = ask(run, "status").status
    if status is None:
        complain(f"the supervisor of {run.graph} answered something else")
    return status


def ask(run: RunFile, question: str, of: str = "", profile: bytes = b"") -> ControlReply:
    """Ask a run's supervisor. Raises CommandError."""
    try:
        return control.ask(run, question, of, profile)
    except NoAnswer as error:
        complain(str(error))


def strike(instance: InstanceStatus, process: str, number: signal.Signals) -> dict[str, int]:
    """Send it; which processes got it. To kill both at once the proxy is stopped first: else it may notice
    its model's end and leave in order."""
    pids = {"model": instance.model_pid, "proxy" if instance.operator else "process": instance.proxy_pid}
    if instance.operator is not None and process != "both":
        pids = {process: pids[process]}
    if number is signal.SIGKILL and len(pids) > 1 and instance.operator is not None:
        send(instance.proxy_pid or 0, signal.SIGSTOP)
    return {name: pid for name, pid in pids.items() if pid and send(pid, number)}


class LocalRuns:
    """`Runs` of this machine."""

    where = "runs here"

    async def every(self) -> list[GraphStatus]:
        """See `Runs`."""
        return [status_of(run) for run in running()]

    async def status(self, graph: str | None) -> GraphStatus:
        """See `Runs`."""
        return status_of(choose(graph))

    async def strike(self, graph: str, instance: InstanceStatus, process: str, number: str) -> dict[str, int]:
        """See `Runs`."""
        return strike(instance, process, signal.Signals[f"SIG{number}"])

    async def logs(
        self, graph: str | None, operator: str, lines: int, follow: bool, earlier: int, on_line: OnLine
    ) -> None:
        """See `Runs`. Logs outlive their run."""
        folder = folder_of(None if graph is None else home_of(graph))
        show(earlier_one(folder, earlier, follow) if earlier else folder, operator, lines, follow, on_line)

    @asynccontextmanager
    async def reach(self, graph: str) -> AsyncIterator[Reached]:
        """See `Runs`."""
        run = choose(graph)
        yield Reached(run.url, run.history)

    async def profile(self, graph: str | None, operator: str) -> list[ProfileReport]:
        """See `Runs`."""
        return list(ask(choose(graph), "profile", operator).profiles or ())

    async def forget(self, graph: str | None, operator: str) -> list[str]:
        """See `Runs`."""
        return list(ask(choose(graph), "forget", operator).forgets)

    async def stored(self, graph: str | None, operator: str) -> dict[str, bytes]:
        """See `Runs`. Of a graph that does not run: what its last run has left for the next one."""
        home = _resting(graph)
        if home is None:
            return ask(choose(graph), "stored", operator).stored or {}
        try:
            left = learnt.between_runs(home.profiles)
        except OSError as error:
            complain(refused(error))
        return {name: left.get(name, b"") for name in ([operator] if operator else left)}

    async def give(self, graph: str | None, profiles: Mapping[str, bytes]) -> bool:
        """See `Runs`. Of a graph that does not run: its next run begins with them."""
        home = _resting(graph)
        if home is None:
            run = choose(graph)
            for operator, data in profiles.items():
                ask(run, "give", operator, data)
            return True
        try:
            learnt.leave(home.profiles, profiles)
        except OSError as error:
            complain(refused(error))
        return False

    async def restart(self, graph: str | None, operator: str) -> str:
        """See `Runs`."""
        run = choose(graph)
        ask(run, "restart", operator)
        return run.graph
