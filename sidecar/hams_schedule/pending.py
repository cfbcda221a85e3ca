"""The units that wait in one operator, by batch key and class, each class in order of due.

Invariant: a unit is in one place only, and leaves it when it is handed out or is READY no more. Equal dues
keep the order of arrival. Suspects go alone and before all others, then undone units, then what the policy
chooses.

To take units out of their lists costs several times what it costs to choose them. So what was handed out is
taken out by whoever looks at the lines next, mostly beside the batch (`Pending.settle`).
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Hashable
from typing import Generic

from hams_schedule.scheduler import READY, U


class ClassLine(Generic[U]):
    """Units of one batch key and one class, earliest due first; the lists run in parallel.

    `orders` number the units of a queue in order of arrival; `added` are the instants of it, where they are
    `timed`. `wide`: how many of the units have more than one row, so that where there are none nothing is
    counted.
    """

    __slots__ = ("added", "cls", "dues", "key", "orders", "rows", "timed", "units", "wide")

    def __init__(self, key: Hashable, cls: int, timed: bool = False) -> None:
        self.timed = timed
        self.key = key
        self.cls = cls
        self.dues: list[float] = []
        self.orders: list[int] = []
        self.rows: list[int] = []
        self.added: list[float] = []
        self.units: list[U] = []
        self.wide = 0

    def insert(self, unit: U, order: int, now: float) -> None:
        """Put a unit behind those that are due as early."""
        due = unit.due
        at = bisect_right(self.dues, due)
        self.dues.insert(at, due)
        self.orders.insert(at, order)
        rows = max(unit.rows, 1)
        self.wide += rows > 1
        self.rows.insert(at, rows)
        self.units.insert(at, unit)
        if self.timed:
            self.added.insert(at, now)

    def cut(self, low: int, high: int) -> list[U]:
        """Take out the units of [low, high)."""
        units = self.units[low:high]
        if self.wide:
            self.wide -= _wide(self.rows[low:high])
        del self.dues[low:high], self.orders[low:high], self.rows[low:high]
        del self.units[low:high]
        if self.timed:
            del self.added[low:high]
        return units

    def retain_ready(self) -> int:
        """Drop units that are not READY; returns how many."""
        ready = [index for index, unit in enumerate(self.units) if unit.stage == READY]
        dropped = len(self.units) - len(ready)
        if dropped:
            self.dues = [self.dues[index] for index in ready]
            self.orders = [self.orders[index] for index in ready]
            self.rows = [self.rows[index] for index in ready]
            self.added = [self.added[index] for index in ready] if self.timed else []
            self.units = [self.units[index] for index in ready]
            self.wide = _wide(self.rows)
        return dropped

    def fitting(self, low: int, size: int) -> int:
        """How many units from `low` on fill `size` rows, one at least."""
        if not self.wide:
            return min(size, len(self.rows) - low)
        total, taken = 0, 0
        for index in range(low, min(low + size, len(self.rows))):
            total += self.rows[index]
            if taken and total > size:
                break
            taken += 1
        return taken

    def filled(self, low: int, high: int) -> int:
        """The rows of [low, high)."""
        return sum(self.rows[low:high]) if self.wide else high - low


class Line(Generic[U]):
    """The units of one batch key."""

    __slots__ = ("classes", "key")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.classes: dict[int, ClassLine[U]] = {}


class Span(Generic[U]):
    """Units of a class line that lie together: [low, high)."""

    __slots__ = ("high", "line", "low")

    def __init__(self, line: ClassLine[U], low: int, high: int) -> None:
        self.line = line
        self.low = low
        self.high = high


class Pending(Generic[U]):
    """All units of one operator that wait. With `by_class` False they are one class per batch key. `timed`:
    lines keep the instants of arrival."""

    def __init__(self, by_class: bool, timed: bool = False) -> None:
        self._by_class = by_class
        self._timed = timed
        self._suspects: deque[U] = deque()
        self._undone: deque[U] = deque()
        self._lines: dict[Hashable, Line[U]] = {}
        self._handed_out: list[Span[U]] = []
        """Spans whose units still lie in their lines."""
        self._count = 0
        self._order = 0

    @property
    def lines(self) -> dict[Hashable, Line[U]]:
        """All lines that hold units, by batch key."""
        self.settle()
        return self._lines

    def settle(self) -> None:
        """Take out of the lines what was handed out."""
        if self._handed_out:
            for span in self._handed_out:
                span.line.cut(span.low, span.high)
                self._forget_if_empty(span.line)
            self._handed_out = []

    def __len__(self) -> int:
        return self._count + len(self._suspects) + len(self._undone)

    def add(self, unit: U, now: float) -> None:
        """Queue a unit; a suspect goes before all others, however it comes."""
        if unit.attempts > 0:
            self._suspects.append(unit)
            return
        self.settle()
        key = unit.batch_key
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(key)
        cls = unit.cls if self._by_class else 0
        of_class = line.classes.get(cls)
        if of_class is None:
            of_class = line.classes[cls] = ClassLine(key, cls, self._timed)
        of_class.insert(unit, self._order, now)
        self._order += 1
        self._count += 1

    def add_first(self, unit: U) -> None:
        """Queue a unit before those that a policy may choose from."""
        if unit.attempts > 0:
            self._suspects.appendleft(unit)
        else:
            self._undone.appendleft(unit)

    def first(self, max_rows: int) -> list[U]:
        """The next suspect alone, else the next undone units that fit together; removes them."""
        while self._suspects:
            unit = self._suspects.popleft()
            if unit.stage == READY:
                return [unit]
        batch: list[U] = []
        rest: deque[U] = deque()
        rows, full = 0, False
        for unit in self._undone:
            if unit.stage != READY:
                continue
            if not batch:
                batch, rows = [unit], unit.rows
            elif not full and unit.batch_key == batch[0].batch_key and rows + unit.rows <= max_rows:
                batch.append(unit)
                rows += unit.rows
            else:
                full = full or unit.batch_key == batch[0].batch_key
                rest.append(unit)
        self._undone = rest
        return batch

    def cut(self, spans: list[Span[U]]) -> list[U]:
        """Hand the units of spans out, earliest due first. The spans are of the lines as they are now, and
        can be cut one after another."""
        self.settle()
        if len(spans) == 1:
            units = spans[0].line.units[spans[0].low : spans[0].high]
        else:
            keyed: list[tuple[float, int, U]] = []
            for span in spans:
                line, low, high = span.line, span.low, span.high
                keyed += zip(line.dues[low:high], line.orders[low:high], line.units[low:high], strict=True)
            keyed.sort(key=_by_due)
            units = [unit for _, _, unit in keyed]
        self._count -= len(units)
        self._handed_out = spans
        return units

    def spans_of(self, units: list[U]) -> list[Span[U]] | None:
        """The spans in which these units lie, in an order in which they can be cut; None if one is here no
        more."""
        self.settle()
        spans: list[Span[U]] = []
        for unit in units:
            last = spans[-1] if spans else None
            if last is not None and last.high < len(last.line.units) and last.line.units[last.high] is unit:
                last.high += 1  # mostly they lie together, as they did when they were chosen
                continue
            line = self._lines.get(unit.batch_key)
            of_class = None if line is None else line.classes.get(unit.cls if self._by_class else 0)
            if of_class is None:
                return None
            at = bisect_left(of_class.dues, unit.due)
            while at < len(of_class.units) and of_class.units[at] is not unit:
                if of_class.dues[at] > unit.due:
                    return None
                at += 1
            if at == len(of_class.units):
                return None
            spans.append(Span(of_class, at, at + 1))
        spans.sort(key=_by_place, reverse=True)
        return spans

    def all_ready(self, spans: list[Span[U]]) -> bool:
        """Whether each unit of the spans may run."""
        for span in spans:
            for unit in span.line.units[span.low : span.high]:
                if unit.stage != READY:
                    return False
        return True

    def retain_ready(self) -> None:
        """Drop all units that are READY no more."""
        for line in list(self.lines.values()):
            for of_class in list(line.classes.values()):
                self._count -= of_class.retain_ready()
                self._forget_if_empty(of_class)

    def has_ready(self) -> bool:
        """Whether there is a unit to run; drops units that are not READY on the way to it."""
        if any(unit.stage == READY for unit in self._suspects) or any(
            unit.stage == READY for unit in self._undone
        ):
            return True
        for line in self.lines.values():
            for of_class in line.classes.values():
                if of_class.units and of_class.units[0].stage == READY:
                    return True
        self.retain_ready()
        return self._count > 0

    def waiting_first(self) -> list[U]:
        """Suspects and undone units."""
        return [*self._suspects, *self._undone]

    def all_lines(self) -> list[ClassLine[U]]:
        """All class lines."""
        return [of_class for line in self.lines.values() for of_class in line.classes.values()]

    def earliest(self) -> ClassLine[U] | None:
        """The class line whose head is due first: for policies that know one class."""
        best: ClassLine[U] | None = None
        for line in self.lines.values():
            for of_class in line.classes.values():
                if best is None or (of_class.dues[0], of_class.orders[0]) < (best.dues[0], best.orders[0]):
                    best = of_class
        return best

    def clear(self) -> None:
        """Forget all units."""
        self._suspects.clear()
        self._undone.clear()
        self._lines.clear()
        self._handed_out = []
        self._count = 0

    def _forget_if_empty(self, of_class: ClassLine[U]) -> None:
        """A class line without units is not kept: keys and classes come and go."""
        line = self._lines.get(of_class.key)
        if line is not None and not of_class.units and line.classes.get(of_class.cls) is of_class:
            del line.classes[of_class.cls]
            if not line.classes:
                del self._lines[of_class.key]


def _wide(rows: list[int]) -> int:
    return sum([number > 1 for number in rows])


def _by_place(span: Span[U]) -> tuple[int, int]:
    return span.line.cls, span.low


def _by_due(keyed: tuple[float, int, U]) -> tuple[float, int]:
    return keyed[0], keyed[1]
