"""Deadlines (section 1): what is left of a request's budget falls while it waits, is sent again, or changes
hands."""

from dataclasses import replace

import pytest
from kit import R0, R1, P, Rig, active_of, graph, of, op, primary_of, rset, table, topo, value

from hams_protocol import limits
from hams_protocol.deadlines import Deadlines
from hams_protocol.graph import FRONTEND
from hams_protocol.ids import RequestId, UnitId
from hams_protocol.knowledge import Knowledge
from hams_protocol.messages import (
    AskCopy,
    Completion,
    Consumed,
    Deliver,
    Meta,
    RecordAck,
    SlotAnswer,
    SlotQuery,
    StateCopy,
    StateRecord,
    Token,
)
from hams_protocol.stateful.machine import StatefulMachine

CHAIN = graph(op("s", FRONTEND, to=("q",)), op("q", "s", stateful=True))
ROLES = topo(1, table("s", ("s-1", 1)), rset("q", "q-1", "q-2"))


def asked(budget_s: float, request: RequestId = R0, source: str = FRONTEND, name: str = "0/0") -> Token:
    return value(source, request, name, meta=Meta(budget_s=budget_s))


def budgets(effects: list[object]) -> list[float]:
    return [item.token.meta.budget_s for item in of(effects, Deliver)]


def stateless() -> Rig:
    return active_of(CHAIN, "s", "s-1", ROLES)


def test_what_has_waited_and_run_here_is_handed_on_with_what_is_left():
    rig = stateless()
    rig.token("F-1", asked(1.0))
    rig.now += 0.3
    assert budgets(rig.done()) == [pytest.approx(0.7)]


def test_what_is_sent_again_carries_what_is_left_then():
    rig = stateless()
    rig.token("F-1", asked(1.0))
    rig.now += 0.1
    assert budgets(rig.done()) == [pytest.approx(0.9)]
    assert budgets(rig.after(limits.resend_after_s)) == [pytest.approx(0.9 - limits.resend_after_s)]
    assert budgets(rig.after(5.0)) == [limits.hop_budget_min_s], "it is never none: that would be for ever"


def test_a_request_without_a_deadline_has_none_anywhere():
    rig = stateless()
    rig.token("F-1", asked(0.0))
    rig.now += 3.0
    assert budgets(rig.done()) == [0.0]
    assert budgets(rig.after(limits.resend_after_s)) == [0.0]


def test_the_earliest_end_that_was_heard_of_counts():
    join = graph(op("s", FRONTEND, to=("q",)), op("t", FRONTEND, to=("q",)), op("q", "s", "t", stateful=True))
    roles = topo(1, table("s", ("s-1", 1)), table("t", ("t-1", 1)), rset("q", "q-1"))
    rig = primary_of(join, "q", roles)
    rig.token("s-1", asked(1.0, source="s", name="s:1"))
    rig.now += 0.2
    rig.token("t-1", asked(0.5, source="t", name="t:1"))
    rig.now += 0.1
    assert budgets(rig.run()) == [pytest.approx(0.4)]


def test_the_budget_of_a_token_that_cannot_be_judged_yet_counts_from_its_arrival():
    rig = stateless()
    rig.token("F-1", asked(1.0), epoch=2)
    rig.now += 0.4
    rig.learn(
        topo(
            2,
            table("s", ("s-1", 1)),
            rset("q", "q-1", "q-2"),
            rset("F/0", "F-1", epoch=2, ends=((1, 0),)),
        )
    )
    assert budgets(rig.done()) == [pytest.approx(0.6)]


def test_a_promoted_backup_hands_on_what_was_left_when_it_got_its_outputs():
    rig = Rig(StatefulMachine(CHAIN, "q", "q-2"))
    rig.ready(P("fresh"))
    rig.learn(topo(1, table("s", ("s-1", 1)), rset("q", "q-1", joining=("q-2",))))
    rig.get("q-1", StateCopy("q", 1, 0, (), Completion(()), "", P("state 0")))
    rig.learn(topo(2, table("s", ("s-1", 1)), rset("q", "q-1", "q-2")))
    out = asked(0.8, R1, "q", "q-1:1")
    units = (Consumed(UnitId(R1, ()), 1, out.value_id, ((FRONTEND, out),), ()),)
    rig.get("q-1", StateRecord("q", 1, 1, 0, (), units, "c1", P("state 1")))
    rig.now += 0.5
    roles = (table("s", ("s-1", 1)), rset("q", "q-2", epoch=2, ends=((1, 1),)))
    assert budgets(rig.learn(topo(3, *roles, revoked=("q-1",)))) == [pytest.approx(0.3)]


def test_a_record_says_what_is_left_when_it_leaves_and_that_is_what_its_receiver_counts_from():
    rig = primary_of(CHAIN, "q", ROLES)
    rig.get("q-2", RecordAck("q", 1, 0, 0))
    rig.token("s-1", asked(1.0, source="s", name="s-1:1"))
    rig.want()
    effects = rig.done()
    rig.now += 0.4
    (record,) = of(rig.capture(effects), StateRecord, "q-2")
    assert record.left_s == (pytest.approx(0.6),)
    backup = Rig(StatefulMachine(CHAIN, "q", "q-2"))
    backup.ready(P("fresh"))
    backup.learn(topo(1, table("s", ("s-1", 1)), rset("q", "q-1", joining=("q-2",))))
    backup.get("q-1", StateCopy("q", 1, 0, (), Completion(()), "", P("state 0")))
    backup.learn(topo(2, table("s", ("s-1", 1)), rset("q", "q-1", "q-2")))
    backup.get("q-1", record)
    backup.now += 0.5
    roles = (table("s", ("s-1", 1)), rset("q", "q-2", epoch=2, ends=((1, 1),)))
    assert budgets(backup.learn(topo(3, *roles, revoked=("q-1",)))) == [pytest.approx(0.1)]


def test_a_copy_tells_what_is_left_when_it_leaves():
    rig = primary_of(CHAIN, "q", topo(1, table("s", ("s-1", 1)), rset("q", "q-1", joining=("q-2",))))
    rig.token("s-1", asked(1.0, source="s", name="s-1:1"))
    rig.run()
    rig.now += 0.4
    (copy,) = of(rig.get("q-2", AskCopy("q", 1, -1, 1)), StateCopy)
    assert [unit.meta.budget_s for unit in copy.units] == [pytest.approx(0.6)]


def test_nothing_is_left_of_a_budget_whose_end_was_never_learnt_here():
    """From a checkpoint nobody knows how old it is: too little is better than too much."""
    deadlines = Knowledge(CHAIN).deadlines
    assert deadlines.meta(Meta(budget_s=20.0), R0, 5.0).budget_s == limits.hop_budget_min_s
    assert deadlines.meta(Meta(), R0, 5.0).budget_s == 0.0, "it has none"


def test_who_goes_on_under_a_fresh_id_hands_on_what_is_left():
    rig = primary_of(CHAIN, "q", topo(1, table("s", ("s-1", 1)), rset("q", "q-1")))
    rig.token("s-1", asked(1.0, source="s", name="s-1:1"))
    rig.run()
    roles = (table("s", ("s-1", 1)), rset("q", "q-1"))
    rig.learn(topo(2, *roles, revoked=("q-1",)))
    assert isinstance(rig.machine, StatefulMachine)
    fresh = Rig(StatefulMachine(CHAIN, "q", "q-9", rig.machine.state_to_keep()))
    fresh.now = rig.now + 0.7
    fresh.ready(P("fresh"))
    goes_on = rset("q", "q-9", epoch=2, ends=((1, 1),))
    assert budgets(fresh.learn(topo(3, roles[0], goes_on, revoked=("q-1",)))) == [pytest.approx(0.3)]


def test_a_slots_new_owner_is_told_what_is_left_and_hands_that_on():
    fan = graph(op("s", FRONTEND, to=("q", "r")), op("q", "s", stateful=True), op("r", "s", stateful=True))
    roles = (rset("q", "q-1"), rset("r", "r-1"))
    successor = primary_of(fan, "q", topo(1, table("s", ("s-1", 1)), *roles))
    successor.token("s-1", asked(1.0, source="s", name="s-1:1"))
    successor.now += 0.4
    (answer,) = of(successor.get("s-2", SlotQuery("s", 0, 2)), SlotAnswer)
    assert [token.meta.budget_s for token in answer.tokens] == [pytest.approx(0.6)]
    rig = active_of(fan, "s", "s-2", topo(2, table("s", ("s-2", 2)), *roles, revoked=("s-1",)))
    rig.get("r-1", SlotAnswer("s", 0, 2, (), ("r", 1)))
    routed = replace(answer, tokens=tuple(replace(token, route=("q", "r")) for token in answer.tokens))
    assert budgets(rig.get("q-1", routed)) == [pytest.approx(0.6), pytest.approx(0.6)]


def test_a_complete_request_leaves_nothing_behind():
    rig = stateless()
    rig.token("F-1", asked(1.0))
    rig.done()
    assert len(rig.machine.knowledge.deadlines) == 1
    rig.get("F-1", Completion(((0, 1, ()),)))
    assert len(rig.machine.knowledge.deadlines) == 0
    assert not rig.token("F-1", asked(1.0)), "and it comes back with nothing that is refused"
    assert len(rig.machine.knowledge.deadlines) == 0


def test_a_feedback_ends_with_its_origin_whenever_that_is_heard_of():
    ends, r2 = Deadlines(), RequestId(R1.shard, R1.n + 1)
    ends.learn(R0, 20.0, 0.0)
    ends.feeds(R0, R1)
    assert ends.due(R1) == 20.0
    ends.feeds(R1, r2)
    ends.learn(r2, 5.0, 0.0)
    ends.learn(R0, 10.0, 0.0)
    assert (ends.due(R1), ends.due(r2)) == (10.0, 5.0), "an end is brought forward, never back"
    ends.forget([R0])
    assert ends.due(R1) == 10.0, "what its origin ended with is known though that is complete"


def test_a_new_budget_is_not_written_for_less_than_a_message_takes():
    deadlines = Knowledge(CHAIN).deadlines
    meta = Meta(budget_s=1.0)
    deadlines.learn(R0, 1.0, 5.0)
    assert deadlines.meta(meta, R0, 5.0 + limits.budget_grain_s / 2) is meta
    assert deadlines.meta(meta, R0, 5.5).budget_s == pytest.approx(0.5)
