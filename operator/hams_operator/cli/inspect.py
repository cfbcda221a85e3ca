"""`hams status`, `hams down`, `hams logs`: what runs here, its end, and what it said."""

import signal
import sys

import msgspec

from hams_operator.cli.local_runs import choose
from hams_operator.cli.output import Output, check_lines, complain, console, print_json
from hams_operator.cli.runs import Runs, Target, on_runs
from hams_operator.graph_status import GraphStatus
from hams_operator.local.control import NoAnswer, ask
from hams_operator.local.home import GraphHome, RunFile, running
from hams_operator.local.processes import send, wait_end

down_s = 40.0
"""`hams down` kills a supervisor that has not ended its graph within this time; its processes die with it."""


def status(target: Target, graph: str | None, every: bool, output: Output) -> int:
    """Show one graph, or all."""

    async def statuses_there(runs: Runs) -> tuple[list[GraphStatus], str]:
        return await runs.every() if every else [await runs.status(graph)], runs.where

    statuses, where = on_runs(target, statuses_there)
    if output is Output.JSON:
        print_json(statuses if every else statuses[0])
        return 0
    from hams_operator.cli.table import table  # noqa: PLC0415 - rich, only where it is shown

    terminal = console()
    if not statuses:
        terminal.print(f"no graph {where}")
    for number, item in enumerate(statuses):
        if number:
            terminal.print("")
        terminal.print(table(item))
    return 0


def restart(target: Target, operator: str, graph: str | None, output: Output) -> int:
    """Decide that a state that is lost shall begin again."""
    name = on_runs(target, lambda runs: runs.restart(graph, operator))
    if output is Output.JSON:
        print_json({"graph": name, "restarts": operator})
    else:
        sys.stdout.write(
            f"the state of {operator} begins again, from its newest checkpoint if there is one\n"
        )
    return 0


def down(graph: str | None, every: bool, output: Output) -> int:
    """End one run, or all; returns when nothing of it is left."""
    runs = running() if every else [choose(graph)]
    for run in runs:
        end(run)
        if output is Output.TEXT:
            sys.stdout.write(f"{run.graph} has ended\n")
    if output is Output.JSON:
        print_json({"ended": [run.graph for run in runs]})
    elif not runs:
        sys.stdout.write("no graph runs here\n")
    return 0


def end(run: RunFile) -> None:
    """Ask a run to end and wait for it; one that does not is killed, and its processes die with it. Raises
    CommandError."""
    try:
        ask(run, "down")
    except NoAnswer:
        send(run.pid, signal.SIGTERM)
    if run.alive and not wait_end(run.pid, down_s):
        send(run.pid, signal.SIGKILL)
        if not wait_end(run.pid, down_s):
            complain(f"the supervisor of {run.graph} (process {run.pid}) cannot be killed")
    GraphHome(run.graph).read()  # clears what a killed one left
    GraphHome(run.graph).forget_killed()


def logs(
    target: Target, operator: str, graph: str | None, lines: int, follow: bool, earlier: int, output: Output
) -> int:
    """The last lines of an operator's processes, or of those of an earlier run; with `follow` also what
    comes."""
    check_lines(lines)
    said = 0

    def on_line(name: str, line: str) -> None:
        nonlocal said
        said += 1
        if output is Output.JSON:
            sys.stdout.write(msgspec.json.encode({"process": name, "line": line}).decode() + "\n")
        else:
            sys.stdout.write(f"{name} | {line}\n")
        if follow:
            sys.stdout.flush()

    on_runs(target, lambda runs: runs.logs(graph, operator, lines, follow, earlier, on_line))
    if not said and lines and not follow and output is Output.TEXT:
        sys.stderr.write(f"{operator} has written nothing in this run\n")
    return 0
