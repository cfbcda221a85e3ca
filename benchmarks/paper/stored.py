"""Rows of earlier runs, as they lie in files: read, and checked before anything is measured.

Whoever measures for hours must not lose the page to a file that somebody else wrote. So a file is refused
beforehand, with what is wrong in it, and rows have the fields that tables, plots and goals read.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.paper.goals import TWO_OPERATORS
from benchmarks.paper.services import BARE, MODES, SERVICES
from benchmarks.report import Result, in_short

Row = Mapping[str, Any]

_Kinds = Mapping[str, type | tuple[type, ...]]
_NUMBER = (int, float)
_MAYBE = (int, float, type(None))

_SETTING: _Kinds = {
    "service": str,
    "models": str,
    "pace": str,
    "state": str,
    "bytes": _NUMBER,
    "batch": int,
    "rows_per_request": int,
}
_INTERVAL = ("value", "low", "high")
_PAIR: _Kinds = {
    **_SETTING,
    "mode": str,
    "load": str,
    "kind": str,
    "windows": int,
    "bare_ms": _NUMBER,
    "mode_ms": _NUMBER,
    "added_ms": _NUMBER,
    "bare_per_s": _NUMBER,
    "mode_per_s": _NUMBER,
    "overhead_percent": dict,
    "lost_percent": dict,
    "mode_busy_cores": _NUMBER,
    "others_cores": _NUMBER,
    "void": bool,
}
_KILLED: _Kinds = {
    **_SETTING,
    "mode": str,
    "case": str,
    "kills": int,
    "recovered_ms": _MAYBE,
    "gap_ms": _MAYBE,
    "quiet_ms": _MAYBE,
    "detect_ms": _MAYBE,
    "decide_ms": _MAYBE,
    "load_ms": _MAYBE,
    "resend_ms": _MAYBE,
    "samples_ms": dict,
    "failed": int,
    "ok": bool,
    "wrong_counts": dict,
    "violations": list,
}
FIELDS: Mapping[str, _Kinds] = {
    "overhead": _PAIR,
    "batches": _PAIR,
    "ablations": _PAIR,
    "scale": _PAIR,
    "breakdown": {
        **_SETTING,
        "mode": str,
        "batches": int,
        "latency_ms": _NUMBER,
        "parts_ms": dict,
        "states_ms": dict,
        "cpu_ms_per_batch": dict,
        "core_ms_per_batch": _NUMBER,
    },
    "recovery": _KILLED,
    "correlated": _KILLED,
    "divergence": {
        **_SETTING,
        "mode": str,
        "case": str,
        "checkpoint_batches": int,
        "noise": _NUMBER,
        "kills": int,
        "requests": int,
        "asked_again": int,
        "two_values": int,
        "differing": int,
        "failed": int,
        "ok": bool,
        "wrong_counts": dict,
        "violations": list,
    },
    "peers": {
        **_SETTING,
        "system": str,
        "how": str,
        "latency_ms": _NUMBER,
        "per_s": _NUMBER,
        "gap_ms": _MAYBE,
        "failed": int,
        "counted": str,
    },
    TWO_OPERATORS: {
        "mode": str,
        "state_mb": _NUMBER,
        "changed": str,
        "delta": str,
        "seconds": _NUMBER,
        "p50_ms": _NUMBER,
        "throughput_loss_percent": _NUMBER,
        "latency_added_ms": _NUMBER,
    },
}
"""What every row of a part has."""

_MACHINE: _Kinds = {
    "cores": int,
    "processor": str,
    "memory_gib": _NUMBER,
    "kernel": str,
    "python": str,
    "versions": dict,
}


def result_in(file: Path, part: str) -> Result:
    """What earlier runs have left of a part; without rows if there is no such file. Raises ValueError."""
    return _sound(file, part, _json_in(file)) if file.is_file() else {"rows": [], "machines": {}}


def beside(file: Path) -> Result | None:
    """What `hams bench overhead` left in a file; None if there is none, or another measurement's. Raises
    ValueError."""
    result = _json_in(file) if file.is_file() else None
    if not isinstance(result, dict) or result.get("bench") != "overhead":
        return None
    return _sound(file, TWO_OPERATORS, result)


def _json_in(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(_refused(file, str(error))) from None


def _sound(file: Path, part: str, result: Any) -> Result:
    for wrong in _wrong_of(result, part):
        raise ValueError(_refused(file, wrong))
    return dict(result)


def _refused(file: Path, wrong: str) -> str:
    return f"{file}: expected rows of earlier runs, found {wrong}; move it away"


def _wrong_of(result: Any, part: str) -> Iterator[str]:
    if not isinstance(result, dict) or not isinstance(result.get("rows"), list):
        yield "no `rows`"
        return
    if part == TWO_OPERATORS:
        yield from _wrong_fields(result.get("machine"), _MACHINE, "`machine`")
    else:
        machines = result.get("machines", {})
        if not isinstance(machines, dict):
            yield f"`machines`: {in_short(machines)}"
            return
        for name, machine in machines.items():
            yield from _wrong_fields(machine, _MACHINE, f"machine {in_short(name)}")
    for at, row in enumerate(result["rows"], 1):
        yield from _wrong_row(row, part, f"row {at}")


def _wrong_row(row: Any, part: str, where: str) -> Iterator[str]:
    yield from _wrong_fields(row, FIELDS[part], where)
    if part == TWO_OPERATORS:
        return
    if row["service"] not in SERVICES:
        yield f"{where} of service {in_short(row['service'])}"
    if row.get("mode", BARE) not in (*MODES, BARE):
        yield f"{where} of mode {in_short(row['mode'])}"
    for name in ("overhead_percent", "lost_percent"):
        if name in row:
            yield from _wrong_fields(row[name], dict.fromkeys(_INTERVAL, _NUMBER), f"{where}, {name}")


def _wrong_fields(row: Any, fields: _Kinds, where: str) -> Iterator[str]:
    if not isinstance(row, dict):
        yield f"{where}: {in_short(row)}"
        return
    for name, kind in fields.items():
        if name not in row:
            yield f"{where} with no {name}"
        elif not isinstance(row[name], kind):
            yield f"{where} with {name}: {in_short(row[name])}"
