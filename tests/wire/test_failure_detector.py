"""A silent peer becomes a suspect neither too early nor never."""

import random
from math import erfc, log10, sqrt

import pytest

from hams_protocol import limits as core
from hams_wire import failure_detector
from hams_wire.failure_detector import (
    ArrivalWindow,
    FailureDetector,
    suspicion_gap_max_s,
    suspicion_gaps,
    suspicion_stretch_max,
)

AFTER = 0.15
EVERY = 0.03


def ticks(detector: FailureDetector, start: float, end: float) -> list[str]:
    """Checks at the promised interval; everybody suspected on the way."""
    seen: list[str] = []
    steps = round((end - start) / EVERY)
    for step in range(1, steps + 1):
        seen += detector.check(start + step * EVERY)
    return seen


def test_a_peer_that_never_speaks_is_suspected_after_the_configured_time_and_named_once() -> None:
    detector = FailureDetector(AFTER, EVERY)
    detector.expect("b", 0.0)
    assert ticks(detector, 0.0, 0.15) == []
    assert ticks(detector, 0.15, 3.0) == ["b"]


def test_a_peer_that_is_heard_regularly_is_never_suspected() -> None:
    detector = FailureDetector(AFTER, EVERY)
    detector.expect("b", 0.0)
    for step in range(1, 1000):
        detector.record("b", step * EVERY)
        assert detector.check(step * EVERY) == []


def test_a_starved_observer_judges_nobody_until_it_has_been_on_time_for_a_while() -> None:
    """Its own delays come and go: it has not heard what the others said, and a silence right after a delay is
    its own."""
    detector = FailureDetector(AFTER, EVERY)
    detector.expect("b", 0.0)
    now = 0.0
    detector.check(now)
    for _ in range(20):
        now += 0.3
        assert detector.check(now) == []
    assert ticks(detector, now, now + suspicion_stretch_max * AFTER) == []
    assert ticks(detector, now + 1.2, now + 5.0) == ["b"]


def test_short_gaps_never_shorten_the_configured_time() -> None:
    window = ArrivalWindow(0.0)
    for step in range(1, 1000):
        window.record(step * 0.001)
    assert window.timeout_s(AFTER) == AFTER


def test_an_irregular_peer_earns_patience_but_not_without_end() -> None:
    rng = random.Random(7)
    window, slow = ArrivalWindow(0.0), ArrivalWindow(0.0)
    now = 0.0
    for _ in range(500):
        now += rng.choice((0.02, 0.2))
        window.record(now)
    for step in range(1, 100):
        slow.record(step * 60.0)
    assert AFTER < window.timeout_s(AFTER) < suspicion_stretch_max * AFTER
    assert slow.timeout_s(AFTER) == AFTER, "who was stopped for a minute is not slow"
    for _ in range(suspicion_gaps):
        now += suspicion_gap_max_s
        window.record(now)
    assert window.timeout_s(AFTER) == suspicion_stretch_max * AFTER


def test_the_threshold_is_where_a_gap_so_long_has_a_probability_of_one_in_a_hundred_million() -> None:
    rng = random.Random(3)
    window, now = ArrivalWindow(0.0), 0.0
    for _ in range(suspicion_gaps):
        now += rng.gauss(0.3, 0.05)
        window.record(now)
    unlikely = 0.5 * erfc((window.timeout_s(AFTER) - window.gaps.mean_s) / window.gaps.deviation_s / sqrt(2))
    assert -log10(unlikely) == pytest.approx(8.0, abs=0.1)


def test_a_peer_whose_gaps_become_short_again_is_suspected_sooner_again() -> None:
    window = ArrivalWindow(0.0)
    now = 0.0
    for _ in range(20):
        now += 0.5
        window.record(now)
    for _ in range(200):
        now += 0.03
        window.record(now)
    assert window.timeout_s(AFTER) == AFTER


def test_F23_an_observer_that_was_paused_blames_nobody() -> None:
    detector = FailureDetector(AFTER, EVERY)
    for peer in ("b", "c"):
        detector.expect(peer, 0.0)
    assert ticks(detector, 0.0, 0.09) == []
    assert detector.check(60.0) == []
    steps = round(core.judge_calm_max_s / EVERY)
    for step in range(1, steps + 10):
        detector.record("b", 60.0 + step * EVERY)
        result = detector.check(60.0 + step * EVERY)
        assert result == (["c"] if step == steps else [])


def test_a_suspect_that_speaks_again_can_be_suspected_again() -> None:
    detector = FailureDetector(AFTER, EVERY)
    detector.expect("b", 0.0)
    assert ticks(detector, 0.0, 0.3) == ["b"]
    detector.record("b", 0.3)
    assert ticks(detector, 0.3, 0.45) == []
    assert ticks(detector, 0.45, 3.0) == ["b"]


def test_who_is_forgotten_or_unknown_is_not_suspected() -> None:
    detector = FailureDetector(AFTER, EVERY)
    detector.expect("b", 0.0)
    detector.forget("b")
    detector.record("x", 0.1)
    assert ticks(detector, 0.0, 1.0) == []
    assert detector.silent_s("b", 1.0) == 0.0


def test_old_signs_of_life_do_not_turn_the_clock_back() -> None:
    window = ArrivalWindow(1.0)
    window.record(2.0)
    window.record(1.5)
    assert window.heard_s == 2.0


@pytest.mark.parametrize(("after", "every"), [(0.1, 0.1), (0.1, 0.0), (0.1, 0.2)])
def test_an_interval_of_checks_that_cannot_work_is_refused(after: float, every: float) -> None:
    with pytest.raises(ValueError, match="check_every_s"):
        FailureDetector(after, every)


def test_a_wrong_suspicion_doubles_the_patience_and_calm_takes_it_back() -> None:
    window = ArrivalWindow(0.0)
    now = 0.0

    def regular(seconds: float) -> None:
        nonlocal now
        for _ in range(round(seconds / EVERY)):
            now += EVERY
            window.record(now)

    for factor in (2.0, 4.0, suspicion_stretch_max):
        window.suspected = True
        regular(1.0)
        assert window.timeout_s(AFTER) == pytest.approx(factor * AFTER)
    regular(failure_detector.suspicion_calm_s)
    assert window.timeout_s(AFTER) == pytest.approx(suspicion_stretch_max / 2 * AFTER)
    regular(4 * failure_detector.suspicion_calm_s)
    assert window.timeout_s(AFTER) == AFTER


def wrong_suspicions(seed: int) -> int:
    """Over two minutes in which silences of up to 0.4 s come and go."""
    rng = random.Random(seed)
    detector = FailureDetector(AFTER, EVERY)
    detector.expect("b", 0.0)
    arrivals = sorted(step * EVERY + rng.random() * 0.4 * (step % 40 < 12) for step in range(4000))
    result = at = 0
    for step in range(1, 4000):
        now = step * EVERY
        while at < len(arrivals) and arrivals[at] <= now:
            detector.record("b", arrivals[at])
            at += 1
        result += len(detector.check(now))
    return result


def test_a_network_where_silences_come_and_go_is_suspected_less_and_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learning = [wrong_suspicions(seed) for seed in range(5)]
    monkeypatch.setattr(failure_detector, "suspicion_calm_s", 0.0)
    forgetting = [wrong_suspicions(seed) for seed in range(5)]
    assert max(learning) <= min(forgetting) / 2, f"{learning} instead of {forgetting}"
