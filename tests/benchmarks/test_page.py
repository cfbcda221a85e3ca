"""docs/performance.md names every benchmark, every kind of kill, and the goals as they were set."""

from pathlib import Path

import pytest
from benchmarks.recovery import CELLS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "performance.md").read_text(encoding="utf-8")
GOALS = PAGE.partition("| what | goal | measured |")[2].partition("\n\n")[0]


@pytest.mark.parametrize("name", ["chain", "recovery", "stream", "overhead", "memory"])
def test_the_page_says_how_to_run_each_benchmark(name: str) -> None:
    assert f"\nhams bench {name} --out out/{name}.json\n" in PAGE


@pytest.mark.parametrize("cell", [cell.name for cell in CELLS])
def test_every_kind_of_kill_is_in_a_table_or_said_to_be_unmeasured(cell: str) -> None:
    row = f"\n| {cell} |" in PAGE
    assert row or any("nmeasured" in line and f"`{cell}`" in line for line in PAGE.splitlines()), (
        f"nothing about {cell}"
    )


@pytest.mark.parametrize(
    "words",
    [
        "p50 <= 2 ms, p99 <= 5 ms (<= 10x the floor's p50)",
        ">= 2,000 requests/s",
        "p50 <= 6 ms / >= 240 requests/s with two frontends, >= 300 with one",
        "<= 1.6x the stateless chain's p50",
        "gap median <= 20 ms, p99 <= 50 ms; 0 failed, 0 doubled, state equal",
        "longest reply gap minus the median gap without kills in the same run: <= 60 / 150 ms median",
        "<= 50 / 60 / 100 ms median",
        "<= `None` + state size / stream rate of the same run + 2 ms |",
        ">= 60 % of the raw loopback socket in the same run",
        "a proxy or frontend <= 90 MB resident, payload buffers counted apart",
        ">= 60 histories/s on one core for the four-operator shapes with all invariants on",
        "first answer <= 8 s, Redundant <= 15 s",
    ],
)
def test_goals_keep_their_words(words: str) -> None:
    assert words in GOALS
