"""The frame: a header of 16 bytes, metadata, payload bytes (proto/peers.md).

Pure: bytes in, numbers out. A header that is not right in every field is a `BadFrame`; nothing is ever
skipped to find the next one.
"""

import struct
from typing import NamedTuple

from hams_wire.peers.errors import BadFrame

chunk_bytes_max = 2 * 1024 * 1024
"""Payload bytes in one frame: what an urgent message may have to wait for."""

MAGIC = 0x484D
"""The first two bytes of every frame, "HM"."""

HEADER = struct.Struct("!HBBIII")
"""magic, type, flags, stream, metadata bytes, payload bytes of this frame."""

HELLO = 1
WELCOME = 2
REJECTED = 3
DATA = 4
MESSAGE_FIRST = 16
"""Types from here on are messages; their codes are in codec.py."""

PAYLOAD = 1
"""Flag of a message: metadata is [payload table, message], and payload bytes follow."""


class Header(NamedTuple):
    """A header that has passed the checks."""

    kind: int
    flags: int
    stream: int
    metadata: int
    data: int


def pack(kind: int, flags: int, stream: int, metadata: int, data: int) -> bytes:
    """A header."""
    return HEADER.pack(MAGIC, kind, flags, stream, metadata, data)


def unpack(buffer: bytearray | bytes | memoryview, offset: int, metadata_max: int) -> Header:
    """The header at `offset`. Raises BadFrame."""
    magic, kind, flags, stream, metadata, data = HEADER.unpack_from(buffer, offset)
    if magic != MAGIC:
        raise BadFrame(f"expected a frame, found magic 0x{magic:04x}")
    if metadata > metadata_max:
        raise BadFrame(f"{metadata} bytes of metadata, at most {metadata_max} are taken")
    if data > chunk_bytes_max:
        raise BadFrame(f"{data} bytes of payload in one frame, at most {chunk_bytes_max} are taken")
    if kind >= MESSAGE_FIRST:
        if flags & ~PAYLOAD or (not flags and (data or stream)):
            raise BadFrame(
                f"a message of type {kind} with flags 0x{flags:02x}, stream {stream} and {data} payload bytes"
            )
    elif kind == DATA:
        if flags or metadata or not data:
            raise BadFrame(
                f"a data frame with flags 0x{flags:02x}, {metadata} bytes of metadata and {data} of payload"
            )
    elif not HELLO <= kind <= REJECTED:
        raise BadFrame(f"unknown frame type {kind}")
    elif flags or data or stream:
        raise BadFrame(f"a greeting with flags 0x{flags:02x}, stream {stream} and {data} payload bytes")
    return Header(kind, flags, stream, metadata, data)
