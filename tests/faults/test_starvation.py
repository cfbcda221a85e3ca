"""F42: far too little CPU, and processes that hang: slow, not forgetful."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from benchmarks import starvation
from hams_operator.local import instances
from hams_operator.local.ports import free_ports
from tests.faults.harness import REDUNDANT_S, GraphRun, run_graph

pytestmark = [pytest.mark.process, pytest.mark.etcd, pytest.mark.timeout(900)]

FULL = bool(os.environ.get("HAMS_FAULTS_FULL"))
SECONDS = 300.0 if FULL else 30.0


@pytest.mark.by_hand
@pytest.mark.parametrize("share", [0.2, 0.08])
async def test_f42_a_graph_in_a_quota_of_a_part_of_a_core_loses_nothing_and_replaces_hardly_anybody(
    tmp_path: Path, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAMS_HOME", str(tmp_path / "home"))
    await starve(share, 0, tmp_path)


@pytest.mark.by_hand
async def test_f42_a_graph_beside_50_busy_loops_loses_nothing_and_replaces_hardly_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in a control group of its own, so that all of the graph weighs as much as one of them."""
    monkeypatch.setenv("HAMS_HOME", str(tmp_path / "home"))
    await starve(0.0, 50, tmp_path)


async def starve(share: float, loops: int, folder: Path) -> None:
    """One run in this quota, or beside so many loops, that is judged; skipped where that cannot be had."""
    try:
        starvation.ControlGroup("may-we").close()
    except OSError as error:
        pytest.skip(f"no control groups can be made here: {error}")
    port, _ = free_ports(2)
    read = await asyncio.to_thread(starvation.measure, share, loops, SECONDS, port, folder)
    assert starvation.judge(read) == [], read


async def test_f42_who_hangs_with_the_only_copy_of_a_state_is_not_killed_and_goes_on_when_it_wakes_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All who have a state are stopped, are called lost, get successors; the first one that wakes up has its
    role again, and no person is asked."""
    monkeypatch.setattr(instances, "hung_kill_s", 1.0)
    monkeypatch.setattr(instances, "hung_starved_s", 5.0)
    async with run_graph("line.yaml", tmp_path) as run:
        async with run.load(clients=4):
            await run.answered(40)
            holders = [item for item in (await run.view()).instances if item.operator == "first"]
            for item in holders:
                run.strike(item, "proxy", signal.SIGSTOP)
            await run.until(lambda topology: topology.find("first").lost)
            await aside(run, len(holders))
            await run.stalled(4 * instances.hung_kill_s)
            primary = next(item for item in holders if item.role == "primary")
            run.strike(primary, "proxy", signal.SIGCONT)
            replica_set = await run.until(lambda topology: not topology.find("first").lost)
            assert (replica_set.find("first").primary or "").startswith(primary.id)
            await run.answered(40)
            for item in holders:
                if item is not primary:
                    run.strike(item, "proxy", signal.SIGCONT)
            await run.redundant()
        assert not (await run.view()).losses, "nothing began again"
    run.verify()


async def aside(run: GraphRun, count: int) -> None:
    """Until so many that hang have successors."""
    async with asyncio.timeout(REDUNDANT_S):
        while len(run.supervisor._left) < count:
            await run.stalled(instances.hung_check_s)
