"""Policy `Distribution`: the batch with the most expected completions in time per second of the model, the
best candidates rolled forward once (docs/adr/0035).

The objective of a worker whose batches cannot be interrupted is V(B) / E[L_B], not the priority of single
requests; roll-outs repair its greed. Decisions are planned beside the running batch, where a batch is so
short that planning between two batches would cost too much of it. With few samples it is `Deadline`.
"""

import math
from typing import Final, Generic

from hams_schedule.classes import REST
from hams_schedule.decision import BatchChoice, ChoiceKind, Terms, decide, quick, warm
from hams_schedule.limits import plan_on_spot_share, plan_units_max, rollout_step_s, samples_cold_max
from hams_schedule.pending import Span
from hams_schedule.policies.base import RunningBatch, measured_s, overdue
from hams_schedule.policies.deadline import PointTimes, point_choice
from hams_schedule.policies.lateness import LatenessPolicy
from hams_schedule.profile import Profiles
from hams_schedule.rollout import Arrivals
from hams_schedule.scheduler import BatchTiming, U
from hams_schedule.steps import AT_ONCE, Steps
from hams_schedule.tables import TimeTables
from hams_schedule.trial import pause, trial

STALE: Final = 0.1
"""Share of the running batch's time by which its end may differ from the planned one."""
STEPS_PRIOR: Final = 100
"""Steps that a decision takes, before one was made."""
WORK_FORGOTTEN: Final = 1 / 64
"""Share of what decisions take that is forgotten with each one that rolls nothing out."""
STEPS_MEMORY: Final = 0.25
"""Weight of the newest decision in the running mean of steps."""


class Plan(Generic[U]):
    """A decision for the instant at which the running batch is expected to end. `arrived`: the dues of
    units that came since."""

    __slots__ = ("arrived", "at", "slack", "time", "units", "value")

    def __init__(self, at: float, slack: float, units: list[U], value: float, time: float) -> None:
        self.at = at
        self.slack = slack
        self.units = units
        self.value = value
        self.time = time
        self.arrived: list[float] = []

    def holds(self, now: float) -> bool:
        """Whether nothing has happened that the plan did not foresee."""
        if abs(now - self.at) > self.slack:
            return False
        earliest = min([unit.due for unit in self.units])
        return all(due >= earliest or due >= now + self.time for due in self.arrived)


class Distribution(LatenessPolicy[U]):
    """See the module. `profiles` are shared: others may read, dump and merge them.

    `weights`: the cost of missing a unit, by class; `steps`: how it falls due. `on_spot_share`: the
    share of a batch's time that a decision with roll-outs may take while the model waits.
    """

    def __init__(
        self,
        max_rows: int,
        shed: bool,
        profiles: Profiles,
        weights: dict[int, float] | None = None,
        steps: Steps = AT_ONCE,
        on_spot_share: float = plan_on_spot_share,
        learns: bool = True,
        max_delay_s: float = 0.0,
    ) -> None:
        super().__init__(max_rows, by_class=True, shed=shed)
        self.profiles = profiles
        self.arrivals = Arrivals()
        self.terms = Terms(steps, profiles.weights if weights is None else weights)
        self.rest = profiles.rest
        self.terms.rest = self.rest.medians
        self.decisions = [0] * len(ChoiceKind)
        self.stale_plans = 0
        self._points = PointTimes(profiles.prior_p99_s)
        self._on_spot_share = on_spot_share
        self._learns = learns
        self._max_delay_s = max_delay_s
        self._idles_since = math.inf
        self._idles_until = -math.inf
        self.tables: TimeTables | None = None
        self.keeps_tables = False
        """Whether `tables` stay as they are given, whatever is learnt meanwhile."""
        self._next_tables: TimeTables | None = None
        """Those of newer laws, as far as they are worked out."""
        self.work = float(STEPS_PRIOR)
        """What a decision with roll-outs costs, a running mean."""
        self._plan: Plan[U] | None = None
        self._untried = 0
        """Batches since the last trial."""
        self._known_rows = 0
        self._tried = 0
        """Trials since so many rows are known."""
        self._cold = False
        """Laws that the next decision reads may not be made yet."""

    def add(self, unit: U, now: float) -> None:
        """Queue a ready unit."""
        super().add(unit, now)
        due = unit.due
        self.arrivals.add(now, unit.cls, due - now)
        if self._plan is not None:
            self._plan.arrived.append(due)

    def started(self, batch: int, units: list[U], now: float) -> None:
        """The model runs `units`."""
        super().started(batch, units, now)
        self._cold = True

    def deadline(self) -> float:
        """The last instant seen, if anything waits; while idling for company, the end of that."""
        instant = super().deadline()
        if instant < math.inf and self._idles_since < math.inf and not self.pending.waiting_first():
            return max(instant, self._idles_until)
        return instant

    def clear(self) -> None:
        """Forget all units."""
        super().clear()
        self._plan = None
        self._idles_since, self._idles_until = math.inf, -math.inf

    def plan(self, now: float, budget_s: float) -> bool:
        """Learn what is due, then decide ahead where batches are too short to decide between them. First,
        once for each batch, how long it is expected to take, by what was known when it began."""
        running = self.running
        if running is not None and math.isnan(running.expected_s):
            running.expected_s = self._expected_s(running.units)
        if self._learns and self.profiles.refresh():
            return True
        if self._build():
            return True
        tables = self.tables
        if tables is None or running is None or self._plan is not None or budget_s <= 0.0:
            return False
        at = max(now, running.since + running.expected_s)
        lines, most = list(self.pending.lines.values()), budget_s / rollout_step_s
        if self._on_spot(tables):
            self._cold = self._cold and warm(lines, tables, self.terms, at, most)
            return self._cold
        if self.work > most and budget_s > self._on_spot_share * running.expected_s:
            return False  # half a plan is worth no more of a short batch
        decision = decide(lines, tables, self.arrivals, self.terms, at, most_steps=most)
        if decision is not None:
            self._spent(decision.steps)
            units = [unit for span in decision.spans for unit in span.line.units[span.low : span.high]]
            slack = STALE * max(running.expected_s, now - running.since)
            self._plan = Plan(at, slack, units, decision.value, decision.time)
        return False

    def present_tables(self) -> TimeTables | None:
        """The tables of the present laws, built anew if they have changed; None while little is known."""
        while self._build():
            pass
        return self.tables

    def _choose(self, now: float) -> list[Span[U]]:
        if self.tables is None:
            self.present_tables()
        tables, plan = self.tables, self._plan
        self._plan = None
        if tables is None:
            after = now + self.rest.median_of_all()
            span = point_choice(self.pending.all_lines(), self._points, self.max_rows, after)
            self.decisions[ChoiceKind.POINT] += span is not None
            return [] if span is None else [span]
        tried = self._trial(tables, now)
        if tried is not None:
            return [tried]
        if plan is not None:
            spans = self.pending.spans_of(plan.units) if plan.holds(now) else None
            if spans:
                return self._decided(BatchChoice(spans, plan.value, plan.time, ChoiceKind.PLANNED, 0))
            self.stale_plans += 1
        lines = list(self.pending.lines.values())
        if self._on_spot(tables):
            idle_until = min(self._idles_since, now) + self._max_delay_s
            if self._idles_since < math.inf and now >= self._idles_until:
                idle_until = now  # company has not come in time
            most = self._most_steps(tables)
            decision = decide(lines, tables, self.arrivals, self.terms, now, idle_until, most)
        else:
            decision = quick(lines, tables, self.terms, now)
            self.work *= 1.0 - WORK_FORGOTTEN  # or nothing would tell that queues are short again
        if decision is None:  # all are hopeless and yet here: the rest of their path was misjudged
            earliest = self.pending.earliest()
            return [] if earliest is None else [Span(earliest, 0, 1)]
        return self._decided(decision)

    def _trial(self, tables: TimeTables, now: float) -> Span[U] | None:
        """Every so often a batch of an unknown size, if one is wanted."""
        self._untried += 1
        if tables.known_rows != self._known_rows:
            self._known_rows, self._tried = tables.known_rows, 0
        wanted = self._learns and len(self.pending) > tables.known_rows
        if not wanted or self._untried < pause(self._tried):
            return None
        span = trial(self.pending.all_lines(), tables, self.terms.rest, now)
        if span is not None:
            self._untried = 0
            self._tried += 1
            self.decisions[ChoiceKind.TRIAL] += 1
        return span

    def _decided(self, decision: BatchChoice[U]) -> list[Span[U]]:
        self.decisions[decision.kind] += 1
        if decision.kind == ChoiceKind.IDLE:
            self._idles_since = min(self._idles_since, self.now)
            self._idles_until = self.now + decision.time
            return []
        self._idles_since, self._idles_until = math.inf, -math.inf
        if decision.kind == ChoiceKind.FULL:
            self._spent(decision.steps)
        return decision.spans

    def _spent(self, steps: int) -> None:
        self.work += STEPS_MEMORY * (steps - self.work)

    def _on_spot(self, tables: TimeTables) -> bool:
        """Whether a decision with roll-outs costs little of a batch."""
        if len(self.pending) > plan_units_max:
            return False
        return self.work <= self._most_steps(tables)

    def _most_steps(self, tables: TimeTables) -> float:
        """The steps that a decision may take while the model waits."""
        batch_s = tables.expected[tables.rank_of(REST)][1]
        return self._on_spot_share * batch_s / rollout_step_s

    def _build(self) -> bool:
        """Work out one class more of the tables of the present laws; whether there is more to do. There are
        none while there are too few samples."""
        profiles, ahead = self.profiles, self._next_tables
        if self.tables is not None and (self.keeps_tables or self.tables.revision == profiles.revision):
            return False
        if profiles.samples < samples_cold_max:
            self._next_tables = None
            if self.tables is not None:  # all was forgotten
                self.tables = None
                self._points = PointTimes(profiles.prior_p99_s)
            return False
        if (
            ahead is None
        ):  # those of laws that have changed meanwhile are finished: they may change ever again
            if not profiles.cdfs():
                profiles.settle()
            self._next_tables = TimeTables(profiles, self.max_rows, whole=False) if profiles.cdfs() else None
            return self._next_tables is not None
        if ahead.build():
            return True
        self.tables, self._next_tables = ahead, None
        return False

    def _hopeless(self, now: float) -> list[Span[U]]:
        if self.tables is None:
            self.present_tables()
        tables = self.tables
        if tables is None:
            least = self.rest.least_of_all() + self._points.least()
            return overdue(self.pending.all_lines(), now + least)
        spans: list[Span[U]] = []
        compares = self.profiles.compares
        instants: dict[int, float] = {}
        for line in self.pending.lines.values():
            for cls, of_class in line.classes.items():
                instant = instants.get(cls, -math.inf)
                if instant == -math.inf:
                    instant = now + self.rest.least(cls)
                    if not compares:  # or a profile of a slower machine would never see a batch
                        instant += tables.drop[tables.rank_of(cls)]
                    instants[cls] = instant
                if of_class.dues[0] < instant:
                    spans += overdue([of_class], instant)
        return spans

    def _expected_s(self, units: list[U]) -> float:
        rows = sum(unit.rows for unit in units)
        tally: dict[int, int] = {}
        for unit in units:
            tally[unit.cls] = tally.get(unit.cls, 0) + 1
        return self.profiles.expected(tuple(tally.items()), rows) or self._points.estimate(rows)

    def _learn(self, running: RunningBatch[U], timing: BatchTiming) -> None:
        time = measured_s(timing)
        rows = sum(unit.rows for unit in running.units)
        if math.isfinite(time) and time > 0.0 and timing.weight == 1.0 and self.tables is None:
            self._points.observe(rows, time)
        if self._learns:
            classes = [unit.cls for unit in running.units]
            self.profiles.observe_batch(classes, rows, time, self.now, timing.weight)
