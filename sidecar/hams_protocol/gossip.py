"""Topologies pass from instance to instance, besides etcd's watch: an instance that meets a newer generation
asks for it, and one that meets an older one sends its own (protocol.md, section 6)."""

from hams_protocol.context import Context
from hams_protocol.handlers import Handlers
from hams_protocol.ids import InstanceId
from hams_protocol.knowledge import Knowledge
from hams_protocol.messages import AskTopology, Heartbeat, TopologyNews


class Gossip:
    """What one machine asks and tells. What it is told, the machine takes over itself."""

    def __init__(self, ctx: Context, knowledge: Knowledge, handlers: Handlers) -> None:
        self._ctx = ctx
        self._knowledge = knowledge
        handlers.on(Heartbeat, self.heard)
        handlers.on(AskTopology, self._asked)

    def ask(self, peer: InstanceId) -> None:
        """For the newest topology that this peer knows."""
        self._ctx.send(peer, AskTopology(self._knowledge.topology.generation))

    def tell(self, peer: InstanceId) -> None:
        """The newest topology known here."""
        self._ctx.send(peer, TopologyNews(self._knowledge.topology, self._knowledge.revision))

    def heard(self, sender: InstanceId, beat: Heartbeat) -> None:
        """A heartbeat says which generation its sender knows."""
        if beat.generation > self._knowledge.topology.generation:
            self.ask(sender)

    def _asked(self, sender: InstanceId, question: AskTopology) -> None:
        if self._knowledge.topology.generation > question.generation:
            self.tell(sender)
