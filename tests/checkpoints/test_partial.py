"""Files that are being written: those of living writers stay, those of dead ones go (F32)."""

import errno
import fcntl
import os
import subprocess
import sys

import pytest

from hams_checkpoints import partial
from hams_checkpoints.partial import new_partial, remove_abandoned

VICTIM = """
import sys
from pathlib import Path
from hams_checkpoints.partial import new_partial
with new_partial(Path(sys.argv[1])) as stream:
    stream.write(b"half a state")
    stream.flush()
    print("writing", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "000000000002-p-9.partial"


@pytest.fixture
def no_locks(monkeypatch):
    def flock(handle, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)


def test_what_a_living_process_writes_stays_and_goes_once_it_was_killed(path):
    with subprocess.Popen(
        [sys.executable, "-c", VICTIM, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as victim:
        assert victim.stdout.readline() == b"writing\n"
        remove_abandoned(path.parent)
        assert path.read_bytes() == b"half a state"
        victim.kill()
    remove_abandoned(path.parent)
    assert not path.exists()


def test_nothing_is_left_of_a_file_that_was_not_renamed(path):
    def half() -> None:
        with new_partial(path) as stream:
            stream.write(b"half a state")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        half()
    assert not path.exists()


def test_two_writers_do_not_share_a_file(path):
    with new_partial(path) as stream:
        with pytest.raises(BlockingIOError), new_partial(path):
            pass
        stream.write(b"whole")
        stream.flush()
        assert path.read_bytes() == b"whole"


def test_a_writer_whose_file_was_removed_before_it_had_the_lock_does_not_write(path, monkeypatch):
    flock = fcntl.flock

    def late(handle, operation):
        path.unlink()
        flock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(BlockingIOError), new_partial(path):
        pass
    assert not path.exists()


def test_a_file_that_has_taken_over_the_name_is_not_removed_in_the_place_of_the_old_one(path, monkeypatch):
    path.write_bytes(b"half a state")
    flock = fcntl.flock

    def late(handle, operation):
        flock(handle, operation)
        path.rename(path.with_suffix(".checkpoint"))
        path.write_bytes(b"another one")

    monkeypatch.setattr(fcntl, "flock", late)
    remove_abandoned(path.parent)
    assert path.read_bytes() == b"another one"


def test_without_locks_age_decides(path, no_locks):
    with new_partial(path) as stream:
        stream.write(b"half a state")
        stream.flush()
        remove_abandoned(path.parent)
        assert path.read_bytes() == b"half a state"
        long_ago = path.stat().st_mtime - partial.abandoned_s_min - 1
        os.utime(path, (long_ago, long_ago))
        remove_abandoned(path.parent)
        assert not path.exists()


def test_without_locks_a_writer_takes_over_what_it_left_under_the_same_name(path, no_locks):
    path.write_bytes(b"more than the half of a state")
    with new_partial(path) as stream:
        stream.write(b"whole")
        stream.flush()
        assert path.read_bytes() == b"whole"


def test_a_file_that_cannot_be_opened_is_left_and_named(path, caplog):
    path.mkdir()
    remove_abandoned(path.parent)
    assert path.exists()
    assert str(path) in caplog.text


def test_age_decides_over_a_file_of_another_user(path, monkeypatch):
    path.touch()

    def denied(*_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", denied)
    remove_abandoned(path.parent)
    assert path.exists()
    os.utime(path, (0, 0))
    remove_abandoned(path.parent)
    assert not path.exists()
