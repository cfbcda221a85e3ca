"""Planned ends within one replica set: who is replaced, and then let go (protocol.md, section 7, at the end).

Invariant: nobody who is in sync ends before the topology has let it go. A backup that is to end stays a
backup like any other, and may be promoted; a primary that is to end serves on until a backup that stays can
take over. Both are replaced first, within limits.
"""

from typing import TYPE_CHECKING

from hams_protocol import limits
from hams_protocol.ids import InstanceId
from hams_protocol.stateful.followers import Follower, Followers
from hams_protocol.topology import Topology, call, shrink

if TYPE_CHECKING:
    from hams_protocol.stateful.machine import StatefulMachine

FOREVER = float("inf")


class Leaving:
    """What a primary knows of who is to end, in one epoch. `some`: there is somebody."""

    def __init__(self, machine: "StatefulMachine", epoch: int, followers: Followers) -> None:
        self._m = machine
        self._ctx = machine.ctx
        self._epoch = epoch
        self._followers = followers
        self.some = False
        self.due = FOREVER
        self._asks_from = machine.ctx.now + 2 * limits.resend_after_s if epoch > 1 else machine.ctx.now
        self._called: set[InstanceId] = set()

    def asked(self, sender: InstanceId, epoch: int) -> None:
        """A backup asks to be let go."""
        follower = self._followers.all.get(sender)
        if follower is not None and epoch == self._epoch:
            wait_s = 0.0 if follower.keeper else limits.leave_wait_s  # another keeper needs no start
            follower.leaves_at = min(follower.leaves_at, self._ctx.now + wait_s)
            self.some = True

    def successor(self) -> InstanceId | None:
        """A backup in sync that is there to stay. One that is to end as well says so soon after an epoch has
        begun: nothing is handed over before."""
        return None if self._ctx.now < self._asks_from else next(iter(self._staying()), None)

    def _staying(self) -> list[InstanceId]:
        m, known = self._m, self._followers.all
        in_sync = m.knowledge.set_of(m.operator.name).in_sync
        return [
            item
            for item in in_sync
            if item in m.members and item in known and known[item].leaves_at == FOREVER
        ]

    def change(self, draining: bool) -> Topology | None:
        """The next step: a substitute joins, then a backup is let go.

        A primary that is to end itself (`draining`) lets no backup go: nobody knows who of the two ends
        first.
        """
        now = self._ctx.now
        m = self._m
        self.due = min(
            (item.leaves_at for item in self._followers.all.values() if item.leaves_at > now), default=FOREVER
        )
        if draining and now < self._asks_from:
            self.due = min(self.due, self._asks_from)
        name = m.operator.name
        replica_set, staying = m.knowledge.set_of(name), self._staying()
        self._called.intersection_update(m.members)
        self._called.update(replica_set.joining)
        wanted = max(m.operator.backups, 1) if draining else m.operator.backups
        if len(staying) + len(replica_set.joining) < wanted and (free := self._free()) is not None:
            return call(m.knowledge.topology, name, m.instance, self._epoch, free)
        if draining:
            return None
        leaver = next(
            (item for item in self._followers.all.values() if _may_go(item, len(staying) >= wanted, now)),
            None,
        )
        return (
            None
            if leaver is None
            else shrink(m.knowledge.topology, name, m.instance, self._epoch, leaver.instance)
        )

    def _free(self) -> InstanceId | None:
        """A registered instance of this operator without a role. Whoever was named before and is not any more
        was dropped, by who knows why."""
        m = self._m
        replica_set, revoked = m.knowledge.set_of(m.operator.name), m.knowledge.topology.revoked
        taken = {*replica_set.members, *self._called, *revoked}
        taken.update(
            item.instance
            for item in m.members.values()
            if item.kept is not None and item.kept in replica_set.members
        )
        return min(
            (
                item.instance
                for item in m.members.values()
                if item.of == m.operator.name and item.instance not in taken
            ),
            default=None,
        )


def _may_go(follower: Follower, replaced: bool, now: float) -> bool:
    return follower.leaves_at <= now or (replaced and follower.leaves_at != FOREVER)
