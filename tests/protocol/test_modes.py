"""Modes of replication (section 9): what a primary does otherwise than in NonStop."""

from kit import R0, R1, P, Rig, graph, of, op, primary_of, rset, topo, value

from hams_protocol.effects import NoteDurable, Send, StartBatch
from hams_protocol.events import ModelDied
from hams_protocol.graph import FRONTEND, Mode, RecoverySpec, WhenUnprotected
from hams_protocol.messages import Completion, Deliver, RecordAck

BLOCK = RecoverySpec(when_unprotected=WhenUnprotected.BLOCK)


def primary(mode: Mode, *in_sync: str, recovery: RecoverySpec | None = None) -> Rig:
    """The primary of q, between two other states."""
    operators = (
        op("p", FRONTEND, to=("q",), stateful=True),
        op("q", "p", to=("r",), stateful=True),
        op("r", "q", stateful=True),
    )
    sets = (rset("p", "p-1"), rset("q", "q-1", *in_sync), rset("r", "r-1"))
    rig = primary_of(graph(*operators, mode=mode, recovery=recovery), "q", topo(1, *sets))
    for member in in_sync:
        rig.get(member, RecordAck("q", 1, 0, 0))
    return rig


def test_outputs_are_held_until_their_version_is_durable_and_leave_without_dependencies():
    rig = primary(Mode.BUFFERED_OUTPUTS, "q-2")
    for request in (R0, R1):
        rig.token("p-1", value("p", request, f"p:{request.n}"))
        assert not of(rig.run(), Deliver)
    sent = of(rig.get("q-2", RecordAck("q", 1, 1, 1)), Deliver)
    assert [(one.token.request, one.token.deps) for one in sent] == [(R0, ())]
    sent = of(rig.get("q-2", RecordAck("q", 1, 2, 2)), Deliver)
    assert [(one.token.request, one.token.deps) for one in sent] == [(R1, ())]


def test_a_version_is_called_durable_before_what_it_held_leaves():
    """Seed 41003286: a primary died in between, and its history did not say why the output had left."""
    rig = primary(Mode.REMUS, "q-2")
    rig.token("p-1", value("p", R0, "p:0"))
    rig.run()
    kinds = [type(effect) for effect in rig.get("q-2", RecordAck("q", 1, 1, 1))]
    assert kinds[0] is NoteDurable
    assert Send in kinds


def test_what_is_held_goes_with_the_epoch_in_which_it_was_made():
    rig = primary(Mode.BUFFERED_OUTPUTS)
    rig.token("p-1", value("p", R0, "p:0"))
    rig.want()
    assert not of(rig.done(), Deliver), "it was not captured yet"
    rig.step(ModelDied("killed"))
    rig.learn(topo(2, rset("p", "p-1"), rset("q", "q-1", epoch=2, ends=((1, 0),)), rset("r", "r-1")))
    rig.loaded(rig.ready(P("state 0")))
    rig.token("p-1", value("p", R0, "p:0"))
    (sent,) = of(rig.run(), Deliver)
    assert (sent.epoch, sent.token.deps) == (2, ())


def test_saved_outputs_are_held_as_well_until_they_are_durable():
    """Seed 500625: under Block a new primary alone sent at once what its records had brought."""
    rig = primary(Mode.BUFFERED_OUTPUTS, "q-2", recovery=BLOCK)
    rig.token("p-1", value("p", R0, "p:0"))
    rig.want()
    rig.capture(rig.done())
    assert of(rig.get("q-2", RecordAck("q", 1, 1, 1)), Deliver)
    alone = rset("q", "q-1", epoch=2, ends=((1, 1),))
    rig.step(ModelDied("killed"))
    effects = rig.learn(topo(2, rset("p", "p-1"), alone, rset("r", "r-1")))
    assert not of(effects, Deliver)
    assert not of(rig.loaded(rig.ready(P("state 0"))), Deliver)


def test_what_is_held_is_not_sent_once_its_request_is_complete():
    """Seed 50049: a new primary held saved outputs of a request that others knew to be complete."""
    rig = primary(Mode.REMUS, "q-2")
    for request in (R0, R1):
        rig.token("p-1", value("p", request, f"p:{request.n}"))
        rig.run()
    rig.get("F-1", Completion(((0, 1, ()),)))
    sent = of(rig.get("q-2", RecordAck("q", 1, 2, 2)), Deliver)
    assert [one.token.request for one in sent] == [R1]
    assert len(rig.machine.outbox) == 1


def test_a_model_that_stops_to_be_copied_begins_no_batch_meanwhile():
    rig = primary(Mode.STOP_AND_COPY, "q-2")
    rig.token("p-1", value("p", R0, "p:0"))
    rig.token("p-1", value("p", R1, "p:1"))
    rig.want()
    effects = rig.done()
    assert of(effects, Deliver), "outputs leave at once"
    assert not of(effects, StartBatch)
    assert of(rig.capture(effects), StartBatch)
