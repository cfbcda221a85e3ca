"""Closed-loop load over HTTP with the binary tensor extension: keep-alive connections, one request open on
each."""

import asyncio
import json
import time
from typing import cast

import numpy as np

from hams_operator.cli.output import CommandError


def infer_request(graph: str, nbytes: int, key: str | None = None) -> bytes:
    """One POST infer with a single FP32 tensor `x` of one row, binary both ways."""
    tensor = {
        "name": "x",
        "datatype": "FP32",
        "shape": [1, nbytes // 4],
        "parameters": {"binary_data_size": nbytes},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return post(
        f"/v2/models/{graph}/infer",
        head + bytes(nbytes),
        {"inference-header-content-length": str(len(head)), **_key(key)},
    )


def post(path: str, body: bytes, headers: dict[str, str]) -> bytes:
    """A whole HTTP/1.1 request."""
    lines = [
        f"POST {path} HTTP/1.1",
        "host: bench",
        "content-type: application/octet-stream",
        f"content-length: {len(body)}",
    ]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def first_numbers(head: bytes, body: bytes) -> dict[str, int]:
    """The first number of each tensor in a binary reply of one row, as a whole number; `head` in lower case.

    Raises ValueError if it is no such reply.
    """
    mark = b"inference-header-content-length:"
    if mark not in head:
        raise ValueError(f"expected a binary reply, found {head[:300]!r}")
    at = int(head.split(mark, 1)[1].split(b"\r\n", 1)[0])
    numbers = {}
    for item in json.loads(body[:at])["outputs"]:
        kind = np.dtype({"FP32": "<f4", "INT64": "<i8"}[item["datatype"]])
        numbers[item["name"]] = int(np.frombuffer(body, kind, 1, at)[0])
        at += item["parameters"]["binary_data_size"]
    return numbers


def _key(key: str | None) -> dict[str, str]:
    return {} if key is None else {"idempotency-key": key}


class Client(asyncio.Protocol):
    """Sends its request again as soon as the reply is complete; notes (end, seconds) of each. Ends with the
    first answer that is not 200."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.took: list[tuple[float, float]] = []
        self.failure: str | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._head = b""
        self._left = -1
        self._began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.failure = self.failure or f"connection lost: {error}"
            self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._head[:end].lower()
            if not head.startswith(b"http/1.1 200"):
                self.failure = self._head[:300].decode(errors="replace")
                self.transport.abort()
                return
            length = int(head.split(b"\r\ncontent-length:", 1)[1].split(b"\r\n", 1)[0])
            self._left = length - (len(self._head) - end - 4)
        else:
            self._left -= len(data)
        if self._left == 0:
            now = time.perf_counter()
            self.took.append((now, now - self._began))
            self._send()

    def _send(self) -> None:
        self._head, self._left = b"", -1
        self._began = time.perf_counter()
        self.transport.write(self.request)


async def closed_loop(
    port: int, request: bytes, clients: int, seconds: float, warm_up_s: float
) -> list[float]:
    """Seconds of each request answered within the window. Raises CommandError if a client got
    anything but 200."""
    loop = asyncio.get_running_loop()
    made = [
        (await loop.create_connection(lambda: Client(request), "127.0.0.1", port))[1] for _ in range(clients)
    ]
    await asyncio.sleep(warm_up_s)
    begin = time.perf_counter()
    await asyncio.sleep(seconds)
    end = time.perf_counter()
    for client in made:
        client.transport.abort()
        if client.failure is not None:
            raise CommandError(f"expected 200 for every request, found {client.failure}")
    return [took for client in made for at, took in client.took if begin <= at - took and at <= end]
