"""Graphs read in a thread of their own: whatever an object costs to validate, the loop that renews leases and
follows watches goes on.

One at a time: validation is pure Python, so a second thread would make the first one later, and nothing
sooner.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

aside_waiting_max = 64
"""Questions to the webhook, or graphs of the controller, that wait to be validated; one is validated at a
time."""


P = ParamSpec("P")
T = TypeVar("T")


class Busy(Exception):
    """As much waits already as may."""


class Aside:
    """`run` calls a function in the thread. Exceptions of the function come back."""

    def __init__(self, name: str, waiting_max: int = aside_waiting_max) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._waiting_max = waiting_max
        self._waiting = 0

    async def run(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """What the function returns. Raises Busy at once if `waiting_max` others wait."""
        if self._waiting >= self._waiting_max:
            raise Busy(f"{self._waiting} others wait")
        self._waiting += 1
        try:
            work = self._thread.submit(function, *arguments, **named)
            return await asyncio.wrap_future(work)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Begin nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)
