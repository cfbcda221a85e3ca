"""The connections of model processes: cut into frames, matched into sessions, handed to the link.

A session is one model process: a `run` connection, which opens it, and the `capture` and `health` connections
that name it. A connection that sends anything else is closed without harm to the session; a session that
loses one of its connections is over.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from typing import cast

from hams_sidecar.model import frames
from hams_sidecar.model.frames import BadModelFrame, FromModel, Hello

HELLO_WAIT_S = 5.0
"""How long a connection may take to say what it is for."""

LAST_WORDS_BYTES_MAX = 4 << 20
"""Of what a process that has ended sent, at most this much is read; a child of it may still be writing."""

_READ_BYTES = 64 << 10
_CREDENTIALS = struct.Struct("3i")


class ModelChannel(asyncio.Protocol):
    """One connection. `on_hello` decides what it is for; after that, frames go to `on_frame` and its end to
    `on_lost`."""

    def __init__(
        self, on_hello: Callable[["ModelChannel", Hello], None], on_gone: Callable[["ModelChannel"], None]
    ) -> None:
        self.name = ""
        self.on_frame: Callable[[FromModel], None] | None = None
        self.on_lost: Callable[[str], None] | None = None
        self.closed = asyncio.Event()
        self._on_hello = on_hello
        self._on_gone = on_gone
        self._reader = frames.FrameReader()
        self._transport: asyncio.WriteTransport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio.Protocol."""
        self._transport = cast(asyncio.WriteTransport, transport)
        # uvloop writes at once what is above, and the rest a turn of the loop later
        self._transport.set_write_buffer_limits(high=0)
        self._timer = asyncio.get_running_loop().call_later(HELLO_WAIT_S, self.close)

    def data_received(self, data: bytes) -> None:
        """asyncio.Protocol."""
        try:
            for frame in self._reader.feed(data):
                if self.on_frame is not None:
                    self.on_frame(frame)
                elif isinstance(frame, Hello) and not self.name:
                    self.name = frame.channel
                    if self._timer is not None:
                        self._timer.cancel()
                    self._on_hello(self, frame)
                else:
                    raise BadModelFrame(f"{type(frame).__name__} before Hello")
        except BadModelFrame as error:
            self._lost(f"the model broke the contract on its {self.name or 'new'} connection: {error}")
            self.close()

    def read_last_words(self) -> None:
        """Deliver what the process had sent before it ended: that may be told before what it sent is read."""
        transport, left = self._transport, LAST_WORDS_BYTES_MAX
        # One that closes may have given its descriptor back, and somebody else has it by now.
        while left > 0 and transport is not None and not transport.is_closing():
            try:
                data = os.read(transport.get_extra_info("socket").fileno(), min(left, _READ_BYTES))
            except OSError:  # nothing is left, or the connection broke
                return
            if not data:
                return
            left -= len(data)
            self.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio.Protocol."""
        if self._timer is not None:
            self._timer.cancel()
        self.closed.set()
        self._on_gone(self)
        self._lost(
            "the model process closed its connection"
            if exc is None
            else f"the connection to the model process broke: {exc}"
        )

    def send(self, kind: int, body: dict[str, object]) -> None:
        """Send one frame; nothing happens if the connection is gone, as its end is told by `on_lost`."""
        self.send_frame(frames.encode(kind, body))

    def send_frame(self, frame: bytes) -> None:
        """Send a frame that is encoded already; see `send`."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    def close(self) -> None:
        """Close once what was sent has left."""
        if self._transport is not None:
            self._transport.close()

    async def abort(self) -> None:
        """Close now, telling nobody; returns when it is closed."""
        self.on_lost = self.on_frame = None
        if self._transport is not None:
            self._transport.abort()
            await self.closed.wait()

    def peer_pid(self) -> int:
        """Process that connected, 0 if it is in a pid namespace that cannot be seen from here."""
        connection: socket.socket | None = (
            self._transport.get_extra_info("socket") if self._transport is not None else None
        )
        if connection is None:
            return 0
        pid: int = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )[0]
        return 0 if pid == os.getpid() else pid

    def _lost(self, reason: str) -> None:
        on_lost, self.on_lost, self.on_frame = self.on_lost, None, None
        if on_lost is not None:
            on_lost(reason)
