"""One cluster with the chart in it for all scenarios of a run. A cluster that is up already is used and left as it is."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.cluster import Cluster
from e2e.cluster.layout import ROOT
from e2e.scenarios.install import Installation, archives
from e2e.scenarios.run import GraphRun, graph_on, keep_history

NODES = 3
KEPT = ROOT / "out" / "e2e"
"""Histories of scenarios that failed."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    found = Cluster()
    found.build()
    if found.running():
        yield found
        return
    found.up(NODES, archives(found))
    try:
        yield found
    finally:
        found.down()


@pytest.fixture(scope="session")
def installation(cluster: Cluster) -> Installation:
    found = Installation(cluster)
    found.install()
    return found


@pytest.fixture
def chain(installation: Installation, request: pytest.FixtureRequest) -> Iterator[GraphRun]:
    """Three operators with state, one backup each."""
    run = None
    try:
        with graph_on(installation, Path(ROOT / "examples" / "chain" / "graph.yaml")) as run:
            yield run
        run.verify()
    except BaseException:
        if run is not None:
            keep_history(run, KEPT / request.node.name)
        raise
