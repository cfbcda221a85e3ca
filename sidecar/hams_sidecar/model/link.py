"""The proxy's end of the model contract: effects of the core go in, its events come out.

The link owns the listening socket; model processes come and go. It grants the space that a model may write,
so a model can neither run out of memory unseen nor write where others read. One batch or load is in the model
at a time; a capture runs beside the next compute stage.

Invariants: exactly one of BatchDone, BatchFailed and ModelDied answers a StartBatch; Captured or ModelDied a
Capture; Loaded or ModelDied a LoadState. Memory that a dead model could still write is kept until
that process is known to have ended. Never: decides about protocol state, retries, or starts processes
(whoever started the model restarts it; it connects again).
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import NamedTuple, TypeAlias

from hams_protocol.effects import (
    AbandonBatch,
    BatchUnit,
    Capture,
    EnterUpdate,
    LoadState,
    PreloadState,
    RestartModel,
    StartBatch,
)
from hams_protocol.events import (
    BatchDone,
    BatchFailed,
    Captured,
    Loaded,
    ModelDied,
    ModelReady,
    UnitResult,
    UpdateWanted,
)
from hams_protocol.graph import FEEDBACK, FRONTEND, Graph
from hams_protocol.messages import Payload
from hams_sidecar import limits as sidecar_limits
from hams_sidecar.arena import Arena, ArenaFull, ArenaTooSmall, Buffer
from hams_sidecar.blocks import round_up
from hams_sidecar.datatypes import fixed_nbytes
from hams_sidecar.model import frames, limits
from hams_sidecar.model.declared import Declared, UnitInputs
from hams_sidecar.model.frames import FromModel, Place
from hams_sidecar.model.images import CaptureCounts, Images
from hams_sidecar.model.mutex import MUTEX_BYTES, ModelMutex
from hams_sidecar.model.session import BatchInModel, Session
from hams_sidecar.model.sessions import ModelHealth, Sessions
from hams_sidecar.payload import Tensor, TensorPayload
from hams_wire.limits import dimension_max
from hams_wire.scheduling import Disturbance

PING_INTERVAL_S = 1.0
"""Between two health questions to an idle or busy model."""

PONG_WAIT_S = 10.0
"""A model that has not answered for so long is dead: its health thread could not run all that time."""

RUN_S_MAX = 300.0
"""A run, a capture or a load that takes longer is taken for hung; the time in which the model waits for its
proxy does not count."""

SPACE_SLACK = 1.25
"""Space granted for outputs of variable size: what the last batch took per row, times this."""

SPACE_GUESS_BYTES_MAX = 8 << 20
"""At most this much is granted to a unit by such a guess: one request with a huge row says nothing of the
next one, and a model that needs more asks for it."""

ROOM_WAIT_S = 30.0
"""How long inputs or outputs of a batch wait for room in the arena before the batch fails: back-pressure that
has become a knot."""

log = logging.getLogger(__name__)

ModelEffect: TypeAlias = (
    StartBatch | EnterUpdate | AbandonBatch | Capture | LoadState | PreloadState | RestartModel
)
ModelEvent: TypeAlias = ModelReady | ModelDied | UpdateWanted | BatchDone | BatchFailed | Captured | Loaded

PRELOAD = 0
"""Token of a load that nothing waits for."""


class LinkStats(NamedTuple):
    """For metrics: what the last capture and load took, how long the present run has been going, and what all
    captures came to."""

    capture_s: float
    load_s: float
    busy_s: float
    captured: CaptureCounts


class ModelLink:
    """The link of one instance. Single event loop; `perform` and `emit` are called on it."""

    def __init__(
        self,
        graph: Graph,
        operator: str,
        tensors: Arena,
        states: Arena,
        emit: Callable[[ModelEvent], None],
        *,
        run_s_max: float = RUN_S_MAX,
        pong_wait_s: float = PONG_WAIT_S,
        ping_interval_s: float = PING_INTERVAL_S,
    ) -> None:
        """`tensors` holds inputs and outputs, `states` state images; both file-backed, and they may be the
        same arena."""
        self.declared = Declared(graph, graph.operators[operator])
        self._stateful = self.declared.operator.stateful
        self._output_bytes_max = (
            sidecar_limits.sink_output_bytes_max
            if {FRONTEND, FEEDBACK} & set(self.declared.operator.targets)
            else tensors.capacity
        )
        self._emit = emit
        self._tensors = tensors
        self._states = states
        self._regions = [tensors] if tensors is states else [tensors, states]
        if any(arena.path is None for arena in self._regions):
            raise ValueError("the arenas of a model link are files: the model process maps them too")
        self._sessions = Sessions(
            self, run_s_max=run_s_max, pong_wait_s=pong_wait_s, ping_interval_s=ping_interval_s
        )
        self._variable_row_nbytes = 0.0
        self.disturbed = Disturbance.NOTHING
        """What else ran in the model during the batch that ended last."""
        delta = self._stateful and self.declared.operator.delta
        self._images = Images(states, self._regions, self._sessions, self._captured, delta, emit)

    async def listen(self, path: Path, mode: int = 0o600) -> None:
        """Create the socket and take model processes. Raises OSError."""
        await self._sessions.listen(path, mode)

    async def close(self) -> None:
        """Let the model go: it ends when its connections close."""
        await self._sessions.close()

    @property
    def health(self) -> ModelHealth:
        """What can be said of the model now."""
        return self._sessions.health

    @property
    def model_pid(self) -> int:
        """Process id of the model, 0 if there is none or it cannot be seen."""
        session = self._sessions.current
        return 0 if session is None else session.process.pid

    def stats(self) -> LinkStats:
        """For metrics."""
        session = self._sessions.current
        since = None if session is None else session.running_since
        busy_s = 0.0 if since is None else asyncio.get_running_loop().time() - since
        images = self._images
        return LinkStats(images.capture_s, images.load_s, busy_s, images.counts)

    def perform(self, effect: ModelEffect) -> None:
        """Do what the core says. Without a model that the core was told of (ModelReady) nothing is done:
        ModelDied is on the way."""
        session = self._sessions.current
        if session is None or not session.serving:
            return
        match effect:
            case RestartModel():
                self._sessions.end(session, effect.reason, kill=True, tell=False)
            case StartBatch():
                self._start(session, effect)
            case EnterUpdate():
                self._enter(session, effect)
            case AbandonBatch():
                self._abandon(session, effect)
            case Capture():
                if session.batch is not None:
                    session.batch.captures = True
                self._images.capture(session, effect.version)
            case LoadState():
                self._images.load(session, effect)
            case PreloadState():
                self._images.load(session, LoadState(PRELOAD, effect.state))

    # Batches

    def _start(self, session: Session, effect: StartBatch) -> None:
        if session.batch is not None:
            raise AssertionError(
                f"batch {effect.batch} was started while {session.batch.number} is in the model"
            )
        batch = BatchInModel(
            effect.batch, effect.units, [self.declared.unit(unit) for unit in effect.units], effect.enter
        )
        session.batch = batch
        sizes = [self._space_nbytes(unit.rows) for unit in batch.inputs]
        if max(sizes, default=0) > self._output_bytes_max:
            self._fail(session, batch, self._too_large(max(sizes)))
            return
        try:
            spaces = [self._tensors.allocate(nbytes, urgent=True) for nbytes in sizes]
            self._run(session, batch, spaces, [self._places(unit) for unit in batch.inputs])
        except ArenaFull:
            session.later(self._start_when_there_is_room(session, batch))
        except ArenaTooSmall as error:
            self._fail(session, batch, _no_room(error))

    async def _start_when_there_is_room(self, session: Session, batch: BatchInModel) -> None:
        try:
            spaces = [await self._room(self._space_nbytes(unit.rows)) for unit in batch.inputs]
            for unit in batch.inputs:
                for index, located in enumerate(unit.tensors):
                    if located is not None and located[1].buffer.arena not in self._regions:
                        unit.tensors[index] = _copied(*located, await self._room(located[0].nbytes))
        except (ArenaTooSmall, TimeoutError) as error:
            self._fail(session, batch, _no_room(error))
        else:
            self._run(session, batch, spaces, [self._places(unit) for unit in batch.inputs])

    async def _room(self, nbytes: int) -> Buffer:
        """Memory for a batch; waits, but not for ever. Raises ArenaTooSmall, TimeoutError."""
        return await asyncio.wait_for(self._tensors.reserve(nbytes, urgent=True), ROOM_WAIT_S)

    def _run(
        self, session: Session, batch: BatchInModel, spaces: list[Buffer], places: list[list[object]]
    ) -> None:
        nbytes = sum(_json_bytes(unit.parameters) for unit in batch.inputs)
        if nbytes > limits.FRAME_BYTES_MAX:  # the model would end of it; each unit alone fits
            self._fail(session, batch, f"the parameters of its requests are too large: {nbytes} bytes")
            return
        units = [
            {
                "id": unit.id,
                "rows": unit.rows,
                "tensors": tensors,
                "parameters": unit.parameters,
                "space": self._place(space),
            }
            for unit, tensors, space in zip(batch.inputs, places, spaces, strict=True)
        ]
        frame = frames.encode(
            frames.RUN, {"batch": batch.number, "units": units, "enter": batch.enter and not batch.abandon}
        )
        if len(frame) > limits.FRAME_BYTES_MAX:
            self._fail(session, batch, f"the parameters of its requests are too large: {len(frame)} bytes")
            return
        batch.spaces = spaces
        batch.sent_at = monotonic()
        batch.captures = bool(session.captures)
        batch.loads = bool(session.loads) or not session.has_run
        session.running_since = asyncio.get_running_loop().time()
        session.run.send_frame(frame)

    def _places(self, unit: UnitInputs) -> list[object]:
        """Where the inputs of a unit lie; what lies outside the shared memory is copied there. Raises
        ArenaFull."""
        places: list[object] = []
        for index, located in enumerate(unit.tensors):
            if located is None:
                places.append(None)
                continue
            if located[1].buffer.arena not in self._regions:
                # The batch holds the copy until the run is over.
                located = unit.tensors[index] = _copied(
                    *located, self._tensors.allocate(located[0].nbytes, urgent=True)
                )
            tensor, payload = located
            places.append(
                (
                    self._regions.index(payload.buffer.arena),
                    payload.buffer.offset + tensor.offset,
                    tensor.nbytes,
                    tensor.shape,
                )
            )
        return places

    def _space_nbytes(self, rows: int) -> int:
        at = 0
        variable = 0
        for nbytes in self.declared.fixed_output_nbytes(rows):
            at = round_up(at) + (nbytes or 0)
            variable += nbytes is None
        if not variable:
            return at
        guess = int(min(self._variable_row_nbytes * rows * SPACE_SLACK, SPACE_GUESS_BYTES_MAX))
        return at + round_up(guess) + 64 * variable

    def _too_large(self, nbytes: int) -> str:
        return f"expected outputs of at most {self._output_bytes_max} bytes for one request, got {nbytes}"

    def _enter(self, session: Session, effect: EnterUpdate) -> None:
        batch = session.batch
        if batch is None or batch.number != effect.batch:
            return  # the model that it was meant for is gone
        batch.enter = True
        if batch.wanted:
            batch.wanted = False
            session.running_since = asyncio.get_running_loop().time()
        elif session.ready is None or not session.ready.enters_early:
            return  # it hears when it asks
        session.run.send(frames.ENTER, {"batch": batch.number})

    def _abandon(self, session: Session, effect: AbandonBatch) -> None:
        batch = session.batch
        if batch is None or batch.number != effect.batch:
            return  # it ended meanwhile: its event is on the way
        batch.abandon = True
        if batch.wanted:
            batch.wanted = False
            session.run.send(frames.ABANDON, {"batch": batch.number})

    def _finished(self, session: Session, own_s: float = 0.0) -> None:
        """The model is free of its batch, which took it `own_s` if it says so."""
        if session.batch is not None:
            self.disturbed = session.batch.disturbance(own_s)
        session.has_run = True
        session.batch = None
        session.running_since = None
        self._images.send_loads(session)

    def _fail(self, session: Session, batch: BatchInModel, message: str) -> None:
        if self._sessions.current is session and session.batch is batch:
            self._finished(session)
            asyncio.get_running_loop().call_soon(self._emit, BatchFailed(batch.number, message, False))

    # Frames of the model

    def on_run(self, session: Session, frame: FromModel) -> None:
        """`SessionOwner`: a frame on the `run` connection."""
        match frame:
            case frames.WantUpdate() if (
                session.batch is not None and session.batch.number == frame.batch and not session.batch.wanted
            ):
                self._wanted(session, session.batch)
            case frames.Done() | frames.Failed() if session.batch is not None and session.batch.wanted:
                self._sessions.broken(session, f"{type(frame).__name__} instead of waiting at the boundary")
            case frames.Done() if session.batch is not None and session.batch.number == frame.batch:
                self._done(session, session.batch, frame)
            case frames.Failed() if session.batch is not None and session.batch.number == frame.batch:
                own_s = session.batch.own_s(frame)
                message = frame.message[: limits.MESSAGE_CHARS_MAX]
                self._finished(session, own_s)
                self._emit(BatchFailed(frame.batch, message, frame.updated, own_s))
            case frames.WantSpace() if (
                session.batch is not None and session.batch.number == frame.id and not session.batch.asking
            ):
                session.batch.asking = True  # one question at a time: each waits for room
                session.later(self._grant_outputs(session, session.batch, frame))
            case frames.LoadDone() if session.loads_sent and session.loads[0].effect.token == frame.token:
                self._images.loaded(session, frame.seconds)
                self._emit(Loaded(frame.token))
            case frames.LoadRefused() if session.loads_sent and session.loads[0].effect.token == frame.token:
                self._images.not_loaded(session)
                self._emit(Loaded(frame.token, frame.message[: limits.MESSAGE_CHARS_MAX]))
            case frames.Ready() if session.ready is None:
                session.ready = frame
                self._sessions.complete(session)
            case frames.InitFailed() if session.ready is None:
                self._sessions.end(session, f"initialize failed: {frame.message[: limits.MESSAGE_CHARS_MAX]}")
            case _:
                self._sessions.broken(session, f"unexpected {type(frame).__name__}")

    def _wanted(self, session: Session, batch: BatchInModel) -> None:
        if batch.abandon:
            session.run.send(frames.ABANDON, {"batch": batch.number})
        elif batch.enter:
            session.run.send(frames.ENTER, {"batch": batch.number})
        else:
            session.running_since = None
            batch.wanted = True
            self._emit(UpdateWanted(batch.number))

    def _done(self, session: Session, batch: BatchInModel, frame: frames.Done) -> None:
        try:
            if len(frame.units) != len(batch.units):
                raise ValueError(f"{len(frame.units)} results for {len(batch.units)} units")
            results = tuple(
                self._result(unit, inputs.rows, space, done)
                for unit, inputs, space, done in zip(
                    batch.units, batch.inputs, batch.spaces, frame.units, strict=True
                )
            )
        except (ValueError, KeyError) as error:
            self._sessions.broken(session, f"results of batch {batch.number}: {error}")
            return
        own_s = batch.own_s(frame)
        self._finished(session, own_s)
        if batch.abandon and not frame.updated:
            self._emit(BatchFailed(batch.number, "abandoned", False, own_s))
        else:
            self._emit(BatchDone(batch.number, results, frame.updated, own_s))

    def _result(self, unit: BatchUnit, rows: int, space: Buffer, done: frames.UnitDone) -> UnitResult:
        if done.error is not None:
            return UnitResult(unit.unit, error=done.error[: limits.MESSAGE_CHARS_MAX])
        if done.refused:
            return UnitResult(unit.unit, refused=True)
        outputs = self.declared.outputs
        if done.tensors is None or len(done.tensors) != len(outputs):
            raise ValueError(f"{len(done.tensors or ())} tensors for {len(outputs)} outputs")
        tensors: list[Tensor] = []
        end = variable = 0
        for spec, (offset, nbytes, shape) in zip(outputs, done.tensors, strict=True):
            fits = len(shape) == len(spec.shape) + 1 and all(
                want in (-1, got) for want, got in zip((rows, *spec.shape), shape, strict=True)
            )
            expected = fixed_nbytes(spec.datatype, shape)
            if (
                not fits
                or not all(0 <= dimension <= dimension_max for dimension in shape)
                or nbytes < 0
                or offset < 0
                or offset + nbytes > space.nbytes
                or expected not in (None, nbytes)
            ):
                raise ValueError(
                    f"output {spec.name}: {nbytes} bytes at {offset} of {space.nbytes} for "
                    f"{spec.datatype}{shape}"
                )
            tensors.append(Tensor(spec.name, spec.datatype, tuple(shape), offset, nbytes))
            end = max(end, offset + nbytes)
            variable += nbytes if expected is None or -1 in spec.shape else 0
        if variable:
            self._variable_row_nbytes = max(variable / rows, self._variable_row_nbytes * 0.9)
        space.trim(end)
        return UnitResult(
            unit.unit, TensorPayload(tuple(tensors), space), route=self.declared.route(done.route)
        )

    def setup(self, session: Session) -> dict[str, object]:
        """`SessionOwner`: what a model process is told first, and the mutex of its session."""
        session.mutex = ModelMutex.within(self._tensors)
        return {
            "operator": self.declared.setup(),
            "regions": [{"path": str(arena.path), "nbytes": arena.capacity} for arena in self._regions],
            "protocol": frames.PROTOCOL,
            "chunk_bytes": sidecar_limits.chunk_bytes,
            "mutex": None if session.mutex is None else self._place(session.mutex.buffer),
        }

    def on_complete(self, session: Session) -> None:
        """`SessionOwner`: version 0 is captured, then the core is told."""
        assert session.ready is not None
        if self._stateful:
            self._images.capture_initial(session)
        else:
            session.serving = True
            self._emit(ModelReady(session.ready.signature, None))

    def on_capture(self, session: Session, frame: FromModel) -> None:
        """`SessionOwner`: a frame on the `capture` connection."""
        self._images.on_frame(session, frame)

    def on_end(self, reason: str, unexpected: bool) -> None:
        """`SessionOwner`: the model is gone."""
        log.warning("model of %s: %s", self.declared.operator.name, reason)
        if unexpected:
            self._emit(ModelDied(reason))

    def _captured(self, session: Session, version: int, state: Payload) -> None:
        if session.serving:
            self._emit(Captured(version, state))
        else:
            assert session.ready is not None
            session.serving = True
            self._emit(ModelReady(session.ready.signature, state))

    async def _grant_outputs(self, session: Session, batch: BatchInModel, frame: frames.WantSpace) -> None:
        if (
            len(frame.units) != len(frame.sizes)
            or not all(0 <= unit < len(batch.spaces) for unit in frame.units)
            or min(frame.sizes, default=0) < 0
        ):
            self._sessions.broken(session, "bad request for space")
            return
        if max(frame.sizes, default=0) > self._output_bytes_max:
            batch.asking = False
            session.run.send(frames.GRANT, {"refused": self._too_large(max(frame.sizes))})
            return
        session.running_since = None  # waiting for room is not the model's fault
        held = {
            id(located[1].buffer): located[1].buffer
            for unit in batch.inputs
            for located in unit.tensors
            if located is not None
        }
        own = MUTEX_BYTES + sum(
            round_up(buffer.nbytes) for buffer in held.values() if buffer.arena is self._tensors
        )
        try:
            if own + sum(map(round_up, frame.sizes)) > self._tensors.capacity:  # would wait for itself
                raise ArenaTooSmall(own + sum(frame.sizes), self._tensors.capacity)
            granted = [await self._room(nbytes) for nbytes in frame.sizes]
        except (ArenaTooSmall, TimeoutError) as error:
            batch.asking = False
            session.running_since = asyncio.get_running_loop().time()
            session.run.send(frames.GRANT, {"refused": _no_room(error)})
            return
        for unit, buffer in zip(frame.units, granted, strict=True):
            batch.spaces[unit] = buffer
        batch.asking = False
        session.running_since = asyncio.get_running_loop().time()
        session.run.send(frames.GRANT, {"spaces": [self._place(buffer) for buffer in granted]})

    def _place(self, buffer: Buffer) -> Place:
        return (self._regions.index(buffer.arena), buffer.offset, buffer.nbytes)


def _copied(tensor: Tensor, payload: TensorPayload, target: Buffer) -> tuple[Tensor, TensorPayload]:
    """The tensor, copied to `target`."""
    target.view[: tensor.nbytes] = payload.view(tensor)
    moved = tensor._replace(offset=0)
    return moved, TensorPayload((moved,), target)


def _json_bytes(parameters: Mapping[str, object]) -> int:
    """What parameters take in a frame, about: control characters take six bytes, and encoding them time."""
    return sum(
        len(name) + (len(value) * (1 if value.isprintable() else 6) if isinstance(value, str) else 24)
        for name, value in parameters.items()
    )


def _no_room(error: ArenaTooSmall | TimeoutError) -> str:
    if isinstance(error, ArenaTooSmall):
        return f"inputs and outputs are too large: {error}"
    return f"no room for inputs and outputs within {ROOM_WAIT_S:g} s"
