"""Takeover of a shard (sections 5 and 7): the shortest log wins, what is open is injected again, a deposed
owner can do nothing."""

from dataclasses import replace

import pytest
from frontend_net import PAIR, Net, graph, op

from hams_protocol import limits
from hams_protocol.effects import NoteComplete, NoteFailover, NoteLog, NoteReply
from hams_protocol.events import Drain, Received, TopologyLearnt
from hams_protocol.frontend import FrontendMachine
from hams_protocol.graph import FEEDBACK, FRONTEND, Feedback, RecoverySpec, WhenUnprotected
from hams_protocol.ids import RequestId
from hams_protocol.messages import (
    Admit,
    Deliver,
    DoneEntry,
    Durable,
    Freeze,
    FreezeAnswer,
    LogAck,
    LogAppend,
    Meta,
    Refused,
    ReplyEntry,
    TopologyNews,
)

R0, R1 = RequestId(0, 0), RequestId(0, 1)
TRIO = ("F-1", "F-2", "F-3")


def appends(net: Net, entry_type: type, *targets: str):
    """A `hold` for log messages with such an entry."""

    def hold(sender, target, message):
        return (
            isinstance(message, LogAppend)
            and any(isinstance(entry, entry_type) for entry in message.entries)
            and (not targets or target in targets)
        )

    net.hold = hold


def test_open_requests_are_injected_again_under_the_same_id():
    net = Net(graph(op("p", FRONTEND))).start()
    net.op("p").auto = False
    net.ask("F-1", "k")
    net.run()
    net.kill("F-1")
    end = net.fail_over(0, revoke="F-1")
    net.run()
    assert end == 1
    again = [(item.epoch, item.token.value_id) for item in net.op("p").deliveries()]
    assert again == [(1, "0/0"), (2, "0/0")]
    (note,) = net.notes(NoteFailover)
    assert note == NoteFailover("F/0", net.topology.generation, 2, 1, "F-2")


def test_the_client_of_another_frontend_gets_its_reply_from_the_new_owner():
    net = Net(graph(op("p", FRONTEND))).start()
    net.op("p").durable = False
    handle = net.ask("F-2", "k")
    net.run()
    net.kill("F-1")
    net.fail_over(0, revoke="F-1")
    net.run()
    assert net.reply(handle) is None
    net.op("p").announce(1)
    net.run()
    assert net.reply(handle) == ["p-1:1"]
    assert net.op("p").requests() == [R0]


def test_a_key_gets_its_one_reply_before_and_after_a_failover(mutant):
    def twice() -> tuple[Net, object, object]:
        net = Net(graph(op("p", FRONTEND))).start()
        first = net.ask("F-1", "k")
        net.run()
        net.advance(0.1)
        net.kill("F-1")
        net.fail_over(0, revoke="F-1")
        again = net.ask("F-2", "k")
        net.run()
        return net, net.reply(first), net.reply(again)

    net, first, again = twice()
    assert first == again == ["p-1:1"]
    assert net.op("p").requests() == [R0]
    mutant("key-table-not-derived")
    net, first, again = twice()
    assert first != again


def test_another_payload_under_a_key_is_a_conflict_after_a_failover():
    net = Net(graph(op("p", FRONTEND))).start()
    net.ask("F-1", "k")
    net.run()
    net.advance(0.1)
    net.kill("F-1")
    net.fail_over(0, revoke="F-1")
    assert net.reply(net.ask("F-2", "k", "other")) == 409


def test_a_reply_that_was_logged_and_not_released_is_the_reply():
    net = Net(graph(op("p", FRONTEND))).start()
    net.hold = lambda sender, target, message: isinstance(message, LogAck) and message.last > 1
    handle = net.ask("F-2", "k")
    net.run()
    assert net.reply(handle) is None
    net.kill("F-1")
    end = net.fail_over(0, revoke="F-1")
    net.op("p").auto = False
    net.run()
    assert end == 3
    assert net.reply(handle) == ["p-1:1"]
    assert [item.values for item in net.notes(NoteReply)] == [("p-1:1",)]
    assert net.notes(NoteComplete) == [NoteComplete(R0)]


def test_the_shortest_frozen_log_wins_and_longer_tails_are_cut(mutant):
    def run() -> tuple[Net, int]:
        net = Net(graph(op("p", FRONTEND), replicas=3), TRIO).start()
        appends(net, Admit, "F-3")
        handle = net.ask("F-1", "k")
        net.run()
        assert net.op("p").deliveries() == []
        assert net.reply(handle) is None
        net.held_back.clear()
        net.hold = lambda sender, target, message: False
        net.kill("F-1")
        # F-2 holds one entry, F-3 none. The recovery makes F-2 primary here, which must then cut its own
        # tail.
        return net, net.fail_over(0, revoke="F-1", to="F-2")

    net, end = run()
    assert end == 0
    net.run()
    assert net.op("p").deliveries() == []
    again = net.ask("F-2", "k2")
    net.run()
    assert net.reply(again) == ["p-1:1"]
    assert [(item.request, item.key) for item in net.notes(NoteLog)] == [(R0, "k2")]
    mutant("longest-log-wins")
    net, end = run()
    net.run()
    assert net.op("p").requests() == [R0], "an entry above the end was injected"


def test_a_deposed_owner_can_neither_inject_nor_reply():
    net = Net(graph(op("p", FRONTEND))).start()
    net.op("p").durable = False
    waiting = net.ask("F-1", "k")
    net.run()
    # F-1 is cut off from etcd and from its peer; the operator still reaches it.
    net.cut |= {("F-1", "etcd"), ("F-1", "F-2"), ("F-2", "F-1")}
    net.fail_over(0, revoke=None, to="F-2")
    fresh = net.ask("F-1", "k2")
    net.deliver("p-1", "F-1", Durable((net.op("p").outputs[R0, FRONTEND].deps[0],)))
    net.advance(1.0)
    assert net.reply(waiting) is None
    assert net.reply(fresh) is None
    assert net.op("p").requests() == [R0]


@pytest.mark.parametrize("name", ["inject-before-replicate", "reply-before-replicate"])
def test_an_owner_that_does_not_wait_for_its_followers_breaks_the_law(name, mutant):
    net = Net(graph(op("p", FRONTEND))).start()
    mutant(name)
    if name == "reply-before-replicate":
        handle = net.ask("F-1", "k")
        appends(net, ReplyEntry)
        net.run()
        assert net.reply(handle) == ["p-1:1"]
        net.kill("F-1")
        net.fail_over(0, revoke="F-1")
        net.op("p").durable = True
        assert net.machines["F-2"].shards()[0].stored_replies == 0
    else:
        net.cut |= {("F-1", "F-2"), ("F-2", "F-1")}
        net.ask("F-1", "k")
        net.run()
        assert net.op("p").requests() == [R0]


def test_a_reply_that_does_not_wait_for_durable_shows_what_may_be_undone(mutant):
    net = Net(graph(op("p", FRONTEND))).start()
    net.op("p").durable = False
    mutant("reply-before-durable")
    handle = net.ask("F-1")
    net.run()
    assert net.reply(handle) == ["p-1:1"]


def test_a_request_that_was_logged_but_not_acknowledged_is_committed_by_the_new_owner():
    net = Net(graph(op("p", FRONTEND))).start()
    net.hold = lambda sender, target, message: isinstance(message, LogAck)
    handle = net.ask("F-2", "k")
    net.run()
    assert net.op("p").deliveries() == []
    net.kill("F-1")
    assert net.fail_over(0, revoke="F-1") == 1
    net.hold = lambda sender, target, message: False
    net.run()
    assert net.reply(handle) == ["p-1:1"]
    assert [(item.request, item.epoch, item.key) for item in net.notes(NoteLog)] == [(R0, 2, "k")]


def test_a_request_without_key_is_logged_once_over_a_failover():
    net = Net(graph(op("p", FRONTEND))).start()
    net.op("p").auto = False
    handle = net.ask("F-2")
    net.run()
    net.kill("F-1")
    net.fail_over(0, revoke="F-1")
    net.run()
    assert net.op("p").requests() == [R0]
    net.op("p").answer(R0)
    net.run()
    assert net.reply(handle) == ["p-1:1"]


def test_the_owner_that_lost_its_shard_and_lives_on_forwards_what_waits():
    net = Net(graph(op("p", FRONTEND))).start()
    net.op("p").auto = False
    handle = net.ask("F-1")
    net.run()
    replica_set = net.topology.find("F/0")
    applied = net.freeze(0)["F-2"]
    net.commit(
        net.topology.with_set(
            replace(replica_set, epoch=2, primary="F-2", in_sync=("F-1",), ends=((1, applied),))
        )
    )
    net.run()
    net.op("p").answer(R0)
    net.run()
    assert net.reply(handle) == ["p-1:1"]
    assert [item.role for item in net.machines["F-1"].shards()] == ["backup"]


def test_requests_below_the_watermark_stay_complete_after_a_failover():
    net = Net(graph(op("p", FRONTEND))).start()
    for _ in range(5):
        net.ask("F-1")
    net.run()
    net.advance(0.1)
    net.kill("F-1")
    net.fail_over(0, revoke="F-1")
    handle = net.ask("F-2")
    net.run()
    assert net.reply(handle) == ["p-1:6"]
    assert net.op("p").requests()[-1] == RequestId(0, 5)
    net.advance(0.1)
    assert net.op("p").completed[-1].shards[0][1] == 6


# -- freeze --------------------------------------------------------------------------------------------------


def test_a_frozen_follower_takes_nothing_until_a_higher_generation(mutant):
    def run() -> Net:
        net = Net(graph(op("p", FRONTEND))).start()
        net.freeze(0)
        net.ask("F-1")
        net.run()
        return net

    net = run()
    assert net.op("p").deliveries() == []
    assert net.machines["F-2"].shards()[0].frozen
    net.commit(net.topology)
    net.advance(0.5)
    assert net.op("p").requests() == [R0]
    mutant("freeze-ignored")
    assert run().op("p").requests() == [R0]


def test_a_freeze_that_nobody_ends_is_ended_by_who_was_frozen():
    net = Net(graph(op("p", FRONTEND))).start()
    before = net.topology.generation
    net.freeze(0)  # by a manager that is gone then
    net.ask("F-1")
    net.run()
    assert net.op("p").deliveries() == []
    net.advance(limits.frozen_max_s)
    net.advance(limits.resend_after_s)
    assert net.topology.generation == before + 1
    assert not net.machines["F-2"].shards()[0].frozen
    assert net.op("p").requests() == [R0]


def test_while_etcd_is_away_a_freeze_is_ended_once():
    net = Net(graph(op("p", FRONTEND))).start()
    net.freeze(0)
    net.etcd_away = True
    count = len(net.proposals)
    for _ in range(5):
        net.advance(limits.frozen_max_s)
    assert len(net.proposals) == count + 1


def test_who_was_admitted_and_revoked_before_it_heard_of_either_keeps_its_log():
    net = Net(graph(op("p", FRONTEND), replicas=2)).start(in_sync=False)
    net.cut.add(("F-2", "etcd"))
    net.ask("F-1")
    net.run()
    net.etcd_away = True
    net.join_all_now()
    net.feed("F-2", TopologyLearnt(net.topology, net.revision))
    net.run()
    assert net.machines["F-2"].shards()[0].role == "joining"
    replica_set = net.topology.find("F/0")
    net.topology = net.topology.with_set(replace(replica_set, in_sync=("F-2",), joining=()))
    net.topology = replace(net.topology, generation=net.topology.generation + 2, revoked=("F-2",))
    net.feed("F-2", TopologyLearnt(net.topology, net.revision + 2))
    logs = net.machines["F-2"].logs_to_keep()
    assert logs is not None
    assert set(logs.logs) == {0}


def test_a_freeze_of_an_older_generation_is_refused():
    net = Net(graph(op("p", FRONTEND))).start()
    old = net.topology.generation
    net.commit(net.topology)
    net.deliver("manager", "F-2", Freeze(7, old, "F/0", 1))
    assert net.manager[-1] == ("F-2", Refused(7, old + 1, "F/0", f"F-2 knows generation {old + 1}"))
    assert not net.machines["F-2"].shards()[0].frozen


def test_a_freeze_of_a_generation_not_yet_known_is_refused_with_the_own_one():
    net = Net(graph(op("p", FRONTEND))).start()
    net.deliver("manager", "F-2", Freeze(7, 99, "F/0", 1))
    _, answer = net.manager[-1]
    assert isinstance(answer, Refused)
    assert answer.generation == net.topology.generation


def test_a_frontend_without_a_part_in_the_shard_says_so():
    net = Net(graph(op("p", FRONTEND), replicas=2), TRIO).start(in_sync=False)
    net.deliver("manager", "F-3", Freeze(7, net.topology.generation, "F/0", 1))
    assert net.manager[-1] == ("F-3", FreezeAnswer(7, net.topology.generation, "F/0", 1, None))


def test_a_frozen_owner_commits_nothing_and_keeps_its_clients():
    net = Net(graph(op("p", FRONTEND))).start()
    net.deliver("manager", "F-1", Freeze(7, net.topology.generation, "F/0", 1))
    handle = net.ask("F-1")
    net.run()
    assert net.op("p").deliveries() == []
    net.commit(net.topology)
    net.advance(0.3)
    assert net.reply(handle) == ["p-1:1"]


def test_entries_of_an_older_epoch_are_refused_and_their_sender_told(mutant):
    net = Net(graph(op("p", FRONTEND), replicas=3), TRIO).start()
    net.cut |= {("F-1", "etcd")}
    net.fail_over(0, revoke=None, to="F-2")
    # F-1 is in sync in nobody's eyes any more but does not know.
    stale = LogAppend(0, 1, 1, (Admit(R0, None, "d", Meta()),))
    effects = net.feed("F-3", Received("F-1", stale))
    assert [type(item.message) for item in effects] == [TopologyNews]
    assert net.machines["F-3"].shards()[0].last == 0
    mutant("old-epoch-log-taken")
    net.feed("F-3", Received("F-1", stale))
    assert net.machines["F-3"].shards()[0].last == 1


# -- never guess ---------------------------------------------------------------------------------------------


def test_a_primary_without_a_fitting_log_stops():
    net = Net(graph(op("p", FRONTEND)), TRIO).start(in_sync=False)
    replica_set = net.topology.find("F/0")
    net.commit(net.topology.with_set(replace(replica_set, epoch=2, primary="F-3", ends=((1, 5),))))
    assert net.stopped == {"F-3": "made primary of F/0 in epoch 2 without a log that fits"}


def test_a_follower_whose_log_is_shorter_than_the_end_stops():
    net = Net(graph(op("p", FRONTEND), replicas=3), TRIO).start()
    replica_set = net.topology.find("F/0")
    net.commit(
        net.topology.with_set(
            replace(replica_set, epoch=2, primary="F-1", in_sync=("F-2", "F-3"), ends=((1, 9),))
        )
    )
    assert set(net.stopped) == set(TRIO)


def test_a_revoked_frontend_stops():
    net = Net(graph(op("p", FRONTEND))).start()
    net.commit(replace(net.topology, revoked=("F-2",)))
    assert net.stopped == {"F-2": "revoked"}
    assert net.feed("F-2", TopologyLearnt(net.topology, 99)) == []


def test_a_revoked_frontend_comes_back_under_a_fresh_id_with_its_logs():
    net = Net(graph(op("p", FRONTEND))).start()
    first = net.ask("F-1", "k")
    net.run()
    net.advance(0.1)
    # F-2, in sync, is revoked; before anybody else joins, the owner dies.
    net.cut.add(("F-1", "etcd"))
    net.commit(replace(net.topology, revoked=("F-2",)))
    net.kill("F-1")
    logs = net.machines["F-2"].logs_to_keep()
    assert logs is not None
    assert logs.instance == "F-2"
    back = net.machines["F-9"] = FrontendMachine(net.graph, "F-9", logs)
    net.feed("F-9", TopologyLearnt(net.topology, net.revision))
    assert back.former_id == "F-2"
    net.deliver("manager", "F-9", Freeze(1, net.topology.generation, "F/0", 1))
    sender, answer = net.manager[-1]
    assert isinstance(answer, FreezeAnswer)
    assert (sender, answer.applied) == ("F-9", 3)
    replica_set = net.topology.find("F/0")
    net.commit(
        net.topology.with_set(replace(replica_set, epoch=2, primary="F-9", in_sync=(), ends=((1, 3),)))
    )
    assert back.former_id is None
    again = net.ask("F-9", "k")
    assert net.reply(again) == net.reply(first) == ["p-1:1"]


def test_a_frontend_that_is_to_end_stays_as_long_as_its_kept_logs_may_be_the_last():
    net = Net(graph(op("p", FRONTEND))).start()
    net.cut.add(("F-1", "etcd"))
    net.commit(replace(net.topology, revoked=("F-2",)))
    net.kill("F-1")
    net.machines["F-9"] = FrontendMachine(net.graph, "F-9", net.machines["F-2"].logs_to_keep())
    net.feed("F-9", TopologyLearnt(net.topology, net.revision))
    net.feed("F-9", Drain())
    assert "F-9" not in net.stopped
    replica_set = net.topology.find("F/0")
    net.commit(
        net.topology.with_set(replace(replica_set, epoch=2, primary="F-3", in_sync=(), ends=((1, 0),)))
    )
    assert "F-9" in net.stopped, "nobody needs them any more"


def test_kept_logs_are_dropped_when_the_topology_no_longer_names_their_holder():
    net = Net(graph(op("p", FRONTEND))).start()
    net.etcd_away = True
    net.commit(replace(net.topology, revoked=("F-2",)))
    back = net.machines["F-9"] = FrontendMachine(net.graph, "F-9", net.machines["F-2"].logs_to_keep())
    net.feed("F-9", TopologyLearnt(net.topology, net.revision))
    assert back.former_id == "F-2"
    net.commit(net.proposals[-1][1])
    assert net.topology.find("F/0").in_sync == ()
    assert back.former_id is None


def test_a_shard_restarted_after_loss_never_uses_a_request_id_twice():
    net = Net(graph(op("p", FRONTEND)), TRIO).start(in_sync=False)
    for _ in range(3):
        net.ask("F-1")
    net.run()
    net.kill("F-1")
    replica_set = net.topology.find("F/0")
    net.commit(
        replace(
            net.topology.with_set(
                replace(replica_set, epoch=2, primary="F-3", ends=((1, 0),), restarted_in=2)
            ),
            revoked=("F-1",),
        )
    )
    handle = net.ask("F-3")
    net.run()
    assert net.reply(handle) == ["p-1:4"]
    assert net.op("p").requests()[-1].n >= 1 << 32
    net.advance(0.1)
    assert net.op("p").completed[-1].shards[0][1] == net.op("p").requests()[-1].n + 1


# -- unprotected ---------------------------------------------------------------------------------------------


def test_under_continue_an_owner_alone_goes_on_and_under_block_it_waits():
    for policy, served in ((WhenUnprotected.CONTINUE, True), (WhenUnprotected.BLOCK, False)):
        net = Net(graph(op("p", FRONTEND), recovery=RecoverySpec(when_unprotected=policy))).start(
            in_sync=False
        )
        net.ask("F-1")
        net.run()
        assert (net.op("p").deliveries() != []) is served
        net.join_all()
        net.advance(0.5)
        assert net.op("p").requests() == [R0]


def test_under_block_what_waits_in_the_tail_is_not_logged_twice():
    net = Net(
        graph(op("p", FRONTEND), recovery=RecoverySpec(when_unprotected=WhenUnprotected.BLOCK)), PAIR
    ).start()
    net.hold = lambda sender, target, message: isinstance(message, LogAck)
    handle = net.ask("F-2", "k")
    net.run()
    net.kill("F-1")
    net.fail_over(0, revoke="F-1")
    again = net.ask("F-2", "k")
    net.hold = lambda sender, target, message: False
    net.advance(0.3)
    assert net.op("p").deliveries() == []
    net.machines["F-9"] = type(net.machines["F-2"])(net.graph, "F-9")
    net.join_all()
    net.members()
    net.advance(0.5)
    assert net.reply(handle) == net.reply(again) == ["p-1:1"]
    assert [item.request for item in net.notes(NoteLog)] == [R0]


def test_what_the_tail_calls_complete_is_neither_injected_again_nor_taken_from_another_execution():
    """Seed 7296560: the owner had completed a request and told so, thus nobody kept its tokens. Its successor
    waited for a follower, and injected the request again: a fan-out took another route, back to the frontend.
    """

    operator = op("p", FRONTEND, feedback=Feedback((("a", "out"),), 8), stateful=False)
    net = Net(graph(operator, recovery=RecoverySpec(when_unprotected=WhenUnprotected.BLOCK)), PAIR).start()
    net.op("p").route = (FRONTEND,)
    net.ask("F-1", "k")
    net.run()
    assert net.notes(NoteComplete) == [NoteComplete(R0)]
    net.op("p").route = (FRONTEND, FEEDBACK)
    net.kill("F-1")
    net.fail_over(0, revoke="F-1")
    net.run()
    net.op("p").answer(R0)
    net.run()
    net.machines["F-9"] = type(net.machines["F-2"])(net.graph, "F-9")
    net.join_all()
    net.members()
    net.advance(0.5)
    assert {item.request for item in net.notes(NoteComplete)} >= {R0}
    assert len(net.op("p").deliveries()) == 1
    assert [item.request for item in net.notes(NoteLog)] == [R0]


def test_under_block_a_joiner_is_not_counted_on_before_it_holds_what_the_epoch_began_with():
    net = Net(
        graph(op("p", FRONTEND), recovery=RecoverySpec(when_unprotected=WhenUnprotected.BLOCK)), PAIR
    ).start()
    net.hold = lambda sender, target, message: isinstance(message, LogAck)
    net.ask("F-2", "k")
    net.run()
    net.kill("F-1")
    net.fail_over(0, revoke="F-1")
    net.machines["F-9"] = type(net.machines["F-2"])(net.graph, "F-9")
    net.hold = lambda sender, target, message: isinstance(message, LogAppend) and target == "F-9"
    net.join_all()
    net.members()
    net.advance(0.1)
    assert net.topology.find("F/0").in_sync == ()


def test_a_reply_and_completion_in_the_tail_are_noted_once():
    net = Net(graph(op("p", FRONTEND), op("q", FRONTEND))).start()
    appends(net, DoneEntry)
    net.op("q").auto = False
    net.ask("F-1", "k", outputs=("p",))
    net.run()
    net.op("q").answer(R0)
    net.run()
    assert net.notes(NoteComplete) == []
    net.kill("F-1")
    net.held_back.clear()
    net.hold = lambda sender, target, message: False
    assert net.fail_over(0, revoke="F-1") == 2
    net.run()
    assert net.notes(NoteComplete) == [NoteComplete(R0)]
    assert net.notes(NoteReply)[0].values == ("p-1:1",)
    assert not any(
        isinstance(item, Deliver) and item.token.request == R1 for item in net.op("p").deliveries()
    )
