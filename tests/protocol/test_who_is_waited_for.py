"""How long somebody is waited for that is slow, hangs or was itself stopped (sections 2, 6 and 7.2): not for
ever, and not so short that a state is given up which is still there."""

from dataclasses import replace

import pytest
from kit import P, Rig, dep, graph, of, op, primary_of, rset, table, topo
from test_keeper import ALONE, DATA, HELD_BY_P, P_SLOT, copy_of, member, promoted, stateless
from test_out_of_reach import FETCHES, M, both, settle

from hams_protocol.deps import Dep
from hams_protocol.effects import Propose, Stop
from hams_protocol.events import (
    CasSettled,
    Drain,
    Late,
    MembersChanged,
    PeerDown,
    PeerUp,
    Tick,
)
from hams_protocol.graph import FRONTEND, Checkpoint, Graph, RecoverySpec, WhenLost
from hams_protocol.messages import (
    HOLDS,
    SAVED,
    AskCopy,
    Fence,
    FenceAnswer,
    Freeze,
    FreezeAnswer,
    Health,
    Probe,
    ProbeAnswer,
    RecordAck,
    RoleReport,
    StateCopy,
)
from hams_protocol.recovery import ManagerMachine
from hams_protocol.stateful.machine import StatefulMachine

RESTARTS = graph(
    op("p", FRONTEND, to=("q",)),
    op("q", "p", stateful=True),
    recovery=RecoverySpec(when_lost=WhenLost.RESTART),
)
CHAIN = graph(op("p", FRONTEND, to=("q",), stateful=True), op("q", "p", stateful=True))
LEFT_ALONE = rset("q", "q-2", epoch=2, ends=((1, 0),))


def restarting_manager():
    """A manager of a graph whose lost states begin again."""
    return Rig(ManagerMachine(RESTARTS, "m-1"))


def drive(rig, now, seconds, answers, empty=()):
    """For so many seconds; peers answer as `answers(peer, rig)` says: a Health, or None for silence. The
    `empty` ones say that they keep nothing."""
    for _ in range(int(seconds * 10)):
        effects, rig.all = rig.all[:], []
        for effect in effects:
            message = getattr(effect, "message", None)
            if isinstance(message, Probe):
                health = answers(effect.target, rig)
                if health is not None:
                    roles = tuple(
                        RoleReport(item.name, HOLDS, item.epoch, 7, False)
                        for item in now.sets
                        if effect.target in item.keepers and effect.target not in empty
                    )
                    rig.get(effect.target, ProbeAnswer(message.nonce, health, now.generation, roles))
        for item in of(effects, Propose)[-1:]:
            now = item.topology
            rig.step(CasSettled(now, now.generation, committed=True))
        rig.after(0.1)
    return now


def begin(rig, now, here, gone):
    """All of them are here and connected; then the leases of who is `gone` end."""
    rig.step(MembersChanged(here))
    rig.learn(now)
    for item in here:
        rig.step(PeerUp(item.instance))
    rig.step(MembersChanged(tuple(item for item in here if item.instance not in gone)))


def test_a_joiner_in_reach_whose_model_loads_for_longer_than_30_s_is_not_let_go():
    rig = primary_of(DATA, "q", topo(3, replace(rset("q", "q-1"), joining=("q-2",)), P_SLOT))
    rig.step(MembersChanged((*map(member, ("F-1", "p-1", "q-1", "q-2")), M)))
    rig.step(PeerUp("q-2"))
    now = rig.machine.knowledge.topology
    for _ in range(400):
        now = settle(rig, now)
        rig.after(0.1)
    assert now.find("q").joining == ("q-2",)


def test_the_substitute_of_a_state_without_backups_may_load_for_40_s():
    """`backups: 0`: managers name nobody, and who was called once is not called again."""
    q = replace(op("q", "p", stateful=True), backups=0)
    data = graph(op("p", FRONTEND, to=("q",)), q)
    rig = primary_of(data, "q", topo(3, rset("q", "q-1"), P_SLOT))
    rig.step(MembersChanged((*map(member, ("F-1", "p-1", "q-1", "q-2")), M)))
    rig.step(PeerUp("q-2"))
    rig.step(Drain())
    now = rig.machine.knowledge.topology
    for _ in range(400):  # its model loads
        now = settle(rig, now)
        rig.after(0.1)
    other = Rig(StatefulMachine(data, "q", "q-2"))
    other.learn(now)
    other.ready(P("state 0 of its own"))
    for ask in of(other.all, AskCopy, to="q-1"):
        for copy in of(rig.get("q-2", ask), StateCopy, to="q-2"):
            other.get("q-1", copy)
    assert now.find("q").joining == ("q-2",), "it could take over now"


def test_a_primary_that_fetches_and_was_stopped_for_6_s_hears_its_keeper_before_it_gives_up():
    rig = Rig(StatefulMachine(DATA, "q", "q-3"))
    rig.ready(P("state 0 of its own"))
    rig.step(MembersChanged((*map(member, ("F-1", "p-1", "q-3")), M)))
    rig.learn(topo(5, FETCHES, P_SLOT, revoked=("q-1", "q-2")))
    rig.now += 6.0
    rig.step(Late(6.0))
    rig.step(Tick())
    assert not of(rig.all, Stop), "that the connection stands lies unread"


def test_a_primary_gives_up_on_a_keeper_that_it_hears_and_does_not_reach():
    rig = Rig(StatefulMachine(DATA, "q", "q-3"))
    rig.ready(P("state 0 of its own"))
    rig.step(MembersChanged((*map(member, ("F-1", "p-1", "q-3")), M)))
    rig.learn(topo(5, FETCHES, P_SLOT, revoked=("q-1", "q-2")))
    rig.get("p-1", RecordAck("q", 3, 0, 0))
    for _ in range(600):
        rig.after(0.1)
    assert of(rig.all, Stop)


def test_a_recovery_upstream_does_not_wait_for_the_model_of_who_begins_a_state():
    """q was lost and begins again at q-9, whose model still loads, when p-1 dies."""
    again = replace(rset("q", "q-9", epoch=2, ends=((1, 0),)), restarted_in=2)
    now = topo(5, rset("p", "p-1", "p-2"), again, revoked=("q-1", "q-2"))
    one, rig = Rig(StatefulMachine(CHAIN, "q", "q-9")), Rig(ManagerMachine(CHAIN, "m-1"))
    here = (*map(member, ("F-1", "p-1", "p-2", "q-9")), M)
    for each in (one, rig):
        each.step(MembersChanged(here))
        each.learn(now)
    for peer in ("F-1", "p-1", "p-2", "q-9"):
        rig.step(PeerUp(peer))
    rig.step(PeerDown("p-1", refused=True))
    rig.step(MembersChanged(tuple(item for item in here if item.instance != "p-1")))
    for _ in range(600):
        effects, rig.all = rig.all[:], []
        for peer in ("F-1", "p-2"):
            for probe in of(effects, Probe, to=peer):
                rig.get(peer, ProbeAnswer(probe.nonce, Health.HEALTHY, now.generation, ()))
        for asked in of(effects, Freeze, to="p-2"):
            rig.get("p-2", FreezeAnswer(asked.attempt, asked.generation, asked.name, asked.epoch, 7))
        for kind in (Probe, Fence):
            for asked in of(effects, kind, to="q-9"):
                for sent in one.get("m-1", asked):
                    if getattr(sent, "target", None) == "m-1":
                        rig.get("q-9", sent.message)
        for item in of(effects, Propose)[-1:]:
            now = item.topology
            rig.step(CasSettled(now, now.generation, committed=True))
            one.learn(now)
        rig.after(0.1)
        one.after(0.1)
    assert now.find("p").primary == "p-2", "q-9 has no state yet that could hold an orphan"


def test_a_primary_that_was_stopped_hears_the_keeper_that_it_has_called_before_it_is_done_with_it():
    rig = promoted()
    assert of(rig.all, StateCopy, to="p-1")
    rig.now += 2.0
    rig.step(Late(2.0))
    rig.get("p-1", RecordAck("q", 2, 0, 0))
    (proposal,) = of(rig.all, Propose)[-1:]
    assert proposal.topology.find("q").keepers == ("p-1",), "its word lay unread"


def test_where_a_joiner_is_out_of_the_primarys_reach_another_one_joins():
    data = DATA
    now = topo(3, replace(rset("q", "q-1"), joining=("q-2",)), P_SLOT)
    rig, man = primary_of(data, "q", now), Rig(ManagerMachine(data, "m-1"))
    here = (*map(member, ("F-1", "p-1", "q-1", "q-2", "q-3")), M)
    for each in (rig, man):
        each.step(MembersChanged(here))
    man.learn(now)
    for item in here:
        man.step(PeerUp(item.instance))
    seen = set()
    for _ in range(1200):
        for each, other in ((rig, man), (man, rig)):
            proposed, each.all = of(each.all, Propose), []
            for item in proposed[-1:]:
                if item.topology.generation == now.generation + 1:
                    now = item.topology
                each.step(CasSettled(now, now.generation, committed=now is item.topology))
                other.learn(now)
        seen.update(now.find("q").joining)
        rig.after(0.1)
        man.after(0.1)
    assert seen == {"q-2", "q-3"}, (seen, now.generation)


def test_a_keeper_that_is_to_end_and_was_stopped_hears_that_it_is_named_before_it_ends():
    rig = stateless()
    rig.get("q-2", copy_of())
    assert of(rig.all, RecordAck, to="q-2"), "q-2 may name it from now on"
    rig.step(Drain())
    rig.now += 6.0
    rig.step(Late(6.0))
    rig.step(Tick())
    assert not of(rig.all, Stop), "the topology that names it lies unread"
    assert not of(rig.learn(topo(4, HELD_BY_P)), Stop)
    assert of(rig.learn(topo(5, ALONE)), Stop)


def test_a_state_whose_keeper_hangs_for_good_is_lost_and_not_waited_for():
    """p-1, which q-3 fetches from, is stopped for good: its kernel still answers, its lease is gone."""
    one, rig = Rig(StatefulMachine(RESTARTS, "q", "q-3")), restarting_manager()
    here = [*map(member, ("F-1", "p-1", "p-2", "q-3", "q-4")), M]
    now = topo(5, FETCHES, table("p", ("p-1", 2)), revoked=("q-1", "q-2"))
    one.ready(P("state 0 of its own"))
    for each in (rig, one):
        each.step(MembersChanged(tuple(here)))
        each.learn(now)
        for peer in ("F-1", "p-1", "p-2", "q-3", "q-4"):
            each.step(PeerUp(peer))
    here = [item for item in here if item.instance != "p-1"]
    for each in (rig, one):
        each.step(MembersChanged(tuple(here)))
    now = both(one, rig, here, now, ("F-1", "p-2", "q-4"), 2400)
    assert now.find("q").restarted_in, "nobody can give q-3 its state"
    assert now.table("p").slots[0].instance == "p-2", "nor are the requests of p-1 served otherwise"


def test_a_manager_that_was_stopped_hears_who_has_come_back_before_a_lost_state_begins_again():
    """q-2 hangs, and is back 5 s later; the manager is stopped meanwhile."""
    rig = restarting_manager()
    here = (*map(member, ("F-1", "p-1", "q-2", "q-3")), M)
    now = topo(5, LEFT_ALONE, P_SLOT, revoked=("q-1",))
    begin(rig, now, here, ("q-2",))
    now = drive(rig, now, 3.0, lambda peer, _: None if peer == "q-2" else Health.HEALTHY)
    assert now.find("q").lost
    rig.all.clear()
    rig.now += 60.0
    rig.step(Late(60.0))
    rig.step(Tick())
    assert not of(rig.all, Propose), "that q-2 is registered again lies unread"
    rig.step(MembersChanged(here))
    rig.step(PeerUp("q-2"))
    (found,) = of(rig.all, Propose)[-1:]
    assert not found.topology.find("q").lost
    assert "q-2" not in found.topology.revoked


def test_a_lost_state_does_not_begin_again_while_its_holder_answers():
    """q-2 hung, and its lease is gone. It answers again 3 s later, and does not reach etcd yet."""
    rig = restarting_manager()
    here = (*map(member, ("F-1", "p-1", "q-2", "q-3")), M)
    now = topo(5, LEFT_ALONE, P_SLOT, revoked=("q-1",))
    begin(rig, now, here, ("q-2",))
    began = rig.now
    now = drive(
        rig, now, 15.0, lambda peer, rig: None if peer == "q-2" and rig.now < began + 4 else Health.HEALTHY
    )
    assert now.find("q").lost
    assert "q-2" not in now.revoked


def with_checkpoints():
    """A manager; q is lost, and q-9 is there to begin it again from what it reads."""
    one = graph(op("q", FRONTEND, stateful=True)).data
    saved = replace(one.operators[0], checkpoint=Checkpoint(1.0, 2, "states"))
    recovery = replace(one.recovery, when_lost=WhenLost.RESTART)
    rig = Rig(ManagerMachine(Graph(replace(one, operators=(saved,), recovery=recovery)), "m-1"))
    rig.members(m_1="manager", F_1="F", q_9="q")
    rig.learn(topo(1, replace(rset("q", "q-1"), lost=True), rset("F/0", "F-1")))
    rig.step(PeerDown("q-1", refused=True))
    return rig


def tells(rig, *roles):
    for probe in of(rig.all, Probe, to="q-9")[-1:]:
        rig.get("q-9", ProbeAnswer(probe.nonce, Health.HEALTHY, 1, roles))


def test_a_lost_state_waits_for_who_lives_and_reads_a_large_checkpoint():
    rig = with_checkpoints()
    for _ in range(200):  # 20 s: some GB from a slow disk
        rig.after(0.1)
        tells(rig)
    assert not of(rig.all, Propose), "it is reading"
    rig.after(0.5)
    tells(rig, RoleReport("q", SAVED, 1, 500, False))
    rig.after(0.1)
    assert of(rig.all, Propose)[-1].topology.find("q").end_of(1) == 500


def test_a_manager_that_was_stopped_hears_of_a_checkpoint_before_a_state_begins_from_nothing():
    rig = with_checkpoints()
    rig.after(1.0)
    rig.now += 60.0
    rig.step(Late(60.0))
    rig.step(Tick())
    assert not of(rig.all, Propose), "what q-9 has told lies unread"
    tells(rig, RoleReport("q", SAVED, 1, 500, False))
    assert of(rig.all, Propose)[-1].topology.find("q").end_of(1) == 500


def test_a_holder_that_answered_once_and_hangs_for_good_is_not_waited_for_for_ever():
    """q-2 hung, and its lease is gone. It answers once, 3 s later, and hangs for good: its kernel answers."""
    rig = restarting_manager()
    here = (*map(member, ("F-1", "p-1", "q-2", "q-3")), M)
    now = topo(5, LEFT_ALONE, P_SLOT, revoked=("q-1",))
    begin(rig, now, here, ("q-2",))

    def answers(peer, rig):
        if peer in ("F-1", "p-1", "q-3"):
            return Health.HEALTHY
        if peer == "q-2" and 4.0 < rig.now < 5.0:
            return Health.HEALTHY
        return None

    now = drive(rig, now, 600.0, answers)
    assert now.find("q").restarted_in, "nobody asks q-2 again"


@pytest.mark.parametrize("registers", [False, True])
def test_a_keeper_that_holds_nothing_by_its_word_is_no_reason_to_wait(registers):
    """q-2 is dead. Its keeper p-1 hung, lost its lease, is back, and holds nothing."""
    rig = restarting_manager()
    here = (*map(member, ("F-1", "p-1", "p-2", "q-2", "q-3")), M)
    now = topo(5, replace(LEFT_ALONE, keepers=("p-1",)), table("p", ("p-2", 1)), revoked=("q-1",))
    begin(rig, now, here, ("q-2", "p-1"))
    rig.step(PeerDown("q-2", refused=True))

    def answers(peer, rig):
        if peer in ("F-1", "p-2", "q-3") or (peer == "p-1" and rig.now > 5.0):
            return Health.HEALTHY
        return None

    now = drive(rig, now, 6.0, answers, ("p-1",))
    assert now.find("q").lost
    if registers:
        rig.step(MembersChanged(tuple(item for item in here if item.instance != "q-2")))
    now = drive(rig, now, 600.0, answers, ("p-1",))
    assert now.find("q").restarted_in, "it does not begin again"


def test_a_keeper_of_a_lost_state_that_answers_is_not_revoked():
    """q-2 is dead. Its keeper p-1 hung and lost its lease; it answers again, its model is dead, and it does
    not reach etcd yet."""
    rig = restarting_manager()
    here = (*map(member, ("F-1", "p-1", "p-2", "q-2", "q-3")), M)
    now = topo(5, replace(LEFT_ALONE, keepers=("p-1",)), P_SLOT, revoked=("q-1",))
    begin(rig, now, here, ("q-2", "p-1"))
    rig.step(PeerDown("q-2", refused=True))

    def answers(peer, rig):
        if peer in ("F-1", "p-2", "q-3"):
            return Health.HEALTHY
        if peer == "p-1" and rig.now > 5.0:
            return Health.MODEL_DEAD
        return None

    now = drive(rig, now, 15.0, answers)
    assert now.find("q").lost
    assert "p-1" not in now.revoked, "the only copy is with it"


def test_fences_with_the_same_ends_do_not_push_another_one_out_before_the_model_is_ready():
    rig = Rig(StatefulMachine(CHAIN, "q", "q-1"))
    rig.learn(topo(3, rset("p", "p-1"), rset("q", "q-1")))
    assert of(rig.get("m-1", Fence(1, 3, "q", (Dep("p", 1, 5),))), FenceAnswer)
    for n in range(20):
        rig.get("m-2", Fence(100 + n, 3, "q", (Dep("p", 1, 9),)))
    rig.ready(P("state 0"))
    assert rig.machine.primary is not None
    assert rig.machine.is_fenced(dep("p", 1, 7)), "m-1 may yet commit"


def test_a_joiner_that_is_heard_and_was_never_reached_makes_room_for_another_one():
    """q-1 cannot connect to q-2 (no answer, so nothing breaks), though q-2 connects to it."""
    rig = primary_of(DATA, "q", topo(3, replace(rset("q", "q-1"), joining=("q-2",)), P_SLOT))
    rig.step(MembersChanged((*map(member, ("F-1", "p-1", "q-1", "q-2", "q-3")), M)))
    rig.step(PeerUp("q-3"))
    now = rig.machine.knowledge.topology
    for step in range(1200):
        now = settle(rig, now)
        if step % 10 == 0 and "q-2" in now.find("q").joining:
            rig.get("q-2", AskCopy("q", 1, -1, now.generation))
        rig.after(0.1)
    assert now.find("q").joining == ("q-3",)


def test_a_person_does_not_throw_away_the_last_of_another_state_whose_keeper_answers():
    """q-2 leads q, and keeps r, of which nobody else is left. It answers, and does not reach etcd. A person
    lets q begin again."""
    data = graph(
        op("p", FRONTEND, to=("q",)), op("q", "p", stateful=True, to=("r",)), op("r", "q", stateful=True)
    )
    rig = Rig(ManagerMachine(data, "m-1"))
    here = (*map(member, ("F-1", "p-1", "q-3")), M)
    now = topo(
        5,
        replace(rset("q", "q-2", epoch=2, ends=((1, 0),)), lost=True, may_restart=True),
        replace(rset("r", "r-1", epoch=1), keepers=("q-2",), lost=True),
        P_SLOT,
        revoked=("q-1", "r-1"),
    )
    begin(rig, now, here, ())
    now = drive(rig, now, 60.0, lambda peer, rig: Health.HEALTHY)
    assert "q-2" not in now.revoked, "it has the only copy of r"


def test_a_starved_manager_begins_a_lost_state_again_within_a_minute():
    rig = restarting_manager()
    here = (*map(member, ("F-1", "p-1", "q-2", "q-3")), M)
    now = topo(5, replace(LEFT_ALONE, lost=True), P_SLOT, revoked=("q-1",))
    begin(rig, now, here, ("q-2",))
    for _ in range(90):
        effects, rig.all = rig.all[:], []
        rig.now += 1.0
        rig.step(Late(0.9))
        for effect in effects:
            message = getattr(effect, "message", None)
            if isinstance(message, Probe) and effect.target != "q-2":
                rig.get(effect.target, ProbeAnswer(message.nonce, Health.HEALTHY, now.generation, ()))
        for item in of(effects, Propose)[-1:]:
            now = item.topology
            rig.step(CasSettled(now, now.generation, committed=True))
        rig.step(Tick())
    assert now.find("q").restarted_in
