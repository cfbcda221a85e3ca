"""The files that measurements leave behind.

The parts are measured in pieces, a service or a mode at a time. So the rows of each piece take their places
in one file for each part, and the page is made anew of all of them.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.paper.report import check_page, draw, made_of, write_page
from benchmarks.paper.stored import result_in
from benchmarks.paper.tables import machine_name, table_of
from benchmarks.report import Result, rows_of

KEYS = (
    "service",
    "mode",
    "load",
    "kind",
    "models",
    "pace",
    "state",
    "states",
    "bytes",
    "batch",
    "rows_per_request",
    "times",
    "checkpoint_batches",
    "case",
    "system",
    "machine",
)
"""What tells one row of a part from another."""

Row = Mapping[str, Any]


def key_of(row: Row) -> tuple[object, ...]:
    """Which row it is, whenever it was measured."""
    return tuple(row.get(name) for name in KEYS)


def planned(row: Row) -> float:
    """How much was to be measured for a row: seconds of windows, or kills."""
    return float(row.get("pairs", 1) * row.get("window_s", 0) + row.get("kills", 0))


def merged(old: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """The new rows in the places of those that they replace, the rest behind. A row that was measured for
    longer stays: what a short run says is less."""
    fresh = {key_of(row): row for row in new}
    placed = []
    for row in old:
        other = fresh.pop(key_of(row), row)
        placed.append(row if planned(other) < planned(row) else other)
    return [*placed, *fresh.values()]


def check_folder(out: Path, parts: Sequence[str]) -> None:
    """Whether rows of these parts can be taken into the folder beside `out`, and plots and the page be made
    of all that lies there. Raises ValueError."""
    folder = out.with_suffix("")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {out}: its rows go into the folder {folder}, which is a file")
    check_page(folder)
    for part in parts:
        _check_part(part, folder / f"{part}.json")
    try:
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        for file in (*(folder / f"{part}.svg" for part in parts), folder / "index.html"):
            if file.exists():
                file.open("r+b").close()
    except OSError as error:
        raise ValueError(
            f"--out {out}: its rows go into the folder {folder}: {error.strerror or error}"
        ) from None


def _check_part(part: str, file: Path) -> None:
    """Whether others may come to the rows of a part. Raises ValueError."""
    rows = rows_of(result_in(file))
    with tempfile.TemporaryDirectory(prefix="hams-plot-") as folder, made_of(file):
        draw(part, merged(rows, []), Path(folder) / "plot.svg")


def deliver_part(part: str, results: Mapping[str, Result], options: argparse.Namespace) -> None:
    """What was just measured, the last of `results`: its table is printed. With `--out FILE.json` all results
    are written there, and the plot of the first part beside it; the part is taken into the folder FILE, and
    the page there made anew. Raises OSError, and ValueError if what lies there cannot be read."""
    if options.output != "json":
        print("\n".join(table_of(part, rows_of(results[part])).text()), flush=True)
    if options.out is None:
        return
    options.out.write_text(as_json(results) + "\n")
    _take_in(part, results[part], options.out.with_suffix(""))
    first = next(iter(results))
    draw(first, rows_of(results[first]), options.out.with_suffix(".svg"))
    write_page(options.out.with_suffix(""))


def as_json(results: Mapping[str, Result]) -> str:
    """One result alone, several by their parts."""
    return json.dumps(results if len(results) > 1 else next(iter(results.values())), indent=1)


def code(machine: Mapping[str, Any]) -> dict[str, object]:
    """What ran: it stands in each row, as pieces of one page are measured over many commits."""
    return {
        "commit": machine["commit"],
        "compiled": machine["compiled"],
        "torch": machine["versions"].get("torch", ""),
    }


def _take_in(part: str, result: Result, folder: Path) -> None:
    """Rows into their places among those of earlier runs."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{part}.json"
    before: Any = result_in(file)
    machine: Any = result["machine"]
    name = machine_name(machine)
    more = {"machine": name, "measured": machine["at"], "command": result["command"], **code(machine)}
    stamped = [{**row, **more} for row in rows_of(result)]
    together = {
        **result,
        "machines": {**before.get("machines", {}), name: machine},
        "rows": merged(rows_of(before), stamped),
    }
    fresh = file.with_suffix(".new")  # where the disk is full, the rows of earlier runs stay
    fresh.write_text(json.dumps(together, indent=1) + "\n")
    fresh.replace(file)
    draw(part, rows_of(together), folder / f"{part}.svg")
