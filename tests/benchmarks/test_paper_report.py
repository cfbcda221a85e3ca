"""The page, the goals, and what is read out of traces, on rows that are made up."""

import argparse
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks.chain import machine
from benchmarks.paper import report
from benchmarks.paper.breakdown import PARTS, batches_of, by_kind, covered, state_steps
from benchmarks.paper.divergence import guilt
from benchmarks.paper.files import check_folder, deliver_part
from benchmarks.paper.goals import (
    MET,
    MISSED,
    MODES_IN_ORDER,
    TOO_SHORT,
    TWO_OPERATORS,
    UNMEASURED,
    VOID,
    goals,
)
from benchmarks.paper.peers import measure
from benchmarks.paper.predicted import cores_of_full_size, sizes
from benchmarks.paper.published import PUBLISHED, bare_ms
from benchmarks.paper.recovery import CORRELATED, cases_of
from benchmarks.paper.report import draw
from benchmarks.paper.running import Sample, sums
from benchmarks.paper.services import SERVICES, Settings
from benchmarks.paper.tables import ABSENT, paper_percent, table_of
from benchmarks.paper.traces import Note, notes, recovered

from hams_protocol import modes


def paired(
    service: str = "SP", mode: str = "NonStop", load: str = "L1", over: float = 0.5, **more: Any
) -> dict[str, Any]:
    percent = {"value": over, "low": over - 0.2, "high": over + 0.2}
    return {
        "service": service,
        "mode": mode,
        "load": load,
        "kind": "mean" if service.startswith("OL") else "all",
        **Settings().said(service),
        "pairs": 6,
        "window_s": 10.0,
        "windows": 12,
        "bare_ms": 100.0,
        "mode_ms": 100.0 + over,
        "added_ms": over,
        "bare_per_s": 10.0,
        "mode_per_s": 9.9,
        "overhead_percent": percent,
        "lost_percent": percent,
        "bare_busy_cores": 0.2,
        "mode_busy_cores": 0.3,
        "bare_idle_cores": 0.01,
        "mode_idle_cores": 0.02,
        "others_cores": 0.1,
        "failed_over": [],
        "disturbed": False,
        "void": False,
        **more,
    }


def killed(service: str, case: str, recovered_ms: float, **more: Any) -> dict[str, Any]:
    return {
        "service": service,
        "mode": "NonStop",
        "case": case,
        **Settings().said(service),
        "kills": 10,
        "recovered_ms": recovered_ms,
        "gap_ms": 50.0,
        "quiet_ms": 60.0,
        "slowest_ms": 170.0,
        "detect_ms": 10.0,
        "decide_ms": 1.0,
        "load_ms": None,
        "resend_ms": 5.0,
        "samples_ms": {"steps": [{"recovered": recovered_ms}], "gaps": [50.0], "quiet": [60.0]},
        "failed": 0,
        "ok": True,
        "wrong_counts": {},
        "violations": [],
        **more,
    }


def split(mode: str, tail: float) -> dict[str, Any]:
    return {
        "service": "SP",
        "mode": mode,
        "case": "breakdown",
        **Settings().said("SP"),
        "batches": 5,
        "latency_ms": 100.0 + tail,
        "parts_ms": dict.fromkeys(PARTS, 10.0) | {"durable": tail},
        "states_ms": {"o2": {"capture": 1.0, "record": 2.0}, "o4": {}},
        "cpu_ms_per_batch": {"models": 3.0},
        "core_ms_per_batch": 1.875,
        "mb_per_batch": {"captured": 55.6, "compared": 50.0, "copied and sent": 0.125},
    }


DIVERGED = {
    "service": "OLM",
    "mode": "Remus",
    "case": "divergence",
    **Settings().said("OLM"),
    "noise": 1e-7,
    "kills": 50,
    "requests": 30,
    "asked_again": 30,
    "two_values": 0,
    "differing": 0,
    "failed": 0,
    "ok": True,
    "wrong_counts": {},
    "violations": [],
}
GUILTY = DIVERGED | {
    "mode": "LineageStash",
    "checkpoint_batches": 50,
    "two_values": 12,
    "broken": {"I1": 3, "I2": 12},
    "violations": ["I2: two visible values"],
}
PEER = {
    "service": "SP",
    "system": "Ray Serve",
    "how": "defaults",
    **Settings().said("SP"),
    "latency_ms": 140.0,
    "per_s": 20.0,
    "gap_ms": None,
    "slowest_ms": 15000.0,
    "failed": 3,
    "counted": "begins at 1 again",
}
ROWS = {
    "overhead": [paired(), paired(mode="Remus", over=20.0), paired(load="Sat", bytes=0.125)],
    "ablations": [paired(load="L2", mode=mode) for mode in ("NonStop", "BufferedOutputs")],
    "batches": [paired(batch=1), paired(batch=64)],
    "scale": [paired("FD", bytes=0.25), paired("FD")],
    "breakdown": [split("None", 2.0), split("NonStop", 8.5)],
    "recovery": [killed("SP", "o2 both", 30.0), killed("SP", "o1 stateless", 90.0)],
    "correlated": [killed("SP", "o3+o4", 100.0)],
    "divergence": [DIVERGED, GUILTY],
    "peers": [PEER],
}


MACHINE = {
    "at": "2026-11-24 12:00:00",
    "cores": 2,
    "processor": "a processor",
    "memory_gib": 24,
    "kernel": "6",
    "python": "3.11",
    "versions": {"numpy": "2", "torch": "2.11"},
    "commit": "0123abcd",
    "compiled": True,
}


@pytest.mark.parametrize(
    ("part", "more", "said"),
    [
        ("overhead", {"service": "XX"}, "what no plot or page can be made of: 'XX' is not in list"),
        ("overhead", {"mode": "None"}, "what no plot or page can be made of: tuple.index"),
        ("overhead", {"overhead_percent": {"value": 1.0, "low": 0.0}}, "a row or machine without 'high'"),
        ("overhead", {"bare_ms": "fast"}, "what no plot or page can be made of: "),
        ("overhead", {"bytes": math.nan}, "what no plot or page can be made of: "),
        ("overhead", {"bare_per_s": 0, "load": "Sat"}, "what no plot or page can be made of: .*zero"),
        ("recovery", {"samples_ms": {}}, "a row or machine without 'steps'"),
        ("recovery", {"unstored_batches": 3}, "a row or machine without 'unstored_ms'"),
        ("breakdown", {"mb_per_batch": {}}, "a row or machine without 'captured'"),
    ],
)
def test_a_row_of_which_no_page_can_be_made_is_told_before(
    part: str, more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    folder = tmp_path / "paper"
    folder.mkdir()
    (folder / f"{part}.json").write_text(json.dumps({"rows": [{**ROWS[part][0], **more}]}))
    with pytest.raises(ValueError, match=rf"{part}\.json: expected rows of earlier runs, found {said}"):
        check_folder(tmp_path / "paper.json", ["scale"])


def test_what_was_never_recovered_from_is_drawn_and_taken_in(tmp_path: Path) -> None:
    never = {**killed("SP", "o2 both", 30.0), "recovered_ms": None, "samples_ms": {"steps": [{}]}}
    options = argparse.Namespace(out=tmp_path / "paper.json", output="json")
    deliver_part("recovery", {"recovery": {"command": "x", "machine": MACHINE, "rows": [never]}}, options)
    assert "o2 both" in (tmp_path / "paper/index.html").read_text()
    assert "</svg>" in (tmp_path / "paper/recovery.svg").read_text()


def test_the_plot_of_recovery_tells_services_and_what_has_no_state_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def bars(labels: list[str], groups: dict[str, list[float]], *_: object, **more: object) -> None:
        seen.update(labels=labels, groups=groups, more=more)

    monkeypatch.setattr(report, "bars", bars)
    rows = [
        killed("OLM", "o3 both", 20.0),
        killed("SP", "o1 stateless", 8.0),
        killed("SP", "o2 both", 30.0),
        killed("SP", "o4 model", 50.0),
        killed("SP", "o3+o4", 70.0),
    ]
    draw("recovery", rows, tmp_path / "f.svg")
    assert seen["labels"] == ["SP", "SP o3+o4", "SP, no state", "OLM"]
    assert seen["groups"] == {"NonStop": [40.0, 70.0, 8.0, 20.0]}
    assert seen["more"] == {"logarithmic": True}


@pytest.mark.parametrize("part", ROWS)
def test_every_part_has_a_table_a_plot_and_its_place_on_the_page(part: str, tmp_path: Path) -> None:
    options = argparse.Namespace(out=tmp_path / "paper.json", output="text")
    deliver_part(part, {part: {"machine": MACHINE, "command": "x", "rows": ROWS[part]}}, options)
    for file in (tmp_path / "paper.svg", tmp_path / "paper" / f"{part}.svg"):
        assert "</svg>" in file.read_text()
    page = (tmp_path / "paper" / "index.html").read_text()
    assert "data:image/svg+xml;base64," in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "not measured" in page, "what is missing is said"
    table = table_of(part, ROWS[part])
    assert all(len(line) == len(table.head) for line in table.lines)
    assert len(table.text()) == len(ROWS[part]) + 1


def page_of(folder: Path, *results: dict[str, Any]) -> str:
    options = argparse.Namespace(out=folder / "paper.json", output="json")
    for result in results:
        deliver_part("overhead", {"overhead": {"command": "x", **result}}, options)
    return (folder / "paper" / "index.html").read_text()


def test_bytes_of_states_are_counted_over_all_processes() -> None:
    page = """# TYPE hams_proxy_captured_bytes_total counter
hams_proxy_captured_bytes_total{operator="o2",instance="o2-0"} 500
hams_proxy_captured_bytes_total{operator="o4",instance="o4-0"} 70
hams_proxy_compared_bytes_total{operator="o2",instance="o2-0"} 4e2
hams_proxy_changed_bytes_total{operator="o2",instance="o2-0"} 30
hams_proxy_captures_total{operator="o2",instance="o2-0"} 9
hams_proxy_core_seconds_total{operator="o1",instance="o1-0"} 0.5
hams_proxy_core_seconds_total{operator="o2",instance="o2-0"} 0.25
"""
    assert sums(page) == {"captured": 570.0, "compared": 400.0, "copied and sent": 30.0, "core": 0.75}
    assert sums("") == dict.fromkeys(("captured", "compared", "copied and sent", "core"), 0.0)


def test_a_breakdown_shows_what_its_states_moved() -> None:
    table = table_of("breakdown", [split("NonStop", 8.5)])
    cells = dict(zip(table.head, table.lines[0], strict=True))
    assert cells["states, MB a batch: captured / compared / copied and sent"] == "55.60 / 50.00 / 0.12"
    assert cells["core ms"] == "1.9"
    before = {name: value for name, value in split("NonStop", 8.5).items() if name != "core_ms_per_batch"}
    older = table_of("breakdown", [before])
    assert dict(zip(older.head, older.lines[0], strict=True))["core ms"] == ABSENT


def test_rows_say_which_code_ran_and_the_page_shows_it(tmp_path: Path) -> None:
    pure = MACHINE | {"commit": "4567cdef+", "compiled": False}
    page = page_of(
        tmp_path,
        {"machine": MACHINE, "rows": [paired(over=0.7)]},
        {"machine": pure, "rows": [paired("FD") | {"models": "real"}]},
    )
    assert "Code: 0123abcd, compiled; 4567cdef+, not compiled, torch 2.11." in page
    assert "<th>code</th>" in page, "a column, where rows differ"
    written = json.loads((tmp_path / "paper" / "overhead.json").read_text())["rows"]
    assert [(row["commit"], row["compiled"]) for row in written] == [("0123abcd", True), ("4567cdef+", False)]


def test_a_machine_tells_what_runs_on_it() -> None:
    told = machine()
    assert re.fullmatch(r"([0-9a-f]{8}\+?)?", str(told["commit"]))
    assert told["compiled"] is not modes.__file__.endswith(".py")


def test_the_version_of_ray_is_that_beside_us(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "lib" / "python3.11" / "site-packages" / "ray-2.60.0.dist-info").mkdir(parents=True)
    monkeypatch.setattr(measure, "PYTHON", tmp_path / "bin" / "python")
    assert measure.ray_version() == "2.60.0"


def test_rows_of_another_machine_stand_apart_and_the_page_names_each(tmp_path: Path) -> None:
    other = MACHINE | {"cores": 16, "processor": "another one", "at": "2026-11-25 09:00:00"}
    page = page_of(
        tmp_path,
        {"machine": MACHINE, "rows": [paired(over=0.7)]},
        {"machine": other, "rows": [paired(over=9.0)]},
    )
    assert "2 cores, a processor: 24 GiB" in page
    assert "16 cores, another one: 24 GiB" in page
    mine, _, theirs = page.partition("T7. Goals, 16 cores, another one")
    assert "0.7 (0.5 to 0.9) %" in mine
    assert "9.0 (8.8 to 9.2) %" not in mine
    assert "9.0 (8.8 to 9.2) %" in theirs.partition("</h2>")[2]


def test_the_page_says_what_its_rows_say(tmp_path: Path) -> None:
    page = page_of(tmp_path, {"machine": MACHINE, "rows": [paired(states="whole")]})
    assert "Real models on a GPU: not measured." in page
    assert "<td>everything, whole</td>" in page
    assert "not built" not in page
    page = page_of(tmp_path, {"machine": MACHINE, "rows": [paired(models="real")]})
    assert "Real models on a GPU: not measured." not in page
    assert "<td>everything, real</td>" in page


def test_the_papers_percentage_says_where_its_bare_metal_is_assumed() -> None:
    assert (paper_percent("SP", "NonStop"), paper_percent("SP", "Remus")) == ("2.0*", "74.5*")
    assert (paper_percent("OLM", "Remus"), paper_percent("SP", "LineageStash")) == ("97.7", "-")


def test_a_pair_shows_what_it_takes_at_rest_and_what_it_was_measured_with() -> None:
    table = table_of("overhead", [paired(times="light"), paired(void=True)])
    said = [dict(zip(table.head, line, strict=True)) for line in table.lines]
    assert said[0]["at rest: bare / mode"] == "0.01 / 0.02"
    assert said[0]["cores: bare / mode"] == "0.20 / 0.30"
    assert (said[0]["windows"], said[0]["setting"]) == ("12 x 10 s", "everything, times light")
    assert [item["run"] for item in said] == ["ok", "void: other work"]


@pytest.mark.parametrize(("part", "slowest"), [("recovery", "170.0"), ("peers", "15000.0")])
def test_the_slowest_single_request_stands_beside_the_gap(part: str, slowest: str) -> None:
    table = table_of(part, ROWS[part])
    assert table.lines[0][table.head.index("slowest request ms")] == slowest


def test_a_learner_that_is_found_guilty_is_shown_so_and_fails_nothing() -> None:
    table = table_of("divergence", [DIVERGED, GUILTY])
    said = [dict(zip(table.head, line, strict=True)) for line in table.lines]
    assert [item["units with two visible values"] for item in said] == ["0", "12"]
    assert [item["stored every"] for item in said] == ["-", "50 batches"]
    assert [item["lost or doubled"] for item in said] == ["nothing", "guilty, as expected: I1 3, I2 12"]


@pytest.mark.parametrize(
    ("mode", "verdict", "two_values", "ok"),
    [
        ("NonStop", {"ok": True, "broken": {}}, 0, True),
        ("NonStop", {"ok": False, "broken": {"I2": 25}}, 25, False),
        ("LineageStash", {"ok": False, "broken": {"I2": 25, "I1": 1}}, 25, True),
        ("LineageStash", {"ok": False, "broken": {"I5": 1}}, 0, False),
        ("LineageStash", {"ok": False, "broken": {}, "wrong_counts": {"o3": "missing 7"}}, 0, False),
        ("LineageStash", {"ok": False, "broken": {}, "invalid_lines": 1}, 0, False),
    ],
)
def test_two_answers_are_counted_from_the_history(
    mode: str, verdict: dict[str, Any], two_values: int, ok: bool
) -> None:
    whole = {"invalid_lines": 0, "wrong_counts": {}} | verdict
    assert guilt(mode, whole, 0, 0) == {"two_values": two_values, "ok": ok}
    assert guilt(mode, whole, 1, 0)["ok"] is False, "a request that failed is a failure everywhere"


def test_a_state_that_was_run_again_says_how_much_of_it() -> None:
    row = killed("OLM", "o3 both", 900.0, mode="LineageStash", unstored_batches=52, unstored_ms=1500.0)
    table = table_of("recovery", [row])
    assert table.lines[0][table.head.index("after a stored state")] == "52 batches, 1500 ms"
    table = table_of("recovery", [row | {"stored": 4, "stored_early": 1}])
    of_all = "52 batches, 1500 ms; 1 of 4 states stored early"
    assert table.lines[0][table.head.index("after a stored state")] == of_all


def verdicts(rows: dict[str, Any]) -> dict[str, str]:
    return {goal.what: goal.verdict for goal in goals(rows)}


def test_nothing_is_met_before_it_is_measured() -> None:
    assert set(verdicts({}).values()) == {UNMEASURED}


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (paired(over=0.7), MET),
        (paired(over=0.9), MISSED),
        (paired(over=0.7, windows=10), TOO_SHORT),
        (paired(over=0.7, window_s=3.0), TOO_SHORT),
        (paired(over=1.1, windows=4), TOO_SHORT),
        (paired(over=1.3, windows=4), MISSED),
        (paired(over=0.1, void=True), VOID),
        (paired(over=0.1, batch=8), UNMEASURED),
        (paired(over=0.1, bytes=0.5), UNMEASURED),
        (paired(over=0.1, models="real"), UNMEASURED),
        (paired(over=0.1, pace="none"), UNMEASURED),
        (paired(over=0.1, times="light"), UNMEASURED),
        (paired(over=0.1, states="whole"), UNMEASURED),
        (paired(over=0.1, rows_per_request=1), UNMEASURED),
    ],
    ids=[
        "upper bound meets it",
        "upper bound does not",
        "few windows",
        "short windows",
        "few windows, and the lower bound meets it",
        "few windows, and the lower bound does not",
        "void",
        "another batch",
        "smaller states",
        "real networks",
        "without the paper's times",
        "other times",
        "whole states",
        "single rows",
    ],
)
def test_a_latency_goal_is_met_by_the_upper_bound_of_a_whole_run(row: dict[str, Any], verdict: str) -> None:
    what = "SP: latency NonStop adds, one batch under way (everything)"
    assert verdicts({"overhead": [row]})[what] == verdict


def test_a_light_operator_gives_a_second_row_and_hides_none() -> None:
    rows = [paired("OLV", over=150.0, times="light"), paired("OLV", over=0.1)]
    assert verdicts({"overhead": rows})["OLV: latency NonStop adds, one batch under way (everything)"] == MET


def test_throughput_is_judged_with_the_states_that_few_cores_can_move() -> None:
    def lost(*rows: dict[str, Any]) -> tuple[str, str]:
        what = "SP: throughput NonStop loses, saturated (everything)"
        return next((goal.verdict, goal.measured) for goal in goals({"overhead": rows}) if goal.what == what)

    eased, full = paired(load="Sat", bytes=0.125), paired(load="Sat", over=9.0)
    assert lost(eased) == (MET, "0.5 (0.3 to 0.7) %, states 1/8")
    assert lost(eased, full)[0] == MISSED
    assert lost(paired(load="Sat", bytes=0.25))[0] == UNMEASURED
    assert lost(paired(load="Sat", states="whole"))[0] == UNMEASURED


def test_cores_of_full_size_are_its_cpu_at_the_rate_of_smaller_states() -> None:
    eased = paired(load="Sat", bytes=1 / 8, mode_per_s=20.0, mode_busy_cores=1.1)
    whole = {**split("NonStop", 1.0), "cpu_ms_per_batch": {"models": 60.0, "proxies": 40.0}}
    smaller, bare = {**whole, "bytes": 1 / 8}, split("None", 1.0)
    lines = cores_of_full_size({"overhead": [eased, paired()], "breakdown": [bare, smaller, whole]}).lines
    assert lines == (("SP", "NonStop", "20.00", "100", "2.00", "1.10"),)
    assert cores_of_full_size({"overhead": [eased], "breakdown": [smaller]}).lines == ()


def test_a_line_through_sizes_says_where_a_mode_begins_to_cost() -> None:
    parts = {1 / 16: 1.5, 1 / 4: 3.0, 1.0: 9.0}  # 1 ms, and 8 for all of the states
    rows = [paired("OLV", over=added, bytes=part) for part, added in parts.items()]
    megabytes = 548.05 * (1 << 20) / 1e6
    line = ("OLV", "NonStop", "mean", "3", "1.0", f"{800 / megabytes:.1f}", "0.0", f"{megabytes / 8:.0f}")
    assert sizes({"scale": rows}).lines == (line,)
    assert sizes({"scale": rows[:2]}).lines == ()


def test_the_page_shows_what_its_rows_predict(tmp_path: Path) -> None:
    options = argparse.Namespace(out=tmp_path / "paper.json", output="json")
    rows = {
        "overhead": [paired(load="Sat", bytes=1 / 8)],
        "breakdown": [split("NonStop", 1.0)],
        "scale": [paired("OLV", over=1 + 8 * part, bytes=part) for part in (1 / 16, 1 / 4, 1.0)],
    }
    for part, mine in rows.items():
        deliver_part(part, {part: {"machine": MACHINE, "command": "x", "rows": mine}}, options)
    page = (tmp_path / "paper" / "index.html").read_text()
    assert "Cores that states of full size take" in page
    assert "a line through P3" in page


def test_a_missed_goal_names_what_costs_it() -> None:
    learner = [split("NonStop", 90.0) | {"kind": "infer"}, split("NonStop", 70.0) | {"pace": "none"}]
    rows = {"overhead": [paired(over=9.0)], "breakdown": [*ROWS["breakdown"], *learner]}
    missed = next(goal for goal in goals(rows) if goal.what.startswith("SP: latency"))
    assert missed.costs == "durable + 6.5 ms"


@pytest.mark.parametrize(("took", "verdict"), [(2.1, MET), (2.2, MISSED)])
def test_time_in_the_core_is_of_all_proxies_in_nonstop(took: float, verdict: str) -> None:
    rows = [
        split("None", 1.0) | {"core_ms_per_batch": 9.0},
        split("NonStop", 1.0) | {"core_ms_per_batch": took},
    ]
    seen = verdicts({"breakdown": rows})
    assert seen["SP: time of all proxies in the core per batch, NonStop"] == verdict
    assert seen["OLM: time of all proxies in the core per batch, NonStop"] == UNMEASURED


def test_the_order_of_modes_needs_all_four_and_intervals_apart() -> None:
    def order(*overs: float, **more: Any) -> str:
        modes = ("NonStop", "BufferedOutputs", "StopAndCopy", "Remus")
        settings = {"states": "whole", **more}
        rows = [
            paired(mode=mode, load="L2", over=over, **settings)
            for mode, over in zip(modes, overs, strict=False)
        ]
        return verdicts({"ablations": rows})["SP: order of modes, two batches under way (whole states)"]

    assert order(1, 5, 6, 9) == MET
    assert order(1, 5, 6, 1.1) == MISSED
    assert order(1, 10, 6, 9) == MISSED
    assert order(-3, 5, 6, 9) == MISSED, "slower without HAMS than with it: something else was measured"
    assert order(1, 5, 6) == UNMEASURED
    assert order(1, 5, 6, 9, states="chunks") == UNMEASURED
    assert order(1, 5, 6, 9, windows=4) == TOO_SHORT
    assert order(9, 5, 6, 1, windows=4) == MISSED


PRIMARY = "SP: a stateful primary killed, recovered (median)"


def test_recovery_is_judged_by_its_median_and_by_what_was_lost() -> None:
    met = {"recovery": [killed("SP", "o2 model", 30.0), killed("SP", "o4 both", 36.0)]}
    assert verdicts(met)[PRIMARY] == MET, "of an even number the mean of the two in the middle"
    rows = {"recovery": [killed("SP", "o2 model", 30.0), killed("SP", "o4 both", 42.0, ok=False)]}
    said = verdicts(rows)
    assert said[PRIMARY] == MISSED
    assert said["failed, lost or doubled over all kills"] == MISSED
    assert said["OLM: a stateful primary killed, recovered (median)"] == UNMEASURED


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (killed("SP", "o2 both", 30.0), MET),
        (killed("SP", "o2 both", 30.0, kills=1), TOO_SHORT),
        (killed("SP", "o2 both", 36.0, kills=1), MISSED),
        (killed("SP", "o2 both", 30.0, models="real"), UNMEASURED),
        (killed("SP", "o2 both", 30.0, bytes=0.125), UNMEASURED),
        (killed("SP", "o2 both", 30.0, states="whole"), UNMEASURED),
        (killed("SP", "o2 both", 30.0, mode="LineageStash"), UNMEASURED),
    ],
)
def test_few_kills_meet_no_goal_and_other_settings_judge_none(row: dict[str, Any], verdict: str) -> None:
    assert verdicts({"recovery": [row]})[PRIMARY] == verdict


def test_one_kill_of_each_operator_without_state_is_enough() -> None:
    said = verdicts({"recovery": [killed("SP", "o1 stateless", 60.0, kills=1)]})
    assert said["an operator without state killed, recovered (median)"] == MET


RUN_AGAIN = "OLM: LineageStash, a state run again (median)"


def run_again(recovered_ms: float, **more: Any) -> dict[str, Any]:
    unstored = {"mode": "LineageStash", "unstored_batches": 52, "unstored_ms": 520.0}
    return killed("OLM", "o3 both", recovered_ms, **{**unstored, **more})


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (run_again(900.0), MET),
        (run_again(400.0), MISSED),
        (run_again(900.0, ok=False), MISSED),
        (run_again(900.0, failed=1), MISSED),
        (run_again(900.0, kills=1), TOO_SHORT),
        (run_again(900.0, unstored_batches=3, unstored_ms=30.0), TOO_SHORT),
    ],
    ids=["recovers", "faster than 50 batches", "lost", "failed", "one kill", "stored too soon before"],
)
def test_a_state_that_is_run_again_takes_its_time_and_loses_nothing(
    row: dict[str, Any], verdict: str
) -> None:
    rows = {"recovery": [row, killed("OLM", "o3 both", 30.0)]}
    goal = next(goal for goal in goals(rows) if goal.what == RUN_AGAIN)
    assert goal.verdict == verdict
    if verdict == MET:
        assert goal.measured == "900 ms over 1 kill, 30.0 x NonStop"


def test_what_a_mode_does_not_promise_is_no_failure_of_the_others() -> None:
    each = [DIVERGED | {"mode": mode} for mode in MODES_IN_ORDER]
    rows = {"divergence": [*each, GUILTY | {"ok": False}], "recovery": [run_again(900.0, ok=False)]}
    said = verdicts(rows)
    assert said["failed, lost or doubled over all kills"] == MET
    two = "units with two visible values, a random learner killed"
    assert (said[two], said[f"{two}, LineageStash"]) == (MET, MET)
    innocent = GUILTY | {"two_values": 0}
    assert verdicts({"divergence": [innocent]})[f"{two}, LineageStash"] == MISSED
    assert verdicts({"divergence": [DIVERGED | {"two_values": 1}]})[two] == MISSED
    assert verdicts({"divergence": [DIVERGED | {"kills": 2}]})[two] == TOO_SHORT


def test_of_a_mode_that_nobody_killed_nothing_is_known() -> None:
    what = "failed, lost or doubled over all kills"
    some = [killed("SP", "o2 both", 30.0, mode=mode) for mode in ("NonStop", "Remus")]
    assert verdicts({"recovery": some})[what] == TOO_SHORT
    every = [killed("SP", "o2 both", 30.0, mode=mode) for mode in MODES_IN_ORDER]
    (goal,) = [goal for goal in goals({"recovery": every}) if goal.what == what]
    assert (goal.verdict, goal.measured) == (
        MET,
        "0 of 4 kinds of kill, 40 kills in NonStop, BufferedOutputs, StopAndCopy, Remus",
    )


def test_real_networks_have_their_own_times_after_a_kill() -> None:
    rows = {"recovery": [killed("SP", "o2 both", 30.0, models="real"), killed("SP", "o2 both", 36.0)]}
    said = verdicts(rows)
    assert (said[PRIMARY], said[f"{PRIMARY[:-1]}, real networks)"]) == (MISSED, MET)


def two_operators(changed: str, delta: str, lost: float, added: float, **more: Any) -> dict[str, Any]:
    return {
        "mode": "NonStop",
        "state_mb": 50,
        "changed": changed,
        "delta": delta,
        "seconds": 10.0,
        "throughput_loss_percent": lost,
        "p50_ms": 40.0,
        "latency_added_ms": added,
        **more,
    }


def test_two_operators_of_50_mb_are_judged_where_their_rows_lie_beside_the_page(tmp_path: Path) -> None:
    rows = [
        two_operators("4 KiB", "Auto", 1.5, 3.5),
        two_operators("all", "Auto", 33.1, 19.7),
        two_operators("all", "Off", 30.0, 18.5),
    ]
    what = "hams bench overhead, 50 MB of which"
    said = verdicts({TWO_OPERATORS: rows})
    assert said[f"{what} 4 KiB change: throughput lost"] == MET
    assert said[f"{what} 4 KiB change: latency added"] == MISSED
    assert said[f"{what} all change: throughput lost"] == MISSED, "33 at most"
    assert said[f"{what} all change: latency added"] == MET
    assert verdicts({TWO_OPERATORS: rows[1:2]})[f"{what} all change: latency added"] == UNMEASURED
    short = [two_operators("4 KiB", "Auto", 1.5, 3.5, seconds=2.0)]
    assert verdicts({TWO_OPERATORS: short})[f"{what} 4 KiB change: latency added"] == TOO_SHORT
    written = {"bench": "overhead", "machine": MACHINE, "rows": rows}
    (tmp_path / "overhead.json").write_text(json.dumps(written))
    page = page_of(tmp_path, {"machine": MACHINE, "rows": [paired()]})
    assert f"{what} 4 KiB change: throughput lost" in page.split("goals are not measured yet")[0]


def test_the_page_names_the_calls_that_all_leaves_out(tmp_path: Path) -> None:
    page = page_of(tmp_path, {"machine": MACHINE, "rows": [paired()]})
    for call in ("--state cells", "--times light", "--models real", "--states whole --loads L1"):
        assert call in page.split("What needs a call of its own")[1], call


def test_every_stateful_primary_is_killed_in_each_of_three_ways() -> None:
    names = [case.name for case in cases_of(SERVICES["SP"], ["o1"])]
    assert names == ["o2 model", "o2 proxy", "o2 both", "o4 model", "o4 proxy", "o4 both", "o1 stateless"]
    assert {service: [case.name for case in cases] for service, cases in CORRELATED.items()} == {
        "SP": ["o3+o4"],
        "AP": ["o2+o3", "rollback"],
    }


def test_the_papers_bare_metal_is_its_own_or_what_the_emulated_times_add_up_to() -> None:
    assert bare_ms("OLM") == 21.88
    assert bare_ms("SP") == pytest.approx(PUBLISHED["SP"].latency["NonStop"] / 1.02)


# -- traces


NOTHING = dict.fromkeys(PARTS, 0.0)


def trace(*lines: tuple[int, str, str]) -> list[Note]:
    return [Note(1_000_000 * at, who, what) for at, who, what in lines]


def test_lines_are_read_in_order_and_cut_off_ones_left_out(tmp_path: Path) -> None:
    (tmp_path / "o2-1-a-7.trace").write_text("30 o2-1-a StartBatch\n10 o2-1-a Tick\n99 o2-1-a Sta")
    (tmp_path / "o4-2-b-8.trace").write_text("20 o4-2-b StartBatch\n")
    assert [(note.at, note.who) for note in notes(tmp_path)] == [
        (10, "o2-1-a"),
        (20, "o4-2-b"),
        (30, "o2-1-a"),
    ]
    assert [note.who for note in notes(tmp_path, "o4-")] == ["o4-2-b"]


def test_recovered_is_when_another_instance_starts_its_first_batch() -> None:
    lines = trace(
        (5, "o2-1", "StartBatch 0/1"),
        (11, "o2-1", "StartBatch 0/1"),
        (16, "o2-2", "TopologyLearnt generation 4"),
        (20, "o2-2", "LoadState"),
        (28, "o2-2", "Loaded"),
        (33, "o2-2", "TopologyLearnt generation 5"),
        (40, "o2-2", "StartBatch 0/1"),
    )
    assert recovered(lines, 10_000_000, {"o2-1"}) == {"recovered": 0.03, "load": 0.008, "learnt": 0.006}
    assert recovered(lines[:2], 10_000_000, {"o2-1"}) == {}


def test_the_parts_of_a_batch_add_up_to_its_latency() -> None:
    lines = trace(
        (0, "frontend-1", "ClientRequest"),
        (2, "o1-1", "StartBatch 0/1"),
        (12, "o1-1", "BatchDone"),
        (15, "o2-1", "StartBatch 0/1"),
        (16, "o3-1", "StartBatch 0/1"),
        (30, "o2-1", "UpdateWanted"),
        (33, "o2-1", "EnterUpdate"),
        (35, "o2-1", "BatchDone"),
        (40, "o3-1", "BatchDone"),
        (47, "frontend-1", "Answer 1 Reply"),
    )
    (batch,) = batches_of(lines)
    assert batch.parts() == NOTHING | {
        "injected": 2.0,
        "models": 32.0,
        "capture wait": 3.0,
        "hops": 3.0,
        "released": 7.0,
    }
    assert sum(batch.parts().values()) == 47.0


def test_batches_that_train_and_batches_that_infer_are_broken_down_apart() -> None:
    lines = trace(
        (0, "frontend-1", "ClientRequest"),
        (1, "o3-1", "StartBatch 0/1"),
        (9, "o3-1", "BatchDone"),
        (10, "frontend-1", "Answer 1 Reply"),
        (11, "frontend-1", "ClientRequest"),
        (12, "o3-1", "StartBatch 0/2"),
        (14, "o3-1", "BatchDone"),
        (16, "frontend-1", "Answer 2 Reply"),
        (17, "frontend-1", "ClientRequest"),
        (18, "o3-1", "StartBatch 0/3"),
        (30, "frontend-1", "Answer 3 Reply"),
    )
    samples = [Sample("train", 0.0, 0.0105), Sample("infer", 0.0109, 0.0165)]  # the third was cut off
    train, infer = by_kind(samples, batches_of(lines))
    assert (train["kind"], train["batches"], train["latency_ms"]) == ("train", 1, 10.5)
    assert (train["parts_ms"], infer["parts_ms"]) == (
        NOTHING | {"injected": 1.0, "models": 8.0, "released": 1.0},
        NOTHING | {"injected": 1.0, "models": 2.0, "released": 2.0},
    )


@pytest.mark.parametrize(
    ("left_out", "parts"),
    [
        ("", {"forwarded": 2, "logged": 3, "injected": 1, "durable": 4, "reply logged": 2, "released": 1}),
        ("LogAppend", {"forwarded": 5, "injected": 1, "durable": 6, "released": 1}),
    ],
)
def test_the_way_of_a_log_and_of_a_reply_is_told_apart(left_out: str, parts: dict[str, float]) -> None:
    """Where no log is replicated nothing is sent to a follower."""
    lines = trace(
        (0, "frontend-1", "ClientRequest"),
        (2, "frontend-2", "-> frontend-1 LogAppend"),
        (3, "frontend-1", "<- frontend-2 LogAppend"),
        (5, "frontend-2", "NoteLog"),
        (6, "o3-1", "StartBatch 0/1"),
        (16, "o3-1", "BatchDone"),
        (17, "frontend-2", "-> frontend-1 LogAppend"),
        (20, "frontend-2", "-> frontend-1 LogAppend"),
        (22, "frontend-2", "NoteReply"),
        (23, "frontend-1", "Answer 1 Reply"),
    )
    (batch,) = batches_of([note for note in lines if not left_out or left_out not in note.what])
    assert batch.parts() == NOTHING | {"models": 10.0} | parts
    assert sum(batch.parts().values()) == 23.0


def test_what_intervals_cover_is_counted_once() -> None:
    assert covered([(0, 10), (5, 8), (20, 30), (25, 40)]) == 30
    assert covered([]) == 0


def test_the_steps_of_a_state() -> None:
    lines = trace(
        (0, "o2-1", "Capture 7"),
        (4, "o2-1", "Captured"),
        (5, "o2-1", "-> o2-2 StateRecord o2 7 of 64 bytes"),
        (9, "o2-2", "<- o2-1 StateRecord o2 7 of 64 bytes"),
        (11, "o2-1", "<- o2-2 RecordAck o2 7 applied 6"),
    )
    assert state_steps(lines, "o2") == {"capture": 4.0, "record": 4.0, "acknowledged": 6.0}
