"""The state that a revoked instance brings along under its fresh id (protocol.md, sections 6 and 7.2).

It answers a Freeze in the former id's place and may go on as a replica under the fresh one, as long as the
topology names the former id in that epoch: until then nothing is durable without it. It never changes:
nothing is applied to it, and nothing is trimmed.
"""

from hams_protocol.deadlines import Deadlines
from hams_protocol.deps import Dep, Deps
from hams_protocol.ids import InstanceId
from hams_protocol.knowledge import Knowledge, Status
from hams_protocol.lineage import Lineage
from hams_protocol.messages import Completion
from hams_protocol.topology import ReplicaSet
from hams_protocol.versions import Version, VersionStore


class FormerState:
    """Versions and consumed units of one former instance in `epoch`.

    `settled` is the newest version that was certainly durable or applied: a former backup reports it; a
    former primary (`led`) may have newer ones. `marks` are the durable watermarks it knew: what is durable is
    so for ever. `deadlines` go on: the process is the same, and so is its clock.
    """

    __slots__ = (
        "completed",
        "deadlines",
        "epoch",
        "instance",
        "layout",
        "led",
        "lineage",
        "marks",
        "op",
        "settled",
        "store",
    )

    def __init__(
        self,
        op: str,
        instance: InstanceId,
        epoch: int,
        led: bool,
        settled: int,
        store: VersionStore,
        lineage: Lineage,
        completed: Completion,
        marks: tuple[Dep, ...],
        deadlines: Deadlines,
        layout: str = "",
    ) -> None:
        self.op = op
        self.instance = instance
        self.epoch = epoch
        self.led = led
        self.settled = settled
        self.store = store
        self.lineage = lineage
        self.completed = completed
        self.marks = marks
        self.deadlines = deadlines
        self.layout = layout

    def is_named(self, replica_set: ReplicaSet) -> bool:
        """Whether the topology names the former id in the epoch of this state."""
        return replica_set.epoch == self.epoch and self.instance in replica_set.members

    def may_resume(self, replica_set: ReplicaSet) -> bool:
        """Whether the set's epoch follows the one of this state and begins at a version that is here."""
        end = replica_set.end_of(self.epoch)
        return replica_set.epoch == self.epoch + 1 and end is not None and self.store.find(end) is not None

    def newest(self, knowledge: Knowledge, by_receipt: bool) -> Version | None:
        """What a Freeze is told: a former backup's newest applied version, a former primary's newest one with
        only durable deps; the newest one of all where backups answer `by_receipt`."""
        for version in reversed(self.store.versions):
            if version.state is None:
                continue
            if (
                by_receipt
                or version.number <= self.settled
                or (self.led and self._is_durable(version.record.deps, knowledge))
            ):
                return version
        return None

    def _is_durable(self, deps: Deps, knowledge: Knowledge) -> bool:
        others = tuple(dep for dep in deps if dep.op != self.op)
        return knowledge.status(others) is Status.DURABLE
