"""The states of a model: captured into the proxy's arena, and loaded from there, chunk by chunk.

What a capture is compared with is the newest image that the model was told of, its base; it keeps that
image's chunks where they are until the capture is over. Chunks that did not change are shared with it, in the
memory of the arena. A model of contract version 1 gives whole images, which are compared here.

Law (`hams_sidecar.chunks`): the base is always of the history that the model is in. So a load makes what it
loads the base, and a capture that was under way when a load was sent makes none.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hams_protocol.effects import LoadState
from hams_protocol.events import Loaded
from hams_protocol.messages import Payload
from hams_sidecar import limits as sidecar_limits
from hams_sidecar.arena import Arena, ArenaFull, ArenaTooSmall, Buffer
from hams_sidecar.chunks import ChunkTable, count, sizes_of
from hams_sidecar.model import frames, limits
from hams_sidecar.model.frames import FromModel, Place
from hams_sidecar.model.session import Base, Image, Session, StateLoad
from hams_sidecar.model.sessions import Sessions
from hams_sidecar.payload import TensorPayload

STATE_SLACK_BYTES = 1 << 16
"""Granted beyond the size of the last capture."""

INITIAL_VERSION = 0
NEWEST = 1 << 62
"""Born then: of a state that was received whole nobody knows when its chunks were born."""
CHUNKED = 2
"""The version of the contract from which on models know chunks."""


@dataclass(slots=True)
class CaptureCounts:
    """What all captures came to, in bytes: of the states, compared, and copied (what had changed, and
    small states)."""

    captures: int = 0
    state_nbytes: int = 0
    compared_nbytes: int = 0
    copied_nbytes: int = 0


class Images:
    """Captures and loads of one link's model processes. `captured` is told of each state that is complete;
    `delta`: captures are compared."""

    def __init__(
        self,
        arena: Arena,
        regions: Sequence[Arena],
        sessions: Sessions,
        captured: Callable[[Session, int, Payload], None],
        delta: bool,
        emit: Callable[[Loaded], None],
    ) -> None:
        self.image_nbytes = 0
        self.capture_s = self.load_s = 0.0
        self.counts = CaptureCounts()
        self._copied_nbytes = 0
        self._arena = arena
        self._regions = regions
        self._sessions = sessions
        self._captured = captured
        self._delta = delta
        self._emit = emit

    # -- captures --------------------------------------------------------------------------------------------

    def capture_initial(self, session: Session) -> None:
        """Capture version 0."""
        self.image_nbytes = self._copied_nbytes = 0
        self.capture(session, INITIAL_VERSION)

    def capture(self, session: Session, version: int) -> None:
        """Have a version captured, after those before it."""
        session.captures.append(version)
        if len(session.captures) == 1:
            self._capture(session)

    def _capture(self, session: Session) -> None:
        assert session.ready is not None
        whole = max(self.image_nbytes, session.ready.estimate_nbytes)
        guess = whole if self._base_of(session) is None else min(whole, self._copied_nbytes)
        nbytes = guess + STATE_SLACK_BYTES
        try:
            self._send_capture(session, self._arena.allocate(nbytes, urgent=True))
        except (ArenaFull, ArenaTooSmall) as error:
            wanted = 0 if isinstance(error, ArenaTooSmall) else nbytes
            session.later(self._capture_when_there_is_room(session, wanted))

    async def _capture_when_there_is_room(self, session: Session, nbytes: int) -> None:
        # 0: the slack does not fit; the model asks for what it needs
        buffer = await self._arena.reserve(nbytes, urgent=True, first=True)
        if self._sessions.current is session:
            self._send_capture(session, buffer)

    def _base_of(self, session: Session) -> Base | None:
        """What the next capture is compared with; None: it is to copy the state whole."""
        base = session.base if self._delta and session.protocol >= CHUNKED else None
        small = base is not None and base.table.nbytes < sidecar_limits.compared_bytes_min
        return None if small else base

    def _send_capture(self, session: Session, buffer: Buffer) -> None:
        """The model is told when this turn is over, and so behind the batch that may begin in it. It had its
        memory first, but whoever is woken first takes the processor, and all wait for the batch."""
        session.image = session.untold = buffer
        asyncio.get_running_loop().call_soon(self._tell, session)

    def _tell(self, session: Session) -> None:
        """Send CAPTURE, unless that was done."""
        buffer, session.untold = session.untold, None
        if buffer is None or self._sessions.current is not session:
            return
        assert session.capture is not None
        base = self._base_of(session)
        # A model that knows no chunks copies the whole state, and it is compared here (`_cut`).
        session.compared = session.base if self._delta and session.protocol < CHUNKED else base
        session.tables += 1
        session.capturing = session.tables
        session.continues = not session.loads_sent
        session.loads_alone = session.loads_alone and session.continues
        body = {
            "version": session.captures[0],
            "space": self._place(buffer),
            "number": session.capturing,
            "base": 0 if base is None else base.number,
        }
        session.capturing_since = asyncio.get_running_loop().time()
        session.capture.send(frames.CAPTURE, body)

    def on_frame(self, session: Session, frame: FromModel) -> None:
        """A frame on the `capture` connection."""
        image = session.image if session.untold is None else None
        session.capturing_since = None
        match frame:
            case frames.CaptureDone() if image is not None and frame.version == session.captures[0]:
                session.image = None
                self.capture_s = frame.seconds
                self._done(session, frame, image)
            case frames.CaptureFailed() if image is not None and frame.version == session.captures[0]:
                self._sessions.end(
                    session,
                    f"the state cannot be captured: {frame.message[: limits.MESSAGE_CHARS_MAX]}",
                    kill=True,
                )
            case frames.WantSpace() if (
                image is not None and frame.id == session.captures[0] and len(frame.sizes) == 1
            ):
                session.later(self._grant(session, frame.sizes[0]))
            case _:
                self._sessions.broken(session, f"unexpected {type(frame).__name__}")

    async def _grant(self, session: Session, nbytes: int) -> None:
        assert session.capture is not None
        session.image = None  # so that the space granted before can be part of the new one
        try:
            buffer = await self._arena.reserve(max(nbytes, 0) + STATE_SLACK_BYTES, urgent=True, first=True)
        except ArenaTooSmall as error:
            self._sessions.end(session, f"the state cannot be captured: {error}", kill=True)
            return
        session.image = buffer
        session.capturing_since = asyncio.get_running_loop().time()
        session.capture.send(frames.GRANT, {"spaces": [self._place(buffer)]})

    def _done(self, session: Session, frame: frames.CaptureDone, image: Buffer) -> None:
        base, version = session.compared, frame.version
        if frame.changed is not None:
            state = None if base is None else _with_changed(base.table, frame, image)
            if state is None:
                self._sessions.broken(session, f"the chunks of version {version} are not those of its state")
                return
            self._complete(session, state, state.fresh_nbytes, frame.compared)
        elif not 0 <= frame.nbytes <= image.nbytes:
            self._sessions.broken(session, f"a state of {frame.nbytes} bytes in {image.nbytes}")
        else:
            image.trim(frame.nbytes)
            if not self._delta or count(frame.nbytes) > sidecar_limits.chunks_max:
                self._complete(session, TensorPayload((), image), frame.nbytes, 0)
            elif base is None or session.protocol >= CHUNKED:
                self._complete(session, ChunkTable.cut(image, version), frame.nbytes, 0)
            else:
                session.later(self._cut(session, base.table, image, version))

    async def _cut(self, session: Session, base: ChunkTable, image: Buffer, version: int) -> None:
        """The whole image of a model that knows no chunks: compared here, beside the event loop."""
        table = ChunkTable.cut(image, version)
        indices = await asyncio.to_thread(_differing, table, base)
        changed = {index: table.chunks[index] for index in indices}
        state = base.with_changed(changed, table.nbytes, version)
        assert state is not None, "what is not of the same size differs"
        if self._sessions.current is session:
            self._complete(session, state, state.fresh_nbytes, table.nbytes)

    def _complete(
        self, session: Session, state: ChunkTable | TensorPayload, copied: int, compared: int
    ) -> None:
        version = session.captures.popleft()
        session.compared = None
        if isinstance(state, ChunkTable):
            state = state.born_by(version)
            if session.continues:
                session.base = Base(session.capturing, state)
        self.image_nbytes, self._copied_nbytes = state.nbytes, copied
        self.counts.captures += 1
        self.counts.state_nbytes += state.nbytes
        self.counts.compared_nbytes += compared
        self.counts.copied_nbytes += copied
        if session.captures:
            self._capture(session)
        self._captured(session, version, state)

    # -- loads -----------------------------------------------------------------------------------------------

    def load(self, session: Session, effect: LoadState) -> None:
        """Have the model take a state over, once it is free of its batch."""
        if isinstance(effect.state, TensorPayload):
            buffer = effect.state.buffer
            image: Image = buffer
            parts: Sequence[Buffer] = (buffer,)
        elif isinstance(effect.state, ChunkTable):
            image, parts = effect.state, effect.state.chunks
        else:
            raise TypeError(f"state: expected one of hams_sidecar, got {type(effect.state).__name__}")
        mapped = all(part.arena in self._regions for part in parts)
        if not mapped or (session.protocol < CHUNKED and not isinstance(image, Buffer)):
            views = (
                effect.state.views() if isinstance(effect.state, ChunkTable) else [effect.state.buffer.view]
            )
            load = StateLoad(effect, None)
            session.loads.append(load)
            session.later(self._load_copy(session, load, views))
            return
        session.loads.append(StateLoad(effect, image))
        self.send_loads(session)

    async def _load_copy(self, session: Session, load: StateLoad, views: Sequence[memoryview]) -> None:
        """What lies outside of the shared memory, or in pieces that the model cannot put together, is copied
        there. Loads that come meanwhile wait for it, or it would undo them."""
        try:
            buffer = await self._arena.reserve(load.effect.state.nbytes, urgent=True, first=True)
        except ArenaTooSmall as error:
            session.loads.remove(load)
            self._emit(Loaded(load.effect.token, f"the state is too large: {error}"))
            self.send_loads(session)
            return
        at = 0
        for view in views:
            buffer.view[at : at + len(view)] = view
            at += len(view)
        load.image = buffer
        if self._sessions.current is session:
            self.send_loads(session)

    def send_loads(self, session: Session) -> None:
        """Tell the model of the states to load that it has not been told of, unless a batch is in it: up to
        the first one that is still being copied."""
        if session.batch is not None:
            return
        self._tell(session)
        for load in list(session.loads)[session.loads_sent :]:
            effect, image = load.effect, load.image
            if image is None:
                return
            if not session.loads_sent:
                session.loading_since = asyncio.get_running_loop().time()
            session.loads_sent += 1
            session.tables += 1
            session.loaded = session.tables
            base, session.base = session.base, None
            session.continues = False
            session.loads_alone = not session.captures
            if session.protocol < CHUNKED:
                assert isinstance(image, Buffer)
                session.run.send(frames.LOAD, {"token": effect.token, "image": self._place(image)})
                continue
            body: dict[str, object] = {"token": effect.token, "number": session.loaded}
            if isinstance(image, Buffer):
                body["places"] = [self._place(image)]
            elif base is None or session.captures or not _loads_changed(session):
                body["places"] = self._places(image.chunks)
            else:
                body |= self._difference(base, image)
            session.run.send(frames.LOAD, body)

    def _difference(self, base: Base, image: ChunkTable) -> dict[str, object]:
        """What a load says of a state of which the model has the rest in its newest table."""
        known = base.table.chunks
        indices = [
            index
            for index, chunk in enumerate(image.chunks)
            if index >= len(known) or chunk is not known[index]
        ]
        return {
            "base": base.number,
            "nbytes": image.nbytes,
            "changed": _runs(indices),
            "places": self._places([image.chunks[index] for index in indices]),
        }

    def loaded(self, session: Session, seconds: float) -> None:
        """The first load is done: unless another one follows, the next capture is compared with it."""
        load = session.loads.popleft()
        effect, image = load.effect, load.image
        assert image is not None, "the model was told of it"
        self._one_less(session)
        self.load_s = seconds
        if not self._delta or count(effect.state.nbytes) > sidecar_limits.chunks_max:
            return
        if session.loads_sent or not session.loads_alone:
            return  # what the model was told of last is another image
        if isinstance(effect.state, ChunkTable):
            births = effect.state.births
            table = effect.state if isinstance(image, ChunkTable) else ChunkTable.cut(image, NEWEST)
            session.base = Base(session.loaded, ChunkTable(table.chunks, births, table.fresh_nbytes))
        elif isinstance(image, Buffer):
            session.base = Base(session.loaded, ChunkTable.cut(image, NEWEST))

    def not_loaded(self, session: Session) -> None:
        """The first load was refused."""
        session.loads.popleft()
        self._one_less(session)

    def _one_less(self, session: Session) -> None:
        session.loads_sent -= 1
        session.loading_since = asyncio.get_running_loop().time() if session.loads_sent else None

    # -- places ----------------------------------------------------------------------------------------------

    def _place(self, buffer: Buffer) -> Place:
        return (self._regions.index(buffer.arena), buffer.offset, buffer.nbytes)

    def _places(self, chunks: Sequence[Buffer]) -> list[Place]:
        """Where chunks lie; those side by side are one place."""
        places: list[Place] = []
        for chunk in chunks:
            region, offset, nbytes = self._place(chunk)
            if places and places[-1][0] == region and places[-1][1] + places[-1][2] == offset:
                places[-1] = (region, places[-1][1], places[-1][2] + nbytes)
            else:
                places.append((region, offset, nbytes))
        return places


def _loads_changed(session: Session) -> bool:
    return session.ready is not None and session.ready.loads_changed


def _runs(indices: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as (first, how many)."""
    runs: list[tuple[int, int]] = []
    for index in indices:
        if runs and runs[-1][0] + runs[-1][1] == index:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((index, 1))
    return runs


def _with_changed(base: ChunkTable, frame: frames.CaptureDone, image: Buffer) -> ChunkTable | None:
    """The table of a capture whose changed chunks lie in `image`; None if they cannot be its."""
    assert frame.changed is not None
    number = count(frame.nbytes)
    if frame.nbytes < 0 or number > sidecar_limits.chunks_max:
        return None
    indices: list[int] = []
    for first, length in frame.changed:
        if not (length > 0 and (indices[-1] if indices else -1) < first <= number - length):
            return None
        indices += range(first, first + length)
    sizes = sizes_of(indices, frame.nbytes)
    if sum(sizes) > image.nbytes:
        return None
    image.trim(sum(sizes))
    parts = image.split(sizes) if sizes else ()
    return base.with_changed(dict(zip(indices, parts, strict=True)), frame.nbytes, frame.version)


def _differing(table: ChunkTable, base: ChunkTable) -> list[int]:
    """The chunks of `table` that differ from those of `base`."""
    known = len(base.chunks)
    return [
        index
        for index, chunk in enumerate(table.chunks)
        if index >= known
        or chunk.nbytes != base.chunks[index].nbytes
        or not np.array_equal(
            np.frombuffer(chunk.view, np.uint8), np.frombuffer(base.chunks[index].view, np.uint8)
        )
    ]
