"""Orloj's score against the integral that defines it."""

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hams_schedule.policies.orloj import highest_by_runs, highest_by_scan
from hams_schedule.score import REBASE, Score

EDGES = [0.010, 0.015, 0.030, 0.050, 0.080]
MASSES = [0.1, 0.5, 0.3, 0.1]


def by_integration(rate: float, slack: float, steps: int = 2_000) -> float:
    """(E[C(t + tau + L)] - E[C(t + L)]) with C(x) = 1[x > D] is E[1[L <= u] e^{-b (u - L)}], u = D - t."""
    total = 0.0
    for (low, high), mass in zip(itertools.pairwise(EDGES), MASSES, strict=True):
        end = min(high, slack)
        for step in range(steps if end > low else 0):
            latency = low + (end - low) * (step + 0.5) / steps
            total += mass / (high - low) * (end - low) / steps * math.exp(-rate * (slack - latency))
    return total


@pytest.mark.parametrize("rate", [0.001, 0.1, 10.0, 300.0])
@pytest.mark.parametrize("slack", [-1.0, 0.005, 0.010, 0.012, 0.015, 0.029, 0.031, 0.0799, 0.08, 0.2, 1.0])
def test_the_score_is_its_integral_in_all_regimes_and_at_the_edges(rate: float, slack: float) -> None:
    score = Score(EDGES, MASSES, rate)
    assert score.at(slack) * score.mean == pytest.approx(by_integration(rate, slack), abs=1e-6)


@pytest.mark.parametrize("slack", [0.012, 0.04, 0.5])
def test_without_delay_the_score_is_the_chance_per_second_of_the_batch(slack: float) -> None:
    score = Score(EDGES, MASSES, 1e-9)
    chance = sum(
        mass * min(max((slack - low) / (high - low), 0.0), 1.0)
        for (low, high), mass in zip(itertools.pairwise(EDGES), MASSES, strict=True)
    )
    assert score.at(slack) == pytest.approx(chance / score.mean, rel=1e-5)


@settings(max_examples=200, deadline=None)
@given(st.floats(-10.0, 10.0), st.floats(0.0, 0.3), st.floats(-5.0, 5.0))
def test_alpha_and_beta_give_the_score_until_the_next_milestone(
    now: float, slack: float, back: float
) -> None:
    score = Score(EDGES, MASSES, 20.0)
    due = now + slack
    reference = now - back
    alpha, beta = score.coefficients(due, now, reference)
    until = score.milestone(due, now)
    later = now + 0.999 * min(until - now, 1.0)
    for instant in (now, later):
        total = alpha * math.exp(score.rate * (instant - reference)) + beta
        assert total == pytest.approx(score.at(due - instant), rel=1e-6, abs=1e-9)


def test_a_rebase_changes_nothing_and_a_reference_too_old_is_refused() -> None:
    score = Score(EDGES, MASSES, 100.0)
    due, now = 1000.2, 1000.0
    values = []
    for reference in (999.0, 1000.0, 1002.9):
        alpha, beta = score.coefficients(due, now, reference)
        values.append(alpha * math.exp(score.rate * (now - reference)) + beta)
    assert values == pytest.approx([score.at(due - now)] * 3, rel=1e-9)
    with pytest.raises(OverflowError, match="rebase"):
        score.coefficients(due, now, now - 1.01 * REBASE / score.rate)


def test_steps_of_cost_add_up() -> None:
    score = Score(EDGES, MASSES)
    assert score.steps([(1.05, 1.0), (1.5, 3.0)], 1.0) == pytest.approx(score.at(0.05) + score.at(0.5, 3.0))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(-0.05, 0.3), max_size=60),
    st.integers(1, 16),
    st.floats(-1e6, 1e6),
    st.sampled_from([1e-6, 0.1, 50.0]),
    st.randoms(use_true_random=False),
)
def test_scan_and_runs_choose_equally_good_requests(
    slacks: list[float], count: int, now: float, rate: float, draw: random.Random
) -> None:
    """Duplicates and equal dues among them; equal scores may go either way, so scores are compared."""
    slacks = sorted(slacks + draw.sample(slacks, len(slacks) // 2))
    dues = [now + slack for slack in slacks]
    score = Score(EDGES, MASSES, rate)
    low = len(dues) // 5
    scores = [score.at(due - now) for due in dues]
    by_scan = highest_by_scan(dues, low, score, now, count)
    by_runs = highest_by_runs(dues, low, score, now, count)
    best = sorted(scores[low:], reverse=True)[:count]
    assert len(set(by_runs)) == len(by_runs)
    assert min([*by_runs, *by_scan], default=low) >= low
    assert sorted([scores[index] for index in by_scan], reverse=True) == pytest.approx(best)
    assert sorted([scores[index] for index in by_runs], reverse=True) == pytest.approx(best)
