"""States that are run again (section 9): what is durable there, what tokens tell, and how a new primary comes
to the state of the one before."""

from dataclasses import replace

import pytest
from kit import R0, R1, R2, P, Rig, dep, graph, of, op, rset, table, topo, value

from hams_protocol import limits
from hams_protocol.determinants import KnownDeterminants, in_order
from hams_protocol.effects import Capture, NoteLost, Propose, StartBatch, Stop, WriteCheckpoint
from hams_protocol.events import BatchDone, CheckpointRead, CheckpointWritten, ModelDied, UnitResult
from hams_protocol.graph import FRONTEND, Checkpoint, Graph, Mode, RecoverySpec, WhenLost
from hams_protocol.ids import UnitId
from hams_protocol.messages import (
    SAVED,
    AskDeterminants,
    Completion,
    Deliver,
    Determinant,
    Determinants,
    Durable,
    Health,
    Kind,
    ProbeAnswer,
    Ran,
    RoleReport,
    StateCopy,
)
from hams_protocol.recovery import ManagerMachine
from hams_protocol.stateful.machine import StatefulMachine
from hams_protocol.stateless import StatelessMachine

STORE = Checkpoint(1.0, 2, "/c")


def stored(name, *sources, to=(FRONTEND,)):
    return replace(op(name, *sources, to=to, stateful=True, rows=2), backups=0, checkpoint=STORE)


DATA: Graph = graph(
    stored("p", FRONTEND, to=("q",)),
    stored("q", "p", to=("s",)),
    op("s", "q"),
    mode=Mode.LINEAGE_STASH,
    recovery=RecoverySpec(when_lost=WhenLost.RESTART),
)
SETS = (rset("p", "p-1"), table("s", ("s-1", 1)))
FIRST = topo(1, *SETS, rset("q", "q-1"))


def written(effects):
    return [(item.copy.epoch, item.copy.version) for item in of(effects, WriteCheckpoint)]


def first() -> Rig:
    """The first primary of q, whose version 0 is stored."""
    rig = Rig(StatefulMachine(DATA, "q", "q-1"))
    rig.ready(P("state 0"))
    assert written(rig.learn(FIRST)) == [(1, 0)]
    rig.step(CheckpointWritten(1, 0, True))
    return rig


def asked(rig, request, deps=()):
    return rig.token("p-1", value("p", request, f"p:{request.n}", deps))


def ran(*requests, epoch=1, first=1, kind=Kind.VALUE):
    units = tuple(Ran(UnitId(request, ()), kind, None) for request in requests)
    return Determinant("q", epoch, first + len(units) - 1, units)


def test_nothing_is_executed_before_the_first_version_is_stored():
    rig = Rig(StatefulMachine(DATA, "q", "q-1"))
    rig.ready(P("state 0"))
    rig.learn(FIRST)
    asked(rig, R0)
    assert not of(rig.all, StartBatch), "also a batch that updates nothing depends on the state"
    assert of(rig.step(CheckpointWritten(1, 0, True)), StartBatch)
    assert of(rig.done(), Deliver)


def test_outputs_leave_at_once_and_tell_how_they_came_about_and_where_they_stem_from():
    rig = first()
    rig.token("p-1", replace(value("p", R0, "p:0", dep("p", 1, 1)), determinants=(replace(ran(R0), op="p"),)))
    effects = rig.done()
    (sent,) = of(effects, Deliver)
    assert sent.token.determinants == (replace(ran(R0), op="p"), ran(R0))
    assert not of(effects, Capture), "a state is captured every so many batches"
    asked(rig, R1)
    (sent,) = of(rig.done(), Deliver)
    assert [item.version for item in sent.token.determinants] == [1, 1, 2]
    rig.get("p-1", Durable(dep("p", 1, 1)))
    asked(rig, R2)
    (sent,) = of(rig.done(), Deliver)
    assert [(item.op, item.version) for item in sent.token.determinants] == [("q", 1), ("q", 2), ("q", 3)]


def test_a_value_that_is_made_again_has_the_same_name_if_its_bytes_are_the_same():
    names = []
    for payload in ("out", "out", "another"):
        rig = first()
        asked(rig, R0)
        effects = rig.step(BatchDone(rig.batch, (UnitResult(UnitId(R0, ()), P(payload)),), True))
        (sent,) = of(effects, Deliver)
        names.append(sent.token.value_id)
    assert names[0] == names[1] != names[2]


def test_a_state_is_stored_when_nothing_is_to_be_done_and_durable_when_it_is_there():
    rig = first()
    asked(rig, R0, dep("p", 1, 1))
    rig.done()
    (capture,) = of(rig.after(limits.checkpoint_idle_s), Capture)
    assert capture.version == 1
    assert not written(rig.capture([capture])), "what it depends on of others is not stored"
    assert written(rig.get("p-1", Durable(dep("p", 1, 1)))) == [(1, 1)]
    machine = rig.machine
    assert isinstance(machine, StatefulMachine)
    assert machine.primary is not None
    assert machine.primary.durable == 0
    rig.step(CheckpointWritten(1, 1, True))
    assert machine.primary.durable == 1


@pytest.mark.parametrize(("batches", "open_requests", "stored_at"), [(3, 1024, 3), (150, 4, 2)])
def test_a_state_is_stored_after_so_many_batches_and_before_too_many_requests_are_open(
    batches, open_requests, stored_at
):
    data = replace(
        DATA.data,
        frontend=replace(DATA.data.frontend, max_in_flight=open_requests),
        operators=tuple(
            replace(item, checkpoint=replace(STORE, batches=batches)) if item.stateful else item
            for item in DATA.data.operators
        ),
    )
    rig = Rig(StatefulMachine(Graph(data), "q", "q-1"))
    rig.ready(P("state 0"))
    rig.learn(FIRST)
    rig.step(CheckpointWritten(1, 0, True))
    captured = []
    for request in (R0, R1, R2):
        asked(rig, request)
        captured += [item.version for item in of(rig.done(), Capture)]
        if captured:
            break
    assert captured == [stored_at]


def test_a_state_that_could_not_be_stored_is_written_again_after_a_while():
    rig = Rig(StatefulMachine(DATA, "q", "q-1"))
    rig.ready(P("state 0"))
    rig.learn(FIRST)
    assert not written(rig.step(CheckpointWritten(1, 0, False)))
    assert written(rig.after(limits.checkpoint_again_after_s)) == [(1, 0)]


def test_a_model_that_dies_takes_its_instance_along():
    rig = first()
    asked(rig, R0)
    (stop,) = of(rig.step(ModelDied("killed")), Stop)
    assert stop.keep is None, "what it has is in the store, and with all who depend on it"
    assert stop.lingers, "who is gone from etcd would be taken for hung"


LOST = topo(2, *SETS, replace(rset("q", "q-1"), lost=True))
AGAIN = replace(rset("q", "q-9", epoch=2, ends=((1, 0),)), restarted_in=2)
NEXT = topo(3, *SETS, AGAIN, revoked=("q-1",))


def successor() -> Rig:
    """The next primary, which has read version 0, before anybody has answered."""
    rig = Rig(StatefulMachine(DATA, "q", "q-9"))
    rig.ready(P("another state 0"))
    rig.learn(LOST)
    rig.step(CheckpointRead(StateCopy("q", 1, 0, (), Completion(()), "", P("state 0"))))
    rig.learn(NEXT)
    rig.loaded(rig.all)
    rig.step(CheckpointWritten(2, 0, True))
    return rig


def answer(rig, sender, *items, led=None, generation=3):
    return rig.get(sender, Determinants("q", 2, generation, items, led))


def test_a_new_primary_asks_everybody_downstream_and_runs_nothing_before_all_have_answered():
    rig = successor()
    for name in ("F-1", "s-1"):
        assert of(rig.all, AskDeterminants, name) == [AskDeterminants("q", 2, 0, 3)]
    assert not of(rig.all, AskDeterminants, "p-1"), "it comes before"
    asked(rig, R0)
    answer(rig, "s-1", ran(R0))
    assert not of(rig.all, StartBatch)
    assert of(answer(rig, "F-1", led=("F/0", 1)), StartBatch)


def test_it_runs_the_same_batches_in_the_same_order_and_what_nobody_knows_of_after_them():
    rig = successor()
    for request in (R2, R1, R0):
        asked(rig, request)
    answer(rig, "s-1", ran(R1, first=1))
    answer(rig, "F-1", ran(R1, first=1), ran(R0, first=2), led=("F/0", 1))
    order = [rig.units]
    for _ in range(2):
        rig.run() if rig.machine.captures_open else rig.done()
        order.append(rig.units)
    assert order == [(R1,), (R0,), (R2,)]


def test_units_that_were_one_batch_wait_for_each_other():
    rig = successor()
    asked(rig, R0)
    answer(rig, "s-1", ran(R1, R0))
    assert not of(answer(rig, "F-1", led=("F/0", 1)), StartBatch)
    asked(rig, R1)
    assert rig.units == (R1, R0)


def test_what_ran_no_model_runs_none_again():
    rig = successor()
    asked(rig, R0)
    answer(rig, "s-1", ran(R0, kind=Kind.ERROR))
    effects = answer(rig, "F-1", led=("F/0", 1))
    assert not of(effects, StartBatch)
    assert [item.token.kind for item in of(effects, Deliver)] == [Kind.ERROR]


def test_a_newer_topology_puts_the_question_again_to_all():
    rig = successor()
    asked(rig, R0)
    answer(rig, "s-1", ran(R0))
    effects = rig.learn(topo(4, rset("p", "p-1"), table("s", ("s-2", 2)), AGAIN, revoked=("q-1", "s-1")))
    assert {item.generation for item in of(effects, AskDeterminants)} == {4}
    assert not of(answer(rig, "F-1", led=("F/0", 1)), StartBatch), "of an older generation"
    answer(rig, "s-2", generation=4)
    assert of(answer(rig, "F-1", ran(R0), led=("F/0", 1), generation=4), StartBatch)


def test_who_is_asked_answers_only_once_it_takes_nothing_of_the_former_primary_any_more():
    rig = Rig(StatelessMachine(DATA, "s", "s-1"))
    rig.ready()
    rig.learn(LOST)
    assert not of(rig.get("q-9", AskDeterminants("q", 2, 0, 3)), Determinants)
    rig.learn(NEXT)
    assert of(rig.get("q-9", AskDeterminants("q", 2, 0, 3)), Determinants, "q-9") == [
        Determinants("q", 2, 3, ())
    ]


def test_of_two_that_tell_of_one_version_the_later_epoch_counts():
    known = KnownDeterminants(lambda request: request == R2)
    known.learn((ran(R0), ran(R1, epoch=2)))
    assert known.everything() == (ran(R1, epoch=2),)
    known.durable("q", 1)
    assert known.everything() == ()
    known.learn((ran(R0), ran(R1, R2, first=2)))
    assert known.everything() == (), "nobody runs again what is stored, as the state is of a complete request"
    known.learn((ran(R1, first=2),))
    assert known.everything() == (ran(R1, first=2),)


def test_what_comes_before_a_complete_request_is_forgotten_with_it():
    complete = set()
    known = KnownDeterminants(complete.__contains__)
    known.learn((ran(R0), ran(R1, first=2), ran(R2, first=3)))
    complete.add(R1)
    known.requests_completed()
    assert known.everything() == (ran(R2, first=3),)


@pytest.mark.parametrize(
    ("items", "above", "versions"),
    [
        ((), 0, []),
        ((ran(R1, first=2), ran(R0, first=1)), 0, [1, 2]),
        ((ran(R0, R1, first=1), ran(R2, first=3)), 0, [2, 3]),
        ((ran(R0, first=1), ran(R2, first=3)), 0, [1]),
        ((ran(R0, first=1), ran(R1, first=2)), 1, [2]),
    ],
)
def test_what_is_run_again_has_no_gap(items, above, versions):
    assert [item.version for item in in_order(items, above)] == versions


@pytest.mark.parametrize("told", [{}, {"q-8": (0, -1)}])
def test_a_lost_state_waits_for_a_checkpoint_however_slow_its_store_is(told):
    rig = Rig(ManagerMachine(DATA, "m-1"))
    rig.members(F_1="F", m_1="manager", q_8="q", q_9="q", p_1="p", s_1="s")
    rig.learn(replace(LOST, untouched=False, revoked=("q-1",)))
    rig.after(0.1)
    for name, (epoch, version) in told.items():
        saved(rig, name, epoch, version)
    rig.after(limits.checkpoint_wait_s + 1.0)
    assert not begun(rig), "from nothing it would not come to what others depend on"
    saved(rig, "q-9", 1, 7)
    assert [(item.primary, item.end_of(1)) for item in begun(rig)] == [("q-9", 7)]
    assert not of(rig.all, NoteLost), "what came after is run again"


def test_a_lost_state_of_which_no_checkpoint_is_found_begins_from_nothing_and_that_is_said():
    rig = Rig(ManagerMachine(DATA, "m-1"))
    rig.members(F_1="F", m_1="manager", q_8="q", p_1="p", s_1="s")
    rig.learn(replace(LOST, untouched=False, revoked=("q-1",)))
    rig.after(0.1)
    saved(rig, "q-8", 0, -1)
    assert [(item.primary, item.end_of(1)) for item in begun(rig)] == [("q-8", 0)]
    assert [(note.op, note.version) for note in of(rig.all, NoteLost)] == [("q", 0)]


def saved(rig, name, epoch, version):
    rig.get(name, ProbeAnswer(0, Health.HEALTHY, 2, (RoleReport("q", SAVED, epoch, version, False),)))


def begun(rig):
    sets = [item.topology.find("q") for item in of(rig.all, Propose)]
    return [item for item in sets if item.restarted_in][:1]
