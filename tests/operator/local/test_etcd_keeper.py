"""A run's own etcd comes back: on its data, after a pause, once at a time, and when what kept it away has
gone."""

import asyncio
import errno
import logging
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.faults.harness import PROBED_S, SILENT, changed, run_graph

from hams_operator.local import limits
from hams_operator.local.etcd import EtcdProcess, LocalEtcd
from hams_operator.local.etcd_keeper import keep
from hams_operator.local.places import restart_pause_max_s
from hams_wire.coordination import ABSENT
from hams_wire.coordination.etcd import EtcdCoordination

real = [pytest.mark.process, pytest.mark.etcd, pytest.mark.timeout(240)]


class Broken:
    """A member that ends as soon as it is started, and cannot be started at times."""

    log = Path("etcd-0.log")
    data = Path("data")

    def __init__(
        self, statuses: list[int], errors: list[OSError | None], has_data: list[bool | OSError] | None = None
    ) -> None:
        self.starts = 0
        self.done = asyncio.Event()
        self._statuses = statuses
        self._errors = errors
        self._has_data = has_data or []

    @property
    def has_data(self) -> bool:
        result = self._has_data.pop(0) if self._has_data else True
        if isinstance(result, OSError):
            raise result
        return result

    async def wait(self) -> int:
        if self._statuses:
            return self._statuses.pop(0)
        self.done.set()
        return await asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        self.starts += 1
        if self._errors and (error := self._errors.pop(0)) is not None:
            raise error

    def last_error(self) -> str:
        return "listen tcp 127.0.0.1:2379: bind: address already in use"


async def pauses_of(member: Broken, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Keep it until it stays; the pauses."""
    pauses: list[float] = []

    async def passed(pause_s: float) -> None:
        pauses.append(pause_s)

    monkeypatch.setattr("hams_operator.local.etcd_keeper.asyncio.sleep", passed)
    keeping = asyncio.create_task(keep(member))
    await member.done.wait()
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    return pauses


async def test_the_pause_grows_up_to_its_bound_and_each_end_is_told_with_its_reason(
    monkeypatch, caplog
) -> None:
    member = Broken([-signal.SIGKILL, *[1] * 9], [])
    pauses = await pauses_of(member, monkeypatch)
    assert member.starts == len(pauses) == 10
    assert pauses == sorted(pauses)
    assert pauses[-1] == restart_pause_max_s
    assert "etcd ended with signal SIGKILL; it is started again in 0.4 s" in caplog.text
    assert (
        "etcd ended with exit code 1; it is started again in 10 s: listen tcp 127.0.0.1:2379: bind: address "
        "already in use (log: etcd-0.log)" in caplog.text
    )


async def test_a_start_that_fails_is_told_and_tried_again_after_a_longer_pause(monkeypatch, caplog) -> None:
    member = Broken(
        [-signal.SIGKILL], [OSError(errno.ENOSPC, "No space left on device", "/logs/etcd-0.log"), None]
    )
    pauses = await pauses_of(member, monkeypatch)
    assert member.starts == 2
    assert pauses == [2 * limits.restart_pause_s, 4 * limits.restart_pause_s]
    assert "etcd cannot be started again: /logs/etcd-0.log: No space left on device" in caplog.text


async def test_an_etcd_without_its_data_is_not_started_as_an_empty_one(monkeypatch, caplog) -> None:
    member = Broken([-signal.SIGKILL], [], has_data=[False, False, True])
    await pauses_of(member, monkeypatch)
    assert member.starts == 1
    assert caplog.text.count("its data below data are gone") == 2


async def test_data_that_cannot_be_looked_at_for_a_while_end_nothing(monkeypatch, caplog) -> None:
    member = Broken(
        [-signal.SIGKILL], [], has_data=[OSError(errno.EIO, "Input/output error", "data/member/wal"), True]
    )
    pauses = await pauses_of(member, monkeypatch)
    assert member.starts == 1
    assert len(pauses) == 2
    assert "etcd cannot be started again: data/member/wal: Input/output error" in caplog.text


async def test_an_end_by_a_signal_without_a_name_is_told_by_its_number(monkeypatch, caplog) -> None:
    member = Broken([-40], [])
    await pauses_of(member, monkeypatch)
    assert member.starts == 1
    assert "etcd ended with signal 40; it is started again" in caplog.text


class TestReal:
    pytestmark = real

    @pytest.fixture
    async def member(self, tmp_path: Path) -> AsyncIterator[EtcdProcess]:
        async with await LocalEtcd.start(tmp_path) as etcd:
            keeping = asyncio.create_task(keep(etcd.members[0]))
            yield etcd.members[0]
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def test_killed_it_is_back_with_its_data_where_it_was(self, member: EtcdProcess) -> None:
        client = EtcdCoordination(member.endpoint)
        revision = await client.compare_and_swap("k", ABSENT, b"1")
        for _ in range(2):
            before = member.pid
            member.signal(signal.SIGKILL)
            await member.wait()
            await client.wait_ready(60)
            assert member.pid != before
        assert await client.compare_and_swap("k", revision, b"2") == revision + 1
        await client.close()

    async def test_one_that_somebody_else_has_started_again_is_left_alone(self, member: EtcdProcess) -> None:
        await member.kill()
        await member.start()
        await member.wait_ready(60)
        pid = member.pid
        await asyncio.sleep(3 * limits.restart_pause_s)
        assert member.pid == pid
        await member.start()
        assert member.pid == pid

    async def test_a_port_that_is_taken_meanwhile_is_told_and_waited_for(
        self, member: EtcdProcess, caplog: pytest.LogCaptureFixture
    ) -> None:
        warned = asyncio.Event()

        class Tell(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if "address already in use" in record.getMessage():
                    warned.set()

        handler = Tell()
        logging.getLogger("hams.local").addHandler(handler)
        try:
            await member.kill()
            with socket.create_server(("127.0.0.1", member.ports.client)):
                await asyncio.wait_for(warned.wait(), 60)
        finally:
            logging.getLogger("hams.local").removeHandler(handler)
        client = EtcdCoordination(member.endpoint)
        await client.wait_ready(60)
        await client.close()

    async def test_a_killed_etcd_and_then_a_killed_primary_cost_no_state(self, tmp_path: Path) -> None:
        async with (
            run_graph("line.yaml", tmp_path, graphs=changed(tmp_path, SILENT)) as run,
            run.load(clients=2),
        ):
            await run.answered(20)
            before = await run.epochs()
            (member,) = run.supervisor._etcd.members
            member.signal(signal.SIGKILL)
            await member.wait()
            await run.answered(20)
            await run.redundant()
            await run.stalled(PROBED_S)
            assert await run.epochs() == before, "no failover"
            target = await run.kill("first", "primary")
            await run.until(lambda topology: topology.find("first").primary not in (None, target.id))
            await run.redundant()
            await run.answered(20)
        run.verify()
