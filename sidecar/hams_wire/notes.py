"""From the core's notes to lines of a history (history.md): the one translation, for processes and for the
simulator alike."""

from collections.abc import Callable
from typing import Any

from hams_history.lines import (
    FORMAT,
    FORMAT_BY_RECEIPT,
    ApplyLine,
    CompleteLine,
    DurableLine,
    ExecLine,
    FailoverLine,
    GraphLine,
    Line,
    LogLine,
    LostLine,
    OperatorEntry,
    ReplyLine,
    StableLine,
    TakeoverLine,
)
from hams_protocol.effects import (
    Note,
    NoteApply,
    NoteComplete,
    NoteDurable,
    NoteExec,
    NoteFailover,
    NoteLog,
    NoteLost,
    NoteReply,
    NoteStable,
)
from hams_protocol.graph import GraphData, WhenUnprotected
from hams_protocol.ids import InstanceId
from hams_protocol.keys import own_part
from hams_protocol.modes import ModePolicy

SHARD_PREFIX = "F/"


def header_of(data: GraphData, ordered: bool = False) -> GraphLine:
    """The first line of a history of this graph."""
    operators = {
        op.name: OperatorEntry(
            kind="stateful" if op.stateful else "stateless",
            join=op.join.value.lower(),
            inputs=tuple(edge.source for edge in op.in_edges),
            outputs=op.targets,
            required=tuple(edge.source for edge in op.in_edges if edge.required),
        )
        for op in data.operators
    }
    by_receipt = ModePolicy.of(data.mode).by_receipt
    return GraphLine(
        format=FORMAT_BY_RECEIPT if by_receipt else FORMAT,
        id=data.uid,
        ordered=ordered,
        operators=operators,
        want={op.name: op.backups for op in data.operators if op.stateful},
        mode=data.mode.value,
        blocks=data.recovery.when_unprotected is WhenUnprotected.BLOCK,
        by_receipt=by_receipt,
    )


def line_of(note: Note, instance: InstanceId, at: float | None = None, digest: str | None = None) -> Line:
    """The line of a note by `instance`; `at` seconds of any clock, `digest` of a reply's tensors where
    somebody made it."""
    if isinstance(note, NoteReply):
        return _reply(note, instance, at, digest)
    return _LINES[type(note)](note, instance, at)


def _exec(note: NoteExec, instance: InstanceId, at: float | None) -> Line:
    request, lane = note.unit
    return ExecLine(
        at=at,
        i=instance,
        gen=note.generation,
        op=note.op,
        epoch=note.epoch,
        req=str(request),
        lane=lane,
        inputs=note.inputs,
        out=note.out,
        route=note.route,
        seq=note.seq,
        version=note.version,
        chain=note.chain or None,
        slot=note.slot,
    )


def _apply(note: NoteApply, instance: InstanceId, at: float | None) -> Line:
    return ApplyLine(
        at=at,
        i=instance,
        gen=note.generation,
        op=note.op,
        epoch=note.epoch,
        version=note.version,
        chain=note.chain or None,
        snapshot=note.snapshot,
    )


def _durable(note: NoteDurable, instance: InstanceId, at: float | None) -> Line:
    return DurableLine(
        at=at, i=instance, gen=note.generation, op=note.op, epoch=note.epoch, version=note.version
    )


def _stable(note: NoteStable, instance: InstanceId, at: float | None) -> Line:
    return StableLine(
        at=at, i=instance, gen=note.generation, op=note.op, epoch=note.epoch, version=note.version
    )


def _log(note: NoteLog, instance: InstanceId, at: float | None) -> Line:
    return LogLine(
        at=at,
        i=instance,
        gen=note.generation,
        req=str(note.request),
        key=None if note.key is None else own_part(note.key),
        shard=note.shard,
        epoch=note.epoch,
        digest=note.digest or None,
        source=note.source,
    )


def _reply(note: NoteReply, instance: InstanceId, at: float | None, digest: str | None) -> Line:
    return ReplyLine(
        at=at,
        i=instance,
        gen=note.generation,
        req=str(note.request),
        values=tuple(sorted(note.values)),
        epoch=note.epoch,
        digest=digest,
    )


def _complete(note: NoteComplete, instance: InstanceId, at: float | None) -> Line:
    return CompleteLine(at=at, i=instance, req=str(note.request))


def _failover(note: NoteFailover, instance: InstanceId, at: float | None) -> Line:
    """The line names the new primary. `instance`, the manager that has committed it, does not matter."""
    if note.op.startswith(SHARD_PREFIX):
        shard = int(note.op.removeprefix(SHARD_PREFIX))
        return TakeoverLine(at=at, shard=shard, gen=note.generation, epoch=note.epoch, i=note.primary)
    return FailoverLine(
        at=at, op=note.op, gen=note.generation, epoch=note.epoch, end=note.end, i=note.primary
    )


def _lost(note: NoteLost, instance: InstanceId, at: float | None) -> Line:
    return LostLine(
        at=at, kind=note.kind.value, op=note.op, epoch=note.epoch, version=note.version, why=note.why
    )


_LINES: dict[type, Callable[[Any, InstanceId, float | None], Line]] = {
    NoteExec: _exec,
    NoteApply: _apply,
    NoteDurable: _durable,
    NoteStable: _stable,
    NoteLog: _log,
    NoteComplete: _complete,
    NoteFailover: _failover,
    NoteLost: _lost,
}
