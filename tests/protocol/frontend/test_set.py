"""Who holds a shard's log: joining by copy, the ack set before the compare-and-swap, leaving only by the
owner's own (sections 2, 5, 7.7)."""

from dataclasses import replace

import pytest
from frontend_net import PAIR, Net, P, graph, op

from hams_protocol import limits
from hams_protocol.context import InvariantError
from hams_protocol.effects import Propose
from hams_protocol.events import CasUnknown, Late, PeerDown, Received, TopologyLearnt
from hams_protocol.frontend import FrontendMachine
from hams_protocol.graph import FRONTEND, Mode
from hams_protocol.ids import RequestId
from hams_protocol.messages import Admit, AskCopy, Freeze, LogAck, LogAppend, LogCopy, ReplyEntry

R0 = RequestId(0, 0)
TRIO = ("F-1", "F-2", "F-3")


def roles(net: Net, shard: int = 0):
    replica_set = net.topology.find(f"F/{shard}")
    return replica_set.primary, replica_set.in_sync, replica_set.joining


def test_a_set_begins_with_its_primary_alone_and_a_joiner_copies():
    net = Net(graph(op("p", FRONTEND))).start(in_sync=False)
    done = net.ask("F-1", "k")
    net.run()
    net.op("p").auto = False
    net.ask("F-1", "open")
    net.run()
    net.join_all()
    net.run()
    assert roles(net) == ("F-1", ("F-2",), ())
    assert net.reply(done) == ["p-1:1"]
    net.kill("F-1")
    net.fail_over(0, revoke="F-1")
    again = net.ask("F-2", "k")
    net.run()
    assert net.reply(again) == ["p-1:1"]
    assert net.op("p").deliveries()[-1].token.request == RequestId(0, 1)
    assert net.op("p").deliveries()[-1].epoch == 2


def test_a_joiner_is_in_the_ack_set_before_it_is_admitted(mutant):
    def run() -> Net:
        net = Net(graph(op("p", FRONTEND))).start(in_sync=False)
        net.etcd_away = True
        net.join_all_now()
        net.run()
        net.cut |= {("F-1", "F-2"), ("F-2", "F-1")}
        net.ask("F-1")
        net.run()
        return net

    net = run()
    assert [type(item[1]).__name__ for item in net.proposals] == ["Topology"]
    assert net.op("p").deliveries() == [], (
        "the proposal may have been committed: the joiner's acknowledgement counts"
    )
    mutant("admit-before-ack-set")
    net = run()
    assert net.proposals
    assert net.op("p").requests() == [R0]


def test_a_joiner_that_lacks_committed_entries_is_not_admitted():
    net = Net(graph(op("p", FRONTEND))).start(in_sync=False)
    net.hold = lambda sender, target, message: isinstance(message, LogCopy)
    net.ask("F-1")
    net.join_all()
    net.run()
    assert net.proposals == []
    net.let_go()
    assert roles(net) == ("F-1", ("F-2",), ())


def test_a_copy_comes_in_parts_and_a_lost_part_is_asked_for_again(monkeypatch):
    monkeypatch.setattr(limits, "copy_part_entries_max", 3)
    net = Net(graph(op("p", FRONTEND))).start(in_sync=False)
    for number in range(10):
        net.ask("F-1", f"k{number}")
    net.run()
    lost = []

    def lose_one(sender, target, message):
        if isinstance(message, LogCopy) and message.part == 1 and not lost:
            lost.append(message)
            return True
        return False

    net.hold = lose_one
    net.join_all()
    net.run()
    assert lost
    assert net.proposals == []
    net.advance(limits.copy_ask_after_s + 0.1)
    assert roles(net) == ("F-1", ("F-2",), ())
    net.kill("F-1")
    net.fail_over(0, revoke="F-1")
    handles = [net.ask("F-2", f"k{number}") for number in range(10)]
    assert [net.reply(handle) for handle in handles] == [[f"p-1:{number + 1}"] for number in range(10)]


def test_a_joiner_follows_while_serving_goes_on():
    net = Net(graph(op("p", FRONTEND))).start(in_sync=False)
    net.hold = lambda sender, target, message: isinstance(message, LogCopy)
    net.ask("F-1", "a")
    net.join_all()
    net.run()
    handles = [net.ask("F-1", key) for key in "bcd"]
    net.run()
    assert all(net.reply(handle) for handle in handles), "a joiner outside the ack set holds nobody up"
    net.let_go()
    net.advance(0.3)
    assert roles(net) == ("F-1", ("F-2",), ())
    assert net.machines["F-1"].shards()[0].last == net.machines["F-2"].shards()[0].last


def test_a_new_epoch_starts_the_copy_again():
    net = Net(graph(op("p", FRONTEND), replicas=3), PAIR).start()
    fresh_name = "F-3"
    net.machines[fresh_name] = FrontendMachine(net.graph, fresh_name)
    net.members()
    net.hold = lambda sender, target, message: isinstance(message, LogCopy)
    net.join_all()
    net.run()
    net.kill("F-1")
    net.fail_over(0, revoke="F-1")
    net.let_go()
    net.join_all()
    net.advance(0.3)
    assert roles(net) == ("F-2", ("F-3",), ())
    asks = {message.epoch for _, _, message in net.sends(AskCopy, "F-3")}
    assert asks == {1, 2}


def test_a_dead_follower_holds_commits_up_until_its_leave_is_committed(mutant):
    def run() -> Net:
        net = Net(graph(op("p", FRONTEND))).start()
        net.etcd_away = True
        net.kill("F-2")
        net.ask("F-1")
        net.advance(0.5)
        assert [topology.find("F/0").in_sync for _, topology in net.proposals[-1:]] == [()]
        return net

    net = run()
    assert net.op("p").deliveries() == []
    net.etcd_away = False
    net.commit(net.proposals[-1][1])
    net.advance(0.1)
    assert net.op("p").requests() == [R0]
    mutant("ack-set-shrinks-early")
    assert run().op("p").requests() == [R0]


def test_a_follower_whose_connection_comes_back_in_time_stays():
    net = Net(graph(op("p", FRONTEND))).start()
    proposals = len(net.proposals)
    net.cut |= {("F-1", "F-2"), ("F-2", "F-1")}
    net.feed("F-1", PeerDown("F-2"))
    handle = net.ask("F-1")
    net.advance(0.1)
    assert net.reply(handle) is None
    net.revive_link("F-1", "F-2")
    net.run()
    assert net.reply(handle) == ["p-1:1"]
    net.revive_link("F-1", "F-2")
    net.advance(2 * limits.backup_lag_max_s)
    assert len(net.proposals) == proposals


def test_a_follower_that_does_not_receive_leaves_by_its_owner():
    net = Net(graph(op("p", FRONTEND))).start()
    net.cut.add(("F-1", "F-2"))
    handle = net.ask("F-1")
    net.advance(limits.backup_lag_max_s - 0.1)
    assert net.reply(handle) is None
    net.advance(0.2)
    assert roles(net)[1] == ()
    assert net.reply(handle) == ["p-1:1"]


def test_an_owner_that_got_no_cpu_drops_nobody_for_what_it_has_not_read():
    net = Net(graph(op("p", FRONTEND))).start()
    net.cut.add(("F-1", "F-2"))
    net.ask("F-1")
    for _ in range(5):
        net.feed("F-1", Late(limits.backup_lag_max_s / 4))
        net.advance(limits.backup_lag_max_s / 4)
    assert roles(net)[1] == ("F-2",), "the acknowledgement may lie unread"
    net.advance(limits.backup_lag_max_s + limits.judge_calm_max_s)
    assert roles(net)[1] == (), "but it is not waited for without end"


def test_an_owner_that_is_always_late_drops_a_follower_whose_silence_no_delay_explains():
    net = Net(graph(op("p", FRONTEND))).start()
    net.cut.add(("F-1", "F-2"))
    net.ask("F-1")
    for _ in range(int(limits.silence_max_s) - 1):
        net.feed("F-1", Late(1.0))
        net.advance(1.0)
        assert roles(net)[1] == ("F-2",)
    for _ in range(2):
        net.feed("F-1", Late(1.0))
        net.advance(1.0)
    assert roles(net)[1] == ()


def test_an_owner_that_got_no_cpu_drops_a_follower_at_whose_address_nobody_listens():
    net = Net(graph(op("p", FRONTEND))).start()
    net.feed("F-1", Late(1.0))
    net.cut |= {("F-1", "F-2"), ("F-2", "F-1")}
    net.feed("F-1", PeerDown("F-2"))
    net.advance(0.5)
    assert roles(net)[1] == ("F-2",)
    net.feed("F-1", PeerDown("F-2", refused=True))
    net.advance(0.1)
    assert roles(net)[1] == ()


def test_a_joiner_that_dies_in_the_ack_set_leaves_too():
    net = Net(graph(op("p", FRONTEND))).start(in_sync=False)
    net.etcd_away = True
    net.join_all_now()
    net.run()
    net.kill("F-2")
    handle = net.ask("F-1")
    net.advance(0.3)
    assert net.reply(handle) is None
    net.etcd_away = False
    from hams_protocol.events import CasUnknown

    net.feed("F-1", CasUnknown())
    net.advance(0.5)
    assert roles(net) == ("F-1", (), ())
    assert net.reply(handle) == ["p-1:1"]


def test_a_proposal_that_was_overtaken_is_made_again_as_soon_as_it_is_known_by_what():
    net = Net(graph(op("p", FRONTEND))).start(in_sync=False)
    net.join_all()
    net.revision += 1
    began = net.now
    net.run()
    assert (roles(net)[1], net.now) == (("F-2",), began)
    assert len(net.proposals) == 2


def test_lost_entries_and_acknowledgements_are_made_good():
    net = Net(graph(op("p", FRONTEND))).start()
    dropped = []

    def lose(sender, target, message):
        if isinstance(message, (LogAppend, LogAck)) and len(dropped) < 3:
            dropped.append(message)
            return True
        return False

    net.hold = lose
    handles = [net.ask("F-1") for _ in range(3)]
    net.run()
    net.advance(1.5)
    assert len(dropped) == 3
    assert [net.reply(handle) for handle in handles] == [["p-1:1"], ["p-1:2"], ["p-1:3"]]
    assert net.machines["F-2"].shards()[0].last == net.machines["F-1"].shards()[0].last


def test_a_gap_in_the_log_is_not_taken():
    net = Net(graph(op("p", FRONTEND))).start()
    held = []
    net.hold = lambda sender, target, message: (
        isinstance(message, LogAppend) and not held and not held.append(message)
    )
    net.ask("F-1")
    net.run()
    net.ask("F-1")
    net.run()
    # The first message is late, the second found a gap; the repeated acknowledgement made the owner send both
    # again.
    assert net.op("p").requests() == [R0, RequestId(0, 1)]
    net.let_go()
    assert net.machines["F-2"].shards()[0].last == net.machines["F-1"].shards()[0].last


def test_followers_learn_what_is_committed_even_if_nothing_follows():
    net = Net(graph(op("p", FRONTEND))).start()
    net.ask("F-1", "k")
    net.run()
    net.advance(0.1)
    (shard,) = net.machines["F-2"].shards()
    assert (shard.committed, shard.last, shard.stored_replies, shard.open_requests) == (3, 3, 1, 0)


def test_the_ack_set_is_checked_after_every_step():
    net = Net(graph(op("p", FRONTEND))).start()
    owner = net.machines["F-1"]._owners[0]
    next(iter(owner.replication.followers.all.values())).ack = False
    with pytest.raises(InvariantError, match="not in the ack set"):
        net.ask("F-1")


def test_without_replication_nothing_is_copied_and_nothing_waits():
    net = Net(graph(op("p", FRONTEND), mode=Mode.NONE, request_timeout_s=1), ("F-1",)).start()
    net.op("p").durable = False
    handle = net.ask("F-1")
    net.run()
    assert net.reply(handle) == ["p-1:1"]
    assert len(net.machines["F-1"]._outbox) == 0
    net.advance(1.0)
    assert any(below > 0 or rest for news in net.op("p").completed for _, below, rest in news.shards), (
        "who is not told that a request is complete keeps its tokens, and sends them again, for ever"
    )
    net.op("p").auto = False
    late = net.ask("F-1", budget=0.5)
    net.advance(3.0)
    assert net.reply(late) == 504
    assert net.machines["F-1"].shards()[0].open_requests == 0


def test_a_copy_says_everything_the_log_says():
    from hams_protocol.frontend.log import copy_parts, log_of

    net = Net(graph(op("p", FRONTEND), replies_kept=2)).start(in_sync=False)
    for number in range(5):
        net.ask("F-1", f"k{number}")
        net.ask("F-1")
    net.run()
    net.op("p").auto = False
    net.ask("F-1", "open")
    net.run()
    log = net.machines["F-1"]._owners[0].log
    copy = log_of(copy_parts(0, log), net.graph.data.frontend)
    assert copy_parts(0, copy) == copy_parts(0, log)
    assert (copy.last, copy.state.next_n) == (log.committed, log.state.next_n)
    assert set(copy.state.keys) == {"k3", "k4", "open"}
    assert all(key in copy.state.expired for key in ("k0", "k1", "k2"))


def test_a_copied_log_holds_payloads_of_open_requests_only():
    from hams_protocol.frontend.log import copy_parts

    net = Net(graph(op("p", FRONTEND))).start(in_sync=False)
    net.ask("F-1", "k")
    net.run()
    net.op("p").auto = False
    net.ask("F-1", "open")
    net.run()
    (part,) = copy_parts(0, net.machines["F-1"]._owners[0].log)
    assert [entry.payload for entry in part.entries if isinstance(entry, Admit)] == [None, P("request")]
    assert len([entry for entry in part.entries if isinstance(entry, ReplyEntry)]) == 1


def test_only_one_proposal_is_under_way():
    net = Net(graph(op("p", FRONTEND), replicas=3), TRIO).start(in_sync=False)
    net.etcd_away = True
    net.join_all_now()
    net.run()
    net.advance(1.0)
    assert len([item for item in net.log if isinstance(item.effect, Propose)]) == 1
    assert replace(net.topology, generation=0) != net.topology


@pytest.mark.parametrize("gone", ["F-2", "F-3"])
def test_what_another_follower_lacks_goes_out_again_while_a_proposal_is_under_way(gone):
    """The change of the set that cannot be made yet once put off everything that was due."""
    other = "F-3" if gone == "F-2" else "F-2"
    net = Net(graph(op("p", FRONTEND), replicas=3), TRIO).start()
    net.etcd_away = True
    net.feed("F-1", PeerDown(gone, True))
    net.run()
    net.cut.add(("F-1", other))
    net.ask("F-1")
    net.run()
    assert net.machines["F-1"].deadline() <= net.now + limits.resend_after_s


def named_again(net: Net, learnt: tuple[str, ...]) -> None:
    """A manager drops the joiner, whose lease has expired, and names it again; `learnt` hear of the second
    only."""
    replica_set = net.topology.find("F/0")
    for joining in ((), replica_set.joining):
        net.topology = replace(
            net.topology.with_set(replace(replica_set, joining=joining)),
            generation=net.topology.generation + 1,
        )
        net.revision += 1
        for name in net.machines:
            if joining or name not in learnt:
                net.feed(name, TopologyLearnt(net.topology, net.revision))


def counted_and_not_admitted() -> Net:
    net = Net(graph(op("p", FRONTEND))).start(in_sync=False)
    net.ask("F-1")
    net.run()
    net.etcd_away = True
    net.join_all_now()
    net.run()
    followers = net.machines["F-1"]._owners[0].replication.followers
    assert [item.instance for item in followers.ack_set] == ["F-2"]
    net.feed("F-1", CasUnknown())
    net.etcd_away = False
    return net


def test_a_joiner_that_was_dropped_and_named_again_unseen_is_not_admitted_without_a_log():
    net = counted_and_not_admitted()
    proposals = len(net.proposals)
    named_again(net, learnt=("F-1",))
    assert len(net.proposals) == proposals
    net.advance(limits.copy_ask_after_s + 0.5)
    assert net.stopped == {}
    assert roles(net) == ("F-1", ("F-2",), ())
    assert net.machines["F-2"].shards()[0].last == net.machines["F-1"].shards()[0].last


def test_a_joiner_that_has_its_log_still_says_so_again_and_is_admitted():
    net = counted_and_not_admitted()
    copies = len(net.sends(LogCopy))
    named_again(net, learnt=("F-1", "F-2"))
    late = net.ask("F-1")
    net.run()
    assert net.reply(late) == ["p-1:2"], "it is not counted on meanwhile"
    net.advance(limits.copy_ask_after_s + 0.5)
    assert roles(net) == ("F-1", ("F-2",), ())
    assert len(net.sends(LogCopy)) == copies
    assert net.machines["F-2"].shards()[0].last == net.machines["F-1"].shards()[0].last


def test_what_a_joiner_said_before_it_was_dropped_does_not_count():
    net = counted_and_not_admitted()
    (before,) = [message for _, _, message in net.sends(LogAck, "F-2")]
    net.hold = lambda sender, target, message: isinstance(message, LogCopy)
    named_again(net, learnt=())
    net.run()
    net.deliver("F-2", "F-1", before)
    net.deliver("F-2", "F-1", AskCopy("F/0", 1, before.last, before.generation))
    net.advance(0.5)
    assert roles(net) == ("F-1", (), ("F-2",))
    net.let_go()
    net.advance(0.5)
    assert roles(net) == ("F-1", ("F-2",), ())


def test_a_joiner_of_a_version_that_does_not_say_what_it_knows_is_admitted():
    net = Net(graph(op("p", FRONTEND))).start(in_sync=False)
    net.ask("F-1")
    net.hold = lambda sender, target, message: isinstance(message, (LogAck, LogCopy))
    net.join_all()
    net.run()
    net.deliver("F-2", "F-1", LogAck(0, 1, 3))
    net.run()
    assert net.topology.find("F/0").in_sync == ("F-2",)


def test_a_joiner_that_its_owner_alone_cannot_reach_is_dropped():
    """No manager sees a fault there, so nobody else would name another one."""
    net = Net(graph(op("p", FRONTEND))).start(in_sync=False)
    net.hold = lambda sender, target, message: isinstance(message, LogCopy)
    net.join_all_now()
    net.run()
    assert roles(net)[2] == ("F-2",)
    net.cut |= {("F-1", "F-2"), ("F-2", "F-1")}
    net.feed("F-1", PeerDown("F-2"))
    net.advance(0.5)
    assert roles(net) == ("F-1", (), ())


def test_an_owner_that_stands_still_sends_nothing_when_a_connection_comes_back():
    net = Net(graph(op("p", FRONTEND))).start()
    net.cut.add(("F-1", "F-2"))
    net.ask("F-1")
    net.run()
    net.feed("F-1", Received("manager", Freeze(1, net.topology.generation, "F/0", 1)))
    before = len(net.sends(LogAppend))
    net.revive_link("F-1", "F-2")
    net.run()
    assert len(net.sends(LogAppend)) == before
    net.advance(limits.frozen_max_s + 1.0)
    assert net.machines["F-2"].shards()[0].last == net.machines["F-1"].shards()[0].last > 0
