"""Histories in which the copy of a log has many parts, of which few are on their way at a time."""

import pytest

from hams_protocol import limits
from hams_sim.faults import MIXED
from hams_sim.simulate import Spec, simulate

SHAPES = ("single", "relay")


@pytest.mark.parametrize("lag", [limits.joiner_lag_entries_max, 8])
@pytest.mark.parametrize("fault", ["copied-log", "few-replies-copied", "frontends-lost", "F40", MIXED])
def test_logs_that_are_copied_in_many_parts_hold(fault: str, lag: int, monkeypatch: pytest.MonkeyPatch):
    """With little lag allowed joiners that hold a log have to begin anew."""
    monkeypatch.setattr(limits, "copy_part_entries_max", 2)
    monkeypatch.setattr(limits, "copy_window_bytes_max", 1)
    monkeypatch.setattr(limits, "joiner_lag_entries_max", lag)
    outcomes = [simulate(Spec(3_000 + number, SHAPES[number % 2], fault)) for number in range(8)]
    assert not [outcome.spec.command() for outcome in outcomes if not outcome.ok]
