"""A double of etcd within one process: the semantics of `Coordination`, no sockets, no timers, and faults on
request.

`MemoryStore` is the cluster, `MemoryCoordination` one client of it. Deterministic: nothing here reads a clock
or draws a random number, and leases end only when told to (`MemoryStore.expire`). A fault is asked for before
the call that it hits:

    store = MemoryStore()
    client = store.client()
    client.lose_reply()      # the next write is applied, and its outcome is unknown
    client.lose_request()    # the next write is not applied, and its outcome is unknown
    client.fail(NoSpace("")) # the next call fails like this; nothing is applied
    client.partition()       # nothing passes until client.heal()
    store.expire(lease), store.compact(), store.backup() and store.restore(backup)
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Self

from hams_protocol.frozen import frozen
from hams_wire.coordination.follower import WatchFollower, below
from hams_wire.coordination.port import (
    ABSENT,
    Compare,
    Delete,
    Deleted,
    Event,
    KeyValue,
    Operation,
    Permit,
    Put,
    Snapshot,
    Watch,
    Write,
)
from hams_wire.coordination.registration import Registration, Registrations
from hams_wire.errors import (
    Closed,
    CoordinationError,
    InvalidCall,
    LeaseGone,
    Lost,
    NoSpace,
    NotApplied,
    Unknown,
)
from hams_wire.limits import etcd_transaction_items_max

etcd_request_bytes_max = 1_572_864
"""Largest write that etcd takes: its own default."""


@frozen
class StoreBackup:
    """What `MemoryStore.restore` brings back."""

    revision: int
    entries: tuple[KeyValue, ...]


class MemoryStore:
    """The cluster: keys, revisions, leases, and the changes not compacted yet. Every operation is atomic."""

    def __init__(self) -> None:
        self.revision = 1
        self.cluster = 1
        self.full = False
        """Over quota: transactions, deletes included, and fresh leases are refused with `NoSpace`; reads and
        renewals go on."""
        self._entries: dict[str, KeyValue] = {}
        self._changes: list[tuple[int, Put | Deleted]] = []
        self._compacted = 0
        self._leases: dict[int, set[str]] = {}
        self._lease_last = 0
        self._listeners: set[Callable[[], None]] = set()

    def client(self) -> "MemoryCoordination":
        """A client of its own, with faults of its own."""
        return MemoryCoordination(self)

    # ---- what a test does to the cluster ----

    def expire(self, lease: int) -> None:
        """The lease ends, as if its time had run out; its keys go."""
        keys = self._leases.pop(lease, set())
        self._commit([Delete(key) for key in sorted(keys)])

    def compact(self) -> None:
        """Forget every change so far: watches that have not seen them must read again."""
        self._compacted = self.revision
        self._changes.clear()
        self._notify()

    def backup(self) -> StoreBackup:
        """The state as of now."""
        return StoreBackup(self.revision, self._sorted(""))

    def restore(self, backup: StoreBackup) -> None:
        """Go back to `backup`, as a person would after a disaster: what came later never was. Leases are
        gone, as their time has run out."""
        self.revision = backup.revision
        self.cluster += 1
        self._entries = {entry.key: entry for entry in backup.entries}
        self._changes.clear()
        self._compacted = backup.revision
        self._leases = {}
        self._commit([Delete(entry.key) for entry in backup.entries if entry.lease])
        self._notify()

    def leases(self) -> tuple[int, ...]:
        """The leases that exist."""
        return tuple(sorted(self._leases))

    # ---- what a client does ----

    def read(self, key: str) -> KeyValue | None:
        """One key."""
        return self._entries.get(key)

    def snapshot(self, prefix: str) -> Snapshot:
        """All keys below a prefix."""
        return Snapshot(self.revision, self._sorted(prefix))

    def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> int:
        """All or nothing; see `Coordination.transact`."""
        self._validate(compares, operations)
        current = [self._entries.get(item.key) for item in compares]
        revisions = [entry.mod_revision if entry is not None else ABSENT for entry in current]
        for item, revision in zip(compares, revisions, strict=True):
            if revision != item.mod_revision:
                raise NotApplied(
                    f"{item.key} is at revision {revision}, expected {item.mod_revision}", current
                )
        for operation in operations:
            if isinstance(operation, Write) and operation.lease and operation.lease not in self._leases:
                raise LeaseGone(f"lease {operation.lease:x} of {operation.key} does not exist")
        self._commit(operations)
        return self.revision

    def grant(self) -> int:
        """A fresh lease."""
        self._lease_last += 1
        self._leases[self._lease_last] = set()
        return self._lease_last

    def has(self, lease: int) -> bool:
        """Whether the lease exists."""
        return lease in self._leases

    def since(self, revision: int) -> list[tuple[int, Put | Deleted]] | None:
        """The changes from `revision` on, or None if some of them are compacted."""
        if revision <= self._compacted:
            return None
        return [item for item in self._changes if item[0] >= revision]

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever something changed."""
        self._listeners.add(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Call the listener no more."""
        self._listeners.discard(listener)

    # ---- inside ----

    def _validate(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> None:
        keys = [operation.key for operation in operations]
        if max(len(compares), len(operations)) > etcd_transaction_items_max:
            raise InvalidCall(
                f"a transaction holds at most {etcd_transaction_items_max} comparisons and as many operations"
            )
        if "" in keys or any(not item.key for item in compares):
            raise InvalidCall("a key must not be empty")
        if len(set(keys)) != len(keys):
            raise InvalidCall("a transaction names no key twice")
        if (
            sum(len(item.key) + len(item.value) for item in operations if isinstance(item, Write))
            > etcd_request_bytes_max
        ):
            raise InvalidCall(f"a write holds at most {etcd_request_bytes_max} bytes")
        if self.full:
            raise NoSpace("the store is over its quota")

    def _commit(self, operations: Sequence[Operation]) -> None:
        revision = self.revision + 1
        changes: list[Put | Deleted] = []
        for operation in operations:
            before = self._entries.get(operation.key)
            if isinstance(operation, Delete):
                if before is not None:
                    del self._entries[operation.key]
                    self._unbind(before)
                    changes.append(Deleted(operation.key, revision))
                continue
            if before is not None:
                self._unbind(before)
            created = before.create_revision if before is not None else revision
            entry = KeyValue(operation.key, bytes(operation.value), revision, created, operation.lease)
            self._entries[operation.key] = entry
            if operation.lease:
                self._leases[operation.lease].add(operation.key)
            changes.append(Put(entry))
        if changes:
            self.revision = revision
            self._changes += [(revision, change) for change in changes]
        self._notify()

    def _unbind(self, entry: KeyValue) -> None:
        if entry.lease in self._leases:
            self._leases[entry.lease].discard(entry.key)

    def _sorted(self, prefix: str) -> tuple[KeyValue, ...]:
        return tuple(self._entries[key] for key in sorted(self._entries) if key.startswith(prefix))

    def _notify(self) -> None:
        for listener in tuple(self._listeners):
            listener()


class MemoryCoordination:
    """A client of a `MemoryStore`; implements `Coordination`."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self._partitioned = False
        self._closed = False
        self._faults: deque[CoordinationError] = deque()
        self._lost_requests = 0
        self._lost_replies = 0
        self._watches: set[MemoryWatch] = set()
        self._registrations = Registrations(self)
        self._wakers: set[asyncio.Event] = set()

    # ---- faults ----

    def lose_request(self, count: int = 1) -> None:
        """The next `count` writes never arrive: `Unknown`, not applied."""
        self._lost_requests += count

    def lose_reply(self, count: int = 1) -> None:
        """The answers to the next `count` writes get lost: `Unknown`, applied."""
        self._lost_replies += count

    def fail(self, *errors: CoordinationError) -> None:
        """The next calls fail like this, one error each; nothing is applied."""
        self._faults.extend(errors)

    def partition(self) -> None:
        """Cut this client off: calls raise `Lost`, watches stand still, and leases live on until
        `MemoryStore.expire`."""
        self._partitioned = True
        self.wake()

    def heal(self) -> None:
        """End the partition; watches catch up."""
        self._partitioned = False
        self.wake()

    # ---- Coordination ----

    async def get(self, key: str) -> KeyValue | None:
        """See `Coordination.get`."""
        await self._reach()
        return self.store.read(key)

    async def get_prefix(self, prefix: str) -> Snapshot:
        """See `Coordination.get_prefix`."""
        await self._reach()
        return self.store.snapshot(prefix)

    async def is_full(self) -> bool:
        """See `Coordination.is_full`."""
        await self._reach()
        return self.store.full

    async def compare_and_swap(self, key: str, expected: int, value: bytes, lease: int = 0) -> int:
        """See `Coordination.compare_and_swap`."""
        return await self.transact((Compare(key, expected),), (Write(key, value, lease),))

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> int:
        """See `Coordination.transact`."""
        await self._reach()
        if self._lost_requests:
            self._lost_requests -= 1
            raise Unknown("the request was lost on its way")
        lost = self._lost_replies > 0
        self._lost_replies -= lost
        try:
            revision = self.store.transact(compares, operations)
        except CoordinationError as error:
            if lost:
                raise Unknown("the answer was lost on its way") from error
            raise
        if lost:
            raise Unknown("the answer was lost on its way")
        return revision

    def watch(self, prefix: str, after: Snapshot) -> "MemoryWatch":
        """See `Coordination.watch`."""
        watch = MemoryWatch(self, prefix, after)
        self._watches.add(watch)
        return watch

    async def register(
        self, key: str, value: bytes, ttl_s: int, permit: Permit | None = None
    ) -> Registration:
        """See `Coordination.register`."""
        return await self._registrations.begin(key, value, ttl_s, permit)

    async def revoke(self, lease: int) -> None:
        """See `Coordination.revoke`."""
        await self._reach()
        self.store.expire(lease)

    async def close(self) -> None:
        """See `Coordination.close`."""
        self._closed = True
        await self._registrations.close()
        for watch in tuple(self._watches):
            await watch.close()
        self.wake()

    # ---- what registrations and watches need ----

    async def grant(self, ttl_s: int) -> int:
        """See `Registrar.grant`."""
        await self._reach()
        if self.store.full:
            raise NoSpace("the store is over its quota")
        return self.store.grant()

    async def keep(self, lease: int, ttl_s: int) -> None:
        """See `Registrar.keep`."""
        await self.until(lambda: not self._partitioned and not self.store.has(lease))

    async def pause(self, attempt: int) -> None:
        """Passes when this client is connected: the double knows no time."""
        await asyncio.sleep(0)
        await self.until(lambda: not self._partitioned and not self.store.full)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once `condition` holds; raises `Closed` when the client is closed."""
        waker = asyncio.Event()
        self._wakers.add(waker)
        self.store.listen(waker.set)
        try:
            while not condition():
                if self._closed:
                    raise Closed("the client was closed")
                waker.clear()
                await waker.wait()
        finally:
            self._wakers.discard(waker)
            self.store.unlisten(waker.set)

    @property
    def connected(self) -> bool:
        """Whether this client reaches the store."""
        return not self._partitioned and not self._closed

    def wake(self) -> None:
        """Let everyone who waits look again."""
        for waker in tuple(self._wakers):
            waker.set()

    def forget(self, watch: "MemoryWatch") -> None:
        """A watch was closed."""
        self._watches.discard(watch)
        self.wake()

    async def _reach(self) -> None:
        await asyncio.sleep(0)  # every call lets others run, as a real one does
        if self._closed:
            raise Closed("the client was closed")
        if self._partitioned:
            raise Lost("cut off from the store")
        if self._faults:
            raise self._faults.popleft()


class MemoryWatch(Watch):
    """A watch of a `MemoryStore`; implements `Watch`. It pulls: what is not consumed stays in the store."""

    def __init__(self, client: MemoryCoordination, prefix: str, after: Snapshot) -> None:
        self._client = client
        self._prefix = prefix
        self._follower = WatchFollower(below(prefix, after))
        self._cluster = client.store.cluster
        self._ready: deque[Event] = deque()
        self._closed = False

    @property
    def live(self) -> bool:
        """See `Watch.live`."""
        return self._client.connected and not self._closed

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        await asyncio.sleep(0)
        while not self._ready:
            await self._client.until(lambda: self._closed or self._pending())
            if self._closed:
                raise Closed("the watch was closed")
            self._pull()
        return self._ready.popleft()

    async def close(self) -> None:
        """See `Watch.close`."""
        self._closed = True
        self._client.forget(self)

    def _pending(self) -> bool:
        store = self._client.store
        return self._client.connected and (
            store.cluster != self._cluster or store.revision >= self._follower.next_revision
        )

    def _pull(self) -> None:
        store = self._client.store
        restored = store.cluster != self._cluster
        changes = None if restored else store.since(self._follower.next_revision)
        if changes is None:
            self._cluster = store.cluster
            self._ready.extend(self._follower.resync(store.snapshot(self._prefix), restored))
            return
        below = [change for _, change in changes if _key(change).startswith(self._prefix)]
        self._ready.extend(self._follower.apply(below))
        self._follower.next_revision = max(self._follower.next_revision, store.revision + 1)


def _key(change: Put | Deleted) -> str:
    return change.entry.key if isinstance(change, Put) else change.key
