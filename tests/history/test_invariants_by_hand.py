"""Each invariant: tiny histories that break it, beside near misses that do not."""

from typing import Any

import msgspec
import pytest

from hams_history.checker import check
from hams_history.lines import (
    ApplyLine,
    CallLine,
    CompleteLine,
    DurableLine,
    ExecLine,
    FailoverLine,
    FaultLine,
    FinalLine,
    FinalOperator,
    GraphLine,
    HealLine,
    Line,
    LogLine,
    LostLine,
    OperatorEntry,
    ReplyLine,
    RetLine,
    TakeoverLine,
    decode,
)
from hams_history.once import chain_next
from hams_history.report import Report
from hams_protocol import lineage

EXAMPLE = """
{"t":"graph","id":"g","want":1,"operators":\
{"p":{"kind":"stateful","join":"combine","inputs":["F"],"outputs":["F"]}}}
{"t":"call","client":"c1","key":"k1","digest":"9f"}
{"t":"log","i":"F-1","gen":1,"shard":0,"epoch":1,"req":"0/0","key":"k1","digest":"9f"}
{"t":"exec","i":"p-1","gen":1,"op":"p","epoch":1,"seq":1,"version":1,\
"req":"0/0","lane":[],"in":["0/0"],"out":"p-1:1","route":["F"],"chain":"a1"}
{"t":"failover","op":"p","gen":2,"epoch":2,"end":0,"i":"p-2"}
{"t":"exec","i":"p-2","gen":2,"op":"p","epoch":2,"seq":1,"version":1,\
"req":"0/0","lane":[],"in":["0/0"],"out":"p-2:1","route":["F"],"chain":"b7"}
{"t":"apply","i":"p-3","gen":2,"op":"p","epoch":2,"version":1,"chain":"b7"}
{"t":"durable","i":"p-2","gen":2,"op":"p","epoch":2,"version":1}
{"t":"reply","i":"F-1","gen":2,"req":"0/0","values":["p-2:1"],"digest":"31"}
{"t":"complete","req":"0/0"}
{"t":"ret","client":"c1","key":"k1","status":"ok","digest":"31"}
"""


# ---- a short hand for lines ----


def graph(ordered: bool = False, want: int = 0, **operators: str) -> GraphLine:
    """`p="stateful combine F"`: kind, join, inputs. Everything may reply, and feed back."""
    entries = {}
    for name, text in operators.items():
        kind, join, *inputs = text.split()
        receivers = (other for other, spec in operators.items() if name in spec.split()[2:])
        outputs = (*receivers, "F", "F!")
        entries[name] = OperatorEntry(kind=kind, join=join, inputs=tuple(inputs), outputs=outputs)
    return GraphLine(operators=entries, ordered=ordered, want=want)


ONE = graph(p="stateful combine F")
PAIR = graph(p="stateful combine F", q="stateful combine p")


def log(
    request: str = "0/0",
    key: str | None = None,
    digest: str | None = None,
    source: str | None = None,
    **more: Any,
) -> LogLine:
    fields: dict[str, Any] = {
        "i": "F-1",
        "gen": 1,
        "req": request,
        "key": key,
        "digest": digest,
        "source": source,
    }
    return LogLine(**{**fields, **more})


def unit(
    where: str,
    request: str,
    inputs: str,
    out: str | None,
    route: str = "F",
    i: str | None = None,
    **more: Any,
) -> ExecLine:
    """A unit of a stateful operator; `where` is `op epoch/seq`."""
    op, place = where.split()
    epoch, seq = (int(number) for number in place.split("/"))
    fields: dict[str, Any] = {
        "i": i or f"{op}-{epoch}",
        "gen": epoch,
        "op": op,
        "epoch": epoch,
        "seq": seq,
        "version": seq,
        "req": request,
        "lane": (),
    }
    return ExecLine(
        **{**fields, "inputs": tuple(inputs.split()), "out": out, "route": tuple(route.split()), **more}
    )


def run(op: str, request: str, inputs: str, out: str | None, route: str = "F", **more: Any) -> ExecLine:
    """A unit of a stateless operator."""
    fields: dict[str, Any] = {
        "i": f"{op}-1",
        "gen": 1,
        "op": op,
        "epoch": 1,
        "slot": 0,
        "req": request,
        "lane": (),
    }
    return ExecLine(
        **{**fields, "inputs": tuple(inputs.split()), "out": out, "route": tuple(route.split()), **more}
    )


def durable(where: str, **more: Any) -> DurableLine:
    op, place = where.split()
    epoch, version = (int(number) for number in place.split("/"))
    fields: dict[str, Any] = {
        "i": f"{op}-{epoch}",
        "gen": epoch,
        "op": op,
        "epoch": epoch,
        "version": version,
    }
    return DurableLine(**{**fields, **more})


def applied(where: str, i: str = "backup", **more: Any) -> ApplyLine:
    op, place = where.split()
    epoch, version = (int(number) for number in place.split("/"))
    fields: dict[str, Any] = {"i": i, "gen": epoch, "op": op, "epoch": epoch, "version": version}
    return ApplyLine(**{**fields, **more})


def failover(op: str, epoch: int, end: int, **more: Any) -> FailoverLine:
    fields: dict[str, Any] = {"op": op, "gen": epoch, "epoch": epoch, "end": end, "i": f"{op}-{epoch}"}
    return FailoverLine(**{**fields, **more})


def reply(request: str, values: str, **more: Any) -> ReplyLine:
    fields: dict[str, Any] = {"i": "F-1", "gen": 1, "req": request, "values": tuple(values.split())}
    return ReplyLine(**{**fields, **more})


def ret(client: str, key: str | None, digest: str | None = None, status: str = "ok") -> RetLine:
    return RetLine(client=client, key=key, status=status, digest=digest)


def done(request: str = "0/0") -> CompleteLine:
    return CompleteLine(req=request)


def answered(lines: tuple[Any, ...]) -> list[Any]:
    """With a reply of nothing to each client's request that is complete: most of these histories are about
    what comes before."""
    inner = {line.req for line in lines if isinstance(line, LogLine) and line.source is not None}
    told = {line.req for line in lines if isinstance(line, ReplyLine)}
    complete = dict.fromkeys(line.req for line in lines if isinstance(line, CompleteLine))
    silent = [request for request in complete if request not in inner | told]
    return [*lines, *(ReplyLine(i="F-1", gen=9, req=request, values=()) for request in silent)]


def broken(*lines: Any) -> frozenset[str]:
    report = check(answered(lines))
    assert not report.problems, report.render()
    return report.broken


def holds(*lines: Any) -> Report:
    report = check(answered(lines))
    assert report.ok, report.render()
    return report


def verdict(lines: list[Any]) -> Report:
    return check(lines)


def example() -> list[Line]:
    return [decode(text) for text in EXAMPLE.split("\n") if text]


def test_the_example_of_the_format_holds() -> None:
    report = holds(*example())
    assert [skip.check for skip in report.skips] == ["I7"]


def test_the_example_holds_with_its_orphan_line_in_any_place_of_its_file_order() -> None:
    lines = example()
    lines.append(lines.pop(3))
    holds(*lines)


# ---- I1 ----


def test_i1_an_ok_needs_a_logged_request_under_its_key() -> None:
    assert "I1" in broken(ONE, ret("c", "k"))
    holds(ONE, ret("c", "k", status="refused"))
    holds(ONE, ret("c", None))


def test_i1_an_ok_needs_a_released_reply() -> None:
    lines = [
        ONE,
        log(key="k"),
        unit("p 1/1", "0/0", "0/0", "v"),
        durable("p 1/1"),
        reply("0/0", "v"),
        ret("c", "k"),
    ]
    holds(*lines)
    assert "I1" in broken(*[line for line in lines if not isinstance(line, ReplyLine)])


def test_i1_in_order_the_reply_comes_before_the_ok() -> None:
    header = graph(ordered=True, p="stateful combine F")
    lines = [
        header,
        log(key="k"),
        unit("p 1/1", "0/0", "0/0", "v"),
        durable("p 1/1"),
        reply("0/0", "v"),
        ret("c", "k"),
    ]
    holds(*lines)
    lines[-1], lines[-2] = lines[-2], lines[-1]
    assert broken(*lines) == {"I1"}


def test_i1_an_ok_for_another_payload_than_the_logged_one_is_a_loss_of_that_payload() -> None:
    run_of_it = [unit("p 1/1", "0/0", "0/0", "v"), durable("p 1/1"), reply("0/0", "v")]
    lines = [
        ONE,
        CallLine(client="c", key="k", digest="one"),
        log(key="k", digest="one"),
        *run_of_it,
        ret("c", "k"),
    ]
    holds(*lines)
    other = [CallLine(client="d", key="k", digest="two"), ret("d", "k")]
    assert "I1" in broken(*lines, *other)
    holds(*lines, other[0], ret("d", "k", status="conflict"))


def test_i1_a_released_value_above_the_end_is_lost() -> None:
    lines = [ONE, log(), unit("p 1/1", "0/0", "0/0", "v"), durable("p 1/1"), reply("0/0", "v")]
    holds(*lines, failover("p", 2, 1))
    assert "I1" in broken(*lines, failover("p", 2, 0))


def test_i1_what_a_reply_depends_on_indirectly_must_survive() -> None:
    """The end of p cuts a unit that only the state of q remembers."""
    lines = [
        PAIR,
        log("0/0"),
        log("0/1"),
        unit("p 1/1", "0/0", "0/0", "p1", "q"),
        unit("p 1/2", "0/1", "0/1", "p2", "q"),
        unit("q 1/1", "0/1", "p2", "q1"),
        unit("q 1/2", "0/0", "p1", "q2"),
        durable("p 1/2"),
        durable("q 1/2"),
        reply("0/0", "q2"),
    ]
    holds(*lines, failover("p", 2, 2))
    assert "I1" in broken(*lines, failover("p", 2, 1))


def test_i1_a_durable_version_beyond_a_later_end() -> None:
    lines = [ONE, log(), unit("p 1/1", "0/0", "0/0", "v"), durable("p 1/1")]
    report = verdict([*lines, failover("p", 2, 0)])
    assert report.broken == {"I1"}
    assert "version 1 of p was called durable in epoch 1, but epoch 1 ended at 0" in report.render()
    assert "I1" in broken(*lines, failover("p", 2, 1), failover("p", 3, 0))
    holds(*lines, failover("p", 2, 1), failover("p", 3, 1))


def test_i1_ends_do_not_decrease() -> None:
    lines = [ONE, log(), unit("p 1/1", "0/0", "0/0", "v")]
    assert "I1" in broken(*lines, failover("p", 2, 1), failover("p", 3, 0))
    holds(*lines, failover("p", 2, 1), failover("p", 3, 1))


def test_i1_a_chain_that_differs() -> None:
    lines = [ONE, log(), unit("p 1/1", "0/0", "0/0", "v", chain="aa"), durable("p 1/1")]
    holds(*lines, applied("p 1/1", chain="aa"))
    assert "I1" in broken(*lines, applied("p 1/1", chain="bb"))
    holds(*lines, failover("p", 2, 1), applied("p 2/1", chain="aa", snapshot=True))
    assert "I1" in broken(*lines, failover("p", 2, 1), applied("p 2/1", chain="bb", snapshot=True))


def test_i1_a_chain_that_does_not_follow_from_the_one_before() -> None:
    first = chain_next("", "v")
    lines = [ONE, log("0/0"), log("0/1"), unit("p 1/1", "0/0", "0/0", "v", chain=first), failover("p", 2, 1)]
    holds(*lines, unit("p 2/2", "0/1", "0/1", "w", chain=chain_next(first, "w")))
    assert broken(*lines, unit("p 2/2", "0/1", "0/1", "w", chain=chain_next("other", "w"))) == {"I1"}


def test_i1_the_cores_digest_is_the_one_that_is_recognised() -> None:
    for chain, out in (("", "v"), ("ab", None)):
        assert chain_next(chain, out) == lineage.chain_next(chain, out)


def test_i1_two_backups_with_different_chains() -> None:
    lines = [
        ONE,
        log(),
        unit("p 1/1", "0/0", "0/0", "v"),
        durable("p 1/1"),
        applied("p 1/1", "b1", chain="aa"),
    ]
    holds(*lines, applied("p 1/1", "b2", chain="aa"))
    assert "I1" in broken(*lines, applied("p 1/1", "b2", chain="ab"))


def test_i1_an_orphan_unit_may_have_another_chain() -> None:
    holds(
        ONE,
        log(),
        unit("p 1/1", "0/0", "0/0", "v", chain="aa"),
        failover("p", 2, 0),
        unit("p 2/1", "0/0", "0/0", "w", chain="bb"),
        applied("p 2/1", chain="bb"),
        durable("p 2/1"),
    )


def test_i1_one_request_id_with_two_inputs() -> None:
    holds(ONE, log(key="k", digest="a"), log(key="k", digest="a", i="F-2", gen=2))
    assert "I1" in broken(ONE, log(key="k", digest="a"), log(key="k", digest="b"))
    assert "I1" in broken(ONE, log(key="k"), log(key="j"))
    assert "I1" in broken(
        ONE,
        log("0/0"),
        unit("p 1/1", "0/0", "0/0", "v", "F F!"),
        durable("p 1/1"),
        log("0/1", source="v"),
        log("0/1", source="w"),
        durable("p 1/1"),
    )


def test_i1_a_visible_value_that_nobody_computed() -> None:
    assert "I1" in broken(ONE, log(), reply("0/0", "v"))
    assert "I1" in broken(ONE, log(), unit("p 1/1", "0/0", "ghost", "v"), durable("p 1/1"))
    holds(ONE, log(), unit("p 1/1", "0/0", "ghost", "v"))


def test_i1_an_input_that_nobody_logged() -> None:
    lines = [ONE, unit("p 1/1", "0/0", "0/0", "v"), durable("p 1/1")]
    holds(*lines, log())
    assert "I1" in broken(*lines)


def test_i1_a_version_with_a_seq_that_nobody_executed() -> None:
    lines = [ONE, log("0/0"), log("0/1"), unit("p 1/2", "0/1", "0/1", "v"), durable("p 1/2")]
    report = verdict(lines)
    assert report.broken == {"I1"}
    assert "no line says who executed seq 1" in report.render()
    holds(*lines, unit("p 1/1", "0/0", "0/0", "w"))


def test_i1_a_gap_below_an_end_is_found_through_the_next_epoch() -> None:
    lines = [
        ONE,
        log("0/0"),
        log("0/1"),
        log("0/2"),
        unit("p 1/2", "0/1", "0/1", "v"),
        failover("p", 2, 2),
        unit("p 2/3", "0/2", "0/2", "w"),
    ]
    assert "I1" in broken(*lines, durable("p 2/3"))
    holds(*lines, unit("p 1/1", "0/0", "0/0", "u"), durable("p 2/3"))


def test_i1_an_end_of_an_epoch_of_which_no_line_tells() -> None:
    lines = [ONE, log("0/0"), failover("p", 2, 1), unit("p 2/2", "0/0", "0/0", "v"), durable("p 2/2")]
    assert broken(*lines) == {"I1"}


def test_i1_an_end_in_the_middle_of_a_batch() -> None:
    lines = [
        ONE,
        log("0/0"),
        log("0/1"),
        unit("p 1/1", "0/0", "0/0", "v", version=2),
        unit("p 1/2", "0/1", "0/1", "w"),
    ]
    holds(*lines, failover("p", 2, 2))
    holds(*lines, failover("p", 2, 0))
    assert broken(*lines, failover("p", 2, 1)) == {"I1"}


def test_i1_a_value_of_another_request() -> None:
    assert "I1" in broken(
        ONE, log("0/0"), log("0/1"), unit("p 1/1", "0/0", "0/0", "v"), durable("p 1/1"), reply("0/1", "v")
    )


def test_i1_a_new_epoch_does_not_write_over_what_was_kept() -> None:
    lines = [ONE, log("0/0"), log("0/1"), unit("p 1/1", "0/0", "0/0", "v"), failover("p", 2, 1)]
    holds(*lines, unit("p 2/2", "0/1", "0/1", "w"), durable("p 2/2"), reply("0/1", "w"))
    assert "I1" in broken(*lines, unit("p 2/1", "0/1", "0/1", "w"), durable("p 2/1"), reply("0/1", "w"))


def test_i1_an_applied_version_that_nobody_computed() -> None:
    assert broken(ONE, applied("p 1/1")) == {"I1"}
    holds(ONE, applied("p 1/0"))


# ---- I2 ----


def test_i2_two_values_of_a_stateless_operator() -> None:
    header = graph(s="stateless combine F", p="stateful combine s")
    lines = [
        header,
        log(),
        run("s", "0/0", "0/0", "s1", "p"),
        run("s", "0/0", "0/0", "s2", "p", i="s-2", epoch=2, gen=2),
    ]
    holds(*lines, unit("p 1/1", "0/0", "s2", "v"), durable("p 1/1"), reply("0/0", "v"))
    assert "I2" in broken(*lines, unit("p 1/1", "0/0", "s2", "v"), durable("p 1/1"), reply("0/0", "s1 v"))


def test_i2_a_fan_out_whose_branches_saw_two_values() -> None:
    header = graph(s="stateless combine F", p="stateful combine s", q="stateful combine s")
    lines = [
        header,
        log(),
        run("s", "0/0", "0/0", "s1", "p q"),
        run("s", "0/0", "0/0", "s2", "p q", i="s-2", epoch=2, gen=2),
    ]
    lines += [unit("p 1/1", "0/0", "s1", "p1"), durable("p 1/1"), durable("q 1/1")]
    holds(*lines, unit("q 1/1", "0/0", "s1", "q1"))
    report = verdict([*lines, unit("q 1/1", "0/0", "s2", "q1")])
    assert report.broken == {"I2"}
    assert "two visible values of s for 0/0: s1 by s-1 and s2 by s-2" in report.render()


def test_i2_two_lanes_are_two_values() -> None:
    header = graph(a="stateless combine F", b="stateless combine F", m="stateless interleave a b")
    lines = [
        header,
        log(),
        run("a", "0/0", "0/0", "a1", "m"),
        run("b", "0/0", "0/0", "b1", "m"),
        reply("0/0", "m1 m2"),
    ]
    holds(*lines, run("m", "0/0", "a1", "m1", lane=("a",)), run("m", "0/0", "b1", "m2", lane=("b",)))
    assert broken(
        *lines, run("m", "0/0", "a1", "m1", lane=("a",)), run("m", "0/0", "b1", "m2", lane=("a",))
    ) == {"I2", "I4"}


def test_i2_a_value_shown_before_a_failover_and_another_after() -> None:
    """Without the reply of the first value all is well: it was never visible."""
    lines = [
        ONE,
        log(),
        unit("p 1/1", "0/0", "0/0", "v"),
        failover("p", 2, 0),
        unit("p 2/1", "0/0", "0/0", "w"),
        durable("p 2/1"),
        reply("0/0", "w"),
    ]
    holds(*lines)
    assert "I2" in broken(*lines, reply("0/0", "v"))


def test_i2_two_replies_for_one_request() -> None:
    header = graph(s="stateless combine F")
    lines = [header, log(), run("s", "0/0", "0/0", "s1"), reply("0/0", "s1", digest="a")]
    holds(*lines, reply("0/0", "s1", digest="a", i="F-2", gen=2))
    holds(*lines, reply("0/0", "s1"))
    assert broken(*lines, reply("0/0", "s1", digest="b")) == {"I2"}
    assert broken(*lines, reply("0/0", "")) == {"I2"}


def test_i2_two_replies_for_one_key() -> None:
    header = graph(s="stateless combine F")
    lines = [
        header,
        log(key="k"),
        run("s", "0/0", "0/0", "s1"),
        reply("0/0", "s1", digest="a"),
        ret("c", "k", "a"),
    ]
    holds(*lines, ret("d", "k", "a"))
    assert "I2" in broken(*lines, ret("d", "k", "b"))
    other = [log("0/1", key="k"), run("s", "0/1", "0/1", "s2"), reply("0/1", "s2", digest="a")]
    assert broken(*lines, *other) == {"I2", "I4"}


def test_i2_two_fed_back_values_for_one_unit() -> None:
    header = graph(s="stateless combine F")
    lines = [
        header,
        log(),
        run("s", "0/0", "0/0", "s1", "F!"),
        run("s", "0/0", "0/0", "s2", "F!", i="s-2", epoch=2, gen=2),
    ]
    holds(*lines, log("0/1", source="s1"))
    assert broken(*lines, log("0/1", source="s1"), log("0/2", source="s2")) == {"I2"}


# ---- I3 ----


def test_i3_a_reply_waits_for_its_dependencies() -> None:
    lines = [ONE, log(), unit("p 1/1", "0/0", "0/0", "v"), reply("0/0", "v")]
    report = verdict(lines)
    assert report.broken == {"I3"}
    assert "depends on version 1 of p, epoch 1" in report.render()
    holds(*lines, durable("p 1/1"))
    holds(*lines, failover("p", 2, 1))


def test_i3_an_output_depends_on_the_whole_batch() -> None:
    lines = [
        ONE,
        log("0/0"),
        log("0/1"),
        unit("p 1/1", "0/0", "0/0", "v", version=2),
        unit("p 1/2", "0/1", "0/1", "w"),
        reply("0/0", "v"),
    ]
    assert "I3" in broken(*lines, durable("p 1/1"))
    holds(*lines, durable("p 1/2"))


def test_i3_a_dependency_through_the_state_counts() -> None:
    """q's second output stems from p2 alone, but q's state has taken in p1."""
    lines = [
        PAIR,
        log("0/0"),
        log("0/1"),
        unit("p 1/1", "0/1", "0/1", "p1", "q"),
        unit("p 1/2", "0/0", "0/0", "p2", "q"),
        unit("q 1/1", "0/0", "p2", "q1"),
        unit("q 1/2", "0/1", "p1", "q2"),
        durable("p 1/1"),
    ]
    assert broken(*lines, applied("q 1/2")) == {"I3"}
    assert broken(*lines, applied("q 1/1")) == {"I3"}
    holds(*lines, applied("q 1/2"), durable("p 1/2"))


def test_i3_a_version_applied_or_called_durable_too_early_in_order() -> None:
    header = graph(ordered=True, p="stateful combine F", q="stateful combine p")
    start = [header, log(), unit("p 1/1", "0/0", "0/0", "p1", "q"), unit("q 1/1", "0/0", "p1", "q1")]
    for early in (applied("q 1/1"), durable("q 1/1")):
        assert broken(*start, early, durable("p 1/1")) == {"I3"}
        holds(*start, durable("p 1/1"), early)


def test_i3_without_an_order_early_is_not_told_from_late() -> None:
    start = [PAIR, log(), unit("p 1/1", "0/0", "0/0", "p1", "q"), unit("q 1/1", "0/0", "p1", "q1")]
    holds(*start, durable("q 1/1"), durable("p 1/1"))


def test_i3_kept_by_an_end_counts_from_the_failover_on() -> None:
    header = graph(ordered=True, p="stateful combine F")
    start = [header, log(), unit("p 1/1", "0/0", "0/0", "v")]
    holds(*start, failover("p", 2, 1), reply("0/0", "v"))
    assert broken(*start, reply("0/0", "v"), failover("p", 2, 1)) == {"I3"}


def test_i3_through_a_stateless_operator() -> None:
    header = graph(p="stateful combine F", s="stateless combine p", q="stateful combine s")
    lines = [
        header,
        log(),
        unit("p 1/1", "0/0", "0/0", "p1", "s"),
        run("s", "0/0", "p1", "s1", "q"),
        unit("q 1/1", "0/0", "s1", "q1"),
        applied("q 1/1"),
    ]
    assert broken(*lines) == {"I3"}
    holds(*lines, durable("p 1/1"))


def test_i3_an_orphan_is_not_executed_by_who_knows_the_end() -> None:
    lines = [PAIR, log(), unit("p 1/1", "0/0", "0/0", "p1", "q"), failover("p", 2, 0, gen=5)]
    holds(*lines, unit("q 1/1", "0/0", "p1", "q1", gen=4))
    report = verdict([*lines, unit("q 1/1", "0/0", "p1", "q1", gen=5)])
    assert report.broken == {"I3"}
    assert "generation 5 had ended epoch 1 of p at 0" in report.render()


def test_i3_an_orphan_through_a_state_and_a_stateless_operator() -> None:
    header = graph(p="stateful combine F", q="stateful combine p", s="stateless combine q")
    lines = [
        header,
        log("0/0"),
        log("0/1"),
        unit("p 1/1", "0/0", "0/0", "p1", "q"),
        unit("q 1/1", "0/0", "p1", "q1", "s"),
        unit("p 1/2", "0/1", "0/1", "p2", "q"),
        unit("q 1/2", "0/1", "p2", "q2", "s"),
        failover("p", 2, 0, gen=5),
    ]
    holds(*lines, run("s", "0/1", "q2", "s2", gen=4))
    assert broken(*lines, run("s", "0/1", "q2", "s2", gen=6)) == {"I3"}


def test_i3_what_an_end_kept_is_no_orphan() -> None:
    lines = [PAIR, log(), unit("p 1/1", "0/0", "0/0", "p1", "q"), failover("p", 2, 1, gen=5)]
    holds(*lines, unit("q 1/1", "0/0", "p1", "q1", gen=6))


# ---- I4 ----


def test_i4_a_unit_twice_in_the_surviving_history() -> None:
    lines = [ONE, log(), unit("p 1/1", "0/0", "0/0", "v")]
    assert broken(*lines, unit("p 1/2", "0/0", "0/0", "w")) == {"I4"}
    assert broken(*lines, failover("p", 2, 1), unit("p 2/2", "0/0", "0/0", "w")) == {"I4"}
    holds(*lines, failover("p", 2, 0), unit("p 2/1", "0/0", "0/0", "w"))


def test_i4_a_skip_counts_as_a_unit() -> None:
    lines = [ONE, log(), unit("p 1/1", "0/0", "", None, "")]
    holds(*lines)
    assert broken(*lines, unit("p 1/2", "0/0", "0/0", "w")) == {"I4"}


def test_i4_a_complete_request_that_a_stateful_operator_never_saw() -> None:
    lines = [PAIR, log(), unit("p 1/1", "0/0", "0/0", "p1", "q"), durable("p 1/1"), done()]
    assert broken(*lines) == {"I4"}
    assert broken(*lines, unit("q 1/1", "0/0", "p1", "q1"), failover("q", 2, 0)) == {"I4"}
    holds(*lines, unit("q 1/1", "0/0", "p1", "q1"))
    holds(*[line for line in lines if not isinstance(line, CompleteLine)])


def test_i4_a_complete_request_whose_input_never_reached_its_operator() -> None:
    assert broken(ONE, log(), done()) == {"I4"}
    holds(ONE, log(), unit("p 1/1", "0/0", "0/0", "v"), done())
    holds(ONE, log())


def test_i4_a_value_taken_for_a_skip() -> None:
    lines = [PAIR, log(), unit("p 1/1", "0/0", "0/0", "p1", "q"), durable("p 1/1"), done()]
    report = verdict(answered((*lines, unit("q 1/1", "0/0", "", None, "F"))))
    assert report.broken == {"I4"}
    assert "which took it for a skip" in report.render()


def test_i4_a_required_input_that_was_skipped_excuses_a_skip() -> None:
    header = graph(p="stateful combine F", a="stateless combine F", q="stateful combine p a")
    lines = [
        header,
        log(),
        unit("p 1/1", "0/0", "0/0", "p1", "q"),
        run("a", "0/0", "0/0", "a1", ""),
        durable("p 1/1"),
        done(),
    ]
    holds(*lines, unit("q 1/1", "0/0", "p1", None, ""))
    assert "I4" in broken(*lines)


def test_i4_one_of_two_routed_values_left_out_of_a_combine() -> None:
    header = graph(p="stateful combine F", a="stateless combine F", q="stateful combine p a")
    lines = [
        header,
        log(),
        unit("p 1/1", "0/0", "0/0", "p1", "q"),
        run("a", "0/0", "0/0", "a1", "q"),
        durable("p 1/1"),
        durable("q 1/1"),
        done(),
    ]
    holds(*lines, unit("q 1/1", "0/0", "p1 a1", "q1"))
    # a1 is not visible: it may have been replaced
    assert "I4" not in broken(*lines, unit("q 1/1", "0/0", "p1", "q1"))
    assert "I4" in broken(*lines, unit("q 1/1", "0/0", "a1", "q1"))


def test_i4_a_lane_of_an_interleave_that_never_ran() -> None:
    header = graph(p="stateful combine F", q="stateful combine F", m="stateful interleave p q")
    lines = [
        header,
        log(),
        unit("p 1/1", "0/0", "0/0", "p1", "m"),
        unit("q 1/1", "0/0", "0/0", "q1", "m"),
        durable("p 1/1"),
        durable("q 1/1"),
        done(),
    ]
    lines.append(unit("m 1/1", "0/0", "p1", "m1", lane=("p",)))
    assert broken(*lines) == {"I4"}
    holds(*lines, unit("m 1/2", "0/0", "q1", "m2", lane=("q",)))


def test_i4_a_first_takes_one_of_its_values() -> None:
    header = graph(p="stateful combine F", q="stateful combine F", f="stateful first p q")
    lines = [
        header,
        log(),
        unit("p 1/1", "0/0", "0/0", "p1", "f"),
        unit("q 1/1", "0/0", "0/0", "q1", "f"),
        durable("p 1/1"),
        durable("q 1/1"),
        done(),
    ]
    holds(*lines, unit("f 1/1", "0/0", "q1", "f1"))
    assert broken(*lines) == {"I4"}


def test_i4_a_value_that_was_routed_elsewhere() -> None:
    header = graph(s="stateless combine F", p="stateful combine s", q="stateful combine s")
    lines = [header, log(), run("s", "0/0", "0/0", "s1", "p"), unit("p 1/1", "0/0", "s1", "p1"), done()]
    holds(*lines, unit("q 1/1", "0/0", "", None, "F"))
    assert broken(*lines, unit("q 1/1", "0/0", "s1", "q1")) == {"I4"}


def test_i4_a_run_on_skips_only() -> None:
    assert broken(ONE, log(), unit("p 1/1", "0/0", "", "v")) == {"I4"}


def test_i4_the_requests_input_where_no_edge_leads() -> None:
    lines = [PAIR, log(), unit("p 1/1", "0/0", "0/0", "p1", "q")]
    assert broken(*lines, unit("q 1/1", "0/0", "0/0", "q1")) == {"I4"}


def test_i4_one_key_logged_twice() -> None:
    assert broken(ONE, log("0/0", "k"), log("0/1", "k")) == {"I4"}
    holds(ONE, log("0/0", "k"), log("0/0", "k"), log("0/1", "j"), log("0/2"), log("0/3"))


def test_i4_one_value_fed_back_twice() -> None:
    lines = [ONE, log(), unit("p 1/1", "0/0", "0/0", "v", "F F!"), durable("p 1/1"), log("0/1", source="v")]
    holds(*lines, log("0/1", source="v", i="F-2", gen=2))
    assert broken(*lines, log("0/2", source="v")) == {"I4"}


# ---- I5 ----


def test_i5_two_instances_in_one_epoch() -> None:
    lines = [ONE, log("0/0"), log("0/1"), unit("p 1/1", "0/0", "0/0", "v")]
    holds(*lines, unit("p 1/2", "0/1", "0/1", "w"))
    assert broken(*lines, unit("p 1/2", "0/1", "0/1", "w", i="p-9")) == {"I5"}
    assert broken(*lines, durable("p 1/1", i="p-9")) == {"I5"}


def test_i5_another_primary_than_the_topology_named() -> None:
    assert broken(ONE, log(), failover("p", 2, 0), unit("p 2/1", "0/0", "0/0", "v", i="p-9")) == {"I5"}


def test_i5_two_instances_in_one_slot_epoch() -> None:
    header = graph(s="stateless combine F")
    lines = [header, log("0/0"), log("0/1"), run("s", "0/0", "0/0", "s1")]
    holds(*lines, run("s", "0/1", "0/1", "s2", i="s-2", slot=1))
    holds(*lines, run("s", "0/1", "0/1", "s2", i="s-2", epoch=2, gen=2))
    assert broken(*lines, run("s", "0/1", "0/1", "s2", i="s-2")) == {"I5"}


def test_i5_two_owners_of_a_shard_epoch() -> None:
    lines = [ONE, log("0/0", epoch=1), reply("0/0", "", epoch=1)]
    holds(*lines, TakeoverLine(shard=0, gen=2, epoch=2, i="F-2"), log("0/1", epoch=2, i="F-2", gen=2))
    assert broken(*lines, log("0/1", epoch=1, i="F-2")) == {"I5"}
    assert broken(
        *lines, TakeoverLine(shard=0, gen=2, epoch=2, i="F-2"), log("0/1", epoch=2, i="F-3", gen=2)
    ) == {"I5"}


def test_i5_two_different_lines_for_one_seq() -> None:
    lines = [ONE, log("0/0"), log("0/1"), unit("p 1/1", "0/0", "0/0", "v")]
    holds(*lines, unit("p 1/1", "0/0", "0/0", "v", gen=3))
    assert broken(*lines, unit("p 1/1", "0/1", "0/1", "w")) == {"I5"}


def test_i5_two_different_failovers_to_one_epoch() -> None:
    lines = [ONE, failover("p", 2, 0)]
    holds(*lines, failover("p", 2, 0))
    assert broken(*lines, failover("p", 2, 1)) == {"I5"}
    assert broken(*lines, failover("p", 2, 0, i="p-9")) == {"I5"}


def test_a_failover_was_committed_in_the_lowest_generation_that_tells_of_it() -> None:
    """Who learns of it later writes the generation it acts on by then."""
    lines = [PAIR, log(), failover("p", 2, 0, gen=9), failover("p", 2, 0, gen=5), failover("p", 3, 0, gen=8)]
    holds(*lines)
    orphan = unit("p 1/1", "0/0", "0/0", "p1", "q", gen=4)
    assert broken(*lines, orphan, unit("q 1/1", "0/0", "p1", "q1", gen=6)) == {"I3"}
    assert broken(*lines, unit("p 1/1", "0/0", "0/0", "p1", "q", gen=5)) == {"I5"}


def test_i5_an_instance_does_not_go_back() -> None:
    lines = [ONE, failover("p", 2, 0), applied("p 2/0")]
    holds(ONE, failover("p", 2, 0), applied("p 1/0"), applied("p 2/0"))
    assert broken(*lines, applied("p 1/0")) == {"I5"}
    holds(*lines, applied("p 1/0", i="other"))


def test_i5_an_epoch_rises_only_with_the_generation() -> None:
    lines = [ONE, log("0/0"), unit("p 1/1", "0/0", "0/0", "v", gen=4)]
    holds(*lines, failover("p", 2, 1, gen=5))
    assert broken(*lines, failover("p", 2, 1, gen=4)) == {"I5"}
    assert broken(*lines, failover("p", 2, 1, gen=3)) == {"I5"}
    header = graph(s="stateless combine F")
    slots = [header, log("0/0"), log("0/1"), run("s", "0/0", "0/0", "s1", gen=4)]
    holds(*slots, run("s", "0/1", "0/1", "s2", i="s-2", epoch=2, gen=5))
    assert broken(*slots, run("s", "0/1", "0/1", "s2", i="s-2", epoch=2, gen=4)) == {"I5"}


# ---- I7 ----


def final(
    primary: str | None = "p-1", insync: tuple[str, ...] | int = ("p-2",), left: tuple[str, ...] = ()
) -> FinalLine:
    return FinalLine(ops={"p": FinalOperator(primary=primary, epoch=1, insync=insync, version=1)}, open=left)


def ended(*lines: Any, header: GraphLine | None = None) -> list[Line]:
    whole = [unit("p 1/1", "0/0", "0/0", "v"), durable("p 1/1"), reply("0/0", "v"), done()]
    called = [CallLine(client="c", key=None, digest="a"), log(digest="a"), ret("c", None)]
    return [header or graph(want=1, p="stateful combine F"), *called, *whole, *lines]


def test_i7_a_run_that_has_converged() -> None:
    holds(*ended(final()))
    holds(*ended(final(insync=1)))
    holds(*ended(FaultLine(what="kill"), HealLine(), final()))


@pytest.mark.parametrize(
    "line",
    [final(primary=None), final(insync=()), final(insync=("p-1",)), final(insync=0), final(left=("0/0",))],
)
def test_i7_something_is_missing_at_the_end(line: FinalLine) -> None:
    assert broken(*ended(line)) == {"I7"}


def test_i7_a_shard_without_an_owner_at_the_end() -> None:
    def with_shard(primary: str | None) -> FinalLine:
        ops = {**final().ops, "F/0": FinalOperator(primary=primary, epoch=1, insync=0, version=None)}
        return FinalLine(ops=ops, open=())

    holds(*ended(with_shard("F-1")))
    assert broken(*ended(with_shard(None))) == {"I7"}


def test_i7_a_request_that_never_completed() -> None:
    assert broken(*ended(log("0/1"), final())) == {"I7"}
    holds(*ended(log("0/1")))


def test_i7_a_call_that_never_returned() -> None:
    assert broken(*ended(CallLine(client="d", key=None, digest="a"), final())) == {"I7"}


def test_i7_backups_wanted_by_operator() -> None:
    header = msgspec.structs.replace(graph(p="stateful combine F"), want={"p": 2})
    assert broken(*ended(final(), header=header)) == {"I7"}
    holds(*ended(final(insync=("a", "b")), header=header))


def test_i7_is_not_judged_while_faults_last() -> None:
    report = holds(*ended(FaultLine(what="partition"), final(primary=None)))
    assert [skip.check for skip in report.skips] == ["I7"]
    header = graph(ordered=True, want=1, p="stateful combine F")
    holds(*ended(HealLine(), FaultLine(what="partition"), final(primary=None), header=header))
    assert broken(*ended(FaultLine(what="partition"), HealLine(), final(primary=None), header=header)) == {
        "I7"
    }


# ---- losses that were reported ----


def test_a_reported_loss_exempts_what_it_took() -> None:
    start = [
        ONE,
        log("0/0"),
        log("0/1"),
        unit("p 1/1", "0/0", "0/0", "v"),
        unit("p 1/2", "0/1", "0/1", "w"),
        durable("p 1/2"),
        reply("0/1", "w"),
    ]
    restarted = [failover("p", 2, 1)]
    assert "I1" in broken(*start, *restarted)
    for epoch in (1, 2):
        report = holds(*start, *restarted, LostLine(op="p", epoch=epoch, version=1))
        assert any("survival of p" in skip.check for skip in report.skips)


def test_a_reported_loss_exempts_another_value_of_what_it_took() -> None:
    holds(
        ONE,
        log(),
        unit("p 1/1", "0/0", "0/0", "v"),
        durable("p 1/1"),
        LostLine(op="p", epoch=2, version=0),
        failover("p", 2, 0),
        unit("p 2/1", "0/0", "0/0", "w"),
        durable("p 2/1"),
        reply("0/0", "w"),
        done(),
    )


def test_a_reported_loss_exempts_neither_what_went_before_nor_other_operators() -> None:
    lines = [
        PAIR,
        log(),
        unit("p 1/1", "0/0", "0/0", "p1", "q"),
        durable("p 1/1"),
        unit("q 1/1", "0/0", "p1", "q1"),
        durable("q 1/1"),
        failover("p", 2, 1),
        failover("p", 3, 0),
        LostLine(op="p", epoch=3, version=0),
    ]
    holds(*lines)
    assert broken(*lines, failover("q", 2, 0)) == {"I1"}
    lines[6] = failover("p", 2, 0)
    assert "I1" in broken(*lines)


def test_what_a_lost_state_leaves_downstream_must_be_reported_too() -> None:
    lines = [
        graph(ordered=True, p="stateful combine F", q="stateful combine p"),
        log(),
        unit("p 1/1", "0/0", "0/0", "p1", "q"),
        unit("q 1/1", "0/0", "p1", "q1"),
        LostLine(op="p", epoch=1, version=0),
        failover("p", 2, 0),
        durable("q 1/1"),
    ]
    assert broken(*lines) == {"I3"}, "a durable version depends on one that never was"
    holds(*lines, LostLine(op="q", epoch=1, version=1))


def test_who_takes_what_is_left_of_a_lost_state_after_that_was_said_need_not_say_it_again() -> None:
    """In the order of one clock; lines of several processes do not tell what came first, and are not held to
    it."""
    head, tail = (
        [
            log(),
            unit("p 1/1", "0/0", "0/0", "p1", "q"),
            LostLine(op="p", epoch=1, version=0),
            failover("p", 2, 0),
        ],
        durable("q 1/1"),
    )
    taken = unit("q 1/1", "0/0", "p1", "q1")
    ordered = graph(ordered=True, p="stateful combine F", q="stateful combine p")
    holds(ordered, *head, taken, tail)
    holds(PAIR, *head[:2], taken, *head[2:], tail)


def test_a_lost_shard_may_log_a_key_again() -> None:
    lines = [ONE, log("0/0", "k"), log("0/1", "k")]
    holds(*lines, LostLine(op="F/0", epoch=2, version=0))
    assert broken(*lines, LostLine(op="F/1", epoch=2, version=0)) == {"I4"}


# ---- histories that are not valid ----


def test_who_began_again_after_a_loss_may_have_died_before_it_wrote_its_failover() -> None:
    report = check(
        [ONE, failover("p", 2, 0), LostLine(op="p", epoch=2, version=-1, why="all died"), failover("p", 4, 0)]
    )
    assert not report.problems
    assert not report.violations


def test_who_was_promoted_may_have_died_before_it_did_anything() -> None:
    """It was named by etcd, and never heard of it; a backup did."""
    units = [
        unit("p 1/1", "0/0", "0/0", "v"),
        unit("p 1/2", "0/1", "0/1", "w"),
        unit("p 3/2", "0/1", "0/1", "u", i="p-3"),
    ]
    report = check([ONE, log("0/0"), log("0/1"), *units[:2], applied("p 2/1"), failover("p", 3, 1), units[2]])
    assert not report.problems
    assert not report.violations
    downstream = unit("q 1/1", "0/1", "w", "x", gen=2)
    heard = [
        PAIR,
        log("0/0"),
        log("0/1"),
        *(unit(f"p 1/{n}", f"0/{n - 1}", f"0/{n - 1}", out, "q") for n, out in ((1, "v"), (2, "w"))),
    ]
    report = check([*heard, downstream, applied("p 2/1"), failover("p", 3, 1, gen=3)])
    assert "I3" not in report.broken, "who took the value in did not know yet"


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "no graph line"),
        ([log()], "no graph line"),
        ([ONE, ONE], "a second graph line"),
        ([ONE, unit("x 1/1", "0/0", "0/0", "v")], "operator 'x' is not in the graph line"),
        ([ONE, unit("p 1/1", "0/0", "0/0", "v", seq=None)], "needs seq and version"),
        ([ONE, unit("p 1/2", "0/0", "0/0", "v", version=1)], "a version is the last seq of its batch"),
        (
            [ONE, unit("p 1/1", "0/0", "0/0", "v", version=2), unit("p 1/2", "0/1", "0/1", "w", version=3)],
            "lies in the batch that ends with 2",
        ),
        ([graph(s="stateless combine F"), run("s", "0/0", "0/0", None)], "skips have no line"),
        ([graph(s="stateless combine F"), durable("s 1/1")], "is stateless"),
        ([ONE, log(), unit("p 2/1", "0/0", "0/0", "v")], "epoch 2 without a failover line"),
        (
            [ONE, log(), unit("p 2/1", "0/0", "0/0", "v"), failover("p", 3, 1)],
            "epoch 2 without a failover line",
        ),
        (
            [ONE, log(), durable("p 2/0"), durable("p 3/0"), failover("p", 4, 0)],
            "epoch 3 without a failover line",
        ),
        (
            [
                ONE,
                durable("p 2/0"),
                LostLine(op="p", epoch=3, version=-1, why="all died"),
                failover("p", 5, 0),
            ],
            "epoch 2 without a failover line",
        ),
        (
            [ONE, log("0/0"), log("0/1"), unit("p 1/1", "0/0", "0/0", "v"), unit("p 1/2", "0/1", "0/1", "v")],
            "names two executions",
        ),
        (
            [graph(ordered=True, p="stateful combine F"), failover("p", 4, 0)],
            "epochs 2, 3 without a failover line",
        ),
        (
            [
                ONE,
                log("0/0"),
                log("0/1"),
                unit("p 1/1", "0/0", "0/0", "v"),
                unit("p 1/2", "0/1", "0/1", "w"),
                applied("p 2/1"),
                failover("p", 3, 2),
            ],
            "version 1 applied in epoch 2, although epoch 3 says that it began at 2",
        ),
        ([graph(p="stateful combine q", q="stateful combine p")], "form a cycle"),
        ([graph(p="stateful zip F")], "join is 'zip'"),
        ([graph(p="stateful combine G")], "input 'G'"),
        ([ONE, FinalLine(ops={}, open=()), FinalLine(ops={}, open=())], "a second final line"),
    ],
)
def test_a_history_that_contradicts_the_format_is_not_valid(lines: list[Line], says: str) -> None:
    report = check(lines)
    assert says in "\n".join(problem.message for problem in report.problems)
    assert report.exit_code == (1 if report.violations else 2)


def test_what_is_missing_is_named() -> None:
    report = holds(ONE, log(), unit("p 1/1", "0/0", "0/0", "v"))
    assert {skip.why for skip in report.skips} == {
        "the history has no call lines",
        "the history has no ret lines",
        "the history has no final line, so it may end anywhere",
    }


# -- states that are run again -------------------------------------------------------------------------------

REPLAYED = EXAMPLE.replace('"want":1,', '"want":0,"mode":"LineageStash",').replace('"p-2:1"', '"p-1:1"')
"""The unit of epoch 1, after whose end epoch 2 began, is run again: its value has the same name."""


def of_lines(text: str) -> Report:
    return check([decode(line.encode()) for line in text.strip().splitlines()])


def replayed(*changes: tuple[str, str]) -> Report:
    text = REPLAYED.replace('"chain":"b7"', '"chain":"a1"')
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    lines = [line for line in text.strip().splitlines() if '"t":"apply"' not in line]
    early = next(line for line in lines if '"t":"reply"' in line)
    lines.remove(early)
    lines.insert(4, early)  # before the end: it waits for nothing
    return of_lines("\n".join(lines))


def test_what_an_end_cut_off_survives_if_it_is_run_again_alike():
    report = replayed()
    assert report.ok, [item.message for item in report.violations]


def test_a_model_that_makes_another_value_of_the_same_unit_is_found_guilty():
    again = '"epoch":2,"seq":1,"version":1,"req":"0/0","lane":[],"in":["0/0"],"out":"p-1:1"'
    report = replayed((again, again.replace("p-1:1", "another")))
    assert {item.invariant for item in report.violations} >= {"I1"}


def test_what_is_not_run_again_is_lost():
    text = "\n".join(
        line for line in REPLAYED.strip().splitlines() if '"i":"p-2"' not in line or "failover" in line
    )
    assert {item.invariant for item in of_lines(text).violations} >= {"I1"}


def test_elsewhere_a_unit_that_an_end_cut_off_and_that_was_visible_is_lost():
    assert not replayed(('"mode":"LineageStash"', '"mode":"NonStop"')).ok
