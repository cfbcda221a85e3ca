"""F11, F12, F14: pods are deleted, gracefully and by force, one role after another and at random, under load.

Nothing is lost, doubled or answered wrongly; `chain` and `mixed` check that at the end of each.
"""

import time

import pytest

from e2e.scenarios.hits import GRAPHS_IN
from e2e.scenarios.install import NAMESPACE, Installation, ready
from e2e.scenarios.report import report
from e2e.scenarios.run import FULL, GraphRun, hams
from hams_operator.chaos.port import ACTIVE
from hams_operator.chaos.scenarios import Aim, at_random, deleted, forced

ROLES = [("b", "primary"), ("b", "backup"), ("frontend", "frontend"), ("manager", "manager")]
RANDOM_S = 600.0 if FULL else 120.0
EVERY_S = 5.0
TIMES = 10 if FULL else 2
"""How often a role is hit: a gap is measured each time."""
KILLS = 30 if FULL else 3
CORDONED_S = 4.0
"""For so long after a kill no node takes a pod."""


@pytest.mark.parametrize(("operator", "role"), ROLES, ids=[role for _, role in ROLES])
def test_F11_a_pod_is_deleted_gracefully(chain: GraphRun, operator: str, role: str) -> None:
    with chain.load():
        deleted(chain, Aim(operator, role, TIMES))
    handed_over = chain.handed_over(chain.deleted_pods())
    report(chain, f"F11 {role}", handed_over=handed_over)
    assert not chain.failed()
    if handed_over:
        assert chain.executed_again("b") == 0, "a handoff executes nothing again"


@pytest.mark.parametrize(("operator", "role"), ROLES, ids=[role for _, role in ROLES])
def test_F12_a_pod_is_deleted_by_force(chain: GraphRun, operator: str, role: str) -> None:
    with chain.load():
        forced(chain, Aim(operator, role, TIMES))
    report(chain, f"F12 {role}")
    assert not chain.failed()


@pytest.mark.parametrize("force", [False, True], ids=["gracefully", "by-force"])
def test_F11_F12_a_pod_without_state_is_deleted(mixed: GraphRun, force: bool) -> None:
    """Who leaves passes its slot on, once nothing that it has executed is incomplete; after a crash somebody
    executes that again."""
    with mixed.load():
        deleted(mixed, Aim("a", ACTIVE, TIMES), force=force)
    report(mixed, f"{'F12' if force else 'F11'} active")
    assert not mixed.failed()
    if not force and mixed.handed_over(mixed.deleted_pods()):
        assert mixed.executed_again("a") == 0, "a handoff executes nothing again"


@pytest.mark.parametrize("force", [False, True], ids=["gracefully", "by-force"])
def test_F11_F12_the_controllers_are_deleted(
    chain: GraphRun, installation: Installation, force: bool
) -> None:
    """Nothing that answers requests notices."""
    how = ["--force", "--grace-period=0"] if force else []
    with chain.load():
        chain.note("delete the controllers")
        installation.cluster.kubectl(
            "delete", "pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=controller", *how
        )
        chain.answered(50)
        ready(installation.cluster, "app.kubernetes.io/component=controller", 2, NAMESPACE)
    report(chain, f"{'F12' if force else 'F11'} controller")
    assert not chain.failed()


def slowest(run: GraphRun, struck: float, over: float) -> float:
    """The longest that a request took, in ms, of those that were open between a kill and the moment in which
    nodes take pods again."""
    waits = [
        reply["answered"] - reply["asked"]
        for reply in run.replies
        if reply["answered"] > struck and reply["asked"] < over
    ]
    return round(1000 * max(waits), 1)


def waited(run: GraphRun, spans: list[tuple[float, float]]) -> list[str]:
    """Keys of the requests that were open when a primary was killed, and were answered only once nodes took
    pods again."""
    return [
        reply["key"]
        for reply in run.replies
        for struck, over in spans
        if reply["asked"] < struck and reply["answered"] > over
    ]


def test_F43_a_primary_dies_where_no_replacement_can_start(chain: GraphRun) -> None:
    """No node takes pods, as in a full cluster: requests that were in the model of the dead go on without
    waiting for one that does."""
    nodes = chain.cluster.kubectl("get", "nodes", "-o", "name").split()
    spans: list[tuple[float, float]] = []
    with chain.load(16):
        for _ in range(KILLS):
            chain.redundant()
            chain.answered(50)
            struck = time.monotonic()
            try:
                chain.cluster.kubectl("cordon", *nodes)
                epoch, pod = chain.epoch_of("b"), chain.pod_of("b", "primary")
                chain.crash(pod)  # a deletion alone, by force too, leaves it time to hand over
                struck = time.monotonic()
                # Or its containers would start again; the controller may have deleted it by now.
                how = ("--force", "--grace-period=0", "--ignore-not-found")
                chain.cluster.kubectl("delete", "pod", pod, "-n", GRAPHS_IN, *how)
                chain.moved("b", epoch)
                chain.stalled(CORDONED_S)
            finally:
                spans.append((struck, time.monotonic()))
                chain.cluster.kubectl("uncordon", *nodes)
    report(chain, "F43", slowest_while_cordoned_ms=[slowest(chain, *span) for span in spans])
    assert not chain.failed()
    assert not waited(chain, spans), "these waited for a replacement"


def test_F43_hams_kill_says_whom_it_struck_and_no_request_waits_for_a_node(chain: GraphRun) -> None:
    """As somebody tries it: all nodes cordoned, then the command. Its containers start again in their pod."""
    nodes = chain.cluster.kubectl("get", "nodes", "-o", "name").split()
    with chain.load(16):
        try:
            chain.cluster.kubectl("cordon", *nodes)
            epoch, primary = chain.epoch_of("b"), chain.instance_of("b", "primary")
            words = ("kill", "b", "--role", "primary", "--graph", chain.name, "--namespace", GRAPHS_IN)
            chain.note("hams kill b --role primary")
            struck = time.monotonic()
            done = hams(*words, environment=chain.cluster.environment())
            chain.moved("b", epoch)
            chain.stalled(CORDONED_S)
            over = time.monotonic()
        finally:
            chain.cluster.kubectl("uncordon", *nodes)
    report(chain, "F43 hams kill", slowest_while_cordoned_ms=slowest(chain, struck, over))
    assert done.returncode == 0, done.stderr
    assert primary in done.stdout
    assert not chain.failed()
    assert not waited(chain, [(struck, over)]), "these waited for a replacement"


def test_F14_pods_are_deleted_at_random(chain: GraphRun) -> None:
    """By force every few seconds, but never the last replica in sync of a set; the graph need not be whole
    again in between."""
    with chain.load():
        at_random(chain, Aim(duration_s=RANDOM_S, every_s=EVERY_S))
    hit = len(chain.faults)
    within = report(chain, "F14", deletions=hit)
    assert hit > 0
    assert not chain.failed()
    assert within >= 0.999
