"""When a checkpoint is written and of what, and how a set begins from one (api.md, "State lost")."""

from dataclasses import replace

from kit import R0, R1, P, Rig, dep, graph, of, op, rset, topo, value

from hams_protocol.effects import LoadState, Stop, WriteCheckpoint
from hams_protocol.graph import FRONTEND, Checkpoint
from hams_protocol.messages import AskCopy, AskDurable, Completion, Durable, RecordAck, StateCopy, StateRecord
from hams_protocol.stateful.machine import StatefulMachine

EVERY = 5.0
DATA = graph(replace(op("q", FRONTEND, stateful=True), checkpoint=Checkpoint(EVERY, 2, "/c")))
ALONE, PAIR = topo(1, rset("q", "q-1")), topo(1, rset("q", "q-1", "q-2"))


def primary(topology, restored=None):
    rig = Rig(StatefulMachine(DATA, "q", "q-1", None, restored))
    rig.ready(P("state 0"))
    rig.learn(topology)
    return rig


def run(rig, *requests):
    for request in requests:
        rig.token("F-1", value("F", request, f"{request}"))
        rig.run()


def written(effects):
    return [effect.copy for effect in effects if isinstance(effect, WriteCheckpoint)]


def test_a_primary_alone_writes_its_newest_durable_version_every_so_often():
    rig = primary(ALONE)
    run(rig, R0, R1)
    assert not written(rig.after(EVERY - 0.1))
    assert rig.machine.deadline() <= EVERY
    (copy,) = written(rig.after(0.1))
    assert (copy.op, copy.epoch, copy.version, copy.state) == ("q", 1, 2, P("state 2"))
    assert [unit.unit.request for unit in copy.units] == [R0, R1], "with what it has consumed"
    assert not written(rig.after(EVERY)), "nothing new"
    run(rig, R0._replace(n=9))
    assert [copy.version for copy in written(rig.after(EVERY))] == [3]


def test_a_primary_with_a_backup_leaves_it_to_that():
    rig = primary(PAIR)
    run(rig, R0)
    rig.get("q-2", RecordAck("q", 1, 1, 1))
    assert not written(rig.after(3 * EVERY))


def backup(in_sync=("q-2",), instance="q-2"):
    rig = Rig(StatefulMachine(DATA, "q", instance))
    rig.ready(P("other"))
    rig.learn(topo(1, rset("q", "q-1", joining=(instance,))))
    rig.get("q-1", StateCopy("q", 1, 1, (), Completion(()), "c1", P("state 1")))
    rig.learn(topo(2, rset("q", "q-1", *in_sync)))
    rig.get("q-1", StateRecord("q", 1, 2, 1, (), (), "c2", P("state 2")))
    return rig


def test_a_backup_asks_what_is_durable_and_writes_no_more_than_that():
    rig = backup()
    effects = rig.after(EVERY)
    assert of(effects, AskDurable, "q-1")
    assert not written(effects)
    (copy,) = written(rig.get("q-1", Durable(dep("q", 1, 1))))
    assert (copy.version, copy.state, copy.chain) == (1, P("state 1"), "c1"), "2 is applied here, but not called durable"
    assert not written(rig.get("q-1", Durable(dep("q", 1, 2)))), "nobody asked"
    assert [copy.version for copy in written(rig.after(EVERY))] == [2], "what it knows already it need not ask for"
    assert of(rig.after(EVERY), AskDurable)
    assert not written(rig.get("q-1", Durable(dep("q", 1, 3)))), "3 has not been applied here"


def test_of_several_backups_one_writes_and_a_joiner_never():
    assert not of(backup(("q-3", "q-2")).after(EVERY), AskDurable)
    rig = Rig(StatefulMachine(DATA, "q", "q-2"))
    rig.ready(P("other"))
    rig.learn(topo(1, rset("q", "q-1", joining=("q-2",))))
    assert not of(rig.after(EVERY), AskDurable)
    assert of(rig.all, AskCopy)


def test_without_a_policy_nothing_is_written():
    rig = Rig(StatefulMachine(graph(op("q", FRONTEND, stateful=True)), "q", "q-1"))
    rig.ready(P("state 0"))
    rig.learn(ALONE)
    assert not written(rig.after(100 * EVERY))


SAVED = StateCopy("q", 3, 40, (), Completion(((0, 7, ()),)), "chain", P("saved"))


def test_the_very_first_primary_begins_from_a_checkpoint_as_version_0():
    rig = primary(ALONE, SAVED)
    assert [effect.state for effect in of(rig.all, LoadState)] == [P("saved")]
    assert rig.machine.version == 0
    rig.loaded(rig.all)
    rig.token("F-1", value("F", R0, "0/0"))
    assert rig.units == (R0,), "requests of the former run are forgotten, their numbers free"


def test_a_later_epoch_does_not_begin_from_it():
    rig = primary(topo(4, rset("q", "q-1", epoch=2, ends=((1, 5),))), SAVED)
    assert not of(rig.all, LoadState)


def test_a_checkpoint_of_another_layout_is_refused():
    rig = Rig(StatefulMachine(DATA, "q", "q-1", None, replace(SAVED, layout="other")))
    rig.machine.model_layout = "mine"
    rig.machine.model_ready = True
    assert of(rig.learn(ALONE), Stop)
