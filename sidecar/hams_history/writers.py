"""I5: one instance per epoch of an operator, slot or shard; no instance goes back; epochs rise only with the
generation.

One pass in the order of the lines. Only the order of lines of one instance is used, which every history has.
"""

from hams_history.lines import (
    ApplyLine,
    DurableLine,
    ExecLine,
    FailoverLine,
    Line,
    LogLine,
    ReplyLine,
    StableLine,
    TakeoverLine,
)
from hams_history.report import Findings
from hams_history.tables import FRONTEND, Tables

Scope = tuple[str, int | None]
"""What has an epoch: (operator, None), (operator, slot) or ("F", shard)."""


class _Epoch:
    """What was seen of one epoch: its writer, and the lowest and highest generation in which it was acted
    in."""

    __slots__ = ("highest", "highest_at", "lowest", "lowest_at", "reported", "writer", "writer_at")

    def __init__(self, generation: int, position: int) -> None:
        self.lowest = self.highest = generation
        self.lowest_at = self.highest_at = position
        self.writer: str | None = None
        self.writer_at = position
        self.reported: set[str] = set()


class OneWriter:
    """Runs the checks when built."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.findings: Findings = tables.findings
        self._epochs: dict[Scope, dict[int, _Epoch]] = {}
        self._acting: dict[tuple[Scope, str], tuple[int, int]] = {}
        self._unslotted = 0
        self._begun: dict[tuple[Scope, int, str], tuple[int, int]] = {}
        for position, line in enumerate(self.findings.history.lines):
            self._take(position, line)
        for (scope, epoch, instance), (generation, position) in self._begun.items():
            self._write(
                self._see(position, scope, epoch, generation),
                position,
                scope,
                epoch,
                instance,
                "was made its primary",
            )
        for scope, epochs in self._epochs.items():
            if len(epochs) > 1:
                self._rising(scope, epochs)
        if self._unslotted:
            self.findings.skip(
                "I5, one instance per (op, slot, epoch)",
                f"{self._unslotted} exec line(s) of stateless operators do not name their slot",
            )

    def _take(self, position: int, line: Line) -> None:
        if isinstance(line, ExecLine):
            table = self.tables.operators.get(line.op)
            if table is None:
                return
            if not table.stateful and line.slot is None:
                self._unslotted += 1
                return
            self._act(
                position,
                (line.op, None if table.stateful else line.slot),
                line.epoch,
                line.gen,
                line.i,
                "executed",
            )
        elif isinstance(line, ApplyLine):
            self._act(position, (line.op, None), line.epoch, line.gen, line.i, None)
        elif isinstance(line, DurableLine):
            self._act(position, (line.op, None), line.epoch, line.gen, line.i, "called versions durable")
        elif isinstance(line, StableLine):
            self._act(position, (line.op, None), line.epoch, line.gen, line.i, "called versions stable")
        elif isinstance(line, LogLine):
            if (
                line.epoch is not None
                and (shard := line.shard if line.shard is not None else _shard_of(line.req)) is not None
            ):
                self._act(position, (FRONTEND, shard), line.epoch, line.gen, line.i, "logged")
        elif isinstance(line, ReplyLine):
            if line.epoch is not None and (shard := _shard_of(line.req)) is not None:
                self._act(position, (FRONTEND, shard), line.epoch, line.gen, line.i, "replied")
        elif isinstance(line, FailoverLine):
            shard_set, _, number = line.op.partition("/")
            scope: Scope = (
                (FRONTEND, int(number)) if shard_set == FRONTEND and number.isdigit() else (line.op, None)
            )
            self._begin(position, scope, line.epoch, line.gen, line.i)
        elif isinstance(line, TakeoverLine):
            self._begin(position, (FRONTEND, line.shard), line.epoch, line.gen, line.i)

    def _see(self, position: int, scope: Scope, epoch: int, generation: int) -> _Epoch:
        epochs = self._epochs.get(scope)
        if epochs is None:
            epochs = self._epochs[scope] = {}
        known = epochs.get(epoch)
        if known is None:
            known = epochs[epoch] = _Epoch(generation, position)
        elif generation < known.lowest:
            known.lowest, known.lowest_at = generation, position
        elif generation > known.highest:
            known.highest, known.highest_at = generation, position
        return known

    def _act(
        self, position: int, scope: Scope, epoch: int, generation: int, instance: str, did: str | None
    ) -> None:
        seen = self._see(position, scope, epoch, generation)
        if did is not None:
            self._write(seen, position, scope, epoch, instance, did)
        key = (scope, instance)
        before = self._acting.get(key)
        if before is None or epoch > before[0]:
            self._acting[key] = (epoch, position)
        elif epoch < before[0]:
            self.findings.violation(
                "I5",
                f"{instance} acts in epoch {epoch} of {_name(scope)} after it had acted in epoch {before[0]}",
                position,
                before[1],
            )

    def _begin(self, position: int, scope: Scope, epoch: int, generation: int, instance: str) -> None:
        """Of several lines on one beginning the lowest generation is the one it was committed in; the others
        learnt of it later."""
        key = (scope, epoch, instance)
        known = self._begun.get(key)
        if known is None or generation < known[0]:
            self._begun[key] = (generation, position)

    def _write(self, seen: _Epoch, position: int, scope: Scope, epoch: int, instance: str, did: str) -> None:
        if seen.writer is None:
            seen.writer, seen.writer_at = instance, position
        elif seen.writer != instance and instance not in seen.reported:
            seen.reported.add(instance)
            self.findings.violation(
                "I5",
                f"two writers in epoch {epoch} of {_name(scope)}: {seen.writer}, and {instance}, which {did}",
                seen.writer_at,
                position,
            )

    def _rising(self, scope: Scope, epochs: dict[int, _Epoch]) -> None:
        newest: tuple[int, _Epoch] | None = None
        for epoch in sorted(epochs):
            seen = epochs[epoch]
            if newest is not None and seen.lowest <= newest[1].highest:
                self.findings.violation(
                    "I5",
                    f"epochs of {_name(scope)} rise while the generation does not: epoch {newest[0]} was "
                    f"acted in in generation {newest[1].highest},"
                    f" epoch {epoch} already in generation {seen.lowest}",
                    newest[1].highest_at,
                    seen.lowest_at,
                )
            if newest is None or seen.highest > newest[1].highest:
                newest = (epoch, seen)


def _shard_of(request: str) -> int | None:
    shard, slash, _ = request.partition("/")
    return int(shard) if slash and shard.isdigit() else None


def _name(scope: Scope) -> str:
    name, number = scope
    if name == FRONTEND:
        return f"frontend shard {number}"
    return name if number is None else f"{name}, slot {number}"
