"""Which run a command is about, and what its supervisor says."""

from hams_operator.cli.output import CommandError, complain
from hams_operator.local.control import NoAnswer, ask
from hams_operator.local.home import GraphHome, RunFile, folders, running
from hams_operator.local.observe import Status


def choose(graph: str | None) -> RunFile:
    """The run of that name; without a name the one that runs. Raises CommandError: exit 2 and the names if
    there are several."""
    if graph is not None:
        home = home_of(graph)
        run = home.read() if home.folder.is_dir() else None
        if run is None:
            if (dead := home.killed()) is not None:
                complain(_was_killed(dead))
            names = ", ".join(item.graph for item in running())
            complain(f'no graph "{graph}" runs here' + (f"; these do: {names}" if names else ""))
        return run
    runs = running()
    ended = [item for item in (folder.killed() for folder in folders()) if item is not None]
    if not runs and ended:
        complain(_was_killed(ended[0]))
    if not runs:
        complain("no graph runs here; start one with: hams up FILE")
    if len(runs) > 1:
        complain(
            f"several graphs run: {', '.join(run.graph for run in runs)}; choose one with --graph NAME", 2
        )
    return runs[0]


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


def status_of(run: RunFile) -> Status:
    """What its supervisor says now. Raises CommandError."""
    try:
        status = ask(run, "status").status
    except NoAnswer as error:
        raise CommandError(str(error)) from None
    if status is None:
        complain(f"the supervisor of {run.graph} answered something else")
    return status
