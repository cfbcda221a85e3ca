"""An open request at the owner of its shard: which sink tokens it has, which frontends wait for it, how far
it is. Volatile: a new owner makes it anew from the log and from the tokens that are sent again."""

import math

from hams_protocol.frontend.plan import Plan
from hams_protocol.ids import InstanceId, RequestId
from hams_protocol.messages import Admit, ReplyEntry, Token

REPLY = -1
"""Stands where a sink edge's number does, for the reply's entry."""


class Live:
    """One open request.

    `tokens` and `durable` go by the number of the sink edge; `left` counts those without a durable token.
    `root` is the client's request at the beginning of a feedback chain (itself, if it is one); `unresolved`
    counts the feedback edges of the whole chain that have not said whether they go on, and is kept at the
    root; `overflow` names the operator whose feedback went too deep. `descendants` are the internal requests
    of the chain that this owner has logged, kept at the root. `ahead`: how many requests were open when it
    was admitted; -1 if another owner did that. `chance` to be in time, as it was judged then; NaN if not.

    `replied`: the log has the reply's entry, or none is due. `entry` is that entry, at `reply_index`;
    `is_settled`: all that it depends on is durable; `recorded`: it counts, and was released.
    """

    __slots__ = (
        "admit",
        "ahead",
        "chance",
        "descendants",
        "durable",
        "entry",
        "given_up",
        "index",
        "injected",
        "is_settled",
        "left",
        "nbytes",
        "overflow",
        "recorded",
        "replied",
        "reply_index",
        "root",
        "since",
        "tokens",
        "unresolved",
        "waiters",
    )

    def __init__(self, plan: Plan, admit: Admit, index: int, now: float) -> None:
        self.admit = admit
        self.index = index
        self.ahead = -1
        self.chance = math.nan
        self.since = now
        self.nbytes = 0 if admit.payload is None else admit.payload.nbytes
        self.tokens: list[Token | None] = [None] * len(plan.sinks)
        self.durable = bytearray(len(plan.sinks))
        self.left = len(plan.sinks)
        self.unresolved = plan.feedback_edges
        self.overflow: str | None = None
        self.descendants: list[RequestId] = []
        self.injected = False
        self.replied = admit.origin is not None
        self.entry: ReplyEntry | None = None
        self.is_settled = True
        self.reply_index = 0
        self.recorded = False
        self.given_up = False
        self.root: Live | None = self
        self.waiters: dict[tuple[InstanceId, int], None] = {}

    def leave(self, sender: InstanceId, settled: int) -> None:
        """No client of this frontend waits under a number below `settled` any more."""
        self.waiters = {
            waiter: None for waiter in self.waiters if waiter[0] != sender or waiter[1] >= settled
        }

    @property
    def internal(self) -> bool:
        """Whether it came over a feedback edge: it has no reply and counts against no bound."""
        return self.admit.origin is not None

    def still_waits(self, number: int, item: Token | ReplyEntry) -> bool:
        """Whether `item` is what it has on that sink edge, or as its reply's entry (`number` REPLY)."""
        return (self.entry if number == REPLY else self.tokens[number]) is item
