"""Times that are measured before there is traffic: models and the measuring process are real."""

from pathlib import Path

import numpy as np
import pytest

from hams_graph import load as load_graph
from hams_load.errors import BadData
from hams_operator.cli.measure import requests_of
from hams_operator.local.measuring import NotMeasured, measure
from hams_protocol.graph import Graph
from hams_schedule.stored import load
from hams_sidecar.measuring import sizes_up_to
from hams_sidecar.profile_store import identity_of
from hams_wire.measuring import MeasuredTimes, MeasuringTask

MODELS = """
import time
import hams_sdk

class Double(hams_sdk.Model):
    def initialize(self, config):
        return None

    def run(self, batch, update):
        if float(batch["x"][0].sum()) < 0:
            raise ValueError("negative")
        return {"x": batch["x"] * 2}

class Sleep(hams_sdk.Model):
    def initialize(self, config):
        self.seen = 0
        return {}

    def run(self, batch, update):
        time.sleep(0.001 * float(batch["x"].max()))
        return {"x": batch["x"]}

class Broken(hams_sdk.Model):
    def initialize(self, config):
        raise RuntimeError("no weights here")

    def run(self, batch, update):
        return {}
"""
GRAPH = """
apiVersion: hams.dev/v1alpha1
kind: ServiceGraph
metadata: {name: g}
spec:
  inputs: [{name: x, datatype: FP32, shape: []}]
  outputs: [{name: x, from: s.x}]
  operators:
  - name: d
    model: {entrypoint: "models:Double"}
    inputs: [request.x]
    outputs: [{name: x, datatype: FP32, shape: []}]
  - name: s
    model: {entrypoint: "models:Sleep"}
    stateful: {backups: 1}
    inputs: [d.x]
    outputs: [{name: x, datatype: FP32, shape: []}]
    batch: {maxRows: 4, policy: Distribution, appBy: "parameter:app"}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "graph.yaml").write_text(GRAPH)
    return tmp_path / "graph.yaml"


def data(folder: Path, **arrays: object) -> Path:
    path = folder / "data.npz"
    np.savez(path, **{name.replace("__", ":"): np.array(value) for name, value in arrays.items()})
    return path


async def measured(
    file: Path, samples: int, given: Path, count: int
) -> tuple[Graph, tuple[MeasuredTimes, ...]]:
    graph = load_graph(file)
    requests = requests_of(graph, file, given)
    task = MeasuringTask(("s",), samples, tuple(next(requests) for _ in range(count)))
    return graph, await measure(graph, file.parent, task)


@pytest.mark.process
async def test_an_operator_is_measured_with_what_those_before_it_make_ofrequests_of(file: Path) -> None:
    given = data(file.parent, x=np.float32([2, 5]), parameter__app=["short", "long"])
    graph, (times,) = await measured(file, 60, given, 2)
    assert (times.operator, times.failed) == ("s", 0)
    profiles = load(times.profile, identity_of(graph.operators["s"]))
    assert profiles.samples >= 60, "it is known as this operator's own"
    means = {one.app: one.mean_ms for one in times.report.classes}
    assert means["short"] >= 4, "twice of what the request says, as the model before makes of it"
    assert means["long"] >= means["short"] + 3
    assert [size.rows for size in times.report.sizes] == [2, 4]


@pytest.mark.process
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("models:Sleep", "models:Broken", "the model of s: initialize failed: .*no weights here"),
        ("models:Sleep", "models:None_", "s.*None_"),
        ("models:Sleep", "missing:Sleep", "s.*missing"),
        (
            '"models:Sleep"',
            '"models:Sleep", python: /no/python',
            "the model of s ended with status 127: /no/python",
        ),
    ],
)
async def test_a_model_that_does_not_start_is_said(file: Path, old: str, new: str, said: str) -> None:
    given = data(file.parent, x=np.float32([1]))
    (file.parent / "graph.yaml").write_text(GRAPH.replace(old, new))
    with pytest.raises(NotMeasured, match=said):
        await measured(file, 1, given, 1)


@pytest.mark.process
async def test_what_no_request_reaches_is_not_measured(file: Path) -> None:
    with pytest.raises(NotMeasured, match=r"s cannot be measured: no request passes d: .*negative"):
        await measured(file, 1, data(file.parent, x=np.float32([-1])), 1)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"y": np.float32([1])}, "request 0: expected x, found y"),
        ({"x": np.float32([1]), "parameter__app": [[1, 2]]}, "request 0: parameter:app: expected one number"),
        ({"x": np.float32([1]), "parameter__app": [np.nan]}, "request 0: parameter:app: expected one number"),
    ],
)
def test_data_that_does_not_fit_is_said(file: Path, arrays: dict[str, object], said: str) -> None:
    with pytest.raises(BadData, match=said):
        next(requests_of(load_graph(file), file, data(file.parent, **arrays)))


def test_parameters_stand_beside_the_tensors_of_their_row(file: Path) -> None:
    given = data(file.parent, x=np.float32([1, 2]), parameter__app=["a", "b"], parameter__words=[3, 4])
    requests = requests_of(load_graph(file), file, given)
    assert [next(requests).parameters for _ in range(3)] == [
        {"app": "a", "words": 3},
        {"app": "b", "words": 4},
        {"app": "a", "words": 3},
    ]


@pytest.mark.parametrize(
    ("rows", "sizes"), [(1, []), (2, [2]), (3, [2, 3]), (8, [2, 4, 8]), (33, [2, 4, 8, 16, 32, 33])]
)
def test_sizes_are_powers_of_two_and_the_largest_batch(rows: int, sizes: list[int]) -> None:
    assert sizes_up_to(rows) == sizes
