"""The laws of the interface: all policies keep them, mutants of a policy are caught and replaced."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hams_protocol.joins import Stage
from hams_schedule.lawful import LawBroken, Lawful, QueueEntry
from hams_schedule.policies.deadline import Deadline
from hams_schedule.policies.fifo import FifoPolicy
from hams_schedule.policies.measured import SizeTimes
from hams_schedule.scheduler import READY, SchedulerPort

from .kit import MAX_ROWS, POLICIES, Took, Work, serve


def test_ready_is_the_stage_of_the_core() -> None:
    assert int(READY) == int(Stage.READY)


works = st.builds(
    Work,
    due=st.one_of(st.just(math.inf), st.floats(0.0, 2.0)),
    rows=st.sampled_from([1, 1, 1, 1, 2, 3, MAX_ROWS + 5]),
    batch_key=st.sampled_from(["", "", "other"]),
    attempts=st.sampled_from([0, 0, 0, 0, 0, 1]),
    cls=st.sampled_from([0, 8, 128, 3]),
    alone=st.sampled_from([0.01, 0.02, 0.1]),
)
events = st.lists(st.tuples(st.floats(0.0, 1.0), works), max_size=40)


@pytest.mark.parametrize("name", list(POLICIES))
@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(arrivals=events, seed=st.integers(0, 1_000))
def test_a_policy_keeps_the_laws_and_loses_no_unit(
    name: str, arrivals: list[tuple[float, Work]], seed: int
) -> None:
    """Whatever comes, and though units stop being READY in the queue."""
    units = [unit for _, unit in arrivals]
    for unit in units:
        unit.stage = 1
    draw = random.Random(seed)
    spoilt: list[Work] = []

    def spoil(batch: int) -> list[Work]:
        chosen = draw.sample(units, min(len(units), 2)) if batch % 3 == 0 else []
        spoilt.extend(unit for unit in chosen if unit.stage == 1)
        return chosen

    lawful: Lawful[Work] = Lawful(POLICIES[name](), MAX_ROWS, replace=False)
    served = serve(lawful, arrivals, spoil)
    handed = [id(unit) for batch in served.batches for unit in batch] + [id(unit) for unit in served.late]
    assert len(handed) == len(set(handed))
    assert set(handed) | {id(unit) for unit in spoilt} == {id(unit) for unit in units}
    assert len(lawful) <= len(spoilt)


@pytest.mark.parametrize("name", list(POLICIES))
def test_undone_units_run_before_others_and_suspects_before_those(name: str) -> None:
    policy: Lawful[Work] = Lawful(POLICIES[name](), MAX_ROWS, replace=False)
    others = [Work(due=5.0) for _ in range(3)]
    undone = [Work(due=9.0), Work(due=8.0)]
    suspects = [Work(due=9.0, attempts=2), Work(due=7.0, attempts=1)]
    for unit in others:
        policy.add(unit, 0.0)
    for unit in undone:
        policy.add_first(unit, 0.1)
    for unit in suspects:
        policy.add_first(unit, 0.1)
    assert policy.deadline() <= 0.1
    taken = [policy.take(0.1) for _ in range(3)]
    assert taken[0] == [suspects[1]]
    assert taken[1] == [suspects[0]]
    assert set(map(id, taken[2])) == set(map(id, undone))


@pytest.mark.parametrize("name", list(POLICIES))
def test_clear_forgets_all(name: str) -> None:
    policy = POLICIES[name]()
    for number in range(5):
        policy.add(Work(due=1.0, attempts=number % 2), 0.0)
    policy.add_first(Work(due=1.0), 0.0)
    policy.clear()
    assert len(policy) == 0
    assert policy.take(3.0) == []
    assert policy.late(3.0) == []
    assert policy.deadline() == math.inf


class Broken(FifoPolicy[Work]):
    """A mutant: `how` says what it does wrong."""

    def __init__(self, how: str) -> None:
        super().__init__(MAX_ROWS)
        self.how = how
        self.given: list[Work] = []

    def take(self, now: float) -> list[Work]:
        if self.how == "raises":
            raise ZeroDivisionError("no time")
        if self.how == "idles":
            return []
        units = super().take(now)
        if self.how == "repeats" and self.given:
            return self.given[:1]
        if self.how == "twice" and units:
            return [units[0], units[0]]
        if self.how == "foreign":
            return [Work()]
        if self.how == "unready" and units:
            units[0].unit.stage = 0
        if self.how == "greedy":
            units += super().take(now)
        self.given += units
        return units

    def late(self, now: float) -> list[Work]:
        return [Work()] if self.how == "late-foreign" else []

    def deadline(self) -> float:
        if self.how == "nan":
            return math.nan
        if self.how == "for-ever":
            return math.inf
        return super().deadline()

    def plan(self, now: float, budget_s: float) -> bool:
        if self.how == "plan-raises":
            raise RuntimeError("no plan")
        return False


class Mixing(FifoPolicy[Work]):
    """A mutant that reads neither keys nor attempts."""

    def take(self, now: float) -> list[Work]:
        units = [unit for unit, _ in self._queue if unit.stage == 1]
        self._queue.clear()
        return units

    def add(self, unit: Work, now: float) -> None:
        self._queue.append((unit, now))


def filled(policy: SchedulerPort[Work], units: list[Work], replace: bool) -> Lawful[Work]:
    lawful: Lawful[Work] = Lawful(policy, MAX_ROWS, replace)
    for unit in units:
        lawful.add(unit, 0.0)
    return lawful


def drained(lawful: Lawful[Work]) -> list[Work]:
    units: list[Work] = []
    for batch in range(100):
        late, taken = lawful.late(1.0 + batch), lawful.take(1.0 + batch)
        assert late == []
        for unit in taken:
            unit.stage = 2
        units += taken
        lawful.started(batch, taken, 1.0 + batch)
        lawful.plan(1.0 + batch, 0.001)
        lawful.finished(batch, Took(0.01), 1.0 + batch)
        if lawful.deadline() == math.inf:
            break
    return units


LAWS = {
    "raises": "raised ZeroDivisionError: no time",
    "idles": "units wait past deadline",
    "repeats": "does not wait",
    "twice": "twice in one answer",
    "foreign": "does not wait",
    "unready": "not READY",
    "greedy": "rows",
    "late-foreign": "does not wait",
    "nan": "no instant",
    "for-ever": "infinite, and units wait",
    "plan-raises": "raised RuntimeError: no plan",
}


@pytest.mark.parametrize("how", list(LAWS))
def test_a_mutant_is_caught_replaced_and_nothing_is_lost(how: str) -> None:
    units = [Work(due=1.0) for _ in range(2 * MAX_ROWS + 3)]
    lawful = filled(Broken(how), units, replace=True)
    got = drained(lawful)
    assert LAWS[how] in lawful.failed
    assert isinstance(lawful.policy, FifoPolicy)
    assert not isinstance(lawful.policy, Broken)
    missing = {id(unit) for unit in units} - {id(unit) for unit in got}
    assert len(missing) == (1 if how == "unready" else 0)  # that one is READY no more: the mutant said so
    assert len(got) == len({id(unit) for unit in got})


@pytest.mark.parametrize(
    ("units", "law"),
    [
        ([Work(batch_key="a"), Work(batch_key="b")], "two batch keys"),
        ([Work(), Work(attempts=1)], "suspect"),
        ([Work(attempts=1), Work()], "not alone"),
        ([Work(rows=MAX_ROWS), Work()], "rows"),
    ],
)
def test_a_batch_against_the_law_is_caught(units: list[Work], law: str) -> None:
    with pytest.raises(LawBroken, match=law):
        filled(Mixing(MAX_ROWS), units, replace=False).take(1.0)


def test_what_a_policy_raises_reaches_a_test() -> None:
    with pytest.raises(LawBroken, match="no time"):
        filled(Broken("raises"), [Work()], replace=False).take(1.0)


CALLS: dict[str, Callable[[Lawful[Work]], object]] = {
    "add": lambda lawful: lawful.add(Work(), 0.0),
    "add_first": lambda lawful: lawful.add_first(Work(), 0.0),
    "late": lambda lawful: lawful.late(0.0),
    "started": lambda lawful: lawful.started(1, [], 0.0),
    "finished": lambda lawful: lawful.finished(1, Took(0.1), 0.0),
    "clear": lambda lawful: lawful.clear(),
    "deadline": lambda lawful: lawful.deadline(),
}


@pytest.mark.parametrize("call", list(CALLS))
def test_whatever_call_raises_the_policy_is_replaced(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Broken("")

    def fail(*_: object) -> None:
        raise KeyError(call)

    lawful = filled(policy, [Work(due=3.0)], replace=True)
    monkeypatch.setattr(policy, call, fail)
    CALLS[call](lawful)
    assert f"raised KeyError: '{call}'" in lawful.failed
    expected = {"add": 2, "add_first": 2, "clear": 0}.get(call, 1)
    assert len(drained(lawful)) == expected


def test_a_policy_that_failed_is_not_believed_again() -> None:
    lawful = filled(Broken("idles"), [Work() for _ in range(3)], replace=True)
    assert len(lawful.take(1.0)) == 3
    first = lawful.failed
    lawful.add(Work(), 2.0)
    assert len(lawful.take(2.0)) == 1
    assert lawful.failed == first


def test_measured_times_never_shrink_with_the_rows() -> None:
    """Few runs of a size may say so; Symphony then idled past its own deadline as units left the queue."""
    times = SizeTimes([[0.03], [0.05], [0.01], [0.06]])
    assert [times.cautious(rows) for rows in (1, 2, 3, 4, 5)] == [0.03, 0.05, 0.05, 0.06, 0.06]
    assert times.largest_within(0.05) == 3


def test_a_unit_that_is_ready_no_more_makes_no_other_wait() -> None:
    """Symphony idles for the head of its queue; here that one goes, and who is behind it waits for nobody."""
    policy: Lawful[Work] = Lawful(POLICIES["symphony"](), MAX_ROWS, replace=False)
    gone, other = Work(due=5.0), Work(due=math.inf)
    policy.add(gone, 0.0)
    policy.add(other, 0.0)
    assert policy.take(0.0) == []
    gone.stage = 0
    assert policy.take(0.1) == [other]


def assert_each_is_handed_out_once(policy: Lawful[Work], units: list[Work]) -> None:
    handed: list[Work] = []
    for now in range(1, 120):
        handed += policy.late(now / 10)
        handed += policy.take(now / 10)
    assert sorted(map(id, handed)) == sorted(map(id, units))
    assert len(policy) == 0
    assert policy.deadline() == math.inf


@pytest.mark.parametrize("name", list(POLICIES))
@pytest.mark.parametrize("first", [False, True], ids=["add", "add_first"])
def test_a_unit_that_is_added_twice_runs_once_and_no_policy_is_blamed(name: str, first: bool) -> None:
    """As the core does: a unit is reset, and ready again, while its first entry is still in the queue."""
    policy: Lawful[Work] = Lawful(POLICIES[name](), MAX_ROWS, replace=False)
    units = [Work(due=9.0 + number / 100) for number in range(3)]
    for unit in [*units, *units[:2], units[0]]:
        if unit in units[:1] and first and len(policy) == len(units):
            policy.add_first(unit, 0.0)
        else:
            policy.add(unit, 0.0)
    assert len(policy) == 3
    assert_each_is_handed_out_once(policy, units)


@pytest.mark.parametrize("name", list(POLICIES))
def test_a_unit_that_becomes_a_suspect_while_it_waits_goes_alone_and_first(name: str) -> None:
    policy: Lawful[Work] = Lawful(POLICIES[name](), MAX_ROWS, replace=False)
    units = [Work(due=9.0 + number / 100) for number in range(4)]
    for unit in units:
        policy.add(unit, 0.0)
    suspect = units[2]
    suspect.attempts = 2
    policy.suspected(suspect, 0.1)
    stranger = Work(due=9.0, attempts=1)
    policy.suspected(stranger, 0.1)
    assert len(policy) == 4
    assert policy.take(0.1) == [suspect]
    handed: list[Work] = []
    for now in range(2, 120):
        handed += policy.late(now / 10)
        handed += policy.take(now / 10)
    assert sorted(map(id, handed)) == sorted(id(unit) for unit in units if unit is not suspect)
    assert len(policy) == 0


@pytest.mark.parametrize("name", list(POLICIES))
@pytest.mark.parametrize("change", [{"batch_key": "other"}, {"rows": MAX_ROWS}, {"rows": MAX_ROWS + 5}])
def test_a_unit_that_comes_back_with_other_inputs_while_it_waits_breaks_no_law(
    name: str, change: dict[str, str | int]
) -> None:
    policy: Lawful[Work] = Lawful(POLICIES[name](), MAX_ROWS, replace=False)
    units = [Work(due=9.0 + number / 100) for number in range(4)]
    for unit in units:
        policy.add(unit, 0.0)
    for unit in units[1:3]:
        for field, value in change.items():
            setattr(unit, field, value)
        policy.add(unit, 0.0)
    assert len(policy) == 4
    assert_each_is_handed_out_once(policy, units)


def test_a_unit_that_comes_back_while_its_second_entry_is_still_there_runs_once_more() -> None:
    policy: Lawful[Work] = Lawful(FifoPolicy(1), 1, replace=False)
    unit, other = Work(), Work()
    for each in (unit, other, unit):
        policy.add(each, 0.0)
    assert policy.take(0.0) == [other]
    policy.add_first(unit, 0.0)
    policy.add(other, 0.0)
    assert [policy.take(0.0) for _ in range(3)] == [[unit], [other], []]


def test_a_policy_that_repeats_is_caught_beside_units_that_were_added_twice() -> None:
    policy: Lawful[Work] = Lawful(Broken("repeats"), MAX_ROWS, replace=False)
    unit, other = Work(), Work()
    for each in (unit, unit, other):
        policy.add(each, 0.0)
    assert len(policy.take(1.0)) == 2
    with pytest.raises(LawBroken, match="does not wait"):
        policy.take(1.0)


def test_an_infinite_deadline_is_no_breach_while_the_model_runs_or_nothing_waits() -> None:
    policy = filled(Broken("for-ever"), [Work() for _ in range(MAX_ROWS + 1)], replace=False)
    policy.started(1, policy.take(0.0), 0.0)
    assert policy.deadline() == math.inf
    policy.finished(1, Took(0.1), 0.1)
    with pytest.raises(LawBroken, match="infinite, and units wait"):
        policy.deadline()
    policy = filled(Broken("for-ever"), [Work(stage=0)], replace=False)
    assert policy.deadline() == math.inf


def test_units_that_policies_drop_are_not_remembered_for_ever() -> None:
    policy: Lawful[Work] = Lawful(POLICIES["distribution"](), MAX_ROWS, replace=False)
    for number in range(5_000):
        now = number / 1_000
        unit = Work(due=now + 0.01)
        policy.add(unit, now)
        unit.stage = 0
        policy.add(Work(due=now + 0.2), now)
        policy.late(now)
        policy.take(now)
    assert len(policy) < 1_000


def test_a_unit_that_became_a_suspect_untold_does_not_run_with_others() -> None:
    policy: Lawful[Work] = Lawful(FifoPolicy(MAX_ROWS), MAX_ROWS)
    units = [Work(), Work()]
    for unit in units:
        policy.add(unit, 0.0)
    policy.policy = Together(MAX_ROWS, list(policy._entries.values()))
    units[0].attempts = 1
    assert policy.take(1.0) != units
    assert "a suspect is not alone" in policy.failed


class Together(FifoPolicy[QueueEntry[Work]]):
    """Hands out these together, whatever they are."""

    def __init__(self, max_rows: int, units: list[QueueEntry[Work]]) -> None:
        super().__init__(max_rows)
        self.together = units

    def take(self, now: float) -> list[Work]:
        return self.together


def test_what_was_put_aside_and_is_ready_no_more_is_forgotten_by_policy_and_laws_alike() -> None:
    policy: Lawful[Work] = Lawful(Deadline(2, shed=False), 2)
    units = [Work(due=-1.0) for _ in range(5)]
    for unit in units:
        policy.add(unit, 0.0)
    for number in range(2):
        batch = policy.take(0.2 * number)
        for unit in batch:
            unit.stage = READY + 1
        policy.started(number, batch, 0.2 * number)
        policy.finished(number, Took(0.1, 0.1), 0.2 * number + 0.1)
        if number == 0:
            units[4].stage = 0
    assert policy.deadline() == math.inf
    units[4].stage = READY
    policy.add(units[4], 0.4)
    assert policy.take(0.5) == [units[4]]
    assert not policy.failed
