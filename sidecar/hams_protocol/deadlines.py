"""When the clients of open requests stop waiting, as far as one instance can tell (protocol.md, section 1).

Clocks are never compared across machines: every message of a request says how much of its budget is left
(`Meta.budget_s`), and the time of its arrival fixes when that ends, by the receiver's own clock. A deadline
is a property of the request, so whatever this instance holds of it, in joins, in its queue, held, saved or
retained, ends at the same time, and whatever it sends carries what is left then.

Invariant: what is known of a request's end only moves earlier, so a budget never grows while it waits here or
is sent again. It is learnt when something arrives, never when something leaves: what is held says of an end
that nobody learnt here (a checkpoint does) only that there is one, and then nothing is left. Never: decides
anything about safety.
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
        self._fed: dict[RequestId, list[RequestId]] = {}

    def __len__(self) -> int:
        return len(self._dues)

    def requests(self) -> list[RequestId]:
        """All of which an end is known."""
        return list(self._dues)

    def learn(self, request: RequestId, budget_s: float, now: float) -> None:
        """A message of the request came, or its injection, with this budget; 0 is none."""
        if budget_s > 0.0 and now + budget_s < self._dues.get(request, FOREVER):
            self._ends_by(request, now + budget_s)

    def feeds(self, origin: RequestId, request: RequestId) -> None:
        """`request` is a feedback of `origin`: it ends no later, whatever is heard of that from now on."""
        if (due := self._dues.get(origin)) is not None:
            self._fed.setdefault(origin, []).append(request)
            self._ends_by(request, due)

    def _ends_by(self, request: RequestId, due: float) -> None:
        if due < self._dues.get(request, FOREVER):
            self._dues[request] = due
            for fed in self._fed.get(request, ()):
                if fed in self._dues:  # else it is complete already
                    self._ends_by(fed, due)

    def due(self, request: RequestId) -> float:
        """When its client stops waiting; `FOREVER` if no message of it named a budget."""
        return self._dues.get(request, FOREVER)

    def left_of(self, request: RequestId, meta: Meta, now: float) -> float:
        """What is left of the budget of which this metadata tells, at least `hop_budget_min_s`; 0 if there is
        none. As good as nothing is left if its end is not known here."""
        due = self._dues.get(request)
        if due is None:
            return limits.hop_budget_min_s if meta.budget_s > 0.0 else 0.0
        return max(limits.hop_budget_min_s, due - now)

    def meta(self, meta: Meta, request: RequestId, now: float) -> Meta:
        """A request's metadata with what is `left_of` its budget, as it leaves now."""
        left_s = self.left_of(request, meta, now)
        if abs(meta.budget_s - left_s) < limits.budget_grain_s:
            return meta
        return Meta(meta.parameters, meta.trace, left_s, meta.hops)

    def forget(self, requests: Iterable[RequestId]) -> None:
        """Nothing of these requests is sent any more."""
        for request in requests:
            self._dues.pop(request, None)
            self._fed.pop(request, None)
