"""What is read out of traces about a kill: who has recovered, and how much was to be run again."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.paper import recovery
from benchmarks.paper.recovery import UNSTORED_BATCHES, Kill, far_enough, summary
from benchmarks.paper.traces import Note, Tail, Unstored, all_recovered, recovered, unstored


def trace(*lines: tuple[int, str, str]) -> list[Note]:
    return [Note(1_000_000 * at, who, what) for at, who, what in lines]


NEIGHBOURS = trace(
    (12, "o3-2", "StartBatch 0/5"),
    (14, "o4-2", "LoadState"),
    (30, "o4-2", "Loaded"),
    (45, "o4-2", "StartBatch 0/5"),
)


def test_neighbours_that_die_at_once_have_recovered_with_the_last_of_them() -> None:
    dead = {"o3-1", "o4-1"}
    both = all_recovered(NEIGHBOURS, ["o3", "o4"], 10_000_000, dead, replays=False)
    assert both == {"recovered": 0.035, "load": 0.016}
    assert all_recovered(NEIGHBOURS, ["o3"], 10_000_000, dead, replays=False) == {"recovered": 0.002}


@pytest.mark.parametrize(
    ("decided", "learnt", "steps"),
    [
        ({"detect": 0.091, "decide": 0.0}, 0.020, {"detect": 0.020, "decide": 0.0}),
        ({"detect": 0.012, "decide": 0.030}, 0.020, {"detect": 0.012, "decide": 0.008}),
        ({"detect": 0.012, "decide": 0.004}, 0.020, {"detect": 0.012, "decide": 0.004}),
        ({"detect": 0.012}, None, {"detect": 0.012}),
        ({}, 0.020, {}),
    ],
)
def test_a_commit_came_before_its_new_owner_learnt_of_it(
    decided: dict[str, float], learnt: float | None, steps: dict[str, float]
) -> None:
    assert recovery.no_later(decided, learnt) == pytest.approx(steps)


def test_an_instance_runs_from_the_start_of_a_batch_until_its_end() -> None:
    lines = trace(
        (1, "o2-1", "StartBatch 0/1"),
        (2, "o2-1", "BatchDone"),
        (3, "o2-2", "StartBatch 0/1"),
        (4, "o2-1", "StartBatch 0/2"),
        (5, "o2-2", "BatchFailed"),
        (6, "o2-1", "Tick"),
    )
    assert [recovery.runs(lines[:end], {"o2-1"}) for end in range(7)] == [
        False,
        True,
        False,
        False,
        True,
        True,
        True,
    ]
    assert not recovery.runs(lines, {"o2-2"})


def test_nothing_has_recovered_while_one_of_them_has_not() -> None:
    assert all_recovered(NEIGHBOURS[:3], ["o3", "o4"], 10_000_000, {"o3-1", "o4-1"}, replays=False) == {}


RUN_AGAIN = trace(
    (1, "o3-1", "StartBatch 0/1 0/2"),
    (2, "o3-1", "BatchDone"),
    (3, "o3-1", "StartBatch 0/3"),
    (4, "o3-1", "BatchDone"),
    (5, "o3-1", "StartBatch 0/4"),
    (11, "o3-1", "StartBatch 0/9"),
    (20, "o3-2", "StartBatch 0/1 0/2"),
    (25, "o3-2", "BatchDone"),
    (26, "o3-2", "StartBatch 0/3"),
    (30, "o3-2", "BatchDone"),
    (34, "o3-2", "StartBatch 0/4"),
)


def test_what_is_run_again_is_not_yet_a_recovery() -> None:
    again = recovered(RUN_AGAIN, 10_000_000, {"o3-1"}, replays=True)
    assert again == {"recovered": 0.024}, "0/4 had begun, and was not finished"
    assert recovered(RUN_AGAIN, 10_000_000, {"o3-1"}) == {"recovered": 0.01}
    assert recovered(RUN_AGAIN[:-1], 10_000_000, {"o3-1"}, replays=True) == {}


def stored(*more: tuple[int, str, str]) -> list[Note]:
    return trace(
        (0, "o3-1", "CheckpointWritten 0"),
        (1, "o3-1", "StartBatch 0/1"),
        (3, "o3-1", "BatchDone"),
        (4, "o3-1", "Capture 1"),
        (5, "o3-1", "StartBatch 0/2"),
        (6, "o3-1", "BatchDone"),
        *more,
    )


def test_what_is_not_stored_counts_from_the_capture_of_what_is() -> None:
    assert unstored(stored()) == Unstored(2, 0.003, 1)
    assert unstored(stored((7, "o3-1", "CheckpointWritten 1"))) == Unstored(1, 0.001, 2)
    assert unstored(stored((7, "o3-1", "CheckpointWritten 1 failed"))) == Unstored(2, 0.003, 1)
    assert unstored([]) == Unstored(0, 0, 0)


def test_a_state_is_stored_early_before_as_many_batches_as_asked_for() -> None:
    lines = stored(
        (7, "o3-1", "CheckpointWritten 1"),
        (8, "o3-1", "Capture 2"),
        (9, "o3-1", "StartBatch 0/3"),
        (10, "o3-1", "CheckpointWritten 2"),
    )
    assert [unstored(lines, every).early for every in (0, 1, 2)] == [0, 0, 2]
    failed = stored((7, "o3-1", "CheckpointWritten 1 failed"))
    assert unstored(failed, 2).early == 0, "version 0 is what it began with, version 1 was not stored"


def test_a_new_owner_counts_what_it_ran_itself() -> None:
    lines = stored((20, "o3-2", "StartBatch 0/1"), (24, "o3-2", "BatchDone"))
    assert unstored(lines) == Unstored(1, 0.004, 0)


@pytest.mark.parametrize(
    ("ran", "comes"),
    [
        (Unstored(UNSTORED_BATCHES, 1.0, 1), True),
        (Unstored(UNSTORED_BATCHES, 1.0, 0), False),
        (Unstored(UNSTORED_BATCHES - 1, 1.0, 1), False),
        (Unstored(0, 0.0, 4), True),
    ],
    ids=["far enough", "never stored while it was waited for", "too near", "stored before it gets there"],
)
def test_a_kill_comes_fifty_batches_after_a_stored_state(ran: Unstored, comes: bool) -> None:
    assert far_enough(ran) is comes


async def test_a_kill_is_aimed_before_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    class Aimed:
        instances = frozenset({"o3-1"})

        def kill(self) -> tuple[float, int]:
            seen.append("kill")
            return 0.0, 0

    async def aim(*_: object) -> Aimed:
        seen.append("aim")
        return Aimed()

    async def run_unstored(states: list[str], traces: Path) -> None:
        seen.append(f"wait for {states}")

    monkeypatch.setattr(recovery, "aim", aim)
    monkeypatch.setattr(recovery, "_run_unstored", run_unstored)
    graph: Any = SimpleNamespace(supervisor=None)
    await recovery._strike(recovery.Case("o3", (("o3", "primary", "both"),)), graph, tmp_path, ["o3"])
    assert seen == ["aim", "wait for ['o3']", "kill"], "seeing who it is takes many batches"


def test_a_trace_is_read_from_where_it_was_left(tmp_path: Path) -> None:
    file = tmp_path / "o3-1-77.trace"
    file.write_text("1 o3-1 Tick\n")
    tail = Tail(tmp_path, "o3-", {"BatchDone", "Tick"})
    with file.open("a") as stream:
        stream.write("2 o3-1 BatchDone\n2 o3-1 Other\n3 o3-1 Bat")
    assert [note.at for note in tail.notes()] == [2]
    with file.open("a") as stream:
        stream.write("chDone\n")
    (tmp_path / "o3-2-78.trace").write_text("4 o3-2 Tick\n")
    assert [(note.at, note.what) for note in tail.notes()] == [
        (2, "BatchDone"),
        (3, "BatchDone"),
        (4, "Tick"),
    ]


def test_a_row_has_the_slowest_single_request_and_what_was_to_be_run_again() -> None:
    seen = [
        Kill(0.5, 0.1, 0.7, {"recovered": 0.2}, Unstored(52, 1.5, 3, 1)),
        Kill(0.3, 0.1, 0.9, {}, Unstored(50, 1.5, 4)),
    ]
    row = summary(seen)
    assert (row["slowest_ms"], row["recovered_ms"]) == (900.0, 200.0)
    assert (row["unstored_batches"], row["unstored_ms"]) == (52, 1500.0)
    assert (row["stored"], row["stored_early"]) == (7, 1)
    assert "unstored_batches" not in summary([Kill(0.5, 0.1, 0.7, {})])


def test_a_row_says_how_many_kills_hit_a_running_batch() -> None:
    kills = [Kill(0.5, 0.1, 0.7, {}, running=running) for running in (True, False, True)]
    assert summary(kills)["while_running"] == 2
