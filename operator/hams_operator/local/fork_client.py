"""The supervisor's side of a fork server: ask it for processes, hear of their ends."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from hams_operator.local.limits import process_start_s
from hams_operator.local.processes import send


class ForkServerLost(Exception):
    """The warmed process has ended, and every process it forked with it."""


class ForkClient:
    """One fork server and the processes it forked. `on_exit(pid, status)` runs on the loop."""

    def __init__(self, on_exit: Callable[[int, int], None]) -> None:
        self._on_exit = on_exit
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._asked: dict[int, asyncio.Future[int]] = {}
        self._number = 0
        self.lost = asyncio.Event()
        self.warm = False

    async def start(self, modules: tuple[str, ...], log: Path) -> None:
        """Start the fork server; requests may be made at once, they are served when it is warm."""
        ours, theirs = socket.socketpair()
        with log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # the current folder is the user's: a `json.py` there is none of ours
                "-m",
                "hams_operator.local.fork_server",
                str(theirs.fileno()),
                *modules,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                # read when numpy and torch are imported; a fork cannot change it any more
                env={"OMP_NUM_THREADS": "1", **os.environ},
                start_new_session=True,
            )
        theirs.close()
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._reading = asyncio.create_task(self._read(reader), name="fork_client")

    async def spawn(
        self, module: str, arguments: list[str], environment: Mapping[str, str], folder: Path, log: Path
    ) -> int:
        """Fork a process that runs `module.main(arguments)`; its pid. Raises ForkServerLost, TimeoutError;
        then it does not run."""
        if self._writer is None or self.lost.is_set():
            raise ForkServerLost("the warmed process has ended")
        self._number += 1
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._asked[self._number] = answer
        request = {
            "id": self._number,
            "module": module,
            "arguments": arguments,
            "environment": dict(environment),
            "folder": str(folder),
            "log": str(log),
        }
        self._writer.write(json.dumps(request).encode() + b"\n")
        async with asyncio.timeout(process_start_s):
            return await answer

    async def close(self) -> None:
        """End the fork server, and with it whatever it still has."""
        if self._writer is not None:
            self._writer.close()
        if self._process is not None:
            try:
                async with asyncio.timeout(process_start_s):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        loop = asyncio.get_running_loop()
        while line := await self._line(reader):
            news = json.loads(line)
            if "id" in news:
                answer = self._asked.pop(news["id"])
                if not answer.done():
                    answer.set_result(news["pid"])
                else:  # the caller has given up, and nobody else knows of this process
                    send(news["pid"], signal.SIGKILL)
            elif "warm" in news:
                self.warm = True
            elif "pid" in news:  # behind the waking of who asked for that pid, who would else not know it yet
                loop.call_soon(self._on_exit, news["pid"], news["status"])
        self.lost.set()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ForkServerLost("the warmed process has ended"))

    @staticmethod
    async def _line(reader: asyncio.StreamReader) -> bytes:
        """The next line; empty at the end. One that dies with requests unread resets the connection: an end
        as well."""
        try:
            return await reader.readline()
        except ConnectionError:
            return b""
