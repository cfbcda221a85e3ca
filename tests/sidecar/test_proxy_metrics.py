"""What a proxy publishes of its scheduling policy."""

import asyncio
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.wire.test_scheduling import unit

from hams_graph import load
from hams_protocol.batching import Timing
from hams_protocol.stateless import StatelessMachine
from hams_schedule.decision import ChoiceKind
from hams_schedule.limits import classes_max
from hams_sidecar.arena import Arena
from hams_sidecar.model.images import CaptureCounts
from hams_sidecar.proxy_metrics import Work, samples
from hams_wire.exposition import TimeSpent, exposition
from hams_wire.scheduling import PolicyQueue, queue_of

from .test_timeliness import GRAPH


class Instance:
    """What samples are taken of."""

    def __init__(self, file: Path) -> None:
        self.machine = StatelessMachine(load(file), "s", "s-1", queue_of)
        self.stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.shell = SimpleNamespace(core=TimeSpent(7, 0.25))


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
    reasons = [name for name in deadline if name.startswith("hams_proxy_shed_total")]
    assert reasons == [f'hams_proxy_shed_total{{reason="{why}"}}' for why in ("overdue", "path", "time")]
    learnt = ("forecast", "reliability", "profile", "decisions", "stale", "class", "batch_seconds")
    assert not [name for name in deadline if any(word in name for word in learnt)]

    def serve(machine: Any) -> None:
        queue: PolicyQueue = machine.queue
        queue.calibration.batches, queue.calibration.predicted_s = 3, 0.25
        queue.calibration.bands[3].units, queue.calibration.bands[3].on_time = 8, 5
        queue.profiles.resets = 2
        queue.finished(1, Timing(0.1, 0.1, True), 1.0)

    learns = page(tmp_path, "policy: Distribution", serve)
    assert learns['hams_proxy_policy{name="Distribution"}'] == 1
    assert learns["hams_proxy_forecast_batches_total"] == 3
    assert learns["hams_proxy_forecast_seconds_total"] == pytest.approx(0.25)
    assert learns["hams_proxy_profile_resets_total"] == 2
    assert learns['hams_proxy_reliability_units_total{chance="0.4"}'] == 8
    assert learns['hams_proxy_reliability_kept_total{chance="0.4"}'] == 5


async def test_decisions_are_counted_by_kind_and_times_by_class_and_size_with_no_name_of_a_client(
    tmp_path: Path,
) -> None:
    def serve(machine: Any) -> None:
        profiles = machine.queue.profiles
        for number in range(400):
            app, seconds = (f"client-{number % 40}", 0.02) if number % 2 else ("client-long", 0.2)
            profiles.classify(app, math.nan)
            profiles.observe_alone(app, math.nan, seconds)
        profiles.settle()
        for number in range(5):
            machine.queue.add(unit(number, 100.0), float(number))
            machine.queue.started(number, machine.queue.take(float(number)), float(number))
            machine.queue.plan(float(number), 0.01)
            machine.queue.finished(number, Timing(0.02, 0.02, True), number + 0.02)

    shown = page(tmp_path, "policy: Distribution", serve)
    kinds = {name: count for name, count in shown.items() if name.startswith("hams_proxy_decisions_total")}
    assert len(kinds) == len(ChoiceKind)
    assert sum(kinds.values()) == 5
    assert shown["hams_proxy_plans_stale_total"] == 0
    for phase, calls in (("decide", 10), ("plan", 5)):
        assert shown[f'hams_proxy_schedule_calls_total{{phase="{phase}"}}'] == calls
        assert shown[f'hams_proxy_schedule_seconds_total{{phase="{phase}"}}'] > 0
    assert shown['hams_proxy_class_seconds{class="all",stat="p99"}'] == pytest.approx(0.2, rel=0.1)
    of_classes = [name for name in shown if name.startswith("hams_proxy_class_seconds")]
    assert 2 < len(of_classes) <= 2 * classes_max
    assert shown['hams_proxy_batch_seconds{rows="1",stat="p99"}'] == pytest.approx(0.2, rel=0.1)
    assert not [name for name in shown if "client" in name]


class Held:
    """A state that is kept for another operator."""

    nbytes = 4096


async def test_a_keeper_says_whose_states_it_keeps_and_how_large_they_are(tmp_path: Path) -> None:
    def keeps(machine: Any) -> None:
        machine.keeper.states["counter"] = Held()

    assert not [name for name in page(tmp_path, "maxDelay: 0") if "kept" in name]
    assert page(tmp_path, "maxDelay: 0", keeps)['hams_proxy_kept_bytes{operator="counter"}'] == 4096


async def test_the_time_in_the_core_is_published(tmp_path: Path) -> None:
    shown = page(tmp_path, "maxDelay: 0")
    assert (shown["hams_proxy_core_steps_total"], shown["hams_proxy_core_seconds_total"]) == (7, 0.25)
