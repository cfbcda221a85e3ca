"""The preStop hook of a proxy's container, run as a module."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hams_sidecar

SIDECAR = Path(hams_sidecar.__file__).parents[1]


def hook(pid_file: Path) -> "subprocess.CompletedProcess[str]":
    """Without what is installed (`-S`): the module needs the standard library only."""
    program = [sys.executable, "-S", "-m", "hams_sidecar.pre_stop", str(pid_file)]
    return subprocess.run(program, cwd=SIDECAR, env={}, capture_output=True, check=False, text=True)


@pytest.fixture
def idle() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_the_process_in_the_pid_file_is_told_to_end(tmp_path: Path, idle: "subprocess.Popen[bytes]") -> None:
    pid_file = tmp_path / "proxy.pid"
    pid_file.write_text(str(idle.pid))
    done = hook(pid_file)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert idle.wait(30) == -signal.SIGTERM


def test_a_hook_without_a_pid_file_fails_and_names_it(tmp_path: Path) -> None:
    nowhere = tmp_path / "proxy.pid"
    done = hook(nowhere)
    assert done.returncode == 1
    assert str(nowhere) in done.stderr
