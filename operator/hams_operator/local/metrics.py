"""All metrics of a local run on one page: `GET /metrics` at a port of the supervisor's, for Prometheus.

Frontends share a port, so a scrape there sees one of them; proxies and managers open no port at all on one
machine. Each process answers at a Unix socket of its own instead; the page holds what all of them say, every
series with `operator`, `instance` and `process` (proxy, frontend or manager). A process that does not answer
in time is left out, and `hams_up` of it is 0.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from hams_protocol.frozen import frozen
from hams_wire.exposition import CONTENT_TYPE
from hams_wire.loopback import origin_is_loopback
from hams_wire.probes import answer

metrics_answer_s = 2.0
"""A process that has not answered a scrape for this long is left out of the page."""

metrics_bytes_max = 16 << 20
"""What one process may say of itself."""

metrics_line_bytes_max = 16 << 10
"""A line of a request for the page."""


_SERIES = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+(?: \S+)?)$")
_COMMENT = re.compile(r"^# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) ")


@frozen
class Source:
    """A process, and the Unix socket at which it answers."""

    operator: str
    instance: str
    process: str
    socket: str

    @property
    def labels(self) -> str:
        """What tells its series from those of others. Names of operators and instances need no escapes."""
        return f'operator="{self.operator}",instance="{self.instance}",process="{self.process}"'


def is_own(fields: Iterable[tuple[str, str]]) -> bool:
    """Whether a request may be of somebody on this machine, by its header fields (lower case). A page from
    elsewhere, opened in a browser here, says so in `Origin`; or its own name leads to this machine, and
    stands in `Host`.
    """
    named = [
        value if name == "origin" else f"//{value}" for name, value in fields if name in ("origin", "host")
    ]
    return all(origin_is_loopback(item) for item in named)


class MetricsPage:
    """The server of the page. `sources` says who lives when somebody asks."""

    def __init__(self, sources: Callable[[], list[Source]]) -> None:
        self._sources = sources
        self._server: asyncio.Server | None = None
        self._private = True

    async def open(self, host: str, port: int) -> None:
        """Listen. Raises OSError."""
        self._private = is_own([("host", f"[{host}]" if ":" in host else host)])
        self._server = await asyncio.start_server(self._serve, host, port, limit=metrics_line_bytes_max)

    @property
    def url(self) -> str:
        """Where the page is, once it is open; empty before."""
        if self._server is None or not self._server.sockets:
            return ""
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}/metrics"

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(2 * metrics_answer_s):
                request = (await reader.readline()).split()
                fields: list[tuple[str, str]] = []
                while header := (await reader.readline()).strip():
                    name, _, value = header.decode("latin-1").partition(":")
                    fields.append((name.strip().lower(), value.strip()))
                status, kind, body = "404 Not Found", "text/plain", b"expected GET /metrics\n"
                if self._private and not is_own(fields):
                    status, body = (
                        "403 Forbidden",
                        b"expected a request of this machine, not of a page from elsewhere\n",
                    )
                elif request[:2] == [b"GET", b"/metrics"]:
                    status, kind, body = "200 OK", CONTENT_TYPE, await self.page()
                await answer(writer, status, kind, body)
        except (TimeoutError, ConnectionError, ValueError):  # ValueError: a line over the limit
            pass
        finally:
            writer.close()

    async def page(self) -> bytes:
        """The pages of all processes, merged."""
        sources = self._sources()
        answers = await asyncio.gather(*(ask_process(source.socket, "/metrics") for source in sources))
        return merged(dict(zip(sources, answers, strict=True))).encode()


async def ask_process(socket: str, path: str) -> str | None:
    """A page of one process; None if it has none to give in time."""
    try:
        async with asyncio.timeout(metrics_answer_s):
            reader, writer = await asyncio.open_unix_connection(socket)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nhost: local\r\n\r\n".encode())
                answer = b""
                while (part := await reader.read(1 << 16)) and len(answer) < metrics_bytes_max:
                    answer += part
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    head, _, body = answer.partition(b"\r\n\r\n")
    return body.decode("utf-8", "replace") if head.startswith(b"HTTP/1.1 200") else None


def merged(answers: Mapping[Source, str | None]) -> str:
    """One page of several: the series of one name stand together, as the format asks, each with the labels of
    its source."""
    about: dict[str, list[str]] = {}
    series: dict[str, list[str]] = {}
    for source, text in answers.items():
        family = ""
        for line in (text or "").splitlines():
            if comment := _COMMENT.match(line):
                family = comment[2]
                said = about.setdefault(family, [])
                if not any(item.startswith(comment[0]) for item in said):
                    said.append(line)
            elif match := _SERIES.match(line):
                name, labels, value = match.groups()
                # A histogram's series bear its name and a suffix; they stay with what was said of it.
                owner = family if family and name.startswith(family) else name
                own = f"{source.labels},{labels}" if labels else source.labels
                series.setdefault(owner, []).append(f"{name}{{{own}}} {value}")
    lines = ["# HELP hams_up Whether the process answered this scrape.", "# TYPE hams_up gauge"]
    lines += [f"hams_up{{{source.labels}}} {int(text is not None)}" for source, text in answers.items()]
    for name, lines_of_series in series.items():
        lines += [*about.get(name, ()), *lines_of_series]
    return "\n".join(lines) + "\n"


def path_of(memory: Path, instance: str) -> Path:
    """Where the process of an instance answers."""
    return memory / f"{instance}.probes"
