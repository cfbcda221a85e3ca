"""A frontend that may have a successor: it holds requests back while that takes over, then passes them on; or
goes on, if it does not.

    serves --hold--> holds --close--> is closed --done--> passes on
      ^                |                  |
      +------ back ----+------------------+

It follows the record in etcd and says of itself what the record's next step waits for. It is closed for
requests of other frontends by losing them, as a broken connection would; by then no client of a registered
frontend waits for one. Who does not hear of etcd holds on: it cannot know.

Invariant: between `hold` and `back` nothing that a client asks reaches the core here; after `done` nothing
ever does.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace

from hams_protocol import limits as core_limits
from hams_protocol.frontend import FrontendMachine
from hams_protocol.graph import Graph
from hams_protocol.messages import ClientForward, Message
from hams_sidecar import limits
from hams_sidecar.endpoint.errors import RequestRefused
from hams_sidecar.inference import Done, Full, InferenceOutcome, InferenceRequest
from hams_sidecar.succession.passing import Passing
from hams_wire import records, succession
from hams_wire.coordination.port import Coordination
from hams_wire.errors import CoordinationError, NotApplied
from hams_wire.node import Node
from hams_wire.succession import Phase, Quiet, Succession
from hams_wire.tls import Certificates

log = logging.getLogger("hams.succession")

_deadline_min_s = 0.001

Cancel = Callable[[], object]


class _Held:
    """A request that waits for what becomes of the succession. `then`: how to give it up once it has been let
    go."""

    __slots__ = ("done", "gone", "request", "then", "until")

    def __init__(self, request: InferenceRequest, done: Done, until: float) -> None:
        self.request = request
        self.done = done
        self.until = until
        self.gone = False
        self.then: Cancel | None = None


class Predecessor:
    """`node()`: the present life. `submit` takes a request that was held back, once more."""

    def __init__(
        self,
        graph: Graph,
        graph_uid: str,
        node: Callable[[], Node | None],
        submit: Callable[[InferenceRequest, Done], Cancel],
        coordination: Callable[[], Coordination],
        tls: Certificates | None,
    ) -> None:
        self._uid = graph_uid
        self._node = node
        self._submit = submit
        self._coordination = coordination
        self._tls = tls
        self._hold_s = graph.data.frontend.request_timeout_s * limits.hold_share_max
        self._loop = asyncio.get_running_loop()
        self._record: Succession | None = None
        self._revision = 0
        self._held: dict[int, _Held] = {}
        self._next = 0
        self._timer: asyncio.TimerHandle | None = None
        self._said: tuple[str, Quiet] | None = None
        self._saying = False
        self._passing: Passing | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def phase(self) -> Phase | None:
        """How far the succession has come; None: there is none."""
        return None if self._record is None or self._record.phase is Phase.BACK else self._record.phase

    @property
    def is_over(self) -> bool:
        """Whether the successor serves, and this graph never again."""
        return self.phase is Phase.DONE

    # -- requests --------------------------------------------------------------------------------------------

    def take(self, request: InferenceRequest, done: Done) -> Cancel | None:
        """Hold a request back or pass it on; None: it is for the core."""
        if self._record is None or self.phase is None:
            return None
        if self._passing is not None:
            return self._pass_on(self._passing, request, done)
        if len(self._held) >= core_limits.requests_waiting_max:
            done(Full(core_limits.retry_after_s))
            return _nothing
        number, self._next = self._next, self._next + 1
        held = self._held[number] = _Held(request, done, self._loop.time() + request.deadline_s)

        def give_up() -> None:
            """Its client waits no more, wherever it has come to."""
            self._held.pop(number, None)
            held.gone = True
            if held.then is not None:
                held.then()

        return give_up

    def _let_go(self, held: _Held) -> None:
        """For the core again, or for the successor. All that was held back comes at once: who finds no room
        waits, as nothing has begun."""
        if held.gone:
            return

        def done(outcome: InferenceOutcome | Exception) -> None:
            if isinstance(outcome, Full) and self._loop.time() + limits.visit_pause_s < held.until:
                self._loop.call_later(limits.visit_pause_s, self._let_go, held)
            else:
                held.done(outcome)

        request = replace(held.request, deadline_s=max(held.until - self._loop.time(), _deadline_min_s))
        held.then = self._submit(request, done)

    def _pass_on(self, passing: Passing, request: InferenceRequest, done: Done) -> Cancel:
        async def work() -> None:
            try:
                outcome = await passing.outcome(request)
            except RequestRefused as error:
                done(error)
            else:
                done(outcome)

        return self._spawn(work()).cancel

    def lost(self, message: Message) -> bool:
        """Whether a message of another frontend counts as lost: one that would have something admitted."""
        record = self._record
        if record is None or record.phase not in (Phase.CLOSE, Phase.DONE):
            return False
        return type(message) is ClientForward and message.payload is not None

    # -- the record ------------------------------------------------------------------------------------------

    def on_key_changed(self, name: str, value: bytes | None, revision: int) -> None:
        """A key of this graph, as it is or as it has become."""
        if name != succession.SUCCESSION:
            return
        try:
            record = None if value is None else succession.decode_succession(value)
        except records.MalformedRecord as error:
            log.error("%s", error)
            return
        if self.is_over or (record is None and self.phase is Phase.CLOSE):
            return  # for ever, whatever becomes of the key: what is closed may have been taken over
        before, self._record, self._revision = self._record, record, revision
        phase = self.phase
        if phase is not (None if before is None else before.phase):
            log.warning(
                "succession of %s: %s",
                "nobody" if record is None else record.to,
                "none" if record is None else record.phase.value,
            )
        if self._timer is not None and (before is None or record is None or record.to != before.to):
            self._timer.cancel()
            self._timer = None
        if phase in (Phase.HOLD, Phase.CLOSE):
            assert record is not None
            if self._timer is None:
                self._timer = self._loop.call_later(
                    self._hold_s, lambda: self._spawn(self._take_back(record.to))
                )
            node = self._node()
            if node is not None:
                node.request_turn()
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held = self._held, {}
        if phase is Phase.DONE:
            assert record is not None
            self._passing = Passing(self._coordination, record.to, f"{self._uid}-frontend", self._tls)
        self._said = None
        for item in held.values():
            self._let_go(item)

    async def _take_back(self, to: str) -> None:
        """The successor has had its time: requests have theirs, too."""
        while (
            self._record is not None
            and self._record.to == to
            and self._record.phase in (Phase.HOLD, Phase.CLOSE)
        ):
            node = self._node()
            why = (
                f"requests were held back for {self._hold_s:g} s, half of the time that they have, and the "
                "successor did not serve yet"
            )
            back = succession.encode(replace(self._record, phase=Phase.BACK, why=why))
            try:
                if node is not None:
                    await node.swap(succession.key(self._uid, succession.SUCCESSION), self._revision, back)
                    return
            except NotApplied:
                log.info(
                    "somebody else has taken a step meanwhile: the watch tells whether that was the last"
                )
            except CoordinationError as error:
                log.warning("the succession is taken back later: %s", error)
            await asyncio.sleep(limits.visit_pause_s)

    # -- what it says of itself ------------------------------------------------------------------------------

    def on_turn_end(self) -> None:
        """After each turn of the core: say that it is quiet, once it is."""
        record = self._record
        if record is None or record.phase not in (Phase.HOLD, Phase.CLOSE):
            return
        node = self._node()
        if node is None:
            return
        machine = node.machine
        assert isinstance(machine, FrontendMachine), "a frontend's machine"
        if machine.waiting_clients:
            return
        closed = record.phase is Phase.CLOSE
        quiet = [
            item
            for item in machine.shards()
            if item.role == "primary" and not item.frozen and not item.open_requests
        ]
        shards = (
            tuple([(item.name, item.epoch, item.last) for item in quiet if item.last == item.committed])
            if closed
            else ()
        )
        said = (node.instance, Quiet(record.to, closed, shards))
        if said != self._said:
            self._said = said
            if not self._saying:
                self._saying = True
                self._spawn(self._say())

    async def _say(self) -> None:
        """Until etcd has the newest."""
        told: tuple[str, Quiet] | None = None
        try:
            while self._said is not None and self._said != told:
                instance, quiet = said = self._said
                node = self._node()
                try:
                    if node is not None:
                        await node.tell(
                            succession.key(self._uid, succession.QUIET + instance), succession.encode(quiet)
                        )
                        told = said
                        continue
                except CoordinationError as error:
                    log.info("that all is quiet is told later: %s", error)
                await asyncio.sleep(limits.visit_pause_s)
        finally:
            self._saying = False

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
