"""Commands that start nothing: what they print, how they complain, and that they are quick to begin."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hams_operator.cli import main
from hams_operator.cli.output import CommandError

NOWHERE = ("--url", "http://127.0.0.1:1")


def binary(hams, folder: Path) -> Path:
    (folder / "binary").write_bytes(bytes(range(256)))
    return folder / "binary"


def other(hams, folder: Path) -> Path:
    np.savez(folder / "other.npz", z=np.zeros((3, 1)))
    return folder / "other.npz"


def broken(hams, folder: Path) -> Path:
    graph = hams.graph("broken")
    (graph.parent / "data.py").write_text("import nosuch\n")
    return graph


FILES = {
    "FINE": lambda hams, folder: hams.graph("fine"),
    "FOLDER": lambda hams, folder: folder,
    "BINARY": binary,
    "OTHER": other,
    "BROKEN": broken,
}
"""What stands for a file in the calls below."""


def test_validate_for_kubernetes_asks_for_images(hams):
    file = hams.graph("fine")
    hams.ok("validate", file)
    done = hams("validate", file, "--kubernetes")
    assert done.returncode == 1
    assert "image: is missing: on Kubernetes" in done.stderr


def test_validate_says_what_a_graph_means_or_all_that_is_wrong(hams, tmp_path):
    assert "2 frontends with 1 shard, 2 managers" in hams.ok("validate", hams.graph("fine"))
    assert hams.json("validate", tmp_path / "fine" / "graph.yaml")["processes"] == 14
    bad = tmp_path / "bad.yaml"
    bad.write_text(
        (tmp_path / "fine" / "graph.yaml")
        .read_text()
        .replace("double.x]", "duoble.x]")
        .replace("FP32", "FP33")
    )
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
        (
            ("render", "FINE", "--namespace", "A B"),
            2,
            "--namespace: expected a name of lower-case letters, digits and dashes, found 'A B'",
        ),
        (("render", "FINE", "--image", ""), 2, "--image: expected the name of an image, found ''"),
        (("render", "FINE", "--etcd", " "), 2, "--etcd: expected endpoints, separated by commas, found none"),
        (("render", "BINARY"), 1, "not UTF-8 text"),
        (("validate", "BINARY"), 1, "1 problem"),
        (("up", "BINARY"), 1, "1 problem; nothing was started"),
        (("up", "FOLDER"), 1, "1 problem; nothing was started"),
        (("up", "FINE", "--history", "FINE"), 1, "--history: history folder "),
        (("init", "FINE"), 1, "; expected a folder, or a name for one, that this user can write"),
        (("load", "FINE"), 1, 'no graph "fine" runs here; start one with: hams up FILE'),
        (
            ("load", "FINE", *NOWHERE, "--data", "missing.npz"),
            1,
            "--data missing.npz: expected a .npz file of plain arrays: No such file",
        ),
        (
            ("load", "FINE", *NOWHERE, "--data", "FOLDER"),
            1,
            "expected a .npz file of plain arrays: Is a directory",
        ),
        (("load", "FINE", *NOWHERE, "--data", "BINARY"), 1, "expected a .npz file of plain arrays: "),
        (
            ("load", "FINE", *NOWHERE, "--data", "OTHER"),
            1,
            "data does not fit the graph: expected x, found z",
        ),
        (
            ("load", "BROKEN", *NOWHERE),
            1,
            "cannot be used: ModuleNotFoundError: No module named 'nosuch'; give requests with --data "
            "FILE.npz",
        ),
        (
            ("load", "FINE", "--url", "localhost:8080"),
            2,
            "--url: expected a URL like http://127.0.0.1:8080, found 'localhost:8080'",
        ),
        (
            ("load", "FINE", "--url", "https://localhost"),
            2,
            "--url: expected a URL like http://127.0.0.1:8080, found 'https://localhost'",
        ),
        (
            ("load", "FINE", "--url", "http://localhost:x"),
            2,
            "--url: expected a URL like http://127.0.0.1:8080, found 'http://localhost:x'",
        ),
        (("load", "FINE", *NOWHERE, "--token", "\u00fc"), 2, "--token: expected ASCII"),
        (("chaos", "run", "--scenario", "F14", "--url", "x"), 2, "--url: expected a URL like"),
        (("logs", "a", "--lines", "-1"), 2, "--lines: expected 0 or more, found -1"),
        (("demo", "--rate", "nan"), 2, "--rate: expected requests per second above 0, found nan"),
        (("sim", "--fault", "F26"), 2, "F26 is not simulated"),
        (("status", "--context", "x"), 1, "no cluster to talk to: there is no kubeconfig /nowhere"),
        (("status", "--context", "x", "--namespace", "a/b"), 2, "--namespace: expected a name"),
    ],
)
def test_errors_are_one_clear_line(hams, tmp_path, arguments, code, message):
    hams.environment["KUBECONFIG"] = "/nowhere"
    named = {word: make(hams, tmp_path) for word, make in FILES.items() if word in arguments}
    done = hams(*(named.get(item, item) for item in arguments))
    assert done.returncode == code
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [("status",), ("status", "--all"), ("down",), ("logs", "x"), ("kill", "x"), ("restart", "x")]
)
def test_a_home_that_is_no_folder_is_named(hams, arguments):
    hams.home.touch()
    done = hams(*arguments)
    assert (done.returncode, done.stderr) == (
        1,
        f"hams: {hams.home}: Not a directory; expected {hams.home} to be a folder, or a name for one, that "
        "this user can write; HAMS_HOME names another\n",
    )


@pytest.mark.parametrize("detach", [(), ("--detach",)])
def test_a_graph_in_a_home_that_is_no_folder_is_not_started(hams, detach):
    hams.home.touch()
    done = hams("up", hams.graph("fine"), *detach)
    assert done.returncode == 1
    assert "Not a directory" in done.stderr
    said = [line for line in done.stderr.splitlines() if not line.startswith("this machine is busy")]
    assert len(said) == 1


def test_a_group_of_complaints_is_one_and_another_error_is_not_hidden_in_it(monkeypatch, capsys):
    def raises(error: Exception) -> None:
        def app() -> None:
            raise error

        monkeypatch.setattr(main, "app", app)

    raises(
        ExceptionGroup("tasks", [ExceptionGroup("more", [CommandError("no", 2)]), CommandError("neither")])
    )
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert (ended.value.code, capsys.readouterr().err) == (2, "hams: no\n")
    raises(ExceptionGroup("tasks", [CommandError("no"), KeyError("x")]))
    with pytest.raises(ExceptionGroup):
        main.main()
    for error, said in (
        (FileNotFoundError(2, "No such file", "/x"), "/x: No such file"),
        (TimeoutError(), "TimeoutError"),
        (OSError("a"), "a"),
    ):
        raises(error)
        with pytest.raises(SystemExit) as ended:
            main.main()
        assert (ended.value.code, capsys.readouterr().err) == (1, f"hams: {said}\n")


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
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    slow = {
        "numpy",
        "grpc",
        "rich",
        "asyncio",
        "httptools",
        "yaml",
        "hams_graph",
        "hams_wire",
        "torch",
    }
    assert not slow & set(loaded)


@pytest.mark.parametrize("command", [("status",), ("logs", "x"), ("down",)])
def test_the_name_of_a_graph_is_no_path(hams, command):
    done = hams(*command, "--graph", "../elsewhere")
    assert done.returncode == 2
    assert done.stderr == "hams: expected the name of a graph, found '../elsewhere'\n"


def test_load_on_nothing_says_so_and_prints_no_percentiles(hams):
    done = hams("load", hams.graph("fine"), *NOWHERE)
    assert done.returncode == 1
    assert done.stderr == "hams: nothing answers at http://127.0.0.1:1: Connection refused\n"
    assert done.stdout == ""


def test_a_table_that_goes_into_a_pipe_is_not_cut(hams):
    from hams_operator.cli.output import console
    from hams_operator.cli.table import table
    from hams_operator.graph_status import GraphStatus, InstanceStatus

    name = "an-operator-with-a-long-name-12-ab34-" * 4
    status = GraphStatus(
        "g", "http://h:1", "h:2", 1, (), (InstanceStatus(name, "o" * 60, "primary", False, 1, 2, 3, 4),)
    )
    made = console()
    assert not made.is_terminal
    with made.capture() as capture:
        made.print(table(status))
    assert name in capture.get()


def test_a_full_disk_is_in_the_status(tmp_path, monkeypatch):
    from types import SimpleNamespace

    from hams_operator.local import supervisor

    free = {tmp_path: 3 << 20}
    monkeypatch.setattr(supervisor.shutil, "disk_usage", lambda path: SimpleNamespace(free=free[path]))
    assert supervisor._full("logs", tmp_path) == (
        f"the disk of {tmp_path} is full, 3 MiB are left: logs may not be written"
    )
    free[tmp_path] = 1 << 40
    assert supervisor._full("logs", tmp_path) == ""


def test_version_and_help_are_where_they_are_looked_for(hams):
    assert hams.ok("--version").startswith("hams 0.")
    assert "core: " in hams.ok("--version")
    assert hams.ok("-h") == hams.ok("--help")
    assert "--detach" in hams.ok("up", "-h")
    listed = hams.ok("-h").partition("Commands:")[2]
    assert "..." not in listed, "each command's line is whole"


def test_completion_is_shown_to_the_shell_that_asks(hams):
    """The shell is the nearest parent that is one, so the command runs below bash, whatever runs the
    tests."""
    asked = subprocess.run(
        ["bash", "-c", '"$@"; exit $?', "bash", *hams.program, "--show-completion"],
        env=hams.environment,
        text=True,
        capture_output=True,
        timeout=90,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr
    assert "complete" in asked.stdout


def test_a_shell_is_offered_the_graphs_that_run_and_their_operators(hams, monkeypatch, tmp_path):
    from hams_operator.local import home as homes

    monkeypatch.setenv("HAMS_HOME", str(hams.home))
    file = hams.graph("fine")
    mine = homes.GraphHome("fine")
    mine.acquire()
    mine.write(
        homes.RunFile(
            "fine",
            "u",
            os.getpid(),
            homes.own_birth(),
            "http://h:1",
            "h:2",
            str(tmp_path / "memory"),
            str(file),
        )
    )
    assert main._graphs("f") == ["fine"]
    assert main._graphs("x") == []
    assert main._operators("") == ["frontend", "manager", "double", "count"]
    mine.clear()
    mine.release()


@pytest.mark.parametrize("options", [(), ("--detach",), ("--no-check",)])
def test_a_start_in_a_home_that_is_no_folder_says_what_to_do(hams, options):
    hams.home.touch()
    done = hams("up", hams.graph("fine"), *options)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        f": Not a directory; expected {hams.home} to be a folder, or a name for one, that this user can write"
        "; HAMS_HOME names another"
    )
    assert "Errno" not in done.stderr
    assert "Traceback" not in done.stderr


CLEANS_UP = '''
"""Cleans up."""
import asyncio

def main(arguments: list[str]) -> int:
    async def wait():
        try:
            print("begun", flush=True)
            await asyncio.Event().wait()
        finally:
            print("cleaned up", flush=True)
    asyncio.run(wait())
'''


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_benchmark_that_is_ended_cleans_up(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks/__init__.py").touch()
    (tmp_path / "benchmarks/cleans.py").write_text(CLEANS_UP)
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from hams_operator.cli import bench\n"
        f"bench._root = lambda: bench.Path({str(tmp_path)!r})\n"
        "bench.bench(['cleans'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"begun\n"
        run.send_signal(number)
        assert b"cleaned up" in run.communicate(timeout=30)[0]
