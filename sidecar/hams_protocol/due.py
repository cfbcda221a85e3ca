"""When something is to be done without an event, and what.

A due time stands in one place, `dues`, with what happens then. `deadline` and `tick` are made of it, so a
time that a machine asks to be woken for cannot differ from the one at which it acts: a forgotten one is a
stall.
"""

from collections.abc import Callable, Iterable

from hams_protocol.context import StepClock

FOREVER = float("inf")

Due = tuple[float, Callable[[], None]]
"""A time in seconds, and what happens as soon as it has come."""


class Timed:
    """A machine, or a part of one, for which time passes."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock

    def dues(self) -> list[Due]:
        """All of them, in the order in which they are looked at; at `FOREVER` nothing is due."""
        return []

    def deadline(self) -> float:
        """The earliest of them."""
        due = FOREVER
        for at, _ in self.dues():
            if at < due:
                due = at
        return due

    def tick(self) -> None:
        """Do what is due."""
        now = self._clock.now
        for at, act in self.dues():
            if now >= at:
                act()


def earliest(parts: Iterable[Timed]) -> float:
    """When the first of these parts has something to do."""
    due = FOREVER
    for part in parts:
        at = part.deadline()
        if at < due:
            due = at
    return due


class Alarm:
    """The time for which one machine has asked to be woken: before that nothing is due, so nothing need be
    looked at."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self._at = FOREVER

    def set(self, at: float) -> float:
        """Ask for `at`, and return it."""
        self._at = at
        return at

    @property
    def has_come(self) -> bool:
        """Whether something is due."""
        return self._clock.now >= self._at


class Grace:
    """How long a state of affairs that has begun is waited for. `at` is when that is over; `FOREVER`: it has
    not begun."""

    def __init__(self, for_s: Callable[[], float]) -> None:
        self._for_s = for_s
        self._since = FOREVER

    def begin(self, now: float) -> None:
        """It has begun, unless it had before."""
        self._since = min(self._since, now)

    def end(self) -> None:
        """It is over, however long it took."""
        self._since = FOREVER

    @property
    def at(self) -> float:
        """When it has been waited for long enough."""
        return self._since + self._for_s()
