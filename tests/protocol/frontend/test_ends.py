"""Ends of budgets at frontends: of feedback, at a takeover, and for whom they are forgotten; and promises."""

from dataclasses import replace

from frontend_net import Net, graph, op

from hams_protocol import limits
from hams_protocol.deadlines import Deadlines
from hams_protocol.effects import NoteLog
from hams_protocol.frontend.promises import Promises
from hams_protocol.graph import FEEDBACK, FRONTEND, Feedback
from hams_protocol.ids import RequestId
from hams_protocol.messages import ClientForward, Deliver, Meta

R0, R1 = RequestId(0, 0), RequestId(0, 1)


def test_an_earlier_end_of_a_request_brings_back_no_feedback_that_is_complete():
    """I6: memory is flat. One shard, one frontend: no notice of completion ever comes from others."""
    feedback = Feedback((("a", "out"),), 8)
    net = Net(graph(op("p", FRONTEND, feedback=feedback), op("q", FRONTEND), shards=1), ("F-1",)).start()
    net.op("p").auto = net.op("q").auto = False
    net.ask("F-1", "k", budget=20.0)
    net.run()
    net.op("p").route = (FRONTEND, FEEDBACK)
    net.op("p").answer(R0)
    net.run()
    net.op("p").route = (FRONTEND,)
    net.op("p").answer(R1)
    net.op("q").answer(R1)  # the feedback is complete before its origin
    net.run()
    deadlines = net.machines["F-1"].knowledge.deadlines
    assert deadlines.requests() == [R0]
    net.op("q").answer(R0, meta=Meta(budget_s=5.0))  # q heard of an earlier end
    net.run()
    net.advance(5.0)
    assert R0 in net.machines["F-1"].knowledge.completed
    assert deadlines.requests() == [], "everything is complete, for good"


def test_who_takes_a_shard_over_forgets_the_deadlines_of_what_its_log_calls_complete():
    """A token that was on its way to the owner comes to its successor, too, before that has heard that its
    request is complete."""
    net = Net(graph(op("p", FRONTEND), shards=1)).start()
    net.hold = lambda sender, target, message: target == "F-2" and type(message).__name__ == "Completion"
    net.ask("F-1", "k", budget=20.0)
    net.run()
    net.advance(0.2)
    assert R0 in net.machines["F-1"].knowledge.completed
    token = replace(net.op("p").outputs[R0, FRONTEND], meta=Meta(budget_s=5.0))
    net.deliver("p-1", "F-2", Deliver(FRONTEND, 1, token))  # p knows of the new topology first
    net.kill("F-1")
    net.fail_over(0, revoke="F-1")
    net.hold = lambda sender, target, message: False
    net.run()
    net.advance(5.0)
    assert R0 in net.machines["F-2"].knowledge.completed
    assert net.machines["F-2"].knowledge.deadlines.requests() == []


def test_asks_of_unknown_applications_make_no_shard_forget_what_it_has_measured():
    promises = Promises("app")
    slow = Meta((("app", "slow"),), budget_s=0.1)
    for _ in range(20):
        promises.answered(slow, 1.0, 9, 0.0)
    assert promises.judge(slow, 9, 1.0).refusal is not None
    for number in range(limits.promise_kinds_max):
        promises.judge(Meta((("app", f"nobody {number}"),), budget_s=0.1), 9, 1.0)
    assert promises.judge(slow, 9, 1.0).refusal is not None, "nothing else was answered meanwhile"


def test_an_ask_that_was_refused_for_want_of_room_is_not_begun_when_it_comes_again():
    net = Net(graph(op("p", FRONTEND), shards=1, max_in_flight=1)).start()
    net.op("p").auto = False
    net.ask("F-2", "k0")
    net.run()
    full = net.ask("F-2", "k1")
    net.run()
    assert net.reply(full) == 429
    _, target, ask = net.sends(ClientForward, "F-2")[-1]
    net.op("p").answer(R0)
    net.run()
    net.advance(0.2)
    net.deliver("F-2", target, ask)
    net.run()
    assert len(net.notes(NoteLog)) == 1


def test_an_end_that_comes_forward_does_so_for_the_feedback_of_a_feedback_too_and_is_forgotten_with_each():
    ends, r2 = Deadlines(), RequestId(0, 2)
    ends.learn(R0, 20.0, 0.0)
    ends.feeds(R0, R1)
    ends.feeds(R1, r2)
    ends.learn(R0, 10.0, 0.0)
    assert (ends.due(R1), ends.due(r2)) == (10.0, 10.0)
    ends.forget([R0, R1, r2])
    assert not ends._fed


def test_a_new_owner_hands_on_an_earlier_end_that_it_has_heard_of():
    net = Net(graph(op("p", FRONTEND), shards=1)).start()
    net.op("p").auto = False
    net.ask("F-1", "k", budget=20.0)
    net.run()
    net.op("p").route = (FRONTEND,)
    early = net.op("p").answer(R0, meta=Meta(budget_s=5.0))
    net.queue.clear()
    net.deliver("p-1", "F-2", Deliver(FRONTEND, 1, early))  # p knows of the new topology first
    net.kill("F-1")
    net.fail_over(0, revoke="F-1")
    net.run()
    again = [item[2].token.meta.budget_s for item in net.sends(Deliver, "F-2")]
    assert again
    assert max(again) <= 5.0
