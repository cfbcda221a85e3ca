"""One graph on this machine: an etcd, managers, frontends, and a proxy with its model per instance, all supervised.

An instance is what a pod is on Kubernetes: a proxy and a model under one id. A proxy that ends takes its model along, and a fresh instance
under a fresh id takes its place; a model that ends is started again beside its proxy, which has told everybody. The supervisor starts and
restarts; roles, failover and state are no business of its.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hams_operator import limits
from hams_operator.local.etcd import LocalEtcd
from hams_operator.local.home import GraphHome, RunFile, own_birth
from hams_operator.local.nursery import Nursery, NurseryLost
from hams_operator.local.observe import FailureInfo, Observer, Pids, Status, View
from hams_operator.local.processes import die_with_parent, send
from hams_protocol.graph import FRONTEND, Graph, GraphData, Operator
from hams_protocol.ids import InstanceId
from hams_protocol.topology import Topology
from hams_wire import history, records, spec
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.coordination.port import Delete
from hams_wire.errors import CoordinationError

log = logging.getLogger("hams.local")

MANAGER = "manager"


class CannotStart(Exception):
    """The graph could not be started; the text says why and what to do."""


@dataclass(slots=True)
class Pod:
    """One instance: its processes (0: none) and when they were started."""

    instance: InstanceId
    of: str
    proxy_pid: int = 0
    model_pid: int = 0
    started_s: float = 0.0
    model_started_s: float = 0.0
    ending: bool = False

    @property
    def pids(self) -> Pids:
        """For who only looks."""
        return Pids(self.of, self.proxy_pid, self.model_pid)


@dataclass(slots=True)
class Launch:
    """How a process of the data plane is about to be started."""

    instance: InstanceId
    of: str
    module: str
    arguments: list[str]
    environment: dict[str, str]


@dataclass(slots=True)
class Ends:
    """How often in a row the process of a place ended young, and how it did last."""

    count: int = 0
    last: FailureInfo | None = None


@dataclass(slots=True)
class Place:
    """One instance wanted: who fills it now, and how often that ended young. `left`: its instance hangs, another place has taken over."""

    of: str
    number: int
    pod: Pod | None = None
    pause_s: float = limits.restart_pause_s
    model_pause_s: float = limits.restart_pause_s
    ends: Ends = field(default_factory=Ends)
    left: bool = False
    left_s: float = 0.0


class Supervisor:
    """A graph's processes on this machine. `start`, then `stop`; `view` tells how it is."""

    listen = "tcp:127.0.0.1:0"
    """Where instances answer who looks at them from here."""

    def __init__(self, graph: Graph, file: Path, port: int | None, history_folder: Path | None, etcd: str | None) -> None:
        uid = f"{graph.data.name}-{secrets.token_hex(4)}"
        data = graph.data
        self.graph = Graph(
            GraphData(data.name, uid, data.mode, data.frontend, data.managers, data.recovery, data.inputs, data.outputs, data.operators)
        )
        self.uid = uid
        self.home = GraphHome(data.name)
        self._file = file.resolve()
        self._history = None if history_folder is None else history_folder.resolve()
        self._etcd_url = etcd
        self._locked = False
        self._http_port = port or 0
        self._grpc_port = 0 if port is None else port + 1
        self._etcd: LocalEtcd | None = None
        self._coordination: EtcdCoordination | None = None
        self._observer: Observer | None = None
        self._memory = Path()
        self._places: list[Place] = []
        self._left: list[Place] = []
        self._by_pid: dict[int, Place] = {}
        self._nurseries: dict[str, Nursery] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._counter = 0
        self._stopping = False
        self._some_end = asyncio.Event()
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    # -- life --------------------------------------------------------------------------------------------------------------------

    @property
    def etcd_endpoints(self) -> str:
        """The etcd of this graph, for whoever wants to watch it."""
        return self._etcd_url or ""

    async def topology(self) -> Topology:
        """The topology now. Raises CoordinationError."""
        assert self._observer is not None, "started"
        return await self._observer.topology()

    @property
    def url(self) -> str:
        """Where the graph answers over HTTP."""
        return f"http://127.0.0.1:{self._http_port}"

    @property
    def grpc(self) -> str:
        """Where it answers over gRPC, host:port."""
        return f"127.0.0.1:{self._grpc_port}"

    async def start(self) -> None:
        """Start everything. Raises CannotStart, RunsAlready, EtcdNotStarted, CoordinationError, OSError; what was started is then ended by `stop`."""
        self.home.acquire()
        self._locked = True
        self._choose_ports()
        self._begin_history()
        self._memory = Path(tempfile.mkdtemp(prefix="hams-", dir="/dev/shm"))
        self._write_run()
        warm = [self._warm("data", DATA_MODULES), self._warm("model", self._model_modules())]
        for result in await asyncio.gather(self._open_etcd(), *warm, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
        assert self._coordination is not None, "opened above"
        await self._coordination.compare_and_swap(records.spec_key(self.uid), 0, spec.encode_spec(self.graph))
        self._write_run()
        self._observer = Observer(self.graph, self._coordination, self.listen)
        await self._observer.start()
        self._spawn_task(self._rotate_logs())
        self._spawn_task(self._watch_hung())
        self._places = self._wanted()
        await asyncio.gather(*(self._fill(place) for place in self._places))

    async def _open_etcd(self) -> None:
        if self._etcd_url is None:
            self._etcd = await LocalEtcd.start(self.home.folder / "etcd")
            self._etcd_url = self._etcd.endpoints
            self._coordination = EtcdCoordination(self._etcd_url)
            return
        self._coordination = EtcdCoordination(self._etcd_url)
        try:
            await self._coordination.wait_ready(limits.external_etcd_s)
        except CoordinationError as error:
            raise CannotStart(f"--etcd {self._etcd_url}: expected an etcd there, found none that answers: {error}") from None

    def _write_run(self) -> None:
        self.home.write(
            RunFile(
                graph=self.graph.data.name,
                uid=self.uid,
                pid=os.getpid(),
                birth=own_birth(),
                url=self.url,
                grpc=self.grpc,
                memory=str(self._memory),
                file=str(self._file),
                etcd=self._etcd_url or "",
                history=None if self._history is None else str(self._history),
            )
        )

    @property
    def control(self) -> Path:
        """Where the control socket belongs, once started."""
        return self._memory / "control.sock"

    async def stop(self) -> None:
        """End everything, in order: managers (an end is no loss), frontends, which drain, the rest; by force if need be. Logs stay."""
        self._stopping = True
        if not self._locked:
            return
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        final = await self._final_line()
        await self._end([place for place in self._places if place.of == MANAGER], limits.stop_rest_s)
        await self._end([place for place in self._places if place.of == FRONTEND], limits.stop_grace_s)
        await self._end([*self._places, *self._left], limits.stop_rest_s)
        for nursery in self._nurseries.values():
            await nursery.close()
        if self._observer is not None:
            await self._observer.close()
        if self._coordination is not None:
            if self._etcd is None:
                await self._clear_etcd(self._coordination)
            await self._coordination.close()
        if self._etcd is not None:
            await self._etcd.stop()
        if self._memory != Path():
            shutil.rmtree(self._memory, ignore_errors=True)
        if self._history is not None and final is not None:
            writer = history.HistoryWriter(self._history, "z-final")
            writer.write(final)
            writer.close()
        self.home.clear()
        self.home.release()

    async def _clear_etcd(self, coordination: EtcdCoordination) -> None:
        """An etcd that is not ours keeps nothing of us."""
        prefix = records.prefix_of(self.uid)
        try:
            async with asyncio.timeout(limits.external_etcd_s):
                found = await coordination.get_prefix(prefix)
                await coordination.transact((), tuple(Delete(entry.key) for entry in found.entries))
        except (CoordinationError, TimeoutError) as error:
            log.warning("what lies below %s in etcd stays there: %s", prefix, error)

    async def view(self) -> View:
        """How it is now. Raises CoordinationError."""
        assert self._observer is not None, "started"
        return await self._observer.look(
            {place.pod.instance: place.pod.pids for place in [*self._places, *self._left] if place.pod}, self._failures()
        )

    async def status(self) -> Status:
        """The answer of `hams status`. Raises CoordinationError."""
        view = await self.view()
        return Status(self.graph.data.name, self.url, self.grpc, view.generation, view.conditions, view.instances, view.failures)

    def given_up(self) -> FailureInfo | None:
        """A model that cannot be started: it ended young again and again."""
        return next((place.ends.last for place in self._places if place.ends.count >= limits.start_ends_max), None)

    def _failures(self) -> tuple[FailureInfo, ...]:
        """Models in a crash loop."""
        for place in self._places:
            pod = place.pod
            if pod is not None and pod.model_pid and self._now() - pod.model_started_s > limits.restart_young_s:
                place.ends = Ends()
        return tuple(place.ends.last for place in self._places if place.ends.last is not None and place.ends.count >= limits.crash_loop_ends_min)

    # -- what is wanted ------------------------------------------------------------------------------------------------------------

    def _wanted(self) -> list[Place]:
        """Every instance that the graph asks for. Data plane first: it takes longest."""
        data = self.graph.data
        places = [Place(op.name, number) for op in data.operators for number in range(instances_of(op))]
        places += [Place(FRONTEND, number) for number in range(data.frontend.replicas)]
        return [*places, *(Place(MANAGER, number) for number in range(data.managers))]

    def _choose_ports(self) -> None:
        if self._http_port:
            for port in (self._http_port, self._grpc_port):
                _check_free(port)
        else:
            self._http_port, self._grpc_port = _free_port(), _free_port()

    def _begin_history(self) -> None:
        if self._history is None:
            return
        operators = {
            op.name: history.OperatorEntry(
                kind="stateful" if op.stateful else "stateless",
                join=op.join.value.lower(),
                inputs=tuple(edge.source for edge in op.in_edges),
                outputs=op.targets,
            )
            for op in self.graph.data.operators
        }
        want = {op.name: op.backups for op in self.graph.data.operators if op.stateful}
        try:
            writer = history.HistoryWriter(self._history, "0-graph")
        except history.HistoryError as error:
            raise CannotStart(f"--history: {error}") from None
        writer.write(history.GraphLine(id=self.uid, operators=operators, want=want))
        writer.close()

    async def _final_line(self) -> history.FinalLine | None:
        if self._history is None or self._observer is None:
            return None
        try:
            topology = await self._observer.topology()
            view = await self.view()
        except CoordinationError as error:
            log.warning("the history gets no final line: %s", error)
            return None
        versions = {item.id: item.version for item in view.instances}
        ops = {
            item.name: history.FinalOperator(
                primary=item.primary, epoch=item.epoch, insync=item.in_sync, version=None if item.primary is None else versions.get(item.primary)
            )
            for item in topology.sets
            if item.name in self.graph.operators
        }
        return history.FinalLine(ops=ops, open=())

    # -- processes -----------------------------------------------------------------------------------------------------------------

    async def _warm(self, name: str, modules: tuple[str, ...]) -> None:
        nursery = self._nurseries[name] = Nursery(self._exited)
        await nursery.start(modules, self.home.logs / f"warm-{name}.log")
        self._spawn_task(self._watch_nursery(name, nursery))

    async def _watch_nursery(self, name: str, nursery: Nursery) -> None:
        """All processes forked by a warmed process die with it; a new one takes over, and the exits are made up for."""
        await nursery.lost.wait()
        if self._stopping:
            return
        log.error("the warmed process %s has ended; all its children with it", name)
        fresh = Nursery(self._exited)
        self._nurseries[name] = fresh
        await fresh.start(DATA_MODULES if name == "data" else self._model_modules(), self.home.logs / f"warm-{name}.log")
        self._spawn_task(self._watch_nursery(name, fresh))
        for pid, place in list(self._by_pid.items()):
            pod = place.pod
            if pod is not None and pid == (pod.proxy_pid if name == "data" else pod.model_pid):
                self._exited(pid, -signal.SIGKILL)

    def _model_modules(self) -> tuple[str, ...]:
        """What models import that takes long: torch only where a model's file names it."""
        folder = self._file.parent
        names = {op.model.entrypoint.partition(":")[0].replace(".", "/") + ".py" for op in self.graph.data.operators}
        texts = [path.read_text(encoding="utf-8", errors="replace") for name in names if (path := folder / name).is_file()]
        return ("hams_sdk.serve", "numpy", *(("torch",) if any("torch" in text for text in texts) else ()))

    async def _fill(self, place: Place) -> None:
        """Start a fresh instance in a place. Its id was never used before."""
        self._counter += 1
        kind = {FRONTEND: "frontend", MANAGER: "manager"}.get(place.of, place.of)
        instance = f"{kind}-{self._counter}-{secrets.token_hex(2)}"
        pod = place.pod = Pod(instance, place.of, started_s=self._now())
        common = ["--graph", self.uid, "--instance", instance, "--etcd", self._etcd_url or ""]
        environment = {"HAMS_HISTORY": "" if self._history is None else str(self._history)}
        if place.of == MANAGER:
            launch = Launch(instance, place.of, "hams_operator.manager.process", common, environment)
        elif place.of == FRONTEND:
            ports = ["--http-port", str(self._http_port), "--grpc-port", str(self._grpc_port)]
            launch = Launch(instance, place.of, "hams_sidecar.frontend", [*common, *ports], environment)
        else:
            files = ["--operator", place.of, "--socket", str(self._socket(instance)), "--arena", str(self._memory / f"{instance}.arena")]
            launch = Launch(instance, place.of, "hams_sidecar.proxy", [*common, *files], environment)
        launch = self.arrange(launch)
        try:
            pid = await self._nurseries["data"].spawn(launch.module, launch.arguments, launch.environment, self.home.folder, self._log(instance))
        except NurseryLost:
            self._spawn_task(self._fill_later(place))
            return
        pod.proxy_pid = pid
        self._by_pid[pid] = place
        if place.of in self.graph.operators:
            await self._start_model(place, pod)

    def arrange(self, launch: Launch) -> Launch:
        """The last word on how a process is started: fault tests put it on a host of its own, or behind a bad network."""
        return launch

    async def _start_model(self, place: Place, pod: Pod) -> None:
        op = self.graph.operators[place.of]
        environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), **dict(op.model.env)}
        folder = self._file.parent
        arguments = [op.model.entrypoint, "--socket", str(self._socket(pod.instance)), "--path", str(folder)]
        output = self._log(f"{pod.instance}.model")
        pod.model_started_s = self._now()
        try:
            if op.model.python:
                pid = await self._start_foreign(op.model.python, arguments, environment, folder, output)
            else:
                pid = await self._nurseries["model"].spawn("hams_sdk.serve", arguments, environment, folder, output)
        except NurseryLost:
            return
        except OSError as error:
            place.ends = Ends(limits.start_ends_max, FailureInfo(place.of, pod.instance, 127, (f"model.python {op.model.python}: {error.strerror}",)))
            return
        pod.model_pid = pid
        self._by_pid[pid] = place

    async def _start_foreign(self, python: str, arguments: list[str], environment: dict[str, str], folder: Path, output: Path) -> int:
        """A model under another interpreter is started, not forked."""
        with output.open("ab") as stream:
            process = await asyncio.create_subprocess_exec(
                python,
                "-m",
                "hams_sdk",
                "serve",
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                cwd=folder,
                env={**os.environ, **environment},
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )

        async def reap() -> None:
            self._exited(process.pid, await process.wait())

        self._spawn_task(reap())
        return process.pid

    def _exited(self, pid: int, status: int) -> None:
        self._some_end.set()
        place = self._by_pid.pop(pid, None)
        pod = None if place is None else place.pod
        if place is None or pod is None or self._stopping:
            if pod is not None and pod.model_pid == pid:
                pod.model_pid = 0
            elif pod is not None and pod.proxy_pid == pid:
                pod.proxy_pid = 0
            return
        if place.left:
            self._left_ended(place, pod, pid)
        elif pid == pod.model_pid:
            pod.model_pid = 0
            log.warning("model of %s (pid %d) ended with %s", pod.instance, pid, _said(status))
            self._note_end(place, pod, status)
            self._spawn_task(self._restart_model(place, pod))
        elif pid == pod.proxy_pid:
            log.warning("%s (pid %d) ended with %s", pod.instance, pid, _said(status))
            self._replace(place, pod)

    # -- instances that hang ---------------------------------------------------------------------------------------------------------

    async def _watch_hung(self) -> None:
        """An instance that the graph has given up and that does not end (stopped, stuck) gets a successor; after a while it is killed.

        Until then it stays, as a node that is cut off would: should it wake up, its messages are refused.
        """
        missing_since: dict[InstanceId, float] = {}
        registered: set[InstanceId] = set()
        while True:
            await asyncio.sleep(limits.hung_look_s)
            assert self._observer is not None, "started"
            try:
                members, revoked = await self._observer.cast()
            except CoordinationError:  # nobody can register without etcd
                missing_since.clear()
                continue
            registered |= members
            now = self._now()
            for place in list(self._places):
                pod = place.pod
                if pod is None or pod.ending or not pod.proxy_pid or pod.instance not in registered:
                    continue
                if pod.instance in members and pod.instance not in revoked:
                    missing_since.pop(pod.instance, None)
                    continue
                bound = limits.hung_revoked_s if pod.instance in revoked else limits.hung_missing_s
                if now - missing_since.setdefault(pod.instance, now) >= bound:
                    del missing_since[pod.instance]
                    self._leave(place, pod)
            for place in self._left:
                if place.pod is not None and now - place.left_s > limits.hung_kept_s:
                    send(place.pod.model_pid, signal.SIGKILL)
                    send(place.pod.proxy_pid, signal.SIGKILL)

    def _leave(self, place: Place, pod: Pod) -> None:
        log.warning("%s (pid %d) hangs: the graph has given it up and it does not end; a fresh instance takes its place", pod.instance, pod.proxy_pid)
        aside = Place(place.of, place.number, pod, left=True, left_s=self._now())
        self._left.append(aside)
        for pid in (pod.proxy_pid, pod.model_pid):
            if pid in self._by_pid:
                self._by_pid[pid] = aside
        place.pod = None
        self._spawn_task(self._fill(place))

    def _left_ended(self, place: Place, pod: Pod, pid: int) -> None:
        if pid == pod.model_pid:
            pod.model_pid = 0
            return
        pod.proxy_pid = 0
        self._by_pid.pop(pod.model_pid, None)
        send(pod.model_pid, signal.SIGKILL)
        self._left.remove(place)
        self._tidy(pod)

    def _tidy(self, pod: Pod) -> None:
        (self._memory / f"{pod.instance}.arena").unlink(missing_ok=True)
        self._socket(pod.instance).unlink(missing_ok=True)

    def _replace(self, place: Place, pod: Pod) -> None:
        """The instance is over: its model goes too, and a fresh instance comes."""
        pod.ending = True
        if pod.model_pid:
            self._by_pid.pop(pod.model_pid, None)
            send(pod.model_pid, signal.SIGKILL)
        young = self._now() - pod.started_s < limits.restart_young_s
        place.pause_s = min(place.pause_s * 2, limits.restart_pause_max_s) if young else limits.restart_pause_s
        self._tidy(pod)
        self._spawn_task(self._fill_later(place))

    async def _fill_later(self, place: Place) -> None:
        await asyncio.sleep(place.pause_s)
        await self._fill(place)

    async def _restart_model(self, place: Place, pod: Pod) -> None:
        young = self._now() - pod.model_started_s < limits.restart_young_s
        place.model_pause_s = min(place.model_pause_s * 2, limits.restart_pause_max_s) if young else 0.0
        await asyncio.sleep(place.model_pause_s)
        if place.pod is pod and not pod.ending:
            await self._start_model(place, pod)

    async def _end(self, places: list[Place], grace_s: float) -> None:
        """SIGTERM to proxies (models follow their proxies), SIGKILL to who has not ended after `grace_s`."""
        pods = [place.pod for place in places if place.pod is not None]
        for pod in pods:
            send(pod.proxy_pid, signal.SIGTERM)
        deadline = self._now() + grace_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while any(pod.proxy_pid or pod.model_pid for pod in pods):
                    self._some_end.clear()
                    await self._some_end.wait()
        for pod in pods:
            send(pod.model_pid, signal.SIGKILL)
            send(pod.proxy_pid, signal.SIGKILL)

    # -- small things --------------------------------------------------------------------------------------------------------------

    def _socket(self, instance: InstanceId) -> Path:
        return self._memory / f"{instance}.sock"

    def _log(self, name: str) -> Path:
        return self.home.logs / f"{name}.log"

    async def _rotate_logs(self) -> None:
        """Processes hold their logs open for appending, so a log that is too long is copied and cut, not renamed."""
        while True:
            await asyncio.sleep(limits.log_look_s)
            for path in self.home.logs.glob("*.log"):
                if path.name != "supervisor.log" and path.stat().st_size > limits.log_bytes_max:
                    await asyncio.to_thread(shutil.copyfile, path, path.with_name(f"{path.name}.1"))
                    os.truncate(path, 0)

    def _note_end(self, place: Place, pod: Pod, status: int) -> None:
        """Remember a model that failed by itself while young; one that follows its proxy ends with 0."""
        if status == 0 or self._now() - pod.model_started_s >= limits.restart_young_s:
            place.ends = Ends()
            return
        lines: list[str] = []
        with contextlib.suppress(OSError):
            lines = (self.home.logs / f"{pod.instance}.model.log").read_text(errors="replace").splitlines()
        place.ends = Ends(place.ends.count + 1, FailureInfo(place.of, pod.instance, status, tuple(lines[-limits.failure_lines_max :])))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _spawn_task(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self.failed.done():
            self.failed.set_result(f"{type(error).__name__}: {error}")


DATA_MODULES = ("hams_sidecar.proxy", "hams_sidecar.frontend", "hams_operator.manager.process")
"""What the data plane's processes import; forked from one warmed process."""


def instances_of(op: Operator) -> int:
    """Processes pairs that an operator asks for: primary and backups, or active instances; and standbys."""
    return (1 + op.backups if op.stateful else op.slots) + op.hot_standbys


def _said(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise CannotStart(f"port {port} cannot be used: {error.strerror}. Choose another one with --port, or leave it out") from None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
