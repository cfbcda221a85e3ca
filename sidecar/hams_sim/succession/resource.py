"""One graph that people change: its incarnations, etcd, the controller, and clients; and what is judged
across incarnations.

`present` serves, or served last; `coming` follows it and has not taken over. A key is answered alike by
all; what a client asked once was logged by one of them; and at the switch nothing is open.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

from hams_protocol.effects import NoteLog
from hams_protocol.graph import FRONTEND, Graph
from hams_protocol.ids import RequestId
from hams_protocol.succession.decision import successions_tried_max
from hams_protocol.succession.records import Follows, Phase, Succession, TakenOver
from hams_protocol.succession.replies import Table
from hams_protocol.wholeness import copies_wanted
from hams_sim import checks
from hams_sim.clock import Clock
from hams_sim.errors import Broken
from hams_sim.model import Behaviour
from hams_sim.payload import SimState
from hams_sim.succession.asks import CallClient, Outcome
from hams_sim.succession.controller import SimController
from hams_sim.succession.incarnation import SimIncarnation
from hams_sim.succession.process import FrontendProcess, WaitingProcess
from hams_sim.succession.store import SimStore
from hams_wire.notes import header_of


class SimResource:
    """`wanted`: the graph that is asked for, by the `generation` of the resource. `refused`: why it is not
    tried once more. `refuses`: no later shape's model takes the first one's state of `a` over. `answers_s`:
    no call waits longer than this."""

    def __init__(
        self,
        seed: str,
        graph: Graph,
        behaviours: dict[str, Behaviour],
        refuses: bool = False,
        early_replies: bool = False,
    ) -> None:
        self.clock = Clock()
        self.rng = Random(f"{seed}/resource")
        self.store = SimStore(self.clock, Random(f"{seed}/store"))
        self.store.on_commit = self._committed
        self.coverage: Counter[str] = Counter()
        self.incarnations: list[SimIncarnation] = []
        self.wanted = graph
        self.behaviours = behaviours
        self.generation = 1
        self.deleted = False
        self.refused = ""
        self.attempts: Counter[int] = Counter()
        self.answers_s: float | None = None
        self._refuses = refuses
        self.early_replies = early_replies
        self.calls_open = 0
        self.controller_slow = 1.0
        self.healing = False
        self.clients: list[CallClient] = []
        self.on_phase: dict[str, list[Callable[[], None]]] = {}
        self._seed = seed
        self._answers: dict[tuple[str, str], tuple[str, str, str]] = {}
        self._logged: dict[str, tuple[str, RequestId]] = {}
        self._handed: dict[int, tuple[str, SimState]] = {}
        self._begin(graph, None)
        self.controller = SimController(self)

    # -- incarnations ----------------------------------------------------------------------------------------

    def _begin(self, graph: Graph, follows: Follows | None) -> SimIncarnation:
        number = len(self.incarnations)
        layouts = {"a": "another" if number else "one"} if self._refuses else {}
        fresh = SimIncarnation(self, graph, f"{self._seed}/{number}", self.behaviours, follows, layouts)
        fresh.recorder.lines.append(header_of(graph.data, ordered=True))
        self.incarnations.append(fresh)
        if follows is not None:
            self.store.put(fresh.uid, "follows", follows)
        fresh.start_all()
        return fresh

    def begin_next(self, present: SimIncarnation) -> None:
        """The controller begins another attempt: another incarnation, with the states that both keep."""
        uid = f"g-r{len(self.incarnations)}"
        graph = Graph(replace(self.wanted.data, uid=uid))
        self.wanted = graph
        before = {op.name for op in present.graph.data.operators if op.stateful}
        inherited = tuple(op.name for op in graph.data.operators if op.stateful and op.name in before)
        self.seen("attempt")
        record = self.store.value(present.uid, "succession")
        if isinstance(record, Succession) and record.asked == self.generation and record.hopeless:
            raise Broken("I6", f"another attempt though {record.to} could not take over: {record.why}")
        self.attempts[self.generation] += 1
        if self.attempts[self.generation] > successions_tried_max:
            raise Broken("I6", f"attempt {self.attempts[self.generation]} for one change of the resource")
        self._begin(graph, Follows(present.uid, inherited))

    def delete(self) -> None:
        """A person deletes the resource."""
        self.deleted = True

    def ask_for(self, graph: Graph) -> None:
        """A person changes the resource."""
        self.generation += 1
        self.wanted = graph
        self.refused = ""

    def present(self) -> SimIncarnation:
        """The one that serves: the last one that etcd says has taken over."""
        return next(item for item in reversed(self.incarnations) if item.is_done)

    def coming(self) -> SimIncarnation | None:
        """The one that follows it and was not given up."""
        newest = self.incarnations[-1]
        return None if newest.is_done or newest.is_removed else newest

    def incarnation(self, uid: str) -> SimIncarnation:
        """By its uid."""
        return next(item for item in self.incarnations if item.uid == uid)

    def retire(self, graph: SimIncarnation) -> None:
        """Remove a shape that another one has followed, once nothing waits there."""
        before = self.incarnations[: self.incarnations.index(graph)]
        if graph.is_removed or any(not item.is_removed for item in before):
            return
        waits = [item for item in graph.processes if isinstance(item, FrontendProcess)]
        if any(item.is_busy for item in waits):
            return
        self.seen("removed")
        graph.remove()

    def frontends(self) -> list[FrontendProcess]:
        """Those that clients may ask: the Service's addresses, of both shapes for a while. A frontend that
        starts when its shape is over is none of them: it can never register, so it is never ready."""
        return [
            item
            for graph in self.incarnations
            if not graph.is_removed
            for item in graph.frontends()
            if not graph.is_over or item.name in graph.etcd.members
        ]

    def frontends_of(self, uid: str) -> list[FrontendProcess]:
        """Registered frontends of one incarnation."""
        graph = self.incarnation(uid)
        names = [name for name, member in graph.etcd.members.items() if member.of == FRONTEND]
        found = [graph.process_of(name) for name in names]
        return [item for item in found if isinstance(item, FrontendProcess)]

    def waiting(self) -> list[WaitingProcess]:
        """Processes that have not begun."""
        return [
            item
            for graph in self.incarnations
            if not graph.is_removed
            for item in graph.processes
            if isinstance(item, WaitingProcess)
        ]

    @property
    def may_expire(self) -> bool:
        """Whether replies are dropped for want of room."""
        calls = len(self.clients)
        return any(graph.graph.data.frontend.replies_kept < calls for graph in self.incarnations)

    def seen(self, what: str) -> None:
        """Count something rare."""
        self.coverage[what] += 1

    # -- what is judged --------------------------------------------------------------------------------------

    def handed_over(self, graph: SimIncarnation, op: str, state: SimState) -> None:
        """A state was given to a visitor."""
        self._handed[state.digest] = op, state

    def logged(self, graph: SimIncarnation, note: NoteLog) -> None:
        """A request was logged somewhere: what was asked once is logged once."""
        if note.source is not None:
            return
        record = self.store.value(graph.uid, "succession")
        if isinstance(record, Succession) and record.phase is Phase.CLOSE:
            self.seen("logged by a shape that is closed")
        if note.key is not None:
            graph.keys[note.key] = None
        name = f"key {note.key}" if note.key is not None else f"call {note.digest}"
        first = self._logged.setdefault(name, (graph.uid, note.request))
        if first != (graph.uid, note.request) and first[0] != graph.uid and not self._may_repeat(graph):
            raise Broken(
                "I4",
                f"{name} was logged by two incarnations: as {first[1]} by {first[0]}, and as {note.request} "
                f"by {graph.uid}",
            )

    def _may_repeat(self, graph: SimIncarnation) -> bool:
        """All frontends had died together, and with them what was answered before."""
        return any(item.coverage["nobody has the replies of the shape before"] for item in self.incarnations)

    def answered(self, client: CallClient) -> None:
        """A client has its answer: the same as everybody who asked the same."""
        call, waited_s = client.call, self.clock.now - client.began_at
        if self.answers_s is not None and waited_s > self.answers_s:
            raise Broken("I7", f"c{call.number} waited for {waited_s:.1f} s")
        if call.key is None or client.status not in ("ok", "error") or client.said == "broken":
            return
        said = client.status, client.said, f"c{call.number}"
        first = self._answers.setdefault((call.key, call.digest), said)
        if first[:2] != said[:2] and not self._may_repeat(self.present()):
            raise Broken(
                "I2", f"{said[2]} got {said[:2]} for {call.key}, for which {first[2]} got {first[:2]}"
            )

    def _committed(self, uid: str, name: str, value: object) -> None:
        if name == "ended":
            self.incarnation(uid).etcd.ended = True
        if name != "succession" or not isinstance(value, Succession):
            return
        self.seen(f"phase {value.phase.value}")
        if value.phase is Phase.DONE:
            self._switched(self.incarnation(uid), self.incarnation(value.to))
        for call in self.on_phase.pop(value.phase.value, []):
            call()

    def _switched(self, old: SimIncarnation, new: SimIncarnation) -> None:
        """The point of no return: nothing is open, and what the successor holds is what was answered."""
        if self.store.value(old.uid, "ended") is not None:
            raise Broken("I5", f"{new.uid} takes over from {old.uid}, which is deleted")
        old.is_over = True
        open_requests = checks.open_requests(old)
        if open_requests:
            raise Broken("I1", f"{new.uid} takes over from {old.uid}, where {open_requests[0]} is open")
        assert new.follows is not None
        for op in new.follows.kept:
            if old.layouts.get(op, "") != new.layouts.get(op, ""):
                raise Broken("I1", f"{new.uid} takes over a state of {op} that its model does not take")
        taken = [self.store.value(new.uid, f"taken/{item.name}") for item in new.processes]
        if any(isinstance(item, TakenOver) and item.refused for item in taken):
            raise Broken("I1", f"{new.uid} takes over, though a model took no state over")
        for name, copies in copies_wanted(new.graph).items():
            replica_set = new.etcd.topology.find(name)
            if replica_set.primary is None or len(replica_set.in_sync) < copies:
                raise Broken("I1", f"{new.uid} takes over, and {name} has {len(replica_set.in_sync)} copies")
        for item in new.processes:
            if isinstance(item, FrontendProcess) and item.gate is not None:
                self.check_table(new, item.name, item.gate.table)
        for op in new.follows.kept:
            state = self.state_begun_with(new, op)
            if state is None:
                raise Broken("I1", f"{new.uid} takes over without the state of {op}")
            checks.compare_history(old, op, state)

    def check_table(self, graph: SimIncarnation, name: str, table: "Table[Outcome]") -> None:
        """A frontend serves with this table: every key that shapes before have logged is in it, or the table
        says that it is not whole."""
        before = self.incarnations[: self.incarnations.index(graph)]
        logged = [key for item in before for key in item.keys]
        missing = [key for key in logged if table.find(key, None) is None]
        if missing and table.whole:
            raise Broken("I1", f"{name} of {graph.uid} calls its replies whole, without {missing[0]}")
        if missing and not self._may_repeat(graph):
            raise Broken("I1", f"{name} of {graph.uid} serves without the reply to {missing[0]}")

    def state_begun_with(self, graph: SimIncarnation, op: str) -> SimState | None:
        """What the state of an operator was when its incarnation began."""
        primary = graph.etcd.topology.find(op).primary
        core = None if primary is None else graph.nodes[primary].model
        state = None if core is None else core.state
        while state is not None and state.before is not None:
            state = state.before
        held = None if state is None else self._handed.get(state.digest)
        return None if held is None or held[0] != op else held[1]
