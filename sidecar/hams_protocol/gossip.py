"""Topologies pass from instance to instance, besides etcd's watch: an instance that meets a newer generation
asks for it, and one that meets an older one sends its own (protocol.md, section 6).

A topology is large, and tokens come by the thousand. So a peer is asked, or told unasked, once for all that
comes of it, until a newer topology is learnt here. What is lost is said again at what comes later.
"""

from hams_protocol import limits
from hams_protocol.context import Context
from hams_protocol.due import FOREVER
from hams_protocol.handlers import Handlers
from hams_protocol.ids import InstanceId
from hams_protocol.knowledge import Knowledge
from hams_protocol.messages import AskTopology, Heartbeat, TopologyNews


class Gossip:
    """What one machine asks and tells. What it is told, the machine takes over itself."""

    def __init__(self, ctx: Context, knowledge: Knowledge, handlers: Handlers) -> None:
        self._ctx = ctx
        self._knowledge = knowledge
        self._generation = -1
        self._asked_at: dict[InstanceId, float] = {}
        self._told_at: dict[InstanceId, float] = {}
        handlers.on(Heartbeat, self.heard)
        handlers.on(AskTopology, self._answer)

    def ask(self, peer: InstanceId) -> None:
        """For the newest topology that this peer knows, unless it has just been asked."""
        if self._is_first(peer, self._asked_at):
            self._ctx.send(peer, AskTopology(self._knowledge.topology.generation))

    def tell(self, peer: InstanceId) -> None:
        """The newest topology known here, unless the peer has just been told."""
        if self._is_first(peer, self._told_at):
            self._send(peer)

    def peer_up(self, peer: InstanceId) -> None:
        """The connection to `peer` was made anew: what was said may have been lost."""
        self._asked_at.pop(peer, None)
        self._told_at.pop(peer, None)

    def _is_first(self, peer: InstanceId, said_at: dict[InstanceId, float]) -> bool:
        """Whether this has not been said to `peer` lately, under this topology. It is said now."""
        generation, now = self._knowledge.topology.generation, self._ctx.now
        if generation != self._generation:
            self._generation = generation
            self._asked_at.clear()
            self._told_at.clear()
        if now < said_at.get(peer, -FOREVER) + limits.topology_again_s:
            return False
        said_at[peer] = now
        return True

    def heard(self, sender: InstanceId, beat: Heartbeat) -> None:
        """A heartbeat says which generation its sender knows."""
        if beat.generation > self._knowledge.topology.generation:
            self.ask(sender)

    def _answer(self, sender: InstanceId, question: AskTopology) -> None:
        if self._knowledge.topology.generation > question.generation:
            self._send(sender)

    def _send(self, peer: InstanceId) -> None:
        self._ctx.send(peer, TopologyNews(self._knowledge.topology, self._knowledge.revision))
