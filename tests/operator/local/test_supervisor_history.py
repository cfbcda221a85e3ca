"""A history that cannot be written: a run says so before it begins, and ends all the same."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from hams_graph import load
from hams_history.lines import FinalLine
from hams_operator.local.supervisor import CannotStart, Supervisor

DIGITS = Path(__file__).parents[3] / "examples" / "digits" / "graph.yaml"


@pytest.fixture
async def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    monkeypatch.setenv("HAMS_HOME", str(tmp_path / "home"))
    return Supervisor(load(DIGITS), DIGITS, None, tmp_path / "history", None)


@contextlib.contextmanager
def no_room() -> Iterator[None]:
    """No file may grow: what a full disk looks like to a process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_run_whose_history_has_no_room_does_not_start(supervisor: Supervisor) -> None:
    with pytest.raises(CannotStart, match=r"--history: .*0-graph\.jsonl: File too large"), no_room():
        supervisor._begin_history()


async def test_a_history_without_room_for_its_last_line_keeps_nobody_from_ending(
    supervisor: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    with no_room():
        supervisor._end_history(FinalLine(ops={}, open=()))
    assert "the history gets no final line" in caplog.text
