"""F34, F31: images of models and of proxies, and the chart, are replaced under load, forth and back;
primaries and controllers die meanwhile."""

import pytest

from e2e.cluster.commands import until
from e2e.scenarios.hits import also_called, objects_of, reason
from e2e.scenarios.install import NAMESPACE, RELEASE, Installation
from e2e.scenarios.report import report
from e2e.scenarios.run import GraphRun
from hams_operator.chaos.scenarios import (
    Aim,
    controllers_killed_in_a_change,
    model_upgraded,
    upgraded_in_a_failover,
)

pytestmark = pytest.mark.timeout(900)

MODEL = "hams.local/hams-example-chain:0.1.0"


def test_F34_a_models_image_is_upgraded(chain: GraphRun) -> None:
    also_called(chain.cluster, MODEL, f"{MODEL}-next")
    with chain.load():
        model_upgraded(chain, Aim(operator="b", image=f"{MODEL}-next"))
        model_upgraded(chain, Aim(operator="b", image=MODEL))
    report(chain, "F34 model")
    assert not chain.failed()
    assert chain.executed_again("b") == 0, "an upgrade hands over"


def test_F34_proxies_frontends_and_managers_are_upgraded_and_go_back(chain: GraphRun) -> None:
    """Halfway, both versions serve one graph."""
    image = chain.sidecar_image()
    also_called(chain.cluster, image, f"{image}-next")
    with chain.load():
        try:
            chain.change_sidecars(f"{image}-next")
            chain.all_replaced(f"{image}-next")
            chain.redundant()
        finally:
            chain.change_sidecars(image)
        chain.all_replaced(image)
        chain.redundant()
    report(chain, "F34 proxies")
    assert not chain.failed()


def test_F34_a_primary_dies_while_its_operator_is_upgraded(chain: GraphRun) -> None:
    also_called(chain.cluster, MODEL, f"{MODEL}-next")
    with chain.load():
        upgraded_in_a_failover(chain, Aim(operator="b", image=f"{MODEL}-next"))
    report(chain, "F34 in a failover")
    assert not chain.failed()


def test_F34_the_chart_is_upgraded_in_a_failover_and_rolled_back(
    chain: GraphRun, installation: Installation
) -> None:
    """By helm: controllers are replaced, and these replace all pods of the graph; a primary dies as soon as
    its operator's turn has come."""
    image = chain.sidecar_image()
    following = f"{image}-next"
    for name in ("hams-sidecar", "hams-controller"):
        also_called(
            chain.cluster, image.replace("hams-sidecar", name), following.replace("hams-sidecar", name)
        )
    path = "jsonpath={.spec.template.spec.containers[0].image}"
    # not etcd's turn: F27 is another row
    etcd = chain.cluster.kubectl("get", "-n", NAMESPACE, f"statefulset/{RELEASE}-etcd", "-o", path)
    with chain.load():
        with installation.upgraded(**{"image.tag": following.rpartition(":")[2], "etcd.image": etcd}):
            until(lambda: following in chain.images_of("b"), 120, "an upgrade of b", 0.2)
            chain.delete(chain.pod_of("b", "primary"), force=True)
            chain.changed()
            chain.all_replaced(following)
            chain.redundant()
            chain.note("helm rollback")
        chain.all_replaced(image)
        chain.redundant()
    report(chain, "F34 chart in a failover")
    assert chain.sidecar_image() == image, "the release is as it was found"
    assert not chain.failed()


def test_F31_controllers_die_again_and_again_in_a_change(chain: GraphRun) -> None:
    """Whatever one of them had begun another finishes, once: nothing is doubled, nothing is left over."""
    before = objects_of(chain.cluster, chain.name)
    with chain.load():
        controllers_killed_in_a_change(chain, Aim(operator="b", times=2))
    assert objects_of(chain.cluster, chain.name) == before
    assert len(chain.pods_of("b")) == 2
    reason(chain, "Ready", "Serving")
    report(chain, "F31")
    assert not chain.failed()
