"""A detached run outlives who started it, unless it was asked to end with it."""

import os
import signal
import subprocess
import sys

import msgspec
import pytest
from tests.operator.cli.conftest import Hams, hams

from hams_operator.local.run import RunOptions

__all__ = ["hams"]

PARENT = """
import os, sys
from hams_operator.cli.up import start_detached
from hams_operator.local.run import RunOptions

start_detached(RunOptions(sys.argv[1], timeout_s=80.0, parent=os.getpid()))
print("ready", flush=True)
sys.stdin.read()
"""


def test_whose_parent_is_gone_already_starts_nothing(tmp_path):
    """The parent that is named is not the one there is."""
    options = RunOptions(str(tmp_path / "graph.yaml"), parent=1)
    listening, telling = os.pipe()
    command = [
        sys.executable,
        "-P",
        "-m",
        "hams_operator.local.daemon",
        str(telling),
        msgspec.json.encode(options).decode(),
    ]
    daemon = subprocess.Popen(command, pass_fds=(telling,))
    os.close(telling)
    with os.fdopen(listening, "rb") as heard:
        assert heard.read() == b""  # not even that there is no such file
    assert daemon.wait() == -signal.SIGTERM


@pytest.mark.process
@pytest.mark.etcd
@pytest.mark.timeout(240)
def test_killed_it_takes_along_the_run_that_it_started(hams: Hams):
    file = hams.graph("short")
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(file)],
        env=hams.environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=hams.folder,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n", hams.logs()
    assert len(hams.processes()) > 5
    parent.kill()
    parent.wait()
    hams.until(lambda: not hams.processes(), "everything has ended")
    assert not (hams.home / "short" / "run.json").exists()  # in good order, that is
