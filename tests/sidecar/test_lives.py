"""One process, one instance after another (`hams_sidecar.lives`): who keeps a state goes on, also when it is
to end."""

import asyncio
from types import SimpleNamespace

import pytest

from hams_protocol.effects import Stop
from hams_sidecar.lives import Sidecar, live
from hams_wire.errors import CoordinationError
from hams_wire.process import Asked, ProcessStage


class OneLife:
    """What `live` needs of a node."""

    def __init__(self, name: str) -> None:
        self.instance = name
        self.stopped: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()
        self.closed = False

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def until_stopped(self, asked: asyncio.Event, *, timeout_s: float | None = None) -> None:
        waits = asyncio.create_task(asked.wait())
        await asyncio.wait({waits, self.stopped}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        waits.cancel()

    async def close(self, leave: bool) -> None:
        self.closed = True


class Process:
    """Runs `live` with lives that a test ends. `left`: the lives that were asked to leave."""

    def __init__(self) -> None:
        self.lives: list[OneLife] = []
        self.left: list[OneLife] = []
        self.asked = Asked()
        self.stages: list[ProcessStage] = []
        self.enter = self.stages.append
        self.began = asyncio.Event()
        self.leaving = asyncio.Event()

    async def begin(self, name: str, life: int) -> OneLife:
        self.lives.append(OneLife(name))
        self.began.set()
        return self.lives[-1]

    async def start(self, node: OneLife) -> None:
        assert node is self.lives[-1]

    def between(self, node: OneLife) -> None:
        assert node is self.lives[-1]

    async def leave(self, node: OneLife, within_s: float) -> None:
        self.left.append(node)
        self.leaving.set()
        await node.until_stopped(self.asked.at_once, timeout_s=within_s)

    def run(self, leave_s: float = 60.0) -> asyncio.Task[OneLife]:
        lives = live("a", self, self.asked, leave_s)  # type: ignore[arg-type]
        return asyncio.ensure_future(lives)  # type: ignore[arg-type]

    async def next_life(self) -> OneLife:
        await self.began.wait()
        self.began.clear()
        return self.lives[-1]

    async def next_leaves(self) -> OneLife:
        await self.leaving.wait()
        self.leaving.clear()
        return self.left[-1]


async def test_who_keeps_a_state_goes_on_under_a_fresh_id() -> None:
    process = Process()
    task = process.run()
    first = await process.next_life()
    first.stopped.set_result(Stop("revoked", "q"))
    second = await process.next_life()
    assert first.closed
    assert second.instance.startswith("a-")
    second.stopped.set_result(Stop("deposed"))
    assert await task is second
    assert process.stages == [ProcessStage.SERVING, ProcessStage.STARTING, ProcessStage.SERVING]


async def test_who_is_to_end_and_is_revoked_with_a_state_leaves_once_more() -> None:
    process = Process()
    task = process.run()
    first = await process.next_life()
    process.asked.set()
    assert await process.next_leaves() is first
    first.stopped.set_result(Stop("revoked", "q"))
    second = await process.next_leaves()
    assert second is not first, "what it keeps may be the last there is"
    second.stopped.set_result(Stop("drained"))
    assert await task is second


async def test_who_is_to_end_while_its_state_waits_for_etcd_ends_when_its_time_is_over() -> None:
    process = Process()

    async def away(node: OneLife) -> None:
        if node is not process.lives[0]:
            process.asked.set()
            raise CoordinationError("etcd is away")

    process.start = away  # type: ignore[method-assign]
    task = process.run(leave_s=0.0)
    (await process.next_life()).stopped.set_result(Stop("revoked", "q"))
    with pytest.raises(CoordinationError):
        await task


@pytest.mark.parametrize("how", ["time is over", "at once"])
async def test_it_does_not_stay_for_ever(how: str) -> None:
    process = Process()
    task = process.run(leave_s=0.0 if how == "time is over" else 60.0)
    node = await process.next_life()
    process.asked.set()
    if how == "at once":
        await process.next_leaves()
        process.asked.now()
    assert await task is node
    assert not node.stopped.done()


def test_a_stage_follows_only_those_that_it_may_follow() -> None:
    process = SimpleNamespace(stage=ProcessStage.SERVING)
    Sidecar.enter(process, ProcessStage.STARTING)  # type: ignore[arg-type]
    Sidecar.enter(process, ProcessStage.SERVING)  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        Sidecar.enter(process, ProcessStage.WARMING)  # type: ignore[arg-type]
    Sidecar.enter(process, ProcessStage.ENDED)  # type: ignore[arg-type]
