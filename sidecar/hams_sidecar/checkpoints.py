"""The disk side of checkpoints: threads beside the event loop, one file at a time each way
(`hams_checkpoints.folder` has the format).

A state of 500 MB takes seconds to read, check and write; the loop, which has heartbeats to send, sees nothing
of that but the allocation of its memory, which is the loop's alone. A checkpoint that cannot be written (disk
full, no permission) is an error in the log and nothing else: nothing acknowledged depends on it. Whatever
goes wrong, the machine is told: it waits for the answer.
"""

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from hams_checkpoints.folder import CheckpointFolder
from hams_protocol.effects import WriteCheckpoint
from hams_protocol.graph import Graph
from hams_protocol.messages import Payload, StateCopy
from hams_sidecar.arena import Arena
from hams_sidecar.payloads import ArenaFactory
from hams_wire.peers.codec import Codec
from hams_wire.peers.errors import NoRoom, NotSendable
from hams_wire.peers.payload import PayloadFactory, Room, TensorInfo

log = logging.getLogger("hams.checkpoints")

Result = TypeVar("Result")


class CheckpointWriter:
    """Writes and reads the checkpoints of one operator; does nothing where its graph asks for none."""

    def __init__(self, graph: Graph, operator: str, arena: Arena, by: str) -> None:
        self._policy = graph.operators[operator].checkpoint
        self._by = by
        self._codec = Codec(ArenaFactory(arena))
        self._folder = (
            None if self._policy is None else CheckpointFolder(self._policy.dir, graph.data.name, operator)
        )
        self._writing: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None

    def write(self, effect: WriteCheckpoint, tell: Callable[[StateCopy, bool], None]) -> None:
        """Write in the background, then `tell` whether it is there. While one is being written the next is
        left out: it is not there."""
        if self._folder is None or (self._writing is not None and not self._writing.done()):
            tell(effect.copy, False)
        else:
            self._writing = asyncio.get_running_loop().create_task(self._write(effect.copy, tell))

    async def newest(self) -> StateCopy | None:
        """The newest valid one, None if there is none."""
        if self._folder is None:
            return None
        codec = Codec(_OnLoop(self._codec.factory, asyncio.get_running_loop()))
        try:
            checkpoint = await asyncio.to_thread(self._folder.newest, codec)
        except NoRoom as error:
            log.error("the newest checkpoint does not fit: %s", error)
            return None
        if checkpoint is not None:
            log.warning(
                "%s has a checkpoint of epoch %d, version %d to begin from",
                checkpoint.op,
                checkpoint.epoch,
                checkpoint.version,
            )
        return checkpoint

    def read(self, tell: Callable[[StateCopy | None], None]) -> None:
        """Read in the background, then `tell`."""

        async def work() -> None:
            try:
                newest = await self.newest()
            except Exception:
                log.exception("the checkpoints cannot be read")
                newest = None
            tell(newest)

        self._reading = asyncio.get_running_loop().create_task(work())

    async def close(self) -> None:
        """Let the last one get to disk."""
        if self._reading is not None:
            await self._reading
        if self._writing is not None:
            await self._writing

    async def _write(self, copy: StateCopy, tell: Callable[[StateCopy, bool], None]) -> None:
        assert self._folder is not None
        assert self._policy is not None
        try:
            path = await asyncio.to_thread(self._folder.write, copy, self._codec, self._by, self._policy.keep)
        except (OSError, NotSendable) as error:
            log.error("no checkpoint of version %d of %s: %s", copy.version, copy.op, error)
            tell(copy, False)
        except Exception:
            log.exception("no checkpoint of version %d of %s", copy.version, copy.op)
            tell(copy, False)
        else:
            tell(copy, True)
            log.info("checkpoint of version %d of %s: %s", copy.version, copy.op, path)


class _OnLoop:
    """A factory for a thread beside the loop that the true one belongs to: memory is given out there."""

    def __init__(self, factory: PayloadFactory, loop: asyncio.AbstractEventLoop) -> None:
        self._factory = factory
        self._loop = loop

    def allocate(self, nbytes: int) -> Room:
        """See `PayloadFactory.allocate`."""
        return self._ask(lambda: self._factory.allocate(nbytes))

    def build(self, tensors: tuple[TensorInfo, ...], room: Room) -> Payload:
        """See `PayloadFactory.build`."""
        return self._ask(lambda: self._factory.build(tensors, room))

    def describe(self, payload: Payload) -> tuple[Sequence[TensorInfo], Sequence[memoryview]]:
        """See `PayloadFactory.describe`."""
        return self._factory.describe(payload)

    def sent(self, view: memoryview) -> None:
        """See `PayloadFactory.sent`."""

    def _ask(self, work: Callable[[], Result]) -> Result:
        answer: concurrent.futures.Future[Result] = concurrent.futures.Future()

        def on_loop() -> None:
            try:
                answer.set_result(work())
            except BaseException as error:  # noqa: BLE001 - the thread that waits for the answer raises it
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(on_loop)
        return answer.result()
