"""When a version is durable where states are replayed: once it is in the store (protocol.md, section 9).

Laws it keeps: nothing is executed before the version that the epoch begins with is stored; a version is
stored only if what it depends on of others is durable; what came after the newest stored one can be run
again, for all who depend on it know how it came about.
"""

from typing import TYPE_CHECKING

from hams_protocol import limits
from hams_protocol.deps import others
from hams_protocol.due import FOREVER, Due
from hams_protocol.effects import Capture, NoteDurable, WriteCheckpoint
from hams_protocol.events import CheckpointWritten
from hams_protocol.knowledge import Status
from hams_protocol.messages import Durable, StateCopy
from hams_protocol.stateful.durability import Durability
from hams_protocol.topology import ReplicaSet
from hams_protocol.versions import Version

if TYPE_CHECKING:
    from hams_protocol.stateful.machine import StatefulMachine


class StoredDurability(Durability):
    """A primary's epoch without followers: every so many batches, and when it has nothing to do, its state is
    captured, and stored."""

    def __init__(self, machine: "StatefulMachine", replica_set: ReplicaSet) -> None:
        super().__init__(machine, replica_set, lambda: False)
        assert machine.operator.checkpoint is not None, "a graph whose states are replayed stores them"
        self._batches = machine.operator.checkpoint.batches
        open_max = machine.graph.data.frontend.max_in_flight
        self._units_max = max(open_max // limits.stored_of_open_requests, 1)
        self._captured = machine.version
        self._writing: int | None = None
        self.idle_at = FOREVER
        self._uncaptured = 0
        self._store_at = FOREVER

    @property
    def undurable(self) -> int:
        """None, as far as the window goes: what is not durable is bounded by `window_open`."""
        return 0

    @property
    def window_open(self) -> bool:
        """Whether one more version may be executed."""
        most = limits.replayed_checkpoints_max * self._batches
        return self.durable >= self.base and self._m.store.count_after(self.durable) < most

    def executed(self) -> None:
        """One more version."""
        self._uncaptured += 1
        self.idle_at = self._ctx.now + limits.checkpoint_idle_s

    def capture(self) -> int | None:
        """The version whose state is to be captured now, while no batch runs; None if it is not time."""
        version = self._m.version
        early = version - self._captured >= self._units_max
        if not early and self._uncaptured < self._batches and self._ctx.now < self.idle_at:
            return None
        self._uncaptured, self._captured, self.idle_at = 0, version, FOREVER
        changed = next((item for item in reversed(self._m.store.versions) if item.changed), None)
        if changed is None or changed.state is not None:
            self.advance()
            return None
        self._ctx.emit(Capture(changed.number))
        return changed.number

    def ship(self) -> None:
        """There is nobody to ship to: what is captured is stored."""
        self.advance()

    def advance(self) -> None:
        """Store the newest version that may be, if none is on its way."""
        if self._writing is not None or self._ctx.now < self._store_at < FOREVER:
            return
        self._store_at = FOREVER
        version = self._storable()
        waits = version is None and self._awaits_others()
        self._waiting_since = min(self._waiting_since, self._ctx.now) if waits else FOREVER
        if version is not None:
            self._writing = version.number
            self._ctx.emit(WriteCheckpoint(self._copy(version)))

    def written(self, event: CheckpointWritten) -> None:
        """It is stored, or could not be: that is tried again after a while."""
        if event.epoch != self.epoch or event.version != self._writing:
            return
        self._writing = None
        if event.whole:
            self._is_durable(event.version)
            self.advance()
        else:
            self._store_at = self._ctx.now + limits.checkpoint_again_after_s

    def _is_durable(self, version: int) -> None:
        m = self._m
        self.durable = version
        notice = Durable((m.own_dep(self.epoch, version),))
        m.knowledge.announce(notice)
        m.store.trim(version)
        self._ctx.emit(NoteDurable(self.name, m.knowledge.topology.generation, self.epoch, version))
        self.notices.announce(notice)

    def _storable(self) -> Version | None:
        knowledge = self._m.knowledge
        for version in reversed(self._m.store.versions):
            if version.number <= self.durable:
                return None
            deps = others(version.record.deps, self.name)
            if version.state is not None and knowledge.status(deps) is Status.DURABLE:
                return version
        return None

    def _awaits_others(self) -> bool:
        """Whether a version is captured that depends on what others have not stored yet."""
        return any(item.number > self.durable and item.state is not None for item in self._m.store.versions)

    def _copy(self, version: Version) -> StateCopy:
        m = self._m
        units, known = m.lineage.up_to(version.number), m.knowledge.completed.snapshot()
        chain, state = version.record.chain, version.state
        return StateCopy(self.name, self.epoch, version.number, units, known, chain, state, m.layout)

    def find_keeper(self) -> None:
        """Nobody keeps what is stored."""

    def reconsider(self) -> None:
        """The set has one member."""

    def dues(self) -> list[Due]:
        """What could not be stored is written again."""
        return [*super().dues(), (self._store_at, self.advance)]
