"""Which changes a running graph takes."""

import pytest

from hams_operator.plan.change import decide
from hams_operator.plan.names import ALLOW_STATE_LOSS
from hams_protocol.graph import Graph

from .kit import PAIR, PLACE, graph, with_change

STATELESS = with_change("    stateful: {backups: 1}\n", "")


def running(text: str) -> dict[int, Graph]:
    return {0: graph(text)}


def test_a_graph_that_does_not_run_yet_is_the_first_incarnation() -> None:
    decision = decide(graph().data, PLACE, {}, {})
    assert (decision.place, decision.graph.data, decision.refused) == (PLACE, graph().data, "")


@pytest.mark.parametrize(
    "change",
    [
        ('image: "m:1"', 'image: "m:2"'),
        ("{backups: 1}", "{backups: 2, window: 8}"),
        ("replicas: 2", "replicas: 3"),
        ("spec:\n", "spec:\n  frontend: {replicas: 3, requestTimeout: 5s}\n"),
    ],
)
def test_how_it_runs_may_change_while_it_runs(change: tuple[str, str]) -> None:
    asked = with_change(*change)
    decision = decide(graph(asked).data, PLACE, running(PAIR), {})
    assert (decision.place.incarnation, decision.graph.data, decision.refused) == (0, graph(asked).data, "")


def test_another_shape_of_a_graph_with_state_is_refused_and_it_runs_as_before() -> None:
    asked = with_change("shape: [4]}]\n    replicas", "shape: [5]}]\n    replicas")
    decision = decide(graph(with_change("spec:\n", "spec:\n  mode: None\n")).data, PLACE, running(PAIR), {})
    assert "mode NonStop becomes None" in decision.refused
    assert "the state of count" in decision.refused
    assert decision.graph.data == graph().data
    assert asked != PAIR


def test_an_annotation_allows_it_and_a_new_incarnation_begins() -> None:
    asked = with_change("name: count", "name: counter", with_change("count.y", "counter.y"))
    decision = decide(graph(asked).data, PLACE, running(PAIR), {ALLOW_STATE_LOSS: "true"})
    assert (decision.refused, decision.place.incarnation) == ("", 1)
    assert decision.graph.data.uid == decision.place.graph_uid() != PLACE.graph_uid()


def test_a_graph_without_state_may_take_any_shape() -> None:
    asked = with_change("name: count", "name: counter", with_change("count.y", "counter.y", STATELESS))
    decision = decide(graph(asked).data, PLACE, running(STATELESS), {})
    assert (decision.refused, decision.place.incarnation) == ("", 1)


COUNTER = with_change("name: count", "name: counter", with_change("count.y", "counter.y"))
ALLOWED = {ALLOW_STATE_LOSS: "true"}


def begun() -> dict[int, Graph]:
    """Another shape has been let in and comes up beside the first one."""
    return running(PAIR) | {1: decide(graph(COUNTER).data, PLACE, running(PAIR), ALLOWED).graph}


@pytest.mark.parametrize(
    ("whole", "annotations", "incarnation", "refused"),
    [
        ({0, 1}, ALLOWED, 0, False),  # the newer states are given up, as it says
        ({0, 1}, {}, 1, True),  # the newer one may have taken requests
        ({0}, {}, 0, False),  # not made yet, or given up before
        ({1}, ALLOWED, 2, False),  # the first one is going
        (set(), {}, 1, True),
    ],
)
def test_a_change_that_has_not_taken_over_can_be_undone_and_the_first_states_stay(
    whole: set[int], annotations: dict[str, str], incarnation: int, refused: bool
) -> None:
    decision = decide(graph().data, PLACE, begun(), annotations, whole)
    assert (decision.place.incarnation, bool(decision.refused)) == (incarnation, refused)
    assert decision.graph.data.uid == decision.place.graph_uid()


@pytest.mark.parametrize("whole", [set(), {0}, {1}, {0, 1}])
def test_the_one_that_comes_up_goes_on_while_it_is_asked_for(whole: set[int]) -> None:
    decision = decide(graph(COUNTER).data, PLACE, begun(), {}, whole)
    assert (decision.place.incarnation, decision.refused) == (1, "")


def test_beside_a_whole_one_a_half_made_one_is_not_what_goes_on() -> None:
    third = graph(with_change("spec:\n", "spec:\n  mode: None\n")).data
    assert decide(third, PLACE, begun(), {}, {0}).place.incarnation == 0
    assert decide(third, PLACE, begun(), {}, {0, 1}).place.incarnation == 1


def test_a_number_that_was_used_is_not_used_again() -> None:
    assert (
        decide(graph(COUNTER).data, PLACE, running(PAIR), ALLOWED, {0}, used=lambda: 3).place.incarnation == 4
    )


def test_the_newest_incarnation_counts() -> None:
    first = running(STATELESS)
    asked = with_change("name: count", "name: counter", with_change("count.y", "counter.y", STATELESS))
    begun = decide(graph(asked).data, PLACE, first, {})
    again = decide(graph(asked).data, PLACE, first | {1: begun.graph}, {})
    assert (again.place, again.graph.data) == (begun.place, begun.graph.data)
