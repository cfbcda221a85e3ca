"""Tokens that an owner has produced, kept and sent until they are no longer needed (protocol.md, section 3,
Delivery).

A token is sent again until the *present* owner of its edge has acknowledged exactly this value in its present
epoch, or the request is complete. A new owner, or an old one in a new epoch, has acknowledged nothing, so
everything retained flows to it at once. Retained tokens outlive their acknowledgement: only completion (or
becoming orphan) frees them.
"""

from collections import deque
from collections.abc import Callable, Iterable

from hams_protocol import limits
from hams_protocol.context import Context
from hams_protocol.due import FOREVER, Due, Timed
from hams_protocol.ids import InstanceId, Lane, RequestId
from hams_protocol.knowledge import Knowledge, Status
from hams_protocol.messages import Attempt, Deliver, Token, TokenAck, TokenAcks


class Retained:
    """One token on one edge. `owner` is who it was last sent to; `held` whether that owner has acknowledged
    it in that epoch.

    `attempts` is how many of its owners have died of it, as far as is known (section 3, poison), `said` the
    number of the newest word of the present one, and `alone_in` the epoch in which that one has announced to
    run it alone, if it has. `losses`: how many owners were revoked that it was sent to. Who had acknowledged
    it may have died of it; who had not, only if that happens again: acknowledgements are late on purpose, and
    a first failover shall not run everything alone.
    """

    __slots__ = (
        "alone_in",
        "attempts",
        "due",
        "epoch",
        "gone",
        "held",
        "losses",
        "owner",
        "said",
        "target",
        "token",
    )

    def __init__(self, target: str, token: Token) -> None:
        self.target = target
        self.token: Token = token
        self.owner: InstanceId | None = None
        self.epoch = -1
        self.held = False
        self.gone = False
        self.attempts = 0
        self.said = 0
        self.alone_in: int | None = None
        self.losses = 0
        self.due = 0.0

    def note(self, attempt: Attempt) -> None:
        """What its present owner says of it."""
        self.said = attempt.serial
        self.alone_in = attempt.alone_in
        self.attempts = attempt.attempts if attempt.alone_in is None else attempt.attempts - 1


class Outbox(Timed):
    """All tokens retained by one owner. `sending_epoch` gives the epoch in which it owns a request, None if
    it does not (any more)."""

    def __init__(
        self, ctx: Context, knowledge: Knowledge, sending_epoch: Callable[[RequestId], int | None]
    ) -> None:
        super().__init__(ctx)
        self._ctx = ctx
        self._knowledge = knowledge
        self._sending_epoch = sending_epoch
        self._requests: dict[RequestId, dict[tuple[str, str, Lane], Retained]] = {}
        self._unheld: deque[tuple[float, Retained]] = deque()
        self._foretold: dict[RequestId, dict[tuple[str, str, Lane], tuple[InstanceId, Attempt]]] = {}

    def __len__(self) -> int:
        return sum(len(edges) for edges in self._requests.values())

    def put(self, target: str, token: Token) -> None:
        """Retain a token for an edge and send it; a token that is there already with the same value id is
        left alone. Of a complete request nothing is sent any more: an output may have been held meanwhile."""
        if token.request in self._knowledge.completed:
            return
        edges = self._requests.setdefault(token.request, {})
        key = (token.source, target, token.lane)
        old = edges.get(key)
        if old is not None:
            if old.token.value_id == token.value_id:
                return
            old.gone = True
        entry = edges[key] = Retained(target, token)
        foretold = self._foretold.get(token.request, {}).pop(key, None) if self._foretold else None
        if foretold is not None:
            entry.owner, attempt = foretold
            entry.note(attempt)
            self._count_death(entry)
        self._send(entry)

    def tokens(self, request: RequestId) -> Iterable[tuple[str, Token]]:
        """(target, token) of everything retained for a request."""
        return [(entry.target, entry.token) for entry in self._requests.get(request, {}).values()]

    def requests(self) -> list[RequestId]:
        """Requests for which something is retained."""
        return list(self._requests)

    def acknowledged(self, sender: InstanceId, acks: TokenAcks) -> None:
        """The owner `sender` holds these values."""
        for ack in acks.acks:
            self.acknowledge(sender, ack)

    def acknowledge(self, sender: InstanceId, ack: TokenAck) -> None:
        """The owner `sender` holds a value. It counts for this value, this owner and this epoch only."""
        edges = self._requests.get(ack.unit.request)
        entry = None if edges is None else edges.get((ack.source, ack.target, ack.unit.lane))
        if entry is None or entry.owner != sender:
            return
        if entry.token.value_id != ack.value_id:
            return
        if entry.epoch == ack.epoch:
            entry.held = True

    def owners_changed(self) -> None:
        """A new topology: whatever the present owners have not acknowledged goes to them at once."""
        for request, edges in self._requests.items():
            for entry in edges.values():
                owner, epoch = self._knowledge.owner(entry.target, request)
                if owner != entry.owner or epoch != entry.epoch:
                    self._count_death(entry)
                    self._send(entry)

    def _count_death(self, entry: Retained) -> None:
        """Its owner or the epoch may have changed. An owner that is revoked counts as dead, and as dead of
        this token if it had announced a run alone in the very epoch that its revocation ended.

        One that is replaced alive has given that run up: nobody died of it. So has one that began another
        epoch meanwhile, and the next announcement is for that one.
        """
        owner, epoch = self._knowledge.owner(entry.target, entry.token.request)
        alone_in = entry.alone_in
        if owner != entry.owner and entry.owner in self._knowledge.topology.revoked:
            entry.losses += 1
            if alone_in is not None and alone_in + 1 >= epoch:
                entry.attempts += 1
            elif entry.held or entry.losses > 1:
                entry.attempts = max(entry.attempts, 1)
        if owner != entry.owner or (alone_in is not None and alone_in < epoch):
            entry.alone_in = None

    def resend_to(self, peer: InstanceId) -> None:
        """The connection to `peer` was made anew: what it has not acknowledged may have been lost."""
        for edges in self._requests.values():
            for entry in edges.values():
                if entry.owner == peer and not entry.held:
                    self._send(entry)

    def attempted(self, sender: InstanceId, attempt: Attempt) -> bool:
        """An owner is about to run this alone, or came through: should it die, its successor must know how
        many have died of it.

        False if this instance has no say in it, or `sender` is not its owner: then nothing was noted, and
        whoever waits goes on asking.
        """
        key = (attempt.source, attempt.target, attempt.lane)
        entry = self._requests.get(attempt.request, {}).get(key)
        if (
            entry is None and self._sending_epoch(attempt.request) is not None
        ):  # a new owner, which will produce it yet
            if attempt.request in self._knowledge.completed:
                return True
            if sender != self._knowledge.owner(attempt.target, attempt.request)[0]:
                return False
            foretold = self._foretold.setdefault(attempt.request, {})
            if key not in foretold or foretold[key][0] != sender or foretold[key][1].serial < attempt.serial:
                foretold[key] = (sender, attempt)
            return True
        if entry is None or entry.owner != sender:
            return False
        if attempt.serial > entry.said:
            entry.note(attempt)
        return True

    def dues(self) -> list[Due]:
        """The oldest that may have been lost is sent again."""
        while self._unheld and (
            self._unheld[0][1].gone or self._unheld[0][1].held or self._unheld[0][0] != self._unheld[0][1].due
        ):
            self._unheld.popleft()
        return [(self._unheld[0][0] if self._unheld else FOREVER, self._send_again)]

    def _send_again(self) -> None:
        """What has waited too long for an acknowledgement, a bounded number at a time."""
        sent = 0
        while self._unheld and self._unheld[0][0] <= self._ctx.now and sent < limits.resend_items_max:
            due, entry = self._unheld.popleft()
            if not (entry.gone or entry.held or due != entry.due) and self._send(entry):
                sent += 1

    def complete(self, requests: Iterable[RequestId]) -> None:
        """Free everything retained for complete requests."""
        for request in requests:
            self._knowledge.deadlines.forget((request,))
            for entry in self._requests.pop(request, {}).values():
                entry.gone = True
            if self._foretold:
                self._foretold.pop(request, None)

    def drop_complete(self) -> None:
        """Free everything retained for requests that are complete by now."""
        completed = self._knowledge.completed
        self.complete([request for request in self._requests if request in completed])
        for request in [request for request in self._foretold if request in completed]:
            del self._foretold[request]

    def purge(self) -> None:
        """Drop what has become orphan: its operator will produce another value."""
        for request, edges in list(self._requests.items()):
            for key, entry in list(edges.items()):
                if self._knowledge.status(entry.token.deps) is Status.ORPHAN:
                    entry.gone = True
                    del edges[key]
            if not edges:
                del self._requests[request]

    def clear(self) -> None:
        """Forget everything: this instance is no owner any more."""
        for edges in self._requests.values():
            for entry in edges.values():
                entry.gone = True
        self._requests.clear()
        self._unheld.clear()
        self._foretold.clear()

    def _send(self, entry: Retained) -> bool:
        """To its present owner, if there is one and this instance may send; whether it did."""
        request = entry.token.request
        owner, epoch = self._knowledge.owner(entry.target, request)
        if entry.epoch >= 0:
            entry.token = self._knowledge.pruned(entry.token)
        if (owner, epoch) != (entry.owner, entry.epoch):
            entry.said = entry.said if owner == entry.owner else 0
            entry.owner, entry.epoch, entry.held = owner, epoch, False
        sending_epoch = self._sending_epoch(request)
        entry.due = self._ctx.now + limits.resend_after_s
        self._unheld.append((entry.due, entry))
        if owner is None or sending_epoch is None:
            return False
        token, marks = self._as_it_leaves(entry), self._knowledge.marks()
        self._ctx.send(owner, Deliver(entry.target, sending_epoch, token, entry.attempts, marks))
        return True

    def _as_it_leaves(self, entry: Retained) -> Token:
        """The token with what is left of its budget when it leaves: it may have waited here for long."""
        token = entry.token
        meta = self._knowledge.deadlines.meta(token.meta, token.request, self._ctx.now)
        return token if meta is token.meta else token.with_meta(meta)
