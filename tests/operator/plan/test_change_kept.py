"""Which states another shape goes on with."""

import pytest

from hams_operator.plan.change import decide, inherited_states, lost_states
from hams_operator.plan.names import ALLOW_STATE_LOSS

from .kit import PAIR, PLACE, graph, with_change

MORE = (
    with_change("from: count.y", "from: more.y")
    + """  - name: more
    stateful: {backups: 1}
    model: {entrypoint: "m:More", image: "m:1"}
    inputs: [count.y]
    outputs: [{name: y, datatype: FP32, shape: [4]}]
"""
)
NONE = with_change("spec:\n", "spec:\n  mode: None\n")
STATELESS = with_change("    stateful: {backups: 1}\n", "")


@pytest.mark.parametrize(
    ("old", "new", "inherited", "lost"),
    [
        (PAIR, MORE, ("count",), ()),
        (MORE, PAIR, ("count",), ("more",)),
        (PAIR, STATELESS, (), ("count",)),
        (STATELESS, PAIR, (), ()),
        (PAIR, NONE, (), ("count",)),
        (NONE, MORE.replace("spec:\n", "spec:\n  mode: None\n", 1), (), ("count",)),
    ],
    ids=["added", "removed", "stateless", "stateful", "bare metal", "bare metal before"],
)
def test_what_keeps_a_state_under_one_name_in_both_goes_on_with_it(
    old: str, new: str, inherited: tuple[str, ...], lost: tuple[str, ...]
) -> None:
    before, after = graph(old).data, graph(new).data
    assert (inherited_states(before, after), lost_states(before, after)) == (inherited, lost)
    decision = decide(after, PLACE, {0: graph(old)}, {})
    assert bool(decision.refused) is bool(lost)
    assert decision.place.incarnation == (0 if lost else 1)
    assert decision.inherited == (() if lost else inherited)
    allowed = decide(after, PLACE, {0: graph(old)}, {ALLOW_STATE_LOSS: "true"})
    assert (allowed.refused, allowed.inherited, allowed.follows) == ("", inherited, 0)


def test_one_that_has_not_taken_over_is_left_for_the_one_before_without_an_annotation() -> None:
    running = {0: graph(PAIR), 1: decide(graph(MORE).data, PLACE, {0: graph(PAIR)}, {}).graph}
    assert decide(graph(PAIR).data, PLACE, running, {}, {0, 1}).refused != ""
    assert decide(graph(PAIR).data, PLACE, running, {}, {0, 1}, unborn={1}).place.incarnation == 0


def test_what_follows_then_follows_the_one_that_serves() -> None:
    running = {0: graph(PAIR), 1: decide(graph(MORE).data, PLACE, {0: graph(PAIR)}, {}).graph}
    third = graph(MORE.replace("name: more", "name: most").replace("more.y", "most.y")).data
    decision = decide(third, PLACE, running, {}, {0, 1}, unborn={1})
    assert (decision.follows, decision.inherited, decision.place.incarnation, decision.refused) == (
        0,
        ("count",),
        2,
        "",
    )
