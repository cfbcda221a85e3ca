"""A policy under the laws of the interface: whatever a policy does wrong, the protocol is not harmed by it.

The laws: a unit that `take` or `late` returns is READY, is queued, and is not returned again before it is
added again; the units of a batch share one `batch_key` and fill `max_rows` at most, unless it is a single
unit; a unit with attempts goes alone and before all others; `take` is non-empty when READY units wait and
`now >= deadline()`, which is some instant while they wait and the model is free. A policy that breaks one, or
raises, is replaced by `Fifo` with all units that wait, in order of arrival; those of a broken answer are
first.

A unit may be added while it waits: it was reset, and is ready again, perhaps with inputs of other shapes and
so another `batch_key`. It waits once all the same; that its policy has two entries of it, one of them among
units that cannot share a batch with it any more, is no fault of the policy's.
"""

import math
from collections.abc import Callable
from typing import Generic, TypeVar

from hams_schedule.limits import unready_units_max
from hams_schedule.policies.fifo import FifoPolicy
from hams_schedule.scheduler import READY, BatchTiming, SchedulerPort, U

T = TypeVar("T")


class LawBroken(Exception):
    """A policy answered what no policy may answer: our bug, not the model's. The text names the law."""


class Lawful(Generic[U]):
    """A `Scheduler` that asserts the laws of the policy it wraps.

    `failed` is what the policy did wrong, "" if nothing. With `replace` the policy is then replaced, and no
    exception of a policy reaches the caller; without, `LawBroken` is raised (tests).
    """

    def __init__(self, policy: SchedulerPort[U], max_rows: int, replace: bool = True) -> None:
        self.policy: SchedulerPort[U] = policy
        self.failed = ""
        self._max_rows = max_rows
        self._replace = replace
        # Units that were added and not returned: those put before all others, the newest last, and then those
        # in order of arrival.
        self._first: dict[U, None] = {}
        self._waiting: dict[U, None] = {}
        self._gone: list[U] = []
        """Handed out, and still in the two: `_settle` takes them out, mostly beside the batch."""
        self._suspects: dict[U, None] = {}
        # Units of which the policy may have more entries than one, and how many more.
        self._surplus: dict[U, int] = {}
        self._runs = False

    def __len__(self) -> int:
        return len(self._first) + len(self._waiting) - len(self._gone)

    def add(self, unit: U, now: float) -> None:
        """Queue a ready unit."""
        self._arrives(unit)
        self._waiting[unit] = None
        if unit.attempts > 0:
            self._suspects[unit] = None
        self._asked(lambda policy: policy.add(unit, now), None, now)

    def add_first(self, unit: U, now: float) -> None:
        """Queue a unit before all others."""
        self._arrives(unit)
        self._first[unit] = None
        if unit.attempts > 0:
            self._suspects[unit] = None
        self._asked(lambda policy: policy.add_first(unit, now), None, now)

    def suspected(self, unit: U, now: float) -> None:
        """A unit has become a suspect. To the policy it comes once more, before all others; what it still
        has of it is dropped like any other surplus."""
        if self._waits(unit):
            self.add_first(unit, now)

    def withdraw(self, unit: U) -> None:
        """A unit waits no more, even if it is READY again: what the policy has of it is surplus."""
        if self._waits(unit):
            self._arrives(unit)
            self._suspects.pop(unit, None)

    def take(self, now: float) -> list[U]:
        """The next batch."""
        policy = self.policy
        batch = self._taken(now)
        if self.policy is policy:
            broken = self._hand_out(batch, self._max_rows)
            if not broken and not batch and self._drop_unready() and now >= self.deadline():
                broken = "take() is empty, and units wait past deadline()"
            if broken:
                self._fail(broken, now)
        if self.policy is not policy:
            batch = self.policy.take(now)
            self._hand_out(batch, 0)
        return batch

    def late(self, now: float) -> list[U]:
        """Units to answer by an error."""
        nothing: list[U] = []
        units = self._without_surplus(self._asked(lambda policy: policy.late(now), nothing, now), 0)
        broken = self._hand_out(units, 0)
        if broken:
            self._fail(broken, now)
            return []
        return units

    def deadline(self) -> float:
        """The next instant at which `take` or `late` could answer otherwise."""
        wakes = self._asked(lambda policy: policy.deadline(), math.nan, 0.0)
        broken = "deadline() is no instant" if math.isnan(wakes) else ""
        if wakes == math.inf and not self._runs and self._drop_unready():
            broken = "deadline() is infinite, and units wait"
        if broken:
            self._fail(broken, 0.0)
            wakes = self.policy.deadline()
        return wakes

    def started(self, batch: int, units: list[U], now: float) -> None:
        """The model runs `units`."""
        self._runs = True
        self._asked(lambda policy: policy.started(batch, units, now), None, now)

    def finished(self, batch: int, timing: BatchTiming, now: float) -> None:
        """The run has ended."""
        self._runs = False
        self._settle()
        self._asked(lambda policy: policy.finished(batch, timing, now), None, now)

    def plan(self, now: float, budget_s: float) -> bool:
        """Work ahead."""
        self._settle()
        return self._asked(lambda policy: policy.plan(now, budget_s), False, now)

    def clear(self) -> None:
        """Forget all units."""
        self._gone = []
        self._first.clear()
        self._waiting.clear()
        self._suspects.clear()
        self._surplus.clear()
        self._runs = False
        self._asked(lambda policy: policy.clear(), None, 0.0)

    def _asked(self, call: Callable[[SchedulerPort[U]], T], otherwise: T, now: float) -> T:
        """What the policy answers; if it raises, it is replaced, and its successor is asked nothing yet."""
        try:
            return call(self.policy)
        except Exception as error:  # noqa: BLE001 - whatever a policy raises, the proxy goes on
            self._fail(f"it raised {type(error).__name__}: {error}", now)
            return otherwise

    def _hand_out(self, units: list[U], max_rows: int) -> str:
        """These wait no more, as a batch of `max_rows`, or each by itself if that is 0; the law that they
        break, "" if none. If they break one, they wait still, before all others."""
        self._settle()
        first, waiting = self._first, self._waiting
        broken = self._broken_suspects(units) if max_rows else ""
        seen: set[U] = set()
        rows = 0
        key = units[0].batch_key if units else None
        for unit in units:
            if unit not in waiting and unit not in first:
                broken = "a unit is handed out that does not wait"
                break
            seen.add(unit)
            if unit.stage != READY:
                broken = "a unit is handed out that is not READY"
                break
            if max_rows:
                rows += unit.rows
                if unit.batch_key != key:
                    broken = "a batch has two batch keys"
        if not broken and len(seen) < len(units):
            broken = "a unit is twice in one answer"
        if rows > max_rows and len(units) > 1:
            broken = broken or f"a batch has {rows} rows, {max_rows} are allowed"
        if broken:
            for unit in reversed([unit for unit in dict.fromkeys(units) if unit in seen]):
                waiting.pop(unit, None)
                first.pop(unit, None)
                first[unit] = None
            return broken
        self._gone = list(units)
        for unit in units if self._suspects else ():
            self._suspects.pop(unit, None)
        return ""

    def _settle(self) -> None:
        """Forget what was handed out."""
        if self._gone:
            for unit in self._gone:
                self._waiting.pop(unit, None)
                self._first.pop(unit, None)
            self._gone = []

    def _broken_suspects(self, batch: list[U]) -> str:
        """The law of suspects that a batch breaks; "" if none."""
        if len(batch) > 1 and any(unit.attempts > 0 for unit in batch):
            return "a suspect is not alone"
        if batch and self._suspects and batch[0].attempts == 0:
            waits = any(unit.stage == READY for unit in self._suspects)
            return "a suspect waits, and others run before it" if waits else ""
        return ""

    def _fail(self, law: str, now: float) -> None:
        """Replace the policy by `Fifo`, which is given all units that wait."""
        if not self._replace:
            raise LawBroken(law)
        self.failed = self.failed or law
        self._settle()
        self._surplus.clear()
        successor: FifoPolicy[U] = FifoPolicy(self._max_rows)
        for unit in (*reversed(self._first), *self._waiting):
            if unit.stage == READY:
                successor.add(unit, now)
        self.policy = successor

    def _drop_unready(self) -> bool:
        """Forget units that are READY no more, as every policy drops them; whether others wait."""
        self._settle()
        for waiting in (self._first, self._waiting):
            for unit in [unit for unit in waiting if unit.stage != READY]:
                del waiting[unit]
                self._suspects.pop(unit, None)
        return len(self) > 0

    def _waits(self, unit: U) -> bool:
        self._settle()
        return unit in self._waiting or unit in self._first

    def _taken(self, now: float) -> list[U]:
        """What the policy takes; one that only empties itself of surplus entries is asked again."""
        policy, nothing = self.policy, list[U]()
        while True:
            units = self._asked(lambda policy: policy.take(now), nothing, now)
            batch = self._without_surplus(units, self._max_rows)
            if batch or not units or self.policy is not policy:
                return batch

    def _arrives(self, unit: U) -> None:
        """A unit is about to wait. One that waits already leaves its place, and an entry in the policy."""
        if self._waits(unit):
            self._waiting.pop(unit, None)
            self._first.pop(unit, None)
            self._surplus[unit] = self._surplus.get(unit, 0) + 1
        elif len(self) > unready_units_max and len(self) > 2 * self._asked(len, 0, 0.0) + unready_units_max:
            self._drop_unready()  # as the policy has done, or takes would
            ready = [item for item in self._surplus.items() if item[0].stage == READY]
            self._surplus = dict(ready)

    def _without_surplus(self, units: list[U], max_rows: int) -> list[U]:
        """An answer without entries of units that it names a second time, or that do not wait any more, and
        a batch of `max_rows` without those that do not fit into it any more; only as many as are surplus."""
        if not self._surplus or not units:
            return units
        chosen: set[U] = set()
        sure = [unit for unit in units if unit not in self._surplus]
        key, rows = (sure or units)[0].batch_key, sum([unit.rows for unit in sure])
        answer: list[U] = []
        for unit in units:
            entries = self._surplus.get(unit, 0)
            fits = not max_rows or (unit.batch_key == key and (not rows or rows + unit.rows <= max_rows))
            if not entries:
                answer.append(unit)
            elif unit not in chosen and self._waits(unit) and fits:
                chosen.add(unit)
                answer.append(unit)
                rows += unit.rows
            elif entries == 1:
                del self._surplus[unit]
            else:
                self._surplus[unit] = entries - 1
        return answer
