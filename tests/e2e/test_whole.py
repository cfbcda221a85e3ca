"""`make e2e` as a whole: what it says when parts of it did not run."""

import time
from pathlib import Path

import pytest
from e2e.cluster.machine import NotPossible

from e2e import whole

CASES = """<testsuites><testsuite>
<testcase name="one"/><testcase name="two"><failure message="x"/></testcase><testcase name="three"><skipped message="no time"/></testcase>
</testsuite></testsuites>"""


def test_what_did_not_run_is_said(tmp_path: Path) -> None:
    file = tmp_path / "scenarios.xml"
    file.write_text(CASES)
    assert whole.outcome(file, 5) == "1 scenarios passed; 1 FAILED: two; 1 NOT RUN: three; 2 NOT RUN for want of time"
    assert whole.outcome(tmp_path / "none", 7) == "0 scenarios passed; 7 NOT RUN for want of time"


def test_the_scenarios_of_the_short_form_are_there() -> None:
    assert [name for name in whole.SHORT if not whole._file_of(name)] == []


@pytest.mark.parametrize(("words", "status"), [(["--where-possible"], 0), ([], 1)])
def test_a_machine_that_cannot_is_no_pass(words: list[str], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise NotPossible("no namespaces")

    monkeypatch.setattr(whole, "OUT", tmp_path)
    monkeypatch.setattr(whole.machine, "prepare", refuse)
    assert whole.main(words) == status
    assert (tmp_path / "outcome").read_text() == "NOT RUN: no namespaces\n"


def test_a_program_that_has_no_time_left_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = whole.Stages(limit_s=0)
    child = whole.Child("sh", "-c", f"trap '' INT; sleep 1000 & echo $! > {tmp_path}/pid; wait")
    with pytest.raises(whole.NoTime):
        child.wait(stages.left_s())
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        time.sleep(0.01)
    monkeypatch.setattr(whole, "LEAVE_S", 0)
    child.stop()
    pid = int((tmp_path / "pid").read_text())
    status = Path(f"/proc/{pid}/stat")
    assert not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] == "Z"
