"""One manager as a process. Three of them run per graph; any may die at any step, and another one
finishes."""

import asyncio
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

from hams_operator.limits import payload_bytes_max
from hams_operator.manager.failover_log import FailoverLog
from hams_protocol.graph import Graph
from hams_protocol.recovery import ManagerMachine
from hams_wire import limits, records, spec, succession
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.coordination.port import ABSENT
from hams_wire.errors import CoordinationError, NoSpace, NotApplied, Unknown
from hams_wire.exposition import Sample
from hams_wire.node import Node, NodeSettings, Owner
from hams_wire.peers.payload import HeapFactory
from hams_wire.process import EXIT_STOPPED, Access, Options, ProcessStage, common_arguments, open_graph, run
from hams_wire.shell import MANAGER
from hams_wire.tls import Certificates

log = logging.getLogger("hams.manager")


class Manager(Owner):
    """One manager: starting until it is registered, serving until its part is over, then ended.

    Once the graph has ended, the process waits until it is asked to end: one that ended would be started
    again.
    """

    def __init__(
        self,
        options: Options,
        graph: Graph,
        coordination: EtcdCoordination,
        certificates: Certificates | None,
    ) -> None:
        self.stage = ProcessStage.STARTING
        self._options = options
        self._machine = ManagerMachine(graph, options.instance, from_scratch=True)
        self._graph_ended = asyncio.Event()
        self._failovers, self._took_ms = 0, 0
        self._telling: set[asyncio.Task[None]] = set()
        machine = FailoverLog(self._machine, self._tell)
        settings = NodeSettings(options.graph_uid, options.listen, options.advertise, certificates)
        memory = HeapFactory(payload_bytes_max)
        self._node = Node(machine, options.instance, MANAGER, coordination, memory, self, settings)

    async def run(self, asked: asyncio.Event) -> int:
        """Manage until `asked` is set or the core says Stop. Returns the exit code."""
        probes = await self._options.answer_probes(self._missing, self._metrics)
        try:
            try:
                await self._node.start()
                self.stage = ProcessStage.SERVING
                await first_of(self._node, asked, self._graph_ended)
            finally:
                await self._node.close(leave=True)
            self.stage = ProcessStage.ENDED
            if self._graph_ended.is_set():
                await asked.wait()
        finally:
            if probes is not None:
                probes.close()
        return EXIT_STOPPED if self._node.stopped.done() else 0

    def _missing(self) -> str | None:
        return "the manager is starting" if self.stage is ProcessStage.STARTING else None

    def _metrics(self) -> Iterator[Sample]:
        machine = self._machine
        generation = machine.knowledge.topology.generation
        yield Sample("hams_manager_leads", "Whether this manager goes first.", int(machine.leader))
        yield Sample("hams_manager_generation", "Generation of the topology that it knows.", generation)
        yield Sample("hams_manager_members", "Instances that are registered.", len(machine.members))
        yield Sample("hams_manager_suspects", "Instances that are being probed.", len(machine.suspects))
        yield Sample(
            "hams_manager_failovers_total", "Failovers that this manager committed.", self._failovers
        )
        yield Sample(
            "hams_manager_failover_seconds_total",
            "From first suspicion to commit, all of them together.",
            self._took_ms / 1000,
        )

    def on_key_changed(self, name: str, value: bytes | None, revision: int) -> None:
        """See `Owner`."""
        if name in (succession.FOLLOWS, records.RESTORED) and value is not None:
            self._machine.from_scratch = False
        if name == succession.ENDED and value is not None:
            log.warning("the graph ends; in its place: %s", value.decode(errors="replace") or "nothing")
            self._graph_ended.set()

    def _tell(self, name: str, record: records.FailoverRecord) -> None:
        """A failover was committed: count it, and write it for people."""
        self._failovers, self._took_ms = self._failovers + 1, self._took_ms + record.took_ms
        task = asyncio.get_running_loop().create_task(
            report_failover(self._node, self._options.graph_uid, name, record)
        )
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)


async def serve(options: Options, asked: asyncio.Event, compiled: bytes | None = None) -> int:
    """Run one manager until `asked` is set. Returns the exit code. A graph that etcd does not hold yet is
    `compiled`. One whose successor serves has nothing left to be managed."""
    if compiled is not None:
        await bring_spec(options.access, options.graph_uid, compiled)
    certificates = options.access.certificates()
    coordination, graph = await open_graph(options.access, options.graph_uid)
    return await Manager(options, graph, coordination, certificates).run(asked)


async def first_of(node: Node, *events: asyncio.Event) -> None:
    """Wait until the core says Stop, or one of these is set."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    node.stopped.add_done_callback(lambda _: waiting[0].cancel())
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


async def report_failover(node: Node, graph_uid: str, name: str, record: records.FailoverRecord) -> None:
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
    given = parser.parse_args(arguments)

    async def work(asked: asyncio.Event) -> int:
        return await serve(Options.of(given), asked, None if given.spec is None else given.spec.read_bytes())

    return run(work, given.log_level)


if __name__ == "__main__":
    sys.exit(main())
