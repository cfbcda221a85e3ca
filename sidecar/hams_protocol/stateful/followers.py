"""Who receives a primary's records, and what they have said (protocol.md, section 2).

Invariant: **the ack set contains the topology's in-sync set and its keepers at every moment**. A joiner
enters it before the compare-and-swap that declares it in sync; a member leaves it after the topology without
it is known.
"""

from collections.abc import Iterable

from hams_protocol import limits
from hams_protocol.context import InvariantError
from hams_protocol.due import FOREVER
from hams_protocol.ids import InstanceId
from hams_protocol.lateness import pause_s
from hams_protocol.topology import ReplicaSet


class Follower:
    """One backup or joiner. `sent`, `received`, `applied` are versions, -1 for none; `copying` until it was
    sent a copy to follow from.

    `heard`: it has said something in this epoch. A joiner that has not may be starting still: it cannot be
    told from a dead one by a refused connection, only by its lease, or by its taking too long. `leaves_at`:
    it has asked to be let go, and this is how long it is kept for. `copied`: the version of the copy that it
    was sent last, of `copied_nbytes`, which may be on its way until `copied_by`. `named_in`: the generation
    that named it; what it said before is of no use. `keeper`: an instance of another operator, which the
    primary has called by itself. `silent_since`: like `progress_at`, but short delays of the primary itself
    do not move it.
    """

    __slots__ = (
        "ack",
        "applied",
        "asked",
        "asked_at",
        "copied",
        "copied_by",
        "copied_nbytes",
        "copying",
        "down_since",
        "heard",
        "instance",
        "keeper",
        "leaves_at",
        "named_at",
        "named_in",
        "progress_at",
        "received",
        "refused",
        "sent",
        "sent_at",
        "silent_since",
    )

    def __init__(
        self, instance: InstanceId, ack: bool, generation: int, now: float, keeper: bool = False
    ) -> None:
        self.instance = instance
        self.keeper = keeper
        self.ack = ack
        self.copying = not ack
        self.asked = False
        self.asked_at = self.copied_by = -FOREVER
        self.copied = -1
        self.copied_nbytes = 0
        self.sent = -1
        self.received = -1
        self.applied = -1
        self.progress_at = self.sent_at = self.silent_since = now
        self.named_at = now
        self.named_in = generation
        self.heard = ack
        self.leaves_at = FOREVER
        self.down_since = FOREVER
        self.refused = False

    def gone_at(
        self, is_registered: bool, suspect_after_s: float, lag_max_s: float, judges_at: float
    ) -> float:
        """When it counts as dead, or as one that does not receive what it is sent, if nothing more is heard
        of it: then its primary drops it from its set.

        Before `judges_at` silence is no reason: the primary's own loop is late. One of `silence_max_s` is,
        however late that runs.
        """
        at = -FOREVER if self.refused else self.down_since + suspect_after_s
        if self.received < self.sent:
            if not is_registered:
                at = min(at, self.progress_at + suspect_after_s)
            if self.ack:
                at = min(at, self.progress_at + max(limits.backup_lag_max_s, lag_max_s))
        if is_registered and not self.heard:
            at = max(at, self.named_at + limits.backup_lag_max_s)
        if not self.refused:
            at = max(at, judges_at)
        owes = self.down_since != FOREVER or (self.ack and self.received < self.sent)
        silence_ends = self.silent_since + max(limits.silence_max_s, lag_max_s)
        return min(at, silence_ends) if owes else at

    @property
    def ask_at(self) -> float:
        """When it should have said that it has applied what it received."""
        if self.copying or self.applied >= self.received or self.down_since != FOREVER:
            return FOREVER
        return max(self.progress_at, self.asked_at) + limits.resend_after_s


class Followers:
    """All followers of one primary in one epoch."""

    def __init__(self) -> None:
        self.all: dict[InstanceId, Follower] = {}
        self.called: InstanceId | None = None

    def sync(self, replica_set: ReplicaSet, base: int, generation: int, now: float) -> None:
        """Take over the topology's in-sync and joining members and its keepers. Those in sync from the start
        of the epoch hold `base`.

        A keeper that is called, but not named yet, stays: whether its naming has been committed may not be
        known here.
        """
        named = (*replica_set.in_sync, *replica_set.joining, *replica_set.keepers)
        stays = {*named, self.called}
        for instance in [instance for instance in self.all if instance not in stays]:
            del self.all[instance]
        for instance in named:
            follower = self.all.get(instance)
            keeper = instance in replica_set.keepers
            in_sync = keeper or instance in replica_set.in_sync
            if follower is None:
                follower = self.all[instance] = Follower(instance, in_sync, generation, now, keeper)
                if in_sync:
                    follower.sent = follower.received = base
            elif in_sync:
                follower.ack, follower.copying = True, False
        if not self.contains((*replica_set.in_sync, *replica_set.keepers)):
            raise InvariantError("the ack set must contain the in-sync set")

    def call(self, keeper: InstanceId, generation: int, now: float) -> Follower:
        """Begin to copy the state to an instance of another operator."""
        follower = self.all[keeper] = Follower(keeper, False, generation, now, keeper=True)
        self.called = keeper
        return follower

    def dismiss(self, keeper: InstanceId) -> None:
        """It is not named, and will not be."""
        del self.all[keeper]
        self.called = None

    def contains(self, holders: Iterable[InstanceId]) -> bool:
        """Whether every in-sync backup, or keeper, is in the ack set."""
        return all(instance in self.all and self.all[instance].ack for instance in holders)

    def some_in_reach(self, holders: Iterable[InstanceId]) -> bool:
        """Whether the connection to one of these stands, as far as is known."""
        return any(instance in self.all and self.all[instance].down_since == FOREVER for instance in holders)

    @property
    def ack_set(self) -> list[Follower]:
        """Whose apply makes a version durable."""
        return [follower for follower in self.all.values() if follower.ack]

    def applied_by_all(self) -> int | None:
        """The newest version applied by the whole ack set; None if there is nobody in it."""
        applied = [follower.applied for follower in self.all.values() if follower.ack]
        return min(applied) if applied else None

    def acknowledge(self, instance: InstanceId, received: int, applied: int, now: float) -> Follower | None:
        """Note how far a follower has come; None if it is no follower, or one that is yet to ask for its
        copy: that was said before it was named."""
        follower = self.all.get(instance)
        if follower is None:
            return None
        follower.heard = True
        if follower.copying:
            return None
        if received > follower.received or applied > follower.applied:
            follower.progress_at = follower.silent_since = now
        follower.received = max(follower.received, received)
        follower.applied = max(follower.applied, applied)
        return follower

    def down(self, instance: InstanceId, refused: bool, now: float) -> None:
        """The connection to a follower broke; `refused` if nobody listens there any more."""
        follower = self.all.get(instance)
        if follower is not None:
            if follower.down_since == FOREVER and follower.received >= follower.sent:
                follower.silent_since = now
            follower.down_since = min(follower.down_since, now)
            follower.refused = follower.refused or refused

    def up(self, instance: InstanceId, now: float) -> Follower | None:
        """The connection stands again: what it has not acknowledged may be lost. While it was broken nothing
        could be received."""
        follower = self.all.get(instance)
        if follower is not None:
            if follower.down_since != FOREVER:
                follower.progress_at += now - max(follower.progress_at, follower.down_since)
                follower.silent_since = now
            follower.down_since = FOREVER
            follower.refused = False
            follower.copied_by = -FOREVER
        return follower

    def late(self, by_s: float, now: float) -> None:
        """Their primary was stopped or starved for so long: what they said is still unread, so they get that
        time back."""
        for follower in self.all.values():
            follower.progress_at = min(follower.progress_at + by_s, now)
            follower.silent_since = min(follower.silent_since + pause_s(by_s), now)
            if follower.down_since != FOREVER:
                follower.down_since = min(follower.down_since + by_s, now)
