"""The bad network between peers is as bad as it is told to be, and no worse."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from hams_protocol.deps import Dep
from hams_protocol.messages import Durable, Message, StateRecord
from hams_wire.peers.network import PeerNetwork
from hams_wire.peers.payload import HeapFactory, HeapPayload
from tests.faults.forwarder import Forwarder, Rules

MIB = 1 << 20


class Pair:
    """Instance a talks to instance b through a forwarder; the other way is direct."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.events: list[str] = []
        self.sent = 0
        self._wake = asyncio.Event()

    async def start(self) -> None:
        self.a = PeerNetwork(
            "a",
            "g",
            "tcp:127.0.0.1:0",
            HeapFactory(),
            lambda *_: None,
            lambda _: self.tell("up"),
            lambda _: self.tell("down"),
        )
        self.b = PeerNetwork(
            "b", "g", "tcp:127.0.0.1:0", HeapFactory(), self.got, lambda _: None, lambda _: None
        )
        await self.a.start()
        await self.b.start()
        self.forwarder = Forwarder(self.b.address, seed=4)
        await self.forwarder.start()
        self.a.set_members({"b": self.forwarder.address})
        await self.until(lambda: self.events == ["up"])

    async def close(self) -> None:
        await self.a.close()
        await self.b.close()
        await self.forwarder.close()
        assert self.forwarder.errors == []

    def got(self, sender: str, message: Message) -> None:
        self.messages.append(message)
        self._wake.set()

    def tell(self, what: str) -> None:
        self.events.append(what)
        self._wake.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._wake.clear()
            await self._wake.wait()

    def send(self, *numbers: int, nbytes: int | None = None) -> None:
        self.sent += len(numbers)
        for n in numbers:
            payload = (
                None if nbytes is None else HeapPayload((), memoryview(n.to_bytes(4, "big") * (nbytes // 4)))
            )
            self.a.send(
                "b", notice(n) if payload is None else StateRecord("p", 1, n, n - 1, (), (), "c", payload)
            )

    def seqs(self) -> list[int]:
        return [item.versions[0].seq for item in self.messages if isinstance(item, Durable)]

    def versions(self) -> list[int]:
        """Versions of the records that came; each of them whole."""
        seen = []
        for item in self.messages:
            if isinstance(item, StateRecord):
                assert isinstance(item.state, HeapPayload)
                assert bytes(item.state.data) == item.version.to_bytes(4, "big") * (item.state.nbytes // 4)
                seen.append(item.version)
        return seen


def notice(n: int) -> Durable:
    return Durable((Dep("p", 1, n),))


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = Pair()
    await pair.start()
    yield pair
    await pair.close()


LAST = 10**6


async def settle(pair: Pair) -> None:
    """Everything sent before has arrived, or never will: one more message goes through a network that is good
    again."""
    await pair.forwarder.seen(pair.sent)
    pair.forwarder.rules = Rules(delay_s=0.05)
    pair.send(LAST)
    pair.send(LAST, nbytes=4)
    await pair.until(lambda: LAST in pair.seqs() and LAST in pair.versions())


async def test_without_rules_everything_passes_in_order(pair: Pair) -> None:
    pair.send(*range(200))
    pair.send(*range(1, 5), nbytes=3 * MIB)
    await settle(pair)
    assert pair.seqs() == [*range(200), LAST]
    assert pair.versions() == [1, 2, 3, 4, LAST]
    assert pair.forwarder.forwarded == 206


async def test_delay_keeps_the_order(pair: Pair) -> None:
    pair.forwarder.rules = Rules(delay_s=0.2, jitter_s=0.05)
    pair.send(*range(50))
    await pair.forwarder.seen(50)
    assert pair.messages == []
    await pair.until(lambda: len(pair.seqs()) == 50)
    assert pair.seqs() == list(range(50))


async def test_dropped_messages_are_gone_whole_and_the_others_are_not(pair: Pair) -> None:
    pair.forwarder.rules = Rules(drop=0.5)
    pair.send(*range(200))
    pair.send(*range(1, 13), nbytes=3 * MIB)
    await settle(pair)
    assert pair.forwarder.dropped > 0
    assert len(pair.messages) == 212 + 2 - pair.forwarder.dropped
    assert 50 < len(pair.seqs()) < 150
    assert 1 < len(pair.versions()) < 13
    assert pair.events == ["up"], "the stream itself stays whole"


async def test_repeated_messages_come_again(pair: Pair) -> None:
    pair.forwarder.rules = Rules(repeat=0.5)
    pair.send(*range(200))
    pair.send(*range(1, 20), nbytes=1000)
    await settle(pair)
    assert set(pair.seqs()) == {*range(200), LAST}
    assert set(pair.versions()) == {*range(1, 20), LAST}
    assert len(pair.messages) == 221 + pair.forwarder.repeated
    assert 50 < pair.forwarder.repeated < 200
    assert pair.events == ["up"]


async def test_reordered_messages_are_overtaken_and_none_is_lost(pair: Pair) -> None:
    pair.forwarder.rules = Rules(reorder=0.3)
    pair.send(*range(100))
    for n in range(1, 40):
        pair.send(n, nbytes=3 * MIB if n % 8 == 0 else 1000)
    await settle(pair)
    assert sorted(pair.seqs()) == [*range(100), LAST]
    assert pair.seqs() != [*range(100), LAST]
    assert sorted(pair.versions()) == [*range(1, 40), LAST]
    assert pair.versions() != [*range(1, 40), LAST]
    assert pair.events == ["up"]


async def test_all_at_once_never_breaks_the_stream(pair: Pair) -> None:
    pair.forwarder.rules = Rules(
        delay_s=0.001, jitter_s=0.005, drop=0.2, repeat=0.3, reorder=0.3, reorder_s=0.005
    )
    for n in range(1, 300):
        pair.send(n)
        pair.send(n, nbytes=(3 * MIB if n % 40 == 0 else 4 * (n % 1000)))
        if n % 20 == 0:
            await asyncio.sleep(0.005)
    await settle(pair)
    assert pair.events == ["up"]
    assert pair.b.stats.bad_frames == 0


async def test_a_cut_holds_everything_up_and_healing_lets_it_go(pair: Pair) -> None:
    pair.forwarder.cut()
    pair.send(*range(10))
    await asyncio.sleep(0.05)
    assert pair.messages == []
    assert pair.events == ["up"]
    pair.forwarder.heal()
    await pair.until(lambda: len(pair.messages) == 10)
    assert pair.seqs() == list(range(10))


async def test_a_cut_in_the_middle_of_a_payload_holds_the_rest_of_it_up(pair: Pair) -> None:
    pair.forwarder.cut_after_bytes = MIB
    pair.send(1, nbytes=MIB // 2)
    pair.send(2, nbytes=3 * MIB)
    while not pair.forwarder.is_cut:  # noqa: ASYNC110 # this side has no event for it
        await asyncio.sleep(0.005)
    pair.send(3)
    await asyncio.sleep(0.05)
    assert (pair.versions(), pair.seqs()) == ([1], [])
    pair.forwarder.cut_after_bytes = None
    pair.forwarder.heal()
    await pair.until(lambda: pair.versions() == [1, 2] and pair.seqs() == [3])


async def test_the_other_direction_is_not_touched(pair: Pair) -> None:
    back: list[Message] = []
    arrived = asyncio.Event()

    def got(sender: str, message: Message) -> None:
        back.append(message)
        arrived.set()

    pair.a._on_message = got
    pair.b.set_members({"a": pair.a.address})
    while not pair.b.is_up("a"):  # noqa: ASYNC110 # this side has no event for it
        await asyncio.sleep(0.005)
    pair.forwarder.cut()
    pair.b.send("a", notice(3))
    await arrived.wait()
    assert back == [notice(3)]
    pair.forwarder.heal()


async def test_a_reset_breaks_the_connection_and_the_next_one_stands(pair: Pair) -> None:
    pair.forwarder.reset()
    await pair.until(lambda: pair.events == ["up", "down", "up"])
    pair.send(1)
    await pair.until(lambda: pair.seqs() == [1])


async def test_the_same_seed_has_the_same_fate() -> None:
    fates = []
    for _ in range(2):
        pair = Pair()
        await pair.start()
        pair.forwarder.rules = Rules(drop=0.5)
        pair.send(*range(100))
        await settle(pair)
        fates.append(pair.seqs())
        await pair.close()
    assert fates[0] == fates[1]
