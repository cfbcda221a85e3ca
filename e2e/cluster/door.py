"""The API server on the machine's own loopback, so that one kubeconfig serves inside the nodes and outside.

It listens outside and connects inside: the socket is made first, then the process enters node 0's network. It
would keep a dead node's network alive, so it ends and starts with node 0.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from e2e.cluster import node
from e2e.cluster.layout import API_PORT, ROOT, Folders

CHUNK_BYTES = 65536


def start(folders: Folders) -> None:
    """Open the door of a running node 0."""
    pid = node.node_pid(folders, 0)
    with (folders.state / "door.log").open("ab") as log:
        words = [sys.executable, "-m", "e2e.cluster.door", str(pid)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=ROOT,
            env=environment,
        )
    child.returncode = 0  # nobody waits for it: it lives until `stop`
    node.write_pid(_file(folders), child.pid)


def stop(folders: Folders) -> None:
    """Close it, if it is open."""
    pid = node.read_pid(_file(folders))
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    _file(folders).unlink(missing_ok=True)


def _file(folders: Folders) -> Path:
    return folders.state / "door.pid"


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", API_PORT)
    except OSError:
        writer.close()
        return
    await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))


async def _forward(listener: socket.socket) -> None:
    async with await asyncio.start_server(_serve, sock=listener) as server:
        await server.serve_forever()


def main(pid: int) -> None:
    """The door's process."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", API_PORT))
    listener.listen(128)
    node.enter_network(pid)
    asyncio.run(_forward(listener))


if __name__ == "__main__":
    main(int(sys.argv[1]))
