"""The changes of the topology that a frontend proposes itself: of its own shards' sets, and their handoff
when it drains.

One proposal at a time (`Proposals`). It decides nothing about other instances' roles (protocol.md, section
2).
"""

from collections.abc import Callable

from hams_protocol import limits
from hams_protocol.due import FOREVER, Due, Timed
from hams_protocol.frontend.context import FrontendContext
from hams_protocol.frontend.roles import ShardRoles
from hams_protocol.graph import FRONTEND
from hams_protocol.stateful.keeper import Keeper
from hams_protocol.topology import touch


class Changes(Timed):
    """`clients` says how many wait here, `stop` ends this instance."""

    def __init__(
        self,
        ctx: FrontendContext,
        roles: ShardRoles,
        keeper: Keeper,
        clients: Callable[[], int],
        stop: Callable[[str], None],
    ) -> None:
        super().__init__(ctx)
        self._ctx = ctx
        self._keeper = keeper
        self._roles = roles
        self._clients = clients
        self._stop = stop
        self.handing_off = False
        self._again_at = FOREVER

    def propose(self) -> None:
        """That the graph has its first request. Then the owner's own compare-and-swap: hand a shard over, or
        what the leader of its set wants.

        A handover in doubt whose successor is gone is ended by any other change from the same revision: only
        one of the two can be committed.
        """
        ctx, proposals = self._ctx, self._ctx.proposals
        if self.handing_off:
            self._again_at = ctx.now + limits.propose_retry_s
        if not proposals.may_propose:
            for owner in self._roles.owners.values():
                owner.closing = False
            return
        if self.has_first_request:
            proposals.propose(touch(ctx.knowledge.topology))
            return
        for owner in self._roles.owners.values():
            changed = owner.hand_over() if self.handing_off else None
            if changed is None and (
                owner.in_doubt or (owner.replication.wishing and not owner.frozen.stands)
            ):
                changed = owner.replication.next_change()
            if changed is None and owner.in_doubt:
                changed = ctx.knowledge.topology.next()
            if changed is not None:
                proposals.propose(changed)
                return

    @property
    def has_first_request(self) -> bool:
        """Whether a client waits here of a graph in which nothing was logged yet."""
        return self._ctx.knowledge.topology.untouched and self._clients() > 0

    def drain(self) -> None:
        """Ask to be let go where this instance counts, and hand its own shards over once no client waits
        here any more. Without a shard, or where nobody will ever come to take it, it is over then. Logs that
        it brought along may be the last: it stays until they are of no use."""
        waiting = self._clients() > 0
        ctx = self._ctx
        others = ctx.graph.data.frontend.replicas > 1 or any(
            member.of == FRONTEND and member.instance != ctx.instance for member in ctx.members.values()
        )
        followed = self._roles.counting()
        if not (self._roles.owners or followed) or not others:
            if not waiting and self._roles.former is None and not self._keeper.is_needed:
                self._stop("drained")
            return
        for following in followed:
            following.leave()
        if self._roles.owners and not self.handing_off and not waiting:
            self.handing_off = True
            self.propose()

    def dues(self) -> list[Due]:
        """A handoff under way, and that a first request came, are proposed again."""
        at = self._ctx.proposals.at
        again_at = -FOREVER if self.has_first_request else self._again_at
        return [(max(again_at, at), self.propose)]
