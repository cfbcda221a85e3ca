"""Connections under a limit of open files."""

import asyncio
import resource
import sys

import pytest

from hams_sidecar.endpoint.descriptors import (
    ConnectionBounds,
    bounds_within,
    connections_max,
    grpc_connections_max,
    refused_connections_max,
)


@pytest.mark.parametrize("files", [64, 1024, 4096, 20_000])
def test_connections_of_all_kinds_leave_a_quarter_of_the_files(files: int) -> None:
    bounds = bounds_within(files)
    assert min(bounds.http, bounds.grpc, bounds.refused) > 0
    assert bounds.http + bounds.grpc + bounds.refused <= files * 3 / 4


@pytest.mark.parametrize("files", [None, 1 << 20])
def test_where_files_are_plenty_the_bounds_are_their_own(files: int | None) -> None:
    assert bounds_within(files) == ConnectionBounds(
        connections_max, grpc_connections_max, refused_connections_max
    )


@pytest.fixture
def scarce_files():
    """A limit of open files that a client could use up."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


FLOOD = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
held = [socket.create_connection((sys.argv[1], int(sys.argv[2]))) for _ in range(400)]
print(flush=True)
sys.stdin.read()
"""


async def test_F38_idle_connections_over_grpc_leave_files_for_others(scarce_files, serve) -> None:
    running = await serve()
    pipe = asyncio.subprocess.PIPE
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FLOOD, *running.grpc.split(":"), stdin=pipe, stdout=pipe
    )
    assert await client.stdout.readline() == b"\n"
    raw = await running.connect()
    await raw.send(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await raw.answer())[0] == 200
    client.stdin.close()
    assert await client.wait() == 0
