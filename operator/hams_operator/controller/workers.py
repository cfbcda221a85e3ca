"""Level-triggered work: a key is enqueued by whatever happens, and worked on by one worker at a time, as
often as something has changed.

A key that is enqueued while it is worked on is worked on once more; ten events in between are one. A failure
is tried again after a pause that doubles up to a bound, or when something happens to it, but not at once: a
refusal that is itself an event makes no storm.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

workers_max = 16
"""Graphs worked on at a time."""

debounce_s = 0.05
"""A graph is looked at this long after something has changed about it: what changes together is seen
together."""

work_share = 0.5
rest_max_s = 5.0
"""A graph is worked on for this share of the time at most, and rests no longer than the second for it."""

again_s = 0.5
again_max_s = 60.0
"""Pause before work that failed is tried again, doubled each time up to the second."""


log = logging.getLogger("hams.controller")

K = TypeVar("K")


class Requeue(Exception):
    """The work could not be finished now; the text says why. `after_s`: not before."""

    def __init__(self, why: str, after_s: float = 0.0) -> None:
        super().__init__(why)
        self.after_s = after_s


class Workers(Generic[K]):
    """`work(key)` returns after how many seconds it is to be done once more though nothing happens, or None.
    It may raise `Requeue`; any other exception is a bug, is logged as one, and is tried again with the
    longest pause.

    A key rests for a multiple of the time that its work took (`work_share`): however much happens to one, the
    others get their turn.
    """

    def __init__(self, work: Callable[[K], Awaitable[float | None]]) -> None:
        self._work = work
        self._dirty: set[K] = set()
        self._tasks: dict[K, asyncio.Task[None]] = {}
        self._nudges: dict[K, asyncio.Event] = {}
        self._hands = asyncio.Semaphore(workers_max)
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._paused = True
        self.rounds = 0
        self.failures = 0

    def enqueue(self, key: K) -> None:
        """Something about `key` has changed."""
        self._dirty.add(key)
        if key in self._nudges:
            self._nudges[key].set()
        if not self._paused and key not in self._tasks:
            task = self._tasks[key] = asyncio.get_running_loop().create_task(self._serve(key))
            task.add_done_callback(lambda _: self._ended(key))

    def _ended(self, key: K) -> None:
        self._tasks.pop(key, None)
        self._nudges.pop(key, None)
        if key in self._dirty and not self._paused:  # enqueued after the last look at it, and before this
            self.enqueue(key)

    def begin(self) -> None:
        """Start to work; until then keys are only collected."""
        self._paused = False
        for key in list(self._dirty):
            self.enqueue(key)

    async def close(self) -> None:
        """Stop, wherever work is."""
        self._paused = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def idle(self) -> None:
        """Wait until nothing is left to do (for tests)."""
        while self._tasks:
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _later(self, key: K, after_s: float | None) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if after_s is not None and not self._paused:
            self._timers[key] = asyncio.get_running_loop().call_later(after_s, self.enqueue, key)

    async def _serve(self, key: K) -> None:
        pause_s, rest_s = 0.0, 0.0
        loop = asyncio.get_running_loop()
        nudge = self._nudges[key] = asyncio.Event()
        while key in self._dirty:
            await asyncio.sleep(max(rest_s, debounce_s if pause_s == 0 else again_s))
            if pause_s > again_s:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s - again_s):
                        await nudge.wait()
            nudge.clear()
            async with self._hands:
                self._dirty.discard(key)
                self.rounds += 1
                began_s = loop.time()
                try:
                    self._later(key, await self._work(key))
                except Requeue as requeue:
                    log.info("%s: again in a moment: %s", key, requeue)
                    pause_s = max(requeue.after_s, min(max(2 * pause_s, again_s), again_max_s))
                except Exception:  # the boundary: one graph's trouble is not the others'
                    log.exception("%s: the work failed in a way nobody foresaw", key)
                    pause_s = again_max_s
                else:
                    pause_s = 0.0
                    continue
                finally:
                    took_s = loop.time() - began_s
                    rest_s = min(took_s * (1 / work_share - 1), rest_max_s)
            self.failures += 1
            self._dirty.add(key)
