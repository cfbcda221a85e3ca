"""Who holds the owner's log: what its followers are sent, and how far the log is committed.

An entry is committed when all of the ack set hold it. Who is in the set, and who is dropped, admitted and
replaced, is a leader's business (`replica.leader`). A follower of a log says one thing only, how far it holds
it: an entry needs nothing else, so what is received counts as applied.
"""

from hams_protocol import limits
from hams_protocol.context import InvariantError
from hams_protocol.due import FOREVER, Due
from hams_protocol.frontend.context import FrontendContext
from hams_protocol.frontend.log import ShardLog, copy_parts, part_nbytes
from hams_protocol.graph import FRONTEND, WhenUnprotected
from hams_protocol.ids import InstanceId
from hams_protocol.messages import AskCopy, LogAppend, LogCopy
from hams_protocol.replica.freeze import Frozen
from hams_protocol.replica.leader import Leader
from hams_protocol.replica.progress import Progress
from hams_protocol.topology import ReplicaSet


class LogCopying:
    """A copy that is on its way to a joiner: its parts, how many the joiner has, and how many went out."""

    __slots__ = ("held", "parts", "sent")

    def __init__(self, parts: list[LogCopy]) -> None:
        self.parts = parts
        self.held = 0
        self.sent = 0

    def next_parts(self) -> list[LogCopy]:
        """What may go out now: a window on its way, or one part if that is larger."""
        flying, begin = self.flying_nbytes, self.sent
        for part in self.parts[begin : self.held + limits.copy_window_parts_max]:
            flying += part_nbytes(part)
            if flying > limits.copy_window_bytes_max and self.sent > self.held:
                break
            self.sent += 1
        return self.parts[begin : self.sent]

    def all_parts(self) -> list[LogCopy]:
        """For a joiner of a version that does not say which it has."""
        self.sent = len(self.parts)
        return self.parts

    @property
    def flying_nbytes(self) -> int:
        """Payload bytes of the parts that went out, and have not come."""
        return sum([part_nbytes(part) for part in self.parts[self.held : self.sent]])


class Replication(Leader):
    """The followers of one log, as its owner sees them. While that is `frozen`, or hands the shard over,
    nothing is sent: what comes behind the end nobody else may have seen."""

    def __init__(
        self, ctx: FrontendContext, shard: int, roles: ReplicaSet, log: ShardLog, frozen: Frozen
    ) -> None:
        others = ctx.graph.data.frontend.replicas - 1 if ctx.mode.replicates else 0
        # A graph of one frontend asks for nobody who could hold the log as well.
        blocks = ctx.graph.data.recovery.when_unprotected is WhenUnprotected.BLOCK and others > 0
        self._copies: dict[InstanceId, LogCopying] = {}
        self._copies_made = 0
        super().__init__(ctx, ctx, roles, log.last, FRONTEND, others, blocks, is_log=True)
        self._shard = shard
        self._log = log
        self._frozen = frozen
        self._news_at = FOREVER

    @property
    def watermark(self) -> int:
        """See `Leader`."""
        return self._log.committed

    @property
    def may_release(self) -> bool:
        """Under Block nothing is released, or committed, that only the owner holds."""
        return not self._blocks or self.followers.some_protects

    def committable(self) -> int:
        """The index up to which the ack set holds the log."""
        if not self.may_release:
            return self._log.committed
        applied = self.followers.applied_by_all()
        return self._log.last if applied is None else applied

    # -- sending ---------------------------------------------------------------------------------------------

    def retains(self, position: int) -> bool:
        """See `Leader`."""
        return self._log.holds(position + 1)

    def feed(self) -> None:
        """Send every follower what it was not sent yet."""
        for follower in self.followers.all.values():
            self.send_to(follower)

    def send_to(self, follower: Progress) -> None:
        """See `Leader`: the entries behind what it was sent."""
        log = self._log
        if not follower.ack or follower.copying or follower.sent >= log.last or self._frozen.stands:
            return
        while follower.sent < log.last:
            if not log.holds(follower.sent + 1):
                raise InvariantError(
                    f"entries of shard {self._shard} that {follower.instance} lacks are gone"
                )
            first = follower.sent + 1
            entries = log.entries(first)
            self._ctx.send(
                follower.instance, LogAppend(self._shard, log.epoch, first, entries, log.committed)
            )
            follower.is_sent(follower.sent + len(entries), self._ctx.now)
        follower.watermark = log.committed

    def copy_to(self, follower: Progress) -> None:
        """See `Leader`: a joiner copies what is committed, part by part."""
        copy = self._copy_for(follower)
        self._send_parts(follower, copy, copy.next_parts())

    def _copy_for(self, follower: Progress) -> LogCopying:
        self._copies_made += 1
        copy = LogCopying(copy_parts(self._shard, self._log, self._copies_made))
        self._copies[follower.instance] = copy
        return copy

    def copy_goes_on(self, follower: Progress, ask: AskCopy) -> bool:
        """See `Leader`. What has not come in time is sent again. A joiner that is named anew gets another
        copy: what follows on the one of before may be gone."""
        if ask.parts < 0:
            if self._ctx.now >= follower.copied_by:
                whole = self._copy_for(follower)
                self._send_parts(follower, whole, whole.all_parts())
            return True
        copy = self._copies.get(follower.instance)
        if copy is None or follower.copying or ask.copy != copy.parts[0].copy:
            return False
        if not self.retains(copy.parts[0].index):
            return False  # it was too slow: nothing follows on this copy any more
        if ask.parts > copy.held:
            copy.held = ask.parts
            copy.sent = max(copy.sent, copy.held)
        elif self._ctx.now >= follower.copied_by:
            copy.held = copy.sent = ask.parts
        else:
            return True
        self._send_parts(follower, copy, copy.next_parts())
        return True

    def _send_parts(self, follower: Progress, copy: LogCopying, parts: list[LogCopy]) -> None:
        for part in parts:
            self._ctx.send(follower.instance, part)
        follower.is_sent_copy(copy.parts[0].index, copy.flying_nbytes, self._ctx.now)

    def holds(self, joiner: InstanceId, ask: AskCopy) -> None:
        """See `Leader`: that it holds entries is all that it will ever say. Where what follows on them is
        gone it is sent a copy, as one that holds nothing."""
        known = min(ask.known, self._log.last)
        follower = self.acknowledged(joiner, known, known, ask.generation)
        if follower is None or self.is_welcome(follower) or self.copy_goes_on(follower, ask):
            return
        if self._ctx.now >= follower.copied_by:
            self.copy_to(follower)

    def is_welcome(self, follower: Progress) -> bool:
        """See `Leader`: not before it can follow on from what it holds. Nothing is committed without who is
        in the ack set, and a copy takes its time."""
        return follower.ack or self.retains(follower.applied)

    def log_acknowledged(self, sender: InstanceId, last: int, generation: int) -> None:
        """A follower holds everything up to `last`, and knows `generation` (0: it is of a version that does
        not say). One that says so twice lacks what follows: a log is taken without gaps, and nothing that
        comes early is held, unlike records."""
        last = min(last, self._log.last)
        before = self.followers.all.get(sender)
        stuck = before is not None and before.ack and last == before.received < before.sent
        follower = self.acknowledged(sender, last, last, generation)
        if follower is not None and follower.ack:
            self._copies.pop(sender, None)
        if follower is not None and stuck and follower.gap_at != last:
            follower.gap_at = last
            self.send_again(follower)

    def trim(self) -> None:
        """Let go of what every follower has; a joiner too far behind must copy anew."""
        self._let_copies_go()
        needed = self._log.committed
        for follower in self.followers.all.values():
            floor = follower.received if follower.ack else follower.sent
            if floor < 0:  # it has not asked for its copy yet
                continue
            if not follower.ack and self._log.last - floor > limits.joiner_lag_entries_max:
                follower.sent, follower.copying = -1, True
            elif floor < needed:
                needed = floor
        self._log.trim(needed)

    def sync(self, replica_set: ReplicaSet) -> None:
        """See `Leader`."""
        super().sync(replica_set)
        self._let_copies_go()

    def _let_copies_go(self) -> None:
        """Of who has its copy, is no joiner any more, or is to begin anew."""
        for instance in list(self._copies):
            member = self.followers.all.get(instance)
            if member is None or member.ack or member.copying:
                del self._copies[instance]

    # -- time ------------------------------------------------------------------------------------------------

    def committed_news(self) -> None:
        """Followers should hear of a new commit index soon, even if no entry follows."""
        self.wishing = True
        if self.followers.all and self._news_at == FOREVER:
            self._news_at = self._ctx.now + limits.completion_delay_s

    def dues(self) -> list[Due]:
        """What a leader does; tell commit indices."""
        return [*super().dues(), (self._news_at, self._tell_news)]

    def _tell_news(self) -> None:
        log = self._log
        self._news_at = FOREVER
        for follower in self.followers.all.values():
            if follower.watermark < log.committed and follower.ack and follower.sent == log.last:
                self._ctx.send(
                    follower.instance, LogAppend(self._shard, log.epoch, log.last + 1, (), log.committed)
                )
                follower.watermark = log.committed
