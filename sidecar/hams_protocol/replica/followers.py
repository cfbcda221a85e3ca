"""The arithmetic of one replica set in one epoch: who follows, who counts, how far all who count have come
(protocol.md, section 2).

Invariant: **the ack set contains the topology's in-sync set and its keepers at every moment**. A joiner
enters it before the compare-and-swap that declares it in sync; a member leaves it after the topology without
it is known. So whatever is called durable is held by everybody whom a manager may promote.
"""

from collections.abc import Iterable, Mapping

from hams_protocol.context import InvariantError
from hams_protocol.due import FOREVER
from hams_protocol.ids import InstanceId
from hams_protocol.lateness import pause_s
from hams_protocol.replica.links import Links
from hams_protocol.replica.progress import Progress
from hams_protocol.topology import ReplicaSet


class Followers:
    """All followers of one leader in one epoch.

    An instance that loses its role here may live on, and lets go of what it held: a frontend has a role in
    each of many shards, a backup may keep another state. So what it said counts for one naming only.

    `hold_base`: who is in sync when an epoch begins holds what that begins with, and need not say so. That is
    so for a log, of which managers have chosen the end by what everybody holds; so nobody may come in sync
    later whom its owner does not know. A backup may be yet to go back to the record of the end, and counts
    once it has said so.

    `dropping`: members whose removal is proposed. Their word is needed until a topology without them is
    known, and does not protect any more: they may be out of the set already (`Block`).
    """

    def __init__(self, links: Links | None = None, hold_base: bool = False) -> None:
        self._links = Links() if links is None else links
        self._hold_base = hold_base
        self._generation = -1
        self._in_sync: tuple[InstanceId, ...] = ()
        self.all: dict[InstanceId, Progress] = {}
        self.called: InstanceId | None = None
        self.dropping: set[InstanceId] = set()

    # -- members ---------------------------------------------------------------------------------------------

    def sync(self, replica_set: ReplicaSet, base: int, generation: int, now: float) -> None:
        """Take over the topology's in-sync and joining members and its keepers. Those in sync from the start
        of the epoch hold `base`.

        A keeper that is called, but not named yet, stays: whether its naming has been committed may not be
        known here. Not where generations were missed: by one of them it may have forgotten the state. Raises
        InvariantError.
        """
        begins = self._generation < 0
        missed = not begins and generation > self._generation + 1
        self._generation = generation
        self._in_sync = (*replica_set.in_sync, *replica_set.keepers)
        self.dropping.intersection_update(replica_set.in_sync)
        named = (*self._in_sync, *replica_set.joining)
        if missed and self.called not in named:
            self.called = None
        stays = {*named, self.called}
        for instance in [instance for instance in self.all if instance not in stays]:
            del self.all[instance]
        for instance in self._in_sync:
            if instance not in self.all:
                if self._hold_base and not begins:
                    raise InvariantError(f"{instance} came in sync in {replica_set.name} without its primary")
                member = self._add(instance, True, generation, now, instance in replica_set.keepers)
                member.sent = member.received = base
                member.applied = base if self._hold_base else -1
            member = self.all[instance]
            member.in_sync = member.ack = True
            member.copying = False
        for instance in replica_set.joining:
            joiner = self.all.get(instance)
            if joiner is None or joiner.in_sync:
                self._add(instance, False, generation, now)
            elif missed:
                joiner.begin_anew(generation)  # it may have been dropped and named again in what was missed
            else:
                joiner.in_sync = False
        self.check(replica_set.name)

    def _add(
        self, instance: InstanceId, in_sync: bool, generation: int, now: float, keeper: bool = False
    ) -> Progress:
        added = self.all[instance] = Progress(instance, in_sync, generation, now, keeper)
        added.down_since = self._links.down.get(instance, FOREVER)
        added.refused = instance in self._links.refused
        added.reached = instance in self._links.up
        return added

    def call(self, keeper: InstanceId, generation: int, now: float) -> Progress:
        """Begin to copy the state to an instance of another operator."""
        self.called = keeper
        return self._add(keeper, False, generation, now, keeper=True)

    def dismiss(self, keeper: InstanceId) -> None:
        """It is not named, and will not be."""
        del self.all[keeper]
        self.called = None

    def drop(self, remaining: ReplicaSet) -> None:
        """It is proposed that whoever is not in the `remaining` set be dropped: for good, whatever becomes of
        the proposal."""
        self.dropping.update(item for item in self._in_sync if item not in remaining.holders)

    # -- arithmetic ------------------------------------------------------------------------------------------

    def check(self, name: str) -> None:
        """The ack set contains the in-sync set and the keepers. Raises InvariantError."""
        for instance in self._in_sync:
            member = self.all.get(instance)
            if member is None or not member.ack:
                raise InvariantError(f"in-sync {instance} is not in the ack set of {name}")

    @property
    def ack_set(self) -> list[Progress]:
        """Whose apply makes a position durable."""
        return [follower for follower in self.all.values() if follower.ack]

    def applied_by_all(self) -> int | None:
        """The newest position applied by the whole ack set; None if there is nobody in it."""
        applied = [follower.applied for follower in self.all.values() if follower.ack]
        return min(applied) if applied else None

    @property
    def some_protects(self) -> bool:
        """Whether somebody is in sync who is so whatever becomes of what is proposed."""
        return not self.dropping.issuperset(self._in_sync)

    def some_in_reach(self, holders: Iterable[InstanceId]) -> bool:
        """Whether the connection to one of these stands, as far as is known."""
        return any(instance in self.all and self.all[instance].down_since == FOREVER for instance in holders)

    def staying(self, members: Mapping[InstanceId, object]) -> list[Progress]:
        """Backups in sync that are registered, in reach, and have not asked to be let go."""
        return [
            item
            for item in self.all.values()
            if item.in_sync
            and not item.keeper
            and item.leaves_at == FOREVER
            and item.down_since == FOREVER
            and item.instance in members
        ]

    # -- what is heard ---------------------------------------------------------------------------------------

    def acknowledge(
        self, instance: InstanceId, received: int, applied: int, now: float, generation: int = 0
    ) -> Progress | None:
        """Take in how far a follower has come. `generation`: the newest it knew when it said so, 0 if that is
        not told.

        None if it is no follower, or one that is yet to ask for its copy, or if it was said before it was
        named.
        """
        follower = self.all.get(instance)
        if follower is None:
            return None
        follower.heard = True
        if follower.copying or (not follower.in_sync and 0 < generation < follower.named_in):
            return None
        if received > follower.received or applied > follower.applied:
            follower.progress_at = follower.silent_since = now
        follower.received = max(follower.received, received)
        follower.applied = max(follower.applied, applied)
        follower.sent = max(follower.sent, follower.received)
        return follower

    def down(self, instance: InstanceId, refused: bool, now: float) -> None:
        """The connection to a follower broke; `refused` if nobody listens there any more."""
        follower = self.all.get(instance)
        if follower is not None:
            if follower.down_since == FOREVER and not follower.owes:
                follower.silent_since = now
            follower.down_since = min(follower.down_since, now)
            follower.refused = follower.refused or refused

    def up(self, instance: InstanceId, now: float) -> Progress | None:
        """The connection stands again: what it has not acknowledged may be lost. While it was broken nothing
        could be received."""
        follower = self.all.get(instance)
        if follower is not None:
            if follower.down_since != FOREVER:
                follower.progress_at += now - max(follower.progress_at, follower.down_since)
                follower.silent_since = now
            follower.down_since = FOREVER
            follower.refused = False
            follower.reached = True
            follower.copied_by = -FOREVER
        return follower

    def late(self, by_s: float, now: float) -> None:
        """Their leader was stopped or starved for so long: what they said is still unread, so they get that
        time back."""
        for follower in self.all.values():
            follower.progress_at = min(follower.progress_at + by_s, now)
            follower.silent_since = min(follower.silent_since + pause_s(by_s), now)
            if follower.down_since != FOREVER:
                follower.down_since = min(follower.down_since + by_s, now)
