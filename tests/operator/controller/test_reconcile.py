"""One look at one graph, against an API server and an etcd in memory."""

import asyncio
import copy
import datetime
import threading
from dataclasses import replace
from typing import Any

import pytest
import yaml

from hams_operator.controller import reconcile
from hams_operator.controller.etcd_cache import EtcdCache
from hams_operator.controller.identities import Identities, NoIdentities
from hams_operator.controller.kube import KubeError, Resource
from hams_operator.controller.objects import Objects, as_applied
from hams_operator.controller.pod_steps import (
    pod_creating_s,
    pod_overdue_s,
    pod_unseen_s,
    pod_unstarted_s,
)
from hams_operator.controller.reconcile import Reconciler
from hams_operator.controller.secrets import NotOwned
from hams_operator.controller.store import Store
from hams_operator.controller.webhook import refusals
from hams_operator.controller.workers import Requeue
from hams_operator.plan.names import ALLOW_STATE_LOSS, DELETION_COST, FINALIZER, RESTART_LOST, ROLE, GraphRef
from hams_operator.plan.pods_seen import Pod, pods_silent
from hams_protocol.topology import ReplicaSet, Slot, SlotTable, Topology
from hams_wire import records, succession
from hams_wire.coordination.memory import MemoryCoordination, MemoryStore
from hams_wire.coordination.port import Delete, Write
from hams_wire.errors import NoSpace, Unavailable
from hams_wire.spec import decode_spec

from ..plan.kit import PAIR, SETTINGS, with_change
from .fakes import FakeKube

Json = dict[str, Any]
KEY = ("shop", "pair")
UID = "0a1b2c3d-0000-4000-8000-000000000001"


def followed(item: Json) -> bool:
    """What the followers' selector lets through; these pods have no more labels than they need."""
    labels = item["metadata"].get("labels", {})
    return "hams.dev/graph" in labels and (
        item["kind"] == "Pod" or labels.get("app.kubernetes.io/managed-by") == "hams"
    )


class Scene:
    """A controller that has just been started, as often as one likes, on one API server and one etcd."""

    def __init__(self, text: str = PAIR) -> None:
        self.kube = FakeKube()
        self.etcd = MemoryStore()
        self.identities: Identities = NoIdentities()
        self.away = ""
        self.full = False
        self._again_s: float | None = None
        self.ask(text)

    def ask(self, text: str, annotations: dict[str, str] | None = None) -> None:
        """`kubectl apply`."""
        item = yaml.safe_load(text)
        there = self.kube.items.get(("ServiceGraph", *KEY), {"metadata": {"generation": 0}})
        metadata = {
            **there["metadata"],
            "name": "pair",
            "namespace": "shop",
            "uid": UID,
            "annotations": annotations or {},
        }
        metadata["generation"] = there["metadata"]["generation"] + 1
        self.kube.put({**there, **item, "metadata": metadata})

    async def reconcile(self) -> EtcdCache:
        """A fresh controller reads everything and looks once."""
        store = Store(lambda key: None)
        for item in list(self.kube.items.values()):
            item = copy.deepcopy(item)
            if item["kind"] == "ServiceGraph":
                store.put_graph(item)
            elif followed(item):
                store.put(item)
        cache = EtcdCache(self.etcd.client(), lambda uid: None)
        for entry in self.etcd.snapshot("/hams/v1/").entries:
            cache._put(entry.key, entry.value, entry.mod_revision)
        cache.away = self.away
        cache.full = self.full
        self._again_s = await Reconciler(self.kube, store, cache, SETTINGS, self.identities).reconcile(KEY)
        return cache

    async def again(self) -> float | None:
        """After how long the controller looks once more though nothing happens."""
        await self.reconcile()
        return self._again_s

    async def settle(self) -> None:
        for _ in range(4):
            await self.reconcile()

    @property
    def graph(self) -> Json:
        return self.kube.items["ServiceGraph", *KEY]

    def condition(self, kind: str) -> Json:
        match: Json = next(item for item in self.graph["status"]["conditions"] if item["type"] == kind)
        return match

    def events(self) -> dict[str, str]:
        return {item["reason"]: item["message"] for item in self.kube.of("Event")}

    def pod(self, name: str, role: dict[str, str], ready: bool = True, **more: Any) -> None:
        labels = {"hams.dev/graph": "pair", "hams.dev/incarnation": "0", **role}
        status = {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}], **more}
        self.kube.put(
            {
                "kind": "Pod",
                "apiVersion": "v1",
                "metadata": {"name": name, "namespace": "shop", "labels": labels},
                "status": status,
            }
        )

    def write(self, key: str, value: bytes) -> None:
        self.etcd.transact((), (Write(key, value),))

    def register(self, instance: str, of: str) -> None:
        self.write(
            records.member_key(UID, instance),
            records.encode_member(records.MemberRecord(of, "tcp:10.0.0.1:7070")),
        )

    def unregister(self, instance: str) -> None:
        self.etcd.transact((), (Delete(records.member_key(UID, instance)),))

    def topology(self, topology: Topology) -> None:
        self.write(records.topology_key(UID), records.encode_topology(topology))

    async def serving(self) -> None:
        """All parts up: two shards, `pass` with two slots and a standby, `count` with a backup."""
        await self.settle()
        for number in (1, 2):
            self.pod(f"pair-frontend-{number}", {ROLE: "frontend"})
            self.register(f"pair-frontend-{number}-aa", "F")
            self.pod(f"pair-count-{number}", {"hams.dev/operator": "count"})
            self.register(f"pair-count-{number}-aa", "count")
        for number in (1, 2, 3):
            self.pod(f"pair-pass-{number}", {"hams.dev/operator": "pass"})
            self.register(f"pair-pass-{number}-aa", "pass")
        self.topology(TOPOLOGY)
        await self.settle()


TOPOLOGY = Topology(
    generation=5,
    sets=(
        ReplicaSet("F/0", 1, "pair-frontend-1-aa", ("pair-frontend-2-aa",)),
        ReplicaSet("F/1", 1, "pair-frontend-2-aa", ("pair-frontend-1-aa",)),
        ReplicaSet("count", 1, "pair-count-1-aa", ("pair-count-2-aa",)),
    ),
    tables=(SlotTable("pass", (Slot(1, "pair-pass-1-aa"), Slot(1, "pair-pass-2-aa"))),),
)


async def test_a_graph_becomes_objects_an_etcd_key_and_a_status() -> None:
    scene = Scene()
    await scene.reconcile()
    assert len(scene.kube.of("Deployment")) == 4
    entry = scene.etcd.read(records.spec_key(UID))
    assert entry is not None
    assert decode_spec(entry.value).data.uid == UID
    assert scene.graph["metadata"]["finalizers"] == [FINALIZER]
    assert scene.condition("Ready")["status"] == "False"
    assert scene.graph["status"]["url"] == "http://pair.shop.svc:8080"


async def test_a_second_look_writes_nothing() -> None:
    scene = Scene()
    await scene.settle()
    before = len(scene.kube.calls)
    await scene.settle()
    assert scene.kube.calls[before:] == []


async def test_ready_and_redundant_are_true_only_when_the_topology_and_the_pods_say_so() -> None:
    scene = Scene()
    await scene.serving()
    assert (scene.condition("Ready")["status"], scene.condition("Redundant")["status"]) == ("True", "True")
    assert scene.graph["status"]["inSync"] == "3/3"
    scene.pod("pair-count-1", {"hams.dev/operator": "count"}, ready=False)
    await scene.reconcile()
    assert scene.condition("Ready")["reason"] == "NotServing"
    assert "pair-count-1-aa" in scene.condition("Ready")["message"]


async def test_pods_carry_the_role_that_their_instance_has() -> None:
    scene = Scene()
    await scene.serving()
    roles = {item["metadata"]["name"]: item["metadata"]["labels"].get(ROLE) for item in scene.kube.of("Pod")}
    assert (roles["pair-count-1"], roles["pair-count-2"]) == ("primary", "backup")
    cost = {
        item["metadata"]["name"]: int(item["metadata"]["annotations"][DELETION_COST])
        for item in scene.kube.of("Pod")
        if "pair-count" in item["metadata"]["name"]
    }
    assert cost["pair-count-1"] > cost["pair-count-2"]  # an upgrade takes the backup first
    assert sorted(roles[f"pair-pass-{number}"] for number in (1, 2, 3)) == ["active", "active", "standby"]


async def test_a_failover_is_an_event_and_the_pod_of_the_revoked_instance_goes() -> None:
    scene = Scene()
    await scene.serving()
    moved = ReplicaSet("count", 2, "pair-count-2-aa", (), (), ((1, 40),))
    after = Topology(6, (*TOPOLOGY.sets[:2], moved), TOPOLOGY.tables, ("pair-count-1-aa",))
    scene.topology(after)
    await scene.settle()
    assert ("Pod", "shop", "pair-count-1") not in scene.kube.items
    assert (
        "pair-count-2-aa is primary of count in epoch 2: pair-count-1-aa was revoked"
        in scene.events()["Promoted"]
    )
    assert scene.condition("Redundant")["reason"] == "Degraded"
    assert scene.graph["status"]["lastFailoverTime"]


def of_operator(scene: Scene, name: str) -> Json:
    match: Json = next(item for item in scene.graph["status"]["operators"] if item["name"] == name)
    return match


async def test_what_manager_and_primary_have_told_of_a_failover_is_in_the_status() -> None:
    scene = Scene()
    await scene.serving()
    assert "version" not in of_operator(scene, "count")  # nobody has said anything yet
    scene.write(records.version_key(UID, "count"), records.encode_version(records.VersionRecord(1, 38)))
    await scene.reconcile()
    assert of_operator(scene, "count")["version"] == 38
    moved = ReplicaSet("count", 2, "pair-count-2-aa", (), (), ((1, 40),))
    scene.topology(Topology(6, (*TOPOLOGY.sets[:2], moved), TOPOLOGY.tables, ("pair-count-1-aa",)))
    await scene.reconcile()
    # the end of the epoch before; what was told of that one is old
    assert of_operator(scene, "count")["version"] == 40
    assert of_operator(scene, "count")["lastFailover"]["reason"] == "pair-count-1-aa was revoked"
    record = records.FailoverRecord(2, 41, "pair-count-1-aa: its connection broke")
    scene.write(records.failover_key(UID, "count"), records.encode_failover(record))
    await scene.settle()
    failover = of_operator(scene, "count")["lastFailover"]
    assert failover["took"] == "41ms"
    assert failover["reason"] == "pair-count-1-aa: its connection broke"
    assert "reexecuted" not in failover  # whoever knows is dead


async def test_what_instances_tell_of_deadlines_and_of_a_policy_that_failed_is_in_the_status() -> None:
    scene = Scene()
    await scene.serving()
    assert "onTimePercent" not in of_operator(scene, "count")

    def tell(instance: str, record: records.TimelinessRecord) -> None:
        scene.write(records.timeliness_key(UID, instance), records.encode_timeliness(record))

    tell("pair-count-1-aa", records.TimelinessRecord("count", 60.0, 199, 1, 0, "Distribution"))
    tell("nobody", records.TimelinessRecord("count", 60.0, 0, 500, 0, "Distribution"))
    await scene.reconcile()
    assert of_operator(scene, "count")["onTimePercent"] == 99
    assert "policyReplaced" not in of_operator(scene, "count")
    assert scene.graph["status"]["message"] == "serving"
    failed = records.TimelinessRecord("count", 60.0, 0, 0, 0, "Distribution", "it raised KeyError: 3")
    tell("pair-count-1-aa", failed)
    await scene.reconcile()
    of_count = of_operator(scene, "count")
    assert "onTimePercent" not in of_count
    assert of_count["policyReplaced"] == {"policy": "Distribution", "reason": "it raised KeyError: 3"}
    assert (
        scene.graph["status"]["message"]
        == "serving; Fifo serves count in place of Distribution: it raised KeyError: 3"
    )


async def test_a_lost_state_begins_again_when_a_person_says_so_for_this_loss() -> None:
    scene = Scene()
    await scene.serving()
    lost = ReplicaSet("count", 2, "pair-count-1-aa", (), (), ((1, 40),), lost=True)
    scene.topology(Topology(6, (*TOPOLOGY.sets[:2], lost), TOPOLOGY.tables))
    await scene.reconcile()
    assert scene.condition("Ready")["reason"] == "StateLost"
    assert "hams.dev/restart-lost: count@2" in scene.condition("Ready")["message"]
    scene.ask(PAIR, {RESTART_LOST: "count@1"})  # said of the loss before
    await scene.reconcile()
    assert not topology_of(scene).find("count").may_restart
    scene.ask(PAIR, {RESTART_LOST: "count@2"})
    await scene.settle()
    assert topology_of(scene).find("count").may_restart
    assert topology_of(scene).generation == 7, "said once"
    begun = ReplicaSet("count", 3, "pair-count-2-aa", (), (), ((1, 40), (2, 0)), restarted_in=3)
    scene.topology(Topology(8, (*TOPOLOGY.sets[:2], begun), TOPOLOGY.tables, ("pair-count-1-aa",)))
    await scene.settle()
    assert of_operator(scene, "count")["lastLoss"] == {"epoch": 3, "version": 0}
    assert "began again in epoch 3 from version 0" in scene.events()["StateRestarted"]


def topology_of(scene: Scene) -> Topology:
    entry = scene.etcd.read(records.topology_key(UID))
    assert entry is not None
    return records.decode_topology(entry.value)


async def test_a_handover_executes_nothing_again_and_says_so() -> None:
    scene = Scene()
    await scene.serving()
    moved = ReplicaSet("count", 2, "pair-count-2-aa", ("pair-count-1-aa",), (), ((1, 40),))
    scene.topology(Topology(6, (*TOPOLOGY.sets[:2], moved), TOPOLOGY.tables))
    await scene.settle()
    assert of_operator(scene, "count")["lastFailover"]["reexecuted"] == 0


async def test_the_pod_of_a_revoked_instance_stays_while_the_topology_names_it() -> None:
    """F13: its kept state may be the last copy."""
    scene = Scene()
    await scene.serving()
    scene.topology(Topology(6, TOPOLOGY.sets, TOPOLOGY.tables, ("pair-count-1-aa", "pair-pass-1-aa")))
    await scene.settle()
    assert ("Pod", "shop", "pair-count-1") in scene.kube.items
    assert ("Pod", "shop", "pair-pass-1") in scene.kube.items
    scene.register("pair-count-1-aa-0badcafe", "count")  # it goes on under a fresh id
    moved = ReplicaSet("count", 2, "pair-count-2-aa", (), ("pair-count-1-aa-0badcafe",))
    scene.topology(Topology(7, (*TOPOLOGY.sets[:2], moved), TOPOLOGY.tables, ("pair-count-1-aa",)))
    await scene.settle()
    assert ("Pod", "shop", "pair-count-1") in scene.kube.items


async def test_a_graph_that_nobody_can_run_says_so_with_the_words_of_validate() -> None:
    scene = Scene(with_change("inputs: [pass.y]", "inputs: [pas.y]"))
    await scene.reconcile()
    ready = scene.condition("Ready")
    assert ready["reason"] == "Invalid"
    assert 'no operator "pas"; did you mean "pass"?' in ready["message"]
    assert scene.kube.of("Deployment") == []
    assert "Invalid" in scene.events()


async def test_a_graph_that_runs_goes_on_when_its_resource_becomes_wrong() -> None:
    scene = Scene()
    await scene.serving()
    scene.ask(with_change("inputs: [pass.y]", "inputs: [pas.y]"))
    await scene.settle()
    assert scene.condition("Ready")["status"] == "True"
    assert scene.condition("Progressing")["reason"] == "ChangeRefused"
    assert len(scene.kube.of("Deployment")) == 4


async def test_another_shape_comes_up_beside_the_old_one_which_goes_when_it_serves() -> None:
    scene = Scene()
    await scene.serving()
    scene.ask(
        with_change("name: count", "name: counter", with_change("count.y", "counter.y")),
        {ALLOW_STATE_LOSS: "true"},
    )
    await scene.settle()
    names = {item["metadata"]["name"] for item in scene.kube.of("Deployment")}
    assert {"pair-count", "pair-counter-r1", "pair-frontend", "pair-frontend-r1"} <= names
    assert scene.etcd.read(records.spec_key(f"{UID}-r1")) is not None
    assert scene.condition("Ready")["status"] == "True"  # the old one answers
    assert scene.condition("Progressing")["reason"] == "Replacing"


def without_count(text: str = PAIR) -> str:
    return with_change("name: count", "name: counter", with_change("count.y", "counter.y", text))


async def test_a_shape_that_never_served_is_undone_and_the_first_states_stay() -> None:
    scene = Scene()
    await scene.serving()
    first = {key: item["metadata"]["uid"] for key, item in scene.kube.items.items() if key[0] == "Deployment"}
    scene.ask(without_count(), {ALLOW_STATE_LOSS: "true"})
    await scene.settle()
    scene.write(records.topology_key(f"{UID}-r1"), records.encode_topology(Topology(1)))
    scene.ask(PAIR, {ALLOW_STATE_LOSS: "true"})
    await scene.settle()
    assert {
        key: item["metadata"]["uid"] for key, item in scene.kube.items.items() if key[0] == "Deployment"
    } == first
    assert [item["metadata"]["name"] for item in scene.kube.of("ConfigMap")] == ["pair-graph"]
    assert (scene.condition("Ready")["status"], scene.condition("Progressing")["reason"]) == (
        "True",
        "Stable",
    )
    scene.ask(PAIR)
    await scene.settle()
    assert scene.condition("Progressing")["reason"] == "Stable", (
        "the annotation is not needed for what is done"
    )
    scene.ask(without_count(), {ALLOW_STATE_LOSS: "true"})
    await scene.settle()
    assert ("ConfigMap", "shop", "pair-graph-r2") in scene.kube.items, (
        "etcd may hold anything below the number that was used"
    )


async def test_while_two_shapes_are_there_the_status_is_about_the_one_that_serves() -> None:
    scene = Scene()
    await scene.serving()
    for text in (
        without_count(),
        with_change("name: count", "name: third", with_change("count.y", "third.y")),
    ):
        scene.ask(text, {ALLOW_STATE_LOSS: "true"})
        await scene.settle()
    assert ("ConfigMap", "shop", "pair-graph-r2") in scene.kube.items
    assert scene.condition("Ready")["status"] == "True"
    assert {item["name"] for item in scene.graph["status"]["operators"]} == {"pass", "count"}


async def test_a_graph_is_not_redundant_while_etcd_takes_no_writes() -> None:
    scene = Scene()
    await scene.serving()
    scene.full = True
    await scene.reconcile()
    assert scene.condition("Ready")["status"] == "True"
    assert scene.condition("Redundant")["status"] == "False"
    assert scene.condition("Redundant")["reason"] == "EtcdFull"
    scene.full = False
    await scene.reconcile()
    assert scene.condition("Redundant")["reason"] != "EtcdFull"


async def test_another_shape_is_not_begun_while_etcd_is_away() -> None:
    scene = Scene()
    await scene.serving()
    scene.ask(without_count(), {ALLOW_STATE_LOSS: "true"})
    scene.away = "nobody answers"
    await scene.reconcile()
    assert ("ConfigMap", "shop", "pair-graph-r1") not in scene.kube.items
    assert "nobody answers" in scene.condition("Progressing")["message"]
    scene.away = ""
    await scene.settle()
    assert ("ConfigMap", "shop", "pair-graph-r1") in scene.kube.items


def take_away(scene: Scene, name: str, how: str) -> None:
    config_map = scene.kube.items["ConfigMap", "shop", name]
    match how:
        case "deleted":
            del scene.kube.items["ConfigMap", "shop", name]
        case "unlabelled":
            config_map["metadata"]["labels"] = {}
        case "another format":
            config_map["data"]["spec.json"] = '{"format": "hams-spec-9", "graph": {}}'


@pytest.mark.parametrize("how", ["deleted", "unlabelled", "another format"])
async def test_a_lost_config_map_is_no_leave_to_lose_a_state(how: str) -> None:
    scene = Scene()
    await scene.serving()
    stored = scene.etcd.read(records.spec_key(UID))
    scene.ask(without_count())
    await scene.settle()
    take_away(scene, "pair-graph", how)
    await scene.settle()
    assert scene.condition("Progressing")["reason"] == "ChangeRefused"
    assert {item["metadata"]["name"] for item in scene.kube.of("Deployment")} == {
        "pair-manager",
        "pair-pass",
        "pair-count",
        "pair-frontend",
    }
    assert scene.etcd.read(records.spec_key(UID)) == stored
    assert decode_spec(
        scene.kube.items["ConfigMap", "shop", "pair-graph"]["data"]["spec.json"].encode()
    ).operators.keys() == {"pass", "count"}


async def test_a_later_incarnation_whose_config_map_is_lost_goes_on() -> None:
    scene = Scene()
    await scene.serving()
    scene.ask(without_count(), {ALLOW_STATE_LOSS: "true"})
    await scene.settle()
    for key, item in list(scene.kube.items.items()):  # the first one has gone
        if item["metadata"].get("labels", {}).get("hams.dev/incarnation") == "0" and key[:3] != (
            "Service",
            "shop",
            "pair",
        ):
            del scene.kube.items[key]
    await scene.settle()
    before = {item["metadata"]["name"] for item in scene.kube.of("Deployment")}
    take_away(scene, "pair-graph-r1", "deleted")
    await scene.settle()
    assert {item["metadata"]["name"] for item in scene.kube.of("Deployment")} == before
    assert ("ConfigMap", "shop", "pair-graph-r1") in scene.kube.items
    assert ("ConfigMap", "shop", "pair-graph") not in scene.kube.items


@pytest.mark.parametrize(
    "held", [b"", b'{"format": "hams-spec-9", "graph": {}}'], ids=["nothing", "another format"]
)
async def test_where_nobody_can_tell_what_runs_nothing_is_changed_and_the_status_says_so(held: bytes) -> None:
    scene = Scene()
    await scene.serving()
    take_away(scene, "pair-graph", "another format")
    if held:
        scene.write(records.spec_key(UID), held)
    else:
        scene.etcd.transact((), (Delete(records.spec_key(UID)),))
    scene.ask(without_count())
    before = {key: item for key, item in scene.kube.items.items() if key[0] not in ("ServiceGraph", "Event")}
    for _ in range(3):
        with pytest.raises(Requeue, match="ConfigMap pair-graph"):
            await scene.reconcile()
    assert {
        key: item for key, item in scene.kube.items.items() if key[0] not in ("ServiceGraph", "Event")
    } == before
    assert (scene.condition("Ready")["status"], scene.condition("Ready")["reason"]) == (
        "Unknown",
        "SpecUnreadable",
    )
    assert "nothing is changed" in scene.graph["status"]["message"]
    assert (scene.etcd.read(records.spec_key(UID)) is not None) == bool(held)


async def test_etcd_keys_of_all_incarnations_go_though_etcd_was_never_read() -> None:
    scene = Scene()
    await scene.settle()
    for uid in (UID, f"{UID}-r1", f"{UID}-r12", f"{UID[:-1]}2", f"{UID[:-1]}2-r1"):
        scene.write(records.spec_key(uid), b"x")
    scene.graph["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    store = Store(lambda key: None)
    store.put_graph(copy.deepcopy(scene.graph))
    await Reconciler(
        scene.kube, store, EtcdCache(scene.etcd.client(), lambda uid: None), SETTINGS, NoIdentities()
    ).reconcile(KEY)
    assert ("ServiceGraph", *KEY) not in scene.kube.items
    assert [entry.key for entry in scene.etcd.snapshot("/hams/v1/").entries] == [
        records.spec_key(f"{UID[:-1]}2{tail}") for tail in ("-r1", "")
    ]


async def test_what_was_only_written_to_etcd_has_not_run_and_binds_nobody() -> None:
    scene = Scene()
    scene.kube.put(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "pair", "namespace": "shop"}, "spec": {}}
    )
    with pytest.raises(Requeue):
        await scene.reconcile()
    assert scene.etcd.read(records.spec_key(UID)) is not None
    del scene.kube.items["Service", "shop", "pair"]
    scene.ask(without_count())
    await scene.settle()
    assert scene.condition("Progressing")["reason"] != "ChangeRefused"
    assert ("Deployment", "shop", "pair-counter") in scene.kube.items


async def test_a_graph_of_which_everything_was_deleted_comes_back_as_the_one_that_ran() -> None:
    scene = Scene()
    await scene.serving()
    scene.ask(without_count())
    await scene.settle()
    for key, item in list(scene.kube.items.items()):
        if item["kind"] != "ServiceGraph":
            del scene.kube.items[key]
    await scene.settle()
    assert scene.condition("Progressing")["reason"] == "ChangeRefused"
    assert ("Deployment", "shop", "pair-count") in scene.kube.items


async def test_a_change_of_an_image_changes_what_etcd_holds_before_pods_are_replaced() -> None:
    scene = Scene()
    await scene.serving()
    scene.ask(with_change('"m:Count", image: "m:1"', '"m:Count", image: "m:2"'))
    await scene.settle()
    entry = scene.etcd.read(records.spec_key(UID))
    assert entry is not None
    assert decode_spec(entry.value).operators["count"].model.image == "m:2"
    deployment = scene.kube.items["Deployment", "shop", "pair-count"]
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "m:2"


async def test_a_deleted_graph_takes_its_objects_its_pods_and_its_etcd_keys_along() -> None:
    scene = Scene()
    await scene.serving()
    scene.graph["metadata"]["deletionTimestamp"] = "2999-01-01T00:00:00Z"
    with pytest.raises(Requeue):
        await scene.reconcile()
    assert scene.etcd.snapshot("/hams/v1/").entries != ()  # processes may still live
    ended = scene.etcd.read(succession.key(UID, succession.ENDED))
    assert ended is not None, "they are told not to wait for successors"
    assert ended.value == succession.NOBODY
    await scene.reconcile()
    assert scene.etcd.snapshot("/hams/v1/").entries == ()
    assert [item for item in scene.kube.items.values() if item["kind"] not in ("Event",)] == []


async def test_a_graph_that_was_deleted_while_nobody_was_here_ends_as_gracefully() -> None:
    """Its pods are asked to go only now: they answer what is open, and need its keys for that."""
    scene = Scene()
    await scene.serving()
    scene.graph["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    with pytest.raises(Requeue):
        await scene.reconcile()
    assert scene.etcd.read(records.topology_key(UID)) is not None
    assert FINALIZER in scene.graph["metadata"]["finalizers"]
    await scene.reconcile()
    assert scene.etcd.snapshot("/hams/v1/").entries == ()


async def test_a_graph_goes_though_a_pod_of_it_never_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "pods_gone_s", 0.0)
    scene = Scene()
    await scene.serving()
    scene.graph["metadata"]["deletionTimestamp"] = "2999-01-01T00:00:00Z"
    await scene.reconcile()
    assert scene.etcd.snapshot("/hams/v1/").entries == ()
    assert ("ServiceGraph", *KEY) not in scene.kube.items


async def test_a_graph_goes_with_its_namespace_which_has_taken_our_rights_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is in it is deleted by Kubernetes, and no watch tells of that: the right to watch is gone, too."""
    scene = Scene()
    await scene.serving()
    scene.graph["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    for kind, _, name in scene.kube.items:
        scene.kube.refused[f"delete {kind} {name}"] = KubeError(403, "forbidden")
    with pytest.raises(Requeue, match="its pods are going"):
        await scene.reconcile()
    monkeypatch.setattr(reconcile, "pods_gone_s", 0.0)
    await scene.reconcile()
    assert ("ServiceGraph", *KEY) not in scene.kube.items
    assert scene.etcd.snapshot("/hams/v1/").entries == ()


async def test_a_graph_goes_though_etcd_takes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    await scene.serving()
    scene.graph["metadata"]["deletionTimestamp"] = "2999-01-01T00:00:00Z"

    async def full(*_: object) -> int:
        raise NoSpace("etcdserver: mvcc: database space exceeded")

    monkeypatch.setattr(MemoryCoordination, "compare_and_swap", full)
    with pytest.raises(Requeue):
        await scene.reconcile()
    await scene.reconcile()
    assert scene.etcd.snapshot("/hams/v1/").entries == ()
    assert [item for item in scene.kube.items.values() if item["kind"] not in ("Event",)] == []


LABELS = {"hams.dev/graph": "pair", "app.kubernetes.io/managed-by": "hams"}


@pytest.mark.parametrize(
    "labels", [{}, {"hams.dev/graph": "pair"}, LABELS], ids=["unlabelled", "of-the-graph", "as-ours"]
)
@pytest.mark.parametrize(
    ("kind", "name"), [("Service", "pair"), ("ConfigMap", "pair-graph"), ("NetworkPolicy", "pair-peers")]
)
async def test_an_object_of_somebody_else_is_not_taken(kind: str, name: str, labels: dict[str, str]) -> None:
    scene = Scene()
    theirs = scene.kube.put(
        {
            "apiVersion": "v1",
            "kind": kind,
            "metadata": {"name": name, "namespace": "shop", "labels": labels},
            "spec": {"a": []},
        }
    )
    with pytest.raises(Requeue, match=f"{kind} {name}"):
        await scene.reconcile()
    assert scene.condition("Ready")["reason"] == "NameTaken"
    assert f"{kind} {name}" in scene.condition("Ready")["message"]
    assert scene.kube.items[kind, "shop", name] == theirs
    assert not scene.kube.of("Deployment"), "nothing is begun that cannot be whole"


async def test_what_was_begun_before_an_object_not_owned_was_met_is_taken_back_once() -> None:
    scene = Scene()
    metadata = {"name": "pair-count", "namespace": "shop"}
    for kind, version in (("Deployment", "apps/v1"), ("PodDisruptionBudget", "policy/v1")):
        scene.kube.put({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": {}})
    theirs = dict(scene.kube.items)
    for number in range(3):
        before = len(scene.kube.calls)
        with pytest.raises(
            Requeue, match="Deployment pair-count, PodDisruptionBudget pair-count: there already"
        ):
            await scene.reconcile()
        written = [
            call for call in scene.kube.calls[before:] if "ServiceGraph" not in call and "Event" not in call
        ]
        assert bool(written) == (number == 0)
        assert not any(call.startswith("create Deployment") for call in written), (
            "nothing runs of what cannot be whole"
        )
        assert {
            key: item for key, item in scene.kube.items.items() if key[0] not in ("ServiceGraph", "Event")
        } == {key: item for key, item in theirs.items() if key[0] != "ServiceGraph"}
    del (
        scene.kube.items["Deployment", "shop", "pair-count"],
        scene.kube.items["PodDisruptionBudget", "shop", "pair-count"],
    )
    await scene.settle()
    assert len(scene.kube.of("Deployment")) == 4


async def test_a_deployment_that_runs_already_ends_when_another_one_is_not_owned() -> None:
    scene = Scene()
    scene.kube.put(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "pair-frontend", "namespace": "shop"},
            "spec": {},
        }
    )
    with pytest.raises(Requeue, match="Deployment pair-frontend: there already"):
        await scene.reconcile()
    assert "create Deployment pair-manager" in scene.kube.calls
    assert [item["metadata"]["name"] for item in scene.kube.of("Deployment")] == ["pair-frontend"]


# -- what the API server says no to for good -----------------------------------------------------------------

OTHER_IMAGE = with_change('"m:Count", image: "m:1"', '"m:Count", image: "m:2"')
NO = KubeError(
    422, 'PATCH .../pair-count: Deployment.apps "pair-count" is invalid: spec.template.spec: Invalid value'
)


async def reconcile_in_vain(scene: Scene, words: str) -> None:
    """More than once: what is said of it is said once."""
    for _ in range(2):
        with pytest.raises(Requeue, match=words):
            await scene.reconcile()
    before = len(scene.kube.calls)
    with pytest.raises(Requeue, match=words):
        await scene.reconcile()
    assert [call for call in scene.kube.calls[before:] if "Event" in call or "status" in call] == []


async def test_f31_a_graph_that_serves_stays_ready_when_a_change_is_refused_with_422_and_says_why() -> None:
    scene = Scene()
    await scene.serving()
    scene.kube.refused = {"apply Deployment pair-count": NO}
    scene.ask(OTHER_IMAGE)
    await reconcile_in_vain(scene, "Invalid value")
    assert (scene.condition("Ready")["status"], scene.condition("Ready")["reason"]) == ("True", "Serving")
    assert scene.condition("Redundant")["status"] == "True"
    progressing = scene.condition("Progressing")
    assert (progressing["status"], progressing["reason"], progressing["message"]) == (
        "False",
        "Rejected",
        str(NO),
    )
    assert scene.graph["status"]["message"] == scene.events()["Rejected"] == str(NO)
    assert "NotReady" not in scene.events()
    scene.kube.refused = {}
    scene.ask(PAIR)
    await scene.settle()
    assert (scene.condition("Progressing")["reason"], scene.graph["status"]["message"]) == (
        "Stable",
        "serving",
    )


async def test_f31_a_graph_that_never_served_is_not_ready_because_of_the_422() -> None:
    scene = Scene()
    scene.kube.refused = {"create Deployment pair-count": NO}
    await reconcile_in_vain(scene, "Invalid value")
    for kind in ("Ready", "Progressing"):
        assert (
            scene.condition(kind)["status"],
            scene.condition(kind)["reason"],
            scene.condition(kind)["message"],
        ) == ("False", "Rejected", str(NO))
    assert scene.graph["status"]["message"] == scene.events()["Rejected"] == str(NO)
    scene.kube.refused = {}
    await scene.serving()
    assert (scene.condition("Ready")["status"], scene.condition("Progressing")["reason"]) == (
        "True",
        "Stable",
    )


async def test_a_graph_that_stops_to_serve_under_a_refusal_is_not_ready_and_a_lost_state_comes_first() -> (
    None
):
    scene = Scene()
    await scene.serving()
    scene.kube.refused = {"apply Deployment pair-count": NO}
    scene.ask(OTHER_IMAGE)
    scene.pod("pair-count-1", {"hams.dev/operator": "count"}, ready=False)
    await reconcile_in_vain(scene, "Invalid value")
    assert (scene.condition("Ready")["status"], scene.condition("Ready")["reason"]) == ("False", "Rejected")
    lost = ReplicaSet("count", 1, "pair-count-1-aa", ("pair-count-2-aa",), (), (), lost=True)
    scene.topology(Topology(6, (*TOPOLOGY.sets[:2], lost), TOPOLOGY.tables))
    await reconcile_in_vain(scene, "Invalid value")
    assert (scene.condition("Ready")["status"], scene.condition("Ready")["reason"]) == ("False", "StateLost")
    assert scene.condition("Progressing")["reason"] == "Rejected"


async def test_a_graph_that_serves_stays_ready_while_one_of_its_names_is_taken() -> None:
    scene = Scene()
    await scene.serving()
    theirs = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "pair-count", "namespace": "shop"},
        "spec": {},
    }
    scene.kube.put(theirs)
    await reconcile_in_vain(scene, "PodDisruptionBudget pair-count: there already")
    assert (scene.condition("Ready")["status"], scene.condition("Ready")["reason"]) == ("True", "Serving")
    progressing = scene.condition("Progressing")
    assert (progressing["status"], progressing["reason"]) == ("False", "NameTaken")
    assert scene.graph["status"]["message"] == progressing["message"] == scene.events()["NameTaken"]
    assert "NotReady" not in scene.events()
    # to be made as well: but it is known by now that not all can be
    del scene.kube.items["ConfigMap", "shop", "pair-graph"]
    before = len(scene.kube.calls)
    with pytest.raises(Requeue):
        await scene.reconcile()
    assert scene.kube.calls[before:] == []
    del scene.kube.items["PodDisruptionBudget", "shop", "pair-count"]
    await scene.settle()
    assert scene.condition("Progressing")["reason"] == "Stable"
    assert {"PodDisruptionBudget", "ConfigMap"} <= {kind for kind, _, _ in scene.kube.items}


# -- the Service in front of it ------------------------------------------------------------------------------

SERVICE = ("Service", "shop", "pair")
DENIED = KubeError(403, 'POST .../services: services "pair" is forbidden: exceeded quota')


def shown(scene: Scene, kind: str) -> tuple[str, str]:
    result = scene.condition(kind)
    return result["status"], result["reason"]


async def test_a_graph_whose_service_is_gone_and_may_not_be_made_again_is_not_ready() -> None:
    scene = Scene()
    await scene.serving()
    del scene.kube.items[SERVICE]
    scene.kube.refused = {"create Service pair": DENIED}
    await reconcile_in_vain(scene, "exceeded quota")
    assert shown(scene, "Ready") == ("False", "Rejected")
    assert (
        scene.condition("Ready")["message"]
        == f"the Service pair is not there, or not of this graph: {DENIED}"
    )
    assert shown(scene, "Redundant") == ("True", "InSync"), "no state is in danger"
    assert shown(scene, "Progressing") == ("False", "Rejected")
    assert "exceeded quota" in scene.events()["NotReady"]
    scene.kube.refused = {}
    await scene.reconcile()
    assert SERVICE in scene.kube.items
    assert (shown(scene, "Ready"), shown(scene, "Progressing")) == (("True", "Serving"), ("False", "Stable"))


@pytest.mark.parametrize("labels", [{}, LABELS], ids=["unlabelled", "as-ours"])
async def test_a_graph_whose_services_name_is_somebody_elses_by_now_is_not_ready(
    labels: dict[str, str],
) -> None:
    scene = Scene()
    await scene.serving()
    del scene.kube.items[SERVICE]
    theirs = scene.kube.put(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "pair", "namespace": "shop", "labels": labels},
            "spec": {},
        }
    )
    await reconcile_in_vain(scene, "Service pair: there already")
    assert shown(scene, "Ready") == ("False", "NameTaken")
    assert "Service pair: there already, and not of this graph" in scene.condition("Ready")["message"]
    assert scene.kube.items[SERVICE] == theirs
    del scene.kube.items[SERVICE]
    await scene.settle()
    assert (shown(scene, "Ready"), shown(scene, "Progressing")) == (("True", "Serving"), ("False", "Stable"))


async def test_a_service_that_is_made_again_at_once_is_no_news() -> None:
    scene = Scene()
    await scene.serving()
    before = len(scene.kube.calls)
    del scene.kube.items[SERVICE]
    await scene.reconcile()
    assert scene.kube.calls[before:] == ["create Service pair"]
    assert shown(scene, "Ready") == ("True", "Serving")


async def test_a_service_that_could_not_be_made_yet_is_missed_for_as_long() -> None:
    scene = Scene()
    await scene.serving()
    del scene.kube.items[SERVICE]
    scene.kube.refused = {"create Service pair": KubeError(503, "the API server is going")}
    with pytest.raises(Requeue, match="is going"):
        await scene.reconcile()
    assert shown(scene, "Ready") == ("False", "NoService")
    assert shown(scene, "Progressing") == ("True", "Recovering")
    scene.kube.refused = {}
    await scene.reconcile()
    assert shown(scene, "Ready") == ("True", "Serving")


async def test_a_graph_that_has_no_service_yet_waits_for_its_parts_first() -> None:
    scene = Scene()
    scene.kube.refused = {"create Service pair": KubeError(503, "the API server is going")}
    with pytest.raises(Requeue, match="is going"):
        await scene.reconcile()
    assert shown(scene, "Ready") == ("False", "NoPrimary")


async def test_which_shape_serves_is_not_a_matter_of_the_service() -> None:
    """All shapes have the same. While it is gone, the one that serves is still the one told of, and nothing
    of it goes."""
    scene = Scene()
    await scene.serving()
    for text in (
        without_count(),
        with_change("name: count", "name: third", with_change("count.y", "third.y")),
    ):
        scene.ask(text, {ALLOW_STATE_LOSS: "true"})
        await scene.settle()
    assert shown(scene, "Ready") == ("True", "Serving"), "by the Service, whichever shape has written it last"
    assert shown(scene, "Progressing") == ("True", "Replacing")
    before = {item["metadata"]["name"] for item in scene.kube.of("Deployment")}
    del scene.kube.items[SERVICE]
    scene.kube.refused = {"create Service pair": DENIED}
    await reconcile_in_vain(scene, "exceeded quota")
    assert shown(scene, "Ready") == ("False", "Rejected")
    assert {item["name"] for item in scene.graph["status"]["operators"]} == {"pass", "count"}
    assert {item["metadata"]["name"] for item in scene.kube.of("Deployment")} == before


async def test_a_shape_that_is_refused_with_422_leaves_the_one_before_ready_and_may_be_undone() -> None:
    scene = Scene()
    await scene.serving()
    scene.kube.refused = {"create Deployment pair-counter-r1": NO}
    scene.ask(without_count(), {ALLOW_STATE_LOSS: "true"})
    await reconcile_in_vain(scene, "Invalid value")
    assert (scene.condition("Ready")["status"], scene.condition("Progressing")["reason"]) == (
        "True",
        "Rejected",
    )
    wrong = copy.deepcopy(scene.graph)
    scene.ask(PAIR)
    assert refusals({"operation": "UPDATE", "object": scene.graph, "oldObject": wrong}, SETTINGS) == [], (
        "the way back"
    )


async def test_a_wrong_resource_and_a_refusal_are_both_told() -> None:
    scene = Scene()
    await scene.serving()
    scene.kube.items["Deployment", "shop", "pair-count"]["spec"]["replicas"] = 7
    scene.kube.refused = {"apply Deployment pair-count": NO}
    scene.ask(with_change("inputs: [pass.y]", "inputs: [pas.y]"))
    await reconcile_in_vain(scene, "Invalid value")
    assert (scene.condition("Ready")["status"], scene.condition("Progressing")["reason"]) == (
        "True",
        "Rejected",
    )
    for words in (str(NO), 'no operator "pas"', "Until then it runs as before"):
        assert words in scene.graph["status"]["message"]


async def test_a_pod_that_may_not_be_labelled_keeps_the_status_from_nothing() -> None:
    scene = Scene()
    scene.kube.refused = {"merge Pod pair-count-1": KubeError(403, "a policy denies it")}
    with pytest.raises(Requeue, match="a policy denies it"):
        await scene.serving()
    with pytest.raises(Requeue, match="a policy denies it"):
        await scene.reconcile()
    assert (scene.condition("Ready")["status"], scene.condition("Progressing")["reason"]) == (
        "True",
        "Rejected",
    )


class Hasty(FakeKube):
    """Who has taken a name lets it go as soon as that was seen."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        read = await super().get(resource, namespace, name)
        if read is not None and resource.kind == "Service" and not read["metadata"].get("labels"):
            del self.items[resource.kind, namespace, name]
        return read


async def test_an_object_not_owned_that_goes_while_it_is_looked_at_is_not_forgotten() -> None:
    """Nothing was made that could be taken back, so no event would bring the next look."""
    scene = Scene()
    scene.kube = Hasty()
    scene.ask(PAIR)
    scene.kube.put({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "pair", "namespace": "shop"}})
    with pytest.raises(Requeue, match="Service pair: there already"):
        await scene.reconcile()
    await scene.settle()
    assert len(scene.kube.of("Deployment")) == 4


async def test_what_has_become_somebody_elses_since_it_was_seen_is_not_taken_by_a_change() -> None:
    scene = Scene()
    await scene.settle()
    store = Store(lambda key: None)
    mine = scene.kube.items["Service", "shop", "pair"]
    place = GraphRef("pair", "shop", UID)
    del scene.kube.items["Service", "shop", "pair"]
    with pytest.raises(KubeError, match="Service pair has gone"):
        await Objects(scene.kube, store).apply(place, [mine])
    assert ("Service", "shop", "pair") not in scene.kube.items
    theirs = scene.kube.put(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "pair", "namespace": "shop"},
            "spec": {"a": 1},
        }
    )
    with pytest.raises(KubeError, match="is another one by now"):
        await Objects(scene.kube, store).apply(place, [mine])
    assert scene.kube.items["Service", "shop", "pair"] == theirs


async def test_what_a_change_leaves_out_goes_though_it_was_made_by_a_post() -> None:
    scene = Scene()
    await scene.settle()
    key = "Deployment", "shop", "pair-count"
    scene.kube.items[key]["spec"]["minReadySeconds"] = 1  # as an earlier version of ours may have made it
    scene.ask(with_change('"m:Count", image: "m:1"', '"m:Count", image: "m:2"'))
    await scene.settle()
    (owner,) = scene.kube.items[key]["metadata"]["managedFields"]
    assert owner["operation"] == "Apply"
    assert "minReadySeconds" not in scene.kube.items[key]["spec"]
    before = len(scene.kube.calls)
    scene.ask(PAIR)
    await scene.settle()
    assert "apply Deployment pair-count" in scene.kube.calls[before:]
    assert "merge Deployment pair-count" not in scene.kube.calls[before:], "once is enough"


def test_the_fields_of_an_update_become_those_of_the_apply() -> None:
    ours = {"manager": "hams-controller", "apiVersion": "apps/v1", "fieldsType": "FieldsV1"}
    status = {**ours, "operation": "Update", "subresource": "status", "fieldsV1": {"f:status": {}}}
    other = {**ours, "manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:paused": {}}}}
    update = {
        **ours,
        "operation": "Update",
        "fieldsV1": {"f:spec": {"f:replicas": {}, "f:template": {"f:a": {}}}},
    }
    apply = {**ours, "operation": "Apply", "fieldsV1": {"f:spec": {"f:template": {"f:b": {}}}}}
    assert as_applied([status, other, apply]) is None
    assert as_applied([update, other]) == [other, {**update, "operation": "Apply"}]
    both = {"f:spec": {"f:replicas": {}, "f:template": {"f:a": {}, "f:b": {}}}}
    assert as_applied([apply, status, update]) == [{**apply, "fieldsV1": both}, status]


async def test_an_object_of_ours_that_has_lost_its_labels_gets_them_back() -> None:
    scene = Scene()
    await scene.settle()
    scene.kube.items["Service", "shop", "pair"]["metadata"]["labels"] = {}
    await scene.settle()
    assert scene.kube.items["Service", "shop", "pair"]["metadata"]["labels"].items() >= LABELS.items()
    assert scene.condition("Ready")["reason"] != "NameTaken"


async def test_a_model_in_a_crash_loop_is_told_with_its_last_words() -> None:
    scene = Scene()
    await scene.settle()
    ended = {
        "exitCode": 1,
        "message": "Traceback\nImportError: no torch",
        "finishedAt": "2026-01-01T00:00:00Z",
    }
    state = {
        "name": "model",
        "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": ended},
    }
    scene.pod("pair-count-1", {"hams.dev/operator": "count"}, ready=False, containerStatuses=[state])
    await scene.reconcile()
    assert scene.condition("Ready")["reason"] == "ModelCrashLoop"
    assert scene.graph["status"]["lastFailureInfo"] == {
        "operator": "count", "instance": "pair-count-1", "exitCode": 1,
        "log": "Traceback\nImportError: no torch", "at": "2026-01-01T00:00:00Z"
    }  # fmt: skip
    assert scene.events()["ModelCrashLoop"].endswith("exit code 1): ImportError: no torch")


async def test_a_pod_that_no_node_can_take_says_why() -> None:
    scene = Scene()
    await scene.settle()
    message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]
    scene.pod("pair-count-1", {"hams.dev/operator": "count"}, conditions=conditions)
    await scene.reconcile()
    assert scene.condition("Ready")["reason"] == "Unschedulable"
    assert message in scene.graph["status"]["message"]


STORM = [KubeError(status, "storm") for status in (0, 403, 409, 410, 422, 429, 500, 503)]


@pytest.mark.parametrize("error", STORM, ids=lambda error: str(error.status))
async def test_f31_a_controller_that_dies_or_is_refused_anywhere_leaves_nothing_doubled_and_nothing_out(
    error: KubeError,
) -> None:
    calm = Scene()
    await calm.settle()
    wanted = {key: value.get("spec") for key, value in calm.kube.items.items() if key[0] != "Event"}
    calls = calm.kube.asked
    assert calls >= 14
    for number in range(1, calls + 1):
        scene = Scene()
        scene.kube.fail(number, error)
        for _ in range(6):  # each look is a fresh controller: what the one before remembered is lost
            try:
                await scene.reconcile()
            except Requeue:
                continue
        assert {
            key: value.get("spec") for key, value in scene.kube.items.items() if key[0] != "Event"
        } == wanted
        assert scene.graph["metadata"]["finalizers"] == [FINALIZER]
        for kind in ("Ready", "Redundant", "Progressing"):
            assert scene.condition(kind)["reason"] == calm.condition(kind)["reason"]
        assert scene.etcd.read(records.spec_key(UID)) is not None


async def test_without_etcd_the_objects_are_there_all_the_same_and_the_status_says_it() -> None:
    scene = Scene()
    store = Store(lambda key: None)
    store.put_graph(copy.deepcopy(scene.graph))
    cache = EtcdCache(scene.etcd.client(), lambda uid: None)
    with pytest.raises(Requeue):
        await Reconciler(scene.kube, store, cache, SETTINGS, NoIdentities()).reconcile(KEY)
    assert len(scene.kube.of("Deployment")) == 4
    assert scene.condition("Redundant")["reason"] == "EtcdAway"


class Witness:
    """Identities of which one remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: Exception | None = None

    async def ensure(self, place: GraphRef, *, fresh: bool = False) -> str:
        if self.error is not None:
            raise self.error
        self.asked.append(f"ensure {place.name}")
        return "token"

    async def forget(self, owner_uid: str) -> None:
        self.asked.append(f"forget {owner_uid}")

    def doubt(self) -> None:
        self.asked.append("doubt")


async def test_a_graphs_parts_get_their_proof_before_they_are_begun_and_lose_it_last() -> None:
    scene = Scene()
    scene.identities = witness = Witness()
    await scene.settle()
    assert set(witness.asked) == {"ensure pair"}
    pod = scene.kube.items["Deployment", "shop", "pair-manager"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["readinessProbe"]["httpGet"]["httpHeaders"][0]["value"] == "Bearer token"
    scene.graph["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    with pytest.raises(Requeue):
        await scene.reconcile()
    assert not [asked for asked in witness.asked if asked.startswith("forget")], "its pods still prove it"
    await scene.settle()
    assert witness.asked[-1] == f"forget {UID}"
    assert ("ServiceGraph", *KEY) not in scene.kube.items


async def test_a_graph_without_proof_is_not_begun() -> None:
    scene = Scene()
    scene.identities = witness = Witness()
    witness.error = NotOwned("Secret pair-hams-tls: there already, and not of this graph")
    with pytest.raises(Requeue, match="pair-hams-tls"):  # it may be of the graph before, and going
        await scene.reconcile()
    assert scene.condition("Ready")["reason"] == "NameTaken"
    assert "pair-hams-tls" in scene.condition("Ready")["message"]
    witness.error = Unavailable("etcd has no leader")
    with pytest.raises(Requeue, match="no leader"):
        await scene.reconcile()
    assert not scene.kube.of("Deployment")


# -- objects that the webhook has not seen -------------------------------------------------------------------


async def test_an_object_of_megabytes_that_was_stored_without_the_webhook_is_said_to_be_too_large() -> None:
    scene = Scene()
    scene.graph["spec"]["operators"][0]["model"]["config"] = {"table": [1] * 500_000}
    await scene.reconcile()
    assert scene.condition("Ready")["reason"] == "Invalid"
    assert "larger than 256 KiB" in scene.condition("Ready")["message"]
    assert not scene.kube.of("Deployment")


async def test_while_one_object_is_validated_the_loop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, began, let_go = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    real = reconcile.read_permitted

    def slow(*arguments: Any, **named: Any) -> Any:
        loop.call_soon_threadsafe(began.set)
        assert let_go.wait(30), "nobody let go: the loop stood still"
        return real(*arguments, **named)

    monkeypatch.setattr(reconcile, "read_permitted", slow)
    scene = Scene()
    reconciling = asyncio.ensure_future(scene.reconcile())
    await began.wait()
    let_go.set()
    await reconciling
    assert scene.kube.of("Deployment")


# -- a node that is away -------------------------------------------------------------------------------------


def bound(scene: Scene, name: str, seconds_ago: float, **status: Any) -> None:
    """A pod that has been bound to a node; `startTime` would be its kubelet's first word."""
    at = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds_ago)
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": f"{at:%Y-%m-%dT%H:%M:%SZ}"}
    scene.pod(name, {"hams.dev/operator": "count"}, ready=False, **status)
    scene.kube.items["Pod", "shop", name]["status"]["conditions"].append(scheduled)
    scene.kube.items["Pod", "shop", name]["spec"] = {"nodeName": "node2"}


async def test_a_revoked_instances_pod_on_a_node_that_is_away_is_deleted_before_kubernetes_notices() -> None:
    """It still says Ready, for forty seconds. A ReplicaSet does not count a pod that is being deleted."""
    scene = Scene()
    await scene.serving()
    moved = ReplicaSet("count", 2, "pair-count-2-aa", (), (), ((1, 40),))
    scene.topology(Topology(6, (*TOPOLOGY.sets[:2], moved), TOPOLOGY.tables, ("pair-count-1-aa",)))
    scene.unregister("pair-count-1-aa")
    await scene.reconcile()
    assert "delete Pod pair-count-1" in scene.kube.calls


async def test_a_pod_that_no_kubelet_has_seen_is_made_again_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    await scene.serving()
    bound(scene, "pair-count-3", pod_unstarted_s + 1)
    bound(scene, "pair-count-4", pod_unstarted_s + 1, startTime="2026-01-01T00:00:00Z")
    await scene.reconcile()
    assert "delete Pod pair-count-3" not in scene.kube.calls, "it was seen just now"
    monkeypatch.setattr("hams_operator.controller.pod_steps.pod_unstarted_s", 0.0)
    await scene.reconcile()
    assert [call for call in scene.kube.calls if call.startswith("delete Pod")] == ["delete Pod pair-count-3"]


async def test_a_dead_backup_has_no_role_to_revoke_and_is_made_again_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its primary drops it, its lease ends, and its pod says Ready until Kubernetes takes its node for
    dead."""
    scene = Scene()
    await scene.serving()
    alone = ReplicaSet("count", 1, "pair-count-1-aa")
    scene.topology(Topology(6, (*TOPOLOGY.sets[:2], alone), TOPOLOGY.tables, ()))
    scene.unregister("pair-count-2-aa")
    await scene.reconcile()
    assert "delete Pod pair-count-2" not in scene.kube.calls, "it may be about to say so"
    assert await scene.again() is not None
    monkeypatch.setattr("hams_operator.controller.pod_steps.pod_silent_s", 0.0)
    scene.away = "no answer"
    await scene.reconcile()
    assert "delete Pod pair-count-2" not in scene.kube.calls, "without etcd nobody knows"
    scene.away = ""
    await scene.reconcile()
    assert [call for call in scene.kube.calls if call.startswith("delete Pod")] == ["delete Pod pair-count-2"]


async def test_the_pod_of_a_keeper_that_is_cut_off_stays_as_it_may_have_the_only_copy_of_a_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A standby that keeps a state has no other role. Its node is back some time, and the state with it."""
    monkeypatch.setattr("hams_operator.controller.pod_steps.pod_silent_s", 0.0)
    scene = Scene()
    await scene.serving()
    lost = ReplicaSet("count", 1, "pair-count-1-aa", lost=True, keepers=("pair-pass-3-aa",))
    scene.topology(Topology(6, (*TOPOLOGY.sets[:2], lost), TOPOLOGY.tables))
    for name in ("pair-count-1-aa", "pair-pass-3-aa"):
        scene.unregister(name)
    await scene.settle()
    assert "delete Pod pair-pass-3" not in scene.kube.calls


async def test_an_instance_that_registers_again_is_not_taken_for_dead() -> None:
    scene = Scene()
    await scene.serving()
    seen = {
        pod: pods_silent(TOPOLOGY, (), [pod]) for pod in (Pod("pair-new-1", "count", ready=True, uid="1"),)
    }
    assert all(silent == (pod,) for pod, silent in seen.items())
    for pod in seen:
        assert pods_silent(TOPOLOGY, ("pair-new-1-aa",), [pod]) == ()
        assert pods_silent(TOPOLOGY, (), [replace(pod, ready=False)]) == (), (
            "it starts, or its kubelet has said so"
        )
        assert pods_silent(TOPOLOGY, (), [replace(pod, deleting=True)]) == ()


async def test_no_patience_is_had_with_a_node_that_does_not_end_a_pod_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pod that was to be gone by now says that its kubelet is away: the next pods that are bound there are
    not waited for."""
    monkeypatch.setattr("hams_operator.controller.pod_steps.pod_unseen_s", 0.0)
    scene = Scene()
    await scene.serving()
    bound(scene, "pair-count-3", pod_unseen_s + 1)
    await scene.reconcile()
    assert "delete Pod pair-count-3" not in scene.kube.calls
    scene.pod("pair-count-4", {"hams.dev/operator": "count"}, startTime="2026-01-01T00:00:00Z")
    scene.kube.items["Pod", "shop", "pair-count-4"]["spec"] = {"nodeName": "node2"}
    for passed_s, deleted in ((-30.0, False), (pod_overdue_s + 1, True)):
        scene.kube.items["Pod", "shop", "pair-count-4"]["metadata"]["deletionTimestamp"] = started(passed_s)
        await scene.reconcile()
        assert ("delete Pod pair-count-3" in scene.kube.calls) is deleted


async def test_a_pod_that_no_kubelet_has_seen_yet_is_looked_at_again_though_nothing_happens() -> None:
    scene = Scene()
    await scene.serving()
    assert await scene.again() is None
    bound(scene, "pair-count-3", 5)
    again_s = await scene.again()
    assert again_s is not None
    assert 0 < again_s <= pod_unstarted_s


# -- pods that do not start ----------------------------------------------------------------------------------

QUOTA = (
    'pods "pair-count-7d4b-" is forbidden: exceeded quota: team, requested: pods=1, used: pods=10, limited: '
    "pods=10"
)


def refuse(scene: Scene, deployment: str, why: str) -> None:
    """What the Deployment's status says when its ReplicaSet may make no pods."""
    condition = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": why}
    scene.kube.items["Deployment", "shop", deployment]["status"] = {"conditions": [condition]}


async def test_pods_that_kubernetes_refuses_to_make_are_told_in_its_own_words() -> None:
    scene = Scene()
    await scene.settle()
    refuse(scene, "pair-count", QUOTA)
    await scene.reconcile()
    ready = scene.condition("Ready")
    assert (ready["status"], ready["reason"], ready["message"]) == ("False", "PodsRefused", f"count: {QUOTA}")
    assert scene.graph["status"]["message"] == f"count: {QUOTA}", "`kubectl get sg` shows it"


async def test_a_graph_that_serves_says_why_it_does_not_become_redundant() -> None:
    scene = Scene()
    await scene.serving()
    alone = ReplicaSet("count", 2, "pair-count-2-aa", (), (), ((1, 40),))
    scene.topology(Topology(6, (*TOPOLOGY.sets[:2], alone), TOPOLOGY.tables, ()))
    refuse(scene, "pair-count", QUOTA)
    await scene.reconcile()
    assert scene.condition("Ready")["status"] == "True"
    assert scene.condition("Redundant")["message"] == f"count has 0 of 1 backups in sync; count: {QUOTA}"


def started(seconds_ago: float) -> str:
    return (
        f"{datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds_ago):%Y-%m-%dT%H:%M:%SZ}"
    )


def creating(scene: Scene, name: str, seconds_ago: float) -> None:
    waits = {"name": "model", "state": {"waiting": {"reason": "ContainerCreating"}}}
    role = {"hams.dev/operator": "count"}
    scene.pod(name, role, False, containerStatuses=[waits], startTime=started(seconds_ago))


def warn(scene: Scene, name: str, pod: str, message: str, at: str) -> None:
    uid = scene.kube.items["Pod", "shop", pod]["metadata"]["uid"]
    event = {"kind": "Event", "metadata": {"name": name, "namespace": "shop"}, "lastTimestamp": at}
    scene.kube.put(
        {
            **event,
            "type": "Warning",
            "reason": "FailedMount",
            "message": message,
            "involvedObject": {"uid": uid},
        }
    )


async def test_a_pod_whose_containers_are_not_made_is_told_by_its_newest_warning() -> None:
    scene = Scene()
    await scene.settle()
    creating(scene, "pair-count-1", pod_creating_s + 1)
    creating(scene, "pair-count-2", 0)
    missing = 'MountVolume.SetUp failed for volume "weights": secret "weights" not found'
    warn(scene, "older", "pair-count-1", "something else", "2026-01-01T00:00:00Z")
    warn(scene, "newer", "pair-count-1", missing, "2026-01-01T00:00:09Z")
    warn(scene, "of-another", "pair-count-2", "not asked for yet", "2026-01-01T00:00:10Z")
    await scene.reconcile()
    ready = scene.condition("Ready")
    assert ready["reason"] == "PodNotStarting"
    assert ready["message"] == f"count: pod pair-count-1: FailedMount: {missing}"


async def test_a_pod_whose_containers_are_not_made_yet_is_looked_at_again() -> None:
    scene = Scene()
    await scene.settle()
    creating(scene, "pair-count-1", 0)
    assert await scene.again() is not None
    assert scene.condition("Ready")["reason"] == "NoPrimary"


def ended(name: str, restarts: int, code: int, message: str) -> Json:
    last = {"terminated": {"exitCode": code, "message": message, "finishedAt": "2026-01-01T00:00:00Z"}}
    return {
        "name": name,
        "restartCount": restarts,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": last,
    }


@pytest.mark.parametrize(
    ("pod", "container", "reason", "said"),
    [
        ("pair-count-1", "model", "ModelCrashLoop",
            "the model of count keeps ending, last with exit code "
            "1: KeyError: 'x'"),
        ("pair-count-1", "proxy", "CrashLoop",
            "count: proxy of pod pair-count-1 keeps ending, last with "
            "exit code 1: KeyError: 'x'"),
        (
            "pair-frontend-1",
            "frontend",
            "CrashLoop",
            "frontend: frontend of pod pair-frontend-1 keeps ending, last with exit code 1: KeyError: 'x'",
        ),
    ],
)  # fmt: skip
async def test_a_container_that_ends_twice_while_starting_is_told_with_its_last_line(
    pod: str, container: str, reason: str, said: str
) -> None:
    scene = Scene()
    await scene.settle()
    role = {ROLE: "frontend"} if container == "frontend" else {"hams.dev/operator": "count"}
    status = ended(container, 2, 1, "Traceback\nKeyError: 'x'\n")
    scene.pod(pod, role, False, containerStatuses=[status])
    await scene.reconcile()
    assert (scene.condition("Ready")["reason"], scene.condition("Ready")["message"]) == (reason, said)
    scene.pod(pod, role, False, containerStatuses=[ended(container, 1, 1, "once")])
    await scene.reconcile()
    assert scene.condition("Ready")["reason"] not in ("ModelCrashLoop", "CrashLoop")
    scene.pod(pod, role, False, containerStatuses=[ended(container, 5, 75, "revoked")])
    await scene.reconcile()
    assert scene.condition("Ready")["reason"] not in ("ModelCrashLoop", "CrashLoop"), "that is no failure"


async def test_a_pod_whose_container_keeps_ending_is_left_to_the_kubelets_back_off() -> None:
    """A fresh pod would begin without it: six such graphs took a node of two cores from all others."""
    scene = Scene()
    await scene.serving()
    moved = ReplicaSet("count", 2, "pair-count-2-aa", (), (), ((1, 40),))
    scene.topology(Topology(6, (*TOPOLOGY.sets[:2], moved), TOPOLOGY.tables, ("pair-count-1-aa",)))
    role = {"hams.dev/operator": "count"}
    scene.pod("pair-count-1", role, False, containerStatuses=[ended("model", 2, 1, "no")])
    await scene.reconcile()
    assert "delete Pod pair-count-1" not in scene.kube.calls
    scene.pod("pair-count-1", role, False, containerStatuses=[ended("model", 1, 1, "no")])
    await scene.reconcile()
    assert "delete Pod pair-count-1" in scene.kube.calls


# -- who waits for a graph -----------------------------------------------------------------------------------


def kstatus(item: Json) -> str:
    """What kubectl, Argo CD and Flux conclude of any object: sigs.k8s.io/cli-utils, pkg/kstatus/status,
    `GetStatus` for custom resources."""
    status = item.get("status") or {}
    if item["metadata"].get("deletionTimestamp"):
        return "Terminating"
    if status.get("observedGeneration", item["metadata"]["generation"]) != item["metadata"]["generation"]:
        return "InProgress"
    conditions = {result["type"]: result["status"] for result in status.get("conditions", [])}
    if conditions.get("Reconciling") == "True":
        return "InProgress"
    if conditions.get("Stalled") == "True":
        return "Failed"
    return "InProgress" if conditions.get("Ready", "True") != "True" else "Current"


async def test_a_graph_that_comes_up_is_in_progress_and_current_once_it_serves() -> None:
    scene = Scene()
    await scene.reconcile()
    assert kstatus(scene.graph) == "InProgress"
    await scene.serving()
    assert kstatus(scene.graph) == "Current"


LOSES = with_change("name: count", "name: counter", with_change("count.y", "counter.y"))


async def test_a_change_that_is_refused_is_stalled_and_readiness_is_about_what_runs() -> None:
    scene = Scene()
    await scene.serving()
    scene.ask(LOSES)
    await scene.reconcile()
    assert kstatus(scene.graph) == "Failed"
    assert shown(scene, "Stalled") == ("True", "ChangeRefused")
    assert scene.condition("Ready")["observedGeneration"] == 1, "of what runs"
    assert scene.condition("Stalled")["observedGeneration"] == 2, "of what was refused"
    assert scene.graph["status"]["observedGeneration"] == 2
    await scene.reconcile()
    assert scene.condition("Ready")["observedGeneration"] == 1
    scene.ask(PAIR)
    await scene.reconcile()
    assert kstatus(scene.graph) == "Current"
    assert scene.condition("Ready")["observedGeneration"] == 3


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [(KubeError(422, "spec.template: Invalid value"), "Rejected"), (None, "NameTaken")],
)
async def test_what_the_api_server_refuses_is_stalled(refusal: KubeError | None, reason: str) -> None:
    scene = Scene()
    if refusal is None:
        scene.kube.put(
            {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "pair", "namespace": "shop"}}
        )
    else:
        scene.kube.refused = {"create Deployment pair-count": refusal}
    with pytest.raises(Requeue):
        await scene.reconcile()
    assert kstatus(scene.graph) == "Failed"
    assert shown(scene, "Stalled") == ("True", reason)


async def test_an_invalid_graph_and_a_lost_state_are_stalled() -> None:
    wrong = Scene(with_change("inputs: [pass.y]", "inputs: [pas.y]"))
    await wrong.reconcile()
    assert (kstatus(wrong.graph), shown(wrong, "Stalled")) == ("Failed", ("True", "Invalid"))
    lost = Scene()
    await lost.serving()
    gone = ReplicaSet("count", 2, None, (), (), ((1, 40),), lost=True)
    lost.topology(Topology(6, (*TOPOLOGY.sets[:2], gone), TOPOLOGY.tables, ()))
    await lost.reconcile()
    assert (kstatus(lost.graph), shown(lost, "Stalled")) == ("Failed", ("True", "StateLost"))


async def test_what_could_not_be_applied_yet_is_not_observed() -> None:
    scene = Scene()
    await scene.serving()
    scene.ask(with_change('image: "m:1"}\n    inputs: [pass.y]', 'image: "m:2"}\n    inputs: [pass.y]'))
    scene.kube.refused = {"apply Deployment pair-count": KubeError(503, "the API server is going")}
    with pytest.raises(Requeue):
        await scene.reconcile()
    assert kstatus(scene.graph) == "InProgress"
    assert scene.graph["status"]["observedGeneration"] == 1
    scene.kube.refused = {}
    await scene.reconcile()
    assert kstatus(scene.graph) == "Current"


async def test_while_kubernetes_replaces_pods_a_graph_is_in_progress() -> None:
    scene = Scene()
    await scene.serving()
    deployment = scene.kube.items["Deployment", "shop", "pair-count"]
    deployment["metadata"]["generation"] = 2
    deployment["status"] = {"observedGeneration": 2, "replicas": 3, "updatedReplicas": 1}
    await scene.reconcile()
    assert kstatus(scene.graph) == "InProgress"
    assert scene.condition("Progressing")["message"] == "pods of count are replaced"
    assert scene.condition("Ready")["status"] == "True"
    deployment = scene.kube.items["Deployment", "shop", "pair-count"]
    deployment["status"] = {"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2}
    await scene.reconcile()
    assert kstatus(scene.graph) == "Current"


# -- what is said of copies ----------------------------------------------------------------------------------


async def test_a_stateless_operator_without_any_instance_is_not_redundant() -> None:
    scene = Scene()
    await scene.serving()
    for tables in ((), (SlotTable("pass", (Slot(1, None), Slot(1, None))),)):
        scene.topology(Topology(6, TOPOLOGY.sets, tables, ()))
        await scene.reconcile()
        assert shown(scene, "Redundant") == ("False", "Degraded")
        assert "pass has no active instance" in scene.condition("Redundant")["message"]


async def test_a_copy_too_many_makes_up_for_none_that_is_missing() -> None:
    """After a scale down, until the topology has let go of it."""
    scene = Scene()
    await scene.serving()
    assert scene.graph["status"]["inSync"] == "3/3"
    more = ReplicaSet("count", 1, "pair-count-1-aa", ("pair-count-2-aa", "pair-count-3-aa"))
    scene.topology(Topology(6, (*TOPOLOGY.sets[:2], more), TOPOLOGY.tables, ()))
    await scene.reconcile()
    assert scene.graph["status"]["inSync"] == "3/3"
    none = ReplicaSet("F/0", 1, "pair-frontend-1-aa", ())
    scene.topology(Topology(7, (none, TOPOLOGY.sets[1], more), TOPOLOGY.tables, ()))
    await scene.reconcile()
    assert scene.graph["status"]["inSync"] == "2/3"
