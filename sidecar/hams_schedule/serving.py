"""The policy `Distribution` as it serves: beside the simple policies, under the guard.

The simple policies know what the profile knows, as the times of batches of each size.
"""

from collections.abc import Callable
from typing import Final

from hams_schedule.classes import REST
from hams_schedule.guard import Guarded, Pace, Shadow
from hams_schedule.policies.base import Policy
from hams_schedule.policies.clipper import Clipper
from hams_schedule.policies.deadline import Deadline
from hams_schedule.policies.distribution import Distribution
from hams_schedule.policies.fifo import FifoPolicy
from hams_schedule.policies.measured import SizeTimes
from hams_schedule.policies.nexus import Nexus
from hams_schedule.profile import Profiles
from hams_schedule.scheduler import U
from hams_schedule.steps import AT_ONCE, Steps

QUANTILES: Final = 16
"""Times of a size that stand for its law."""
SEED: Final = 7_919
"""Whatever it is, replays of one round share it."""
DISTRIBUTION: Final = "distribution"
"""The policy that serves first."""


def guarded(
    max_rows: int,
    shed: bool,
    profiles: Profiles,
    max_delay_s: float = 0.0,
    pace: Pace | None = None,
    steps: Steps = AT_ONCE,
) -> Guarded[U]:
    """`Distribution` under the guard. The model idles for company for `max_delay_s` at most; `steps`: what
    an answer is worth by when it comes."""
    distribution: Distribution[U] = Distribution(
        max_rows, shed, profiles, steps=steps, max_delay_s=max_delay_s
    )

    def budget_s() -> float:
        return policy.budget_s()

    def shadow() -> Distribution[Shadow]:
        replayed: Distribution[Shadow] = Distribution(
            max_rows, shed, profiles, steps=steps, learns=False, max_delay_s=max_delay_s
        )
        replayed.tables = distribution.present_tables()
        return replayed

    serving: dict[str, Callable[[], Policy[U]]] = {DISTRIBUTION: lambda: distribution}
    shadows: dict[str, Callable[[], Policy[Shadow]]] = {DISTRIBUTION: shadow}
    _add_simple(serving, max_rows, shed, profiles, max_delay_s, budget_s)
    _add_simple(shadows, max_rows, shed, profiles, max_delay_s, budget_s)
    policy: Guarded[U] = Guarded(serving, shadows, profiles, SEED, pace or Pace(), steps)
    return policy


def _add_simple(
    to: dict[str, Callable[[], Policy[U]]],
    max_rows: int,
    shed: bool,
    profiles: Profiles,
    max_delay_s: float,
    budget_s: Callable[[], float],
) -> None:
    """Add the simple policies, by name. Two of them know no other way to treat what is late than to shed
    it."""
    to["deadline"] = lambda: _deadline(max_rows, shed, profiles)
    to["fifo"] = lambda: FifoPolicy(max_rows, max_delay_s)
    if shed:
        to["nexus"] = lambda: Nexus(max_rows, SizeTimes(size_times(profiles, max_rows)), budget_s())
        to["clipper"] = lambda: Clipper(max_rows, size_times(profiles, max_rows), SEED)


def _deadline(max_rows: int, shed: bool, profiles: Profiles) -> Deadline[U]:
    """`Deadline` with the times that the profile knows by now."""
    policy: Deadline[U] = Deadline(max_rows, shed, profiles.prior_p99_s, profiles.rest)
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
