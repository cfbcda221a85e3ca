"""What `hams kill` runs in a pod."""

import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hams_operator.cli import in_pod

LINES = {
    "proxy": ["python", "-m", "hams_sidecar.proxy", "--op", "a"],
    "model": ["/usr/bin/python3", "/usr/bin/hams-model", "serve", "m:A"],
    "process": ["python", "-m", "hams_operator.manager.process"],
    "": ["sh", "-c", "hams_sdk"],
}
IDLE = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def idle() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(IDLE, start_new_session=True)
    yield process
    process.kill()
    process.wait()


def pod(folder: Path, *lines: tuple[int, str]) -> Path:
    """Something like /proc, with processes by what they are."""
    for pid, what in lines:
        (folder / str(pid)).mkdir()
        (folder / str(pid) / "cmdline").write_text("\0".join(LINES[what]) + "\0")
    (folder / "self").mkdir()
    return folder


@pytest.mark.parametrize("what", LINES)
def test_processes_are_known_by_their_command_lines(what: str) -> None:
    assert in_pod.process_of(LINES[what]) == what


def test_its_own_process_and_those_of_others_are_left_alone(tmp_path: Path) -> None:
    folder = pod(tmp_path, (os.getpid(), "proxy"), (7, "proxy"), (8, "model"), (9, ""))
    (folder / "10").mkdir()  # it has ended meanwhile
    assert list(in_pod.processes_in(str(folder)).items()) == [("model", 8), ("proxy", 7)], (
        "the proxy is hit last"
    )


@pytest.mark.parametrize(
    ("wanted", "hit"), [("both", ["model", "proxy"]), ("model", ["model"]), ("proxy", ["proxy"])]
)
def test_what_was_hit_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wanted: str,
    hit: list[str],
) -> None:
    sent: list[tuple[int, signal.Signals]] = []
    monkeypatch.setattr(in_pod.os, "kill", lambda pid, number: sent.append((pid, number)))
    folder = pod(tmp_path, (7, "proxy"), (8, "model"))
    in_pod.main(wanted, "KILL", str(folder))
    assert list(json.loads(capsys.readouterr().out)) == hit
    stopped = [(7, signal.SIGSTOP)] if wanted == "both" else []
    assert sent == stopped + [({"proxy": 7, "model": 8}[name], signal.SIGKILL) for name in hit]


def test_a_frontend_or_manager_is_hit_whatever_process_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(in_pod.os, "kill", lambda pid, number: None)
    in_pod.main("model", "TERM", str(pod(tmp_path, (7, "process"))))
    assert json.loads(capsys.readouterr().out) == {"process": 7}


def test_nothing_to_hit_is_said_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    in_pod.main("both", "KILL", str(pod(tmp_path)))
    assert json.loads(capsys.readouterr().out) == {}


def test_its_source_runs_alone_as_it_is_sent(tmp_path: Path, idle: "subprocess.Popen[bytes]") -> None:
    """With a signal that does nothing."""
    folder = pod(tmp_path, (idle.pid, "proxy"))
    program = [sys.executable, "-I", "-S", "-c", inspect.getsource(in_pod), "both", "CONT", str(folder)]
    done = subprocess.run(program, capture_output=True, check=True, text=True)
    assert json.loads(done.stdout) == {"proxy": idle.pid}
    assert len(inspect.getsource(in_pod)) < 4096, "it travels in a URL"


def test_what_ends_its_own_container_has_said_so_before(tmp_path: Path) -> None:
    """A container takes everything in it along when its first process ends."""
    own = "; in_pod.processes_in = lambda folder: {'proxy': os.getpid()}; in_pod.main('both', 'KILL')"
    program = [sys.executable, "-c", f"import os; from hams_operator.cli import in_pod{own}"]
    done = subprocess.run(program, capture_output=True, check=False, text=True)
    assert (done.returncode, list(json.loads(done.stdout))) == (-signal.SIGKILL, ["proxy"])
