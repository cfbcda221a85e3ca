"""Traffic: what is sent, what is sent again, what is counted."""

import itertools

import msgspec
import numpy as np
import pytest

from hams_history.lines import HistoryWriter
from hams_load.errors import BadData
from hams_load.inference import InferAnswer, InferClient, InferTensor, tensor
from hams_load.judge import shape_judge
from hams_load.traffic import Traffic, percentile

from .graphs import GRAPH, X


def test_percentiles_are_values_that_occurred():
    values = [float(number) for number in range(100)]
    assert (
        percentile(values, 0.5),
        percentile(values, 0.99),
        percentile(values, 1.0),
        percentile([], 0.5),
    ) == (50.0, 99.0, 99.0, 0.0)


async def test_data_that_goes_bad_on_the_way_ends_the_load_with_one_complaint_after_the_answers():
    def source():
        yield X
        yield X
        raise BadData("no more of it")

    client = Scripted(lambda _: [good()])
    traffic = Traffic(client, source(), 1e6, 20)
    with pytest.raises(BadData, match="no more of it"):
        await traffic.run()
    assert (traffic.tally.sent, traffic.tally.ok) == (2, 2)


class Scripted(InferClient):
    """A client whose answers are written down: per key a list, the last one for ever."""

    def __init__(self, answers) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.deadlines_ms: list[float | None] = []

    async def infer(self, tensors, key, deadline_ms=None):
        self.asked.append(key)
        self.deadlines_ms.append(deadline_ms)
        number = int(key.rpartition("-")[2])
        script = self.answers(number)
        return script[min(self.asked.count(key), len(script)) - 1]


def good(value: int = 0) -> InferAnswer:
    return InferAnswer(200, (tensor("y", "INT64", np.array([[[value, value]]])),))


async def run(answers, count: int = 20, **more):
    client = Scripted(answers)
    return client, await Traffic(
        client, itertools.repeat(X), 1e6, count, judge=shape_judge(GRAPH), resend=True, **more
    ).run()


async def test_each_request_has_its_key_and_every_tenth_is_sent_again():
    client, tally = await run(lambda _: [good()])
    assert tally.good
    assert (tally.sent, tally.ok, tally.resent, tally.attempts) == (20, 20, 2, 22)
    assert len(set(client.asked)) == 20


async def test_what_nobody_knows_is_sent_again_under_the_same_key_and_a_refusal_is_not():
    client, tally = await run(
        lambda number: (
            [InferAnswer(0), InferAnswer(503), good()]
            if number == 3
            else [InferAnswer(400, error="bad")]
            if number == 4
            else [good()]
        )
    )
    assert sum(key.endswith("-3") for key in client.asked) == 3
    assert sum(key.endswith("-4") for key in client.asked) == 1
    assert (tally.ok, dict(tally.failed)) == (19, {"400: bad": 1})
    assert not tally.good


async def test_another_reply_under_the_same_key_is_doubled():
    _, tally = await run(lambda number: [good(1), good(2)] if number == 10 else [good()])
    assert tally.doubled == 1
    assert not tally.good


async def test_a_wrong_reply_is_off_even_if_all_were_answered():
    _, tally = await run(
        lambda number: (
            [InferAnswer(200, (InferTensor("q", "FP32", (1,), bytes(4)),))] if number == 5 else [good()]
        )
    )
    assert tally.ok == tally.sent
    assert not tally.good


LATE = InferAnswer(504, error="no reply within the time given")
SHED = InferAnswer(504, error="not run", shed=True)


async def timed(answers, deadline_s: float):
    """Ten requests of which each has so long, and each of the answers that it is given."""
    client = Scripted(answers)
    traffic = Traffic(client, itertools.repeat(X), 1e6, 10, judge=shape_judge(GRAPH), deadline_s=deadline_s)
    return client, await traffic.run()


async def test_with_a_deadline_each_request_says_what_is_left_of_it_and_counts_once():
    answers = {3: [SHED], 4: [LATE, good()], 5: [InferAnswer(500, error="broken")]}
    client, tally = await timed(lambda number: answers.get(number, [good()]), 20.0)
    assert all(left is not None and 0 < left <= 20_000 for left in client.deadlines_ms)
    assert (tally.on_time, tally.late, tally.refused, tally.unanswered) == (8, 0, 1, 1)
    assert (tally.ended, dict(tally.failed)) == (10, {"500: broken": 1})
    assert tally.finish_rate == 0.8


async def test_without_a_deadline_nothing_is_said_of_one_and_what_was_shed_has_failed():
    client, tally = await run(lambda number: [SHED] if number == 3 else [good()])
    assert set(client.deadlines_ms) == {None}
    assert client.asked.count(next(key for key in client.asked if key.endswith("-3"))) == 1
    assert dict(tally.failed) == {"504: not run": 1}
    assert (tally.on_time, tally.late, tally.refused) == (0, 0, 0)


async def test_a_deadline_that_has_passed_is_late_whatever_came_and_is_not_asked_again():
    answers = {3: [SHED], 4: [LATE]}
    client, tally = await timed(lambda number: answers.get(number, [good()]), 1e-9)
    assert (tally.on_time, tally.late, tally.refused, tally.unanswered) == (0, 10, 0, 2)
    assert len(client.asked) == 10
    assert set(client.deadlines_ms) == {1.0}
    assert tally.good
    assert tally.finish_rate == 0.0


async def test_calls_and_returns_are_recorded(tmp_path):
    history = HistoryWriter(tmp_path, "client-1")
    await run(
        lambda number: [InferAnswer(409, error="conflict")] if number == 1 else [good()],
        count=2,
        history=history,
    )
    history.close()
    lines = [msgspec.json.decode(line) for line in (tmp_path / "client-1.jsonl").read_bytes().splitlines()]
    assert sorted((line["t"], line.get("status")) for line in lines) == [
        ("call", None), ("call", None), ("call", None), ("ret", "conflict"), ("ret", "ok"), ("ret", "ok"),
    ]  # fmt: skip
    assert len({line["client"] for line in lines}) == 3
    assert len({line["digest"] for line in lines if line["t"] == "call"}) == 1
