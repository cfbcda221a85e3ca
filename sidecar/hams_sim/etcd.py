"""etcd as the shells see it: one linearizable topology with compare-and-swap, members under leases, watches
with delay.

Every commit is checked: generation +1, epochs and ends never go back, a set is not given to somebody without
its state. Trouble is drawn from the seed: requests and replies are lost (their proposer learns nothing, its
shell reads again), etcd is away for a while.
"""

from random import Random
from typing import TYPE_CHECKING

from hams_protocol.effects import Propose
from hams_protocol.events import CasSettled, CasUnknown, Member, MembersChanged, TopologyLearnt
from hams_protocol.ids import InstanceId
from hams_protocol.topology import ReplicaSet, Topology
from hams_sim import limits
from hams_sim.errors import Broken
from hams_wire.shell import MANAGER

if TYPE_CHECKING:
    from hams_sim.node import Node
    from hams_sim.world import World


class Etcd:
    """The coordination double. `away`: how many faults keep it from everyone. `ended`: another shape of the
    graph has taken over, and no topology is changed any more."""

    def __init__(self, world: "World", rng: Random) -> None:
        self.world = world
        self.rng = rng
        self.topology = Topology()
        self.revision = 0
        self.members: dict[str, Member] = {}
        self.registered_at: dict[str, float] = {}
        self.away = 0
        self.ended = False
        self.slow = 1.0
        self.lose_request = 0.0
        self.lose_reply = 0.0
        self.proposed: dict[int, Topology] = {}
        self.about_to_propose: Topology | None = None
        self.ends: dict[str, dict[int, int]] = {}
        self.epochs: dict[tuple[str, int], tuple[str | None, int]] = {}
        self._proposal = 0
        self.writes = 0
        self._watch_at = 0.0
        self._members_at = 0
        self._told: dict[InstanceId, dict[InstanceId, float]] = {}

    def _delay(self) -> float:
        return (0.0004 + 0.001 * self.rng.random()) * self.slow

    def reachable(self, node: "Node") -> bool:
        """Whether this instance reaches etcd now."""
        return not self.away and not node.etcd_cut and not node.paused and node.alive

    # -- compare-and-swap ------------------------------------------------------------------------------------

    def commit(self, node: "Node", proposal: Propose) -> None:
        """A shell sends a transaction (`hams_wire.proposals`)."""
        self._proposal += 1
        self.writes += 1
        number = self._proposal
        if not self.reachable(node) or self.rng.random() < self.lose_request:
            self.world.after(limits.etcd_timeout_s, self._unknown, node)
            return
        self.proposed[number] = proposal.topology
        self.world.after(self._delay(), self._transact, node, number, proposal.revision, proposal.topology)

    def _transact(self, node: "Node", number: int, revision: int, topology: Topology) -> None:
        del self.proposed[number]
        if self.away:
            self.world.after(limits.etcd_timeout_s, self._unknown, node)
            return
        if self.ended:  # a graph that has ended has no roles to give any more
            self.world.after(self._delay(), self._unknown, node)
            return
        won = revision == self.revision
        if won:
            self.committed(node, topology)
        if node.etcd_cut or self.rng.random() < self.lose_reply:
            self.world.after(limits.etcd_timeout_s, self._unknown, node)
            return
        event = CasSettled(self.topology, self.revision, won)
        self.world.seen("cas done" if won else "cas failed")
        self.world.after(self._delay(), self._reply, node, event)

    def _reply(self, node: "Node", event: CasSettled) -> None:
        if node.etcd_cut:
            self._unknown(node)
        else:
            node.revision_seen = max(node.revision_seen, event.revision)
            node.proposals.answered(event)

    def _unknown(self, node: "Node") -> None:
        if not node.alive:
            return
        self.world.seen("cas unknown")
        node.proposals.answered(CasUnknown())

    def read_again(self, node: "Node") -> None:
        """A shell reads the topology, until etcd answers."""
        if not node.alive:
            return
        if not self.reachable(node):
            self.world.after(limits.etcd_timeout_s, self.read_again, node)
            return
        self.world.after(self._delay(), self._tell, node, self.topology, self.revision, True)

    def _tell(self, node: "Node", topology: Topology, revision: int, again: bool = False) -> None:
        if not node.alive or (revision <= node.revision_seen and not again):
            return
        if node.etcd_cut or self.away:
            return
        node.revision_seen = max(node.revision_seen, revision)
        self.world.feed(node, TopologyLearnt(topology, revision))

    def committed(self, node: "Node", topology: Topology) -> None:
        """What this instance wants is so from now on."""
        before = self.topology
        if topology.generation != before.generation + 1:
            raise Broken(
                "I5", f"{node.id} committed generation {topology.generation} upon {before.generation}"
            )
        self._check(before, topology, node)
        self.topology = topology
        self.revision += 1
        self.world.truth.committed(before, topology, node)
        for other in self.world.living():
            if not other.etcd_cut:
                self.world.after(self._delay() * other.watch_slow, self._tell, other, topology, self.revision)
        gone = [instance for instance in topology.revoked if instance in self.members]
        for instance in gone:
            self.world.after(self._delay(), self.drop, instance)

    def _check(self, before: Topology, after: Topology, node: "Node") -> None:
        for old in before.sets:
            new = after.find(old.name)
            if new.epoch < old.epoch or new.epoch > old.epoch + 1:
                raise Broken("I5", f"{node.id} took {old.name} from epoch {old.epoch} to {new.epoch}")
            if new.epoch == old.epoch:
                if new.primary != old.primary and old.primary is not None and new.primary is not None:
                    raise Broken(
                        "I5",
                        f"{node.id} gave epoch {old.epoch} of {old.name} to {new.primary}; it was "
                        f"{old.primary}'s",
                    )
                fresh = [item for item in new.in_sync if item not in old.in_sync and item not in old.joining]
                if fresh and old.primary is not None:
                    raise Broken("I1", f"{node.id} called {fresh} in sync in {old.name} without a join")
            else:
                end = new.end_of(old.epoch)
                if end is None:
                    raise Broken(
                        "I3",
                        f"{node.id} began epoch {new.epoch} of {old.name} without the end of {old.epoch}",
                    )
                known = self.ends.setdefault(old.name, {})
                below = [value for epoch, value in known.items() if old.restarted_in - 1 <= epoch < old.epoch]
                if below and end < max(below) and new.restarted_in == old.restarted_in:
                    self.world.seen("an end went back")
                if self.world.by_receipt and old.name in self.world.graph.operators:
                    below = self._called_durable(old)
                if below and end < max(below) and new.restarted_in == old.restarted_in:
                    raise Broken(
                        "I3",
                        f"{node.id} ended epoch {old.epoch} of {old.name} at {end}, below an earlier end "
                        f"{max(below)}",
                    )
                known[old.epoch] = end
            for epoch, end in new.ends:
                if self.ends.setdefault(old.name, {}).setdefault(epoch, end) != end:
                    raise Broken("I3", f"{node.id} changed the end of epoch {epoch} of {old.name} to {end}")
        for table in before.tables:
            changed = after.table(table.op)
            for number, slot in enumerate(table.slots):
                new_slot = changed.slots[number]
                if new_slot.epoch < slot.epoch or (
                    new_slot.instance not in (slot.instance, None)
                    and new_slot.epoch == slot.epoch
                    and slot.epoch
                ):
                    raise Broken("I5", f"{node.id} moved slot {number} of {table.op} without a new epoch")

    def _called_durable(self, item: ReplicaSet) -> list[int]:
        """By receipt an end may go back, but never below what was durable (ADR 0013)."""
        durable = self.world.recorder.durable
        return [
            version
            for (op, epoch), version in durable.items()
            if op == item.name and item.restarted_in <= epoch <= item.epoch
        ]

    # -- members ---------------------------------------------------------------------------------------------

    def register(self, node: "Node") -> None:
        """A shell registers its instance under a lease, or renews what it says."""
        if not node.alive or node.id in self.topology.revoked:
            return
        if not self.reachable(node):
            self.world.after(limits.etcd_timeout_s, self.register, node)
            return
        self.writes += 1
        member = node.member()
        held = self.members.get(node.id)
        self.members[node.id] = member
        if held != member:
            self.registered_at[node.id] = self.world.now
            self.changed()

    def drop(self, instance: str) -> None:
        """A lease ends: expired, or revoked by a manager's shell."""
        if self.members.pop(instance, None) is not None:
            self.changed()

    def lapse(self, node: "Node", silent_since: float) -> None:
        """The lease runs out unless the instance has been heard of again."""
        if self.away:
            self.world.after(limits.lease_ttl_s, self.lapse, node, silent_since)
            return
        if node.id in self.members and node.silent_since == silent_since:
            self.world.seen("lease expired")
            self.drop(node.id)

    def changed(self) -> None:
        """Everyone watching hears of the members."""
        if self._watch_at > self.world.now:
            return
        self._watch_at = self.world.now + 0.001
        self.world.after(0.001, self._members_out)

    def _members_out(self) -> None:
        self._members_at += 1
        event = MembersChanged(tuple(self.members.values()))
        for node in self.world.living():
            if not node.etcd_cut and not self.away:
                self.world.after(
                    self._delay() * node.watch_slow, self._members_to, node, event, self._members_at
                )

    def _members_to(self, node: "Node", event: MembersChanged, at: int) -> None:
        """A watch may be late, but it never goes back."""
        if not node.etcd_cut and not self.away and at >= node.members_seen:
            node.members_seen = at
            if node.of == MANAGER and not node.paused:
                since, now = self._told.get(node.id, {}), self.world.now
                self._told[node.id] = {
                    member.instance: since.get(member.instance, now) for member in event.members
                }
            self.world.feed(node, event)

    def told_at(self, manager: "Node", instance: InstanceId) -> float:
        """Moment when this manager was told of a member that is still registered, as far as it knows; now,
        if it was not."""
        return self._told.get(manager.id, {}).get(instance, self.world.now)

    def resync(self, node: "Node") -> None:
        """etcd is within reach again: the watch goes on from where it was."""
        if not self.reachable(node):
            return
        self.register(node)
        self.world.after(self._delay(), self._tell, node, self.topology, self.revision)
        self.world.after(
            self._delay(),
            self._members_to,
            node,
            MembersChanged(tuple(self.members.values())),
            self._members_at,
        )
