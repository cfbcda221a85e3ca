"""Messages that cannot be judged before the next topology (intake law, protocol.md, sections 1, 3 and 6).

Their senders may know an epoch, or a role, that this instance has not learnt yet. To drop them would cost
whoever waits for them the time until they are sent again. Bounded in number and bytes. What does not fit
makes the oldest go; none of them is acknowledged, so its sender sends it again. What is asked again is held
once.
"""

from dataclasses import replace

from hams_protocol import limits
from hams_protocol.context import Context
from hams_protocol.gossip import Gossip
from hams_protocol.ids import InstanceId
from hams_protocol.messages import (
    AskCopy,
    AskDeterminants,
    ClientForward,
    Deliver,
    LogAppend,
    SlotQuery,
    StateCopy,
    StateRecord,
)
from hams_protocol.sizes import carried_nbytes, entry_nbytes, payload_nbytes, token_nbytes

Early = Deliver | ClientForward | LogAppend | StateCopy | StateRecord | AskCopy | SlotQuery | AskDeterminants
"""Messages that may come before the topology by which they are judged."""


class Held:
    """One message, who sent it, and when it came."""

    __slots__ = ("at", "message", "nbytes", "sender")

    def __init__(self, sender: InstanceId, message: Early, at: float) -> None:
        self.sender = sender
        self.message = message
        self.at = at
        self.nbytes = _nbytes(message)


class Undecided:
    """The messages held, in the order in which they came."""

    def __init__(self, ctx: Context, gossip: Gossip) -> None:
        self._ctx = ctx
        self._gossip = gossip
        self._held: dict[str, Held] = {}
        self._count = 0
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, sender: InstanceId, message: Early) -> None:
        """One more. It stays until the next topology, unless it is pushed out by then. A state larger than
        all that may be held is not: it would push out everything."""
        held = Held(sender, message, self._ctx.now)
        if held.nbytes > limits.undecided_bytes_max and isinstance(message, (StateCopy, StateRecord)):
            return
        name = self._name(sender, message)
        before = self._held.get(name)
        if before is not None:
            if _only_asks(message, before.message):
                return
            del self._held[name]
            self.nbytes -= before.nbytes
        self._held[name] = held
        self.nbytes += held.nbytes
        while len(self._held) > limits.undecided_messages_max or (
            self.nbytes > limits.undecided_bytes_max and len(self._held) > 1
        ):
            self.nbytes -= self._held.pop(next(iter(self._held))).nbytes

    def await_news(self, sender: InstanceId, message: Early) -> None:
        """One more, whose sender may know the topology that it waits for."""
        self.hold(sender, message)
        self._gossip.ask(sender)

    def take(self) -> list[tuple[InstanceId, Early]]:
        """All of them, to be judged again: nothing is held any more. A client waits no longer than it would
        have if its request had been judged at once."""
        taken: list[tuple[InstanceId, Early]] = []
        for held in self._held.values():
            message = held.message
            if isinstance(message, ClientForward) and message.meta.budget_s > 0:
                left_s = message.meta.budget_s - (self._ctx.now - held.at)
                if left_s <= 0:
                    continue
                message = replace(message, meta=replace(message.meta, budget_s=left_s))
            taken.append((held.sender, message))
        self._held.clear()
        self.nbytes = 0
        return taken

    def _name(self, sender: InstanceId, message: Early) -> str:
        """What is asked again has the name that it had before."""
        if isinstance(message, ClientForward):
            return f"{sender} forward {message.shard} {message.counter}"
        if isinstance(message, SlotQuery):
            return f"{sender} slot {message.op} {message.slot}"
        if isinstance(message, AskCopy):
            return f"{sender} copy {message.op}"
        if isinstance(message, AskDeterminants):
            return f"{sender} determinants {message.op}"
        self._count += 1
        return str(self._count)


def _only_asks(message: Early, held: Early) -> bool:
    """Whether a message asks how a request stands that is held whole, for the same owner."""
    return (
        isinstance(message, ClientForward)
        and isinstance(held, ClientForward)
        and message.payload is None
        and held.payload is not None
        and message.epoch == held.epoch
    )


def _nbytes(message: Early) -> int:
    if isinstance(message, Deliver):
        return token_nbytes(message.token)
    if isinstance(message, ClientForward):
        return payload_nbytes(message.payload)
    if isinstance(message, (StateCopy, StateRecord)):
        return payload_nbytes(message.state) + carried_nbytes(message.units)
    return sum([entry_nbytes(entry) for entry in message.entries]) if isinstance(message, LogAppend) else 0
