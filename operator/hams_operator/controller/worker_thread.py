"""A worker thread for what takes longer the larger a graph is: while it validates or plans, the loop that
renews leases and follows watches goes on.

One call at a time: this work is pure Python, so a second thread would make the first one later, and nothing
sooner.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

calls_waiting_max = 64
"""Questions to the webhook, or graphs of the controller, that one worker thread has taken on; one runs at a
time, and the others wait."""


P = ParamSpec("P")
T = TypeVar("T")


class Busy(Exception):
    """As many calls wait already as may."""


class WorkerThread:
    """One thread and its queue. `run` calls a function there and raises what the function raises."""

    def __init__(self, name: str, waiting_max: int = calls_waiting_max) -> None:
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
