"""The way from this machine to pods through the API server, with an API server in memory."""

import asyncio
from typing import Any

import aiohttp
import pytest

from hams_operator.cli.forward import forwarded
from hams_operator.controller.kube import KubeError

BINARY = aiohttp.WSMsgType.BINARY


class Socket:
    """A port of a pod that sends back what it gets: channel 0 is data, 1 errors, and each begins with the
    port's number."""

    def __init__(self) -> None:
        self._said: asyncio.Queue[bytes | None] = asyncio.Queue()
        for channel in (0, 1):
            self._said.put_nowait(bytes([channel]) + (8080).to_bytes(2, "little"))
        self.closed = False

    async def send_bytes(self, data: bytes) -> None:
        self._said.put_nowait(data)

    def say(self, data: bytes | None) -> None:
        self._said.put_nowait(data)

    def __aiter__(self) -> "Socket":
        return self

    async def __anext__(self) -> aiohttp.WSMessage:
        data = await self._said.get()
        if data is None:
            raise StopAsyncIteration
        return aiohttp.WSMessage(BINARY, data, None)

    async def close(self) -> None:
        self.closed = True


class Kube:
    """Notes which pods are reached."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.sockets: list[Socket] = []
        self.refuses = False

    async def socket(self, path: str, query: Any) -> Socket:
        assert query == [("ports", "8080")]
        self.paths.append(path)
        if self.refuses:
            raise KubeError(404, "no such pod")
        self.sockets.append(Socket())
        return self.sockets[-1]


async def ready() -> list[str]:
    return ["f1", "f2"]


async def dial(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = url.removeprefix("http://").partition(":")
    return await asyncio.open_connection(host, int(port))


async def test_what_is_sent_comes_back_from_one_pod_after_the_other() -> None:
    kube = Kube()
    async with forwarded(kube, "n", 8080, ready) as url:  # type: ignore[arg-type]
        for _ in range(2):
            reader, writer = await dial(url)
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            writer.close()
            assert await reader.read() == b"", "no more than that"
    assert sorted(path.split("/")[-2] for path in kube.paths) == ["f1", "f2"]
    assert all(socket.closed for socket in kube.sockets)


@pytest.mark.parametrize("end", [None, b"\1no such port"])
async def test_a_client_sees_the_end_of_the_pod(end: bytes | None) -> None:
    kube = Kube()
    async with forwarded(kube, "n", 8080, ready) as url:  # type: ignore[arg-type]
        reader, writer = await dial(url)
        writer.write(b"hello")
        await reader.readexactly(5)
        kube.sockets[0].say(end)
        assert await reader.read() == b""
        writer.close()


async def test_without_a_pod_the_connection_breaks_as_it_would_without_us() -> None:
    async def nobody() -> list[str]:
        return []

    kube = Kube()
    kube.refuses = True
    for pods in (nobody, ready):
        async with forwarded(kube, "n", 8080, pods) as url:  # type: ignore[arg-type]
            reader, writer = await dial(url)
            assert await reader.read() == b""
            writer.close()
