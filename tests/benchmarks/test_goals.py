"""What is measured is what the goals of docs/performance.md ask for."""

from pathlib import Path

import pytest
from benchmarks.graphs import one_frontend

from benchmarks import chain, overhead
from hams_graph import load, not_asked_for

CHAIN = chain.EXAMPLES


def test_the_same_chain_with_one_frontend() -> None:
    two = load(CHAIN / "stateless.yaml")
    with one_frontend(CHAIN / "stateless.yaml") as path:
        one = load(path)
        assert (path.parent / "chain" / "models.py").is_file()
    assert (two.data.frontend.replicas, one.data.frontend.replicas) == (2, 1)
    assert one.data.operators == two.data.operators
    assert not_asked_for(one)
    assert not path.exists()


def test_a_file_that_says_how_many_frontends_it_wants_is_not_overruled(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    for text in ("spec:\n  frontend: {replicas: 3}\n", "spec:\n  operators: []\n  frontend: {replicas: 3}\n"):
        file.write_text(f"kind: ServiceGraph\n{text}")
        with pytest.raises(ValueError, match="expected a spec without `frontend`"), one_frontend(file):
            pass


async def test_the_chain_is_measured_with_two_frontends_and_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[tuple[str, int | None, int, int]] = []

    async def floor() -> int:
        return 1

    async def cells(
        name: str, port: int, graph: str, seconds: float, asked: chain.Cells, frontends: int | None
    ) -> list[dict[str, object]]:
        measured.extend((name, frontends, *cell) for cell in asked)
        return []

    async def graph(name: str, file: Path, seconds: float, asked: chain.Cells) -> list[dict[str, object]]:
        return await cells(name, 2, "", seconds, asked, load(file).data.frontend.replicas)

    monkeypatch.setattr(chain, "_floor_started", floor)
    monkeypatch.setattr(chain, "_cells", cells)
    monkeypatch.setattr(chain, "_graph", graph)
    await chain.measure(1.0)
    assert ("stateless", 1, 1 << 20, 8) in measured
    both = [(nbytes, clients) for nbytes in (4096, 1 << 20) for clients in (1, 8)]
    for name, frontends in (("floor", None), ("stateless", 2), ("stateful", 2)):
        assert [item[2:] for item in measured if item[:2] == (name, frontends)] == both


def test_the_bound_is_one_states_way_and_two_ms() -> None:
    assert overhead.bound_ms(44.0, 10, 2.5) == pytest.approx(44.0 + 4.0 + 2.0)


async def test_the_stream_of_the_same_run_makes_the_bound(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    p50 = {("None", 1): 40.0, ("NonStop", 1): 42.2, ("None", 10): 40.0, ("NonStop", 10): 47.1}

    async def rate(*, unix: bool) -> float:
        assert unix
        return 2.0

    async def cell(mode: str, size: int, seconds: float, changed: str, delta: str) -> dict[str, object]:
        which: dict[str, object] = {"mode": mode, "state_mb": size, "changed": changed, "delta": delta}
        return {**which, "per_s": 45.0, "p50_ms": p50[mode, size], "p99_ms": 50.0}

    monkeypatch.setattr(overhead, "record_rate", rate)
    monkeypatch.setattr(overhead, "_cell", cell)
    result = await overhead.measure((1, 10), 1.0, ("NonStop",))
    assert result["stream_GB_s"] == 2.0
    rows = result["rows"]
    assert isinstance(rows, list)
    assert [row["latency_bound_ms"] for row in rows] == [None, 42.5, None, 47.0, 47.0, None, 47.0, 47.0]
    assert [(row["changed"], row["delta"]) for row in rows[3:]] == [
        ("4 KiB", "Off"),
        ("4 KiB", "Auto"),
        ("all", "Auto"),
        ("all", "Off"),
        ("all", "Auto"),
    ]
    overhead.print_table(result)
    lines = capsys.readouterr().out.splitlines()
    assert " 42.50" in lines[2]
    assert "> 42.50" not in lines[2]
    assert "> 47.00" in lines[4]


def test_modes_are_named_as_graphs_name_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        overhead.main(["--modes", "NonStop,Remu"])
    assert (
        "no mode 'Remu'; did you mean Remus? Known are NonStop, BufferedOutputs, StopAndCopy, Remus"
        in capsys.readouterr().err
    )
