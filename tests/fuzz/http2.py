"""HTTP/2 by hand: what no client library lets one do to a gRPC server."""

import asyncio
import struct
from dataclasses import dataclass, field

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
INITIAL_WINDOW_SIZE = 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
INFER = b"/inference.GRPCInferenceService/ModelInfer"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def head(path: bytes, *extra: tuple[bytes, bytes]) -> bytes:
    """Request headers, without compression."""
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"x"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        *extra,
    )
    return b"".join(b"\0" + bytes([len(a)]) + a + bytes([len(b)]) + b for a, b in fields)


def prefix(size: int) -> bytes:
    """What stands before a gRPC message of this size."""
    return b"\0" + struct.pack(">I", size)


@dataclass
class Connection:
    """A connection that sends what it is told, and counts what comes. `over`: streams that the server has
    ended."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    over: set[int] = field(default_factory=set)
    received: int = 0
    room: int = 65_535
    rooms: dict[int, int] = field(default_factory=dict)
    initial: int = 65_535
    closed: bool = False
    _task: asyncio.Task[None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    async def open(cls, host: str, port: int, *, window: int | None = None) -> "Connection":
        """Connect; `window`: how much of a reply this client is ready to take."""
        made = cls(*await asyncio.open_connection(host, port))
        settings = b"" if window is None else struct.pack(">HI", INITIAL_WINDOW_SIZE, window)
        made.writer.write(PREFACE + frame(SETTINGS, 0, 0, settings))
        made._task = asyncio.create_task(made._read())
        return made

    def call(self, stream: int, path: bytes = INFER, *extra: tuple[bytes, bytes], end: bool = False) -> None:
        """Headers of a call."""
        self.rooms[stream] = self.initial
        flags = END_HEADERS | (END_STREAM if end else 0)
        self.writer.write(frame(HEADERS, flags, stream, head(path, *extra)))

    def data(self, stream: int, payload: bytes, *, end: bool = False) -> None:
        """Data as it is, whatever the server's window."""
        self.room -= len(payload)
        self.rooms[stream] = self.rooms.get(stream, 0) - len(payload)
        self.writer.write(frame(DATA, END_STREAM if end else 0, stream, payload))

    async def pour(self, stream: int, size: int) -> int:
        """So many bytes, as fast as the server takes them; how many it took before it ended the stream."""
        left = size
        while left and stream not in self.over and not self.closed:
            piece = min(16_384, left, self.room, self.rooms[stream])
            if piece > 0:
                self.data(stream, bytes(piece))
                left -= piece
                await self.writer.drain()
            else:
                self.changed.clear()
                await self.changed.wait()
        return size - left

    async def ended(self, stream: int) -> None:
        """Wait until the server has ended a stream, or the connection."""
        while stream not in self.over and not self.closed:
            self.changed.clear()
            await self.changed.wait()

    async def _read(self) -> None:
        try:
            while True:
                start = await self.reader.readexactly(9)
                payload = await self.reader.readexactly(int.from_bytes(start[:3], "big"))
                self._take(start[3], start[4], int.from_bytes(start[5:], "big"), payload)
                self.changed.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed = True
            self.changed.set()

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == WINDOW_UPDATE and stream:
            self.rooms[stream] = self.rooms.get(stream, 0) + int.from_bytes(payload, "big")
        elif kind == WINDOW_UPDATE:
            self.room += int.from_bytes(payload, "big")
        elif kind == SETTINGS and not flags & ACK:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[at : at + 6])
                if name == INITIAL_WINDOW_SIZE:
                    self.rooms = {number: room + value - self.initial for number, room in self.rooms.items()}
                    self.initial = value
            self.writer.write(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.writer.write(frame(PING, ACK, 0, payload))
        elif kind == RST_STREAM or (kind in (HEADERS, DATA) and flags & END_STREAM):
            self.over.add(stream)
        if kind == DATA:
            self.received += len(payload)

    async def close(self) -> None:
        """Hang up."""
        if self._task is not None:
            self._task.cancel()
        self.writer.close()
