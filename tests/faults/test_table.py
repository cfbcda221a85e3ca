"""The table of faults says "passed" only of what ran and passed, and of how many."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

JUNIT = """<testsuites><testsuite timestamp="2026-01-02T03:04:05">
<testcase name="test_f1_f3_dies[both]" time="2.0"/>
<testcase name="test_f3_model" time="1.0"><failure message="no"/></testcase>
<testcase name="test_f13_lost" time="1.0"/>
<testcase name="test_f13_more" time="1.0"><skipped type="pytest.xfail" message="known"/></testcase>
<testcase name="test_f16_f17_host" time="0.0"><skipped type="pytest.skip" message="root"/></testcase>
<testcase name="test_other" time="1.0"/>
</testsuite></testsuites>"""


@pytest.fixture
def tool() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "faults_table.py"
    spec = importlib.util.spec_from_file_location("faults_table", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def rows(text: str) -> dict[str, list[str]]:
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| F")
    ]
    return {row[0]: row[2:] for row in cells}


def test_each_outcome_is_told_from_the_others(tool: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "p.xml").write_text(JUNIT)
    (tmp_path / "F1.json").write_text(json.dumps({"histories": 9, "histories_per_s": 4.5, "failures": []}))
    (tmp_path / "F2.json").write_text(json.dumps({"histories": 9, "failures": [{}]}))
    by_name: dict[tuple[str, str], object] = {}
    (tmp_path / "older.xml").write_text(
        JUNIT.replace(
            '<testcase name="test_f13_lost" time="1.0"/>',
            '<testcase name="test_f13_lost"><error/></testcase>',
        )
    )
    tool.read_junit([tmp_path / "older.xml", tmp_path / "p.xml"], by_name, set())
    for name in ("F1", "F2"):
        tool.read_sim(tmp_path / f"{name}.json", by_name)
    said = rows(tool.table(by_name))
    assert re.fullmatch(r"passed \(9 histories\), 2 s, \d{4}-\d\d-\d\d", said["F1"][0])
    assert said["F1"][1] == "passed (1 test), 2 s, 2026-01-02"
    assert said["F2"][0].startswith("**failed**: 1 of 9")
    assert said["F3"][1].startswith("**failed**: 1 of 2")
    assert said["F13"][1].startswith("**in part**: 1 passed, 1 known to fail")
    assert said["F16"][1] == "skipped (1)"
    assert said["F2"][1] == said["F11"][2] == "no result"
    assert said["F11"][0] == "-"
    assert sum("passed" in cell for cells in said.values() for cell in cells) == 3


def test_a_scenario_on_a_cluster_counts_for_that_level(tool: ModuleType, tmp_path: Path) -> None:
    suite = (
        '<testsuite timestamp="2026-01-02T03:04:05"><testcase classname="{}" '
        'name="test_F16_F17_cut[primary]" time="2.0"/></testsuite>'
    )
    (tmp_path / "k.xml").write_text(
        "<testsuites>" + suite.format("e2e.scenarios.test_nodes") + "</testsuites>"
    )
    by_name: dict[tuple[str, str], object] = {}
    tool.read_junit([tmp_path / "k.xml"], by_name, set())
    said = rows(tool.table(by_name))
    assert said["F16"][1:] == said["F17"][1:] == ["no result", "passed (1 test), 2 s, 2026-01-02"]


COLLECTED = """tests/faults/test_kills.py::test_f1_dies[less than one]
tests/faults/test_kills.py::test_f1_dies[a::b]
tests/faults/test_kills.py::TestMore::test_f2_too
e2e/scenarios/test_nodes.py::test_F1_cut

4 tests collected in 0.10s
"""


def junit(*tests: tuple[str, str]) -> str:
    cases = "".join(f'<testcase classname="{module}" name="{name}" time="1.0"/>' for module, name in tests)
    return f'<testsuites><testsuite timestamp="2026-01-02T03:04:05">{cases}</testsuite></testsuites>'


def test_a_row_of_which_a_part_ran_says_of_how_many(tool: ModuleType, tmp_path: Path) -> None:
    tests = tool.collected(COLLECTED, "given")
    here = "tests.faults.test_kills"
    assert tests == {
        (here, "test_f1_dies[less than one]"),
        (here, "test_f1_dies[a::b]"),
        (f"{here}.TestMore", "test_f2_too"),
        NODES,
    }
    for ran, cells in (
        ([(here, "test_f1_dies[a::b]")], ["passed (1 of 2 tests), 1 s, 2026-01-02", "no result"]),
        (
            [(here, "test_f1_dies[a::b]"), (here, "test_f1_dies[less than one]"), NODES],
            ["passed (2 tests), 2 s, 2026-01-02", PASSED],
        ),
        ([(here, "test_f1_named_so_once"), NODES], ["no result", PASSED]),
        (
            [(here, "test_f1_dies[a::b]"), ("tests.other", "test_f1_elsewhere")],
            ["passed (2 tests), 2 s, 2026-01-02", "no result"],
        ),
    ):
        (tmp_path / "p.xml").write_text(junit(*ran))
        by_name: dict[tuple[str, str], object] = {}
        tool.count_sources(tests, by_name)
        gone = tool.read_junit([tmp_path / "p.xml"], by_name, tests)
        assert gone == [f"{module}.{name}" for module, name in ran if "once" in name]
        assert rows(tool.table(by_name))["F1"][1:] == cells


NODES = ("e2e.scenarios.test_nodes", "test_F1_cut")
PASSED = "passed (1 test), 1 s, 2026-01-02"


def test_failures_and_skips_are_counted_against_the_sources_too(tool: ModuleType) -> None:
    assert (
        tool.RowResult(there=6, failed=1, passed=2, when=["d"]).cell()
        == "**failed**: 1 of 3 (of 6 tests 3 ran), 0 s, d"
    )
    assert (
        tool.RowResult(there=6, known=1, passed=5, when=["d"]).cell()
        == "**in part**: 5 passed, 1 known to fail, 0 s, d"
    )
    assert (
        tool.RowResult(there=6, passed=4, skipped=2, when=["d"]).cell()
        == "passed (4 of 6 tests, 2 skipped), 0 s, d"
    )
    assert tool.RowResult(there=6, skipped=2, when=["d"]).cell() == "skipped (2 of 6)"


def test_the_tool_asks_pytest_for_the_tests_and_names_the_commit(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.xml").write_text(junit(("tests.faults.test_table", "test_no_row")))
    for extra in ([], ["--collected", str(tmp_path / "c.txt")]):
        (tmp_path / "c.txt").write_text(COLLECTED)
        monkeypatch.setattr(
            sys,
            "argv",
            [
                "faults_table",
                "--junit",
                str(tmp_path / "p.xml"),
                "--commit",
                "abc1234",
                "--out",
                str(tmp_path / "o.md"),
                *extra,
            ],
        )
        assert tool.main() == 0
        text = (tmp_path / "o.md").read_text()
        assert "are of commit abc1234." in text
        assert set(rows(text)["F1"]) == {"no result"}
    (tmp_path / "c.txt").write_text("nothing")
    assert tool.main() == 2


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("F1.json", "{}"),
        ("F1.json", '{"histories": 0, "failures": []}'),
        ("F11.json", '{"histories": 1, "failures": []}'),
    ],
)
def test_what_is_no_result_is_refused(tool: ModuleType, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(tool.BadResults):
        tool.read_sim(tmp_path / name, {})


def test_a_cell_without_a_result_stays_as_it_was_and_a_new_result_replaces_it(tool: ModuleType) -> None:
    before = tool.cells_of(tool.table({("F1", "S"): tool.RowResult(passed=3, there=3, when=["2026-01-01"])}))
    kept = rows(tool.table({}, before=before))["F1"]
    assert kept[0] == "passed (3 tests), 0 s, 2026-01-01"
    fresh = {("F1", "S"): tool.RowResult(failed=1, there=1, when=["2026-02-02"])}
    assert rows(tool.table(fresh, before=before))["F1"][0].startswith("**failed**")
