"""The port on which the kubelet asks whether a process lives and whether its role is served, and Prometheus
how it is doing.

`GET /livez` is 200 as long as the event loop answers; `GET /readyz` is 200 only while `missing()` is None,
else 503 with the reason as text. `GET /metrics` is what `metrics` says, for Prometheus; `GET /profile` what
`profile` says, for people: JSON, where something is learnt. Everything else is 404. One answer per
connection, and nothing that a stranger sends changes anything.

Given a token, it is 401 to everybody who does not bear it: neither the kubelet nor Prometheus has a
certificate, but the one sends the headers of the pod's probes, and who may read the pod may read how it is;
the other has a token of its own, which opens metrics only, and of which a digest is all that is known here.
"""

import asyncio
import hmac
from collections.abc import Callable, Iterable
from pathlib import Path

from hams_wire.exposition import CONTENT_TYPE, Sample, exposition, of_process
from hams_wire.tls import digest_of

probe_answer_s = 2.0
"""A question takes no longer than this, or its connection is closed."""

probe_line_bytes_max = 4096
"""Longest line of a question."""

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
NOTHING_LEARNT = b"nothing is learnt here: no scheduling policy serves, or its instance is starting\n"


async def answer_probes(
    where: int | Path,
    missing: Callable[[], str | None],
    metrics: Callable[[], Iterable[Sample]] = tuple,
    token: str = "",
    metrics_digest: bytes = b"",
    rendered: Callable[[], bytes] | None = None,
    profile: Callable[[], bytes | None] = lambda: None,
) -> asyncio.Server:
    """Listen until the server is closed: at a port on all addresses, or at a Unix socket. `rendered`: the
    whole answer to /metrics, of a process that has a registry of its own. `token`: opens everything, "":
    nobody is asked; `metrics_digest`: of the token that opens /metrics. Raises OSError."""
    everything = digest_of(token.encode())

    def admitted(line: bytes, given: bytes) -> bool:
        if not token:
            return True
        scheme, _, borne = given.partition(b" ")
        if scheme != b"Bearer":
            return False
        digest = digest_of(borne)
        opened = [hmac.compare_digest(digest, everything)]
        if metrics_digest and _path(line) == b"/metrics":
            opened.append(hmac.compare_digest(digest, metrics_digest))
        return any(opened)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(probe_answer_s):
                line = await reader.readline()
                given = b""
                # to the end: a client may take a close with unread bytes for a reset
                while header := (await reader.readline()).strip():
                    name, _, value = header.partition(b":")
                    if name.lower() == b"authorization":
                        given = value.strip()
                if not admitted(line, given):
                    status, body, kind = (
                        "401 Unauthorized",
                        b"expected Authorization: Bearer and the token of these probes\n",
                        TEXT,
                    )
                else:
                    status, body, kind = _answer(line, missing, metrics, rendered, profile)
                await answer(writer, status, kind, body)
        except (TimeoutError, ConnectionError, ValueError):  # ValueError: a line over the limit
            pass
        finally:
            writer.close()

    if isinstance(where, Path):
        return await asyncio.start_unix_server(serve, where, limit=probe_line_bytes_max)
    return await asyncio.start_server(serve, None, where, limit=probe_line_bytes_max)


async def answer(writer: asyncio.StreamWriter, status: str, kind: str, body: bytes) -> None:
    """Write one HTTP response, the last one of its connection. `kind`: its content type."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
    await writer.drain()


def _path(line: bytes) -> bytes:
    return line.partition(b" ")[2].partition(b" ")[0]


def _answer(
    line: bytes,
    missing: Callable[[], str | None],
    metrics: Callable[[], Iterable[Sample]],
    rendered: Callable[[], bytes] | None,
    profile: Callable[[], bytes | None],
) -> tuple[str, bytes, str]:
    method, path = line.partition(b" ")[0], _path(line)
    if method == b"GET" and path == b"/profile":
        learnt = profile()
        return ("200 OK", learnt, JSON) if learnt is not None else ("404 Not Found", NOTHING_LEARNT, TEXT)
    if method != b"GET" or path not in (b"/livez", b"/readyz", b"/metrics"):
        return "404 Not Found", b"expected GET /livez, /readyz, /metrics or /profile\n", TEXT
    if path == b"/metrics":
        page = exposition((*metrics(), *of_process())) if rendered is None else rendered()
        return "200 OK", page, CONTENT_TYPE
    why = missing() if path == b"/readyz" else None
    return (
        ("200 OK", b"ok\n", TEXT) if why is None else ("503 Service Unavailable", f"{why}\n".encode(), TEXT)
    )
