"""Records that carry what changed (section 2): to whom, since which version, and what a follower makes of
them."""

from dataclasses import replace

from kit import R0, R1, P, graph, of, op, primary_of, value
from test_backup import backup, joiner, record, said
from test_followers import ASK, DATA, at, feed
from test_keeper import promoted

from hams_protocol import limits
from hams_protocol.deps import Dep
from hams_protocol.effects import Capture
from hams_protocol.events import Captured
from hams_protocol.graph import FRONTEND
from hams_protocol.messages import Completion, Durable, RecordAck, StateCopy, StateRecord
from hams_protocol.versions import VersionStore

WHOLE = graph(replace(op("q", FRONTEND, stateful=True), delta=False))


def acknowledged(rig, member, version, differences=True):
    return rig.get(member, RecordAck("q", 1, version, version, differences))


def sent(effects, to):
    return [(item.version, item.since, item.state) for item in of(effects, StateRecord, to)]


def test_a_follower_that_takes_differences_is_sent_what_changed_and_a_neighbour_the_whole_state():
    rig = primary_of(DATA, "q", at(1, "q-2", "q-3"))
    acknowledged(rig, "q-2", 0)
    acknowledged(rig, "q-3", 0, differences=False)
    effects = feed(rig, 0)
    assert sent(effects, "q-2") == [(1, 0, P("state 1 after 0", 1))]
    assert sent(effects, "q-3") == [(1, -1, P("state 1"))]


def test_nobody_is_sent_differences_before_he_has_said_that_he_takes_them():
    rig = primary_of(DATA, "q", at(1, "q-2"))
    assert sent(feed(rig, 0), "q-2") == [(1, -1, P("state 1"))]


def test_delta_off_sends_whole_states():
    rig = primary_of(WHOLE, "q", at(1, "q-2"))
    acknowledged(rig, "q-2", 0)
    assert sent(feed(rig, 0), "q-2") == [(1, -1, P("state 1"))]


def test_what_is_sent_again_is_what_changed_since_the_version_before_it():
    rig = primary_of(DATA, "q", at(1, "q-2"))
    acknowledged(rig, "q-2", 0)
    feed(rig, 0)
    feed(rig, 1)
    effects = rig.after(limits.resend_after_s + 0.01)
    assert sent(effects, "q-2") == [(1, 0, P("state 1 after 0", 1)), (2, 1, P("state 2 after 1", 1))]


def test_a_joiner_that_holds_a_version_is_sent_what_changed_since_that():
    rig = primary_of(DATA, "q", at(1, "q-2", joining=("q-3",)))
    acknowledged(rig, "q-2", 0)
    assert of(rig.get("q-3", ASK), StateCopy, "q-3")[0].since == -1
    for number in range(3):
        feed(rig, number)
        acknowledged(rig, "q-2", number + 1)
    (copy,) = of(acknowledged(rig, "q-3", 0), StateCopy, "q-3")
    assert (copy.version, copy.since, copy.state) == (3, 0, P("state 3 after 0", 1))


def test_of_a_state_that_came_whole_nothing_is_sent_again_while_it_stays_the_same():
    """It was promoted with it. Batches that change nothing make versions, and the copy's is trimmed."""
    rig = promoted()
    rig.token("p-1", value("p", R0, "p:0"))
    rig.done(updated=False)
    (copy,) = of(rig.get("p-1", RecordAck("q", 2, 0, 0, differences=True)), StateCopy, "p-1")
    assert (copy.version, copy.since, copy.state) == (1, 0, P("state 0 after 0", 1))


def test_whoever_holds_an_older_version_of_a_state_without_births_is_sent_all_of_it():
    rig = primary_of(DATA, "q", at(1, joining=("q-3",)))
    rig.get("q-3", ASK)
    effects = [*rig.token("F-1", value("F", R0, "0/0")), *rig.want(), *rig.done()]
    rig.step(Captured(of(effects, Capture)[-1].version, P("state 1")))
    rig.token("F-1", value("F", R1, "1/0"))
    rig.done(updated=False)
    (copy,) = of(acknowledged(rig, "q-3", 0), StateCopy, "q-3")
    assert (copy.version, copy.since, copy.state) == (2, -1, P("state 1"))


def test_a_version_knows_which_one_made_its_state():
    store = VersionStore()
    store.start(record(3), P("state 3"))
    versions = [store.append(record(4), True), store.append(record(5, state=False), False)]
    versions += [store.append(record(6), True), store.append(record(7, state=False), False)]
    assert [version.born for version in versions] == [4, 4, 6, 6]


def difference(version, since, deps=()):
    return replace(
        record(version, deps, previous=since), state=P(f"state {version} after {since}"), since=since
    )


def states(rig):
    return [(version.number, version.state) for version in rig.machine.store.versions]


def test_a_backup_lays_what_changed_over_the_version_that_it_changed_from():
    rig = backup()
    assert said(rig.get("q-1", difference(1, 0))) == [(1, 1)]
    assert said(rig.get("q-1", difference(2, 1))) == [(2, 2)]
    assert states(rig)[1:] == [
        (1, P("state 1 after 0 on state 0")),
        (2, P("state 2 after 1 on state 1 after 0 on state 0")),
    ]


def test_a_record_that_is_held_is_the_base_of_the_next_one():
    rig = backup()
    rig.get("q-1", difference(1, 0, (Dep("p", 1, 4),)))
    assert said(rig.get("q-1", difference(2, 1))) == [(2, 0)]
    rig.get("p-1", Durable((Dep("p", 1, 4),)))
    assert states(rig)[-1] == (2, P("state 2 after 1 on state 1 after 0 on state 0"))


def test_a_version_that_changed_nothing_is_a_base_like_any_other():
    rig = backup()
    rig.get("q-1", record(1, state=False))
    assert said(rig.get("q-1", difference(2, 1))) == [(2, 2)]
    assert states(rig)[-1] == (2, P("state 2 after 1 on state 0"))


def test_what_changed_since_a_version_that_is_not_held_is_not_acknowledged():
    rig = backup()
    assert said(rig.get("q-1", difference(3, 2))) == []
    assert said(rig.get("q-1", replace(difference(2, 0), since=1))) == []
    assert states(rig) == [(0, P("state 0"))]
    assert said(rig.get("q-1", record(1))) == [(1, 1)], "the whole state is"


def test_a_difference_that_does_not_fit_is_not_acknowledged():
    rig = backup()
    assert said(rig.get("q-1", replace(difference(1, 0), state=P("state 1 after 7")))) == []
    assert states(rig) == [(0, P("state 0"))]


def test_an_early_record_is_laid_over_what_came_before_it():
    rig = backup()
    assert said(rig.get("q-1", difference(2, 1))) == []
    assert said(rig.get("q-1", difference(1, 0)))[-1] == (2, 2)
    assert states(rig)[-1] == (2, P("state 2 after 1 on state 1 after 0 on state 0"))


def test_a_joiner_s_later_copy_is_laid_over_what_it_holds():
    rig, _ = joiner()
    copy = StateCopy("q", 1, 7, (), Completion(()), "c7", P("state 9 after 7"), since=7)
    assert said(rig.get("q-1", copy)) == [], "it holds nothing"
    rig.get("q-1", StateCopy("q", 1, 7, (), Completion(()), "c7", P("state 7")))
    assert said(rig.get("q-1", replace(copy, version=9, chain="c9"))) == [(9, -1)]
    assert states(rig) == [(9, P("state 9 after 7 on state 7"))]
