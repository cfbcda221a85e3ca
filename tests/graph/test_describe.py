"""What `hams validate` tells about a graph that is fine."""

from pathlib import Path

import pytest

from hams_graph import describe, describe_text, load, load_text, not_asked_for
from hams_operator.cli.begin import TEMPLATE, meaning

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"

TEXT = """
apiVersion: hams.dev/v1alpha1
kind: ServiceGraph
metadata: {name: test}
spec:
  frontend: {replicas: 1}
  managers: {replicas: 1}
  inputs:
  - {name: x, datatype: FP32, shape: [4]}
  - {name: y, datatype: INT64, shape: [], optional: true}
  - {name: z, datatype: BYTES, shape: [], optional: true}
  outputs: [{name: out, from: [c.x, a.x]}]
  operators:
  - {name: a, replicas: 2, standby: {hot: 1}, model: {entrypoint: "m:A"}, inputs: [request.x],
     outputs: [{name: x, datatype: FP32, shape: []}]}
  - {name: b, stateful: {backups: 0}, model: {entrypoint: "m:A"}, inputs: [a, request.y],
     outputs: [{name: x, datatype: FP32, shape: []}]}
  - {name: c, stateful: {}, standby: {hot: 1}, model: {entrypoint: "m:A"}, inputs: [b],
     outputs: [{name: x, datatype: FP32, shape: []}]}
"""


def test_roles_processes_and_memory_are_counted() -> None:
    description = describe(load_text(TEXT))
    assert [(op.name, op.kind, op.roles, op.instances) for op in description.operators] == [
        ("a", "stateless", (("active", 2), ("standby", 1)), 3),
        ("b", "stateful", (("primary", 1),), 1),
        ("c", "stateful", (("primary", 1), ("backup", 1), ("standby", 1)), 3),
    ]
    assert [(op.upstream, op.successors) for op in description.operators] == [
        (("request",), ("b", "reply")),
        (("a", "request"), ("c",)),
        (("b",), ("reply",)),
    ]
    assert description.processes == 2 * 7 + 1 + 1 + 4, "supervisor, etcd and two warmed ones among them"
    assert description.memory_bytes == (105 + 67 + 7 * 71 + 40 + 50 + 105) << 20
    assert description.memory_bytes_max - description.memory_bytes == (256 + 2 * 64) * (1 << 20) * 2
    assert description.inputs[1] == "y INT64 [] optional"
    assert description.outputs == ("out from c.x, else a.x",)


def test_the_tutorial_shows_what_is_said_of_the_graph_it_begins_with() -> None:
    assert f"```\n{meaning(describe(load(TEMPLATE / 'graph.yaml')))}```\n" in TUTORIAL.read_text()


def test_what_may_surprise_is_said() -> None:
    description = describe(load_text(TEXT))
    assert description.notes == (
        "one frontend: accepted requests and kept replies are lost with it; Redundant stays False",
        "one manager: no failover while it is away",
        '"b" has no backup: its state is lost with its primary; Redundant stays False',
        '"b" is skipped for requests without y; "optional: true" on its input would run it',
        'tensor "z" of the request is used by no operator',
    )


@pytest.mark.parametrize(
    ("mode", "note"),
    [
        ("None", "mode None protects nothing: what a failed instance held is lost"),
        ("Remus", "mode Remus is a baseline for measurements: no user wants it"),
        ("StopAndCopy", "mode StopAndCopy is a baseline for measurements: no user wants it"),
        ("BufferedOutputs", "mode BufferedOutputs is a baseline for measurements: no user wants it"),
    ],
)
def test_a_mode_that_no_user_wants_is_said(mode: str, note: str) -> None:
    assert describe(load_text(TEXT.replace("spec:\n", f"spec:\n  mode: {mode}\n"))).notes[0] == note


def test_what_has_no_copy_by_its_own_wish_is_named() -> None:
    assert not_asked_for(load_text(TEXT)) == "b asks for no backups"
    with_backup = TEXT.replace("{backups: 0}", "{}")
    assert (
        not_asked_for(load_text(with_backup))
        == "frontend.replicas is 1: accepted requests and kept replies have no copy"
    )
    assert (
        not_asked_for(load_text(with_backup.replace("frontend: {replicas: 1}", "frontend: {replicas: 2}")))
        == ""
    )
    assert (
        not_asked_for(load_text(with_backup.replace("spec:\n", "spec:\n  mode: None\n")))
        == "mode None keeps no replicas"
    )


def test_an_ordinary_graph_surprises_nobody() -> None:
    text = """
apiVersion: hams.dev/v1alpha1
kind: ServiceGraph
metadata: {name: test}
spec:
  inputs: [{name: x, datatype: FP32, shape: [4]}]
  outputs: [{name: out, from: b.x}]
  operators:
  - {name: a, replicas: 2, model: {entrypoint: "m:A"}, inputs: [request],
     outputs: [{name: x, datatype: FP32, shape: []}]}
  - {name: b, stateful: {}, model: {entrypoint: "m:A"}, inputs: [a],
     outputs: [{name: x, datatype: FP32, shape: []}]}
"""
    assert describe(load_text(text)).notes == ()


def _stateful(mode: str, fields: str) -> str:
    text = TEXT.replace("spec:\n", f"spec:\n  mode: {mode}\n", 1)
    return text.replace("stateful: {backups: 0}", f"stateful: {fields}").replace(
        "stateful: {}, standby", "stateful: {checkpoint: {every: 1s, dir: /c}}, standby"
    )


def _unread(text: str) -> list[str]:
    return [note for note in describe_text(text).notes if "says nothing" in note]


def test_bare_metal_tells_of_every_field_that_it_does_not_read() -> None:
    given = "{backups: 2, window: 8, checkpoint: {every: 1s, dir: /c}, delta: Off}"
    place, why = "spec.operators[1].stateful", 'says nothing in mode "None"'
    assert _unread(_stateful("None", given))[:4] == [
        f"{place}.backups: {why}, which has no backups; leave it out (line 17)",
        f"{place}.window: {why}, where nothing waits for a state; leave it out (line 17)",
        f"{place}.checkpoint: {why}, which captures no state; leave it out (line 17)",
        f"{place}.delta: {why}, which captures no state; leave it out (line 17)",
    ]
    assert not [note for note in _unread(_stateful("None", "{backups: 0}")) if "[1]" in note]
    assert not _unread(_stateful("NonStop", given))


def test_a_mode_that_runs_again_tells_of_a_default_that_is_given() -> None:
    given = "{backups: 1, window: 4, checkpoint: {every: 1s, dir: /c}, delta: Off}"
    place, why = "spec.operators[1].stateful", 'says nothing in mode "LineageStash"'
    assert _unread(_stateful("LineageStash", given)) == [
        f"{place}.backups: {why}, which has no backups; leave it out (line 17)",
        f"{place}.window: {why}, where nothing waits for a state; leave it out (line 17)",
    ], "captures are compared there, too"


def test_bare_metal_counts_no_backups_and_starts_none() -> None:
    description = describe_text(_stateful("None", "{backups: 2}"))
    assert [(op.name, op.roles, op.instances) for op in description.operators[1:]] == [
        ("b", (("primary", 1),), 1),
        ("c", (("primary", 1), ("standby", 1)), 2),
    ]
    assert not [note for note in description.notes if "has no backup:" in note], "said of the mode already"
