"""What a change of the topology means to a person: one line per role that moved, for logs."""

from hams_protocol.topology import ReplicaSet, Topology


def changes(before: Topology, after: Topology) -> list[str]:
    """Lines about everything that differs; none if nothing that matters to a person does."""
    lines = [f"revoked {instance}" for instance in after.revoked if instance not in before.revoked]
    for replica_set in after.sets:
        lines += _set_changes(before.find(replica_set.name), replica_set)
    for table in after.tables:
        old = before.table(table.op).slots
        for number, slot in enumerate(table.slots):
            was = old[number] if number < len(old) else None
            if was is None or was.epoch != slot.epoch:
                lines.append(
                    f"{table.op}: slot {number} is {slot.instance}'s, epoch {slot.epoch}"
                    + (f" (was {was.instance}'s)" if was else "")
                )
    return [f"generation {after.generation}: {line}" for line in lines]


def _set_changes(before: ReplicaSet, after: ReplicaSet) -> list[str]:
    lines: list[str] = []
    if after.epoch != before.epoch:
        moved = "goes back" if before.primary == after.primary else "is primary"
        end = after.end_of(after.epoch - 1)
        lines.append(
            f"{after.name}: {after.primary} {moved}, epoch {after.epoch}"
            + (f", from version {end}" if end is not None else "")
        )
    if after.lost and not before.lost:
        lines.append(f"{after.name}: STATE LOST, no replica of it is left")
    if before.lost and not after.lost:
        lines.append(f"{after.name}: its state is there again")
    if after.restarted_in != before.restarted_in:
        lines.append(f"{after.name}: began again in epoch {after.epoch}; what it had was lost")
    lines += [f"{after.name}: {item} is in sync" for item in after.in_sync if item not in before.in_sync]
    lines += [
        f"{after.name}: {item} left the set"
        for item in before.in_sync
        if item not in after.in_sync and item != after.primary
    ]
    return lines
