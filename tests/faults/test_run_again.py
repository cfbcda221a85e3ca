"""`mode: LineageStash` with real processes: what came after the newest stored state is run again
(protocol.md, section 9)."""

from pathlib import Path

import pytest

from hams_checkpoints.folder import CheckpointFolder
from hams_graph import load
from tests.faults.harness import changed, run_graph

pytestmark = [pytest.mark.process, pytest.mark.etcd, pytest.mark.timeout(300)]

STORED = "stateful: {checkpoint: {every: 1s, keep: 2, dir: saved, batches: 20}}"


def replayed(folder: Path) -> Path:
    return changed(
        folder,
        ("spec:\n", "spec:\n  mode: LineageStash\n"),
        ("stateful: {backups: 1}", STORED),
        ("nonce.models:Stamp", "nonce.models:SameStamp"),
        ("nonce.models:Tally", "nonce.models:SameTally"),
    )


@pytest.mark.parametrize("process", ["both", "model"])
async def test_a_primary_that_dies_under_load_is_run_again_and_nothing_is_lost_or_doubled(
    tmp_path: Path, process: str
) -> None:
    graphs = replayed(tmp_path)
    name = load(graphs / "line.yaml").data.name
    async with run_graph("line.yaml", tmp_path, graphs=graphs) as run, run.load(clients=4):
        for operator in ("first", "last"):
            await run.answered(40)
            await run.kill(operator, "primary", process)
            await run.answered(40)
            await run.redundant()
        topology = await run.topology()
        assert [topology.find(operator).epoch for operator in ("first", "last")] == [2, 2]
    run.verify()
    for operator in ("first", "last"):
        folder = CheckpointFolder(str(graphs / "saved"), name, operator)
        assert next(folder.heads())[1].epoch == 2, "the new primary stores its states, too"
