"""What a proxy publishes at `/metrics` of its probe port. It only looks."""

from collections.abc import Iterator
from dataclasses import dataclass

from hams_protocol.frontend import FrontendMachine
from hams_protocol.stateful import StatefulMachine
from hams_protocol.stateless import StatelessMachine
from hams_schedule.calibration import BANDS
from hams_schedule.profile import Profiles
from hams_schedule.summary import SHARES, summaries
from hams_sidecar.arena import Arena
from hams_sidecar.model.images import CaptureCounts
from hams_wire.batch_times import batch_summaries, class_number
from hams_wire.exposition import Sample
from hams_wire.node import Node
from hams_wire.scheduling import PolicyQueue

P99 = SHARES.index(0.99)


@dataclass(slots=True)
class Work:
    """What was given to the model so far, batches that were undone included."""

    batches: int = 0
    units: int = 0


def samples(node: Node, memory: Arena, work: Work, captured: CaptureCounts) -> Iterator[Sample]:
    """All samples of one proxy."""
    machine = node.machine
    assert isinstance(machine, StatefulMachine | StatelessMachine), "a proxy's machine"
    used = memory.stats()
    yield Sample("hams_proxy_role", "1 for the role of this instance.", 1, {"role": machine.role})
    yield Sample(
        "hams_proxy_ready", "Whether its role is served.", int(machine.ready and not node.stopped.done())
    )
    yield Sample(
        "hams_proxy_generation",
        "Generation of the topology that it knows.",
        machine.knowledge.topology.generation,
    )
    yield Sample("hams_proxy_core_seconds_total", "Time in the protocol core.", node.shell.core.seconds)
    yield Sample("hams_proxy_core_steps_total", "Steps of the protocol core.", node.shell.core.calls)
    yield Sample("hams_proxy_batches_total", "Batches given to the model.", work.batches)
    yield Sample("hams_proxy_units_total", "Units given to the model in batches.", work.units)
    yield Sample("hams_proxy_queued_units", "Units that wait for the model.", len(machine.queue))
    if isinstance(machine.queue, PolicyQueue):
        yield from _schedule(machine.queue)
    yield Sample("hams_proxy_memory_bytes", "Shared memory in use: tensors and states.", used.used)
    yield Sample("hams_proxy_memory_capacity_bytes", "How large it may grow.", used.capacity)
    yield Sample("hams_proxy_memory_waiters", "Arrivals that wait for room there.", used.waiting)
    for op, nbytes in kept_states(machine):
        yield Sample(
            "hams_proxy_kept_bytes",
            "Bytes that it keeps of another operator's state.",
            nbytes,
            {"operator": op},
        )
    if isinstance(machine, StatefulMachine):
        yield Sample("hams_proxy_epoch", "Epoch of its replica set.", machine.epoch)
        yield Sample("hams_proxy_version", "Newest version held, -1 without a state.", machine.version)
        yield Sample("hams_proxy_captures_total", "Captures of the state.", captured.captures)
        yield Sample(
            "hams_proxy_captured_bytes_total", "Bytes of the states captured.", captured.state_nbytes
        )
        yield Sample(
            "hams_proxy_compared_bytes_total",
            "Bytes compared with the capture before.",
            captured.compared_nbytes,
        )
        yield Sample(
            "hams_proxy_changed_bytes_total",
            "Bytes copied, and sent to each backup: what had changed, and states below 16 KiB.",
            captured.copied_nbytes,
        )
        if machine.primary is not None:
            yield Sample(
                "hams_proxy_durable_version", "Newest version that is durable.", machine.primary.durable
            )
            yield Sample(
                "hams_proxy_undurable_versions",
                "Versions executed and not yet durable.",
                machine.primary.undurable,
            )


def kept_states(machine: StatefulMachine | StatelessMachine | FrontendMachine) -> list[tuple[str, int]]:
    """The operators whose states an instance keeps while they have no backup, with the bytes of each."""
    return sorted((op, held.nbytes) for op, held in machine.keeper.states.items())


def _schedule(queue: PolicyQueue) -> Iterator[Sample]:
    """What its scheduling policy does."""
    yield Sample("hams_proxy_policy", "1 for the scheduling policy that serves.", 1, {"name": queue.serves})
    for name, about, count in (
        ("on_time", "Units whose batch ended in time for the rest of their path.", queue.on_time),
        ("late", "Units whose batch ended too late for that.", queue.late_runs),
    ):
        yield Sample(f"hams_proxy_{name}_total", about, count)
    for reason, count in queue.shed_by.items():
        about = "Units that were answered instead of being run."
        yield Sample("hams_proxy_shed_total", about, count, {"reason": reason})
    for phase, spent in (("decide", queue.deciding), ("plan", queue.planning)):
        about = "Time that the policy took: who runs next, and plans beside a batch."
        yield Sample("hams_proxy_schedule_seconds_total", about, spent.seconds, {"phase": phase})
        about = "How often it was asked."
        yield Sample("hams_proxy_schedule_calls_total", about, spent.calls, {"phase": phase})
    if queue.learns:
        yield from _learning(queue)


def _learning(queue: PolicyQueue) -> Iterator[Sample]:
    """Decisions and knowledge of a policy that learns. Labels are bounded: kinds of decisions are few,
    classes and sizes as `batch_times` says, and no name that a client gives is one."""
    for kind, count in queue.decisions.items():
        yield Sample("hams_proxy_decisions_total", "Batches chosen, by how.", count, {"kind": kind})
    yield Sample(
        "hams_proxy_plans_stale_total", "Batches planned ahead and not run as planned.", queue.stale_plans
    )
    profiles, calibration = queue.profiles, queue.calibration
    yield Sample("hams_proxy_profile_samples", "Times that were learnt from.", profiles.samples)
    yield Sample(
        "hams_proxy_profile_ignored_total", "Times that no clock can have measured.", profiles.ignored
    )
    yield Sample("hams_proxy_profile_resets_total", "Classes forgotten on a drift.", profiles.resets)
    for name, about, value in (
        ("batches", "Batches whose time was predicted.", calibration.batches),
        ("seconds", "Their times, as predicted.", calibration.predicted_s),
        ("measured_seconds", "Their times, as measured.", calibration.measured_s),
        ("error_seconds", "Absolute differences of the two.", calibration.error_s),
        ("on_time", "Chances of their units to be in time.", calibration.expected_on_time),
        ("measured_on_time", "Their units that were in time.", calibration.on_time),
    ):
        yield Sample(f"hams_proxy_forecast_{name}_total", about, value)
    for number, band in enumerate(calibration.bands, 1):
        up_to = {"chance": f"{number / BANDS:g}"}
        for name, about, value in (
            ("units", "Units by the chance to be in time that was predicted, up to `chance`.", band.units),
            ("chances", "The sum of these chances.", band.expected),
            ("kept", "How many of these units were in time.", band.on_time),
        ):
            yield Sample(f"hams_proxy_reliability_{name}_total", about, value, up_to)
    yield from _times(profiles, queue.max_rows)


def _times(profiles: Profiles, max_rows: int) -> Iterator[Sample]:
    """How long requests and batches take by what is learnt. No more statistics than these: each one is a
    series of each class."""
    for item in summaries(profiles):
        number = class_number(profiles, item)
        of = "all" if number is None else str(number)
        about = "What a request of a class takes alone, as learnt."
        for stat, value in (("mean", item.mean), ("p99", item.quantiles[P99])):
            yield Sample("hams_proxy_class_seconds", about, value, {"class": of, "stat": stat})
    for size in batch_summaries(profiles, max_rows):
        about = "What a batch of so many requests of any class takes, as learnt."
        for stat, value in (("mean", size.mean), ("p99", size.quantiles[P99])):
            yield Sample("hams_proxy_batch_seconds", about, value, {"rows": str(size.rows), "stat": stat})
