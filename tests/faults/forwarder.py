"""A bad network between two instances: forwards the peers' frames, and delays, drops, repeats, reorders or
holds them up.

It listens for one instance and stands in its members' list in place of it, so each direction between two
instances has a forwarder of its own and can be spoilt alone. It knows frames, not messages: what it lets
through is always a stream that the contract allows, so a test that sees a connection closed for a bad frame
has found a bug and not the forwarder.

All chance comes from one seed. Rules may be changed at any time; they hold for the frames that arrive from
then on.
"""

import asyncio
import heapq
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from hams_wire.peers import addresses, frames
from hams_wire.peers.frames import Header

QUEUED_BYTES_MAX = 64 * 1024 * 1024
"""Above this a connection is not read any further: back-pressure, as in a real network."""

OTHER_STREAMS = 1000
"""First of the stream numbers given to messages that are moved, so that they cannot land within another one's
payload."""


@dataclass
class Rules:
    """What happens to each message: every probability is from 0 to 1, and independent of the others.

    `delay_s` plus up to `jitter_s` for every frame, order kept. `reorder` of the messages are held back by
    another `reorder_s` and overtaken by what follows, if they fit into one frame; so do those that are
    repeated. A dropped message loses all its frames.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    drop: float = 0.0
    repeat: float = 0.0
    reorder: float = 0.0
    reorder_s: float = 0.02


class Forwarder:
    """One direction: whoever dials `address` talks to `target`."""

    def __init__(self, target: str, seed: int = 0, listen: str = "tcp:127.0.0.1:0") -> None:
        self.target = target
        self.rules = Rules()
        self.cut_after_bytes: int | None = None
        """Once more bytes of payload than this have come, the cable is out: in the middle of a payload, if
        that is larger."""
        self.payload_bytes = 0
        self.forwarded = 0
        self.dropped = 0
        self.repeated = 0
        self.reordered = 0
        self.errors: list[BaseException | None] = []
        self._listen = listen
        self._address = ""
        self._random = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._decided = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()

    @property
    def address(self) -> str:
        """What stands in the members' list."""
        return self._address

    async def start(self) -> None:
        """Listen."""
        match addresses.parse(self._listen):
            case addresses.Unix(path):
                self._server = await asyncio.start_unix_server(self._accept, path)
                self._address = f"unix:{path}"
            case addresses.Tcp(host, port):
                self._server = await asyncio.start_server(self._accept, host, port)
                self._address = str(addresses.Tcp(host, self._server.sockets[0].getsockname()[1]))

    async def seen(self, messages: int) -> None:
        """Return when the fate of this many messages has been decided since the start."""
        while self.forwarded + self.dropped < messages:
            self._decided.clear()
            await self._decided.wait()

    def cut(self) -> None:
        """Nothing passes any more, in either direction of the connection, and nobody is told: the cable is
        out."""
        self._open.clear()

    @property
    def is_cut(self) -> bool:
        """Whether the cable is out."""
        return not self._open.is_set()

    def heal(self) -> None:
        """Everything held up goes on its way."""
        self._open.set()

    def reset(self) -> None:
        """Break all connections. The next attempt to connect succeeds."""
        for link in tuple(self._links):
            link.abort()

    async def close(self) -> None:
        """Break all connections and refuse new ones."""
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.errors.append(task.exception())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()  # a stranger in front of a cut cable waits as for an answer that never comes
        try:
            target = addresses.parse(self.target)
            if isinstance(target, addresses.Unix):
                far_reader, far_writer = await asyncio.open_unix_connection(target.path)
            else:
                far_reader, far_writer = await asyncio.open_connection(target.host, target.port)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(self, reader, writer, far_reader, far_writer)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)


class _Link:
    """One connection through a forwarder."""

    def __init__(
        self,
        owner: Forwarder,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
    ) -> None:
        self._owner = owner
        self._reader = reader
        self._writer = writer
        self._far_reader = far_reader
        self._far_writer = far_writer
        self._loop = asyncio.get_running_loop()
        self._due: list[tuple[float, int, bytes]] = []
        self._count = 0
        self._bytes = 0
        self._last_due = 0.0
        # payload bytes still to come, per stream whose message goes through ...
        self._left: dict[int, int] = {}
        self._lost: dict[int, int] = {}  # ... and per stream whose message does not
        self._changed = asyncio.Event()

    def abort(self) -> None:
        """Break it at both ends."""
        self._writer.transport.abort()
        self._far_writer.transport.abort()

    async def run(self) -> None:
        """Forward until one end is gone; then the other goes too."""
        parts: tuple[Callable[[], Awaitable[None]], ...] = (self._read, self._write, self._answer)
        tasks = [asyncio.ensure_future(part()) for part in parts]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.abort()
            for task in tasks:
                task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(
                end, OSError | asyncio.IncompleteReadError | asyncio.CancelledError
            ):
                raise end

    async def _read(self) -> None:
        while True:
            head = await self._reader.readexactly(frames.HEADER.size)
            _, kind, flags, stream, metadata, data = frames.HEADER.unpack(head)
            body = await self._reader.readexactly(metadata + data)
            self._route(Header(kind, flags, stream, metadata, data), head + body)
            while self._bytes > QUEUED_BYTES_MAX:
                self._changed.clear()
                await self._changed.wait()

    def _route(self, header: Header, frame: bytes) -> None:
        """Decide the fate of a frame."""
        owner, rules, chance = self._owner, self._owner.rules, self._owner._random.random
        owner.payload_bytes += header.data
        if owner.cut_after_bytes is not None and owner.payload_bytes > owner.cut_after_bytes:
            owner.cut()
        if header.kind < frames.DATA:
            self._send(frame)
            return
        if header.kind == frames.DATA:
            table = self._lost if header.stream in self._lost else self._left
            table[header.stream] -= header.data
            if not table[header.stream]:
                del table[header.stream]
            if table is self._left:
                self._send(frame)
            return
        total = 0
        if header.flags & frames.PAYLOAD:
            rows, _ = msgspec.msgpack.decode(frame[frames.HEADER.size : frames.HEADER.size + header.metadata])
            total = sum(row[0] for row in rows)
        more = total - header.data
        lost = chance() < rules.drop
        owner._decided.set()
        if more:
            (self._lost if lost else self._left)[header.stream] = more
        if lost:
            owner.dropped += 1
            return
        owner.forwarded += 1
        if more:
            self._send(frame)
            return
        if chance() < rules.reorder:
            owner.reordered += 1
            self._send(self._moved(header, frame), held_s=rules.reorder_s)
        else:
            self._send(frame)
        if chance() < rules.repeat:
            owner.repeated += 1
            self._send(self._moved(header, frame), held_s=rules.reorder_s * chance())

    def _moved(self, header: Header, frame: bytes) -> bytes:
        """The same message on a stream that nobody else uses."""
        if not header.flags & frames.PAYLOAD:
            return frame
        stream = OTHER_STREAMS + self._count
        return (
            frames.pack(header.kind, header.flags, stream, header.metadata, header.data)
            + frame[frames.HEADER.size :]
        )

    def _send(self, frame: bytes, held_s: float = 0.0) -> None:
        rules = self._owner.rules
        due = self._loop.time() + rules.delay_s + rules.jitter_s * self._owner._random.random()
        if held_s:
            due += held_s
        else:
            due = self._last_due = max(due, self._last_due)
        self._count += 1
        self._bytes += len(frame)
        heapq.heappush(self._due, (due, self._count, frame))
        self._changed.set()

    async def _write(self) -> None:
        while True:
            await self._owner._open.wait()
            wait_s = self._due[0][0] - self._loop.time() if self._due else None
            if wait_s is None or wait_s > 0:
                self._changed.clear()
                try:
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()
                except TimeoutError:
                    pass
                continue
            _, _, frame = heapq.heappop(self._due)
            self._bytes -= len(frame)
            self._changed.set()
            self._far_writer.write(frame)
            await self._far_writer.drain()

    async def _answer(self) -> None:
        while data := await self._far_reader.read(65536):
            await self._owner._open.wait()
            self._writer.write(data)
            await self._writer.drain()
