"""The table of faults says "passed" only of what ran and passed."""

import importlib.util
import json
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
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| F")]
    return {row[0]: row[2:] for row in cells}


def test_each_outcome_is_told_from_the_others(tool: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "p.xml").write_text(JUNIT)
    (tmp_path / "F1.json").write_text(json.dumps({"histories": 9, "failures": []}))
    (tmp_path / "F2.json").write_text(json.dumps({"histories": 9, "failures": [{}]}))
    found: dict[tuple[str, str], object] = {}
    (tmp_path / "older.xml").write_text(
        JUNIT.replace('<testcase name="test_f13_lost" time="1.0"/>', '<testcase name="test_f13_lost"><error/></testcase>')
    )
    tool.read_junit([tmp_path / "older.xml", tmp_path / "p.xml"], found)
    for name in ("F1", "F2"):
        tool.read_sim(tmp_path / f"{name}.json", found)
    said = rows(tool.table(found))
    assert said["F1"][0].startswith("passed (9 histories)")
    assert said["F1"][1] == "passed (1 test), 2 s, 2026-01-02"
    assert said["F2"][0].startswith("**failed**: 1 of 9")
    assert said["F3"][1].startswith("**failed**: 1 of 2")
    assert said["F13"][1].startswith("**in part**: 1 passed, 1 known to fail")
    assert said["F16"][1] == "skipped (1)"
    assert said["F2"][1] == said["F11"][2] == "no result"
    assert said["F11"][0] == "-"
    assert sum("passed" in cell for cells in said.values() for cell in cells) == 3


def test_a_scenario_on_a_cluster_counts_for_that_level(tool: ModuleType, tmp_path: Path) -> None:
    suite = '<testsuite timestamp="2026-01-02T03:04:05"><testcase classname="{}" name="test_F16_F17_cut[primary]" time="2.0"/></testsuite>'
    (tmp_path / "k.xml").write_text("<testsuites>" + suite.format("e2e.scenarios.test_nodes") + "</testsuites>")
    found: dict[tuple[str, str], object] = {}
    tool.read_junit([tmp_path / "k.xml"], found)
    said = rows(tool.table(found))
    assert said["F16"][1:] == said["F17"][1:] == ["no result", "passed (1 test), 2 s, 2026-01-02"]


@pytest.mark.parametrize(
    ("name", "text"), [("F1.json", "{}"), ("F1.json", '{"histories": 0, "failures": []}'), ("F11.json", '{"histories": 1, "failures": []}')]
)
def test_what_is_no_result_is_refused(tool: ModuleType, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(tool.BadResults):
        tool.read_sim(tmp_path / name, {})
