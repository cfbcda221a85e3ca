"""Log files of a run's processes: their last lines, and the cut of one that has grown too long.

A model may write without end and without newlines, so nothing here reads more of a file than it was told to.
Processes hold their logs open for appending: a log is copied and cut, never renamed.
"""

import os
from pathlib import Path


def last_lines(path: Path, lines_max: int, bytes_max: int) -> list[str]:
    """The last lines of a file, out of its last `bytes_max` bytes: the first of them may lack its beginning.
    Raises OSError."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - bytes_max))
        lines = file.read(bytes_max).decode("utf-8", "replace").splitlines()
    return lines[-lines_max:] if lines_max > 0 else []


def new_lines(path: Path, start: int, size: int, bytes_max: int) -> tuple[int, list[str]]:
    """Whole lines between `start` and `size`, and where the next ones begin. Of more than `bytes_max` bytes
    the end alone is read; and so much without a newline is a line. Raises OSError."""
    start = max(start, size - bytes_max)
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(size - start)
    whole = data if len(data) == bytes_max and b"\n" not in data else data[: data.rfind(b"\n") + 1]
    return start + len(whole), whole.decode("utf-8", "replace").splitlines()


def cut(path: Path, bytes_max: int) -> None:
    """Empty a log; its last `bytes_max` bytes become its `.1`. A process that writes on does so at the
    beginning. Raises OSError, and then nothing is cut."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - bytes_max))
        end = file.read(bytes_max)
    path.with_name(f"{path.name}.1").write_bytes(end)
    os.truncate(path, 0)


def shortened(line: str, chars_max: int) -> str:
    """One line, with its end left out if it is too long for a terminal."""
    return line if len(line) <= chars_max else f"{line[: chars_max - 3]}..."
