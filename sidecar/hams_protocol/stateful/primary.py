"""A primary in one epoch: runs batches, releases outputs at once, makes versions durable beside (protocol.md, section 2).

Laws it keeps: the update stage is entered only when the previous version is captured and fewer than `window` versions are not yet durable;
a version is durable only when the whole ack set has applied it (alone: once its dependencies on other operators are durable); a unit is
executed once in the surviving history; nothing orphan is executed.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from hams_protocol import limits, mutants
from hams_protocol.deps import Deps, merge
from hams_protocol.effects import (
    AbandonBatch,
    BatchUnit,
    Capture,
    Effect,
    EnterUpdate,
    LoadState,
    NoteDurable,
    NoteExec,
    Propose,
    Send,
    StartBatch,
)
from hams_protocol.events import (
    BatchDone,
    BatchFailed,
    Captured,
    CasDone,
    CasFailed,
    Loaded,
    ModelDied,
    ModelReady,
    UnitResult,
    UpdateWanted,
)
from hams_protocol.graph import FEEDBACK, WhenUnprotected
from hams_protocol.ids import InstanceId, ValueId
from hams_protocol.joins import Forward, Stage, Unit
from hams_protocol.knowledge import Status
from hams_protocol.lineage import chain_next
from hams_protocol.messages import (
    AskCopy,
    AskDurable,
    Consumed,
    Durable,
    Fence,
    FenceAnswer,
    Kind,
    Message,
    ModelError,
    Payload,
    RecordAck,
    RetainedVersion,
    StateCopy,
    StateRecord,
    Suspect,
    Token,
)
from hams_protocol.poison import Attempts, managers_of
from hams_protocol.stateful.followers import Follower, Followers
from hams_protocol.topology import ReplicaSet, admit, hand_over, shrink
from hams_protocol.versions import Version

if TYPE_CHECKING:
    from hams_protocol.stateful.machine import StatefulMachine

FOREVER = float("inf")


class Primary:
    """The primary role of one instance in one epoch."""

    def __init__(self, machine: "StatefulMachine", found: ReplicaSet, now: float) -> None:
        self._m = machine
        self._epoch = found.epoch
        newest = machine.store.newest
        assert newest is not None, "a primary has a state"
        self._base = newest.number
        self._seq = newest.number
        self._chain = newest.record.chain
        self._deps: Deps = ()
        self.durable = -1
        self._attempts = Attempts(machine.graph, machine.operator.name)
        self._followers = Followers()
        self._followers.sync(found, self._base, now)
        self._proposed_at = -FOREVER
        self._reconsider_at = FOREVER
        self._batch = 0
        self._running: list[Unit] = []
        self._wanted = False
        self._updating = False
        self._abandoning = False
        self._capturing: int | None = None
        self._loads = 0
        self.loading = False
        self.draining = False
        self._fences: tuple[Fence, ...] = ()
        self._suspected_at = FOREVER
        self._interested = self._who_waits()
        self._waiting_since = FOREVER
        self._blocked = machine.graph.data.recovery.when_unprotected is WhenUnprotected.BLOCK

    # -- beginnings --------------------------------------------------------------------------------------------------------------

    def begun(self, now: float) -> list[Effect]:
        """The set begins with this primary alone, at a version that the model holds already."""
        return self.advance(now)

    def promoted(self, now: float) -> list[Effect]:
        """From backup to primary, or rolled back: load the record of the end, send saved outputs again, announce first of all."""
        m = self._m
        effects: list[Effect] = [] if mutants.on("no-reload") else self.load_newest()
        for consumed in () if mutants.on("outputs-not-resent") else m.lineage.units():
            for target, token in consumed.outputs:
                effects += m.outbox.put(target, token, now)
        return effects + self.advance(now)

    def load_newest(self) -> list[Effect]:
        """Make the model's state that of the newest version."""
        newest = self._m.store.newest
        assert newest is not None, "a primary has a state"
        assert newest.state is not None, "and it is captured"
        self._loads += 1
        self.loading = True
        return [LoadState(self._loads, newest.state)] if self._m.model_ready else []

    def loaded(self, event: Loaded, now: float) -> list[Effect]:
        """The model holds the state asked for last."""
        if event.token == self._loads:
            self.loading = False
        return []

    def model_ready(self, event: ModelReady, now: float) -> list[Effect]:
        """A fresh model process takes over the newest version; if that died with the old one before its capture, the set must roll back."""
        return [] if self.needs_rollback else self.load_newest()

    @property
    def needs_rollback(self) -> bool:
        """Whether versions were executed whose state is lost."""
        newest = self._m.store.newest
        return newest is not None and newest.state is None and self._capturing is None

    def retire(self) -> list[Effect]:
        """Its epoch is over: the model, which may stand before its update stage, is not left waiting."""
        return [AbandonBatch(self._batch_id())] if self._running and not (self._updating or self._abandoning) else []

    # -- forming batches ---------------------------------------------------------------------------------------------------------

    def unit_ready(self, unit: Unit, now: float) -> list[Effect]:
        """A unit's join rule is met."""
        if unit.id in self._m.lineage:
            unit.stage = Stage.DONE
            return []
        self._m.queue.add(unit, now)
        return []

    @property
    def undurable(self) -> int:
        """Versions executed but not yet durable."""
        newest = self._m.store.newest
        if newest is None or newest.number <= self.durable:
            return 0
        return len(self._m.store.after(self.durable))

    @property
    def settled(self) -> int:
        """The newest version that is durable, or was when this epoch began."""
        return max(self._base, self.durable)

    @property
    def window_open(self) -> bool:
        """Whether one more version may be executed; where states are large the window shrinks, to 1 at least."""
        if not self._m.mode.replicates:
            return True
        pending = self.undurable
        if pending == 0:
            return True
        if self._m.store.nbytes > limits.retained_state_bytes_max:
            return False
        return pending < self._m.operator.window or mutants.on("no-window")

    def pump(self, now: float) -> list[Effect]:
        """Let the next update in, form the next batch."""
        effects: list[Effect] = []
        if self._wanted:
            effects += self._try_update(now)
        m = self._m
        if self.draining:
            return effects + self._hand_over(now)
        if self._running or self.loading or not m.model_ready or not len(m.queue):
            return effects
        if m.mode.replicates and self.undurable > m.operator.window and not mutants.on("no-window"):
            return effects
        while not self._running:
            units = m.queue.take(now)
            if not units:
                return effects
            runnable: list[Unit] = []
            for index, unit in enumerate(units):
                if m.is_fenced(m.joins.deps(unit)):
                    self._set_aside(unit)
                    continue
                forward = self._passed_on(unit)
                if forward is None:
                    runnable.append(unit)
                elif self.window_open:
                    effects += self._record_forward(unit, forward, now)
                else:
                    for later in reversed([*runnable, *units[index:]]):
                        m.queue.add_first(later, now)
                    return effects
            if runnable:
                effects += self._start(runnable)
        return effects

    def _hand_over(self, now: float) -> list[Effect]:
        """Planned handoff: the queue is stopped and the window flushed; once the whole set has applied the last version, a backup takes over."""
        m = self._m
        found = m.knowledge.set_of(m.operator.name)
        unflushed = self._running or (self._seq > self.durable and not mutants.on("hand-over-unflushed"))
        if unflushed or self.loading or now < self._proposed_at + limits.propose_retry_s:
            return []
        heir = next((item for item in found.in_sync if item in m.members), None)
        if heir is None:
            return []
        changed = hand_over(m.knowledge.topology, m.operator.name, m.instance, self._epoch, heir, self._seq)
        if changed is None:
            return []
        self._proposed_at = now
        self._reconsider_at = now + limits.propose_retry_s
        return [Propose(m.knowledge.revision, changed)]

    def _passed_on(self, unit: Unit) -> Forward | None:
        if unit.attempts and self._attempts.is_poison(unit):
            return Forward(Kind.ERROR, self._attempts.error(unit))
        return self._m.joins.forward(unit)

    def _set_aside(self, unit: Unit) -> None:
        """Fenced out for now: it comes back with the next topology."""
        unit.reset()

    def after_purge(self, now: float) -> list[Effect]:
        """A newer topology ended any fence: units set aside are judged again."""
        self._fences = ()
        effects: list[Effect] = []
        for unit in self._m.joins.units():
            if unit.stage is Stage.WAITING:
                effects += self._m.unit_changed(unit, now)
        return effects

    def _start(self, units: list[Unit]) -> list[Effect]:
        m = self._m
        self._batch += 1
        self._running = units
        self._wanted = self._updating = self._abandoning = False
        for unit in units:
            unit.stage = Stage.RUNNING
            unit.batch = self._batch
        effects: list[Effect] = self._attempts.announce(units[0], m.knowledge) if units[0].attempts else []
        batch = tuple(BatchUnit(unit.id, m.joins.meta(unit), m.joins.inputs(unit)) for unit in units)
        return [*effects, StartBatch(self._batch_id(), batch)]

    def _batch_id(self) -> int:
        """Batches of earlier epochs must not be taken for this one's."""
        return self._epoch * BATCHES_PER_EPOCH + self._batch

    def update_wanted(self, event: UpdateWanted, now: float) -> list[Effect]:
        """The model stands before its update stage; `pump` lets it in."""
        if event.batch == self._batch_id() and self._running:
            self._wanted = True
            return []
        return [AbandonBatch(event.batch)]

    def _try_update(self, now: float) -> list[Effect]:
        m = self._m
        valid = [unit for unit in self._running if self._still_runs(unit)]
        if len(valid) < len(self._running) and not mutants.on("update-with-orphans"):
            self._wanted = False
            self._abandoning = True
            return [AbandonBatch(self._batch_id())]
        if not self.window_open or (self._capturing is not None and not mutants.on("update-during-capture")):
            return []
        if any(m.is_fenced(m.joins.deps(unit)) for unit in valid):
            return []
        self._wanted = False
        self._updating = True
        return [EnterUpdate(self._batch_id())]

    def _still_runs(self, unit: Unit) -> bool:
        return unit.stage is Stage.RUNNING and unit.batch == self._batch and unit.id.request not in self._m.knowledge.completed

    # -- finishing batches ---------------------------------------------------------------------------------------------------------

    def batch_done(self, event: BatchDone, now: float) -> list[Effect]:
        """Number the units, release the outputs, capture the state."""
        if event.batch != self._batch_id() or not self._running:
            return []
        m = self._m
        effects = self._attempts.survived(self._running, m.knowledge)
        running = {unit.id: unit for unit in self._running}
        valid = all(self._still_runs(unit) for unit in self._running)
        fenced = any(m.is_fenced(m.joins.deps(unit)) for unit in self._running if unit.stage is Stage.RUNNING)
        if event.updated and (not valid or fenced) and not mutants.on("update-with-orphans"):
            return effects + self._undo(now)
        self._running = []
        self._updating = False
        refused = [result for result in event.results if result.refused]
        for result in refused:
            unit = running[result.unit]
            unit.refused.update(token.source for token in unit.used)
            unit.reset()
            effects += m.unit_changed(unit, now)
        kept = [
            (running[result.unit], result)
            for result in event.results
            if not result.refused and result.unit in running and self._still_runs(running[result.unit])
        ]
        if fenced:
            for unit, _ in kept:
                self._set_aside(unit)
            return effects
        if not kept:
            return effects + (self.load_newest() if event.updated else [])
        before = () if mutants.on("deps-not-transitive") else self._deps
        deps = merge([before, *(m.joins.deps(unit) for unit, _ in kept)])
        return effects + self._execute(kept, m.knowledge.prune(deps), event.updated, now)

    def _execute(self, kept: list[tuple[Unit, UnitResult]], deps: Deps, updated: bool, now: float) -> list[Effect]:
        """Give each unit its seq; notes first, then the outputs, then the record."""
        m = self._m
        first = self._seq + 1
        version = self._seq + len(kept)
        own = self._own(version)
        after = merge([others(deps, m.operator.name), own])
        notes: list[Effect] = []
        sends: list[Effect] = []
        consumed: list[Consumed] = []
        for seq, (unit, result) in enumerate(kept, first):
            kind, route, error = Kind.VALUE, unit.route or result.route, None
            if result.error is not None:
                kind, route, error = Kind.ERROR, m.operator.successors, ModelError(m.operator.name, result.error)
            elif route is None:
                route = tuple(target for target in m.operator.targets if target != FEEDBACK)
            note, item = self._consume(unit, seq, version, after, kind, route, result.payload, error)
            notes.append(note)
            consumed.append(item)
            for target, token in item.outputs:
                sends += m.outbox.put(target, token, now)
        return [*notes, *sends, *self._new_version(tuple(consumed), after, updated, now)]

    def _record_forward(self, unit: Unit, forward: Forward, now: float) -> list[Effect]:
        """A unit of skips (or of an error): no model call, no capture, but a seq and a record, for what it forwards depends on it."""
        m = self._m
        version = self._seq + 1
        inputs = () if mutants.on("skip-without-deps") and forward.kind is Kind.SKIP else m.joins.deps(unit)
        merged = m.knowledge.prune(merge([self._deps, inputs]))
        after = merge([others(merged, m.operator.name), self._own(version)])
        route = m.operator.successors if forward.kind is Kind.ERROR else ()
        note, item = self._consume(unit, version, version, after, forward.kind, route, None, forward.error)
        effects: list[Effect] = [note]
        for target, token in item.outputs:
            effects += m.outbox.put(target, token, now)
        return effects + self._new_version((item,), after, False, now)

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
        m.joins.finish(unit, (), m.fan_out_sources)
        return note, Consumed(unit.id, seq, out, outputs, fan_inputs)

    def _own(self, version: int) -> Deps:
        waits = self._m.mode.waits_for_durable and not mutants.on("outputs-without-own-dep")
        return (self._m.own_dep(self._epoch, version),) if waits else ()

    def _new_version(self, units: tuple[Consumed, ...], deps: Deps, updated: bool, now: float) -> list[Effect]:
        """One more version in the store: captured and shipped where the state was written."""
        m = self._m
        version = self._seq + max(len(units), 1)
        before = m.store.newest
        assert before is not None
        self._deps = deps or self._deps
        self._seq = version
        m.lineage.add(units, m.knowledge.completed)
        if not m.mode.replicates:
            self.durable = version
            before.record = StateRecord(m.operator.name, self._epoch, version, before.number, (), (), self._chain)
            return []
        record = StateRecord(m.operator.name, self._epoch, version, before.number, deps, units, self._chain)
        added = m.store.append(record, changed=updated)
        effects: list[Effect] = []
        if updated:
            self._capturing = version
            effects.append(Capture(version))
        elif added.state is not None:
            effects += self._ship(now)
        return effects + self.advance(now)

    def captured(self, event: Captured, now: float) -> list[Effect]:
        """The state of a version is copied: its record can leave, the next update may enter."""
        if event.version != self._capturing:
            return []
        self._capturing = None
        self._m.store.captured(event.version, event.state)
        return [*self._ship(now), *self.advance(now)]

    def _undo(self, now: float) -> list[Effect]:
        """An input became orphan or fenced during the update: reload the version captured before; the others run again."""
        self._run_again(now)
        return self.load_newest()

    def _run_again(self, now: float) -> None:
        """The batch is off: its units queue again, before all others."""
        for unit in reversed(self._running):
            if self._still_runs(unit):
                unit.stage = Stage.READY
                self._m.queue.add_first(unit, now)
        self._running = []
        self._updating = False

    def batch_failed(self, event: BatchFailed, now: float) -> list[Effect]:
        """Told to abandon: the rest runs again. The model raised: the units run one per batch, and one that fails alone gets the error."""
        if event.batch != self._batch_id() or not self._running:
            return []
        alone = len(self._running) == 1 and not self._abandoning
        unit = self._running[0]
        if alone and self._still_runs(unit):
            effects = self._attempts.survived(self._running, self._m.knowledge)
            effects += self.load_newest() if event.updated else []
            self._running = []
            if self._m.is_fenced(self._m.joins.deps(unit)):
                self._set_aside(unit)
                return effects
            result = UnitResult(unit.id, error=event.message)
            deps = self._m.knowledge.prune(merge([self._deps, self._m.joins.deps(unit)]))
            return [*effects, *self._execute([(unit, result)], deps, False, now)]
        if not self._abandoning:
            for other in self._running:
                self._attempts.isolate(other)
        if event.updated:
            return self._undo(now)
        self._run_again(now)
        return []

    def model_died(self, event: ModelDied, now: float) -> list[Effect]:
        """Say which requests were in it, tell the managers; what was captured survives in this proxy."""
        m = self._m
        effects = self._attempts.died(self._running, m.knowledge)
        for unit in reversed(self._running):
            if self._still_runs(unit):
                unit.stage = Stage.READY
                m.queue.add_first(unit, now)
        self._running = []
        self._updating = self._wanted = False
        self._capturing = None
        self.loading = True
        self._suspected_at = now
        return effects + self._suspect_itself(event.reason)

    def _suspect_itself(self, reason: str) -> list[Effect]:
        return [Send(manager, Suspect(self._m.instance, reason)) for manager in managers_of(self._m.members)]

    # -- durability ------------------------------------------------------------------------------------------------------------------

    def _ship(self, now: float) -> list[Effect]:
        """Stream every record that is ready, in order, to every follower that follows."""
        effects: list[Effect] = []
        ready = self._ready_up_to()
        for follower in self._followers.all.values():
            effects += self._ship_to(follower, ready, now)
        return effects

    def _ready_up_to(self) -> int:
        """The newest version whose record, and all before it, can leave: captured, or unchanged."""
        ready = self._base
        for version in self._m.store.versions:
            if version.state is None:
                break
            ready = version.number
        return ready

    def _ship_to(self, follower: Follower, ready: int, now: float) -> list[Effect]:
        if follower.copying or follower.sent >= ready:
            return []
        if follower.received >= follower.sent:
            follower.progress_at = now
        effects: list[Effect] = []
        for version in self._m.store.after(follower.sent):
            if version.number > ready:
                break
            if version.record.epoch == self._epoch:
                effects.append(Send(follower.instance, version.record))
            follower.sent = version.number
        return effects

    def advance(self, now: float) -> list[Effect]:
        """Move the durable watermark as far as the ack set (or, alone, the dependencies) allow, and announce it."""
        m = self._m
        if not m.mode.replicates:
            return []
        target = self._followers.applied_by_all()
        if self._blocked and not m.knowledge.set_of(m.operator.name).in_sync:
            target = None
        if target is None:
            target = -1 if self._blocked else self._settled()
        elif mutants.on("durable-before-all"):
            target = max(follower.applied for follower in self._followers.ack_set)
        self._waiting_since = FOREVER if target >= self._seq else min(self._waiting_since, now)
        if target <= self.durable:
            return self._serve_joiners(now)
        self.durable = target
        self._waiting_since = FOREVER if target >= self._seq else now
        name = m.operator.name
        notice = Durable((m.own_dep(self._epoch, target),))
        m.knowledge.announce(notice)
        m.store.trim(target)
        effects: list[Effect] = [NoteDurable(name, m.knowledge.topology.generation, self._epoch, target)]
        effects += [Send(peer, notice) for peer in self._interested]
        effects += self._serve_joiners(now)
        for follower in list(self._followers.all.values()):
            effects += self._admit(follower, now)
        return effects

    def _serve_joiners(self, now: float) -> list[Effect]:
        """Joiners that asked before there was anything to copy."""
        effects: list[Effect] = []
        for follower in self._followers.all.values():
            if follower.asked:
                effects += self._copy_to(follower.instance, AskCopy(self._m.operator.name, self._epoch), now)
        return effects

    def _settled(self) -> int:
        """Alone: the newest version that is captured and, with all before it, has only durable dependencies on other operators."""
        found = self.durable
        knowledge, name = self._m.knowledge, self._m.operator.name
        for version in self._m.store.versions:
            if version.state is None:
                break
            if knowledge.status(others(version.record.deps, name)) is not Status.DURABLE and not mutants.on("alone-without-deps"):
                break
            found = max(found, version.number)
        return found

    def _who_waits(self) -> list[InstanceId]:
        """Replicas of all downstream stateful operators, and the owners of the shards."""
        m = self._m
        names = (*m.graph.stateful_downstream[m.operator.name], *m.graph.shard_names)
        peers: dict[InstanceId, None] = {}
        for name in names:
            found = m.knowledge.set_of(name)
            for peer in found.members if name in m.graph.operators else (found.primary,):
                if peer is not None and peer != m.instance:
                    peers[peer] = None
        return list(peers)

    # -- followers ---------------------------------------------------------------------------------------------------------------------

    def members_named(self, found: ReplicaSet, now: float) -> list[Effect]:
        """A newer topology in the same epoch."""
        self._followers.sync(found, self._base, now)
        self._proposed_at = -FOREVER
        effects = [*self._ship(now), *self.advance(now), *self._tell_newcomers()]
        for follower in list(self._followers.all.values()):
            effects += self._admit(follower, now)
        return effects

    def _tell_newcomers(self) -> list[Effect]:
        """Who has a role now that waits for notices, and had none before, has heard nothing so far."""
        before, self._interested = set(self._interested), self._who_waits()
        if self.durable < 0:
            return []
        notice = Durable((self._m.own_dep(self._epoch, self.durable),))
        return [Send(peer, notice) for peer in self._interested if peer not in before]

    def message(self, sender: InstanceId, message: Message, now: float) -> list[Effect]:
        """What followers and waiting proxies say."""
        if isinstance(message, RecordAck):
            return self._record_ack(sender, message, now)
        if isinstance(message, AskCopy):
            return self._copy_to(sender, message, now)
        if isinstance(message, AskDurable):
            return [Send(sender, Durable((self._m.own_dep(self._epoch, self.durable),)))] if self.durable >= 0 else []
        self._attempts.message(message, self._m.outbox)
        return []

    def _record_ack(self, sender: InstanceId, ack: RecordAck, now: float) -> list[Effect]:
        if ack.epoch != self._epoch and not mutants.on("record-ack-of-old-epoch"):
            return []
        follower = self._followers.acknowledge(sender, ack.received, ack.applied, now)
        if follower is None:
            return []
        return [*self.advance(now), *self._admit(follower, now)]

    def _copy_to(self, sender: InstanceId, ask: AskCopy, now: float) -> list[Effect]:
        """A joiner copies the newest **durable** version, then follows the records."""
        follower = self._followers.all.get(sender)
        if ask.epoch != self._epoch or follower is None or follower.ack:
            return []
        m = self._m
        alone = self._blocked and not m.knowledge.set_of(m.operator.name).in_sync
        number = self._settled() if alone else self.durable
        if mutants.on("copy-speculative"):
            number = self._ready_up_to()
        version = m.store.at_or_below(number)
        if number < self._base or version is None or version.state is None:
            follower.copying = follower.asked = True
            return []
        follower.copying = follower.asked = False
        follower.sent = version.number
        follower.progress_at = now
        units = () if mutants.on("copy-without-consumed") else m.lineage.up_to(version.number)
        known = m.knowledge.completed.snapshot()
        copy = StateCopy(m.operator.name, self._epoch, version.number, units, known, version.record.chain, version.state, m.layout)
        return [Send(sender, copy), *self._ship_to(follower, self._ready_up_to(), now)]

    def _admit(self, follower: Follower, now: float) -> list[Effect]:
        """Once it has applied everything durable, a joiner enters the ack set; then, not before, it is proposed for the set."""
        m = self._m
        found = m.knowledge.set_of(m.operator.name)
        if follower.instance not in found.joining or follower.copying or follower.applied < max(self.durable, self._base):
            return []
        if not mutants.on("set-before-ack-set"):
            follower.ack = True
        if now < self._proposed_at + limits.propose_retry_s:
            return []
        changed = admit(m.knowledge.topology, m.operator.name, m.instance, self._epoch, follower.instance)
        if changed is None:
            return []
        self._proposed_at = now
        self._reconsider_at = now + limits.propose_retry_s
        return [Propose(m.knowledge.revision, changed)]

    def drop_gone(self, now: float) -> list[Effect]:
        """A set is shrunk only by its living primary's own compare-and-swap; until it is known, the member stays in the ack set."""
        m = self._m
        if now < self._proposed_at + limits.propose_retry_s:
            return []
        gone = self._followers.gone(m.members, m.graph.data.recovery.suspect_after_s, now)
        for member in gone:
            changed = shrink(m.knowledge.topology, m.operator.name, m.instance, self._epoch, member)
            if changed is not None:
                self._proposed_at = now
                self._reconsider_at = now + limits.propose_retry_s
                if mutants.on("leave-ack-set-before-shrink"):
                    self._followers.all[member].ack = False
                return [Propose(m.knowledge.revision, changed)]
        return []

    def proposal_settled(self, event: CasDone | CasFailed, now: float) -> list[Effect]:
        """Committed, or overtaken by another change: the topology that follows says what is to be done next."""
        self._proposed_at = -FOREVER
        self._reconsider_at = now
        return []

    def proposal_unknown(self, now: float) -> list[Effect]:
        """The shell reads again; until then nothing is proposed."""
        self._proposed_at = now
        self._reconsider_at = now + limits.propose_retry_s
        return []

    def peer_up(self, peer: InstanceId, now: float) -> list[Effect]:
        """A follower is back: what it has not acknowledged goes out again."""
        follower = self._followers.up(peer, now)
        return self._ship_to(follower, self._ready_up_to(), now) if follower is not None else []

    def peer_down(self, peer: InstanceId, refused: bool, now: float) -> list[Effect]:
        """A follower cannot be reached."""
        self._followers.down(peer, refused, now)
        return self.drop_gone(now)

    # -- managers ----------------------------------------------------------------------------------------------------------------------

    def is_fenced(self, deps: Deps) -> bool:
        """Whether a dependency lies above the ends of the fence in force."""
        return any(above(deps, fence) for fence in self._fences)

    def is_tainted(self) -> bool:
        """Whether the state depends on an orphan."""
        m = self._m
        return m.knowledge.status(others(self._deps, m.operator.name)) is Status.ORPHAN

    def fenced(self, fence: Fence) -> FenceAnswer:
        """Let in no dependency above these ends; say whether the state holds one, and what it could go back to.

        Every fence of this generation stays in force: managers may ask at once, a question may come late, and any of their attempts may yet
        commit. What is durable, or was when this epoch began, is told without dependencies: durable is for ever, though a notice was lost.
        """
        m = self._m
        kept = tuple(other for other in self._fences if other.ends != fence.ends)
        self._fences = () if mutants.on("newest-fence-only") else kept[-limits.fences_kept_max + 1 :]
        self._fences += (fence,)
        tainted = above(self._deps, fence)
        settled = self.settled
        retained = tuple(
            RetainedVersion(version.number, () if version.number <= settled else m.knowledge.prune(others(version.record.deps, m.operator.name)))
            for version in reversed(m.store.versions)
            if version.state is not None
        )
        return FenceAnswer(fence.attempt, fence.generation, fence.name, self._epoch, tainted, retained)

    # -- time --------------------------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Effect]:
        """Resend, shrink, ask again."""
        if now >= self._reconsider_at:
            self._reconsider_at = FOREVER
        effects = self.drop_gone(now)
        for follower in self._followers.all.values():
            effects += self._resend(follower, now)
            effects += self._ask_applied(follower, now)
            effects += self._admit(follower, now)
        if now >= self._waiting_since + limits.ask_after_s:
            self._waiting_since = now
            effects += self._ask_durable()
        if now >= self._suspected_at + limits.suspect_again_after_s:
            self._suspected_at = now if self.needs_rollback else FOREVER
            if self.needs_rollback:
                effects += self._suspect_itself("its model died with versions that were not captured")
        return effects

    def _resend(self, follower: Follower, now: float) -> list[Effect]:
        if follower.copying or follower.received >= follower.sent or follower.down_since != FOREVER:
            return []
        waiting = [version for version in self._m.store.after(follower.received) if version.number <= follower.sent]
        patience = limits.resend_after_s + sum(size_of(version) for version in waiting) / limits.stream_floor_bytes_s
        if now < follower.progress_at + patience:
            return []
        if follower.received < 0 and not follower.ack:
            return []
        if not follower.ack and self._m.store.find(follower.received) is None:
            follower.progress_at = now
            return self._copy_to(follower.instance, AskCopy(self._m.operator.name, self._epoch), now)
        follower.sent = follower.received
        effects = self._ship_to(follower, self._ready_up_to(), now)
        return effects

    def _ask_applied(self, follower: Follower, now: float) -> list[Effect]:
        """The acknowledgement of an apply may be lost: the bare record of a version it has received makes a follower say it again."""
        if now < follower.ask_at:
            return []
        follower.asked_at = now
        version = self._m.store.find(follower.received)
        if version is None:
            return []
        return [Send(follower.instance, replace(version.record, epoch=self._epoch, units=(), state=None))]

    def _ask_durable(self) -> list[Effect]:
        m = self._m
        effects: list[Effect] = []
        for dep in self._deps:
            owner = m.knowledge.set_of(dep.op).primary
            if dep.op != m.operator.name and owner is not None and m.knowledge.status_of(dep) is not Status.DURABLE:
                effects.append(Send(owner, AskDurable(dep.op)))
        return effects

    def deadline(self) -> float:
        """When `tick` has something to do."""
        m = self._m
        due = min(self._followers.deadline(m.graph.data.recovery.suspect_after_s), self._waiting_since + limits.ask_after_s)
        if not self._running and not self.loading and m.model_ready:
            due = min(due, m.queue.deadline())
        return min(due, self._reconsider_at, self._suspected_at + limits.suspect_again_after_s)


def others(deps: Deps, name: str) -> Deps:
    """A state's dependencies on the states of other operators than its own."""
    return tuple(dep for dep in deps if dep.op != name)


def above(deps: Deps, fence: Fence) -> bool:
    """Whether any dependency lies above an end of the fence."""
    for dep in deps:
        for end in fence.ends:
            if dep.op == end.op and (dep.epoch > end.epoch or (dep.epoch == end.epoch and dep.seq > end.seq)):
                return True
    return False


def size_of(version: Version) -> int:
    """Bytes that travel with a version's record."""
    return version.record.state.nbytes if version.record.state is not None else 0


BATCHES_PER_EPOCH = 1 << 40
"""Batch ids are unique over the epochs of one instance."""
