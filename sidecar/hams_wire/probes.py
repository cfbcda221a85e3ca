"""The port on which the kubelet asks whether a process lives and whether its role is served, and Prometheus how it is doing.

`GET /livez` is 200 as long as the event loop answers; `GET /readyz` is 200 only while `missing()` is None, else 503 with the reason as text.
`GET /metrics` is what `metrics` says, for Prometheus. Everything else is 404. One answer per connection, one line of request is read, and nothing
that a stranger sends changes anything.
"""

import asyncio
from collections.abc import Callable, Iterable

from hams_wire.exposition import CONTENT_TYPE, Sample, exposition, of_process
from hams_wire.limits import probe_answer_s, probe_line_bytes_max

TEXT = "text/plain; charset=utf-8"


async def answer_probes(port: int, missing: Callable[[], str | None], metrics: Callable[[], Iterable[Sample]] = tuple) -> asyncio.Server:
    """Listen on all addresses until the server is closed. Raises OSError."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(probe_answer_s):
                line = await reader.readline()
                while (await reader.readline()).strip():  # a client may take a close with unread bytes for a reset
                    pass
                status, body, kind = _answer(line, missing, metrics)
                head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
        except (TimeoutError, ConnectionError, ValueError):  # ValueError: a line over the limit
            pass
        finally:
            writer.close()

    return await asyncio.start_server(serve, None, port, limit=probe_line_bytes_max)


def _answer(line: bytes, missing: Callable[[], str | None], metrics: Callable[[], Iterable[Sample]]) -> tuple[str, bytes, str]:
    method, _, rest = line.partition(b" ")
    path = rest.partition(b" ")[0]
    if method != b"GET" or path not in (b"/livez", b"/readyz", b"/metrics"):
        return "404 Not Found", b"expected GET /livez, GET /readyz or GET /metrics\n", TEXT
    if path == b"/metrics":
        return "200 OK", exposition((*metrics(), *of_process())), CONTENT_TYPE
    why = missing() if path == b"/readyz" else None
    return ("200 OK", b"ok\n", TEXT) if why is None else ("503 Service Unavailable", f"{why}\n".encode(), TEXT)
