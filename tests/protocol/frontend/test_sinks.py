"""Sink tokens: which are taken, refused, held, purged; what a slot's new owner is told (sections 1, 3, 4)."""

from dataclasses import replace

from frontend_net import Net, P, graph, op

from hams_protocol import limits
from hams_protocol.deps import Dep
from hams_protocol.effects import NoteComplete
from hams_protocol.events import PeerUp
from hams_protocol.graph import FRONTEND, Feedback, Join
from hams_protocol.ids import RequestId
from hams_protocol.messages import (
    AskTopology,
    Deliver,
    Durable,
    Heartbeat,
    Kind,
    LogAck,
    Meta,
    SlotAnswer,
    SlotQuery,
    Token,
    TokenAcks,
    TopologyNews,
)
from hams_protocol.topology import Slot, SlotTable

R0 = RequestId(0, 0)


def waiting(stateful: bool = True) -> tuple[Net, int]:
    """A request that is injected and of which no sink token has come."""
    net = Net(graph(op("p", FRONTEND, stateful=stateful))).start()
    net.op("p").auto = False
    handle = net.ask("F-1", "k")
    net.run()
    return net, handle


def token(value_id: str, *deps: Dep, kind: Kind = Kind.VALUE) -> Token:
    return Token(R0, (), "p", kind, value_id, deps, (FRONTEND,), Meta())


def send(net: Net, result: Token, epoch: int = 1) -> None:
    net.deliver("p-1", "F-1", Deliver(FRONTEND, epoch, result))
    net.run()


def end_epoch(net: Net, end: int) -> None:
    """Operator p fails over to epoch 2, its epoch 1 ended at `end`."""
    replica_set = net.topology.find("p")
    net.commit(
        net.topology.with_set(
            replace(
                replica_set, epoch=replica_set.epoch + 1, ends=(*replica_set.ends, (replica_set.epoch, end))
            )
        )
    )
    net.op("p").epoch += 1


def acknowledged(net: Net) -> list[str]:
    net.advance(limits.ack_delay_s + 0.001)
    return [ack.value_id for _, _, message in net.sends(TokenAcks, "F-1") for ack in message.acks]


def test_a_token_of_an_old_epoch_is_refused(mutant):
    net, handle = waiting()
    end_epoch(net, 5)
    send(net, token("old", Dep("p", 1, 1)), epoch=1)
    assert net.reply(handle) is None
    assert acknowledged(net) == []
    assert any(target == "p-1" for _, target, _ in net.sends(TopologyNews, "F-1"))
    mutant("accept-old-epoch")
    send(net, token("old", Dep("p", 1, 1)), epoch=1)
    assert net.reply(handle) == ["old"]


def test_an_orphan_is_refused():
    net, handle = waiting()
    end_epoch(net, 5)
    send(net, token("orphan", Dep("p", 1, 6)), epoch=2)
    assert net.reply(handle) is None
    assert acknowledged(net) == []
    send(net, token("kept", Dep("p", 1, 5)), epoch=2)
    assert net.reply(handle) == ["kept"]


def test_a_token_that_becomes_orphan_makes_room_for_its_successor(mutant):
    def run() -> tuple[Net, int]:
        net, handle = waiting()
        send(net, token("lost", Dep("p", 1, 6)))
        end_epoch(net, 5)
        net.deliver("p-1", "F-1", Durable((Dep("p", 2, 6),)))
        send(net, token("again", Dep("p", 2, 6)), epoch=2)
        return net, handle

    net, handle = run()
    assert net.reply(handle) == ["again"]
    mutant("sink-keeps-orphan")
    net, handle = run()
    assert net.reply(handle) is None


def test_a_token_whose_dependency_survives_the_failover_is_durable():
    net, handle = waiting()
    send(net, token("kept", Dep("p", 1, 4)))
    assert net.reply(handle) is None
    end_epoch(net, 5)
    net.run()
    assert net.reply(handle) == ["kept"]


def test_a_token_with_an_unknown_dependency_waits_for_the_topology(mutant):
    net, handle = waiting()
    unknown = token("ahead", Dep("q", 1, 1), Dep("p", 2, 6))
    send(net, unknown, epoch=2)
    asked = [target for _, target, _ in net.sends(AskTopology, "F-1")]
    assert asked == ["p-1"]
    assert acknowledged(net) == []
    replica_set = net.topology.find("p")
    from hams_protocol.topology import ReplicaSet

    net.commit(
        net.topology.with_set(replace(replica_set, epoch=2, ends=((1, 5),))).with_set(
            ReplicaSet("q", 1, "q-1")
        )
    )
    net.deliver("p-1", "F-1", Durable((Dep("p", 2, 6), Dep("q", 1, 1))))
    net.run()
    assert net.reply(handle) == ["ahead"]
    mutant("merge-unknown-epoch")
    net, _ = waiting()
    send(net, token("ahead", Dep("q", 1, 1)))
    assert acknowledged(net) == ["ahead"]


def test_a_peer_is_asked_once_for_all_tokens_that_wait_for_the_same_topology():
    net, _ = waiting()
    for number in range(9):
        send(net, token(f"v{number}", Dep("p", 2, number + 1)))
    assert len(net.sends(AskTopology, "F-1")) == 1
    net.advance(limits.topology_again_s)
    send(net, token("v1", Dep("p", 2, 2)))
    assert len(net.sends(AskTopology, "F-1")) == 2, "the question or its answer may have been lost"
    net.feed("F-1", PeerUp("p-1"))
    send(net, token("v1", Dep("p", 2, 2)))
    assert len(net.sends(AskTopology, "F-1")) == 3, "so it may with the connection"


def test_what_cannot_be_judged_yet_is_bounded(monkeypatch):
    net, _ = waiting()
    for number in range(limits.undecided_messages_max + 10):
        net.deliver("p-1", "F-1", Deliver(FRONTEND, 1, token(f"v{number}", Dep("p", 2, number + 1))))
    assert len(net.machines["F-1"]._undecided) == limits.undecided_messages_max


def test_what_cannot_be_judged_yet_is_bounded_in_bytes_too(monkeypatch):
    monkeypatch.setattr(limits, "undecided_bytes_max", 30)
    net, handle = waiting()
    early = [replace(token(f"v{n}", Dep("p", 2, 6)), payload=P(f"v{n}", 10)) for n in range(5)]
    for item in early:
        send(net, item, epoch=2)
    assert len(net.machines["F-1"]._undecided) == 3
    end_epoch(net, 5)
    net.deliver("p-1", "F-1", Durable((Dep("p", 2, 6),)))
    net.run()
    assert net.reply(handle) == ["v2"], "the oldest of those that fit"


def test_a_second_value_for_an_edge_is_a_duplicate_and_the_held_one_is_named():
    net, handle = waiting()
    send(net, token("first", Dep("p", 1, 1)))
    send(net, token("second", Dep("p", 1, 2)))
    assert acknowledged(net) == ["first", "first"]
    net.deliver("p-1", "F-1", Durable((Dep("p", 1, 2),)))
    net.run()
    assert net.reply(handle) == ["first"]


def test_tokens_of_edges_that_do_not_exist_are_ignored():
    net, handle = waiting()
    net.deliver("p-1", "F-1", Deliver(FRONTEND, 1, replace(token("x"), source="nobody")))
    net.deliver("p-1", "F-1", Deliver(FRONTEND, 1, replace(token("x"), lane=("z",))))
    net.deliver("p-1", "F-1", Deliver(FRONTEND, 1, replace(token("x"), request=RequestId(0, 77))))
    net.run()
    assert net.reply(handle) is None
    assert acknowledged(net) == []


def test_a_slot_epoch_above_the_topologys_is_taken_and_fences_what_is_below():
    net, handle = waiting(stateful=False)
    send(net, token("new"), epoch=3)
    assert net.reply(handle) == ["new"]
    net.ask("F-1", "k2")
    net.run()
    net.deliver("p-1", "F-1", Deliver(FRONTEND, 2, replace(token("old"), request=RequestId(0, 1))))
    net.run()
    assert net.notes(NoteComplete) == [NoteComplete(R0)]


def fan_out() -> tuple[Net, int]:
    """A stateless fan-out operator with two requests: one token each has reached the frontend, which waits
    for the other operator."""
    net = Net(graph(op("p", FRONTEND, stateful=False), op("q", FRONTEND))).start()
    net.op("q").auto = False
    handle = net.ask("F-1", "k", outputs=("p",))
    net.run()
    assert net.reply(handle) == ["p-1:1"]
    net.advance(0.1)
    return net, handle


def test_a_new_slot_owner_is_told_what_the_owner_of_a_shard_holds_and_a_follower_says_nothing():
    net, _ = fan_out()
    net.deliver("p-2", "F-2", SlotQuery("p", 0, 2))
    assert not net.sends(SlotAnswer, "F-2")
    net.deliver("p-2", "F-1", SlotQuery("p", 0, 2))
    (sent,) = net.sends(SlotAnswer, "F-1")
    answer = sent[2]
    assert isinstance(answer, SlotAnswer)
    assert (sent[1], answer.op, answer.slot, answer.epoch, answer.led) == ("p-2", "p", 0, 2, ("F/0", 1))
    assert [
        (item.request, item.value_id, item.route, item.payload is not None) for item in answer.tokens
    ] == [(R0, "p-1:1", (FRONTEND,), True)]


def test_a_value_is_told_though_the_same_execution_feeds_nothing_back():
    net = Net(
        graph(op("p", FRONTEND, stateful=False, feedback=Feedback((("a", "out"),), 8)), op("q", FRONTEND))
    ).start()
    net.op("q").auto = False
    net.ask("F-1", "k")
    net.run()
    net.deliver("p-2", "F-1", SlotQuery("p", 0, 2))
    assert [item.value_id for item in net.sends(SlotAnswer, "F-1")[0][2].tokens] == ["p-1:1"]


def test_the_close_of_a_first_is_not_told_for_it_names_no_route():
    net = Net(graph(op("p", FRONTEND, stateful=False, join=Join.FIRST), op("q", FRONTEND))).start()
    net.hold = lambda sender, target, message: isinstance(message, Deliver) and message.target == FRONTEND
    net.ask("F-1", "k")
    net.run()
    live = net.machines["F-1"]._owners[0].live[0]
    assert [token is not None and token.source == "p" for token in live.tokens].count(True) == 1, "the close"
    net.deliver("p-2", "F-1", SlotQuery("p", 0, 2))
    assert net.sends(SlotAnswer, "F-1")[0][2].tokens == ()


def test_the_next_owner_tells_of_a_reply_that_was_not_committed():
    net = Net(graph(op("p", FRONTEND, stateful=False), op("q", FRONTEND))).start()
    net.op("q").auto = False
    net.hold = lambda sender, target, message: isinstance(message, LogAck) and message.last > 1
    net.ask("F-1", "k", outputs=("p",))
    net.run()
    net.kill("F-1")
    net.fail_over(0, revoke="F-1")
    net.let_go()
    net.run()
    net.deliver("p-2", "F-2", SlotQuery("p", 0, 2))
    (answer,) = [sent[2] for sent in net.sends(SlotAnswer, "F-2")]
    assert answer.led == ("F/0", 2)
    assert [item.value_id for item in answer.tokens] == ["p-1:1"]


def test_requests_of_other_slots_and_complete_ones_are_not_told():
    net, _ = fan_out()
    net.op("q").answer(R0)
    net.run()
    net.deliver("p-2", "F-1", SlotQuery("p", 0, 2))
    assert net.sends(SlotAnswer, "F-1")[0][2].tokens == ()
    net, _ = fan_out()
    net.commit(net.topology.with_table(SlotTable("p", (Slot(1, "p-1"), Slot(1, "p-1")))))
    answers = []
    for slot in (0, 1):
        net.deliver("p-2", "F-1", SlotQuery("p", slot, 2))
        answers.append(len(net.sends(SlotAnswer, "F-1")[-1][2].tokens))
    assert sorted(answers) == [0, 1]


def test_a_slot_query_fences_the_old_owner(mutant):
    def run() -> bool:
        net, handle = waiting(stateful=False)
        net.deliver("p-2", "F-1", SlotQuery("p", 0, 2))
        send(net, token("late"), epoch=1)
        return net.reply(handle) == ["late"]

    assert not run()
    mutant("query-without-fence")
    assert run()


def test_two_executions_of_a_fan_out_mix_only_with_the_bug_switched_on(mutant):
    mutant("mix-fan-out-values")
    net = Net(graph(op("p", FRONTEND, stateful=False), op("q", FRONTEND, stateful=False))).start()
    net.op("p").auto = net.op("q").auto = False
    handle = net.ask("F-1")
    net.run()
    net.op("p").answer(R0, fan=(("f", "f-1:1"),))
    net.op("q").answer(R0, fan=(("f", "f-2:1"),))
    net.run()
    assert net.reply(handle) == ["p-1:1", "q-1:1"]


def test_who_hears_of_a_newer_generation_asks_for_it():
    net, _ = waiting()
    net.deliver("p-1", "F-1", Heartbeat(net.topology.generation + 1))
    net.run()
    assert [target for _, target, _ in net.sends(AskTopology, "F-1")] == ["p-1"]


def test_a_newer_topology_is_passed_on_to_who_asks():
    net, _ = waiting()
    net.deliver("p-1", "F-1", AskTopology(0))
    ((_, target, news),) = net.sends(TopologyNews, "F-1")
    assert (target, news.topology, news.revision) == ("p-1", net.topology, net.revision)
    net.deliver("p-1", "F-1", AskTopology(net.topology.generation))
    assert len(net.sends(TopologyNews, "F-1")) == 1


def test_a_topology_heard_from_a_peer_counts():
    net, handle = waiting()
    net.cut.add(("F-1", "etcd"))
    end_epoch(net, 0)
    assert net.machines["F-1"].knowledge.topology.generation < net.topology.generation
    net.deliver("p-1", "F-1", TopologyNews(net.topology, net.revision))
    send(net, token("v", Dep("p", 2, 1)), epoch=2)
    net.deliver("p-1", "F-1", Durable((Dep("p", 2, 1),)))
    net.run()
    assert net.reply(handle) == ["v"]


def test_a_notice_of_an_epoch_not_yet_known_takes_nothing_back():
    net = Net(graph(op("p", FRONTEND), op("q", FRONTEND))).start()
    net.op("q").auto = net.op("p").auto = False
    handle = net.ask("F-1", "k")
    net.run()
    send(net, token("v", Dep("p", 1, 1)))
    net.deliver("p-1", "F-1", Durable((Dep("p", 2, 9),)))
    net.deliver("p-1", "F-1", Durable((Dep("p", 1, 1),)))
    net.deliver("p-1", "F-1", Durable((Dep("p", 2, 10),)))
    net.op("q").answer(R0)
    net.run()
    assert net.reply(handle) == ["v", "q-1:1"]
