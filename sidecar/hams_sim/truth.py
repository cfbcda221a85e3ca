"""What is true, whatever any single instance believes: what was committed, what is durable, whose loss the
protocol tolerates.

Single steps are judged here by the truth, at the moment at which they happen; whole histories are judged by
`checks` and the checker.
"""

from typing import TYPE_CHECKING

from hams_protocol.deps import Dep, Deps
from hams_protocol.effects import BatchUnit, NoteDurable, NoteStable
from hams_protocol.frontend import FrontendMachine
from hams_protocol.graph import WhenUnprotected
from hams_protocol.ids import InstanceId
from hams_protocol.recovery import ManagerMachine
from hams_protocol.stateful import StatefulMachine
from hams_protocol.stateful.keeper import Keeper
from hams_protocol.stateless import StatelessMachine
from hams_protocol.topology import ReplicaSet, Topology
from hams_protocol.versions import VersionStore
from hams_sim.errors import Broken
from hams_sim.node import Node
from hams_wire.shell import FOREVER, MANAGER

if TYPE_CHECKING:
    from hams_sim.world import World


def keeper_of(node: Node) -> Keeper:
    """What an instance holds for operators that are not its own."""
    assert isinstance(node.machine, StatefulMachine | StatelessMachine | FrontendMachine)
    return node.machine.keeper


def _said(note: NoteDurable | NoteStable) -> str:
    return "durable" if isinstance(note, NoteDurable) else "stable"


class Truth:
    """The judge of single steps. `successors_die`: an instance that answered for a revoked one that lives
    dies at once."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.successors_die = False
        self.unowned_until: dict[str, float] = {}
        self._blocks = world.graph.data.recovery.when_unprotected is WhenUnprotected.BLOCK

    def committed(self, before: Topology, after: Topology, node: Node) -> None:
        """A topology was committed."""
        for item in after.sets:
            twice = item.named_twice()
            if twice is not None:
                raise Broken("core", f"{node.id} named {twice} twice in {item}")
            self._moved(before.find(item.name), item, after, node)
        for table in after.tables:
            old_slots = before.table(table.op).slots
            for number, slot in enumerate(table.slots):
                if old_slots and old_slots[number].epoch and slot.epoch > old_slots[number].epoch:
                    self._world.seen("slot moved")
        self._check_owners(after)
        self._check_replicas(before, after, node)
        self._world.calm.check_revoked(before, after, node)
        self._check_taint(before, after, node)
        if self._world.by_receipt:
            self._check_ends(before, after, node)
        if self.successors_die and not self._world.healing:
            for instance in set(after.revoked) - set(before.revoked):
                self._kill_successors(after, self._world.nodes[instance])

    def _check_owners(self, after: Topology) -> None:
        """A client that asks for what has no owner may be refused."""
        world = self._world
        stateful = [op.name for op in world.graph.data.operators if op.stateful]
        for name in (*stateful, *world.graph.shard_names):
            if after.find(name).primary is None:
                self.unowned_until[name] = FOREVER
            elif self.unowned_until.get(name) == FOREVER:
                self.unowned_until[name] = world.now
        for op in world.graph.data.operators:
            if not op.stateful:
                if not after.table(op.name).slots:
                    self.unowned_until[op.name] = FOREVER
                elif self.unowned_until.get(op.name) == FOREVER:
                    self.unowned_until[op.name] = world.now

    def _moved(self, old: ReplicaSet, item: ReplicaSet, after: Topology, node: Node) -> None:
        """Note what became of one set."""
        world = self._world
        if item.epoch > old.epoch > 0:
            world.recorder.moved(item, after.generation)
            kind = (
                "takeover"
                if item.name.startswith("F/")
                else ("rollback" if item.primary == old.primary else "failover")
            )
            world.seen(kind)
            former = None if item.primary is None else world.nodes[item.primary].former_id
            if former is not None and former in old.members:
                world.seen("went on with a kept state")
            if item.keepers:
                world.seen("went on with a keeper's state")
            if item.restarted_in == item.epoch:
                world.losses.began_again(old, item, node)
                world.seen("began again after a loss")
            if item.name not in world.graph.operators:
                return
            if kind == "failover" and old.primary in item.in_sync:
                world.seen("tainted primary went back as a backup")
            if world.graph.operators[item.name].backups == 2:
                world.seen("failover with two backups")
        elif len(item.in_sync) < len(old.in_sync):
            world.seen("shrink")
            world.calm.check_shrunk(old, item, after)
        elif len(item.in_sync) > len(old.in_sync):
            world.seen("join")
            if item.name in world.graph.shard_names:
                world.logs.admitted(old, item)
        if item.keepers and not old.keepers:
            world.seen("keeper named")
        if item.lost and not old.lost:
            world.seen("lost")
            world.losses.declared(old, node)

    def _check_replicas(self, before: Topology, after: Topology, node: Node) -> None:
        """No commit may revoke the last replica of a state (section 6): a revoked one counts as lost. A lost
        state loses nothing with holders that are dead."""
        fresh = set(after.revoked) - set(before.revoked)
        if not fresh:
            return
        former_ids = {
            member.former
            for member in self._world.etcd.members.values()
            if member.former is not None and member.instance not in after.revoked
        }
        for item in after.sets:
            had = fresh.intersection(item.holders)
            if before.find(item.name).lost and not any(self._world.nodes[name].alive for name in had):
                continue
            if had and all(name in after.revoked and name not in former_ids for name in item.holders):
                raise Broken(
                    "I1",
                    f"{node.id} revoked {sorted(fresh)}: nobody is left who holds {item.name}, in sync "
                    f"{list(item.in_sync)}",
                )

    def _check_taint(self, before: Topology, after: Topology, node: Node) -> None:
        """A recovery is one transaction: when an end is committed, no primary that stays depends on what it
        makes orphan (section 7.3)."""
        for item in after.sets:
            old = before.find(item.name)
            if (
                not item.epoch > old.epoch > 0
                or item.restarted_in == item.epoch
                or item.name not in self._world.graph.operators
            ):
                continue
            end = item.end_of(old.epoch)
            for name in self._world.graph.stateful_downstream[item.name]:
                replica_set = after.find(name)
                if (
                    replica_set.epoch != before.find(name).epoch
                    or replica_set.primary is None
                    or replica_set.primary in after.revoked
                    or replica_set.lost
                ):
                    continue
                machine = self._world.nodes[replica_set.primary].machine
                assert isinstance(machine, StatefulMachine)
                if (
                    machine.primary is None
                    or machine.epoch != replica_set.epoch
                    or not self._world.nodes[replica_set.primary].alive
                ):
                    continue
                for dep in machine.primary.deps:
                    if dep.op == item.name and end is not None and dep.epoch == old.epoch and dep.seq > end:
                        raise Broken(
                            "I3",
                            f"{node.id} ended epoch {old.epoch} of {item.name} at {end}, but "
                            f"{replica_set.primary} stays with {dep}",
                        )

    def _check_ends(self, before: Topology, after: Topology, node: Node) -> None:
        """By receipt a set goes on from what is held; never from what hangs on something that is lost by
        then."""
        for item in after.sets:
            old = before.find(item.name)
            end = item.end_of(old.epoch)
            if not item.epoch > old.epoch > 0 or item.restarted_in == item.epoch or end is None:
                continue
            for dep in self._deps_of(item, end):
                known = after.find(dep.op)
                ended = self._world.etcd.ends.get(dep.op, {}).get(dep.epoch, dep.seq)
                lost = dep.epoch < known.epoch and dep.seq > ended and dep.op != item.name
                if lost and not self._world.losses.explains(dep.op, dep.epoch, dep.seq):
                    raise Broken(
                        "I3",
                        f"{node.id} has {item.name} go on from version {end}, which depends on {dep}, and "
                        f"that epoch ended at {ended}",
                    )

    def _deps_of(self, item: ReplicaSet, end: int) -> Deps:
        """What the record of an end depends on, as one of those says who hold it."""
        for name in item.holders:
            machine = self._world.nodes[name].machine
            stores: list[VersionStore] = []
            if isinstance(machine, StatefulMachine) and machine.operator.name == item.name:
                stores = [machine.store, *(() if machine.former is None else (machine.former.store,))]
            elif name in item.keepers and (held := keeper_of(self._world.nodes[name]).states.get(item.name)):
                stores = [held.store]
            for store in stores:
                version = store.find(end)
                if version is not None:
                    return version.record.deps
        return ()

    def _kill_successors(self, topology: Topology, revoked: Node) -> None:
        """An instance that answered for a revoked, living one dies at once: the former state of that one is
        all that is left."""
        world = self._world
        if not revoked.alive:
            return
        mine = [item for item in topology.sets if revoked.id in item.members]
        for name in sorted({name for item in mine for name in item.members} - {revoked.id}):
            if (
                all(item in mine for item in topology.sets if name in item.members)
                and world.nodes[name].alive
            ):
                world.seen("a successor died")
                world.lives.kill(world.nodes[name], "successor", restart=True)

    def is_durable(self, dep: Dep) -> bool:
        """Whether a dependency is durable in truth: called so by its primary, or kept by a committed end;
        under Block announced since."""
        world = self._world
        if world.losses.explains(dep.op, dep.epoch, dep.seq):
            return True
        if world.replays:
            stored = [version for (op, _), version in world.recorder.durable.items() if op == dep.op]
            return dep.seq <= max(stored, default=-1)
        replica_set = world.etcd.topology.find(dep.op)
        said = world.recorder.stable if world.by_receipt else world.recorder.durable
        announced = [said.get((dep.op, epoch), -1) for epoch in range(dep.epoch, replica_set.epoch + 1)]
        if dep.epoch >= replica_set.epoch:
            return bool(announced) and dep.seq <= announced[0]
        end = world.etcd.ends.get(dep.op, {}).get(dep.epoch, -1)
        return dep.seq <= end and (not self._blocks or dep.seq <= max(announced))

    def check_window(self, node: Node) -> None:
        """At most `window` versions are not yet durable; one more where a request fails by itself."""
        machine = node.machine
        assert isinstance(machine, StatefulMachine)
        if machine.primary is not None and machine.primary.undurable > machine.operator.window + 1:
            raise Broken(
                "I6",
                f"{node.id} has {machine.primary.undurable} versions not yet durable; its window is "
                f"{machine.operator.window}",
            )

    def check_durable(self, node: Node, note: NoteDurable) -> None:
        """What is called durable is applied by every in-sync backup that etcd names, or lies within the end
        that has ended its epoch."""
        replica_set = self._world.etcd.topology.find(note.op)
        if replica_set.epoch > note.epoch:
            end = self._world.etcd.ends[note.op].get(note.epoch, -1)
            if note.version > end and not self._world.losses.explains(note.op, note.epoch, note.version):
                raise Broken(
                    "I1",
                    f"{node.id} calls version {note.version} of epoch {note.epoch} of {note.op} durable, "
                    f"but that ended at {end}",
                )
            return
        if self._world.by_receipt:
            self._check_was_stable(node, note)
        else:
            self._check_held(node, note, replica_set)

    def check_stable(self, node: Node, note: NoteStable) -> None:
        """What is called stable is held by every in-sync backup that etcd names, and by its keepers (ADR
        0013)."""
        replica_set = self._world.etcd.topology.find(note.op)
        if replica_set.epoch == note.epoch:
            self._check_held(node, note, replica_set)

    def _check_was_stable(self, node: Node, note: NoteDurable) -> None:
        stable = self._world.recorder.stable.get((note.op, note.epoch), -1)
        if note.version > stable:
            raise Broken(
                "I1", f"{node.id} calls version {note.version} of {note.op} durable, stable is {stable}"
            )

    def _check_held(self, node: Node, note: NoteDurable | NoteStable, replica_set: ReplicaSet) -> None:
        for peer in replica_set.in_sync:
            self._check_holds(node, note, self._world.nodes[peer])
        for peer in replica_set.keepers:
            self._check_keeps(node, note, self._world.nodes[peer])
        if (
            not replica_set.in_sync
            and self._world.graph.data.recovery.when_unprotected is WhenUnprotected.BLOCK
        ):
            raise Broken(
                "I1", f"{node.id} calls version {note.version} of {note.op} {_said(note)} alone under Block"
            )

    def _check_holds(self, node: Node, note: NoteDurable | NoteStable, peer: Node) -> None:
        machine = peer.machine
        assert isinstance(machine, StatefulMachine)
        if machine.version < note.version and machine.epoch == note.epoch:
            raise Broken(
                "I1",
                f"{node.id} calls version {note.version} of {note.op} {_said(note)}; {peer.id}, in sync, has "
                f"{machine.version}",
            )

    def _check_keeps(self, node: Node, note: NoteDurable | NoteStable, peer: Node) -> None:
        if not peer.alive:
            return
        held = keeper_of(peer).states.get(note.op)
        if held is None or (held.epoch == note.epoch and held.backup.counted < note.version):
            has = "nothing" if held is None else held.backup.counted
            raise Broken(
                "I1",
                f"{node.id} calls version {note.version} of {note.op} {_said(note)}; {peer.id} keeps {has}",
            )

    def may_hurt(self, node: Node) -> bool:
        """Whether the protocol tolerates the loss of this instance now: every state it holds has another
        sound holder, which no manager is about to replace."""
        if node.of == MANAGER:
            return any(
                other.sound and not other.etcd_cut and other is not node
                for other in self._world.living()
                if other.of == MANAGER
            )
        replaced = self._to_be_replaced()
        for topology in (self._world.etcd.topology, *self._world.etcd.proposed.values()):
            for item in topology.sets:
                if self._world.replays and item.name in self._world.graph.operators:
                    continue
                if node.id in item.holders:
                    others = [
                        self._world.nodes[name]
                        for name in item.members
                        if name != node.id
                        and name not in replaced
                        and self._has_state(item, self._world.nodes[name])
                    ]
                    keepers = [self._world.nodes[name] for name in item.keepers if name != node.id]
                    if not any(other.sound and self.model_ready(other) for other in others) and not any(
                        keeper.sound
                        and keeper.id not in replaced
                        and keeper.id not in topology.revoked
                        and self._stays(item, self._world.nodes[item.primary or node.id], keeper)
                        for keeper in keepers
                    ):
                        return False
                if node.former_id is not None and node.former_id in item.members:
                    return False
        return True

    def _to_be_replaced(self) -> set[InstanceId]:
        """The instances that a manager is about to revoke, whatever happens now."""
        about_to_propose = self._world.etcd.about_to_propose
        names = set() if about_to_propose is None else {*about_to_propose.revoked}
        for other in self._world.living():
            if isinstance(other.machine, ManagerMachine):
                names |= other.machine.to_replace
        return names

    def _has_state(self, item: ReplicaSet, member: Node) -> bool:
        """Whether a member holds the state: a fresh primary does not before its keeper has given it (section
        7.2)."""
        machine = member.machine
        if (
            not item.keepers
            or member.id != item.primary
            or not isinstance(machine, StatefulMachine)
            or machine.primary is not None
            or machine.former is not None
            or (machine.backup is not None and machine.backup.in_sync)
        ):
            return True
        self._world.seen("a primary without its state is no holder")
        return False

    def _stays(self, item: ReplicaSet, primary: Node, keeper: Node) -> bool:
        """Whether a keeper stays where its primary must go back by itself: only if it has applied what that
        goes back to (section 7.3)."""
        machine = primary.machine
        if (
            not isinstance(machine, StatefulMachine)
            or machine.operator.name != item.name
            or machine.primary is None
            or not machine.primary.needs_rollback
        ):
            return True
        end = max(
            (version.number for version in machine.store.versions if version.state is not None), default=-1
        )
        held = keeper_of(keeper).states.get(item.name)
        if held is not None and held.backup.counted >= end:
            return True
        self._world.seen("a keeper that lacks the end is no holder")
        return False

    def is_reckless(self, node: Node, units: tuple[BatchUnit, ...]) -> bool:
        """Whether a primary runs what it knows another instance to have died of, though no backup would
        survive it: then it dies (section 3)."""
        machine = node.machine
        if (
            not isinstance(machine, StatefulMachine)
            or not machine.operator.backups
            or not machine.mode.replicates
        ):
            return False
        replica_set = machine.knowledge.set_of(machine.operator.name)
        if replica_set.in_sync or replica_set.keepers:
            return False
        run = [machine.joins.find(item.unit) for item in units]
        return any(unit is not None and unit.attempts and not machine.attempts.outlived(unit) for unit in run)

    def model_ready(self, node: Node) -> bool:
        """Whether its model is up."""
        return node.model is None or node.model.up
