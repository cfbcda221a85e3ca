"""`hams up` itself: how patient a graph is on a busy machine, when its models are checked first, and what is
said until it is ready. Nothing is started: the runs are what the tests say they are."""

import io
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from hams_graph import load
from hams_operator.cli import up as work
from hams_operator.cli.output import Output
from hams_operator.graph_status import Condition, GraphStatus
from hams_operator.local import capacity
from hams_operator.local.daemon import StartNews
from hams_operator.local.run import RunOptions
from hams_protocol.graph import Graph

DIGITS = Path(__file__).parents[3] / "examples" / "digits" / "graph.yaml"
STARTING = "digits: etcd and the first processes are starting"


def status(ready: str = "", redundant: str = "") -> GraphStatus:
    """One look at a graph that lacks this for its conditions."""
    conditions = tuple(
        Condition(kind, "False" if lacks else "True", "Lacking" if lacks else "Serving", lacks)
        for kind, lacks in (("Ready", ready), ("Redundant", redundant))
    )
    return GraphStatus("digits", "http://h:1", "h:2", 1, conditions, ())


LOOKS = (
    status("no manager is there", "learner has no backup"),
    status("no manager is there", "learner has no backup"),
    status("", "learner has no backup"),
    status(),
)
"""What a start looks like that goes well."""


class Runs:
    """Runs that come to nothing but looks: `looks` is what is seen of each, `options` how it was asked
    for."""

    def __init__(self) -> None:
        self.looks: tuple[GraphStatus, ...] = LOOKS
        self.options: list[RunOptions] = []
        self.kept_looking: list[bool] = []

    def detached(self, options: RunOptions) -> Iterator[StartNews]:
        """In place of `Start`."""
        self.options.append(options)
        return iter([*(StartNews(status=item) for item in self.looks), StartNews(ready=True)])

    async def here(
        self,
        graph: Graph,
        options: RunOptions,
        report: Callable[[GraphStatus], None],
        *,
        keep_looking: bool,
    ) -> None:
        """In place of `run`."""
        self.options.append(options)
        self.kept_looking.append(keep_looking)
        for item in self.looks:
            report(item)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """On an idle machine with cores enough, that lacks nothing of what is installed."""
    made = Runs()
    monkeypatch.setenv("HAMS_HOME", str(tmp_path))
    monkeypatch.setattr(work, "missing", lambda extra: ())
    monkeypatch.setattr(work, "Start", made.detached)
    monkeypatch.setattr(work, "run", made.here)
    monkeypatch.setattr(work, "log_to", lambda graph: None)
    monkeypatch.setattr(logging, "captureWarnings", lambda capture: None)
    monkeypatch.setattr(capacity, "cores", lambda: 64.0)
    monkeypatch.setattr(capacity, "worst_delay_s", lambda: 0.001)
    return made


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal is told."""
    written = io.StringIO()
    made = Console(file=written, force_terminal=True, width=120)
    monkeypatch.setattr(work, "console", lambda: made)
    return written


def up(*, detach: bool, output: Output = Output.TEXT, check: bool | None = False) -> None:
    assert work.up(DIGITS, None, detach, None, None, False, None, check, output) == 0


# -- a busy machine ------------------------------------------------------------------------------------------


def test_an_idle_machine_with_cores_enough_changes_nothing_and_is_not_spoken_of(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert work.patience_s(load(DIGITS)) == 0.0
    assert capsys.readouterr().err == ""


def test_on_a_busy_machine_suspect_after_is_raised_and_that_is_said(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = load(DIGITS)
    monkeypatch.setattr(capacity, "worst_delay_s", lambda: 0.25)
    assert work.patience_s(graph) == 1.0
    assert capsys.readouterr().err == (
        "this machine is busy, a process waited 0.25 s for CPU: recovery.suspectAfter is 1 s for this run, "
        f"not {graph.data.recovery.suspect_after_s:g} s\n"
    )


def test_on_far_too_few_cores_there_is_a_warning_and_suspect_after_stays(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = load(DIGITS)
    monkeypatch.setattr(capacity, "cores", lambda: 0.08)
    assert work.patience_s(graph) == 0.0
    assert capsys.readouterr().err == f"warning: {capacity.too_few_cores(graph, 0.08)}\n"


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize(("delay_s", "suspect_after_s"), [(0.25, 1.0), (0.001, 0.0)])
def test_the_run_is_asked_for_with_what_was_measured(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, detach: bool, delay_s: float, suspect_after_s: float
) -> None:
    monkeypatch.setattr(capacity, "worst_delay_s", lambda: delay_s)
    up(detach=detach)
    assert [options.suspect_after_s for options in runs.options] == [suspect_after_s]


# -- models that are checked first ---------------------------------------------------------------------------


class Stream(io.StringIO):
    """A standard stream that is a terminal, or is none."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize("asks", [False, True], ids=["stdin elsewhere", "stdin a terminal"])
@pytest.mark.parametrize("reads", [False, True], ids=["stderr elsewhere", "stderr a terminal"])
@pytest.mark.parametrize("check", [None, True, False], ids=["by default", "--check", "--no-check"])
def test_models_are_checked_if_somebody_sits_at_a_terminal_unless_it_is_said(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, check: bool | None, asks: bool, reads: bool
) -> None:
    """Somebody: who can be asked, and who reads."""
    checked: list[tuple[str, Path, int]] = []

    def fits(graph: Graph, file: Path) -> None:
        checked.append((graph.data.name, file, len(runs.options)))

    monkeypatch.setattr("hams_operator.cli.model_check.check_models", fits)
    monkeypatch.setattr(sys, "stdin", Stream(asks))
    monkeypatch.setattr(sys, "stderr", Stream(reads))
    up(detach=True, check=check)
    expected = check is True or (check is None and asks and reads)
    assert checked == ([("digits", DIGITS, 0)] if expected else []), "and before anything is started"


# -- what is said while a graph starts -----------------------------------------------------------------------


@pytest.mark.parametrize("detach", [False, True])
def test_without_a_terminal_each_thing_that_a_start_waits_for_is_said_once(
    runs: Runs, capsys: pytest.CaptureFixture[str], detach: bool
) -> None:
    up(detach=detach)
    assert capsys.readouterr().err == (
        "digits: no manager is there (Lacking)\ndigits: learner has no backup (Lacking)\n"
    )


def test_what_is_missing_again_after_something_else_is_said_again(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.looks = (status("a"), status("b"), status("a"), status())
    up(detach=True)
    assert capsys.readouterr().err == "digits: a (Lacking)\ndigits: b (Lacking)\ndigits: a (Lacking)\n"


def test_without_a_terminal_a_run_says_once_that_it_is_ready_and_then_nothing_but_its_end(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.looks = (*LOOKS, status("learner has no primary"), status())
    up(detach=False)
    said = capsys.readouterr()
    assert said.out == (
        "digits is ready: http://h:1 (gRPC h:2)\n"
        f"digits has ended; logs: {tmp_path / 'digits' / 'logs'}\n"
    )  # fmt: skip
    assert "primary" not in said.err
    assert runs.kept_looking == [False]


@pytest.mark.parametrize("detach", [False, True])
def test_a_program_gets_one_status_that_is_ready_and_nothing_else(
    runs: Runs, capsys: pytest.CaptureFixture[str], detach: bool
) -> None:
    runs.looks = LOOKS if detach else (*LOOKS, status("learner has no primary"))
    up(detach=detach, output=Output.JSON)
    said = capsys.readouterr()
    assert said.err == ""
    work.print_json(status())
    assert said.out == capsys.readouterr().out


@pytest.mark.parametrize("detach", [False, True])
def test_a_terminal_shows_that_something_is_starting_until_there_is_something_to_look_at(
    runs: Runs, terminal: io.StringIO, capsys: pytest.CaptureFixture[str], detach: bool
) -> None:
    up(detach=detach)
    shown = terminal.getvalue()
    assert 0 <= shown.find(STARTING) < shown.find("http://h:1"), "the table, once there is a look"
    assert STARTING not in shown[shown.rfind("http://h:1") :]
    assert ("Ctrl-C ends it" in shown) is (not detach)
    assert runs.kept_looking == ([] if detach else [True])
    assert capsys.readouterr().err == ""


def test_in_a_terminal_a_run_that_has_not_been_looked_at_yet_says_what_is_starting(
    runs: Runs, terminal: io.StringIO
) -> None:
    runs.looks = ()
    up(detach=False)
    assert STARTING in terminal.getvalue()
