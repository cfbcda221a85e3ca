"""Tables of what was measured: a head and lines of text, for a terminal and for the page alike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from benchmarks.paper.breakdown import PARTS as PARTS_OF_A_BATCH
from benchmarks.paper.published import CORRELATED, PUBLISHED, STATELESS_MS, bare_ms
from benchmarks.paper.running import CAPTURED
from benchmarks.paper.services import PAPER_TIMES, replays

Row = Mapping[str, Any]
ABSENT = "-"
PAPER_PERCENT = "paper % (*: assumed)"
PARTS_MAX = 1024
"""Of a state: smaller ones than a 1024th are not measured."""

STEPS_SHOWN = ("detect", "decide", "load", "resend")


@dataclass(frozen=True)
class Table:
    """Lines of equally many cells under a head."""

    head: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]

    def text(self) -> list[str]:
        """For a terminal."""
        everything = (self.head, *self.lines)
        widths = [max(len(line[at]) for line in everything) for at in range(len(self.head))]
        return [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in everything
        ]


def table_of(part: str, rows: Sequence[Row]) -> Table:
    """The table of a part."""
    return _TABLES[part](rows)


def machine_name(machine: Mapping[str, Any]) -> str:
    """What is told apart by it: rows of two machines do not compare."""
    told = (f"{machine['cores']} cores", machine["processor"], machine.get("gpu", ""))
    return ", ".join(filter(None, told))


def machine_of(row: Row) -> str:
    """Where it was measured."""
    return str(row.get("machine", "this machine"))


def code_of(row: Row) -> str:
    """What ran: the commit, whether its core was machine code, and torch where its networks are real."""
    if "commit" not in row:
        return "not recorded"
    core = "compiled" if row["compiled"] else "not compiled"
    torch = f"torch {row['torch']}" if row.get("models") == "real" and row["torch"] else ""
    return ", ".join(filter(None, (row["commit"], core, torch)))


def on_machines(table: Table, rows: Sequence[Row]) -> Table:
    """With columns that name the machine and the code of each row, where there are several."""
    for name, of in (("machine", machine_of), ("code", code_of)):
        if len(set(map(of, rows))) > 1:
            told = ((*line, of(row)) for line, row in zip(table.lines, rows, strict=True))
            table = Table((*table.head, name), tuple(told))
    return table


def interval(percent: Mapping[str, float]) -> str:
    """A percentage with its interval."""
    return f"{percent['value']:.1f} ({percent['low']:.1f} to {percent['high']:.1f})"


def setting(row: Row, *, without: str = "") -> str:
    """What tells a row from others of its service and mode, but for what is `without`."""
    named = {
        "state": row["state"],
        "bytes": "" if row["bytes"] == 1 else str(Fraction(row["bytes"]).limit_denominator(PARTS_MAX)),
        "states": "whole" if row.get("states") == "whole" else "",
        "models": "real" if row["models"] == "real" else "",
        "pace": "no pace" if row["pace"] == "none" else "",
        "times": "" if (times := row.get("times", PAPER_TIMES)) == PAPER_TIMES else f"times {times}",
        "rows_per_request": "single rows" if row["rows_per_request"] < row["batch"] else "",
    }
    return ", ".join(text for name, text in named.items() if text and name != without)


def verdict(row: Row) -> str:
    """Whether a pair of windows counts."""
    if row.get("failed_over"):
        return "void: failed over"
    if row["void"]:
        return "void: other work" if not row.get("disturbed", True) else "void: disturbed"
    return "ok"


def _windows(row: Row) -> str:
    return f"{row['windows']} x {row['window_s']:g} s" if "window_s" in row else ABSENT


def _cores(row: Row, which: str) -> str:
    values = (row.get(f"{side}_{which}_cores") for side in ("bare", "mode"))
    return " / ".join(ABSENT if value is None else f"{value:.2f}" for value in values)


def _overhead(rows: Sequence[Row]) -> Table:
    head = ("service", "mode", "load", "kind", "batch", "setting", "windows", "bare ms", "ms", "added ms",
            "overhead %", "throughput lost %", PAPER_PERCENT, "cores: bare / mode",
            "at rest: bare / mode", "others' cores", "run")  # fmt: skip
    lines = [
        (
            row["service"],
            row["mode"],
            row["load"],
            row["kind"],
            str(row["batch"]),
            setting(row),
            _windows(row),
            f"{row['bare_ms']:.1f}",
            f"{row['mode_ms']:.1f}",
            f"{row['added_ms']:.1f}",
            interval(row["overhead_percent"]),
            interval(row["lost_percent"]),
            _paper_overhead(row),
            _cores(row, "busy"),
            _cores(row, "idle"),
            f"{row['others_cores']:.2f}",
            verdict(row),
        )
        for row in rows
    ]
    return Table(head, tuple(lines))


def _paper_overhead(row: Row) -> str:
    """What the mode added in the paper, at a full batch with whole states."""
    compares = row["batch"] == 64 and row["load"] != "Sat"
    return paper_percent(row["service"], row["mode"]) if compares else ABSENT


def paper_percent(service: str, mode: str) -> str:
    """Overhead in the paper; with a star where bare metal is not the paper's, but taken for it."""
    published = PUBLISHED[service]
    if mode not in published.latency:
        return ABSENT
    percent = 100 * (published.latency[mode] / bare_ms(service) - 1)
    return f"{percent:.1f}{'' if published.bare else '*'}"


def _recovery(rows: Sequence[Row]) -> Table:
    head = (
        "service",
        "mode",
        "setting",
        "killed",
        "kills",
        "while it ran",
        "after a stored state",
        "recovered ms",
        "paper ms",
        "gap beyond usual ms",
        "usual ms",
        "slowest request ms",
        *STEPS_SHOWN,
        "failed",
        "lost or doubled",
    )
    lines = [
        (
            row["service"],
            row["mode"],
            setting(row),
            row["case"],
            str(row["kills"]),
            str(row.get("while_running", ABSENT)),
            _unstored(row),
            _number(row["recovered_ms"]),
            _paper_recovery(row),
            _number(row["gap_ms"]),
            _number(row["quiet_ms"]),
            _number(row.get("slowest_ms")),
            *(_number(row[f"{step}_ms"]) for step in STEPS_SHOWN),
            str(row["failed"]),
            lost(row),
        )
        for row in rows
    ]
    return Table(head, tuple(lines))


def _unstored(row: Row) -> str:
    """How much was to be run again, where a mode does that."""
    batches = row.get("unstored_batches")
    if batches is None:
        return ABSENT
    early = f"; {row['stored_early']} of {row['stored']} states stored early" if "stored" in row else ""
    return f"{batches} batches, {row['unstored_ms']:.0f} ms{early}"


def lost(row: Row) -> str:
    """What the counts and the history say."""
    if row["ok"]:
        broken = ", ".join(f"{name} {count}" for name, count in sorted(row.get("broken", {}).items()))
        return f"guilty, as expected: {broken}" if broken else "nothing"
    said = [
        *row.get("errors", ()),
        *(f"counts of {name}: {text}" for name, text in row["wrong_counts"].items()),
        *row["violations"],
    ]
    return "SOMETHING: " + "; ".join(said[:3])


def _paper_recovery(row: Row) -> str:
    if (together := f"{row['service']} {row['case']}") in CORRELATED:
        return _number(CORRELATED[together])
    if row["case"].endswith("stateless"):
        return _number(STATELESS_MS)
    return _number(PUBLISHED[row["service"]].recovery.get(row["mode"]))


def _divergence(rows: Sequence[Row]) -> Table:
    head = ("service", "mode", "stored every", "noise", "kills", "requests", "units with two visible values",
            "asked again", "two answers under one key", "failed", "lost or doubled")  # fmt: skip
    lines = [
        (
            row["service"],
            row["mode"],
            f"{row['checkpoint_batches']} batches" if replays(row["mode"]) else ABSENT,
            f"{row['noise']:g}",
            str(row["kills"]),
            str(row["requests"]),
            str(row.get("two_values", ABSENT)),
            str(row["asked_again"]),
            str(row["differing"]),
            str(row["failed"]),
            lost(row),
        )
        for row in rows
    ]
    return Table(head, tuple(lines))


def _breakdown(rows: Sequence[Row]) -> Table:
    kinds = sorted({kind for row in rows for kind in row["cpu_ms_per_batch"]})
    head = ("service", "mode", "kind", "setting", "batches", "latency ms",
            *(f"{name} ms" for name in PARTS_OF_A_BATCH), "states: capture / record / acknowledged ms",
            "states, MB a batch: " + " / ".join(CAPTURED), "core ms",
            *(f"CPU {kind} ms" for kind in kinds))  # fmt: skip
    lines = [
        (
            row["service"],
            row["mode"],
            row.get("kind", "all"),
            setting(row),
            str(row["batches"]),
            _number(row["latency_ms"]),
            *(_number(row["parts_ms"].get(name)) for name in PARTS_OF_A_BATCH),
            "; ".join(_state(op, steps) for op, steps in row["states_ms"].items() if steps) or ABSENT,
            _moved(row.get("mb_per_batch")),
            _number(row.get("core_ms_per_batch")),
            *(_number(row["cpu_ms_per_batch"].get(kind)) for kind in kinds),
        )
        for row in rows
    ]
    return Table(head, tuple(lines))


def _moved(megabytes: Mapping[str, float] | None) -> str:
    """Bytes of the states of one batch; rows that were measured before they were counted have none."""
    return ABSENT if megabytes is None else " / ".join(f"{megabytes[name]:.2f}" for name in CAPTURED)


def _state(operator: str, steps: Mapping[str, float]) -> str:
    numbers = (_number(steps.get(name)) for name in ("capture", "record", "acknowledged"))
    return f"{operator} {' / '.join(numbers)}"


def _peers(rows: Sequence[Row]) -> Table:
    head = (
        "service",
        "system",
        "how",
        "setting",
        "L1 ms",
        "Sat batches/s",
        "gap after a kill ms",
        "slowest request ms",
        "failed",
        "count afterwards",
    )
    lines = [
        (
            row["service"],
            row["system"],
            row["how"],
            setting(row),
            _number(row["latency_ms"]),
            f"{row['per_s']:.2f}",
            _number(row["gap_ms"]),
            _number(row.get("slowest_ms")),
            str(row["failed"]),
            row["counted"],
        )
        for row in rows
    ]
    return Table(head, tuple(lines))


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.1f}"


_TABLES: dict[str, Callable[[Sequence[Row]], Table]] = {
    "overhead": _overhead,
    "batches": _overhead,
    "ablations": _overhead,
    "scale": _overhead,
    "breakdown": _breakdown,
    "recovery": _recovery,
    "correlated": _recovery,
    "divergence": _divergence,
    "peers": _peers,
}
