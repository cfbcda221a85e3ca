"""`hams bench schedule`: arrivals as a file has counted them, loads at which published rates are met, and
what is told of more requests than a model can do."""

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.arrivals import BURSTY, SMOOTH, NotCounted, counted
from benchmarks.schedule import main
from benchmarks.schedule_calibrated import calibrated, load_of
from benchmarks.schedule_cells import Job
from benchmarks.schedule_overload import Promising
from benchmarks.virtual_time import PROFILE_SAMPLES, Request, policy_of, profiles_of, run
from benchmarks.workloads import capacity_per_s, cases_named, p99_s, trace_of, worker_of

from hams_protocol.frontend.promises import UNKNOWN, Judgement
from hams_protocol.messages import Meta

CASE = cases_named("gpt-convAI")[0]
AZURE = "HashOwner,HashApp,HashFunction,Trigger,1,2,3\n"


def written(folder: Path, text: str) -> Path:
    file = folder / "calls.csv"
    file.write_text(text)
    return file


def test_the_functions_of_a_file_are_added_up_by_minute(tmp_path: Path) -> None:
    kind = counted(written(tmp_path, AZURE + "a,b,c,http,1,20,3\na,b,d,queue,0,10,3\n"))
    assert kind.minutes == (1, 30, 6)
    assert kind.name == "calls.csv"


def test_a_trace_of_a_file_has_its_load_and_its_busy_minutes(tmp_path: Path) -> None:
    kind = counted(written(tmp_path, AZURE + "a,b,c,http,10,100,40\n"))
    trace = trace_of(CASE, 0.5, kind, 40_000, 1)
    minute_s = 40_000 / (0.5 * capacity_per_s(CASE)) / 3
    shares = np.bincount((np.array(trace.arrivals) / minute_s).astype(int), minlength=3)[:3] / (40_000 / 3)
    assert sorted(shares) == pytest.approx([0.2, 0.8, 2.0], rel=0.1)
    assert trace.arrivals[-1] == pytest.approx(3 * minute_s, rel=0.05), "the load is what was asked for"
    others = {trace_of(CASE, 0.5, kind, 100, seed).digest() for seed in range(4)}
    assert len(others) == 4


def test_a_trace_covers_an_hour_of_a_day_however_few_requests_it_has(tmp_path: Path) -> None:
    minutes = range(1, 1441)
    counts = ",".join("900" if minute % 30 == 0 else "1" for minute in minutes)
    kind = counted(written(tmp_path, ",".join(map(str, minutes)) + "\n" + counts + "\n"))
    trace = trace_of(CASE, 0.5, kind, 2_000, 3)
    hour_s = 2_000 / (0.5 * capacity_per_s(CASE))
    assert trace.arrivals[-1] <= 2 * hour_s
    by_minute = np.bincount((np.array(trace.arrivals) / (hour_s / 60)).astype(int), minlength=60)
    assert max(by_minute) > 500, "two minutes of the hour have nearly all of it"


def test_kinds_of_arrivals_are_different_traces() -> None:
    assert trace_of(CASE, 0.5, SMOOTH, 100, 1).digest() != trace_of(CASE, 0.5, BURSTY, 100, 1).digest()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "line 1: expected columns named 1, 2, 3"),
        ("a,1,3\nb,1,2\n", "line 1: expected columns named 1, 2, 3 .. for minutes, found 'a, 1, 3'"),
        ("a,b\n1,2\n", "line 1: expected columns named 1, 2, 3 .. for minutes, found 'a, b'"),
        (AZURE + "a,b,c,http,1,2,three\n", "line 2, minute 3: expected a whole number, found 'three'"),
        (AZURE + "\na,b,c,http,1,2,3\na,b\n", "line 4, minute 1: expected a whole number, found ''"),
        (AZURE + "a,b,c,http,1,-2,3\n", "line 2, minute 2: expected a whole number, found '-2'"),
        (AZURE + "a,b,c,http,0,0,0\n", "expected calls, found none in 3 minutes"),
        (AZURE, "expected calls, found none in 3 minutes"),
        ("\x00,1\n\x00\n", "calls.csv"),
    ],
)
def test_a_file_that_counts_nothing_is_told_by_line_and_minute(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(NotCounted, match=r"calls\.csv") as raised:
        counted(written(tmp_path, text))
    assert told in str(raised.value)


def test_a_file_that_is_no_text_and_one_that_is_not_there_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    binary = tmp_path / "calls.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    for file, told in ((binary, "expected text with commas"), (tmp_path / "none.csv", "No such file")):
        with pytest.raises(SystemExit):
            main(["--trace", str(file)])
        assert told in capsys.readouterr().err


def job(rho: float = 0.6) -> Job:
    return Job(CASE, (2.0,), ("distribution",), rho, BURSTY, "app", 300, (1,), PROFILE_SAMPLES)


def test_the_load_is_sought_at_which_orloj_does_as_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rate falls with the load: 1 at none, 0 at 2. The published mean of the case is .762."""

    def cells(of: Job) -> list[dict[str, object]]:
        worse = {"orloj-p25": 0.1}
        rates = {name: 1.0 - of.rho / 2.0 - worse.get(name, 0.0) for name in of.policies}
        return [{"rates": rates} for _ in of.factors]

    monkeypatch.setattr("benchmarks.schedule_calibrated.cells", cells)
    load, statistic = load_of(job())
    assert load == pytest.approx(2.0 * (1.0 - 0.762), abs=0.02)
    assert statistic != "orloj-p25", "the worse one"


def test_the_jobs_are_run_at_the_loads_that_were_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "benchmarks.schedule_calibrated.of_all",
        lambda measure, jobs: [(0.3, "orloj-mean"), (0.7, "orloj-p50")],
    )
    found = calibrated([job(), job()])
    assert [one.rho for one in found] == [0.3, 0.7]
    assert [one.orloj for one in found] == ["orloj-mean", "orloj-p50"]
    assert {one.arrivals.sd for one in found} == {0.1}


def test_a_calibrated_run_shows_ours_beside_the_paper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.schedule_calibrated.load_of", by_name)
    out = tmp_path / "out.json"
    main(["--calibrated", "--cases", "gpt*", "--requests", "200", "--slo", "2,3", "--out", str(out)])
    result = json.loads(out.read_text())
    assert result["rho"] == "calibrated"
    assert [row["rho"] for row in result["rows"]] == [0.5, 0.5, 0.052, 0.052]
    assert [row["orloj"] for row in result["rows"]] == ["orloj-p50"] * 2 + ["orloj-mean"] * 2
    told = capsys.readouterr().out
    assert "of 4 cells: as good as the published Orloj in" in told
    assert told.count("no load is the same") == 2
    assert (tmp_path / "out-mean.svg").exists()


def by_name(of: Job) -> tuple[float, str]:
    return (0.5, "orloj-p50") if of.case.name == CASE.name else (0.052, "orloj-mean")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--calibrated", "--rho", ".4"], "--rho: plays no part with --calibrated"),
        (["--calibrated", "--policies", "fifo"], "--policies: plays no part with --calibrated"),
        (["--overload", "2", "--cold"], "--cold: plays no part with --overload"),
        (["--overload", "2", "--policies", "nexus"], "nothing is served by 'nexus'"),
        (["--overload", "2", "--micro"], "expected one of --micro and --overload"),
        (["--dag", "--cases", "std-1"], "--cases: plays no part with --dag"),
        (["--seconds", "5"], "--seconds: plays no part without --live"),
    ],
)
def test_an_option_that_plays_no_part_is_refused(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert told in capsys.readouterr().err


def test_nearly_all_of_who_is_let_in_under_overload_is_in_time_and_the_others_are_told_at_once() -> None:
    slo_s = 3 * p99_s(CASE)
    trace = trace_of(CASE, 1.5, SMOOTH, 2_000, 1)
    profiles = profiles_of(CASE, "app", 1, 500)
    outcomes = []
    for door in (None, Promising(slo_s, trace.apps, named=True)):
        policy = policy_of("deadline", CASE, slo_s, profiles, 1)
        more = {} if door is None else {"door": door}
        outcomes.append(run(policy, trace, worker_of(CASE), slo_s, lambda app, _: app, **more))
    plain, promised = outcomes
    assert plain.refused == 0
    assert len(plain.shed_after_s) > 200, "what cannot be in time is shed"
    assert promised.refused > 200
    broken = [1.0 - sum(outcome.on_time) / (2_000 - outcome.refused) for outcome in outcomes]
    assert broken[1] < 0.5 * broken[0], broken
    assert promised.rate() > 0.5 * plain.rate()


def test_who_was_answered_is_open_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, list[float]]] = []

    def judge(_: object, meta: Meta, ahead: int, now: float, waiting: list[tuple[Meta, float]]) -> Judgement:
        assert meta == Meta((("app", "0"),), budget_s=1.0)
        asked.append((ahead, [waited for _, waited in waiting]))
        return UNKNOWN

    monkeypatch.setattr("benchmarks.schedule_overload.Promises.judge", judge)
    door = Promising(1.0, [0] * 4, named=False)
    units = [Request(number, 0.1, 0, 1.0) for number in range(4)]
    for unit in units[:3]:
        assert door.admits(unit, float(unit.number))
    door.ended(units[1], 2.5, shed=True)
    assert door.admits(units[3], 3.0)
    assert asked == [(0, []), (1, [1.0]), (2, [2.0, 1.0]), (2, [3.0, 1.0])]


def test_what_is_told_of_an_overload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "overload.json"
    words = ["--overload", "2", "--cases", CASE.name, "--requests", "400", "--slo", "3", "--out", str(out)]
    status = main(words)
    result = json.loads(out.read_text())
    assert [(row["policy"], row["promise"]) for row in result["rows"]] == [
        ("distribution", False),
        ("distribution", True),
        ("deadline", False),
        ("deadline", True),
    ]
    ours = result["rows"][1]
    assert status == (0 if ours["kept"] else 1)
    assert ours["kept"] == ((ours["told"] or 0.0) <= 0.5 and ours["broken"] <= 0.05)
    assert result["rows"][0]["told"] == result["rows"][0]["told_let_in"] > 0.3, (
        "who is shed, was let in first"
    )
    assert ours["refused"] > ours["shed"] > 0.0
    assert ours["told"] == 0.0 < ours["told_let_in"], "most are refused, at once"
    assert result["rows"][0]["refused"] == 0.0
    assert out.with_suffix(".svg").exists()
    assert "goals under Promise" in capsys.readouterr().out
