"""F43 with real processes: replacements come late, as models take long to load."""

import asyncio
from pathlib import Path

import pytest

from tests.faults.harness import GraphRun, changed, run_graph

pytestmark = [pytest.mark.process, pytest.mark.etcd, pytest.mark.timeout(300)]

CLIENTS = 16
LATE = (
    'entrypoint: "nonce.models:Tally", config: {stateBytes: 65536}',
    'entrypoint: "nonce.models:Slow", config: {stateBytes: 65536, loadS: 6}',
)


async def everybody_answered(run: GraphRun, since: float) -> None:
    """Until every client has had an answer since then: what it had asked before is answered by then, too."""
    waiting = set(range(CLIENTS))
    while waiting:
        await run.answered(1)
        waiting -= {int(item.key[1:].split("-")[0]) for item in run.replies if item.answered > since}


@pytest.mark.by_hand
async def test_f43_no_request_waits_until_the_replacement_of_a_dead_primary_is_in_sync(
    tmp_path: Path,
) -> None:
    async with (
        run_graph("line.yaml", tmp_path, graphs=changed(tmp_path, LATE)) as run,
        run.load(clients=CLIENTS),
    ):
        for operator in ("first", "last", "first"):
            await run.answered(10 * CLIENTS)
            await run.kill(operator, "primary")
            await everybody_answered(run, asyncio.get_running_loop().time())
            result = (await run.topology()).find(operator)
            assert not result.in_sync, "the replacement was sooner than the last answer"
            await run.redundant()
    run.verify()


async def test_f43_a_state_that_loses_both_its_members_goes_on_from_its_keeper(tmp_path: Path) -> None:
    async with (
        run_graph("line.yaml", tmp_path, graphs=changed(tmp_path, LATE)) as run,
        run.load(clients=CLIENTS),
    ):
        await run.answered(10 * CLIENTS)
        await run.kill("first", "primary")
        replica_set = (await run.until(lambda topology: bool(topology.find("first").keepers))).find("first")
        assert not replica_set.in_sync
        run.strike(next(item for item in (await run.view()).instances if item.id == replica_set.primary))
        await run.until(lambda topology: topology.find("first").epoch > replica_set.epoch)
        await run.answered(10 * CLIENTS)
        await run.redundant()
    assert not run.lines("lost")
    run.verify()
