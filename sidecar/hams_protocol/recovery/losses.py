"""States of which no replica is left: said to be lost, found again, or begun again where policy or a person says so (protocol.md, 7.2).

Nothing here revokes anybody who may yet come back with a state, but for the members of a set that begins again without them.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from hams_protocol import limits
from hams_protocol.effects import Effect, NoteLost, Send
from hams_protocol.graph import FRONTEND, WhenLost
from hams_protocol.ids import InstanceId
from hams_protocol.messages import Probe, RoleReport
from hams_protocol.recovery import assign
from hams_protocol.topology import ReplicaSet, Topology

if TYPE_CHECKING:
    from hams_protocol.recovery.machine import ManagerMachine

FOREVER = float("inf")


class Losses:
    """What one manager knows of lost states, and of the checkpoints that instances have read for them. `ask_at`: when it asks for those again."""

    def __init__(self, machine: "ManagerMachine") -> None:
        self._m = machine
        self._saved: dict[tuple[InstanceId, str], tuple[int, int]] = {}
        self._saved_since: dict[tuple[str, int], float] = {}
        self.ask_at = FOREVER

    def saved(self, sender: InstanceId, report: RoleReport) -> None:
        """An instance tells of the checkpoint that it has read."""
        self._saved[sender, report.name] = (report.epoch, max(report.version, 0))

    def lost_and_found(self, topology: Topology) -> tuple[Topology, list[Effect]]:
        """A set whose every member has lost its lease and fails its probe is lost, until one of them is back. None of them is revoked."""
        notes: list[Effect] = []
        for item in topology.sets:
            holders = [member for member in item.members if member not in topology.revoked]
            gone = all(self._m.is_gone(member) for member in holders) and not assign.keepers(self._m.members, item)
            if gone == item.lost or item.primary is None or not holders:
                continue
            joining = () if gone else item.joining  # nobody is there to copy from, and who begins the state again must be free
            topology = topology.with_set(replace(item, lost=gone, joining=joining))
            if gone:
                notes.append(NoteLost(item.name, item.epoch, -1, "no replica of its state is left"))
        return topology, notes

    def restart(self, topology: Topology, now: float) -> tuple[Topology, list[Effect]]:
        """`Restart`: a lost state begins again, from its newest checkpoint if there is one, and says so; `Stop` leaves it to a person."""
        notes: list[Effect] = []
        restarts = self._m.graph.data.recovery.when_lost is WhenLost.RESTART
        for item in topology.sets:
            if not (item.lost and (restarts or item.may_restart)):
                continue
            of = item.name if item.name in self._m.graph.operators else FRONTEND
            free = [name for name in assign.unburdened(self._m.members, of, item, topology) if name not in self._m.suspects]
            may_return = bool(assign.keepers(self._m.members, item)) and item.name not in self._m.retry_at
            if free and not may_return and not self._waits_for_checkpoints(item, free, now):
                epoch, version, chosen = max((*self._saved.get((name, item.name), (0, 0)), name) for name in reversed(free))
                restarted = assign.moved(item, chosen if epoch else free[0], version, (), ())
                if epoch:
                    notes.append(NoteLost(item.name, item.epoch, version, "it begins again from a checkpoint"))
                topology = assign.revoke(topology, item.members)
                topology = topology.with_set(replace(restarted, restarted_in=restarted.epoch))
        return topology, notes

    def _waits_for_checkpoints(self, item: ReplicaSet, free: list[InstanceId], now: float) -> bool:
        """Instances read theirs once they learn that the state is lost; each tells a probe what it has found."""
        operator = self._m.graph.operators.get(item.name)
        if operator is None or operator.checkpoint is None:
            return False
        if not self._m.knowledge.topology.find(item.name).lost:
            return True
        since = self._saved_since.setdefault((item.name, item.epoch), now)
        return now < since + limits.checkpoint_wait_s and any((name, item.name) not in self._saved for name in free)

    def ask_saved(self, now: float) -> list[Effect]:
        """Probes for that, again and again while somebody waits."""
        topology = self._m.knowledge.topology
        waiting = [name for name, epoch in self._saved_since if topology.find(name).lost and topology.find(name).epoch == epoch]
        if not waiting:
            self._saved_since.clear()
            self._saved.clear()
            self.ask_at = FOREVER
            return []
        if now < self.ask_at < FOREVER:
            return []
        self.ask_at = now + limits.probe_again_after_s
        found = [name for of in waiting for name in assign.candidates(self._m.members, of, topology) if (name, of) not in self._saved]
        return [Send(name, Probe(0)) for name in found]
