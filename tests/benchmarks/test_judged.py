"""A run that lost or doubled something is not taken for a measurement."""

import asyncio
import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.asking import Log
from benchmarks.etcd_leader import CutOff
from benchmarks.graphs import graph_file
from benchmarks.http_load import first_numbers
from benchmarks.judged import complete, judged, odd, open_requests

from benchmarks import memory, recovery
from hams_graph import load

HEADER = (
    '{"t":"graph","id":"g","want":0,"operators":'
    '{"p":{"kind":"stateful","join":"combine","inputs":["F"],"outputs":["F"]}}}\n'
)
LINES = {
    "log": '{"t":"log","i":"frontend-1","gen":1,"shard":0,"epoch":1,"req":"0/0","key":"k1","digest":"9f"}\n',
    "exec": '{"t":"exec","i":"p-1","gen":1,"op":"p","epoch":1,"seq":1,"version":1,'
    '"req":"0/0","lane":[],"in":["0/0"],"out":"p-1:1","route":["F"],'
    '"chain":"a"}\n',
    "durable": '{"t":"durable","i":"p-1","gen":1,"op":"p","epoch":1,"version":1}\n',
    "reply": '{"t":"reply","i":"frontend-1","gen":1,"req":"0/0","values":["p-1:1"],"digest":"31"}\n',
    "complete": '{"t":"complete","req":"0/0"}\n',
    "final": '{"t":"final","ops":{"p":{"primary":"p-1","epoch":1,"insync":[],"version":1}},"open":[]}\n',
}


def recorded(folder: Path, **changes: str) -> Path:
    """A history of one request, with some lines as they should not be."""
    lines = {**LINES, **changes}
    (folder / "0-graph.jsonl").write_text(HEADER)
    (folder / "frontend-1.jsonl").write_text(lines["log"] + lines["reply"] + lines["complete"])
    (folder / "p-1.jsonl").write_text(lines["exec"] + lines["durable"])
    (folder / "z-final.jsonl").write_text(lines["final"])
    return folder


def test_counts_are_one_to_n_in_any_order() -> None:
    assert not odd([3, 1, 2])
    assert not odd([])
    assert odd([1, 2, 2, 5]) == "4 replies, missing counts [3, 4], doubled [2]"
    assert odd([2, 3]) == "2 replies, missing counts [1], doubled []"
    assert "missing counts [1]" in odd([0])


def test_a_right_run_is_ok(tmp_path: Path) -> None:
    verdict = judged(recorded(tmp_path), {"p": [1]})
    assert (verdict["ok"], verdict["violations"], verdict["wrong_counts"], verdict["history_lines"]) == (
        True,
        [],
        {},
        7,
    )


def test_counts_decide_as_well_as_the_history(tmp_path: Path) -> None:
    verdict = judged(recorded(tmp_path), {"p": [1], "q": [1, 1]})
    assert (verdict["ok"], verdict["violations"], verdict["wrong_counts"]) == (
        False,
        [],
        {"q": "2 replies, missing counts [2], doubled [1]"},
    )


@pytest.mark.parametrize(
    ("changes", "invariant"),
    [
        (
            {
                "exec": LINES["exec"]
                + LINES["exec"]
                .replace('"seq":1,"version":1', '"seq":2,"version":2')
                .replace("p-1:1", "p-1:2")
            },
            "I4",
        ),
        ({"complete": ""}, "I7"),
        ({"durable": ""}, "I3"),
        ({"exec": "nothing\n"}, "history"),
    ],
)
def test_a_history_that_is_violated_is_not_ok(
    tmp_path: Path, changes: dict[str, str], invariant: str
) -> None:
    verdict: dict[str, Any] = judged(recorded(tmp_path, **changes), {"p": [1]})
    assert verdict["ok"] is False
    assert invariant in {line.partition(":")[0] for line in verdict["violations"]}
    counted = verdict["broken"] if invariant != "history" else {"history": verdict["invalid_lines"]}
    assert counted[invariant] >= 1


def test_a_last_line_that_was_cut_off_is_none(tmp_path: Path) -> None:
    folder = recorded(tmp_path, complete=LINES["complete"][:12])
    assert open_requests(folder) == {"0/0"}
    (folder / "p-2.jsonl").write_text(LINES["exec"][:30])
    (folder / "frontend-2.jsonl").write_text(LINES["complete"])
    assert open_requests(folder) == set()
    assert judged(folder, {})["ok"] is True


async def test_waits_until_requests_are_complete_or_for_as_long_as_it_may(tmp_path: Path) -> None:
    await complete(recorded(tmp_path), within_s=60)
    await complete(recorded(tmp_path, complete=""), within_s=0)


def reply(count: int, x: float, status: str = "200 OK") -> tuple[bytes, bytes]:
    outputs = [
        {"name": "x", "datatype": "FP32", "shape": [1, 3], "parameters": {"binary_data_size": 12}},
        {"name": "count", "datatype": "INT64", "shape": [1], "parameters": {"binary_data_size": 8}},
    ]
    body = json.dumps({"outputs": outputs}).encode()
    head = f"http/1.1 {status.lower()}\r\ninference-header-content-length: {len(body)}\r\n\r\n".encode()
    return head, body + np.array([x, 0, 0], "<f4").tobytes() + np.array([count], "<i8").tobytes()


def test_what_a_reply_counts_is_read() -> None:
    assert first_numbers(*reply(7, 9.0)) == {"x": 9, "count": 7}
    with pytest.raises(ValueError, match="expected a binary reply"):
        first_numbers(b"http/1.1 200 ok\r\n\r\n", b"{}")


@pytest.mark.parametrize(("ok", "failed", "code"), [(True, 0, 0), (False, 0, 1), (True, 1, 1)])
def test_recovery_exits_by_its_verdict(
    ok: bool, failed: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {} if ok else {"b": "2 replies, missing counts [2], doubled [1]"}
    gaps = dict.fromkeys(
        ("gap_median_ms", "gap_p99_ms", "gap_without_kills_ms", "gap_beyond_quiet_median_ms"), 1.0
    )
    split = dict.fromkeys(("detect_ms", "decide_ms", "promote_ms", "resend_ms"), 1.0)
    row = {
        "cell": "both",
        "kills": 1,
        "failed": failed,
        **gaps,
        **split,
        "slowest_open_max_ms": 1.0,
        "slowest_max_ms": 1.0,
        "in_sync_median_ms": 900.0,
        "gaps_ms": [1.0],
        "ok": ok,
        "violations": [],
        "wrong_counts": wrong,
    }

    async def measure(*_: object) -> dict[str, Any]:
        return {"rows": [row]}

    monkeypatch.setattr(recovery, "measure", measure)
    assert recovery.main([]) == code
    assert ("counts of b: 2 replies, missing counts [2], doubled [1]" in capsys.readouterr().out) is not ok


def test_memory_exits_by_its_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def measure(*_: object) -> dict[str, Any]:
        return {"policy": "Fifo", "rows": [], "failed": 0, "wrong_counts": odd([1, 1])}

    monkeypatch.setattr(memory, "measure", measure)
    assert memory.main([]) == 1


@pytest.mark.parametrize("policy", memory.POLICIES)
def test_memory_is_measured_of_operators_with_the_policy_that_was_asked_for(
    policy: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[int, str]] = []

    async def measure(requests: int, policy: str) -> dict[str, Any]:
        asked.append((requests, policy))
        return {"policy": policy, "rows": [], "failed": 0, "wrong_counts": ""}

    monkeypatch.setattr(memory, "measure", measure)
    assert memory.main(["--short", "--policy", policy]) == 0
    assert asked == [(10_000, policy)]
    assert f"policy {policy}" in capsys.readouterr().out
    with graph_file("memory", memory.operators_of(policy), {"x": "c.x"}) as path:
        served = load(path).data.operators
        assert {item.batch.policy.value for item in served} == {policy}


def test_a_cell_that_nobody_knows_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        recovery.main(["--cells", "both,nobody"])
    assert "no cell nobody. Known are model, proxy, both," in capsys.readouterr().err


async def test_a_joiners_last_step_is_looked_at_however_late_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def at_once(*_: object) -> None:
        return

    monkeypatch.setattr(recovery, "redundant", at_once)
    monkeypatch.setattr(Log, "more", at_once)
    log, struck = Log(), asyncio.get_running_loop().time() - 4.0
    times = (
        [struck - 0.2]
        + [struck + number / 10 for number in range(1, 31)]
        + [struck + 3.5 + number / 10 for number in range(5)]
    )
    log.answered = list(itertools.pairwise(times))
    seen = await recovery.effects(log, None, CutOff(None, None), struck)  # type: ignore[arg-type]
    assert seen.gap_s == pytest.approx(0.5), "from 3.0 to 3.5 s after the kill"
    assert seen.slowest_s == pytest.approx(0.5)
    assert seen.slowest_open_s == pytest.approx(0.3), "what was asked 0.2 s before"
    assert seen.in_sync_s == pytest.approx(4.0, abs=0.1)


def test_cells_of_large_states_say_what_changes() -> None:
    cells = {cell.name: cell for cell in recovery.CELLS}
    assert "touchedBytes: 5242880" in cells["both-500MB-one-percent"].config
    joiner = cells["joiner-100MB-read-only"]
    assert joiner.targets == (("b", "backup", "both"),), "no failover is in the way"
    assert "readOnly: true" in joiner.config
    assert "touchedBytes: 0" in joiner.config


def test_the_load_of_each_promotion_is_read_from_its_trace(tmp_path: Path) -> None:
    ms = 1_000_000
    (tmp_path / "b-1.trace").write_text(
        f"{10 * ms} b-1 LoadState 3\n{11 * ms} b-1 Loaded\n"  # as it was rehearsed
        f"{105 * ms} b-1 LoadState 7\n{109 * ms} b-1 Loaded\n{112 * ms} b-1 StartBatch r1\n"
    )
    (tmp_path / "c-0.trace").write_text(f"{101 * ms} c-0 StartBatch r0\n")
    cell = next(cell for cell in recovery.CELLS if cell.name == "both-500MB-one-percent")
    struck = [(100 * ms, frozenset({"b-0"}))]
    assert recovery.loads(tmp_path, cell, struck) == {"loads_ms": [4.0], "load_ms": 4.0}
    assert recovery.loads(tmp_path, cell, [(200 * ms, frozenset({"b-1"}))])["load_ms"] is None
    with recovery.traced(cell) as folder:
        assert folder is not None
        assert os.environ["HAMS_TRACE"] == str(folder)
    with recovery.traced(recovery.CELLS[0]) as folder:
        assert folder is None
    assert "HAMS_TRACE" not in os.environ
