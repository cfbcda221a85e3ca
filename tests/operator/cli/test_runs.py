"""Local runs as their users see them: real processes, started, watched, killed and ended by commands."""

import asyncio
import json
import os
import signal
import socket
import urllib.request
from pathlib import Path

import pytest

from hams_wire import records
from hams_wire.coordination.etcd import EtcdCoordination

pytestmark = [pytest.mark.process, pytest.mark.etcd, pytest.mark.timeout(240)]


def infer(url: str, graph: str, value: float, key: str) -> int:
    """One request; the count in its reply."""
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [value]}]}).encode()
    request = urllib.request.Request(
        f"{url}/v2/models/{graph}/infer", body, {"Idempotency-Key": key, "Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return int(json.load(response)["outputs"][0]["data"][0])


def memory_of(hams, graph: str) -> Path:
    return Path(json.loads((hams.home / graph / "run.json").read_text())["memory"])


def test_a_graph_goes_up_survives_a_kill_and_goes_down_without_a_trace(hams):
    file = hams.graph("first")
    hams.ok("up", file, "--detach", "--history", hams.folder / "history")
    hams.until(lambda: hams.settled("first"), "a status of everybody")
    status = hams.json("status")
    check_status_of_first(status)
    assert infer(status["url"], "first", 1.0, "one") == 1

    again = hams("up", file, "--detach")
    assert again.returncode == 1
    assert "runs already" in again.stderr
    assert len(again.stderr.splitlines()) == 1

    hit = hams.json("kill", "count")
    assert (hit["operator"], hit["role"], hit["signal"]) == ("count", "primary", "KILL")
    hams.until(lambda: hams.settled("first"), "redundant again after a kill")
    assert infer(status["url"], "first", 1.0, "two") == 2, "the state has forgotten"
    assert infer(status["url"], "first", 1.0, "one") == 1, "the first key has another reply"
    primary = next(item for item in hams.json("status")["instances"] if item["role"] == "primary")
    assert primary["epoch"] >= 2
    assert primary["id"] != hit["instance"]

    load = hams.json("load", file, "--rate", 30, "--duration", "2s", "--verify")
    counts = {key: load[key] for key in ("sent", "ok", "failed", "doubled", "resent", "wrong")}
    assert counts == {"sent": 60, "ok": 60, "failed": 0, "doubled": 0, "resent": 6, "wrong": []}

    memory = memory_of(hams, "first")
    hams.until(
        lambda: hams.settled("first"),
        "everybody at their places when it ends: its history says who was there",
    )
    hams.ok("down")
    assert hams.processes() == []
    assert not memory.exists()
    assert hams("status").returncode == 1
    hams.ok("history", "check", hams.folder / "history")
    assert list((hams.folder / "history").glob("client-*.jsonl"))


def check_status_of_first(status):
    """What the status and the page of metrics of a settled graph `first` say."""
    assert set(status) == {"graph", "url", "grpc", "generation", "conditions", "instances", "metrics"}
    with urllib.request.urlopen(status["metrics"], timeout=30) as response:
        page = response.read().decode()
    assert {int(line[-1]) for line in page.splitlines() if line.startswith("hams_up{")} == {1}
    frontends = [line for line in page.splitlines() if line.startswith("hams_up{") and '"frontend"' in line]
    assert len(frontends) == 2
    assert all(f'instance="{item["id"]}"' in page for item in status["instances"])
    assert [(item["type"], item["status"]) for item in status["conditions"]] == [
        ("Ready", "True"),
        ("Redundant", "True"),
        ("Progressing", "False"),
    ]
    assert set(status["instances"][0]) == {
        "id",
        "operator",
        "role",
        "leader",
        "epoch",
        "version",
        "proxyPid",
        "modelPid",
        "onTime",
    }
    roles = sorted((item["operator"] or "", item["role"]) for item in status["instances"])
    assert roles == [("", "frontend")] * 2 + [("", "manager")] * 2 + [
        ("count", "backup"),
        ("count", "primary"),
        ("double", "active"),
    ]
    assert sum(item["leader"] for item in status["instances"]) == 1


def test_a_supervisor_killed_leaves_no_process_and_its_leftovers_are_cleared(hams):
    file = hams.graph("orphan")
    hams.ok("up", file, "--detach")
    memory = memory_of(hams, "orphan")
    os.kill(json.loads((hams.home / "orphan" / "run.json").read_text())["pid"], signal.SIGKILL)
    hams.until(lambda: not hams.processes(), "every process has died with its supervisor")
    assert memory.exists()
    assert hams.json("status", "--all") == []
    for _ in range(2):
        status = hams("status")
        assert status.returncode == 1
        assert "orphan does not run any more: its supervisor" in status.stderr
    assert not memory.exists()
    assert not (hams.home / "orphan" / "run.json").exists()
    hams.ok("up", file, "--detach")
    hams.ok("down", "--graph", "orphan")


def test_the_warmed_process_killed_is_made_up_for(hams):
    """All proxies and frontends die at once: the state is lost, and it is said."""
    hams.ok("up", hams.graph("warm"), "--detach")
    before = {item["id"] for item in hams.json("status")["instances"]}
    fork_server = next(
        line
        for line in hams.processes()
        if "fork_server" in line
        and "hams_sidecar.proxy" in line
        and int(line.partition(":")[0]) in _parents()
    )
    os.kill(int(fork_server.partition(":")[0]), signal.SIGKILL)
    hams.until(
        lambda: not before & {item["id"] for item in hams.json("status")["instances"]}, "fresh instances"
    )
    ready = next(item for item in hams.json("status")["conditions"] if item["type"] == "Ready")
    assert ready["status"] == "False"


def _parents() -> set[int]:
    """Pids that have children."""
    names = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            names.add(int(stat.read_text().rpartition(")")[2].split()[1]))
        except OSError:
            continue
    return names


def test_two_graphs_run_side_by_side(hams):
    hams.ok("up", hams.graph("left"), "--detach")
    hams.ok("up", hams.graph("right"), "--detach")
    unclear = hams("status")
    assert unclear.returncode == 2
    assert "left, right" in unclear.stderr
    left, right = hams.json("status", "--all")
    assert (left["graph"], right["graph"]) == ("left", "right")
    assert infer(left["url"], "left", 1.0, "k") == 1
    assert infer(right["url"], "right", 1.0, "k") == 1
    port = left["url"].rpartition(":")[2]
    refused = hams("up", hams.graph("third"), "--detach", "--port", port)
    assert refused.returncode == 1
    assert f'port {port} cannot be used: graph "left" answers there' in refused.stderr
    hams.ok("down", "--graph", "left")
    assert infer(right["url"], "right", 1.0, "k2") == 2
    hams.ok("down", "--all")
    assert hams.processes() == []


def test_a_taken_port_is_a_clear_error(hams):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        failed = hams("up", hams.graph("port"), "--detach", "--port", port)
    assert failed.returncode == 1
    assert (
        failed.stderr.strip()
        == f"hams: port {port} cannot be used: Address already in use. Choose another one with --port, or "
        "leave it out"
    )
    assert hams.processes() == []


def test_a_model_that_cannot_be_started_is_named_with_its_reason(hams):
    failed = hams("up", hams.graph("broken", double="Broken"), "--detach")
    assert failed.returncode == 1
    assert "the model of double cannot be started (exit code 1): " in failed.stderr
    assert "the weights are nowhere to be found" in failed.stderr
    assert hams.processes() == []


@pytest.mark.parametrize(
    ("raises", "sentence"),
    [
        ("ImportError", "a frontend cannot be started (exit code 70): ImportError: this is no FastAPI"),
        (
            "RuntimeError",
            "the process that imports data modules ended 2 times: RuntimeError: this is no FastAPI",
        ),
    ],
)
def test_a_process_of_ours_that_cannot_be_started_is_named_with_its_last_line(hams, raises, sentence):
    """As after an installation whose versions do not go together: it is said at once, not after the whole
    timeout."""
    broken = hams.folder / "packages"
    broken.mkdir()
    (broken / "fastapi.py").write_text(f"raise {raises}('this is no FastAPI')\n")
    hams.environment["PYTHONPATH"] = str(broken)
    failed = hams("up", hams.graph("broken"), "--detach", "--timeout", "10m")
    assert failed.returncode == 1
    assert f"hams: {sentence}" in failed.stderr
    assert hams.processes() == []


def test_a_model_finds_what_its_own_variables_name(hams):
    """PYTHONPATH is read when Python starts: a model that was forked would not see it."""
    file = hams.graph("env")
    elsewhere = hams.folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "only_there.py").write_text("FACTOR = 2\n")
    models = file.parent / "models.py"
    models.write_text(
        models.read_text().replace('batch["x"] * 2}', 'batch["x"] * __import__("only_there").FACTOR}')
    )
    file.write_text(
        file.read_text().replace('"models:Double"', f'"models:Double", env: {{PYTHONPATH: "{elsewhere}"}}')
    )
    hams.ok("up", file, "--detach")
    url = hams.json("status")["url"]
    assert infer(url, "env", 1.0, "one") == 1
    hams.ok("kill", "double", "--process", "model")
    assert infer(url, "env", 1.0, "two") == 2
    hams.ok("down")
    assert hams.processes() == []


def test_a_model_in_a_crash_loop_is_shown_with_its_last_words_until_it_runs_again(hams):
    file = hams.graph("loop", double="Spoilt")
    hams.ok("up", file, "--detach")
    (file.parent / "spoilt").touch()
    hams.ok("kill", "double")
    hams.until(lambda: "lastFailureInfo" in hams.json("status"), "a failure in the status")
    status = hams.json("status")
    failure = status["lastFailureInfo"][0]
    assert (failure["operator"], failure["exitCode"]) == ("double", 1)
    assert "the weights have gone bad" in failure["log"][-1]
    ready = next(item for item in status["conditions"] if item["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ModelCrashLoop")
    assert "the weights have gone bad" in hams.ok("status")
    (file.parent / "spoilt").unlink()
    hams.until(lambda: hams.settled("loop"), "ready again")


def test_a_start_that_takes_too_long_is_ended(hams):
    failed = hams("up", hams.graph("slow", double="Slow"), "--detach", "--timeout", "4s")
    assert failed.returncode == 1
    assert "not ready after 4 s" in failed.stderr
    assert hams.processes() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_run_in_a_terminal_ends_with_it(hams, number):
    run = hams.start("up", hams.graph("here"), "--output", "json")
    hams.until((hams.home / "here" / "run.json").exists, "it begins")
    os.kill(run.pid, number)  # during the start, as an impatient user would
    assert run.wait(60) == 0
    assert hams.processes() == []


def test_f23_a_paused_primary_is_replaced_listed_and_refused_when_it_resumes(hams):
    hams.ok("up", hams.graph("pause"), "--detach")
    url = hams.json("status")["url"]
    assert infer(url, "pause", 1.0, "one") == 1
    hit = hams.json("kill", "count", "--process", "proxy", "--signal", "STOP")
    hams.until(lambda: _primary(hams) not in (None, hit["instance"]), "another primary")
    hams.until(lambda: hams.settled("pause"), "a fresh backup in place of the one that hangs")
    assert hit["instance"] in _instances(hams)
    hams.ok("kill", "--instance", hit["instance"], "--signal", "CONT")
    assert infer(url, "pause", 1.0, "two") == 2
    hams.until(lambda: hit["instance"] not in _instances(hams), "it learns that its time is over")
    hams.until(lambda: hams.settled("pause"), "ready and redundant")
    assert infer(url, "pause", 1.0, "three") == 3


def _instances(hams) -> set[str]:
    return {item["id"] for item in hams.json("status")["instances"]}


def _primary(hams) -> str | None:
    return next((item["id"] for item in hams.json("status")["instances"] if item["role"] == "primary"), None)


def test_an_etcd_of_somebody_else_is_used_and_left_clean(hams):
    hams.ok("up", hams.graph("host"), "--detach")
    etcd = json.loads((hams.home / "host" / "run.json").read_text())["etcd"]
    hams.ok("up", hams.graph("guest"), "--detach", "--etcd", etcd)
    guest = json.loads((hams.home / "guest" / "run.json").read_text())
    assert guest["etcd"] == etcd
    assert sum("etcd" in line.partition(" ")[0] or "/etcd " in line for line in hams.processes()) == 1
    hams.ok("down", "--graph", "guest")
    assert asyncio.run(_keys(etcd, guest["uid"])) == []


async def _keys(etcd: str, uid: str) -> list[str]:
    client = EtcdCoordination(etcd)
    try:
        return [entry.key for entry in (await client.get_prefix(records.prefix_of(uid))).entries]
    finally:
        await client.close()


def test_f26_while_etcd_is_away_the_graph_serves_and_status_says_what_is_missing(hams):
    hams.ok("up", hams.graph("away"), "--detach")
    url = hams.json("status")["url"]
    etcd = next(int(line.partition(":")[0]) for line in hams.processes() if "--data-dir" in line)
    assert infer(url, "away", 1.0, "k0") == 1  # a graph's first request is told to etcd, no later one
    os.kill(etcd, signal.SIGSTOP)
    assert infer(url, "away", 1.0, "k") == 2
    seen: list[dict[str, tuple[str, str]]] = [{}]

    def reports_all() -> bool:
        status = hams.json("status")
        assert len(status["instances"]) == 7
        seen[0] = {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]}
        return seen[0]["Ready"] == ("True", "Serving")

    hams.until(reports_all, "everybody is reached, and serves")
    assert seen[0]["Redundant"] == ("False", "EtcdAway")
    os.kill(etcd, signal.SIGCONT)
    hams.until(lambda: hams.settled("away"), "redundant again")
    assert infer(url, "away", 1.0, "k2") == 3


def test_a_folder_holds_one_history(hams):
    folder = hams.folder / "history"
    folder.mkdir()
    (folder / "0-graph.jsonl").touch()
    failed = hams("up", hams.graph("twice"), "--detach", "--history", folder)
    assert failed.returncode == 1
    assert "a folder holds one history" in failed.stderr
    assert hams.processes() == []


def test_logs_are_followed_while_they_grow_and_stay_after_the_end(hams):
    hams.ok("up", hams.graph("talk"), "--detach")
    following = hams.start("logs", "count", "--follow", "--lines", 1)
    assert following.stdout is not None
    for log in (hams.home / "talk" / "logs").glob("count-*.log"):
        if log.stat().st_size:  # its last line: by then it is followed
            assert following.stdout.readline().startswith("count-")
    hams.until(lambda: "count" in hams.ok("kill", "count"), "a kill")
    assert following.stdout.readline().startswith("count-")
    following.send_signal(signal.SIGINT)
    assert following.wait(30) == 0
    hams.ok("down")
    assert "count-" in hams.ok("logs", "count")
    assert "ended with signal SIGKILL" in hams.ok("logs", "supervisor")
    assert "starting etcd" in hams.ok("logs", "etcd", "--lines", 10_000).lower()
