"""A manager that was stopped: what it knew of silence is old, and is not all forgotten (section 6)."""

from dataclasses import replace

import pytest
from kit import of, rset, table, topo
from test_keeper import P_SLOT, member
from test_out_of_reach import M
from test_who_is_waited_for import LEFT_ALONE, begin, drive, restarting_manager

from hams_protocol.effects import Propose
from hams_protocol.events import Late, MembersChanged
from hams_protocol.messages import Health, Suspect

HERE = (*map(member, ("F-1", "p-1", "q-2", "q-3")), M)
IN_SYNC = topo(5, rset("q", "q-2", "q-3", epoch=2, ends=((1, 0),)), P_SLOT, revoked=("q-1",))


def silent(peer, _):
    """Everybody answers but q-2."""
    return None if peer == "q-2" else Health.HEALTHY


def stop(rig, by_s):
    """It is stopped for so long."""
    rig.all.clear()
    rig.now += by_s
    rig.step(Late(by_s))


def suspecting(now, seconds):
    """A manager that has suspected q-2 for so long."""
    rig = restarting_manager()
    begin(rig, now, HERE, ())
    rig.get("p-1", Suspect("q-2", "it hangs"))
    return rig, drive(rig, now, seconds, silent)


def test_it_hears_who_has_come_back_before_it_calls_a_state_lost():
    """q-2 has failed its probe. In what lies unread it loses its lease, and is registered again."""
    rig, now = suspecting(topo(5, LEFT_ALONE, P_SLOT, revoked=("q-1",)), 1.0)
    stop(rig, 13.0)
    rig.step(MembersChanged(tuple(item for item in HERE if item.instance != "q-2")))
    assert not of(rig.all, Propose), "that q-2 is registered again lies unread"
    rig.step(MembersChanged(HERE))
    drive(rig, now, 20.0, lambda *_: Health.HEALTHY)
    assert not rig.machine.knowledge.topology.find("q").lost


@pytest.mark.parametrize("paused_s", [4.0, 60.0])
def test_it_asks_a_primary_whose_first_answer_is_lost_again_before_that_is_replaced(paused_s):
    """q-2 hung and is back; its way back to the manager stands 0.4 s later."""
    rig, now = suspecting(IN_SYNC, 0.2)
    stop(rig, paused_s)
    back = rig.now + 0.4
    for _ in range(200):
        now = drive(rig, now, 0.1, lambda peer, rig: silent(peer, rig) if rig.now < back else Health.HEALTHY)
        assert "q-2" not in rig.machine.to_replace


def test_a_set_with_a_keeper_goes_on_soon_though_the_keepers_first_answer_is_lost():
    rig = restarting_manager()
    here = (*map(member, ("F-1", "p-1", "p-2", "q-2", "q-3")), M)
    now = topo(5, replace(LEFT_ALONE, keepers=("p-1",)), table("p", ("p-2", 1)), revoked=("q-1",))
    begin(rig, now, here, ())
    rig.get("p-1", Suspect("q-2", "it hangs"))
    now = drive(rig, now, 0.2, silent)
    stop(rig, 60.0)
    began = rig.now
    now = drive(rig, now, 0.3, lambda peer, _: None if peer in ("p-1", "q-2") else Health.HEALTHY)
    while "q-2" not in now.revoked and rig.now < began + 90.0:
        now = drive(rig, now, 0.1, silent)
    assert rig.now - began < 15.0


@pytest.mark.parametrize(("awake_s", "paused_s"), [(2.5, 3.5), (1.5, 3.5), (1.5, 60.0), (4.0, 3.5)])
def test_one_that_is_stopped_again_and_again_replaces_what_is_gone(awake_s, paused_s):
    """q-2 is gone without a word; a silence of 30 s counts."""
    rig, now = suspecting(IN_SYNC, 0.1)
    awake = 0.0
    while rig.machine.attempt is None and awake < 100.0:
        stop(rig, paused_s)
        now = drive(rig, now, awake_s, silent)
        awake += awake_s
    assert awake < 60.0


@pytest.mark.parametrize("awake_s", [2.5, 1.5])
def test_and_begins_a_lost_state_again(awake_s):
    rig = restarting_manager()
    now = topo(5, LEFT_ALONE, P_SLOT, revoked=("q-1",))
    begin(rig, now, HERE, ("q-2",))
    now = drive(rig, now, 4.0, silent)
    assert now.find("q").lost
    awake = 0.0
    while not now.find("q").restarted_in and awake < 100.0:
        stop(rig, 3.5)
        now = drive(rig, now, awake_s, silent)
        awake += awake_s
    assert awake < 60.0
