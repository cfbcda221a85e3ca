"""A primary is killed under requests with deadlines: each gets a reply or the 504 of its deadline, and
nothing of the history is wrong. How many are in time depends on the machine: `hams bench schedule --live
--kill` tells."""

import pytest
from benchmarks.arrivals import SMOOTH
from benchmarks.live_report import Cell
from benchmarks.schedule_live import measure_cell
from benchmarks.workloads import cases_named

pytestmark = [pytest.mark.process, pytest.mark.etcd, pytest.mark.timeout(180)]


async def test_f1_a_primary_dies_under_deadlines_and_each_request_is_answered_once() -> None:
    cell = Cell(cases_named("three-modal")[0], 3.0, "distribution", 0.4, SMOOTH, 14.0, 1, 5.0)
    row = await measure_cell(cell)
    assert len(row["kills"]) >= 1
    assert not row["failed"], row["failed"]
    assert row["ok"], row["violations"]
    assert row["live"] > 0.0, "somebody was in time"
    assert row["serve"] == ["Distribution"]
    assert row["forecast"]["batches"] > 0
    assert row["forecast"]["point"] == 0, "a promoted backup knows what the lost primary had learnt"
