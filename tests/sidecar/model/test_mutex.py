"""The mutex that tells of a model's death, without a model."""

import errno
import logging
import os
import threading
from pathlib import Path

import pytest

from hams_sdk.memory import Regions
from hams_sidecar.arena import Arena
from hams_sidecar.model.mutex import MUTEX_BYTES, ModelMutex


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    return Arena(1 << 16, path=tmp_path / "arena")


def mutex_in(arena: Arena) -> ModelMutex:
    mutex = ModelMutex.within(arena)
    assert mutex is not None
    return mutex


def holder(arena: Arena, mutex: ModelMutex) -> tuple[int, int]:
    """A child that holds it: its pid, and where to write for it to end."""
    said, tell = os.pipe()
    ended, end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(end)
        regions = Regions([{"path": str(arena.path), "nbytes": arena.capacity}], None)
        os.write(tell, b"y" if regions.lock((0, mutex.buffer.offset, MUTEX_BYTES)) else b"n")
        os.read(ended, 1)
        os._exit(0)
    os.close(ended)
    assert os.read(said, 1) == b"y"
    os.close(said)
    os.close(tell)
    return pid, end


def test_the_death_of_who_holds_it_is_told_and_nothing_before(arena: Arena) -> None:
    mutex, told = mutex_in(arena), threading.Event()
    pid, end = holder(arena, mutex)
    mutex.watch(told.set)
    assert not told.wait(0.05)
    os.close(end)
    assert told.wait(20)
    os.waitpid(pid, 0)


def test_of_who_does_not_hold_it_no_death_is_told(arena: Arena, caplog: pytest.LogCaptureFixture) -> None:
    mutex, told = mutex_in(arena), threading.Event()
    with caplog.at_level(logging.WARNING):
        mutex.watch(told.set)
        for thread in threading.enumerate():
            if thread.name == "hams-model-mutex":
                thread.join(20)
    assert not told.is_set()
    assert "does not hold its mutex" in caplog.text


def test_a_mutex_is_locked_by_one_process_only(arena: Arena) -> None:
    mutex = mutex_in(arena)
    pid, end = holder(arena, mutex)
    regions = Regions([{"path": str(arena.path), "nbytes": arena.capacity}], None)
    assert not regions.lock((0, mutex.buffer.offset, MUTEX_BYTES))
    os.close(end)
    os.waitpid(pid, 0)


def test_a_process_that_may_start_no_thread_goes_without(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fails)
    with caplog.at_level(logging.WARNING):
        mutex_in(arena).watch(lambda: None)
    assert "can't start new thread" in caplog.text


def test_without_room_or_such_a_mutex_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = Arena(64, path=tmp_path / "full")
    taken = full.allocate(64)
    assert ModelMutex.within(full) is None
    del taken
    monkeypatch.setattr(ModelMutex, "__init__", _refused)
    with caplog.at_level(logging.WARNING):
        assert ModelMutex.within(full) is None
    assert "no robust mutex" in caplog.text


def _refused(mutex: ModelMutex, buffer: object) -> None:
    raise OSError(errno.ENOTSUP, "no robust mutex can be had")
