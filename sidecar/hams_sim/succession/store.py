"""What etcd holds of a change of shape, as the shells see it: keys of several graphs, compared and written in
one transaction, and watched.

A watch is late, and as late as its owner; it leaves nothing out and never goes back. Requests and answers are
lost while a fault says so, and then nobody knows what became of a write.
"""

from collections.abc import Callable, Sequence
from random import Random

from hams_protocol.succession.events import Swap
from hams_sim import limits
from hams_sim.clock import Clock

Name = tuple[str, str]
"""A graph's uid, and a key below its prefix."""

OnEvent = Callable[[str, str, object, int], None]
"""Uid, key, value (None: it was deleted), revision."""


class Actor:
    """A process as etcd and its visitors see it. What is to be done in it waits while it is paused, and never
    happens once it is dead."""

    def __init__(self) -> None:
        self.alive = True
        self._backlog: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    @property
    def is_paused(self) -> bool:
        """Whether it stands still."""
        return False

    @property
    def reaches_etcd(self) -> bool:
        """Whether etcd answers it now."""
        return self.alive and not self.is_paused

    @property
    def watch_slow(self) -> float:
        """How many times later than usual its watch is."""
        return 1.0

    def do(self, call: Callable[..., None], *args: object) -> None:
        """In this process, as soon as it runs."""
        if self.alive and (self.is_paused or self._backlog):
            self._backlog.append((call, args))
        elif self.alive:
            call(*args)

    def resumed(self) -> None:
        """Go on: what has piled up comes first."""
        while self._backlog and self.alive and not self.is_paused:
            call, args = self._backlog.pop(0)
            call(*args)


class Watcher:
    """`uids`: the graphs that are watched. `is_read`: their keys have been read once."""

    def __init__(self, owner: Actor, uids: Sequence[str], on_event: OnEvent) -> None:
        self.owner = owner
        self.uids = frozenset(uids)
        self.on_event = on_event
        self.position = -1
        self.is_scheduled = False

    @property
    def is_read(self) -> bool:
        """Whether it has begun."""
        return self.position >= 0


class SimStore:
    """The keys. `away`: so many faults keep etcd from everybody. `on_commit` is called with each write, as
    it happens."""

    def __init__(self, clock: Clock, rng: Random) -> None:
        self.away = 0
        self.lose_request = 0.0
        self.lose_reply = 0.0
        self.on_commit: Callable[[str, str, object], None] = lambda uid, name, value: None
        self._clock = clock
        self._rng = rng
        self._revision = 0
        self._values: dict[Name, tuple[object, int]] = {}
        self._log: list[tuple[str, str, object, int]] = []
        self._watchers: list[Watcher] = []

    # -- keys ------------------------------------------------------------------------------------------------

    def value(self, uid: str, name: str) -> object:
        """What a key holds; None: nothing."""
        held = self._values.get((uid, name))
        return None if held is None else held[0]

    def revision(self, uid: str, name: str) -> int:
        """When it was written last; 0: it is not there."""
        held = self._values.get((uid, name))
        return 0 if held is None else held[1]

    def put(self, uid: str, name: str, value: object) -> None:
        """A write has come through; None deletes."""
        if value is None and (uid, name) not in self._values:
            return
        self._revision += 1
        if value is None:
            del self._values[uid, name]
        else:
            self._values[uid, name] = value, self._revision
        self._log.append((uid, name, value, self._revision))
        self.on_commit(uid, name, value)
        for watcher in self._watchers:
            if uid in watcher.uids:
                self._schedule(watcher)

    def transact(
        self,
        actor: Actor,
        compares: dict[Name, int],
        writes: Sequence[tuple[str, str, object]],
        done: Callable[[Swap], None],
    ) -> None:
        """A process sends a transaction: writes, if each of these keys has the revision that is named."""
        if not actor.reaches_etcd or self.away or self._rng.random() < self.lose_request:
            self._clock.after(limits.etcd_timeout_s, actor.do, done, Swap.UNKNOWN)
            return
        self._clock.after(self._delay(), self._apply, actor, compares, writes, done)

    def _apply(
        self,
        actor: Actor,
        compares: dict[Name, int],
        writes: Sequence[tuple[str, str, object]],
        done: Callable[[Swap], None],
    ) -> None:
        if self.away:
            self._clock.after(limits.etcd_timeout_s, actor.do, done, Swap.UNKNOWN)
            return
        won = all(self.revision(*name) == revision for name, revision in compares.items())
        for uid, name, value in writes if won else ():
            self.put(uid, name, value)
        if not actor.reaches_etcd or self._rng.random() < self.lose_reply:
            self._clock.after(limits.etcd_timeout_s, actor.do, done, Swap.UNKNOWN)
        else:
            self._clock.after(self._delay(), actor.do, done, Swap.DONE if won else Swap.LOST)

    # -- watches ---------------------------------------------------------------------------------------------

    def watch(self, owner: Actor, uids: Sequence[str], on_event: OnEvent) -> Watcher:
        """Read these graphs' keys, and follow them from then on."""
        watcher = Watcher(owner, uids, on_event)
        self._watchers.append(watcher)
        self._schedule(watcher)
        return watcher

    def unwatch(self, watcher: Watcher) -> None:
        """Tell this watcher nothing more."""
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    def _delay(self) -> float:
        return 0.0004 + 0.001 * self._rng.random()

    def _schedule(self, watcher: Watcher) -> None:
        if not watcher.is_scheduled:
            watcher.is_scheduled = True
            self._clock.after(self._delay() * watcher.owner.watch_slow, self._pump, watcher)

    def _pump(self, watcher: Watcher) -> None:
        watcher.is_scheduled = False
        owner = watcher.owner
        if not owner.alive:
            self.unwatch(watcher)
        elif watcher in self._watchers and (self.away or not owner.reaches_etcd):
            watcher.is_scheduled = True
            self._clock.after(limits.etcd_timeout_s * self._rng.random(), self._pump, watcher)
        elif watcher in self._watchers:
            self._deliver(watcher)

    def _deliver(self, watcher: Watcher) -> None:
        first = watcher.position < 0
        held = [(uid, name, value, at) for (uid, name), (value, at) in sorted_items(self._values)]
        events = held if first else self._log[watcher.position :]
        watcher.position = len(self._log)
        for uid, name, value, revision in events:
            if uid in watcher.uids:
                watcher.owner.do(watcher.on_event, uid, name, value, revision)


def sorted_items(values: dict[Name, tuple[object, int]]) -> list[tuple[Name, tuple[object, int]]]:
    """As etcd gives a range: by key."""
    return sorted(values.items(), key=lambda item: item[0])
