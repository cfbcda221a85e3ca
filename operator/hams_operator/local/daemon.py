"""The detached supervisor: a session leader of its own, so it survives the terminal it was started from.

With `RunOptions.parent` it ends, as if by SIGTERM, with the process that started it, however that ends.

It reports the start to the process that started it: JSON lines on a pipe, `{"status": ...}` per look, at the
end `{"ready": true}` or `{"failed": reason}`; then the pipe is closed. If nobody listens any more before
that, it goes on.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import msgspec

from hams_operator.graph_status import GraphStatus, awaited
from hams_operator.local.home import refused
from hams_operator.local.parent_death_signal import die_with_parent
from hams_operator.local.run import RunFailed, RunOptions, log_to, run


class StartNews(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the pipe."""

    status: GraphStatus | None = None
    ready: bool = False
    failed: str | None = None


class Start:
    """The starter's end of a detached process: iterate over the news, until it is ready or has failed."""

    def __init__(self, options: RunOptions) -> None:
        assert not options.parent or threading.current_thread() is threading.main_thread(), (
            "the end of another thread would end the run"
        )
        ours, theirs = os.pipe()
        arguments = [
            sys.executable,
            "-P",
            "-m",
            "hams_operator.local.daemon",
            str(theirs),
            msgspec.json.encode(options).decode(),
        ]
        self._process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs,),
            start_new_session=True,
        )
        os.close(theirs)
        self._pipe = os.fdopen(ours, "rb")

    def __iter__(self) -> Iterator[StartNews]:
        """The news until `ready` or `failed`; a process that ends without a word has failed."""
        for line in self._pipe:
            news = msgspec.json.decode(line, type=StartNews)
            if news.failed is not None:
                # before it is reported: the reader of the pipe may leave at once, and leaves nothing behind
                self._process.wait()
            yield news
            if news.ready or news.failed is not None:
                return
        yield StartNews(
            failed=f"the supervisor ended with status {self._process.wait()} before the graph was ready; its "
            "log: supervisor.log"
        )

    def abandon(self) -> None:
        """End it and everything it started; returns when that is done."""
        self._process.terminate()
        self._process.wait()


class _Teller:
    """Writes news to the pipe; nobody has to listen."""

    def __init__(self, descriptor: int) -> None:
        self._pipe: int | None = descriptor
        os.set_inheritable(descriptor, False)

    def tell(self, news: StartNews) -> None:
        if self._pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._pipe, msgspec.json.encode(news) + b"\n")

    def on_status(self, status: GraphStatus) -> None:
        self.tell(StartNews(status=status))
        if awaited(status.conditions) is None:
            self.tell(StartNews(ready=True))
            self.close()

    def close(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


def main() -> int:
    """`python -m hams_operator.local.daemon FD OPTIONS`."""
    options = msgspec.json.decode(sys.argv[2], type=RunOptions)
    if options.parent:
        die_with_parent(options.parent, signal.SIGTERM)
    teller = _Teller(int(sys.argv[1]))
    from hams_graph import InvalidGraph, load  # noqa: PLC0415 - the pipe is heard first

    try:
        graph = load(options.file)
        log_to(graph.data.name)
        asyncio.run(run(graph, options, teller.on_status, keep_looking=False))
    except (InvalidGraph, RunFailed) as error:
        teller.tell(StartNews(failed=str(error)))
        return 1
    except OSError as error:
        teller.tell(StartNews(failed=refused(error)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
