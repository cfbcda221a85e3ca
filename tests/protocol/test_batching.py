"""The seam of scheduling policies (section 2.1): what the machines do with the answers of a queue, and what
they tell it."""

import pytest
from kit import R0, R1, R2, P, Rig, dep, graph, of, op, rset, table, topo, value

from hams_protocol.batching import Scheduler, Timing
from hams_protocol.effects import Capture, EnterUpdate, NoteExec, StartBatch
from hams_protocol.events import BatchDone, BatchFailed, ModelDied
from hams_protocol.graph import FRONTEND, Operator
from hams_protocol.ids import RequestId
from hams_protocol.joins import Stage, Unit
from hams_protocol.messages import (
    LATE,
    Attempt,
    AttemptAck,
    Completion,
    Deliver,
    Kind,
    Meta,
    RecordAck,
    ReplyAge,
)
from hams_protocol.stateful.machine import StatefulMachine
from hams_protocol.stateless import StatelessMachine

CHAIN = graph(op("s", FRONTEND, to=("q",)), op("q", "s", stateful=True, window=1))
ROLES = topo(1, table("s", ("s-1", 1)), rset("q", "q-1", "q-2"))


class Shedding:
    """A policy for tests: one unit per batch, and what is due within `margin_s` is answered."""

    def __init__(self, operator: Operator) -> None:
        self.units: list[Unit] = []
        self.heard: list[object] = []
        self.margin_s = 0.1

    def __len__(self) -> int:
        return len(self.units)

    def add(self, unit: Unit, now: float) -> None:
        self.units.append(unit)

    def add_first(self, unit: Unit, now: float) -> None:
        self.units.insert(0, unit)

    def suspected(self, unit: Unit, now: float) -> None:
        if unit in self.units:
            self.units.remove(unit)
            self.units.insert(0, unit)

    def take(self, now: float) -> list[Unit]:
        self.units = [unit for unit in self.units if unit.stage is Stage.READY]
        return [self.units.pop(0)] if self.units else []

    def late(self, now: float) -> list[Unit]:
        late = [unit for unit in self.units if unit.due < now + self.margin_s and unit.stage is Stage.READY]
        self.units = [unit for unit in self.units if unit not in late]
        return late

    def deadline(self) -> float:
        return 0.0 if self.units else float("inf")

    def started(self, batch: int, units: list[Unit], now: float) -> None:
        self.heard.append((batch, [unit.id.request for unit in units], now))

    def finished(self, batch: int, timing: Timing, now: float) -> None:
        self.heard.append((batch, timing))

    def replied(self, request: RequestId, ago_s: float, now: float) -> None:
        self.heard.append((request, ago_s, now))

    def plan(self, now: float, budget_s: float) -> bool:
        return False

    def clear(self) -> None:
        self.units.clear()


def shedding(operator: Operator) -> Scheduler:
    return Shedding(operator)


def asked(request, budget_s, source=FRONTEND, name=None):
    return value(source, request, name or str(request), meta=Meta(budget_s=budget_s))


def stateless() -> Rig:
    rig = Rig(StatelessMachine(CHAIN, "s", "s-1", shedding))
    rig.ready()
    rig.learn(ROLES)
    return rig


def stateful(*in_sync: str) -> Rig:
    rig = Rig(StatefulMachine(CHAIN, "q", "q-1", queues=shedding))
    rig.ready(P("state 0"))
    rig.learn(topo(1, table("s", ("s-1", 1)), rset("q", "q-1", *in_sync), rset("p", "p-1")))
    return rig


def test_a_unit_that_is_late_is_answered_by_a_typed_error_and_never_run():
    rig = stateless()
    rig.token("F-1", asked(R0, 5.0))
    rig.token("F-1", asked(R1, 0.3))
    rig.now += 0.25
    effects = rig.done()
    run, late = of(effects, Deliver)
    assert (run.token.request, run.token.kind) == (R0, Kind.VALUE)
    assert (late.token.request, late.token.kind, late.token.payload) == (R1, Kind.ERROR, None)
    assert (late.token.error.op, late.token.error.status) == ("s", LATE)
    assert late.token.error.message == "not run: 50 ms of its deadline were left"
    assert [note.unit.request for note in of(effects, NoteExec)] == [R0, R1], "it is a value with an id"
    assert not of(effects, StartBatch)
    assert not rig.after(10.0) or not of(rig.all[-3:], StartBatch)


def test_a_stateful_operator_gives_what_it_sheds_a_seq_and_a_record_but_no_capture():
    rig = stateful()
    rig.token("s-1", asked(R0, 0.05, "s", "s:1"))
    (note,) = of(rig.all, NoteExec)
    assert (note.unit.request, note.seq, note.version) == (R0, 1, 1)
    assert not of(rig.all, StartBatch)
    assert not of(rig.all, Capture)
    (sent,) = of(rig.all, Deliver)
    assert (sent.token.error.status, sent.token.deps) == (LATE, dep("q", 1, 1))


def test_what_is_late_waits_while_the_window_is_full():
    rig = stateful("q-2")
    for request in (R0, R1, R2):
        rig.token("s-1", asked(request, 0.05, "s", f"s:{request.n}"))
    assert not of(rig.all, NoteExec), "version 0 is not durable yet"
    assert not of(rig.all, StartBatch), "and what is late is not run in the meantime"
    rig.get("q-2", RecordAck("q", 1, 0, 0))
    assert [note.unit.request for note in of(rig.all, NoteExec)] == [R0]
    rig.get("q-2", RecordAck("q", 1, 1, 1))
    assert [note.unit.request for note in of(rig.all, NoteExec)] == [R0, R1]


def test_a_policy_hears_what_ran_and_how_long_without_the_wait_for_the_update_stage():
    rig = stateful()
    rig.token("s-1", asked(R0, 5.0, "s", "s:1"))
    rig.now += 0.02
    rig.want()
    rig.now += 0.01
    first = rig.done()
    rig.token("s-1", asked(R1, 5.0, "s", "s:2"))
    rig.now += 0.02
    assert not of(rig.want(), EnterUpdate), "the first is not captured"
    rig.now += 0.5
    rig.capture(first)
    rig.now += 0.01
    rig.done()
    began, ended = rig.machine.queue.heard[-2:]
    assert (began[1], began[2]) == ([R1], pytest.approx(0.03))
    assert ended[0] == began[0]
    assert (ended[1].compute_s, ended[1].total_s) == (pytest.approx(0.03), pytest.approx(0.53))
    assert ended[1].ok


def test_what_the_model_says_of_its_time_counts_for_more_than_the_shells_clock():
    rig = stateless()
    rig.token("F-1", asked(R0, 5.0))
    rig.now += 0.5
    rig.step(BatchDone(rig.batch, (), False, 0.2))
    assert rig.machine.queue.heard[-1] == (1, Timing(0.2, 0.5, True))


@pytest.mark.parametrize("event", [BatchFailed(1, "no", False), ModelDied("killed")])
def test_a_run_that_gave_nothing_is_said_to_have_failed(event):
    rig = stateless()
    rig.token("F-1", asked(R0, 5.0))
    rig.now += 0.5
    rig.step(event)
    assert rig.machine.queue.heard[1] == (1, Timing(0.5, 0.5, False))


def test_the_due_of_a_unit_is_known_when_it_is_queued():
    rig = stateless()
    rig.token("F-1", asked(R0, 5.0))
    rig.now += 1.0
    rig.token("F-1", asked(R1, 3.0))
    (unit,) = rig.machine.queue.units
    assert unit.due == 4.0


def test_a_policy_hears_how_long_ago_replies_were_released():
    rig = stateless()
    rig.get("F-1", Completion(((0, 1, ()),), (ReplyAge(R0, 0.03), ReplyAge(R1, 0.02))))
    assert rig.machine.queue.heard == [(R0, 0.03, rig.now), (R1, 0.02, rig.now)]
    rig.get("F-1", Completion(((0, 1, ()),), (ReplyAge(R2, 0.5),)))
    assert rig.machine.queue.heard[-1] == (R2, 0.5, rig.now), "though nothing new is complete"


def test_a_unit_that_becomes_a_suspect_while_it_waits_goes_alone_and_before_others():
    rig = Rig(StatelessMachine(CHAIN, "s", "s-1"))
    rig.ready()
    rig.learn(ROLES)
    for request in (R0, R1, R2):
        rig.token("F-1", asked(request, 5.0))
    rig.token("F-1", asked(R2, 5.0), attempts=1)
    rig.done()
    (attempt,) = of(rig.all, Attempt)
    assert (attempt.request, attempt.attempts) == (R2, 2)
    rig.get("F-1", AttemptAck(attempt.source, R2, attempt.lane, attempt.serial))
    started = [[unit.unit.request for unit in start.units] for start in of(rig.all, StartBatch)]
    assert started == [[R0], [R2]]
