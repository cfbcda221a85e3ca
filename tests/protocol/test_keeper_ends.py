"""Who ends for reasons of its own role, though others count on what it holds (sections 2, 6 and 7): keepers,
and joiners that are admitted and have not heard of it. None of them ends before it is let go."""

from dataclasses import replace

import pytest
from frontend_net import Net
from frontend_net import graph as net_graph
from frontend_net import op as net_op
from kit import P, Rig, active_of, of, rset, topo
from test_keeper import ALONE, DATA, HELD_BY_P, QR, backup_of_r, copy_of, member

from hams_protocol import limits
from hams_protocol.effects import Send, Stop
from hams_protocol.events import Drain, Loaded, MembersChanged, PeerDown, PeerUp
from hams_protocol.frontend import FrontendMachine
from hams_protocol.frontend.former import FormerLogs
from hams_protocol.frontend.log import empty_log
from hams_protocol.graph import FRONTEND
from hams_protocol.messages import (
    AskCopy,
    Completion,
    Freeze,
    FreezeAnswer,
    Leave,
    LogAck,
    RecordAck,
    StateCopy,
)
from hams_protocol.stateful.former import FormerState
from hams_protocol.stateful.machine import StatefulMachine

HELD_BY_R = replace(ALONE, keepers=("r-2",))
R = rset("r", "r-1")


def goes_on_as_keeper(rig, effects, generation, *sets):
    """It has asked q's primary to let it go, answers for q's state, and ends once it is named no more."""
    assert not of(effects, Stop)
    assert of(effects, Leave, to="q-2")
    (answer,) = of(rig.get("m-1", Freeze(2, generation, "q", 2)), FreezeAnswer)
    assert answer.applied == 0
    return bool(of(rig.learn(topo(generation + 1, ALONE, *sets)), Stop))


def copied(machine, *sets):
    """An instance of r that has q's state."""
    rig = Rig(machine)
    rig.ready(P("r 0"))
    rig.learn(topo(3, ALONE, *sets))
    rig.get("q-2", copy_of())
    return rig


def test_a_keeper_whose_former_state_is_of_no_use_any_more_stays_until_it_is_let_go():
    led = backup_of_r()
    former = led.machine.state_to_keep()
    assert isinstance(former, FormerState)
    rig = copied(StatefulMachine(QR, "r", "r-9", former), rset("r", "r-1", "r-2"))
    held = replace(ALONE, keepers=("r-9",))
    rig.learn(topo(4, held, rset("r", "r-1", "r-2")))
    effects = rig.learn(topo(5, held, R))
    assert goes_on_as_keeper(rig, effects, 5, R)


def test_a_keeper_that_gives_up_its_own_fetch_stays_until_it_is_let_go():
    mine = replace(rset("r", "r-2", epoch=2, ends=((1, 0),)), keepers=("F-1",))
    rig = copied(StatefulMachine(QR, "r", "r-2"), R)
    rig.learn(topo(4, HELD_BY_R, mine))
    rig.step(PeerDown("F-1"))
    assert not of(rig.after(limits.backup_lag_max_s + 0.1), Stop), "its own keeper may yet come back"
    assert not of(rig.learn(topo(5, ALONE, mine)), Stop)
    assert of(rig.after(limits.backup_lag_max_s), Stop)


@pytest.mark.parametrize(
    "mine",
    [
        rset("r", "r-1", "r-2", epoch=2, ends=((1, 5),)),
        rset("r", "r-2", epoch=2, ends=((1, 5),)),
        rset("r", "r-2", epoch=3, ends=((1, 0), (2, 5))),
    ],
)
def test_a_keeper_whose_own_role_does_not_fit_stays_until_it_is_let_go(mine):
    """It has nothing to begin an epoch with: the end is another one, or it has missed an epoch."""
    rig = backup_of_r()
    effects = rig.learn(topo(5, HELD_BY_R, mine))
    assert goes_on_as_keeper(rig, effects, 5, mine)


@pytest.mark.parametrize(
    "mine",
    [
        rset("r", "r-1", "r-2"),
        rset("r", "r-2", epoch=2, ends=((1, 0),)),
        rset("r", "r-2", epoch=3, ends=((1, 0), (2, 0))),
    ],
)
def test_a_keeper_that_is_named_in_its_own_set_without_a_state_stays_until_it_is_let_go(mine):
    rig = copied(StatefulMachine(QR, "r", "r-2"), R)
    effects = rig.learn(topo(4, HELD_BY_R, mine))
    assert goes_on_as_keeper(rig, effects, 4, mine)


def test_a_keeper_whose_model_does_not_take_its_own_state_ends_at_once():
    """Its own set would wait for it: its name there says that it serves, or can."""
    rig = backup_of_r()
    assert of(rig.step(Loaded(1, defect="of another shape")), Stop)


# -- frontends -----------------------------------------------------------------------------------------------


def frontend(former=None):
    rig = Rig(FrontendMachine(DATA, "F-2", former))
    rig.learn(topo(3, ALONE, rset("F/0", "F-1", "F-9")))
    rig.get("q-2", copy_of())
    rig.learn(topo(4, replace(ALONE, keepers=("F-2",)), rset("F/0", "F-1", "F-9")))
    return rig


def test_a_frontend_whose_former_logs_are_of_no_use_any_more_stays_as_a_keeper():
    rig = frontend(FormerLogs("F-9", {0: empty_log(0, 1, 0, DATA.data.frontend)}))
    effects = rig.learn(topo(5, replace(ALONE, keepers=("F-2",))))
    assert goes_on_as_keeper(rig, effects, 5)


def test_a_frontend_whose_role_does_not_fit_ends_at_once():
    """What it holds of other shards may not fit either; it must not begin them again."""
    rig = frontend()
    mine = rset("F/0", "F-1", "F-2", epoch=2, ends=((1, 0),))
    assert of(rig.learn(topo(5, replace(ALONE, keepers=("F-2",)), mine)), Stop)


# -- who counts without knowing it ---------------------------------------------------------------------------


def joiner(said):
    """r-2 joins; it has `said` that it has its copy, or has none yet."""
    rig = Rig(StatefulMachine(QR, "r", "r-2"))
    rig.ready(P("r 0"))
    rig.learn(topo(3, ALONE, rset("r", "r-1", joining=("r-2",))))
    if said:
        rig.get("r-1", StateCopy("r", 1, 0, (), Completion(()), "", P("r 0")))
        rig.step(Loaded(0))
    return rig


def test_a_joiner_that_may_be_admitted_already_asks_to_be_let_go_and_ends_then():
    rig = joiner(said=True)
    effects = rig.step(Drain())
    assert not of(effects, Stop)
    assert of(effects, Leave, to="r-1")
    assert not of(rig.learn(topo(4, ALONE, rset("r", "r-1", "r-2"))), Stop)
    assert of(rig.learn(topo(5, ALONE, R)), Stop)


def test_a_joiner_on_which_nobody_counts_ends_at_once():
    assert of(joiner(said=False).step(Drain()), Stop)


def test_a_joiner_that_is_to_end_and_was_not_admitted_ends_with_the_epoch():
    rig = joiner(said=True)
    rig.step(Drain())
    after = rset("r", "r-3", joining=("r-2",), epoch=2, ends=((1, 0),))
    assert of(rig.learn(topo(4, ALONE, after)), Stop)


def test_a_frontend_that_may_have_been_admitted_asks_to_be_let_go_and_ends_then():
    net = Net(net_graph(net_op("p", FRONTEND)), ("F-1", "F-2"))
    net.start(in_sync=False)
    net.hold = lambda sender, target, message: isinstance(message, LogAck)
    net.join_all()
    net.run()
    assert net.topology.find("F/0").joining == ("F-2",)
    effects = net.machines["F-2"].step(Drain(), net.now)
    assert not of(effects, Stop)
    assert [e.target for e in effects if isinstance(e, Send) and isinstance(e.message, Leave)] == ["F-1"]


def called():
    """p-1 has q's state and has said so; it has not heard whether it is named."""
    rig = active_of(DATA, "p", "p-1", topo(3, ALONE))
    rig.get("q-2", copy_of())
    return rig


def test_a_keeper_that_may_be_named_already_asks_to_be_let_go_and_ends_then():
    rig = called()
    effects = rig.step(Drain())
    assert not of(effects, Stop)
    assert of(effects, Leave, to="q-2")
    assert not of(rig.learn(topo(4, HELD_BY_P)), Stop)
    rig.after(limits.leave_wait_s + 0.1)
    assert not of(rig.all, Stop), "it is named"
    assert of(rig.learn(topo(5, ALONE)), Stop)


@pytest.mark.parametrize(
    "held", [replace(ALONE, keepers=("F-1",)), rset("q", "q-2", "q-3", epoch=2, ends=((1, 0),))]
)
def test_a_keeper_that_was_called_ends_once_somebody_else_holds_the_state(held):
    rig = called()
    rig.step(Drain())
    assert of(rig.learn(topo(4, held)), Stop)


def test_a_keeper_that_was_called_and_hears_no_more_of_it_ends_after_a_while():
    """Its primary, which has let it go, has nobody else to name, so nothing changes."""
    for rig in (called(), copied(StatefulMachine(QR, "r", "r-2"), R)):
        assert not of(rig.step(Drain()), Stop)
        rig.after(limits.leave_wait_s - 0.1)
        assert not of(rig.all, Stop)
        rig.after(0.2)
        assert of(rig.all, Stop)


def test_a_backup_that_loses_its_role_waits_as_a_keeper_that_may_be_named():
    rig = backup_of_r()
    rig.learn(topo(5, ALONE, rset("r", "r-1", "r-2")))
    rig = copied(StatefulMachine(QR, "r", "r-2"), rset("r", "r-1", joining=("r-2",)))
    effects = rig.learn(topo(4, ALONE, R))
    assert not of(effects, Stop)
    assert of(effects, Leave, to="q-2")
    assert of(rig.learn(topo(5, replace(ALONE, keepers=("F-1",)), R)), Stop)


# -- who keeps a state, and fetches its own ------------------------------------------------------------------


def keeps_each_others() -> dict[str, Rig]:
    """r-2 keeps q's state and is r's fresh primary; q-9 keeps r's and is q's. They lose each other."""
    rigs = {"r-2": Rig(StatefulMachine(QR, "r", "r-2")), "q-9": Rig(StatefulMachine(QR, "q", "q-9"))}
    of_q, of_r = ALONE, rset("r", "r-1", epoch=2, ends=((1, 0),))
    for rig in rigs.values():
        rig.ready(P("fresh"))
        rig.step(MembersChanged((member("F-1"), member("q-9"), member("r-2"))))
        rig.learn(topo(3, of_q, of_r))
    rigs["r-2"].get("q-2", copy_of())
    rigs["q-9"].get("r-1", StateCopy("r", 2, 0, (), Completion(()), "", P("r's state")))
    of_q, of_r = replace(of_q, keepers=("r-2",)), replace(of_r, keepers=("q-9",))
    for rig in rigs.values():
        rig.learn(topo(4, of_q, of_r))
    of_q = replace(of_q, epoch=3, primary="q-9", ends=((1, 0), (2, 0)))
    of_r = replace(of_r, epoch=3, primary="r-2", ends=((1, 0), (2, 0)))
    for rig in rigs.values():
        rig.learn(topo(5, of_q, of_r, revoked=("q-2", "r-1")))
    rigs["r-2"].step(PeerDown("q-9"))
    rigs["q-9"].step(PeerDown("r-2"))
    for rig in rigs.values():
        rig.after(limits.backup_lag_max_s + 0.1)
    return rigs


def test_two_that_keep_each_others_state_go_on_asking_for_their_own():
    rigs = keeps_each_others()
    assert {rig.machine.role for rig in rigs.values()} == {"joining"}
    for name, other in (("r-2", "q-9"), ("q-9", "r-2")):
        rigs[name].all.clear()
        rigs[name].step(PeerUp(other))
        (ask,) = of(rigs[name].all, AskCopy, to=other)
        (copy,) = of(rigs[other].get(name, ask), StateCopy, to=name)
        rigs[name].get(other, copy)
    assert {rig.machine.role for rig in rigs.values()} == {"primary"}
    for rig, name in ((rigs["r-2"], "q"), (rigs["q-9"], "r")):
        alone = rset(name, f"{name}-8", epoch=4, ends=((3, 0),))
        rig.learn(replace(rig.machine.knowledge.topology.with_set(alone), generation=6))
        copy = StateCopy(name, 4, 0, (), Completion(()), "", P("another"))
        assert of(rig.get(f"{name}-8", copy), RecordAck), "it keeps states as before"


def test_who_fetches_from_a_keeper_that_was_out_of_reach_already_gives_up_in_time():
    rig = Rig(StatefulMachine(QR, "r", "r-2"))
    rig.ready(P("fresh"))
    rig.learn(topo(3, ALONE, rset("r", "r-1")))
    rig.step(PeerDown("F-1"))
    fetches = replace(rset("r", "r-2", epoch=2, ends=((1, 0),)), keepers=("F-1",))
    rig.learn(topo(4, ALONE, fetches, revoked=("r-1",)))
    rig.after(limits.backup_lag_max_s + 0.1)
    assert of(rig.all, Stop)


def test_a_joiner_of_a_revoked_primary_ends_at_once():
    """What that one has proposed cannot be committed any more."""
    rig = Rig(StatefulMachine(QR, "r", "r-2"))
    rig.ready(P("fresh"))
    joins = rset("r", "r-1", joining=("r-2",))
    rig.learn(topo(3, ALONE, joins))
    rig.get("r-1", StateCopy("r", 1, 0, (), Completion(()), "", P("r's state")))
    rig.step(Loaded(0))
    rig.learn(topo(4, ALONE, replace(joins, keepers=("F-1",)), revoked=("r-1",)))
    assert of(rig.step(Drain()), Stop)
