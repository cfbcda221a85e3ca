"""The choice of the client that gives way when all together want more memory than there is: the slowest one,
so that a client that stalls hurts no other.

Two kinds of bytes wait for clients: bodies that are not complete (a client writes slowly, or never ends) and
replies that are not taken (a client reads slowly, or never). Both are bounded over all connections. At the
bound a client that moves its bytes is served, and one that does not is cut off.
"""

from typing import Protocol

body_unhurried_s = 1.0
"""Where bodies together have no room left, the slowest of those that have been arriving for longer than this
gives way (429)."""


class IncomingBody(Protocol):
    """A body that is arriving. `size`: bytes that are counted for it; `arrived_bytes`: those that are known
    to have come."""

    began_s: float
    size: int

    @property
    def arrived_bytes(self) -> int:
        """What its speed is judged by."""
        ...

    def give_way(self) -> None:
        """Its bytes are let go at once, its client is told."""
        ...


class SlowReader(Protocol):
    """A connection with replies that its client has not taken."""

    def cut_off(self) -> None:
        """Close it at once."""
        ...


CLOCK_TICK_S = 0.001
"""The loop's clock counts in milliseconds: a body may have begun at this very one."""


class Bodies:
    """Bodies that are not complete."""

    def __init__(self) -> None:
        self._arriving: dict[IncomingBody, None] = {}

    def __len__(self) -> int:
        return len(self._arriving)

    def begin(self, body: IncomingBody) -> None:
        """Count a body from its first byte on."""
        self._arriving[body] = None

    def end(self, body: IncomingBody) -> None:
        """Count a body no more that is complete or given up. A second call does nothing."""
        self._arriving.pop(body, None)

    def make_room(self, own: IncomingBody | None, now_s: float) -> bool:
        """Let the slowest body but `own` give way; False if all are as fast as can be asked for."""
        slowest: IncomingBody | None = None
        slowest_rate = 0.0
        for body in self._arriving:
            age_s = now_s - body.began_s
            if body is own or not body.size or age_s < body_unhurried_s:
                continue
            rate = body.arrived_bytes / max(age_s, CLOCK_TICK_S)
            if slowest is None or rate < slowest_rate:
                slowest, slowest_rate = body, rate
        if slowest is None:
            return False
        self.end(slowest)
        slowest.give_way()
        return True


class UntakenReplies:
    """The replies that clients have not taken, by connection; the one that has moved none for longest stands
    first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: dict[SlowReader, int] = {}
        self.nbytes = 0

    def wait(self, reader: SlowReader, nbytes: int) -> None:
        """So many bytes more wait for this client. The client that has stalled for longest is cut off if that
        is too much for all together."""
        self._waiting[reader] = self._waiting.get(reader, 0) + nbytes
        self.nbytes += nbytes
        while self.nbytes > self._bytes_max and len(self._waiting) > 1:
            self.make_room()

    def make_room(self) -> bool:
        """Cut off the client that has stalled for longest; False if there is none."""
        if not self._waiting:
            return False
        oldest = next(iter(self._waiting))
        self.taken(oldest)
        oldest.cut_off()
        return True

    def moved(self, reader: SlowReader, left: int) -> None:
        """The client has taken some."""
        self.taken(reader)
        self.wait(reader, left)

    def taken(self, reader: SlowReader) -> None:
        """Count no bytes for this client any more. A second call does nothing."""
        self.nbytes -= self._waiting.pop(reader, 0)
