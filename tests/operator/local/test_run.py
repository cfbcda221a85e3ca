"""One run: what it is asked for is what is started."""

import logging
from pathlib import Path

import pytest

from hams_graph import load
from hams_operator.local import run as work
from hams_operator.local.run import RunFailed, RunOptions
from hams_operator.local.supervisor import CannotStart, Supervisor

DIGITS = Path(__file__).parents[3] / "examples" / "digits" / "graph.yaml"


@pytest.fixture
def supervisors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Supervisor]:
    """Those that were made. None of them starts anything."""
    made: list[Supervisor] = []

    class Halted(Supervisor):
        async def start(self) -> None:
            made.append(self)
            raise CannotStart("the test has seen enough")

    monkeypatch.setenv("HAMS_HOME", str(tmp_path))
    monkeypatch.setattr(work, "Supervisor", Halted)
    return made


@pytest.mark.parametrize("suspect_after_s", [0.0, 0.8])
async def test_a_run_that_was_told_to_be_patient_has_another_suspect_after_and_logs_that(
    supervisors: list[Supervisor], caplog: pytest.LogCaptureFixture, suspect_after_s: float
) -> None:
    caplog.set_level(logging.WARNING)
    graph = load(DIGITS)
    own_s = graph.data.recovery.suspect_after_s
    assert own_s != suspect_after_s
    options = RunOptions(str(DIGITS), suspect_after_s=suspect_after_s)
    with pytest.raises(RunFailed, match="seen enough"):
        await work.run(graph, options, lambda status: None, keep_looking=False)
    (supervisor,) = supervisors
    assert supervisor.graph.data.recovery.suspect_after_s == (suspect_after_s or own_s)
    said = ["suspectAfter is 0.8 s: this machine is busy"] if suspect_after_s else []
    assert [record.getMessage() for record in caplog.records] == said
