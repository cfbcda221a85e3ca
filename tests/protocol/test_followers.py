"""The ack set (section 2): it contains the topology's in-sync set at every moment."""

import pytest
from kit import R0, P, dep, graph, of, op, primary_of, rset, topo, value

from hams_protocol import limits
from hams_protocol.due import FOREVER
from hams_protocol.effects import Capture, NoteDurable, Propose
from hams_protocol.events import Captured, CasSettled, Late, PeerDown, PeerUp, Tick
from hams_protocol.graph import FRONTEND
from hams_protocol.messages import AskApplied, AskCopy, AskTopology, RecordAck, StateCopy, StateRecord
from hams_protocol.replica.followers import Followers

ASK = AskCopy("q", 1, -1, 9)
DATA = graph(op("q", FRONTEND, stateful=True))
PAIR = graph(op("p", FRONTEND, to=("q",), stateful=True), op("q", "p", stateful=True))


def gone_at(follower, is_registered=True):
    return follower.gone_at(is_registered, 0.15, limits.backup_lag_max_s, -FOREVER)


def at(generation, *in_sync, joining=()):
    return topo(generation, rset("q", "q-1", *in_sync, joining=joining))


def feed(rig, number):
    rig.token("F-1", value("F", R0._replace(n=number), f"0/{number}"))
    return rig.run()


def test_a_joiner_copies_the_newest_durable_version_with_what_it_consumed():
    rig = primary_of(DATA, "q", at(1, "q-2", joining=("q-3",)))
    rig.get("q-2", RecordAck("q", 1, 0, 0))
    feed(rig, 0)
    rig.get("q-2", RecordAck("q", 1, 1, 1))
    feed(rig, 1)  # speculative
    effects = rig.get("q-3", ASK)
    (copy,) = of(effects, StateCopy, "q-3")
    assert (copy.version, copy.state, [unit.seq for unit in copy.units]) == (1, P("state 1"), [1])
    assert not of(effects, StateRecord, "q-3"), "nothing is sent behind it that it may be too slow for"
    effects = rig.get("q-3", RecordAck("q", 1, 1, 1))
    assert [record.version for record in of(effects, StateRecord, "q-3")] == [2], (
        "then it follows the records"
    )
    assert not of(rig.get("q-2", RecordAck("q", 1, 2, 2)), NoteDurable), "and is counted on"
    assert of(rig.get("q-3", RecordAck("q", 1, 2, 2)), NoteDurable)[0].version == 2


def test_a_joiner_gets_records_and_units_without_what_is_durable_for_it_may_have_come_late():
    rig = primary_of(PAIR, "q", topo(1, rset("p", "p-1"), rset("q", "q-1", joining=("q-2",))))
    for n in range(2):
        rig.token("p-1", value("p", R0._replace(n=n), f"p:{n}", dep("p", 1, n)))
        rig.run()
    rig.learn(topo(2, rset("p", "p-2", epoch=2, ends=((1, 1),)), rset("q", "q-1", joining=("q-2",))))
    effects = rig.get("q-2", ASK)
    rig.token("p-2", value("p", R0._replace(n=2), "p-2:1", dep("p", 2, 2)), epoch=2)
    effects += rig.run()
    effects += rig.get("q-2", RecordAck("q", 1, 2, 2))
    (copy,) = of(effects, StateCopy, "q-2")
    tokens = [token for unit in copy.units for _, token in unit.outputs]
    assert {entry for token in tokens for entry in token.deps if entry.op == "p"} == set()
    (record,) = of(effects, StateRecord, "q-2")
    assert record.deps == (*dep("p", 2, 2), *dep("q", 1, 3)), "what is pending stays"


def test_a_joiner_enters_the_ack_set_before_it_is_declared_in_sync():
    rig = primary_of(DATA, "q", at(1, joining=("q-2",)))
    rig.get("q-2", ASK)
    (proposed,) = of(rig.get("q-2", RecordAck("q", 1, 0, 0)), Propose)
    assert proposed.topology.find("q").in_sync == ("q-2",)
    assert not of(feed(rig, 0), NoteDurable), "the proposal may be committed already"
    assert of(rig.get("q-2", RecordAck("q", 1, 1, 1)), NoteDurable)


def test_a_joiner_is_proposed_once_it_has_applied_everything_durable_and_again_until_it_is_in():
    rig = primary_of(DATA, "q", at(1, joining=("q-2",)))
    rig.get("q-2", ASK)
    feed(rig, 0)
    assert not of(rig.get("q-2", RecordAck("q", 1, 1, 0)), Propose)
    assert of(rig.get("q-2", RecordAck("q", 1, 1, 1)), Propose)
    assert not of(rig.get("q-2", RecordAck("q", 1, 1, 1)), Propose)
    rig.step(CasSettled(at(2, joining=("q-2",)), 2, committed=False))
    assert of(rig.after(2 * limits.propose_retry_s) + rig.all[-3:], Propose)


def test_a_copy_asked_for_in_another_epoch_is_not_given():
    rig = primary_of(DATA, "q", at(1, joining=("q-2",)))
    assert rig.get("q-2", AskCopy("q", 2)) == []
    assert not of(rig.get("q-9", ASK), StateCopy)


def test_a_joiner_past_the_retained_records_copies_anew_and_is_waited_for():
    rig = primary_of(DATA, "q", at(1, "q-2", joining=("q-3",)))
    rig.members(q_1="q", q_2="q", q_3="q")
    rig.get("q-2", RecordAck("q", 1, 0, 0))
    rig.get("q-3", ASK)
    for number in range(3):
        feed(rig, number)
        rig.get("q-2", RecordAck("q", 1, number + 1, number + 1))
    assert of(rig.get("q-3", RecordAck("q", 1, 0, 0)), StateCopy, "q-3")[0].version == 3
    feed(rig, 3)
    assert not of(rig.get("q-2", RecordAck("q", 1, 4, 4)), NoteDurable)
    assert of(rig.after(1.0), StateCopy, "q-3")[0].version == 3, "if that was lost, again"
    # of what had been proposed meanwhile
    rig.step(CasSettled(at(2, "q-2", joining=("q-3",)), 2, committed=False))
    effects = rig.get("q-3", RecordAck("q", 1, 3, 3))
    assert of(effects, Propose)[0].topology.find("q").in_sync == ("q-2", "q-3")


def test_a_joiner_catches_up_with_a_primary_that_is_alone_and_never_rests():
    rig = primary_of(DATA, "q", at(1, joining=("q-2",)))
    rig.get("q-2", ASK)
    received = 0
    for number in range(10):
        effects = feed(rig, number)  # the next version is there before the last one has arrived
        effects += rig.get("q-2", RecordAck("q", 1, received, received))
        if of(effects, Propose):
            break
        received = max(
            (item.version for item in (*of(effects, StateCopy, "q-2"), *of(effects, StateRecord, "q-2"))),
            default=received,
        )
    assert of(effects, Propose), "whoever runs one version behind would do so for ever"


def test_a_follower_that_was_dropped_does_not_count_any_more():
    rig = primary_of(DATA, "q", at(1, "q-2", "q-3"))
    for member in ("q-2", "q-3"):
        rig.get(member, RecordAck("q", 1, 0, 0))
    feed(rig, 0)
    rig.get("q-2", RecordAck("q", 1, 1, 1))
    assert of(rig.learn(at(2, "q-2")), NoteDurable)[0].version == 1
    assert rig.get("q-3", RecordAck("q", 1, 1, 1)) == []


def test_whoever_the_topology_names_in_sync_is_in_the_ack_set():
    followers = Followers()
    followers.sync(rset("q", "q-1", "q-2", joining=("q-3",)), 5, 1, 0.0)
    assert followers.applied_by_all() == -1, "nothing was said in this epoch yet"
    followers.acknowledge("q-2", 9, 7, 0.0)
    assert followers.applied_by_all() == 7
    followers.sync(rset("q", "q-1", "q-2", "q-3"), 5, 1, 0.0)
    assert followers.applied_by_all() == -1


def test_a_version_number_alone_does_not_move_back():
    followers = Followers()
    followers.sync(rset("q", "q-1", "q-2"), 0, 1, 0.0)
    followers.acknowledge("q-2", 9, 7, 0.0)
    followers.acknowledge("q-2", 4, 3, 0.0)
    assert followers.applied_by_all() == 7


def test_lost_acknowledgements_of_an_apply_are_asked_for():
    rig = primary_of(DATA, "q", at(1, "q-2"))
    rig.get("q-2", RecordAck("q", 1, 0, 0))
    feed(rig, 0)
    rig.get("q-2", RecordAck("q", 1, 1, 0))
    assert of(rig.after(2 * limits.resend_after_s), AskApplied, "q-2") == [AskApplied("q", 1)]


def test_what_is_held_back_for_large_streams_is_not_sent_again_too_soon():
    rig = primary_of(DATA, "q", at(1, "q-2"))
    rig.get("q-2", RecordAck("q", 1, 0, 0))
    rig.token("F-1", value("F", R0, "0/0", dep("q", 0, 0)[:0]))
    effects = rig.run()
    assert of(effects, StateRecord, "q-2")
    assert not of(rig.after(limits.resend_after_s / 2), StateRecord)
    assert of(rig.after(limits.resend_after_s), StateRecord, "q-2")


def test_a_joiner_that_has_said_nothing_yet_is_not_thrown_out_for_a_refused_connection():
    followers = Followers()
    followers.sync(rset("q", "q-1", joining=("q-2",)), 0, 1, 0.0)
    followers.down("q-2", True, 0.1)
    assert gone_at(followers.all["q-2"]) == limits.backup_lag_max_s, "it may be starting still"
    assert gone_at(followers.all["q-2"], is_registered=False) <= 0.1, "its lease would have told"


def test_a_joiner_that_was_heard_and_refuses_a_connection_is_gone():
    followers = Followers()
    followers.sync(rset("q", "q-1", joining=("q-2",)), 0, 1, 0.0)
    followers.acknowledge("q-2", 0, 0, 0.05)
    followers.down("q-2", True, 0.1)
    assert gone_at(followers.all["q-2"]) <= 0.1


def test_a_joiner_that_still_loads_its_copy_gets_no_second_one():
    rig = primary_of(DATA, "q", at(1, "q-2", joining=("q-3",)))
    rig.get("q-2", RecordAck("q", 1, 0, 0))
    assert of(rig.get("q-3", ASK), StateCopy, "q-3")
    assert not of(rig.get("q-3", ASK), StateCopy), "it is on its way"
    rig.get("q-3", RecordAck("q", 1, 0, -1))
    feed(rig, 0)
    rig.get("q-2", RecordAck("q", 1, 1, 1))
    rig.after(limits.copy_ask_after_s)
    assert not of(rig.get("q-3", AskCopy("q", 1, 0, 9)), StateCopy), "its model loads it"
    assert of(rig.get("q-3", RecordAck("q", 1, 0, 0)), StateCopy, "q-3")[0].version == 1, (
        "then it gets what it lacks, once"
    )


def test_a_joiner_whose_copy_was_lost_gets_another():
    rig = primary_of(DATA, "q", at(1, joining=("q-2",)))
    assert of(rig.get("q-2", ASK), StateCopy, "q-2")
    rig.after(limits.copy_ask_after_s)
    assert of(rig.get("q-2", ASK), StateCopy, "q-2")


def test_a_joiner_that_was_dropped_and_named_again_goes_on_from_what_it_holds():
    rig = primary_of(DATA, "q", at(1, joining=("q-2",)))
    rig.get("q-2", ASK)
    feed(rig, 0)
    rig.learn(at(2))
    rig.learn(at(3, joining=("q-2",)))
    stale = [*rig.get("q-2", AskCopy("q", 1, 0, 1)), *rig.get("q-2", RecordAck("q", 1, 0, 0))]
    assert stale == [], "said before: it may have stopped since"
    assert not of(rig.get("q-2", AskCopy("q", 1, 0, 3)), StateCopy)
    effects = rig.get("q-2", RecordAck("q", 1, 0, 0))
    assert of(effects, StateCopy, "q-2")[0].version == 1, "what it lacks"
    assert of(rig.get("q-2", RecordAck("q", 1, 1, 1)), Propose)


def test_a_joiner_in_the_ack_set_that_never_gets_its_copy_is_dropped():
    rig = primary_of(DATA, "q", at(1, "q-2", joining=("q-3",)))
    rig.members(q_1="q", q_2="q", q_3="q")
    rig.get("q-2", RecordAck("q", 1, 0, 0))
    rig.get("q-3", ASK)
    for number in range(3):
        feed(rig, number)
        rig.get("q-2", RecordAck("q", 1, number + 1, number + 1))
    assert of(rig.get("q-3", RecordAck("q", 1, 0, 0)), StateCopy, "q-3")
    proposed = []
    for _ in range(20):
        effects = rig.after(limits.backup_lag_max_s / 4)
        effects += rig.get("q-3", AskCopy("q", 1, 0, 9))
        effects += rig.get("q-3", RecordAck("q", 1, 0, 0))
        proposed += of(effects, Propose)
        if proposed:
            break
    assert proposed
    assert "q-3" not in proposed[0].topology.find("q").members


def test_a_joiner_whose_connection_broke_while_its_last_step_was_under_way_gets_it_again_at_once():
    rig = primary_of(DATA, "q", at(1, joining=("q-2",)))
    rig.members(q_1="q", q_2="q")
    rig.get("q-2", ASK)
    feed(rig, 0)
    assert of(rig.get("q-2", RecordAck("q", 1, 0, 0)), StateCopy)
    feed(rig, 1)
    rig.step(PeerDown("q-2"))
    effects = rig.step(PeerUp("q-2"))
    assert of(effects, StateCopy, "q-2")[0].version == 1
    assert [record.version for record in of(effects, StateRecord, "q-2")] == [2], (
        "no record that it could not apply"
    )


def test_a_joiner_that_waits_for_a_large_state_of_a_read_only_version_is_given_the_time():
    large = P("state 1", nbytes=1 << 30)
    rig = primary_of(DATA, "q", at(1, joining=("q-2",)))
    rig.members(q_1="q", q_2="q")
    rig.token("F-1", value("F", R0, "0/0"))
    rig.want()
    rig.step(Captured(of(rig.done(), Capture)[0].version, large))
    rig.token("F-1", value("F", R0._replace(n=1), "0/1"))
    rig.want()
    assert not of(rig.done(updated=False), Capture)
    assert of(rig.get("q-2", ASK), StateCopy)[0].state.nbytes == large.nbytes
    rig.after(limits.copy_ask_after_s)
    assert not of(rig.get("q-2", ASK), StateCopy), "it is on its way"


def test_a_joiner_whose_connection_breaks_again_and_again_is_dropped():
    rig = primary_of(DATA, "q", at(1, joining=("q-2",)))
    rig.members(q_1="q", q_2="q")
    rig.get("q-2", ASK)
    feed(rig, 0)
    assert of(rig.get("q-2", RecordAck("q", 1, 0, 0)), StateCopy)
    proposed = []
    for _ in range(20):
        rig.step(PeerDown("q-2"))
        rig.after(0.01)
        rig.step(PeerUp("q-2"))
        proposed += of(rig.after(limits.backup_lag_max_s / 4), Propose)
    assert proposed
    assert "q-2" not in proposed[0].topology.find("q").members


def test_a_follower_whose_connection_was_broken_has_made_no_progress_in_the_future():
    followers = Followers()
    followers.sync(rset("q", "q-1", "q-2"), 0, 1, 0.0)
    followers.down("q-2", False, 0.0)
    follower = followers.all["q-2"]
    follower.progress_at = 60.0  # a record left when the connection was thought to be broken
    followers.up("q-2", 61.0)
    assert follower.progress_at == 61.0


def test_a_primary_that_got_no_cpu_drops_no_backup_for_what_it_has_not_read():
    rig = primary_of(DATA, "q", at(1, "q-2"))
    rig.get("q-2", RecordAck("q", 1, 0, 0))
    feed(rig, 0)
    rig.now += limits.backup_lag_max_s + 1.0
    rig.step(Late(limits.backup_lag_max_s + 1.0))
    assert not of(rig.step(Tick()), Propose), "the acknowledgement may lie unread"
    for _ in range(10):
        rig.after(1.0)
    assert of(rig.all, Propose), "but it is not waited for without end"


@pytest.mark.parametrize("broken", [False, True])
def test_a_primary_that_is_always_late_drops_a_backup_whose_silence_no_delay_explains(broken):
    rig = primary_of(DATA, "q", at(1, "q-2"))
    rig.get("q-2", RecordAck("q", 1, 0, 0))
    feed(rig, 0)
    if broken:
        rig.step(PeerDown("q-2"))
    for _ in range(int(limits.silence_max_s) - 1):
        rig.step(Late(1.0))
        assert not of(rig.after(1.0), Propose)
    for _ in range(2):
        rig.step(Late(1.0))
        rig.after(1.0)
    assert of(rig.all, Propose)


def test_one_long_pause_of_a_primary_is_no_silence_of_its_backup():
    rig = primary_of(DATA, "q", at(1, "q-2"))
    rig.get("q-2", RecordAck("q", 1, 0, 0))
    feed(rig, 0)
    rig.now += 2 * limits.silence_max_s
    rig.step(Late(2 * limits.silence_max_s))
    assert not of(rig.step(Tick()), Propose), "the acknowledgement may lie unread"


def test_a_primary_that_got_no_cpu_drops_a_backup_at_whose_address_nobody_listens():
    rig = primary_of(DATA, "q", at(1, "q-2"))
    rig.get("q-2", RecordAck("q", 1, 0, 0))
    rig.step(Late(0.4))
    assert not of(rig.step(PeerDown("q-2")), Propose)
    assert of(rig.step(PeerDown("q-2", refused=True)), Propose)


def test_a_joiner_that_knows_sooner_that_it_is_named_gets_its_copy_as_soon_as_the_primary_knows():
    rig = primary_of(DATA, "q", at(1))
    effects = rig.get("q-3", AskCopy("q", 1, -1, 2))
    assert of(effects, AskTopology, "q-3") == [AskTopology(1)]
    assert not of(effects, StateCopy)
    assert of(rig.learn(at(2, joining=("q-3",))), StateCopy, "q-3")
    assert not of(rig.learn(at(3, joining=("q-3",))), StateCopy), "once"


def test_a_joiner_of_the_next_epoch_gets_its_copy_as_soon_as_that_begins():
    rig = primary_of(DATA, "q", at(1, "q-2"))
    rig.get("q-3", AskCopy("q", 2, -1, 2))
    names = rset("q", "q-1", epoch=2, joining=("q-3",), ends=((1, 0),))
    (copy,) = of(rig.learn(topo(2, names)), StateCopy, "q-3")
    assert (copy.epoch, copy.version) == (2, 0)


def test_what_a_joiner_asked_early_is_forgotten_where_it_is_not_named_or_somebody_else_leads():
    rig = primary_of(DATA, "q", at(1, "q-2"))
    rig.get("q-3", AskCopy("q", 1, -1, 2))
    assert not of(rig.learn(at(2, "q-2")), StateCopy)
    assert not of(rig.learn(at(3, "q-2", joining=("q-3",))), StateCopy)
