"""Checkpoints, states and histories on disk: whatever became of their bytes, an older one is found, or it is
said what is wrong."""

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from hams_checkpoints.folder import CheckpointFolder
from hams_history.lines import CallLine, LogLine, RetLine, encode
from hams_history.source import read
from hams_protocol.messages import Completion, StateCopy
from hams_sdk.errors import StateFault
from hams_sdk.model import Opaque
from hams_sdk.state import State, leaf_digests, read_header
from hams_wire.peers.codec import Codec
from hams_wire.peers.payload import HeapFactory, HeapPayload
from tests.fuzz.boundaries import cases, mutated
from tests.sdk.capturing import whole

CODEC = Codec(HeapFactory())


def copy(version: int) -> StateCopy:
    return StateCopy("p", 1, version, (), Completion(()), "c", HeapPayload((), memoryview(b"state")), "l")


def spoilt(data: bytes, rng: Random) -> bytes:
    """Bytes changed, cut, doubled or replaced."""
    result = bytearray(data)
    what = rng.random()
    if what < 0.6:
        for _ in range(rng.randint(1, 3)):
            result[rng.randrange(len(result))] = rng.choice(
                (0, 0x22, 0x2D, 0x39, 0x5B, 0x7B, 0x80, 0xC3, 0xFF)
            )
    elif what < 0.8:
        del result[rng.randrange(len(result)) :]
    elif what < 0.9:
        at = rng.randrange(len(result))
        result[at:at] = result[at : at + rng.randint(1, 50)]
    else:
        at = rng.randrange(max(len(result) - 8, 1))
        result[at : at + 8] = rng.choice((1 << 40, (1 << 64) - 1, 0, len(data))).to_bytes(
            8, rng.choice(("big", "little"))
        )
    return bytes(result)


@pytest.mark.timeout(3600)
def test_an_older_checkpoint_is_found_whatever_became_of_the_newest(tmp_path: Path) -> None:
    folder = CheckpointFolder(str(tmp_path), "g", "p")
    folder.write(copy(3), CODEC, "p-1", 2)
    path = folder.write(copy(5), CODEC, "p-1", 2)
    data = path.read_bytes()
    for seed in cases(400):
        changed = spoilt(data, Random(seed))
        path.write_bytes(changed)
        assert folder.newest(CODEC) == copy(5 if changed == data else 3), seed


class Counter:
    def __init__(self) -> None:
        self.value = b"ab"

    def get(self) -> bytes:
        return self.value

    def set(self, value: bytes) -> None:
        self.value = value


def holders() -> dict[str, Any]:
    counter = Counter()
    return {"a": np.arange(3.0), "b": Opaque(counter.get, counter.set), "c": np.arange(4, dtype=np.int32)}


@pytest.mark.timeout(3600)
def test_a_spoilt_image_is_a_state_or_a_fault_and_a_fault_writes_nothing() -> None:
    state = State(holders())
    data = whole(state)
    header, start = read_header(memoryview(data))
    for seed in cases(1000):
        rng = Random(seed)
        if rng.random() < 0.5:
            changed = spoilt(data, rng)
        else:
            text = json.dumps(mutated(header, rng, deep=(1, 5, 70, 200))).encode()
            text = text.ljust(len(text) + -(16 + len(text)) % 64)
            changed = data[:8] + len(text).to_bytes(8, "little") + text + data[start:]
        try:
            state.load(memoryview(changed))
        except StateFault:
            assert whole(state) == data, seed
        else:
            state.load(memoryview(data))
        try:
            leaf_digests(memoryview(changed))
        except StateFault:
            pass


@pytest.mark.timeout(3600)
def test_a_spoilt_history_is_read_and_what_is_wrong_is_said(tmp_path: Path) -> None:
    lines = [
        CallLine(client="c1", key="k", digest="d"),
        LogLine(i="F-1", shard=0, epoch=1, req="0/1", key="k", digest="d", gen=1),
        RetLine(client="c1", key="k", status="ok", digest="x"),
    ]
    data = b"".join(encode(line) for line in lines)
    path = tmp_path / "h.ndjson"
    for seed in cases(400):
        rng = Random(seed)
        if rng.random() < 0.5:
            changed = spoilt(data, rng)
        else:
            objects = [mutated(json.loads(line), rng, deep=(1, 5, 200)) for line in data.splitlines()]
            changed = b"".join(json.dumps(item).encode() + b"\n" for item in objects)
        path.write_bytes(changed)
        said: list[str] = []
        read(path, lambda what, where, said=said: said.append(what))  # type: ignore[misc]
