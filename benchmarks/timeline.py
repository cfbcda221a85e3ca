"""Where every millisecond of one failover goes: one kill, and what every process was told and did, on one
clock.

`hams bench timeline [--cell NAME] [--before MS] [--after MS] [--out FILE.txt]`: the cells are those of `hams
bench recovery`. Times are in ms since the kill; requests that ran meanwhile are between the lines.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import uvloop

from benchmarks.recovery import CELLS, measure_cell
from hams_wire.trace import ENVIRONMENT


def main(arguments: list[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser("hams bench timeline", description=__doc__)
    parser.add_argument("--cell", default="both", choices=[cell.name for cell in CELLS])
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--kills", type=int, default=1, help="one timeline each")
    parser.add_argument("--before", type=float, default=3.0, help="ms before the kill")
    parser.add_argument("--after", type=float, default=60.0, help="ms after it")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args(arguments)
    cell = next(cell for cell in CELLS if cell.name == options.cell)
    with tempfile.TemporaryDirectory(prefix="hams-trace-", dir="/dev/shm") as folder:
        os.environ[ENVIRONMENT] = folder
        result = uvloop.run(measure_cell(cell, options.kills, options.clients))
        lines = list(_lines(Path(folder)))
    text = ""
    kills = result["kills_at"]
    assert isinstance(kills, list)
    for number, moment in enumerate(kills):
        gap, slowest = result["gaps_ms"][number], result["slowests_ms"][number]  # type: ignore[index]
        text += f"=== kill {number}: gap {gap} ms, slowest request {slowest} ms\n"
        for at, who, what in lines:
            ms = (at - moment) / 1e6
            if -options.before <= ms <= options.after:
                text += f"{ms:9.3f} {who:20} {what}\n"
    if options.out is not None:
        options.out.write_text(text)
    else:
        sys.stdout.write(text)
    return 0


def _lines(folder: Path) -> list[tuple[int, str, str]]:
    lines: list[tuple[int, str, str]] = []
    for file in folder.glob("*.trace"):
        for line in file.read_text(errors="replace").splitlines():
            at, who, what = line.split(" ", 2)
            lines.append((int(at), who, what))
    return sorted(lines)


if __name__ == "__main__":
    sys.exit(main())
