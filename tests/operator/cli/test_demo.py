"""The demonstration: what it proves, and that it would say so if it could not."""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from hams_load.traffic import TrafficTally
from hams_operator.cli import demo
from hams_operator.cli.demo import DemoFindings, DemoReplies, Verdict
from hams_operator.cli.output import CommandError
from hams_operator.local import capacity
from hams_operator.local.run import RunOptions

ROOT = Path(__file__).parents[3]


def replies(labels: list[int]) -> DemoReplies:
    """What a graph answers that is asked about zeros, one after another."""
    result = DemoReplies()
    for number, label in enumerate(labels, 1):
        result.truth.append(0)
        result.label.append(label)
        result.seen.append(number)
        result.quality.append(
            sum(item == 0 for item in labels[max(0, number - 256) : number]) / min(number, 256)
        )
    return result


def test_counts_and_accuracies_that_follow_from_the_replies_are_right_in_any_order():
    answers = replies([0, 1, 0, 0] * 100)
    assert answers.off() == ""
    for column in (answers.truth, answers.label, answers.seen, answers.quality):
        column.reverse()
    assert answers.off() == ""


def test_a_count_twice_a_gap_and_a_wrong_accuracy_are_found():
    twice = replies([0, 0, 0])
    twice.seen[2] = 2
    assert "each once" in twice.off()
    forgotten = replies([0, 0, 0])
    forgotten.seen[2] = 4
    assert "each once" in forgotten.off()
    wrong = replies([0, 1, 0])
    wrong.label[1] = 0
    assert wrong.off() == "row 2: the replies give an accuracy of 1.0000, the graph said 0.5000"


def test_requests_without_an_answer_may_have_been_counted_or_not():
    answers = replies([0, 1, 0, 0] * 100)
    for column in (answers.truth, answers.label, answers.seen, answers.quality):
        del column[200:203]
    assert "each once" in answers.off(2)
    assert answers.off(3) == answers.off(9) == ""
    answers.quality[-1] = 0.5
    assert answers.off(3) == "", "its window lacks rows"
    answers.quality[100] = 0.5
    assert answers.off(3).startswith("row 101: ")


def judged(sent: int, ok: int, counted: int, **failed: int) -> dict[str, Verdict]:
    """What the demo says of this traffic."""
    findings = DemoFindings()
    tally = TrafficTally(sent=sent, ok=ok)
    tally.failed.update({why.replace("_", " "): amount for why, amount in failed.items()})
    demo._judge(findings, tally, replies([0] * ok), counted)
    return {what: verdict for what, verdict, _ in findings.lines}


def test_a_count_between_what_was_acknowledged_and_what_was_sent_is_right():
    assert judged(10, 10, 10)["remembered"] is Verdict.RIGHT
    assert [judged(10, 8, count, no_answer=2)["remembered"] for count in range(7, 12)] == [
        Verdict.WRONG,
        *[Verdict.RIGHT] * 3,
        Verdict.WRONG,
    ]
    assert judged(10, 8, -1, no_answer=2)["remembered"] is Verdict.SLOW


def test_a_machine_that_is_too_slow_is_not_called_wrong():
    assert judged(10, 10, 10)["answered"] is Verdict.RIGHT
    assert judged(10, 8, 9, no_answer=2)["answered"] is Verdict.SLOW
    assert (
        judged(10, 8, 9, **{"504: not within 30 s": 1, "sent again: 503: busy": 1})["answered"]
        is Verdict.SLOW
    )
    assert judged(10, 8, 9, **{"500: what": 2})["answered"] is Verdict.WRONG
    assert judged(10, 8, 9, **{"503: the state of learner is lost": 2})["answered"] is Verdict.WRONG


def test_one_wrong_finding_outweighs_all_others():
    findings = DemoFindings()
    assert findings.verdict is Verdict.RIGHT
    findings.add("gap", Verdict.SLOW, "")
    assert (findings.verdict, demo.CODES[findings.verdict]) == (Verdict.SLOW, 3)
    findings.add("remembered", Verdict.WRONG, "")
    assert (findings.verdict, demo.CODES[findings.verdict]) == (Verdict.WRONG, 1)


def test_an_installed_wheel_brings_the_example(tmp_path):
    pytest.importorskip("hatchling")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(site)
    packages = {
        item.parent.name
        for home in ("sidecar", "operator")
        for item in (ROOT / home).glob("hams_*/__init__.py")
    }
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == packages
    example = site / "hams_operator" / "examples" / "digits"
    ours = ROOT / "examples" / "digits"
    for path in (item for item in ours.rglob("*") if item.is_file() and "__pycache__" not in item.parts):
        assert (example / path.relative_to(ours)).read_bytes() == path.read_bytes()
    code = (
        "from hams_operator.cli import demo; from hams_graph import load; load(demo._example()); "
        "print(demo._example())"
    )
    said = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        text=True,
        capture_output=True,
        check=True,
    )
    assert said.stdout == f"{example / 'graph.yaml'}\n"


def test_a_checkout_runs_its_own_example():
    assert demo._example() == ROOT / "examples" / "digits" / "graph.yaml"


def test_what_the_models_need_is_said_before_anything_starts(monkeypatch):
    monkeypatch.setattr(demo, "NEEDS", ("os", "nosuch", "neither"))
    with pytest.raises(
        CommandError, match=r"not installed \(nosuch, neither\): install the extras local and examples"
    ):
        demo.demo("1s", 1.0, demo.Output.TEXT)


def test_on_a_busy_machine_the_demo_is_as_patient_as_a_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[RunOptions] = []

    def start(options: RunOptions) -> None:
        asked.append(options)
        raise CommandError("the test has seen enough")

    monkeypatch.setenv("HAMS_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(capacity, "worst_delay_s", lambda: 0.25)
    monkeypatch.setattr(demo, "_check_needs", lambda: None)
    monkeypatch.setattr(demo, "start_detached", start)
    with pytest.raises(CommandError, match="seen enough"):
        demo.demo("1s", 1.0, demo.Output.JSON)
    assert [options.suspect_after_s for options in asked] == [1.0]
    assert "recovery.suspectAfter is 1 s for this run" in capsys.readouterr().err


@pytest.mark.process
@pytest.mark.etcd
@pytest.mark.timeout(240)
def test_the_demo_finds_nothing_off_and_leaves_nothing(hams):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    result = hams.json("demo", "--duration", "8s")
    assert result["good"]
    assert [item["what"] for item in result["findings"]] == [
        *("started", "killed", "answered", "remembered", "correct", "gap", "recovered", "history"),
    ]
    assert hams.processes() == []


@pytest.mark.parametrize(
    ("broken", "slow", "verdict"),
    [
        ({"I7"}, True, Verdict.SLOW),
        ({"I7"}, False, Verdict.WRONG),
        ({"I1", "I7"}, True, Verdict.WRONG),
        (set(), True, Verdict.RIGHT),
    ],
)
def test_what_a_slow_run_has_not_completed_is_not_held_against_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, broken: set[str], slow: bool, verdict: Verdict
) -> None:
    report = SimpleNamespace(exit_code=bool(broken), broken=broken, problems=(), render=lambda: "told")
    monkeypatch.setattr("hams_history.checker.check_directory", lambda folder: report)
    assert demo._history(tmp_path, slow) == ("history", verdict, "told")
