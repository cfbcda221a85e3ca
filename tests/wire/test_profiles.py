"""What an instance tells of what it has learnt."""

import math
from dataclasses import replace

import pytest

from hams_protocol.batching import Timing
from hams_protocol.graph import BatchPolicy, SchedulePolicy, WhenLate
from hams_wire.batch_times import batch_summaries
from hams_wire.profiles import decode_report, encode_report, report
from hams_wire.records import MalformedRecord
from hams_wire.scheduling import PolicyQueue

from .test_scheduling import unit

BATCH = BatchPolicy(4, 0.0, SchedulePolicy.DISTRIBUTION, WhenLate.RUN, "parameter:app", "parameter:words")


def learnt() -> PolicyQueue:
    """Two applications, one of which takes longer for more words, and a policy that has served a while."""
    queue = PolicyQueue(replace(BATCH, max_rows=1))
    for number in range(1600):
        app, words = ("chat", float(number % 40)) if number % 2 else ("mail", 1.0)
        queue.profiles.classify(app, words)
        seconds = (0.01 if words < 20 else 0.05) if app == "chat" else 0.2
        queue.profiles.observe_alone(app, words, seconds)
    queue.profiles.settle()
    for number in range(20):
        queue.add(unit(number, number + 9.0, app="mail", words=1), float(number))
        queue.started(number, queue.take(float(number)), float(number))
        while queue.plan(float(number), 0.001):
            pass
        queue.finished(number, Timing(0.2, 0.2, True), number + 0.2)
    return queue


def test_it_tells_classes_with_their_features_times_and_how_good_predictions_were() -> None:
    reported = report("s", "s-1", "active", "Distribution", learnt(), 29.2)
    assert decode_report(encode_report(reported)) == reported
    assert [one.app for one in reported.classes][-2:] == ["mail", None]
    mail, everything = reported.classes[-2:]
    assert mail.mean_ms == pytest.approx(200, rel=0.05)
    assert mail.p50_ms <= mail.p95_ms <= mail.p99_ms
    assert everything.samples == pytest.approx(reported.learnt, rel=0.02)
    chat = [one for one in reported.classes if one.app == "chat"]
    assert len(chat) > 1, "features were cut"
    assert chat[0].low is None
    assert {one.high for one in chat[:-1]} >= {one.low for one in chat[1:]} - {None}
    assert reported.calibration.batches == 20
    assert reported.calibration.predicted_ms == pytest.approx(200, rel=0.05)
    assert reported.calibration.on_time == 1.0
    assert sum(band.units for band in reported.calibration.bands) > 0
    assert {band.on_time for band in reported.calibration.bands} == {1.0}


def test_it_tells_how_batches_were_chosen_and_how_old_its_newest_sample_is() -> None:
    queue = learnt()
    reported = report("s", "s-1", "active", "Distribution", queue, 29.2)
    assert sum(reported.decisions.values()) == 20
    assert reported.stale_plans == queue.stale_plans
    assert reported.newest_s == pytest.approx(10.0)
    numbers = [one.number for one in reported.classes]
    assert numbers[-1] is None
    assert len(set(numbers)) == len(numbers)
    for one in reported.classes[:-1]:
        assert one.number == queue.profiles.classes.class_of(one.app or "", one.low or 0.0)


def test_it_tells_what_batches_of_a_size_take() -> None:
    queue = learnt()
    for _ in range(40):
        queue.profiles.observe_batch([queue.profiles.classify("mail", 1.0)] * 2, 2, 0.3, 30.0)
    queue.profiles.settle()
    (size,) = report("s", "s-1", "active", "Distribution", queue, 30.0).sizes
    assert (size.rows, size.batches) == (2, 40.0)
    assert size.mean_ms is not None
    assert size.p50_ms is not None
    assert size.p99_ms is not None
    assert size.p50_ms <= size.p99_ms == pytest.approx(300, rel=0.1)
    assert size.mean_ms < 300, "half of all requests are shorter"


def test_batches_are_summed_up_by_few_sizes_as_far_as_they_were_measured() -> None:
    profiles = learnt().profiles
    assert [size.rows for size in batch_summaries(profiles, 64)] == [1]
    for _ in range(40):
        profiles.observe_batch([profiles.classify("mail", 1.0)] * 5, 5, 0.4, 30.0)
    profiles.settle()
    assert [size.rows for size in batch_summaries(profiles, 64)] == [1, 2, 4]
    assert [size.rows for size in batch_summaries(profiles, 3)] == [1, 2]
    assert batch_summaries(PolicyQueue(BATCH).profiles, 64) == []


def test_before_anything_is_learnt_it_tells_so() -> None:
    reported = report("s", "s-1", "active", "Distribution", PolicyQueue(BATCH), 1.0)
    assert (reported.learnt, reported.classes, reported.sizes, reported.calibration.batches) == (0, (), (), 0)
    assert reported.calibration.predicted_ms is None
    assert (sum(reported.decisions.values()), reported.stale_plans, reported.newest_s) == (0, 0, None)


def test_a_class_whose_place_has_changed_hands_is_left_out() -> None:
    queue = learnt()
    slot = queue.profiles.classes.apps.pop("mail").slot
    reported = report("s", "s-1", "active", "Distribution", queue, 20.0)
    assert "mail" not in [one.app for one in reported.classes]
    assert math.isfinite(slot)


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff"])
def test_what_is_no_report_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedRecord, match="not what an instance has learnt"):
        decode_report(data)
