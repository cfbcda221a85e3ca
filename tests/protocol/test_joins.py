"""Joins (section 3): every edge carries one token per request, and a join always completes."""

from kit import R0, R1, dep, op, skip, value

from hams_protocol.graph import FRONTEND, Join
from hams_protocol.joins import JoinBuffer, Stage, fan_name, inconsistent_fan_out
from hams_protocol.messages import Kind, ModelError


def buffer(join=Join.COMBINE, optional=(), sources=("a", "b")):
    return JoinBuffer(op("x", *sources, to=(FRONTEND,), join=join, optional=optional))


def filled(joins, *tokens):
    """The last token's unit, and whether each token made a unit ready."""
    moved = []
    for token in tokens:
        unit = joins.add(token)
        moved.append(joins.settle(unit))
    return unit, moved


def test_a_combine_waits_for_all_in_edges_and_runs_once():
    joins = buffer()
    unit, moved = filled(joins, value("b", R0, "b1"), value("a", R0, "a1"))
    assert moved == [False, True]
    assert joins.forward(unit) is None
    assert [source for source, _ in joins.inputs(unit)] == ["a", "b"]


def test_a_combine_without_a_required_input_forwards_a_skip_with_the_union_of_deps():
    joins = buffer()
    unit, _ = filled(joins, value("a", R0, "a1", dep("p", 1, 3)), skip("b", R0, "b!", dep("q", 1, 4)))
    assert joins.forward(unit).kind is Kind.SKIP
    assert joins.deps(unit) == (*dep("p", 1, 3), *dep("q", 1, 4))


def test_an_optional_input_that_was_skipped_is_seen_as_null():
    joins = buffer(optional=("b",))
    unit, _ = filled(joins, value("a", R0, "a1"), skip("b", R0, "b!"))
    assert joins.forward(unit) is None
    assert joins.inputs(unit)[1] == ("b", None)


def test_skips_alone_make_a_skip_even_if_all_inputs_are_optional():
    joins = buffer(optional=("a", "b"))
    unit, _ = filled(joins, skip("a", R0, "a!"), skip("b", R0, "b!"))
    assert joins.forward(unit).kind is Kind.SKIP


def test_an_interleave_runs_once_per_token_in_a_lane_of_its_own():
    joins = buffer(Join.INTERLEAVE)
    one, moved = filled(joins, value("b", R0, "b1"))
    assert moved == [True]
    assert one.id.lane == ("b",)
    other, moved = filled(joins, value("a", R0, "a1"))
    assert moved == [True]
    assert other.id.lane == ("a",)


def test_a_first_runs_on_its_first_value_and_keeps_the_later_ones():
    joins = buffer(Join.FIRST)
    unit, moved = filled(joins, value("b", R0, "b1"), value("a", R0, "a1"))
    assert moved == [True, False]
    assert [token.value_id for token in unit.used] == ["b1"]
    assert joins.all_delivered(unit)


def test_a_first_tries_the_next_value_after_a_refusal_and_ends_in_a_typed_error():
    joins = buffer(Join.FIRST)
    unit, _ = filled(joins, value("a", R0, "a1"))
    for source, value_id in (("a", "b1"), ("b", None)):
        unit.refused.add(source)
        unit.reset()
        if value_id is not None:
            assert not joins.settle(unit)
            joins.add(value("b", R0, value_id))
        assert joins.settle(unit)
    forward = joins.forward(unit)
    assert forward.kind is Kind.ERROR
    assert forward.error.status == 422


def test_an_error_travels_like_a_value():
    joins = buffer()
    broken = value("a", R0, "a1", kind=Kind.ERROR, error=ModelError("a", "no"), payload=None)
    unit, _ = filled(joins, broken, value("b", R0, "b1"))
    assert joins.forward(unit).error == ModelError("a", "no")


def test_a_second_token_of_the_same_edge_and_unit_is_a_duplicate():
    joins = buffer()
    unit, _ = filled(joins, value("a", R0, "a1"), value("a", R0, "a2"))
    assert unit.tokens["a"].value_id == "a1"
    assert joins.value_held(unit, value("a", R0, "a2")) == "a1"


def test_values_of_two_executions_of_one_fan_out_are_not_mixed():
    joins = buffer()
    unit, _ = filled(
        joins, value("a", R0, "a1", fan=(("s", "s-1:1"),)), value("b", R0, "b1", fan=(("s", "s-2:1"),))
    )
    forward = joins.forward(unit)
    assert forward is not None
    assert "two values" in forward.error.message


def test_a_fan_out_operator_runs_once_for_each_of_its_lanes():
    lanes = (("b",), ("c",))
    tokens = [
        value("e", R0, f"e{n}", lane=lane, fan=((fan_name("d", lane), f"d-1:{n}"),))
        for n, lane in enumerate(lanes)
    ]
    assert inconsistent_fan_out(token.fan for token in tokens) is None
    assert (
        inconsistent_fan_out([*(token.fan for token in tokens), ((fan_name("d", ("c",)), "d-2:1"),)]) == "d"
    )


def test_what_an_execution_that_is_certain_ran_on_is_let_go_but_for_fan_out_inputs():
    joins = buffer()
    unit, _ = filled(joins, value("a", R0, "a1"), value("b", R0, "b1"))
    joins.finish(unit, (), frozenset({"b"}))
    assert unit.stage is Stage.DONE
    assert set(unit.tokens) == {"b"}
    assert joins.value_held(unit, value("a", R0, "a9")) == "a1", (
        "a duplicate is acknowledged under the id that ran"
    )


def test_what_an_execution_that_may_become_orphan_ran_on_is_kept():
    joins = buffer()
    unit, _ = filled(joins, value("a", R0, "a1", dep("p", 1, 2)), value("b", R0, "b1"))
    joins.finish(unit, dep("p", 1, 2), frozenset())
    assert set(unit.tokens) == {"a", "b"}
    assert unit.keep


def test_the_input_of_an_internal_request_keeps_its_renaming_and_shares_no_batch_with_others():
    joins = buffer(sources=(FRONTEND, "b"))
    inner, _ = filled(joins, value(FRONTEND, R0, "f0", renamed=(("x", "y"),)), value("b", R0, "b0"))
    other, _ = filled(joins, value(FRONTEND, R1, "f1"), value("b", R1, "b1"))
    assert joins.renamed(inner) == (("x", "y"),)
    assert joins.renamed(other) == ()
    assert inner.batch_key != other.batch_key
