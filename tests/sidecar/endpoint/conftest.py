"""Endpoints on free ports of the loopback, over a port that the test controls."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvloop
from tests.sidecar.endpoint.doubles import DIGITS, FakePort, Raw

from hams_protocol.graph import GraphData
from hams_sidecar.endpoint import Address, Endpoint
from hams_sidecar.endpoint.connection import BoundedHttpProtocol, Upload
from hams_sidecar.metrics import Metrics


@dataclass
class Running:
    """A served endpoint and what is behind it."""

    endpoint: Endpoint
    port: FakePort
    metrics: Metrics

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.endpoint.address.http_port}"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.endpoint.address.grpc_port}"

    async def connect(self) -> Raw:
        return Raw(*await asyncio.open_connection("127.0.0.1", self.endpoint.address.http_port))


Serve = Callable[..., Awaitable[Running]]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that production uses."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts endpoints, and stops them after the test."""
    started: list[Endpoint] = []

    async def start(
        graph: GraphData = DIGITS,
        port: FakePort | None = None,
        address: Address | None = None,
        **options: Any,
    ) -> Running:
        port = port or FakePort()
        metrics = Metrics("frontend", process=False)
        endpoint = Endpoint(port, graph, metrics, address or Address("127.0.0.1", 0, 0), **options)
        await endpoint.start()
        started.append(endpoint)
        return Running(endpoint, port, metrics)

    yield start
    for endpoint in started:
        await endpoint.stop()


@pytest.fixture
async def digits(serve: Serve) -> Running:
    """The graph `digits` (pixels FP32 [4], optional target INT64 []), which gives its inputs back."""
    return await serve()


@pytest.fixture
async def client(digits: Running) -> AsyncIterator[httpx.AsyncClient]:
    """A client of `digits`."""
    async with httpx.AsyncClient(base_url=f"http://{digits.http}") as result:
        yield result


@pytest.fixture
def lost(monkeypatch) -> asyncio.Semaphore:
    """Released whenever the server has let go of a connection."""
    return after_each_call(monkeypatch, (BoundedHttpProtocol, "connection_lost"))


@pytest.fixture
def arrived(monkeypatch) -> asyncio.Semaphore:
    """Released whenever a piece of a body has arrived."""
    return after_each_call(monkeypatch, (Upload, "add"), (Upload, "filled"))


@pytest.fixture
def heads(monkeypatch) -> asyncio.Semaphore:
    """Released whenever a piece of a head may have arrived."""
    return after_each_call(monkeypatch, (BoundedHttpProtocol, "data_received"))


def after_each_call(monkeypatch, *methods: tuple[type, str]) -> asyncio.Semaphore:
    called = asyncio.Semaphore(0)

    def spy_on(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def spy(self, *arguments) -> None:
            original(self, *arguments)
            called.release()

        monkeypatch.setattr(owner, name, spy)

    for owner, name in methods:
        spy_on(owner, name)
    return called
