"""What the endpoint costs: the floor (a FastAPI route that gives the body back) against the inference
endpoint over a port that does nothing.

Each server runs in a process of its own, the load comes from here: keep-alive connections, each with one
request open (a closed loop), over the loopback. `python benchmarks/endpoint.py [--seconds S] [--out
FILE.json]`; `--profile` prints where the endpoint's process spends its time.
"""

import argparse
import asyncio
import cProfile
import json
import os
import platform
import pstats
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import cast

import grpc
import uvicorn
import uvloop
from fastapi import FastAPI, Request, Response

from hams_protocol import graph as g
from hams_sidecar.endpoint import Address, Endpoint
from hams_sidecar.endpoint import open_inference_pb2 as pb
from hams_sidecar.inference import Done, InferencePort, InferenceRequest, Reply
from hams_sidecar.metrics import Metrics

SIZES_BYTES = (4096, 1 << 20)
CLIENTS = (1, 8)
SERVERS = ("fastapi", "endpoint", "endpoint-grpc")


class Connection(asyncio.Protocol):
    """One client: sends its request again as soon as the reply is complete, and notes how long each took,
    seconds."""

    def __init__(self, request: list[bytes]) -> None:
        self.request = request
        self.took: list[float] = []
        self.head = b""
        self.left = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.send()

    def send(self) -> None:
        self.head, self.left = b"", -1
        self.began = time.perf_counter()
        for part in self.request:
            self.transport.write(part)

    def data_received(self, data: bytes) -> None:
        if self.left < 0:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self.head[:end].lower()
            if not head.startswith(b"http/1.1 200"):
                raise RuntimeError(f"expected 200, got {self.head[:300]!r}")
            length = int(head.split(b"\r\ncontent-length:", 1)[1].split(b"\r\n", 1)[0])
            self.left = length - (len(self.head) - end - 4)
        else:
            self.left -= len(data)
        if self.left == 0:
            self.took.append(time.perf_counter() - self.began)
            self.send()


def request_for(server: str, size: int) -> list[bytes]:
    """The HTTP request: the bare bytes for the floor, one FP32 tensor in the binary extension for the
    endpoint."""
    body = bytes(size)
    if server == "fastapi":
        path, head, extra = "/infer", b"", ""
    else:
        path = "/v2/models/bench/infer"
        tensor = {
            "name": "x",
            "datatype": "FP32",
            "shape": [1, size // 4],
            "parameters": {"binary_data_size": size},
        }
        head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        extra = f"inference-header-content-length: {len(head)}\r\n"
    lines = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: "
        f"application/octet-stream\r\n{extra}content-length: {len(head) + size}\r\n\r\n"
    )
    return [lines.encode() + head, body]


async def measure_http(port: int, server: str, size: int, clients: int, seconds: float) -> list[float]:
    """Seconds of each request, the first ones included."""
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda: Connection(request_for(server, size)), "127.0.0.1", port)
        for _ in range(clients)
    ]
    await asyncio.sleep(seconds)
    took = [took for _, client in made for took in client.took]
    for transport, _ in made:
        transport.abort()
    return took


async def measure_grpc(port: int, size: int, clients: int, seconds: float) -> list[float]:
    """As `measure_http`, over gRPC: every client has a channel of its own."""
    message = pb.ModelInferRequest(model_name="bench", raw_input_contents=[bytes(size)])
    message.inputs.add(name="x", datatype="FP32", shape=[1, size // 4])
    request = message.SerializeToString()
    took: list[float] = []
    until = time.perf_counter() + seconds

    async def client() -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", bytes, bytes)
            while (began := time.perf_counter()) < until:
                await call(request)
                took.append(time.perf_counter() - began)

    await asyncio.gather(*(client() for _ in range(clients)))
    return took


class Nothing(InferencePort):
    """A graph that gives its input back, and has no room for large bodies."""

    def submit(self, request: InferenceRequest, done: Done) -> Callable[[], object]:
        done(Reply(request.tensors))
        return lambda: None

    def room(self, nbytes: int, first: int) -> memoryview | None:
        return None

    def ready(self) -> bool:
        return True

    def live(self) -> bool:
        return True


async def serve(server: str, ready: int, profile: bool) -> None:
    """The server process: prints nothing, writes its port to the descriptor `ready`, and goes on until
    SIGTERM."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    profiler = cProfile.Profile()
    if server == "fastapi":
        await serve_floor(ready, stopped)
        return
    endpoint = Endpoint(Nothing(), bench_graph(), Metrics("frontend"), Address("127.0.0.1", 0, 0))
    await endpoint.start()
    os.write(
        ready,
        str(endpoint.address.grpc_port if server == "endpoint-grpc" else endpoint.address.http_port).encode(),
    )
    if profile:
        profiler.enable()
    await stopped.wait()
    if profile:
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(32)
    await endpoint.stop()


def bench_graph() -> g.GraphData:
    """One operator with one FP32 vector of any length in and out."""
    spec = g.TensorSpec("x", "FP32", (-1,))
    operator = g.Operator(
        "echo",
        g.Join.COMBINE,
        (g.Edge(g.FRONTEND, "echo", ()),),
        (g.FRONTEND,),
        ((),),
        (spec,),
        g.BatchPolicy(64, 0.0),
        g.ModelSpec("none:none"),
        False,
    )
    reply = (g.ReplyTensor("x", (("echo", "x"),)),)
    return g.GraphData(
        "bench", "uid", g.Mode.NONE, g.FrontendSpec(), 1, g.RecoverySpec(), (spec,), reply, (operator,)
    )


async def serve_floor(ready: int, stopped: asyncio.Event) -> None:
    """The floor: the same uvicorn, an ordinary FastAPI route."""
    app = FastAPI()

    @app.post("/infer")
    async def infer(request: Request) -> Response:
        return Response(await request.body(), media_type="application/octet-stream")

    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(
            app, http="httptools", loop="none", access_log=False, log_level="warning", lifespan="off"
        )
    )
    serving = asyncio.create_task(server._serve([listener]))
    os.write(ready, str(listener.getsockname()[1]).encode())
    await stopped.wait()
    server.should_exit = True
    server.force_exit = True
    await serving


def cpu_s(pid: int) -> float:
    """CPU time that a process has used, user and system (proc(5), fields 14 and 15 of stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(seconds: float, profile: bool) -> dict[str, object]:
    """All measurements, as a JSON object: milliseconds and requests per second."""
    rows: list[dict[str, object]] = []
    for server in SERVERS:
        if profile and server == "fastapi":
            continue
        reader, writer = os.pipe()
        command = [
            sys.executable,
            __file__,
            "--serve",
            server,
            "--ready",
            str(writer),
            *(["--profile"] if profile else []),
        ]
        process = subprocess.Popen(command, pass_fds=[writer])
        os.close(writer)
        port = int(os.read(reader, 16))
        os.close(reader)
        try:
            for size in SIZES_BYTES:
                for clients in CLIENTS:
                    before = cpu_s(process.pid)
                    if server == "endpoint-grpc":
                        took = uvloop.run(measure_grpc(port, size, clients, seconds))
                    else:
                        took = uvloop.run(measure_http(port, server, size, clients, seconds))
                    busy_s = cpu_s(process.pid) - before
                    took.sort()
                    row = {
                        "server": server,
                        "bytes": size,
                        "clients": clients,
                        "p50_ms": round(took[len(took) // 2] * 1e3, 3),
                        "p99_ms": round(took[int(len(took) * 0.99)] * 1e3, 3),
                        "per_s": round(len(took) / seconds),
                        "server_cpu_us": round(busy_s / len(took) * 1e6),
                    }
                    said = (
                        "{server:14} {bytes:>8} B, {clients} clients: p50 {p50_ms} ms, p99 {p99_ms} ms, "
                        "{per_s}/s, {server_cpu_us} us of CPU each"
                    )
                    print(said.format(**row), file=sys.stderr)
                    rows.append(row)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
    names = ("fastapi", "uvicorn", "uvloop", "httptools", "grpcio", "msgspec")
    facts = {
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        **{name: version(name) for name in names},
    }
    return {"benchmark": "endpoint", "machine": facts, "seconds": seconds, "rows": rows}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--serve", choices=SERVERS, help=argparse.SUPPRESS)
    parser.add_argument("--ready", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        uvloop.run(serve(given.serve, given.ready, given.profile))
        return
    text = json.dumps(run(given.seconds, given.profile), indent=1)
    if given.out:
        given.out.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
