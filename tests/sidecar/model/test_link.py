"""The model contract, with a real model process on the other side."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import struct
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import uvloop
from msgspec import structs

from hams_protocol.effects import (
    AbandonBatch,
    BatchUnit,
    Capture,
    EnterUpdate,
    LoadState,
    PreloadState,
    RestartModel,
)
from hams_protocol.events import (
    BatchDone,
    BatchFailed,
    Captured,
    Loaded,
    ModelDied,
    ModelReady,
    UpdateWanted,
)
from hams_protocol.graph import FEEDBACK, FRONTEND, TensorSpec
from hams_sidecar import limits as sidecar_limits
from hams_sidecar.arena import ArenaFull
from hams_sidecar.chunks import ChunkTable
from hams_sidecar.model import ModelHealth, frames
from hams_sidecar.model.channel import ModelChannel
from hams_sidecar.model.link import PRELOAD
from hams_sidecar.model.mutex import MUTEX_BYTES
from hams_sidecar.model.session import Session
from hams_sidecar.model.sessions import Sessions
from hams_sidecar.payload import image
from hams_wire.scheduling import Disturbance

pytestmark = pytest.mark.process


def image_of(state: ChunkTable) -> bytes:
    """A captured state, its chunks one after another."""
    return b"".join(state.views())


def without_time(failed: BatchFailed) -> BatchFailed:
    """The same, if the model said how long it had run."""
    assert failed.compute_s > 0.0
    return replace(failed, compute_s=0.0)


async def test_a_stateless_model_doubles_the_rows_of_each_unit(hosts: Any, read: Any) -> None:
    host = await hosts(stateful=False)
    ready = await host.ready("Echo")
    assert ready.state is None
    host.begin(host.x((1, 2)))
    done = await host.next(BatchDone)
    assert not done.updated
    assert done.compute_s > 0.0
    assert read(done.results[0]) == [[2, 4]]
    host.begin(host.x((1, 2), (3, 4)), host.x((5, 6)))
    first, second = (await host.next(BatchDone)).results
    assert (read(first), read(second)) == ([[2, 4], [6, 8]], [[10, 12]])
    assert first.route is None
    assert host.link.health is ModelHealth.READY


async def test_inputs_outside_the_shared_memory_are_brought_there(hosts: Any, read: Any) -> None:
    host = await hosts(stateful=False)
    await host.ready("Echo")
    host.begin(host.x((1, 2), arena=host.outside))
    assert read((await host.next(BatchDone)).results[0]) == [[2, 4]]


async def test_the_tensors_of_an_internal_request_are_found_by_the_names_of_the_feedback_edge(
    hosts: Any, read: Any
) -> None:
    """Its payload is the output of the operator that fed it back: here y is the request's x, and its x is
    none of the request's."""
    host = await hosts(stateful=False)
    await host.ready("Echo")
    outer = host.unit({"y": np.array([[1, 2]], dtype=np.float32), "x": np.array([[9, 9]], dtype=np.float32)})
    host.begin(replace(outer, renamed=(("x", "y"),)))
    assert read((await host.next(BatchDone)).results[0]) == [[2, 4]]


async def test_the_update_stage_waits_for_its_proxy_and_an_abandoned_batch_leaves_no_trace(
    hosts: Any, read: Any
) -> None:
    host = await hosts(stateful=True)
    await host.ready("Sum")
    failed_at_the_boundary = host.begin(host.x((1, 1)))
    assert without_time(await host.abandon()) == BatchFailed(failed_at_the_boundary, "abandoned", False)
    assert read((await host.run(host.x((1, 2))))[0]) == [[1, 2]]


async def test_a_batch_abandoned_before_it_wants_to_update_is_turned_away_at_the_boundary(
    hosts: Any, read: Any
) -> None:
    host = await hosts(stateful=True)
    await host.ready("Sum")
    number = host.begin(host.x((1, 1)))
    host.link.perform(AbandonBatch(number))
    assert without_time(await host.next(BatchFailed)) == BatchFailed(number, "abandoned", False)
    assert read((await host.run(host.x((1, 2))))[0]) == [[1, 2]]


async def test_a_stateful_model_without_a_boundary_updates_all_along(hosts: Any, read: Any) -> None:
    host = await hosts(stateful=True)
    await host.ready("Whole")
    assert read((await host.run(host.x((1, 2)), host.x((3, 4))))[1]) == [[4, 6]]
    host.begin(host.x((1, 1)))
    await host.abandon()
    assert read((await host.run(host.x((0, 0))))[0]) == [[4, 6]]


async def test_an_update_is_undone_by_loading_the_version_before(hosts: Any, read: Any) -> None:
    host = await hosts(stateful=True)
    ready = await host.ready("Sum")
    await host.run(host.x((1, 2)))
    one = await host.capture(1)
    await host.run(host.x((10, 20)))
    await host.load(one)
    assert read((await host.run(host.x((0, 1))))[0]) == [[1, 3]]
    await host.load(ready.state, token=9)
    assert read((await host.run(host.x((7, 7))))[0]) == [[7, 7]]


async def test_a_state_loaded_into_another_process_goes_on_there(hosts: Any, read: Any) -> None:
    primary, backup = await hosts(stateful=True), await hosts(stateful=True)
    await primary.ready("Sum")
    await backup.ready("Sum")
    await primary.run(primary.x((1, 2)), primary.x((3, 4)))
    state = await primary.capture()
    await backup.load(state)  # lies in the other arena: brought over
    again = await backup.capture()
    assert image_of(again) == image_of(state)
    assert read((await backup.run(backup.x((0, 0))))[0]) == [[4, 6]]


async def test_it_is_known_what_else_ran_in_the_model_during_a_batch(hosts: Any) -> None:
    host = await hosts(stateful=True)
    await host.ready("Sum")
    seen = []

    async def run(*, capture: bool = False) -> None:
        host.begin(host.x((1, 0)))
        await host.next(UpdateWanted)
        if capture:
            host.link.perform(Capture(1))
            await host.next(Captured)
        host.link.perform(EnterUpdate(host.batches))
        await host.next(BatchDone)
        seen.append(host.link.disturbed)

    await run()
    await run()
    await run(capture=True)
    await run()
    state = await host.capture(2)
    host.link.perform(LoadState(1, state))
    host.begin(host.x((1, 0)))
    await host.next(Loaded)
    await host.enter()
    await host.next(BatchDone)
    seen.append(host.link.disturbed)
    nothing, capture, load = Disturbance.NOTHING, Disturbance.CAPTURE, Disturbance.LOAD
    assert seen == [load, nothing, capture, nothing, load], "the first run of a process counts as a load"


async def test_a_capture_shows_the_version_it_was_asked_for_while_the_next_batch_computes(
    hosts: Any, tmp_path: Any, eventually: Any
) -> None:
    host = await hosts(stateful=True, config=f'{{"dir": "{tmp_path}"}}')
    await host.ready("Gated")
    await host.run(host.x((0, 0)))
    host.link.perform(Capture(1))
    number = host.begin(host.x((0, 0)))  # computes beside the capture, up to the boundary
    assert (await host.next(UpdateWanted)).batch == number
    await eventually((tmp_path / "capturing-2").exists)
    assert host.events.empty()
    (tmp_path / "go").touch()
    captured = await host.next(Captured)
    numbers = np.frombuffer(image_of(captured.state), dtype=np.int64, offset=captured.state.nbytes - 8000)
    assert (numbers == 1).all()
    host.link.perform(EnterUpdate(number))
    await host.next(BatchDone)


async def test_an_update_let_in_too_early_waits_for_the_capture_all_the_same(
    hosts: Any, tmp_path: Any, eventually: Any
) -> None:
    host = await hosts(stateful=True, config=f'{{"dir": "{tmp_path}"}}')
    await host.ready("Gated")
    await host.run(host.x((0, 0)))
    host.link.perform(Capture(1))
    number = host.begin(host.x((0, 0)))
    await host.next(UpdateWanted)
    await eventually((tmp_path / "capturing-2").exists)
    host.link.perform(EnterUpdate(number))
    (tmp_path / "go").touch()
    # on two connections: in either order
    events: list[Any] = [await host.events.get(), await host.events.get()]
    state: Any = next(event.state for event in events if isinstance(event, Captured))
    assert np.frombuffer(image_of(state), dtype=np.int64, offset=state.nbytes - 8000).max() == 1


async def test_who_is_let_in_before_it_asks_hears_of_it_in_time_or_when_it_asks(
    hosts: Any, read: Any
) -> None:
    host = await hosts(stateful=True)
    await host.ready("Sum")
    for count in range(1, 60):
        number = host.begin(host.x((1, 2)))
        host.link.perform(EnterUpdate(number))
        done = await host.next(BatchDone)
        assert (done.batch, done.updated, read(done.results[0])) == (number, True, [[count, 2 * count]])
    await host.capture(1)
    number = host.begin(host.x((1, 2)))
    assert (await host.next(UpdateWanted)).batch == number, "an answer that came late lets nobody else in"
    host.link._sessions.current.run.send(frames.ENTER, {"batch": number - 1})
    host.link.perform(AbandonBatch(number))
    assert (await host.next(BatchFailed)).message == "abandoned"
    number = host.begin(host.x((1, 2)))
    await host.next(UpdateWanted)
    host.link.perform(EnterUpdate(number))
    host.link.perform(EnterUpdate(number))  # as if it had crossed the question
    await host.next(BatchDone)
    assert read((await host.run(host.x((1, 2))))[0]) == [[61, 122]]


async def test_who_is_let_in_and_writes_nothing_asks_the_next_time(hosts: Any, read: Any) -> None:
    host = await hosts(stateful=True)
    await host.ready("Naughty")
    number = host.begin(host.x((15, 0)))
    host.link.perform(EnterUpdate(number))
    assert not (await host.next(BatchDone)).updated
    host.begin(host.x((14, 1)))
    assert (await host.abandon()).message == "abandoned"


async def test_an_answer_that_comes_late_is_not_taken_for_memory(hosts: Any, read: Any) -> None:
    numbers = TensorSpec("x", "FP32", (-1,))
    words = TensorSpec("words", "BYTES", (-1,), optional=True)
    host = await hosts(stateful=False, inputs=(words, numbers), outputs=(words, numbers))
    await host.ready("Words")
    number = host.begin(host.unit({"words": None, "x": np.zeros((1, 100), np.float32)}))
    for kind in (frames.ENTER, frames.ABANDON):
        host.link._sessions.current.run.send(kind, {"batch": number})
    (result,) = (await host.next(BatchDone)).results
    assert len(read(result, "x")[0]) == 300


@pytest.mark.parametrize("early", [False, True])
async def test_a_model_that_takes_no_early_answer_is_let_in_when_it_asks(
    hosts: Any, read: Any, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    host = await hosts(stateful=True)
    await host.ready("Sum")
    session = host.link._sessions.current
    assert session.ready.enters_early
    session.ready = structs.replace(session.ready, enters_early=early)
    sent = []
    monkeypatch.setattr(session.run, "send", lambda kind, body: sent.append((kind, body["batch"])))
    number = host.begin(host.x((1, 2)))
    host.link.perform(EnterUpdate(number))
    assert sent == [(frames.ENTER, number)] * early
    monkeypatch.undo()
    assert read((await host.next(BatchDone)).results[0]) == [[1, 2]]


async def test_a_batch_that_waits_for_memory_hears_with_its_start_that_it_may_update(hosts: Any) -> None:
    host = await hosts(stateful=True)
    await host.ready("Sum")
    unit = host.x((1, 2))
    held = [host.tensors.allocate(host.tensors.capacity - host.tensors.stats().used, urgent=True)]
    number = host.begin(unit)
    host.link.perform(EnterUpdate(number))
    held.clear()
    gc.collect()
    assert (await host.next(BatchDone)).updated


async def test_who_was_let_in_and_is_called_off_says_whether_it_wrote(hosts: Any, read: Any) -> None:
    host = await hosts(stateful=True)
    await host.ready("Sum")
    for _ in range(30):
        number = host.begin(host.x((1, 2)))
        host.link.perform(EnterUpdate(number))
        host.link.perform(AbandonBatch(number))
        event = await host.events.get()
        assert isinstance(event, BatchDone) == event.updated, "the core reloads what it had written"
    number = host.begin(host.x((1, 2)))
    assert (await host.next(UpdateWanted)).batch == number


async def test_a_batch_is_told_of_before_the_capture_that_began_earlier_in_the_turn(
    hosts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = await hosts(stateful=True)
    await host.ready("Sum")
    session, sent = host.link._sessions.current, []
    run, capture = session.run.send_frame, session.capture.send
    monkeypatch.setattr(session.run, "send_frame", lambda frame: (sent.append("run"), run(frame)))
    monkeypatch.setattr(session.capture, "send", lambda *frame: (sent.append("capture"), capture(*frame)))
    await host.run(host.x((1, 2)))
    del sent[:]
    host.link.perform(Capture(1))
    host.begin(host.x((1, 2)))
    assert sent == ["run"]
    assert {type(await host.events.get()) for _ in range(2)} == {Captured, UpdateWanted}
    assert sent == ["run", "capture"]


async def test_a_load_is_told_of_behind_the_capture_that_came_first(hosts: Any, read: Any) -> None:
    host = await hosts(stateful=True)
    await host.ready("Sum")
    await host.run(host.x((1, 2)))
    state = await host.capture(1)
    await host.run(host.x((1, 2)))
    host.link.perform(Capture(2))
    host.link.perform(LoadState(1, state))
    events: list[Any] = [await host.events.get(), await host.events.get()]  # on two connections
    assert {type(event) for event in events} == {Captured, Loaded}
    session = host.link._sessions.current
    assert session.capturing < session.loaded
    assert read((await host.run(host.x((0, 0))))[0]) == [[1, 2]]


async def test_opaque_state_grows_and_shrinks_between_versions(hosts: Any, read: Any) -> None:
    host = await hosts(stateful=True)
    await host.ready("Growing")
    images: list[Any] = []
    for size in (0, 3, 500_000, 7, 1_000_000):
        await host.run(host.x((size, 65)))
        images.append((size, await host.capture(len(images) + 1)))
    sizes = [state.nbytes for _, state in images]
    assert sizes[2] > 500_000 > 2000 > sizes[3]
    for size, state in reversed(images):
        await host.load(state)
        again = await host.capture()
        assert image_of(again) == image_of(state)
        assert image_of(again).count(b"A" * size) == 1 or size == 0


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (1, "ValueError: one is not welcome"),
        (2, 'output "y": expected FP32, got FP64'),
        (3, 'output "y": expected FP32 [1, 2], got [1, 1]'),
        (4, 'output "y" of request 0/1: row 0 is not finite (NaN or infinity)'),
        (5, "route of request 0/1: no successor 'nowhere'; successors are \"reply\""),
        (6, 'expected outputs "y", got "z"'),
        (
            10,
            "ValueError: assignment destination is read-only; the arrays of a batch are read-only: write "
            "into a copy, as of `batch[name].copy()`",
        ),
        (13, "the update stage was entered twice in one run"),
        (17, "run returned None, expected a dict of outputs or hams_sdk.Outputs"),
    ],
)
async def test_what_a_model_does_wrong_is_named_and_can_be_undone(
    hosts: Any, read: Any, what: int, message: str
) -> None:
    """F37: the error is typed, and after an undo the next batch runs as if nothing had been."""
    host = await hosts(stateful=True)
    ready = await host.ready("Naughty")
    number = host.begin(host.x((what, 0)))
    updates = what in (1, 4, 13)
    if updates:
        await host.enter()
    assert without_time(await host.next(BatchFailed)) == BatchFailed(number, message, updates)
    if updates:
        await host.load(ready.state)
    assert image_of(await host.capture()) == image_of(ready.state)
    host.begin(host.x((0, 5)))
    assert read((await host.next(BatchDone)).results[0]) == [[0, 5]]


async def test_units_may_fail_be_refused_and_be_routed_one_by_one(hosts: Any, read: Any) -> None:
    host = await hosts(stateful=True, feedback=True)
    await host.ready("Naughty")
    host.begin(host.x((11, 0)), host.x((0, 1)))
    failed, fine = (await host.next(BatchDone)).results
    assert (failed.error, failed.payload, read(fine)) == ("eleven fails", None, [[0, 1]])
    host.begin(host.x((12, 0)), host.x((0, 1)))
    refused, fine = (await host.next(BatchDone)).results
    assert (refused.refused, refused.payload, read(fine)) == (True, None, [[0, 1]])
    host.begin(host.x((15, 0)), host.x((0, 1)))
    filtered, replied = (await host.next(BatchDone)).results
    assert (filtered.route, replied.route) == ((), (FRONTEND,))
    assert FEEDBACK not in replied.route


async def test_a_model_that_swallows_the_end_of_an_abandoned_batch_still_has_no_say(hosts: Any) -> None:
    host = await hosts(stateful=True)
    ready = await host.ready("Naughty")
    host.begin(host.x((14, 0)))
    assert not (await host.abandon()).updated
    assert image_of(await host.capture()) == image_of(ready.state)


@pytest.mark.parametrize("what", [7, 16])
async def test_a_model_that_exits_is_dead_at_once_and_its_successor_is_fresh(
    hosts: Any, read: Any, what: int
) -> None:
    """F3, F4: the death names the requests that were in the model."""
    host = await hosts(stateful=True)
    ready = await host.ready("Naughty")
    host.begin(host.x((what, 0)), host.x((0, 0)))
    died = await host.next(ModelDied)
    assert "0/1, 0/2" in died.reason
    assert host.link.health is ModelHealth.ABSENT
    host.link.perform(LoadState(1, ready.state))  # nobody there: nothing happens
    again = await host.ready("Naughty")
    assert again.layout == ready.layout
    host.begin(host.x((0, 4)))
    assert read((await host.next(BatchDone)).results[0]) == [[0, 4]]


async def test_a_model_that_is_killed_gives_its_memory_back(hosts: Any, eventually: Any) -> None:
    host = await hosts(stateful=False)
    await host.ready("Echo")
    host.processes[0].send_signal(signal.SIGSTOP)
    host.begin(host.x((1, 1)))
    os.kill(host.link.model_pid, signal.SIGKILL)
    await host.next(ModelDied)
    await host.ended(host.processes[0])
    await eventually(lambda: host.tensors.stats().used == 0)  # once the end of the process is known


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's process is in another pid namespace."""
    monkeypatch.setattr(ModelChannel, "peer_pid", lambda self: 0)


@pytest.mark.usefixtures("unseen")
async def test_a_model_whose_children_hold_its_connections_is_known_to_be_dead(hosts: Any, read: Any) -> None:
    """One process after another: each has a mutex of its own."""
    host = await hosts(stateful=False)
    for _ in range(3):
        await host.ready("Parent")
        host.begin(host.x((1, 1)))
        done = await host.next(BatchDone)
        host.processes[-1].kill()
        try:
            assert (await host.next(ModelDied)).reason == "the model process has ended"
        finally:
            os.kill(int(read(done.results[0])[0][0]), signal.SIGKILL)
    await host.ready("Echo")
    del done  # its outputs
    gc.collect()
    assert host.tensors.stats().used == MUTEX_BYTES


@pytest.mark.usefixtures("unseen")
async def test_a_model_that_cannot_hold_the_mutex_is_told_dead_by_its_connections(
    hosts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
    host = await hosts(stateful=False)
    await host.ready("Echo")
    assert host.tensors.stats().used == 0
    host.processes[0].kill()
    assert "closed its connection" in (await host.next(ModelDied)).reason


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("seen", [True, False])
def test_what_a_model_said_before_it_ended_counts(
    tmp_path: Any,
    host_class: Any,
    graph_of: Any,
    monkeypatch: pytest.MonkeyPatch,
    runner: Any,
    seen: bool,
) -> None:
    """Its end and its last words are there at the same time, as nobody had time to look."""
    if not seen:
        monkeypatch.setattr(ModelChannel, "peer_pid", lambda self: 0)
    ping = Sessions._ping

    async def scenario() -> None:
        host = host_class(tmp_path, graph_of(stateful=False), 1 << 20, 1 << 20, {})

        def ping_and_look_away(sessions: Sessions, session: Session) -> None:
            ping(sessions, session)
            host.processes[0].wait(20)
            for thread in threading.enumerate():
                if thread.name == "hams-model-mutex":
                    thread.join(20)

        monkeypatch.setattr(Sessions, "_ping", ping_and_look_away)
        await host.link.listen(tmp_path / "model.sock")
        try:
            host.start("NoSuchModel")
            assert "initialize failed: " in (await host.next(ModelDied)).reason
        finally:
            await host.close()

    runner(scenario())


async def test_a_model_that_fails_to_initialise_leaves_no_memory_behind(hosts: Any, eventually: Any) -> None:
    host = await hosts(stateful=False)
    host.start("NoSuchModel")
    await host.next(ModelDied)
    await host.ended(host.processes[0])
    await eventually(lambda: host.tensors.stats().used == 0)


async def test_a_model_that_hangs_in_a_run_is_killed(hosts: Any) -> None:
    host = await hosts(stateful=True, options={"run_s_max": 0.2, "ping_interval_s": 0.05})
    await host.ready("Naughty")
    host.begin(host.x((8, 0)))
    assert "longer than 0.2 s" in (await host.next(ModelDied)).reason
    assert await host.ended(host.processes[0]) == -signal.SIGKILL


async def test_a_model_that_waits_for_its_proxy_does_not_hang(hosts: Any) -> None:
    host = await hosts(stateful=True, options={"run_s_max": 1.0, "ping_interval_s": 0.02})
    await host.ready("Sum")
    number = host.begin(host.x((1, 1)))
    await host.next(UpdateWanted)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(host.events.get(), 2.0)
    host.link.perform(EnterUpdate(number))
    await host.next(BatchDone)


async def test_a_stopped_model_is_silent_and_then_dead(hosts: Any, eventually: Any) -> None:
    host = await hosts(stateful=False, options={"pong_wait_s": 3.0, "ping_interval_s": 0.05})
    await host.ready("Echo")
    host.processes[0].send_signal(signal.SIGSTOP)
    await eventually(lambda: host.link.health is not ModelHealth.READY)
    assert host.link.health is ModelHealth.SILENT
    assert "has not answered for 3 s" in (await host.next(ModelDied)).reason
    assert await host.ended(host.processes[0]) == -signal.SIGKILL


async def test_health_is_answered_in_the_middle_of_a_run(hosts: Any, eventually: Any) -> None:
    host = await hosts(stateful=True, options={"pong_wait_s": 5.0, "ping_interval_s": 0.02})
    await host.ready("Naughty")
    host.begin(host.x((8, 0)))
    session = host.link._sessions.current
    first = session.pings
    await eventually(lambda: session.pings >= first + 5)
    assert host.link.stats().busy_s > 0
    assert host.events.empty()
    host.processes[0].kill()
    await host.next(ModelDied)


async def test_megabytes_of_prints_are_not_in_the_way(hosts: Any, read: Any) -> None:
    host = await hosts(stateful=True)
    await host.ready("Naughty")
    host.begin(host.x((9, 3)))
    assert read((await host.next(BatchDone)).results[0]) == [[9, 3]]
    assert host.log.stat().st_size > 8 << 20


async def test_bytes_optional_tensors_variable_dimensions_and_parameters_reach_the_model_and_come_back(
    hosts: Any, read: Any
) -> None:
    words = TensorSpec("words", "BYTES", (-1,), optional=True)
    numbers = TensorSpec("x", "FP32", (-1,))
    host = await hosts(
        stateful=False,
        inputs=(words, numbers),
        outputs=(TensorSpec("words", "BYTES", (-1,)), TensorSpec("x", "FP32", (-1,))),
    )
    await host.ready("Words")

    def unit(text: list[bytes] | None, x: list[float], tag: str) -> BatchUnit:
        result: BatchUnit = host.unit(
            {
                "words": None if text is None else np.array([text], dtype=object),
                "x": np.array([x], dtype=np.float32),
            },
            tag=tag,
        )
        return result

    for _ in range(2):  # asks for space, then knows how much
        host.begin(unit([b"a\x00", b""], [1], "one"), unit([b"\xff" * 300, b"b"], [2], "two"))
        one, two = (await host.next(BatchDone)).results
        assert read(one, "words") == [[b"a\x00", b"", b"one"]]
        assert read(two, "words") == [[b"\xff" * 300, b"b", b"two"]]
        assert read(two, "x") == [[2, 2, 2]]
    host.begin(unit(None, [1, 2, 3], "three"))
    (three,) = (await host.next(BatchDone)).results
    assert (read(three, "words"), read(three, "x")) == ([[b"none", b"three"]], [[1, 1, 1, 2, 2, 2, 3, 3, 3]])


async def test_outputs_wait_for_room_and_what_can_never_fit_is_the_units_error(hosts: Any, read: Any) -> None:
    numbers = TensorSpec("x", "FP32", (-1,))
    words = TensorSpec("words", "BYTES", (-1,), optional=True)
    host = await hosts(
        stateful=False, arena_nbytes=1 << 16, inputs=(words, numbers), outputs=(words, numbers)
    )
    await host.ready("Words")
    outside = host.outside
    host.begin(host.unit({"words": None, "x": np.zeros((1, 5000), np.float32)}, outside))
    # 60,000 bytes beside the 20,000 of the input
    assert "too large" in (await host.next(BatchFailed)).message
    host.begin(host.unit({"words": None, "x": np.zeros((1, 100), np.float32)}, outside))
    (small,) = (await host.next(BatchDone)).results
    assert len(read(small, "x")[0]) == 300
    del small
    held = [host.tensors.allocate(60_000, urgent=True)]
    host.begin(host.unit({"words": None, "x": np.zeros((1, 2000), np.float32)}, outside))
    await asyncio.sleep(0.05)
    assert host.events.empty()
    held.clear()
    (large,) = (await host.next(BatchDone)).results
    assert len(read(large, "x")[0]) == 6000


async def test_a_batch_whose_parameters_fit_no_frame_fails_and_ends_no_model(hosts: Any, read: Any) -> None:
    """Control characters are six times as long in a frame as in a request."""
    numbers = TensorSpec("x", "FP32", (-1,))
    words = TensorSpec("words", "BYTES", (-1,), optional=True)
    host = await hosts(stateful=False, inputs=(words, numbers), outputs=(words, numbers))
    await host.ready("Words")
    parameters = {f"p{number}": "\x01" * (1 << 20) for number in range(2)}
    first, second = (
        host.unit({"words": None, "x": np.full((1, 2), number, np.float32)}, **parameters)
        for number in range(2)
    )
    host.begin(first, second)
    assert "parameters of its requests are too large" in (await host.next(BatchFailed)).message
    host.begin(second)
    (alone,) = (await host.next(BatchDone)).results
    assert read(alone, "x") == [[1] * 6]


@pytest.mark.parametrize("width", [-1, 5000])
async def test_outputs_that_no_frontend_could_take_are_the_units_error_at_once(
    hosts: Any, read: Any, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """A token that its receiver has no room for would be sent to it again for ever."""
    monkeypatch.setattr(sidecar_limits, "sink_output_bytes_max", 50_000)
    words = TensorSpec("words", "BYTES", (-1,), optional=True)
    host = await hosts(
        stateful=False,
        arena_nbytes=1 << 20,
        inputs=(words, TensorSpec("x", "FP32", (-1,))),
        outputs=(words, TensorSpec("x", "FP32", (width,))),
    )
    await host.ready("Words")
    outside = host.outside
    host.begin(host.unit({"words": None, "x": np.zeros((3, 5000), np.float32)}, outside))
    assert "outputs of at most 50000 bytes for one request" in (await host.next(BatchFailed)).message
    if width < 0:  # the next one is not the worse for it
        host.begin(host.unit({"words": None, "x": np.zeros((1, 100), np.float32)}, outside))
        (small,) = (await host.next(BatchDone)).results
        assert len(read(small, "x")[0]) == 300


async def test_a_huge_row_does_not_make_the_next_request_too_large(hosts: Any, read: Any) -> None:
    """What is granted at once is a guess from the rows before: bounded, as their client may have been another
    one."""
    words = TensorSpec("words", "BYTES", (-1,), optional=True)
    numbers = TensorSpec("x", "FP32", (-1,))
    host = await hosts(
        stateful=False, arena_nbytes=64 << 20, inputs=(words, numbers), outputs=(words, numbers)
    )
    await host.ready("Words")
    outside = host.outside
    host.begin(host.unit({"words": None, "x": np.zeros((1, 200_000), np.float32)}, outside))
    (large,) = (await host.next(BatchDone)).results
    assert len(read(large, "x")[0]) == 600_000
    del large
    host.begin(host.unit({"words": None, "x": np.zeros((60, 2), np.float32)}, outside))
    (small,) = (await host.next(BatchDone)).results
    assert len(read(small, "x")) == 60


async def test_memory_is_flat_over_many_batches(hosts: Any, read: Any) -> None:
    host = await hosts(stateful=True, arena_nbytes=1 << 16, states_nbytes=1 << 18)
    await host.ready("Sum")
    for version in range(1, 301):
        (result,) = await host.run(host.x((1, 0)))
        assert read(result) == [[version, 0]]
        await host.capture(version)
        del result
    assert host.tensors.stats().used <= 256
    assert host.states.stats().used <= 1 << 17
    assert host.tensors.stats().peak < 4096


async def test_torch_modules_optimizers_and_schedulers_go_on_exactly_where_they_were(
    hosts: Any, read: Any
) -> None:
    pytest.importorskip("torch")
    primary, backup = await hosts(stateful=True), await hosts(stateful=True)
    fresh = await primary.ready("Learner")
    assert (await backup.ready("Learner")).layout == fresh.layout
    for version in (1, 2, 3):
        await primary.run(primary.x((version, 1), (0, 2)))
        state = await primary.capture(version)
        await backup.load(state)
        assert image_of(await backup.capture()) == image_of(state)
    ours = await primary.run(primary.x((1, 1), (2, 2)))
    assert read(ours[0]) == read((await backup.run(backup.x((1, 1), (2, 2))))[0])
    assert image_of(await primary.capture(4)) == image_of(await backup.capture(5))
    await primary.load(fresh.state)  # an optimizer that had no state yet
    assert image_of(await primary.capture(6)) == image_of(fresh.state)


async def test_cuda_state_is_captured_beside_the_next_compute_stage(hosts: Any) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU: pinned memory and side streams cannot be had without one")
    host = await hosts(stateful=True, config='{"device": "cuda"}')
    await host.ready("Learner")
    await host.run(host.x((1, 1), (0, 2)))
    state = await host.capture(1)
    await host.run(host.x((3, 1), (0, 2)))
    await host.load(state)
    assert image_of(await host.capture(2)) == image_of(state)


async def test_a_state_of_another_layout_is_refused_by_name_and_nothing_changes(hosts: Any) -> None:
    """F35."""
    old, new = (
        await hosts(stateful=True),
        await hosts(stateful=True, config='{"dim": 3}', outputs=(TensorSpec("y", "FP32", (-1,)),)),
    )
    first, second = await old.ready("Sum"), await new.ready("Sum")
    assert first.layout != second.layout
    await old.run(old.x((1, 2)))
    new.link.perform(LoadState(4, await old.capture()))
    refused = await new.next(Loaded)
    assert refused == Loaded(4, "state layout mismatch: total: image has <f4 [2], this model <f4 [3]")
    assert image_of(await new.capture()) == image_of(second.state)


async def test_a_state_of_garbage_is_refused(hosts: Any) -> None:
    host = await hosts(stateful=True)
    ready = await host.ready("Sum")
    broken = bytearray(image_of(ready.state))
    broken[0] ^= 1
    host.link.perform(LoadState(2, image(host.states, broken)))
    assert "not a state image" in (await host.next(Loaded)).defect


async def test_a_load_that_comes_during_a_batch_waits_for_its_end(hosts: Any, read: Any) -> None:
    host = await hosts(stateful=True)
    ready = await host.ready("Sum")
    number = host.begin(host.x((1, 2)))
    await host.next(UpdateWanted)
    host.link.perform(LoadState(3, ready.state))
    host.link.perform(EnterUpdate(number))
    await host.next(BatchDone)
    assert (await host.next(Loaded)).token == 3
    assert read((await host.run(host.x((5, 5))))[0]) == [[5, 5]]


async def test_a_capture_or_a_load_that_hangs_is_found(hosts: Any) -> None:
    """The model's health is asked for of another thread of it, so that says nothing."""
    options = {"run_s_max": 0.5, "ping_interval_s": 0.02}
    host = await hosts(stateful=True, options=options)
    await host.ready("Stuck")
    await host.run(host.x((1, 1)))
    host.link.perform(Capture(1))
    assert (await host.next(ModelDied)).reason == "the capture of a state takes longer than 0.5 s"
    host, other = await hosts(stateful=True, options=options), await hosts(stateful=True)
    await other.ready("Stuck")
    await other.run(other.x((0, 0)))
    state = await other.capture(1)
    await host.ready("Stuck")
    host.link.perform(LoadState(1, state))
    assert (await host.next(ModelDied)).reason == "the load of a state takes longer than 0.5 s"


@pytest.mark.parametrize(
    ("model", "leaf"),
    [
        ("Reshaping", 'state "table": expected <f4 [1, 2], as initialize returned it, found <f4 [2, 2]: '),
        ("Inconstant", 'state "weights" was declared constant (hams_sdk.constant), and has changed'),
    ],
)
async def test_an_instance_whose_state_cannot_be_captured_any_more_ends_by_a_reason_that_names_the_leaf(
    hosts: Any, model: str, leaf: str
) -> None:
    """A leaf that changed its shape between captures, and a constant that changed."""
    host = await hosts(stateful=True)
    fresh = await host.ready(model)
    await host.capture(1)
    await host.run(host.x((1, 1)))
    host.link.perform(Capture(2))
    reason = (await host.next(ModelDied)).reason
    assert reason.startswith(f"the state cannot be captured: {leaf}")
    assert await host.ended(host.processes[0]) == -signal.SIGKILL
    assert host.events.empty(), "no version 2"
    assert (await host.ready(model)).layout == fresh.layout, "the next process is taken"


async def test_work_that_fails_in_the_proxy_ends_the_model_process(
    hosts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or what it was for would never be answered."""
    host, other = await hosts(stateful=True), await hosts(stateful=True)
    await host.ready("Sum")
    await other.ready("Sum")
    await other.run(other.x((1, 2)))
    state = await other.capture(1)

    async def fails(*arguments: object, **options: object) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(host.states, "reserve", fails)
    host.link.perform(LoadState(1, state))
    assert "OSError: no memory" in (await host.next(ModelDied)).reason


async def test_a_capture_gets_room_before_a_batch_that_waits_for_it(hosts: Any) -> None:
    """The batch may wait for what is free only once the state is captured."""
    host = await hosts(stateful=True, states_nbytes=0)
    await host.ready("Growing")
    await host.run(host.x((300_000, 1)))
    large = host.unit({"x": np.zeros((100_000, 2), np.float32)})
    taken = []
    while host.tensors.capacity - host.tensors.stats().used > 600 << 10:
        taken.append(host.tensors.allocate(16 << 10, urgent=True))
    host.link.perform(Capture(1))
    host.begin(large)
    assert (await host.next(Captured)).version == 1
    taken.clear()
    gc.collect()
    await host.enter()
    (result,) = (await host.next(BatchDone)).results
    assert result.error is None, "it had waited for room only"


async def test_a_load_that_is_still_being_copied_does_not_undo_the_next_one(hosts: Any, read: Any) -> None:
    """A rehearsal of what lies in another arena waits for room; meanwhile the backup is promoted."""
    host, other = await hosts(stateful=True), await hosts(stateful=True)
    newest = (await host.ready("Sum")).state
    await other.ready("Sum")
    await other.run(other.x((1, 2)))
    older = await other.capture(1)
    taken = []
    with contextlib.suppress(ArenaFull):
        while True:
            taken.append(host.states.allocate(1 << 10, urgent=True))
    host.link.perform(PreloadState(older))
    host.link.perform(LoadState(3, newest))
    await asyncio.sleep(0)
    taken.clear()
    gc.collect()
    tokens = [(await host.next(Loaded)).token for _ in range(2)]
    assert read((await host.run(host.x((5, 5))))[0]) == [[5, 5]], "the older state is in the model"
    assert tokens == [PRELOAD, 3]


async def test_a_model_that_cannot_start_says_why(hosts: Any) -> None:
    host = await hosts(stateful=True)
    process = host.start("FailsToStart")
    assert (await host.next(ModelDied)).reason == "initialize failed: RuntimeError: no weights here"
    assert await host.ended(process) == 1
    process = host.start("LeavesAtStart")
    assert (
        await host.next(ModelDied)
    ).reason == "initialize failed: SystemExit: no weights: run download.py first"
    assert await host.ended(process) == 1
    process = host.start("NoSuchClass")
    assert "there is no such class in models" in (await host.next(ModelDied)).reason
    assert await host.ended(process) == 1


async def test_a_stateless_operator_with_state_is_refused(hosts: Any) -> None:
    host = await hosts(stateful=False)
    host.start("Sum")
    assert "declare it `stateful`" in (await host.next(ModelDied)).reason


async def test_a_stateful_operator_whose_model_declares_no_state_is_refused(hosts: Any) -> None:
    host = await hosts(stateful=True)
    host.start("Echo")
    assert "is stateful, but initialize returned None" in (await host.next(ModelDied)).reason


async def test_a_model_with_wrong_outputs_is_dead_before_its_first_request(hosts: Any) -> None:
    other = (TensorSpec("z", "FP32", (2,)),)
    host = await hosts(stateful=False, outputs=other, warm_up="{}")
    host.start("Echo")
    reason = (await host.next(ModelDied)).reason
    assert reason.startswith(
        'initialize failed: warm-up, before any request: expected outputs "z", got "y" (models.py:'
    )
    host = await hosts(stateful=False, outputs=other, warm_up="")
    await host.ready("Echo")


async def test_a_warm_up_is_undone_before_the_first_batch(hosts: Any, read: Any) -> None:
    host = await hosts(stateful=True, warm_up='{"x": [3, 4]}')
    await host.ready("Whole")
    assert read((await host.run(host.x((1, 1))))[0]) == [[1, 1]]


async def test_a_model_serves_on_after_sigterm_and_ends_when_its_proxy_lets_go(hosts: Any, read: Any) -> None:
    host = await hosts(stateful=False)
    await host.ready("Echo")
    host.processes[0].send_signal(signal.SIGTERM)
    host.begin(host.x((1, 2)))
    assert read((await host.next(BatchDone)).results[0]) == [[2, 4]]
    await host.link.close()
    assert await host.ended(host.processes[0]) == 0


async def test_a_model_without_its_proxy_ends_in_the_middle_of_a_run(hosts: Any) -> None:
    """F3: nothing leaves an unsupervised model."""
    host = await hosts(stateful=True)
    await host.ready("Naughty")
    host.begin(host.x((8, 0)))
    await host.link.close()
    assert await host.ended(host.processes[0]) == 0


async def test_sigterm_before_the_proxy_is_there_ends_the_process(hosts: Any, eventually: Any) -> None:
    host = await hosts(stateful=False)
    await host.link.close()
    process = host.start("Echo", "--connect-wait-s", "60")
    await eventually(lambda: _catches_sigterm(process.pid))
    process.terminate()
    assert await host.ended(process) == 128 + signal.SIGTERM


async def test_no_proxy_at_all_is_a_usage_error(hosts: Any) -> None:
    host = await hosts(stateful=False)
    await host.link.close()
    assert await host.ended(host.start("Echo", "--connect-wait-s", "0")) == 2
    assert "no proxy on" in host.log.read_text()


async def test_a_model_may_be_forked_from_a_warmed_process(hosts: Any, read: Any) -> None:
    host = await hosts(stateful=True)
    code = (
        "import os, sys, hams_sdk.serve\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os._exit(hams_sdk.serve.main(sys.argv[1:]))\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    fork_server = host.start("Sum", before=("-c", code))
    await host.next(ModelReady)
    assert host.link.model_pid not in (0, fork_server.pid)
    assert read((await host.run(host.x((1, 2))))[0]) == [[1, 2]]
    await host.link.close()
    assert await host.ended(fork_server) == 0


async def test_restart_drops_the_model_without_calling_it_dead(hosts: Any) -> None:
    host = await hosts(stateful=False)
    await host.ready("Echo")
    host.link.perform(RestartModel("unusable"))
    assert await host.ended(host.processes[0]) == -signal.SIGKILL
    assert isinstance(await host.ready("Echo"), ModelReady)


async def test_a_second_model_process_is_turned_away(hosts: Any, read: Any) -> None:
    host = await hosts(stateful=False)
    await host.ready("Echo")
    assert await host.ended(host.start("Echo")) == 2
    assert "another model process is connected" in host.log.read_text()
    host.begin(host.x((1, 2)))
    assert read((await host.next(BatchDone)).results[0]) == [[2, 4]]


def frame(kind: int, body: bytes, *, version: int = 1, length: int | None = None) -> bytes:
    return struct.pack("<IBBH", len(body) if length is None else length, kind, version, 0) + body


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        frame(1, b"{}"),
        frame(1, b"[" * 100_000 + b"]" * 100_000),
        frame(1, b'{"protocol":1,"channel":"run"', length=29),
        frame(1, b"", length=1 << 31),
        frame(6, b'{"batch":1,"updated":true,"units":[]}'),
        frame(1, b'{"protocol":1,"channel":"capture","session":"guess"}'),
        frame(1, b'{"protocol":7,"channel":"run","session":""}'),
        frame(1, b"\xff\xfe"),
        frame(99, b"{}"),
        frame(1, b"{}", version=9),
        os.urandom(4096),
    ],
)
async def test_garbage_on_the_socket_is_closed_and_the_model_serves_on(
    hosts: Any, read: Any, garbage: bytes
) -> None:
    """F36."""
    host = await hosts(stateful=False)
    await host.ready("Echo")
    reader, writer = await asyncio.open_unix_connection(host.directory / "model.sock")
    writer.write(garbage)
    while await reader.read(4096):
        pass
    writer.close()
    host.begin(host.x((1, 2)))
    assert read((await host.next(BatchDone)).results[0]) == [[2, 4]]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (6, b'{"batch":1,"updated":false,"units":[]}'),
        (6, b'{"batch":1,"updated":false,"units":[{"tensors":[[0,8,[1,2]],[0,8,[1,2]]]}]}'),
        (6, b'{"batch":1,"updated":false,"units":[{"tensors":[[8,8,[1,2]]]}]}'),
        (6, b'{"batch":1,"updated":false,"units":[{"tensors":[[-8,8,[1,2]]]}]}'),
        (6, b'{"batch":1,"updated":false,"units":[{"tensors":[[0,4,[1,2]]]}]}'),
        (6, b'{"batch":1,"updated":false,"units":[{"tensors":[[0,16,[2,2]]]}]}'),
        (6, b'{"batch":1,"updated":false,"units":[{"tensors":[[0,8,[1,2]]],"route":["nowhere"]}]}'),
        (6, b'{"batch":2,"updated":false,"units":[]}'),
        (5, b'{"id":1,"sizes":[10],"units":[4]}'),
        (5, b'{"id":1,"sizes":[-1],"units":[0]}'),
        (8, b'{"version":0,"nbytes":1}'),
        (10, b'{"token":0}'),
        (10, b'{"token":3}'),
        (11, b'{"token":3,"message":"no"}'),
        (66, b"{}"),
    ],
)
async def test_a_model_process_that_breaks_the_contract_is_dead(hosts: Any, kind: int, body: bytes) -> None:
    host = await hosts(stateful=False)
    path = host.directory / "model.sock"
    channels = {}
    session = b""
    for name in ("run", "health", "capture"):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(frame(1, b'{"protocol":1,"channel":"%s","session":"%s"}' % (name.encode(), session)))
        if name == "run":
            length = struct.unpack("<IBBH", await reader.readexactly(8))[0]
            session = (await reader.readexactly(length)).split(b'"session":"')[1].split(b'"')[0]
        channels[name] = (reader, writer)
    writer = channels["run"][1]
    writer.write(frame(2, b'{"signature":"s","layout":[],"estimate_nbytes":0}'))
    await host.next(ModelReady)
    host.begin(host.x((1, 2)))
    host.link.perform(LoadState(3, image(host.states, b"a state")))  # waits for the end of the batch
    writer.write(frame(kind, body))
    assert "broke the contract" in (await host.next(ModelDied)).reason
    for _, opened in channels.values():
        opened.close()


def _catches_sigterm(pid: int) -> bool:
    with open(f"/proc/{pid}/status") as status:
        caught = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt"))
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def test_the_link_does_the_same_on_uvloop(tmp_path: Any, host_class: Any, graph_of: Any) -> None:
    async def scenario() -> None:
        host = host_class(tmp_path, graph_of(stateful=True), 1 << 20, 1 << 20, {})
        await host.link.listen(tmp_path / "model.sock")
        try:
            ready = await host.ready("Sum")
            (result,) = await host.run(host.x((1, 2)))
            assert result.payload.array("y").tolist() == [[1, 2]]
            await host.load(ready.state)
            assert (await host.capture(2)).nbytes == ready.state.nbytes
            host.begin(host.x((1, 1)))
            await host.next(UpdateWanted)
            os.kill(host.link.model_pid, signal.SIGKILL)
            assert "0/2" in (await host.next(ModelDied)).reason
        finally:
            await host.close()

    uvloop.run(scenario())


def test_a_proxy_ends_though_the_next_model_connects_while_it_lets_go(
    tmp_path: Any, host_class: Any, graph_of: Any
) -> None:
    """A supervisor starts the next model at once; a server that waits for its connections would wait for that
    one for ever."""

    async def scenario() -> None:
        host = host_class(tmp_path, graph_of(stateful=True), 1 << 20, 1 << 20, {})
        await host.link.listen(tmp_path / "model.sock")
        try:
            await host.ready("Sum")
            with socket.socket(socket.AF_UNIX) as next_model:
                next_model.connect(str(tmp_path / "model.sock"))
                async with asyncio.timeout(10):
                    await host.link.close()
            assert await host.ended(host.processes[0]) == 0
        finally:
            await host.close()

    uvloop.run(scenario())
