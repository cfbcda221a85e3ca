"""What a run looks like from outside: the topology in etcd, and what each instance says of itself when probed.

Used for `hams status` and for readiness; the observer connects to instances as any peer does and has no part in the protocol.
Truthful: `Ready` only while every state has a primary that serves it, every slot an owner with a warm model, and a frontend answers.
"""

import asyncio
import itertools
import secrets

import msgspec

from hams_operator.limits import status_probe_s
from hams_protocol.graph import FRONTEND, Graph
from hams_protocol.ids import InstanceId
from hams_protocol.messages import Health, Message, Probe, ProbeAnswer, RoleReport
from hams_protocol.topology import Topology
from hams_wire import records
from hams_wire.coordination.port import Coordination
from hams_wire.peers.network import PeerNetwork
from hams_wire.peers.payload import HeapFactory

MANAGER = "manager"


class Condition(msgspec.Struct, frozen=True):
    """As a metav1.Condition: `status` is True, False or Unknown."""

    type: str
    status: str
    reason: str
    message: str


class InstanceStatus(msgspec.Struct, frozen=True, rename="camel"):
    """One living instance (api.md, section 4). `operator` is None for frontends and managers."""

    id: str
    operator: str | None
    role: str
    leader: bool
    epoch: int
    version: int | None
    proxy_pid: int | None
    model_pid: int | None


class View(msgspec.Struct, frozen=True):
    """One look at a run."""

    generation: int
    conditions: tuple[Condition, ...]
    instances: tuple[InstanceStatus, ...]
    open_sets: tuple[str, ...]


class Observer:
    """Looks at one graph through etcd and its instances."""

    def __init__(self, graph: Graph, coordination: Coordination) -> None:
        self._graph = graph
        self._uid = graph.data.uid
        self._coordination = coordination
        self._nonces = itertools.count(1)
        self._answers: dict[InstanceId, ProbeAnswer] = {}
        self._waiting: dict[InstanceId, asyncio.Future[None]] = {}
        self._changed = asyncio.Event()
        self._network = PeerNetwork(
            f"observer-{secrets.token_hex(4)}", self._uid, "tcp:127.0.0.1:0", HeapFactory(), self._on_message, self._on_up, self._on_down
        )

    async def start(self) -> None:
        """Begin to listen. Raises OSError."""
        await self._network.start()

    async def close(self) -> None:
        """Let go."""
        await self._network.close()

    async def topology(self) -> Topology:
        """The topology now. Raises CoordinationError."""
        entry = await self._coordination.get(records.topology_key(self._uid))
        return Topology() if entry is None else records.decode_topology(entry.value)

    async def look(self, model_pids: dict[InstanceId, int]) -> View:
        """One look. Raises CoordinationError."""
        prefix = records.prefix_of(self._uid)
        snapshot = await self._coordination.get_prefix(prefix)
        topology, members = Topology(), dict[InstanceId, records.MemberRecord]()
        for entry in snapshot.entries:
            name = entry.key.removeprefix(prefix)
            if name == "topology":
                topology = records.decode_topology(entry.value)
            elif name.startswith("members/"):
                instance = name.removeprefix("members/")
                members[instance] = records.decode_member(instance, entry.value)[1]
        answers = await self._probe({name: member.address for name, member in members.items()})
        instances = tuple(self._instance(name, members, topology, answers.get(name), model_pids) for name in sorted(members) if name in answers)
        open_sets = tuple(item.name for item in topology.sets if item.lost or item.primary is None)
        return View(topology.generation, self._conditions(topology, answers), instances, open_sets)

    # -- probes ------------------------------------------------------------------------------------------------------------------

    async def _probe(self, addresses: dict[InstanceId, str]) -> dict[InstanceId, ProbeAnswer]:
        """Ask everybody; who does not answer in time is not alive as far as status goes."""
        loop = asyncio.get_running_loop()
        self._network.set_members(addresses)
        self._answers = {}
        self._waiting = {name: loop.create_future() for name in addresses}
        for name in addresses:
            if self._network.is_up(name):
                self._network.send(name, Probe(next(self._nonces)))
        if self._waiting:
            await asyncio.wait(self._waiting.values(), timeout=status_probe_s)
        return dict(self._answers)

    def _on_message(self, sender: InstanceId, message: Message) -> None:
        if isinstance(message, ProbeAnswer):
            self._answers[sender] = message
            self._done(sender)

    def _on_up(self, peer: InstanceId) -> None:
        self._network.send(peer, Probe(next(self._nonces)))

    def _on_down(self, peer: InstanceId) -> None:
        self._done(peer)

    def _done(self, peer: InstanceId) -> None:
        waiting = self._waiting.get(peer)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    # -- meaning -----------------------------------------------------------------------------------------------------------------

    def _instance(
        self,
        name: InstanceId,
        members: dict[InstanceId, records.MemberRecord],
        topology: Topology,
        answer: ProbeAnswer | None,
        model_pids: dict[InstanceId, int],
    ) -> InstanceStatus:
        member = members[name]
        if member.of == MANAGER:
            leader = name == min(item for item, record in members.items() if record.of == MANAGER)
            return InstanceStatus(name, None, "manager", leader, 0, None, member.pid, None)
        if member.of == FRONTEND:
            epoch = max((item.epoch for item in topology.sets if item.primary == name), default=0)
            return InstanceStatus(name, None, "frontend", False, epoch, None, member.pid, None)
        report = answer.roles[0] if answer is not None and answer.roles else RoleReport(member.of, "standby", 0, -1, False)
        version = report.version if report.version >= 0 else None
        return InstanceStatus(name, member.of, report.role, False, report.epoch, version, member.pid, model_pids.get(name))

    def _conditions(self, topology: Topology, answers: dict[InstanceId, ProbeAnswer]) -> tuple[Condition, ...]:
        ready = self._why_not_ready(topology, answers)
        redundant = self._why_not_redundant(topology, answers)
        return (
            Condition("Ready", "True" if ready is None else "False", "Serving" if ready is None else ready[0], "" if ready is None else ready[1]),
            Condition(
                "Redundant",
                "True" if redundant is None else "False",
                "InSync" if redundant is None else "Degraded",
                redundant or "",
            ),
            Condition("Progressing", "False" if redundant is None else "True", "Stable" if redundant is None else "Recovering", redundant or ""),
        )

    def _why_not_ready(self, topology: Topology, answers: dict[InstanceId, ProbeAnswer]) -> tuple[str, str] | None:
        for name in (*(op.name for op in self._graph.data.operators if op.stateful), *self._graph.shard_names):
            found = topology.find(name)
            if found.lost:
                return "StateLost", f"no replica of the state of {name} is left"
            if found.primary is None:
                return "NoPrimary", f"{name} has no primary yet"
            if not _serves(answers.get(found.primary), name, found.epoch):
                return "NotServing", f"{found.primary}, primary of {name}, does not serve it yet"
        for op in self._graph.data.operators:
            if op.stateful:
                continue
            slots = topology.table(op.name).slots
            if len(slots) < op.slots:
                return "NoActive", f"{op.name} has no active instance yet"
            for number, slot in enumerate(slots):
                if slot.instance is None or not _serves(answers.get(slot.instance), op.name, 0):
                    return "NotServing", f"slot {number} of {op.name} is not served"
        return None

    def _why_not_redundant(self, topology: Topology, answers: dict[InstanceId, ProbeAnswer]) -> str | None:
        if self._graph.data.mode == "None":
            return "mode None keeps no replicas"
        for op in self._graph.data.operators:
            if op.stateful:
                if op.backups == 0:
                    return f"{op.name} asks for no backups"
                if len(topology.find(op.name).in_sync) < op.backups:
                    return f"{op.name} has {len(topology.find(op.name).in_sync)} of {op.backups} backups in sync"
            owners = [slot.instance for slot in topology.table(op.name).slots]
            if not op.stateful and len(set(owners)) < min(op.slots, len(owners)):
                return f"an instance of {op.name} has more than one slot"
            spare = sum(1 for answer in answers.values() for role in answer.roles if role.name == op.name and role.role == "standby" and role.ready)
            if spare < op.hot_standbys:
                return f"{op.name} has {spare} of {op.hot_standbys} standbys warm"
        backups = self._graph.data.frontend.replicas - 1
        for name in self._graph.shard_names:
            if len(topology.find(name).in_sync) < backups:
                return f"shard {name} has {len(topology.find(name).in_sync)} of {backups} copies in sync"
        silent = [item.primary for item in topology.sets if item.primary not in answers]
        return f"{silent[0]} does not answer" if silent else None


def _serves(answer: ProbeAnswer | None, name: str, epoch: int) -> bool:
    """Whether an instance says that it serves its role there."""
    if answer is None or answer.health is not Health.HEALTHY:
        return False
    roles = [role for role in answer.roles if role.name == name]
    return not answer.roles or any(role.ready and role.role in ("primary", "active", "frontend") and role.epoch >= epoch for role in roles)
