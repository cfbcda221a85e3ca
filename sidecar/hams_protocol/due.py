"""When something is to be done without an event, and what.

A due time stands in one place, `dues`, with what happens then. `deadline` and `tick` are made of it, so a
time that a machine asks to be woken for cannot differ from the one at which it acts: a forgotten one is a
stall.
"""

from collections.abc import Callable

from hams_protocol.context import Context

FOREVER = float("inf")

Due = tuple[float, Callable[[], None]]
"""A time in seconds, and what happens as soon as it has come."""


class Timed:
    """A part of a machine for which time passes."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def dues(self) -> list[Due]:
        """All of them, in the order in which they are looked at; at `FOREVER` nothing is due."""
        return []

    def deadline(self) -> float:
        """The earliest of them."""
        return min([at for at, _ in self.dues()], default=FOREVER)

    def tick(self) -> None:
        """Do what is due."""
        for at, act in self.dues():
            if self._ctx.now >= at:
                act()
