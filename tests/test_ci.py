"""`.ci/run`, a copy of it among doors that only write down that they were opened: what it says, and that
nothing outlives it."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAKE = """echo "make $*" >> opened
[ "$2" != setup ] || {setup}
case "$*" in *"{held}"*) trap "" INT; sleep 1000 & echo $! > pid; wait;; *"{fails}"*) exit 2;; esac
"""
PYTHON = 'echo "python3 $*" >> opened\n{check}\n[ "$3" != build ] || exec sleep 1000\n'


def copy(
    folder: Path, held: str = "nothing", fails: str = "nothing", check: str = ":", setup: str = ":"
) -> subprocess.Popen[str]:
    """Started, in a process group of its own as CI does."""
    (folder / ".ci").mkdir()
    shutil.copy2(ROOT / ".ci" / "run", folder / ".ci" / "run")
    (folder / "bin").mkdir()
    for name, text in (
        ("make", MAKE.format(held=held, fails=fails, setup=setup)),
        ("python3", PYTHON.format(check=check)),
    ):
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}")
        (folder / "bin" / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    words = ["bash", str(folder / ".ci" / "run")]
    return subprocess.Popen(
        words,
        env=environment,
        start_new_session=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[int]]:
    """Processes that are ended after a test that failed."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("held", ["test", "e2e"])
def test_whoever_cancels_it_ends_the_stage_too(
    tmp_path: Path, started: list[int], held: str, number: int
) -> None:
    script = copy(tmp_path, f" {held}")
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        assert script.poll() is None, script.communicate()[0]
        time.sleep(0.01)
    started.append(int((tmp_path / "pid").read_text()))
    os.killpg(script.pid, number)
    said = script.communicate()[0]
    assert script.returncode == 1, said
    assert "CI: failed" in said
    assert "CANCELLED" in said
    while alive(started[0]):  # it was told to end; the test's limit is how long that may take
        time.sleep(0.01)


def test_a_stage_that_fails_fails_it_at_its_end(tmp_path: Path) -> None:
    script = copy(tmp_path, fails=" check")
    said = script.communicate()[0]
    assert script.returncode == 1
    assert "check: 0.0 FAILED (exit code 2; 124 is out of time)" in said
    assert "make --no-print-directory e2e" in (tmp_path / "opened").read_text()


def test_packages_are_there_before_anything_runs_beside(tmp_path: Path) -> None:
    script = copy(tmp_path, setup='until grep -q "cluster build" opened; do sleep 0.01; done')
    said = script.communicate()[0]
    assert script.returncode == 0, said
    assert (tmp_path / "opened").read_text().splitlines()[0] == "python3 -m e2e.cluster check"
    assert "sim: NOT RUN, hams sim is not there yet" in said


def test_where_no_cluster_can_be_made_nothing_is_built_for_one(tmp_path: Path) -> None:
    script = copy(tmp_path, check='[ "$3" != check ] || exit 3')
    said = script.communicate()[0]
    assert script.returncode == 0, said
    assert "cluster build" not in (tmp_path / "opened").read_text()


@pytest.mark.parametrize(
    ("words", "path"), [([], "tests/fuzz"), (["T=tests/fuzz/test_names.py"], "tests/fuzz/test_names.py")]
)
def test_the_door_of_the_fuzzers_runs_them_alone(words: list[str], path: str) -> None:
    door = ["make", "--dry-run", "--no-print-directory", "fuzz", *words]
    # Tests are run by make themselves, whose variables would reach the make inside them.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "T"
    }
    said = subprocess.run(door, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1].split("pytest ")[-1] == path
