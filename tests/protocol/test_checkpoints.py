"""When a checkpoint is written and of what, and how a set begins from one (api.md, "State lost")."""

from dataclasses import replace

from kit import R0, R1, R2, P, Rig, dep, graph, of, op, rset, topo, value

from hams_protocol import limits
from hams_protocol.effects import (
    LoadState,
    NoteFailover,
    NoteLost,
    Propose,
    ReadCheckpoint,
    Send,
    StartBatch,
    Stop,
    WriteCheckpoint,
)
from hams_protocol.events import CheckpointRead
from hams_protocol.graph import FRONTEND, Checkpoint, Graph, RecoverySpec, WhenLost
from hams_protocol.ids import UnitId
from hams_protocol.messages import (
    SAVED,
    AskCopy,
    AskDurable,
    Completion,
    Consumed,
    Deliver,
    Durable,
    Health,
    Probe,
    ProbeAnswer,
    RecordAck,
    RoleReport,
    StateCopy,
    StateRecord,
)
from hams_protocol.recovery import ManagerMachine
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
    assert (copy.version, copy.state, copy.chain) == (1, P("state 1"), "c1"), (
        "2 is applied here, but not called durable"
    )
    assert not written(rig.get("q-1", Durable(dep("q", 1, 2)))), "nobody asked"
    assert [copy.version for copy in written(rig.after(EVERY))] == [2], (
        "what it knows already it need not ask for"
    )
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


OLD_RUN = StateCopy("q", 3, 40, (), Completion(((0, 7, ()),)), "chain", P("saved"))


def test_the_very_first_primary_begins_from_a_checkpoint_as_version_0():
    rig = primary(ALONE, OLD_RUN)
    assert [effect.state for effect in of(rig.all, LoadState)] == [P("saved")]
    assert rig.machine.version == 0
    rig.loaded(rig.all)
    rig.token("F-1", value("F", R0, "0/0"))
    assert rig.units == (R0,), "requests of the former run are forgotten, their numbers free"


def test_a_later_epoch_does_not_begin_from_it():
    rig = primary(topo(4, rset("q", "q-1", epoch=2, ends=((1, 5),))), OLD_RUN)
    assert not of(rig.all, LoadState)


def test_a_checkpoint_of_another_layout_is_refused():
    rig = Rig(StatefulMachine(DATA, "q", "q-1", None, replace(OLD_RUN, layout="other")))
    rig.machine.model_layout = "mine"
    rig.machine.model_ready = True
    assert of(rig.learn(ALONE), Stop)


# -- Restart -------------------------------------------------------------------------------------------------

RESTART = Graph(replace(DATA.data, recovery=RecoverySpec(when_lost=WhenLost.RESTART)))
LOST = topo(5, replace(rset("q", "q-1", epoch=2, ends=((1, 12),)), lost=True))
UNIT = Consumed(UnitId(R1, ()), 39, "q-1:7", (("F", value("q", R1, "q-1:7", dep("q", 2, 40))),), ())
NEWEST = StateCopy("q", 2, 40, (UNIT,), Completion(((0, 1, ()),)), "chain", P("saved"))


def idle(data=RESTART):
    rig = Rig(StatefulMachine(data, "q", "q-9"))
    rig.ready(P("state 0"))
    return rig


def saved(rig):
    (answer,) = of(rig.get("m-1", Probe(0)), ProbeAnswer)
    return [(report.epoch, report.version) for report in answer.roles if report.role == SAVED]


def test_who_has_no_role_reads_its_checkpoint_when_the_state_is_lost_and_tells_probes():
    rig = idle()
    assert of(rig.learn(LOST), ReadCheckpoint) == [ReadCheckpoint("q")]
    assert saved(rig) == [], "not read yet"
    rig.step(CheckpointRead(NEWEST))
    assert saved(rig) == [(2, 40)]
    assert not of(rig.learn(LOST.next()), ReadCheckpoint), "once"
    rig.step(CheckpointRead(None))
    assert saved(rig) == [(0, -1)]


def test_nobody_reads_where_a_person_is_to_decide():
    assert not of(idle(DATA).learn(LOST), ReadCheckpoint)


RESTARTED = topo(
    6, replace(rset("q", "q-9", epoch=3, ends=((1, 12), (2, 40))), restarted_in=3), revoked=("q-1",)
)


def test_the_set_begins_again_at_the_checkpoint_with_what_that_has_consumed():
    rig = idle()
    rig.learn(LOST)
    rig.step(CheckpointRead(NEWEST))
    effects = rig.learn(RESTARTED)
    assert [(note.epoch, note.end) for note in of(effects, NoteFailover)] == [(3, 40)]
    assert of(effects, LoadState)[0].state == P("saved")
    assert [deliver.token.value_id for deliver in of(effects, Deliver)] == ["q-1:7"], (
        "its saved outputs are sent again"
    )
    rig.loaded(effects)
    assert not of(rig.token("F-1", value("F", R1, "0/1")), StartBatch)
    assert not of(rig.token("F-1", value("F", R0, "0/0")), StartBatch), "complete when it was taken"
    assert of(rig.token("F-1", value("F", R2, "0/2")), StartBatch)


def test_without_that_very_checkpoint_it_does_not_guess():
    rig = idle()
    rig.learn(LOST)
    rig.step(CheckpointRead(replace(NEWEST, version=39)))
    assert of(rig.learn(RESTARTED), Stop)


def manager(*lost):
    rig = Rig(ManagerMachine(RESTART, "m-1"))
    rig.members(F_1="F", m_1="manager", q_8="q", q_9="q")
    rig.learn(topo(5, *lost, revoked=("q-1",)))
    rig.after(0.1)
    return rig


def reports(rig, name, epoch, version):
    rig.get(name, ProbeAnswer(0, Health.HEALTHY, 5, (RoleReport("q", SAVED, epoch, version, False),)))


def restart(rig):
    replica_set = [item.topology.find("q") for item in of(rig.all, Propose)]
    return next((item for item in replica_set if item.restarted_in), None)


LOST_SET = replace(rset("q", "q-1", epoch=2, ends=((1, 12),)), lost=True)


def test_a_manager_takes_the_newest_checkpoint_that_anybody_has_and_says_what_is_left():
    rig = manager(LOST_SET)
    assert {
        effect.target for effect in rig.all if isinstance(effect, Send) and isinstance(effect.message, Probe)
    } >= {"q-8", "q-9"}
    reports(rig, "q-8", 1, 90)
    assert restart(rig) is None, "q-9 has not answered"
    reports(rig, "q-9", 2, 40)
    result = restart(rig)
    assert (result.primary, result.epoch, result.end_of(2), result.lost) == ("q-9", 3, 40, False), (
        "a later epoch is newer"
    )
    assert [(note.op, note.version) for note in of(rig.all, NoteLost)] == [("q", 40)]


def test_who_tells_nothing_is_not_waited_for_for_ever():
    rig = manager(LOST_SET)
    reports(rig, "q-8", 2, 33)
    assert restart(rig) is None
    rig.after(limits.checkpoint_wait_s + 1.0)
    assert (restart(rig).primary, restart(rig).end_of(2)) == ("q-8", 33)


def test_without_any_checkpoint_it_begins_anew():
    rig = manager(LOST_SET)
    reports(rig, "q-8", 0, -1)
    reports(rig, "q-9", 0, -1)
    assert (restart(rig).primary, restart(rig).end_of(2)) == ("q-8", 0)
