"""F15, F16, F17: a node is drained, dies, is cut off and returns, under load."""

import time

from e2e.cluster.cluster import NotPossible
from e2e.cluster.layout import kubernetes_timers
from e2e.scenarios.report import report
from e2e.scenarios.run import POLL_S, GraphRun
from hams_operator.chaos.scenarios import Aim, drained
from hams_operator.plan.pods_seen import pod_of

MOVES_MAX = 6


def node_of_primary(run: GraphRun, operator: str) -> str:
    """Where an operator's primary runs; moved away from node 0, which holds the control plane, by deleting it
    there."""
    for _ in range(3):
        node = str(run.pods()[run.pod_of(operator, "primary")]["spec"]["nodeName"])
        if node != "node0":
            return node
        run.delete(run.pod_of(operator, "primary"))
        run.changed()
        run.redundant()
    raise AssertionError(f"the primary of {operator} stays on node 0")


def apart(run: GraphRun) -> None:
    """Moves copies until no set has all of them on one node, nor are all managers on one. Kubernetes puts
    them there where the other nodes were not ready for a moment. A copy that is no primary moves."""
    for _ in range(MOVES_MAX):
        nodes = {name: item["spec"].get("nodeName", "") for name, item in run.pods().items()}
        topology = run.known()
        groups = [
            [replica_set["primary"], *replica_set["inSync"]] for replica_set in topology["sets"].values()
        ]
        groups.append([name for name, of in topology["members"].items() if of == "manager"])
        for group in groups:
            homes = [pod for name in group if name and (pod := pod_of(name, list(nodes))) is not None]
            if len(homes) > 1 and len({nodes[pod] for pod in homes}) == 1:
                run.delete(homes[-1])
                run.changed()
                run.redundant()
                break
        else:
            run.faults.clear()  # the scenario has not begun
            return
    raise AssertionError(f"copies stay on one node after {MOVES_MAX} moves")


def test_F15_a_node_is_drained(chain: GraphRun) -> None:
    """The budgets hold evictions up until states are in sync elsewhere; no pair is evicted together."""
    asked = chain.members_on(node_of_primary(chain, "b"))
    with chain.load():
        drained(chain, Aim(operator="b"))
    handed_over = chain.handed_over(asked)
    report(chain, "F15", handed_over=handed_over)
    assert not chain.failed()
    if handed_over:
        assert chain.executed_again("b") == 0, "a drain hands over"


def test_F16_F17_a_node_is_cut_off_and_returns(chain: GraphRun) -> None:
    """Failover does not wait for Kubernetes to notice; what the cut-off instances say when they are back is
    refused."""
    node = node_of_primary(chain, "b")
    apart(chain)
    epoch = chain.epoch_of("b")
    cut_off = chain.instance_of("b", "primary")
    number = int(node.removeprefix("node"))
    with chain.load():
        chain.note(f"cut {node}")
        chain.cluster.cut(number)
        try:
            chain.until(lambda topology: topology["sets"]["b"]["epoch"] > epoch)
            chain.answered(50)
        finally:
            chain.cluster.heal(number)
        chain.note(f"heal {node}")
        chain.redundant(within_s=180)
        replica_set = chain.known()["sets"]["b"]
    report(chain, "F16")
    assert not chain.failed()
    assert cut_off not in (replica_set["primary"], *replica_set["inSync"]), (
        "who was cut off comes back as somebody else, or not at all"
    )


def test_F16_F17_a_node_dies_and_returns(chain: GraphRun) -> None:
    node = node_of_primary(chain, "b")
    number = int(node.removeprefix("node"))
    with chain.load():
        chain.note(f"kill {node}")
        chain.cluster.stop(number)
        try:
            chain.answered(100)
        finally:
            chain.cluster.start(number)
        chain.redundant(within_s=180)
    report(chain, "F16 node dies")
    assert not chain.failed()


TWO_COPIES_S = 60.0
"""States of a node that died have two copies again: Kubernetes itself would begin to replace its pods after
340 s."""


def test_F16_states_have_two_copies_again_before_kubernetes_gives_up_a_node(chain: GraphRun) -> None:
    """With Kubernetes' own timers: it notices a dead node after 40 s, and binds pods to it until then."""
    if not kubernetes_timers():
        raise NotPossible("needs a cluster that was started with HAMS_E2E_TIMERS=kubernetes")
    node = node_of_primary(chain, "b")
    number = int(node.removeprefix("node"))
    there = chain.members_on(node)
    with chain.load():
        chain.note(f"kill {node}")
        began_s = time.monotonic()
        chain.cluster.stop(number)
        try:
            took_s = whole_without(chain, there, began_s)
        finally:
            chain.cluster.start(number)
        chain.redundant(within_s=180)
    report(chain, "F16 node dies, Kubernetes' own timers", twoCopiesS=round(took_s, 1))
    assert not chain.failed()


def whole_without(run: GraphRun, pods: set[str], began_s: float) -> float:
    """How long it takes until every state has its copies, none of them in one of these pods. Raises
    AssertionError with what is missing."""
    missing = ""
    while (took_s := time.monotonic() - began_s) < TWO_COPIES_S:
        topology = run.topology()
        missing = run.why_not_redundant(topology)
        if not missing:
            held = [name for item in topology["sets"].values() for name in (item["primary"], *item["inSync"])]
            missing = ", ".join(str(name) for name in held if pod_of(str(name), pods))
        if not missing:
            return took_s
        time.sleep(POLL_S)
    nodes = {
        name: (
            item["spec"].get("nodeName"),
            item["status"].get("phase"),
            "deletionTimestamp" in item["metadata"],
        )
        for name, item in run.pods().items()
    }
    raise AssertionError(f"no two copies within {TWO_COPIES_S:g} s: {missing}; pods: {nodes}")
