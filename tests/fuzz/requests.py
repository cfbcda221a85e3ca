"""Hostile requests made from a graph's signature, with boundary integers in every place: JSON, binary and
gRPC, valid and nearly valid.

    python -m tests.fuzz.requests examples/chain/graph.yaml --url http://127.0.0.1:8080 --grpc 127.0.0.1:8081
    --count 100000

Runs them against a live graph (`hams up`), with a good client beside, and fails if a request of the good
client fails or waits longer than a second, if a hostile one gets a 500 that blames the endpoint or breaks its
connection, or if a process of the graph (`--pids`) ends or grows above `--rss-mib`. The graph is one that
runs: `hams up FILE --port 8080 --detach`, whose status names the processes. Short forms:
`tests/sidecar/endpoint/test_fuzz_requests.py`, and `tests/faults/test_requests.py` with real processes.
"""

import argparse
import asyncio
import json
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import httpx
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from hams_graph import load
from hams_protocol.graph import GraphData, TensorSpec
from hams_sidecar.datatypes import DATATYPES, itemsize
from hams_sidecar.endpoint import open_inference_pb2 as pb
from hams_sidecar.endpoint.connection import linger_bytes_max

BOUNDARIES = (-(2**63), -1, 0, 1, 2, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**400)
"""Every integer of a request is one of these, now and then."""

DATA_BYTES_MAX = 4096
GOOD_WAIT_S_MAX = 1.0
HOSTILE_WAIT_S_MAX = 40.0
AT_ONCE = 16

TYPED: dict[str, tuple[str, object]] = {
    "FP32": ("fp32_contents", 1.0),
    "FP64": ("fp64_contents", 1.0),
    "INT64": ("int64_contents", 1),
    "BYTES": ("bytes_contents", b"a"),
    "BOOL": ("bool_contents", True),
}
INFER = "/inference.GRPCInferenceService/ModelInfer"
TEXTS = st.one_of(
    st.sampled_from(["", "\0", "\ud7ff", "x" * 300, "NaN", "-1", "__proto__", "a\r\nb: c", "\U0001f600"]),
    st.text(max_size=20),
)
NUMBERS = st.one_of(st.sampled_from(BOUNDARIES), st.integers(-3, 70_000))
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.floats(), TEXTS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@dataclass(frozen=True)
class Hostile:
    """One request: HTTP (`body`, `headers`), or gRPC (`message`)."""

    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    message: bytes | None = None


@st.composite
def shapes(draw: st.DrawFn, spec: TensorSpec, rows: int) -> list[int]:
    """A shape that fits, now and then with a boundary in some place or other, or of another rank."""
    shape = [rows, *(draw(st.integers(0, 4)) if dim < 0 else dim for dim in spec.shape)]
    for _ in range(max(draw(st.integers(-6, 2)), 0)):
        shape[draw(st.integers(0, len(shape) - 1))] = draw(NUMBERS)
    if draw(st.integers(0, 19)) == 0:
        shape = draw(st.lists(NUMBERS, max_size=6))
    return shape


def count_of(shape: Sequence[int]) -> int:
    """Values of a shape, as many as are worth sending."""
    count = 1
    for dim in shape:
        count *= max(min(dim, DATA_BYTES_MAX), 0)
    return min(count, DATA_BYTES_MAX // 8)


@st.composite
def data(draw: st.DrawFn, datatype: str, shape: Sequence[int]) -> object:
    """Values of a shape as JSON, mostly right."""
    count = max(count_of(shape) + draw(st.sampled_from([0] * 20 + [1, -1])), 0)
    if draw(st.integers(0, 15)) == 0:
        return draw(VALUES)
    if datatype == "BYTES":
        return [draw(TEXTS)] * count
    return [draw(st.sampled_from([True, False])) if datatype == "BOOL" else draw(NUMBERS)] * count


@st.composite
def raw(draw: st.DrawFn, datatype: str, shape: Sequence[int]) -> bytes:
    """The same as bytes."""
    if datatype == "BYTES":
        element = struct.pack("<I", draw(st.sampled_from([1] * 20 + [0, 2, 2**31, 2**32 - 1]))) + b"a"
        return element * max(count_of(shape) + draw(st.sampled_from([0] * 20 + [1, -1])), 0)
    size = count_of(shape) * (itemsize(datatype) or 1)
    return bytes(max(size + draw(st.sampled_from([0] * 20 + [1, -1])), 0))


@st.composite
def over_http(draw: st.DrawFn, graph: GraphData) -> Hostile:
    """A request as JSON, some of its tensors binary."""
    inputs: list[object] = []
    behind = b""
    rows = draw(st.integers(1, 4))
    for spec in graph.inputs:
        if draw(st.integers(0, 9)) == 0:
            continue
        datatype = spec.datatype if draw(st.integers(0, 19)) else draw(st.sampled_from(sorted(DATATYPES)))
        shape = draw(shapes(spec, rows))
        tensor: dict[str, object] = {"name": spec.name, "datatype": datatype, "shape": shape}
        if draw(st.booleans()):
            content = draw(raw(datatype, shape))
            behind += content
            size = len(content) if draw(st.integers(0, 19)) else draw(NUMBERS)
            tensor["parameters"] = {"binary_data_size": size}
        else:
            tensor["data"] = draw(data(datatype, shape))
        if draw(st.integers(0, 19)) == 0:
            tensor[draw(st.sampled_from(sorted(tensor)))] = draw(VALUES)
        inputs.append(tensor)
    request: dict[str, object] = {"inputs": inputs}
    if draw(st.integers(0, 7)) == 0:
        request["parameters"] = draw(st.one_of(VALUES, st.dictionaries(TEXTS, SCALARS, max_size=3)))
    if draw(st.integers(0, 9)) == 0:
        names = st.sampled_from([output.name for output in graph.outputs])
        request["outputs"] = draw(
            st.one_of(VALUES, st.lists(st.fixed_dictionaries({"name": names | TEXTS}), max_size=3))
        )
    if draw(st.integers(0, 9)) == 0:
        request["id"] = draw(VALUES)
    head = json.dumps(request).encode()
    headers: list[tuple[str, str]] = []
    if behind or draw(st.integers(0, 3)) == 0:
        length = len(head) if draw(st.integers(0, 9)) else draw(NUMBERS)
        headers.append(("inference-header-content-length", str(length)))
    if draw(st.integers(0, 3)) == 0:
        key = draw(st.sampled_from(["k1", "k2", "x" * 257, "a\tb"]))
        headers.append(("idempotency-key", key))
    return Hostile(head + behind, tuple(headers))


@st.composite
def over_grpc(draw: st.DrawFn, graph: GraphData) -> Hostile:
    """A request as a message, its tensors raw or typed."""
    rows = draw(st.integers(1, 4))
    message = pb.ModelInferRequest(model_name=graph.name if draw(st.integers(0, 9)) else "other")
    for spec in graph.inputs:
        datatype = spec.datatype if draw(st.integers(0, 19)) else draw(st.sampled_from(sorted(DATATYPES)))
        shape = [dim for dim in draw(shapes(spec, rows)) if -(2**63) <= dim < 2**63]
        tensor = message.inputs.add(name=spec.name, datatype=datatype, shape=shape)
        if draw(st.integers(0, 3)):
            message.raw_input_contents.append(draw(raw(datatype, shape)))
        else:
            filled, value = TYPED.get(datatype, ("int_contents", 1))
            getattr(tensor.contents, filled).extend([value] * count_of(shape))
    for name in draw(st.lists(TEXTS, max_size=2)) if draw(st.integers(0, 3)) == 0 else ():
        parameter = message.parameters[name]
        kind = draw(st.integers(0, 3))
        if kind == 0:
            parameter.double_param = draw(st.floats())
        elif kind == 1:
            parameter.uint64_param = draw(st.sampled_from([0, 2**63, 2**64 - 1]))
        elif kind == 2:
            parameter.string_param = draw(TEXTS)
    if draw(st.integers(0, 9)) == 0:
        message.parameters["idempotency_key"].string_param = draw(TEXTS)
    for name in draw(st.lists(TEXTS, max_size=2)) if draw(st.integers(0, 5)) == 0 else ():
        message.outputs.add(name=name)
    content = message.SerializeToString()
    if draw(st.integers(0, 19)) == 0:
        content = content[: draw(st.integers(0, len(content)))] + draw(st.binary(max_size=4))
    return Hostile(message=content)


def hostile(graph: GraphData) -> st.SearchStrategy[Hostile]:
    """Requests over either transport."""
    return st.one_of(over_http(graph), over_grpc(graph))


def heavy(graph: GraphData, nbytes: int) -> list[Hostile]:
    """Requests of about `nbytes` that cost far more than to send them, if they are taken as they come."""
    name = graph.name
    requests: list[Hostile] = [
        Hostile(message=tag + b"\x00" + (tag + b"\x00") * (nbytes // 2))
        for tag in (b"\x2a", b"\x22", b"\x32")
    ]
    for spec in graph.inputs:
        message = pb.ModelInferRequest(model_name=name)
        shape = [1, *(max(dim, 1) for dim in spec.shape)]
        tensor = message.inputs.add(name=spec.name, datatype=spec.datatype, shape=shape)
        filled, value = TYPED.get(spec.datatype, ("int_contents", 1))
        getattr(tensor.contents, filled).extend([value] * count_of(shape))
        small = message.SerializeToString()
        requests.append(Hostile(message=small * (nbytes // len(small))))  # repeated fields add up
        contents = pb.InferTensorContents(**{filled: [value] * (nbytes // 8)})
        tensor.contents.CopyFrom(contents)
        requests.append(Hostile(message=message.SerializeToString()))
        if -1 in spec.shape:
            count = nbytes // (4 if spec.datatype == "BYTES" else 2)
            at = spec.shape.index(-1)
            wide = [1, *(count if place == at else max(dim, 1) for place, dim in enumerate(spec.shape))]
            described = {"name": spec.name, "datatype": spec.datatype, "shape": wide}
            text = b'"",' if spec.datatype == "BYTES" else b"0,"
            head = json.dumps({"inputs": [described]}).encode()
            requests.append(Hostile(head[:-3] + b',"data":[' + (text * count)[:-1] + b"]}]}"))
            if spec.datatype == "BYTES":
                sized = json.dumps({"inputs": [{**described, "parameters": {"binary_data_size": 4 * count}}]})
                headers = (("inference-header-content-length", str(len(sized))),)
                requests.append(Hostile(sized.encode() + bytes(4 * count), headers))
    full = {f"p{number}": "\x01" * 250 for number in range(63)}
    requests += [Hostile(json.dumps({**good(graph), "parameters": full}).encode())] * 64
    return requests


def generate(graph: GraphData, count: int, number: int) -> list[Hostile]:
    """So many of them; the same for the same number."""
    seen: list[Hostile] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(hostile(graph))
    def collect(request: Hostile) -> None:
        seen.append(request)

    collect()
    return seen


def good(graph: GraphData) -> dict[str, object]:
    """A request that every graph of this signature has to serve."""
    inputs = []
    for spec in graph.inputs:
        if spec.optional:
            continue
        shape = [1, *(2 if dim < 0 else dim for dim in spec.shape)]
        value: object = {"BOOL": True, "BYTES": "text"}.get(spec.datatype, 1)
        inputs.append(
            {
                "name": spec.name,
                "datatype": spec.datatype,
                "shape": shape,
                "data": [value] * count_of(shape),
            }
        )
    return {"inputs": inputs}


@dataclass
class Findings:
    """What a run has seen."""

    codes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    good: int = 0
    good_s_max: float = 0.0
    hostile_s_max: float = 0.0
    rss_mib_max: int = 0

    def __str__(self) -> str:
        codes = ", ".join(f"{code} {count}" for code, count in self.codes.most_common())
        return (
            f"{self.codes.total()} hostile requests (slowest {self.hostile_s_max:.3f} s): {codes}\n"
            f"{self.good} good ones beside them, slowest {self.good_s_max:.3f} s; largest process "
            f"{self.rss_mib_max} MiB"
        )


class Run:
    """Hostile clients and a good one against one graph."""

    def __init__(
        self, graph: GraphData, url: str, grpc_address: str, good_wait_s: float = GOOD_WAIT_S_MAX
    ) -> None:
        self._graph = graph
        self._good_wait_s = good_wait_s
        self._path = f"{url}/v2/models/{graph.name}/infer"
        self._address = grpc_address
        self.findings = Findings()

    async def send(self, requests: Sequence[Hostile]) -> None:
        """Send them all, a few at once, with a good client beside."""
        waiting = iter(requests)
        async with (
            httpx.AsyncClient(timeout=HOSTILE_WAIT_S_MAX) as http,
            grpc.aio.insecure_channel(self._address) as channel,
        ):
            beside = asyncio.create_task(self._good())
            try:
                await asyncio.gather(*(self._hostile(waiting, http, channel) for _ in range(AT_ONCE)))
            finally:
                beside.cancel()
                await asyncio.gather(beside, return_exceptions=True)

    async def _good(self) -> None:
        body = json.dumps(good(self._graph)).encode()
        async with httpx.AsyncClient(timeout=HOSTILE_WAIT_S_MAX) as http:
            while True:
                began = time.monotonic()
                try:
                    status = (await http.post(self._path, content=body)).status_code
                except httpx.HTTPError as error:
                    self.findings.wrong.append(f"a good request failed: {error!r}")
                    continue
                took_s = time.monotonic() - began
                self.findings.good += 1
                self.findings.good_s_max = max(self.findings.good_s_max, took_s)
                if status != 200:
                    self.findings.wrong.append(f"a good request got {status}")
                if took_s > self._good_wait_s:
                    self.findings.wrong.append(f"a good request waited {took_s:.3f} s")
                await asyncio.sleep(0.01)

    async def _hostile(self, waiting: "object", http: httpx.AsyncClient, channel: grpc.aio.Channel) -> None:
        call = channel.unary_unary(INFER)
        for request in waiting:  # type: ignore[attr-defined]
            began = time.monotonic()
            try:
                if request.message is None:
                    reply = await http.post(self._path, content=request.body, headers=dict(request.headers))
                    code, text = str(reply.status_code), reply.text
                else:
                    await call(request.message, timeout=HOSTILE_WAIT_S_MAX)
                    code, text = "OK", ""
            except grpc.aio.AioRpcError as error:
                code, text = error.code().name, error.details() or ""
            except httpx.HTTPError as error:
                code, text = type(error).__name__, repr(error)
                # So much of a body that is refused on the way is taken in, for its client to see that.
                if len(request.body) < linger_bytes_max:
                    self.findings.wrong.append(f"no answer ({text}) to {request!r:.500}")
            self.findings.codes[code] += 1
            self.findings.hostile_s_max = max(self.findings.hostile_s_max, time.monotonic() - began)
            if "internal error" in text or code in ("UNKNOWN", "UNAVAILABLE", "503"):
                self.findings.wrong.append(f"{code} {text[:200]} to {request!r:.500}")


def rss_mib(pid: int) -> int:
    """What a process has in memory; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) >> 10 for line in status.splitlines() if line.startswith("VmRSS")), 0)


async def run(
    graph: GraphData,
    url: str,
    grpc_address: str,
    count: int,
    first_seed: int,
    pids: Sequence[int],
    rss_mib_max: int,
    good_wait_s: float,
    say: Callable[[str], None],
    heavy_bytes: int = 0,
) -> Findings:
    """Batches of hostile requests, heavy ones among them, and a look at the processes after each."""
    made = Run(graph, url, grpc_address, good_wait_s)
    findings = made.findings
    for number in range(first_seed, first_seed + max(count // BATCH, 1)):
        requests = await asyncio.to_thread(generate, graph, min(BATCH, count), number)
        await made.send(requests + (heavy(graph, heavy_bytes) if heavy_bytes else []))
        sizes = {pid: rss_mib(pid) for pid in pids}
        findings.rss_mib_max = max(findings.rss_mib_max, *sizes.values(), 0)
        findings.wrong += [
            f"process {pid} has ended (seed {number})" for pid, size in sizes.items() if not size
        ]
        findings.wrong += [
            f"process {pid} holds {size} MiB (seed {number})"
            for pid, size in sizes.items()
            if size > rss_mib_max
        ]
        if number % 10 == 0:
            say(f"seed {number}: {findings}")
        if findings.wrong:
            break
    return findings


BATCH = 500


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 if nothing was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graph", type=Path)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--grpc", default="127.0.0.1:8081")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pids", type=int, nargs="*", default=[])
    parser.add_argument("--rss-mib", type=int, default=1024)
    parser.add_argument("--good-wait-s", type=float, default=GOOD_WAIT_S_MAX, help="more on a busy machine")
    parser.add_argument(
        "--heavy-mib", type=int, default=0, help="of the requests that cost most, in each batch"
    )
    options = parser.parse_args(arguments)
    graph = load(options.graph)
    findings = asyncio.run(
        run(
            graph.data,
            options.url,
            options.grpc,
            options.count,
            options.seed,
            options.pids,
            options.rss_mib,
            options.good_wait_s,
            lambda line: print(line, flush=True),
            options.heavy_mib << 20,
        )
    )
    print(findings)
    for line in findings.wrong[:20]:
        print(f"WRONG: {line}")
    return 1 if findings.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
