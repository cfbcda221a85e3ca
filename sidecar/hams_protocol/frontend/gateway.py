"""Clients of this frontend: which shard a request goes to, who answers it, and when its client stops waiting.

Every request waits here under a counter until it is answered, its deadline passes or its client goes. It is
handed to the owner of its shard, this instance or another; handing it over again is safe, as the owner knows
it by its key or by (instance, counter). A deadline decides the client's 504 and nothing else: the request
goes on.
"""

import zlib
from collections import deque
from heapq import heapify, heappop, heappush

from hams_protocol import limits
from hams_protocol.due import FOREVER, Due, Timed
from hams_protocol.effects import Answer, NotServed, Outcome, Replied
from hams_protocol.events import ClientRequest
from hams_protocol.frontend.context import FrontendContext
from hams_protocol.frontend.owner import ShardOwner
from hams_protocol.ids import InstanceId
from hams_protocol.keys import own_part
from hams_protocol.messages import ClientForward, ClientForwardAnswer, ClientForwardHeld, Meta, ReplyEntry


class Waiting:
    """A request whose client waits at this frontend. `sent_to` is the owner, in which epoch, that was handed
    it last."""

    __slots__ = ("arrived", "asked_at", "deadline", "event", "sent_to", "shard")

    def __init__(self, event: ClientRequest, shard: int, now: float, deadline: float) -> None:
        self.event = event
        self.shard = shard
        self.arrived = now
        self.deadline = deadline
        self.sent_to: tuple[InstanceId, int] | None = None
        self.asked_at = FOREVER


class Gateway(Timed):
    """All waiting clients of one frontend."""

    def __init__(self, ctx: FrontendContext, owners: dict[int, ShardOwner]) -> None:
        super().__init__(ctx)
        self._ctx = ctx
        self._owners = owners
        self._shards = ctx.graph.data.frontend.shards
        self._waiting: dict[int, Waiting] = {}
        self._handles: dict[int, int] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._asks: deque[tuple[float, int]] = deque()
        self._next = 0
        self._settled = 0
        self._turn = 0
        self._bytes = 0
        self._bytes_max = ctx.graph.data.frontend.max_in_flight_bytes * self._shards
        self.unserved: str | None = "the graph has not started"

    def __len__(self) -> int:
        return len(self._waiting)

    # -- the graph as a whole --------------------------------------------------------------------------------

    def topology_changed(self) -> None:
        """Whether the graph answers at all; whom waiting requests go to now."""
        self.unserved = self._why_unserved()
        self.resubmit()

    def _why_unserved(self) -> str | None:
        knowledge, data = self._ctx.knowledge, self._ctx.graph.data
        if knowledge.topology.generation == 0:
            return "the graph has not started"
        for replica_set in knowledge.topology.sets:
            if replica_set.lost:
                return f"the state of {replica_set.name} is lost"
        for op in data.operators:
            if op.stateful:
                if knowledge.set_of(op.name).primary is None:
                    return f"{op.name} has not started"
            elif not knowledge.slots_of(op.name):
                return f"{op.name} has not started"
        return None

    # -- clients ---------------------------------------------------------------------------------------------

    def request(self, event: ClientRequest) -> None:
        """A client's request: hand it to the owner of its shard, or say at once why not."""
        if self.unserved is not None:
            self._refuse(event, 503, self.unserved)
            return
        if (
            len(self._waiting) >= limits.requests_waiting_max
            or self._bytes + event.payload.nbytes > self._bytes_max
        ):
            self._refuse(
                event,
                429,
                f"{len(self._waiting)} clients ({self._bytes} bytes) wait at this frontend",
                limits.retry_after_s,
            )
            return
        shard = (
            self._choose() if event.key is None else zlib.crc32(own_part(event.key).encode()) % self._shards
        )
        if shard is None or self._ctx.knowledge.set_of(self._ctx.graph.shard_names[shard]).primary is None:
            self._refuse(event, 503, "no frontend owns the request's shard")
            return
        now = self._ctx.now
        budget = (
            event.meta.budget_s
            if event.meta.budget_s > 0
            else self._ctx.graph.data.frontend.request_timeout_s
        )
        counter = self._next
        self._next += 1
        waiting = self._waiting[counter] = Waiting(event, shard, now, now + budget)
        self._handles[event.handle] = counter
        self._bytes += event.payload.nbytes
        heappush(self._deadlines, (waiting.deadline, counter))
        if len(self._deadlines) > 2 * len(self._waiting) + 64:
            self._deadlines = [(item.deadline, number) for number, item in self._waiting.items()]
            heapify(self._deadlines)
        self._hand_over(counter, waiting)

    def gone(self, handle: int) -> None:
        """The client of `handle` waits no more."""
        counter = self._handles.get(handle)
        if counter is not None:
            self._forget(counter)

    def _refuse(self, event: ClientRequest, status: int, message: str, retry_after_s: float = 0.0) -> None:
        self._ctx.out.append(Answer(event.handle, NotServed(status, message, retry_after_s)))

    def _choose(self) -> int | None:
        """A shard for a request without a key: one owned here with room, else any that has an owner."""
        self._turn += 1
        other: int | None = None
        for step in range(self._shards):
            shard = (self._turn + step) % self._shards
            owner = self._owners.get(shard)
            if owner is not None:
                if not owner.frozen.stands and owner.has_room():
                    return shard
                other = shard if other is None else other
        for step in range(self._shards):
            shard = (self._turn + step) % self._shards
            if (
                shard not in self._owners
                and self._ctx.knowledge.set_of(self._ctx.graph.shard_names[shard]).primary is not None
            ):
                return shard
        return other

    # -- handing over ----------------------------------------------------------------------------------------

    def resubmit(self) -> None:
        """Hand over again what the present owners of the shards were not handed."""
        for counter, waiting in list(self._waiting.items()):
            roles = self._ctx.knowledge.set_of(self._ctx.graph.shard_names[waiting.shard])
            if roles.primary is not None and waiting.sent_to != (roles.primary, roles.epoch):
                self._hand_over(counter, waiting)

    def peer_up(self, peer: InstanceId) -> None:
        """What was sent to this peer may be lost: ask how it stands."""
        for counter, waiting in list(self._waiting.items()):
            if waiting.sent_to is not None and waiting.sent_to[0] == peer and peer != self._ctx.instance:
                self._forward(counter, waiting, whole=False)

    def _hand_over(self, counter: int, waiting: Waiting) -> None:
        if self._ctx.knowledge.topology.untouched:
            return  # no log takes it before the topology says otherwise: `Changes` proposes that
        roles = self._ctx.knowledge.set_of(self._ctx.graph.shard_names[waiting.shard])
        if roles.primary == self._ctx.instance:
            owner = self._owners.get(waiting.shard)
            if owner is None or owner.frozen.stands:
                waiting.sent_to = None
                return
            waiting.sent_to = (self._ctx.instance, owner.epoch)
            waiting.asked_at = FOREVER
            owner.submit(self._ctx.instance, self._ask(counter, waiting, whole=True))
        elif roles.primary is not None:
            waiting.sent_to = (roles.primary, roles.epoch)
            self._forward(counter, waiting, whole=True)

    def _ask(self, counter: int, waiting: Waiting, whole: bool) -> ClientForward:
        while self._settled < counter and self._settled not in self._waiting:
            self._settled += 1
        event, meta = waiting.event, waiting.event.meta
        left = max(limits.hop_budget_min_s, waiting.deadline - self._ctx.now)
        return ClientForward(
            waiting.shard,
            counter,
            self._settled,
            event.key,
            event.digest,
            Meta(meta.parameters, meta.trace, left, meta.hops),
            event.payload if whole else None,
            event.outputs,
            event.present,
            0 if waiting.sent_to is None else waiting.sent_to[1],
        )

    def _forward(self, counter: int, waiting: Waiting, whole: bool) -> None:
        if waiting.sent_to is None:
            return
        waiting.asked_at = self._ctx.now + limits.resend_after_s
        self._asks.append((waiting.asked_at, counter))
        self._ctx.send(waiting.sent_to[0], self._ask(counter, waiting, whole))

    def held(self, sender: InstanceId, message: ClientForwardHeld) -> None:
        """The owner says whether it has a request."""
        waiting = self._waiting.get(message.counter)
        if (
            waiting is not None
            and not message.held
            and waiting.sent_to is not None
            and waiting.sent_to[0] == sender
        ):
            self._forward(message.counter, waiting, whole=True)

    # -- answers ---------------------------------------------------------------------------------------------

    def answered(self, counter: int, outcome: ReplyEntry | NotServed) -> None:
        """The owner here has an outcome."""
        self._finish(
            counter,
            outcome
            if isinstance(outcome, NotServed)
            else Replied(outcome.request, outcome.tokens, outcome.error),
        )

    def answer_came(self, sender: InstanceId, message: ClientForwardAnswer) -> None:
        """Another frontend has an outcome. That nothing has begun counts from the owner that was asked last:
        one before it may not know what this one does."""
        waiting = self._waiting.get(message.counter)
        if message.request is not None:
            self._finish(message.counter, Replied(message.request, message.tokens, message.error))
        elif waiting is not None and waiting.sent_to is not None and waiting.sent_to[0] == sender:
            outcome = NotServed(message.status, message.message, message.retry_after_s, message.begun)
            self._finish(message.counter, outcome)

    def _finish(self, counter: int, outcome: Outcome) -> None:
        waiting = self._waiting.get(counter)
        if waiting is not None:
            self._ctx.out.append(Answer(waiting.event.handle, outcome))
            self._forget(counter)

    def _forget(self, counter: int) -> None:
        waiting = self._waiting.pop(counter)
        self._bytes -= waiting.event.payload.nbytes
        if self._handles.get(waiting.event.handle) == counter:
            del self._handles[waiting.event.handle]

    # -- time ------------------------------------------------------------------------------------------------

    def dues(self) -> list[Due]:
        """Deadlines, and questions to owners that are silent."""
        while self._deadlines and self._deadlines[0][1] not in self._waiting:
            heappop(self._deadlines)
        return [
            (self._deadlines[0][0] if self._deadlines else FOREVER, self._give_up),
            (self._asks[0][0] if self._asks else FOREVER, self._ask_owners),
        ]

    def _give_up(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= self._ctx.now:
            _, counter = heappop(self._deadlines)
            if counter in self._waiting:
                self._finish(
                    counter, NotServed(504, "the deadline has passed; the request may still take effect")
                )

    def _ask_owners(self) -> None:
        while self._asks and self._asks[0][0] <= self._ctx.now:
            at, counter = self._asks.popleft()
            waiting = self._waiting.get(counter)
            if waiting is not None and waiting.asked_at == at:
                self._forward(counter, waiting, whole=False)


def answer_message(counter: int, outcome: ReplyEntry | NotServed) -> ClientForwardAnswer:
    """An outcome as another frontend is told it."""
    if isinstance(outcome, NotServed):
        return ClientForwardAnswer(
            counter,
            outcome.status,
            message=outcome.message,
            retry_after_s=outcome.retry_after_s,
            begun=outcome.begun,
        )
    return ClientForwardAnswer(counter, 200, outcome.request, outcome.tokens, outcome.error)
