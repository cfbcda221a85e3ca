"""Notes become lines of the history, in one global order; what must hold at that very moment is checked here.

A note stands before the effect it reports, so a check that fails here fails before the wrong message has
left.
"""

import hashlib
from typing import TYPE_CHECKING

from hams_history.lines import Line
from hams_protocol.deps import Dep
from hams_protocol.effects import (
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
from hams_protocol.graph import shard_name
from hams_protocol.ids import InstanceId, RequestId, UnitId, ValueId
from hams_protocol.messages import Admit, Kind, LogAppend, LogCopy, ReplyEntry, SlotAnswer, Token
from hams_protocol.modes import ModePolicy
from hams_protocol.stateful import StatefulMachine
from hams_protocol.stateless import StatelessMachine
from hams_protocol.topology import ReplicaSet
from hams_sim.errors import Broken
from hams_wire.notes import line_of

if TYPE_CHECKING:
    from hams_sim.node import Node
    from hams_sim.world import World


def reply_digest(tokens: tuple[Token, ...], failed: bool) -> str:
    """Digest of a reply: of the tensors that it is made of, which their value ids name."""
    names = sorted(
        f"{token.source}|{'.'.join(token.lane)}|{token.value_id}"
        for token in tokens
        if token.kind is Kind.VALUE or failed
    )
    return hashlib.blake2b("\n".join(names).encode(), digest_size=8).hexdigest()


class Recorder:
    """Lines, and the truth that single steps are judged by."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.lines: list[Line] = []
        self.writers: dict[tuple[str, int, int | None], str] = {}
        self.execs: dict[str, dict[tuple[int, int], NoteExec]] = {}
        self.made_for: dict[str, RequestId] = {}
        self.logged: dict[RequestId, float] = {}
        self.complete: set[RequestId] = set()
        self.durable: dict[tuple[str, int], int] = {}
        self.stable: dict[tuple[str, int], int] = {}
        self.replies: dict[object, NoteReply] = {}
        self.fan_values: dict[tuple[str, UnitId], list[ValueId]] = {}
        self.delivered: set[tuple[InstanceId, ValueId]] = set()
        self.log_records: dict[ValueId, set[tuple[Node, int, int]]] = {}
        self._holds_outputs = ModePolicy.of(world.graph.data.mode).holds_outputs
        self._versions: dict[ValueId, Dep] = {}

    def exec(self, node: "Node", note: NoteExec) -> None:
        """One executed unit."""
        key = (note.op, note.epoch, note.slot)
        if self.writers.setdefault(key, node.id) != node.id:
            raise Broken(
                "I5", f"{node.id} executes in epoch {note.epoch} of {note.op}, so did {self.writers[key]}"
            )
        if note.op in self.world.fan_outs and note.out is not None:
            self._fan_out(node, note)
        if self._holds_outputs:
            self._check_inputs(node, note)
        if note.out is not None:
            self.made_for[note.out] = note.unit.request
        if note.seq is not None:
            self.execs.setdefault(note.op, {})[note.epoch, note.seq] = note
            self.world.truth.check_window(node)
        self.lines.append(line_of(note, node.id))

    def _check_inputs(self, node: "Node", note: NoteExec) -> None:
        """Where outputs are held, nobody works on what may still be undone (section 9)."""
        for value in note.inputs:
            version = self._versions.get(value)
            if version is not None and not self.world.truth.is_durable(version):
                raise Broken("I3", f"{node.id} executes {note.unit} on {value} of {version}, not durable yet")
        if note.out is not None and note.version is not None:
            self._versions[note.out] = Dep(note.op, note.epoch, note.version)

    def _fan_out(self, node: "Node", note: NoteExec) -> None:
        """A fan-out's owner has executed."""
        self.fan_out_again(node, note.op, note.unit)
        assert note.out is not None
        self.fan_values.setdefault((note.op, note.unit), []).append(note.out)

    def answered(self, sender: "Node", node: "Node", answer: SlotAnswer) -> None:
        """An answer has reached a slot's new owner that waits for it: that one knows these values now."""
        if not isinstance(node.machine, StatelessMachine) or not node.machine.is_awaited(sender.id, answer):
            return
        self.delivered.update(
            (node.id, token.value_id) for token in answer.tokens if token.kind is not Kind.SKIP
        )

    def fan_out_again(self, node: "Node", op: str, unit: UnitId) -> None:
        """Note a request for which a fan-out's value is gone, when the successor `node` executes, or passes
        on a skip of its own.

        Section 4 does not promise one value if an owner dies together with every receiver of its first one,
        before they were asked. A receiver that lives can tell, and so can the holder of a record that was
        made from the value; a successor that was told has no excuse. What nobody has received is seen by
        nobody: its owner's late messages are fenced. Who got a skip of it cannot give the value back.
        """
        world = self.world
        for value in self.fan_values.get((op, unit), ()):
            receivers = world.received.get(value, ())
            if not receivers or (node.id, value) in self.delivered or self._is_on_record(op, unit, value):
                continue
            if not any(self.can_tell(receiver, epoch, unit) for receiver, epoch in receivers):
                world.inconsistent.add(str(unit.request))
                world.seen("fan-out owner lost with every receiver")

    def can_tell(self, node: "Node", epoch: int, unit: UnitId) -> bool:
        """Whether an instance, which received a token in this epoch of its own, could still answer a new slot
        owner's question.

        One that has gone back to a record since has dropped what it had not consumed by then (section 7.6).
        """
        if not node.alive or node.id in self.world.etcd.topology.revoked:
            return False
        if getattr(node.machine, "epoch", 0) == epoch:
            return True
        ends = self.world.etcd.ends.get(node.of, {})
        return any(
            note.unit.request == unit.request and seq <= ends.get(of, seq)
            for (of, seq), note in self.execs.get(node.of, {}).items()
        )

    def log_arrived(self, node: "Node", message: LogAppend | LogCopy) -> None:
        """A follower gets entries of a shard's log: of replies, and of inputs of internal requests, it is a
        record."""
        first = message.first if isinstance(message, LogAppend) else message.index
        step = 1 if isinstance(message, LogAppend) else 0
        for number, entry in enumerate(message.entries):
            tokens = entry.tokens if isinstance(entry, ReplyEntry) else ()
            if isinstance(entry, Admit) and entry.origin is not None:
                tokens = (entry.origin,)
            at = (node, message.epoch, first + step * number)
            for token in tokens:
                if token.source in self.world.fan_outs:
                    self.log_records.setdefault(token.value_id, set()).add(at)

    def _is_on_record(self, op: str, unit: UnitId, value: ValueId) -> bool:
        """Whether a living member of a receiver's set holds a record that was made from the value: of a
        state, or in a shard's log."""
        world = self.world
        names = {*world.graph.operators[op].targets, shard_name(unit.request.shard)}
        for item in world.etcd.topology.sets:
            if item.name not in names:
                continue
            for node in [world.nodes[name] for name in item.members]:
                if node.alive and node.id not in world.etcd.topology.revoked:
                    records = [at for holder, *at in self.log_records.get(value, ()) if holder is node]
                    records += [at for at in self._made_from(item.name, value) if self._received(node, *at)]
                    if any(self._survives(item.name, *at) for at in records):
                        return True
        return False

    def _made_from(self, name: str, value: ValueId) -> list[list[int]]:
        """Epoch and seq of every unit of an operator that was executed on a value."""
        return [[*at] for at, note in self.execs.get(name, {}).items() if value in note.inputs]

    @staticmethod
    def _received(node: "Node", epoch: int, seq: int) -> bool:
        """Whether a member of an operator's set has the record of a unit, if no end has cut that off."""
        machine = node.machine
        assert isinstance(machine, StatefulMachine)
        newest = machine.version if machine.backup is None else machine.backup.received
        return (epoch, seq) <= (machine.epoch, newest)

    def _survives(self, name: str, epoch: int, position: int) -> bool:
        """Whether no committed end has cut a record off."""
        ends = self.world.etcd.ends.get(name, {})
        return all(position <= end for of, end in ends.items() if of >= epoch)

    def apply(self, node: "Node", note: NoteApply) -> None:
        """A backup has applied a version."""
        self.lines.append(line_of(note, node.id))

    def made_durable(self, node: "Node", note: NoteDurable) -> None:
        """A version is called durable: every in-sync backup, as etcd knows them, has applied it."""
        self.world.truth.check_durable(node, note)
        key = (note.op, note.epoch)
        self.durable[key] = max(note.version, self.durable.get(key, -1))
        self.lines.append(line_of(note, node.id))

    def made_stable(self, node: "Node", note: NoteStable) -> None:
        """A version is called stable: every in-sync backup, as etcd knows them, holds it."""
        self.world.truth.check_stable(node, note)
        key = (note.op, note.epoch)
        self.stable[key] = max(note.version, self.stable.get(key, -1))
        self.lines.append(line_of(note, node.id))

    def log(self, node: "Node", note: NoteLog) -> None:
        """A request was committed in a shard's log."""
        self.world.logs.logged(node, note)
        if note.source is not None:
            self.world.refusals.fed_back(note.request, note.source)
        else:
            self.world.refusals.logged(note.request, note.key, note.digest)
        self.logged.setdefault(note.request, self.world.now)
        self.lines.append(line_of(note, node.id))

    def reply(self, node: "Node", note: NoteReply) -> None:
        """A reply is about to be released: everything it depends on is durable."""
        self.world.logs.replied(node, note)
        self.world.budgets.replied(note)
        self.replies[note.request] = note
        failed = any(token.kind is Kind.ERROR for token in note.tokens)
        self.lines.append(line_of(note, node.id, digest=reply_digest(note.tokens, failed)))

    def completed(self, node: "Node", note: NoteComplete) -> None:
        """A request is complete."""
        self.complete.add(note.request)
        self.world.refusals.completed(note.request)
        self.lines.append(line_of(note, node.id))

    def failover(self, node: "Node", note: NoteFailover) -> None:
        """A set's primary changed or rolled back, as its new primary says."""
        self.lines.append(line_of(note, node.id))

    def moved(self, item: ReplicaSet, generation: int) -> None:
        """A set's change as it was committed: an end counts from its commit on. Instances that learn of it
        may write the line too, and all must agree."""
        if item.primary is not None:
            end = item.end_of(item.epoch - 1)
            note = NoteFailover(item.name, generation, item.epoch, -1 if end is None else end, item.primary)
            self.lines.append(line_of(note, item.primary))

    def lost(self, node: "Node", note: NoteLost) -> None:
        """Nobody is left who holds a state, which may yet be found; or, with a version, it stems from what
        begins again."""
        self.lines.append(line_of(note, node.id))

    def surviving(self, op: str, epoch: int) -> list[NoteExec]:
        """The surviving history of a stateful operator as its epoch `epoch` has it, in order."""
        execs = self.execs.get(op, {})
        ends = self.world.etcd.ends.get(op, {})
        by_seq: dict[int, NoteExec] = {}
        start = 0
        for number in range(1, epoch + 1):
            end = ends.get(number) if number < epoch else None
            for seq in [seq for seq in by_seq if number > 1 and seq > start]:
                del by_seq[seq]
            for (of, seq), note in execs.items():
                if of == number and seq > start and (end is None or seq <= end):
                    by_seq[seq] = note
            start = end if end is not None else start
        return [by_seq[seq] for seq in sorted(by_seq)]
