"""Delivery (section 3): a token is sent again until the edge's present owner, in its present epoch, says that
it holds this very value."""

import pytest
from kit import R0, R1, dep, graph, of, op, rset, table, topo, value

from hams_protocol import limits
from hams_protocol.context import Context
from hams_protocol.graph import FRONTEND
from hams_protocol.knowledge import Knowledge
from hams_protocol.messages import Attempt, Deliver, TokenAck
from hams_protocol.outbox import Outbox


class Steps:
    """An outbox, each call a step of its own: it returns the effects of that step."""

    def __init__(self, knowledge, sending_epoch) -> None:
        self.ctx = Context()
        self.box = Outbox(self.ctx, knowledge, sending_epoch)

    def __len__(self) -> int:
        return len(self.box)

    def __getattr__(self, name):
        return getattr(self.box, name)

    def _step(self, now, call, *args):
        self.ctx.begin(now)
        call(*args)
        return self.ctx.out

    def put(self, target, token, now):
        return self._step(now, self.box.put, target, token)

    def tick(self, now):
        return self._step(now, self.box.tick)

    def owners_changed(self, now):
        return self._step(now, self.box.owners_changed)

    def resend_to(self, peer, now):
        return self._step(now, self.box.resend_to, peer)


def made() -> tuple[Knowledge, Steps]:
    data = graph(op("p", FRONTEND, to=("q",), stateful=True), op("q", "p", stateful=True))
    knowledge = Knowledge(data)
    knowledge.learn(topo(1, rset("p", "p-1"), rset("q", "q-1", "q-2")), 1)
    return knowledge, Steps(knowledge, lambda request: 1)


@pytest.fixture
def wire():
    return made()


def ack(value_id="p-1:1", epoch=1):
    token = value("p", R0, value_id)
    return TokenAck("p", "q", token.unit, value_id, epoch)


def again(outbox):
    return of(outbox.tick(10 * limits.resend_after_s), Deliver)


def test_a_token_is_sent_at_once_and_again_until_it_is_acknowledged(wire):
    _, outbox = wire
    assert of(outbox.put("q", value("p", R0, "p-1:1"), 0.0), Deliver, "q-1")
    assert outbox.tick(limits.resend_after_s / 2) == []
    assert len(again(outbox)) == 1
    outbox.acknowledge("q-1", ack())
    assert outbox.tick(100.0) == []


@pytest.mark.parametrize(("sender", "what"), [("q-1", ack("p-1:9")), ("q-1", ack(epoch=2)), ("q-2", ack())])
def test_an_acknowledgement_of_another_value_epoch_or_owner_does_not_count(wire, sender, what):
    _, outbox = wire
    outbox.put("q", value("p", R0, "p-1:1"), 0.0)
    outbox.acknowledge(sender, what)
    assert len(again(outbox)) == 1


def test_it_is_sent_again_without_what_has_become_durable_to_whomever(wire):
    knowledge, outbox = wire
    assert of(outbox.put("q", value("p", R0, "p-1:1", dep("p", 1, 3)), 0.0), Deliver)[0].token.deps
    knowledge.learn(topo(2, rset("p", "p-2", epoch=2, ends=((1, 3),)), rset("q", "q-1", "q-2")), 2)
    assert again(outbox)[0].token.deps == (), "who came late may never hear of that end"


def test_a_new_owner_has_acknowledged_nothing(wire):
    knowledge, outbox = wire
    outbox.put("q", value("p", R0, "p-1:1"), 0.0)
    outbox.acknowledge("q-1", ack())
    knowledge.learn(topo(2, rset("p", "p-1"), rset("q", "q-2", epoch=2, ends=((1, 0),)), revoked=("q-1",)), 2)
    (sent,) = of(outbox.owners_changed(1.0), Deliver, "q-2")
    assert sent.attempts == 1, "an owner died that had it"


def test_who_has_not_acknowledged_is_suspected_of_nothing_the_first_time(wire):
    knowledge, outbox = wire
    outbox.put("q", value("p", R0, "p-1:1"), 0.0)
    knowledge.learn(topo(2, rset("p", "p-1"), rset("q", "q-2", epoch=2, ends=((1, 0),)), revoked=("q-1",)), 2)
    (sent,) = of(outbox.owners_changed(1.0), Deliver, "q-2")
    assert sent.attempts == 0, "most acknowledgements are still on their way"
    knowledge.learn(
        topo(3, rset("p", "p-1"), rset("q", "q-3", epoch=3, ends=((1, 0), (2, 0))), revoked=("q-1", "q-2")), 3
    )
    (sent,) = of(outbox.owners_changed(1.0), Deliver, "q-3")
    assert sent.attempts == 1, "two in a row are suspicious"


def test_what_is_said_of_a_token_yet_to_come_is_remembered(wire):
    _, outbox = wire
    assert outbox.attempted("q-1", Attempt("p", "q", R0, (), 2, 7))
    (sent,) = of(outbox.put("q", value("p", R0, "p-1:1"), 0.0), Deliver)
    assert sent.attempts == 2


def announced(epoch):
    """q-1 is about to run R0 alone. One instance has died of it before."""
    return Attempt("p", "q", R0, (), 3, 7, epoch)


SET_OF_P = rset("p", "p-1")
FAILED_OVER = rset("q", "q-2", epoch=2, ends=((1, 0),))


def test_an_owner_that_dies_while_it_runs_a_token_alone_is_counted(wire):
    knowledge, outbox = wire
    outbox.put("q", value("p", R0, "p-1:1"), 0.0)
    assert outbox.attempted("q-1", announced(1))
    assert [sent.attempts for sent in of(outbox.resend_to("q-1", 0.5), Deliver)] == [2], "it has not died yet"
    knowledge.learn(topo(2, SET_OF_P, FAILED_OVER, revoked=("q-1",)), 2)
    assert [sent.attempts for sent in of(outbox.owners_changed(1.0), Deliver)] == [3]


def test_an_owner_that_is_replaced_alive_has_not_died_of_what_it_announced(wire):
    knowledge, outbox = wire
    outbox.put("q", value("p", R0, "p-1:1"), 0.0)
    outbox.attempted("q-1", announced(1))
    knowledge.learn(topo(2, SET_OF_P, rset("q", "q-2", "q-1", epoch=2, ends=((1, 0),))), 2)
    assert [sent.attempts for sent in of(outbox.owners_changed(1.0), Deliver)] == [2]
    knowledge.learn(topo(3, SET_OF_P, rset("q", "q-2", epoch=2, ends=((1, 0),)), revoked=("q-1",)), 3)
    outbox.owners_changed(2.0)
    assert [sent.attempts for sent in of(outbox.resend_to("q-2", 2.0), Deliver)] == [2]


def test_an_owner_that_began_another_epoch_has_given_up_what_it_announced_before(wire):
    knowledge, outbox = wire
    outbox.put("q", value("p", R0, "p-1:1"), 0.0)
    outbox.attempted("q-1", announced(1))
    knowledge.learn(topo(2, SET_OF_P, rset("q", "q-1", "q-2", epoch=2, ends=((1, 0),))), 2)
    assert [sent.attempts for sent in of(outbox.owners_changed(1.0), Deliver, "q-1")] == [2]
    knowledge.learn(topo(3, SET_OF_P, rset("q", "q-2", epoch=3, ends=((1, 0), (2, 0))), revoked=("q-1",)), 3)
    assert [sent.attempts for sent in of(outbox.owners_changed(2.0), Deliver, "q-2")] == [2]


def test_two_epochs_that_come_as_one_do_not_turn_an_announcement_into_a_death(wire):
    knowledge, outbox = wire
    outbox.put("q", value("p", R0, "p-1:1"), 0.0)
    outbox.attempted("q-1", announced(1))
    knowledge.learn(topo(3, SET_OF_P, rset("q", "q-2", epoch=3, ends=((1, 0), (2, 0))), revoked=("q-1",)), 3)
    assert [sent.attempts for sent in of(outbox.owners_changed(1.0), Deliver, "q-2")] == [2], (
        "it may have begun the epoch between them, and given the run up"
    )


def test_who_ran_a_token_alone_before_it_was_there_counts_only_if_it_died(wire):
    knowledge, outbox = wire
    assert outbox.attempted("q-1", announced(1))
    knowledge.learn(topo(2, SET_OF_P, FAILED_OVER, revoked=("q-1",)), 2)
    assert [sent.attempts for sent in of(outbox.put("q", value("p", R0, "p-1:1"), 0.0), Deliver)] == [3]


def test_who_announced_a_token_before_it_was_there_and_lives_is_not_counted(wire):
    knowledge, outbox = wire
    assert outbox.attempted("q-1", announced(1))
    (sent,) = of(outbox.put("q", value("p", R0, "p-1:1"), 0.0), Deliver)
    assert sent.attempts == 2
    knowledge.learn(topo(2, SET_OF_P, FAILED_OVER, revoked=("q-1",)), 2)
    assert [sent.attempts for sent in of(outbox.owners_changed(1.0), Deliver)] == [3]


def test_an_older_word_does_not_undo_one_that_came_before_the_token(wire):
    _, outbox = wire
    assert outbox.attempted("q-1", Attempt("p", "q", R0, (), 0, 8))
    outbox.put("q", value("p", R0, "p-1:1"), 0.0)
    assert outbox.attempted("q-1", Attempt("p", "q", R0, (), 2, 7)), (
        "late: it went by a connection that broke"
    )
    assert [sent.attempts for sent in of(outbox.resend_to("q-1", 1.0), Deliver)] == [0]


def test_who_does_not_own_a_token_yet_to_come_has_no_say_in_it(wire):
    _, outbox = wire
    assert not outbox.attempted("q-9", Attempt("p", "q", R0, (), 2, 7))
    (sent,) = of(outbox.put("q", value("p", R0, "p-1:1"), 0.0), Deliver)
    assert sent.attempts == 0


def test_the_same_owner_in_a_new_epoch_has_acknowledged_nothing(wire):
    knowledge, outbox = wire
    outbox.put("q", value("p", R0, "p-1:1"), 0.0)
    outbox.acknowledge("q-1", ack())
    knowledge.learn(topo(2, rset("p", "p-1"), rset("q", "q-1", epoch=2, ends=((1, 0),))), 2)
    assert of(outbox.owners_changed(1.0), Deliver, "q-1")


def test_what_a_broken_connection_may_have_lost_goes_out_when_it_stands_again(wire):
    _, outbox = wire
    outbox.put("q", value("p", R0, "p-1:1"), 0.0)
    outbox.put("q", value("p", R1, "p-1:2"), 0.0)
    outbox.acknowledge("q-1", ack())
    assert [item.token.request for item in of(outbox.resend_to("q-1", 1.0), Deliver)] == [R1]


def test_acknowledged_tokens_are_retained_until_their_request_completes(wire):
    knowledge, outbox = wire
    outbox.put("q", value("p", R0, "p-1:1"), 0.0)
    outbox.acknowledge("q-1", ack())
    assert len(outbox) == 1
    knowledge.completed.add([R0])
    outbox.drop_complete()
    assert len(outbox) == 0


def test_an_orphan_is_dropped_and_its_successor_sent(wire):
    knowledge, outbox = wire
    outbox.put("q", value("p", R0, "p-1:1", dep("p", 1, 8)), 0.0)
    knowledge.learn(topo(2, rset("p", "p-2", epoch=2, ends=((1, 7),)), rset("q", "q-1")), 2)
    outbox.purge()
    assert len(outbox) == 0
    assert of(outbox.put("q", value("p", R0, "p-2:1", dep("p", 2, 8)), 0.0), Deliver)


def test_a_resend_storm_is_bounded_per_tick(wire):
    _, outbox = wire
    for number in range(limits.resend_items_max + 10):
        outbox.put("q", value("p", R0._replace(n=number), f"p-1:{number}"), 0.0)
    assert len(again(outbox)) == limits.resend_items_max


def test_who_does_not_own_the_operator_any_more_sends_nothing(wire):
    knowledge, _ = wire
    outbox = Steps(knowledge, lambda request: None)
    assert outbox.put("q", value("p", R0, "p-1:1"), 0.0) == []


def test_a_target_without_owner_gets_it_once_it_has_one(wire):
    knowledge, outbox = wire
    knowledge.learn(topo(2, rset("p", "p-1"), rset("q", None), table("z")), 2)
    assert outbox.put("q", value("p", R0, "p-1:1"), 0.0) == []
    knowledge.learn(topo(3, rset("p", "p-1"), rset("q", "q-3")), 3)
    assert of(outbox.owners_changed(0.0), Deliver, "q-3")


def test_a_new_owner_is_not_told_of_dependencies_that_are_durable_by_now(wire):
    knowledge, outbox = wire
    outbox.put("q", value("p", R0, "p-1:1", dep("p", 1, 4)), 0.0)
    knowledge.learn(
        topo(2, rset("p", "p-1", epoch=2, ends=((1, 4),)), rset("q", "q-2", epoch=2, ends=((1, 0),))), 2
    )
    (sent,) = of(outbox.owners_changed(1.0), Deliver, "q-2")
    assert sent.token.deps == (), "it may never have heard of that end"
