"""The proxy: what its process is told wrongly is one line, and copies of its state wait for its model."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hams_protocol.effects import Effect, LoadState, PreloadState
from hams_protocol.events import Event, Loaded, ModelDied, UpdateWanted
from hams_protocol.graph import RecoverySpec, WhenUnprotected
from hams_sidecar.proxy import Proxy, main
from hams_wire.peers.payload import HeapPayload

STATE = HeapPayload((), memoryview(b""))
LOAD = LoadState(7, STATE)


def test_a_pid_file_that_cannot_be_written_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = tmp_path / "none" / "pid"
    arguments = [
        "--graph",
        "g",
        "--instance",
        "p-1",
        "--etcd",
        "http://127.0.0.1:1",
        "--operator",
        "p",
        "--socket",
        "s",
        "--arena",
        "a",
    ]
    assert main([*arguments, "--pid-file", str(nowhere)]) == 1
    (record,) = [item for item in caplog.records if item.name == "hams.process"]
    assert str(nowhere) in record.getMessage()
    assert record.exc_info is None


@pytest.mark.parametrize(
    ("begins", "ends", "said"),
    [
        (LOAD, Loaded(7), ["hold p", "perform", "feed", "release"]),
        (LOAD, ModelDied("killed"), ["hold p", "perform", "feed", "release"]),
        (LOAD, Loaded(0), ["hold p", "perform", "feed"]),
        (LOAD, Loaded(6), ["hold p", "perform", "feed"]),
        (LOAD, UpdateWanted(1), ["hold p", "perform", "feed"]),
        (PreloadState(STATE), Loaded(0), ["perform", "feed"]),
    ],
    ids=["loaded", "died", "ahead of time", "the load before", "something else", "a rehearsal"],
)
def test_copies_of_the_own_state_stay_while_the_model_loads_it(
    begins: Effect, ends: Event, said: list[str]
) -> None:
    assert perform(begins, ends, WhenUnprotected.CONTINUE) == said


def test_nothing_is_held_back_where_all_replies_wait_for_a_second_holder() -> None:
    assert perform(LOAD, UpdateWanted(1), WhenUnprotected.BLOCK) == ["perform", "feed"]


def perform(begins: Effect, ends: Event, unprotected: WhenUnprotected) -> list[str]:
    """What a proxy of operator p does about an effect, and then about what its model says."""
    seen: list[str] = []
    network = SimpleNamespace(
        hold_copies=lambda op: seen.append(f"hold {op}"), release_copies=lambda: seen.append("release")
    )
    proxy: Any = SimpleNamespace(
        node=SimpleNamespace(network=network, feed=lambda event: seen.append("feed")),
        graph=SimpleNamespace(data=SimpleNamespace(recovery=RecoverySpec(when_unprotected=unprotected))),
        _link=SimpleNamespace(perform=lambda effect: seen.append("perform")),
        _loading=-1,
        _model=SimpleNamespace(operator="p"),
        _queue=None,
        _ready=SimpleNamespace(done=lambda: True),
        _warming=SimpleNamespace(on_event=lambda event: None),
    )
    Proxy.perform(proxy, begins)
    Proxy._emit(proxy, ends)  # type: ignore[arg-type]
    return seen
