"""What `hams init` writes is right as it stands."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import hams_operator
from hams_graph import describe, load
from hams_sdk.engine import Engine, UnitInput
from hams_sdk.specs import OperatorSpec, TensorSpec

TEMPLATE = Path(hams_operator.__file__).parent / "templates" / "graph"


@pytest.fixture
def models() -> ModuleType:
    spec = importlib.util.spec_from_file_location("template_models", TEMPLATE / "models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_graph_is_valid_and_surprises_nobody() -> None:
    description = describe(load(TEMPLATE / "graph.yaml"))
    assert [(op.name, op.kind) for op in description.operators] == [
        ("scale", "stateless"),
        ("mean", "stateful"),
    ]
    assert description.notes == ()


def test_the_models_do_what_the_readme_promises(models: ModuleType) -> None:
    scale, mean = load(TEMPLATE / "graph.yaml").data.operators
    value, scaled = TensorSpec("value", "FP32", ()), TensorSpec("scaled", "FP32", ())
    outputs = tuple(
        TensorSpec(spec.name, spec.datatype, spec.shape, finite=spec.finite) for spec in mean.outputs
    )
    first = Engine(
        models.Scale(), OperatorSpec("scale", (value,), (scaled,), config=json.loads(scale.model.config))
    )
    second = Engine(models.Mean(), OperatorSpec("mean", (scaled,), outputs, stateful=True))
    first.initialize()
    second.initialize()
    for expected in ([2.0, 3.0, 4.0], [3.5, 3.6, 4.0]):
        between = first.run([UnitInput("0/1", 3, [np.array([1, 2, 3], np.float32)], {})], lambda: None)
        assert between.units is not None
        result = second.run(
            [UnitInput("0/1", 3, [np.asarray(between.units[0].tensors[0][1])], {})], lambda: None
        )
        assert result.units is not None, result.message
        assert result.updated
        np.testing.assert_allclose(np.asarray(result.units[0].tensors[0][1]), expected)
    assert np.asarray(result.units[0].tensors[1][1]).tolist() == [4, 5, 6]
