"""Commands that start nothing: what they print, how they complain, and that they are quick to begin."""

import json
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


def test_validate_says_what_a_graph_means_or_all_that_is_wrong(hams, tmp_path):
    assert "2 frontends with 1 shards, 2 managers" in hams.ok("validate", hams.graph("fine"))
    assert hams.json("validate", tmp_path / "fine" / "graph.yaml")["processes"] == 11
    bad = tmp_path / "bad.yaml"
    bad.write_text((tmp_path / "fine" / "graph.yaml").read_text().replace("double.x]", "duoble.x]").replace("FP32", "FP33"))
    done = hams("validate", bad)
    assert done.returncode == 1
    assert 'did you mean "double"?' in done.stderr
    assert "FP33" in done.stderr
    assert "Traceback" not in done.stderr
    problems = json.loads(hams("validate", bad, "--output", "json").stdout)
    assert problems["valid"] is False
    assert len(problems["problems"]) >= 2


def test_init_writes_a_graph_that_is_valid_and_overwrites_nothing(hams, tmp_path):
    hams.ok("init", tmp_path / "new")
    hams.ok("validate", tmp_path / "new" / "graph.yaml")
    again = hams("init", tmp_path / "new")
    assert again.returncode == 1
    assert "nothing was written" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("status",), 1, "no graph runs here; start one with: hams up FILE"),
        (("status", "--graph", "x"), 1, 'no graph "x" runs here'),
        (("status", "--graph", "../x"), 2, "expected the name of a graph"),
        (("down",), 1, "no graph runs here"),
        (("logs", "a"), 1, "no graph has run here"),
        (("kill",), 2, "kill what?"),
        (("kill", "a", "--signal", "HUP"), 2, "--signal: expected KILL, STOP, CONT, TERM, found HUP"),
        (("kill", "a", "--process", "x"), 2, "--process: expected"),
        (("up", "missing.yaml"), 1, "missing.yaml: 1 problem; nothing was started"),
        (("load", "missing.yaml"), 1, "cannot read missing.yaml"),
        (("bench", "nope"), 2, 'no benchmark "nope"; there are: '),
        (("history", "check", "/nowhere"), 2, "cannot read a history"),
    ],
)
def test_errors_are_one_clear_line(hams, arguments, code, message):
    done = hams(*arguments)
    assert done.returncode == code
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_up_refuses_what_cannot_work_before_anything_starts(hams):
    file = hams.graph("fine")
    for arguments, message in (
        (("--restore",), "has a checkpoint"),
        (("--port", "65535"), "expected 1 to 65534"),
        (("--timeout", "soon"), "expected a duration"),
    ):
        done = hams("up", file, *arguments)
        assert done.returncode == 2
        assert message in done.stderr
    assert not (hams.home / "fine" / "run.json").exists()


def test_the_simulator_and_the_benchmarks_take_their_own_arguments(hams):
    assert "--histories" in hams.ok("sim", "--help")
    assert "chain" in hams.ok("bench", "--help")


def test_help_loads_nothing_that_takes_long():
    """Instead of a stopwatch: what makes a start slow is not imported by it."""
    import subprocess

    code = "import sys; import hams_operator.cli.main; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    slow = {"numpy", "grpc", "rich", "asyncio", "httptools", "yaml", "hams_operator.graph", "hams_wire", "torch"}
    assert not slow & set(loaded)


@pytest.mark.parametrize("command", [("status",), ("logs", "x"), ("down",)])
def test_the_name_of_a_graph_is_no_path(hams, command):
    done = hams(*command, "--graph", "../elsewhere")
    assert done.returncode == 2
    assert done.stderr == "hams: expected the name of a graph, found '../elsewhere'\n"
