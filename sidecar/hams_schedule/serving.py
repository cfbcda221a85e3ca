"""The policy `Distribution` as it is meant to serve: beside the simple policies, under the guard.

The simple policies know what the profile knows, as the times of batches of each size.
"""

from collections.abc import Callable
from typing import Final

from hams_schedule.classes import REST
from hams_schedule.guard import Factory, Guarded, Shadow
from hams_schedule.policies.clipper import Clipper
from hams_schedule.policies.deadline import Deadline
from hams_schedule.policies.distribution import Distribution
from hams_schedule.policies.fifo import FifoPolicy
from hams_schedule.policies.measured import SizeTimes
from hams_schedule.policies.nexus import Nexus
from hams_schedule.profile import Profiles
from hams_schedule.scheduler import SchedulerPort, U

QUANTILES: Final = 16
"""Times of a size that stand for its law."""
SEED: Final = 7_919
"""Whatever it is, replays of one round share it."""


def guarded(max_rows: int, shed: bool, profiles: Profiles, slo_s: float) -> Guarded[U]:
    """`Distribution` under the guard. `slo_s` is what most requests have."""
    distribution: Distribution[U] = Distribution(max_rows, shed, profiles)
    serving: dict[str, Callable[[], SchedulerPort[U]]] = {
        "distribution": lambda: distribution,
        "deadline": lambda: _deadline(max_rows, shed, profiles),
        "fifo": lambda: FifoPolicy(max_rows),
    }
    if shed:  # these two know no other way to treat what is late
        serving["nexus"] = lambda: Nexus(max_rows, SizeTimes(size_times(profiles, max_rows)), slo_s)
        serving["clipper"] = lambda: Clipper(max_rows, size_times(profiles, max_rows), SEED)

    def shadow() -> Distribution[Shadow]:
        replayed: Distribution[Shadow] = Distribution(max_rows, shed, profiles, learns=False)
        replayed.tables = distribution.tables
        return replayed

    shadows: dict[str, Factory] = {
        "distribution": shadow,
        "deadline": lambda: _deadline(max_rows, shed, profiles),
        "fifo": lambda: FifoPolicy(max_rows),
    }
    if shed:
        shadows["nexus"] = lambda: Nexus(max_rows, SizeTimes(size_times(profiles, max_rows)), slo_s)
        shadows["clipper"] = lambda: Clipper(max_rows, size_times(profiles, max_rows), SEED)
    return Guarded(serving, shadows, profiles, SEED)


def _deadline(max_rows: int, shed: bool, profiles: Profiles) -> Deadline[U]:
    policy: Deadline[U] = Deadline(max_rows, shed, profiles.prior_p99_s)
    for rows, times in enumerate(size_times(profiles, max_rows), 1):
        for time in times:
            policy.times.observe(rows, time)
    return policy


def size_times(profiles: Profiles, max_rows: int) -> list[list[float]]:
    """Times of batches of 1 .. `max_rows` rows of the mixture of all classes, at evenly spaced quantiles."""
    grid, cdfs = profiles.grid, profiles.cdfs()
    if grid is None or not cdfs:
        return [[max(profiles.prior_p99_s, profiles.longest_s, 1e-3)] for _ in range(max_rows)]
    result: list[list[float]] = []
    for rows in range(1, max_rows + 1):
        base, slope = profiles.times.law(rows)
        result.append(
            [
                base + slope * grid.quantile(cdfs[REST], ((n + 0.5) / QUANTILES) ** (1.0 / rows))
                for n in range(QUANTILES)
            ]
        )
    return result
