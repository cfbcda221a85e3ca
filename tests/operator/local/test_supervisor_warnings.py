"""What a run warns of in its status: a mode that protects less, and folders whose disks are full."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hams_graph import load
from hams_operator.graph_status import View
from hams_operator.local import supervisor
from hams_operator.local.supervisor import Supervisor, disk_room_bytes_min
from hams_protocol.graph import Checkpoint, Graph, Mode

DIGITS = Path(__file__).parents[3] / "examples" / "digits" / "graph.yaml"


class Running(Supervisor):
    """As one that runs, and of whose processes nothing is known."""

    async def view(self) -> View:
        return View(1, (), ())


@pytest.fixture
def free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[Path, int]:
    """Bytes that are free where a folder lies; everywhere else there is no room at all."""
    room: dict[Path, int] = {}
    monkeypatch.setenv("HAMS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(supervisor.shutil, "disk_usage", lambda path: SimpleNamespace(free=room.get(path, 0)))
    return room


def running(file: Path, history: Path | None, **checkpoints: str) -> Running:
    """The digits graph, with these folders for checkpoints of its operators, by their names."""
    data = load(DIGITS).data
    operators = tuple(
        replace(op, checkpoint=Checkpoint(1.0, 3, checkpoints[op.name]) if op.name in checkpoints else None)
        for op in data.operators
    )
    made = Running(Graph(replace(data, operators=operators)), file, None, history, None)
    made._memory = file.parent / "memory"
    return made


def sentence(folder: Path, what: str) -> str:
    return f"the disk of {folder} is full, 0 MiB are left: {what} may not be written"


async def test_every_folder_that_a_run_writes_to_is_looked_at_for_a_full_disk(
    tmp_path: Path, free: dict[Path, int]
) -> None:
    made = running(
        tmp_path / "graph.yaml", tmp_path / "history", learner=str(tmp_path / "far"), monitor="near"
    )
    assert (await made.status()).warnings == (
        sentence(made.home.logs, "logs"),
        sentence(tmp_path / "memory", "messages"),
        sentence(tmp_path / "far", "checkpoints"),
        sentence(tmp_path / "near", "checkpoints"),
        sentence(tmp_path / "history", "the history"),
    )


async def test_a_run_without_checkpoints_and_history_writes_logs_and_messages_only(
    tmp_path: Path, free: dict[Path, int]
) -> None:
    made = running(tmp_path / "graph.yaml", None)
    assert (await made.status()).warnings == (
        sentence(made.home.logs, "logs"),
        sentence(tmp_path / "memory", "messages"),
    )


async def test_only_the_folder_whose_disk_is_full_is_named(tmp_path: Path, free: dict[Path, int]) -> None:
    made = running(tmp_path / "graph.yaml", tmp_path / "history", learner="near")
    free |= {made.home.logs: disk_room_bytes_min, tmp_path / "memory": 1 << 40, tmp_path / "history": 1 << 40}
    assert (await made.status()).warnings == (sentence(tmp_path / "near", "checkpoints"),)


async def test_a_mode_that_is_a_baseline_is_warned_of_before_the_machine(
    tmp_path: Path, free: dict[Path, int]
) -> None:
    made = running(tmp_path / "graph.yaml", None)
    made.graph = Graph(replace(made.graph.data, mode=Mode.STOP_AND_COPY))
    assert (await made.status()).warnings == (
        "mode StopAndCopy is a baseline for measurements: no user wants it",
        sentence(made.home.logs, "logs"),
        sentence(tmp_path / "memory", "messages"),
    )
