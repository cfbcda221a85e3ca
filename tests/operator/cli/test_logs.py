"""`hams logs` of a local run: whose log a file is, by its name, and what is told of those that grow."""

import signal
from pathlib import Path

import pytest

from hams_operator.cli import inspect
from hams_operator.cli.output import CommandError, Output
from hams_operator.cli.runs import Target

HERE = Target()
FILES = (
    "count-1-00ff.log",
    "count-1-00ff.model.log",
    "etcd-0.log.1",
    "etcd-0.log",
    "supervisor.log",
    "warm-data.log",
)


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the logs of graph g."""
    monkeypatch.setenv("HAMS_HOME", str(tmp_path))
    folder = tmp_path / "g" / "logs"
    folder.mkdir(parents=True)
    for name in FILES:
        (folder / name).write_text(f"of {name}\n")
    return folder


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("count", ["count-1-00ff | of count-1-00ff.log", "count-1-00ff.model | of count-1-00ff.model.log"]),
        ("etcd", ["etcd-0 | of etcd-0.log", "etcd-0 | of etcd-0.log.1"]),
        ("supervisor", ["supervisor | of supervisor.log"]),
    ],
)
def test_logs_are_told_apart_by_whose_they_are(
    logs: Path, capsys: pytest.CaptureFixture[str], word: str, said: list[str]
) -> None:
    inspect.logs(HERE, word, "g", 20, False, 0, Output.TEXT)
    assert sorted(capsys.readouterr().out.splitlines()) == said


def test_of_an_operator_that_goes_by_the_name_etcd_both_are_shown(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (logs / "etcd-2-0a0b.log").write_text("of the operator\n")
    inspect.logs(HERE, "etcd", "g", 20, False, 0, Output.TEXT)
    assert {"etcd-2-0a0b | of the operator", "etcd-0 | of etcd-0.log"} < set(
        capsys.readouterr().out.splitlines()
    )


def test_who_asks_for_nobody_is_told_who_there_is(logs: Path) -> None:
    with pytest.raises(CommandError, match=r"there are: count, etcd, supervisor$"):
        inspect.logs(HERE, "nobody", "g", 20, False, 0, Output.TEXT)


@pytest.mark.parametrize(
    ("word", "name"),
    [("etcd", "etcd-0.log"), ("supervisor", "supervisor.log"), ("count", "count-1-00ff.model.log")],
)
def test_what_comes_is_told_too(
    logs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, word: str, name: str
) -> None:
    reads = iter(range(3))

    def passed(pause_s: float) -> None:
        match next(reads):
            case 0:
                with (logs / name).open("a") as stream:
                    stream.write("goes on\n")
            case 1:
                (logs / name).write_text("anew\n")  # cut, or begun anew
            case _:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("hams_operator.cli.local_logs.time.sleep", passed)
    inspect.logs(HERE, word, "g", 0, True, 0, Output.TEXT)
    process = name.removesuffix(".log")
    assert capsys.readouterr().out.splitlines() == [f"{process} | goes on", f"{process} | anew"]


def test_logs_of_an_earlier_run_are_shown_when_they_are_asked_for(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(("20260101T000000Z", "20260102T000000Z")):
        (logs.parent / "earlier" / name).mkdir(parents=True)
        (logs.parent / "earlier" / name / "count-9-00aa.log").write_text(f"day {number + 1}\n")
    inspect.logs(HERE, "count", "g", 20, False, 1, Output.TEXT)
    assert capsys.readouterr().out == "count-9-00aa | day 2\n"
    inspect.logs(HERE, "count", "g", 20, False, 0, Output.TEXT)
    assert "day" not in capsys.readouterr().out
    with pytest.raises(CommandError, match="logs of 2 earlier runs are kept"):
        inspect.logs(HERE, "count", "g", 20, False, 3, Output.TEXT)


def test_an_operator_that_has_written_nothing_is_said_to(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (logs / "supervisor.log").write_text("")
    inspect.logs(HERE, "supervisor", "g", 20, False, 0, Output.TEXT)
    assert capsys.readouterr() == ("", "supervisor has written nothing in this run\n")
