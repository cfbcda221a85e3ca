"""Whether a request can still be answered in time, judged before it is logged (`admission: Promise`).

What the owner of a shard has seen says it, for each application: how long the newest requests took, and how
many were open when each of them came. What waits is served at one rate (Little's law), so a request takes in
proportion to how many it finds. That is not carried far upwards: one that found few says only that more take
as long at least.

A request is refused if its chance to be in time is below `promise_chance_min`, or if the queue has taken
more than a tenth of it (`promise_share_min`). The second rule holds the queue short. It compares with an
empty shard, so requests that are often late there, too, are not all refused.

Never: refuses what is logged already, or where too little is known. Invariant: what was measured counts for
`promise_memory_s`, so a shard that refuses everything measures again.
"""

import math
from collections import OrderedDict, deque

from hams_protocol import limits
from hams_protocol.effects import NotServed
from hams_protocol.messages import Meta


class AnsweredRequest:
    """It took `took_s` from its admission to its reply, and found `ahead` others open."""

    __slots__ = ("ahead", "at", "took_s")

    def __init__(self, at: float, took_s: float, ahead: int) -> None:
        self.at = at
        self.took_s = took_s
        self.ahead = ahead

    def would_take(self, ahead: int) -> float:
        """How long it would take if it found so many open."""
        ratio = (ahead + 1) / (self.ahead + 1)
        return self.took_s * (ratio if ratio <= limits.promise_stretch_max else 1.0)


class Promises:
    """The newest answers of one shard, by application. `parameter` names one, "": all are alike."""

    def __init__(self, parameter: str) -> None:
        self._parameter = parameter
        self._apps: OrderedDict[str, deque[AnsweredRequest]] = OrderedDict()

    def answered(self, meta: Meta, took_s: float, ahead: int, now: float) -> None:
        """A reply was released."""
        self._newest_of(meta).append(AnsweredRequest(now, took_s, ahead))

    def shed(self, meta: Meta, took_s: float, ahead: int, now: float) -> None:
        """A request was given up. Its reply came early, and would not have come within its budget."""
        late_s = max(took_s, limits.promise_shed_factor * meta.budget_s)
        self._newest_of(meta).append(AnsweredRequest(now, late_s, ahead))

    def refusal(self, meta: Meta, ahead: int, now: float) -> NotServed | None:
        """Why a request that comes now, with so many open, is not admitted; None if it is."""
        budget_s, answered = meta.budget_s, self._apps.get(self._app_of(meta), ())
        newest = [answer for answer in answered if now <= answer.at + limits.promise_memory_s]
        count = len(newest)
        if budget_s <= 0.0 or count < limits.promise_samples_min:
            return None
        in_time = sum([answer.would_take(ahead) <= budget_s for answer in newest])
        alone = sum([answer.would_take(0) <= budget_s for answer in newest])
        needed = max(limits.promise_chance_min * count, limits.promise_share_min * alone)
        if in_time >= needed:
            return None
        times = sorted([answer.would_take(ahead) for answer in newest])
        message = (
            f"cannot be answered within {1000 * budget_s:.0f} ms: {ahead} requests are open, "
            f"and of the newest {count} {in_time} would be in time behind them"
        )
        return NotServed(504, message, times[math.ceil(needed) - 1] - budget_s, begun=False)

    def _newest_of(self, meta: Meta) -> deque[AnsweredRequest]:
        """Of its application; the one that was answered longest ago makes room."""
        app = self._app_of(meta)
        newest = self._apps.get(app)
        if newest is None:
            newest = self._apps[app] = deque(maxlen=limits.promise_samples_max)
            if len(self._apps) > limits.promise_apps_max:
                self._apps.popitem(last=False)
        else:
            self._apps.move_to_end(app)
        return newest

    def _app_of(self, meta: Meta) -> str:
        app = str(dict(meta.parameters).get(self._parameter, "")) if self._parameter else ""
        return app if len(app) <= limits.promise_app_chars_max else ""
