"""HTTP/1.1 with kept connections, for load: one request open on each, nothing repeated, nothing shared that
costs more with more of them.

httpx looks through its whole pool at every request, so that under a standstill of the service the client
itself becomes what is measured. The parser is uvicorn's, httptools; the rest is a pool.
"""

import asyncio
from typing import cast
from urllib.parse import urlsplit

import httptools

load_connections_max = 512
"""Connections of `hams load`."""


class NoResponse(Exception):
    """The connection could not be made, or broke, or nothing came in time: nobody knows what became of the
    request."""


class Response:
    """A whole response; header names are lower case."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""


class _Connection(asyncio.Protocol):
    """One connection; `ask` must not be called again before its answer."""

    def __init__(self) -> None:
        self.usable = True
        self._response = Response()
        self._parts: list[bytes] = []
        self._waiting: asyncio.Future[Response] | None = None
        self._parser = httptools.HttpResponseParser(self)

    def ask(self, request: bytes) -> asyncio.Future[Response]:
        self._response = Response()
        self._parts = []
        self._parser = httptools.HttpResponseParser(self)
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._waiting

    def close(self) -> None:
        self.usable = False
        self._transport.abort()

    # -- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.usable = False
        self._fail(f"the connection broke{f': {error}' if error else ''}")

    # -- the parser's calls

    def on_header(self, name: bytes, value: bytes) -> None:
        self._response.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        self._response.status = self._parser.get_status_code()
        self._response.body = b"".join(self._parts)
        self.usable = self.usable and self._parser.should_keep_alive()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(self._response)

    def _fail(self, why: str) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(NoResponse(why))


def endpoint(url: str) -> tuple[str, int, str]:
    """Host, port and path of `http://HOST[:PORT][/PATH]`. Raises ValueError for any other URL; TLS is not
    spoken here."""
    try:
        parts = urlsplit(url)
        port = 80 if parts.port is None else parts.port
        host = (parts.hostname or "").encode("idna").decode()
    except ValueError as error:
        raise ValueError(f"expected a URL like http://127.0.0.1:8080, found {url!r}: {error}") from None
    more = parts.query or parts.fragment or parts.username is not None
    if (
        parts.scheme != "http"
        or not host
        or not port
        or more
        or not (url.isascii() and url.isprintable())
        or " " in url
    ):
        raise ValueError(f"expected a URL like http://127.0.0.1:8080, found {url!r}")
    return host, port, parts.path.rstrip("/")


class Pool:
    """Kept connections to one endpoint. Raises ValueError for a URL that is not http://host:port."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._host, self._port, self._base = endpoint(url)
        self._timeout_s = timeout_s
        self._idle: list[_Connection] = []
        self._room = asyncio.Semaphore(load_connections_max)

    async def post(self, path: str, headers: dict[str, str], body: bytes) -> Response:
        """One request, sent once. Raises NoResponse."""
        lines = [
            f"POST {self._base}{path} HTTP/1.1",
            f"host: {self._host}:{self._port}",
            f"content-length: {len(body)}",
        ]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        request = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body
        async with self._room:
            try:
                async with asyncio.timeout(self._timeout_s):
                    connection = await self._connection()
                    try:
                        response = await connection.ask(request)
                    except BaseException:
                        connection.close()
                        raise
            except TimeoutError:
                raise NoResponse(f"no answer for {self._timeout_s:g} s") from None
            except OSError as error:
                raise NoResponse(f"cannot connect: {error.strerror or error}") from None
            if connection.usable:
                self._idle.append(connection)
            return response

    def close(self) -> None:
        """Drop all kept connections."""
        while self._idle:
            self._idle.pop().close()

    async def _connection(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        _, made = await asyncio.get_running_loop().create_connection(_Connection, self._host, self._port)
        return made
