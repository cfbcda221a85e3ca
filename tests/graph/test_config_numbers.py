"""A model's config becomes JSON on its way."""

import pytest
import yaml

from hams_graph import InvalidGraph, load_object, load_text

GRAPH = """
apiVersion: hams.dev/v1alpha1
kind: ServiceGraph
metadata: {name: g}
spec:
  inputs: [{name: x, datatype: FP32, shape: []}]
  outputs: [{name: y, from: a.y}]
  operators:
  - name: a
    model: {entrypoint: "m:M", config: {rates: [0.1, %s]}}
    inputs: [request.x]
    outputs: [{name: y, datatype: FP32, shape: []}]
"""


@pytest.mark.parametrize("number", [".inf", "-.inf", ".nan"])
def test_a_number_that_json_does_not_have_is_named(number: str) -> None:
    with pytest.raises(InvalidGraph) as error:
        load_text(GRAPH % number)
    assert [problem.path for problem in error.value.problems] == ["spec.operators[0].model.config.rates[1]"]


def test_the_same_holds_for_an_object_that_was_never_text() -> None:
    data = yaml.safe_load(GRAPH % ".inf")
    with pytest.raises(InvalidGraph) as error:
        load_object(data, on_kubernetes=False)
    assert "spec.operators[0].model.config.rates[1]: expected a finite number" in str(error.value)
