"""F15, F16, F17: a node is drained, dies, is cut off and returns, under load."""

from e2e.scenarios.report import report
from e2e.scenarios.run import GraphRun
from hams_operator.chaos.scenarios import Aim, drained


def node_of_primary(run: GraphRun, operator: str) -> str:
    """Where an operator's primary runs; moved away from node 0, which holds the control plane, by deleting it there."""
    for _ in range(3):
        node = str(run.pods()[run.pod_of(operator, "primary")]["spec"]["nodeName"])
        if node != "node0":
            return node
        run.delete(run.pod_of(operator, "primary"))
        run.changed()
        run.redundant()
    raise AssertionError(f"the primary of {operator} stays on node 0")


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
    """Failover does not wait for Kubernetes to notice; what the cut-off instances say when they are back is refused."""
    node = node_of_primary(chain, "b")
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
        found = chain.known()["sets"]["b"]
    report(chain, "F16")
    assert not chain.failed()
    assert cut_off not in (found["primary"], *found["inSync"]), "who was cut off comes back as somebody else, or not at all"


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
