"""Tokens that arrive at the frontend: which are taken, which are refused, which must wait for a topology
(protocol.md, sections 1, 3, 4).

Intake law (I3, I5): a sink token is taken only from an epoch not below the highest known for its source, only
if its dependencies are all known and none is orphan, and only once per (source, target, request, lane) among
tokens that are not orphan. What cannot be judged yet is held, bounded, and judged again on the next topology;
it is not acknowledged before.
"""

from hams_protocol.acks import OwedAcks
from hams_protocol.frontend.broadcast import CompletionBroadcast
from hams_protocol.frontend.context import FrontendContext
from hams_protocol.frontend.owner import COMPLETE, ShardOwner
from hams_protocol.gossip import Gossip
from hams_protocol.ids import InstanceId
from hams_protocol.knowledge import Status
from hams_protocol.messages import Deliver
from hams_protocol.topology import slot_number
from hams_protocol.undecided import Undecided


class SinkDesk:
    """Judges sink tokens for all shards that this instance owns, and acknowledges them."""

    def __init__(
        self,
        ctx: FrontendContext,
        owners: dict[int, ShardOwner],
        broadcast: CompletionBroadcast,
        gossip: Gossip,
        undecided: Undecided,
    ) -> None:
        self._ctx = ctx
        self._gossip = gossip
        self._owners = owners
        self._broadcast = broadcast
        self._undecided = undecided
        self.acks = OwedAcks(ctx, ctx.knowledge)

    def deliver(self, sender: InstanceId, message: Deliver, again: bool = False) -> None:
        """Judge one token."""
        token, ctx = message.token, self._ctx
        knowledge = ctx.knowledge
        if token.request in knowledge.completed:
            self._broadcast.wanted(sender)
            return
        if not again:
            knowledge.deadlines.learn(token.request, token.meta.budget_s, ctx.now)
        owner = self._owners.get(token.request.shard)
        number = ctx.plan.index.get((token.source, message.target, token.lane))
        if owner is None and not again and number is not None:
            self._undecided.hold(sender, message)  # its sender may know before us that the shard is ours
            return
        if owner is None or owner.frozen.stands or number is None:
            return
        live = owner.live.get(token.request.n)
        if live is None:
            return
        epoch = knowledge.source_epoch(token.source, token.request)
        if message.epoch < epoch:
            if not again:
                self._gossip.tell(sender)
            return
        if message.epoch > epoch:
            slots = knowledge.slots_of(token.source)
            if ctx.graph.operators[token.source].stateful or not slots:
                self._undecided.await_news(sender, message)
                return
            knowledge.fence(token.source, slot_number(token.request, len(slots)), message.epoch)
        if token.deps:
            status = knowledge.status(token.deps)
            if status is Status.ORPHAN:
                return
            if status is Status.UNKNOWN:
                self._undecided.await_news(sender, message)
                return
        knowledge.determinants.learn(token.determinants)
        held = live.tokens[number]
        if held is None and live.left == COMPLETE:
            return  # another execution: what the log calls complete was delivered in full to the owner before
        if held is None:
            owner.arrived(live, number, token)
            held = token
        if ctx.mode.retains:
            self.acks.add(sender, token, message.target, held.value_id, owner.epoch)
