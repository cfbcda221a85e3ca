"""Tables of what was measured, for people, and the files that a part leaves behind.

The parts are measured in pieces, a service or a mode at a time. So each piece's rows take their places in one
file for each part, and the page is made anew of all of them.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.report import Result, rows_of

KEYS = (
    "service",
    "mode",
    "load",
    "kind",
    "models",
    "pace",
    "state",
    "bytes",
    "batch",
    "rows_per_request",
    "times",
    "case",
    "system",
)
"""What tells one row of a part from another."""

Row = Mapping[str, Any]


def key_of(row: Row) -> tuple[object, ...]:
    """Which row it is, whenever it was measured."""
    return tuple(row.get(name) for name in KEYS)


def merged(old: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """The new rows in the places of those that they replace, the rest behind."""
    fresh = {key_of(row): row for row in new}
    kept = [fresh.pop(key_of(row), row) for row in old]
    return [*kept, *fresh.values()]


def deliver_parts(result: Result, part: str, options: argparse.Namespace) -> None:
    """Print what was measured; with `--out FILE.json` write it there, and take it into the folder FILE."""
    text = json.dumps(result, indent=1)
    if options.output == "json":
        print(text, flush=True)
    else:
        print_part(part, rows_of(result))
    if options.out is None:
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(text + "\n")
    folder = options.out.with_suffix("")
    folder.mkdir(exist_ok=True)
    file = folder / f"{part}.json"
    old = rows_of(json.loads(file.read_text())) if file.is_file() else []
    stamped = [
        {**row, "measured": result["machine"]["at"], "command": result["command"]} for row in rows_of(result)
    ]
    result = {**result, "rows": merged(old, stamped)}
    file.write_text(json.dumps(result, indent=1) + "\n")


def print_part(part: str, rows: Sequence[Row]) -> None:
    """For people."""
    for line in lines_of(part, rows):
        print(line)


def lines_of(part: str, rows: Sequence[Row]) -> list[str]:
    """A table of fixed columns."""
    head, body = table_of(part, rows)
    columns = [max(len(str(line[at])) for line in (head, *body)) for at in range(len(head))]
    return [
        "  ".join(str(item).ljust(width) for item, width in zip(line, columns, strict=True)).rstrip()
        for line in (head, *body)
    ]


def table_of(part: str, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Head and lines of a part's table."""
    head = [
        "service",
        "mode",
        "load",
        "kind",
        "batch",
        "bytes",
        "state",
        "bare ms",
        "ms",
        "added",
        "overhead %",
        "95 %",
        "lost %",
        "95 %",
        "cores",
        "run",
    ]
    body = []
    for row in rows:
        over, lost = row["overhead_percent"], row["lost_percent"]
        body.append(
            [
                row["service"],
                row["mode"],
                row["load"],
                row["kind"],
                str(row["batch"]),
                f"{row['bytes']:.3g}",
                row["state"],
                f"{row['bare_ms']:.2f}",
                f"{row['mode_ms']:.2f}",
                f"{row['added_ms']:.2f}",
                f"{over['value']:.2f}",
                f"{over['low']:.2f}..{over['high']:.2f}",
                f"{lost['value']:.2f}",
                f"{lost['low']:.2f}..{lost['high']:.2f}",
                f"{row['bare_busy_cores']:.2f}/{row['mode_busy_cores']:.2f}",
                "void" if row["void"] else "ok",
            ]
        )
    return head, body
