"""Admission by promise (section 5): what cannot be in time is refused before it is logged."""

import math
import random
from dataclasses import replace
from heapq import heappop, heappush

import pytest
from frontend_net import Net, graph, op

from hams_protocol import limits
from hams_protocol.effects import NoteLog, NotServed
from hams_protocol.frontend.promises import PromiseAccount, Promises
from hams_protocol.graph import FRONTEND, AdmissionPolicy, Graph
from hams_protocol.ids import RequestId
from hams_protocol.messages import LATE, ClientForward, ClientForwardAnswer, Kind, Meta, ModelError


def promised(of: Graph, admission: AdmissionPolicy = AdmissionPolicy.PROMISE) -> Graph:
    return Graph(replace(of.data, frontend=replace(of.data.frontend, admission=admission)))


def learnt(took_s: float, ahead: int = 0, count: int = 20, app: str = "", budget_s: float = 0.5) -> Promises:
    promises = Promises("app")
    for _ in range(count):
        promises.answered(meta(budget_s, app), took_s, ahead, 0.0)
    return promises


def meta(budget_s: float, app: str = "") -> Meta:
    return Meta((("app", app),) if app else (), budget_s=budget_s)


def test_what_a_queue_makes_late_is_refused_and_an_emptier_one_admits_it():
    promises = learnt(0.9, ahead=9)
    refusal = promises.judge(meta(0.5), 9, 1.0).refusal
    assert refusal == NotServed(
        504,
        "cannot be answered within 500 ms: 9 requests are open, and of the newest 20 0 would be in time "
        "behind them",
        pytest.approx(0.4),
        begun=False,
    )
    assert promises.judge(meta(0.5), 4, 1.0).refusal is None
    assert promises.judge(meta(0.9), 9, 1.0).refusal is None
    assert promises.judge(meta(0.9), 13, 1.0).refusal is not None


def test_what_was_quick_in_an_empty_shard_says_little_of_a_full_one():
    assert learnt(0.02).judge(meta(0.2), 50, 1.0).refusal is None


def test_what_takes_longer_than_its_budget_anyhow_is_refused_in_an_empty_shard():
    assert learnt(1.0).judge(meta(0.5), 0, 1.0).refusal is not None


def test_what_is_often_late_without_any_queue_is_not_refused_for_that():
    promises = learnt(0.01, count=10, budget_s=0.2)
    for _ in range(10):
        promises.answered(meta(0.2), 0.5, 0, 0.0)
    assert promises.judge(meta(0.2), 0, 1.0).refusal is None


@pytest.mark.parametrize("count", range(limits.promise_samples_min))
def test_with_little_known_everything_is_admitted(count):
    assert learnt(9.0, count=count).judge(meta(0.1), 5, 1.0).refusal is None


def test_a_shard_that_refuses_everything_measures_again():
    promises = learnt(9.0)
    assert promises.judge(meta(0.1), 0, limits.promise_memory_s).refusal is not None
    assert promises.judge(meta(0.1), 0, limits.promise_memory_s + 0.1).refusal is None


def test_a_request_without_a_deadline_is_admitted():
    assert learnt(9.0).judge(meta(0.0), 50, 1.0).refusal is None


def test_what_was_shed_counts_as_late():
    promises = Promises("")
    for _ in range(20):
        promises.shed(meta(0.2), 0.01, 3, 0.0)
    assert promises.judge(meta(0.2), 3, 1.0).refusal is not None


def test_applications_are_judged_apart_and_hostile_ones_take_bounded_memory():
    promises = learnt(1.0, ahead=9, app="long")
    for _ in range(20):
        promises.answered(meta(1.0, "short"), 0.05, 9, 0.0)
    assert promises.judge(meta(0.5, "long"), 9, 1.0).refusal is not None
    assert promises.judge(meta(0.5, "short"), 9, 1.0).refusal is None
    for number in range(100_000):
        promises.answered(meta(1.0, f"{number}"), 1.0, 9, 0.0)
    promises.answered(meta(1.0, "x" * 1_000_000), 1.0, 9, 0.0)
    assert len(promises._kinds) == limits.promise_kinds_max
    assert max(len(app) for app, _ in promises._kinds) <= limits.promise_app_chars_max


def test_what_was_shed_says_nothing_of_those_who_have_more():
    promises = Promises("")
    for _ in range(50):
        promises.shed(meta(0.26), 0.01, 0, 0.0)
    for _ in range(10):
        promises.answered(meta(0.45), 0.6, 0, 0.0)
    assert promises.judge(meta(0.45), 0, 1.0).refusal is not None
    assert promises.judge(meta(0.3), 0, 1.0).refusal is not None
    assert learnt(0.01, count=10).judge(meta(0.9), 0, 1.0).refusal is None


def test_requests_that_have_waited_longer_than_a_deadline_count_before_they_are_answered():
    promises = learnt(0.1)
    open_ = [(meta(0.9), 0.8)] * 5 + [(meta(0.9), 0.2)] * 5
    assert promises.judge(meta(0.7), 10, 1.0, open_).refusal is not None
    assert promises.judge(meta(0.9), 10, 1.0, open_).refusal is None, "nobody has waited so long"
    assert promises.judge(meta(0.7, "x"), 10, 1.0, open_).refusal is None, "of another application"


def test_requests_that_hang_for_ever_do_not_close_a_shard():
    hung = [(meta(0.7), limits.promise_memory_s + 0.1)] * limits.promise_waiting_max
    assert learnt(0.1).judge(meta(0.7), 64, 1.0, hung).refusal is None
    assert Promises("").judge(meta(0.7), 64, 1.0, hung).refusal is None
    assert Promises("").judge(meta(0.7), 64, 1.0, [(meta(0.7), 1.0)] * 8).refusal is not None


def test_a_kind_of_which_nothing_is_known_is_tried_once_in_a_while():
    promises = learnt(1.0, ahead=19)
    quick, hopeless = meta(0.1), meta(0.04)
    assert promises.judge(quick, 19, 1.0).refusal is None
    assert promises.judge(quick, 19, 1.0).refusal is not None
    assert promises.judge(quick, 19, 1.0 + limits.promise_try_s).refusal is None
    assert promises.judge(hopeless, 19, 1.0).refusal is not None
    for number in range(1_000):
        promises.judge(meta(0.1, f"{number}"), 19, 1.0)
        promises.judge(meta(2.0 ** (number - 500)), 99, 1.0)
    assert len(promises._tried) <= limits.promise_kinds_max


def test_a_promise_has_the_chance_by_which_it_was_judged():
    promises = learnt(0.1, count=15)
    for _ in range(5):
        promises.answered(meta(0.5), 0.6, 0, 0.0)
    assert promises.judge(meta(0.5), 0, 1.0) == (0.75, None)
    assert math.isnan(Promises("").judge(meta(0.5), 0, 1.0).chance), "nothing is known"
    tried = learnt(1.0, ahead=19).judge(meta(0.1), 19, 1.0)
    assert math.isnan(tried.chance)
    assert tried.refusal is None, "it is let in although it would be refused"


def test_an_account_tells_whether_promises_were_honest():
    account = PromiseAccount()
    for number in range(8):
        account.settle(0.75, number % 4 > 0, 9.5, 10.0)
    account.settle(math.nan, False, 9.5, 10.0)
    assert (account.settled, account.fulfilled, account.expected) == (8, 6, 6.0)
    assert account.squares == pytest.approx(6 * 0.25**2 + 2 * 0.75**2)


def test_promises_that_a_loss_may_have_broken_are_told_apart():
    account = PromiseAccount()
    account.settle(0.5, False, 1.0, 2.0)
    account.lost_at = 9.0
    account.settle(0.5, False, 9.5, 9.0 + limits.promise_loss_s)
    account.settle(0.5, False, 8.0, 30.0)
    assert account.broken_after_loss == 2, "soon after it, and open when it was learnt"
    account.settle(0.5, True, 8.0, 9.0)
    account.settle(0.5, False, 9.1, 9.1 + limits.promise_loss_s)
    assert account.broken_after_loss == 2


class KindsServer:
    """One model in virtual time that runs what is due first. Long requests take all it has and a tenth more;
    one in ten is short, with a twentieth of their deadline. Nothing tells them apart."""

    SHORT, LONG = (0.005, 0.1), (0.1, 2.0)

    def __init__(self, admits: bool) -> None:
        self.promises = Promises("")
        self.admits = admits
        self.waiting: list[tuple[float, float, float, float, int]] = []
        self.free_at = 0.0
        self.open_until: list[float] = []
        self.short = self.short_in_time = self.long_in_time = 0

    def run(self, requests: int) -> None:
        random_, at = random.Random(11), 0.0
        for _ in range(requests):
            at += random_.expovariate(12.2)
            self.serve_until(at)
            while self.open_until and self.open_until[0] <= at:
                heappop(self.open_until)
            takes, budget = self.SHORT if random_.random() < 0.1 else self.LONG
            ahead = len(self.waiting) + len(self.open_until)
            self.short += budget == self.SHORT[1]
            if self.admits and self.promises.judge(meta(budget), ahead, at).refusal is not None:
                continue
            heappush(self.waiting, (at + budget, at, takes, budget, ahead))
        self.serve_until(at + 100.0)

    def serve_until(self, at: float) -> None:
        while self.waiting and max(self.free_at, self.waiting[0][1]) <= at:
            _, since, takes, budget, ahead = heappop(self.waiting)
            self.free_at = max(self.free_at, since) + takes
            heappush(self.open_until, self.free_at)
            took = self.free_at - since
            self.promises.answered(meta(budget), took, ahead, self.free_at)
            if took <= budget:
                self.short_in_time += budget == self.SHORT[1]
                self.long_in_time += budget == self.LONG[1]


def test_a_short_kind_that_nothing_tells_apart_does_not_starve():
    plain, promising = KindsServer(False), KindsServer(True)
    for server in (plain, promising):
        server.run(5_000)
    assert promising.short_in_time > 0.9 * plain.short_in_time, (plain.short_in_time, promising.short_in_time)
    assert promising.long_in_time > 2 * plain.long_in_time, (plain.long_in_time, promising.long_in_time)


class OutageServer:
    """A model that answers 100 requests a second in 10 ms each, and nothing between 5 and 7 seconds."""

    def __init__(self, tells: bool) -> None:
        self.promises = Promises("")
        self.tells = tells
        self.open: list[tuple[float, int]] = []
        self.late = self.refused = self.after = 0

    def run(self) -> None:
        random_, at, free_at = random.Random(3), 0.0, 0.0
        while at < 12.0:
            at += random_.expovariate(50.0)
            while self.open:
                since, ahead = self.open[0]
                ends = max(free_at, since) + 0.01
                ends = (
                    ends + 2.0 if 5.0 <= ends < 5.0 + 0.03 else max(ends, 7.0) if 5.03 <= ends < 7.0 else ends
                )
                if ends > at:
                    break
                free_at = ends
                self.open.pop(0)
                self.late += ends - since > 0.25
                self.promises.answered(meta(0.25), ends - since, ahead, ends)
            waited = [(meta(0.25), at - since) for since, _ in self.open] if self.tells else []
            if self.promises.judge(meta(0.25), len(self.open), at, waited).refusal is not None:
                self.refused += 1
                self.after += at > 7.5
            else:
                self.open.append((at, len(self.open)))


def test_in_an_outage_requests_are_refused_before_anybody_has_answered():
    blind, sees = OutageServer(False), OutageServer(True)
    for server in (blind, sees):
        server.run()
    assert sees.late < 0.5 * blind.late, (sees.late, blind.late)
    assert sees.after <= blind.after, "and no longer after it"


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
        if self.admits and self.promises.judge(meta(0.2), self.open, now).refusal is not None:
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


def test_an_owner_counts_the_requests_that_nobody_answers():
    net = Net(promised(graph(op("p", FRONTEND)))).start()
    for number in range(limits.promise_samples_min):
        net.ask("F-1", f"quick {number}", budget=0.5)
    net.run()
    net.op("p").auto = False
    for number in range(limits.promise_samples_min):
        net.ask("F-1", f"open {number}", budget=0.5)
    net.run()
    net.now += 0.6
    refused = net.ask("F-1", "one more", budget=0.5)
    net.run()
    assert not net.answers[refused].begun


def test_an_owner_says_what_became_of_its_promises():
    net = Net(promised(graph(op("p", FRONTEND)))).start()
    for number in range(limits.promise_samples_min):
        net.ask("F-1", f"first {number}", budget=0.5)
        net.run()
    account = net.machines["F-1"]._ctx.promises
    assert account.lost_at < 0.0, "the first topology that is learnt tells of no loss"
    assert account.settled == 0, "nothing was known when they were made"
    net.op("p").auto = False
    for name in ("late", "too late"):
        net.ask("F-1", name, budget=0.5)
        net.run()
        net.now += 0.6
        if name == "too late":
            net.commit(replace(net.topology, revoked=(*net.topology.revoked, "p-9")))
        for request in net.op("p").requests():
            net.op("p").answer(request)
        net.run()
    net.op("p").auto = True
    net.ask("F-1", "in time", budget=0.9)
    net.run()
    assert (account.settled, account.fulfilled, account.broken_after_loss) == (3, 1, 1)
    assert 0.0 < account.expected <= account.settled


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
