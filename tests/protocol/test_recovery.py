"""Managers (sections 6 and 7): confirm, revoke, ask, and commit everything in one compare-and-swap."""

from dataclasses import replace

import pytest
from kit import Rig, dep, graph, of, op, rset, table, topo

from hams_protocol import limits
from hams_protocol.deps import Dep
from hams_protocol.effects import NoteLost, Propose, Send
from hams_protocol.events import CasSettled, CasUnknown, Late, PeerDown, PeerUp, Tick
from hams_protocol.graph import FRONTEND, Checkpoint, Graph, WhenLost
from hams_protocol.messages import (
    HOLDS,
    LEADS,
    Fence,
    FenceAnswer,
    Freeze,
    FreezeAnswer,
    Health,
    Heartbeat,
    Probe,
    ProbeAnswer,
    Refused,
    RetainedVersion,
    RoleReport,
    Suspect,
    TopologyNews,
)
from hams_protocol.recovery import ManagerMachine, assign
from hams_protocol.topology import Departed, Topology

DATA = graph(
    op("p", FRONTEND, to=("s",), stateful=True), op("s", "p", to=("q",)), op("q", "s", stateful=True)
)
EVERYBODY = {"F_1": "F", "p_1": "p", "p_2": "p", "p_3": "p", "q_1": "q", "q_2": "q", "s_1": "s", "s_2": "s"}
WITHOUT_S = {name: of for name, of in EVERYBODY.items() if of != "s"}
P = rset("p", "p-1", "p-2", "p-3")
Q = rset("q", "q-1", "q-2")
S = table("s", ("s-1", 1))


def manager(*items, instance="m-1", managers=("m_1",), revoked=(), **members):
    rig = Rig(ManagerMachine(DATA, instance))
    rig.members(**dict.fromkeys(managers, "manager"), **(members or EVERYBODY))
    rig.learn(topo(1, *items, revoked=revoked))
    return rig


def probes(rig):
    """Whom the last probes went to, with their nonce."""
    return {
        item.target: item.message.nonce
        for item in rig.all
        if isinstance(item, Send) and isinstance(item.message, Probe)
    }


def proposed(effects):
    matching = of(effects, Propose)
    return matching[-1].topology if matching else None


def freezes(effects):
    return {
        item.target: item.message.attempt
        for item in effects
        if isinstance(item, Send) and isinstance(item.message, Freeze)
    }


def test_a_suspect_is_probed_and_a_healthy_answer_clears_it():
    rig = manager(P, Q, S)
    rig.get("q-1", Suspect("p-1", "silent"))
    assert set(probes(rig)) == {"p-1", "p-2", "p-3"}, "and who could take over"
    rig.get("p-1", ProbeAnswer(probes(rig)["p-1"], Health.HEALTHY, 1))
    assert not of(rig.after(5.0), Propose)


def test_a_primary_that_fails_its_probe_is_revoked_by_the_commit_that_replaces_it():
    rig = manager(P, Q, S)
    rig.get("q-1", Suspect("p-1", "silent"))
    assert not freezes(rig.all), "the probe may yet be answered"
    effects = rig.after(0.4)
    assert set(freezes(effects)) == {"p-2", "p-3"}
    assert not of(rig.all, Propose), "nobody has answered"
    freeze_answers(rig, p_2=9, p_3=9)
    topology = proposed(fence_answer(rig, False))
    assert topology.revoked == ("p-1",)
    assert topology.find("p").primary == "p-2"


def test_a_primary_whose_only_backup_does_not_answer_is_not_revoked():
    rig = manager(rset("p", "p-1", "p-2"), Q, S)
    rig.step(PeerDown("p-1", refused=True))
    assert set(freezes(rig.all)) == {"p-2"}
    rig.step(PeerDown("p-2", refused=True))
    for _ in range(10):
        rig.after(0.5)
    assert all("p-1" not in item.topology.revoked for item in of(rig.all, Propose))


def test_whom_an_attempt_replaces_it_goes_on_replacing_though_he_answers_late():
    rig = manager(P, Q, S)
    rig.get("q-1", Suspect("p-1", "silent"))
    rig.after(0.4)
    rig.get("p-1", ProbeAnswer(probes(rig)["p-1"], Health.HEALTHY, 1))
    freeze_answers(rig, p_2=9, p_3=9)
    assert proposed(fence_answer(rig, False)).revoked == ("p-1",), (
        "his backups have frozen, and only another topology thaws them"
    )


def test_a_probe_is_repeated_before_silence_counts_for_it_or_its_answer_may_have_been_lost():
    rig = manager(P, Q, S)
    rig.get("q-1", Suspect("p-1", "silent"))
    assert probes(rig)["p-1"] == 1
    rig.all.clear()
    rig.after(limits.probe_repeat_s)
    assert probes(rig)["p-1"] == 1
    rig.get("p-1", ProbeAnswer(1, Health.HEALTHY, 1))
    assert not rig.machine.suspects


def test_who_is_named_before_its_registration_has_come_is_not_judged_by_the_silence_until_then():
    rig = manager(P, Q, table("s", (None, 0)), **WITHOUT_S)
    rig.get("p-1", TopologyNews(topo(2, P, Q, S), 7))
    assert "s-1" in rig.machine.suspects
    rig.after(limits.registration_wait_s / 2)
    assert not of(rig.all, Propose), "nobody knows where it is: it cannot have been asked"
    rig.members(m_1="manager", **EVERYBODY)
    rig.after(limits.probe_timeout_min_s / 2)
    assert not of(rig.all, Propose), "it has just been asked"
    assert proposed(rig.after(limits.probe_timeout_min_s)).revoked == ("s-1",)


def run_until(rig, until, coming, answer):
    """Lets time pass: `coming` are events, each with its time; `answer(now)` the health that `s-1` answers a
    probe with, None where the answer is lost. The proposals, each with its time."""
    coming, proposals = list(coming), []
    while True:
        due = min([rig.machine.deadline(), *(at for at, _ in coming)])
        if due > until:
            return proposals
        rig.now = max(rig.now, due)
        effects = coming.pop(0)[1]() if coming and coming[0][0] <= rig.now else rig.step(Tick())
        for probe in of(effects, Probe, "s-1"):
            health = answer(rig.now)
            if health is not None:
                effects = [*effects, *rig.get("s-1", ProbeAnswer(probe.nonce, health, 2))]
        proposals += [(rig.now, item.topology) for item in of(effects, Propose)]


def named_unregistered(**members):
    """A manager that has heard from a peer that `s-1`, of which it knows nothing else, owns a slot."""
    rig = manager(P, Q, table("s", (None, 0)), **(members or WITHOUT_S))
    rig.get("p-1", TopologyNews(topo(2, P, Q, S), 7))
    return rig


@pytest.mark.parametrize("registered_at", [0.05, 0.15, 0.29, 0.31, 0.35, 0.45, 0.49, 0.55, 0.82, 0.99])
def test_whenever_a_registration_comes_the_answers_that_are_lost_until_the_way_back_stands_revoke_nobody(
    registered_at,
):
    rig = named_unregistered()
    coming = [
        (registered_at, lambda: rig.members(m_1="manager", **EVERYBODY)),
        (registered_at + 0.01, lambda: rig.step(PeerUp("s-1"))),
    ]
    assert not run_until(rig, 3.0, coming, lambda now: Health.HEALTHY if now > registered_at + 0.11 else None)
    assert not rig.machine.suspects


def test_a_suspect_that_a_manager_has_given_up_before_it_was_registered_is_asked_again():
    rig = manager(
        P, Q, table("s", (None, 0)), instance="m-2", managers=("m_1", "m_2"), revoked=(), **WITHOUT_S
    )
    rig.get("p-1", TopologyNews(topo(2, P, Q, S), 7))
    coming = [(1.02, lambda: rig.members(m_1="manager", m_2="manager", **EVERYBODY))]
    assert not run_until(rig, 3.0, coming, lambda now: Health.HEALTHY if now > 1.1 else None)


def test_an_owner_that_has_said_that_its_model_is_dead_is_not_called_silent_for_its_registration():
    rig = named_unregistered()
    coming = [(0.3, lambda: rig.members(m_1="manager", **WITHOUT_S, s_1="s"))]
    assert not run_until(rig, 3.0, coming, lambda now: Health.MODEL_DEAD)


def test_time_before_the_registration_teaches_no_patience():
    rig = named_unregistered()
    coming = [
        (0.7, lambda: rig.members(m_1="manager", **EVERYBODY)),
        (0.7, lambda: rig.step(PeerUp("s-1"))),
    ]
    run_until(rig, 0.8, coming, lambda now: Health.HEALTHY if now > 0.69 else None)
    assert rig.machine.suspicions.timeout_s == limits.probe_timeout_min_s


@pytest.mark.parametrize("late_s", [0.03, 0.08, 0.1, 0.2])
def test_a_starved_judge_asks_once_more_before_silence_counts(late_s):
    rig = manager(P, Q, S)
    rig.step(PeerDown("s-1"))
    coming = [(0.03, lambda: rig.step(Late(late_s)))]
    assert not run_until(rig, 5.0, coming, lambda now: Health.HEALTHY if now > 0.2 else None)
    assert not rig.machine.suspects


def test_an_owner_whose_model_is_dead_stays_though_one_answer_of_it_is_lost():
    rig = manager(P, Q, S, **WITHOUT_S, s_1="s")
    rig.get("s-1", Suspect("s-1", "its model died"))
    lost = []

    def answer(now):
        if now > 0.45 and not lost:
            lost.append(now)
            return None
        return Health.MODEL_DEAD

    assert not run_until(rig, 4.0, [(0.5, lambda: rig.learn(topo(2, P, Q, S)))], answer)
    assert lost


def test_who_is_named_and_never_registers_is_judged_all_the_same():
    rig = manager(P, Q, table("s", (None, 0)), **WITHOUT_S)
    rig.get("p-1", TopologyNews(topo(2, P, Q, S), 7))
    assert proposed(rig.after(limits.registration_wait_s)).revoked == ("s-1",)


def test_a_slot_owner_whose_model_is_dead_stays_where_the_only_other_instance_is_suspected():
    rig = manager(P, Q, S)
    rig.step(PeerDown("s-2", refused=True))
    rig.get("s-1", Suspect("s-1", "its model died"))
    assert not of(rig.all, Propose)
    assert proposed(rig.step(PeerUp("s-2"))).revoked == ("s-1",)


def s_1_has_handed_over():
    """A manager that has seen `s-1` pass its slot to `s-2`, which has both; `s-1` is registered yet."""
    rig = manager(P, Q, table("s", ("s-1", 1), ("s-2", 1)))
    rig.learn(topo(2, P, Q, table("s", ("s-2", 2), ("s-2", 1))))
    return rig


def s_3_comes(rig):
    rig.members(m_1="manager", s_3="s", **EVERYBODY)
    topology = of(rig.all, Propose)[-1].topology
    assert topology.table("s") == table("s", ("s-2", 2), ("s-2", 1), successor="s-3")
    rig.step(CasSettled(topology, 8, committed=True))
    rig.all.clear()


def test_who_has_handed_over_what_it_had_gets_no_slot_of_a_crowded_owner():
    rig = s_1_has_handed_over()
    rig.after(1.0)
    assert not of(rig.all, Propose), "it is about to end"
    s_3_comes(rig)


def test_managers_do_not_undo_what_one_did_that_has_not_seen_the_handover():
    rig = s_1_has_handed_over()
    rig.learn(topo(3, P, Q, table("s", ("s-2", 2), ("s-2", 1), successor="s-1")))
    rig.after(1.0)
    assert not of(rig.all, Propose)
    rig.members(m_1="manager", **{name: of for name, of in EVERYBODY.items() if name != "s_1"})
    assert of(rig.all, Propose)[-1].topology.table("s") == table("s", ("s-2", 2), ("s-2", 1))


def test_who_has_handed_over_is_no_substitute_for_an_owner_whose_model_died():
    rig = s_1_has_handed_over()
    rig.get("s-2", Suspect("s-2", "its model died"))
    rig.get("s-2", ProbeAnswer(1, Health.MODEL_DEAD, 2))
    assert not of(rig.all, Propose), "it will serve again once its model has been started"
    rig.members(m_1="manager", s_3="s", **EVERYBODY)
    assert of(rig.all, Propose)[-1].topology.revoked == ("s-2",)


def test_who_has_slots_again_has_not_departed_and_who_is_gone_is_forgotten():
    departed = Departed()
    for owner in ("s-1", "s-2", "s-3"):
        departed.learn(topo(1, P, Q, table("s", (owner, 1))))
    assert departed.instances == {"s-1", "s-2"}
    departed.learn(topo(2, P, Q, table("s", ("s-1", 2))))
    assert departed.instances == {"s-2", "s-3"}
    departed.keep(("s-1", "s-3"))
    assert departed.instances == {"s-3"}


@pytest.mark.parametrize("fresh", [True, False])
def test_who_has_handed_over_what_it_had_gets_no_slot_of_the_dead(fresh):
    rig = s_1_has_handed_over()
    if fresh:
        s_3_comes(rig)
    topology = proposed(rig.step(PeerDown("s-2", refused=True)))
    assert topology.revoked == ("s-2",)
    wanted = (("s-3", 3), ("s-3", 2)) if fresh else ((None, 2), (None, 1))
    assert topology.table("s") == table("s", *wanted)


def test_an_attempt_gives_no_slot_to_who_has_handed_over_what_it_had():
    rig = s_1_has_handed_over()
    rig.step(PeerDown("p-1", refused=True))
    freeze_answers(rig, p_2=9, p_3=9)
    rig.members(m_1="manager", **{name: of for name, of in EVERYBODY.items() if name != "s_1"})
    topology = proposed(fence_answer(rig, False))
    assert topology.find("p").primary == "p-2"
    assert topology.table("s") == table("s", ("s-2", 2), ("s-2", 1))


def test_a_slot_owner_is_revoked_by_the_commit_that_replaces_it():
    rig = manager(P, Q, S)
    topology = proposed(rig.step(PeerDown("s-1", refused=True)))
    assert topology.revoked == ("s-1",)
    assert [(slot.instance, slot.epoch) for slot in topology.table("s").slots] == [("s-2", 2)]


def test_a_broken_connection_alone_does_not_confirm_but_a_refused_one_does():
    rig = manager(P, Q, S)
    assert not of(rig.step(PeerDown("s-1")), Propose)
    rig = manager(P, Q, S)
    assert proposed(rig.step(PeerDown("s-1", refused=True))).revoked == ("s-1",)


def test_a_silent_suspect_is_confirmed_by_a_manager_that_has_learnt_long_patience():
    rig = manager(P, Q, S)
    for _ in range(3):
        rig.get("q-1", Suspect("p-1", "silent"))
        rig.after(1.0)
        # late, so it is given more time from now on
        rig.get("p-1", ProbeAnswer(probes(rig)["p-1"], Health.HEALTHY, 1))
    assert rig.machine.suspicions.timeout_s > limits.probe_again_after_s
    rig.get("q-1", Suspect("p-1", "silent"))
    for _ in range(30):
        rig.after(0.1)
    assert freezes(rig.all)


def test_a_probe_is_sent_once_more_when_the_connection_of_the_suspect_is_back():
    rig = manager(P, Q, S)
    rig.get("q-1", Heartbeat(1))
    rig.step(PeerDown("p-1", refused=False))
    asked = probes(rig)
    rig.all.clear()
    rig.step(PeerUp("p-1"))
    assert probes(rig) == {"p-1": asked["p-1"]}
    rig.get("p-1", ProbeAnswer(asked["p-1"], Health.HEALTHY, 1))
    rig.all.clear()
    rig.step(PeerUp("p-1"))
    assert not probes(rig), "nobody suspects it any more"


def test_the_last_replica_of_a_state_is_never_revoked():
    rig = manager(rset("p", "p-1"), Q, S)
    rig.get("q-1", Suspect("p-1", "silent"))
    for _ in range(10):
        effects = rig.after(0.5)
        assert proposed(effects) is None or "p-1" not in proposed(effects).revoked


def test_a_proxy_that_answers_with_a_dead_model_fails_its_probe():
    rig = manager(P, Q, S)
    rig.get("p-1", Suspect("p-1", "model died"))
    rig.get("p-1", ProbeAnswer(probes(rig)["p-1"], Health.MODEL_DEAD, 1))
    assert set(freezes(rig.all)) == {"p-2", "p-3"}


def test_an_answer_counts_for_the_topology_in_which_it_was_given():
    others = {key: of_ for key, of_ in EVERYBODY.items() if key != "p_2"}
    rig = manager(rset("p", "p-1", joining=("p-2",)), Q, S, **others)
    nonce = probes(rig)["p-2"]
    rig.get("p-2", ProbeAnswer(nonce, Health.MODEL_DEAD, 1))
    rig.members(m_1="manager", **EVERYBODY)
    rig.step(CasSettled(topo(2, rset("p", "p-2", "p-1", epoch=2, ends=((1, 5),)), Q, S), 2, committed=False))
    assert not freezes(rig.all), "its model was still starting; by now it leads the set"
    rig.get("p-2", ProbeAnswer(probes(rig)["p-2"], Health.MODEL_DEAD, 2))
    assert freezes(rig.all)


def test_a_proxy_that_reports_its_own_models_death_needs_no_probe():
    rig = manager(P, Q, S)
    rig.get("p-1", Suspect("p-1", "the model process has ended"))
    assert set(freezes(rig.all)) == {"p-2", "p-3"}


def test_the_second_manager_waits_its_turn():
    rig = manager(P, Q, S, instance="m-2", managers=("m_1", "m_2"))
    assert not of(rig.step(PeerDown("s-1", refused=True)), Propose)
    assert proposed(rig.after(0.06)).revoked == ("s-1",)


def test_a_manager_that_is_gone_does_not_count_in_the_ranks():
    rig = manager(P, Q, S, instance="m-2", managers=("m_1", "m_2"))
    rig.step(PeerDown("m-1", refused=True))
    assert proposed(rig.step(PeerDown("s-1", refused=True))).revoked == ("s-1",)


def orphaned(*items):
    """p has lost its primary."""
    return manager(*(items or (P, Q, S)), revoked=("p-1",))


def freeze_answers(rig, **applied):
    effects = []
    for name, version in applied.items():
        instance = name.replace("_", "-")
        effects = rig.get(instance, FreezeAnswer(freezes(rig.all)[instance], 1, "p", 1, version))
    return effects


def fence_answer(rig, tainted, *retained):
    (fence,) = of(rig.all, Fence)[-1:]
    return rig.get(
        "q-1",
        FenceAnswer(fence.attempt, 1, "q", 1, tainted, tuple(RetainedVersion(*item) for item in retained)),
    )


def test_the_lowest_backup_becomes_primary_and_its_version_the_end():
    rig = orphaned()
    assert set(freezes(rig.all)) == {"p-2", "p-3"}
    assert not of(freeze_answers(rig, p_2=9), Fence), "it waits for each one that does not fail a probe"
    effects = freeze_answers(rig, p_3=7)
    assert [fence.ends for fence in of(effects, Fence, "q-1")] == [dep("p", 1, 7)]
    proposal = proposed(fence_answer(rig, False)).find("p")
    assert (proposal.epoch, proposal.primary, proposal.in_sync, proposal.ends) == (
        2,
        "p-3",
        ("p-2",),
        ((1, 7),),
    )


def test_a_question_is_asked_once_more_when_the_connection_of_whom_it_waits_for_is_back():
    rig = orphaned()
    rig.all.clear()
    rig.step(PeerUp("p-2"))
    assert set(freezes(rig.all)) == {"p-2"}
    freeze_answers(rig, p_2=9)
    rig.all.clear()
    rig.step(PeerUp("p-2"))
    assert not freezes(rig.all), "it has answered"


def test_nothing_is_committed_before_every_question_is_answered():
    rig = orphaned()
    assert not of(freeze_answers(rig, p_2=9, p_3=7), Propose)
    assert of(fence_answer(rig, False), Propose)


def test_a_backup_that_fails_its_probe_is_not_waited_for_and_joins():
    rig = orphaned()
    freeze_answers(rig, p_2=9)
    rig.after(0.4)
    assert "p-3" in probes(rig)
    rig.after(0.4)
    proposal = proposed(fence_answer(rig, False)).find("p")
    assert (proposal.primary, proposal.in_sync) == ("p-2", ())


def test_a_downstream_state_that_holds_an_orphan_fails_over_as_well_in_the_same_commit():
    rig = orphaned()
    freeze_answers(rig, p_2=9, p_3=7)
    effects = fence_answer(rig, True, (4, dep("p", 1, 9)), (3, ()))
    attempt = freezes(effects)["q-2"]
    topology = proposed(rig.get("q-2", FreezeAnswer(attempt, 1, "q", 1, 3)))
    assert topology.find("p").epoch == topology.find("q").epoch == 2
    replica_set = topology.find("q")
    assert (replica_set.primary, replica_set.in_sync, replica_set.ends) == ("q-2", ("q-1",), ((1, 3),)), (
        "its old primary has the record of the end"
    )


def test_a_tainted_primary_without_backup_goes_back_to_its_newest_record_with_only_durable_deps():
    rig = orphaned(P, rset("q", "q-1"), S)
    freeze_answers(rig, p_2=9, p_3=7)
    pending = (5, (Dep("x", 1, 1),))
    proposal = proposed(
        fence_answer(rig, True, (6, dep("p", 1, 9)), pending, (4, dep("p", 1, 7)), (3, ()))
    ).find("q")
    assert (proposal.primary, proposal.epoch, proposal.ends) == ("q-1", 2, ((1, 4),))


def test_an_instance_that_does_not_know_the_topology_yet_gets_it_and_the_question_again():
    rig = orphaned()
    effects = rig.get("p-2", Refused(freezes(rig.all)["p-2"], 0, "p", "not known"))
    assert of(effects, TopologyNews, "p-2")
    assert of(effects, Freeze, "p-2")


def test_questions_without_answer_are_asked_again():
    rig = orphaned()
    assert set(freezes(rig.after(0.4))) == {"p-2", "p-3"}


def test_an_answer_to_an_earlier_question_does_not_count():
    rig = orphaned()
    old = freezes(rig.all)["p-2"]
    rig.learn(topo(2, P, Q, S, revoked=("p-1", "z")))
    freeze = freezes(rig.all)
    assert freeze["p-2"] != old
    rig.get("p-3", FreezeAnswer(freeze["p-3"], 2, "p", 1, 7))
    assert not of(rig.get("p-2", FreezeAnswer(old, 1, "p", 1, 2)), Fence)


@pytest.mark.parametrize("outcome", ["failed", "unknown"])
def test_a_lost_commit_starts_again_from_the_beginning(outcome):
    rig = orphaned()
    freeze_answers(rig, p_2=9, p_3=7)
    assert of(fence_answer(rig, False), Propose)
    if outcome == "failed":
        effects = rig.step(CasSettled(topo(2, P, Q, S, revoked=("p-1", "z")), 2, committed=False))
    else:
        rig.step(CasUnknown())
        effects = rig.after(0.3)
    assert set(freezes(effects)) == {"p-2", "p-3"}


def test_a_commit_ends_the_recovery():
    rig = orphaned()
    freeze_answers(rig, p_2=9, p_3=7)
    topology = proposed(fence_answer(rig, False))
    effects = rig.step(CasSettled(topology, 2, committed=True))
    assert not freezes(effects)


def test_a_state_without_any_replica_is_lost_and_it_is_said():
    rig = orphaned(rset("p", "p-1"), Q, S)
    assert not of(rig.all, NoteLost), "the revoked one may come back with it"
    rig.step(CasSettled(proposed(rig.all), 2, committed=True))  # meanwhile other roles are given
    rig.after(limits.former_wait_s)
    assert of(rig.all, NoteLost)
    assert proposed(rig.all).find("p").lost


def test_a_failed_slot_goes_to_a_standby_with_a_higher_epoch_and_no_other_moves():
    rig = manager(P, Q, table("s", ("s-1", 1), ("s-3", 4)), revoked=("s-1",), **{**EVERYBODY, "s_3": "s"})
    slots = proposed(rig.after(0.1) + rig.all).table("s").slots
    assert [(slot.instance, slot.epoch) for slot in slots] == [("s-2", 2), ("s-3", 4)]


def test_sets_that_lack_backups_get_joiners_at_once():
    rig = manager(rset("p", "p-1"), rset("q", "q-1"), S)
    proposal = proposed(rig.after(0.1) + rig.all)
    assert (proposal.find("p").joining, proposal.find("q").joining) == (("p-2",), ("q-2",))


def test_a_manager_never_shrinks_a_set_on_its_primarys_behalf():
    rig = manager(P, Q, S, **{key: what for key, what in EVERYBODY.items() if key != "q_2"})
    for _ in range(10):
        rig.after(0.5)
    assert all(item.topology.find("q").in_sync == ("q-2",) for item in of(rig.all, Propose))


def test_first_roles_are_given_to_who_is_there():
    rig = manager()
    proposal = proposed(rig.after(3.0) + rig.all)
    assert (proposal.find("p").primary, proposal.find("q").epoch, proposal.table("s").slots[0].epoch) == (
        "p-1",
        1,
        1,
    )


# -- ends that everybody knows -------------------------------------------------------------------------------

LONG = tuple((epoch, 10 * epoch) for epoch in range(1, 9))


def test_an_end_goes_once_every_instance_knows_a_topology_that_had_it_and_the_newest_stay():
    rig = manager(rset("p", "p-1", epoch=9, ends=LONG), rset("q", "q-1"), S, **EVERYBODY)
    assert proposed(rig.all).find("p").ends == LONG, "of the first proposal nobody has heard"
    others = [name.replace("_", "-") for name in EVERYBODY]
    for generation, listed in ((0, LONG), (1, LONG[-limits.ends_retained_max :])):
        for peer in others:
            rig.get(peer, Heartbeat(generation if peer == "s-2" else 9))
        known = rig.machine.knowledge.topology
        rig.step(CasSettled(replace(known, generation=known.generation + 1), 7, committed=False))
        assert proposed(rig.all).find("p").ends == listed, "one idle standby suffices to keep them"


def test_an_end_stays_while_a_keeper_that_lost_its_lease_has_not_heard_of_it():
    held = replace(rset("q", "q-1"), keepers=("s-9",))
    rig = manager(rset("p", "p-1", epoch=9, ends=LONG), held, S, **EVERYBODY)
    for _ in range(2):
        for peer in EVERYBODY:
            rig.get(peer.replace("_", "-"), Heartbeat(9))
        known = rig.machine.knowledge.topology
        rig.step(CasSettled(replace(known, generation=known.generation + 1), 7, committed=False))
        assert proposed(rig.all).find("p").ends == LONG


def test_the_end_before_a_loss_stays_for_it_tells_what_was_lost():
    heard = topo(1, rset("p", "p-1", epoch=9, ends=LONG))
    held = (
        assign.forget_ends(topo(2, replace(rset("p", "p-1", epoch=9, ends=LONG), restarted_in=3)), heard)
        .find("p")
        .ends
    )
    assert held == (LONG[1], *LONG[-limits.ends_retained_max :])


# -- lost shards ---------------------------------------------------------------------------------------------


def lost_shards(shards, *others, **frontends):
    """A manager before whom shards are lost (all but `others`), and the frontends that are there."""
    one = graph(op("s", FRONTEND)).data
    data = replace(
        one,
        recovery=replace(one.recovery, when_lost=WhenLost.RESTART),
        frontend=replace(one.frontend, shards=shards),
    )
    rig = Rig(ManagerMachine(Graph(data), "m-1"))
    rig.members(m_1="manager", s_1="s", **frontends)
    sets = [replace(rset(f"F/{number}", "F-1", "F-2"), lost=True) for number in range(len(others), shards)]
    rig.learn(topo(1, *others, *sets, table("s", ("s-1", 1)), revoked=("F-1", "F-2")))
    return rig


def settled(rig):
    """The topology once every proposal has been committed and none follows."""
    for revision in range(2, 20):
        done = len(of(rig.all, Propose))
        rig.after(1.0)
        fresh = of(rig.all, Propose)[done:] or (of(rig.all, Propose)[-1:] if revision == 2 else [])
        if fresh:
            rig.step(CasSettled(fresh[-1].topology, revision, committed=True))
    return rig.machine.knowledge.topology


@pytest.mark.parametrize("shards", [2, 3])
@pytest.mark.parametrize("frontends", [("F_3",), ("F_3", "F_4")])
def test_every_lost_shard_begins_again_though_who_is_there_has_others(shards, frontends):
    rig = lost_shards(shards, **dict.fromkeys(frontends, "F"))
    result = settled(rig)
    assert not any(item.lost for item in result.sets)
    primaries = [item.primary for item in result.sets]
    loads = [primaries.count(name.replace("_", "-")) for name in frontends]
    assert sum(loads) == shards
    assert max(loads) - min(loads) <= 1, "spread over those who are there"


def test_a_lost_shard_does_not_begin_again_with_who_is_suspect():
    rig = lost_shards(2, rset("F/0", "F-4", "F-3"), F_3="F", F_4="F", F_5="F")
    restarted = of(rig.all, Propose)[-1].topology
    assert restarted.find("F/1").primary == "F-3", "who leads nothing comes first"
    rig.get("F-4", Suspect("F-3", "silent"))
    rig.step(CasSettled(replace(rig.machine.knowledge.topology, generation=2), 2, committed=False))
    assert of(rig.all, Propose)[-1].topology.find("F/1").primary == "F-5"


def lost_by_silence(when_lost=WhenLost.RESTART, from_scratch=True, untouched=False):
    """A manager that has called a state lost: who had it has no lease and answers no probe."""
    one = graph(op("q", FRONTEND, stateful=True)).data
    data = Graph(replace(one, recovery=replace(one.recovery, when_lost=when_lost)))
    rig = Rig(ManagerMachine(data, "m-1", from_scratch))
    rig.members(m_1="manager", F_1="F")
    rig.learn(replace(topo(1, rset("q", "q-1"), rset("F/0", "F-1")), untouched=untouched))
    for _ in range(4):
        rig.after(0.3)
    lost = of(rig.all, Propose)[-1].topology
    assert lost.find("q").lost
    rig.step(CasSettled(lost, 2, committed=True))
    rig.members(m_1="manager", F_1="F", q_9="q")
    return rig


def test_an_instance_that_comes_late_has_its_time_to_tell_of_a_checkpoint():
    one = graph(op("q", FRONTEND, stateful=True)).data
    saved = replace(one.operators[0], checkpoint=Checkpoint(1.0, 2, "states"))
    data = Graph(replace(one, operators=(saved,), recovery=replace(one.recovery, when_lost=WhenLost.RESTART)))
    rig = Rig(ManagerMachine(data, "m-1", False))
    rig.members(m_1="manager", F_1="F", q_8="q")
    rig.learn(topo(1, replace(rset("q", "q-1"), lost=True), rset("F/0", "F-1")))
    rig.step(PeerDown("q-1", refused=True))
    rig.members(m_1="manager", F_1="F")
    rig.after(limits.checkpoint_wait_s + 10.0)
    rig.members(m_1="manager", F_1="F", q_9="q")
    assert not of(rig.all, Propose), "it may have read one"


def test_a_lost_state_is_found_once_a_holder_is_registered_and_not_for_want_of_a_suspicion():
    rig = Rig(ManagerMachine(DATA, "m-1"))
    others = {key: of_ for key, of_ in EVERYBODY.items() if of_ != "p"}
    rig.members(m_1="manager", **others)
    rig.learn(topo(1, replace(rset("p", "p-1"), lost=True), Q, S))
    rig.after(0.1)
    assert all(item.topology.find("p").lost for item in of(rig.all, Propose)), (
        "another manager has seen that it fails its probe: they would overrule each other for ever"
    )
    rig.members(m_1="manager", p_1="p", **others)
    rig.after(0.1)
    assert not proposed(rig.all).find("p").lost


def test_a_lost_state_does_not_begin_again_at_once_where_who_has_it_may_only_hang():
    rig = lost_by_silence()
    for _ in range(int(limits.hung_wait_s) - 1):
        assert all(item.topology.find("q").primary == "q-1" for item in of(rig.after(1.0), Propose))
    rig.members(m_1="manager", F_1="F", q_9="q", q_1="q")
    rig.get("q-1", ProbeAnswer(probes(rig)["q-1"], Health.HEALTHY, 2))
    for _ in range(3):
        rig.after(1.0)
    replica_set = of(rig.all, Propose)[-1].topology.find("q")
    assert (replica_set.primary, replica_set.lost) == ("q-1", False), "it woke up, and goes on"


def test_a_lost_state_begins_again_at_once_where_nobody_listens_any_more_and_late_where_nobody_wakes_up():
    rig = lost_by_silence()
    assert proposed(rig.step(PeerDown("q-1", refused=True))).find("q").primary == "q-9"
    rig = lost_by_silence()
    rig.after(limits.hung_wait_s + 0.1)
    assert of(rig.all, Propose)[-1].topology.find("q").primary == "q-9"


def test_a_primary_that_must_go_back_and_dies_first_keeps_no_attempt_waiting():
    """Seed 4006183: managers asked it for ever what it could go back to, and gave no roles meanwhile."""
    one = graph(op("q", FRONTEND, stateful=True)).data
    data = Graph(replace(one, recovery=replace(one.recovery, when_lost=WhenLost.RESTART)))
    rig = Rig(ManagerMachine(data, "m-1", False))
    rig.members(m_1="manager", F_1="F", q_1="q")
    rig.learn(topo(1, rset("q", "q-1"), rset("F/0", "F-1")))
    rig.get("q-1", Suspect("q-1", "model died"))
    roles = (RoleReport("q", "primary", 1, 3, False),)
    rig.get("q-1", ProbeAnswer(probes(rig)["q-1"], Health.NEEDS_ROLLBACK, 1, roles))
    rig.step(PeerDown("q-1", refused=True))
    rig.members(m_1="manager", F_1="F", q_9="q")
    rig.after(1.0)
    assert proposed(rig.all).find("q").primary == "q-9"


def test_a_state_that_begins_again_takes_no_keeper_of_another_lost_state_with_it_that_may_wake_up():
    """Seed 6019703: a set that begins again revokes its members, and one of them kept another state."""
    data = Graph(graph(op("p", FRONTEND, to=("q",), stateful=True), op("q", "p", stateful=True)).data)
    rig = Rig(ManagerMachine(data, "m-1", False))
    rig.members(m_1="manager", F_1="F", q_9="q", p_9="p")
    held = replace(rset("p", "p-1"), lost=True, keepers=("q-1",))
    decided = replace(rset("q", "q-1"), lost=True, may_restart=True)
    rig.learn(topo(1, held, decided, rset("F/0", "F-1"), revoked=("p-1",)))
    rig.after(1.0)
    assert not any("q-1" in item.topology.revoked for item in of(rig.all, Propose)), "it may only hang"
    effects = rig.step(PeerDown("q-1", refused=True))
    assert proposed([*effects, *rig.after(1.0)]).find("q").primary == "q-9"


def begun_again(rig):
    """The lost state's set, if it was begun again once who might have woken up has been waited for."""
    rig.step(PeerDown("q-1", refused=True))
    for _ in range(20):
        rig.after(1.0)
    sets = [item.topology.find("q") for item in of(rig.all, Propose)]
    return next((item for item in sets if item.primary == "q-9"), None)


def test_a_lost_state_that_no_request_has_touched_begins_again_though_policy_says_stop():
    again = begun_again(lost_by_silence(WhenLost.STOP, untouched=True))
    assert (again.epoch, again.end_of(1)) == (2, 0)


def test_a_lost_state_that_a_request_may_have_touched_waits_for_a_person():
    assert begun_again(lost_by_silence(WhenLost.STOP)) is None


def test_of_a_state_that_began_from_another_run_nothing_begins_again_by_itself():
    assert begun_again(lost_by_silence(WhenLost.STOP, from_scratch=False, untouched=True)) is None


def test_the_first_topology_says_that_no_request_was_logged():
    rig = Rig(ManagerMachine(DATA, "m-1", True))
    rig.members(m_1="manager", **EVERYBODY)
    rig.learn(Topology())
    rig.after(5.0)
    assert proposed(rig.all).untouched


@pytest.mark.parametrize(("untouched", "begins"), [(True, True), (False, False)])
def test_a_log_that_is_lost_before_the_first_request_begins_again_by_itself(untouched, begins):
    """Both frontends of a graph whose models never started were dead at once: its status said that a state
    was lost until a person decided, though there never was any."""
    rig = Rig(ManagerMachine(Graph(graph(op("q", FRONTEND, stateful=True)).data), "m-1", True))
    rig.members(m_1="manager", F_9="F", q_1="q")
    rig.learn(replace(topo(1, replace(rset("F/0", "F-1"), lost=True), rset("q", "q-1")), untouched=untouched))
    rig.step(PeerDown("F-1", refused=True))
    for _ in range(20):
        rig.after(1.0)
    sets = [item.topology.find("F/0") for item in of(rig.all, Propose)]
    assert [(item.primary, item.epoch, item.lost) for item in sets[-1:]] == (
        [("F-9", 2, False)] if begins else []
    )


def test_nothing_is_remembered_of_instances_that_are_gone():
    rig = manager(P, Q, S)
    for number in range(100):
        rig.members(m_1="manager", **EVERYBODY, **{f"s_{number + 10}": "s"})
        report = RoleReport("p", HOLDS, 1, number, True)
        rig.get(f"s-{number + 10}", ProbeAnswer(0, Health.HEALTHY, 1, (report,)))
        rig.step(PeerDown(f"s-{number + 10}", refused=True))
    rig.members(m_1="manager", **EVERYBODY)
    held = {
        name: len(value)
        for name, value in vars(rig.machine).items()
        if isinstance(value, dict | set) and name != "members"
    }
    assert all(count <= len(EVERYBODY) for count in held.values()), held


def test_a_manager_that_got_no_cpu_judges_nobody_by_silence_until_it_has_been_on_time_for_a_while():
    rig = manager(P, Q, S)
    rig.get("q-1", Suspect("p-1", "silent"))
    for _ in range(20):
        rig.step(Late(0.4))
        rig.after(0.5)
    assert not freezes(rig.all), "it was late itself, so it has read nothing"
    for _ in range(20):
        rig.after(limits.judge_calm_max_s / 10)
    assert set(freezes(rig.all)) == {"p-2", "p-3"}


def test_a_manager_that_got_no_cpu_still_acts_on_what_is_no_silence():
    rig = manager(P, Q, S)
    rig.step(Late(0.4))
    rig.step(PeerDown("p-1", refused=True))
    assert set(freezes(rig.all)) == {"p-2", "p-3"}


def test_a_manager_that_is_always_late_acts_on_a_silence_that_no_delay_explains():
    rig = manager(P, Q, S)
    rig.get("q-1", Suspect("p-1", "silent"))
    for _ in range(int(limits.silence_max_s)):
        assert not freezes(rig.all)
        rig.step(Late(0.4))
        rig.after(1.0)
    rig.after(1.0)
    assert set(freezes(rig.all)) == {"p-2", "p-3"}


def test_a_manager_that_gets_no_time_at_all_between_its_delays_acts_on_such_a_silence_as_well():
    rig = manager(P, Q, S)
    rig.get("q-1", Suspect("p-1", "silent"))
    for _ in range(int(limits.silence_max_s)):
        assert not freezes(rig.all)
        rig.now += 1.0
        rig.step(Late(1.0))
        rig.step(Tick())
    assert set(freezes(rig.all)) == {"p-2", "p-3"}


def test_one_long_pause_of_a_manager_is_no_silence_of_others():
    rig = manager(P, Q, S)
    rig.get("q-1", Suspect("p-1", "silent"))
    rig.now += 2 * limits.silence_max_s
    rig.step(Late(2 * limits.silence_max_s))
    rig.step(Tick())
    assert not freezes(rig.all), "the answer may lie unread"


def test_a_delay_that_is_small_against_what_the_graph_tolerates_keeps_nobody_from_judging():
    rig = manager(P, Q, S)
    rig.step(Late(limits.judge_late_share * DATA.data.recovery.suspect_after_s))
    rig.get("q-1", Suspect("p-1", "silent"))
    rig.after(0.6)
    assert set(freezes(rig.all)) == {"p-2", "p-3"}


def cut_off(rig):
    """This manager's machine is cut off with p-1: it hears nobody else, and gives all others up."""
    for name in EVERYBODY:
        rig.get(name.replace("_", "-"), Heartbeat(1))
    for name in EVERYBODY:
        if name != "p_1":
            rig.step(PeerDown(name.replace("_", "-")))
    rig.after(0.6)
    rig.step(CasUnknown())  # nor does it reach etcd
    rig.all.clear()


def test_a_manager_that_was_cut_off_hears_others_before_it_judges_them():
    rig = manager(P, Q, S)
    cut_off(rig)
    rig.learn(topo(2, rset("p", "p-2", "p-3", epoch=2), Q, S, revoked=("p-1",)))
    for _ in range(6):
        assert not of(rig.after(limits.doubt_s / 8), Propose)
    assert {"p-2", "q-1", "s-1"} <= set(probes(rig)), "they are asked anew"
    for name in ("F-1", "p-2", "p-3", "q-1", "q-2", "s-1"):
        rig.step(PeerUp(name))
        rig.get(name, ProbeAnswer(probes(rig)[name], Health.HEALTHY, 2))
    assert not of(rig.after(10.0), Propose)


def test_a_manager_that_was_cut_off_acts_on_a_silence_that_lasts():
    rig = manager(P, Q, S)
    cut_off(rig)
    rig.learn(topo(2, rset("p", "p-2", "p-3", epoch=2), Q, S, revoked=("p-1",)))
    assert "s-1" in proposed(rig.after(limits.doubt_s + 0.1)).revoked


def test_a_manager_that_hears_most_of_those_with_a_role_was_not_cut_off():
    rig = manager(P, Q, S)
    for name in EVERYBODY:
        rig.get(name.replace("_", "-"), Heartbeat(1))
    rig.step(PeerDown("s-1"))
    rig.step(PeerDown("p-3"))
    rig.learn(topo(2, rset("p", "p-2", "p-3", epoch=2), Q, S, revoked=("p-1",)))
    assert "s-1" in proposed(rig.after(0.6)).revoked


def test_who_owns_slots_alone_is_not_revoked_once_what_it_keeps_is_the_only_copy():
    """An attempt replaces r-1. p-1's model dies, and as q-2 leads its set nobody needs what p-1 keeps of it.
    Then q-2 dies, while the attempt still waits."""
    data = graph(op("p", FRONTEND, to=("q", "r")), op("q", "p", stateful=True), op("r", "p", stateful=True))
    kept = replace(rset("q", "q-2", epoch=2, ends=((1, 0),)), keepers=("p-1",))
    rig = Rig(ManagerMachine(data, "m-1"))
    rig.members(F_1="F", p_1="p", p_2="p", q_2="q", r_1="r", r_2="r", m_1="manager")
    rig.learn(topo(4, kept, rset("r", "r-1", "r-2"), table("p", ("p-1", 1)), revoked=("q-1",)))
    for change in of(rig.all, Propose):
        rig.step(CasSettled(change.topology, change.topology.generation, committed=True))
    generation = rig.machine.knowledge.topology.generation
    rig.all.clear()
    rig.step(PeerDown("r-1", True))
    rig.step(Tick())
    rig.now += 0.01
    rig.get("p-1", Suspect("p-1", "its model died"))
    (probe,) = of(rig.all, Probe, to="q-2")[-1:]
    leads = RoleReport("q", LEADS, 2, 7, True)
    rig.get("q-2", ProbeAnswer(probe.nonce, Health.HEALTHY, generation, (leads,)))
    assert rig.machine.to_replace == {"r-1", "p-1"}
    rig.now += 0.02
    rig.step(PeerDown("q-2", True))
    assert rig.machine.to_replace == {"r-1"}
