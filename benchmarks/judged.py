"""Whether a run lost or doubled anything: what its replies counted, and what its history says.

A benchmark that kills is worth nothing if what it measured was wrong, so its verdict stands in the row, and
in the exit code.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from hams_history.checker import check_directory

COMPLETE_S = 60.0
SHOWN = 10


def odd(counts: Sequence[int]) -> str:
    """What is wrong with counts that should be 1..n, each once, in any order; empty if nothing is."""
    result = Counter(counts)
    missing = sorted(set(range(1, len(counts) + 1)) - result.keys())
    doubled = sorted(count for count, times in result.items() if times > 1)
    if not missing and not doubled:
        return ""
    return f"{len(counts)} replies, missing counts {missing[:SHOWN]}, doubled {doubled[:SHOWN]}"


def judged(history: Path, counts: Mapping[str, Sequence[int]]) -> dict[str, object]:
    """The verdict over a run that has ended: `ok`, what the checker found, what was odd about each of the
    `counts`. `broken`: how often each invariant was violated, those that are not shown included.

    Raises FileNotFoundError if there is no history. Takes as long as the history is: it is not part of what
    is measured.
    """
    began = time.monotonic()
    report = check_directory(history)
    wrong = {name: said for name, values in counts.items() if (said := odd(values))}
    return {
        "ok": report.ok and not wrong,
        "violations": [f"{item.invariant}: {item.message}" for item in report.violations]
        + [f"history: {item.message}" for item in report.problems],
        "broken": dict(report.counts),
        "invalid_lines": report.problems_found,
        "wrong_counts": wrong,
        "not_checked": [f"{item.check}: {item.why}" for item in report.skips],
        "history_lines": len(report.history.lines),
        "history_check_s": round(time.monotonic() - began, 1),
    }


async def complete(history: Path, within_s: float = COMPLETE_S) -> None:
    """Until every logged request is complete, so that the history may be judged to its end.

    Gives up silently after `within_s`: the checker then names what is open.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while open_requests(history):
        if loop.time() >= deadline:
            return
        await asyncio.sleep(0.1)


def open_requests(history: Path) -> set[str]:
    """Requests that are logged and not complete. A last line that a kill cut off is none."""
    seen: dict[str, set[str]] = {"log": set(), "complete": set()}
    for file in history.glob("frontend-*.jsonl"):
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n") and (entry := json.loads(line))["t"] in seen:
                seen[entry["t"]].add(entry["req"])
    return seen["log"] - seen["complete"]
