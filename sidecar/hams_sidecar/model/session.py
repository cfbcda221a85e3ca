"""What the link knows of one model process, from its setup to its end, and of the batch that is in it."""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple, TypeAlias

from hams_protocol.effects import BatchUnit, LoadState
from hams_sidecar.arena import Buffer
from hams_sidecar.chunks import ChunkTable
from hams_sidecar.model.channel import ModelChannel
from hams_sidecar.model.declared import UnitInputs
from hams_sidecar.model.frames import Done, Failed, Ready
from hams_sidecar.model.mutex import ModelMutex
from hams_sidecar.model.process import ModelProcess
from hams_wire.scheduling import Disturbance

Image: TypeAlias = Buffer | ChunkTable
"""A state in the memory that the model maps."""


@dataclass(slots=True, eq=False)
class StateLoad:
    """A state to load, and where it lies for the model; None while it is copied there."""

    effect: LoadState
    image: Image | None


class Base(NamedTuple):
    """A table that the model knows by `number`: what its state was when that was captured or loaded."""

    number: int
    table: ChunkTable


class BatchInModel:
    """The batch that is in the model: `inputs` and `spaces` (memory granted for outputs) unit by unit, held
    until it is over.

    `enter`: the model may pass into its update stage, whether it asks or not. `wanted`: it stands before it.
    `abandon`: it must not pass. `sent_at`: when the model was told to run, on the machine's monotonic clock.
    `loads`: it waited for a load, or the process was fresh; `captures`: a capture ran beside it.
    """

    __slots__ = (
        "abandon",
        "asking",
        "captures",
        "enter",
        "inputs",
        "loads",
        "number",
        "sent_at",
        "spaces",
        "units",
        "wanted",
    )

    def __init__(
        self, number: int, units: tuple[BatchUnit, ...], inputs: list[UnitInputs], enter: bool = False
    ) -> None:
        self.number = number
        self.units = units
        self.inputs = inputs
        self.spaces: list[Buffer] = []
        self.enter = enter
        self.abandon = False
        self.asking = False
        self.wanted = False
        self.sent_at = 0.0
        self.loads = self.captures = False

    def disturbance(self, own_s: float) -> Disturbance:
        """What else ran in the model meanwhile; `own_s`: how long the model says that its run took, 0 if it
        does not say."""
        if self.loads:
            return Disturbance.LOAD if own_s > 0.0 else Disturbance.UNTIMED
        return Disturbance.CAPTURE if self.captures else Disturbance.NOTHING

    def own_s(self, frame: Done | Failed) -> float:
        """What the model says that its run took, its wait to be let in left out; 0 if it does not say, or
        says what cannot be: a time below zero, or more than has passed."""
        parts_s = (frame.seconds, frame.update_s)
        return sum(parts_s) if min(parts_s) >= 0.0 and sum(parts_s) <= monotonic() - self.sent_at else 0.0


class Session:
    """One model process. `serving`: the core has been told that it is ready. `protocol`: the version of the
    contract that it speaks."""

    def __init__(self, run: ModelChannel, process: ModelProcess, protocol: int) -> None:
        self.protocol = protocol
        self.token = secrets.token_hex(16)
        self.process = process
        self.run = run
        self.capture: ModelChannel | None = None
        self.health: ModelChannel | None = None
        self.ready: Ready | None = None
        self.mutex: ModelMutex | None = None
        """Held by the process as long as it lives, if it says so."""
        self.serving = False
        self.batch: BatchInModel | None = None
        self.has_run = False
        """Whether it has finished a batch."""
        self.running_since: float | None = None
        """Loop time since which the model computes; None while it waits for us."""
        self.capturing_since: float | None = None
        self.loading_since: float | None = None
        """Loop time since which the model captures, or loads, what it was told of first."""
        self.captures: deque[int] = deque()
        """Versions to capture; the first one is in the model."""
        self.image: Buffer | None = None
        """Memory granted to the capture under way."""
        self.untold: Buffer | None = None
        """The same, while the model has not been told of that capture."""
        self.base: Base | None = None
        """What the next capture is compared with."""
        self.compared: Base | None = None
        """What the capture under way is compared with; its memory is held until that is over."""
        self.tables = 0
        """Images that the model was told of, captured or to be loaded: the number of the newest."""
        self.capturing = self.loaded = 0
        """Numbers of the capture under way, and of the newest load."""
        self.continues = False
        """No load was under way when the present capture was sent, and none has been sent since."""
        self.loads: deque[StateLoad] = deque()
        """States to load, in order; those that came during a batch wait for its end."""
        self.loads_sent = 0
        """How many of them, from the first on, the model has been told of."""
        self.loads_alone = False
        """No capture has been under way since the newest load was sent."""
        self.pings = 0
        self.pinged: float | None = None
        """Loop time of the ping that has not been answered yet."""
        self.on_failed: Callable[[BaseException], None] | None = None
        """Told of work that ended otherwise than it should."""
        self._tasks: set[asyncio.Task[None]] = set()

    def channels(self) -> list[ModelChannel]:
        """Its connections that are there."""
        return [one for one in (self.run, self.capture, self.health) if one is not None]

    def later(self, work: Coroutine[None, None, None]) -> None:
        """Work that waits for room in an arena, given up with the session."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self.on_failed is not None:
            self.on_failed(error)

    def cancel(self) -> None:
        """Give up what waits."""
        current = asyncio.current_task()
        for task in list(self._tasks):
            if task is not current:
                task.cancel()
