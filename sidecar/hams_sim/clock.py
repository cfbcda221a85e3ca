"""Simulated time: one heap of things to come. Two incarnations of a graph share one."""

import heapq
from collections.abc import Callable

from hams_sim import limits
from hams_sim.errors import Broken


class Clock:
    """`now`: simulated seconds. `same_time`: so many calls have come at this instant before the present
    one."""

    def __init__(self) -> None:
        self.now = 0.0
        self.same_time = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._ties = 0

    def at(self, when: float, call: Callable[..., None], *args: object) -> None:
        """Call at a simulated time; ties in order of asking."""
        self._ties += 1
        heapq.heappush(self._heap, (when, self._ties, call, args))

    def after(self, delay: float, call: Callable[..., None], *args: object) -> None:
        """Call after a simulated delay."""
        self._ties += 1
        heapq.heappush(self._heap, (self.now + delay, self._ties, call, args))

    def run(self, until: float) -> None:
        """Let everything happen that is due up to `until`. Raises Broken on a loop without time."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until:
            when, _, call, args = pop(heap)
            if when > self.now:
                self.now = when
                self.same_time = 0
            else:
                self.same_time += 1
                if self.same_time > limits.same_time_events_max:
                    raise Broken("core", f"a loop without time: {call} {args}")
            call(*args)
        self.now = max(self.now, until)
