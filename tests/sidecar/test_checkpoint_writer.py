"""Checkpoints are read and written beside the event loop; only memory is given out on it."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from hams_checkpoints import folder as checkpoints
from hams_protocol.effects import WriteCheckpoint
from hams_protocol.messages import Completion, StateCopy
from hams_sidecar.arena import Arena
from hams_sidecar.checkpoints import CheckpointWriter
from hams_sidecar.payload import image


def writer(folder: Path, arena: Arena) -> CheckpointWriter:
    policy = SimpleNamespace(dir=str(folder), keep=2)
    graph = SimpleNamespace(
        operators={"p": SimpleNamespace(checkpoint=policy)}, data=SimpleNamespace(name="g")
    )
    return CheckpointWriter(graph, "p", arena, "p-1")


class Watched(Arena):
    """An arena that notes which threads ask it for memory."""

    def __init__(self) -> None:
        super().__init__(1 << 20)
        self.threads = set()

    def allocate(self, nbytes: int, *, urgent: bool = False):
        self.threads.add(threading.current_thread())
        return super().allocate(nbytes, urgent=urgent)


async def test_a_checkpoint_is_read_beside_the_loop_into_memory_given_out_on_it(tmp_path, monkeypatch):
    first = writer(tmp_path, Arena(1 << 20))
    first.write(
        WriteCheckpoint(
            StateCopy("p", 3, 7, (), Completion(()), "chain", image(Arena(1 << 20), b"state"), "layout")
        ),
        lambda copy, whole: None,
    )
    await first.close()

    verified = []
    verify = checkpoints._verify
    monkeypatch.setattr(
        checkpoints, "_verify", lambda path: (verified.append(threading.current_thread()), verify(path))
    )
    arena = Watched()
    second = writer(tmp_path, arena)
    copies = []
    second.read(copies.append)
    await second.close()
    (copy,) = copies
    assert (copy.epoch, copy.version, bytes(copy.state.buffer.view)) == (3, 7, b"state")
    assert verified
    assert threading.main_thread() not in verified
    assert arena.threads == {threading.main_thread()}


async def test_one_that_does_not_fit_is_said_and_left(tmp_path, caplog):
    first = writer(tmp_path, Arena(1 << 20))
    first.write(
        WriteCheckpoint(
            StateCopy("p", 3, 7, (), Completion(()), "chain", image(Arena(1 << 20), bytes(100_000)), "layout")
        ),
        lambda copy, whole: None,
    )
    await first.close()
    assert await writer(tmp_path, Arena(4096)).newest() is None
    assert "does not fit" in caplog.text


async def test_whether_it_is_there_is_told_also_of_one_that_is_left_out(tmp_path):
    said = []
    first = writer(tmp_path, Arena(1 << 20))
    for version in (7, 8):
        copy = StateCopy("p", 3, version, (), Completion(()), "", image(Arena(1 << 20), b"state"), "layout")
        first.write(WriteCheckpoint(copy), lambda copy, whole: said.append((copy.version, whole)))
    await first.close()
    assert said == [(8, False), (7, True)]


async def test_one_that_cannot_be_written_is_told_as_not_there(tmp_path, caplog):
    said = []
    (tmp_path / "g").write_text("a file where the folder should be")
    first = writer(tmp_path, Arena(1 << 20))
    copy = StateCopy("p", 3, 7, (), Completion(()), "", image(Arena(1 << 20), b"state"), "layout")
    first.write(WriteCheckpoint(copy), lambda copy, whole: said.append(whole))
    await first.close()
    assert said == [False]
    assert "no checkpoint of version 7 of p" in caplog.text


# -- whatever goes wrong the machine is told: it waits for the answer ----------------------------------------


def checkpoint() -> WriteCheckpoint:
    state = image(Arena(1 << 20), b"state")
    return WriteCheckpoint(StateCopy("p", 3, 7, (), Completion(()), "chain", state, "layout"))


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError(), IndexError()])
async def test_a_checkpoint_that_cannot_be_written_is_told(tmp_path, monkeypatch, error):
    one = writer(tmp_path, Arena(1 << 20))

    def fails(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(one._folder, "write", fails)
    told: asyncio.Queue[bool] = asyncio.Queue()
    one.write(checkpoint(), lambda copy, whole: told.put_nowait(whole))
    assert await told.get() is False
    await one.close()


class WithoutMemory(Arena):
    """Nothing can be taken from the system any more."""

    def allocate(self, nbytes: int, *, urgent: bool = False):
        raise MemoryError


async def test_checkpoints_that_cannot_be_read_are_none(tmp_path):
    first = writer(tmp_path, Arena(1 << 20))
    first.write(checkpoint(), lambda copy, whole: None)
    await first.close()
    second = writer(tmp_path, WithoutMemory(1 << 20))
    told: asyncio.Queue[StateCopy | None] = asyncio.Queue()
    second.read(told.put_nowait)
    assert await told.get() is None
    await second.close()
