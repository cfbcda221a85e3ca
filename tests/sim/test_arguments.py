"""What `hams sim` is asked for is what it runs: a word that no history is about is an error, in one line."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

import hams_sim
from hams_sim.arguments import CHOICES, ELSEWHERE, drops_of, parse, shapes_of
from hams_sim.mutants.catalogue import MUTANTS
from hams_sim.mutants.hunt import histories
from hams_sim.runner import main, specs
from hams_sim.scenarios import SCENARIOS, SCENES
from hams_sim.simulate import PLAIN, make_plan
from hams_sim.worker import spec_from, spec_to

CORPUS = json.loads((Path(hams_sim.__file__).parent / "corpus" / "seeds.json").read_text())


def refused(capsys, *arguments: str) -> str:
    """The line with which a call is refused."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("hams sim: ")
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize("word", ["F99", "F0", "nope", "F8 ", "none", ""])
def test_a_word_that_no_history_is_about_is_refused(capsys, word):
    said = refused(capsys, "--fault", word, "--histories", "1")
    assert "expected a row of the fault catalogue (F1, F2, " in said
    assert f"found {word!r}" in said


def test_a_word_that_is_nearly_one_is_asked_back(capsys):
    assert "did you mean kill-model?" in refused(capsys, "--fault", "kil-model")
    assert "did you mean sandwich?" in refused(capsys, "--shape", "sandwhich")
    assert "did you mean no-fence?" in refused(capsys, "--mutant", "nofence")


@pytest.mark.parametrize("row", sorted(ELSEWHERE))
def test_a_row_that_is_not_simulated_says_where_it_runs(capsys, row):
    for word in (row, row.lower()):
        said = refused(capsys, "--fault", word, "--histories", "1", "--shape", "single")
        assert f"{row} is not simulated: it needs " in said
        assert "make test-faults" in said or "make e2e" in said


def test_the_rows_that_are_not_simulated_are_those_of_the_catalogue():
    spec = importlib.util.spec_from_file_location(
        "faults_table", Path(__file__).parents[2] / "tools" / "faults_table.py"
    )
    assert spec is not None
    assert spec.loader is not None
    table = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    levels = {row: levels for row, levels, _ in table.CATALOGUE}
    assert {row for row, item in levels.items() if "S" in item} == set(SCENARIOS)
    assert {row for row, item in levels.items() if "S" not in item} == set(ELSEWHERE)
    for row, where in ELSEWHERE.items():
        assert ("make test-faults" in where, "make e2e" in where) == (
            "P" in levels[row],
            "K" in levels[row],
        ), row


def test_the_case_of_a_row_does_not_matter():
    assert parse(["--fault", "f8"]).fault == "F8"
    assert parse(["--fault", "MIXED"]).fault == "mixed"


@pytest.mark.parametrize("word", CHOICES)
def test_every_known_word_means_histories_with_a_fault(word):
    """Of F4, F24 and those scenes whose harm lies in requests, clocks or the graph there is none in the
    plan."""
    first = next(specs(parse(["--fault", word, "--histories", "1"])))
    assert first.fault == ("" if word == PLAIN else word)
    if word in SCENES or word in ("mixed", "plain"):
        assert make_plan(first)
    else:
        assert {fault.kind for fault in make_plan(first).faults} == {word}


def test_the_words_and_shapes_of_the_corpus_and_of_the_mutants_are_known():
    for item in CORPUS:
        assert parse(["--fault", item.get("fault", PLAIN), "--shape", item["shape"]])
    for name in MUTANTS:
        assert parse(["--mutant", name])
    pairs = {(spec.fault or PLAIN, spec.shape) for name in MUTANTS for spec in histories(name, 40, 1)}
    for fault, shape in pairs:
        assert parse(["--fault", fault, "--shape", shape])


def test_a_scene_on_a_graph_without_what_it_is_about_is_refused(capsys):
    assert "what F8 is about needs one of sandwich; found single" in refused(
        capsys, "--fault", "f8", "--shape", "single"
    )
    assert "router" in shapes_of("F9"), "where a mutant needs it"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shape", "square"), "argument --shape: expected one of single, pair, "),
        (("--mutant", "x"), "argument --mutant: expected a mutant of docs/mutants.md, found 'x'"),
        (("--histories", "0"), "argument --histories: expected 1 or more, found 0"),
        (("--histories", "many"), "argument --histories: expected a whole number, found 'many'"),
        (("--jobs", "-1"), "argument --jobs: expected 1 or more, found -1"),
        (("--seed", "x"), "argument --seed: expected a whole number, found 'x'"),
        (
            ("--drop", "fault"),
            "argument --drop: expected fault:N, call:N or op:NAME, separated by commas, found 'fault'",
        ),
        (("--drop", "call:x"), "found 'call:x'"),
        (("--drop", "nope:1"), "found 'nope:1'"),
        (
            ("--early-replies", "--mode", "LineageStash"),
            "argument --early-replies: in mode LineageStash no reply waits for a state",
        ),
        (("--nope",), "unrecognized arguments: --nope"),
        (("--by-receipt", "--mode", "Remus"), "argument --by-receipt: only NonStop goes by receipt"),
    ],
)
def test_a_wrong_argument_is_said_in_one_line(capsys, arguments, message):
    assert message in refused(capsys, *arguments)


def test_what_goes_by_receipt_says_so_in_the_command_that_replays_it():
    spec = next(specs(parse(["--by-receipt", "--histories", "1"])))
    assert spec.by_receipt
    assert spec.command().endswith(" --by-receipt")
    assert spec_from(spec_to(spec, ""))[0] == spec
    assert " --by-receipt" not in next(specs(parse(["--histories", "1"]))).command()


def test_what_is_left_out_is_read_by_what_it_is():
    assert drops_of("fault:1,call:2,call:3,op:a") == {"fault": {"1"}, "call": {"2", "3"}, "op": {"a"}}


def test_a_progress_file_that_is_none_is_said_so(tmp_path, capsys):
    (tmp_path / "notes").write_text('{"about": {}}\n')
    for path, message in (
        (tmp_path, "Is a directory"),
        (tmp_path / "notes", "line 1: expected what an earlier run noted"),
        (tmp_path / "no" / "x", "No such"),
    ):
        assert main(["--histories", "1", "--progress", str(path)]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"hams sim: --progress {path}")
        assert message in said
        assert said.count("\n") == 1
