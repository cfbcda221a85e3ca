"""Answers of something that is not etcd, or of one of another version: typed errors, and a watch that goes on
with the next good answer."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from typing import Any

import grpc.aio
import pytest
from google.protobuf.message import Message

from hams_wire.coordination import etcd_pb2 as pb
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.coordination.port import Compare, Put, Write
from hams_wire.errors import CoordinationError
from tests.fuzz.boundaries import INTEGERS, cases

KEY = b"/hams/v1/g/topology"
HEADER = pb.ResponseHeader(revision=7)
ENTRY = pb.KeyValue(key=KEY, value=b"{}", mod_revision=5, create_revision=3, lease=0)

GOOD: dict[str, Message] = {
    "/etcdserverpb.KV/Range": pb.RangeResponse(header=HEADER, kvs=[ENTRY]),
    "/etcdserverpb.KV/Txn": pb.TxnResponse(
        header=HEADER,
        succeeded=False,
        responses=[pb.ResponseOp(response_range=pb.RangeResponse(header=HEADER, kvs=[ENTRY]))],
    ),
    "/etcdserverpb.Lease/LeaseGrant": pb.LeaseGrantResponse(header=HEADER, ID=9),
    "/etcdserverpb.Lease/LeaseRevoke": pb.LeaseRevokeResponse(header=HEADER),
    "/etcdserverpb.Maintenance/Status": pb.StatusResponse(),
}
CHANGE = pb.Event(type=pb.Event.PUT, kv=pb.KeyValue(key=KEY, value=b"8", mod_revision=8, create_revision=3))
WATCH = pb.WatchResponse(header=HEADER, events=[CHANGE])


def spoilt(message: Message, rng: Random) -> bytes:
    """The answer with fields of boundary values, repeated or left out, or with its bytes changed, cut or
    replaced."""
    what = rng.random()
    if what < 0.5:
        copy = type(message)()
        copy.CopyFrom(message)
        for _ in range(rng.randint(1, 3)):
            _change(copy, rng)
        return copy.SerializeToString()
    data = bytearray(message.SerializeToString())
    if what < 0.7:
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    elif what < 0.85:
        del data[rng.randrange(len(data)) :]
    else:
        data[:] = rng.choice((b"\xff" * 20, b"", b"<html>", b"\x0a\xff\xff\xff\xff\x7f", rng.randbytes(50)))
    return bytes(data)


def _change(message: Message, rng: Random) -> None:
    while True:
        field = rng.choice(message.DESCRIPTOR.fields)
        value: Any = getattr(message, field.name)
        if field.is_repeated:
            if not len(value) or rng.random() < 0.4:
                del value[:]
                return
            if rng.random() < 0.3:
                value.extend([value[0]])
                return
            if field.message_type is not None:
                message = value[0]
                continue
            return
        if field.message_type is not None:
            if rng.random() < 0.2:
                message.ClearField(field.name)
                return
            message = value
            continue
        if isinstance(value, bool):
            setattr(message, field.name, not value)
        elif isinstance(value, int):
            numbers = (
                [n for n in INTEGERS if -(1 << 31) <= n < 1 << 31]
                if field.enum_type is not None
                else INTEGERS
            )
            low, high = (0, 1 << 64) if field.cpp_type == field.CPPTYPE_UINT64 else (-(1 << 63), 1 << 63)
            setattr(message, field.name, rng.choice([n for n in numbers if low <= n < high]))
        elif isinstance(value, bytes):
            setattr(message, field.name, rng.choice((b"", b"\xff\xfe", b"/hams/v1/", KEY + b"x")))
        else:
            setattr(message, field.name, rng.choice(("", "etcdserver: no leader", "x" * 300)))
        return


class FakeEtcd(grpc.GenericRpcHandler):
    """Answers each method with whatever bytes the case wants."""

    def __init__(self) -> None:
        self.answer: Callable[[str], bytes] = lambda method: GOOD[method].SerializeToString()
        self.watches: list[bytes] = []

    def service(self, details: Any) -> Any:
        method = details.method
        if method == "/etcdserverpb.Watch/Watch":
            return grpc.stream_stream_rpc_method_handler(self._watch)
        if method in GOOD:

            async def unary(request: bytes, context: Any) -> bytes:
                return self.answer(method)

            return grpc.unary_unary_rpc_method_handler(unary)
        return None

    async def _watch(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for _ in requests:
            yield pb.WatchResponse(header=HEADER, created=True).SerializeToString()
            break
        yield self.watches.pop(0) if self.watches else WATCH.SerializeToString()
        await asyncio.Event().wait()


@pytest.fixture
async def etcd() -> AsyncIterator[tuple[FakeEtcd, EtcdCoordination]]:
    fake = FakeEtcd()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((fake,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = EtcdCoordination(f"127.0.0.1:{port}", call_s=0.02)
    try:
        yield fake, client
    finally:
        await client.close()
        await server.stop(None)


@pytest.mark.timeout(3600)
async def test_a_spoilt_answer_is_an_answer_or_a_typed_error(etcd: tuple[FakeEtcd, EtcdCoordination]) -> None:
    fake, client = etcd
    calls: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: client.get("/hams/v1/g/topology"),
        lambda: client.get_prefix("/hams/v1/g/"),
        lambda: client.transact((Compare("/hams/v1/g/topology", 5),), (Write("/hams/v1/g/topology", b"x"),)),
        lambda: client.grant(2),
        lambda: client.revoke(9),
    )
    for seed in cases(300):
        rng = Random(seed)
        fake.answer = lambda method, rng=rng: spoilt(GOOD[method], rng)  # type: ignore[misc]
        try:
            await rng.choice(calls)()
        except CoordinationError:
            pass


async def test_a_grant_without_a_lease_is_no_grant(etcd: tuple[FakeEtcd, EtcdCoordination]) -> None:
    fake, client = etcd
    fake.answer = lambda method: pb.LeaseGrantResponse(header=HEADER, ID=0).SerializeToString()
    with pytest.raises(CoordinationError, match="does not give"):
        await client.grant(2)


@pytest.mark.timeout(3600)
async def test_a_watch_goes_on_after_a_spoilt_answer(etcd: tuple[FakeEtcd, EtcdCoordination]) -> None:
    """Of the stream, and of the reading with which the watch makes sure of its history. The next good change
    arrives."""
    fake, client = etcd
    for seed in range(min(len(cases(20)), 200)):
        rng = Random(seed)
        fake.answer = lambda method: GOOD[method].SerializeToString()
        entries = await client.get_prefix("/hams/v1/g/")
        fake.watches = [rng.choice((b"\xff" * 9, b"<html>", WATCH.SerializeToString()[:-3]))]
        spoil = iter((b"\xff" * 9, b"<html>"))
        good = GOOD["/etcdserverpb.KV/Range"].SerializeToString()
        fake.answer = lambda method, spoil=spoil, good=good: next(spoil, good)  # type: ignore[misc]
        async with client.watch("/hams/v1/g/", entries) as watch:
            event = await anext(watch)
            assert isinstance(event, Put)
            assert event.entry.value == b"8"
