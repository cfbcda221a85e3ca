"""Changes of the topology (sections 6 and 7): each is for whom it belongs to, and for one generation."""

import pytest
from kit import rset, table, topo

from hams_protocol.ids import RequestId
from hams_protocol.recovery import assign
from hams_protocol.topology import admit, hand_over, pass_on, shrink, slot_number

BASE = topo(5, rset("p", "p-1", "p-2", joining=("p-3",)), table("s", ("s-1", 4)), revoked=("x",))


@pytest.mark.parametrize(
    "changed",
    [
        shrink(BASE, "p", "p-1", 1, "p-2"),
        admit(BASE, "p", "p-1", 1, "p-3"),
        hand_over(BASE, "p", "p-1", 1, "p-2", 9),
        pass_on(BASE, "s", 0, "s-1", 4, "s-2"),
    ],
)
def test_every_change_is_the_next_generation(changed):
    assert changed.generation == 6


def test_only_the_primary_of_this_epoch_changes_its_set():
    assert shrink(BASE, "p", "p-2", 1, "p-2") is None
    assert shrink(BASE, "p", "p-1", 2, "p-2") is None
    assert admit(BASE, "p", "p-1", 0, "p-3") is None
    assert hand_over(BASE, "p", "p-2", 1, "p-2", 9) is None


def test_only_a_joiner_is_admitted_and_only_a_backup_in_sync_takes_over():
    assert admit(BASE, "p", "p-1", 1, "p-2") is None
    assert admit(BASE, "p", "p-1", 1, "p-9") is None
    assert hand_over(BASE, "p", "p-1", 1, "p-3", 9) is None


def test_a_handoff_ends_the_epoch_at_the_last_version():
    result = hand_over(BASE, "p", "p-1", 1, "p-2", 9).find("p")
    assert (result.epoch, result.primary, result.in_sync, result.ends) == (2, "p-2", ("p-1",), ((1, 9),))


def test_a_slot_is_passed_on_by_its_owner_in_its_epoch_alone():
    assert pass_on(BASE, "s", 0, "s-1", 3, "s-2") is None
    assert pass_on(BASE, "s", 0, "s-9", 4, "s-2") is None
    assert pass_on(BASE, "s", 0, "s-1", 4, "x") is None
    assert pass_on(BASE, "s", 0, "s-1", 4, "s-2").table("s").slots[0].epoch == 5


def test_slots_spread_requests_and_stay_the_same_in_every_process():
    numbers = [slot_number(RequestId(0, n), 4) for n in range(100)]
    assert set(numbers) == {0, 1, 2, 3}
    assert numbers[:4] == [slot_number(RequestId(0, n), 4) for n in range(4)]


def test_a_revoked_id_that_is_still_named_is_never_forgotten(monkeypatch):
    monkeypatch.setattr("hams_protocol.limits.revoked_listed_max", 2)
    names = assign.revoke(topo(1, rset("p", "p-1"), revoked=("p-1", "old-1")), ["old-2"])
    assert "p-1" in names.revoked
    assert "old-2" in names.revoked
    assert "old-1" not in names.revoked


def test_who_hands_its_set_over_stays_as_a_backup_that_holds_the_end():
    changed = hand_over(BASE, "p", "p-1", 1, "p-2", 9)
    assert changed is not None
    assert changed.find("p").members == ("p-2", "p-1")
    assert changed.find("p").end_of(1) == 9
