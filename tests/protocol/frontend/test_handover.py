"""A shard is handed over while others go on: under load, with an outcome in doubt, to who has just been
admitted (section 7, ADR 0009)."""

from frontend_net import Net, graph, op

from hams_protocol import limits
from hams_protocol.events import CasUnknown, Drain, Tick, TopologyLearnt
from hams_protocol.graph import FRONTEND
from hams_protocol.ids import RequestId
from hams_protocol.messages import Leave, LogAck, LogCopy

TRIO = ("F-1", "F-2", "F-3")


def one_joins_later() -> Net:
    """F-1 owns, F-2 follows; F-3 is not there yet."""
    net = Net(graph(op("p", FRONTEND)), TRIO)
    net.dead.add("F-3")
    net.start(in_sync=False)
    net.join_all()
    net.run()
    assert net.topology.find("F/0").in_sync == ("F-2",)
    return net


def come(net: Net, name: str) -> None:
    net.dead.discard(name)
    net.members()
    net.feed(name, TopologyLearnt(net.topology, net.revision))


def under_load(net: Net, steps: int) -> list[int]:
    """A request every half millisecond by F-2; acknowledgements of entries take two steps. F-1 is to end
    after a while; ends with a handover."""
    handles = []
    late: list[tuple[int, tuple]] = []
    net.hold = lambda sender, target, message: isinstance(message, LogAck)
    for step in range(steps):
        net.now += 0.0005
        if step == 100:
            net.feed("F-1", Drain())
        handles.append(net.ask("F-2", f"k{step}"))
        net.run()
        late += [(step + 2, item) for item in net.held_back]
        net.held_back.clear()
        while late and late[0][0] <= step:
            net.deliver(*late.pop(0)[1])
        for name, machine in net.machines.items():
            if machine.deadline() <= net.now:
                net.feed(name, Tick())
        if net.topology.find("F/0").primary != "F-1":
            break
    net.held_back += [item for _, item in late]
    net.let_go()
    return handles


def test_a_shard_is_handed_over_under_load():
    net = Net(graph(op("p", FRONTEND))).start()
    handles = under_load(net, 1000)
    assert net.topology.find("F/0").primary == "F-2"
    net.advance(2 * limits.resend_after_s)
    assert all(isinstance(net.reply(handle), list) for handle in handles)


def test_who_hands_over_admits_again_once_nobody_could_take_the_shard():
    net = one_joins_later()
    come(net, "F-3")
    net.hold = lambda sender, target, message: isinstance(message, (LogAck, LogCopy))
    first = net.ask("F-3", "a")
    net.run()
    net.feed("F-1", Drain())
    second = net.ask("F-3", "b")
    net.run()
    owner = net.machines["F-1"]._owners[0]
    assert (owner.closing, owner.log.last) == (True, 1)
    net.kill("F-2")
    net.members()
    net.advance(1.0)
    replica_set = net.topology.find("F/0")
    assert (replica_set.primary, replica_set.in_sync, replica_set.joining) == ("F-1", (), ("F-3",))
    assert [net.reply(first), net.reply(second)] == [["p-1:1"], ["p-1:2"]]


def test_a_handover_in_doubt_whose_successor_dies_holds_nobody_up():
    net = one_joins_later()
    net.etcd_away = True
    net.feed("F-1", Drain())
    net.run()
    assert net.proposals[-1][1].find("F/0").primary == "F-2"
    net.feed("F-1", CasUnknown())
    net.kill("F-2")
    net.members()
    net.etcd_away = False
    net.feed("F-1", TopologyLearnt(net.topology, net.revision))  # read again: it was not applied
    net.advance(1.0)
    assert (net.topology.find("F/0").primary, net.topology.find("F/0").epoch) == ("F-1", 1)
    alone = net.ask("F-1")
    net.advance(0.1)
    assert net.reply(alone) == ["p-1:1"]
    come(net, "F-3")
    net.advance(2.0)
    replica_set = net.topology.find("F/0")
    assert (replica_set.primary, replica_set.epoch) == ("F-3", 2)


def test_a_handover_in_doubt_whose_successor_is_to_end_as_well_holds_nobody_up():
    net = Net(graph(op("p", FRONTEND))).start()
    net.etcd_away = True
    net.feed("F-1", Drain())
    net.feed("F-2", Drain())
    net.run()
    assert net.machines["F-1"].shards()[0].frozen
    net.etcd_away = False
    net.feed("F-1", CasUnknown())
    net.advance(1.0)
    assert not net.machines["F-1"].shards()[0].frozen
    waiting = net.ask("F-2", "k")
    net.advance(1.0)
    assert net.reply(waiting) == ["p-1:1"]
    assert net.topology.find("F/0").epoch == 1


def test_a_joiner_that_learns_of_its_admission_and_of_the_handover_at_once_takes_over():
    net = one_joins_later()
    net.kill("F-2")
    net.members()
    net.feed("F-1", Drain())
    net.advance(1.0)
    net.cut.add(("F-3", "etcd"))  # hears of topologies late
    net.dead.discard("F-3")
    net.members()
    net.feed("F-3", TopologyLearnt(net.topology, net.revision))
    net.advance(0.5)
    net.cut.clear()
    net.feed("F-3", TopologyLearnt(net.topology, net.revision))
    net.advance(1.0)
    assert net.stopped.get("F-3") is None
    replica_set = net.topology.find("F/0")
    assert (replica_set.primary, replica_set.epoch) == ("F-3", 2)
    handle = net.ask("F-3")
    net.advance(0.5)
    assert net.reply(handle) == ["p-1:1"]


def test_a_follower_that_is_to_end_says_so_while_clients_still_wait_there():
    net = Net(graph(op("p", FRONTEND))).start()
    net.op("p").auto = False
    waiting = net.ask("F-2")
    net.feed("F-2", Drain())
    net.run()
    assert net.sends(Leave, "F-2"), "or its owner, which is to end as well, would take it for a successor"
    net.advance(limits.leave_wait_s + 1.0)
    assert net.topology.find("F/0").in_sync == ()
    assert net.stopped == {}
    net.op("p").answer(RequestId(0, 0))
    net.run()
    assert net.reply(waiting) == ["p-1:1"]
    assert net.stopped == {"F-2": "drained"}
