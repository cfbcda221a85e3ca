"""Visitors: who is no peer, and asks."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hams_protocol.ids import InstanceId
from hams_wire.peers import network as network_module
from hams_wire.peers.network import PeerNetwork
from hams_wire.peers.payload import HeapFactory
from hams_wire.peers.visits import (
    NotReached,
    Visit,
    VisitFailed,
    pay,
    visit_head_bytes_max,
    visit_piece_bytes,
)
from hams_wire.tls import Certificates

from ..certified import authority, folder


def room(nbytes: int) -> memoryview:
    return memoryview(bytearray(nbytes))


async def twice(visit: Visit) -> None:
    """Answers everything twice as long."""
    while True:
        head, payload = await visit.receive(room, None)
        await visit.send(b"said: " + head, [payload, payload])


@asynccontextmanager
async def host(
    listen: str = "tcp:127.0.0.1:0", tls: Certificates | None = None, answer: object = twice
) -> AsyncIterator[PeerNetwork]:
    events: list[InstanceId] = []
    network = PeerNetwork(
        "a", "g", listen, HeapFactory(), lambda *_: None, events.append, events.append, tls=tls, host=answer
    )  # type: ignore[arg-type]
    await network.start()
    try:
        yield network
        assert not events, "a visitor is no peer"
    finally:
        await network.close()


@pytest.mark.parametrize("where", ["tcp", "unix", "tls"])
async def test_a_visitor_asks_and_is_answered_on_its_connection(tmp_path: Path, where: str) -> None:
    tls = Certificates(folder(tmp_path / "tls", authority())) if where == "tls" else None
    async with host(f"unix:{tmp_path}/socket" if where == "unix" else "tcp:127.0.0.1:0", tls) as network:
        visit = await pay(network.address, "g", "somebody", "a", tls)
        for nbytes in (0, 1, 3 * visit_piece_bytes + 1):
            await visit.send(b"hello", [bytes(nbytes), b"x"])
            head, payload = await visit.receive(room)
            assert head == b"said: hello"
            assert payload.tobytes() == (bytes(nbytes) + b"x") * 2
        visit.close()


async def test_only_who_is_asked_for_answers(tmp_path: Path) -> None:
    async with host() as network:
        for graph, instance in (("other", "a"), ("g", "b")):
            with pytest.raises(NotReached):
                await pay(network.address, graph, "somebody", instance, None)
    with pytest.raises(NotReached):
        await pay(network.address, "g", "somebody", "a", None)
    async with host(answer=None) as network:
        with pytest.raises(NotReached, match="not answered here"):
            await pay(network.address, "g", "somebody", "a", None)


async def test_a_visitor_without_a_proof_is_not_let_in_and_does_not_speak_to_strangers(
    tmp_path: Path,
) -> None:
    signer = authority()
    ours = Certificates(folder(tmp_path / "ours", signer))
    others = Certificates(folder(tmp_path / "others", signer, identity="spiffe://hams/default/other"))
    async with host(tls=ours) as network:
        for tls in (None, others):
            with pytest.raises(NotReached):
                await pay(network.address, "g", "somebody", "a", tls)


async def test_a_message_that_was_changed_or_is_cut_off_is_none() -> None:
    async def wrong(visit: Visit) -> None:
        await visit.receive(room, None)
        visit._writer.write(struct.pack("!IQ", 2, 0) + b"ab" + struct.pack("!I", 1))

    async def short(visit: Visit) -> None:
        await visit.receive(room, None)
        visit._writer.write(struct.pack("!IQ", 2, 5) + b"abcd")

    async def long(visit: Visit) -> None:
        await visit.receive(room, None)
        visit._writer.write(struct.pack("!IQ", visit_head_bytes_max + 1, 0))

    for answer, said in ((wrong, "checksum"), (short, "receiving"), (long, "are taken")):
        async with host(answer=answer) as network:
            visit = await pay(network.address, "g", "somebody", "a", None)
            await visit.send(b"?")
            with pytest.raises(VisitFailed, match=said):
                await visit.receive(room)
            visit.close()


async def test_visits_are_bounded_and_their_end_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_module, "visits_max", 1)
    async with host() as network:
        first = await pay(network.address, "g", "somebody", "a", None)
        with pytest.raises(NotReached, match="which is the most"):
            await pay(network.address, "g", "somebody", "a", None)
        first.close()
        async with asyncio.timeout(5):
            while True:
                try:
                    (await pay(network.address, "g", "somebody", "a", None)).close()
                    break
                except NotReached:
                    await asyncio.sleep(0.01)
