"""A graph that asks for GPUs: the real scheduler places it on nodes that have some, and where none has, the
status says why it waits.

GPUs are advertised as an extended resource on the nodes' status, as a device plugin does; no kernel here has
one.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e.cluster.cluster import Cluster
from e2e.cluster.commands import until
from e2e.scenarios.install import Installation
from e2e.scenarios.variants import operator, variant

NAME = "with-gpus"
GPU = "nvidia.com/gpu"
NODES = ("node1", "node2")


def advertise(cluster: Cluster, node: str, count: int) -> None:
    """What a device plugin would have the kubelet say."""
    places = [f"/status/{where}/{GPU.replace('/', '~1')}" for where in ("capacity", "allocatable")]
    patch = [{"op": "add", "path": place, "value": str(count)} for place in places]
    cluster.kubectl("patch", "node", node, "--subresource=status", "--type=json", "-p", json.dumps(patch))


@pytest.fixture
def graph(installation: Installation, tmp_path: Path) -> Iterator[Cluster]:
    """The chain, whose operator b asks for a GPU in each of its two pods."""

    def change(spec: dict[str, object]) -> None:
        limits = {"limits": {GPU: 1}}
        operator(spec, "b")["podTemplate"] = {
            "spec": {"containers": [{"name": "model", "resources": limits}]}
        }

    cluster = installation.cluster
    file = variant(tmp_path, NAME, change)
    assert yaml.safe_load(file.read_text())["metadata"]["name"] == NAME
    cluster.kubectl("apply", "-n", "default", "-f", file)
    try:
        yield cluster
    finally:
        cluster.kubectl("delete", "servicegraph", NAME, "-n", "default", "--wait=false")
        cluster.kubectl(
            "delete", "pods", "-n", "default", "-l", f"hams.dev/graph={NAME}", "--force", "--grace-period=0"
        )
        until(
            lambda: not cluster.kubectl("get", "servicegraph", "-n", "default", "-o", "name").count(NAME),
            120,
            "end of the graph",
            0.2,
        )
        for node in NODES:
            advertise(cluster, node, 0)


def condition(cluster: Cluster, kind: str) -> dict[str, str]:
    item = json.loads(cluster.kubectl("get", "servicegraph", NAME, "-n", "default", "-o", "json"))
    return next(
        (entry for entry in item.get("status", {}).get("conditions", ()) if entry["type"] == kind), {}
    )


def pods(cluster: Cluster) -> list[dict[str, object]]:
    listed: list[dict[str, object]] = json.loads(
        cluster.kubectl(
            "get", "pods", "-n", "default", "-l", f"hams.dev/graph={NAME},hams.dev/operator=b", "-o", "json"
        )
    )["items"]
    return listed


def test_a_graph_waits_for_gpus_says_so_and_runs_where_they_are(graph: Cluster) -> None:
    until(
        lambda: condition(graph, "Ready").get("reason") == "Unschedulable",
        60,
        "the status to say that no node fits",
        0.2,
    )
    message = condition(graph, "Ready")["message"]
    assert "is pending" in message
    assert f"Insufficient {GPU}" in message
    assert {item["status"]["phase"] for item in pods(graph)} == {"Pending"}  # type: ignore[index]
    began = time.monotonic()
    for node in NODES:
        advertise(graph, node, 1)
    until(lambda: condition(graph, "Redundant").get("status") == "True", 120, "a graph with GPUs", 0.2)
    print(json.dumps({"scenario": "GPU", "redundantAfterS": round(time.monotonic() - began, 1)}))
    assert sorted(item["spec"]["nodeName"] for item in pods(graph)) == list(NODES), (
        "one GPU each, so one pod each"
    )  # type: ignore[index]
    assert condition(graph, "Ready")["status"] == "True"
