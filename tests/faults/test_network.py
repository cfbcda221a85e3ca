"""F21: every message between the instances of a graph goes through a network that loses, repeats, reorders
and delays. F5: one copy gets stuck."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hams_operator.local.supervisor import Launch, Supervisor
from hams_protocol.graph import Graph
from tests.faults.forwarder import Forwarder, Rules
from tests.faults.harness import REDUNDANT_S, GraphRun, changed, free_ports, run_graph

pytestmark = [pytest.mark.process, pytest.mark.etcd, pytest.mark.timeout(600)]

FLOOR = 2_000 if os.environ.get("HAMS_FAULTS_FULL") else 60
"""Replies that have to come while the network is bad."""

FRONT = "127.7.0.1"
STATE_BYTES = 16 << 20


class BadNetwork(Supervisor):
    """Instances listen at one address and are dialled at another, where a forwarder of their own stands. Both
    have the same port."""

    def __init__(
        self, graph: Graph, file: Path, port: int | None, history: Path | None, etcd: str | None
    ) -> None:
        super().__init__(graph, file, port, history, etcd)
        self.forwarders: dict[str, Forwarder] = {}
        self.starting: list[asyncio.Task[None]] = []
        self.taken: set[int] = set()
        self.rules = Rules()
        self.cut_within_copy = ""

    def arrange(self, launch: Launch) -> Launch:
        port = free_ports().client
        # free again behind, but the forwarder of one that has ended still listens in front
        while port in self.taken:
            port = free_ports().client
        self.taken.add(port)
        forwarder = Forwarder(
            f"tcp:127.0.0.1:{port}", seed=len(self.forwarders), listen=f"tcp:{FRONT}:{port}"
        )
        forwarder.rules = self.rules
        if launch.of == self.cut_within_copy:
            forwarder.cut_after_bytes = STATE_BYTES // 4
        self.forwarders[launch.instance] = forwarder
        self.starting.append(asyncio.ensure_future(forwarder.start()))
        launch.arguments += ["--listen", f"tcp:127.0.0.1:{port}", "--advertise", FRONT]
        return launch

    def spoil(self, rules: Rules) -> None:
        """From now on the network is like this."""
        self.rules = rules
        for forwarder in self.forwarders.values():
            forwarder.rules = rules


@asynccontextmanager
async def bad_network(
    folder: Path, suspect_after: str = "150ms", *also: tuple[str, str]
) -> AsyncIterator[tuple[GraphRun, BadNetwork]]:
    made: list[BadNetwork] = []
    graphs = changed(folder, ("spec:\n", f"spec:\n  recovery: {{suspectAfter: {suspect_after}}}\n"), *also)

    def make(
        graph: Graph, file: Path, port: int | None, history: Path | None, etcd: str | None
    ) -> Supervisor:
        made.append(BadNetwork(graph, file, port, history, etcd))
        return made[0]

    try:
        async with run_graph("line.yaml", folder, make=make, graphs=graphs) as run:
            yield run, made[0]
    finally:
        await asyncio.gather(*made[0].starting)
        await asyncio.gather(*(forwarder.close() for forwarder in made[0].forwarders.values()))
        assert [error for forwarder in made[0].forwarders.values() for error in forwarder.errors] == []


@pytest.mark.parametrize(
    ("rules", "suspect_after"),
    [
        (Rules(drop=0.05), "150ms"),
        (Rules(repeat=0.1, reorder=0.1), "150ms"),
        (Rules(jitter_s=0.2), "1s"),  # silence is suspicious only beyond what the network does of itself
        (Rules(drop=0.05, repeat=0.05, reorder=0.05, jitter_s=0.05), "1s"),
    ],
    ids=["loss", "repeated and reordered", "jitter", "all of it"],
)
async def test_f21_a_bad_network_slows_and_spoils_nothing(
    tmp_path: Path, rules: Rules, suspect_after: str
) -> None:
    async with bad_network(tmp_path, suspect_after) as (run, network), run.load(clients=8):
        await run.answered(40)
        network.spoil(rules)
        await run.answered(FLOOR)
        network.spoil(Rules())
        await run.answered(40)
        await run.redundant()
    run.verify()


async def test_f21_links_clogged_one_by_one_and_opened_in_random_order(tmp_path: Path) -> None:
    chance = random.Random(21)
    async with bad_network(tmp_path) as (run, network), run.load(clients=4):
        await run.answered(40)
        names = [item.id for item in (await run.view()).instances if item.operator]
        chance.shuffle(names)
        for name in names:
            network.forwarders[name].cut()
            await run.stalled(0.02)
        chance.shuffle(names)
        for name in names:
            network.forwarders[name].heal()
            await run.stalled(0.02)
        await run.answered(40)
        await run.redundant()
    run.verify()


async def test_f5_a_primary_serves_on_while_a_joiner_is_stuck_within_its_copy(tmp_path: Path) -> None:
    large = ("stateBytes: 65536", f"stateBytes: {STATE_BYTES}")
    # nobody is suspected for being silent meanwhile
    async with bad_network(tmp_path, "60s", large) as (run, network), run.load(clients=4):
        await run.answered(20)
        before = await run.epochs()
        network.cut_within_copy = "first"
        await run.kill("first", "backup")
        joiner = (
            (await run.until(lambda topology: bool(topology.find("first").joining))).find("first").joining[0]
        )
        async with asyncio.timeout(REDUNDANT_S):
            while not network.forwarders[joiner].is_cut:
                await run.stalled(0.01)
        network.cut_within_copy = ""
        await run.answered(40)
        assert joiner in (await run.topology()).find("first").joining, (
            "all these were answered while the copy was under way"
        )
        assert not run.lines("apply", joiner)
        run.strike(next(item for item in (await run.view()).instances if item.id == joiner))
        await run.redundant()
        assert await run.epochs() == before, "the primary goes on, and nobody is promoted"
    run.verify()
