"""What leaves first on one connection, and how much may wait.

Pure: messages in, pieces of bytes out. Urgent messages (notices, acknowledgements, control) go ahead of
everything; the other lanes (log entries, records, tokens, copies) take turns by bytes, each in its own order,
so none ever queues behind another. Payloads leave in chunks: an urgent message waits for one chunk at most,
however large the message it overtakes. The copies of one state can be told to wait.

Invariant: bytes and messages waiting per lane are bounded (`lane_bytes_max`, or one message if that is
larger); what is above is not taken, and for the core that is a lost message, which it sends again if it must.
Payloads are never copied, only referred to.
"""

from collections import deque

from hams_wire import limits
from hams_wire.peers import frames
from hams_wire.peers.codec import Encoded, Lane

join_bytes_max = 16 * 1024
"""Pieces up to this size are joined before they are handed to the transport: cheaper than one more piece of a
gathering write."""

lane_bytes_max = 256 * 1024 * 1024
"""A message that would raise a lane above this is dropped, as if the connection had lost it; one message
always fits."""

lane_messages_max = 131_072
"""Messages waiting in one lane, whatever their size."""

urgent_turn_bytes_max = 1024 * 1024
"""Urgent bytes written before a chunk of payload gets its turn, so that acknowledgements alone cannot starve
records."""

Piece = bytes | memoryview


class _Queue:
    """One lane: messages in order; of the first, `sent` payload bytes have left (-1: not even its
    metadata)."""

    __slots__ = ("at", "messages", "nbytes", "number", "sent", "view")

    def __init__(self, number: Lane) -> None:
        self.number = int(number)
        self.messages: deque[Encoded] = deque()
        self.nbytes = 0
        self.sent = -1
        self.view = 0  # of the first message: the view that is being sent ...
        self.at = 0  # ... and how much of it has left


class SendQueue:
    """The messages that wait for one connection."""

    __slots__ = ("_copies", "_keys", "_queues", "_turn", "_urgent", "dropped", "messages", "repeated")

    def __init__(self) -> None:
        self._urgent = _Queue(Lane.URGENT)
        self._queues = [self._urgent, *(_Queue(lane) for lane in Lane if lane is not Lane.URGENT)]
        self._copies = self._queues[Lane.COPIES]
        self._turn = 1
        self._keys: set[object] = set()
        self.messages = 0
        self.dropped = 0
        self.repeated = 0

    def __bool__(self) -> bool:
        return self.messages > 0

    def may_leave(self, held: str = "") -> bool:
        """Whether `take` has anything."""
        return self.messages > (len(self._copies.messages) if self._copy_waits(held) else 0)

    def _copy_waits(self, held: str) -> bool:
        copies = self._copies.messages
        return held != "" and bool(copies) and copies[0].state_of == held

    @property
    def nbytes(self) -> int:
        """Bytes that wait, metadata and payloads."""
        return sum(queue.nbytes for queue in self._queues)

    @property
    def fullest_bytes(self) -> int:
        """Bytes that wait in the fullest lane."""
        return max(queue.nbytes for queue in self._queues)

    def push(self, message: Encoded) -> bool:
        """Queue a message. False if its lane is full, or it is large and waits already: then it is not
        queued."""
        queue = self._queues[message.lane]
        if message.key is not None and message.key in self._keys:
            self.repeated += 1
            return False
        if queue.messages and (
            queue.nbytes + message.nbytes > lane_bytes_max or len(queue.messages) >= lane_messages_max
        ):
            self.dropped += 1
            return False
        if message.key is not None:
            self._keys.add(message.key)
        queue.messages.append(message)
        queue.nbytes += message.nbytes
        self.messages += 1
        return True

    def take(self, held: str = "") -> list[Piece]:
        """The next pieces to write, about a chunk; none if nothing may leave. Copies of the state of the
        operator `held` stay, with what is behind them in their lane; one that has begun goes on later."""
        pieces: list[Piece] = []
        taken = self._emit(self._urgent, urgent_turn_bytes_max, pieces) if self._urgent.messages else 0
        if self.messages:
            waits = self._copies if self._copy_waits(held) else None
            budget = limits.chunk_bytes
            for _ in range(len(self._queues) - 1):
                queue = self._queues[self._turn]
                if queue.messages and queue is not waits:
                    emitted = self._emit(queue, budget, pieces)
                    taken += emitted
                    budget -= emitted
                self._turn = self._turn % (len(self._queues) - 1) + 1
                if budget < join_bytes_max:
                    break
        if taken <= join_bytes_max:
            return [b"".join(pieces)] if pieces else pieces
        return _joined(pieces)

    def _emit(self, queue: _Queue, budget: int, pieces: list[Piece]) -> int:
        """Append frames of a lane, until `budget` is used up; the bytes appended (the last metadata may go
        over it)."""
        messages = queue.messages
        taken = 0
        while messages and taken < budget:
            message = messages[0]
            if not message.views:
                pieces.append(frames.pack(message.code, 0, 0, len(message.metadata), 0))
                pieces.append(message.metadata)
                taken += message.nbytes
            elif queue.sent < 0:
                queue.sent = queue.view = queue.at = 0
                taken += len(message.metadata)
                size = max(0, min(message.data, budget - taken))
                pieces.append(
                    frames.pack(message.code, frames.PAYLOAD, queue.number, len(message.metadata), size)
                )
                pieces.append(message.metadata)
                self._slices(queue, message, size, pieces)
                taken += size
            else:
                size = min(message.data - queue.sent, budget - taken)
                pieces.append(frames.pack(frames.DATA, 0, queue.number, 0, size))
                self._slices(queue, message, size, pieces)
                taken += size
            if queue.sent < 0 or queue.sent == message.data:
                messages.popleft()
                self.messages -= 1
                queue.sent = -1
                queue.nbytes -= message.nbytes
                if message.key is not None:
                    self._keys.discard(message.key)
        return taken

    @staticmethod
    def _slices(queue: _Queue, message: Encoded, size: int, pieces: list[Piece]) -> None:
        queue.sent += size
        while size:
            view = message.views[queue.view]
            left = len(view) - queue.at
            if left <= size:
                pieces.append(view[queue.at :] if queue.at else view)
                queue.view += 1
                queue.at = 0
                size -= left
            else:
                pieces.append(view[queue.at : queue.at + size])
                queue.at += size
                size = 0


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Fewer pieces of the same bytes: neighbours that are small are copied together."""
    if len(pieces) < 2:
        return pieces
    joined: list[Piece] = []
    small: list[Piece] = []
    for piece in pieces:
        if len(piece) <= join_bytes_max:
            small.append(piece)
        else:
            if small:
                joined.append(b"".join(small))
                small = []
            joined.append(piece)
    if small:
        joined.append(b"".join(small))
    return joined
