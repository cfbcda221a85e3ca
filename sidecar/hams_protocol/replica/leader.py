"""A leader of a replica set: who is sent what again, who is admitted, dropped and replaced (protocol.md,
sections 2 and 7).

The set changes by its living leader's own compare-and-swap, or by a failover; never by a manager on its
behalf. `stateful.durability` leads a state, `frontend.replication` a shard's log: they say what is sent, and
how far their own watermark has come.
"""

from dataclasses import replace
from typing import Protocol

from hams_protocol import limits
from hams_protocol.context import Context
from hams_protocol.due import FOREVER, Due, Timed
from hams_protocol.events import Member
from hams_protocol.graph import Graph
from hams_protocol.ids import InstanceId
from hams_protocol.knowledge import Knowledge
from hams_protocol.lateness import Lateness
from hams_protocol.messages import AskCopy
from hams_protocol.replica.followers import Followers
from hams_protocol.replica.links import Links
from hams_protocol.replica.progress import Progress
from hams_protocol.replica.proposals import Proposals
from hams_protocol.topology import ReplicaSet, Topology, admit, call, name_keeper, shrink


class Host(Protocol):
    """What the instance that leads knows, whatever it leads. `members` are the registered instances;
    `draining`: it is to end."""

    graph: Graph
    instance: InstanceId
    knowledge: Knowledge
    lateness: Lateness
    links: Links
    members: dict[InstanceId, Member]
    proposals: Proposals
    draining: bool


class Leader(Timed):
    """The leader's part of one set in one epoch, which began at position `base`.

    `of`: whose instances may join, an operator or FRONTEND; `backups`: how many there should be. `blocks`:
    nothing is durable that the leader alone holds. `wishing`: a change of the set may be due.
    """

    def __init__(
        self,
        ctx: Context,
        host: Host,
        replica_set: ReplicaSet,
        base: int,
        of: str,
        backups: int,
        blocks: bool,
        is_log: bool = False,
    ) -> None:
        super().__init__(ctx)
        self._ctx = ctx
        self._host = host
        self._knowledge = host.knowledge
        self._proposals = host.proposals
        self._lateness = host.lateness
        self._of = of
        self._backups = backups
        self._blocks = blocks
        self._suspect_after_s = host.graph.data.recovery.suspect_after_s
        self._asks_from = ctx.now + 2 * limits.resend_after_s if replica_set.epoch > 1 else ctx.now
        self._called: set[InstanceId] = set()
        self.name = replica_set.name
        self.epoch = replica_set.epoch
        self.base = base
        self.wishing = True
        self._revoked: frozenset[InstanceId] = frozenset()
        self.followers = Followers(host.links, hold_base=is_log)
        self.sync(replica_set)

    # -- what is led -----------------------------------------------------------------------------------------

    @property
    def watermark(self) -> int:
        """The newest position that is durable, or committed."""
        raise NotImplementedError

    def retains(self, position: int) -> bool:
        """Whether who holds everything up to there can follow on from it."""
        raise NotImplementedError

    def send_to(self, follower: Progress) -> None:
        """Send what it was not sent yet, if it is to have it."""
        raise NotImplementedError

    def copy_to(self, follower: Progress) -> None:
        """Send a copy to follow on from, or as soon as there is one."""
        raise NotImplementedError

    def copy_goes_on(self, follower: Progress, ask: AskCopy) -> bool:
        """Whether a copy of several parts is on its way, and goes on from what has come of it."""
        return False

    def flying_nbytes(self, follower: Progress) -> int:
        """Bytes that are on their way to it: large ones need their time. What is small counts as nothing."""
        return 0

    def is_welcome(self, follower: Progress) -> bool:
        """Whether a joiner may come into the set."""
        return True

    def may_let_go(self, remaining: ReplicaSet) -> bool:
        """Whether the set may lose somebody who is to end."""
        return True

    # -- sending ---------------------------------------------------------------------------------------------

    def _is_behind(self, follower: Progress) -> bool:
        """Whether it has not received what it was sent, and has to."""
        return follower.ack and follower.owes and not follower.copying

    def _again_at(self, follower: Progress) -> float:
        """When what it has not received goes out again. That is no progress: a follower that receives nothing
        is dropped all the same."""
        if not self._is_behind(follower) or follower.down_since != FOREVER:
            return FOREVER
        patience_s = limits.resend_after_s + self.flying_nbytes(follower) / limits.stream_floor_bytes_s
        return max(follower.progress_at, follower.sent_at) + patience_s

    def _send_again(self) -> None:
        for follower in self.followers.all.values():
            if self._ctx.now >= self._again_at(follower):
                self.send_again(follower)

    def send_again(self, follower: Progress) -> None:
        """Send what it has not received."""
        before = follower.progress_at, follower.silent_since
        self._catch_up(follower)
        follower.progress_at, follower.silent_since = before

    def _catch_up(self, follower: Progress) -> None:
        """What it lacks: what follows on what it has received, if that is retained, else, for a joiner,
        another copy."""
        if not follower.in_sync and not self.retains(follower.received):
            self.copy_to(follower)
            return
        follower.sent = follower.received
        self.send_to(follower)

    def peer_up(self, peer: InstanceId) -> None:
        """A follower is back: what it has not acknowledged goes out again."""
        follower = self.followers.up(peer, self._ctx.now)
        if follower is not None and self._is_behind(follower):
            self.send_again(follower)

    def peer_down(self, peer: InstanceId, refused: bool) -> None:
        """A follower cannot be reached."""
        self.followers.down(peer, refused, self._ctx.now)
        self.wishing = True

    def late(self, by_s: float) -> None:
        """This instance's own loop was late."""
        self.followers.late(by_s, self._ctx.now)

    # -- joiners ---------------------------------------------------------------------------------------------

    def acknowledged(
        self, sender: InstanceId, received: int, applied: int, generation: int = 0
    ) -> Progress | None:
        """A follower says how far it has come (`Followers.acknowledge`). A joiner that has applied its copy
        enters the ack set with that."""
        follower = self.followers.acknowledge(sender, received, applied, self._ctx.now, generation)
        if follower is not None:
            self.consider(follower)
        return follower

    def consider(self, follower: Progress) -> None:
        """A joiner that has applied a copy enters the ack set; once it has applied everything durable it is
        proposed for the set (ADR 0016).

        What has become durable since that copy was made is sent to it then, and nothing more becomes durable
        until it has it: a joiner that ran after a leader that is alone, and need not wait, would be behind
        for ever.
        """
        if not (follower.ack or follower.copying) and follower.applied >= 0 and self.is_welcome(follower):
            follower.ack = True
            self._catch_up(follower)
        self.wishing = self.wishing or self._is_admissible(follower)

    def _is_admissible(self, follower: Progress) -> bool:
        """What was held when this epoch began counts, though a leader alone may not call it durable yet
        (`Block`)."""
        return (
            follower.ack
            and not (follower.in_sync or follower.copying)
            and follower.applied >= max(self.watermark, self.base)
            and self.is_welcome(follower)
        )

    def copy_asked(self, sender: InstanceId, ask: AskCopy) -> None:
        """A joiner asks for a copy, or says what it holds; not one that has been named anew since."""
        follower = self.followers.all.get(sender)
        if follower is None or follower.in_sync or ask.generation < follower.named_in:
            return
        follower.heard = True
        if ask.known < 0:
            # One that is on its way is enough; who counts has one.
            if follower.ack or self.copy_goes_on(follower, ask):
                return
            if self._ctx.now >= follower.copied_by:
                self.copy_to(follower)
            return
        if follower.copying:  # dropped and named again, without hearing of it: it goes on from what it holds
            follower.copying = follower.asked = False
            follower.sent = max(follower.sent, ask.known)
        self.holds(sender, ask)

    def holds(self, joiner: InstanceId, ask: AskCopy) -> None:
        """A joiner has said that it holds everything up to `ask.known`."""
        self.acknowledged(joiner, ask.known, -1, ask.generation)

    # -- the leader's own compare-and-swap -------------------------------------------------------------------

    def sync(self, replica_set: ReplicaSet) -> None:
        """A newer topology of the same epoch. Raises InvariantError."""
        topology = self._knowledge.topology
        self._revoked = frozenset(topology.revoked)
        self.followers.sync(replica_set, self.base, topology.generation, self._ctx.now)
        self.wishing = True

    def leave_asked(self, sender: InstanceId) -> None:
        """A follower is to end, and asks to be let go: once it is replaced, or after a while."""
        follower = self.followers.all.get(sender)
        if follower is not None:
            wait_s = 0.0 if follower.keeper else limits.leave_wait_s  # another keeper needs no start
            follower.leaves_at = min(follower.leaves_at, self._ctx.now + wait_s)
            self.wishing = True

    def next_change(self) -> Topology | None:
        """The next change of this set that its leader wants, if any."""
        changed = self._drop() or self._admit() or self._replace()
        if changed is None:
            self.wishing = self._host.draining or any(
                item.leaves_at != FOREVER for item in self.followers.all.values()
            )
        elif self._blocks:
            self.followers.drop(changed.find(self.name))
        return changed

    def _drop(self) -> Topology | None:
        """Without a member that is gone; until that is known, it stays in the ack set."""
        for follower in self.followers.all.values():
            if follower.instance in self.followers.dropping or self._ctx.now >= self._gone_at(follower):
                changed = self._without(follower)
                if changed is not None:
                    return changed
        return None

    def _with_another(self, changed: Topology) -> Topology:
        """In place of a joiner that was never heard, or never reached: managers may well reach that one, and
        would name it again."""
        replica_set = changed.find(self.name)
        self._called.intersection_update(self._host.members)
        self._called.update(self._knowledge.topology.find(self.name).joining)
        free = self._free(replica_set)
        if free is None or len(replica_set.in_sync) + len(replica_set.joining) >= max(self._backups, 1):
            return changed
        return changed.with_set(replace(replica_set, joining=(*replica_set.joining, free)))

    def _without(self, follower: Progress) -> Topology | None:
        topology = self._knowledge.topology
        changed = shrink(topology, self.name, self._host.instance, self.epoch, follower.instance)
        if changed is None or (follower.heard and not follower.is_out_of_reach):
            return changed
        return self._with_another(changed)

    def _gone_at(self, follower: Progress) -> float:
        if follower.instance in self._revoked:
            return -FOREVER
        return follower.gone_at(
            follower.instance in self._host.members,
            self._suspect_after_s,
            limits.backup_lag_max_s + 2 * self.flying_nbytes(follower) // limits.stream_floor_bytes_s,
            self._lateness.judges_at,
        )

    def _admit(self) -> Topology | None:
        """With a joiner that has applied everything durable."""
        for follower in self.followers.all.values():
            if self._is_admissible(follower):
                change = name_keeper if follower.keeper else admit
                changed = change(
                    self._knowledge.topology, self.name, self._host.instance, self.epoch, follower.instance
                )
                if changed is not None:
                    return changed
        return None

    def _replace(self) -> Topology | None:
        """Whoever is to end is replaced first, within limits, and then let go.

        A leader that is to end itself lets nobody go: nobody knows who of the two ends first.
        """
        leavers = [item for item in self.followers.all.values() if item.leaves_at != FOREVER]
        if not leavers and not self._host.draining:
            return None
        topology, members = self._knowledge.topology, self._host.members
        replica_set = topology.find(self.name)
        wanted = max(self._backups, 1) if self._host.draining else self._backups
        staying = len(self.followers.staying(members))
        self._called.intersection_update(members)
        self._called.update(replica_set.joining, [item.instance for item in leavers])
        if staying + len(replica_set.joining) < wanted:
            free = self._free(replica_set)
            if free is not None:
                return call(topology, self.name, self._host.instance, self.epoch, free)
        for follower in leavers if not self._host.draining else ():
            if staying >= wanted or follower.leaves_at <= self._ctx.now:
                changed = self._without(follower)
                if changed is not None and self.may_let_go(changed.find(self.name)):
                    return changed
        return None

    def _free(self, replica_set: ReplicaSet) -> InstanceId | None:
        """A registered instance without a role here, nor a state or log that it has brought along. One that
        was named before was dropped, for a reason."""
        taken = {*replica_set.members, *self._called, *self._revoked}
        return min(
            (
                item.instance
                for item in self._host.members.values()
                if item.of == self._of and item.instance not in taken and item.former is None
            ),
            default=None,
        )

    def successor(self) -> InstanceId | None:
        """A backup in sync that is there to stay and has applied everything durable. One that is to end as
        well says so soon after an epoch has begun: nothing is handed over before."""
        if self._ctx.now < self._asks_from:
            return None
        return next(
            (
                item.instance
                for item in self.followers.staying(self._host.members)
                if item.applied >= self.watermark
            ),
            None,
        )

    # -- time ------------------------------------------------------------------------------------------------

    def _change_at(self, follower: Progress) -> float:
        """When the set is to be changed because of it. `KeeperChoice` looks after one that is called and not
        named."""
        if self._is_admissible(follower) or follower.instance in self.followers.dropping:
            return -FOREVER
        if follower.instance == self.followers.called:
            return FOREVER
        at = self._gone_at(follower)
        leaves_at = follower.leaves_at if follower.leaves_at > self._ctx.now else FOREVER
        return at if self._host.draining else min(at, leaves_at)

    def change_due(self) -> None:
        """The set is to be changed."""
        self.wishing = True

    def dues(self) -> list[Due]:
        """Send again; change the set, as soon as that may be proposed."""
        # After every event, so plainly: each `map` and `min` costs more than what it calls.
        change_at = again_at = FOREVER
        for follower in self.followers.all.values():
            at = self._change_at(follower)
            if at < change_at:
                change_at = at
            at = self._again_at(follower)
            if at < again_at:
                again_at = at
        if self._host.draining and self._ctx.now < self._asks_from:
            change_at = min(change_at, self._asks_from)
        if self.wishing and self._proposals.at > self._ctx.now:
            change_at = -FOREVER  # as soon as it may be proposed
        return [
            (max(change_at, self._proposals.at), self.change_due),
            (again_at, self._send_again),
        ]
