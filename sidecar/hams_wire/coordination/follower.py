"""What a watch knows: turns answers of etcd into events, and a fresh reading into the events that were missed. Pure.

Invariant: after `apply` or `resync`, `known` holds exactly the keys that a consumer of the events so far believes to exist, and every
change up to `next_revision` - 1 has been reported.
"""

from collections.abc import Iterable

from hams_wire.coordination.port import Deleted, Event, Put, Restored, Snapshot


class Follower:
    """The consumer's knowledge: key -> (create revision, mod revision), and the first revision that it has not seen."""

    def __init__(self, after: Snapshot) -> None:
        self.known = {entry.key: (entry.create_revision, entry.mod_revision) for entry in after.entries}
        self.next_revision = after.revision + 1
        self.seen_revision = after.revision
        self.cluster = 0

    def apply(self, changes: Iterable[Put | Deleted]) -> list[Event]:
        """Changes as etcd reports them, whole revisions in order; those seen before are dropped."""
        events: list[Event] = []
        newest = self.next_revision - 1
        for change in changes:
            revision = change.entry.mod_revision if isinstance(change, Put) else change.revision
            if revision < self.next_revision:
                continue
            newest = max(newest, revision)
            if isinstance(change, Put):
                self.known[change.entry.key] = (change.entry.create_revision, change.entry.mod_revision)
            else:
                self.known.pop(change.key, None)
            events.append(change)
        self.next_revision = newest + 1
        self.seen_revision = max(self.seen_revision, newest)
        return events

    def suspects(self, revision: int, cluster: int) -> bool:
        """Whether an answer with this header may stem from another history than the one followed (or from a member that lags)."""
        return revision < self.seen_revision or (self.cluster not in (0, cluster))

    def heard(self, revision: int, cluster: int) -> None:
        """Remember the newest revision that etcd has shown, and which cluster it was."""
        self.seen_revision = max(self.seen_revision, revision)
        self.cluster = cluster

    def resync(self, found: Snapshot, restored: bool) -> list[Event]:
        """The events between what is known and a linearizable reading. `restored`: of another history, so nothing known is taken as unchanged."""
        events: list[Event] = []
        if restored:
            events.append(Restored(self.seen_revision, found.revision))
        present = {entry.key: entry for entry in found.entries}
        for key, (created, _) in self.known.items():
            entry = present.get(key)
            if entry is None or entry.create_revision != created:
                events.append(Deleted(key, found.revision, synthetic=True))
        for entry in sorted(found.entries, key=lambda item: item.mod_revision):
            known = self.known.get(entry.key)
            fresh = known is None and entry.mod_revision >= self.next_revision
            changed = known is not None and known != (entry.create_revision, entry.mod_revision)
            if restored or fresh or changed:
                events.append(Put(entry, synthetic=True))
        self.known = {entry.key: (entry.create_revision, entry.mod_revision) for entry in found.entries}
        self.next_revision = found.revision + 1
        self.seen_revision = found.revision
        self.cluster = 0
        return events
