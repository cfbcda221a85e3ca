"""What a network may do to chosen messages: hold them back, so that they arrive late and out of order, or
lose them.

Every protocol message may be late, lost or overtaken (protocol.md, "Tolerated"). Chance seldom picks the one
that matters; a rule does. A rule never changes, forges or repeats a message, and it ends with its fault.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from hams_protocol import messages as core_messages
from hams_protocol.ids import UnitId, ValueId
from hams_protocol.messages import Deliver, Message

if TYPE_CHECKING:
    from hams_sim.node import Node

Chosen = Callable[["Node"], bool]
"""Whether a rule is about this sender or receiver."""


def kinds_of(names: str) -> frozenset[type]:
    """Message types by their names, `|` between them."""
    return frozenset(getattr(core_messages, name) for name in names.split("|"))


class Rule:
    """Messages of these kinds between these instances are held back for about `delay_s`, or lost if that is
    below zero.

    `replaced`: only the first delivery of a value that takes the place of another one on its edge.
    """

    __slots__ = ("delay_s", "kinds", "receiver", "replaced", "sender")

    def __init__(
        self, kinds: frozenset[type], sender: Chosen, receiver: Chosen, delay_s: float, replaced: bool = False
    ) -> None:
        self.kinds = kinds
        self.sender = sender
        self.receiver = receiver
        self.delay_s = delay_s
        self.replaced = replaced


class Adversary:
    """The rules in force. `delay` says what becomes of a message: None if no rule is about it."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.rules: list[Rule] = []
        self._sent: dict[tuple[str, str, UnitId], ValueId] = {}

    def delay(self, sender: "Node", receiver: "Node", message: Message) -> float | None:
        """Seconds to hold this message back, below zero to lose it, None to let it pass."""
        replaced = isinstance(message, Deliver) and self._is_replaced(message)
        for rule in self.rules:
            if (
                type(message) in rule.kinds
                and rule.sender(sender)
                and rule.receiver(receiver)
                and (replaced or not rule.replaced)
            ):
                return rule.delay_s if rule.delay_s < 0 else rule.delay_s * (0.5 + self._rng.random())
        return None

    def _is_replaced(self, message: Deliver) -> bool:
        token = message.token
        edge = (token.source, message.target, token.unit)
        before = self._sent.get(edge)
        self._sent[edge] = token.value_id
        return before is not None and before != token.value_id
