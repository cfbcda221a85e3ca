"""F13, F33: more members of a state fail than it has copies. The graph stops or begins the state again, as
its policy says, and says so."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from e2e.cluster.commands import until
from e2e.scenarios.conftest import HISTORIES
from e2e.scenarios.hits import reason, status_code
from e2e.scenarios.install import Installation
from e2e.scenarios.report import report
from e2e.scenarios.run import GraphRun, graph_on, keep_history
from e2e.scenarios.variants import variant
from hams_operator.chaos.scenarios import Aim, successor_dies

LOSS_KNOWN_S = 30.0
"""For the controller to say in the status what has happened."""
REFUSED_S = 120.0
"""For a frontend to refuse a request: one that was asked before it had heard of the loss keeps the request
until its time is up."""


@contextlib.contextmanager
def lossy(installation: Installation, folder: Path, policy: str, block: bool = True) -> Iterator[GraphRun]:
    """The chain under a policy; judged by its history alone, as counts begin again. `block`: no state has a
    keeper, which might be named between two kills on a busy machine."""
    recovery = {"whenLost": policy, **({"whenUnprotected": "Block"} if block else {})}
    file = variant(folder, f"lossy-{policy.lower()}", lambda spec: spec.update(recovery=recovery))
    run = None
    try:
        with graph_on(installation, file) as run:
            run.settles = False
            yield run
        run.verify_history()
    except BaseException:
        if run is not None:
            keep_history(run, HISTORIES / f"F13-{policy}")
        raise


def crash_all(run: GraphRun, operator: str) -> None:
    """No replica is left, at once, and nobody is told."""
    run.crash(*run.pods_of(operator))


def losses(run: GraphRun) -> set[str]:
    return {line["op"] for line in run.lines("lost")}


def last_loss(run: GraphRun, operator: str) -> object:
    return next(item for item in run.resource()["status"]["operators"] if item["name"] == operator).get(
        "lastLoss"
    )


def test_F13_a_lost_state_stops_the_graph_until_a_person_decides(
    installation: Installation, tmp_path: Path
) -> None:
    with lossy(installation, tmp_path, "Stop") as run:
        with run.load():
            run.answered(40)
        crash_all(run, "b")
        message = reason(run, "Ready", "StateLost")
        until(
            lambda: status_code(run.cluster, run.name) == 503,
            REFUSED_S,
            "a refusal by a frontend that has heard of the loss",
        )
        asked = message.rpartition("hams.dev/restart-lost: ")[2].rstrip(")")
        assert asked.startswith("b@")
        run.cluster.kubectl(
            "annotate", "servicegraph", run.name, "-n", "default", f"hams.dev/restart-lost={asked}"
        )
        run.until(lambda topology: not topology["sets"]["b"]["lost"])
        run.redundant()
        with run.load():
            run.answered(40)
        until(lambda: last_loss(run, "b"), LOSS_KNOWN_S, "loss of b in the status")
        assert "b" in losses(run)
    report(run, "F13 Stop")


def test_F13_a_lost_state_begins_again_where_the_policy_says_so(
    installation: Installation, tmp_path: Path
) -> None:
    with lossy(installation, tmp_path, "Restart") as run:
        with run.load():
            run.answered(40)
            crash_all(run, "b")
            run.answered(40)
            run.redundant()
        until(lambda: last_loss(run, "b"), LOSS_KNOWN_S, "loss of b in the status")
        assert "b" in losses(run)
    report(run, "F13 Restart")


def test_F33_a_promoted_backup_dies_before_another_is_in_sync(
    installation: Installation, tmp_path: Path
) -> None:
    """A fresh backup may just have made it: then nothing is lost. If not, it is said."""
    with lossy(installation, tmp_path, "Restart", block=False) as run:
        with run.load():
            successor_dies(run, Aim(operator="b"))
            run.answered(40)
            run.redundant()
        lost = "b" in losses(run)
        if lost:
            until(lambda: last_loss(run, "b"), LOSS_KNOWN_S, "loss of b in the status")
        else:
            assert last_loss(run, "b") is None
        counts = sorted(int(reply["tensors"][run.tensor]) for reply in run.replies)
        assert lost or counts == list(range(1, len(counts) + 1))
    report(run, "F33", lost=lost)
