"""When the clients of open requests stop waiting, as far as one instance can tell (protocol.md, section 1).

Clocks are never compared across machines: every message of a request says how much of its budget is left
(`Meta.budget_s`), and the time of its arrival fixes when that ends, by the receiver's own clock. A deadline
is a property of the request, so whatever this instance holds of it, in joins, in its queue or retained, ends
at the same time, and whatever it sends carries what is left then.

Invariant: what is known of a request's end only moves earlier, so a budget never grows while it waits here or
is sent again. Never: decides anything about safety.
"""

from collections.abc import Iterable

from hams_protocol import limits
from hams_protocol.due import FOREVER
from hams_protocol.ids import RequestId
from hams_protocol.messages import Meta


class Deadlines:
    """The end of each open request's budget, in seconds of this instance's clock."""

    def __init__(self) -> None:
        self._dues: dict[RequestId, float] = {}

    def __len__(self) -> int:
        return len(self._dues)

    def requests(self) -> list[RequestId]:
        """All of which an end is known."""
        return list(self._dues)

    def learn(self, request: RequestId, budget_s: float, now: float) -> None:
        """A message of the request came, or a token of it was taken over, with this budget; 0 is none."""
        if budget_s > 0.0:
            due = now + budget_s
            if due < self._dues.get(request, FOREVER):
                self._dues[request] = due

    def due(self, request: RequestId) -> float:
        """When its client stops waiting; `FOREVER` if no message of it named a budget."""
        return self._dues.get(request, FOREVER)

    def left(self, request: RequestId, now: float, hop_s: float = 0.0) -> float:
        """What is left of the budget once a message that leaves now has been `hop_s` on its way, at least
        `hop_budget_min_s`; 0 if there is none."""
        due = self._dues.get(request, FOREVER)
        return 0.0 if due == FOREVER else max(limits.hop_budget_min_s, due - now - hop_s)

    def meta(self, meta: Meta, request: RequestId, now: float, hop_s: float = 0.0) -> Meta:
        """A request's metadata with what is left of the budget, as it leaves now."""
        left_s = self.left(request, now, hop_s)
        if abs(meta.budget_s - left_s) < limits.budget_grain_s:
            return meta
        return Meta(meta.parameters, meta.trace, left_s, meta.hops)

    def forget(self, requests: Iterable[RequestId]) -> None:
        """Nothing of these requests is sent any more."""
        for request in requests:
            self._dues.pop(request, None)
