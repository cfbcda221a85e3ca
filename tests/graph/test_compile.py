"""What a right file means."""

from pathlib import Path

import pytest

from hams_graph import InvalidGraph, load, load_object, load_text, parse_text
from hams_graph.document import read_text
from hams_protocol.graph import (
    CLOSE,
    FEEDBACK,
    FRONTEND,
    AdmissionPolicy,
    AppSpec,
    BatchPolicy,
    Checkpoint,
    Edge,
    FrontendSpec,
    Graph,
    Input,
    Join,
    Mode,
    ModelSpec,
    RecoverySpec,
    Suspects,
    TensorSpec,
    WhenLate,
    WhenLost,
)

HEAD = """
apiVersion: hams.dev/v1alpha1
kind: ServiceGraph
metadata: {name: test}
spec:
  inputs:
  - {name: x, datatype: FP32, shape: [-1, 4]}
  - {name: y, datatype: INT64, shape: [], optional: true}
"""


def compiled(body: str) -> Graph:
    return load_text(HEAD + body)


SMALL = """
  outputs: [{name: out, from: a.x}]
  operators:
  - name: a
    model: {entrypoint: "m:A"}
    inputs: [request.x]
    outputs: [{name: x, datatype: FP32, shape: []}]
"""


def test_what_is_not_said_has_its_default() -> None:
    data = compiled(SMALL).data
    assert (data.name, data.uid, data.mode, data.managers) == ("test", "test", Mode.NON_STOP, 3)
    assert data.frontend == FrontendSpec(2, 2, 30.0, 1024, 256 << 20, 64 << 20, 10_000, 64 << 20)
    assert data.recovery == RecoverySpec()
    (op,) = data.operators
    assert op.batch == BatchPolicy(64, 0.002)
    assert op.model == ModelSpec("m:A", warm_up="{}")
    assert (op.stateful, op.slots, op.hot_standbys, op.join, op.lanes) == (False, 1, 0, Join.COMBINE, ((),))
    assert data.inputs == (TensorSpec("x", "FP32", (-1, 4)), TensorSpec("y", "INT64", (), optional=True))


EVERYTHING = """
  mode: Remus
  frontend: {replicas: 3, shards: 5, requestTimeout: 1m30s, deadline: 250ms, maxInFlight: 7,
    maxInFlightBytes: 1G,
    maxRequestBytes: 1048576, repliesKept: 0, repliesKeptBytes: 8Ki, hideModelErrors: true}
  managers: {replicas: 1}
  recovery: {suspectAfter: 1s, maxAttempts: 3, whenLost: Restart, suspects: Run}
  outputs: [{name: out, from: [b.z, a.z]}]
  operators:
  - name: b
    stateful: {backups: 2, window: 8, checkpoint: {every: 60s, dir: /var/c}, delta: Off}
    standby: {hot: 2}
    batch: {maxRows: 5, maxDelay: 0}
    model: {entrypoint: "p.m:B", image: "r/i:1", python: /p, env: {A: "1"}, config: {b: [1, null], a: 1.5},
      warmUp: {row: {z: [1]}}}
    podTemplate: {spec: {nodeName: n}}
    inputs: [a, {from: request.y, as: target, optional: true}]
    outputs: [{name: z, datatype: FP64, shape: [2], finite: true}]
  - {name: a, model: {entrypoint: "m:A", warmUp: {enabled: false}}, replicas: 3, inputs: [request.x],
     outputs: [{name: z, datatype: FP64, shape: [2]}, {name: w, datatype: BYTES, shape: []}]}
"""


def test_what_is_said_arrives() -> None:
    graph = compiled(EVERYTHING)
    data = graph.data
    assert data.frontend == FrontendSpec(
        3, 5, 90.0, 7, 10**9, 1 << 20, 0, 8192, hide_model_errors=True, deadline_s=0.25
    )
    assert (data.mode, data.managers) == (Mode.REMUS, 1)
    assert data.recovery == RecoverySpec(1.0, 3, when_lost=WhenLost.RESTART, suspects=Suspects.RUN)
    assert [op.name for op in data.operators] == ["a", "b"], "topological, not as in the file"
    a, b = data.operators
    assert (a.slots, a.successors) == (3, ("b", FRONTEND))
    assert b.in_edges == (
        Edge("a", "b", (Input("z", "z", False), Input("w", "w", False))),
        Edge(FRONTEND, "b", (Input("y", "target", True),)),
    )
    assert [edge.required for edge in b.in_edges] == [True, False]
    assert (b.backups, b.window, b.hot_standbys, b.successors) == (2, 8, 2, (FRONTEND,))
    assert not b.delta
    assert a.delta
    assert b.checkpoint == Checkpoint(60.0, 2, "/var/c")
    assert b.batch == BatchPolicy(5, 0.0)
    assert b.model == ModelSpec("p.m:B", '{"a":1.5,"b":[1,null]}', "r/i:1", "/p", (("A", "1"),), '{"z":[1]}')
    assert (a.model.warm_up, data.frontend.hide_model_errors) == ("", True)
    assert b.pod_template == '{"spec":{"nodeName":"n"}}'
    assert b.outputs == (TensorSpec("z", "FP64", (2,), finite=True),)
    assert data.outputs[0].sources == (("b", "z"), ("a", "z"))


def test_bare_metal_keeps_no_copies_and_stores_no_state() -> None:
    b = compiled(EVERYTHING.replace("mode: Remus", "mode: None")).data.operators[1]
    assert (b.backups, b.checkpoint) == (0, None)
    assert (b.stateful, b.hot_standbys) == (True, 2)


LANES = """
  outputs: [{name: out, from: tail.x, lanes: concat}]
  operators:
  - {name: a, model: {entrypoint: "m:A"}, inputs: [request.x],
     outputs: [&x {name: x, datatype: FP32, shape: [-1, 4]}]}
  - {name: mix, join: Interleave, model: {entrypoint: "m:A"}, inputs: [a, request.x], outputs: [*x]}
  - {name: left, model: {entrypoint: "m:A"}, inputs: [mix], outputs: [*x]}
  - {name: right, model: {entrypoint: "m:A"}, inputs: [mix], outputs: [*x]}
  - {name: both, model: {entrypoint: "m:A"}, inputs: [left, {from: right.x, as: r}], outputs: [*x]}
  - {name: tail, join: Interleave, model: {entrypoint: "m:A"}, inputs: [both, a], outputs: [*x]}
"""


def test_lanes_grow_at_an_interleave_and_are_kept_by_the_other_joins() -> None:
    graph = compiled(LANES)
    assert graph.operators["a"].lanes == ((),)
    for name in ("mix", "left", "right", "both"):
        assert graph.operators[name].lanes == (("a",), (FRONTEND,))
    assert graph.operators["tail"].lanes == (("a", "both"), (FRONTEND, "both"), ("a",))
    assert graph.data.outputs[0].concat_lanes
    assert graph.operators["a"].successors == ("mix", "tail")
    assert len(graph.sink_edges) == 3


def test_a_first_closes_and_a_feedback_leads_back() -> None:
    graph = compiled(
        """
  outputs: [{name: out, from: pick.x}]
  operators:
  - {name: a, model: {entrypoint: "m:A"}, inputs: [request.x],
     outputs: [&x {name: x, datatype: FP32, shape: [3, 4]}]}
  - {name: b, model: {entrypoint: "m:A"}, inputs: [request.x], outputs: [*x]}
  - {name: pick, join: First, model: {entrypoint: "m:A"}, inputs: [a, b], outputs: [*x],
     feedback: {to: request, inputs: {x: x}, maxHops: 3}}
"""
    )
    assert set(graph.sink_edges) == {("pick", FRONTEND, ()), ("pick", FEEDBACK, ()), ("pick", CLOSE, ())}
    feedback = graph.operators["pick"].feedback
    assert feedback is not None
    assert (feedback.inputs, feedback.max_hops) == ((("x", "x"),), 3)


def test_an_operator_whose_only_use_is_its_feedback_leads_somewhere() -> None:
    graph = compiled(
        SMALL
        + """
  - {name: dream, model: {entrypoint: "m:A"}, inputs: [request.x],
     outputs: [{name: x, datatype: FP32, shape: [2, 4]}],
     feedback: {inputs: {x: x}}}
"""
    )
    assert graph.operators["dream"].successors == ()
    assert graph.operators["dream"].targets == (FEEDBACK,)


def test_the_uid_is_the_given_one_else_the_resource_s_else_the_name() -> None:
    text = read_text(HEAD + SMALL, "ServiceGraph").root
    assert isinstance(text, dict)
    assert load_object(text, on_kubernetes=False).data.uid == "test"
    text["metadata"] = {"name": "test", "uid": "u-1"}
    assert load_object(text, on_kubernetes=False).data.uid == "u-1"
    assert load_object(text, on_kubernetes=False, uid="u-2").data.uid == "u-2"


def test_an_object_of_a_cluster_with_its_status_and_metadata_is_read() -> None:
    text = read_text(HEAD + SMALL, "ServiceGraph").root
    assert isinstance(text, dict)
    text["metadata"] = {
        "name": "test",
        "namespace": "ml",
        "managedFields": [],
        "generation": 3,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    text["status"] = {"anything": 1}
    assert load_object(text, on_kubernetes=False).data.name == "test"


def test_what_is_said_of_kinds_of_requests_arrives_where_it_is_read() -> None:
    graph = compiled(
        """
  frontend: {admission: Promise, appBy: "parameter:app",
    apps: [{name: chat, deadline: 200ms, cost: 5}, {name: mail}]}
  operators:
  - {name: a, model: {entrypoint: "m:A"}, inputs: [request.x],
     outputs: [{name: z, datatype: FP64, shape: []}],
     batch: {policy: Distribution, appBy: "parameter:app", keepOrder: "parameter:session"}}
  - {name: b, model: {entrypoint: "m:A"}, inputs: [a], outputs: [{name: z, datatype: FP64, shape: []}],
     batch: {policy: Distribution, appBy: "parameter:kind"}}
  outputs: [{name: out, from: b.z}]
"""
    )
    frontend = graph.data.frontend
    assert (frontend.admission, frontend.app_parameter) == (AdmissionPolicy.PROMISE, "app")
    assert frontend.apps == (AppSpec("chat", 0.2), AppSpec("mail", 0.0))
    a, b = graph.data.operators
    assert (a.batch.keep_order, a.batch.costs) == ("parameter:session", (("chat", 5.0),))
    assert (b.batch.keep_order, b.batch.costs) == ("", ()), "its applications are other ones"


def test_steps_of_cost_end_at_the_deadline_and_arrive_where_they_are_read() -> None:
    graph = compiled(
        """
  frontend: {cost: [{after: 250ms, cost: 1}, {after: 1s, cost: 3}]}
  operators:
  - {name: a, model: {entrypoint: "m:A"}, inputs: [request.x],
     outputs: [{name: z, datatype: FP64, shape: []}], batch: {policy: Distribution}}
  - {name: b, model: {entrypoint: "m:A"}, inputs: [a], outputs: [{name: z, datatype: FP64, shape: []}]}
  outputs: [{name: out, from: b.z}]
"""
    )
    assert graph.data.frontend.deadline_s == 1.0
    a, b = graph.data.operators
    assert (a.batch.steps, b.batch.steps) == (((0.75, 0.25), (0.0, 0.75)), ())


def test_a_file_that_cannot_be_read_is_an_invalid_graph(tmp_path: Path) -> None:
    with pytest.raises(InvalidGraph, match=r"cannot read .*absent.yaml: No such file or directory"):
        load(tmp_path / "absent.yaml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidGraph, match="not UTF-8 text: invalid start byte at byte 0"):
        load(tmp_path / "binary")


def test_an_invalid_graph_knows_its_file(tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text("{}")
    with pytest.raises(InvalidGraph) as caught:
        load(path)
    assert caught.value.source == str(path)


def test_the_resource_keeps_what_the_file_says() -> None:
    resource = parse_text(HEAD + SMALL)
    assert resource.spec.operators[0].inputs[0].source == "request.x"
    assert resource.spec.frontend.replicas == 2


def late(more: str = "", *, last: str = "stateful: {}") -> dict[str, WhenLate]:
    """Of the path a, b, c, of which the last may have a state, and of d beside them."""
    operators = (("a", "request.x", ""), ("b", "a.x", ""), ("c", "b.x", last), ("d", "request.x", more))
    graph = compiled(
        "  outputs: [{name: out, from: c.x}, {name: other, from: d.x}]\n  operators:\n"
        + "".join(
            f"  - name: {name}\n"
            f'    model: {{entrypoint: "m:A"}}\n'
            f"    inputs: [{source}]\n"
            "    batch: {policy: Deadline}\n"
            "    outputs: [{name: x, datatype: FP32, shape: [-1, 4]}]\n"
            f"    {text}\n"
            for name, source, text in operators
        )
    )
    return {op.name: op.batch.when_late for op in graph.data.operators}


def test_what_no_state_misses_is_shed_by_default_and_what_one_would_miss_is_run() -> None:
    run, shed = WhenLate.RUN, WhenLate.SHED
    assert late() == {"a": run, "b": run, "c": run, "d": shed}
    assert set(late(last="replicas: 1").values()) == {shed}
    feedback = "feedback: {to: request, inputs: {x: x}, maxHops: 2}"
    assert late(feedback)["d"] is run, "what is fed back enters the graph anew, and comes to the state"
    assert late(feedback, last="replicas: 1")["d"] is shed


def test_an_author_who_wants_a_state_to_miss_what_is_late_says_so() -> None:
    said = "stateful: {}\n    batch: {policy: Deadline, whenLate: Shed}"
    graph = compiled(SMALL.replace("inputs: [request.x]", f"inputs: [request.x]\n    {said}"))
    assert graph.data.operators[0].batch.when_late is WhenLate.SHED
