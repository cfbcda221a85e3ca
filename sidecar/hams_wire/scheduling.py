"""The queue of an operator's instance, by the graph's choice: the core's own, or a policy of `hams_schedule`
under the laws of `Scheduler`.

Here a unit gets its class: what a policy may know of a request is its deadline, how much of a batch it fills,
and what the graph says tells its kind and size. Never: hands a unit out that the policy did not, or out of
its laws; a policy that breaks one is replaced (`failed`).
"""

import math
import time
from collections.abc import Mapping
from enum import IntEnum, StrEnum

from hams_protocol.batching import Fifo, Scheduler, Timing
from hams_protocol.frozen import frozen
from hams_protocol.graph import BatchPolicy, Operator, SchedulePolicy, WhenLate
from hams_protocol.ids import RequestId
from hams_protocol.joins import Unit
from hams_protocol.messages import Scalar
from hams_schedule import limits
from hams_schedule.calibration import Calibration, Forecast, forecast_of
from hams_schedule.classes import REST
from hams_schedule.decision import ChoiceKind
from hams_schedule.guard import Guarded, Pace
from hams_schedule.lawful import Lawful, QueueEntry
from hams_schedule.ordering import ArrivalOrder
from hams_schedule.policies.base import measured_s
from hams_schedule.policies.deadline import Deadline
from hams_schedule.policies.distribution import Distribution
from hams_schedule.profile import Profiles
from hams_schedule.scheduler import SchedulerPort as Policy
from hams_schedule.serving import guarded
from hams_schedule.steps import AT_ONCE
from hams_wire.exposition import TimeSpent

PARAMETER = "parameter:"

DISTURBED_WEIGHT = 0.25
"""What the time of a batch counts as a sample if something else ran in its model."""
CAPTURES_MEMORY = 1 / 16
"""Weight of the newest batch in the share of those beside a capture."""
CAPTURES_USUAL = 0.5
"""From this share on a capture is no exception: it is part of what batches take, as they are served."""


class Disturbance(IntEnum):
    """What else ran in the model during a batch."""

    NOTHING = 0
    CAPTURE = 1
    """A capture of its state, which runs beside the compute stage."""
    LOAD = 2
    """A load of a state that the batch waited for, or the first run of a model process."""
    UNTIMED = 3
    """As LOAD, and the model does not say how long it ran itself: nobody knows what the batch took."""


class ShedReason(StrEnum):
    """Why a unit was answered instead of being run, as far as its deadline and the rest of its path tell."""

    OVERDUE = "overdue"
    """Its deadline had passed before its turn came."""
    PATH = "path"
    """The operators after this one take longer than it had left, even at its shortest."""
    TIME = "time"
    """It would take longer here than it had left."""


@frozen
class WeighedTiming:
    """How long a batch took (`batching.Timing`), and what that counts as a sample."""

    compute_s: float
    total_s: float
    ok: bool
    weight: float


class PolicyQueue:
    """A policy's queue, and what is counted of it. `profiles` are what it has learnt of times."""

    def __init__(self, batch: BatchPolicy, pace: Pace | None = None) -> None:
        """`pace`: that of the guard, where it is not the usual one."""
        self._batch = batch
        self._costs = dict(batch.costs)
        self.profiles = Profiles(batch.memory_s, batch.p99_s)
        self._classifies = batch.policy is SchedulePolicy.DISTRIBUTION
        self._guard: Guarded[QueueEntry[Unit]] | None = None
        self._distribution: Distribution[QueueEntry[Unit]] | None = None
        self._lawful: Lawful[Unit] = Lawful(self._policy(batch, pace), batch.max_rows)
        self.shed_by = dict.fromkeys(ShedReason, 0)
        """Units that were answered instead of being run, by reason."""
        self.on_time = 0
        self.late_runs = 0
        self.deciding = TimeSpent()
        """To choose who runs next and who is late, and to note that it runs: all that the model waits for."""
        self.planning = TimeSpent()
        """To plan ahead, in slices beside the batch that runs."""
        self.calibration = Calibration()
        self.learnt_at: float | None = None
        """Moment of the last batch of its own from which this instance learnt; None: it has not."""
        self._running: dict[int, list[Unit]] = {}
        self._since = 0.0
        self.disturbed = Disturbance.NOTHING
        """What else ran in the model during the batch that ends next: the shell says it, where it knows."""
        self._captured = 0.0
        """The share of batches that ran beside a capture, of the newest ones mostly."""
        self._forecast: Forecast | None = None
        self._forecast_due = False
        self._unanswered: dict[RequestId, list[tuple[int, float]]] = {}
        """Class and end of the batch of units that have run, by request, oldest first."""

    def _policy(self, batch: BatchPolicy, pace: Pace | None) -> Policy[QueueEntry[Unit]]:
        sheds = batch.when_late is WhenLate.SHED
        if self._classifies:
            steps = batch.steps or AT_ONCE
            self._guard = guarded(batch.max_rows, sheds, self.profiles, batch.max_delay_s, pace, steps)
            # Before anything has run it is the one that serves. Its counts stay when the guard puts another
            # policy in its place, and go on when it is back.
            if isinstance(self._guard.serves, Distribution):
                self._distribution = self._guard.serves
            return self._guard
        return Deadline(batch.max_rows, sheds, batch.p99_s, self.profiles.rest)

    @property
    def serves(self) -> str:
        """The policy that serves now: the graph's own, the one that the guard has put in its place, or Fifo
        after one that failed."""
        if self.failed:
            return SchedulePolicy.FIFO
        return SchedulePolicy.DEADLINE if self._guard is None else self._guard.name.capitalize()

    @property
    def switches(self) -> int:
        """How often the guard has put another policy in the place of the one that served."""
        return 0 if self._guard is None else self._guard.switches

    @property
    def distribution(self) -> Distribution[QueueEntry[Unit]] | None:
        """The policy `Distribution` if the graph asks for it, whether it serves now or not."""
        return self._distribution

    @property
    def max_rows(self) -> int:
        """The most rows of a batch."""
        return self._batch.max_rows

    @property
    def shed(self) -> int:
        """Units that were answered instead of being run."""
        return sum(self.shed_by.values())

    @property
    def decisions(self) -> dict[str, int]:
        """Batches that `Distribution` has chosen, by how (`ChoiceKind`); empty where it does not serve."""
        if self._distribution is None:
            return {}
        counts = self._distribution.decisions
        return {kind.name.lower(): counts[kind] for kind in ChoiceKind}

    @property
    def stale_plans(self) -> int:
        """Batches that were planned beside the one before and not run as planned: something came between."""
        return 0 if self._distribution is None else self._distribution.stale_plans

    @property
    def failed(self) -> str:
        """What the policy did wrong, since when first in, first out serves in its place; "" if nothing."""
        return self._lawful.failed

    @property
    def learns(self) -> bool:
        """Whether it learns laws of times in `profiles`."""
        return self._classifies

    @property
    def runs(self) -> bool:
        """Whether the model runs a batch."""
        return bool(self._running)

    def __len__(self) -> int:
        return len(self._lawful)

    def add(self, unit: Unit, now: float) -> None:
        """See `Scheduler`."""
        self._classify(unit)
        self._lawful.add(unit, now)

    def add_first(self, unit: Unit, now: float) -> None:
        """See `Scheduler`."""
        self._lawful.add_first(unit, now)

    def suspected(self, unit: Unit, now: float) -> None:
        """See `Scheduler`."""
        self._lawful.suspected(unit, now)

    def take(self, now: float) -> list[Unit]:
        """See `Scheduler`."""
        began = time.perf_counter()
        units = self._lawful.take(now)
        self.deciding.add(time.perf_counter() - began)
        return units

    def late(self, now: float) -> list[Unit]:
        """See `Scheduler`."""
        began = time.perf_counter()
        self.profiles.rest.forget_stale(now)  # not by a policy: replays of the guard have a time of their own
        units = self._lawful.late(now)
        self.deciding.add(time.perf_counter() - began)
        for unit in units:
            self.shed_by[self._why_shed(unit, now)] += 1
        return units

    def _why_shed(self, unit: Unit, now: float) -> ShedReason:
        if unit.due < now:
            return ShedReason.OVERDUE
        return ShedReason.PATH if unit.due < now + self.profiles.rest.least(unit.cls) else ShedReason.TIME

    def deadline(self) -> float:
        """See `Scheduler`."""
        return self._lawful.deadline()

    def started(self, batch: int, units: list[Unit], now: float) -> None:
        """See `Scheduler`."""
        began = time.perf_counter()
        self._running = {batch: units}
        self._since, self._forecast, self._forecast_due = now, None, self._classifies
        self._lawful.started(batch, units, now)
        self.deciding.add(time.perf_counter() - began)

    def finished(self, batch: int, timing: Timing, now: float) -> None:
        """See `Scheduler`."""
        units = self._running.pop(batch, [])
        rest = self.profiles.rest.medians
        for unit in units if timing.ok else ():
            if unit.due >= now + rest.get(unit.cls, 0.0):
                self.on_time += 1
            else:
                self.late_runs += 1
            self._left(unit, now)
        weighed = WeighedTiming(timing.compute_s, timing.total_s, timing.ok, self._weight())
        if self._classifies and weighed.ok and weighed.weight == 1.0 and len(units) == 1:
            self.profiles.observe_feature(*self._kind(units[0]), measured_s(weighed), units[0].rows)
        if self._forecast is not None and units and weighed.weight > 0.0:
            self.calibration.add(self._forecast, units, weighed, measured_s(weighed), now)
        self._forecast, self._forecast_due = None, False
        before = self.profiles.samples
        self._lawful.finished(batch, weighed, now)
        if self.profiles.samples > before:
            self.learnt_at = now

    def _weight(self) -> float:
        """What the time of the batch that has just ended counts."""
        disturbed, self.disturbed = self.disturbed, Disturbance.NOTHING
        beside = disturbed is Disturbance.CAPTURE
        self._captured += CAPTURES_MEMORY * (beside - self._captured)
        if disturbed is Disturbance.UNTIMED:
            return 0.0
        usual = disturbed is Disturbance.NOTHING or (beside and self._captured >= CAPTURES_USUAL)
        return 1.0 if usual else DISTURBED_WEIGHT

    def replied(self, request: RequestId, ago_s: float, now: float) -> None:
        """See `Scheduler`. What a peer says can only make the rest of the path shorter than the time since
        the unit left here."""
        if ago_s >= 0.0:
            for cls, left_at in self._unanswered.pop(request, ()):
                self.profiles.rest.add(cls, now - ago_s - left_at, now)

    def _left(self, unit: Unit, now: float) -> None:
        """A unit has run, and the rest of its path begins."""
        units = self._unanswered.setdefault(unit.id.request, [])
        if len(units) < limits.unanswered_units_max:
            units.append((unit.cls, now))
        if len(self._unanswered) > limits.unanswered_max:
            del self._unanswered[next(iter(self._unanswered))]

    def plan(self, now: float, budget_s: float) -> bool:
        """See `Scheduler`. First, once for each batch, what is expected of the one that runs."""
        began = time.perf_counter()
        if self._forecast_due:
            self._forecast_due = False
            units = next(iter(self._running.values()), [])
            self._forecast = forecast_of(units, self._since, self.profiles)
        goes_on = self._lawful.plan(now, budget_s)
        self.planning.add(time.perf_counter() - began)
        return goes_on

    def clear(self) -> None:
        """See `Scheduler`."""
        self._running = {}
        self._forecast, self._forecast_due = None, False
        self._lawful.clear()

    def _classify(self, unit: Unit) -> None:
        if self._classifies:
            app, feature = self._kind(unit)
            unit.cls = self.profiles.classify(app, feature)
            if self._costs and unit.cls != REST:  # a class may pass from one application to another
                self.profiles.weights[unit.cls] = self._costs.get(app, 1.0)

    def _kind(self, unit: Unit) -> tuple[str, float]:
        parameters = dict(unit.used[0].meta.parameters) if unit.used else {}
        return kind_of(self._batch, parameters, unit.rows)


class OrderedQueue(PolicyQueue):
    """A policy's queue in which units of one value of a parameter run in order of arrival."""

    def __init__(self, batch: BatchPolicy, pace: Pace | None = None) -> None:
        super().__init__(batch, pace)
        self._parameter = batch.keep_order.removeprefix(PARAMETER)
        self._order: ArrivalOrder[Unit] = ArrivalOrder()
        self._asked_at = 0.0

    def __len__(self) -> int:
        return super().__len__() + len(self._order)

    def add(self, unit: Unit, now: float) -> None:
        """See `Scheduler`."""
        self._asked_at = now
        value = self._value_of(unit)
        if not value or self._order.arrived(value, unit, super().__len__()):
            super().add(unit, now)
        else:
            self._lawful.withdraw(unit)  # it had come back before its turn, and has been reset since

    def take(self, now: float) -> list[Unit]:
        """See `Scheduler`."""
        self._take_turns(now, limits.order_turns_max)
        units = super().take(now)
        if not units and len(self._order):
            self._take_turns(now, len(self._order))
            units = super().take(now)
        return self._leaving(units, now)

    def late(self, now: float) -> list[Unit]:
        """See `Scheduler`."""
        self._take_turns(now, limits.order_turns_max)
        return self._leaving(super().late(now), now)

    def deadline(self) -> float:
        """See `Scheduler`."""
        self._take_turns(self._asked_at, limits.order_turns_max)
        instant = super().deadline()
        if instant == math.inf and len(self._order):
            self._take_turns(self._asked_at, len(self._order))
            instant = super().deadline()
        return instant

    def clear(self) -> None:
        """See `Scheduler`."""
        self._order.clear()
        super().clear()

    def _take_turns(self, now: float, at_most: int) -> None:
        self._asked_at = now
        for passed, unit in self._order.turns(at_most):
            self._lawful.withdraw(passed)
            if unit is not None:
                super().add(unit, now)

    def _leaving(self, units: list[Unit], now: float) -> list[Unit]:
        for unit in units:
            following = self._order.left(self._value_of(unit), unit)
            if following is not None:
                super().add(following, now)
        return units

    def _value_of(self, unit: Unit) -> str:
        parameters = dict(unit.used[0].meta.parameters) if unit.used else {}
        return str(parameters.get(self._parameter, ""))


def kind_of(batch: BatchPolicy, parameters: Mapping[str, Scalar], rows: int) -> tuple[str, float]:
    """The application and the feature of a unit, as the graph says where they are; NaN: it has no feature."""
    app = str(parameters.get(batch.app_by.removeprefix(PARAMETER), "")) if batch.app_by else ""
    if batch.feature == "rows":
        return app, float(rows)
    given = parameters.get(batch.feature.removeprefix(PARAMETER))
    return app, math.nan if given is None or isinstance(given, str) else float(given)


def queue_of(operator: Operator, pace: Pace | None = None) -> Scheduler:
    """The queue that an operator's instance has. `pace`: that of its guard, where it is not the usual one."""
    if operator.batch.policy is SchedulePolicy.FIFO:
        return Fifo(operator.batch)
    if operator.batch.keep_order:
        return OrderedQueue(operator.batch, pace)
    return PolicyQueue(operator.batch, pace)
