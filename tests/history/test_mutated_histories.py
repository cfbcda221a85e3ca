"""Valid random histories hold; after any one of these changes to one of them the checker must fail, or the
checker proves nothing."""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.history.synthetic import SHAPES, valid_history

from hams_history.checker import check
from hams_history.lines import (
    ApplyLine,
    CompleteLine,
    DurableLine,
    ExecLine,
    FailoverLine,
    FinalLine,
    GraphLine,
    Line,
    LogLine,
    ReplyLine,
    RetLine,
)

replace: Callable[..., Any] = msgspec.structs.replace
SEEDS = 120
Mutated = tuple[list[Line], set[str]] | None
"""The changed history and the invariants of which at least one must be reported ("invalid": the history is
refused); None: not applicable."""


class Change:
    """A history to be changed, with what the changes need to know of it."""

    def __init__(self, seed: int) -> None:
        self.lines = valid_history(seed)
        self.rng = random.Random(seed)
        header = self.lines[0]
        assert isinstance(header, GraphLine)
        self.header = header
        self.ends: dict[tuple[str, int], int] = {}
        self.newest: dict[str, int] = dict.fromkeys(header.operators, 1)
        for line in self.lines:
            if isinstance(line, FailoverLine):
                self.ends[line.op, line.epoch - 1] = line.end
                self.newest[line.op] = max(self.newest[line.op], line.epoch)
        self.generation = max(getattr(line, "gen", 0) for line in self.lines)

    def stateful(self, op: str) -> bool:
        return self.header.operators[op].kind == "stateful"

    def pick(self, wanted: Callable[[Any], bool]) -> int | None:
        values = [at for at, line in enumerate(self.lines) if wanted(line)]
        return self.rng.choice(values) if values else None

    def one(self, kind: type, wanted: Callable[[Any], bool] = lambda line: True) -> int | None:
        return self.pick(lambda line: isinstance(line, kind) and wanted(line))

    def survives(self, line: ExecLine) -> bool:
        return line.seq is not None and all(
            line.seq <= end for (op, epoch), end in self.ends.items() if op == line.op and epoch >= line.epoch
        )

    def orphan(self, line: ExecLine) -> bool:
        return self.stateful(line.op) and line.out is not None and not self.survives(line)

    def with_line(self, at: int, *lines: Any) -> list[Line]:
        return [*self.lines[:at], *lines, *self.lines[at + 1 :]]

    def inserted(self, at: int, *lines: Any) -> list[Line]:
        return [*self.lines[:at], *lines, *self.lines[at:]]

    def without(self, unwanted: Callable[[Any], bool]) -> list[Line]:
        return [line for line in self.lines if not unwanted(line)]


# ---- lines that are missing ----


def a_surviving_execution_is_missing(change: Change) -> Mutated:
    at = change.one(ExecLine, change.survives)
    return None if at is None else (change.with_line(at), {"I1"})


def a_replied_value_was_computed_by_nobody(change: Change) -> Mutated:
    shown = {value for line in change.lines if isinstance(line, ReplyLine) for value in line.values}
    at = change.one(ExecLine, lambda line: line.out in shown)
    return None if at is None else (change.with_line(at), {"I1"})


def a_logged_request_is_missing(change: Change) -> Mutated:
    at = change.one(LogLine)
    return None if at is None else (change.with_line(at), {"I1"})


def a_reply_is_missing(change: Change) -> Mutated:
    at = change.one(RetLine, lambda line: line.key is not None)
    if at is None:
        return None
    digest = change.lines[at].digest  # type: ignore[union-attr]
    return change.without(lambda line: isinstance(line, ReplyLine) and line.digest == digest), {"I1"}


def nothing_of_an_operator_was_called_durable(change: Change) -> Mutated:
    shown = {value for line in change.lines if isinstance(line, ReplyLine) for value in line.values}
    at = change.one(
        ExecLine,
        lambda line: line.out in shown and line.epoch == change.newest[line.op] and change.stateful(line.op),
    )
    if at is None:
        return None
    op = change.lines[at].op  # type: ignore[union-attr]
    return change.without(lambda line: isinstance(line, DurableLine) and line.op == op), {"I3"}


def a_failover_is_missing(change: Change) -> Mutated:
    acted = {(line.op, line.epoch) for line in change.lines if isinstance(line, ExecLine | DurableLine)}
    at = change.one(FailoverLine, lambda line: (line.op, line.epoch) in acted)
    if at is None:
        return None
    gone: Any = change.lines[at]
    return change.without(
        lambda line: isinstance(line, FailoverLine) and (line.op, line.epoch) == (gone.op, gone.epoch)
    ), {"invalid"}


def a_completion_is_missing(change: Change) -> Mutated:
    at = change.one(CompleteLine)
    return None if at is None else (change.with_line(at), {"I7"})


def a_client_never_heard(change: Change) -> Mutated:
    at = change.one(RetLine)
    return None if at is None else (change.with_line(at), {"I7"})


# ---- executions ----


def a_seq_executed_with_another_value(change: Change) -> Mutated:
    at = change.one(ExecLine, lambda line: line.seq is not None and line.out is not None)
    return None if at is None else (change.inserted(at + 1, replace(change.lines[at], out="other:1")), {"I5"})


def another_instance_executes_in_the_epoch(change: Change) -> Mutated:
    def has_company(line: ExecLine) -> bool:
        others = [
            other for other in change.lines if isinstance(other, ExecLine | DurableLine) and other is not line
        ]
        return change.stateful(line.op) and any(
            (other.op, other.epoch) == (line.op, line.epoch) for other in others
        )

    at = change.one(ExecLine, has_company)
    return None if at is None else (change.with_line(at, replace(change.lines[at], i="other-1")), {"I5"})


def another_instance_executes_in_the_slot(change: Change) -> Mutated:
    at = change.one(ExecLine, lambda line: line.slot is not None)
    return (
        None
        if at is None
        else (change.inserted(at, replace(change.lines[at], i="other-1", out="other:1")), {"I5"})
    )


def a_unit_executed_twice(change: Change) -> Mutated:
    at = change.one(ExecLine, change.survives)
    if at is None:
        return None
    line: Any = change.lines[at]
    epoch = change.newest[line.op]
    seqs = [
        other.seq
        for other in change.lines
        if isinstance(other, ExecLine) and other.op == line.op and other.seq and change.survives(other)
    ]
    seq = max(seqs) + 1
    primary = next(
        (
            other.i
            for other in change.lines
            if isinstance(other, FailoverLine) and (other.op, other.epoch) == (line.op, epoch)
        ),
        line.i,
    )
    again = replace(
        line, i=primary, epoch=epoch, seq=seq, version=seq, out="other:1", gen=change.generation, chain=None
    )
    return change.inserted(len(change.lines) - 1, again), {"I4"}


def an_orphan_is_executed_knowingly(change: Change) -> Mutated:
    at = change.one(
        ExecLine,
        lambda line: change.orphan(line) and any(target in change.header.operators for target in line.route),
    )
    if at is None:
        return None
    line: Any = change.lines[at]
    target = next(target for target in line.route if target in change.header.operators)
    run = ExecLine(
        i="other-1",
        gen=change.generation + 9,
        op=target,
        epoch=99,
        req=line.req,
        lane=line.lane,
        inputs=(line.out,),
        out="other:1",
        route=(),
        slot=7,
    )
    if change.stateful(target):
        run = replace(run, slot=None, seq=1000, version=1000)
    return change.inserted(len(change.lines) - 1, run), {"I3"}


def a_value_executed_where_it_was_not_routed(change: Change) -> Mutated:
    consumed = {
        (line.op, value) for line in change.lines if isinstance(line, ExecLine) for value in line.inputs
    }
    at = change.one(ExecLine, lambda line: any((target, line.out) in consumed for target in line.route))
    if at is None:
        return None
    line: Any = change.lines[at]
    target = next(target for target in line.route if (target, line.out) in consumed)
    return change.with_line(
        at, replace(line, route=tuple(other for other in line.route if other != target))
    ), {"I4"}


def a_value_made_of_skips(change: Change) -> Mutated:
    at = change.one(ExecLine, lambda line: line.out is not None)
    return None if at is None else (change.with_line(at, replace(change.lines[at], inputs=())), {"I4"})


def a_value_of_another_request(change: Change) -> Mutated:
    at = change.one(ReplyLine, lambda line: line.values)
    other = change.one(
        ReplyLine, lambda line: line.values and at is not None and line.req != change.lines[at].req
    )  # type: ignore[union-attr]
    if at is None or other is None:
        return None
    values = change.lines[other].values  # type: ignore[union-attr]
    return change.with_line(at, replace(change.lines[at], values=values)), {"I1"}


# ---- versions and ends ----


def a_backup_holds_another_state(change: Change) -> Mutated:
    at = change.one(ApplyLine, lambda line: line.version > 0)
    return None if at is None else (change.with_line(at, replace(change.lines[at], chain="wrong")), {"I1"})


def a_primary_goes_on_from_another_state(change: Change) -> Mutated:
    at = change.one(
        ExecLine,
        lambda line: (
            line.seq is not None
            and sum(isinstance(other, ExecLine) and other.op == line.op for other in change.lines) > 2
        ),
    )
    if at is None:
        return None
    # No backup tells of it: only that this chain does not follow from the one before gives it away.
    changed = change.with_line(at, replace(change.lines[at], chain="0123456789abcdef"))
    return [line for line in changed if not isinstance(line, ApplyLine)], {"I1"}


def a_failover_keeps_less(change: Change) -> Mutated:
    at = change.one(FailoverLine, lambda line: line.end > 0)
    if at is None:
        return None
    chosen: Any = change.lines[at]
    changed = [
        replace(line, end=line.end - 1)
        if isinstance(line, FailoverLine) and (line.op, line.epoch) == (chosen.op, chosen.epoch)
        else line
        for line in change.lines
    ]
    return changed, {"I1"}


def a_durable_version_beyond_the_end(change: Change) -> Mutated:
    at = change.one(DurableLine, lambda line: (line.op, line.epoch) in change.ends)
    if at is None:
        return None
    line: Any = change.lines[at]
    return change.with_line(at, replace(line, version=change.ends[line.op, line.epoch] + 1)), {"I1"}


def an_orphan_in_a_reply(change: Change) -> Mutated:
    at = change.one(ExecLine, change.orphan)
    if at is None:
        return None
    line: Any = change.lines[at]
    reply = ReplyLine(i="F-1", gen=change.generation, req=line.req, values=(line.out,), epoch=1)
    return change.inserted(len(change.lines) - 1, reply), {"I1"}


def two_failovers_to_one_epoch(change: Change) -> Mutated:
    at = change.one(FailoverLine)
    return (
        None
        if at is None
        else (change.with_line(at, replace(change.lines[at], end=change.lines[at].end + 1)), {"I5"})
    )  # type: ignore[union-attr]


def a_failover_in_a_generation_of_the_epoch_before(change: Change) -> Mutated:
    acting = (ExecLine, DurableLine)
    at = change.one(
        FailoverLine,
        lambda line: any(
            isinstance(other, acting) and other.op == line.op and other.epoch < line.epoch
            for other in change.lines
        ),
    )
    if at is None:
        return None
    chosen: Any = change.lines[at]

    def earlier(line: Line) -> Line:
        same = isinstance(line, FailoverLine) and (line.op, line.epoch) == (chosen.op, chosen.epoch)
        return replace(line, gen=0) if same else line

    return [earlier(line) for line in change.lines], {"I5"}


def an_instance_goes_back(change: Change) -> Mutated:
    at = change.one(ApplyLine, lambda line: line.epoch > 1)
    return (
        None
        if at is None
        else (change.inserted(at + 1, replace(change.lines[at], epoch=1, version=0, chain=None)), {"I5"})
    )


def everything_was_called_durable_at_the_very_end(change: Change) -> Mutated:
    if not change.header.ordered or change.one(DurableLine) is None:
        return None
    late = [line for line in change.lines if isinstance(line, DurableLine)]
    rest = change.without(lambda line: isinstance(line, DurableLine))
    return [*rest[:-1], *late, rest[-1]], {"I3"}


# ---- clients ----


def two_replies_for_one_request(change: Change) -> Mutated:
    at = change.one(ReplyLine)
    return (
        None if at is None else (change.inserted(at + 1, replace(change.lines[at], digest="other")), {"I2"})
    )


def a_client_got_another_reply(change: Change) -> Mutated:
    at = change.one(RetLine, lambda line: line.key is not None)
    return None if at is None else (change.with_line(at, replace(change.lines[at], digest="other")), {"I2"})


def two_visible_values(change: Change) -> Mutated:
    """Computed again by the slot's owner, and both were replied to someone."""
    shown = {
        value
        for line in change.lines
        if isinstance(line, ExecLine) and change.survives(line)
        for value in line.inputs
    }
    at = change.one(ExecLine, lambda line: line.slot is not None and line.out in shown)
    if at is None:
        return None
    line: Any = change.lines[at]
    reply = ReplyLine(i="F-1", gen=change.generation, req=line.req, values=("other:1",), epoch=1)
    return [
        *change.lines[: at + 1],
        replace(line, out="other:1"),
        *change.lines[at + 1 : -1],
        reply,
        change.lines[-1],
    ], {"I2"}


def a_key_logged_twice(change: Change) -> Mutated:
    at = change.one(LogLine, lambda line: line.key is not None)
    return None if at is None else (change.inserted(at + 1, replace(change.lines[at], req="0/999")), {"I4"})


def a_request_with_another_input(change: Change) -> Mutated:
    at = change.one(LogLine, lambda line: line.digest is not None)
    return (
        None if at is None else (change.inserted(at + 1, replace(change.lines[at], digest="other")), {"I1"})
    )


def a_value_fed_back_twice(change: Change) -> Mutated:
    at = change.one(LogLine, lambda line: line.source is not None)
    return None if at is None else (change.inserted(at + 1, replace(change.lines[at], req="0/999")), {"I4"})


def an_ok_for_nothing(change: Change) -> Mutated:
    return change.inserted(1, RetLine(client="x", key="never", status="ok", digest=None)), {"I1"}


# ---- the end ----


def no_primary_at_the_end(change: Change) -> Mutated:
    final: Any = change.lines[-1]
    op = change.rng.choice(sorted(final.ops))
    return [
        *change.lines[:-1],
        replace(final, ops={**final.ops, op: replace(final.ops[op], primary=None)}),
    ], {"I7"}


def a_backup_short_at_the_end(change: Change) -> Mutated:
    final: Any = change.lines[-1]
    op = change.rng.choice(sorted(final.ops))
    if not final.ops[op].insync:
        return None
    return [
        *change.lines[:-1],
        replace(final, ops={**final.ops, op: replace(final.ops[op], insync=final.ops[op].insync[1:])}),
    ], {"I7"}


def something_open_at_the_end(change: Change) -> Mutated:
    assert isinstance(change.lines[-1], FinalLine)
    return [*change.lines[:-1], replace(change.lines[-1], open=("0/0",))], {"I7"}


CHANGES = [
    a_surviving_execution_is_missing,
    a_replied_value_was_computed_by_nobody,
    a_logged_request_is_missing,
    a_reply_is_missing,
    nothing_of_an_operator_was_called_durable,
    a_failover_is_missing,
    a_completion_is_missing,
    a_client_never_heard,
    a_seq_executed_with_another_value,
    another_instance_executes_in_the_epoch,
    another_instance_executes_in_the_slot,
    a_unit_executed_twice,
    an_orphan_is_executed_knowingly,
    a_value_executed_where_it_was_not_routed,
    a_value_made_of_skips,
    a_value_of_another_request,
    a_backup_holds_another_state,
    a_primary_goes_on_from_another_state,
    a_failover_keeps_less,
    a_durable_version_beyond_the_end,
    an_orphan_in_a_reply,
    two_failovers_to_one_epoch,
    a_failover_in_a_generation_of_the_epoch_before,
    an_instance_goes_back,
    everything_was_called_durable_at_the_very_end,
    two_replies_for_one_request,
    a_client_got_another_reply,
    two_visible_values,
    a_key_logged_twice,
    a_request_with_another_input,
    a_value_fed_back_twice,
    an_ok_for_nothing,
    no_primary_at_the_end,
    a_backup_short_at_the_end,
    something_open_at_the_end,
]


@pytest.mark.parametrize("shape", sorted(SHAPES))
@pytest.mark.parametrize("ordered", [True, False])
def test_a_valid_history_holds(shape: str, ordered: bool) -> None:
    for seed in range(60):
        report = check(valid_history(seed, shape=shape, ordered=ordered, faults=seed % 6))
        assert report.ok, f"seed {seed}\n{report.render()}"
        assert not report.skips


@pytest.mark.parametrize("mutate", CHANGES, ids=lambda mutate: mutate.__name__)
def test_a_changed_history_fails(mutate: Callable[[Change], Mutated]) -> None:
    applied = 0
    for seed in range(SEEDS):
        changed = mutate(Change(seed))
        if changed is None:
            continue
        applied += 1
        lines, expected = changed
        report = check(lines)
        result = report.broken | ({"invalid"} if report.problems else set())
        assert result & expected, (
            f"seed {seed}: expected {expected}, found {sorted(result)}\n{report.render()}"
        )
        assert report.exit_code in (1, 2)
        assert report.render()
    assert applied >= 5, "this change hardly ever applies: the test proves nothing"


def test_the_same_seed_gives_the_same_history() -> None:
    assert valid_history(7) == valid_history(7)
    assert valid_history(7) != valid_history(8)
