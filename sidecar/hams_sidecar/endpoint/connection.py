"""One HTTP connection: uvicorn's httptools protocol with bounds on everything a client can do.

uvicorn parses, keeps connections alive and pipelines; what is added here: infer requests go past ASGI, a body
that is too large is refused before it is read, heads and trailers are bounded in size and time, clients that
neither read nor write are cut off, bodies of infer requests are collected without copies, a request whose
client went away is cancelled, and errors that never reach the application have the same form as all others.

It never answers out of turn: while an earlier request of the connection runs, a refusal waits for that one's
answer.
"""

import asyncio
import urllib.parse
from collections.abc import Iterable
from typing import Any, Protocol

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from hams_sidecar.endpoint import limits
from hams_sidecar.endpoint.descriptors import ConnectionBounds
from hams_sidecar.endpoint.head import read_head
from hams_sidecar.endpoint.rest_codec import encode_error
from hams_sidecar.endpoint.slow_clients import Bodies, UntakenReplies
from hams_sidecar.endpoint.tokens import EXPECTED, Tokens, TokensUnread
from hams_sidecar.endpoint.upload import Server, Upload
from hams_wire.loopback import origin_is_loopback

direct_body_parts = 16
"""One part of so many of a body has to come before the rest is received in place: room for a whole body is
not taken for a head that announces it."""

pipelined_max = 128
"""Requests that wait for their turn on one connection."""

headers_max = 128
"""Header and trailer fields of one HTTP request."""

head_bytes_max = 64 << 10
"""Request line and headers of one HTTP request, as far as they came in pieces; and what comes between two
pieces of a body, or behind the last (extensions of chunks, trailers)."""

heads_bytes_max = 64 << 20
"""All unfinished heads of one frontend together: they need no token, and a thousand connections may have
begun one. A head that comes in one piece does not count."""

head_s_max = 20.0
"""A connection has this long to send its first request, and the rest of any head it has begun."""

answered_body_s_max = 20.0
"""What is left of a body whose request is answered already has this long to come; then its connection
closes. A client that reads only after it has sent everything still gets the answer and keeps its
connection."""

linger_s_max = 2.0
"""After a refusal the rest of the request is thrown away for this long, so that the client sees the refusal
and not a reset connection."""

linger_bytes_max = 16 << 20
"""At most this much is thrown away after a refusal."""

last_request_s_max = 1.0
"""A connection that was opened in the last moment before the port closed has this long to send its
request."""

FOREIGN_PAGE = (
    "expected no request of a web page from elsewhere (header origin): this graph answers this machine only"
)


_HEAD_OF_CHUNKS = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
"""What a second parser is given in place of a head that the first one has read."""


def _of_foreign_page(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a browser sends this for a page that is not of this machine. It says so with each POST, and
    with whatever crosses origins."""
    return any(
        name == b"origin" and not origin_is_loopback(value.decode("latin-1")) for name, value in headers
    )


class Gate(Protocol):
    """What connections ask before they let anything in."""

    request_bytes_max: int
    held_bytes: int
    announced_bytes: int
    head_bytes: int
    connections: ConnectionBounds
    held_bytes_max: int
    bodies: Bodies
    replies: UntakenReplies
    tokens: Tokens | None
    own_pages_only: bool

    @property
    def infer_paths(self) -> frozenset[str]:
        """Paths of infer requests."""
        ...

    @property
    def infer_urls(self) -> frozenset[bytes]:
        """Infer paths as they mostly stand in a request line."""
        ...

    def make_room(self, nbytes: int, own: Upload | None) -> bool:
        """Whether so many bytes more may be held, once those who are slower than `own` have given way."""
        ...


class InferHandler(Protocol):
    """Where infer requests go."""

    def room(self, nbytes: int, headers: list[tuple[bytes, bytes]]) -> memoryview:
        """Writable memory for the whole body of a request with these headers."""
        ...

    def serve(self, upload: Upload) -> None:
        """Serve a request whose turn it is; its body may still be coming."""
        ...


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol, bounded (see the module). Subclasses set `gate` and `infer_handler`."""

    gate: Gate
    infer_handler: InferHandler

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.serving: Server | None = None
        self.lost = False
        self._due: Upload | None = None
        self._idle_since = 0.0
        self._date: tuple[list[tuple[bytes, bytes]], bytes] = ([], b"")
        self._upload: Upload | None = None
        self._uploads: set[Upload] = set()
        self._in_head = False
        self._in_body = False
        self._length = 0
        self._chunked = False
        self._unparsed_bytes = 0
        self._head_bytes = 0
        self._fields = 0
        self._framing_bytes = 0
        self._progress = False
        self._part_ended = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._answered_body_timer: asyncio.TimerHandle | None = None
        self._stalled_bytes = 0
        self._leaving = False
        self._deaf = False
        self._last_answer: bytes | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._thrown_bytes = 0

    # ---- the connection

    # uvicorn narrows the type of `transport` as well.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # uvloop writes at once what is above, and the rest a turn of the loop later
        transport.set_write_buffer_limits(high=0)
        bounds = self.gate.connections
        if len(self.connections) > bounds.http + bounds.refused:
            transport.abort()
            return
        if len(self.connections) > bounds.http:
            self._refuse(503, "too many connections")
            return
        self._head_timer = self.loop.call_later(head_s_max, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        for timer in (
            self._head_timer,
            self._stall_timer,
            self._answered_body_timer,
            self._linger_timer,
        ):
            if timer is not None:
                timer.cancel()
        self._forget_head()
        if self.serving is not None:
            self.serving.cancel()
        for upload in tuple(self._uploads):
            self.forget(upload)
        self.gate.replies.taken(self)

    def shutdown(self) -> None:
        """The server leaves. A client that has just connected and not sent anything yet is still served once;
        idle connections close."""
        # None before the first request, whatever uvicorn's types say
        served: RequestResponseCycle | None = self.cycle
        if served is not None or self._deaf:
            super().shutdown()
            return
        self._leaving = True
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = self.loop.call_later(last_request_s_max, self.transport.close)

    def forget(self, upload: Upload) -> None:
        """The body of this request is no longer held."""
        if upload in self._uploads:
            self._uploads.remove(upload)
            self.gate.bodies.end(upload)
            self.gate.held_bytes -= upload.size
            self.gate.announced_bytes -= upload.announced

    def give_way(self, upload: Upload) -> None:
        """The body that arrives here is too slow to be held any longer: others need the room."""
        receiver = self.transport.get_protocol()
        self.forget(upload)
        if not self._deaf:
            self._refuse(429, "no room for a body that comes so slowly; nothing was begun")
        if receiver is not self:
            self._switch(self)
            self.parser = httptools.HttpRequestParser(self)

    def cut_off(self) -> None:
        """The client does not take what it has asked for, and others need the room."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            self._thrown_bytes += len(data)
            if self._thrown_bytes > linger_bytes_max:
                self.transport.abort()
            return
        if self._unparsed_bytes:
            self._take_unparsed(data)
            return
        self._idle_since = 0.0
        self._progress = self._part_ended = False
        self._parse(data)
        if self._upload is not None and self._length - self._upload.size > limits.direct_body_bytes_min:
            self._receive_in_place(self._upload)
        if not self._deaf:
            self._bound_framing(len(data))
        if self._due is not None:
            due, self._due = self._due, None
            self.infer_handler.serve(due)

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if not self._deaf:
                self._refuse(400, f"malformed HTTP: {_printable(error)}")

    def _bound_framing(self, nbytes: int) -> None:
        """Bound what is no body, after a read of `nbytes`."""
        if self._in_head:
            # The read may have begun with the end of another request, which is mostly body. Then only what
            # the parser has told belongs to this head for certain. It keeps less than one read to itself.
            came = self._told_bytes() if self._part_ended else nbytes
            self._head_bytes += came
            self.gate.head_bytes += came
            if self._head_bytes > head_bytes_max:
                self._refuse(431, f"expected a request line and headers of at most {head_bytes_max} bytes")
            elif self.gate.head_bytes > heads_bytes_max:
                self._refuse(503, "too many heads of requests are unfinished; nothing was begun")
            elif self._head_timer is None:
                self._head_timer = self.loop.call_later(head_s_max, self._head_is_late)
        elif self._in_body:
            # A read in which the head ended was not framing alone, either.
            self._framing_bytes = 0 if self._progress or self._part_ended else self._framing_bytes + nbytes
            if self._framing_bytes > head_bytes_max:
                self._refuse(
                    431,
                    f"expected chunk extensions and trailers of at most {head_bytes_max} bytes",
                )

    def _forget_head(self) -> None:
        """No unfinished head is held any more."""
        self.gate.head_bytes -= self._head_bytes
        self._head_bytes = 0

    def _told_bytes(self) -> int:
        """What the parser has told of the head so far."""
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _receive_in_place(self, upload: Upload) -> None:
        """Let the rest of a large body flow straight to where it is used, past the parser, which then begins
        anew.

        Room is taken for the whole body. So a first part has to be here, and all that is announced counts as
        if it had come: else heads alone would take all the memory.
        """
        gate, missing = self.gate, self._length - upload.size
        if (
            upload.size * direct_body_parts >= self._length
            and gate.held_bytes + gate.announced_bytes + missing <= gate.held_bytes_max
            and self._in_body
            and not self._deaf
            and not self._unparsed_bytes
            and not self.flow.read_paused
        ):
            self._switch(
                BodyReceiver(
                    self, upload, upload.reserve(self.infer_handler.room(self._length, upload.headers))
                )
            )

    def body_received(self) -> None:
        """The body in place is complete, or has been given up."""
        self._switch(self)
        self.parser = httptools.HttpRequestParser(self)
        if not self._deaf:
            self._message_complete()

    def _switch(self, protocol: asyncio.BaseProtocol) -> None:
        self.transport.pause_reading()
        self.transport.set_protocol(protocol)
        self.transport.resume_reading()

    def admits(self, size: int) -> bool:
        """Whether `size` more bytes of a body may be held; if not, the request is refused."""
        if self.gate.make_room(size, self._upload):
            return True
        self._refuse(429, "no room for another request at present; nothing was begun")
        return False

    # ---- the parser

    def on_message_begin(self) -> None:
        if self._deaf:
            return
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._in_head = True
        self._fields = 0
        self._upload = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._deaf:
            return
        self._fields += 1
        if self._fields > headers_max:
            self._refuse(431, f"expected at most {headers_max} headers and trailers")
            return
        if not self._in_head:
            # RFC 9110, 6.5.1: a trailer is not merged into the headers unless its field says how; none here
            # does
            return
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._deaf:
            return
        self._in_head = False
        self._part_ended = True
        self._forget_head()
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        self._framing_bytes = 0
        head = read_head(self.parser.get_http_version(), self.headers)
        self._length, self._chunked = head.length, head.chunked
        if head.status:
            self._refuse(head.status, head.message)
            return
        if self.gate.own_pages_only and _of_foreign_page(self.headers):
            self._refuse(403, FOREIGN_PAGE)
            return
        if not self._bears_token():
            return
        if len(self.pipeline) >= pipelined_max:
            self._refuse(
                429,
                f"expected at most {pipelined_max} requests ahead of their turn; this one was not begun",
            )
            return
        if self._length > self.gate.request_bytes_max:
            self._refuse(
                413,
                f"expected a body of at most {self.gate.request_bytes_max} bytes, got Content-Length "
                f"{self._length}",
            )
            return
        if self.parser.get_method() == b"POST" and (
            self.url in self.gate.infer_urls or self._path() in self.gate.infer_paths
        ):
            self._begin_upload()
        else:
            self._begin_cycle()
        self._in_body = True
        if self._leaving:
            self.cycle.keep_alive = False

    def _bears_token(self) -> bool:
        """Whether the request may come in, if tokens are asked for; if not, it is refused."""
        tokens = self.gate.tokens
        try:
            if tokens is None or tokens.admit(self._path().encode(), self.headers):
                return True
        except TokensUnread as error:
            self._refuse(503, str(error))
            return False
        self._refuse(401, EXPECTED)
        return False

    def _path(self) -> str:
        return urllib.parse.unquote(httptools.parse_url(self.url).path.decode("ascii"))

    def _begin_cycle(self) -> None:
        """Any other request is uvicorn's."""
        url, headers, asks_first = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, asks_first
        self.headers.extend(headers)
        super().on_headers_complete()

    def _begin_upload(self) -> None:
        """An infer request: its turn comes when all before it are answered."""
        # None before the first request, whatever uvicorn's types say
        before: RequestResponseCycle | None = self.cycle
        keep_alive = self.parser.should_keep_alive() and self.parser.get_http_version() != "1.0"
        self.cycle = self._upload = upload = Upload(self, self.headers, keep_alive, self.expect_100_continue)
        self._uploads.add(upload)
        self.gate.bodies.begin(upload)
        if before is None or before.response_complete:
            self._due = upload
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((upload, self.app))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if isinstance(cycle, Upload):
            self.infer_handler.serve(cycle)
        else:
            super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        if self._deaf:
            return
        self._progress = True
        if self._upload is None:
            super().on_body(body)
        elif self.cycle.response_complete:
            pass
        elif self._upload.size + len(body) > self.gate.request_bytes_max:
            self._refuse(413, f"expected a body of at most {self.gate.request_bytes_max} bytes, got more")
        elif self.admits(len(body)):
            self._upload.add(body)

    def on_message_complete(self) -> None:
        if self._deaf or (self.parser.should_upgrade() and (self._length or self._chunked)):
            return
        self._message_complete()

    def _message_complete(self) -> None:
        self._in_body = False
        self._part_ended = True
        if self._answered_body_timer is not None:
            self._answered_body_timer.cancel()
            self._answered_body_timer = None
        super().on_message_complete()
        if self._upload is not None:
            self._upload.finish()

    def on_response_complete(self) -> None:
        if self._last_answer is not None and not self.pipeline:
            if not self.transport.is_closing():
                self._send_last(self._last_answer)
            return
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            waiting = self.pipeline.pop()
            # no sooner: requests that a client sends ahead would be held in memory
            if not self.pipeline and not self._deaf:
                self.flow.resume_reading()
            self._start_asgi_task(*waiting)
            return
        self.flow.resume_reading()
        if self._in_body:
            # Nobody waits for this body any more, and as long as it comes the connection is not idle.
            self._answered_body_timer = self.loop.call_later(answered_body_s_max, self.transport.close)
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that has been idle for long. One timer sees many requests come and go, instead
        of being moved by each."""
        self.timeout_keep_alive_task = None
        if self.transport.is_closing():
            return
        left = (
            self._idle_since + self.timeout_keep_alive - self.loop.time()
            if self._idle_since
            else self.timeout_keep_alive
        )
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
        else:
            self.transport.close()

    def default_headers(self) -> bytes:
        """The header lines that every answer has (the date)."""
        headers = self.server_state.default_headers
        if self._date[0] is not headers:
            self._date = (headers, b"".join(b"%b: %b\r\n" % header for header in headers))
        return self._date[1]

    def read_on(self) -> None:
        """Read the rest of a body, and tell a client that asked first (Expect: 100-continue) to send it."""
        if self.cycle.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.cycle.waiting_for_100_continue = False
        self.flow.resume_reading()

    # ---- clients that do not read, or do not write

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled_bytes = self.transport.get_write_buffer_size()
        self.gate.replies.wait(self, self._stalled_bytes)
        self._stall_timer = self.loop.call_later(limits.write_stall_s_max, self._stalled)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.gate.replies.taken(self)
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _stalled(self) -> None:
        left = self.transport.get_write_buffer_size()
        if left >= self._stalled_bytes:
            self.transport.abort()
            return
        self._stalled_bytes = left
        self.gate.replies.moved(self, left)
        self._stall_timer = self.loop.call_later(limits.write_stall_s_max, self._stalled)

    def _head_is_late(self) -> None:
        self._head_timer = None
        self._refuse(408, f"expected a whole request line with headers within {head_s_max:g} s")

    # ---- refusals that do not reach the application

    def _refuse(self, status: int, message: str) -> None:
        """Answer with an error, in turn, and take nothing more from this connection."""
        self._deaf = True
        self._forget_head()
        answer = _response(status, message)
        own_runs = self._in_body and not self.pipeline
        if own_runs:
            if self.cycle.response_started:
                self.transport.close()
                return
            self.cycle.disconnected = True
            self.lost = True
            if self.serving is not None:
                self.serving.cancel()
        elif self.pipeline or self._runs():
            if self._in_body:
                self.pipeline.popleft()
            self._last_answer = answer
            return
        self._send_last(answer)

    def _send_last(self, answer: bytes) -> None:
        """Send the last answer. What the client still sends is thrown away for a while: a close with unread
        data would reset the answer away."""
        self._unset_keepalive_if_required()
        self.transport.write(answer)
        self.transport.write_eof()
        self.flow.resume_reading()
        self._linger_timer = self.loop.call_later(linger_s_max, self.transport.abort)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """RFC 9110, 7.8: a server may ignore an upgrade (Java's client offers HTTP/2 with its first request).

        The request is answered over HTTP/1.1, as the last one of its connection: whatever stands behind it is
        thrown away, so nobody can take it for a request. The parser has stopped behind the head. A body with
        a length is counted here; chunks are read by a parser that begins anew.
        """
        if self._deaf:
            return
        if not self._runs():
            self.transport.close()
            return
        self.cycle.keep_alive = False
        if self._chunked:
            self.parser = httptools.HttpRequestParser(_LastBody(self))
            self._fields -= 1  # for the field of the head below
            self._parse(_HEAD_OF_CHUNKS + rest)
        else:
            self._unparsed_bytes = self._length
            self._take_unparsed(rest)

    def _take_unparsed(self, data: bytes) -> None:
        body = data[: self._unparsed_bytes]
        self._unparsed_bytes -= len(body)
        if body:
            self.on_body(body)
        if not self._unparsed_bytes:
            self.last_body_complete()

    def last_body_complete(self) -> None:
        """The body of a request that asked for an upgrade is complete: nothing more is read."""
        if not self._deaf:
            if self._in_body:
                self._message_complete()
            self._deaf = True

    def _runs(self) -> bool:
        """Whether a request of this connection is not yet answered."""
        # None before the first request, whatever uvicorn's types say
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete


class _LastBody:
    """What a parser tells of the chunks behind a head that another parser has read; its own head is
    `_HEAD_OF_CHUNKS`, and nobody is told of that."""

    def __init__(self, connection: BoundedHttpProtocol) -> None:
        self.on_body = connection.on_body
        self.on_header = connection.on_header  # trailers are counted as fields, and ignored
        self.on_message_complete = connection.last_body_complete


class BodyReceiver(asyncio.BufferedProtocol):
    """Stands in for the connection while a large body arrives, and fills it in place."""

    def __init__(self, connection: BoundedHttpProtocol, upload: Upload, room: memoryview) -> None:
        self._connection = connection
        self._upload = upload
        self._room = room

    def connection_lost(self, exc: Exception | None) -> None:
        """For the connection."""
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """For the connection."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """For the connection."""
        self._connection.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: never beyond the body."""
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """Count `nbytes` more bytes of the body, which have arrived in the buffer."""
        self._room = self._room[nbytes:]
        if not self._connection.admits(nbytes):
            self._connection.body_received()
            return
        self._upload.filled(nbytes)
        if not self._room:
            self._connection.body_received()


def _response(status: int, message: str) -> bytes:
    body = encode_error(message)
    more = (
        f"retry-after: {limits.retry_after_s:.0f}\r\n"
        if status in (429, 503)
        else "www-authenticate: Bearer\r\n"
        if status == 401
        else ""
    )
    head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{more}connection: close\r\n\r\n"
    return STATUS_LINE[status] + head.encode() + body


def _printable(error: Exception) -> str:
    return "".join(char for char in str(error)[:200] if char.isprintable())
