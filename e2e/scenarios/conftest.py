"""One cluster with the chart in it for all scenarios of a run. One that is up already is used and left as it
is, if its images are the newest."""

import contextlib
import os
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from e2e.cluster.choice import chosen
from e2e.cluster.cluster import Cluster, NotPossible
from e2e.cluster.layout import ROOT
from e2e.scenarios.install import Installation, OldImages, archives, check_images
from e2e.scenarios.run import GraphRun, graph_on, keep_history
from e2e.scenarios.test_deletions import RANDOM_S
from e2e.scenarios.variants import CHAIN, operator, variant

NODES = 3
USUAL_S = 75.0
SCENARIO_S = 1800
NEEDED_S = {"test_F14_pods_are_deleted_at_random": RANDOM_S + USUAL_S}
"""How long scenarios take."""
HISTORIES = ROOT / "out" / "e2e"
"""Histories of scenarios that failed."""
FAILED = "failed"
"""Property of a scenario that failed: its history is kept, whatever the judge finds."""
NOT_POSSIBLE = "not possible"
"""Property of a scenario that found that this cluster cannot do it: there is nothing to judge."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    chosen_cluster = chosen()
    chosen_cluster.build()
    if chosen_cluster.running():
        try:
            check_images(chosen_cluster)
        except OldImages as error:
            pytest.exit(str(error), returncode=1)
        yield chosen_cluster
        return
    chosen_cluster.up(NODES, archives() if chosen_cluster.recorded else [])
    try:
        yield chosen_cluster
    finally:
        chosen_cluster.down()


@pytest.fixture(scope="session")
def installation(cluster: Cluster) -> Installation:
    made = Installation(cluster)
    made.install()
    return made


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Scenarios may take longer than other tests, unless it is said how long."""
    if config.getoption("timeout", None) is None:
        for item in items:
            if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SCENARIO_S))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """No scenario begins that would not be over when the time is."""
    end = os.environ.get("HAMS_E2E_END")
    if end and time.monotonic() + NEEDED_S.get(item.name, USUAL_S) > float(end):
        pytest.skip("no time is left for it")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """What the chosen cluster cannot do skips the scenario, by name."""
    try:
        return (yield)
    except NotPossible as error:
        item.user_properties.append((NOT_POSSIBLE, str(error)))
        pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fixtures do not hear of a scenario that failed; `judged` does. What Kubernetes knew then is printed:
    the graph is gone before anybody can look."""
    report = yield
    if report.failed and call.when == "call":
        item.user_properties.append((FAILED, True))
        runs = [value for value in getattr(item, "funcargs", {}).values() if isinstance(value, GraphRun)]
        report.sections += [(f"objects of {run.name}", run.objects()) for run in runs]
    return report


@contextlib.contextmanager
def judged(installation: Installation, file: Path, item: pytest.Item) -> Iterator[GraphRun]:
    """A graph that is verified at the end of a scenario, if that was not skipped. The history of one that
    fails is kept under the scenario's name."""
    run = None
    try:
        with graph_on(installation, file) as run:
            yield run
        if FAILED in dict(item.user_properties):
            keep_history(run, HISTORIES / item.name)
        if NOT_POSSIBLE not in dict(item.user_properties):
            run.verify()
    except NotPossible as error:
        pytest.skip(str(error))
    except BaseException:
        if run is not None:
            keep_history(run, HISTORIES / item.name)
        raise


@pytest.fixture
def chain(installation: Installation, request: pytest.FixtureRequest) -> Iterator[GraphRun]:
    """Three operators with state, one backup each."""
    with judged(installation, CHAIN, request.node) as run:
        yield run


@pytest.fixture
def mixed(installation: Installation, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[GraphRun]:
    """One operator with state between two without; of the first one, `a`, there are two."""
    file = variant(
        tmp_path,
        "mixed",
        lambda spec: operator(spec, "a").update(replicas=2),
        of=CHAIN.with_name("mixed.yaml"),
    )
    with judged(installation, file, request.node) as run:
        yield run
