"""What the peer stream costs: against raw blocking sockets, in the same run, between two processes on one machine.

    hams bench stream [--short] [--unix] [--out FILE.json]

Measured: one way of a token (4 KiB, 1 MiB), sender's `send` to receiver's callback, one at a time; processor time of both processes
per token, one at a time and in a stream; a state record of 100 MB as a fraction of what blocking sockets with preallocated
memory move; and how long a notice takes to overtake such a record. Prints one JSON object.
"""

import argparse
import asyncio
import json
import multiprocessing
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.chain import machine
from hams_protocol.deps import Dep
from hams_protocol.ids import RequestId
from hams_protocol.messages import Deliver, Durable, Kind, Message, Meta, Payload, Probe, StateRecord, Suspect, Token
from hams_sidecar.arena import Arena, Buffer
from hams_sidecar.limits import unmap_bytes_min
from hams_sidecar.payload import Payload as ArenaPayload
from hams_sidecar.payload import Tensor
from hams_wire.peers.network import PeerNetwork
from hams_wire.peers.payload import Room, TensorInfo

RECORD_BYTES = 100_000_000


class Factory:
    """Payloads in an arena, as a proxy has them."""

    def __init__(self) -> None:
        self.arena = Arena(4 * RECORD_BYTES)

    def allocate(self, nbytes: int) -> Buffer:
        """A slot."""
        return self.arena.allocate(nbytes)

    def build(self, tensors: tuple[TensorInfo, ...], room: Room) -> ArenaPayload:
        """A payload in its slot."""
        assert isinstance(room, Buffer)
        return ArenaPayload(tuple(Tensor(*tensor) for tensor in tensors), room)

    def describe(self, payload: Payload) -> tuple[Sequence[TensorInfo], memoryview]:
        """Descriptors and slot."""
        assert isinstance(payload, ArenaPayload)
        return payload.tensors, payload.buffer.view  # type: ignore[return-value] # the same fields

    def sent(self, view: memoryview) -> None:
        """As a proxy does with a large state."""
        self.arena.unmap(view, unmap_bytes_min)

    def make(self, nbytes: int) -> ArenaPayload:
        """One tensor of zeros."""
        room = self.arena.allocate(nbytes)
        room.view[:] = bytes(nbytes)
        return ArenaPayload((Tensor("x", "UINT8", (1, nbytes), 0, nbytes),), room)


def token(n: int, payload: Payload | None) -> Deliver:
    """A token as an operator of a chain sends it; its value id carries the time of sending."""
    meta = Meta((("top_k", 3),), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", 1.5, 0)
    deps = (Dep("embed", 1, n), Dep("rank", 1, n))
    return Deliver("rank", 3, Token(RequestId(0, n), (), "embed", Kind.VALUE, str(time.monotonic_ns()), deps, ("rank",), meta, (), None, payload))


# ---- the other process ----


def raw_server(pipe: Connection, family: int, directory: str) -> None:
    """Receives `size` bytes `count` times into preallocated memory and answers each with one byte."""
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0) if family == socket.AF_INET else f"{directory}/raw.sock")
    listener.listen(1)
    pipe.send(listener.getsockname())
    connection, _ = listener.accept()
    if family == socket.AF_INET:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    memory = memoryview(bytearray(RECORD_BYTES))
    memory[:] = bytes(RECORD_BYTES)
    while True:
        size, count = pipe.recv()
        if not size:
            return
        for _ in range(count):
            at = 0
            while at < size:
                at += connection.recv_into(memory[at:size])
            connection.send(b"x")


def peer_server(pipe: Connection, listen: str) -> None:
    """A peer that answers a probe with its processor time, and keeps the age of every token it gets."""
    uvloop.run(_peer_server(pipe, listen))


async def _peer_server(pipe: Connection, listen: str) -> None:
    ages: list[int] = []
    done = asyncio.Event()

    def on_message(sender: str, message: Message) -> None:
        now = time.monotonic_ns()
        match message:
            case Deliver():
                ages.append(now - int(message.token.value_id))
                if message.epoch == 3 and message.token.route == ("rank",):
                    network.send(sender, Durable(()))
            case Durable() if message.versions:
                ages.append(now - message.versions[0].seq)
            case StateRecord():
                network.send(sender, Durable(()))
            case Probe(nonce=0):
                network.send(sender, Suspect(json.dumps([time.process_time_ns(), sorted(ages)]), ""))
                ages.clear()
            case Probe():
                done.set()
            case _:
                pass

    network = PeerNetwork("b", "bench", listen, Factory(), on_message, lambda peer: None, lambda peer: None)
    await network.start()
    pipe.send(network.address)
    await done.wait()
    await network.close()


# ---- this process ----


def raw(family: int, rounds: int) -> dict[str, float]:
    """Half a round trip in microseconds; bytes per second of a record."""
    with tempfile.TemporaryDirectory() as directory:
        here, there = multiprocessing.Pipe()
        process = multiprocessing.Process(target=raw_server, args=(there, family, directory), daemon=True)
        process.start()
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.connect(here.recv())
        if family == socket.AF_INET:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found = {}
        memory = memoryview(bytearray(RECORD_BYTES))
        for name, size, count in (("4KiB", 4096, rounds), ("1MiB", 1 << 20, rounds // 5), ("record", RECORD_BYTES, 8)):
            here.send((size, count))
            times = []
            for _ in range(count):
                begin = time.perf_counter()
                connection.sendall(memory[:size])
                connection.recv(1)
                times.append(time.perf_counter() - begin)
            middle = statistics.median(times)
            if name == "record":
                found["record_GB_s"] = size / middle / 1e9
            else:
                found[f"{name}_round_trip_us"] = middle * 1e6
        here.send((0, 0))
        process.join()
        return found


async def peers(listen: str, rounds: int) -> dict[str, float]:
    """The same over two PeerNetworks."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=peer_server, args=(there, listen.replace("%", "b")), daemon=True)
    process.start()
    answers: asyncio.Queue[Message] = asyncio.Queue()
    up = asyncio.Event()
    factory = Factory()
    network = PeerNetwork(
        "a", "bench", listen.replace("%", "a"), factory, lambda _, message: answers.put_nowait(message), lambda _: up.set(), lambda _: None
    )
    await network.start()
    network.set_members({"b": here.recv()})
    await up.wait()

    async def report() -> tuple[int, list[int]]:
        network.send("b", Probe(0))
        while True:
            answer = await answers.get()
            if isinstance(answer, Suspect):
                cpu, ages = json.loads(answer.suspect)
                return cpu + time.process_time_ns(), ages

    while not answers.qsize():  # the way back may stand later
        network.send("b", Probe(0))
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.1)
    while answers.qsize():
        answers.get_nowait()

    found: dict[str, float] = {}
    for name, size, count in (("4KiB", 4096, rounds), ("1MiB", 1 << 20, rounds // 5)):
        payload = factory.make(size)
        before, after, ages = 0, 0, [0]
        for _ in range(2):  # the first round warms up
            before, _ = await report()
            for n in range(count):
                network.send("b", token(n, payload))
                await answers.get()
            after, ages = await report()
        found[f"{name}_one_way_p50_us"] = ages[len(ages) // 2] / 1e3
        found[f"{name}_one_way_p99_us"] = ages[len(ages) * 99 // 100] / 1e3
        found[f"{name}_and_answer_cpu_us"] = (after - before) / count / 1e3

    payload = factory.make(4096)
    before, _ = await report()
    count = rounds * 5
    for n in range(count):
        message = token(n, payload)
        network.send("b", Deliver("rank", 4, message.token))
        if n % 16 == 0:
            await asyncio.sleep(0)
    after, _ = await report()
    found["4KiB_stream_cpu_us"] = (after - before) / count / 1e3

    state = factory.make(RECORD_BYTES)
    times = []
    for version in range(9):
        begin = time.perf_counter()
        network.send("b", StateRecord("rank", 1, version, version - 1, (), (), "c", state))
        await answers.get()
        times.append(time.perf_counter() - begin)
    found["record_GB_s"] = RECORD_BYTES / statistics.median(times[1:]) / 1e9

    await report()
    for version in range(100, 108):
        network.send("b", StateRecord("rank", 1, version, version - 1, (), (), "c", state))
        await asyncio.sleep(0.01)
        network.send("b", Durable((Dep("rank", 1, time.monotonic_ns()),)))
        await answers.get()
    _, ages = await report()
    found["notice_past_record_p50_us"] = ages[len(ages) // 2] / 1e3
    network.send("b", Probe(1))
    await network.close(flush_s=1.0)
    process.join()
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser("hams bench stream", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--short", action="store_true", help="a tenth of the rounds")
    parser.add_argument("--unix", action="store_true", help="Unix sockets instead of TCP on loopback")
    chosen = parser.parse_args(arguments)
    multiprocessing.set_start_method("spawn", force=True)
    rounds = 300 if chosen.short else 3000
    with tempfile.TemporaryDirectory() as directory:
        listen = f"unix:{directory}/%.sock" if chosen.unix else "tcp:127.0.0.1:0"
        result: dict[str, Any] = {"bench": "stream", "machine": machine(), "links": "unix" if chosen.unix else "tcp"}
        result["raw"] = raw(socket.AF_UNIX if chosen.unix else socket.AF_INET, rounds)
        result["peers"] = uvloop.run(peers(listen, rounds))
        result["record_of_raw"] = result["peers"]["record_GB_s"] / result["raw"]["record_GB_s"]
    text = json.dumps(result, indent=1)
    if chosen.out is not None:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
