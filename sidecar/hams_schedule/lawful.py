"""A policy under the laws of the interface: whatever a policy does wrong, the protocol is not harmed by it.

The laws: a unit that `take` or `late` returns is READY, is queued, and is not returned again before it is
added again; the units of a batch share one `batch_key` and fill `max_rows` at most, unless it is a single
unit; a unit with attempts goes alone and before all others; `take` is non-empty when READY units wait and
`now >= deadline()`, which is some instant while they wait and the model is free. A policy that breaks one, or
raises, is replaced by `Fifo` with all units that wait, in order of arrival; those of a broken answer are
first.

A unit may be added while it waits: it was reset, and is ready again, perhaps with other inputs, and so with
another due, class or `batch_key`. So a policy is given entries, not units. An entry says what its unit was
when it was added, and is READY no more once the unit is added again, withdrawn, or READY no more itself.
Policies drop such entries.
"""

import math
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from hams_schedule.limits import unready_units_max
from hams_schedule.policies.fifo import FifoPolicy
from hams_schedule.scheduler import READY, BatchTiming, SchedulerPort, U

T = TypeVar("T")
NOT_READY: Final = 0
"""The stage of an entry that counts no more."""


class LawBroken(Exception):
    """A policy answered what no policy may answer: our bug, not the model's. The text names the law."""


class QueueEntry(Generic[U]):
    """One time that a unit was added: what a policy sees of it. `first`: before all others. `waits`: it was
    not handed out. `unit` is None once this entry counts no more."""

    __slots__ = ("attempts", "batch_key", "cls", "due", "first", "rows", "unit", "waits")

    def __init__(self, unit: U, first: bool) -> None:
        self.unit: U | None = unit
        self.first = first
        self.waits = True
        self.due = unit.due
        self.rows = unit.rows
        self.batch_key: Hashable = unit.batch_key
        self.attempts = unit.attempts
        self.cls = unit.cls

    @property
    def stage(self) -> int:
        """That of its unit."""
        return NOT_READY if self.unit is None else self.unit.stage

    @property
    def is_suspect(self) -> bool:
        """Whether its unit goes alone, if only by now."""
        return self.unit is not None and self.unit.attempts > 0


class Lawful(Generic[U]):
    """A `Scheduler` that asserts the laws of the policy it wraps.

    `failed` is what the policy did wrong, "" if nothing. With `replace` the policy is then replaced, and no
    exception of a policy reaches the caller; without, `LawBroken` is raised (tests).
    """

    def __init__(self, policy: SchedulerPort[QueueEntry[U]], max_rows: int, replace: bool = True) -> None:
        self.policy: SchedulerPort[QueueEntry[U]] = policy
        self.failed = ""
        self._max_rows = max_rows
        self._replace = replace
        self._entries: dict[U, QueueEntry[U]] = {}
        """Of each unit that was added and not handed out, in order of arrival."""
        self._gone: list[QueueEntry[U]] = []
        """Handed out, and still in `_entries`: `_settle` takes them out, mostly beside the batch."""
        self._batch: list[QueueEntry[U]] = []
        """The answer of the last `take`."""
        self._suspects: dict[QueueEntry[U], None] = {}
        self._runs = False

    def __len__(self) -> int:
        return len(self._entries) - len(self._gone)

    def add(self, unit: U, now: float) -> None:
        """Queue a ready unit."""
        entry = self._entered(unit, False)
        self._asked(lambda policy: policy.add(entry, now), None, now)

    def add_first(self, unit: U, now: float) -> None:
        """Queue a unit before all others."""
        entry = self._entered(unit, True)
        self._asked(lambda policy: policy.add_first(entry, now), None, now)

    def suspected(self, unit: U, now: float) -> None:
        """A unit has become a suspect: if it waits, it comes once more, before all others."""
        self._settle()
        if unit in self._entries:
            self.add_first(unit, now)

    def withdraw(self, unit: U) -> None:
        """A unit waits no more, even if it is READY again."""
        self._settle()
        self._forget(unit)

    def take(self, now: float) -> list[U]:
        """The next batch."""
        policy, nothing = self.policy, list[QueueEntry[U]]()
        batch = self._asked(lambda policy: list(policy.take(now)), nothing, now)
        if self.policy is policy:
            broken = self._hand_out(batch, self._max_rows)
            if not broken and not batch and self._drop_unready() and now >= self.deadline():
                broken = "take() is empty, and units wait past deadline()"
            if broken:
                self._fail(broken, now)
        if self.policy is not policy:
            batch = self.policy.take(now)
            self._hand_out(batch, 0)
        self._batch = batch
        return _units(batch)

    def late(self, now: float) -> list[U]:
        """Units to answer by an error."""
        nothing: list[QueueEntry[U]] = []
        entries = self._asked(lambda policy: list(policy.late(now)), nothing, now)
        broken = self._hand_out(entries, 0)
        if broken:
            self._fail(broken, now)
            return []
        return _units(entries)

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
        entries, self._batch = self._batch, []
        if _units(entries) != units:
            of = {entry.unit: entry for entry in entries}
            entries = [of.get(unit) or QueueEntry(unit, False) for unit in units]
        self._asked(lambda policy: policy.started(batch, entries, now), None, now)

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
        for entry in self._entries.values():
            entry.unit = None
        self._entries.clear()
        self._suspects.clear()
        self._gone, self._batch, self._runs = [], [], False
        self._asked(lambda policy: policy.clear(), None, 0.0)

    def _asked(self, call: Callable[[SchedulerPort[QueueEntry[U]]], T], otherwise: T, now: float) -> T:
        """What the policy answers; if it raises, it is replaced, and its successor is asked nothing yet."""
        try:
            return call(self.policy)
        except Exception as error:  # noqa: BLE001 - whatever a policy raises, the proxy goes on
            self._fail(f"it raised {type(error).__name__}: {error}", now)
            return otherwise

    def _entered(self, unit: U, first: bool) -> QueueEntry[U]:
        """The entry of a unit that waits from now on, in the place of an earlier one."""
        self._settle()
        if unit in self._entries:
            self._forget(unit)
        elif len(self) > unready_units_max and len(self) > 2 * self._asked(len, 0, 0.0) + unready_units_max:
            self._drop_unready()  # as the policy has done, or takes would
        return self._entry_of(unit, first)

    def _entry_of(self, unit: U, first: bool) -> QueueEntry[U]:
        """A new entry, behind all others."""
        entry = self._entries[unit] = QueueEntry(unit, first)
        if entry.attempts > 0:
            self._suspects[entry] = None
        return entry

    def _forget(self, unit: U) -> None:
        """Its entry, if there is one, counts no more."""
        entry = self._entries.pop(unit, None)
        if entry is not None:
            self._suspects.pop(entry, None)
            entry.unit = None

    def _hand_out(self, entries: list[QueueEntry[U]], max_rows: int) -> str:
        """These wait no more, as a batch of `max_rows`, or each by itself if that is 0; the law that they
        break, "" if none. If they break one, they wait still, before all others."""
        self._settle()
        handed: list[QueueEntry[U]] = []
        broken, rows = "", 0
        for entry in entries:
            known: object = entry
            if not isinstance(known, QueueEntry) or not entry.waits:
                twice = any(other is entry for other in handed)
                broken = (
                    "a unit is twice in one answer" if twice else "a unit is handed out that does not wait"
                )
                break
            entry.waits = False
            handed.append(entry)
            if entry.stage != READY:
                broken = "a unit is handed out that is not READY"
                break
            rows += entry.rows
            if max_rows and entry.batch_key != handed[0].batch_key:
                broken = "a batch has two batch keys"
        if max_rows and rows > max_rows and len(handed) > 1:
            broken = broken or f"a batch has {rows} rows, {max_rows} are allowed"
        if max_rows and not broken:
            broken = self._broken_suspects(handed)
        if not broken:
            self._gone = handed
            for entry in handed if self._suspects else ():
                self._suspects.pop(entry, None)
            return ""
        for entry in reversed(handed):
            entry.waits = entry.first = True
            if entry.unit is not None:
                self._entries.pop(entry.unit, None)
                self._entries[entry.unit] = entry
        return broken

    def _settle(self) -> None:
        """Forget what was handed out."""
        if self._gone:
            for entry in self._gone:
                if entry.unit is not None:
                    self._entries.pop(entry.unit, None)
            self._gone = []

    def _broken_suspects(self, batch: list[QueueEntry[U]]) -> str:
        """The law of suspects that a batch breaks; "" if none."""
        if len(batch) > 1 and any(entry.is_suspect for entry in batch):
            return "a suspect is not alone"
        if batch and self._suspects and batch[0].attempts == 0:
            waits = any(entry.stage == READY for entry in self._suspects)
            return "a suspect waits, and others run before it" if waits else ""
        return ""

    def _fail(self, law: str, now: float) -> None:
        """Replace the policy by `Fifo`, which is given all units that wait."""
        if not self._replace:
            raise LawBroken(law)
        self.failed = self.failed or law
        self._settle()
        successor: FifoPolicy[QueueEntry[U]] = FifoPolicy(self._max_rows)
        first = [entry for entry in self._entries.values() if entry.first]
        others = [entry for entry in self._entries.values() if not entry.first]
        for entry in (*reversed(first), *others):
            unit = entry.unit
            if unit is not None and entry.stage == READY:
                self._forget(unit)
                successor.add(self._entry_of(unit, entry.first), now)
        self.policy = successor

    def _drop_unready(self) -> bool:
        """Forget units that are READY no more, as every policy drops them; whether others wait."""
        self._settle()
        for unit in [unit for unit, entry in self._entries.items() if entry.stage != READY]:
            self._forget(unit)
        return len(self._entries) > 0


def _units(entries: list[QueueEntry[U]]) -> list[U]:
    return [entry.unit for entry in entries if entry.unit is not None]
