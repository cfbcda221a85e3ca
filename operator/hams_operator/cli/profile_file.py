"""A file of stored profiles, which `hams profile` writes and reads: one JSON object, readable by people.

It may come from anywhere: whatever is no profile is refused with a sentence that says what was expected and
where, and nothing of such a file is used.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hams_graph.resource import DNS_LABEL
from hams_schedule.stored import ProfileRefused, document_of, load, stored_bytes

KIND: Final = "hams-profiles"
FORMAT: Final = 1

file_bytes_max = 16 << 20
"""A file of profiles: those of 64 operators, with room."""


class FileRefused(Exception):
    """A file is no file of profiles, or cannot be read or written. The text says what and where."""


def write(path: Path, graph: str, profiles: Mapping[str, bytes]) -> None:
    """Write stored profiles, by operator; `graph` is where they come from, for people. Raises FileRefused."""
    operators = {name: document_of(data) for name, data in profiles.items()}
    document = {"kind": KIND, "format": FORMAT, "graph": graph, "operators": operators}
    try:
        path.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")
    except OSError as error:
        raise FileRefused(f"{path}: {error.strerror or error}") from None


def read(path: Path) -> dict[str, bytes]:
    """The profiles in a file, by operator. Raises FileRefused."""
    operators = _document(path).get("operators")
    if not isinstance(operators, dict) or not operators:
        raise FileRefused(f"{path}: operators: expected an object with a profile for each operator")
    profiles: dict[str, bytes] = {}
    for name, document in operators.items():
        if not re.fullmatch(DNS_LABEL.pattern, name) or len(name) > DNS_LABEL.most:
            raise FileRefused(f"{path}: operators: expected names of operators, found {ascii(name)[:40]}")
        try:
            data = stored_bytes(document)
            load(data, "")  # whose it is says who reads it
        except ProfileRefused as error:
            raise FileRefused(f"{path}: operators.{name}: {error}") from None
        profiles[name] = data
    return profiles


def _document(path: Path) -> dict[str, object]:
    """The JSON object of a file of profiles. Raises FileRefused."""
    try:
        with path.open("rb") as file:
            text = file.read(file_bytes_max + 1)
    except OSError as error:
        raise FileRefused(f"{path}: {error.strerror or error}") from None
    if len(text) > file_bytes_max:
        raise FileRefused(f"{path}: expected {file_bytes_max} bytes at most, found more")
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise FileRefused(
            f"{path}: line {error.lineno}: expected what hams profile --save writes, found no JSON: "
            f"{error.msg}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise FileRefused(
            f"{path}: expected what hams profile --save writes, found {type(error).__name__}"
        ) from None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise FileRefused(f'{path}: expected what hams profile --save writes, with "kind": "{KIND}"')
    if document.get("format") != FORMAT:
        shown = ascii(document.get("format"))[:40]
        raise FileRefused(f"{path}: format: expected {FORMAT}, found {shown}")
    return document
