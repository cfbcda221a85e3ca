"""A primary (section 2): speculation, the window, durability, undoing, and the planned handoff."""

from dataclasses import replace

import pytest
from kit import R0, R1, R2, R3, P, Rig, dep, graph, of, op, primary_of, rset, skip, table, topo, value

from hams_protocol import limits
from hams_protocol.deps import Dep
from hams_protocol.effects import (
    AbandonBatch,
    Capture,
    EnterUpdate,
    LoadState,
    NoteDurable,
    NoteExec,
    Propose,
    Send,
    StartBatch,
)
from hams_protocol.events import (
    BatchDone,
    BatchFailed,
    CasSettled,
    CasUnknown,
    Drain,
    ModelDied,
    PeerDown,
    PeerUp,
    Tick,
    UnitResult,
)
from hams_protocol.graph import FRONTEND, RecoverySpec, WhenUnprotected
from hams_protocol.messages import (
    AskCopy,
    AskDurable,
    Attempt,
    AttemptAck,
    Completion,
    Deliver,
    Durable,
    Fence,
    Health,
    Leave,
    Probe,
    ProbeAnswer,
    RecordAck,
    StateCopy,
    StateRecord,
)
from hams_protocol.stateful.machine import StatefulMachine


def line(window=4, block=False, rows=1):
    policy = RecoverySpec(when_unprotected=WhenUnprotected.BLOCK if block else WhenUnprotected.CONTINUE)
    return graph(
        op("p", FRONTEND, to=("q",), stateful=True),
        op("q", "p", to=("r",), stateful=True, window=window, rows=rows),
        op("r", "q"),
        recovery=policy,
    )


def at(generation=1, *in_sync, p=None, joining=(), epoch=1):
    return topo(
        generation,
        p or rset("p", "p-1", "p-2"),
        rset("q", "q-1", *in_sync, joining=joining, epoch=epoch),
        table("r", ("r-1", 1)),
    )


P_FAILED = rset("p", "p-2", epoch=2, ends=((1, 9),))


def primary(*in_sync, **policy):
    rig = primary_of(line(**policy), "q", at(1, *in_sync))
    for member in in_sync:
        rig.get(member, RecordAck("q", 1, 0, 0))
    return rig


def feed(rig, request, deps=()):
    return rig.token("p-1", value("p", request, f"p:{request.n}", deps))


def settle(effects, version):
    """Whether this version was called durable."""
    return [note.version for note in of(effects, NoteDurable)] == [version]


def test_outputs_leave_at_once_and_depend_on_the_version_they_were_released_with():
    rig = primary("q-2")
    feed(rig, R0, dep("p", 1, 3))
    rig.want()
    effects = rig.done()
    (sent,) = of(effects, Deliver)
    assert sent.token.deps == (Dep("p", 1, 3), Dep("q", 1, 1))
    assert of(effects, Capture) == [Capture(1)]
    assert not of(effects, StateRecord), "the record follows when the capture is complete"
    kinds = [type(effect) for effect in effects]
    assert kinds.index(NoteExec) < kinds.index(Send), "the history's line stands before its effect"


def test_dependencies_are_transitive_over_the_state():
    rig = primary("q-2")
    feed(rig, R0, dep("p", 1, 3))
    rig.run()
    feed(rig, R1)
    assert of(rig.run(), Deliver)[0].token.deps == (Dep("p", 1, 3), Dep("q", 1, 2))


def test_all_units_of_a_batch_depend_on_its_version():
    rig = primary("q-2", rows=3)
    feed(rig, R0)
    feed(rig, R1)
    feed(rig, R2)
    rig.run()
    effects = rig.run()
    assert [(note.seq, note.version) for note in of(effects, NoteExec)] == [(2, 3), (3, 3)]
    assert {item.token.deps for item in of(effects, Deliver)} == {dep("q", 1, 3)}


def test_a_unit_of_skips_takes_a_seq_and_a_record_but_no_model_and_no_capture():
    rig = primary("q-2")
    effects = rig.token("p-1", skip("p", R0, "p:0!", dep("p", 1, 3)))
    assert not of(effects, StartBatch)
    (record,) = of(effects, StateRecord)
    assert (record.version, record.state, record.deps) == (1, None, (Dep("p", 1, 3), Dep("q", 1, 1)))
    assert of(effects, Deliver)[0].token.deps == record.deps


def test_the_update_is_entered_only_when_the_version_before_is_captured():
    rig = primary("q-2")
    feed(rig, R0)
    feed(rig, R1)
    rig.want()
    effects = rig.done()
    assert of(effects, StartBatch), "the next compute stage runs beside the capture"
    assert not of(rig.want(), EnterUpdate)
    assert of(rig.capture(effects), EnterUpdate)


def test_who_does_not_ask_yet_is_let_in_as_soon_as_nothing_stands_against_it():
    rig = primary("q-2")
    feed(rig, R0)
    feed(rig, R1)
    effects = rig.done()
    assert not of(effects, StartBatch)[0].enter, "the version before is still being captured"
    assert of(rig.capture(effects), EnterUpdate) == [EnterUpdate(rig.batch)]
    assert not of(rig.after(1.0), EnterUpdate), "said once"
    assert of(rig.want(), EnterUpdate), "and again to who asks all the same"


def test_who_asks_while_it_is_let_in_hears_the_same_though_a_fence_has_come():
    rig = primary("q-2")
    feed(rig, R0)
    feed(rig, R1, dep("p", 1, 10))
    effects = rig.done()
    assert of(rig.capture(effects), EnterUpdate)
    rig.get("m-1", Fence(1, 1, "q", dep("p", 1, 5)))
    assert of(rig.want(), EnterUpdate)
    effects = rig.done()
    assert of(effects, LoadState), "the fence undoes it"
    assert not of(effects, EnterUpdate)


def test_a_full_window_holds_the_next_update_and_drops_nothing():
    rig = primary("q-2", window=2)
    for request in (R0, R1, R2):
        feed(rig, request)
    rig.run()
    rig.run()
    assert not of(rig.want(), EnterUpdate)
    assert of(rig.get("q-2", RecordAck("q", 1, 1, 1)), EnterUpdate)


def test_large_states_shrink_the_window_to_one(monkeypatch):
    monkeypatch.setattr(limits, "retained_state_bytes_max", 15)
    rig = primary("q-2")
    feed(rig, R0)
    feed(rig, R1)
    rig.run()
    assert not of(rig.want(), EnterUpdate)
    assert of(rig.get("q-2", RecordAck("q", 1, 1, 1)), EnterUpdate)


def test_a_large_record_leaves_when_the_one_before_has_arrived(monkeypatch):
    monkeypatch.setattr(limits, "flight_bytes_max", 10)
    rig = primary("q-2")
    feed(rig, R0)
    first = rig.run()
    feed(rig, R1)
    second = rig.run()
    assert [record.version for record in of(first + second, StateRecord, "q-2")] == [1], (
        "a connection would drop what waits behind so much"
    )
    assert [record.version for record in of(rig.get("q-2", RecordAck("q", 1, 1, 0)), StateRecord, "q-2")] == [
        2
    ]


def test_a_backup_has_the_time_that_a_large_record_takes(monkeypatch):
    monkeypatch.setattr(limits, "stream_floor_bytes_s", 1)
    rig = primary("q-2")
    rig.members(q_2="q")
    feed(rig, R0)
    (record,) = of(rig.run(), StateRecord, "q-2")
    travels_s = record.state.nbytes + record.units[0].outputs[0][1].payload.nbytes
    again, ticks = [], 0
    while rig.machine.deadline() < limits.backup_lag_max_s + 2 * travels_s:
        rig.now = rig.machine.deadline()
        effects = rig.step(Tick())
        assert not of(effects, Propose)
        again += [rig.now] if of(effects, StateRecord, "q-2") else []
        ticks += 1
    assert [round(at, 2) for at in again] == [
        travels_s + limits.resend_after_s,
        2 * (travels_s + limits.resend_after_s),
    ]
    assert ticks < 1000, "it waits without turning round and round"
    (proposed,) = of(rig.after(0.1), Propose)
    assert proposed.topology.find("q").in_sync == ()


def test_a_version_is_durable_when_the_whole_ack_set_has_applied_it():
    rig = primary("q-2", "q-3")
    feed(rig, R0)
    rig.run()
    assert not of(rig.get("q-2", RecordAck("q", 1, 1, 1)), NoteDurable)
    assert not of(rig.get("q-3", RecordAck("q", 1, 1, 0)), NoteDurable), "receipt is not apply"
    effects = rig.get("q-3", RecordAck("q", 1, 1, 1))
    assert settle(effects, 1)
    assert of(effects, Durable, "F-1") == [Durable(dep("q", 1, 1))]


def test_an_acknowledgement_of_another_epoch_does_not_count():
    rig = primary("q-2")
    feed(rig, R0)
    rig.run()
    assert not of(rig.get("q-2", RecordAck("q", 0, 1, 1)), NoteDurable)


def test_alone_a_version_is_durable_once_its_deps_on_others_are():
    rig = primary()
    feed(rig, R0, dep("p", 1, 3))
    assert not of(rig.run(), NoteDurable)
    assert settle(rig.get("p-1", Durable(dep("p", 1, 3))), 1)


def test_under_block_nothing_is_durable_without_a_backup_in_sync():
    rig = primary(block=True)
    feed(rig, R0)
    assert not of(rig.run(), NoteDurable)
    assert not of(rig.learn(at(2, joining=("q-2",))), NoteDurable)
    rig.learn(at(3, "q-2"))
    assert settle(rig.get("q-2", RecordAck("q", 1, 1, 1)), 1)


def test_who_waits_for_notices_asks_for_them_and_is_answered():
    rig = primary()
    feed(rig, R0, dep("p", 1, 3))
    rig.run()
    assert of(rig.after(2 * limits.ask_after_s), AskDurable, "p-1")
    assert of(rig.get("r-1", AskDurable("q")), Durable) == [Durable(dep("q", 1, 0))]


def test_an_input_orphaned_before_the_update_leaves_the_batch_and_the_others_run_again():
    rig = primary("q-2", rows=2)
    feed(rig, R0)
    feed(rig, R1, dep("p", 1, 10))
    feed(rig, R2)
    effects = rig.done()
    assert rig.units == (R1, R2)
    rig.learn(at(2, "q-2", p=P_FAILED))
    effects = rig.capture(effects)
    assert not of(effects, EnterUpdate)
    assert not of(effects, AbandonBatch), "it may never write"
    assert of(rig.want(), AbandonBatch)
    assert not of(rig.after(1.0), EnterUpdate)
    effects = rig.step(BatchFailed(rig.batch, "abandoned", False))
    assert of(effects, StartBatch)
    assert rig.units == (R2,)


def test_an_input_orphaned_during_the_update_undoes_the_batch():
    rig = primary("q-2")
    feed(rig, R0, dep("p", 1, 10))
    rig.want()
    rig.learn(at(2, "q-2", p=P_FAILED))
    effects = rig.done()
    assert not of(effects, NoteExec)
    assert of(effects, LoadState)[0].state == P("state 0"), "the version captured before"


def test_an_input_fenced_during_the_update_undoes_the_batch_and_waits():
    rig = primary("q-2")
    feed(rig, R0, dep("p", 1, 10))
    rig.want()
    rig.get("m-1", Fence(1, 1, "q", dep("p", 1, 9)))
    effects = rig.done()
    assert of(effects, LoadState)
    assert not of(rig.loaded(effects), StartBatch)
    assert of(rig.learn(at(2, "q-2")), StartBatch), "another attempt has won: the dependency may yet survive"


def test_an_error_of_the_model_is_a_value():
    rig = primary("q-2")
    feed(rig, R0)
    effects = rig.step(BatchFailed(rig.batch, "no", False))
    assert of(effects, Deliver)[0].token.error.message == "no"
    assert of(effects, StateRecord)[0].units[0].unit.request == R0, "and its unit is consumed"


def test_units_of_a_batch_that_raised_run_one_per_batch():
    rig = primary("q-2", rows=4)
    feed(rig, R0)
    feed(rig, R1)
    feed(rig, R2)
    rig.run()
    assert rig.units == (R1, R2)
    effects = rig.step(BatchFailed(rig.batch, "no", False))
    assert of(effects, Attempt)[0].request == R1, "should it die of this one, its successor knows"
    rig.get("F-1", AttemptAck("p", R1, (), of(effects, Attempt)[0].serial))
    assert rig.units == (R1,)


def test_a_unit_that_is_consumed_is_acknowledged_but_never_run_again():
    rig = primary("q-2")
    feed(rig, R0)
    rig.run()
    assert not of(feed(rig, R0), StartBatch)


def test_records_of_a_set_stream_in_order_and_again_after_a_broken_connection():
    rig = primary("q-2")
    feed(rig, R0)
    first = rig.run()
    feed(rig, R1)
    second = rig.run()
    assert [record.version for record in of(first + second, StateRecord, "q-2")] == [1, 2]
    rig.step(PeerDown("q-2"))
    assert [record.version for record in of(rig.step(PeerUp("q-2")), StateRecord, "q-2")] == [1, 2]


def test_a_set_is_shrunk_by_its_primary_alone_and_its_member_counts_until_that_is_known():
    rig = primary("q-2", "q-3")
    feed(rig, R0)
    rig.run()
    (proposed,) = of(rig.step(PeerDown("q-2", refused=True)), Propose)
    assert proposed.topology.find("q").in_sync == ("q-3",)
    assert not of(rig.get("q-3", RecordAck("q", 1, 1, 1)), NoteDurable)
    assert settle(rig.step(CasSettled(proposed.topology, 2, committed=True)), 1)


def test_while_etcd_does_not_answer_one_proposal_is_under_way_and_nothing_ticks_for_it():
    rig = primary("q-2")
    feed(rig, R0)
    rig.run()
    assert len(of(rig.step(PeerDown("q-2", refused=True)), Propose)) == 1
    for _ in range(20):
        assert not of(rig.after(1.0), Propose)
        assert rig.machine.deadline() > rig.now + limits.tick_min_s
    rig.step(CasUnknown())
    assert len(of(rig.after(limits.propose_retry_s), Propose)) == 1


def test_a_proposal_of_unknown_outcome_is_not_repeated_before_the_topology_is_read_again():
    rig = primary("q-2")
    feed(rig, R0)
    rig.run()
    rig.step(PeerDown("q-2", refused=True))
    assert not of(rig.step(CasUnknown()), Propose)
    assert not of(rig.after(limits.propose_retry_s / 2), Propose)
    assert of(rig.after(limits.propose_retry_s), Propose)


def test_a_backup_that_waits_for_the_deps_of_others_is_not_slow():
    rig = primary("q-2")
    rig.members(q_2="q")
    feed(rig, R0, dep("p", 1, 3))
    rig.run()
    rig.get("q-2", RecordAck("q", 1, 1, 0))
    for _ in range(20):
        assert not of(rig.after(1.0), Propose)


def test_a_backup_that_does_not_receive_leaves_the_set():
    rig = primary("q-2")
    rig.members(q_2="q")
    feed(rig, R0)
    rig.run()
    assert not of(rig.after(limits.backup_lag_max_s / 2), Propose)
    rig.now += limits.backup_lag_max_s
    assert of(rig.after(0.0), Propose)[0].topology.find("q").in_sync == ()


def test_a_draining_primary_finishes_its_window_before_it_hands_over():
    rig = primary("q-2")
    rig.members(q_2="q")
    feed(rig, R0)
    rig.want()
    assert not of(rig.step(Drain()), Propose)
    effects = rig.done()
    assert not of(effects + rig.capture(effects), Propose)
    assert not of(feed(rig, R1), StartBatch), "its queue is stopped"
    (proposed,) = of(rig.get("q-2", RecordAck("q", 1, 1, 1)), Propose)
    replica_set = proposed.topology.find("q")
    assert (replica_set.primary, replica_set.ends) == ("q-2", ((1, 1),)), "nothing is an orphan"


def test_a_draining_primary_without_a_backup_serves_on_and_calls_a_substitute():
    rig = primary()
    rig.members(q_3="q")
    (proposed,) = of(rig.step(Drain()), Propose)
    assert proposed.topology.find("q").joining == ("q-3",)
    assert of(feed(rig, R0), StartBatch), "nobody could take over yet"


def test_a_backup_that_is_to_end_is_let_go_once_it_is_replaced():
    rig = primary("q-2")
    rig.members(q_2="q", q_3="q")
    (called,) = of(rig.get("q-2", Leave("q", 1)), Propose)
    assert called.topology.find("q") == rset("q", "q-1", "q-2", joining=("q-3",))
    rig.step(CasSettled(called.topology, 2, committed=True))
    assert not of(rig.after(1.0), Propose), "not before"
    (let_go,) = of(rig.learn(at(3, "q-2", "q-3")), Propose)
    assert let_go.topology.find("q").in_sync == ("q-3",)


def test_a_backup_that_is_to_end_is_let_go_in_the_end_though_nobody_replaces_it():
    rig = primary("q-2")
    rig.members(q_2="q")
    assert not of(rig.get("q-2", Leave("q", 1)), Propose)
    (let_go,) = of(rig.after(limits.leave_wait_s), Propose)
    assert let_go.topology.find("q").in_sync == ()


def test_a_primary_hands_over_to_somebody_who_stays():
    rig = primary("q-2", "q-3")
    rig.members(q_2="q", q_3="q")
    feed(rig, R0)
    rig.run()
    assert not of(rig.step(Drain()), Propose), "its window is not flushed"
    assert not of(rig.get("q-2", Leave("q", 1)), Propose), "who ends first is not known"
    rig.get("q-2", RecordAck("q", 1, 1, 1))
    (proposed,) = of(rig.get("q-3", RecordAck("q", 1, 1, 1)), Propose)
    assert proposed.topology.find("q").primary == "q-3"


def test_consumed_units_of_complete_requests_are_forgotten():
    rig = primary()
    for request in (R0, R1, R2, R3):
        feed(rig, request)
        rig.run()
    rig.get("F-1", Completion(((0, 4, ()),)))
    assert len(rig.machine.lineage) == 0
    assert len(rig.machine.store.versions) == 1


@pytest.mark.parametrize("captured", [True, False])
def test_a_fresh_model_takes_over_what_was_captured_or_the_set_must_roll_back(captured):
    rig = primary("q-2")
    feed(rig, R0)
    rig.want()
    effects = rig.done()
    if captured:
        rig.capture(effects)
    rig.step(ModelDied("killed"))
    assert bool(of(rig.ready(P("fresh")), LoadState)) is captured
    health = of(rig.get("m-1", Probe(1)), ProbeAnswer)[0].health
    assert health is (Health.HEALTHY if captured else Health.NEEDS_ROLLBACK)


LANES = (("b",), ("c",))


@pytest.mark.parametrize("rows", [1, 2])
def test_lanes_of_one_request_that_stem_from_two_executions_of_a_fan_out_do_not_meet_in_a_state(rows):
    merge = replace(op("q", "p", stateful=True, rows=rows), lanes=LANES)
    rig = primary_of(
        graph(op("p", FRONTEND, to=("q",)), merge),
        "q",
        topo(1, table("p", ("p-1", 1)), rset("q", "q-1", "q-2")),
    )
    # the others wait for this one, and are taken together if there is room
    rig.token("p-1", value("p", R1, "p:9"))
    for number, lane in enumerate(LANES):
        rig.token("p-1", value("p", R0, f"p:{number}", lane=lane, fan=(("s", f"s-{number}:1"),)))
    for number in range(2):
        batch = of(rig.all, StartBatch)[number]
        results = tuple(UnitResult(item.unit, P("out")) for item in batch.units)
        rig.capture(rig.want() + rig.step(BatchDone(batch.batch, results, updated=True)))
    sent = {
        item.token.lane: item.token.error for item in of(rig.all, Deliver, "F-1") if item.token.request == R0
    }
    assert sent[LANES[0]] is None
    assert "two values of" in sent[LANES[1]].message


def test_a_primary_that_is_named_joiner_while_its_model_starts_joins_once_that_is_there():
    rig = primary_of(graph(op("q", FRONTEND, stateful=True)), "q", topo(1, rset("q", "q-1", "q-2")))
    rig.get("q-2", RecordAck("q", 1, 0, 0))
    rig.token("F-1", value("F", R0, "0/0"))
    rig.want()
    rig.done()  # and dies before the state was captured
    rig.step(ModelDied("gone"))
    assert not of(rig.learn(topo(2, rset("q", "q-2", joining=("q-1",), epoch=2, ends=((1, 0),)))), AskCopy)
    assert of(rig.ready(P("fresh")), AskCopy, "q-2") == [AskCopy("q", 2, -1, 2)]
    assert rig.machine.role == "joining"


def test_a_primary_alone_asks_for_what_its_oldest_version_waits_for_though_the_newest_does_not():
    data = graph(
        op("p", FRONTEND, to=("q",), stateful=True),
        op("q", "p", stateful=True),
        recovery=RecoverySpec(when_unprotected=WhenUnprotected.BLOCK),
    )
    rig = Rig(StatefulMachine(data, "q", "q-2"))
    rig.ready(P("another state 0"))
    rig.learn(topo(1, rset("p", "p-1", "p-2"), rset("q", "q-1", joining=("q-2",))))
    rig.get("q-1", StateCopy("q", 1, 0, (), Completion(()), "", P("state 0")))
    rig.learn(topo(2, rset("p", "p-1", "p-2"), rset("q", "q-1", "q-2")))
    rig.get("p-1", Durable((Dep("p", 1, 1),)))
    rig.get("q-1", StateRecord("q", 1, 1, 0, (Dep("p", 1, 1),), (), "c1", P("state 1")))
    p_ended = rset("p", "p-2", epoch=2, ends=((1, 1),))
    effects = rig.learn(
        topo(3, p_ended, rset("q", "q-2", joining=("q-3",), epoch=2, ends=((1, 1),)), revoked=("p-1", "q-1"))
    )
    rig.loaded(effects)
    rig.token("p-2", value("p", R0, "p:0"), epoch=2)
    rig.run()
    assert of(rig.after(2 * limits.ask_after_s), AskDurable, "p-2"), "the notice may be lost"
    rig.get("p-2", Durable((Dep("p", 2, 5),)))
    assert of(rig.get("q-3", AskCopy("q", 2, -1, 3)), StateCopy, "q-3")
