"""A graph's shape changes while it serves: rendered containers of both shapes as processes, an etcd, and the
controller's judgement (ADR 0018)."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from hams_graph import load_text
from hams_operator.controller.etcd_cache import EtcdCache
from hams_operator.controller.successions import advance
from hams_operator.local.etcd import LocalEtcd
from hams_operator.plan.change import inherited_states
from hams_operator.plan.desired import desired
from hams_operator.plan.names import GraphRef, Settings
from hams_protocol.graph import Graph
from hams_protocol.succession.records import Follows, Phase, Succession
from hams_sidecar.endpoint import open_inference_pb2 as pb
from hams_wire import records, succession
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.errors import CoordinationError
from hams_wire.spec import encode_spec

from ..controller.fakes import FakeKube
from .test_rendered_runs import HTTP, Kubelet

Json = dict[str, Any]

MODEL = """
import pathlib, time
import hams_sdk, numpy as np

class Count(hams_sdk.Model):
    def initialize(self, config):
        self.seen = np.zeros(1, np.int64)
        return {"seen": self.seen}

    def run(self, batch, update):
        rows = len(batch["x"])
        if batch["x"].any():
            here = pathlib.Path(__file__).parent
            (here / "asked").touch()
            while not (here / "go").exists():
                time.sleep(0.01)
        with update:
            first = int(self.seen[0])
            self.seen[0] += rows
        return {"n": np.arange(first + 1, first + rows + 1, dtype=np.int64)}

class Twice(hams_sdk.Model):
    def run(self, batch, update):
        return {"n": batch["n"], "twice": 2 * batch["n"]}

class Other(Count):
    def initialize(self, config):
        self.seen = np.zeros(3, np.int64)
        return {"seen": self.seen}
"""

ONE = """
apiVersion: hams.dev/v1alpha1
kind: ServiceGraph
metadata: {name: counting}
spec:
  frontend: {replicas: 2, shards: 2, requestTimeout: 120s}
  managers: {replicas: 1}
  inputs: [{name: x, datatype: INT64, shape: []}]
  outputs: [{name: n, from: count.n}]
  operators:
  - name: count
    stateful: {backups: 1}
    model: {entrypoint: "counting:Count", image: "any:1", warmUp: {enabled: false}}
    inputs: [request.x]
    outputs: [{name: n, datatype: INT64, shape: []}]
"""

TWO = (
    ONE.replace("from: count.n}]", "from: twice.n}, {name: twice, from: twice.twice}]").replace(
        "shards: 2", "shards: 1"
    )
    + """  - name: twice
    model: {entrypoint: "counting:Twice", image: "any:1"}
    inputs: [count.n]
    outputs: [{name: n, datatype: INT64, shape: []}, {name: twice, datatype: INT64, shape: []}]
"""
)

PLACE = GraphRef("counting", "default", "0a1b2c3d-0000-4000-8000-000000000001")


PODS = 500
"""Number of the first pod: ports are made of it."""


class Ports(Kubelet):
    """Each shape's frontends have ports of their own, shared by two of them: as a Service in front of
    each."""

    http = HTTP + 10

    def argument(self, argument: str, here: Path, known: dict[str, str], number: int) -> str:
        shape = (number - PODS) // 20
        return {"8080": str(self.http + 2 * shape), "8081": str(self.http + 1 + 2 * shape)}.get(
            argument
        ) or super().argument(argument, here, known, number)


class World:
    """Two shapes of one graph. The controller here is its judgement and its hand on etcd, without an API
    server."""

    def __init__(self, folder: Path, etcd: str, cache: EtcdCache, client: EtcdCoordination) -> None:
        self.folder = folder
        self.etcd = etcd
        self.cache = cache
        self.client = client
        self.changed = asyncio.Event()
        self.seen = asyncio.Event()
        self.shapes: list[tuple[Graph, Ports]] = []
        self.pods: dict[str, Json] = {}
        self.phases: list[Phase] = []
        self.then: dict[Phase, Callable[[], Awaitable[None]]] = {}
        self.advancing = True

    async def begin(self, text: str, follows: Graph | None = None) -> Graph:
        number = len(self.shapes)
        place = replace(PLACE, incarnation=number)
        graph = load_text(text, uid=place.graph_uid(), on_kubernetes=True)
        if follows is not None:
            await self.cache.ensure_follows(
                graph.data.uid, Follows(follows.data.uid, inherited_states(follows.data, graph.data))
            )
        objects = desired(graph, encode_spec(graph).decode(), place, Settings(etcd=self.etcd, tls=False))
        kubelet = Ports(self.folder, objects, FakeKube(), self.etcd)
        self.shapes.append((graph, kubelet))
        pod = itertools.count(PODS + 20 * number)
        for (kind, name), item in kubelet.objects.items():
            if kind == "Deployment":
                for replica in range(item["spec"]["replicas"]):
                    template = item["spec"]["template"]
                    await kubelet.start(f"{name}-{replica}", template, next(pod))
        return graph

    async def ready(self, number: int) -> None:
        _, kubelet = self.shapes[number]
        for pod in kubelet.ports:
            await kubelet.ready(pod)

    async def control(self) -> None:
        """What the controller does at each change."""
        while True:
            await self.changed.wait()
            self.changed.clear()
            self.seen.set()
            if len(self.shapes) > 1 and self.advancing:
                old, new = self.shapes[-2][0], self.shapes[-1][0]
                known = self.cache.of(new.data.uid)
                if known.follows is not None and not known.follows.done:
                    phase = await self.step(old, new)
                    if phase is not None and self.phases[-1:] != [phase]:
                        self.phases.append(phase)
                        if phase in self.then:
                            await self.then.pop(phase)()

    async def step(self, old: Graph, new: Graph) -> Phase | None:
        """The controller's next step; where its outcome is unknown, what the record says then."""
        try:
            return (await advance(self.cache, old, new, 1)).phase
        except CoordinationError:
            self.changed.set()
            entry = await self.client.get(succession.key(old.data.uid, succession.SUCCESSION))
            return None if entry is None else succession.decode_succession(entry.value).phase

    async def phase(self, uid: str, *wanted: Phase) -> Succession:
        """Until the predecessor's record says one of these."""
        while True:
            entry = await self.client.get(succession.key(uid, succession.SUCCESSION))
            if entry is not None and (decoded := succession.decode_succession(entry.value)).phase in wanted:
                return decoded
            await asyncio.sleep(0.02)

    def kill(self, number: int, pod: str, container: str) -> None:
        self.shapes[number][1].processes[f"{pod}/{container}"].send_signal(signal.SIGKILL)

    async def primary(self, uid: str, name: str) -> str:
        """The pod of the primary of a set."""
        entry = await self.client.get(records.topology_key(uid))
        assert entry is not None
        decoded = records.decode_topology(entry.value).find(name).primary
        assert decoded is not None
        return decoded.rpartition("-")[0]


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    (folder / "counting.py").write_text(MODEL)
    async with await LocalEtcd.start(folder / "etcd") as etcd:
        client = EtcdCoordination(etcd.endpoints)
        changed: list[asyncio.Event] = []
        cache = EtcdCache(client, lambda uid: [event.set() for event in changed] and None)
        result = World(folder, etcd.endpoints, cache, client)
        changed.append(result.changed)
        tasks = [asyncio.create_task(cache.run()), asyncio.create_task(result.control())]
        await cache.read.wait()
        try:
            yield result
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await client.close()
            for _, kubelet in result.shapes:
                for process in kubelet.processes.values():
                    if process.returncode is None:
                        with contextlib.suppress(ProcessLookupError):
                            os.killpg(process.pid, signal.SIGKILL)
                        await process.wait()


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    """Until something is so of which nobody tells."""
    while True:
        if await check():
            return
        await asyncio.sleep(0.02)


async def ask(key: str, port: int, value: int = 0) -> tuple[int, Json]:
    body = json.dumps(
        {"inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [value]}]}
    ).encode()
    head = (
        f"POST /v2/models/counting/infer HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {key}\r\nContent-Length: "
        f"{len(body)}\r\nConnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    data: Json = json.loads(answer.partition(b"\r\n\r\n")[2])
    return int(answer.split(b" ")[1]), data


async def ask_grpc(key: str, port: int) -> dict[str, list[int]]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        message = pb.ModelInferRequest(model_name="counting")
        message.parameters["idempotency_key"].string_param = key
        message.inputs.add(name="x", datatype="INT64", shape=[1]).contents.int64_contents.append(0)
        read = pb.ModelInferResponse.FromString
        method = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer", lambda item: item.SerializeToString(), read
        )
        answer = await method(message, timeout=60)
        return {item.name: list(item.contents.int64_contents) for item in answer.outputs}


def count_in(answer: tuple[int, Json]) -> int:
    assert answer[0] == 200, answer
    match: int = next(item for item in answer[1]["outputs"] if item["name"] == "n")["data"][0]
    return match


class Load:
    """Clients that ask one after another, at the old shape's port, until told to stop. `patient`: a
    connection that breaks is asked again, with the key: a frontend is killed."""

    def __init__(self, clients: int = 4, *, patient: bool = False) -> None:
        self.answers: dict[str, tuple[int, Json]] = {}
        self.going = True
        self.patient = patient
        self._tasks = [asyncio.create_task(self._run(number)) for number in range(clients)]

    async def _run(self, client: int) -> None:
        for number in itertools.count():
            if not self.going:
                return
            key = f"c{client}-{number}"
            while key not in self.answers:
                try:
                    self.answers[key] = await ask(key, Ports.http)
                except (OSError, ValueError):  # ValueError: no answer
                    if not self.patient:
                        raise

    async def more(self, number: int) -> None:
        """Until so many more are answered."""
        wanted = len(self.answers) + number
        while len(self.answers) < wanted:
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.02)

    async def end(self) -> list[int]:
        """The counts, in order."""
        self.going = False
        await asyncio.gather(*self._tasks)
        return sorted(count_in(answer) for answer in self.answers.values())


pytestmark = [pytest.mark.process, pytest.mark.etcd, pytest.mark.timeout(300)]


async def test_another_shape_goes_on_with_the_count_and_no_request_fails(tmp_path: Path) -> None:
    async with world(tmp_path) as result, asyncio.timeout(240):
        old = await result.begin(ONE)
        await result.ready(0)
        first = await ask("first", Ports.http)
        assert count_in(first) == 1
        load = Load()
        await load.more(50)
        await result.begin(TWO, follows=old)
        await result.phase(old.data.uid, Phase.DONE)
        await result.ready(1)
        await load.more(100)
        counts = await load.end()
        assert result.phases == [Phase.HOLD, Phase.CLOSE, Phase.DONE]
        assert counts == list(range(2, len(counts) + 2)), "each once, none twice, none left out"
        assert (await ask("first", Ports.http + 2))[1]["outputs"] == first[1]["outputs"], (
            "a key of before has its answer"
        )
        assert (await ask("first", Ports.http))[1]["outputs"] == first[1]["outputs"], (
            "also where it is passed on"
        )
        assert await ask_grpc("first", Ports.http + 1) == {"n": [1]}, "over gRPC as well"
        assert (await ask("first", Ports.http + 2, value=7))[0] == 409
        new = await ask("new", Ports.http + 2)
        assert count_in(new) == len(counts) + 2
        assert {item["name"]: item["data"] for item in new[1]["outputs"]} == {
            "n": [len(counts) + 2],
            "twice": [2 * (len(counts) + 2)],
        }
        assert await ask_grpc("newer", Ports.http + 1) == {
            "n": [len(counts) + 3],
            "twice": [2 * (len(counts) + 3)],
        }
        # to be let go, nobody being left to hand over to, would take them longer
        async with asyncio.timeout(40):
            for name in (
                "counting-frontend-0/frontend",
                "counting-count-0/proxy",
                "counting-count-1/proxy",
                "counting-manager-0/manager",
            ):
                process = result.shapes[0][1].processes[name]
                assert process.returncode is None
                process.terminate()
                assert await process.wait() == 0


@pytest.mark.by_hand
@pytest.mark.parametrize("victim", ["counting-count-0/proxy", "counting-frontend-0/frontend"])
async def test_who_is_asked_to_end_before_the_switch_does_not_wait_for_successors_after_it(
    tmp_path: Path, victim: str
) -> None:
    async with world(tmp_path) as values, asyncio.timeout(240):
        old = await values.begin(ONE)
        await values.ready(0)
        process = values.shapes[0][1].processes[victim]

        async def ask_to_end() -> None:
            process.terminate()

        load = Load(patient=True)
        await load.more(50)
        values.then[Phase.CLOSE] = ask_to_end
        await values.begin(TWO, follows=old)
        await values.phase(old.data.uid, Phase.DONE)
        async with asyncio.timeout(40):
            assert await process.wait() == 0
        await values.ready(1)
        await load.more(100)
        counts = await load.end()
        assert counts == list(range(1, len(counts) + 1))


async def test_of_a_deleted_graph_nobody_waits_for_successors(tmp_path: Path) -> None:
    """Whether a process is asked to end before it is told that the graph ends, or after."""
    async with world(tmp_path) as result, asyncio.timeout(240):
        graph = await result.begin(ONE)
        await result.ready(0)
        assert count_in(await ask("first", Ports.http)) == 1
        processes = result.shapes[0][1].processes
        primary = f"{await result.primary(graph.data.uid, 'count')}/proxy"
        (backup,) = {"counting-count-0/proxy", "counting-count-1/proxy"} - {primary}
        result.kill(0, backup.partition("/")[0], "proxy")
        processes[primary].terminate()
        assert count_in(await ask("second", Ports.http)) == 2, (
            "it serves on until somebody has its state, or its time is over"
        )
        assert processes[primary].returncode is None
        await result.cache.end_all(graph.data.uid)
        others = [
            processes[name]
            for name in (
                "counting-frontend-0/frontend",
                "counting-frontend-1/frontend",
                "counting-manager-0/manager",
            )
        ]
        async with asyncio.timeout(40):  # to hand over they have longer
            for process in others:
                process.terminate()
            assert [await process.wait() for process in (processes[primary], *others)] == [0, 0, 0, 0]
        await result.cache.end_all(graph.data.uid)
        entry = await result.client.get(succession.key(graph.data.uid, succession.ENDED))
        assert entry is not None
        assert entry.value == succession.NOBODY


async def test_a_deleted_graph_answers_what_it_has_accepted(tmp_path: Path) -> None:
    """Its frontends end first, and together: clients may wait for what is behind them, and in each other's
    shards."""
    async with world(tmp_path) as result, asyncio.timeout(240):
        graph = await result.begin(ONE)
        await result.ready(0)
        answers: list[tuple[int, Json]] = []
        many = asyncio.Event()

        async def client(number: int) -> None:
            # not accepted, or closed unread
            with contextlib.suppress(ConnectionRefusedError, ConnectionResetError, json.JSONDecodeError):
                for request in itertools.count():
                    answers.append(await ask(f"c{number}-{request}", Ports.http))
                    if len(answers) == 50:
                        many.set()

        clients = [asyncio.create_task(client(number)) for number in range(4)]
        await many.wait()
        await result.cache.end_all(graph.data.uid)
        before = len(answers)
        processes = [
            process for name, process in result.shapes[0][1].processes.items() if not name.endswith("/model")
        ]
        for process in processes:
            process.terminate()
        await asyncio.gather(*clients)
        assert len(answers) > before
        assert sorted(count_in(answer) for answer in answers) == list(range(1, len(answers) + 1))
        async with asyncio.timeout(40):
            assert [await process.wait() for process in processes] == [0] * len(processes)


async def test_of_a_deleted_graph_no_frontend_leaves_while_a_client_waits_at_another(tmp_path: Path) -> None:
    """Its request may be in a shard of the one without clients: here it is, for as good as every second
    run."""
    async with world(tmp_path) as result, asyncio.timeout(240):
        graph = await result.begin(ONE)
        await result.ready(0)
        keys = [
            next(key for key in map(str, itertools.count()) if zlib.crc32(key.encode()) % 2 == shard)
            for shard in range(2)
        ]
        waiting = [asyncio.create_task(ask(key, Ports.http, value=1)) for key in keys]
        await eventually(lambda: asyncio.to_thread((tmp_path / "asked").exists))
        await result.cache.end_all(graph.data.uid)
        processes = [
            process for name, process in result.shapes[0][1].processes.items() if not name.endswith("/model")
        ]
        for process in processes:
            process.terminate()
        drained = f"{records.prefix_of(graph.data.uid)}{records.DRAINED}"

        async def one_has_drained() -> bool:
            return bool((await result.client.get_prefix(drained)).entries)

        with contextlib.suppress(TimeoutError):  # none has, if a client waits at each
            await asyncio.wait_for(eventually(one_has_drained), 10)
        (tmp_path / "go").touch()
        assert sorted([count_in(await answer) for answer in waiting]) == [1, 2]
        async with asyncio.timeout(40):
            assert [await process.wait() for process in processes] == [0] * len(processes)


@pytest.mark.by_hand
@pytest.mark.parametrize(
    ("phase", "victim"), [(Phase.CLOSE, "count"), (Phase.HOLD, "F/0"), (Phase.CLOSE, "F/0")]
)
async def test_who_dies_in_the_shape_before_is_replaced_as_always(
    tmp_path: Path, phase: Phase, victim: str
) -> None:
    """The primary of the state that is taken over, or the owner of a shard, at each step before the
    switch."""
    async with world(tmp_path) as values, asyncio.timeout(240):
        old = await values.begin(ONE)
        await values.ready(0)
        load = Load(patient=True)
        await load.more(50)

        async def kill() -> None:
            pod = await values.primary(old.data.uid, victim)
            values.kill(0, pod, "frontend" if victim == "F/0" else "proxy")

        values.then[phase] = kill
        await values.begin(TWO, follows=old)
        await values.phase(old.data.uid, Phase.DONE)
        await values.ready(1)
        await load.more(100)
        counts = await load.end()
        assert counts == list(range(1, len(counts) + 1))
        assert not values.then


async def test_the_new_primary_dies_before_the_switch_and_its_backup_has_the_state(tmp_path: Path) -> None:
    async with world(tmp_path) as values, asyncio.timeout(240):
        old = await values.begin(ONE)
        await values.ready(0)
        load = Load()
        await load.more(50)

        async def pause() -> None:
            values.advancing = False

        values.then[Phase.CLOSE] = pause
        new = await values.begin(TWO, follows=old)
        await values.phase(old.data.uid, Phase.CLOSE)
        while not values.cache.of(new.data.uid).topology.find("count").in_sync:
            await values.seen.wait()
            values.seen.clear()
        pod = await values.primary(new.data.uid, "count")
        values.kill(1, pod, "proxy")
        kubelet = values.shapes[1][1]
        template = kubelet.objects["Deployment", "counting-count-r1"]["spec"]["template"]
        await kubelet.start("counting-count-r1-9", template, PODS + 39)
        values.advancing = True
        values.changed.set()
        await values.phase(old.data.uid, Phase.DONE)
        await load.more(100)
        counts = await load.end()
        assert counts == list(range(1, len(counts) + 1))


async def test_without_a_controller_the_frontends_take_it_back_and_go_on(tmp_path: Path) -> None:
    """The controller is gone after its first step. Nobody has to be asked: requests wait for half of their
    time, and then are served."""
    async with world(tmp_path) as values, asyncio.timeout(240):
        old = await values.begin(ONE.replace("120s", "20s"))
        await values.ready(0)
        load = Load()
        await load.more(50)

        async def pause() -> None:
            values.advancing = False

        values.then[Phase.HOLD] = pause
        new = await values.begin(TWO, follows=old)
        record = await values.phase(old.data.uid, Phase.BACK)
        assert record.to == new.data.uid
        assert "half of the time" in record.why
        await load.more(100)
        values.advancing = True
        values.changed.set()
        await load.more(50)
        counts = await load.end()
        assert counts == list(range(1, len(counts) + 1))
        assert values.phases == [Phase.HOLD], "it is not gone on with"
        status, answer = await ask("new", Ports.http + 2)
        assert (status, "the shape before this one serves" in answer["error"]) == (503, True)


@pytest.mark.by_hand
async def test_a_model_that_cannot_take_the_state_is_told_of_and_the_old_shape_goes_on(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as result, asyncio.timeout(240):
        old = await result.begin(ONE)
        await result.ready(0)
        load = Load()
        await load.more(50)
        await result.begin(TWO.replace("counting:Count", "counting:Other"), follows=old)
        record = await result.phase(old.data.uid, Phase.BACK)
        assert record.hopeless
        assert "layout" in record.why
        await load.more(100)
        counts = await load.end()
        assert counts == list(range(1, len(counts) + 1))


async def test_after_the_switch_the_old_shape_passes_on_and_a_third_one_knows_the_keys_of_the_first(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as result, asyncio.timeout(240):
        old = await result.begin(ONE)
        await result.ready(0)
        first = await ask("first", Ports.http)
        new = await result.begin(TWO, follows=old)
        await result.phase(old.data.uid, Phase.DONE)
        await result.ready(1)
        second = await ask("second", Ports.http)
        assert count_in(second) == 2
        for pod in ("counting-count-0", "counting-count-1"):
            result.kill(0, pod, "proxy")
        result.kill(0, "counting-frontend-0", "frontend")
        load = Load(patient=True)
        await load.more(50)
        third = await result.begin(ONE, follows=new)
        await result.phase(new.data.uid, Phase.DONE)
        await result.ready(2)
        await load.more(50)
        counts = await load.end()
        assert counts == list(range(3, len(counts) + 3))
        assert result.phases == [Phase.HOLD, Phase.CLOSE, Phase.DONE] * 2
        assert third.data.uid != new.data.uid
        for key, before in (("first", first), ("second", second)):
            reply = await ask(key, Ports.http + 4)
            assert reply[1]["outputs"] == before[1]["outputs"]
        graph, kubelet = result.shapes[2]
        await kubelet.start(
            "counting-frontend-r2-9",
            kubelet.objects["Deployment", "counting-frontend-r2"]["spec"]["template"],
            PODS + 59,
        )
        await kubelet.ready("counting-frontend-r2-9")
        assert graph.data.uid == third.data.uid
        for pod in ("counting-frontend-r2-0", "counting-frontend-r2-1"):
            result.kill(2, pod, "frontend")
        while True:
            try:
                reply = await ask("first", Ports.http + 4)
            except (OSError, ValueError):
                continue
            if reply[0] == 200:
                break
        assert reply[1]["outputs"] == first[1]["outputs"], "who comes later has them of the others"
