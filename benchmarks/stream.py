"""What the peer stream costs: against raw blocking sockets, in the same run, between two processes on one
machine.

    hams bench stream [--short] [--unix] [--out FILE.json] [--output json]

Measured: one way of a token (4 KiB, 1 MiB), sender's `send` to receiver's callback, one at a time; processor
time of both processes per token, one at a time and in a stream; a state record of 100 MB as a fraction of
what blocking sockets with preallocated memory move; and how long a notice takes to overtake such a record.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.chain import machine
from benchmarks.plots import bars
from benchmarks.report import Result, add_options, deliver
from hams_protocol.deps import Dep
from hams_protocol.ids import RequestId
from hams_protocol.messages import (
    Deliver,
    Durable,
    Kind,
    Message,
    Meta,
    Payload,
    Probe,
    StateRecord,
    Suspect,
    Token,
)
from hams_sidecar.arena import Arena
from hams_sidecar.payload import Tensor, TensorPayload
from hams_sidecar.payloads import ArenaFactory
from hams_wire.peers.network import PeerNetwork

RECORD_BYTES = 100_000_000
SIZES = {"4KiB": 4096, "1MiB": 1 << 20}
SPAWN = multiprocessing.get_context("spawn")
"""A process that inherits nothing: neither a loop nor what the other side has allocated."""


class Factory(ArenaFactory):
    """Payloads in an arena, as a proxy has them."""

    def __init__(self) -> None:
        self.arena = Arena(4 * RECORD_BYTES)
        super().__init__(self.arena)

    def make(self, nbytes: int) -> TensorPayload:
        """One tensor of zeros."""
        room = self.arena.allocate(nbytes)
        room.view[:] = bytes(nbytes)
        return TensorPayload((Tensor("x", "UINT8", (1, nbytes), 0, nbytes),), room)


def token(n: int, payload: Payload | None) -> Deliver:
    """A token as an operator of a chain sends it; its value id carries the time of sending."""
    meta = Meta((("top_k", 3),), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", 1.5, 0)
    deps = (Dep("embed", 1, n), Dep("rank", 1, n))
    return Deliver(
        "rank",
        3,
        Token(
            RequestId(0, n),
            (),
            "embed",
            Kind.VALUE,
            str(time.monotonic_ns()),
            deps,
            ("rank",),
            meta,
            (),
            None,
            payload,
        ),
    )


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
        here, there = SPAWN.Pipe()
        process = SPAWN.Process(target=raw_server, args=(there, family, directory), daemon=True)
        process.start()
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.connect(here.recv())
        if family == socket.AF_INET:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        rates = {}
        memory = memoryview(bytearray(RECORD_BYTES))
        for name, size, count in (
            ("4KiB", 4096, rounds),
            ("1MiB", 1 << 20, rounds // 5),
            ("record", RECORD_BYTES, 8),
        ):
            here.send((size, count))
            times = []
            for _ in range(count):
                begin = time.perf_counter()
                connection.sendall(memory[:size])
                connection.recv(1)
                times.append(time.perf_counter() - begin)
            middle = statistics.median(times)
            if name == "record":
                rates["record_GB_s"] = size / middle / 1e9
            else:
                rates[f"{name}_round_trip_us"] = middle * 1e6
        here.send((0, 0))
        process.join()
        return rates


class Peers:
    """Two PeerNetworks in two processes, seen from this one: what is sent to "b" is answered into
    `answers`."""

    def __init__(self, listen: str) -> None:
        self.answers: asyncio.Queue[Message] = asyncio.Queue()
        self.factory = Factory()
        self.up = asyncio.Event()
        self.network = PeerNetwork(
            "a",
            "bench",
            listen.replace("%", "a"),
            self.factory,
            lambda _, message: self.answers.put_nowait(message),
            lambda _: self.up.set(),
            lambda _: None,
        )

    async def answer(self, message: Message) -> None:
        """Send, and wait for one answer."""
        self.network.send("b", message)
        await self.answers.get()

    async def report(self) -> tuple[int, list[int]]:
        """Processor time of both processes, ns; the age of every token since the last report, ns, sorted."""
        self.network.send("b", Probe(0))
        while True:
            answer = await self.answers.get()
            if isinstance(answer, Suspect):
                cpu, ages = json.loads(answer.suspect)
                return cpu + time.process_time_ns(), ages


@contextlib.asynccontextmanager
async def connected(listen: str) -> AsyncIterator[Peers]:
    """Both networks up, both ways; `listen` has a % where each one's name belongs."""
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=peer_server, args=(there, listen.replace("%", "b")), daemon=True)
    process.start()
    both = Peers(listen)
    await both.network.start()
    both.network.set_members({"b": await asyncio.to_thread(here.recv)})
    await both.up.wait()
    while not both.answers.qsize():  # the way back may stand later
        both.network.send("b", Probe(0))
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.1)
    while both.answers.qsize():
        both.answers.get_nowait()
    try:
        yield both
    finally:
        both.network.send("b", Probe(1))
        await both.network.close(flush_s=1.0)
        await asyncio.to_thread(process.join)


async def peers(listen: str, rounds: int) -> dict[str, float]:
    """The same over two PeerNetworks."""
    async with connected(listen) as both:
        return await _measured(both, rounds)


async def record_rate(unix: bool) -> float:
    """GB/s of a state record of `RECORD_BYTES` between two processes: what a state's way to a backup costs
    here and now."""
    with tempfile.TemporaryDirectory() as directory:
        async with connected(f"unix:{directory}/%.sock" if unix else "tcp:127.0.0.1:0") as both:
            return await _record_rate(both, both.factory.make(RECORD_BYTES))


async def _record_rate(both: Peers, state: TensorPayload) -> float:
    times = []
    for version in range(9):  # the first one warms up
        begin = time.perf_counter()
        await both.answer(StateRecord("rank", 1, version, version - 1, (), (), "c", state))
        times.append(time.perf_counter() - begin)
    return RECORD_BYTES / statistics.median(times[1:]) / 1e9


async def _measured(both: Peers, rounds: int) -> dict[str, float]:
    measured: dict[str, float] = {}
    for (name, size), count in zip(SIZES.items(), (rounds, rounds // 5), strict=True):
        payload = both.factory.make(size)
        before, after, ages = 0, 0, [0]
        for _ in range(2):  # the first round warms up
            before, _ = await both.report()
            for n in range(count):
                await both.answer(token(n, payload))
            after, ages = await both.report()
        measured[f"{name}_one_way_p50_us"] = ages[len(ages) // 2] / 1e3
        measured[f"{name}_one_way_p99_us"] = ages[len(ages) * 99 // 100] / 1e3
        measured[f"{name}_and_answer_cpu_us"] = (after - before) / count / 1e3

    payload = both.factory.make(4096)
    before, _ = await both.report()
    count = rounds * 5
    for n in range(count):
        message = token(n, payload)
        both.network.send("b", Deliver("rank", 4, message.token))
        if n % 16 == 0:
            await asyncio.sleep(0)
    after, _ = await both.report()
    measured["4KiB_stream_cpu_us"] = (after - before) / count / 1e3

    state = both.factory.make(RECORD_BYTES)
    measured["record_GB_s"] = await _record_rate(both, state)

    await both.report()
    for version in range(100, 108):
        both.network.send("b", StateRecord("rank", 1, version, version - 1, (), (), "c", state))
        await asyncio.sleep(0.01)
        await both.answer(Durable((Dep("rank", 1, time.monotonic_ns()),)))
    _, ages = await both.report()
    measured["notice_past_record_p50_us"] = ages[len(ages) // 2] / 1e3
    return measured


def main(arguments: list[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser("hams bench stream", description=(__doc__ or "").split("\n")[0])
    add_options(parser)
    parser.add_argument("--short", action="store_true", help="a tenth of the rounds")
    parser.add_argument("--unix", action="store_true", help="Unix sockets instead of TCP on loopback")
    chosen = parser.parse_args(arguments)
    deliver(measure(300 if chosen.short else 3000, unix=chosen.unix), chosen, print_table, plot)
    return 0


def measure(rounds: int, *, unix: bool) -> Result:
    """Raw sockets first, then peers."""
    with tempfile.TemporaryDirectory() as directory:
        result: dict[str, Any] = {"bench": "stream", "machine": machine(), "links": "unix" if unix else "tcp"}
        result["raw"] = raw(socket.AF_UNIX if unix else socket.AF_INET, rounds)
        result["peers"] = uvloop.run(peers(f"unix:{directory}/%.sock" if unix else "tcp:127.0.0.1:0", rounds))
        result["record_of_raw"] = result["peers"]["record_GB_s"] / result["raw"]["record_GB_s"]
    return result


def one_way_us(result: Result) -> dict[str, list[float]]:
    """4 KiB and 1 MiB, one at a time, of raw sockets (half a round trip) and of peers."""
    values: dict[str, Any] = result
    return {
        "raw sockets": [values["raw"][f"{size}_round_trip_us"] / 2 for size in SIZES],
        "peers": [values["peers"][f"{size}_one_way_p50_us"] for size in SIZES],
    }


def records(result: Result) -> dict[str, float]:
    """GB/s of a state record."""
    values: dict[str, Any] = result
    return {"raw sockets": values["raw"]["record_GB_s"], "peers": values["peers"]["record_GB_s"]}


def plot(result: Result, path: Path) -> None:
    """GB/s one way for each size."""
    rates = records(result)
    groups = {
        name: [*(size / us / 1e3 for size, us in zip(SIZES.values(), times, strict=True)), rates[name]]
        for name, times in one_way_us(result).items()
    }
    bars(
        ["4 KiB", "1 MiB", "state of 100 MB"],
        groups,
        f"GB/s one way, one at a time ({result['links']})",
        path,
        logarithmic=True,
    )


def print_table(result: Result) -> None:
    """For people."""
    values: dict[str, Any] = result
    rates = records(result)
    print(f"{result['links']:12} {'4 KiB us':>9} {'1 MiB us':>9} {'record GB/s':>12}")
    for name, (small, large) in one_way_us(result).items():
        print(f"{name:12} {small:9.1f} {large:9.1f} {rates[name]:12.2f}")
    print(
        f"record of raw: {100 * values['record_of_raw']:.0f} %; a notice overtakes a record in "
        f"{values['peers']['notice_past_record_p50_us']:.0f} us"
    )
    cpu = (
        values["peers"][name]
        for name in ("4KiB_and_answer_cpu_us", "1MiB_and_answer_cpu_us", "4KiB_stream_cpu_us")
    )
    print(
        "processor time of both per token, us: 4 KiB and its answer {:.0f}, 1 MiB {:.0f}, 4 KiB in a stream "
        "{:.0f}".format(*cpu)
    )


if __name__ == "__main__":
    sys.exit(main())
