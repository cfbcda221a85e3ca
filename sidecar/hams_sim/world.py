"""The simulated world: one heap of things to come, and the shell around every core machine.

Nothing here branches on protocol state: a machine's effects are performed in their order, and every event
comes from the network, etcd, a model, a client or a fault. The same seed gives the same history, event by
event.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
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
    NoteStable,
    PreloadState,
    Propose,
    ReadCheckpoint,
    RestartModel,
    StartBatch,
    Stop,
    WriteCheckpoint,
)
from hams_protocol.events import CheckpointRead, CheckpointWritten, Event, Received
from hams_protocol.frontend import FrontendMachine
from hams_protocol.graph import FRONTEND, Graph
from hams_protocol.ids import InstanceId, RequestId, UnitId
from hams_protocol.intake import Names
from hams_protocol.messages import Completion, Heartbeat, Message, StateCopy
from hams_protocol.modes import ModePolicy
from hams_protocol.recovery import ManagerMachine
from hams_protocol.stateful import StatefulMachine
from hams_protocol.stateless import StatelessMachine
from hams_sim import limits
from hams_sim.budgets import Budgets
from hams_sim.calm import Calm
from hams_sim.clients import Client
from hams_sim.clock import Clock
from hams_sim.errors import Broken
from hams_sim.etcd import Etcd
from hams_sim.lives import Lives
from hams_sim.logs import LogJudge
from hams_sim.losses import LossJudge
from hams_sim.model import Behaviour, SimModel
from hams_sim.network import Network
from hams_sim.node import Node
from hams_sim.payload import SimState, arrived
from hams_sim.recorder import Recorder
from hams_sim.refusals import Refusals
from hams_sim.schedules import Schedules
from hams_sim.truth import Truth
from hams_sim.watching import Watching
from hams_wire.proposals import ProposalQueue
from hams_wire.shell import FOREVER, MANAGER, Shell


class SimHost:
    """What one instance's shell runs in (`hams_wire.shell.Host`)."""

    __slots__ = ("_clock", "_node", "_perform", "_world")

    def __init__(self, world: "World", node: Node) -> None:
        self._world = world
        self._clock = world.clock
        self._node = node
        self._perform = world.performers

    def now(self) -> float:
        """The clock of the instance itself."""
        return self._clock.now + self._node.skew

    def turn_soon(self) -> None:
        """See `World.turn_soon`."""
        self._world.turn_soon(self._node)

    def send(self, peer: InstanceId, message: Message) -> None:
        """Into the network, unless a fault strikes before."""
        world, node = self._world, self._node
        if node.trigger is not None and world.strikes(node, message):
            return
        world.budgets.sent(node, message)
        world.network.send(node, peer, message)

    def send_heartbeats(self, peers: Iterable[InstanceId], heartbeat: Heartbeat) -> None:
        """See `Watching.send_heartbeats`. No fault waits for one of them."""
        self._world.watching.send_heartbeats(self._node, peers, heartbeat)

    def perform(self, effect: Effect, now: float) -> None:
        """In this world, unless a fault strikes before."""
        if self._node.trigger is not None and self._world.strikes(self._node, effect):
            return
        self._perform[type(effect)](self._node, effect)

    def commit(self, proposal: Propose) -> None:
        """See `Etcd.commit`."""
        self._world.etcd.commit(self._node, proposal)

    def read_topology(self) -> None:
        """See `Etcd.read_again`."""
        self._world.etcd.read_again(self._node)

    def feed(self, event: Event) -> None:
        """See `World.feed`."""
        self._world.feed(self._node, event)

    def is_up(self, peer: InstanceId) -> bool:
        """See `Watching.is_up`."""
        return self._world.watching.is_up(self._node, peer)

    def heard_at(self, peer: InstanceId) -> float:
        """See `Watching.heard_at`."""
        return self._world.watching.heard_at(self._node, peer) + self._node.skew

    def unacknowledged_s(self, peer: InstanceId) -> float:
        """See `Watching.unacknowledged_s`."""
        return self._world.watching.unacknowledged_s(self._node, peer)

    def break_off(self, peer: InstanceId) -> None:
        """See `Watching.break_off`."""
        self._world.watching.break_off(self._node.links_in[peer])

    def stepped(self, events: Sequence[Event], effects: Sequence[Effect]) -> None:
        """What has come has arrived now: a frontend takes it in turns of its loop. And for a reader that
        follows the history."""
        messages = [event.message for event in events if type(event) is Received]
        self._world.budgets.received(self._node, messages)
        trace = self._world.trace
        if trace is not None:
            for event in events[:-1]:
                trace(self._world.now, self._node, event, ())
            trace(self._world.now, self._node, events[-1], effects)


class World:
    """Everything of one history. `seed` decides all of it."""

    def __init__(
        self, graph: Graph, seed: str, behaviours: dict[str, Behaviour], clock: Clock | None = None
    ) -> None:
        self.graph = graph
        self.early_replies = False
        self.replays = ModePolicy.of(graph.data.mode).replays
        self.by_receipt = ModePolicy.of(graph.data.mode).by_receipt
        self.deterministic = False
        self.clock = Clock() if clock is None else clock
        self.at = self.clock.at
        self.after = self.clock.after
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
        self.logs = LogJudge(self)
        self.losses = LossJudge(self)
        self.calm = Calm(self)
        self.refusals = Refusals(self)
        self.budgets = Budgets(self)
        self.lives = Lives(self)
        self.watching = Watching(self, Random(f"{seed}/silence"))
        self.schedules = Schedules(self, Random(f"{seed}/schedules"))
        self.clients: dict[int, Client] = {}
        self.calls_open = 0
        self.errored: set[RequestId] = set()
        self.unwritten: set[tuple[str, UnitId]] = set()
        self.inconsistent: set[str] = set()
        self.received: dict[str, list[tuple[Node, int]]] = {}
        self.fan_outs = frozenset(
            op.name for op in graph.data.operators if not op.stateful and len(op.targets) > 1
        )
        self.healing = False
        self.disk: dict[str, StateCopy] = {}
        self.restored = False
        self.from_scratch = True
        self.deadly = False
        self.turn_of: Node | None = None
        self.unread: set[RequestId] = set()
        self.replaced_s = 0.0
        self.reads_s = limits.checkpoint_read_s
        self.struck_at = 0.0
        self.slowest_s = 0.0
        self.trace: Callable[[float, Node, Event, Sequence[Effect]], None] | None = None
        turns = Random(f"{seed}/turns")
        self._turns = turns if turns.random() < limits.turns_share else None
        self._names: dict[str, Names] = {}
        self._handles = 0
        self._nonces = 0
        self._born: Counter[str] = Counter()
        self.performers = self._performers()

    def _performers(self) -> dict[type, Callable[[Node, Any], None]]:
        """What performs each type of effect, `Send` excepted."""
        recorder = self.recorder
        return {
            Propose: self._propose,
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
            NoteStable: recorder.made_stable,
            NoteLog: recorder.log,
            NoteReply: recorder.reply,
            NoteComplete: recorder.completed,
            NoteFailover: recorder.failover,
            NoteLost: recorder.lost,
        }

    # -- time ------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Simulated seconds."""
        return self.clock.now

    def run(self, until: float) -> None:
        """Let everything happen that is due up to `until`."""
        self.clock.run(until)
        if self.events > limits.events_max:
            raise Broken("I6", f"{self.events} events: a livelock")

    # -- instances -------------------------------------------------------------------------------------------

    def new_id(self, of: str) -> InstanceId:
        """An id never used before."""
        self._born[of] += 1
        return f"{'m' if of == MANAGER else of}-{self._born[of]}"

    def start(self, of: str) -> None:
        """A fresh process starts: it is an instance at once."""
        self.spawn(of)

    def ended(self, node: Node, keeps: bool) -> None:
        """An instance is over. `keeps`: its process goes on under another id."""

    def spawn(
        self, of: str, before: Node | None = None, name: InstanceId = "", inherited: StateCopy | None = None
    ) -> Node:
        """A fresh instance starts: new id, its model initialises, it registers. `inherited`: the state that
        another graph has handed over to it."""
        skew = self.shell_rng.choice((0.0, 1024.0, 65536.0))
        node = Node(name or self.new_id(of), of, skew if before is None else before.skew)
        if before is not None:
            self.budgets.goes_on(before, node)
        node.born_at = self.now
        graph = self.graph
        if of == MANAGER:
            node.machine = ManagerMachine(
                graph, node.id, from_scratch=self.from_scratch and not self.restored
            )
        elif of == FRONTEND:
            logs = (
                before.machine.logs_to_keep()
                if before is not None and isinstance(before.machine, FrontendMachine)
                else None
            )
            node.machine = FrontendMachine(graph, node.id, logs, _frontends_mode(self))
        else:
            operator, queues = graph.operators[of], self.schedules.queue_of
            state = (
                before.machine.state_to_keep()
                if before is not None and isinstance(before.machine, StatefulMachine)
                else None
            )
            if operator.stateful:
                restored = inherited or self._restored(of)
                node.machine = StatefulMachine(graph, of, node.id, state, restored, queues)
            else:
                node.machine = StatelessMachine(graph, of, node.id, queues)
            node.model = SimModel(self, node, operator, self.behaviours[of])
            node.model.start()
        steps = (
            node.machine.steps
            if self._turns is not None and isinstance(node.machine, FrontendMachine)
            else None
        )
        host = SimHost(self, node)
        node.shell = Shell(node.machine, node.id, of, host, graph.data.recovery.suspect_after_s, steps)
        node.proposals = ProposalQueue(host)
        if node.former_id is not None:
            self.seen("came back with its state")
        self.nodes[node.id] = node
        self.etcd.register(node)
        self.etcd.resync(node)
        return node

    def _restored(self, op: str) -> StateCopy | None:
        """A checkpoint of another run, if this one begins from one."""
        if not self.restored:
            return None
        state = SimState(None, (), 4711).came_whole()
        return StateCopy(op, 3, 17, (), Completion(()), "another run", state, op)

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
        if type(event) is Received and node.of == FRONTEND:
            self.logs.came(event.message)
        node.shell.feed(event)
        if self.schedules.used:
            self.schedules.work_ahead(node)

    def _propose(self, node: Node, proposal: Propose) -> None:
        node.proposals.propose(proposal)
        if len(node.proposals) > limits.proposals_max:
            raise Broken("I6", f"{node.id} has {len(node.proposals)} proposals under way")

    def _names_of(self, of: str) -> Names:
        names = self._names.get(of)
        if names is None:
            names = self._names[of] = Names(self.graph, of)
        return names

    def turn_soon(self, node: Node) -> None:
        """At once; a frontend takes what has come in one turn of its loop together."""
        if self._turns is not None and node.of == FRONTEND:
            self.after(self._turns.choice((0.0, 0.0, 0.0005, 0.003)), self.turn, node)
        else:
            self.turn(node)

    def turn(self, node: Node) -> None:
        """A turn of this instance's loop."""
        if node.paused:
            node.turn_missed = True
        elif node.alive:
            self.turn_of = node
            node.shell.turn()
            self.settle(node)

    def settle(self, node: Node) -> None:
        """After its shell did something: when it wants to be called again, and what it has to tell."""
        if not node.alive:
            return
        generation = node.machine.knowledge.topology.generation
        if generation != node.generation:
            node.generation = generation
            self.watching.watch(node)
        due = node.shell.deadline() - node.skew
        if due < node.timer_at:
            node.timer_at = due
            self.at(due if due > self.now else self.now, self._timer, node, due)

    def strikes(self, node: Node, effect: object) -> bool:
        """A fault may strike just before an effect. True if that has ended the instance: this effect and
        those behind it never happen."""
        trigger = node.trigger
        if trigger is None or type(effect) is not trigger.kind:
            return False
        trigger.count -= 1
        if trigger.count > 0:
            return False
        node.trigger = None
        self.etcd.about_to_propose = effect.topology if isinstance(effect, Propose) else None
        trigger.strike()
        self.etcd.about_to_propose = None
        return not node.alive

    def _timer(self, node: Node, due: float) -> None:
        if node.timer_at != due or not node.alive:
            return
        if node.paused:
            node.timer_at = FOREVER
            return
        node.timer_at = FOREVER
        wanted = node.shell.deadline() - node.skew
        if wanted <= self.now:
            node.spins = node.spins + 1 if self.clock.same_time else 0
            if node.spins > 200:
                raise Broken(
                    "core",
                    f"{node.id} wants a Tick again and again at one instant: its deadline does not move",
                )
            self.events += 1
            self.turn_of = node
            node.shell.wake()
            self.settle(node)
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
        write_s = self.shell_rng.choice(limits.store_s) if self.replays else limits.checkpoint_write_s
        self.after(write_s, self._on_disk, node, effect.copy)

    def _on_disk(self, node: Node, copy: StateCopy) -> None:
        if self.replays and not node.alive and self.shell_rng.random() < 0.5:
            return  # it died before its file had a name
        held = self.disk.get(copy.op)
        if held is None or (held.epoch, held.version) < (copy.epoch, copy.version):
            self.disk[copy.op] = copy
        if self.replays:
            self.feed(node, CheckpointWritten(copy.epoch, copy.version, True))

    def _read_checkpoint(self, node: Node, effect: ReadCheckpoint) -> None:
        """The newest one, unless this host's disk is torn."""
        whole = self.shell_rng.random() < 0.8 or self.replays
        copy = self.disk.get(effect.op) if whole else None
        self.after(self.reads_s, self._checkpoint_read, node, copy)

    def _checkpoint_read(self, node: Node, copy: StateCopy | None) -> None:
        if node.alive and not node.paused:
            self.losses.read(node, copy)
        self.feed(node, CheckpointRead(None if copy is None else arrived(copy)))

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


def _frontends_mode(world: World) -> ModePolicy:
    """What frontends do; early entries only where a reply waits for anything."""
    policy = ModePolicy.of(world.graph.data.mode)
    waits = policy.waits_for_durable and not policy.replays
    return replace(policy, reply_entry_early=world.early_replies and waits)


def _model(node: Node) -> SimModel:
    assert node.model is not None, "only operators' machines speak to a model"
    return node.model
