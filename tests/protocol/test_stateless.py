"""Slots and fan-out (section 4): a new owner asks before it emits, takes over what was delivered, and hands a
slot over when it is done."""

from dataclasses import replace

from kit import R0, R1, Rig, active_of, graph, of, op, rset, skip, table, topo, value

from hams_protocol import limits
from hams_protocol.deps import Dep
from hams_protocol.effects import NoteExec, Propose, StartBatch, Stop
from hams_protocol.events import BatchFailed, CasSettled, CasUnknown, Drain, ModelDied, ModelReady
from hams_protocol.graph import FEEDBACK, FRONTEND, Feedback
from hams_protocol.ids import RequestId
from hams_protocol.messages import (
    Attempt,
    AttemptAck,
    Completion,
    Deliver,
    Health,
    Kind,
    Probe,
    ProbeAnswer,
    SlotAnswer,
    SlotQuery,
    Suspect,
    TokenAcks,
    TopologyNews,
)
from hams_protocol.stateless import StatelessMachine


def fan_out():
    return graph(op("b", FRONTEND, to=("c", "d")), op("c", "b"), op("d", "b", stateful=True))


REST = (table("c", ("c-1", 1)), rset("d", "d-1", "d-2"))


def owner(instance="b-2", epoch=2, generation=2):
    revoked = ("b-1",) if epoch > 1 else ()
    return active_of(
        fan_out(), "b", instance, topo(generation, table("b", (instance, epoch)), *REST, revoked=revoked)
    )


def asked(effects):
    return sorted(
        effect.target for effect in effects if getattr(effect, "message", None) == SlotQuery("b", 0, 2)
    )


def answered(rig, *tokens):
    rig.get("c-1", SlotAnswer("b", 0, 2, tokens))
    return rig.get("d-1", SlotAnswer("b", 0, 2, (), ("d", 1)))


def test_a_model_that_starts_is_not_dead():
    rig = Rig(StatelessMachine(fan_out(), "b", "b-1"))
    health = [of(rig.get("m-1", Probe(1)), ProbeAnswer)[0].health]
    for event in (ModelReady("", None), ModelDied("it crashed"), ModelReady("", None)):
        rig.step(event)
        health.append(of(rig.get("m-1", Probe(1)), ProbeAnswer)[0].health)
    assert health == [Health.HEALTHY, Health.HEALTHY, Health.MODEL_DEAD, Health.HEALTHY]


def test_a_first_owner_asks_nobody():
    rig = owner("b-1", epoch=1, generation=1)
    assert of(rig.token("F-1", value("F", R0, "0/0")), StartBatch)


def test_a_new_owner_asks_all_of_a_stateless_successor_and_the_leader_of_a_set_before_it_emits():
    rig = owner()
    assert asked(rig.all) == ["c-1", "d-1"]
    assert not of(rig.token("F-1", value("F", R0, "0/0")), StartBatch)
    assert not of(rig.get("c-1", SlotAnswer("b", 0, 2, ())), StartBatch)
    assert of(rig.get("d-1", SlotAnswer("b", 0, 2, (), ("d", 1))), StartBatch)


def test_a_new_owner_asks_every_shard_where_it_has_a_sink():
    data = graph(op("b", FRONTEND, to=("d", FRONTEND)), op("d", "b", stateful=True), shards=2)
    shards = (rset("F/0", "F-1", "F-2", epoch=3), rset("F/1", "F-2", "F-1"))
    rig = active_of(data, "b", "b-2", topo(2, table("b", ("b-2", 2)), rset("d", "d-1"), *shards))
    assert asked(rig.all) == ["F-1", "F-2", "d-1"]
    rig.token("F-1", value("F", R0, "0/0"), epoch=3)
    rig.get("d-1", SlotAnswer("b", 0, 2, (), ("d", 1)))
    rig.get("F-1", SlotAnswer("b", 0, 2, (), ("F/0", 3)))
    assert not of(rig.get("F-1", SlotAnswer("b", 0, 2, (), ("F/0", 3))), StartBatch)
    assert of(rig.get("F-2", SlotAnswer("b", 0, 2, (), ("F/1", 1))), StartBatch)


def test_who_does_not_answer_is_asked_again_until_the_topology_drops_it():
    rig = owner()
    assert asked(rig.after(2 * limits.resend_after_s)) == ["c-1", "d-1"]
    rig.token("F-1", value("F", R0, "0/0"))
    rig.get("d-1", SlotAnswer("b", 0, 2, (), ("d", 1)))
    rest = (table("c", ("c-2", 2)), REST[1])
    assert of(rig.learn(topo(3, table("b", ("b-2", 2)), *rest, revoked=("b-1", "c-1"))), StartBatch)


def failed_over(rig):
    """The leader of a successor's set, which has not answered, is replaced."""
    rest = (REST[0], rset("d", "d-2", epoch=2, ends=((1, 4),)))
    return rig.learn(topo(3, table("b", ("b-2", 2)), *rest, revoked=("b-1", "d-1")))


def test_a_set_whose_leader_died_before_it_answered_must_answer_by_its_new_leader():
    rig = owner()
    rig.token("F-1", value("F", R0, "0/0"))
    rig.get("c-1", SlotAnswer("b", 0, 2, ()))
    effects = failed_over(rig)
    assert asked(effects) == ["d-2"]
    assert not of(effects, StartBatch)
    result = value("b", R0, "b-1:7", route=("c", "d"), fan=(("b", "b-1:7"),))
    effects = rig.get("d-2", SlotAnswer("b", 0, 2, (result,), ("d", 2)))
    assert [item.token.value_id for item in of(effects, Deliver)] == ["b-1:7", "b-1:7"]
    assert not of(effects, StartBatch)


def test_a_followers_answer_is_not_its_sets():
    rig = owner()
    assert "d-2" not in asked(rig.all)
    rig.token("F-1", value("F", R0, "0/0"))
    rig.get("c-1", SlotAnswer("b", 0, 2, ()))
    result = value("b", R0, "b-1:7", route=("c", "d"))
    assert not rig.get("d-2", SlotAnswer("b", 0, 2, (result,))), "who is asked for nobody is not believed"


def test_who_led_a_set_when_it_answered_has_answered_for_its_successors():
    rig = owner()
    rig.token("F-1", value("F", R0, "0/0"))
    rig.get("d-1", SlotAnswer("b", 0, 2, (), ("d", 1)))
    assert not asked(failed_over(rig))
    assert of(rig.get("c-1", SlotAnswer("b", 0, 2, ())), StartBatch)


def test_an_answer_of_an_epoch_that_had_ended_when_the_slot_moved_does_not_count():
    rest = (REST[0], rset("d", "d-1", epoch=2, ends=((1, 4),)))
    rig = active_of(fan_out(), "b", "b-2", topo(2, table("b", ("b-2", 2)), *rest, revoked=("b-1",)))
    rig.token("F-1", value("F", R0, "0/0"))
    rig.get("c-1", SlotAnswer("b", 0, 2, ()))
    assert not of(rig.get("d-1", SlotAnswer("b", 0, 2, (), ("d", 1))), StartBatch)
    assert asked(rig.after(2 * limits.resend_after_s)) == ["d-1"]
    assert of(rig.get("d-1", SlotAnswer("b", 0, 2, (), ("d", 2))), StartBatch)


def again():
    """A slot that has come back before its owner has heard that it was gone: two moves lie between."""
    rig = owner()
    rig.token("F-1", value("F", R0, "0/0"))
    effects = rig.learn(topo(4, table("b", ("b-2", 4)), *REST, revoked=("b-1", "b-3")))
    return rig, [
        effect.target for effect in effects if getattr(effect, "message", None) == SlotQuery("b", 0, 4)
    ]


def test_a_slot_that_comes_back_while_its_owner_asks_is_asked_for_again_in_its_new_epoch():
    rig, targets = again()
    assert targets == ["c-1", "d-1"]
    rig.get("c-1", SlotAnswer("b", 0, 4, ()))
    assert of(rig.get("d-1", SlotAnswer("b", 0, 4, (), ("d", 1))), StartBatch)


def test_what_was_answered_before_a_slot_came_back_does_not_count():
    rig, _ = again()
    rig.get("c-1", SlotAnswer("b", 0, 2, ()))
    assert not of(rig.get("d-1", SlotAnswer("b", 0, 2, (), ("d", 1))), StartBatch), (
        "another owner has been there since"
    )
    rig.get("c-1", SlotAnswer("b", 0, 4, ()))
    assert of(rig.get("d-1", SlotAnswer("b", 0, 4, (), ("d", 1))), StartBatch)


def test_a_set_without_a_living_leader_is_waited_for():
    rig = owner()
    rig.token("F-1", value("F", R0, "0/0"))
    rig.get("c-1", SlotAnswer("b", 0, 2, ()))
    effects = rig.learn(topo(3, table("b", ("b-2", 2)), *REST, revoked=("b-1", "d-1")))
    assert not asked(effects)
    assert not of(effects, StartBatch)
    assert not asked(rig.after(2 * limits.resend_after_s))


def test_a_value_found_goes_to_the_other_successors_under_its_old_id_and_is_not_computed_again():
    rig = owner()
    rig.token("F-1", value("F", R0, "0/0"))
    result = value("b", R0, "b-1:7", route=("c", "d"), fan=(("b", "b-1:7"),))
    effects = rig.get("c-1", SlotAnswer("b", 0, 2, (result,)))
    assert [(item.target, item.token.value_id) for item in of(effects, Deliver)] == [
        ("c", "b-1:7"),
        ("d", "b-1:7"),
    ]
    assert not of(rig.get("d-1", SlotAnswer("b", 0, 2, (), ("d", 1))), StartBatch)


def test_those_not_on_the_route_of_a_value_found_get_its_skip():
    effects = owner().get("c-1", SlotAnswer("b", 0, 2, (value("b", R0, "b-1:7", route=("c",)),)))
    assert [(item.target, item.token.kind, item.token.value_id) for item in of(effects, Deliver)] == [
        ("c", Kind.VALUE, "b-1:7"),
        ("d", Kind.SKIP, "b-1:7!"),
    ]


def test_if_only_a_skip_arrived_the_value_is_computed_again_and_the_route_kept():
    rig = owner()
    rig.token("F-1", value("F", R0, "0/0"))
    effects = answered(rig, replace(skip("b", R0, "b-1:7!"), route=("d",)))
    assert of(effects, StartBatch)
    assert of(rig.done(updated=False, route=("c",)), NoteExec)[0].route == ("d",)


def test_an_error_keeps_the_route_of_which_a_skip_arrived():
    rig = owner()
    rig.token("F-1", value("F", R0, "0/0"))
    effects = answered(rig, replace(skip("b", R0, "b-1:7!"), route=("d",)))
    assert of(effects, StartBatch)
    effects = rig.step(BatchFailed(rig.batch, "it raised", False))
    assert of(effects, NoteExec)[0].route == ("d",), "whoever has got a skip may have consumed it"


def test_every_token_of_a_fan_out_names_its_route_and_its_execution():
    rig = owner("b-1", epoch=1, generation=1)
    rig.token("F-1", value("F", R0, "0/0"))
    sent = [item.token for item in of(rig.done(updated=False, route=("d",)), Deliver)]
    assert [(token.kind, token.route) for token in sent] == [(Kind.SKIP, ("d",)), (Kind.VALUE, ("d",))]
    assert sent[1].fan == (("b", sent[1].value_id),)


def test_a_successor_fences_the_old_owner_before_it_answers():
    rig = active_of(fan_out(), "c", "c-1", topo(1, table("b", ("b-1", 1)), *REST))
    rig.token("b-1", value("b", R0, "b-1:1"))
    (answer,) = of(rig.get("b-2", SlotQuery("b", 0, 2)), SlotAnswer)
    assert [token.value_id for token in answer.tokens] == ["b-1:1"]
    effects = rig.token("b-1", value("b", R1, "b-1:2"))
    assert not of(effects, StartBatch)
    assert of(effects, TopologyNews, "b-1")


def test_a_successor_retains_fan_out_inputs_until_the_request_completes():
    rig = active_of(fan_out(), "c", "c-1", topo(1, table("b", ("b-1", 1)), *REST))
    rig.token("b-1", value("b", R0, "b-1:1"))
    rig.done(updated=False)
    assert of(rig.get("b-2", SlotQuery("b", 0, 2)), SlotAnswer)[0].tokens
    rig.get("F-1", Completion(((0, 1, ()),)))
    assert not of(rig.get("b-2", SlotQuery("b", 0, 2)), SlotAnswer)[0].tokens


def test_who_has_handed_a_slot_over_tells_what_it_had_received_until_the_request_completes():
    rig = active_of(fan_out(), "c", "c-1", topo(1, table("b", ("b-1", 1)), *REST))
    rig.token("b-1", value("b", R0, "b-1:1"))
    rig.done(updated=False)
    rig.token("b-1", value("b", R1, "b-1:2"))
    rig.learn(topo(2, table("b", ("b-1", 1)), table("c", ("c-2", 2)), REST[1]))
    tokens = of(rig.get("b-2", SlotQuery("b", 0, 2)), SlotAnswer)[0].tokens
    assert sorted(token.value_id for token in tokens) == ["b-1:1", "b-1:2"]
    rig.get("F-1", Completion(((0, 1, ()),)))
    assert [token.value_id for token in of(rig.get("b-2", SlotQuery("b", 0, 2)), SlotAnswer)[-1].tokens] == [
        "b-1:2"
    ]


def test_what_came_again_for_a_slot_that_is_back_counts_and_what_became_orphan_does_not():
    data = graph(
        op("a", FRONTEND, stateful=True),
        op("b", "a", to=("c", "d")),
        op("c", "b"),
        op("d", "b", stateful=True),
    )
    rest = (rset("a", "a-1", "a-2"), table("b", ("b-1", 1)), REST[1])
    rig = active_of(data, "c", "c-1", topo(1, *rest, table("c", ("c-1", 1))))
    rig.token("b-1", value("b", R0, "b-1:1", (Dep("a", 1, 1),)))
    rig.token("b-1", value("b", R1, "b-1:2", (Dep("a", 1, 2),)))
    rig.learn(topo(2, *rest, table("c", ("c-2", 2))))
    rest = (rset("a", "a-2", epoch=2, ends=((1, 1),)), *rest[1:])
    rig.learn(topo(3, *rest, table("c", ("c-1", 3)), revoked=("a-1", "c-2")))
    assert [token.value_id for token in of(rig.get("b-2", SlotQuery("b", 0, 2)), SlotAnswer)[-1].tokens] == [
        "b-1:1"
    ]
    rig.token("b-2", value("b", R0, "b-2:1"), epoch=2)
    assert [token.value_id for token in of(rig.get("b-3", SlotQuery("b", 0, 3)), SlotAnswer)[-1].tokens] == [
        "b-2:1"
    ]


def test_a_slot_moves_once_its_owner_has_delivered_everything_it_executed():
    rig = owner("b-1", epoch=1, generation=1)
    rig.members(b_1="b", b_9="b")
    rig.token("F-1", value("F", R0, "0/0"))
    rig.done(updated=False)
    successor = topo(2, table("b", ("b-1", 1), successor="b-9"), *REST)
    assert not of(rig.learn(successor), Propose), "request 0 is not complete"
    assert not of(rig.token("F-1", value("F", R1, "0/1")), StartBatch), "and nothing new begins"
    (proposed,) = of(rig.get("F-1", Completion(((0, 1, ()),))), Propose)
    slot = proposed.topology.table("b").slots[0]
    assert (slot.instance, slot.epoch, slot.successor) == ("b-9", 2, None)


def test_what_precedes_a_request_that_a_leaving_owner_has_begun_waits_for_no_successor():
    """Seed 4046236: two operators were to hand over a slot. One had run the first of two requests and held
    the second back, the other the other way round: neither request was ever complete, so neither slot
    moved."""
    rig = owner("b-1", epoch=1, generation=1)
    rig.members(b_1="b", b_9="b")
    rig.token("F-1", value("F", R1, "0/1"))
    rig.done(updated=False)
    rig.learn(topo(2, table("b", ("b-1", 1), successor="b-9"), *REST))
    assert of(rig.token("F-1", value("F", R0, "0/0")), StartBatch)
    rig.done(updated=False)
    assert not of(rig.token("F-1", value("F", RequestId(0, 2), "0/2")), StartBatch)
    assert of(rig.get("F-1", Completion(((0, 2, ()),))), Propose)


def test_nothing_of_a_slot_begins_while_its_move_may_be_committed():
    """Seed 50 of slots-pass: the shard that numbers slower sent a request that precedes what had begun. It
    ran while the commit was under way, and at the successor again."""
    rig = owner("b-1", epoch=1, generation=1)
    rig.members(b_1="b", b_9="b")
    rig.token("F-1", value("F", R1, "0/1"))
    rig.done(updated=False)
    named = topo(2, table("b", ("b-1", 1), successor="b-9"), *REST)
    rig.learn(named)
    assert of(rig.get("F-1", Completion(((0, 0, (1,)),))), Propose)
    assert not of(rig.token("F-1", value("F", R0, "0/0")), StartBatch)
    rig.step(CasUnknown())
    assert not of(rig.all, StartBatch)[1:], "nobody knows yet"
    other = topo(3, table("b", ("b-1", 1), successor="b-9"), *REST)
    assert of(rig.step(CasSettled(other, 3, committed=False)), StartBatch), "it has not moved"


def test_a_move_of_unknown_outcome_without_a_successor_is_settled_and_the_slot_goes_on():
    rig = owner("b-1", epoch=1, generation=1)
    rig.members(b_1="b", b_9="b")
    rig.token("F-1", value("F", R1, "0/1"))
    rig.done(updated=False)
    rig.step(Drain())
    (proposed,) = of(rig.get("F-1", Completion(((0, 0, (1,)),))), Propose)
    rig.step(CasUnknown())
    rig.members(b_1="b")
    assert not of(rig.token("F-1", value("F", R0, "0/0")), StartBatch)
    settling = of(rig.after(2 * limits.propose_retry_s), Propose)[-1]
    assert settling.revision == proposed.revision, "one of the two is committed at most"
    assert settling.topology.table("b") == table("b", ("b-1", 1))
    assert of(rig.step(CasSettled(settling.topology, 2, committed=True)), StartBatch)
    assert rig.units == (R0,)


def test_a_successor_is_told_what_is_complete_before_the_slot_moves():
    """The owner knew that a request was complete, and neither its successor nor who had sent it: the
    successor was sent it, and executed it again."""
    rig = owner("b-1", epoch=1, generation=1)
    rig.members(b_1="b", b_9="b")
    rig.token("F-1", value("F", R0, "0/0"))
    rig.done(updated=False)
    rig.step(Drain())
    effects = rig.get("F-1", Completion(((0, 1, ()),)))
    assert of(effects, Completion, "b-9") == [Completion(((0, 1, ()),))]
    assert len(of(effects, Propose)) == 1


def test_a_slot_goes_to_nobody_who_has_handed_over_all_that_it_had_or_is_not_registered():
    both = topo(1, table("b", ("b-1", 1), ("b-9", 1)), *REST)
    data = graph(op("b", FRONTEND, to=("c", "d"), slots=2), op("c", "b"), op("d", "b", stateful=True))
    rig = active_of(data, "b", "b-9", both)
    rig.members(b_1="b", b_9="b")
    (proposed,) = of(rig.step(Drain()), Propose)
    assert proposed.topology.table("b").slots[1].instance == "b-1"
    # b-1 was faster: it has left its slot to b-9, and is still registered
    won = topo(2, table("b", ("b-9", 2), ("b-9", 1)), *REST)
    assert not of(rig.step(CasSettled(won, 2, committed=False)), Propose)
    assert not of(rig.after(2 * limits.propose_retry_s), Propose)
    (proposed,) = of(rig.members(b_1="b", b_9="b", b_5="b"), Propose)
    assert [slot.instance for slot in proposed.topology.table("b").slots] == ["b-9", "b-5"]


def test_a_topology_from_a_peer_has_the_revision_that_a_proposal_needs():
    rig = owner("b-1", epoch=1, generation=1)
    rig.members(b_1="b", b_9="b")
    named = topo(2, table("b", ("b-1", 1), successor="b-9"), *REST)
    (proposed,) = of(rig.get("c-1", TopologyNews(named, 17)), Propose)
    assert proposed.revision == 17


def test_what_came_first_no_longer_waits_once_a_later_request_is_begun():
    rig = owner("b-1", epoch=1, generation=1)
    rig.token("F-1", value("F", R1, "0/1"))
    rig.learn(topo(2, table("b", ("b-1", 1), successor="b-9"), *REST))
    assert not of(rig.token("F-1", value("F", R0, "0/0")), StartBatch), "nothing has an output yet"
    assert of(rig.done(updated=False), StartBatch)
    assert rig.units == (R0,)


def test_a_draining_instance_leaves_when_its_slots_are_gone():
    rig = owner("b-1", epoch=1, generation=1)
    rig.members(b_1="b", b_9="b")
    (proposed,) = of(rig.step(Drain()), Propose)
    effects = rig.learn(proposed.topology)
    assert isinstance(effects[-1], Stop)


def test_a_model_that_dies_names_its_requests_upstream_and_itself_to_the_managers():
    rig = owner("b-1", epoch=1, generation=1)
    rig.members(m_1="manager")
    rig.token("F-1", value("F", R0, "0/0"))
    effects = rig.step(ModelDied("killed"))
    assert of(effects, Suspect, "m-1")
    assert not of(rig.token("F-1", value("F", R1, "0/1")), StartBatch)
    (named,) = of(effects, Attempt)
    rig.get("F-1", AttemptAck("F", R0, (), named.serial))
    (announced,) = of(rig.ready(), Attempt)
    assert of(rig.get("F-1", AttemptAck("F", R0, (), announced.serial)), StartBatch)
    assert rig.units == (R0,), "the suspect runs alone"


def test_an_error_goes_to_every_successor_but_not_round_a_feedback_edge():
    looped = replace(op("b", FRONTEND, to=("c", FRONTEND)), feedback=Feedback((("a", "a"),), 3))
    rig = active_of(
        graph(looped, op("c", "b")), "b", "b-1", topo(1, table("b", ("b-1", 1)), table("c", ("c-1", 1)))
    )
    rig.token("F-1", value("F", R0, "0/0"))
    kinds = {item.target: item.token.kind for item in of(rig.done(updated=False, error="no"), Deliver)}
    assert kinds == {"c": Kind.ERROR, FRONTEND: Kind.ERROR, FEEDBACK: Kind.SKIP}


def test_acknowledgements_wait_for_company_and_are_not_sent_for_what_completed_meanwhile():
    rig = owner("b-1", epoch=1, generation=1)
    rig.token("F-1", value("F", R0, "0/0"))
    rig.token("F-1", value("F", R1, "0/1"))
    rig.get("F-1", Completion(((0, 1, ()),)))
    (message,) = of(rig.after(2 * limits.ack_delay_s), TokenAcks)
    assert [ack.unit.request for ack in message.acks] == [R1]
