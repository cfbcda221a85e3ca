"""A keeper that the topology names though it holds nothing (sections 2 and 7.2). Nothing known leads there;
if something did, its set must not wait for it."""

from dataclasses import replace

import test_keeper as kept
from kit import P, Rig, of, table, topo
from test_keeper import ALONE, DATA, EVERYBODY, HELD_BY_P, P_SLOT, copy_of, fresh, member, name_of

from hams_protocol import limits
from hams_protocol.effects import LoadState, NoteLost, Propose, StartBatch, Stop
from hams_protocol.events import CasSettled, Drain, Member, MembersChanged, PeerDown, PeerUp
from hams_protocol.messages import (
    HOLDS,
    AskCopy,
    Freeze,
    FreezeAnswer,
    Health,
    Leave,
    Probe,
    ProbeAnswer,
    RecordAck,
    RoleReport,
    StateRecord,
)
from hams_protocol.recovery import ManagerMachine
from hams_protocol.stateful.machine import StatefulMachine

keeper = kept.keeper


def named(rig, generation=4):
    rig.learn(topo(generation, replace(ALONE, keepers=(name_of(rig),))))
    return rig


def test_a_keeper_that_is_named_without_a_state_asks_to_be_let_go_until_it_is(keeper):
    assert of(named(keeper).all, Leave, to="q-2") == [Leave("q", 2)]
    keeper.all.clear()
    keeper.after(limits.resend_after_s + 0.01)
    assert of(keeper.all, Leave, to="q-2")
    keeper.learn(topo(5, ALONE))
    keeper.all.clear()
    keeper.after(limits.resend_after_s + 0.01)
    assert not of(keeper.all, Leave)


def test_a_keeper_of_what_this_graph_does_not_have_is_none(keeper):
    """F36: a peer's topology may say anything."""
    keeper.learn(topo(4, ALONE, replace(ALONE, name="F!", keepers=(name_of(keeper),))))
    assert not of(keeper.all, Stop)
    assert not of(keeper.all, Leave)


def test_a_keeper_without_a_state_says_so_to_managers_and_takes_none_that_comes_late(keeper):
    named(keeper)
    keeper.get("q-2", copy_of())
    keeper.get("q-2", StateRecord("q", 2, 1, 0, (), (), "c1", P("state 1")))
    keeper.step(PeerUp("q-2"))
    assert not of(keeper.all, RecordAck), "it may be older than what the primary takes for acknowledged"
    keeper.get("m-1", Probe(7))
    assert not [report for report in of(keeper.all, ProbeAnswer)[-1].roles if report.role == HOLDS]
    keeper.get("m-1", Freeze(1, 4, "q", 2))
    assert of(keeper.all, FreezeAnswer)[-1].applied is None


def test_nobody_waits_for_a_keeper_without_a_state_that_is_to_end():
    rig = kept.stateless()
    named(rig)
    assert of(rig.step(Drain()), Stop)


def test_a_fresh_primary_is_told_by_a_keeper_that_it_holds_nothing_and_ends(keeper):
    mine = replace(ALONE, epoch=3, primary="q-3", keepers=(name_of(keeper),), ends=((1, 0), (2, 0)))
    keeper.learn(topo(5, mine, revoked=("q-2",)))
    (said,) = of(keeper.get("q-3", AskCopy("q", 3, -1, 5)), RecordAck, to="q-3")
    rig = fresh()
    assert not of(rig.get("p-1", Leave("q", 3)), Stop), "so says one that has the state and is to end"
    assert not of(rig.get("F-1", said), Stop), "it is not the keeper"
    assert of(rig.get("p-1", said), Stop)


def test_a_primary_named_in_a_later_epoch_without_a_keeper_begins_nothing_anew():
    """It knew of a keeper, or has never heard of one: what went on without it is not what its model makes."""
    rig = fresh()
    without = replace(kept.AFTER, keepers=())
    assert of(rig.learn(topo(6, without, P_SLOT)), Stop)
    rig = Rig(StatefulMachine(DATA, "q", "q-3"))
    rig.ready(P("a state 0 of its own"))
    assert of(rig.learn(topo(6, without, P_SLOT)), Stop)
    assert not of(rig.all, LoadState)
    assert not of(rig.all, StartBatch)


# -- managers ------------------------------------------------------------------------------------------------


def primary_is_dead():
    """q-2 has no lease, and nobody listens there; a fresh instance is there."""
    rig = kept.manager(member("q-3"))
    rig.all.clear()
    return rig


def says(rig, *roles, behind=0):
    """p-1 answers what it is asked about q-2, again and again; it is `behind` the manager's topology."""
    generation = rig.machine.knowledge.topology.generation - behind
    for _ in range(4):
        rig.after(limits.probe_again_after_s)
        nonce = of(rig.all, Probe, to="p-1")[-1].nonce
        rig.get("p-1", ProbeAnswer(nonce, Health.HEALTHY, generation, roles))
    return rig


def lost(rig):
    return [made.topology for made in of(rig.all, Propose) if made.topology.find("q").lost]


def test_a_state_whose_keeper_says_that_it_holds_nothing_is_lost_with_its_primary():
    rig = says(primary_is_dead())
    declared = lost(rig)[-1]
    assert of(rig.all, NoteLost)
    assert declared.find("q").keepers == (), "others would take it for a holder, and the state for found"
    rig.step(CasSettled(declared, declared.generation, committed=True))
    rig.all.clear()
    says_nothing = ProbeAnswer(0, Health.HEALTHY, declared.generation, ())
    rig.get("p-1", says_nothing)
    rig.after(1.0)
    assert not of(rig.all, Propose)


def test_a_keeper_that_does_not_know_yet_that_it_is_named_may_hold_the_state():
    rig = says(primary_is_dead(), behind=1)
    assert not lost(rig)
    other_epoch = RoleReport("q", HOLDS, 1, 7, False)
    assert lost(says(rig, other_epoch)), "of an epoch that has ended"


def test_what_a_keeper_said_counts_for_one_topology():
    rig = Rig(ManagerMachine(DATA, "m-1"))
    rig.step(MembersChanged((*EVERYBODY, member("q-3"))))
    rig.learn(topo(3, replace(HELD_BY_P, keepers=("p-1",)), P_SLOT))
    rig.get("p-1", ProbeAnswer(0, Health.HEALTHY, 3, ()))
    rig.step(MembersChanged((member("F-1"), member("p-1"), Member("m-1", "manager", ""), member("q-3"))))
    kept.failed(rig, HELD_BY_P)
    for _ in range(3):
        rig.after(limits.probe_again_after_s)
    assert not lost(rig), "it may have been named anew"


def test_a_state_whose_primary_lives_is_not_lost_whatever_its_keeper_says():
    rig = Rig(ManagerMachine(DATA, "m-1"))
    rig.step(MembersChanged((*EVERYBODY, member("q-3"))))
    rig.learn(topo(4, HELD_BY_P, P_SLOT))
    rig.get("p-1", ProbeAnswer(0, Health.HEALTHY, 4, ()))
    rig.after(1.0)
    assert not lost(rig)


def test_a_keeper_that_has_frozen_without_a_state_is_no_holder_of_a_lost_one():
    """Its primary is revoked already. Once the state is called lost it must not be found with that keeper,
    and lost again, as fast as etcd answers."""
    rig = Rig(ManagerMachine(DATA, "m-1"))
    rig.step(MembersChanged((member("F-1"), member("p-1"), Member("m-1", "manager", ""), member("q-3"))))
    rig.learn(topo(4, HELD_BY_P, P_SLOT, revoked=("q-1", "q-2")))
    for _ in range(25):
        for question in of(rig.all, Freeze, to="p-1")[-1:]:
            rig.get("p-1", FreezeAnswer(question.attempt, question.generation, "q", 2, None))
        made = [item.topology for item in of(rig.all, Propose)][-1:]
        if made and made[0] not in lost(rig):
            rig.step(CasSettled(made[0], made[0].generation, committed=True))
        rig.after(0.1)
    declared = lost(rig)[-1]
    assert declared.find("q").keepers == ()
    rig.step(CasSettled(declared, declared.generation, committed=True))
    rig.all.clear()
    rig.after(1.0)
    assert not of(rig.all, Propose)


def test_an_empty_keeper_that_dies_after_its_word_leaves_a_state_that_is_lost():
    rig = Rig(ManagerMachine(DATA, "m-1"))
    manager = Member("m-1", "manager", "")
    rig.step(MembersChanged((member("F-1"), member("p-1"), member("p-2"), manager)))
    rig.learn(topo(4, HELD_BY_P, table("p", ("p-2", 1)), revoked=("q-1", "q-2")))
    rig.get("p-1", ProbeAnswer(0, Health.HEALTHY, 4, ()))
    rig.step(MembersChanged((member("F-1"), member("p-2"), manager)))
    rig.step(PeerDown("p-1", refused=True))
    for _ in range(int(limits.former_wait_s / 0.1) - 1):
        rig.after(0.1)
    assert not [made for made in of(rig.all, Propose) if made.topology.find("q").lost], "q-2 may come back"
    rig.after(0.5)
    assert [made for made in of(rig.all, Propose) if made.topology.find("q").lost]
