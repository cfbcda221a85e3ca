"""`hams bench schedule --live`: its requests are those of virtual time, its graphs are ServiceGraphs, and
what it says of a run is what was seen."""

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.arrivals import BURSTY
from benchmarks.emulated import Counting, Emulated
from benchmarks.live_report import (
    P99_S,
    WARM_UP_S,
    Cell,
    Seen,
    after_kills,
    forecast_of,
    plot,
    policies_of,
    policy_seconds_of,
    predicted_and_kept,
    print_table,
    reliability_of,
    row_of,
)
from benchmarks.schedule import main
from benchmarks.schedule_live import POLICIES, scaled_trace, virtual, write_graph
from benchmarks.workloads import Trace, cases_named, p99_s, trace_of

from hams_graph import load
from hams_protocol.graph import SchedulePolicy, WhenLate
from hams_sdk.engine import Engine, UnitInput
from hams_sdk.specs import OperatorSpec, TensorSpec

CASE = cases_named("three-modal")[0]


def cell(policy: str = "distribution", kill_s: float = 0.0) -> Cell:
    return Cell(CASE, 3.0, policy, 0.6, BURSTY, 20.0, 1, kill_s)


def test_the_requests_are_those_of_virtual_time_in_another_time() -> None:
    trace, worker = scaled_trace(cell())
    drawn = trace_of(CASE, 0.6, BURSTY, len(trace.arrivals), 1)
    scale = P99_S / p99_s(CASE)
    assert trace.arrivals[-1] < WARM_UP_S + 20.0
    assert trace.arrivals[-1] > 0.7 * (WARM_UP_S + 20.0)
    assert trace.arrivals[:50] == pytest.approx([at * scale for at in drawn.arrivals[:50]])
    assert max(trace.alone) < 1.3 * P99_S
    assert worker.run([P99_S], 1.0) == pytest.approx(P99_S + worker.fixed_s)


@pytest.mark.parametrize("policy", POLICIES)
def test_virtual_time_begins_without_a_profile_and_gets_along(policy: str) -> None:
    trace, worker = scaled_trace(cell(policy))
    on_time = virtual(cell(policy), trace, worker)
    assert len(on_time) == len(trace.arrivals)
    assert 0.1 < sum(on_time) / len(on_time) <= 1.0


@pytest.mark.parametrize("kill_s", [0.0, 20.0])
@pytest.mark.parametrize("policy", POLICIES)
def test_each_graph_is_one(policy: str, kill_s: float, tmp_path: Path) -> None:
    _, worker = scaled_trace(cell())
    operator = load(write_graph(tmp_path, cell(policy, kill_s), worker)).operators["model"]
    assert operator.batch.policy is SchedulePolicy(policy.capitalize())
    assert operator.batch.when_late is (WhenLate.RUN if policy == "fifo" else WhenLate.SHED)
    assert (operator.stateful, operator.backups) == (kill_s > 0, int(kill_s > 0))
    assert json.loads(operator.model.config)["growth"] == CASE.growth
    assert (tmp_path / "emulated.py").is_file()


@pytest.mark.parametrize("model", [Emulated, Counting])
def test_the_model_takes_what_its_law_says_and_counts_what_it_has_seen(
    model: type[Emulated], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("benchmarks.emulated.time.monotonic", lambda: 100.0)
    monkeypatch.setattr("benchmarks.emulated.wait_until", waits.append)
    x, y = TensorSpec("alone", "FP64", ()), TensorSpec("seconds", "FP64", ())
    config = {"fixedS": 0.5, "growth": 0.25}
    spec = OperatorSpec("model", (x,), (y,), frozenset(["reply"]), model is Counting, config, None)
    made = Engine(model(), spec)
    made.initialize()
    units = [UnitInput(str(time), 1, [np.array([time])], {}) for time in (1.0, 4.0)]
    done = made.run(units, lambda: None)
    assert done.units is not None
    assert [unit.tensors[0][1].tolist() for unit in done.units] == [[5.5], [5.5]]  # type: ignore[union-attr]
    assert waits == [105.5]
    assert done.updated is (model is Counting)
    if isinstance(made.model, Counting):
        assert int(made.model.count) == 2


def test_what_is_told_counts_no_warm_up_and_pairs_the_requests() -> None:
    arrivals = [WARM_UP_S - 1.0, WARM_UP_S, WARM_UP_S + 1.0, WARM_UP_S + 2.0, WARM_UP_S + 3.0]
    trace = Trace(arrivals, [0] * 5, [0.0] * 5, [0.1] * 5, [1.0])
    seen = Seen([False, True, True, False, False], [0.001, 0.002])
    row = row_of(cell(), trace, [True, True, True, True, False], seen)
    assert (row["requests"], row["live"], row["virtual"], row["difference"]) == (4, 0.5, 0.75, -0.25)
    assert row["error"] == pytest.approx(0.2165, abs=1e-4)
    assert not row["agrees"]
    assert "kills" not in row


def test_the_requests_after_a_kill_are_counted_apart() -> None:
    arrivals = [float(at) for at in range(20, 40)]
    trace = Trace(arrivals, [0] * 20, [0.0] * 20, [0.1] * 20, [1.0])
    seen = Seen([at not in (25.0, 35.0) for at in arrivals], kills=[24.5, 33.5])
    seen.waited_s = {4: 0.2, 5: 0.3, 13: 0.4, 0: 9.0, 10: 9.0}
    told = after_kills(cell(), trace, [True] * 20, seen)
    assert told["slowest_ms"] == 400.0, "neither before the kills nor long after them"
    assert told["requests_after_kill"] == 4  # at 25, 26, 34, 35
    assert (told["live_after_kill"], told["virtual_after_kill"], told["stands"]) == (0.5, 1.0, False)
    assert (told["requests_under_way"], told["live_under_way"]) == (2, 1.0)  # at 24 and 33
    assert told["around"][3:6] == [(-1, 1.0), (0, 0.5), (1, 0.5)]
    none = after_kills(cell(), trace, [True] * 20, Seen([True] * 20))
    assert (none["live_after_kill"], none["stands"], none["requests_after_kill"]) == (None, False, 0)
    assert none["slowest_ms"] is None


def test_a_row_that_was_written_is_shown_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrivals = [WARM_UP_S + at / 10 for at in range(200)]
    trace = Trace(arrivals, [0] * 200, [0.0] * 200, [0.1] * 200, [1.0])
    seen = Seen([True] * 200, [0.001], ["request 7: 500 b'no'"], [WARM_UP_S + 5.0])
    seen.waited_s = {60: 0.123}
    row = row_of(cell(kill_s=5.0), trace, [True] * 200, seen)
    row |= {"load_average": [1.0, 2.0], "violations": ["I4: two answers"]}
    row["reliability"] = [(0.15, 0.25, 20), (0.95, 0.9, 180)]
    result = {"rows": [row], "rho": 0.6, "arrivals": "bursty", "seconds": 20.0}
    print_table(result)
    told = capsys.readouterr().out
    assert "after kill: 20 requests, live 1.000, virtual without a kill 1.000" in told
    assert "units run: 0.870 predicted to be in time at their operator, 0.835 were" in told
    assert "goal within 0.03: MISSED" in told
    assert "request 7: 500" in told
    assert "slowest answer to a request that was open at a kill or came after it: 123 ms" in told
    assert "I4: two answers" in told
    plot(json.loads(json.dumps(result)), tmp_path / "live.svg")  # as it is read again from its file
    plot(result, tmp_path / "live.svg")
    assert (tmp_path / "live.svg").exists()
    assert (tmp_path / "live-kill.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--kill", "20s"], "--kill: plays no part without --live"),
        (["--live", "--kill", "soon"], "expected a duration of 1s to 3600s, found 'soon'"),
        (["--live", "--seconds", "0"], "expected a duration"),
        (["--live", "--policies", "orloj-mean"], "nothing is served by 'orloj-mean'"),
        (["--live", "--cases", "nothing"], "no case is named 'nothing'"),
    ],
)
def test_a_bad_option_is_told_in_a_sentence(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


PAGE = """# TYPE hams_proxy_reliability_units counter
hams_proxy_reliability_units_total{chance="0.2",instance="a"} 3
hams_proxy_reliability_units_total{chance="0.2",instance="b"} 1
hams_proxy_reliability_chances_total{chance="0.2",instance="a"} 0.4
hams_proxy_reliability_chances_total{chance="0.2",instance="b"} 0.2
hams_proxy_reliability_kept_total{chance="0.2",instance="a"} 1
hams_proxy_reliability_kept_total{chance="0.2",instance="b"} 0
hams_proxy_reliability_units_total{chance="1",instance="a"} 12
hams_proxy_reliability_chances_total{chance="1",instance="a"} 11.4
hams_proxy_reliability_kept_total{chance="1",instance="a"} 12
hams_proxy_reliability_units_total{chance="0.5",instance="a"} 0
"""


def test_predicted_chances_are_summed_over_instances_by_band() -> None:
    bands = reliability_of(PAGE)
    assert bands == [(0.15, 0.25, 4), (0.95, 1.0, 12)]
    assert predicted_and_kept(bands) == (pytest.approx(0.75), pytest.approx(0.8125))
    assert reliability_of("hams_proxy_policy 1") == []
    assert predicted_and_kept([]) is None


def test_what_a_successor_predicts_is_told_beside_what_it_took() -> None:
    page = """hams_proxy_forecast_batches_total{operator="a"} 40
hams_proxy_forecast_seconds_total{operator="a"} 4.5
hams_proxy_forecast_measured_seconds_total{operator="a"} 5
hams_proxy_decisions_total{operator="a",kind="full"} 38
hams_proxy_decisions_total{operator="a",kind="point"} 2
"""
    assert forecast_of(page) == {"batches": 40.0, "predicted": 4.5, "measured": 5.0, "point": 2.0}
    assert forecast_of("hams_proxy_policy 1") is None


def test_a_policy_that_was_replaced_is_seen() -> None:
    page = (
        'hams_proxy_policy{operator="a",name="Fifo"} 1\nhams_proxy_policy{operator="b",name="Deadline"} 1\n'
    )
    assert policies_of(page) == ["Deadline", "Fifo"]


def test_the_time_of_policies_is_summed_by_phase() -> None:
    page = """hams_proxy_schedule_seconds_total{operator="a",phase="decide"} 0.25
hams_proxy_schedule_seconds_total{operator="b",phase="decide"} 0.5
hams_proxy_schedule_seconds_total{operator="a",phase="plan"} 1.5
hams_proxy_schedule_calls_total{operator="a",phase="plan"} 40
"""
    assert policy_seconds_of(page) == {"decide": 0.75, "plan": 1.5}
    assert policy_seconds_of("hams_proxy_policy 1") == {"decide": 0.0, "plan": 0.0}
