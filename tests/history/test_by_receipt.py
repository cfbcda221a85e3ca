"""Histories in which backups answer for what they have received (ADR 0013): what is stable counts, and an end
may go back."""

import msgspec
from tests.history.test_invariants_by_hand import (
    ONE,
    PAIR,
    applied,
    broken,
    durable,
    failover,
    graph,
    holds,
    log,
    reply,
    unit,
)

from hams_history.lines import FORMAT_BY_RECEIPT, GraphLine, StableLine, decode, encode


def by_receipt(header: GraphLine) -> GraphLine:
    return msgspec.structs.replace(header, by_receipt=True, format=FORMAT_BY_RECEIPT)


def stable(where: str) -> StableLine:
    line = durable(where)
    return StableLine(i=line.i, gen=line.gen, op=line.op, epoch=line.epoch, version=line.version)


P, PQ = by_receipt(ONE), by_receipt(PAIR)
CHAIN = [
    log(),
    unit("p 1/1", "0/0", "0/0", "v", route="q"),
    unit("q 1/1", "0/0", "v", "w"),
]


def test_a_stable_line_is_read_as_it_was_written() -> None:
    assert decode(encode(stable("p 1/1"))) == stable("p 1/1")


def test_a_reply_needs_a_stable_closure_and_no_durable_line() -> None:
    holds(PQ, *CHAIN, stable("p 1/1"), stable("q 1/1"), reply("0/0", "w"))
    assert broken(PQ, *CHAIN, stable("q 1/1"), reply("0/0", "w")) == {"I3"}
    assert broken(PQ, *CHAIN, stable("p 1/1"), reply("0/0", "w")) == {"I3"}
    holds(PQ, *CHAIN, stable("p 1/1"), failover("q", 2, 1), reply("0/0", "w"))


def test_in_order_the_reply_comes_after_what_it_depends_on_is_stable() -> None:
    header = by_receipt(graph(ordered=True, p="stateful combine F"))
    run = [log(), unit("p 1/1", "0/0", "0/0", "v")]
    holds(header, *run, stable("p 1/1"), reply("0/0", "v"))
    assert broken(header, *run, reply("0/0", "v"), stable("p 1/1")) == {"I3"}


def test_what_is_called_durable_is_stable_and_so_is_all_that_it_depends_on() -> None:
    holds(PQ, *CHAIN, stable("p 1/1"), stable("q 1/1"), durable("q 1/1"))
    assert broken(PQ, *CHAIN, stable("p 1/1"), durable("q 1/1")) == {"I3"}
    assert broken(PQ, *CHAIN, stable("q 1/1"), durable("q 1/1")) == {"I3"}


def test_what_is_applied_has_only_durable_dependencies_as_ever() -> None:
    holds(PQ, *CHAIN, stable("p 1/1"), applied("q 1/1"))
    assert broken(PQ, *CHAIN, applied("q 1/1")) == {"I3"}


def test_an_end_may_go_back_but_not_below_what_was_durable() -> None:
    two = [log(), log("0/1"), unit("p 1/1", "0/0", "0/0", "v"), unit("p 1/2", "0/1", "0/1", "w")]
    back = [failover("p", 2, 2), failover("p", 3, 1)]
    holds(P, *two, *back)
    assert broken(ONE, *two, *back) == {"I1"}
    holds(P, *two, stable("p 1/1"), durable("p 1/1"), *back)
    assert "I1" in broken(P, *two, stable("p 1/2"), durable("p 1/2"), *back)


def test_a_visible_value_that_an_end_has_gone_back_behind_is_lost() -> None:
    two = [log(), log("0/1"), unit("p 1/1", "0/0", "0/0", "v"), unit("p 1/2", "0/1", "0/1", "w")]
    assert "I1" in broken(P, *two, failover("p", 2, 2), reply("0/1", "w"), failover("p", 3, 1))


def test_a_stable_line_counts_only_where_the_header_says_so() -> None:
    assert broken(PAIR, *CHAIN, stable("p 1/1"), stable("q 1/1"), reply("0/0", "w")) == {"I3"}
