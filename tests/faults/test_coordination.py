"""F26, F27, F28, F29 of a whole graph: etcd away, full or without its leader; managers that die in the middle
of a recovery."""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hams_operator.graph_status import InstanceStatus
from hams_operator.local.etcd import LocalEtcd
from hams_wire.coordination import ABSENT
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.errors import NoSpace
from tests.faults.harness import PROBED_S, SILENT, GraphRun, changed, run_graph
from tests.faults.test_etcd import free_space

pytestmark = [pytest.mark.process, pytest.mark.etcd, pytest.mark.timeout(300)]

ROUNDS = 20 if os.environ.get("HAMS_FAULTS_FULL") else 4
TTL_S = 2.0
"""Of a member's lease (hams_wire.limits.member_lease_s)."""


@asynccontextmanager
async def graph_with_etcd(
    tmp_path: Path, members: int = 1, extra: tuple[str, ...] = ()
) -> AsyncIterator[tuple[GraphRun, LocalEtcd]]:
    """Nobody is replaced for being slow: what happens here happens because of etcd."""
    etcd = await LocalEtcd.start(tmp_path / "etcd", members=members, extra=extra)
    try:
        async with run_graph(
            "line.yaml", tmp_path, etcd=etcd.endpoints, graphs=changed(tmp_path, SILENT)
        ) as run:
            yield run, etcd
    finally:
        await asyncio.gather(*(member.kill() for member in etcd.members))


@pytest.mark.parametrize(
    "away_s",
    [
        pytest.param(0.5 * TTL_S, id="less than the TTL"),
        pytest.param(2.5 * TTL_S, id="more than the TTL", marks=pytest.mark.by_hand),
    ],
)
async def test_f26_etcd_away_stops_nothing_and_its_return_is_no_mass_failure(
    tmp_path: Path, away_s: float
) -> None:
    async with graph_with_etcd(tmp_path) as (run, etcd), run.load(clients=4):
        await run.answered(40)
        before = await run.epochs()
        etcd.members[0].signal(signal.SIGSTOP)
        served = len(run.replies)
        await run.stalled(away_s)
        await run.answered(40)
        assert len(run.replies) > served
        etcd.members[0].signal(signal.SIGCONT)
        await etcd.members[0].wait_ready(60)
        await run.answered(100)
        await run.redundant()
        await run.stalled(PROBED_S)
        assert await run.epochs() == before, "no failover"
        target = await run.kill("first", "primary")
        await run.until(lambda topology: topology.find("first").primary not in (None, target.id))
        await run.answered(20)
        await run.redundant()
    run.verify()


@pytest.mark.by_hand
async def test_f26_etcd_killed_and_started_again(tmp_path: Path) -> None:
    async with graph_with_etcd(tmp_path) as (run, etcd), run.load(clients=4):
        await run.answered(40)
        before = await run.epochs()
        await etcd.members[0].kill()
        await run.answered(200)
        await etcd.members[0].start()
        await etcd.members[0].wait_ready(60)
        await run.answered(100)
        await run.redundant()
        await run.stalled(PROBED_S)
        assert await run.epochs() == before
    run.verify()


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGSTOP, id="paused", marks=pytest.mark.by_hand),
    ],
)
async def test_f27_a_lost_etcd_leader_and_then_a_lost_primary(tmp_path: Path, fault: signal.Signals) -> None:
    async with graph_with_etcd(tmp_path, members=3) as (run, etcd), run.load(clients=4):
        await run.answered(40)
        before = await run.epochs()
        # the first started is the leader as a rule; a follower is the smaller fault
        etcd.members[0].signal(fault)
        await run.answered(100)
        await run.stalled(PROBED_S)
        assert await run.epochs() == before, "no spurious failover"
        await run.kill("first", "primary")
        await run.answered(40)
        await run.redundant()
    run.verify()


async def test_f28_an_etcd_without_space_stops_no_service_and_recovery_goes_on_after_its_repair(
    tmp_path: Path,
) -> None:
    async with graph_with_etcd(tmp_path, extra=("--quota-backend-bytes=3000000",)) as (run, etcd):
        client = EtcdCoordination(etcd.endpoints)
        try:
            async with run.load(clients=4):
                await run.answered(40)
                before = await run.epochs()
                revision = ABSENT
                with contextlib.suppress(NoSpace):
                    while True:
                        revision = await client.compare_and_swap("big", revision, bytes(200_000))
                await run.answered(100)
                assert await run.epochs() == before, "serving needs no write"
                await run.kill("first", "primary")
                await run.stalled(1.0)
                assert await run.epochs() == before, "nothing can be committed"
                await free_space(etcd.members[0].endpoint, client, "big")
                await run.answered(40)
                await run.redundant()
        finally:
            await client.close()
    run.verify()


async def managers(run: GraphRun) -> list[InstanceStatus]:
    """In the order of their ranks."""
    return sorted(
        (item for item in (await run.view()).instances if item.role == "manager"), key=lambda item: item.id
    )


async def until_epoch(run: GraphRun, operator: str, epoch: int) -> None:
    await run.until(lambda topology: topology.find(operator).epoch >= epoch)


async def test_f29_managers_that_die_while_a_recovery_runs(tmp_path: Path) -> None:
    chance = random.Random(29)
    async with run_graph("line.yaml", tmp_path) as run, run.load(clients=4):
        for turn in range(ROUNDS):
            await run.answered(20)
            operator = ("first", "last")[turn % 2]
            leader, second = (await managers(run))[:2]
            await run.kill(operator, "primary")
            await run.stalled(chance.uniform(0.0, 0.12))  # a moment of the recovery
            run.strike(leader)
            if turn % 2:
                await run.stalled(chance.uniform(0.0, 0.05))
                run.strike(second)
            await run.answered(20)
            await run.redundant()
    run.verify()


async def test_f29_two_managers_at_once_commit_one_recovery(tmp_path: Path) -> None:
    graphs = changed(tmp_path, SILENT)
    async with run_graph("line.yaml", tmp_path, graphs=graphs) as run, run.load(clients=4):
        for operator in ("first", "last"):
            await run.answered(20)
            before = (await run.epochs())[operator]
            leader = (await managers(run))[0]
            await run.kill(operator, "primary")
            run.strike(leader, "proxy", signal.SIGSTOP)  # the next one takes over; then both are at it
            await until_epoch(run, operator, before + 1)
            run.strike(leader, "proxy", signal.SIGCONT)
            await run.answered(20)
            await run.redundant()
            assert (await run.epochs())[operator] == before + 1, "one commit wins"
    run.verify()
