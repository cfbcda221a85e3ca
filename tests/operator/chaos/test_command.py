"""`hams chaos run` from the words typed to the exit code: an API server in memory, and an endpoint that
answers, or does not."""

import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from hams_operator.cli import chaos, cluster
from hams_operator.cli.main import app
from hams_operator.cli.output import CommandError
from hams_operator.cli.runs import Target

from ..controller.fakes import FakeKube
from .test_live import PODS, STATUS

Json = dict[str, Any]

SPEC: Json = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [2]}],
    "outputs": [{"name": "n", "from": "count.n"}],
    "operators": [
        {
            "name": "pass",
            "model": {"entrypoint": "m:P", "image": "m:1"},
            "inputs": ["request.x"],
            "outputs": [{"name": "x", "datatype": "FP32", "shape": [2]}],
        },
        {
            "name": "count",
            "stateful": {},
            "model": {"entrypoint": "m:C", "image": "m:1"},
            "inputs": ["pass.x"],
            "outputs": [{"name": "n", "datatype": "INT64", "shape": []}],
        },
    ],
}


class Endpoint(ThreadingHTTPServer):
    """Answers every key once and the same; `refuse`: every so many requests get a 500."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies: dict[str, int] = {}
        self.refuse = 0
        self.token = ""
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Endpoint

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        with self.server.lock:
            number = self.server.replies.setdefault(
                self.headers["idempotency-key"], len(self.server.replies) + 1
            )
        if self.server.token and self.headers["authorization"] != f"Bearer {self.server.token}":
            self._answer(401, b'{"error": "no token"}', 0)
            return
        if self.server.refuse and number % self.server.refuse == 0:
            self._answer(500, b'{"error": "count failed"}', 0)
            return
        data = np.array([number], "<i8").tobytes()
        output = {
            "name": "n",
            "datatype": "INT64",
            "shape": [1],
            "parameters": {"binary_data_size": len(data)},
        }
        head = json.dumps({"model_name": "g", "outputs": [output]}).encode()
        self._answer(200, head + data, len(head))

    def _answer(self, status: int, body: bytes, head: int) -> None:
        self.send_response(status)
        if head:
            self.send_header("Inference-Header-Content-Length", str(head))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    kube = FakeKube()
    metadata = {"name": "g", "namespace": "n", "generation": 2}
    kube.put(
        {
            "apiVersion": "hams.dev/v1alpha1",
            "kind": "ServiceGraph",
            "metadata": metadata,
            "spec": SPEC,
            "status": STATUS,
        }
    )
    for item in PODS:
        kube.put(item)

    @asynccontextmanager
    async def connect(target: Target) -> AsyncIterator[cluster.Cluster]:
        yield cluster.Cluster(kube, target.namespace or "default")  # type: ignore[arg-type]

    monkeypatch.setattr(chaos, "connect", connect)
    monkeypatch.setattr(chaos, "chaos_settle_s", 0.05)
    return kube


def run(endpoint: Endpoint, *words: str) -> tuple[int, Json]:
    url = f"http://127.0.0.1:{endpoint.server_address[1]}"
    common = [
        "chaos",
        "run",
        "--graph",
        "g",
        "--namespace",
        "n",
        "--url",
        url,
        "--rate",
        "200",
        "--output",
        "json",
    ]
    done = CliRunner().invoke(app, [*common, *words])
    if isinstance(done.exception, CommandError):
        return done.exception.code, {"said": str(done.exception)}
    return done.exit_code, json.loads(done.output)


def test_a_run_without_a_failed_request_ends_with_0_and_tells_what_was_done(
    kube: FakeKube, endpoint: Endpoint
) -> None:
    code, report = run(endpoint, "--scenario", "F11/controllers")
    assert code == 0, report
    assert [fault["what"] for fault in report["faults"]] == [
        "delete the controllers",
        "force delete the controllers",
    ]
    assert report["requests"] == report["answered"] >= 100
    assert (report["failed"], report["wrong"], report["availability"], report["error"]) == (0, [], 1.0, "")


def test_one_failed_request_is_enough_for_exit_code_1(kube: FakeKube, endpoint: Endpoint) -> None:
    endpoint.refuse = 40
    code, report = run(endpoint, "--scenario", "F11/controllers")
    assert code == 1
    assert report["failed"] >= 1
    assert report["failures"]["500: count failed"] >= 1
    assert report["availability"] < 1


def test_a_scenario_that_cannot_be_done_is_a_failure_though_all_were_answered(
    kube: FakeKube, endpoint: Endpoint
) -> None:
    code, report = run(endpoint, "--scenario", "F33", "--allow-state-loss", "--operator", "pass")
    assert code == 1
    assert "pass keeps no state" in report["error"]
    assert report["failed"] == 0


def test_a_scenario_that_did_nothing_is_no_success(kube: FakeKube, endpoint: Endpoint) -> None:
    for item in PODS:
        kube.items.pop(("Pod", "n", item["metadata"]["name"]))
    status = {
        **STATUS,
        "operators": [
            {"name": "pass", "active": [], "epoch": 1},
            {"name": "count", "inSync": [], "epoch": 3},
        ],
    }
    kube.put({**kube.items["ServiceGraph", "n", "g"], "status": status})
    code, report = run(endpoint, "--scenario", "F14", "--duration", "100ms", "--every", "50ms")
    assert code == 1
    assert report["error"] == "nothing was done to the graph: no pod of it could be spared"
    assert (report["failed"], report["faults"]) == (0, [])


def test_requests_bear_a_token_where_one_is_given(kube: FakeKube, endpoint: Endpoint) -> None:
    endpoint.token = "s3cret"
    assert run(endpoint, "--scenario", "F11/controllers", "--token", "s3cret")[0] == 0
    code, report = run(endpoint, "--scenario", "F34")
    assert (code, report["answered"]) == (1, 0)
    assert report["failures"] == {"401: no token": report["failed"]}
    assert report["faults"][0]["gapMs"] > 0, "no reply is no calm"


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--times", "0"], "--times"), (["--rate", "0"], "--rate"), (["--token", "a b"], "--token")],
)
def test_a_wrong_call_ends_with_2_and_does_nothing(
    kube: FakeKube, endpoint: Endpoint, words: list[str], said: str
) -> None:
    code, report = run(endpoint, "--scenario", "F11", *words)
    assert (code, report["said"].partition(":")[0]) == (2, said)
    assert kube.graces == {}


def test_what_may_lose_a_state_is_asked_for_twice(kube: FakeKube, endpoint: Endpoint) -> None:
    code, report = run(endpoint, "--scenario", "F13")
    assert code == 2
    assert "--allow-state-loss" in report["said"]
    assert kube.graces == {}, "nothing was deleted"


def test_the_catalogue_is_printed() -> None:
    shown = CliRunner().invoke(app, ["chaos", "list", "--output", "json"])
    assert {"F11", "F12", "F13", "F14", "F15", "F27", "F30", "F31", "F33", "F34"} == {
        item["id"] for item in json.loads(shown.output)
    }
