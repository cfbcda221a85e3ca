"""One instance of a stateful operator: idle, joining, backup or primary, as the topology says (protocol.md,
sections 2, 6 and 7).

This module changes roles; what a role does lies in `primary` and `backup`. Invariant: a role is taken only
from a topology that names this very instance, and a state is carried into a new epoch only if it is the
record of the ended epoch's end. Whoever is deposed, tainted or lacks that record stops: it never guesses. A
state kept from a former id is no role: it answers managers, and it becomes a role's state only by a topology
that gives this instance one.
"""

from hams_protocol import limits
from hams_protocol.batching import Queues, fifo
from hams_protocol.context import InvariantError
from hams_protocol.deps import Deps
from hams_protocol.due import FOREVER
from hams_protocol.effects import Effect, Loss, NoteFailover, NoteLost, RestartModel, Stop
from hams_protocol.events import (
    BatchDone,
    BatchFailed,
    Captured,
    CasSettled,
    CasUnknown,
    CheckpointRead,
    CheckpointWritten,
    Drain,
    Event,
    Late,
    Loaded,
    ModelDied,
    ModelReady,
    Tick,
    UpdateWanted,
)
from hams_protocol.graph import Graph
from hams_protocol.ids import InstanceId, RequestId
from hams_protocol.joins import Unit
from hams_protocol.lateness import Lateness
from hams_protocol.lineage import Lineage
from hams_protocol.messages import (
    AskCopy,
    Durable,
    Fence,
    FenceAnswer,
    Freeze,
    Message,
    Payload,
    Probe,
    RecordAck,
    SlotAnswer,
    SlotQuery,
    StateCopy,
    StateRecord,
    Token,
)
from hams_protocol.replica.links import Links
from hams_protocol.replica.proposals import Proposals
from hams_protocol.stateful.backup import Backup
from hams_protocol.stateful.checkpoints import Checkpoints
from hams_protocol.stateful.fetching import Fetching
from hams_protocol.stateful.former import FormerState
from hams_protocol.stateful.keeper import Keeper
from hams_protocol.stateful.primary import Primary
from hams_protocol.stateful.questions import Questions
from hams_protocol.stateful.role import Role
from hams_protocol.topology import ReplicaSet
from hams_protocol.versions import VersionStore
from hams_protocol.vertex import Vertex


class StatefulMachine(Vertex):
    """`step(event, now) -> effects` of one instance of a stateful operator.

    `former` comes from the machine of this instance's former id, after its `Stop` named a set to keep.
    `restored` is a checkpoint of another run: if this instance is its set's very first primary, version 0 is
    that state; nothing else of that run counts.
    """

    def __init__(
        self,
        graph: Graph,
        op: str,
        instance: InstanceId,
        former: FormerState | None = None,
        restored: StateCopy | None = None,
        queues: Queues = fifo,
    ) -> None:
        super().__init__(graph, op, instance, queues)
        self.keeper = Keeper(self.ctx, graph, instance, self.knowledge, self.undecided, op)
        self.by_receipt = self.mode.by_receipt
        self.former = former
        self.lateness = Lateness(graph.data.recovery.suspect_after_s)
        self._restored = restored
        self.checkpoints = Checkpoints(self)
        self._questions = Questions(self)
        if former is not None:
            self.knowledge.completed.learn(former.completed)
            self.knowledge.announce(Durable(former.marks))
            self.knowledge.deadlines = former.deadlines
        self.store = VersionStore()
        self.lineage = Lineage()
        self._role = self._standby = Role(self.ctx)
        self.model_ready = self.warm = self.warming = False
        self.initial: Payload | None = None
        self.model_layout = ""
        self.layout = ""
        self.epoch = 0
        self._stopped = False
        self._ticked_at = -FOREVER
        self.draining = False
        self._ends_because = "drained"
        self.captures_open = 0
        self.loads = 0  # over epochs: an answer to the load of an earlier one is none to the newest
        self.links = Links()
        self.proposals = Proposals(self.ctx, self.knowledge)
        self._early_acks: dict[InstanceId, RecordAck] = {}
        self._early_asks: dict[InstanceId, AskCopy] = {}
        self._early_fences: tuple[Fence, ...] = ()
        self._reported: dict[str, int] = {}

    # -- the machine -----------------------------------------------------------------------------------------

    def step(self, event: Event, now: float) -> list[Effect]:
        """One event; the effects in the order in which they must be performed."""
        if self._stopped:
            return []
        ctx = self.ctx
        ctx.begin(now)
        self.handle(event)
        if isinstance(event, Tick):
            self.common_tick()
        if self.draining and not self.is_over() and self._has_nothing_to_hand_over():
            self._stop(self._ends_because)
        if self.is_over():
            return ctx.up_to_stop()
        self._role.pump()
        self.flush_acks()
        if isinstance(event, Tick):
            self._ticked_at = now
            self.outbox.tick()
            self._role.tick()
            self.checkpoints.tick()
        return ctx.out

    def is_over(self) -> bool:
        """Whether it has stopped: nothing is done under this id any more."""
        return self._stopped

    def deadline(self) -> float:
        """When the machine wants a Tick."""
        if self._stopped:
            return FOREVER
        due = min(self.common_deadline(), self.checkpoints.deadline(), self._role.deadline())
        return max(due, self._ticked_at + limits.tick_min_s)

    # -- roles -----------------------------------------------------------------------------------------------

    def become(self, role: Role) -> None:
        """Take a role, and leave the one before."""
        self._role.retire()
        self._role = role

    @property
    def primary(self) -> Primary | None:
        """The role, if it is that."""
        return self._role if isinstance(self._role, Primary) else None

    @property
    def backup(self) -> Backup | None:
        """The role, if it is that: in sync, or joining."""
        return self._role if isinstance(self._role, Backup) else None

    @property
    def fetching(self) -> Fetching | None:
        """The role, if it is that: a primary that does not have its state yet."""
        return self._role if isinstance(self._role, Fetching) else None

    @property
    def _is_member(self) -> bool:
        """Whether it is primary or backup, or joins."""
        return isinstance(self._role, Primary | Backup)

    @property
    def role(self) -> str:
        """`primary`, `backup`, `joining` or `standby`."""
        return self._role.name

    @property
    def ready(self) -> bool:
        """Whether the role is served: the model warm, the state there."""
        return self.model_ready and self._role.is_ready

    @property
    def version(self) -> int:
        """The newest version held: executed as primary, applied as backup, or received where that is
        enough."""
        if self.backup is not None:
            return self.backup.counted
        newest = self.store.newest
        return newest.number if newest is not None else -1

    # -- former states ---------------------------------------------------------------------------------------

    @property
    def former_id(self) -> InstanceId | None:
        """The former id whose state this instance still has, for its `Member` entry."""
        return None if self.former is None else self.former.instance

    def state_to_keep(self) -> FormerState | None:
        """After a `Stop` that names a set to keep: what a fresh machine should be given."""
        if not self._role.has_state or self.mode.replays:
            return self.former
        marks = tuple(
            mark for op in self.graph.operators if (mark := self.knowledge.watermark(op)) is not None
        )
        completed = self.knowledge.completed.snapshot()
        return FormerState(
            self.operator.name,
            self.instance,
            self.epoch,
            self.primary is not None,
            self._role.settled,
            self.store,
            self.lineage,
            completed,
            marks,
            self.knowledge.deadlines,
            self.layout,
        )

    def _resume_former(self, replica_set: ReplicaSet) -> bool:
        """Named in the epoch that follows the former state's: it is this instance's state from now on."""
        former = self.former
        if former is None or self._role.has_state or not former.may_resume(replica_set):
            return False
        self.store, self.lineage, self.layout = former.store, former.lineage, former.layout
        self.lineage.complete(self.knowledge.completed)
        return True

    def _drop_former(self) -> None:
        """A former state is of no use once the topology does not name the former id in its epoch; nor is who
        came back for its sake alone."""
        if self.former is None or self.former.is_named(self.knowledge.set_of(self.operator.name)):
            return
        self.former = None
        if not self._is_member:
            self._end("the state it kept is of no use any more")

    # -- what the common part asks ---------------------------------------------------------------------------

    def sending_epoch(self, request: RequestId) -> int | None:
        """See `Vertex`."""
        return self.epoch if self.primary is not None else None

    def is_consumed(self, token: Token) -> bool:
        """See `Vertex`."""
        return self.joins.unit_of(token) in self.lineage

    def is_fenced(self, deps: Deps) -> bool:
        """See `Vertex`."""
        return self._role.is_fenced(deps)

    def unit_ready(self, unit: Unit) -> None:
        """See `Vertex`."""
        self._role.unit_ready(unit)

    def durable_rose(self, ops: list[str]) -> None:
        """Held records may be applied now; a primary alone may call versions durable."""
        self._role.durable_rose()
        if self.operator.name in ops:
            self.checkpoints.durable_known()

    def requests_completed(self) -> None:
        """See `Vertex`."""
        self.lineage.complete(self.knowledge.completed)

    def led(self) -> tuple[str, int] | None:
        """See `Vertex`."""
        return None if self.primary is None else (self.operator.name, self.epoch)

    def slot_answer(self, query: SlotQuery) -> SlotAnswer | None:
        """With the fan-out inputs of consumed units. A backup says nothing: it may yet get the record of what
        its primary made of a value."""
        if self.primary is None:
            return None
        consumed = [token for unit in self.lineage.units() for token in unit.fan_inputs]
        tokens = self.held_from_slot(query, consumed)
        return SlotAnswer(query.op, query.slot, query.epoch, tokens, (self.operator.name, self.epoch))

    def peer_up(self, peer: InstanceId) -> None:
        """See `Vertex`."""
        self.links.stands(peer)
        self._role.peer_up(peer)

    def peer_down(self, peer: InstanceId, refused: bool) -> None:
        """See `Vertex`."""
        self.links.broke(peer, refused, self.ctx.now)
        self._role.peer_down(peer, refused)

    def members_changed(self) -> None:
        """See `Vertex`."""
        self.links.forget({*self.members, *self.knowledge.topology.instances})
        self._role.members_changed()

    # -- events of the model and of etcd ---------------------------------------------------------------------

    def own_event(self, event: Event) -> None:
        """See `Vertex`."""
        if isinstance(event, BatchDone):
            self._role.batch_done(event)
        elif isinstance(event, BatchFailed):
            self._role.batch_failed(event)
        elif isinstance(event, Captured):
            # Of an earlier epoch, perhaps: its copy must not be torn either.
            self.captures_open = max(self.captures_open - 1, 0)
            self._role.captured(event)
        elif isinstance(event, UpdateWanted):
            self._role.update_wanted(event)
        elif isinstance(event, Loaded):
            if event.defect:
                self._stop(f"the model refused the state: {event.defect}")
                return
            self.warm, self.warming = True, False
            self._role.loaded(event)
        elif isinstance(event, ModelReady):
            self._model_ready(event)
        elif isinstance(event, ModelDied):
            self.model_ready = self.warm = self.warming = False
            self.captures_open = 0
            self._role.model_died(event)
            self.ctx.emit(RestartModel(event.reason))
        elif isinstance(event, CasSettled):
            self.proposals.settled(failed=not event.committed)
            self._role.proposal_settled()
            self.learn_revision(event.topology, event.revision)
        elif isinstance(event, CasUnknown):
            self.proposals.settled(failed=True)
        elif isinstance(event, Drain):
            self._drain()
        elif isinstance(event, Late):
            self.lateness.late(event.by_s, self.ctx.now)
            self.links.late(event.by_s, self.ctx.now)
            self._role.late(event.by_s)
        elif isinstance(event, CheckpointRead):
            self.checkpoints.read(event.copy)
        elif isinstance(event, CheckpointWritten) and self.primary is not None:
            self.primary.written(event)

    def _drain(self) -> None:
        """A primary hands its set over; a backup and a keeper that count, or may do so, ask to be let go. An
        instance whose state is needed by nobody ends at once."""
        self.draining = True
        self.keeper.leave()
        self._role.drain()

    def _has_nothing_to_hand_over(self) -> bool:
        """Whether nobody needs what this instance holds."""
        return not self._role.may_count and self.former is None and not self.keeper.is_needed

    def _model_ready(self, event: ModelReady) -> None:
        self.model_ready = True
        self.initial = event.state
        self.model_layout = event.layout
        if self._is_member and not self.fits(self.layout):
            self.refuse_layout(self.layout)
            return
        if self.primary is not None and self.knowledge.set_of(self.operator.name).primary == self.instance:
            self.primary.model_ready()
            return
        if self.backup is not None:
            self.backup.preload()
        self._take_role()
        if self.primary is not None:
            self._fence_again(self.primary)
        self.checkpoints.roles_changed()
        self.judge_undecided()

    @property
    def has_not_begun(self) -> bool:
        """Whether it is named primary and has no state: that is to come from a keeper, its model is not there
        yet, or it cannot take the role, and is only here for what it keeps."""
        leads = self.knowledge.set_of(self.operator.name).primary == self.instance
        return self.fetching is not None or (leads and self._role is self._standby)

    def fenced_early(self, fence: Fence) -> FenceAnswer:
        """Nothing is here that could hang on what is lost: what a keeper holds has only durable dependencies.
        The fence holds for what is begun with, too."""
        others = [
            other
            for other in self._early_fences
            if other.generation == fence.generation and other.ends != fence.ends
        ]
        self._early_fences = (*others, fence)[-limits.fences_max :]
        replica_set = self.knowledge.set_of(self.operator.name)
        # What a keeper has received may hang on it, so that is asked.
        unknown = self.by_receipt and (self.fetching is not None or bool(replica_set.keepers))
        return FenceAnswer(fence.attempt, fence.generation, fence.name, replica_set.epoch, unknown, ())

    def _fence_again(self, primary: Primary) -> None:
        """What managers have asked before its epoch began holds for that as well."""
        fences, self._early_fences = self._early_fences, ()
        for fence in fences:
            if fence.generation == self.knowledge.topology.generation:
                primary.fenced(fence)

    def fits(self, layout: str) -> bool:
        """Whether this instance's model can take over a state of that layout, as far as both are known."""
        return not layout or not self.model_layout or layout == self.model_layout

    def refuse_layout(self, layout: str) -> None:
        """To hold a state that the model cannot load would look like a backup and be none."""
        name = self.operator.name
        self._stop(
            f"state layout mismatch: the state of {name} has the layout {layout}, this instance's model "
            f"{self.model_layout}"
        )

    def refuse_state(self, defect: str) -> None:
        """Who cannot read the state that it asked for holds nothing yet, and would ask for copy after
        copy."""
        self._stop(f"the state of {self.operator.name} cannot be read here: {defect}")

    # -- roles -----------------------------------------------------------------------------------------------

    def topology_changed(self) -> None:
        """Take, keep or lose a role; then purge what has become orphan."""
        if self.instance in self.knowledge.topology.revoked:
            self._stop("revoked", keep=True)
            return
        self._take_role()
        if not self._stopped:
            self._drop_former()
        self.checkpoints.roles_changed()
        if not self._stopped:
            self.checkpoints.read_if_lost()
        if self.knowledge.set_of(self.operator.name).primary not in (None, self.instance):
            self._restored = None
        primary = self.primary
        if not self._stopped and primary is not None:
            if primary.is_tainted():
                self._stop("tainted: its state depends on an orphan and nobody rolled it back", keep=True)
                return
            self.purge_units()
            primary.after_purge()
        if not self._stopped:
            self._adopt_early_asks()

    def _report_beyond(self, primary: Primary) -> None:
        """Upstream a state was lost and began again from less than this one may stem from: that is not
        undone, but said, before anything leaves that counts as durable by that loss."""
        if self.mode.replays or primary.is_tainted():
            return
        for name in self.graph.stateful_upstream[self.operator.name]:
            replica_set = self.knowledge.set_of(name)
            if replica_set.restarted_in <= self._reported.get(name, 0):
                continue
            self._reported[name] = replica_set.restarted_in
            if primary.holds_more_than(replica_set):
                why = f"it may stem from versions of {name} that were lost and did not come back"
                self.ctx.emit(NoteLost(Loss.STEMS, self.operator.name, self.epoch, self.version, why))

    def _take_role(self) -> None:
        replica_set = self.knowledge.set_of(self.operator.name)
        if self.fetching is not None and self.fetching.epoch != replica_set.epoch:
            self.become(self._standby)
        if replica_set.primary == self.instance:
            self._as_primary(replica_set)
            return
        if replica_set.epoch:
            self._restored = None  # somebody else has begun the state
        if self.instance in replica_set.in_sync:
            self._as_backup(replica_set)
        elif self.instance in replica_set.joining:
            self._as_joiner(replica_set)
        elif self._is_member:
            self._left_out()

    def _left_out(self) -> None:
        """It had a role in its set, and has none any more."""
        if self.draining:
            self._end("drained: the topology has let it go", keep=True)
        else:
            self._end("deposed: the topology gives this instance no role any more", keep=True)

    def _end(self, reason: str, keep: bool = False) -> None:
        """It has no role in its own set that it could take, and ends; but not before it is let go where it
        keeps the state of another operator. Whoever must not act any more, or cannot, stops at once
        (`_stop`): it is revoked, its model does not take its state, or that is tainted."""
        if not self.keeper.is_needed:
            self._stop(reason, keep)
            return
        self._forget_state()
        if not self.draining:
            self.draining, self._ends_because = True, reason
            self.keeper.leave()

    def _forget_state(self) -> None:
        """It has no part in its own set any more."""
        self.become(self._standby)
        self.store.clear()
        self.lineage.clear()

    def _as_primary(self, replica_set: ReplicaSet) -> None:
        if self.primary is not None and self.epoch == replica_set.epoch:
            self._report_beyond(self.primary)
            self.primary.members_named(replica_set)
            return
        if not self._resume_former(replica_set):
            if replica_set.restarted_in == replica_set.epoch and self.backup is not None:
                self._forget_state()  # it has not heard that the state was lost
            if replica_set.keepers and not self._has_end(replica_set):
                self._fetch(replica_set)
                return
            if not self._is_member:
                if self.model_ready:
                    self._as_first_primary(replica_set)
                return
            if self.backup is not None and not self.backup.in_sync and self.epoch + 1 != replica_set.epoch:
                # of the epoch before it may have been in sync without having heard of it
                self._end("named primary while still joining")
                return
        end = replica_set.end_of(replica_set.epoch - 1)
        if end is None or not self._go_back(end):
            self._end_without_record(replica_set)
            return
        self._begin_epoch(replica_set.epoch)
        self.ctx.emit(
            NoteFailover(
                self.operator.name, self.knowledge.topology.generation, replica_set.epoch, end, self.instance
            )
        )
        primary = Primary(self, replica_set)
        self.become(primary)
        self._report_beyond(primary)
        primary.promoted()
        self._adopt_early_acks()

    def _has_end(self, replica_set: ReplicaSet) -> bool:
        """Whether this instance had a role in the epoch before, and holds what that ended with."""
        end = replica_set.end_of(replica_set.epoch - 1)
        version = None if end is None else self.store.find(end)
        return self.epoch + 1 == replica_set.epoch and version is not None and version.state is not None

    def _fetch(self, replica_set: ReplicaSet) -> None:
        """Named primary of a state that only a keeper holds: this instance gets it from there, and begins the
        epoch then."""
        end = replica_set.end_of(replica_set.epoch - 1)
        if end is None:
            self._end_without_record(replica_set)
            return
        if self.fetching is not None:
            return
        fetching = Fetching(self, replica_set.keepers[0], replica_set.epoch, end)
        self.become(fetching)
        self.store.clear()
        self.lineage.clear()
        fetching.ask()

    def fetched(self, copy: StateCopy) -> None:
        """A keeper has given the state: the epoch begins, with the fences that managers have put up
        meanwhile."""
        replica_set = self.knowledge.set_of(copy.op)
        if not self.fits(copy.layout):
            self.refuse_layout(copy.layout)
            return
        if copy.state is not None and copy.state.defect:
            self.refuse_state(copy.state.defect)
            return
        self._fence_again(self._begin_with(copy, replica_set))
        self._adopt_early_acks()
        self._adopt_early_asks()
        self.judge_undecided()

    def stop_without_state(self, why: str) -> None:
        """Of a primary that never had its state: it ends, and whoever still has the state may give it to
        another one."""
        self._end(why)

    def _end_without_record(self, replica_set: ReplicaSet) -> None:
        epoch = replica_set.epoch - 1
        self._end(f"has not the record of the end {replica_set.end_of(epoch)} of epoch {epoch}")

    def _adopt_early_acks(self) -> None:
        """Backups may learn of an epoch, and say that they hold its beginning, before its primary does."""
        early, self._early_acks = self._early_acks, {}
        for sender, ack in early.items():
            self._role.message(sender, ack)

    def _adopt_early_asks(self) -> None:
        """Joiners may learn that they are named before the primary does: they would ask again seconds later
        only."""
        if self.fetching is not None or not self._early_asks:
            return
        known = self.knowledge.topology.generation
        early = {sender: ask for sender, ask in self._early_asks.items() if ask.generation <= known}
        for sender in early:
            del self._early_asks[sender]
        for sender, ask in early.items():
            self._role.message(sender, ask)

    def _is_early(self, sender: InstanceId, ask: AskCopy) -> bool:
        """Whether the question for a copy cannot be answered yet, but perhaps once a later topology is known,
        or the state is here."""
        if self.fetching is not None:
            return True
        if ask.generation <= self.knowledge.topology.generation:
            return False
        joining = self.knowledge.set_of(self.operator.name).joining
        return self.primary is None or ask.epoch != self.epoch or sender not in joining

    def _as_first_primary(self, replica_set: ReplicaSet) -> None:
        """A set begins with its primary alone: version 0 is a version like any other. After a loss it begins
        again at the reported end."""
        if replica_set.epoch > 1 and replica_set.restarted_in != replica_set.epoch:
            self._end_without_record(replica_set)  # of what went on, nothing begins anew
            return
        end = replica_set.end_of(replica_set.epoch - 1)
        if end or (end == 0 and self.mode.replays and self.checkpoints.saved is not None):
            self._from_checkpoint(replica_set, end)
            return
        self._begin_epoch(replica_set.epoch)
        version = 0 if end is None else end
        restored, self._restored = (self._restored if replica_set.epoch == 1 else None), None
        if restored is not None and not self.fits(restored.layout):
            self.refuse_layout(restored.layout)
            return
        self.layout = self.model_layout
        state = self.initial if restored is None else restored.state
        self.store.start(
            StateRecord(self.operator.name, replica_set.epoch, version, -1, (), (), "", state), state
        )
        primary = Primary(self, replica_set)
        self.become(primary)
        if restored is not None or replica_set.epoch > 1:
            primary.load_newest()  # the model may have had a part in what was lost
        if replica_set.epoch > 1:
            self.ctx.emit(
                NoteFailover(
                    self.operator.name,
                    self.knowledge.topology.generation,
                    replica_set.epoch,
                    version,
                    self.instance,
                )
            )
        self._report_beyond(primary)
        primary.advance()

    def _from_checkpoint(self, replica_set: ReplicaSet, end: int) -> None:
        """The state was lost; the set begins again from the checkpoint that this instance has told of."""
        saved = self.checkpoints.saved
        if saved is None or saved.version != end:
            self._end_without_record(replica_set)
            return
        self.checkpoints.saved = None
        self._begin_with(saved, replica_set)

    def _begin_with(self, copy: StateCopy, replica_set: ReplicaSet) -> Primary:
        """The epoch begins with a state that came whole, from a checkpoint or from a keeper: its version is
        the end."""
        self.complete(copy.complete)
        self._begin_epoch(replica_set.epoch)
        self.layout = copy.layout
        record = StateRecord(copy.op, replica_set.epoch, copy.version, -1, (), (), copy.chain, copy.state)
        self.store.start(record, copy.state)
        self.lineage.clear()
        self.lineage.add(copy.units, self.knowledge.completed)
        primary = Primary(self, replica_set)
        self.become(primary)
        generation = self.knowledge.topology.generation
        note = NoteFailover(copy.op, generation, replica_set.epoch, copy.version, self.instance)
        self.ctx.emit(note)
        self._report_beyond(primary)
        primary.promoted()
        return primary

    def _as_backup(self, replica_set: ReplicaSet) -> None:
        if self.backup is not None and self.epoch == replica_set.epoch:
            self.backup.following.named(replica_set, in_sync=True)
            self.backup.apply()
            return
        if not self._resume_former(replica_set) and not self._is_member:
            self._end("named in sync without a state")
            return
        end = replica_set.end_of(replica_set.epoch - 1)
        if end is None or not self._go_back(end):
            self._end_without_record(replica_set)
            return
        self._begin_epoch(replica_set.epoch)
        backup = Backup(self, replica_set, True, self.proposals)
        self.become(backup)
        backup.resumed(end)
        if self.draining:
            backup.drain()

    def _as_joiner(self, replica_set: ReplicaSet) -> None:
        if not self.model_ready or replica_set.primary is None:
            return
        if self.backup is None and self.draining:
            # It is to end: it joins nothing. One that has handed its set over, and was then dropped and named
            # again before it heard of that, ends now.
            if self.primary is not None:
                self._left_out()
            return
        if self.backup is not None and not self.backup.in_sync and self.epoch == replica_set.epoch:
            return
        if self.backup is not None and self.epoch == replica_set.epoch:
            self._end(
                "left out of the set in the meantime: what it once acknowledged must not count for its next "
                "copy"
            )
            return
        self.store.clear()
        self.lineage.clear()
        self._begin_epoch(replica_set.epoch)
        backup = Backup(self, replica_set, False, self.proposals)
        self.become(backup)
        backup.ask_copy()

    def _go_back(self, end: int) -> bool:
        """Make the record of `end` the newest one held; False if it is not there."""
        version = self.store.find(end)
        if version is None or version.state is None:
            return False
        self.store.rollback(end)
        self.lineage.rollback(end)
        return True

    def _begin_epoch(self, epoch: int) -> None:
        """All other tokens are dropped: in a new epoch nothing is acknowledged, so what is retained upstream
        flows again."""
        if epoch <= self.epoch:
            raise InvariantError(f"epoch {epoch} of {self.operator.name} follows epoch {self.epoch}")
        self.epoch = epoch
        self.joins.clear()
        self.queue.clear()
        self.outbox.clear()
        self.attempts.clear()

    def _stop(self, reason: str, keep: bool = False) -> None:
        """`keep`: the state may be needed yet, if the topology names this instance in its epoch."""
        self._stopped = True
        former = self.state_to_keep() if keep else None
        named = former is not None and former.is_named(self.knowledge.set_of(self.operator.name))
        leads = self.knowledge.set_of(self.operator.name).primary == self.instance
        self.ctx.emit(Stop(reason, self.operator.name if named else None, leads and self.mode.replays))

    # -- messages --------------------------------------------------------------------------------------------

    def _is_of_later_epoch(self, record: StateRecord) -> bool:
        """Than the newest that is known here."""
        return record.epoch > self.knowledge.set_of(self.operator.name).epoch

    def message(self, sender: InstanceId, message: Message) -> None:
        """Managers' questions, and what only a role understands."""
        if isinstance(message, Probe):
            self.ctx.send(sender, self._questions.probe(message))
        elif isinstance(message, Freeze):
            self.ctx.send(sender, self._questions.freeze(message))
        elif isinstance(message, Fence):
            self.ctx.send(sender, self._questions.fence(message))
        elif (
            isinstance(message, RecordAck)
            and message.epoch > self.epoch
            and len(self._early_acks) < limits.early_acks_max
        ):
            self._early_acks[sender] = message
            if self.fetching is not None:
                self.fetching.acknowledged(sender, message)
            else:
                self.gossip.ask(sender)
        elif isinstance(message, StateRecord) and self._is_of_later_epoch(message):
            self.undecided.await_news(sender, message)
        elif isinstance(message, AskCopy) and self._is_early(sender, message):
            if len(self._early_asks) < limits.early_asks_max:
                self._early_asks[sender] = message
            self.gossip.ask(sender)
        else:
            self._role.message(sender, message)
