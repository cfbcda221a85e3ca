"""What every operator instance does, stateful or not: take tokens in, join them, keep and resend what it
produced.

Intake law (I3, I5): a token enters a join only if its sender's epoch is not below the highest known for that
source, its dependencies are all known and none is orphan, its request is not complete, and this instance owns
the target. What cannot be judged yet is held, bounded, and judged again on the next topology; it is not
acknowledged before.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

from hams_protocol.acks import OwedAcks
from hams_protocol.batching import Fifo, Queues, Timing
from hams_protocol.context import Context
from hams_protocol.deps import Dep, Deps
from hams_protocol.due import FOREVER, earliest
from hams_protocol.events import (
    Event,
    Late,
    Member,
    MembersChanged,
    PeerDown,
    PeerUp,
    Received,
    TopologyLearnt,
)
from hams_protocol.gossip import Gossip
from hams_protocol.graph import CLOSE, FRONTEND, Graph, Join
from hams_protocol.handlers import Handlers
from hams_protocol.ids import InstanceId, Lane, RequestId, ValueId
from hams_protocol.joins import Forward, JoinBuffer, Stage, Unit, fan_name, fan_of
from hams_protocol.knowledge import Knowledge, Status
from hams_protocol.messages import (
    LATE,
    AskDeterminants,
    Attempt,
    AttemptAck,
    Completion,
    Deliver,
    Determinants,
    Durable,
    Kind,
    Message,
    Meta,
    ModelError,
    Payload,
    SlotAnswer,
    SlotQuery,
    StateCopy,
    StateRecord,
    Token,
    TokenAcks,
    TopologyNews,
)
from hams_protocol.modes import ModePolicy
from hams_protocol.outbox import Outbox
from hams_protocol.poison import Attempts
from hams_protocol.topology import Topology, slot_number
from hams_protocol.undecided import Undecided

if TYPE_CHECKING:
    from hams_protocol.stateful.keeper import Keeper


class Vertex(ABC):
    """Common machine of an operator instance. Subclasses own the roles, and make its `keeper`, which knows
    what they are made of."""

    keeper: "Keeper"

    def __init__(self, graph: Graph, op: str, instance: InstanceId, queues: Queues) -> None:
        self.ctx = Context()
        self.graph = graph
        self.operator = graph.operators[op]
        self.instance = instance
        self.mode = ModePolicy.of(graph.data.mode)
        self.knowledge = Knowledge(graph)
        self.members: dict[InstanceId, Member] = {}
        self.joins = JoinBuffer(self.operator)
        self.queue = queues(self.operator)
        self._times_runs = not isinstance(self.queue, Fifo)  # which learns nothing
        self.outbox = Outbox(self.ctx, self.knowledge, self.sending_epoch)
        self.attempts = Attempts(self.ctx, graph, op, self.knowledge)
        self.fan_out_sources = frozenset(
            edge.source
            for edge in self.operator.in_edges
            if edge.source != FRONTEND
            and not graph.operators[edge.source].stateful
            and len(graph.operators[edge.source].targets) > 1
        )
        self._acks = OwedAcks(self.ctx, self.knowledge)
        self._values = 0
        self._run_began = self._update_waited_s = 0.0
        self._update_wanted_at = FOREVER
        self._handlers = Handlers()
        self.gossip = Gossip(self.ctx, self.knowledge, self._handlers)
        self.undecided = Undecided(self.ctx, self.gossip)
        self._listen()

    # -- what subclasses say ---------------------------------------------------------------------------------

    @abstractmethod
    def sending_epoch(self, request: RequestId) -> int | None:
        """The epoch in which this instance owns its operator's outputs of a request; None if it does not."""

    @abstractmethod
    def is_consumed(self, token: Token) -> bool:
        """Whether the surviving history of this instance has the unit of this token already."""

    @abstractmethod
    def is_fenced(self, deps: Deps) -> bool:
        """Whether a manager's Fence keeps these dependencies out for now."""

    @abstractmethod
    def unit_ready(self, unit: Unit) -> None:
        """A unit's join rule is met."""

    @abstractmethod
    def topology_changed(self) -> None:
        """A newer topology was learnt: change roles, purge what is orphan."""

    @abstractmethod
    def requests_completed(self) -> None:
        """Requests have completed: free what was kept for them."""

    @abstractmethod
    def slot_answer(self, query: SlotQuery) -> SlotAnswer | None:
        """What it says to the new owner of a fan-out's slot; None if another instance answers for its set."""

    @abstractmethod
    def own_event(self, event: Event) -> None:
        """An event that only some roles understand."""

    # -- dispatch --------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Events that mean the same to every operator instance; the others are its role's."""
        if isinstance(event, Received):
            self._received(event.sender, event.message)
        elif isinstance(event, TopologyLearnt):
            self.learn_topology(event)
        elif isinstance(event, MembersChanged):
            self.members = {member.instance: member for member in event.members}
            self.members_changed()
        elif isinstance(event, PeerUp):
            self.gossip.peer_up(event.peer)
            self.outbox.resend_to(event.peer)
            self.peer_up(event.peer)
            self.keeper.peer_up(event.peer)
        elif isinstance(event, PeerDown):
            self.peer_down(event.peer, event.refused)
        else:
            if isinstance(event, Late):
                self.keeper.late(event.by_s)
            self.own_event(event)

    @abstractmethod
    def members_changed(self) -> None:
        """Instances have come or gone."""

    @abstractmethod
    def peer_up(self, peer: InstanceId) -> None:
        """A connection stands again."""

    @abstractmethod
    def peer_down(self, peer: InstanceId, refused: bool) -> None:
        """A connection broke."""

    @abstractmethod
    def durable_rose(self, ops: list[str]) -> None:
        """Watermarks of other operators have risen."""

    @abstractmethod
    def message(self, sender: InstanceId, message: Message) -> None:
        """A message that only some roles understand."""

    def _listen(self) -> None:
        """What every operator instance understands; the rest is for its role, or its keeper."""
        on = self._handlers.on
        on(Deliver, self.deliver)
        on(TokenAcks, self.outbox.acknowledged)
        on(Durable, self._announced)
        on(Completion, self._completed)
        on(TopologyNews, self._news)
        on(SlotQuery, self._slot_query)
        on(AskDeterminants, self._determinants_asked)
        on(Attempt, self._attempted)
        on(AttemptAck, self.attempts.acknowledged)
        on(StateCopy, self._copied)
        on(StateRecord, self._recorded)

    def _received(self, sender: InstanceId, message: Message) -> None:
        handler = self._handlers.find(message)
        if handler is not None:
            handler(sender, message)
        else:
            self._for_a_part(sender, message)

    def _for_a_part(self, sender: InstanceId, message: Message) -> None:
        if self.keeper.is_for(message):
            self.keeper.message(sender, message)
        else:
            self.message(sender, message)

    def _copied(self, sender: InstanceId, copy: StateCopy) -> None:
        """A state tells of completed requests, too: of what completes no later broadcast may say anything
        new."""
        self.complete(copy.complete)
        self.knowledge.hear_budgets(copy.units, self.ctx.now)
        self._for_a_part(sender, copy)

    def _recorded(self, sender: InstanceId, record: StateRecord) -> None:
        self.knowledge.hear_budgets(record.units, self.ctx.now, record.left_s)
        self._for_a_part(sender, record)

    def _attempted(self, sender: InstanceId, attempt: Attempt) -> None:
        if self.outbox.attempted(sender, attempt) or attempt.request in self.knowledge.completed:
            self.ctx.send(sender, AttemptAck(attempt.source, attempt.request, attempt.lane, attempt.serial))

    def _news(self, sender: InstanceId, news: TopologyNews) -> None:
        self.learn_topology(TopologyLearnt(news.topology, news.revision))

    def _announced(self, sender: InstanceId, notice: Durable) -> None:
        risen = self.knowledge.announce(notice)
        if risen:
            self.durable_rose(risen)
            self.keeper.durable_rose()

    def learn_topology(self, event: TopologyLearnt) -> None:
        """Take over a topology if it is newer, then judge again what was held."""
        if not self.knowledge.learn(event.topology, event.revision):
            return
        self.topology_changed()
        self.keeper.topology_changed()
        self.outbox.purge()
        self.attempts.purge()
        self.outbox.owners_changed()
        self.judge_undecided()

    def judge_undecided(self) -> None:
        """Judge again what could not be judged before."""
        for sender, message in self.undecided.take():
            if isinstance(message, Deliver):
                self.deliver(sender, message, again=True)
            elif isinstance(message, SlotQuery):
                self._slot_query(sender, message, again=True)
            else:
                self._received(sender, message)

    def learn_revision(self, topology: Topology, revision: int) -> None:
        """A topology that came with its etcd revision."""
        self.learn_topology(TopologyLearnt(topology, revision))

    # -- intake ----------------------------------------------------------------------------------------------

    def deliver(self, sender: InstanceId, message: Deliver, again: bool = False) -> None:
        """Judge a token, then acknowledge and join it."""
        token = message.token
        knowledge = self.knowledge
        if not again and token.request not in knowledge.completed:
            # its budget counts from its arrival, however long it is undecided
            knowledge.deadlines.learn(token.request, token.meta.budget_s, self.ctx.now)
        if message.marks and not again:
            self._announced(sender, Durable(message.marks))
        if token.request in knowledge.completed:
            self._acknowledge(sender, message, token.value_id)
            return
        epoch = knowledge.source_epoch(token.source, token.request)
        if message.epoch < epoch:
            if not again:
                self.gossip.tell(sender)
            return
        if message.epoch > epoch:
            if (
                token.source == FRONTEND
                or self.graph.operators[token.source].stateful
                or not knowledge.slots_of(token.source)
            ):
                self.undecided.await_news(sender, message)
                return
            knowledge.fence(
                token.source, slot_number(token.request, len(knowledge.slots_of(token.source))), message.epoch
            )
        status = knowledge.status(token.deps) if token.deps else Status.DURABLE
        if status is Status.ORPHAN:
            return
        if status is Status.UNKNOWN:
            self.undecided.await_news(sender, message)
            return
        if self.is_fenced(token.deps):
            self.undecided.hold(sender, message)
            return
        if self.sending_epoch(token.request) is None:
            if not again:
                self.undecided.hold(sender, message)
            return
        knowledge.determinants.learn(token.determinants)
        if self.is_consumed(token):
            self._acknowledge(sender, message, token.value_id)
            if self.operator.join is not Join.FIRST:
                return
        unit = self.joins.add(token)
        if message.attempts > unit.attempts:
            unit.attempts = message.attempts
            self.queue.suspected(unit, self.ctx.now)
        self._acknowledge(sender, message, self.joins.value_held(unit, token))
        self.unit_changed(unit)

    def unit_changed(self, unit: Unit) -> None:
        """A unit got a token (or lost a purged one): is it ready, has a First heard of all its in-edges?"""
        if self.operator.join is Join.FIRST and self.joins.all_delivered(unit):
            self._close(unit)
        if self.joins.settle(unit):
            unit.due = self.knowledge.deadlines.due(unit.id.request)
            self.unit_ready(unit)

    def _close(self, unit: Unit) -> None:
        deps = self.knowledge.prune(self.joins.deps(unit, every=True))
        some = next(iter(unit.tokens.values()))
        token = Token(
            unit.id.request,
            unit.id.lane,
            self.operator.name,
            Kind.SKIP,
            f"{self.new_value_id()}*",
            deps,
            (),
            self._meta_now(some),
        )
        if not self._closed(unit):
            self.outbox.put(CLOSE, token)

    def _closed(self, unit: Unit) -> bool:
        return any(
            target == CLOSE and token.lane == unit.id.lane
            for target, token in self.outbox.tokens(unit.id.request)
        )

    def _acknowledge(self, sender: InstanceId, message: Deliver, value_id: ValueId) -> None:
        epoch = self.knowledge.owner(message.target, message.token.request)[1]
        self._acks.add(sender, message.token, message.target, value_id, epoch)

    def flush_acks(self) -> None:
        """Acknowledge what was not completed in the meantime."""
        self._acks.tick()

    def common_deadline(self) -> float:
        """When the common part wants a Tick."""
        return earliest((self._acks, self.outbox, self.attempts, self.keeper))

    def common_tick(self) -> None:
        """What the common part does when its time has come, but for sending tokens again."""
        self.attempts.tick()
        self.keeper.tick()

    # -- purging ---------------------------------------------------------------------------------------------

    def purge_units(self) -> None:
        """Drop orphan tokens from the joins; units that run on them, or whose product is orphan, wait for
        their successors.

        A First's product does not depend on its losers; one taken over from a slot's former owner may have no
        tokens here at all.
        """
        for unit in self.joins.units():
            gone = [
                source
                for source, token in unit.tokens.items()
                if self.knowledge.status(token.deps) is Status.ORPHAN
            ]
            product = self.knowledge.status(unit.made) is Status.ORPHAN
            if not gone and not product:
                continue
            for source in gone:
                token = unit.tokens.pop(source)
                unit.refused.discard(source)
                if unit.stage is not Stage.DONE and token in unit.used:
                    unit.reset()
            if product:
                unit.made, unit.route = (), None
                if unit.stage is Stage.DONE:
                    unit.reset()
            if not unit.tokens and unit.stage is Stage.WAITING:
                if unit.route is None:
                    self.joins.drop(unit)
                continue
            self.unit_changed(unit)

    def _completed(self, sender: InstanceId, message: Completion) -> None:
        self.complete(message)
        for reply in message.replies:
            self.queue.replied(reply.request, reply.seconds, self.ctx.now)

    def complete(self, message: Completion) -> None:
        """Requests have completed: free what was held for them."""
        if self.knowledge.completed.learn(message):
            self.outbox.drop_complete()
            self.attempts.drop_complete()
            self.knowledge.requests_completed()
            for request in [
                request for request in self.joins.requests() if request in self.knowledge.completed
            ]:
                for unit in self.joins.complete(request):
                    if unit.stage is Stage.READY:
                        unit.stage = Stage.DONE
            self.requests_completed()
            self.keeper.requests_completed()

    # -- fan-out ---------------------------------------------------------------------------------------------

    def _slot_query(self, sender: InstanceId, query: SlotQuery, again: bool = False) -> None:
        self.knowledge.fence(query.op, query.slot, query.epoch)
        answer = self.slot_answer(query)
        if answer is not None:
            self.ctx.send(sender, answer)
        elif not again or self.knowledge.is_behind(query):  # it may be what answers by the next topology
            self.undecided.await_news(sender, query)

    def _determinants_asked(self, sender: InstanceId, ask: AskDeterminants) -> None:
        """From here on nothing is taken of the asker's former self, whose epoch is known to be over."""
        generation = self.knowledge.topology.generation
        if generation < ask.generation:
            self.undecided.await_news(sender, ask)
        elif not self.operator.stateful or self.sending_epoch(RequestId(0, 0)) is not None:
            items = self.knowledge.determinants.above(ask.op, ask.above)
            self.ctx.send(sender, Determinants(ask.op, ask.epoch, generation, items, self.led()))

    def led(self) -> tuple[str, int] | None:
        """The replica set that this instance leads, and in which epoch."""
        return None

    def held_from_slot(self, query: SlotQuery, beside: Iterable[Token]) -> tuple[Token, ...]:
        """Tokens from a slot, of open requests: those in the joins, and those that are kept `beside` them."""
        slots = len(self.knowledge.slots_of(query.op))
        tokens: dict[tuple[RequestId, Lane], Token] = {}
        for token in (*self.joins.tokens_from(query.op), *beside):
            if (
                slots
                and token.source == query.op
                and slot_number(token.request, slots) == query.slot
                and token.request not in self.knowledge.completed
            ):
                tokens[token.request, token.lane] = self.knowledge.leaving(token, self.ctx.now)
        return tuple(tokens.values())

    # -- what the queue learns, and what it sheds ------------------------------------------------------------

    def run_started(self, batch: int, units: list[Unit]) -> None:
        """A batch begins."""
        if not self._times_runs:
            return
        self._run_began, self._update_waited_s, self._update_wanted_at = self.ctx.now, 0.0, FOREVER
        self.queue.started(batch, units, self.ctx.now)

    def update_waits(self) -> None:
        """Its model stands before its update stage."""
        self._update_wanted_at = min(self._update_wanted_at, self.ctx.now)

    def update_entered(self) -> None:
        """Its model was let in."""
        self._update_waited_s += max(self.ctx.now - self._update_wanted_at, 0.0)
        self._update_wanted_at = FOREVER

    def run_ended(self, batch: int, compute_s: float, ok: bool) -> None:
        """A batch is over; `compute_s` 0: the model does not say how long it took."""
        if not self._times_runs:
            return
        total_s = self.ctx.now - self._run_began
        self.update_entered()
        own_s = compute_s if compute_s > 0.0 else max(total_s - self._update_waited_s, 0.0)
        self.queue.finished(batch, Timing(own_s, total_s, ok), self.ctx.now)

    def shed(self, unit: Unit) -> Forward:
        """What a unit passes on that the policy answers instead of running it."""
        left_ms = max(unit.due - self.ctx.now, 0.0) * 1000
        message = f"not run: {left_ms:.0f} ms of its deadline were left"
        return Forward(Kind.ERROR, ModelError(self.operator.name, message, LATE))

    # -- outputs ---------------------------------------------------------------------------------------------

    def _meta_now(self, token: Token) -> Meta:
        return self.knowledge.deadlines.meta(token.meta, token.request, self.ctx.now)

    def new_value_id(self) -> ValueId:
        """A value id never used before."""
        self._values += 1
        return f"{self.instance}:{self._values}"

    def make_outputs(
        self,
        unit: Unit,
        deps: Deps,
        route: tuple[str, ...],
        kind: Kind,
        payload: Payload | None,
        error: ModelError | None,
    ) -> tuple[ValueId, tuple[tuple[str, Token], ...]]:
        """Value id and one token per out-edge: the value for the targets routed to, skips for the others."""
        op, out = self.operator, self._value_id(unit, kind, payload)
        fan = self._fan(unit, out)
        request, lane = unit.id
        meta = self.knowledge.deadlines.meta(self.joins.meta(unit), request, self.ctx.now)
        causes = self.knowledge.determinants.everything()
        value = Token(request, lane, op.name, kind, out, deps, route, meta, fan, error, payload, (), causes)
        skip = (
            Token(request, lane, op.name, Kind.SKIP, f"{out}!", deps, route, meta, determinants=causes)
            if len(route) < len(op.targets)
            else value
        )
        return out, tuple((target, value if target in route else skip) for target in op.targets)

    def _value_id(self, unit: Unit, kind: Kind, payload: Payload | None) -> ValueId:
        """Where states are replayed, a value that is made again is the same one if its bytes are."""
        if not self.mode.replays:
            return self.new_value_id()
        what = kind.name if payload is None else payload.content
        return f"{self.operator.name}:{unit.id.request}{'.'.join(('', *unit.id.lane))}:{what}"

    def _fan(self, unit: Unit, out: ValueId) -> tuple[tuple[str, ValueId], ...]:
        """Fan-out executions it stems from. Stateful ones too: what stems from before a reported loss is not
        undone, and must not be mixed."""
        fan = set(fan_of(unit))
        if len(self.operator.targets) > 1:
            fan.add((fan_name(self.operator.name, unit.id.lane), out))
        return tuple(sorted(fan)) if fan else ()

    def forwarded(
        self, unit: Unit, forward: Forward, deps: Deps
    ) -> tuple[ValueId, tuple[str, ...], tuple[tuple[str, Token], ...]]:
        """Value id, route and tokens of a unit that runs no model."""
        route = self.operator.successors if forward.kind is Kind.ERROR else ()
        out, outputs = self.make_outputs(unit, deps, route, forward.kind, None, forward.error)
        return out, route, outputs

    def own_dep(self, epoch: int, seq: int) -> Dep:
        """The dependency on this operator's own state."""
        return Dep(self.operator.name, 1 if self.mode.replays else epoch, seq)
