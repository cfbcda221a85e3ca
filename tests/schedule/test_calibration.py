"""Predictions against what was measured: of a law that is known the two agree."""

import math
import random

import pytest

from hams_schedule.calibration import BANDS, Calibration, Forecast, forecast_of
from hams_schedule.profile import Profiles

from .kit import LONG_S, SHORT_S, Took, Work, profiles, time_of


def test_what_is_predicted_of_a_learnt_law_is_what_is_measured() -> None:
    learnt, drawn = profiles(), random.Random(5)
    calibration = Calibration()
    classes = [learnt.classes.class_of(app, math.nan) for app in ("short", "long")]
    for number in range(600):
        rows = drawn.choice((1, 2, 3, 4))
        units = [Work(due=number + drawn.uniform(0.01, 0.25), cls=drawn.choice(classes)) for _ in range(rows)]
        means = [(SHORT_S, LONG_S)[classes.index(unit.cls)] for unit in units]
        took = time_of(max(drawn.gauss(mean, mean / 10) for mean in means), rows)
        forecast = forecast_of(units, float(number), learnt)
        assert forecast is not None
        calibration.add(forecast, units, Took(took), took, number + took)
    assert calibration.batches == 600
    assert calibration.predicted_s == pytest.approx(calibration.measured_s, rel=0.03)
    assert calibration.expected_on_time / calibration.units == pytest.approx(
        calibration.on_time / calibration.units, abs=0.03
    )
    assert 0.0 < calibration.error_s < 0.2 * calibration.measured_s
    assert sum(band.units for band in calibration.bands) == calibration.units
    assert sum(band.on_time for band in calibration.bands) == calibration.on_time
    many = [band for band in calibration.bands if band.units >= 50]
    assert len(many) >= 2
    for band in many:
        assert band.on_time / band.units == pytest.approx(band.expected / band.units, abs=0.15)


@pytest.mark.parametrize(("chance", "number"), [(0.0, 0), (0.09, 0), (0.1, 1), (0.55, 5), (1.0, 9)])
def test_a_unit_is_counted_in_the_band_of_the_chance_that_was_predicted(chance: float, number: int) -> None:
    calibration = Calibration()
    calibration.add(Forecast(0.1, [chance]), [Work(due=9.0)], Took(0.1), 0.1, 0.1)
    assert [band.units for band in calibration.bands] == [int(n == number) for n in range(BANDS)]
    assert (calibration.bands[number].expected, calibration.bands[number].on_time) == (chance, 1)


def test_units_without_a_deadline_are_neither_expected_nor_counted_in_time() -> None:
    learnt, calibration = profiles(), Calibration()
    units = [Work(), Work(due=9.0)]
    forecast = forecast_of(units, 0.0, learnt)
    assert forecast is not None
    assert math.isnan(forecast.chances[0])
    assert forecast.chances[1] == pytest.approx(1.0, abs=0.01)
    calibration.add(forecast, units, Took(0.1), 0.1, 0.1)
    assert (calibration.units, calibration.on_time) == (1, 1)


@pytest.mark.parametrize(
    ("timing", "measured_s"), [(Took(0.1, ok=False), 0.1), (Took(0.0), 0.0), (Took(1.0), math.inf)]
)
def test_a_batch_that_failed_or_that_no_clock_has_measured_is_not_counted(
    timing: Took, measured_s: float
) -> None:
    calibration, units = Calibration(), [Work(due=9.0)]
    forecast = forecast_of(units, 0.0, profiles())
    assert forecast is not None
    calibration.add(forecast, units, timing, measured_s, 1.0)
    assert (calibration.batches, calibration.units) == (0, 0)


def test_nothing_is_predicted_before_anything_is_learnt() -> None:
    assert forecast_of([Work()], 0.0, Profiles()) is None


def test_a_unit_whose_deadline_was_not_known_when_its_batch_was_predicted_is_not_counted() -> None:
    calibration = Calibration()
    calibration.add(Forecast(0.1, [math.nan, 0.5]), [Work(due=9.0), Work(due=9.0)], Took(0.1), 0.1, 0.1)
    assert calibration.units == 1
