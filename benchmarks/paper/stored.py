"""Rows of earlier runs, as they lie in files."""

import json
from pathlib import Path
from typing import Any

from benchmarks.report import Result, in_short


def result_in(file: Path) -> Result:
    """What earlier runs have left of a part; without rows if there is no such file. Raises ValueError."""
    return _sound(file, _json_in(file)) if file.exists() else {"rows": [], "machines": {}}


def beside(file: Path) -> Result | None:
    """What `hams bench overhead` left in a file; None if there is none, or another measurement's. Raises
    ValueError."""
    result = _json_in(file) if file.is_file() else None
    if not isinstance(result, dict) or result.get("bench") != "overhead":
        return None
    return _sound(file, result)


def refused(file: Path, wrong: str) -> str:
    """The sentence for a file that cannot be used."""
    return f"{file}: expected rows of earlier runs, found {wrong}; move it away"


def _json_in(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(refused(file, str(error))) from None


def _sound(file: Path, result: Any) -> Result:
    if not isinstance(result, dict) or not isinstance(result.get("rows"), list):
        raise ValueError(refused(file, "no `rows`"))
    for row in result["rows"]:
        if not isinstance(row, dict):
            raise ValueError(refused(file, f"a row that is {in_short(row)}"))
    if not isinstance(result.get("machines", {}), dict):
        raise ValueError(refused(file, f"`machines`: {in_short(result['machines'])}"))
    return dict(result)
