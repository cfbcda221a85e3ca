"""The mutants as a whole: the page that tells of them, and those that no transcript of `tests/protocol`
kills."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hams_sim.mutants.catalogue import MUTANTS
from hams_sim.mutants.hunt import HISTORIES_EACH, HISTORIES_FOR, histories
from hams_sim.workers import Worker

ROOT = Path(__file__).parents[2]
KILLERS = ROOT / "tests" / "protocol" / "test_mutants_killed.py"
FIRST_SEED = 1
"""Caught at once or a little later, always by the same history: at most two dozen of them for any of
these."""


def named(path: Path, row: str) -> list[str]:
    """The mutants that the lines of a file name, in their order."""
    return re.findall(row, path.read_text(), re.MULTILINE)


def test_the_page_names_exactly_the_mutants_that_there_are():
    assert sorted(named(ROOT / "docs" / "mutants.md", r"^\| ([a-z][a-z-]+-[a-z-]+) \|")) == sorted(MUTANTS)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    result = Worker(sources=True)
    yield result
    result.close()


def without_transcript() -> list[str]:
    killed = named(KILLERS, r'^    "([a-z-]+)": ')
    assert set(killed) < set(MUTANTS)
    return sorted(set(MUTANTS) - set(killed))


@pytest.mark.parametrize("name", without_transcript())
def test_a_mutant_that_no_transcript_kills_is_caught_by_a_history(worker: Worker, name: str):
    for spec in histories(name, HISTORIES_FOR.get(name, HISTORIES_EACH), FIRST_SEED):
        if not worker.run(spec, name).ok and worker.run(spec).ok:
            return
    raise AssertionError(f"no history breaks an invariant with {name} and holds without")
