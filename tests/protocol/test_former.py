"""Kept states (sections 6 and 7.2): what a revoked instance that lives brings back under its fresh id."""

from dataclasses import replace

from kit import R0, R1, P, Rig, dep, graph, of, op, primary_of, rset, topo, value

from hams_protocol import limits
from hams_protocol.effects import LoadState, NoteFailover, NoteLost, Propose, Send, Stop
from hams_protocol.events import CasSettled, Member, MembersChanged
from hams_protocol.graph import FRONTEND
from hams_protocol.messages import (
    HOLDS,
    Deliver,
    Durable,
    Fence,
    Freeze,
    FreezeAnswer,
    Health,
    Probe,
    ProbeAnswer,
    RecordAck,
    Refused,
    RoleReport,
    StateRecord,
)
from hams_protocol.recovery import ManagerMachine
from hams_protocol.stateful.machine import StatefulMachine

DATA = graph(op("p", FRONTEND, to=("q",), stateful=True), op("q", "p", stateful=True))
P1 = rset("p", "p-1", "p-2")
Q1 = rset("q", "q-1", "q-2")


def led(*extra):
    """q's primary, with versions 1 (durable), 2 (p's 5 is durable, q-2 has not applied it) and 3 (p's 6 is
    pending)."""
    rig = primary_of(DATA, "q", topo(1, P1, Q1, *extra))
    rig.get("p-1", Durable(dep("p", 1, 4)))
    for n, request in enumerate((R0, R1, R0._replace(n=7))):
        rig.token("p-1", value("p", request, f"p:{n}", dep("p", 1, 4 + n)))
        rig.run()
    rig.get("q-2", RecordAck("q", 1, 1, 1))
    rig.get("p-1", Durable(dep("p", 1, 5)))
    return rig


def stopped(rig, topology):
    (stop,) = of(rig.learn(topology), Stop)
    return stop


def back(rig, topology=None, ready=True):
    """The same under its fresh id, before it has learnt anything but this topology."""
    assert isinstance(rig.machine, StatefulMachine)
    former = rig.machine.state_to_keep()
    assert former is not None
    fresh = Rig(StatefulMachine(DATA, "q", "q-9", former))
    if ready:
        fresh.ready(P("state 0 of another process"))
    if topology is not None:
        fresh.learn(topology)
    return fresh


REVOKED = topo(2, P1, Q1, revoked=("q-1",))


def frozen(rig, epoch=1, generation=2):
    (answer,) = of(rig.get("m-1", Freeze(1, generation, "q", epoch)), FreezeAnswer)
    return answer


def test_a_revoked_member_keeps_its_state_as_long_as_the_topology_names_it():
    assert stopped(led(), REVOKED).keep == "q"
    moved = topo(3, P1, rset("q", "q-2", epoch=2, ends=((1, 1),)), revoked=("q-1",))
    assert stopped(led(), moved).keep is None, "another one has gone on already"


def test_a_former_primary_reports_its_newest_record_with_only_durable_deps():
    rig = led()
    stopped(rig, REVOKED)
    fresh = back(rig, REVOKED)
    assert fresh.machine.former_id == "q-1"
    assert frozen(fresh).applied == 2, "3 depends on what is pending; what it knew to be durable came along"
    fresh.get("p-1", Durable(dep("p", 1, 6)))
    assert frozen(fresh).applied == 3


def test_a_former_backup_reports_what_it_had_applied():
    rig = Rig(StatefulMachine(DATA, "q", "q-2"))
    rig.ready(P("other"))
    rig.learn(topo(1, P1, rset("q", "q-1", joining=("q-2",))))
    from hams_protocol.messages import Completion, StateCopy

    rig.get("q-1", StateCopy("q", 1, 1, (), Completion(()), "c1", P("state 1")))
    rig.learn(topo(2, P1, Q1))
    rig.get("q-1", StateRecord("q", 1, 2, 1, dep("p", 1, 5), (), "c2", P("state 2")))
    assert stopped(rig, topo(3, P1, Q1, revoked=("q-2",))).keep == "q"
    fresh = back(rig, topo(3, P1, Q1, revoked=("q-2",)))
    fresh.get("p-1", Durable(dep("p", 1, 5)))
    answer = frozen(fresh, generation=3)
    assert (answer.applied, answer.chain) == (1, "c1"), (
        "it was held, not applied; nothing is applied any more"
    )


def test_it_answers_for_its_own_epoch_and_for_the_topology_it_knows():
    rig = led()
    stopped(rig, REVOKED)
    fresh = back(rig, REVOKED)
    assert frozen(fresh, epoch=2).applied is None
    assert of(fresh.get("m-1", Freeze(1, 1, "q", 1)), Refused)
    assert of(fresh.get("m-1", Fence(2, 2, "q", dep("p", 1, 3))), Refused), "it is no primary"


def test_it_tells_a_probe_of_the_state_it_keeps():
    rig = led()
    stopped(rig, REVOKED)
    fresh = back(rig, REVOKED)
    (answer,) = of(fresh.get("m-1", Probe(7)), ProbeAnswer)
    assert [(report.role, report.name, report.epoch) for report in answer.roles] == [
        ("standby", "q", 0),
        (HOLDS, "q", 1),
    ]


def test_it_goes_on_as_primary_with_the_record_of_the_end_and_what_that_has_consumed():
    rig = led()
    stopped(rig, REVOKED)
    fresh = back(rig, REVOKED)
    effects = fresh.learn(topo(3, P1, rset("q", "q-9", epoch=2, ends=((1, 2),)), revoked=("q-1",)))
    assert [(note.epoch, note.end, note.primary) for note in of(effects, NoteFailover)] == [(2, 2, "q-9")]
    assert of(effects, LoadState)[0].state == P("state 2")
    assert {token.token.request for token in of(effects, Deliver)} == {R0, R1}, "saved outputs are sent again"
    assert fresh.machine.former_id is None
    fresh.loaded(effects)
    assert not of(fresh.token("p-1", value("p", R1, "p:1", dep("p", 1, 5))), StateRecord)
    assert fresh.machine.version == 2, "what it has consumed does not run again"
    fresh.token("p-1", value("p", R0._replace(n=7), "p:2", dep("p", 1, 6)))
    fresh.run()
    assert fresh.machine.version == 3, "what came after the end does"


def test_it_goes_on_before_its_model_is_ready_and_loads_the_state_then():
    rig = led()
    stopped(rig, REVOKED)
    fresh = back(rig, REVOKED, ready=False)
    effects = fresh.learn(topo(3, P1, rset("q", "q-9", epoch=2, ends=((1, 2),)), revoked=("q-1",)))
    assert of(effects, NoteFailover)
    assert not of(effects, LoadState)
    assert of(fresh.ready(P("state 0")), LoadState)[0].state == P("state 2")


def test_it_may_go_on_as_a_backup_in_sync():
    rig = led()
    stopped(rig, REVOKED)
    fresh = back(rig, REVOKED)
    effects = fresh.learn(topo(3, P1, rset("q", "q-8", "q-9", epoch=2, ends=((1, 1),)), revoked=("q-1",)))
    assert of(effects, RecordAck, "q-8") == [RecordAck("q", 2, 1, 1, True)]


def test_a_kept_state_is_dropped_when_another_goes_on_and_so_is_who_came_for_its_sake():
    rig = led()
    stopped(rig, REVOKED)
    fresh = back(rig, REVOKED)
    (stop,) = of(fresh.learn(topo(3, P1, rset("q", "q-2", epoch=2, ends=((1, 1),)), revoked=("q-1",))), Stop)
    assert stop.keep is None


def test_who_joins_the_next_epoch_drops_what_it_kept_and_goes_on():
    rig = led()
    stopped(rig, REVOKED)
    fresh = back(rig, REVOKED)
    effects = fresh.learn(
        topo(3, P1, rset("q", "q-2", epoch=2, ends=((1, 1),), joining=("q-9",)), revoked=("q-1",))
    )
    assert not of(effects, Stop)
    assert (fresh.machine.role, fresh.machine.former_id) == ("joining", None)


def test_without_the_record_of_the_end_it_does_not_guess():
    rig = led()
    stopped(rig, REVOKED)
    fresh = back(rig, REVOKED)
    (stop,) = of(
        fresh.learn(topo(3, P1, rset("q", "q-8", "q-9", epoch=2, ends=((1, 4),)), revoked=("q-1",))), Stop
    )
    assert stop.keep is None


def test_who_is_stopped_before_its_kept_state_was_needed_hands_it_on():
    rig = led()
    stopped(rig, REVOKED)
    fresh = back(rig, REVOKED)
    again = back(fresh, REVOKED)
    assert again.machine.former_id == "q-1"
    assert frozen(again).applied == 2


# -- managers ------------------------------------------------------------------------------------------------

EVERYBODY = ("F-1", "F"), ("p-1", "p"), ("p-2", "p"), ("m-1", "manager")


def manager(*members, revoked=("q-1",), sets=(P1, Q1), former=(("q-9", "q-1"),)):
    rig = Rig(ManagerMachine(DATA, "m-1"))
    values = tuple(Member(name, what, "") for name, what in (*EVERYBODY, *members))
    rig.step(MembersChanged((*values, *(Member(name, "q", "", old) for name, old in former))))
    rig.learn(topo(1, *sets, revoked=revoked))
    return rig


def freezes(effects):
    return {
        item.target: item.message
        for item in effects
        if isinstance(item, Send) and isinstance(item.message, Freeze)
    }


def proposed(rig):
    return of(rig.all, Propose)[-1].topology


def without_lease(name, revoked, sets):
    """A manager that has seen `name` registered, and sees it no more."""
    rig = manager((name, "q"), revoked=revoked, sets=sets)
    rig.step(MembersChanged(tuple(item for item in rig.machine.members.values() if item.instance != name)))
    return rig


def test_kept_states_are_asked_only_where_no_in_sync_member_answers():
    rig = manager(("q-2", "q"))
    assert set(freezes(rig.all)) == {"q-2"}
    rig.after(limits.probe_timeout_min_s)  # q-2 says nothing: it is probed
    effects = rig.after(limits.probe_timeout_min_s)
    assert set(freezes(rig.all)) == {"q-2", "q-9"}, effects
    rig.get("q-9", FreezeAnswer(freezes(rig.all)["q-9"].attempt, 1, "q", 1, 7))
    proposal = proposed(rig).find("q")
    assert (proposal.epoch, proposal.primary, proposal.in_sync, proposal.ends) == (2, "q-9", (), ((1, 7),))


def test_of_several_kept_states_the_lowest_goes_on():
    rig = manager(revoked=("q-1", "q-2"), former=(("q-8", "q-2"), ("q-9", "q-1")))
    asked = freezes(rig.all)
    assert set(asked) == {"q-8", "q-9"}
    rig.get("q-9", FreezeAnswer(asked["q-9"].attempt, 1, "q", 1, 7))
    rig.get("q-8", FreezeAnswer(asked["q-8"].attempt, 1, "q", 1, 6))
    proposal = proposed(rig).find("q")
    assert (proposal.primary, proposal.in_sync, proposal.ends) == ("q-8", ("q-9",), ((1, 6),))


def test_a_set_whose_members_are_all_revoked_is_lost_only_after_a_while():
    rig = manager(revoked=("q-1", "q-2"), former=())
    rig.after(limits.former_wait_s / 2)
    assert not of(rig.all, NoteLost)
    rig.after(limits.former_wait_s)
    assert [note.op for note in of(rig.all, NoteLost)] == ["q"]
    assert proposed(rig).find("q").lost


def test_a_lost_set_is_tried_again_when_a_member_comes_back_with_its_state():
    rig = manager(revoked=("q-1", "q-2"), former=(), sets=(P1, replace(Q1, lost=True)))
    assert not freezes(rig.all)
    rig.step(MembersChanged((Member("m-1", "manager", ""), Member("q-9", "q", "", "q-1"))))
    rig.get("q-9", FreezeAnswer(freezes(rig.all)["q-9"].attempt, 1, "q", 1, 7))
    proposal = proposed(rig).find("q")
    assert (proposal.primary, proposal.lost) == ("q-9", False)


def test_a_keeper_that_has_nothing_after_all_is_asked_again_later_and_others_recover_meanwhile():
    lost = (replace(Q1, lost=True), rset("p", "p-1", "p-2"))
    rig = manager(revoked=("q-1", "q-2", "p-1"), sets=lost)
    asked = freezes(rig.all)
    assert set(asked) == {"q-9", "p-2"}
    rig.get("q-9", FreezeAnswer(asked["q-9"].attempt, 1, "q", 1, None))
    rig.get("p-2", FreezeAnswer(asked["p-2"].attempt, 1, "p", 1, 3))
    topology = proposed(rig)
    assert topology.find("p").primary == "p-2"
    assert topology.find("q") == lost[0]
    rig.step(CasSettled(topology, 2, committed=True))
    rig.all.clear()
    rig.after(2 * limits.probe_timeout_min_s)
    assert set(freezes(rig.all)) == {"q-9"}


def test_who_keeps_a_state_that_the_set_may_need_does_not_join_it():
    rig = manager(("q-2", "q"), ("q-3", "q"))
    rig.get("q-2", FreezeAnswer(freezes(rig.all)["q-2"].attempt, 1, "q", 1, 7))
    proposal = proposed(rig).find("q")
    assert (proposal.primary, proposal.joining) == ("q-2", ("q-3",)), "once it has failed over, anybody may"
    rig = manager(("q-2", "q"), revoked=("q-1",), sets=(P1, rset("q", "q-2", "q-1")))
    rig.after(1.0)
    assert not [item for item in of(rig.all, Propose) if "q-9" in item.topology.find("q").joining]


def report(epoch=1):
    return ProbeAnswer(
        1,
        Health.HEALTHY,
        1,
        (RoleReport("q", "standby", 0, -1, True), RoleReport("q", HOLDS, epoch, 7, False)),
    )


def test_a_primary_is_revoked_when_the_kept_state_of_a_member_has_just_answered():
    rig = without_lease("q-2", revoked=("q-1",), sets=(P1, rset("q", "q-2", "q-1")))
    rig.after(0.4)  # q-2 has no lease: it is suspect
    assert not [
        item
        for item in of(rig.all, Propose)
        if "q-2" in item.topology.revoked or item.topology.find("q").lost
    ], "q-9 has not answered"
    rig.get("q-9", replace(report(), nonce=0))
    assert "q-2" in proposed(rig).revoked


def test_a_kept_state_of_another_epoch_replaces_nobody():
    rig = without_lease("q-2", revoked=("q-1",), sets=(P1, rset("q", "q-2", "q-1", epoch=2, ends=((1, 3),))))
    rig.after(0.4)
    rig.get("q-9", replace(report(), nonce=0))
    assert not [item for item in of(rig.all, Propose) if "q-2" in item.topology.revoked]


def test_nobody_waits_for_the_fence_of_a_revoked_primary_whose_set_is_put_off():
    rig = manager(("q-3", "q"), revoked=("q-1", "q-2", "p-1"), former=())
    rig.get("p-2", FreezeAnswer(freezes(rig.all)["p-2"].attempt, 1, "p", 1, 3))
    assert proposed(rig).find("p").primary == "p-2"
    assert not of(rig.all, Fence)
