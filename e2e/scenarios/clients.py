"""Clients that ask one request after another, each under a key of its own, and send it again under that key
until it is answered.

Every request and reply goes into the history. A reply is noted with the clock of the machine, which is the
same inside and outside of nodes. Broken connections, 429, 503 and 504 are no answers.
"""

import asyncio
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hams_history.lines import CallLine, HistoryWriter, RetLine

REQUEST_S = 60.0
CONNECT_S = 0.25
"""A pod's address that is gone answers nothing at all; another connection meets another frontend."""
ATTEMPT_S = 10.0
AGAIN_S = 0.002
NO_ANSWERS = (429, 503, 504)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Clients:
    """Closed-loop clients of one graph; `done` holds key, asked, answered (seconds, monotonic), status,
    attempts and the tensors asked for."""

    def __init__(
        self, url: str, graph: str, history: Path | None, inputs: object, tensors: tuple[str, ...], name: str
    ) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._graph = graph
        self._history = history
        self._body = json.dumps({"inputs": inputs}).encode()
        self._tensors = tensors
        self._name = name
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self.done: list[dict[str, Any]] = []
        self.unanswered: list[str] = []
        self.troubles: dict[str, int] = {}

    def start(self, count: int, keep: bool) -> None:
        """Let so many begin. `keep`: each stays on its connection until that breaks."""
        self._tasks = [asyncio.create_task(self._client(number, keep)) for number in range(count)]

    async def stop(self) -> None:
        """Begin no more; returns when those that began are answered."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def _client(self, number: int, keep: bool) -> None:
        writer = None if self._history is None else HistoryWriter(self._history, f"{self._name}-{number}")
        streams: Streams | None = None
        asked = 0
        try:
            while not self._stopping:
                asked += 1
                streams = await self._request(f"{self._name}-{number}-{asked}", writer, streams, keep)
        finally:
            if writer is not None:
                writer.close()
            if streams is not None:
                streams[1].close()

    async def _request(
        self, key: str, writer: HistoryWriter | None, streams: Streams | None, keep: bool
    ) -> Streams | None:
        if writer is not None:
            writer.write(CallLine(client=key, key=key, digest=None))
        began, attempts = time.monotonic(), 0
        while True:
            attempts += 1
            try:
                if streams is None:
                    streams = await asyncio.wait_for(
                        asyncio.open_connection(self._host, self._port), CONNECT_S
                    )
                status, answer, stays = await asyncio.wait_for(
                    self._exchange(streams, key, self._body), ATTEMPT_S
                )
                if not (keep and stays):
                    streams[1].close()
                    streams = None
            except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
                status, answer = 0, {}
                self._note(type(error).__name__)
                if streams is not None:
                    streams[1].close()
                    streams = None
            if status and status not in NO_ANSWERS:
                break
            if status:
                self._note(f"status {status}")
            if time.monotonic() - began > REQUEST_S:
                self.unanswered.append(key)
                return streams
            await asyncio.sleep(AGAIN_S)
        if writer is not None:
            writer.write(
                RetLine(
                    client=key,
                    key=key,
                    status="ok" if status == 200 else "conflict" if status == 409 else "error",
                )
            )
        outputs = {
            item["name"]: item["data"][0]
            for item in answer.get("outputs", ())
            if item["name"] in self._tensors
        }
        reply = {
            "key": key,
            "asked": began,
            "answered": time.monotonic(),
            "status": status,
            "attempts": attempts,
            "tensors": outputs,
        }
        if status != 200:
            reply["error"] = answer.get("error")
        self.done.append(reply)
        return streams

    async def _exchange(self, streams: Streams, key: str, body: bytes) -> tuple[int, dict[str, Any], bool]:
        reader, writer = streams
        head = (
            f"POST /v2/models/{self._graph}/infer HTTP/1.1\r\nhost: {self._host}\r\nidempotency-key: "
            f"{key}\r\n"
        )
        writer.write(
            f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        )
        answer = await reader.readuntil(b"\r\n\r\n")
        status = int(answer.split(b" ", 2)[1])
        length = int(answer.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        content = json.loads(await reader.readexactly(length))
        return status, content, b"connection: close" not in answer.lower()

    def _note(self, what: str) -> None:
        self.troubles[what] = self.troubles.get(what, 0) + 1
