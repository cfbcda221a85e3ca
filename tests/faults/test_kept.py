"""F33: a living instance is revoked, and whoever could stand in for it dies: its state goes on, in the same
process, under a fresh id."""

from dataclasses import replace
from pathlib import Path

import pytest

from hams_operator.graph_status import InstanceStatus
from hams_wire import records
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.errors import NotApplied
from tests.faults.harness import BLOCKING, GraphRun, changed, run_graph

pytestmark = [pytest.mark.process, pytest.mark.etcd, pytest.mark.timeout(300)]


async def revoke(run: GraphRun, target: InstanceStatus) -> None:
    """As a manager does that was told that another member answers."""
    coordination = EtcdCoordination(run.supervisor.etcd_endpoints)
    key = records.topology_key(run.supervisor.uid)
    try:
        while True:
            entry = await coordination.get(key)
            assert entry is not None
            topology = records.decode_topology(entry.value)
            changed = replace(topology, revoked=(*topology.revoked, target.id)).next()
            try:
                await coordination.compare_and_swap(key, entry.mod_revision, records.encode_topology(changed))
                return
            except NotApplied:
                continue
    finally:
        await coordination.close()


async def test_f33_the_state_of_a_revoked_primary_goes_on_under_its_fresh_id(tmp_path: Path) -> None:
    graphs = changed(tmp_path, BLOCKING)
    async with run_graph("line.yaml", tmp_path, graphs=graphs) as run, run.load(clients=4):
        await run.answered(60)
        before = (await run.epochs())["first"]
        primary = await run.find("first", "primary")
        for item in (await run.view()).instances:
            if item.operator == "first" and item.id != primary.id:
                run.strike(item)
        await revoke(run, primary)
        topology = await run.until(lambda match: match.find("first").epoch > before)
        successor = topology.find("first").primary
        assert successor is not None
        assert successor.startswith(f"{primary.id}-")
        await run.answered(60)
        view = await run.redundant()
        match = next(item for item in view.instances if item.operator == "first" and item.role == "primary")
        assert (match.id, match.proxy_pid) == (successor, primary.proxy_pid), "and its supervisor knows it"
        await run.answered(20)
        assert not (await run.view()).losses, (
            "found again, if it was away for so long that it was called lost"
        )
    run.verify()


async def test_f33_the_logs_of_a_revoked_frontend_go_on_under_its_fresh_id(tmp_path: Path) -> None:
    async with run_graph("line.yaml", tmp_path) as run, run.load(clients=4):
        await run.answered(60)
        before = await run.epochs()
        shards = [name for name in before if name.startswith("F/")]
        owner = (await run.topology()).find(shards[0]).primary
        target = next(item for item in (await run.view()).instances if item.id == owner)
        for item in (await run.view()).instances:
            if item.role == "frontend" and item.id != owner:
                run.strike(item)
        await revoke(run, target)
        topology = await run.until(lambda found: found.find(shards[0]).epoch > before[shards[0]])
        assert (topology.find(shards[0]).primary or "").startswith(f"{owner}-")
        await run.answered(60)
        await run.redundant()
        await run.answered(20)
        assert not (await run.view()).losses, (
            "found again, if it was away for so long that it was called lost"
        )
    run.verify()
