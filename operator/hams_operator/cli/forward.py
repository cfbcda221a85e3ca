"""A way from this machine to pods, through the API server: it works wherever kubectl does."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp

from hams_operator.controller.kube import PODS, KubeClient, KubeError

_REFRESH_S = 0.5
"""How long what was seen of the pods holds."""


class _Forward:
    """Takes connections here, each to the next pod."""

    def __init__(
        self, kube: KubeClient, namespace: str, port: int, ready: Callable[[], Awaitable[list[str]]]
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._port = port
        self._ready = ready
        self._pods: list[str] = []
        self._refreshed_s = -1.0
        self._refreshing = asyncio.Lock()
        self._turn = 0
        self.open: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A client has connected."""
        task = asyncio.ensure_future(self._serve(reader, writer))
        self.open.add(task)
        task.add_done_callback(self.open.discard)

    async def _choose(self) -> str | None:
        async with self._refreshing:
            now = asyncio.get_running_loop().time()
            if now - self._refreshed_s > _REFRESH_S:
                self._pods = await self._ready()
                self._refreshed_s = asyncio.get_running_loop().time()
        self._turn += 1
        return self._pods[self._turn % len(self._pods)] if self._pods else None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            pod = await self._choose()
            if pod is not None:
                path = PODS.url(self._namespace, pod, "portforward")
                await _pump(reader, writer, await self._kube.socket(path, [("ports", str(self._port))]))
        except (KubeError, ConnectionError):
            pass  # the client sees its connection break, as it would without us
        finally:
            writer.close()


@asynccontextmanager
async def forwarded(
    kube: KubeClient, namespace: str, port: int, ready: Callable[[], Awaitable[list[str]]]
) -> AsyncIterator[str]:
    """A URL on this machine whose connections end in a port of the pods that are `ready`, one after the
    other."""
    forward = _Forward(kube, namespace, port, ready)
    server = await asyncio.start_server(forward.accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(forward.open):
            task.cancel()
        await asyncio.gather(*forward.open, return_exceptions=True)


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, socket: aiohttp.ClientWebSocketResponse
) -> None:
    """Both ways until either ends. Channel 0 is data, 1 errors; the first message of each names the port."""

    async def up() -> None:
        while data := await reader.read(1 << 16):
            await socket.send_bytes(b"\0" + data)

    async def down() -> None:
        begun: set[int] = set()
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY:
                return
            channel, data = message.data[0], message.data[1:]
            if channel not in begun:
                begun.add(channel)
                data = data[2:]
            if channel != 0 and data:
                return
            if data:
                writer.write(data)
                await writer.drain()

    tasks = [asyncio.ensure_future(way()) for way in (up, down)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await socket.close()
