"""What a proxy publishes of its scheduling policy."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hams_graph import load
from hams_protocol.batching import Timing
from hams_protocol.stateless import StatelessMachine
from hams_sidecar.arena import Arena
from hams_sidecar.model.images import CaptureCounts
from hams_sidecar.proxy_metrics import Work, samples
from hams_wire.exposition import exposition
from hams_wire.scheduling import PolicyQueue, queue_of

from .test_timeliness import GRAPH


class Instance:
    """What samples are taken of."""

    def __init__(self, file: Path) -> None:
        self.machine = StatelessMachine(load(file), "s", "s-1", queue_of)
        self.stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()


def page(tmp_path: Path, batch: str, prepare: Any = None) -> dict[str, float]:
    """The page of an instance with this batch policy, by series."""
    (tmp_path / "graph.yaml").write_text(GRAPH.replace("maxDelay: 0", batch))
    instance: Any = Instance(tmp_path / "graph.yaml")
    if prepare is not None:
        prepare(instance.machine)
    arena = Arena(1 << 20)
    text = exposition(samples(instance, arena, Work(), CaptureCounts())).decode()
    arena.close()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


async def test_first_in_first_out_publishes_nothing_of_scheduling(tmp_path: Path) -> None:
    assert not [name for name in page(tmp_path, "maxDelay: 0") if "policy" in name or "on_time" in name]


async def test_a_policy_publishes_its_name_and_counts_and_one_that_learns_how_good_that_is(
    tmp_path: Path,
) -> None:
    deadline = page(tmp_path, "policy: Deadline")
    assert deadline['hams_proxy_policy{name="Deadline"}'] == 1
    assert deadline["hams_proxy_shed_total"] == 0
    assert not [name for name in deadline if "forecast" in name or "profile" in name]

    def serve(machine: Any) -> None:
        queue: PolicyQueue = machine.queue
        queue.calibration.batches, queue.calibration.predicted_s = 3, 0.25
        queue.profiles.resets = 2
        queue.finished(1, Timing(0.1, 0.1, True), 1.0)

    learns = page(tmp_path, "policy: Distribution", serve)
    assert learns['hams_proxy_policy{name="Distribution"}'] == 1
    assert learns["hams_proxy_forecast_batches_total"] == 3
    assert learns["hams_proxy_forecast_seconds_total"] == pytest.approx(0.25)
    assert learns["hams_proxy_profile_resets_total"] == 2


class Held:
    """A state that is kept for another operator."""

    nbytes = 4096


async def test_a_keeper_says_whose_states_it_keeps_and_how_large_they_are(tmp_path: Path) -> None:
    def keeps(machine: Any) -> None:
        machine.keeper.states["counter"] = Held()

    assert not [name for name in page(tmp_path, "maxDelay: 0") if "kept" in name]
    assert page(tmp_path, "maxDelay: 0", keeps)['hams_proxy_kept_bytes{operator="counter"}'] == 4096
