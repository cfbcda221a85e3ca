"""The laws of classes, inferred from batches of which only the longest member is seen.

Expectation-maximisation in sweeps over the newest records. A running update without sweeps stays biased for
good: a class would never get back what it was credited with before its law was known.
"""

from array import array
from typing import Final

from hams_schedule.limits import grid_cells
from hams_schedule.shapes import Grid, normal

PRIOR: Final = 0.2
"""Samples, spread over all cells, that each class starts a sweep with: no cell is impossible."""


class Record:
    """A batch that has run: `counts` units of each class, `rows` together, in `time` seconds.

    Profiles hold a thousand of them, so counts are packed: as tuples they are more than half of it all.
    """

    __slots__ = ("_counts", "at", "rows", "time", "weight")

    def __init__(
        self, counts: tuple[tuple[int, int], ...], rows: int, time: float, weight: float, at: float
    ) -> None:
        self._counts = array("I", [number for pair in counts for number in pair]).tobytes()
        self.rows = rows
        self.time = time
        self.weight = weight
        self.at = at

    @property
    def counts(self) -> tuple[tuple[int, int], ...]:
        """Each class in the batch, and how many units of it."""
        flat = array("I")
        flat.frombytes(self._counts)
        return tuple([(flat[at], flat[at + 1]) for at in range(0, len(flat), 2)])


class Sweep:
    """One sweep: the counts of each class that the records amount to, given the laws of before."""

    def __init__(self, grid: Grid, masses: dict[int, list[float]]) -> None:
        self._grid = grid
        self._densities: dict[int, list[float]] = {}
        self._chances: dict[int, list[float]] = {}
        for cls, counts in masses.items():
            chances = normal([count + PRIOR / grid_cells for count in counts])
            self._chances[cls] = chances
            self._densities[cls] = [
                chance - (chances[cell - 1] if cell else 0.0) for cell, chance in enumerate(chances)
            ]
        self._exact = {cls: [0.0] * grid_cells for cls in masses}
        self._below = {cls: [0.0] * grid_cells for cls in masses}

    def covers(self, record: Record) -> bool:
        """Whether each class of a record had a law when the sweep began."""
        return not [cls for cls, _ in record.counts if cls not in self._chances]

    def add(self, record: Record, longest: float) -> None:
        """Credit a record that it covers, whose longest member took `longest` seconds (stand-alone)."""
        cell, members = self._grid.cell(longest), record.counts
        hazards = 0.0
        for cls, count in members:
            hazards += count * self._densities[cls][cell] / self._chances[cls][cell]
        for cls, count in members:
            was_longest = self._densities[cls][cell] / self._chances[cls][cell] / hazards
            amount = record.weight * count
            self._exact[cls][cell] += amount * was_longest
            if cell:
                self._below[cls][cell - 1] += amount * (1.0 - was_longest) / self._chances[cls][cell - 1]
            else:
                self._exact[cls][0] += amount * (1.0 - was_longest)

    def counts(self) -> dict[int, list[float]]:
        """The counts of each class."""
        result: dict[int, list[float]] = {}
        for cls, exact in self._exact.items():
            counts = [0.0] * grid_cells
            share = 0.0
            below, densities = self._below[cls], self._densities[cls]
            for cell in range(grid_cells - 1, -1, -1):
                share += below[cell]
                counts[cell] = exact[cell] + densities[cell] * share
            result[cls] = counts
        return result
