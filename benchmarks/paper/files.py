"""The files that measurements leave behind.

The parts are measured in pieces, a service or a mode at a time. So the rows of each piece take their places
in one file for each part, and the page is made anew of all of them.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
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
    "checkpoint_batches",
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


def deliver_parts(results: Mapping[str, Result], options: argparse.Namespace) -> None:
    """Print what was measured, by part. With `--out FILE.json` write it there, and its plot beside it (of the
    first part); take it into the folder FILE, and make the page there anew."""
    text = json.dumps(results if len(results) > 1 else next(iter(results.values())), indent=1)
    if options.output == "json":
        print(text, flush=True)
    else:
        for part, result in results.items():
            print("\n".join(table_of(part, rows_of(result)).text()), flush=True)
    if options.out is None:
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(text + "\n")
    first = next(iter(results))
    draw(first, rows_of(results[first]), options.out.with_suffix(".svg"))
    for part, result in results.items():
        _take_in(part, result, options.out.with_suffix(""))
    write_page(options.out.with_suffix(""))


def _take_in(part: str, result: Result, folder: Path) -> None:
    """Rows into their places among those of earlier runs."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{part}.json"
    old = rows_of(json.loads(file.read_text())) if file.is_file() else []
    machine = result["machine"]
    assert isinstance(machine, dict)
    stamped = [{**row, "measured": machine["at"], "command": result["command"]} for row in rows_of(result)]
    together = {**result, "rows": merged(old, stamped)}
    file.write_text(json.dumps(together, indent=1) + "\n")
    draw(part, rows_of(together), folder / f"{part}.svg")
