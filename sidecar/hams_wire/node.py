"""One instance on one event loop: it drives the shell (`hams_wire.shell`) around a core machine. Every
process of a graph is one of these.

It owns the connections to peers, the registration in etcd, the watch, the timers, and the history. A line of
the history is written before the effects that follow it; if it cannot be written, the instance stops: an
effect without its line would be a lie.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from hams_history.lines import HistoryError, HistoryWriter, writer_from
from hams_protocol.effects import (
    Effect,
    NoteApply,
    NoteComplete,
    NoteDurable,
    NoteExec,
    NoteFailover,
    NoteLog,
    NoteLost,
    NoteReply,
    NoteStable,
    Propose,
    Stop,
)
from hams_protocol.events import (
    CasSettled,
    CasUnknown,
    Event,
    Member,
    MembersChanged,
    PeerDown,
    PeerUp,
    Received,
    TopologyLearnt,
)
from hams_protocol.frozen import frozen
from hams_protocol.ids import InstanceId
from hams_protocol.intake import Names
from hams_protocol.messages import Heartbeat, Message
from hams_protocol.topology import Topology
from hams_wire import limits, records, succession
from hams_wire.changes import changes
from hams_wire.coordination.port import ABSENT, Compare, Coordination, Deleted, Put, Restored, Write
from hams_wire.coordination.registration import Registration
from hams_wire.errors import CoordinationError, NotApplied, Unavailable
from hams_wire.notes import line_of
from hams_wire.peers.network import PeerNetwork
from hams_wire.peers.payload import PayloadFactory
from hams_wire.peers.visits import Host
from hams_wire.proposals import ProposalQueue
from hams_wire.shell import FOREVER, MANAGER, Machine, Shell
from hams_wire.tls import Certificates
from hams_wire.trace import trace_from

close_flush_s = 0.2
"""What is queued may take this long to leave when an instance ends in order."""

late_log_s = 10.0
"""An instance that gets too little CPU says so at most this often."""

log = logging.getLogger("hams.node")

NOTES = frozenset(
    (
        NoteExec,
        NoteApply,
        NoteDurable,
        NoteStable,
        NoteLog,
        NoteReply,
        NoteComplete,
        NoteFailover,
        NoteLost,
    )
)
HOST_VARIABLE = "HAMS_NODE"
"""Environment variable with the name of the host that this process runs on, where somebody says so."""


@runtime_checkable
class TakesTogether(Protocol):
    """A machine that can take several events in one step."""

    def steps(self, events: Sequence[Event], now: float) -> list[Effect]:
        """Events in their order."""
        ...


class Owner:
    """The process around an instance: what it does for the instance, and what it is told. This one does
    nothing.

    `answer` answers visitors; None: nobody does.
    """

    answer: Host | None = None

    def perform(self, effect: Effect) -> None:
        """Effects that only this kind of process understands: of models, answers."""
        raise AssertionError(f"not an effect of this process: {effect}")

    def reply_digest(self, note: NoteReply) -> str | None:
        """Digest of a reply for the history; None: it is not wanted."""
        return None

    def on_key_changed(self, name: str, value: bytes | None, revision: int) -> None:
        """A key of the graph that is not the core's business, as it is or as it has become (None: it is
        gone)."""

    def on_turn_end(self) -> None:
        """A turn of the machine is over."""

    def lost(self, message: Message) -> bool:
        """Whether a message that has arrived counts as lost on its way."""
        return False


@frozen
class NodeSettings:
    """Where an instance is, and what it says of itself.

    `listen`, `advertise`, `tls`: see `PeerNetwork`. `keeps`: the machine may hold states of other operators.
    `former`: the id under which it held what it keeps.
    """

    graph_uid: str
    listen: str = "tcp:127.0.0.1:0"
    advertise: str | None = None
    tls: Certificates | None = None
    keeps: bool = False
    former: InstanceId | None = None


class Node:
    """One instance on one event loop."""

    def __init__(
        self,
        machine: Machine,
        instance: InstanceId,
        of: str,
        coordination: Coordination,
        factory: PayloadFactory,
        owner: Owner,
        settings: NodeSettings,
    ) -> None:
        self.machine = machine
        self.instance = instance
        self.of = of
        suspect_after_s = machine.knowledge.graph.data.recovery.suspect_after_s
        steps = machine.steps if isinstance(machine, TakesTogether) else None
        # Not the loop's time, which moves with its rounds only.
        self.shell = Shell(machine, instance, of, self, suspect_after_s, steps, time.perf_counter)
        self._etcd_news = asyncio.Event()
        self.stopped: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()
        self._uid = settings.graph_uid
        self._settings = settings
        self._coordination = coordination
        self._owner = owner
        self._history = writer_from(os.environ, instance)
        self._trace = trace_from(os.environ, instance)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = FOREVER
        self._due = FOREVER
        self._yielded = False
        self._heartbeat: asyncio.TimerHandle | None = None
        self._late_logged_at = float("-inf")
        self._proposals = ProposalQueue(self)
        self._logged = Topology()
        self._to_read = False
        self._reading = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._registration: Registration | None = None
        self.network = PeerNetwork(
            instance,
            settings.graph_uid,
            settings.listen,
            factory,
            self._on_message,
            lambda peer: self.feed(PeerUp(peer)),
            lambda peer: self.feed(PeerDown(peer)),
            on_refused=lambda peer: self.feed(PeerDown(peer, refused=True)),
            advertise=settings.advertise,
            tls=settings.tls,
            eager=self._is_close,
            host=owner.answer,
            unknown=Names(machine.knowledge.graph, of).unknown,
        )

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self, http: str = "", grpc: str = "") -> None:
        """Listen, register, and learn what is known. Raises OSError and CoordinationError."""
        # Listen first: the registration names the address, and peers dial it as soon as they see it.
        await self.network.start()
        record = records.MemberRecord(
            self.of,
            self.network.address,
            self._settings.former,
            os.getpid(),
            http=http,
            grpc=grpc,
            keeps=self._settings.keeps,
            node=os.environ.get(HOST_VARIABLE, ""),
        )
        # The topology is known before anybody can name this instance in a newer one.
        await self._follow()
        key = records.member_key(self._uid, self.instance)
        self._registration = await self._coordination.register(
            key, records.encode_member(record), limits.member_lease_s, self._may_return
        )
        self._spawn(self._kept_up(self._registration))
        self._beat()

    async def _kept_up(self, registration: Registration) -> None:
        """Stop an instance whose registration has ended by an error: it lives, and nobody sees it any more.
        An instance that may not come back (no error) hears why from the topology, and its machine ends as
        that asks for."""
        await registration.ended.wait()
        if registration.error is not None:
            self._stop(Stop(f"it is not registered any more: {registration.error}"))

    async def close(self, leave: bool) -> None:
        """Stop everything; `leave`: give the registration up at once."""
        for handle in (self._timer, self._heartbeat):
            if handle is not None:
                handle.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if leave and self._registration is not None:
            try:
                await self._registration.revoke()
            except CoordinationError as error:
                log.info("the registration is left to expire: %s", error)
        # After the registration: what was said last still leaves, and nobody dials an address that is about
        # to close.
        await self.network.close(flush_s=close_flush_s)
        await self._coordination.close()
        if self._history is not None:
            self._history.close()

    async def until_stopped(self, *events: asyncio.Event, timeout_s: float | None = None) -> None:
        """Wait until the core says Stop, one of the events is set, or the time is over."""
        waiting: list[asyncio.Future[Any]] = [self._loop.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(
                [*waiting, self.stopped], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in waiting:
                task.cancel()

    async def until(self, holds: Callable[[], bool], *events: asyncio.Event, timeout_s: float) -> None:
        """Wait until `holds`, as far as members and notes in etcd decide that; or the core says Stop, one of
        the events is set, or the time is over."""
        by = self.now() + timeout_s
        while not holds():
            left_s = by - self.now()
            if left_s <= 0 or self.stopped.done() or any(event.is_set() for event in events):
                return
            self._etcd_news.clear()
            await self.until_stopped(self._etcd_news, *events, timeout_s=left_s)

    async def tell(self, key: str, value: bytes, lease: int = 0) -> None:
        """Write a key into etcd that no compare-and-swap depends on; with a `lease` it goes when that ends.
        Raises CoordinationError; a second try overwrites, so an unknown outcome does no harm."""
        await self._coordination.transact((), (Write(key, value, lease),))

    @property
    def lease(self) -> int:
        """The lease of this instance's registration; 0 while it is not registered."""
        registration = self._registration
        return registration.lease if registration is not None and registration.held.is_set() else 0

    async def read(self, key: str) -> bytes | None:
        """What a key holds now, ahead of the watch. Raises CoordinationError."""
        entry = await self._coordination.get(key)
        return None if entry is None else entry.value

    async def swap(self, key: str, revision: int, value: bytes) -> None:
        """Change a key that is no topology and was last changed at `revision`. Raises CoordinationError."""
        await self._coordination.compare_and_swap(key, revision, value)

    def now(self) -> float:
        """The machine's clock: monotonic seconds."""
        return self._loop.time()

    # -- events in -------------------------------------------------------------------------------------------

    @property
    def members(self) -> dict[InstanceId, Member]:
        """The registered instances."""
        return self.shell.members

    def feed(self, event: Event) -> None:
        """Give the machine an event. All events of one turn of the loop are taken at its end, in their order,
        and what they cause to be sent leaves together."""
        self.shell.feed(event)

    def request_turn(self) -> None:
        """Have `on_turn_end` called at the end of a turn, though nothing may have happened."""
        self.shell.request_turn()

    def turn_soon(self) -> None:
        """At the end of this turn of the loop."""
        self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._drive(self.shell.turn)

    def _drive(self, call: Callable[[], None]) -> None:
        """A core that raises has found itself wrong, and an effect that raises leaves those behind it undone:
        neither may be passed over, so the instance ends and another takes over."""
        # What the effects of one turn send to a peer leaves in one write.
        self.network.hold()
        try:
            call()
            self._arm()
        except Exception as error:
            kinds = ", ".join(sorted({type(event).__name__ for event in self.shell.taken}))
            log.critical("this instance failed on %s", kinds, exc_info=True)
            self._stop(Stop(f"failed on {kinds}: {type(error).__name__}: {error}"))
        finally:
            self.network.release()
        self._owner.on_turn_end()

    def stepped(self, events: Sequence[Event], effects: Sequence[Effect]) -> None:
        """Traced, if somebody asked for that."""
        if self._trace is not None:
            for event in events:
                self._trace.event(event)
            for effect in effects:
                self._trace.effect(effect)

    def _arm(self) -> None:
        """Deadlines move with almost every event, mostly further away: a timer that fires early and looks
        again costs less than moving it."""
        self._due = due = self.shell.deadline()
        if due >= self._timer_at or self.shell.stopped:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        now = self._loop.time()
        # The loop counts in milliseconds: what is due within the present one is due in the next.
        self._timer = self._loop.call_at(
            due if due <= now else max(due, now + limits.timer_again_s), self._tick
        )

    def _tick(self) -> None:
        """A late timer means a starved process: what has arrived meanwhile is read before the machine judges
        anybody by its silence."""
        self._timer, self._timer_at = None, FOREVER
        # A timer may be early as well, as deadlines move away without moving it.
        late_s = self._loop.time() - self._due
        if late_s < 0:
            self._arm()
        elif late_s > limits.timer_late_s and not self._yielded:
            self._yielded = True
            self._timer_at = -FOREVER  # no event moves this one: it yields once
            self._timer = self._loop.call_later(limits.timer_again_s, self._tick)
        else:
            self._yielded = False
            self._drive(self.shell.wake)

    def _on_message(self, sender: InstanceId, message: Message) -> None:
        if not self._owner.lost(message):
            self.feed(Received(sender, message))

    def _is_close(self, peer: InstanceId) -> bool:
        """Whether something here waits for the proof that this peer is gone: it is a manager's business, and
        that of its own kind."""
        member = self.members.get(peer)
        return self.of == MANAGER or (member is not None and member.of == self.of)

    def send_heartbeats(self, peers: Iterable[InstanceId], heartbeat: Heartbeat) -> None:
        """Over the connections that stand."""
        for peer in peers:
            if self.network.is_up(peer):
                self.network.send(peer, heartbeat)

    def is_up(self, peer: InstanceId) -> bool:
        """Whether a connection to this peer stands."""
        return self.network.is_up(peer)

    def heard_at(self, peer: InstanceId) -> float | None:
        """When something last came over it."""
        return self.network.heard_s.get(peer)

    def unacknowledged_s(self, peer: InstanceId) -> float:
        """As the kernel has counted it."""
        return self.network.unacknowledged_s(peer)

    def break_off(self, peer: InstanceId) -> None:
        """Give up the connection to a peer: nothing passes between the two hosts."""
        log.info("the connection to %s is given up: its host acknowledges nothing", peer)
        self.network.break_off(peer)

    # -- effects out -----------------------------------------------------------------------------------------

    def send(self, peer: InstanceId, message: Message) -> None:
        """Over the connection to this peer; what does not fit is lost."""
        self.network.send(peer, message)

    def perform(self, effect: Effect, now: float) -> None:
        """Notes and proposals are this class's own, the rest is for this kind of process."""
        if type(effect) in NOTES:
            if self._history is not None:
                self._note(effect, now, self._history)
        elif isinstance(effect, Propose):
            self._proposals.propose(effect)
        elif isinstance(effect, Stop):
            self._stop(effect)
        else:
            self._owner.perform(effect)

    def _note(self, note: Effect, now: float, history: HistoryWriter) -> None:
        digest = self._owner.reply_digest(note) if isinstance(note, NoteReply) else None
        try:
            history.write(line_of(note, self.instance, now, digest))  # type: ignore[arg-type]
        except HistoryError as error:
            log.error("the history cannot be written, so nothing more is done here: %s", error)
            self._stop(Stop(f"history: {error}"))

    def _stop(self, stop: Stop) -> None:
        self.shell.stopped = True
        if not self.stopped.done():
            log.warning("%s stops: %s", self.instance, stop.reason)
            self.stopped.set_result(stop)

    # -- heartbeats ------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        if self.shell.stopped:
            return  # an instance that is over gives no sign of life, however long its process takes to end
        try:
            again_at = self.shell.beat()
        except Exception as error:
            log.critical("this instance cannot beat", exc_info=True)
            self._stop(Stop(f"failed on a heartbeat: {type(error).__name__}: {error}"))
            return
        self._heartbeat = self._loop.call_at(again_at, self._beat)
        now, lateness = self._loop.time(), self.shell.detector.lateness
        if not lateness.may_judge(now) and now >= self._late_logged_at + late_log_s:
            self._late_logged_at = now
            log.warning(
                "this process gets too little CPU: it was late by %.2f s, and judges nobody for being silent",
                lateness.worst_s,
            )

    # -- etcd ------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Read everything of the graph, then follow the changes."""
        prefix = records.prefix_of(self._uid)
        snapshot = await self._coordination.get_prefix(prefix)
        members: dict[InstanceId, Member] = {}
        has_topology = False
        for entry in snapshot.entries:
            name = entry.key.removeprefix(prefix)
            if name.startswith("members/"):
                self._member(members, name.removeprefix("members/"), entry.value)
            elif name == "topology":
                has_topology = True
                self.feed(TopologyLearnt(records.decode_topology(entry.value), entry.mod_revision))
            else:
                self._owner.on_key_changed(name, entry.value, entry.mod_revision)
        if not has_topology:
            self.feed(TopologyLearnt(Topology(), 0))
        self._set_members(members)
        self._spawn(self._watch(prefix, snapshot))

    async def _watch(self, prefix: str, snapshot: object) -> None:
        async with self._coordination.watch(prefix, snapshot) as watch:  # type: ignore[arg-type]
            async for event in watch:
                if isinstance(event, Restored):
                    log.error(
                        "etcd's history went back from revision %d to %d",
                        event.seen_revision,
                        event.found_revision,
                    )
                elif isinstance(event, Put | Deleted):
                    self._changed(event, prefix)

    def _changed(self, event: Put | Deleted, prefix: str) -> None:
        key = event.entry.key if isinstance(event, Put) else event.key
        name = key.removeprefix(prefix)
        if name == "topology" and isinstance(event, Put):
            try:
                topology = records.decode_topology(event.entry.value)
            except records.MalformedRecord as error:  # what is known goes on to hold, until somebody mends it
                log.error("etcd holds no topology at revision %d: %s", event.entry.mod_revision, error)
                return
            # Managers alone log who got which role: one line each instead of one per process.
            if self.of == MANAGER:
                for line in changes(self._logged, topology):
                    log.info("%s", line)
                self._logged = topology
            self.feed(TopologyLearnt(topology, event.entry.mod_revision))
        elif name.startswith("members/"):
            members = dict(self.members)
            instance = name.removeprefix("members/")
            if isinstance(event, Put):
                self._member(members, instance, event.entry.value)
            else:
                members.pop(instance, None)
            self._set_members(members)
        else:
            if isinstance(event, Put):
                self._owner.on_key_changed(name, event.entry.value, event.entry.mod_revision)
            else:
                self._owner.on_key_changed(name, None, 0)
            self._etcd_news.set()

    def _member(self, members: dict[InstanceId, Member], instance: InstanceId, value: bytes) -> None:
        try:
            members[instance] = records.decode_member(instance, value)[0]
        except records.MalformedRecord as error:
            log.error("%s", error)

    def _set_members(self, members: dict[InstanceId, Member]) -> None:
        if members == self.members:
            return
        self._etcd_news.set()
        self.network.set_members({name: member.address for name, member in members.items()})
        self.feed(MembersChanged(tuple(members.values())))

    async def _may_return(self) -> tuple[Compare, ...] | None:
        """A lost registration comes back unless the topology lists this instance as revoked."""
        key = records.topology_key(self._uid)
        entry = await self._coordination.get(key)
        if entry is None:
            return ()
        try:
            revoked = records.decode_topology(entry.value).revoked
        except records.MalformedRecord as error:
            raise Unavailable(str(error)) from None  # asked again after a pause
        if self.instance in revoked:
            return None
        # Registered only if the topology is still the one that was read: a commit in between may have revoked
        # this instance.
        return (Compare(key, entry.mod_revision),)

    def commit(self, proposal: Propose) -> None:
        """See `hams_wire.proposals`."""

        async def work() -> None:
            self._proposals.answered(await self._outcome(proposal))

        self._spawn(work())

    async def _outcome(self, proposal: Propose) -> CasSettled | CasUnknown:
        """Of one compare-and-swap. A graph that has ended has no roles to give any more: a machine that
        proposes asks again after a pause, until its process ends as well."""
        key = records.topology_key(self._uid)
        compares = (
            Compare(key, proposal.revision),
            Compare(succession.key(self._uid, succession.ENDED), ABSENT),
        )
        try:
            if proposal.revision >= 0:
                revision = await self._coordination.transact(
                    compares, (Write(key, records.encode_topology(proposal.topology)),)
                )
                return CasSettled(proposal.topology, revision, committed=True)
        except NotApplied as error:
            # `ended` is there: nobody may change this topology any more, so reading it again would not help.
            if error.current[1] is not None:
                return CasUnknown()
        except CoordinationError as error:
            log.warning("proposal of generation %d: %s", proposal.topology.generation, error)
            return CasUnknown()
        return await self._present() or CasUnknown()

    async def _present(self) -> CasSettled | None:
        try:
            entry = await self._coordination.get(records.topology_key(self._uid))
        except CoordinationError as error:
            log.warning("reading the topology: %s", error)
            return None
        if entry is None:
            return CasSettled(Topology(), 0, committed=False)
        try:
            return CasSettled(records.decode_topology(entry.value), entry.mod_revision, committed=False)
        except records.MalformedRecord as error:
            log.error("etcd holds no topology at revision %d: %s", entry.mod_revision, error)
            return None

    def read_topology(self) -> None:
        """Read the topology by one reader, however often that is wanted: while etcd is away every proposal
        fails."""
        self._to_read = True
        if not self._reading:
            self._reading = True
            self._spawn(self._read_again())

    async def _read_again(self) -> None:
        """Read until etcd answers; the watch tells of everything later. What is wanted while an answer is on
        its way wants a later one."""
        try:
            while self._to_read:
                # Cleared before the question leaves: a wish from now on wants a later answer.
                self._to_read = False
                try:
                    entry = await self._coordination.get(records.topology_key(self._uid))
                except CoordinationError as error:
                    if not error.retryable:
                        log.error("the topology cannot be read: %s", error)
                        return
                    self._to_read = True
                    await asyncio.sleep(limits.etcd_pause_max_s)
                    continue
                try:
                    topology, revision = (
                        (Topology(), 0)
                        if entry is None
                        else (records.decode_topology(entry.value), entry.mod_revision)
                    )
                except records.MalformedRecord as error:
                    log.error("the topology cannot be read: %s", error)
                    return
                self.feed(TopologyLearnt(topology, revision))
        finally:
            self._reading = False

    def _spawn(self, work: Awaitable[None]) -> None:
        async def run() -> None:
            await work

        task = self._loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._stop(Stop(f"{type(error).__name__}: {error}"))
