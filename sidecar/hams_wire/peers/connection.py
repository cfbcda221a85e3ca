"""One connection between two instances: `Sending` at the side that dialled, `Receiving` at the other.

Messages travel from the dialling side to the other only; the way back carries the answer to the greeting and,
if it comes to that, the reason why the connection is closed. So each direction between two instances has a
connection, a buffer and a fate of its own.

What is urgent can only overtake what has not left: a connection hands the transport one turn of the outbox at
a time and the next when all of it has gone to the kernel, and the kernel is told to hold little unsent.

Never: reads a message's meaning, retries, raises into its caller; what goes wrong ends the connection and is
reported to its owner.
"""

import asyncio
import logging
import socket
import struct
from typing import Protocol, cast

from hams_protocol.ids import InstanceId
from hams_protocol.messages import Message
from hams_wire import limits, peer_exit
from hams_wire.peers import handshake
from hams_wire.peers.codec import Codec, Encoded
from hams_wire.peers.errors import BadFrame, ConnectionRejected, reason_of
from hams_wire.peers.inbox import Inbox
from hams_wire.peers.outbox import SendQueue

let_go_bytes = 128 * 1024
"""Pieces of payload above this are reported to their owner when they have left."""

answer_bytes_max = limits.hello_bytes_max + 16
"""Read buffer on the way back of a connection, where only answers to the greeting travel."""

unsent_bytes_max = 256 * 1024
"""Bytes the kernel may hold unsent (TCP_NOTSENT_LOWAT): what is urgent overtakes everything behind them."""

payload_silence_s = 5.0
"""A connection that has announced a payload and sends none of it for this long is closed: room for it is
taken, and nobody else has it."""

keepalive_s = 1
"""Seconds without traffic before the kernel probes a connection, and between its probes."""

keepalive_probes_max = 3
"""Unanswered kernel probes after which a connection is broken."""

user_timeout_s = 5
"""Sent bytes without acknowledgement for this long break a connection."""

log = logging.getLogger("hams.wire.peers")

TCP_INFO = struct.Struct("=24xI28xI")
"""Of Linux' `struct tcp_info` (linux/tcp.h): `tcpi_unacked`, segments, and `tcpi_last_ack_recv`, ms."""


def tune(transport: asyncio.BaseTransport) -> None:
    """Send at once, notice a dead host, keep little unsent in the kernel. A Unix socket takes as much: one
    chunk in one piece."""
    connection = transport.get_extra_info("socket")
    if connection is None:
        return
    if connection.family == socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.chunk_bytes)
        return
    for level, option, value in (
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, keepalive_s),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, keepalive_s),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, keepalive_probes_max),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, user_timeout_s * 1000),
        (socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, unsent_bytes_max),
    ):
        connection.setsockopt(level, option, value)


class SendingOwner(Protocol):
    """The side that dialled."""

    def reached(self, transport: asyncio.BaseTransport) -> None:
        """Somebody listens there, and has shown its certificate. Raises ConnectionRejected if it is none of
        ours: nothing is said to it."""
        ...

    def stands(self, sending: "Sending") -> None:
        """The connection has been welcomed: messages may be sent."""
        ...

    def dirty(self, sending: "Sending") -> None:
        """The connection has something to write: call `flush` soon, once. Not called again before that."""
        ...

    @property
    def held_copies(self) -> str:
        """The operator whose state's copies stay for now; "": none. When it changes to that, `Sending.go_on`
        is called."""
        ...

    def lost(self, sending: "Sending") -> None:
        """The connection is gone, welcomed or not. Called once."""
        ...


class Sending(asyncio.BufferedProtocol):
    """The dialling side of a connection. `welcomed` is done when messages may be sent; its exception is
    ConnectionRejected, BadFrame or OSError.

    `closed` is done when the connection is gone, or will never be made. `pid` is the peer's process, 0 if it
    cannot be seen. `offended`: why the peer has closed it, if it was for something that was sent.
    """

    def __init__(
        self,
        owner: SendingOwner,
        peer: InstanceId,
        hello: handshake.Hello,
        codec: Codec,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.peer = peer
        self.outbox = SendQueue()
        self.pid = 0
        self.offended: ConnectionRejected | None = None
        self.welcomed: asyncio.Future[int] = loop.create_future()
        # it may be that nobody is left to look at it
        self.welcomed.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.closed: asyncio.Future[None] = loop.create_future()
        self._idle: asyncio.Future[None] | None = None
        self._owner = owner
        self._hello = hello
        self._loop = loop
        self._inbox = Inbox(codec, self._reject, self._greeted, _nothing, answer_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._scheduled = False
        self._factory = codec.factory
        self._written: list[memoryview] = []

    # ---- sending ----

    def push(self, message: Encoded) -> bool:
        """Queue a message; it leaves with all others of this turn of the loop. False if it was not queued
        (`SendQueue.push`)."""
        if not self.outbox.push(message):
            return False
        self.go_on()
        return True

    def go_on(self) -> None:
        """Have what may leave written with all else of this turn of the loop."""
        if not self._scheduled and not self._paused:
            self._scheduled = True
            self._owner.dirty(self)

    def flush(self) -> None:
        """Write one turn of the outbox."""
        self._scheduled = False
        transport = self._transport
        if self._paused or transport is None or transport.is_closing():
            return
        pieces = self.outbox.take(self._owner.held_copies)
        if pieces:
            if len(pieces) == 1:
                transport.write(pieces[0])
            else:
                transport.writelines(pieces)
            last = pieces[-1]
            if len(last) > let_go_bytes and type(last) is memoryview:
                self._written.append(last)
                if not self._paused:  # all of it has left
                    self._let_go()
        self._next_turn()

    def _let_go(self) -> None:
        for view in self._written:
            self._factory.sent(view)
        self._written.clear()

    def _next_turn(self) -> None:
        """After a write: the next turn of the outbox, unless the kernel has had enough."""
        if self._paused:
            return
        if self.outbox.may_leave(self._owner.held_copies):
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self.flush)
        elif self._idle is not None and not self.outbox:
            self._idle.set_result(None)
            self._idle = None

    async def flushed(self) -> None:
        """Return when everything queued has left, or the connection is gone."""
        if self.closed.done() or not (self.outbox or self._paused):
            return
        if self._idle is None:
            self._idle = self._loop.create_future()
        await asyncio.shield(self._idle)

    def pause_writing(self) -> None:
        """The kernel takes no more: the rest waits here, where what is urgent may overtake it."""
        self._paused = True

    def resume_writing(self) -> None:
        """All that was written has gone."""
        self._paused = False
        self._let_go()
        if not self._scheduled:
            self.flush()

    # ---- the connection ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the greeting."""

        self._transport = cast(asyncio.Transport, transport)  # uvloop has transports of its own
        if self.closed.done():
            self._transport.abort()
            return
        try:
            self._owner.reached(self._transport)
        except ConnectionRejected as rejected:
            self.welcomed.set_exception(rejected)
            self._transport.abort()
            return
        tune(self._transport)
        self.pid = peer_exit.peer_pid(self._transport)
        # paused unless all is gone; with 0, TLS pauses for ever
        self._transport.set_write_buffer_limits(high=1, low=0)
        self._transport.write(handshake.frame(self._hello))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the answer goes."""
        return self._inbox.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Part of an answer."""
        try:
            self._inbox.received(nbytes)
        except (BadFrame, ConnectionRejected) as error:
            if not self.welcomed.done():
                self.welcomed.set_exception(error)
            else:
                self.offended = reason_of(error)
            self.abort()

    def _greeted(self, kind: int, metadata: bytes) -> None:
        welcome = handshake.read(handshake.Welcome, kind, metadata)
        if self.welcomed.done():
            raise BadFrame("a second welcome")
        if not handshake.VERSION_OLDEST <= welcome.version <= handshake.VERSION:
            raise BadFrame(f"welcomed to version {welcome.version}, which was not offered")
        self.welcomed.set_result(welcome.version)
        self._owner.stands(self)

    def _reject(self, message: Message) -> None:
        raise BadFrame(f"a {type(message).__name__} against the direction of the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        """Whatever still waited is lost."""
        if self.closed.done():
            return
        self.closed.set_result(None)
        self._written.clear()
        if self._idle is not None:
            self._idle.set_result(None)
            self._idle = None
        if not self.welcomed.done():
            self.welcomed.set_exception(
                exc
                if isinstance(exc, OSError)
                else ConnectionResetError("closed before the greeting was answered")
            )
        self._owner.lost(self)

    @property
    def unacknowledged_s(self) -> float:
        """Since the last acknowledgement of the other end's kernel, while something is without one. A process
        that is stopped, or that reads nothing, has a kernel that answers."""
        connection = None if self._transport is None else self._transport.get_extra_info("socket")
        if connection is None or connection.family == socket.AF_UNIX:
            return 0.0
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size)
        unacknowledged, since_ms = TCP_INFO.unpack(info)
        return since_ms / 1000 if unacknowledged else 0.0

    def close(self) -> None:
        """Close when what the transport holds has left."""
        if self._transport is not None:
            self._transport.close()
        else:
            self.abort()

    def abort(self) -> None:
        """Close at once; what waits is lost."""
        if self._transport is None:
            self.connection_lost(None)
        elif not self.closed.done():
            self._transport.abort()


class ReceivingOwner(Protocol):
    """The side that listens."""

    def accepted(self, receiving: "Receiving", transport: asyncio.BaseTransport) -> None:
        """A stranger has connected, and has shown its certificate if that is asked for. Raises
        ConnectionRejected."""
        ...

    def greeted(self, receiving: "Receiving", hello: handshake.Hello) -> handshake.Welcome:
        """The greeting of the peer has come. Raises ConnectionRejected."""
        ...

    def visited(
        self, receiving: "Receiving", hello: handshake.Hello, transport: asyncio.Transport
    ) -> handshake.Welcome:
        """The peer is a visitor: the transport is its host's once it has been welcomed. Raises
        ConnectionRejected."""
        ...

    def on_received(self, peer: InstanceId) -> None:
        """Bytes have arrived, of a known peer or (empty) of a stranger; what they hold is delivered now."""
        ...

    def deliver(self, peer: InstanceId, message: Message) -> None:
        """A message has arrived."""
        ...

    def dropped(self) -> None:
        """A message has arrived for whose payload there was no memory."""
        ...

    def rejected(self, receiving: "Receiving", error: BadFrame | ConnectionRejected) -> None:
        """The peer is being rejected, or has sent what is not allowed; the connection is being closed."""
        ...

    def gone(self, receiving: "Receiving") -> None:
        """The connection is gone."""
        ...


class Receiving(asyncio.BufferedProtocol):
    """The side of a connection that was dialled. `peer` is empty until it has greeted; `source` is the host
    it comes from, None: this one."""

    def __init__(self, owner: ReceivingOwner, codec: Codec, loop: asyncio.AbstractEventLoop) -> None:
        self.peer: InstanceId = ""
        self.closed: asyncio.Future[None] = loop.create_future()
        self.inbox = Inbox(codec, self._deliver, self._greeted, owner.dropped)
        self._owner = owner
        self._loop = loop
        self.source: str | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._owed: asyncio.TimerHandle | None = None
        self._deaf = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A stranger has a moment to say who it is."""

        self._transport = cast(asyncio.Transport, transport)  # uvloop has transports of its own
        tune(self._transport)
        name = self._transport.get_extra_info("peername")
        self.source = name[0] if isinstance(name, tuple) and name else None
        self._timer = self._loop.call_later(limits.handshake_s, self._too_late)
        try:
            self._owner.accepted(self, self._transport)
        except ConnectionRejected as rejected:
            self._reject(rejected)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: into a payload if it is a payload's turn."""
        return self.inbox.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived. A TLS transport that is being closed still brings what has come: of somebody
        rejected nothing is read."""
        if self._deaf:
            return
        self._owner.on_received(self.peer)
        try:
            self.inbox.received(nbytes)
        except (BadFrame, ConnectionRejected) as error:
            self._reject(error)
            return
        if self._owed is None and self.inbox.owed_bytes:
            self._owe()

    def _owe(self) -> None:
        """Room was given for payloads that are still to come: a claim that nothing follows is taken back."""
        self._owed = self._loop.call_later(payload_silence_s, self._come, self.inbox.payload_bytes)

    def _come(self, before: int) -> None:
        self._owed = None
        left = self.inbox.owed_bytes
        if left and self.inbox.payload_bytes == before and not self._deaf:
            self._reject(
                BadFrame(f"{left} payload bytes were announced, and none came for {payload_silence_s} s")
            )
        elif left and not self._deaf:
            self._owe()

    def _greeted(self, kind: int, metadata: bytes) -> None:
        if self.peer:
            raise BadFrame("a second greeting")
        hello = handshake.read(handshake.Hello, kind, metadata)
        assert self._transport is not None
        if hello.visit:
            self._transport.write(handshake.frame(self._owner.visited(self, hello, self._transport)))
            self._deaf = True  # what comes now is not for this end of the connection
            self.connection_lost(None)
            return
        welcome = self._owner.greeted(self, hello)
        self.peer = hello.sender
        self.inbox.strange = False
        self.inbox.metadata_max = limits.metadata_bytes_max
        if self._timer is not None:
            self._timer.cancel()
        self._transport.write(handshake.frame(welcome))

    def _deliver(self, message: Message) -> None:
        self._owner.deliver(self.peer, message)

    def _reject(self, error: BadFrame | ConnectionRejected) -> None:
        self._deaf = True
        self._owner.rejected(self, error)
        if self._transport is not None:
            self._transport.write(handshake.rejection(reason_of(error)))
            self._transport.close()

    def _too_late(self) -> None:
        if not self.peer:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Messages that were not complete never happened."""
        for timer in (self._timer, self._owed):
            if timer is not None:
                timer.cancel()
        self.closed.set_result(None)
        self._owner.gone(self)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None and not self.closed.done():
            self._transport.abort()


def _nothing() -> None:
    """An answer has no payload that could be dropped."""
