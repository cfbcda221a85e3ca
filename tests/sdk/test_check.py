"""`hams-model check` finds what it says it finds, and passes what fits."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hams_sdk import check
from hams_sdk.engine import load_model
from hams_sdk.errors import UsageError
from hams_sdk.graphfile import read_operator
from hams_sdk.specs import TensorSpec
from hams_sdk.state import State

Run = Callable[..., tuple[int, str]]
HERE = Path(__file__).parent
GRAPH = """
apiVersion: hams.dev/v1alpha1
kind: ServiceGraph
metadata: {name: g}
spec:
  inputs:
  - {name: x, datatype: FP32, shape: [2]}
  - {name: words, datatype: BYTES, shape: [-1], optional: true}
  outputs:
  - {name: y, from: [last.y, op.y]}
  operators:
  - name: op
    %s
    model: {entrypoint: "checked_models:%s", config: %s, warmUp: {row: {}}}
    inputs: [request.x, {from: request.words, as: text, optional: true}]
    outputs: [{name: y, datatype: FP32, shape: [2], finite: true}]
    feedback: {to: request, inputs: {x: y}, maxHops: 2}
  - name: last
    model: {entrypoint: "checked_models:Stateless"}
    inputs: [op]
    outputs: [{name: y, datatype: FP32, shape: [2]}]
"""


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Check one of `checked_models`: exit status and report."""

    def go(name: str, *arguments: str, stateful: bool = True, config: str = "{}") -> tuple[int, str]:
        graph = tmp_path / "graph.yaml"
        graph.write_text(GRAPH % ("stateful: {}" if stateful else "replicas: 2", name, config))
        monkeypatch.setattr("sys.path", [*sys.path])
        status = check.main(
            [f"checked_models:{name}", "--graph", str(graph), "--path", str(HERE), *arguments]
        )
        out, err = capsys.readouterr()
        return status, out + err

    return go


def test_a_model_that_fits_passes(run: Run) -> None:
    status, report = run("Good")
    assert status == 0, report
    assert "gives the same next outputs" in report
    assert "nothing is written before the boundary" in report
    assert report.endswith("the model fits\n")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "Forgets",
            "FAIL  a fresh process with the restored state gives other outputs; state that initialize did "
            "not return: self.count",
        ),
        (
            "RandomWeights",
            "FAIL  a fresh process with the restored state gives other outputs; state that initialize did "
            "not return: self.weights",
        ),
        ("Early", "FAIL  state is written outside `with update:`: total"),
        ("WrongShape", 'FAIL  run on 1 row: output "y": expected FP32 [1, 2], got [1, 1]'),
        (
            "ReturnsNothing",
            'FAIL  initialize: operator "op" is stateful, but initialize returned None: return a dict of '
            "everything",
        ),
        ("Exits", "FAIL  the model ended its process (exit status 0): it must raise instead"),
        (
            "WantsArguments",
            "FAIL  the class cannot be made without arguments: TypeError: WantsArguments.__init__() missing "
            "1 required positional argument: 'size'; `initialize` gets model.config",
        ),
        (
            "WritesInput",
            "FAIL  run on 1 row: ValueError: assignment destination is read-only; the arrays of a batch are "
            "read-only: write into a copy, as of `batch[name].copy()` (checked_models.py:",
        ),
        ("AsksForMore", 'FAIL  run on 1 row: no input "z"; inputs are x, text (checked_models.py:'),
        ("Grows", 'FAIL  capture: state "total": expected <f4 [2], as initialize returned it, found <f4 [3]'),
        ("CannotBeCaptured", "FAIL  capture: RuntimeError: the count is locked (checked_models.py:"),
        ("BadRestore", "FAIL  restored into a fresh process and captured again, the state differs: count"),
    ],
)
def test_what_does_not_fit_is_named(run: Run, name: str, says: str) -> None:
    status, report = run(name)
    assert says in report
    assert status == 1
    assert "Traceback" not in report


def test_a_shape_that_changes_after_the_capture_is_told_as_one(run: Run) -> None:
    status, report = run("Grows", config="{at: 6}")
    assert 'StateFault: state "total": expected array <f4 [3], the image holds array <f4 [2]' in report
    assert "Traceback" not in report
    assert status == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("TakesNothing", "found run(self): too many positional arguments"),
        ("HasNoRun", "found no run"),
        ("Awaits", "found async def run(self, batch: hams_sdk.batch.Batch, "),
        ("Yields", " with `yield` in it: return one result"),
        ("RunIsNumber", "found run = 3"),
    ],
)
def test_a_run_that_cannot_be_called_with_a_batch_is_told_where_it_is_and_what_it_should_take(
    run: Run, name: str, says: str
) -> None:
    status, report = run(name)
    assert f"FAIL  {name}: expected run(self, batch) or run(self, batch, update), found " in report
    assert says in report
    assert "(checked_models.py:" in report
    assert "RuntimeWarning" not in report
    assert status == 1


def test_an_initialize_that_takes_no_config_is_told_what_it_should_take(run: Run) -> None:
    status, report = run("WantsNoConfig")
    assert "FAIL  WantsNoConfig: expected initialize(self, config), found initialize(self)" in report
    assert "(checked_models.py:" in report
    assert status == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Misspells", "'Misspells' object has no attribute 'factr' (checked_models.py:"),
        ("TakesBatchForArray", "an input is `batch[name]`, with the name as text (checked_models.py:"),
        ("CallsUpdate", "the update stage is `with update:`, and nothing else (checked_models.py:"),
    ],
)
def test_what_no_input_would_have_made_right_is_not_blamed_on_made_up_data(
    run: Run, name: str, says: str
) -> None:
    status, report = run(name)
    assert says in report
    assert "made up" not in report
    assert status == 1


def test_a_setting_that_the_graph_does_not_give_is_told_with_those_it_gives(run: Run) -> None:
    _, report = run("AsksForConfig", config="{factr: 2}")
    assert "KeyError: 'factor'; model.config of the graph has factr (checked_models.py:" in report


def test_an_output_that_is_not_as_declared_is_told_with_the_line_of_run(run: Run) -> None:
    _, report = run("ForgetsReturn")
    assert "FAIL  run on 1 row: run returned None, expected a dict of outputs" in report
    assert "(checked_models.py:" in report


@pytest.mark.timeout(60)
def test_a_process_that_the_model_forks_must_not_come_back(run: Run) -> None:
    status, report = run("ForksAndReturns")
    assert "FAIL  a process that the model forked came back out of its code" in report
    assert (status, report.count("the model does not fit")) == (1, 1)


@pytest.mark.timeout(60)
def test_a_process_that_the_model_forks_and_ends_is_no_fault(run: Run) -> None:
    status, report = run("ForksAndEnds")
    assert (status, report.count("the model fits")) == (0, 1)


def test_one_line_is_one_line(run: Run) -> None:
    _, report = run("OneLine")
    assert "(1 of 1 line tried)" in report


def test_what_a_model_prints_is_no_part_of_the_report(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("Talks")
    check.main(["checked_models:Talks", "--graph", str(tmp_path / "graph.yaml"), "--path", str(HERE)])
    out, err = capsys.readouterr()
    assert "a line of the model" in err
    assert out.startswith('checked_models:Talks as operator "op" of ')


def test_an_entrypoint_that_no_operator_has_is_named_with_those_there_are(run: Run, tmp_path: Path) -> None:
    run("Good")
    with pytest.raises(UsageError) as caught:
        read_operator(tmp_path / "graph.yaml", "more:Forgets", None)
    assert (
        "no operator runs more:Forgets; op runs checked_models:Good, last runs checked_models:Stateless; say "
        "which with --operator" in str(caught.value)
    )


@pytest.mark.parametrize(
    ("entrypoint", "says"),
    [
        ("checked_models.py:Good", "expected a module, found a file; did you mean checked_models:Good?"),
        ("./sdk/models.py:Good", "expected a module, found a file; did you mean sdk.models:Good?"),
        ("checked_models:Goood", 'there is no such class in checked_models.py; its models are "'),
        ("checked_models:HERE", "it is no subclass of hams_sdk.Model"),
    ],
)
def test_an_entrypoint_that_is_no_model_says_what_is_there(run: Run, entrypoint: str, says: str) -> None:
    run("Good")
    sys.modules["checked_models"].HERE = object  # type: ignore[attr-defined]
    with pytest.raises(UsageError) as caught:
        load_model(entrypoint)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"\tspec:\n", "not YAML: found character '\\t' that cannot start any token (line 1)"),
        (b"spec: gr\xf6\xdfe\n", "not UTF-8 text: invalid start byte at byte 8"),
        (b"", "is empty; expected one ServiceGraph"),
        (b"- a\n", "expected a ServiceGraph, found a list"),
        (b"a: 1\n", "spec: is missing"),
        (b"spec: 3\n", "spec: expected a mapping, found 3"),
        (b"spec: {operators: {}}\n", "spec.operators: expected a list, found {}"),
        (b"spec: {operators: [{model: {}}]}\n", "spec.operators[0].name: is missing"),
        (
            b"spec: {operators: [{name: op, model: m:M}]}\n",
            'operators[0].model: expected a mapping, found "m:M"',
        ),
        (
            b"spec: {operators: [{name: op, outputs: [{name: y, datatype: FP32, shape: 3}]}]}\n",
            "spec.operators[0].outputs[0].shape: expected a list, found 3",
        ),
        (
            b"spec: {operators: [{name: op, outputs: [{name: y, datatype: FP32, shape: [x]}]}]}\n",
            'spec.operators[0].outputs[0].shape[0]: expected a number, found "x"',
        ),
        (
            b"spec: {operators: [{name: op}], outputs: [op.y]}\n",
            'spec.outputs[0]: expected a mapping, found "op.y"',
        ),
        (
            b"spec: {operators: [{name: op, inputs: [3]}]}\n",
            "spec.operators[0].inputs[0]: nothing is called '3'",
        ),
    ],
)
def test_a_file_that_is_no_graph_is_told_where_and_what_was_expected(
    tmp_path: Path, text: bytes, says: str
) -> None:
    file = tmp_path / "graph.yaml"
    file.write_bytes(text)
    with pytest.raises(UsageError) as caught:
        read_operator(file, "m:M", "op")
    assert str(caught.value).startswith(f"{file}: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_json_that_cannot_be_read_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "graph.json"
    file.write_text('{"a":\n')
    with pytest.raises(UsageError, match=r"not JSON: Expecting value \(line 2\)"):
        read_operator(file, "m:M", None)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["TriesInUpdate", "NeverLeaves"])
def test_lines_that_do_nothing_and_an_update_that_is_not_left_hang_nobody(run: Run, name: str) -> None:
    status, report = run(name)
    assert status == 0, report
    assert "a batch that raises leaves nothing behind" in report


def test_a_model_that_is_not_deterministic_is_told_from_one_that_forgets(run: Run) -> None:
    status, report = run("Chance")
    assert "note  the model is not deterministic (the global generator of random is used)" in report
    assert "captured again, every byte is the same" in report
    assert "a batch that raises leaves nothing behind" in report
    assert status == 0


def test_what_a_model_that_draws_leaves_behind_when_it_raises_is_found_too(run: Run) -> None:
    status, report = run("LeavesRowsByChance")
    assert "note  the model is not deterministic (the global generator of random is used)" in report
    assert "the next outputs are others than without it; it left behind: self.rows" in report
    assert status == 1


def test_a_model_that_no_seed_makes_repeatable_is_not_said_to_leave_nothing_behind(run: Run) -> None:
    status, report = run("Clock")
    assert "note  whether a batch that raises leaves something behind is not known" in report
    assert "leaves nothing behind" not in report
    assert status == 0


def test_a_torch_optimizer_that_was_not_declared_is_named(run: Run) -> None:
    pytest.importorskip("torch")
    assert run("Torch")[0] == 0
    status, report = run("Torch", config="{all: false}")
    assert status == 1
    assert "self.opt.state" in report


def test_a_model_that_leaves_something_behind_when_it_raises_is_named(run: Run) -> None:
    status, report = run("LeavesRows")
    assert status == 1
    assert "FAIL  after a batch that raised in line " in report
    assert (
        "of checked_models.py, the next outputs are others than without it; it left behind: self.rows"
        in report
    )
    assert "a batch that raises leaves nothing behind" in run("Good")[1]


def test_gradients_of_a_batch_that_raised_are_undone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    status, report = run("ZeroesAfterwards")
    assert status == 0, report
    assert "a batch that raises leaves nothing behind" in report
    monkeypatch.setattr(State, "discard_gradients", lambda _: None)
    status, report = run("ZeroesAfterwards")
    assert status == 1
    assert "it left behind: self.net" in report
    assert "(gradient)" in report


def test_a_model_that_raises_on_made_up_data_is_not_called_wrong(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, report = run("Picky")
    assert status == check.UNKNOWN
    assert "with made-up data this may be no fault of the model: give --data, or model.warmUp.row" in report
    assert "whether the model fits is not known: it raised on data that was made up\n" in report
    monkeypatch.setattr(f"{__name__}.GRAPH", GRAPH.replace("row: {}", "row: {x: [7, 7]}"))
    status, report = run("Picky")
    assert status == 0, report


def test_a_stateless_model_is_checked_for_its_outputs(run: Run) -> None:
    status, report = run("Stateless", "--operator", "op", stateful=False)
    assert status == 0
    assert "a fresh process gives the same outputs" in report
    status, report = run("Good", stateful=False)
    assert status == 1
    assert "declare it `stateful`" in report


def test_data_of_the_author_are_used_and_examined(run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "good.npz", x=np.ones((5, 2), np.float32), text=np.array([["a"], ["bc"]]))
    assert run("Good", "--data", str(tmp_path / "good.npz"))[0] == 0
    np.savez(tmp_path / "bad.npz", x=np.ones((5, 3), np.float32))
    assert "has shape [5, 3], expected ['rows', 2]" in run("Good", "--data", str(tmp_path / "bad.npz"))[1]
    np.savez(tmp_path / "worse.npz", x=np.ones((5, 2)))
    status, report = run("Good", "--data", str(tmp_path / "worse.npz"))
    assert status == 2
    assert 'array "x" is float64, expected FP32' in report
    np.savez(tmp_path / "none.npz", z=np.ones((5, 2)))
    assert 'no array "x"; there are z' in run("Good", "--data", str(tmp_path / "none.npz"))[1]
    assert run("Good", "--data", str(tmp_path / "absent.npz"))[0] == 2


def test_an_operator_is_read_with_what_feeds_it_and_where_it_goes(tmp_path: Path) -> None:
    graph = tmp_path / "g.yaml"
    graph.write_text(GRAPH % ("stateful: {}", "Good", "{a: 1}"))
    spec = read_operator(graph, "checked_models:Good", None)
    assert spec.inputs == (TensorSpec("x", "FP32", (2,)), TensorSpec("text", "BYTES", (-1,), optional=True))
    assert spec.outputs == (TensorSpec("y", "FP32", (2,), finite=True),)
    assert spec.successors == {"last", "reply", "request"}
    assert (spec.stateful, spec.config) == (True, {"a": 1})
    assert read_operator(graph, "x", "last").inputs[0].name == "y"


def test_an_input_that_is_not_optional_is_there_even_if_requests_may_leave_it_out(tmp_path: Path) -> None:
    graph = tmp_path / "g.yaml"
    text = GRAPH % ("stateful: {}", "Good", "{}")
    graph.write_text(text.replace("as: text, optional: true", "as: text"))
    assert not read_operator(graph, "checked_models:Good", None).inputs[1].optional
    with pytest.raises(UsageError, match='no operator "nobody"; there are op, last'):
        read_operator(graph, "x", "nobody")
    with pytest.raises(UsageError, match="say which with --operator"):
        read_operator(graph, "x", None)
    graph.write_text("- not\n- a graph\n")
    with pytest.raises(UsageError, match="expected a ServiceGraph, found a list"):
        read_operator(graph, "x", None)
    graph.write_text("spec: {operators: [{name: a, inputs: [b.c]}]}")
    with pytest.raises(UsageError, match=r"spec.operators\[0\].inputs\[0\]: nothing is called 'b.c'"):
        read_operator(graph, "x", "a")
    with pytest.raises(UsageError, match="No such file"):
        read_operator(tmp_path / "none.yaml", "x", None)


def test_a_mapping_by_key_and_constant_weights_pass(run: Run) -> None:
    status, report = run("Sessions")
    assert status == 0, report
    assert "did not change over the batches" not in report


def test_what_did_not_change_is_named_with_what_comparing_it_costs(run: Run) -> None:
    status, report = run("Sessions", config='{"constant": false}')
    assert status == 0, report
    assert (
        "2,097,152 bytes of state did not change over the batches: weights; to compare them takes" in report
    )


def test_a_mapping_that_does_not_know_what_was_written_fails(run: Run) -> None:
    status, report = run("BehindItsBack")
    assert status == 1
    assert "FAIL  a Keyed mapping was written without its knowing: users/slabs/0; write through it" in report


def test_a_constant_that_changed_fails(run: Run) -> None:
    status, report = run("NotConstant")
    assert status == 1
    assert "FAIL  declared constant (hams_sdk.constant), and changed: weights" in report
