"""What operators that schedule hear of replies (section 1): how long ago they were released, in notices of
completion that are sent anyway."""

from dataclasses import replace

import pytest
from frontend_net import Net, graph, op

from hams_protocol import limits
from hams_protocol.effects import Replied
from hams_protocol.graph import FEEDBACK, FRONTEND, Feedback, Graph, SchedulePolicy
from hams_protocol.ids import RequestId
from hams_protocol.messages import Completion, Kind, LogAck, ModelError, ReplyAge

R0 = RequestId(0, 0)


def scheduled(of: Graph, policy: SchedulePolicy = SchedulePolicy.DISTRIBUTION) -> Graph:
    operators = tuple(replace(item, batch=replace(item.batch, policy=policy)) for item in of.data.operators)
    return Graph(replace(of.data, operators=operators))


def ages(net: Net) -> list[ReplyAge]:
    return [age for notice in net.op("p").completed for age in notice.replies]


def test_a_reply_is_reported_with_its_age_once_and_in_a_notice_that_is_sent_anyway():
    plain, net = Net(graph(op("p", FRONTEND))).start(), Net(scheduled(graph(op("p", FRONTEND)))).start()
    for one in (plain, net):
        one.ask("F-1")
        one.run()
        one.advance(limits.ack_delay_s + limits.completion_delay_s)
        one.advance(2.0)
    assert ages(net) == [ReplyAge(R0, pytest.approx(limits.completion_delay_s))]
    assert len(net.op("p").completed) == len(plain.op("p").completed), "it costs no message"
    assert ages(plain) == [], "where nothing schedules nothing is said"


def test_an_error_is_not_reported_as_how_long_the_path_takes():
    net = Net(scheduled(graph(op("p", FRONTEND)))).start()
    net.op("p").auto = False
    net.ask("F-1")
    net.run()
    net.op("p").answer(R0, Kind.ERROR, error=ModelError("p", "no"), payload=None)
    net.run()
    net.advance(limits.ack_delay_s + limits.completion_delay_s)
    assert net.op("p").completed[-1].shards == ((0, 1, ()),)
    assert ages(net) == []


def test_a_reply_counts_from_its_release_not_from_when_it_was_decided():
    net = Net(scheduled(graph(op("p", FRONTEND)))).start()
    net.op("p").auto = False
    handle = net.ask("F-1")
    net.run()
    net.hold = lambda sender, target, message: isinstance(message, LogAck)
    net.op("p").answer(R0)
    net.run()
    net.now += 0.02
    assert not any(isinstance(answer, Replied) for answer in net.answers.values())
    net.let_go()
    assert isinstance(net.answers[handle], Replied)
    net.advance(limits.ack_delay_s + limits.completion_delay_s)
    assert [age.seconds for age in ages(net)] == [pytest.approx(limits.completion_delay_s)]


def test_internal_requests_are_reported_with_the_reply_of_the_clients_request():
    net = Net(scheduled(graph(op("p", FRONTEND, feedback=Feedback((("a", "out"),), 8))))).start()
    net.op("p").auto = False
    net.ask("F-1")
    net.run()
    net.op("p").route = (FRONTEND, FEEDBACK)
    net.op("p").answer(R0)
    net.run()
    net.advance(limits.ack_delay_s + limits.completion_delay_s)
    assert ages(net) == [], "the client waits for the whole chain"
    net.op("p").route = (FRONTEND,)
    net.op("p").answer(RequestId(0, 1))
    net.run()
    net.advance(limits.ack_delay_s + limits.completion_delay_s)
    assert {age.request for age in ages(net)} == {R0, RequestId(0, 1)}


def test_one_notice_reports_a_bounded_number_of_replies():
    net = Net(scheduled(graph(op("p", FRONTEND)))).start()
    broadcast = net.machines["F-1"]._broadcast
    broadcast.replied([RequestId(0, n) for n in range(limits.reply_ages_max + 9)])
    broadcast.replied([R0])
    assert len(broadcast._ages()) == limits.reply_ages_max
    net.advance(limits.completion_repeat_s)
    assert Completion(((0, 0, ()),)) == replace(net.op("p").completed[-1], replies=())
    assert len(ages(net)) == limits.reply_ages_max
