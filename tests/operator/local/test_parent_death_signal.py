"""Processes that end with the one that started them."""

import subprocess
import sys

from hams_operator.local import parent_death_signal
from hams_operator.local.processes import birth_of, wait_end

PARENT = """
import subprocess, sys
from hams_operator.local.parent_death_signal import ending_with_parent
child = subprocess.Popen(ending_with_parent("sleep", "1000"))
print(child.pid, flush=True)
input()
"""


def test_such_a_program_ends_with_its_parent():
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert birth_of(pid)
    parent.kill()
    parent.wait()
    assert wait_end(pid, 60)


def test_it_is_the_program_that_was_asked_for_under_the_pid_that_was_told():
    done = subprocess.run(
        parent_death_signal.ending_with_parent("sh", "-c", 'echo "$$ $1"', "name", "an argument"),
        capture_output=True,
        text=True,
        check=True,
    )
    pid, _, said = done.stdout.strip().partition(" ")
    assert pid.isdigit()
    assert said == "an argument"


def test_what_is_added_to_the_environment_is_for_the_program_alone(monkeypatch):
    monkeypatch.setenv("A", "ours")
    monkeypatch.setenv("B", "stays")
    monkeypatch.setenv("HAMS_DEFERRED_C", "of nobody's")
    words = parent_death_signal.ending_with_parent("sh", "-c", 'echo "$A $B $C$HAMS_DEFERRED_A$PYTHONHOME"')
    environment = parent_death_signal.environment_with({"A": "x=y", "PYTHONHOME": "/nowhere"})
    assert environment.get("PYTHONHOME") is None
    assert (
        subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
        == "x=y stays /nowhere\n"
    )


def test_a_program_that_is_not_there_is_named():
    done = subprocess.run(
        parent_death_signal.ending_with_parent("/no/such/program"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (127, "/no/such/program: No such file or directory\n")


def test_whose_parent_is_gone_already_does_not_begin():
    done = subprocess.run(
        [sys.executable, "-I", "-S", parent_death_signal.__file__, "1", "--", "echo", "began"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (-9, "")
