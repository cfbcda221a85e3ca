"""The proxy process: the sidecar of one operator instance.

It ties a core machine (stateful or stateless) to its peers and etcd (`hams_wire.node`) and to its model
(`hams_sidecar.model`). It decides nothing.
"""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import get_args

from hams_protocol.effects import Effect, LoadState, ReadCheckpoint, RestartModel, StartBatch, WriteCheckpoint
from hams_protocol.events import (
    BatchDone,
    BatchFailed,
    CheckpointRead,
    CheckpointWritten,
    Drain,
    Loaded,
    ModelDied,
    ModelReady,
)
from hams_protocol.frozen import frozen
from hams_protocol.graph import FRONTEND, Graph, SchedulePolicy, WhenUnprotected
from hams_protocol.ids import InstanceId
from hams_protocol.messages import StateCopy
from hams_protocol.stateful import StatefulMachine
from hams_protocol.stateful.former import FormerState
from hams_protocol.stateless import StatelessMachine
from hams_sidecar import limits
from hams_sidecar.arena import Arena
from hams_sidecar.checkpoints import CheckpointWriter
from hams_sidecar.lives import Sidecar
from hams_sidecar.model.link import ModelEffect, ModelEvent, ModelLink
from hams_sidecar.payloads import ArenaFactory
from hams_sidecar.profile_store import ProfileStore
from hams_sidecar.proxy_metrics import Work, samples
from hams_sidecar.succession.takeover import Takeover, answer_state, takeover_of, unless
from hams_sidecar.timeliness import ServedCounts, tell_timeliness
from hams_sidecar.warming import Warming
from hams_wire import records, succession
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.errors import CoordinationError
from hams_wire.exposition import Sample
from hams_wire.node import Node
from hams_wire.peers.visits import Visit
from hams_wire.process import Asked, Options, common_arguments, open_graph, run
from hams_wire.profiles import encode_report, report
from hams_wire.scheduling import PolicyQueue, queue_of
from hams_wire.tls import Certificates

policy_failure_chars_max = 500
"""Characters of what a scheduling policy did wrong that are reported: an exception may quote a request."""

arena_reserve_bytes = 64 << 20
"""Part of a proxy's memory that only its own work (captures, outputs) may use, so that arriving tokens cannot
starve it."""

version_report_s = 60.0
"""A primary writes the newest durable version of its state into etcd this often, if it has risen: what status
shows is at most so old."""

plan_slice_s = 0.002
"""A scheduling policy works ahead for about so long at a time, while its model runs."""

log = logging.getLogger("hams.proxy")

MODEL_EFFECTS = frozenset(get_args(ModelEffect))


@frozen
class ModelOptions:
    """What only a proxy is told.

    `socket`: where its model connects. `arena`: file of the memory that both share. `restore`: if the
    operator's set never had a primary, begin from its newest checkpoint. `drain_s`: how long it may take to
    hand over when asked to end.
    """

    operator: str
    socket: Path
    arena: Path
    restore: bool
    drain_s: float


class Proxy(Sidecar):
    """The process of one operator instance: model, memory and checkpoints outlive what it runs."""

    def __init__(
        self,
        options: Options,
        model: ModelOptions,
        graph: Graph,
        coordination: EtcdCoordination,
        certificates: Certificates | None,
        takeover: Takeover | None,
        predecessor: str | None,
        asked: Asked,
    ) -> None:
        super().__init__(options, graph, coordination, certificates, asked)
        self._model = model
        self._predecessor = predecessor
        self._takeover = takeover
        self.memory = Arena(arena_bytes(model.arena), path=model.arena, reserve_nbytes=arena_reserve_bytes)
        self._factory = ArenaFactory(self.memory)
        self._work = Work()
        self._link = ModelLink(graph, model.operator, self.memory, self.memory, self._emit)
        self._writer = CheckpointWriter(graph, model.operator, self.memory, options.instance)
        self._queue: PolicyQueue | None = None
        """The queue of the present instance, where a policy was chosen."""
        self._times = ProfileStore(options.graph_uid, graph.operators[model.operator])
        self._warming = Warming(coordination, options.graph_uid, model.operator, options.instance)
        self._ready: asyncio.Future[ModelReady] = asyncio.get_running_loop().create_future()
        self._unheard: list[ModelEvent] = []
        """What the model has said while there was no instance to hear it."""
        self._restored: StateCopy | None = None
        self._former_state: FormerState | None = None
        self._loading = -1
        """The token of the newest load."""
        self._serves = ""
        """The policy that served when the last turn ended; "" before."""
        uid, operator = options.graph_uid, model.operator
        self._tasks = [asyncio.create_task(tell_version(lambda: self.node, uid, operator))]
        if graph.operators[operator].batch.policy is not SchedulePolicy.FIFO:
            self._tasks += [
                asyncio.create_task(tell_timeliness(lambda: self.node, served, uid, operator)),
                asyncio.create_task(self._times.run(lambda: self.node)),
            ]

    async def close(self) -> None:
        """See `Sidecar`."""
        for task in self._tasks:
            task.cancel()
        await self._warming.over()
        await self._link.close()
        await self._writer.close()

    # -- warming ---------------------------------------------------------------------------------------------

    async def warm(self) -> bool:
        """Wait for the predecessor's state, or for a loaded model. False: it was asked to end first."""
        if self._predecessor is not None:
            await self._times.adopt_from(self.coordination, self._predecessor)
        if self._model.restore and await self._never_begun():
            self._restored = await self._writer.newest()
        # Only now: the newest checkpoint is read before the model can connect and be ready without it.
        await self._link.listen(self._model.socket)
        takeover = self._takeover
        if (
            takeover is not None
            and await self._never_begun()
            and not await unless(self.asked, self._inherit(takeover))
        ):
            return False
        if self.graph.operators[self._model.operator].stateful:
            return True
        return await unless(self.asked, self._warming.until_loaded())

    async def _inherit(self, takeover: Takeover) -> None:
        self._restored = await takeover.state(self._factory, (await self._ready).layout)

    async def _never_begun(self) -> bool:
        """Whether the operator's set has never had a primary in this run. Raises CoordinationError."""
        entry = await self.coordination.get(records.topology_key(self.options.graph_uid))
        return entry is None or records.decode_topology(entry.value).find(self._model.operator).epoch == 0

    # -- lives -----------------------------------------------------------------------------------------------

    async def begin(self, name: InstanceId, life: int) -> Node:
        """The instance of one life, with the state that the one before has kept."""
        operator, state_to_keep = self._model.operator, self._former_state
        machine: StatefulMachine | StatelessMachine
        if self.graph.operators[operator].stateful:
            machine = StatefulMachine(self.graph, operator, name, state_to_keep, self._restored, queue_of)
            self._restored = None  # for the first life, and its memory is that one's from now on
        else:
            machine = StatelessMachine(self.graph, operator, name, queue_of)
        former = None if state_to_keep is None else state_to_keep.instance
        return self.instance(machine, name, operator, self._factory, life, former)

    async def start(self, node: Node) -> None:
        """Register it, and tell it what the model has said meanwhile."""
        await node.start()
        self._times.begin(node)
        self.node, self._queue = node, policy_queue_of(node)
        for event in self._unheard:
            node.feed(event)
        self._unheard.clear()
        await self._warming.over()

    def between(self, node: Node) -> None:
        """The model of the life before is in the middle of something: a fresh one tells the next life that it
        is ready."""
        assert isinstance(node.machine, StatefulMachine), "only these keep a state"
        self._former_state = node.machine.state_to_keep()
        self.node = self._queue = None
        self._link.perform(RestartModel("its instance goes on under a fresh id"))

    async def leave(self, node: Node, within_s: float) -> None:
        """Hand over, unless nobody takes anything over: then frontends first, as clients wait for them."""
        by = node.now() + within_s
        if self.hands_over():
            key = succession.key(self.options.graph_uid, succession.ENDED)
            with contextlib.suppress(CoordinationError):  # without etcd nothing is handed over either
                self.ended.on_key_changed(succession.ENDED, await node.read(key))
        if self.hands_over():
            # `ended` is read anew just before, for a watch may be late: in a graph that is deleted nobody
            # takes over, and a drain would wait until its time is over.
            node.feed(Drain())
            await node.until_stopped(self.asked.at_once, self.ended, timeout_s=within_s)
        if self.ended.deleted:
            await node.until(
                lambda: all(member.of != FRONTEND for member in node.members.values()),
                self.asked.at_once,
                timeout_s=by - node.now(),
            )

    # -- between the model and the core ----------------------------------------------------------------------

    def _emit(self, event: ModelEvent) -> None:
        """What the model has done, for the instance. A model that dies between two lives has never lived for
        the later one."""
        self._warming.on_event(event)
        if isinstance(event, ModelReady) and not self._ready.done():
            self._ready.set_result(event)
        if self.node is not None:
            if self._queue is not None and isinstance(event, BatchDone | BatchFailed):
                self._queue.disturbed = self._link.disturbed  # before its time is learnt
            self.node.feed(event)
            if isinstance(event, ModelDied) or (isinstance(event, Loaded) and event.token == self._loading):
                self.node.network.release_copies()
        elif isinstance(event, ModelDied):
            self._unheard.clear()
        else:
            self._unheard.append(event)

    def perform(self, effect: Effect) -> None:
        """Effects that only an operator has: checkpoints, and what its model is to do."""
        if isinstance(effect, WriteCheckpoint):
            self._writer.write(effect, self._checkpoint_written)
            return
        if isinstance(effect, ReadCheckpoint):
            self._writer.read(self._checkpoint_read)
            return
        assert type(effect) in MODEL_EFFECTS, f"not an effect of an operator: {effect}"
        if isinstance(effect, StartBatch):
            self._work.batches += 1
            self._work.units += len(effect.units)
        elif isinstance(effect, LoadState) and self.node is not None:
            # On few processors a copy to the keeper starves the load, for which all wait (ADR 0052). Where
            # nothing is answered without a second holder, the copy is waited for as well.
            self._loading = effect.token
            if self.graph.data.recovery.when_unprotected is WhenUnprotected.CONTINUE:
                self.node.network.hold_copies(self._model.operator)
        self._link.perform(effect)  # type: ignore[arg-type]

    def _checkpoint_written(self, copy: StateCopy, whole: bool) -> None:
        if self.node is not None:
            self.node.feed(CheckpointWritten(copy.epoch, copy.version, whole))

    def _checkpoint_read(self, copy: StateCopy | None) -> None:
        if self.node is not None:
            self.node.feed(CheckpointRead(copy))

    # -- what etcd and others see of it ----------------------------------------------------------------------

    async def answer_probes(self) -> asyncio.Server | None:
        """See `Sidecar`."""
        return await self.options.answer_probes(self._missing, self._metrics, profile=self._profile)

    def _missing(self) -> str | None:
        return "the instance is starting" if self.node is None else why_not_ready(self.node)

    def _profile(self) -> bytes | None:
        """What this instance has learnt, for people; None where nothing is learnt."""
        node, queue = self.node, self._queue
        if node is None or queue is None:
            return None
        machine = node.machine
        assert isinstance(machine, StatefulMachine | StatelessMachine), "a proxy's machine"
        operator = machine.operator
        learnt = report(operator.name, node.instance, machine.role, operator.batch.policy, queue, node.now())
        return encode_report(learnt)

    def _metrics(self) -> Iterable[Sample]:
        return (
            ()
            if self.node is None
            else samples(self.node, self.memory, self._work, self._link.stats().captured)
        )

    def on_turn_end(self) -> None:
        """Let a policy work ahead; of a graph that follows another one: say that the model holds the
        state."""
        if self._queue is not None:
            self._plan()
        if self._takeover is None or self.node is None:
            return
        unsaid = self._takeover.unsaid(self.node)
        if unsaid is not None:
            saying = self._takeover.say(self.node, unsaid)
            self._tasks.append(asyncio.get_running_loop().create_task(saying))

    def _plan(self) -> None:
        """Slice by slice, between what else there is to do, while the model runs."""
        node, queue = self.node, self._queue
        if node is None or queue is None:
            return
        if queue.runs and queue.plan(node.now(), plan_slice_s):
            asyncio.get_running_loop().call_soon(self._plan)
        if self._serves not in ("", queue.serves):
            why = (
                f"that one failed: {queue.failed}" if queue.failed else "more requests would be in time by it"
            )
            log.warning("policy %s serves in place of %s: %s", queue.serves, self._serves, why)
        self._serves = queue.serves

    def on_key_changed(self, name: str, value: bytes | None, revision: int) -> None:
        """See `Owner`."""
        super().on_key_changed(name, value, revision)
        self._times.on_key_changed(name, value, revision)

    async def answer(self, visit: Visit) -> None:
        """See `Owner`."""
        await answer_state(visit, lambda: self.node, self._factory)


async def serve(options: Options, model: ModelOptions, asked: Asked) -> int:
    """Run one proxy until its core stops it or `asked` is set. Returns the exit code."""
    certificates = options.access.certificates()
    coordination, graph = await open_graph(options.access, options.graph_uid)
    operator = model.operator
    if operator not in graph.operators:
        raise ValueError(
            f'graph {options.graph_uid} has no operator "{operator}"; it has {", ".join(graph.operators)}'
        )
    takeover = await takeover_of(coordination, options.graph_uid, operator, options.instance, certificates)
    predecessor = None if takeover is None else takeover.follows.uid
    if takeover is not None and (operator not in takeover.follows.kept or takeover.follows.done):
        takeover = None
    proxy = Proxy(options, model, graph, coordination, certificates, takeover, predecessor, asked)
    return await proxy.run(model.drain_s)


async def tell_version(
    now: Callable[[], Node | None], graph_uid: str, operator: str, every_s: float = version_report_s
) -> None:
    """While this is the primary, write the newest durable version into etcd, where it has risen: for people's
    eyes. Until cancelled."""
    last = records.VersionRecord(0, -1)
    while True:
        await asyncio.sleep(every_s)
        node = now()
        if node is None or node.stopped.done():
            continue
        machine = node.machine
        if not isinstance(machine, StatefulMachine) or machine.primary is None or machine.primary.durable < 0:
            continue
        record = records.VersionRecord(machine.epoch, machine.primary.durable)
        if record == last:
            continue
        try:
            await node.tell(records.version_key(graph_uid, operator), records.encode_version(record))
            last = record
        except CoordinationError as error:
            log.info("the version is told later: %s", error)


def policy_queue_of(node: Node) -> PolicyQueue | None:
    """The queue of an instance, where a policy was chosen; None where it is first in, first out."""
    machine = node.machine
    assert isinstance(machine, StatefulMachine | StatelessMachine), "a proxy's machine"
    return machine.queue if isinstance(machine.queue, PolicyQueue) else None


def served(node: Node) -> ServedCounts | None:
    """How this instance has served by deadlines; None where first in, first out was chosen, which counts
    nothing."""
    queue = policy_queue_of(node)
    if queue is None:
        return None
    machine = node.machine
    assert isinstance(machine, StatefulMachine | StatelessMachine), "a proxy's machine"
    policy = machine.operator.batch.policy
    failed = queue.failed[:policy_failure_chars_max]
    return ServedCounts(queue.on_time, queue.late_runs, queue.shed, policy, failed)


def arena_bytes(path: Path) -> int:
    """How large the shared memory may grow: on Kubernetes its volume may be smaller than ours would be."""
    place = os.statvfs(path.parent)
    return min(limits.arena_bytes_max, place.f_blocks * place.f_frsize)


def why_not_ready(node: Node) -> str | None:
    """Why a proxy's role is not served; None if it is: a primary that serves, a backup in sync, a warm active
    instance or standby."""
    machine = node.machine
    assert isinstance(machine, StatefulMachine | StatelessMachine), "a proxy's machine"
    if node.stopped.done():
        return f"this instance is over: {node.stopped.result().reason}"
    return None if machine.ready else f"{machine.role}, and not ready"


def main(arguments: list[str] | None = None) -> int:
    """`python -m hams_sidecar.proxy`."""
    parser = common_arguments("hams-proxy", "the sidecar of one operator instance")
    parser.add_argument("--operator", required=True)
    parser.add_argument("--socket", required=True, type=Path, help="Unix socket of the model link")
    parser.add_argument("--arena", required=True, type=Path, help="file of the shared memory")
    parser.add_argument(
        "--restore",
        action="store_true",
        help="if this operator's set never had a primary: begin from its newest checkpoint",
    )
    parser.add_argument(
        "--drain-s",
        type=float,
        default=limits.drain_s_max,
        help="how long it may take to hand over when asked to end",
    )
    parser.add_argument(
        "--pid-file",
        type=Path,
        default=None,
        help="where this process writes its id, for who shall tell it to leave",
    )
    given = parser.parse_args(arguments)
    model = ModelOptions(given.operator, given.socket, given.arena, given.restore, given.drain_s)

    async def work(asked: Asked) -> int:
        if given.pid_file is not None:
            given.pid_file.write_text(str(os.getpid()))
        return await serve(Options.of(given), model, asked)

    return run(work, given.log_level)


if __name__ == "__main__":
    sys.exit(main())
