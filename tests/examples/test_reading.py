"""The reading example: what its model answers, and that scheduling by deadlines is worth it there."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from benchmarks.virtual_time import run, served_policy
from benchmarks.workloads import Trace, Worker

from hams_graph import load
from hams_protocol.graph import SchedulePolicy, WhenLate
from hams_schedule.profile import Profiles

from .conftest import EXAMPLES


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the emulated device waits, instead of the wait."""
    seen: list[float] = []
    monkeypatch.setattr("time.sleep", seen.append)
    return seen


@pytest.mark.parametrize("file", ["graph.yaml", "fifo.yaml"])
def test_words_are_counted(example: Any, file: str, waits: list[float]) -> None:
    reading = example("reading", file)
    texts = [b"a word and another one", b"", "längere Wörter".encode(), b" \n "]
    reply = reading.request({"text": np.array(texts, object)})
    assert reply["words"].tolist() == [5, 0, 2, 0]
    assert reply["longest"].tolist() == [b"another", b"", "längere".encode(), b""]


def test_a_batch_takes_as_long_as_its_longest_text(
    example: Any, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = example("reading")
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    reading.request({"text": np.array([b"a " * 100], object)})
    reading.request({"text": np.array([b"a " * 100, b"a", b"a", b"a", b"a"], object)})
    assert waits == [pytest.approx(0.202), pytest.approx(0.402)]


def test_both_files_are_one_graph_under_two_policies() -> None:
    mine, fifo = (load(EXAMPLES / "reading" / name) for name in ("graph.yaml", "fifo.yaml"))
    assert mine.operators["reader"].batch.policy is SchedulePolicy.DISTRIBUTION
    assert mine.operators["reader"].batch.when_late is WhenLate.SHED
    assert mine.operators["reader"].batch.app_by == "parameter:kind"
    assert fifo.operators["reader"].batch.policy is SchedulePolicy.FIFO
    assert mine.operators["reader"].model == fifo.operators["reader"].model
    assert mine.data.frontend == fifo.data.frontend


def test_requests_have_two_kinds_and_their_texts_are_as_long_as_that_says(example: Any) -> None:
    example("reading")
    from reading.ask import due
    from reading.data import KINDS, stream

    asked = list(itertools.islice(due(12.0), 300))
    assert {kind for _, kind, _ in asked} == set(KINDS)
    assert all(KINDS[kind][0] <= len(text.split()) <= KINDS[kind][1] for _, kind, text in asked)
    assert [at for at, _, _ in asked] == sorted(at for at, _, _ in asked)
    assert asked == list(itertools.islice(due(12.0), 300))
    assert next(stream())["text"].shape == (1,)


def test_a_minute_of_it_shows_the_difference(example: Any) -> None:
    """In virtual time, both policies beginning without a profile."""
    example("reading")
    from reading.ask import due
    from reading.models import FIXED_S, GROWTH

    asked = list(itertools.takewhile(lambda item: item[0] < 60.0, due(12.0)))
    apps = [int(kind == "article") for _, kind, _ in asked]
    alone = [0.002 * len(text.split()) for _, _, text in asked]
    trace = Trace([at for at, _, _ in asked], apps, [0.0] * len(asked), alone, [1.0] * len(asked))
    rates: dict[str, float] = {}
    for policy in ("fifo", "distribution"):
        profiles = Profiles()
        outcome = run(
            served_policy(policy, 32, profiles),
            trace,
            Worker(FIXED_S, GROWTH),
            0.6,
            lambda app, _, profiles=profiles: profiles.classify(str(app), math.nan),
        )
        rates[policy] = outcome.rate()
    assert rates["distribution"] > rates["fifo"] + 0.25, rates
    assert rates["distribution"] > 0.7


def test_what_came_is_told_by_kind(example: Any) -> None:
    example("reading")
    from reading.ask import summary

    told = summary(
        [("chat", (200, True)), ("chat", (200, False)), ("article", (504, False)), ("chat", (0, False))]
    )
    assert told.splitlines() == [
        "chat      33.3 % of 3 in time",
        "article    0.0 % of 1 in time",
        "all       25.0 % of 4 in time",
        "1 got no answer",
    ]
