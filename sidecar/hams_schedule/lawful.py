"""A policy under the laws of the interface: whatever a policy does wrong, the protocol is not harmed by it.

The laws: a unit that `take` or `late` returns is READY, is queued, and is not returned again before it is
added again; the units of a batch share one `batch_key` and fill `max_rows` at most, unless it is a single
unit; a unit with attempts goes alone and before all others; `take` is non-empty when READY units wait and
`now >= deadline()`, which is some instant while they wait and the model is free. A policy that breaks one, or
raises, is replaced by `Fifo` with all units that wait, in order of arrival.

A unit may be added while it waits: it was reset, and is ready again. It waits once all the same; that its
policy has two entries of it is no fault of the policy's.
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
        # Units that were added and not returned, by identity, in order of arrival.
        self._waiting: dict[int, U] = {}
        self._suspects: dict[int, U] = {}
        # Units of which the policy may have more entries than one, and how many more.
        self._surplus: dict[int, tuple[U, int]] = {}
        self._runs = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, unit: U, now: float) -> None:
        """Queue a ready unit."""
        self._arrives(unit)
        self._waiting[id(unit)] = unit
        if unit.attempts > 0:
            self._suspects[id(unit)] = unit
        self._asked(lambda policy: policy.add(unit, now), None, now)

    def add_first(self, unit: U, now: float) -> None:
        """Queue a unit before all others."""
        self._arrives(unit)
        self._waiting = {id(unit): unit, **self._waiting}
        if unit.attempts > 0:
            self._suspects[id(unit)] = unit
        self._asked(lambda policy: policy.add_first(unit, now), None, now)

    def suspected(self, unit: U, now: float) -> None:
        """A unit has become a suspect. To the policy it comes once more, before all others; what it still
        has of it is dropped like any other surplus."""
        if id(unit) in self._waiting:
            self.add_first(unit, now)

    def take(self, now: float) -> list[U]:
        """The next batch."""
        policy = self.policy
        batch = self._taken(now)
        if self.policy is policy:
            broken = self._broken_units(batch) or self._broken_batch(batch)
            if not broken and not batch and self._drop_unready() and now >= self.deadline():
                broken = "take() is empty, and units wait past deadline()"
            if broken:
                self._fail(broken, now)
        if self.policy is not policy:
            batch = self.policy.take(now)
        return self._returned(batch)

    def late(self, now: float) -> list[U]:
        """Units to answer by an error."""
        nothing: list[U] = []
        units = self._without_surplus(self._asked(lambda policy: policy.late(now), nothing, now))
        broken = self._broken_units(units)
        if broken:
            self._fail(broken, now)
            return []
        return self._returned(units)

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
        self._asked(lambda policy: policy.finished(batch, timing, now), None, now)

    def plan(self, now: float, budget_s: float) -> bool:
        """Work ahead."""
        return self._asked(lambda policy: policy.plan(now, budget_s), False, now)

    def clear(self) -> None:
        """Forget all units."""
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

    def _broken_units(self, units: list[U]) -> str:
        """The law that units which are handed out break; "" if none."""
        if not units:
            return ""
        waiting, seen = self._waiting, set[int]()
        for unit in units:
            number = id(unit)
            if number not in waiting:
                return "a unit is handed out that does not wait"
            if unit.stage != READY:
                return "a unit is handed out that is not READY"
            seen.add(number)
        return "" if len(seen) == len(units) else "a unit is twice in one answer"

    def _broken_batch(self, batch: list[U]) -> str:
        """The law that a batch breaks; "" if none."""
        if not batch:
            return ""
        head = batch[0]
        suspects = [unit for unit in self._suspects.values() if unit.stage == READY]
        if suspects and head.attempts == 0:
            return "a suspect waits, and others run before it"
        if len(batch) == 1:
            return ""
        key, rows = head.batch_key, 0
        for unit in batch:
            if unit.attempts > 0:
                return "a suspect is not alone"
            if unit.batch_key != key:
                return "a batch has two batch keys"
            rows += unit.rows
        return "" if rows <= self._max_rows else f"a batch has {rows} rows, {self._max_rows} are allowed"

    def _fail(self, law: str, now: float) -> None:
        """Replace the policy by `Fifo`, which is given all units that wait."""
        if not self._replace:
            raise LawBroken(law)
        self.failed = self.failed or law
        self._surplus.clear()
        successor: FifoPolicy[U] = FifoPolicy(self._max_rows)
        for unit in self._waiting.values():
            if unit.stage == READY:
                successor.add(unit, now)
        self.policy = successor

    def _drop_unready(self) -> bool:
        """Forget units that are READY no more, as every policy drops them; whether others wait."""
        for number in [number for number, unit in self._waiting.items() if unit.stage != READY]:
            del self._waiting[number]
            self._suspects.pop(number, None)
        return bool(self._waiting)

    def _taken(self, now: float) -> list[U]:
        """What the policy takes; one that only empties itself of surplus entries is asked again."""
        policy, nothing = self.policy, list[U]()
        while True:
            units = self._asked(lambda policy: policy.take(now), nothing, now)
            batch = self._without_surplus(units)
            if batch or not units or self.policy is not policy:
                return batch

    def _arrives(self, unit: U) -> None:
        """A unit is about to wait. One that waits already leaves its place, and an entry in the policy."""
        if self._waiting.pop(id(unit), None) is not None:
            entries = self._surplus.get(id(unit), (unit, 0))[1]
            self._surplus[id(unit)] = (unit, entries + 1)
        elif len(self._waiting) > 2 * len(self.policy) + unready_units_max:
            self._drop_unready()  # as the policy has done, or takes would
            ready = [item for item in self._surplus.values() if item[0].stage == READY]
            self._surplus = {id(unit): (unit, entries) for unit, entries in ready}

    def _without_surplus(self, units: list[U]) -> list[U]:
        """An answer without the entries of units that it names a second time, or that do not wait any more,
        though only as many as there are."""
        if not self._surplus:
            return units
        chosen: list[U] = []
        seen: set[int] = set()
        for unit in units:
            number = id(unit)
            entries = self._surplus[number][1] if number in self._surplus else 0
            if entries and (number in seen or number not in self._waiting):
                self._surplus[number] = (unit, entries - 1)
                if entries == 1:
                    del self._surplus[number]
            else:
                seen.add(number)
                chosen.append(unit)
        return chosen

    def _returned(self, units: list[U]) -> list[U]:
        waiting, suspects = self._waiting, self._suspects
        for unit in units:
            waiting.pop(id(unit), None)
        if suspects:
            for unit in units:
                suspects.pop(id(unit), None)
        return units
