"""States that travel between a link and a real model as chunks: what is captured, shared, loaded."""

import asyncio
import contextlib
import gc
import json
import struct
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.sidecar.model.conftest import one_operator

from hams_protocol.effects import Capture, LoadState, StartBatch
from hams_protocol.events import BatchFailed, Captured, Loaded, ModelDied, ModelReady
from hams_sidecar import limits
from hams_sidecar.arena import Arena, ArenaFull
from hams_sidecar.chunks import ChunkTable, StateDifference
from hams_sidecar.model.images import NEWEST
from hams_sidecar.model.link import ModelLink
from hams_sidecar.payload import TensorPayload, image

pytestmark = pytest.mark.process
CHUNK = limits.chunk_bytes


def image_of(state: ChunkTable) -> bytes:
    return b"".join(state.views())


async def test_a_version_shares_with_the_one_before_what_did_not_change(hosts: Any) -> None:
    host = await hosts(stateful=True, states_nbytes=8 << 20)
    first = (await host.ready("Table")).state
    await host.run(host.x((100_000, 1.5)))
    second = await host.capture(1)
    assert 0 < second.fresh_nbytes <= 3 * CHUNK
    shared = sum(one is other for one, other in zip(first.chunks, second.chunks, strict=False))
    assert len(second.chunks) - 3 <= shared < len(second.chunks)
    part = second.born_after(0, NEWEST)
    assert isinstance(part, StateDifference)
    assert part.nbytes < 4 * CHUNK
    numbers = host.link.stats().captured
    assert (numbers.captures, numbers.copied_nbytes < numbers.state_nbytes) == (2, True)


async def test_a_small_state_is_captured_whole_uncompared_and_loads_back(hosts: Any) -> None:
    host = await hosts(stateful=True)
    await host.ready("Sum")
    first = await host.capture(1)
    assert first.nbytes < limits.compared_bytes_min
    same = await host.capture(2)
    assert same.fresh_nbytes == same.nbytes, "though nothing changed"
    assert same.born_after(1, NEWEST) is None, "it travels whole"
    assert host.link.stats().captured.compared_nbytes == 0
    await host.run(host.x((1, 1)))
    changed = await host.capture(3)
    assert image_of(changed) != image_of(same) == image_of(first)
    await host.load(same)
    assert image_of(await host.capture(4)) == image_of(first)


async def test_a_state_that_grows_and_shrinks_over_the_bound_is_captured_and_loaded_as_it_is(
    hosts: Any,
) -> None:
    host = await hosts(stateful=True, states_nbytes=16 << 20)
    states = [(await host.ready("Growing")).state]
    for version, (nbytes, byte) in enumerate([(100, 1), (200_000, 1), (200_000, 1), (100, 2), (100, 2)], 1):
        await host.run(host.x((nbytes, byte)))
        states.append(await host.capture(version))
        assert bytes([byte]) * nbytes in image_of(states[-1])
    fresh = [state.fresh_nbytes == state.nbytes for state in states[1:]]
    assert fresh == [True, True, False, True, True], "compared with what is large alone"
    other = await hosts(stateful=True, states_nbytes=16 << 20)
    await other.ready("Growing")
    for token, state in enumerate((states[2], states[1], states[3]), 1):
        await host.load(state, token=token)
        assert image_of(await host.capture(10 + token)) == image_of(state)
        await other.load(image(other.states, image_of(state)), token=token)
        assert image_of(await other.capture(10 + token)) == image_of(state)


async def test_captures_of_chunks_are_those_of_whole_images(hosts: Any) -> None:
    ours, other = await hosts(stateful=True), await hosts(stateful=True)
    await ours.ready("Table")
    for version in range(1, 6):
        await ours.run(ours.x((version * 40_000, version), (7, 1)))
        state = await ours.capture(version)
    await other.ready("Table")
    await other.load(image(other.states, image_of(state)))
    assert image_of(await other.capture(1)) == image_of(state)


async def test_a_load_of_chunks_from_several_versions_goes_on_from_there(hosts: Any) -> None:
    host = await hosts(stateful=True, states_nbytes=16 << 20)
    await host.ready("Table")
    states = []
    for version in range(1, 5):
        await host.run(host.x((version * 50_000, 1)))
        states.append(await host.capture(version))
    await host.load(states[1], token=2)
    again = await host.capture(3)
    assert image_of(again) == image_of(states[1])
    assert again.fresh_nbytes == 0, "compared with what was loaded"
    await host.run(host.x((9, 1)))
    await host.load(states[1], token=3)
    assert image_of(await host.capture(4)) == image_of(states[1]), "what was written since is undone"


async def test_a_load_says_only_what_differs_from_what_the_model_has(hosts: Any) -> None:
    host = await hosts(stateful=True, states_nbytes=16 << 20)
    await host.ready("Table")
    session = host.link._sessions.current
    sent: list[dict[str, Any]] = []
    send = session.run.send
    session.run.send = lambda kind, body: (sent.append(body) if "places" in body else None, send(kind, body))
    states = []
    for version in range(1, 3):
        await host.run(host.x((version * 50_000, 1)))
        states.append(await host.capture(version))
    await host.load(states[0], token=1)
    await host.load(states[1], token=2)
    for body in sent:
        nbytes = sum(nbytes for _, _, nbytes in body["places"])
        assert 0 < nbytes <= 3 * CHUNK < body["nbytes"], "written since, or not: the rest it has"
    assert len(sent) == 2
    assert image_of(await host.capture(3)) == image_of(states[1])
    await host.run(host.x((150_000, 1)))
    await host.load(states[1], token=3)
    assert image_of(await host.capture(4)) == image_of(states[1]), "what was written since is undone"


async def test_what_the_model_holds_already_is_not_written_again(hosts: Any) -> None:
    host = await hosts(stateful=True, states_nbytes=16 << 20)
    await host.ready("Table")
    await host.run(host.x((1, 1)))
    state = await host.capture(1)
    await host.load(image(host.states, image_of(state)), token=1)
    await host.load(state, token=2)
    assert image_of(await host.capture(2)) == image_of(state)


async def test_delta_off_captures_whole_images(hosts: Any) -> None:
    host = await hosts(stateful=True, delta=False, states_nbytes=16 << 20)
    first = (await host.ready("Table")).state
    assert isinstance(first, TensorPayload)
    await host.run(host.x((1, 1)))
    host.link.perform(Capture(1))
    state = (await host.next(Captured)).state
    assert isinstance(state, TensorPayload)
    assert state.born_after(0, NEWEST) is None
    assert host.link.stats().captured.compared_nbytes == 0


async def test_memory_that_is_received_where_a_capture_lay_is_loaded_all_the_same(hosts: Any) -> None:
    host = await hosts(stateful=True, delta=False, states_nbytes=16 << 20)
    ready = await host.ready("Table")
    at, first = ready.state.buffer.offset, bytearray(ready.state.buffer.view)
    del ready
    gc.collect()
    first[-400] ^= 1
    received = image(host.states, bytes(first))
    assert received.buffer.offset == at, "nobody holds what was captured"
    await host.load(received, token=1)
    host.link.perform(Capture(1))
    assert bytes((await host.next(Captured)).state.buffer.view) == bytes(first)


async def test_a_capture_that_is_sent_while_a_load_is_under_way_leaves_no_base(hosts: Any) -> None:
    host = await hosts(stateful=True, states_nbytes=16 << 20)
    await host.ready("SlowTable")
    await host.run(host.x((1000, 1.0)))
    first = await host.capture(1)
    await host.run(host.x((50_000, 1.0)))
    filled = []
    for size in (1 << 20, 1 << 18, 1 << 16, 1 << 12, 64):
        with contextlib.suppress(ArenaFull):
            while True:
                filled.append(host.states.allocate(size, urgent=True))
    host.link.perform(Capture(2))  # waits for room
    host.link.perform(LoadState(7, first))
    assert host.link._sessions.current.loads_sent == 1
    filled.clear()
    assert {type(await host.events.get()) for _ in range(2)} == {Captured, Loaded}
    host.link.perform(LoadState(8, first))
    assert not (await host.next(Loaded)).defect
    assert image_of(await host.capture(3)) == image_of(first)


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_ran_and_failed_a_load_leaves_what_was_captured(hosts: Any, seed: int) -> None:
    random = Random(seed)
    host = await hosts(stateful=True, states_nbytes=48 << 20)
    states = [(await host.ready("Rows")).state]
    version = token = 0
    for _ in range(40):
        if random.random() < 0.5:
            place = random.choice((7, 8, 9000, 60_000, 120_000))
            host.begin(host.x((place, random.choice((1.0, 2.0)))))
            await host.enter()
            failed = isinstance(await host.events.get(), BatchFailed)
            assert failed is (place == 7)
            if not failed:
                version += 1
                states = [*states[-4:], await host.capture(version)]
        for _ in range(random.randrange(3)):
            state = random.choice(states)
            token += 1
            await host.load(state, token=token)
            version += 1
            assert image_of(await host.capture(version)) == image_of(state)


class OldModel:
    """A model process of contract version 1, byte by byte: it knows nothing of chunks."""

    protocol = 1

    def __init__(self, socket: Path, nbytes: int = 3 * CHUNK + 100) -> None:
        self.socket = socket
        self.state = np.zeros(nbytes, dtype=np.uint8)

    @staticmethod
    def frame(kind: int, **body: Any) -> bytes:
        data = json.dumps(body).encode()
        return struct.pack("<IBBH", len(data), kind, 1, 0) + data

    @staticmethod
    async def read(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
        length, kind, version, _ = struct.unpack("<IBBH", await reader.readexactly(8))
        assert version == 1
        return kind, json.loads(await reader.readexactly(length))

    async def serve(self) -> None:
        run, to_run = await asyncio.open_unix_connection(str(self.socket))
        to_run.write(self.frame(1, protocol=self.protocol, channel="run", session=""))
        kind, setup = await self.read(run)
        assert kind == 65
        self.region = np.memmap(setup["regions"][-1]["path"], dtype=np.uint8, mode="r+")
        capture, to_capture = await asyncio.open_unix_connection(str(self.socket))
        to_capture.write(self.frame(1, protocol=self.protocol, channel="capture", session=setup["session"]))
        health, to_health = await asyncio.open_unix_connection(str(self.socket))
        to_health.write(self.frame(1, protocol=self.protocol, channel="health", session=setup["session"]))
        to_run.write(self.frame(2, signature="old", layout=[], estimate_nbytes=len(self.state)))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.captures(capture, to_capture))
            tasks.create_task(self.loads(run, to_run))
            tasks.create_task(self.pongs(health, to_health))

    async def captures(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            _, body = await self.read(reader)
            _, at, nbytes = body["space"]
            assert nbytes >= len(self.state)
            self.region[at : at + len(self.state)] = self.state
            writer.write(self.frame(8, version=body["version"], nbytes=len(self.state)))

    async def loads(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            kind, body = await self.read(reader)
            if kind == 67:  # it knows no `seconds` either
                failed = {"message": "cannot", "updated": False, "abandoned": False}
                writer.write(self.frame(7, batch=body["batch"], **failed))
                continue
            _, at, nbytes = body["image"]
            self.state = np.array(self.region[at : at + nbytes])
            writer.write(self.frame(10, token=body["token"], seconds=0.0))

    async def pongs(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            _, body = await self.read(reader)
            writer.write(self.frame(12, n=body["n"], busy_s=0.0))


async def test_a_model_of_contract_version_1_is_captured_whole_and_cut_here(tmp_path: Path) -> None:
    arena = Arena(16 << 20, path=tmp_path / "arena")
    events: asyncio.Queue[Any] = asyncio.Queue()
    link = ModelLink(one_operator(stateful=True), "op", arena, arena, events.put_nowait)
    await link.listen(tmp_path / "model.sock")
    model = OldModel(tmp_path / "model.sock")
    serving = asyncio.create_task(model.serve())
    try:
        ready = await events.get()
        assert isinstance(ready, ModelReady)
        states = [ready.state]
        for version in (1, 2, 3):
            model.state[version * CHUNK] = version
            link.perform(Capture(version))
            event = await events.get()
            assert isinstance(event, Captured)
            assert isinstance(event.state, ChunkTable)
            assert image_of(event.state) == model.state.tobytes()
            states.append(event.state)
        assert states[1].fresh_nbytes == CHUNK
        assert states[2].chunks[0] is states[0].chunks[0]
        assert states[3].fresh_nbytes == 100
        link.perform(LoadState(5, states[1]))
        assert await events.get() == Loaded(5)
        assert model.state.tobytes() == image_of(states[1])
        link.perform(Capture(2))
        again = (await events.get()).state
        assert again.fresh_nbytes == 0
        assert image_of(again) == image_of(states[1])
        link.perform(StartBatch(1, ()))
        assert await events.get() == BatchFailed(1, "cannot", False, 0.0)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await link.close()


@pytest.mark.parametrize(
    "changed",
    [[[0, 0]], [[-1, 1]], [[2, 1], [1, 1]], [[0, 2], [1, 1]], [[3, 2]], [[0, 1 << 40]], [[4, 1]]],
    ids=repr,
)
async def test_chunks_that_cannot_be_the_state_s_end_the_session(tmp_path: Path, changed: Any) -> None:
    await _ends(tmp_path, changed, 1, 3 * CHUNK + 100)


async def test_chunks_of_a_state_that_was_asked_for_whole_end_the_session(tmp_path: Path) -> None:
    await _ends(tmp_path, [[0, 1]], 2, 100)


async def _ends(tmp_path: Path, changed: Any, protocol_of_it: int, nbytes: int) -> None:
    class Liar(OldModel):
        protocol = protocol_of_it

        async def captures(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.reported = changed
            while True:
                _, body = await self.read(reader)
                said = {"changed": self.reported} if body["version"] else {}
                writer.write(self.frame(8, version=body["version"], nbytes=len(self.state), **said))

    arena = Arena(16 << 20, path=tmp_path / "arena")
    events: asyncio.Queue[Any] = asyncio.Queue()
    link = ModelLink(one_operator(stateful=True), "op", arena, arena, events.put_nowait)
    await link.listen(tmp_path / "model.sock")
    serving = asyncio.create_task(Liar(tmp_path / "model.sock", nbytes).serve())
    try:
        assert isinstance(await events.get(), ModelReady)
        link.perform(Capture(1))
        died = await events.get()
        assert isinstance(died, ModelDied)
        assert "chunks of version 1" in died.reason
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await link.close()
