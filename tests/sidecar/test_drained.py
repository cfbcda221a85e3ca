"""Frontends of a deleted graph leave together (`hams_sidecar.drained`)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from hams_protocol.effects import Effect
from hams_protocol.events import Event
from hams_protocol.graph import FRONTEND, FrontendSpec, Graph, GraphData, Mode, RecoverySpec
from hams_protocol.knowledge import Knowledge
from hams_sidecar.drained import Drained, drained_tries_max
from hams_wire.coordination.memory import MemoryStore
from hams_wire.node import Node, NodeSettings, Owner
from hams_wire.peers.payload import HeapFactory

GRAPH = Graph(GraphData("g", "uid", Mode.NON_STOP, FrontendSpec(), 1, RecoverySpec(), (), (), ()))


class Silent:
    """A core to which nothing matters."""

    def __init__(self) -> None:
        self.knowledge = Knowledge(GRAPH)

    def step(self, event: Event, now: float) -> list[Effect]:
        return []

    def deadline(self) -> float:
        return float("inf")


class Frontend(Owner):
    """One that is registered, and hears what the others say."""

    def __init__(self, store: MemoryStore, name: str, of: str = FRONTEND) -> None:
        self.drained = Drained("uid")
        self.heard: asyncio.Queue[str] = asyncio.Queue()
        self.client = store.client()
        self.node = Node(Silent(), name, of, self.client, HeapFactory(), self, NodeSettings("uid"))

    def on_key_changed(self, name: str, value: bytes | None, revision: int) -> None:
        self.drained.on_key_changed(name, value)
        self.heard.put_nowait(name)

    def leave(self, timeout_s: float = 60.0) -> "asyncio.Task[None]":
        return asyncio.create_task(self.drained.until_all(self.node, timeout_s=timeout_s))

    async def sees(self, count: int) -> None:
        await self.node.until(lambda: len(self.node.members) == count, timeout_s=60)


@asynccontextmanager
async def three(store: MemoryStore) -> AsyncIterator[list[Frontend]]:
    """Two frontends and somebody who is none."""
    values = [Frontend(store, "f-1"), Frontend(store, "f-2"), Frontend(store, "op-3", "op")]
    for item in values:
        await item.node.start()
    for item in values:
        await item.sees(3)
    try:
        yield values
    finally:
        for item in values:
            await item.node.close(leave=True)


@pytest.mark.parametrize(
    "lost", [0, drained_tries_max - 1], ids=["said", "said again, as it may not have been"]
)
async def test_who_has_answered_its_clients_stays_until_the_others_have(lost: int) -> None:
    async with three(MemoryStore()) as (one, two, _):
        one.client.lose_request(lost)
        first = one.leave()
        assert await two.heard.get() == "drained/f-1"
        assert not first.done()
        await two.leave()
        await first


async def test_who_dies_is_not_waited_for() -> None:
    async with three(MemoryStore()) as (one, two, _):
        first = one.leave()
        assert await two.heard.get() == "drained/f-1"
        await two.node.close(leave=True)
        await first


async def test_it_is_waited_for_so_long_and_no_longer() -> None:
    async with three(MemoryStore()) as (one, *_):
        await one.leave(timeout_s=0.0)


async def test_who_cannot_say_it_leaves_at_once() -> None:
    store = MemoryStore()
    async with three(store) as (one, *_):
        store.full = True
        await one.leave()
        store.full = False


async def test_who_never_hears_that_it_is_said_leaves() -> None:
    async with three(MemoryStore()) as (one, *_):
        one.client.lose_request(drained_tries_max)
        await one.leave()
