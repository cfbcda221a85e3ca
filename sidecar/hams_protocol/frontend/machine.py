"""The machine of one frontend instance: clients in front, shards of the log behind, operators around (protocol.md, section 5).

`step(event, now)` returns effects in the order in which they must be performed; `deadline()` says when it wants a Tick. No I/O, no
clock, no randomness. Roles belong to shards, not to the instance: it may own one, follow another and copy a third.

Never: it decides nothing about other instances' roles (it changes its own shards' sets by compare-and-swap), it never guesses when its
log does not fit the topology (it stops and says so), and it acts on nothing while frozen.
"""

from collections.abc import Callable, Sequence

from hams_protocol import limits, mutants
from hams_protocol.effects import Effect, NoteFailover, NotServed, Propose, Stop
from hams_protocol.events import (
    CasDone,
    CasFailed,
    CasUnknown,
    ClientGone,
    ClientRequest,
    Drain,
    Event,
    Member,
    MembersChanged,
    PeerDown,
    PeerUp,
    Received,
    TopologyLearnt,
)
from hams_protocol.frontend.broadcast import CompletionBroadcast
from hams_protocol.frontend.context import FOREVER, Context
from hams_protocol.frontend.follower import ShardFollower
from hams_protocol.frontend.gateway import Gateway, answer_message
from hams_protocol.frontend.log import ShardLog, empty_log
from hams_protocol.frontend.owner import ShardOwner
from hams_protocol.frontend.sinks import SinkDesk
from hams_protocol.frontend.waits import Waits
from hams_protocol.frozen import frozen
from hams_protocol.graph import FRONTEND, Graph
from hams_protocol.ids import InstanceId, RequestId
from hams_protocol.knowledge import Knowledge
from hams_protocol.messages import (
    KEPT,
    AskCopy,
    AskTopology,
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
    FreezeAnswer,
    Health,
    Heartbeat,
    LogAck,
    LogAppend,
    LogCopy,
    Message,
    Probe,
    ProbeAnswer,
    Refused,
    ReplyEntry,
    RoleReport,
    SlotAnswer,
    SlotQuery,
    Token,
    TokenAcks,
    TopologyNews,
)
from hams_protocol.outbox import Outbox
from hams_protocol.topology import ReplicaSet, slot_number

LOST_LOG_STRIDE = 1 << 32
"""A shard whose log was lost numbers its requests from epoch times this on: no id is ever used twice."""


@frozen
class ShardStatus:
    """One shard as this instance sees it, for status and metrics. `role` is `primary`, `backup` or `joining`."""

    name: str
    role: str
    epoch: int
    last: int
    committed: int
    open_requests: int
    kept_replies: int
    frozen: bool


class KeptLogs:
    """What a revoked frontend brings along under a fresh id: the logs it held, by shard, each in the epoch of its `ShardLog`."""

    __slots__ = ("former", "logs")

    def __init__(self, former: InstanceId, logs: dict[int, ShardLog]) -> None:
        self.former = former
        self.logs = logs


class FrontendMachine:
    """`step(event, now) -> effects` of one frontend instance.

    `kept` comes from the machine of this frontend's former id, after its `Stop` named a set to keep: those logs answer a Freeze, and
    one may go on under this id, as long as the topology names the former one in that shard and epoch (protocol.md, section 6).
    """

    def __init__(self, graph: Graph, instance: InstanceId, kept: KeptLogs | None = None) -> None:
        self.graph = graph
        self.instance = instance
        self._ctx = Context(graph, instance)
        self._owners: dict[int, ShardOwner] = {}
        self._followers: dict[int, ShardFollower] = {}
        self._shard_of = {name: number for number, name in enumerate(graph.shard_names)}
        self._outbox = Outbox(self._ctx.knowledge, self._sending_epoch)
        self._waits = Waits(self._ctx)
        self._broadcast = CompletionBroadcast(self._ctx)
        self._sinks = SinkDesk(self._ctx, self._owners, self._broadcast)
        self._gateway = Gateway(self._ctx, self._owners)
        self._kept = kept
        self._members: dict[InstanceId, Member] = {}
        self._proposing = False
        self._propose_at = 0.0
        self._due = FOREVER
        self._draining = False
        self._handing_off = False
        self._stopped = False
        self._handlers: dict[type, Callable[[InstanceId, Message], None]] = self._table()

    # -- the machine -------------------------------------------------------------------------------------------------------

    def step(self, event: Event, now: float) -> list[Effect]:
        """One event; the effects in the order in which they must be performed."""
        return self.steps((event,), now)

    def steps(self, events: Sequence[Event], now: float) -> list[Effect]:
        """Events that have come together, in their order; entries for followers, acknowledgements and commitment follow once, after all of them."""
        ctx = self._ctx
        if self._stopped:
            return []
        ctx.now = now
        ctx.out = []
        always = False
        for event in events:
            if isinstance(event, Received):
                handler = self._handlers.get(type(event.message))
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
        due = self._sinks.deadline()
        for part in (self._broadcast, self._gateway, self._waits, self._outbox):
            at = part.deadline()
            if at < due:
                due = at
        propose_at = FOREVER if self._proposing or self._ctx.knowledge.revision < 0 else self._propose_at
        if self._handing_off:
            due = min(due, max(propose_at, self._ctx.now + limits.propose_retry_s))
        for owner in self._owners.values():
            at = owner.deadline(propose_at)
            if at < due:
                due = at
        for follower in self._followers.values():
            at = follower.deadline()
            if at < due:
                due = at
        self._due = due
        return due

    @property
    def knowledge(self) -> Knowledge:
        """What this instance knows; to be read only."""
        return self._ctx.knowledge

    @property
    def kept_of(self) -> InstanceId | None:
        """The former id whose logs this instance still has, for its `Member` entry."""
        return None if self._kept is None else self._kept.former

    def kept_logs(self) -> KeptLogs | None:
        """After a `Stop` that names a set to keep: what a fresh machine should be given, of what the topology may need yet."""
        held = {shard: owner.log for shard, owner in self._owners.items()}
        held.update({shard: item.log for shard, item in self._followers.items() if item.log is not None and not item.joining})
        logs = {shard: log for shard, log in held.items() if self._is_named(shard, log, self.instance)}
        return KeptLogs(self.instance, logs) if logs else self._kept

    @property
    def unserved(self) -> str | None:
        """Why requests are answered with 503; None if they are served."""
        return self._gateway.unserved

    @property
    def ready(self) -> bool:
        """Whether every shard has an owner and the graph is served; readiness of the endpoint."""
        return not self._draining and self.unserved is None and all(self.knowledge.set_of(name).primary for name in self.graph.shard_names)

    @property
    def waiting_clients(self) -> int:
        """Clients that wait for an answer here."""
        return len(self._gateway)

    def shards(self) -> tuple[ShardStatus, ...]:
        """The shards in which this instance has a role."""
        found = []
        for owner in self._owners.values():
            found.append(self._status(owner.name, "primary", owner.epoch, owner.log, owner.halted >= 0))
        for follower in self._followers.values():
            role = "joining" if follower.joining else "backup"
            found.append(self._status(follower.name, role, follower.epoch, follower.log, follower.frozen >= 0))
        return tuple(sorted(found, key=lambda item: item.name))

    @staticmethod
    def _status(name: str, role: str, epoch: int, log: ShardLog | None, is_frozen: bool) -> ShardStatus:
        if log is None:
            return ShardStatus(name, role, epoch, 0, 0, 0, 0, is_frozen)
        return ShardStatus(name, role, epoch, log.last, log.committed, len(log.state.open), len(log.state.kept), is_frozen)

    # -- dispatch ----------------------------------------------------------------------------------------------------------

    def _rare(self, event: Event) -> None:
        if isinstance(event, TopologyLearnt):
            self._learn(event)
        elif isinstance(event, MembersChanged):
            self._members_changed(event)
        elif isinstance(event, PeerUp):
            self._peer_up(event.peer)
        elif isinstance(event, PeerDown):
            # Nobody listens there any more: no need to wait and see.
            since = self._ctx.now - (self.graph.data.recovery.suspect_after_s if event.refused else 0.0)
            self._ctx.down[event.peer] = min(since, self._ctx.down.get(event.peer, since))
        elif isinstance(event, (CasDone, CasFailed)):
            self._proposing = False
            self._propose_at = self._ctx.now + (limits.propose_retry_s if isinstance(event, CasFailed) else 0.0)
            self._learn(TopologyLearnt(event.topology, event.revision))
        elif isinstance(event, CasUnknown):
            self._proposing = False
            self._propose_at = self._ctx.now + limits.propose_retry_s
        elif isinstance(event, ClientGone):
            self._gateway.gone(event.handle)
        elif isinstance(event, Drain):
            self._draining = True

    def _after(self, always: bool) -> None:
        """What follows every event: timers that are due, replication and commitment, proposals; then the invariants."""
        now = self._ctx.now
        timers = always or now >= self._due
        if timers:
            self._timers()
        for owner in self._owners.values():
            owner.pump()
        for follower in self._followers.values():
            follower.acknowledge()
        if timers or self._ctx.wishing:
            self._propose()
        if self._draining and not len(self._gateway):
            self._drain()
        if not mutants.active:
            for owner in self._owners.values():
                owner.check()

    def _timers(self) -> None:
        """Everything whose time has come."""
        now = self._ctx.now
        for part in (self._sinks, self._gateway, self._waits, self._broadcast):
            if part.deadline() <= now:
                part.tick()
        for follower in self._followers.values():
            if follower.deadline() <= now:
                follower.tick()
        for owner in self._owners.values():
            if owner.deadline(FOREVER) <= now:
                owner.tick()
        if self._outbox.deadline() <= now:
            self._ctx.out += self._outbox.tick(now)

    def _table(self) -> dict[type, Callable[[InstanceId, Message], None]]:
        return {
            Deliver: self._on_deliver,
            TokenAcks: self._on_acks,
            Attempt: self._on_attempt,
            Durable: self._on_durable,
            LogAck: self._on_log_ack,
            LogAppend: self._on_append,
            LogCopy: self._on_copy,
            AskCopy: self._on_ask_copy,
            ClientForward: self._on_forward,
            ClientForwardHeld: self._on_forward_held,
            ClientForwardAnswer: self._on_forward_answer,
            Completion: self._on_completion,
            Heartbeat: self._on_heartbeat,
            TopologyNews: self._on_news,
            AskTopology: self._on_ask_topology,
            SlotQuery: self._on_slot_query,
            Probe: self._on_probe,
            Freeze: self._on_freeze,
            Fence: self._on_fence,
        }

    # -- tokens and notices ------------------------------------------------------------------------------------------------

    def _on_deliver(self, sender: InstanceId, message: Message) -> None:
        assert isinstance(message, Deliver)
        self._sinks.deliver(sender, message)

    def _on_acks(self, sender: InstanceId, message: Message) -> None:
        assert isinstance(message, TokenAcks)
        for ack in message.acks:
            self._outbox.acknowledge(sender, ack)

    def _on_attempt(self, sender: InstanceId, message: Message) -> None:
        assert isinstance(message, Attempt)
        owns = message.request.shard in self._owners
        if self._outbox.attempted(sender, message) or owns:  # what an owner has not retained is complete, or has its reply
            self._ctx.send(sender, AttemptAck(message.source, message.request, message.lane, message.serial))

    def _on_durable(self, sender: InstanceId, message: Message) -> None:
        assert isinstance(message, Durable)
        self._announced(message)

    def _announced(self, notice: Durable) -> None:
        for op in self.knowledge.announce(notice):
            for _, _, _, live, number, token in self._waits.risen(op):
                owner = self._owners.get(token.request.shard)
                if owner is not None and owner.live.get(token.request.n) is live:
                    owner.settle(live, number, token)

    def _on_completion(self, sender: InstanceId, message: Message) -> None:
        assert isinstance(message, Completion)
        self.knowledge.completed.learn(message)

    def _on_slot_query(self, sender: InstanceId, message: Message) -> None:
        assert isinstance(message, SlotQuery)
        knowledge = self.knowledge
        if not mutants.on("query-without-fence"):
            knowledge.fence(message.op, message.slot, message.epoch)
        slots = len(knowledge.slots_of(message.op))
        found: dict[tuple[RequestId, tuple[str, ...]], Token] = {}
        for owner in self._owners.values():
            for token in owner.held_from(message.op):
                found[token.request, token.lane] = token
        for follower in self._followers.values():
            if follower.log is not None:
                for token in _logged_from(follower.log, message.op):
                    found[token.request, token.lane] = token
        mine = tuple(
            token
            for token in found.values()
            if slots and slot_number(token.request, slots) == message.slot and token.request not in knowledge.completed
        )
        self._ctx.send(sender, SlotAnswer(message.op, message.slot, message.epoch, mine))

    # -- the log -----------------------------------------------------------------------------------------------------------

    def _on_append(self, sender: InstanceId, message: Message) -> None:
        assert isinstance(message, LogAppend)
        follower = self._followers.get(message.shard)
        known = self.knowledge.set_of(self.graph.shard_names[message.shard]).epoch
        if message.epoch > known:
            self._ctx.send(sender, AskTopology(self._ctx.generation))
        elif message.epoch < known and not mutants.on("old-epoch-log-taken"):
            self._ctx.send(sender, TopologyNews(self.knowledge.topology, self.knowledge.revision))
        elif follower is not None:
            follower.append(sender, message)

    def _on_log_ack(self, sender: InstanceId, message: Message) -> None:
        assert isinstance(message, LogAck)
        owner = self._owners.get(message.shard)
        if owner is not None and owner.epoch == message.epoch:
            owner.replication.acknowledged(sender, message.last)

    def _on_copy(self, sender: InstanceId, message: Message) -> None:
        assert isinstance(message, LogCopy)
        follower = self._followers.get(message.shard)
        if follower is not None:
            follower.copy_part(message)

    def _on_ask_copy(self, sender: InstanceId, message: Message) -> None:
        assert isinstance(message, AskCopy)
        owner = self._owners.get(self._shard_of.get(message.op, -1))
        if owner is None or owner.epoch != message.epoch:
            self._ctx.send(sender, TopologyNews(self.knowledge.topology, self.knowledge.revision))
        elif owner.halted < 0:
            owner.replication.copy_wanted(sender, message.known)

    # -- forwarded clients -------------------------------------------------------------------------------------------------

    def _on_forward(self, sender: InstanceId, message: Message) -> None:
        assert isinstance(message, ClientForward)
        owner = self._owners.get(message.shard)
        if owner is None or owner.halted >= 0:
            return
        held = owner.submit(sender, message)
        if held is not None:
            self._ctx.send(sender, ClientForwardHeld(message.shard, message.counter, held))

    def _on_forward_held(self, sender: InstanceId, message: Message) -> None:
        assert isinstance(message, ClientForwardHeld)
        self._gateway.held(sender, message)

    def _on_forward_answer(self, sender: InstanceId, message: Message) -> None:
        assert isinstance(message, ClientForwardAnswer)
        self._gateway.answer_came(message)

    def _released(self, waiter: InstanceId, counter: int, outcome: ReplyEntry | NotServed) -> None:
        if waiter == self.instance:
            self._gateway.answered(counter, outcome)
        else:
            self._ctx.send(waiter, answer_message(counter, outcome))

    # -- topology ----------------------------------------------------------------------------------------------------------

    def _on_heartbeat(self, sender: InstanceId, message: Message) -> None:
        assert isinstance(message, Heartbeat)
        if message.generation > self._ctx.generation:
            self._ctx.send(sender, AskTopology(self._ctx.generation))
        if message.durable:
            self._announced(Durable(message.durable))

    def _on_news(self, sender: InstanceId, message: Message) -> None:
        assert isinstance(message, TopologyNews)
        self._learn(TopologyLearnt(message.topology, message.revision))

    def _on_ask_topology(self, sender: InstanceId, message: Message) -> None:
        assert isinstance(message, AskTopology)
        if self._ctx.generation > message.generation:
            self._ctx.send(sender, TopologyNews(self.knowledge.topology, self.knowledge.revision))

    def _learn(self, event: TopologyLearnt) -> None:
        """A topology: if newer, change roles, drop what is orphan, hand everything to its present owners."""
        ctx, knowledge = self._ctx, self.knowledge
        if not knowledge.learn(event.topology, event.revision):
            return
        if self.instance in event.topology.revoked and not mutants.on("revoked-goes-on"):
            kept = self.kept_logs()
            self._stop("revoked", None if kept is None else self.graph.shard_names[min(kept.logs)])
            return
        for shard, name in enumerate(self.graph.shard_names):
            self._take_role(shard, knowledge.set_of(name))
            if self._stopped:
                return
        self._drop_kept()
        if self._stopped:
            return
        self._broadcast.own(self._owners)
        self._listen()
        self._waits.clear()
        for owner in self._owners.values():
            owner.purge()
        self._sinks.judge_again()
        ctx.out += self._outbox.owners_changed(ctx.now)
        self._gateway.topology_changed()

    def _take_role(self, shard: int, roles: ReplicaSet) -> None:
        """The role that the newest topology gives this instance in one shard."""
        me = self.instance
        owner, follower = self._owners.get(shard), self._followers.get(shard)
        if roles.primary == me:
            if owner is not None and owner.epoch == roles.epoch:
                owner.halted = -1
                owner.replication.roles_changed(roles)
            else:
                self._own(shard, roles)
        elif me in roles.in_sync:
            if follower is not None and follower.epoch == roles.epoch and follower.log is not None:
                follower.admitted()
                follower.owner, follower.frozen = roles.primary, -1
            else:
                self._follow(shard, roles)
        elif me in roles.joining:
            if follower is not None and follower.epoch == roles.epoch and follower.joining:
                follower.owner, follower.frozen = roles.primary, -1
            else:
                self._leave(shard)
                self._followers[shard] = ShardFollower(self._ctx, shard, roles.name, roles.epoch, roles.primary, None, joining=True)
        else:
            self._leave(shard)

    def _own(self, shard: int, roles: ReplicaSet) -> None:
        log = self._log_for(shard, roles)
        if log is None:
            self._stop(f"made primary of {roles.name} in epoch {roles.epoch} without a log that fits")
            return
        self._leave(shard)
        owner = self._owners[shard] = ShardOwner(self._ctx, shard, roles, log, self._outbox, self._waits, self._released, self._broadcast.add)
        if roles.epoch > 1:
            end = roles.end_of(roles.epoch - 1)
            self._ctx.out.append(NoteFailover(roles.name, self._ctx.generation, roles.epoch, log.last if end is None else end, self.instance))
        owner.take_over()

    def _follow(self, shard: int, roles: ReplicaSet) -> None:
        log = self._log_for(shard, roles)
        if log is None:
            self._stop(f"named in sync in {roles.name}, epoch {roles.epoch}, without a log that fits")
            return
        self._leave(shard)
        self._followers[shard] = ShardFollower(self._ctx, shard, roles.name, roles.epoch, roles.primary, log, joining=False)

    def _log_for(self, shard: int, roles: ReplicaSet) -> ShardLog | None:
        """The log this instance has for an epoch: the one it held, cut at the end of the epoch before; None if it does not fit."""
        held: ShardOwner | ShardFollower | None = self._owners.get(shard) or self._followers.get(shard)
        log = None if held is None else held.log
        if held is None and self._kept is not None:
            log = self._kept.logs.get(shard)
        spec, end = self.graph.data.frontend, roles.end_of(roles.epoch - 1)
        if log is not None and log.epoch == roles.epoch - 1 and end is not None and not (isinstance(held, ShardFollower) and held.joining):
            if mutants.on("longest-log-wins") and log.last >= end:
                log.epoch = roles.epoch
                return log
            if log.cut(end):
                log.epoch = roles.epoch
                return log
        if roles.primary == self.instance and roles.epoch == 1:
            return empty_log(shard, 1, 0, spec)
        if roles.primary == self.instance and roles.restarted_in == roles.epoch:
            return empty_log(shard, roles.epoch, end or 0, spec, roles.epoch * LOST_LOG_STRIDE)
        return None

    def _leave(self, shard: int) -> None:
        """This instance has no part in a shard any more, or a new one."""
        self._followers.pop(shard, None)
        if self._owners.pop(shard, None) is not None:
            self._outbox.complete([request for request in self._outbox.requests() if request.shard == shard])

    def _sending_epoch(self, request: RequestId) -> int | None:
        owner = self._owners.get(request.shard)
        return None if owner is None or owner.halted >= 0 else owner.epoch

    def _drop_kept(self) -> None:
        """Kept logs are of no use once the topology does not name the former id in their epoch; nor is who came back for their sake alone."""
        if self._kept is None:
            return
        for shard, log in list(self._kept.logs.items()):
            if not self._is_named(shard, log, self._kept.former):
                del self._kept.logs[shard]
        if self._kept.logs:
            return
        self._kept = None
        if not (self._owners or self._followers):
            self._stop("the logs it kept are of no use any more")

    def _is_over(self) -> bool:
        return self._stopped

    def _is_named(self, shard: int, log: ShardLog, holder: InstanceId) -> bool:
        roles = self.knowledge.set_of(self.graph.shard_names[shard])
        return roles.epoch == log.epoch and holder in roles.members

    def _stop(self, reason: str, keep: str | None = None) -> None:
        self._stopped = True
        self._ctx.out.append(Stop(reason, keep))

    # -- members and connections -------------------------------------------------------------------------------------------

    def _members_changed(self, event: MembersChanged) -> None:
        self._members = {member.instance: member for member in event.members}
        gone = [peer for peer in self._ctx.down if peer not in self._members]
        logs = [owner.log for owner in self._owners.values()]
        logs += [follower.log for follower in self._followers.values() if follower.log is not None]
        for log in logs:
            log.state.drop_gone(gone)
        roles = {instance for item in self.knowledge.topology.sets for instance in (*item.members, *item.joining)}
        for peer in [peer for peer in self._ctx.down if peer not in self._members and peer not in roles]:
            del self._ctx.down[peer]
        self._listen()

    def _listen(self) -> None:
        """Who is told of completions: registered operator instances and frontends, and whoever has a role."""
        found = {member.instance for member in self._members.values() if member.of == FRONTEND or member.of in self.graph.operators}
        topology = self.knowledge.topology
        for item in topology.sets:
            found.update(item.members)
            found.update(item.joining)
        found.update(slot.instance for table in topology.tables for slot in table.slots if slot.instance is not None)
        self._broadcast.listen(sorted(found.difference(topology.revoked)))

    def _peer_up(self, peer: InstanceId) -> None:
        self._ctx.down.pop(peer, None)
        self._ctx.out += self._outbox.resend_to(peer, self._ctx.now)
        self._gateway.peer_up(peer)
        for owner in self._owners.values():
            if owner.halted < 0:
                owner.replication.peer_up(peer)
        for follower in self._followers.values():
            if follower.owner == peer and follower.joining:
                follower.ask()
        if peer in self._broadcast.listeners and self._owners:
            self._broadcast.wanted(peer)

    def _propose(self) -> None:
        """The owner's own compare-and-swap: hand a shard over, admit a joiner of the ack set, or drop a member that is dead or does not receive."""
        knowledge = self._ctx.knowledge
        if self._proposing or knowledge.revision < 0 or self._ctx.now < self._propose_at:
            return
        self._ctx.wishing = False
        for owner in self._owners.values():
            changed = owner.hand_over(frozenset(self._members)) if self._handing_off else None
            if changed is None and owner.halted < 0:
                changed = owner.replication.wish(knowledge.topology)
            if changed is not None:
                self._proposing = True
                self._propose_at = self._ctx.now + limits.propose_retry_s
                self._ctx.out.append(Propose(knowledge.revision, changed))
                return

    def _drain(self) -> None:
        """No client waits here any more: hand the shards over; without one, or where nobody will ever come to take them, it is over."""
        others = self.graph.data.frontend.replicas > 1 or any(
            member.of == FRONTEND and member.instance != self.instance for member in self._members.values()
        )
        if not self._owners or not others:
            self._stop("drained")
        elif not self._handing_off:
            self._handing_off = True
            self._propose()

    # -- managers ----------------------------------------------------------------------------------------------------------

    def _on_probe(self, sender: InstanceId, message: Message) -> None:
        assert isinstance(message, Probe)
        roles = tuple(RoleReport(item.name, item.role, item.epoch, item.last, item.role != "joining") for item in self.shards())
        if self._kept is not None:
            names = self.graph.shard_names
            roles += tuple(RoleReport(names[shard], KEPT, log.epoch, log.last, False) for shard, log in self._kept.logs.items())
        self._ctx.send(sender, ProbeAnswer(message.nonce, Health.HEALTHY, self._ctx.generation, roles))

    def _on_freeze(self, sender: InstanceId, message: Message) -> None:
        """Take and commit nothing more of this epoch, until a higher generation is learnt; say how far the log goes."""
        assert isinstance(message, Freeze)
        ctx = self._ctx
        shard = self._shard_of.get(message.name)
        if shard is None or message.generation != ctx.generation or self.knowledge.set_of(message.name).epoch != message.epoch:
            why = f"no shard {message.name!r}" if shard is None else f"{self.instance} knows generation {ctx.generation}"
            ctx.send(sender, Refused(message.attempt, ctx.generation, message.name, why))
            return
        owner, follower = self._owners.get(shard), self._followers.get(shard)
        log: ShardLog | None = None
        if owner is not None:
            owner.halted, log = message.generation, owner.log
        elif follower is not None:
            follower.frozen = message.generation
            log = None if follower.joining else follower.log
        if log is None and self._kept is not None:
            log = self._kept.logs.get(shard)
        applied = None if log is None else log.last
        ctx.send(sender, FreezeAnswer(message.attempt, message.generation, message.name, message.epoch, applied))

    def _on_fence(self, sender: InstanceId, message: Message) -> None:
        assert isinstance(message, Fence)
        self._ctx.send(sender, Refused(message.attempt, self._ctx.generation, message.name, "a frontend has no state that depends on ends"))


def _logged_from(log: ShardLog, op: str) -> list[Token]:
    """Tokens from one operator that the log of a follower holds for open requests: in replies, and as inputs of internal requests."""
    found: list[Token] = []
    for item in log.state.open.values():
        if item.reply is not None:
            found += [token for token in item.reply.tokens if token.source == op]
        found += [token for token in item.fed.values() if token.source == op]
    for _, entry in log.tail():
        if isinstance(entry, ReplyEntry):
            found += [token for token in entry.tokens if token.source == op]
    return found
