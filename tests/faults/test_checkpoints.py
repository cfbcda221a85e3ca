"""F32 and api.md, "State lost": checkpoints of a running graph, and a graph that begins from them."""

import asyncio
import shutil
from pathlib import Path

import pytest

from hams_checkpoints.folder import CheckpointFolder
from hams_graph import load
from hams_operator.local.supervisor import Supervisor
from hams_protocol.graph import Graph
from tests.faults.harness import BLOCKING_RESTART, REDUNDANT_S, changed, run_graph

pytestmark = [pytest.mark.process, pytest.mark.etcd, pytest.mark.timeout(300)]


async def written(folder: CheckpointFolder, above: int) -> int:
    """Until a checkpoint of more than `above` versions is there; its version."""
    async with asyncio.timeout(REDUNDANT_S):
        while True:
            match = next(folder.heads(), None)
            if match is not None and match[1].version > above:
                return match[1].version
            await asyncio.sleep(0.1)


async def test_f32_a_graph_begins_from_its_newest_whole_checkpoints(tmp_path: Path) -> None:
    graphs = changed(tmp_path, ("stateful: {", "stateful: {checkpoint: {every: 1s, keep: 2, dir: saved}, "))
    name = load(graphs / "line.yaml").data.name
    folder = CheckpointFolder(str(graphs / "saved"), name, "first")
    async with run_graph("line.yaml", tmp_path, graphs=graphs) as run:
        async with run.load(clients=4):
            await run.answered(40)
            older = await written(folder, 0)
            await run.answered(40)
            newer = await written(folder, older)
            await run.redundant()
        count = len(run.replies)
    run.verify()
    (_, newest), (_, before) = list(folder.heads())[:2]
    assert older < newer <= newest.version <= count
    assert await first_count(tmp_path / "again", graphs) == newest.version + 1
    cut = next(folder.heads())[0]
    cut.write_bytes(cut.read_bytes()[:-7])
    assert await first_count(tmp_path / "torn", graphs) == before.version + 1


async def first_count(folder: Path, graphs: Path) -> int:
    """What the graph counts first when it begins from a copy of these checkpoints."""
    copied = shutil.copytree(graphs, folder / "graphs")

    def make(
        graph: Graph, path: Path, port: int | None, history: Path | None, etcd: str | None
    ) -> Supervisor:
        supervisor = Supervisor(graph, path, port, history, etcd)
        supervisor.restore = True
        return supervisor

    async with run_graph("line.yaml", folder, graphs=copied, make=make) as run:
        reply = await run.ask(1.0, key="after")
    assert reply.status == 200
    return int(str(reply.tensor("first")))


async def test_f13_a_lost_state_begins_again_from_its_newest_checkpoint(tmp_path: Path) -> None:
    graphs = changed(
        tmp_path,
        BLOCKING_RESTART,
        ("stateful: {", "stateful: {checkpoint: {every: 1s, keep: 2, dir: saved}, "),
    )
    folder = CheckpointFolder(str(graphs / "saved"), load(graphs / "line.yaml").data.name, "first")
    async with run_graph("line.yaml", tmp_path, graphs=graphs) as run, run.load(clients=4):
        await run.answered(40)
        await written(folder, 10)
        await run.redundant()
        for item in (await run.view()).instances:
            if item.operator == "first":
                run.strike(item)
        topology = await run.until(lambda replica_set: replica_set.find("first").restarted_in > 0)
        replica_set = topology.find("first")
        end = replica_set.end_of(replica_set.restarted_in - 1)
        assert end is not None
        assert end > 10
        await run.answered(40)
        await run.redundant()
    assert {reply.status for reply in run.replies} == {200}
    assert end in {line["version"] for line in run.lines("lost") if line["op"] == "first"}, (
        "and what is left is reported"
    )
