"""`hams load`: what it says of the traffic, and how it reads a duration."""

import pytest

from hams_load.traffic import TrafficTally
from hams_operator.cli.load import as_json, as_text
from hams_operator.cli.output import CommandError, seconds


def test_durations_are_read_as_people_write_them():
    assert [seconds(text) for text in ("60s", "500ms", "2m", "1h", "7")] == [60.0, 0.5, 120.0, 3600.0, 7.0]
    for text in ("", "s", "-1s", "0", "1d", "nan"):
        with pytest.raises(CommandError):
            seconds(text)


def test_what_came_of_the_traffic_is_told_to_programs_and_to_people():
    tally = TrafficTally(sent=2, ok=2, attempts=2, latencies_s=[0.01, 0.02], replied_s=[1.0, 1.5])
    assert as_json(tally)["good"] is True
    tally.failed["400: bad"] += 1
    assert as_json(tally)["good"] is False
    assert "1 x 400: bad" in as_text(tally, True)
