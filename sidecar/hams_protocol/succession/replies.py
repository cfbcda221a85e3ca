"""The replies that the predecessor has kept for its keys, as a frontend of the successor has them: read whole
at the switch, never changed.

So a key that was answered before gets that answer, and nothing is executed for it again. What the successor
answers itself, its own log keeps. Over several changes in a row each shape hands on what it was given.

Invariant: a key that leaves the table for want of room is known to be gone; a table that lacks anything does
not call itself whole, nor does any table made of it.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from hams_protocol import limits
from hams_protocol.effects import Replied
from hams_protocol.frontend.log import ShardLog
from hams_protocol.frontend.state import key_hash
from hams_protocol.frozen import frozen
from hams_protocol.graph import FrontendSpec
from hams_protocol.keys import known_as

T = TypeVar("T")

hashes_per_page_max = 100_000
"""Hashes of expired keys in one message."""


@frozen
class Entry(Generic[T]):
    """What was answered to a key: the digest of the request's payload, the outcome, and its bytes."""

    key: str
    digest: str
    outcome: T
    nbytes: int


@frozen
class Page(Generic[T]):
    """Some kept replies; `more` follow. `expired`: hashes of keys whose replies are not kept any more.
    `whole`: who tells has all that was to be taken over."""

    replies: tuple[Entry[T], ...]
    expired: tuple[int, ...]
    more: bool
    whole: bool


class Table(Generic[T]):
    """Outcomes by key, oldest first, and hashes of keys whose outcomes are not kept any more; as many as the
    graph's own shards may keep. `conflict`, `expired`: what such keys are answered.

    `whole`: it has all that the predecessor kept, as far as those knew of whom it was taken.
    """

    def __init__(self, frontend: FrontendSpec, conflict: T, expired: T) -> None:
        self.whole = True
        self._conflict = conflict
        self._gone = expired
        self._known: dict[str, Entry[T]] = {}
        self._expired: dict[int, None] = {}
        self._nbytes = 0
        self._count_max = frontend.replies_kept * frontend.shards
        self._bytes_max = frontend.replies_kept_bytes * frontend.shards
        self._expired_max = limits.keys_expired_max * frontend.shards

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: str, digest: str | None) -> T | None:
        """What a request with this key, and a payload of this digest, is answered; None: it is a new one."""
        for name in known_as(key):
            reply = self._known.get(name)
            if reply is not None:
                return reply.outcome if reply.digest == digest else self._conflict
        if self._expired and any(key_hash(name) in self._expired for name in known_as(key)):
            return self._gone
        return None

    def add(self, page: Page[T]) -> None:
        """Take some over. What is told later is newer."""
        for entry in page.replies:
            self._drop(entry.key)
            self._known[entry.key] = entry
            self._nbytes += entry.nbytes
        self._expired.update(dict.fromkeys(page.expired))
        self.whole = self.whole and page.whole
        while len(self._known) > self._count_max or self._nbytes > self._bytes_max:
            oldest = next(iter(self._known))
            self._drop(oldest)
            self._expired[key_hash(oldest)] = None
        while len(self._expired) > self._expired_max:
            del self._expired[next(iter(self._expired))]

    def _drop(self, key: str) -> None:
        reply = self._known.pop(key, None)
        if reply is not None:
            self._nbytes -= reply.nbytes

    def entries(self) -> list[Entry[T]]:
        """All that is kept, oldest first."""
        return list(self._known.values())

    def expired(self) -> tuple[int, ...]:
        """Hashes of keys."""
        return tuple(self._expired)


def entries_of(log: ShardLog, outcome: Callable[[Replied], tuple[T, int]]) -> Iterator[Entry[T]]:
    """What a shard keeps for its keys; `outcome`: what a reply of the core is to a client, and its bytes."""
    for stored in log.state.keyed.values():
        admit, reply = stored.admit(log.state.shard), stored.reply(log.state.shard)
        if admit.key is not None:
            said, nbytes = outcome(Replied(reply.request, reply.tokens, reply.error))
            yield Entry(admit.key, admit.digest, said, nbytes)


def pages(
    entries: Iterable[Entry[T]], expired: tuple[int, ...], whole: bool, count_max: int, bytes_max: int
) -> Iterator[Page[T]]:
    """What is told to who asks for kept replies, in messages of so many replies, and about so many bytes, at
    most. Only the last one says that no more follow, and whether the table is whole."""
    while len(expired) > hashes_per_page_max:
        yield Page((), expired[:hashes_per_page_max], True, True)
        expired = expired[hashes_per_page_max:]
    replies: list[Entry[T]] = []
    nbytes = 0
    for entry in entries:
        replies.append(entry)
        nbytes += entry.nbytes + len(entry.key.encode())
        if len(replies) >= count_max or nbytes >= bytes_max:
            yield Page(tuple(replies), (), True, True)
            replies, nbytes = [], 0
    yield Page(tuple(replies), expired, False, whole)
