"""A stranger's first graph, written from the documentation alone: checked, run, asked by three kinds of
clients, hit, and ended.

Tokens without state, counts in a plain dict (`Opaque`), a torch module with its optimizer: the three shapes
that models come in.
"""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

pytestmark = [pytest.mark.process, pytest.mark.etcd, pytest.mark.timeout(300)]

MODELS = """
import json

import hams_sdk
import numpy as np
import torch


class Tokenizer(hams_sdk.Model):
    def run(self, batch):
        ids = np.zeros((len(batch["text"]), 4), np.int64)
        for row, text in enumerate(batch["text"]):
            for column, word in enumerate(text.decode().split()[:4]):
                ids[row, column] = sum(word.encode()) % 31 + 1
        return {"ids": ids}


class Counter(hams_sdk.Model):
    def initialize(self, config):
        self.seen = {}
        return {"seen": hams_sdk.Opaque(self.get, self.set)}

    def get(self):
        return json.dumps(self.seen).encode()

    def set(self, data):
        self.seen.clear()
        self.seen.update(json.loads(data))

    def run(self, batch, update):
        counts = np.zeros(len(batch["ids"]), np.int64)
        with update:
            for row, ids in enumerate(batch["ids"]):
                key = str(ids[0])
                counts[row] = self.seen[key] = self.seen.get(key, 0) + 1
        return {"count": counts}


class Scorer(hams_sdk.Model):
    def initialize(self, config):
        torch.manual_seed(config["seed"])
        self.net = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        return {"net": self.net, "optimizer": self.optimizer}

    def run(self, batch, update):
        scores = self.net(batch.torch("ids").float() / 31)
        loss = (scores.squeeze(1) - batch.torch("count").float()).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        with update:
            self.optimizer.step()
        return {"score": scores.detach()}
"""

GRAPH = """
apiVersion: hams.dev/v1alpha1
kind: ServiceGraph
metadata: {name: words}
spec:
  inputs: [{name: text, datatype: BYTES, shape: []}]
  outputs:
  - {name: count, from: counter.count}
  - {name: score, from: scorer.score}
  operators:
  - name: tokenizer
    model: {entrypoint: "words.models:Tokenizer"}
    inputs: [request.text]
    outputs: [{name: ids, datatype: INT64, shape: [4]}]
  - name: counter
    stateful: {}
    model: {entrypoint: "words.models:Counter"}
    inputs: [tokenizer.ids]
    outputs: [{name: count, datatype: INT64, shape: []}]
  - name: scorer
    stateful: {}
    model: {entrypoint: "words.models:Scorer", config: {seed: 7}}
    inputs: [tokenizer.ids, counter.count]
    outputs: [{name: score, datatype: FP32, shape: [1], finite: true}]
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "words"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "models.py").write_text(MODELS)
    (tmp_path / "graph.yaml").write_text(GRAPH)
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Iterator[Run]:
    """A command in the stranger's folder; whatever the test leaves running is ended."""
    environment = {**os.environ, "HAMS_HOME": str(folder / "home")}

    def command(module: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=folder,
            env=environment,
            text=True,
            capture_output=True,
            timeout=120,
            check=False,
        )

    yield command
    command("hams_operator.cli.main", "down", "--all")


def test_a_first_graph_is_checked_run_asked_hit_and_ended(run: Run, folder: Path) -> None:
    def hams(*arguments: str) -> str:
        done = run("hams_operator.cli.main", *arguments)
        assert done.returncode == 0, f"hams {arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    for name in ("Tokenizer", "Counter", "Scorer"):
        checked = run("hams_sdk", "check", f"words.models:{name}", "--graph", "graph.yaml")
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert checked.stdout.endswith("the model fits\n")
    hams("validate", "graph.yaml")
    hams("up", "graph.yaml", "--detach", "--timeout", "100s")
    status = json.loads(hams("status", "--output", "json"))

    assert _by_curl(status["url"], "hello there", "first") == 1
    http = tritonclient.http.InferenceServerClient(status["url"].removeprefix("http://"))
    grpc = tritonclient.grpc.InferenceServerClient(status["grpc"])
    assert http.is_model_ready("words")
    assert grpc.is_model_ready("words")
    once = http.infer("words", _texts(tritonclient.http), headers={"Idempotency-Key": "second"})
    assert once.as_numpy("count").tolist() == [2, 1]
    again = grpc.infer("words", _texts(tritonclient.grpc), parameters={"idempotency_key": "second"})
    assert again.as_numpy("count").tolist() == [2, 1], "the same key on another endpoint has another reply"
    assert np.array_equal(once.as_numpy("score"), again.as_numpy("score"))
    assert grpc.infer("words", _texts(tritonclient.grpc)).as_numpy("count").tolist() == [3, 2]
    http.close()
    grpc.close()

    hams("kill", "counter")
    hams("kill", "scorer", "--process", "model")
    assert _by_curl(status["url"], "hello there", "third") == 4, "the counts were forgotten"
    hams("down")
    assert run("hams_operator.cli.main", "status").returncode == 1
    assert not any((folder / "home" / "words").glob("run.json*"))


def _by_curl(url: str, text: str, key: str) -> int:
    """The count in the reply to one JSON request."""
    body = json.dumps(
        {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}]}
    ).encode()
    request = urllib.request.Request(
        f"{url}/v2/models/words/infer", body, {"Idempotency-Key": key, "Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=40) as response:
        outputs = {item["name"]: item["data"] for item in json.load(response)["outputs"]}
    assert len(outputs["score"]) == 1
    return int(outputs["count"][0])


def _texts(client: Any) -> list[Any]:
    """Two rows, one of them beyond ASCII."""
    tensor = client.InferInput("text", [2], "BYTES")
    tensor.set_data_from_numpy(np.array([b"hello there", "grüß dich".encode()], dtype=object))
    return [tensor]
