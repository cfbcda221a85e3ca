"""When a checkpoint is written, and of what: a durable version with all that protocol.md, 7.7 lists (api.md,
"State lost").

The first backup in sync writes, the primary only while it is alone. A backup asks its primary how far the
durable watermark is first: what it has applied itself need not be durable. Nothing waits for a checkpoint,
and no decision of the protocol rests on one.
"""

from typing import TYPE_CHECKING

from hams_protocol.due import FOREVER, Due, Timed
from hams_protocol.effects import ReadCheckpoint, WriteCheckpoint
from hams_protocol.graph import WhenLost
from hams_protocol.messages import SAVED, AskDurable, RoleReport, StateCopy

if TYPE_CHECKING:
    from hams_protocol.stateful.machine import StatefulMachine


class Checkpoints(Timed):
    """The checkpoints of one instance. `every` seconds lie between two, and none is written of a version that
    has one."""

    def __init__(self, machine: "StatefulMachine") -> None:
        super().__init__(machine.ctx)
        self._ctx = machine.ctx
        self._m = machine
        self._every_s = (
            FOREVER if machine.operator.checkpoint is None else machine.operator.checkpoint.every_s
        )
        self._due = FOREVER
        self._asked = False
        self._written = (0, -1)
        self._read_for = 0
        self.has_read = False
        self.saved: StateCopy | None = None

    def roles_changed(self) -> None:
        """It may have become this instance's part to write them, or no longer be."""
        if not self._is_writer():
            self._due, self._asked = FOREVER, False
        elif self._due == FOREVER:
            self._due = self._ctx.now + self._every_s

    def read_if_lost(self) -> None:
        """The state is lost and shall begin again: what is on disk? Asked once per epoch, by instances
        without a role."""
        m = self._m
        replica_set = m.knowledge.set_of(m.operator.name)
        restarts = self._every_s != FOREVER and (
            m.graph.data.recovery.when_lost is WhenLost.RESTART or replica_set.may_restart
        )
        if not (
            restarts
            and replica_set.lost
            and m.primary is None
            and m.backup is None
            and self._read_for < replica_set.epoch
        ):
            return
        self._read_for, self.has_read, self.saved = replica_set.epoch, False, None
        self._ctx.emit(ReadCheckpoint(m.operator.name))

    def read(self, copy: StateCopy | None) -> None:
        """What was found; a state that the model cannot take over is as good as none."""
        self.has_read = True
        self.saved = (
            copy if copy is not None and copy.state is not None and self._m.fits(copy.layout) else None
        )

    def report(self) -> tuple[RoleReport, ...]:
        """For managers, while the state is lost."""
        m = self._m
        if not (self.has_read and m.knowledge.set_of(m.operator.name).lost):
            return ()
        epoch, version = (0, -1) if self.saved is None else (self.saved.epoch, self.saved.version)
        return (RoleReport(m.operator.name, SAVED, epoch, version, False),)

    def dues(self) -> list[Due]:
        """The next checkpoint."""
        return [(self._due, self._begin)]

    def _begin(self) -> None:
        """Write, or ask what may be written."""
        if not self._is_writer():
            return
        self._due = self._ctx.now + self._every_s
        m = self._m
        if m.primary is not None:
            self._write(m.primary.durable)
            return
        self._asked = True
        if self.durable_known():
            return
        self._asked = True
        primary = m.knowledge.set_of(m.operator.name).primary
        assert primary is not None, "a backup has one"
        self._ctx.send(primary, AskDurable(m.operator.name))

    def durable_known(self) -> bool:
        """The primary has said how far this operator's own versions are durable; whether one was written."""
        m = self._m
        mark = m.knowledge.watermark(m.operator.name)
        if not self._asked or m.backup is None or mark is None or mark.epoch != m.epoch:
            return False
        self._asked = False
        return self._write(min(mark.seq, m.backup.applied))

    def _is_writer(self) -> bool:
        m = self._m
        if self._every_s == FOREVER or m.mode.replays:
            return False
        in_sync = m.knowledge.set_of(m.operator.name).in_sync
        if m.primary is not None:
            return not in_sync
        return m.backup is not None and m.backup.in_sync and in_sync[:1] == (m.instance,)

    def _write(self, durable: int) -> bool:
        m = self._m
        version = m.store.at_or_below(durable)
        if version is None or version.state is None or (m.epoch, version.number) <= self._written:
            return False
        self._written = (m.epoch, version.number)
        units, known = m.lineage.up_to(version.number), m.knowledge.completed.snapshot()
        copy = StateCopy(
            m.operator.name,
            m.epoch,
            version.number,
            units,
            known,
            version.record.chain,
            version.state,
            m.layout,
        )
        self._ctx.emit(WriteCheckpoint(copy))
        return True
