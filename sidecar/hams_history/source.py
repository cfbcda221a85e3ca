"""Where the lines of a history come from: a folder of files, one file, or a list in memory. Says where each
line stood.

A folder's history is the concatenation of its files by name; order between files means nothing unless the
header says `ordered`. A last line without a newline was being written when its process died: its effect never
happened, so it is ignored.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from hams_history.lines import Line, decode, line_bytes_max

Complain = Callable[[str, str], None]
"""Called with a message and `file:line`."""


class History:
    """Lines and their places. `segments` are (position of the first line, file, its number in the file),
    ascending."""

    def __init__(self, lines: Sequence[Line], segments: Sequence[tuple[int, str, int]] = ()) -> None:
        self.lines = lines
        self.segments = segments
        self._starts = [start for start, _, _ in segments]

    def where(self, position: int) -> str:
        """`file:line` of a position; `line N`, counted from 1, of a history in memory."""
        if not self.segments:
            return f"line {position + 1}"
        start, name, number = self.segments[bisect_right(self._starts, position) - 1]
        return f"{name}:{number + position - start}"


def read(path: Path, complain: Complain) -> History:
    """The history in a folder of `*.jsonl` files, or in one such file. What cannot be read is told to
    `complain`.

    Raises FileNotFoundError if there is no such folder or file.
    """
    if path.is_dir():
        files = sorted(path.glob("*.jsonl"), key=lambda item: item.name)
        if not files:
            complain("no *.jsonl file in this folder", str(path))
    else:
        files = [path]
    lines: list[Line] = []
    segments: list[tuple[int, str, int]] = []
    for file in files:
        _read_file(file, lines, segments, complain)
    return History(lines, segments)


def _read_file(
    file: Path, lines: list[Line], segments: list[tuple[int, str, int]], complain: Complain
) -> None:
    segments.append((len(lines), file.name, 1))
    with file.open("rb") as stream:
        for number, text in enumerate(stream, 1):
            if not text.endswith(b"\n"):
                return
            if len(text) > line_bytes_max:
                complain(
                    f"a line of {len(text)} bytes; at most {line_bytes_max} are allowed",
                    f"{file.name}:{number}",
                )
            else:
                try:
                    lines.append(decode(text))
                    continue
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    complain(f"not a line of a history: {error}", f"{file.name}:{number}")
            segments.append((len(lines), file.name, number + 1))
