"""A stateless operator's instance: active for some slots, or a warmed standby (protocol.md, section 4).

Invariant: it emits for a slot only while the newest topology it knows gives it that slot, and, where its
operator fans out, only after every receiver has said what it holds from that slot's former owners (ADR
0019): every instance of a stateless one, the leader of a replica set.
"""

from hams_protocol import limits
from hams_protocol.batching import Queues, fifo
from hams_protocol.deps import Deps
from hams_protocol.due import FOREVER
from hams_protocol.effects import (
    AbandonBatch,
    BatchUnit,
    Effect,
    NoteExec,
    RestartModel,
    StartBatch,
    Stop,
)
from hams_protocol.events import (
    BatchDone,
    BatchFailed,
    CasSettled,
    CasUnknown,
    Drain,
    Event,
    ModelDied,
    ModelReady,
    Tick,
    UnitResult,
    UpdateWanted,
)
from hams_protocol.graph import FEEDBACK, SINKS, Graph
from hams_protocol.ids import InstanceId, RequestId
from hams_protocol.joins import Forward, Stage, Unit
from hams_protocol.knowledge import Status
from hams_protocol.messages import (
    Health,
    Kind,
    Message,
    ModelError,
    Payload,
    Probe,
    ProbeAnswer,
    RoleReport,
    SlotAnswer,
    SlotQuery,
    Suspect,
    Token,
)
from hams_protocol.poison import managers_of
from hams_protocol.replica.proposals import Proposals
from hams_protocol.stateful.keeper import Keeper
from hams_protocol.topology import Departed, pass_on, slot_number
from hams_protocol.vertex import Vertex


class Inquiry:
    """A new slot owner's question to its receivers: what did former owners of the slot deliver?

    `instances` are those of stateless receivers that have not answered. `sets` are the replica sets (of
    stateful receivers, and the shards if there is a sink) whose leader has not answered, each with its epoch
    when the question was first asked. An answer counts for a set if its sender led that set in this epoch or
    a later one: whoever leads it afterwards holds nothing that was not told, because its state goes back to
    the sender's, and because it knew of the slot's epoch before it took a single token. A follower's answer
    counts for nothing: it may yet apply what its leader has made of a value.

    `asked` are the leaders that were asked, with their epochs: a new one is asked at once. `again_at`: when
    all are asked again.
    """

    __slots__ = ("again_at", "asked", "epoch", "instances", "sets", "slot")

    def __init__(
        self, slot: int, epoch: int, instances: set[InstanceId], sets: dict[str, int], now: float
    ) -> None:
        self.slot = slot
        self.epoch = epoch
        self.instances = instances
        self.sets = sets
        self.asked: set[tuple[InstanceId, int]] = set()
        self.again_at = now + limits.resend_after_s

    @property
    def is_over(self) -> bool:
        """Whether every receiver has answered."""
        return not (self.instances or self.sets)

    def takes(self, sender: InstanceId, answer: SlotAnswer) -> bool:
        """Whether it waits for this answer. What one that need not answer any more tells does not count: a
        successor that did without it may have executed again."""
        if answer.led is None:
            return sender in self.instances
        name, epoch = answer.led
        return name in self.sets and epoch >= self.sets[name]

    def take(self, sender: InstanceId, answer: SlotAnswer) -> None:
        """Wait for one answer less."""
        if answer.led is None:
            self.instances.discard(sender)
        else:
            del self.sets[answer.led[0]]


class StatelessMachine(Vertex):
    """`step(event, now) -> effects` of one instance of a stateless operator."""

    def __init__(self, graph: Graph, op: str, instance: InstanceId, queues: Queues = fifo) -> None:
        super().__init__(graph, op, instance, queues)
        self.keeper = Keeper(self.ctx, graph, instance, self.knowledge, self.undecided, op)
        self._owned: dict[int, int] = {}
        self._slots = 0
        self._fans_out = len(self.operator.targets) > 1
        self._inquiries: dict[int, Inquiry] = {}
        self._model_ready = self._model_dead = False
        self._batch = 0
        self._running: list[Unit] = []
        self._leaving: dict[int, InstanceId | None] = {}
        self._begun: dict[int, tuple[int, int]] = {}
        self._in_doubt: set[int] = set()
        self._departed = Departed()
        self._handed: list[Token] = []
        self._draining = False
        self._stopped = False
        self._proposals = Proposals(self.ctx, self.knowledge)
        self._ticked_at = -FOREVER

    # -- the machine -----------------------------------------------------------------------------------------

    def step(self, event: Event, now: float) -> list[Effect]:
        """One event; the effects in the order in which they must be performed."""
        if self._stopped:
            return []
        ctx = self.ctx
        ctx.begin(now)
        self.handle(event)
        if self.is_over():
            return ctx.up_to_stop()
        if isinstance(event, Tick):
            self.common_tick()
        self._pump()
        if self._leaving or self._draining:
            self._pass_on()
        self.flush_acks()
        if isinstance(event, Tick):
            self._ticked_at = now
            self.outbox.tick()
            self._ask_again()
        return ctx.out

    def is_over(self) -> bool:
        """Whether it has stopped: nothing is done under this id any more."""
        return self._stopped

    def deadline(self) -> float:
        """When the machine wants a Tick."""
        due = self.common_deadline()
        if self._model_ready and not self._running and not self.attempts.holds:
            due = min(due, self.queue.deadline())
        for inquiry in self._inquiries.values():
            due = min(due, inquiry.again_at)
        if self._leaving:
            due = min(due, max(self._proposals.at, self._ticked_at + limits.propose_retry_s))
        return max(due, self._ticked_at + limits.tick_min_s)

    @property
    def role(self) -> str:
        """`active` or `standby`, for status and readiness."""
        return "active" if self._owned else "standby"

    @property
    def ready(self) -> bool:
        """Whether the model is warm: its role can be served."""
        return self._model_ready

    def sending_epoch(self, request: RequestId) -> int | None:
        """See `Vertex`."""
        return self._owned.get(slot_number(request, self._slots)) if self._slots else None

    def is_consumed(self, token: Token) -> bool:
        """A stateless instance has no history beyond its joins."""
        return False

    def is_fenced(self, deps: Deps) -> bool:
        """Only stateful primaries are fenced by managers."""
        return False

    def requests_completed(self) -> None:
        """Nobody asks for them again."""
        if self._handed:
            self._handed = [token for token in self._handed if token.request not in self.knowledge.completed]

    def slot_answer(self, query: SlotQuery) -> SlotAnswer:
        """What it holds, and what came for slots that it has handed over since; where a slot has come back,
        the joins hold what counts."""
        handed = [token for token in self._handed if not self._is_joined(token)]
        return SlotAnswer(query.op, query.slot, query.epoch, self.held_from_slot(query, handed))

    def _is_joined(self, token: Token) -> bool:
        unit = self.joins.find(self.joins.unit_of(token))
        return unit is not None and token.source in unit.tokens

    # -- topology --------------------------------------------------------------------------------------------

    def topology_changed(self) -> None:
        """Slots may have come, or have been handed over; one taken away means that this instance is
        revoked."""
        topology = self.knowledge.topology
        self._in_doubt.clear()
        if self.instance in topology.revoked:
            self._stopped = True
            self.ctx.emit(Stop("revoked"))
            return
        slots = self.knowledge.slots_of(self.operator.name)
        self._departed.learn(topology)
        owned = {number: slot.epoch for number, slot in enumerate(slots) if slot.instance == self.instance}
        self._slots = len(slots)
        gained = {number: epoch for number, epoch in owned.items() if self._owned.get(number) != epoch}
        self._forget(set(self._owned) - set(owned))
        self._owned = owned
        self._leave(
            {
                number: slots[number].successor
                for number in owned
                if self._draining or slots[number].successor is not None
            }
        )
        for number, epoch in gained.items():
            if self._fans_out and epoch > 1:
                self._inquire(number, epoch)
        self.purge_units()
        self._handed = [
            token for token in self._handed if self.knowledge.status(token.deps) is not Status.ORPHAN
        ]
        for unit in self.joins.units():
            if unit.stage is Stage.WAITING:
                self.unit_changed(unit)
        self._inquire_on()

    def members_changed(self) -> None:
        """See `Vertex`."""
        self._departed.keep(self.members)
        self._inquire_on()

    def peer_up(self, peer: InstanceId) -> None:
        """What is to be asked again has its own time."""

    def peer_down(self, peer: InstanceId, refused: bool) -> None:
        """It has no followers, and judges nobody."""

    def durable_rose(self, ops: list[str]) -> None:
        """It holds nothing back: what it produces carries its dependencies."""

    # -- handing slots over ----------------------------------------------------------------------------------

    def _forget(self, lost: set[int]) -> None:
        """Slots handed over: their tokens go to the successor, which has acknowledged nothing.

        The owner of a fan-out may die before it has sent them there: its values stay here to be told, until
        their requests complete.
        """
        for unit in self.joins.units():
            if lost and slot_number(unit.id.request, self._slots) in lost:
                self._handed += [
                    token for source, token in unit.tokens.items() if source in self.fan_out_sources
                ]
                unit.reset()
                self.joins.drop(unit)
        for number in lost:
            self._inquiries.pop(number, None)

    def _is_leaving(self, unit: Unit) -> bool:
        """Whether a unit waits for the successor. What the owner waits for does not: other lanes of a request
        that it has begun, and internal requests, as a client's request is complete only when its feedback has
        ended. Nor does a request before one that it has begun. Another operator may be leaving, too, and hold
        that one back until this one is complete: in one order for all, the first that is open waits nowhere.

        Once the slot's move is proposed, and as long as it may be committed, nothing of it begins: the
        successor would execute that again.

        Where states are replayed, the slot moves at once (`_pass_on`): everything waits for the successor.
        """
        request = unit.id.request
        slot = slot_number(request, self._slots) if self._leaving else -1
        if self.mode.replays:
            return slot in self._leaving
        if slot in self._in_doubt:
            return True
        if slot not in self._leaving or self.joins.meta(unit).hops or self.outbox.tokens(request):
            return False
        return _order(request) > self._begun[slot]

    def _leave(self, leaving: dict[int, InstanceId | None]) -> None:
        """These slots are to move, or nobody knows yet where to."""
        self._leaving = leaving
        self._begun = {number: self._begun.get(number, NOTHING_BEGUN) for number in leaving}
        for request in self.outbox.requests() if leaving else ():
            slot = slot_number(request, self._slots)
            if slot in leaving:
                self._begun[slot] = max(self._begun[slot], _order(request))

    def _begin(self, request: RequestId) -> None:
        """There are outputs of a request: what came before it in a slot that is leaving waits no more."""
        slot = slot_number(request, self._slots) if self._leaving else -1
        if slot not in self._leaving or _order(request) <= self._begun[slot]:
            return
        self._begun[slot] = _order(request)
        for unit in self.joins.units():
            if unit.stage is Stage.WAITING:
                self.unit_changed(unit)

    def _pass_on(self) -> None:
        """A slot moves once its owner has delivered everything it executed: then, not before, the owner
        proposes its successor. Where states are replayed, the successor executes again what is not complete:
        that may wait for a state that is run again, which may wait for a unit of this slot."""
        if self._draining and not self._owned and self.keeper.is_needed:
            return
        if self._draining and not self._owned:
            self._stopped = True
            self.ctx.emit(Stop("drained: it has no slot any more"))
            return
        if not self._proposals.may_propose:
            return
        open_requests = {unit.id.request for unit in self._running} | self.attempts.announced_requests
        if not self.mode.replays:
            open_requests.update(self.outbox.requests())
        busy = {slot_number(request, self._slots) for request in open_requests}
        for number, successor in self._leaving.items():
            if successor not in self.members:
                successor = self._substitute() if self._draining else None
            if successor is None or number in busy or number in self._inquiries:
                continue
            changed = pass_on(
                self.knowledge.topology,
                self.operator.name,
                number,
                self.instance,
                self._owned[number],
                successor,
            )
            if changed is not None:
                # What is complete is not run again: the successor may hear of that from here first.
                self.ctx.send(successor, self.knowledge.completed.snapshot())
                self._in_doubt.add(number)
                self._proposals.propose(changed)
                return
        if self._in_doubt:  # without a successor any more: the next generation, with nothing changed, tells
            self._proposals.propose(self.knowledge.topology.next())

    def _substitute(self) -> InstanceId | None:
        """The other instance that could take a slot from this one: an instance with the fewest. Who has
        handed over all that it had is on its way out, though still registered."""
        owners = [slot.instance for slot in self.knowledge.slots_of(self.operator.name)]
        revoked = self.knowledge.topology.revoked
        others = [
            item.instance
            for item in self.members.values()
            if item.of == self.operator.name and item.instance != self.instance
        ]
        return min(
            (item for item in others if item not in revoked and item not in self._departed.instances),
            key=lambda item: (owners.count(item), item),
            default=None,
        )

    # -- the inquiry -----------------------------------------------------------------------------------------

    def _inquire(self, slot: int, epoch: int) -> None:
        sets = {name: self.knowledge.set_of(name).epoch for name in self._receiver_sets()}
        inquiry = self._inquiries[slot] = Inquiry(
            slot, epoch, self._stateless_receivers(), sets, self.ctx.now
        )
        query = SlotQuery(self.operator.name, slot, epoch)
        for peer in sorted(inquiry.instances):
            self.ctx.send(peer, query)
        self._ask_leaders(inquiry)

    def _receiver_sets(self) -> list[str]:
        """Replica sets among the receivers. A sink is every shard: each may have logged what it received for
        its requests."""
        names = [name for name in self.operator.targets if name not in SINKS]
        shards = self.graph.shard_names if len(names) < len(self.operator.targets) else ()
        return [*(name for name in names if self.graph.operators[name].stateful), *shards]

    def _stateless_receivers(self) -> set[InstanceId]:
        """Every instance of a stateless receiver that has a slot or is registered: it may have had a slot
        before."""
        topology = self.knowledge.topology
        names = {
            name
            for name in self.operator.targets
            if name not in SINKS and not self.graph.operators[name].stateful
        }
        instances = {item.instance for item in self.members.values() if item.of in names}
        for table in topology.tables:
            if table.op in names:
                instances.update(slot.instance for slot in table.slots if slot.instance is not None)
        return instances.difference(topology.revoked)

    def _ask_leaders(self, inquiry: Inquiry) -> None:
        """Ask the leaders of sets that have not answered; each once for an epoch, until it is asked
        `_ask_again`."""
        query = SlotQuery(self.operator.name, inquiry.slot, inquiry.epoch)
        for name in inquiry.sets:
            replica_set = self.knowledge.set_of(name)
            if replica_set.primary is None or replica_set.primary in self.knowledge.topology.revoked:
                continue
            leader = (replica_set.primary, replica_set.epoch)
            if leader not in inquiry.asked:
                inquiry.asked.add(leader)
                self.ctx.send(replica_set.primary, query)

    def _inquire_on(self) -> None:
        """Roles have changed. An instance that is gone need not answer for itself, but a set must answer: its
        new leader is asked."""
        if not self._inquiries:
            return
        living = self._stateless_receivers()
        for inquiry in list(self._inquiries.values()):
            inquiry.instances &= living
            self._ask_leaders(inquiry)
            self._settle(inquiry)

    def _settle(self, inquiry: Inquiry) -> None:
        if inquiry.is_over:
            self._inquiries.pop(inquiry.slot, None)

    def _ask_again(self) -> None:
        for inquiry in self._inquiries.values():
            if self.ctx.now >= inquiry.again_at:
                inquiry.again_at = self.ctx.now + limits.resend_after_s
                inquiry.asked.clear()
                query = SlotQuery(self.operator.name, inquiry.slot, inquiry.epoch)
                for peer in sorted(inquiry.instances):
                    self.ctx.send(peer, query)
                self._ask_leaders(inquiry)

    def message(self, sender: InstanceId, message: Message) -> None:
        """Answers of receivers, and a manager's probe."""
        if isinstance(message, SlotAnswer):
            self._slot_answer(sender, message)
        elif isinstance(message, Probe):
            health = Health.MODEL_DEAD if self._model_dead else Health.HEALTHY  # not while it starts
            epoch = max(self._owned.values(), default=0)
            report = RoleReport(self.operator.name, self.role, epoch, -1, self.ready)
            reports = (report, *self.keeper.reports())
            answer = ProbeAnswer(message.nonce, health, self.knowledge.topology.generation, reports)
            self.ctx.send(sender, answer)

    def _slot_answer(self, sender: InstanceId, answer: SlotAnswer) -> None:
        inquiry = self._inquiries.get(answer.slot)
        if inquiry is None or not self.is_awaited(sender, answer):
            return
        inquiry.take(sender, answer)
        for token in answer.tokens:
            if token.request not in self.knowledge.completed:
                self.knowledge.deadlines.learn(token.request, token.meta.budget_s, self.ctx.now)
            self._adopt(token)
        self._settle(inquiry)

    def is_awaited(self, sender: InstanceId, answer: SlotAnswer) -> bool:
        """Whether an inquiry waits for this answer."""
        inquiry = self._inquiries.get(answer.slot)
        return (
            inquiry is not None
            and (answer.op, answer.epoch) == (self.operator.name, inquiry.epoch)
            and inquiry.takes(sender, answer)
        )

    def _adopt(self, token: Token) -> None:
        """A predecessor's value goes to the other receivers under its old id; of a skip only the route is
        kept."""
        is_orphan = self.knowledge.status(token.deps) is Status.ORPHAN
        if token.request in self.knowledge.completed or is_orphan:
            return
        unit = self.joins.ensure(token.unit)
        if unit.stage is not Stage.DONE:
            unit.route, unit.made = token.route, token.deps
        if token.kind is Kind.SKIP or unit.stage is Stage.DONE:
            return
        unit.stage = Stage.DONE
        unit.keep = True
        unit.used = ()
        skip = Token(
            token.request,
            token.lane,
            token.source,
            Kind.SKIP,
            f"{token.value_id}!",
            token.deps,
            token.route,
            token.meta,
        )
        for target in self.operator.targets:
            self.outbox.put(target, token if target in token.route else skip)
        self._begin(token.request)

    # -- running the model -----------------------------------------------------------------------------------

    def unit_ready(self, unit: Unit) -> None:
        """Queue it; what runs no model takes its turn as well, so that a slot's inquiry holds it too."""
        forward = self._passed_on(unit)
        if forward is not None and not self._inquiries and not self._is_leaving(unit):
            self._forward(unit, forward)
        else:
            self.queue.add(unit, self.ctx.now)

    def _passed_on(self, unit: Unit) -> Forward | None:
        if unit.attempts and self.attempts.is_poison(unit):
            return Forward(Kind.ERROR, self.attempts.error(unit))
        return self.joins.forward(unit)

    def _forward(self, unit: Unit, forward: Forward) -> None:
        if forward.kind is Kind.ERROR:
            self._emit_error(unit, forward.error)
            return
        deps = self.knowledge.prune(self.joins.deps(unit))
        _, _, outputs = self.forwarded(unit, forward, deps)
        self._finish(unit, deps, outputs)

    def _pump(self) -> None:
        if self._running or not self._model_ready or self._inquiries:
            return
        self.attempts.turn(self.queue, _always)
        while len(self.queue) and not (self._running or self.attempts.holds):
            for unit in self.queue.late(self.ctx.now):
                self._shed(unit)
            units = self.queue.take(self.ctx.now)
            if not units:
                return
            runnable: list[Unit] = []
            for unit in units:
                if self.sending_epoch(unit.id.request) is None or self._is_leaving(unit):
                    unit.reset()
                    continue
                forward = self._passed_on(unit)
                if forward is not None:
                    self._forward(unit, forward)
                elif not unit.attempts or self.attempts.may_run(unit, self.queue, _always):
                    runnable.append(unit)
            if runnable:
                self._start(runnable)

    def _shed(self, unit: Unit) -> None:
        """Its policy answers for it, instead of running it."""
        if self.sending_epoch(unit.id.request) is None or self._is_leaving(unit):
            unit.reset()
        else:
            self._forward(unit, self._passed_on(unit) or self.shed(unit))

    def _start(self, units: list[Unit]) -> None:
        self._batch += 1
        self._running = units
        for unit in units:
            unit.stage = Stage.RUNNING
            unit.batch = self._batch
        batch = tuple(
            BatchUnit(unit.id, self.joins.meta(unit), self.joins.inputs(unit), self.joins.renamed(unit))
            for unit in units
        )
        self.run_started(self._batch, units)
        self.ctx.emit(StartBatch(self._batch, batch))

    def own_event(self, event: Event) -> None:
        """See `Vertex`."""
        if isinstance(event, BatchDone):
            self._batch_done(event)
            return
        if isinstance(event, BatchFailed):
            self._batch_failed(event)
            return
        if isinstance(event, ModelReady):
            self._model_ready, self._model_dead = True, False
            return
        if isinstance(event, ModelDied):
            self._model_died(event)
            return
        if isinstance(event, UpdateWanted):
            self.ctx.emit(AbandonBatch(event.batch))
            return
        if isinstance(event, CasSettled):
            self._proposals.settled(failed=not event.committed)
            self.learn_revision(event.topology, event.revision)
            return
        if isinstance(event, CasUnknown):
            self._proposals.settled(failed=True)
        if isinstance(event, Drain):
            self._draining = True
            self._leave(dict.fromkeys(self._owned))
            self.keeper.leave()

    def _batch_done(self, event: BatchDone) -> None:
        if event.batch != self._batch:
            return
        self.run_ended(event.batch, event.compute_s, ok=True)
        running = {unit.id: unit for unit in self._running}
        self.attempts.survived(self._running)
        self._running = []
        for result in event.results:
            unit = running.get(result.unit)
            if unit is None or unit.stage is not Stage.RUNNING or unit.batch != event.batch:
                continue
            if self.sending_epoch(unit.id.request) is None or unit.id.request in self.knowledge.completed:
                continue
            self._result(unit, result)

    def _result(self, unit: Unit, result: UnitResult) -> None:
        if result.refused:
            unit.refused.update(token.source for token in unit.used)
            unit.reset()
            self.unit_changed(unit)
            return
        if result.error is not None:
            self._emit_error(unit, ModelError(self.operator.name, result.error))
            return
        route = unit.route if unit.route is not None else result.route
        if route is None:
            route = tuple(target for target in self.operator.targets if target != FEEDBACK)
        self._emit(unit, Kind.VALUE, result.payload, route, None)

    def _emit_error(self, unit: Unit, error: ModelError | None) -> None:
        """To every receiver, but for those who have got a skip of a predecessor's already: they may have
        consumed it."""
        successors = self.operator.successors
        chosen = unit.route
        route = successors if chosen is None else tuple(target for target in successors if target in chosen)
        self._emit(unit, Kind.ERROR, None, route, error)

    def _emit(
        self,
        unit: Unit,
        kind: Kind,
        payload: Payload | None,
        route: tuple[str, ...],
        error: ModelError | None,
    ) -> None:
        deps = self.knowledge.prune(self.joins.deps(unit))
        inputs = tuple(token.value_id for token in unit.used if token.kind is not Kind.SKIP)
        out, outputs = self.make_outputs(unit, deps, route, kind, payload, error)
        slot = slot_number(unit.id.request, self._slots)
        note = NoteExec(
            self.operator.name,
            self.knowledge.topology.generation,
            self._owned[slot],
            unit.id,
            inputs,
            out,
            route,
            slot=slot,
        )
        self.ctx.emit(note)
        self._finish(unit, deps, outputs)

    def _finish(self, unit: Unit, deps: Deps, outputs: tuple[tuple[str, Token], ...]) -> None:
        self.joins.finish(unit, deps, self.fan_out_sources)
        for target, token in outputs:
            self.outbox.put(target, token)
        self._begin(unit.id.request)

    # -- failures of the model -------------------------------------------------------------------------------

    def _batch_failed(self, event: BatchFailed) -> None:
        """Its units run one per batch; one that fails alone gets the error."""
        if event.batch != self._batch:
            return
        self.run_ended(event.batch, event.compute_s, ok=False)
        units = [unit for unit in self._running if unit.stage is Stage.RUNNING and unit.batch == event.batch]
        alone = len(self._running) == 1
        self.attempts.survived(self._running)
        self._running = []
        if alone:
            for unit in units:
                self._result(unit, UnitResult(unit.id, error=event.message))
            return
        for unit in reversed(units):
            unit.stage = Stage.READY
            self.attempts.isolate(unit)
            self.queue.add_first(unit, self.ctx.now)

    def _model_died(self, event: ModelDied) -> None:
        """Say at once which requests were in it, and that this instance cannot serve its slots."""
        self._model_ready, self._model_dead = False, True
        if self._running:
            self.run_ended(self._batch, 0.0, ok=False)
        units, self._running = self._running, []
        self.attempts.died(units)
        for unit in reversed(units):
            if unit.stage is Stage.RUNNING:
                unit.stage = Stage.READY
                self.queue.add_first(unit, self.ctx.now)
            elif unit.stage is Stage.READY:  # by tokens that came since
                self.queue.suspected(unit, self.ctx.now)
        for manager in managers_of(self.members):
            self.ctx.send(manager, Suspect(self.instance, event.reason))
        self.ctx.emit(RestartModel(event.reason))


NOTHING_BEGUN = (-1, -1)


def _order(request: RequestId) -> tuple[int, int]:
    """The same order of all requests for every operator: as their shards have numbered them."""
    return request.n, request.shard


def _always(unit: Unit) -> bool:
    """Without a state nothing is lost with an instance."""
    return True
