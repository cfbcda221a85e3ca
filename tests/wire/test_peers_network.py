"""Two and more networks in one loop: connections come, break, return, and hurt nobody else."""

import asyncio
import contextlib
import datetime
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests import certified

from hams_operator.controller.certificates import Authority
from hams_protocol.deps import Dep
from hams_protocol.ids import RequestId
from hams_protocol.messages import (
    Completion,
    Deliver,
    Durable,
    Heartbeat,
    Kind,
    Message,
    Meta,
    Payload,
    Probe,
    StateCopy,
    StateRecord,
    Suspect,
    Token,
)
from hams_wire import limits
from hams_wire.peers import connection, frames, handshake, network, outbox, tls_listener
from hams_wire.peers.addresses import Tcp, Unix, is_at, parse
from hams_wire.peers.codec import Codec
from hams_wire.peers.connection import Receiving, Sending
from hams_wire.peers.errors import BadFrame, ConnectionRejected, RejectReason
from hams_wire.peers.network import PeerNetwork, _Peer, reconnect_offending_max_s, reconnect_s
from hams_wire.peers.payload import HeapFactory, HeapPayload, TensorInfo
from hams_wire.tls import BadCertificates, Certificates

MIB = 1 << 20


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


class Peer:
    """A network that remembers what it was told."""

    def __init__(
        self, name: str, graph: str = "g", listen: str = "tcp:127.0.0.1:0", tls: Certificates | None = None
    ) -> None:
        self.name = name
        self.messages: list[tuple[str, Message]] = []
        self.reports: list[tuple[str, str]] = []
        self.network = PeerNetwork(
            name,
            graph,
            listen,
            HeapFactory(),
            self._message,
            lambda peer: self._tell("up", peer),
            lambda peer: self._tell("down", peer),
            on_refused=self._refused_at,
            tls=tls,
        )
        self.refused: list[str] = []
        self._wake = asyncio.Event()
        self._gone = self.network.gone
        self.network.gone = self._wake_gone  # type: ignore[method-assign] # to be told
        self._rejected = self.network.rejected
        self.network.rejected = self._wake_rejected  # type: ignore[method-assign] # to be told

    def _wake_rejected(self, receiving: Receiving, error: BadFrame | ConnectionRejected) -> None:
        self._rejected(receiving, error)
        self._wake.set()

    def _refused_at(self, peer: str) -> None:
        self.refused.append(peer)
        self._wake.set()

    def _wake_gone(self, receiving: Receiving) -> None:
        self._gone(receiving)
        self._wake.set()

    def _message(self, sender: str, message: Message) -> None:
        self.messages.append((sender, message))
        self._wake.set()

    def _tell(self, what: str, peer: str) -> None:
        self.reports.append((what, peer))
        self._wake.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when it holds; looked at after every callback. A hang fails by the test's own timeout."""
        while not condition():
            self._wake.clear()
            await self._wake.wait()

    async def until_up(self, *peers: str) -> None:
        await self.until(lambda: all(self.network.is_up(peer) for peer in peers))

    async def got(self, count: int = 1) -> list[Message]:
        await self.until(lambda: len(self.messages) >= count)
        return [message for _, message in self.messages]


Make = Callable[..., Awaitable[Peer]]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    peers: list[Peer] = []

    async def make(
        name: str, graph: str = "g", listen: str = "tcp:127.0.0.1:0", tls: Certificates | None = None
    ) -> Peer:
        peer = Peer(name, graph, listen, tls)
        await peer.network.start()
        peers.append(peer)
        return peer

    yield make
    for peer in peers:
        await peer.network.close()
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("peer ")] == []


def heap(nbytes: int) -> HeapPayload:
    return HeapPayload((TensorInfo("x", "UINT8", (1, nbytes), 0, nbytes),), memoryview(bytearray(nbytes)))


def token(n: int, payload: Payload | None = None) -> Deliver:
    return Deliver(
        "rank",
        3,
        Token(RequestId(0, n), (), "op", Kind.VALUE, f"v{n}", (), ("rank",), Meta(), payload=payload),
    )


def record(version: int, payload: Payload | None) -> StateRecord:
    return StateRecord("p", 1, version, version - 1, (), (), "c", payload)


def copy(nbytes: int) -> StateCopy:
    return StateCopy("p", 1, 2, (), Completion(()), "c", heap(nbytes))


def notice(seq: int) -> Durable:
    return Durable((Dep("p", 1, seq),))


def introduce(*peers: Peer) -> None:
    members = {peer.name: peer.network.address for peer in peers}
    for peer in peers:
        peer.network.set_members(members)


async def connected(make: Make) -> tuple[Peer, Peer]:
    """Two peers; the first one may send."""
    a, b = await make("a"), await make("b")
    introduce(a, b)
    await a.until_up("b")
    return a, b


# ---- the normal case ----


async def test_messages_travel_both_ways(make: Make) -> None:
    a, b = await make("a"), await make("b")
    introduce(a, b)
    await a.until_up("b")
    await b.until_up("a")
    a.network.send("b", token(1, heap(4096)))
    b.network.send("a", notice(1))
    assert await b.got() == [token(1, heap(4096))]
    assert await a.got() == [notice(1)]
    assert b.messages[0][0] == "a"
    assert a.reports == [("up", "b")]


async def test_instances_on_one_machine_may_use_unix_sockets(make: Make, tmp_path: Path) -> None:
    a, b = await make("a", listen=f"unix:{tmp_path}/a"), await make("b", listen=f"unix:{tmp_path}/b")
    introduce(a, b)
    await a.until_up("b")
    a.network.send("b", record(1, heap(3 * MIB)))
    assert await b.got() == [record(1, heap(3 * MIB))]
    await b.network.close()
    assert not (tmp_path / "b").exists()


async def test_a_peer_that_is_not_at_its_address_any_more_is_said_to_be_gone(make: Make) -> None:
    a, b, c = await make("a"), await make("b"), await make("c")
    gone = b.network.address
    await b.network.close()
    a.network.set_members({"b": gone, "d": c.network.address})
    await a.until(lambda: set(a.refused) == {"b", "d"})
    a.network.set_members({"b": gone, "c": c.network.address})
    await a.until_up("c")
    assert "c" not in a.refused
    assert a.reports == [("up", "c")]


async def test_many_messages_of_one_step_arrive_in_their_lane_in_order(make: Make) -> None:
    a, b = await make("a"), await make("b")
    introduce(a, b)
    await a.until_up("b")
    for n in range(500):
        a.network.send("b", token(n, heap(n)))
        a.network.send("b", notice(n))
    result = await b.got(1000)
    assert [item.token.request.n for item in result if isinstance(item, Deliver)] == list(range(500))
    assert [item.versions[0].seq for item in result if isinstance(item, Durable)] == list(range(500))


async def test_a_notice_overtakes_a_record_of_100_MB(make: Make) -> None:
    a, b = await make("a"), await make("b")
    introduce(a, b)
    await a.until_up("b")
    large = record(1, heap(100_000_000))
    a.network.send("b", large)
    await asyncio.sleep(0)  # the record is on its way
    a.network.send("b", notice(1))
    result = await b.got(2)
    assert [type(item) for item in result] == [Durable, StateRecord]
    assert result[1] == large


async def test_copies_that_wait_come_after_what_was_sent_later(make: Make) -> None:
    a, b = await connected(make)
    a.network.hold_copies("p")
    a.network.send("b", copy(8 * MIB))
    a.network.send("b", record(1, heap(8 * MIB)))
    a.network.send("b", notice(1))
    assert {type(item) for item in await b.got(2)} == {Durable, StateRecord}
    a.network.hold_copies("p")
    a.network.release_copies()
    assert (await b.got(3))[2] == copy(8 * MIB)
    a.network.send("b", copy(1))
    assert (await b.got(4))[3] == copy(1), "one that is sent later does not wait"


async def test_copies_wait_for_a_bounded_time(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "copies_held_max_s", 0.01)
    a, b = await connected(make)
    a.network.hold_copies("p")
    a.network.send("b", copy(1))
    a.network.hold_copies("p")
    assert await b.got() == [copy(1)]
    assert a.network.held_copies == ""


async def test_what_is_held_back_has_not_left(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "copies_held_max_s", 600.0)
    a, b = await connected(make)
    a.network.hold_copies("p")
    a.network.send("b", copy(1))
    sending = a.network._peers["b"].sending
    assert sending is not None
    left = asyncio.create_task(sending.flushed())
    a.network.send("b", notice(1))
    await b.got(1)
    assert not left.done()
    a.network.release_copies()
    await left
    assert len(await b.got(2)) == 2


async def test_a_network_that_closes_holds_nothing_back(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "copies_held_max_s", 600.0)
    a, b = await connected(make)
    a.network.hold_copies("p")
    a.network.send("b", copy(20 * MIB))
    await a.network.close(flush_s=30)
    assert await b.got() == [copy(20 * MIB)]


async def test_what_a_callback_sends_reaches_its_peer(make: Make) -> None:
    a, b = await make("a"), await make("b")
    introduce(a, b)
    await a.until_up("b")
    await b.until_up("a")
    original = b._message

    def echo(sender: str, message: Message) -> None:
        original(sender, message)
        b.network.send(sender, message)

    b.network._on_message = echo
    a.network.send("b", Probe(4))
    assert await a.got() == [Probe(4)]


async def test_the_same_message_to_several_peers(make: Make) -> None:
    a, others = await make("a"), [await make(name) for name in "bcd"]
    introduce(a, *others)
    await a.until_up("b", "c", "d")
    message = Durable((Dep("p", 1, 2),))
    for peer in others:
        a.network.send(peer.name, message)
    for peer in others:
        assert await peer.got() == [message]


async def test_who_asks_is_answered_before_it_is_known_as_a_member(make: Make) -> None:
    a, b = await make("a"), await make("manager")
    b.network.set_members({"a": a.network.address})
    await b.until_up("a")
    await a.until_up("manager")
    a.network.send("manager", Suspect("c", "silent"))
    assert await b.got() == [Suspect("c", "silent")]
    await b.network.close()
    await a.until(lambda: a.reports == [("up", "manager"), ("down", "manager")])
    assert "manager" not in a.network._peers, "and it is forgotten when it goes"


async def test_a_greeting_makes_nobody_dial_another_host(make: Make) -> None:
    """Who is no member is answered at the host it comes from, a member at the address that stood in etcd."""
    a, b = await make("a"), await make("b")
    a.network.set_members({"b": b.network.address})
    for sender, address in (("s", "tcp:192.0.2.1:1"), ("t", "tcp:example.org:1"), ("b", "tcp:127.0.0.1:1")):
        reader, writer = await raw(a)
        writer.write(handshake.frame(handshake.Hello("g", sender, "a", address, 1, 1)))
        await reader.readexactly(16 + 2)
        assert a.network._peers[sender].address == (b.network.address if sender == "b" else "")
        writer.close()
    await a.until_up("b")


@pytest.mark.parametrize(
    ("address", "source", "at"),
    [
        ("tcp:10.0.0.1:5", "10.0.0.1", True),
        ("tcp:[fd00::1]:5", "fd00:0::1", True),
        ("tcp:10.0.0.2:5", "10.0.0.1", False),
        ("tcp:127.0.0.1:5", "10.0.0.1", False),
        ("tcp:127.0.0.1:5", "127.0.0.1", True),
        ("tcp:10.0.0.1:5", "127.0.0.1", False),
        ("tcp:name:5", "10.0.0.1", False),
        ("unix:/x", None, True),
        ("unix:/x", "127.0.0.1", True),
        ("unix:/x", "10.0.0.1", False),
        ("nonsense", "10.0.0.1", False),
    ],
)
def test_an_address_lies_at_a_host_or_elsewhere(address: str, source: str | None, at: bool) -> None:
    assert is_at(address, source) is at


# ---- connections break ----


async def test_a_broken_connection_is_reported_at_once_and_comes_back(make: Make) -> None:
    a, b = await make("a"), await make("b")
    introduce(a, b)
    await a.until_up("b")
    await b.until_up("a")
    sending = a.network._peers["b"].sending
    assert sending is not None
    sending.abort()
    await a.until(lambda: a.reports == [("up", "b"), ("down", "b"), ("up", "b")])
    a.network.send("b", notice(1))
    assert await b.got() == [notice(1)]
    assert b.reports == [("up", "a")], "the other direction never broke"


async def test_an_instance_that_ends_is_down_for_everyone_and_what_was_sent_to_it_is_lost(make: Make) -> None:
    a, b = await make("a"), await make("b")
    introduce(a, b)
    await a.until_up("b")
    await b.network.close()
    await a.until(lambda: ("down", "b") in a.reports)
    a.network.send("b", notice(1))
    assert a.network.stats.lost_unconnected == 1
    a.network.send("nobody", notice(1))
    assert a.network.stats.lost_unconnected == 2


async def test_a_member_that_listens_later_is_reached(make: Make) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    a = await make("a")
    a.network.set_members({"b": f"tcp:127.0.0.1:{port}"})
    await asyncio.sleep(0)
    b = await make("b", listen=f"tcp:127.0.0.1:{port}")
    b.network.set_members({"a": a.network.address})  # its greeting also wakes the dialling of a
    await a.until_up("b")


async def test_who_is_no_member_any_more_is_let_go_when_it_holds_no_connection_either(make: Make) -> None:
    a, b = await make("a"), await make("b")
    introduce(a, b)
    await a.until_up("b")
    await b.until_up("a")
    a.network.set_members({})
    assert a.network.is_up("b"), "an expired lease is no reason not to answer"
    await b.network.close()
    await a.until(lambda: ("down", "b") in a.reports)
    await a.until(lambda: a.network._peers == {})


async def test_a_message_cut_off_in_the_middle_is_never_delivered(make: Make) -> None:
    a, b = await make("a"), await make("b")
    introduce(a, b)
    await a.until_up("b")
    await b.until_up("a")
    a.network.send("b", record(1, heap(100_000_000)))
    await asyncio.sleep(0)
    sending = a.network._peers["b"].sending
    assert sending is not None
    sending.abort()
    await a.until(lambda: a.reports.count(("up", "b")) == 2)
    a.network.send("b", notice(1))
    assert await b.got() == [notice(1)]


async def test_closing_may_wait_for_what_is_queued(make: Make) -> None:
    a, b = await make("a"), await make("b")
    introduce(a, b)
    await a.until_up("b")
    a.network.send("b", record(1, heap(20 * MIB)))
    a.network.send("b", notice(1))
    await a.network.close(flush_s=30)
    assert len(await b.got(2)) == 2


# ---- who may connect ----


async def test_another_graph_another_instance_and_another_version_are_turned_away(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, other = await make("a"), await make("x", graph="other")
    other.network.set_members({"a": a.network.address})
    await a.until(lambda: a.network.stats.rejected >= 1)
    assert other.reports == []
    wrong = await make("y")
    wrong.network.set_members({"b": a.network.address})
    await a.until(lambda: a.network.stats.rejected >= 3)
    assert wrong.reports == []
    assert a.reports == []


@pytest.mark.parametrize(
    ("oldest", "newest", "chosen"), [(1, 1, 1), (1, 2, 1), (0, 1, 1), (2, 3, None), (0, 0, None)]
)
def test_neighbouring_versions_talk_and_others_do_not(oldest: int, newest: int, chosen: int | None) -> None:
    hello = handshake.Hello("g", "b", "a", "unix:/b", oldest, newest)
    if chosen is None:
        with pytest.raises(Exception, match="versions"):
            handshake.answer(hello, "g", "a")
    else:
        assert handshake.answer(hello, "g", "a").version == chosen


async def raw(peer: Peer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = parse(peer.network.address)
    assert isinstance(address, Tcp)
    return await asyncio.open_connection(address.host, address.port)


@pytest.mark.parametrize("greeted", [False, True])
async def test_F36_garbage_on_the_port_is_answered_with_a_reason_closed_and_changes_nothing(
    make: Make, greeted: bool
) -> None:
    a = await make("a")
    reader, writer = await raw(a)
    if greeted:
        writer.write(handshake.frame(handshake.Hello("g", "b", "a", "unix:/nowhere", 1, 1)))
        await reader.readexactly(16 + 2)
    writer.write(b"\x00" * 5000 + b"garbage" * 100)
    answer = await reader.read()
    assert b"found magic 0x0000" in answer
    assert a.messages == []
    assert a.network.stats.bad_frames == 1
    writer.close()


async def test_F36_a_message_with_names_of_another_graph_closes_its_connection_and_reaches_nobody(
    make: Make,
) -> None:
    a, b = await make("a"), await make("b")
    a.network._unknown = lambda message: "a Deliver names shard 7 of 2" if message == token(1) else ""
    introduce(a, b)
    await b.until_up("a")
    b.network.send("a", token(1))
    await a.until(lambda: a.network.stats.bad_frames == 1)
    await b.until(lambda: b.network.stats.breaks == 1)
    await b.until_up("a")
    b.network.send("a", token(2))
    assert await a.got() == [token(2)]


async def test_F36_a_payload_that_cannot_be_read_arrives_and_holds_up_nobody(make: Make) -> None:
    a, b = await make("a"), await make("b")
    introduce(a, b)
    await b.until_up("a")
    shape = (1, -1, -1)
    bad = HeapPayload((TensorInfo("x", "FP32", shape, 0, 4),), memoryview(bytes(4)))
    b.network.send("a", token(1, bad))
    b.network.send("a", token(2, heap(MIB)))
    first, second = await a.got(2)
    assert isinstance(first, Deliver)
    assert isinstance(second, Deliver)
    assert first.token.payload is not None
    assert "dimension of -1" in first.token.payload.defect
    assert second.token.payload is not None
    assert second.token.payload.defect == ""
    assert (a.network.stats.bad_frames, b.network.stats.breaks) == (0, 0)


async def test_F36_a_peer_that_refuses_what_it_is_sent_is_dialled_with_growing_pauses_and_named_once(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    b = await make("b")
    pauses: list[float] = []
    enough = asyncio.Event()

    async def pause(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) == 12:
            enough.set()
            await asyncio.Event().wait()

    b.network._pause = pause  # type: ignore[method-assign]

    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(handshake.frame(handshake.Welcome(1)))
        writer.write(handshake.rejection(ConnectionRejected(RejectReason.BAD_FRAME, "no such thing")))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(refuses, "127.0.0.1", 0)
    b.network.set_members({"a": f"tcp:127.0.0.1:{server.sockets[0].getsockname()[1]}"})
    await enough.wait()
    assert pauses == sorted(pauses)
    assert pauses[0] == reconnect_s
    assert pauses[-1] == reconnect_offending_max_s
    named = [item for item in caplog.records if "refuses what it is sent" in item.getMessage()]
    assert [item.levelname for item in named].count("WARNING") == 1
    server.close()


async def test_F36_a_payload_that_is_announced_and_never_comes_is_given_up(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "payload_silence_s", 0.01)
    a = await make("a")
    reader, writer = await raw(a)
    writer.write(handshake.frame(handshake.Hello("g", "b", "a", "unix:/nowhere", 1, 1)))
    await reader.readexactly(16 + 2)
    encoded = Codec(HeapFactory()).encode(token(1, heap(100)))
    writer.write(frames.pack(encoded.code, frames.PAYLOAD, 3, len(encoded.metadata), 0) + encoded.metadata)
    assert b"none came for" in await reader.read()
    assert a.messages == []
    writer.close()


async def test_F36_payloads_of_one_size_that_follow_each_other_are_no_silence(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As much is missing as before, of another message."""
    clocks: asyncio.Queue[tuple[Receiving, int]] = asyncio.Queue()

    def owe(receiving: Receiving) -> None:
        clocks.put_nowait((receiving, receiving.inbox.payload_bytes))

    monkeypatch.setattr(Receiving, "_owe", owe)
    a = await make("a")
    reader, writer = await raw(a)
    writer.write(handshake.frame(handshake.Hello("g", "b", "a", "unix:/nowhere", 1, 1)))
    await reader.readexactly(16 + 2)
    encoded = [Codec(HeapFactory()).encode(token(number, heap(100))) for number in (1, 2)]
    halves = [
        frames.pack(item.code, frames.PAYLOAD, 3, len(item.metadata), 50) + item.metadata + bytes(50)
        for item in encoded
    ]
    writer.write(halves[0])
    receiving, before = await clocks.get()
    assert (before, receiving.inbox.owed_bytes) == (50, 50)
    writer.write(frames.pack(frames.DATA, 0, 3, 0, 50) + bytes(50))
    await a.got(1)
    writer.write(halves[1])
    await clocks.get()
    assert receiving.inbox.owed_bytes == 50
    receiving._come(before)
    assert a.network.stats.bad_frames == 0
    receiving._come(receiving.inbox.payload_bytes)
    assert a.network.stats.bad_frames == 1
    writer.close()


async def test_F36_a_stranger_that_says_nothing_is_closed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "handshake_s", 0.01)
    a = await make("a")
    reader, writer = await raw(a)
    assert await reader.read() == b""
    writer.close()


async def test_F38_connections_over_the_bound_are_turned_away_and_those_that_stand_go_on(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await make("a"), await make("b")
    introduce(a, b)
    await b.until_up("a")
    monkeypatch.setattr(limits, "connections_max", 5)
    strangers = [await raw(a) for _ in range(20)]
    await a.until(lambda: a.network.stats.rejected >= 16)
    b.network.send("a", notice(1))
    assert await a.got() == [notice(1)]
    for _, writer in strangers:
        writer.close()


async def test_a_second_connection_of_an_instance_replaces_the_first(make: Make) -> None:
    a = await make("a")
    hello = handshake.frame(handshake.Hello("g", "b", "a", "unix:/nowhere", 1, 1))
    first, first_writer = await raw(a)
    first_writer.write(hello)
    await first.readexactly(16 + 2)
    second, second_writer = await raw(a)
    second_writer.write(hello)
    await second.readexactly(16 + 2)
    with contextlib.suppress(ConnectionError):
        assert await first.read() == b""
    b = await make("b2")
    b.network.set_members({"a": a.network.address})
    await b.until_up("a")
    assert not second.at_eof()
    first_writer.close()
    second_writer.close()


# ---- slow peers ----


async def test_F38_a_peer_that_never_reads_fills_its_own_queue_and_hurts_nobody(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "lane_bytes_max", 32 * MIB)
    a, b = await make("a"), await make("b")
    reads = asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(handshake.frame(handshake.Welcome(1)))
        await reads.wait()
        while await reader.read(MIB):
            pass
        writer.close()

    server = await asyncio.start_server(deaf, "127.0.0.1", 0, limit=4096)
    port = server.sockets[0].getsockname()[1]
    b.network.set_members({"a": a.network.address})
    a.network.set_members({"b": b.network.address, "deaf": f"tcp:127.0.0.1:{port}"})
    await a.until_up("b", "deaf")
    payload = heap(MIB)
    for n in range(100):
        a.network.send("deaf", token(n, payload))
        a.network.send("b", token(n, payload))
        await b.got(n + 1)
    assert a.network.stats.lost_full > 0
    assert a.network.queued_bytes("deaf") <= outbox.lane_bytes_max + MIB
    reads.set()
    server.close()


async def test_silence_is_measured_per_peer(make: Make) -> None:
    a, b = await make("a"), await make("b")
    introduce(a, b)
    await a.until_up("b")
    await b.until_up("a")
    loop = asyncio.get_running_loop()
    before = loop.time()
    assert set(a.network.heard_s) == {"b"}
    assert a.network.heard_s["b"] <= before
    a.network.heard_s["b"] = 0.0
    b.network.send("a", Heartbeat(1))
    await a.got()
    assert a.network.heard_s["b"] >= before - 0.01


async def test_a_message_that_may_not_leave_is_said_and_lost(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = await make("a"), await make("b")
    introduce(a, b)
    await a.until_up("b")
    with caplog.at_level(logging.ERROR):
        a.network.send("b", Suspect("x" * (limits.metadata_bytes_max + 1), ""))
    assert "metadata" in caplog.text
    a.network.send("b", notice(1))
    assert await b.got() == [notice(1)]


# ---- addresses ----


def test_addresses() -> None:
    assert parse("tcp:10.0.0.1:80") == Tcp("10.0.0.1", 80)
    assert parse("tcp:[::1]:80") == Tcp("::1", 80)
    assert str(Tcp("::1", 80)) == "tcp:[::1]:80"
    assert parse("unix:/run/a.sock") == Unix("/run/a.sock")
    for wrong in (
        "",
        "tcp:",
        "tcp:host",
        "tcp::80",
        "tcp:host:99999",
        "tcp:host:x",
        "unix:",
        "http://x",
        "host:80",
    ):
        with pytest.raises(ValueError, match="expected an address"):
            parse(wrong)


async def test_a_member_with_an_address_that_is_none_is_left_out(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = await make("a"), await make("b")
    a.network.set_members({"b": b.network.address, "c": "nonsense"})
    await a.until_up("b")
    assert "nonsense" in caplog.text


# ---- TLS ----


@pytest.fixture
def authority() -> Authority:
    return certified.authority()


def held(directory: Path, *authorities: Authority, **more: Any) -> Certificates:
    return Certificates(certified.folder(directory, *authorities, **more))


async def test_tls_carries_everything(make: Make, authority: Authority, tmp_path: Path) -> None:
    a = await make("a", tls=held(tmp_path / "a", authority))
    b = await make("b", tls=held(tmp_path / "b", authority))
    introduce(a, b)
    await a.until_up("b")
    large = record(1, heap(5 * MIB + 1))
    a.network.send("b", large)
    for n in range(50):
        a.network.send("b", token(n, heap(n)))
    result = await b.got(51)
    assert large in result
    assert len(result) == 51


async def test_closing_over_tls_waits_for_what_is_queued_too(
    make: Make, authority: Authority, tmp_path: Path
) -> None:
    a = await make("a", tls=held(tmp_path / "a", authority))
    b = await make("b", tls=held(tmp_path / "b", authority))
    introduce(a, b)
    await a.until_up("b")
    a.network.send("b", record(1, heap(20 * MIB)))
    await a.network.close(flush_s=30)
    assert await b.got() == [record(1, heap(20 * MIB))]


STRANGERS = ("in the clear", "no certificate", "another authority", "another graph", "expired", "not yet")
"""Who must not be a peer. Each may know everything else: the address, the graph's uid, the instance's
name."""


def stranger(kind: str, authority: Authority, folder: Path) -> Certificates | None:
    """What somebody has who is none of the graph. What it trusts is right, so that it gets as far as it
    can."""
    day = datetime.timedelta(days=1)
    match kind:
        case "in the clear":
            return None
        case "no certificate":
            return Nameless(certified.folder(folder, authority))
        case "another authority":
            certified.folder(folder, certified.authority())
            (folder / "ca.crt").write_bytes(authority.certificate)
            return Certificates(folder)
        case "another graph":
            return held(folder, authority, shown="spiffe://hams/default/other")
        case "expired":
            return held(folder, authority, at=certified.now() - 8 * day)
        case "not yet":
            return held(folder, authority, at=certified.now() + day)
    raise AssertionError(kind)


class Nameless(Certificates):
    """Shows nothing when it dials."""

    def client(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(self._directory / "ca.crt")
        return context


@pytest.mark.parametrize("kind", STRANGERS)
async def test_a_stranger_gets_nothing_said_and_nothing_heard(
    make: Make, authority: Authority, tmp_path: Path, kind: str
) -> None:
    a = await make("a", tls=held(tmp_path / "a", authority))
    other = await make("s", tls=stranger(kind, authority, tmp_path / "s"))
    other.network.set_members({"a": a.network.address})
    if kind != "no certificate":  # nobody can listen without one
        a.network.set_members({"s": other.network.address})  # as if the stranger had got into etcd
    friend = await make("f", tls=held(tmp_path / "f", authority))
    tried = asyncio.Event()
    dial = other.network._dial

    async def count(*arguments: Any) -> Sending:
        try:
            return await dial(*arguments)
        finally:
            tried.set()

    other.network._dial = count  # type: ignore[method-assign] # to know when it has tried once more
    for _ in range(3):
        tried.clear()
        await tried.wait()
    friend.network.set_members({"a": a.network.address})
    await friend.until_up("a")
    await a.until_up("f")
    assert {peer for _, peer in a.reports} == {"f"}
    assert other.reports == []
    assert a.messages == other.messages == []


async def test_F38_handshakes_that_never_end_are_bounded_and_others_wait_their_turn(
    make: Make, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers connect and say nothing: memory is held for a few of them, and who has a certificate comes in
    when they are gone."""
    monkeypatch.setattr(tls_listener, "handshakes_max", 4)
    a = await make("a", tls=held(tmp_path / "a", authority))
    listener = a.network._tls_listener
    assert listener is not None
    strangers = [await raw(a) for _ in range(20)]
    while listener.handshakes < 4:  # noqa: ASYNC110 # a listener has no event for it
        await asyncio.sleep(0)
    friend = await make("f", tls=held(tmp_path / "f", authority))
    friend.network.set_members({"a": a.network.address})
    for _ in range(100):
        await asyncio.sleep(0)
        assert listener.handshakes <= 4
    for _, writer in strangers:
        writer.transport.abort()
    await friend.until_up("a")
    assert len(a.network._incoming) == 1


async def test_F38_strangers_who_say_nothing_keep_nobody_out(
    make: Make, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold all places and go on to wait; the oldest give way to those behind them."""
    monkeypatch.setattr(tls_listener, "handshakes_max", 4)
    monkeypatch.setattr(limits, "handshake_s", 3600.0)
    monkeypatch.setattr(tls_listener, "handshake_unhurried_s", 0.01)
    a = await make("a", tls=held(tmp_path / "a", authority))
    strangers = [await raw(a) for _ in range(20)]
    friend = await make("f", tls=held(tmp_path / "f", authority))
    friend.network.set_members({"a": a.network.address})
    await friend.until_up("a")
    for _, writer in strangers:
        writer.transport.abort()


async def test_of_somebody_turned_away_not_even_the_greeting_is_read(
    make: Make, authority: Authority, tmp_path: Path
) -> None:
    """Its greeting comes in the same packet as the end of its handshake; were it read, the stranger would be
    dialled back."""
    a = await make("a", tls=held(tmp_path / "a", authority))
    spy = held(tmp_path / "s", authority, shown="spiffe://hams/default/other")
    host, port = a.network.address.removeprefix("tcp:").rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port), ssl=spy.client(), server_hostname="any")
    writer.write(handshake.frame(handshake.Hello("g", "s", "a", "tcp:127.0.0.1:9", 1, 1)))
    with contextlib.suppress(ConnectionError):
        answer = await reader.read()
        assert b"spiffe://hams/default/other" in answer
    writer.close()
    await a.until(lambda: a.network.stats.rejected == 1)
    assert "s" not in a.network._peers


async def test_a_listener_that_is_none_of_the_graph_is_told_nothing(
    make: Make, authority: Authority, tmp_path: Path
) -> None:
    """An address may have become somebody else's, who has a certificate of the same authority."""
    received = bytearray()

    class Listener(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            received.extend(data)

    other = held(tmp_path / "s", authority, shown="spiffe://hams/default/other")
    server = await asyncio.get_running_loop().create_server(Listener, "127.0.0.1", 0, ssl=other.server())
    a = await make("a", tls=held(tmp_path / "a", authority))
    peer = _Peer(f"tcp:127.0.0.1:{server.sockets[0].getsockname()[1]}")
    with pytest.raises(ConnectionRejected, match="default/other"):
        await a.network._dial("s", peer)
    server.close()
    assert not received


async def test_renewed_certificates_hold_for_the_next_connection(
    make: Make, authority: Authority, tmp_path: Path
) -> None:
    a = await make("a", tls=held(tmp_path / "a", authority))
    b = await make("b", tls=held(tmp_path / "b", authority))
    b.network.set_members({"a": a.network.address})
    await b.until_up("a")
    other = certified.authority()
    certified.folder(tmp_path / "a", other)
    certified.folder(tmp_path / "b", other)
    b.network.send("a", notice(1))
    assert await a.got() == [notice(1)], "the connection that stands goes on"
    c = await make("c", tls=held(tmp_path / "c", other))
    late = await make("late", tls=held(tmp_path / "late", authority))
    late.network.set_members({"a": a.network.address})
    c.network.set_members({"a": a.network.address})
    await c.until_up("a")
    assert late.reports == [], "the old authority counts no more"


async def test_an_authority_is_replaced_while_every_step_reaches_the_instances_one_by_one(
    make: Make, authority: Authority, tmp_path: Path
) -> None:
    """The steps of `certificates.rotated`; between any two of them some instances have the new files and
    others the old ones."""
    fresh = certified.authority()
    steps = ((authority,), (authority, fresh), (fresh, authority), (fresh,))
    before = {name: held(tmp_path / name, authority) for name in ("a", "b")}
    a, b = [await make(name, tls=before[name]) for name in ("a", "b")]
    introduce(a, b)
    await a.until_up("b")
    await b.until_up("a")
    for step in steps[1:]:
        for name in ("a", "b"):
            certified.folder(tmp_path / name, *step)
            for one, other in ((a, b), (b, a)):
                ups = one.reports.count(("up", other.name))
                sending = one.network._peers[other.name].sending
                assert sending is not None
                sending.abort()
                await one.until(
                    lambda one=one, other=other, ups=ups: one.reports.count(("up", other.name)) > ups
                )  # type: ignore[misc]


def test_certificates_that_cannot_be_used_are_refused_at_start_and_kept_out_later(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(BadCertificates, match=r"tls\.crt"):
        Certificates(tmp_path)
    credentials = held(tmp_path / "a", authority)
    before = credentials.client()
    (tmp_path / "a" / "tls.key").write_text("half")
    assert credentials.client() is before
    assert "not used" in caplog.text
    certified.folder(tmp_path / "a", authority)
    assert credentials.client() is not before


def test_without_an_identity_to_ask_for_nobody_is_talked_to(authority: Authority, tmp_path: Path) -> None:
    certified.folder(tmp_path, authority)
    for change in (lambda file: file.write_text(" \n"), lambda file: file.unlink()):
        change(tmp_path / "identity")
        with pytest.raises(BadCertificates, match="identity"):
            Certificates(tmp_path)


@pytest.mark.parametrize("listen", ["tcp:127.0.0.1:0", "unix"])
async def test_closing_ends_though_a_connection_is_just_being_made(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listen: str
) -> None:
    """uvloop closes a transport whose dialling is cancelled without telling its protocol, though that has
    been told that it was made."""
    one, other = [
        await make(name, listen=f"unix:{tmp_path / name}" if listen == "unix" else listen)
        for name in ("one", "other")
    ]
    closing: asyncio.Future[asyncio.Task[None]] = asyncio.get_running_loop().create_future()
    made = Sending.connection_made

    def made_and_closed(sending: Sending, transport: asyncio.BaseTransport) -> None:
        made(sending, transport)
        if not closing.done() and sending.peer == "other":
            tasks = [task for task in asyncio.all_tasks() if task.get_name() == "peer other"]
            assert len(tasks) == 1
            tasks[0].cancel()  # before the dialling task has heard that it is connected
            closing.set_result(asyncio.create_task(one.network.close()))

    monkeypatch.setattr(Sending, "connection_made", made_and_closed)
    one.network.set_members({"other": other.network.address})
    async with asyncio.timeout(10):
        await (await closing)
