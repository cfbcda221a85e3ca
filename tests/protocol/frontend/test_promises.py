"""Admission by promise (section 5): what cannot be in time is refused before it is logged."""

import random
from dataclasses import replace
from heapq import heappop, heappush

import pytest
from frontend_net import Net, graph, op

from hams_protocol import limits
from hams_protocol.effects import NoteLog, NotServed
from hams_protocol.frontend.promises import Promises
from hams_protocol.graph import FRONTEND, AdmissionPolicy, Graph
from hams_protocol.ids import RequestId
from hams_protocol.messages import LATE, ClientForward, ClientForwardAnswer, Kind, Meta, ModelError


def promised(of: Graph, admission: AdmissionPolicy = AdmissionPolicy.PROMISE) -> Graph:
    return Graph(replace(of.data, frontend=replace(of.data.frontend, admission=admission)))


def learnt(took_s: float, ahead: int = 0, count: int = 20, app: str = "") -> Promises:
    promises = Promises("app")
    for _ in range(count):
        promises.answered(meta(1.0, app), took_s, ahead, 0.0)
    return promises


def meta(budget_s: float, app: str = "") -> Meta:
    return Meta((("app", app),) if app else (), budget_s=budget_s)


def test_what_a_queue_makes_late_is_refused_and_an_emptier_one_admits_it():
    promises = learnt(1.0, ahead=9)
    refusal = promises.refusal(meta(0.5), 9, 1.0)
    assert refusal == NotServed(
        504,
        "cannot be answered within 500 ms: 9 requests are open, and of the newest 20 0 would be in time "
        "behind them",
        pytest.approx(0.5),
        begun=False,
    )
    assert promises.refusal(meta(0.5), 4, 1.0) is None
    assert promises.refusal(meta(1.0), 9, 1.0) is None
    assert promises.refusal(meta(1.0), 13, 1.0) is not None


def test_what_was_quick_in_an_empty_shard_says_little_of_a_full_one():
    assert learnt(0.02).refusal(meta(0.2), 50, 1.0) is None


def test_what_takes_longer_than_its_budget_anyhow_is_refused_in_an_empty_shard():
    assert learnt(1.0).refusal(meta(0.5), 0, 1.0) is not None


def test_what_is_often_late_without_any_queue_is_not_refused_for_that():
    promises = learnt(0.01, count=10)
    for _ in range(10):
        promises.answered(meta(0.2), 0.5, 0, 0.0)
    assert promises.refusal(meta(0.2), 0, 1.0) is None


@pytest.mark.parametrize("count", range(limits.promise_samples_min))
def test_with_little_known_everything_is_admitted(count):
    assert learnt(9.0, count=count).refusal(meta(0.1), 5, 1.0) is None


def test_a_shard_that_refuses_everything_measures_again():
    promises = learnt(9.0)
    assert promises.refusal(meta(0.1), 0, limits.promise_memory_s) is not None
    assert promises.refusal(meta(0.1), 0, limits.promise_memory_s + 0.1) is None


def test_a_request_without_a_deadline_is_admitted():
    assert learnt(9.0).refusal(meta(0.0), 50, 1.0) is None


def test_what_was_shed_counts_as_late():
    promises = Promises("")
    for _ in range(20):
        promises.shed(meta(0.2), 0.01, 3, 0.0)
    assert promises.refusal(meta(0.2), 3, 1.0) is not None


def test_applications_are_judged_apart_and_hostile_ones_take_bounded_memory():
    promises = learnt(1.0, ahead=9, app="long")
    for _ in range(20):
        promises.answered(meta(1.0, "short"), 0.05, 9, 0.0)
    assert promises.refusal(meta(0.5, "long"), 9, 1.0) is not None
    assert promises.refusal(meta(0.5, "short"), 9, 1.0) is None
    for number in range(100_000):
        promises.answered(meta(1.0, f"{number}"), 1.0, 9, 0.0)
    promises.answered(meta(1.0, "x" * 1_000_000), 1.0, 9, 0.0)
    assert len(promises._apps) == limits.promise_apps_max
    assert max(map(len, promises._apps)) <= limits.promise_app_chars_max


class Server:
    """One model in virtual time, first in, first out, `rows` at most in a batch; half more than it can do
    arrives."""

    def __init__(self, rows: int, admits: bool) -> None:
        self.promises = Promises("")
        self.rows, self.admits = rows, admits
        self.open = self.in_time = self.late = self.refused = 0
        self.queue: list[tuple[float, int]] = []
        self.running: list[tuple[float, int]] = []
        self.ends: list[float] = []

    def run(self, rate: float, requests: int) -> None:
        random_ = random.Random(7)
        at = 0.0
        for _ in range(requests):
            at += random_.expovariate(rate)
            while self.ends and self.ends[0] <= at:
                self.finish(heappop(self.ends), random_)
            self.ask(at, random_)

    def ask(self, now: float, random_: random.Random) -> None:
        if self.admits and self.promises.refusal(meta(0.2), self.open, now) is not None:
            self.refused += 1
            return
        self.queue.append((now, self.open))
        self.open += 1
        if not self.running:
            self.start(now, random_)

    def start(self, now: float, random_: random.Random) -> None:
        self.running, self.queue = self.queue[: self.rows], self.queue[self.rows :]
        if self.running:
            times = [max(random_.gauss(0.01, 0.003), 0.001) for _ in self.running]
            heappush(self.ends, now + max(times) * (0.75 + 0.25 * len(self.running)))

    def finish(self, now: float, random_: random.Random) -> None:
        for since, ahead in self.running:
            self.open -= 1
            self.in_time += now - since <= 0.2
            self.late += now - since > 0.2
            self.promises.answered(meta(0.2), now - since, ahead, now)
        self.start(now, random_)


@pytest.mark.parametrize(("rows", "capacity"), [(1, 100.0), (8, 205.0)])
def test_under_overload_nearly_all_that_is_admitted_is_in_time(rows, capacity):
    plain, promising = Server(rows, False), Server(rows, True)
    for server in (plain, promising):
        server.run(1.5 * capacity, 6_000)
    assert plain.in_time < 0.1 * plain.late
    assert promising.late < 0.1 * promising.in_time
    assert promising.in_time > 0.9 * 6_000 / 1.5, "and the model does not idle"


def test_without_overload_hardly_anything_is_refused():
    server = Server(1, True)
    server.run(85.0, 6_000)
    assert server.refused < 30


def test_a_request_that_is_refused_is_not_logged_and_one_that_is_known_is_never_refused():
    net = Net(promised(graph(op("p", FRONTEND)))).start()
    net.op("p").auto = False
    for number in range(limits.promise_samples_min):
        net.ask("F-1", f"k{number}")
    net.run()
    net.now += 1.0
    for request in net.op("p").requests():
        net.op("p").answer(request)
    net.run()
    logged = len(net.notes(NoteLog))
    refused = net.ask("F-1", "late", meta=Meta(budget_s=0.05))
    net.run()
    answer = net.answers[refused]
    assert isinstance(answer, NotServed)
    assert (answer.status, answer.begun) == (504, False)
    assert answer.retry_after_s > 0.0
    assert len(net.notes(NoteLog)) == logged
    again = net.ask("F-1", "k0", meta=Meta(budget_s=0.05))
    net.run()
    assert net.reply(again) is not None, "its reply is there"


def test_another_frontend_is_told_that_nothing_has_begun():
    net = Net(promised(graph(op("p", FRONTEND), shards=1))).start()
    net.op("p").auto = False
    for number in range(limits.promise_samples_min):
        net.ask("F-2", f"k{number}")
    net.run()
    net.now += 1.0
    for request in net.op("p").requests():
        net.op("p").answer(request, Kind.ERROR, error=ModelError("p", "not run", LATE), payload=None)
    net.run()
    refused = net.ask("F-2", "late", meta=Meta(budget_s=0.05))
    net.run()
    assert not net.answers[refused].begun
    assert RequestId(0, limits.promise_samples_min) not in net.op("p").requests()


def test_open_admission_refuses_nothing():
    net = Net(promised(graph(op("p", FRONTEND)), AdmissionPolicy.OPEN)).start()
    for number in range(limits.promise_samples_min):
        net.ask("F-1", f"k{number}")
    net.run()
    net.now += 1.0
    asked = net.ask("F-1", "hasty", meta=Meta(budget_s=0.001))
    net.run()
    assert net.reply(asked) is not None


def refused_at(net: Net, name: str) -> int:
    """A request that is refused, for those before it took a second."""
    net.op("p").auto = False
    for number in range(limits.promise_samples_min):
        net.ask(name, f"k{number}")
    net.run()
    net.now += 1.0
    for request in net.op("p").requests():
        net.op("p").answer(request)
    net.run()
    handle = net.ask(name, budget=0.05)
    net.run()
    assert not net.answers[handle].begun
    return handle


def test_a_request_that_was_refused_is_not_begun_when_its_ask_comes_again():
    net = Net(promised(graph(op("p", FRONTEND), shards=1))).start()
    refused_at(net, "F-2")
    _, target, ask = net.sends(ClientForward, "F-2")[-1]
    net.now += limits.promise_memory_s + 1.0
    before = len(net.notes(NoteLog))
    net.deliver("F-2", target, ask)
    net.run()
    assert len(net.notes(NoteLog)) == before


def test_that_nothing_was_begun_counts_from_the_owner_that_was_asked_last():
    net = Net(promised(graph(op("p", FRONTEND), shards=1)), ("F-1", "F-2", "F-3")).start()
    net.op("p").auto = False
    handle = net.ask("F-3")
    net.run()
    asked = net.sends(ClientForward, "F-3")[-1][2]
    net.deliver("F-2", "F-3", ClientForwardAnswer(asked.counter, 504, message="no", begun=False))
    assert handle not in net.answers
    net.deliver("F-1", "F-3", ClientForwardAnswer(asked.counter, 504, message="no", begun=False))
    assert not net.answers[handle].begun


def test_refusals_are_remembered_within_bounds():
    net = Net(promised(graph(op("p", FRONTEND), shards=1))).start()
    refused_at(net, "F-2")
    owner = net.owner()._owners[0]
    ask = net.sends(ClientForward, "F-2")[-1][2]
    for counter in range(limits.refusals_remembered_max + 9):
        owner._refuse("F-2", replace(ask, counter=counter), NotServed(504, "no", begun=False))
    assert len(owner._refused) == limits.refusals_remembered_max
