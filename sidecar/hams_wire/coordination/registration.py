"""A key that is held for as long as its owner lives: a lease, its renewal, and the way back when it is lost
under a living owner.

The lease only says "alive"; nobody's safety depends on it. So a registration that etcd no longer knows
(revoked, expired while etcd or this process was away, key deleted by hand) is made again, unless `permit`
refuses: an instance that the topology lists as revoked must never come back under its id. The permit's
comparisons are part of the same transaction, so it cannot be outrun.

Invariant: every write of the key names the revision it replaces and the lease it is bound to; so a write of
unknown outcome that takes effect late can neither undo a newer one nor outlive its lease, and reading again
is enough to go on.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from hams_wire.coordination.port import (
    ABSENT,
    Compare,
    Deleted,
    KeyValue,
    Operation,
    Permit,
    Put,
    Snapshot,
    Watch,
    Write,
)
from hams_wire.errors import (
    Closed,
    CoordinationError,
    InvalidCall,
    LeaseGone,
    NoSpace,
    NotApplied,
    Unavailable,
    Unknown,
)

registration_ttl_min_s = 1
"""Shortest lease asked for; etcd grants its own minimum if that is longer (two seconds with its default
election timeout)."""

registration_attempts_max = 8
"""A registration tries this often in a row if other writers of the key, or of what its permit compares, are
faster."""


class Registrar(Protocol):
    """What a registration needs of the client it belongs to."""

    async def get(self, key: str) -> KeyValue | None: ...

    async def get_prefix(self, prefix: str) -> Snapshot: ...

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> int: ...

    def watch(self, prefix: str, after: Snapshot) -> Watch: ...

    async def revoke(self, lease: int) -> None: ...

    async def grant(self, ttl_s: int) -> int:
        """A fresh lease. An answer that gets lost leaves one behind that expires by itself."""
        ...

    async def keep(self, lease: int, ttl_s: int) -> None:
        """Renew the lease until etcd says that it is gone, then return; nothing else ends it but `Closed` and
        `AccessDenied`."""
        ...

    async def pause(self, attempt: int) -> None:
        """Let some time pass before the `attempt`-th next try (from 0)."""
        ...


class Registration:
    """A held key.

    `held` and `lost` are each other's inverse: etcd has the key under this owner's lease, or has said that it
    has not. While etcd cannot be reached neither changes. `times_lost` counts, so that a short loss is not
    overlooked. `ended` is set when nothing will be done any more: revoked by the owner, refused by the permit
    (`error` None), taken by another owner or closed (`error` says so).
    """

    def __init__(
        self, registrar: Registrar, key: str, value: bytes, ttl_s: int, permit: Permit | None
    ) -> None:
        self.key = key
        self.value = value
        self.lease = 0
        self.held = asyncio.Event()
        self.lost = asyncio.Event()
        self.ended = asyncio.Event()
        self.times_lost = 0
        self.error: CoordinationError | None = None
        self._registrar = registrar
        self._ttl_s = ttl_s
        self._permit = permit
        self._entry: KeyValue | None = None
        self._writing = asyncio.Lock()
        self._driver: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Register for the first time, then keep it up in the background. Raises what `compare_and_swap`
        raises; may be called again then."""
        async with self._writing:
            await self._claim(None)
        self.held.set()
        self._driver = asyncio.create_task(self._drive(), name=f"registration {self.key}")

    async def update(self, value: bytes) -> None:
        """Change the value; while the registration is lost, the new value goes along with its return. Raises
        as `compare_and_swap`; repeatable."""
        async with self._writing:
            self.value = value
            if not self.held.is_set() or self.ended.is_set():
                return
            for _ in range(registration_attempts_max):
                try:
                    if await self._write(()):
                        return
                except LeaseGone:
                    return  # the driver learns it too, and comes back with the new value
                if self._entry is None or self._entry.lease != self.lease:
                    return  # the same: the key is gone
        raise Unavailable(f"{self.key}: {registration_attempts_max} attempts to update it were overtaken")

    async def revoke(self) -> None:
        """Give the key up: it disappears at once. Raises as `Coordination.revoke`; may be repeated."""
        await self.stop()
        if self.lease:
            await self._registrar.revoke(self.lease)
        self.lease = 0

    async def stop(self, error: CoordinationError | None = None) -> None:
        """Stop renewing without giving up: the lease expires in its time."""
        driver, self._driver = self._driver, None
        self._end(error)
        if driver is not None:
            driver.cancel()
            await asyncio.gather(driver, return_exceptions=True)

    # ---- the driver ----

    async def _drive(self) -> None:
        try:
            while True:
                await self._hold()
                self.times_lost += 1
                self._entry = None
                self.held.clear()
                self.lost.set()
                if not await self._return():
                    self._end(None)
                    return
                self.lost.clear()
                self.held.set()
        except CoordinationError as error:
            self._end(error)
        finally:
            # Whatever else ended it, it is not held up any more, and whoever relies on it has to hear that.
            self._end(Closed(f"what keeps {self.key} has failed"))

    async def _hold(self) -> None:
        """Return when etcd no longer has the key under this lease."""
        keeping = asyncio.create_task(self._registrar.keep(self.lease, self._ttl_s))
        watching = asyncio.create_task(self._gone())
        try:
            done, _ = await asyncio.wait((keeping, watching), return_when=asyncio.FIRST_COMPLETED)
        finally:
            keeping.cancel()
            watching.cancel()
            await asyncio.gather(keeping, watching, return_exceptions=True)
        for task in done:
            task.result()

    async def _gone(self) -> None:
        """Return when the key is seen to be gone; raises `InvalidCall` if another owner has written it."""
        present = await self._read()
        if not any(self._is_ours(entry) for entry in present.entries):
            return
        async with self._registrar.watch(self.key, present) as watch:
            async for event in watch:
                if isinstance(event, Deleted) and event.key == self.key:
                    return
                if isinstance(event, Put):
                    self._is_ours(event.entry)

    async def _read(self) -> Snapshot:
        attempt = 0
        while True:
            try:
                return await self._registrar.get_prefix(self.key)
            except CoordinationError as error:
                if not error.retryable:
                    raise
            await self._registrar.pause(attempt)
            attempt += 1

    def _is_ours(self, entry: KeyValue) -> bool:
        """Whether this is the key as its owner wrote it, and not another that merely begins like it."""
        if entry.key == self.key and entry.lease != self.lease:
            raise InvalidCall(
                f"{self.key} was written by another owner, under lease {entry.lease:x}; an instance's id is "
                "never reused"
            )
        return entry.key == self.key

    async def _return(self) -> bool:
        """Register again; False if that is not permitted."""
        attempt = 0
        while True:
            try:
                async with self._writing:
                    return await self._claim(self._permit)
            except CoordinationError as error:
                if not (error.retryable or isinstance(error, Unknown)):
                    raise
            await self._registrar.pause(attempt)
            attempt += 1

    async def _claim(self, permit: Permit | None) -> bool:
        for _ in range(registration_attempts_max):
            guard = await permit() if permit is not None else ()
            if guard is None:
                return False
            if not self.lease:
                self.lease = await self._registrar.grant(self._ttl_s)
            try:
                if await self._write(guard):
                    return True
            except LeaseGone:
                self.lease = 0
        raise Unavailable(
            f"{self.key}: {registration_attempts_max} attempts to register it were overtaken by other writers"
        )

    async def _write(self, guard: Sequence[Compare]) -> bool:
        """One write of the key, and the reading that tells how it went. False: something else has changed,
        nothing was written."""
        value = self.value
        expected = self._entry.mod_revision if self._entry is not None else ABSENT
        try:
            revision = await self._registrar.transact(
                (Compare(self.key, expected), *guard), (Write(self.key, value, self.lease),)
            )
        except NotApplied as refused:
            self._entry = refused.current[0]
        except Unknown as unknown:
            try:
                self._entry = await self._registrar.get(self.key)
            except CoordinationError:
                # not known either: the next attempt compares with what was there before
                raise unknown from None
            if isinstance(unknown, NoSpace) and not self._holds(value):
                raise
        else:
            created = self._entry.create_revision if self._entry is not None else revision
            self._entry = KeyValue(self.key, value, revision, created, self.lease)
        return self._holds(value)

    def _holds(self, value: bytes) -> bool:
        return self._entry is not None and self._entry.lease == self.lease and self._entry.value == value

    def _end(self, error: CoordinationError | None) -> None:
        if not self.ended.is_set():
            self.error = error
            self.held.clear()
            self.ended.set()


class Registrations:
    """What one client has registered. What has ended is forgotten with the next one."""

    def __init__(self, registrar: Registrar) -> None:
        self._registrar = registrar
        self._all: list[Registration] = []

    async def begin(self, key: str, value: bytes, ttl_s: int, permit: Permit | None) -> Registration:
        """See `Coordination.register`."""
        if ttl_s < registration_ttl_min_s:
            raise InvalidCall(f"ttl_s is {ttl_s}, expected at least {registration_ttl_min_s}")
        registration = Registration(self._registrar, key, value, ttl_s, permit)
        await registration.begin()
        self._all = [item for item in self._all if not item.ended.is_set()]
        self._all.append(registration)
        return registration

    async def close(self) -> None:
        """The client was closed: leases run out by themselves."""
        registrations, self._all = self._all, []
        for registration in registrations:
            await registration.stop(Closed("the client was closed"))
