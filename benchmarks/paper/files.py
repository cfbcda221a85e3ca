"""The files that measurements leave behind.

The parts are measured in pieces, a service or a mode at a time. So the rows of each piece take their places
in one file for each part, and the page is made anew of all of them.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.paper.report import draw, write_page
from benchmarks.paper.tables import table_of
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
    placed = [fresh.pop(key_of(row), row) for row in old]
    return [*placed, *fresh.values()]


def deliver_parts(result: Result, part: str, options: argparse.Namespace) -> None:
    """Print what was measured. With `--out FILE.json` write it there, and its plot beside it; take it into
    the folder FILE, and make the page there anew."""
    text = json.dumps(result, indent=1)
    if options.output == "json":
        print(text, flush=True)
    else:
        print("\n".join(table_of(part, rows_of(result)).text()), flush=True)
    if options.out is None:
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(text + "\n")
    draw(part, rows_of(result), options.out.with_suffix(".svg"))
    folder = options.out.with_suffix("")
    folder.mkdir(exist_ok=True)
    file = folder / f"{part}.json"
    old = rows_of(json.loads(file.read_text())) if file.is_file() else []
    machine = result["machine"]
    assert isinstance(machine, dict)
    stamped = [{**row, "measured": machine["at"], "command": result["command"]} for row in rows_of(result)]
    together = {**result, "rows": merged(old, stamped)}
    file.write_text(json.dumps(together, indent=1) + "\n")
    draw(part, rows_of(together), folder / f"{part}.svg")
    write_page(folder)
