"""What every measurement prints and writes, on results that are made up."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import capture, chain, links, memory, overhead, recovery, stream

GAP = {
    "gap_median_ms": 20.0,
    "gap_p99_ms": 30.0,
    "gap_without_kills_ms": 8.0,
    "gap_beyond_quiet_median_ms": 12.0,
    "slowest_open_max_ms": 38.0,
    "slowest_max_ms": 40.0,
    "in_sync_median_ms": 900.0,
    "gaps_ms": [20.0, 30.0],
}
SPLIT = {"detect_ms": 1.0, "decide_ms": 0.0, "promote_ms": 2.0, "resend_ms": 3.0}
VERDICT = {"ok": True, "violations": [], "wrong_counts": {}}
RAW = {"4KiB_round_trip_us": 20.0, "1MiB_round_trip_us": 300.0, "record_GB_s": 3.0}
PEERS = {f"{size}_one_way_{share}_us": 50.0 for size in ("4KiB", "1MiB") for share in ("p50", "p99")}
CPU = {"4KiB_and_answer_cpu_us": 60.0, "1MiB_and_answer_cpu_us": 400.0, "4KiB_stream_cpu_us": 20.0}
SPEED = {"p50_ms": 44.0, "p99_ms": 50.0, "per_s": 45.0}

RESULTS: dict[ModuleType, dict[str, Any]] = {
    chain: {
        "bench": "chain",
        "rows": [
            {
                "chain": name,
                "frontends": frontends,
                "bytes": 4096,
                "clients": clients,
                "p50_ms": 0.2,
                "p99_ms": 0.3,
                "per_s": 5000.0,
                "machine_busy": 0.5,
            }
            for name, frontends in (("floor", None), ("stateless", 2), ("stateless", 1))
            for clients in (1, 8)
        ],
    },
    recovery: {
        "bench": "recovery",
        "rows": [{"cell": "both", "kills": 2, "failed": 0, **GAP, **SPLIT, **VERDICT}],
    },
    stream: {
        "bench": "stream",
        "links": "tcp",
        "raw": RAW,
        "peers": {**PEERS, **CPU, "record_GB_s": 2.4, "notice_past_record_p50_us": 700.0},
        "record_of_raw": 0.8,
    },
    overhead: {
        "bench": "overhead",
        "stream_GB_s": 3.0,
        "rows": [
            {
                "mode": mode,
                "state_mb": 1,
                "changed": "4 KiB",
                "delta": "Auto",
                "per_s": 45.0,
                "throughput_loss_percent": 0.0,
                "p50_ms": 44.0,
                "latency_added_ms": 0.0,
                "latency_bound_ms": bound,
                "p99_ms": 50.0,
            }
            for mode, bound in (("None", None), ("NonStop", 43.0))
        ],
    },
    memory: {
        "bench": "memory",
        "policy": "Fifo",
        "failed": 0,
        "wrong_counts": "",
        "rows": [{"requests": 1000 * n, **dict.fromkeys(memory.KINDS, 70.0)} for n in (1, 2)],
    },
}
EACH = pytest.mark.parametrize(
    "bench", RESULTS, ids=[module.__name__.rpartition(".")[2] for module in RESULTS]
)


def measured(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """As if it had been measured."""
    result = RESULTS[bench]

    async def soon(*_: object, **__: object) -> dict[str, Any]:
        return result

    def now(*_: object, **__: object) -> dict[str, Any]:
        return result

    made: Callable[..., Any] = soon if inspect.iscoroutinefunction(bench.measure) else now
    monkeypatch.setattr(bench, "measure", made)
    return result


@EACH
def test_json_is_printed_alone_and_is_what_is_written(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = measured(bench, monkeypatch)
    out = tmp_path / "new" / "f.json"
    assert bench.main(["--out", str(out), "--output", "json"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed) == json.loads(out.read_text()) == result
    assert printed == out.read_text()


@EACH
def test_a_plot_lies_beside_the_file(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(bench, monkeypatch)
    assert bench.main(["--out", str(tmp_path / "f.json")]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.json", "f.svg"]
    drawn = (tmp_path / "f.svg").read_text()
    assert "</svg>" in drawn
    assert drawn.count("<path") > 10


@EACH
def test_a_table_alone_without_a_file(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(bench, monkeypatch)
    monkeypatch.chdir(tmp_path)
    assert bench.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 2
    assert not lines[0].startswith("{")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("bench", "option", "value", "said"),
    [
        (chain, "--seconds", "nan", "expected seconds above 0 and at most 3600, found 'nan'"),
        (links, "--seconds", "-1", "expected seconds above 0 and at most 3600, found '-1'"),
        (memory, "--requests", "0", "expected requests from 10 to 100000000, found '0'"),
        (capture, "--mib", "nan", "expected MiB from 8 to 65536, found 'nan'"),
        (capture, "--captures", "0", "expected a whole number from 1 to 100000, found '0'"),
    ],
)
def test_of_what_is_no_number_nothing_is_measured(
    bench: ModuleType, option: str, value: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main([option, value])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
