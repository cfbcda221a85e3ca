"""`hams status`, `hams down`, `hams logs`: what runs here, its end, and what it said."""

import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from hams_operator.cli.output import Output, check_lines, complain, console, print_json
from hams_operator.cli.runs import choose, home_of, status_of
from hams_operator.limits import down_s, log_bytes_max
from hams_operator.local.control import NoAnswer, ask
from hams_operator.local.home import GraphHome, RunFile, folders, running
from hams_operator.local.logfiles import last_lines, new_lines
from hams_operator.local.processes import send, wait_end

_FOLLOW_PAUSE_S = 0.2

_OF_INSTANCE = r"-\d+-[0-9a-f]{4}(?:\.model)?\.log(?:\.1)?"
_OF_ETCD = r"-\d+\.log(?:\.1)?"
_OF_SUPERVISOR = r"\.log(?:\.1)?"
"""What follows the operator's name in the names of log files; those of the run's own processes have no
instance's id."""


def status(graph: str | None, every: bool, output: Output) -> int:
    """Show one run, or all."""
    runs = running() if every else [choose(graph)]
    statuses = [status_of(run) for run in runs]
    if output is Output.JSON:
        print_json(statuses if every else statuses[0])
        return 0
    terminal = console()
    if not statuses:
        terminal.print("no graph runs here")
    from hams_operator.cli.table import table  # noqa: PLC0415 - rich, only where it is shown

    for number, item in enumerate(statuses):
        if number:
            terminal.print("")
        terminal.print(table(item))
    return 0


def restart(operator: str, graph: str | None, output: Output) -> int:
    """Decide that a state that is lost shall begin again."""
    run = choose(graph)
    try:
        ask(run, "restart", operator)
    except NoAnswer as error:
        complain(str(error))
    if output is Output.JSON:
        print_json({"graph": run.graph, "restarts": operator})
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


def logs(operator: str, graph: str | None, lines: int, follow: bool, output: Output, earlier: int = 0) -> int:
    """The last lines of an operator's processes in this run, or in the last one; with `follow` also what
    comes.

    `earlier`: so many runs before that one.
    """
    check_lines(lines)
    folder = _folder_of(graph)
    if earlier:
        folder = _earlier(folder, earlier, follow)
    paths = sorted((path for path in folder.glob("*.log*") if _is_of(operator, path)), key=_modified_s)
    if not paths and not follow:
        names = sorted(
            {
                match[1]
                for path in folder.glob("*.log*")
                if (match := re.fullmatch(f"(.+){_OF_INSTANCE}", path.name))
            }
        )
        etcd = ["etcd"] if any(folder.glob("etcd-0.log*")) else []
        complain(
            f'no logs of "{operator}" in {folder}; there are: {", ".join([*names, *etcd, "supervisor"])}'
        )
    said = False
    for name, line in _last_lines(paths, lines):
        _say(name, line, output)
        said = True
    if not said and lines and not follow and output is Output.TEXT:
        sys.stderr.write(f"{operator} has written nothing in this run\n")
    if follow:
        _follow(folder, operator, output)
    return 0


def _earlier(logs: Path, earlier: int, follow: bool) -> Path:
    """The folder with the logs of a run before. Raises CommandError."""
    if earlier < 0 or follow:
        complain(
            "--earlier: expected a number of runs, without --follow: nothing comes of a run that is over", 2
        )
    kept = sorted(GraphHome(logs.parent.name).earlier.glob("*"))
    if earlier > len(kept):
        complain(f"--earlier {earlier}: logs of {len(kept)} earlier runs are kept")
    return kept[-earlier]


def _is_of(operator: str, path: Path) -> bool:
    """Whether that is a log of an operator's processes, or of the run's own: supervisor, etcd."""
    kinds = {"supervisor": _OF_SUPERVISOR, "etcd": f"(?:{_OF_INSTANCE}|{_OF_ETCD})"}.get(
        operator, _OF_INSTANCE
    )
    return re.fullmatch(re.escape(operator) + kinds, path.name) is not None


def _folder_of(graph: str | None) -> Path:
    """Logs outlive their run: without a name, the run that is alive, else the only graph that has logs."""
    if graph is not None:
        named = home_of(graph).logs
        if not named.is_dir():
            complain(f'no logs of a graph "{graph}" here')
        return named
    runs = running()
    if len(runs) == 1:
        return GraphHome(runs[0].graph).logs
    past = [folder for folder in folders() if folder.logs.is_dir()]
    if not runs and len(past) == 1:
        return past[0].logs
    if not runs and not past:
        complain("no graph has run here; start one with: hams up FILE")
    names = [run.graph for run in runs] or [folder.graph for folder in past]
    complain(
        f"several graphs {'run' if runs else 'have run'}: {', '.join(names)}; choose one with --graph NAME", 2
    )


def _last_lines(files: list[Path], lines: int) -> Iterator[tuple[str, str]]:
    """The last `lines` of each file, file by file, oldest first."""
    for path in files:
        yield from ((_name(path), line) for line in last_lines(path, lines, log_bytes_max))


def _follow(folder: Path, operator: str, output: Output) -> None:
    """Until Ctrl-C. Files are looked at again and again: a log has no other event to offer, and new instances
    bring new files.

    Ctrl-C is noted, and not raised: an exception may come up where it cannot go on, in the clean-up of an
    iterator, and be lost.
    """
    at = {path: path.stat().st_size for path in folder.glob("*.log")}
    asked: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: asked.append(number))
    try:
        while not asked:
            for path in sorted(folder.glob("*.log")):
                if not _is_of(operator, path):
                    continue
                try:
                    size = path.stat().st_size
                except FileNotFoundError:  # removed, or about to be begun anew
                    continue
                start = at.get(path, 0)
                if size < start:  # cut
                    start = 0
                at[path], lines = new_lines(path, start, size, log_bytes_max)
                for line in lines:
                    _say(_name(path), line, output)
            sys.stdout.flush()
            time.sleep(_FOLLOW_PAUSE_S)
    finally:
        signal.signal(signal.SIGINT, before)


def _say(name: str, line: str, output: Output) -> None:
    if output is Output.JSON:
        sys.stdout.write(msgspec.json.encode({"process": name, "line": line}).decode() + "\n")
    else:
        sys.stdout.write(f"{name} | {line}\n")


def _name(path: Path) -> str:
    return path.name.partition(".log")[0]


def _modified_s(path: Path) -> float:
    return path.stat().st_mtime
