"""What the managers' logs say of a topology."""

from hams_protocol.topology import ReplicaSet, Slot, SlotTable, Topology
from hams_wire.changes import changes


def test_a_failover_is_told_in_one_line_per_role() -> None:
    before = Topology(4, (ReplicaSet("p", 1, "p-1", ("p-2",)),), (SlotTable("s", (Slot(1, "s-1"),)),))
    after = Topology(
        5, (ReplicaSet("p", 2, "p-2", (), ends=((1, 7),)),), (SlotTable("s", (Slot(2, "s-2"),)),), ("p-1",)
    )
    assert changes(before, after) == [
        "generation 5: revoked p-1",
        "generation 5: p: p-2 is primary, epoch 2, from version 7",
        "generation 5: s: slot 0 is s-2's, epoch 2 (was s-1's)",
    ]


def test_a_rollback_a_loss_and_a_backup_in_sync_are_told() -> None:
    before = Topology(1, (ReplicaSet("p", 1, "p-1"), ReplicaSet("q", 1, "q-1")))
    after = Topology(
        2, (ReplicaSet("p", 2, "p-1", ("p-2",), ends=((1, 3),)), ReplicaSet("q", 1, "q-1", lost=True))
    )
    assert changes(before, after) == [
        "generation 2: p: p-1 goes back, epoch 2, from version 3",
        "generation 2: p: p-2 is in sync",
        "generation 2: q: STATE LOST, no replica of it is left",
    ]


def test_nothing_is_said_where_nothing_moved() -> None:
    before = Topology(1, (ReplicaSet("p", 1, "p-1", joining=("p-2",)),))
    assert changes(before, Topology(2, (ReplicaSet("p", 1, "p-1", joining=("p-3",)),))) == []
