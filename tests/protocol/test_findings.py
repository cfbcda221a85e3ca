"""Interleavings that once broke an invariant: the core's corpus of transcripts."""

from dataclasses import replace

import pytest
from kit import R0, R1, P, Rig, active_of, dep, graph, of, op, primary_of, rset, skip, table, topo, value

from hams_protocol import limits
from hams_protocol.deps import Dep
from hams_protocol.effects import (
    EnterUpdate,
    Loss,
    NoteApply,
    NoteDurable,
    NoteExec,
    NoteLost,
    Propose,
    Send,
    StartBatch,
    Stop,
)
from hams_protocol.events import Captured, CasSettled, Drain, ModelDied
from hams_protocol.graph import FRONTEND, Join, RecoverySpec, WhenLost
from hams_protocol.messages import (
    Completion,
    Deliver,
    Durable,
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
    SlotAnswer,
    SlotQuery,
    StateCopy,
    StateRecord,
    Suspect,
)
from hams_protocol.recovery import ManagerMachine
from hams_protocol.stateful import StatefulMachine
from hams_protocol.topology import allow_restart


def fan_out():
    """Stateful a -> stateless b, which fans out to c and d."""
    return graph(
        op("a", FRONTEND, to=("b",), stateful=True), op("b", "a", to=("c", "d")), op("c", "b"), op("d", "b")
    )


def taken_over(route=("c",)):
    """b-2 has taken over b's slot; a's primary is at epoch 1."""
    names = (table("c", ("c-1", 1)), table("d", ("d-1", 1)))
    rig = active_of(
        fan_out(),
        "b",
        "b-2",
        topo(2, rset("a", "a-1", "a-2"), table("b", ("b-2", 2)), *names, revoked=("b-1",)),
    )
    after = topo(
        3, rset("a", "a-2", epoch=2, ends=((1, 9),)), table("b", ("b-2", 2)), *names, revoked=("a-1", "b-1")
    )
    return rig, after


def test_a_value_taken_over_that_becomes_orphan_is_computed_anew():
    rig, after = taken_over()
    rig.get("c-1", SlotAnswer("b", 0, 2, (value("b", R0, "b-1:1", dep("a", 1, 10), route=("c", "d")),)))
    effects = rig.get("d-1", SlotAnswer("b", 0, 2, ()))
    assert not of(effects, StartBatch)
    rig.learn(after)  # a's end is 9: the value was an orphan
    effects = rig.token("a-2", value("a", R0, "a-2:1", dep("a", 2, 10)), epoch=2)
    assert of(effects, StartBatch), "its successor is accepted, and runs"
    assert {item.target for item in of(rig.done(updated=False), Deliver)} == {"c", "d"}


def test_the_route_of_an_orphan_is_not_imposed_on_its_successor():
    rig, after = taken_over()
    rig.get("c-1", SlotAnswer("b", 0, 2, ()))
    gone = skip("b", R0, "b-1:1!", dep("a", 1, 10))
    rig.get("d-1", SlotAnswer("b", 0, 2, (gone,)))  # routed to nobody at all
    rig.learn(after)
    rig.token("a-2", value("a", R0, "a-2:1", dep("a", 2, 10)), epoch=2)
    assert of(rig.done(updated=False), NoteExec)[0].route == ("c", "d")


def test_a_first_whose_loser_becomes_orphan_does_not_run_again():
    data = graph(
        op("a", FRONTEND, to=("x",), stateful=True),
        op("b", FRONTEND, to=("x",), stateful=True),
        op("x", "a", "b", to=("c", FRONTEND), join=Join.FIRST),
        op("c", "x"),
    )
    rest = (table("x", ("x-1", 1)), table("c", ("c-1", 1)))
    rig = active_of(data, "x", "x-1", topo(1, rset("a", "a-1"), rset("b", "b-1", "b-2"), *rest))
    rig.token("a-1", value("a", R0, "a-1:1", dep("a", 1, 5)))
    assert of(rig.done(updated=False), NoteExec)
    rig.token("b-1", value("b", R0, "b-1:1", dep("b", 1, 7)))  # the loser
    effects = rig.learn(
        topo(2, rset("a", "a-1"), rset("b", "b-2", epoch=2, ends=((1, 6),)), *rest, revoked=("b-1",))
    )
    assert not of(effects, StartBatch), "its winner, and what was made of it, are as good as before"
    effects = rig.token("b-2", value("b", R0, "b-2:1", dep("b", 2, 7)), epoch=2)
    assert not of(effects, StartBatch)
    assert [item.target for item in of(effects, Deliver)] == ["F*"], "it only closes"


def test_poison_is_not_declared_before_the_inquiry_is_over():
    rig, _ = taken_over()
    effects = rig.token("a-1", value("a", R0, "a-1:1", dep("a", 1, 8)), attempts=5)
    assert not of(effects, NoteExec), "before a new slot owner emits anything, it asks"
    rig.get("c-1", SlotAnswer("b", 0, 2, ()))
    effects = rig.get("d-1", SlotAnswer("b", 0, 2, ()))
    assert of(effects, NoteExec)[0].route == ("c", "d")


def chain():
    """Stateful p -> stateful q, and r -> q."""
    return graph(
        op("p", FRONTEND, to=("q",), stateful=True),
        op("r", FRONTEND, to=("q",), stateful=True),
        op("q", "p", "r", stateful=True, optional=("p", "r")),
    )


def downstream(*in_sync):
    """q's primary, with whom p and r are at epoch 1."""
    return primary_of(
        chain(), "q", topo(1, rset("p", "p-1", "p-2"), rset("r", "r-1"), rset("q", "q-1", *in_sync))
    )


def feed(rig, request, p=(), r=()):
    """One request through q."""
    rig.token("p-1", value("p", request, f"p:{request}", p))
    rig.token("r-1", value("r", request, f"r:{request}", r))
    return rig.run()


def test_an_older_fence_that_comes_late_does_not_relax_a_stricter_one():
    rig = downstream("q-2")
    (answer,) = of(rig.get("m-2", Fence(7, 1, "q", (Dep("p", 1, 5),))), FenceAnswer)
    assert not answer.tainted
    rig.get("m-1", Fence(3, 1, "q", (Dep("p", 1, 9),)))  # of a manager that has died since
    rig.token("p-1", value("p", R0, "p:0", dep("p", 1, 7)))
    effects = rig.token("r-1", value("r", R0, "r:0"))
    assert not of(effects, StartBatch), "7 is above the end that is about to be committed"


def test_who_has_told_that_its_state_holds_an_orphan_makes_nothing_more_of_it_durable():
    rig = downstream()
    feed(rig, R0)
    rig.token("p-1", value("p", R1, "p:1", dep("p", 1, 3)))
    rig.token("r-1", value("r", R1, "r:1"))
    rig.want()
    captured = rig.done()  # version 2 depends on what is not known to be durable, and is not captured yet
    (answer,) = of(rig.get("m-1", Fence(1, 1, "q", (Dep("p", 1, 2),))), FenceAnswer)
    assert (answer.tainted, [item.version for item in answer.retained]) == (True, [1])
    effects = rig.capture(captured)
    effects += rig.get("p-1", Durable(dep("p", 1, 3)))
    assert not of(effects, NoteDurable), "it may be about to go back to version 1"
    effects = rig.learn(replace(rig.machine.knowledge.topology, generation=2))
    assert of(effects, NoteDurable)[-1].version == 2, "that attempt can no longer commit"


def test_who_has_told_what_it_can_go_back_to_makes_nothing_more_of_it_durable():
    rig = downstream()
    feed(rig, R0)
    rig.token("p-1", value("p", R1, "p:1", dep("p", 1, 3)))
    rig.token("r-1", value("r", R1, "r:1"))
    rig.want()
    rig.capture(rig.done())  # version 2 depends on what is not known to be durable
    rig.token("p-1", value("p", R0._replace(n=2), "p:2"))
    rig.token("r-1", value("r", R0._replace(n=2), "r:2"))
    rig.want()
    rig.done()
    rig.step(ModelDied("killed"))  # and with it version 3
    (answer,) = of(rig.get("m-1", Fence(1, 1, "q", ())), FenceAnswer)
    assert [(item.version, item.deps) for item in answer.retained] == [(2, dep("p", 1, 3)), (1, ())]
    assert not of(rig.get("p-1", Durable(dep("p", 1, 3))), NoteDurable), (
        "it may be about to go back to version 1"
    )


def test_a_durable_version_can_be_gone_back_to_though_a_notice_was_lost():
    rig = downstream("q-2")
    rig.get("q-2", RecordAck("q", 1, 0, 0))
    feed(rig, R0, r=dep("r", 1, 4))
    rig.get("q-2", RecordAck("q", 1, 1, 1))  # q-2 knew that (r, 1, 4) is durable; q-1 never heard of it
    (answer,) = of(rig.get("m-1", Fence(1, 1, "q", (Dep("p", 1, 0),))), FenceAnswer)
    assert answer.retained[-1].version == 1
    assert answer.retained[-1].deps == (), "durable is for ever"


def test_a_primary_whose_state_died_uncaptured_says_so_until_it_is_heard():
    rig = downstream("q-2")
    rig.members(m_1="manager")
    rig.token("p-1", value("p", R0, "p:0"))
    rig.token("r-1", value("r", R0, "r:0"))
    rig.want()
    rig.done()
    effects = rig.step(ModelDied("killed"))
    assert of(effects, Suspect)  # lost on its way
    rig.ready(P("state 0"))
    assert of(rig.after(1.0), Suspect), "nobody else can know"


def manager(*sets, **members):
    """The only manager."""
    rig = Rig(ManagerMachine(chain(), "m-1"))
    rig.members(m_1="manager", **members)
    rig.learn(topo(1, *sets))
    return rig


def needs_rollback(rig, epoch=1):
    """q-1 says that its model died with what was not captured."""
    rig.get("q-1", Suspect("q-1", "model died"))
    return answer_probes(rig, epoch)


def answer_probes(rig, epoch=1):
    """q-1 answers the last probe it got."""
    probe = [
        item.message
        for item in rig.all
        if isinstance(item, Send) and item.target == "q-1" and isinstance(item.message, Probe)
    ][-1]
    return rig.get(
        "q-1",
        ProbeAnswer(probe.nonce, Health.NEEDS_ROLLBACK, 1, (RoleReport("q", "primary", epoch, 3, False),)),
    )


EVERYBODY = {"p_1": "p", "r_1": "r", "q_1": "q", "F_1": "F"}


def test_a_rollback_waits_until_the_dead_backup_has_left_the_set():
    rest = (rset("p", "p-1"), rset("r", "r-1"))
    rig = manager(*rest, rset("q", "q-1", "q-2"), **EVERYBODY)
    needs_rollback(rig)
    rig.after(1.0)
    assert not of(rig.all, Fence), "q-2 may still be alive: its primary decides"
    effects = rig.learn(topo(2, *rest, rset("q", "q-1")))
    effects += rig.after(0.1)
    assert of(effects, Fence), "now nobody but q-1 itself can go on"


def gone_back():
    """A manager that has learnt that q-1 went back to version 2, and what it learns once q-2 is in sync."""
    rest = (rset("p", "p-1"), rset("r", "r-1"))
    rig = manager(*rest, rset("q", "q-1", joining=("q-2",)), q_2="q", **EVERYBODY)
    needs_rollback(rig)
    back = rset("q", "q-1", epoch=2, ends=((1, 2),))
    rig.all.clear()
    rig.learn(topo(2, *rest, replace(back, joining=("q-2",))))
    return rig, topo(3, *rest, replace(back, in_sync=("q-2",)))


def test_a_primary_that_has_gone_back_is_not_replaced_by_the_next_backup():
    """Seed 21613736 of late-poison: it was, while it ran a suspect alone, which was then blamed for that."""
    rig, in_sync = gone_back()
    (probe,) = of(rig.all, Probe, "q-1")
    rig.get("q-1", ProbeAnswer(probe.nonce, Health.HEALTHY, 2, (RoleReport("q", "primary", 2, 2, True),)))
    effects = rig.learn(in_sync)
    effects += rig.after(1.0)
    assert not of(effects, Freeze), "it is well"


def test_nor_is_it_for_an_answer_of_the_epoch_before_that_comes_late():
    rig, in_sync = gone_back()
    effects = rig.learn(in_sync)
    effects += answer_probes(rig, epoch=1)
    assert not of(effects, Freeze)
    for _ in range(20):  # and now it says nothing any more
        effects += rig.after(0.3)
    assert of(effects, Freeze, "q-2")


def test_a_rollback_whose_commit_was_lost_is_tried_again():
    rest = (rset("p", "p-1"), rset("r", "r-1"))
    rig = manager(*rest, rset("q", "q-1"), **EVERYBODY)
    (fence,) = of(needs_rollback(rig), Fence)
    effects = rig.get("q-1", FenceAnswer(fence.attempt, 1, "q", 1, False, (RetainedVersion(2, ()),)))
    assert of(effects, Propose)[0].topology.find("q").ends == ((1, 2),)
    other = topo(2, *rest, rset("q", "q-1", joining=("q-9",)))
    effects = rig.step(CasSettled(other, 2, committed=False)) + rig.after(0.1)
    assert of(effects, Fence), "somebody else's change came first"


def test_a_backup_that_dies_after_its_model_did_is_not_waited_for():
    rest = (rset("r", "r-1"), rset("q", "q-1"))
    rig = manager(rset("p", "p-1", "p-2", "p-3"), *rest, p_1="p", p_2="p", p_3="p", r_1="r", q_1="q", F_1="F")
    rig.get("p-2", Suspect("p-2", "model died"))
    probe = of(rig.all, Probe, "p-2")[-1]
    rig.get("p-2", ProbeAnswer(probe.nonce, Health.MODEL_DEAD, 1))
    effects = rig.learn(topo(2, rset("p", "p-1", "p-2", "p-3"), *rest, revoked=("p-1",)))
    assert {
        item.target for item in effects if isinstance(item, Send) and isinstance(item.message, Freeze)
    } == {"p-2", "p-3"}
    freeze = of(effects, Freeze, "p-3")[0]
    rig.get("p-3", FreezeAnswer(freeze.attempt, 2, "p", 1, 5))
    for _ in range(4):
        effects = rig.after(0.3)
    fence = of(rig.all, Fence)[-1]
    rig.get("q-1", FenceAnswer(fence.attempt, 2, "q", 1, False, ()))
    proposed = of(rig.all, Propose)
    assert proposed, "p-2 answers no probe any more"
    assert proposed[-1].topology.find("p").primary == "p-3"


def test_a_frontend_that_is_the_last_replica_of_another_shard_is_not_revoked():
    rig = Rig(ManagerMachine(chain(), "m-1"))
    rig.members(m_1="manager", F_1="F", F_3="F", p_1="p", r_1="r", q_1="q")
    sets = (rset("p", "p-1"), rset("r", "r-1"), rset("q", "q-1"))
    rig.learn(topo(1, *sets, rset("F/0", "F-1", "F-3"), rset("F/1", "F-2", "F-1"), revoked=("F-2",)))
    rig.get("q-1", Suspect("F-1", "silent"))
    probe = of(rig.all, Probe, "F-3")[-1]
    rig.get("F-3", ProbeAnswer(probe.nonce, Health.HEALTHY, 1))
    for _ in range(3):
        rig.after(0.3)
    assert not [item for item in of(rig.all, Propose) if "F-1" in item.topology.revoked], (
        "the state of F/1 would be gone"
    )


@pytest.mark.parametrize("kind", ["stateful", "stateless"])
def test_a_revoked_instance_does_nothing_after_its_stop(kind):
    if kind == "stateful":
        rig = downstream("q-2")
        rig.get("q-2", RecordAck("q", 1, 0, 0))
        feed(rig, R0)
        after = topo(
            2,
            rset("p", "p-1"),
            rset("r", "r-1"),
            rset("q", "q-1", "q-2"),
            rset("F/0", "F-2", epoch=2),
            revoked=("q-1",),
        )
    else:
        rig, _ = taken_over()
        rig.get("c-1", SlotAnswer("b", 0, 2, ()))
        rig.get("d-1", SlotAnswer("b", 0, 2, ()))
        rig.token("a-1", value("a", R0, "a-1:1"))
        rig.done(updated=False)
        after = topo(
            3,
            rset("a", "a-1"),
            table("b", ("b-2", 2)),
            table("c", ("c-2", 2)),
            table("d", ("d-1", 1)),
            revoked=("b-2", "b-1"),
        )
    assert isinstance(rig.learn(after)[-1], Stop)
    assert rig.after(1.0) == []
    assert rig.get("x", SlotQuery("z", 0, 9)) == []
    assert rig.get("x", Durable(dep("p", 1, 1))) == []


def test_an_interleave_that_knows_only_a_route_is_not_ready():
    data = graph(
        op("a", FRONTEND, to=("b",), stateful=True),
        op("b", "a", to=("c", "d"), join=Join.INTERLEAVE),
        op("c", "b"),
        op("d", "b"),
    )
    names = (table("c", ("c-1", 1)), table("d", ("d-1", 1)))
    rig = active_of(
        data, "b", "b-2", topo(2, rset("a", "a-1", "a-2"), table("b", ("b-2", 2)), *names, revoked=("b-1",))
    )
    rig.get("c-1", SlotAnswer("b", 0, 2, (replace(skip("b", R0, "b-1:1!"), lane=("a",), route=("d",)),)))
    rig.get("d-1", SlotAnswer("b", 0, 2, ()))
    rig.learn(topo(3, rset("a", "a-1", "a-2"), table("b", ("b-2", 2)), *names, revoked=("b-1", "z-1")))
    effects = rig.token("a-1", value("a", R0, "a-1:1"))
    assert of(effects, StartBatch), "it runs once the value is there"


def test_a_capture_of_an_epoch_that_is_over_is_not_taken_for_the_new_ones():
    rig = downstream()
    feed(rig, R0)
    token = value("p", R1, "p:1", dep("p", 1, 7))
    rig.token("p-1", token)
    rig.token("r-1", value("r", R1, "r:1"))
    rig.want()
    rig.done()  # version 2, still being captured
    sets = (
        rset("p", "p-2", epoch=2, ends=((1, 6),)),
        rset("r", "r-1"),
        rset("q", "q-1", epoch=2, ends=((1, 1),)),
    )
    rig.loaded(rig.learn(topo(2, *sets, revoked=("p-1",))))
    rig.token("p-2", value("p", R1, "p-2:1", dep("p", 2, 7)), epoch=2)
    rig.token("r-1", value("r", R1, "r:1"))
    assert not of(rig.want(), EnterUpdate), "the model's state is still being copied"
    assert of(rig.step(Captured(2, P("state 2 of epoch 1"))), EnterUpdate)
    rig.capture(rig.done())
    assert rig.machine.store.newest.state == P("state 2")


@pytest.mark.parametrize("when_lost", [WhenLost.STOP, WhenLost.RESTART])
def test_a_recovery_does_not_wait_for_a_downstream_primary_that_is_lost(when_lost):
    data = graph(
        op("p", FRONTEND, to=("q",), stateful=True),
        op("q", "p", stateful=True),
        recovery=RecoverySpec(when_lost=when_lost),
    )
    rig = Rig(ManagerMachine(data, "m-1"))
    rig.members(m_1="manager", F_1="F", p_2="p", q_9="q")
    rig.learn(topo(1, rset("p", "p-1", "p-2"), rset("q", "q-1"), revoked=("p-1",)))
    rig.get("p-2", FreezeAnswer(of(rig.all, Freeze)[-1].attempt, 1, "p", 1, 9))
    for _ in range(4):
        rig.after(0.3)
    lost = of(rig.all, Propose)[-1].topology
    assert lost.find("q").lost, "it has no lease, answers no probe, and had no backup"
    rig.step(CasSettled(lost, 2, committed=True))
    rig.get("p-2", FreezeAnswer(of(rig.all, Freeze)[-1].attempt, 2, "p", 1, 9))
    topology = of(rig.all, Propose)[-1].topology
    assert (topology.find("p").primary, topology.find("p").epoch) == ("p-2", 2)
    rig.step(CasSettled(topology, 3, committed=True))
    rig.after(limits.hung_wait_s)
    assert of(rig.all, Propose)[-1].topology.find("q").primary == (
        "q-9" if when_lost is WhenLost.RESTART else "q-1"
    )


def test_a_person_may_decide_that_a_lost_state_begins_again_though_policy_says_stop():
    data = graph(op("q", FRONTEND, stateful=True))
    rig = Rig(ManagerMachine(data, "m-1"))
    rig.members(m_1="manager", F_1="F", q_9="q")
    rig.learn(topo(1, rset("q", "q-1")))
    rig.step(CasSettled(of(rig.all, Propose)[-1].topology, 2, committed=True))
    for _ in range(4):
        rig.after(0.3)
    lost = of(rig.all, Propose)[-1].topology
    assert (lost.find("q").lost, lost.find("q").joining) == (True, ()), "nobody is there to copy from"
    assert allow_restart(topo(1, rset("q", "q-1")), "q") is None, "nothing to decide"
    rig.step(CasSettled(lost, 3, committed=True))
    rig.after(1.0)
    assert of(rig.all, Propose)[-1].topology == lost, "it waits"
    decided = allow_restart(lost, "q")
    rig.learn(decided)
    replica_set = of(rig.all + rig.after(0.3), Propose)[-1].topology.find("q")
    assert (replica_set.primary, replica_set.epoch, replica_set.restarted_in, replica_set.may_restart) == (
        "q-9",
        2,
        2,
        False,
    )


def test_a_state_that_holds_more_than_a_restarted_one_upstream_is_reported_and_goes_on():
    rig = downstream("q-2")
    rig.get("p-1", Durable((Dep("p", 1, 7),)))
    feed(rig, R0, p=dep("p", 1, 7))
    restarted = replace(rset("p", "p-9", epoch=2, ends=((1, 5),)), restarted_in=2)
    effects = rig.learn(topo(2, restarted, rset("r", "r-1"), rset("q", "q-1", "q-2"), revoked=("p-1", "p-2")))
    (note,) = of(effects, NoteLost)
    assert (note.op, note.epoch, note.version) == ("q", 1, 1)
    assert not of(effects, Stop), "it is not undone"
    again = topo(3, restarted, rset("r", "r-1"), rset("q", "q-1", "q-2"), revoked=("p-1", "p-2"))
    assert not of(rig.learn(again), NoteLost), "said once"


def test_what_stems_from_a_loss_is_reported_before_it_is_called_durable():
    """Killed in between it would have left a history in which what is lost is durable, and nobody says so."""
    rig = downstream()
    rig.get("p-1", Durable((Dep("p", 1, 5),)))
    feed(rig, R0, p=dep("p", 1, 7))
    restarted = replace(rset("p", "p-9", epoch=2, ends=((1, 5),)), restarted_in=2)
    effects = rig.learn(topo(2, restarted, rset("r", "r-1"), rset("q", "q-1"), revoked=("p-1", "p-2")))
    kinds = [type(effect) for effect in effects]
    assert kinds.index(NoteLost) < kinds.index(NoteDurable)


def test_what_an_earlier_loss_took_is_reported_though_the_last_one_began_again_with_more():
    """The primary hears of two losses at once: the first one's end was 5, the second one's 9."""
    rig = downstream()
    rig.get("p-1", Durable((Dep("p", 1, 5),)))
    feed(rig, R0, p=dep("p", 1, 7))
    twice = replace(rset("p", "p-9", epoch=3, ends=((1, 5), (2, 9))), restarted_in=3)
    effects = rig.learn(topo(3, twice, rset("r", "r-1"), rset("q", "q-1"), revoked=("p-1", "p-2", "p-8")))
    assert [note.kind for note in of(effects, NoteLost)] == [Loss.STEMS]


def test_a_backup_that_takes_over_reports_what_its_records_stem_from():
    """Seed 100 of `stems-unsaid`: it knew no more of the lost state than what came back, and said nothing."""
    data = graph(op("p", FRONTEND, to=("q",), stateful=True), op("q", "p", stateful=True))
    rig = Rig(StatefulMachine(data, "q", "q-2"))
    rig.ready(P("state 0"))
    before = rset("p", "p-1")
    rig.learn(topo(1, before, rset("q", "q-1", joining=("q-2",))))
    rig.get("q-1", StateCopy("q", 1, 0, (), Completion(()), "", P("state 0")))
    rig.learn(topo(2, before, rset("q", "q-1", "q-2")))
    rig.get("p-1", Durable((Dep("p", 1, 0),)))
    rig.get("q-1", StateRecord("q", 1, 1, 0, dep("p", 1, 1) + dep("q", 1, 1), (), "c1", P("state 1")))
    restarted = replace(rset("p", "p-9", epoch=2, ends=((1, 0),)), restarted_in=2)
    assert of(rig.learn(topo(3, restarted, rset("q", "q-1", "q-2"), revoked=("p-1",))), NoteApply)
    taken = rset("q", "q-2", epoch=2, ends=((1, 1),))
    effects = rig.learn(topo(4, restarted, taken, revoked=("p-1", "q-1")))
    (note,) = of(effects, NoteLost)
    assert (note.kind, note.op, note.epoch, note.version) == (Loss.STEMS, "q", 2, 1)
    kinds = [type(effect) for effect in effects]
    assert kinds.index(NoteLost) < kinds.index(NoteDurable)


def test_a_state_that_holds_no_more_than_a_restarted_one_upstream_has_nothing_to_report():
    rig = downstream("q-2")
    rig.get("p-1", Durable((Dep("p", 1, 5),)))
    feed(rig, R0, p=dep("p", 1, 5))
    restarted = replace(rset("p", "p-9", epoch=2, ends=((1, 5),)), restarted_in=2)
    assert not of(
        rig.learn(topo(2, restarted, rset("r", "r-1"), rset("q", "q-1", "q-2"), revoked=("p-1", "p-2"))),
        NoteLost,
    )


def test_a_draining_primary_that_has_to_roll_back_goes_on_draining():
    rig = downstream()
    rig.members(q_2="q")
    rig.token("p-1", value("p", R0, "p:0", dep("p", 1, 7)))
    rig.token("r-1", value("r", R0, "r:0"))
    rig.run()
    rig.step(Drain())
    after = (rset("p", "p-2", epoch=2, ends=((1, 6),)), rset("r", "r-1"))
    rig.loaded(rig.learn(topo(2, *after, rset("q", "q-1", epoch=2, ends=((1, 0),)), revoked=("p-1",))))
    rig.token("p-2", value("p", R0, "p-2:0", dep("p", 2, 7)), epoch=2)
    rig.learn(topo(3, *after, rset("q", "q-1", "q-2", epoch=2, ends=((1, 0),)), revoked=("p-1",)))
    rig.step(CasSettled(rig.machine.knowledge.topology, 3, committed=False))
    rig.get("q-2", RecordAck("q", 2, 0, 0))
    rig.after(2 * limits.resend_after_s)
    effects = rig.token("r-1", value("r", R0, "r:0"))
    assert not of(effects, StartBatch), "its queue is stopped: somebody can take over"
    assert of(rig.all, Propose)[-1].topology.find("q").primary == "q-2"


def test_a_draining_primary_that_becomes_a_backup_asks_to_be_let_go():
    rig = downstream("q-2")
    rig.step(Drain())
    rest = (rset("p", "p-1", "p-2"), rset("r", "r-1"))
    effects = rig.learn(topo(2, *rest, rset("q", "q-2", "q-1", epoch=2, ends=((1, 0),))))
    assert of(effects, Leave, "q-2") == [Leave("q", 2)], "it may be needed yet"
    effects = rig.learn(topo(3, *rest, rset("q", "q-2", epoch=2, ends=((1, 0),))))
    assert isinstance(effects[-1], Stop)
