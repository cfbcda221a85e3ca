"""What a look plans of what it has seen: no API server, no etcd."""

import datetime
from dataclasses import replace
from typing import Any

from hams_graph import InvalidGraph
from hams_graph.problems import Problem
from hams_operator.controller.etcd_cache import Known
from hams_operator.controller.observation import Observation
from hams_operator.controller.planning import plan_of
from hams_operator.controller.pod_steps import (
    PodSteps,
    next_check_s,
    pod_overdue_s,
    pod_silent_s,
    pod_steps,
    pod_unseen_s,
    pod_unstarted_s,
)
from hams_operator.plan.pods_seen import Pod
from hams_protocol.succession.decision import successions_tried_max
from hams_protocol.succession.records import Follows, Phase, Succession
from hams_protocol.topology import ReplicaSet, Slot, SlotTable, Topology
from hams_wire.spec import encode_spec

from ..plan.kit import PAIR, PLACE, graph, with_change

NOW = datetime.datetime(2026, 1, 1, 0, 1, tzinfo=datetime.UTC)
ITEM: dict[str, Any] = {
    "metadata": {"name": "pair", "namespace": "shop", "uid": PLACE.owner_uid, "generation": 7}
}
RUNS = Topology(
    generation=3,
    sets=(ReplicaSet("count", 1, "pair-count-1-a", ("pair-count-2-a",)),),
    tables=(SlotTable("pass", (Slot(1, "pair-pass-1-a"),)),),
)
OTHER_SHAPE = with_change("name: pass", "name: through", with_change("pass.y", "through.y"))
NEXT = replace(PLACE, incarnation=1)
THIRD = replace(PLACE, incarnation=2)


def held(text: str = PAIR, incarnation: int = 0, **more: Any) -> Known:
    """An incarnation that has run."""
    compiled = graph(text, replace(PLACE, incarnation=incarnation))
    return Known(spec=encode_spec(compiled), topology=RUNS, **more)


def seen(*in_etcd: Known, away: str = "", pods: tuple[Pod, ...] = ()) -> Observation:
    return Observation(ITEM, PLACE, NOW, 100.0, (), pods, dict(enumerate(in_etcd)), away)


def ago(seconds: float) -> str:
    return (NOW - datetime.timedelta(seconds=seconds)).isoformat()


# -- which graph shall run where --------------------------------------------------------------------------


def test_a_graph_of_which_nothing_is_there_begins_as_incarnation_0() -> None:
    plan = plan_of(seen(), graph())
    assert plan.decision is not None
    assert (plan.decision.place, plan.decision.refused, plan.gives_up) == (PLACE, "", ())


def test_what_cannot_be_read_is_refused_where_nothing_runs_and_runs_as_before_where_something_does() -> None:
    wrong = InvalidGraph((Problem("spec.mode", "expected NonStop"),))
    fresh = plan_of(seen(), wrong)
    assert (fresh.decision, fresh.unread) == (None, False)
    assert fresh.problem is not None
    assert fresh.problem[0] == "Invalid"
    runs = plan_of(seen(held()), wrong).decision
    assert runs is not None
    assert runs.graph.data == graph().data
    assert runs.refused.endswith("Until then it runs as before")


def test_a_graph_that_runs_and_cannot_be_read_is_not_touched() -> None:
    plan = plan_of(seen(Known(spec=b"torn", topology=RUNS)), graph())
    assert (plan.decision, plan.unread) == (None, True)


def test_another_shape_waits_for_etcd() -> None:
    plan = plan_of(seen(held(), away="no leader"), graph(OTHER_SHAPE))
    assert plan.decision is not None
    assert plan.decision.place == PLACE
    assert plan.decision.refused.startswith("another shape begins when etcd is there: no leader")


def test_another_shape_begins_beside_the_one_that_runs_and_goes_on_with_its_states() -> None:
    decision = plan_of(seen(held()), graph(OTHER_SHAPE)).decision
    assert decision is not None
    assert (decision.place, decision.follows, decision.inherited) == (NEXT, 0, ("count",))


def test_a_change_that_was_taken_back_too_often_is_not_tried_again_until_the_resource_changes() -> None:
    for asked, refused in ((7, True), (6, False)):
        back = Succession(NEXT.graph_uid(), Phase.BACK, successions_tried_max, asked, "no answer")
        decision = plan_of(seen(held(succession=back)), graph(OTHER_SHAPE)).decision
        assert decision is not None
        assert ("not handed over" in decision.refused) == refused


def test_a_shape_that_was_to_take_over_is_given_up_when_another_one_is_asked_for() -> None:
    follows = Follows(PLACE.graph_uid(), ("count",))
    coming = replace(held(OTHER_SHAPE, 1), topology=Topology(generation=1), follows=follows)
    plan = plan_of(seen(held(), coming), graph())
    assert plan.decision is not None
    assert (plan.gives_up, plan.given_up) == (((PLACE.graph_uid(), NEXT.graph_uid()),), frozenset())
    back = Succession(NEXT.graph_uid(), Phase.BACK)
    settled = plan_of(seen(held(succession=back), coming), graph())
    assert (settled.gives_up, settled.given_up) == ((), frozenset({1}))


def test_an_incarnation_is_never_used_twice() -> None:
    back = Succession(NEXT.graph_uid(), Phase.BACK)
    decision = plan_of(seen(held(succession=back)), graph(OTHER_SHAPE)).decision
    assert decision is not None
    assert decision.place == THIRD


# -- which pods go ----------------------------------------------------------------------------------------


def test_a_pod_that_no_kubelet_speaks_of_goes_sooner_where_its_node_is_known_to_be_away() -> None:
    bound = Pod("p", "pass", uid="u", node="n", bound_at=ago(0.0))
    overdue = Pod("q", "pass", uid="v", node="n", deleting=True, gone_by=ago(pod_overdue_s + 1))

    def gone(after_s: float, *pods: Pod, away: str = "") -> list[str]:
        first = pod_steps(seen(pods=pods, away=away), PodSteps())
        later = replace(seen(pods=pods, away=away), at_s=100.0 + after_s)
        return [pod.name for pod, _ in pod_steps(later, first).delete]

    assert gone(pod_unseen_s, bound) == []
    assert gone(pod_unseen_s, bound, overdue) == ["p"]
    assert gone(pod_unstarted_s, bound, away="no leader") == ["p"]


def test_a_clock_that_is_fast_takes_no_pod_for_one_that_does_not_start() -> None:
    """Ours, or the API server's is slow: each pod would be deleted as soon as it has a node, for ever."""
    bound = Pod("p", "pass", uid="u", node="n", bound_at=ago(10 * pod_unstarted_s))
    assert pod_steps(seen(pods=(bound,)), PodSteps()).delete == ()


def test_a_pod_that_says_ready_without_a_registration_goes_after_a_while() -> None:
    pod = Pod("pair-count-9", "count", ready=True, uid="u", node="n")
    first = pod_steps(seen(held(), pods=(pod,)), PodSteps())
    assert (first.delete, first.silent_since) == ((), {"u": 100.0})
    later = replace(seen(held(), pods=(pod,)), at_s=100.0 + pod_silent_s)
    assert [gone.name for gone, _ in pod_steps(later, first).delete] == ["pair-count-9"]
    ended = pod_steps(replace(later, in_etcd={0: held(ended=True)}), first)
    assert (ended.delete, ended.silent_since) == ((), {})


def test_without_etcd_nobody_is_labelled_and_what_was_silent_stays_so() -> None:
    pod = Pod("pair-count-1", "count", ready=True, uid="u")
    known = held(registered={"pair-count-1-a": "count"})
    assert pod_steps(seen(known, pods=(pod,)), PodSteps()).roles == {"pair-count-1": "primary"}
    away = pod_steps(seen(known, pods=(pod,), away="no leader"), PodSteps(silent_since={"w": 1.0}))
    assert (away.roles, away.silent_since) == ({}, {"w": 1.0})


def test_the_next_look_is_when_the_first_pod_is_due() -> None:
    waits = Pod("a", "pass", uid="a", bound_at=ago(1.0))
    silent = Pod("b", "pass", uid="b", ready=True)
    assert next_check_s(seen(pods=(waits, silent)), {"b"}) == min(pod_unseen_s, pod_silent_s)
    assert next_check_s(seen(pods=(silent,)), ()) is None
