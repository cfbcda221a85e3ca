"""What an instance cannot read (section 3): it ends one request, and neither a connection, nor a log, nor a
set."""

from dataclasses import replace

from kit import R0, P, Rig, active_of, dep, graph, of, op, primary_of, rset, skip, table, topo, value

from hams_protocol.effects import Capture, LoadState, NoteExec, StartBatch, Stop
from hams_protocol.events import ModelReady
from hams_protocol.graph import FRONTEND, Join
from hams_protocol.joins import JoinBuffer
from hams_protocol.messages import (
    Completion,
    Deliver,
    Kind,
    ModelError,
    RecordAck,
    SlotAnswer,
    SlotQuery,
    StateCopy,
    StateRecord,
    TokenAcks,
)
from hams_protocol.stateful.machine import StatefulMachine

BAD = P("x", defect="a dimension of -1")
ERROR = ModelError("q", 'cannot read what "p" sent: a dimension of -1')


def unreadable(source="p", request=R0, value_id="p:0", deps=(), **fields):
    return value(source, request, value_id, deps, payload=BAD, **fields)


def test_a_stateless_operator_makes_an_error_of_it_and_acknowledges_it():
    data = graph(op("p", FRONTEND, to=("q",)), op("q", "p"))
    rig = active_of(data, "q", "q-1", topo(1, table("p", ("p-1", 1)), table("q", ("q-1", 1))))
    effects = rig.token("p-1", unreadable())
    assert not of(effects, StartBatch)
    assert [(item.token.kind, item.token.error) for item in of(effects, Deliver)] == [(Kind.ERROR, ERROR)]
    assert of(rig.after(1.0), TokenAcks)[0].acks[0].value_id == "p:0"


def test_at_a_primary_the_error_takes_a_seq_and_a_record_but_no_model_and_no_capture():
    data = graph(op("p", FRONTEND, to=("q",), stateful=True), op("q", "p", stateful=True))
    rig = primary_of(data, "q", topo(1, rset("p", "p-1", "p-2"), rset("q", "q-1", "q-2")))
    rig.get("q-2", RecordAck("q", 1, 0, 0))
    effects = rig.token("p-1", unreadable(deps=dep("p", 1, 3)))
    assert not of(effects, StartBatch)
    assert not of(effects, Capture)
    (record,) = of(effects, StateRecord)
    assert record.state is None
    assert record.units[0].outputs[0][1].error == ERROR
    assert [(note.seq, note.inputs) for note in of(effects, NoteExec)] == [(1, ("p:0",))]


def test_it_is_told_to_a_new_slot_owner_as_it_came():
    data = graph(op("b", FRONTEND, to=("c", "q")), op("c", "b"), op("q", "b"))
    tables = (table("b", ("b-1", 1)), table("c", ("c-1", 1)), table("q", ("q-1", 1)))
    rig = active_of(data, "q", "q-1", topo(1, *tables))
    token = unreadable("b", value_id="b-1:7", route=("c", "q"), fan=(("b", "b-1:7"),))
    rig.token("b-1", token)
    (answer,) = of(rig.get("b-2", SlotQuery("b", 0, 2)), SlotAnswer)
    assert answer.tokens == (token,)


def test_a_first_takes_the_next_value_and_ends_in_an_error_where_there_is_none():
    joins = JoinBuffer(op("q", "p", "r", join=Join.FIRST))
    unit = joins.add(unreadable())
    assert not joins.settle(unit)
    joins.add(value("r", R0, "r:0"))
    assert joins.settle(unit)
    assert [token.value_id for token in unit.used] == ["r:0"]
    other = joins.add(unreadable(request=R0._replace(n=1)))
    joins.add(unreadable("r", R0._replace(n=1), "r:1"))
    assert joins.settle(other)
    assert joins.forward(other).error == ERROR


def test_where_a_required_input_is_skipped_nobody_need_read_the_other_one():
    joins = JoinBuffer(op("q", "p", "r"))
    joins.add(unreadable())
    unit = joins.add(skip("r", R0, "r:0!"))
    assert joins.settle(unit)
    assert joins.forward(unit).kind is Kind.SKIP
    optional = JoinBuffer(op("q", "p", "r", optional=("r",)))
    optional.add(unreadable())
    unit = optional.add(skip("r", R0, "r:0!"))
    assert optional.settle(unit)
    assert optional.forward(unit).error == ERROR


STATE = graph(op("q", FRONTEND, stateful=True))
SET = topo(1, rset("q", "q-1", "q-2"))
COPY = StateCopy("q", 1, 7, (), Completion(()), "c7", P("state 7"))


def member(*, joining):
    rig = Rig(StatefulMachine(STATE, "q", "q-2"))
    rig.machine.step(ModelReady("m", P("fresh")), 0.0)
    rig.learn(topo(1, rset("q", "q-1", joining=("q-2",))) if joining else SET)
    return rig


def test_a_joiner_that_cannot_read_the_state_says_so_and_stops():
    effects = member(joining=True).get(
        "q-1", StateCopy("q", 1, 7, (), Completion(()), "c7", P("state 7", defect="no such thing"))
    )
    assert not of(effects, RecordAck)
    assert "cannot be read here: no such thing" in of(effects, Stop)[0].reason


def test_a_backup_in_sync_keeps_what_it_has_and_acknowledges_no_record_that_it_cannot_read():
    rig = member(joining=True)
    rig.get("q-1", COPY)
    rig.learn(topo(2, rset("q", "q-1", "q-2")))
    bad = StateRecord("q", 1, 8, 7, dep("q", 1, 8), (), "c8", P("state 8", defect="no such thing"))
    effects = rig.get("q-1", bad)
    assert not of(effects, Stop)
    assert not of(effects, RecordAck)
    assert rig.machine.version == 7


def test_a_fresh_primary_that_cannot_read_what_the_keeper_gives_it_ends_before_its_epoch():
    rig = Rig(StatefulMachine(STATE, "q", "q-9"))
    rig.machine.step(ModelReady("m", P("fresh")), 0.0)
    named = replace(rset("q", "q-9", epoch=2, ends=((1, 7),)), keepers=("F-1",))
    rig.learn(topo(2, named, revoked=("q-1",)))
    bad = StateCopy("q", 2, 7, (), Completion(()), "c7", P("state 7", defect="no such thing"))
    effects = rig.get("F-1", bad)
    assert not of(effects, LoadState)
    assert "cannot be read here: no such thing" in of(effects, Stop)[0].reason
