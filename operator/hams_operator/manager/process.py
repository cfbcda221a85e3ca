"""One manager as a process. Three of them run per graph; any may die at any step, and another one
finishes."""

import asyncio
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from hams_history.lines import writer_from
from hams_operator.limits import payload_bytes_max
from hams_operator.manager.failover_log import FailoverLog
from hams_protocol.effects import Effect
from hams_protocol.recovery import ManagerMachine
from hams_wire import limits, records, spec, succession
from hams_wire.coordination.port import ABSENT
from hams_wire.errors import CoordinationError, NoSpace, NotApplied, Unknown
from hams_wire.exposition import Sample
from hams_wire.node import MANAGER, Node
from hams_wire.peers.payload import HeapFactory
from hams_wire.probes import answer_probes
from hams_wire.process import EXIT_STOPPED, Access, common_arguments, open_graph, run

log = logging.getLogger("hams.manager")


async def serve(
    graph_uid: str,
    instance: str,
    access: Access,
    listen: str,
    advertise: str | None,
    asked: asyncio.Event,
    compiled: bytes | None = None,
    probe_port: int | Path = 0,
) -> int:
    """Run one manager until `asked` is set. Returns the exit code. A graph that etcd does not hold yet is
    `compiled`. One whose successor serves has nothing left to be managed."""
    if compiled is not None:
        await bring_spec(access, graph_uid, compiled)
    certificates = access.certificates()
    coordination, graph = await open_graph(access, graph_uid)
    begun: list[Node] = []
    telling: set[asyncio.Task[None]] = set()

    machine = ManagerMachine(graph, instance, from_scratch=True)
    failovers, took_ms = 0, 0

    def metrics() -> Iterator[Sample]:
        yield Sample("hams_manager_leads", "Whether this manager goes first.", int(machine.leader))
        yield Sample(
            "hams_manager_generation",
            "Generation of the topology that it knows.",
            machine.knowledge.topology.generation,
        )
        yield Sample("hams_manager_members", "Instances that are registered.", len(machine.members))
        yield Sample("hams_manager_suspects", "Instances that are being probed.", len(machine.suspects))
        yield Sample("hams_manager_failovers_total", "Failovers that this manager committed.", failovers)
        yield Sample(
            "hams_manager_failover_seconds_total",
            "From first suspicion to commit, all of them together.",
            took_ms / 1000,
        )

    def tell(name: str, record: records.FailoverRecord) -> None:
        nonlocal failovers, took_ms
        failovers, took_ms = failovers + 1, took_ms + record.took_ms
        task = asyncio.get_running_loop().create_task(told(node, graph_uid, name, record))
        telling.add(task)
        task.add_done_callback(telling.discard)

    def missing() -> str | None:
        return None if begun else "the manager is starting"

    ended = asyncio.Event()

    def noted(name: str, value: bytes | None, revision: int) -> None:
        if name in (succession.FOLLOWS, records.RESTORED) and value is not None:
            machine.from_scratch = False
        if name == succession.ENDED and value is not None:
            log.warning("the graph ends; in its place: %s", value.decode(errors="replace") or "nothing")
            ended.set()

    def perform(effect: Effect) -> None:
        raise AssertionError(f"not an effect of a manager: {effect}")

    node = Node(
        FailoverLog(machine, tell),
        instance,
        MANAGER,
        graph_uid,
        coordination,
        HeapFactory(payload_bytes_max),
        perform,
        listen=listen,
        advertise=advertise,
        tls=certificates,
        history=writer_from(os.environ, instance),
        suspect_after_s=graph.data.recovery.suspect_after_s,
        noted=noted,
    )
    probes = (
        await answer_probes(probe_port, missing, metrics, access.probe_token(), access.metrics_digest())
        if probe_port
        else None
    )
    try:
        try:
            await node.start()
            begun.append(node)
            await first_of(node, asked, ended)
        finally:
            await node.close(leave=True)
        if ended.is_set():
            await asked.wait()  # a process that ended would be started again
    finally:
        if probes is not None:
            probes.close()
    return EXIT_STOPPED if node.stopped.done() else 0


async def first_of(node: Node, *events: asyncio.Event) -> None:
    """Until the core says Stop, or one of these is set."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    node.stopped.add_done_callback(lambda _: waiting[0].cancel())
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


async def told(node: Node, graph_uid: str, name: str, record: records.FailoverRecord) -> None:
    """Write what people want to know of a failover. Tried once: nothing depends on it, and who finds it
    missing says nothing."""
    log.info("%s: epoch %d took %d ms: %s", name, record.epoch, record.took_ms, record.reason)
    try:
        await node.tell(records.failover_key(graph_uid, name), records.encode_failover(record))
    except CoordinationError as error:
        log.info("what is known of the failover of %s may not have been written: %s", name, error)


async def bring_spec(access: Access, graph_uid: str, encoded: bytes) -> None:
    """Write the compiled graph where nobody has yet: a graph starts without the controller, which alone
    changes it later. Raises WireError."""
    spec.decode_spec(encoded)
    coordination = access.coordination()
    try:
        await coordination.wait_ready(limits.spec_wait_s)
        await coordination.compare_and_swap(records.spec_key(graph_uid), ABSENT, encoded)
    except NotApplied:
        pass
    except NoSpace:
        raise
    except Unknown as error:
        log.warning("whether the graph was written is not known; it is read next: %s", error)
    finally:
        await coordination.close()


def main(arguments: list[str] | None = None) -> int:
    """`python -m hams_operator.manager.process`."""
    parser = common_arguments("hams-manager", "one manager of a graph")
    parser.add_argument(
        "--spec",
        type=Path,
        default=None,
        help="file of the compiled graph, for an etcd that does not hold it yet",
    )
    options = parser.parse_args(arguments)

    async def work(asked: asyncio.Event) -> int:
        compiled = None if options.spec is None else options.spec.read_bytes()
        access = Access(options.etcd, options.tls)
        return await serve(
            options.graph,
            options.instance,
            access,
            options.listen,
            options.advertise,
            asked,
            compiled,
            options.probe_port,
        )

    return run(work, options.log_level)


if __name__ == "__main__":
    sys.exit(main())
