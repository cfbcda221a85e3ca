"""An example as its reader meets it, then a model that has learnt is killed.

Its image here is made without torch, which is 4 GB with all that it brings; the model that learns mounts this
machine's own.
"""

import importlib.util
from pathlib import Path

import yaml

from e2e.cluster.layout import ROOT
from e2e.cluster.machine import NotPossible
from e2e.scenarios.install import Installation
from e2e.scenarios.report import report
from e2e.scenarios.run import graph_on

ROW = (
    {"name": "pixels", "datatype": "FP32", "shape": [1, 64], "data": [float(at % 17) for at in range(64)]},
    {"name": "target", "datatype": "INT64", "shape": [1], "data": [3]},
)
"""One labelled image."""


def borrowed(library: str) -> dict[str, object]:
    """A podTemplate whose model finds a library where this machine has it."""
    spec = importlib.util.find_spec(library)
    if spec is None or spec.origin is None:
        raise NotPossible(f"{library} is not installed here: make setup")
    place = "/opt/borrowed"
    model = {
        "name": "model",
        "env": [{"name": "PYTHONPATH", "value": place}],
        "volumeMounts": [{"name": "borrowed", "mountPath": place}],
    }
    volume = {
        "name": "borrowed",
        "hostPath": {"path": str(Path(spec.origin).parents[1]), "type": "Directory"},
    }
    return {"spec": {"containers": [model], "volumes": [volume]}}


def test_the_example_digits_is_applied(installation: Installation, tmp_path: Path) -> None:
    """Every labelled row counts once, in the order of the stream, though the network that learns is killed in
    between."""
    if not installation.cluster.recorded:
        raise NotPossible("only CLUSTER=own sees this machine's libraries")
    document = yaml.safe_load((ROOT / "examples" / "digits" / "graph.yaml").read_text())
    learner = next(op for op in document["spec"]["operators"] if op["name"] == "learner")
    learner["podTemplate"] = borrowed("torch")
    file = tmp_path / "graph.yaml"
    file.write_text(yaml.safe_dump(document))
    with graph_on(installation, file, "seen", ROW) as run:
        with run.load():
            run.delete(run.pod_of("learner", "primary"), force=True)
            run.changed()
            run.redundant()
        report(run, "digits")
    run.verify()
