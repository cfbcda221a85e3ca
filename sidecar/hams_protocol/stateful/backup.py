"""A backup, in sync or still joining: receives records, holds them, applies them in order (protocol.md,
section 2).

Invariant (I3): an applied version has only durable dependencies on other operators. Records are acknowledged
twice: their receipt, and their apply; only the second makes a version durable. Where receipt is enough
(ADR 0013), a record is part of the state as soon as it is held, and acknowledged once.
"""

from collections import deque
from dataclasses import replace
from typing import Protocol

from hams_protocol import limits
from hams_protocol.context import Context
from hams_protocol.due import FOREVER, Due
from hams_protocol.effects import NoteApply, PreloadState
from hams_protocol.events import Loaded
from hams_protocol.graph import Operator
from hams_protocol.ids import InstanceId
from hams_protocol.knowledge import Knowledge, Status
from hams_protocol.lineage import Lineage
from hams_protocol.messages import (
    AskApplied,
    Message,
    Payload,
    RecordAck,
    StateCopy,
    StateRecord,
)
from hams_protocol.replica.following import Following
from hams_protocol.replica.proposals import Proposals
from hams_protocol.stateful.notices import ask_durable
from hams_protocol.stateful.receipts import newest_durable
from hams_protocol.stateful.role import Role
from hams_protocol.topology import ReplicaSet
from hams_protocol.versions import VersionStore


class Replica(Protocol):
    """What a backup is part of: an instance of its operator, or what a keeper holds."""

    ctx: Context
    operator: Operator
    knowledge: Knowledge
    store: VersionStore
    lineage: Lineage
    layout: str
    model_ready: bool
    warm: bool
    warming: bool
    by_receipt: bool

    def fits(self, layout: str) -> bool:
        """Whether a state of this layout can be taken over."""
        ...

    def refuse_layout(self, layout: str) -> None:
        """What is done if it cannot."""
        ...

    def refuse_state(self, defect: str) -> None:
        """What is done if a state's payload cannot be read."""
        ...


class Backup(Role):
    """The backup (or joiner) role of one instance in one epoch; or what a keeper holds, without `proposals`
    (`Frozen`)."""

    def __init__(
        self, machine: Replica, replica_set: ReplicaSet, in_sync: bool, proposals: Proposals | None
    ) -> None:
        super().__init__(machine.ctx)
        self._m = machine
        self._epoch = replica_set.epoch
        self.following = Following(
            machine.ctx, machine.knowledge, proposals, replica_set, in_sync, self.ask_copy
        )
        newest = machine.store.newest
        self.applied = newest.number if newest is not None and in_sync and not machine.by_receipt else -1
        self._held: deque[StateRecord] = deque()
        self._early: dict[int, StateRecord] = {}
        self._said = (-1, -1)
        self._waiting_since = FOREVER
        self._preloaded = False

    @property
    def in_sync(self) -> bool:
        """Whether the topology says so; of a keeper, that it is one."""
        return self.following.in_sync

    @property
    def name(self) -> str:
        """See `Role`."""
        return "backup" if self.in_sync else "joining"

    @property
    def is_ready(self) -> bool:
        """Whether it is in sync."""
        return self.in_sync

    @property
    def has_state(self) -> bool:
        """See `Role`."""
        return self.in_sync

    @property
    def may_count(self) -> bool:
        """See `Role`. A joiner that has said that it has applied its copy may have been admitted, or a keeper
        named, before it hears of that."""
        return self.in_sync or (self._said[1] >= 0 and self.following.may_be_admitted)

    @property
    def settled(self) -> int:
        """See `Role`."""
        return self.applied

    @property
    def received(self) -> int:
        """The newest version received in order."""
        if self._m.by_receipt:
            newest = self._m.store.newest
            return -1 if newest is None else newest.number
        return self._held[-1].version if self._held else self.applied

    @property
    def counted(self) -> int:
        """The newest version that this replica answers for: applied, or received where that is enough."""
        return self.received if self._m.by_receipt else self.applied

    # -- joining ---------------------------------------------------------------------------------------------

    def ask_copy(self) -> None:
        """A joiner asks for the newest durable version, or, once it holds one, says again how far it has
        come."""
        self.following.ask_copy(self.received)
        self._acknowledge(again=True)

    def _copied(self, copy: StateCopy) -> None:
        if self.in_sync:
            return
        self.following.got_on()
        if copy.version <= self.received:
            self._acknowledge(again=True)
            return
        m = self._m
        if not m.fits(copy.layout):
            m.refuse_layout(copy.layout)
            return
        if copy.state is not None and copy.state.defect:
            m.refuse_state(copy.state.defect)
            return
        state = self._whole(copy)
        if state is None and copy.state is not None:
            return
        m.layout = copy.layout
        self._held.clear()
        self._waiting_since = FOREVER
        record = StateRecord(copy.op, copy.epoch, copy.version, -1, (), copy.units, copy.chain, state)
        m.store.start(record, state)
        m.lineage.clear()
        m.lineage.add(copy.units, m.knowledge.completed)
        self.applied = copy.version
        note = NoteApply(
            copy.op, m.knowledge.topology.generation, self._epoch, copy.version, copy.chain, snapshot=True
        )
        self._preloaded = self._preloaded or m.warm
        self._ctx.emit(note)
        self.preload()
        self._adopt_early()
        self._acknowledge()

    def preload(self) -> None:
        """Warm the model, which until a failover is not asked for anything. Until it is, this joiner says
        what it has received, and not that it has applied anything: so it is not in sync before its model can
        take over. Once for each start of the model: whatever it took over then, and a second one, still under
        way when the first is done, would keep it from taking over.
        """
        m, newest = self._m, self._m.store.newest
        if newest is None or newest.state is None or not m.model_ready or m.warm or m.warming:
            return
        m.warming = True
        self._ctx.emit(PreloadState(newest.state))

    def loaded(self, event: Loaded) -> None:
        """The model has taken a state over."""
        self._preloaded = True
        self._acknowledge()

    # -- records ---------------------------------------------------------------------------------------------

    def message(self, sender: InstanceId, message: Message) -> None:
        """Records and copies, of this epoch only."""
        if isinstance(message, StateRecord):
            self._record(sender, message)
        elif isinstance(message, StateCopy) and message.epoch == self._epoch:
            self._copied(message)
        elif isinstance(message, AskApplied) and message.epoch == self._epoch:
            self._acknowledge(again=True)

    def _record(self, sender: InstanceId, record: StateRecord) -> None:
        if record.epoch != self._epoch:
            return
        if self.following.frozen.stands:
            return
        if record.state is not None and record.state.defect:
            # what it holds so far is worth more than an end: its primary drops a backup that does not receive
            return
        if self.received < 0 or record.previous > self.received:
            if len(self._early) < limits.window_versions_max:
                self._early[record.previous] = record
            return
        if record.version <= self.received:
            self._acknowledge(again=True)
            return
        if not self._hold(record):
            return
        self.following.got_on()
        self._adopt_early()
        self.apply()
        self._acknowledge()

    def _hold(self, record: StateRecord) -> bool:
        """Whether its state is here, whole: one that is a difference from what is not held is not received,
        and not acknowledged."""
        if record.since >= 0 and record.state is not None:
            state = self._whole(record)
            if state is None:
                return False
            record = replace(record, state=state, since=-1)
        if self._m.by_receipt:
            self._keep(record)
        else:
            self._held.append(record)
        return True

    def _keep(self, record: StateRecord) -> None:
        """What is received is what it may go on from: whoever holds so many versions holds a durable one."""
        m = self._m
        m.store.append(record, changed=record.state is not None)
        m.lineage.add(record.units, m.knowledge.completed)
        m.store.trim(FOREVER_VERSION, keep_at_least=m.operator.window + 2)

    def _whole(self, carrier: StateRecord | StateCopy) -> Payload | None:
        """The state of a record or a copy, what it does not carry being taken from the version that it is a
        difference from; None if that is not held, or does not fit."""
        if carrier.state is None or carrier.since < 0:
            return carrier.state
        base = self._state_of(carrier.since)
        return None if base is None else carrier.state.laid_over(base, carrier.since, carrier.version)

    def _state_of(self, number: int) -> Payload | None:
        """The state of this very version, received or applied."""
        state, found = None, False
        for version in self._m.store.versions:
            if version.number <= number:
                state, found = version.state, version.number == number
        for record in self._held:
            if record.version <= number:
                state, found = (state if record.state is None else record.state), record.version == number
        return state if found else None

    def _adopt_early(self) -> None:
        while (record := self._early.pop(self.received, None)) is not None:
            if not self._hold(record):
                break
        self._early = {
            previous: record for previous, record in self._early.items() if previous > self.received
        }
        self.apply()

    def apply(self) -> None:
        """Apply held records, oldest first, as far as their dependencies on other operators are durable."""
        if self.following.frozen.stands:
            return
        if self._m.by_receipt:
            self._say_applied()
            return
        m, before = self._m, self.applied
        name, knowledge = m.operator.name, m.knowledge
        while self._held:
            record = self._held[0]
            status = knowledge.status(tuple(dep for dep in record.deps if dep.op != name))
            if status is Status.ORPHAN:
                self._held.clear()
                self._early.clear()
                self._waiting_since = FOREVER
                break
            if status is not Status.DURABLE:
                self._waiting_since = min(self._waiting_since, self._ctx.now)
                break
            self._held.popleft()
            self._waiting_since = FOREVER
            m.store.append(record, changed=record.state is not None)
            m.lineage.add(record.units, knowledge.completed)
            self.applied = record.version
            generation = knowledge.topology.generation
            self._ctx.emit(NoteApply(name, generation, self._epoch, record.version, record.chain))
        if self.applied > before:
            # Beyond the durable version the primary may be ahead by its window, and by one batch that did not
            # change the state. The end of the epoch may be any of them, or the durable one.
            m.store.trim(FOREVER_VERSION, keep_at_least=max(m.operator.window + 2 - len(self._held), 1))
        self._acknowledge()

    def _say_applied(self) -> None:
        """Bookkeeping, where receipt is enough: nobody waits for it, and what is pending may be gone on
        from."""
        m, name = self._m, self._m.operator.name
        newest = newest_durable(m.store, m.knowledge, name, self.received)
        version = m.store.find(newest)
        if newest <= self.applied or version is None:
            return
        self.applied = newest
        generation = m.knowledge.topology.generation
        self._ctx.emit(NoteApply(name, generation, self._epoch, newest, version.record.chain))

    def _acknowledge(self, again: bool = False) -> None:
        said = (self.received, self.counted if self.in_sync or self._preloaded else -1)
        leader = self.following.leader
        if leader is None or self.received < 0 or (said == self._said and not again):
            return
        self._said = said
        self._ctx.send(leader, RecordAck(self._m.operator.name, self._epoch, *said, differences=True))

    # -- epochs ----------------------------------------------------------------------------------------------

    def retire(self) -> None:
        """Its epoch is over. What it refers to refers to it: states that it has received would stay until the
        interpreter looks for that."""
        self._held.clear()
        self._early.clear()

    def resumed(self, end: int) -> None:
        """Back at the record of the end, in sync in the new epoch: say so."""
        if self._m.by_receipt:
            self._say_applied()
            self._acknowledge()
            return
        self.applied = end
        m = self._m
        chain = m.store.versions[-1].record.chain
        note = NoteApply(m.operator.name, m.knowledge.topology.generation, self._epoch, end, chain)
        self._ctx.emit(note)
        self._acknowledge()

    def drain(self) -> None:
        """A joiner on which nobody can count yet need not ask."""
        if self.may_count:
            self.following.leave()

    def durable_rose(self) -> None:
        """Held records may be applied now."""
        self.apply()

    # -- time ------------------------------------------------------------------------------------------------

    def peer_up(self, peer: InstanceId) -> None:
        """The connection to the primary stands again."""
        if peer != self.following.leader:
            return
        if self.received >= 0:
            self._acknowledge(again=True)
        else:
            self.ask_copy()

    def dues(self) -> list[Due]:
        """What a follower does; ask for notices that may be lost."""
        return [
            *self.following.dues(),
            (self._waiting_since + limits.ask_after_s, self._ask_durable),
        ]

    def _ask_durable(self) -> None:
        """What the oldest held record waits for."""
        m = self._m
        self._waiting_since = self._ctx.now
        ask_durable(self._ctx, m.knowledge, m.operator.name, self._held[0].deps)


FOREVER_VERSION = 1 << 62
"""Above every version: trim by count alone."""
