"""What etcd holds of all graphs, read once and then followed by one watch: topologies, registrations,
compiled graphs.

Nothing here is needed for a failover. While etcd is away, what was last known stands, and says so.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from hams_operator import limits
from hams_protocol.ids import InstanceId
from hams_protocol.succession.decision import Guard
from hams_protocol.succession.records import Follows, Phase, Quiet, Succession, TakenOver
from hams_protocol.topology import Topology, allow_restart
from hams_wire import records, succession
from hams_wire.coordination.port import (
    ABSENT,
    Compare,
    Coordination,
    Delete,
    Deleted,
    KeyValue,
    Put,
    Restored,
    Write,
)
from hams_wire.errors import CoordinationError, NotApplied, Unknown

etcd_polls_vain = 2
"""etcd is away after so many looks in a row that find its watch silent and get no answer."""

etcd_full_poll_s = 30.0
"""Between two questions whether etcd has room: each goes through its log."""

timeliness_news_s = 30.0
"""How a graph's instances serve by deadlines is a reason to look at the graph this often: they tell it every
few seconds."""

etcd_clear_keys = 100
"""Keys removed in one transaction."""


log = logging.getLogger("hams.controller")

ROOT = "/hams/v1/"


@dataclass(slots=True)
class Known:
    """What etcd holds of one graph. `registered`: whose each instance is; `failovers`, `versions`: what was
    told of each set, for people; `timeliness`: what each instance told of how it serves by deadlines;
    `succession` and what follows it: of a change of its shape, or of its end (`hams_wire.succession`)."""

    topology: Topology = field(default_factory=Topology)
    topology_revision: int = ABSENT
    registered: dict[InstanceId, str] = field(default_factory=dict)
    spec: bytes = b""
    spec_revision: int = ABSENT
    failovers: dict[str, records.FailoverRecord] = field(default_factory=dict)
    versions: dict[str, records.VersionRecord] = field(default_factory=dict)
    timeliness: dict[InstanceId, records.TimelinessRecord] = field(default_factory=dict)
    succession: Succession | None = None
    succession_revision: int = ABSENT
    follows: Follows | None = None
    follows_revision: int = ABSENT
    quiet: dict[InstanceId, Quiet] = field(default_factory=dict)
    waiting: dict[InstanceId, str] = field(default_factory=dict)
    taken: dict[InstanceId, TakenOver] = field(default_factory=dict)
    ended: bool = False

    @property
    def failed_policies(self) -> dict[InstanceId, str]:
        """Why scheduling policies were replaced, by instance."""
        return {name: record.failed for name, record in self.timeliness.items() if record.failed}

    @property
    def has_run(self) -> bool:
        """Whether managers have given anybody a role."""
        return self.topology.generation > 0

    def copy(self) -> "Known":
        """A copy that later changes do not reach."""
        return replace(
            self,
            registered=dict(self.registered),
            failovers=dict(self.failovers),
            versions=dict(self.versions),
            timeliness=dict(self.timeliness),
            quiet=dict(self.quiet),
            waiting=dict(self.waiting),
            taken=dict(self.taken),
        )


class EtcdCache:
    """`changed(graph_uid)` is called after each change; with "" if it may concern every graph."""

    def __init__(self, coordination: Coordination, changed: Callable[[str], None]) -> None:
        self.read = asyncio.Event()
        self.away = "etcd has not been read yet"
        self.full = False
        self._coordination = coordination
        self._changed = changed
        self._known: dict[str, Known] = {}
        self._in_a_while: set[str] = set()
        """Graphs that are looked at soon, for what their instances say of deadlines."""

    def of(self, graph_uid: str) -> Known:
        """What is known of a graph."""
        return self._known.get(graph_uid) or Known()

    def uids(self, prefix: str) -> list[str]:
        """All graphs whose uid begins so: the incarnations of one resource."""
        return [uid for uid in self._known if uid.startswith(prefix)]

    async def run(self) -> None:
        """Follow etcd until cancelled."""
        while True:
            try:
                snapshot = await self._coordination.get_prefix(ROOT)
            except CoordinationError as error:
                self._set_away(str(error) or type(error).__name__)
                await asyncio.sleep(limits.etcd_poll_s)
                continue
            before = set(self._known)
            self._known = {}
            for entry in snapshot.entries:
                self._put(entry.key, entry.value, entry.mod_revision)
            self._set_away("")
            self.read.set()
            for uid in before | set(self._known):
                self._changed(uid)
            try:
                await self._follow(snapshot)
            except CoordinationError as error:
                self._set_away(str(error) or type(error).__name__)
                await asyncio.sleep(limits.etcd_poll_s)

    async def _follow(self, snapshot: object) -> None:
        async with self._coordination.watch(ROOT, snapshot) as watch:  # type: ignore[arg-type]
            looking = asyncio.ensure_future(self._check_liveness(watch))
            try:
                async for event in watch:
                    if isinstance(event, Put):
                        if not self._knows(event.entry):
                            self._note(event.entry)
                    elif isinstance(event, Deleted):
                        self._changed(self._drop(event.key))
                    elif isinstance(event, Restored):
                        log.error(
                            "etcd's history went back from revision %d to %d",
                            event.seen_revision,
                            event.found_revision,
                        )
                        self._changed("")
            finally:
                looking.cancel()

    async def _check_liveness(self, watch: object) -> None:
        """A watch outlives etcd's absence without a word; status must not. That a watch is not heard proves
        nothing: this process may be late itself, when it begins with a thousand graphs, and to tell them all
        would make it later. So etcd is asked, and one question in vain is not enough."""
        loop, vain, next_s = asyncio.get_running_loop(), 0, 0.0
        while True:
            await asyncio.sleep(limits.etcd_poll_s)
            why = "" if getattr(watch, "live", True) else await self._why_away()
            vain = vain + 1 if why else 0
            self._set_away(why if vain >= etcd_polls_vain else "")
            if not why and loop.time() >= next_s:
                next_s = loop.time() + etcd_full_poll_s
                await self._ask_full()

    async def _ask_full(self) -> None:
        """A full etcd answers all questions, and refuses what a failover has to write."""
        try:
            full = await self._coordination.is_full()
        except CoordinationError:
            return  # nothing is known
        if full != self.full:
            self.full = full
            if full:
                log.error("etcd is full: no graph can fail over (docs/troubleshooting.md)")
            self._changed("")

    async def _why_away(self) -> str:
        try:
            await self._coordination.get(ROOT)
        except CoordinationError as error:
            return str(error) or type(error).__name__
        return ""

    def _set_away(self, why: str) -> None:
        if bool(why) != bool(self.away):
            self.away = why
            self._changed("")
        self.away = why

    def _knows(self, entry: KeyValue) -> bool:
        """Whether this is the graph that was written from here: no news, and no second look at a graph that
        has just begun."""
        uid, _, name = entry.key.removeprefix(ROOT).partition("/")
        known = self._known.get(uid)
        return name == "spec" and known is not None and known.spec_revision == entry.mod_revision

    def _note(self, entry: KeyValue) -> None:
        """A key was written: a reason to look at its graph, now or in a while."""
        uid, _, name = entry.key.removeprefix(ROOT).partition("/")
        failed = self.of(uid).failed_policies
        self._put(entry.key, entry.value, entry.mod_revision)
        often = name.startswith((records.TIMELINESS, records.PROFILES))
        if not often or self.of(uid).failed_policies != failed:
            self._changed(uid)
        elif name.startswith(records.TIMELINESS) and uid not in self._in_a_while:
            self._in_a_while.add(uid)
            asyncio.get_running_loop().call_later(timeliness_news_s, self._now, uid)

    def _now(self, uid: str) -> None:
        self._in_a_while.discard(uid)
        self._changed(uid)

    def _put(self, key: str, value: bytes, revision: int) -> str:
        uid, _, name = key.removeprefix(ROOT).partition("/")
        known = self._known.setdefault(uid, Known())
        try:
            if name == "spec":
                known.spec, known.spec_revision = value, revision
            elif name == "topology":
                known.topology, known.topology_revision = records.decode_topology(value), revision
            elif name.startswith("members/"):
                instance = name.removeprefix("members/")
                known.registered[instance] = records.decode_member(instance, value)[1].of
            elif name.startswith("failovers/"):
                known.failovers[name.removeprefix("failovers/")] = records.decode_failover(value)
            elif name.startswith("versions/"):
                known.versions[name.removeprefix("versions/")] = records.decode_version(value)
            elif name.startswith(records.TIMELINESS):
                instance = name.removeprefix(records.TIMELINESS)
                known.timeliness[instance] = records.decode_timeliness(value)
            elif name == succession.SUCCESSION:
                known.succession, known.succession_revision = succession.decode_succession(value), revision
            elif name == succession.FOLLOWS:
                known.follows, known.follows_revision = succession.decode_follows(value), revision
            elif name.startswith(succession.QUIET):
                known.quiet[name.removeprefix(succession.QUIET)] = succession.decode_quiet(value)
            elif name.startswith(succession.WAITING):
                known.waiting[name.removeprefix(succession.WAITING)] = value.decode(errors="replace")
            elif name.startswith(succession.TAKEN):
                known.taken[name.removeprefix(succession.TAKEN)] = succession.decode_taken(value)
            elif name == succession.ENDED:
                known.ended = True
        except records.MalformedRecord as error:
            log.error("%s: %s", key, error)
        return uid

    def _drop(self, key: str) -> str:
        uid, _, name = key.removeprefix(ROOT).partition("/")
        known = self._known.setdefault(uid, Known())
        if name == "spec":
            known.spec, known.spec_revision = b"", ABSENT
        elif name == "topology":
            known.topology, known.topology_revision = Topology(), ABSENT
        elif name.startswith("members/"):
            known.registered.pop(name.removeprefix("members/"), None)
        elif name.startswith("failovers/"):
            known.failovers.pop(name.removeprefix("failovers/"), None)
        elif name.startswith("versions/"):
            known.versions.pop(name.removeprefix("versions/"), None)
        elif name.startswith(records.TIMELINESS):
            known.timeliness.pop(name.removeprefix(records.TIMELINESS), None)
        elif name == succession.SUCCESSION:
            known.succession, known.succession_revision = None, ABSENT
        elif name == succession.FOLLOWS:
            known.follows, known.follows_revision = None, ABSENT
        elif name.startswith(succession.QUIET):
            known.quiet.pop(name.removeprefix(succession.QUIET), None)
        elif name.startswith(succession.WAITING):
            known.waiting.pop(name.removeprefix(succession.WAITING), None)
        elif name.startswith(succession.TAKEN):
            known.taken.pop(name.removeprefix(succession.TAKEN), None)
        elif name == succession.ENDED:
            known.ended = False
        if not (
            known.spec or known.registered or known.topology.generation or known.follows or known.succession
        ):
            del self._known[uid]
        return uid

    async def ensure_spec(self, graph_uid: str, compiled: bytes) -> None:
        """Have etcd hold this compiled graph. Raises CoordinationError; after `Unknown` or `NotApplied` the
        watch tells, and it is tried anew."""
        known = self.of(graph_uid)
        if known.spec == compiled:
            return
        try:
            revision = await self._coordination.compare_and_swap(
                records.spec_key(graph_uid), known.spec_revision, compiled
            )
        except NotApplied:  # a manager brought it in the meantime
            entry = await self._coordination.get(records.spec_key(graph_uid))
            if entry is not None:
                self._put(entry.key, entry.value, entry.mod_revision)
            if entry is None or entry.value != compiled:
                raise
            return
        self._put(records.spec_key(graph_uid), compiled, revision)

    async def ensure_follows(self, graph_uid: str, follows: Follows) -> None:
        """Have etcd say whose states this graph begins with, before it begins. Raises CoordinationError."""
        known = self.of(graph_uid)
        if known.follows is None or (known.follows != follows and not known.has_run):
            key = succession.key(graph_uid, succession.FOLLOWS)
            revision = await self._coordination.compare_and_swap(
                key, known.follows_revision, succession.encode(follows)
            )
            self._put(key, succession.encode(follows), revision)

    async def take_step(self, old_uid: str, record: Succession, guards: Iterable[Guard]) -> None:
        """Change the predecessor's record; with `done` also what makes it final. It counts only if what the
        guards name is as it is known here, and was judged. Raises CoordinationError; `NotApplied` if anything
        of it has changed, and it is looked at anew."""
        old, new = self.of(old_uid), self.of(record.to)
        compares = {
            Guard.RECORD: Compare(succession.key(old_uid, succession.SUCCESSION), old.succession_revision),
            Guard.NOT_ENDED: Compare(succession.key(old_uid, succession.ENDED), ABSENT),
            Guard.OLD_TOPOLOGY: Compare(records.topology_key(old_uid), old.topology_revision),
            Guard.NEW_TOPOLOGY: Compare(records.topology_key(record.to), new.topology_revision),
            Guard.FOLLOWS: Compare(succession.key(record.to, succession.FOLLOWS), new.follows_revision),
        }
        writes = [Write(succession.key(old_uid, succession.SUCCESSION), succession.encode(record))]
        if record.phase is Phase.DONE:
            assert new.follows is not None, "a successor"
            done = Follows(new.follows.uid, new.follows.kept, done=True)
            writes.append(Write(succession.key(old_uid, succession.ENDED), record.to.encode()))
            writes.append(Write(succession.key(record.to, succession.FOLLOWS), succession.encode(done)))
        chosen = tuple([compares[guard] for guard in guards])
        revision = await self._coordination.transact(chosen, tuple(writes))
        for write in writes:
            self._put(write.key, write.value, revision)

    async def allow_restart(self, graph_uid: str, name: str) -> None:
        """Have a lost state begin again. Raises CoordinationError; `NotApplied` if the topology has changed
        just now, and it is looked at anew."""
        entry = await self._coordination.get(records.topology_key(graph_uid))
        changed = None if entry is None else allow_restart(records.decode_topology(entry.value), name)
        if entry is not None and changed is not None:
            log.warning("%s: the lost state of %s begins again, as a person has said", graph_uid, name)
            await self._coordination.compare_and_swap(
                entry.key, entry.mod_revision, records.encode_topology(changed)
            )

    async def end_all(self, owner_uid: str) -> None:
        """Tell the processes of all incarnations that nobody will take anything over from them. Raises
        CoordinationError."""
        for uid in self.uids(owner_uid):
            if not self.of(uid).ended:
                key = succession.key(uid, succession.ENDED)
                try:
                    revision = await self._coordination.compare_and_swap(key, ABSENT, succession.NOBODY)
                except NotApplied:  # it has a successor, and the watch is about to tell
                    continue
                self._put(key, succession.NOBODY, revision)

    async def clear(self, graph_uid: str) -> None:
        """Remove all that etcd holds of a graph. Raises CoordinationError; removing again does no harm."""
        await self._clear_below(records.prefix_of(graph_uid))

    async def clear_all(self, owner_uid: str) -> None:
        """Remove all that etcd holds of all incarnations of a resource, as etcd itself has them: some may
        never have been seen here. Raises CoordinationError."""
        await self._clear_below(records.prefix_of(owner_uid))
        await self._clear_below(records.prefix_of(f"{owner_uid}-r").rstrip("/"))

    async def _clear_below(self, prefix: str) -> None:
        snapshot = await self._coordination.get_prefix(prefix)
        for start in range(0, len(snapshot.entries), etcd_clear_keys):
            part = snapshot.entries[start : start + etcd_clear_keys]
            try:
                await self._coordination.transact((), tuple(Delete(entry.key) for entry in part))
            except Unknown:
                log.info("whether keys below %s were removed is not known; they are removed again", prefix)
                raise
