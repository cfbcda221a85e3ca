"""The shell around a frontend's `PredecessorMachine`: it holds clients' requests, writes into etcd, and
passes requests on. It decides nothing."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace

from hams_protocol.due import FOREVER
from hams_protocol.frontend import FrontendMachine
from hams_protocol.graph import Graph
from hams_protocol.messages import Message
from hams_protocol.succession import effects as asked
from hams_protocol.succession.events import (
    CoreStands,
    HasNoRoom,
    NotSaid,
    RecordChanged,
    RequestCame,
    RequestOver,
    Said,
    StepAnswered,
    Swap,
    Wake,
)
from hams_protocol.succession.predecessor import Effect, Event, PredecessorMachine
from hams_sidecar.endpoint.errors import RequestRefused
from hams_sidecar.inference import Done, Full, InferenceOutcome, InferenceRequest
from hams_sidecar.succession.passing import Passing
from hams_wire import records, succession
from hams_wire.coordination.port import Coordination
from hams_wire.errors import CoordinationError, NotApplied
from hams_wire.node import Node
from hams_wire.tls import Certificates

log = logging.getLogger("hams.succession")

Cancel = Callable[[], object]


class _Client:
    """A client whose request the machine has. `then`: how to give the request up where it is now."""

    __slots__ = ("done", "request", "then")

    def __init__(self, request: InferenceRequest, done: Done) -> None:
        self.request = request
        self.done = done
        self.then: Cancel = _nothing


class Predecessor:
    """`node()`: the present life. `admit` gives a request to the core."""

    def __init__(
        self,
        graph: Graph,
        graph_uid: str,
        node: Callable[[], Node | None],
        admit: Callable[[InferenceRequest, Done], Cancel],
        coordination: Callable[[], Coordination],
        tls: Certificates | None,
    ) -> None:
        self.machine = PredecessorMachine(graph.data.frontend.request_timeout_s)
        self._uid = graph_uid
        self._node = node
        self._admit = admit
        self._coordination = coordination
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._clients: dict[int, _Client] = {}
        self._next = 0
        self._timer: asyncio.TimerHandle | None = None
        self._passing: Passing | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._perform: dict[type, Callable[..., object]] = {
            asked.Admit: self._on_admit,
            asked.PassOn: self._on_pass_on,
            asked.Refuse: self._on_refuse,
            asked.SayQuiet: lambda effect: self._spawn(self._say(effect)),
            asked.TakeBack: lambda effect: self._spawn(self._take_back(effect)),
        }

    @property
    def is_over(self) -> bool:
        """Whether the successor serves, and this graph never again."""
        return self.machine.is_over

    def lost(self, message: Message) -> bool:
        """Whether a message of another frontend counts as lost."""
        return self.machine.loses(message)

    # -- events in -------------------------------------------------------------------------------------------

    def take(self, request: InferenceRequest, done: Done) -> Cancel | None:
        """Hold a request back or pass it on; None: it is for the core."""
        if self.machine.phase is None:
            return None
        handle, self._next = self._next, self._next + 1
        client = self._clients[handle] = _Client(request, done)
        self._feed(RequestCame(handle, request.deadline_s))

        def give_up() -> None:
            if self._clients.pop(handle, None) is not None:
                self._feed(RequestOver(handle))
                client.then()

        return give_up

    def on_key_changed(self, name: str, value: bytes | None, revision: int) -> None:
        """A key of this graph, as it is or as it has become."""
        if name != succession.SUCCESSION:
            return
        try:
            record = None if value is None else succession.decode_succession(value)
        except records.MalformedRecord as error:
            log.error("%s", error)
            return
        before = self.machine.phase
        self._feed(RecordChanged(record, revision))
        if self.machine.phase is not before:
            log.warning(
                "succession of %s: %s",
                "nobody" if record is None else record.to,
                "none" if record is None else record.phase.value,
            )
        node = self._node()
        if self.machine.is_resting and node is not None:
            node.request_turn()

    def on_turn_end(self) -> None:
        """After each turn of the core."""
        if not self.machine.is_resting or (node := self._node()) is None:
            return
        core = node.machine
        assert isinstance(core, FrontendMachine), "a frontend's machine"
        self._feed(CoreStands(node.instance, core.waiting_clients, core.shards()))

    def _feed(self, event: Event) -> None:
        self._performed(self.machine.step(event, self._loop.time()))

    def _performed(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._perform[type(effect)](effect)
        due = self.machine.deadline()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due < FOREVER:
            self._timer = self._loop.call_at(due, self._feed, Wake())

    # -- effects out -----------------------------------------------------------------------------------------

    def _on_admit(self, effect: asked.Admit) -> None:
        client = self._clients.get(effect.handle)
        if client is None:
            return

        def done(outcome: InferenceOutcome | Exception) -> None:
            if isinstance(outcome, Full):
                self._loop.call_soon(self._feed, HasNoRoom(effect.handle, outcome.retry_after_s))
            else:
                self._finish(effect.handle, outcome)

        client.then = self._admit(replace(client.request, deadline_s=effect.budget_s), done)

    def _on_pass_on(self, effect: asked.PassOn) -> None:
        client = self._clients.get(effect.handle)
        if client is None:
            return
        if self._passing is None:
            self._passing = Passing(self._coordination, effect.to, f"{self._uid}-frontend", self._tls)
        request = replace(client.request, deadline_s=effect.budget_s)
        client.then = self._spawn(self._pass_on(self._passing, effect.handle, request)).cancel

    async def _pass_on(self, passing: Passing, handle: int, request: InferenceRequest) -> None:
        try:
            outcome: InferenceOutcome | Exception = await passing.outcome(request)
        except RequestRefused as error:
            outcome = error
        self._finish(handle, outcome)

    def _on_refuse(self, effect: asked.Refuse) -> None:
        self._finish(effect.handle, Full(effect.retry_after_s))

    def _finish(self, handle: int, outcome: InferenceOutcome | Exception) -> None:
        client = self._clients.pop(handle, None)
        if client is not None:
            self._loop.call_soon(self._feed, RequestOver(handle))
            client.done(outcome)

    async def _say(self, effect: asked.SayQuiet) -> None:
        node = self._node()
        try:
            if node is None:
                raise CoordinationError("this frontend is coming back under another name")
            name = succession.key(self._uid, succession.QUIET + effect.instance)
            await node.tell(name, succession.encode(effect.quiet))
        except CoordinationError as error:
            log.info("that all is quiet is told later: %s", error)
            self._feed(NotSaid())
        else:
            self._feed(Said())

    async def _take_back(self, effect: asked.TakeBack) -> None:
        node = self._node()
        outcome = Swap.UNKNOWN
        try:
            if node is not None:
                name = succession.key(self._uid, succession.SUCCESSION)
                await node.swap(name, effect.revision, succession.encode(effect.record))
                outcome = Swap.DONE
        except NotApplied:
            log.info("somebody else has taken a step meanwhile: the watch tells whether that was the last")
            outcome = Swap.LOST
        except CoordinationError as error:
            log.warning("the succession is taken back later: %s", error)
        self._feed(StepAnswered(outcome))

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Give up what is under way."""
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._passing is not None:
            await self._passing.close()


def _nothing() -> None:
    """There is nothing to give up."""
