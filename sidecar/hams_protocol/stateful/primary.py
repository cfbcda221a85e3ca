"""A primary in one epoch: forms batches, runs them, undoes them; versions become durable beside (protocol.md,
section 2).

Laws it keeps: the update stage is entered only when the previous version is captured and fewer than `window`
versions are not yet durable; a unit is executed once in the surviving history; nothing orphan is executed.
What becomes of an executed batch lies in `execution` and `durability`, what managers ask in `fences`.
"""

from collections import deque
from typing import TYPE_CHECKING

from hams_protocol import limits
from hams_protocol.deps import Deps, merge, others
from hams_protocol.due import FOREVER, Due
from hams_protocol.effects import (
    AbandonBatch,
    BatchUnit,
    EnterUpdate,
    LoadState,
    StartBatch,
)
from hams_protocol.events import (
    BatchDone,
    BatchFailed,
    Captured,
    CheckpointWritten,
    Loaded,
    ModelDied,
    UnitResult,
    UpdateWanted,
)
from hams_protocol.graph import Suspects
from hams_protocol.ids import InstanceId, UnitId
from hams_protocol.joins import Forward, Stage, Unit, inconsistent_fan_out
from hams_protocol.knowledge import Status
from hams_protocol.messages import (
    LEADS,
    Determinants,
    Fence,
    FenceAnswer,
    Kind,
    Message,
    Suspect,
)
from hams_protocol.poison import managers_of
from hams_protocol.stateful.durability import Durability
from hams_protocol.stateful.execution import Execution
from hams_protocol.stateful.fences import Fences
from hams_protocol.stateful.replay import RunAgain
from hams_protocol.stateful.role import Role
from hams_protocol.stateful.stored import StoredDurability
from hams_protocol.topology import ReplicaSet

if TYPE_CHECKING:
    from hams_protocol.stateful.machine import StatefulMachine


class Primary(Role):
    """The primary role of one instance in one epoch."""

    def __init__(self, machine: "StatefulMachine", replica_set: ReplicaSet) -> None:
        super().__init__(machine.ctx)
        self._m = machine
        self._epoch = replica_set.epoch
        self._durability = (
            StoredDurability(machine, replica_set)
            if machine.mode.replays
            else Durability(machine, replica_set, self._is_risky)
        )
        self._replay: RunAgain | None = None
        self._execution = Execution(machine, replica_set.epoch, self._durability)
        self._fences = Fences(machine, replica_set.epoch)
        self._batch = 0
        self._running: list[Unit] = []
        self._late: deque[Unit] = deque()
        self._wanted = self._let_in = False
        self._abandoning = False
        self._suspected_at = FOREVER
        self.loading = False

    @property
    def name(self) -> str:
        """See `Role`."""
        return LEADS

    @property
    def is_ready(self) -> bool:
        """Whether the model has the state."""
        return not self.loading

    @property
    def has_state(self) -> bool:
        """See `Role`."""
        return True

    def drain(self) -> None:
        """It hands its set over as soon as it can."""
        self._durability.wishing = True

    # -- what becomes durable --------------------------------------------------------------------------------

    def advance(self) -> None:
        """See `Durability`."""
        self._durability.advance()

    def durable_rose(self) -> None:
        """Alone, it may call versions durable now."""
        self._durability.advance()

    def members_named(self, replica_set: ReplicaSet) -> None:
        """A newer topology in the same epoch."""
        self._durability.members_named(replica_set)

    def members_changed(self) -> None:
        """Followers may be gone."""
        self._durability.wishing = True

    def peer_up(self, peer: InstanceId) -> None:
        """See `Durability`."""
        self._durability.peer_up(peer)

    def peer_down(self, peer: InstanceId, refused: bool) -> None:
        """See `Durability`."""
        self._durability.peer_down(peer, refused)

    def proposal_settled(self) -> None:
        """See `Durability`."""
        self._durability.proposal_settled()

    def late(self, by_s: float) -> None:
        """See `Durability`."""
        self._durability.late(by_s)

    def captured(self, event: Captured) -> None:
        """See `Execution`."""
        self._execution.captured(event)

    # -- its state -------------------------------------------------------------------------------------------

    @property
    def durable(self) -> int:
        """The newest version known to be durable in this epoch, -1 if none."""
        return self._durability.durable

    @property
    def undurable(self) -> int:
        """Versions executed but not yet durable."""
        return self._durability.undurable

    @property
    def deps(self) -> Deps:
        """What the newest state depends on."""
        return self._execution.deps

    def holds_more_than(self, restarted: ReplicaSet) -> bool:
        """Whether the state may stem from versions that another operator has lost and not got back, the last
        time or one before. What was durable is no entry any more, so the announced watermark tells; who has
        heard of none, or of a later epoch, cannot exclude it. A backup that takes over finds what was not
        durable in its records.
        """
        m = self._m
        if m.version <= 0:
            return False
        last = restarted.restarted_in - 1

        def came_back(epoch: int) -> int:
            since = min(epoch, last)
            return min((end for of, end in restarted.ends if since <= of <= last), default=0)

        mark = m.knowledge.watermark(restarted.name)
        if mark is None or mark.seq > came_back(mark.epoch):
            return True
        vectors = (self._execution.deps, *(version.record.deps for version in m.store.versions))
        return any(
            dep.op == restarted.name and dep.epoch <= last and dep.seq > came_back(dep.epoch)
            for deps in vectors
            for dep in deps
        )

    def promoted(self) -> None:
        """From backup to primary, or rolled back: load the record of the end, send saved outputs again,
        announce first of all."""
        m = self._m
        self.load_newest()
        for consumed in m.lineage.units():
            pruned = tuple((target, m.knowledge.pruned(token)) for target, token in consumed.outputs)
            self._durability.release(m.version, pruned)
        if m.mode.replays:
            self._replay = RunAgain(m, self._epoch, m.version)
        self.advance()

    def load_newest(self) -> None:
        """Make the model's state that of the newest version."""
        newest = self._m.store.newest
        assert newest is not None, "a primary has a state"
        assert newest.state is not None, "and it is captured"
        self._m.loads += 1
        self.loading = True
        if not self._m.model_ready:
            return
        self._m.warming = True
        self._ctx.emit(LoadState(self._m.loads, newest.state))

    def loaded(self, event: Loaded) -> None:
        """The model holds the state asked for last."""
        if event.token == self._m.loads:
            self.loading = False

    def model_ready(self) -> None:
        """A fresh model process takes over the newest version; if that died with the old one before its
        capture, the set must roll back."""
        if not self.needs_rollback:
            self.load_newest()

    @property
    def needs_rollback(self) -> bool:
        """Whether versions were executed whose state is lost; where states are replayed, the instance has
        ended then."""
        if self._m.mode.replays:
            return False
        newest = self._m.store.newest
        return newest is not None and newest.state is None and self._execution.capturing is None

    def retire(self) -> None:
        """Its epoch is over: the model, which may stand before its update stage, is not left waiting."""
        if self._running and not self._abandoning:
            self._ctx.emit(AbandonBatch(self._batch_id()))

    @property
    def settled(self) -> int:
        """The newest version that is durable, or was when this epoch began; by receipt that need not have
        been."""
        return self.durable if self._m.by_receipt else max(self._durability.base, self.durable)

    # -- forming batches -------------------------------------------------------------------------------------

    def unit_ready(self, unit: Unit) -> None:
        """A unit's join rule is met."""
        if unit.id in self._m.lineage:
            unit.stage = Stage.DONE
        else:
            self._m.queue.add(unit, self._ctx.now)

    def pump(self) -> None:
        """Let the next update in, form the next batch."""
        m, durability = self._m, self._durability
        if self._wanted or (self._running and not (self._let_in or self._abandoning)):
            self._try_update()
        durability.find_keeper()
        durability.reconsider()
        if m.draining and durability.successor() is not None:
            if not self._running and not self.loading:
                self._hand_over()
        elif durability.is_handed_over:
            durability.settle()
        elif not self._running and not self.loading and m.model_ready:
            if m.mode.replays:
                self._execution.capture()
            self._form_batches()

    def _is_risky(self) -> bool:
        """Whether a suspect runs (section 3)."""
        return any(unit.attempts for unit in self._running)

    def _form_batches(self) -> None:
        """Run what may run, until a batch is under way or nothing is left."""
        m = self._m
        m.attempts.turn(m.queue, self._may_run_alone)
        if m.attempts.holds or (m.mode.replicates and self.undurable > m.operator.window):
            return
        if m.mode.stops_to_copy and m.captures_open:
            return
        if m.mode.replays and not self._durability.window_open:
            return  # a batch that updates nothing is executed without asking
        if self._replay is not None and self._replays_on(self._replay):
            return
        while (len(m.queue) or self._late) and not (self._running or m.attempts.holds):
            self._shed_late()
            units = m.queue.take(self._ctx.now)
            if not units:
                return
            runnable: list[Unit] = []
            for index, unit in enumerate(units):
                if m.is_fenced(m.joins.deps(unit)):
                    self._set_aside(unit)
                    continue
                forward = self._passed_on(unit, runnable)
                if forward is None:
                    if not unit.attempts or m.attempts.may_run(unit, m.queue, self._may_run_alone):
                        runnable.append(unit)
                elif self._durability.window_open:
                    self._execution.record_forward(unit, forward)
                else:
                    for later in reversed([*runnable, *units[index:]]):
                        m.queue.add_first(later, self._ctx.now)
                    return
            if runnable:
                self._start(runnable)

    def _replays_on(self, replay: RunAgain) -> bool:
        """What has to be run again goes before all else; whether there is anything left of it."""
        replay.look()
        while not self._running and (following := replay.next_batch()) is not None:
            determinant, units = following
            replay.ran()
            ran = determinant.units[0]
            if len(units) == 1 and ran.kind is not Kind.VALUE:
                self._execution.record_forward(units[0], Forward(ran.kind, ran.error))
                continue
            runnable: list[Unit] = []
            for unit in units:
                forward = self._passed_on(unit, runnable)
                if forward is None:
                    runnable.append(unit)
                else:  # what another instance could read, this one cannot: such models are not alike
                    self._execution.record_forward(unit, forward)
            if runnable:
                self._start(runnable)
        return bool(self._running) or not replay.is_over

    def _shed_late(self) -> None:
        """Units that the policy answers instead of running them take their seqs, unless the window is full:
        then they wait for the next turn."""
        m = self._m
        self._late.extend(m.queue.late(self._ctx.now))
        while self._late and self._durability.window_open:
            unit = self._late.popleft()
            if unit.stage is not Stage.READY:
                continue
            if m.is_fenced(m.joins.deps(unit)):
                self._set_aside(unit)
            else:
                self._execution.record_forward(unit, self._passed_on(unit, []) or m.shed(unit))

    def _hand_over(self) -> None:
        """Nobody has died of who is announced to run alone: it is called off first, and said."""
        self._m.attempts.call_off()
        if not self._m.attempts.holds:
            self._durability.hand_over()

    def _passed_on(self, unit: Unit, batch: list[Unit]) -> Forward | None:
        """What a unit makes without the model, if anything. Lanes of one request, in `batch` or in the state,
        must not mix executions either."""
        m = self._m
        if unit.attempts and m.attempts.is_poison(unit):
            return Forward(Kind.ERROR, m.attempts.error(unit))
        forward = m.joins.forward(unit)
        if forward is not None or len(m.operator.lanes) == 1:
            return forward
        request = unit.id.request
        fans = [token.fan for other in (unit, *batch) if other.id.request == request for token in other.used]
        fans += [m.lineage.fan_of(UnitId(request, lane)) for lane in m.operator.lanes]
        op = inconsistent_fan_out(fans)
        return None if op is None else m.joins.inconsistent_by(op)

    def _may_run_alone(self, unit: Unit) -> bool:
        """Whether a suspect's death could not lose the state: a backup or a keeper has it, or this proxy,
        which came through before, on record."""
        m = self._m
        if self._durability.is_protected or not m.operator.backups or not m.mode.replicates:
            return True
        if m.graph.data.recovery.suspects is Suspects.RUN and unit.attempts == 1:
            return True  # of what one instance has died alone with, another one may die as well: that waits
        retained = m.store.at_or_below(self.settled)
        return m.attempts.outlived(unit) and retained is not None and retained.state is not None

    def _set_aside(self, unit: Unit) -> None:
        """Fenced out for now: it comes back with the next topology."""
        unit.reset()

    def after_purge(self) -> None:
        """A newer topology ended any fence: units set aside are judged again, and what was applied meanwhile
        may be durable."""
        self._fences.clear()
        self.advance()
        for unit in self._m.joins.units():
            if unit.stage is Stage.WAITING:
                self._m.unit_changed(unit)

    def _start(self, units: list[Unit]) -> None:
        """Where nothing stands against the update by now, the model need not ask: nothing that comes later
        could stand against it but an orphan or a fence, and those undo the batch. Where something does, the
        model is let in when it stands no more, as a rule before it asks."""
        m = self._m
        self._batch += 1
        self._running = units
        self._wanted = self._abandoning = False
        self._let_in = self._durability.window_open and not m.captures_open
        for unit in units:
            unit.stage = Stage.RUNNING
            unit.batch = self._batch
        batch = tuple(
            BatchUnit(unit.id, m.joins.meta(unit), m.joins.inputs(unit), m.joins.renamed(unit))
            for unit in units
        )
        m.run_started(self._batch_id(), units)
        self._ctx.emit(StartBatch(self._batch_id(), batch, self._let_in))

    def _batch_id(self) -> int:
        """Batches of earlier epochs must not be taken for this one's."""
        return self._epoch * BATCHES_PER_EPOCH + self._batch

    def update_wanted(self, event: UpdateWanted) -> None:
        """The model stands before its update stage; `pump` lets it in. Who was let in before may ask all the
        same: what has come since undoes the batch."""
        if event.batch != self._batch_id() or not self._running:
            self._ctx.emit(AbandonBatch(event.batch))
        elif self._let_in:
            self._ctx.emit(EnterUpdate(event.batch))
        else:
            self._wanted = True
            self._m.update_waits()

    def _try_update(self) -> None:
        """Let the model in once nothing stands against its update. A batch that must not update is called off
        when it asks."""
        m = self._m
        is_open = self._durability.window_open and not m.captures_open
        if not (is_open or self._wanted):
            return
        if not all(self._still_runs(unit) for unit in self._running):
            if self._wanted:
                self._wanted = False
                self._abandoning = True
                self._ctx.emit(AbandonBatch(self._batch_id()))
            return
        if not is_open or any(m.is_fenced(m.joins.deps(unit)) for unit in self._running):
            return
        self._wanted = False
        self._let_in = True
        m.update_entered()
        self._ctx.emit(EnterUpdate(self._batch_id()))

    def _still_runs(self, unit: Unit) -> bool:
        return (
            unit.stage is Stage.RUNNING
            and unit.batch == self._batch
            and unit.id.request not in self._m.knowledge.completed
        )

    # -- finishing batches -----------------------------------------------------------------------------------

    def batch_done(self, event: BatchDone) -> None:
        """Number the units, release the outputs, capture the state."""
        if event.batch != self._batch_id() or not self._running:
            return
        m = self._m
        m.run_ended(event.batch, event.compute_s, ok=True)
        m.attempts.survived(self._running)
        running = {unit.id: unit for unit in self._running}
        valid = all(self._still_runs(unit) for unit in self._running)
        fenced = any(m.is_fenced(m.joins.deps(unit)) for unit in self._running if unit.stage is Stage.RUNNING)
        if event.updated and (not valid or fenced):
            self._undo()
            return
        self._running = []
        refused = [result for result in event.results if result.refused]
        for result in refused:
            unit = running[result.unit]
            unit.refused.update(token.source for token in unit.used)
            unit.reset()
            m.unit_changed(unit)
        accepted = [
            (running[result.unit], result)
            for result in event.results
            if not result.refused and result.unit in running and self._still_runs(running[result.unit])
        ]
        if fenced:
            for unit, _ in accepted:
                self._set_aside(unit)
            return
        if not accepted:
            if event.updated:
                self._reload()
            return
        deps = merge([self._execution.deps, *(m.joins.deps(unit) for unit, _ in accepted)])
        self._execution.execute(accepted, m.knowledge.prune(deps), event.updated)

    def _undo(self) -> None:
        """An input became orphan or fenced during the update: reload the version captured before; the others
        run again."""
        self._run_again()
        self._reload()

    def _reload(self) -> None:
        """The newest version again; a mode that captures none leaves the model what it has, for anything else
        would be older."""
        if self._m.mode.replays:
            self._m.stop_without_state("its model raised in its update, and nobody has the state of before")
        elif self._m.mode.replicates:
            self.load_newest()

    def _run_again(self) -> None:
        """The batch is off: its units queue again, before all others."""
        for unit in reversed(self._running):
            if self._still_runs(unit):
                unit.stage = Stage.READY
                self._m.queue.add_first(unit, self._ctx.now)
        self._running = []

    def batch_failed(self, event: BatchFailed) -> None:
        """Told to abandon: the rest runs again. The model raised: the units run one per batch, and one that
        fails alone gets the error."""
        if event.batch != self._batch_id() or not self._running:
            return
        self._m.run_ended(event.batch, event.compute_s, ok=False)
        alone = len(self._running) == 1 and not self._abandoning
        unit = self._running[0]
        if alone and self._still_runs(unit):
            self._m.attempts.survived(self._running)
            if event.updated:
                self._reload()
            self._running = []
            if self._m.is_fenced(self._m.joins.deps(unit)):
                self._set_aside(unit)
                return
            result = UnitResult(unit.id, error=event.message)
            deps = self._m.knowledge.prune(merge([self._execution.deps, self._m.joins.deps(unit)]))
            self._execution.execute([(unit, result)], deps, False)
            return
        if not self._abandoning:
            for other in self._running:
                self._m.attempts.isolate(other)
                if other.stage is Stage.READY:
                    self._m.queue.suspected(other, self._ctx.now)
        if event.updated:
            self._undo()
        else:
            self._run_again()

    def model_died(self, event: ModelDied) -> None:
        """Say which requests were in it, tell the managers; what was captured survives in this proxy."""
        m = self._m
        if self._running:
            m.run_ended(self._batch_id(), 0.0, ok=False)
        m.attempts.died(self._running)
        if m.mode.replays:
            m.stop_without_state(f"its model died: {event.reason}")
            return
        for unit in reversed(self._running):
            if self._still_runs(unit):
                unit.stage = Stage.READY
                m.queue.add_first(unit, self._ctx.now)
            elif unit.stage is Stage.READY:  # by tokens that came since
                m.queue.suspected(unit, self._ctx.now)
        self._running = []
        self._wanted = False
        self._execution.capturing = None
        self.loading = True
        self._suspected_at = self._ctx.now
        self._suspect_itself(event.reason)

    def _suspect_itself(self, reason: str) -> None:
        for manager in managers_of(self._m.members):
            self._ctx.send(manager, Suspect(self._m.instance, reason))

    # -- messages and managers -------------------------------------------------------------------------------

    def message(self, sender: InstanceId, message: Message) -> None:
        """What followers, waiting proxies and owners downstream say."""
        if isinstance(message, Determinants):
            if self._replay is not None:
                self._replay.answered(sender, message)
        else:
            self._durability.message(sender, message)

    def written(self, event: CheckpointWritten) -> None:
        """See `StoredDurability`."""
        self._durability.written(event)

    def is_fenced(self, deps: Deps) -> bool:
        """Whether a dependency lies above the ends of a fence in force."""
        return self._fences.keep_out(deps)

    def is_tainted(self) -> bool:
        """Whether the state depends on an orphan."""
        m = self._m
        return m.knowledge.status(others(self._execution.deps, m.operator.name)) is Status.ORPHAN

    @property
    def may_go_back(self) -> bool:
        """Whether a manager has been told what the state could go back to, because it must: that may be about
        to commit it."""
        return self._fences.may_go_back

    def fenced(self, fence: Fence) -> FenceAnswer:
        """A manager's fence goes up; its answer."""
        return self._fences.raise_fence(fence, self._execution.deps, self.settled, self.needs_rollback)

    # -- time ------------------------------------------------------------------------------------------------

    def dues(self) -> list[Due]:
        """What durability waits for; say again that it cannot go on; the next batch."""
        m = self._m
        idle = not self._running and not self.loading and m.model_ready and not m.attempts.holds
        return [
            *self._durability.dues(),
            *(() if self._replay is None else self._replay.dues()),
            (self._suspected_at + limits.suspect_again_after_s, self._suspect_again),
            (min(m.queue.deadline(), self._durability.idle_at) if idle else FOREVER, self.pump),
        ]

    def _suspect_again(self) -> None:
        self._suspected_at = self._ctx.now if self.needs_rollback else FOREVER
        if self.needs_rollback:
            self._suspect_itself("its model died with versions that were not captured")


BATCHES_PER_EPOCH = 1 << 40
"""Batch ids are unique over the epochs of one instance."""
