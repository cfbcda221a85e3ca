"""A follower's ties to its leader, whatever it follows: asking for a copy, for leave, and standing still
(protocol.md, sections 2 and 7).

What it holds, and how it says so, is the business of `stateful.backup` and `frontend.follower`.
"""

from collections.abc import Callable

from hams_protocol import limits
from hams_protocol.context import Context
from hams_protocol.due import FOREVER, Due, Timed
from hams_protocol.ids import InstanceId
from hams_protocol.knowledge import Knowledge
from hams_protocol.messages import AskCopy, Leave
from hams_protocol.replica.freeze import Frozen
from hams_protocol.replica.proposals import Proposals
from hams_protocol.topology import ReplicaSet


class Following(Timed):
    """One follower, in sync or joining, in one epoch. `ask`: what it does to get on, as a joiner."""

    def __init__(
        self,
        ctx: Context,
        knowledge: Knowledge,
        proposals: Proposals | None,
        replica_set: ReplicaSet,
        in_sync: bool,
        ask: Callable[[], None],
    ) -> None:
        super().__init__(ctx)
        self._ctx = ctx
        self._knowledge = knowledge
        self._ask = ask
        self._ask_at = FOREVER
        self._leave_at = FOREVER
        self.name = replica_set.name
        self.epoch = replica_set.epoch
        self.leader: InstanceId | None = replica_set.primary
        self.in_sync = in_sync
        self.frozen = Frozen(ctx, knowledge, proposals)

    def named(self, replica_set: ReplicaSet, in_sync: bool) -> None:
        """A newer topology of the same epoch."""
        self.leader = replica_set.primary
        self.in_sync = in_sync
        self.frozen.thaw(self._knowledge.topology.generation)

    @property
    def may_be_admitted(self) -> bool:
        """Whether it is in sync, or may be without having heard of it. Whom the topology calls a joiner of a
        revoked leader is none: what that one proposes cannot be committed any more."""
        return self.in_sync or self.leader not in self._knowledge.topology.revoked

    def ask_copy(self, known: int, copy: int = 0, parts: int = -1) -> None:
        """Ask for a copy, or for what follows on the first `parts` of one, or to follow on from what is
        `known` here (-1: nothing)."""
        self.got_on()
        if self.leader is not None:
            generation = self._knowledge.topology.generation
            ask = AskCopy(self.name, self.epoch, known, generation, copy, parts)
            self._ctx.send(self.leader, ask)

    def got_on(self) -> None:
        """Its copy, or what follows on it, makes progress: it need not ask again soon."""
        self._ask_at = self._ctx.now + limits.copy_ask_after_s

    def leave(self) -> None:
        """This instance is to end: it says so again and again, and is a follower like any other until the
        topology names it no more."""
        if self._leave_at == FOREVER:
            self._ask_to_leave()

    def _ask_to_leave(self) -> None:
        self._leave_at = self._ctx.now + limits.resend_after_s
        if self.leader is not None:
            self._ctx.send(self.leader, Leave(self.name, self.epoch))

    def dues(self) -> list[Due]:
        """A joiner whose copy or admission makes no progress asks again, and so does one that is to be let
        go; a freeze that nobody ends."""
        ask_at = FOREVER if self.in_sync else self._ask_at
        return [(self._leave_at, self._ask_to_leave), (ask_at, self._ask), *self.frozen.dues()]
