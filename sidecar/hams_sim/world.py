"""The simulated world: one heap of things to come, and the shell around every core machine.

Nothing here branches on protocol state: a machine's effects are performed in their order, and every event
comes from the network, etcd, a model, a client or a fault. The same seed gives the same history, event by
event.
"""

import heapq
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

from hams_protocol.effects import (
    AbandonBatch,
    Answer,
    Capture,
    Effect,
    EnterUpdate,
    LoadState,
    NoteApply,
    NoteComplete,
    NoteDurable,
    NoteExec,
    NoteFailover,
    NoteLog,
    NoteLost,
    NoteReply,
    PreloadState,
    Propose,
    ReadCheckpoint,
    RestartModel,
    Send,
    StartBatch,
    Stop,
    WriteCheckpoint,
)
from hams_protocol.events import CheckpointRead, Event, Received, Tick
from hams_protocol.frontend import FrontendMachine
from hams_protocol.graph import FRONTEND, Graph
from hams_protocol.ids import RequestId, UnitId
from hams_protocol.intake import Names
from hams_protocol.messages import Completion, StateCopy
from hams_protocol.recovery import ManagerMachine
from hams_protocol.stateful import StatefulMachine
from hams_protocol.stateless import StatelessMachine
from hams_sim import limits
from hams_sim.calm import Calm
from hams_sim.clients import Client
from hams_sim.errors import Broken
from hams_sim.etcd import Etcd
from hams_sim.lives import Lives
from hams_sim.logs import Logs
from hams_sim.losses import Losses
from hams_sim.model import Behaviour, SimModel
from hams_sim.network import Network
from hams_sim.node import FOREVER, MANAGER, Node
from hams_sim.payload import SimState
from hams_sim.recorder import Recorder
from hams_sim.refusals import Refusals
from hams_sim.truth import Truth
from hams_sim.watching import Watching

TICK = Tick()


class World:
    """Everything of one history. `seed` decides all of it."""

    def __init__(self, graph: Graph, seed: str, behaviours: dict[str, Behaviour]) -> None:
        self.graph = graph
        self.now = 0.0
        self.events = 0
        self.net_rng = Random(f"{seed}/net")
        self.model_rng = Random(f"{seed}/model")
        self.client_rng = Random(f"{seed}/client")
        self.fault_rng = Random(f"{seed}/fault")
        self.shell_rng = Random(f"{seed}/shell")
        self.nodes: dict[str, Node] = {}
        self.behaviours = behaviours
        self.recorder = Recorder(self)
        self.network = Network(self, self.net_rng)
        self.etcd = Etcd(self, Random(f"{seed}/etcd"))
        self.coverage: Counter[str] = Counter()
        self.truth = Truth(self)
        self.logs = Logs(self)
        self.losses = Losses(self)
        self.calm = Calm(self)
        self.refusals = Refusals(self)
        self.lives = Lives(self)
        self.watching = Watching(self)
        self.clients: dict[int, Client] = {}
        self.calls_open = 0
        self.errored: set[RequestId] = set()
        self.unwritten: set[tuple[str, UnitId]] = set()
        self.torn: set[str] = set()
        self.received: dict[str, list[tuple[Node, int]]] = {}
        self.fan_outs = frozenset(
            op.name for op in graph.data.operators if not op.stateful and len(op.targets) > 1
        )
        self.healing = False
        self.disk: dict[str, StateCopy] = {}
        self.restored = False
        self.deadly = False
        self.turn_of: Node | None = None
        self.unread: set[RequestId] = set()
        self.replaced_s = 0.0
        self.struck_at = 0.0
        self.slowest_s = 0.0
        self.trace: Callable[[float, Node, Event, Sequence[Effect]], None] | None = None
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        turns = Random(f"{seed}/turns")
        self._turns = turns if turns.random() < limits.turns_share else None
        self._names: dict[str, Names] = {}
        self._ties = 0
        self._handles = 0
        self._nonces = 0
        self._born: Counter[str] = Counter()
        self._same_time = 0
        self._perform = self._performers()

    def _performers(self) -> dict[type, Callable[[Node, Any], None]]:
        """What performs each type of effect, `Send` excepted."""
        recorder = self.recorder
        return {
            Propose: lambda node, effect: self.etcd.propose(node, effect.revision, effect.topology),
            StartBatch: lambda node, effect: _model(node).start_batch(
                effect.batch, effect.units, effect.enter
            ),
            EnterUpdate: lambda node, effect: _model(node).enter_update(effect.batch),
            AbandonBatch: lambda node, effect: _model(node).abandon(effect.batch),
            Capture: lambda node, effect: _model(node).capture(effect.version),
            LoadState: lambda node, effect: _model(node).load(effect.token, effect.state),
            PreloadState: lambda node, effect: _model(node).load(0, effect.state),
            WriteCheckpoint: self._write_checkpoint,
            ReadCheckpoint: self._read_checkpoint,
            RestartModel: self._restart_model,
            Answer: self._answer,
            Stop: self.lives.stopped,
            NoteExec: recorder.exec,
            NoteApply: recorder.apply,
            NoteDurable: recorder.made_durable,
            NoteLog: recorder.log,
            NoteReply: recorder.reply,
            NoteComplete: recorder.completed,
            NoteFailover: recorder.failover,
            NoteLost: recorder.lost,
        }

    # -- time ------------------------------------------------------------------------------------------------

    def at(self, when: float, call: Callable[..., None], *args: object) -> None:
        """Call at a simulated time; ties in order of asking."""
        self._ties += 1
        heapq.heappush(self._heap, (when, self._ties, call, args))

    def after(self, delay: float, call: Callable[..., None], *args: object) -> None:
        """Call after a simulated delay."""
        self._ties += 1
        heapq.heappush(self._heap, (self.now + delay, self._ties, call, args))

    def run(self, until: float) -> None:
        """Let everything happen that is due up to `until`."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until:
            when, _, call, args = pop(heap)
            if when > self.now:
                self.now = when
                self._same_time = 0
            else:
                self._same_time += 1
                if self._same_time > limits.same_time_events_max:
                    raise Broken("core", f"a loop without time: {call} {args}")
            call(*args)
        self.now = max(self.now, until)
        if self.events > limits.events_max:
            raise Broken("I6", f"{self.events} events: a livelock")

    # -- instances -------------------------------------------------------------------------------------------

    def spawn(self, of: str, kept: Node | None = None) -> Node:
        """A fresh instance starts: new id, its model initialises, it registers."""
        self._born[of] += 1
        prefix = "m" if of == MANAGER else of
        node = Node(f"{prefix}-{self._born[of]}", of, self.shell_rng.choice((0.0, 1024.0, 65536.0)))
        node.born_at = self.now
        graph = self.graph
        if of == MANAGER:
            node.machine = ManagerMachine(graph, node.id, from_scratch=not self.restored)
        elif of == FRONTEND:
            logs = (
                kept.machine.kept_logs()
                if kept is not None and isinstance(kept.machine, FrontendMachine)
                else None
            )
            node.machine = FrontendMachine(graph, node.id, logs)
        else:
            operator = graph.operators[of]
            state = (
                kept.machine.kept_state()
                if kept is not None and isinstance(kept.machine, StatefulMachine)
                else None
            )
            if operator.stateful:
                node.machine = StatefulMachine(graph, of, node.id, state, self._restored(of))
            else:
                node.machine = StatelessMachine(graph, of, node.id)
            node.model = SimModel(self, node, operator, self.behaviours[of])
            node.model.start()
        if node.kept is not None:
            self.seen("came back with its state")
        self.nodes[node.id] = node
        self.etcd.register(node)
        self.etcd.resync(node)
        self.after(limits.heartbeat_every_s * self.shell_rng.random(), self.watching.heartbeat, node)
        return node

    def _restored(self, op: str) -> StateCopy | None:
        """A checkpoint of another run, if this one begins from one."""
        if not self.restored:
            return None
        return StateCopy(op, 3, 17, (), Completion(()), "another run", SimState(None, (), 4711), op)

    def living(self) -> Iterable[Node]:
        """All processes that run or are paused."""
        return [node for node in self.nodes.values() if node.alive]

    def feed(self, node: Node, event: Event) -> None:
        """One event for one machine; its effects are performed in order."""
        if not node.alive:
            return
        if node.paused:
            node.backlog.append(event)
            return
        self.events += 1
        if type(event) is Received and (unknown := self._names_of(node.of).unknown(event.message)):
            raise Broken("core", f"{node.id} would refuse {event.sender}: {unknown}")
        if node.of == FRONTEND and type(event) is Received:
            self.logs.came(event.message)
        if self._turns is not None and node.of == FRONTEND:
            node.turn.append(event)
            if len(node.turn) == 1:
                self.after(self._turns.choice((0.0, 0.0, 0.0005, 0.003)), self._turn, node)
            return
        self.turn_of = node
        effects = node.machine.step(event, self.now + node.skew)
        if self.trace is not None:
            self.trace(self.now, node, event, effects)
        self._performed(node, effects)

    def _names_of(self, of: str) -> Names:
        names = self._names.get(of)
        if names is None:
            names = self._names[of] = Names(self.graph, of)
        return names

    def _turn(self, node: Node) -> None:
        """A frontend takes what has come in one turn of its loop together."""
        events, node.turn = node.turn, []
        if not node.alive or not events:
            return
        if node.paused:
            node.backlog += events
            return
        assert isinstance(node.machine, FrontendMachine)
        self.turn_of = node
        effects = node.machine.steps(events, self.now + node.skew)
        if self.trace is not None:
            for event in events[:-1]:
                self.trace(self.now, node, event, ())
            self.trace(self.now, node, events[-1], effects)
        self._performed(node, effects)

    def _performed(self, node: Node, effects: Sequence[Effect]) -> None:
        machine = node.machine
        if effects:
            if node.trigger is None:
                send, perform = self.network.send, self._perform
                for effect in effects:
                    if type(effect) is Send:
                        if effect.target == node.id:
                            self.after(0.0, self.feed, node, Received(node.id, effect.message))
                        else:
                            send(node, effect.target, effect.message)
                    else:
                        perform[type(effect)](node, effect)
            elif not self._perform_triggered(node, effects):
                return
            if not self.nodes[node.id].alive:
                return
        due = machine.deadline() - node.skew
        if due < node.timer_at:
            node.timer_at = due
            self.at(due if due > self.now else self.now, self._timer, node, due)

    def _perform_triggered(self, node: Node, effects: Iterable[Effect]) -> bool:
        """A fault strikes between two effects: those after it never happen. False if it did."""
        for effect in effects:
            trigger = node.trigger
            if (
                trigger is not None
                and type(effect.message if type(effect) is Send else effect) is trigger.kind
            ):
                trigger.count -= 1
                if trigger.count <= 0:
                    node.trigger = None
                    self.etcd.about_to_propose = effect.topology if type(effect) is Propose else None
                    trigger.strike()
                    self.etcd.about_to_propose = None
                    if not node.alive:
                        return False
            if type(effect) is Send:
                if effect.target != node.id:
                    self.network.send(node, effect.target, effect.message)
                else:
                    self.after(0.0, self.feed, node, Received(node.id, effect.message))
            else:
                self._perform[type(effect)](node, effect)
                if not node.alive:
                    return False
        return True

    def _timer(self, node: Node, due: float) -> None:
        if node.timer_at != due or not node.alive:
            return
        if node.paused:
            node.timer_at = FOREVER
            return
        node.timer_at = FOREVER
        wanted = node.machine.deadline() - node.skew
        if wanted <= self.now:
            node.spins = node.spins + 1 if self._same_time else 0
            if node.spins > 200:
                raise Broken(
                    "core",
                    f"{node.id} wants a Tick again and again at one instant: its deadline does not move",
                )
            self.feed(node, TICK)
        elif wanted < FOREVER:
            node.timer_at = wanted
            self.at(wanted, self._timer, node, wanted)

    # -- effects ---------------------------------------------------------------------------------------------

    def _restart_model(self, node: Node, effect: RestartModel) -> None:
        self.seen("model restarted")
        _model(node).start()

    def _write_checkpoint(self, node: Node, effect: WriteCheckpoint) -> None:
        self.seen("checkpoint written")
        self.losses.written(node, effect.copy)
        self.after(0.002, self._on_disk, effect.copy)

    def _on_disk(self, copy: StateCopy) -> None:
        held = self.disk.get(copy.op)
        if held is None or (held.epoch, held.version) < (copy.epoch, copy.version):
            self.disk[copy.op] = copy

    def _read_checkpoint(self, node: Node, effect: ReadCheckpoint) -> None:
        """The newest one, unless this host's disk is torn."""
        copy = self.disk.get(effect.op) if self.shell_rng.random() < 0.8 else None
        self.after(0.003, self._checkpoint_read, node, copy)

    def _checkpoint_read(self, node: Node, copy: StateCopy | None) -> None:
        if node.alive and not node.paused:
            self.losses.read(node, copy)
        self.feed(node, CheckpointRead(copy))

    def _answer(self, node: Node, effect: Answer) -> None:
        client = self.clients.get(effect.handle)
        if client is not None:
            self.after(0.0004, client.answered, effect.handle, effect.outcome)

    def new_handle(self, client: Client) -> int:
        """A handle for a client's attempt."""
        self._handles += 1
        self.clients[self._handles] = client
        return self._handles

    def new_nonce(self) -> int:
        """A number never used before."""
        self._nonces += 1
        return self._nonces

    def unreadable(self, by: str, request: RequestId | None) -> Callable[[], bool] | None:
        """Whether whose turn it is cannot read a payload of a request. `by`: "" nobody, "all", or "some",
        half of all instances."""
        if not by:
            return None

        def cannot() -> bool:
            node = self.turn_of
            if node is None or (by == "some" and zlib.crc32(node.id.encode()) & 1):
                return False
            if request is not None:
                self.unread.add(request)
                self.errored.add(request)
            self.seen("a payload that cannot be read")
            return True

        return cannot

    def seen(self, what: str) -> None:
        """Count something rare, so that one sees it was reached."""
        self.coverage[what] += 1


def _model(node: Node) -> SimModel:
    assert node.model is not None, "only operators' machines speak to a model"
    return node.model
