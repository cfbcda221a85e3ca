"""Files that are still being written, and what writers that died left of theirs.

A writer holds a lock (flock) on its partial file from before the first byte until the file has its name or
is removed; the kernel releases the lock of a writer that dies. So a partial file whose lock can be had
belongs to nobody, and goes before the next write: it may take the room that this write needs. Where a file
system has no locks, age decides.

Writers of versions before 2026-11-27 hold no lock: beside one of this version they may lose a partial file,
as over NFS (below).

Invariant: a file whose lock another writer holds is never removed. Whoever removes or renames a partial file
holds its lock, so a name cannot come to stand for another file in between. Some file systems keep locks on
each machine only (NFS with `local_lock`). There a writer on another machine may lose its partial file: its
rename fails, that one checkpoint is missing, and the next one is written as usual.
"""

import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

log = logging.getLogger("hams.checkpoints")

PARTIAL = ".partial"

abandoned_s_min = 3600.0
"""Without locks: a partial file that nothing was written to for this long belongs to nobody. A writer writes
all the time, and no disk takes that long to flush one state."""

_NO_LOCKS = frozenset((errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL))
"""What flock says where the file system has no locks, or its lock server does not answer."""


@contextmanager
def new_partial(path: Path) -> Iterator[BinaryIO]:
    """An empty file at `path` to write to, locked; removed at the end unless it was renamed. Blocks. Raises
    OSError, if a living writer has a file of this name too (BlockingIOError)."""
    with open(_open_locked(path), "wb") as stream:
        try:
            yield stream
        finally:
            # Before the lock is released with the file: afterwards the name may be another writer's.
            if _names(path, stream.fileno()):
                path.unlink()


def remove_abandoned(folder: Path) -> None:
    """Remove the partial files of writers that are gone. Blocks. One that cannot be looked at stays."""
    for path in folder.glob(f"*{PARTIAL}"):
        try:
            _remove_if_abandoned(path)
        except FileNotFoundError:
            pass  # its writer has just finished
        except OSError as error:
            log.warning("a checkpoint that was not finished stays: %s", error)


def _open_locked(path: Path) -> int:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(handle)
        if not _names(path, handle):  # removed between the two calls by one that took it for abandoned
            raise BlockingIOError(errno.EAGAIN, "another writer has just removed this file", str(path))
        # Without locks: a dead writer of this name may have left it, too short ago for it to be removed.
        os.ftruncate(handle, 0)
    except OSError:
        os.close(handle)
        raise
    return handle


def _remove_if_abandoned(path: Path) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # over NFS only a writable file can be locked
    except PermissionError:  # another user's; that it may be removed, the folder says
        if _is_old(path.stat()):
            path.unlink()
        return
    try:
        abandoned = _lock(handle) or _is_old(os.fstat(handle))
        if abandoned and _names(path, handle):
            path.unlink()
    except BlockingIOError:
        pass  # a living writer holds it
    finally:
        os.close(handle)


def _lock(handle: int) -> bool:
    """Lock an open file; False if its file system has no locks. Raises BlockingIOError if it is locked."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True


def _is_old(stat: os.stat_result) -> bool:
    """Whether nothing was written for so long that nobody writes there any more."""
    return time.time() - stat.st_mtime > abandoned_s_min


def _names(path: Path, handle: int) -> bool:
    """Whether `path` is the name of this open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
