"""What managers and operators' new owners ask a frontend: is it alive, how far goes its log, what has it
received from a slot.

Answers commit to nothing but what protocol.md says: who has answered a Freeze takes and commits nothing more
of that epoch until it learns a higher generation; who has answered a SlotQuery refuses the slot's former
owner for ever.
"""

from hams_protocol.frontend.context import FrontendContext
from hams_protocol.frontend.roles import ShardRoles
from hams_protocol.ids import InstanceId, Lane, RequestId
from hams_protocol.messages import (
    HOLDS,
    AskDeterminants,
    Determinants,
    Fence,
    Freeze,
    FreezeAnswer,
    Health,
    Kind,
    Probe,
    ProbeAnswer,
    Refused,
    RoleReport,
    SlotAnswer,
    SlotQuery,
    Token,
)
from hams_protocol.replica.freeze import refusal
from hams_protocol.stateful.keeper import Keeper
from hams_protocol.topology import slot_number


class Questions:
    """Answers questions out of what the shards of this instance hold."""

    def __init__(self, ctx: FrontendContext, roles: ShardRoles, keeper: Keeper) -> None:
        self._keeper = keeper
        self._ctx = ctx
        self._roles = roles

    def probe(self, sender: InstanceId, message: Probe) -> None:
        """Alive, in these roles."""
        former = self._roles.former
        reports = tuple(
            RoleReport(item.name, item.role, item.epoch, item.last, item.role != "joining")
            for item in self._roles.statuses()
        )
        if former is not None:
            reports += tuple(
                RoleReport(self._roles.names[shard], HOLDS, log.epoch, log.last, False)
                for shard, log in former.logs.items()
            )
        reports += self._keeper.reports()
        self._ctx.send(sender, ProbeAnswer(message.nonce, Health.HEALTHY, self._ctx.generation, reports))

    def freeze(self, sender: InstanceId, message: Freeze) -> None:
        """Take and commit nothing more of this epoch, until a higher generation is learnt; say how far the
        log goes."""
        ctx, roles = self._ctx, self._roles
        shard = roles.numbers.get(message.name, -1)
        refused = refusal(message, ctx.instance, ctx.generation)
        if refused is not None:
            ctx.send(sender, refused)
            return
        owner, follower = roles.owners.get(shard), roles.followers.get(shard)
        if owner is not None and owner.epoch == message.epoch:
            owner.frozen.freeze(message.generation)
        elif follower is not None and follower.epoch == message.epoch:
            follower.following.frozen.freeze(message.generation)
        log = roles.log_of(shard)
        applied = log.last if log is not None and log.epoch == message.epoch else None
        ctx.send(
            sender, FreezeAnswer(message.attempt, message.generation, message.name, message.epoch, applied)
        )

    def fence(self, sender: InstanceId, message: Fence) -> None:
        """Never asked of a frontend by who knows the graph."""
        self._ctx.send(
            sender,
            Refused(
                message.attempt,
                self._ctx.generation,
                message.name,
                "a frontend has no state that depends on ends",
            ),
        )

    def slot_query(self, sender: InstanceId, message: SlotQuery) -> None:
        """Fence the slot's former owner, then say for each shard of this instance which of its tokens are
        here for open requests.

        For shards that it follows it says nothing: their owner may have received a value, and logged it, and
        not have sent that here yet.
        """
        ctx, roles = self._ctx, self._roles
        ctx.knowledge.fence(message.op, message.slot, message.epoch)
        for owner in roles.owners.values():
            self._answer(sender, message, owner.held_from(message.op), (owner.name, owner.epoch))

    def determinants(self, sender: InstanceId, ask: AskDeterminants) -> None:
        """What each shard's owner knows of how versions came about; none if it knows of an older topology
        only."""
        if self._ctx.generation < ask.generation:
            return
        known = self._ctx.knowledge.determinants
        for owner in self._roles.owners.values():
            known.learn(owner.determinants())
            led = (owner.name, owner.epoch)
            items = known.above(ask.op, ask.above)
            self._ctx.send(sender, Determinants(ask.op, ask.epoch, self._ctx.generation, items, led))

    def _answer(self, sender: InstanceId, query: SlotQuery, held: list[Token], led: tuple[str, int]) -> None:
        knowledge = self._ctx.knowledge
        slots = len(knowledge.slots_of(query.op))
        by_lane: dict[tuple[RequestId, Lane], Token] = {}
        for token in held:
            if (
                token.kind is not Kind.SKIP or (token.request, token.lane) not in by_lane
            ):  # it may have passed one sink over, and fed another
                by_lane[token.request, token.lane] = token
        tokens = tuple(
            knowledge.leaving(token, self._ctx.now)
            for token in by_lane.values()
            if slots
            and slot_number(token.request, slots) == query.slot
            and token.request not in knowledge.completed
        )
        self._ctx.send(sender, SlotAnswer(query.op, query.slot, query.epoch, tokens, led))
