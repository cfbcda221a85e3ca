"""Writes docs/faults.md: each row of the fault catalogue, and what ran of it at which level.

    pytest -m process --junitxml build/faults/process.xml
    make e2e                                            # leaves out/e2e/scenarios.xml
    hams sim --fault F8 --histories 2000 --output json > build/faults/F8.json
    python tools/faults_table.py --junit build/faults/process.xml out/e2e/scenarios.xml --sim
    build/faults/F*.json \\
        --commit $(git rev-parse --short HEAD)

A test counts for the ids its name begins with (`test_f16_f17_...`), below `e2e` for the level Kubernetes; a
simulation for the id its file is named after. Only what these results contain may say "passed", and where
they lack tests that the sources have (each set of parameters is one), the cell says how many of how many:
pytest is asked for those of FOLDERS, or a file has its answer. A result of a test that the sources have no
more is left out, and named. With `--keep` a cell of which these results say nothing stays as the page has it,
with its day.
"""

import argparse
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUT = Path("docs/faults.md")
FOLDERS = ("tests/faults", "e2e/scenarios")
LEVELS = {"S": "simulation", "P": "processes", "K": "Kubernetes"}
CATALOGUE = (
    ("F1", "SPK", "primary dies after its output left, before the state reached the backup"),
    ("F2", "SP", "primary dies after the backup applied, before the durable notice"),
    ("F3", "SP", "proxy dies, model lives; model dies, proxy lives"),
    ("F4", "SP", "a request crashes the model process each time"),
    ("F5", "SP", "backup dies in mid-transfer; joining backup dies"),
    ("F6", "SP", "A's state delivery is delayed, B's arrives, A's primary dies"),
    ("F7", "SP", "F6, and B's backup dies at the same time"),
    ("F8", "SP", "stateful, stateless, stateful: upstream re-executed with another value"),
    ("F9", "SP", "stateless instance dies after delivering to one of two successors that later join"),
    ("F10", "SP", "neighbours die together"),
    ("F11", "K", "pod deleted gracefully, of each kind"),
    ("F12", "K", "pod deleted by force, of each kind"),
    ("F13", "PK", "all replicas of a stateful operator die"),
    ("F14", "K", "random forced deletion under load"),
    ("F15", "K", "node drain with a PodDisruptionBudget"),
    ("F16", "PK", "host of a primary gone, without a reset"),
    ("F17", "PK", "that host returns"),
    ("F18", "SP", "primary cut from everyone, from etcd, from its backup, from downstream"),
    ("F19", "SP", "asymmetric and bridge partitions"),
    ("F20", "SP", "flapping link"),
    ("F21", "SP", "loss, duplication, reordering, jitter; clogged links"),
    ("F22", "SP", "slow backup"),
    ("F23", "SP", "primary stopped just below and far beyond the timeout"),
    ("F24", "S", "wall clock an hour off"),
    ("F25", "SP", "heartbeats starved by a busy model"),
    ("F26", "P", "etcd stopped for less and for more than the TTL"),
    ("F27", "PK", "etcd leader killed or paused; sick member; watch compacted; lease revoked"),
    ("F28", "P", "etcd out of space; unknown outcome; expired token; restored from a backup"),
    ("F29", "SP", "manager dies within a recovery; two run it at once"),
    ("F30", "K", "API server away; controller dead"),
    ("F31", "K", "controller killed at every await; storm of API errors"),
    ("F32", "PK", "out of memory; disk full; torn checkpoint"),
    ("F33", "SPK", "promoted backup dies before a new one is in sync"),
    ("F34", "K", "rolling upgrades"),
    ("F35", "P", "state layout mismatch between versions"),
    ("F36", "P", "garbage on every port"),
    ("F37", "P", "wrong shape, datatype, NaN or text from a client or a model"),
    ("F38", "P", "slow, never-reading and reconnecting clients"),
    ("F39", "SP", "one idempotency key on two frontends; another payload under it"),
    ("F40", "S", "a thousand graphs lose their leases together"),
    ("F41", "SP", "many requests with failovers between: memory flat"),
    ("F42", "SP", "starvation: everybody waits for CPU, nobody dies"),
    ("F43", "SPK", "primaries die whole, and their replacements come late"),
)
ROW = re.compile(r"^test_((?:f\d+_)+)", re.IGNORECASE)
COLLECTED = re.compile(r"^(?P<file>\S+)\.py::(?P<name>.+)$", re.MULTILINE)

Test = tuple[str, str]
"""A test as JUnit names it: dotted module (and class), function with its parameters."""
Cells = dict[tuple[str, str], "RowResult"]
"""By row and level."""


class BadResults(Exception):
    """A result file is not what it should be; the text says which, and what was expected."""


@dataclass
class RowResult:
    """What ran of one row at one level. `there`: how many tests the sources have, 0 if that is not known."""

    there: int = 0
    passed: int = 0
    failed: int = 0
    known: int = 0
    skipped: int = 0
    seconds: float = 0.0
    unit: str = "tests"
    when: list[str] = field(default_factory=list)

    def cell(self) -> str:
        """For people."""
        ran = self.passed + self.failed + self.known
        if not ran and not self.skipped:
            return "no result"
        if not ran:
            return f"skipped ({self._of(self.skipped)})"
        if self.failed:
            said = f"**failed**: {self.failed} of {ran}" + self._lacking(ran)
        elif self.known:
            said = f"**in part**: {self.passed} passed, {self.known} known to fail" + self._lacking(ran)
        else:
            counted = self._of(self.passed)
            said = f"passed ({counted} {self.unit.rstrip('s') if counted == '1' else self.unit}"
            said += f", {self.skipped} skipped)" if self.skipped else ")"
        took = f", {self.seconds:.0f} s" if self.unit == "tests" or self.seconds else ""
        return f"{said}{took}, {max(self.when)}"

    def _of(self, count: int) -> str:
        return f"{count} of {self.there}" if count < self.there else str(count)

    def _lacking(self, ran: int) -> str:
        return f" (of {self.there} tests {ran} ran)" if ran < self.there else ""


def rows_of(name: str) -> list[str]:
    """The rows that a test counts for."""
    match = ROW.match(name)
    return [row.upper() for row in re.findall(r"f\d+", match.group(1).lower())] if match else []


def level_of(module: str) -> str:
    """The level of a test of this module."""
    return "K" if module.startswith("e2e.") else "P"


def collected(text: str, source: str) -> set[Test]:
    """The tests that `pytest --collect-only -q` names. Raises BadResults."""
    tests: set[Test] = set()
    for match in COLLECTED.finditer(text):
        *classes, name = re.split(r"::(?![^\[]*\])", match["name"])
        tests.add((".".join([match["file"].replace("/", "."), *classes]), name))
    if not tests:
        raise BadResults(f"{source}: expected what `pytest --collect-only -q` says, found no test")
    return tests


def collect() -> set[Test]:
    """The tests that the sources have, parameter sets apart. Raises BadResults."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *FOLDERS]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise BadResults(
            f"{' '.join(command)} ended with {answer.returncode}: "
            f"{answer.stdout[-1000:]}{answer.stderr[-1000:]}"
        )
    return collected(answer.stdout, " ".join(command))


def count_sources(tests: set[Test], into: Cells) -> None:
    """Say of each row and level how many tests there are."""
    for module, name in tests:
        for row in rows_of(name):
            into.setdefault((row, level_of(module)), RowResult()).there += 1


def read_junit(paths: list[Path], into: Cells, tests: set[Test]) -> list[str]:
    """Add the tests of JUnit files; of a test that is in several, the last one counts.

    `tests`: those of the sources; the ids of results whose modules these have, but without that test, are
    returned. Raises BadResults.
    """
    cases: dict[Test, tuple[ElementTree.Element, str]] = {}
    modules = {module for module, _ in tests}
    gone: list[str] = []
    for path in paths:
        for case, when in cases_of(path):
            cases[case.get("classname", ""), case.get("name", "")] = (case, when)
    for (module, name), (case, when) in cases.items():
        rows = rows_of(name)
        if rows and module in modules and (module, name) not in tests:
            gone.append(f"{module}.{name}")
            continue
        for row in rows:
            cell = into.setdefault((row, level_of(module)), RowResult())
            skipped = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                cell.failed += 1
            elif skipped is None:
                cell.passed += 1
            elif skipped.get("type") == "pytest.xfail":
                cell.known += 1
            else:
                cell.skipped += 1
            cell.seconds += float(case.get("time", "0"))
            cell.when.append(when)
    return gone


def cases_of(path: Path) -> list[tuple[ElementTree.Element, str]]:
    """The tests of one file, each with the day of its run. Raises BadResults."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError) as error:
        raise BadResults(f"{path}: expected the JUnit XML of pytest: {error}") from None
    return [
        (case, suite.get("timestamp", "")[:10])
        for suite in root.iter("testsuite")
        for case in suite.iter("testcase")
    ]


def read_sim(path: Path, into: Cells) -> None:
    """Add one answer of `hams sim --fault F8 --output json`; the row is the file's name. Raises
    BadResults."""
    try:
        answer = json.loads(path.read_text())
        histories, failures = int(answer["histories"]), len(answer["failures"])
        histories_per_s = float(answer.get("histories_per_s", 0))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadResults(
            f"{path}: expected the JSON of `hams sim --output json`: {type(error).__name__} {error}"
        ) from None
    if path.stem not in {name for name, levels, _ in CATALOGUE if "S" in levels}:
        raise BadResults(f"{path}: expected a file named after a row that is simulated, such as F8.json")
    if not histories:
        raise BadResults(f"{path}: no history was simulated")
    cell = into.setdefault((path.stem, "S"), RowResult(unit="histories"))
    cell.passed += histories - failures
    cell.failed += failures
    cell.seconds += histories / histories_per_s if histories_per_s else 0.0
    cell.when.append(datetime.fromtimestamp(path.stat().st_mtime, UTC).date().isoformat())


def cells_of(page: str) -> dict[tuple[str, str], str]:
    """What a page of before says of each row and level."""
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in page.splitlines()]
    names = {name for name, _, _ in CATALOGUE}
    return {
        (row[0], level): cell
        for row in rows
        if row[0] in names and len(row) == 2 + len(LEVELS)
        for level, cell in zip(LEVELS, row[2:], strict=True)
    }


def table(actual: Cells, commit: str = "", before: dict[tuple[str, str], str] | None = None) -> str:
    """The whole document. `commit`: of the newest results, if it is known. `before`: cells that stay where
    there is no result."""
    newest = [f"The newest of these results are of commit {commit}.", ""] if commit else []
    lines = [
        "# Faults",
        "",
        "What HAMS is tested against, and what really ran. Written by `tools/faults_table.py` from the "
        "results of the runs; do not edit.",
        "",
        "After every scenario the recorded history is checked independently against the invariants; each "
        "test asserts more on top. Simulation: the",
        "deterministic simulator, one seed per history. Processes: real processes and a real etcd on one "
        "machine, with signals, hosts of their own",
        "(network namespaces) that are cut off, and a network that loses, repeats, reorders and delays. "
        "Kubernetes: a cluster.",
        "",
        *newest,
        "A cell says passed when every test that names its row passed, of those that ran; where it does not "
        "say of how many, all that there are ran,",
        "each set of parameters counted. Each test's name says which part of the row it is. The time is "
        "that of all of them together, the day that",
        "of the newest. Known to fail: a test that is there, fails at least at times, and says why in its "
        "source. No result: none of its tests is in",
        "the results that this was made of. A dash: that level does not apply. Without HAMS_FAULTS_FULL=1 a "
        "link flaps for 8 s instead of 60 (F20),",
        "1,000 clients reconnect instead of 10,000 (F38), 10,000 requests run instead of 100,000 (F41) and "
        "starvation lasts 30 s instead of 300 (F42).",
        "Kubernetes without FULL=1: two deletions of each kind instead of ten, three kills instead of 30 "
        "(F43), and two minutes of random deletions instead of ten (F14).",
        "",
        f"| id | scenario | {' | '.join(LEVELS.values())} |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, levels, scenario in CATALOGUE:
        cells = []
        for level in LEVELS:
            result = actual.get((name, level))
            said = result.cell() if result is not None else "no result" if level in levels else "-"
            cells.append((before or {}).get((name, level), said) if said == "no result" else said)
        lines.append(f"| {name} | {scenario} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """0 if written, 2 if a result file is bad."""
    parser = argparse.ArgumentParser(description="Write docs/faults.md from the results of test runs.")
    parser.add_argument(
        "--junit", type=Path, nargs="*", default=[], help="JUnit XML of pytest: tests/faults, e2e/scenarios"
    )
    parser.add_argument(
        "--sim", type=Path, nargs="*", default=[], help="JSON of hams sim --fault ID, each file named ID.json"
    )
    parser.add_argument(
        "--collected",
        type=Path,
        help="what `pytest --collect-only -q` says of the sources' tests (default: it is asked)",
    )
    parser.add_argument(
        "--commit", default="", help="of the newest of these results, for the head of the page"
    )
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument(
        "--keep", action="store_true", help="cells of which these results say nothing stay as they are"
    )
    options = parser.parse_args()
    cells: Cells = {}
    try:
        tests = (
            collected(options.collected.read_text(), str(options.collected))
            if options.collected
            else collect()
        )
        count_sources(tests, cells)
        gone = read_junit(options.junit, cells, tests)
        for path in options.sim:
            read_sim(path, cells)
    except (BadResults, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    for test in gone:
        print(f"left out, the sources have it no more: {test}", file=sys.stderr)
    before = cells_of(options.out.read_text()) if options.keep and options.out.exists() else {}
    options.out.write_text(table(cells, options.commit, before))
    return 0


if __name__ == "__main__":
    sys.exit(main())
