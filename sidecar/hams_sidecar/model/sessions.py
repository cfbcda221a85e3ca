"""Which model process is served, and whether it lives: the listening socket, the three connections, health,
the end.

One session at a time. It begins with a `run` connection, is complete when all three are there and the model
has initialised, and is over when one of them closes, the process dies, hangs or breaks the contract. Nothing
that comes from a session that is over counts.

Invariant: memory that was granted to a process is kept until that process is known to have ended, as it could
still write there.
"""

import asyncio
import contextlib
import enum
import logging
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from hams_sidecar.arena import Buffer
from hams_sidecar.model import frames
from hams_sidecar.model.channel import ModelChannel
from hams_sidecar.model.frames import FromModel, Hello
from hams_sidecar.model.process import ModelProcess
from hams_sidecar.model.session import Session

CONNECTIONS_MAX = 8
"""Connections that have not said what they are for; more are closed at once."""

log = logging.getLogger(__name__)


class ModelHealth(enum.Enum):
    """What can be said of the model now."""

    ABSENT = "absent"
    STARTING = "starting"
    READY = "ready"
    SILENT = "silent"
    """Ready, but the last question has not been answered in time."""


class SessionOwner(Protocol):
    """What the link does with its sessions."""

    def setup(self, session: Session) -> dict[str, object]:
        """Members of a setup frame, but for the session, which gets its mutex."""

    def on_complete(self, session: Session) -> None:
        """All connections are there, and the model has initialised."""

    def on_run(self, session: Session, frame: FromModel) -> None:
        """A frame on the `run` connection."""

    def on_capture(self, session: Session, frame: FromModel) -> None:
        """A frame on the `capture` connection."""

    def on_end(self, reason: str, unexpected: bool) -> None:
        """The session is over. `unexpected`: it was not ended by request."""


class Sessions:
    """The sessions of one link, one after another."""

    def __init__(
        self, owner: SessionOwner, *, run_s_max: float, pong_wait_s: float, ping_interval_s: float
    ) -> None:
        self.current: Session | None = None
        self._owner = owner
        self._run_s_max = run_s_max
        self._pong_wait_s = pong_wait_s
        self._ping_interval_s = ping_interval_s
        self._server: asyncio.Server | None = None
        self._path: Path | None = None
        self._channels: set[ModelChannel] = set()
        self._processes: set[ModelProcess] = set()
        self._limbo: dict[ModelProcess, list[Buffer]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False

    async def listen(self, path: Path, mode: int) -> None:
        """Create the socket. Raises OSError."""
        _remove(path)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._accept, str(path))
        os.chmod(path, mode)
        self._path = path
        self._timer = loop.call_later(self._ping_interval_s, self._watch)

    async def close(self) -> None:
        """Let the model go, telling nobody. Whoever connects from now on is let go too: a supervisor may have
        started the next model already."""
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None:
            # not wait_closed: it waits for connections, also for those that nobody has told us of yet
            self._server.close()
        self._closing = True
        session, self.current = self.current, None
        if session is not None:
            session.cancel()
        for process in self._processes:
            process.forget()
        for channel in list(self._channels):
            await channel.abort()
        if self._path is not None:
            _remove(self._path)

    @property
    def health(self) -> ModelHealth:
        """What can be said of the model now."""
        session = self.current
        if session is None:
            return ModelHealth.ABSENT
        if not session.serving:
            return ModelHealth.STARTING
        now = asyncio.get_running_loop().time()
        silent = session.pinged is not None and now - session.pinged > 2 * self._ping_interval_s
        return ModelHealth.SILENT if silent else ModelHealth.READY

    def _watch_mutex(self, session: Session) -> None:
        """The process holds its mutex. The thread that waits for it must not hold the session, which may be
        over long before the process is."""
        if session.mutex is not None:
            loop, known = asyncio.get_running_loop(), weakref.ref(session)
            session.mutex.watch(lambda: self._tell(loop, known))

    def _tell(self, loop: asyncio.AbstractEventLoop, known: "weakref.ref[Session]") -> None:
        """On the thread that waits."""
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody is left to be told
            loop.call_soon_threadsafe(self._died, known)

    def _died(self, known: "weakref.ref[Session]") -> None:
        """Threads of the process may still run: it is killed, and its memory waits for its end as ever."""
        session = known()
        if session is not None:
            self._ended(session, "the model process has ended", kill=True)

    def _ended(self, session: Session, reason: str, *, kill: bool = False) -> None:
        """The process is gone. If it has not come up, what it sent last says why."""
        for channel in session.channels() if session.ready is None else ():
            if self.current is session:
                channel.read_last_words()
        if self.current is session:
            self.end(session, reason, kill=kill)
        elif kill:  # its last words have ended the session
            session.process.kill()

    def complete(self, session: Session) -> None:
        """Tell the owner once the session is complete: the last connection and READY may come in any
        order."""
        if session.ready is not None and session.capture is not None and session.health is not None:
            self._owner.on_complete(session)

    def _accept(self) -> ModelChannel:
        channel = ModelChannel(self._hello, self._channels.discard)
        self._channels.add(channel)
        unnamed = [one for one in self._channels if not one.name]
        if len(unnamed) > CONNECTIONS_MAX:
            unnamed[0].close()
        return channel

    def _hello(self, channel: ModelChannel, frame: Hello) -> None:
        session = self.current
        if self._closing:
            self._refuse(channel, "this proxy ends")
        elif not frames.PROTOCOL_OLDEST <= frame.protocol <= frames.PROTOCOL:
            self._refuse(
                channel,
                f"it speaks version {frame.protocol} of the model contract, this proxy "
                f"{frames.PROTOCOL_OLDEST} to {frames.PROTOCOL}",
            )
        elif frame.channel == "run":
            if session is None:
                self._open(channel, frame.protocol)
            else:
                self._refuse(channel, "another model process is connected")
        elif session is None or frame.session != session.token:
            self._refuse(channel, "no such session")
        elif frame.channel == "capture" and session.capture is None:
            session.capture = channel
            self._bind(session, channel, self._owner.on_capture)
            self.complete(session)
        elif frame.channel == "health" and session.health is None:
            session.health = channel
            self._bind(session, channel, self._on_health_frame)
            if frame.holds_mutex:
                self._watch_mutex(session)
            self._ping(session)
            self.complete(session)
        else:
            self._refuse(channel, f"no connection {frame.channel!r} is wanted")

    def _refuse(self, channel: ModelChannel, message: str) -> None:
        log.warning("model process refused: %s", message)
        channel.send(frames.REFUSED, {"message": message})
        channel.close()

    def _open(self, channel: ModelChannel, protocol: int) -> None:
        for process in [one for one in self._limbo if not one.watched]:
            del self._limbo[process]  # its supervisor has started the next one, so it has ended
        process = ModelProcess(channel.peer_pid(), self._exited)
        self._processes.add(process)
        session = self.current = Session(channel, process, protocol)
        session.on_failed = lambda error: self._failed(session, error)
        self._bind(session, channel, self._owner.on_run)
        channel.send(frames.SETUP, {"session": session.token, **self._owner.setup(session)})

    def _bind(
        self, session: Session, channel: ModelChannel, on_frame: Callable[[Session, FromModel], None]
    ) -> None:
        def deliver(frame: FromModel) -> None:
            if self.current is session:
                on_frame(session, frame)

        channel.on_frame = deliver
        channel.on_lost = lambda reason: self._ended(session, reason)

    def broken(self, session: Session, what: str) -> None:
        """The model process sent what it must not."""
        self.end(session, f"the model process broke the contract: {what}", kill=True)

    def _failed(self, session: Session, error: BaseException) -> None:
        """Nothing would ever answer what the work was for: the next process begins without it."""
        log.error("what waited for room has failed", exc_info=error)
        self.end(session, f"the proxy failed to serve it: {type(error).__name__}: {error}", kill=True)

    def end(self, session: Session, reason: str, *, kill: bool = False, tell: bool = True) -> None:
        """The session is over: nothing of that process counts any more."""
        if self.current is not session:
            return
        self.current = None
        for channel in session.channels():
            channel.on_lost = channel.on_frame = None
            channel.close()
        session.cancel()
        session.on_failed = None  # it holds the session, and that what was granted
        process = session.process
        if not process.watched:
            self._processes.discard(process)
        if session.batch is not None:
            reason += f" (in the model: {', '.join(unit.id for unit in session.batch.inputs)})"
        granted = [
            *(session.batch.spaces if session.batch is not None else ()),
            *([session.image] if session.image is not None else ()),
            *([session.mutex.buffer] if session.mutex is not None else ()),
        ]
        if granted:
            self._limbo[process] = granted
        if kill:
            process.kill()
        self._owner.on_end(reason, tell)

    def _exited(self, process: ModelProcess) -> None:
        self._processes.discard(process)
        self._limbo.pop(process, None)
        session = self.current
        if session is not None and session.process is process:
            self._ended(session, "the model process has ended")
            self._limbo.pop(process, None)

    def _watch(self) -> None:
        """Every `ping_interval_s`: ask for health, and find a model that hangs."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._ping_interval_s, self._watch)
        session, now = self.current, loop.time()
        if session is None or not session.serving:
            return
        if session.pinged is not None and now - session.pinged > self._pong_wait_s:
            self.end(session, f"the model process has not answered for {self._pong_wait_s:g} s", kill=True)
        elif what := self._hangs(session, now):
            self.end(session, f"{what} takes longer than {self._run_s_max:g} s", kill=True)
        elif session.pinged is None:
            self._ping(session)

    def _hangs(self, session: Session, now: float) -> str:
        """What the model has been at for too long; "" if nothing. Its health is asked for of another thread
        of it, so that says nothing."""
        for what, since in (
            ("a run", session.running_since),
            ("the capture of a state", session.capturing_since),
            ("the load of a state", session.loading_since),
        ):
            if since is not None and now - since > self._run_s_max:
                return what
        return ""

    def _ping(self, session: Session) -> None:
        if session.health is not None:
            session.pings += 1
            session.pinged = asyncio.get_running_loop().time()
            session.health.send(frames.PING, {"n": session.pings})

    def _on_health_frame(self, session: Session, frame: FromModel) -> None:
        if not isinstance(frame, frames.Pong) or frame.n != session.pings:
            self.broken(session, f"unexpected {type(frame).__name__}")
            return
        session.pinged = None


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
