"""Scheduling policies in the simulator: their guards judge and change them, and one that breaks a law is
seen."""

import pytest

from hams_sim import schedules
from hams_sim.simulate import Spec, simulate
from hams_wire.scheduling import PolicyQueue, queue_of

SPEC = Spec(5_001, "chain", "kill", policy="distribution")


@pytest.mark.parametrize("hurried", [0.0, 1.0], ids=["usual", "hurried"])
def test_histories_hold_whatever_the_pace_of_the_guard(hurried, monkeypatch):
    monkeypatch.setattr("hams_sim.limits.hurried_guards_share", hurried)
    for number in range(3):
        outcome = simulate(Spec(5_100 + number, "sandwich", "kill", policy="distribution"))
        assert outcome.ok, outcome.message


def test_a_guard_in_a_hurry_changes_policies_while_requests_wait(monkeypatch):
    monkeypatch.setattr("hams_sim.limits.hurried_guards_share", 1.0)
    seen: set[str] = set()
    for seed in range(5_200, 5_216):
        outcome = simulate(Spec(seed, "lanes", policy="distribution"))
        assert outcome.ok, outcome.message
        seen |= {what for what in outcome.coverage if what.endswith("took over")}
    assert seen


@pytest.mark.parametrize("breach", ["raises", "idles"])
def test_a_policy_that_breaks_a_law_ends_the_history(breach, monkeypatch):
    def broken(operator, pace=None):
        queue = queue_of(operator, pace)
        assert isinstance(queue, PolicyQueue)
        policy = queue._lawful.policy

        def take(now):
            if breach == "raises":
                raise ZeroDivisionError("a bug")
            return []

        queue._lawful.policy = Answers(policy, take)
        return queue

    monkeypatch.setattr(schedules, "queue_of", broken)
    outcome = simulate(SPEC)
    assert outcome.what == "policy"
    assert ("a bug" if breach == "raises" else "past deadline") in outcome.message


class Answers:
    """A policy with another `take`."""

    def __init__(self, policy, take):
        self._policy = policy
        self.take = take

    def __getattr__(self, name):
        return getattr(self._policy, name)

    def __len__(self):
        return len(self._policy)
