"""`hams up --check`: what does not fit is not started."""

from pathlib import Path

import pytest

from hams_graph import load
from hams_operator.cli.model_check import check_models
from hams_operator.cli.output import CommandError

GRAPH = """
apiVersion: hams.dev/v1alpha1
kind: ServiceGraph
metadata: {name: g}
spec:
  inputs: [{name: x, datatype: FP64, shape: []}]
  outputs: [{name: y, from: op.y}]
  operators:
  - name: op
    stateful: {backups: 1}
    model: {entrypoint: "own:%s"}
    inputs: [request.x]
    outputs: [{name: y, datatype: FP64, shape: []}]
"""
MODELS = """
import numpy as np
import hams_sdk


class Sum(hams_sdk.Model):
    def initialize(self, config):
        self.total = np.zeros(())
        return {"total": self.total}

    def run(self, batch, update):
        with update:
            self.total += batch["x"].sum()
        return {"y": np.full(batch.rows, self.total)}


class Forgets(Sum):
    def initialize(self, config):
        super().initialize(config)


class Picky(Sum):
    def run(self, batch, update):
        raise ValueError("no such row")
"""


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HAMS_HOME", str(tmp_path / "home"))
    (tmp_path / "own.py").write_text(MODELS)

    def write(model: str) -> Path:
        file = tmp_path / "graph.yaml"
        file.write_text(GRAPH % model)
        return file

    return write


def test_a_model_that_fits_passes_without_a_report(graph, capsys):
    file = graph("Sum")
    check_models(load(file), file)
    assert capsys.readouterr().err.splitlines() == [
        "checking the models of g (--no-check leaves that out) ..."
    ]


def test_a_model_that_fitted_is_checked_again_only_if_something_changed(graph, capsys):
    file = graph("Sum")
    check_models(load(file), file)
    capsys.readouterr()
    check_models(load(file), file)
    assert capsys.readouterr().err == ""
    (file.parent / "own.py").write_text(MODELS.replace('return {"total": self.total}', "pass"))
    with pytest.raises(CommandError):
        check_models(load(file), file)


def test_a_stateful_model_that_declares_no_state_is_not_started(graph, capsys):
    file = graph("Forgets")
    with pytest.raises(CommandError, match="op: no fitting model; nothing was started"):
        check_models(load(file), file)
    assert "is stateful, but initialize returned None" in capsys.readouterr().err


def test_what_a_made_up_row_cannot_prove_is_a_warning(graph, capsys):
    file = graph("Picky")
    check_models(load(file), file)
    report = capsys.readouterr().err
    assert "no such row (own.py:" in report
    assert "); with made-up data this may be no fault of the model" in report
    assert f'own:Picky as operator "op" of {file}\n' in report
