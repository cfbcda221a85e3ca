"""F36 at the ports that strangers reach: HTTP, gRPC, and the Unix sockets of models and supervisor. (The
peers' ports: test_peer_garbage.)"""

import asyncio
import contextlib
import random
import struct
from pathlib import Path

import pytest

from tests.faults.harness import SILENT, GraphRun, changed, run_graph

pytestmark = [pytest.mark.process, pytest.mark.etcd, pytest.mark.timeout(300)]

GROWTH_BYTES_MAX = 64 << 20
POST = b"POST /v2/models/line/infer HTTP/1.1\r\nhost: test\r\n"


def attacks(rng: random.Random) -> list[bytes]:
    """Garbage, truncated, oversize, with lying lengths, deeply nested: for HTTP, HTTP/2 and framed sockets
    alike."""
    nested = b"[" * 500_000
    return [
        rng.randbytes(100_000),
        b"\x00" * 100_000,
        POST + b"content-length: 99999999999999\r\n\r\n{",
        POST + b"content-length: -1\r\n\r\n",
        POST + b"content-length: 5\r\ncontent-length: 6\r\n\r\n{}",
        POST + b"transfer-encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n",
        POST + b"content-length: %d\r\n\r\n" % len(nested) + nested,
        POST + b"inference-header-content-length: 9999\r\ncontent-length: 2\r\n\r\n{}",
        POST + b"x: " + b"a" * 2_000_000,
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(50_000),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff\xff\xff\x04\x00\x00\x00\x00\x00",
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack(">I", 2**32 - 1) + rng.randbytes(1000),
        b'{"command": ' + nested + b"\n",
    ]


async def attack(address: tuple[str, int] | str, data: bytes) -> None:
    """Connect, say it, and read for a moment what is answered."""
    with contextlib.suppress(OSError, TimeoutError):
        if isinstance(address, str):
            reader, writer = await asyncio.open_unix_connection(address)
        else:
            reader, writer = await asyncio.open_connection(*address)
        try:
            async with asyncio.timeout(0.3):
                writer.write(data)
                while await reader.read(65536):
                    pass
        finally:
            writer.transport.abort()


def sockets_of(run: GraphRun) -> list[str]:
    """Every Unix socket that a process of the graph listens at."""
    folder = Path(run.supervisor.control).parent
    return [str(path) for path in folder.iterdir() if path.is_socket()]


def resident_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * 4096


async def test_f36_garbage_at_every_port_for_strangers_changes_nothing(tmp_path: Path) -> None:
    rng = random.Random(36)
    async with run_graph("line.yaml", tmp_path, graphs=changed(tmp_path, SILENT)) as run:
        http = int(run.supervisor.url.rsplit(":", 1)[1])
        grpc = int(run.supervisor.grpc.rsplit(":", 1)[1])
        view = await run.view()
        before = {item.id: (item.proxy_pid, item.model_pid) for item in view.instances}
        sockets = sockets_of(run)
        assert len(sockets) >= len([item for item in view.instances if item.operator]), sockets
        async with run.load(clients=2):
            await run.answered(40)
            memory = {pid: resident_bytes(pid) for pids in before.values() for pid in pids if pid}
            addresses: list[tuple[str, int] | str] = [("127.0.0.1", http), ("127.0.0.1", grpc), *sockets]
            for address in addresses:
                await asyncio.gather(*(attack(address, data) for data in attacks(rng)))
            await run.answered(40)
            assert {
                item.id: (item.proxy_pid, item.model_pid) for item in (await run.view()).instances
            } == before, "nobody died"
            growth = {pid: resident_bytes(pid) - was for pid, was in memory.items()}
            assert max(growth.values()) < GROWTH_BYTES_MAX, growth
    run.verify()
