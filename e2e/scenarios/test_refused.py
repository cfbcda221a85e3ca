"""What Kubernetes refuses a graph is said by `kubectl get sg`, in Kubernetes' words: pods for which there is
no quota, pods whose Secret nobody has made. A change that would lose a state is refused while the graph
serves on."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.cluster import Cluster
from e2e.cluster.commands import CommandFailed, until
from e2e.scenarios.install import Installation
from e2e.scenarios.run import NAMESPACE, GraphRun
from e2e.scenarios.variants import variant

SAID_S = 90.0
"""For the status to say it: a pod that is stuck in its creation is asked about after 10 s, and a kubelet
retries a volume after up to a minute."""
QUOTA = "no-pods"
SECRET = "nobody-made-it"


@pytest.fixture
def alone(installation: Installation) -> Iterator[Callable[[Path], str]]:
    """Applies a graph that will not start, by its file; it goes when the test ends."""
    cluster, names = installation.cluster, list[str]()

    def apply(file: Path) -> str:
        cluster.kubectl("apply", "-n", NAMESPACE, "-f", file)
        names.append(file.stem)
        return file.stem

    try:
        yield apply
    finally:
        for name in names:
            cluster.kubectl(
                "delete", "servicegraph", name, "-n", NAMESPACE, "--ignore-not-found", "--timeout=180s"
            )


def said(cluster: Cluster, name: str, words: str) -> tuple[str, str]:
    """Reason and message of Ready, once the message has these words. Raises NotInTime, with what it says
    instead."""
    last = {"reason": "", "message": ""}

    def says() -> bool:
        item = json.loads(cluster.kubectl("get", "servicegraph", name, "-n", NAMESPACE, "-o", "json"))
        for condition in item.get("status", {}).get("conditions", ()):
            if condition["type"] == "Ready":
                last.update(condition)
        return words in last["message"]

    until(says, SAID_S, f"{words!r} in the status of {name}", 1.0)
    return last["reason"], last["message"]


def test_a_quota_that_forbids_pods_is_told_in_its_words(
    installation: Installation, tmp_path: Path, alone: Callable[[Path], str]
) -> None:
    cluster = installation.cluster
    cluster.kubectl("create", "quota", QUOTA, "--hard=pods=0", "-n", NAMESPACE)
    try:
        name = alone(variant(tmp_path, "no-quota", lambda spec: None))
        reason, message = said(cluster, name, "exceeded quota")
        assert reason == "PodsRefused"
        assert QUOTA in message
        shown = cluster.kubectl("get", "sg", name, "-n", NAMESPACE)
        assert "exceeded quota" in shown, shown
    finally:
        cluster.kubectl("delete", "quota", QUOTA, "-n", NAMESPACE)


def test_a_secret_that_is_missing_is_named(
    installation: Installation, tmp_path: Path, alone: Callable[[Path], str]
) -> None:
    def ask_for_tokens(spec: dict[str, Any]) -> None:
        spec["frontend"] = {**spec.get("frontend", {}), "tokenSecret": SECRET}

    name = alone(variant(tmp_path, "no-secret", ask_for_tokens))
    reason, message = said(installation.cluster, name, SECRET)
    assert reason == "PodNotStarting", message
    assert "not found" in message


def test_a_change_that_loses_a_state_is_refused_and_the_graph_serves_on(chain: GraphRun) -> None:
    """By the webhook, in the terminal of who asked; nothing is replaced."""
    before = set(chain.pods())
    at = next(number for number, op in enumerate(chain.resource()["spec"]["operators"]) if op["name"] == "b")
    patch = [{"op": "remove", "path": f"/spec/operators/{at}/stateful"}]
    with chain.load():
        with pytest.raises(CommandFailed) as refused:
            chain.cluster.kubectl(
                "patch", "servicegraph", chain.name, "-n", NAMESPACE, "--type=json", "-p", json.dumps(patch)
            )
        chain.answered(50)
    assert "hams.dev/allow-state-loss" in str(refused.value), "how to allow it is said"
    assert set(chain.pods()) == before
    assert not chain.failed()
