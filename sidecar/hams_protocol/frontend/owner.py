"""The owner of a shard: logs, replicates, injects, waits for sinks, replies, completes (protocol.md, section
5).

The order that makes it safe, for every request: the entry is committed, THEN injected; all it shows is
durable, THEN the reply is logged; the reply is committed, THEN released; every sink token is durable and the
reply committed, THEN the request is complete. So an owner that was deposed can neither inject nor reply: its
followers are frozen, nothing it appends is ever committed.

With `reply_entry_early` the reply is logged before that is durable, and released once it is durable AND
committed. If it becomes orphan instead, its entry is void, and another one may follow (ADR 0040).

Invariants, checked after every step: injected => committed; released => committed; the ack set contains the
in-sync set.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice

from hams_protocol import limits
from hams_protocol.context import InvariantError
from hams_protocol.deps import Dep, Deps, merge
from hams_protocol.due import FOREVER, Due, Timed
from hams_protocol.effects import NoteComplete, NoteLog, NoteReply, NotServed, Send
from hams_protocol.frontend.broadcast import CompletionBroadcast
from hams_protocol.frontend.context import FrontendContext
from hams_protocol.frontend.live import REPLY, Live
from hams_protocol.frontend.log import ShardLog
from hams_protocol.frontend.promises import Promises
from hams_protocol.frontend.replication import Replication
from hams_protocol.frontend.reply import decide
from hams_protocol.frontend.waits import Waits
from hams_protocol.graph import CLOSE, FEEDBACK, FRONTEND, AdmissionPolicy
from hams_protocol.ids import InstanceId, RequestId
from hams_protocol.keys import known_as, own_part
from hams_protocol.knowledge import Status
from hams_protocol.messages import (
    LATE,
    Admit,
    ClientForward,
    Deliver,
    Determinant,
    DoneEntry,
    Kind,
    LogEntry,
    Meta,
    ReplyEntry,
    Ticket,
    Token,
)
from hams_protocol.outbox import Outbox
from hams_protocol.replica.freeze import Frozen
from hams_protocol.topology import ReplicaSet, Topology, hand_over

COMPLETE = -1
"""`Live.left` once the DoneEntry is in the log, or about to be."""

Released = Callable[[InstanceId, int, ReplyEntry | NotServed], None]
"""Hands an outcome to the frontend and counter that wait for it."""


class ShardOwner(Timed):
    """One shard, owned by this instance in one epoch."""

    def __init__(
        self,
        ctx: FrontendContext,
        shard: int,
        roles: ReplicaSet,
        log: ShardLog,
        outbox: Outbox,
        waits: Waits,
        released: Released,
        broadcast: CompletionBroadcast,
    ) -> None:
        super().__init__(ctx)
        self._ctx = ctx
        self._spec = ctx.graph.data.frontend
        self._outbox = outbox
        self._waits = waits
        self._released = released
        self._broadcast = broadcast
        self.shard = shard
        self.name = roles.name
        self.epoch = roles.epoch
        self.log = log
        self.frozen = Frozen(ctx, ctx.knowledge, ctx.proposals)
        self.replication = Replication(ctx, shard, roles, log, self.frozen)
        self._handed_at = -1
        self._handed_end = -1
        self.closing = False
        self.live: dict[int, Live] = {}
        self._pending_keys: dict[str, int] = {}
        self._pending_tickets: dict[tuple[InstanceId, int], int] = {}
        self._next_n = log.state.next_n
        self.open_count = 0
        self.open_bytes = 0
        self._injected = 0
        self._answered = 0
        self._taking_over = False
        self._complete: list[RequestId] = []
        self._done_at = FOREVER
        self._refused: OrderedDict[tuple[InstanceId, int], NotServed] = OrderedDict()
        self._promises: Promises | None = None
        if self._spec.admission is AdmissionPolicy.PROMISE:
            self._promises = Promises(self._spec.app_parameter)

    # -- takeover --------------------------------------------------------------------------------------------

    def take_over(self) -> None:
        """Everything in the log is committed (its end is in every in-sync log): inject again what is not
        complete."""
        ctx, state = self._ctx, self.log.state
        ctx.knowledge.completed.below(self.shard, state.completed.watermark(self.shard))
        ctx.knowledge.completed.add(RequestId(self.shard, n) for n in state.completed.sparse(self.shard))
        ctx.knowledge.requests_completed()
        for admitted in list(state.open.values()):
            live = self._track(admitted.admit, 0)
            if admitted.reply is not None and not admitted.is_void:
                self._recall_reply(live, admitted.reply, 0)
                # Of what was logged early it is not known whether it was released.
                live.recorded = not (ctx.mode.reply_entry_early or admitted.reply.deps)
            self._prefill(live, FEEDBACK, admitted.fed.values())
        for index, entry in self.log.tail():
            self._recall(index, entry)
        self._count_unresolved()
        for live in self.live.values():
            self._reply_counts(live)
        self._taking_over = True
        self.pump()
        self._taking_over = False
        for live in list(self.live.values()):
            if live.index <= self.log.committed and not live.injected:
                self._inject(live)
        for live in list(self.live.values()):
            self._progress(live)

    def _recall(self, index: int, entry: LogEntry) -> None:
        """An entry of the tail: known, and to be committed and noted when the ack set holds it."""
        if isinstance(entry, Admit):
            self._next_n = entry.request.n + 1
            self._track(entry, index)
            self._pend(entry)
            if entry.origin is not None and entry.origin.request.n in self.live:
                self._prefill(self.live[entry.origin.request.n], FEEDBACK, (entry.origin,))
            return
        live = self.live.get(entry.request.n)
        if live is not None and isinstance(entry, ReplyEntry):
            self._recall_reply(live, entry, index)
        elif live is not None:  # so the reply before it counts
            live.is_settled = True
            live.durable = bytearray(1 if token is not None else 0 for token in live.tokens)
            live.left = COMPLETE

    def _recall_reply(self, live: Live, entry: ReplyEntry, index: int) -> None:
        """The newest reply in the log, unless its entry is void. What is pending of it is held, as if it had
        just come: a slot's new owner may ask for it."""
        if entry.deps and self._ctx.knowledge.status(entry.deps) is Status.ORPHAN:
            return
        live.replied, live.entry, live.reply_index = True, entry, index
        live.is_settled = not entry.deps
        self._prefill(live, FRONTEND, entry.tokens)

    def _prefill(self, live: Live, target: str, tokens: Iterable[Token]) -> None:
        """What the log has a token of was durable, unless it says what is pending of it; a reply's was not,
        where states are replayed, and comes again."""
        if target == FRONTEND and self._ctx.mode.replays:
            return
        for token in tokens:
            number = self._ctx.plan.index.get((token.source, target, token.lane))
            if number is not None and not live.durable[number]:
                live.tokens[number] = token
                if not token.deps:
                    live.durable[number] = 1
                    live.left -= 1

    def _pend(self, entry: Admit) -> None:
        if entry.key is not None:
            self._pending_keys[entry.key] = entry.request.n
        elif entry.ticket is not None:
            self._pending_tickets[entry.ticket.instance, entry.ticket.counter] = entry.request.n

    def _count_unresolved(self) -> None:
        feedback = [number for number, target in enumerate(self._ctx.plan.targets) if target == FEEDBACK]
        for live in self.live.values():
            live.unresolved = 0
        for live in self.live.values():
            if live.admit.root is not None:
                live.root = self.live.get(live.admit.root.n)
            if live.root is not None and live.left != COMPLETE:
                live.root.unresolved += sum(not live.durable[number] for number in feedback)

    def _track(self, admit: Admit, index: int) -> Live:
        live = self.live[admit.request.n] = Live(self._ctx.plan, admit, index, self._ctx.now)
        if not live.internal:
            self.open_count += 1
            self.open_bytes += live.nbytes
        return live

    # -- admission -------------------------------------------------------------------------------------------

    def has_room(self) -> bool:
        """Whether a further small request would be admitted."""
        return self.open_count < self._spec.max_in_flight and self.open_bytes < self._spec.max_in_flight_bytes

    def submit(self, sender: InstanceId, ask: ClientForward) -> bool | None:
        """A request accepted by frontend `sender`. True: it is committed here; False: it was only asked for
        and is not here; None: wait."""
        n = self._find(sender, ask)
        if n is None:
            refusal = self._refused.get((sender, ask.counter))
            if refusal is not None:
                self._released(sender, ask.counter, refusal)
                return None
            if ask.key is None and ask.counter < self.log.state.tickets.settled(sender):
                return None
            if ask.payload is None:
                return False
            if self.closing and sender != self._ctx.instance:
                return None  # its frontend asks again, whoever owns the shard then
            self._admit(sender, ask)
            return None
        live = self.live.get(n)
        admit = live.admit if live is not None else self.log.state.admitted(n)
        differs = admit is not None and admit.digest != ask.digest
        if differs and ask.key is not None:
            self._released(
                sender,
                ask.counter,
                NotServed(409, f"idempotency key {own_part(ask.key)!r} was used with another payload"),
            )
            return None
        reply = self.log.state.answered(RequestId(self.shard, n))
        if reply is not None and (live is None or live.recorded):
            self._released(sender, ask.counter, reply)
            return None
        if live is None:
            self._released(
                sender, ask.counter, NotServed(410, "the reply to this request is not kept any more")
            )
            return None
        if len(live.waiters) >= limits.waiters_unchecked_max:
            live.leave(sender, ask.settled)
        live.waiters[sender, ask.counter] = None
        return live.index <= self.log.committed or None

    def _find(self, sender: InstanceId, ask: ClientForward) -> int | None:
        state = self.log.state
        if ask.key is not None:
            for name in known_as(ask.key):
                n = self._pending_keys.get(name)
                n = state.keys.get(name) if n is None else n
                if n is not None:
                    return n
            return None
        n = self._pending_tickets.get((sender, ask.counter))
        return state.tickets.find(sender, ask.counter) if n is None else n

    def _admit(self, sender: InstanceId, ask: ClientForward) -> None:
        spec, payload = self._spec, ask.payload
        nbytes = 0 if payload is None else payload.nbytes
        if ask.key is not None and any(name in self.log.state.expired for name in known_as(ask.key)):
            self._released(
                sender,
                ask.counter,
                NotServed(410, f"idempotency key {own_part(ask.key)!r} is older than the replies kept"),
            )
            return
        full = self.open_count >= spec.max_in_flight or self.open_bytes + nbytes > spec.max_in_flight_bytes
        if full or self._ctx.knowledge.completed.sparse_count(self.shard) >= limits.completion_sparse_max:
            message = f"{self.open_count} requests ({self.open_bytes} bytes) of shard {self.shard} are open"
            self._refuse(sender, ask, NotServed(429, message, limits.retry_after_s))
            return
        chance = math.nan
        if self._promises is not None:
            chance, refusal = self._promises.judge(ask.meta, self.open_count, self._ctx.now, self._waiting())
            if refusal is not None:
                self._refuse(sender, ask, refusal)
                return
        request = RequestId(self.shard, self._next_n)
        ticket = None if ask.key is not None else Ticket(sender, ask.counter, ask.settled)
        entry = Admit(request, ask.key, ask.digest, ask.meta, None, ask.outputs, payload, ask.present, ticket)
        ahead = self.open_count
        live = self._append_admit(entry)
        live.ahead, live.chance = ahead, chance
        live.waiters[sender, ask.counter] = None
        self._pend(entry)

    def _waiting(self) -> list[tuple[Meta, float]]:
        """Requests without a reply that have waited longest, and for how many seconds. In an outage nothing
        else tells how long requests take."""
        oldest = islice(self.live.values(), limits.promise_waiting_max)
        waiting = [live for live in oldest if not (live.replied and live.is_settled)]
        return [(live.admit.meta, self._ctx.now - live.since) for live in waiting]

    def _refuse(self, sender: InstanceId, ask: ClientForward, refusal: NotServed) -> None:
        """Its client is told that nothing was begun: an ask that was sent again must not begin it after
        that."""
        self._refused[sender, ask.counter] = refusal
        if len(self._refused) > limits.refusals_remembered_max:
            self._refused.popitem(last=False)
        self._released(sender, ask.counter, refusal)

    def _append_admit(self, entry: Admit) -> Live:
        self._next_n += 1
        self._append_done()
        live = self._track(entry, self.log.append(entry))
        return live

    # -- commitment ------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send followers what is new, commit what the ack set holds, and do what commitment allows, until
        nothing moves."""
        if self.frozen.stands or self.log.committed == self.log.last:
            return
        moved = False
        while True:
            self.replication.feed()
            index = self.replication.committable()
            if index <= self.log.committed:
                break
            moved = True
            for _, entry in self.log.commit(index):
                self._committed(entry)
        if moved:
            self.replication.trim()
            self.replication.committed_news()

    def _committed(self, entry: LogEntry) -> None:
        if isinstance(entry, Admit):
            self._admitted(entry)
        elif isinstance(entry, ReplyEntry):
            self._reply_committed(entry)
        else:
            self._done(entry)

    def _admitted(self, entry: Admit) -> None:
        if entry.key is not None:
            self._pending_keys.pop(entry.key, None)
        elif entry.ticket is not None:
            self._pending_tickets.pop((entry.ticket.instance, entry.ticket.counter), None)
        live = self.live[entry.request.n]
        if not live.injected:
            self._note_log(entry)
            if not self._taking_over:
                self._inject(live)

    def _note_log(self, entry: Admit) -> None:
        source = None if entry.origin is None else entry.origin.value_id
        self._ctx.out.append(
            NoteLog(
                self._ctx.generation,
                self.shard,
                self.epoch,
                entry.request,
                entry.key,
                entry.digest,
                source,
            )
        )

    def _inject(self, live: Live) -> None:
        ctx, admit = self._ctx, live.admit
        if live.left == COMPLETE:
            return  # others may know that it is complete: they would not tell what they had of it
        if live.index > self.log.committed:
            raise InvariantError(f"{admit.request} would be injected before it is committed")
        live.injected = True
        self._injected = max(self._injected, live.index)
        request, origin = admit.request, admit.origin
        if origin is not None:
            ctx.knowledge.deadlines.feeds(origin.request, request)
        meta = Meta(admit.meta.parameters, admit.meta.trace, self._left(live), admit.meta.hops)
        route = ctx.plan.routed(admit.present)
        payload = admit.payload if origin is None else origin.payload
        renamed = () if origin is None else ctx.plan.renames[origin.source]
        name = str(request)
        value = Token(request, (), FRONTEND, Kind.VALUE, name, (), route, meta, (), None, payload, renamed)
        ctx.knowledge.deadlines.learn(request, meta.budget_s, ctx.now)
        skip: Token | None = None
        for entry in ctx.plan.entries:
            token = value
            if entry.target not in route:
                skip = skip or Token(request, (), FRONTEND, Kind.SKIP, f"{name}!", (), route, meta)
                token = skip
            if ctx.mode.retains:
                self._outbox.put(entry.target, token)
            else:
                owner = ctx.knowledge.owner(entry.target, request)[0]
                if owner is not None:
                    ctx.out.append(Send(owner, Deliver(entry.target, self.epoch, token)))

    def _left(self, live: Live) -> float:
        """What is left of a request's budget, 0 if it has none. A new owner counts from its takeover: the log
        does not tell when an entry came. But others may have told it of an earlier end."""
        admit, now = live.admit, self._ctx.now
        if admit.meta.budget_s <= 0:
            return 0.0
        left_s = min(
            admit.meta.budget_s - (now - live.since), self._ctx.knowledge.deadlines.due(admit.request) - now
        )
        return max(limits.hop_budget_min_s, left_s)

    # -- sinks -----------------------------------------------------------------------------------------------

    def arrived(self, live: Live, number: int, token: Token) -> None:
        """A sink token, neither orphan nor unknown, for an edge that has none."""
        live.tokens[number] = token
        self.settle(live, number, token)
        if self._ctx.mode.replays or self._ctx.mode.reply_entry_early:
            self._progress(live)

    def risen(self, live: Live, number: int, item: Token | ReplyEntry) -> None:
        """What it waited for has come, or may have."""
        if isinstance(item, Token):
            self.settle(live, number, item)
        else:
            self._settle_reply(live, item)

    def settle(self, live: Live, number: int, token: Token) -> None:
        """See whether a sink token is durable by now; if not, let it wait for its first pending
        dependency."""
        if live.tokens[number] is not token or live.durable[number]:
            return
        pending = self._first_pending(token.deps)
        if pending is not None:
            status = self._ctx.knowledge.status_of(pending)
            if status is Status.ORPHAN:
                live.tokens[number] = None
                return
            self._waits.add(pending, live, number, token)
            return
        live.durable[number] = 1
        live.left -= 1
        if self._ctx.plan.targets[number] == FEEDBACK:
            self._feedback(live, token)
        self._progress(live)

    def _first_pending(self, deps: Deps) -> Dep | None:
        if not self._ctx.mode.waits_for_durable:
            return None
        knowledge = self._ctx.knowledge
        for dep in deps:
            if knowledge.status_of(dep) is not Status.DURABLE:
                return dep
        return None

    def purge(self) -> None:
        """New ends: drop what has become orphan, and judge anew what waits. Of a reply that shows several
        tokens none is looked at before all are judged."""
        for live in list(self.live.values()):
            self._drop_orphans(live)
        for live in list(self.live.values()):
            for number, token in enumerate(live.tokens):
                if token is not None and not live.durable[number]:
                    self.settle(live, number, token)
            if live.entry is not None and not live.recorded:
                self._settle_reply(live, live.entry)

    def _drop_orphans(self, live: Live) -> None:
        knowledge = self._ctx.knowledge
        for number, token in enumerate(live.tokens):
            if token is None or live.durable[number]:
                continue
            if knowledge.status(token.deps) >= Status.UNKNOWN:
                live.tokens[number] = None

    def _feedback(self, live: Live, token: Token) -> None:
        """A durable token of a feedback edge: a value becomes an internal request, logged before its origin
        completes."""
        plan, root = self._ctx.plan, live.root
        if root is not None:
            root.unresolved -= 1
        if token.kind is Kind.VALUE:
            hops = live.admit.meta.hops + 1
            if hops > plan.max_hops[token.source]:
                if root is not None:
                    root.overflow = root.overflow or token.source
            else:
                self._admit_internal(live, token, hops)
        if root is not None and root is not live:
            self._progress(root)

    def _admit_internal(self, live: Live, token: Token, hops: int) -> None:
        origin = _without_deps(token)
        meta = live.admit.meta
        request = RequestId(self.shard, self._next_n)
        present = tuple(name for name, _ in self._ctx.plan.renames[token.source])
        root = live.admit.request if live.admit.root is None else live.admit.root
        entry = Admit(
            request,
            None,
            "",
            Meta(meta.parameters, meta.trace, self._left(live), hops),
            origin,
            None,
            None,
            present,
            None,
            root,
        )
        child = self._append_admit(entry)
        child.root = live.root
        if live.root is not None:
            live.root.unresolved += self._ctx.plan.feedback_edges
            live.root.descendants.append(request)

    def _progress(self, live: Live) -> None:
        """Reply if the reply is decided, complete if nothing is missing."""
        if self.live.get(live.admit.request.n) is not live:
            return
        if not live.replied:
            self._try_reply(live)
        if not live.is_settled:
            return
        if live.replied and live.left == 0:
            live.left = COMPLETE
            if live.entry is not None and live.entry.deps and self.has_room():
                self._complete.append(live.admit.request)
                self._done_at = min(self._done_at, self._ctx.now + limits.completion_delay_s)
            else:
                self._append_done()
                self.log.append(DoneEntry(live.admit.request))

    def _append_done(self) -> None:
        """Nobody waits for a DoneEntry. One whose reply's entry has gone ahead goes along with the next
        entry, or after a while."""
        complete, self._complete = self._complete, []
        self._done_at = FOREVER
        for request in complete:
            self.log.append(DoneEntry(request))

    def _try_reply(self, live: Live) -> None:
        mode, knowledge = self._ctx.mode, self._ctx.knowledge
        decided = decide(self._ctx.plan, live, mode.replays or mode.reply_entry_early)
        if decided is None:
            return
        if self._ctx.mode.waits_for_durable:
            for token in decided.tokens:
                if token.deps and knowledge.status(token.deps) is Status.ORPHAN:
                    raise InvariantError(f"the reply of {live.admit.request} would show an orphan")
        request, tokens = live.admit.request, decided.tokens
        live.replied = True
        if mode.reply_entry_early:
            deps = knowledge.prune(merge([token.deps for token in decided.seen]))
            live.entry = ReplyEntry(
                request, tuple([knowledge.pruned(token) for token in tokens]), decided.error, deps
            )
            live.is_settled = not deps
        else:
            live.entry = ReplyEntry(request, tuple(_without_deps(token) for token in tokens), decided.error)
        entry = live.entry
        self._append_done()
        live.reply_index = self.log.append(entry)
        if not live.is_settled:
            self._settle_reply(live, entry)

    def _settle_reply(self, live: Live, entry: ReplyEntry) -> None:
        """See whether what a reply depends on is durable by now. If it is, the reply counts as soon as its
        entry is committed; if it never will be, the entry is void."""
        if live.entry is not entry or live.recorded:
            return
        pending = None if live.is_settled else self._first_pending(entry.deps)
        if pending is None:
            live.is_settled = True
            self._reply_counts(live)
        elif self._ctx.knowledge.status(entry.deps) is Status.ORPHAN:
            live.replied, live.entry, live.is_settled = False, None, True
            self.log.state.void(entry)
        else:
            self._waits.add(pending, live, REPLY, entry)
            return
        self._progress(live)

    # -- reply and completion --------------------------------------------------------------------------------

    def _reply_committed(self, entry: ReplyEntry) -> None:
        live = self.live.get(entry.request.n)
        if live is None:
            return
        if live.entry is entry:
            self._reply_counts(live)
        else:
            self.log.state.void(entry)

    def _reply_counts(self, live: Live) -> None:
        """Release a reply whose entry is committed and depends on nothing that is pending; once."""
        entry = live.entry
        if entry is None or live.recorded or not live.is_settled or live.reply_index > self.log.committed:
            return
        if self.frozen.stands or not self.replication.may_release:
            return  # whatever ends that has everything judged anew
        live.recorded = True
        if entry.deps:
            entry = ReplyEntry(
                entry.request, tuple(_without_deps(item) for item in entry.tokens), entry.error
            )
            self.log.state.settle(entry)
        self._note_reply(entry)
        if entry.error is None:  # an error ends a path early, so its age says nothing of the path
            self._broadcast.replied((entry.request, *live.descendants))
        self._learn(live, entry)
        self._release(live, entry)

    def _note_reply(self, entry: ReplyEntry) -> None:
        values = tuple(sorted(token.value_id for token in entry.tokens))
        self._ctx.out.append(
            NoteReply(self._ctx.generation, self.shard, self.epoch, entry.request, values, entry.tokens)
        )

    def _learn(self, live: Live, entry: ReplyEntry) -> None:
        """What a reply says of how long requests take, and whether a promise was kept."""
        promises, meta, now = self._promises, live.admit.meta, self._ctx.now
        if promises is None or live.ahead < 0:
            return
        took_s = now - live.since
        if entry.error is None:
            promises.answered(meta, took_s, live.ahead, now)
            self._ctx.promises.settle(live.chance, took_s <= meta.budget_s, live.since, now)
        elif entry.error.status == LATE:
            promises.shed(meta, took_s, live.ahead, now)
            self._ctx.promises.settle(live.chance, False, live.since, now)

    def _release(self, live: Live, entry: ReplyEntry) -> None:
        self._answered = max(self._answered, live.reply_index)
        for sender, counter in live.waiters:
            self._released(sender, counter, entry)
        live.waiters.clear()

    def _done(self, entry: DoneEntry) -> None:
        request = entry.request
        live = self.live.pop(request.n, None)
        if live is not None:
            live.root = None  # that may be itself, and a cycle would stay until garbage is collected
            if not live.internal:
                self.open_count -= 1
                self.open_bytes -= live.nbytes
        if live is None or not live.given_up:
            self._ctx.out.append(NoteComplete(request))
        self._ctx.knowledge.completed.add_one(request)
        self._outbox.complete((request,))
        self._broadcast.add(request)

    # -- what others ask -------------------------------------------------------------------------------------

    def held_from(self, source: str) -> list[Token]:
        """Sink tokens of open requests that came from one operator; a First's close says nothing of its value
        or route."""
        tokens: list[Token] = []
        for live in self.live.values():
            for (_, target, _), token in zip(self._ctx.plan.sinks, live.tokens, strict=True):
                if token is not None and token.source == source and target != CLOSE:
                    tokens.append(token)
        return tokens

    def determinants(self) -> list[Determinant]:
        """What the replies of open requests stem from: others may know nothing of that any more."""
        replies = [item.reply for item in self.log.state.open.values() if item.reply is not None]
        replies += [entry for _, entry in self.log.tail() if isinstance(entry, ReplyEntry)]
        return [made for reply in replies for token in reply.tokens for made in token.determinants]

    # -- planned handoff -------------------------------------------------------------------------------------

    @property
    def in_doubt(self) -> bool:
        """This owner has proposed to hand the shard over, in the newest generation it knows: that may be
        committed, or not."""
        return 0 <= self.frozen.generation == self._handed_at

    def hand_over(self) -> Topology | None:
        """The topology in which a follower that holds the whole log owns the shard; None while there is none,
        or entries are under way.

        While somebody could have it, nothing that other frontends forward is admitted: under load the log's
        tail would never be committed at once. From the proposal on nothing is sent or committed until a
        higher generation is known: the end is what was this log's last entry. A proposal that came to nothing
        is made again with the same end; what was appended meanwhile nobody else has seen.
        """
        ctx, log, again = self._ctx, self.log, self.in_doubt
        if not again:
            if self.frozen.stands:
                return None
            self._append_done()
            self.closing = self.replication.successor() is not None
            if log.committed < log.last:
                return None
        end = self._handed_end if again else log.last
        successor = self.replication.successor()
        if successor is None:
            return None
        changed = hand_over(ctx.knowledge.topology, self.name, ctx.instance, self.epoch, successor, end)
        if changed is not None:
            self.frozen.hold(ctx.generation)
            self._handed_at = ctx.generation
            self._handed_end = end
        return changed

    # -- time ------------------------------------------------------------------------------------------------

    def dues(self) -> list[Due]:
        """What its followers wait for; in a mode without retention, requests that can no longer complete.
        Changes of the set are proposed for all shards of the frontend, one at a time."""
        if self.frozen.stands:
            return self.frozen.dues()
        dues = [*self.replication.dues(), (self._done_at, self._append_done)]
        if not self._ctx.mode.retains and self.live:
            dues.append((self._given_up_at(next(iter(self.live.values()))), self._give_up))
        return dues

    def _given_up_at(self, live: Live) -> float:
        return live.since + 2 * self._spec.request_timeout_s

    def _give_up(self) -> None:
        for live in list(self.live.values()):
            if self._ctx.now < self._given_up_at(live):
                break
            live.given_up = True
            self._ctx.promises.settle(live.chance, False, live.since, self._ctx.now)
            self.log.append(DoneEntry(live.admit.request))

    def check(self) -> None:
        """The invariants of this owner."""
        if self._injected > self.log.committed or self._answered > self.log.committed:
            raise InvariantError(
                f"shard {self.shard}: injected or released up to {max(self._injected, self._answered)}, "
                f"committed {self.log.committed}"
            )
        self.replication.followers.check(self.name)


def _without_deps(token: Token) -> Token:
    """A durable token without its dependencies: durable is for ever."""
    if not token.deps:
        return token
    return Token(
        token.request,
        token.lane,
        token.source,
        token.kind,
        token.value_id,
        (),
        token.route,
        token.meta,
        token.fan,
        token.error,
        token.payload,
        token.renamed,
        token.determinants,
    )
