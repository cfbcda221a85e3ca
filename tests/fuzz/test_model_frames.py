"""Frames between a model process and its proxy, both ways: what the contract does not allow is named as such,
by either side."""

import json
import socket
import struct
from random import Random
from typing import Any

import pytest

from hams_sdk import wire
from hams_sdk.errors import ContractBroken
from hams_sidecar.model import frames
from hams_sidecar.model.frames import BadModelFrame, FrameReader, FromModel
from tests.fuzz.boundaries import cases, mutated

FROM_MODEL: dict[int, dict[str, Any]] = {
    1: {"protocol": 1, "channel": "run", "session": "s", "sdk": "1", "pid": 7},
    2: {"signature": "s", "layout": [["w", "<f4", [2, 3]]], "estimate_nbytes": 24},
    3: {"message": "no"},
    4: {"batch": 1},
    5: {"id": 1, "sizes": [64, 128], "units": [0, 1]},
    6: {
        "batch": 1,
        "updated": True,
        "units": [{"tensors": [[0, 8, [1, 2]]], "route": ["a"]}, {"error": "no"}],
    },
    7: {"batch": 1, "message": "no", "updated": False, "abandoned": True},
    8: {"version": 1, "nbytes": 64, "tensors": 2, "seconds": 0.5},
    9: {"version": 1, "message": "no"},
    10: {"token": 1, "seconds": 0.5},
    11: {"token": 1, "message": "no"},
    12: {"n": 1, "busy_s": 0.5},
}

TO_MODEL: dict[int, dict[str, Any]] = {
    frames.SETUP: {"session": "s", "operator": {"name": "a", "inputs": [], "outputs": []}, "regions": []},
    frames.RUN: {
        "batch": 1,
        "units": [{"id": "0/1", "rows": 1, "tensors": [[0, 0, 8, [1, 2]]], "space": [0, 0, 8]}],
    },
    frames.GRANT: {"spaces": [[0, 64, 64]]},
    frames.CAPTURE: {"version": 1, "space": [1, 0, 64]},
    frames.LOAD: {"token": 1, "image": [1, 0, 64]},
    frames.PING: {"n": 1},
}


def spoilt(kind: int, body: dict[str, Any], rng: Random) -> bytes:
    """A frame with a changed body, changed bytes, or a changed header."""
    data = json.dumps(mutated(body, rng, deep=(1, 5, 70, 200))).encode()
    if rng.random() < 0.2:
        copy = bytearray(data)
        copy[rng.randrange(len(copy))] = rng.choice((0, 0x22, 0x5B, 0x80, 0xC3, 0xFF))
        data = bytes(copy)
    header = [len(data), kind, 1, 0]
    if rng.random() < 0.15:
        at = rng.randrange(4)
        header[at] = rng.choice((0, 1, 255, 65535, (1 << 32) - 1)) & ((1 << 32, 256, 256, 65536)[at] - 1)
    return struct.pack("<IBBH", *header) + data


def test_every_kind_is_tried() -> None:
    assert set(FROM_MODEL) == set(frames.KINDS)


@pytest.mark.timeout(3600)
def test_what_a_model_process_sends_is_a_frame_or_a_bad_frame() -> None:
    read = 0
    for seed in cases(1500):
        rng = Random(seed)
        kind = rng.choice(list(FROM_MODEL))
        try:
            values = FrameReader().feed(spoilt(kind, FROM_MODEL[kind], rng))
        except BadModelFrame:
            continue
        read += len(values)
        assert all(isinstance(frame, FromModel) for frame in values)
    assert read


@pytest.mark.timeout(3600)
def test_what_a_proxy_sends_is_a_frame_or_a_broken_contract() -> None:
    read = 0
    for seed in cases(1500):
        rng = Random(seed)
        kind = rng.choice(list(TO_MODEL))
        ours, theirs = socket.socketpair()
        channel = wire.Channel.__new__(wire.Channel)
        channel._socket, channel._pending = ours, b""
        with ours, theirs:
            theirs.sendall(spoilt(kind, TO_MODEL[kind], rng))
            theirs.shutdown(socket.SHUT_WR)
            try:
                result = channel.receive()
            except ContractBroken:
                continue
        if result is not None:
            read += 1
            assert isinstance(result[1], dict)
    assert read
