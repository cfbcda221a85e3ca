"""A fresh primary that gets its state from a keeper before its epoch begins (protocol.md, section 7.2).

Invariant: it executes nothing and calls nothing durable before it holds the record of the end. A keeper that
is gone meanwhile cannot give it any more: the instance stops, so that managers see that the state may be
lost, instead of a primary that has none.
"""

from typing import TYPE_CHECKING

from hams_protocol import limits
from hams_protocol.due import FOREVER, Due
from hams_protocol.ids import InstanceId
from hams_protocol.messages import AskCopy, Message, RecordAck, StateCopy
from hams_protocol.stateful.role import Role

if TYPE_CHECKING:
    from hams_protocol.stateful.machine import StatefulMachine


class Fetching(Role):
    """The question to one keeper, and what is known of that."""

    def __init__(self, machine: "StatefulMachine", keeper: InstanceId, epoch: int, end: int) -> None:
        super().__init__(machine.ctx)
        self._m = machine
        self._keeper = keeper
        self.epoch = epoch
        self._end = end
        self._again_at = FOREVER
        # Who was never reached is not said to be out of reach.
        self._down_since = FOREVER if keeper in machine.links.up else machine.ctx.now
        self._heard_at = machine.ctx.now

    def ask(self) -> None:
        """For the copy, whole."""
        self._again_at = self._ctx.now + limits.resend_after_s
        generation = self._m.knowledge.topology.generation
        self._ctx.send(self._keeper, AskCopy(self._m.operator.name, self.epoch, -1, generation))

    def acknowledged(self, sender: InstanceId, ack: RecordAck) -> None:
        """The keeper knows this epoch now: a question that came before it did was in vain. Or it holds
        nothing, and never will."""
        if sender != self._keeper or ack.epoch != self.epoch:
            return
        if ack.received < 0:
            self._m.stop_without_state(f"its state was with {self._keeper}, which holds nothing")
        else:
            if self._down_since != FOREVER and self._keeper not in self._m.links.down:
                self._down_since = self._ctx.now  # it lives; whether it hears anything is yet to be seen
            self._heard_at = self._ctx.now
            self.ask()

    @property
    def name(self) -> str:
        """It has no state yet, as a joiner has none."""
        return "joining"

    @property
    def is_ready(self) -> bool:
        """See `Role`."""
        return False

    def message(self, sender: InstanceId, message: Message) -> None:
        """The keeper's copy."""
        if isinstance(message, StateCopy):
            self._copied(sender, message)

    def _copied(self, sender: InstanceId, copy: StateCopy) -> None:
        """What came: the record of the end, or something else that is of no use."""
        if sender != self._keeper or (copy.op, copy.epoch, copy.version) != (
            self._m.operator.name,
            self.epoch,
            self._end,
        ):
            return
        self._m.fetched(copy)

    def peer_up(self, peer: InstanceId) -> None:
        """The connection to the keeper stands (again)."""
        if peer != self._keeper:
            return
        self._down_since = FOREVER
        self.ask()

    def peer_down(self, peer: InstanceId, refused: bool) -> None:
        """The keeper cannot be reached."""
        if peer == self._keeper:
            self._down_since = min(self._down_since, self._ctx.now)

    def late(self, by_s: float) -> None:
        """This instance's own loop was late: that the connection stands may lie unread."""
        if self._down_since != FOREVER:
            self._down_since = min(self._down_since + by_s, self._ctx.now)
        self._heard_at = min(self._heard_at + by_s, self._ctx.now)

    def dues(self) -> list[Due]:
        """Ask again; end where the keeper has gone."""
        return [
            (self._again_at, self.ask),
            (self._down_since + limits.backup_lag_max_s, self._give_up),
            (self._silent_at, self._give_up),
        ]

    @property
    def _silent_at(self) -> float:
        """When a keeper that hangs has been waited for for long enough: its connection may stand for ever. By
        receipt it waits for what the end depends on."""
        copied_s = limits.keeper_state_bytes_max / limits.stream_floor_bytes_s
        return FOREVER if self._m.by_receipt else self._heard_at + limits.silence_max_s + copied_s

    def _give_up(self) -> None:
        if self._m.keeper.is_needed:
            # It would have to stay until it is let go. Two that keep each other's state never would be.
            self._heard_at = self._ctx.now
            if self._down_since != FOREVER:
                self._down_since = self._ctx.now
            return
        self._m.stop_without_state(f"its state was with {self._keeper}, which cannot be reached")
