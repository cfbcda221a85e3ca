"""The normal case of section 5: log, replicate, inject, durable, reply, complete - in that order."""

import pytest
from frontend_net import Net, P, graph, op

from hams_protocol import limits
from hams_protocol.deps import Dep
from hams_protocol.effects import Answer, NoteComplete, NoteLog, NoteReply, NotServed, Send
from hams_protocol.graph import CLOSE, FRONTEND, Join, ReplyTensor
from hams_protocol.ids import RequestId
from hams_protocol.messages import (
    AskDurable,
    Completion,
    Deliver,
    Kind,
    LogAck,
    LogAppend,
    ModelError,
    ReplyEntry,
    TokenAcks,
)

R0 = RequestId(0, 0)


def test_a_request_is_answered_by_what_the_graph_made_of_it():
    net = Net(graph(op("p", FRONTEND))).start()
    handle = net.ask("F-1")
    net.run()
    assert net.reply(handle) == ["p-1:1"]
    assert net.op("p").requests() == [R0]


def test_nothing_is_injected_before_every_in_sync_follower_holds_the_entry():
    net = Net(graph(op("p", FRONTEND), replicas=3), ("F-1", "F-2", "F-3")).start()
    net.hold = lambda sender, target, message: isinstance(message, LogAck) and sender == "F-3"
    net.ask("F-1")
    net.run()
    assert net.op("p").deliveries() == []
    net.let_go()
    assert net.op("p").requests() == [R0]


def test_the_reply_waits_until_what_it_depends_on_is_durable():
    net = Net(graph(op("p", FRONTEND))).start()
    net.op("p").durable = False
    handle = net.ask("F-1")
    net.run()
    assert net.reply(handle) is None
    net.op("p").announce(1)
    net.run()
    assert net.reply(handle) == ["p-1:1"]


def test_the_reply_is_released_only_when_it_is_replicated():
    net = Net(graph(op("p", FRONTEND))).start()
    net.hold = lambda sender, target, message: (
        isinstance(message, LogAppend) and any(isinstance(entry, ReplyEntry) for entry in message.entries)
    )
    handle = net.ask("F-1")
    net.run()
    assert net.reply(handle) is None
    net.let_go()
    assert net.reply(handle) == ["p-1:1"]


def test_every_note_stands_before_the_effect_it_reports():
    net = Net(graph(op("p", FRONTEND))).start()
    net.log.clear()
    net.ask("F-1", "k")
    net.run()
    order = []
    for item in net.log:
        effect = item.effect
        if isinstance(effect, (NoteLog, NoteReply, NoteComplete)):
            order.append(type(effect).__name__)
        elif isinstance(effect, Answer) or (isinstance(effect, Send) and isinstance(effect.message, Deliver)):
            order.append("Answer" if isinstance(effect, Answer) else "Deliver")
    assert order == ["NoteLog", "Deliver", "NoteReply", "Answer", "NoteComplete"]
    (log,) = net.notes(NoteLog)
    assert isinstance(log, NoteLog)
    assert (log.key, log.digest, log.epoch, log.request) == ("k", "d", 1, R0)


def test_a_request_without_key_is_noted_without_key():
    net = Net(graph(op("p", FRONTEND))).start()
    net.ask("F-1")
    net.run()
    assert [item.key for item in net.notes(NoteLog)] == [None]


def test_an_entry_edge_without_its_tensors_gets_a_skip():
    net = Net(
        graph(
            op("p", FRONTEND),
            op("q", FRONTEND, tensors=("b",)),
            op("s", FRONTEND, tensors=("a", "b"), optional=("b",)),
        )
    ).start()
    net.ask("F-1", present=("a",))
    net.run()
    kinds = {name: net.op(name).deliveries()[0].token.kind for name in "pqs"}
    assert kinds == {"p": Kind.VALUE, "q": Kind.SKIP, "s": Kind.VALUE}
    token = net.op("p").deliveries()[0].token
    assert (token.value_id, token.deps, token.route, token.payload) == ("0/0", (), ("p", "s"), P("request"))


def test_tokens_carry_the_deadline_that_is_left():
    net = Net(graph(op("p", FRONTEND))).start()
    net.hold = lambda sender, target, message: isinstance(message, LogAck)
    net.ask("F-1", budget=10.0)
    net.run()
    net.now += 4.0
    net.let_go()
    assert net.op("p").deliveries()[0].token.meta.budget_s == pytest.approx(6.0)


def test_an_error_token_is_the_reply():
    net = Net(graph(op("p", FRONTEND))).start()
    net.op("p").auto = False
    handle = net.ask("F-1")
    net.run()
    net.op("p").answer(R0, Kind.ERROR, error=ModelError("p", "boom"), payload=None)
    net.run()
    assert net.reply(handle) == ModelError("p", "boom")


def test_a_sink_value_that_cannot_be_read_is_answered_with_an_error():
    net = Net(graph(op("p", FRONTEND))).start()
    net.op("p").auto = False
    handle = net.ask("F-1")
    net.run()
    net.op("p").answer(R0, payload=P("x", defect="a dimension of -1"))
    net.run()
    assert net.reply(handle) == ModelError("F", 'cannot read what "p" sent: a dimension of -1')


def test_of_several_errors_the_first_reply_tensor_decides():
    for order in ("pq", "qp"):
        net = Net(graph(op("p", FRONTEND), op("q", FRONTEND))).start()
        net.op("p").auto = net.op("q").auto = False
        handle = net.ask("F-1")
        net.run()
        for name in order:
            net.op(name).answer(R0, Kind.ERROR, error=ModelError(name, "boom"), payload=None)
            net.run()
        assert net.reply(handle) == ModelError("p", "boom")


def test_a_reply_tensor_comes_from_the_first_source_with_a_value():
    outputs = (ReplyTensor("y", (("p", "out"), ("q", "out"))),)
    net = Net(graph(op("p", FRONTEND), op("q", FRONTEND), outputs=outputs)).start()
    net.op("p").auto = False
    handle = net.ask("F-1")
    net.run()
    assert net.reply(handle) is None
    net.op("p").answer(R0, Kind.SKIP, payload=None)
    net.run()
    assert net.reply(handle) == ["q-1:1"]


def test_a_preferred_source_decides_without_the_others():
    outputs = (ReplyTensor("y", (("p", "out"), ("q", "out"))),)
    net = Net(graph(op("p", FRONTEND), op("q", FRONTEND), outputs=outputs)).start()
    net.op("q").auto = False
    handle = net.ask("F-1")
    net.run()
    assert net.reply(handle) == ["p-1:1"]
    assert net.notes(NoteComplete) == []
    net.op("q").answer(R0)
    net.run()
    assert net.notes(NoteComplete) == [NoteComplete(R0)]


def test_a_reply_without_any_value_has_no_tokens():
    net = Net(graph(op("p", FRONTEND))).start()
    net.op("p").auto = False
    handle = net.ask("F-1")
    net.run()
    net.op("p").answer(R0, Kind.SKIP, payload=None)
    net.run()
    assert net.reply(handle) == []


def test_only_outputs_that_were_asked_for_are_waited_for():
    net = Net(graph(op("p", FRONTEND), op("q", FRONTEND))).start()
    net.op("q").auto = False
    handle = net.ask("F-1", outputs=("p",))
    net.run()
    assert net.reply(handle) == ["p-1:1"]


def test_two_executions_of_one_fan_out_never_share_a_reply():
    net = Net(graph(op("p", FRONTEND, stateful=False), op("q", FRONTEND, stateful=False))).start()
    net.op("p").auto = net.op("q").auto = False
    handle = net.ask("F-1")
    net.run()
    net.op("p").answer(R0, fan=(("f", "f-1:1"),))
    net.op("q").answer(R0, fan=(("f", "f-2:1"),))
    net.run()
    error = net.reply(handle)
    assert isinstance(error, ModelError)
    assert (error.op, error.status) == ("f", 500)
    assert [item.values for item in net.notes(NoteReply)] == [()]


def test_completion_waits_for_the_close_of_a_first_and_the_reply_does_not(mutant):
    def run() -> tuple[Net, int]:
        net = Net(graph(op("p", FRONTEND, join=Join.FIRST))).start()
        net.hold = lambda sender, target, message: isinstance(message, Deliver) and message.target == CLOSE
        handle = net.ask("F-1")
        net.run()
        return net, handle

    net, handle = run()
    assert net.reply(handle) == ["p-1:1"]
    assert net.notes(NoteComplete) == []
    net.let_go()
    assert net.notes(NoteComplete) == [NoteComplete(R0)]
    mutant("complete-without-close")
    net, _ = run()
    assert net.notes(NoteComplete) == [NoteComplete(R0)]


def test_completion_is_told_to_everybody_and_repeated():
    net = Net(graph(op("p", FRONTEND))).start()
    net.ask("F-1")
    net.run()
    net.advance(limits.ack_delay_s + limits.completion_delay_s)
    assert net.op("p").completed[-1] == Completion(((0, 1, ()),))
    assert R0 in net.machines["F-2"].knowledge.completed
    net.op("p").completed.clear()
    net.advance(2.0)
    assert net.op("p").completed[-1] == Completion(((0, 1, ()),))


def test_completion_names_what_is_complete_above_the_watermark():
    net = Net(graph(op("p", FRONTEND))).start()
    net.op("p").auto = False
    for _ in range(3):
        net.ask("F-1")
    net.run()
    net.op("p").answer(RequestId(0, 2))
    net.run()
    net.advance(limits.ack_delay_s + limits.completion_delay_s)
    assert net.op("p").completed[-1] == Completion(((0, 0, (2,)),))
    net.op("p").answer(RequestId(0, 0))
    net.run()
    net.advance(limits.ack_delay_s + limits.completion_delay_s)
    assert net.op("p").completed[-1].shards[0][1] == 1


def test_who_sends_a_token_of_a_complete_request_is_told():
    net = Net(graph(op("p", FRONTEND))).start()
    net.ask("F-1")
    net.run()
    net.advance(0.1)
    net.op("p").completed.clear()
    net.op("p").resend()
    net.advance(limits.ack_delay_s + limits.completion_delay_s)
    assert net.op("p").completed == [Completion(((0, 1, ()),))]


def test_tokens_that_do_not_complete_their_request_are_acknowledged():
    net = Net(graph(op("p", FRONTEND), op("q", FRONTEND))).start()
    net.op("q").auto = False
    net.ask("F-1")
    net.advance(limits.ack_delay_s + limits.completion_delay_s)
    ((_, target, acks),) = net.sends(TokenAcks, "F-1")
    assert target == "p-1"
    assert isinstance(acks, TokenAcks)
    (ack,) = acks.acks
    assert (ack.source, ack.target, ack.value_id, ack.epoch) == ("p", FRONTEND, "p-1:1", 1)


def test_injected_tokens_are_sent_again_until_acknowledged():
    net = Net(graph(op("p", FRONTEND))).start()
    net.op("p").auto = False
    net.cut.add(("F-1", "p-1"))
    net.ask("F-1")
    net.run()
    assert net.op("p").deliveries() == []
    net.cut.clear()
    net.advance(0.3)
    assert net.op("p").requests() == [R0]


def test_who_waits_for_a_durable_notice_asks_the_primary():
    net = Net(graph(op("p", FRONTEND))).start()
    net.op("p").durable = False
    net.ask("F-1")
    net.run()
    net.advance(0.35)
    asked = [message for _, message in net.op("p").inbox if isinstance(message, AskDurable)]
    assert asked == [AskDurable("p")] * 3


def test_a_token_that_waits_for_several_operators_needs_them_all():
    net = Net(graph(op("p", FRONTEND, to=("q",)), op("q", "p"))).start()
    net.op("p").auto = net.op("q").auto = net.op("q").durable = False
    handle = net.ask("F-1")
    net.run()
    net.op("q").answer(R0, deps=(Dep("p", 1, 3), Dep("q", 1, 1)))
    net.op("q").announce(1)
    net.op("p").announce(2)
    net.run()
    assert net.reply(handle) is None
    net.op("p").announce(3)
    net.run()
    assert net.reply(handle) == ["q-1:1"]


def test_a_graph_that_has_not_started_serves_nobody():
    net = Net(graph(op("p", FRONTEND)))
    handle = net.ask("F-1")
    assert net.answers[handle] == NotServed(503, "the graph has not started")
    assert not net.machines["F-1"].ready


def test_a_lost_state_serves_nobody():
    net = Net(graph(op("p", FRONTEND))).start()
    from dataclasses import replace

    net.commit(net.topology.with_set(replace(net.topology.find("p"), lost=True)))
    assert net.reply(net.ask("F-1")) == 503
    assert net.machines["F-1"].unserved == "the state of p is lost"
