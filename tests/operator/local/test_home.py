"""The folders of local runs: one run per name, and leftovers go only with a dead one."""

import os
import subprocess
import sys

import pytest

from hams_operator.local.home import (
    GraphHome,
    RunFile,
    RunsAlready,
    folders,
    own_birth,
    running,
    runs_logged_max,
)
from hams_operator.local.processes import alive, birth_of, wait_end


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("HAMS_HOME", str(tmp_path / "home"))


def run_file(folder, *, pid: int, birth: int, name: str = "g") -> RunFile:
    folder.mkdir(exist_ok=True)
    return RunFile(
        graph=name, uid="u", pid=pid, birth=birth, url="http://h:1", grpc="h:2", memory=str(folder), file="f"
    )


def test_without_a_run_nothing_runs_and_nothing_is_made(tmp_path):
    assert running() == []
    assert not (tmp_path / "home").exists()


def test_a_second_run_of_a_name_is_refused_and_told_where_the_first_is(tmp_path):
    first = GraphHome("g")
    first.acquire()
    first.write(run_file(tmp_path / "memory", pid=os.getpid(), birth=own_birth()))
    with pytest.raises(RunsAlready, match=r"runs already: http://h:1, process \d+"):
        GraphHome("g").acquire()
    assert [item.graph for item in running()] == ["g"]
    GraphHome("other").acquire()


def test_a_run_that_is_only_being_started_is_not_run_over():
    first = GraphHome("g")
    first.acquire()
    with pytest.raises(RunsAlready, match="being started"):
        GraphHome("g").acquire()
    first.release()
    GraphHome("g").acquire()


def test_what_a_dead_run_left_goes_and_its_logs_stay(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    birth = birth_of(process.pid)
    home = GraphHome("g")
    home.acquire()
    home.write(run_file(tmp_path / "memory", pid=process.pid, birth=birth))
    home.release()
    (home.logs / "a.log").write_text("kept")
    assert running()[0].pid == process.pid
    process.communicate()
    assert running() == []
    assert not (tmp_path / "memory").exists()
    assert (home.logs / "a.log").read_text() == "kept"
    assert [folder.graph for folder in folders()] == ["g"]


def test_a_pid_that_was_given_away_again_is_another_process(tmp_path):
    home = GraphHome("g")
    home.acquire()
    home.write(run_file(tmp_path / "memory", pid=os.getpid(), birth=own_birth() - 1))
    home.release()
    assert home.read() is None


def test_whose_lock_is_held_is_not_cleared_by_others(tmp_path):
    home = GraphHome("g")
    home.acquire()
    home.write(run_file(tmp_path / "memory", pid=os.getpid(), birth=own_birth() - 1))
    assert GraphHome("g").read() is None
    assert (tmp_path / "memory").exists()


def test_a_zombie_is_not_alive_and_its_end_need_not_be_waited_for():
    process = subprocess.Popen([sys.executable, "-c", ""])
    assert wait_end(process.pid, 30)
    assert not alive(process.pid)
    process.wait()
    assert wait_end(process.pid, 30)


def test_a_run_whose_supervisor_was_killed_is_remembered_until_the_next_one(tmp_path):
    home = GraphHome("g")
    home.acquire()
    home.write(run_file(tmp_path / "memory", pid=os.getpid(), birth=own_birth() - 1))
    home.release()
    for _ in range(2):
        dead = GraphHome("g").killed()
        assert dead is not None
        assert dead.file == "f"
    home.acquire()
    assert GraphHome("g").killed() is None


def test_a_run_that_ended_in_order_was_not_killed(tmp_path):
    home = GraphHome("g")
    home.acquire()
    home.write(run_file(tmp_path / "memory", pid=os.getpid(), birth=own_birth()))
    home.clear()
    home.release()
    assert home.killed() is None


def test_logs_of_a_run_before_are_set_aside_and_the_oldest_go(tmp_path, monkeypatch):
    home = GraphHome("g")
    for number in range(runs_logged_max + 3):
        home.acquire()
        assert [path.name for path in home.logs.iterdir() if path.stat().st_size] == []
        with (home.logs / "supervisor.log").open("a") as held:
            held.write(f"run {number}")
        (home.logs / "a-1.log").write_text(f"run {number}")
        for path in home.logs.iterdir():
            os.utime(path, (number * 60, number * 60))
        home.release()
    folders = sorted(home.earlier.iterdir())
    assert [(folder / "a-1.log").read_text() for folder in folders] == [
        f"run {number}" for number in range(2, runs_logged_max + 2)
    ]
    assert (folders[-1] / "supervisor.log").read_text() == f"run {runs_logged_max + 1}"


def test_what_a_run_writes_is_for_its_user_alone():
    home = GraphHome("g")
    home.folder.mkdir(parents=True, mode=0o755)
    home.acquire()
    assert home.folder.stat().st_mode & 0o777 == 0o700
    home.release()
