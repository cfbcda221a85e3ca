"""One infer request on its connection: its body as it arrives, and the way for its answer.

It takes the place of uvicorn's request-response cycle, without a scope, a task or events: small requests are
served in the turn of the loop in which their last byte arrives.

Invariant: the body is held once, and counted in the gate from its first byte until `release`. One answer at
most, and in turn.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from hams_sidecar.endpoint import limits
from hams_sidecar.endpoint.errors import RequestRefused
from hams_sidecar.inference import Buffer

if TYPE_CHECKING:
    from hams_sidecar.endpoint.connection import BoundedHttpProtocol

chunk_joined_bytes_max = 4 << 10
"""A smaller piece of a body is joined to what comes next."""

_joined_bytes_max = 64 << 10
"""Answers up to this size are joined: a copy is cheaper than a vector of buffers."""

_NOBODY_WAITS = asyncio.Event()
"""uvicorn's connection tells its cycle by an event that more has come; this one takes the body as it
comes."""


class Server(Protocol):
    """What serves one request: a task, or what stands for one."""

    def cancel(self) -> object:
        """The client went away, or may not be waited for any longer."""
        ...


class Upload(RequestResponseCycle):
    """An infer request. `headers`: names in small letters; `size`: bytes of the body that have arrived;
    `announced`: bytes that have room in place and have not arrived; `complete`: all of it has."""

    def __init__(
        self,
        connection: "BoundedHttpProtocol",
        headers: list[tuple[bytes, bytes]],
        keep_alive: bool,
        asks_first: bool,
    ) -> None:
        # All that uvicorn's connection looks at in a cycle; the rest of its constructor is for ASGI.
        self.transport = connection.transport
        self.flow = connection.flow
        self.message_event = _NOBODY_WAITS
        self.disconnected = False
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = asks_first
        self.more_body = True
        self.response_started = False
        self.response_complete = False
        self.headers = headers
        self.size = 0
        self.announced = 0
        self.began_s = connection.loop.time()
        self.complete = False
        self._connection = connection
        self._chunks: list[Buffer | bytearray] = []
        self._waiter: asyncio.Future[None] | None = None
        self._server: Server | None = None

    # ---- the body

    def add(self, chunk: bytes) -> None:
        """A piece of the body has arrived."""
        # Each piece as an object of its own would hold many times its size, if they are small.
        last = self._chunks[-1] if self._chunks else None
        if isinstance(last, bytearray) and len(last) < limits.direct_body_bytes_min:
            last += chunk
        else:
            self._chunks.append(chunk if len(chunk) >= chunk_joined_bytes_max else bytearray(chunk))
        self.size += len(chunk)
        self._connection.gate.held_bytes += len(chunk)

    def reserve(self, whole: memoryview) -> memoryview:
        """Let the body lie in `whole`, what has arrived of it at its beginning; the rest, to be filled."""
        whole[: self.size] = b"".join(self._chunks)
        self._chunks = [whole]
        self.announced = len(whole) - self.size
        self._connection.gate.announced_bytes += self.announced
        return whole[self.size :]

    def filled(self, size: int) -> None:
        """Count `size` bytes more of the room as filled."""
        self.size += size
        self.announced -= size
        self._connection.gate.held_bytes += size
        self._connection.gate.announced_bytes -= size

    def finish(self) -> None:
        """The body is complete."""
        self.complete = True
        self._connection.gate.bodies.end(self)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def arrived_bytes(self) -> int:
        """`slow_clients.IncomingBody`."""
        return self.size

    def give_way(self) -> None:
        """`slow_clients.IncomingBody`: others need the room."""
        self._connection.give_way(self)

    def whole(self) -> Buffer:
        """The body; only when it is complete."""
        return memoryview(self._chunks[0]) if len(self._chunks) == 1 else b"".join(self._chunks)

    async def arrived(self, timeout_s: float) -> Buffer:
        """The whole body; waits for it. Raises RequestRefused (408) if it does not come in time."""
        if not self.complete:
            self._connection.read_on()
            self._waiter = self._connection.loop.create_future()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._waiter
            except TimeoutError:
                raise RequestRefused(
                    f"expected the whole body within {timeout_s:g} s, got {self.size} bytes", status=408
                ) from None
        return self.whole()

    # ---- the answer

    @property
    def blocked(self) -> bool:
        """Whether the client has not taken all of what was written before, so that an answer has to wait."""
        return self.flow.write_paused and not self.disconnected

    async def unblocked(self, content: Sequence[Buffer]) -> None:
        """Wait until there is room for the content of an answer."""
        if self.blocked:
            self._connection.gate.replies.wait(self._connection, sum(map(len, content)))
            await self.flow.drain()

    def write(self, status: int, headers: bytes, content: Sequence[Buffer]) -> None:
        """Send the whole answer in one go. `headers`: lines that end in CRLF, without Content-Length. Nothing
        happens if the client went away.

        uvicorn's own `send` would write the head and each buffer on their own: a system call each, which is a
        third of a small request's time.
        """
        if self.disconnected:
            return
        size = sum(map(len, content))
        close = b"" if self.keep_alive else b"connection: close\r\n"
        head = b"%b%b%bcontent-length: %d\r\n%b\r\n" % (
            STATUS_LINE[status],
            self._connection.default_headers(),
            headers,
            size,
            close,
        )
        self.response_started = True
        if size <= _joined_bytes_max:
            self.transport.write(b"".join((head, *content)))
        else:
            self.transport.writelines((head, *content))
        self.response_complete = True
        if not self.keep_alive:
            self.transport.close()
        self._connection.on_response_complete()

    def close_after(self) -> None:
        """The answer is the last one of this connection."""
        self.keep_alive = False

    # ---- who serves it

    def begin(self, server: Server) -> bool:
        """`server` serves this request, and is cancelled if the client goes away. False if it went
        already."""
        self._server = self._connection.serving = server
        return not self._connection.lost

    @property
    def lost(self) -> bool:
        """Whether the client went away, so that nobody reads an answer."""
        return self._connection.lost

    def release(self) -> None:
        """The request is answered, or given up: its bytes are no longer held here."""
        self._chunks.clear()
        if self._connection.serving is self._server:
            self._connection.serving = None
        # It knows this upload: as a cycle the two would keep the request and its reply until a collection.
        self._server = None
        self._connection.forget(self)
