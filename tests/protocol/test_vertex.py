"""Intake (sections 1, 3, 4): what an instance takes into its joins, what it refuses, and what it
acknowledges."""

from dataclasses import replace

from kit import R0, P, active_of, dep, graph, of, op, primary_of, rset, table, topo, value

from hams_protocol import limits
from hams_protocol.effects import Effect, StartBatch
from hams_protocol.events import PeerUp
from hams_protocol.graph import FRONTEND
from hams_protocol.messages import AskTopology, Completion, Deliver, Heartbeat, TokenAcks, TopologyNews


def sandwich():
    return graph(
        op("p", FRONTEND, to=("s",), stateful=True), op("s", "p", to=("q",)), op("q", "s", stateful=True)
    )


FIRST = topo(1, rset("p", "p-1", "p-2"), table("s", ("s-1", 1)), rset("q", "q-1"))
FAILED = topo(2, rset("p", "p-2", epoch=2, ends=((1, 9),)), table("s", ("s-1", 1)), rset("q", "q-1"))


def middle(topology=FIRST):
    return active_of(sandwich(), "s", "s-1", topology)


def acks(rig):
    return [
        ack.value_id for message in of(rig.after(2 * limits.ack_delay_s), TokenAcks) for ack in message.acks
    ]


def test_a_token_is_run_and_acknowledged_under_its_value_id():
    rig = middle()
    assert of(rig.token("p-1", value("p", R0, "p-1:1")), StartBatch)
    assert acks(rig) == ["p-1:1"]


def test_a_dependency_on_an_unknown_epoch_is_neither_accepted_nor_acknowledged_yet():
    rig = middle()
    effects = rig.token("x-1", value("p", R0, "p-2:1", dep("p", 2, 10)))
    assert of(effects, AskTopology)
    assert not of(effects, StartBatch)
    assert acks(rig) == []
    assert rig.get("x-1", Heartbeat(2)), "a peer that knows more is asked"
    rig = middle()
    rig.token("p-2", value("p", R0, "p-2:1", dep("p", 2, 10)), epoch=2)
    assert of(rig.get("p-2", TopologyNews(FAILED, 2)), StartBatch), "proxies pass it on to each other"
    assert acks(rig) == ["p-2:1"]


def test_an_orphan_is_dropped_without_an_acknowledgement():
    rig = middle(FAILED)
    assert not of(rig.token("p-2", value("p", R0, "p-1:1", dep("p", 1, 10)), epoch=2), StartBatch)
    assert acks(rig) == []


def test_a_deposed_owner_is_refused_and_told_why():
    rig = middle(FAILED)
    effects = rig.token("p-1", value("p", R0, "p-1:1", dep("p", 1, 5)), epoch=1)
    assert not of(effects, StartBatch)
    assert of(effects, TopologyNews, "p-1")


def test_a_peer_is_asked_once_for_all_tokens_that_wait_for_the_same_topology():
    rig = middle()
    rig.step(PeerUp("p-2"))

    def ask(n: int) -> list[AskTopology]:
        item = value("p", R0._replace(n=n), f"p-2:{n}", dep("p", 2, 10))
        return of(rig.token("p-2", item, epoch=2), AskTopology, "p-2")

    assert ask(0) == [AskTopology(1)]
    assert not any(ask(n) for n in range(1, 9))
    rig.after(limits.topology_again_s)
    assert ask(1) == [AskTopology(1)], "the question or its answer may have been lost"
    assert not ask(2)
    rig.step(PeerUp("p-2"))
    assert ask(2) == [AskTopology(1)], "so it may with the connection"


def test_a_deposed_owner_is_told_once_why_all_its_tokens_are_refused():
    rig = middle(FAILED)

    def told(n: int) -> list[TopologyNews]:
        item = value("p", R0._replace(n=n), f"p-1:{n}", dep("p", 1, 5))
        return of(rig.token("p-1", item, epoch=1), TopologyNews, "p-1")

    assert told(0)
    assert not told(1)
    assert of(rig.get("p-1", AskTopology(1)), TopologyNews, "p-1"), "who asks is answered"
    rig.after(limits.topology_again_s)
    assert told(1)
    rig.learn(replace(FAILED, generation=3))
    assert told(2), "a newer one is news"


def test_a_token_that_becomes_orphan_is_purged_so_that_its_successor_is_accepted():
    rig = middle()
    rig.token("p-1", value("p", R0, "p-1:1", dep("p", 1, 10)))
    (sent,) = of(rig.done(updated=False), Deliver, "q-1")
    rig.learn(FAILED)
    effects = rig.token("p-2", value("p", R0, "p-2:1", dep("p", 2, 10)), epoch=2)
    assert of(effects, StartBatch)
    (again,) = of(rig.done(updated=False), Deliver, "q-1")
    assert again.token.value_id != sent.token.value_id
    assert again.token.deps == dep("p", 2, 10)


def test_a_token_orphaned_while_it_runs_produces_nothing():
    rig = middle()
    rig.token("p-1", value("p", R0, "p-1:1", dep("p", 1, 10)))
    rig.learn(FAILED)
    assert not of(rig.done(updated=False), Deliver)


def test_nothing_is_taken_of_an_owner_that_the_topology_has_revoked_though_nobody_has_its_slot_yet():
    """Seeds 7237752, 7266616: one that had hung sent what it had made of a value that nobody could tell any
    more, before it heard that it was revoked. A join met two executions, and the client got an error."""
    rest = (rset("p", "p-1", "p-2"), rset("q", "q-1"))
    rig = primary_of(sandwich(), "q", topo(1, *rest, table("s", ("s-1", 1))))
    rig.learn(topo(2, *rest, table("s", (None, 1)), revoked=("s-1",)))
    effects = rig.token("s-1", value("s", R0, "s-1:1"), epoch=1)
    assert not of(effects, StartBatch)
    assert of(effects, TopologyNews, "s-1")
    rig.learn(topo(3, *rest, table("s", ("s-2", 2)), revoked=("s-1",)))
    assert of(rig.token("s-2", value("s", R0, "s-2:1"), epoch=2), StartBatch)


def test_a_duplicate_is_acknowledged_under_the_value_that_is_held():
    rig = middle()
    rig.token("p-1", value("p", R0, "p-1:1", dep("p", 1, 5)))
    rig.token("p-1", value("p", R0, "p-1:7", dep("p", 1, 5)))
    assert acks(rig) == ["p-1:1", "p-1:1"]


def test_a_complete_request_is_refused_for_ever():
    rig = middle()
    rig.get("F-1", Completion(((0, 1, ()),)))
    assert not of(rig.token("p-1", value("p", R0, "p-1:1")), StartBatch)


def test_completion_frees_everything_of_a_request():
    rig = middle()
    rig.token("p-1", value("p", R0, "p-1:1", dep("p", 1, 5)))
    rig.done(updated=False)
    assert len(rig.machine.joins) == len(rig.machine.outbox) == 1
    rig.get("F-1", Completion(((0, 1, ()),)))
    assert len(rig.machine.joins) == len(rig.machine.outbox) == 0


def test_outputs_of_a_stateless_operator_carry_the_pending_deps_of_their_inputs_only():
    rig = middle(FAILED)
    rig.token("p-2", value("p", R0, "p-2:1", dep("p", 1, 9)), epoch=2)
    assert of(rig.done(updated=False), Deliver)[0].token.deps == (), "durable entries are dropped"


def test_a_standby_neither_runs_nor_acknowledges():
    rig = active_of(sandwich(), "s", "s-2", FIRST)
    assert not of(rig.token("p-1", value("p", R0, "p-1:1")), StartBatch)
    assert acks(rig) == []


def test_what_cannot_be_judged_yet_is_bounded(monkeypatch):
    rig = middle()
    for number in range(limits.undecided_messages_max + 5):
        rig.token("p-2", value("p", R0._replace(n=number), f"p-2:{number}", dep("p", 2, 10)), epoch=2)
    assert len(rig.machine.undecided) == limits.undecided_messages_max


def test_what_cannot_be_judged_yet_is_bounded_in_bytes_too_and_the_oldest_comes_again(monkeypatch):
    monkeypatch.setattr(limits, "undecided_bytes_max", 30)
    rig = middle()

    def send(n: int, nbytes: int = 10) -> list[Effect]:
        payload = P(f"p-2:{n}", nbytes)
        item = value("p", R0._replace(n=n), f"p-2:{n}", dep("p", 2, 10), payload=payload)
        return rig.token("p-2", item, epoch=2)

    for number in range(5):
        send(number)
    assert len(rig.machine.undecided) == 3
    send(5, nbytes=31)
    assert len(rig.machine.undecided) == 1, "one is always held"
    rig.learn(FAILED)
    assert rig.units == (R0._replace(n=5),)
    rig.done(updated=False)
    assert of(send(0), StartBatch), "what was pushed out was not acknowledged, so it comes again"
    assert acks(rig) == ["p-2:5", "p-2:0"]
