"""The machine of one frontend instance: clients in front, shards of the log behind, operators around
(protocol.md, section 5).

`steps(events, now)` returns effects in the order in which they must be performed; `deadline()` says when it
wants a Tick. No I/O, no clock, no randomness. Here events find the part that they concern: roles of shards
(`roles`), clients (`gateway`), sink tokens (`sinks`), questions of others (`questions`), the topology's
changes (`changes`).

Never: it decides nothing about other instances' roles (it changes its own shards' sets by compare-and-swap),
it never guesses when its log does not fit the topology (it stops and says so), and it acts on nothing while
frozen.
"""

from collections.abc import Sequence

from hams_protocol.due import FOREVER, Alarm, Timed, earliest
from hams_protocol.effects import Effect, NotServed, Stop
from hams_protocol.events import (
    CasSettled,
    CasUnknown,
    ClientGone,
    ClientRequest,
    Drain,
    Event,
    Late,
    MembersChanged,
    PeerDown,
    PeerUp,
    Received,
    TopologyLearnt,
)
from hams_protocol.frontend.broadcast import CompletionBroadcast
from hams_protocol.frontend.changes import Changes
from hams_protocol.frontend.context import FrontendContext
from hams_protocol.frontend.former import FormerLogs
from hams_protocol.frontend.gateway import Gateway, answer_message
from hams_protocol.frontend.promises import PromiseAccount
from hams_protocol.frontend.questions import Questions
from hams_protocol.frontend.roles import Misfit, ShardRoles
from hams_protocol.frontend.sinks import SinkDesk
from hams_protocol.frontend.status import ShardStatus
from hams_protocol.frontend.waits import Waits
from hams_protocol.gossip import Gossip
from hams_protocol.graph import FRONTEND, Graph
from hams_protocol.handlers import Handlers
from hams_protocol.ids import InstanceId
from hams_protocol.knowledge import Knowledge
from hams_protocol.messages import (
    AskApplied,
    AskCopy,
    AskDeterminants,
    Attempt,
    AttemptAck,
    ClientForward,
    ClientForwardAnswer,
    ClientForwardHeld,
    Completion,
    Deliver,
    Durable,
    Fence,
    Freeze,
    Leave,
    LogAck,
    LogAppend,
    LogCopy,
    Message,
    Probe,
    ReplyEntry,
    SlotQuery,
    StateCopy,
    StateRecord,
    TokenAcks,
    TopologyNews,
)
from hams_protocol.modes import ModePolicy
from hams_protocol.stateful.keeper import Keeper
from hams_protocol.undecided import Undecided


class FrontendMachine:
    """`step(event, now) -> effects` of one frontend instance.

    `former` comes from the machine of this frontend's former id, after its `Stop` named a set to keep: those
    logs answer a Freeze, and one may go on under this id, as long as the topology names the former one in
    that shard and epoch (protocol.md, section 6). `mode`: another policy than that of the graph's mode.
    `promises`: the account of the life before.
    """

    def __init__(
        self,
        graph: Graph,
        instance: InstanceId,
        former: FormerLogs | None = None,
        mode: ModePolicy | None = None,
        promises: PromiseAccount | None = None,
    ) -> None:
        self.graph = graph
        self.instance = instance
        self._ctx = FrontendContext(graph, instance, mode, promises)
        self._handlers = Handlers()
        self._gossip = Gossip(self._ctx, self._ctx.knowledge, self._handlers)
        self._waits = Waits(self._ctx)
        self._broadcast = CompletionBroadcast(self._ctx)
        self._roles = ShardRoles(self._ctx, self._waits, former, self._released, self._broadcast)
        self._owners = self._roles.owners
        self._followers = self._roles.followers
        self._outbox = self._roles.outbox
        self._undecided = Undecided(self._ctx, self._gossip)
        self._sinks = SinkDesk(self._ctx, self._owners, self._broadcast, self._gossip, self._undecided)
        self._gateway = Gateway(self._ctx, self._owners)
        self.keeper = Keeper(self._ctx, graph, instance, self._ctx.knowledge, self._undecided, FRONTEND)
        self._questions = Questions(self._ctx, self._roles, self.keeper)
        self._changes = Changes(self._ctx, self._roles, self.keeper, lambda: len(self._gateway), self._stop)
        self._alarm = Alarm(self._ctx)
        self._stopped = False
        self._listen_to_peers()

    # -- the machine -----------------------------------------------------------------------------------------

    def step(self, event: Event, now: float) -> list[Effect]:
        """One event; the effects in the order in which they must be performed."""
        return self.steps((event,), now)

    def steps(self, events: Sequence[Event], now: float) -> list[Effect]:
        """Events that have come together, in their order; entries for followers, acknowledgements and
        commitment follow once, after all of them."""
        ctx = self._ctx
        if self._stopped:
            return []
        ctx.begin(now)
        always = False
        for event in events:
            if isinstance(event, Received):
                handler = self._handlers.find(event.message)
                if handler is not None:
                    handler(event.sender, event.message)
            elif isinstance(event, ClientRequest):
                self._gateway.request(event)
            else:
                self._rare(event)
                always = True
            if self._is_over():
                return ctx.out
        self._after(always)
        return ctx.out

    def deadline(self) -> float:
        """When the machine wants a Tick; infinity if nothing is due."""
        if self._stopped:
            return FOREVER
        return self._alarm.set(earliest((*self._timed(), self._changes)))

    def _timed(self) -> tuple[Timed, ...]:
        """All that acts by itself, in the order in which it does."""
        return (
            self._sinks.acks,
            self._gateway,
            self._waits,
            self._broadcast,
            *self._followers.values(),
            *self._owners.values(),
            self._outbox,
            self.keeper,
        )

    @property
    def knowledge(self) -> Knowledge:
        """What this instance knows; to be read only."""
        return self._ctx.knowledge

    @property
    def former_id(self) -> InstanceId | None:
        """The former id whose logs this instance still has, for its `Member` entry."""
        return None if self._roles.former is None else self._roles.former.instance

    def logs_to_keep(self) -> FormerLogs | None:
        """After a `Stop` that names a set to keep: what a fresh machine should be given, of what the topology
        may need yet."""
        return self._roles.worth_keeping()

    @property
    def unserved(self) -> str | None:
        """Why requests are answered with 503; None if they are served."""
        return self._gateway.unserved

    @property
    def ready(self) -> bool:
        """Whether every shard has an owner and the graph is served; readiness of the endpoint."""
        served = not self._ctx.draining and self.unserved is None
        return served and all(self.knowledge.set_of(name).primary for name in self.graph.shard_names)

    @property
    def waiting_clients(self) -> int:
        """Clients that wait for an answer here."""
        return len(self._gateway)

    def shards(self) -> tuple[ShardStatus, ...]:
        """The shards in which this instance has a role."""
        return self._roles.statuses()

    # -- dispatch --------------------------------------------------------------------------------------------

    def _rare(self, event: Event) -> None:
        if isinstance(event, TopologyLearnt):
            self._learn(event)
        elif isinstance(event, MembersChanged):
            self._members_changed(event)
        elif isinstance(event, PeerUp):
            self._peer_up(event.peer)
        elif isinstance(event, PeerDown):
            self._ctx.links.broke(event.peer, event.refused, self._ctx.now)
            for owner in self._owners.values():
                owner.replication.peer_down(event.peer, event.refused)
        elif isinstance(event, Late):
            self._late(event.by_s)
        elif isinstance(event, CasSettled):
            self._ctx.proposals.settled(failed=not event.committed)
            self._learn(TopologyLearnt(event.topology, event.revision))
        elif isinstance(event, CasUnknown):
            self._ctx.proposals.settled(failed=True)
        elif isinstance(event, ClientGone):
            self._gateway.gone(event.handle)
        elif isinstance(event, Drain):
            self._drain()

    def _after(self, always: bool) -> None:
        """What follows the events of a step: timers that are due, replication and commitment, proposals; then
        the invariants."""
        timers = always or self._alarm.has_come
        if self.keeper.states:  # of a request that ended in a shard of this frontend no message tells
            self.keeper.requests_completed()
        if timers:
            for part in self._timed():
                part.tick()
        for owner in self._owners.values():
            owner.pump()
        for follower in self._followers.values():
            follower.acknowledge()
        if (
            timers
            or self._changes.handing_off
            or self._changes.has_first_request
            or any(owner.replication.wishing for owner in self._owners.values())
        ):
            self._changes.propose()
        if self._ctx.draining:
            self._changes.drain()
        for owner in self._owners.values():
            owner.check()

    def _listen_to_peers(self) -> None:
        on = self._handlers.on
        on(Deliver, self._sinks.deliver)
        on(TokenAcks, self._outbox.acknowledged)
        on(Attempt, self._on_attempt)
        on(Durable, self._on_durable)
        on(LogAck, self._on_log_ack)
        on(LogAppend, self._on_append)
        on(LogCopy, self._on_copy)
        on(AskCopy, self._on_ask_copy)
        on(Leave, self._on_leave)
        on(ClientForward, self._on_forward)
        on(ClientForwardHeld, self._gateway.held)
        on(ClientForwardAnswer, self._gateway.answer_came)
        on(Completion, self._on_completion)
        on(TopologyNews, self._on_news)
        on(SlotQuery, self._on_slot_query)
        on(AskDeterminants, self._on_ask_determinants)
        on(Probe, self._on_probe)
        on(Freeze, self._on_freeze)
        on(StateCopy, self._on_keeper)
        on(StateRecord, self._on_keeper)
        on(AskApplied, self._on_keeper)
        on(Fence, self._on_fence)

    # -- tokens and notices ----------------------------------------------------------------------------------

    def _on_attempt(self, sender: InstanceId, message: Attempt) -> None:
        owns = message.request.shard in self._owners
        if (
            self._outbox.attempted(sender, message) or owns
        ):  # what an owner has not retained is complete, or has its reply
            self._ctx.send(sender, AttemptAck(message.source, message.request, message.lane, message.serial))

    def _on_durable(self, sender: InstanceId, notice: Durable) -> None:
        risen = self.knowledge.announce(notice)
        if risen and self.keeper.states:
            self.keeper.durable_rose()
        for op in risen:
            for _, _, _, live, number, item in self._waits.risen(op):
                owner = self._owners.get(item.request.shard)
                if owner is not None and owner.live.get(item.request.n) is live:
                    owner.risen(live, number, item)

    def _on_completion(self, sender: InstanceId, message: Completion) -> None:
        if self.knowledge.completed.learn(message):
            self.knowledge.requests_completed()

    # -- the log ---------------------------------------------------------------------------------------------

    def _on_append(self, sender: InstanceId, message: LogAppend) -> None:
        follower = self._followers.get(message.shard)
        known = self.knowledge.set_of(self.graph.shard_names[message.shard]).epoch
        if message.epoch < known:
            self._gossip.tell(sender)
        elif message.epoch > known:
            if follower is not None or message.shard in self._owners:
                self._undecided.await_news(sender, message)
            else:
                self._gossip.ask(sender)
        elif follower is not None:
            follower.append(sender, message)

    def _on_log_ack(self, sender: InstanceId, message: LogAck) -> None:
        owner = self._owners.get(message.shard)
        if owner is not None and owner.epoch == message.epoch:
            owner.replication.log_acknowledged(sender, message.last, message.generation)

    def _on_copy(self, sender: InstanceId, message: LogCopy) -> None:
        follower = self._followers.get(message.shard)
        if follower is not None:
            follower.copy_part(message)

    def _on_ask_copy(self, sender: InstanceId, message: AskCopy) -> None:
        if message.op in self.graph.operators:
            self._on_keeper(sender, message)
            return
        owner = self._owners.get(self._roles.numbers.get(message.op, -1))
        known = self.knowledge.set_of(message.op).epoch
        if message.epoch > known or message.generation > self.knowledge.topology.generation:
            self._undecided.await_news(sender, message)
        elif owner is None or message.epoch < known:
            self._gossip.tell(sender)
        elif not owner.frozen.stands:
            owner.replication.copy_asked(sender, message)

    def _on_leave(self, sender: InstanceId, message: Leave) -> None:
        owner = self._owners.get(self._roles.numbers.get(message.op, -1))
        if owner is not None and owner.epoch == message.epoch:
            owner.replication.leave_asked(sender)

    def _on_keeper(self, sender: InstanceId, message: Message) -> None:
        """About a state that this frontend keeps for an operator."""
        if isinstance(message, StateCopy):
            self.knowledge.completed.learn(message.complete)
            self.knowledge.hear_budgets(message.units, self._ctx.now)
        elif isinstance(message, StateRecord):
            self.knowledge.hear_budgets(message.units, self._ctx.now, message.left_s)
        if self.keeper.is_for(message):
            self.keeper.message(sender, message)

    # -- forwarded clients -----------------------------------------------------------------------------------

    def _on_forward(self, sender: InstanceId, message: ClientForward) -> None:
        """One for another epoch is none for this owner: who sent it asks the owner of that, and may have its
        answer."""
        owner = self._owners.get(message.shard)
        known = self.knowledge.set_of(self.graph.shard_names[message.shard]).epoch
        if message.epoch > known:
            self._undecided.await_news(sender, message)
            return
        if 0 < message.epoch < known:
            self._gossip.tell(sender)
            return
        if owner is None:
            return
        if owner.frozen.stands:
            if message.epoch:
                self._undecided.hold(sender, message)
            return
        held = owner.submit(sender, message)
        if held is not None:
            self._ctx.send(sender, ClientForwardHeld(message.shard, message.counter, held))

    def _released(self, waiter: InstanceId, counter: int, outcome: ReplyEntry | NotServed) -> None:
        if waiter == self.instance:
            self._gateway.answered(counter, outcome)
        else:
            self._ctx.send(waiter, answer_message(counter, outcome))

    # -- topology --------------------------------------------------------------------------------------------

    def _on_news(self, sender: InstanceId, message: TopologyNews) -> None:
        self._learn(TopologyLearnt(message.topology, message.revision))

    def _learn(self, event: TopologyLearnt) -> None:
        """A topology: if newer, change roles, drop what is orphan, hand everything to its present owners."""
        knowledge, before = self.knowledge, self.knowledge.topology
        if not knowledge.learn(event.topology, event.revision):
            return
        if before.generation and not set(event.topology.revoked).issubset(before.revoked):
            self._ctx.promises.lost_at = self._ctx.now
        self._roles.judge_logs()
        if self.instance in event.topology.revoked:
            logs = self._roles.worth_keeping()
            self._stop("revoked", None if logs is None else self.graph.shard_names[min(logs.logs)])
            return
        try:
            self._roles.take(knowledge)
        except Misfit as misfit:
            self._stop(str(misfit))
            return
        if self._roles.drop_former():
            self._end("the logs it kept are of no use any more")
        if self._stopped:
            return
        self.keeper.topology_changed()
        self._broadcast.own(self._owners)
        self._listen()
        self._waits.clear()
        for owner in self._owners.values():
            owner.purge()
        self._judge_undecided()
        self._outbox.owners_changed()
        self._gateway.topology_changed()

    def _judge_undecided(self) -> None:
        for sender, message in self._undecided.take():
            if isinstance(message, Deliver):
                self._sinks.deliver(sender, message, again=True)
            elif isinstance(message, SlotQuery):
                self._on_slot_query(sender, message, again=True)
            else:
                handler = self._handlers.find(message)
                if handler is not None:
                    handler(sender, message)

    def _drain(self) -> None:
        self._ctx.draining = True
        for owner in self._owners.values():
            owner.replication.wishing = True
        self.keeper.leave()

    def _end(self, reason: str) -> None:
        """Without a role it ends, but not before it is let go where it keeps the state of an operator. Where
        its role does not fit its log it stops at once (`_stop`): what it holds of other shards may not fit
        either."""
        if self.keeper.is_needed:
            self._drain()
        elif not self._stopped:
            self._stop(reason)

    def _is_over(self) -> bool:
        return self._stopped

    def _stop(self, reason: str, keep: str | None = None) -> None:
        self._stopped = True
        self._ctx.out.append(Stop(reason, keep))

    # -- members and connections -----------------------------------------------------------------------------

    def _members_changed(self, event: MembersChanged) -> None:
        ctx = self._ctx
        ctx.members = {member.instance: member for member in event.members}
        # One that is only out of reach comes back under its id, and asks for what its clients wait for.
        ended = ctx.links.refused.union(self.knowledge.topology.revoked)
        gone = [peer for peer in ctx.links.down if peer in ended and peer not in ctx.members]
        for log in self._roles.logs():
            log.state.drop_gone(gone)
        ctx.links.forget({*ctx.members, *self.knowledge.topology.instances})
        for owner in self._owners.values():
            owner.replication.wishing = True
        self._listen()

    def _listen(self) -> None:
        """The instances that get notices of completion: registered instances of operators and frontends, and
        those that have a role."""
        peers = {
            member.instance
            for member in self._ctx.members.values()
            if member.of == FRONTEND or member.of in self.graph.operators
        }
        topology = self.knowledge.topology
        for item in topology.sets:
            peers.update(item.members)
            peers.update(item.joining)
        peers.update(
            slot.instance for table in topology.tables for slot in table.slots if slot.instance is not None
        )
        self._broadcast.listen(sorted(peers.difference(topology.revoked)))

    def _late(self, by_s: float) -> None:
        """This instance's own loop was late: what others said meanwhile is still unread, so they get that
        time back."""
        ctx = self._ctx
        ctx.lateness.late(by_s, ctx.now)
        ctx.links.late(by_s, ctx.now)
        self.keeper.late(by_s)
        for owner in self._owners.values():
            owner.replication.late(by_s)

    def _peer_up(self, peer: InstanceId) -> None:
        self._ctx.links.stands(peer)
        self._gossip.peer_up(peer)
        self._outbox.resend_to(peer)
        self.keeper.peer_up(peer)
        self._gateway.peer_up(peer)
        for owner in self._owners.values():
            owner.replication.peer_up(peer)
        for follower in self._followers.values():
            if follower.following.leader == peer and not follower.following.in_sync:
                follower.ask()
        if peer in self._broadcast.listeners and self._owners:
            self._broadcast.wanted(peer)

    # -- questions -------------------------------------------------------------------------------------------

    def _on_slot_query(self, sender: InstanceId, message: SlotQuery, again: bool = False) -> None:
        self._questions.slot_query(sender, message)
        if self._followers and (not again or self.knowledge.is_behind(message)):
            self._undecided.await_news(sender, message)  # it may own another shard by the next topology

    def _on_ask_determinants(self, sender: InstanceId, message: AskDeterminants) -> None:
        if self.knowledge.topology.generation < message.generation:
            self._undecided.await_news(sender, message)
        else:
            self._questions.determinants(sender, message)

    def _on_probe(self, sender: InstanceId, message: Probe) -> None:
        self._questions.probe(sender, message)

    def _on_freeze(self, sender: InstanceId, message: Freeze) -> None:
        if message.name in self.graph.operators:
            self._on_keeper(sender, message)
            return
        self._questions.freeze(sender, message)

    def _on_fence(self, sender: InstanceId, message: Fence) -> None:
        self._questions.fence(sender, message)
