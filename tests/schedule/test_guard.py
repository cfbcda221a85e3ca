"""The guard: a policy that is worse is switched off, and one that serves well is left alone."""

import math
import random
from collections.abc import Callable

import pytest

from hams_schedule.guard import Arrival, Guarded, Pace, Round, Shadow
from hams_schedule.pending import Span
from hams_schedule.policies.base import Policy
from hams_schedule.policies.distribution import Distribution
from hams_schedule.profile import Profiles
from hams_schedule.scheduler import SchedulerPort, U
from hams_schedule.serving import guarded

from .kit import LONG_S, MAX_ROWS, POLICIES, SHORT_S, Work, profiles, serve

BUDGET_S = 0.3


class Noise(Distribution[U]):
    """A mutant of `Distribution` whose values are noise: it runs whatever unit comes to hand, alone."""

    drawn = random.Random(5)

    def _choose(self, now: float) -> list[Span[U]]:
        lines = self.pending.all_lines()
        if not lines:
            return []
        line = self.drawn.choice(lines)
        at = self.drawn.randrange(len(line.units))
        return [Span(line, at, at + 1)]


def traffic(seconds: float, per_s: float, learnt: Profiles) -> list[tuple[float, Work]]:
    draw = random.Random(11)
    classes = {app: learnt.classes.class_of(app, math.nan) for app in ("short", "long")}
    arrivals, now = [], 0.0
    while now < seconds:
        now += draw.expovariate(per_s)
        app, mean = draw.choice((("short", SHORT_S), ("long", LONG_S)))
        alone = draw.gauss(mean, mean / 10)
        arrivals.append((now, Work(due=now + BUDGET_S, cls=classes[app], alone=alone)))
    return arrivals


def noisy(learnt: Profiles) -> Guarded[Work]:
    whole: Guarded[Work] = guarded(MAX_ROWS, True, learnt)
    serving: dict[str, Callable[[], Policy[Work]]] = dict(whole._serving)
    serving["distribution"] = lambda: Noise(MAX_ROWS, True, learnt)
    shadows: dict[str, Callable[[], Policy[Shadow]]] = dict(whole._shadows)
    shadows["distribution"] = lambda: Noise(MAX_ROWS, True, learnt, learns=False)
    return Guarded(serving, shadows, learnt, 1, Pace())


def test_a_policy_of_noise_is_switched_off_within_thirty_seconds() -> None:
    learnt = profiles()
    policy = noisy(learnt)
    arrivals = traffic(30.0, 30.0, learnt)
    serve(policy, arrivals, lambda batch: [])
    assert policy.name != "distribution"
    assert policy.switches == 1


def in_time(policy: SchedulerPort[Work], learnt: Profiles, seconds: float) -> tuple[float, int]:
    """The share of requests that are in time, and how many there are."""
    arrivals = traffic(seconds, 30.0, learnt)
    served = serve(policy, arrivals, lambda batch: [])
    return len([left for left in served.left_s if left >= 0.0]) / len(arrivals), len(arrivals)


def test_noise_costs_no_more_than_the_time_until_it_is_switched_off() -> None:
    """Over ten minutes less than three points of what is in time under the policy that takes over."""
    first, second = profiles(), profiles()
    policy, simple = noisy(first), guarded(MAX_ROWS, True, second)._serving["deadline"]()
    rate, count = in_time(policy, first, 600.0)
    assert count > 10_000
    assert (policy.name, policy.switches) == ("deadline", 1), "and it does not flap"
    assert rate > in_time(simple, second, 600.0)[0] - 0.03


def test_units_that_wait_go_along_when_the_policy_is_switched() -> None:
    learnt = profiles()
    arrivals = traffic(30.0, 30.0, learnt)
    served = serve(noisy(learnt), arrivals, lambda batch: [])
    handed = [unit for batch in served.batches for unit in batch] + served.late
    assert len(handed) == len(arrivals)
    assert {id(unit) for unit in handed} == {id(unit) for _, unit in arrivals}


def test_a_policy_that_was_replaced_remembers_no_unit() -> None:
    learnt = profiles()
    policy = noisy(learnt)
    first = policy.serves
    serve(policy, traffic(30.0, 30.0, learnt), lambda batch: [])
    assert policy.switches == 1
    assert (len(first), first.units()) == (0, [])


@pytest.mark.parametrize("name", ["fifo", "deadline-run", "deadline", "distribution", "distribution-run"])
def test_a_policy_tells_all_units_that_wait_in_it(name: str) -> None:
    made = POLICIES[name]()
    units = [Work(due=0.1 * number, batch_key=str(number % 2), cls=number % 2 * 8) for number in range(12)]
    units += [Work(attempts=1), Work(due=0.0)]
    for unit in units[:-1]:
        made.add(unit, 0.0)
    made.add_first(units[-1], 0.0)
    gone = made.late(0.05) + made.take(0.05) + made.take(0.05) + made.take(0.05)
    assert sorted(map(id, [*gone, *made.units()])) == sorted(map(id, units))


def test_a_good_policy_is_left_alone() -> None:
    learnt = profiles()
    policy: Guarded[Work] = guarded(MAX_ROWS, True, learnt)
    serve(policy, traffic(40.0, 30.0, learnt), lambda batch: [])
    assert policy.name == "distribution"
    assert policy.switches == 0


def overload(learnt: Profiles, seconds: float, per_s: float) -> list[tuple[float, Work]]:
    """More than can be served, one request in ten a long one."""
    draw = random.Random(1)
    classes = {app: learnt.classes.class_of(app, math.nan) for app in ("short", "long")}
    arrivals, now = [], 0.0
    while now < seconds:
        now += draw.expovariate(per_s)
        app, mean = ("long", LONG_S) if draw.random() < 0.1 else ("short", SHORT_S)
        alone = draw.gauss(mean, mean / 10)
        arrivals.append((now, Work(due=now + BUDGET_S, cls=classes[app], alone=alone)))
    return arrivals


def test_a_round_is_won_by_what_answers_are_worth_not_by_their_number() -> None:
    learnt = profiles()
    long = learnt.classes.class_of("long", math.nan)
    arrivals = [Arrival(at, unit.due - at, unit.cls, 1) for at, unit in overload(learnt, 2.5, 100.0)]
    learnt.weights[long] = 20.0
    policy: Guarded[Work] = guarded(MAX_ROWS, True, learnt)
    judged = Round(policy._shadows, arrivals, learnt, 1)
    while judged.step(1_000):
        pass
    answered = {name: replay.on_time for name, replay in judged._replays.items()}
    longs = {
        name: len([place for place in places if arrivals[place].cls == long])
        for name, places in answered.items()
    }
    assert len(answered["deadline"]) > len(answered["distribution"])
    assert longs["deadline"] < longs["distribution"]
    assert judged.winner("distribution", 1.5) == "distribution"
    assert judged.winner("deadline", 1.0) == "distribution", "34 long ones say no more"


def test_the_guard_leaves_a_policy_alone_that_answers_fewer_requests_but_the_costly_ones() -> None:
    learnt = profiles()
    learnt.weights[learnt.classes.class_of("long", math.nan)] = 20.0
    policy: Guarded[Work] = guarded(MAX_ROWS, True, learnt)
    serve(policy, overload(learnt, 22.0, 100.0), lambda batch: [])
    assert len(policy._winners) == 4
    assert (policy.name, policy.switches) == ("distribution", 0)


def test_replays_teach_nothing() -> None:
    learnt = profiles()
    before = learnt.samples
    policy: Guarded[Work] = guarded(MAX_ROWS, True, learnt)
    for at, unit in traffic(5.0, 30.0, learnt):
        policy.add(unit, at)
    for _ in range(10_000):
        if not policy.plan(5.0, 0.001):
            break
    assert policy._round is None
    assert list(policy._winners)
    assert learnt.samples == before
