"""Who holds the owner's log: its followers, the ack set, and the changes of the in-sync set that the owner
proposes.

Invariant: the ack set contains the topology's in-sync set at every moment. A joiner enters it before the
compare-and-swap that admits it; a member leaves it only when a topology without it is known. An entry is
committed when all of the ack set hold it. It never decides for a manager: it changes its own set only, as the
living owner (protocol.md, section 2).
"""

from collections.abc import Mapping

from hams_protocol import limits
from hams_protocol.context import InvariantError
from hams_protocol.due import FOREVER, Due
from hams_protocol.events import Member
from hams_protocol.frontend.context import FrontendContext
from hams_protocol.frontend.log import ShardLog, copy_parts
from hams_protocol.graph import FRONTEND, WhenUnprotected
from hams_protocol.ids import InstanceId
from hams_protocol.lateness import pause_s
from hams_protocol.messages import LogAppend
from hams_protocol.topology import ReplicaSet, Topology, admit, call, shrink

COPYING = -1
"""`Follower.acked` while a copy is under way: nothing is sent behind it, and what it lacks is kept."""


class Follower:
    """What the owner knows of one holder of its log. `acked`: it holds everything up to there; `told`: the
    commit index it was told.

    `leaves_at`: it has asked to be let go, and this is how long it is kept for. `silent_since`: like
    `stalled_since`, but short delays of the owner itself do not move it.
    """

    __slots__ = (
        "acked",
        "counted",
        "in_sync",
        "instance",
        "leaves_at",
        "nacked",
        "resend_at",
        "sent",
        "silent_since",
        "stalled_since",
        "told",
    )

    def __init__(self, instance: InstanceId, index: int, in_sync: bool) -> None:
        self.instance = instance
        self.acked = index
        self.sent = index
        self.told = index
        self.nacked = -1
        self.in_sync = in_sync
        self.counted = in_sync
        self.leaves_at = FOREVER
        self.stalled_since = self.silent_since = FOREVER
        self.resend_at = FOREVER


class Replication:
    """The followers of one log, as its owner sees them."""

    def __init__(self, ctx: FrontendContext, shard: int, roles: ReplicaSet, log: ShardLog) -> None:
        self._ctx = ctx
        self._shard = shard
        self._log = log
        self._base = log.last
        self._roles = roles
        self._followers: dict[InstanceId, Follower] = {}
        self._in_sync = frozenset(roles.in_sync)
        self._revoked = frozenset(ctx.knowledge.topology.revoked)
        needs_backup = (
            ctx.graph.data.recovery.when_unprotected is WhenUnprotected.BLOCK
            and ctx.graph.data.frontend.replicas > 1
        )
        self._needs_backup = needs_backup and ctx.mode.replicates
        self._suspect_after_s = ctx.graph.data.recovery.suspect_after_s
        self._dropping: set[InstanceId] = set()
        self._called: set[InstanceId] = set()
        self._generation = ctx.generation
        self._named = dict.fromkeys(roles.joining, ctx.generation)
        self._began_at = ctx.now
        self.news_at = FOREVER
        for instance in roles.in_sync:
            self._followers[instance] = Follower(instance, log.last, True)

    # -- the set ---------------------------------------------------------------------------------------------

    @property
    def ack_set(self) -> frozenset[InstanceId]:
        """Whose acknowledgement an entry needs before it is committed."""
        return frozenset(item.instance for item in self._followers.values() if item.counted)

    def roles_changed(self, roles: ReplicaSet) -> None:
        """A newer topology of the same epoch: who has left the set leaves the ack set, now that it is
        known."""
        self._ctx.wishing = True
        self._roles = roles
        self._in_sync = frozenset(roles.in_sync)
        self._dropping.intersection_update(self._in_sync)
        self._revoked = frozenset(self._ctx.knowledge.topology.revoked)
        joining = frozenset(roles.joining)
        self._name(joining)
        for instance, follower in list(self._followers.items()):
            if instance in self._in_sync:
                follower.in_sync = follower.counted = True
            elif follower.in_sync or instance not in joining:
                del self._followers[instance]
        for instance in self._in_sync.difference(self._followers):
            raise InvariantError(f"{instance} became in sync in shard {self._shard} without its owner")

    def _name(self, joining: frozenset[InstanceId]) -> None:
        """Since which generation joiners have been joining. One is missing in what is known here: any of them
        may have been dropped and named again in it, and have begun anew. Who has a log says so again; nobody
        is proposed before."""
        missed, self._generation = self._ctx.generation > self._generation + 1, self._ctx.generation
        self._named = {
            item: self._generation if missed else self._named.get(item, self._generation) for item in joining
        }
        for follower in self._followers.values():
            if missed and follower.instance in joining and follower.acked != COPYING:
                follower.counted = False
                follower.sent = follower.acked
                follower.acked = COPYING
                follower.stalled_since = follower.silent_since = follower.resend_at = FOREVER

    def check(self) -> None:
        """The ack set contains the in-sync set."""
        for instance in self._in_sync:
            follower = self._followers.get(instance)
            if follower is None or not follower.counted:
                raise InvariantError(f"in-sync {instance} is not in the ack set of shard {self._shard}")

    def committable(self) -> int:
        """The index up to which the ack set holds the log.

        Under Block nothing is committed that only the owner holds, and whom it proposes to drop may be out of
        the set before that is known here.
        """
        counted = self._in_sync - self._dropping
        if self._needs_backup and not counted:
            return self._log.committed
        index = self._log.last
        for follower in self._followers.values():
            if follower.counted and follower.acked < index:
                index = follower.acked
        return index

    # -- sending ---------------------------------------------------------------------------------------------

    def feed(self) -> None:
        """Send every follower what it was not sent yet."""
        last = self._log.last
        for follower in self._followers.values():
            if follower.sent < last and follower.acked >= 0:
                self._feed(follower)

    def _feed(self, follower: Follower) -> None:
        log, now = self._log, self._ctx.now
        while follower.sent < log.last:
            if not log.holds(follower.sent + 1):
                raise InvariantError(
                    f"entries of shard {self._shard} that {follower.instance} lacks are gone"
                )
            entries = log.entries(follower.sent + 1)
            self._ctx.send(
                follower.instance,
                LogAppend(self._shard, log.epoch, follower.sent + 1, entries, log.committed),
            )
            follower.sent += len(entries)
        follower.told = log.committed
        if follower.stalled_since == FOREVER and follower.acked < log.last:
            follower.stalled_since = follower.silent_since = now
            follower.resend_at = now + limits.resend_after_s

    def acknowledged(self, sender: InstanceId, last: int, generation: int) -> None:
        """A follower holds everything up to `last`, and knows `generation` (0: it is of a version that does
        not say)."""
        follower = self._followers.get(sender)
        if follower is None or (not follower.in_sync and 0 < generation < self._named.get(sender, 0)):
            return
        last = min(last, self._log.last)
        if follower.acked == COPYING and last < follower.sent:
            return  # of an older copy: what follows on it may be gone, and a newer copy is on its way
        if last > follower.acked:
            copied = follower.acked == COPYING
            follower.acked = last
            follower.sent = max(follower.sent, last)
            follower.stalled_since = FOREVER if last == self._log.last else self._ctx.now
            follower.silent_since = follower.stalled_since
            follower.resend_at = FOREVER if last == self._log.last else self._ctx.now + limits.resend_after_s
            if copied and follower.sent < self._log.last:
                self._feed(follower)
        elif last == follower.acked < follower.sent and follower.nacked != last:
            follower.nacked = last
            self._again(follower)
        self._count(follower)

    def _count(self, follower: Follower) -> None:
        """A joiner that has taken its copy is taken into the ack set (ADR 0016), and may be admitted once it
        holds everything committed."""
        follower.counted = True
        self._ctx.wishing = self._ctx.wishing or self._may_be_admitted(follower)

    def _may_be_admitted(self, follower: Follower) -> bool:
        """What the log held when this epoch began is committed, though an owner alone may not call it so yet
        (Block)."""
        return (
            not follower.in_sync
            and follower.counted
            and follower.acked >= max(self._log.committed, self._base)
        )

    def _again(self, follower: Follower) -> None:
        follower.sent = follower.acked
        self._feed(follower)
        follower.resend_at = (
            FOREVER if follower.acked == self._log.last else self._ctx.now + limits.resend_after_s
        )

    def copy_wanted(self, joiner: InstanceId, known: int, generation: int) -> None:
        """A joiner of this epoch, which knows `generation`, asks for the log; one that has `known` entries of
        it already follows on from there."""
        if joiner not in self._roles.joining:
            return
        follower = self._followers.get(joiner)
        if follower is not None and known >= follower.acked and self._log.holds(known + 1):
            self.acknowledged(joiner, known, generation)
            return
        if follower is not None and follower.counted:
            return
        log = self._log
        for part in copy_parts(self._shard, log):
            self._ctx.send(joiner, part)
        follower = self._followers[joiner] = Follower(joiner, log.committed, False)
        follower.acked = COPYING
        self._ctx.wishing = False

    def trim(self) -> None:
        """Let go of what every follower has; a joiner too far behind must copy anew."""
        if len(self._followers) == 0:
            self._log.trim(self._log.committed)
            return
        needed = self._log.committed
        for follower in list(self._followers.values()):
            floor = follower.sent if follower.acked == COPYING else follower.acked
            if not follower.counted and self._log.last - floor > limits.joiner_lag_entries_max:
                del self._followers[follower.instance]
            elif floor < needed:
                needed = floor
        self._log.trim(needed)

    # -- time and connections --------------------------------------------------------------------------------

    def peer_up(self, peer: InstanceId) -> None:
        """The connection to a peer stands again: what it has not acknowledged may be lost."""
        follower = self._followers.get(peer)
        if follower is not None and follower.acked >= 0:
            self._again(follower)

    def late(self, by_s: float) -> None:
        """The owner was stopped or starved for so long: acknowledgements may lie unread."""
        for follower in self._followers.values():
            if follower.stalled_since != FOREVER:
                follower.stalled_since = min(follower.stalled_since + by_s, self._ctx.now)
                follower.silent_since = min(follower.silent_since + pause_s(by_s), self._ctx.now)

    def committed_news(self) -> None:
        """Followers should hear of a new commit index soon, even if no entry follows."""
        if self._followers and self.news_at == FOREVER:
            self.news_at = self._ctx.now + limits.completion_delay_s

    def dues(self, propose_at: float) -> list[Due]:
        """Resend, tell commit indices, and, not before `propose_at`, the next change of the set."""
        followers = self._followers.values()
        return [
            (min([follower.resend_at for follower in followers], default=FOREVER), self._resend),
            (self.news_at, self._tell_news),
            (max(min(map(self._wish_at, followers), default=FOREVER), propose_at), self._wish),
        ]

    def _resend(self) -> None:
        for follower in self._followers.values():
            if follower.resend_at <= self._ctx.now:
                self._again(follower)

    def _tell_news(self) -> None:
        log = self._log
        self.news_at = FOREVER
        for follower in self._followers.values():
            if follower.told < log.committed and follower.sent == log.last:
                self._ctx.send(
                    follower.instance, LogAppend(self._shard, log.epoch, log.last + 1, (), log.committed)
                )
                follower.told = log.committed

    def _wish(self) -> None:
        self._ctx.wishing = True

    def _wish_at(self, follower: Follower) -> float:
        """When the owner wants a change of the set because of this follower."""
        if not follower.counted:
            return FOREVER
        if self._may_be_admitted(follower) or follower.instance in self._dropping:
            return -FOREVER
        lost_at = self._lost_at(follower)
        # An owner that is to end itself lets nobody go.
        return lost_at if self._ctx.draining else min(lost_at, follower.leaves_at)

    def _lost_at(self, follower: Follower) -> float:
        """When a member of the ack set counts as dead, or as one that does not receive. Joiners outside it
        hold nobody up: managers look after them."""
        if follower.instance in self._revoked:
            return -FOREVER
        at = follower.stalled_since + limits.backup_lag_max_s
        at = min(at, self._ctx.down.get(follower.instance, FOREVER) + self._suspect_after_s)
        if follower.instance not in self._ctx.refused:
            at = max(at, self._ctx.lateness.judges_at)
        return min(at, follower.silent_since + limits.silence_max_s)

    # -- the owner's own compare-and-swap --------------------------------------------------------------------

    def leave_asked(self, sender: InstanceId) -> None:
        """A follower is to end, and asks to be let go."""
        follower = self._followers.get(sender)
        if follower is not None and follower.leaves_at == FOREVER:
            follower.leaves_at = self._ctx.now + limits.leave_wait_s
            self._ctx.wishing = True

    def wish(self, topology: Topology, members: Mapping[InstanceId, Member]) -> Topology | None:
        """The next change of this set that its owner wants, if any. `members` are registered."""
        name, owner, epoch = self._roles.name, self._ctx.instance, self._log.epoch
        for instance in (*self._roles.in_sync, *self._roles.joining):
            if instance in self._dropping or self._is_lost(instance):
                if self._needs_backup and instance in self._in_sync:
                    self._dropping.add(instance)
                return shrink(topology, name, owner, epoch, instance)
        for instance in self._roles.joining:
            follower = self._followers.get(instance)
            if follower is not None and self._may_be_admitted(follower):
                return admit(topology, name, owner, epoch, instance)
        leavers = [item for item in self._followers.values() if item.in_sync and item.leaves_at != FOREVER]
        return self._replace(topology, leavers, members) if leavers or self._ctx.draining else None

    def _replace(
        self, topology: Topology, leavers: list[Follower], members: Mapping[InstanceId, Member]
    ) -> Topology | None:
        """Who is to end is replaced first, within limits, and then let go; an owner that is to end itself
        lets nobody go (`stateful.leaving`)."""
        name, owner, epoch = self._roles.name, self._ctx.instance, self._log.epoch
        wanted = self._ctx.graph.data.frontend.replicas - 1 if self._ctx.mode.replicates else 0
        draining = self._ctx.draining
        wanted = max(wanted, 1) if draining else wanted
        self._called.intersection_update(members)
        self._called.update(self._roles.joining, [item.instance for item in leavers])
        staying = sum(self._stays(item, members) for item in self._followers.values())
        if staying + len(self._roles.joining) < wanted:
            taken = {
                *self._roles.members,
                *self._called,
                *self._revoked,
            }  # who was named before was dropped, by who knows why
            free = [
                item.instance
                for item in members.values()
                if item.of == FRONTEND and item.instance not in taken and item.kept is None
            ]
            if free:
                return call(topology, name, owner, epoch, min(free))
        for follower in leavers if not draining else ():
            if staying >= wanted or follower.leaves_at <= self._ctx.now:
                if self._needs_backup:
                    self._dropping.add(follower.instance)
                return shrink(topology, name, owner, epoch, follower.instance)
        return None

    def successor(self, members: Mapping[InstanceId, Member], end: int) -> InstanceId | None:
        """An in-sync follower that is there to stay and holds the log up to `end`; who is to end as well says
        so soon after an epoch has begun."""
        if self._roles.epoch > 1 and self._ctx.now < self._began_at + 2 * limits.resend_after_s:
            return None
        return next(
            (
                item.instance
                for item in self._followers.values()
                if item.acked >= end and self._stays(item, members)
            ),
            None,
        )

    def _stays(self, follower: Follower, members: Mapping[InstanceId, Member]) -> bool:
        here = follower.instance in members and follower.instance not in self._ctx.down
        return here and follower.in_sync and follower.leaves_at == FOREVER

    def _is_lost(self, instance: InstanceId) -> bool:
        follower = self._followers.get(instance)
        return follower is not None and follower.counted and self._ctx.now >= self._lost_at(follower)
