"""A primary's search for a keeper: an instance of another operator that holds the state while no backup does
(protocol.md, section 2).

Invariant: a keeper that is named, or may yet be by a proposal whose outcome is not known, is in the ack set.
An instance that was called once in an epoch is never called again in it: what it acknowledged the first time
must not count for another copy.
"""

from typing import TYPE_CHECKING

from hams_protocol import limits
from hams_protocol.due import FOREVER
from hams_protocol.graph import FRONTEND, WhenUnprotected
from hams_protocol.ids import InstanceId
from hams_protocol.replica.followers import Followers
from hams_protocol.replica.progress import Progress

if TYPE_CHECKING:
    from hams_protocol.stateful.machine import StatefulMachine


class KeeperChoice:
    """Which keeper a primary has called in one epoch, and which ones it has done with."""

    def __init__(self, machine: "StatefulMachine", epoch: int, followers: Followers) -> None:
        self._m = machine
        self._ctx = machine.ctx
        self._epoch = epoch
        self._followers = followers
        self._had_backup = epoch > 1
        self._called_at = FOREVER
        self._proposed_in = -1
        self._done: dict[InstanceId, None] = {}

    @property
    def called(self) -> Progress | None:
        """The one that is being copied to, and not named yet."""
        return None if self._followers.called is None else self._followers.all[self._followers.called]

    def named(self) -> None:
        """A newer topology: a keeper that it names is one from now on, and one that it names no more is done
        with."""
        replica_set = self._m.knowledge.set_of(self._m.operator.name)
        self._had_backup = self._had_backup or bool(replica_set.in_sync)
        for keeper in replica_set.keepers:
            self._done_with(keeper)
        if self._followers.called in replica_set.keepers:
            self._followers.called = None

    def _done_with(self, keeper: InstanceId) -> None:
        """Not called again in this epoch, not even after its lease was away for a while: it keeps its id. The
        oldest one away is forgotten."""
        self._done[keeper] = None
        if len(self._done) > limits.keepers_done_max:
            away = next((item for item in self._done if item not in self._m.members), None)
            if away is not None:
                del self._done[away]

    def is_wanted(self) -> bool:
        """Whether the state has one holder only: it has lost its last backup, and neither another one nor a
        keeper is in sync.

        A set that begins has nothing yet that only a keeper could save; its first backups copy it at once.
        """
        m = self._m
        replica_set = m.knowledge.set_of(m.operator.name)
        return (
            self._had_backup
            and not replica_set.in_sync
            and not replica_set.keepers
            and m.operator.backups > 0
            and m.mode.replicates
            and m.graph.data.recovery.when_unprotected is WhenUnprotected.CONTINUE
        )

    def proposed(self) -> None:
        """That it be named has been proposed: until a later generation is known, it may be."""
        self._proposed_in = self._m.knowledge.topology.generation

    @property
    def is_settled(self) -> bool:
        """Whether it is known that the one that was called is not named, and will not be."""
        return self._m.knowledge.topology.generation > self._proposed_in

    def is_vain(self, follower: Progress, patience_s: float) -> bool:
        """Whether the one that was called is of no use: it is not wanted any more, is gone, is to end, or
        does not answer."""
        gone = follower.down_since != FOREVER or follower.instance not in self._m.members
        revoked = follower.instance in self._m.knowledge.topology.revoked
        late = follower.applied < 0 and self._ctx.now >= self._called_at + patience_s
        return not self.is_wanted() or gone or revoked or late or follower.leaves_at != FOREVER

    def call(self) -> Progress | None:
        """The next one, if there is any: on another host than this one where that is known, a frontend last,
        and where few states are kept."""
        m = self._m
        topology = m.knowledge.topology
        mine = m.members.get(m.instance)
        host = "" if mine is None else mine.host
        busy = [item for replica_set in topology.sets for item in replica_set.keepers]
        free = [
            item
            for item in m.members.values()
            if item.keeps
            and item.of != m.operator.name
            and (item.of == FRONTEND or item.of in m.graph.operators)
            and item.instance not in topology.revoked
            and item.instance not in self._done
            and item.instance not in m.links.down  # it may be had later: it is not done with
        ]
        if not free:
            return None
        chosen = min(
            free,
            key=lambda item: (
                bool(host) and item.host == host,
                item.of == FRONTEND,
                busy.count(item.instance),
                item.instance,
            ),
        )
        self._done_with(chosen.instance)
        self._called_at = self._ctx.now
        self._proposed_in = -1
        return self._followers.call(chosen.instance, topology.generation, self._ctx.now)

    def late(self, by_s: float) -> None:
        """Its primary was stopped or starved for so long: what the one that was called said is still
        unread."""
        if self._called_at != FOREVER:
            self._called_at = min(self._called_at + by_s, self._ctx.now)

    def deadline(self, patience_s: float) -> float:
        """When the one that was called has taken too long."""
        called = self.called
        return FOREVER if called is None or called.applied >= 0 else self._called_at + patience_s
