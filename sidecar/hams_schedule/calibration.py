"""Whether what is learnt is true: the times of batches as they were predicted, against those measured.

A prediction is made while its batch runs, from what was known before it ended. Sums only rise, so any two
looks at them tell how good predictions were in between. Nothing is decided by it.
"""

import math
from collections.abc import Sequence

from hams_schedule.profile import Profiles
from hams_schedule.scheduler import BatchTiming, Unit


class Forecast:
    """What is expected of one running batch: its time in seconds, and how many units will be in time."""

    __slots__ = ("on_time", "seconds")

    def __init__(self, seconds: float, on_time: float) -> None:
        self.seconds = seconds
        self.on_time = on_time


class Calibration:
    """Sums over the batches that were predicted and gave outputs. `error_s`: of the absolute differences;
    `expected_on_time`: of the chances of their units to be in time, `on_time`: how many were. Units without a
    deadline are in neither."""

    def __init__(self) -> None:
        self.batches = 0
        self.predicted_s = 0.0
        self.measured_s = 0.0
        self.error_s = 0.0
        self.expected_on_time = 0.0
        self.on_time = 0
        self.units = 0

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
        self.expected_on_time += forecast.on_time
        for unit in units:
            if unit.due < math.inf:
                self.units += 1
                self.on_time += unit.due >= now


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
    on_time = 0.0
    for unit in units:
        if unit.due < math.inf:
            left = unit.due - since - base
            on_time += grid.chance(law, left / slope) if slope > 0.0 else float(left >= 0.0)
    return Forecast(base + slope * grid.mean(law), on_time)
