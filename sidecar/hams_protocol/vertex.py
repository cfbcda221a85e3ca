"""What every operator instance does, stateful or not: take tokens in, join them, keep and resend what it
produced.

Intake law (I3, I5): a token enters a join only if its sender's epoch is not below the highest known for that
source, its dependencies are all known and none is orphan, its request is not complete, and this instance owns
the target. What cannot be judged yet is held, bounded, and judged again on the next topology; it is not
acknowledged before.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from hams_protocol import limits
from hams_protocol.batching import BatchQueue
from hams_protocol.deps import Dep, Deps
from hams_protocol.effects import Effect, Send, Stop
from hams_protocol.events import Event, Member, MembersChanged, PeerDown, PeerUp, Received, TopologyLearnt
from hams_protocol.graph import CLOSE, FRONTEND, Graph, Join
from hams_protocol.ids import InstanceId, Lane, RequestId, ValueId
from hams_protocol.joins import Forward, JoinBuffer, Stage, Unit, fan_name, fan_of
from hams_protocol.knowledge import Knowledge, Status
from hams_protocol.messages import (
    AskTopology,
    Attempt,
    AttemptAck,
    Completion,
    Deliver,
    Durable,
    Heartbeat,
    Kind,
    Message,
    ModelError,
    Payload,
    SlotAnswer,
    SlotQuery,
    StateCopy,
    Token,
    TokenAck,
    TokenAcks,
    TopologyNews,
)
from hams_protocol.modes import ModePolicy
from hams_protocol.outbox import Outbox
from hams_protocol.poison import Attempts
from hams_protocol.topology import Topology, slot_number

if TYPE_CHECKING:
    from hams_protocol.stateful.keeper import Keeper

FOREVER = float("inf")


def up_to_stop(effects: list[Effect]) -> list[Effect]:
    """Who has stopped does nothing more under that id (section 6): what would follow its Stop goes."""
    for index, effect in enumerate(effects):
        if isinstance(effect, Stop):
            return effects[: index + 1]
    return effects


class Vertex(ABC):
    """Common machine of an operator instance. Subclasses own the roles, and make its `keeper`, which knows
    what they are made of."""

    keeper: "Keeper"

    def __init__(self, graph: Graph, op: str, instance: InstanceId) -> None:
        self.graph = graph
        self.operator = graph.operators[op]
        self.instance = instance
        self.mode = ModePolicy.of(graph.data.mode)
        self.knowledge = Knowledge(graph)
        self.members: dict[InstanceId, Member] = {}
        self.joins = JoinBuffer(self.operator)
        self.queue = BatchQueue(self.operator.batch)
        self.outbox = Outbox(self.knowledge, self.sending_epoch)
        self.attempts = Attempts(graph, op, self.knowledge)
        self.fan_out_sources = frozenset(
            edge.source
            for edge in self.operator.in_edges
            if edge.source != FRONTEND
            and not graph.operators[edge.source].stateful
            and len(graph.operators[edge.source].targets) > 1
        )
        self._undecided: deque[tuple[InstanceId, Deliver]] = deque(maxlen=limits.undecided_messages_max)
        self._acks: dict[InstanceId, list[TokenAck]] = {}
        self._acks_due = FOREVER
        self._values = 0

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
    def unit_ready(self, unit: Unit, now: float) -> list[Effect]:
        """A unit's join rule is met."""

    @abstractmethod
    def topology_changed(self, now: float) -> list[Effect]:
        """A newer topology was learnt: change roles, purge what is orphan."""

    @abstractmethod
    def requests_completed(self) -> None:
        """Requests have completed: free what was kept for them."""

    @abstractmethod
    def slot_answer(self, query: SlotQuery) -> SlotAnswer | None:
        """What it says to the new owner of a fan-out's slot; None if another instance answers for its set."""

    # -- dispatch --------------------------------------------------------------------------------------------

    def handle_common(self, event: Event, now: float) -> list[Effect] | None:
        """Events that mean the same to every operator instance; None for all others."""
        if isinstance(event, Received):
            return self._received(event.sender, event.message, now)
        if isinstance(event, TopologyLearnt):
            return self.learn_topology(event, now)
        if isinstance(event, MembersChanged):
            self.members = {member.instance: member for member in event.members}
            return self.members_changed(now)
        if isinstance(event, PeerUp):
            return [
                *self.outbox.resend_to(event.peer, now),
                *self.peer_up(event.peer, now),
                *self.keeper.peer_up(event.peer, now),
            ]
        if isinstance(event, PeerDown):
            return self.peer_down(event.peer, event.refused, now)
        return None

    def members_changed(self, now: float) -> list[Effect]:
        """Instances have come or gone."""
        return []

    def peer_up(self, peer: InstanceId, now: float) -> list[Effect]:
        """A connection stands again."""
        return []

    def peer_down(self, peer: InstanceId, refused: bool, now: float) -> list[Effect]:
        """A connection broke."""
        return []

    def durable_rose(self, ops: list[str], now: float) -> list[Effect]:
        """Watermarks of other operators have risen."""
        return []

    def message(self, sender: InstanceId, message: Message, now: float) -> list[Effect]:
        """A message that only some roles understand."""
        return []

    def _received(self, sender: InstanceId, message: Message, now: float) -> list[Effect]:
        if isinstance(message, Deliver):
            return self.deliver(sender, message, now)
        if isinstance(message, TokenAcks):
            for ack in message.acks:
                self.outbox.acknowledge(sender, ack)
            return []
        if isinstance(message, Durable):
            return self._announced(message, now)
        if isinstance(message, Completion):
            return self._completion(message)
        if isinstance(message, Heartbeat):
            known_generation = self.knowledge.topology.generation
            return (
                [Send(sender, AskTopology(known_generation))] if message.generation > known_generation else []
            )
        if isinstance(message, TopologyNews):
            return self.learn_topology(TopologyLearnt(message.topology, -1), now)
        if isinstance(message, AskTopology):
            known = self.knowledge.topology
            return (
                [Send(sender, TopologyNews(known, self.knowledge.revision))]
                if known.generation > message.generation
                else []
            )
        if isinstance(message, SlotQuery):
            return self._slot_query(sender, message)
        if isinstance(message, Attempt):
            noted = self.outbox.attempted(sender, message) or message.request in self.knowledge.completed
            return (
                [Send(sender, AttemptAck(message.source, message.request, message.lane, message.serial))]
                if noted
                else []
            )
        if isinstance(message, AttemptAck):
            self.attempts.acknowledged(message)
            return []
        if isinstance(message, StateCopy):
            self._completion(message.complete)  # what completes no later broadcast may say anything new of
        if self.keeper.is_for(message):
            return self.keeper.message(sender, message, now)
        return self.message(sender, message, now)

    def _announced(self, notice: Durable, now: float) -> list[Effect]:
        risen = self.knowledge.announce(notice)
        return [*self.durable_rose(risen, now), *self.keeper.durable_rose(now)] if risen else []

    def learn_topology(self, event: TopologyLearnt, now: float) -> list[Effect]:
        """Take over a topology if it is newer, then judge again what was held."""
        if not self.knowledge.learn(event.topology, event.revision):
            return []
        effects = [*self.topology_changed(now), *self.keeper.topology_changed(now)]
        self.outbox.purge()
        self.attempts.purge()
        effects += self.outbox.owners_changed(now)
        return [*effects, *self.judge_undecided(now)]

    def judge_undecided(self, now: float) -> list[Effect]:
        """Judge again what could not be judged before."""
        effects: list[Effect] = []
        held = list(self._undecided)
        self._undecided.clear()
        for sender, deliver in held:
            effects += self.deliver(sender, deliver, now, again=True)
        return effects

    def learn_revision(self, topology: Topology, revision: int, now: float) -> list[Effect]:
        """A topology that came with its etcd revision."""
        return self.learn_topology(TopologyLearnt(topology, revision), now)

    # -- intake ----------------------------------------------------------------------------------------------

    def deliver(self, sender: InstanceId, message: Deliver, now: float, again: bool = False) -> list[Effect]:
        """Judge a token, then acknowledge and join it."""
        token = message.token
        knowledge = self.knowledge
        if token.request in knowledge.completed:
            self._acknowledge(sender, message, token.value_id, now)
            return []
        epoch = knowledge.source_epoch(token.source, token.request)
        if message.epoch < epoch:
            return [Send(sender, TopologyNews(knowledge.topology, knowledge.revision))] if not again else []
        if message.epoch > epoch:
            if (
                token.source == FRONTEND
                or self.graph.operators[token.source].stateful
                or not knowledge.slots_of(token.source)
            ):
                return self._hold(sender, message)
            knowledge.fence(
                token.source, slot_number(token.request, len(knowledge.slots_of(token.source))), message.epoch
            )
        status = knowledge.status(token.deps) if token.deps else Status.DURABLE
        if status is Status.ORPHAN:
            return []
        if status is Status.UNKNOWN:
            return self._hold(sender, message)
        if self.is_fenced(token.deps):
            self._undecided.append((sender, message))
            return []
        if self.sending_epoch(token.request) is None:
            if not again:
                self._undecided.append((sender, message))
            return []
        if self.is_consumed(token):
            self._acknowledge(sender, message, token.value_id, now)
            if self.operator.join is not Join.FIRST:
                return []
        unit = self.joins.add(token)
        if message.attempts:
            unit.attempts = max(unit.attempts, message.attempts)
        self._acknowledge(sender, message, self.joins.value_held(unit, token), now)
        return self.unit_changed(unit, now)

    def unit_changed(self, unit: Unit, now: float) -> list[Effect]:
        """A unit got a token (or lost a purged one): is it ready, has a First heard of all its in-edges?"""
        effects: list[Effect] = []
        if self.operator.join is Join.FIRST and self.joins.all_delivered(unit):
            effects += self._close(unit, now)
        if self.joins.settle(unit):
            effects += self.unit_ready(unit, now)
        return effects

    def _close(self, unit: Unit, now: float) -> list[Effect]:
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
            some.meta,
        )
        return self.outbox.put(CLOSE, token, now) if not self._closed(unit) else []

    def _closed(self, unit: Unit) -> bool:
        return any(
            target == CLOSE and token.lane == unit.id.lane
            for target, token in self.outbox.tokens(unit.id.request)
        )

    def _hold(self, sender: InstanceId, message: Deliver) -> list[Effect]:
        self._undecided.append((sender, message))
        return [Send(sender, AskTopology(self.knowledge.topology.generation))]

    def _acknowledge(self, sender: InstanceId, message: Deliver, value_id: ValueId, now: float) -> None:
        token = message.token
        epoch = self.knowledge.owner(message.target, token.request)[1]
        self._acks.setdefault(sender, []).append(
            TokenAck(token.source, message.target, token.unit, value_id, epoch)
        )
        if self._acks_due == FOREVER:
            self._acks_due = now + limits.ack_delay_s

    def flush_acks(self, now: float) -> list[Effect]:
        """Acknowledge what was not completed in the meantime."""
        if now < self._acks_due:
            return []
        effects: list[Effect] = []
        completed = self.knowledge.completed
        for peer, acks in self._acks.items():
            due = [ack for ack in acks if ack.unit.request not in completed]
            for first in range(0, len(due), limits.acks_batch_max):
                effects.append(Send(peer, TokenAcks(tuple(due[first : first + limits.acks_batch_max]))))
        self._acks.clear()
        self._acks_due = FOREVER
        return effects

    def common_deadline(self) -> float:
        """When the common part wants a Tick."""
        return min(self._acks_due, self.outbox.deadline(), self.attempts.deadline(), self.keeper.deadline())

    def common_tick(self, now: float) -> list[Effect]:
        """What the common part does when its time has come, but for sending tokens again."""
        return [*self.attempts.tick(now), *self.keeper.tick(now)]

    # -- purging ---------------------------------------------------------------------------------------------

    def purge_units(self, now: float) -> list[Effect]:
        """Drop orphan tokens from the joins; units that run on them, or whose product is orphan, wait for
        their successors.

        A First's product does not depend on its losers; one taken over from a slot's former owner may have no
        tokens here at all.
        """
        effects: list[Effect] = []
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
            effects += self.unit_changed(unit, now)
        return effects

    def _completion(self, message: Completion) -> list[Effect]:
        if self.knowledge.completed.learn(message):
            self.outbox.drop_complete()
            self.attempts.drop_complete()
            for request in [
                request for request in self.joins.requests() if request in self.knowledge.completed
            ]:
                for unit in self.joins.complete(request):
                    if unit.stage is Stage.READY:
                        unit.stage = Stage.DONE
            self.requests_completed()
            self.keeper.requests_completed()
        return []

    # -- fan-out ---------------------------------------------------------------------------------------------

    def _slot_query(self, sender: InstanceId, query: SlotQuery) -> list[Effect]:
        self.knowledge.fence(query.op, query.slot, query.epoch)
        answer = self.slot_answer(query)
        return [] if answer is None else [Send(sender, answer)]

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
                tokens[token.request, token.lane] = self.knowledge.bare(token)
        return tuple(tokens.values())

    # -- outputs ---------------------------------------------------------------------------------------------

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
        op, out = self.operator, self.new_value_id()
        fan = self._fan(unit, out)
        meta = self.joins.meta(unit)
        request, lane = unit.id
        value = Token(request, lane, op.name, kind, out, deps, route, meta, fan, error, payload)
        skip = (
            Token(request, lane, op.name, Kind.SKIP, f"{out}!", deps, route, meta)
            if len(route) < len(op.targets)
            else value
        )
        return out, tuple((target, value if target in route else skip) for target in op.targets)

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
        return Dep(self.operator.name, epoch, seq)
