"""F36 on the peers' port of every process of a running graph: what is no frame, lies about its size or nests
deeply; and crowds of strangers."""

import asyncio
import contextlib
import random
from pathlib import Path

import pytest

from hams_protocol.messages import Durable, StateRecord
from hams_wire import limits, records
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.peers import addresses, frames, handshake
from hams_wire.peers.codec import CODES, Codec
from hams_wire.peers.frames import chunk_bytes_max
from hams_wire.peers.payload import HeapFactory, HeapPayload
from tests.faults.harness import REDUNDANT_S, SILENT, GraphRun, changed, run_graph

pytestmark = [pytest.mark.process, pytest.mark.etcd, pytest.mark.timeout(300)]

GROWTH_BYTES_MAX = 64 << 20
NOTICE = CODES[Durable][0]
RECORD = CODES[StateRecord][0]


async def peers_of(run: GraphRun) -> dict[str, tuple[str, int]]:
    """Address and process of every instance."""
    prefix = records.prefix_of(run.supervisor.uid) + "members/"
    coordination = EtcdCoordination(run.supervisor.etcd_endpoints)
    try:
        peers = {}
        for entry in (await coordination.get_prefix(prefix)).entries:
            member, record = records.decode_member(entry.key.removeprefix(prefix), entry.value)
            if record.pid:
                peers[member.instance] = (member.address, record.pid)
        return peers
    finally:
        await coordination.close()


async def everybody(run: GraphRun) -> set[str]:
    """Who is registered, once all are who run."""
    async with asyncio.timeout(REDUNDANT_S):
        while (result := await run.registered()) != {item.id for item in (await run.view()).instances}:
            await run.stalled(0.02)
        return result


def resident_bytes(pid: int) -> int:
    """Memory of a process alone: what it shares with its model is not counted."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * 4096


def attacks(rng: random.Random) -> list[bytes]:
    """What follows a correct greeting. Some of it claims sizes and then stays silent."""
    record = Codec(HeapFactory()).encode(
        StateRecord("first", 1, 10**9, 10**9 - 1, (), (), "c", HeapPayload((), memoryview(bytes(1000))))
    )
    nested = b"\x91" * 1_000_000
    return [
        rng.randbytes(100_000),
        b"GET / HTTP/1.1\r\n\r\n",
        frames.pack(NOTICE, 0, 0, limits.metadata_bytes_max, 0) + b"\x91",
        frames.pack(NOTICE, 0, 0, limits.metadata_bytes_max + 1, 0),
        frames.pack(NOTICE, 0, 0, len(nested), 0) + nested,
        frames.pack(NOTICE, 0, 0, 5, 0) + b"\xdd\xff\xff\xff\xff",
        frames.pack(NOTICE, 0, 0, 3, 0) + b"\x91",
        frames.pack(200, 0, 0, 1, 0) + b"\x90",
        frames.pack(RECORD, 1, 1, len(record.metadata), 10) + record.metadata + bytes(10),
        frames.pack(RECORD, 1, 1, len(record.metadata), 2000) + record.metadata + bytes(2000),
        frames.pack(frames.DATA, 0, 3, 0, 10) + bytes(10),
        frames.pack(RECORD, 1, 1, len(record.metadata), chunk_bytes_max + 1),
    ]


async def attack(address: str, data: bytes, within_s: float = 0.2) -> bytes:
    """Connect, say it, and wait a moment for the answer, or until the other side has hung up."""
    answer = b""
    where = addresses.parse(address)
    with contextlib.suppress(OSError, TimeoutError):
        if isinstance(where, addresses.Unix):
            reader, writer = await asyncio.open_unix_connection(where.path)
        else:
            reader, writer = await asyncio.open_connection(where.host, where.port)
        try:
            async with asyncio.timeout(within_s):
                writer.write(data)
                while part := await reader.read(65536):
                    answer += part
        finally:
            writer.transport.abort()
    return answer


async def test_f36_garbage_at_every_peer_port_changes_nothing(tmp_path: Path) -> None:
    rng = random.Random(36)
    async with run_graph("line.yaml", tmp_path, graphs=changed(tmp_path, SILENT)) as run:
        before = await everybody(run)
        peers = await peers_of(run)
        assert set(peers) == before
        async with run.load(clients=2):
            await run.answered(40)
            memory = {pid: resident_bytes(pid) for _, pid in peers.values()}
            for round_ in range(3):
                for instance, (address, _) in peers.items():
                    hello = handshake.frame(
                        handshake.Hello(
                            run.supervisor.uid, f"stranger-{round_}", instance, "unix:/nowhere", 1, 1
                        )
                    )
                    await asyncio.gather(
                        *(
                            attack(address, greeting + data)
                            for data in attacks(rng)
                            for greeting in (b"", hello)
                        )
                    )
                    assert b"found magic" in await attack(address, b"GET / HTTP/1.1\r\n\r\n", REDUNDANT_S), (
                        instance
                    )
            crowd = [attack(address, b"") for address, _ in peers.values() for _ in range(200)]
            await asyncio.gather(*crowd)
            await run.answered(40)
            growth = {pid: resident_bytes(pid) - was for pid, was in memory.items()}
            assert max(growth.values()) < GROWTH_BYTES_MAX, growth
        assert await everybody(run) == before, "nobody died, nobody was replaced"
    run.verify()
