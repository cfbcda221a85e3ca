"""What the controller applies, run: each container's command as a process, as a kubelet would start it, on
loopback instead of a pod network; in the clear, and with the certificates that the controller makes, on an
etcd that asks for users."""

import asyncio
import contextlib
import datetime
import json
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hams_graph import load_text
from hams_operator.controller.etcd_keys import EtcdKeys
from hams_operator.controller.identities import IssuedIdentities
from hams_operator.controller.options import ControllerOptions
from hams_operator.controller.secrets import data_of
from hams_operator.local.etcd import EtcdProcess, LocalEtcd, _free_ports, find_etcd
from hams_operator.plan.desired import desired
from hams_operator.plan.names import LINK_DIR, PEER_PORT, PROBE_PORT, SPEC_DIR, TLS_DIR, GraphRef, Settings
from hams_wire import records
from hams_wire.coordination import ABSENT
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.errors import AccessDenied
from hams_wire.peers import handshake
from hams_wire.process import Access
from hams_wire.spec import encode_spec

from ..controller.fakes import FakeKube

Json = dict[str, Any]

HTTP = 7900
PEERS_FROM = 7700
PROBES_FROM = 7800
"""Below every port that is drawn or handed out by a kernel: no etcd and no connection has one of them."""

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
    """Starts the containers of pods as processes. Pods differ in ports and folders, as they have no network
    and no file system of their own."""

    def __init__(self, folder: Path, objects: tuple[Json, ...], kube: FakeKube, etcd: str) -> None:
        self.folder = folder
        self.kube = kube
        self.etcd = etcd
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
        self.mount(pod)
        self.ports[pod] = PROBES_FROM + number
        for container in [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]:
            environment = {item["name"]: item["value"] for item in container["env"] if "value" in item}
            known = environment | {"POD_NAME": pod, "POD_IP": "127.0.0.1"}
            words = [
                self.argument(argument, here, known, number)
                for argument in (*container["command"], *container.get("args", []))
            ]
            if words[0] == "hams-model":
                words[:1] = ["python3", "-m", "hams_sdk"]
            words[0] = sys.executable
            with (here / f"{container['name']}.log").open("wb") as log:
                self.processes[f"{pod}/{container['name']}"] = await asyncio.create_subprocess_exec(
                    *words, env={**os.environ, **environment}, stdout=log, stderr=log, start_new_session=True
                )

    def mount(self, pod: str) -> None:
        """The graph's Secret, as it is now; each file is replaced as a whole."""
        (self.folder / pod / "tls").mkdir(exist_ok=True)
        for secret in self.kube.of("Secret"):
            if secret["metadata"]["name"] == "counting-hams-tls":
                for name, data in data_of(secret).items():
                    (self.folder / pod / "tls" / ".new").write_bytes(data)
                    os.replace(self.folder / pod / "tls" / ".new", self.folder / pod / "tls" / name)

    def probe(self, pod: str, path: str) -> bytes:
        """What the kubelet asks."""
        template = self.objects["Deployment", pod.rpartition("-")[0]]["spec"]["template"]["spec"]
        probing = next(
            item
            for item in (*template.get("initContainers", []), *template["containers"])
            if "readinessProbe" in item
        )
        headers = "".join(
            f"{item['name']}: {item['value']}\r\n"
            for item in probing["readinessProbe"]["httpGet"].get("httpHeaders", ())
        )
        return f"GET {path} HTTP/1.1\r\n{headers}\r\n".encode()

    def argument(self, argument: str, here: Path, known: dict[str, str], number: int) -> str:
        for name, value in known.items():
            argument = argument.replace(f"$({name})", value)
        argument = (
            argument.replace(LINK_DIR, str(here / "run"))
            .replace(TLS_DIR, str(here / "tls"))
            .replace(SPEC_DIR, str(here / "config"))
            .replace("/app", str(self.folder))
        )
        argument = argument.replace(f"tcp:0.0.0.0:{PEER_PORT}", f"tcp:127.0.0.1:{PEERS_FROM + number}")
        return {str(PROBE_PORT): str(PROBES_FROM + number), "8080": str(HTTP), "8081": str(HTTP + 1)}.get(
            argument, argument
        )

    async def ready(self, pod: str, wanted: bytes = b"200") -> None:
        """Until the pod's readiness probe says so. A probe is a question: there is nothing to wait on."""
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[pod])
                writer.write(self.probe(pod, "/readyz"))
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
        writer.write(self.probe(pod, "/metrics"))
        text = (await reader.read()).partition(b"\r\n\r\n")[2].decode()
        writer.close()
        return {
            line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if not line.startswith("#")
        }

    async def leave(self, pod: str, hook: list[str]) -> list[int]:
        """As the kubelet ends a pod: the sidecar's preStop hook and the model's SIGTERM at once, then whoever
        is left."""
        here = self.folder / pod
        done = await asyncio.create_subprocess_exec(
            sys.executable, *(argument.replace(LINK_DIR, str(here / "run")) for argument in hook[1:])
        )
        self.processes[f"{pod}/model"].send_signal(signal.SIGTERM)
        assert await done.wait() == 0
        return [await self.processes[f"{pod}/{name}"].wait() for name in ("model", "proxy")]


PLACE = GraphRef("counting", "default", "0a1b2c3d-0000-4000-8000-000000000001")


@dataclass
class World:
    """A graph's objects and what they need: an etcd, and with certificates who makes them, at a time of one's
    choice."""

    kubelet: Kubelet
    identities: IssuedIdentities | None = None
    keys: EtcdKeys | None = None
    ago: datetime.timedelta = datetime.timedelta(days=21)

    def now(self) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC) - self.ago


@asynccontextmanager
async def world(folder: Path, *, certified: bool) -> AsyncIterator[World]:
    kube = FakeKube()
    result = World(Kubelet(folder, (), kube, ""))
    token = ""
    async with AsyncExitStack() as stack:
        if certified:
            ports = _free_ports(1)
            etcd = f"https://localhost:{ports[0].client}"
            options = ControllerOptions(
                Settings(etcd=etcd), "controller", "hams-system", etcd_members_secret="hams-etcd-tls"
            )
            result.keys = EtcdKeys(kube, options, result.now)
            await result.keys.reconcile()
            for name, data in data_of(kube.items["Secret", "hams-system", "hams-etcd-tls"]).items():
                (folder / name).write_bytes(data)
            listen = f"https://127.0.0.1:{ports[0].client}"
            flags = [
                f"--listen-client-urls={listen}",
                f"--advertise-client-urls={listen}",
                "--client-cert-auth",
                "--enable-grpc-gateway=false",
            ]
            flags += [
                f"--cert-file={folder}/tls.crt",
                f"--key-file={folder}/tls.key",
                f"--trusted-ca-file={folder}/ca.crt",
            ]
            process = EtcdProcess(find_etcd(), folder, 0, ports, flags)
            await process.start()
            stack.push_async_callback(process.kill)
            root = EtcdCoordination(etcd, result.keys.tls)
            stack.push_async_callback(root.close)
            await root.wait_ready(10)
            result.identities = IssuedIdentities(
                kube, "hams-system", "hams-metrics", root, result.keys, result.now
            )
            token = await result.identities.ensure(PLACE)
        else:
            etcd = (await stack.enter_async_context(await LocalEtcd.start(folder / "etcd"))).endpoints
        graph = load_text(GRAPH, uid=PLACE.graph_uid(), on_kubernetes=True)
        objects = desired(
            graph, encode_spec(graph).decode(), PLACE, Settings(etcd=etcd, tls=certified), token
        )
        (folder / "counting.py").write_text(MODEL)
        result.kubelet = Kubelet(folder, objects, kube, etcd)
        try:
            yield result
        finally:
            for process in result.kubelet.processes.values():
                if process.returncode is None:
                    # a model ends with its proxy, whose turn was before
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()


async def ask(key: str) -> Json:
    body = json.dumps({"inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [0]}]}).encode()
    head = (
        f"POST /v2/models/counting/infer HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {key}\r\nContent-Length: "
        f"{len(body)}\r\nConnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", HTTP)
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    data: Json = json.loads(answer.partition(b"\r\n\r\n")[2])
    return data


@pytest.mark.process
@pytest.mark.etcd
@pytest.mark.parametrize("certified", [False, True], ids=["in the clear", "with certificates"])
async def test_rendered_containers_are_a_graph_and_a_pod_that_ends_hands_its_role_over(
    tmp_path: Path, certified: bool
) -> None:
    """All parts start at once, before their etcd holds a graph. Then a pod is deleted: the count goes on,
    without a failed request."""
    async with world(tmp_path, certified=certified) as result:
        pods = await _run_and_delete_a_pod(result.kubelet)
        if certified:
            await _strangers_are_refused(result, pods)
            await _certificates_are_replaced_under_it(result, pods)


async def _run_and_delete_a_pod(kubelet: Kubelet) -> list[str]:
    deployments = [item for (kind, _), item in kubelet.objects.items() if kind == "Deployment"]
    pods = [
        (f"{item['metadata']['name']}-{n}", item["spec"]["template"])
        for item in deployments
        for n in range(item["spec"]["replicas"])
    ]
    for number, (pod, template) in enumerate(pods):
        await kubelet.start(pod, template, number)
    async with asyncio.timeout(60):
        for pod, _ in pods:
            await kubelet.ready(pod)
    counts = [(await ask(f"a{n}"))["outputs"][0]["data"][0] for n in range(3)]
    assert counts == [1, 2, 3]
    metrics = {pod: await kubelet.metrics(pod) for pod, _ in pods if not pod.startswith("counting-frontend")}
    roles = sorted(
        name for result in metrics.values() for name in result if name.startswith("hams_proxy_role")
    )
    assert roles == ['hams_proxy_role{role="backup"}', 'hams_proxy_role{role="primary"}']
    assert {
        result["hams_proxy_version"] for result in metrics.values() if "hams_proxy_version" in result
    } == {3}
    assert [
        result["hams_manager_leads"] for result in metrics.values() if "hams_manager_leads" in result
    ] == [1]
    hook = next(template for pod, template in pods if pod.startswith("counting-count"))["spec"][
        "initContainers"
    ][0]["lifecycle"]["preStop"]["exec"]
    first = [pod for pod, _ in pods if pod.startswith("counting-count")]
    async with asyncio.timeout(30):
        # One of the two is the primary. It ends with a copy left behind; were it the backup, nothing would
        # have to move.
        statuses = await kubelet.leave(first[0], hook["command"])
        assert statuses == [0, 0]
        assert (await ask("b"))["outputs"][0]["data"] == [4]
        assert (await ask("a2"))["outputs"][0]["data"] == [3]
    return [pod for pod, _ in pods if pod != first[0]]


async def _strangers_are_refused(result: World, pods: list[str]) -> None:
    """Every port but the inference endpoint's, by who has no proof; and etcd, by who is another graph."""
    kubelet = result.kubelet
    for pod in pods:
        for port, said in (
            (kubelet.ports[pod], b"GET /metrics HTTP/1.1\r\n\r\n"),
            (kubelet.ports[pod] - 100, handshake_of(pod)),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            answer = await reader.read()
            writer.close()
            assert b"hams_" not in answer
            assert answer[:1] == b"\x15" or answer == b"" or answer.startswith(b"HTTP/1.1 401"), (
                "nothing, or an alert of TLS"
            )
    other = GraphRef("other", "default", "0a1b2c3d-0000-4000-8000-000000000002")
    assert result.identities is not None
    await result.identities.ensure(other)
    folder = kubelet.folder / "other"
    folder.mkdir()
    for name, data in data_of(kubelet.kube.items["Secret", "default", "other-hams-tls"]).items():
        (folder / name).write_bytes(data)
    access = Access(kubelet.etcd, folder)
    client = access.coordination()
    try:
        with pytest.raises(AccessDenied):
            await client.get_prefix(records.prefix_of(PLACE.graph_uid()))
        with pytest.raises(AccessDenied):
            await client.compare_and_swap(records.topology_key(PLACE.graph_uid()), ABSENT, b"")
    finally:
        await client.close()
    certificates = access.certificates()
    assert certificates is not None
    for pod in pods:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(
                "127.0.0.1", kubelet.ports[pod] - 100, ssl=certificates.client(), server_hostname="any"
            )


def handshake_of(pod: str) -> bytes:
    """The greeting of somebody who knows everything but has no certificate."""
    return handshake.frame(handshake.Hello(PLACE.graph_uid(), "spy", pod, "tcp:127.0.0.1:9", 1, 1))


async def _certificates_are_replaced_under_it(result: World, pods: list[str]) -> None:
    """They were made three weeks ago. Now there are others; who starts has these only, and is taken in by who
    has been there all the time."""
    kubelet = result.kubelet
    assert result.identities is not None
    assert result.keys is not None
    before = data_of(kubelet.kube.items["Secret", "default", "counting-hams-tls"])
    result.ago = datetime.timedelta()
    result.identities._known.clear()  # an hour has passed
    await result.identities.ensure(PLACE)
    after = data_of(kubelet.kube.items["Secret", "default", "counting-hams-tls"])
    assert {name for name in after if after[name] != before[name]} == {
        "tls.crt",
        "tls.key",
        "etcd.crt",
        "etcd.key",
    }
    for pod in pods:
        kubelet.mount(pod)
    template = kubelet.objects["Deployment", "counting-count"]["spec"]["template"]
    await kubelet.start("counting-count-9", template, 9)
    async with asyncio.timeout(30):
        await kubelet.ready("counting-count-9")  # a backup in sync: it has been dialled, and has dialled
        assert (await ask("c"))["outputs"][0]["data"] == [5]
