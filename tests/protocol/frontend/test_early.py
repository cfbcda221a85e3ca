"""Frontends that hear of a failover later than their peers: nobody waits until a message is sent again."""

import gc
from dataclasses import replace

import pytest
from frontend_net import Net, P, graph, op

from hams_protocol.events import TopologyLearnt
from hams_protocol.frontend.live import Live
from hams_protocol.graph import FRONTEND, RecoverySpec, WhenUnprotected
from hams_protocol.messages import (
    AskDeterminants,
    ClientForward,
    Determinants,
    LogAppend,
    Meta,
    SlotAnswer,
    SlotQuery,
    TopologyNews,
)
from hams_protocol.topology import Slot, SlotTable, hand_over

TRIO = ("F-1", "F-2", "F-3")


def failed_over(late: str) -> Net:
    """F-2 owns the shard of F-1, which died; `late` hears nothing of etcd."""
    net = Net(graph(op("p", FRONTEND), replicas=3), TRIO).start()
    net.kill("F-1")
    net.cut |= {(late, "etcd")}
    net.fail_over(0, revoke=None, to="F-2")
    return net


@pytest.mark.parametrize(("late", "at", "kind"), [("F-2", "F-3", ClientForward), ("F-3", "F-2", LogAppend)])
def test_what_comes_before_the_topology_waits_for_that_and_not_to_be_sent_again(late, at, kind):
    net = failed_over(late)
    began = net.now
    handle = net.ask(at)
    net.run()
    assert net.reply(handle) == ["p-1:1"]
    assert net.now == began
    assert len(net.sends(kind, at)) >= 1


def handed_over(**spec: int) -> Net:
    """F-1 has handed the shard to F-2, and follows it; F-3 has not heard of that."""
    net = Net(graph(op("p", FRONTEND), replicas=2, **spec), TRIO).start(in_sync=False)
    net.commit(net.topology.with_set(replace(net.topology.find("F/0"), joining=("F-2",))))
    net.run()
    net.cut |= {("F-3", "etcd")}
    end = net.machines["F-1"]._owners[0].log.last
    net.commit(hand_over(net.topology, "F/0", "F-1", 1, "F-2", end))
    return net


def test_a_forward_from_who_is_behind_is_not_held_and_its_sender_is_told():
    """Held until this frontend owns the shard again, it would begin a request whose client has its answer."""
    net = handed_over()
    handle = net.ask("F-3")
    net.run()
    assert not len(net.machines["F-1"]._undecided)
    assert net.sends(TopologyNews, "F-1")
    assert net.reply(handle) == ["p-1:1"], "and asks the owner"


def test_a_forward_of_a_former_epoch_begins_nothing_in_a_later_one():
    net = handed_over()
    net.run()
    late = ClientForward(0, 0, 0, None, "d", Meta(), P("late"), epoch=1)
    net.deliver("F-3", "F-2", late)
    net.run()
    assert net.op("p").requests() == []
    net.deliver("F-3", "F-2", replace(late, epoch=2))
    net.run()
    assert len(net.op("p").requests()) == 1


def test_a_frontend_of_a_version_that_says_no_epoch_is_served():
    net = handed_over()
    net.run()
    net.deliver("F-3", "F-2", ClientForward(0, 0, 0, None, "d", Meta(), P("old")))
    net.run()
    assert len(net.op("p").requests()) == 1


def test_who_has_handed_a_shard_over_follows_before_it_hears_that_it_was_committed():
    net = Net(graph(op("p", FRONTEND), replicas=3), TRIO).start()
    owner = net.machines["F-1"]._owners[0]
    net.cut |= {("F-1", "etcd")}
    owner.frozen.hold(net.topology.generation)
    net.commit(hand_over(net.topology, "F/0", "F-1", 1, "F-2", owner.log.last))
    began = net.now
    handle = net.ask("F-3")
    net.run()
    assert (net.reply(handle), net.now) == (["p-1:1"], began)


def test_a_joiner_that_asks_before_the_owner_knows_gets_its_copy_as_soon_as_that_does():
    block = RecoverySpec(when_unprotected=WhenUnprotected.BLOCK)
    net = Net(graph(op("p", FRONTEND), replicas=3, recovery=block), TRIO).start()
    net.kill("F-1")
    end = min(net.freeze(0).values())
    net.cut |= {("F-2", "etcd")}
    changed = replace(
        net.topology.find("F/0"), epoch=2, primary="F-2", in_sync=(), joining=("F-3",), ends=((1, end),)
    )
    net.commit(net.topology.with_set(changed))
    net.cut.clear()
    began = net.now
    net.run()
    handle = net.ask("F-2")
    net.run()
    assert (net.reply(handle), net.now) == (["p-1:1"], began)


@pytest.mark.parametrize("known", [False, True])
def test_a_shards_owner_to_be_answers_a_slots_new_owner_as_soon_as_it_owns_it(known):
    net = Net(graph(op("p", FRONTEND))).start()
    net.kill("F-1")
    if known:
        net.commit(replace(net.topology, tables=(SlotTable("p", (Slot(2, "p-2"),)),)))
    net.deliver("p-2", "F-2", SlotQuery("p", 0, 2))
    assert not net.sends(SlotAnswer, "F-2")
    net.fail_over(0, revoke=None)
    net.run()
    assert [target for _, target, _ in net.sends(SlotAnswer, "F-2")] == ["p-2"]


def test_what_an_answered_request_held_goes_at_once_and_not_by_the_next_collection_of_garbage():
    net = Net(graph(op("p", FRONTEND))).start()
    net.op("p").auto = False
    net.ask("F-1")
    net.run()
    (live,) = net.machines["F-1"]._owners[0].live.values()
    admit = live.admit
    del live
    gc.collect()
    gc.disable()
    try:
        net.op("p").answer(net.op("p").requests()[0])
        net.run()
        left = [item for item in gc.get_objects() if type(item) is Live and item.admit is admit]
    finally:
        gc.enable()
    assert not left


def test_a_client_whose_request_was_held_waits_no_longer_than_it_said():
    net = failed_over("F-2")
    net.hold = lambda sender, target, message: isinstance(message, TopologyNews)
    net.ask("F-3", budget=4.0)
    net.run()
    net.cut |= {("F-3", "F-2")}
    net.advance(3.0)
    net.cut.clear()
    net.feed("F-2", TopologyLearnt(net.topology, net.revision))
    net.run()
    assert [item.token.meta.budget_s for item in net.op("p").deliveries()] == [pytest.approx(1.0, abs=0.01)]


def test_a_forward_to_an_owner_that_is_frozen_waits_for_the_end_of_that():
    net = Net(graph(op("p", FRONTEND))).start()
    net.machines["F-1"]._owners[0].frozen.hold(net.topology.generation)
    began = net.now
    handle = net.ask("F-2")
    net.run()
    assert net.op("p").requests() == []
    net.commit(net.topology)
    net.run()
    assert (net.reply(handle), net.now) == (["p-1:1"], began)


def test_a_forward_without_an_epoch_is_never_held():
    net = Net(graph(op("p", FRONTEND))).start()
    net.machines["F-1"]._owners[0].frozen.hold(net.topology.generation)
    net.deliver("F-2", "F-1", ClientForward(0, 7, 0, None, "d", Meta(), P("old")))
    assert not len(net.machines["F-1"]._undecided)


def test_a_joiner_that_is_named_in_an_epoch_that_goes_on_is_heard_once_the_owner_knows():
    net = Net(graph(op("p", FRONTEND), replicas=2), TRIO).start(in_sync=False)
    net.cut |= {("F-1", "etcd")}
    net.commit(net.topology.with_set(replace(net.topology.find("F/0"), joining=("F-2",))))
    net.cut.clear()
    began = net.now
    net.run()
    assert (net.topology.find("F/0").in_sync, net.now) == (("F-2",), began)


def test_a_frontend_without_another_shard_holds_no_question_that_it_has_answered():
    net = Net(graph(op("p", FRONTEND)), ("F-1",)).start()
    net.deliver("p-2", "F-1", SlotQuery("p", 0, 2))
    assert len(net.sends(SlotAnswer, "F-1")) == 1
    assert not len(net.machines["F-1"]._undecided)


def test_an_owner_says_what_it_knows_of_versions_once_it_knows_the_generation():
    net = Net(graph(op("p", FRONTEND))).start()
    net.deliver("p-2", "F-1", AskDeterminants("p", 2, 0, net.topology.generation + 1))
    net.run()
    assert not net.sends(Determinants, "F-1")
    net.commit(net.topology)
    net.run()
    assert [target for _, target, _ in net.sends(Determinants, "F-1")] == ["p-2"]
