"""The values that the parts of one frontend machine share: its id, its knowledge, and the effects of the
present step."""

from hams_protocol.context import Context
from hams_protocol.events import Member
from hams_protocol.frontend.plan import Plan
from hams_protocol.frontend.promises import PromiseAccount
from hams_protocol.graph import Graph
from hams_protocol.ids import InstanceId
from hams_protocol.knowledge import Knowledge
from hams_protocol.lateness import Lateness
from hams_protocol.modes import ModePolicy
from hams_protocol.replica.links import Links
from hams_protocol.replica.proposals import Proposals


class FrontendContext(Context):
    """Shared by the parts of one frontend.

    `members` are the registered instances, `links` the broken connections, `lateness` is of this instance's
    own loop, `proposals` are those of all its shards, `promises` what became of those of all its shards.
    `draining`: this instance is to end.
    """

    def __init__(
        self,
        graph: Graph,
        instance: InstanceId,
        mode: ModePolicy | None = None,
        promises: PromiseAccount | None = None,
    ) -> None:
        super().__init__()
        self.graph = graph
        self.instance = instance
        self.knowledge = Knowledge(graph)
        self.mode = ModePolicy.of(graph.data.mode) if mode is None else mode
        self.plan = Plan(graph)
        self.draining = False
        self.promises = PromiseAccount() if promises is None else promises
        self.members: dict[InstanceId, Member] = {}
        self.links = Links()
        self.proposals = Proposals(self, self.knowledge)
        self.lateness = Lateness(graph.data.recovery.suspect_after_s)

    @property
    def generation(self) -> int:
        """The newest generation known."""
        return self.knowledge.topology.generation
