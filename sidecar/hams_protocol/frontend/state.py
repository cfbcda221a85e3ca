"""What the committed part of a shard's log amounts to: open requests, the key table, kept replies,
completions.

Purpose: every holder of the log derives the same answers from it, so a key gets its one reply from any owner,
before or after a failover. Invariant: the state depends on the committed entries alone, in their order; it
never looks at a clock, a member list or an owner's volatile records, but for `drop_instance`, which forgets
what nobody will ask for again.
"""

import hashlib
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable

from hams_protocol import limits
from hams_protocol.graph import FrontendSpec
from hams_protocol.ids import InstanceId, Lane, RequestId
from hams_protocol.knowledge import CompletionSet, Knowledge, Status
from hams_protocol.messages import (
    Admit,
    DoneEntry,
    Kind,
    LogEntry,
    Meta,
    Payload,
    ReplyEntry,
    Ticket,
    Token,
)

NO_META = Meta()
"""What was handed on to models is of no use to a complete request."""


class OpenRequest:
    """A request that is logged and not complete. `fed` are the feedback tokens that were logged as internal
    requests, by (lane, operator).

    `reply` counts once it depends on nothing any more. `is_void`: it never will, for an end has cut off what
    it depends on. Should its owner have judged otherwise, the DoneEntry says so.
    """

    __slots__ = ("admit", "fed", "is_void", "reply")

    def __init__(self, admit: Admit) -> None:
        self.admit = admit
        self.reply: ReplyEntry | None = None
        self.is_void = False
        self.fed: dict[tuple[Lane, str], Token] = {}


class StoredReply:
    """The reply of a complete request that may still be asked for.

    There are many of them, so each keeps what an answer, a key or a joiner needs and nothing twice; the
    entries are made anew when asked for. Nearly all replies are one value on no lane: that one lies here by
    itself, everything else in `_rest`. `names`: operators' names by themselves, so that all replies share
    them.
    """

    __slots__ = ("_digest", "_payload", "_rest", "_source", "_value_id", "key", "n", "ticket")

    def __init__(self, admit: Admit, reply: ReplyEntry, names: dict[str, str]) -> None:
        self.n = admit.request.n
        self.key = admit.key
        self.ticket = admit.ticket
        self._digest = admit.digest
        self._source = ""
        self._value_id = ""
        self._payload: Payload | None = None
        self._rest: ReplyEntry | None = None
        tokens = reply.tokens
        if len(tokens) == 1 and reply.error is None and tokens[0].kind is Kind.VALUE and not tokens[0].lane:
            self._source = names.setdefault(tokens[0].source, tokens[0].source)
            self._value_id = tokens[0].value_id
            self._payload = tokens[0].payload
        else:
            self._rest = ReplyEntry(
                admit.request, tuple([_without_deps(token, names) for token in tokens]), reply.error
            )

    @property
    def nbytes(self) -> int:
        """Bytes of its payloads."""
        if self._rest is None:
            return 0 if self._payload is None else self._payload.nbytes
        return sum([0 if token.payload is None else token.payload.nbytes for token in self._rest.tokens])

    def admit(self, shard: int) -> Admit:
        """The entry by which the request came in, without its payload."""
        return Admit(RequestId(shard, self.n), self.key, self._digest, NO_META, ticket=self.ticket)

    def reply(self, shard: int) -> ReplyEntry:
        """Its reply."""
        if self._rest is not None:
            return self._rest
        request = RequestId(shard, self.n)
        token = Token(
            request, (), self._source, Kind.VALUE, self._value_id, (), (), NO_META, payload=self._payload
        )
        return ReplyEntry(request, (token,), None)


def _without_deps(token: Token, names: dict[str, str]) -> Token:
    source = names.setdefault(token.source, token.source)
    return Token(
        token.request,
        token.lane,
        source,
        token.kind,
        token.value_id,
        (),
        (),
        NO_META,
        error=token.error,
        payload=token.payload,
    )


class ReplyPool:
    """Complete requests' replies in the order of their completion, bounded in number and bytes."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._replies: dict[int, StoredReply] = {}
        self._order: deque[int] = deque()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._replies)

    def get(self, n: int) -> StoredReply | None:
        """The kept reply of request `n`."""
        return self._replies.get(n)

    def put(self, stored: StoredReply) -> list[StoredReply]:
        """Keep a reply; those that had to go for it, oldest first (possibly itself)."""
        replies, order = self._replies, self._order
        replies[stored.n] = stored
        order.append(stored.n)
        self.nbytes += stored.nbytes
        gone: list[StoredReply] = []
        while len(replies) > self._count_max or self.nbytes > self._bytes_max:
            old = replies.pop(order.popleft(), None)
            if old is not None:
                self.nbytes -= old.nbytes
                gone.append(old)
        if len(order) > 2 * len(replies) + limits.order_slack_items:
            self._order = deque([n for n in order if n in replies])
        return gone

    def drop(self, n: int) -> None:
        """Nobody will ask for the reply of `n` again."""
        stored = self._replies.pop(n, None)
        if stored is not None:
            self.nbytes -= stored.nbytes

    def values(self) -> list[StoredReply]:
        """All kept replies, oldest first."""
        return list(self._replies.values())


class ExpiredKeys:
    """Hashes of keys whose replies are no longer kept, bounded, newest first to stay.

    There may be many for each shard, so they lie in arrays, in a third of what Python integers in a set and a
    queue take: `_ring`, in their order, the oldest at `_oldest` once it is full, and `_buckets`, to find one.
    """

    def __init__(self) -> None:
        self._ring = array("Q")
        self._oldest = 0
        self._buckets: dict[int, array[int]] = {}

    def __contains__(self, key: str) -> bool:
        return bool(self._buckets) and self._known(key_hash(key))

    def _known(self, item: int) -> bool:
        bucket = self._buckets.get(item % limits.key_hash_buckets)
        return bucket is not None and item in bucket

    def add(self, key: str) -> None:
        """Remember an expired key."""
        self.restore((key_hash(key),))

    def restore(self, hashes: Iterable[int]) -> None:
        """Remember hashes, oldest first."""
        for item in hashes:
            if not self._known(item):
                self._remember(item)

    def _remember(self, item: int) -> None:
        ring = self._ring
        if len(ring) < limits.keys_expired_max:
            ring.append(item)
        else:
            gone, ring[self._oldest] = ring[self._oldest], item
            self._oldest = (self._oldest + 1) % len(ring)
            self._buckets[gone % limits.key_hash_buckets].remove(gone)
        self._buckets.setdefault(item % limits.key_hash_buckets, array("Q")).append(item)

    def hashes(self) -> tuple[int, ...]:
        """All hashes, oldest first."""
        return (*self._ring[self._oldest :], *self._ring[: self._oldest])


def key_hash(key: str) -> int:
    """A stable hash of an idempotency key: the same in every process."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=limits.key_hash_bytes).digest())


class TicketTable:
    """Requests without a key, by the frontend that accepted them and its counter, until their client has its
    answer."""

    def __init__(self) -> None:
        self._tickets: dict[InstanceId, dict[int, int]] = {}
        self._settled: OrderedDict[InstanceId, int] = OrderedDict()

    def find(self, instance: InstanceId, counter: int) -> int | None:
        """The request of a ticket that is not settled."""
        tickets = self._tickets.get(instance)
        return None if tickets is None else tickets.get(counter)

    def settled(self, instance: InstanceId) -> int:
        """Tickets of `instance` below this number are settled: refused for ever."""
        return self._settled.get(instance, 0)

    def put(self, instance: InstanceId, counter: int, n: int) -> None:
        """Ticket `counter` of `instance` is request `n`."""
        self._tickets.setdefault(instance, {})[counter] = n

    def pop(self, instance: InstanceId, counter: int) -> None:
        """Forget one ticket."""
        tickets = self._tickets.get(instance)
        if tickets is not None and tickets.pop(counter, None) is not None and not tickets:
            del self._tickets[instance]

    def settle(self, instance: InstanceId, below: int) -> list[int]:
        """Nobody waits for tickets of `instance` below `below`; the requests that had them."""
        held = self._settled.get(instance, 0)
        if below <= held:
            return []
        self._settled[instance] = below
        self._settled.move_to_end(instance)
        if len(self._settled) > limits.forwarders_max:
            self._settled.popitem(last=False)
        tickets = self._tickets.get(instance)
        if tickets is None:
            return []
        counters = (
            [item for item in tickets if item < below]
            if below - held > len(tickets)
            else [item for item in range(held, below) if item in tickets]
        )
        gone = [tickets.pop(counter) for counter in counters]
        if not tickets:
            del self._tickets[instance]
        return gone

    def drop_instance(self, instance: InstanceId) -> list[int]:
        """`instance` is gone for good: its tickets are settled; the requests that had them."""
        tickets = self._tickets.get(instance)
        return self.settle(instance, max(tickets) + 1) if tickets else []

    def floors(self) -> tuple[tuple[InstanceId, int], ...]:
        """How far each frontend's tickets are settled."""
        return tuple(self._settled.items())

    def restore(self, floors: Iterable[tuple[InstanceId, int]]) -> None:
        """Take over how far tickets are settled."""
        for instance, below in floors:
            self.settle(instance, below)


class ShardState:
    """The state of one shard after its committed entries."""

    def __init__(self, shard: int, spec: FrontendSpec) -> None:
        self.shard = shard
        self.next_n = 0
        self.open: dict[int, OpenRequest] = {}
        self.keys: dict[str, int] = {}
        self.tickets = TicketTable()
        self.keyed = ReplyPool(spec.replies_kept, spec.replies_kept_bytes)
        self.unkeyed = ReplyPool(spec.replies_kept, spec.replies_kept_bytes)
        self.unkept: dict[int, Ticket] = {}
        """Complete requests without a key whose replies are not kept, in the order in which those went."""
        self.expired = ExpiredKeys()
        self.completed = CompletionSet()
        self._names: dict[str, str] = {}

    def apply(self, entry: LogEntry) -> None:
        """The next committed entry."""
        if isinstance(entry, Admit):
            self._admit(entry)
        elif isinstance(entry, ReplyEntry):
            open_request = self.open.get(entry.request.n)
            if open_request is not None:
                open_request.reply, open_request.is_void = entry, False
        else:
            self._done(entry)

    def _admit(self, entry: Admit) -> None:
        n = entry.request.n
        self.next_n = max(self.next_n, n + 1)
        self.open[n] = OpenRequest(entry)
        if entry.key is not None:
            self.keys[entry.key] = n
        elif entry.ticket is not None:
            instance, counter, settled = entry.ticket
            self._settle(instance, settled)
            if counter >= self.tickets.settled(instance):
                self.tickets.put(instance, counter, n)
        if entry.origin is not None:
            parent = self.open.get(entry.origin.request.n)
            if parent is not None:
                parent.fed[entry.origin.lane, entry.origin.source] = entry.origin

    def _done(self, entry: DoneEntry) -> None:
        n = entry.request.n
        open_request = self.open.pop(n, None)
        self.completed.add_one(entry.request)
        if open_request is None:
            return
        admit, reply = open_request.admit, open_request.reply
        if admit.key is not None:
            if reply is None:  # given up, in a mode without retention
                self._expire(admit.key)
                return
            for old in self.keyed.put(StoredReply(admit, reply, self._names)):
                if old.key is not None:
                    self._expire(old.key)
        elif admit.ticket is not None and self.tickets.find(admit.ticket.instance, admit.ticket.counter) == n:
            if reply is None:
                self._let_go(n, admit.ticket)
                return
            for old in self.unkeyed.put(StoredReply(admit, reply, self._names)):
                if old.ticket is not None:
                    self._let_go(old.n, old.ticket)

    def _expire(self, key: str) -> None:
        self.keys.pop(key, None)
        self.expired.add(key)

    def _let_go(self, n: int, ticket: Ticket) -> None:
        """The reply of `n` is not kept, though its client may still ask: its ticket stays, so that it is not
        taken for a new request. Of too many the oldest are settled, with all tickets of their frontend before
        them: an ask for those is met by silence."""
        self.unkept[n] = ticket
        while len(self.unkept) > limits.tickets_unkept_max:
            oldest = self.unkept.pop(next(iter(self.unkept)))
            self._settle(oldest.instance, oldest.counter + 1)

    def _settle(self, instance: InstanceId, below: int) -> None:
        for done in self.tickets.settle(instance, below):
            self._forget(done)

    def _forget(self, n: int) -> None:
        """Nobody asks for request `n` any more, which has no key."""
        self.unkeyed.drop(n)
        self.unkept.pop(n, None)

    def judge(self, knowledge: Knowledge) -> None:
        """New ends: a reply that stems from what they cut off is void. What they have made durable is dropped
        from vectors, for who copies this later may not hear of ends long past."""
        for item in self.open.values():
            if item.reply is not None and item.reply.deps:
                self.judge_one(item.reply, knowledge)

    def judge_one(self, reply: ReplyEntry, knowledge: Knowledge) -> None:
        """The same for one reply that was applied."""
        item = self.open.get(reply.request.n)
        if item is not None and item.reply is reply and not item.is_void:
            item.is_void = knowledge.status(reply.deps) is Status.ORPHAN
            item.reply = _pruned(reply, knowledge)

    def void(self, entry: ReplyEntry) -> None:
        """This reply, which was just applied, will never count."""
        open_request = self.open.get(entry.request.n)
        if open_request is not None and open_request.reply is entry:
            open_request.is_void = True

    def settle(self, entry: ReplyEntry) -> None:
        """The reply of this request counts: here it is without what it depended on."""
        open_request = self.open.get(entry.request.n)
        if open_request is not None:
            open_request.reply = entry

    def drop_gone(self, gone: Iterable[InstanceId]) -> None:
        """These frontends have ended: their clients wait for nothing. What is kept for one of which nobody
        can say so gives way to newer replies."""
        for instance in gone:
            for n in self.tickets.drop_instance(instance):
                self._forget(n)

    def answered(self, request: RequestId) -> ReplyEntry | None:
        """The committed reply of a request that is open or kept, if nothing of it is pending."""
        open_request = self.open.get(request.n)
        if open_request is not None:
            reply = open_request.reply
            return None if reply is None or reply.deps or open_request.is_void else reply
        stored = self.keyed.get(request.n) or self.unkeyed.get(request.n)
        return None if stored is None else stored.reply(self.shard)

    def admitted(self, n: int) -> Admit | None:
        """The entry (of a kept reply: without payload) by which a request came in."""
        open_request = self.open.get(n)
        if open_request is not None:
            return open_request.admit
        stored = self.keyed.get(n) or self.unkeyed.get(n)
        return None if stored is None else stored.admit(self.shard)


def _pruned(reply: ReplyEntry, knowledge: Knowledge) -> ReplyEntry:
    deps = knowledge.prune(reply.deps)
    if len(deps) == len(reply.deps):
        return reply
    tokens = tuple([knowledge.pruned(token) for token in reply.tokens])
    return ReplyEntry(reply.request, tokens, reply.error, deps)
