"""The queue that a graph chose for an operator: its class, its laws, and what is counted."""

import math
import random
import weakref
from dataclasses import replace

import pytest
from tests.schedule.test_guard import Noise

from hams_protocol.batching import Fifo, Timing
from hams_protocol.graph import (
    FRONTEND,
    BatchPolicy,
    Edge,
    Input,
    Join,
    ModelSpec,
    Operator,
    SchedulePolicy,
    WhenLate,
)
from hams_protocol.ids import RequestId, UnitId
from hams_protocol.joins import Stage, Unit
from hams_protocol.messages import Kind, Meta, Token
from hams_schedule import limits
from hams_schedule.classes import REST
from hams_schedule.decision import ChoiceKind
from hams_schedule.guard import Pace
from hams_wire.scheduling import Disturbance, OrderedQueue, PolicyQueue, ShedReason, queue_of

BATCH = BatchPolicy(4, 0.0, SchedulePolicy.DISTRIBUTION, WhenLate.SHED, "parameter:app", "parameter:words")


def operator(batch: BatchPolicy) -> Operator:
    edges = (Edge(FRONTEND, "s", (Input("x", "x", False),)),)
    return Operator("s", Join.COMBINE, edges, (FRONTEND,), ((),), (), batch, ModelSpec("m:M"), False)


class Rows:
    """A payload of so many rows."""

    nbytes, batch_key, defect, content = 0, "", "", ""

    def __init__(self, rows: int) -> None:
        self.rows = rows


def unit(number: int, due: float, rows: int = 1, **parameters: object) -> Unit:
    request = RequestId(0, number)
    made = Unit(UnitId(request, ()))
    meta = Meta(tuple(parameters.items()))  # type: ignore[arg-type]
    token = Token(request, (), FRONTEND, Kind.VALUE, f"0/{number}", (), (), meta, payload=Rows(rows))
    made.used = (token,)
    made.stage, made.due = Stage.READY, due
    return made


def queue(**changes: object) -> PolicyQueue:
    made = queue_of(operator(replace(BATCH, **changes)))  # type: ignore[arg-type]
    assert isinstance(made, PolicyQueue)
    return made


def test_first_in_first_out_is_the_cores_own_and_nothing_stands_before_it():
    assert type(queue_of(operator(BatchPolicy(4, 0.0)))) is Fifo


def test_a_unit_has_the_class_that_its_parameters_say():
    waiting = queue()
    units = [unit(0, 9.0, app="chat"), unit(1, 9.0, app="chat"), unit(2, 9.0, app="mail"), unit(3, 9.0)]
    for item in units:
        waiting.add(item, 0.0)
    assert units[0].cls == units[1].cls
    assert len({item.cls for item in units}) == 3


@pytest.mark.parametrize("given", ["x" * 100_000, True, 1e300, -1, "nan"])
def test_whatever_a_client_says_of_its_request_a_class_is_found(given):
    waiting = queue()
    for number in range(50):
        waiting.add(unit(number, 9.0, app=given, words=given), 0.0)
    assert not waiting.failed
    assert len(waiting.take(0.0)) == 4


def test_what_was_in_time_late_and_shed_is_counted():
    waiting = queue(policy=SchedulePolicy.DEADLINE)
    for number, due in enumerate((1.0, 1.05, 0.2)):
        waiting.add(unit(number, due), 0.0)
    assert [item.due for item in waiting.late(0.3)] == [0.2]
    batch = waiting.take(0.3)
    waiting.started(1, batch, 0.3)
    assert waiting.runs
    waiting.finished(1, Timing(0.72, 0.72, True), 1.02)
    assert not waiting.runs
    assert (waiting.on_time + waiting.late_runs, waiting.shed) == (len(batch), 1)


def test_what_is_shed_is_counted_by_why():
    waiting = queue(policy=SchedulePolicy.DEADLINE)
    learn(waiting, 8, 0.1)
    now = 8.0
    waiting.replied(RequestId(0, 7), 0.0, 7.4)  # 0.3 s after its batch
    for number, due in ((20, now - 0.1), (21, now + 0.2), (22, now + 0.35), (23, now + 9.0)):
        waiting.add(unit(number, due), now)
    assert len(waiting.late(now)) == 3
    assert waiting.shed_by == {ShedReason.OVERDUE: 1, ShedReason.PATH: 1, ShedReason.TIME: 1}
    assert waiting.shed == 3


def test_decisions_are_counted_by_kind_whoever_serves_by_now():
    waiting = queue()
    assert set(waiting.decisions) == {kind.name.lower() for kind in ChoiceKind}
    assert sum(waiting.decisions.values()) == 0
    learn(waiting, 4, 0.02)
    assert waiting.decisions["point"] == 4, "nothing is known yet"
    learn(waiting, 100, 0.02)
    assert sum(waiting.decisions.values()) == 104
    assert waiting.learnt_at == pytest.approx(99.02)
    assert queue(policy=SchedulePolicy.DEADLINE).decisions == {}


def run(waiting: PolicyQueue, now: float) -> None:
    """Everything that waits, as one batch that ends 0.1 s later."""
    waiting.started(1, waiting.take(now), now)
    waiting.finished(1, Timing(0.1, 0.1, True), now + 0.1)


@pytest.mark.parametrize("policy", [SchedulePolicy.DEADLINE, SchedulePolicy.DISTRIBUTION])
def test_a_unit_is_late_if_the_rest_of_its_path_does_not_fit_any_more(policy):
    waiting = queue(policy=policy)
    waiting.add(unit(0, 9.0, app="chat"), 0.0)
    run(waiting, 0.0)
    waiting.replied(RequestId(0, 0), 0.05, 0.65)
    waiting.add(unit(1, 1.45, app="chat"), 0.8)
    waiting.add(unit(2, 1.0, app="chat"), 0.8)
    assert [item.due for item in waiting.late(0.8)] == [1.0], "0.5 s are needed after this operator"
    later = unit(3, 3.3, app="chat")
    waiting.add(later, 3.0)
    assert later not in waiting.late(3.0), "no reply was heard of for long: nothing is assumed"


def test_in_time_is_what_leaves_time_for_the_rest_of_the_path():
    waiting = queue()
    waiting.add(unit(0, 9.0), 0.0)
    run(waiting, 0.0)
    waiting.replied(RequestId(0, 0), 0.0, 0.6)
    waiting.add(unit(1, 1.5), 0.7)
    run(waiting, 0.95)
    assert (waiting.on_time, waiting.late_runs) == (1, 1)


@pytest.mark.parametrize("ago_s", [-1.0, -1e300, math.nan, math.inf, 1e9, 5.0])
def test_a_hostile_age_of_a_reply_makes_nothing_later_than_it_is(ago_s):
    waiting = queue()
    waiting.add(unit(0, 9.0), 0.0)
    run(waiting, 0.0)
    waiting.replied(RequestId(0, 0), ago_s, 0.6)
    waiting.replied(RequestId(7, 7), ago_s, 0.6)
    assert not waiting.profiles.rest.medians


def test_units_without_a_reply_are_remembered_within_bounds():
    waiting = queue()
    for number in range(limits.unanswered_max + 50):
        waiting.add(unit(number, math.inf), 0.0)
        run(waiting, 0.0)
    for _ in range(limits.unanswered_units_max + 5):
        waiting.add(unit(limits.unanswered_max + 49, math.inf), 0.0)
        run(waiting, 0.0)
    assert len(waiting._unanswered) == limits.unanswered_max
    assert max(map(len, waiting._unanswered.values())) == limits.unanswered_units_max
    waiting.replied(RequestId(0, 3), 0.0, 1.0)
    assert not waiting.profiles.rest.medians, "the oldest are forgotten"


def test_a_policy_that_raises_is_replaced_said_and_nothing_is_lost():
    waiting = queue()
    for number in range(3):
        waiting.add(unit(number, 9.0), 0.0)

    def raises(now: float) -> list[Unit]:
        raise ZeroDivisionError("a bug")

    waiting._lawful.policy.take = raises  # type: ignore[method-assign]
    assert len(waiting.take(0.0)) == 3
    assert waiting.failed == "it raised ZeroDivisionError: a bug"
    assert waiting.serves == "Fifo"


def test_what_a_batch_takes_is_predicted_while_it_runs_and_compared_when_it_ends():
    waiting = queue(max_rows=1, when_late=WhenLate.RUN)
    for number in range(80):
        waiting.add(unit(number, number + 9.0, app="chat"), float(number))
        (one,) = waiting.take(float(number))
        waiting.started(number, [one], float(number))
        while waiting.plan(float(number), 0.001):
            pass
        waiting.finished(number, Timing(0.1, 0.1, True), number + 0.1)
    calibration = waiting.calibration
    assert 0 < calibration.batches < 80, "not before something was learnt"
    assert calibration.predicted_s == pytest.approx(calibration.measured_s, rel=0.05)
    assert calibration.on_time == calibration.batches
    assert calibration.expected_on_time == pytest.approx(calibration.batches)
    other = queue(policy=SchedulePolicy.DEADLINE)
    other.add(unit(0, 9.0), 0.0)
    other.started(0, other.take(0.0), 0.0)
    assert not other.plan(0.0, 0.001)
    other.finished(0, Timing(0.1, 0.1, True), 0.1)
    assert other.calibration.batches == 0


def test_features_are_learnt_from_what_ran_alone():
    waiting = queue(max_rows=1, when_late=WhenLate.RUN)
    for number in range(1200):
        words = number % 40
        waiting.add(unit(number, number + 9.0, app="chat", words=words), float(number))
        waiting.started(number, waiting.take(float(number)), float(number))
        while waiting.plan(float(number), 0.001):
            pass
        took = 0.01 if words < 20 else 0.05
        waiting.finished(number, Timing(took, took, True), number + took)
    waiting.profiles.settle()
    short, long = unit(0, 9.0, app="chat", words=1), unit(1, 9.0, app="chat", words=39)
    for item in (short, long):
        waiting.add(item, 0.0)
    assert short.cls != long.cls
    assert waiting.profiles.expected(((short.cls, 1),), 1) == pytest.approx(0.01, rel=0.1)
    assert waiting.profiles.expected(((long.cls, 1),), 1) == pytest.approx(0.05, rel=0.1)


def serve(waiting: PolicyQueue, seconds: float, per_s: float, alone_s: dict[str, float]) -> list[list[Unit]]:
    """Batches of a model that pads, for requests of these applications that are due after 0.3 s; asked as a
    machine asks."""
    draw = random.Random(3)
    batches: list[list[Unit]] = []
    now, ends, arrives, number = 0.0, math.inf, 0.0, 0
    running: list[Unit] = []
    took = 0.0
    while now < seconds:
        now = max(now, min(arrives, ends, waiting.deadline() if not running else math.inf))
        if ends <= now:
            for item in running:
                item.stage = Stage.DONE
            ends, running = math.inf, []
            waiting.finished(len(batches), Timing(took, took, True), now)
        if arrives <= now:
            number += 1
            waiting.add(unit(number, now + 0.3, app=draw.choice(list(alone_s))), now)
            arrives += draw.expovariate(per_s)
        if not running:
            for item in waiting.late(now):
                item.stage = Stage.DONE
            running = waiting.take(now)
            if running:
                for item in running:
                    item.stage = Stage.RUNNING
                batches.append(running)
                longest = max(alone_s[str(dict(item.used[0].meta.parameters)["app"])] for item in running)
                took = longest * (0.75 + 0.25 * len(running)) * draw.uniform(0.95, 1.05)
                ends = now + took
                waiting.started(len(batches), running, now)
        for _ in range(1_000):
            if not (waiting.runs and waiting.plan(now, 0.002)):
                break
    return batches


def test_distribution_serves_under_its_guard_which_leaves_it_alone_where_it_is_good():
    waiting = queue(max_rows=8)
    assert (waiting.serves, waiting.switches) == ("Distribution", 0)
    serve(waiting, 60.0, 30.0, {"chat": 0.02, "mail": 0.1})
    assert waiting._guard is not None
    assert len(waiting._guard._winners) == 4  # rounds went on all the time
    assert (waiting.serves, waiting.switches, waiting.failed) == ("Distribution", 0, "")


def test_a_policy_that_answers_few_in_time_is_replaced_by_the_guard_and_no_unit_is_lost():
    waiting = queue(max_rows=8)
    guard = waiting._guard
    assert guard is not None
    noise: Noise[Unit] = Noise(8, True, waiting.profiles)
    guard._policy = noise
    guard._serving = guard._serving | {"distribution": lambda: noise}
    guard._shadows = guard._shadows | {"distribution": lambda: Noise(8, True, waiting.profiles, learns=False)}
    batches = serve(waiting, 60.0, 30.0, {"chat": 0.02, "mail": 0.1})
    assert waiting.serves != "Distribution"
    assert waiting.switches >= 1
    assert waiting.failed == ""  # it broke no law: it was bad
    handed = [item.id for batch in batches for item in batch]
    assert len(handed) == len(set(handed))
    assert len(handed) + waiting.shed + len(waiting) >= 1_700
    assert len(waiting) < 32


def test_a_model_may_idle_for_company_as_long_as_the_graph_says():
    waiting = queue(max_delay_s=0.25)
    guard = waiting._guard
    assert guard is not None
    policy = guard._serving["distribution"]()
    assert policy._max_delay_s == 0.25


def test_the_pace_of_the_guard_may_be_another_one():
    made = queue_of(operator(BATCH), Pace(round_s=0.5))
    assert isinstance(made, PolicyQueue)
    assert made._guard is not None
    assert made._guard._pace.round_s == 0.5
    assert queue(policy=SchedulePolicy.DEADLINE).serves == "Deadline"


def test_a_number_is_learnt_from_requests_that_ran_alone():
    """Two lengths of one application, most requests short: they become classes with times of their own."""
    waiting = queue(app_by="", max_rows=8)
    draw = random.Random(1)
    for number in range(1_200):
        words, now = draw.choice((10, 10, 10, 200)), number * 1.0
        waiting.add(unit(number, now + 9.0, words=words), now)
        (alone,) = waiting.take(now)
        waiting.started(number, [alone], now)
        alone.stage = Stage.DONE
        while waiting.plan(now, 0.002):
            pass
        took = words * 0.001 * draw.uniform(0.9, 1.1)
        waiting.finished(number, Timing(took, took, True), now + took)
    assert not waiting.failed
    short, long = (waiting.profiles.classes.class_of("", words) for words in (10, 200))
    assert short != long
    assert waiting.profiles.expected(((short, 1),), 1) == pytest.approx(0.01, rel=0.2)
    assert waiting.profiles.expected(((long, 1),), 1) == pytest.approx(0.2, rel=0.2)


def ran(waiting: PolicyQueue, number: int, units: list[Unit], took: float) -> None:
    """A batch of these units has run, and what is learnt of it is learnt."""
    for item in units:
        waiting._classify(item)
    waiting.started(number, units, float(number))
    while waiting.plan(float(number), 0.002):
        pass
    waiting.finished(number, Timing(took, took, True), number + took)


def test_a_number_is_learnt_from_requests_of_several_rows():
    """Each has four: what one takes alone follows from what batches of four rows take."""
    waiting = queue(app_by="", max_rows=8)
    draw = random.Random(1)
    for number in range(600):
        words = draw.choice((10, 10, 10, 200))
        ran(waiting, number, [unit(number, math.inf, rows=4, words=words)], words * 0.002)
    waiting.profiles.settle()
    short, long = (waiting.profiles.classes.class_of("", words) for words in (10, 200))
    assert short != long
    assert waiting.profiles.expected(((short, 1),), 4) == pytest.approx(0.02, rel=0.2)
    assert waiting.profiles.expected(((long, 1),), 4) == pytest.approx(0.4, rel=0.2)


def test_a_request_of_many_rows_may_take_longer_than_as_many_requests():
    waiting = queue(app_by="", feature="rows", max_rows=8)
    for number in range(600):
        if number % 3:
            rows = 1 if number % 3 == 1 else 8
            ran(waiting, number, [unit(number, math.inf, rows)], 0.01 if rows == 1 else 0.1)
        else:
            ran(waiting, number, [unit(number, math.inf) for _ in range(8)], 0.03)
    waiting.profiles.settle()
    small, large = (waiting.profiles.classes.class_of("", rows) for rows in (1.0, 8.0))
    assert small != large
    assert waiting.profiles.expected(((small, 8),), 8) == pytest.approx(0.03, rel=0.3)
    assert waiting.profiles.expected(((large, 1),), 8) == pytest.approx(0.1, rel=0.3)


@pytest.mark.parametrize("took", [0.0, -1.0, math.nan, math.inf, 1e9])
def test_a_time_that_no_clock_has_measured_teaches_nothing_of_a_number(took):
    waiting = queue()
    waiting.add(unit(0, 9.0, app="chat", words=3), 0.0)
    batch = waiting.take(0.0)
    waiting.started(1, batch, 0.0)
    waiting.finished(1, Timing(took, took, True), 1.0)
    assert waiting.profiles.classes._samples == 0
    assert not waiting.failed


@pytest.mark.parametrize("policy", [SchedulePolicy.DEADLINE, SchedulePolicy.DISTRIBUTION])
def test_units_of_one_session_run_in_order_whatever_their_deadlines(policy):
    waiting = queue(policy=policy, keep_order="parameter:session", when_late=WhenLate.RUN)
    units = [
        unit(0, 9.0, session="a"),
        unit(1, 5.0, session="a"),
        unit(2, 1.0, session="a"),
        unit(3, 2.0, session="b"),
        unit(4, 8.0),
    ]
    for item in units:
        waiting.add(item, 0.0)
    assert len(waiting) == 5
    ran = []
    while batch := waiting.take(0.0):
        for item in batch:
            item.stage = Stage.RUNNING
        waiting.started(1, batch, 0.0)
        ran += [item.id.request.n for item in batch]
        waiting.finished(1, Timing(0.001, 0.001, True), 0.0)
    assert sorted(ran) == [0, 1, 2, 3, 4]
    assert [number for number in ran if number < 3] == [0, 1, 2]
    assert len(waiting) == 0
    assert not waiting.failed


def test_a_session_goes_on_behind_what_was_shed_or_purged():
    waiting = queue(policy=SchedulePolicy.DEADLINE, keep_order="parameter:session")
    units = [unit(0, 9.0, session="a"), unit(1, 0.5, session="a"), unit(2, 9.0, session="a")]
    for item in units:
        waiting.add(item, 0.0)
    assert waiting.late(1.0) == [], "what stands behind is judged when its turn comes"
    units[0].stage = Stage.DONE
    assert waiting.deadline() < math.inf
    assert waiting.late(1.0) == [units[1]]
    assert waiting.take(1.0) == [units[2]]
    assert waiting.deadline() == math.inf
    waiting.add(unit(3, 9.0, session="a"), 1.0)
    waiting.clear()
    assert len(waiting) == 0


def test_what_missing_an_application_costs_is_what_its_class_weighs():
    waiting = queue(costs=(("chat", 5.0),))
    chat, mail = unit(0, 9.0, app="chat"), unit(1, 9.0, app="mail")
    for item in (chat, mail):
        waiting.add(item, 0.0)
    assert waiting.profiles.weights == {chat.cls: 5.0, mail.cls: 1.0}


def learn(
    waiting: PolicyQueue, count: int, took: float, disturbed: Disturbance = Disturbance.NOTHING
) -> None:
    """Run requests of one kind, alone."""
    for number in range(count):
        now = float(number)
        waiting.add(unit(number, now + 9.0), now)
        waiting.started(number, waiting.take(now), now)
        waiting.disturbed = disturbed
        waiting.finished(number, Timing(took, took, True), now + took)


def mean_s(waiting: PolicyQueue) -> float:
    waiting.profiles.settle()
    return waiting.profiles.expected(((REST, 1),), 1)


@pytest.mark.parametrize("disturbed", [Disturbance.LOAD, Disturbance.CAPTURE, Disturbance.UNTIMED])
def test_a_rare_batch_beside_something_else_teaches_little_or_nothing(disturbed):
    waiting = queue()
    learn(waiting, 200, 0.02)
    learn(waiting, 5, 2.0, disturbed)
    learn(waiting, 1, 0.02)
    assert (waiting.profiles.resets, waiting.profiles.longest_s) == (0, pytest.approx(0.02))
    within = 1.05 if disturbed is Disturbance.UNTIMED else 1.8
    assert 0.018 < mean_s(waiting) < 0.02 * within, "0.068 if they counted as others do"


def test_captures_beside_most_batches_are_part_of_what_these_take():
    waiting = queue()
    learn(waiting, 100, 0.02)
    learn(waiting, 100, 0.04, Disturbance.CAPTURE)
    assert waiting.profiles.resets > 0, "a drift"
    assert mean_s(waiting) == pytest.approx(0.04, rel=0.15)


def test_deadline_does_not_learn_from_times_that_nobody_knows():
    waiting = queue(policy=SchedulePolicy.DEADLINE)
    learn(waiting, 10, 0.02)
    learn(waiting, 1, 5.0, Disturbance.UNTIMED)
    waiting.add(unit(50, 100.5), 100.0)
    assert waiting.late(100.0) == []


def ordered(**changes: object) -> OrderedQueue:
    made = queue_of(
        operator(replace(BATCH, policy=SchedulePolicy.DEADLINE, keep_order="parameter:s", **changes))
    )  # type: ignore[arg-type]
    assert isinstance(made, OrderedQueue)
    return made


def test_a_unit_that_was_passed_over_and_comes_again_runs_after_those_of_its_session():
    waiting = ordered()
    first, second, other = unit(0, 9.0, s="a"), unit(1, 9.0, s="a"), unit(2, 9.0, s="b")
    for each in (first, second, other):
        waiting.add(each, 0.0)
    again = first.used
    first.reset()
    assert waiting.late(0.1) == []
    first.used, first.stage = again, Stage.READY
    waiting.add(first, 0.2)
    batches = []
    for number in range(2):
        batches.append(waiting.take(0.3))
        for each in batches[-1]:
            each.stage = Stage.DONE
        waiting.started(number, batches[-1], 0.3)
        waiting.finished(number, Timing(0.1, 0.1, True), 0.4)
    assert [set(map(id, batch)) for batch in batches] == [{id(second), id(other)}, {id(first)}]
    assert not waiting.failed


@pytest.mark.parametrize("sessions", [70, 300])
def test_one_unit_that_can_run_is_found_behind_many_that_cannot(sessions: int):
    for asks in ("deadline", "take"):
        waiting = ordered()
        heads = [unit(2 * number, 9.0, s=str(number)) for number in range(sessions)]
        behind = [unit(2 * number + 1, 9.0, s=str(number)) for number in range(sessions)]
        for each in (*heads, *behind):
            waiting.add(each, 0.0)
        for each in (*heads, *behind[:-1]):
            each.reset()
        if asks == "deadline":
            assert waiting.deadline() < math.inf
        else:
            assert waiting.take(1.0) == behind[-1:]


def test_what_a_unit_ran_on_goes_although_its_rows_were_asked_for():
    done = unit(0, 9.0, rows=3)
    payload = weakref.ref(done.used[0].payload)
    assert (done.rows, len(done.batch_key)) == (3, 1)
    done.used = ()
    assert payload() is None
    assert (done.rows, done.batch_key) == (1, ())


def in_order(**changes: object) -> PolicyQueue:
    waiting = queue(keep_order="parameter:s", **changes)
    waiting._lawful._replace = False
    return waiting


def test_who_came_back_before_its_turn_and_is_reset_waits_for_its_turn():
    """Its batch died, so it was before all others; an input became orphan; then others of its value came."""
    waiting = in_order()
    first, behind, other = unit(0, 9.0, s="x"), unit(1, 9.0, s="x"), unit(2, 9.0, s="y")
    used = first.used
    waiting.add(first, 0.0)
    assert waiting.take(0.0) == [first]
    waiting.started(1, [first], 0.0)
    waiting.add(behind, 0.1)
    waiting.finished(1, Timing(0.1, 0.1, False), 0.1)
    first.attempts = 1
    waiting.add_first(first, 0.1)
    first.reset()
    waiting.add(other, 0.1)
    taken = waiting.take(0.2)
    assert set(taken) == {behind, other}
    for each in taken:
        each.stage = Stage.RUNNING
    waiting.started(2, taken, 0.2)
    waiting.add(unit(3, 9.0, s="x"), 0.2)
    waiting.add(unit(4, 9.0, s="z"), 0.2)
    waiting.finished(2, Timing(0.1, 0.1, True), 0.3)
    first.used, first.stage = used, Stage.READY
    waiting.add(first, 0.3)
    assert len(waiting.take(0.4)) == 2, "and breaks no law"
    assert waiting.failed == ""


def test_who_is_ready_again_behind_another_while_a_policy_idles_is_not_handed_out():
    waiting = in_order(max_delay_s=0.05)
    head, behind, other = unit(0, 9.0, s="x"), unit(1, 9.0, s="x"), unit(2, 9.0, s="y")
    used = head.used
    waiting.add(other, 0.0)
    waiting.add(head, 0.0)
    assert waiting._guard is not None
    policy = waiting._guard.serves
    idles = pytest.MonkeyPatch()
    idles.setattr(policy, "_choose", lambda now: [])
    idles.setattr(policy, "_idles_since", 0.0)
    idles.setattr(policy, "_idles_until", 0.3)
    head.reset()
    assert waiting.take(0.01) == []
    idles.undo()
    waiting.add(behind, 0.02)
    waiting.late(0.02)
    head.used, head.stage = used, Stage.READY
    waiting.add(head, 0.03)
    assert head not in waiting.take(0.4)


def test_a_unit_that_got_its_deadline_while_it_ran_is_in_no_forecast():
    waiting = queue()
    late = unit(0, math.inf)
    ran(waiting, 0, [unit(9, math.inf)], 0.1)
    waiting.add(late, 1.0)
    waiting.profiles.settle()
    waiting.started(1, waiting.take(1.0), 1.0)
    waiting.plan(1.0, 0.002)
    late.due = 9.0
    waiting.finished(1, Timing(0.1, 0.1, True), 1.1)
    assert waiting.calibration.units == 0
