"""The checker: a recorded history in, the verdict over I1 to I5 and I7 out (history.md, "What is checked").

It knows the history alone: nothing of the protocol core is imported, so the two can only agree by being
right. Time and memory are linear in the number of lines.
"""

from collections.abc import Sequence
from pathlib import Path

from hams_history.clients import Clients
from hams_history.convergence import Converged
from hams_history.copies import HeldTwice
from hams_history.dependencies import Dependencies
from hams_history.edges import AlongEdges
from hams_history.lines import Line
from hams_history.once import OnceEach
from hams_history.report import Findings, Report
from hams_history.source import History, read
from hams_history.tables import Tables
from hams_history.visibility import Visibility
from hams_history.writers import OneWriter


def check(lines: Sequence[Line]) -> Report:
    """Judge a history in memory; the header may stand anywhere, in a recorded one it is first."""
    return _check(Findings(History(lines)))


def check_directory(path: Path | str) -> Report:
    """Judge the history in a folder of `<instance>.jsonl` files, or in one such file.

    Raises FileNotFoundError if there is none. What cannot be read becomes a problem of the report.
    """
    problems: list[tuple[str, str]] = []
    history = read(Path(path), lambda message, where: problems.append((message, where)))
    findings = Findings(history)
    for message, where in problems:
        findings.problem(message, where)
    return _check(findings)


def _check(findings: Findings) -> Report:
    tables = Tables(findings)
    if tables.header is not None:
        OneWriter(tables)
        if tables.replays:
            findings.skip("I3", "what was lost is run again, and replies do not wait for it")
        tainted = set() if tables.replays else Dependencies(tables).tainted
        visibility = Visibility(tables, tainted)
        AlongEdges(tables)
        HeldTwice(tables)
        OnceEach(tables, visibility)
        Clients(tables)
        Converged(tables)
        for table in tables.operators.values():
            if table.lost_from is not None:
                findings.skip(
                    f"I1, survival of {table.name} from epoch {table.lost_from} on", "its loss was reported"
                )
            for epoch, versions in table.restarts.items():
                findings.skip(
                    f"I1, survival of what {table.name} had beyond version {', '.join(map(str, versions))} "
                    f"in epochs up to {epoch}",
                    "its loss was reported",
                )
    return Report(findings)


__all__ = ["Report", "check", "check_directory"]
