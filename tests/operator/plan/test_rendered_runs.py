"""What `hams render` prints, run: each container's command as a process, as a kubelet would start it, on loopback instead of a pod network."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hams_operator.graph import load_text
from hams_operator.local.etcd import LocalEtcd
from hams_operator.plan.desired import desired
from hams_operator.plan.names import LINK_DIR, PEER_PORT, PROBE_PORT, SPEC_DIR, Place, Settings
from hams_wire.spec import encode_spec

Json = dict[str, Any]

MODEL = """
import hams_sdk, numpy as np

class Count(hams_sdk.Model):
    def initialize(self, config):
        self.seen = np.zeros(1, np.int64)
        return {"seen": self.seen}

    def run(self, batch, update):
        rows = len(batch["x"])
        with update:
            first = int(self.seen[0])
            self.seen[0] += rows
        return {"n": np.arange(first + 1, first + rows + 1, dtype=np.int64)}
"""

GRAPH = """
apiVersion: hams.dev/v1alpha1
kind: ServiceGraph
metadata: {name: counting}
spec:
  frontend: {replicas: 1, shards: 1}
  managers: {replicas: 1}
  inputs: [{name: x, datatype: INT64, shape: []}]
  outputs: [{name: n, from: count.n}]
  operators:
  - name: count
    stateful: {backups: 1}
    model: {entrypoint: "counting:Count", image: "any:1"}
    inputs: [request.x]
    outputs: [{name: n, datatype: INT64, shape: []}]
"""


class Kubelet:
    """Starts the containers of pods as processes. Pods differ in ports and folders, as they have no network and no file system of their own."""

    def __init__(self, folder: Path, objects: tuple[Json, ...]) -> None:
        self.folder = folder
        self.objects = {(item["kind"], item["metadata"]["name"]): item for item in objects}
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self.ports: dict[str, int] = {}

    async def start(self, pod: str, template: Json, number: int) -> None:
        here = self.folder / pod
        (here / "run").mkdir(parents=True)
        config = here / "config"
        config.mkdir()
        for volume in template["spec"]["volumes"]:
            if "configMap" in volume:
                for name, text in self.objects["ConfigMap", volume["configMap"]["name"]]["data"].items():
                    (config / name).write_text(text)
        self.ports[pod] = 21800 + number
        for container in [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]:
            environment = {item["name"]: item["value"] for item in container["env"] if "value" in item}
            known = environment | {"POD_NAME": pod, "POD_IP": "127.0.0.1"}
            words = [self.word(word, here, known, number) for word in (*container["command"], *container.get("args", []))]
            if words[0] == "hams-model":
                words[:1] = ["python3", "-m", "hams_sdk"]
            words[0] = sys.executable
            with (here / f"{container['name']}.log").open("wb") as log:
                self.processes[f"{pod}/{container['name']}"] = await asyncio.create_subprocess_exec(
                    *words, env={**os.environ, **environment}, stdout=log, stderr=log, start_new_session=True
                )

    def word(self, word: str, here: Path, known: dict[str, str], number: int) -> str:
        for name, value in known.items():
            word = word.replace(f"$({name})", value)
        word = word.replace(LINK_DIR, str(here / "run")).replace(SPEC_DIR, str(here / "config")).replace("/app", str(self.folder))
        word = word.replace(f"tcp:0.0.0.0:{PEER_PORT}", f"tcp:127.0.0.1:{21700 + number}")
        return {str(PROBE_PORT): str(21800 + number), "8080": "21900", "8081": "21901"}.get(word, word)

    async def ready(self, pod: str, wanted: bytes = b"200") -> None:
        """Until the pod's readiness probe says so. A probe is a question: there is nothing to wait on."""
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[pod])
                writer.write(b"GET /readyz HTTP/1.1\r\n\r\n")
                answer = await reader.read()
                writer.close()
                if answer.split(b" ")[1:2] == [wanted]:
                    return
            except OSError:
                pass
            await asyncio.sleep(0.1)

    async def metrics(self, pod: str) -> dict[str, float]:
        """What Prometheus would read."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[pod])
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        text = (await reader.read()).partition(b"\r\n\r\n")[2].decode()
        writer.close()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if not line.startswith("#")}

    async def leave(self, pod: str, hook: list[str]) -> list[int]:
        """As the kubelet ends a pod: the sidecar's preStop hook and the model's SIGTERM at once, then whoever is left."""
        here = self.folder / pod
        done = await asyncio.create_subprocess_exec(sys.executable, *(word.replace(LINK_DIR, str(here / "run")) for word in hook[1:]))
        self.processes[f"{pod}/model"].send_signal(signal.SIGTERM)
        assert await done.wait() == 0
        return [await self.processes[f"{pod}/{name}"].wait() for name in ("model", "proxy")]


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Kubelet]:
    etcd = await LocalEtcd.start(tmp_path / "etcd")
    place = Place("counting", "default")
    graph = load_text(GRAPH, uid=place.graph_uid(), on_kubernetes=True)
    objects = desired(graph, encode_spec(graph).decode(), place, Settings(etcd=etcd.endpoints))
    (tmp_path / "counting.py").write_text(MODEL)
    found = Kubelet(tmp_path, objects)
    try:
        yield found
    finally:
        for process in found.processes.values():
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        await etcd.stop()


async def ask(key: str) -> Json:
    body = json.dumps({"inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [0]}]}).encode()
    head = f"POST /v2/models/counting/infer HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {key}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", 21900)
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    found: Json = json.loads(answer.partition(b"\r\n\r\n")[2])
    return found


@pytest.mark.process
@pytest.mark.etcd
async def test_rendered_containers_are_a_graph_and_a_pod_that_ends_hands_its_role_over(kubelet: Kubelet) -> None:
    """All parts start at once, before their etcd holds a graph. Then a pod is deleted: the count goes on, without a failed request."""
    deployments = [item for (kind, _), item in kubelet.objects.items() if kind == "Deployment"]
    pods = [(f"{item['metadata']['name']}-{n}", item["spec"]["template"]) for item in deployments for n in range(item["spec"]["replicas"])]
    for number, (pod, template) in enumerate(pods):
        await kubelet.start(pod, template, number)
    async with asyncio.timeout(60):
        for pod, _ in pods:
            await kubelet.ready(pod)
    counts = [(await ask(f"a{n}"))["outputs"][0]["data"][0] for n in range(3)]
    assert counts == [1, 2, 3]
    metrics = {pod: await kubelet.metrics(pod) for pod, _ in pods if not pod.startswith("counting-frontend")}
    roles = sorted(name for found in metrics.values() for name in found if name.startswith("hams_proxy_role"))
    assert roles == ['hams_proxy_role{role="backup"}', 'hams_proxy_role{role="primary"}']
    assert {found["hams_proxy_version"] for found in metrics.values() if "hams_proxy_version" in found} == {3}
    assert [found["hams_manager_leads"] for found in metrics.values() if "hams_manager_leads" in found] == [1]
    hook = next(template for pod, template in pods if pod.startswith("counting-count"))["spec"]["initContainers"][0]["lifecycle"]["preStop"]["exec"]
    first = [pod for pod, _ in pods if pod.startswith("counting-count")]
    async with asyncio.timeout(30):
        # One of the two is the primary. It ends with a copy left behind; were it the backup, nothing would have to move.
        statuses = await kubelet.leave(first[0], hook["command"])
        assert statuses == [0, 0]
        assert (await ask("b"))["outputs"][0]["data"] == [4]
        assert (await ask("a2"))["outputs"][0]["data"] == [3]
