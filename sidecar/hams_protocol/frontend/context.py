"""What the parts of one frontend machine share: who they are, what they know, and the effects of the step
they are in."""

from hams_protocol.effects import Effect, Send
from hams_protocol.frontend.plan import Plan
from hams_protocol.graph import Graph
from hams_protocol.ids import InstanceId
from hams_protocol.knowledge import Knowledge
from hams_protocol.lateness import Lateness
from hams_protocol.messages import Message
from hams_protocol.modes import ModePolicy

FOREVER = float("inf")


class Context:
    """Shared by the parts of one machine. `out` collects the effects of the present step in their order;
    `now` is its time.

    `down` are the peers whose connection is broken, since when; at the address of the `refused` ones nobody
    listens. `wishing`: a shard's set may have to be changed by its owner. `lateness`: of this instance's own
    loop. `draining`: this instance is to end. `thaw_at`: what a manager froze here and nobody has ended by
    then, this instance ends.
    """

    __slots__ = (
        "down",
        "draining",
        "graph",
        "instance",
        "knowledge",
        "lateness",
        "mode",
        "now",
        "out",
        "plan",
        "refused",
        "thaw_at",
        "wishing",
    )

    def __init__(self, graph: Graph, instance: InstanceId) -> None:
        self.graph = graph
        self.instance = instance
        self.knowledge = Knowledge(graph)
        self.mode = ModePolicy.of(graph.data.mode)
        self.plan = Plan(graph)
        self.out: list[Effect] = []
        self.now = 0.0
        self.wishing = False
        self.draining = False
        self.thaw_at = FOREVER
        self.down: dict[InstanceId, float] = {}
        self.refused: set[InstanceId] = set()
        self.lateness = Lateness(graph.data.recovery.suspect_after_s)

    @property
    def generation(self) -> int:
        """The newest generation known."""
        return self.knowledge.topology.generation

    def send(self, target: InstanceId, message: Message) -> None:
        """Add a message to the effects of this step."""
        self.out.append(Send(target, message))


class InvariantError(Exception):
    """A rule of protocol.md does not hold here: this instance must not go on (ours, not retryable)."""
