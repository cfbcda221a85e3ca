"""A backup (section 2): it receives in order, holds, applies what has only durable dependencies, and says
both."""

from dataclasses import replace

from kit import R0, P, Rig, dep, graph, of, op, rset, table, topo, value

from hams_protocol import limits
from hams_protocol.deps import Dep
from hams_protocol.effects import LoadState, NoteApply, PreloadState, Send, Stop
from hams_protocol.events import Drain, Loaded, ModelDied, ModelReady
from hams_protocol.graph import FRONTEND
from hams_protocol.ids import UnitId
from hams_protocol.messages import (
    AskApplied,
    AskCopy,
    AskDurable,
    Completion,
    Consumed,
    Deliver,
    Durable,
    Freeze,
    FreezeAnswer,
    Leave,
    RecordAck,
    Refused,
    SlotAnswer,
    SlotQuery,
    StateCopy,
    StateRecord,
)
from hams_protocol.stateful.machine import StatefulMachine

DATA = graph(op("p", FRONTEND, to=("q",), stateful=True), op("q", "p", stateful=True, window=3))


def at(generation, in_sync=("q-2",), joining=(), p=None, epoch=1, primary="q-1", ends=(), revoked=()):
    return topo(
        generation,
        p or rset("p", "p-1"),
        rset("q", primary, *in_sync, joining=joining, epoch=epoch, ends=ends),
        revoked=revoked,
    )


def joiner():
    rig = Rig(StatefulMachine(DATA, "q", "q-2"))
    rig.ready(P("fresh"))
    return rig, rig.learn(at(1, (), ("q-2",)))


def backup():
    """In sync at version 0."""
    rig, _ = joiner()
    rig.get("q-1", StateCopy("q", 1, 0, (), Completion(()), "", P("state 0")))
    rig.learn(at(2))
    return rig


def record(version, deps=(), state=True, epoch=1, previous=None, request=None):
    out = value("q", request or R0._replace(n=version), f"q-1:{version}", dep("q", epoch, version))
    units = (Consumed(UnitId(out.request, ()), version, out.value_id, (("F", out),), ()),)
    before = version - 1 if previous is None else previous
    return StateRecord(
        "q",
        epoch,
        version,
        before,
        (*deps, Dep("q", epoch, version)),
        units,
        f"c{version}",
        P(f"state {version}") if state else None,
    )


def said(effects):
    return [(ack.received, ack.applied) for ack in of(effects, RecordAck, "q-1")]


def test_a_joiner_asks_for_a_copy_and_says_when_it_has_it():
    rig, effects = joiner()
    assert of(effects, AskCopy, "q-1") == [AskCopy("q", 1, -1, 1)]
    effects = rig.get("q-1", StateCopy("q", 1, 7, (), Completion(()), "c7", P("state 7")))
    assert said(effects) == [(7, -1)], "received; its model is yet to take it over"
    assert of(effects, NoteApply)[0].snapshot
    assert of(effects, PreloadState) == [PreloadState(P("state 7"))]
    assert said(rig.step(Loaded(0))) == [(7, 7)]


def test_a_joiner_whose_model_dies_while_it_preloads_preloads_again():
    rig, _ = joiner()
    rig.get("q-1", StateCopy("q", 1, 7, (), Completion(()), "c7", P("state 7")))
    rig.step(ModelDied("gone"))
    effects = rig.ready(P("fresh"))
    assert of(effects, PreloadState)
    assert not said(effects)
    assert said(rig.step(Loaded(0))) == [(7, 7)]


def test_a_joiner_whose_model_refuses_the_state_stops():
    rig, _ = joiner()
    rig.get("q-1", StateCopy("q", 1, 7, (), Completion(()), "c7", P("state 7")))
    assert of(rig.step(Loaded(0, "no")), Stop)


def test_a_joiner_whose_model_has_another_state_layout_stops_and_acknowledges_nothing():
    rig = Rig(StatefulMachine(DATA, "q", "q-2"))
    rig.machine.step(ModelReady("new", P("fresh")), 0.0)
    rig.learn(at(1, (), ("q-2",)))
    effects = rig.get("q-1", StateCopy("q", 1, 7, (), Completion(()), "c7", P("state 7"), "old"))
    assert not said(effects)
    assert "state layout mismatch" in next(effect.reason for effect in effects if isinstance(effect, Stop))


def test_a_backup_whose_fresh_model_has_another_state_layout_stops():
    rig = Rig(StatefulMachine(DATA, "q", "q-2"))
    rig.machine.step(ModelReady("old", P("fresh")), 0.0)
    rig.learn(at(1, (), ("q-2",)))
    assert said(rig.get("q-1", StateCopy("q", 1, 7, (), Completion(()), "c7", P("state 7"), "old"))) == [
        (7, -1)
    ]
    rig.machine.step(ModelDied("gone"), 0.1)
    effects = rig.machine.step(ModelReady("new", P("fresh")), 0.2)
    assert any(isinstance(effect, Stop) for effect in effects)


def test_a_joiner_that_hears_nothing_asks_again():
    rig, _ = joiner()
    assert of(rig.after(2 * limits.copy_ask_after_s), AskCopy)


def test_records_are_applied_in_order_whatever_order_they_come_in():
    rig = backup()
    assert said(rig.get("q-1", record(2))) == []
    effects = rig.get("q-1", record(1))
    assert [note.version for note in of(effects, NoteApply)] == [1, 2]
    assert said(effects)[-1] == (2, 2)


def test_a_record_is_held_until_its_deps_on_others_are_durable():
    rig = backup()
    assert said(rig.get("q-1", record(1, dep("p", 1, 4)))) == [(1, 0)], "receipt, not apply"
    assert said(rig.get("q-1", record(2))) == [(2, 0)], "nothing overtakes it"
    assert of(rig.after(2 * limits.ask_after_s), AskDurable, "p-1"), "the notice may be lost"
    assert said(rig.get("p-1", Durable(dep("p", 1, 4)))) == [(2, 2)]


def test_a_record_with_an_orphan_dep_is_discarded_with_all_that_follow_it():
    rig = backup()
    rig.get("q-1", record(1, dep("p", 1, 4)))
    rig.get("q-1", record(2))
    rig.learn(at(3, p=rset("p", "p-2", epoch=2, ends=((1, 3),))))
    assert (rig.machine.backup.received, rig.machine.version) == (0, 0)


def test_a_record_of_an_older_epoch_is_refused():
    rig = backup()
    rig.learn(at(3, ("q-2",), primary="q-3", epoch=2, ends=((1, 0),), revoked=("q-1",)))
    assert rig.get("q-1", record(1)) == []
    assert rig.machine.version == 0


def test_a_record_without_state_shares_the_one_before():
    rig = backup()
    rig.get("q-1", record(1))
    rig.get("q-1", record(2, state=False))
    assert rig.machine.store.newest.state == P("state 1")


def test_asked_again_it_says_how_far_it_is():
    rig = backup()
    rig.get("q-1", record(1))
    assert said(rig.get("q-1", AskApplied("q", 1))) == [(1, 1)]
    assert not rig.get("q-1", AskApplied("q", 2)), "not for another epoch"


def test_it_keeps_every_version_that_its_primary_may_be_ahead_by_and_the_durable_one_to_go_back_to():
    """The window is 3. The primary may be ahead by 3 versions, and by one batch that did not change the
    state."""
    rig = backup()
    for version in range(1, 10):
        rig.get("q-1", record(version))
    assert [version.number for version in rig.machine.store.versions] == [5, 6, 7, 8, 9]


def test_a_backup_that_is_promoted_lets_go_of_what_it_had_received_beyond_the_end():
    rig = backup()
    rig.get("q-1", record(1, dep("p", 1, 4)))
    rig.get("q-1", record(3, previous=2))
    role = rig.machine.backup
    assert role.received == 1
    rig.learn(at(3, primary="q-2", epoch=2, ends=((1, 0),), revoked=("q-1",)))
    assert rig.machine.role == "primary"
    assert role.received == 0, "its states would stay until the interpreter looks for what holds itself"


def test_a_frozen_backup_takes_no_record_and_applies_nothing_until_a_newer_topology():
    rig = backup()
    rig.get("q-1", record(1, dep("p", 1, 4)))
    (answer,) = of(rig.get("m-1", Freeze(9, 2, "q", 1)), FreezeAnswer)
    assert (answer.attempt, answer.applied) == (9, 0)
    assert rig.get("q-1", record(2)) == []
    assert not of(rig.get("p-1", Durable(dep("p", 1, 4))), NoteApply)
    effects = rig.learn(at(3))  # somebody else's change: that attempt can no longer commit
    assert [note.version for note in of(effects, NoteApply)] == [1]


def test_a_freeze_of_another_generation_is_refused():
    rig = backup()
    assert of(rig.get("m-1", Freeze(9, 1, "q", 1)), Refused)[0].generation == 2
    assert of(rig.get("m-1", Freeze(9, 3, "q", 1)), Refused)
    assert said(rig.get("q-1", record(1))) == [(1, 1)], "and freezes nothing"


def test_a_joiner_is_never_the_answer_to_a_freeze():
    rig, _ = joiner()
    rig.get("q-1", StateCopy("q", 1, 7, (), Completion(()), "c7", P("state 7")))
    assert of(rig.get("m-1", Freeze(1, 1, "q", 1)), FreezeAnswer)[0].applied is None


def test_a_promoted_backup_loads_its_record_sends_saved_outputs_again_and_announces_first_of_all():
    rig = backup()
    rig.get("q-1", record(1))
    rig.get("q-1", record(2, dep("p", 1, 9)))
    effects = rig.learn(at(3, (), primary="q-2", epoch=2, ends=((1, 1),), revoked=("q-1",)))
    assert of(effects, LoadState)[0].state == P("state 1"), "what it only held is dropped"
    assert [(item.epoch, item.token.value_id) for item in of(effects, Deliver)] == [(2, "q-1:1")]
    assert of(effects, Durable, "F-1") == [Durable(dep("q", 2, 1))]
    assert not of(rig.token("p-1", value("p", R0._replace(n=1), "p:1")), LoadState)
    assert UnitId(R0._replace(n=1), ()) in rig.machine.lineage, "what is consumed is refused"


def test_the_others_go_back_to_their_record_of_the_end_and_stay_in_sync():
    rig = backup()
    for version in (1, 2, 3):
        rig.get("q-1", record(version))
    effects = rig.learn(at(3, ("q-2",), primary="q-3", epoch=2, ends=((1, 1),), revoked=("q-1",)))
    assert [
        (item.target, item.message.epoch, item.message.applied) for item in effects if isinstance(item, Send)
    ] == [("q-3", 2, 1)]
    assert [version.number for version in rig.machine.store.versions][-1] == 1
    assert not [unit for unit in rig.machine.lineage.units() if unit.seq > 1]


def test_who_lacks_the_record_of_the_end_stops():
    rig = backup()
    for version in range(1, 10):
        rig.get("q-1", record(version))
    assert of(rig.learn(at(3, ("q-2",), primary="q-3", epoch=2, ends=((1, 2),))), Stop)


def test_a_backup_does_not_answer_a_slots_new_owner_and_its_answer_as_primary_holds_what_it_has_applied():
    rig = backup()
    seen = value("s", R0, "s-1:1")
    other = value("s", R0._replace(n=7), "s-1:2")
    slots = table("s", ("s-1", 1))
    for version, token, deps in ((1, seen, ()), (2, other, dep("p", 1, 4))):
        item = record(version, deps)
        rig.get("q-1", replace(item, units=(replace(item.units[0], fan_inputs=(token,)),)))
    assert not of(rig.get("s-2", SlotQuery("s", 0, 2)), SlotAnswer)
    roles = (rset("p", "p-1"), rset("q", "q-2", epoch=2, ends=((1, 1),)), slots)
    (answer,) = of(rig.learn(topo(3, *roles, revoked=("q-1",))), SlotAnswer, "s-2")
    assert answer.led == ("q", 2)
    assert [token.value_id for token in answer.tokens] == ["s-1:1"], "what was held is dropped"


def test_a_new_epoch_starts_the_copy_again():
    rig, _ = joiner()
    rig.get("q-1", StateCopy("q", 1, 7, (), Completion(()), "c7", P("state 7")))
    effects = rig.learn(at(2, (), ("q-2",), primary="q-3", epoch=2, ends=((1, 5),), revoked=("q-1",)))
    assert of(effects, AskCopy, "q-3") == [AskCopy("q", 2, -1, 2)]
    assert rig.machine.version == -1


def test_a_backup_that_is_to_end_asks_to_be_let_go_and_may_be_promoted_meanwhile():
    rig = backup()
    effects = rig.step(Drain())
    assert of(effects, Leave, "q-1") == [Leave("q", 1)]
    assert not of(effects, Stop), "its primary may just have died"
    assert of(rig.after(limits.resend_after_s), Leave, "q-1")
    rig.learn(at(3, primary="q-2", epoch=2, ends=((1, 0),), revoked=("q-1",)))
    assert rig.machine.role == "primary"


def test_a_model_preloads_once_whatever_epochs_begin_meanwhile():
    rig, _ = joiner()
    assert of(rig.get("q-1", StateCopy("q", 1, 7, (), Completion(()), "c7", P("state 7"))), PreloadState)
    rig.learn(topo(2, rset("q", "q-3", joining=("q-2",), epoch=2, ends=((1, 7),))))
    effects = rig.get("q-3", StateCopy("q", 2, 8, (), Completion(()), "c8", P("state 8")))
    assert not of(effects, PreloadState), (
        "the first is under way: a second would keep the model busy when it is needed"
    )
    assert [(ack.received, ack.applied) for ack in of(rig.step(Loaded(0)), RecordAck, "q-3")] == [(8, 8)]
    rig.learn(topo(3, rset("q", "q-4", joining=("q-2",), epoch=3, ends=((1, 7), (2, 8)))))
    effects = rig.get("q-4", StateCopy("q", 3, 9, (), Completion(()), "c9", P("state 9")))
    assert [(ack.received, ack.applied) for ack in of(effects, RecordAck, "q-4")] == [(9, 9)], "it is warm"
