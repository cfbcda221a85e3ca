"""F41 with real processes: memory and files stay flat over many requests with failovers in between."""

import os
from pathlib import Path

import pytest

from tests.faults.harness import changed, run_graph

pytestmark = [pytest.mark.process, pytest.mark.by_hand, pytest.mark.etcd, pytest.mark.timeout(3600)]

FULL = bool(os.environ.get("HAMS_FAULTS_FULL"))
REQUESTS = 100_000 if FULL else 10_000
ROUNDS = 10 if FULL else 4
GROWTH_BYTES_MAX = 24 << 20
"""What allocators may keep; a leak of one kept object per request would be far above it over the full
length."""


def private_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * 4096


async def test_f41_memory_is_flat_over_many_requests_with_failovers_between(tmp_path: Path) -> None:
    # what is kept on purpose is no leak
    graphs = changed(tmp_path, ("requestTimeout: 20s", "requestTimeout: 20s, repliesKept: 500"))
    async with run_graph("line.yaml", tmp_path, graphs=graphs) as run:
        async with run.load(clients=16, keep=True):
            await run.answered(REQUESTS // 5, within_s=600)
            warm = {
                item.id: private_bytes(item.proxy_pid)
                for item in (await run.view()).instances
                if item.proxy_pid
            }
            for turn in range(ROUNDS):
                await run.kill(("first", "last")[turn % 2], "primary")
                await run.answered((REQUESTS - REQUESTS // 5) // ROUNDS, within_s=600)
                await run.redundant()
            instances = (await run.view()).instances
        stayed = {
            item.id: private_bytes(item.proxy_pid) - warm[item.id]
            for item in instances
            if item.id in warm and item.proxy_pid
        }
        assert len(stayed) >= len(warm) - 2 * ROUNDS
        assert max(stayed.values()) < GROWTH_BYTES_MAX, stayed
    run.verify()
