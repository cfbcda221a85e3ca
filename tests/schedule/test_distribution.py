"""Policy `Distribution`: candidates against Monte Carlo, decisions against exhaustive search, plans,
lateness."""

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hams_schedule.candidates import Candidate, Candidates, QueueView
from hams_schedule.decision import ChoiceKind, Terms, decide, quick, warm
from hams_schedule.limits import buckets_max, rest_memory_s, unit_steps
from hams_schedule.pending import Line
from hams_schedule.policies.distribution import Distribution
from hams_schedule.profile import Profiles
from hams_schedule.rollout import EDF, RATE, Arrivals, Future, best_sizes, rollout
from hams_schedule.shapes import maximum
from hams_schedule.split import Rest
from hams_schedule.steps import AT_ONCE, Steps, worth
from hams_schedule.tables import SIZES, TimeTables
from hams_schedule.trial import EVERY

from .kit import LONG_S, MAX_ROWS, SHORT_S, Took, Work, profiles, serve, time_of


@pytest.fixture(scope="module")
def learnt() -> Profiles:
    return profiles(samples=400)


@pytest.fixture(scope="module")
def tables(learnt: Profiles) -> TimeTables:
    return TimeTables(learnt, MAX_ROWS)


def queue(learnt: Profiles, units: list[tuple[str, float]], now: float = 0.0) -> Distribution[Work]:
    """A policy whose queue holds units of (application, slack)."""
    policy: Distribution[Work] = Distribution(MAX_ROWS, True, learnt, learns=False)
    for app, slack in units:
        mean = SHORT_S if app == "short" else LONG_S
        policy.add(Work(due=now + slack, cls=learnt.classes.class_of(app, math.nan), alone=mean), now)
    return policy


def drawn(app: str, draw: random.Random) -> float:
    mean = SHORT_S if app == "short" else LONG_S
    return draw.gauss(mean, mean / 10)


def valued(
    view: QueueView[Work], tables: TimeTables, steps: Steps = AT_ONCE, most: float = math.inf
) -> list[Candidate]:
    """All candidates of a view, each by its own law."""
    found = Candidates(view, tables, [1.0] * len(tables.cdfs), steps, most)
    for batch in found.batches:
        found.make_exact(batch)
    return found.batches


MIXED = [("short", 0.03 + 0.012 * n) for n in range(6)] + [("long", 0.14 + 0.04 * n) for n in range(5)]


def test_value_and_time_of_candidates_are_those_of_drawn_batches(
    learnt: Profiles, tables: TimeTables
) -> None:
    policy = queue(learnt, MIXED)
    view = QueueView(next(iter(policy.pending.lines.values())), tables, 0.0, {})
    found = valued(view, tables)
    assert len(found) > 8
    draw = random.Random(1)
    for batch in found:
        units = [view.sources[view.source[item]].units[view.index[item]] for item in batch.items]
        apps = ["short" if unit.alone == SHORT_S else "long" for unit in units]
        value = seconds = 0.0
        for _ in range(1_500):
            took = time_of(max(drawn(app, draw) for app in apps), len(units))
            seconds += took / 1_500
            value += sum(took <= unit.due for unit in units) / 1_500
        assert batch.time == pytest.approx(seconds, rel=0.03)
        assert batch.value == pytest.approx(value, rel=0.05, abs=0.12)


def best_ratio(view: QueueView[Work], tables: TimeTables) -> float:
    """The largest value per second over all subsets."""
    best = 0.0
    count = len(view.due)
    for size in range(1, min(count, MAX_ROWS) + 1):
        for items in itertools.combinations(range(count), size):
            counts = [0] * len(tables.cdfs)
            for item in items:
                counts[view.rank[item]] += 1
            law = tables.law(counts)
            base, slope = tables.base[size], tables.slope[size]
            value = sum(tables.grid.chance(law.cdf, (view.due[item] - base) / slope) for item in items)
            best = max(best, value / (base + slope * law.mean))
    return best


@pytest.mark.parametrize("seed", range(12))
def test_the_best_candidate_is_that_of_an_exhaustive_search(
    learnt: Profiles, tables: TimeTables, seed: int
) -> None:
    draw = random.Random(seed)
    units = [
        (app, draw.uniform(1.1, 4.0) * (SHORT_S if app == "short" else LONG_S) + draw.choice((0.0, 0.1)))
        for app in (draw.choice(("short", "long")) for _ in range(9))
    ]
    policy = queue(learnt, units)
    view = QueueView(next(iter(policy.pending.lines.values())), tables, 0.0, {})
    found = valued(view, tables)
    assert max(batch.ratio for batch in found) >= 0.97 * best_ratio(view, tables)


def chosen(policy: Distribution[Work], now: float) -> list[Work]:
    return policy.take(now)


def test_short_units_share_a_batch_and_a_long_one_stays_out(learnt: Profiles) -> None:
    units = [("short", 0.2)] * 4 + [("long", 0.9)] * 2
    batch = queue(learnt, units).take(0.0)
    assert {unit.alone for unit in batch} == {SHORT_S}
    assert len(batch) == 4


def test_a_batch_that_costs_its_members_is_not_made(learnt: Profiles) -> None:
    """Eight rows take 55 ms, and nobody has so long."""
    batch = queue(learnt, [("short", 0.034)] * 8).take(0.0)
    assert 1 <= len(batch) <= 3


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["short", "long"]), st.floats(0.0, 1.0)), min_size=1, max_size=25),
    st.floats(-1e6, 1e6),
)
def test_a_shift_of_all_times_changes_no_decision(units: list[tuple[str, float]], shift: float) -> None:
    learnt = SHARED
    units = [(app, round(slack, 3)) for app, slack in units]
    here, there = queue(learnt, units), queue(learnt, units, shift)
    assert len(here.late(0.0)) == len(there.late(shift))
    first, second = here.take(0.0), there.take(shift)
    assert [unit.cls for unit in first] == [unit.cls for unit in second]


SHARED = profiles()
SLOWER = profiles(scale=8.0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["short", "long"]), st.floats(0.0, 1.0)), min_size=1, max_size=25),
)
def test_a_slower_model_with_later_deadlines_changes_no_decision(units: list[tuple[str, float]]) -> None:
    units = [(app, round(slack, 3) + 0.0003) for app, slack in units]
    here, there = queue(SHARED, units), queue(SLOWER, [(app, 8.0 * slack) for app, slack in units])
    assert len(here.late(0.0)) == len(there.late(0.0))
    batches = [[(unit.cls, unit.rows) for unit in policy.take(0.0)] for policy in (here, there)]
    assert batches[0] == batches[1]


def test_other_names_of_classes_change_nothing() -> None:
    """The same laws under other applications."""
    swapped = Profiles()
    draw = random.Random(1)
    for _ in range(150):
        for app, mean in (("short", SHORT_S), ("long", LONG_S)):
            name = {"short": "zz", "long": "aa"}[app]
            swapped.classify(name, math.nan)
            swapped.observe_alone(name, math.nan, draw.gauss(mean, mean / 10))
    swapped.settle()
    plain = Profiles()
    draw = random.Random(1)
    for _ in range(150):
        for app, mean in (("short", SHORT_S), ("long", LONG_S)):
            plain.classify(app, math.nan)
            plain.observe_alone(app, math.nan, draw.gauss(mean, mean / 10))
    plain.settle()
    sizes = []
    for learnt, short in ((swapped, "zz"), (plain, "short")):
        policy: Distribution[Work] = Distribution(MAX_ROWS, True, learnt)
        for number in range(6):
            policy.add(Work(due=0.1 + 0.01 * number, cls=learnt.classes.class_of(short, math.nan)), 0.0)
        sizes.append(len(policy.take(0.0)))
    assert sizes[0] == sizes[1]


def test_units_without_a_chance_are_shed_and_others_are_not(learnt: Profiles) -> None:
    policy = queue(learnt, [("short", 0.005), ("short", 0.1), ("long", 0.05), ("long", 0.2)])
    late = policy.late(0.0)
    assert sorted(unit.due for unit in late) == [0.005, 0.05]
    assert len(policy) == 2


def test_what_nothing_is_likely_for_is_tried_alone(learnt: Profiles) -> None:
    """A slack between the 2 % and the 10 % quantile: no candidate, and yet the model does not idle."""
    policy = queue(learnt, [("long", 0.0835)])
    assert policy.late(0.0) == []
    assert len(policy.take(0.0)) == 1
    assert policy.decisions[ChoiceKind.LIKELIEST] == 1


def test_a_unit_without_a_deadline_that_no_known_batch_holds_is_tried_alone() -> None:
    profiles, cls = learnt_alone()
    policy: Distribution[Work] = Distribution(MAX_ROWS, True, profiles, learns=False)
    unknown = Work(rows=5, cls=cls)
    policy.add(unknown, 0.0)
    assert chosen(policy, 0.0) == [unknown]
    assert policy.decisions[ChoiceKind.LIKELIEST] == 1


def test_tables_of_newer_laws_are_worked_out_class_by_class_beside_a_batch(learnt: Profiles) -> None:
    policy = queue(learnt, [("short", 9.0)])
    policy.started(1, chosen(policy, 0.0), 0.0)
    before = policy.present_tables()
    assert before is not None
    learnt.settle()
    slices = 1
    while policy.plan(0.0, 0.002):
        slices += 1
        assert policy.tables is before or policy.tables.revision == learnt.revision
    assert slices > len(before.cdfs)
    ahead, whole = policy.tables, TimeTables(learnt, MAX_ROWS)
    assert ahead is not None
    assert ahead.revision == learnt.revision
    for name in ("expected", "quantiles", "middles", "drop", "peaks"):
        assert getattr(ahead, name) == getattr(whole, name)


def test_tables_are_finished_though_laws_change_faster_than_they_are_worked_out() -> None:
    profile = profiles(samples=400)
    policy = queue(profile, [("short", 9.0)])
    policy.started(1, chosen(policy, 0.0), 0.0)
    before = policy.present_tables()
    revisions = set()
    for _ in range(20):
        profile.settle()
        policy.plan(0.0, 0.002)
        assert policy.tables is not None
        revisions.add(policy.tables.revision)
    assert before is not None
    assert len(revisions) > 3


def test_late_units_that_are_not_shed_get_their_share(learnt: Profiles) -> None:
    policy: Distribution[Work] = Distribution(MAX_ROWS, False, learnt, learns=False)
    hopeless = [Work(due=0.001, cls=learnt.classes.class_of("short", math.nan)) for _ in range(3)]
    for unit in hopeless:
        policy.add(unit, 0.0)
    now, ran_late_at = 0.0, -1
    for batch in range(60):
        for _ in range(4):
            policy.add(Work(due=now + 0.2, cls=learnt.classes.class_of("short", math.nan)), now)
        assert policy.late(now) == []
        units = policy.take(now)
        if any(unit in hopeless for unit in units):
            ran_late_at = batch
            break
        policy.started(batch, units, now)
        now += 0.03
        policy.finished(batch, Took(0.03), now)
    assert 0 < ran_late_at < 60, "under lasting load they run too, but not first"


def test_a_class_that_costs_more_runs_first(learnt: Profiles) -> None:
    long = learnt.classes.class_of("long", math.nan)
    units = [("short", 0.06)] * 3 + [("long", 0.13)]
    assert queue(learnt, units).take(0.0)[0].alone == SHORT_S
    dear: Distribution[Work] = Distribution(MAX_ROWS, True, learnt, weights={long: 50.0}, learns=False)
    for app, slack in units:
        cls = learnt.classes.class_of(app, math.nan)
        dear.add(Work(due=slack, cls=cls, alone=SHORT_S if app == "short" else LONG_S), 0.0)
    assert any(unit.alone == LONG_S for unit in dear.take(0.0))


def test_steps_of_cost_add_up(learnt: Profiles, tables: TimeTables) -> None:
    policy = queue(learnt, [("short", 0.5)])
    view = QueueView(next(iter(policy.pending.lines.values())), tables, 0.0, {})
    missed = valued(view, tables, ((0.6, 0.25), (0.1, 0.25), (0.0, 0.5)))
    assert [batch.value for batch in missed] == pytest.approx([0.75]), "the first one lies before it came"
    steps = ((0.5 - SHORT_S, 0.5), (0.0, 0.5))
    (uncertain,) = valued(view, tables, steps)
    chance = tables.grid.chance(tables.cdfs[view.rank[0]], SHORT_S)
    assert uncertain.value == pytest.approx(0.5 + 0.5 * chance)
    assert uncertain.first_chance == pytest.approx(chance)


@pytest.mark.parametrize(
    "steps",
    [
        (),
        ((1.0, 1.0),),
        ((0.0, 0.5), (1.0, 0.5)),
        ((1.0, 0.5), (1.0, 0.25), (0.0, 0.25)),
        ((1.0, 0.5), (0.0, 0.4)),
        ((math.nan, 0.5), (0.0, 0.5)),
        ((1.0, 0.0), (0.0, 1.0)),
        tuple((float(4 - step), 0.2) for step in range(5)),
    ],
)
def test_what_are_no_steps_of_cost_are_refused(steps: Steps) -> None:
    with pytest.raises(ValueError, match="expected 1 to 4 steps that descend to 0"):
        Terms(steps, {})


HALVES: Steps = ((0.6, 0.5), (0.0, 0.5))
"""Half of an answer's worth is lost 0.6 s before it is due."""


def test_an_answer_that_can_be_worth_all_runs_before_one_that_cannot_any_more(learnt: Profiles) -> None:
    cls = learnt.classes.class_of("long", math.nan)
    first = {}
    for name, steps in (("whole", AT_ONCE), ("halves", HALVES)):
        policy: Distribution[Work] = Distribution(1, True, learnt, steps=steps, learns=False)
        for slack in (0.65, 0.6 + 1.5 * LONG_S):
            policy.add(Work(due=slack, cls=cls, alone=LONG_S), 0.0)
        first[name] = policy.take(0.0)[0].due
    assert first == {"whole": 0.65, "halves": 0.6 + 1.5 * LONG_S}


def test_what_has_missed_its_first_steps_is_not_late(learnt: Profiles) -> None:
    policy: Distribution[Work] = Distribution(MAX_ROWS, True, learnt, steps=HALVES, learns=False)
    cls = learnt.classes.class_of("short", math.nan)
    policy.add(Work(due=0.2, cls=cls, alone=SHORT_S), 0.0)
    policy.add(Work(due=0.001, cls=cls, alone=SHORT_S), 0.0)
    assert [unit.due for unit in policy.late(0.0)] == [0.001]
    assert [unit.due for unit in policy.take(0.0)] == [0.2]


def test_steps_of_cost_win_what_policies_without_them_lose(learnt: Profiles) -> None:
    draw = random.Random(4)
    arrivals, at = [], 0.0
    for _ in range(600):
        at += draw.expovariate(1.0 / 0.035)
        app = draw.choice(("short", "long"))
        work = Work(due=at + 1.0, cls=learnt.classes.class_of(app, math.nan), alone=drawn(app, draw))
        arrivals.append((at, work))

    def gained(steps: Steps) -> float:
        policy: Distribution[Work] = Distribution(4, True, learnt, steps=steps, learns=False)
        fresh = [(at, replace(work)) for at, work in arrivals]
        served = serve(policy, fresh, lambda _: [])
        return sum(worth(MOST_EARLY, left) for left in served.left_s)

    MOST_EARLY: Steps = ((0.8, 0.8), (0.0, 0.2))
    assert gained(MOST_EARLY) > 1.02 * gained(AT_ONCE)


def test_the_quick_rule_counts_steps_too(learnt: Profiles, tables: TimeTables) -> None:
    policy = queue(learnt, [("short", 0.5)])
    lines = list(policy.pending.lines.values())
    whole, half = (quick(lines, tables, Terms(steps, {}), 0.0) for steps in (AT_ONCE, HALVES))
    assert whole is not None
    assert half is not None
    assert (whole.value, half.value) == pytest.approx((1.0, 0.5))


def test_the_rest_of_the_path_is_taken_off(learnt: Profiles) -> None:
    policy = queue(learnt, [("long", 0.3)] * 2)
    assert policy.late(0.0) == []
    long = learnt.classes.class_of("long", math.nan)
    try:
        for _ in range(10):
            learnt.rest.add(long, 0.25, 0.0)
        assert len(policy.late(0.0)) == 2
    finally:
        learnt.rest.forget_stale(math.inf)
    assert not learnt.rest.medians


def test_the_rest_of_the_path_is_that_of_the_newest_replies_of_an_application() -> None:
    rest = Rest()
    for seconds in (0.1, 0.2, 0.9, math.nan, -1.0, 1e9, math.inf):
        rest.add(0, seconds, 1.0)
    rest.add(99_999, 0.1, 1.0)
    assert (rest.medians.get(0), rest.least(0), rest.medians.get(buckets_max)) == (0.2, 0.1, None)
    assert rest.medians[buckets_max - 1] == 0.2, "features are each operator's own: it counts by application"
    for _ in range(200):
        rest.add(1, 0.5, 1.0)
    assert rest.medians[0] == rest.least(0) == rest.median_of_all() == 0.5, "only the newest count"


def test_what_was_measured_in_an_outage_sheds_nothing_for_long() -> None:
    rest = Rest()
    rest.add(0, 30.0, 1.0)
    rest.add(buckets_max, 0.1, 2.0)
    rest.forget_stale(1.0 + rest_memory_s)
    assert rest.least(0) == 30.0
    rest.forget_stale(1.1 + rest_memory_s)
    assert (rest.least(0), rest.least(buckets_max), rest.least_of_all()) == (0.0, 0.1, 0.1)
    rest.forget_stale(2.1 + rest_memory_s)
    assert (rest.medians, rest.median_of_all(), rest.least_of_all()) == ({}, 0.0, 0.0)


def test_the_quick_rule_decides_like_the_full_one_where_one_class_waits(
    learnt: Profiles, tables: TimeTables
) -> None:
    policy = queue(learnt, [("short", 0.3 + 0.001 * n) for n in range(8)])
    lines = list(policy.pending.lines.values())
    terms = Terms(AT_ONCE, {})
    full = decide(lines, tables, Arrivals(), terms, 0.0)
    fast = quick(lines, tables, terms, 0.0)
    assert full is not None
    assert fast is not None
    assert fast.kind == ChoiceKind.QUICK
    assert fast.value / fast.time == pytest.approx(full.value / full.time, rel=0.1)


def lines_of(policy: Distribution[Work]) -> list[Line[Work]]:
    return list(policy.pending.lines.values())


MANY = [(app, 0.2 + 0.01 * number) for number in range(20) for app in ("short", "long")]


def test_a_decision_that_may_cost_nothing_takes_the_most_value_per_second(learnt: Profiles) -> None:
    policy, tables = queue(learnt, MANY), TimeTables(learnt, MAX_ROWS)
    arrivals, terms = Arrivals(), Terms(AT_ONCE, {})
    view = QueueView(lines_of(policy)[0], tables, 0.0, {})
    ratios = sorted(batch.ratio for batch in valued(view, tables))
    choice = decide(lines_of(policy), tables, arrivals, terms, 0.0, most_steps=0.0)
    assert choice is not None
    assert choice.value / choice.time == pytest.approx(ratios[-1])
    assert choice.steps >= unit_steps * len(MANY), "it says what it costs all the same"


def near() -> Profiles:
    """Six applications of nearly the same times: a mixed batch is longer than its slowest class alone."""
    learnt, draw = Profiles(), random.Random(5)
    for _ in range(100):
        for app in range(6):
            learnt.classify(str(app), math.nan)
            learnt.observe_alone(str(app), math.nan, draw.gauss(0.03 + 0.001 * app, 0.004))
    learnt.settle()
    for rows in range(2, MAX_ROWS + 1):
        for _ in range(12):
            learnt.observe_batch([0] * rows, rows, time_of(0.032, rows), 0.0)
    learnt.settle()
    return learnt


CROWD = [(str(number % 6), 0.05 + 0.007 * number) for number in range(40)]


def test_laws_of_mixed_batches_cost_a_decision_no_more_than_they_may() -> None:
    learnt, known = near(), list[int]()
    for most in (0.0, 300.0, math.inf):
        policy, tables = queue(learnt, CROWD), TimeTables(learnt, MAX_ROWS)
        decide(lines_of(policy), tables, Arrivals(), Terms(AT_ONCE, {}), 0.0, most_steps=most)
        view = QueueView(lines_of(policy)[0], tables, 0.0, {})
        counts = [batch.counts for batch in valued(view, tables, most=0.0)]
        mixed = {tuple(of) for of in counts if sum(number > 0 for number in of) > 1}
        known.append(sum(tables.knows(list(of)) for of in mixed))
        assert len(mixed) > known[-1], "not even without a bound are all needed"
    assert known[0] == 0 < known[1] < known[2]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    "key", [lambda batch: batch.ratio, lambda batch: batch.value], ids=["ratio", "value"]
)
def test_the_best_are_found_without_the_laws_of_all(
    tables: TimeTables, learnt: Profiles, seed: int, key: Callable[[Candidate], float]
) -> None:
    draw = random.Random(seed)
    units = [(draw.choice(("short", "long")), draw.uniform(0.02, 0.6)) for _ in range(30)]
    view = QueueView(lines_of(queue(learnt, units))[0], tables, 0.0, {})
    promised = Candidates(view, tables, [1.0] * len(tables.cdfs), AT_ONCE)
    before = [(batch.value, batch.time) for batch in promised.batches]
    best = promised.best(8, key, promised.batches)
    lazily = sum(batch.exact for batch in promised.batches)
    exact = valued(view, tables)
    assert [key(batch) for batch in best] == sorted(map(key, exact), reverse=True)[:8]
    assert lazily < len(exact)
    for (value, time), batch in zip(before, exact, strict=True):
        assert value >= batch.value - 1e-9
        assert time <= batch.time + 1e-9


def test_the_law_of_a_batch_is_that_of_the_maximum(learnt: Profiles, tables: TimeTables) -> None:
    grid = tables.grid
    for counts in itertools.product((0, 1, 5), repeat=len(tables.cdfs)):
        if any(counts):
            law, whole = tables.law(list(counts)), maximum(tables.cdfs, list(counts))
            assert law.cdf == pytest.approx(whole, abs=1e-3)
            assert law.mean == pytest.approx(grid.mean(whole), rel=2e-3)


@pytest.mark.parametrize("seed", range(20))
def test_the_quick_rule_leaves_out_only_what_is_worth_less(
    learnt: Profiles, tables: TimeTables, seed: int
) -> None:
    draw = random.Random(seed)
    apps = ("short", "long")
    units = [(draw.choice(apps), draw.uniform(0.02, 0.5)) for _ in range(draw.choice((1, 3, 9, 40)))]
    policy, terms = queue(learnt, units), Terms(AT_ONCE, {})
    choice = quick(lines_of(policy), tables, terms, 0.0)
    assert choice is not None
    for app in apps:  # of each class and size alone
        for size in (1, 2, 4, 8):
            of_app = queue(learnt, [(kind, slack) for kind, slack in units if kind == app])
            smaller = TimeTables(learnt, size)
            alone = quick(lines_of(of_app), smaller, terms, 0.0) if len(of_app) else None
            if alone is not None:
                assert choice.value / choice.time >= alone.value / alone.time - 1e-9


def test_laws_are_made_beside_the_running_batch() -> None:
    learnt = near()
    policy, tables, terms = queue(learnt, CROWD), TimeTables(learnt, MAX_ROWS), Terms(AT_ONCE, {})
    rounds = 0
    while warm(lines_of(policy), tables, terms, 0.0, 50.0):
        rounds += 1
    assert rounds > 1, "slice by slice"
    spent = tables.spent
    decide(lines_of(policy), tables, Arrivals(), terms, 0.0)
    assert tables.spent == spent


def test_a_long_queue_of_the_past_does_not_keep_decisions_short(learnt: Profiles) -> None:
    policy: Distribution[Work] = Distribution(MAX_ROWS, True, learnt, learns=False)
    policy.work = 50_000.0
    cls = learnt.classes.class_of("short", math.nan)
    for batch in range(300):
        now = float(batch)
        policy.add(Work(due=now + 0.5, cls=cls, alone=SHORT_S), now)
        policy.started(batch, policy.take(now), now)
        policy.finished(batch, Took(SHORT_S), now + SHORT_S)
    assert policy.decisions[ChoiceKind.QUICK] > 0
    assert policy.decisions[ChoiceKind.FULL] > 0


def test_half_a_plan_is_made_beside_a_long_batch_and_none_beside_a_short_one(learnt: Profiles) -> None:
    for slack_s, plans in ((LONG_S, True), (SHORT_S / 100, False)):
        policy = queue(learnt, MANY)
        policy.work = 50_000.0
        policy.started(1, policy.take(0.0), 0.0)
        assert policy.running is not None
        policy.running.expected_s = slack_s
        policy.plan(0.0, 0.002)
        policy.finished(1, Took(slack_s), slack_s)
        policy.take(slack_s)
        assert (policy.decisions[ChoiceKind.PLANNED] == 1) is plans


def test_a_plan_is_used_when_the_batch_ends_as_expected_and_dropped_when_not(learnt: Profiles) -> None:
    for took, kind in ((0.035, ChoiceKind.PLANNED), (0.3, ChoiceKind.QUICK)):
        policy: Distribution[Work] = Distribution(MAX_ROWS, True, learnt, on_spot_share=0.0, learns=False)
        cls = learnt.classes.class_of("short", math.nan)
        for _ in range(12):
            policy.add(Work(due=2.0, cls=cls), 0.0)
        first = policy.take(0.0)
        policy.started(1, first, 0.0)
        while policy.plan(0.0, 1.0):
            pass
        expected = policy.running.expected_s if policy.running else 0.0
        now = expected if kind == ChoiceKind.PLANNED else took
        policy.finished(1, Took(now), now)
        assert policy.take(now)
        assert policy.decisions[kind] >= 1
        assert policy.stale_plans == (kind != ChoiceKind.PLANNED)


def test_a_plan_falls_to_an_arrival_that_cannot_wait(learnt: Profiles) -> None:
    policy: Distribution[Work] = Distribution(MAX_ROWS, True, learnt, on_spot_share=0.0, learns=False)
    cls = learnt.classes.class_of("short", math.nan)
    for _ in range(3):
        policy.add(Work(due=2.0, cls=cls), 0.0)
    first = policy.take(0.0)
    policy.started(1, first, 0.0)
    for _ in range(3):
        policy.add(Work(due=2.0, cls=cls), 0.001)
    while policy.plan(0.001, 1.0):
        pass
    assert policy.running is not None
    now = policy.running.expected_s
    urgent = Work(due=now + 0.028, cls=cls)
    policy.add(urgent, 0.002)
    policy.finished(1, Took(now), now)
    policy.take(now)
    assert policy.stale_plans == 1


def test_a_plan_whose_unit_has_gone_is_dropped(learnt: Profiles) -> None:
    policy: Distribution[Work] = Distribution(MAX_ROWS, True, learnt, on_spot_share=0.0, learns=False)
    cls = learnt.classes.class_of("short", math.nan)
    units = [Work(due=2.0, cls=cls) for _ in range(6)]
    policy.started(1, [Work(cls=cls)], 0.0)
    for unit in units:
        policy.add(unit, 0.0)
    while policy.plan(0.0, 1.0):
        pass
    units[0].stage = 0
    assert policy.running is not None
    now = policy.running.expected_s
    policy.finished(1, Took(now), now)
    batch = policy.take(now)
    assert batch
    assert units[0] not in batch


def test_a_roll_out_counts_what_a_simple_policy_completes(learnt: Profiles, tables: TimeTables) -> None:
    rank = tables.rank_of(learnt.classes.class_of("short", math.nan))
    dues: list[list[float]] = [[] for _ in tables.cdfs]
    dues[rank] = [0.15] * 4 + [0.3] * 4
    future = Future(dues, tables, [], {})
    targets = best_sizes(tables, 0.4)
    for base in (RATE, EDF):
        outcome = rollout(future.dues, future.since, tables, targets, base, 0.0, 0.4)
        assert outcome.lost == 0
        assert outcome.completed == pytest.approx(0.8 * 8)
    halves = rollout(future.dues, future.since, tables, targets, EDF, 0.0, 0.4, ((0.2, 0.5), (0.0, 0.5)))
    assert halves.lost == 4, "what is due first has missed its first step before it has begun"
    assert halves.completed == pytest.approx(0.8 * (4 + 4 * 0.5))
    hopeless = Future([[0.001] * 3 if one == rank else [] for one in range(len(dues))], tables, [], {})
    outcome = rollout(hopeless.dues, hopeless.since, tables, targets, EDF, 0.0, 0.4)
    assert (outcome.completed, outcome.lost) == (0.0, 3)


def test_expected_arrivals_are_those_of_the_last_window() -> None:
    arrivals = Arrivals()
    for step in range(30):
        arrivals.add(step / 10, step % 2, 0.5)
    arrivals.add(3.0, 0, math.inf)
    assert arrivals.window(3.0) == 0.5
    expected = arrivals.expected(2.95, 0.5)
    assert [round(at, 2) for at, _, _ in expected] == [3.0, 3.1, 3.2, 3.3, 3.4]
    assert all(due == pytest.approx(at + 0.5) for at, _, due in expected)
    for step in range(1_000):
        arrivals.add(5.0 + step / 1_000, 0, 0.5)
    assert arrivals.window(6.0) == pytest.approx(0.2, abs=0.01), (
        "no further than the arrivals that are remembered"
    )


def test_with_few_samples_it_goes_by_the_prior() -> None:
    policy: Distribution[Work] = Distribution(MAX_ROWS, True, Profiles(prior_p99_s=0.1))
    for _ in range(5):
        policy.add(Work(due=0.12), 0.0)
    assert len(policy.take(0.0)) == 1, "a batch of two is expected to take 125 ms"
    assert policy.decisions[ChoiceKind.POINT] == 1


def test_a_unit_larger_than_a_batch_runs(learnt: Profiles) -> None:
    policy = queue(learnt, [])
    policy.add(Work(due=math.inf, rows=3 * MAX_ROWS), 0.0)
    policy.add(Work(due=math.inf, rows=2), 0.0)
    taken = [policy.take(0.0), policy.take(0.0)]
    assert sorted(len(batch) for batch in taken) == [1, 1]


def test_sizes_that_were_never_measured_are_not_tried(learnt: Profiles) -> None:
    wide = TimeTables(learnt, 32)
    assert not wide.known[32]
    policy: Distribution[Work] = Distribution(32, True, learnt, learns=False)
    cls = learnt.classes.class_of("short", math.nan)
    for _ in range(32):
        policy.add(Work(due=5.0, cls=cls), 0.0)
    assert len(policy.take(0.0)) <= 8
    assert SIZES[-1] == 64


def test_a_candidate_of_no_time_has_no_ratio() -> None:
    batch = Candidate([0], [1], 1)
    batch.expect(1.0, 0.0, 1.0)
    assert batch.ratio == 0.0


def alike(max_delay_s: float, per_s: float, budget_s: float = 0.034) -> Distribution[Work]:
    """A policy for requests that are all alike and take 20 ms; two take 25 ms. `per_s` arrived in the last
    window."""
    learnt = Profiles()
    draw = random.Random(3)
    cls = learnt.classify("", math.nan)
    for _ in range(200):
        learnt.observe_alone("", math.nan, draw.gauss(SHORT_S, 0.0002))
    learnt.settle()
    for rows in (2, 3, 4):
        for _ in range(20):
            learnt.observe_batch([cls] * rows, rows, time_of(SHORT_S, rows) + 0.01 * (rows > 2), 0.0)
    learnt.settle()
    policy: Distribution[Work] = Distribution(4, True, learnt, learns=False, max_delay_s=max_delay_s)
    step = 1.0 / per_s
    for number in range(40):
        at = 1.0 - (40 - number) * step
        unit = Work(due=at + budget_s, cls=cls)
        policy.add(unit, at)
        unit.stage = 0
    policy.pending.retain_ready()
    policy.add(Work(due=1.0 + budget_s, cls=cls), 1.0)
    return policy


def test_it_idles_for_company_that_is_likely_to_come_and_not_for_ever() -> None:
    policy = alike(1.0, 200.0)
    assert policy.take(1.0) == []
    assert policy.decisions[ChoiceKind.IDLE] == 1
    until = policy.deadline()
    assert 1.0 < until <= 1.0 + 0.034 - 0.025 + 0.001
    assert len(policy.take(until)) == 1, "nobody came"


def test_company_that_comes_shares_the_batch() -> None:
    policy = alike(1.0, 200.0)
    assert policy.take(1.0) == []
    policy.add(Work(due=1.003 + 0.034, cls=policy.pending.all_lines()[0].cls), 1.003)
    assert len(policy.take(1.003)) == 2


@pytest.mark.parametrize(("max_delay_s", "per_s"), [(0.0, 200.0), (1.0, 2.0)])
def test_it_idles_only_if_it_may_and_somebody_is_likely_to_come(max_delay_s: float, per_s: float) -> None:
    policy = alike(max_delay_s, per_s)
    assert len(policy.take(1.0)) == 1
    assert policy.decisions[ChoiceKind.IDLE] == 0


def test_it_waits_no_longer_than_it_may() -> None:
    policy = alike(0.002, 200.0)
    assert policy.take(1.0) == []
    assert policy.deadline() == pytest.approx(1.002)
    assert len(policy.take(1.002)) == 1


def test_a_suspect_ends_the_wait() -> None:
    policy = alike(1.0, 200.0)
    assert policy.take(1.0) == []
    policy.add_first(Work(attempts=1), 1.001)
    assert policy.deadline() <= 1.001
    assert policy.take(1.001)[0].attempts == 1


def overloaded(policy: Distribution[Work], cls: int, batches: int, slack_s: float) -> list[int]:
    """The sizes of batches of a model that pads, while more units come than it can run one by one."""
    now, sizes = 0.0, []
    for number in range(batches):
        for _ in range(5):
            policy.add(Work(due=now + slack_s, cls=cls), now)
        policy.late(now)
        batch = policy.take(now)
        policy.started(number, batch, now)
        while policy.plan(now, 1.0):
            pass
        took = time_of(SHORT_S, len(batch))
        now += took
        policy.finished(number, Took(took, took), now)
        sizes.append(len(batch))
    return sizes


def learnt_alone() -> tuple[Profiles, int]:
    """What light load teaches: batches of one."""
    profiles = Profiles()
    cls = profiles.classify("", math.nan)
    for _ in range(200):
        profiles.observe_batch([cls], 1, SHORT_S, 0.0)
    profiles.settle()
    return profiles, cls


def test_what_light_load_has_taught_does_not_keep_batches_small() -> None:
    profiles, cls = learnt_alone()
    sizes = overloaded(Distribution(MAX_ROWS, True, profiles), cls, 300, 10 * SHORT_S)
    assert max(sizes[: EVERY - 1]) == 1
    assert 2 in sizes[: 5 * EVERY], "a larger size is tried before long"
    assert sizes[: 5 * EVERY].count(2) <= 5, "and seldom, while it is not known"
    assert sum(sizes[-50:]) >= 3 * 50


def test_short_deadlines_do_not_keep_batches_small() -> None:
    profiles, cls = learnt_alone()
    sizes = overloaded(Distribution(MAX_ROWS, True, profiles), cls, 300, 3.2 * SHORT_S)
    assert sum(sizes[-50:]) >= 3 * 50


def test_no_size_is_tried_whose_guess_does_not_fit() -> None:
    profiles, cls = learnt_alone()
    sizes = overloaded(Distribution(MAX_ROWS, True, profiles), cls, 60, 1.2 * SHORT_S)
    assert max(sizes) == 1


@pytest.mark.parametrize("samples", [200, 20_000])
def test_a_size_is_known_after_five_trials_however_much_is_known_of_others(samples: int) -> None:
    profiles = Profiles()
    cls = profiles.classify("", math.nan)
    for _ in range(samples):
        profiles.observe_batch([cls], 1, SHORT_S, 0.0)
    profiles.settle()
    sizes = overloaded(Distribution(MAX_ROWS, True, profiles), cls, 60, 1.3 * SHORT_S)
    assert sizes[: 5 * EVERY].count(2) == 5
    assert profiles.times.known(2)


def test_a_size_whose_batches_fail_is_tried_ever_more_seldom() -> None:
    profiles, cls = learnt_alone()
    policy: Distribution[Work] = Distribution(MAX_ROWS, True, profiles)
    now, tried = 0.0, []
    for number in range(400):
        for _ in range(3):
            policy.add(Work(due=now + 10 * SHORT_S, cls=cls), now)
        policy.late(now)
        batch = policy.take(now)
        policy.started(number, batch, now)
        while policy.plan(now, 1.0):
            pass
        now += SHORT_S
        policy.finished(number, Took(SHORT_S, SHORT_S, ok=len(batch) == 1), now)
        tried.append(len(batch) > 1)
    assert sum(tried[:100]) > sum(tried[100:200]) >= sum(tried[300:]) > 0
    assert sum(tried) < 40


def test_a_law_with_a_long_tail_does_not_blind_roll_outs() -> None:
    """One request in seven takes longer than any deadline, and nothing tells which."""
    profiles, draw = Profiles(), random.Random(4)
    cls = profiles.classify("", math.nan)
    for _ in range(2_000):
        profiles.observe_alone("", math.nan, 0.1 if draw.random() < 0.15 else 0.01)
    profiles.settle()
    for rows in (2, 3, 4, 6, 8):
        for _ in range(12):
            longest = max(0.1 if draw.random() < 0.15 else 0.01 for _ in range(rows))
            profiles.observe_batch([cls] * rows, rows, time_of(longest, rows), 0.0)
    profiles.settle()
    tables = TimeTables(profiles, MAX_ROWS)
    dues = [[0.09 + 0.001 * n for n in range(6)]]
    by_rank = [dues[0] if rank == tables.rank_of(cls) else [] for rank in range(len(tables.cdfs))]
    future = Future(by_rank, tables, [], {})
    outcome = rollout(future.dues, future.since, tables, best_sizes(tables, 0.09), EDF, 0.0, 0.09)
    assert outcome.completed > 0.0
