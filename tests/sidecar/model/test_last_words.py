"""A model process that dies: what it said before is read first as long as it has not come up, and whatever
that was, the process is killed if its mutex tells of the death."""

import asyncio
import contextlib
import socket
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hams_sidecar.model import frames
from hams_sidecar.model.session import Session
from hams_sidecar.model.sessions import Sessions

HELLO, INIT_FAILED, DONE = 1, 3, 6
READY = frames.Ready("", [], 0)


class Owner:
    """What a link does with the frames of this test."""

    def __init__(self) -> None:
        self.sessions = Sessions(self, run_s_max=9.0, pong_wait_s=9.0, ping_interval_s=9.0)
        self.frames: list[frames.FromModel] = []
        self.reasons: list[str] = []

    def setup(self, session: Session) -> dict[str, object]:
        return {}

    def on_complete(self, session: Session) -> None:
        raise AssertionError("no model of this test comes up")

    def on_run(self, session: Session, frame: frames.FromModel) -> None:
        self.frames.append(frame)
        if isinstance(frame, frames.InitFailed):
            self.sessions.end(session, f"initialize failed: {frame.message}")

    on_capture = on_run

    def on_end(self, reason: str, unexpected: bool) -> None:
        self.reasons.append(reason)


@contextlib.asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[tuple[Owner, Session, socket.socket, list[int]]]:
    """A model process, this one, which has said hello; and how often it was killed."""
    owner, killed = Owner(), list[int]()
    await owner.sessions.listen(folder / "model.sock", 0o600)
    with socket.socket(socket.AF_UNIX) as model:
        model.connect(str(folder / "model.sock"))
        model.sendall(frames.encode(HELLO, {"protocol": frames.PROTOCOL, "channel": "run", "session": ""}))
        async with asyncio.timeout(20):
            while owner.sessions.current is None:  # noqa: ASYNC110
                await asyncio.sleep(0)
        session = owner.sessions.current
        session.process.kill = lambda: killed.append(1)  # type: ignore[method-assign]
        try:
            yield owner, session, model, killed
        finally:
            await owner.sessions.close()


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (b"", "the model process has ended"),
        (frames.encode(INIT_FAILED, {"message": "no weights"}), "initialize failed: no weights"),
        (b"\xff" * 16, "the model broke the contract on its run connection: bad frame header"),
    ],
    ids=["nothing", "why", "garbage"],
)
async def test_why_it_could_not_start_is_told_and_it_is_killed_all_the_same(
    tmp_path: Path, last: bytes, reason: str
) -> None:
    async with connected(tmp_path) as (owner, session, model, killed):
        model.sendall(last)
        owner.sessions._died(weakref.ref(session))
        assert [said[: len(reason)] for said in owner.reasons] == [reason]
        assert killed


async def test_of_one_that_was_ready_nothing_counts_that_was_not_read(tmp_path: Path) -> None:
    """A batch that it had finished would be counted as done, and its state is gone."""
    async with connected(tmp_path) as (owner, session, model, killed):
        session.ready = READY
        done: dict[str, Any] = {"batch": 1, "updated": True, "units": []}
        model.sendall(frames.encode(DONE, done))
        owner.sessions._died(weakref.ref(session))
        assert not owner.frames
        assert owner.reasons == ["the model process has ended"]
        assert killed
