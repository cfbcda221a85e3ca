"""A graph on a cluster as scenarios see and hurt it, against an API server in memory; and what the report
says."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from hams_operator.chaos.live import (
    Background,
    LiveRun,
    NotInTime,
    background,
    rolled_out,
    spare,
    why_not_redundant,
)
from hams_operator.chaos.report import ChaosReport, gaps_ms, slowest_ms
from hams_operator.cli.cluster import Cluster
from hams_operator.controller.kube import Resource
from hams_operator.graph_seen import ClusterGraph
from hams_operator.plan.pods_seen import pod_seen

from ..controller.fakes import FakeKube

Json = dict[str, Any]

STATUS: Json = {
    "observedGeneration": 2,
    "conditions": [
        {"type": "Ready", "status": "True", "reason": "Serving", "message": ""},
        {"type": "Redundant", "status": "True", "reason": "InSync", "message": ""},
    ],
    "operators": [
        {"name": "pass", "active": ["g-pass-1-aa"], "epoch": 1},
        {"name": "count", "primary": "g-count-1-aa", "inSync": ["g-count-2-aa"], "epoch": 3},
    ],
}
GRAPH: Json = {
    "apiVersion": "hams.dev/v1alpha1",
    "kind": "ServiceGraph",
    "metadata": {"name": "g", "namespace": "n", "generation": 2},
    "spec": {
        "operators": [
            {"name": "pass", "model": {"image": "m:1"}},
            {"name": "count", "stateful": {}, "model": {"image": "m:1"}},
        ]
    },
    "status": STATUS,
}


def pod(name: str, of: str, *, ready: bool = True, deleting: bool = False) -> Json:
    key = "hams.dev/role" if of in ("frontend", "manager") else "hams.dev/operator"
    metadata: Json = {"name": name, "namespace": "n", "labels": {"hams.dev/graph": "g", key: of}}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": "node1"},
        "status": {"conditions": conditions},
    }


PODS = [
    pod("g-pass-1", "pass"),
    pod("g-count-1", "count"),
    pod("g-count-2", "count"),
    pod("g-frontend-1", "frontend"),
    pod("g-frontend-2", "frontend"),
    pod("g-manager-1", "manager"),
]


def found(pods: list[Json] = PODS, **status: Any) -> ClusterGraph:
    return ClusterGraph({**GRAPH, "status": {**STATUS, **status}}, tuple(pod_seen(item) for item in pods))


def test_redundant_is_what_status_and_pods_say_together() -> None:
    assert why_not_redundant(found()) == ""
    assert "newest change" in why_not_redundant(found(observedGeneration=1))
    lost = {
        "type": "Redundant",
        "status": "False",
        "reason": "Degraded",
        "message": "count has 0 of 1 backups in sync",
    }
    assert (
        why_not_redundant(found(conditions=[STATUS["conditions"][0], lost]))
        == "count has 0 of 1 backups in sync"
    )
    assert (
        why_not_redundant(found(conditions=[STATUS["conditions"][0], {**lost, "reason": "NotAskedFor"}]))
        == ""
    )
    assert (
        why_not_redundant(found([*PODS, pod("g-count-3", "count", ready=False)]))
        == "pod g-count-3 is not Ready"
    )
    assert why_not_redundant(found([*PODS[:1], *PODS[2:]])) == "g-count-1-aa has no pod any more", (
        "the status lags behind a deletion"
    )


def test_spare_is_who_leaves_another_member_behind() -> None:
    assert spare(found()) == [item["metadata"]["name"] for item in PODS]
    gone = [
        item if item["metadata"]["name"] != "g-count-2" else pod("g-count-2", "count", deleting=True)
        for item in PODS
    ]
    assert "g-count-1" not in spare(found(gone))
    assert "g-count-2" not in spare(found(gone))
    assert not {"g-frontend-1", "g-frontend-2"} & set(spare(found([*PODS[:4], *PODS[5:]]))), (
        "the only frontend that is ready holds the log"
    )
    assert "g-pass-1" in spare(found(gone))


def test_a_deployment_is_rolled_out_when_all_of_its_pods_are_of_the_newest_kind() -> None:
    item: Json = {
        "metadata": {"generation": 4},
        "spec": {"replicas": 2, "template": {"spec": {"containers": [{"name": "model", "image": "m:2"}]}}},
        "status": {"observedGeneration": 4, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2},
    }
    assert rolled_out(item, "m:2")
    assert not rolled_out(item, "m:3")
    for name, value in (
        ("observedGeneration", 3),
        ("replicas", 3),
        ("updatedReplicas", 1),
        ("readyReplicas", 1),
    ):
        other = copy.deepcopy(item)
        other["status"][name] = value
        assert not rolled_out(other, "m:2"), name


@pytest.fixture
def there() -> Iterator[Background]:
    with background() as result:
        yield result


@pytest.fixture
def kube() -> FakeKube:
    kube = FakeKube()
    for item in (GRAPH, *PODS):
        kube.put(item)
    template = {
        "metadata": {"annotations": {"kept": "1"}},
        "spec": {"containers": [{"name": "model", "image": "m:1"}]},
    }
    metadata = {
        "name": "g-count",
        "namespace": "n",
        "labels": {"hams.dev/graph": "g", "hams.dev/operator": "count"},
    }
    kube.put(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {"replicas": 2, "template": template},
        }
    )
    return kube


def live(there: Background, kube: FakeKube) -> LiveRun:
    return LiveRun(there, Cluster(kube, "n"), "g", "hams-system", lambda: 0)  # type: ignore[arg-type]


def test_a_deleted_pod_is_a_fault_of_its_time_and_force_gives_no_grace(
    there: Background, kube: FakeKube
) -> None:
    run = live(there, kube)
    assert run.pod_of("count", "primary") == "g-count-1"
    assert run.pod_of("count", "backup") == "g-count-2"
    assert run.pod_of("pass", "active") == "g-pass-1"
    run.delete(run.pod_of("frontend", "frontend"), force=True)
    assert [what for _, what in run.faults] == ["force delete g-frontend-1"]
    assert kube.graces["g-frontend-1"] == 0
    run.changed()
    run.delete("g-count-1")
    assert kube.graces["g-count-1"] is None
    assert run.pods_of("count") == ["g-count-2"]
    assert run.epoch_of("count") == 3
    assert dict(run.operators) == {"pass": False, "count": True}


def test_a_lost_state_that_waits_for_a_person_is_not_waited_for(there: Background, kube: FakeKube) -> None:
    message = (
        "no replica of the state of count is left; to begin it again: hams restart count (annotation "
        "hams.dev/restart-lost: count@4)"
    )
    lost = {"type": "Ready", "status": "False", "reason": "StateLost", "message": message}
    kube.put({**GRAPH, "status": {**STATUS, "conditions": [lost]}})
    with pytest.raises(
        NotInTime,
        match="a person decides: no replica of the state of count is left; to begin it again: hams restart "
        "count",
    ):
        live(there, kube).redundant()
    kube.put(
        {
            **GRAPH,
            "status": {**STATUS, "conditions": [{**lost, "message": "no replica is left; it begins again"}]},
        }
    )
    with pytest.raises(NotInTime, match="not redundant within 0 s: no replica is left; it begins again"):
        live(there, kube).redundant(within_s=0.0)


def test_a_restart_changes_the_deployment_and_an_image_changes_the_resource(
    there: Background, kube: FakeKube
) -> None:
    run = live(there, kube)
    run.change_model("count")
    annotations = kube.items["Deployment", "n", "g-count"]["spec"]["template"]["metadata"]["annotations"]
    assert set(annotations) == {"kept", "kubectl.kubernetes.io/restartedAt"}
    run.change_model("count", "m:2")
    operators = kube.items["ServiceGraph", "n", "g"]["spec"]["operators"]
    assert [op["model"]["image"] for op in operators] == ["m:1", "m:2"]
    assert operators[1]["stateful"] == {}


class Selective(FakeKube):
    """An API server that heeds selectors, and on which nothing happens by itself but that Deployments follow
    their replicas."""

    async def page(self, resource: Resource, namespace: str, selector: str, after: str = "") -> Json:
        wanted = dict(part.split("=") for part in selector.split(","))
        page = await super().page(resource, namespace, selector, after)
        return {
            **page,
            "items": [
                item for item in page["items"] if wanted.items() <= item["metadata"].get("labels", {}).items()
            ],
        }

    async def merge(self, resource: Resource, namespace: str, name: str, patch: Json) -> Json:
        held = await super().merge(resource, namespace, name, patch)
        return (
            self.put({**held, "status": {"readyReplicas": held["spec"]["replicas"]}})
            if resource.kind == "Deployment"
            else held
        )


def controllers_of(name: str, kube: FakeKube) -> None:
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/component": "controller"}
    metadata: Json = {"name": f"{name}-controller", "namespace": "hams-system", "labels": labels}
    kube.put({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"replicas": 2}})


def test_controllers_of_others_are_let_be_and_ours_come_back(there: Background) -> None:
    kube = Selective()
    for name in ("hams", "cert-manager"):
        controllers_of(name, kube)
        kube.put(
            {
                **pod(f"{name}-1", name),
                "metadata": {**kube.of("Deployment")[-1]["metadata"], "name": f"{name}-1"},
            }
        )
    run = live(there, kube)
    run.delete_controllers(force=True)
    assert [item["metadata"]["name"] for item in kube.of("Pod")] == ["cert-manager-1"]
    run.stop_controllers()
    assert {item["metadata"]["name"]: item["spec"]["replicas"] for item in kube.of("Deployment")} == {
        "hams-controller": 0,
        "cert-manager-controller": 2,
    }
    run.start_controllers()
    assert {item["spec"]["replicas"] for item in kube.of("Deployment")} == {2}


def test_controllers_that_were_not_found_are_not_waited_for(there: Background) -> None:
    kube = Selective()
    controllers_of("cert-manager", kube)
    run = live(there, kube)
    with pytest.raises(NotInTime, match="say where it is with --system"):
        run.stop_controllers()
    with pytest.raises(NotInTime, match="no controller in namespace hams-system"):
        run.delete_controllers()
    run.start_controllers()
    assert kube.calls == []
    assert run.faults == [], "nothing was done"


def member(number: int, *, ready: bool = True, kept: bool = True) -> Json:
    labels = {"app.kubernetes.io/name": "hams", "app.kubernetes.io/component": "etcd"}
    item = pod(f"hams-etcd-{number}", "etcd", ready=ready)
    volume = (
        {"persistentVolumeClaim": {"claimName": f"data-hams-etcd-{number}"}} if kept else {"emptyDir": {}}
    )
    spec = {**item["spec"], "volumes": [{"name": "tls", "secret": {}}, {"name": "data", **volume}]}
    return {
        **item,
        "metadata": {**item["metadata"], "namespace": "hams-system", "labels": labels},
        "spec": spec,
    }


def test_one_member_of_etcd_goes_by_force_and_is_waited_for(there: Background) -> None:
    kube = Selective()
    for number in (2, 0, 1):
        kube.put(member(number))
    run = live(there, kube)
    run.lose_etcd_member()
    assert kube.graces == {"hams-etcd-0": 0}
    assert [what for _, what in run.faults] == ["force delete hams-etcd-0"]
    for there_already in ([], [member(0, ready=False)]):
        for item in there_already:
            kube.put(item)
        with pytest.raises(NotInTime, match="3 members of etcd that are Ready: not within 0 s"):
            run.etcd_whole(within_s=0.0)
    kube.put(member(0))
    run.etcd_whole(within_s=0.0)


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([], "no member of the chart's etcd in namespace hams-system: say where it is with --system"),
        ([member(0)], "of 1 there would be no majority"),
        ([member(0), member(1, ready=False), member(2)], "hams-etcd-1 is not Ready"),
        ([member(number, kept=False) for number in range(3)], "its data would go with it"),
    ],
)
def test_a_member_of_etcd_that_cannot_be_spared_is_let_be(
    there: Background, members: list[Json], why: str
) -> None:
    kube = Selective()
    for item in members:
        kube.put(item)
    run = live(there, kube)
    with pytest.raises(ValueError, match=why):
        run.lose_etcd_member()
    assert (kube.graces, run.faults) == ({}, [])


@pytest.mark.parametrize("cordoned", [True, False])
def test_a_node_that_was_cordoned_before_its_drain_stays_so(there: Background, cordoned: bool) -> None:
    kube = FakeKube()
    kube.put(GRAPH)
    kube.put(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "node1"},
            "spec": {"unschedulable": True} if cordoned else {},
        }
    )
    run = live(there, kube)
    run.drain("node1")
    assert kube.items["Node", "", "node1"]["spec"] == {"unschedulable": True}
    run.undrain("node1")
    assert kube.items["Node", "", "node1"]["spec"] == ({"unschedulable": True} if cordoned else {})


def test_what_does_not_come_is_named(there: Background, kube: FakeKube) -> None:
    run = live(there, kube)
    with pytest.raises(NotInTime, match="7 more replies: not within 0 s"):
        run.answered(7, within_s=0.0)
    with pytest.raises(NotInTime, match="a failover of count"):
        run.moved("count", 3, within_s=0.0)
    kube.put(pod("g-count-3", "count", ready=False))
    with pytest.raises(NotInTime, match="pod g-count-3 is not Ready"):
        run.redundant(within_s=0.0)


def report(**more: Any) -> ChaosReport:
    counts: Json = {
        "requests": 3,
        "answered": 3,
        "failed": 0,
        "failures": {},
        "wrong": [],
        "again": 0,
        "availability": 1.0,
    }
    fields: Json = {
        "scenario": "F14/random",
        "graph": "g",
        **counts,
        "latency_ms": {},
        "gap_ms": {},
        "faults": [],
        "seconds": 1.0,
    }
    return ChaosReport(**{**fields, **more})


def test_a_report_is_good_only_if_nothing_failed_and_the_scenario_ended() -> None:
    assert report().good
    for bad in ({"failed": 1}, {"wrong": ["x"]}, {"error": "not redundant"}, {"requests": 0}):
        assert not report(**bad).good
    assert "did not come to its end: not redundant" in report(error="not redundant").text()


def test_a_gap_is_the_longest_silence_around_its_fault() -> None:
    replies = [0.0, 1.0, 1.1, 1.5, 1.6, 30.0]
    assert gaps_ms(replies, [0.5], 0.0, 30.0) == [28400.0]
    assert gaps_ms(replies, [0.5, 1.05], 0.0, 30.0) == [1000.0, 28400.0], (
        "what came after the next fault is not this one's"
    )
    assert gaps_ms(replies[:-1], [1.05, 1.2], 0.0, 1.6) == [400.0, 400.0], "the same silence after two"
    assert gaps_ms(replies[:-1], [1.05, 1.55], 0.0, 1.6) == [400.0, 100.0]


def test_a_graph_that_answers_no_more_has_a_gap_until_the_end_of_the_load() -> None:
    assert gaps_ms([1.0, 1.5], [2.0], 0.0, 33.5) == [32000.0]
    assert gaps_ms([], [2.0], 0.0, 33.5) == [33500.0], "nor one that never has"
    assert gaps_ms([1.0, 1.5, 34.0], [2.0], 0.0, 33.5) == [32500.0], "a late reply ends it"


def test_the_slowest_request_around_a_fault_counts_though_others_are_answered_meanwhile() -> None:
    replied, latencies = [1.0, 1.1, 1.2, 7.0, 20.0], [0.1, 0.1, 0.1, 6.05, 0.5]
    assert slowest_ms(replied, latencies, [0.97]) == [6050.0]
    assert slowest_ms(replied, latencies, [0.5, 8.0]) == [6050.0, 0.0], (
        "what was sent long after a fault is not of it"
    )
    assert slowest_ms([], [], [1.0]) == [0.0]
