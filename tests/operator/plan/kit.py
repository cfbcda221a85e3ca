"""Graphs and objects for the tests of the plan."""

from typing import Any

from hams_graph import load_text
from hams_operator.plan.desired import desired
from hams_operator.plan.names import GraphRef, Settings
from hams_protocol.graph import Graph
from hams_wire.spec import encode_spec

UID = "0f3a"
PLACE = GraphRef("pair", "shop", UID)
SETTINGS = Settings(etcd="http://etcd:2379", image="hams.test/sidecar:1")

Json = dict[str, Any]

PAIR = """
apiVersion: hams.dev/v1alpha1
kind: ServiceGraph
metadata: {name: pair}
spec:
  inputs: [{name: x, datatype: FP32, shape: [4]}]
  outputs: [{name: y, from: count.y}]
  operators:
  - name: pass
    model: {entrypoint: "m:Pass", image: "m:1", env: {MODE: fast}}
    inputs: [request.x]
    outputs: [{name: y, datatype: FP32, shape: [4]}]
    replicas: 2
    standby: {hot: 1}
  - name: count
    stateful: {backups: 1}
    model: {entrypoint: "m:Count", image: "m:1"}
    inputs: [pass.y]
    outputs: [{name: y, datatype: FP32, shape: [4]}]
"""


def graph(text: str = PAIR, place: GraphRef = PLACE) -> Graph:
    return load_text(text, uid=place.graph_uid(), on_kubernetes=True)


def planned(text: str = PAIR, place: GraphRef = PLACE, settings: Settings = SETTINGS) -> tuple[Json, ...]:
    result = graph(text, place)
    return desired(result, encode_spec(result).decode(), place, settings)


def objects(
    text: str = PAIR, place: GraphRef = PLACE, settings: Settings = SETTINGS
) -> dict[tuple[str, str], Json]:
    return {(item["kind"], item["metadata"]["name"]): item for item in planned(text, place, settings)}


def pod_of(text: str, workload: str) -> Json:
    items: Json = objects(text)["Deployment", workload]["spec"]["template"]
    return items


def with_change(old: str, new: str, text: str = PAIR) -> str:
    assert old in text
    return text.replace(old, new)
