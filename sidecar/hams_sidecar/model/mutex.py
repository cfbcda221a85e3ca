"""A mutex that a model process holds as long as it lives, so that its death is told at once.

The kernel closes the connections of a killed process only after it has taken its memory apart: 17 to 39 ms
for a process with torch (ADR 0050). A robust mutex is given back before that (`pthread_mutexattr_setrobust`;
robust futexes, `get_robust_list(2)`). A process is noticed, too, whose children hold its connections open.
Where the C library is another one than glibc there is no such mutex, and the end of the connections tells.

Never: taken by anybody but the model and the thread that waits for it, or relied on: a model need not hold
it, and the end of its connections, or of its process, tells as well.
"""

import ctypes
import errno
import logging
import platform
import threading
from collections.abc import Callable

from hams_sidecar.arena import Arena, ArenaFull, ArenaTooSmall, Buffer

MUTEX_BYTES = 64
"""Room for glibc's `pthread_mutex_t`: 40 bytes on x86-64, 48 on aarch64."""

_ATTRIBUTES_BYTES = 64
_PROCESS_SHARED = 1
_ROBUST = 1

log = logging.getLogger(__name__)


class ModelMutex:
    """The mutex of one model process, in memory that it maps. Nobody holds it yet."""

    def __init__(self, buffer: Buffer) -> None:
        """`buffer`: at least `MUTEX_BYTES`; held as long as anybody may touch the mutex. Raises OSError."""
        self.buffer = buffer
        self._library = ctypes.CDLL(None)
        self._memory = (ctypes.c_char * MUTEX_BYTES).from_buffer(buffer.view)
        attributes = ctypes.create_string_buffer(_ATTRIBUTES_BYTES)
        status = (
            self._library.pthread_mutexattr_init(attributes)
            or self._library.pthread_mutexattr_setpshared(attributes, _PROCESS_SHARED)
            or self._library.pthread_mutexattr_setrobust(attributes, _ROBUST)
            or self._library.pthread_mutex_init(self._memory, attributes)
        )
        if status:
            raise OSError(status, "no robust mutex can be had")

    @classmethod
    def within(cls, arena: Arena) -> "ModelMutex | None":
        """One in this arena; None if there is no room, or no such mutex on this system."""
        if platform.libc_ver()[0] != "glibc":
            return None
        try:
            return cls(arena.allocate(MUTEX_BYTES, urgent=True))
        except (ArenaFull, ArenaTooSmall):
            return None
        except OSError as error:
            log.warning("the death of a model is told by its connections: %s", error)
            return None

    def watch(self, on_death: Callable[[], None]) -> None:
        """Call `on_death` on a thread of its own once the process that holds the mutex has died."""
        waits = threading.Thread(target=self._wait, args=(on_death,), name="hams-model-mutex", daemon=True)
        try:
            waits.start()
        except RuntimeError as error:
            log.warning("the death of a model is told by its connections: %s", error)

    def _wait(self, on_death: Callable[[], None]) -> None:
        status = self._library.pthread_mutex_lock(self._memory)
        if status in (0, errno.EOWNERDEAD):
            # This thread must not be found to hold memory that somebody else has by then.
            self._library.pthread_mutex_unlock(self._memory)
        if status == errno.EOWNERDEAD:
            on_death()
        else:
            log.warning("a model does not hold its mutex, though it says so (status %d)", status)
