"""The graph that load is tested with."""

from hams_graph import load_text
from hams_load.inference import InferTensor

GRAPH = load_text(
    """
apiVersion: hams.dev/v1alpha1
kind: ServiceGraph
metadata: {name: g}
spec:
  inputs: [{name: x, datatype: FP32, shape: [-1]}, {name: text, datatype: BYTES, shape: [], optional: true}]
  outputs: [{name: y, from: a.y}]
  operators:
  - name: a
    model: {entrypoint: "m:A"}
    inputs: [request.x, {from: request.text, optional: true}]
    outputs: [{name: y, datatype: INT64, shape: [-1, 2]}]
"""
)
X = (InferTensor("x", "FP32", (1, 1), bytes(4)),)
