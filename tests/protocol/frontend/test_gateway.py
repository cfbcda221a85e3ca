"""Clients at any frontend: keys, conflicts, expiry, bounds, deadlines, forwarding (section 5; api.md, section
3)."""

import zlib
from dataclasses import replace

import pytest
from frontend_net import Net, P, graph, op

from hams_protocol import limits
from hams_protocol.effects import NoteLog, NotServed
from hams_protocol.events import CasUnknown, Drain, Member, MembersChanged, PeerDown, Received, TopologyLearnt
from hams_protocol.graph import FRONTEND
from hams_protocol.ids import RequestId
from hams_protocol.keys import scoped
from hams_protocol.messages import (
    ClientForward,
    ClientForwardAnswer,
    ClientForwardHeld,
    Health,
    LogAck,
    Meta,
    ModelError,
    Probe,
    ProbeAnswer,
    RoleReport,
)

R0 = RequestId(0, 0)
BOTH = ("F-1", "F-2")


def test_a_key_on_two_frontends_has_one_effect_and_one_reply():
    net = Net(graph(op("p", FRONTEND))).start()
    handles = [net.ask(name, "k") for name in ("F-1", "F-2", "F-2", "F-1")]
    net.run()
    handles.append(net.ask("F-2", "k"))
    net.run()
    assert [net.reply(handle) for handle in handles] == [["p-1:1"]] * 5
    assert net.op("p").requests() == [R0]


def test_a_duplicate_that_comes_while_the_first_runs_waits_for_its_reply():
    net = Net(graph(op("p", FRONTEND))).start()
    net.op("p").durable = False
    handles = [net.ask(name, "k") for name in BOTH]
    net.run()
    assert [net.reply(handle) for handle in handles] == [None, None]
    net.op("p").announce(1)
    net.run()
    assert [net.reply(handle) for handle in handles] == [["p-1:1"]] * 2


def test_a_key_is_known_before_its_entry_is_committed():
    net = Net(graph(op("p", FRONTEND))).start()
    net.hold = lambda sender, target, message: isinstance(message, LogAck)
    handles = [net.ask("F-1", "k"), net.ask("F-1", "k"), net.ask("F-1", "k", "other")]
    net.run()
    assert net.reply(handles[2]) == 409
    net.let_go()
    assert [net.reply(handle) for handle in handles[:2]] == [["p-1:1"]] * 2


@pytest.mark.parametrize("name", BOTH)
def test_another_payload_under_the_same_key_is_a_conflict(name):
    net = Net(graph(op("p", FRONTEND))).start()
    net.ask("F-1", "k")
    net.run()
    handle = net.ask(name, "k", "other")
    net.run()
    assert net.answers[handle] == NotServed(409, "idempotency key 'k' was used with another payload")


def test_clients_with_other_credentials_never_meet_in_a_key():
    """Neither is told the other's reply, nor that there is one; wherever each comes, its own key is known."""
    net = Net(graph(op("p", FRONTEND))).start()
    handles = [
        net.ask(name, scoped(scope, "k"), digest)
        for name in BOTH
        for scope, digest in (("alice", "d"), ("bob", "other"))
    ]
    net.run()
    assert [net.reply(handle) for handle in handles] == [["p-1:1"], ["p-1:2"]] * 2


@pytest.mark.parametrize("killed", [False, True])
def test_what_was_logged_before_clients_were_told_apart_is_not_executed_again(killed):
    net = Net(graph(op("p", FRONTEND), replies_kept=2)).start()
    for key in ("k0", "k1", "k2"):
        net.ask("F-1", key)
        net.run()
    if killed:
        net.advance(0.1)
        net.kill("F-1")
        net.fail_over(0, revoke="F-1")
    handles = [net.ask("F-2", scoped("alice", key)) for key in ("k0", "k1", "k2")]
    net.run()
    assert [net.reply(handle) for handle in handles] == [410, ["p-1:2"], ["p-1:3"]]
    handle = net.ask("F-2", scoped("alice", "k2"), "other")
    net.run()
    assert net.answers[handle] == NotServed(409, "idempotency key 'k2' was used with another payload")
    assert len(net.notes(NoteLog)) == 3


def test_requests_without_key_are_never_taken_for_one_another():
    net = Net(graph(op("p", FRONTEND))).start()
    handles = [net.ask(name) for name in ("F-1", "F-1", "F-2", "F-2")]
    net.run()
    assert len({str(net.reply(handle)) for handle in handles}) == 4


def test_an_error_is_a_reply_like_any_other():
    net = Net(graph(op("p", FRONTEND))).start()
    net.op("p").auto = False
    first = net.ask("F-1", "k")
    net.run()
    from hams_protocol.messages import Kind

    net.op("p").answer(R0, Kind.ERROR, error=ModelError("p", "boom"), payload=None)
    net.run()
    again = net.ask("F-2", "k")
    net.run()
    assert net.reply(first) == net.reply(again) == ModelError("p", "boom")


def test_a_key_older_than_the_replies_kept_is_refused_as_expired():
    net = Net(graph(op("p", FRONTEND), replies_kept=3)).start()
    for number in range(5):
        net.ask("F-1", f"k{number}")
        net.run()
    assert [net.reply(net.ask("F-1", f"k{number}")) for number in range(5)] == [
        410,
        410,
        ["p-1:3"],
        ["p-1:4"],
        ["p-1:5"],
    ]
    net.advance(0.1)
    net.kill("F-1")
    net.fail_over(0, revoke="F-1")
    assert [net.reply(net.ask("F-2", f"k{number}")) for number in range(5)] == [
        410,
        410,
        ["p-1:3"],
        ["p-1:4"],
        ["p-1:5"],
    ]


def test_replies_kept_are_bounded_in_bytes_too():
    net = Net(graph(op("p", FRONTEND), replies_kept_bytes=25)).start()
    for number in range(4):
        net.ask("F-1", f"k{number}")
        net.run()
    assert [net.reply(net.ask("F-1", f"k{number}")) for number in range(4)] == [
        410,
        410,
        ["p-1:3"],
        ["p-1:4"],
    ]


def test_expired_keys_are_remembered_up_to_a_bound(monkeypatch):
    monkeypatch.setattr(limits, "keys_expired_max", 2)
    net = Net(graph(op("p", FRONTEND), replies_kept=1)).start()
    for number in range(4):
        net.ask("F-1", f"k{number}")
        net.run()
    assert net.reply(net.ask("F-1", "k2")) == 410
    handle = net.ask("F-1", "k0")
    net.run()
    assert net.reply(handle) == ["p-1:5"], "so old that it is a new key"


def test_requests_without_key_leave_nothing_behind():
    net = Net(graph(op("p", FRONTEND))).start()
    for _ in range(50):
        net.ask("F-1")
        net.ask("F-2")
        net.run()
    state = net.machines["F-1"]._owners[0].log.state
    assert len(state.keyed) == 0
    assert len(state.unkeyed) <= 3


def test_too_many_open_requests_are_refused_and_nothing_is_logged():
    net = Net(graph(op("p", FRONTEND), max_in_flight=2)).start()
    net.op("p").auto = False
    handles = [net.ask("F-1"), net.ask("F-1"), net.ask("F-1", "k"), net.ask("F-2")]
    net.run()
    assert [net.reply(handle) for handle in handles] == [None, None, 429, 429]
    refused = net.answers[handles[2]]
    assert isinstance(refused, NotServed)
    assert refused.retry_after_s == limits.retry_after_s
    net.op("p").answer(R0)
    net.run()
    again = net.ask("F-1", "k")
    net.run()
    assert net.op("p").requests()[-1] == RequestId(0, 2)
    assert net.reply(again) is None


def test_too_many_open_bytes_are_refused():
    net = Net(graph(op("p", FRONTEND), max_in_flight_bytes=100)).start()
    net.op("p").auto = False
    assert net.reply(net.ask("F-1", payload=P("big", 90))) is None
    assert net.reply(net.ask("F-1", payload=P("big", 11))) == 429
    assert net.reply(net.ask("F-1", payload=P("big", 10))) is None


def test_too_many_waiting_clients_are_refused(monkeypatch):
    monkeypatch.setattr(limits, "requests_waiting_max", 2)
    net = Net(graph(op("p", FRONTEND))).start()
    net.op("p").auto = False
    assert [net.reply(net.ask("F-1")) for _ in range(3)] == [None, None, 429]


def test_the_deadline_is_a_504_and_the_request_goes_on():
    net = Net(graph(op("p", FRONTEND))).start()
    net.op("p").durable = False
    handle = net.ask("F-2", "k", budget=1.0)
    net.run()
    net.advance(1.1)
    assert net.reply(handle) == 504
    net.op("p").announce(1)
    net.run()
    again = net.ask("F-2", "k")
    net.run()
    assert net.reply(again) == ["p-1:1"]
    assert net.op("p").requests() == [R0]


def test_without_a_budget_the_graphs_timeout_counts():
    net = Net(graph(op("p", FRONTEND), request_timeout_s=2)).start()
    net.op("p").auto = False
    handle = net.ask("F-1", budget=0.0)
    net.advance(1.9)
    assert net.reply(handle) is None
    net.advance(0.2)
    assert net.reply(handle) == 504


def test_a_client_that_is_gone_gets_no_answer():
    net = Net(graph(op("p", FRONTEND))).start()
    net.op("p").auto = False
    handle = net.ask("F-1")
    net.run()
    net.gone("F-1", handle)
    assert net.machines["F-1"].waiting_clients == 0
    net.op("p").answer(R0)
    net.advance(60.0)
    assert net.reply(handle) is None


def test_requests_without_key_stay_with_a_frontend_that_owns_a_shard():
    net = Net(graph(op("p", FRONTEND), shards=2)).start()
    for name in ("F-1", "F-1", "F-2"):
        net.ask(name)
    net.run()
    assert [request.shard for request in net.op("p").requests()] == [0, 0, 1]


def test_a_key_goes_home_whatever_the_frontend():
    net = Net(graph(op("p", FRONTEND), shards=2)).start()
    for key in "abcdef":
        for name in BOTH:
            net.ask(name, key)
    net.run()
    assert [request.shard for request in net.op("p").requests()] == [
        zlib.crc32(key.encode()) % 2 for key in "abcdef"
    ]


def test_a_forwarded_request_is_asked_for_without_its_payload_and_sent_again_if_it_is_not_there():
    net = Net(graph(op("p", FRONTEND))).start()
    net.op("p").auto = False
    net.cut.add(("F-2", "F-1"))
    handle = net.ask("F-2")
    net.run()
    net.cut.clear()
    net.advance(limits.resend_after_s + 0.01)
    forwards = [message for _, _, message in net.sends(ClientForward, "F-2")]
    assert [message.payload is None for message in forwards] == [False, True, False]
    assert net.op("p").requests() == [R0]
    net.advance(limits.resend_after_s)
    assert net.sends(ClientForward, "F-2")[-1][2].payload is None
    assert net.sends(ClientForwardHeld, "F-1")[-1][2].held
    net.op("p").answer(R0)
    net.run()
    assert net.reply(handle) == ["p-1:1"]


def test_a_lost_answer_is_asked_for_again():
    net = Net(graph(op("p", FRONTEND))).start()
    lost = []
    net.hold = lambda sender, target, message: (
        isinstance(message, ClientForwardAnswer) and not lost and not lost.append(message)
    )
    handle = net.ask("F-2")
    net.run()
    assert net.reply(handle) is None
    net.advance(0.3)
    assert net.reply(handle) == ["p-1:1"]
    assert net.op("p").requests() == [R0]


def test_a_late_copy_of_a_settled_request_has_no_effect():
    net = Net(graph(op("p", FRONTEND))).start()
    net.ask("F-2")
    net.run()
    copy = net.sends(ClientForward, "F-2")[0][2]
    for _ in range(3):
        net.ask("F-2")
        net.run()
    net.feed("F-1", Received("F-2", copy))
    net.run()
    assert len(net.op("p").requests()) == 4


def test_without_an_owner_of_the_home_shard_a_key_is_not_served():
    net = Net(graph(op("p", FRONTEND)))
    from hams_protocol.topology import ReplicaSet, Topology

    net.commit(Topology(0, (ReplicaSet("p", 1, "p-1"),)))
    assert net.answers[net.ask("F-1", "k")] == NotServed(503, "no frontend owns the request's shard")
    assert net.reply(net.ask("F-1")) == 503
    assert not net.machines["F-1"].ready


def test_a_draining_frontend_answers_its_clients_then_hands_its_shard_over():
    net = Net(graph(op("p", FRONTEND))).start()
    net.op("p").auto = False
    handle = net.ask("F-1")
    open_elsewhere = net.ask("F-2", "k")
    net.run()
    net.feed("F-1", Drain())
    net.deliver("manager", "F-1", Probe(1))
    assert not net.machines["F-1"].ready
    role = RoleReport("F/0", "primary", 1, 2, True)
    assert net.manager[-1] == ("F-1", ProbeAnswer(1, Health.HEALTHY, net.topology.generation, (role,)))
    net.op("p").answer(R0)
    net.advance(0.3)
    assert net.reply(handle) == ["p-1:1"]
    replica_set = net.topology.find("F/0")
    assert (replica_set.primary, replica_set.epoch, replica_set.in_sync) == ("F-2", 2, ("F-1",)), (
        "its successor may have died just now"
    )
    net.op("p").answer(RequestId(0, 1))
    net.run()
    assert net.reply(open_elsewhere) == ["p-1:2"]
    assert net.stopped == {}
    net.advance(limits.leave_wait_s)
    assert net.stopped == {"F-1": "drained"}, "nobody came to take its place"
    assert [item.request for item in net.notes(NoteLog)] == [R0, RequestId(0, 1)], "nothing is logged again"


def test_who_has_handed_its_shard_over_is_let_go_once_somebody_else_holds_the_log():
    net = Net(graph(op("p", FRONTEND)), ("F-1", "F-2", "F-3"))
    net.dead.add("F-3")
    net.start(in_sync=False)
    net.join_all()
    net.run()
    net.feed("F-1", Drain())
    net.advance(0.3)
    assert net.topology.find("F/0").in_sync == ("F-1",)
    net.dead.discard("F-3")
    net.members()
    net.advance(1.0)
    assert net.topology.find("F/0").in_sync == ("F-3",), (
        "called by the new owner, in sync, and then the old one left"
    )
    assert net.stopped == {"F-1": "drained"}


def test_two_that_are_to_end_do_not_hand_a_shard_to_and_fro():
    net = Net(graph(op("p", FRONTEND))).start()
    net.feed("F-1", Drain())
    net.feed("F-2", Drain())
    net.advance(limits.leave_wait_s + 2.0)
    assert net.topology.find("F/0").epoch <= 2
    assert net.stopped == {}


def test_a_follower_that_is_to_end_asks_to_be_let_go_and_may_be_promoted_meanwhile():
    net = Net(graph(op("p", FRONTEND))).start()
    net.feed("F-2", Drain())
    net.advance(1.0)
    assert net.stopped == {}
    net.dead.add("F-1")
    net.fail_over(0, revoke="F-1", to="F-2")
    net.run()
    assert net.machines["F-2"].shards()[0].role == "primary"


def test_a_shard_is_handed_over_only_to_who_holds_the_whole_log():
    net = Net(graph(op("p", FRONTEND))).start()
    net.op("p").auto = False
    net.ask("F-2", "k")
    net.hold = lambda sender, target, message: isinstance(message, LogAck)
    net.run()
    net.feed("F-1", Drain())
    net.advance(1.0)
    assert net.topology.find("F/0").primary == "F-1"
    net.let_go()
    net.advance(0.5)
    assert net.topology.find("F/0").primary == "F-2"


def test_an_owner_whose_handover_is_in_doubt_commits_nothing():
    net = Net(graph(op("p", FRONTEND))).start()
    net.etcd_away = True
    net.feed("F-1", Drain())
    net.run()
    late = net.ask("F-2", "k")
    net.advance(1.0)
    assert net.op("p").deliveries() == []
    net.feed("F-1", CasUnknown())
    net.advance(1.0)
    assert net.op("p").deliveries() == []
    net.etcd_away = False
    net.commit(net.proposals[-1][1])
    net.advance(0.5)
    assert net.op("p").requests() == [R0]
    assert net.reply(late) is None or net.reply(late) == ["p-1:1"]


def test_a_draining_frontend_without_a_shard_stops():
    net = Net(graph(op("p", FRONTEND)), ("F-1", "F-2", "F-3")).start(in_sync=False)
    net.feed("F-3", Drain())
    assert net.stopped == {"F-3": "drained"}


def test_the_only_frontend_has_nobody_to_wait_for():
    net = Net(graph(op("p", FRONTEND), replicas=1), ("F-1",)).start()
    net.feed("F-1", Drain())
    assert net.stopped == {"F-1": "drained"}


def test_the_settled_tickets_of_a_frontend_that_is_gone_are_dropped():
    net = Net(graph(op("p", FRONTEND), replicas=3), ("F-1", "F-2", "F-3")).start()
    net.ask("F-3")
    net.run()
    state = net.machines["F-1"]._owners[0].log.state
    assert len(state.unkeyed) == 1
    net.members()
    assert len(state.unkeyed) == 1
    net.kill("F-3")
    net.members()
    assert len(state.unkeyed) == 1, "it may only be out of reach"
    net.feed("F-1", PeerDown("F-3", refused=True))
    net.members()
    assert len(state.unkeyed) == 0


def _with_a_bystander() -> Net:
    """F-3 has no part in the shard of F-1 and F-2."""
    net = Net(graph(op("p", FRONTEND)), ("F-1", "F-2", "F-3")).start(in_sync=False)
    net.commit(net.topology.with_set(replace(net.topology.find("F/0"), joining=("F-2",))))
    net.run()
    assert net.topology.find("F/0").in_sync == ("F-2",)
    return net


def _cut_off(net: Net) -> None:
    """F-3 is out of reach of everybody and loses its lease, as if it were gone."""
    for other in ("F-1", "F-2"):
        net.cut |= {(other, "F-3"), ("F-3", other)}
        net.feed(other, PeerDown("F-3"))
        net.feed("F-3", PeerDown(other))
    net.cut.add(("F-3", "etcd"))
    gone = [Member(name, FRONTEND, "") for name in ("F-1", "F-2")]
    net.feed_all(MembersChanged((*gone, Member("p-1", "p", ""))))


def _come_back(net: Net) -> None:
    net.cut.clear()
    net.members()
    net.feed("F-3", TopologyLearnt(net.topology, net.revision))
    for other in sorted({"F-1", "F-2"} - net.dead):
        net.revive_link("F-3", other)
    net.run()


def test_who_was_taken_for_gone_and_comes_back_gets_the_reply_that_was_lost_with_its_connection():
    net = _with_a_bystander()
    net.hold = lambda sender, target, message: isinstance(message, ClientForwardAnswer)
    handle = net.ask("F-3")
    net.run()
    net.held_back.clear()
    net.hold = lambda sender, target, message: False
    _cut_off(net)
    net.advance(1.0)
    assert net.reply(handle) is None
    _come_back(net)
    assert net.reply(handle) == ["p-1:1"]
    assert len(net.op("p").requests()) == 1, "executed once"


def test_who_was_taken_for_gone_and_comes_back_gets_the_reply_to_what_was_open_of_a_new_owner_too():
    net = _with_a_bystander()
    net.op("p").auto = False
    handle = net.ask("F-3")
    net.run()
    net.ask("F-1")
    net.advance(1.0)
    assert net.machines["F-2"]._followers[0].log.state.tickets.find("F-3", 0) == 0
    _cut_off(net)
    net.kill("F-1")
    net.fail_over(0, revoke="F-1", to="F-2")
    net.op("p").answer(R0)
    net.advance(1.0)
    assert net.reply(handle) is None
    _come_back(net)
    net.advance(1.0)
    assert net.reply(handle) == ["p-1:1"]
    assert net.op("p").requests() == [R0, RequestId(0, 1)], "executed once"


def test_the_meta_of_a_request_is_handed_on():
    net = Net(graph(op("p", FRONTEND))).start()
    meta = Meta((("temperature", 0.5),), "00-trace", 5.0)
    net.ask("F-2", meta=meta)
    net.run()
    got = net.op("p").deliveries()[0].token.meta
    assert (got.parameters, got.trace, got.hops) == (meta.parameters, meta.trace, 0)
    assert 0 < got.budget_s <= 5.0


def test_the_first_request_of_a_graph_waits_until_the_topology_says_that_there_is_one():
    net = Net(graph(op("p", FRONTEND))).start()
    net.commit(replace(net.topology, untouched=True))
    net.etcd_away = True
    handle = net.ask("F-2", "k")
    net.run()
    assert not net.notes(NoteLog), "a lost log must have been empty while the topology says so"
    net.etcd_away = False
    net.feed("F-2", CasUnknown())
    net.advance(2 * limits.propose_retry_s)
    net.run()
    assert net.reply(handle) == ["p-1:1"]
    assert not net.topology.untouched
    proposed = len(net.proposals)
    net.ask("F-1", "other")
    net.run()
    assert len(net.proposals) == proposed, "it is said once"
