"""Frames of one connection, put together to messages.

Pure: it hands out the memory where the next bytes are to be written, and is told how many came. Payload bytes
go straight into the room that the payload factory gave; only what arrived together with a header is copied,
at most `staging_bytes` per frame.

Invariant: a message is delivered once, whole, after every check has passed, or not at all. Memory is bounded
by what has arrived, by `metadata_bytes_max`, and by what the factory is willing to give. A message without
room is read to its end and dropped, so that it holds up nobody behind it.
"""

from collections.abc import Callable

from hams_protocol.messages import Message
from hams_wire import limits
from hams_wire.peers import frames
from hams_wire.peers.codec import Codec, PartialMessage
from hams_wire.peers.errors import BadFrame, NoRoom
from hams_wire.peers.payload import Room

streams_open_max = 8
"""Messages of one connection whose payload is still arriving: one per lane, and room for lanes to come."""


class _Arriving:
    """A message whose payload bytes are on their way. `rooms` is None if there was no memory for them."""

    __slots__ = ("at", "incoming", "left", "room", "rooms")

    def __init__(self, incoming: PartialMessage, rooms: list[Room] | None) -> None:
        self.incoming = incoming
        self.rooms = rooms
        self.left = incoming.total
        self.room = 0
        self.at = 0

    def target(self, frame_left: int) -> memoryview | None:
        """Where the next bytes belong; None if nowhere. Only while bytes are missing."""
        if self.rooms is None:
            return None
        size = self.incoming.table[self.room][0]
        while self.at == size:
            self.room += 1
            self.at = 0
            size = self.incoming.table[self.room][0]
        return self.rooms[self.room].view[self.at : min(size, self.at + frame_left)]

    def advance(self, count: int) -> None:
        """`count` bytes have been written at the target."""
        self.at += count
        self.left -= count


class Inbox:
    """The receiving half of one connection.

    `deliver` gets each message, `greet` the type and metadata of each greeting, `dropped` is told of messages
    without room. `metadata_max` bounds metadata; a connection starts with `hello_bytes_max` and `strange`
    set, which allows greetings only, and its owner lifts both once it knows the peer.
    """

    __slots__ = (
        "_arriving",
        "_codec",
        "_current",
        "_deliver",
        "_dropped",
        "_end",
        "_frame_left",
        "_greet",
        "_staging_bytes",
        "_start",
        "_view",
        "metadata_max",
        "payload_bytes",
        "strange",
    )

    def __init__(
        self,
        codec: Codec,
        deliver: Callable[[Message], None],
        greet: Callable[[int, bytes], None],
        dropped: Callable[[], None],
        staging_bytes: int = limits.staging_bytes,
    ) -> None:
        self._codec = codec
        self._deliver = deliver
        self._greet = greet
        self._dropped = dropped
        self._staging_bytes = staging_bytes
        self._view = memoryview(bytearray(staging_bytes))
        self._start = 0
        self._end = 0
        self._arriving: dict[int, _Arriving] = {}
        self._current: _Arriving | None = None  # whose payload bytes come next in the stream ...
        self._frame_left = 0  # ... and how many of them belong to this frame
        self.payload_bytes = 0
        """Payload bytes that have come, of messages that did not come in one piece."""
        self.metadata_max = limits.hello_bytes_max
        self.strange = True

    @property
    def owed_bytes(self) -> int:
        """Payload bytes announced and not here yet: their room is taken already."""
        return sum([arriving.left for arriving in self._arriving.values()]) if self._arriving else 0

    def buffer(self) -> memoryview:
        """Where the next bytes are to be written."""
        if self._current is not None and self._start == self._end:
            target = self._current.target(self._frame_left)
            return self._view[: self._frame_left] if target is None else target
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """`count` bytes have been written into what `buffer` returned. Raises BadFrame, after which the inbox
        is of no use any more."""
        current = self._current
        if current is not None and self._start == self._end:
            current.advance(count)
            self.payload_bytes += count
            self._frame_left -= count
            if not self._frame_left:
                self._frame_done(current)
            return
        self._end += count
        self._parse()

    def _parse(self) -> None:
        while True:
            if self._current is not None:
                self._copy(self._current)
                if self._current is not None:
                    break
            available = self._end - self._start
            if available < frames.HEADER.size:
                self._keep(frames.HEADER.size)
                return
            header = frames.unpack(self._view, self._start, self.metadata_max)
            size = frames.HEADER.size + header.metadata
            if available < size:
                self._keep(size)
                return
            metadata = self._view[self._start + frames.HEADER.size : self._start + size]
            self._start += size
            self._frame(header, metadata)
        self._start = self._end = 0

    def _keep(self, need: int) -> None:
        """An incomplete frame stays at the front of the staging memory, which grows no faster than bytes
        arrive."""
        available = self._end - self._start
        room = len(self._view)
        if need > room and available > room // 2:
            self._resize(min(need, 2 * room))
        elif need <= self._staging_bytes < room:
            self._resize(self._staging_bytes)
        elif self._start:
            self._view[:available] = bytes(self._view[self._start : self._end])
            self._start, self._end = 0, available

    def _resize(self, size: int) -> None:
        available = self._end - self._start
        larger = memoryview(bytearray(size))
        larger[:available] = self._view[self._start : self._end]
        self._view = larger
        self._start, self._end = 0, available

    def _copy(self, current: _Arriving) -> None:
        """Payload bytes that came together with their header."""
        available = min(self._end - self._start, self._frame_left)
        while available:
            target = current.target(available)
            count = available if target is None else len(target)
            if target is not None:
                target[:] = self._view[self._start : self._start + count]
            current.advance(count)
            self.payload_bytes += count
            self._start += count
            self._frame_left -= count
            available -= count
        if not self._frame_left:
            self._frame_done(current)

    def _frame(self, header: frames.Header, metadata: memoryview) -> None:
        kind = header.kind
        if kind < frames.DATA:
            self._greet(kind, bytes(metadata))
        elif self.strange:
            raise BadFrame(f"expected a greeting, found a frame of type {kind}")
        elif kind == frames.DATA:
            arriving = self._arriving.get(header.stream)
            if arriving is None or header.data > arriving.left:
                missing = 0 if arriving is None else arriving.left
                raise BadFrame(
                    f"{header.data} payload bytes for stream {header.stream}, which expects {missing}"
                )
            self._current, self._frame_left = arriving, header.data
        elif header.flags:
            self._begin(header, metadata)
        else:
            self._deliver(self._codec.decode(kind, metadata))

    def _begin(self, header: frames.Header, metadata: memoryview) -> None:
        incoming = self._codec.begin(header.kind, metadata)
        if header.data > incoming.total:
            raise BadFrame(f"{header.data} payload bytes in a message that announces {incoming.total}")
        if header.stream in self._arriving:
            raise BadFrame(f"a message on stream {header.stream}, whose last one is not complete")
        try:
            rooms: list[Room] | None = [self._codec.factory.allocate(size) for size, _ in incoming.table]
        except NoRoom:
            rooms = None
        # small, and all of it is here
        if rooms is not None and header.data == incoming.total <= self._end - self._start:
            for room in rooms:
                view = room.view
                start, self._start = self._start, self._start + len(view)
                view[:] = self._view[start : self._start]
            self._deliver(self._codec.finish(incoming, rooms))
            return
        arriving = _Arriving(incoming, rooms)
        if header.data < incoming.total:
            if len(self._arriving) >= streams_open_max:
                raise BadFrame(f"more than {streams_open_max} messages begun and not completed")
            self._arriving[header.stream] = arriving
        if header.data:
            self._current, self._frame_left = arriving, header.data
        elif not incoming.total:
            self._complete(arriving)

    def _frame_done(self, arriving: _Arriving) -> None:
        self._current = None
        if not arriving.left:
            for stream, other in self._arriving.items():
                if other is arriving:
                    del self._arriving[stream]
                    break
            self._complete(arriving)

    def _complete(self, arriving: _Arriving) -> None:
        if arriving.rooms is None:
            self._dropped()
        else:
            self._deliver(self._codec.finish(arriving.incoming, arriving.rooms))
