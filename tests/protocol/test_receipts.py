"""Where backups answer for what they have received (ADR 0013): stable, durable, and what a failover goes on
from."""

from collections.abc import Callable
from functools import wraps

import test_backup as b
import test_primary as p
import test_recovery as r
from kit import R0, R1, R2, P, dep, of, rset, topo, value

from hams_protocol.deps import Dep
from hams_protocol.effects import (
    LoadState,
    NoteApply,
    NoteDurable,
    NoteFailover,
    NoteStable,
    Propose,
    Stop,
)
from hams_protocol.events import PeerDown
from hams_protocol.messages import (
    AskCopy,
    AskDurable,
    Deliver,
    Durable,
    Fence,
    FenceAnswer,
    Freeze,
    FreezeAnswer,
    RecordAck,
    RetainedVersion,
    StateCopy,
    StateRecord,
)
from hams_protocol.modes import try_by_receipt
from hams_protocol.topology import ReplicaSet


def by_receipt(test: Callable[[], None]) -> Callable[[], None]:
    """Everything that the test builds goes by receipt, and nothing after it does."""

    @wraps(test)
    def run() -> None:
        try_by_receipt(True)
        try:
            test()
        finally:
            try_by_receipt(False)

    return run


def stable(effects):
    return [note.version for note in of(effects, NoteStable)]


def durable(effects):
    return [note.version for note in of(effects, NoteDurable)]


# ---- backups ----


@by_receipt
def test_a_record_is_acknowledged_once_whatever_it_depends_on_and_applied_when_that_is_durable():
    rig = b.backup()
    effects = rig.get("q-1", b.record(1, dep("p", 1, 3)))
    assert b.said(effects) == [(1, 1)]
    assert not of(effects, NoteApply)
    effects = rig.get("p-1", Durable(dep("p", 1, 3)))
    assert [note.version for note in of(effects, NoteApply)] == [1]
    assert not b.said(effects), "nobody waits for that"


@by_receipt
def test_what_is_not_held_is_not_acknowledged():
    rig = b.backup()
    assert b.said(rig.get("q-1", b.record(2))) == [], "it lacks the one before"
    assert b.said(rig.get("q-1", b.record(1)))[-1] == (2, 2)
    difference = StateRecord("q", 1, 5, 4, (), (), "c5", P("state 5 after 4"), since=4)
    assert b.said(rig.get("q-1", difference)) == [], "nor what it would be laid over"


@by_receipt
def test_a_frozen_backup_tells_all_that_it_holds_with_what_that_depends_on():
    rig = b.backup()
    rig.get("q-1", b.record(1, dep("p", 1, 3)))
    rig.get("p-1", Durable(dep("p", 1, 3)))
    rig.get("q-1", b.record(2, dep("p", 1, 4)))
    (answer,) = of(rig.get("m-1", Freeze(1, 2, "q", 1)), FreezeAnswer)
    assert (answer.applied, answer.retained) == (
        2,
        (RetainedVersion(2, dep("p", 1, 4)), RetainedVersion(1, ()), RetainedVersion(0, ())),
    )
    assert b.said(rig.get("q-1", b.record(3))) == [], "and takes none any more"


@by_receipt
def test_it_keeps_every_version_that_may_be_pending_and_the_durable_one_before_them():
    rig = b.backup()
    for version in range(1, 6):
        rig.get("q-1", b.record(version, dep("p", 1, version)))
    (answer,) = of(rig.get("m-1", Freeze(1, 2, "q", 1)), FreezeAnswer)
    assert [item.version for item in answer.retained] == [5, 4, 3, 2, 1], "the window is 3"


@by_receipt
def test_who_is_promoted_takes_over_what_the_version_depends_on_that_it_begins_with():
    rig = b.backup()
    rig.get("q-1", b.record(1, dep("p", 1, 3)))
    effects = rig.learn(b.at(3, (), epoch=2, primary="q-2", ends=((1, 1),)))
    assert of(effects, LoadState)[0].state == P("state 1")
    rig.loaded(effects)
    rig.token("p-1", value("p", R2, "p:2"))
    assert of(rig.run(), Deliver)[0].token.deps == (Dep("p", 1, 3), Dep("q", 2, 2))


@by_receipt
def test_an_end_may_go_back_to_what_is_still_held():
    rig = b.backup()
    rig.get("q-1", b.record(1, dep("p", 1, 3)))
    rig.get("q-1", b.record(2, dep("p", 1, 4)))
    rig.loaded(rig.learn(b.at(3, (), epoch=2, primary="q-2", ends=((1, 2),))))
    failed = rset("p", "p-2", epoch=2, ends=((1, 3),))
    effects = rig.learn(b.at(4, (), p=failed, epoch=3, primary="q-2", ends=((1, 2), (2, 1))))
    assert not of(effects, Stop)
    assert [(note.epoch, note.end) for note in of(effects, NoteFailover)] == [(3, 1)]
    assert of(effects, LoadState)[0].state == P("state 1")


# ---- primaries ----


@by_receipt
def test_a_version_is_stable_when_all_have_received_it_and_durable_when_all_that_it_depends_on_is():
    rig = p.primary("q-2", "q-3")
    p.feed(rig, R0, dep("p", 1, 3))
    rig.run()
    assert not stable(rig.get("q-2", RecordAck("q", 1, 1, 1)))
    effects = rig.get("q-3", RecordAck("q", 1, 1, 1))
    assert stable(effects) == [1]
    assert of(effects, Durable, "F-1") == [Durable(dep("q", 1, 1))]
    assert not of(effects, Durable, "p-2"), "tokens tell everybody else"
    assert not durable(effects)
    assert durable(rig.get("p-1", Durable(dep("p", 1, 3)))) == [1]


@by_receipt
def test_watermarks_ride_on_tokens():
    rig = p.primary("q-2")
    p.feed(rig, R0, dep("p", 1, 3))
    rig.run()
    rig.get("q-2", RecordAck("q", 1, 1, 1))
    token = value("p", R1, "p:1", dep("p", 1, 4))
    effects = rig.get("p-1", Deliver("q", 1, token, 0, dep("p", 1, 3)))
    assert durable(effects) == [1]
    rig.want()
    assert of(rig.done(), Deliver)[0].marks == (Dep("p", 1, 3), Dep("q", 1, 1))


@by_receipt
def test_a_primary_whose_window_is_full_asks_at_once_for_what_is_stable_by_now():
    rig = p.primary("q-2", window=1)
    p.feed(rig, R0, dep("p", 1, 3))
    rig.run()
    effects = rig.get("q-2", RecordAck("q", 1, 1, 1))
    assert of(effects, AskDurable, "p-1") == [AskDurable("p")]
    assert not of(p.feed(rig, R1), AskDurable), "once in a while"


@by_receipt
def test_who_asks_is_told_all_watermarks_that_are_known():
    rig = p.primary("q-2")
    rig.get("p-1", Durable(dep("p", 1, 3)))
    effects = rig.get("q-2", AskDurable("q"))
    assert of(effects, Durable, "q-2") == [Durable((Dep("q", 1, 0), Dep("p", 1, 3)))]


@by_receipt
def test_a_joiner_copies_what_is_durable_and_not_what_is_stable():
    rig = p.primary("q-2")
    p.feed(rig, R0, dep("p", 1, 3))
    rig.run()
    rig.get("q-2", RecordAck("q", 1, 1, 1))
    rig.learn(p.at(2, "q-2", joining=("q-3",)))
    (copy,) = of(rig.get("q-3", AskCopy("q", 1, -1, 2)), StateCopy)
    assert copy.version == 0


@by_receipt
def test_nobody_is_admitted_who_lacks_what_is_stable():
    rig = p.primary()
    rig.members(q_1="q", q_2="q")
    rig.learn(p.at(2, joining=("q-2",)))
    rig.get("q-2", AskCopy("q", 1, -1, 2))
    p.feed(rig, R0)
    rig.run()
    effects = rig.get("q-2", RecordAck("q", 1, 0, 0))
    assert of(effects, StateCopy, "q-2"), "what it lacks"
    assert not of(effects, Propose)
    (change,) = of(rig.get("q-2", RecordAck("q", 1, 1, 1)), Propose)
    assert change.topology.find("q").in_sync == ("q-2",)


# ---- managers ----


def held(*versions):
    return tuple(RetainedVersion(version, deps) for version, deps in versions)


def answers(rig, of_set, **retained):
    """Backups answer the last Freeze that they were sent."""
    asked = r.freezes(rig.all)
    effects = []
    for name, versions in retained.items():
        instance = name.replace("_", "-")
        attempt = asked[instance]
        effects = rig.get(instance, FreezeAnswer(attempt, 1, of_set, 1, versions[0].version, "", versions))
    return effects


P_HAS = held((9, ()), (8, ()), (7, ()))


@by_receipt
def test_a_set_goes_on_from_the_newest_version_held_whose_dependencies_survive():
    rig = r.orphaned()
    answers(rig, "p", p_2=P_HAS, p_3=P_HAS)
    fence = [item for item in of(rig.all, Fence) if item.name == "q"][-1]
    assert fence.ends == (Dep("p", 1, 9),)
    had = held((6, dep("p", 1, 10)), (5, dep("p", 1, 9)), (4, ()))
    rig.get("q-1", FenceAnswer(fence.attempt, 1, "q", 1, True, had))
    topology = r.proposed(answers(rig, "q", q_2=had))
    assert topology.find("p").ends == ((1, 9),)
    assert topology.find("q").ends == ((1, 5),), "pending survives, lost does not"
    assert (topology.find("q").primary, topology.find("q").in_sync) == ("q-2", ("q-1",))


@by_receipt
def test_ends_are_sought_anew_with_each_answer_and_only_sink():
    rig = r.manager(rset("p", "p-1", "p-2"), r.Q, r.S)
    rig.step(PeerDown("p-1", refused=True))
    rig.step(PeerDown("q-1", refused=True))
    for instance in ("p-1", "q-1"):
        assert instance not in r.freezes(rig.all)
    answers(rig, "q", q_2=held((6, dep("p", 1, 10)), (5, dep("p", 1, 9)), (4, ())))
    topology = r.proposed(answers(rig, "p", p_2=P_HAS))
    assert (topology.find("p").ends, topology.find("q").ends) == (((1, 9),), ((1, 5),))


@by_receipt
def test_a_keeper_that_alone_has_a_state_is_waited_for_and_tells_what_survives():
    kept = ReplicaSet("q", 2, "q-2", (), ("q-1",), ((1, 6),), keepers=("s-2",))
    rig = r.manager(r.P, kept, r.S)
    rig.step(PeerDown("p-1", refused=True))
    answers(rig, "p", p_2=P_HAS, p_3=P_HAS)
    fence = [item for item in of(rig.all, Fence) if item.name == "q"][-1]
    rig.get("q-2", FenceAnswer(fence.attempt, 1, "q", 2, True, ()))
    rig.step(PeerDown("s-2", refused=True))
    rig.after(2.0)
    assert not of(rig.all, Propose), "it is all that there is"
    asked = r.freezes(rig.all)["s-2"]
    has = held((6, dep("p", 1, 10)), (5, ()))
    topology = r.proposed(rig.get("s-2", FreezeAnswer(asked, 1, "q", 2, 6, "", has)))
    moved = topology.find("q")
    assert (moved.primary, moved.keepers, moved.ends) == ("q-2", ("s-2",), ((1, 6), (2, 5)))


@by_receipt
def test_a_primary_that_has_not_got_its_state_yet_does_not_say_that_it_is_clean():
    rig = b.joiner()[0]
    named = ReplicaSet("q", 2, "q-2", (), (), ((1, 4),), keepers=("p-1",))
    rig.learn(topo(2, rset("p", "p-1"), named))
    (answer,) = of(rig.get("m-1", Fence(1, 2, "q", dep("p", 1, 3))), FenceAnswer)
    assert (answer.tainted, answer.retained) == (True, ())


def test_nothing_of_this_is_so_unless_it_is_switched_on():
    rig = b.backup()
    assert b.said(rig.get("q-1", b.record(1, dep("p", 1, 3)))) == [(1, 0)]
    primary = p.primary("q-2")
    p.feed(primary, R0)
    effects = primary.run() + primary.get("q-2", RecordAck("q", 1, 1, 1))
    assert not stable(effects)
    assert durable(effects) == [1]
    assert all(not sent.marks for sent in of(effects, Deliver))
