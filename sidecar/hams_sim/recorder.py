"""Notes become lines of the history, in one global order; what must hold at that very moment is checked here.

A note stands before the effect it reports, so a check that fails here fails before the wrong message has left.
"""

import hashlib
from typing import TYPE_CHECKING

from hams_protocol.effects import (
    NoteApply,
    NoteComplete,
    NoteDurable,
    NoteExec,
    NoteFailover,
    NoteLog,
    NoteLost,
    NoteReply,
)
from hams_protocol.ids import UnitId
from hams_protocol.messages import Kind, Token
from hams_protocol.topology import ReplicaSet
from hams_sim.errors import Broken
from hams_wire.history import Line
from hams_wire.notes import line_of

if TYPE_CHECKING:
    from hams_sim.node import Node
    from hams_sim.world import World


def reply_digest(tokens: tuple[Token, ...], failed: bool) -> str:
    """Digest of a reply: of the tensors that it is made of, which their value ids name."""
    names = sorted(f"{token.source}|{'.'.join(token.lane)}|{token.value_id}" for token in tokens if token.kind is Kind.VALUE or failed)
    return hashlib.blake2b("\n".join(names).encode(), digest_size=8).hexdigest()


class Recorder:
    """Lines, and the truth that single steps are judged by."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.lines: list[Line] = []
        self.writers: dict[tuple[str, int, int | None], str] = {}
        self.execs: dict[str, dict[tuple[int, int], NoteExec]] = {}
        self.logged: dict[object, float] = {}
        self.complete: set[object] = set()
        self.durable: dict[tuple[str, int], int] = {}
        self.replies: dict[object, NoteReply] = {}
        self.fan_values: dict[tuple[str, UnitId], list[str]] = {}

    def exec(self, node: "Node", note: NoteExec) -> None:
        """One executed unit."""
        key = (note.op, note.epoch, note.slot)
        if self.writers.setdefault(key, node.id) != node.id:
            raise Broken("I5", f"{node.id} executes in epoch {note.epoch} of {note.op}, so did {self.writers[key]}")
        if note.op in self.world.fan_outs and note.out is not None:
            self._fan_out(note)
        if note.seq is not None:
            self.execs.setdefault(note.op, {})[note.epoch, note.seq] = note
            self.world.truth.check_window(node)
        self.lines.append(line_of(note, node.id))

    def _fan_out(self, note: NoteExec) -> None:
        """A fan-out's owner has executed."""
        self.fan_out_again(note.op, note.unit)
        assert note.out is not None
        self.fan_values.setdefault((note.op, note.unit), []).append(note.out)

    def fan_out_again(self, op: str, unit: UnitId) -> None:
        """Section 4 does not promise one value if an owner dies together with every stateless receiver of its first one: note such requests,
        when the heir executes, or gets nothing but a skip itself and passes it on. A stateful receiver may have it yet.

        What nobody has received is seen by nobody: its owner's late messages are fenced. Who got a skip of it cannot give the value back.
        """
        world = self.world
        for value in self.fan_values.get((op, unit), ()):
            holders = world.received.get(value, ())
            if holders and not any(self.can_tell(holder, epoch, unit) for holder, epoch in holders):
                world.torn.add(str(unit.request))
                world.seen("fan-out owner lost with every receiver")

    def can_tell(self, node: "Node", epoch: int, unit: UnitId) -> bool:
        """Whether an instance, which received a token in this epoch of its own, could still answer a new slot owner's question.

        Who has gone back to a record since has dropped what it had not consumed by then (section 7.6).
        """
        if not node.alive or node.id in self.world.etcd.topology.revoked:
            return False
        if getattr(node.machine, "epoch", 0) == epoch:
            return True
        ends = self.world.etcd.ends.get(node.of, {})
        return any(note.unit.request == unit.request and seq <= ends.get(of, seq) for (of, seq), note in self.execs.get(node.of, {}).items())

    def apply(self, node: "Node", note: NoteApply) -> None:
        """A backup has applied a version."""
        self.lines.append(line_of(note, node.id))

    def made_durable(self, node: "Node", note: NoteDurable) -> None:
        """A version is called durable: every in-sync backup, as etcd knows them, has applied it."""
        self.world.truth.check_durable(node, note)
        key = (note.op, note.epoch)
        self.durable[key] = max(note.version, self.durable.get(key, -1))
        self.lines.append(line_of(note, node.id))

    def log(self, node: "Node", note: NoteLog) -> None:
        """A request was committed in a shard's log."""
        self.logged.setdefault(note.request, self.world.now)
        self.lines.append(line_of(note, node.id))

    def reply(self, node: "Node", note: NoteReply) -> None:
        """A reply is about to be released: everything it depends on is durable."""
        for token in note.tokens:
            for dep in token.deps:
                if not self.world.truth.is_durable(dep):
                    raise Broken("I3", f"{node.id} replies to {note.request} with {token.value_id}, whose {dep} is not durable")
        self.replies[note.request] = note
        failed = any(token.kind is Kind.ERROR for token in note.tokens)
        self.lines.append(line_of(note, node.id, digest=reply_digest(note.tokens, failed)))

    def completed(self, node: "Node", note: NoteComplete) -> None:
        """A request is complete."""
        self.complete.add(note.request)
        self.lines.append(line_of(note, node.id))

    def failover(self, node: "Node", note: NoteFailover) -> None:
        """A set's primary changed or rolled back, as its new primary says."""
        self.lines.append(line_of(note, node.id))

    def moved(self, item: ReplicaSet, generation: int) -> None:
        """The same, as it was committed: an end counts from its commit on. Whoever learns of it may write the line too, and all must agree."""
        if item.primary is not None:
            end = item.end_of(item.epoch - 1)
            note = NoteFailover(item.name, generation, item.epoch, -1 if end is None else end, item.primary)
            self.lines.append(line_of(note, item.primary))

    def lost(self, node: "Node", note: NoteLost) -> None:
        """Nobody is left who holds a state, which may yet be found; or, with a version, it stems from what begins again: that is for good."""
        if note.version >= 0:
            self.began_again(note.op)
        self.lines.append(line_of(note, node.id))

    def began_again(self, op: str) -> None:
        """A state was lost for good. What it had executed of open requests runs again, upstream too where somebody else died."""
        self.world.torn.update(str(done.unit.request) for done in self.execs.get(op, {}).values() if done.unit.request not in self.complete)
        self.world.lost.add(op)
