"""F16 to F20 with real processes on hosts of their own: cables pulled, one direction lost, links that flap.
Nobody is told by a reset."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.faults.harness import PATIENT, PROBED_S, REDUNDANT_S, SILENT, GraphRun, changed, run_on_hosts
from tests.faults.hosts import available

pytestmark = [
    pytest.mark.process,
    pytest.mark.etcd,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not available(), reason="network namespaces need root"),
]

FLAPS = 30 if os.environ.get("HAMS_FAULTS_FULL") else 4


async def epoch(run: GraphRun, operator: str) -> int:
    return (await run.topology()).find(operator).epoch


async def primary_other_than(run: GraphRun, operator: str, instance: str) -> None:
    """Until another instance is the primary."""
    await run.until(lambda topology: topology.find(operator).primary not in (instance, None))


async def test_f16_f17_f18_the_host_of_a_primary_is_gone_and_returns(tmp_path: Path) -> None:
    async with (
        run_on_hosts("line.yaml", tmp_path, graphs=changed(tmp_path, SILENT)) as (run, hosts),
        run.load(clients=4),
    ):
        for operator in ("first", "last"):
            await run.answered(40)
            target = await run.find(operator, "primary")
            before = await epoch(run, operator)
            since = await run.moment()
            async with run.leases_unbroken(since, target.id):
                hosts.isolate(target.id)
                await primary_other_than(run, operator, target.id)
                await run.answered(40)
                assert await run.replaced_before_its_lease_ended(since, target.id)
            reason = (await run.failover(operator, before + 1)).reason
            assert reason.startswith(f"{target.id}: silent for "), (
                f"the heartbeats tell, no lease and no connection: {reason}"
            )
            hosts.rejoin(target.id)
            await run.answered(40)
            await run.redundant()
            assert target.id in (await run.topology()).revoked
            # it hears of that by itself, and its process comes back under another id
            async with asyncio.timeout(REDUNDANT_S):
                while target.id in {item.id for item in (await run.view()).instances}:
                    await run.answered(1)
            assert await epoch(run, operator) == before + 1
    run.verify()


async def test_f18_a_primary_cut_from_etcd_serves_on(tmp_path: Path) -> None:
    async with (
        run_on_hosts("line.yaml", tmp_path, graphs=changed(tmp_path, SILENT)) as (run, hosts),
        run.load(clients=4),
    ):
        await run.answered(40)
        target = await run.find("first", "primary")
        with hosts.cuts((target.id, "etcd")):
            async with asyncio.timeout(REDUNDANT_S):  # its lease runs out
                while target.id in await run.registered():
                    await run.answered(1)
            await run.stalled(PROBED_S)
            await run.answered(40)
            assert (await run.topology()).find("first").primary == target.id, "a failover for nothing"
        await run.answered(40)
        await run.redundant()
    run.verify()


async def test_f18_a_primary_cut_from_its_backup_goes_on_without_it(tmp_path: Path) -> None:
    async with (
        run_on_hosts("line.yaml", tmp_path, graphs=changed(tmp_path, PATIENT)) as (run, hosts),
        run.load(clients=4),
    ):
        await run.answered(40)
        target, backup = await run.find("first", "primary"), await run.find("first", "backup")
        before = await epoch(run, "first")
        with hosts.cuts((target.id, backup.id), (backup.id, target.id)):
            await run.until(lambda topology: backup.id not in topology.find("first").in_sync)
            await run.answered(100)
            assert await epoch(run, "first") == before, "the primary did it by itself, without a failover"
        await run.redundant()
        await run.answered(40)
    run.verify()


async def test_f18_a_primary_cut_from_downstream_alone(tmp_path: Path) -> None:
    async with run_on_hosts("line.yaml", tmp_path) as (run, hosts), run.load(clients=4):
        await run.answered(40)
        target = await run.find("first", "primary")
        active = [item for item in (await run.view()).instances if item.operator == "middle"]
        pairs = [pair for item in active for pair in ((target.id, item.id), (item.id, target.id))]
        with hosts.cuts(*pairs):
            await run.stalled(1.0)
        await run.answered(40)
        await run.redundant()
    run.verify()


async def test_f19_a_primary_that_speaks_and_does_not_hear(tmp_path: Path) -> None:
    async with (
        run_on_hosts("line.yaml", tmp_path, graphs=changed(tmp_path, SILENT)) as (run, hosts),
        run.load(clients=4),
    ):
        await run.answered(40)
        target = await run.find("first", "primary")
        before = await epoch(run, "first")
        others = [item.id for item in (await run.view()).instances if item.operator and item.id != target.id]
        with hosts.cuts(("here", target.id), *((other, target.id) for other in others)):
            await primary_other_than(run, "first", target.id)
            await run.answered(40)
            assert await epoch(run, "first") == before + 1
        await run.answered(40)
        await run.redundant()
        assert await epoch(run, "first") == before + 1, "one fault, one promotion"
    run.verify()


async def test_f19_a_bridge_two_reach_a_third_and_not_each_other(tmp_path: Path) -> None:
    async with run_on_hosts("line.yaml", tmp_path) as (run, hosts), run.load(clients=4):
        await run.answered(40)
        target = await run.find("last", "primary")
        before = await epoch(run, "last")
        # managers and frontends; etcd and all operators reach it
        with hosts.cuts((target.id, "here"), ("here", target.id)):
            await run.stalled(1.0)
        await run.answered(40)
        await run.redundant()
        assert await epoch(run, "last") <= before + 1
    run.verify()


async def test_f19_a_bridge_a_primary_and_its_backup_do_not_reach_each_other(tmp_path: Path) -> None:
    """No manager sees a fault: the primary finds out by itself that nothing passes, and drops the backup."""
    async with run_on_hosts("line.yaml", tmp_path) as (run, hosts), run.load(clients=4):
        await run.answered(40)
        primary, backup = await run.find("first", "primary"), await run.find("first", "backup")
        before = await epoch(run, "first")
        with hosts.cuts((primary.id, backup.id), (backup.id, primary.id)):
            await run.until(lambda topology: backup.id not in topology.find("first").in_sync)
            await run.answered(40)
            assert await epoch(run, "first") == before
        await run.answered(40)
        await run.redundant()
    run.verify()
    print(f"\nslowest reply {run.took_s(1.0):.2f} s of {len(run.replies)}")


@pytest.mark.by_hand
async def test_f20_a_flapping_link(tmp_path: Path) -> None:
    async with run_on_hosts("line.yaml", tmp_path) as (run, hosts), run.load(clients=4):
        await run.answered(40)
        target = await run.find("first", "primary")
        seen = [await epoch(run, "first")]
        for _ in range(FLAPS):
            hosts.isolate(target.id)
            await asyncio.sleep(1.0)  # the scenario itself: one second off, one second on
            hosts.rejoin(target.id)
            await asyncio.sleep(1.0)
            seen.append(await epoch(run, "first"))
        assert seen == sorted(seen)
        assert seen[-1] - seen[0] <= 2, f"a flapping link deposes a primary once, not each time: {seen}"
        await run.answered(40)
        await run.redundant()
    run.verify()
