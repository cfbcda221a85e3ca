"""One incarnation of a graph: a world whose processes may wait for another one, and which another one may
follow.

What must hold at single steps of a change of shape is judged here: nothing is admitted, executed or replied
by an incarnation that does not serve.
"""

from random import Random
from typing import TYPE_CHECKING, Any

from hams_protocol.effects import NoteLog, NoteReply, Replied
from hams_protocol.events import Event, Received
from hams_protocol.frontend import FrontendMachine
from hams_protocol.graph import FRONTEND, Graph
from hams_protocol.ids import InstanceId, RequestId
from hams_protocol.messages import Completion, StateCopy
from hams_protocol.stateful import StatefulMachine
from hams_protocol.stateless import StatelessMachine
from hams_protocol.succession.records import Follows
from hams_protocol.succession.replies import Page, Table, entries_of, pages
from hams_protocol.succession.takeover import state_to_hand_over
from hams_protocol.topology import Topology
from hams_sim.errors import Broken
from hams_sim.etcd import Etcd
from hams_sim.model import Behaviour
from hams_sim.node import Node
from hams_sim.payload import SimState
from hams_sim.succession.asks import Outcome
from hams_sim.succession.process import CONFLICT, EXPIRED, FrontendProcess, Process, WaitingProcess
from hams_sim.world import World
from hams_wire.shell import MANAGER

if TYPE_CHECKING:
    from hams_sim.succession.resource import SimResource

Pages = list[Page[Outcome]]


class SharedEtcd(Etcd):
    """The topology and the members of one incarnation, which others read, too."""

    def __init__(self, incarnation: "SimIncarnation", rng: Random) -> None:
        super().__init__(incarnation, rng)
        self._of = incarnation

    def committed(self, node: Node, topology: Topology) -> None:
        """See `Etcd`."""
        super().committed(node, topology)
        self._of.resource.store.put(self._of.uid, "topology", topology)

    def changed(self) -> None:
        """See `Etcd`."""
        super().changed()
        members = {name: member.of for name, member in self.members.items()}
        frontends = tuple([name for name, of in members.items() if of == FRONTEND])
        store = self._of.resource.store
        store.put(self._of.uid, "members", members)
        store.put(self._of.uid, "frontends", frontends)


class SimIncarnation(World):
    """`follows`: what it says in etcd of whom it follows; None: nobody. `layouts`: of the states of its
    models, where they differ from the shape before. `keys`: those of clients that it has logged. `is_over`:
    another one has taken over from it."""

    def __init__(
        self,
        resource: "SimResource",
        graph: Graph,
        seed: str,
        behaviours: dict[str, Behaviour],
        follows: Follows | None,
        layouts: dict[str, str],
    ) -> None:
        super().__init__(graph, seed, behaviours, resource.clock)
        self.early_replies = resource.early_replies
        self.resource = resource
        self.uid = graph.data.uid
        self.follows = follows
        self.from_scratch = follows is None
        self.layouts = layouts
        self.processes: list[Process] = []
        self.is_removed = False
        self.is_over = False
        self.keys: dict[str, None] = {}
        self._noted: dict[tuple[str, RequestId], object] = {}
        self.etcd = SharedEtcd(self, Random(f"{seed}/etcd"))
        self._asks = 0
        self._log, self._reply = self.performers[NoteLog], self.performers[NoteReply]
        self.performers[NoteLog] = self._note_log
        self.performers[NoteReply] = self._note_reply
        self._rng = Random(f"{seed}/processes")

    @property
    def follows_uid(self) -> str:
        """The graph uid that this one succeeds; "": none."""
        return "" if self.follows is None else self.follows.uid

    def next_ask(self) -> int:
        """A number for a request at a core of this incarnation."""
        self._asks += 1
        return self._asks

    def new_table(self) -> "Table[Outcome]":
        """An empty table of replies, as large as this graph may keep."""
        return Table(self.graph.data.frontend, CONFLICT, EXPIRED)

    # -- processes -------------------------------------------------------------------------------------------

    def start_all(self) -> None:
        """All processes of the graph."""
        data = self.graph.data
        kinds = [MANAGER] * data.managers + [FRONTEND] * data.frontend.replicas
        for op in data.operators:
            kinds += [op.name] * ((1 + op.backups if op.stateful else op.slots) + op.hot_standbys)
        for of in kinds:
            self.start(of)

    def start(self, of: str) -> None:
        """See `World`. A process that takes something over waits before it is an instance."""
        if self.is_removed:
            return
        name = self.new_id(of)
        done = self.is_done
        if self.follows is not None and (of == FRONTEND or (of in self.follows.kept and not done)):
            begun = of != FRONTEND and self.etcd.topology.find(of).epoch > 0
            if not begun:
                self.processes.append(WaitingProcess(self, of, name, self.layouts.get(of, "")))
                return
        self._run(self._fresh(of, name, None), None)

    def _fresh(self, of: str, name: InstanceId, table: "Table[Outcome] | None") -> Process:
        process = FrontendProcess(self, name, table) if of == FRONTEND else Process(self, of, name)
        self.processes.append(process)
        return process

    def _run(self, process: Process, inherited: StateCopy | None) -> None:
        self.spawn(process.of, name=process.name, inherited=inherited)

    def begins(self, waiting: WaitingProcess, taken: object) -> None:
        """A process has waited long enough: it is an instance with what it has taken; None: with nothing."""
        store = self.resource.store
        store.put(self.uid, f"waiting/{waiting.name}", None)
        self.processes.remove(waiting)
        inherited: StateCopy | None = None
        if waiting.of == FRONTEND:
            assert isinstance(taken, Table), "a frontend begins with a table"
            process: Process = self._fresh(FRONTEND, waiting.name, taken)
            if self.is_done:
                self.resource.check_table(self, waiting.name, taken)
        else:
            process = self._fresh(waiting.of, waiting.name, None)
            process.takeover = waiting.takeover
            if taken is not None:
                inherited = taken[0]  # type: ignore[index]
        waiting.alive = False
        self._run(process, inherited)

    def spawn(
        self, of: str, before: Node | None = None, name: InstanceId = "", inherited: StateCopy | None = None
    ) -> Node:
        """See `World`."""
        process = None if before is None else self.process_of(before.id)
        node = super().spawn(of, before, name, inherited)
        if process is None:
            process = next((item for item in self.processes if item.name == node.id), None)
        if process is not None:
            process.node = node
        return node

    def ended(self, node: Node, keeps: bool) -> None:
        """See `World`."""
        process = self.process_of(node.id)
        if process is not None and not keeps:
            process.end()
            self.processes.remove(process)

    def process_of(self, instance: InstanceId) -> Process | None:
        """The process that runs this instance."""
        for process in self.processes:
            if process.node is not None and process.node.id == instance:
                return process
        return None

    def frontends(self) -> list[FrontendProcess]:
        """Frontend processes that take requests."""
        return [item for item in self.processes if isinstance(item, FrontendProcess) and item.takes_requests]

    def serves(self, instance: InstanceId) -> bool:
        """Whether an instance serves its role, as Kubernetes would know it."""
        node = self.nodes.get(instance)
        if node is None or not node.alive:
            return False
        core = node.machine
        return isinstance(core, StatefulMachine | StatelessMachine | FrontendMachine) and core.ready

    def remove(self) -> None:
        """The controller takes all processes of it away."""
        self.is_removed = True
        for process in list(self.processes):
            process.end()
        self.processes.clear()
        for node in list(self.living()):
            self.lives.kill(node, "removed", restart=False)

    # -- what is decided here --------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether etcd says that this incarnation serves."""
        if self.follows is None:
            return True
        held = self.resource.store.value(self.uid, "follows")
        return isinstance(held, Follows) and held.done

    def feed(self, node: Node, event: Event) -> None:
        """See `World`. A frontend that is closed loses what would have something admitted."""
        if node.of == FRONTEND and type(event) is Received and node.alive and not node.paused:
            process = self.process_of(node.id)
            if isinstance(process, FrontendProcess) and process.machine.loses(event.message):
                self.seen("a forwarded request was lost on purpose")
                return
        super().feed(node, event)

    def settle(self, node: Node) -> None:
        """See `World`."""
        super().settle(node)
        process = self.process_of(node.id)
        if isinstance(process, FrontendProcess):
            process.turn_ended()
        elif process is not None:
            process.role_stands()

    def answers(self, host: Process, instance: InstanceId, what: str) -> object:
        """What a visitor is answered; None: not now, or not here."""
        node = host.node
        if node is None or node.id != instance or not node.alive:
            return None
        core = node.machine
        if isinstance(core, StatefulMachine):
            version = state_to_hand_over(core, what)
            if version is None:
                return None
            assert isinstance(version.state, SimState)
            self.resource.handed_over(self, what, version.state)
            state = SimState(None, (), version.state.digest)  # what it holds is of another history
            copy = StateCopy(what, core.epoch, version.number, (), Completion(()), "", state)
            return copy, self.layouts.get(what, "")
        if isinstance(core, FrontendMachine) and isinstance(host, FrontendProcess):
            return self._replies(host, core, what)
        return None

    def _replies(self, host: FrontendProcess, core: FrontendMachine, shard: str) -> Pages | None:
        """Pages of what a frontend keeps."""
        most = self._rng.choice((1, 2, 1000))
        if not shard:
            if host.gate is None:
                return list(pages([], (), True, most, 1000))
            table = host.gate.table
            return (
                list(pages(table.entries(), table.expired(), table.whole, most, 1000))
                if host.gate.is_open
                else None
            )
        owned = [item.name for item in core.shards() if item.role == "primary"]
        former = core.logs_to_keep()
        log = None if former is None else former.logs.get(self.graph.shard_names.index(shard))
        if shard not in owned or log is None:
            return None
        entries = list(entries_of(log, _sized))
        return list(pages(entries, log.state.expired.hashes(), True, most, 1000))

    def _note_log(self, node: Node, note: Any) -> None:
        self._check_serves(node, note, "logs", (note.key, note.digest, note.source))
        self._log(node, note)
        self.resource.logged(self, note)

    def _note_reply(self, node: Node, note: Any) -> None:
        self._check_serves(node, note, "replies to", note.values)
        self._reply(node, note)

    def _check_serves(self, node: Node, note: NoteLog | NoteReply, does: str, said: object) -> None:
        """Only who serves logs and replies. After the switch an owner that was deposed before it, and has not
        learnt so, may take in what its followers acknowledged before they were frozen. The log that was taken
        over has that, and its owner has noted it: the same is noted again, or the rule is broken."""
        what, before = f"{node.id} {does} {note.request}", self._noted.get((does, note.request))
        if not self.is_done:
            raise Broken("I5", f"{what} before the shape before {self.uid} has handed over")
        if self.is_over:
            owned_in = self.etcd.topology.find(self.graph.shard_names[note.shard]).epoch
            if note.epoch >= owned_in:
                raise Broken("I5", f"{what} though another shape has taken over from {self.uid}")
            if said != before:
                raise Broken("I5", f"{what} with {said}, but another shape has taken over {before}")
            self.seen("a deposed owner repeated what was taken over")
        self._noted[does, note.request] = said


def _sized(replied: Replied) -> tuple[Outcome, int]:
    return replied, 1
