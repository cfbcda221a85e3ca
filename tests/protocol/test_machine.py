"""Roles of a stateful instance (sections 6 and 7): taken only from a topology that names it, with the record
of the end, or not at all."""

from kit import R0, P, Rig, dep, graph, of, op, primary_of, rset, topo, value

from hams_protocol.effects import (
    AbandonBatch,
    LoadState,
    NoteDurable,
    NoteFailover,
    RestartModel,
    StartBatch,
    Stop,
)
from hams_protocol.events import Drain, Loaded, ModelDied
from hams_protocol.graph import FRONTEND
from hams_protocol.messages import AskTopology, Durable, Fence, FenceAnswer, RecordAck, Refused, StateRecord
from hams_protocol.stateful.machine import StatefulMachine

DATA = graph(op("p", FRONTEND, to=("q",), stateful=True), op("q", "p", stateful=True))


def at(generation, *in_sync, primary="q-1", epoch=1, ends=(), joining=(), p=None, revoked=()):
    return topo(
        generation,
        p or rset("p", "p-1", "p-2"),
        rset("q", primary, *in_sync, epoch=epoch, ends=ends, joining=joining),
        revoked=revoked,
    )


def primary(*in_sync):
    rig = primary_of(DATA, "q", at(1, *in_sync))
    for member in in_sync:
        rig.get(member, RecordAck("q", 1, 0, 0))
    return rig


def executed(rig, request=R0, deps=()):
    rig.token("p-1", value("p", request, f"p:{request.n}", deps))
    return rig.run()


def test_a_set_begins_with_its_primary_alone_at_version_0_as_the_model_made_it():
    rig = Rig(StatefulMachine(DATA, "q", "q-1"))
    assert rig.learn(at(1)) == [], "no state yet"
    effects = rig.ready(P("state 0"))
    assert of(effects, NoteDurable)[0].version == 0
    assert rig.machine.role == "primary"
    assert not of(effects, LoadState), "the model holds it"


def test_an_instance_that_is_not_named_is_a_standby():
    rig = Rig(StatefulMachine(DATA, "q", "q-9"))
    rig.ready(P("state 0"))
    rig.learn(at(1))
    assert rig.machine.role == "standby"
    assert rig.machine.ready


def test_a_revoked_instance_stops_and_its_state_is_kept():
    rig = primary("q-2")
    (stop,) = of(rig.learn(at(2, "q-2", revoked=("q-1",))), Stop)
    assert stop.keep == "q"


def test_a_deposed_instance_stops():
    assert of(primary("q-2").learn(at(2, primary="q-2", epoch=2, ends=((1, 0),))), Stop)


def test_a_tainted_primary_that_nobody_rolled_back_stops():
    rig = primary("q-2")
    executed(rig, deps=dep("p", 1, 10))
    effects = rig.learn(at(2, "q-2", p=rset("p", "p-2", epoch=2, ends=((1, 9),))))
    assert "tainted" in of(effects, Stop)[0].reason


def test_a_tainted_primary_goes_back_to_its_record_of_the_end_as_a_backup_in_sync():
    rig = primary("q-2")
    executed(rig)
    executed(rig, R0._replace(n=1), dep("p", 1, 10))
    after = at(2, "q-1", primary="q-2", epoch=2, ends=((1, 1),), p=rset("p", "p-2", epoch=2, ends=((1, 9),)))
    effects = rig.learn(after)
    assert of(effects, RecordAck, "q-2") == [RecordAck("q", 2, 1, 1, True)]
    assert rig.machine.role == "backup"


def test_a_primary_without_backup_rolls_back_with_outputs_and_consumed_units():
    rig = primary()
    executed(rig)
    executed(rig, R0._replace(n=1), dep("p", 1, 10))
    after = at(2, epoch=2, ends=((1, 1),), p=rset("p", "p-2", epoch=2, ends=((1, 9),)))
    effects = rig.learn(after)
    assert of(effects, LoadState)[0].state == P("state 1")
    assert of(effects, NoteFailover)[0].end == 1
    rig.loaded(effects)
    assert of(
        rig.token("p-2", value("p", R0._replace(n=1), "p-2:1", dep("p", 2, 10)), epoch=2), StartBatch
    ), "its successor is accepted"
    assert not of(rig.token("p-2", value("p", R0, "p:0"), epoch=2), StartBatch)


def test_a_load_of_an_epoch_that_is_over_does_not_count_for_the_next_one():
    rig = primary()
    executed(rig)
    first = rig.learn(at(2, epoch=2, ends=((1, 1),)))
    second = rig.learn(at(3, epoch=3, ends=((1, 1), (2, 1))))
    assert of(first, LoadState)
    assert of(second, LoadState)
    rig.loaded(first)
    assert not of(rig.token("p-1", value("p", R0._replace(n=1), "p:1")), StartBatch)
    assert of(rig.loaded(second), StartBatch)


def test_the_model_of_an_epoch_that_is_over_is_not_left_before_its_update():
    rig = primary("q-2")
    rig.token("p-1", value("p", R0, "p:0"))
    effects = rig.learn(at(2, "q-1", primary="q-2", epoch=2, ends=((1, 0),)))
    assert of(effects, AbandonBatch)
    assert of(rig.want(), AbandonBatch), "and if it asks later, it hears the same"


def test_events_of_an_earlier_epochs_batch_count_for_nothing():
    rig = primary("q-2")
    rig.token("p-1", value("p", R0, "p:0"))
    rig.want()
    rig.learn(at(2, "q-1", primary="q-2", epoch=2, ends=((1, 0),)))
    assert rig.done() == []
    effects = rig.learn(at(3, "q-2", epoch=3, ends=((1, 0), (2, 0))))
    rig.loaded(effects)
    assert not of(rig.done(), NoteDurable)


def test_an_acknowledgement_that_is_ahead_of_the_topology_is_kept():
    rig = Rig(StatefulMachine(DATA, "q", "q-1"))
    rig.ready(P("state 0"))
    rig.learn(at(1))
    rig.learn(at(2, "q-2", joining=()))
    assert of(rig.get("q-2", RecordAck("q", 2, 0, 0)), AskTopology)
    effects = rig.learn(at(3, "q-2", epoch=2, ends=((1, 0),)))
    assert of(effects, Durable, "F-1") == [Durable(dep("q", 2, 0))]


def test_a_member_left_out_and_named_again_in_one_epoch_starts_afresh():
    rig = primary("q-2")
    backup = Rig(StatefulMachine(DATA, "q", "q-2"))
    backup.ready(P("fresh"))
    backup.learn(at(1, joining=("q-2",)))
    backup.machine.backup.following.in_sync = True
    assert of(backup.learn(at(3, joining=("q-2",))), Stop)
    assert rig.machine.role == "primary"


def test_a_joiner_is_never_made_primary():
    rig = Rig(StatefulMachine(DATA, "q", "q-2"))
    rig.ready(P("fresh"))
    rig.learn(at(1, joining=("q-2",)))
    assert of(rig.learn(at(2, primary="q-2", epoch=2, ends=((1, 0),))), Stop)


def test_a_fence_is_answered_by_the_primary_in_that_generation_only():
    rig = primary("q-2")
    executed(rig, deps=dep("p", 1, 10))
    assert of(rig.get("m-1", Fence(1, 2, "q", dep("p", 1, 9))), Refused)
    (answer,) = of(rig.get("m-1", Fence(2, 1, "q", dep("p", 1, 9))), FenceAnswer)
    assert answer.tainted
    assert [(item.version, item.deps) for item in answer.retained] == [(1, dep("p", 1, 10)), (0, ())]
    assert not of(rig.get("m-1", Fence(3, 1, "q", dep("p", 1, 10))), FenceAnswer)[0].tainted


def test_a_fence_ends_with_a_higher_generation():
    rig = primary("q-2")
    rig.get("m-1", Fence(1, 1, "q", dep("p", 1, 9)))
    assert not of(rig.token("p-1", value("p", R0, "p:0", dep("p", 1, 10))), StartBatch)
    assert of(rig.learn(at(2, "q-2")), StartBatch)


def test_a_dead_model_is_started_again():
    rig = primary("q-2")
    assert of(rig.step(ModelDied("killed")), RestartModel)


def test_a_model_that_refuses_its_state_ends_the_instance():
    assert of(primary("q-2").step(Loaded(1, "another layout")), Stop)


def test_a_draining_standby_ends_at_once():
    rig = Rig(StatefulMachine(DATA, "q", "q-2"))
    rig.ready(P("fresh"))
    assert of(rig.step(Drain()), Stop)


def test_a_record_for_a_primary_changes_nothing():
    rig = primary("q-2")
    assert rig.get("q-2", StateRecord("q", 1, 9, 8, (), (), "", P("state 9"))) == []
    assert rig.machine.version == 0
