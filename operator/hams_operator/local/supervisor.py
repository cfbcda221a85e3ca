"""One graph on this machine: an etcd, managers, frontends, and a proxy with its model per instance, all
supervised.

It decides what runs (`Instances` keeps it running), opens etcd, holds the name, and tells how the run is.
Roles, failover and state are no business of its.
"""

import asyncio
import logging
import os
import secrets
import shutil
import socket
import tempfile
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from hams_graph.describe import mode_warning
from hams_history import lines as history
from hams_operator.graph_status import GraphStatus, View
from hams_operator.learning import learning
from hams_operator.local import learnt
from hams_operator.local.etcd import LocalEtcd
from hams_operator.local.etcd_keeper import keep
from hams_operator.local.home import RunFile, own_birth, running
from hams_operator.local.instances import DATA_MODULES, Instances
from hams_operator.local.metrics import MetricsPage, Source, path_of
from hams_operator.local.observe import Observer
from hams_operator.local.places import MANAGER, Launch, Place
from hams_operator.local.ports import HOST, claim, claim_free
from hams_protocol.graph import FRONTEND, Graph, GraphData, Operator
from hams_protocol.topology import Topology
from hams_protocol.wholeness import instances_wanted
from hams_wire import records, spec
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.coordination.port import Delete
from hams_wire.errors import CoordinationError
from hams_wire.notes import header_of
from hams_wire.profiles import ProfileReport

disk_room_bytes_min = 64 << 20
"""A filesystem with less room than this is called full in `hams status`: the next log or checkpoint may not
fit."""

stop_grace_s = 5.0
"""Processes that were asked to end and have not after this long are killed."""

external_etcd_s = 5.0
"""An etcd given with --etcd has to answer within this time."""

stop_rest_s = 1.0
"""The rest of a graph whose frontends have drained has nothing to hand over: a process that has not ended
after this long is killed."""


__all__ = ["CannotStart", "Launch", "Supervisor"]

log = logging.getLogger("hams.local")


class CannotStart(Exception):
    """The graph could not be started; the text says why and what to do."""


class Supervisor(Instances):
    """A graph's processes on this machine. `start`, then `stop`; `view` tells how it is."""

    metrics_port = 0
    """Where the page of all metrics is; 0: any free port."""

    listen = "tcp:127.0.0.1:0"
    """Where instances answer who looks at them from here."""

    def __init__(
        self, graph: Graph, file: Path, port: int | None, history_folder: Path | None, etcd: str | None
    ) -> None:
        data = graph.data
        uid = f"{data.name}-{secrets.token_hex(4)}"
        operators = tuple(_with_checkpoints_at(file.resolve().parent, op) for op in data.operators)
        ours = GraphData(
            data.name,
            uid,
            data.mode,
            data.frontend,
            data.managers,
            data.recovery,
            data.inputs,
            data.outputs,
            operators,
        )
        super().__init__(Graph(ours), file, history_folder, etcd)
        self._ports_asked = port is not None
        self._http_port = port or 0
        self._grpc_port = 0 if port is None else port + 1
        self._claims: list[socket.socket] = []
        self._metrics = MetricsPage(self._sources)
        self._locked = False
        self._etcd: LocalEtcd | None = None
        self._coordination: EtcdCoordination | None = None

    # -- life ------------------------------------------------------------------------------------------------

    @property
    def etcd_endpoints(self) -> str:
        """The etcd of this graph, to be watched."""
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
        """Start everything. Raises CannotStart, RunsAlready, EtcdNotStarted, CoordinationError, OSError; what
        was started is then ended by `stop`."""
        self.home.acquire()
        self._locked = True
        self._choose_ports()
        try:
            await self._metrics.open(HOST, self.metrics_port)
        except OSError as error:
            raise CannotStart(
                f"{_holder_of(self.metrics_port, error)}. Choose another one with --metrics-port, or leave "
                "it out"
            ) from None
        self._begin_history()
        self._memory = Path(tempfile.mkdtemp(prefix="hams-", dir="/dev/shm"))
        self._write_run()
        warm = [self._warm("data", DATA_MODULES), self._warm("model", self._model_modules())]
        for result in await asyncio.gather(self._open_etcd(), *warm, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
        assert self._coordination is not None, "opened above"
        await self._coordination.compare_and_swap(records.spec_key(self.uid), 0, spec.encode_spec(self.graph))
        await learnt.bring(self._coordination, self.uid, self.home.profiles, self.graph.operators)
        if self.restore:
            await self._coordination.compare_and_swap(records.restored_key(self.uid), 0, b"")
        self._write_run()
        self._observer = Observer(self.graph, self._coordination, self.listen)
        await self._observer.start()
        self._spawn_task(self._rotate_logs())
        self._spawn_task(self._watch_hung())
        self._places = self._wanted()
        await asyncio.gather(*(self._fill(place) for place in self._places))

    async def _open_etcd(self) -> None:
        if self._etcd_url is None:
            self._etcd = await LocalEtcd.start(self.home.folder / "etcd", logs=self.home.logs)
            self._etcd_url = self._etcd.endpoints
            for member in self._etcd.members:
                self._spawn_task(keep(member))
            self._coordination = EtcdCoordination(self._etcd_url)
            return
        self._coordination = EtcdCoordination(self._etcd_url)
        try:
            await self._coordination.wait_ready(external_etcd_s)
        except CoordinationError as error:
            raise CannotStart(
                f"--etcd {self._etcd_url}: expected an etcd there, found none that answers: {error}"
            ) from None

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
        """End everything, in order: managers (an end is no loss), frontends, which drain, the rest; by force
        if need be. Logs stay."""
        self._stopping = True
        if not self._locked:
            return
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        final = await self._final_line()
        await self._end([place for place in self._places if place.of == MANAGER], stop_rest_s)
        await self._end([place for place in self._places if place.of == FRONTEND], stop_grace_s)
        await self._end([*self._places, *self._left], stop_rest_s)
        await self._reaped()
        for fork_client in self._fork_clients.values():
            await fork_client.close()
        if self._observer is not None:
            await self._observer.close()
        if self._coordination is not None:
            await learnt.save(self._coordination, self.uid, self.home.profiles, self.graph.operators)
            if self._etcd is None:
                await self._clear_etcd(self._coordination)
            await self._coordination.close()
        if self._etcd is not None:
            await self._etcd.stop()
        await self._metrics.close()
        for held in self._claims:
            held.close()
        if self._memory != Path():
            shutil.rmtree(self._memory, ignore_errors=True)
        if final is not None:
            self._end_history(final)
        self.home.clear()
        self.home.release()

    async def _clear_etcd(self, coordination: EtcdCoordination) -> None:
        """An etcd that is not ours keeps nothing of us."""
        prefix = records.prefix_of(self.uid)
        try:
            async with asyncio.timeout(external_etcd_s):
                snapshot = await coordination.get_prefix(prefix)
                await coordination.transact((), tuple(Delete(entry.key) for entry in snapshot.entries))
        except (CoordinationError, TimeoutError) as error:
            log.warning("what lies below %s in etcd stays there: %s", prefix, error)

    async def view(self) -> View:
        """How it is now. Raises CoordinationError."""
        assert self._observer is not None, "started"
        return await self._observer.observe(
            {place.pod.instance: place.pod.pids for place in [*self._places, *self._left] if place.pod},
            self._failures(),
        )

    async def allow_restart(self, name: str) -> str:
        """See `Observer.allow_restart`."""
        assert self._observer is not None, "started"
        return await self._observer.allow_restart(name)

    async def profile(self, operator: str) -> tuple[ProfileReport, ...]:
        """What the instances of an operator, of all if it is "", have learnt. Raises NothingLearnt."""
        return await learnt.profiles_of(self._sources(), self._learning(operator))

    async def forget(self, operator: str) -> tuple[str, ...]:
        """Have them forget it; of which operators. Raises NothingLearnt, CoordinationError."""
        assert self._coordination is not None, "started"
        operators = self._learning(operator)
        await learnt.forget(self._coordination, self.uid, operators)
        return operators

    async def stored(self, operator: str) -> dict[str, bytes]:
        """What is stored of that, empty where there is nothing. Raises NothingLearnt, CoordinationError."""
        assert self._coordination is not None, "started"
        operators = self._learning(operator)
        values = await learnt.stored(self._coordination, self.uid)
        return {name: values.get(name, b"") for name in operators}

    async def give(self, operator: str, data: bytes) -> None:
        """Have the instances of an operator know a stored profile. Raises NothingLearnt,
        CoordinationError."""
        assert self._coordination is not None, "started"
        for name in self._learning(operator):
            await learnt.give(self._coordination, self.uid, name, data)

    def _learning(self, operator: str) -> tuple[str, ...]:
        policies = {op.name: op.batch.policy.value for op in self.graph.data.operators}
        return learning(policies, operator)

    async def status(self) -> GraphStatus:
        """The answer of `hams status`. Raises CoordinationError."""
        view = await self.view()
        return GraphStatus(
            self.graph.data.name,
            self.url,
            self.grpc,
            view.generation,
            view.conditions,
            view.instances,
            view.failures,
            view.losses,
            self._warnings(),
            self._metrics.url,
            view.replaced,
        )

    def _sources(self) -> list[Source]:
        """Every process that lives and has metrics."""
        sources = []
        for place in [*self._places, *self._left]:
            if place.pod is not None and place.pod.proxy_pid:
                name = place.pod.instance
                kind = {FRONTEND: "frontend", MANAGER: "manager"}.get(place.of, "proxy")
                of = place.of if kind == "proxy" else ""
                sources.append(Source(of, name, kind, str(path_of(self._memory, name))))
        return sources

    def _warnings(self) -> tuple[str, ...]:
        """The warning of the mode, then of folders that lack room where the run writes."""
        dirs = [Path(op.checkpoint.dir) for op in self.graph.data.operators if op.checkpoint is not None]
        places = [
            ("logs", self.home.logs),
            ("messages", self._memory),
            *(("checkpoints", path) for path in dirs),
        ]
        if self._history is not None:
            places.append(("the history", self._history))
        lacks = (_full(what, path) for what, path in places)
        return tuple(filter(None, (mode_warning(self.graph.data.mode), *lacks)))

    # -- what is wanted --------------------------------------------------------------------------------------

    def _wanted(self) -> list[Place]:
        """Every instance that the graph asks for. Data plane first: it takes longest."""
        data = self.graph.data
        places = [Place(op.name, number) for op in data.operators for number in range(instances_wanted(op))]
        places += [Place(FRONTEND, number) for number in range(data.frontend.replicas)]
        return [*places, *(Place(MANAGER, number) for number in range(data.managers))]

    def _choose_ports(self) -> None:
        """Claim the two ports, before anything of the run is started. Raises CannotStart, OSError."""
        if not self._ports_asked:
            self._claims = claim_free(2)
        else:
            for port in (self._http_port, self._grpc_port):
                try:
                    self._claims.append(claim(port))
                except OSError as error:
                    raise CannotStart(
                        f"{_holder_of(port, error)}. Choose another one with --port, or leave it out"
                    ) from None
        self._http_port, self._grpc_port = (held.getsockname()[1] for held in self._claims)

    def _begin_history(self) -> None:
        if self._history is None:
            return
        try:
            self._record("0-graph", header_of(self.graph.data))
        except history.HistoryError as error:
            raise CannotStart(f"--history: {error}") from None

    def _end_history(self, final: history.FinalLine) -> None:
        """A history without its last line is one all the same: what ends, ends."""
        try:
            self._record("z-final", final)
        except history.HistoryError as error:
            log.warning("the history gets no final line: %s", error)

    def _record(self, name: str, line: history.Line) -> None:
        assert self._history is not None, "asked for"
        writer = history.HistoryWriter(self._history, name)
        try:
            writer.write(line)
        finally:
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
                primary=serving, epoch=item.epoch, insync=item.in_sync, version=versions.get(serving or "")
            )
            for item in topology.sets
            # a lost set names who held its state: nobody serves it
            for serving in (None if item.lost else item.primary,)
            if item.name in self.graph.operators
        }
        return history.FinalLine(ops=ops, open=())


def _with_checkpoints_at(folder: Path, op: Operator) -> Operator:
    """A relative `checkpoint.dir` lies beside the graph file, wherever the processes run."""
    if op.checkpoint is None:
        return op
    return replace(
        op, checkpoint=replace(op.checkpoint, dir=str(folder / Path(op.checkpoint.dir).expanduser()))
    )


def _full(what: str, path: Path) -> str:
    """A sentence if the filesystem of a path is full; empty if it is not, or cannot be asked."""
    try:
        free = shutil.disk_usage(path).free
    except OSError:
        return ""
    if free >= disk_room_bytes_min:
        return ""
    return f"the disk of {path} is full, {free >> 20} MiB are left: {what} may not be written"


def _holder_of(port: int, error: OSError) -> str:
    """Why a port cannot be had: which graph here has it, or what the system says."""
    for run in running():
        if port in (urlsplit(run.url).port, urlsplit(f"//{run.grpc}").port):
            return f'port {port} cannot be used: graph "{run.graph}" answers there (process {run.pid})'
    return f"port {port} cannot be used: {os.strerror(error.errno) if error.errno else error}"
