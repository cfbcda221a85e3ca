"""When requests arrive: a rate that moves, and Poisson within. Smooth, in bursts, or as a file has counted
them.

A file is a table with commas whose columns 1, 2, 3 .. are minutes and whose rows are functions, each entry
how often one was called: the form of the Azure Functions traces (Shahrad et al., ATC 2020). All rows are
added up."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SPIKE = 2.5
"""By how much a rare segment of bursty arrivals exceeds the others."""
CORRELATION = 0.8
"""Of the logarithms of the rates of two segments, one after the other."""
MINUTES = 60
"""Of a file that a trace covers."""


class NotCounted(ValueError):
    """A file of arrivals that cannot be read; the message says where and what was expected."""


@dataclass(frozen=True)
class Arrivals:
    """How a rate moves: `sd` of its logarithm, `spikes` the chance of one. `number` tells kinds apart in the
    seed of a trace. `minutes`: counts of a file in place of all that."""

    name: str
    sd: float
    spikes: float
    number: int
    minutes: tuple[int, ...] = ()


class Rate:
    """Requests per second, `rate`, for the next `length_s` seconds; `move` goes on to what comes after.

    A file begins at a minute drawn by chance, and goes on at its beginning behind its end. Minutes are as
    long as it takes for `count` requests to come in `MINUTES` of them, which have the mean load together.
    """

    def __init__(
        self, arrivals: Arrivals, mean: float, length_s: float, count: int, random: np.random.Generator
    ) -> None:
        self._arrivals = arrivals
        self._mean = mean
        self._random = random
        self.length_s = length_s
        self._minutes: list[float] = []
        if arrivals.minutes:
            self._minutes = _drawn(arrivals.minutes, random)
            self.length_s = count / mean / len(self._minutes)
        self._at = 0
        self._level = 0.0 if arrivals.minutes else random.normal(0.0, arrivals.sd)

    def rate(self) -> float:
        """Of this segment; to be asked once."""
        kind = self._arrivals
        if self._minutes:
            return self._mean * self._minutes[self._at]
        rate = self._mean * float(np.exp(self._level - kind.sd * kind.sd / 2))
        rate *= SPIKE if self._random.random() < kind.spikes else 1.0
        return rate / (1.0 + (SPIKE - 1.0) * kind.spikes)

    def move(self) -> None:
        """To the next segment."""
        if self._minutes:
            self._at = (self._at + 1) % len(self._minutes)
        else:
            self._level = CORRELATION * self._level + self._random.normal(0.0, self._arrivals.sd * 0.6)


def _drawn(minutes: tuple[int, ...], random: np.random.Generator) -> list[float]:
    """So many minutes of a file, one after the other and not all of them idle, in multiples of their mean."""
    length = min(MINUTES, len(minutes))
    while True:
        begin = int(random.integers(len(minutes)))
        counts = [minutes[(begin + minute) % len(minutes)] for minute in range(length)]
        if sum(counts):
            return [count * length / sum(counts) for count in counts]


SMOOTH = Arrivals("smooth", 0.0, 0.0, 0)
BURSTY = Arrivals("bursty", 0.35, 0.03, 1)
NEARLY_SMOOTH = Arrivals("nearly smooth", 0.1, 0.0, 2)
"""What published rates are compared at."""
BY_NAME = {kind.name: kind for kind in (SMOOTH, BURSTY)}
FILE_NUMBER = 3


def counted(file: Path) -> Arrivals:
    """Arrivals as a file has counted them. Raises NotCounted, OSError."""
    with file.open(newline="", encoding="utf-8-sig") as stream:
        try:
            minutes = _minutes(file.name, csv.reader(stream))
        except (UnicodeDecodeError, csv.Error) as error:
            raise NotCounted(f"{file.name}: expected text with commas: {error}") from None
    if not sum(minutes):
        raise NotCounted(f"{file.name}: expected calls, found none in {len(minutes)} minutes")
    return Arrivals(file.name, 0.0, 0.0, FILE_NUMBER, tuple(minutes))


def _minutes(name: str, rows: Iterator[list[str]]) -> list[int]:
    head = next(rows, [])
    columns = [number for number, title in enumerate(head) if title.strip().isdecimal()]
    titles = [head[column].strip() for column in columns]
    if not columns or titles != [str(minute) for minute in range(1, len(titles) + 1)]:
        found = ", ".join(head)[:80]
        raise NotCounted(f"{name}, line 1: expected columns named 1, 2, 3 .. for minutes, found {found!r}")
    minutes = [0] * len(columns)
    for line, row in enumerate(rows, 2):
        if not row:
            continue
        for minute, column in enumerate(columns):
            text = row[column].strip() if column < len(row) else ""
            if not (text.isascii() and text.isdigit() and len(text) < 13):
                where = f"{name}, line {line}, minute {head[column]}"
                raise NotCounted(f"{where}: expected a whole number, found {text[:20]!r}")
            minutes[minute] += int(text)
    return minutes
