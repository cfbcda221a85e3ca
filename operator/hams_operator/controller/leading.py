"""The election in a thread, a loop and a connection of its own: neither a thousand graphs nor one that is
dear delay the renewal of the Lease.

It decides nothing that `Election` does not; `won` belongs to the loop that calls `run`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import uvloop

from hams_operator.controller.election import Election
from hams_operator.controller.kube import KubeClient


class Leading:
    """`run` returns when the Lease is lost, or after `resign`. `client` makes the connection, in the
    thread."""

    def __init__(self, client: Callable[[], Awaitable[KubeClient]], namespace: str, identity: str) -> None:
        self.won = asyncio.Event()
        self._client = client
        self._namespace = namespace
        self._identity = identity
        self._there: asyncio.AbstractEventLoop | None = None
        self._resigned = asyncio.Event()
        self._over: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Raises what the thread raised. Cancelling it leaves the Lease to `resign`."""
        here = asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, thread_name_prefix="lease")
        self._over = asyncio.wrap_future(thread.submit(self._work, here))
        thread.shutdown(wait=False)
        await asyncio.shield(self._over)

    async def resign(self) -> None:
        """Let the other replica begin at once, and end."""
        if self._over is None:
            return
        if self._there is not None and not self._over.done():
            self._there.call_soon_threadsafe(self._resigned.set)
        await asyncio.wait((self._over,))

    def _work(self, here: asyncio.AbstractEventLoop) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._hold(here))

    async def _hold(self, here: asyncio.AbstractEventLoop) -> None:
        kube = await self._client()
        election = Election(kube, self._namespace, self._identity)
        self._there = asyncio.get_running_loop()
        tasks = [
            asyncio.create_task(election.run()),
            asyncio.create_task(self._resigned.wait()),
            winning := asyncio.create_task(election.won.wait()),
        ]
        winning.add_done_callback(lambda task: task.cancelled() or here.call_soon_threadsafe(self.won.set))
        try:
            done, _ = await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # A controller that has lost the election does not resign: its work goes on until `run` returns,
            # so the Lease has to expire first.
            if self._resigned.is_set():
                await election.resign()
            await kube.close()
