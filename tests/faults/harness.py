"""A graph of real processes under verified load: what the P-level fault tests are written in.

    async with run_graph("line.yaml", folder) as run:
        async with run.load(clients=4):
            await run.kill("first", "primary")
            await run.redundant()
    run.verify()

Clients send one request at a time, each with its own key, and send it again with the same key until it is
answered. After the run: one reply per key, counts that are exactly 1..n, and a history that the independent
checker accepts.
"""

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from benchmarks.judged import odd

from hams_graph import load
from hams_history.checker import check_directory
from hams_history.lines import CallLine, HistoryWriter, RetLine, tensor_digest
from hams_load.inference import DTYPES
from hams_operator.graph_status import InstanceStatus, View
from hams_operator.local import ports as local_ports
from hams_operator.local.etcd import LocalEtcd, Ports
from hams_operator.local.supervisor import Launch, Supervisor
from hams_protocol.graph import Graph
from hams_protocol.topology import Topology
from hams_wire import records
from hams_wire.coordination import Deleted, Put, Snapshot
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.errors import CoordinationError
from hams_wire.limits import member_lease_s
from tests.faults.hosts import Hosts

ROOT = Path(__file__).parents[2]
GRAPHS = Path(__file__).parent / "graphs"
REDUNDANT_S = 150.0
REQUEST_S = 150.0
"""They only end a test that hangs: a machine under load takes its time."""

PATIENT = ("spec:\n", "spec:\n  recovery: {suspectAfter: 60s}\n")
"""With it nobody is suspected for being silent: what is left is the end of a connection, what a proxy says
itself, and a lease that runs out. For tests in which nobody may be replaced but whom they hurt: a process
that gets no CPU for half a second is silent."""

SILENT = ("spec:\n", "spec:\n  recovery: {suspectAfter: 1s}\n")
"""With it who is cut off or stuck for seconds is suspected, who gets no CPU for half a second is not."""
BLOCKING = ("spec:\n", "spec:\n  recovery: {whenUnprotected: Block}\n")
BLOCKING_RESTART = ("spec:\n", "spec:\n  recovery: {whenLost: Restart, whenUnprotected: Block}\n")
"""With them a state never has a keeper. Else one kept it that was named between two kills, some 20 ms apart
on a busy machine: for tests that lose a state, or of who else brings it back."""

PROBED_S = 5.0
"""By then whoever is suspected with it has been asked, and acted against if there was no answer."""


@dataclass
class Reply:
    """One answered request: its key, when it was asked and answered (loop time), the HTTP status, the tensors
    by name or the error."""

    key: str
    asked: float
    answered: float
    status: int
    attempts: int
    body: dict[str, object]

    def tensor(self, name: str) -> object:
        outputs = self.body["outputs"]
        assert isinstance(outputs, list)
        return next(item["data"][0] for item in outputs if item["name"] == name)


def digest_of_json(answer: bytes) -> str:
    """Of the tensors of a reply (history.md, rule 6)."""
    tensors = [
        (
            item["name"],
            item["datatype"],
            tuple(item["shape"]),
            np.asarray(item["data"], DTYPES[item["datatype"]]),
        )
        for item in json.loads(answer)["outputs"]
    ]
    return tensor_digest((name, kind, shape, array.tobytes()) for name, kind, shape, array in tensors)


class KeptAlive:
    """The connection that a client stays on."""

    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()


@dataclass
class GraphRun:
    """One running graph."""

    supervisor: Supervisor
    history: Path
    replies: list[Reply] = field(default_factory=list)
    faults: list[tuple[float, str]] = field(default_factory=list)
    _stopping: bool = False
    _answered: asyncio.Event = field(default_factory=asyncio.Event)

    # -- looking ---------------------------------------------------------------------------------------------

    async def view(self) -> View:
        return await self.supervisor.view()

    async def topology(self) -> Topology:
        """As etcd holds it, once it answers."""
        while True:
            try:
                return await self.supervisor.topology()
            except CoordinationError as error:
                if not error.retryable:
                    raise
                await self.stalled(0.02)

    async def redundant(self, within_s: float = REDUNDANT_S) -> View:
        """Until Ready and Redundant are True."""
        view = None
        try:
            async with asyncio.timeout(within_s):
                while True:
                    try:
                        view = await self.view()
                    except CoordinationError as error:  # a machine under load
                        if not error.retryable:
                            raise
                        continue
                    conditions = {item.type: item.status for item in view.conditions}
                    if conditions["Ready"] == conditions["Redundant"] == "True":
                        return view
        except TimeoutError:
            raise AssertionError(
                f"not redundant within {within_s} s: {view.conditions if view else None}"
            ) from None

    async def find(self, operator: str, role: str, whole: bool = True) -> InstanceStatus:
        """An instance by operator (or "frontend", "manager") and role; that leads a shard, by the shard's
        name and "primary".

        `whole`: of a graph that misses nothing just then, so that who hurts it does not take the last replica
        of a state.
        """
        view = await (self.redundant() if whole else self.view())
        if operator in self.supervisor.graph.shard_names:
            leader = (await self.topology()).find(operator).primary
            values = [item for item in view.instances if item.id == leader]
        else:
            values = [
                item
                for item in view.instances
                if (item.operator or item.role) == operator and item.role == role
            ]
        assert values, f"no {role} of {operator}"
        return random.choice(values)

    @contextlib.asynccontextmanager
    async def coordination(self) -> AsyncIterator[EtcdCoordination]:
        """A client of the graph's etcd."""
        coordination = EtcdCoordination(self.supervisor.etcd_endpoints)
        try:
            yield coordination
        finally:
            await coordination.close()

    async def registered(self) -> set[str]:
        """Instances whose registration etcd holds."""
        prefix = records.prefix_of(self.supervisor.uid) + "members/"
        async with self.coordination() as coordination:
            return {
                entry.key.removeprefix(prefix) for entry in (await coordination.get_prefix(prefix)).entries
            }

    async def failover(self, name: str, epoch: int, within_s: float = REDUNDANT_S) -> records.FailoverRecord:
        """What a manager tells of the failover that began `epoch` of a set, or a later one."""
        async with self.coordination() as coordination, asyncio.timeout(within_s):
            while True:
                entry = await coordination.get(records.failover_key(self.supervisor.uid, name))
                if entry is not None and (decoded := records.decode_failover(entry.value)).epoch >= epoch:
                    return decoded
                await self.stalled(0.02)

    async def moment(self) -> Snapshot:
        """Everything that etcd holds of the graph, to which later changes are compared."""
        async with self.coordination() as coordination:
            return await coordination.get_prefix(records.prefix_of(self.supervisor.uid))

    @contextlib.asynccontextmanager
    async def leases_unbroken(self, since: Snapshot, *instances: str) -> AsyncIterator[None]:
        """Renew the leases of these instances, whatever becomes of them: who waits for one to run out waits
        until the block has ended."""
        keys = {records.member_key(self.supervisor.uid, instance) for instance in instances}
        async with self.coordination() as coordination:
            leases = [entry.lease for entry in since.entries if entry.key in keys]
            assert len(leases) == len(keys), f"not all of {sorted(keys)} were registered"
            tasks = [asyncio.create_task(coordination.keep(lease, member_lease_s)) for lease in leases]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def replaced_before_its_lease_ended(self, since: Snapshot, instance: str) -> bool:
        """Whether another had each role of `instance`, which led something at `since`, while etcd still held
        its registration.

        The order of the changes in etcd tells, no clock does. See `leases_unbroken`.
        """
        uid = self.supervisor.uid
        match = next(entry for entry in since.entries if entry.key == records.topology_key(uid))
        assert leads(records.decode_topology(match.value), instance), f"{instance} led nothing"
        async with (
            self.coordination() as coordination,
            asyncio.timeout(REDUNDANT_S),
            coordination.watch(records.prefix_of(uid), since) as watch,
        ):
            async for change in watch:
                if isinstance(change, Deleted) and change.key == records.member_key(uid, instance):
                    return False
                topology = isinstance(change, Put) and change.entry.key == records.topology_key(uid)
                if topology and not leads(records.decode_topology(change.entry.value), instance):
                    return True
        raise AssertionError("a watch ended")

    async def until(self, holds: Callable[[Topology], bool], within_s: float = REDUNDANT_S) -> Topology:
        """The first topology for which `holds` is true."""
        async with asyncio.timeout(within_s):
            while not holds(result := await self.topology()):
                await self.stalled(0.02)
            return result

    async def epochs(self) -> dict[str, int]:
        """Epoch of every operator's set and every shard."""
        return {item.name: item.epoch for item in (await self.topology()).sets}

    def lines(self, kind: str, of: str = "") -> list[dict[str, Any]]:
        """Lines of the history so far, of all instances or of those whose id begins with `of`."""
        seen = []
        for file in sorted(self.history.glob(f"{of}*.jsonl")):
            for line in file.read_text().splitlines():
                with contextlib.suppress(ValueError):  # the last one may be half written
                    if (read := json.loads(line))["t"] == kind:
                        seen.append(read)
        return seen

    def log_of(self, instance: str, model: bool = False) -> str:
        """What an instance or its model has logged."""
        return (self.supervisor.home.logs / f"{instance}{'.model' if model else ''}.log").read_text()

    # -- hurting ---------------------------------------------------------------------------------------------

    async def kill(
        self, operator: str, role: str, process: str = "both", number: signal.Signals = signal.SIGKILL
    ) -> InstanceStatus:
        """A signal to the proxy, the model or both of an instance of a graph that misses nothing."""
        target = await self.find(operator, role)
        self.strike(target, process, number)
        return target

    def strike(
        self, target: InstanceStatus, process: str = "both", number: signal.Signals = signal.SIGKILL
    ) -> None:
        self.faults.append((asyncio.get_running_loop().time(), f"{number.name} {process} of {target.id}"))
        pids = {
            "proxy": [target.proxy_pid],
            "model": [target.model_pid],
            "both": [target.model_pid, target.proxy_pid],
        }[process]
        for pid in pids:
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    # -- load ------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def load(self, clients: int = 4, keep: bool = False) -> AsyncIterator[None]:
        """Clients that ask one request after the other until the block ends; each request they began is
        answered before it does.

        `keep`: a client stays on one connection until that breaks; else each request may meet another
        frontend.
        """
        self._stopping = False
        tasks = [asyncio.create_task(self._client(number, keep)) for number in range(clients)]
        try:
            yield
        finally:
            self._stopping = True
            await asyncio.gather(*tasks)

    async def answered(self, count: int, within_s: float = REQUEST_S) -> None:
        """Until so many more requests have been answered."""
        target = len(self.replies) + count
        async with asyncio.timeout(within_s):
            while len(self.replies) < target:
                self._answered.clear()
                await self._answered.wait()

    async def stalled(self, span_s: float) -> None:
        """Let a fault last: as long as it has to, to be told from a short one. Progress is not asked for."""
        await asyncio.sleep(span_s)

    async def _client(self, number: int, keep: bool) -> None:
        alive = KeptAlive() if keep else None
        writer = HistoryWriter(self.history, f"client-{number}-{len(self.replies)}")
        n = 0
        try:
            while not self._stopping:
                n += 1
                self.replies.append(
                    await self.ask(1.0, key=f"c{number}-{len(self.replies)}-{n}", writer=writer, alive=alive)
                )
                self._answered.set()
        finally:
            writer.close()
            if alive is not None:
                alive.close()

    async def ask(
        self, x: float, key: str, writer: HistoryWriter | None = None, alive: "KeptAlive | None" = None
    ) -> Reply:
        """One request, sent again under its key until it is answered; 503, 429 and broken connections are no
        answers."""
        loop = asyncio.get_running_loop()
        body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [x]}]}).encode()
        asked = loop.time()
        if writer is not None:
            sent = tensor_digest([("x", "FP32", (1,), np.array([x], np.float32).tobytes())])
            writer.write(CallLine(client=key, key=key, digest=sent))
        attempts = 0
        async with asyncio.timeout(REQUEST_S):
            while True:
                attempts += 1
                with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
                    status, answer = await self._post(body, key, alive)
                    if status not in (429, 503, 504):
                        break
                await asyncio.sleep(0.002)
        if writer is not None:
            writer.write(
                RetLine(
                    client=key,
                    key=key,
                    status="ok" if status == 200 else "conflict" if status == 409 else "error",
                    digest=digest_of_json(answer) if status == 200 else None,
                )
            )
        return Reply(key, asked, loop.time(), status, attempts, json.loads(answer))

    async def post(self, body: bytes | dict[str, object]) -> tuple[int, dict[str, Any]]:
        """One request without a key, whatever its body; its status and answer."""
        status, answer = await self._post(body if isinstance(body, bytes) else json.dumps(body).encode(), "")
        return status, json.loads(answer)

    async def _post(self, body: bytes, key: str, alive: "KeptAlive | None" = None) -> tuple[int, bytes]:
        port = int(self.supervisor.url.rsplit(":", 1)[1])
        if alive is not None and alive.streams is not None:
            reader, writer = alive.streams
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        whole = False
        try:
            head = (
                f"POST /v2/models/{self.supervisor.graph.data.name}/infer HTTP/1.1\r\nhost: test\r\n"
                f"{f'idempotency-key: {key}' if key else 'x-no: key'}\r\n"
                "content-type: application/json\r\nconnection: "
                f"{'close' if alive is None else 'keep-alive'}\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            status = int(answer.split(b" ", 2)[1])
            length = int(answer.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
            result = status, await reader.readexactly(length)
            whole = b"connection: close" not in answer.lower()
            return result
        finally:
            if alive is not None and whole:
                alive.streams = reader, writer
            else:
                writer.close()
                if alive is not None:
                    alive.streams = None

    # -- judging ---------------------------------------------------------------------------------------------

    def took_s(self, quantile: float) -> float:
        """Seconds that this share of the replies took at most, from the first attempt on: to tell mechanisms
        apart, not to be held to a number."""
        took = sorted(reply.answered - reply.asked for reply in self.replies)
        return took[int(quantile * (len(took) - 1))]

    def verify(self, counts: str = "count", also: int = 0) -> None:
        """One reply per key, nothing failed, counts exactly 1..n (`also`: rows that others have sent), and a
        history without violation."""
        assert self.replies, "there was no load"
        failed = [reply for reply in self.replies if reply.status != 200]
        assert not failed, f"{len(failed)} of {len(self.replies)} requests failed, the first: {failed[0]}"
        assert len({reply.key for reply in self.replies}) == len(self.replies)
        answers = sorted(int(str(reply.tensor(counts))) for reply in self.replies)
        assert answers == list(range(1, len(answers) + 1)) or also, f"effects lost or doubled: {odd(answers)}"
        report = check_directory(self.history)
        assert report.ok, report.render()


def leads(topology: Topology, instance: str) -> bool:
    """Whether it is a set's primary or a slot's owner."""
    return any(item.primary == instance for item in topology.sets) or any(
        slot.instance == instance for table in topology.tables for slot in table.slots
    )


Make = Callable[[Graph, Path, int | None, Path | None, str | None], Supervisor]


@contextlib.asynccontextmanager
async def run_graph(
    file: str,
    folder: Path,
    *,
    make: Make = Supervisor,
    graphs: Path = GRAPHS,
    etcd: str | None = None,
    settle: bool = True,
) -> AsyncIterator[GraphRun]:
    """A graph of `graphs`, redundant, with its history recorded; ended and without a process left afterwards.

    `make`: another supervisor. `etcd`: one that the test has started. `settle`: whether all is to be well in
    the end.
    """
    os.environ["HAMS_HOME"] = str(folder / "home")
    path = graphs / file
    supervisor = make(load(path), path, None, folder / "history", etcd)
    run = GraphRun(supervisor, folder / "history")
    try:
        await supervisor.start()
        await run.redundant()
        yield run
        if settle:
            await settled(run)
    finally:
        await supervisor.stop()


def changed(folder: Path, *replacements: tuple[str, str], file: str = "line.yaml") -> Path:
    """A copy of `graphs` in which the text of one file is changed."""
    copy = folder / "graphs"
    shutil.copytree(GRAPHS, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / file).read_text()
    for old, new in replacements:
        assert old in text, f"{old!r} is not in {file}"
        text = text.replace(old, new)
    (copy / file).write_text(text)
    return copy


class HostedSupervisor(Supervisor):
    """Each operator's proxy on a host of its own; frontends, managers and the observer here, all in reach of
    each other."""

    hosts: Hosts

    def arrange(self, launch: Launch) -> Launch:
        if launch.of in self.graph.operators:
            namespace, address = self.hosts.add(launch.instance)
            etcd = self.etcd_endpoints.replace("127.0.0.1", self.hosts.etcd)
            inner = [*launch.arguments, "--etcd", etcd, "--listen", f"tcp:{address}:0"]
            return Launch(
                launch.instance,
                launch.of,
                "tests.faults.inside",
                [namespace, launch.module, *inner],
                launch.environment,
            )
        launch.arguments += ["--listen", f"tcp:{self.hosts.here}:0"]
        return launch


@contextlib.asynccontextmanager
async def run_on_hosts(
    file: str, folder: Path, *, graphs: Path = GRAPHS
) -> AsyncIterator[tuple[GraphRun, Hosts]]:
    """A graph whose operators run on hosts that can be cut off."""
    hosts = Hosts()
    # warmed processes look in no current folder
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

    def make(
        graph: Graph, path: Path, port: int | None, history: Path | None, etcd: str | None
    ) -> Supervisor:
        supervisor = HostedSupervisor(graph, path, port, history, etcd)
        supervisor.listen = f"tcp:{hosts.here}:0"
        supervisor.hosts = hosts
        return supervisor

    try:
        hosts.start()
        ports = free_ports()
        urls = f"--listen-client-urls=http://127.0.0.1:{ports.client},http://{hosts.etcd}:{ports.client}"
        with mock.patch.dict(os.environ, PYTHONPATH=paths):
            async with (
                await LocalEtcd.start(folder / "etcd", ports=(ports,), extra=(urls,)) as etcd,
                run_graph(file, folder, make=make, graphs=graphs, etcd=etcd.endpoints) as run,
            ):
                yield run, hosts
    finally:
        hosts.stop()


def free_ports() -> Ports:
    """Two ports that are free now."""
    return Ports(*local_ports.free_ports(2))


async def settled(run: GraphRun) -> None:
    """Every request complete and every set full again, so that the history may be judged to its end."""
    await run.redundant()
    deadline = time.monotonic() + REQUEST_S
    open_requests = _open(run.history)
    while open_requests and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
        open_requests = _open(run.history)
    assert not open_requests, f"requests that never completed: {sorted(open_requests)[:10]}"


def _open(history: Path) -> set[str]:
    logged: set[str] = set()
    complete: set[str] = set()
    for file in history.glob("frontend-*.jsonl"):
        for line in file.read_text().splitlines():
            with contextlib.suppress(ValueError):  # the last one may be half written
                data = json.loads(line)
                if data["t"] == "log":
                    logged.add(data["req"])
                elif data["t"] == "complete":
                    complete.add(data["req"])
    return logged - complete
