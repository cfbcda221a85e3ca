"""A holder of another instance's log: an in-sync follower, or a joiner that copies first.

Invariants: entries are taken only of the epoch this follower is in, in order, without gaps, and never while
frozen; what was acknowledged is kept until a topology of a higher generation tells which end the log has. It
applies an entry only when its owner says that it is committed, so a tail can still be cut.
"""

from hams_protocol import limits
from hams_protocol.due import FOREVER, Due, Timed
from hams_protocol.frontend.context import FrontendContext
from hams_protocol.frontend.log import ShardLog, log_of
from hams_protocol.ids import InstanceId
from hams_protocol.messages import AskCopy, Leave, LogAck, LogAppend, LogCopy


class ShardFollower(Timed):
    """One shard's log as held by a peer of its owner. `log` is None until a joiner has copied it."""

    def __init__(
        self,
        ctx: FrontendContext,
        shard: int,
        name: str,
        epoch: int,
        owner: InstanceId | None,
        log: ShardLog | None,
        joining: bool,
    ) -> None:
        super().__init__(ctx)
        self._frontend = ctx
        self.shard = shard
        self.name = name
        self.epoch = epoch
        self.owner = owner
        self.log = log
        self.joining = joining
        self.frozen = -1
        self._parts: dict[int, LogCopy] = {}
        self._ask_at = FOREVER
        self._leave_at = FOREVER
        self._owed: InstanceId | None = None
        if joining:
            self.ask()

    def ask(self) -> None:
        """Ask the owner for a copy, or to follow on from what is here."""
        self._ask_at = self._ctx.now + limits.copy_ask_after_s
        if self.owner is not None:
            self._ctx.send(
                self.owner,
                AskCopy(
                    self.name,
                    self.epoch,
                    -1 if self.log is None else self.log.last,
                    self._frontend.generation,
                ),
            )

    def admitted(self) -> None:
        """The topology says that this follower is in sync."""
        self.joining = False
        self._ask_at = FOREVER

    def copy_part(self, part: LogCopy) -> None:
        """A part of the copy; the log stands when all parts of one index have come."""
        if (
            part.epoch != self.epoch
            or self.frozen >= 0
            or (self.log is not None and part.index <= self.log.last)
        ):
            return
        if self._parts and next(iter(self._parts.values())).index != part.index:
            self._parts.clear()
        self._parts[part.part] = part
        self._ask_at = self._ctx.now + limits.copy_ask_after_s
        parts = [self._parts[number] for number in sorted(self._parts)]
        if not parts[-1].last or len(parts) != parts[-1].part + 1:
            return
        self._parts.clear()
        self.log = log_of(parts, self._frontend.graph.data.frontend)
        if self.owner is not None:
            self._ctx.send(
                self.owner, LogAck(self.shard, self.epoch, self.log.last, self._frontend.generation)
            )

    def append(self, sender: InstanceId, message: LogAppend) -> None:
        """Entries of this epoch from its owner; acknowledged cumulatively. What leaves a gap is not taken."""
        log = self.log
        if log is None or self.frozen >= 0:
            return
        if message.first <= log.last + 1:
            for entry in message.entries[log.last + 1 - message.first :]:
                log.append(entry)
            for _ in log.commit(min(message.committed, log.last)):
                pass
            log.trim(log.committed)
        if message.entries:
            self._owed = sender

    def acknowledge(self) -> None:
        """Say once how far the log goes, after all entries that have come together."""
        if self._owed is not None and self.log is not None:
            self._ctx.send(
                self._owed, LogAck(self.shard, self.epoch, self.log.last, self._frontend.generation)
            )
            self._owed = None

    def leave(self) -> None:
        """This instance is to end: it says so again and again, and is a follower like any other until the
        topology names it no more."""
        if self._leave_at == FOREVER:
            self._ask_to_leave()

    def _ask_to_leave(self) -> None:
        self._leave_at = self._ctx.now + limits.resend_after_s
        if self.owner is not None:
            self._ctx.send(self.owner, Leave(self.name, self.epoch))

    def dues(self) -> list[Due]:
        """A joiner whose copy or admission makes no progress asks again, and so does who is to be let go."""
        return [(self._ask_at, self.ask), (self._leave_at, self._ask_to_leave)]
