"""The values that the parts of one frontend machine share: its id, its knowledge, and the effects of the
present step."""

from hams_protocol.context import Context
from hams_protocol.frontend.plan import Plan
from hams_protocol.graph import Graph
from hams_protocol.ids import InstanceId
from hams_protocol.knowledge import Knowledge
from hams_protocol.lateness import Lateness
from hams_protocol.modes import ModePolicy

FOREVER = float("inf")


class FrontendContext(Context):
    """Shared by the parts of one frontend.

    `down` are the peers whose connection is broken, since when; at the address of the `refused` ones nobody
    listens. `wishing`: a shard's set may have to be changed by its owner. `lateness`: of this instance's own
    loop. `draining`: this instance is to end. `thaw_at`: what a manager froze here and nobody has ended by
    then, this instance ends.
    """

    def __init__(self, graph: Graph, instance: InstanceId) -> None:
        super().__init__()
        self.graph = graph
        self.instance = instance
        self.knowledge = Knowledge(graph)
        self.mode = ModePolicy.of(graph.data.mode)
        self.plan = Plan(graph)
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
