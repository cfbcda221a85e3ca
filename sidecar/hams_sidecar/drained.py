"""Frontends of a deleted graph leave together: each may lead a shard in which a client of another one waits.

No frontend takes such a shard over any more. So one that has answered its own clients says so in etcd, and
stays until all that are there have. One that cannot say it leaves at once, lest the others wait for it: a
frontend that is gone is not waited for.
"""

import asyncio
import logging

from hams_protocol.graph import FRONTEND
from hams_protocol.ids import InstanceId
from hams_wire import records
from hams_wire.errors import CoordinationError, NoSpace, Unknown
from hams_wire.node import Node

drained_tries_max = 3
"""A frontend of a deleted graph says so often that no client waits at it, if it does not hear whether that
was written."""

log = logging.getLogger("hams.frontend")


class Drained:
    """The frontends at which no client waits, by what they have written below the graph's prefix."""

    def __init__(self, graph_uid: str) -> None:
        self._uid = graph_uid
        self._said: set[InstanceId] = set()

    def on_key_changed(self, name: str, value: bytes | None) -> None:
        """A key of this graph, as it is or as it has become."""
        if name.startswith(records.DRAINED) and value is not None:
            self._said.add(name.removeprefix(records.DRAINED))

    async def until_all(self, node: Node, *events: asyncio.Event, timeout_s: float) -> None:
        """Say it of `node`, and return when it is said of every frontend that is registered, or as
        `Node.until`."""

        def holds() -> bool:
            return all(
                member.of != FRONTEND or name in self._said or name == node.instance
                for name, member in node.members.items()
            )

        if await self._say(node):
            await node.until(holds, *events, timeout_s=timeout_s)

    async def _say(self, node: Node) -> bool:
        """Whether it is said. What may have been said is said once more: it is the same."""
        for _ in range(drained_tries_max):
            try:
                await node.tell(records.drained_key(self._uid, node.instance), b"")
                return True
            except CoordinationError as error:
                log.warning("clients that wait at other frontends may get no answer: %s", error)
                if isinstance(error, NoSpace) or not isinstance(error, Unknown):
                    break
        return False
