"""Which ready units form the next batch: the interface of scheduling policies, and the default one, first
in, first out.

A policy sees ready units and gives back a batch; it never decides about safety. Given the calls it got, with
their times, it is a pure function. The laws of `Scheduler` are its whole duty: with them no policy, however
bad, can lose a unit or stop the graph. The shell holds foreign policies to them (`hams_schedule.lawful`).
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from hams_protocol.frozen import frozen
from hams_protocol.graph import BatchPolicy, Operator
from hams_protocol.ids import RequestId
from hams_protocol.joins import Stage, Unit


@frozen
class Timing:
    """How long a batch took. `compute_s`: the model's own time, without its wait for the update stage;
    `total_s`: from its start to its end, that wait included; `ok`: whether the model gave results."""

    compute_s: float
    total_s: float
    ok: bool


class Scheduler(Protocol):
    """The queue of one operator.

    Laws: a unit that `take` or `late` returns is READY, and is not returned again before it is added again.
    All units of a batch have one `batch_key`, and together at most `max_rows` rows unless it is a single
    unit. A unit with `attempts` goes alone and before all others, if it had them when it was added or
    `suspected` told of them. A unit that is READY no more is dropped.
    `take` is not empty while a unit waits and `now >= deadline()`.
    """

    def __len__(self) -> int:
        """Units that wait."""
        ...

    def add(self, unit: Unit, now: float) -> None:
        """Queue a ready unit; its `due` is known."""
        ...

    def add_first(self, unit: Unit, now: float) -> None:
        """Queue a unit before all others: a suspect, or one whose batch was undone."""
        ...

    def suspected(self, unit: Unit, now: float) -> None:
        """A unit has become a suspect: if it waits, it goes alone and before all others."""
        ...

    def take(self, now: float) -> list[Unit]:
        """The units of the next batch; none if nothing is to run yet."""
        ...

    def late(self, now: float) -> list[Unit]:
        """Units that are to be answered by an error instead of being run; asked before `take`."""
        ...

    def deadline(self) -> float:
        """The next instant at which `take` or `late` could answer otherwise."""
        ...

    def started(self, batch: int, units: list[Unit], now: float) -> None:
        """The model runs `units`, or some of what `take` returned last."""
        ...

    def finished(self, batch: int, timing: Timing, now: float) -> None:
        """The run of `batch` has ended."""
        ...

    def replied(self, request: RequestId, ago_s: float, now: float) -> None:
        """The reply of a request, of which a unit may have run here, was released `ago_s` ago. Advisory:
        whatever it says, it may cost lateness only."""
        ...

    def plan(self, now: float, budget_s: float) -> bool:
        """Work ahead while the model runs, about so many seconds of it; whether there is more to do."""
        ...

    def clear(self) -> None:
        """Forget all units."""
        ...


class Fifo:
    """Ready units of one operator in order of arrival; the rows of a unit stay together."""

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self._queue: deque[Unit] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, unit: Unit, now: float) -> None:
        """Queue a ready unit."""
        unit.queued_at = now
        self._queue.append(unit)

    def add_first(self, unit: Unit, now: float) -> None:
        """Queue a unit again before all others: it was in a batch that was undone."""
        unit.queued_at = now - self._policy.max_delay_s
        self._queue.appendleft(unit)

    def suspected(self, unit: Unit, now: float) -> None:
        """To the front, if it waits."""
        if unit in self._queue:
            self._queue.remove(unit)
            self.add_first(unit, now)

    def take(self, now: float) -> list[Unit]:
        """The units of the next batch, oldest first; none if there is nothing to run yet. Units that are not
        READY any more are dropped."""
        queue = self._queue
        while queue and queue[0].stage is not Stage.READY:
            queue.popleft()
        if not queue:
            return []
        head = queue[0]
        if len(queue) == 1 or head.attempts:
            if (
                not head.attempts
                and head.rows < self._policy.max_rows
                and now < head.queued_at + self._policy.max_delay_s
            ):
                return []
            queue.popleft()
            return [head]
        chosen, passed, rows = self._gather(head)
        if rows < self._policy.max_rows and not passed and now < head.queued_at + self._policy.max_delay_s:
            return []
        members = set(map(id, chosen))
        behind = set(members)
        while queue and (id(queue[0]) in members or queue[0].stage is not Stage.READY):
            behind.discard(id(queue.popleft()))
        if behind:  # hardly ever, or a take would cost as much as all that wait
            self._queue = deque(
                unit for unit in queue if id(unit) not in members and unit.stage is Stage.READY
            )
        return chosen

    def deadline(self) -> float:
        """When the oldest unit has waited long enough for company."""
        while self._queue and self._queue[0].stage is not Stage.READY:
            self._queue.popleft()
        return self._queue[0].queued_at + self._policy.max_delay_s if self._queue else float("inf")

    def late(self, now: float) -> list[Unit]:
        """None: whatever comes is run."""
        return []

    def started(self, batch: int, units: list[Unit], now: float) -> None:
        """It learns nothing."""

    def finished(self, batch: int, timing: Timing, now: float) -> None:
        """It learns nothing."""

    def replied(self, request: RequestId, ago_s: float, now: float) -> None:
        """It learns nothing."""

    def plan(self, now: float, budget_s: float) -> bool:
        """There is nothing to plan."""
        return False

    def clear(self) -> None:
        """Forget everything."""
        self._queue.clear()

    def _gather(self, head: Unit) -> tuple[list[Unit], bool, int]:
        """Units that share the head's batch, whether one had to be left for lack of room, and the rows
        taken."""
        chosen: list[Unit] = []
        rows, key = 0, head.batch_key
        seen: set[int] = set()
        for unit in self._queue:
            if unit.stage is not Stage.READY or id(unit) in seen:
                continue
            if unit.attempts or unit.batch_key != key:
                continue
            if chosen and rows + unit.rows > self._policy.max_rows:
                return chosen, True, rows
            seen.add(id(unit))
            chosen.append(unit)
            rows += unit.rows
        return chosen, False, rows


Queues = Callable[[Operator], Scheduler]
"""Makes the queue of an operator's instance."""


def fifo(operator: Operator) -> Scheduler:
    """The queue of an operator for which nothing else was chosen."""
    return Fifo(operator.batch)
