"""Instances that nobody reaches, or that are gone: nobody waits for them for ever (sections 2, 6, 7.2).

A peer that never was connected breaks no connection, so no `PeerDown` tells of it.
"""

from dataclasses import replace

from kit import P, Rig, of, primary_of, rset, table, topo
from test_keeper import DATA, P_SLOT, QR, member

from hams_protocol.effects import Propose, Stop
from hams_protocol.events import CasSettled, Drain, Member, MembersChanged, PeerDown, PeerUp
from hams_protocol.messages import (
    HOLDS,
    AskCopy,
    Fence,
    FenceAnswer,
    Freeze,
    FreezeAnswer,
    Health,
    Probe,
    ProbeAnswer,
    RoleReport,
)
from hams_protocol.recovery import ManagerMachine
from hams_protocol.stateful.machine import StatefulMachine

M = Member("m-1", "manager", "")
FETCHES = replace(rset("q", "q-3", epoch=3, ends=((1, 0), (2, 0))), keepers=("p-1",))
TENTHS = 450
"""How long these wait, in tenths of a second: longer than for anybody out of reach."""


def fresh(*registered: str) -> Rig:
    """A fresh instance of q, which sees these besides itself and a manager."""
    rig = Rig(StatefulMachine(DATA, "q", "q-3"))
    rig.ready(P("state 0 of its own"))
    rig.step(MembersChanged((*map(member, ("F-1", *registered, "q-3")), M)))
    return rig


def settle(rig, now):
    """What it has proposed is committed."""
    proposed, rig.all = of(rig.all, Propose), []
    for item in proposed[-1:]:
        now = item.topology
        rig.step(CasSettled(now, now.generation, committed=True))
    return now


def both(one, rig, here, now, others, tenths):
    """A manager and the primary q-3 for so many tenths of a second, beside `others` who answer its probes. If
    q-3 stops, nobody listens there any more."""
    ended = False
    for _ in range(tenths):
        effects, rig.all = rig.all[:], []
        for peer in others:
            for probe in of(effects, Probe, to=peer):
                rig.get(peer, ProbeAnswer(probe.nonce, Health.HEALTHY, now.generation, ()))
        for probe in of(effects, Probe, to="q-3"):
            for answer in of(one.get("m-1", probe), ProbeAnswer, to="m-1"):
                rig.get("q-3", answer)
        for item in of(effects, Propose)[-1:]:
            now = item.topology
            rig.step(CasSettled(now, now.generation, committed=True))
            one.learn(now)
        if of(one.all, Stop) and not ended:
            ended = True
            rig.step(PeerDown("q-3", refused=True))
            rig.step(MembersChanged(tuple(item for item in here if item.instance != "q-3")))
        rig.after(0.1)
        one.after(0.1)
    return now


def test_a_primary_gives_up_on_a_keeper_that_it_never_reached():
    rig = fresh("p-2")
    rig.learn(topo(5, FETCHES, table("p", ("p-2", 2)), revoked=("q-1", "q-2")))
    for _ in range(TENTHS):
        rig.after(0.1)
    assert of(rig.all, AskCopy, to="p-1")
    assert of(rig.all, Stop)


def test_so_it_does_where_the_break_was_forgotten_with_the_lease():
    rig = fresh("p-1", "p-2")
    rig.learn(topo(3, rset("q", "q-2", epoch=2, ends=((1, 0),)), P_SLOT, revoked=("q-1",)))
    rig.step(PeerUp("p-1"))
    rig.step(PeerDown("p-1", refused=True))
    rig.step(MembersChanged((*map(member, ("F-1", "p-2", "q-3")), M)))
    rig.learn(topo(5, FETCHES, P_SLOT, revoked=("q-1", "q-2")))
    for _ in range(TENTHS):
        rig.after(0.1)
    assert of(rig.all, Stop)


def test_a_set_whose_primary_never_reached_its_keeper_is_lost_and_not_waited_for():
    one, rig = fresh("p-2", "q-4"), Rig(ManagerMachine(DATA, "m-1"))
    here = [*map(member, ("F-1", "p-2", "q-3", "q-4")), M]
    now = topo(5, FETCHES, table("p", ("p-2", 2)), revoked=("q-1", "q-2"))
    rig.step(MembersChanged(tuple(here)))
    for each in (rig, one):
        each.learn(now)
    for peer in ("F-1", "p-2", "q-3", "q-4"):
        rig.step(PeerUp(peer))
    rig.step(PeerDown("p-1", refused=True))
    now = both(one, rig, here, now, ("F-1", "p-2", "q-4"), TENTHS)
    assert now.find("q").lost


def test_where_two_fetch_from_each_other_and_one_dies_the_state_that_the_other_keeps_goes_on():
    """The state of the other is lost: it was with the one that died."""
    q = replace(rset("q", "q-9", epoch=3, ends=((1, 0), (2, 0))), keepers=("r-2",))
    r = replace(rset("r", "r-2", epoch=3, ends=((1, 0), (2, 0))), keepers=("q-9",))
    here = (*map(member, ("F-1", "p-1", "q-9", "r-2", "q-10", "r-10")), M)
    rig = Rig(ManagerMachine(QR, "m-1"))
    rig.step(MembersChanged(here))
    rig.learn(topo(5, q, r, table("p", ("p-1", 1)), revoked=("q-2", "r-1")))
    for item in here[:-1]:
        rig.step(PeerUp(item.instance))
    rig.after(1.0)
    rig.step(PeerDown("q-9", refused=True))
    rig.step(MembersChanged(tuple(item for item in here if item.instance != "q-9")))
    now = rig.machine.knowledge.topology
    for _ in range(TENTHS):
        effects, rig.all = rig.all[:], []
        for peer in ("F-1", "p-1", "q-10", "r-10", "r-2"):
            roles = (RoleReport("r", "joining", 0, -1, False), RoleReport("q", HOLDS, 3, 0, False))
            for probe in of(effects, Probe, to=peer):
                told = roles if peer == "r-2" else ()
                rig.get(peer, ProbeAnswer(probe.nonce, Health.HEALTHY, now.generation, told))
        for asked in of(effects, Fence, to="r-2"):
            answer = FenceAnswer(asked.attempt, asked.generation, asked.name, 3, False, ())
            rig.get("r-2", answer)
        for frozen in of(effects, Freeze, to="r-2"):
            applied = 0 if frozen.name == "q" else None
            answered = (frozen.attempt, frozen.generation, frozen.name, frozen.epoch, applied)
            rig.get("r-2", FreezeAnswer(*answered))
        for item in of(effects, Propose)[-1:]:
            now = item.topology
            rig.step(CasSettled(now, now.generation, committed=True))
        rig.after(0.1)
    assert now.find("q").primary == "q-10"


def test_a_joiner_that_was_never_heard_makes_room_for_another_one():
    one = replace(rset("q", "q-1"), joining=("q-2",))
    rig = primary_of(DATA, "q", topo(3, one, P_SLOT))
    rig.step(MembersChanged((*map(member, ("F-1", "p-1", "q-1", "q-2", "q-3")), M)))
    rig.step(Drain())
    now = rig.machine.knowledge.topology
    for _ in range(TENTHS):
        now = settle(rig, now)
        rig.after(0.1)
    assert now.find("q").joining == ("q-3",)
