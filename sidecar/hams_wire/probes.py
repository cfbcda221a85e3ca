"""The port on which the kubelet asks whether a process lives and whether its role is served.

`GET /livez` is 200 as long as the event loop answers; `GET /readyz` is 200 only while `missing()` is None, else 503 with the reason as text.
Everything else is 404. One answer per connection, one line of request is read, and nothing that a stranger sends changes anything.
"""

import asyncio
from collections.abc import Callable

from hams_wire.limits import probe_answer_s, probe_line_bytes_max


async def answer_probes(port: int, missing: Callable[[], str | None]) -> asyncio.Server:
    """Listen on all addresses until the server is closed. Raises OSError."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(probe_answer_s):
                line = await reader.readline()
                while (await reader.readline()).strip():  # a client may take a close with unread bytes for a reset
                    pass
                status, text = _answer(line, missing)
                body = text.encode()
                head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
        except (TimeoutError, ConnectionError, ValueError):  # ValueError: a line over the limit
            pass
        finally:
            writer.close()

    return await asyncio.start_server(serve, None, port, limit=probe_line_bytes_max)


def _answer(line: bytes, missing: Callable[[], str | None]) -> tuple[str, str]:
    method, _, rest = line.partition(b" ")
    path = rest.partition(b" ")[0]
    if method != b"GET" or path not in (b"/livez", b"/readyz"):
        return "404 Not Found", "expected GET /livez or GET /readyz\n"
    why = missing() if path == b"/readyz" else None
    return ("200 OK", "ok\n") if why is None else ("503 Service Unavailable", f"{why}\n")
