"""The fast passes against the definitions of history.md, taken word for word: sets of units, no cleverness.

Random damage to random histories; both must say the same of I1, I2 and I3. Keys, replies to clients and
chains are left out here.
"""

import random
from typing import Any

import msgspec
import pytest
from tests.history.synthetic import valid_history

from hams_history.checker import check
from hams_history.lines import (
    ApplyLine,
    CompleteLine,
    DurableLine,
    ExecLine,
    FailoverLine,
    GraphLine,
    Line,
    LogLine,
    ReplyLine,
)

replace: Any = msgspec.structs.replace
Unit = tuple[str, int, int]
INFINITE = 10**9


class Definitions:
    """Closures as sets. A unit is (operator, epoch, seq); dependencies are (operator, epoch, version)."""

    def __init__(self, lines: list[Line]) -> None:
        header = lines[0]
        assert isinstance(header, GraphLine)
        self.lines = lines
        self.ordered = header.ordered
        self.execs = {line.out: line for line in lines if isinstance(line, ExecLine) and line.out is not None}
        self.units: dict[Unit, ExecLine] = {}
        for line in lines:
            if isinstance(line, ExecLine) and line.seq is not None:
                self.units.setdefault((line.op, line.epoch, line.seq), line)
        self.failovers: dict[tuple[str, int], FailoverLine] = {}
        self.ended_at: dict[tuple[str, int], int] = {}
        for at, line in enumerate(lines):
            if isinstance(line, FailoverLine):
                self.failovers.setdefault((line.op, line.epoch - 1), line)
                self.ended_at.setdefault((line.op, line.epoch - 1), at)
        self.end = {key: line.end for key, line in self.failovers.items()}
        self.logged = {line.req for line in lines if isinstance(line, LogLine)}
        self.clients = {line.req for line in lines if isinstance(line, LogLine) and line.source is None}
        self.completed = {line.req for line in lines if isinstance(line, CompleteLine)}

    def lineage(self, op: str, epoch: int, version: int) -> list[Unit]:
        """Every unit of the state at a version; also those that no line tells of."""
        seen: list[Unit] = []
        while epoch >= 1:
            start = self.end.get((op, epoch - 1), 0)
            seen += [(op, epoch, seq) for seq in range(start + 1, version + 1)]
            version = min(version, start)
            epoch -= 1
        return seen

    def closure(self, values: list[str], states: list[Unit]) -> tuple[set[str], set[Unit]]:
        seen_values: set[str] = set()
        seen_units: set[Unit] = set()
        outs: set[str] = set()
        stack: list[Any] = [*values, *(unit for state in states for unit in self.lineage(*state))]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                if item in seen_values:
                    continue
                seen_values.add(item)
                line = self.execs.get(item)
                if line is None:
                    continue
                stack += line.inputs
                if line.seq is not None:
                    stack.append((line.op, line.epoch, line.seq))
                    assert line.version is not None
                    stack += self.lineage(line.op, line.epoch, line.version)
            elif item not in seen_units:
                seen_units.add(item)
                if item in self.units:
                    stack += self.units[item].inputs
                    if (out := self.units[item].out) is not None:
                        outs.add(out)
        return seen_values | outs, seen_units

    def visible(self) -> tuple[set[str], set[Unit]]:
        values = [value for line in self.lines if isinstance(line, ReplyLine) for value in line.values]
        values += [
            line.source for line in self.lines if isinstance(line, LogLine) and line.source is not None
        ]
        return self.closure(
            values,
            [(line.op, line.epoch, line.version) for line in self.lines if isinstance(line, DurableLine)],
        )

    def survives(self, unit: Unit) -> bool:
        op, epoch, seq = unit
        later = [end for (name, ended), end in self.end.items() if name == op and ended >= epoch]
        return seq > self.end.get((op, epoch - 1), 0) and all(seq <= end for end in later)

    # ---- the invariants ----

    def no_loss(self) -> bool:
        values, units = self.visible()
        if any(unit not in self.units or not self.survives(unit) for unit in units):
            return False
        if any(value not in self.execs and value not in self.logged for value in values):
            return False
        for (op, epoch), end in self.end.items():
            if end < self.end.get((op, epoch - 1), 0):
                return False
        for line in self.lines:
            if isinstance(line, DurableLine) and any(
                line.version > end
                for (op, epoch), end in self.end.items()
                if op == line.op and epoch >= line.epoch
            ):
                return False
            if isinstance(line, ApplyLine):
                at_version = [
                    unit
                    for unit in self.lineage(line.op, line.epoch, line.version)
                    if unit[2] == line.version
                ]
                if any(unit not in self.units for unit in at_version):
                    return False
        used = [
            (line.req, value) for line in self.lines if isinstance(line, ExecLine) for value in line.inputs
        ]
        used += [
            (line.req, value) for line in self.lines if isinstance(line, ReplyLine) for value in line.values
        ]
        replied = {line.req for line in self.lines if isinstance(line, ReplyLine)}
        inputs = [
            (line.req, value) for line in self.lines if isinstance(line, ExecLine) for value in line.inputs
        ]
        if any(value in self.logged and value != request for request, value in inputs):
            return False
        return (
            replied <= self.logged
            and self.completed & self.clients <= replied
            and all(value not in self.execs or self.execs[value].req == request for request, value in used)
        )

    def one_value(self) -> bool:
        values, _ = self.visible()
        seen: dict[tuple[str, str, tuple[str, ...]], str] = {}
        for value in values & set(self.execs):
            line = self.execs[value]
            if seen.setdefault((line.op, line.req, line.lane), value) != value:
                return False
        return True

    def dependencies(self, values: list[str], states: list[Unit]) -> set[Unit]:
        result, _ = self.closure(values, states)
        own = {state[0] for state in states}
        lines = [self.execs[value] for value in result if value in self.execs]
        return {
            (line.op, line.epoch, line.version)
            for line in lines
            if line.version is not None and line.op not in own
        }

    def durable_before(self, at: int, dependency: Unit) -> bool:
        op, epoch, version = dependency
        until = self.lines[:at] if self.ordered else self.lines
        if any(
            isinstance(line, DurableLine) and (line.op, line.epoch) == (op, epoch) and line.version >= version
            for line in until
        ):
            return True
        return version <= self.end.get((op, epoch), -1) and (
            not self.ordered or self.ended_at[op, epoch] < at
        )

    def orphan_for(self, generation: int, dependency: Unit) -> bool:
        op, epoch, version = dependency
        ended = self.failovers.get((op, epoch))
        return ended is not None and version > ended.end and ended.gen <= generation

    def closed(self) -> bool:
        for at, line in enumerate(self.lines):
            if isinstance(line, ApplyLine | DurableLine):
                needed = self.dependencies([], [(line.op, line.epoch, line.version)])
            elif isinstance(line, ReplyLine):
                needed = self.dependencies(list(line.values), [])
            elif isinstance(line, LogLine) and line.source is not None:
                needed = self.dependencies([line.source], [])
            elif isinstance(line, ExecLine):
                if any(
                    self.orphan_for(line.gen, dependency)
                    for dependency in self.dependencies(list(line.inputs), [])
                ):
                    return False
                continue
            else:
                continue
            if not all(self.durable_before(at, dependency) for dependency in needed):
                return False
        return True


def same_failover(one: Line, other: FailoverLine) -> bool:
    return isinstance(one, FailoverLine) and (one.op, one.epoch) == (other.op, other.epoch)


def damaged(lines: list[Line], rng: random.Random) -> list[Line]:
    """One random change, mostly a wrong one."""
    at = rng.randrange(1, len(lines))
    line: Any = lines[at]
    kind = rng.random()
    changed: list[Any] = [line]
    values = [other.out for other in lines if isinstance(other, ExecLine) and other.out is not None]
    if kind < 0.25:
        changed = []
    elif isinstance(line, FailoverLine):
        shift = rng.choice([-2, -1, 1])
        return [
            replace(other, end=max(0, line.end + shift)) if same_failover(other, line) else other
            for other in lines
        ]
    elif isinstance(line, ReplyLine) and values:
        changed = (
            [replace(line, values=(*line.values, rng.choice(values)))]
            if kind < 0.6
            else [line, replace(line, values=(rng.choice(values),))]
        )
    elif isinstance(line, DurableLine | ApplyLine):
        changed = [replace(line, version=max(0, line.version + rng.choice([-1, 1, 2])))] if kind < 0.6 else []
    elif isinstance(line, ExecLine):
        if line.slot is not None and kind < 0.6:
            # Computed again, and both values may become visible.
            again = replace(line, out=f"again:{at}")
            shown = ReplyLine(i="F-1", gen=9, req=line.req, values=(f"again:{at}",)) if kind < 0.5 else None
            changed = [line, again] if shown is None else [line, again, shown]
        elif kind < 0.5:
            changed = [replace(line, gen=rng.randint(1, 8))]
        elif kind < 0.75 and line.inputs:
            same = [
                other.out
                for other in lines
                if isinstance(other, ExecLine) and other.req == line.req and other.out and other.op != line.op
            ]
            upstream = [value for value in same if value in line.inputs] or list(line.inputs)
            changed = [replace(line, inputs=tuple(upstream[:-1]))]
        elif line.version is not None:
            changed = [replace(line, version=line.version + rng.randint(0, 2))]
    moved = [*lines[:at], *changed, *lines[at + 1 :]]
    if kind > 0.9:
        other = rng.randrange(1, len(lines) - 1)
        moved.insert(other, moved.pop(at) if at < len(moved) else moved.pop())
    return moved


@pytest.mark.parametrize("ordered", [True, False])
def test_the_checker_says_what_the_definitions_say(ordered: bool) -> None:
    verdicts: dict[str, set[bool]] = {"I1": set(), "I2": set(), "I3": set()}
    for seed in range(350):
        rng = random.Random(seed)
        lines: list[Any] = valid_history(seed, requests=5, faults=seed % 5, ordered=ordered)
        lines = [
            replace(line, chain=None) if isinstance(line, ExecLine | ApplyLine) else line for line in lines
        ]
        lines = [line for line in lines if type(line).__name__ not in ("RetLine", "CallLine")]
        for _ in range(rng.randint(1, 3)):
            lines = damaged(lines, rng)
        report = check(lines)
        if report.problems:
            continue
        said = {name: name in report.broken for name in verdicts}
        if any("two replies" in item.message or "two inputs" in item.message for item in report.violations):
            said["I2"] = any(
                item.invariant == "I2" and "two visible values" in item.message for item in report.violations
            )
        if any("in the middle of the batch" in item.message for item in report.violations):
            continue
        meant = Definitions(lines)
        expected = {"I1": not meant.no_loss(), "I2": not meant.one_value(), "I3": not meant.closed()}
        assert said == expected, f"seed {seed}\n{report.render()}"
        for name, broken in said.items():
            verdicts[name].add(broken)
    assert verdicts == {"I1": {True, False}, "I2": {True, False}, "I3": {True, False}}
