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

from hams_history.lines import writer_from
from hams_protocol.effects import Effect, ReadCheckpoint, RestartModel, StartBatch, WriteCheckpoint
from hams_protocol.events import CheckpointRead, Drain, ModelDied, ModelReady
from hams_protocol.graph import FRONTEND
from hams_protocol.ids import InstanceId
from hams_protocol.messages import StateCopy
from hams_protocol.stateful import StatefulMachine
from hams_protocol.stateful.kept import KeptState
from hams_protocol.stateless import StatelessMachine
from hams_sidecar import limits
from hams_sidecar.arena import Arena
from hams_sidecar.checkpoints import CheckpointWriter
from hams_sidecar.lives import Ended, listen_at, live
from hams_sidecar.model.link import ModelEffect, ModelEvent, ModelLink
from hams_sidecar.payloads import ArenaFactory
from hams_sidecar.proxy_metrics import Work, samples
from hams_sidecar.succession.takeover import answer_state, takeover_of, unless
from hams_sidecar.warming import Warming
from hams_wire import records, succession
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.errors import CoordinationError
from hams_wire.exposition import Sample
from hams_wire.node import Node
from hams_wire.probes import answer_probes
from hams_wire.process import EXIT_STOPPED, Access, Asked, common_arguments, open_graph, run

log = logging.getLogger("hams.proxy")

MODEL_EFFECTS = frozenset(get_args(ModelEffect))


async def serve(
    graph_uid: str,
    operator: str,
    instance: str,
    access: Access,
    listen: str,
    advertise: str | None,
    socket: Path,
    arena: Path,
    asked: Asked,
    restore: bool = False,
    drain_s: float = limits.drain_s_max,
    probe_port: int | Path = 0,
) -> int:
    """Run one proxy until its core stops it or `asked` is set. Returns the exit code."""
    certificates = access.certificates()
    coordination, graph = await open_graph(access, graph_uid)
    if operator not in graph.operators:
        raise ValueError(
            f'graph {graph_uid} has no operator "{operator}"; it has {", ".join(graph.operators)}'
        )
    memory = Arena(arena_bytes(arena), path=arena, reserve_nbytes=limits.arena_reserve_bytes)
    nodes: list[Node] = []

    def missing() -> str | None:
        return "the instance is starting" if not nodes else why_not_ready(nodes[-1])

    work = Work()

    def metrics() -> Iterable[Sample]:
        return samples(nodes[-1], memory, work) if nodes else ()

    unheard: list[ModelEvent] = []
    ready: asyncio.Future[ModelReady] = asyncio.get_running_loop().create_future()
    warming = Warming(coordination, graph_uid, operator, instance)
    factory = ArenaFactory(memory)

    def emit(event: ModelEvent) -> None:
        warming.heard(event)
        if isinstance(event, ModelReady) and not ready.done():
            ready.set_result(event)
        if nodes:
            nodes[-1].feed(event)
        elif isinstance(event, ModelDied):  # to a life that begins later it has never lived
            unheard.clear()
        else:
            unheard.append(event)

    link = ModelLink(graph, operator, memory, memory, emit)

    def perform(effect: Effect) -> None:
        if isinstance(effect, WriteCheckpoint):
            writer.write(effect)
            return
        if isinstance(effect, ReadCheckpoint):
            writer.read(lambda copy: nodes[-1].feed(CheckpointRead(copy)) if nodes else None)
            return
        assert type(effect) in MODEL_EFFECTS, f"not an effect of an operator: {effect}"
        if isinstance(effect, StartBatch):
            work.batches += 1
            work.units += len(effect.units)
        link.perform(effect)  # type: ignore[arg-type]

    def turned() -> None:
        """Of a graph that follows another one: say that the model holds the state."""
        assert takeover is not None
        loaded = takeover.loaded(nodes[-1]) if nodes else None
        if loaded is not None:
            telling_loaded.append(asyncio.get_running_loop().create_task(tell_until_told(nodes[-1], *loaded)))

    restored: StateCopy | None = None

    ended = Ended()

    def noted(name: str, value: bytes | None, revision: int) -> None:
        ended.noted(name, value)

    async def inherit() -> None:
        nonlocal restored
        assert takeover is not None
        restored = await takeover.state(factory, (await ready).layout)

    kept: KeptState | None = None
    telling_loaded: list[asyncio.Task[None]] = []
    takeover = await takeover_of(coordination, graph_uid, operator, instance, certificates)
    if takeover is not None and (operator not in takeover.follows.kept or takeover.follows.done):
        takeover = None
    writer = CheckpointWriter(graph, operator, memory, instance)

    async def begin(name: InstanceId, life: int) -> Node:
        nonlocal restored
        machine: StatefulMachine | StatelessMachine
        if graph.operators[operator].stateful:
            machine = StatefulMachine(graph, operator, name, kept, restored)
            restored = None  # for the first life, and its memory is that one's from now on
        else:
            machine = StatelessMachine(graph, operator, name)
        return Node(
            machine,
            name,
            operator,
            graph_uid,
            access.coordination() if life else coordination,
            factory,
            perform,
            listen=listen_at(listen, life),
            advertise=advertise,
            tls=certificates,
            history=writer_from(os.environ, name),
            suspect_after_s=graph.data.recovery.suspect_after_s,
            keeps=True,
            kept=None if kept is None else kept.former,
            host=lambda visit: answer_state(visit, lambda: nodes[-1] if nodes else None, factory),
            noted=noted,
            turned=None if takeover is None else turned,
        )

    async def start(node: Node) -> None:
        await node.start()
        nodes.append(node)
        for event in unheard:
            node.feed(event)
        unheard.clear()
        await warming.over()

    def between(node: Node) -> None:
        """The model of the life before is in the middle of something: a fresh one tells the next life that it
        is ready."""
        nonlocal kept
        assert isinstance(node.machine, StatefulMachine), "only these keep a state"
        kept = node.machine.kept_state()
        nodes.clear()
        link.perform(RestartModel("its instance goes on under a fresh id"))

    async def leave(node: Node, within_s: float) -> None:
        """Hand over, unless nobody takes anything over: then frontends first, as clients wait for them."""
        by = node.now() + within_s
        if not asked.at_once.is_set() and not ended.is_set():
            with contextlib.suppress(CoordinationError):  # without etcd nothing is handed over either
                ended.noted(succession.ENDED, await node.read(succession.key(graph_uid, succession.ENDED)))
        if not asked.at_once.is_set() and not ended.is_set():
            node.feed(Drain())
            await node.until_stopped(asked.at_once, ended, timeout_s=within_s)
        if ended.deleted:
            await node.until(
                lambda: all(member.of != FRONTEND for member in node.members.values()),
                asked.at_once,
                timeout_s=by - node.now(),
            )

    node: Node | None = None
    telling = asyncio.create_task(tell_version(lambda: nodes[-1] if nodes else None, graph_uid, operator))
    probes = (
        await answer_probes(probe_port, missing, metrics, access.probe_token(), access.metrics_digest())
        if probe_port
        else None
    )
    if restore and await never_begun(coordination, graph_uid, operator):
        restored = await writer.newest()
    try:
        await link.listen(socket)
        if (
            takeover is not None
            and await never_begun(coordination, graph_uid, operator)
            and not await unless(asked, inherit())
        ):
            return 0
        if not graph.operators[operator].stateful and not await unless(asked, warming.until_loaded()):
            return 0
        node = await live(instance, begin, start, between, asked, leave, drain_s)
    finally:
        for task in (telling, *telling_loaded):
            task.cancel()
        if probes is not None:
            probes.close()
        await warming.over()
        await link.close()
        await writer.close()
        if node is not None:
            await node.close(leave=True)
        else:
            await coordination.close()
        memory.close()
    return EXIT_STOPPED if node.stopped.done() and not asked.is_set() else 0


async def tell_version(
    now: Callable[[], Node | None], graph_uid: str, operator: str, every_s: float = limits.version_told_s
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


async def tell_until_told(node: Node, key: str, value: bytes) -> None:
    """Write a key that nobody else writes, until etcd has it."""
    while not node.stopped.done():
        try:
            await node.tell(key, value)
            return
        except CoordinationError as error:
            log.info("that the state is loaded is told later: %s", error)
            await asyncio.sleep(limits.visit_pause_s)


async def never_begun(coordination: EtcdCoordination, graph_uid: str, operator: str) -> bool:
    """Whether the operator's set has never had a primary in this run. Raises CoordinationError."""
    entry = await coordination.get(records.topology_key(graph_uid))
    return entry is None or records.decode_topology(entry.value).find(operator).epoch == 0


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
    options = parser.parse_args(arguments)

    async def work(asked: Asked) -> int:
        if options.pid_file is not None:
            options.pid_file.write_text(str(os.getpid()))
        return await serve(
            options.graph,
            options.operator,
            options.instance,
            Access(options.etcd, options.tls),
            options.listen,
            options.advertise,
            options.socket,
            options.arena,
            asked,
            options.restore,
            options.drain_s,
            options.probe_port,
        )

    return run(work, options.log_level)


if __name__ == "__main__":
    sys.exit(main())
