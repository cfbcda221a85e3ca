"""A replica that a manager's Freeze keeps from going on (protocol.md, section 7)."""

from hams_protocol import limits
from hams_protocol.context import Context
from hams_protocol.due import FOREVER, Due, Timed
from hams_protocol.ids import InstanceId
from hams_protocol.knowledge import Knowledge
from hams_protocol.messages import Freeze, Refused
from hams_protocol.replica.proposals import Proposals


class Frozen(Timed):
    """Since which generation a replica stands still, -1 if it does not; a higher one ends it: that attempt
    can no longer commit.

    Whoever froze it may have given up, or be gone, while its set lives: after a while this instance ends the
    attempt itself, by proposing the next generation with nothing changed. Without `proposals` it never does:
    a keeper leaves that to the managers, for whoever froze it has revoked the primary before.
    """

    def __init__(self, ctx: Context, knowledge: Knowledge, proposals: Proposals | None) -> None:
        super().__init__(ctx)
        self._ctx = ctx
        self._knowledge = knowledge
        self._proposals = proposals
        self._thaw_at = FOREVER
        self.generation = -1

    @property
    def stands(self) -> bool:
        """Whether nothing is taken, applied or committed."""
        return self.generation >= 0

    def freeze(self, generation: int) -> None:
        """Stand still until a higher generation is learnt."""
        self.hold(generation)
        self._thaw_at = self._ctx.now + limits.frozen_max_s

    def hold(self, generation: int) -> None:
        """The same, for a change that this instance has proposed itself, and ends itself."""
        self.generation = max(self.generation, generation)

    def thaw(self, generation: int) -> None:
        """This generation is known."""
        if generation > self.generation:
            self.generation = -1
            self._thaw_at = FOREVER

    def dues(self) -> list[Due]:
        """End a freeze that nobody ends."""
        if self._proposals is None or self._thaw_at == FOREVER:
            return []
        return [(max(self._thaw_at, self._proposals.at), self._end)]

    def _end(self) -> None:
        if self._proposals is not None:
            self._thaw_at = self._ctx.now + limits.frozen_max_s
            self._proposals.propose(self._knowledge.topology.next())


def refusal(freeze: Freeze, instance: InstanceId, generation: int) -> Refused | None:
    """What an instance says that knows another topology, of `generation`, than a manager's question was made
    from."""
    if freeze.generation != generation:
        return Refused(freeze.attempt, generation, freeze.name, f"{instance} knows generation {generation}")
    return None
