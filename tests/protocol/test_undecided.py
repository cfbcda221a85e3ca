"""What comes before the topology by which it is judged waits for that, and not until it is sent again
(section 1)."""

from dataclasses import replace

import pytest
import test_backup as b
import test_keeper as k
from kit import R0, R1, P, active_of, graph, of, op, rset, table, topo, value

from hams_protocol import limits
from hams_protocol.context import Context
from hams_protocol.events import Drain
from hams_protocol.graph import FRONTEND
from hams_protocol.messages import (
    Admit,
    AskCopy,
    AskDeterminants,
    AskTopology,
    ClientForward,
    Completion,
    Deliver,
    Determinants,
    DoneEntry,
    Meta,
    RecordAck,
    ReplyEntry,
    SlotAnswer,
    SlotQuery,
    StateCopy,
    StateRecord,
)
from hams_protocol.sizes import entry_nbytes
from hams_protocol.undecided import Undecided

EARLY = replace(k.copy_of(epoch=2), generation=4)
NAMED = (k.stateless, k.frontend)


def test_a_keeper_takes_a_copy_that_came_before_its_topology_as_soon_as_it_knows_that():
    for make in NAMED:
        keeper = make()
        effects = keeper.get("q-2", EARLY)
        assert of(effects, AskTopology, "q-2")
        assert not of(effects, RecordAck)
        effects = keeper.learn(topo(4, k.ALONE, k.P_SLOT))
        assert of(effects, RecordAck, "q-2") == [RecordAck("q", 2, 0, 0, True)]


def test_a_copy_is_held_until_the_topology_that_its_sender_knew():
    """By one in between the keeper would forget what it acknowledges."""
    keeper = k.stateless()
    keeper.get("q-2", replace(EARLY, generation=5))
    assert not of(keeper.learn(topo(4, k.ALONE, k.P_SLOT)), RecordAck)
    assert of(keeper.learn(topo(5, k.ALONE, k.P_SLOT)), RecordAck, "q-2")


def test_a_copy_whose_sender_is_no_primary_by_that_topology_is_not_taken():
    keeper = k.stateless()
    keeper.get("q-2", EARLY)
    other = replace(k.ALONE, epoch=3, primary="q-3", ends=((1, 0), (2, 0)))
    assert not of(keeper.learn(topo(4, other, k.P_SLOT)), RecordAck)
    assert not keeper.machine.keeper.states
    assert not len(keeper.machine.undecided)


def test_a_fresh_primary_that_knows_its_epoch_sooner_gets_the_keepers_state_as_soon_as_that_knows():
    keeper = k.stateless()
    keeper.get("q-2", k.copy_of())
    mine = (k.name_of(keeper),)
    keeper.learn(topo(4, replace(k.ALONE, keepers=mine), k.P_SLOT))
    effects = keeper.get("q-3", AskCopy("q", 3, -1, 5))
    assert of(effects, AskTopology, "q-3")
    assert not of(effects, StateCopy)
    ended = replace(k.ALONE, epoch=3, primary="q-3", keepers=mine, ends=((1, 0), (2, 0)))
    assert of(keeper.learn(topo(5, ended, k.P_SLOT, revoked=("q-2",))), StateCopy, "q-3")


def test_a_backup_receives_a_record_of_the_next_epoch_as_soon_as_it_knows_that():
    rig, _ = b.joiner()
    rig.get("q-1", StateCopy("q", 1, 0, (), Completion(()), "", P("state 0")))
    rig.learn(b.at(2, ("q-2", "q-3")))
    effects = rig.get("q-3", b.record(1, epoch=2))
    assert of(effects, AskTopology, "q-3")
    assert not of(effects, RecordAck)
    effects = rig.learn(b.at(3, ("q-2",), epoch=2, primary="q-3", ends=((1, 0),), revoked=("q-1",)))
    assert RecordAck("q", 2, 1, 1, True) in of(effects, RecordAck, "q-3")


def test_what_is_held_is_bounded_by_the_bytes_of_states_too(monkeypatch):
    monkeypatch.setattr(limits, "undecided_bytes_max", 30)
    keeper = k.stateless()
    for number in range(5):
        keeper.get("q-2", replace(EARLY, version=number, state=P(f"state {number}", 10)))
    assert len(keeper.machine.undecided) == 3


def test_an_entry_has_the_bytes_of_what_it_holds():
    heavy = replace(value("p", R0, "p:0"), payload=P("heavy", 7))
    assert entry_nbytes(Admit(R0, None, "", Meta(), payload=P("request", 5))) == 5
    assert entry_nbytes(Admit(R1, None, "", Meta(), origin=heavy)) == 7
    assert entry_nbytes(ReplyEntry(R0, (heavy, heavy))) == 14
    assert entry_nbytes(DoneEntry(R0)) == 0


def test_what_a_record_carries_counts_too(monkeypatch):
    monkeypatch.setattr(limits, "undecided_bytes_max", 30)
    rig, _ = b.joiner()
    item = b.record(1, epoch=2, state=False)
    unit = replace(
        item.units[0], outputs=(("F", replace(item.units[0].outputs[0][1], payload=P("out", 10))),)
    )
    for version in range(5):
        rig.get("q-3", replace(item, version=version, units=(unit,)))
    assert len(rig.machine.undecided) == 3


def test_a_keeper_receives_a_record_of_the_next_epoch_as_soon_as_it_knows_that():
    keeper = k.stateless()
    keeper.get("q-2", k.copy_of())
    mine = (k.name_of(keeper),)
    keeper.learn(topo(4, replace(k.ALONE, keepers=mine), k.P_SLOT))
    effects = keeper.get("q-2", StateRecord("q", 3, 1, 0, (), (), "c1", P("state 1")))
    assert of(effects, AskTopology, "q-2")
    again = replace(k.ALONE, epoch=3, keepers=mine, ends=((1, 0), (2, 0)))
    said = of(keeper.learn(topo(5, again, k.P_SLOT)), RecordAck, "q-2")
    assert said[-1] == RecordAck("q", 3, 1, 1, True)


def test_a_record_of_an_epoch_that_is_known_waits_for_nothing():
    rig = b.Rig(b.StatefulMachine(b.DATA, "q", "q-9"))
    rig.ready(P("fresh"))
    rig.learn(b.at(2, (), epoch=2, ends=((1, 0),)))
    rig.get("q-1", b.record(1, epoch=2))
    assert not len(rig.machine.undecided)


@pytest.mark.parametrize("nbytes", [0, limits.keeper_state_bytes_max])
def test_a_keeper_without_room_holds_no_copy(nbytes, monkeypatch):
    monkeypatch.setattr(limits, "keeper_state_bytes_max", 20)
    keeper = k.stateless()
    unit = k.copy_of(version=1).units[0]
    out = replace(unit.outputs[0][1], payload=P("out", 21))
    carries = replace(EARLY, units=(replace(unit, outputs=((FRONTEND, out),)),))
    keeper.get("q-2", carries if nbytes == 0 else replace(EARLY, state=P("large", nbytes)))
    assert not len(keeper.machine.undecided)


def test_a_keeper_that_is_to_end_takes_no_other_copy():
    data = graph(
        op("p", FRONTEND, to=("q", "s")), op("q", "p", stateful=True), op("s", "p", stateful=True), shards=1
    )
    other = rset("s", "s-2", epoch=2, ends=((1, 0),))
    keeper = active_of(data, "p", "p-1", topo(3, k.ALONE, other, k.P_SLOT))
    keeper.get("q-2", k.copy_of())
    keeper.learn(topo(4, replace(k.ALONE, keepers=("p-1",)), other, k.P_SLOT))
    keeper.step(Drain())
    keeper.get("s-2", replace(EARLY, op="s", generation=9))
    assert not len(keeper.machine.undecided)


def test_a_primary_to_be_answers_a_slots_new_owner_and_a_new_primary_as_soon_as_it_leads():
    rig, _ = b.joiner()
    rig.get("q-1", StateCopy("q", 1, 0, (), Completion(()), "", P("state 0")))
    rig.learn(b.at(2))
    rig.get("s-2", SlotQuery("s", 0, 2))
    rig.get("p-2", AskDeterminants("p", 2, 0, 3))
    assert not of(rig.all, SlotAnswer)
    assert not of(rig.all, Determinants)
    rig.learn(b.at(3, (), epoch=2, primary="q-2", ends=((1, 0),), revoked=("q-1",)))
    assert [answer.led for answer in of(rig.all, SlotAnswer, "s-2")] == [("q", 2)]
    assert [answer.led for answer in of(rig.all, Determinants, "p-2")] == [("q", 2)]


def test_what_is_asked_again_is_held_once_and_pushes_nothing_out(monkeypatch):
    monkeypatch.setattr(limits, "undecided_messages_max", 3)
    rig, _ = b.joiner()
    rig.token("p-1", value("p", R0, "p:0", b.dep("p", 2, 1)), epoch=2)
    for _ in range(5):
        rig.get("s-2", SlotQuery("s", 0, 2))
        rig.get("p-2", AskDeterminants("p", 2, 0, 9))
    assert len(rig.machine.undecided) == 3
    assert isinstance(rig.machine.undecided.take()[0][1], Deliver)


def test_a_state_larger_than_all_that_may_be_held_pushes_nothing_out(monkeypatch):
    monkeypatch.setattr(limits, "undecided_bytes_max", 30)
    keeper = k.stateless()
    keeper.get("q-2", replace(EARLY, state=P("small", 10)))
    assert of(keeper.get("q-2", replace(EARLY, version=1, state=P("large", 31))), AskTopology) == []
    ((_, held),) = keeper.machine.undecided.take()
    assert held.state == P("small", 10)


def test_a_slots_new_owner_is_answered_by_the_topology_that_it_knew_and_not_by_one_before():
    rig, _ = b.joiner()
    rig.get("q-1", StateCopy("q", 1, 0, (), Completion(()), "", P("state 0")))
    rig.learn(topo(2, rset("p", "p-1"), rset("q", "q-1", "q-2"), table("s", ("s-1", 1))))
    rig.get("s-2", SlotQuery("s", 0, 2))
    rig.learn(topo(3, rset("p", "p-1"), rset("q", "q-1", "q-2"), table("s", ("s-1", 1))))
    assert not of(rig.all, SlotAnswer)
    roles = (rset("p", "p-1"), rset("q", "q-2", epoch=2, ends=((1, 0),)), table("s", ("s-2", 2)))
    rig.learn(topo(4, *roles, revoked=("q-1", "s-1")))
    assert [answer.led for answer in of(rig.all, SlotAnswer, "s-2")] == [("q", 2)]


MOVED = table("s", ("s-2", 2))


def asked_after_the_slot_moved():
    """q-2, a backup, has been asked by the slot's new owner, of which it knows."""
    rig, _ = b.joiner()
    rig.get("q-1", StateCopy("q", 1, 0, (), Completion(()), "", P("state 0")))
    rig.learn(topo(2, rset("p", "p-1"), rset("q", "q-1", "q-2"), MOVED))
    rig.get("s-2", SlotQuery("s", 0, 2))
    return rig


def test_a_slots_new_owner_is_answered_by_who_leads_later_than_the_slot_moved():
    rig = asked_after_the_slot_moved()
    rig.learn(topo(3, rset("p", "p-1"), rset("q", "q-2", epoch=2, ends=((1, 0),)), MOVED, revoked=("q-1",)))
    assert [answer.led for answer in of(rig.all, SlotAnswer, "s-2")] == [("q", 2)]


def test_a_question_of_a_slots_owner_that_nothing_newer_answers_is_dropped():
    rig = asked_after_the_slot_moved()
    rig.learn(topo(3, rset("p", "p-1"), rset("q", "q-1", "q-2"), MOVED))
    assert not len(rig.machine.undecided)


def forward(counter=0, payload=None, epoch=2, budget=30.0, sender="F-9"):
    return sender, ClientForward(0, counter, 0, None, "d", Meta(budget_s=budget), payload, epoch=epoch)


def taken(*came, wait_s=0.0):
    """The counters and payloads of the forwards that are given back."""
    ctx = Context()
    held = Undecided(ctx, None)
    for sender, message in came:
        held.hold(sender, message)
    ctx.now += wait_s
    whole = held.nbytes
    items = held.take()
    assert held.nbytes == 0
    return whole, [(item[0], item[1].counter, item[1].payload, item[1].epoch) for item in items]


def test_who_asks_how_a_request_stands_does_not_take_the_place_of_the_request():
    whole, empty = P("whole", 10), P("empty", 0)
    assert taken(forward(0, whole), forward(1, whole), forward(0)) == (
        20,
        [("F-9", 0, whole, 2), ("F-9", 1, whole, 2)],
    )
    assert taken(forward(0, empty), forward(0)) == (0, [("F-9", 0, empty, 2)])
    assert taken(forward(0, whole), forward(0, epoch=3)) == (0, [("F-9", 0, None, 3)])
    assert taken(forward(0, whole), forward(0, P("again", 4))) == (4, [("F-9", 0, P("again", 4), 2)])
    assert len(taken(forward(0, whole), forward(0, whole, sender="F-8"))[1]) == 2


def test_a_request_whose_time_is_over_is_not_begun_and_one_without_a_limit_is():
    assert taken(forward(0, P("short"), budget=0.5), wait_s=1.0)[1] == []
    assert len(taken(forward(0, P("none"), budget=0.0), wait_s=1.0)[1]) == 1
