"""What a header of format 2 says more, and that histories of format 1 are read as they were."""

from dataclasses import replace as changed

import msgspec
import pytest
from tests.history.test_invariants_by_hand import (
    ONE,
    PAIR,
    broken,
    done,
    durable,
    failover,
    graph,
    holds,
    log,
    reply,
    run,
    unit,
)

from hams_history.checker import check
from hams_history.lines import FORMAT, FinalLine, GraphLine, HealLine, Line, LostLine, decode, encode
from hams_protocol.graph import WhenUnprotected
from hams_sim.simulate import Spec, make_plan
from hams_wire.notes import header_of


def second(header: GraphLine, **more: object) -> GraphLine:
    return msgspec.structs.replace(header, format=2, **more)


def with_required(header: GraphLine, **required: str) -> GraphLine:
    operators = {
        name: msgspec.structs.replace(entry, required=tuple(required.get(name, "").split()))
        for name, entry in header.operators.items()
    }
    return second(header, operators=operators)


def restarted(op: str, epoch: int, version: int) -> LostLine:
    return LostLine(op=op, epoch=epoch, version=version, kind="restarted")


def gone(op: str, epoch: int) -> LostLine:
    return LostLine(op=op, epoch=epoch, version=-1, kind="gone")


# ---- the header ----


def test_a_header_says_mode_policy_and_required_inputs() -> None:
    data = make_plan(Spec(3, "router")).graph.data
    blocks = changed(data, recovery=changed(data.recovery, when_unprotected=WhenUnprotected.BLOCK))
    header = decode(encode(header_of(blocks)))
    assert isinstance(header, GraphLine)
    assert (header.format, header.mode, header.blocks) == (FORMAT, "NonStop", True)
    for op in data.operators:
        assert header.operators[op.name].required == tuple(
            edge.source for edge in op.in_edges if edge.required
        )


def test_a_format_of_the_future_is_not_judged_as_if_it_were_known() -> None:
    problems = check([msgspec.structs.replace(ONE, format=4)]).problems
    assert [item.message for item in problems] == ["the format is 4; formats 1 to 3 are known"]


# ---- losses ----

LOGGED = [log(f"0/{number}") for number in range(3)]
THREE = [unit(f"p 1/{number + 1}", f"0/{number}", f"0/{number}", f"v{number}") for number in range(3)]


def test_a_primary_of_a_lost_epoch_may_have_died_before_it_wrote_anything() -> None:
    """Its successor was killed before it heard of its role: nobody wrote that epoch 2 had begun."""
    again = unit("p 3/1", "0/3", "0/3", "w")
    lines = [second(ONE), *LOGGED, *THREE, log("0/3"), restarted("p", 2, 0), again]
    assert not [item.message for item in check(lines).problems]
    lines.insert(-1, failover("p", 3, 0))  # which says that there was an epoch 2
    assert not [item.message for item in check(lines).problems]
    ran = unit("p 2/4", "0/3", "0/3", "w", version=4)
    report = check([second(ONE), *LOGGED, *THREE, log("0/3"), ran, restarted("p", 2, 0)])
    assert "epoch 2 without a failover line" in "\n".join(item.message for item in report.problems)


def test_what_is_called_lost_and_found_again_is_excused_from_nothing() -> None:
    lines = [*LOGGED, *THREE, durable("p 1/3"), gone("p", 1), failover("p", 2, 2)]
    assert "I1" in broken(second(ONE), *lines)
    old = [msgspec.structs.replace(line, kind=None) if isinstance(line, LostLine) else line for line in lines]
    holds(ONE, *old)


def test_a_loss_excuses_the_version_it_names_and_no_other() -> None:
    lines = [*LOGGED, *THREE, durable("p 1/3"), failover("p", 2, 1)]
    holds(second(ONE), *lines, restarted("p", 1, 1))
    assert "I1" in broken(second(ONE), *lines, restarted("p", 1, 2))
    assert "I1" in broken(second(ONE), *lines, restarted("p", 2, 1))


def test_after_a_loss_everything_is_judged_again() -> None:
    lines = [
        *LOGGED,
        *THREE,
        durable("p 1/3"),
        restarted("p", 1, 1),
        failover("p", 2, 1),
        unit("p 2/2", "0/1", "0/1", "w1"),
        unit("p 2/3", "0/2", "0/2", "w2"),
        durable("p 2/3"),
    ]
    holds(second(ONE), *lines, failover("p", 3, 3))
    assert "I1" in broken(second(ONE), *lines, failover("p", 3, 2))
    old = [msgspec.structs.replace(line, kind=None) if isinstance(line, LostLine) else line for line in lines]
    holds(ONE, *old, failover("p", 3, 2))


def test_a_unit_that_the_kept_version_holds_does_not_run_again() -> None:
    lines = [
        *LOGGED,
        *THREE,
        durable("p 1/3"),
        restarted("p", 1, 2),
        failover("p", 2, 2),
        unit("p 2/3", "0/1", "0/1", "w1"),
    ]
    assert broken(second(ONE), *lines) == {"I4"}


def test_a_complete_request_that_a_loss_took_is_missed_by_nobody_and_one_after_it_is() -> None:
    lines = [
        *LOGGED,
        *THREE,
        durable("p 1/3"),
        *(reply(f"0/{number}", f"v{number}") for number in range(3)),
        *(done(f"0/{number}") for number in range(3)),
        restarted("p", 1, 1),
        failover("p", 2, 1),
    ]
    holds(second(ONE), *lines)
    assert "I4" in broken(second(ONE), *lines, log("0/3"), done("0/3"))


def test_who_stems_from_a_loss_may_say_so_and_is_judged_as_ever_for_its_own_versions() -> None:
    lines = [
        log(),
        unit("p 1/1", "0/0", "0/0", "p1", "q"),
        unit("q 1/1", "0/0", "p1", "q1"),
        restarted("p", 1, 0),
        failover("p", 2, 0),
        durable("q 1/1"),
    ]
    header = second(PAIR, ordered=True)
    stems = LostLine(op="q", epoch=1, version=1, kind="stems")
    assert broken(header, *lines) == {"I3"}
    holds(header, *lines, stems)
    assert "I1" in broken(header, *lines, stems, failover("q", 2, 0))


def test_only_what_the_lost_log_of_a_shard_had_may_stay_open() -> None:
    lost = LostLine(op="F/0", epoch=1, version=0, kind="restarted")
    end = [HealLine(what="all"), FinalLine(ops={}, open=())]
    of_before, of_after = log("0/0", epoch=1), log("0/9", epoch=2, gen=2)
    holds(second(ONE), of_before, lost, *end)
    assert broken(second(ONE), of_before, lost, of_after, *end) == {"I7"}
    assert broken(second(ONE), of_before, LostLine(op="F/0", epoch=1, version=-1, kind="gone"), *end) == {
        "I7"
    }


# ---- policy and mode ----


def test_under_block_an_end_alone_makes_nothing_durable() -> None:
    lines = [log(), unit("p 1/1", "0/0", "0/0", "v"), failover("p", 2, 1)]
    line, said = reply("0/0", "v"), durable("p 2/1")
    for ordered in (False, True):
        header = second(ONE, blocks=True, ordered=ordered)
        holds(second(ONE, ordered=ordered), *lines, line)
        assert broken(header, *lines, line) == {"I3"}
        holds(header, *lines, said, line)
    assert broken(second(ONE, blocks=True, ordered=True), *lines, line, said) == {"I3"}


def test_without_replication_no_reply_waits() -> None:
    lines = [log(), unit("p 1/1", "0/0", "0/0", "v"), reply("0/0", "v")]
    assert broken(second(ONE, mode="NonStop"), *lines) == {"I3"}
    holds(second(ONE, mode="None"), *lines)


# ---- skips ----

JOIN = graph(a="stateless combine F", b="stateless combine F", d="stateful combine a b")
GIVEN = [log(), run("a", "0/0", "0/0", "va", "d"), run("b", "0/0", "0/0", "vb", "")]


@pytest.mark.parametrize(("required", "right"), [("a b", True), ("a", False)])
def test_a_skip_on_values_needs_a_required_input_that_is_missing(required: str, right: bool) -> None:
    lines: list[Line] = [*GIVEN, unit("d 1/1", "0/0", "va", None, "")]
    header = with_required(JOIN, a="F", b="F", d=required)
    if right:
        holds(header, *lines)
    else:
        assert broken(header, *lines) == {"I4"}
    holds(JOIN, *lines)


@pytest.mark.parametrize(("required", "right"), [("a b", True), ("a", False)])
def test_a_value_may_be_passed_over_only_for_a_required_input(required: str, right: bool) -> None:
    """The unit says that it got nothing at all, though `a` routed a value to it."""
    lines: list[Line] = [
        log(),
        run("a", "0/0", "0/0", "va", "d F"),
        run("b", "0/0", "0/0", "vb", ""),
        unit("d 1/1", "0/0", "", None, ""),
        durable("d 1/1"),
        reply("0/0", "va"),
        done(),
    ]
    header = with_required(JOIN, a="F", b="F", d=required)
    assert ("I4" in check([header, *lines]).broken) is not right
