"""Processes of one incarnation around its cores: frontends with clients in front, and those that wait for
what they take over.

Everything that is decided is decided by the core's machines; here their effects are performed, late and
unreliably.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from hams_protocol.due import FOREVER
from hams_protocol.effects import NotServed
from hams_protocol.frontend import FrontendMachine
from hams_protocol.graph import FRONTEND
from hams_protocol.ids import InstanceId
from hams_protocol.stateful import StatefulMachine
from hams_protocol.succession import effects as asked
from hams_protocol.succession import events
from hams_protocol.succession.events import Swap
from hams_protocol.succession.passing import Attempt, Next, after
from hams_protocol.succession.predecessor import Effect as PredecessorEffect
from hams_protocol.succession.predecessor import Event as PredecessorEvent
from hams_protocol.succession.predecessor import PredecessorMachine
from hams_protocol.succession.records import Follows, Quiet, Succession
from hams_protocol.succession.replies import Table
from hams_protocol.succession.search import Event as SearchEvent
from hams_protocol.succession.search import ReplySearch
from hams_protocol.succession.successor import SuccessorGate
from hams_protocol.succession.takeover import TakeoverMachine
from hams_protocol.topology import Topology
from hams_sim import limits
from hams_sim.node import Node
from hams_sim.succession.asks import Ask, Outcome, Request
from hams_sim.succession.store import Actor

if TYPE_CHECKING:
    from hams_sim.succession.incarnation import SimIncarnation

Done = Callable[[Outcome], None]
Cancel = Callable[[], None]

GONE = NotServed(503, "this frontend is coming back under another name")
CLOSED = NotServed(503, "the shape before this one serves")
CONFLICT = NotServed(409, "the key was used with another payload")
EXPIRED = NotServed(410, "the reply is not kept any more")
UNKNOWN_OUTCOME = NotServed(504, "the deadline has passed; the request may still take effect")


class Process(Actor):
    """A process of an incarnation. `node`: its present instance; None before the first one, and between two
    lives. `slow`: how late it hears of records, besides what is said of its node."""

    def __init__(self, incarnation: "SimIncarnation", of: str, name: InstanceId) -> None:
        super().__init__()
        self.incarnation = incarnation
        self.of = of
        self.name = name
        self.node: Node | None = None
        self.takeover: TakeoverMachine | None = None
        self.slow = 1.0
        self._said_at = FOREVER

    @property
    def is_paused(self) -> bool:
        """See `Actor`."""
        return self.node is not None and bool(self.node.paused)

    @property
    def reaches_etcd(self) -> bool:
        """See `Actor`."""
        node = self.node
        return self.alive and (node is None or (not node.etcd_cut and not node.paused))

    @property
    def watch_slow(self) -> float:
        """See `Actor`."""
        return self.slow if self.node is None else max(self.slow, self.node.watch_slow)

    @property
    def is_reachable(self) -> bool:
        """Whether visitors and clients reach it."""
        return self.alive and not self.is_paused and (self.node is None or not self.node.host_cut)

    def end(self) -> None:
        """The process is gone."""
        self.alive = False

    # -- what a process that has taken something over says ---------------------------------------------------

    def role_stands(self) -> None:
        """After a turn of its core: a primary says once that its model holds the state."""
        node, machine = self.node, self.takeover
        if node is None or machine is None or machine.has_loaded(node.id) or not node.alive:
            return
        core = node.machine
        if isinstance(core, StatefulMachine):
            holds = core.primary is not None and core.ready
            self.take_on(events.RoleStands(node.id, holds))

    def take_on(self, event: object) -> None:
        """An event of the takeover; what follows is done."""
        machine, resource = self.takeover, self.incarnation.resource
        if machine is None or not self.alive:
            return
        for effect in machine.step(event, resource.clock.now):  # type: ignore[arg-type]
            if isinstance(effect, asked.SayTaken):
                write = (self.incarnation.uid, f"taken/{effect.instance}", effect.taken)
                resource.store.transact(self, {}, (write,), self._said)
            else:
                self.takes(effect)
        due = machine.deadline()
        if due < FOREVER and due != self._said_at:
            self._said_at = due
            resource.clock.at(max(due, resource.clock.now), self.do, self._wake_takeover, due)

    def _wake_takeover(self, due: float) -> None:
        if self._said_at == due:
            self._said_at = FOREVER
            self.take_on(events.Wake())

    def _said(self, swap: Swap) -> None:
        self.take_on(events.Said() if swap is Swap.DONE else events.NotSaid())

    def takes(self, effect: object) -> None:
        """Fetch, or begin."""
        raise AssertionError(f"{self.name} has begun, but is to do {effect}")


class FrontendProcess(Process):
    """A frontend: its core, and what stands before it. `opened`: those who wait until it serves."""

    def __init__(
        self, incarnation: "SimIncarnation", name: InstanceId, table: "Table[Outcome] | None"
    ) -> None:
        super().__init__(incarnation, FRONTEND, name)
        self.machine = PredecessorMachine(incarnation.graph.data.frontend.request_timeout_s)
        self.gate = None if table is None else SuccessorGate[Outcome](table, CLOSED)
        self.opened: list[Callable[[], None]] = []
        self.open_requests = 0
        self._requests: dict[int, tuple[Request, Done]] = {}
        self._cancels: dict[int, Cancel] = {}
        self._visitors: dict[int, Callable[[], None]] = {}
        self._numbers = 0
        self._woken_at = FOREVER
        self._watcher = incarnation.resource.store.watch(self, (incarnation.uid,), self._on_key)

    @property
    def takes_requests(self) -> bool:
        """Whether its endpoint is open: the record is known before the first request is let in."""
        return self.alive and self.node is not None and self._watcher.is_read

    @property
    def is_busy(self) -> bool:
        """Whether anybody is connected and waits."""
        return bool(self._visitors)

    def end(self) -> None:
        """See `Process`. Those who were connected see it at once."""
        super().end()
        clock = self.incarnation.resource.clock
        for broken in list(self._visitors.values()):
            clock.after(0.001, broken)
        self._visitors.clear()

    def visited(self, broken: Callable[[], None]) -> int:
        """A client, or a frontend of the shape before, is connected until `left`."""
        self._numbers += 1
        self._visitors[self._numbers] = broken
        return self._numbers

    def left(self, number: int) -> None:
        """Forget a visitor that has left."""
        self._visitors.pop(number, None)

    # -- requests --------------------------------------------------------------------------------------------

    def submit(self, request: Request, done: Done) -> Cancel:
        """A client's request, or one that was passed on; how it is given up."""
        if self.machine.phase is None:
            return self.admit(request, done)
        self._numbers += 1
        number = self._numbers
        self._requests[number] = request, done

        def give_up() -> None:
            if self._requests.pop(number, None) is not None:
                self.feed(events.RequestOver(number))
                cancel = self._cancels.pop(number, None)
                if cancel is not None:
                    cancel()

        self.feed(events.RequestCame(number, request.until - self.incarnation.now))
        return give_up

    def admit(self, request: Request, done: Done) -> Cancel:
        """Past the predecessor's machine: known from before, or for the core."""
        world, node = self.incarnation, self.node
        known = None if self.gate is None else self.gate.answer(request.call.key, request.call.digest)
        if known is not None:
            if known is not CLOSED:
                world.seen("answered as the shape before did")
            done(known)
        elif node is None or not node.alive:
            done(GONE)
        else:
            self.open_requests += 1

            def answered(outcome: Outcome) -> None:
                self.open_requests -= 1
                self.do(done, outcome)

            ask = Ask(world, request, node, answered)
            ask.submit()
            return ask.leave
        return _nothing

    def feed(self, event: PredecessorEvent) -> None:
        """An event for its predecessor machine; what follows is done."""
        if not self.alive:
            return
        for effect in self.machine.step(event, self.incarnation.now):
            self._perform(effect)
        due = self.machine.deadline()
        if due < FOREVER and due != self._woken_at:
            self._woken_at = due
            self.incarnation.at(max(due, self.incarnation.now), self.do, self._wake, due)

    def _wake(self, due: float) -> None:
        if self._woken_at == due:
            self._woken_at = FOREVER
            self.feed(events.Wake())

    def _perform(self, effect: PredecessorEffect) -> None:
        world, store = self.incarnation, self.incarnation.resource.store
        if isinstance(effect, asked.SayQuiet):
            write = (world.uid, f"quiet/{effect.instance}", effect.quiet)
            store.transact(self, {}, (write,), self._quiet_said)
        elif isinstance(effect, asked.TakeBack):
            back = (world.uid, "succession", effect.record)
            store.transact(self, {(world.uid, "succession"): effect.revision}, (back,), self._taken_back)
        elif effect.handle in self._requests:
            self._perform_request(effect)

    def _perform_request(self, effect: asked.Admit | asked.PassOn | asked.Refuse) -> None:
        request, done = self._requests[effect.handle]

        def over(outcome: Outcome) -> None:
            if isinstance(effect, asked.Admit) and isinstance(outcome, NotServed) and outcome.status == 429:
                self.feed(events.HasNoRoom(effect.handle, outcome.retry_after_s))
                return
            self._requests.pop(effect.handle, None)
            self._cancels.pop(effect.handle, None)
            self.feed(events.RequestOver(effect.handle))
            done(outcome)

        if isinstance(effect, asked.Admit):
            self.incarnation.seen("held back, and given to the core")
            self._cancels[effect.handle] = self.admit(request, over)
        elif isinstance(effect, asked.PassOn):
            self.incarnation.seen("passed on")
            PassedRequest(self, request, effect.to, over).once()
        else:
            over(NotServed(429, "no room", effect.retry_after_s))

    def _quiet_said(self, swap: Swap) -> None:
        self.feed(events.Said() if swap is Swap.DONE else events.NotSaid())

    def _taken_back(self, swap: Swap) -> None:
        self.feed(events.StepAnswered(swap))

    # -- what it hears and sees ------------------------------------------------------------------------------

    def _on_key(self, uid: str, name: str, value: object, revision: int) -> None:
        if name == "succession":
            assert value is None or isinstance(value, Succession)
            self.feed(events.RecordChanged(value, revision))
            if self.node is not None and self.node.alive:
                self.node.shell.request_turn()
        elif name == "follows" and self.gate is not None and isinstance(value, Follows):
            self.gate.follows_changed(value)
            if self.gate.is_open:
                opened, self.opened = self.opened, []
                for call in opened:
                    call()

    def turn_ended(self) -> None:
        """After a turn of its core."""
        node = self.node
        if node is None or not node.alive or node.paused or not self.machine.is_resting:
            return
        core = node.machine
        assert isinstance(core, FrontendMachine)
        self.feed(events.CoreStands(node.id, core.waiting_clients, core.shards()))


class PassedRequest:
    """One request on its way from a frontend of the shape before to one of the next."""

    def __init__(self, process: FrontendProcess, request: Request, to: str, done: Done) -> None:
        self._process = process
        self._request = request
        self._to = to
        self._done = done
        self._clock = process.incarnation.resource.clock
        self._attempt = 0

    def once(self) -> None:
        """One attempt."""
        self._attempt += 1
        resource = self._process.incarnation.resource
        hosts = resource.frontends_of(self._to)
        if not hosts or not self._process.reaches_etcd or resource.store.away:
            self._ended(self._attempt, Attempt.NOTHING_BEGUN, None)
            return
        host = resource.rng.choice(hosts)
        self._clock.after(0.0005, self._reach, self._attempt, host, self._clock.now + limits.bridged_s)

    def _reach(self, attempt: int, host: FrontendProcess, until: float) -> None:
        if not host.alive or self._clock.now >= until:
            self._ended(attempt, Attempt.NOTHING_BEGUN, None)
        elif not host.is_reachable or not self._process.is_reachable:
            self._clock.after(0.05, self._reach, attempt, host, until)
        else:
            number = host.visited(lambda: self._ended(attempt, Attempt.UNKNOWN, None))
            if host.gate is None or host.gate.is_open:
                self._submit(attempt, host, number)
            else:
                host.opened.append(lambda: self._submit(attempt, host, number))

    def _submit(self, attempt: int, host: FrontendProcess, number: int) -> None:
        if self._clock.now >= self._request.until:
            self._ended(attempt, Attempt.NOTHING_BEGUN, None)
            return

        def answered(outcome: Outcome) -> None:
            host.left(number)
            begun = not (isinstance(outcome, NotServed) and outcome.status in (429, 503))
            kind = Attempt.ANSWERED if begun else Attempt.NOTHING_BEGUN
            self._clock.after(0.0005, self._back, attempt, host, kind, outcome)

        host.submit(self._request, answered)

    def _back(self, attempt: int, host: FrontendProcess, kind: Attempt, outcome: Outcome) -> None:
        if host.is_reachable and self._process.is_reachable:
            self._ended(attempt, kind, outcome)
        elif self._clock.now < self._request.until and host.alive:
            self._clock.after(0.05, self._back, attempt, host, kind, outcome)
        else:
            self._ended(attempt, Attempt.UNKNOWN, None)

    def _ended(self, attempt: int, kind: Attempt, outcome: Outcome | None) -> None:
        if attempt == self._attempt:
            self._attempt += 1
            self._process.do(self._judge, kind, outcome)

    def _judge(self, kind: Attempt, outcome: Outcome | None) -> None:
        follows = after(kind, self._request.call.key is not None, self._request.until - self._clock.now)
        if follows is Next.AGAIN:
            self._process.incarnation.seen("passed on again")
            self._clock.after(0.1, self._process.do, self.once)
        elif follows is Next.TIME_OUT or outcome is None:
            self._done(UNKNOWN_OUTCOME)
        else:
            self._done(outcome)


class WaitingProcess(Process):
    """A process of a shape that follows another one, before it is an instance: it drives the core's takeover,
    or the search of a frontend that comes later."""

    def __init__(self, incarnation: "SimIncarnation", of: str, name: InstanceId, layout: str) -> None:
        super().__init__(incarnation, of, name)
        resource = incarnation.resource
        self._before = resource.incarnation(incarnation.follows_uid)
        self._record: Succession | None = None
        self._topology = Topology()
        self._own = Topology()
        self._quiet: dict[InstanceId, Quiet] = {}
        self._done = False
        self._taken: object = None
        self._tables: dict[InstanceId, Table[Outcome]] = {}
        self._search: ReplySearch | None = None
        self._search_at = FOREVER
        self._frontends: tuple[InstanceId, ...] = ()
        self.takeover = TakeoverMachine(incarnation.uid, of, name, self._before.graph.shard_names, layout)
        self._paused = False
        uids = (incarnation.follows_uid, incarnation.uid)
        self._watcher = resource.store.watch(self, uids, self._on_key)
        resource.store.put(incarnation.uid, f"waiting/{name}", of)

    @property
    def is_paused(self) -> bool:
        """See `Actor`."""
        return self._paused

    def pause(self, paused: bool) -> None:
        """Let the process stand still, or go on."""
        self._paused = paused
        if not paused:
            self.resumed()

    def end(self) -> None:
        """See `Process`. Its lease runs out later."""
        super().end()
        resource = self.incarnation.resource
        name = f"waiting/{self.name}"
        resource.clock.after(limits.lease_ttl_s, resource.store.put, self.incarnation.uid, name, None)

    def _on_key(self, uid: str, name: str, value: object, revision: int) -> None:
        before = uid == self._before.uid
        if name == "topology":
            assert isinstance(value, Topology)
            self._topology, self._own = (value, self._own) if before else (self._topology, value)
        elif before and name == "succession":
            assert value is None or isinstance(value, Succession)
            self._record = value
        elif before and name.startswith("quiet/") and isinstance(value, Quiet):
            self._quiet[name.removeprefix("quiet/")] = value
        elif not before and name == "follows" and isinstance(value, Follows):
            self._done = value.done
        elif not before and name == "frontends":
            assert isinstance(value, tuple)
            self._frontends = value
        self.do(self._decide)

    def _decide(self) -> None:
        if self._search is not None:
            self._seek(events.FrontendsSeen(self._frontends))
            return
        if not self._watcher.is_read:
            return
        begun = self._own.find(self.of).epoch > 0
        quiet = tuple(self._quiet.items())
        self.take_on(events.GraphsSeen(self._record, self._topology, quiet, begun, self._done))

    # -- fetching --------------------------------------------------------------------------------------------

    def takes(self, effect: object) -> None:
        """See `Process`."""
        if isinstance(effect, asked.Fetch):
            fresh: Table[Outcome] = self.incarnation.new_table()
            self._fetch(list(effect.sources), fresh)
        elif isinstance(effect, asked.Begin):
            if self.of == FRONTEND and effect.cut is None:
                self._search = ReplySearch(self.incarnation.now)
                self.do(self._decide)
            else:
                self.incarnation.begins(self, None if effect.cut is None else self._taken)
        else:
            super().takes(effect)

    def _fetch(self, sources: list[asked.StateSource], table: "Table[Outcome]") -> None:
        if not sources:
            self._taken = table
            self.take_on(events.Fetched(""))
            return
        source = sources[0]
        host = self._before.process_of(source.host)

        def came(said: object) -> None:
            if said is None:
                self.take_on(events.NotFetched())
            elif self.of == FRONTEND:
                assert isinstance(said, list)
                for page in said:
                    table.add(page)
                self._fetch(sources[1:], table)
            else:
                assert isinstance(said, tuple)
                self._taken = said
                self.take_on(events.Fetched(said[1]))

        self._visit(self._before, source.host, host, source.what, came)

    def _visit(
        self,
        graph: "SimIncarnation",
        instance: InstanceId,
        host: Process | None,
        what: str,
        came: Callable[[object], None],
    ) -> None:
        """Ask somebody, and have the answer some time later; None: it did not come."""
        clock = self.incarnation.resource.clock
        until = clock.now + limits.bridged_s

        def ask() -> None:
            if host is None or not host.alive or clock.now > until:
                self.do(came, None)
            elif not host.is_reachable:
                clock.after(0.05, ask)
            else:
                said = graph.answers(host, instance, what)
                delay_s = self.incarnation.resource.rng.choice((0.001, 0.01, 0.1))
                clock.after(delay_s, bring, said)

        def bring(said: object) -> None:
            lost = host is None or not host.alive or not host.is_reachable
            self.do(came, None if lost else said)

        clock.after(0.0005, ask)

    # -- a frontend that comes later -------------------------------------------------------------------------

    def _seek(self, event: SearchEvent) -> None:
        machine = self._search
        if machine is None or not self.alive or machine.is_over:
            return
        for effect in machine.step(event, self.incarnation.now):
            if isinstance(effect, asked.AskTable):
                self._ask_table(effect.instance)
            else:
                table = self._tables.get(effect.instance)
                if table is None:
                    table = self.incarnation.new_table()
                    table.whole = False
                    self.incarnation.seen("nobody has the replies of the shape before")
                self.incarnation.begins(self, table)
                return
        due = machine.deadline()
        if due < FOREVER and due != self._search_at:
            self._search_at = due
            self.incarnation.at(max(due, self.incarnation.now), self.do, self._wake_search, due)

    def _wake_search(self, due: float) -> None:
        if self._search_at == due:
            self._search_at = FOREVER
            self._seek(events.Wake())

    def _ask_table(self, instance: InstanceId) -> None:
        def came(said: object) -> None:
            if said is None:
                self._seek(events.TableMissed(instance))
                return
            assert isinstance(said, list)
            table = self._tables[instance] = self.incarnation.new_table()
            for page in said:
                table.add(page)
            self._seek(events.TableReceived(instance, table.whole))

        self._visit(self.incarnation, instance, self.incarnation.process_of(instance), "", came)


def _nothing() -> None:
    """There is nothing to give up."""
