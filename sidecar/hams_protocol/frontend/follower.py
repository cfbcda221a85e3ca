"""A holder of another instance's log: an in-sync follower, or a joiner that copies first.

Invariants: entries are taken only of the epoch this follower is in, in order, without gaps, and never while
frozen; what was acknowledged is kept until a topology of a higher generation tells which end the log has. It
applies an entry only when its owner says that it is committed, so a tail can still be cut.
"""

from hams_protocol.due import Due, Timed
from hams_protocol.frontend.context import FrontendContext
from hams_protocol.frontend.log import ShardLog, log_of
from hams_protocol.ids import InstanceId
from hams_protocol.messages import LogAck, LogAppend, LogCopy, ReplyEntry
from hams_protocol.replica.following import Following
from hams_protocol.topology import ReplicaSet


class ShardFollower(Timed):
    """One shard's log as held by a peer of its owner. `log` is None until a joiner has copied it."""

    def __init__(
        self, ctx: FrontendContext, shard: int, roles: ReplicaSet, log: ShardLog | None, in_sync: bool
    ) -> None:
        super().__init__(ctx)
        self._ctx = ctx
        self.shard = shard
        self.name = roles.name
        self.epoch = roles.epoch
        self.log = log
        self.following = Following(ctx, ctx.knowledge, ctx.proposals, roles, in_sync, self.ask)
        self._parts: dict[int, LogCopy] = {}
        self._copied = (0, -1)
        self._owed: InstanceId | None = None
        if not in_sync:
            self.ask()

    def ask(self) -> None:
        """Ask the owner for a copy, or for what follows on the parts or the log that are here."""
        count = 0
        while count in self._parts:
            count += 1
        self.following.ask_copy(-1 if self.log is None else self.log.last, self._copied[0], count)

    def copy_part(self, part: LogCopy) -> None:
        """A part of the copy; the log stands when all parts of one copy have come."""
        if (
            part.epoch != self.epoch
            or self.following.frozen.stands
            or (self.log is not None and part.index <= self.log.last)
        ):
            return
        copied = (part.copy, part.index)
        if copied < self._copied:
            return  # it was begun anew since, and another copy is cut otherwise
        if copied > self._copied:
            self._parts.clear()
            self._copied = copied
        self._parts[part.part] = part
        parts = [self._parts[number] for number in sorted(self._parts)]
        if not parts[-1].last or len(parts) != parts[-1].part + 1:
            if part.copy > 0:
                self.ask()
            else:
                self.following.got_on()
            return
        self.following.got_on()
        self._parts.clear()
        self.log = log_of(parts, self._ctx.graph.data.frontend)
        self.log.state.judge(self._ctx.knowledge)
        self._owed = self.following.leader

    def append(self, sender: InstanceId, message: LogAppend) -> None:
        """Entries of this epoch from its owner; acknowledged cumulatively. What leaves a gap is not taken."""
        log = self.log
        if log is None or self.following.frozen.stands:
            return
        if message.first <= log.last + 1:
            for entry in message.entries[log.last + 1 - message.first :]:
                log.append(entry)
            for _, entry in log.commit(min(message.committed, log.last)):
                if isinstance(entry, ReplyEntry) and entry.deps:
                    log.state.judge_one(entry, self._ctx.knowledge)
            log.trim(log.committed)
            if self._parts and log.last >= self._copied[1]:
                self._parts.clear()
        if message.entries:
            self._owed = sender
            self.following.got_on()

    def acknowledge(self) -> None:
        """Say once how far the log goes, after all entries that have come together."""
        if self._owed is not None and self.log is not None:
            self._ctx.send(self._owed, LogAck(self.shard, self.epoch, self.log.last, self._ctx.generation))
            self._owed = None

    def dues(self) -> list[Due]:
        """See `Following`."""
        return self.following.dues()
