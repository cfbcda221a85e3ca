"""Frames of a peer that is hostile, or of a version that nobody has thought of: a message, a payload that
cannot be read, or a bad frame.

Messages are made from their own types, with boundary values; then fields, lengths and nesting of the frames
are changed.
"""

import dataclasses
import enum
import types
import typing
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from hams_protocol.messages import Message, Payload
from hams_wire import limits
from hams_wire.peers import frames, handshake
from hams_wire.peers.codec import CODES, Codec
from hams_wire.peers.errors import BadFrame, ConnectionRejected, NotSendable
from hams_wire.peers.inbox import Inbox
from hams_wire.peers.payload import HeapFactory, HeapPayload, TensorInfo
from tests.fuzz.boundaries import INTEGERS, TEXTS, cases, mutated

CODEC = Codec(HeapFactory(capacity=1 << 16))
GROWTH_BYTES_MAX = 64 << 20
WRITABLE = [number for number in INTEGERS if -(1 << 63) <= number < 1 << 64]


def sample(kind: Any, rng: Random) -> Any:
    """A value of an annotated type."""
    if kind is Payload:
        nbytes = rng.choice((0, 1, 8, 100))
        shape = tuple(
            rng.choice(INTEGERS) if rng.random() < 0.1 else rng.randint(0, 9)
            for _ in range(rng.randint(0, 3))
        )
        tensors = (TensorInfo(rng.choice(TEXTS), "UINT8", shape, 0, nbytes),) * rng.randint(0, 2)
        return HeapPayload(tensors, memoryview(bytes(nbytes)))
    if isinstance(kind, type):
        if issubclass(kind, enum.Enum):
            return rng.choice(list(kind))
        if kind is bool:
            return rng.random() < 0.5
        if kind is int:
            return rng.choice(WRITABLE) if rng.random() < 0.3 else rng.randint(0, 3)
        if kind is float:
            return rng.choice((0.0, 1.5, float("inf"), float("nan")))
        if kind is str:
            return rng.choice(TEXTS)
        if kind is types.NoneType:
            return None
        if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
            hints = typing.get_type_hints(kind)
            names = (
                kind._fields
                if hasattr(kind, "_fields")
                else [field.name for field in dataclasses.fields(kind)]
            )
            return kind(**{name: sample(hints[name], rng) for name in names})
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        if inner[-1] is Ellipsis:
            return tuple(sample(inner[0], rng) for _ in range(rng.choice((0, 1, 1, 2))))
        return tuple(sample(item, rng) for item in inner)
    assert origin in (types.UnionType, typing.Union), kind
    return sample(rng.choice(inner), rng)


def wire(message: Message, rng: Random) -> bytes:
    """The frames of a message, spoilt: the data in its metadata, single bytes, or lengths and flags of its
    headers."""
    encoded = CODEC.encode(message)
    data = b"".join(encoded.views)
    metadata, what = encoded.metadata, rng.random()
    if what < 0.7:
        changed = mutated(msgspec.msgpack.decode(metadata), rng, deep=(1, 5, 70, 200))
        try:
            metadata = msgspec.msgpack.encode(changed)
        except OverflowError:  # no peer could write that either
            metadata = encoded.metadata[: rng.randrange(len(metadata) + 1)]
    elif what < 0.85 and metadata:
        spoilt = bytearray(metadata)
        for _ in range(rng.randint(1, 3)):
            spoilt[rng.randrange(len(spoilt))] = rng.choice(
                (0, 0x80, 0xC1, 0xDD, 0xDF, 0xFF, rng.randrange(256))
            )
        metadata = bytes(spoilt)
    stream = int(encoded.lane) if encoded.views else 0
    header = [frames.MAGIC, encoded.code, encoded.flags, stream, len(metadata), len(data)]
    if rng.random() < 0.25:
        at = rng.randrange(6)
        bits = (16, 8, 8, 32, 32, 32)[at]
        header[at] = rng.choice([number for number in WRITABLE if 0 <= number < 1 << bits])
    return frames.HEADER.pack(*header) + metadata + data


def feed(inbox: Inbox, data: bytes, rng: Random) -> None:
    """As a connection would: in pieces."""
    at = 0
    while at < len(data):
        room = inbox.buffer()
        size = min(len(room), len(data) - at, rng.choice((1, 7, 4096, 1 << 20)))
        room[:size] = data[at : at + size]
        at += size
        inbox.received(size)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except (BadFrame, ConnectionRejected):
        return True
    return False


@pytest.mark.timeout(3600)
def test_a_spoilt_frame_is_a_message_or_a_bad_frame_and_what_arrives_can_be_passed_on() -> None:
    classes = list(CODES)
    before, arrived, bad = resident_bytes(), 0, 0
    for seed in cases(1500):
        rng = Random(seed)
        got: list[Message] = []
        inbox = Inbox(CODEC, got.append, lambda kind, data: None, lambda: None)
        inbox.strange = False
        inbox.metadata_max = limits.metadata_bytes_max
        try:
            data = wire(sample(classes[seed % len(classes)], rng), rng)
        except NotSendable:
            continue
        bad += refused(lambda inbox=inbox, data=data, rng=rng: feed(inbox, data, rng))  # type: ignore[misc]
        arrived += len(got)
        for message in got:
            CODEC.encode(message)
    assert arrived
    assert bad
    assert resident_bytes() - before < GROWTH_BYTES_MAX


@pytest.mark.timeout(3600)
def test_a_spoilt_greeting_is_a_greeting_or_refused() -> None:
    hello = msgspec.msgpack.decode(msgspec.msgpack.encode(handshake.Hello("g", "b", "a", "unix:/b", 1, 1)))
    for seed in cases(500):
        rng = Random(seed)
        kind = rng.choice((frames.HELLO, frames.WELCOME, frames.REJECTED))
        expected = rng.choice((handshake.Hello, handshake.Welcome))
        try:
            data = msgspec.msgpack.encode(mutated(hello, rng, deep=(1, 5, 200)))
        except OverflowError:
            data = rng.randbytes(20)

        def greet(expected: Any = expected, kind: int = kind, data: bytes = data) -> None:
            read = handshake.read(expected, kind, data)
            if isinstance(read, handshake.Hello):
                handshake.answer(read, "g", "a")

        refused(greet)
