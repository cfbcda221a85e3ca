"""The instances that have had a fault lately. To drop or replace one that had none, by a judge that had none,
is a violation."""

from typing import TYPE_CHECKING

from hams_protocol.topology import ReplicaSet, Topology
from hams_sim import limits
from hams_sim.errors import Broken

if TYPE_CHECKING:
    from hams_sim.node import Node
    from hams_sim.world import World


class Calm:
    """`hurt`: an instance's faults end then, what follows of them included. `op:x` stands for all of x, ""
    for everybody. `apart`: managers that were cut off with a part of the graph: that excuses no revocation of
    those who are well."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.apart: set[str] = set()
        self._until: dict[str, float] = {}

    def hurt(self, instance: str, span_s: float) -> None:
        """A fault begins that ends after `span_s`. No instance: it may concern anybody."""
        until = self._world.now + span_s + limits.fault_echo_s
        self._until[instance] = max(until, self._until.get(instance, 0.0))

    def healed(self) -> None:
        """All faults end now."""
        for instance in self._until:
            self._until[instance] = min(self._until[instance], self._world.now + limits.fault_echo_s)

    def is_well(self, node: "Node") -> bool:
        """Alive, here to stay, and without a fault for a while, as everybody is."""
        latest = max(self._until.get(name, 0.0) for name in ("", f"op:{node.of}", node.id))
        return node.alive and not node.leaving and self._world.now > latest

    def check_shrunk(self, old: ReplicaSet, item: ReplicaSet, after: Topology) -> None:
        """No set is shrunk while its primary and who is dropped are well."""
        nodes = self._world.nodes
        assert item.primary is not None
        if not self.is_well(nodes[item.primary]):
            return
        for name in old.in_sync:
            if name not in item.in_sync and name not in after.revoked and self.is_well(nodes[name]):
                raise Broken(
                    "I7", f"{item.primary} dropped {name} from {item.name}, though neither had a fault"
                )

    def check_revoked(self, before: Topology, after: Topology, manager: "Node") -> None:
        """A manager that is well revokes no instance that is well, but where a set begins again without its
        members. An instance that lost a state with its model is not well before it has loaded one: its
        recovery may have to wait for the leases of other sets.
        """
        restarted = {
            name
            for item in after.sets
            if item.restarted_in == item.epoch
            for name in before.find(item.name).members
        }
        for name in set(after.revoked) - set(before.revoked) - restarted:
            node = self._world.nodes[name]
            if node.model is not None and node.model.incomplete:
                continue
            if self.is_well(node) and (self.is_well(manager) or manager.id in self.apart):
                raise Broken("I7", f"{manager.id} revoked {name}, though neither had a fault")
