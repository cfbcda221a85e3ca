"""A lost state begins again at who had a part in it before (section 7.2): nothing of that is left."""

from dataclasses import replace

from kit import R0, P, Rig, of, rset, topo, value
from test_keeper import DATA, P_SLOT, QR, copy_of

from hams_protocol.effects import LoadState, PreloadState, StartBatch, Stop
from hams_protocol.events import Loaded
from hams_protocol.messages import Completion, Fence, FenceAnswer, StateCopy
from hams_protocol.stateful.machine import StatefulMachine

ALONE = rset("q", "q-2", epoch=2, ends=((1, 0),))
HELD = replace(ALONE, keepers=("r-2",))
JOINS = rset("r", "r-1", joining=("r-2",))
AGAIN = replace(rset("r", "r-2", epoch=2, ends=((1, 0),)), restarted_in=2)


def joiner() -> Rig:
    """r-2 joins r, has its copy of version 7, and keeps the state of q."""
    rig = Rig(StatefulMachine(QR, "r", "r-2"))
    rig.ready(P("r 0"))
    rig.learn(topo(3, ALONE, JOINS))
    rig.get("r-1", StateCopy("r", 1, 7, (), Completion(()), "", P("r 7")))
    assert of(rig.all, PreloadState), "the model takes over version 7"
    rig.step(Loaded(0))
    rig.get("q-2", copy_of())
    rig.learn(topo(4, HELD, JOINS))
    return rig


def test_the_model_does_not_go_on_from_what_it_has_taken_over_before():
    """r-2 stays when r is lost, as it is a keeper. Managers take it for free, and name it."""
    rig = joiner()
    rig.learn(topo(5, HELD, replace(rset("r", "r-1"), lost=True)))
    assert not of(rig.all, Stop)
    rig.all.clear()
    rig.learn(topo(6, HELD, AGAIN, revoked=("r-1",)))
    rig.token("q-2", value("q", R0, "q:9"), epoch=2)
    (load,) = of(rig.all, LoadState)
    assert load.state == P("r 0")
    assert not of(rig.all, StartBatch), "the model has yet to load it"
    rig.step(Loaded(load.token))
    assert of(rig.all, StartBatch)


def test_a_joiner_that_has_not_heard_of_the_loss_begins_whatever_it_has_copied():
    rig = Rig(StatefulMachine(DATA, "q", "q-2"))
    rig.ready(P("a state 0 of its own"))
    rig.learn(topo(3, rset("q", "q-1", joining=("q-2",)), P_SLOT))
    rig.get("q-1", StateCopy("q", 1, 7, (), Completion(()), "", P("state 7")))
    again = replace(rset("q", "q-2", epoch=2, ends=((1, 0),)), restarted_in=2)
    assert not of(rig.learn(topo(5, again, P_SLOT, revoked=("q-1",))), Stop)
    assert rig.machine.primary is not None
    assert of(rig.all, LoadState)[-1].state == P("a state 0 of its own")


def test_so_does_a_keeper_or_it_would_hold_up_the_recovery_of_what_it_keeps():
    rig = joiner()
    rig.learn(topo(6, HELD, AGAIN, revoked=("r-1",)))
    assert not of(rig.all, Stop)
    assert of(rig.get("m-1", Fence(9, 6, "r", ())), FenceAnswer)
