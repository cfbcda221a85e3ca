"""The changes of the topology that one instance proposes: one compare-and-swap at a time.

Nothing is proposed before the outcome of the last proposal is known. If that was unknown, or lost to another
change, the next one waits a while, unless more is known by then than when it was made: that tells what became
of it, or what won.
"""

from hams_protocol import limits
from hams_protocol.context import Context
from hams_protocol.due import FOREVER
from hams_protocol.effects import Propose
from hams_protocol.knowledge import Knowledge
from hams_protocol.topology import Topology


class Proposals:
    """Whether one is under way, and when the next may be made."""

    def __init__(self, ctx: Context, knowledge: Knowledge) -> None:
        self._ctx = ctx
        self._knowledge = knowledge
        self._under_way = False
        self._made_in = self._failed_in = (-1, -1)
        self._not_before = -FOREVER

    @property
    def at(self) -> float:
        """When the next one may be made, if nothing more comes. One from a topology that is known from a peer
        only, without its revision, fails, and so tells what etcd has."""
        if self._under_way:
            return FOREVER
        return self._not_before if self._known == self._failed_in else -FOREVER

    @property
    def _known(self) -> tuple[int, int]:
        """By generation and revision."""
        return self._knowledge.topology.generation, self._knowledge.revision

    @property
    def may_propose(self) -> bool:
        """Whether that is now."""
        return self._ctx.now >= self.at

    def propose(self, changed: Topology) -> None:
        """Make one."""
        self._under_way = True
        self._made_in = self._known
        self._ctx.emit(Propose(self._knowledge.revision, changed))

    def settled(self, failed: bool) -> None:
        """It is committed; or it `failed`: it was overtaken, or nobody knows yet what became of it."""
        self._under_way = False
        self._failed_in = self._made_in if failed else (-1, -1)
        self._not_before = self._ctx.now + limits.propose_retry_s
