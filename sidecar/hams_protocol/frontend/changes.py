"""The changes of the topology that a frontend proposes itself: of its own shards' sets, and their handoff
when it drains.

One proposal at a time, not before the outcome of the last one is known or `propose_retry_s` has passed. It
decides nothing about other instances' roles (protocol.md, section 2).
"""

from collections.abc import Callable

from hams_protocol import limits
from hams_protocol.effects import Propose
from hams_protocol.events import Member
from hams_protocol.frontend.context import FOREVER, FrontendContext
from hams_protocol.frontend.roles import ShardRoles
from hams_protocol.graph import FRONTEND
from hams_protocol.ids import InstanceId
from hams_protocol.stateful.keeper import Keeper
from hams_protocol.topology import Topology


class Changes:
    """`members` are the registered instances; `clients` says how many wait here, `stop` ends this
    instance."""

    def __init__(
        self,
        ctx: FrontendContext,
        roles: ShardRoles,
        keeper: Keeper,
        clients: Callable[[], int],
        stop: Callable[[str], None],
    ) -> None:
        self._ctx = ctx
        self._keeper = keeper
        self._roles = roles
        self._clients = clients
        self._stop = stop
        self.members: dict[InstanceId, Member] = {}
        self.handing_off = False
        self._proposing = False
        self._propose_at = 0.0

    def settled(self, failed: bool) -> None:
        """The outcome of a proposal: lost to another or unknown (`failed`), or committed."""
        self._proposing = False
        self._propose_at = self._ctx.now + (limits.propose_retry_s if failed else 0.0)

    def propose(self) -> None:
        """The owner's own compare-and-swap: hand a shard over, admit a joiner of the ack set, or drop a
        member that is dead or does not receive.

        A handover in doubt whose successor is gone is ended by any other change from the same revision: only
        one of the two can be committed.
        """
        ctx = self._ctx
        if self._proposing or ctx.knowledge.revision < 0 or ctx.now < self._propose_at:
            for owner in self._roles.owners.values():
                owner.closing = False
            return
        ctx.wishing = False
        for owner in self._roles.owners.values():
            changed = owner.hand_over(self.members) if self.handing_off else None
            if changed is None and (owner.halted < 0 or owner.in_doubt):
                changed = owner.replication.wish(ctx.knowledge.topology, self.members)
            if changed is None and owner.in_doubt:
                changed = ctx.knowledge.topology.next()
            if changed is not None:
                self._propose(changed)
                return
        if ctx.now >= ctx.thaw_at:
            # Who froze a shard here has given up, or is gone: the next generation, with nothing changed, ends
            # the attempt.
            self._propose(ctx.knowledge.topology.next())

    def _propose(self, changed: Topology) -> None:
        self._proposing = True
        self._propose_at = self._ctx.now + limits.propose_retry_s
        self._ctx.out.append(Propose(self._ctx.knowledge.revision, changed))

    def drain(self) -> None:
        """Ask to be let go where this instance is in sync, and hand its own shards over once no client waits
        here any more. Without a shard, or where nobody will ever come to take it, it is over then. Logs that
        it brought along may be the last: it stays until they are of no use."""
        waiting = self._clients() > 0
        others = self._ctx.graph.data.frontend.replicas > 1 or any(
            member.of == FRONTEND and member.instance != self._ctx.instance
            for member in self.members.values()
        )
        followed = [item for item in self._roles.followers.values() if not item.joining]
        if not (self._roles.owners or followed) or not others:
            if not waiting and self._roles.kept is None and not self._keeper.is_needed:
                self._stop("drained")
            return
        for follower in followed:
            follower.leave()
        if self._roles.owners and not self.handing_off and not waiting:
            self.handing_off = True
            self.propose()

    @property
    def propose_at(self) -> float:
        """Not before this time is anything proposed."""
        return FOREVER if self._proposing or self._ctx.knowledge.revision < 0 else self._propose_at

    def deadline(self) -> float:
        """When a handoff under way should be looked at again, or a freeze that nobody has ended."""
        again = max(self.propose_at, self._ctx.now + limits.propose_retry_s) if self.handing_off else FOREVER
        return min(again, max(self.propose_at, self._ctx.thaw_at))
