"""One replica set, whatever it replicates (ADR 0031): what states and logs have in common."""

from dataclasses import replace

import pytest
from kit import R0, dep, graph, of, op, primary_of, rset, topo, value

from hams_protocol import limits
from hams_protocol.context import Context, InvariantError
from hams_protocol.due import FOREVER
from hams_protocol.effects import Propose
from hams_protocol.events import CasSettled, CasUnknown, Drain, PeerDown, PeerUp
from hams_protocol.graph import FRONTEND
from hams_protocol.knowledge import Knowledge
from hams_protocol.messages import AskCopy, Leave, RecordAck, StateRecord
from hams_protocol.replica.followers import Followers
from hams_protocol.replica.freeze import Frozen
from hams_protocol.replica.links import Links
from hams_protocol.replica.proposals import Proposals
from hams_protocol.topology import Topology

DATA = graph(op("q", FRONTEND, stateful=True))


def at(generation, *in_sync, joining=(), revoked=()):
    return topo(generation, rset("q", "q-1", *in_sync, joining=joining), revoked=revoked)


def log_of(*in_sync, joining=(), generation=1):
    """The followers of a log whose epoch begins at index 5."""
    followers = Followers(hold_base=True)
    followers.sync(rset("F/0", "F-1", *in_sync, joining=joining), 5, generation, 0.0)
    return followers


def knowing(generation):
    knowledge = Knowledge(DATA)
    knowledge.learn(Topology(generation), 1)
    return knowledge


# -- the arithmetic of the set -------------------------------------------------------------------------------


def test_whoever_is_in_sync_when_a_log_begins_holds_it_and_a_backup_has_to_say_so():
    assert log_of("F-2").applied_by_all() == 5
    states = Followers()
    states.sync(rset("q", "q-1", "q-2"), 5, 1, 0.0)
    assert states.applied_by_all() == -1


def test_nobody_comes_in_sync_in_a_log_whom_its_owner_does_not_know():
    followers = log_of("F-2")
    with pytest.raises(InvariantError, match="F-3 came in sync"):
        followers.sync(rset("F/0", "F-1", "F-2", "F-3"), 5, 2, 0.0)


def test_the_ack_set_contains_the_in_sync_set():
    followers = log_of("F-2")
    followers.all["F-2"].ack = False
    with pytest.raises(InvariantError, match="F-2 is not in the ack set"):
        followers.check("F/0")


def test_a_joiner_does_not_count_before_its_leader_says_so():
    followers = log_of("F-2", joining=("F-3",))
    assert followers.acknowledge("F-3", 9, 9, 0.0) is None, "it has not asked for its copy"
    followers.all["F-3"].is_sent_copy(5, 0, 0.0)
    assert followers.acknowledge("F-3", 3, 3, 0.0) is not None
    assert followers.applied_by_all() == 5, "it holds less, and nobody waits for it"
    followers.all["F-3"].ack = True
    assert followers.applied_by_all() == 3


def test_what_a_frontend_said_before_it_was_named_again_counts_for_nothing():
    followers = log_of(joining=("F-2",))
    joiner = followers.all["F-2"]
    joiner.is_sent_copy(5, 0, 0.0)
    followers.acknowledge("F-2", 7, 7, 0.0, 1)
    joiner.ack = True
    followers.sync(rset("F/0", "F-1", joining=("F-2",)), 5, 2, 0.0)
    assert (joiner.ack, joiner.applied) == (True, 7), "no generation is missing: it was named all along"
    followers.sync(rset("F/0", "F-1", joining=("F-2",)), 5, 4, 0.0)
    assert (joiner.ack, joiner.applied) == (False, -1), "in the third it may have been dropped"
    assert followers.acknowledge("F-2", 7, 7, 0.0, 1) is None
    assert joiner.sent == 7, "what it held is kept for it"


def test_a_frontend_that_was_in_sync_and_joins_again_begins_anew():
    followers = log_of("F-2")
    followers.sync(rset("F/0", "F-1", joining=("F-2",)), 5, 2, 0.0)
    assert not followers.all["F-2"].ack
    assert followers.applied_by_all() is None


def test_a_backup_that_was_in_sync_and_joins_again_begins_anew():
    """It may have thrown its state away, and have stayed as the keeper of another one."""
    followers = Followers()
    followers.sync(rset("q", "q-1", "q-2"), 0, 1, 0.0)
    followers.acknowledge("q-2", 3, 3, 0.0)
    followers.sync(rset("q", "q-1", joining=("q-2",)), 0, 4, 0.0)
    assert not followers.all["q-2"].ack
    assert followers.applied_by_all() is None


def test_a_keeper_that_is_called_is_done_with_where_generations_were_missed():
    """By one of them it may have forgotten the state: another one was in sync, say."""
    followers = Followers()
    followers.sync(rset("q", "q-1"), 0, 1, 0.0)
    followers.call("p-1", 1, 0.0)
    followers.sync(rset("q", "q-1"), 0, 2, 0.0)
    assert followers.called == "p-1"
    followers.sync(rset("q", "q-1"), 0, 4, 0.0)
    assert followers.called is None
    assert followers.all == {}


def test_a_member_whose_removal_is_proposed_protects_nobody_and_is_waited_for():
    followers = log_of("F-2", "F-3")
    followers.drop(rset("F/0", "F-1", "F-3"))
    assert followers.some_protects
    followers.drop(rset("F/0", "F-1", "F-2"))
    assert not followers.some_protects
    assert [item.instance for item in followers.ack_set] == ["F-2", "F-3"]
    followers.sync(rset("F/0", "F-1", "F-3"), 5, 2, 0.0)
    assert not followers.some_protects, "what is dropped once is dropped for good"


def test_a_connection_that_was_broken_before_is_known_to_a_new_leader():
    links = Links()
    links.broke("q-2", False, 1.0)
    followers = Followers(links)
    followers.sync(rset("q", "q-1", "q-2", "q-3"), 0, 1, 2.0)
    assert followers.all["q-2"].down_since == 1.0
    assert followers.staying({"q-2": None, "q-3": None}) == [followers.all["q-3"]]


def test_broken_connections_are_forgotten_with_their_peers():
    links = Links()
    links.broke("q-2", True, 1.0)
    links.broke("q-3", False, 1.0)
    links.late(5.0, 3.0)
    assert links.down == {"q-2": 3.0, "q-3": 3.0}
    links.forget({"q-3"})
    assert (links.down, links.refused) == ({"q-3": 3.0}, set())


# -- proposals -----------------------------------------------------------------------------------------------


def test_one_proposal_at_a_time_and_a_failed_one_waits_for_news():
    ctx, knowledge = Context(), knowing(1)
    proposals = Proposals(ctx, knowledge)
    assert proposals.may_propose
    proposals.propose(Topology(2))
    assert proposals.at == FOREVER
    proposals.settled(failed=True)
    assert proposals.at == limits.propose_retry_s
    knowledge.learn(Topology(2), 2)
    assert proposals.may_propose, "a newer topology tells what became of it"
    proposals.propose(Topology(3))
    proposals.settled(failed=False)
    assert proposals.may_propose


def test_what_won_may_be_known_before_the_outcome_is():
    ctx, knowledge = Context(), knowing(1)
    proposals = Proposals(ctx, knowledge)
    proposals.propose(Topology(2))
    knowledge.learn(Topology(2, revoked=("q-9",)), 2)
    proposals.settled(failed=True)
    assert proposals.may_propose, "it was made from what is no longer the newest"


def test_one_made_without_a_revision_is_made_again_once_that_is_known():
    ctx, knowledge = Context(), knowing(1)
    knowledge.learn(Topology(2), -1)
    proposals = Proposals(ctx, knowledge)
    proposals.propose(Topology(3))
    proposals.settled(failed=True)
    assert not proposals.may_propose
    knowledge.learn(Topology(2), 7)
    assert proposals.may_propose


def test_a_freeze_that_nobody_ends_is_ended_by_the_next_generation():
    ctx, knowledge = Context(), knowing(1)
    proposals = Proposals(ctx, knowledge)
    frozen = Frozen(ctx, knowledge, proposals)
    frozen.freeze(1)
    assert frozen.stands
    assert frozen.deadline() == limits.frozen_max_s
    ctx.now = limits.frozen_max_s
    frozen.tick()
    (proposed,) = of(ctx.out, Propose)
    assert proposed.topology == replace(knowledge.topology, generation=2)
    assert frozen.deadline() == FOREVER, "one at a time"
    frozen.thaw(1)
    assert frozen.stands
    frozen.thaw(2)
    assert not frozen.stands


def test_a_keeper_leaves_the_end_of_a_freeze_to_the_managers():
    ctx = Context()
    frozen = Frozen(ctx, knowing(1), None)
    frozen.freeze(1)
    assert frozen.deadline() == FOREVER


# -- leaders -------------------------------------------------------------------------------------------------


def dropped(effects, member):
    return any(
        member not in (*item.topology.find("q").members, *item.topology.find("q").joining)
        for item in of(effects, Propose)
    )


def test_a_member_that_is_revoked_is_dropped_at_once():
    rig = primary_of(DATA, "q", at(1, "q-2"))
    rig.members(q_1="q", q_2="q")
    assert dropped(rig.learn(at(2, "q-2", revoked=("q-2",))), "q-2")


def test_what_was_lost_is_not_sent_while_the_connection_is_down():
    rig = primary_of(DATA, "q", at(1, "q-2"))
    rig.members(q_1="q", q_2="q")
    rig.get("q-2", RecordAck("q", 1, 0, 0))
    rig.step(PeerDown("q-2"))
    rig.token("F-1", value("F", R0, "0/0", dep("q", 0, 0)[:0]))
    assert of(rig.run(), StateRecord, "q-2")
    assert not of(rig.after(2 * limits.resend_after_s), StateRecord)
    assert of(rig.step(PeerUp("q-2")), StateRecord, "q-2")


def test_whoever_has_asked_to_leave_is_not_called_in_its_own_place():
    rig = primary_of(DATA, "q", at(1, "q-2", "q-3"))
    rig.members(q_1="q", q_2="q", q_3="q")
    for member in ("q-2", "q-3"):
        rig.get(member, RecordAck("q", 1, 0, 0))
    assert dropped(rig.get("q-2", Leave("q", 1)), "q-2"), "the other one stays"
    rig.get("q-3", Leave("q", 1))
    rig.step(CasSettled(at(2, "q-3"), 2, committed=True))
    assert dropped(rig.after(limits.leave_wait_s), "q-3")
    assert not [item for item in of(rig.all, Propose) if item.topology.find("q").joining], (
        "q-2 is registered until it ends"
    )


def test_nothing_is_handed_over_to_whom_the_primary_cannot_reach():
    rig = primary_of(DATA, "q", at(1, "q-2"))
    rig.members(q_1="q", q_2="q")
    rig.get("q-2", RecordAck("q", 1, 0, 0))
    rig.step(PeerDown("q-2"))
    effects = rig.step(Drain())
    assert not [item for item in of(effects, Propose) if item.topology.find("q").primary == "q-2"]
    effects = rig.step(PeerUp("q-2"))
    assert [item for item in of(effects, Propose) if item.topology.find("q").primary == "q-2"]


def test_a_handover_whose_outcome_is_not_known_is_proposed_again_while_there_is_a_successor():
    rig = primary_of(DATA, "q", at(1, "q-2"))
    rig.members(q_1="q", q_2="q")
    rig.get("q-2", RecordAck("q", 1, 0, 0))
    first = of(rig.step(Drain()), Propose)
    rig.step(CasUnknown())
    again = of(rig.after(limits.propose_retry_s), Propose)
    assert [item.topology for item in again] == [item.topology for item in first]


def test_a_joiner_that_asked_before_it_was_named_is_not_heard():
    rig = primary_of(DATA, "q", at(3, joining=("q-2",)))
    assert rig.get("q-2", AskCopy("q", 1, -1, 2)) == []
    assert rig.get("q-2", AskCopy("q", 2, -1, 3)) == [], "of another epoch"
