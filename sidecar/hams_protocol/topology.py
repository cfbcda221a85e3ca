"""The topology: the roles of all instances, each with its epoch. One value per graph, changed only by
compare-and-swap (protocol.md, sections 1, 6, 7).

Changes are pure functions from a topology to the next one, `None` where the change no longer applies. Each
raises `generation` by one, so of two changes made from the same topology only one can be committed.
"""

import zlib
from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache

from hams_protocol import limits
from hams_protocol.frozen import frozen
from hams_protocol.ids import InstanceId, RequestId


@frozen
class ReplicaSet:
    """The holders of one state: an operator's or a frontend shard's.

    `in_sync` are the backups in sync, the primary aside. `ends` are (epoch, end) of ended epochs, ascending;
    an epoch below the first one listed, and below `epoch`, was dropped. `lost` is set when no replica of the
    state is left and policy says Stop. `restarted_in` is the epoch in which it last began again from less
    than the durable state: what stems from before was reported as lost, and is not undone. `may_restart`: a
    person has said that it may, though policy says Stop. `keepers` are instances of other operators that hold
    everything durable of this epoch while no backup is in sync (ADR 0020): never any beside a backup.
    """

    name: str
    epoch: int = 0
    primary: InstanceId | None = None
    in_sync: tuple[InstanceId, ...] = ()
    joining: tuple[InstanceId, ...] = ()
    ends: tuple[tuple[int, int], ...] = ()
    lost: bool = False
    restarted_in: int = 0
    may_restart: bool = False
    keepers: tuple[InstanceId, ...] = ()

    def end_of(self, epoch: int) -> int | None:
        """The last seq of an ended epoch that survived; None if the epoch has not ended or its end was
        dropped."""
        for ended, end in reversed(self.ends):
            if ended == epoch:
                return end
        return None

    @property
    def members(self) -> tuple[InstanceId, ...]:
        """The primary and its in-sync backups."""
        return self.in_sync if self.primary is None else (self.primary, *self.in_sync)

    @property
    def holders(self) -> tuple[InstanceId, ...]:
        """Everybody who holds what is durable: the members, and keepers, which have no model for it."""
        return (*self.members, *self.keepers)

    def named_twice(self) -> InstanceId | None:
        """Who has two roles in this set, which no change gives anybody; None if nobody has."""
        seen: set[InstanceId] = set()
        for instance in (*self.holders, *self.joining):
            if instance in seen:
                return instance
            seen.add(instance)
        return None

    def ends_with(self, end: int) -> tuple[tuple[int, int], ...]:
        """The ends of the next epoch, if the present one ends so."""
        # Bounded, as the whole topology is one value in etcd. Of a dropped epoch a newcomer knows nothing and
        # says UNKNOWN: the sender then sends again without it.
        return (*self.ends, (self.epoch, end))[-limits.ends_listed_max :]


@frozen
class Slot:
    """A stateless operator's share of the requests: its active instance, and an epoch, +1 whenever that
    changes.

    `successor` is to have it next: the instance hands it over once everything it executed is complete.
    """

    epoch: int = 0
    instance: InstanceId | None = None
    successor: InstanceId | None = None


@frozen
class SlotTable:
    """All slots of one stateless operator."""

    op: str
    slots: tuple[Slot, ...]


@frozen
class Topology:
    """Roles, epochs, slots, ends, in-sync sets, revoked ids of one graph.

    `untouched`: no frontend has taken a request yet, so every log is empty and every state is as its model
    made it. The first topology says so, and the last one before the first request is logged.
    """

    generation: int = 0
    sets: tuple[ReplicaSet, ...] = ()
    tables: tuple[SlotTable, ...] = ()
    revoked: tuple[InstanceId, ...] = ()
    untouched: bool = False

    def find(self, name: str) -> ReplicaSet:
        """The replica set of an operator or shard; an empty one if it has none yet."""
        for replica_set in self.sets:
            if replica_set.name == name:
                return replica_set
        return ReplicaSet(name)

    def table(self, op: str) -> SlotTable:
        """The slots of a stateless operator; none if not assigned yet."""
        for table in self.tables:
            if table.op == op:
                return table
        return SlotTable(op, ())

    def with_set(self, changed: ReplicaSet) -> "Topology":
        """This topology with one replica set replaced or added; the generation is left alone."""
        others = tuple(item for item in self.sets if item.name != changed.name)
        return replace(self, sets=tuple(sorted((*others, changed), key=lambda item: item.name)))

    def with_table(self, changed: SlotTable) -> "Topology":
        """This topology with one slot table replaced or added; the generation is left alone."""
        others = tuple(item for item in self.tables if item.op != changed.op)
        return replace(self, tables=tuple(sorted((*others, changed), key=lambda item: item.op)))

    @property
    def instances(self) -> set[InstanceId]:
        """Everybody who has a role in a replica set, joiners included."""
        return {instance for item in self.sets for instance in (*item.holders, *item.joining)}

    def next(self) -> "Topology":
        """The same roles in the next generation."""
        return replace(self, generation=self.generation + 1)


@lru_cache(maxsize=limits.slot_cache_max)
def slot_number(request: RequestId, slots: int) -> int:
    """`hash(request) mod slots`, the same in every process."""
    # Not `hash`, which Python salts in each process: all must agree on the owner of a request.
    return zlib.crc32(b"%d/%d" % request) % slots


def shrink(
    topology: Topology, name: str, primary: InstanceId, epoch: int, member: InstanceId
) -> Topology | None:
    """The living primary drops a backup (in sync or joining) or a keeper from its own set."""
    replica_set = topology.find(name)
    named = (*replica_set.in_sync, *replica_set.joining, *replica_set.keepers)
    # A proposal may be older than the roles that it was made for. Then it is void: another epoch has another
    # ack set.
    if replica_set.primary != primary or replica_set.epoch != epoch or member not in named:
        return None
    return topology.with_set(
        replace(
            replica_set,
            in_sync=tuple(item for item in replica_set.in_sync if item != member),
            joining=tuple(item for item in replica_set.joining if item != member),
            keepers=tuple(item for item in replica_set.keepers if item != member),
        )
    ).next()


def name_keeper(
    topology: Topology, name: str, primary: InstanceId, epoch: int, keeper: InstanceId
) -> Topology | None:
    """The primary, alone, names an instance of another operator as its keeper. Safe only when that is in the
    primary's ack set already."""
    replica_set = topology.find(name)
    if (
        replica_set.primary != primary
        or replica_set.epoch != epoch
        or replica_set.in_sync
        or replica_set.keepers
        or keeper == primary
        or keeper in replica_set.joining
        or keeper in topology.revoked
    ):
        return None
    return topology.with_set(replace(replica_set, keepers=(keeper,))).next()


def admit(
    topology: Topology, name: str, primary: InstanceId, epoch: int, joiner: InstanceId
) -> Topology | None:
    """The primary declares a joiner in sync, and lets its keeper go. Safe only when the joiner is in the
    primary's ack set already."""
    replica_set = topology.find(name)
    if (
        replica_set.primary != primary
        or replica_set.epoch != epoch
        or joiner not in replica_set.joining
        or joiner in topology.revoked
    ):
        return None
    return topology.with_set(
        replace(
            replica_set,
            in_sync=(*replica_set.in_sync, joiner),
            joining=tuple(item for item in replica_set.joining if item != joiner),
            keepers=(),
        )
    ).next()


def allow_restart(topology: Topology, name: str) -> Topology | None:
    """A person decides that a lost state shall begin again, from its newest checkpoint or from nothing. None
    if it is not lost."""
    replica_set = topology.find(name)
    return topology.with_set(replace(replica_set, may_restart=True)).next() if replica_set.lost else None


def touch(topology: Topology) -> Topology:
    """A frontend has its first request: from the commit of this on, logs may hold something."""
    return replace(topology, untouched=False).next()


def call(
    topology: Topology, name: str, primary: InstanceId, epoch: int, joiner: InstanceId
) -> Topology | None:
    """The living primary names a joiner: somebody in its set is to end, and shall be replaced before."""
    replica_set = topology.find(name)
    known = joiner in replica_set.members + replica_set.joining
    if replica_set.primary != primary or replica_set.epoch != epoch or known or joiner in topology.revoked:
        return None
    return topology.with_set(replace(replica_set, joining=(*replica_set.joining, joiner))).next()


class Departed:
    """Instances without state that have handed over every slot they had: they are about to end, and get none,
    though they may be registered a little longer."""

    def __init__(self) -> None:
        self._owners: set[InstanceId] = set()
        self.instances: set[InstanceId] = set()

    def learn(self, topology: Topology) -> None:
        """Who had slots and has none any more; not who never had one, as a standby."""
        owners = {
            slot.instance for table in topology.tables for slot in table.slots if slot.instance is not None
        }
        self.instances = (self.instances | self._owners) - owners
        self._owners = owners

    def keep(self, registered: Collection[InstanceId]) -> None:
        """Forget who is not registered any more: its id is never used again."""
        self.instances.intersection_update(registered)


def pass_on(
    topology: Topology, op: str, number: int, owner: InstanceId, epoch: int, successor: InstanceId
) -> Topology | None:
    """The active instance hands a slot to its successor. Safe only when nothing it executed for the slot is
    incomplete."""
    slots = topology.table(op).slots
    if (
        number >= len(slots)
        or slots[number].instance != owner
        or slots[number].epoch != epoch
        or successor in topology.revoked
    ):
        return None
    changed = (*slots[:number], Slot(epoch + 1, successor), *slots[number + 1 :])
    return topology.with_table(SlotTable(op, changed)).next()


def hand_over(
    topology: Topology,
    name: str,
    primary: InstanceId,
    epoch: int,
    successor: InstanceId,
    end: int,
) -> Topology | None:
    """The primary hands its set to an in-sync backup. Safe only when the whole set has applied version `end`,
    its last one.

    It stays as a backup until the successor lets it go: the successor may have died just now.
    """
    replica_set = topology.find(name)
    if (
        replica_set.primary != primary
        or replica_set.epoch != epoch
        or successor not in replica_set.in_sync
        or successor in topology.revoked
    ):
        return None
    # The end is exact, unlike that of a failover: nothing was applied beyond it, and nothing will be.
    rest = (*(item for item in replica_set.in_sync if item != successor), primary)
    return topology.with_set(
        replace(
            replica_set, epoch=epoch + 1, primary=successor, in_sync=rest, ends=replica_set.ends_with(end)
        )
    ).next()
