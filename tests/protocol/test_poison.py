"""Requests that kill the model (section 3): only a death while alone counts, and after `maxAttempts` of them
the request gets the error."""

import pytest
from kit import R0, R1, R2, active_of, dep, graph, of, op, primary_of, rset, table, topo, value

from hams_protocol import limits
from hams_protocol.effects import AbandonBatch, NoteExec, Send, StartBatch
from hams_protocol.events import BatchFailed, ModelDied
from hams_protocol.graph import FRONTEND
from hams_protocol.messages import Attempt, AttemptAck, Completion, Deliver


def pair():
    return graph(op("p", FRONTEND, to=("q",), rows=4), op("q", "p", stateful=True, rows=4))


AT = topo(1, table("p", ("p-1", 1)), rset("q", "q-1", "q-2"))


def counts(effects):
    return [(item.request.n, item.attempts) for item in of(effects, Attempt)]


def heard(rig, effects):
    """The owners upstream acknowledge what was said."""
    said = [item for item in effects if isinstance(item, Send) and isinstance(item.message, Attempt)]
    for attempt in said:
        message = attempt.message
        effects = rig.get(
            attempt.target, AttemptAck(message.source, message.request, message.lane, message.serial)
        )
    return effects


def test_a_batch_that_dies_runs_again_one_unit_per_batch_and_nobody_is_blamed_yet():
    rig = primary_of(pair(), "q", AT)
    rig.token("p-1", value("p", R1._replace(n=9), "p:9"))
    rig.token("p-1", value("p", R0, "p:0"))
    rig.token("p-1", value("p", R1, "p:1"))
    rig.run()
    assert rig.units == (R0, R1)
    effects = rig.step(ModelDied("killed"))
    assert counts(effects) == [(0, 1), (1, 1)], "their owners upstream are told"
    heard(rig, effects)
    heard(rig, rig.loaded(rig.ready(None)))
    assert rig.units == (R0,)


def test_before_a_suspect_runs_alone_it_is_said_upstream_what_its_death_would_mean():
    rig = primary_of(pair(), "q", AT)
    effects = rig.token("p-1", value("p", R0, "p:0"), attempts=1)
    assert counts(effects) == [(0, 2)]
    heard(rig, effects)
    rig.want()
    assert counts(rig.done()) == [(0, 1)], "and that it came through"


def test_a_suspect_runs_alone_only_after_its_upstream_has_acknowledged_what_was_said():
    rig = primary_of(pair(), "q", AT)
    effects = rig.token("p-1", value("p", R0, "p:0"), attempts=1)
    assert not of(effects, StartBatch), "if it died now, nobody would know of what"
    again = rig.after(limits.resend_after_s)
    assert counts(again) == [(0, 2)], "the word may have been lost"
    assert of(heard(rig, again), StartBatch)
    rig.want()
    through = rig.done()
    rig.capture(through)
    assert counts(rig.token("p-1", value("p", R1, "p:1"), attempts=1)) == [], (
        "the next one waits for the all-clear of the one before"
    )
    assert counts(heard(rig, through)) == [(1, 2)]


def test_others_wait_for_an_acknowledgement_for_a_while_only():
    rig = primary_of(pair(), "q", AT)
    rig.members(p_1="p", q_1="q", q_2="q")
    rig.token("p-1", value("p", R0, "p:0"), attempts=1)
    assert not of(rig.token("p-1", value("p", R1, "p:1")), StartBatch)
    rig.after(limits.attempt_wait_s)
    assert rig.units == (R1,)
    rig.run()
    effects = rig.after(limits.resend_after_s)
    heard(rig, effects)
    assert rig.units == (R0,)


def test_a_suspect_of_which_an_instance_died_waits_for_a_backup_in_sync_and_others_are_served():
    alone = topo(1, table("p", ("p-1", 1)), rset("q", "q-1"))
    rig = primary_of(pair(), "q", alone)
    assert counts(rig.token("p-1", value("p", R0, "p:0"), attempts=1)) == [], "its death could lose the state"
    assert of(rig.token("p-1", value("p", R1, "p:1")), StartBatch)
    rig.run()
    effects = rig.learn(topo(2, table("p", ("p-1", 1)), rset("q", "q-1", "q-2")))
    assert counts(effects) == [(0, 2)]


def test_a_suspect_that_this_proxy_has_outlived_may_run_without_a_backup():
    rig = primary_of(pair(), "q", topo(1, table("p", ("p-1", 1)), rset("q", "q-1")))
    rig.token("p-1", value("p", R0, "p:0"))
    heard(rig, rig.step(ModelDied("killed")))
    assert counts(rig.loaded(rig.ready(None))) == [(0, 2)]


def test_a_suspect_that_is_announced_waits_if_the_last_backup_leaves_before_it_runs():
    rig = primary_of(pair(), "q", AT)
    effects = rig.token("p-1", value("p", R0, "p:0"), attempts=1)
    rig.learn(topo(2, table("p", ("p-1", 1)), rset("q", "q-1")))
    called_off = heard(rig, effects)
    assert counts(called_off) == [(0, 1)]
    assert not of(called_off, StartBatch)
    assert not of(heard(rig, called_off), StartBatch)


def test_a_set_that_goes_back_while_a_suspect_runs_alone_counts_no_death():
    rig = primary_of(pair(), "q", AT)
    assert of(heard(rig, rig.token("p-1", value("p", R0, "p:0"), attempts=1)), StartBatch)
    effects = rig.learn(topo(2, table("p", ("p-1", 1)), rset("q", "q-1", "q-2", epoch=2, ends=((1, 0),))))
    rig.loaded(effects)
    assert counts(rig.after(0.01)) == [], "its upstream takes the announcement back by itself"
    again = rig.token("p-1", value("p", R0, "p:0"), attempts=1)
    assert counts(again) == [(0, 2)]
    assert [attempt.alone_in for attempt in of(again, Attempt)] == [2]


def test_after_max_attempts_the_request_gets_a_typed_error_and_others_are_served():
    rig = primary_of(pair(), "q", AT)
    rig.token("p-1", value("p", R0, "p:0"))
    for _ in range(3):
        heard(rig, rig.step(ModelDied("killed")))
        effects = rig.loaded(rig.ready(None))
        heard(rig, effects)
    (sent,) = of(effects, Deliver, "F-1")
    assert sent.token.error.op == "q"
    assert "2 times" in sent.token.error.message
    assert of(rig.token("p-1", value("p", R1, "p:1")), StartBatch)


def test_who_is_not_the_owner_any_more_is_not_heard():
    rig = active_of(pair(), "p", "p-1", AT)
    rig.token("F-1", value("F", R0, "0/0"))
    rig.done(updated=False)
    assert not of(rig.get("q-2", Attempt("p", "q", R0, (), 3, 1)), AttemptAck)
    assert of(rig.get("q-1", Attempt("p", "q", R0, (), 2, 2)), AttemptAck)
    assert of(rig.get("q-1", Attempt("p", "q", R0, (), 3, 1)), AttemptAck), (
        "said before, come late: nothing new"
    )
    effects = rig.learn(
        topo(2, table("p", ("p-1", 1)), rset("q", "q-2", epoch=2, ends=((1, 0),)), revoked=("q-1",))
    )
    assert of(effects, Deliver, "q-2")[0].attempts == 2


def test_the_owner_upstream_hands_the_count_to_a_successor():
    rig = active_of(pair(), "p", "p-1", AT)
    rig.token("F-1", value("F", R0, "0/0"))
    rig.done(updated=False)
    rig.get("q-1", Attempt("p", "q", R0, (), 3, 1))
    effects = rig.learn(
        topo(2, table("p", ("p-1", 1)), rset("q", "q-2", epoch=2, ends=((1, 0),)), revoked=("q-1",))
    )
    assert of(effects, Deliver, "q-2")[0].attempts == 3


def test_poison_at_a_stateless_operator_is_an_error_too():
    rig = active_of(pair(), "p", "p-1", AT)
    effects = rig.token("F-1", value("F", R0, "0/0"), attempts=3)
    assert of(effects, NoteExec)
    assert of(effects, Deliver, "q-1")[0].token.error is not None


def test_a_suspect_whose_request_completes_while_it_runs_holds_up_no_other():
    rig = primary_of(pair(), "q", AT)
    rig.token("p-1", value("p", R1._replace(n=9), "p:9"))
    rig.want()
    rig.done()
    heard(rig, rig.token("p-1", value("p", R0, "p:0"), attempts=1))
    assert rig.units == (R0,)
    assert not rig.want(), "the capture before is not complete"
    # the state had begun again from less than what that stems from
    completed = rig.get("F-1", Completion(((0, 1, ()),)))
    assert of(completed, AbandonBatch)
    rig.step(BatchFailed(rig.batch, "abandoned", False))
    said = rig.token("p-1", value("p", R1, "p:1"), attempts=1)
    assert counts(said) == [(1, 2)]
    assert of(heard(rig, said), StartBatch)
    assert rig.units == (R1,)


def join(stateful=False):
    return graph(
        op("p", FRONTEND, to=("s",), stateful=True),
        op("r", FRONTEND, to=("s",)),
        op("s", "p", "r", stateful=stateful, rows=4),
    )


def at(generation, p, stateful=False):
    return topo(
        generation, p, table("r", ("r-1", 1)), rset("s", "s-1", "s-2") if stateful else table("s", ("s-1", 1))
    )


def comes_again(rig, stateful=False):
    """One input of R0 is orphaned while its batch runs, and comes anew, behind R2, which waits."""
    for request in (R0, R1, R2):
        rig.token("r-1", value("r", request, f"r:{request.n}"))
    rig.token("p-1", value("p", R2._replace(n=9), "p:9", dep("p", 1, 1)))
    rig.token("r-1", value("r", R2._replace(n=9), "r:9"))
    rig.token("p-1", value("p", R0, "p:0", dep("p", 1, 12)))
    rig.token("p-1", value("p", R1, "p:1", dep("p", 1, 2)))
    rig.run() if stateful else rig.done()
    assert rig.units == (R0, R1)
    rig.token("p-1", value("p", R2, "p:2", dep("p", 1, 3)))
    rig.learn(at(2, rset("p", "p-2", epoch=2, ends=((1, 9),)), stateful))
    rig.token("p-2", value("p", R0, "p:0 again", dep("p", 2, 10)), epoch=2)


def served(rig, effects, stateful):
    """The requests of the next batches, from what is said of suspects on."""
    batches = []
    while True:
        while counts(effects):
            effects = heard(rig, effects)
        batches.append(rig.units)
        if len(batches) == 3:
            return batches
        effects = rig.run() if stateful else rig.done()


@pytest.mark.parametrize("stateful", [False, True])
def test_a_unit_that_waits_again_when_its_model_dies_is_a_suspect_before_others(stateful):
    first = at(1, rset("p", "p-1", "p-2"), stateful)
    rig = primary_of(join(True), "s", first) if stateful else active_of(join(), "s", "s-1", first)
    comes_again(rig, stateful)
    heard(rig, rig.step(ModelDied("killed")))
    effects = rig.loaded(rig.ready(None)) if stateful else rig.ready()
    assert served(rig, effects, stateful) == [(R0,), (R1,), (R2,)], "each alone, and before what waited"


def test_a_unit_that_waits_again_when_its_batch_raises_runs_alone_before_others():
    rig = primary_of(join(True), "s", at(1, rset("p", "p-1", "p-2"), True))
    comes_again(rig, True)
    effects = rig.step(BatchFailed(rig.batch, "raised", False))
    assert served(rig, effects, True) == [(R1,), (R0,), (R2,)], "each alone, and before what waited"
