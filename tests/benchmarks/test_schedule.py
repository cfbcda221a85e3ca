"""`hams bench schedule`: its workloads are what they say, its judgement is right, and a bad option is
told."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from benchmarks.arrivals import BURSTY, SMOOTH, Arrivals
from benchmarks.schedule import judged, main
from benchmarks.schedule_cells import COLD_REQUESTS, Job, cells
from benchmarks.virtual_time import Outcome
from benchmarks.workloads import (
    CASES,
    SLO_FACTORS,
    Trace,
    Worker,
    by_length,
    capacity_per_s,
    p99_s,
    published,
    trace_of,
    worker_of,
)

from benchmarks import schedule, schedule_micro, virtual_time, workloads
from hams_schedule.policies.fifo import FifoPolicy


def test_there_are_125_cells_and_each_has_its_published_rates() -> None:
    assert len(CASES) == len({case.name for case in CASES}) == 25
    cells = [published(case.name, factor) for case in CASES for factor in SLO_FACTORS]
    assert all(len(cell) == 4 and all(0.0 <= rate <= 1.0 for rate in cell.values()) for cell in cells)
    assert all(sum(mode.weight for mode in case.modes) == pytest.approx(1.0) for case in CASES)
    assert published("std-1", 2.5) == {}


@pytest.mark.parametrize("arrivals", [SMOOTH, BURSTY])
def test_a_trace_is_the_same_for_the_same_seed_and_has_its_load(arrivals: Arrivals) -> None:
    case = CASES[0]
    trace = trace_of(case, 0.6, arrivals, 4_000, 3)
    assert trace.digest() == trace_of(case, 0.6, arrivals, 4_000, 3).digest()
    assert trace.digest() != trace_of(case, 0.6, arrivals, 4_000, 4).digest()
    assert trace.arrivals == sorted(trace.arrivals)
    rate = len(trace.arrivals) / trace.arrivals[-1] / capacity_per_s(case)
    assert rate == pytest.approx(0.6, rel=0.3 if arrivals is BURSTY else 0.05)


def test_the_emulated_model_pads_to_the_longest() -> None:
    worker = worker_of(CASES[0])
    assert worker.run([0.02, 0.1], 1.0) == pytest.approx(0.001 + 0.1 * 1.25)
    assert p99_s(CASES[0]) == pytest.approx(0.106, abs=0.003)


@pytest.mark.parametrize("policy", virtual_time.POLICIES)
def test_each_policy_serves_a_trace_and_learns_nothing_that_it_may_not(policy: str) -> None:
    case = next(case for case in CASES if case.name == "three-modal")
    trace = trace_of(case, 0.4, SMOOTH, 150, 1)
    profiles = virtual_time.profiles_of(case, "app", 1, 300)
    slo = 3 * p99_s(case)
    chosen = virtual_time.policy_of(policy, case, slo, profiles, 1)
    classify = lambda app, feature: profiles.classify(*virtual_time.known("app", app, feature))  # noqa: E731
    outcome = virtual_time.run(chosen, trace, worker_of(case), slo, classify)
    assert 0.3 < outcome.rate() <= 1.0
    assert outcome.batches > 0


def test_what_is_known_of_a_request_is_what_was_asked_for() -> None:
    assert virtual_time.known("both", 3, 1.5) == ("3", 1.5)
    assert virtual_time.known("app", 3, 1.5)[0] == "3"
    assert math.isnan(virtual_time.known("none", 3, 1.5)[1])
    assert virtual_time.known("feature", 3, 1.5) == ("", 1.5)


def row(lead: dict[str, tuple[float, float]]) -> dict[str, object]:
    rates = {"distribution": 0.9, **{name: 0.9 - gap for name, (gap, _) in lead.items()}}
    return {"case": "x", "slo": 2.0, "rates": rates, "lead": lead}


def test_a_cell_is_lost_beyond_two_standard_errors_and_the_allowance() -> None:
    rows = judged(
        [
            row({"nexus": (-0.0129, 0.005), "orloj-mean": (-0.5, 0.001), "orloj-p25": (0.5, 0.001)}),
            row({"nexus": (-0.0131, 0.005), "orloj-mean": (0.1, 0.001), "orloj-p25": (-0.2, 0.001)}),
        ]
    )
    assert rows[0]["orloj"] == "orloj-mean", "the better statistic over the table"
    assert rows[0]["lost_to"] == ["orloj-mean"]
    assert rows[1]["lost_to"] == ["nexus"]


def test_under_its_guard_it_is_judged_alike() -> None:
    cell = row({"nexus": (0.1, 0.001)}) | {"guarded_lead": {"nexus": (-0.02, 0.001), "orloj-p25": (0.0, 0.0)}}
    judged([cell])
    assert (cell["lost_to"], cell["guarded_lost_to"]) == ([], ["nexus"])


def test_after_a_cold_start_ours_may_be_a_fiftieth_behind_itself_with_a_profile() -> None:
    rows = judged([row({"profiled": (-0.0199, 0.001)}), row({"profiled": (-0.0201, 0.5)})])
    assert [cell["lost_to"] for cell in rows] == [[], ["profiled"]]


def test_a_cold_start_is_judged_after_its_first_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that loses all of the first 300 requests, and no other, has lost nothing."""
    served: list[int] = []

    def learning(policy: object, trace: Trace, *_: object, **__: object) -> Outcome:
        served.append(len(trace.arrivals))
        return Outcome([number >= COLD_REQUESTS for number in range(len(trace.arrivals))])

    monkeypatch.setattr("benchmarks.schedule_cells.run", learning)
    cold = Job(CASES[0], (2.0,), ("distribution", "guarded"), 0.6, BURSTY, "app", 400, (1, 2), 0)
    (cell,) = cells(cold)
    assert cell["rates"] == {"distribution": 1.0, "guarded": 1.0, "profiled": 1.0}
    assert served == [400] * 6, "all are served"
    (warm,) = cells(replace(cold, samples=20))
    assert warm["rates"] == {"distribution": 0.25, "guarded": 0.25}


def test_a_cold_run_says_how_far_it_is_behind_a_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "cold.json"
    words = ["--cold", "--cases", "std-1", "--slo", "3", "--requests", "700", "--out", str(out)]
    status = main([*words, "--policies", "distribution,guarded,fifo"])
    (cell,) = json.loads(out.read_text())["rows"]
    assert cell["rates"].keys() == {"distribution", "guarded", "fifo", "profiled"}
    told = capsys.readouterr().out
    assert "of 1 cells: distribution is within 0.02 of itself with a profile, after 300 requests" in told
    assert "guarded less distribution: mean" in told
    assert "as good as all others" not in told, "there are none"
    assert status == (1 if cell["lost_to"] or cell["guarded_lost_to"] else 0)


def test_a_run_writes_its_table_and_plots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "schedule.json"
    status = main(
        [
            "--cases",
            "std-1",
            "--slo",
            "2,3",
            "--requests",
            "200",
            "--policies",
            "distribution,nexus",
            "--out",
            str(out),
        ]
    )
    result = json.loads(out.read_text())
    assert status in (0, 1)
    assert [cell["slo"] for cell in result["rows"]] == [2.0, 3.0]
    assert result["rows"][0]["published"]["orloj"] == 0.76
    assert out.with_suffix(".svg").exists()
    assert (tmp_path / "schedule-mean.svg").exists()
    assert "std-1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--cases", "nothing"], "no case is named 'nothing'"),
        (["--slo", "two"], "expected numbers separated by commas, found 'two'"),
        (["--slo", "-1"], "expected numbers between 0 and 1000"),
        (["--policies", "best"], "expected policies of"),
        (["--requests", "0"], "expected"),
        (["--rho", "0"], "expected"),
        (["--rho", "nan"], "expected"),
        (["--seeds", "0"], "expected"),
        (["--cold", "--requests", "300"], "--requests: expected more than 300 with --cold"),
    ],
)
def test_a_bad_option_is_told_in_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_the_short_form_is_25_cells_of_few_requests() -> None:
    parser_jobs: list[schedule.Job] = []

    def remember(jobs: list[schedule.Job], _: str) -> dict[str, object]:
        parser_jobs.extend(jobs)
        raise SystemExit(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "measure", remember)
        with pytest.raises(SystemExit):
            main(["--short"])
    assert sum(len(job.factors) for job in parser_jobs) == 25
    assert {job.requests for job in parser_jobs} == {schedule.SHORT_REQUESTS}
    assert workloads.ROWS_MAX == 32


def test_what_an_arrival_and_a_decision_cost_is_judged(capsys: pytest.CaptureFixture[str]) -> None:
    costs = {f"{name}_{share}_us": 4.0 for name in ("add", "decide", "full") for share in ("p50", "p99")}
    row = {"kind": "usual", "pending": 10_000, **costs, "decide_p99_us": 100.1}
    goals = schedule_micro.verdicts(row)
    assert [(goal["what"], goal["met"]) for goal in goals] == [("add_p50_us", True), ("decide_p99_us", False)]
    schedule_micro.print_table({"case": "x", "compiled": True, "rows": [row], "goals": goals, "fifo_us": 0.4})
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "Fifo: 0.40 us a unit, in batches of one, all calls together",
        "goal: add_p50 <= 5 us at 10,000 pending, compiled: 4 us: met",
        "goal: decide_p99 <= 100 us at 10,000 pending, compiled: 100.1 us: missed",
    ]


def test_batches_by_length_take_rows_times_the_longest_and_a_fixed_part() -> None:
    case = CASES[0]
    longer = by_length(case)
    assert longer.fixed_ms == pytest.approx(0.3 * 60)
    assert worker_of(longer).run([0.01, 0.04], 1.0) == pytest.approx(0.018 + 2 * 0.04)
    whole, parts = (workloads.draw(law, np.random.default_rng(3), 500)[0] for law in (case, longer))
    assert parts.tolist() == pytest.approx([max(time - 0.018, 0.05 * time) for time in whole])
    assert p99_s(longer) == pytest.approx(p99_s(case), rel=0.01), "alone a request takes what it took"


@pytest.mark.parametrize("policy", virtual_time.POLICIES)
def test_what_is_lost_with_its_batch_runs_again_after_an_outage(policy: str) -> None:
    case = next(case for case in CASES if case.name == "three-modal")
    trace = trace_of(case, 0.2, SMOOTH, 120, 1)
    profiles = virtual_time.profiles_of(case, "app", 1, 300)
    slo = 20 * p99_s(case)
    chosen = virtual_time.policy_of(policy, case, slo, profiles, 1)
    outages = virtual_time.outages_of(case, trace)
    assert outages
    assert all(later.at - one.at == pytest.approx(60 * p99_s(case)) for one, later in pairwise(outages))
    classify = lambda app, feature: profiles.classify(*virtual_time.known("app", app, feature))  # noqa: E731
    outcome = virtual_time.run(chosen, trace, worker_of(case), slo, classify, outages=outages)
    assert outcome.rate() > 0.9


def test_what_an_outage_meets_is_lost_for_as_long_as_it_lasts() -> None:
    trace = Trace([0.0, 1.2], [0, 0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0])
    run = lambda slo: virtual_time.run(  # noqa: E731
        FifoPolicy(1),
        trace,
        Worker(0.0, 1.0),
        slo,
        lambda *_: 0,
        outages=[virtual_time.ModelOutage(0.5, 2.0)],
    )
    assert run(3.4).on_time == [False, True]  # ends at 3.5, and at 4.5
    assert run(3.5).on_time == [True, True]
    assert run(3.2).on_time == [False, False]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--orloj-b", "0"], "expected 1e-9 to 1 per ms, found '0'"),
        (["--law", "sum"], "invalid choice: 'sum'"),
        (["--micro", "--outages"], "--outages: plays no part with --micro"),
        (["--dag", "--orloj-b", "0.001"], "--orloj-b: plays no part with --dag"),
    ],
)
def test_an_option_of_the_comparison_that_is_none_is_told(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err
