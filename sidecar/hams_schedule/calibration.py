"""Whether what is learnt is true: the times of batches as they were predicted, against those measured.

A prediction is made while its batch runs, from what was known before it ended. Sums only rise, so any two
looks at them tell how good predictions were in between. Nothing is decided by it.
"""

import math
from collections.abc import Sequence
from typing import Final

from hams_schedule.profile import Profiles
from hams_schedule.scheduler import BatchTiming, Unit

BANDS: Final = 10
"""Bands of chances that are counted apart, each a tenth wide."""


class Forecast:
    """The expected time of one running batch, in seconds, and for each unit the chance that it will be in
    time; NaN of one without a deadline."""

    __slots__ = ("chances", "seconds")

    def __init__(self, seconds: float, chances: list[float]) -> None:
        self.seconds = seconds
        self.chances = chances


class ChanceBand:
    """Units whose chance to be in time lay in one band: how many, the sum of their chances, and how many
    were in time."""

    __slots__ = ("expected", "on_time", "units")

    def __init__(self) -> None:
        self.units = 0
        self.expected = 0.0
        self.on_time = 0


class Calibration:
    """Sums over the batches that were predicted and gave outputs. `error_s`: of the absolute differences;
    `expected_on_time`: of the chances of their units to be in time, `on_time`: how many were. Units without a
    deadline are in neither. `bands`: the same by the chance that was predicted, lowest first."""

    def __init__(self) -> None:
        self.batches = 0
        self.predicted_s = 0.0
        self.measured_s = 0.0
        self.error_s = 0.0
        self.expected_on_time = 0.0
        self.on_time = 0
        self.units = 0
        self.bands = [ChanceBand() for _ in range(BANDS)]

    def add(
        self, forecast: Forecast, units: Sequence[Unit], timing: BatchTiming, measured_s: float, now: float
    ) -> None:
        """A batch that was predicted has ended, after `measured_s`. One that failed teaches nothing."""
        if not timing.ok or not 0.0 < measured_s < math.inf:
            return
        self.batches += 1
        self.predicted_s += forecast.seconds
        self.measured_s += measured_s
        self.error_s += abs(measured_s - forecast.seconds)
        for unit, chance in zip(units, forecast.chances, strict=True):
            if not math.isnan(chance):
                in_time = unit.due >= now
                band = self.bands[min(int(chance * BANDS), BANDS - 1)]
                band.units += 1
                band.expected += chance
                band.on_time += in_time
                self.units += 1
                self.expected_on_time += chance
                self.on_time += in_time


def forecast_of(units: Sequence[Unit], since: float, profiles: Profiles) -> Forecast | None:
    """What is expected of a batch that began at `since`; None: nothing is learnt yet."""
    tally: dict[int, int] = {}
    rows = 0
    for unit in units:
        tally[unit.cls] = tally.get(unit.cls, 0) + 1
        rows += unit.rows
    law = profiles.law(tuple(tally.items()))
    grid = profiles.grid
    if law is None or grid is None:
        return None
    base, slope = profiles.times.law(rows)
    chances: list[float] = []
    for unit in units:
        left = unit.due - since - base
        if unit.due == math.inf:
            chances.append(math.nan)
        else:
            chances.append(grid.chance(law, left / slope) if slope > 0.0 else float(left >= 0.0))
    return Forecast(base + slope * grid.mean(law), chances)
