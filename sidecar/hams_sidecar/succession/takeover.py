"""A process of a shape that follows another one: it begins with what it takes from there, and not before the
one before is at rest.

It says that it is there, waits until etcd shows its predecessor at rest, visits whom the topology names, and
only then becomes an instance: so the core begins as it always does, a first primary with a restored state.
What was taken counts for one cut of the predecessor's logs; if that changes while it is being taken it is
taken anew, and etcd is told which one it was.

Never: it acts on what it saw of the predecessor's topology before that was at rest; it asks a predecessor
that has gone on.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import TypeVar

from hams_protocol.graph import FRONTEND, FrontendSpec
from hams_protocol.ids import InstanceId
from hams_protocol.messages import Completion, StateCopy
from hams_protocol.stateful import StatefulMachine
from hams_protocol.topology import Topology
from hams_sidecar import limits
from hams_sidecar.succession import replies, talk
from hams_wire import limits as wire_limits
from hams_wire import records, spec, succession
from hams_wire.coordination.port import Coordination, Put, Restored, Snapshot, Write
from hams_wire.errors import CoordinationError
from hams_wire.node import Node
from hams_wire.peers.errors import NoRoom
from hams_wire.peers.payload import PayloadFactory, Room
from hams_wire.peers.visits import Visit, VisitFailed, pay
from hams_wire.succession import Cut, Follows, TakenOver
from hams_wire.tls import Certificates

log = logging.getLogger("hams.succession")

T = TypeVar("T")


class GraphInEtcd:
    """What etcd holds of one graph, followed. `changed` is set after each change."""

    def __init__(self, uid: str, changed: asyncio.Event) -> None:
        self._prefix = records.prefix_of(uid)
        self._changed = changed
        self._values: dict[str, bytes] = {}

    def value(self, name: str) -> bytes | None:
        """A key's."""
        return self._values.get(name)

    @property
    def topology(self) -> Topology:
        """Who has which role. Raises MalformedRecord."""
        value = self.value("topology")
        return Topology() if value is None else records.decode_topology(value)

    def address(self, instance: InstanceId) -> str | None:
        """Where an instance can be visited; None: it is not registered. Raises MalformedRecord."""
        value = self.value(f"members/{instance}")
        return None if value is None else records.decode_member(instance, value)[1].address

    def below(self, start: str) -> dict[str, bytes]:
        """Keys that begin so, without that beginning."""
        return {
            name.removeprefix(start): value for name, value in self._values.items() if name.startswith(start)
        }

    def take(self, snapshot: Snapshot) -> None:
        """All of it, as read."""
        self._values = {entry.key.removeprefix(self._prefix): entry.value for entry in snapshot.entries}
        self._changed.set()

    async def follow(self, coordination: Coordination) -> None:
        """Until cancelled. Raises AccessDenied and Closed; everything else is waited out."""
        snapshot: Snapshot | None = None
        while snapshot is None:
            try:
                snapshot = await coordination.get_prefix(self._prefix)
            except CoordinationError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(wire_limits.etcd_pause_max_s)
        self.take(snapshot)
        async with coordination.watch(self._prefix, snapshot) as watch:
            async for event in watch:
                if isinstance(event, Put):
                    self._values[event.entry.key.removeprefix(self._prefix)] = event.entry.value
                elif not isinstance(event, Restored):
                    self._values.pop(event.key.removeprefix(self._prefix), None)
                self._changed.set()


class Takeover:
    """One process of a graph that follows another one and has not taken over. `of`: its operator, or
    FRONTEND."""

    def __init__(
        self,
        coordination: Coordination,
        graph_uid: str,
        of: str,
        process: str,
        follows: Follows,
        tls: Certificates | None,
    ) -> None:
        self._coordination = coordination
        self._uid = graph_uid
        self._of = of
        self._process = process
        self._tls = tls
        self.follows = follows
        self._changed = asyncio.Event()
        self._before = GraphInEtcd(follows.uid, self._changed)
        self._own = GraphInEtcd(graph_uid, self._changed)
        self._shards: tuple[str, ...] = ()
        self._cut: Cut = ()
        self._told: set[InstanceId] = set()

    # -- waiting ---------------------------------------------------------------------------------------------

    async def state(self, factory: PayloadFactory, layout: str) -> StateCopy | None:
        """The predecessor's state of this operator; None if there is nothing to begin with it any more:
        somebody has, or the succession is over.

        `layout`: of the model here; a state of another one is not taken, and etcd is told.
        """

        async def fetch() -> StateCopy:
            return await self._fetch_state(factory)

        def needless() -> bool:
            return self._own.topology.find(self._of).epoch > 0 or self._is_done()

        state = await self._take(fetch, needless)
        if state is not None and state.layout and layout and state.layout != layout:
            why = f"the state of {self._of} has the layout {state.layout}, the new shape's model {layout}"
            await self._tell(self._process, TakenOver(self._of, self._cut, refused=why))
            await asyncio.Event().wait()  # what follows is for the controller to decide
        return state

    async def kept_replies(self, frontend: FrontendSpec) -> replies.Table:
        """The replies that the predecessor keeps, or, once that is over, those that a frontend of this graph
        has taken over. As many as `frontend` allows this graph to keep itself."""

        async def fetch() -> replies.Table:
            table = replies.Table(frontend)
            topology = self._before.topology
            owner = topology.find(self._shards[0]).primary
            if owner is not None:  # what that has taken over itself is the oldest
                await self._fetch_replies(table, self._before, self.follows.uid, owner, "")
            for shard in self._shards:
                primary = topology.find(shard).primary
                if primary is None:
                    raise VisitFailed(f"{shard} has no owner")
                await self._fetch_replies(table, self._before, self.follows.uid, primary, shard)
            return table

        taken = await self._take(fetch, self._is_done)
        return await self._of_peers(frontend) if taken is None else taken

    def _is_done(self) -> bool:
        value = self._own.value(succession.FOLLOWS)
        return self.follows.done or (value is not None and succession.decode_follows(value).done)

    async def _spec(self) -> bytes:
        entry = await self._coordination.get(records.spec_key(self.follows.uid))
        if entry is None:
            raise records.MalformedRecord(
                f"the graph {self.follows.uid}, which this one follows, is not in etcd"
            )
        return entry.value

    async def _take(self, fetch: Callable[[], Awaitable[T]], needless: Callable[[], bool]) -> T | None:
        """Wait for the cut, and fetch; again if it changes meanwhile, or whoever is asked goes away."""
        if self.follows.done:
            return None
        self._shards = spec.decode_spec(await self._spec()).shard_names
        async with self._following() as check:
            waiting = await self._coordination.register(
                succession.key(self._uid, succession.WAITING + self._process),
                self._of.encode(),
                wire_limits.member_lease_s,
            )
            try:
                while not needless():
                    check()
                    self._changed.clear()
                    cut = self._cut_now()
                    pause_s: float | None = None
                    if cut is not None:
                        try:
                            taken = await fetch()
                        except (VisitFailed, NoRoom) as error:
                            log.warning(
                                "what the predecessor has of %s is asked for again: %s", self._of, error
                            )
                            pause_s = limits.visit_pause_s
                        else:
                            if self._cut_now() == cut:
                                self._cut = cut
                                await self._tell(self._process, TakenOver(self._of, cut))
                                return taken
                            continue
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(pause_s):
                            await self._changed.wait()
                return None
            finally:
                with contextlib.suppress(CoordinationError):  # it expires by itself
                    await waiting.revoke()

    @contextlib.asynccontextmanager
    async def _following(self) -> AsyncIterator[Callable[[], None]]:
        tasks = [asyncio.create_task(seen.follow(self._coordination)) for seen in (self._before, self._own)]

        def check() -> None:
            """Raises what has ended one of them: it does not end by itself."""
            for task in tasks:
                if task.done():
                    task.result()

        try:
            for task in tasks:
                task.add_done_callback(lambda _: self._changed.set())
            yield check
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _cut_now(self) -> Cut | None:
        value = self._before.value(succession.SUCCESSION)
        record = None if value is None else succession.decode_succession(value)
        if record is None or record.to != self._uid or record.phase is not succession.Phase.CLOSE:
            return None
        quiet = {
            name: succession.decode_quiet(value)
            for name, value in self._before.below(succession.QUIET).items()
        }
        return succession.cut_of(self._shards, self._before.topology, quiet, self._uid)

    # -- fetching --------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _visit(self, seen: GraphInEtcd, uid: str, host: InstanceId) -> AsyncIterator[Visit]:
        address = seen.address(host)
        if address is None:
            raise VisitFailed(f"{host} is not registered")
        visit = await pay(address, uid, self._process, host, self._tls)
        try:
            yield visit
        finally:
            visit.close()

    async def _fetch_state(self, factory: PayloadFactory) -> StateCopy:
        primary = self._before.topology.find(self._of).primary
        if primary is None:
            raise VisitFailed(f"{self._of} has no primary")
        rooms: list[Room] = []

        def room(nbytes: int) -> memoryview:
            rooms.append(factory.allocate(nbytes))
            return rooms[0].view

        async with self._visit(self._before, self.follows.uid, primary) as visit:
            await visit.send(talk.encode(talk.AskState(self._of)))
            head, _ = await visit.receive(room)
        said = talk.answer(head)
        if not isinstance(said, talk.PassedState):
            raise VisitFailed(f"{primary}: {said.why if isinstance(said, talk.Unready) else said}")
        log.warning(
            "%s begins with version %d of epoch %d, from %s", self._of, said.version, said.epoch, primary
        )
        payload = factory.build((), rooms[0] if rooms else factory.allocate(0))
        return StateCopy(self._of, said.epoch, said.version, (), Completion(()), "", payload, said.layout)

    async def _fetch_replies(
        self, table: replies.Table, seen: GraphInEtcd, uid: str, host: InstanceId, shard: str
    ) -> None:
        async with self._visit(seen, uid, host) as visit:
            async for said, data in replies.ask(visit, shard):
                table.add(said, data)

    async def _of_peers(self, frontend: FrontendSpec) -> replies.Table:
        """The table of a registered frontend, a whole one if there is one. If none is registered for a while,
        all have died together."""
        loop = asyncio.get_running_loop()
        nobody_since = loop.time()
        async with self._following() as check:
            while loop.time() < nobody_since + limits.replies_sought_s:
                check()
                self._changed.clear()
                members = self._own.below("members/").items()
                others = [
                    name for name, value in members if records.decode_member(name, value)[1].of == FRONTEND
                ]
                nobody_since = loop.time() if others else nobody_since
                told: list[replies.Table] = []
                for name in others:
                    table = replies.Table(frontend)
                    try:
                        await self._fetch_replies(table, self._own, self._uid, name, "")
                    except VisitFailed as error:
                        log.warning("the replies of the shape before are asked for again: %s", error)
                        continue
                    if table.whole:
                        return table
                    told.append(table)
                if told and len(told) == len(others):
                    return told[0]
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(limits.visit_pause_s):
                        await self._changed.wait()
        log.error(
            "no frontend is there that has the replies of the shape before: what was answered then is "
            "executed again"
        )
        table = replies.Table(frontend)
        table.whole = False
        return table

    # -- telling ---------------------------------------------------------------------------------------------

    async def _tell(self, instance: str, taken: TakenOver) -> None:
        """Until etcd has it. Nobody else writes this key."""
        while True:
            try:
                await self._coordination.transact(
                    (),
                    (
                        Write(
                            succession.key(self._uid, succession.TAKEN + instance), succession.encode(taken)
                        ),
                    ),
                )
                return
            except CoordinationError as error:
                log.info("what was taken over is told later: %s", error)
                await asyncio.sleep(limits.visit_pause_s)

    def loaded(self, node: Node) -> tuple[str, bytes] | None:
        """The record that the model of this primary holds its state, once it does; None: not yet, or it was
        given before."""
        machine = node.machine
        assert isinstance(machine, StatefulMachine), "only these take a state"
        if node.instance in self._told or machine.primary is None or not machine.ready:
            return None
        self._told.add(node.instance)
        return succession.key(self._uid, succession.TAKEN + node.instance), succession.encode(
            TakenOver(self._of, self._cut, loaded=True)
        )


async def takeover_of(
    coordination: Coordination, graph_uid: str, of: str, process: str, tls: Certificates | None
) -> Takeover | None:
    """Who a process of this graph inherits from; None: its graph follows no other one. Raises
    CoordinationError, MalformedRecord."""
    entry = await coordination.get(succession.key(graph_uid, succession.FOLLOWS))
    return (
        None
        if entry is None
        else Takeover(coordination, graph_uid, of, process, succession.decode_follows(entry.value), tls)
    )


async def answer_state(visit: Visit, node: Callable[[], Node | None], factory: PayloadFactory) -> None:
    """What a proxy answers its visitors, until they go: the newest state of a primary, once all of it is
    durable."""
    while True:
        said = talk.question((await visit.receive(_no_room, None))[0])
        present = node()
        machine = None if present is None or present.stopped.done() else present.machine
        if (
            not isinstance(said, talk.AskState)
            or not isinstance(machine, StatefulMachine)
            or machine.operator.name != said.op
        ):
            await visit.send(
                talk.encode(
                    talk.Unready(f"expected to be asked for a state that is held here, found {said!r:.100}")
                )
            )
            continue
        newest = machine.store.newest
        if machine.primary is None or machine.primary.undurable or newest is None or newest.state is None:
            await visit.send(talk.encode(talk.Unready("this is no primary whose newest version is durable")))
            continue
        head = talk.PassedState(machine.epoch, newest.number, machine.layout)
        view = factory.describe(newest.state)[1]
        await visit.send(talk.encode(head), (view,))
        factory.sent(view)


def _no_room(nbytes: int) -> memoryview:
    raise VisitFailed(f"a question with {nbytes} bytes of payload, expected none")


async def unless(asked: asyncio.Event, work: Coroutine[None, None, None]) -> bool:
    """Do some work unless this process is asked to end first; whether it is done. Raises what it raises."""
    tasks = asyncio.create_task(asked.wait()), asyncio.create_task(work)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[1].done():
            return False
        tasks[1].result()
        return True
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
