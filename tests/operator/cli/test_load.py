"""`hams load`: what it says of the traffic, and how it reads a duration."""

import asyncio
import io
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from hams_graph import load
from hams_load.traffic import TrafficTally
from hams_operator.cli import load as load_command
from hams_operator.cli.load import as_json, as_text, check_deadline, with_progress
from hams_operator.cli.output import CommandError, seconds


def test_durations_are_read_as_people_write_them():
    assert [seconds(text) for text in ("60s", "500ms", "2m", "1h", "7")] == [60.0, 0.5, 120.0, 3600.0, 7.0]
    for text in ("", "s", "-1s", "0", "1d", "nan"):
        with pytest.raises(CommandError):
            seconds(text)


def test_what_came_of_the_traffic_is_told_to_programs_and_to_people():
    tally = TrafficTally(sent=2, ok=2, attempts=2, latencies_s=[0.01, 0.02], replied_s=[1.0, 1.5])
    assert as_json(tally)["good"] is True
    tally.failed["400: bad"] += 1
    assert as_json(tally)["good"] is False
    assert "1 x 400: bad" in as_text(tally, True)


def test_with_a_deadline_it_says_how_many_were_on_time_late_and_refused_early():
    tally = TrafficTally(sent=8, ok=6, attempts=8, on_time=5, late=2, refused=1, unanswered=2)
    assert tally.good
    assert as_json(tally, 200.0)["deadline"] == {
        "ms": 200.0, "onTime": 5, "late": 2, "refused": 1, "finishRate": 0.625,
    }  # fmt: skip
    assert (
        "deadline  200 ms: 5 on time, 2 late, 1 refused early; finish rate 62.5 %"
        in as_text(tally, False, 200.0).splitlines()
    )
    assert "deadline" not in as_json(tally)
    assert "deadline" not in as_text(tally, False)


def test_a_deadline_that_the_graph_would_refuse_is_refused_before_anything_is_sent():
    graph = load(Path("examples/chain/graph.yaml"))
    check_deadline(None, graph)
    check_deadline(30_000, graph)
    for given in (0.0, -1.0, 30_001.0, float("nan")):
        with pytest.raises(CommandError, match=r"--deadline-ms: expected 1 to 30000 .*requestTimeout.*found"):
            check_deadline(given, graph)


class Screen(io.StringIO):
    """A terminal's. `counted`: the answers so far were shown on it."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = threading.Event()  # the bar is drawn by a thread of its own

    def write(self, text: str) -> int:
        if "2/3" in text:
            self.counted.set()
        return super().write(text)


@pytest.mark.parametrize("shown", [True, False])
def test_in_a_terminal_the_traffic_so_far_is_shown_and_anywhere_else_it_is_not(
    shown: bool, monkeypatch: pytest.MonkeyPatch
):
    screen = Screen()
    terminal = Console(file=screen, force_terminal=True, width=100)
    monkeypatch.setattr(load_command, "console", lambda **_: terminal)
    tally = TrafficTally(sent=3, ok=2, attempts=3, latencies_s=[0.01, 0.02])
    tally.failed["400: bad"] += 1

    async def run() -> TrafficTally:
        if shown:
            await asyncio.to_thread(screen.counted.wait, 30)
        return tally

    ran = asyncio.run(with_progress(SimpleNamespace(tally=tally, run=run), 3, "load", shown=shown))
    assert ran is tally
    assert ("2/3" in screen.getvalue()) is shown
    assert ("1 failed" in screen.getvalue()) is shown
