"""What the instances of a graph wrote into their traces (`HAMS_TRACE`), read again: one clock for all."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Note:
    """One line: CLOCK_MONOTONIC in ns, the instance, and what it was told or did."""

    at: int
    who: str
    what: str


def notes(folder: Path, of: str = "") -> list[Note]:
    """All lines of the instances whose names begin with `of`, in order of time. A line that a kill cut off is
    none."""
    return sorted(_lines(folder, of), key=lambda note: note.at)


def _lines(folder: Path, of: str) -> Iterator[Note]:
    for file in folder.glob(f"{of}*.trace"):
        for line in file.read_text().splitlines(keepends=True):
            at, _, rest = line.partition(" ")
            who, _, what = rest.rstrip("\n").partition(" ")
            if line.endswith("\n") and at.isdecimal() and what:
                yield Note(int(at), who, what)


def recovered(lines: list[Note], struck: int, dead: Collection[str]) -> dict[str, float]:
    """Seconds from a kill until an instance that was not hit starts its first batch, and how long it loaded
    the state before, if it did. Empty if nobody has."""
    after = [note for note in lines if note.at >= struck and note.who not in dead]
    first = next((note for note in after if note.what == "StartBatch"), None)
    if first is None:
        return {}
    parts = {"recovered": (first.at - struck) / 1e9}
    own = [note for note in after if note.who == first.who and note.at <= first.at]
    began = next((note.at for note in own if note.what == "LoadState"), None)
    ended = next((note.at for note in own if note.what == "Loaded" and began and note.at >= began), None)
    if began is not None and ended is not None:
        parts["load"] = (ended - began) / 1e9
    return parts
