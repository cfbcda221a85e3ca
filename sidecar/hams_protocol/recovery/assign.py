"""Assignment of free roles: first roles, joiners for sets that lack backups, owners for slots. Pure functions
on topologies.

None of them takes a role away from an instance that is not revoked, so none of them can lose a state.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from hams_protocol import limits
from hams_protocol.events import Member
from hams_protocol.graph import FRONTEND, Graph
from hams_protocol.ids import InstanceId
from hams_protocol.topology import ReplicaSet, Slot, SlotTable, Topology

Members = Mapping[InstanceId, Member]


def named(topology: Topology) -> set[InstanceId]:
    """Every instance that the topology gives a role."""
    instances = {
        slot.instance for table in topology.tables for slot in table.slots if slot.instance is not None
    }
    for item in topology.sets:
        instances.update(item.members, item.joining)
    return instances


def candidates(members: Members, of: str, topology: Topology) -> list[InstanceId]:
    """Registered instances of an operator (or FRONTEND) that may take a role."""
    return sorted(
        item.instance for item in members.values() if item.of == of and item.instance not in topology.revoked
    )


def unburdened(members: Members, of: str, replica_set: ReplicaSet, topology: Topology) -> list[InstanceId]:
    """Candidates for a set that have no other role in the way: an operator's instance has one role, a
    frontend has one in every shard.

    Those that lead the fewest sets come first.
    """
    taken = named(topology) if of != FRONTEND else {*replica_set.members, *replica_set.joining}
    led = [item.primary for item in topology.sets]
    return sorted(
        [item for item in candidates(members, of, topology) if item not in taken],
        key=lambda item: (led.count(item), item),
    )


def involved(topology: Topology) -> set[InstanceId]:
    """Every instance that matters to some state or slot: those with a role, and keepers."""
    return named(topology).union(*(item.keepers for item in topology.sets))


def returned(members: Members, replica_set: ReplicaSet) -> list[InstanceId]:
    """Registered instances that have brought along the state of a member of this set, under another id."""
    return sorted(
        item.instance
        for item in members.values()
        if item.former is not None and item.former in replica_set.members
    )


def rescuers(members: Members, replica_set: ReplicaSet) -> list[InstanceId]:
    """The instances that may hold the state where no member in sync answers: returned instances, and the
    set's keepers."""
    return [*returned(members, replica_set), *(item for item in replica_set.keepers if item in members)]


def fresh_primary(
    members: Members, of: str, replica_set: ReplicaSet, topology: Topology
) -> InstanceId | None:
    """The instances that may begin an epoch with a keeper's state: one that was joining knows much of it
    already, else any that is free."""
    joining = [item for item in replica_set.joining if item in members and item not in topology.revoked]
    free = unburdened(members, of, replica_set, topology)
    return next((item for item in (*joining, *free) if members[item].keeps), None)


def first_roles(graph: Graph, topology: Topology, members: Members, patient: bool) -> Topology:
    """Primaries for sets that never had one: a set begins with its primary alone. `patient`: shards wait for
    all frontends to come."""
    for op in graph.data.operators:
        replica_set = topology.find(op.name)
        if op.stateful and replica_set.epoch == 0 and (free := candidates(members, op.name, topology)):
            topology = topology.with_set(replace(replica_set, epoch=1, primary=free[0]))
    frontends = candidates(members, FRONTEND, topology)
    if frontends and (len(frontends) >= graph.data.frontend.replicas or not patient):
        for number, name in enumerate(graph.shard_names):
            replica_set = topology.find(name)
            if replica_set.epoch == 0:
                topology = topology.with_set(
                    replace(replica_set, epoch=1, primary=frontends[number % len(frontends)])
                )
    return topology


def joiners(
    graph: Graph, topology: Topology, members: Members, suspects: Collection[InstanceId] = ()
) -> Topology:
    """Fill every set up to its number of backups; forget joiners that are gone. An instance that keeps a
    state which the set may yet need does not join.

    `suspects` get no new place, but keep the one they have: a suspicion is no verdict.
    """
    for name, of, want in wanted_backups(graph):
        replica_set = topology.find(name)
        if replica_set.primary is None or replica_set.lost:
            continue
        joining = tuple(
            item
            for item in replica_set.joining
            if (item in members or item in suspects) and item not in topology.revoked
        )
        taken = named(topology) if of != FRONTEND else set(replica_set.members)
        taken.update(returned(members, replica_set))
        free = [
            item for item in candidates(members, of, topology) if item not in taken and item not in joining
        ]
        missing = want - len(replica_set.in_sync) - len(joining)
        joining = (*joining, *free[: max(missing, 0)])
        if joining != topology.find(name).joining or replica_set.in_sync != topology.find(name).in_sync:
            topology = topology.with_set(replace(replica_set, joining=joining))
    return topology


def wanted_backups(graph: Graph) -> Iterable[tuple[str, str, int]]:
    """(set, whose instances, backups asked for) of every replica set."""
    for op in graph.data.operators:
        if op.stateful:
            yield op.name, op.name, op.backups if graph.data.mode != "None" else 0
    for name in graph.shard_names:
        yield name, FRONTEND, graph.data.frontend.replicas - 1 if graph.data.mode != "None" else 0


def slots(graph: Graph, topology: Topology, members: Members, departed: Collection[InstanceId]) -> Topology:
    """An owner for every slot that has none, or a revoked one: a standby first, else the active instance with
    the fewest slots. None of the `departed`, who have handed over what they had."""
    revoked = topology.revoked
    for op in graph.data.operators:
        if op.stateful:
            continue
        table = list(topology.table(op.name).slots) or [Slot() for _ in range(op.slots)]
        registered = candidates(members, op.name, topology)
        free = [item for item in registered if item not in departed]
        for number, slot in enumerate(table):
            if slot.instance is not None and slot.instance not in revoked:
                continue
            load = {item: sum(1 for other in table if other.instance == item) for item in free}
            owner = min(free, key=lambda item: (load[item], item), default=None)
            if owner is not None:
                table[number] = Slot(slot.epoch + 1, owner)
            elif slot.instance is not None:
                table[number] = Slot(slot.epoch, None)
        elsewhere = any(
            slot.successor is not None
            for other in topology.tables
            if other.op != op.name
            for slot in other.slots
        )
        # Whom a manager names that has not seen it depart is left: two of them would undo each other's word.
        table = [
            Slot(slot.epoch, slot.instance) if slot.successor not in registered else slot for slot in table
        ]
        if not elsewhere:
            _spread(table, free, revoked)
        if tuple(table) != topology.table(op.name).slots:
            topology = topology.with_table(SlotTable(op.name, tuple(table)))
    return topology


def _spread(table: list[Slot], free: list[InstanceId], revoked: Collection[InstanceId]) -> None:
    """An idle instance becomes the successor of a slot whose owner has several.

    One move at a time in a whole graph: a slot on the move holds fresh requests back until those it has
    executed are complete, so two of them could wait for each other.
    """
    if any(slot.successor is not None for slot in table):
        return
    owners = [slot.instance for slot in table]
    idle = [item for item in free if item not in owners]
    crowded = next(
        (
            number
            for number, slot in enumerate(table)
            if owners.count(slot.instance) > 1 and slot.instance not in revoked
        ),
        None,
    )
    if idle and crowded is not None and table[crowded].instance is not None:
        table[crowded] = Slot(table[crowded].epoch, table[crowded].instance, idle[0])


def revoke(topology: Topology, instances: Iterable[InstanceId]) -> Topology:
    """List instances as revoked: the point of no return."""
    fresh = tuple(sorted(set(instances) - set(topology.revoked)))
    revoked = (*topology.revoked, *fresh)
    still_named = involved(topology)
    # Ids are never used again, so a revoked one that no role names fences nothing any more.
    surplus = len(revoked) - limits.revoked_listed_max
    if surplus > 0:
        droppable = [item for item in revoked if item not in still_named][:surplus]
        revoked = tuple(item for item in revoked if item not in droppable)
    return replace(topology, revoked=revoked)


def moved(
    old: ReplicaSet,
    primary: InstanceId,
    end: int,
    in_sync: Iterable[InstanceId],
    joining: Iterable[InstanceId],
    keepers: Iterable[InstanceId] = (),
) -> ReplicaSet:
    """A replica set in its next epoch. Keepers go along only where they hold its end."""
    ends = old.ends_with(end)
    return replace(
        old,
        epoch=old.epoch + 1,
        primary=primary,
        in_sync=tuple(in_sync),
        joining=tuple(joining),
        ends=ends,
        lost=False,
        may_restart=False,
        keepers=tuple(keepers),
    )


def forget_ends(topology: Topology, heard: Topology) -> Topology:
    """Drop the ends that `heard`, which every instance knows, had too, but for the newest ones and the one
    before a loss."""
    for item in topology.sets:
        below = heard.find(item.name).epoch
        newest = item.epoch - limits.ends_retained_max
        ends = tuple(
            (epoch, end)
            for epoch, end in item.ends
            if epoch >= min(below, newest) or epoch + 1 == item.restarted_in
        )
        if ends != item.ends:
            topology = topology.with_set(replace(item, ends=ends))
    return topology
