"""What a trace says of the events and effects that its readers look for."""

from pathlib import Path

import pytest

from hams_protocol.effects import BatchUnit, Capture, Effect, EnterUpdate, Send, StartBatch, WriteCheckpoint
from hams_protocol.events import CheckpointWritten, Event
from hams_protocol.ids import RequestId, UnitId
from hams_protocol.knowledge import CompletionSet
from hams_protocol.messages import Meta, RecordAck, StateCopy
from hams_wire.trace import Trace


def unit(n: int) -> BatchUnit:
    return BatchUnit(UnitId(RequestId(0, n), ()), Meta(), ())


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (StartBatch(1, (unit(3), unit(4))), "StartBatch 0/3 0/4"),
        (Capture(12), "Capture 12"),
        (EnterUpdate(1), "EnterUpdate"),
        (WriteCheckpoint(StateCopy("o2", 1, 12, (), CompletionSet().snapshot(), "")), "WriteCheckpoint 12"),
        (
            Send("o2-2", StateCopy("o2", 1, 12, (), CompletionSet().snapshot(), "")),
            "-> o2-2 StateCopy o2 12 of 0 bytes",
        ),
        (Send("o2-2", RecordAck("o2", 1, 12, -1)), "-> o2-2 RecordAck o2 12 applied -1"),
        (CheckpointWritten(1, 12, True), "CheckpointWritten 12"),
        (CheckpointWritten(1, 12, False), "CheckpointWritten 12 failed"),
    ],
    ids=lambda item: item if isinstance(item, str) else type(item).__name__,
)
def test_a_line_tells_which_requests_and_which_version(
    tmp_path: Path, item: Event | Effect, said: str
) -> None:
    trace = Trace(tmp_path, "o2-1")
    (trace.event if isinstance(item, CheckpointWritten) else trace.effect)(item)  # type: ignore[operator]
    (file,) = tmp_path.glob("o2-1-*.trace")
    at, _, rest = file.read_text().partition(" ")
    assert at.isdecimal()
    assert rest == f"o2-1 {said}\n"
