"""Calls over gRPC, bounded from their headers on: how many there are, how long a message may take to arrive,
how long a reply may wait to be taken.

grpc would read a whole message before it says that there is a call, for as long as the client likes. So
messages come as a stream, which looks the same on the wire: a handler begins with the headers and takes the
one message itself. How much of a message has arrived cannot be seen, so one that is not there after a moment
is counted as if it were as large as it may be; where there is no room for that, or there are too many calls,
whoever has been sending for longest gives way (`slow_clients`).

Invariant: no exception reaches grpc, which would show its text to the client.
"""

import asyncio
import contextlib
import logging
import math
import os
import socket
import stat
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

import grpc

from hams_sidecar.endpoint import limits
from hams_sidecar.endpoint.answers import INTERNAL_ERROR, Refusal
from hams_sidecar.endpoint.serving import Serving

grpc_calls_max = 4096
"""Concurrent gRPC calls of one frontend; above it the slowest that is still sending gives way, or the new one
gets RESOURCE_EXHAUSTED."""

grpc_message_unhurried_s = 0.1
"""A gRPC message that is not there after this long is counted in the bytes held, as if it were as large as it
may be: how much of it has arrived cannot be seen. So what is held uncounted is what a network brings in this
time."""

grpc_reply_rate_min = 1 << 20
"""Bytes per second at which a client has to take a reply over gRPC, after the first `write_stall_s_max`."""

log = logging.getLogger(__name__)

EOF: object = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in grpc-stubs

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
Method: TypeAlias = Callable[[bytes, Context], Awaitable[bytes | Refusal]]
Stream: TypeAlias = Callable[["GrpcCall"], Awaitable[Refusal | None]]

FULL = Refusal(429, "no room for another request at present; nothing was begun", limits.retry_after_s)
SLOW = Refusal(429, "no room for a message that comes so slowly; nothing was begun", limits.retry_after_s)
NOTHING = Refusal(400, "expected a message, got none")
NOT_READ = Refusal(504, "the reply was not read in time")


class GrpcCall:
    """One call. While its message is on its way it is one of the gate's bodies, and gives way to faster
    ones."""

    def __init__(self, serving: Serving, context: Context, task: "asyncio.Task[object]") -> None:
        self.context = context
        self._task = task
        self.size = 0
        self.began_s = asyncio.get_running_loop().time()
        self._serving = serving
        self._deadline: asyncio.Timeout | None = None
        self._gave_way = False

    @property
    def arrived_bytes(self) -> int:
        """`slow_clients.IncomingBody`: not known, so those over HTTP, of which it is, count as faster."""
        return 0

    async def message(self, within_s: float) -> bytes | Refusal | None:
        """The next message; None: the client sends no more."""
        serving = self._serving
        slow = asyncio.get_running_loop().call_later(grpc_message_unhurried_s, self._is_slow)
        serving.bodies.begin(self)
        try:
            async with asyncio.timeout(within_s) as self._deadline:
                content = await self.context.read()
        except TimeoutError:
            if self._gave_way:
                return SLOW
            return Refusal(504, f"expected the whole message within {within_s:g} s; nothing was begun")
        finally:
            slow.cancel()
            self._settle()
        return None if content is EOF else content

    async def send(self, content: bytes) -> Refusal | None:
        """Send one message of a stream; a client that does not take it for long is given up."""
        waiting = self._serving.replies
        waiting.wait(self, len(content))
        try:
            async with asyncio.timeout(_patience_s(content)) as self._deadline:
                await self.context.write(content)
        except TimeoutError:
            return NOT_READ
        finally:
            waiting.taken(self)
        return None

    def replies(self, content: bytes) -> None:
        """This is handed to grpc; the call is over when its client has taken it."""
        self._deadline = None
        self._serving.replies.wait(self, len(content))
        self._task.add_done_callback(self._taken)

    def _taken(self, task: "asyncio.Task[object]") -> None:
        self._serving.replies.taken(self)

    def _is_slow(self) -> None:
        serving = self._serving
        if serving.make_room(serving.request_bytes_max, self):
            self.size = serving.request_bytes_max
            serving.held_bytes += self.size
        else:
            self.give_way()

    def _settle(self) -> None:
        self._serving.bodies.end(self)
        self._serving.held_bytes -= self.size
        self.size = 0

    def give_way(self) -> None:
        """`slow_clients.IncomingBody`: others need the room."""
        self._gave_way = True
        self._settle()
        self.cut_off()

    def cut_off(self) -> None:
        """`slow_clients.SlowReader`: others need the room."""
        if self._deadline is None:
            shut_down(self.context.peer())
        elif not self._deadline.expired():
            self._deadline.reschedule(0.0)


class Calls:
    """All calls of one frontend, bounded in number."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._open = 0

    def unary(self, method: Method) -> Handler:
        """The handler of a method of one message and one reply."""

        async def handle(requests: AsyncIterator[bytes], context: Context) -> bytes:
            call = self._begin(context)
            reply: bytes | Refusal | None = FULL
            if call is not None:
                try:
                    reply = await call.message(self._serving.timeout_s)
                    if isinstance(reply, bytes):
                        reply = await method(reply, context)
                # the boundary: whatever breaks inside is one INTERNAL for one call, its trace in the log and
                # not in the answer
                except Exception:
                    log.exception("a call over gRPC failed")
                    reply = INTERNAL_ERROR
            if not isinstance(reply, bytes):
                await abort(context, reply or NOTHING)
                raise AssertionError("abort returned")
            if call is not None:
                call.replies(reply)
            return reply

        return grpc.stream_unary_rpc_method_handler(handle)

    def stream(self, serve: Stream) -> Handler:
        """The handler of any other method."""

        async def handle(requests: AsyncIterator[bytes], context: Context) -> None:
            call = self._begin(context)
            refusal: Refusal | None = FULL
            if call is not None:
                try:
                    refusal = await serve(call)
                except Exception:  # the boundary, as above
                    log.exception("a call over gRPC failed")
                    refusal = INTERNAL_ERROR
            if refusal is not None:
                await abort(context, refusal)

        return grpc.stream_stream_rpc_method_handler(handle)

    def _begin(self, context: Context) -> GrpcCall | None:
        """A call, if there is room for another one. It ends with its task: when the last of its reply has
        left, too."""
        if not self._has_room():
            return None
        task = asyncio.current_task()
        assert task is not None
        self._open += 1
        task.add_done_callback(self._ended)
        return GrpcCall(self._serving, context, task)

    def _ended(self, task: "asyncio.Task[object]") -> None:
        self._open -= 1

    def _has_room(self) -> bool:
        if self._open < grpc_calls_max:
            return True
        # The call that gives way ends in a later turn of the loop: this one is let in beside it.
        now_s = asyncio.get_running_loop().time()
        return self._serving.bodies.make_room(None, now_s) or self._serving.replies.make_room()


def shut_down(peer: str) -> None:
    """Shut down this process's connection to `peer`, as grpc names it. A copy of its descriptor is looked at:
    that cannot become another's."""
    wanted = _address(peer)
    for name in os.listdir("/proc/self/fd"):
        try:
            copy = os.dup(int(name))
        except OSError:
            continue  # closed meanwhile
        if not stat.S_ISSOCK(os.fstat(copy).st_mode):
            os.close(copy)
            continue
        with socket.socket(fileno=copy) as connection, contextlib.suppress(OSError):  # not connected
            address = connection.getpeername()
            if isinstance(address, tuple) and (address[0].removeprefix("::ffff:"), address[1]) == wanted:
                connection.shutdown(socket.SHUT_RDWR)
                log.warning("the connection of %s is shut down: replies wait for it to be read", peer)
                return


def _address(peer: str) -> tuple[str, int]:
    """`ipv4:127.0.0.1:80` or `ipv6:%5B::1%5D:80` as sockets tell it."""
    host, _, port = urllib.parse.unquote(peer).partition(":")[2].rpartition(":")
    return host.strip("[]").removeprefix("::ffff:"), int(port)


def _patience_s(content: bytes) -> float:
    return limits.write_stall_s_max + len(content) / grpc_reply_rate_min


async def abort(context: Context, error: Refusal) -> None:
    """End a call with an error."""
    trailing: tuple[tuple[str, str], ...] = ()
    if error.retry_after_s is not None:
        trailing = (
            ("retry-after", f"{error.retry_after_s:g}"),
            ("grpc-retry-pushback-ms", str(int(error.retry_after_s * 1000))),
        )
    if error.unpromised:
        trailing += (("hams-begun", "false"),)
    await context.abort(error.code, error.message, trailing)


def left_s(context: Context) -> float:
    """Seconds until the client's deadline; infinite if it gave none."""
    remaining: float | None = context.time_remaining()  # None without a deadline, whatever the stubs say
    return math.inf if remaining is None else remaining
