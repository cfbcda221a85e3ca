"""One process, one instance after another: who stops with a state that may be needed yet goes on under a
fresh id, and brings it along.

Only where the core says so (`Stop.keep`); every other end of an instance is the end of its process, and its
supervisor starts a fresh one. That holds for a process that is asked to end as well: what it keeps may be the
last there is, so it leaves with it only when its time is over. Each life has its own connection to etcd, its
own peers and its own history; model, memory and endpoint outlive them.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable

from hams_protocol.ids import InstanceId
from hams_sidecar import limits
from hams_wire import succession
from hams_wire.errors import CoordinationError
from hams_wire.node import Node
from hams_wire.process import Asked

log = logging.getLogger("hams.process")


class Ended(asyncio.Event):
    """Set once the graph has ended: another shape has taken over, or (`deleted`) nobody will."""

    deleted = False

    def noted(self, name: str, value: bytes | None) -> None:
        """A key of this graph, as it is or as it has become."""
        if name == succession.ENDED and value is not None:
            self.deleted = value == succession.NOBODY
            self.set()


Begin = Callable[[InstanceId, int], Awaitable[Node]]
"""Makes the instance of one life: its id, and which life it is, from 0."""


def fresh_id(first: InstanceId) -> InstanceId:
    """An id never used before, by which people still see where it comes from. `first` is the process's
    own."""
    return f"{first}-{secrets.token_hex(4)}"


def listen_at(listen: str, life: int) -> str:
    """Where peers of one life connect: not where they knew the one before."""
    return f"{listen}.{life}" if life and listen.startswith("unix:") else listen


async def live(
    first: InstanceId,
    begin: Begin,
    start: Callable[[Node], Awaitable[None]],
    between: Callable[[Node], None],
    asked: Asked,
    leave: Callable[[Node, float], Awaitable[None]],
    leave_s: float,
) -> Node:
    """Run one life after another until one ends for good, or has left when `asked` is set; the last node,
    still open.

    `leave` asks a node to hand over, and waits until it has stopped, for so many seconds at most: `leave_s`
    for all lives together. `between` is told of each life that is over and goes on in another. The first
    start may fail (CoordinationError, OSError); a later one waits for etcd, for its state may be the last one
    there is.
    """
    life = 0
    node = await begin(first, life)
    await _start(node, start)
    leaves_by: float | None = None
    while True:
        await node.until_stopped(asked)
        if asked.is_set() and not node.stopped.done():
            leaves_by = node.now() + leave_s if leaves_by is None else leaves_by
            await leave(node, max(leaves_by - node.now(), 0.0))
        if asked.at_once.is_set() or not node.stopped.done() or node.stopped.result().keep is None:
            return node
        between(node)
        await node.close(leave=True)
        while True:
            life += 1
            node = await begin(fresh_id(first), life)
            try:
                await _start(node, start)
                break
            except CoordinationError as error:
                if asked.is_set() and leaves_by is None:
                    leaves_by = node.now() + leave_s
                if asked.at_once.is_set() or (leaves_by is not None and node.now() >= leaves_by):
                    raise
                log.warning("the state of %s waits for etcd: %s", first, error)
                await asyncio.sleep(limits.return_pause_s)
        log.warning("%s goes on as %s", first, node.instance)


async def _start(node: Node, start: Callable[[Node], Awaitable[None]]) -> None:
    try:
        await start(node)
    except BaseException:
        await node.close(leave=False)
        raise
