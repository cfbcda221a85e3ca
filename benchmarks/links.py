"""What certificates cost on a link between two parts of a graph: processor time and time per message, in the
clear and with mutual TLS.

Two processes on loopback, messages one after another in both directions, as between two proxies under little
load; and how long a connection takes to be made. `hams bench links [--seconds S] [--out FILE.json]`.
"""

import argparse
import asyncio
import datetime
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.report import out_file, seconds
from hams_operator.controller.certificates import Subject, fresh_authority, issue
from hams_protocol.ids import InstanceId, RequestId
from hams_protocol.messages import Deliver, Heartbeat, Kind, Message, Meta, Token
from hams_wire import tls
from hams_wire.peers.network import PeerNetwork
from hams_wire.peers.payload import HeapFactory, HeapPayload, TensorInfo

SIZES = (0, 4096, 1 << 20)


def main(arguments: list[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser("hams bench links", description=__doc__)
    parser.add_argument("--out", type=out_file, default=None)
    parser.add_argument("--seconds", type=seconds, default=3.0, help="per cell")
    parser.add_argument(
        "--echo", nargs="?", type=Path, const=None, default=False, metavar="DIR", help="be the other end"
    )
    options = parser.parse_args(arguments)
    if options.echo is not False:
        uvloop.run(echo(options.echo))
        return 0
    from benchmarks.chain import machine  # noqa: PLC0415 - brings a whole graph along

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        certified(Path(folder))
        for nbytes in SIZES:
            for secured in (False, True):
                rows.append(
                    {
                        "bytes": nbytes,
                        "tls": secured,
                        **cell(nbytes, Path(folder) if secured else None, options.seconds),
                    }
                )
    result = {"bench": "links", "machine": machine(), "rows": rows}
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.stdout.write(
        "| bytes | | CPU of both ends per message, us | there and back, p50 us | connection made, ms |\n| "
        "--- | --- | --- | --- | --- |\n"
    )
    for row in rows:
        name = "mutual TLS" if row["tls"] else "in the clear"
        sys.stdout.write(
            f"| {row['bytes']} | {name} | {row['cpu_us']:.0f} | {row['round_trip_us']:.0f} | "
            f"{row['connect_ms']:.1f} |\n"
        )
    return 0


def certified(folder: Path) -> None:
    """What the pods of a graph mount."""
    now = datetime.datetime.now(datetime.UTC)
    authority = fresh_authority("bench", now, 1)
    certificate, key = issue(authority, Subject(uris=("spiffe://hams/bench/links",)), now, 1)
    for name, data in (
        (tls.CERTIFICATE, certificate),
        (tls.KEY, key),
        (tls.AUTHORITY, authority.certificate),
        (tls.IDENTITY, b"spiffe://hams/bench/links"),
    ):
        (folder / name).write_bytes(data)


def cell(nbytes: int, folder: Path | None, seconds: float) -> dict[str, float]:
    """One size, in the clear or not. The other end is a process of its own, which ends when its standard
    input does."""
    words = [sys.executable, "-m", "benchmarks.links", "--echo", *([str(folder)] if folder else [])]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        measured = uvloop.run(ask(nbytes, folder, seconds, other.stdout.readline().strip(), other.pid))
        other.stdin.close()
    return measured


class End:
    """One end of the link."""

    def __init__(self, name: InstanceId, folder: Path | None) -> None:
        certificates = None if folder is None else tls.Certificates(folder)
        self.up = asyncio.Event()
        self.got: asyncio.Queue[Message] = asyncio.Queue()
        self.answer = False
        self.network = PeerNetwork(
            name,
            "g",
            "tcp:127.0.0.1:0",
            HeapFactory(),
            self._message,
            lambda _: self.up.set(),
            lambda _: None,
            tls=certificates,
        )

    def _message(self, sender: InstanceId, message: Message) -> None:
        if self.answer:
            self.network.send(sender, message)
        else:
            self.got.put_nowait(message)


async def echo(folder: Path | None) -> None:
    """Send back what comes."""
    end = End("echo", folder)
    end.answer = True
    await end.network.start()
    sys.stdout.write(end.network.address + "\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await end.network.close()


async def ask(nbytes: int, folder: Path | None, seconds: float, address: str, other: int) -> dict[str, float]:
    """Send and wait, again and again."""
    end = End("ask", folder)
    await end.network.start()
    began = time.perf_counter()
    end.network.set_members({"echo": address})
    await end.up.wait()
    connected = time.perf_counter() - began
    payload: Any = None
    if nbytes:
        payload = HeapPayload(
            (TensorInfo("x", "UINT8", (1, nbytes), 0, nbytes),), memoryview(bytearray(nbytes))
        )
    while True:  # until the other end has dialled back
        end.network.send("echo", Heartbeat(1))
        try:
            async with asyncio.timeout(0.1):
                await end.got.get()
                break
        except TimeoutError:
            continue
    trips: list[float] = []
    number = 0
    before, deadline = _cpu_s(other), time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        number += 1
        message = Deliver(
            "b",
            1,
            Token(
                RequestId(0, number), (), "a", Kind.VALUE, f"v{number}", (), ("b",), Meta(), payload=payload
            ),
        )
        at = time.perf_counter()
        end.network.send("echo", message)
        await end.got.get()
        trips.append(time.perf_counter() - at)
    spent = _cpu_s(other) - before
    await end.network.close()
    return {
        "cpu_us": 1e6 * spent / (2 * number),
        "round_trip_us": 1e6 * sorted(trips)[len(trips) // 2],
        "connect_ms": 1e3 * connected,
    }


def _cpu_s(other: int) -> float:
    """Of this process and the other one, so far."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    fields = Path(f"/proc/{other}/stat").read_text().rpartition(")")[2].split()
    return own.ru_utime + own.ru_stime + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
