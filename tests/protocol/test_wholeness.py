"""What a graph lacks, in the order in which people are told."""

from dataclasses import replace

import pytest

from hams_graph import load_text
from hams_protocol.ids import InstanceId
from hams_protocol.topology import ReplicaSet, Slot, SlotTable, Topology
from hams_protocol.wholeness import (
    READY,
    REDUNDANT,
    InstancesSeen,
    Lack,
    copies_wanted,
    unserved,
    wholeness,
    why_not,
)

TEXT = """
apiVersion: hams.dev/v1alpha1
kind: ServiceGraph
metadata: {name: test}
spec:
  inputs: [{name: x, datatype: FP32, shape: [4]}]
  outputs: [{name: y, from: count.y}]
  frontend: {replicas: 2, shards: 1}
  operators:
  - name: pass
    model: {entrypoint: "m:Pass"}
    inputs: [request.x]
    outputs: [{name: y, datatype: FP32, shape: [4]}]
    replicas: 2
    standby: {hot: 1}
  - name: count
    stateful: {backups: 1}
    model: {entrypoint: "m:Count"}
    inputs: [pass.y]
    outputs: [{name: y, datatype: FP32, shape: [4]}]
"""
GRAPH = load_text(TEXT)
SHARD = GRAPH.shard_names[0]
SLOTS = SlotTable("pass", (Slot(1, "p1"), Slot(1, "p2")))
WHOLE = Topology(
    sets=(ReplicaSet("count", 1, "c1", ("c2",)), ReplicaSet(SHARD, 1, "f1", ("f2",))), tables=(SLOTS,)
)


def seen(*silent: InstanceId, warm: int = 1, away: str = "") -> InstancesSeen:
    """Everybody serves but those who are silent."""
    return InstancesSeen(
        lambda name, _: name not in silent, lambda name: name not in silent, lambda op: warm, etcd_away=away
    )


ALL = seen()


def lacks(topology: Topology, serving: InstancesSeen = ALL, text: str = TEXT) -> list[Lack]:
    return wholeness(load_text(text), topology, serving)


def messages(topology: Topology, serving: InstancesSeen = ALL, text: str = TEXT) -> list[str]:
    return [lack.message for lack in lacks(topology, serving, text)]


def test_a_whole_graph_lacks_nothing() -> None:
    assert lacks(WHOLE) == []
    assert why_not(READY, []) is None


def test_a_graph_that_has_just_begun_lacks_every_role() -> None:
    assert [(lack.of, lack.reason) for lack in lacks(Topology()) if lack.condition == READY] == [
        ("count", "NoPrimary"),
        (SHARD, "NoPrimary"),
        ("pass", "NoActive"),
    ]
    assert why_not(REDUNDANT, lacks(Topology())) == (
        "Degraded",
        "pass has no active instance that serves",
    )


def test_a_primary_that_does_not_serve_keeps_the_graph_from_answering() -> None:
    assert messages(WHOLE, seen("c1")) == [
        "c1, primary of count, does not serve it",
        "c1 does not serve its role",
    ]
    assert lacks(WHOLE, seen("c1"))[0] == Lack(
        "Ready", "count", "NotServing", "c1, primary of count, does not serve it"
    )


def test_a_backup_that_is_silent_costs_redundancy_alone() -> None:
    assert lacks(WHOLE, seen("c2")) == [Lack(REDUNDANT, "count", "Degraded", "c2 does not serve its role")]


def test_a_slot_that_is_not_served_is_told_of_both_conditions() -> None:
    assert messages(WHOLE, seen("p2")) == ["slot 1 of pass is not served", "a slot of pass is not served"]


def test_a_slot_without_an_owner_is_not_served() -> None:
    without = WHOLE.with_table(SlotTable("pass", (Slot(1, "p1"), Slot())))
    assert messages(without)[0] == "slot 1 of pass is not served"


def test_two_slots_of_one_instance_would_fall_together() -> None:
    together = WHOLE.with_table(SlotTable("pass", (Slot(1, "p1"), Slot(1, "p1"))))
    assert messages(together) == ["an instance of pass has more than one slot"]


@pytest.mark.parametrize(
    ("may_restart", "decide"),
    [(True, "it begins again"), (False, "to begin it again: hams restart count")],
)
def test_of_a_lost_state_it_is_said_what_brings_it_back(may_restart: bool, decide: str) -> None:
    lost = WHOLE.with_set(ReplicaSet("count", 2, "c1", lost=True, may_restart=may_restart))
    assert why_not(READY, lacks(lost)) == ("StateLost", f"no replica of the state of count is left; {decide}")


@pytest.mark.parametrize("name", ["count", SHARD])
def test_of_a_graph_without_a_request_nothing_can_be_lost(name: str) -> None:
    """It said StateLost, and hid why its models do not start."""
    gone = replace(WHOLE.with_set(ReplicaSet(name, 2, "c1", lost=True)), untouched=True)
    message = (
        f"none of the instances of {name} is left; it begins again by itself, as no request has come yet"
    )
    assert why_not(READY, lacks(gone)) == ("NoPrimary", message)


@pytest.mark.parametrize(
    ("replica_set", "message"),
    [
        (ReplicaSet("count", 2, "c1"), "count has 0 of 1 backups in sync"),
        (
            ReplicaSet("count", 2, "c1", keepers=("k",)),
            "count has 0 of 1 backups in sync; k keeps a copy of the state meanwhile",
        ),
        (ReplicaSet(SHARD, 2, "f1"), f"shard {SHARD} has 0 of 1 copies in sync"),
    ],
)
def test_who_keeps_what_lacks_copies_is_said(replica_set: ReplicaSet, message: str) -> None:
    assert messages(WHOLE.with_set(replica_set)) == [message]


def test_standbys_count_only_while_they_are_warm() -> None:
    assert messages(WHOLE, seen(warm=0)) == ["pass has 0 of 1 standbys warm"]


def test_without_etcd_nothing_can_be_moved_though_all_serve() -> None:
    assert lacks(WHOLE, seen(away="no member answers")) == [
        Lack(REDUNDANT, "", "EtcdAway", "nothing can be moved: no member answers")
    ]


def test_what_a_graph_does_not_ask_for_is_told_last() -> None:
    alone = TEXT.replace("frontend: {replicas: 2", "frontend: {replicas: 1")
    single = WHOLE.with_set(ReplicaSet(SHARD, 1, "f1"))
    assert [lack.reason for lack in lacks(single, seen("c2"), alone)] == ["Degraded", "NotAskedFor"]


def test_without_replicas_by_its_own_wish_a_graph_lacks_no_copies() -> None:
    without_replicas = TEXT.replace("spec:\n", "spec:\n  mode: None\n")
    topology = replace(WHOLE, sets=(ReplicaSet("count", 1, "c1"), ReplicaSet(SHARD, 1, "f1")))
    assert messages(topology, seen(warm=0), without_replicas) == ["mode None keeps no replicas"]


def test_copies_are_wanted_of_states_and_shards() -> None:
    assert copies_wanted(GRAPH) == {"count": 1, SHARD: 1}


def test_who_asks_for_service_alone_need_not_know_of_standbys() -> None:
    assert [lack.of for lack in unserved(GRAPH, WHOLE, lambda name, of: of != SHARD)] == [SHARD]


REPLAYED = TEXT.replace("spec:\n", "spec:\n  mode: LineageStash\n", 1).replace(
    "stateful: {backups: 1}", "stateful: {checkpoint: {every: 1s, dir: /c}}"
)
ALONE = ReplicaSet("count", 1, "c1")


def test_a_state_that_is_run_again_needs_no_copies() -> None:
    topology = replace(WHOLE, sets=(ALONE, *WHOLE.sets[1:]))
    assert lacks(topology, text=REPLAYED) == []


def test_a_lost_state_that_is_run_again_waits_for_nobody() -> None:
    lost = replace(WHOLE, sets=(replace(ALONE, lost=True), *WHOLE.sets[1:]), untouched=False)
    (lack,) = [item for item in lacks(lost, text=REPLAYED) if item.condition == READY]
    assert (lack.reason, lack.message) == (
        "NoPrimary",
        "no instance of count has its state; what came after its newest checkpoint is run again",
    )
