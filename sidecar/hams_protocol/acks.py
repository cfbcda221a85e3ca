"""Acknowledgements of tokens that wait a little (protocol.md, section 3): those of a request that completes
meanwhile need not be sent, for completion says more."""

from hams_protocol import limits
from hams_protocol.context import Context
from hams_protocol.due import FOREVER, Due, Timed
from hams_protocol.ids import InstanceId, Lane, RequestId, UnitId, ValueId
from hams_protocol.knowledge import Knowledge
from hams_protocol.messages import Token, TokenAck, TokenAcks


class OwedAcks(Timed):
    """What one instance owes to the senders of tokens. A token itself is not held: its payload should go with
    its request."""

    def __init__(self, ctx: Context, knowledge: Knowledge) -> None:
        super().__init__(ctx)
        self._ctx = ctx
        self._knowledge = knowledge
        self._owed: dict[InstanceId, list[tuple[str, str, RequestId, Lane, ValueId, int]]] = {}
        self._due = FOREVER

    def add(self, sender: InstanceId, token: Token, target: str, value_id: ValueId, epoch: int) -> None:
        """A value for `target` has come from `sender`, or is here already as `value_id`."""
        owed = self._owed.get(sender)
        if owed is None:
            owed = self._owed[sender] = []
        owed.append((token.source, target, token.request, token.lane, value_id, epoch))
        if self._due == FOREVER:
            self._due = self._ctx.now + limits.ack_delay_s

    def dues(self) -> list[Due]:
        """Acknowledge what was not completed in the meantime."""
        return [(self._due, self._send)]

    def _send(self) -> None:
        completed = self._knowledge.completed
        for peer, owed in self._owed.items():
            acks = [
                TokenAck(source, target, UnitId(request, lane), value_id, epoch)
                for source, target, request, lane, value_id, epoch in owed
                if request not in completed
            ]
            for first in range(0, len(acks), limits.acks_batch_max):
                self._ctx.send(peer, TokenAcks(tuple(acks[first : first + limits.acks_batch_max])))
        self._owed.clear()
        self._due = FOREVER
