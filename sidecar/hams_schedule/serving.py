"""The policy `Distribution` as it serves: beside the simple policies, under the guard.

The simple policies know what the profile knows, as the times of batches of each size.
"""

from collections.abc import Callable
from typing import Final

from hams_schedule.classes import REST
from hams_schedule.guard import Guarded, Pace, Shadow
from hams_schedule.limits import table_rows_max
from hams_schedule.policies.base import Policy
from hams_schedule.policies.clipper import Clipper
from hams_schedule.policies.deadline import Deadline, told_apart
from hams_schedule.policies.distribution import Distribution
from hams_schedule.policies.fifo import FifoPolicy
from hams_schedule.policies.measured import SizeTimes
from hams_schedule.policies.nexus import Nexus
from hams_schedule.profile import Profiles
from hams_schedule.scheduler import U
from hams_schedule.steps import AT_ONCE, Steps
from hams_schedule.tables import SIZES

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
        replayed.keeps_tables = True
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
    largest = told_apart(min(max_rows, table_rows_max))
    for size in (*SIZES, table_rows_max):
        for time in times_of(profiles, size) if size <= largest else ():
            policy.times.observe(size, time)
    return policy


def size_times(profiles: Profiles, max_rows: int) -> list[list[float]]:
    """Times of batches of 1 .. `max_rows` rows, `table_rows_max` at most: those of `SIZES` and of the largest
    as `times_of` says, interpolated in between. A call of `plan` makes a policy ready, so this has to be
    short."""
    most = min(max_rows, table_rows_max)
    result: list[list[float]] = []
    for size in [*[size for size in SIZES if size < most], most]:
        times, last = times_of(profiles, size), len(result)
        before = result[-1] if result else times
        for rows in range(last + 1, size + 1):
            part = (rows - last) / (size - last)
            result.append([low + part * (high - low) for low, high in zip(before, times, strict=True)])
    return result


def times_of(profiles: Profiles, rows: int) -> list[float]:
    """Times of a batch of `rows` rows of the mixture of all classes, at evenly spaced quantiles; one guess
    before anything is known."""
    grid, cdfs = profiles.grid, profiles.cdfs()
    if grid is None or not cdfs:
        return [max(profiles.prior_p99_s, profiles.longest_s, 1e-3)]
    base, slope = profiles.times.law(rows)
    return [
        base + slope * grid.quantile(cdfs[REST], ((n + 0.5) / QUANTILES) ** (1.0 / rows))
        for n in range(QUANTILES)
    ]
