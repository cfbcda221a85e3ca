"""What the instances of a graph wrote into their traces (`HAMS_TRACE`), read again: one clock for all."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Note:
    """One line: CLOCK_MONOTONIC in ns, the instance, and what it was told or did."""

    at: int
    who: str
    what: str

    @property
    def kind(self) -> str:
        """Which event or effect it is."""
        return self.what.partition(" ")[0]

    @property
    def rest(self) -> list[str]:
        """What is said of it: the requests of a batch, the version of a state."""
        return self.what.split()[1:]


def notes(folder: Path, of: str = "") -> list[Note]:
    """All lines of the instances whose names begin with `of`, in order of time. A line that a kill cut off is
    none."""
    return sorted(_lines(folder, of), key=lambda note: note.at)


def _lines(folder: Path, of: str) -> Iterator[Note]:
    for file in folder.glob(f"{of}*.trace"):
        yield from _parsed(file.read_text())


def _parsed(text: str) -> Iterator[Note]:
    for line in text.splitlines(keepends=True):
        at, _, rest = line.partition(" ")
        who, _, what = rest.rstrip("\n").partition(" ")
        if line.endswith("\n") and at.isdecimal() and what:
            yield Note(int(at), who, what)


class Tail:
    """What the instances whose names begin with `of` write from now on, of some kinds. Each byte is read
    once: a long trace that is read again and again would take the time of what is measured."""

    def __init__(self, folder: Path, of: str, kinds: Collection[str]) -> None:
        self._folder = folder
        self._of = of
        self._kinds = kinds
        self._read = {file: file.stat().st_size for file in self._files()}
        self._notes: list[Note] = []

    def notes(self) -> list[Note]:
        """All of it so far, in order of time."""
        for file in self._files():
            with file.open("rb") as stream:
                stream.seek(self._read.get(file, 0))
                whole, end, _ = stream.read().rpartition(b"\n")
            self._read[file] = self._read.get(file, 0) + len(whole) + len(end)
            self._notes += [note for note in _parsed((whole + end).decode()) if note.kind in self._kinds]
        self._notes.sort(key=lambda note: note.at)
        return self._notes

    def _files(self) -> list[Path]:
        return list(self._folder.glob(f"{self._of}*.trace"))


def recovered(
    lines: Sequence[Note], struck: int, dead: Collection[str], *, replays: bool = False
) -> dict[str, float]:
    """Of one operator's lines: seconds from a kill until an instance that was not hit starts its first batch,
    until it has learnt of the topology on which it does so, and how long it loaded the state before, if it
    did. Empty if nobody has.

    `replays`: a new owner first runs again what its predecessor had run. It has recovered with the first
    batch that holds a request which nobody had finished before the kill.
    """
    finished = (
        {name for at, _, names in batches(lines) if at < struck for name in names} if replays else set()
    )
    after = [note for note in lines if note.at >= struck and note.who not in dead]
    starts = (note for note in after if note.kind == "StartBatch")
    first = next((note for note in starts if not (replays and finished.issuperset(note.rest))), None)
    if first is None:
        return {}
    parts = {"recovered": (first.at - struck) / 1e9}
    own = [note for note in after if note.who == first.who and note.at <= first.at]
    began = next((note.at for note in own if note.kind == "LoadState"), None)
    ended = next((note.at for note in own if note.kind == "Loaded" and began and note.at >= began), None)
    learnt = [note.at for note in own if note.kind == "TopologyLearnt" and note.at <= (began or first.at)]
    if learnt:
        parts["learnt"] = (learnt[-1] - struck) / 1e9
    if began is not None and ended is not None:
        parts["load"] = (ended - began) / 1e9
    return parts


def all_recovered(
    lines: Sequence[Note], operators: Sequence[str], struck: int, dead: Collection[str], *, replays: bool
) -> dict[str, float]:
    """Of several operators that were hit at once, the longest of each step. Empty if one of them has not
    started a batch."""
    each = [
        recovered([note for note in lines if of_operator(note, name)], struck, dead, replays=replays)
        for name in operators
    ]
    if not all(each):
        return {}
    steps = {step for parts in each for step in parts}
    return {step: max(parts[step] for parts in each if step in parts) for step in sorted(steps)}


def of_operator(note: Note, operator: str) -> bool:
    """Whether an instance of this operator wrote it."""
    return note.who.startswith(f"{operator}-")


def batches(lines: Sequence[Note]) -> Iterator[tuple[int, float, list[str]]]:
    """Batches that were finished: when, the seconds that each took, and its requests. An instance runs one at
    a time."""
    began: dict[str, Note] = {}
    for note in lines:
        if note.kind == "StartBatch":
            began[note.who] = note
        elif note.kind == "BatchDone" and note.who in began:
            start = began.pop(note.who)
            yield note.at, (note.at - start.at) / 1e9, start.rest


@dataclass(frozen=True)
class Unstored:
    """What an operator has run since its newest stored state. `batches`: how many. `seconds`: what they took
    on the model. `stored`: how many states it has stored so far. `early`: how many of these were captured
    fewer batches after the one before than it is asked to wait."""

    batches: int
    seconds: float
    stored: int
    early: int = 0


UNSTORED_KINDS = frozenset({"StartBatch", "BatchDone", "Capture", "CheckpointWritten"})
"""What it is read from."""


def unstored(lines: Sequence[Note], every: int = 0) -> Unstored:
    """Of one operator's lines, where states are stored, after `every` batches, and run again. Its newest
    owner counts alone: what it began with was stored, and what it ran again is not stored once more."""
    starts = [note for note in lines if note.kind == "StartBatch"]
    owner = starts[-1].who if starts else ""
    own = [note for note in lines if note.who == owner]
    ran = [(at, took) for at, took, _ in batches(own)]
    captured, begin, stored, early = dict[str, int](), 0, 0, 0
    for note in own:
        if note.kind == "Capture":
            captured[note.rest[0]] = note.at
        elif note.kind == "CheckpointWritten" and len(note.rest) == 1:  # a failed one says so
            stored += 1
            end = captured.get(note.rest[0])
            if end is not None:  # the state that its epoch begins with is nobody's capture
                early += sum(begin < at <= end for at, _ in ran) < every
                begin = end
    run = [took for at, took in ran if at > begin]
    return Unstored(len(run), sum(run), stored, early)
