"""Whether a request can still be answered in time, judged before it is logged (`admission: Promise`).

What the owner of a shard has seen says it, for each kind: how long the newest requests took, and how many
were open when each of them came. A kind is an application and a power of two of the deadline: where
deadlines differ much, times do too, and policies serve such requests apart. What waits is served at one rate
(Little's law), so a request takes in proportion to how many it finds. That is not carried far upwards: one
that found few says only that more take as long at least. One that was shed says nothing of those who have
more time than it had. One that is still open has taken what it has waited.

A kind of which too little is known is judged by the others of its application, but tried once in a while, or
it would never be known. It is not if those would be late in an empty shard, too.

A request is refused if its chance to be in time is below `promise_chance_min`, or if the queue has taken
more than a twelfth of it (`promise_share_min`). The second rule holds the queue short. It compares with an
empty shard, so requests that are often late there, too, are not all refused.

A request that is admitted has that chance as its promise. `PromiseAccount` says what became of promises.

Never: refuses what is logged already, or where too little is known. Invariant: what was measured counts for
`promise_memory_s`, so a shard that refuses everything measures again.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import NamedTuple

from hams_protocol import limits
from hams_protocol.effects import NotServed
from hams_protocol.messages import Meta


class AnsweredRequest:
    """It took `took_s` from its admission to its reply, at least if it was `shed`, and found `ahead` others
    open."""

    __slots__ = ("ahead", "at", "shed", "took_s")

    def __init__(self, at: float, took_s: float, ahead: int, shed: bool) -> None:
        self.at = at
        self.took_s = took_s
        self.ahead = ahead
        self.shed = shed

    def would_take(self, ahead: int) -> float:
        """How long it would take if it found so many open."""
        ratio = (ahead + 1) / (self.ahead + 1)
        return self.took_s * (ratio if ratio <= limits.promise_stretch_max else 1.0)

    def tells(self, budget_s: float, ahead: int, now: float) -> bool:
        """Whether it says anything of a request with such a budget."""
        if now > self.at + limits.promise_memory_s:
            return False
        return not self.shed or self.would_take(ahead) > budget_s


class Judgement(NamedTuple):
    """The chance of a request to be in time, NaN where too little is known, and why it is not admitted; None:
    it is."""

    chance: float
    refusal: NotServed | None


UNKNOWN = Judgement(math.nan, None)
"""Too little is known: whoever comes is admitted."""


class PromiseAccount:
    """The outcome of the promises of one frontend whose chance was known when they were made.

    `expected` sums their chances, so it is near `fulfilled` where promises are honest. `squares` sums the
    squares of chance less outcome, which is 1 or 0. By `settled` it is the Brier score (Brier 1950), 0 at
    best. `broken_after_loss`: the broken ones that were open when the loss of an instance was learnt, at
    `lost_at`, or ended within `promise_loss_s` of that.

    Settled are replies and what was shed. Another error says nothing, and who hands a shard over settles no
    promise of it.
    """

    __slots__ = ("broken_after_loss", "expected", "fulfilled", "lost_at", "settled", "squares")

    def __init__(self) -> None:
        self.settled = 0
        self.fulfilled = 0
        self.expected = 0.0
        self.squares = 0.0
        self.broken_after_loss = 0
        self.lost_at = -math.inf

    def settle(self, chance: float, fulfilled: bool, since: float, now: float) -> None:
        """A promise that was made at `since` was kept or broken."""
        if math.isnan(chance):
            return
        self.settled += 1
        self.expected += chance
        self.squares += (chance - fulfilled) ** 2
        self.fulfilled += fulfilled
        self.broken_after_loss += not fulfilled and min(since, now - limits.promise_loss_s) <= self.lost_at


class Promises:
    """The newest answers of one shard, by kind. `parameter` names an application, "": all are one."""

    def __init__(self, parameter: str) -> None:
        self._parameter = parameter
        self._kinds: OrderedDict[tuple[str, int], deque[AnsweredRequest]] = OrderedDict()
        self._tried: OrderedDict[tuple[str, int], float] = OrderedDict()

    def answered(self, meta: Meta, took_s: float, ahead: int, now: float) -> None:
        """A reply was released."""
        self._newest_of(meta).append(AnsweredRequest(now, took_s, ahead, False))

    def shed(self, meta: Meta, took_s: float, ahead: int, now: float) -> None:
        """A request was given up. Its reply came early, and would not have come within its budget."""
        late_s = max(took_s, limits.promise_shed_factor * meta.budget_s)
        self._newest_of(meta).append(AnsweredRequest(now, late_s, ahead, True))

    def judge(
        self, meta: Meta, ahead: int, now: float, waiting: Iterable[tuple[Meta, float]] = ()
    ) -> Judgement:
        """Whether a request that comes now, with so many open, is admitted. `waiting`: those of the open ones
        that have waited longest, and for how many seconds."""
        budget_s, kind = meta.budget_s, self._kind_of(meta)
        if budget_s <= 0.0:
            return UNKNOWN
        late = 0
        for other, waited_s in waiting:
            if budget_s < waited_s <= limits.promise_memory_s and self._kind_of(other) == kind:
                late += 1
        known = [answer for answer in self._kinds.get(kind, ()) if answer.tells(budget_s, ahead, now)]
        if len(known) + late >= limits.promise_samples_min:
            return _judged(known, late, budget_s, ahead)
        others = [answer for answer in self._newest_like(kind) if answer.tells(budget_s, ahead, now)]
        if len(others) < limits.promise_samples_min:
            return UNKNOWN
        judged = _judged(others, 0, budget_s, ahead)
        may_be_in_time = any(answer.would_take(0) <= budget_s for answer in others)
        if judged.refusal is not None and may_be_in_time and self._may_try(kind, now):
            return UNKNOWN
        return judged

    def _may_try(self, kind: tuple[str, int], now: float) -> bool:
        """Whether a kind of which too little is known may be tried once more, whatever others took."""
        if now < self._tried.get(kind, -math.inf) + limits.promise_try_s:
            return False
        self._tried.pop(kind, None)
        self._tried[kind] = now
        if len(self._tried) > limits.promise_kinds_max:
            self._tried.popitem(last=False)
        return True

    def _newest_like(self, kind: tuple[str, int]) -> list[AnsweredRequest]:
        """Answers of the same application, whatever their deadlines: of the kinds that were answered last."""
        like: list[AnsweredRequest] = []
        for other, answers in reversed(self._kinds.items()):
            if other[0] == kind[0] and len(like) < limits.promise_samples_max:
                like += answers
        return like

    def _newest_of(self, meta: Meta) -> deque[AnsweredRequest]:
        """Of its kind; the one that was answered longest ago makes room."""
        kind = self._kind_of(meta)
        newest = self._kinds.get(kind)
        if newest is None:
            newest = self._kinds[kind] = deque(maxlen=limits.promise_samples_max)
            if len(self._kinds) > limits.promise_kinds_max:
                self._kinds.popitem(last=False)
        else:
            self._kinds.move_to_end(kind)
        return newest

    def _kind_of(self, meta: Meta) -> tuple[str, int]:
        app = str(dict(meta.parameters).get(self._parameter, "")) if self._parameter else ""
        octave = math.frexp(meta.budget_s)[1]
        return app if len(app) <= limits.promise_app_chars_max else "", octave


def _judged(newest: list[AnsweredRequest], late: int, budget_s: float, ahead: int) -> Judgement:
    """Whether a request is admitted, by what the newest answers say, and by `late` others that are open and
    late by now."""
    in_time = sum([answer.would_take(ahead) <= budget_s for answer in newest])
    alone = sum([answer.would_take(0) <= budget_s for answer in newest]) + late
    count = len(newest) + late
    needed = max(limits.promise_chance_min * count, limits.promise_share_min * alone)
    chance = in_time / count
    if in_time >= needed:
        return Judgement(chance, None)
    times = sorted([answer.would_take(ahead) for answer in newest])
    wait_s = times[min(math.ceil(needed), len(times)) - 1] - budget_s if times else budget_s
    message = (
        f"cannot be answered within {1000 * budget_s:.0f} ms: {ahead} requests are open, "
        f"and of the newest {count} {in_time} would be in time behind them"
    )
    return Judgement(chance, NotServed(504, message, max(wait_s, 0.0), begun=False))
