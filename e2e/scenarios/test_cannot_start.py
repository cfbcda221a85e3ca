"""Six graphs whose models end at once, beside a healthy one: each status says so, and the healthy graph
serves on.

How often the controllers' Lease moved is reported and not judged, nor is how long it took: where two cores
carry all of the pods, that is what they need.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.cluster import Cluster
from e2e.cluster.commands import CommandFailed, until
from e2e.cluster.layout import kubernetes_timers
from e2e.cluster.machine import NotPossible
from e2e.scenarios.install import NAMESPACE as SYSTEM
from e2e.scenarios.install import Installation
from e2e.scenarios.report import report
from e2e.scenarios.run import FULL, NAMESPACE, GraphRun
from e2e.scenarios.variants import variant

GRAPHS = 6
SAID_S = 600.0
"""For the status of each graph to name what is wrong: a hundred containers start on the cores there are."""
CANNOT_START = {"ModelCrashLoop", "Unschedulable"}
"""Nodes that are full of the first graphs have no place for the last ones."""
LASTS_S = 600.0 if FULL else 60.0
"""How long they go on crashing after that."""


def name_entrypoint_that_is_missing(spec: dict[str, list[dict[str, dict[str, object]]]]) -> None:
    for operator in spec["operators"]:
        operator["model"]["entrypoint"] = "chain.models:Missing"


@pytest.fixture
def broken(tmp_path: Path) -> list[Path]:
    return [
        variant(tmp_path, f"cannot-start-{number}", name_entrypoint_that_is_missing)
        for number in range(GRAPHS)
    ]


@pytest.fixture
def applied(installation: Installation, broken: list[Path]) -> Iterator[list[str]]:
    """Names of the graphs, which a test applies; none is left afterwards."""
    names = [file.stem for file in broken]
    try:
        yield names
    finally:
        installation.cluster.kubectl(
            "delete", "servicegraph", *names, "-n", NAMESPACE, "--ignore-not-found", "--timeout=180s"
        )


def reason(cluster: Cluster, name: str) -> str:
    """Why a graph is not Ready; empty: its status does not say it yet."""
    try:
        item = json.loads(cluster.kubectl("get", "servicegraph", name, "-n", NAMESPACE, "-o", "json"))
    except CommandFailed:
        return ""
    conditions = item.get("status", {}).get("conditions", ())
    return next((one["reason"] for one in conditions if one["type"] == "Ready"), "")


def said(cluster: Cluster, name: str, within_s: float) -> str:
    """Wait until a graph's status tells what keeps it from starting, and return that. Raises NotInTime."""
    until(
        lambda: reason(cluster, name) in CANNOT_START,
        within_s,
        f"the status of {name} to tell what is wrong, instead of {reason(cluster, name)!r}",
        2.0,
    )
    return reason(cluster, name)


def lease_transitions(cluster: Cluster) -> int:
    """How often the controllers' Lease has changed its holder."""
    leases = json.loads(cluster.kubectl("get", "leases", "-n", SYSTEM, "-o", "json"))["items"]
    return sum(int(lease["spec"].get("leaseTransitions", 0)) for lease in leases)


@pytest.mark.timeout(1800)
def test_graphs_that_cannot_start_hurt_nobody_else(
    chain: GraphRun, broken: list[Path], applied: list[str]
) -> None:
    """With Kubernetes' own back-off: a kubelet that starts a failed container again each second keeps two
    cores busy by itself."""
    if not kubernetes_timers():
        raise NotPossible("needs a cluster that was started with HAMS_E2E_TIMERS=kubernetes")
    cluster = chain.cluster
    before = lease_transitions(cluster)
    with chain.load():
        chain.note("six graphs that cannot start")
        began = time.monotonic()
        for file in broken:
            cluster.kubectl("apply", "-n", NAMESPACE, "-f", file)
        reasons: list[str] = []
        for name in applied:
            reasons.append(said(cluster, name, max(1.0, SAID_S - (time.monotonic() - began))))
        said_s = round(time.monotonic() - began, 1)
        chain.stalled(LASTS_S)
        chain.answered(50)
    moved = lease_transitions(cluster) - before
    report(chain, "K4 graphs that cannot start", saidS=said_s, reasons=reasons, leaseTransitions=moved)
    assert "ModelCrashLoop" in reasons
    assert not chain.failed()
