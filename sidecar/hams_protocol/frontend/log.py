"""A shard's log: entries by index, of which a prefix is committed and applied to the state, and a tail that
may still be cut.

Invariants: `committed <= last`; an entry is applied exactly when it is committed; a cut never reaches below
`committed`. Memory is bounded: committed entries live on only in the state, but for those that a lagging
follower of the owner still needs (`trim`).
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice

from hams_protocol import limits
from hams_protocol.frontend.state import NO_META, ShardState
from hams_protocol.graph import FrontendSpec
from hams_protocol.ids import RequestId
from hams_protocol.messages import Admit, DoneEntry, LogCopy, LogEntry, Token
from hams_protocol.sizes import entry_nbytes, token_nbytes


class ShardLog:
    """The log of one shard in one epoch. Indices begin at 1 and go on from epoch to epoch."""

    def __init__(self, epoch: int, state: ShardState, index: int = 0) -> None:
        self.epoch = epoch
        self.state = state
        self.committed = index
        self.last = index
        self._entries: deque[LogEntry] = deque()
        self._first = index + 1

    def append(self, entry: LogEntry) -> int:
        """Add an entry; its index."""
        self._entries.append(entry)
        self.last += 1
        return self.last

    def commit(self, index: int) -> Iterator[tuple[int, LogEntry]]:
        """Commit everything up to `index`: each newly committed entry, after it was applied to the state."""
        while self.committed < index:
            entry = self._entries[self.committed + 1 - self._first]
            self.committed += 1
            self.state.apply(entry)
            yield self.committed, entry

    def tail(self) -> list[tuple[int, LogEntry]]:
        """The entries that are not committed, with their indices."""
        start = self.committed + 1
        return list(enumerate(islice(self._entries, start - self._first, None), start))

    def trim(self, index: int) -> None:
        """No follower needs entries up to `index` any more; only committed ones go."""
        index = min(index, self.committed)
        while self._first <= index:
            self._entries.popleft()
            self._first += 1

    def holds(self, index: int) -> bool:
        """Whether the entries from `index` on are still here."""
        return index >= self._first

    @property
    def retained_entries(self) -> int:
        """Entries in memory beside the state."""
        return len(self._entries)

    def entries(self, first: int) -> tuple[LogEntry, ...]:
        """At most one message's entries from index `first` on."""
        start = first - self._first
        return tuple(islice(self._entries, start, start + limits.resend_log_entries_max))

    def cut(self, end: int) -> bool:
        """Drop the entries above `end`; False if this log cannot have that end: it is too short, or has
        committed more."""
        if not self.committed <= end <= self.last:
            return False
        while self.last > end:
            self._entries.pop()
            self.last -= 1
        return True


def copy_parts(shard: int, log: ShardLog, copy: int = 0) -> list[LogCopy]:
    """The committed part of a log, compacted, as messages for a joiner: the `copy`-th that is made."""
    state = log.state
    groups: list[tuple[LogEntry, ...]] = []
    for stored in (*state.keyed.values(), *state.unkeyed.values()):
        groups.append((stored.admit(shard), stored.reply(shard), DoneEntry(RequestId(shard, stored.n))))
    for n, ticket in state.unkept.items():
        request = RequestId(shard, n)
        groups.append((Admit(request, None, "", NO_META, ticket=ticket), DoneEntry(request)))
    for item in state.open.values():
        groups.append((item.admit,) if item.reply is None or item.is_void else (item.admit, item.reply))
    parts: list[LogCopy] = []
    entries: list[LogEntry] = []
    nbytes = 0
    for group in groups:
        entries += group
        nbytes += sum(entry_nbytes(entry) for entry in group)
        if nbytes >= limits.copy_part_bytes_max or len(entries) >= limits.copy_part_entries_max:
            parts.append(
                LogCopy(shard, log.epoch, log.committed, len(parts), False, tuple(entries), copy=copy)
            )
            entries, nbytes = [], 0
    fed = tuple(token for item in state.open.values() for token in item.fed.values())
    parts.append(
        LogCopy(
            shard,
            log.epoch,
            log.committed,
            len(parts),
            True,
            tuple(entries),
            state.next_n,
            state.expired.hashes(),
            state.tickets.floors(),
            fed,
            state.completed.snapshot(),
            copy,
        )
    )
    return parts


def part_nbytes(part: LogCopy) -> int:
    """Payload bytes of one part of a copy."""
    return sum(entry_nbytes(entry) for entry in part.entries) + sum(token_nbytes(token) for token in part.fed)


def log_of(parts: list[LogCopy], spec: FrontendSpec) -> ShardLog:
    """The log that all parts of one copy make."""
    final = parts[-1]
    state = ShardState(final.shard, spec)
    state.expired.restore(final.expired)
    for part in parts:
        for entry in part.entries:
            state.apply(entry)
    state.next_n = max(state.next_n, final.next_n)
    state.tickets.restore(final.settled)
    for token in final.fed:
        _feed(state, token)
    if final.complete is not None:
        state.completed.learn(final.complete)
    return ShardLog(final.epoch, state, final.index)


def _feed(state: ShardState, token: Token) -> None:
    entry = state.open.get(token.request.n)
    if entry is not None:
        entry.fed[token.lane, token.source] = token


def empty_log(shard: int, epoch: int, index: int, spec: FrontendSpec, first_n: int = 0) -> ShardLog:
    """A log without entries. With `first_n`, requests below it are complete: their log was lost and nobody
    waits for them."""
    state = ShardState(shard, spec)
    if first_n:
        state.next_n = first_n
        state.completed.below(shard, first_n)
    return ShardLog(epoch, state, index)
