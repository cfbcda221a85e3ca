"""Losses are doubted: a state may be called lost only if nobody held it, and begins again from the newest
durable checkpoint that was to be had.

What a loss excuses ends at what it explains: executions beyond the version from which the set began again, of
epochs before. Everything else of that set is judged as ever.
"""

from collections import Counter
from typing import TYPE_CHECKING

from hams_protocol.graph import WhenLost
from hams_protocol.ids import InstanceId, RequestId, UnitId
from hams_protocol.knowledge import CompletionSet
from hams_protocol.limits import checkpoint_wait_s, lost_log_stride_requests
from hams_protocol.messages import StateCopy
from hams_protocol.stateful import StatefulMachine
from hams_protocol.topology import ReplicaSet
from hams_sim import limits
from hams_sim.errors import Broken
from hams_sim.truth import keeper_of

if TYPE_CHECKING:
    from hams_sim.node import Node
    from hams_sim.world import World


class LossJudge:
    """The judge of losses. `restarts`: per set, the epochs that ended in a loss and the version from which
    the next one began. `given_up`: the sets that began again once a request was logged."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.restarts: dict[str, dict[int, int]] = {}
        self.given_up: set[str] = set()
        self.said: Counter[str] = Counter()
        self._said_at: dict[str, float] = {}
        self._read: dict[InstanceId, StateCopy | None] = {}

    # -- what a loss explains --------------------------------------------------------------------------------

    def explains(self, name: str, epoch: int, seq: int) -> bool:
        """Whether a loss took this version of an operator, or this entry of a shard."""
        return any(epoch <= of and seq > end for of, end in self.restarts.get(name, {}).items())

    def units(self, op: str) -> set[UnitId]:
        """The units whose executions by this operator a loss took."""
        return {
            note.unit
            for (epoch, seq), note in self._world.recorder.execs.get(op, {}).items()
            if self.explains(op, epoch, seq)
        }

    def has_lost(self, request: RequestId) -> bool:
        """Whether the log that had this request was lost: a shard that begins again counts from a number
        never used before."""
        lost = self.restarts.get(self._world.graph.shard_names[request.shard], {})
        return any(request.n < (of + 1) * lost_log_stride_requests for of in lost)

    # -- what is said to be lost -----------------------------------------------------------------------------

    def declared(self, old: ReplicaSet, manager: "Node") -> None:
        """A commit calls a set lost."""
        self.said[old.name] += 1
        if self.said[old.name] > limits.losses_said_max + self._models_ended():
            raise Broken("I6", f"{manager.id} calls {old.name} lost, for the {self.said[old.name]}th time")
        self._said_at[old.name] = self._world.now
        self._check_nobody_holds(old, manager)

    def _models_ended(self) -> int:
        """Where states are replayed, an instance ends with its model, and each time that is said."""
        counts = self._world.coverage.items() if self._world.replays else ()
        return sum(count for what, count in counts if what.startswith("stop: its model"))

    def began_again(self, old: ReplicaSet, item: ReplicaSet, manager: "Node") -> None:
        """A commit begins a lost set again."""
        self._check_nobody_holds(old, manager)
        self._check_may(old, manager)
        end = item.end_of(old.epoch) or 0
        if self._world.replays and item.name in self._world.graph.operators:
            self._check_newest(item, end, manager)
            return  # nothing is lost: what came after is run again
        self.restarts.setdefault(item.name, {})[old.epoch] = end
        if self._world.recorder.logged:
            self.given_up.add(item.name)
        if item.name in self._world.graph.operators:
            self._check_newest(item, end, manager)
        world = self._world
        world.inconsistent.update(
            str(note.unit.request)
            for (epoch, seq), note in world.recorder.execs.get(item.name, {}).items()
            if note.unit.request not in world.recorder.complete and self.explains(item.name, epoch, seq)
        )

    def _check_may(self, old: ReplicaSet, manager: "Node") -> None:
        """Neither policy nor a person has said so: then only a state that no request can have touched."""
        world = self._world
        if (
            world.graph.data.recovery.when_lost is WhenLost.STOP
            and not old.may_restart
            and world.recorder.logged
        ):
            raise Broken(
                "I1",
                f"{manager.id} begins {old.name} again, though requests were logged and policy says Stop",
            )

    def _check_nobody_holds(self, old: ReplicaSet, manager: "Node") -> None:
        """Neither a member, nor who has brought along a member's state, nor a keeper that has it, has been
        registered long enough to be known of. Where etcd or this manager's watch is slow, long enough after
        it was told of them."""
        world = self._world
        slow = manager.watch_slow > 1.0 or world.etcd.slow > 1.0
        for member in world.etcd.members.values():
            node = world.nodes[member.instance]
            held = member.instance if member.instance in old.members else member.former
            if member.instance in old.keepers and self._keeps(node, old):
                held = old.primary
            if held not in old.members or member.instance in world.etcd.topology.revoked:
                continue
            since = max(world.etcd.registered_at[member.instance], node.sound_since)
            if slow:  # else `registered_known_s` is enough for every manager
                since = max(since, world.etcd.told_at(manager, member.instance))
            if node.sound and not node.etcd_cut and world.now - since > limits.registered_known_s:
                raise Broken(
                    "I1",
                    f"{manager.id} calls {old.name} lost, but {member.instance} holds the state of {held}"
                    f" and has been registered for {world.now - since:.1f} s",
                )

    def _keeps(self, keeper: "Node", old: ReplicaSet) -> bool:
        held = keeper_of(keeper).states.get(old.name)
        return held is not None and held.epoch == old.epoch and not held.is_empty

    # -- checkpoints -----------------------------------------------------------------------------------------

    def read(self, node: "Node", copy: StateCopy | None) -> None:
        """An instance has read its host's newest checkpoint, or found none that is whole."""
        self._read[node.id] = copy
        if copy is not None:
            self._world.budgets.read(node, copy)

    def _check_newest(self, item: ReplicaSet, end: int, manager: "Node") -> None:
        """It begins again with the copy that its new primary has read, and nobody else who was free to take
        it had read a newer one."""
        world = self._world
        assert item.primary is not None
        chosen = self._read.get(item.primary)
        if end != (0 if chosen is None else chosen.version):
            raise Broken(
                "I1",
                f"{manager.id} begins {item.name} again at {end} on {item.primary}, which has read"
                f" {'no checkpoint' if chosen is None else f'version {chosen.version}'}",
            )
        mine = (0, 0) if chosen is None else (chosen.epoch, chosen.version)
        for name, copy in self._read.items():
            node = world.nodes[name]
            if copy is None or not copy.version or node.of != item.name or (copy.epoch, copy.version) <= mine:
                continue
            since = max(world.etcd.registered_at.get(name, world.now), node.sound_since)
            if node.sound and not node.etcd_cut and world.now - since > limits.registered_known_s:
                raise Broken(
                    "I1",
                    f"{manager.id} begins {item.name} again at {end}, though {name} has read version "
                    f"{copy.version} of epoch {copy.epoch}",
                )

        self._check_waited(item, mine, manager)

    def _check_waited(self, item: ReplicaSet, mine: tuple[int, int], manager: "Node") -> None:
        """Nobody begins a state again with less than is on disk, while somebody may yet say what there is.
        Each has its own time for that; of who is chosen, the manager knows at once."""
        world, name = self._world, item.name
        best = world.disk.get(name)
        if best is None or not best.version or (best.epoch, best.version) <= mine:
            return
        silent = [
            node.id
            for node in world.living()
            if node.of == name
            and node.sound
            and not node.etcd_cut
            and node.id not in self._read
            and (node.id == item.primary or self._registered_s(node) > limits.registered_known_s)
            and min(self._registered_s(node), world.now - self._said_at.get(name, world.now))
            < checkpoint_wait_s
        ]
        if silent:
            raise Broken(
                "I1",
                f"{manager.id} begins {name} again, though {', '.join(silent)} has not said"
                f" what is on disk: version {best.version}",
            )

    def _registered_s(self, node: "Node") -> float:
        """For how long an instance has been registered."""
        world = self._world
        return world.now - world.etcd.registered_at.get(node.id, world.now)

    def _durable_by_receipt(self, machine: StatefulMachine, copy: StateCopy) -> int:
        """A backup may know that a version is durable before its primary says so: it is stable, and so is all
        that it depends on."""
        version = machine.store.find(copy.version)
        deps = () if version is None else version.record.deps
        good = all(self._world.truth.is_durable(dep) for dep in deps if dep.op != copy.op)
        stable = self._world.recorder.stable.get((copy.op, copy.epoch), -1)
        return copy.version if good and copy.version <= stable else -1

    def written(self, node: "Node", copy: StateCopy) -> None:
        """A checkpoint is to be written: of a durable version, the newest known to be so, with everything
        that version has consumed."""
        world = self._world
        world.budgets.written(copy)
        at = f"{node.id} writes version {copy.version} of {copy.op}, epoch {copy.epoch},"
        replica_set = world.etcd.topology.find(copy.op)
        durable = world.recorder.durable.get((copy.op, copy.epoch), -1)
        if replica_set.epoch > copy.epoch:
            durable = max(durable, world.etcd.ends[copy.op].get(copy.epoch, -1))
        if world.replays:
            durable = copy.version  # that makes it so
        machine = node.machine
        assert isinstance(machine, StatefulMachine)
        if world.by_receipt:
            durable = max(durable, self._durable_by_receipt(machine, copy))
        if copy.version > durable:
            raise Broken("I1", f"{at} as a checkpoint, but only {durable} is durable")
        mark = machine.knowledge.watermark(copy.op)
        version = machine.version if machine.backup is None else machine.backup.applied
        if world.by_receipt and machine.primary is not None:
            version = machine.primary.durable
        known = -1 if mark is None or mark.epoch != copy.epoch else min(mark.seq, version)
        newer = (
            []
            if world.replays
            else [
                item.number
                for item in machine.store.versions
                if copy.version < item.number <= known and item.state is not None
            ]
        )
        if newer:
            raise Broken(
                "I1", f"{at} as a checkpoint, though it has version {newer[-1]} and knows it durable"
            )
        held, complete = {consumed.unit for consumed in copy.units}, CompletionSet()
        complete.learn(copy.complete)
        for note in world.recorder.surviving(copy.op, copy.epoch):
            if (
                note.seq is not None
                and note.seq <= copy.version
                and note.unit not in held
                and note.unit.request not in complete
            ):
                raise Broken("I4", f"{at} without {note.unit}, which that has consumed")
