"""Logs of runs on this machine: which files are an operator's, and what they say."""

import re
import signal
import time
from pathlib import Path

from hams_operator.cli.output import complain
from hams_operator.cli.runs import OnLine
from hams_operator.limits import log_bytes_max
from hams_operator.local.home import GraphHome, folders, running
from hams_operator.local.logfiles import last_lines, new_lines

_FOLLOW_PAUSE_S = 0.2

_OF_INSTANCE = r"-\d+-[0-9a-f]{4}(?:\.model)?\.log(?:\.1)?"
_OF_ETCD = r"-\d+\.log(?:\.1)?"
_OF_SUPERVISOR = r"\.log(?:\.1)?"
"""What follows the operator's name in the names of log files; those of the run's own processes have no
instance's id."""


def folder_of(home: GraphHome | None) -> Path:
    """Logs outlive their run: without a home, those of the run that is alive, else of the only graph that has
    logs. Raises CommandError."""
    if home is not None:
        if not home.logs.is_dir():
            complain(f'no logs of a graph "{home.graph}" here')
        return home.logs
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


def earlier_one(logs: Path, earlier: int, follow: bool) -> Path:
    """The folder with the logs of a run before. Raises CommandError."""
    if earlier < 0 or follow:
        complain(
            "--earlier: expected a number of runs, without --follow: nothing comes of a run that is over", 2
        )
    runs = sorted(GraphHome(logs.parent.name).earlier.glob("*"))
    if earlier > len(runs):
        complain(f"--earlier {earlier}: logs of {len(runs)} earlier runs are kept")
    return runs[-earlier]


def show(folder: Path, operator: str, lines: int, follow: bool, on_line: OnLine) -> None:
    """The last lines of each file, the oldest file first; with `follow` also what comes, until Ctrl-C. Raises
    CommandError if there is no such file."""
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
    for path in paths:
        for line in last_lines(path, lines, log_bytes_max):
            on_line(_name(path), line)
    if follow:
        _follow(folder, operator, on_line)


def _is_of(operator: str, path: Path) -> bool:
    """Whether that is a log of an operator's processes, or of the run's own: supervisor, etcd."""
    kinds = {"supervisor": _OF_SUPERVISOR, "etcd": f"(?:{_OF_INSTANCE}|{_OF_ETCD})"}.get(
        operator, _OF_INSTANCE
    )
    return re.fullmatch(re.escape(operator) + kinds, path.name) is not None


def _follow(folder: Path, operator: str, on_line: OnLine) -> None:
    """Follow the logs until Ctrl-C. Files are read again and again: a log has no other event to offer, and
    new instances bring new files.

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
                    on_line(_name(path), line)
            time.sleep(_FOLLOW_PAUSE_S)
    finally:
        signal.signal(signal.SIGINT, before)


def _name(path: Path) -> str:
    return path.name.partition(".log")[0]


def _modified_s(path: Path) -> float:
    return path.stat().st_mtime
