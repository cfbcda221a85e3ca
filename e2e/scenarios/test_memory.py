"""F32: the kernel kills a model, or a proxy, because its container's memory is used up."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.commands import CommandFailed, until
from e2e.scenarios.conftest import HISTORIES
from e2e.scenarios.install import Installation
from e2e.scenarios.report import report
from e2e.scenarios.run import GraphRun, graph_on, keep_history
from e2e.scenarios.variants import operator, variant

LIMIT = {"model": "192Mi", "proxy": "256Mi"}
HOG = """
import os
path = "/run/hams/hog"
with open(path, "wb", buffering=0) as file:
    os.unlink(path)
    while True:
        file.write(bytes(1 << 20))
"""
"""Memory of the pod's shared volume is charged to the container that writes it, and belongs to no process: so
the largest one is killed."""


@pytest.fixture
def limited(installation: Installation, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[GraphRun]:
    """The chain, whose operator b has little memory."""

    def change(spec: dict[str, object]) -> None:
        containers = [
            {"name": name, "resources": {"limits": {"memory": limit}}} for name, limit in LIMIT.items()
        ]
        operator(spec, "b")["podTemplate"] = {"spec": {"containers": containers}}

    run = None
    try:
        with graph_on(installation, variant(tmp_path, "limited", change)) as run:
            yield run
        run.verify()
    except BaseException:
        if run is not None:
            keep_history(run, HISTORIES / request.node.name)
        raise


def killed_for_memory(run: GraphRun, pod: str, container: str) -> bool:
    """Whether Kubernetes says so of the container's life before."""
    item = run.pods().get(pod, {"status": {}})
    statuses = [
        *item["status"].get("containerStatuses", ()),
        *item["status"].get("initContainerStatuses", ()),
    ]
    for status in statuses:
        ended = [
            state["terminated"]
            for state in (status.get("state", {}), status.get("lastState", {}))
            if "terminated" in state
        ]
        if status["name"] == container and any(
            one.get("reason") == "OOMKilled" or one.get("exitCode") == 137 for one in ended
        ):
            return True
    return False


@pytest.mark.parametrize("container", ["model", "proxy"])
def test_F32_a_container_runs_out_of_memory(limited: GraphRun, container: str) -> None:
    pod = limited.pod_of("b", "primary")
    with limited.load():
        limited.note(f"use up the memory of {container} in {pod}")
        try:
            limited.cluster.kubectl("exec", pod, "-n", "default", "-c", container, "--", "python3", "-c", HOG)
        except CommandFailed as error:
            print(json.dumps({"hog": str(error)[-200:]}))  # it is killed, or its container is
        until(
            lambda: pod not in limited.pods() or killed_for_memory(limited, pod, container),
            30,
            f"end of {container} for memory",
            0.1,
        )
        limited.answered(40)
        limited.redundant()
    report(limited, f"F32 {container}")
    assert not limited.failed()
