"""Numbers computed from rows of several parts: the cores that states of full size take under a saturated
load, which few machines can run, and the size of states from which on a mode costs more than a goal
allows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.paper.overhead import EASED
from benchmarks.paper.services import SERVICES, Settings, state_bytes
from benchmarks.paper.tables import ABSENT, Table

Row = Mapping[str, Any]
Rows = Mapping[str, Sequence[Row]]

SIZES_MIN = 3
"""A line through fewer sizes says nothing of how straight it is."""

ONE_LINE = ("service", "mode", "kind", "models", "pace", "state", "states", "times", "batch",
            "rows_per_request", "machine")  # fmt: skip
"""What rows have in common through whose sizes one line goes."""

ALLOWED_PERCENT = 2.0
"""The overhead over bare metal for which the size of states is given."""


def cores_of_full_size(rows: Rows) -> Table:
    """Cores that a mode takes under Sat with states of full size, where only smaller ones were measured: the
    CPU time of one batch of full size (`breakdown`) at the rate of the smaller ones."""
    head = ("service", "mode", "batches/s", "CPU ms a batch, full size", "cores", "cores, states 1/8")
    lines = []
    for row in rows.get("overhead", ()):
        if row["load"] != "Sat" or row["bytes"] != EASED or row["kind"] not in ("all", "mean"):
            continue
        cpu_ms = _cpu_ms(rows.get("breakdown", ()), row)
        if cpu_ms is not None:
            cores = cpu_ms / 1000 * row["mode_per_s"]
            lines.append(
                (
                    row["service"],
                    row["mode"],
                    f"{row['mode_per_s']:.2f}",
                    f"{cpu_ms:.0f}",
                    f"{cores:.2f}",
                    f"{row['mode_busy_cores']:.2f}",
                )
            )
    return Table(head, tuple(lines))


def _cpu_ms(breakdown: Sequence[Row], row: Row) -> float | None:
    """CPU time of one batch of the same service and mode with states of full size."""
    alike = ("service", "mode", "models", "pace", "state", "states", "times", "batch", "rows_per_request")
    for one in breakdown:
        if one["bytes"] == 1 and all(one.get(name) == row.get(name) for name in alike):
            return float(sum(one["cpu_ms_per_batch"].values()))
    return None


def sizes(rows: Rows) -> Table:
    """What a batch takes longer, fitted over the sizes of states (`scale`): a fixed part, and one by MB of a
    service's states; and the size from which on both are more than `ALLOWED_PERCENT` of bare metal."""
    head = ("service", "mode", "kind", "sizes", "fixed ms", "ms per 100 MB", "farthest from it, ms",
            f"MB at {ALLOWED_PERCENT:g} %")  # fmt: skip
    return Table(head, tuple(_fits(rows.get("scale", ()))))


def _fits(scale: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in scale:
        groups.setdefault(tuple(row.get(name) for name in ONE_LINE), []).append(row)
    for mine in groups.values():
        megabytes = np.array([_megabytes(row) for row in mine])
        if len(set(megabytes)) < SIZES_MIN:
            continue
        added = np.array([row["added_ms"] for row in mine])
        slope, fixed = np.polyfit(megabytes, added, 1)
        residual = float(np.abs(fixed + slope * megabytes - added).max())
        allowed = ALLOWED_PERCENT / 100 * float(np.median([row["bare_ms"] for row in mine]))
        at = f"{max(allowed - fixed, 0.0) / slope:.0f}" if slope > 0 else ABSENT
        said = tuple(str(mine[0][name]) for name in ("service", "mode", "kind"))
        yield (*said, str(len(mine)), f"{fixed:.1f}", f"{100 * slope:.1f}", f"{residual:.1f}", at)


def _megabytes(row: Row) -> float:
    settings = Settings(state=row["state"], bytes=row["bytes"], batch=row["batch"])
    return state_bytes(SERVICES[row["service"]], settings) / 1e6
