"""What a policy is: the calls of an operator's queue, and what a policy reads of a unit and of a run.

`hams_protocol.batching` declares the same calls for the machines; this package must not import the core, so
both are structural and fit by their form.
"""

from collections.abc import Hashable
from typing import Final, Protocol, TypeVar

READY: Final = 1
"""`hams_protocol.joins.Stage.READY`: the only stage in which a unit may run."""


class Unit(Protocol):
    """One (request, lane) that is ready to run."""

    @property
    def due(self) -> float:
        """The instant at which its request has to be answered; infinity if there is none."""

    @property
    def rows(self) -> int:
        """How much of a batch it fills, at least 1."""

    @property
    def batch_key(self) -> Hashable:
        """Units whose keys differ never share a batch."""

    @property
    def attempts(self) -> int:
        """Runs that ended in a death; above 0 it runs alone and before all others."""

    @property
    def cls(self) -> int:
        """Its class in the operator's profiles (`profile.Profiles.classify`)."""

    @property
    def stage(self) -> int:
        """Only `READY` units run; others are dropped."""


class BatchTiming(Protocol):
    """How long a batch took."""

    @property
    def compute_s(self) -> float:
        """The model's own time; 0: unknown."""

    @property
    def total_s(self) -> float:
        """From the start of the batch to its end, waits included."""

    @property
    def ok(self) -> bool:
        """Whether the model gave outputs."""

    @property
    def weight(self) -> float:
        """What it counts as a sample of its time: 1, less where something else ran in the model, 0 where that
        time is not the batch's at all."""


U = TypeVar("U", bound=Unit)


class SchedulerPort(Protocol[U]):
    """The queue of one operator. Laws: `hams_schedule.lawful`."""

    def __len__(self) -> int:
        """Units that wait, those that are not READY any more included."""

    def add(self, unit: U, now: float) -> None:
        """Queue a ready unit, which does not wait yet."""

    def add_first(self, unit: U, now: float) -> None:
        """Queue a unit before all others: a suspect, or one whose batch was undone."""

    def take(self, now: float) -> list[U]:
        """The units of the next batch; none if nothing is to run yet."""

    def late(self, now: float) -> list[U]:
        """Units to answer by an error instead of running them; asked before `take`."""

    def deadline(self) -> float:
        """The next instant at which `take` or `late` could answer otherwise; infinity if only an event can
        change the answer."""

    def started(self, batch: int, units: list[U], now: float) -> None:
        """`units`, the answer of the last `take`, run as `batch`."""

    def finished(self, batch: int, timing: BatchTiming, now: float) -> None:
        """The run of `batch` has ended."""

    def plan(self, now: float, budget_s: float) -> bool:
        """Work ahead while the model runs, about `budget_s` of it; whether there is more to do."""

    def clear(self) -> None:
        """Forget all units."""
