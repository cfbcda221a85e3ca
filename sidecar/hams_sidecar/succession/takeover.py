"""The shell around a process's `TakeoverMachine`: it follows etcd, visits the instances that the machine
names, and writes what was taken. It decides nothing."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine

from hams_protocol.due import FOREVER
from hams_protocol.graph import FRONTEND, FrontendSpec
from hams_protocol.ids import InstanceId
from hams_protocol.messages import Completion, StateCopy
from hams_protocol.stateful import StatefulMachine
from hams_protocol.succession import events
from hams_protocol.succession.effects import AskTable, Begin, Fetch, SayTaken, StateSource
from hams_protocol.succession.records import Follows
from hams_protocol.succession.search import ReplySearch
from hams_protocol.succession.takeover import Effect, Event, TakeoverMachine, state_to_hand_over
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
from hams_wire.tls import Certificates

log = logging.getLogger("hams.succession")


class GraphInEtcd:
    """What etcd holds of one graph, followed. `changed` is set after each change; `is_read`: it was read."""

    def __init__(self, uid: str, changed: asyncio.Event) -> None:
        self._prefix = records.prefix_of(uid)
        self._changed = changed
        self._values: dict[str, bytes] = {}
        self.is_read = False

    def value(self, name: str) -> bytes | None:
        """The value of a key below the graph's prefix; None: there is no such key."""
        return self._values.get(name)

    @property
    def topology(self) -> Topology:
        """The topology of the graph, empty if etcd has none. Raises MalformedRecord."""
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
        self.is_read = True
        self._changed.set()

    async def follow(self, coordination: Coordination) -> None:
        """Keep the values as etcd has them, until cancelled. Raises AccessDenied and Closed; everything else
        is waited out."""
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
        self._machine: TakeoverMachine | None = None

    # -- what a process begins with --------------------------------------------------------------------------

    async def state(self, factory: PayloadFactory, layout: str) -> StateCopy | None:
        """The predecessor's state of this operator; None if there is nothing to begin with it any more:
        somebody has, or the succession is over. Never, if the model cannot take it over: what follows is for
        the controller to decide.

        `layout`: of the model here.
        """
        states: list[StateCopy] = []

        async def fetch(sources: tuple[StateSource, ...]) -> str:
            states[:] = [await self._fetch_state(source, factory) for source in sources]
            return states[0].layout

        begun = await self._take(fetch, layout)
        return None if begun.cut is None else states[0]

    async def predecessor_replies(self, frontend: FrontendSpec) -> replies.Table:
        """The replies that the predecessor keeps, or, once that is over, those that a frontend of this graph
        has taken over. As many as `frontend` allows this graph to keep itself."""
        tables: list[replies.Table] = []

        async def fetch(sources: tuple[StateSource, ...]) -> str:
            tables[:] = [replies.table_for(frontend)]
            for source in sources:
                await self._fetch_replies(tables[0], self._before, self.follows.uid, source.host, source.what)
            return ""

        begun = await self._take(fetch, "")
        return await self._of_peers(frontend) if begun.cut is None else tables[0]

    async def _spec(self) -> bytes:
        entry = await self._coordination.get(records.spec_key(self.follows.uid))
        if entry is None:
            raise records.MalformedRecord(
                f"the graph {self.follows.uid}, which this one follows, is not in etcd"
            )
        return entry.value

    # -- driving the machine ---------------------------------------------------------------------------------

    async def _take(
        self, fetch: Callable[[tuple[StateSource, ...]], Coroutine[None, None, str]], layout: str
    ) -> Begin:
        """Drive the machine until the process may begin."""
        if self.follows.done:
            return Begin(None)
        shards = spec.decode_spec(await self._spec()).shard_names
        machine = self._machine = TakeoverMachine(self._uid, self._of, self._process, shards, layout)
        async with self._following() as check:
            waiting = await self._coordination.register(
                succession.key(self._uid, succession.WAITING + self._process),
                self._of.encode(),
                wire_limits.member_lease_s,
            )
            work: set[asyncio.Task[Event]] = set()
            try:
                return await self._drive(machine, fetch, check, work)
            finally:
                for task in work:
                    task.cancel()
                await asyncio.gather(*work, return_exceptions=True)
                with contextlib.suppress(CoordinationError):  # it expires by itself
                    await waiting.revoke()

    async def _drive(
        self,
        machine: TakeoverMachine,
        fetch: Callable[[tuple[StateSource, ...]], Coroutine[None, None, str]],
        check: Callable[[], None],
        work: set[asyncio.Task[Event]],
    ) -> Begin:
        loop = asyncio.get_running_loop()
        while True:
            check()
            self._changed.clear()
            happened: list[Event] = [task.result() for task in work if task.done()]
            work.difference_update([task for task in work if task.done()])
            # What etcd shows comes first: what was fetched is judged by the newest cut that is known.
            for event in (self._seen(), *happened, events.Wake()):
                for effect in machine.step(event, loop.time()):
                    if isinstance(effect, Begin):
                        return effect
                    work.add(self._begun(effect, fetch))
            due = machine.deadline()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due == FOREVER else max(due - loop.time(), 0.0)):
                    await self._changed.wait()

    def _seen(self) -> events.GraphsSeen:
        """What etcd holds of both graphs. Raises MalformedRecord."""
        value = self._before.value(succession.SUCCESSION)
        said = self._before.below(succession.QUIET).items()
        own = self._own.value(succession.FOLLOWS)
        return events.GraphsSeen(
            None if value is None else succession.decode_succession(value),
            self._before.topology,
            tuple([(name, succession.decode_quiet(value)) for name, value in said]),
            self._own.topology.find(self._of).epoch > 0,
            own is not None and succession.decode_follows(own).done,
        )

    def _begun(
        self, effect: Effect, fetch: Callable[[tuple[StateSource, ...]], Coroutine[None, None, str]]
    ) -> asyncio.Task[Event]:
        assert isinstance(effect, Fetch | SayTaken), f"not an effect of a takeover: {effect}"
        work = self._fetched(fetch, effect) if isinstance(effect, Fetch) else self._said(effect)
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._changed.set())
        return task

    async def _fetched(
        self, fetch: Callable[[tuple[StateSource, ...]], Coroutine[None, None, str]], effect: Fetch
    ) -> Event:
        try:
            return events.Fetched(await fetch(effect.sources))
        except (VisitFailed, NoRoom) as error:
            log.warning("what the predecessor has of %s is asked for again: %s", self._of, error)
            return events.NotFetched()

    async def _said(self, effect: SayTaken) -> Event:
        key = succession.key(self._uid, succession.TAKEN + effect.instance)
        try:
            await self._coordination.transact((), (Write(key, succession.encode(effect.taken)),))
        except CoordinationError as error:
            log.info("what was taken over is told later: %s", error)
            return events.NotSaid()
        return events.Said()

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
            while not all(seen.is_read for seen in (self._before, self._own)):
                check()
                self._changed.clear()
                await self._changed.wait()
            yield check
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

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

    async def _fetch_state(self, source: StateSource, factory: PayloadFactory) -> StateCopy:
        rooms: list[Room] = []

        def room(nbytes: int) -> memoryview:
            rooms.append(factory.allocate(nbytes))
            return rooms[0].view

        async with self._visit(self._before, self.follows.uid, source.host) as visit:
            await visit.send(talk.encode(talk.AskState(self._of)))
            head, _ = await visit.receive(room)
        said = talk.answer(head)
        if not isinstance(said, talk.PassedState):
            raise VisitFailed(f"{source.host}: {said.why if isinstance(said, talk.Unready) else said}")
        log.warning(
            "%s begins with version %d of epoch %d, from %s", self._of, said.version, said.epoch, source.host
        )
        payload = factory.build((), rooms[0] if rooms else factory.allocate(0))
        return StateCopy(self._of, said.epoch, said.version, (), Completion(()), "", payload, said.layout)

    async def _fetch_replies(
        self, table: replies.Table, seen: GraphInEtcd, uid: str, host: InstanceId, shard: str
    ) -> None:
        async with self._visit(seen, uid, host) as visit:
            async for page in replies.ask(visit, shard):
                table.add(page)

    async def _of_peers(self, frontend: FrontendSpec) -> replies.Table:
        """The table of a registered frontend: whose, the core decides."""
        loop = asyncio.get_running_loop()
        tables: dict[InstanceId, replies.Table] = {}
        machine = ReplySearch(loop.time())
        happened: list[events.FrontendsSeen | events.TableReceived | events.TableMissed | events.Wake] = []
        async with self._following() as check:
            while True:
                check()
                self._changed.clear()
                happened = [events.FrontendsSeen(self._frontends()), *happened, events.Wake()]
                effects = [effect for event in happened for effect in machine.step(event, loop.time())]
                happened = []
                for effect in effects:
                    if not isinstance(effect, AskTable):
                        return tables.get(effect.instance) or replies.lost_table(frontend)
                    happened.append(await self._ask_table(effect.instance, frontend, tables))
                if not happened:
                    due = machine.deadline()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(None if due == FOREVER else max(due - loop.time(), 0.0)):
                            await self._changed.wait()

    def _frontends(self) -> tuple[InstanceId, ...]:
        members = self._own.below("members/").items()
        return tuple(
            [name for name, value in members if records.decode_member(name, value)[1].of == FRONTEND]
        )

    async def _ask_table(
        self, instance: InstanceId, frontend: FrontendSpec, tables: dict[InstanceId, replies.Table]
    ) -> events.TableReceived | events.TableMissed:
        table = tables[instance] = replies.table_for(frontend)
        try:
            await self._fetch_replies(table, self._own, self._uid, instance, "")
        except VisitFailed as error:
            log.warning("the replies of the shape before are asked for again: %s", error)
            return events.TableMissed(instance)
        return events.TableReceived(instance, table.whole)

    # -- telling ---------------------------------------------------------------------------------------------

    def unsaid(self, node: Node) -> SayTaken | None:
        """What has to be said of this instance after a turn of its core: that a primary's model holds the
        state. None: nothing, or it was said before."""
        core = node.machine
        assert isinstance(core, StatefulMachine), "only these take a state"
        if self._machine is None or self._machine.has_loaded(node.instance):
            return None
        stands = events.RoleStands(node.instance, core.primary is not None and core.ready)
        return self._to_say(stands, node)

    async def say(self, node: Node, effect: SayTaken) -> None:
        """Write `effect` into etcd, again and again until etcd has it or this instance is over."""
        said: SayTaken | None = effect
        while said is not None and not node.stopped.done():
            try:
                await node.tell(
                    succession.key(self._uid, succession.TAKEN + said.instance),
                    succession.encode(said.taken),
                )
            except CoordinationError as error:
                log.info("that the state is loaded is told later: %s", error)
                self._to_say(events.NotSaid(), node)
                await asyncio.sleep(limits.visit_pause_s)
                said = self._to_say(events.Wake(), node)
            else:
                said = self._to_say(events.Said(), node)

    def _to_say(self, event: Event, node: Node) -> SayTaken | None:
        assert self._machine is not None, "a process that has waited"
        said = [item for item in self._machine.step(event, node.now()) if isinstance(item, SayTaken)]
        return said[0] if said else None


async def takeover_of(
    coordination: Coordination, graph_uid: str, of: str, process: str, tls: Certificates | None
) -> Takeover | None:
    """The takeover by which a process of this graph inherits; None: its graph follows no other one. Raises
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
        newest = state_to_hand_over(machine, said.op)
        if newest is None or newest.state is None:
            await visit.send(talk.encode(talk.Unready("this is no primary whose newest version is durable")))
            continue
        head = talk.PassedState(machine.epoch, newest.number, machine.layout)
        views = tuple(factory.describe(newest.state)[1])
        await visit.send(talk.encode(head), views)
        for view in views:
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
