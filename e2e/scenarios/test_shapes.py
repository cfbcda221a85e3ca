"""A graph's shape changes under load: an operator is added, the others go on with their states
(docs/adr/0018). No row of the catalogue."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.commands import CommandFailed, until
from e2e.scenarios.install import Installation
from e2e.scenarios.report import report
from e2e.scenarios.run import NAMESPACE, GraphRun, deployments, graph_on
from e2e.scenarios.variants import variant

pytestmark = pytest.mark.timeout(900)


def short(spec: dict[str, Any]) -> None:
    """One operator of the chain, and one manager: two shapes of it run at once.

    On two cores a frontend of the old shape may get no CPU for half a second then. Nobody is suspected for
    that: a frontend that is replaced breaks its connections, and here nobody is to be turned away.
    """
    spec["recovery"] = {"suspectAfter": "2s"}
    spec["operators"] = spec["operators"][:1]
    spec["managers"] = {"replicas": 1}
    for item in spec["outputs"]:
        item["from"] = item["from"].replace("c.", "a.")


def longer(document: dict[str, Any]) -> dict[str, Any]:
    """Another operator behind it: `count` still comes from the first, `x` from the new one."""
    document_after: dict[str, Any] = json.loads(json.dumps(document))
    more = json.loads(json.dumps(document_after["spec"]["operators"][0])) | {"name": "d", "inputs": ["a.x"]}
    document_after["spec"]["operators"].append(more)
    next(item for item in document_after["spec"]["outputs"] if item["name"] == "x")["from"] = "d.x"
    return document_after


def apply(run: GraphRun, folder: Path, document: dict[str, Any]) -> None:
    """`kubectl apply`. Raises CommandFailed."""
    file = folder / "changed.yaml"
    file.write_text(yaml.safe_dump(document))
    run.cluster.kubectl("apply", "-n", NAMESPACE, "-f", file)


def shape_of(run: GraphRun) -> str:
    """How the names of the newest shape end: `-r1` at the first attempt."""
    return max(
        (
            f"-r{match[1]}"
            for name in deployments(run.cluster, run.name)
            if (match := re.search(r"-r(\d+)$", name))
        ),
        default="",
    )


def only(run: GraphRun) -> bool:
    """Whether the newest shape alone is left."""
    newest = shape_of(run)
    return bool(newest) and all(name.endswith(newest) for name in deployments(run.cluster, run.name))


def test_an_operator_is_added_under_load_and_the_counts_go_on(
    installation: Installation, tmp_path: Path
) -> None:
    with graph_on(installation, variant(tmp_path, "short", short)) as run:
        run.settles = False  # the checker follows no request from one shape to the next
        document = yaml.safe_load((run.history / "graph.yaml").read_text())
        with run.load():
            run.note("another shape")
            apply(run, tmp_path, longer(document))
            until(lambda: only(run), 180, "end of the old shape")
            run.uid += shape_of(run)
            run.wanted["d"] = 1
            run.redundant()
            run.answered(200)
        report(run, "another shape")
        assert not run.unanswered, run.troubles
        assert not run.failed(), run.failed()[0]
        counts = sorted(int(reply["tensors"]["count"]) for reply in run.replies)
        assert counts == list(range(1, len(counts) + 1)), "each once, over both shapes"
        assert not {"status 429", "status 503", "status 504"} & set(run.troubles), (
            f"nobody was turned away: {run.troubles}"
        )
        with pytest.raises(CommandFailed, match="the state of d"):
            apply(run, tmp_path, document)
