"""Scheduling by deadlines as somebody meets it who has a cluster: what is learnt, what is on time, and
profiles that go from one place to another.

No row of the catalogue: what is learnt is a hint, and nothing is lost with it.
"""

import json
from pathlib import Path
from typing import Any

from e2e.cluster.commands import until
from e2e.cluster.layout import ROOT
from e2e.scenarios.install import Installation
from e2e.scenarios.run import NAMESPACE, GraphRun, graph_on, hams
from e2e.scenarios.variants import variant

LEARNT = 200
"""Requests that every operator has learnt from."""
SHOWN_S = 60.0
"""Half a minute may pass until the controller says how instances serve."""


def timely(folder: Path) -> Path:
    """The chain, all of its operators by `Distribution`."""

    def change(spec: dict[str, Any]) -> None:
        for operator in spec["operators"]:
            operator["batch"]["policy"] = "Distribution"

    return variant(folder, "timely", change)


def on_cluster(installation: Installation, *words: object) -> str:
    """What the command prints."""
    environment = installation.cluster.environment()
    done = hams(*words, "--namespace", NAMESPACE, environment=environment)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout


def samples(installation: Installation, run: GraphRun) -> dict[str, int]:
    """What the primary of each operator has learnt from."""
    reports = json.loads(on_cluster(installation, "profile", "--graph", run.name, "--output", "json"))
    return {
        item["operator"]: sum(known["samples"] for known in item["classes"])
        for item in reports
        if item["role"] == "primary"
    }


def test_what_is_learnt_on_a_cluster_is_shown_saved_forgotten_and_outlives_its_primary(
    installation: Installation, tmp_path: Path
) -> None:
    times = tmp_path / "times.json"
    with graph_on(installation, timely(tmp_path)) as run:
        file = run.history / "graph.yaml"
        (run.history / "chain").symlink_to(ROOT / "examples" / "chain" / "chain")  # to be measured here
        profile = ("profile", "--graph", run.name)
        run.redundant()
        said = on_cluster(
            installation, "load", file, "--rate", 25, "--duration", "10s", "--deadline-ms", 5000
        )
        assert "0 failed" in said
        learnt = samples(installation, run)
        assert set(learnt) == {"a", "b", "c"}
        assert all(learnt.values())

        def is_on_time() -> bool:
            return on_cluster(installation, "status", "--graph", run.name).count(" %") >= 3

        until(is_on_time, SHOWN_S, "ON TIME of three primaries")

        def is_stored() -> bool:
            return "a, b, c" in on_cluster(installation, *profile, "--save", times)

        until(is_stored, SHOWN_S, "three profiles in etcd")
        on_cluster(installation, "profile", "a", "--graph", run.name, "--clear")
        until(lambda: not samples(installation, run)["a"], SHOWN_S, "a profile forgotten")
        on_cluster(installation, "profile", "a", "--graph", run.name, "--load", times)
        until(lambda: samples(installation, run)["a"] > 0, SHOWN_S, "a profile loaded")
        known = samples(installation, run)["a"]
        run.delete(run.pod_of("a", "primary"), force=True)
        run.redundant()
        assert samples(installation, run)["a"] == known, "whoever took over does not know the times"
        on_cluster(installation, "profile", "--run", file, "--samples", LEARNT)
        until(
            lambda: min(samples(installation, run).values()) >= LEARNT,
            SHOWN_S,
            "times measured here known there",
        )


def test_a_graph_that_serves_is_current(installation: Installation, tmp_path: Path) -> None:
    """As `kubectl wait`, Argo CD and Flux see it (kstatus): nothing is under way any more."""
    with graph_on(installation, timely(tmp_path)) as run:
        run.redundant()

        def is_current() -> bool:
            kinds = ("Progressing", "Reconciling", "Stalled")
            return all(run.condition(kind)["status"] == "False" for kind in kinds)

        until(is_current, SHOWN_S, "nothing under way")
