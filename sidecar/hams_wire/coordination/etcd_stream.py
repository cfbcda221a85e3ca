"""One bidirectional stream to a member of etcd, read with time-outs.

gRPC cancels a whole stream if one read of it is cancelled, so a read that timed out goes on in the background
and the next one takes it up.
"""

import asyncio
from typing import Generic, TypeVar

import grpc.aio
from google.protobuf.message import Message

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class Stream(Generic[Request, Response]):
    """An open stream. Everything raises `grpc.aio.AioRpcError` when the stream breaks."""

    def __init__(
        self, call: "grpc.aio.StreamStreamCall[Request, Response]", response: type[Response]
    ) -> None:
        self._call = call
        self._response = response
        self._reading: asyncio.Task[Response | None] | None = None

    async def write(self, request: Request, timeout_s: float) -> None:
        """Send; raises `TimeoutError` if the member takes nothing any more."""
        async with asyncio.timeout(timeout_s):
            try:
                await self._call.write(request)
            except asyncio.InvalidStateError:
                raise await self._ended() from None

    async def read(self, timeout_s: float) -> Response | None:
        """The next response, None at the end of the stream; raises `TimeoutError` after `timeout_s`, and may
        be called again then."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        done, _ = await asyncio.wait((self._reading,), timeout=timeout_s)
        if not done:
            raise TimeoutError
        reading, self._reading = self._reading, None
        return reading.result()

    async def close(self) -> None:
        """Hang up; nothing is left behind."""
        self._call.cancel()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _ended(self) -> grpc.aio.AioRpcError:
        """What a stream ended with that had ended before it was used again: gRPC itself only says that it
        had."""
        call = self._call
        return grpc.aio.AioRpcError(
            await call.code(),
            await call.initial_metadata(),
            await call.trailing_metadata(),
            await call.details(),
            None,
        )

    async def _read(self) -> Response | None:
        try:
            answer = await self._call.read()
        except asyncio.InvalidStateError:
            raise await self._ended() from None
        return answer if isinstance(answer, self._response) else None
