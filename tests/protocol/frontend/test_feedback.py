"""Feedback edges: values that come back as internal requests (section 3; api.md, Feedback)."""

import pytest
from frontend_net import PAIR, Net, P, graph, op

from hams_protocol.deps import Dep
from hams_protocol.effects import NoteComplete, NoteLog, NoteReply
from hams_protocol.graph import FEEDBACK, FRONTEND, Feedback, Graph
from hams_protocol.ids import RequestId
from hams_protocol.messages import Deliver, Kind, LogAck, ModelError, SlotAnswer, SlotQuery

R0, R1, R2 = RequestId(0, 0), RequestId(0, 1), RequestId(0, 2)
BACK = (FRONTEND, FEEDBACK)


def loop(max_hops: int = 8, **spec: int) -> Graph:
    return graph(op("p", FRONTEND, feedback=Feedback((("a", "out"),), max_hops)), **spec)


def feed_back(net: Net, request: RequestId) -> None:
    """p answers a request with a value for the reply and for the feedback edge."""
    net.op("p").route = BACK
    net.op("p").answer(request)
    net.run()


def finish(net: Net, request: RequestId) -> None:
    """p answers a request and lets the loop end."""
    net.op("p").route = (FRONTEND,)
    net.op("p").answer(request)
    net.run()


def started(max_hops: int = 8, frontends: tuple[str, ...] = PAIR, **spec: int) -> tuple[Net, int]:
    net = Net(loop(max_hops, **spec), frontends).start()
    net.op("p").auto = False
    handle = net.ask("F-1", "k")
    net.run()
    return net, handle


def test_the_internal_request_is_the_feedback_value_under_the_names_of_a_request():
    net, handle = started()
    feed_back(net, R0)
    inner = net.op("p").deliveries()[-1].token
    assert (inner.request, inner.value_id, inner.payload, inner.renamed, inner.meta.hops) == (
        R1,
        "0/1",
        P("p-1:1"),
        (("a", "out"),),
        1,
    )
    note = net.notes(NoteLog)[-1]
    assert (note.request, note.key, note.source) == (R1, None, "p-1:1")
    assert net.reply(handle) is None
    finish(net, R1)
    assert net.reply(handle) == ["p-1:1"]
    assert [item.request for item in net.notes(NoteReply)] == [R0], "an internal request has no reply"
    assert {item.request for item in net.notes(NoteComplete)} == {R0, R1}


def test_it_is_logged_only_when_its_dependencies_are_durable(mutant):
    def run() -> Net:
        net = Net(loop()).start()
        net.op("p").auto = net.op("p").durable = False
        net.ask("F-1", "k")
        net.run()
        feed_back(net, R0)
        return net

    net = run()
    assert net.op("p").requests() == [R0]
    net.op("p").announce(1)
    net.run()
    assert net.op("p").requests() == [R0, R1]
    mutant("feedback-speculative")
    assert run().op("p").requests() == [R0, R1]


def test_it_is_logged_before_its_origin_is_complete_and_once():
    net, _ = started()
    feed_back(net, R0)
    net.op("p").resend()
    net.run()
    assert net.op("p").requests() == [R0, R1]
    finish(net, R1)
    order = [
        type(item.effect).__name__
        for item in net.log
        if isinstance(item.effect, (NoteLog, NoteComplete)) and item.effect.request in (R0, R1)
    ]
    assert order == ["NoteLog", "NoteLog", "NoteComplete", "NoteComplete"]


def test_a_loop_that_goes_too_deep_is_the_clients_error():
    net, handle = started(max_hops=2)
    for n in range(3):
        feed_back(net, RequestId(0, n))
    assert net.op("p").requests() == [R0, R1, R2]
    error = net.reply(handle)
    assert isinstance(error, ModelError)
    assert (error.op, error.status) == ("p", 500)
    assert {item.request for item in net.notes(NoteComplete)} == {R0, R1, R2}


def test_a_loop_that_ends_within_its_hops_is_not():
    net, handle = started(max_hops=2)
    feed_back(net, R0)
    feed_back(net, R1)
    finish(net, R2)
    assert net.reply(handle) == ["p-1:1"]


def test_internal_requests_do_not_count_as_open():
    net, _ = started(max_in_flight=2)
    feed_back(net, R0)
    feed_back(net, R1)
    assert net.reply(net.ask("F-1", "k2")) is None
    assert net.reply(net.ask("F-1", "k3")) == 429


def test_an_error_on_the_feedback_edge_is_no_request():
    net, handle = started()
    net.op("p").route = BACK
    net.op("p").answer(R0, Kind.ERROR, error=ModelError("p", "boom"), payload=None)
    net.run()
    assert net.op("p").requests() == [R0]
    assert net.reply(handle) == ModelError("p", "boom")


@pytest.mark.parametrize("committed", [True, False])
def test_after_a_failover_the_loop_goes_on_where_it_was(committed):
    net, handle = started()
    if not committed:
        net.hold = lambda sender, target, message: isinstance(message, LogAck) and message.last > 1
    again = net.ask("F-2", "k")
    feed_back(net, R0)
    net.advance(0.1)
    net.kill("F-1")
    net.fail_over(0, revoke="F-1")
    net.hold = lambda sender, target, message: False
    net.run()
    assert {item.token.request for item in net.op("p").deliveries() if item.epoch == 2} == {R0, R1}
    # Another value of the feedback edge must not become another request: the logged one stands.
    net.op("p").outputs[R0, FEEDBACK] = net.op("p").outputs[R0, FRONTEND]
    net.op("p").resend()
    finish(net, R1)
    assert net.reply(handle) is None, "the client's connection died with its frontend"
    assert net.reply(again) == ["p-1:1"]
    assert {item.request for item in net.notes(NoteLog)} == {R0, R1}
    assert {item.request for item in net.notes(NoteComplete)} == {R0, R1}


def test_a_complete_internal_request_is_still_known_to_its_origin_after_a_failover():
    net, _ = started()
    net.hold = lambda sender, target, message: (
        isinstance(message, Deliver) and message.target == FRONTEND and message.token.request == R0
    )
    feed_back(net, R0)
    net.op("p").route = (FRONTEND,)
    net.op("p").answer(R1)
    net.run()
    net.advance(0.1)
    assert [item.request for item in net.notes(NoteComplete)] == [R1]
    net.kill("F-1")
    net.fail_over(0, revoke="F-1")
    net.let_go()
    net.op("p").resend()
    net.run()
    assert net.op("p").requests() == [R0, R1]
    assert {item.request for item in net.notes(NoteComplete)} == {R0, R1}


def test_a_new_slot_owner_hears_of_feedback_values():
    feedback = Feedback((("a", "out"),), 8)
    net = Net(graph(op("p", FRONTEND, stateful=False, feedback=feedback), op("q", FRONTEND))).start()
    net.op("p").auto = net.op("q").auto = False
    net.ask("F-1", "k")
    net.run()
    net.op("p").route = (FEEDBACK,)
    value = net.op("p").answer(R0)
    net.run()
    net.advance(0.1)
    net.deliver("p-2", "F-1", SlotQuery("p", 0, 2))
    answer = net.sends(SlotAnswer, "F-1")[-1][2]
    assert value.value_id in {match.value_id for match in answer.tokens}
    match = next(match for match in answer.tokens if match.value_id == value.value_id)
    assert (match.route, match.payload) == ((FEEDBACK,), value.payload)
    assert [token.kind for token in answer.tokens] == [Kind.VALUE], "it passed the reply over, and fed back"


def test_dependencies_of_a_logged_feedback_value_are_dropped_because_they_are_durable():
    net, _ = started()
    feed_back(net, R0)
    state = net.machines["F-1"]._owners[0].log.state
    assert [token.deps for token in state.open[0].fed.values()] == [()]
    assert net.op("p").outputs[R0, FEEDBACK].deps == (Dep("p", 1, 1),)


def test_an_internal_request_inherits_what_is_left_of_its_origins_deadline():
    net = Net(loop()).start()
    net.op("p").auto = False
    net.ask("F-1", "k", budget=2.0)
    net.run()
    assert net.op("p").deliveries()[-1].token.meta.budget_s == pytest.approx(2.0)
    net.advance(0.2)
    feed_back(net, R0)
    inner = net.op("p").deliveries()[-1].token
    assert (inner.request, inner.meta.hops) == (R1, 1)
    assert inner.meta.budget_s == pytest.approx(1.8, abs=0.02)
