"""From executed units to a version: seqs, outputs, the record, the capture (protocol.md, 2.4 and 2.5).

Invariant: notes stand before the outputs they report, every unit takes the next seq, and `deps` is the union
of everything that went into the state, so that one comparison tells whether it is tainted.
"""

from typing import TYPE_CHECKING

from hams_protocol.deps import Deps, merge, others
from hams_protocol.effects import (
    Capture,
    NoteExec,
)
from hams_protocol.events import (
    Captured,
    UnitResult,
)
from hams_protocol.graph import FEEDBACK
from hams_protocol.ids import ValueId
from hams_protocol.joins import Forward, Unit, fan_of
from hams_protocol.lineage import chain_next
from hams_protocol.messages import (
    Consumed,
    Determinant,
    Kind,
    ModelError,
    Payload,
    Ran,
    StateRecord,
    Token,
)
from hams_protocol.stateful.durability import Durability

if TYPE_CHECKING:
    from hams_protocol.stateful.machine import StatefulMachine


class Execution:
    """The newest state of a primary's epoch: its seq, its dependencies, and whether it is being captured."""

    def __init__(self, machine: "StatefulMachine", epoch: int, durability: Durability) -> None:
        self._m = machine
        self._ctx = machine.ctx
        self._epoch = epoch
        self._durability = durability
        newest = machine.store.newest
        assert newest is not None, "a primary has a state"
        self.seq = newest.number
        self._chain = newest.record.chain
        self.deps: Deps = ()
        if machine.by_receipt:  # the record that it begins with need not be durable
            self.deps = machine.knowledge.prune(others(newest.record.deps, machine.operator.name))
        self.capturing: int | None = None

    def execute(self, accepted: list[tuple[Unit, UnitResult]], deps: Deps, updated: bool) -> None:
        """Give each unit its seq; notes first, then the outputs, then the record."""
        m = self._m
        first = self.seq + 1
        version = self.seq + len(accepted)
        own = self._own(version)
        after = merge([others(deps, m.operator.name), own])
        consumed: list[Consumed] = []
        if m.mode.replays:
            name = m.operator.name
            ran = [
                Ran(unit.id, Kind.VALUE, None)
                if updated or result.error is None
                else Ran(unit.id, Kind.ERROR, ModelError(name, result.error))
                for unit, result in accepted
            ]
            self._determined(version, tuple(ran))
        for seq, (unit, result) in enumerate(accepted, first):
            kind, route, error = Kind.VALUE, unit.route or result.route, None
            if result.error is not None:
                kind, route, error = (
                    Kind.ERROR,
                    m.operator.successors,
                    ModelError(m.operator.name, result.error),
                )
            elif route is None:
                route = tuple(target for target in m.operator.targets if target != FEEDBACK)
            note, item = self._consume(unit, seq, version, after, kind, route, result.payload, error)
            self._ctx.emit(note)
            consumed.append(item)
        for item in consumed:
            self._durability.release(version, item.outputs)
        self._new_version(tuple(consumed), after, updated)

    def record_forward(self, unit: Unit, forward: Forward) -> None:
        """A unit of skips (or of an error): no model call, no capture, but a seq and a record, for what it
        forwards depends on it."""
        m = self._m
        version = self.seq + 1
        merged = m.knowledge.prune(merge([self.deps, m.joins.deps(unit)]))
        after = merge([others(merged, m.operator.name), self._own(version)])
        route = m.operator.successors if forward.kind is Kind.ERROR else ()
        if m.mode.replays:
            self._determined(version, (Ran(unit.id, forward.kind, forward.error),))
        note, item = self._consume(unit, version, version, after, forward.kind, route, None, forward.error)
        self._ctx.emit(note)
        self._durability.release(version, item.outputs)
        self._new_version((item,), after, False)

    def _consume(
        self,
        unit: Unit,
        seq: int,
        version: int,
        deps: Deps,
        kind: Kind,
        route: tuple[str, ...],
        payload: Payload | None,
        error: ModelError | None,
    ) -> tuple[NoteExec, Consumed]:
        m = self._m
        inputs = tuple(token.value_id for token in unit.used if token.kind is not Kind.SKIP)
        fan_inputs: tuple[Token, ...] = ()
        if m.fan_out_sources:
            fan_inputs = tuple(unit.tokens[source] for source in unit.tokens if source in m.fan_out_sources)
        value_id, outputs = m.make_outputs(unit, deps, route, kind, payload, error)
        out: ValueId | None = None if kind is Kind.SKIP else value_id
        self._chain = chain_next(self._chain, out)
        name, generation = m.operator.name, m.knowledge.topology.generation
        note = NoteExec(name, generation, self._epoch, unit.id, inputs, out, route, seq, version, self._chain)
        fan = fan_of(unit) if len(m.operator.lanes) > 1 else ()
        m.joins.finish(unit, (), m.fan_out_sources)
        return note, Consumed(unit.id, seq, out, outputs, fan_inputs, fan)

    def _determined(self, version: int, ran: tuple[Ran, ...]) -> None:
        """Before its outputs: whoever takes them knows how they came about."""
        made = Determinant(self._m.operator.name, self._epoch, version, ran)
        self._m.knowledge.determinants.learn((made,))

    def _own(self, version: int) -> Deps:
        waits = self._m.mode.waits_for_durable
        return (self._m.own_dep(self._epoch, version),) if waits else ()

    def _new_version(self, units: tuple[Consumed, ...], deps: Deps, updated: bool) -> None:
        """One more version in the store: captured and shipped where the state was written."""
        m = self._m
        version = self.seq + max(len(units), 1)
        before = m.store.newest
        assert before is not None, "a primary has a state"
        self.deps = deps or self.deps
        self.seq = version
        m.lineage.add(units, m.knowledge.completed)
        self._durability.notices.executed(units)
        if not m.mode.replicates:
            self._durability.durable = version
            before.record = StateRecord(
                m.operator.name, self._epoch, version, before.number, (), (), self._chain
            )
            return
        record = StateRecord(m.operator.name, self._epoch, version, before.number, deps, units, self._chain)
        added = m.store.append(record, changed=updated)
        if m.mode.replays:
            self._durability.executed()
        elif updated:
            self.capturing = version
            m.captures_open += 1
            self._ctx.emit(Capture(version))
        elif added.state is not None:
            self._durability.ship()
        self._durability.advance()

    def capture(self) -> None:
        """Where states are replayed: between two batches, if it is time."""
        version = self._durability.capture()
        if version is not None:
            self.capturing = version
            self._m.captures_open += 1

    def captured(self, event: Captured) -> None:
        """The state of a version is copied: its record can leave, the next update may enter."""
        if event.version != self.capturing:
            return
        self.capturing = None
        self._m.store.captured(event.version, event.state)
        self._durability.ship()
        self._durability.advance()
