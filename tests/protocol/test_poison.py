"""Requests that kill the model (section 3): only a death while alone counts, and after `maxAttempts` of them the request gets the error."""

from kit import R0, R1, active_of, graph, of, op, primary_of, rset, table, topo, value

from hams_protocol.effects import NoteExec, StartBatch
from hams_protocol.events import ModelDied
from hams_protocol.graph import FRONTEND
from hams_protocol.messages import Attempt, Deliver


def pair():
    return graph(op("p", FRONTEND, to=("q",), rows=4), op("q", "p", stateful=True, rows=4))


AT = topo(1, table("p", ("p-1", 1)), rset("q", "q-1", "q-2"))


def counts(effects):
    return [(item.request.n, item.attempts) for item in of(effects, Attempt)]


def test_a_batch_that_dies_runs_again_one_unit_per_batch_and_nobody_is_blamed_yet():
    rig = primary_of(pair(), "q", AT)
    rig.token("p-1", value("p", R1._replace(n=9), "p:9"))
    rig.token("p-1", value("p", R0, "p:0"))
    rig.token("p-1", value("p", R1, "p:1"))
    rig.run()
    assert rig.units == (R0, R1)
    effects = rig.step(ModelDied("killed"))
    assert counts(effects) == [(0, 1), (1, 1)], "their owners upstream are told"
    rig.loaded(rig.ready(None))
    assert rig.units == (R0,)


def test_before_a_suspect_runs_alone_it_is_said_upstream_what_its_death_would_mean():
    rig = primary_of(pair(), "q", AT)
    effects = rig.token("p-1", value("p", R0, "p:0"), attempts=1)
    assert counts(effects) == [(0, 2)]
    rig.want()
    assert counts(rig.done()) == [(0, 1)], "and that it came through"


def test_after_max_attempts_the_request_gets_a_typed_error_and_others_are_served():
    rig = primary_of(pair(), "q", AT)
    rig.token("p-1", value("p", R0, "p:0"))
    for _ in range(3):
        rig.step(ModelDied("killed"))
        effects = rig.loaded(rig.ready(None))
    (sent,) = of(effects, Deliver, "F-1")
    assert sent.token.error.op == "q"
    assert "2 times" in sent.token.error.message
    assert of(rig.token("p-1", value("p", R1, "p:1")), StartBatch)


def test_the_owner_upstream_hands_the_count_to_a_successor():
    rig = active_of(pair(), "p", "p-1", AT)
    rig.token("F-1", value("F", R0, "0/0"))
    rig.done(updated=False)
    rig.get("q-1", Attempt("p", "q", R0, (), 3))
    effects = rig.learn(topo(2, table("p", ("p-1", 1)), rset("q", "q-2", epoch=2, ends=((1, 0),)), revoked=("q-1",)))
    assert of(effects, Deliver, "q-2")[0].attempts == 3


def test_poison_at_a_stateless_operator_is_an_error_too():
    rig = active_of(pair(), "p", "p-1", AT)
    effects = rig.token("F-1", value("F", R0, "0/0"), attempts=3)
    assert of(effects, NoteExec)
    assert of(effects, Deliver, "q-1")[0].token.error is not None
