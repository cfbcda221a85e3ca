"""A listener for TLS connections: at most so many at a time that have not shown a certificate yet.

A server of the event loop begins a handshake for each connection, and each holds memory until it has failed.
Here a handshake begins only when one of `handshakes_max` places is free; until then connections wait in the
kernel's queue, which costs this process nothing. Where one waits, the oldest gives way that has taken
`handshake_unhurried_s`: strangers who say nothing keep nobody out. Never: reads what a connection says, or
decides whether it may stay.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from hams_wire import limits
from hams_wire.tls import Certificates

handshakes_max = 128
"""TLS connections that have not shown a certificate yet; others wait with the kernel until one of these is
through, has run out of time or gives way."""

handshake_unhurried_s = 0.25
"""A TLS handshake that has taken so long gives way to the next connection where there is no place left."""

accept_again_s = 0.2
"""Pause after a connection that could not be accepted, as where there are no file descriptors left."""

log = logging.getLogger("hams.wire.peers")


class TlsListener:
    """A listening socket. `make` gives the protocol of each connection, which is told of it once the
    handshake is done."""

    def __init__(
        self, listening: socket.socket, tls: Certificates, make: Callable[[], asyncio.BufferedProtocol]
    ) -> None:
        self._listening = listening
        self._tls = tls
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[None], float] = {}
        """Handshakes and when they began, oldest first."""
        self._accepting = self._loop.create_task(self._accept(), name="TLS listener")

    @classmethod
    async def open(
        cls, host: str, port: int, tls: Certificates, make: Callable[[], asyncio.BufferedProtocol]
    ) -> "TlsListener":
        """Listen at the first address of `host`. Raises OSError."""
        resolved = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = resolved[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setblocking(False)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(limits.connections_max)
        except OSError:
            listening.close()
            raise
        return cls(listening, tls, make)

    @property
    def bound(self) -> tuple[str, int]:
        """Where it listens."""
        return self._listening.getsockname()[:2]  # type: ignore[no-any-return]

    @property
    def handshakes(self) -> int:
        """Connections that have not shown a certificate yet."""
        return len(self._tasks)

    async def close(self) -> None:
        """Accept no connection any more, and drop those that have not come in."""
        for task in (self._accepting, *self._tasks):
            task.cancel()
        await asyncio.gather(self._accepting, *self._tasks, return_exceptions=True)
        self._listening.close()

    async def _accept(self) -> None:
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(self._listening)
            except OSError as error:
                log.warning("a connection could not be accepted: %s", error)
                await asyncio.sleep(accept_again_s)
                continue
            try:
                await self._make_room()
            except asyncio.CancelledError:
                accepted.close()
                raise
            task = self._loop.create_task(self._let_in(accepted), name="TLS handshake")
            self._tasks[task] = self._loop.time()
            task.add_done_callback(self._through)

    async def _make_room(self) -> None:
        """Wait for a free place; the oldest handshake gives way after a while."""
        while len(self._tasks) >= handshakes_max:
            oldest, began = next(iter(self._tasks.items()))
            left = began + handshake_unhurried_s - self._loop.time()
            if left <= 0:
                oldest.cancel()
            await asyncio.wait(self._tasks, timeout=max(left, 0) or None, return_when=asyncio.FIRST_COMPLETED)

    def _through(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)

    async def _let_in(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._make, accepted, ssl=self._tls.server(), ssl_handshake_timeout=limits.handshake_s
            )
        except (OSError, ssl.SSLError) as error:  # a time-out is an OSError
            log.debug("a TLS handshake failed: %s", error)
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise
