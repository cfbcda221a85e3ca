"""What a manager can tell people of the failovers that it commits: how long each took, and what was
suspected.

A machine around the manager's machine: it hands every event on and every effect back as they are, and only
looks. What it found goes to `tell`, once per replica set that began an epoch without its former primary
having handed it over.
"""

from collections.abc import Callable

from hams_protocol.effects import Effect, Propose
from hams_protocol.events import CasSettled, CasUnknown, Event
from hams_protocol.ids import InstanceId
from hams_protocol.knowledge import Knowledge
from hams_protocol.recovery import ManagerMachine
from hams_protocol.topology import ReplicaSet, Topology
from hams_wire.records import FailoverRecord


class FailoverLog:
    """`Machine` of a manager's node. `tell(name of the set, what is known)`."""

    def __init__(self, machine: ManagerMachine, tell: Callable[[str, FailoverRecord], None]) -> None:
        self._machine = machine
        self._tell = tell
        self._since: dict[InstanceId, tuple[float, str]] = {}
        self._before = Topology()
        self._proposing = False

    @property
    def knowledge(self) -> Knowledge:
        """See `Machine`."""
        return self._machine.knowledge

    def deadline(self) -> float:
        """See `Machine`."""
        return self._machine.deadline()

    def step(self, event: Event, now: float) -> list[Effect]:
        """See `Machine`."""
        effects = self._machine.step(event, now)
        for suspect, reason in self._machine.suspects.items():
            self._since.setdefault(suspect, (now, reason))
        if isinstance(event, CasSettled) and event.committed:
            self._committed(self._before, event.topology, now)
        if isinstance(event, CasSettled | CasUnknown):
            self._proposing = False
        for effect in effects:
            # one at a time; the watch may tell of it before its outcome is known
            if isinstance(effect, Propose):
                self._before = self._machine.knowledge.topology
                self._proposing = True
        if self._since and not self._proposing:
            self._forget(self._machine.knowledge.topology)
        return effects

    def _committed(self, before: Topology, after: Topology, now: float) -> None:
        for item in after.sets:
            old = before.find(item.name)
            if item.epoch == old.epoch or old.primary is None:
                continue
            cause = self._cause(old, before, after)
            if cause is not None:
                suspect, (since, reason) = cause
                self._tell(
                    item.name,
                    FailoverRecord(item.epoch, max(0, round(1000 * (now - since))), f"{suspect}: {reason}"),
                )

    def _cause(
        self, old: ReplicaSet, before: Topology, after: Topology
    ) -> tuple[InstanceId, tuple[float, str]] | None:
        """The former primary, if it was suspected. Else the first suspect among the primaries whose end made
        this state stem from what is no more."""
        if old.primary in self._since:
            return old.primary, self._since[old.primary]
        moved = {
            item.primary
            for item in before.sets
            if item.primary is not None and after.find(item.name).epoch > item.epoch
        }
        causes = [(name, since) for name, since in self._since.items() if name in moved]
        return min(causes, key=lambda item: item[1][0], default=None)

    def _forget(self, topology: Topology) -> None:
        """Drops suspicions that are over. Not yet those of a revoked instance whose set has still to get
        another primary."""
        suspects = self._machine.suspects
        leading = {item.primary for item in topology.sets}
        revoked = set(topology.revoked)
        self._since = {
            name: at
            for name, at in self._since.items()
            if name in suspects or (name in revoked and name in leading)
        }
