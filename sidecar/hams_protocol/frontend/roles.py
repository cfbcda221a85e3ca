"""The roles of one frontend instance: which shards it owns, which it follows or copies, and which log it has
for each.

Roles belong to shards, not to the instance. It takes what the newest topology gives it and nothing else.

Invariant: a shard is owned or followed, never both, and only with a log that fits the topology's epoch. Where
none fits it says so by `Misfit`: the machine stops and guesses nothing.
"""

from collections.abc import Callable

from hams_protocol import limits
from hams_protocol.effects import NoteFailover, NotServed
from hams_protocol.frontend.broadcast import CompletionBroadcast
from hams_protocol.frontend.context import FrontendContext
from hams_protocol.frontend.follower import ShardFollower
from hams_protocol.frontend.former import FormerLogs
from hams_protocol.frontend.log import ShardLog, empty_log
from hams_protocol.frontend.owner import ShardOwner
from hams_protocol.frontend.status import ShardStatus
from hams_protocol.frontend.waits import Waits
from hams_protocol.ids import InstanceId, RequestId
from hams_protocol.knowledge import Knowledge
from hams_protocol.messages import ReplyEntry
from hams_protocol.outbox import Outbox
from hams_protocol.replica.following import Following
from hams_protocol.topology import ReplicaSet


class Misfit(Exception):
    """Ours, not retryable: the topology gives this instance a role for which it has no log."""


class ShardRoles:
    """Owned and followed shards, by number. `released` hands an outcome to who waits; `broadcast` tells
    everybody of complete requests, and of replies."""

    def __init__(
        self,
        ctx: FrontendContext,
        waits: Waits,
        former: FormerLogs | None,
        released: Callable[[InstanceId, int, ReplyEntry | NotServed], None],
        broadcast: CompletionBroadcast,
    ) -> None:
        self._ctx = ctx
        self._waits = waits
        self._released = released
        self._broadcast = broadcast
        self.owners: dict[int, ShardOwner] = {}
        self.followers: dict[int, ShardFollower] = {}
        self.former = former
        self.names = ctx.graph.shard_names
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.outbox = Outbox(ctx, ctx.knowledge, self._sending_epoch)

    # -- taking roles ----------------------------------------------------------------------------------------

    def take(self, knowledge: Knowledge) -> None:
        """The roles that the newest topology gives this instance. Raises Misfit."""
        for shard, name in enumerate(self.names):
            self._take(shard, knowledge.set_of(name))

    def _take(self, shard: int, roles: ReplicaSet) -> None:
        me = self._ctx.instance
        owner, follower = self.owners.get(shard), self.followers.get(shard)
        if roles.primary == me:
            if owner is not None and owner.epoch == roles.epoch:
                owner.frozen.thaw(self._ctx.generation)
                owner.replication.sync(roles)
                owner.replication.feed()
            else:
                self._own(shard, roles)
        elif me in roles.in_sync:
            if follower is not None and follower.epoch == roles.epoch and follower.log is not None:
                follower.following.named(roles, in_sync=True)
            else:
                self._follow(shard, roles)
        elif me in roles.joining:
            if follower is not None and follower.epoch == roles.epoch and not follower.following.in_sync:
                follower.following.named(roles, in_sync=False)
            else:
                self._leave(shard)
                self.followers[shard] = ShardFollower(self._ctx, shard, roles, None, in_sync=False)
        else:
            self._leave(shard)

    def _own(self, shard: int, roles: ReplicaSet) -> None:
        log = self._log_for(shard, roles)
        if log is None:
            raise Misfit(f"made primary of {roles.name} in epoch {roles.epoch} without a log that fits")
        self._leave(shard)
        owner = self.owners[shard] = ShardOwner(
            self._ctx, shard, roles, log, self.outbox, self._waits, self._released, self._broadcast
        )
        if roles.epoch > 1:
            end = roles.end_of(roles.epoch - 1)
            note = NoteFailover(
                roles.name,
                self._ctx.generation,
                roles.epoch,
                log.last if end is None else end,
                self._ctx.instance,
            )
            self._ctx.out.append(note)
        owner.take_over()

    def _follow(self, shard: int, roles: ReplicaSet) -> None:
        log = self._log_for(shard, roles)
        if log is None:
            raise Misfit(f"named in sync in {roles.name}, epoch {roles.epoch}, without a log that fits")
        self._leave(shard)
        self.followers[shard] = ShardFollower(self._ctx, shard, roles, log, in_sync=True)

    def _log_for(self, shard: int, roles: ReplicaSet) -> ShardLog | None:
        """The log this instance has for an epoch: the one it held, cut at the end of its own epoch; None if
        it does not fit."""
        held: ShardOwner | ShardFollower | None = self.owners.get(shard) or self.followers.get(shard)
        log = None if held is None else held.log
        if held is None and self.former is not None:
            log = self.former.logs.get(shard)
        spec, end = self._ctx.graph.data.frontend, roles.end_of(roles.epoch - 1)
        if roles.primary == self._ctx.instance and roles.restarted_in == roles.epoch:
            first_n = roles.epoch * limits.lost_log_stride_requests
            return empty_log(shard, roles.epoch, end or 0, spec, first_n)
        if log is not None and end is not None and self._end_held(log, roles) == end and log.cut(end):
            log.epoch = roles.epoch
            return log
        if roles.primary == self._ctx.instance and roles.epoch == 1:
            return empty_log(shard, 1, 0, spec)
        return None

    def _end_held(self, log: ShardLog, roles: ReplicaSet) -> int | None:
        """Where a log's own epoch ended; None if that is not known, or if the log was lost since.

        Epochs in between this instance has missed. Whatever was committed in them needed its word, given in
        them: so who is in sync all the same has missed nothing, and the newest end is the same one. Above it
        lies another entry at the same index, if any, and not the one that is here.
        """
        if log.epoch < roles.restarted_in:
            return None
        return roles.end_of(log.epoch)

    def _leave(self, shard: int) -> None:
        """This instance has no part in a shard any more, or a new one."""
        self.followers.pop(shard, None)
        if self.owners.pop(shard, None) is not None:
            self.outbox.complete([request for request in self.outbox.requests() if request.shard == shard])

    def _sending_epoch(self, request: RequestId) -> int | None:
        owner = self.owners.get(request.shard)
        return None if owner is None or owner.frozen.stands else owner.epoch

    # -- logs that outlive an id -----------------------------------------------------------------------------

    def log_of(self, shard: int) -> ShardLog | None:
        """The log that counts in a takeover: of an owner, of a follower that is not copying, or brought
        along."""
        owner, follower = self.owners.get(shard), self.followers.get(shard)
        log: ShardLog | None = None
        if owner is not None:
            log = owner.log
        elif follower is not None and follower.following.in_sync:
            log = follower.log
        if log is None and self.former is not None:
            log = self.former.logs.get(shard)
        return log

    def worth_keeping(self) -> FormerLogs | None:
        """What a fresh machine should be given after this instance was revoked, of what the topology may need
        yet."""
        held = {shard: owner.log for shard, owner in self.owners.items()}
        held.update({shard: item.log for shard, item in self.followers.items() if item.log is not None})
        logs = {shard: log for shard, log in held.items() if self._is_named(shard, log, self._ctx.instance)}
        return FormerLogs(self._ctx.instance, logs) if logs else self.former

    def drop_former(self) -> bool:
        """Former logs are of no use once the topology does not name the former id in their epoch. True if
        nothing is left to be here for."""
        if self.former is None:
            return False
        for shard, log in list(self.former.logs.items()):
            if not self._is_named(shard, log, self.former.instance):
                del self.former.logs[shard]
        if self.former.logs:
            return False
        self.former = None
        return not (self.owners or self.followers)

    def _is_named(self, shard: int, log: ShardLog, holder: InstanceId) -> bool:
        roles = self._ctx.knowledge.set_of(self.names[shard])
        return roles.epoch == log.epoch and holder in roles.members

    def counting(self) -> list[Following]:
        """The ties of followed shards to their owners, where those count on this instance, or may do so: one
        that has its copy may have been admitted before it hears of that, unless its owner is revoked."""
        return [
            follower.following
            for follower in self.followers.values()
            if follower.log is not None and follower.following.may_be_admitted
        ]

    # -- what they are ---------------------------------------------------------------------------------------

    def logs(self) -> list[ShardLog]:
        """All logs held in a role."""
        return [owner.log for owner in self.owners.values()] + [
            item.log for item in self.followers.values() if item.log is not None
        ]

    def judge_logs(self) -> None:
        """New ends: what they make of replies that are logged early, in every log that is here."""
        for log in (*self.logs(), *(() if self.former is None else self.former.logs.values())):
            log.state.judge(self._ctx.knowledge)

    def statuses(self) -> tuple[ShardStatus, ...]:
        """The shards in which this instance has a role."""
        statuses = []
        for owner in self.owners.values():
            statuses.append(_status(owner.name, "primary", owner.epoch, owner.log, owner.frozen.stands))
        for follower in self.followers.values():
            ties = follower.following
            role = "backup" if ties.in_sync else "joining"
            statuses.append(_status(follower.name, role, follower.epoch, follower.log, ties.frozen.stands))
        return tuple(sorted(statuses, key=lambda item: item.name))


def _status(name: str, role: str, epoch: int, log: ShardLog | None, is_frozen: bool) -> ShardStatus:
    if log is None:
        return ShardStatus(name, role, epoch, 0, 0, 0, 0, is_frozen)
    return ShardStatus(
        name, role, epoch, log.last, log.committed, len(log.state.open), len(log.state.keyed), is_frozen
    )
