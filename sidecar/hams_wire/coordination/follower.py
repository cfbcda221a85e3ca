"""What a watch knows: turns answers of etcd into events, and a fresh reading into the events that were
missed. Pure.

Invariant: after `apply` or `resync`, `known` is what a consumer of the events so far believes etcd to hold
below the prefix at revision `anchor`, and every change up to it has been reported. So a reading of that
revision tells whether etcd still has the same history.
"""

from collections.abc import Iterable

from hams_wire.coordination.port import Deleted, Event, KeyValue, Put, Restored, Snapshot


class WatchFollower:
    """The consumer's knowledge, and the first revision that it has not seen."""

    def __init__(self, after: Snapshot) -> None:
        self.known = {entry.key: entry for entry in after.entries}
        self.next_revision = after.revision + 1

    @property
    def anchor(self) -> int:
        """The newest revision seen."""
        return self.next_revision - 1

    def agrees(self, entries: Iterable[KeyValue]) -> bool:
        """Whether etcd, read at revision `anchor`, holds what is known; if not, its history is another
        one."""
        return self.known == {entry.key: entry for entry in entries}

    def apply(self, changes: Iterable[Put | Deleted]) -> list[Event]:
        """Changes as etcd reports them, whole revisions in order; those seen before are dropped."""
        events: list[Event] = []
        newest = self.anchor
        for change in changes:
            revision = change.entry.mod_revision if isinstance(change, Put) else change.revision
            if revision < self.next_revision:
                continue
            newest = max(newest, revision)
            if isinstance(change, Put):
                self.known[change.entry.key] = change.entry
            else:
                self.known.pop(change.key, None)
            events.append(change)
        self.next_revision = newest + 1
        return events

    def resync(self, snapshot: Snapshot, restored: bool) -> list[Event]:
        """The events between what is known and a linearizable reading. `restored`: of another history, so
        everything found is reported."""
        events: list[Event] = []
        if restored:
            events.append(Restored(self.anchor, snapshot.revision))
        present = {entry.key: entry for entry in snapshot.entries}
        for key, before in self.known.items():
            entry = present.get(key)
            # Revisions of another history may be equal by chance; a lease never is.
            if (
                entry is None
                or entry.create_revision != before.create_revision
                or (restored and entry.lease != before.lease)
            ):
                events.append(Deleted(key, snapshot.revision, synthetic=True))
        for entry in sorted(snapshot.entries, key=lambda item: item.mod_revision):
            if restored or self.known.get(entry.key) != entry:
                events.append(Put(entry, synthetic=True))
        self.known = present
        self.next_revision = snapshot.revision + 1
        return events


def below(prefix: str, snapshot: Snapshot) -> Snapshot:
    """The part of a reading that a watch of `prefix` is about."""
    return Snapshot(
        snapshot.revision, tuple(entry for entry in snapshot.entries if entry.key.startswith(prefix))
    )
