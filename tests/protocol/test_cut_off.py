"""A manager that was cut off hears others before it judges them, and nobody else is slower (ADR 0037)."""

from dataclasses import replace

from kit import of, rset, topo
from test_recovery import EVERYBODY, P, Q, S, manager, proposed

from hams_protocol import limits
from hams_protocol.effects import Propose, Send
from hams_protocol.events import CasSettled, CasUnknown, PeerDown
from hams_protocol.messages import Health, Heartbeat, Probe, ProbeAnswer


def commit(rig, now):
    """What this manager has proposed is committed; the topology then."""
    while rig.machine._proposing:
        now = of(rig.all, Propose)[-1].topology
        rig.step(CasSettled(now, now.generation, True))
    return now


def hears_all(rig):
    for name in EVERYBODY:
        rig.get(name.replace("_", "-"), Heartbeat(1))


def cut_off():
    """A manager that heard all, hears nobody, and does not reach etcd."""
    rig = manager(P, Q, S)
    hears_all(rig)
    for name in EVERYBODY:
        rig.step(PeerDown(name.replace("_", "-")))
    rig.after(0.6)
    rig.step(CasUnknown())
    rig.all.clear()
    return rig


def test_a_manager_that_was_cut_off_alone_hears_others_before_it_judges_them():
    """Its machine has no other instance of the graph, so nobody has taken a role meanwhile: nothing that etcd
    says shows that it was away."""
    rig = cut_off()
    rig.learn(topo(1, P, Q, S))  # etcd is within reach again
    for _ in range(4):
        rig.after(limits.doubt_s / 8)  # the others are not yet
    assert not of(rig.all, Propose), "it hears nobody at all, and revokes all who own slots"


def test_where_the_larger_machine_dies_slots_move_at_once_though_a_primary_drops_its_backups_first():
    """p-1 and s-2 are left. p-1 drops its dead backups as soon as this manager suspects them."""
    rig = manager(P, Q, S)
    hears_all(rig)
    for name in ("p-2", "p-3", "q-1", "q-2", "s-1", "F-1"):
        rig.step(PeerDown(name))
    rig.after(0.15)
    now = topo(2, rset("p", "p-1"), Q, S)
    rig.learn(now)
    now = commit(rig, now)
    for _ in range(5):
        rig.after(0.1)
        now = commit(rig, now)
    assert "s-1" in now.revoked, "ADR 0037: nothing changes where a machine dies"


def test_a_doubt_is_not_renewed_for_ever_by_a_link_that_flaps_between_two_others():
    """Most are dead. q-1 drops q-2 and takes it in again, over and over: this manager hears both all the
    time."""
    rig = manager(P, Q, S)
    hears_all(rig)
    for name in ("p-1", "p-2", "p-3", "s-1", "F-1"):
        rig.step(PeerDown(name))
    now = topo(1, P, Q, S)
    while rig.now < 2 * limits.silence_max_s and "s-1" not in now.revoked:
        q = rset("q", "q-1") if now.find("q").in_sync else Q
        now = replace(now.with_set(q), generation=now.generation + 1)
        rig.learn(now)
        now = commit(rig, now)
        for _ in range(2):
            rig.after(limits.doubt_s / 8)
            for name in ("q-1", "q-2"):
                for nonce in probes_to(rig, name):
                    rig.get(name, ProbeAnswer(nonce, Health.HEALTHY, now.generation))
            now = commit(rig, now)
            rig.all.clear()
    assert rig.now < limits.silence_max_s, "protocol.md, 6: a silence of 30 s counts"


def probes_to(rig, name):
    return {
        i.message.nonce
        for i in rig.all
        if isinstance(i, Send) and i.target == name and isinstance(i.message, Probe)
    }


def test_its_own_commit_makes_no_manager_doubt_itself():
    """p-1, p-2, p-3, q-2 and F-1 are gone with their machine. A process on another one ends: its address
    refuses connections, and this manager revokes it. That is no sign that this manager was cut off."""
    rig = manager(P, Q, S, s_3="s", **EVERYBODY)
    hears_all(rig)
    for name in ("p-1", "p-2", "p-3", "q-2", "F-1"):
        rig.step(PeerDown(name))
    changed = proposed(rig.step(PeerDown("s-1", refused=True)))
    assert changed.revoked == ("s-1",)
    rig.step(CasSettled(changed, 2, True))
    assert rig.machine.suspicions._doubts_until < rig.now


def test_a_manager_that_hears_nobody_at_all_was_cut_off_though_nobody_has_lost_a_role():
    rig = cut_off()
    rig.learn(topo(2, P, rset("q", "q-1", "q-2", joining=("q-3",)), S))
    for _ in range(4):
        rig.after(limits.doubt_s / 8)
    assert not any(item.topology.revoked for item in of(rig.all, Propose))
