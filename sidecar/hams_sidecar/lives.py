"""One process, one instance after another: one that stops with a state that may still be needed goes on under
a fresh id, and brings the state along.

Only where the core says so (`Stop.keep`); every other end of an instance is the end of its process, and its
supervisor starts a fresh one. That holds for a process that is asked to end as well: what it keeps may be the
last there is, so it leaves with it only when its time is over. Each life has its own connection to etcd, its
own peers and its own history; model, memory and endpoint outlive them.
"""

import asyncio
import logging
import secrets
from abc import ABC, abstractmethod

from hams_protocol.graph import Graph
from hams_protocol.ids import InstanceId
from hams_sidecar import limits
from hams_sidecar.arena import Arena
from hams_wire import succession
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.errors import CoordinationError
from hams_wire.node import Node, NodeSettings, Owner
from hams_wire.peers.payload import PayloadFactory
from hams_wire.process import EXIT_STOPPED, Asked, Options, ProcessStage
from hams_wire.shell import Machine
from hams_wire.tls import Certificates

log = logging.getLogger("hams.process")


class Ended(asyncio.Event):
    """Set once the graph has ended: another shape has taken over, or (`deleted`) nobody will."""

    deleted = False

    def on_key_changed(self, name: str, value: bytes | None) -> None:
        """A key of this graph, as it is or as it has become."""
        if name == succession.ENDED and value is not None:
            self.deleted = value == succession.NOBODY
            self.set()


_NEXT = {
    ProcessStage.STARTING: (ProcessStage.WARMING, ProcessStage.SERVING, ProcessStage.ENDED),
    ProcessStage.WARMING: (ProcessStage.SERVING, ProcessStage.ENDED),
    ProcessStage.SERVING: (ProcessStage.LEAVING, ProcessStage.STARTING, ProcessStage.ENDED),
    ProcessStage.LEAVING: (ProcessStage.STARTING, ProcessStage.ENDED),
}
"""Which stages may follow a stage of a sidecar."""


class Sidecar(Owner, ABC):
    """A process that runs one instance after another, with what outlives them.

        starting -> warming -> serving -> leaving -> ended
                                ^   |        |
                                |   v        |
                              starting <-----+

    It starts again between a life that is over and the one in which that goes on. `node`: the registered
    instance; None before the first one and between two. `memory`: the arena, which nothing uses any more when
    it is closed at the end.
    """

    memory: Arena

    def __init__(
        self,
        options: Options,
        graph: Graph,
        coordination: EtcdCoordination,
        certificates: Certificates | None,
        asked: Asked,
    ) -> None:
        self.stage = ProcessStage.STARTING
        self.node: Node | None = None
        self.options = options
        self.graph = graph
        self.coordination = coordination
        self.certificates = certificates
        self.asked = asked
        self.ended = Ended()

    async def run(self, leave_s: float) -> int:
        """Run until the core says Stop for good, or the process has left, for which it has `leave_s`. Returns
        the exit code."""
        node: Node | None = None
        probes = await self.answer_probes()
        try:
            self.enter(ProcessStage.WARMING)
            if not await self.warm():
                return 0
            node = await live(self.options.instance, self, self.asked, leave_s)
        finally:
            self.enter(ProcessStage.ENDED)
            if probes is not None:
                probes.close()
            await self.close()
            await (self.coordination.close() if node is None else node.close(leave=not _lingers(node)))
            self.memory.close()
        return EXIT_STOPPED if node.stopped.done() and not self.asked.is_set() else 0

    def hands_over(self) -> bool:
        """Whether somebody may take over what this process has: its graph goes on."""
        return not self.asked.at_once.is_set() and not self.ended.is_set()

    def on_key_changed(self, name: str, value: bytes | None, revision: int) -> None:
        """See `Owner`."""
        self.ended.on_key_changed(name, value)

    def instance(
        self,
        machine: Machine,
        name: InstanceId,
        of: str,
        factory: PayloadFactory,
        life: int,
        former: InstanceId | None,
    ) -> Node:
        """The instance of one life around its machine."""
        options = self.options
        listen = listen_at(options.listen, life)
        settings = NodeSettings(options.graph_uid, listen, options.advertise, self.certificates, True, former)
        coordination = options.access.coordination() if life else self.coordination
        return Node(machine, name, of, coordination, factory, self, settings)

    def enter(self, stage: ProcessStage) -> None:
        """The process has come so far."""
        assert stage in _NEXT[self.stage], f"{stage} after {self.stage}"
        self.stage = stage

    @abstractmethod
    async def answer_probes(self) -> asyncio.Server | None:
        """Listen for probes. Raises OSError and WireError."""

    @abstractmethod
    async def warm(self) -> bool:
        """Wait for what the first instance begins with. False: the process was asked to end first."""

    @abstractmethod
    async def begin(self, name: InstanceId, life: int) -> Node:
        """Make the instance of one life: its id, and which life it is, from 0."""

    @abstractmethod
    async def start(self, node: Node) -> None:
        """Register an instance. Raises CoordinationError and OSError."""

    @abstractmethod
    def between(self, node: Node) -> None:
        """Keep what the next life goes on with: this one is over."""

    @abstractmethod
    async def leave(self, node: Node, within_s: float) -> None:
        """Ask the instance to hand over, and wait until it has stopped, for so many seconds at most."""

    @abstractmethod
    async def close(self) -> None:
        """Close what this process has besides its instance, which is closed after it."""


def fresh_id(first: InstanceId) -> InstanceId:
    """An id never used before, by which people still see where it comes from. `first` is the process's
    own."""
    return f"{first}-{secrets.token_hex(4)}"


def listen_at(listen: str, life: int) -> str:
    """Where peers of one life connect: not where they knew the one before."""
    return f"{listen}.{life}" if life and listen.startswith("unix:") else listen


async def live(first: InstanceId, process: Sidecar, asked: Asked, leave_s: float) -> Node:
    """Run one life after another until one ends for good, or has left when `asked` is set; the last node,
    still open.

    `leave_s` is for all lives together. The first start may fail (CoordinationError, OSError); a later one
    waits for etcd, for its state may be the last one there is.
    """
    life = 0
    node = await process.begin(first, life)
    await _start(process, node)
    leaves_by: float | None = None
    while True:
        await node.until_stopped(asked)
        if asked.is_set() and not node.stopped.done():
            leaves_by = node.now() + leave_s if leaves_by is None else leaves_by
            process.enter(ProcessStage.LEAVING)
            await process.leave(node, max(leaves_by - node.now(), 0.0))
        if asked.at_once.is_set() or not node.stopped.done() or node.stopped.result().keep is None:
            return node
        process.enter(ProcessStage.STARTING)
        process.between(node)
        await node.close(leave=True)
        while True:
            life += 1
            node = await process.begin(fresh_id(first), life)
            try:
                await _start(process, node)
                break
            except CoordinationError as error:
                if asked.is_set() and leaves_by is None:
                    leaves_by = node.now() + leave_s
                if asked.at_once.is_set() or (leaves_by is not None and node.now() >= leaves_by):
                    raise
                log.warning("the state of %s waits for etcd: %s", first, error)
                await asyncio.sleep(limits.return_pause_s)
        log.warning("%s goes on as %s", first, node.instance)


def _lingers(node: Node) -> bool:
    return node.stopped.done() and node.stopped.result().lingers


async def _start(process: Sidecar, node: Node) -> None:
    try:
        await process.start(node)
    except BaseException:
        await node.close(leave=False)
        raise
    process.enter(ProcessStage.SERVING)
