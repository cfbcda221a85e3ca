"""The inference endpoint of one frontend: HTTP and gRPC on two ports that all frontends of a graph share.

`start` binds and serves, `drain` is what SIGTERM asks for, `stop` cuts everything off. It runs in the event
loop of the frontend's process and installs no signal handlers: the owner of the process decides.

Draining keeps clients whole: readiness is refused first, requests are served on until load balancers have
noticed (HTTP answers say `Connection: close` meanwhile), only then the ports close and open requests finish.
"""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Generator

import grpc
import uvicorn

from hams_protocol.frozen import frozen
from hams_protocol.graph import GraphData
from hams_sidecar.endpoint import limits
from hams_sidecar.endpoint.app import EXTENSIONS, PLATFORM, InferenceApp, server_version
from hams_sidecar.endpoint.connection import BoundedHttpProtocol
from hams_sidecar.endpoint.errors import StartFailed
from hams_sidecar.endpoint.grpc_service import HealthService, InferenceService, make_server
from hams_sidecar.endpoint.rest import InferRoute
from hams_sidecar.endpoint.serving import Serving
from hams_sidecar.endpoint.tally import RequestTally
from hams_sidecar.endpoint.tokens import Tokens
from hams_sidecar.inference import InferencePort
from hams_sidecar.metrics import Metrics
from hams_wire.loopback import is_loopback

idle_s_max = 75.0
"""A connection without a request is kept this long: longer than load balancers do, so that they close it and
not we."""

backlog_connections_max = 4096
"""Connections waiting to be accepted."""

log = logging.getLogger(__name__)

_NO_ROOM = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
"""What accept(2) says of this process or this machine, and not of one connection."""


@frozen
class Address:
    """Where to listen. Port 0 takes a free one, which `Endpoint.address` then tells."""

    host: str = "127.0.0.1"
    http_port: int = 8080
    grpc_port: int = 8081


class Endpoint:
    """HTTP and gRPC for one graph. `always_digest`: histories are recorded, so every request carries the
    digest of its payload. `tokens`: who may ask; None: anybody."""

    def __init__(
        self,
        port: InferencePort,
        graph: GraphData,
        metrics: Metrics,
        address: Address,
        *,
        always_digest: bool = False,
        tokens: Tokens | None = None,
    ) -> None:
        self.address = address
        self._serving = Serving(
            port,
            graph,
            metrics,
            always_digest=always_digest,
            tokens=tokens,
            own_pages_only=is_loopback(address.host),
        )
        self._app = InferenceApp(self._serving)
        self._health = HealthService(self._serving)
        self._http: _HttpServer | None = None
        self._http_task: asyncio.Task[None] | None = None
        self._grpc: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listen and serve. Raises StartFailed."""
        listener = _listen(self.address.host, self.address.http_port)
        service = InferenceService(self._serving, PLATFORM, server_version(), EXTENSIONS)
        self._grpc = make_server(self._serving, service, self._health)
        try:
            grpc_port = self._grpc.add_insecure_port(_authority(self.address.host, self.address.grpc_port))
        except RuntimeError as error:
            listener.close()
            raise StartFailed(
                f"gRPC cannot listen on {self.address.host} port {self.address.grpc_port}: {error}"
            ) from error
        await self._grpc.start()
        self._http = _HttpServer(self._app, self._serving, self._health, listener)
        self._http_task = asyncio.create_task(self._http.serve(), name="endpoint-http")
        started = asyncio.create_task(self._http.listening.wait())
        await asyncio.wait({started, self._http_task}, return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            started.cancel()
            await self._grpc.stop(None)
            raise StartFailed(
                f"HTTP cannot listen on {self.address.host} port {self.address.http_port}"
            ) from self._http_task.exception()
        self.address = Address(self.address.host, listener.getsockname()[1], grpc_port)

    async def drain(
        self, propagation_s: float = limits.propagation_s, drain_s: float = limits.drain_s_max
    ) -> None:
        """Leave in peace: refuse readiness, serve on for `propagation_s`, then close the ports and let open
        requests finish within `drain_s`. May be cancelled, if `stop` follows."""
        self._serving.draining = True
        self._health.tell()
        await asyncio.sleep(propagation_s)
        if self._http is not None and self._http_task is not None and self._grpc is not None:
            await self._http.leave(drain_s)
            self._health.leave()
            # Shielded: who gives this drain up stops the server next, and waits for its task.
            await asyncio.gather(asyncio.shield(self._http_task), self._grpc.stop(drain_s))

    async def stop(self) -> None:
        """Cut everything off at once. Also after `drain`, and more than once."""
        self._serving.draining = True
        if self._grpc is not None:
            await self._grpc.stop(None)
        if self._http is not None and self._http_task is not None:
            self._http.cut_off()
            await self._http_task

    @property
    def open_requests(self) -> int:
        """Inference requests that are being served now."""
        return self._serving.open_requests

    @property
    def tally(self) -> RequestTally:
        """What has been answered so far."""
        return self._serving.tally


class _HttpServer(uvicorn.Server):
    """uvicorn's server inside our process: no signal handlers, and an event when it listens."""

    def __init__(
        self, app: InferenceApp, serving: Serving, health: HealthService, listener: socket.socket
    ) -> None:
        class Connection(BoundedHttpProtocol):
            pass

        Connection.gate = serving
        Connection.infer_handler = InferRoute(serving)
        self._connection_class = Connection
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                ws="none",
                loop="none",
                interface="asgi3",
                lifespan="off",
                access_log=False,
                log_config=None,
                proxy_headers=False,
                server_header=False,
                backlog=backlog_connections_max,
                timeout_keep_alive=int(idle_s_max),
                timeout_graceful_shutdown=int(limits.drain_s_max),
            )
        )
        self.listening = asyncio.Event()
        self._listener = listener
        self._health = health

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals belong to the process's owner."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup([self._listener])
        self.listening.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let open requests finish within the time given; then those without a task of their own are given up
        as tasks are."""
        await super().shutdown(sockets)
        for connection in tuple(self.server_state.connections):
            if isinstance(connection, BoundedHttpProtocol) and connection.serving is not None:
                connection.serving.cancel()

    async def on_tick(self, counter: int) -> bool:
        """Reports changes of health to its watchers, ten times a second."""
        self._health.tell()
        return await super().on_tick(counter)

    async def leave(self, drain_s: float) -> None:
        """Close the listener and idle connections; open requests have `drain_s`.

        Connections that wait to be accepted are accepted first: the kernel does not give them to the other
        frontends of this port, it resets them.
        """
        waiting = _accept_waiting(self._listener)
        for server in self.servers:
            server.close()
        self._listener.close()
        loop = asyncio.get_running_loop()
        for accepted in waiting:
            accepted.setblocking(False)
            try:
                await loop.connect_accepted_socket(self._connection, accepted)
            except OSError:  # it went away meanwhile
                accepted.close()
        self.config.timeout_graceful_shutdown = max(1, round(drain_s))
        self.should_exit = True

    def _connection(self) -> BoundedHttpProtocol:
        return self._connection_class(self.config, self.server_state, self.lifespan.state)

    def cut_off(self) -> None:
        """Close everything."""
        self.should_exit = True
        self.force_exit = True
        for connection in tuple(self.server_state.connections):
            if isinstance(connection, BoundedHttpProtocol):
                connection.transport.abort()


def _listen(host: str, port: int) -> socket.socket:
    """A listener that shares its port with the other frontends of the graph. Raises StartFailed."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise StartFailed(f"HTTP cannot listen on host {host!r}: {error.strerror}") from error
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise StartFailed(f"HTTP cannot listen on {host} port {port}: {error.strerror}") from error
    return listener


def _accept_waiting(listener: socket.socket) -> list[socket.socket]:
    """The connections that wait to be accepted, as far as there are file descriptors for them. Whatever
    accept(2) says must not keep open requests from being finished."""
    waiting: list[socket.socket] = []
    for _ in range(backlog_connections_max):
        try:
            waiting.append(listener.accept()[0])
        except BlockingIOError:
            break
        except OSError as error:
            if error.errno in _NO_ROOM:
                log.warning("connections that wait are not served any more: %s", error)
                break
            # It is about one connection, which broke before it was accepted: others may wait behind it.
    return waiting


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
