"""`make e2e` as a whole: what it says when parts of it did not run."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from e2e.cluster import baked
from e2e.cluster.cluster import Cluster
from e2e.cluster.layout import Folders
from e2e.cluster.machine import NotPossible
from e2e.scenarios import install

from e2e import whole

CASES = """<testsuites><testsuite>
<testcase name="one"/><testcase name="two"><failure message="x"/></testcase>
<testcase name="three"><skipped message="no time"/></testcase>
</testsuite></testsuites>"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_what_did_not_run_is_said(tmp_path: Path) -> None:
    file = tmp_path / "scenarios.xml"
    file.write_text(CASES)
    assert (
        whole.outcome(file, 5)
        == "1 scenarios passed; 1 FAILED: two; 1 NOT RUN: three; 2 NOT RUN for want of time"
    )
    assert whole.outcome(tmp_path / "none", 7) == "0 scenarios passed; 7 NOT RUN for want of time"


def test_the_scenarios_of_the_short_form_are_there() -> None:
    assert [name for name in whole.SHORT if not whole._file_of(name)] == []


@pytest.mark.parametrize(("words", "status"), [(["--where-possible"], 0), ([], 1)])
def test_a_machine_that_cannot_is_no_pass(
    words: list[str], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise NotPossible("no namespaces")

    monkeypatch.setattr(whole, "OUT", tmp_path)
    monkeypatch.setattr(whole.machine, "prepare", refuse)
    assert whole.main(words) == status
    assert (tmp_path / "outcome").read_text() == "NOT RUN: no namespaces\n"


def test_a_program_that_has_no_time_left_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = whole.Stages(limit_s=0)
    child = whole.Child("sh", "-c", f"trap '' INT; sleep 1000 & echo $! > {tmp_path}/pid; wait")
    with pytest.raises(whole.NoTime):
        child.wait(stages.left_s())
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        time.sleep(0.01)
    monkeypatch.setattr(whole, "LEAVE_S", 0)
    child.stop()
    pid = int((tmp_path / "pid").read_text())
    while alive(pid):  # it has been sent SIGKILL; the test's limit is how long that may take
        time.sleep(0.01)


@pytest.mark.parametrize("same", [True, False])
def test_a_cluster_that_is_up_with_older_images_is_refused(
    same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Up(Cluster):
        def running(self) -> list[int]:
            return [0]

    folders = Folders(tmp_path / "cache", tmp_path / "state")
    folders.state.mkdir()
    (tmp_path / "out" / "images").mkdir(parents=True)
    (tmp_path / "out" / "images" / "1-one.tar").write_bytes(b"\0" * 10240)
    written = baked.contents(sorted((tmp_path / "out" / "images").iterdir()))
    folders.started_with.write_text(json.dumps(written if same else {}))
    monkeypatch.setattr(install, "ROOT", tmp_path)
    monkeypatch.setattr(install, "IMAGES", tmp_path / "out" / "images")
    monkeypatch.setattr(whole, "OUT", tmp_path)
    monkeypatch.setattr(whole, "chosen", lambda: Up(folders))
    for name in ("prepare", "check_go"):
        monkeypatch.setattr(whole.machine, name, lambda: None)
    monkeypatch.setattr(whole, "build", lambda *_: None)
    monkeypatch.setattr(whole, "scenarios", lambda *_: 0)
    assert whole.main([]) == (0 if same else 1)
    said = (tmp_path / "outcome").read_text()
    assert said.startswith(
        "0 scenarios passed"
        if same
        else "FAILED: a cluster is up with other images than out/images has now: 1-one.tar;"
    )


def test_told_twice_to_end_it_takes_down_what_it_started(tmp_path: Path) -> None:
    """`timeout` and make both tell it."""
    text = "import signal\nfrom e2e import whole\nsignal.signal(signal.SIGTERM, whole.interrupted)\n"
    text += "try:\n    print('up', flush=True); signal.pause()\n"
    text += "finally:\n    signal.raise_signal(signal.SIGTERM); print('down', flush=True)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", text],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=whole.ROOT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate()[0] == "down\n"
