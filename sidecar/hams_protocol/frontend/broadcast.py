"""Completion, sent to every instance that retains anything (protocol.md, section 5): deltas soon, everything
again now and then.

A notice may be lost, so everything known of the shards owned here is repeated for as long as this instance
lives; the sender of a token of a complete request gets it at once.
"""

from collections.abc import Iterable

from hams_protocol import limits
from hams_protocol.due import FOREVER, Due, Timed
from hams_protocol.frontend.context import FrontendContext
from hams_protocol.graph import SchedulePolicy
from hams_protocol.ids import InstanceId, RequestId
from hams_protocol.messages import Completion, ReplyAge


class CompletionBroadcast(Timed):
    """Coalesced completion notices of the shards owned by this instance."""

    def __init__(self, ctx: FrontendContext) -> None:
        super().__init__(ctx)
        self._ctx = ctx
        self._fresh: dict[int, list[int]] = {}
        self._replies: list[tuple[RequestId, float]] = []
        self._reports_replies = any(
            op.batch.policy is not SchedulePolicy.FIFO for op in ctx.graph.data.operators
        )
        self._asked: set[InstanceId] = set()
        self._flush_at = FOREVER
        self._repeat_at = FOREVER
        self.listeners: tuple[InstanceId, ...] = ()
        self.shards: tuple[int, ...] = ()

    def add(self, request: RequestId) -> None:
        """A request has become complete."""
        self._fresh.setdefault(request.shard, []).append(request.n)
        self._soon()

    def replied(self, requests: Iterable[RequestId]) -> None:
        """The reply of these requests was released now: the next notice says so. None is sent for it."""
        if self._reports_replies:
            room = limits.reply_ages_max - len(self._replies)
            self._replies.extend([(request, self._ctx.now) for request in requests][:room])

    def wanted(self, peer: InstanceId) -> None:
        """A peer does not seem to know what is complete."""
        self._asked.add(peer)
        self._soon()

    def own(self, shards: Iterable[int]) -> None:
        """The shards that this instance owns have changed: everybody is told what their logs say."""
        self.shards = tuple(shards)
        for shard in list(self._fresh):
            if shard not in self.shards:
                del self._fresh[shard]
        self._repeat_at = self._ctx.now if self.shards else FOREVER

    def listen(self, instances: Iterable[InstanceId]) -> None:
        """The instances that get the notices. A new one gets everything."""
        fresh = tuple(item for item in instances if item != self._ctx.instance)
        for peer in fresh:
            if peer not in self.listeners:
                self.wanted(peer)
        self.listeners = fresh

    def dues(self) -> list[Due]:
        """Everything again, which leaves nothing fresh; else what is fresh."""
        return [(self._repeat_at, self._repeat), (self._flush_at, self._flush)]

    def _repeat(self) -> None:
        self._repeat_at = self._ctx.now + limits.completion_repeat_s
        self._fresh.clear()
        self._asked.clear()
        self._flush_at = FOREVER
        if self.shards:
            news = self._everything()
            for peer in self.listeners:
                self._ctx.send(peer, news)
        self._replies.clear()

    def _flush(self) -> None:
        completed = self._ctx.knowledge.completed
        self._flush_at = FOREVER
        if self._fresh:
            rows = []
            for shard, fresh in self._fresh.items():
                below = completed.watermark(shard)
                rows.append((shard, below, tuple(n for n in fresh if n >= below)))
            news = Completion(tuple(rows), self._ages())
            self._fresh.clear()
            for peer in self.listeners:
                if peer not in self._asked:
                    self._ctx.send(peer, news)
        if self._asked and self.shards:
            news = self._everything()
            for peer in sorted(self._asked):
                self._ctx.send(peer, news)
        self._asked.clear()
        self._replies.clear()

    def _everything(self) -> Completion:
        completed = self._ctx.knowledge.completed
        return Completion(
            tuple(
                (
                    shard,
                    completed.watermark(shard),
                    tuple(sorted(completed.sparse(shard)))[: limits.completion_sparse_max],
                )
                for shard in self.shards
            ),
            self._ages(),
        )

    def _ages(self) -> tuple[ReplyAge, ...]:
        """How long ago replies were released; counted to the moment of sending, for clocks are not
        compared."""
        return tuple([ReplyAge(request, self._ctx.now - at) for request, at in self._replies])

    def _soon(self) -> None:
        if self._flush_at == FOREVER:
            self._flush_at = self._ctx.now + limits.completion_delay_s
