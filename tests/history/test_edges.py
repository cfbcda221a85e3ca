"""What a unit may consume, and what may leave the graph: along the edges, of its own request and lane."""

from typing import Any

import msgspec
import pytest
from tests.history.test_invariants_by_hand import (
    applied,
    broken,
    done,
    durable,
    failover,
    graph,
    holds,
    log,
    reply,
    ret,
    run,
    unit,
    verdict,
)

from hams_history.lines import CallLine, FinalLine, FinalOperator, GraphLine, LostLine

replace: Any = msgspec.structs.replace
ONE = graph(p="stateful combine F")
SINK = [ONE, log(), unit("p 1/1", "0/0", "0/0", "v"), durable("p 1/1")]


def since_2(header: GraphLine, **more: Any) -> Any:
    """Of a format that says what a loss is about."""
    return replace(header, format=2, **more)


@pytest.mark.parametrize("made", [unit("p 1/1", "0/0", "0/1", "v"), run("s", "0/0", "0/1", "v")])
def test_the_input_of_another_request(made: Any) -> None:
    header = graph(**{made.op: f"{'stateful' if made.seq else 'stateless'} combine F"})
    assert broken(header, log(), log("0/1"), made) == {"I1"}
    holds(header, log(), log("0/1"), replace(made, inputs=("0/0",)))


def test_a_lane_is_that_of_the_inputs() -> None:
    header = graph(a="stateless combine F", b="stateless combine F", m="stateless interleave a b")
    lines = [header, log(), run("a", "0/0", "0/0", "a1", "m"), run("b", "0/0", "0/0", "b1", "m")]
    holds(*lines, run("m", "0/0", "a1", "m1", lane=("a",)))
    assert broken(*lines, run("m", "0/0", "a1", "m1", lane=("b",))) == {"I4"}
    assert broken(*lines, run("m", "0/0", "a1", "m1")) == {"I4"}
    assert broken(*lines, run("m", "0/0", "a1 b1", "m1", lane=("a",))) == {"I4"}
    assert broken(ONE, log(), unit("p 1/1", "0/0", "0/0", "v", lane=("made-up",))) == {"I4"}


def test_two_values_over_one_edge() -> None:
    header = graph(a="stateless combine F", q="stateful combine a")
    lines = [
        header,
        log(),
        run("a", "0/0", "0/0", "v", "q"),
        run("a", "0/0", "0/0", "w", "q", epoch=2, gen=2),
    ]
    holds(*lines, unit("q 1/1", "0/0", "w", "x"))
    assert broken(*lines, unit("q 1/1", "0/0", "v w", "x")) == {"I4"}


def test_a_route_to_where_no_edge_goes() -> None:
    header = graph(s="stateless combine F", q="stateful combine F")
    assert broken(header, log(), run("s", "0/0", "0/0", "v", "q F")) == {"I4"}


def test_a_reply_of_what_was_not_routed_to_the_frontend() -> None:
    header = graph(s="stateless combine F", q="stateful combine s")
    lines = [
        header,
        log(),
        run("s", "0/0", "0/0", "v", "q"),
        unit("q 1/1", "0/0", "v", "w"),
        durable("q 1/1"),
    ]
    holds(*lines, reply("0/0", "w"))
    assert broken(*lines, reply("0/0", "v w")) == {"I4"}


def test_feedback_of_what_was_not_fed_back() -> None:
    lines = [ONE, log(), durable("p 1/1"), log("0/1", source="v")]
    holds(*lines, unit("p 1/1", "0/0", "0/0", "v", "F!"))
    assert broken(*lines, unit("p 1/1", "0/0", "0/0", "v", "F")) == {"I4"}


def test_feedback_waits_for_what_it_depends_on() -> None:
    ordered = graph(True, p="stateful combine F")
    made, fed, kept = unit("p 1/1", "0/0", "0/0", "v", "F!"), log("0/1", source="v"), durable("p 1/1")
    holds(ordered, log(), made, kept, fed)
    assert broken(ordered, log(), made, fed, kept) == {"I3"}
    assert broken(ordered, log(), made, fed) == {"I3"}


def test_a_complete_request_without_a_reply() -> None:
    assert verdict([*SINK, done()]).broken == {"I1"}
    assert verdict([*SINK, reply("0/0", "v"), done()]).ok


def test_a_key_with_one_payload_is_no_conflict() -> None:
    calls = [CallLine(client=name, key="k", digest="d") for name in ("c1", "c2")]
    lines = [*calls, log("0/0", "k", "d"), *SINK[2:], reply("0/0", "v", digest="r"), ret("c1", "k", "r")]
    holds(ONE, *lines, ret("c2", "k", "r"))
    assert broken(ONE, *lines, ret("c2", "k", status="conflict")) == {"I2"}
    other = [calls[0], CallLine(client="c2", key="k", digest="e"), *lines[2:]]
    holds(ONE, *other, ret("c2", "k", status="conflict"))


def test_block_holds_each_durable_version_twice() -> None:
    header = since_2(graph(want=1, p="stateful combine F"), blocks=True)
    assert broken(header, *SINK[1:]) == {"I1"}
    holds(header, *SINK[1:], applied("p 1/1"))
    assert broken(header, *SINK[1:], applied("p 1/1", i="p-1")) == {"I1"}
    holds(since_2(graph(p="stateful combine F"), blocks=True), *SINK[1:])


def final(version: int, epoch: int = 1) -> FinalLine:
    """p-1 leads at the end."""
    return FinalLine(
        ops={"p": FinalOperator(primary="p-1", epoch=epoch, insync=(), version=version)}, open=()
    )


def test_who_leads_at_the_end_has_what_was_durable() -> None:
    lines = [*SINK, reply("0/0", "v"), done()]
    holds(*lines, final(1))
    assert broken(*lines, final(0)) == {"I1"}
    second = [failover("p", 2, 1), durable("p 2/1")]
    assert broken(*lines, *second, final(1)) == {"I7"}
    holds(*lines, *second, final(1, epoch=2))


STEMS = graph(True, p="stateful combine F", r="stateful combine F", q="stateful combine p r")
LOSS = [LostLine(op="p", epoch=1, version=0, kind="restarted"), failover("p", 2, 0)]
STEMS_LINE = LostLine(op="q", epoch=1, version=1, kind="stems")


def stems(*later: Any, loss: bool = True) -> list[Any]:
    """q has taken in a version of p that is lost, perhaps, and has said so."""
    return [
        since_2(STEMS),
        log(),
        unit("p 1/1", "0/0", "0/0", "p1", "q"),
        unit("r 1/1", "0/0", "0/0", "r1", "q"),
        durable("r 1/1"),
        unit("q 1/1", "0/0", "p1 r1", "q1"),
        *(LOSS if loss else ()),
        STEMS_LINE,
        durable("q 1/1"),
        *later,
    ]


def test_what_stems_from_a_loss_is_excused_and_nothing_else() -> None:
    holds(*stems())
    assert broken(*stems(loss=False)) == {"I3"}
    later = [
        log("0/1"),
        unit("r 1/2", "0/1", "0/1", "r2", "q"),
        unit("p 2/1", "0/1", "0/1", "p2", "q"),
        unit("q 1/2", "0/1", "p2 r2", "q2"),
        durable("q 1/2"),
    ]
    assert broken(*stems(*later)) == {"I3"}
    holds(*stems(*later[:3], durable("r 1/2"), durable("p 2/1"), *later[3:]))


def test_a_reply_of_what_is_lost_only_later_was_no_reply() -> None:
    header = since_2(graph(True, p="stateful combine F"))
    lines = [header, log(), unit("p 1/1", "0/0", "0/0", "v")]
    assert broken(*lines, reply("0/0", "v"), *LOSS) == {"I3"}
    holds(*lines, *LOSS, reply("0/0", "v", gen=2))


def test_a_lost_log_excuses_what_it_took_and_no_two_stories() -> None:
    lost = LostLine(op="F/0", epoch=1, version=0, kind="restarted")
    told = reply("0/0", "v", digest="r", epoch=1)
    lines = [since_2(ONE), log("0/0", "k", "d", epoch=1, shard=0), *SINK[2:], told, done(), lost]
    holds(*lines, ret("c1", "k", "r"))
    assert broken(*lines, ret("c1", "k", "another"), ret("c2", "k", "r")) == {"I2"}
    again = [
        unit("p 1/2", "0/1", "0/1", "w"),
        durable("p 1/2"),
        reply("0/1", "w", digest="r2"),
        done("0/1"),
        ret("c1", "k", "r"),
        ret("c2", "k", "r2"),
    ]
    holds(*lines, log("0/1", "k", "d", epoch=2, shard=0, gen=2), *again)
    assert {"I2", "I4"} == broken(*lines, log("0/1", "k", "d", epoch=1, shard=0), *again)


def test_a_shard_that_is_gone_at_the_end_stops_the_graph_and_that_was_said() -> None:
    gone = LostLine(op="F/0", epoch=1, version=-1, kind="gone")
    ends = {
        "p": FinalOperator(primary="p-1", epoch=1, insync=(), version=0),
        "F/0": FinalOperator(primary=None, epoch=1, insync=(), version=None),
    }
    lines = [since_2(ONE), log(), FinalLine(ops=ends, open=())]
    holds(*lines, gone)
    assert broken(*lines) == {"I7"}
