"""A visit: a connection by a process that is no peer, to ask an instance for something and to get it on the
same connection (proto/peers.md, section 6).

It is how a graph's next shape, which is another graph to peers, asks for what it takes over, and how the one
before passes requests on. It comes in by the port of the peers and shows the same certificate; after the
greeting it is a stream of messages, one question and one answer at a time:

    length of head, 4 bytes | bytes of payload, 8 bytes | head | payload | CRC-32 of head and payload, 4 bytes

The content of a head is the business of those that use visits. Never: a visitor reaches the core, or is taken
for a peer; nothing is asked again here.
"""

import asyncio
import struct
import zlib
from collections.abc import Awaitable, Callable, Sequence

from hams_wire import limits
from hams_wire.peers import addresses, frames, handshake
from hams_wire.peers.errors import BadFrame, ConnectionRejected, PeerError
from hams_wire.tls import Certificates, Stranger

visit_head_bytes_max = 4 * 1024 * 1024
"""What a visitor, or its host, says besides payload, in one message."""

visit_piece_bytes = 1024 * 1024
"""Payload is read and written in pieces of this size."""

visit_silence_s = 5.0
"""A visit on which nothing moves for this long while something is due is over."""

TLS_NAME = "hams-peer"
"""Server name that a dialling side asks for: addresses change, so certificates are checked for the graph's
identity instead (`tls.py`)."""

_LENGTHS = struct.Struct("!IQ")
_CHECKSUM = struct.Struct("!I")

Buffer = bytes | memoryview


class VisitFailed(PeerError):
    """The other side went away, turned the visit down, or said what is not allowed; what became of the
    question is not known."""

    retryable = True


class VisitEnded(VisitFailed):
    """The other side has hung up, between two messages."""


class NotReached(VisitFailed):
    """The visit failed before anything was asked."""


class Visit:
    """One side of a visit. `send` and `receive` raise VisitFailed; after that it is good for nothing but
    `close`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, head: bytes, payload: Sequence[Buffer] = ()) -> None:
        """One message."""
        writer = self._writer
        try:
            writer.write(_LENGTHS.pack(len(head), sum([len(part) for part in payload])) + head)
            checksum = zlib.crc32(head)
            for part in payload:
                for start in range(0, len(part), visit_piece_bytes):
                    piece = part[start : start + visit_piece_bytes]
                    checksum = zlib.crc32(piece, checksum)
                    writer.write(piece)
                    async with asyncio.timeout(visit_silence_s):
                        await writer.drain()
            writer.write(_CHECKSUM.pack(checksum))
            async with asyncio.timeout(visit_silence_s):
                await writer.drain()
        except OSError as error:  # TimeoutError is one
            raise VisitFailed(f"sending: {error!r}") from error

    async def receive(
        self, room: Callable[[int], memoryview], within_s: float | None = visit_silence_s
    ) -> tuple[bytes, memoryview]:
        """One message: its head, and its payload in the memory that `room` gives for so many bytes.
        `within_s`: until it begins; None: for ever.

        What `room` raises ends the visit as well.
        """
        try:
            async with asyncio.timeout(within_s):
                length, nbytes = _LENGTHS.unpack(await self._reader.readexactly(_LENGTHS.size))
            if length > visit_head_bytes_max or nbytes > limits.payload_bytes_max:
                raise VisitFailed(
                    f"a message of {length} + {nbytes} bytes, at most {visit_head_bytes_max} + "
                    f"{limits.payload_bytes_max} are taken"
                )
            head = await self._piece(length)
            checksum = zlib.crc32(head)
            view = room(nbytes) if nbytes else memoryview(b"")
            at = 0
            while at < nbytes:
                piece = await self._piece(min(visit_piece_bytes, nbytes - at))
                checksum = zlib.crc32(piece, checksum)
                view[at : at + len(piece)] = piece
                at += len(piece)
            if _CHECKSUM.unpack(await self._piece(_CHECKSUM.size))[0] != checksum:
                raise VisitFailed("a message was changed on its way: its checksum differs")
        except (OSError, asyncio.IncompleteReadError) as error:
            if (
                isinstance(error, asyncio.IncompleteReadError)
                and not error.partial
                and error.expected == _LENGTHS.size
            ):
                raise VisitEnded("the other side has hung up") from error
            raise VisitFailed(f"receiving: {error!r}") from error
        return head, view

    async def _piece(self, nbytes: int) -> bytes:
        async with asyncio.timeout(visit_silence_s):
            return await self._reader.readexactly(nbytes)

    @property
    def over(self) -> bool:
        """Whether the other side has hung up, as far as is known."""
        return self._reader.at_eof() or self._writer.is_closing()

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


Host = Callable[[Visit], Awaitable[None]]
"""Answers one visitor until it goes. VisitFailed and OSError end the visit and nothing else."""


def taken_over(transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> Visit:
    """The dialled side of a visit, once the visitor has been welcomed and before it says more."""
    reader = asyncio.StreamReader(limit=visit_piece_bytes, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    return Visit(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


async def pay(address: str, graph: str, visitor: str, host: str, tls: Certificates | None) -> Visit:
    """Visit the instance `host` of `graph` at its peers' address. Raises NotReached."""
    try:
        parsed = addresses.parse(address)
        context = None if tls is None else tls.client()
        name = None if context is None else TLS_NAME
        async with asyncio.timeout(limits.connect_s):
            if isinstance(parsed, addresses.Unix):
                reader, writer = await asyncio.open_unix_connection(
                    parsed.path, ssl=context, server_hostname=name, limit=visit_piece_bytes
                )
            else:
                reader, writer = await asyncio.open_connection(
                    parsed.host,
                    parsed.port,
                    ssl=context,
                    server_hostname=name,
                    limit=visit_piece_bytes,
                )
    except (OSError, ValueError) as error:
        raise NotReached(f"{host} at {address}: {error!r}") from error
    try:
        if tls is not None:
            tls.vouch(writer.transport)
        hello = handshake.Hello(
            graph, visitor, host, "", handshake.VERSION_OLDEST, handshake.VERSION, visit=True
        )
        writer.write(handshake.frame(hello))
        async with asyncio.timeout(limits.handshake_s):
            header = frames.unpack(await reader.readexactly(frames.HEADER.size), 0, limits.hello_bytes_max)
            handshake.read(handshake.Welcome, header.kind, await reader.readexactly(header.metadata))
    except (OSError, asyncio.IncompleteReadError, BadFrame, ConnectionRejected, Stranger) as error:
        writer.close()
        raise NotReached(f"{host} at {address}: {error!r}") from error
    except BaseException:
        writer.close()
        raise
    return Visit(reader, writer)


__all__ = ["TLS_NAME", "Host", "NotReached", "Visit", "VisitEnded", "VisitFailed", "pay", "taken_over"]
