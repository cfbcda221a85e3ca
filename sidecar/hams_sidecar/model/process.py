"""The model process as the operating system sees it: notice of its end, and its killing. Works where its pid
is visible (local runs, shared pid namespace); elsewhere the container's supervisor ends it, and its end shows
when the next one connects.
"""

import asyncio
import os
import signal
from collections.abc import Callable


class ModelProcess:
    """A handle that cannot hit another process that got the same pid."""

    def __init__(self, pid: int, on_exit: Callable[["ModelProcess"], None]) -> None:
        self.pid = pid
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._fd: int | None = None
        if pid:
            try:
                self._fd = os.pidfd_open(pid)
            except OSError:  # gone already, or not to be seen: the connections tell
                return
            self._loop.add_reader(self._fd, self._exited)

    @property
    def watched(self) -> bool:
        """Whether its end will be told."""
        return self._fd is not None

    def kill(self) -> None:
        """SIGKILL, if it can be reached."""
        if self._fd is not None:
            try:
                signal.pidfd_send_signal(self._fd, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass

    def forget(self) -> None:
        """Tell nothing any more."""
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _exited(self) -> None:
        self.forget()
        self._on_exit(self)
