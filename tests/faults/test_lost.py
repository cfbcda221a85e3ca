"""F2, F5, F13, F22, F23, F32, F33, F35 with real processes: what replicas lose, and what they keep."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hams_history.checker import check_directory
from hams_operator.graph_status import View
from hams_operator.local.supervisor import Launch, Supervisor
from tests.faults import hosts
from tests.faults.harness import (
    BLOCKING,
    BLOCKING_RESTART,
    PATIENT,
    REDUNDANT_S,
    GraphRun,
    changed,
    run_graph,
)

pytestmark = [pytest.mark.process, pytest.mark.etcd, pytest.mark.timeout(300)]

HISTORY_BYTES = 256 * 1024


async def test_f2_a_primary_that_dies_between_the_backups_apply_and_its_own_notice(tmp_path: Path) -> None:
    async with (
        run_graph("line.yaml", tmp_path, graphs=changed(tmp_path, PATIENT)) as run,
        run.load(clients=4),
    ):
        for _ in range(2):
            await run.answered(30)
            target, backup = await run.find("first", "primary"), await run.find("first", "backup")
            applied = await stop_between(run, target.id, backup.id, target.proxy_pid or 0)
            run.strike(target)
            await run.answered(30)
            await run.redundant()
            epoch = (await run.epochs())["first"]
            ends = {
                line["end"]
                for line in run.lines("failover")
                if line["op"] == "first" and line["epoch"] == epoch
            }
            assert ends
            assert min(ends) >= applied, "what the backup had applied is kept"
            again = [
                line
                for line in run.lines("exec")
                if line["op"] == "first" and line["epoch"] == epoch and line["seq"] <= applied
            ]
            assert not again, "and not executed again"
    run.verify()


async def stop_between(run: GraphRun, primary: str, backup: str, pid: int) -> int:
    """Pause the primary while it has not called durable what its backup has applied; that version. Its unread
    acknowledgement dies with it."""
    async with asyncio.timeout(REDUNDANT_S):
        while True:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
            applied = max(
                (line["version"] for line in run.lines("apply", backup) if line["op"] == "first"), default=0
            )
            durable = max(
                (line["version"] for line in run.lines("durable", primary) if line["op"] == "first"),
                default=0,
            )
            if applied > durable:
                return int(applied)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            await run.answered(1)


async def without(run: GraphRun, gone: str) -> None:
    """Until nobody counts on this instance any more."""
    replica_set = await run.until(
        lambda topology: gone not in (*topology.find("first").joining, *topology.find("first").in_sync)
    )
    assert replica_set.find("first").primary != gone


async def test_f5_a_joiner_that_dies_within_its_copy_is_never_promoted(tmp_path: Path) -> None:
    graphs = changed(tmp_path, PATIENT, ("stateBytes: 65536", "stateBytes: 16777216"))
    async with run_graph("line.yaml", tmp_path, graphs=graphs) as run, run.load(clients=4):
        await run.answered(20)
        before = await run.epochs()
        await run.kill("first", "backup")
        for _ in range(2):
            replica_set = await run.until(lambda topology: bool(topology.find("first").joining))
            joiner = replica_set.find("first").joining[0]
            run.strike(next(item for item in (await run.view()).instances if item.id == joiner))
            await without(run, joiner)
        await run.answered(20)
        await run.redundant()
        assert await run.epochs() == before, "the primary goes on all the while"
    run.verify()


async def test_f13_a_state_without_replicas_stops_the_graph_and_says_so(tmp_path: Path) -> None:
    async with run_graph("line.yaml", tmp_path, settle=False) as run:
        async with run.load(clients=4):
            await run.answered(40)
        await kill_all(run, "first")
        view = await not_ready(run, "StateLost")
        assert view.is_true("Ready") is False
        status, answer = await refused(run)
        assert status == 503, answer
        assert "state of first is lost" in answer["error"]
    run.verify()
    assert [line["op"] for line in run.lines("lost")], "the loss is reported"


async def refused(run: GraphRun) -> tuple[int, dict[str, Any]]:
    """The answer of a frontend that has heard of the loss. One that takes a request before it has heard keeps
    it until its time is up (504)."""
    while True:
        status, answer = await run.post(
            {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}
        )
        if status != 504:
            return status, answer


async def test_f13_a_lost_state_is_begun_again_where_the_policy_says_so(tmp_path: Path) -> None:
    await restarted(tmp_path)


async def test_f13_a_person_decides_that_a_lost_state_begins_again(tmp_path: Path) -> None:
    async with run_graph("line.yaml", tmp_path, settle=False, graphs=changed(tmp_path, BLOCKING)) as run:
        async with run.load(clients=4):
            await run.answered(20)
        await kill_all(run, "first")
        await not_ready(run, "StateLost")
        assert "is not lost" in await run.supervisor.allow_restart("last")
        assert not await run.supervisor.allow_restart("first")
        async with run.load(clients=4):
            await run.answered(20)
            await run.redundant()
        assert [loss.operator for loss in (await run.view()).losses] == ["first"]
    report = check_directory(run.history)
    assert report.ok, report.render()


async def restarted(tmp_path: Path) -> GraphRun:
    graphs = changed(tmp_path, BLOCKING_RESTART)
    async with run_graph("line.yaml", tmp_path, graphs=graphs) as run, run.load(clients=4):
        await run.answered(40)
        await kill_all(run, "first")
        await run.answered(40)
        await run.redundant()
    assert {reply.status for reply in run.replies} == {200}
    assert "first" in {line["op"] for line in run.lines("lost")}, "the loss is reported"
    return run


async def test_f13_what_a_restart_leaves_downstream_is_reported_too(tmp_path: Path) -> None:
    graphs = changed(tmp_path, ("spec:\n", "spec:\n  recovery: {whenLost: Restart}\n"))
    async with run_graph("line.yaml", tmp_path, graphs=graphs) as run, run.load(clients=4):
        await run.answered(40)
        await run.kill("first", "backup", "proxy", signal.SIGSTOP)
        await ahead_of_durable(run)
        await kill_all(run, "first")
        await run.answered(40)
        view = await run.redundant()
        assert [(loss.operator, loss.version, loss.downstream) for loss in view.losses] == [
            ("first", 0, ("last",))
        ]
    assert {line["op"] for line in run.lines("lost")} == {"first", "last"}, "both losses are reported"
    report = check_directory(run.history)
    assert report.ok, report.render()


async def ahead_of_durable(run: GraphRun) -> None:
    """Until `last` has executed what stems from a version of `first` that is not durable."""
    async with asyncio.timeout(REDUNDANT_S):
        while True:
            durable = max(
                (line["version"] for line in run.lines("durable") if line["op"] == "first"), default=0
            )
            pending = {
                line["req"]
                for line in run.lines("exec")
                if line["op"] == "first" and line["version"] > durable
            }
            if any(line["op"] == "last" and line["req"] in pending for line in run.lines("exec")):
                return
            await run.stalled(0.02)


SLOW = (
    '"nonce.models:Tally", config: {stateBytes: 65536}',
    '"nonce.models:Slow", config: {stateBytes: 65536, loadS: 4}',
)
"""The replacement of a lost replica takes so long to start that the successor dies before, on any machine."""


async def successor_dies(run: GraphRun, has_keeper: bool = False) -> int:
    """The primary of `first` dies, and who is promoted for it as well; the epoch that began between.

    `has_keeper`: not before the state has a keeper. Under `Block` it never has one.
    """
    await run.answered(40)
    epoch = (await run.epochs())["first"] + 1
    await run.kill("first", "primary")
    topology = await run.until(
        lambda topology: (
            topology.find("first").epoch >= epoch and (not has_keeper or bool(topology.find("first").keepers))
        )
    )
    replica_set = topology.find("first")
    assert (replica_set.epoch, replica_set.lost) == (epoch, False)
    run.strike(next(item for item in (await run.view()).instances if item.id == replica_set.primary))
    return epoch


async def test_f33_a_successor_that_dies_before_another_is_in_sync_loses_the_state_until_a_person_restarts_it(
    tmp_path: Path,
) -> None:
    graphs = changed(tmp_path, SLOW, ("spec:\n", "spec:\n  recovery: {whenUnprotected: Block}\n"))
    async with run_graph("line.yaml", tmp_path, graphs=graphs) as run:
        async with run.load(clients=4):
            epoch = await successor_dies(run)
            await not_ready(run, "StateLost")
            result = (await run.topology()).find("first")
            assert (result.epoch, result.lost) == (epoch, True), (
                "nobody else is taken for one who has the state"
            )
            assert not await run.supervisor.allow_restart("first")
            await run.answered(40)
            view = await run.redundant()
        assert [loss.operator for loss in view.losses] == ["first"]
    assert {reply.status for reply in run.replies} == {200}
    judged(run)


async def test_f33_a_successor_that_dies_before_another_is_in_sync_begins_again_where_the_policy_says_so(
    tmp_path: Path,
) -> None:
    policy = "spec:\n  recovery: {whenLost: Restart, whenUnprotected: Block}\n"
    graphs = changed(tmp_path, SLOW, ("spec:\n", policy))
    async with run_graph("line.yaml", tmp_path, graphs=graphs) as run:
        async with run.load(clients=4):
            epoch = await successor_dies(run)
            replica_set = (await run.until(lambda topology: topology.find("first").restarted_in > 0)).find(
                "first"
            )
            assert replica_set.restarted_in == epoch + 1
            await run.answered(40)
            view = await run.redundant()
        assert [loss.operator for loss in view.losses] == ["first"]
    assert {reply.status for reply in run.replies} == {200}
    judged(run)


async def test_f33_a_successor_that_dies_once_the_state_has_a_keeper_loses_nothing(tmp_path: Path) -> None:
    async with run_graph("line.yaml", tmp_path, graphs=changed(tmp_path, SLOW)) as run, run.load(clients=4):
        epoch = await successor_dies(run, has_keeper=True)
        await run.until(lambda topology: topology.find("first").epoch > epoch)
        await run.answered(40)
        assert not (await run.redundant()).losses
    assert not run.lines("lost")
    run.verify()


async def test_f33_a_successor_that_dies_is_followed_by_the_second_backup(tmp_path: Path) -> None:
    graphs = changed(tmp_path, SLOW, ("stateful: {backups: 1}", "stateful: {backups: 2}"))
    async with run_graph("line.yaml", tmp_path, graphs=graphs) as run, run.load(clients=4):
        epoch = await successor_dies(run)
        await run.until(lambda topology: topology.find("first").epoch > epoch)
        await run.answered(40)
        assert not (await run.redundant()).losses
    assert not run.lines("lost")
    run.verify()


def judged(run: GraphRun) -> None:
    """The loss is reported, and the checker finds nothing that is not excused by it."""
    assert "first" in {line["op"] for line in run.lines("lost")}
    report = check_directory(run.history)
    assert report.ok, report.render()


async def kill_all(run: GraphRun, operator: str) -> None:
    """All replicas in one blow."""
    for item in (await run.view()).instances:
        if item.operator == operator:
            run.strike(item)


async def not_ready(run: GraphRun, reason: str) -> View:
    async with asyncio.timeout(REDUNDANT_S):
        while True:
            view = await run.view()
            if any(
                item.type == "Ready" and item.status == "False" and item.reason == reason
                for item in view.conditions
            ):
                return view


async def test_f22_a_backup_that_does_not_receive_leaves_the_set_and_its_primary_stays(
    tmp_path: Path,
) -> None:
    async with (
        run_graph("line.yaml", tmp_path, graphs=changed(tmp_path, PATIENT)) as run,
        run.load(clients=4),
    ):
        await run.answered(40)
        before = await run.epochs()
        slow = await run.kill("first", "backup", "proxy", signal.SIGSTOP)
        await run.until(lambda topology: slow.id not in topology.find("first").in_sync)
        await run.answered(100)
        assert await run.epochs() == before, "no primary is removed for a slow backup"
        run.strike(slow, "proxy", signal.SIGCONT)
        await run.redundant()
        await run.answered(40)
        assert await run.epochs() == before
    run.verify()


async def test_f23_a_primary_stopped_just_below_the_timeout_keeps_its_role(tmp_path: Path) -> None:
    graphs = changed(tmp_path, ("spec:\n", "spec:\n  recovery: {suspectAfter: 4s}\n"))
    async with run_graph("line.yaml", tmp_path, graphs=graphs) as run, run.load(clients=4):
        before = await run.epochs()
        for operator in ("first", "last", "first"):
            await run.answered(40)
            target = await run.kill(operator, "primary", "proxy", signal.SIGSTOP)
            # the scenario: shorter than what is suspicious, far longer than what is so by default
            await run.stalled(1.5)
            run.strike(target, "proxy", signal.SIGCONT)
        await run.answered(40)
        assert await run.epochs() == before
    run.verify()


class SmallDisk(Supervisor):
    """One instance of `first` at a time writes its history to a disk that is soon full, until one has found
    that out."""

    disk: Path
    victim: str = ""

    def arrange(self, launch: Launch) -> Launch:
        if launch.of == "first" and (not self.victim or self.was_replaced()):
            self.victim = launch.instance
            launch.environment["HAMS_HISTORY"] = str(self.disk)
        return launch

    def found_out(self) -> bool:
        return "history cannot be written" in self.written()

    def was_replaced(self) -> bool:
        """Before the disk was full: a slow machine makes an instance look hung."""
        return "stops: " in self.written() and not self.found_out()

    def written(self) -> str:
        file = self.home.logs / f"{self.victim}.log"
        return file.read_text() if file.exists() else ""


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={HISTORY_BYTES}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.by_hand
@pytest.mark.skipif(not hosts.available(), reason="mounting a disk needs root")
async def test_f32_an_instance_whose_disk_is_full_stops_and_nothing_is_lost(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        made: list[SmallDisk] = []

        def make(*arguments: object) -> Supervisor:
            made.append(SmallDisk(*arguments))  # type: ignore[arg-type]
            made[0].disk = disk
            return made[0]

        async with run_graph("line.yaml", tmp_path, make=make) as run, run.load(clients=8):
            async with asyncio.timeout(REDUNDANT_S):
                while not made[0].found_out() or made[0].victim in {
                    item.id for item in (await run.view()).instances
                }:
                    await run.answered(20)
            await run.answered(40)
            await run.redundant()
        for file in disk.iterdir():
            shutil.copy(file, run.history)
    run.verify()


async def test_f35_a_joiner_with_another_state_layout_is_refused_and_the_old_replica_serves_on(
    tmp_path: Path,
) -> None:
    graphs = changed(tmp_path, PATIENT)
    models = graphs / "nonce" / "models.py"
    text = models.read_text()
    async with run_graph("line.yaml", tmp_path, graphs=graphs) as run, run.load(clients=4):
        await run.answered(20)
        before = await run.epochs()
        other = text.replace("self.total = np.zeros((), np.float64)", "self.total = np.zeros((), np.float32)")
        models.write_text(f"{other}# Python knows a file by its size and the second of its last change.\n")
        old = await run.kill("first", "backup")
        await said(run, "first", old.id, "state layout mismatch")
        await run.answered(40)
        assert await run.epochs() == before, "the old one keeps its role"
        assert not (await run.view()).is_true("Redundant")
        models.write_text(text)
        await run.redundant()
        await run.answered(20)
        assert await run.epochs() == before
    run.verify()


async def said(run: GraphRun, operator: str, old: str, words: str) -> None:
    """Until an instance of the operator that is younger than `old` has written the words to its log."""
    async with asyncio.timeout(REDUNDANT_S):
        while True:
            await run.answered(1)
            for log in run.supervisor.home.logs.glob(f"{operator}-*.log"):
                if not log.name.startswith(old) and words in log.read_text():
                    return
