"""Clients that never give up: every request has a key, and is sent again under it until it is answered.

What was answered is kept, as far as it tells whether something was lost or doubled: the first number of every
tensor.
"""

import asyncio
import contextlib
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from benchmarks.http_load import first_numbers, infer_request

ANSWERS = (200, 409, 410, 422, 500)


@dataclass
class Log:
    """What the clients of one run saw: (asked, answered) of each request in loop seconds, and what went
    wrong."""

    answered: list[tuple[float, float]] = field(default_factory=list)
    failed: int = 0
    retried: int = 0
    numbers: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """The first number of each tensor of every reply, by the tensor's name."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    open: dict[str, float] = field(default_factory=dict)
    """When what each client waits for was asked."""

    def longest_gap_s(self, begin: float, end: float) -> float:
        """Longest time without a reply within a window, its edges included."""
        times = [begin, *sorted(at for _, at in self.answered if begin <= at <= end), end]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def slowest_s(self, begin: float, end: float) -> float:
        """The longest that a single request took which waited at some time within a window: a gap ends with
        anybody's reply."""
        return max((at - asked for asked, at in self.answered if at > begin and asked < end), default=0.0)

    async def more(self, number: int, within_s: float) -> None:
        """Until so many more replies have come. Raises TimeoutError."""
        target = len(self.answered) + number
        async with asyncio.timeout(within_s):
            while len(self.answered) < target:
                self.news.clear()
                await self.news.wait()

    async def all_before(self, moment: float, within_s: float) -> None:
        """Until whatever was asked before a moment is answered. Raises TimeoutError."""
        async with asyncio.timeout(within_s):
            while any(asked < moment for asked in self.open.values()):
                self.news.clear()
                await self.news.wait()

    def first_after(self, moment: float) -> float:
        """When the first reply after a moment came."""
        return min((at for _, at in self.answered if at > moment), default=float("inf"))


@contextlib.asynccontextmanager
async def asking(port: int, graph: str, nbytes: int, clients: int) -> AsyncIterator[Log]:
    """`clients` closed-loop clients for as long as the block lasts; what they began is answered before it
    ends."""
    log = Log()
    stop = asyncio.Event()
    tasks = [
        asyncio.create_task(_client(port, graph, nbytes, f"b{number}", log, stop))
        for number in range(clients)
    ]
    try:
        yield log
    finally:
        stop.set()
        await asyncio.gather(*tasks)


async def _client(port: int, graph: str, nbytes: int, name: str, log: Log, stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    for n in itertools.count():
        if stop.is_set():
            break
        request = infer_request(graph, nbytes, key=f"{name}-{n}-{loop.time():.6f}")
        asked = log.open[name] = loop.time()
        while True:
            status = 0
            numbers: dict[str, int] = {}
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                if streams is None:
                    streams = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
                status, numbers = await _once(*streams, request)
            if status in ANSWERS:
                break
            log.retried += 1
            if streams is not None:
                streams[1].transport.abort()
                streams = None
            await asyncio.sleep(0.001)
        log.failed += status != 200
        for tensor, number in numbers.items():
            log.numbers[tensor].append(number)
        log.answered.append((asked, loop.time()))
        del log.open[name]
        log.news.set()
    if streams is not None:
        streams[1].transport.abort()


async def _once(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[int, dict[str, int]]:
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.split(b"\r\ncontent-length:", 1)[1].split(b"\r\n", 1)[0])
    body = await reader.readexactly(length)
    status = int(head.split(b" ", 2)[1])
    return status, first_numbers(head, body) if status == 200 else {}
