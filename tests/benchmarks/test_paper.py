"""`hams bench paper`: its graphs, its statistics, what it refuses, and the files that pieces add up in."""

import argparse
import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from benchmarks.paper import __main__ as command
from benchmarks.paper import estimate, files, overhead, services
from benchmarks.paper.files import deliver_part, merged
from benchmarks.paper.overhead import compared
from benchmarks.paper.paired import orders, rate, ratio_of_medians, ratio_of_rates, wander
from benchmarks.paper.peers import measure
from benchmarks.paper.running import Failed, Sample, cpu_of_family
from benchmarks.paper.services import MODES, SERVICES, Settings, graph_file, graph_of, read_times, state_bytes
from benchmarks.paper.tables import setting

from hams_graph import load
from hams_protocol.graph import Graph

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
EACH = pytest.mark.parametrize("name", SERVICES)


def compiled(name: str, mode: str = "NonStop", settings: Settings | None = None, **more: bool) -> Graph:
    with graph_file(graph_of(SERVICES[name], mode, settings or Settings(), **more)) as path:
        return load(path)


# -- graphs


@EACH
@pytest.mark.parametrize("mode", ["None", *MODES])
def test_every_service_compiles_in_every_mode(name: str, mode: str) -> None:
    graph = compiled(name, mode)
    assert graph.data.mode.value == mode
    stateful = tuple(op.name for op in graph.data.operators if op.stateful)
    assert stateful == SERVICES[name].stateful
    assert {output.name for output in graph.data.outputs} >= set(SERVICES[name].counts.values())


@EACH
def test_the_longest_path_and_the_sizes_are_those_of_the_file(name: str) -> None:
    graph = compiled(name)
    depth = {"frontend": 0}
    for op in graph.data.operators:
        depth[op.name] = 1 + max(depth.get(edge.source, 0) for edge in op.in_edges)
    assert max(depth.values()) == SERVICES[name].deepest
    sizes = [json.loads(op.model.config).get("sizeMiB", 0) for op in graph.data.operators if op.stateful]
    assert sum(sizes) == pytest.approx(SERVICES[name].state_mib)


def test_bare_metal_has_no_copies_and_a_kill_finds_a_replacement_warm() -> None:
    assert [op.backups for op in compiled("SP", "None").data.operators if op.stateful] == [0, 0]
    assert [op.backups for op in compiled("SP").data.operators if op.stateful] == [1, 1]
    assert not any(op.hot_standbys for op in compiled("SP").data.operators)
    warm = compiled("SP", standby=True).data.operators
    assert all(op.hot_standbys for op in warm if not op.stateful)


def test_settings_reach_every_operator() -> None:
    settings = Settings(state="cells", bytes=0.125, batch=8, times={"SP": {"o2": (5.0, 1.0)}})
    operators = {op.name: op for op in compiled("SP", settings=settings).data.operators}
    config = json.loads(operators["o2"].model.config)
    assert (config["state"], config["bytes"], config["rows"]) == ("cells", 0.125, 8)
    assert (config["computeMs"], config["updateMs"]) == (5.0, 1.0)
    assert {op.batch.max_rows for op in operators.values()} == {8}
    still = compiled("SP", settings=replace(settings, pace="none")).data.operators
    assert {json.loads(op.model.config)["computeMs"] for op in still} == {0}


def test_a_state_that_is_run_again_is_stored_every_so_many_batches() -> None:
    (state,) = [op for op in compiled("OLM", "LineageStash").data.operators if op.stateful]
    assert state.checkpoint is not None
    assert (state.checkpoint.batches, state.backups) == (150, 0)
    often = compiled("OLM", "LineageStash", Settings(checkpoint_batches=10)).data.operators
    assert [op.checkpoint.batches for op in often if op.checkpoint] == [10]


@EACH
def test_every_request_fits_its_graph(name: str) -> None:
    graph = compiled(name)
    declared = {item.name: (item.datatype, len(item.shape) + 1) for item in graph.data.inputs}
    for request in services.requests_of(SERVICES[name], 3, 4, 0):
        for item in request:
            assert declared[item.name] == (item.datatype, len(item.shape))
            assert item.shape[0] == 3


# -- statistics


def test_a_ratio_lies_within_its_interval_and_pairs_take_the_wandering_out() -> None:
    random = np.random.default_rng(3)
    speeds = [1.0, 1.3, 0.9, 1.2, 1.1, 1.0]
    bare = [list(0.1 * speed * random.normal(1, 0.001, 50)) for speed in speeds]
    mode = [[1.05 * value for value in window] for window in bare]
    ratio = ratio_of_medians(bare, mode, 1)
    assert ratio.value == pytest.approx(1.05)
    assert ratio.low == pytest.approx(1.05) == ratio.high, "what wanders is in both windows of a pair"
    assert ratio_of_rates([10, 20], [9, 18], 1).value == pytest.approx(0.9)


def test_an_interval_grows_with_what_lies_between_windows() -> None:
    quiet = ratio_of_medians([[1.0]] * 6, [[1.1], [1.1], [1.1], [1.1], [1.1], [1.1]], 1)
    noisy = ratio_of_medians([[1.0]] * 6, [[1.0], [1.2], [1.1], [0.9], [1.3], [1.1]], 1)
    assert noisy.high - noisy.low > 0.05 > quiet.high - quiet.low
    assert noisy == ratio_of_medians([[1.0]] * 6, [[1.0], [1.2], [1.1], [0.9], [1.3], [1.1]], 1), "seeded"


@pytest.mark.parametrize(("bare", "mode"), [([], []), ([[1.0]], []), ([[1.0]], [[]])])
def test_nothing_is_compared_with_nothing(bare: Any, mode: Any) -> None:
    with pytest.raises(ValueError, match="expected pairs of windows"):
        ratio_of_medians(bare, mode, 1)


def test_a_rate_goes_from_the_first_to_the_last() -> None:
    assert rate([10.0, 10.5, 11.0]) == pytest.approx(2.0)
    assert np.isnan(rate([10.0]))


def samples(latency: float, kinds: str = "all") -> list[Sample]:
    names = itertools.cycle(kinds.split(","))
    return [Sample(next(names), at * latency, (at + 1) * latency) for at in range(20)]


def test_a_run_whose_bare_metal_wanders_is_disturbed() -> None:
    steady = [samples(0.1), samples(0.101)]
    assert not compared(steady, [samples(0.11)] * 2, "all", 1)["disturbed"]
    wandering = [samples(0.1), samples(0.104)]
    assert compared(wandering, [samples(0.11)] * 2, "all", 1)["disturbed"]
    assert wander([[0.1], [0.104]]) == pytest.approx(0.004 / 0.102)


def test_what_a_mode_adds_and_loses() -> None:
    row: dict[str, Any] = compared([samples(0.1)] * 3, [samples(0.125)] * 3, "all", 1)
    assert (row["bare_ms"], row["mode_ms"], row["added_ms"]) == (100.0, 125.0, 25.0)
    assert row["overhead_percent"] == {"value": 25.0, "low": 25.0, "high": 25.0}
    assert row["lost_percent"]["value"] == pytest.approx(20.0)
    assert [len(window) for window in row["samples_ms"]["mode"]] == [20] * 3


def test_the_mean_of_a_learner_is_that_of_what_trains_and_what_infers() -> None:
    window = [
        Sample("train", 0.0, 0.3),
        Sample("infer", 0.3, 0.4),
        Sample("train", 0.4, 0.7),
        Sample("infer", 0.7, 0.8),
    ]
    row = compared([window], [window], "mean", 1)
    assert row["bare_ms"] == 200.0
    assert compared([window], [window], "train", 1)["bare_ms"] == 300.0


def test_a_window_that_is_too_short_is_told() -> None:
    with pytest.raises(Failed, match="--window-s makes it longer"):
        compared([samples(1.0)[:1]], [samples(1.0)], "all", 1)


def test_who_goes_first_is_drawn_by_the_seed() -> None:
    assert orders(20, 1) == orders(20, 1) != orders(20, 2)
    assert {*orders(20, 1)} == {True, False}


# -- what is refused, each with one sentence


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--modes", "Nonstop"], "no mode 'Nonstop'; did you mean NonStop?"),
        (["--modes", "LineageSash"], "no mode 'LineageSash'; did you mean LineageStash?"),
        (["--services", "SB"], "no service 'SB'; did you mean S"),
        (["--services", "olm"], "no service 'olm'; did you mean OLM?"),
        (["--part", "overhed"], "no part 'overhed'; did you mean overhead?"),
        (["--modes", "None"], "None is bare metal, which every mode is measured beside; expected some of"),
        (["--bytes", "2"], "expected a part such as 1/8, from 1/1024 to 1, found '2'"),
        (["--bytes", "1/0"], "expected a part such as 1/8"),
        (["--bytes", "1/1025"], "expected a part such as 1/8, from 1/1024 to 1, found '1/1025'"),
        (["--bytes", "nan"], "expected a part such as 1/8"),
        (["--batch", "0"], "expected rows from 1 to 1024, found '0'"),
        (["--times", "nowhere.yaml"], "expected `light` or a file of device times, found 'nowhere.yaml'"),
        (["--times", ""], "--times: expected `light` or a file of device times, found ''"),
        (["--rows-per-request", "8"], "--rows-per-request: expected 1 or a batch's 64, found 8"),
        (["--batch", "65", "--rows-per-request", "64"], "expected 1 or a batch's 65, found 64"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_a_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "SP: {o2: [.nan, 1]}",
            r"SP\.o2: expected \[compute, update\] in ms, from 0 to 600000, found \[nan, 1\]",
        ),
        ("SP: {o2: [1, -2]}", r"SP\.o2: expected \[compute, update\] in ms, from 0 to 600000"),
        ("SP: {o2: [.inf, 0]}", r"SP\.o2: expected"),
        ("SP: {o2: fast}", r"SP\.o2: expected"),
        ("SP: {o2: true}", r"SP\.o2: expected"),
        ("SP: {o9: 3}", r"SP\.o9: expected an operator of o1, o2, o3"),
        ("SQ: {o2: 3}", "expected a service of SA, SP, AP, FD, OLV, OLM, found 'SQ'"),
        ("SP: 3", "SP: expected operators and their times, found 3"),
        ("- 1", "expected services and their operators' times"),
        ("{}", "expected services and their operators' times, found {}"),
        ("SP: {}", "SP: expected operators and their times, found {}"),
        ("{", "expected YAML"),
        ("[" * 3000, "expected YAML"),
        ("SP: {o2: 2020-99-99}", r"t\.yaml: expected YAML: month must be in 1\.\.12"),
        (f"SP: {{o2: 1{'0' * 400}}}", r"SP\.o2: expected .* found 10+\.\.\."),
    ],
)
def test_times_that_are_none_are_refused_with_their_place(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "t.yaml").write_text(text)
    with pytest.raises(ValueError, match=said):
        read_times(str(tmp_path / "t.yaml"))


def test_times_are_read(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("SP: {o2: [46, 2], o7: 3}")
    assert read_times(str(tmp_path / "t.yaml")) == {"SP": {"o2": (46.0, 2.0), "o7": (3.0, 0.0)}}
    assert read_times("light") == {"OLV": {"o4": (13.0, 0.0)}}


def test_too_little_memory_is_told_with_what_is_needed_and_what_fits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(services, "memory_available", lambda: 6 * 10**9)
    with pytest.raises(SystemExit):
        command.main(["--services", "OLV"])
    said = capsys.readouterr().err
    assert "OLV in mode NonStop needs about 10.8 GB" in said
    assert "6.0 GB are free: --bytes 1/4 makes the states smaller" in said
    assert (
        services.too_little_memory([(SERVICES["OLV"], "NonStop", Settings(bytes=0.25))], sized=False) is None
    )
    monkeypatch.setattr(services, "memory_available", lambda: 10**9)
    told = services.too_little_memory([(SERVICES["OLV"], "NonStop", Settings())], sized=False)
    assert told is not None
    assert "too little for states of any size, as the processes alone take 2.1 GB" in told


def test_memory_is_asked_for_what_is_measured_and_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "memory_available", lambda: 6 * 10**9)
    monkeypatch.setattr(command, "cores", lambda: 2)
    assert run_of("--part", "divergence"), "OLM alone"
    assert run_of("--loads", "Sat"), "on two cores with states of 1/8"
    with pytest.raises(ValueError, match=r"OLV .* --bytes 1/4 makes"):
        run_of("--bytes", "1/2")
    with pytest.raises(ValueError, match=r"OLV .* --bytes 1/4 makes"):
        run_of()
    monkeypatch.setattr(command, "has_gpu", lambda: True)
    with pytest.raises(ValueError, match="real networks have states of one size; --services leaves it out"):
        run_of("--models", "real")
    for arguments in (("--part", "scale"), ("--part", "all", "--bytes", "1/4")):
        with pytest.raises(
            ValueError, match=r"OLV .* part varies the size .* --services or --part leaves it out"
        ):
            run_of(*arguments)


@pytest.mark.usefixtures("roomy")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--short --kills 10", "--kills: --short decides that; leave one of them out"),
        ("--short --loads Sat", "--loads: --short decides that; leave one of them out"),
        ("--part recovery --loads L1", "--loads: part recovery does not use it; overhead would"),
        ("--part batches --batch 8", "--batch: part batches does not use it; overhead, ablations, breakdown"),
        ("--part scale --bytes 1/2", "--bytes: part scale does not use it; overhead"),
        ("--part divergence --services SP", "--services: part divergence does not use it"),
        ("--part correlated --services OLM", "--services: part correlated measures SP, AP only"),
        ("--part peers --modes Remus", "--modes: part peers does not use it"),
        ("--part breakdown --seed 4", "--seed: part breakdown does not use it"),
        ("--times light --services SP", "--times light: has times of OLV; measured are SP"),
        ("--part divergence --times light", "--times light: has times of OLV; measured are OLM"),
        ("--part correlated --times light", "--times light: has times of OLV; measured are SP, AP"),
        ("--times light --pace none", "--times: with --pace none operators wait for no device time"),
        ("--services SP,OLM,SP", "service SP is named twice"),
    ],
)
def test_an_option_that_nothing_uses_is_refused(
    arguments: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(arguments.split())
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("roomy")
def test_of_all_parts_each_measures_the_services_that_it_has() -> None:
    run = run_of("--part", "all", "--services", "FD")
    assert [part for part in command.PARTS if not run.services_of(part)] == ["correlated", "peers"]


def test_a_part_with_larger_batches_needs_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    fd = SERVICES["FD"]
    small, large = Settings(state="cells"), Settings(state="cells", batch=max(overhead.BATCHES))
    needed = [services.memory_needed(fd, "NonStop", settings) for settings in (small, large)]
    assert needed[0] < needed[1]
    monkeypatch.setattr(services, "memory_available", lambda: needed[0])
    arguments = ("--services", "FD", "--state", "cells", "--modes", "NonStop")
    assert run_of("--part", "overhead", *arguments)
    with pytest.raises(ValueError, match="FD in mode NonStop needs about"):
        run_of("--part", "batches", *arguments)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--kills", "0", "expected a whole number from 1 to 100000, found '0'"),
        ("--pairs", "0", "expected a whole number from 1 to 100000, found '0'"),
        ("--pairs", "-1", "expected a whole number from 1 to 100000, found '-1'"),
        ("--window-s", "0", "expected seconds above 0 and at most 3600, found '0'"),
        ("--batch", "0", "expected rows from 1 to 1024, found '0'"),
        ("--batch", "9" * 5000, "expected rows from 1 to 1024, found '999"),
        ("--bytes", "1e999999999", "expected a part such as 1/8"),
        ("--bytes", "1/0", "expected a part such as 1/8"),
        ("--bytes", "nan", "expected a part such as 1/8"),
        ("--bytes", "1e400", "expected a part such as 1/8, from 1/1024 to 1, found '1e400'"),
        ("--seed", "x", "expected a whole number from 0 to 999999999, found 'x'"),
        ("--window-s", "nan", "expected seconds above 0 and at most 3600, found 'nan'"),
    ],
)
def test_of_nothing_there_is_no_median(
    option: str, value: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main([f"{option}={value}"])
    assert f"argument {option}: {said}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("", "expected a file FILE.json, found ''"),
        ("plain", "expected a file FILE.json, found"),
        ("plot.svg", "expected a file FILE.json, found"),
        ("folder.json", "found a folder"),
        ("file.txt/paper.json", "cannot be written"),
        ("beside.json", "its rows go into the folder"),
        ("broken.json", "overhead.json: expected rows of earlier runs"),
    ],
)
@pytest.mark.usefixtures("roomy")
def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], out: str, said: str
) -> None:
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "file.txt").touch()
    (tmp_path / "beside").touch()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/overhead.json").write_text('{"rows": ')
    monkeypatch.setitem(command.PARTS, "overhead", _measures_nothing)
    with pytest.raises(SystemExit) as ended:
        command.main(["--out", str(tmp_path / out) if out else ""])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("roomy")
def test_a_part_that_cannot_be_written_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(part: str, results: object, options: object) -> None:
        if part == "overhead":
            raise OSError(28, "No space left on device")

    async def nothing(run: object) -> list[dict[str, object]]:
        return []

    for part in ("overhead", "recovery"):
        monkeypatch.setitem(command.PARTS, part, nothing)
    monkeypatch.setattr(command, "deliver_part", full)
    assert command.main(["--short", "--out", str(tmp_path / "paper.json")]) == 1
    said = capsys.readouterr().err
    assert "part overhead was measured and not written: [Errno 28] No space left on device" in said
    assert "failed: overhead; the other parts are done" in said


@pytest.mark.usefixtures("roomy")
@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("paper/recovery.json", "garbage", "found Expecting value"),
        ("paper/recovery.json", "{}", "found no `rows`"),
        ("paper/recovery.json", "[]", "found no `rows`"),
        ("paper/recovery.json", '{"rows": [{}]}', "found a row or machine without '"),
        ("paper/peers.json", '{"rows": [3]}', "found a row that is 3"),
        ("paper/peers.json", '{"rows": [], "machines": 3}', "found `machines`: 3"),
        (
            "paper/peers.json",
            '{"rows": [], "machines": {"m": {}}}',
            "found a row or machine without 'memory_gib'",
        ),
        ("overhead.json", "garbage", "found Expecting value"),
        ("overhead.json", '{"bench": "overhead"}', "found no `rows`"),
        ("overhead.json", '{"bench": "overhead", "rows": []}', "found a row or machine without 'machine'"),
    ],
)
def test_a_file_of_somebody_else_is_told_before_anything_is_measured(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    file: str,
    text: str,
    said: str,
) -> None:
    (tmp_path / "paper").mkdir()
    (tmp_path / file).write_text(text)
    monkeypatch.setitem(command.PARTS, "overhead", _measures_nothing)
    with pytest.raises(SystemExit) as ended:
        command.main(["--out", str(tmp_path / "paper.json")])
    assert ended.value.code == 2
    assert f"{tmp_path / file}: expected rows of earlier runs, {said}" in capsys.readouterr().err


def test_what_is_no_part_lies_beside_unread(tmp_path: Path) -> None:
    (tmp_path / "paper").mkdir()
    for file in ("paper/notes.json", "overhead.json"):
        (tmp_path / file).write_text("[]")
    files.check_folder(tmp_path / "paper.json", ["overhead"])


def test_a_disk_that_is_full_leaves_the_rows_of_earlier_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "overhead.json").write_text('{"rows": []}')
    write = Path.write_text

    def full(path: Path, text: str) -> int:
        write(path, text[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    result = {"command": "hams bench paper", "machine": MACHINE, "rows": []}
    with pytest.raises(OSError, match="No space"):
        files._take_in("overhead", result, tmp_path)
    assert (tmp_path / "overhead.json").read_text() == '{"rows": []}'


def _measures_nothing(run: object) -> NoReturn:
    raise AssertionError("nothing may be measured")


def test_who_asks_for_ray_and_has_none_is_told_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "python").touch()  # as a failed installation leaves it
    monkeypatch.setattr(measure, "PYTHON", tmp_path / "python")
    monkeypatch.setattr(measure, "INSTALLED", tmp_path / ".installed")
    with pytest.raises(SystemExit):
        command.main(["--part", "peers"])
    assert capsys.readouterr().err.endswith(
        "part peers needs Ray Serve, which is not installed: `make bench-peers` installs and runs it\n"
    )
    assert "peers" not in command._parts(command._parser().parse_args(["--part", "all"]))


def test_cells_are_what_changes_and_a_learner_changes_everything() -> None:
    whole, cells = Settings(), Settings(state="cells")
    assert state_bytes(SERVICES["OLV"], cells) == state_bytes(SERVICES["OLV"], whole)
    assert state_bytes(SERVICES["AP"], cells) < state_bytes(SERVICES["AP"], whole) / 5


# -- the files


def row(service: str, mode: str, ms: float) -> dict[str, Any]:
    percent = {"value": 1.0, "low": 0.5, "high": 1.5}
    return {
        "service": service,
        "mode": mode,
        "load": "L1",
        "kind": "all",
        **Settings().said(service),
        "pairs": 6,
        "window_s": 10.0,
        "windows": 12,
        "bare_ms": 100.0,
        "mode_ms": ms,
        "added_ms": ms - 100,
        "overhead_percent": percent,
        "lost_percent": percent,
        "bare_per_s": 10.0,
        "mode_per_s": 9.9,
        "bare_busy_cores": 0.1,
        "mode_busy_cores": 0.2,
        "bare_idle_cores": 0.01,
        "mode_idle_cores": 0.02,
        "others_cores": 0.1,
        "void": False,
    }


def test_a_piece_takes_the_place_of_the_rows_that_it_measured_again() -> None:
    old = [row("SP", "NonStop", 101), row("SP", "Remus", 110)]
    new = [row("SP", "Remus", 112), row("OLM", "Remus", 30)]
    assert [(item["service"], item["mode_ms"]) for item in merged(old, new)] == [
        ("SP", 101),
        ("SP", 112),
        ("OLM", 30),
    ]


def test_a_short_run_never_takes_the_place_of_a_longer_one() -> None:
    long, short = row("SP", "NonStop", 101), {**row("SP", "NonStop", 150), "pairs": 2, "window_s": 3.0}
    assert merged([long], [short]) == [long]
    assert merged([short], [long]) == [long]
    kills = {"service": "SP", "mode": "NonStop", "case": "o2 both"}
    assert merged([{**kills, "kills": 10}], [{**kills, "kills": 1}]) == [{**kills, "kills": 10}]


@pytest.mark.parametrize(
    "other",
    [
        Settings(times=services.LIGHT),
        Settings(times={"OLV": {"o2": (5.0, 1.0)}}),
        Settings(times={"OLV": {"o2": (5.0, 2.0)}}),
        Settings(whole=True),
        Settings(checkpoint_batches=10),
    ],
    ids=["light", "other times", "yet other times", "whole states", "stored more often"],
)
def test_rows_of_other_settings_stand_beside_each_other(other: Settings) -> None:
    others = [Settings(), Settings(times={"OLV": {"o2": (4.0, 1.0)}})]
    rows = [{**row("OLV", "NonStop", 101), **item.said("OLV")} for item in others]
    assert len(merged(rows, [{**row("OLV", "NonStop", 300), **other.said("OLV")}])) == 3
    assert len({setting(item) for item in rows}) == 2


def test_times_of_other_services_are_none_of_a_rows() -> None:
    assert Settings(times=services.LIGHT).said("SP") == Settings().said("SP")


@pytest.mark.parametrize(
    ("part", "said"), [(0.125, "1/8"), (0.75, "3/4"), (0.4, "2/5"), (0.7, "7/10"), (1 / 1024, "1/1024")]
)
def test_a_part_of_a_state_is_called_what_it_is(part: float, said: str) -> None:
    assert setting({**row("SP", "NonStop", 101), "bytes": part}) == f"everything, {said}"


def test_states_travel_whole_if_that_is_asked_for() -> None:
    def deltas(settings: Settings) -> set[bool]:
        return {op.delta for op in compiled("SP", settings=settings).data.operators if op.stateful}

    assert deltas(Settings()) == {True}
    assert deltas(Settings(whole=True)) == {False}


def test_what_was_measured_is_written_and_added_to_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = argparse.Namespace(out=tmp_path / "paper.json", output="json")
    for mode in ("NonStop", "Remus"):
        result = {
            "bench": "paper/overhead",
            "machine": MACHINE,
            "command": "hams bench paper",
            "rows": [row("SP", mode, 101)],
        }
        deliver_part("overhead", {"overhead": result}, options)
        assert capsys.readouterr().out == ""
        assert json.loads(options.out.read_text()) == result
    written = json.loads((tmp_path / "paper" / "overhead.json").read_text())
    together = written["rows"]
    assert [item["mode"] for item in together] == ["NonStop", "Remus"]
    assert together[0]["measured"] == "2026-11-24 12:00:00"
    assert {item["machine"] for item in together} == {"2 cores, a processor"} == set(written["machines"])


@pytest.mark.parametrize(
    ("rows", "status"),
    [
        ([row("SP", "NonStop", 101)], 0),
        ([{**row("SP", "NonStop", 101), "ok": False}], 1),
        ([{**row("SP", "NonStop", 101), "ok": True, "failed": 1, "kills": 3}], 1),
        ([{**row("SP", "NonStop", 101), "ok": True, "failed": 0, "kills": 3}], 0),
    ],
    ids=["measured", "lost or doubled", "failed", "nothing lost"],
)
def test_the_exit_code_is_the_verdict(
    rows: list[dict[str, Any]], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def part() -> list[dict[str, Any]]:
        return rows

    monkeypatch.setitem(command.PARTS, "overhead", lambda run: part())
    monkeypatch.setattr(services, "memory_available", lambda: 10**12)
    assert command.main(["--part", "overhead", "--services", "SP", "--output", "json"]) == status


def test_a_part_that_fails_costs_no_other_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def breaks(error: Exception) -> list[dict[str, Any]]:
        raise error

    async def part() -> list[dict[str, Any]]:
        return [row("SP", "NonStop", 101)]

    parts = {
        "overhead": lambda run: part(),
        "batches": lambda run: breaks(Failed("a request failed")),
        "ablations": lambda run: breaks(ExceptionGroup("clients", [Failed("another one")])),
        "scale": lambda run: part(),
    }
    monkeypatch.setattr(command, "PARTS", parts)
    monkeypatch.setattr(services, "memory_available", lambda: 10**12)
    arguments = ["--part", "all", "--output", "json", "--out", str(tmp_path / "paper.json")]
    assert command.main(arguments) == 1
    out, err = capsys.readouterr()
    assert (
        list(json.loads(out))
        == ["overhead", "scale"]
        == list(json.loads((tmp_path / "paper.json").read_text()))
    )
    assert "failed: batches, ablations" in err
    assert "part batches: a request failed" in err
    assert "another one" in err
    assert {file.name for file in (tmp_path / "paper").glob("*.json")} == {"overhead.json", "scale.json"}


def run_of(*arguments: str) -> command.Run:
    return command._run(command._parser().parse_args(arguments))


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "memory_available", lambda: 10**12)


@pytest.mark.usefixtures("roomy")
def test_each_part_has_its_modes_its_states_and_its_kills_unless_others_are_named() -> None:
    run = run_of("--part", "all")
    assert run.modes_of("overhead") == ("NonStop", "Remus")
    assert run.modes_of("ablations") == ("NonStop", "BufferedOutputs", "StopAndCopy", "Remus")
    assert run.modes_of("recovery") == MODES, "that nothing is lost is said of all of them"
    assert run.modes_of("divergence") == MODES
    assert [run.settings_of(part).whole for part in ("overhead", "ablations")] == [False, True]
    assert [run.kills_of(part) for part in ("recovery", "divergence")] == [10, 50]
    named = run_of("--part", "all", "--modes", "Remus", "--states", "chunks", "--kills", "3")
    assert {named.modes_of(part) for part in command.PARTS} == {("Remus",)}
    assert not named.settings_of("ablations").whole
    assert {named.kills_of(part) for part in command.PARTS} == {3}


@pytest.mark.usefixtures("roomy")
def test_how_long_it_takes_is_told_before() -> None:
    run = run_of("--part", "all")
    hours = {part: command.takes_s(part, run) / 3600 for part in command.PARTS}
    assert hours["overhead"] > 6 * 2 * 3 * 12 * 10 / 3600, "windows alone"
    assert 8 < sum(hours.values()) < 24
    assert sum(command.takes_s(part, run_of("--short")) for part in ("overhead", "recovery")) < 400
    assert (estimate.said(30), estimate.said(3660)) == ("1 min", "1 h 01 min")


def test_what_this_process_has_started_is_of_its_family() -> None:
    before = cpu_of_family(os.getpid())
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert cpu_of_family(os.getpid()) >= before + 0.25, "it has ended, and was waited for"
    with subprocess.Popen([sys.executable, "-c", burn + "\nprint()\ninput()"], stdin=-1, stdout=-1) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert cpu_of_family(os.getpid()) >= before + 0.5, "it lives"
        assert cpu_of_family(child.pid) >= 0.25
        child.kill()


def test_the_short_form_measures_and_kills_two_services() -> None:
    options = command._parser().parse_args(["--short"])
    assert command._parts(options) == ["overhead", "recovery"]
    run = command._run(options)
    assert ([item.name for item in run.services], run.kills, run.loads) == (["SP", "OLM"], 1, ("L1",))
    assert run.modes_of("recovery") == ("NonStop", "Remus")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--bytes", "1/8"), "--bytes: real networks have states of one size"),
        (("--part", "scale"), "part scale needs --models emulated: it varies the size of states"),
        (("--part", "divergence"), "part divergence needs --models emulated: it adds noise"),
    ],
)
def test_what_real_networks_have_no_setting_of_is_refused(
    arguments: tuple[str, ...], said: str, roomy: None
) -> None:
    with pytest.raises(ValueError, match=said):
        run_of("--models", "real", *arguments)


@pytest.mark.usefixtures("roomy")
def test_without_a_gpu_real_networks_only_show_that_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "has_gpu", lambda: False)
    assert run_of("--models", "real", "--batch", "1").settings.models == "real"
    for more in ((), ("--part", "batches"), ("--part", "all", "--batch", "1")):
        with pytest.raises(
            ValueError, match=r"--models real: part .* expected a GPU, found none .* --batch 1"
        ):
            run_of("--models", "real", *more)


def test_real_networks_run_all_other_parts_with_states_as_they_are(
    roomy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "cores", lambda: 2.0)
    monkeypatch.setattr(command, "has_gpu", lambda: True)
    assert run_of().eased
    assert not run_of("--models", "real", "--bytes", "1").eased
    parts = command._parts(command._parser().parse_args(["--models", "real", "--part", "all"]))
    assert "recovery" in parts
    assert not {"scale", "divergence"} & set(parts)


def test_a_run_beside_ray_counts_two_systems_of_two_services(roomy: None) -> None:
    run = run_of("--part", "overhead")
    assert command.takes_s("peers", run) == 2 * 2 * (25.0 + 2 * 6 * 10.0 + 12.0)
