"""A follower whose connection was down learns several epochs of a log at once (sections 5 and 7): its log
fits if nothing was committed since, for that would have needed its word."""

from dataclasses import replace

import pytest
from frontend_net import Net, graph, op

from hams_protocol import limits
from hams_protocol.events import Drain, PeerDown, TopologyLearnt
from hams_protocol.graph import FRONTEND
from hams_protocol.messages import LogAck, LogAppend

TRIO = ("F-1", "F-2", "F-3")


def cut_off() -> Net:
    """F-1 owns, F-2 and F-3 follow; F-3 hears nothing any more, and nobody has noticed."""
    net = Net(graph(op("p", FRONTEND), replicas=3), TRIO).start()
    first = net.ask("F-1", "k")
    net.run()
    assert net.reply(first) == ["p-1:1"]
    net.advance(0.1)
    net.cut |= {("F-3", "etcd"), ("F-1", "F-3"), ("F-2", "F-3")}
    return net


def hear(net: Net) -> None:
    net.cut.clear()
    net.feed("F-3", TopologyLearnt(net.topology, net.revision))


def moved(net: Net, primary: str, *ends: tuple[int, int], restarted_in: int = 0) -> None:
    """F-3 learns the epoch that follows on these, and none of those between."""
    others = tuple(name for name in TRIO if name != primary)
    replica_set = replace(
        net.topology.find("F/0"),
        epoch=ends[-1][0] + 1,
        primary=primary,
        in_sync=others,
        ends=ends,
        restarted_in=restarted_in,
    )
    net.topology = replace(net.topology.with_set(replica_set), generation=net.topology.generation + 1)
    net.revision += 1
    net.feed("F-3", TopologyLearnt(net.topology, net.revision))


def with_a_tail() -> Net:
    """F-3 alone holds a second request of F-1's, which nobody has committed."""
    net = cut_off()
    net.cut.clear()
    net.hold = lambda sender, target, message: (
        (isinstance(message, LogAppend) and target == "F-2") or isinstance(message, LogAck)
    )
    net.ask("F-1", "cut")
    net.run()
    assert net.machines["F-3"].shards()[0].last == 4
    return net


def test_who_missed_two_handovers_takes_over():
    net = cut_off()
    net.feed("F-1", Drain())
    net.run()
    assert (net.topology.find("F/0").primary, net.topology.find("F/0").epoch) == ("F-2", 2)
    net.feed("F-2", Drain())
    net.advance(2 * limits.resend_after_s + 0.1)
    assert (net.topology.find("F/0").primary, net.topology.find("F/0").epoch) == ("F-3", 3)
    hear(net)
    net.advance(0.1)
    assert "F-3" not in net.stopped
    again, other = net.ask("F-3", "k"), net.ask("F-3", "new")
    net.advance(0.1)
    assert [net.reply(again), net.reply(other)] == [["p-1:1"], ["p-1:2"]]


def test_a_tail_that_was_cut_in_an_epoch_that_was_missed_goes():
    net = with_a_tail()
    moved(net, "F-3", (1, 3), (2, 3))
    assert net.stopped == {}
    shard = net.machines["F-3"].shards()[0]
    assert (shard.role, shard.last) == ("primary", 3)


def test_an_entry_that_was_cut_does_not_pass_for_one_of_a_later_epoch():
    """Index 4 was an entry of epoch 1 here, and is another one since epoch 2."""
    net = with_a_tail()
    moved(net, "F-2", (1, 3), (2, 4))
    assert net.stopped == {"F-3": "named in sync in F/0, epoch 3, without a log that fits"}


def test_what_was_lost_in_an_epoch_that_was_missed_is_not_gone_on_from():
    net = cut_off()
    moved(net, "F-2", (1, 3), (2, 3), restarted_in=2)
    assert net.stopped == {"F-3": "named in sync in F/0, epoch 3, without a log that fits"}


def test_whose_epoch_ended_nobody_knows_any_more_does_not_guess():
    net = cut_off()
    moved(net, "F-2", (2, 3))
    assert net.stopped == {"F-3": "named in sync in F/0, epoch 3, without a log that fits"}


def test_a_joiner_that_missed_an_epoch_copies_anew():
    net = cut_off()
    net.feed("F-1", Drain())
    net.run()
    replica_set = net.topology.find("F/0")
    assert (replica_set.primary, replica_set.epoch) == ("F-2", 2)
    net.commit(
        net.topology.with_set(
            replace(
                replica_set, epoch=3, in_sync=("F-1",), joining=("F-3",), ends=(*replica_set.ends, (2, 3))
            )
        )
    )
    hear(net)
    net.advance(0.5)
    assert "F-3" not in net.stopped
    assert "F-3" in net.topology.find("F/0").in_sync


# -- logs that were lost and begin again ---------------------------------------------------------------------


def begun_again_at(net: Net, name: str) -> None:
    """All who have the log are gone, and a frontend that has not heard that it was left out is to begin it
    again (`Losses.restart`). Ends of lost logs are 0."""
    lost = net.topology.find("F/0")
    gone = lost.primary
    net.kill(gone)
    epoch = lost.epoch + 1
    again = replace(
        lost, epoch=epoch, primary=name, in_sync=(), joining=(), ends=lost.ends_with(0), restarted_in=epoch
    )
    net.topology = replace(
        net.topology.with_set(again),
        generation=net.topology.generation + 2,
        revoked=(*net.topology.revoked, gone),
    )
    net.revision += 1
    net.cut.clear()
    net.feed(name, TopologyLearnt(net.topology, net.revision))


@pytest.mark.parametrize("handed_over", [False, True])
def test_a_log_that_begins_again_uses_no_number_twice_whatever_its_owner_holds(handed_over: bool):
    net = Net(graph(op("p", FRONTEND), replicas=3), ("F-1", "F-2", "F-3")).start()
    net.advance(0.1)
    net.cut |= {("F-3", "etcd")} | {
        pair for other in ("F-1", "F-2") for pair in ((other, "F-3"), ("F-3", other))
    }
    owner = "F-1"
    if handed_over:
        assert net.fail_over(0, revoke="F-1", to="F-2") == 0
        net.dead.add("F-1")
        owner = "F-2"
    for other in ("F-2", "F-3") if owner == "F-1" else ("F-3",):
        net.feed(owner, PeerDown(other))
    net.members()
    net.advance(6.0)
    first = net.ask(owner, "first")
    net.advance(6.0)
    assert net.reply(first) == ["p-1:1"]
    begun_again_at(net, "F-3")
    other = net.ask("F-3", "other")
    net.advance(1.0)
    assert net.reply(other) == ["p-1:2"], "not what the first one got"
    assert len(set(net.op("p").requests())) == 2
