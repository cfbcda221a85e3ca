"""Keepers (sections 2, 3 and 7.2): instances of other operators that hold a state while no backup does."""

from dataclasses import replace

import pytest
from kit import R0, R1, P, Rig, active_of, dep, graph, of, op, primary_of, rset, table, topo, value

from hams_protocol import limits
from hams_protocol.deps import Dep
from hams_protocol.effects import LoadState, NoteDurable, NoteLost, Propose, StartBatch, Stop
from hams_protocol.events import CasSettled, CasUnknown, Drain, Member, MembersChanged, PeerDown, PeerUp, Tick
from hams_protocol.frontend import FrontendMachine
from hams_protocol.graph import FRONTEND, RecoverySpec, Suspects, WhenUnprotected
from hams_protocol.ids import UnitId
from hams_protocol.messages import (
    HOLDS,
    AskCopy,
    Attempt,
    AttemptAck,
    Completion,
    Consumed,
    Fence,
    FenceAnswer,
    Freeze,
    FreezeAnswer,
    Health,
    Leave,
    Probe,
    ProbeAnswer,
    RecordAck,
    RetainedVersion,
    RoleReport,
    StateCopy,
    StateRecord,
    Suspect,
)
from hams_protocol.recovery import ManagerMachine
from hams_protocol.stateful.machine import StatefulMachine

DATA = graph(op("p", FRONTEND, to=("q",)), op("q", "p", stateful=True))
P_SLOT = table("p", ("p-1", 1))
ALONE = rset("q", "q-2", epoch=2, ends=((1, 0),))
HELD_BY_P = replace(ALONE, keepers=("p-1",))


def member(name, keeps=True, host="", of=None):
    return Member(name, of or name[0], "", keeps=keeps, host=host)


EVERYBODY = (member("F-1"), member("p-1"), member("q-2"), Member("m-1", "manager", ""))


def promoted(*members, data=DATA):
    """q-2, which was q-1's backup and is alone now."""
    backup = Rig(StatefulMachine(data, "q", "q-2"))
    backup.ready(P("another state 0"))
    backup.learn(topo(1, rset("q", "q-1", joining=("q-2",))))
    backup.get("q-1", StateCopy("q", 1, 0, (), Completion(()), "", P("state 0")))
    backup.learn(topo(2, rset("q", "q-1", "q-2")))
    backup.step(MembersChanged(members or EVERYBODY))
    backup.all.clear()
    backup.learn(topo(3, ALONE, P_SLOT, revoked=("q-1",)))
    backup.loaded(backup.all)
    return backup


def named(rig):
    """The keeper that was called has the copy, and is in the topology."""
    rig.get("p-1", RecordAck("q", 2, 0, 0))
    (proposal,) = of(rig.all, Propose)
    rig.all.clear()
    rig.step(CasSettled(proposal.topology, proposal.topology.generation, committed=True))
    return proposal.topology


def test_a_primary_that_has_lost_its_last_backup_calls_a_keeper_and_names_it_once_that_has_the_state():
    rig = promoted()
    (copy,) = of(rig.all, StateCopy, to="p-1")
    assert (copy.epoch, copy.version, copy.state) == (2, 0, P("state 0"))
    assert not of(rig.all, Propose)
    assert named(rig).find("q").keepers == ("p-1",)


def test_nothing_is_durable_before_the_keeper_that_is_named_has_it():
    rig = promoted()
    named(rig)
    rig.token("p-1", value("p", R0, "p:0"))
    rig.run()
    assert of(rig.all, StateRecord, to="p-1")
    assert not of(rig.all, NoteDurable)
    rig.get("p-1", RecordAck("q", 2, 1, 1))
    assert [note.version for note in of(rig.all, NoteDurable)] == [1]


def test_a_suspect_waits_for_the_keeper_and_not_for_a_backup():
    rig = promoted()
    rig.token("p-1", value("p", R0, "p:0"), attempts=1)
    assert not of(rig.all, StartBatch)
    named(rig)
    said = of(rig.all, Attempt, to="p-1")[-1]
    rig.get("p-1", AttemptAck("p", said.request, said.lane, said.serial))
    assert of(rig.all, StartBatch)


def test_where_nobody_can_keep_the_state_a_suspect_waits_or_runs_as_the_graph_says():
    def rig_of(suspects):
        data = graph(
            op("p", FRONTEND, to=("q",)),
            op("q", "p", stateful=True),
            recovery=RecoverySpec(suspects=suspects),
        )
        return promoted(member("q-2"), data=data)

    rig = rig_of(Suspects.WAIT)
    rig.token("p-1", value("p", R0, "p:0"), attempts=1)
    assert not of(rig.all, Attempt)
    rig = rig_of(Suspects.RUN)
    rig.token("p-1", value("p", R1, "p:1"), attempts=2)
    assert not of(rig.all, Attempt), "an instance died while it ran that alone"
    rig.token("p-1", value("p", R0, "p:0"), attempts=1)
    assert [said.request for said in of(rig.all, Attempt)] == [R0]


def test_a_keeper_is_on_another_host_if_there_is_one_and_a_frontend_only_if_nobody_else_is():
    mine = member("q-2", host="here")
    near, far = member("p-1", host="here"), member("F-1", host="there")
    assert of(promoted(mine, near, far).all, StateCopy, to="F-1")
    assert of(promoted(mine, near, replace(far, host="here")).all, StateCopy, to="p-1")


def test_instances_of_older_versions_managers_and_its_own_operators_are_never_keepers():
    rig = promoted(member("q-2"), member("q-3"), member("p-1", keeps=False), Member("m-1", "manager", ""))
    assert not of(rig.all, StateCopy)


def test_under_block_no_keeper_is_called():
    data = graph(
        op("p", FRONTEND, to=("q",)),
        op("q", "p", stateful=True),
        recovery=RecoverySpec(when_unprotected=WhenUnprotected.BLOCK),
    )
    assert not of(promoted(data=data).all, StateCopy)


def test_a_keeper_that_does_not_answer_or_is_gone_is_given_up_for_another_and_never_called_again():
    rig = promoted()
    rig.all.clear()
    rig.after(2 * limits.keeper_wait_s)
    assert of(rig.all, StateCopy, to="F-1")
    rig.get("p-1", RecordAck("q", 2, 0, 0))
    assert not of(rig.all, Propose), "what p-1 says now is of no use"
    rig.all.clear()
    rig.step(PeerDown("F-1", refused=True))
    rig.after(1.0)
    assert not of(rig.all, StateCopy), "everybody has been tried"


def test_an_instance_out_of_reach_is_called_once_its_connection_stands():
    """Called before, it would be given up at once, and never be called again in the epoch."""
    backup = Rig(StatefulMachine(DATA, "q", "q-2"))
    backup.ready(P("another state 0"))
    backup.learn(topo(1, rset("q", "q-1", joining=("q-2",))))
    backup.get("q-1", StateCopy("q", 1, 0, (), Completion(()), "", P("state 0")))
    backup.learn(topo(2, rset("q", "q-1", "q-2")))
    backup.step(MembersChanged((member("p-1"), member("q-2"))))
    backup.step(PeerDown("p-1"))
    backup.all.clear()
    backup.learn(topo(3, ALONE, P_SLOT, revoked=("q-1",)))
    backup.loaded(backup.all)
    assert not of(backup.all, StateCopy)
    assert of(backup.step(PeerUp("p-1")), StateCopy, to="p-1")


def test_a_keeper_that_dies_is_dropped_by_the_primarys_own_proposal():
    rig = promoted()
    named(rig)
    rig.all.clear()
    rig.step(PeerDown("p-1", refused=True))
    assert of(rig.all, Propose)[-1].topology.find("q").keepers == ()


def test_a_keeper_ends_with_the_first_backup_in_sync():
    rig = promoted()
    topology = named(rig)
    replica_set = replace(topology.find("q"), joining=("q-3",))
    rig.learn(topology.with_set(replica_set).next())
    rig.get("q-3", AskCopy("q", 2, -1, topology.generation + 1))
    rig.all.clear()
    rig.get("q-3", RecordAck("q", 2, 0, 0))
    replica_set = of(rig.all, Propose)[-1].topology.find("q")
    assert (replica_set.in_sync, replica_set.keepers) == (("q-3",), ())


def test_a_keeper_whose_lease_expired_is_not_called_again_in_the_epoch_when_it_registers_again():
    rig = promoted(member("p-1"), member("q-2"))
    rig.step(MembersChanged((member("q-2"),)))
    rig.learn(topo(4, ALONE, P_SLOT, revoked=("q-1",)))
    rig.all.clear()
    rig.step(MembersChanged((member("p-1"), member("q-2"))))
    rig.after(0.1)
    assert not of(rig.all, StateCopy)
    rig.get("p-1", RecordAck("q", 2, 0, 0))
    assert not of(rig.all, Propose), "it said that of the first copy"


def suspect_runs(rig):
    """A suspect is announced, and runs alone."""
    rig.token("p-1", value("p", R0, "p:0"), attempts=1)
    said = of(rig.all, Attempt, to="p-1")[-1]
    rig.get("p-1", AttemptAck("p", said.request, said.lane, said.serial))
    assert of(rig.all, StartBatch)


def test_a_keeper_is_not_let_go_while_a_suspect_runs():
    rig = promoted()
    named(rig)
    suspect_runs(rig)
    rig.all.clear()
    rig.get("p-1", Leave("q", 2))
    assert not of(rig.all, Propose)
    rig.run()
    assert of(rig.all, Propose)[-1].topology.find("q").keepers == ()


def test_a_suspect_does_not_run_while_it_is_not_known_whether_the_keeper_was_let_go():
    rig = promoted()
    named(rig)
    rig.get("p-1", Leave("q", 2))
    (proposal,) = of(rig.all, Propose)
    rig.token("p-1", value("p", R0, "p:0"), attempts=1)
    assert not of(rig.all, Attempt)
    rig.step(CasSettled(proposal.topology, proposal.topology.generation, committed=True))
    assert not of(rig.all, Attempt)
    assert of(rig.all, StateCopy, to="F-1")


def test_a_later_generation_tells_whether_the_keeper_was_let_go_where_the_outcome_is_unknown():
    rig = promoted()
    named(rig)
    rig.step(PeerDown("p-1", refused=True))
    rig.step(CasUnknown())
    rig.step(PeerUp("p-1"))
    rig.all.clear()
    rig.token("p-1", value("p", R0, "p:0"), attempts=1)
    assert not of(rig.all, Attempt)
    rig.after(2 * limits.propose_retry_s)
    (proposal,) = of(rig.all, Propose)
    assert proposal.topology.find("q").keepers == ("p-1",)
    rig.step(CasSettled(proposal.topology, proposal.topology.generation, committed=True))
    assert of(rig.all, Attempt)


def test_a_keeper_that_may_be_named_yet_counts_although_it_is_gone():
    rig = promoted()
    rig.get("p-1", RecordAck("q", 2, 0, 0))
    assert of(rig.all, Propose)
    rig.all.clear()
    rig.step(PeerDown("p-1", refused=True))
    rig.token("p-1", value("p", R0, "p:0"))
    rig.run()
    assert not of(rig.all, NoteDurable)
    assert not of(rig.all, StateCopy)


def test_a_keeper_is_named_only_once_it_has_everything_that_is_durable():
    rig = promoted()
    rig.token("p-1", value("p", R0, "p:0"))
    rig.run()
    assert [note.version for note in of(rig.all, NoteDurable)] == [0, 1]
    rig.get("p-1", RecordAck("q", 2, 0, 0))
    assert not of(rig.all, Propose)
    assert [copy.version for copy in of(rig.all, StateCopy, to="p-1")] == [0, 1]
    rig.get("p-1", RecordAck("q", 2, 1, 1))
    assert of(rig.all, Propose)


def test_a_suspect_does_not_run_while_the_keeper_is_out_of_reach():
    rig = promoted()
    named(rig)
    rig.step(PeerDown("p-1", refused=False))
    rig.token("p-1", value("p", R0, "p:0"), attempts=1)
    assert not of(rig.all, Attempt)


# -- the keeper ----------------------------------------------------------------------------------------------


def copy_of(version=0, epoch=2):
    out = value("q", R0, "q:0")
    units = (Consumed(UnitId(R0, ()), 1, "q:0", ((FRONTEND, out),), ()),) if version else ()
    return StateCopy("q", epoch, version, units, Completion(()), "", P(f"state {version}"))


def stateless():
    return active_of(DATA, "p", "p-1", topo(3, ALONE))


def frontend():
    rig = Rig(FrontendMachine(DATA, "F-1"))
    rig.learn(topo(3, ALONE))
    return rig


@pytest.fixture(params=[stateless, frontend])
def keeper(request):
    rig = request.param()
    rig.all.clear()
    return rig


def name_of(rig):
    return rig.machine.instance


def test_a_keeper_takes_the_copy_of_the_present_primary_alone(keeper):
    keeper.get("q-9", copy_of())
    keeper.get("q-2", copy_of(epoch=1))
    assert not of(keeper.all, RecordAck)
    keeper.get("q-2", copy_of())
    assert of(keeper.all, RecordAck, to="q-2") == [RecordAck("q", 2, 0, 0, True)]


def test_a_keeper_applies_records_and_answers_managers_once_it_is_named(keeper):
    keeper.get("q-2", copy_of())
    keeper.get("q-2", StateRecord("q", 2, 1, 0, (), (), "c1", P("state 1")))
    assert of(keeper.all, RecordAck)[-1] == RecordAck("q", 2, 1, 1, True)
    keeper.get("m-1", Freeze(1, 3, "q", 2))
    assert of(keeper.all, FreezeAnswer)[-1].applied is None
    keeper.learn(topo(4, replace(ALONE, keepers=(name_of(keeper),))))
    keeper.get("m-1", Probe(7))
    assert RoleReport("q", HOLDS, 2, 1, False) in of(keeper.all, ProbeAnswer)[-1].roles
    keeper.get("m-1", Freeze(2, 4, "q", 2))
    assert of(keeper.all, FreezeAnswer)[-1].applied == 1


def test_a_keeper_that_is_the_primary_upstream_applies_what_waits_for_its_own_version():
    two = graph(op("p", FRONTEND, to=("q",), stateful=True), op("q", "p", stateful=True))
    rig = primary_of(two, "p", topo(3, rset("p", "p-1", "p-2"), ALONE))
    rig.get("q-2", copy_of())
    rig.token("F-1", value("F", R0, "0/0"))
    rig.run()
    rig.get("q-2", StateRecord("q", 2, 1, 0, (Dep("p", 1, 1),), (), "c1", P("state 1")))
    assert of(rig.all, RecordAck, to="q-2")[-1] == RecordAck("q", 2, 1, 0, True), "its own version is pending"
    effects = rig.get("p-2", RecordAck("p", 1, 1, 1))
    assert of(effects, NoteDurable)
    assert of(effects, RecordAck, to="q-2") == [RecordAck("q", 2, 1, 1, True)], "nobody else tells it"


def test_a_frozen_keeper_takes_no_record_until_a_later_topology_is_known(keeper):
    keeper.get("q-2", copy_of())
    mine = replace(ALONE, keepers=(name_of(keeper),))
    keeper.learn(topo(4, mine))
    keeper.get("m-1", Freeze(1, 4, "q", 2))
    record = StateRecord("q", 2, 1, 0, (), (), "c1", P("state 1"))
    keeper.all.clear()
    keeper.get("q-2", record)
    assert not of(keeper.all, RecordAck)
    keeper.learn(topo(5, mine))
    keeper.get("q-2", record)
    assert of(keeper.all, RecordAck)[-1] == RecordAck("q", 2, 1, 1, True)


def test_a_keeper_goes_back_to_the_end_before_it_goes_on(keeper):
    keeper.get("q-2", copy_of())
    mine = (name_of(keeper),)
    keeper.learn(topo(4, replace(ALONE, keepers=mine)))
    units = copy_of(version=1).units
    keeper.get("q-2", StateRecord("q", 2, 1, 0, (), units, "c1", P("state 1")))
    ended = replace(ALONE, epoch=3, primary="q-3", keepers=mine, ends=((1, 0), (2, 0)))
    keeper.learn(topo(5, ended, revoked=("q-2",)))
    assert of(keeper.all, RecordAck, to="q-3") == [RecordAck("q", 3, 0, 0, True)]
    keeper.get("q-4", AskCopy("q", 3, -1, 5))
    keeper.get("q-3", AskCopy("q", 2, -1, 5))
    assert not of(keeper.all, StateCopy)
    keeper.get("q-3", AskCopy("q", 3, -1, 5))
    (copy,) = of(keeper.all, StateCopy, to="q-3")
    assert (copy.version, copy.units) == (0, ())
    keeper.get("q-3", StateRecord("q", 3, 1, 0, (), (), "d1", P("another state 1")))
    again = replace(ended, epoch=4, primary="q-4", ends=(*ended.ends, (3, 1)))
    keeper.learn(topo(6, again, revoked=("q-2", "q-3")))
    keeper.now += 1.0  # the copy for q-3 is no longer on its way
    keeper.get("q-4", AskCopy("q", 4, -1, 6))
    (copy,) = of(keeper.all, StateCopy, to="q-4")
    assert (copy.version, copy.state, copy.units) == (1, P("another state 1"), ())


def test_a_keeper_forgets_the_state_when_the_topology_names_it_no_more(keeper):
    keeper.get("q-2", copy_of())
    keeper.learn(topo(4, replace(ALONE, keepers=(name_of(keeper),))))
    assert keeper.machine.keeper.is_needed
    held = keeper.machine.keeper.states["q"]
    assert held.nbytes
    keeper.learn(topo(5, rset("q", "q-2", "q-3", epoch=2)))
    assert not keeper.machine.keeper.states
    assert not held.store.versions, "its bytes would stay until the interpreter looks for what holds itself"


def test_a_keeper_gives_the_state_to_the_fresh_primary_and_keeps_it_in_that_epoch(keeper):
    keeper.get("q-2", copy_of(version=1))
    mine = (name_of(keeper),)
    keeper.learn(topo(4, replace(ALONE, keepers=mine)))
    ended = replace(ALONE, epoch=3, primary="q-3", keepers=mine, ends=((1, 0), (2, 1)))
    keeper.learn(topo(5, ended, revoked=("q-2",)))
    assert of(keeper.all, RecordAck, to="q-3") == [RecordAck("q", 3, 1, 1, True)]
    keeper.get("q-3", AskCopy("q", 3, -1, 5))
    (copy,) = of(keeper.all, StateCopy, to="q-3")
    assert (copy.epoch, copy.version, copy.state, len(copy.units)) == (3, 1, P("state 1"), 1)


def test_a_keeper_holds_no_more_than_its_bound(keeper, monkeypatch):
    monkeypatch.setattr(limits, "keeper_state_bytes_max", 5)
    keeper.get("q-2", copy_of())
    assert not of(keeper.all, RecordAck)


@pytest.mark.parametrize(("bound", "copies"), [(20, 1), (15, 0)])
def test_nobody_is_called_to_keep_what_is_too_large_whether_the_newest_version_changed_it_or_not(
    bound, copies, monkeypatch
):
    rig = promoted(member("q-2"))
    rig.token("p-1", value("p", R0, "p:0"))
    rig.done(updated=False)
    monkeypatch.setattr(limits, "keeper_state_bytes_max", bound)
    rig.step(MembersChanged(EVERYBODY))
    assert len(of(rig.all, StateCopy, to="p-1")) == copies


def test_a_keeper_that_is_to_end_asks_to_be_let_go_and_ends_then():
    rig = active_of(DATA, "p", "p-1", topo(3, ALONE))
    rig.get("q-2", copy_of())
    rig.learn(topo(4, HELD_BY_P))
    effects = rig.step(Drain())
    assert of(effects, Leave, to="q-2")
    assert not of(rig.all, Stop)
    effects = rig.learn(topo(5, ALONE))
    assert of(effects, Stop)


QR = graph(op("p", FRONTEND, to=("q",)), op("q", "p", to=("r",), stateful=True), op("r", "q", stateful=True))


def backup_of_r():
    """r-2, which is in sync, and keeps q's state."""
    rig = Rig(StatefulMachine(QR, "r", "r-2"))
    rig.ready(P("r 0"))
    rig.learn(topo(3, ALONE, rset("r", "r-1", joining=("r-2",))))
    rig.get("r-1", StateCopy("r", 1, 0, (), Completion(()), "", P("r 0")))
    rig.get("q-2", copy_of())
    rig.learn(topo(4, replace(ALONE, keepers=("r-2",)), rset("r", "r-1", "r-2")))
    return rig


def test_who_is_dropped_from_its_own_set_stays_until_it_is_let_go_as_a_keeper():
    rig = backup_of_r()
    effects = rig.learn(topo(5, replace(ALONE, keepers=("r-2",)), rset("r", "r-1")))
    assert not of(effects, Stop)
    assert of(effects, Leave, to="q-2")
    rig.get("m-1", Freeze(2, 5, "q", 2))
    assert of(rig.all, FreezeAnswer)[-1].applied == 0
    assert of(rig.learn(topo(6, ALONE, rset("r", "r-1"))), Stop)


def test_who_stays_as_a_keeper_alone_does_not_join_its_own_set_again():
    rig = backup_of_r()
    rig.learn(topo(5, replace(ALONE, keepers=("r-2",)), rset("r", "r-1")))
    effects = rig.learn(topo(6, replace(ALONE, keepers=("r-2",)), rset("r", "r-1", joining=("r-2",))))
    assert not of(effects, Stop)
    assert not of(effects, AskCopy)


def test_a_keeper_that_drains_does_not_join_its_own_set_again():
    rig = backup_of_r()
    rig.step(Drain())
    rig.learn(topo(5, replace(ALONE, keepers=("r-2",)), rset("r", "r-1")))
    effects = rig.learn(topo(6, replace(ALONE, keepers=("r-2",)), rset("r", "r-1", joining=("r-2",))))
    assert not of(effects, AskCopy)


# -- a fresh primary -----------------------------------------------------------------------------------------

AFTER = replace(ALONE, epoch=3, primary="q-3", keepers=("p-1",), ends=((1, 0), (2, 0)))


def test_a_fresh_primary_begins_with_the_keepers_state_and_not_with_its_own():
    rig = Rig(StatefulMachine(DATA, "q", "q-3"))
    rig.ready(P("a state 0 of its own"))
    rig.learn(topo(5, AFTER))
    assert of(rig.all, AskCopy, to="p-1") == [AskCopy("q", 3, -1, 5)]
    assert not of(rig.all, NoteDurable)
    assert not rig.machine.ready
    rig.get("p-1", copy_of(epoch=2))
    assert rig.machine.primary is None, "of an epoch that has ended"
    rig.get("p-1", copy_of(epoch=3))
    assert of(rig.all, LoadState)[-1].state == P("state 0")
    assert not of(rig.all, NoteDurable), (
        "the keeper has not said yet that it holds the beginning of the epoch"
    )
    rig.get("p-1", RecordAck("q", 3, 0, 0))
    assert [note.version for note in of(rig.all, NoteDurable)] == [0]


def test_a_fresh_primary_whose_keeper_is_gone_ends_instead_of_guessing():
    rig = Rig(StatefulMachine(DATA, "q", "q-3"))
    rig.ready(P("a state 0 of its own"))
    rig.learn(topo(5, AFTER))
    rig.step(PeerDown("p-1", refused=True))
    rig.after(limits.backup_lag_max_s + 0.1)
    assert of(rig.all, Stop)


def fresh(data=DATA, ready=True):
    rig = Rig(StatefulMachine(data, "q", "q-3"))
    if ready:
        rig.ready(P("a state 0 of its own"))
    rig.learn(topo(5, AFTER, P_SLOT))
    return rig


def test_a_fresh_primary_gets_the_state_while_its_model_is_still_loading():
    rig = fresh(ready=False)
    assert of(rig.all, AskCopy, to="p-1")
    rig.get("p-1", copy_of(epoch=3))
    assert not of(rig.all, LoadState)
    rig.ready(P("a state 0 of its own"))
    assert of(rig.all, LoadState)[-1].state == P("state 0")


def test_a_fresh_primary_whose_question_came_too_early_asks_again_when_the_keeper_knows_its_epoch():
    rig = fresh()
    rig.all.clear()
    rig.get("p-1", RecordAck("q", 3, 0, 0))
    assert of(rig.all, AskCopy, to="p-1") == [AskCopy("q", 3, -1, 5)]
    rig.get("p-1", copy_of(epoch=3))
    assert [note.version for note in of(rig.all, NoteDurable)] == [0], "what the keeper said counts"


def test_a_fresh_primary_takes_nothing_but_the_end_and_knows_what_is_complete_by_then():
    rig = fresh()
    rig.get("p-1", copy_of(version=1, epoch=3))
    assert rig.machine.primary is None, "not the end"
    complete = Completion(((0, 1, ()),))
    rig.get("p-1", replace(copy_of(epoch=3), complete=complete))
    rig.loaded(rig.all)
    rig.token("p-1", value("p", R0, "p:0"))
    assert not of(rig.all, StartBatch)
    rig.token("p-1", value("p", R1, "p:1"))
    assert of(rig.all, StartBatch)


def test_a_fresh_primary_that_cannot_read_the_keepers_state_ends():
    rig = fresh()
    rig.get("p-1", replace(copy_of(epoch=3), state=P("state 0", defect="of a newer version")))
    assert of(rig.all, Stop)
    assert not of(rig.all, LoadState)


def test_a_fresh_primary_without_its_state_yet_holds_up_no_recovery_and_keeps_the_fence():
    data = graph(op("o", FRONTEND, to=("q",), stateful=True), op("q", "o", stateful=True))
    o = rset("o", "o-1")
    rig = Rig(StatefulMachine(data, "q", "q-3"))
    rig.ready(P("a state 0 of its own"))
    changed = replace(AFTER, keepers=("F-1",))
    rig.learn(topo(5, changed, o))
    rig.get("m-1", Fence(7, 5, "q", (Dep("o", 1, 3),)))
    assert of(rig.all, FenceAnswer, to="m-1") == [FenceAnswer(7, 5, "q", 3, False, ())]
    rig.get("F-1", copy_of(epoch=3))
    rig.loaded(rig.all)
    rig.get("F-1", RecordAck("q", 3, 0, 0))
    rig.token("o-1", value("o", R0, "o:4", dep("o", 1, 4)))
    assert not of(rig.all, StartBatch)
    rig.token("o-1", value("o", R1, "o:3", dep("o", 1, 3)))
    assert of(rig.all, StartBatch)


# -- managers ------------------------------------------------------------------------------------------------


def manager(*members):
    rig = Rig(ManagerMachine(DATA, "m-1"))
    rig.step(MembersChanged((member("F-1"), member("p-1"), Member("m-1", "manager", ""), *members)))
    return failed(rig, HELD_BY_P)


def failed(rig, result):
    """The manager learns that q-2 leads the set, and that nobody listens there; what it proposes besides is
    committed."""
    rig.step(PeerDown("q-2", refused=True))
    rig.learn(topo(4, result, P_SLOT))
    for proposal in of(rig.all, Propose):
        rig.step(CasSettled(proposal.topology, proposal.topology.generation, committed=True))
    return rig


def answered(rig):
    """The keeper has answered a probe, and the Freeze that follows once the primary is revoked."""
    nonce = of(rig.all, Probe, to="p-1")[-1].nonce
    rig.get("p-1", ProbeAnswer(nonce, Health.HEALTHY, 4, (RoleReport("q", HOLDS, 2, 7, False),)))
    proposals = [item for item in of(rig.all, Propose) if "q-2" in item.topology.revoked]
    if not proposals:
        return None
    rig.step(CasSettled(proposals[-1].topology, proposals[-1].topology.generation, committed=True))
    question = of(rig.all, Freeze, to="p-1")[-1]
    rig.get("p-1", FreezeAnswer(question.attempt, question.generation, "q", 2, 7))
    return of(rig.all, Propose)[-1].topology.find("q")


def test_a_dead_primary_is_replaced_by_a_fresh_instance_that_goes_on_from_what_the_keeper_has():
    result = answered(manager(member("q-3")))
    assert (result.epoch, result.primary, result.keepers, result.end_of(2)) == (3, "q-3", ("p-1",), 7)


def test_a_joiner_goes_before_an_instance_that_knows_nothing():
    rig = Rig(ManagerMachine(DATA, "m-1"))
    others = (member("q-3"), member("q-4"))
    rig.step(MembersChanged((member("F-1"), member("p-1"), Member("m-1", "manager", ""), *others)))
    failed(rig, replace(HELD_BY_P, joining=("q-4",)))
    assert answered(rig).primary == "q-4"


def test_without_a_fresh_instance_the_primary_stays_and_the_state_is_not_lost():
    rig = manager()
    assert answered(rig) is None
    rig.after(limits.former_wait_s)
    assert not of(rig.all, NoteLost)


def test_an_instance_of_an_older_version_cannot_go_on_with_what_a_keeper_holds():
    assert answered(manager(member("q-3", keeps=False))) is None


def test_a_primary_whose_proxy_lives_is_not_revoked_for_its_keepers_sake():
    rig = Rig(ManagerMachine(DATA, "m-1"))
    everybody = (*EVERYBODY, member("q-3"))
    rig.step(MembersChanged(everybody))
    rig.learn(topo(4, HELD_BY_P))
    rig.get("q-2", Suspect("q-2", "its model died"))
    nonce = of(rig.all, Probe, to="p-1")[-1].nonce
    rig.get("p-1", ProbeAnswer(nonce, Health.HEALTHY, 4, (RoleReport("q", HOLDS, 2, 7, False),)))
    rig.after(0.1)
    assert not [item for item in of(rig.all, Propose) if "q-2" in item.topology.revoked]


def revokes(rig):
    """Whether p-1 is revoked by anything proposed so far."""
    return any("p-1" in item.topology.revoked for item in of(rig.all, Propose))


def test_a_keeper_is_not_revoked_before_the_primary_has_said_that_it_has_the_state():
    rig = Rig(ManagerMachine(DATA, "m-1"))
    rig.step(MembersChanged((*EVERYBODY, member("p-2"))))
    rig.learn(topo(4, HELD_BY_P, P_SLOT, revoked=("q-1",)))
    rig.step(PeerDown("p-1", refused=True))
    rig.after(0.1)
    nonce = of(rig.all, Probe, to="q-2")[-1].nonce
    assert not revokes(rig), "it may be the last one that has the state"
    rig.get("q-2", ProbeAnswer(nonce, Health.HEALTHY, 4, (RoleReport("q", "joining", 2, -1, False),)))
    assert not revokes(rig), "the primary is yet to get it from the keeper"
    rig.get("q-2", ProbeAnswer(nonce, Health.HEALTHY, 4, (RoleReport("q", "primary", 2, 0, True),)))
    assert revokes(rig)


def test_what_a_primary_said_before_it_was_suspected_itself_lets_no_keeper_go():
    rig = Rig(ManagerMachine(DATA, "m-1"))
    rig.step(MembersChanged((*EVERYBODY, member("p-2"))))
    rig.learn(topo(4, HELD_BY_P, P_SLOT, revoked=("q-1",)))
    rig.get("F-1", Suspect("p-1", "silent"))
    nonce = of(rig.all, Probe, to="q-2")[-1].nonce
    leads = RoleReport("q", "primary", 2, 0, True)
    rig.get("q-2", ProbeAnswer(nonce, Health.HEALTHY, 4, (leads,)))
    rig.get("q-2", Suspect("q-2", "its model died"))
    rig.step(PeerDown("p-1", refused=True))
    rig.after(0.1)
    assert not revokes(rig), (
        "a request that kills models may take the proxy as well: the keeper would be the last one"
    )
    nonce = of(rig.all, Probe, to="q-2")[-1].nonce
    rig.get("q-2", ProbeAnswer(nonce, Health.HEALTHY, 4, (leads,)))
    assert revokes(rig)


def test_a_keeper_is_not_revoked_on_the_word_of_a_primary_that_is_gone_since():
    rig = Rig(ManagerMachine(DATA, "m-1"))
    rig.step(MembersChanged((*EVERYBODY, member("p-2"))))
    rig.learn(topo(4, HELD_BY_P, P_SLOT, revoked=("q-1",)))
    rig.get("F-1", Suspect("p-1", "silent"))
    nonce = of(rig.all, Probe, to="q-2")[-1].nonce
    rig.get("q-2", ProbeAnswer(nonce, Health.HEALTHY, 4, (RoleReport("q", "primary", 2, 0, True),)))
    rig.step(PeerDown("q-2", refused=True))
    rig.after(limits.silence_max_s)
    assert not revokes(rig)
    nonce = of(rig.all, Probe, to="p-1")[-1].nonce
    rig.get("p-1", ProbeAnswer(nonce, Health.HEALTHY, 4, (RoleReport("q", HOLDS, 2, 7, False),)))
    assert not revokes(rig), "it answers, and has the state"


def keeper_of_a_lost_state(refused):
    """Its primary is revoked and nobody holds the state but the keeper, which fails its probe."""
    rig = Rig(ManagerMachine(DATA, "m-1"))
    rig.step(MembersChanged((member("F-1"), member("p-2"), Member("m-1", "manager", ""))))
    rig.learn(topo(4, HELD_BY_P, P_SLOT, revoked=("q-1", "q-2")))
    rig.step(PeerDown("p-1", refused=refused))
    for _ in range(4):
        rig.after(0.3)
    lost = of(rig.all, Propose)[-1].topology
    assert lost.find("q").lost
    assert not revokes(rig)
    rig.step(CasSettled(lost, lost.generation, committed=True))
    return rig


def test_a_keeper_of_a_lost_state_that_only_hangs_is_waited_for():
    rig = keeper_of_a_lost_state(refused=False)
    for _ in range(int(limits.hung_wait_s) - 1):
        rig.after(1.0)
    assert not revokes(rig), "it may wake up and have the state"
    rig.after(1.1)
    assert revokes(rig), "its slot does not wait for ever"


def test_a_keeper_of_a_lost_state_where_nobody_listens_any_more_is_revoked_at_once():
    assert revokes(keeper_of_a_lost_state(refused=True))


def goes_back():
    """The primary has a fresh model and must go back by itself; it retains versions 6 and 8, and 6 has only
    durable dependencies."""
    rig = Rig(ManagerMachine(DATA, "m-1"))
    rig.step(MembersChanged(EVERYBODY))
    rig.learn(topo(4, HELD_BY_P, P_SLOT, revoked=("q-1",)))
    rig.get("q-2", Suspect("q-2", "its model died"))
    nonce = of(rig.all, Probe, to="q-2")[-1].nonce
    leads = RoleReport("q", "primary", 2, 8, False)
    rig.get("q-2", ProbeAnswer(nonce, Health.NEEDS_ROLLBACK, 4, (leads,)))
    question = of(rig.all, Fence, to="q-2")[-1]
    retained = (RetainedVersion(8, dep("p", 1, 3)), RetainedVersion(6, ()))
    rig.get("q-2", FenceAnswer(question.attempt, 4, "q", 2, True, retained))
    return rig


def holders_after(rig, applied):
    """Whom the committed rollback names as keepers, once the keeper has said how far it is."""
    question = of(rig.all, Freeze, to="p-1")[-1]
    rig.get("p-1", FreezeAnswer(question.attempt, 4, "q", 2, applied))
    replica_set = of(rig.all, Propose)[-1].topology.find("q")
    assert (replica_set.epoch, replica_set.primary, replica_set.end_of(2)) == (3, "q-2", 6)
    return replica_set.keepers


def test_a_primary_that_goes_back_by_itself_keeps_the_keeper_that_holds_the_end():
    rig = goes_back()
    assert not of(rig.all, Propose), "the keeper is frozen first"
    assert holders_after(rig, 7) == ("p-1",)
    assert holders_after(goes_back(), 6) == ("p-1",)


def test_a_keeper_that_lacks_the_end_or_is_gone_does_not_stay_where_a_primary_goes_back():
    assert holders_after(goes_back(), 5) == ()
    assert holders_after(goes_back(), None) == ()
    rig = goes_back()
    rig.step(PeerDown("p-1", refused=True))
    assert of(rig.all, Propose)[-1].topology.find("q").keepers == ()


def test_a_copy_for_keeping_frees_what_it_says_is_complete():
    """Seed 2097324: later broadcasts held nothing new, so a slot's owner waited for ever for a request that
    was complete before it handed the slot over."""
    rig = active_of(DATA, "p", "p-1", topo(3, ALONE, table("p", ("p-1", 1))))
    rig.step(MembersChanged((*EVERYBODY, Member("p-9", "p", ""))))
    rig.token("F-1", value("F", R0, "0/0"))
    rig.done(updated=False)
    handed = topo(4, ALONE, table("p", ("p-1", 1), successor="p-9"))
    assert not of(rig.learn(handed), Propose), "request 0 is not complete"
    done = Completion(((0, 1, ()),))
    (proposed,) = of(rig.get("q-2", StateCopy("q", 2, 7, (), done, "c7", P("state 7"))), Propose)
    assert proposed.topology.table("p").slots[0].instance == "p-9"


def test_a_keeper_that_lags_behind_who_calls_it_forgets_nothing_that_it_has_acknowledged():
    """The copy overtakes etcd's watch: an older keeper was named and dropped meanwhile. By the topology that
    names that one, it would throw away what it has acknowledged."""
    slots = table("p", ("p-1", 1), ("p-2", 1))
    data = graph(op("p", FRONTEND, to=("q",), slots=2), op("q", "p", stateful=True))
    everybody = (*EVERYBODY, member("p-2"))
    lags = active_of(data, "p", "p-2", topo(3, ALONE, slots, revoked=("q-1",)))
    lags.step(MembersChanged(everybody))
    copy = StateCopy("q", 2, 0, (), Completion(()), "", P("state 0"), generation=5)
    assert not of(lags.get("q-2", copy), RecordAck)
    lags.learn(topo(4, HELD_BY_P, slots, revoked=("q-1",)))
    assert not of(lags.get("q-2", copy), RecordAck)
    lags.learn(topo(5, ALONE, slots, revoked=("q-1", "p-1")))
    assert of(lags.get("q-2", copy), RecordAck)
    lags.learn(topo(6, replace(ALONE, keepers=("p-2",)), slots, revoked=("q-1", "p-1")))
    (answer,) = of(lags.get("m-1", Freeze(1, 6, "q", 2)), FreezeAnswer)
    assert answer.applied == 0


def test_who_calls_a_keeper_says_by_which_topology():
    primary = promoted(*EVERYBODY)
    (copy,) = of(primary.all, StateCopy, to="p-1")
    assert copy.generation == primary.machine.knowledge.topology.generation > 0


def test_a_backup_that_stays_as_a_keeper_is_not_in_sync_again_on_its_old_word():
    """q-2 keeps p's state, is dropped by q-1, which does not hear of that, and named a joiner of q."""
    data = graph(op("p", FRONTEND, to=("q",), stateful=True), op("q", "p", stateful=True))
    of_p = rset("p", "p-1", epoch=2, ends=((1, 0),))
    everybody = tuple(member(name) for name in ("F-1", "p-1", "q-1", "q-2"))
    primary = primary_of(data, "q", topo(1, of_p, rset("q", "q-1", "q-2")))
    primary.step(MembersChanged(everybody))
    primary.get("q-2", RecordAck("q", 1, 0, 0))
    primary.all.clear()
    primary.step(PeerDown("q-2"))
    primary.now += 1.0
    primary.step(Tick())
    dropped = of(primary.all, Propose)[-1].topology
    assert dropped.find("q").in_sync == ()
    primary.step(CasUnknown())
    primary.all.clear()
    primary.step(PeerUp("q-2"))
    again = replace(dropped, generation=dropped.generation + 1)
    primary.learn(again.with_set(replace(again.find("q"), joining=("q-2",))))
    primary.now += 0.3
    primary.step(Tick())
    assert not [made for made in of(primary.all, Propose) if made.topology.find("q").in_sync]
