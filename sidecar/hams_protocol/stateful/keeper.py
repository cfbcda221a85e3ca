"""States that an instance holds for primaries of other operators while those have no backup in sync
(protocol.md, sections 2 and 7.2).

A keeper receives, holds, applies and acknowledges records like a backup, but has no model for them: it is
never promoted. It answers managers' questions, gives the state to a fresh primary that they have named, and
forgets it once the topology names it no more. Invariant: what a keeper has acknowledged stays until a
topology without it is known that is newer than the one in which it was called.
"""

from hams_protocol import limits
from hams_protocol.context import Context
from hams_protocol.due import FOREVER, Due, Timed
from hams_protocol.graph import Graph
from hams_protocol.ids import InstanceId
from hams_protocol.knowledge import Knowledge
from hams_protocol.lineage import Lineage, pruned
from hams_protocol.messages import (
    HOLDS,
    AskApplied,
    AskCopy,
    Freeze,
    FreezeAnswer,
    Message,
    RecordAck,
    Refused,
    RetainedVersion,
    RoleReport,
    StateCopy,
    StateRecord,
)
from hams_protocol.modes import ModePolicy
from hams_protocol.replica.freeze import refusal
from hams_protocol.sizes import carried_nbytes, payload_nbytes
from hams_protocol.stateful.backup import Backup
from hams_protocol.stateful.notices import ask_durable
from hams_protocol.stateful.receipts import survivors
from hams_protocol.topology import ReplicaSet
from hams_protocol.undecided import Undecided
from hams_protocol.versions import Version, VersionStore


class HeldState:
    """One operator's state in one epoch, as a replica without a model (`backup.Replica`)."""

    def __init__(
        self,
        ctx: Context,
        graph: Graph,
        op: str,
        knowledge: Knowledge,
        replica_set: ReplicaSet,
    ) -> None:
        self.ctx = ctx
        self.operator = graph.operators[op]
        self.knowledge = knowledge
        self.store = VersionStore()
        self.lineage = Lineage()
        self.layout = ""
        self.model_ready = False
        self.warm = True
        """There is no model to be warmed, so nothing to wait for."""
        self.warming = False
        self.by_receipt = ModePolicy.of(graph.data.mode).by_receipt
        self.epoch = replica_set.epoch
        self.copied_by = -FOREVER
        self.backup = Backup(self, replica_set, False, None)

    def fits(self, layout: str) -> bool:
        """Any state does."""
        return True

    def refuse_layout(self, layout: str) -> None:
        """See `fits`."""

    def refuse_state(self, defect: str) -> None:
        """Nothing is acknowledged, so the primary calls another instance."""

    @property
    def nbytes(self) -> int:
        """Bytes of all versions held, with what their records carry."""
        return self.store.nbytes + sum(version.carried_nbytes for version in self.store.versions)

    @property
    def is_empty(self) -> bool:
        """Whether there is no state here: the topology names a keeper that has none, which it must not."""
        return self.backup.counted < 0

    def go_on(self, replica_set: ReplicaSet, end: int, leaving: bool) -> None:
        """Its set has a fresh primary in the next epoch, which goes on from `end`."""
        self.store.rollback(end)
        self.lineage.rollback(end)
        self.epoch = replica_set.epoch
        self.backup.retire()
        self.backup = Backup(self, replica_set, True, None)
        self.backup.resumed(end)
        if leaving:
            self.backup.drain()

    def let_go(self) -> None:
        """It is kept no more: its memory is free at once (`Backup.retire`)."""
        self.backup.retire()
        self.store = VersionStore()
        self.lineage = Lineage()


class Keeper(Timed):
    """All states that one instance holds for others."""

    def __init__(
        self,
        ctx: Context,
        graph: Graph,
        instance: InstanceId,
        knowledge: Knowledge,
        undecided: Undecided,
        own: str,
    ) -> None:
        super().__init__(ctx)
        self._ctx = ctx
        self._undecided = undecided
        self._graph = graph
        self._instance = instance
        self._knowledge = knowledge
        self._own = own
        self._leaving = False
        self._named_by = FOREVER  # how long one that is to end waits to hear that it is named
        self._may_be_named = True
        self.states: dict[str, HeldState] = {}

    def is_for(self, message: Message) -> bool:
        """Whether a message is about a state that is not this instance's own operator's."""
        if isinstance(message, Freeze):
            return message.name != self._own
        return (
            isinstance(message, (StateCopy, StateRecord, AskApplied, AskCopy))
            and message.op != self._own
            and message.op in self._graph.operators
        )

    @property
    def is_needed(self) -> bool:
        """Whether a state must not end with this instance: the topology names it as a keeper of one that is
        here; or may do so already, or soon, since its primary has its word. To hear of that a keeper that is
        to end waits for a while only: nobody tells one that is not named that it is let go."""
        return any(self._is_counted(self._knowledge.set_of(op), held) for op, held in self.states.items())

    def _is_counted(self, replica_set: ReplicaSet, held: HeldState) -> bool:
        if self._instance in replica_set.keepers:
            return not held.is_empty
        return self._may_be_named and held.backup.may_count and self._is_called(replica_set, held)

    def _is_called(self, replica_set: ReplicaSet, held: HeldState) -> bool:
        """Whether one that is not named may be yet: it was not before, and nobody else holds the state."""
        named = held.backup.in_sync or replica_set.in_sync or replica_set.keepers
        return held.epoch == replica_set.epoch and not named

    # -- messages --------------------------------------------------------------------------------------------

    def message(self, sender: InstanceId, message: Message) -> None:
        """A primary's copy and records, a fresh primary's question, a manager's Freeze."""
        if isinstance(message, Freeze):
            self._ctx.send(sender, self._freeze(message))
        elif isinstance(message, AskCopy):
            self._copy_asked(sender, message)
        elif isinstance(message, StateCopy):
            self._copied(sender, message)
        elif isinstance(message, (StateRecord, AskApplied)):
            held = self.states.get(message.op)
            if held is None:
                return
            if isinstance(message, StateRecord) and message.epoch > self._knowledge.set_of(message.op).epoch:
                self._undecided.await_news(sender, message)
            else:
                held.backup.message(sender, message)

    def _copied(self, sender: InstanceId, copy: StateCopy) -> None:
        replica_set = self._knowledge.set_of(copy.op)
        if copy.op not in self.states and (self._leaving or not self._has_room(copy)):
            return
        if copy.epoch > replica_set.epoch or copy.generation > self._knowledge.topology.generation:
            # By a topology that its primary had left behind already it would forget what it acknowledges now.
            self._undecided.await_news(sender, copy)
            return
        if copy.epoch < replica_set.epoch or sender != replica_set.primary or replica_set.in_sync:
            return
        held = self.states.get(copy.op)
        if held is None:
            held = self.states[copy.op] = HeldState(
                self._ctx, self._graph, copy.op, self._knowledge, replica_set
            )
        held.backup.message(sender, copy)

    def _has_room(self, copy: StateCopy) -> bool:
        nbytes = payload_nbytes(copy.state) + carried_nbytes(copy.units)
        held = sum(state.nbytes for state in self.states.values())
        return len(self.states) < limits.keeper_sets_max and held + nbytes <= limits.keeper_state_bytes_max

    def _copy_asked(self, sender: InstanceId, ask: AskCopy) -> None:
        """A fresh primary, which has no state yet: it goes on from the end, which is the newest version here
        then."""
        replica_set = self._knowledge.set_of(ask.op)
        if ask.epoch > replica_set.epoch:
            self._undecided.await_news(sender, ask)
            return
        held = self.states.get(ask.op)
        if held is None or held.epoch != ask.epoch or sender != replica_set.primary:
            return
        if held.is_empty:
            self._ctx.send(sender, RecordAck(ask.op, ask.epoch, -1, -1))
            return
        if held.backup.applied < held.backup.counted:
            self._ask_durable(held)
            return
        version = held.store.at_or_below(held.backup.applied)
        if version is None or version.state is None or self._ctx.now < held.copied_by:
            return
        nbytes = version.state.nbytes + version.carried_nbytes
        held.copied_by = self._ctx.now + limits.resend_after_s / 2 + nbytes / limits.stream_floor_bytes_s
        units = pruned(held.lineage.up_to(version.number), self._knowledge, self._ctx.now)
        known = self._knowledge.completed.snapshot()
        self._ctx.send(
            sender,
            StateCopy(
                ask.op,
                ask.epoch,
                version.number,
                units,
                known,
                version.record.chain,
                version.state,
                held.layout,
            ),
        )

    def _ask_durable(self, held: HeldState) -> None:
        """A copy is of a durable version, or what it hangs on may be lost, and nobody has another one to go
        back to (ADR 0013)."""
        newest = held.store.newest
        if newest is not None:
            ask_durable(self._ctx, self._knowledge, held.operator.name, newest.record.deps)

    def _freeze(self, freeze: Freeze) -> FreezeAnswer | Refused:
        """Like a backup's answer."""
        generation = self._knowledge.topology.generation
        refused = refusal(freeze, self._instance, generation)
        if refused is not None:
            return refused
        held = self.states.get(freeze.name)
        version: Version | None = None
        retained: tuple[RetainedVersion, ...] = ()
        if held is not None and held.epoch == freeze.epoch and self._is_named(freeze.name, held):
            held.backup.following.frozen.freeze(freeze.generation)
            version = held.store.at_or_below(held.backup.counted)
            if held.by_receipt:
                retained = survivors(held.store, self._knowledge, freeze.name, held.backup.applied)
        applied, chain = (None, "") if version is None else (version.number, version.record.chain)
        return FreezeAnswer(freeze.attempt, generation, freeze.name, freeze.epoch, applied, chain, retained)

    def _is_named(self, op: str, held: HeldState) -> bool:
        replica_set = self._knowledge.set_of(op)
        return replica_set.epoch == held.epoch and self._instance in replica_set.keepers

    # -- what others want to know ----------------------------------------------------------------------------

    def reports(self) -> tuple[RoleReport, ...]:
        """What managers may count on."""
        return tuple(
            RoleReport(op, HOLDS, held.epoch, held.backup.counted, False)
            for op, held in self.states.items()
            if self._is_named(op, held) and not held.is_empty
        )

    # -- changes ---------------------------------------------------------------------------------------------

    def topology_changed(self) -> None:
        """Go on as a keeper of the same epoch or of the next one, or forget the state."""
        for op, held in list(self.states.items()):
            replica_set = self._knowledge.set_of(op)
            named = self._instance in replica_set.keepers
            if replica_set.epoch == held.epoch:
                if named:
                    held.backup.following.named(replica_set, in_sync=True)
                    held.backup.apply()
                elif not self._is_called(replica_set, held):
                    self._forget(op)
                continue
            end = replica_set.end_of(held.epoch)
            version = None if end is None else held.store.find(end)
            if named and end is not None and replica_set.epoch == held.epoch + 1 and version is not None:
                held.go_on(replica_set, end, self._leaving)
            else:
                self._forget(op)
        for replica_set in self._knowledge.topology.sets:
            named = self._instance in replica_set.keepers and replica_set.name in self._graph.operators
            if named and replica_set.name not in self.states:
                self._named_without(replica_set)

    def _forget(self, op: str) -> None:
        self.states.pop(op).let_go()

    def _named_without(self, replica_set: ReplicaSet) -> None:
        """Named, but nothing is here. Nothing comes any more: a copy is taken before the naming only, or an
        older one than what was acknowledged could count. So it asks to be let go, and says `HOLDS` to
        nobody."""
        held = HeldState(self._ctx, self._graph, replica_set.name, self._knowledge, replica_set)
        self.states[replica_set.name] = held
        held.backup.following.named(replica_set, in_sync=True)
        held.backup.following.leave()

    def durable_rose(self) -> None:
        """Records may be applied now; not those of an epoch that has just ended: `topology_changed` comes
        next."""
        for op, held in self.states.items():
            if held.epoch == self._knowledge.set_of(op).epoch:
                held.backup.apply()

    def requests_completed(self) -> None:
        """Free what was held for complete requests."""
        for held in self.states.values():
            held.lineage.complete(self._knowledge.completed)

    def peer_up(self, peer: InstanceId) -> None:
        """A connection stands again: primaries hear how far their states have come here."""
        for op, held in self.states.items():
            if peer == self._knowledge.set_of(op).primary:
                held.copied_by = -FOREVER
            held.backup.peer_up(peer)

    def leave(self) -> None:
        """This instance is to end: it asks again and again to be let go, and is a keeper until it is."""
        if not self._leaving:
            self._named_by = self._ctx.now + limits.leave_wait_s
        self._leaving = True
        for held in self.states.values():
            held.backup.following.leave()

    def late(self, by_s: float) -> None:
        """This instance's own loop was late: that it is named may lie unread."""
        if self._named_by != FOREVER:
            self._named_by = min(self._named_by + by_s, self._ctx.now + limits.leave_wait_s)

    def dues(self) -> list[Due]:
        """What the states' replicas are to do; no longer wait to be named."""
        dues = [due for held in self.states.values() for due in held.backup.dues()]
        return [*dues, (self._named_by if self.states else FOREVER, self._unnamed)]

    def _unnamed(self) -> None:
        self._named_by = FOREVER
        self._may_be_named = False
