"""The port through which the house talks to etcd: linearizable reads, compare-and-swap, watches, leases.

What a caller may rely on, whichever implementation stands behind it:

- every failure is one of the types in `hams_wire.errors`; a write whose outcome is unknown is `Unknown` and
  is never sent again here;
- reads are linearizable: they show every write that was known to be applied before they began;
- a watch misses no transition, whatever happens to connections, members, leaders and old revisions (`Watch`);
- a registration comes back by itself if its lease was revoked or expired while its owner lives, as far as its
  owner permits (`Registration`).

Nothing here repeats, orders or decides anything for the protocol: safety rests on epochs, never on a lease or
a clock.
"""

from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from hams_protocol.frozen import frozen

if TYPE_CHECKING:
    from hams_wire.coordination.registration import Registration

ABSENT = 0
"""The revision to expect of a key that must not exist."""


@frozen
class KeyValue:
    """One key as etcd holds it. `mod_revision`: of its last change; `create_revision`: of the write that made
    it; `lease`: 0 if none."""

    key: str
    value: bytes
    mod_revision: int
    create_revision: int
    lease: int = 0


@frozen
class Snapshot:
    """All keys below a prefix, sorted by key, as of `revision`."""

    revision: int
    entries: tuple[KeyValue, ...] = ()


@frozen
class Compare:
    """Holds if the key's last change was at `mod_revision`; `ABSENT`: if it does not exist."""

    key: str
    mod_revision: int


@frozen
class Write:
    """Set a key; `lease`: it disappears with that lease (0: with none)."""

    key: str
    value: bytes
    lease: int = 0


@frozen
class Delete:
    """Remove a key; removing an absent one changes nothing."""

    key: str


Operation = Write | Delete


@frozen
class Put:
    """A key was written. `synthetic`: found by reading again, as etcd no longer knew the changes in between;
    writes may have been skipped."""

    entry: KeyValue
    synthetic: bool = False


@frozen
class Deleted:
    """A key was removed, by a delete or with its lease. Never skipped: a key removed and written again always
    yields `Deleted`, then `Put`."""

    key: str
    revision: int
    synthetic: bool = False


@frozen
class Restored:
    """Etcd's history was replaced by an older one (restored from a backup): a reason for an alarm. What it
    holds now follows as synthetic events."""

    seen_revision: int
    found_revision: int


Event = Put | Deleted | Restored

Permit = Callable[[], Awaitable[Sequence[Compare] | None]]
"""Asked before a lost registration returns: the comparisons under which it may, or None if it must not."""


class Watch(Protocol):
    """The changes below a prefix, in order, without end. Iterate it; close it.

    It survives the loss of members, leader changes and compaction. Where etcd has forgotten the changes in
    between, they are made up from a fresh reading, marked `synthetic`. Iteration raises `AccessDenied` or
    `Closed` and nothing else.
    """

    @property
    def live(self) -> bool:
        """Whether etcd is being heard at the moment."""
        ...

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> Event: ...

    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Coordination(Protocol):
    """One client of etcd."""

    async def get(self, key: str) -> KeyValue | None:
        """The key now, or None if it does not exist. Raises `Lost`, `Unavailable`, `AuthExpired`,
        `AccessDenied`, `Closed`."""
        ...

    async def get_prefix(self, prefix: str) -> Snapshot:
        """All keys that begin with `prefix`, at one revision. Raises as `get`."""
        ...

    async def compare_and_swap(self, key: str, expected: int, value: bytes, lease: int = 0) -> int:
        """Write `key` if its last change was at revision `expected` (`ABSENT`: if it does not exist); returns
        the new revision.

        Raises `NotApplied` with what is there instead, `Unknown`, `Lost`, `Unavailable`, `LeaseGone`,
        `NoSpace`, `AuthExpired`, `AccessDenied`, `InvalidCall`, `Closed`. After all but `Unknown`, and
        `NoSpace`, which is one, nothing has changed.
        """
        ...

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> int:
        """Apply all operations if all comparisons hold, else none; returns the revision. No key twice. Raises
        as `compare_and_swap`."""
        ...

    def watch(self, prefix: str, after: Snapshot) -> Watch:
        """All changes below `prefix` since `after`, which came from `get_prefix` of the same prefix."""
        ...

    async def register(
        self, key: str, value: bytes, ttl_s: int, permit: Permit | None = None
    ) -> "Registration":
        """Hold `key` for as long as this process lives: bound to a lease of `ttl_s` seconds that is renewed.
        Raises as `compare_and_swap`."""
        ...

    async def is_full(self) -> bool:
        """Whether etcd refuses writes, as it has reached its quota, until a person has made room. Raises as
        `get`."""
        ...

    async def revoke(self, lease: int) -> None:
        """End a lease; its keys go at once. Done as well if there is no such lease. Raises as `get`: it may
        be repeated."""
        ...

    async def close(self) -> None:
        """Stop all watches and renewals and hang up. Leases are left to expire; a registration that should go
        at once is revoked first."""
        ...
