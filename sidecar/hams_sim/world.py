"""The simulated world: one heap of things to come, and the shell around every core machine.

Nothing here branches on protocol state: a machine's effects are performed in their order, and every event comes from the network, etcd,
a model, a client or a fault. The same seed gives the same history, event by event.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

from hams_protocol.deps import Dep
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
    Propose,
    Rehearse,
    RestartModel,
    Send,
    StartBatch,
    Stop,
)
from hams_protocol.events import Drain, Event, MembersChanged, PeerDown, PeerUp, Received, Tick, TopologyLearnt
from hams_protocol.frontend import FrontendMachine
from hams_protocol.graph import FRONTEND, Graph, WhenUnprotected
from hams_protocol.ids import RequestId, UnitId
from hams_protocol.messages import Heartbeat, Suspect
from hams_protocol.recovery import ManagerMachine
from hams_protocol.stateful import StatefulMachine
from hams_protocol.stateless import StatelessMachine
from hams_protocol.topology import ReplicaSet, Topology
from hams_sim import limits
from hams_sim.clients import Client
from hams_sim.errors import Broken
from hams_sim.etcd import Etcd
from hams_sim.model import Behaviour, SimModel
from hams_sim.network import Link, Network
from hams_sim.node import FOREVER, MANAGER, Node
from hams_sim.recorder import Recorder

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
        self.clients: dict[int, Client] = {}
        self.calls_open = 0
        self.errored: set[RequestId] = set()
        self.unwritten: set[tuple[str, UnitId]] = set()
        self.lost: set[str] = set()
        self.torn: set[str] = set()
        self.received: dict[str, list[str]] = {}
        self.fan_outs = frozenset(op.name for op in graph.data.operators if not op.stateful and len(op.targets) > 1)
        self.healing = False
        self.heirs_die = False
        self.deadly = False
        self.trace: Callable[[float, Node, Event, Sequence[Effect]], None] | None = None
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        turns = Random(f"{seed}/turns")
        self._turns = turns if turns.random() < limits.turns_share else None
        self._ties = 0
        self._handles = 0
        self._nonces = 0
        self._born: Counter[str] = Counter()
        self._same_time = 0
        self._suspect_after = graph.data.recovery.suspect_after_s
        recorder = self.recorder
        self._perform: dict[type, Callable[[Node, Any], None]] = {
            Propose: lambda node, effect: self.etcd.propose(node, effect.revision, effect.topology),
            StartBatch: lambda node, effect: _model(node).start_batch(effect.batch, effect.units, effect.enter),
            EnterUpdate: lambda node, effect: _model(node).enter_update(effect.batch),
            AbandonBatch: lambda node, effect: _model(node).abandon(effect.batch),
            Capture: lambda node, effect: _model(node).capture(effect.version),
            LoadState: lambda node, effect: _model(node).load(effect.token, effect.state),
            Rehearse: lambda node, effect: _model(node).load(0, effect.state),
            RestartModel: self._restart_model,
            Answer: self._answer,
            Stop: self._stop,
            NoteExec: recorder.exec,
            NoteApply: recorder.apply,
            NoteDurable: recorder.made_durable,
            NoteLog: recorder.log,
            NoteReply: recorder.reply,
            NoteComplete: recorder.completed,
            NoteFailover: recorder.failover,
            NoteLost: recorder.lost,
        }

    # -- time --------------------------------------------------------------------------------------------------------------------

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

    # -- instances ---------------------------------------------------------------------------------------------------------------

    def spawn(self, of: str, kept: Node | None = None) -> Node:
        """A fresh instance starts: new id, its model initialises, it registers."""
        self._born[of] += 1
        prefix = "m" if of == MANAGER else of
        node = Node(f"{prefix}-{self._born[of]}", of, self.shell_rng.choice((0.0, 1024.0, 65536.0)))
        graph = self.graph
        if of == MANAGER:
            node.machine = ManagerMachine(graph, node.id)
        elif of == FRONTEND:
            logs = kept.machine.kept_logs() if kept is not None and isinstance(kept.machine, FrontendMachine) else None
            node.machine = FrontendMachine(graph, node.id, logs)
        else:
            operator = graph.operators[of]
            state = kept.machine.kept_state() if kept is not None and isinstance(kept.machine, StatefulMachine) else None
            node.machine = StatefulMachine(graph, of, node.id, state) if operator.stateful else StatelessMachine(graph, of, node.id)
            node.model = SimModel(self, node, operator, self.behaviours[of])
            node.model.start()
        if node.kept is not None:
            self.seen("came back with its state")
        self.nodes[node.id] = node
        self.etcd.register(node)
        self.etcd.resync(node)
        self.after(limits.heartbeat_every_s * self.shell_rng.random(), self._heartbeat, node)
        return node

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
        if self._turns is not None and node.of == FRONTEND:
            node.turn.append(event)
            if len(node.turn) == 1:
                self.after(self._turns.choice((0.0, 0.0, 0.0005, 0.003)), self._turn, node)
            return
        effects = node.machine.step(event, self.now + node.skew)
        if self.trace is not None:
            self.trace(self.now, node, event, effects)
        self._performed(node, effects)

    def _turn(self, node: Node) -> None:
        """A frontend takes what has come in one turn of its loop together."""
        events, node.turn = node.turn, []
        if not node.alive or not events:
            return
        if node.paused:
            node.backlog += events
            return
        assert isinstance(node.machine, FrontendMachine)
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
            if trigger is not None and type(effect.message if type(effect) is Send else effect) is trigger.kind:
                trigger.count -= 1
                if trigger.count <= 0:
                    node.trigger = None
                    trigger.strike()
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
                raise Broken("core", f"{node.id} wants a Tick again and again at one instant: its deadline does not move")
            self.feed(node, TICK)
        elif wanted < FOREVER:
            node.timer_at = wanted
            self.at(wanted, self._timer, node, wanted)

    # -- effects -----------------------------------------------------------------------------------------------------------------

    def _restart_model(self, node: Node, effect: RestartModel) -> None:
        self.seen("model restarted")
        _model(node).start()

    def _answer(self, node: Node, effect: Answer) -> None:
        client = self.clients.get(effect.handle)
        if client is not None:
            self.after(0.0004, client.answered, effect.handle, effect.outcome)

    def _stop(self, node: Node, effect: Stop) -> None:
        self.seen(f"stop: {effect.reason.split(':')[0].split(' of epoch')[0]}")
        self._end(node)
        if self.etcd.reachable(node) or not node.etcd_cut:
            self.after(0.001, self.etcd.drop, node.id)
        self.after(0.02, self.respawn, node, effect.keep is not None)

    def respawn(self, node: Node, keeps: bool = False) -> None:
        """The process is started again, under a fresh id; one that was to leave has its substitute already."""
        if not node.leaving:
            self.spawn(node.of, node if keeps else None)

    def drain(self, node: Node) -> None:
        """A graceful deletion: a substitute starts at once, the instance hands over what it has and stops."""
        if node.leaving or node.paused:
            return
        self.feed(node, Drain())
        self.after(0.05 + 0.2 * self.fault_rng.random(), self._substitute, node.of)
        node.leaving = True

    def _substitute(self, of: str) -> None:
        self.spawn(of)

    def new_handle(self, client: Client) -> int:
        """A handle for a client's attempt."""
        self._handles += 1
        self.clients[self._handles] = client
        return self._handles

    def new_nonce(self) -> int:
        """A number never used before."""
        self._nonces += 1
        return self._nonces

    def seen(self, what: str) -> None:
        """Count something rare, so that one sees it was reached."""
        self.coverage[what] += 1

    # -- connections -------------------------------------------------------------------------------------------------------------

    def peer_down(self, node: Node, peer: str, refused: bool) -> None:
        """A shell sees that a connection is gone."""
        self.feed(node, PeerDown(peer, refused))
        if node.alive and not node.paused and peer in self.nodes and self.shell_rng.random() < 0.2:
            self.tell_managers(node, peer, "its connection broke")

    def peer_up(self, node: Node, peer: str) -> None:
        """A connection stands again."""
        if peer in self.nodes and self.nodes[peer].alive:
            self.feed(node, PeerUp(peer))

    def tell_managers(self, node: Node, suspect: str, why: str) -> None:
        """A shell suspects a peer."""
        if node.of == MANAGER:
            return
        message = Suspect(suspect, why)
        for other in self.living():
            if other.of == MANAGER:
                self.network.send(node, other.id, message)

    def watch_silence(self, link: Link) -> None:
        """Whoever hears nothing over this link for long enough suspects its sender."""
        self.after(self._suspect_after * (1.0 + 0.5 * self.shell_rng.random()), self._silence, link, link.cut, link.sender.paused)

    def _silence(self, link: Link, cut: int, paused: int) -> None:
        observer, silent = link.receiver, link.sender
        if not (link.cut or silent.paused) or not observer.alive or observer.paused:
            return
        if silent.id not in self.nodes:
            return
        if not link.broken:
            self.network.give_up(link)
            self.feed(observer, PeerDown(silent.id, False))
            back = observer.links[silent.id]
            if silent.alive and not back.cut:
                self.after(back.delay, self.peer_down, silent, observer.id, False)
        self.tell_managers(observer, silent.id, "silent")
        if observer.of == MANAGER:
            self.feed(observer, Received(observer.id, Suspect(silent.id, "silent")))
        if silent.alive or link.cut:
            self.after(limits.suspect_again_s, self._silence, link, cut, paused)

    def _heartbeat(self, node: Node) -> None:
        if not node.alive:
            return
        self.after(limits.heartbeat_every_s * (0.5 + self.shell_rng.random()), self._heartbeat, node)
        if node.paused or not node.links:
            return
        machine = node.machine
        knowledge = machine.knowledge  # type: ignore[attr-defined]
        mark = knowledge.watermark(node.of)
        generation = knowledge.topology.generation
        if generation != node.generation:
            node.generation = generation
            self.etcd.confirm(node)
        peers = list(node.links)
        peer = peers[int(self.shell_rng.random() * len(peers))]
        if self.nodes[peer].alive:
            self.network.send(node, peer, Heartbeat(generation, (mark,) if mark is not None else ()))

    # -- life and death ----------------------------------------------------------------------------------------------------------

    def _end(self, node: Node, flushed: bool = False) -> None:
        """The process is gone; whoever is connected and reachable sees it at once. `flushed`: what it had said still arrives, mostly."""
        node.alive = False
        node.backlog.clear()
        if node.model is not None:
            node.model.life += 1
        for link in list(node.links.values()):
            link.broken = True
            if not flushed or self.fault_rng.random() < 0.3:
                link.life += 1
        for link in list(node.links_in.values()):
            link.kept.clear()
        for peer in dict.fromkeys((*node.links, *node.links_in)):
            other = self.nodes.get(peer)
            if other is None or not other.alive:
                continue
            link = self.network.link(node, other)
            if link.cut:
                self.watch_silence(link)
            else:
                self.after(link.delay * (1 + self.shell_rng.random()), self.peer_down, other, node.id, True)
        if node.is_frontend:
            for handle, client in list(self.clients.items()):
                if client.frontend is node and client.attempt == handle and not client.done:
                    self.after(0.001, client.broken)

    def kill(self, node: Node, why: str, restart: bool, flushed: bool = False) -> None:
        """SIGKILL: nothing is said, the lease runs out by itself, a fresh instance comes later."""
        if not node.alive:
            return
        self._end(node, flushed)
        node.silent_since = self.now
        self.after(limits.lease_ttl_s * (0.6 + 0.4 * self.shell_rng.random()), self.etcd.lapse, node, self.now)
        if restart:
            self.after(0.05 + 0.3 * self.shell_rng.random(), self.respawn, node)

    def pause(self, node: Node) -> None:
        """SIGSTOP of the proxy."""
        node.paused += 1
        if node.paused == 1:
            node.silent_since = self.now
            self.after(limits.lease_ttl_s * (0.7 + 0.3 * self.shell_rng.random()), self.etcd.lapse, node, self.now)
            for link in list(node.links.values()):
                self.watch_silence(link)

    def resume(self, node: Node, late_s: float = 0.0) -> None:
        """SIGCONT: what has piled up is handled first. `late_s`: its connection to etcd is lost, and stands again only then."""
        node.paused = max(0, node.paused - 1)
        if node.paused or not node.alive:
            return
        node.silent_since = -1.0
        backlog, node.backlog = node.backlog, []
        if late_s:
            backlog = [event for event in backlog if not isinstance(event, TopologyLearnt | MembersChanged)]
            self.cut_etcd(node)
            self.after(late_s, self.heal_etcd, node)
        for event in backlog:
            self.feed(node, event)
        if not self.nodes[node.id].alive:
            return
        for link in list(node.links.values()):
            self.network.mend(link)
        self.etcd.resync(node)
        self.feed(node, TICK)

    def cut_etcd(self, node: Node) -> None:
        """The instance does not reach etcd."""
        node.etcd_cut += 1
        if node.etcd_cut == 1:
            node.silent_since = self.now
            self.after(limits.lease_ttl_s * (0.7 + 0.3 * self.shell_rng.random()), self.etcd.lapse, node, self.now)

    def heal_etcd(self, node: Node) -> None:
        """It does again."""
        node.etcd_cut = max(0, node.etcd_cut - 1)
        if node.etcd_cut == 0 and node.alive:
            node.silent_since = -1.0
            self.etcd.resync(node)

    # -- truth -------------------------------------------------------------------------------------------------------------------

    def committed(self, before: Topology, after: Topology, node: Node) -> None:
        """A topology was committed."""
        for item in after.sets:
            old = before.find(item.name)
            if item.epoch > old.epoch > 0:
                self.recorder.moved(item, after.generation)
                kind = "takeover" if item.name.startswith("F/") else ("rollback" if item.primary == old.primary else "failover")
                self.seen(kind)
                if item.primary is not None and self.nodes[item.primary].kept in old.members and self.nodes[item.primary].kept is not None:
                    self.seen("went on with a kept state")
                if item.name not in self.graph.operators:
                    continue
                operator = self.graph.operators[item.name]
                if kind == "failover" and old.primary in item.in_sync:
                    self.seen("tainted primary went back as a backup")
                if operator.backups == 2:
                    self.seen("failover with two backups")
            elif len(item.in_sync) < len(old.in_sync):
                self.seen("shrink")
            elif len(item.in_sync) > len(old.in_sync):
                self.seen("join")
            if item.lost and not old.lost:
                self.seen("lost")
        for table in after.tables:
            for number, slot in enumerate(table.slots):
                old_slots = before.table(table.op).slots
                if old_slots and old_slots[number].epoch and slot.epoch > old_slots[number].epoch:
                    self.seen("slot moved")

        if self.heirs_die and not self.healing:
            for instance in set(after.revoked) - set(before.revoked):
                self._kill_heirs(after, self.nodes[instance])

    def _kill_heirs(self, topology: Topology, revoked: Node) -> None:
        """Who answered for a revoked, living instance dies at once: what that one has kept is all that is left of the state."""
        if not revoked.alive:
            return
        mine = [item for item in topology.sets if revoked.id in item.members]
        for name in sorted({name for item in mine for name in item.members} - {revoked.id}):
            if all(item in mine for item in topology.sets if name in item.members) and self.nodes[name].alive:
                self.seen("an heir died")
                self.kill(self.nodes[name], "heir", restart=True)

    def is_durable(self, dep: Dep) -> bool:
        """Whether a dependency is durable in truth: called so by its primary, or kept by a committed end."""
        if dep.op in self.lost:
            return True
        found = self.etcd.topology.find(dep.op)
        if dep.epoch < found.epoch:
            end = self.etcd.ends.get(dep.op, {}).get(dep.epoch, -1)
            return dep.seq <= end
        return dep.seq <= self.recorder.durable.get((dep.op, dep.epoch), -1)

    def check_window(self, node: Node) -> None:
        """At most `window` versions are not yet durable; one more where a request fails by itself."""
        machine = node.machine
        assert isinstance(machine, StatefulMachine)
        if machine.primary is not None and machine.primary.undurable > machine.operator.window + 1:
            raise Broken("I6", f"{node.id} has {machine.primary.undurable} versions not yet durable; its window is {machine.operator.window}")

    def check_durable(self, node: Node, note: NoteDurable) -> None:
        """What is called durable is applied by every in-sync backup that etcd names, or lies within the end that has ended its epoch."""
        found = self.etcd.topology.find(note.op)
        if note.op in self.lost:
            return
        if found.epoch > note.epoch:
            end = self.etcd.ends[note.op].get(note.epoch, -1)
            if note.version > end:
                raise Broken("I1", f"{node.id} calls version {note.version} of epoch {note.epoch} of {note.op} durable, but that ended at {end}")
            return
        for peer in found.in_sync:
            self._check_holds(node, note, found, self.nodes[peer])
        if not found.in_sync and self.graph.data.recovery.when_unprotected is WhenUnprotected.BLOCK:
            raise Broken("I1", f"{node.id} calls version {note.version} of {note.op} durable alone under Block")

    def _check_holds(self, node: Node, note: NoteDurable, found: ReplicaSet, peer: Node) -> None:
        machine = peer.machine
        assert isinstance(machine, StatefulMachine)
        if machine.version < note.version and machine.epoch == note.epoch:
            raise Broken("I1", f"{node.id} calls version {note.version} of {note.op} durable; {peer.id}, in sync, has {machine.version}")

    def may_hurt(self, node: Node) -> bool:
        """Whether the protocol tolerates the loss of this instance now: every state it holds has another sound holder."""
        if node.of == MANAGER:
            return any(other.sound and not other.etcd_cut and other is not node for other in self.living() if other.of == MANAGER)
        for topology in (self.etcd.topology, *self.etcd.proposed.values()):
            for item in topology.sets:
                if node.id in item.members:
                    others = [self.nodes[name] for name in item.members if name != node.id]
                    if not any(other.sound and not (other.leaving and other.is_frontend) and self.model_ready(other) for other in others):
                        return False
                if node.kept is not None and node.kept in item.members:
                    return False
        return True

    def follows(self, node: Node) -> bool:
        """Whether it is a frontend that backs a shard: who is drained as one stops at once."""
        return node.is_frontend and any(node.id in item.in_sync for item in self.etcd.topology.sets)

    def model_ready(self, node: Node) -> bool:
        """Whether its model is up."""
        return node.model is None or node.model.up


def _model(node: Node) -> SimModel:
    assert node.model is not None, "only operators' machines speak to a model"
    return node.model
