"""A service in Ray Serve: one deployment for each operator of the graph file, and one that walks the graph.

Runs in `.venv-peers`, without anything of HAMS but the model SDK's batch: `python ray_serve.py GRAPH.yaml
PORT`. It speaks the part of the Open Inference Protocol that the client of the benchmarks sends, so that both
systems are asked the same. `GET /pids` says which process holds which operator.
"""

import asyncio
import contextlib
import importlib
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import yaml

os.environ.setdefault("RAY_SERVE_THROUGHPUT_OPTIMIZED", "1")

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import hams_sdk
from hams_sdk.batch import Unit

DTYPES = {"FP32": "<f4", "INT64": "<i8"}
NAMES = {"float32": "FP32", "int64": "INT64"}

Tensors = dict[str, Any]


class Operator:
    """One model, called with whole batches."""

    def __init__(self, operator: dict[str, Any]) -> None:
        module, _, name = operator["model"]["entrypoint"].partition(":")
        self.model = getattr(importlib.import_module(module), name)()
        self.stateful = "stateful" in operator
        self.inputs = operator["inputs"]
        self.model.initialize(operator["model"]["config"])
        self.lock = threading.Lock()

    def run(self, sources: list[str], *values: Tensors | None) -> Tensors | None:
        """The outputs, of the outputs of each of `sources`; None if an input is missing."""
        given = dict(zip(sources, values, strict=True))
        arrays = self._arrays(given)
        if arrays is None:
            return None
        rows = len(next(iter(arrays.values())))
        batch = hams_sdk.Batch(arrays, [Unit("0", 0, slice(0, rows), {})], rows)
        if not self.stateful:
            return dict(self.model.run(batch))
        with self.lock:
            return dict(self.model.run(batch, contextlib.nullcontext()))

    def _arrays(self, given: dict[str, Tensors | None]) -> Tensors | None:
        arrays: Tensors = {}
        for item in self.inputs:
            long = item if isinstance(item, dict) else {"from": item}
            source, _, tensor = long["from"].partition(".")
            value = given[source]
            if not tensor:  # edges of an Interleave: the one that has a value
                arrays |= value or {}
            elif value is None or tensor not in value:
                return None
            else:
                arrays[long.get("as", tensor)] = value[tensor]
        return arrays or None

    def pid(self) -> int:
        """The process that it is in."""
        return os.getpid()


class Graph:
    """Requests in, replies out: every operator is called once what it needs is there."""

    def __init__(self, graph: dict[str, Any], *handles: Any) -> None:
        self.spec = graph["spec"]
        self.handles = {item["name"]: it for item, it in zip(self.spec["operators"], handles, strict=True)}

    async def __call__(self, request: Request) -> Response:
        """An inference, or which process holds which operator."""
        if request.method == "GET":
            pids = await asyncio.gather(*(handle.pid.remote() for handle in self.handles.values()))
            return JSONResponse(dict(zip(self.handles, pids, strict=True)))
        try:
            outputs = await self._infer(decoded(await request.body(), request.headers))
        except Exception as error:  # noqa: BLE001 - any error of Ray is a failed request
            return JSONResponse({"error": f"{type(error).__name__}: {error}"[:300]}, 500)
        head, body = encoded(outputs)
        return Response(
            head + body,
            headers={"inference-header-content-length": str(len(head))},
            media_type="application/octet-stream",
        )

    async def _infer(self, tensors: Tensors) -> Tensors:
        made: dict[str, Any] = {"request": tensors}
        for operator in self.spec["operators"]:
            sources = list(dict.fromkeys(source_of(item) for item in operator["inputs"]))
            made[operator["name"]] = self.handles[operator["name"]].run.remote(
                sources, *(made[source] for source in sources)
            )
        outputs: Tensors = {}
        for output in self.spec["outputs"]:
            source, _, tensor = output["from"].partition(".")
            value = await made[source]
            if value is not None:
                outputs[output["name"]] = value[tensor]
        return outputs


def source_of(item: Any) -> str:
    """The operator that an input comes from, or `request`."""
    return str(item["from"] if isinstance(item, dict) else item).partition(".")[0]


def decoded(body: bytes, headers: Any) -> Tensors:
    """The tensors of a request."""
    at = int(headers["inference-header-content-length"])
    tensors: Tensors = {}
    for item in json.loads(body[:at])["inputs"]:
        end = at + item["parameters"]["binary_data_size"]
        tensors[item["name"]] = _array(item["datatype"], item["shape"], body[at:end])
        at = end
    return tensors


def _array(datatype: str, shape: list[int], data: bytes) -> np.ndarray:
    if datatype != "BYTES":
        return np.frombuffer(data, DTYPES[datatype]).reshape(shape)
    texts, at = [], 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        texts.append(data[at + 4 : end])
        at = end
    return np.array(texts, object).reshape(shape)


def encoded(outputs: Tensors) -> tuple[bytes, bytes]:
    """Head and body of a reply."""
    parts, described = [], []
    for name, array in outputs.items():
        data = np.ascontiguousarray(array).tobytes()
        parts.append(data)
        described.append(
            {
                "name": name,
                "datatype": NAMES[array.dtype.name],
                "shape": list(array.shape),
                "parameters": {"binary_data_size": len(data)},
            }
        )
    return json.dumps({"outputs": described}).encode(), b"".join(parts)


def main(file: str, port: int) -> None:
    """Serve until stdin ends."""
    graph = yaml.safe_load(Path(file).read_text())
    ray.init(
        num_cpus=64,  # a device waits without CPU, so deployments do not claim cores
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"], "OMP_NUM_THREADS": "1"}},
    )
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    handles = [
        serve.deployment(Operator, name=operator["name"])
        .options(max_ongoing_requests=100 if "stateful" not in operator else 8)
        .bind(operator)
        for operator in graph["spec"]["operators"]
    ]
    ingress = serve.deployment(Graph, name="graph").options(max_ongoing_requests=100)
    serve.run(ingress.bind(graph, *handles), name="app", route_prefix="/")
    print("ready", flush=True)
    sys.stdin.read()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
